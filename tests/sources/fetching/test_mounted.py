"""A mounted file as a source: exact parts from many threads, and each errno judged for what it is."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files
from colabstage.errors import SourceChangedError, SourceNotFoundError, SourceReadError
from colabstage.io.files import RetryPolicy
from colabstage.io.progress import Cancellation
from colabstage.sources.arriving import fetch_file
from colabstage.sources.remote import MountedFile
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, OpFault
from tests.support.far import random_bytes
from tests.support.invariants import open_files

MIB = 1024 * 1024
SIZE = 20 * MIB + 321


@pytest.fixture(scope="module")
def content() -> bytes:
    """What is in the file."""
    return random_bytes(SIZE)


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    """The file on the local disk."""
    path = tmp_path / "data.zip"
    path.write_bytes(content)
    return path


@pytest.fixture
def on_drive(make_drive: Callable[..., SimulatedDrive], content: bytes) -> tuple[SimulatedDrive, Path]:
    """A mounted Drive and the file on it."""
    drive = make_drive()
    (drive.cloud / "MyDrive" / "data.zip").write_bytes(content)
    assert drive.mountpoint is not None
    return drive, drive.mountpoint / "MyDrive" / "data.zip"


def test_parts_from_many_threads_are_exact(path: Path, content: bytes) -> None:
    """Any part, in pieces of at most a megabyte; with no length, to the end."""
    parts = [(0, SIZE), (5, 1), (7 * MIB - 3, 3 * MIB), (SIZE - 10, 10), (SIZE, 0), (3 * MIB, None)]
    with closing(MountedFile(path)) as file, ThreadPoolExecutor(6) as pool:
        for (offset, length), pieces in zip(
            parts, pool.map(lambda part: list(file.read_range(*part)), parts), strict=True
        ):
            assert b"".join(pieces) == content[offset : SIZE if length is None else offset + length]
            assert max(map(len, pieces), default=0) <= MIB
    file.close()


def test_handles_are_used_again(path: Path) -> None:
    """Opening costs a round trip on a mount, so one part after the other needs one handle; closing lets go of it."""

    def handles() -> int:
        return [*open_files().values()].count(str(path))

    with closing(MountedFile(path)) as file:
        for offset in range(5):
            assert len(next(file.read_range(offset, 10))) == 10
        assert handles() == 1
        first, second = file.read_range(0, 10), file.read_range(5, 10)
        assert (len(next(first)), len(next(second))) == (10, 10)
        assert handles() == 2
    del first, second
    assert handles() == 0
    with pytest.raises(SourceReadError, match=r"data\.zip"):
        next(file.read_range(0, 1))


@pytest.mark.parametrize("change", ["shorter", "again"])
def test_file_that_changes_is_found_out(path: Path, content: bytes, change: str) -> None:
    """Another length or time, whether during a part or before one, is no mixture of two files; and another version."""
    with closing(MountedFile(path)) as file:
        assert (file.facts.name, file.facts.size, file.facts.ranges) == ("data.zip", SIZE, True)
        assert file.facts.mtime_ns == path.stat().st_mtime_ns
        during = file.read_range(0, 5 * MIB)
        next(during)
        path.write_bytes({"shorter": content[:MIB], "again": content}[change])
        os.utime(path, ns=(5, 5))
        for part in (during, file.read_range(0, 5 * MIB)):
            with pytest.raises(SourceChangedError):
                list(part)
        with closing(MountedFile(path)) as now:
            assert now.facts.version != file.facts.version


@pytest.mark.fuse
def test_final_errors_of_a_mount_say_what_to_do(
    on_drive: tuple[SimulatedDrive, Path], tmp_path: Path, step: Any
) -> None:
    """Errors that stay end in the words for a quota or a file that is gone; a short file says where it ends."""
    drive, path = on_drive
    policy = RetryPolicy(attempts=2, first_wait_s=0.01)
    cases: list[tuple[DriveFaults, type[Exception], str]] = [
        (DriveFaults(ops=(OpFault(op="read"),)), SourceReadError, "after 2 tries.*quota"),
        (DriveFaults(ops=(OpFault(op="read", errno=errno.ENOENT),)), SourceNotFoundError, "2 tries"),
        (DriveFaults(short_files=("*",)), SourceReadError, "ends at byte 20,971,836 although"),
    ]
    for faults, wanted, words in cases:
        drive.set_faults(faults)
        with closing(MountedFile(path)) as file, pytest.raises(wanted, match=words):
            fetch_file(file, tmp_path / "copy", step=step, cancellation=Cancellation(), policy=policy)
    assert not (tmp_path / "copy").exists()


@pytest.mark.fuse
def test_a_file_that_cannot_be_read_leaves_no_thread(on_drive: tuple[SimulatedDrive, Path], tmp_path: Path) -> None:
    """It is read before it is fetched, to see what it is."""
    drive, path = on_drive
    drive.set_faults(DriveFaults(ops=(OpFault(op="read"),)))
    with pytest.raises(SourceReadError, match="quota"):
        fetch_files(path, f"{tmp_path}/copy", progress=False)
