"""Failures on demand, as a program on the mount sees them."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from simulated_drive.knobs import ContentFault, DriveFaults, ListingFault, OpFault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from simulated_drive.drive import SimulatedDrive

pytestmark = pytest.mark.fuse


@pytest.fixture
def mine(drive: SimulatedDrive, mountpoint: Path) -> Path:
    """`MyDrive` on a mounted Drive with three files of 100 kB."""
    for name in ("a.jpg", "b.jpg", "c.zip"):
        (drive.cloud / "MyDrive" / name).write_bytes(bytes(range(1, 251)) * 400)
    drive.mount(mountpoint)
    return mountpoint / "MyDrive"


def read_once(file: Path) -> bytes:
    """Open a file and make a single read call for all of it."""
    handle = os.open(file, os.O_RDONLY)
    try:
        return os.pread(handle, 200_000, 0)
    finally:
        os.close(handle)


def errno_of(call: Callable[[], object]) -> int | None:
    """The errno with which a call fails, `None` when it does not."""
    try:
        call()
    except OSError as error:
        return error.errno
    return None


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOTCONN, errno.EOPNOTSUPP, errno.EROFS, errno.ENOSPC])
def test_read_fails_with_the_errno_asked_for(drive: SimulatedDrive, mine: Path, number: int) -> None:
    """A matching file's read answers the set errno; other files read, and so does this one once the fault is gone."""
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", pattern="*/a.jpg", errno=number),)))
    assert errno_of((mine / "a.jpg").read_bytes) == number
    assert len((mine / "b.jpg").read_bytes()) == 100_000
    assert drive.stats().errors_injected == 1
    drive.set_faults(DriveFaults())
    assert len((mine / "a.jpg").read_bytes()) == 100_000


def test_reads_are_counted_one_by_one(drive: SimulatedDrive, mine: Path) -> None:
    """Every third read call fails, on the same handle, whatever the kernel's page cache would do with it."""
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", pattern="*.zip", every=3),)))
    handle = os.open(mine / "c.zip", os.O_RDONLY)
    outcomes = [errno_of(lambda: os.pread(handle, 1000, 0)) for _ in range(6)]
    os.close(handle)
    assert outcomes == [None, None, errno.EIO, None, None, errno.EIO]


def test_each_file_fails_its_first_reads_and_then_works(drive: SimulatedDrive, mine: Path) -> None:
    """Failures counted for each file let the second try of each succeed."""
    drive.set_faults(DriveFaults(ops=(OpFault(op="read", first=1, per_file=True),)))
    for name in ("a.jpg", "b.jpg"):
        assert errno_of(lambda name=name: read_once(mine / name)) == errno.EIO  # type: ignore[misc]
        assert len(read_once(mine / name)) == 100_000


def test_other_calls_fail_too(drive: SimulatedDrive, mine: Path) -> None:
    """Opening, listing, looking, creating, writing, renaming and deleting fail when a rule says so."""
    calls: dict[str, Callable[[], object]] = {
        "open": (mine / "a.jpg").read_bytes,
        "list": lambda: list(mine.iterdir()),
        "stat": (mine / "unseen").stat,
        "create": (mine / "new").touch,
        "mkdir": (mine / "folder").mkdir,
        "rename": lambda: (mine / "a.jpg").rename(mine / "z.jpg"),
        "unlink": (mine / "a.jpg").unlink,
        "write": lambda: (mine / "b.jpg").write_bytes(b"x"),
    }
    for op, call in calls.items():
        pattern = "*/unseen" if op == "stat" else "*"
        drive.set_faults(DriveFaults(ops=(OpFault(op=op, pattern=pattern, errno=errno.EIO),)))  # type: ignore[arg-type]
        assert errno_of(call) == errno.EIO, op


def test_full_account_on_demand(drive: SimulatedDrive, mine: Path) -> None:
    """With the quota exceeded nothing can be created or written, and reading goes on."""
    drive.set_faults(DriveFaults(quota_exceeded=True))
    assert errno_of((mine / "new").touch) == errno.ENOSPC
    assert errno_of(lambda: (mine / "a.jpg").write_bytes(b"x")) == errno.ENOSPC
    assert len((mine / "b.jpg").read_bytes()) == 100_000


def test_listing_silently_lacks_entries(drive: SimulatedDrive, mine: Path) -> None:
    """The faulty listing shows a part, the next one everything; what was not listed can be opened all the same."""
    drive.set_faults(DriveFaults(listings=(ListingFault(pattern="MyDrive", keep=0.4, first=1),)))
    assert len(list(mine.iterdir())) == 1
    assert (mine / "c.zip").stat().st_size == 100_000
    assert len(list(mine.iterdir())) == 3


def test_zeroed_tail_has_the_right_size_and_wrong_bytes(drive: SimulatedDrive, mine: Path) -> None:
    """The last bytes read as zeros during the first open; the second open reads what is in the cloud."""
    fault = ContentFault(pattern="*.zip", kind="zero_tail", tail_bytes=30_000, first_opens=1)
    drive.set_faults(DriveFaults(contents=(fault,)))
    sound = (drive.cloud / "MyDrive" / "c.zip").read_bytes()
    assert (mine / "c.zip").stat().st_size == 100_000
    assert (mine / "c.zip").read_bytes() == sound[:70_000] + bytes(30_000)
    assert (mine / "c.zip").read_bytes() == sound


def test_truncated_read_ends_before_the_listed_size(drive: SimulatedDrive, mine: Path) -> None:
    """The file's size is listed as ever, and its bytes end early."""
    drive.set_faults(DriveFaults(contents=(ContentFault(pattern="*.zip", kind="truncate", tail_bytes=1),)))
    assert (mine / "c.zip").stat().st_size == 100_000
    assert len((mine / "c.zip").read_bytes()) == 99_999


def test_faults_set_before_the_mount_hold_after_it(drive: SimulatedDrive, mine: Path, mountpoint: Path) -> None:
    """Faults belong to the Drive, so a remount does not clear them."""
    drive.set_faults(DriveFaults(ops=(OpFault(op="open", pattern="*.jpg"),)))
    drive.unmount()
    drive.mount(mountpoint)
    assert errno_of((mine / "a.jpg").read_bytes) == errno.EIO
    assert errno_of((mine / "c.zip").read_bytes) is None
