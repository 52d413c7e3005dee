"""Each kind of bad day of a mounted Drive: whole data, or one typed error with the remedy; never wrong data."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from colabstage.errors import (
    ColabstageError,
    CorruptArchiveError,
    DriveDisconnectedError,
    DriveQuotaError,
    SourceChangedError,
    SourceReadError,
)
from colabstage.sources.fetching import fetch_files
from colabstage.stage.run import stage_dataset
from colabstage.trees.folder import FolderTree
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import ContentFault, DriveFaults, DriveKnobs, ListingFault, OpFault
from tests.io.test_board import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.fuse
MakeImages = Callable[..., Path]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fetch(source: Path, target: Path) -> dict[str, bytes]:
    """Fetch a folder, in silence."""
    fetch_files(source, target, progress=False)
    return contents(target)


@pytest.fixture
def truth(drive: SimulatedDrive, make_images: MakeImages) -> dict[str, bytes]:
    """Forty images in the cloud."""
    return contents(make_images(drive.cloud / "MyDrive" / "photos", 40))


PHOTO = "MyDrive/photos/*.png"


@pytest.mark.parametrize(
    "faults",
    [
        {"ops": (OpFault(op="read", pattern=PHOTO, errno=errno.EIO, first=2, per_file=True),)},
        {"ops": (OpFault(op="read", pattern=PHOTO, errno=errno.EAGAIN, first=2, per_file=True),)},
        {"ops": (OpFault(op="open", pattern=PHOTO, errno=errno.EIO, first=1, per_file=True),)},
        {"ops": (OpFault(op="open", pattern=PHOTO, errno=errno.ENOENT, first=1, per_file=True),)},
        {"ops": (OpFault(op="list", pattern="MyDrive/photos*", errno=errno.EIO, first=1, per_file=True),)},
    ],
    ids=["EIO bursts", "EAGAIN", "EIO of open", "ENOENT of listed files", "EIO of listings"],
)
def test_what_passes_is_survived(
    faults: dict[str, Any], truth: dict[str, bytes], drive: SimulatedDrive, my_drive: Path, tmp_path: Path
) -> None:
    """Each file fails once or twice and then comes whole: so does the folder."""
    drive.set_faults(DriveFaults(**faults))
    assert fetch(my_drive / "photos", tmp_path / "here") == truth
    assert drive.stats().errors_injected > 0


@pytest.mark.parametrize(
    ("faults", "kind", "remedy"),
    [
        ({"ops": (OpFault(op="read", pattern="*/0007.png", errno=errno.EIO),)}, SourceReadError, "stage a copy"),
        (
            {"ops": (OpFault(op="read", pattern=PHOTO, errno=errno.ENOTCONN),)},
            DriveDisconnectedError,
            r"mount_drive\(\)",
        ),
        ({"ops": (OpFault(op="open", pattern="*/0007.png", errno=errno.ENOENT),)}, ColabstageError, "moved or deleted"),
        ({"contents": (ContentFault(pattern=PHOTO, kind="truncate", tail_bytes=9),)}, SourceReadError, "Wait until"),
    ],
    ids=["EIO for good", "ENOTCONN", "gone", "truncated"],
)
def test_what_lasts_is_one_typed_error(
    faults: dict[str, Any],
    kind: type[ColabstageError],
    remedy: str,
    truth: dict[str, bytes],
    drive: SimulatedDrive,
    my_drive: Path,
    tmp_path: Path,
) -> None:
    """It names the file and what to do; the target does not exist; once the day is better the rest comes."""
    drive.set_faults(DriveFaults(**faults))
    with pytest.raises(kind, match=remedy):
        fetch(my_drive / "photos", tmp_path / "here")
    assert not (tmp_path / "here").exists()
    drive.set_faults(DriveFaults())
    assert fetch(my_drive / "photos", tmp_path / "here") == truth


@pytest.mark.parametrize("number", [errno.EIO, errno.EAGAIN])
def test_a_large_file_survives_errors_from_its_first_byte_on(
    number: int, drive: SimulatedDrive, my_drive: Path, tmp_path: Path
) -> None:
    """Also the look at what kind of file it is may fail and is tried again."""
    content = bytes(range(256)) * 40_000
    (drive.cloud / "MyDrive" / "a.bin").write_bytes(content)
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", pattern="*/a.bin", errno=number, first=3),)))
    fetch_files(my_drive / "a.bin", tmp_path / "a.bin", progress=False)
    assert (tmp_path / "a.bin").read_bytes() == content
    assert drive.stats().errors_injected == 3


def test_a_zip_with_a_zeroed_tail_is_refused(
    truth: dict[str, bytes], drive: SimulatedDrive, my_drive: Path, make_zip: Callable[[Path, Path], Path]
) -> None:
    """The listing has the right size and the content is wrong: the archive's own checksums tell."""
    make_zip(drive.cloud / "MyDrive" / "photos", drive.cloud / "MyDrive" / "photos.zip")
    drive.set_faults(
        DriveFaults(contents=(ContentFault(pattern="MyDrive/photos.zip", kind="zero_tail", tail_bytes=3000),))
    )
    with pytest.raises(CorruptArchiveError, match=r"photos\.zip"):
        stage_dataset(my_drive / "photos.zip", cache_dir=None, progress=False)


