"""Simulated Drives, unmounted whatever happens: one for each test, and one for all tests of a file."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs

MakeDrive = Callable[..., SimulatedDrive]


@pytest.fixture
def mountpoint(tmp_path: Path) -> Path:
    """Where the test mounts its Drive."""
    return tmp_path / "drive"


@pytest.fixture
def make_drive(tmp_path: Path) -> Iterator[MakeDrive]:
    """Make Drives, each with its own home."""
    made: list[SimulatedDrive] = []

    def make(**knobs: object) -> SimulatedDrive:
        own = DriveKnobs(**{"time_scale": 0.0, **knobs})  # type: ignore[arg-type]
        made.append(SimulatedDrive(tmp_path / f"home{len(made)}", knobs=own))
        return made[-1]

    yield make
    for drive in made:
        drive.unmount()


@pytest.fixture
def drive(make_drive: MakeDrive) -> SimulatedDrive:
    """A Drive without waiting times, not mounted yet."""
    return make_drive()


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedDrive]:
    home = tmp_path_factory.mktemp("shared")
    with SimulatedDrive(home / "home", knobs=DriveKnobs.quick()) as drive:
        drive.mount(home / "drive")
        yield drive


@pytest.fixture
def shared(_shared: SimulatedDrive) -> Iterator[SimulatedDrive]:
    """A mounted Drive without waiting times, shared by the tests of a file; each uses its own folder."""
    yield _shared
    _shared.set_faults(DriveFaults())
