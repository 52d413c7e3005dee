"""Arriving: checkpoint after checkpoint to a (simulated) Drive, each waited for until it is uploaded, while processes,
Drive's client and whole machines die. What was reported as uploaded is in the cloud, whatever died after it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from campaigns.campaign import Campaign, State, WrongError, same_bytes
from campaigns.material import random_file
from campaigns.mortal import UNDISTURBED, MortalDrive
from colabstage.errors import ColabstageError
from colabstage.h5.manifest import check_whole, read_manifest
from colabstage.machine.mounts import probe_mount
from colabstage.stage.publish import previous_path, publish_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from campaigns.worker import ProgressLog

_NBYTES = 2_000_000
# Of the times that a run is started: the client dies under it; and of the kills: the machine dies with its process.
_CLIENT_DIES, _MACHINE_DIES = 0.4, 0.5
_WITHIN_S = 4.0


class Arriving(Campaign):
    """`publish_file(wait_uploaded=True)`, counted in checkpoints that were reported as uploaded.

    Every second one has a name of its own; the others follow each other under one name.
    """

    name: ClassVar[str] = "arrive"
    title: ClassVar[str] = (
        "`publish_file(wait_uploaded=True)`: one checkpoint after another to a simulated Google Drive, whose client "
        "and machine are killed as well; what a machine has not uploaded is lost with it"
    )
    unit: ClassVar[str] = "checkpoints reported as uploaded"
    because: ClassVar[str] = "what was reported is in the cloud, byte for byte, with its manifest, and is never lost"

    def __init__(self, home: Path, *, small: bool) -> None:
        self._count = 6 if small else 20
        self._files = [random_file(home / "epochs" / str(n), _NBYTES, n) for n in range(self._count)]
        self._mortal = MortalDrive(home, upload_bytes_per_s=2e7, seed=7)
        self._drive, self._place, self._chance = self._mortal.drive, self._mortal.place, self._mortal.chance
        self._number = 0
        self._arguments: dict[str, Any] = {}
        self.counts: dict[str, int] = {"clients that died": 0, "machines that died": 0, "checkpoints published": 0}

    @property
    def bound(self) -> float:
        """None: what was reported is never published again."""
        return 0

    @property
    def needed(self) -> float:
        """All checkpoints of a round."""
        return self._count

    def begin(self, number: int) -> dict[str, Any]:
        """A new folder on Drive."""
        self._number = number
        folder = self._place / "MyDrive" / f"run {number}"
        self._arguments = {"files": [str(file) for file in self._files], "folder": str(folder), "first": 0}
        self._arm()
        return self._arguments

    def _arm(self) -> None:
        """Have the client die in the middle of the next run, or not."""
        if self._number >= UNDISTURBED and self._chance.random() < _CLIENT_DIES:
            self._mortal.later(self._chance.uniform(0.1, _WITHIN_S), self._drive.kill)

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """Publish all that are left, one after the other, and note each that is reported as uploaded."""
        folder = Path(arguments["folder"])
        try:
            for number in range(arguments["first"], len(arguments["files"])):
                report = publish_file(
                    arguments["files"][number], folder / _name(number), wait_uploaded=True, progress=False
                )
                if report.proof != "uploaded":
                    msg = f"arrive: checkpoint {number} has the proof {report.proof!r} ({report.why})."
                    raise WrongError(msg)
                log.note("uploaded\t1")
        except (ColabstageError, OSError):
            if probe_mount(folder.parent, 10).state != "dead":
                raise
            # The client died; so does this notebook, and the campaign goes on with a new one.
            os.kill(os.getpid(), signal.SIGKILL)

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """Those that were reported in the run that has just ended."""
        reported = sum(int(amount) for name, amount in log if name == "uploaded")
        self._arguments["first"] += reported
        self.counts["checkpoints published"] += reported
        return reported

    def look(self) -> State:
        """All that was reported is in the cloud; then a machine that died is replaced, and a client mounted again."""
        self._settle()
        self._check_cloud()
        if self._chance.random() < _MACHINE_DIES:
            self._mortal.new_machine()
            self.counts["machines that died"] += 1
        else:
            self._drive.unmount()
        # The machine took the rest with it; and what its client still does changes nothing of what was reported.
        self._check_cloud()
        self._drive.mount(self._place)
        self._arm()
        first = self._arguments["first"]
        return "whole" if first == self._count else "old" if first else "nothing"

    def _settle(self) -> None:
        self._mortal.settle()
        if not self._drive.is_alive():
            self.counts["clients that died"] += 1

    def _check_cloud(self) -> None:
        folder = self._drive.cloud / "MyDrive" / Path(self._arguments["folder"]).name
        first: int = self._arguments["first"]
        for number in range(first):
            own = folder / _name(number)
            # Of those that follow each other, the last that was reported is there, or one before the one on its way.
            newest = number % 2 == 0 or number >= first - 2
            places = [own, previous_path(own)] if number % 2 else [own]
            if newest and not any(_is_whole(place, self._files[number]) for place in places):
                self.fail(f"checkpoint {number} was reported as uploaded, and is not whole in the cloud at '{own}'.")

    def check(self) -> None:
        """As right after a kill, once more, of a machine that has died with everything that was on it."""
        self._settle()
        if self._arguments["first"] != self._count:
            self.fail(f"{self._arguments['first']} of {self._count} checkpoints were reported as uploaded.")
        self._mortal.new_machine()
        self._check_cloud()
        self._drive.mount(self._place)
        shutil.rmtree(self._place / "MyDrive" / Path(self._arguments["folder"]).name)
        with contextlib.suppress(FileNotFoundError):  # what was deleted would fill the disk
            shutil.rmtree(self._drive.cloud / "Trash")

    def close(self) -> None:
        """Unmount."""
        self._settle()
        self._drive.unmount()


def _name(number: int) -> str:
    return "latest.pt" if number % 2 else f"epoch {number}.pt"


def _is_whole(place: Path, truth: Path) -> bool:
    """Whether a file in the cloud is this one, with a manifest that vouches for it."""
    if not place.is_file() or not same_bytes(place, truth):
        return False
    manifest = read_manifest(place)
    if manifest is None:
        return False
    check_whole(place, manifest)
    return True
