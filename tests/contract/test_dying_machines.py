"""Work on a Drive while its processes, Drive's client and whole machines die at any moment, again and again.

Checkpoints: whatever dies later, a file that `publish_file` reported as uploaded is in the cloud, byte for byte.
Trainings: a run of `resumable` ends with the weights of an uninterrupted one, and a kill costs few steps.
"""

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from colabstage import list_runs, verify_file
from simulated_drive.knobs import DriveFaults, ListingFault
from tests.contract.dying import EVERY, STEPS, DyingDrive, name_of
from tests.nurseries import Nurseries
from tests.support.moments import Moment, Processes

pytestmark = pytest.mark.fuse
# The number of kills in each run of the tests, and in the long form.
FEW, MANY = 3, 60
KILLS = [
    pytest.param(FEW, marks=pytest.mark.slow),
    pytest.param(MANY, marks=[pytest.mark.long, pytest.mark.timeout(1200)]),
]
# The latest moment, or change of a name, at which a run is killed.
WITHIN_S, WITHIN_CHANGES = 4.0, 60
KILLS_A_ROUND = 6


class Round(NamedTuple):
    """One piece of work from start to end: how often it was killed, and what it noted in all its runs."""

    kills: int
    noted: int


@pytest.fixture(scope="module")
def dying(nurseries: Nurseries) -> Iterator[Processes]:
    interpreter = nurseries.command("torch", "script")
    with Processes("tests.contract.dying:work", "tests.runs.training", interpreter=interpreter) as started:
        yield started


def kill_until_done(
    dying: Processes, what: str, home: Path, folder: Path, kills: int, chance: random.Random, look: Callable[[int], int]
) -> Round:
    """Run the work again after each kill, until it ends by itself. `look`: called after each kill with the number of
    items noted so far; it returns where the next run begins."""
    log, killed, first = home / "log", 0, 0
    log.write_bytes(b"")
    while True:
        doomed, by_clock = killed < min(kills, KILLS_A_ROUND), chance.random() < 0.6
        at = chance.randrange(1, WITHIN_CHANGES) if doomed and not by_clock else 0
        after_s = chance.uniform(0.01, WITHIN_S) if doomed and by_clock else 0.0
        arguments = [what, str(home), str(folder), first, after_s]
        ran = dying.run(arguments, Moment(at, "kill before", str(home)), COLABSTAGE_SYSTEM_ROOT=str(home))
        noted = len(log.read_bytes())
        if not ran.killed:
            assert ran.error is None, f"after {killed} kills: {ran.error}"
            return Round(killed, noted)
        killed += 1
        first = look(noted)


class Checkpoints:
    """A folder in the cloud, and the files that are published to it."""

    def __init__(self, home: Path, count: int) -> None:
        self.dying = DyingDrive(home, upload_bytes_per_s=2e7, seed=7)
        (home / "epochs").mkdir()
        self.files = [home / "epochs" / f"{number:02}" for number in range(count)]
        for number, file in enumerate(self.files):
            file.write_bytes(random.Random(number).randbytes(2_000_000))
        self.folder = Path()

    def begin(self, number: int) -> Path:
        self.folder = self.dying.place / "MyDrive" / f"run {number}"
        self.client_may_die()
        return self.folder

    def client_may_die(self) -> None:
        if self.dying.chance.random() < 0.4:
            self.dying.later(self.dying.chance.uniform(0.1, WITHIN_S), self.dying.drive.kill)

    def look(self, reported: int) -> int:
        """Check the cloud, both before and after the machine is lost together with its pending uploads."""
        self.dying.settle()
        self.check_cloud(reported)
        self.dying.mount(new_machine=self.dying.chance.random() < 0.5)
        self.check_cloud(reported)
        self.client_may_die()
        return reported

    def check_cloud(self, reported: int) -> None:
        folder = self.dying.drive.cloud / "MyDrive" / self.folder.name
        for number in range(reported):
            own = folder / name_of(number)
            # For those that share a name, this is the last one reported, or the one before the one being uploaded.
            places = [own, own.with_name(f"{own.name}.previous")] if number % 2 else [own]
            if number % 2 == 0 or number >= reported - 2:
                assert any(map(is_whole, places)), f"checkpoint {number} was reported, and is not whole in the cloud"
                assert self.files[number].read_bytes() in [place.read_bytes() for place in places if place.exists()]


def is_whole(place: Path) -> bool:
    """Tell whether a file and its manifest exist and agree."""
    there = place.is_file() and place.with_name(f"{place.name}.json").is_file()
    return there and verify_file(place, progress=False).whole


@pytest.mark.parametrize("kills", KILLS)
def test_a_checkpoint_that_was_reported_as_uploaded_is_in_the_cloud(
    kills: int, tmp_path: Path, dying: Processes
) -> None:
    checkpoints, chance = Checkpoints(tmp_path, 4 if kills == FEW else 20), random.Random(kills)
    killed = number = 0
    try:
        while killed < kills:
            folder = checkpoints.begin(number)
            done = kill_until_done(dying, "publish", tmp_path, folder, kills, chance, checkpoints.look)
            checkpoints.dying.settle()
            # A reported checkpoint is never published again.
            assert done.noted == len(checkpoints.files)
            checkpoints.dying.mount(new_machine=True)
            checkpoints.check_cloud(done.noted)
            killed, number = killed + done.kills, number + 1
    finally:
        checkpoints.dying.settle()
        checkpoints.dying.drive.unmount()


