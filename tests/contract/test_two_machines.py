"""Two machines publish different files, or the same one, under one name; the second one publishes at a given moment of
the first one's call.

However long the first one halts, and wherever: one of those that succeed has the name, whole; one that does not names
what is in its way, and with the same file both succeed; and the next one publishes what it is given, leaving nothing
unfinished.
"""

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from colabstage import publish_file
from colabstage.errors import ColabstageError
from colabstage.io import workspace
from colabstage.stage import places
from tests.contract.cases import newest
from tests.support.images import make_tree
from tests.support.invariants import Home, left_behind, unvouched
from tests.support.moments import Moment, Processes

# More system calls than the first machine makes.
MOST = 1000
VERSIONS = {name: name.encode() * 1000 for name in ("older", "mine", "others", "last")}


# The process of a second machine that has halted, and what it waits for.
_HALTED: list[tuple[int, int]] = []


def publish(home: str, version: str) -> bool:
    """Publish a version; return whether that succeeded."""
    try:
        publish_file(Path(home, "mine", version), Path(home, "out/model.bin"), progress=False)
    except ColabstageError as error:
        if "model.bin" not in str(error):
            raise
        return False
    finally:
        for child, halt in _HALTED:
            os.close(halt)
            _wait_for(child)
        _HALTED.clear()
    return True


def publish_others(out: str) -> None:
    """Publish the second version from another process of this machine."""
    _publish_meanwhile(out, elsewhere=False)


def publish_elsewhere(out: str) -> None:
    """Publish it from another machine that shares the disk: no lock reaches there, and nobody sees who is alive."""
    _publish_meanwhile(out, elsewhere=True)


def publish_by_turns(out: str) -> None:
    """Publish it from another machine, which halts too, at a change of a name, until the first one has finished."""
    halted, released = os.pipe(), os.pipe()
    changes, at = count(1), int(Path(out).parent.name) // 7 % 12 + 1

    def halt(event: str, _: object) -> None:
        if event in ("os.rename", "os.remove", "ctypes.dlsym") and next(changes) == at:
            os.close(halted[1])
            os.read(released[0], 1)

    def begin() -> None:
        for end in (halted[0], released[1]):
            os.close(end)
        sys.addaudithook(halt)

    child = _fork(out, begin, elsewhere=True)
    for end in (halted[1], released[0]):
        os.close(end)
    os.read(halted[0], 1)
    _HALTED.append((child, released[1]))


def _publish_meanwhile(out: str, *, elsewhere: bool) -> None:
    _wait_for(_fork(out, lambda: None, elsewhere=elsewhere))


def _wait_for(child: int) -> None:
    assert os.waitpid(child, 0)[1] == 0, "the second machine's call ended otherwise than by success or a refusal"


def _fork(out: str, begin: Callable[[], None], *, elsewhere: bool) -> int:
    home, child = Path(out).parent, os.fork()
    if child == 0:
        begin()
        places._TURN_S = 0.6
        if elsewhere:
            workspace.current_world = lambda: "0" * 8
            tempfile.tempdir = str(home / "elsewhere")
            (home / "elsewhere").mkdir()
        try:
            (home / "others").write_text(str(publish(str(home), "others")))
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
@pytest.mark.parametrize("same", [False, True], ids=["different files", "the same file"])
@pytest.mark.parametrize("second", ["publish_others", "publish_elsewhere", "publish_by_turns"])
@pytest.mark.parametrize(
    "stride", [29, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(1200)])], ids=["some", "each"]
)
def test_two_machines_publish_one_name(
    before: tuple[str, ...], second: str, stride: int, tmp_path: Path, machines: Processes, *, same: bool
) -> None:
    versions = VERSIONS | {"others": VERSIONS["mine"]} if same else VERSIONS
    for at in range(1, MOST, stride):
        home = tmp_path / str(at)
        make_tree(home, {f"mine/{name}": content for name, content in versions.items()})
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
        assert found in [versions[name] for name in succeeded], f"at {at}: {found!r:.80} of {succeeded}"
        assert len(succeeded) == 2 or not same or second == "publish_others", f"at {at}: {succeeded}"
        if ran.result and found != VERSIONS["mine"]:
            assert (home / "out/model.bin.previous").read_bytes() == VERSIONS["mine"], f"at {at}"
        assert unvouched(home / "out") == [], f"at {at}"
        assert publish(str(home), "last"), f"at {at}: what they left is in the way"
        assert newest(home) == {"model.bin": VERSIONS["last"]}
        assert left_behind(home / "out") == [], f"at {at}"
        user.check(finished=True, about=f"at {at}")
    pytest.fail("the call did not end within these moments")
