"""A tree onto the local disk: the same names, bytes and times, or a typed error."""

from __future__ import annotations

import errno
import os
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage.errors import (
    CancelledError,
    CorruptArchiveError,
    NotEnoughSpaceError,
    SourceNotFoundError,
    SourceReadError,
    UnsafeArchiveError,
)
from colabstage.io.pipeline import PipelineLimits
from colabstage.io.progress import Cancellation
from colabstage.sources import to_folder as files
from colabstage.sources.to_folder import write_folder
from colabstage.trees.bytes import LocalBytes
from colabstage.trees.folder import FolderTree
from colabstage.trees.zip import ZipTree
from simulated_drive.knobs import DriveFaults, OpFault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.trees.listing import Tree
    from simulated_drive.drive import SimulatedDrive

MIB = 1024 * 1024
LIMITS = PipelineLimits(readers=3, max_readers=3, workers=2, stall_timeout_s=20.0)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder to make, in one of its own."""
    (tmp_path / "beside").mkdir()
    return tmp_path / "beside" / "target"


@pytest.fixture
def fetch(target: Path, step: Any) -> Callable[..., None]:
    """`write_folder` with this module's limits."""

    def run(tree: Tree, place: Path = target, **changes: Any) -> None:
        options: dict[str, Any] = {
            "limits": LIMITS,
            "step": step,
            "cancellation": Cancellation(),
            "fingerprint": "",
            **changes,
        }
        write_folder(tree, place, **options)

    return run


def write_nested(folder: Path) -> Path:
    """Files of many lengths in folders up to four deep, empty ones and odd names among them."""
    rng = np.random.default_rng(0)
    names = [
        "top.txt",
        "a/one.bin",
        "a/b/c/deep.bin",
        "a/b/empty.bin",
        "ü/Grüße 1.txt",
        "a.b/x",
        os.fsdecode(b"a/\xff.bin"),
    ]
    for number, name in enumerate([*names, *(f"many/{n % 7}/{n:03d}.bin" for n in range(150))]):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if "empty" in name else rng.bytes(1 + number * 37))
        os.utime(path, ns=(10**18 + number, 10**18 + number * 1_000_000_007))
    return folder


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and modification time of every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_folder_arrives_with_names_bytes_and_times(
    tmp_path: Path, target: Path, fetch: Callable[..., None], step: Any
) -> None:
    """Every file of a nested folder, empty ones included, is there with its time to the nanosecond."""
    source = write_nested(tmp_path / "source")
    fetch(FolderTree(source))
    found = contents(target)
    assert found == contents(source)
    assert step.total == sum(len(data) for data, _ in found.values())


def test_zip_arrives_with_names_bytes_and_times(tmp_path: Path, target: Path, fetch: Callable[..., None]) -> None:
    """Members arrive as a reference implementation unpacks them, with the times that the tree knows."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(60):
            data = np.random.default_rng(number).bytes(number * 100)
            archive.writestr(
                zipfile.ZipInfo(f"d{number % 3}/{number}.bin", (2020, 5, 17, 12, 30, 2 * (number % 30))), data
            )
        wanted = {name: archive.read(name) for name in archive.namelist()}
    with ZipTree(LocalBytes(tmp_path / "a.zip")) as tree:
        times = {entry.name: entry.mtime_ns for entry in tree.entries}
        fetch(tree)
    found = contents(target)
    assert {name: data for name, (data, _) in found.items()} == wanted
    assert {name: time_ns for name, (_, time_ns) in found.items()} == times


def test_tree_without_files_leaves_an_empty_folder(tmp_path: Path, target: Path, fetch: Callable[..., None]) -> None:
    """Nothing to fetch is done at once."""
    (tmp_path / "source").mkdir()
    fetch(FolderTree(tmp_path / "source"))
    assert list(target.iterdir()) == []


def test_large_file_comes_in_pieces(tmp_path: Path, target: Path, fetch: Callable[..., None], step: Any) -> None:
    """A file beyond 64 MiB is reported piece by piece, and is right at the seams, in the holes and at the end."""
    source = tmp_path / "source"
    source.mkdir()
    size = 70 * MIB + 123
    marks = {0: b"first", 16 * MIB - 2: b"seam", 64 * MIB - 3: b"another", size - 4: b"last"}
    with (source / "large.bin").open("wb") as file:
        file.truncate(size)
        for offset, mark in marks.items():
            os.pwrite(file.fileno(), mark, offset)
    os.utime(source / "large.bin", ns=(10**18, 10**18))
    (source / "small.bin").write_bytes(b"small")
    totals: list[int] = []
    step.notice = totals.append
    fetch(FolderTree(source))
    arrived = target / "large.bin"
    assert arrived.stat().st_size == size
    assert arrived.stat().st_mtime_ns == 10**18
    assert arrived.read_bytes() == (source / "large.bin").read_bytes()
    assert (target / "small.bin").read_bytes() == b"small"
    assert step.total == size + 5
    assert len(totals) > 4


def test_large_file_that_changes_meanwhile_is_an_error(tmp_path: Path, fetch: Callable[..., None]) -> None:
    """Pieces of two versions of a file never make one file."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "large.bin").touch()
    os.truncate(source / "large.bin", 65 * MIB)
    tree = FolderTree(source)
    os.truncate(source / "large.bin", 65 * MIB + 1)
    with pytest.raises(SourceReadError, match=r"large\.bin' .*68,157,440 .*68,157,441"):
        fetch(tree)


