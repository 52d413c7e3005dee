"""Two machines publish different files under one name; the second one publishes at a given moment of the first one's
call.

However long the first one halts, and wherever: one of those that succeed has the name, whole; one that does not names
what is in its way; and the next one publishes what it is given, leaving nothing unfinished. Machines may also publish
the same file at the same time.
"""

import contextlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from colabstage import extract_archive, fetch_files, publish_file
from colabstage.errors import ColabstageError
from colabstage.io import workspace
from colabstage.stage import places
from tests.contract.cases import make_mine, newest, pack
from tests.support.images import make_tree
from tests.support.invariants import Home, left_behind, unvouched
from tests.support.moments import Moment, Processes, Ran

# More system calls than the first machine makes.
MOST = 1000
# Between these events of Python's, machines take turns.
_HALTS = frozenset({"open", "os.rename", "os.remove", "ctypes.dlsym"})
VERSIONS = {name: name.encode() * 1000 for name in ("older", "mine", "others", "last")}


def publish(home: str, version: str) -> bool:
    """Publish a version; return whether that succeeded."""
    try:
        publish_file(Path(home, "mine", version), Path(home, "out/model.bin"), progress=False)
    except ColabstageError as error:
        if "model.bin" not in str(error):
            raise
        return False
    return True


def publish_others(out: str) -> None:
    """Publish the second version from another process of this machine."""
    _publish_meanwhile(out, elsewhere=False)


def publish_elsewhere(out: str) -> None:
    """Publish it from another machine that shares the disk: no lock reaches there, and nobody sees who is alive."""
    _publish_meanwhile(out, elsewhere=True)


def _publish_meanwhile(out: str, *, elsewhere: bool) -> None:
    _wait_for(_begin(Path(out).parent, "others", "0" * 8 if elsewhere else ""))


def _wait_for(child: int) -> None:
    assert os.waitpid(child, 0)[1] == 0, "the second machine's call ended otherwise than by success or a refusal"


def _begin(home: Path, version: str, world: str, seed: int | None = None) -> int:
    """Publish a version in a process of another machine, or of this one if `world` is empty; with a seed, it halts for
    moments on its way. Its result is in a file of that name."""
    child = os.fork()
    if child == 0:
        places._TURN_S = 0.6
        if world:
            workspace.current_world = lambda: world
            tempfile.tempdir = str(home / f"elsewhere{world}")
            Path(tempfile.tempdir).mkdir()
        if seed is not None:
            halts = Random(seed)

            def halt(event: str, _: object) -> None:
                if event in _HALTS:
                    time.sleep(halts.choice([0, 0, 0, 3e-4, 1e-3, 3e-3]))

            sys.addaudithook(halt)
        try:
            (home / version).write_text(str(publish(str(home), version)))
        except BaseException:  # noqa: BLE001 - the exit code says so
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


@pytest.fixture(scope="module")
def machines() -> Iterator[Processes]:
    with Processes(f"{__name__}:publish") as started:
        yield started


@pytest.mark.parametrize("before", [(), ("older",)], ids=["a new name", "over an older version"])
@pytest.mark.parametrize("second", ["publish_others", "publish_elsewhere"])
@pytest.mark.parametrize(
    "stride", [29, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(1200)])], ids=["some", "each"]
)
def test_two_machines_publish_one_name(
    before: tuple[str, ...], second: str, stride: int, tmp_path: Path, machines: Processes
) -> None:
    for at in range(1, MOST, stride):
        home = tmp_path / str(at)
        make_tree(home, {f"mine/{name}": content for name, content in VERSIONS.items()})
        (home / "out").mkdir()
        assert all(publish(str(home), version) for version in before)
        user, out = Home(home, theirs=["mine"]), str(home / "out")
        ran = machines.run([str(home), "mine"], Moment(at, "call", out, function=f"{__name__}:{second}"))
        if not ran.is_at(Moment(at)):
            return
        assert ran.error is None, f"at {at}: {ran.error}"
        succeeded = [
            name for name, done in (("others", (home / "others").read_text() == "True"), ("mine", ran.result)) if done
        ]
        # Where both did, the first one had put its file there before it halted, or it came second.
        found = newest(home).get("model.bin")
        assert found in [VERSIONS[name] for name in succeeded], f"at {at}: {found!r:.80} of {succeeded}"
        if ran.result and found != VERSIONS["mine"]:
            assert (home / "out/model.bin.previous").read_bytes() == VERSIONS["mine"], f"at {at}"
        assert unvouched(home / "out") == [], f"at {at}"
        assert publish(str(home), "last"), f"at {at}: what they left is in the way"
        assert newest(home) == {"model.bin": VERSIONS["last"]}
        assert left_behind(home / "out") == [], f"at {at}"
        user.check(finished=True, about=f"at {at}")
    pytest.fail("the call did not end within these moments")


