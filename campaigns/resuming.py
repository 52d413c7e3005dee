"""A training under fire: killed at any moment, and gone on with by the next process, from versions on a Drive."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from campaigns.campaign import State, WrongError, leftovers
from colabstage.h5.manifest import check_whole, read_manifest
from colabstage.runs.versions import list_versions
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.runs.training import train, write_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from campaigns.worker import ProgressLog

_EVERY = 4
_STEPS = 36


class Resuming:
    """`resumable`, counted in steps of a training of three epochs, on a simulated Google Drive."""

    title: ClassVar[str] = "`resumable`: a training with dropout and a schedule, saved to a simulated Google Drive"
    unit: ClassVar[str] = "steps"
    because: ClassVar[str] = f"a version is saved every {_EVERY} steps, and the step after it may be on its way"
    variants: ClassVar[int] = 1
    spread: ClassVar[float] = 0.0

    def __init__(self, home: Path, *, small: bool) -> None:
        self._home = home
        self._data = write_data(home / "rows.h5")
        train(home / "truth", self._data, home / "truth.pt")
        self._stack = contextlib.ExitStack()
        self._drive = self._stack.enter_context(SimulatedDrive(home / "drive", knobs=DriveKnobs.quick()))
        (home / "content" / "drive").mkdir(parents=True)
        self._drive.mount(home / "content" / "drive")
        self._runs = home / "content" / "drive" / "MyDrive" / "runs"
        self._number = 0

    @property
    def bound(self) -> float:
        """Steps that one kill may cost."""
        return _EVERY + 1

    @property
    def needed(self) -> float:
        """All steps of the training."""
        return _STEPS

    def begin(self, number: int) -> dict[str, Any]:
        """A run of its own."""
        self._number = number
        if number:
            shutil.rmtree(self._run(number - 1))
        out = self._home / f"{number}.pt"
        return {"folder": str(self._run(number)), "data": str(self._data), "out": str(out)}

    def _run(self, number: int) -> Path:
        return self._runs / str(number)

    @staticmethod
    def work(arguments: dict[str, Any], log: ProgressLog) -> None:
        """Train to the end."""
        train(
            Path(arguments["folder"]),
            Path(arguments["data"]),
            Path(arguments["out"]),
            every=f"{_EVERY} steps",
            step_s=0.01,
            calm=True,
            on_step=lambda _: log.note("step\t1"),
        )

    def done(self, log: Sequence[tuple[str, float]]) -> float:
        """Steps that the last process did."""
        return sum(amount for name, amount in log if name == "step")

    def look(self) -> State:
        """The newest version with a manifest is whole, and so is one more once there were two."""
        folder = self._run(self._number)
        whole = 0
        for version in list_versions(folder):
            manifest = read_manifest(folder / version.name)
            if manifest is not None and (folder / version.name).stat().st_size == manifest.size:
                check_whole(folder / version.name, manifest)
                whole += 1
        return "old" if whole else "nothing"

    def check(self) -> None:
        """The weights are those of a training that nothing interrupted; two versions are left, and nothing else."""
        ours, truth = (
            torch.load(path, weights_only=True) for path in (self._home / f"{self._number}.pt", self._home / "truth.pt")
        )
        if wrong := [name for name in truth if not torch.equal(ours[name], truth[name])]:
            msg = f"resume: {wrong} differ from the weights of a training that nothing interrupted."
            raise WrongError(msg)
        folder = self._run(self._number)
        versions = list_versions(folder)
        names = {path.name for path in folder.iterdir()}
        expected = {"run.json", *(version.name for version in versions), *(f"{one.name}.json" for one in versions)}
        if len(versions) != 2 or names != expected or leftovers(folder):
            msg = f"resume: '{folder}' holds {sorted(names)}."
            raise WrongError(msg)

    def close(self) -> None:
        """Unmount."""
        self._stack.close()