@pytest.mark.parametrize("names", [("Cat.bin", "cat.bin"), ("Dogs/a.bin", "dogs/b.bin")])
def test_names_that_clash_by_case_are_refused_before_anything_is_written(
    tmp_path: Path, target: Path, fetch: Callable[..., None], monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    """On a disk that ignores case, files or folders that differ in that only are refused by name."""
    monkeypatch.setattr(files, "_mixes_up_names", lambda _: True)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("before.bin", *names):
            path = tmp_path / "source" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
            archive.writestr(name, b"x")
    with ZipTree(LocalBytes(tmp_path / "a.zip")) as zipped:
        for tree in (FolderTree(tmp_path / "source"), zipped):
            with pytest.raises(UnsafeArchiveError, match="upper and lower case"):
                fetch(tree)
            assert list(target.parent.iterdir()) == []


def test_classes_named_by_letters_of_both_cases_come(tmp_path: Path, target: Path, fetch: Callable[..., None]) -> None:
    """The disk tells "A" from "a", so nothing is refused."""
    for name in ("A/1.png", "a/1.png"):
        (tmp_path / "source" / name).parent.mkdir(parents=True)
        (tmp_path / "source" / name).write_text(name)
    if os.path.exists(tmp_path / "SOURCE"):  # noqa: PTH110
        pytest.skip("needs a temporary folder on a disk that tells upper from lower case")
    fetch(FolderTree(tmp_path / "source"))
    assert {(target / name).read_text() for name in ("A/1.png", "a/1.png")} == {"A/1.png", "a/1.png"}


def test_cancelling_stops_between_files(tmp_path: Path, target: Path, fetch: Callable[..., None], step: Any) -> None:
    """A request to stop, made while files arrive, leaves most of them unread."""
    source = write_nested(tmp_path / "source")
    cancellation = Cancellation()
    slept = threading.Event()

    def cancel(total: int) -> None:
        cancellation.cancel()
        slept.wait(0.1)

    step.notice = cancel
    with pytest.raises(CancelledError):
        fetch(FolderTree(source), cancellation=cancellation)
    assert not target.exists()
    assert 0 < len(contents(target.parent)) < 100
    assert [thread for thread in threading.enumerate() if thread.name == "colabstage-pipeline"] == []


def test_file_that_vanished_is_named(tmp_path: Path, fetch: Callable[..., None]) -> None:
    """A file that was listed and is gone ends the work with its name."""
    source = write_nested(tmp_path / "source")
    tree = FolderTree(source)
    (source / "a/b/c/deep.bin").unlink()
    with pytest.raises(SourceNotFoundError, match=r"a/b/c/deep\.bin"):
        fetch(tree)


def test_damaged_member_is_named(tmp_path: Path, fetch: Callable[..., None]) -> None:
    """A member whose checksum is wrong is no file that arrives."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("good.bin", b"good" * 1000)
        archive.writestr("bad.bin", b"BEFORE" * 1000)
    damaged = (tmp_path / "a.zip").read_bytes().replace(b"BEFORE", b"BEFOUL", 1)
    (tmp_path / "a.zip").write_bytes(damaged)
    with ZipTree(LocalBytes(tmp_path / "a.zip")) as tree, pytest.raises(CorruptArchiveError, match=r"bad\.bin"):
        fetch(tree)


def test_full_disk_is_a_lack_of_space(tmp_path: Path, small_disk: Path, fetch: Callable[..., None]) -> None:
    """The disk fills up midway: the error names the place, and no thread stays."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(12):
        (source / f"{number}.bin").write_bytes(bytes(200_000))
    with pytest.raises(NotEnoughSpaceError, match=r"small' is full"):
        fetch(FolderTree(source), small_disk / "out")


@pytest.mark.fuse
def test_passing_errors_of_a_drive_do_not_show(
    tmp_path: Path, target: Path, make_drive: Callable[..., SimulatedDrive], fetch: Callable[..., None]
) -> None:
    """Each file's first read fails on a bad day, and everything arrives all the same."""
    drive = make_drive()
    source = write_nested(tmp_path / "source")
    (source / os.fsdecode(b"a/\xff.bin")).unlink()  # Drive has no names that are not UTF-8
    source.rename(drive.cloud / "MyDrive" / "source")
    assert drive.mountpoint is not None
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", first=1, per_file=True),)))
    fetch(FolderTree(drive.mountpoint / "MyDrive" / "source"))
    assert {name: data for name, (data, _) in contents(target).items()} == {
        name: data for name, (data, _) in contents(drive.cloud / "MyDrive" / "source").items()
    }
    assert drive.stats().errors_injected >= 150


@pytest.mark.fuse
def test_error_that_stays_names_the_file(
    tmp_path: Path, make_drive: Callable[..., SimulatedDrive], fetch: Callable[..., None]
) -> None:
    """One file that Drive refuses to deliver ends the work, with its name and the likely reason."""
    drive = make_drive()
    write_nested(drive.cloud / "MyDrive" / "source")
    assert drive.mountpoint is not None
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", pattern="*/c/deep.bin", errno=errno.EIO),)))
    with pytest.raises(SourceReadError, match=r"a/b/c/deep\.bin.*quota"):
        fetch(FolderTree(drive.mountpoint / "MyDrive" / "source"))
