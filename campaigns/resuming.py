"""A training under fire: its process, Drive's client and its machine are killed at any moment, disk and Drive are full,
dead or stale for a while, and the newest version is damaged; each time the next process goes on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from campaigns.campaign import Campaign, State, leftovers
from campaigns.mortal import UNDISTURBED, MortalDrive
from colabstage.h5.manifest import check_whole, read_manifest
from colabstage.runs import run
from colabstage.runs.versions import Version, list_versions
from simulated_drive.knobs import DriveFaults, ListingFault
from tests.runs.training import train, write_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from campaigns.worker import ProgressLog

_EVERY = 4
_STEPS = 36
# Of the times that a run is started: something goes wrong while it runs, which a kill may still end.
_TROUBLED = 0.5
# The steps that each of these may cost beside what a kill costs. While nothing can be saved, all may be lost.
_TROUBLES = {
    "clients that died": 0,
    "clients that died and were mounted again": _STEPS,
    "full disks": _STEPS,
    "full Drives": _STEPS,
    "stale listings": 0,
    "damaged versions": _EVERY + 1,
}
_WITHIN_S, _LASTS_S = 2.5, 0.5
# Of the kills: the machine dies with its process.
_MACHINE_DIES = 0.3


class Resuming(Campaign):
    """`resumable`, counted in steps of a training of three epochs, on a simulated Google Drive."""

    name: ClassVar[str] = "resume"
    title: ClassVar[str] = (
        "`resumable`: a training with dropout and a schedule, saved to a simulated Google Drive; Drive's client and "
        "the machine are killed as well, disk and Drive are full or dead for a while, listings are stale, and the "
        "newest version is damaged"
    )
    unit: ClassVar[str] = "steps"
    because: ClassVar[str] = f"a version is saved every {_EVERY} steps, and the step after it may be on its way"

    def __init__(self, home: Path, *, small: bool) -> None:
        self._home = home
        self._data = write_data(home / "rows.h5")
        train(home / "truth", self._data, home / "truth.pt")
        self._disk = home / "disk"
        self._disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(self._disk)], check=True)
        self._mortal = MortalDrive(home, upload_bytes_per_s=1e6, seed=5)
        self._drive, self._place, self._chance = self._mortal.drive, self._mortal.place, self._mortal.chance
        self._runs = self._place / "MyDrive" / "runs"
        self._number = 0
        self._trouble = ""
        self._allowed = 0
        self._damaged: Version | None = None
        self.counts: dict[str, int] = {
            "machines that died": 0,
            **dict.fromkeys(_TROUBLES, 0),
            "runs that an error ended": 0,
            "folders made beside a Drive": 0,
        }

    @property
    def bound(self) -> float:
        """Steps that one kill may cost."""
        return _EVERY + 1

    @property
    def spread(self) -> float:
        """Steps that the troubles of this round may cost."""
        return self._allowed

    @property
    def needed(self) -> float:
        """All steps of the training."""
        return _STEPS

    def begin(self, number: int) -> dict[str, Any]:
        """A run of its own."""
        self._settle()
        self._number, self._allowed, self._damaged = number, 0, None
        if number:
            shutil.rmtree(self._run(number - 1))
            # What was removed fills the disk.
            shutil.rmtree(self._drive.cloud / "Trash", ignore_errors=True)
        out = self._home / f"{number}.pt"
        self._arm()
        return {
            "folder": str(self._run(number)),
            "data": str(self._data),
            "out": str(out),
            "disk": str(self._disk),
            "place": str(self._place),
            "failed": str(self._failed),
            "mortal": str(self._dying),
        }

    @property
    def _failed(self) -> Path:
        return self._home / "failed"

    @property
    def _dying(self) -> Path:
        """Is there while a process dies with Drive's client."""
        return self._home / "mortal"

    def _run(self, number: int) -> Path:
        return self._runs / str(number)

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """Train to the end. With an error, as when nothing can be saved at the end, the process dies."""
        tempfile.tempdir = arguments["disk"]
        # What was full is tried again a minute later, which is longer than all of the training.
        run._AGAIN_S = 0.05

        def on_step(_: int) -> None:
            log.note("step\t1")
            if Path(arguments["mortal"]).exists() and not Path(arguments["place"], "MyDrive").exists():
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            train(
                Path(arguments["folder"]),
                Path(arguments["data"]),
                Path(arguments["out"]),
                every=f"{_EVERY} steps",
                step_s=0.02,
                calm=True,
                on_step=on_step,
            )
        except Exception:  # noqa: BLE001 - the campaign judges whether it is one that may come
            Path(arguments["failed"]).write_text(traceback.format_exc(), encoding="utf-8")
            os.kill(os.getpid(), signal.SIGKILL)

    def _arm(self) -> None:
        """Have something go wrong in the next run, or not."""
        self._trouble = ""
        if self._number < UNDISTURBED or self._chance.random() >= _TROUBLED:
            return
        self._trouble = self._chance.choice(list(_TROUBLES))
        begins: dict[str, Any] = {
            "clients that died": self._drive.kill,
            "clients that died and were mounted again": self._drive.kill,
            "full disks": self._fill,
            "full Drives": lambda: self._drive.set_faults(DriveFaults(quota_exceeded=True)),
        }
        ends: dict[str, Any] = {
            "clients that died and were mounted again": self._remount,
            "full disks": self._empty,
            "full Drives": lambda: self._drive.set_faults(DriveFaults()),
        }
        if self._trouble in begins:
            at = self._chance.uniform(0.0, _WITHIN_S)
            self._mortal.later(at, begins[self._trouble])
            if self._trouble in ends:
                self._mortal.later(at + _LASTS_S, ends[self._trouble])
        elif self._trouble == "stale listings":
            stale = ListingFault(pattern=f"MyDrive/runs/{self._number}", keep=0.5, first=1)
            self._drive.set_faults(DriveFaults(listings=(stale,)))
        elif not self._damage():
            self._trouble = ""
            return
        if self._trouble == "clients that died":
            self._dying.touch()
        self.counts[self._trouble] += 1
        self._allowed += _TROUBLES[self._trouble]

    def _settle(self) -> None:
        """End what goes wrong, and repair it."""
        self._mortal.settle()
        self._empty()
        self._dying.unlink(missing_ok=True)
        if not self._drive.is_alive():
            self._remount()

    def _remount(self) -> None:
        self._drive.unmount()
        self._mount()

    def _mount(self) -> None:
        # In the moment without a Drive, a save may make its folder on the local disk, where a mount would hide it.
        for left in self._place.iterdir():
            shutil.rmtree(left)
            self.counts["folders made beside a Drive"] += 1
        self._drive.mount(self._place)

    def _fill(self) -> None:
        with contextlib.suppress(OSError), (self._disk / "full").open("wb", buffering=0) as file:
            while file.write(bytes(1024)):
                pass

    def _empty(self) -> None:
        (self._disk / "full").unlink(missing_ok=True)

    def _damage(self) -> bool:
        """Change a byte of the newest version, if there is another."""
        whole = self._whole()
        if len(whole) < 2 or self._damaged in whole:
            return False
        self._damaged = whole[0]
        file = self._run(self._number) / whole[0].name
        content = bytearray(file.read_bytes())
        content[self._chance.randrange(len(content))] ^= 1
        file.write_bytes(content)
        return True

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """Steps that the last process did."""
        return sum(amount for name, amount in log if name == "step")

    def look(self) -> State:
        """Each version with a whole manifest is whole, also in the cloud of a machine that has died."""
        if self._failed.exists():
            said = self._failed.read_text(encoding="utf-8")
            self._failed.unlink()
            self.counts["runs that an error ended"] += 1
            if _TROUBLES.get(self._trouble, 0) != _STEPS and self._trouble != "clients that died":
                self.fail(f"an error ended the run although nothing was wrong:\n{said}")
        self._settle()
        if self._chance.random() < _MACHINE_DIES:
            self._mortal.new_machine()
            for left in self._disk.iterdir():
                shutil.rmtree(left)
            self._mount()
            self.counts["machines that died"] += 1
        whole = self._whole()
        self._arm()
        return "old" if whole else "nothing"

    def _whole(self) -> list[Version]:
        """Return the versions that are whole."""
        folder, whole = self._run(self._number), []
        for version in list_versions(folder):
            file = folder / version.name
            manifest = read_manifest(file)
            if manifest is not None and file.is_file() and file.stat().st_size == manifest.size:
                if version != self._damaged:
                    check_whole(file, manifest)
                whole.append(version)
        return whole

    def check(self) -> None:
        """The weights are those of a training that nothing interrupted; two versions or three are left, no more."""
        self._settle()
        ours, truth = (
            torch.load(path, weights_only=True) for path in (self._home / f"{self._number}.pt", self._home / "truth.pt")
        )
        if wrong := [name for name in truth if not torch.equal(ours[name], truth[name])]:
            self.fail(f"{wrong} differ from the weights of a training that nothing interrupted.")
        folder = self._run(self._number)
        # A process that was killed between its last save and the removal of an older version leaves that, or its
        # manifest, to the next save, which a run that is done does not need.
        there = [version for version in list_versions(folder) if version != self._damaged]
        known = [*there, *([self._damaged] if self._damaged else [])]
        expected = {"run.json", *(f"{one.name}{end}" for one in known for end in ("", ".json"))}
        strange = {path.name for path in folder.iterdir()} - expected
        if not 1 <= len(there) <= 3 or not set(there[:2]) <= set(self._whole()) or strange or leftovers(folder):
            self.fail(f"'{folder}' holds {sorted(path.name for path in folder.iterdir())}.")

    def close(self) -> None:
        """Unmount."""
        with contextlib.suppress(Exception):
            self._settle()
        self._drive.unmount()
        subprocess.run(["umount", "-l", str(self._disk)], check=True)
