"""Whatever happens to a source, to what was made from it and to a call, the data served is what the source holds.

Each rule is one thing that happens. Each call compares the rows it serves with the source's files. A typed error is
right only if something of ours was damaged or replaced, or the call itself was disturbed.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from colabstage import stage_dataset
from tests.support.archives import stored_zip
from tests.support.images import image, make_tree, number_of, number_of_pixel
from tests.support.invariants import Home
from tests.support.moments import Moment, Processes, Ran, What

# All images have the same size in bytes, so that a change may keep every size.
NAMES = [f"{kind}/{number}.bmp" for kind in "ab" for number in range(3)]
OPTIONS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "verified in full": {"verify": "full"},
    "streaming": {"streaming": True},
    "anew": {"refresh": True},
    "with plain files": {"keep": "both"},
    "as plain files": {"keep": "files"},
    "larger": {"image_size": 8},
    "in splits": {"splits": {"train": 0.5, "test": 0.5}},
    "without a cache": {"cache_dir": None},
}
names, numbers = st.sampled_from(NAMES), st.integers(0, 250)
# Mostly the same options, so that calls find what earlier ones left.
options = st.sampled_from(["as it is"] * len(OPTIONS) + sorted(OPTIONS))


def stage(root: str, archive: bool, option: str, is_rotten: bool) -> dict[str, int]:
    """Make one call; return the number of each served image."""
    home = Path(root)
    places = {"local_dir": home / "out/local", "cache_dir": home / "out/cache", "progress": False}
    source = home / ("source.zip" if archive else "source")
    # Only this reads every byte of the local data.
    verify = {"verify": "full"} if is_rotten else {}
    data = stage_dataset(source, **{**places, **OPTIONS[option], **verify}).wait(60, progress=False)
    data.wait_published()
    if data.files is not None:
        files = {str(path.relative_to(data.files)): number_of(path.read_bytes()) for path in data.files.rglob("*.bmp")}
        if option == "as plain files":
            return files
    with h5py.File(data.path) as file:
        served = {
            key.decode(): number_of_pixel(x[0, 0])
            for split in data.splits
            for key, x in zip(file[f"key_{split}"][()], file[f"X_{split}"], strict=True)
        }
    assert data.files is None or served == files
    return served


class Life(RuleBasedStateMachine):
    """A source, a disk and a cache over many calls."""

    processes: Processes

    @initialize(archive=st.booleans())
    def begin(self, archive: bool) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.root = Path(self._folder.name)
        self.archive = archive
        self.files = dict.fromkeys(["a/0.bmp", "b/0.bmp"], 1)
        # The options whose last call was ended early, and whether anything of ours was damaged since a success.
        self.ended_early: set[str] = set()
        self.is_damaged = self.is_rotten = False
        make_tree(self.root, {"out/notes.txt": "mine"})
        self.write()

    def write(self) -> None:
        """Make the source hold `files`, touching only those that differ."""
        folder = self.root / "source"
        make_tree(folder, {name: n for name, n in self.files.items() if not self.holds(folder / name, n)})
        for name in NAMES:
            if name not in self.files:
                (folder / name).unlink(missing_ok=True)
        (self.root / "new.zip").write_bytes(stored_zip({name: (folder / name).read_bytes() for name in self.files}))
        (self.root / "new.zip").replace(self.root / "source.zip")

    @staticmethod
    def holds(path: Path, number: int) -> bool:
        return path.exists() and path.read_bytes() == image(number, suffix=".bmp")

    def is_removable(self, name: str) -> bool:
        """Whether its class has another image."""
        return name in self.files and sum(other[0] == name[0] for other in self.files) > 1

    # --- what happens to the source ---

    @rule(name=names, number=numbers)
    def add(self, name: str, number: int) -> None:
        self.files[name] = number
        self.write()

    @rule(which=st.integers(0, len(NAMES) - 1), number=numbers)
    def rewrite(self, which: int, number: int) -> None:
        self.files[sorted(self.files)[which % len(self.files)]] = number
        self.write()

    @rule(name=names)
    def remove(self, name: str) -> None:
        if self.is_removable(name):
            del self.files[name]
            self.write()

    @rule(name=names, to=names)
    def rename(self, name: str, to: str) -> None:
        if self.is_removable(name) and to not in self.files:
            (self.root / "source" / name).rename(make_parent(self.root / "source" / to))
            self.files[to] = self.files.pop(name)
            self.write()

    # --- what happens to the results ---

    def ours(self, which: int) -> Path | None:
        """One of our packs, manifests and records."""
        found = sorted(path for path in (self.root / "out").glob("[lc]*/**/*") if path.suffix in (".h5", ".json"))
        return found[which % len(found)] if found else None

    @rule(which=st.integers(0, 20), where=st.floats(0, 0.999), keeps_time=st.booleans())
    def flip(self, which: int, where: float, keeps_time: bool) -> None:
        if (path := self.ours(which)) and path.stat().st_size:
            content, about = bytearray(path.read_bytes()), path.stat()
            content[int(where * len(content))] ^= 1
            path.write_bytes(content)
            self.is_damaged = True
            if keeps_time:
                os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
                self.is_rotten = True

    @rule(which=st.integers(0, 20), share=st.floats(0, 0.999))
    def truncate(self, which: int, share: float) -> None:
        if path := self.ours(which):
            os.truncate(path, int(share * path.stat().st_size))
            self.is_damaged = True

    @rule(which=st.integers(0, 20))
    def delete(self, which: int) -> None:
        if path := self.ours(which):
            path.unlink()
            self.is_damaged = True

    @rule(which=st.integers(0, 20))
    def replace(self, which: int) -> None:
        if path := self.ours(which):
            path.unlink()
            path.write_text("another file", encoding="utf-8")
            self.is_damaged = True

    @rule()
    def new_machine(self) -> None:
        shutil.rmtree(self.root / "out/local", ignore_errors=True)
        self.is_rotten = False

    # --- calls ---

    def call(self, option: str, moment: Moment | None = None) -> Ran:
        """Make a call; check what must hold whatever happens to it."""
        user = Home(self.root, theirs=["source", "source.zip", "out/notes.txt"])
        arguments = [str(self.root), self.archive, option, self.is_rotten]
        ran = self.processes.run(arguments, moment, COLABSTAGE_SYSTEM_ROOT=str(self.root))
        served = not ran.killed and ran.error is None
        if served:
            assert ran.result == self.files, f"{option}: {ran.result} is served, {self.files} is held"
            self.ended_early.discard(option)
        else:
            assert ran.killed or (ran.error and ran.error.typed), ran.error
            self.ended_early.add(option)
        # What a stopped call with other options left is removed by their next call.
        user.check(finished=served and not self.is_damaged and not self.ended_early)
        return ran

    @rule(option=options)
    def serve(self, option: str) -> None:
        """Call as a user does. An error is right once, and only if something of ours is damaged."""
        ran = self.call(option)
        if ran.error:
            assert self.is_damaged, ran.error
            # An error about a file that is not ours asks for this: move it away.
            shutil.rmtree(self.root / "out/local", ignore_errors=True)
            shutil.rmtree(self.root / "out/cache", ignore_errors=True)
            self.ended_early.clear()
            self.is_damaged = self.is_rotten = False
            assert self.call(option).error is None

    @rule(which=st.integers(0, len(NAMES) - 1), number=numbers, option=options)
    def rewrite_between_calls(self, which: int, number: int, option: str) -> None:
        self.serve(option)
        self.rewrite(which, number)
        self.serve(option)

    @rule(option=options, at=st.integers(1, 60), what=st.sampled_from(["kill before", "kill after"]))
    def kill(self, option: str, at: int, what: What) -> None:
        self.call(option, Moment(at, what, str(self.root)))

    @rule(option=options, at=st.integers(1, 90))
    def fill_the_disk(self, option: str, at: int) -> None:
        self.call(option, Moment(at, "full", str(self.root / "out"), errno.ENOSPC))

    def teardown(self) -> None:
        self.serve("as it is")
        self._folder.cleanup()


def make_parent(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    return path


@pytest.fixture(scope="module")
def staging() -> Iterator[None]:
    with Processes(f"{__name__}:stage") as Life.processes, tempfile.TemporaryDirectory() as folder:
        make_tree(Path(folder), {"source/a/0.bmp": 1, "source/b/0.bmp": 1})
        for option in OPTIONS:
            Life.processes.warm_up(option, [folder, False, option, False])
        yield


def live(count: int, steps: int) -> None:
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=count, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_what_is_served_is_what_the_source_holds(staging: None) -> None:
    live(6, 30)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_what_is_served_is_what_the_source_holds_over_two_thousand_steps(staging: None) -> None:
    live(40, 50)