@pytest.mark.parametrize("cached", [False, True])
def test_a_listing_that_lacks_files_is_listed_again(
    cached: bool, truth: dict[str, bytes], drive: SimulatedDrive, my_drive: Path, tmp_path: Path
) -> None:
    """What was made of half a folder never counts: it is listed again before anything is recorded or published."""
    drive.set_faults(DriveFaults(listings=(ListingFault(pattern="MyDrive/photos/*", keep=0.5, first=2),)))
    place = tmp_path / "cache" if cached else None
    staged = stage_dataset(my_drive / "photos", cache_dir=place, progress=False)
    assert staged.splits == {"train": 40}
    assert any("20 files more" in note for note in staged.report.notes)
    if place is not None:
        (pack,) = place.glob("*.h5")
        assert pack.read_bytes() == staged.path.read_bytes()


def test_a_folder_that_never_lists_twice_the_same_is_refused(
    truth: dict[str, bytes], drive: SimulatedDrive, my_drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload under way: nothing is kept that would count, plain files neither, and the error says what differs."""
    listed = iter(range(1000))

    def more(self: FolderTree, *args: Any, **options: Any) -> None:
        (drive.cloud / "MyDrive" / "photos" / "cat" / f"new{next(listed)}.png").write_bytes(b"")
        real(self, *args, **options)

    real = FolderTree.__init__
    monkeypatch.setattr(FolderTree, "__init__", more)
    with pytest.raises(SourceChangedError, match="1 file more"):
        stage_dataset(my_drive / "photos", keep="files", cache_dir=None, progress=False)
    with pytest.raises(SourceChangedError, match="1 file more"):
        fetch_files(my_drive / "photos", tmp_path / "here", progress=False)
    assert not (tmp_path / "here").exists()
    monkeypatch.setattr(FolderTree, "__init__", real)
    for path in (drive.cloud / "MyDrive" / "photos" / "cat").glob("new*.png"):
        path.unlink()
    assert fetch(my_drive / "photos", tmp_path / "here") == truth


def test_content_that_changes_meanwhile_is_never_mixed(drive: SimulatedDrive, my_drive: Path, tmp_path: Path) -> None:
    """A file that is replaced between two fetches comes as the new one, whole."""
    place = drive.cloud / "MyDrive" / "a.bin"
    place.write_bytes(b"a" * 3_000_000)
    fetch_files(my_drive / "a.bin", tmp_path / "a.bin", progress=False)
    place.write_bytes(b"b" * 3_000_000)
    fetch_files(my_drive / "a.bin", tmp_path / "a.bin", progress=False)
    assert (tmp_path / "a.bin").read_bytes() == b"b" * 3_000_000


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[SimulatedDrive]:
    """A Drive that gives each file once a day."""
    mountpoint = tmp_path / "content" / "drive"
    mountpoint.mkdir(parents=True)
    with SimulatedDrive(tmp_path / "limited", knobs=replace(DriveKnobs.quick(), downloads_per_file=1)) as simulated:
        (simulated.cloud / "MyDrive" / "a.bin").write_bytes(b"a" * 3_000_000)
        simulated.mount(mountpoint)
        yield simulated


def test_a_used_up_download_quota_says_so(limited: SimulatedDrive, tmp_path: Path) -> None:
    """The mount answers errno 5, as always; the client's log tells why, and the error what to do about it."""
    assert limited.mountpoint is not None
    place = limited.mountpoint / "MyDrive" / "a.bin"
    with place.open("rb") as file:
        file.read(1000)  # somebody else's download
    with pytest.raises(DriveQuotaError, match="Make a copy"):
        fetch_files(place, tmp_path / "a.bin", progress=False)
    assert not (tmp_path / "a.bin").exists()


def test_a_file_that_becomes_visible_late_is_found(tmp_path: Path) -> None:
    """Not there yet is an error that says so; a little later, or after a remount, the same call works."""
    mountpoint = tmp_path / "content" / "drive"
    mountpoint.mkdir(parents=True)
    # Never by itself, or a call that other work holds up would find it.
    with SimulatedDrive(tmp_path / "late", knobs=replace(DriveKnobs(time_scale=0.01), visibility_s=math.inf)) as drive:
        drive.mount(mountpoint)
        assert list((mountpoint / "MyDrive").iterdir()) == []
        (drive.cloud / "MyDrive" / "a.bin").write_bytes(b"abc")
        with pytest.raises(ColabstageError, match=r"a\.bin"):
            fetch_files(mountpoint / "MyDrive" / "a.bin", tmp_path / "a.bin", progress=False)
        drive.unmount()
        drive.mount(mountpoint)
        fetch_files(mountpoint / "MyDrive" / "a.bin", tmp_path / "a.bin", progress=False)
    assert (tmp_path / "a.bin").read_bytes() == b"abc"
    with SimulatedDrive(tmp_path / "soon", knobs=replace(DriveKnobs(time_scale=0.01), visibility_s=20)) as drive:
        drive.mount(mountpoint)
        assert list((mountpoint / "MyDrive").iterdir()) == []
        (drive.cloud / "MyDrive" / "b.bin").write_bytes(b"abc")
        wait_until((mountpoint / "MyDrive" / "b.bin").exists)
        fetch_files(mountpoint / "MyDrive" / "b.bin", tmp_path / "b.bin", progress=False)
    assert (tmp_path / "b.bin").read_bytes() == b"abc"
