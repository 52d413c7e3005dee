"""A Drive without waiting times, a disk that is soon full, and a step that counts."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from colabstage.io.progress import ProgressStep
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.sources.servers import FolderService, sftp_service


class CountingStep(ProgressStep):
    """A `ProgressStep` that adds up; `notice`, when set, is called with the sum after every advance."""

    def __init__(self) -> None:
        self.total = 0
        self.notice: Callable[[int], None] | None = None
        self._lock = threading.Lock()

    def advance(self, amount: int = 1) -> None:
        with self._lock:
            self.total += amount
        if self.notice is not None:
            self.notice(self.total)


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only mounts and marker files below the test's folder count, so that parallel tests do not see each other's."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))


@pytest.fixture
def step() -> CountingStep:
    """What is told of the bytes done."""
    return CountingStep()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where what is fetched goes."""
    return tmp_path / "out"


@pytest.fixture
def make_drive(tmp_path: Path) -> Iterator[Callable[..., SimulatedDrive]]:
    """Make Drives that are mounted at `tmp_path/drive<n>`; all are unmounted at the end."""
    made: list[SimulatedDrive] = []

    def make(knobs: DriveKnobs | None = None) -> SimulatedDrive:
        number = len(made)
        drive = SimulatedDrive(tmp_path / f"home{number}", knobs=knobs or DriveKnobs.quick())
        made.append(drive)
        drive.mount(tmp_path / f"drive{number}")
        return drive

    yield make
    for drive in made:
        drive.unmount()


@pytest.fixture
def small_disk(make_disk: Callable[[int], Path]) -> Path:
    """A disk of 1 MB."""
    return make_disk(1)


@pytest.fixture
def sftp(tmp_path: Path) -> Iterator[FolderService]:
    """An SFTP server over an empty folder."""
    root = tmp_path / "sftp"
    root.mkdir()
    with sftp_service(root) as service:
        yield service