@pytest.mark.parametrize("before", [(), ("older",)], ids=["a new name", "over an older version"])
@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_machines_publish_the_same_file_at_once(before: tuple[str, ...], rounds: int, tmp_path: Path) -> None:
    """All succeed where nothing has to make room first, otherwise at least one; and no note is left."""
    machines = ["one", "two", "three"]
    for round_ in range(rounds):
        home = tmp_path / str(round_)
        make_tree(home, {f"mine/{name}": VERSIONS.get(name, VERSIONS["mine"]) for name in [*before, *machines]})
        (home / "out").mkdir()
        assert all(publish(str(home), version) for version in before)
        for child in [_begin(home, name, name.zfill(8), round_ * 9 + at) for at, name in enumerate(machines)]:
            _wait_for(child)
        succeeded = [name for name in machines if (home / name).read_text() == "True"]
        assert len(succeeded) >= (1 if before else len(machines)), f"round {round_}: {succeeded}"
        assert newest(home) == {"model.bin": VERSIONS["mine"]}, f"round {round_}"
        assert left_behind(home / "out") == unvouched(home / "out") == [], f"round {round_}"


# Calls that may replace nothing, the name that each gives to what it makes, and how many moments before that are tried:
# more than lie between its last look and the rename.
CALLS: dict[str, tuple[Callable[[Path], object], str, int]] = {
    "pack": (pack, "it.h5", 12),
    "fetch": (lambda home: fetch_files(home / "mine/model.bin", f"{home}/out/it", progress=False), "it", 4),
    "extract": (lambda home: extract_archive(home / "mine/photos.zip", home / "out/it", progress=False), "it", 4),
}


def make(home: str, what: str) -> None:
    CALLS[what][0](Path(home))


def come(out: str) -> None:
    """Put a file of the user's under the name of the call, if it is free."""
    for place in Path(out).parent.glob("taken/*"):
        with contextlib.suppress(FileExistsError), (Path(out) / place.name).open("xb") as file:
            file.write(b"theirs")
            place.unlink()


@pytest.mark.parametrize("what", CALLS)
def test_a_file_that_comes_at_the_last_moment_stays(what: str, tmp_path: Path) -> None:
    """It is not there at the last look, and what is made gets no name then."""
    _, name, last = CALLS[what]
    with Processes(f"{__name__}:make") as machine:

        def make_home(at: int) -> Path:
            home = make_tree(tmp_path / str(at), {f"taken/{name}": "", "out/mine.txt": ""})
            make_mine(home)
            return home

        def call(at: int) -> tuple[Ran, Path]:
            home = make_home(at)
            return machine.run([str(home), what], Moment(at, "call", f"{home}/out", function=f"{__name__}:come")), home

        machine.warm_up(what, [str(make_home(0)), what])
        at, came = call(MOST)[0].reached, 0
        while came < last:
            ran, home = call(at)
            if not list((home / "taken").iterdir()):
                came += 1
                assert (home / "out" / name).read_bytes() == b"theirs", f"at {at}"
                assert ran.error is not None, f"at {at}"
                assert ran.error.typed, f"at {at}: {ran.error}"
            at -= 1
