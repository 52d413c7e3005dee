"""Small real datasets, and a separate Drive for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.support.archives import write_archive
from tests.support.images import make_tree, noise
from tests.support.invariants import check_afterwards, contents

MakeImages = Callable[..., Path]


@pytest.fixture(autouse=True)
def invariants(tmp_path: Path) -> Iterator[None]:
    """The invariants of every call are checked at the end of every test."""
    yield
    check_afterwards(tmp_path)


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only mounts and marker files below the test's folder count, so that parallel tests do not see each other's."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    monkeypatch.setenv("COLABSTAGE_LOCAL_DIR", str(tmp_path / "fast"))


@pytest.fixture
def make_images() -> MakeImages:
    """Write PNGs into class folders, with `size` as height and width; each number gives a different image."""

    def make(folder: Path, count: int, *, first: int = 0, size: tuple[int, int] = (24, 32)) -> Path:
        numbers = range(first, first + count)
        return make_tree(folder, {f"{('cat', 'dog')[n % 2]}/{n:04d}.png": noise(n, size=size[::-1]) for n in numbers})

    return make


@pytest.fixture
def make_zip() -> Callable[[Path, Path], Path]:
    """Put a folder's files into a zip."""

    def make(folder: Path, target: Path) -> Path:
        return write_archive(target, contents(folder))

    return make


@pytest.fixture
def photos(tmp_path: Path, make_images: MakeImages) -> Path:
    """Twenty images of two classes on the local disk."""
    return make_images(tmp_path / "photos", 20)


@pytest.fixture
def drive_knobs() -> DriveKnobs:
    """The settings of the test's Drive: without waiting times."""
    return DriveKnobs.quick()


@pytest.fixture
def drive(tmp_path: Path, drive_knobs: DriveKnobs) -> Iterator[SimulatedDrive]:
    """A mounted Drive."""
    mountpoint = tmp_path / "content" / "drive"
    mountpoint.mkdir(parents=True)
    with SimulatedDrive(tmp_path / "drive-home", knobs=drive_knobs) as simulated:
        (simulated.cloud / "MyDrive").mkdir(parents=True, exist_ok=True)
        simulated.mount(mountpoint)
        yield simulated


@pytest.fixture
def my_drive(drive: SimulatedDrive) -> Path:
    """`MyDrive` as a notebook sees it."""
    assert drive.mountpoint is not None
    return drive.mountpoint / "MyDrive"
