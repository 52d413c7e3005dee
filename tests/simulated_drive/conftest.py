"""A simulated Drive for each test, unmounted whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    MakeDrive = Callable[..., SimulatedDrive]


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    """Where the test mounts its Drive."""
    return tmp_path / "drive"


@pytest.fixture
def make_drive(tmp_path: Path) -> Iterator[MakeDrive]:
    """Make Drives, each with a home of its own; all are unmounted at the end."""
    made: list[SimulatedDrive] = []

    def make(knobs: DriveKnobs | None = None) -> SimulatedDrive:
        drive = SimulatedDrive(tmp_path / f"home{len(made)}", knobs=knobs or DriveKnobs.quick())
        made.append(drive)
        return drive

    yield make
    for drive in made:
        drive.unmount()


@pytest.fixture
def drive(make_drive: MakeDrive) -> SimulatedDrive:
    """A Drive without any waiting, not mounted yet."""
    return make_drive()
