"""Failures on demand, as a program on the mount sees them."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from simulated_drive.knobs import DriveFaults, OpFault
from tests.simulated_drive.test_filesystem import errno_of
from tests.support.images import make_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from simulated_drive.drive import SimulatedDrive

pytestmark = pytest.mark.fuse

CONTENT = bytes(range(1, 251)) * 400
FILES = {"a.jpg": CONTENT, "b.jpg": CONTENT, "c.zip": CONTENT}


@pytest.fixture
def mine(shared: SimulatedDrive, request: pytest.FixtureRequest) -> Path:
    """The test's own folder with three files of 100 kB."""
    assert shared.mountpoint is not None
    name = str(request.node.name).replace("[", "_").rstrip("]")
    make_tree(shared.cloud / "MyDrive" / name, FILES)
    return shared.mountpoint / "MyDrive" / name


def fail(drive: SimulatedDrive, op: Any, pattern: str = "*", **options: Any) -> None:
    drive.set_faults(DriveFaults(ops=(OpFault(op=op, pattern=pattern, **options),)))


def reads(file: Path, count: int) -> list[int | None]:
    """Return the outcomes of so many read calls on one handle."""
    handle = os.open(file, os.O_RDONLY)
    try:
        return [errno_of(lambda: os.pread(handle, 200_000, 0)) for _ in range(count)]
    finally:
        os.close(handle)


def test_a_read_fails_with_the_errno_asked_for(shared: SimulatedDrive, mine: Path) -> None:
    """Other files read, and so does this one once the fault is gone."""
    injected = shared.stats().errors_injected
    fail(shared, "read", "*/a.jpg", errno=errno.EROFS)
    assert [errno_of((mine / name).read_bytes) for name in FILES] == [errno.EROFS, None, None]
    assert shared.stats().errors_injected == injected + 1
    shared.set_faults(DriveFaults())
    assert (mine / "a.jpg").read_bytes() == CONTENT


def test_reads_are_counted_one_by_one(shared: SimulatedDrive, mine: Path) -> None:
    """The first of each file, despite the kernel's page cache."""
    fail(shared, "read", first=1, per_file=True)
    assert [reads(mine / name, 2) for name in ("a.jpg", "b.jpg")] == [[errno.EIO, None]] * 2


def test_other_calls_fail_too(shared: SimulatedDrive, mine: Path) -> None:
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
        fail(shared, op, "*/unseen" if op == "stat" else "*")
        assert errno_of(call) == errno.EIO, op


def test_faults_hold_over_a_remount_and_an_upload_is_dropped(drive: SimulatedDrive, mountpoint: Path) -> None:
    """The flush succeeds and this machine still reads the file, but the cloud never got it."""
    mine = mountpoint / "MyDrive"
    drive.set_faults(DriveFaults(ops=(OpFault(op="open", pattern="*.jpg"),), drop_uploads=("*.h5",)))
    drive.mount(mountpoint)
    make_tree(mine, {"lost.h5": b"content", "kept.txt": b"content"})
    make_tree(drive.cloud / "MyDrive", {"a.jpg": CONTENT})
    assert drive.flush(timeout_s=10)
    assert (mine / "lost.h5").read_bytes() == b"content"
    drive.unmount()
    drive.mount(mountpoint)
    for folder in (mine, drive.cloud / "MyDrive"):
        assert {path.name for path in folder.iterdir()} == {"a.jpg", "kept.txt"}
    assert errno_of((mine / "a.jpg").read_bytes) == errno.EIO