# What goes wrong during a training, and how many steps that may cost in addition to those of a kill. While nothing can
# be saved, all may be lost.
TROUBLES = {
    "client dies": 0,
    "client dies and is mounted again": STEPS,
    "disk is full": STEPS,
    "Drive is full": STEPS,
    "listing is stale": 0,
    "version is damaged": EVERY + 1,
}


class Training:
    """Runs on a Drive, with a small local disk."""

    def __init__(self, home: Path, dying: DyingDrive) -> None:
        self.home, self.dying, self.drive, self.chance = home, dying, dying.drive, dying.chance
        self.disk = home / "disk"
        self.folder = Path()
        self.trouble, self.allowed, self.damaged = "", 0, ""

    def begin(self, number: int) -> Path:
        self.folder = self.dying.place / "MyDrive" / "runs" / str(number)
        self.allowed, self.damaged = 0, ""
        self.arm()
        return self.folder

    def arm(self) -> None:
        """Choose what goes wrong in the next run, if anything."""
        self.trouble = self.chance.choice([*TROUBLES, *[""] * len(TROUBLES)])
        at, mount = self.chance.uniform(0.0, 2.5), self.trouble == "client dies and is mounted again"
        if self.trouble.startswith("client dies"):
            self.dying.later(at, self.drive.kill)
            self.dying.later(at + 0.5, self.dying.mount) if mount else (self.home / "mortal").touch()
        elif self.trouble == "disk is full":
            self.dying.later(at, self.fill)
            self.dying.later(at + 0.5, self.empty)
        elif self.trouble == "Drive is full":
            self.dying.later(at, lambda: self.drive.set_faults(DriveFaults(quota_exceeded=True)))
            self.dying.later(at + 0.5, lambda: self.drive.set_faults(DriveFaults()))
        elif self.trouble == "listing is stale":
            stale = ListingFault(pattern=f"MyDrive/runs/{self.folder.name}", first=1)
            self.drive.set_faults(DriveFaults(listings=(stale,)))
        elif self.trouble == "version is damaged":
            self.damage()
        self.allowed += TROUBLES.get(self.trouble, 0)

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self.disk / "full").open("wb", buffering=0) as file:
            while file.write(bytes(1024)):
                pass

    def empty(self) -> None:
        (self.disk / "full").unlink(missing_ok=True)

    def damage(self) -> None:
        """Change a byte of the newest version, if there is another intact one."""
        whole = self.whole()
        if len(whole) > 1 and self.damaged not in whole:
            self.damaged = whole[0]
            content = bytearray((self.folder / self.damaged).read_bytes())
            content[self.chance.randrange(len(content))] ^= 1
            (self.folder / self.damaged).write_bytes(content)

    def whole(self) -> list[str]:
        """Return the intact versions, newest first."""
        runs = list_runs(self.folder.parent) if self.folder.exists() else []
        found = [one.name for run in runs if run.folder == self.folder for one in run.versions if one.complete]
        assert all(is_whole(self.folder / name) for name in found if name != self.damaged)
        return found

    def look(self, _: int) -> int:
        """Repair what went wrong, or continue on a new machine; check the versions."""
        failed = self.home / "failed"
        if failed.exists():
            assert TROUBLES.get(self.trouble) == STEPS or self.trouble == "client dies", failed.read_text("utf-8")
            failed.unlink()
        self.settle()
        if self.chance.random() < 0.3:
            self.dying.mount(new_machine=True)
        self.whole()
        self.arm()
        return 0

    def settle(self) -> None:
        self.dying.settle()
        self.empty()
        (self.home / "mortal").unlink(missing_ok=True)
        if not self.drive.is_alive():
            self.dying.mount()

    def check(self, done: Round, truth: Path) -> None:
        import torch

        self.settle()
        ours, meant = (torch.load(path, weights_only=True) for path in (self.home / "weights.pt", truth))
        assert [name for name in meant if not torch.equal(ours[name], meant[name])] == []
        assert done.noted - STEPS <= done.kills * (EVERY + 1) + self.allowed
        # A process that is killed after its last save may leave an older version for the next one to remove.
        assert 1 <= len(self.whole()) <= 4
        assert [path.name for path in self.folder.iterdir() if path.name.startswith(".colabstage")] == []
        assert json.loads((self.folder / "run.json").read_text(encoding="utf-8"))


@pytest.fixture
def training(tmp_path: Path, make_disk: Callable[[int], Path]) -> Iterator[Training]:
    dying = DyingDrive(tmp_path, upload_bytes_per_s=1e6, seed=5)
    (tmp_path / "disk").symlink_to(make_disk(2))
    yield Training(tmp_path, dying)
    dying.settle()
    dying.drive.unmount()


@pytest.mark.torch
@pytest.mark.parametrize("kills", KILLS)
def test_a_training_ends_with_the_weights_of_one_that_nothing_interrupted(
    kills: int, tmp_path: Path, training: Training, dying: Processes
) -> None:
    from tests.runs.training import train, write_data

    train(tmp_path / "truth", write_data(tmp_path / "rows.h5"), tmp_path / "truth.pt")
    chance, killed, number = random.Random(kills), 0, 0
    while killed < kills:
        folder = training.begin(number)
        done = kill_until_done(dying, "train", tmp_path, folder, kills, chance, training.look)
        training.check(done, tmp_path / "truth.pt")
        killed, number = killed + done.kills, number + 1
