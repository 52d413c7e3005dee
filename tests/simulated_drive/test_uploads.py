"""What is written through the mount, on its way to the cloud: at once here, later there, or never."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import NotSupportedHereError
from simulated_drive.knobs import DriveFaults, DriveKnobs, DriveStats
from simulated_drive.uploads import UploadQueue

if TYPE_CHECKING:
    from pathlib import Path

    from simulated_drive.drive import SimulatedDrive
    from tests.simulated_drive.conftest import MakeDrive

pytestmark = pytest.mark.fuse

STALLED = DriveFaults(stall_uploads=True)


def test_written_file_is_here_at_once_and_in_the_cloud_later(drive: SimulatedDrive, mountpoint: Path) -> None:
    """A file just written can be listed and read, while the cloud has nothing of it until it is uploaded."""
    drive.set_faults(STALLED)
    drive.mount(mountpoint)
    content = os.urandom(1_000_000)
    (mountpoint / "MyDrive" / "pack.h5").write_bytes(content)
    assert (mountpoint / "MyDrive" / "pack.h5").read_bytes() == content
    assert [entry.name for entry in (mountpoint / "MyDrive").iterdir()] == ["pack.h5"]
    assert not (drive.cloud / "MyDrive" / "pack.h5").exists()
    stats = drive.stats()
    assert (stats.uploads_pending, stats.bytes_pending, stats.bytes_written) == (1, 1_000_000, 1_000_000)
    drive.set_faults(DriveFaults())
    assert drive.flush(timeout_s=10)
    assert (drive.cloud / "MyDrive" / "pack.h5").read_bytes() == content
    assert drive.stats().uploads_pending == 0


def test_upload_takes_its_time_and_many_run_together(make_drive: MakeDrive, mountpoint: Path) -> None:
    """Four files upload at their own rate side by side, not one after the other."""
    drive = make_drive(dataclasses.replace(DriveKnobs.good_day(), upload_bytes_per_s=0.5e6, parallel_uploads=4))
    drive.mount(mountpoint)
    start = time.perf_counter()
    for number in range(4):
        (mountpoint / "MyDrive" / f"{number}.bin").write_bytes(bytes(600_000))
    written_s = time.perf_counter() - start
    assert drive.flush(timeout_s=30)
    elapsed_s = time.perf_counter() - start
    assert written_s < 1.2
    assert 1.2 <= elapsed_s < 4 * 1.2


def test_flush_gives_up_when_time_is_over(drive: SimulatedDrive, mountpoint: Path) -> None:
    """An upload that does not get done makes flush answer no, and nothing is lost by that."""
    drive.set_faults(STALLED)
    drive.mount(mountpoint)
    (mountpoint / "MyDrive" / "a.bin").write_bytes(b"x")
    assert not drive.flush(timeout_s=0.2)
    assert drive.stats().uploads_pending == 1


def test_file_still_open_for_writing_is_not_flushed(drive: SimulatedDrive, mountpoint: Path) -> None:
    """Uploading starts when the last writer closes the file."""
    drive.mount(mountpoint)
    with (mountpoint / "MyDrive" / "log.txt").open("wb", buffering=0) as file:
        file.write(b"begin")
        assert not drive.flush(timeout_s=0.2)
    assert drive.flush(timeout_s=10)
    assert (drive.cloud / "MyDrive" / "log.txt").read_bytes() == b"begin"


def test_unmount_keeps_what_waits_and_the_next_mount_uploads_it(drive: SimulatedDrive, mountpoint: Path) -> None:
    """Pending files survive an unmount and a death of the client, are visible again, and reach the cloud."""
    drive.set_faults(STALLED)
    drive.mount(mountpoint)
    (mountpoint / "MyDrive" / "folder").mkdir()
    (mountpoint / "MyDrive" / "folder" / "a.bin").write_bytes(b"first")
    drive.unmount()
    assert drive.stats().uploads_pending == 1
    assert not drive.flush(timeout_s=0.1)
    drive.mount(mountpoint)
    (mountpoint / "MyDrive" / "folder" / "b.bin").write_bytes(b"second")
    drive.kill()
    drive.unmount()
    drive.set_faults(DriveFaults())
    drive.mount(mountpoint)
    assert (mountpoint / "MyDrive" / "folder" / "b.bin").read_bytes() == b"second"
    assert drive.flush(timeout_s=10)
    cloud = drive.cloud / "MyDrive" / "folder"
    assert {file.name: file.read_bytes() for file in cloud.iterdir()} == {"a.bin": b"first", "b.bin": b"second"}


def test_a_client_that_cannot_go_on_says_so_at_once(drive: SimulatedDrive, mountpoint: Path) -> None:
    """What an earlier one left is unreadable: no silence until the starter's patience is over, and no mount left."""
    drive.set_faults(STALLED)
    drive.mount(mountpoint)
    (mountpoint / "MyDrive" / "a.bin").write_bytes(b"first")
    drive.unmount()
    (label,) = mountpoint.parent.rglob("*.path")
    label.unlink()
    label.mkdir()
    began = time.monotonic()
    with pytest.raises(NotSupportedHereError, match="IsADirectoryError"):
        drive.mount(mountpoint)
    assert time.monotonic() - began < 15.0
    assert not mountpoint.is_mount()


def test_new_machine_has_lost_what_was_not_uploaded(drive: SimulatedDrive, mountpoint: Path) -> None:
    """When the machine is gone, so are its pending uploads; the cloud keeps what it had."""
    (drive.cloud / "MyDrive" / "a.bin").write_bytes(b"old")
    drive.set_faults(STALLED)
    drive.mount(mountpoint)
    (mountpoint / "MyDrive" / "a.bin").write_bytes(b"new")
    (mountpoint / "MyDrive" / "b.bin").write_bytes(b"new")
    drive.new_machine()
    drive.set_faults(DriveFaults())
    drive.mount(mountpoint)
    assert drive.flush(timeout_s=10)
    assert (mountpoint / "MyDrive" / "a.bin").read_bytes() == b"old"
    assert not (mountpoint / "MyDrive" / "b.bin").exists()


def test_renamed_before_its_upload_arrives_under_the_new_name(drive: SimulatedDrive, mountpoint: Path) -> None:
    """A temporary file renamed over an old one replaces it here at once; the cloud keeps the old one until the
    upload is whole, and never sees the temporary name."""
    (drive.cloud / "MyDrive" / "pack.h5").write_bytes(b"old")
    drive.set_faults(STALLED)
    drive.mount(mountpoint)
    mine = mountpoint / "MyDrive"
    (mine / "pack.h5.tmp").write_bytes(b"new")
    (mine / "pack.h5.tmp").replace(mine / "pack.h5")
    assert [entry.name for entry in mine.iterdir()] == ["pack.h5"]
    assert (mine / "pack.h5").read_bytes() == b"new"
    assert (drive.cloud / "MyDrive" / "pack.h5").read_bytes() == b"old"
    drive.set_faults(DriveFaults())
    assert drive.flush(timeout_s=10)
    assert {file.name: file.read_bytes() for file in (drive.cloud / "MyDrive").iterdir()} == {"pack.h5": b"new"}


def test_file_deleted_before_its_upload_never_arrives(drive: SimulatedDrive, mountpoint: Path) -> None:
    """Deleting a pending file takes it out of the queue."""
    drive.set_faults(STALLED)
    drive.mount(mountpoint)
    (mountpoint / "MyDrive" / "a.bin").write_bytes(b"x")
    (mountpoint / "MyDrive" / "a.bin").unlink()
    drive.set_faults(DriveFaults())
    assert drive.flush(timeout_s=10)
    assert list((drive.cloud / "MyDrive").iterdir()) == []
    assert drive.stats().uploads_done == 0


def test_rewritten_during_its_upload_arrives_as_last_written(make_drive: MakeDrive, mountpoint: Path) -> None:
    """A file that changes while it is on its way is uploaded anew, and only its last state arrives."""
    drive = make_drive(dataclasses.replace(DriveKnobs.good_day(), upload_bytes_per_s=20e3))
    drive.mount(mountpoint)
    file = mountpoint / "MyDrive" / "state.bin"
    for number in range(3):
        file.write_bytes(bytes([number]) * 30_000)
        time.sleep(0.05)
    assert not (drive.cloud / "MyDrive" / "state.bin").exists()
    assert drive.flush(timeout_s=10)
    assert (drive.cloud / "MyDrive" / "state.bin").read_bytes() == bytes([2]) * 30_000
    assert drive.stats().uploads_done == 1


def test_dropped_upload_is_reported_as_done_and_missing_after_a_remount(
    drive: SimulatedDrive, mountpoint: Path
) -> None:
    """Flush says yes, this machine still reads the file, and yet the cloud never got it."""
    drive.set_faults(DriveFaults(drop_uploads=("*.h5",)))
    drive.mount(mountpoint)
    for name in ("lost.h5", "kept.txt"):
        (mountpoint / "MyDrive" / name).write_bytes(b"content")
    assert drive.flush(timeout_s=10)
    assert (mountpoint / "MyDrive" / "lost.h5").read_bytes() == b"content"
    drive.unmount()
    drive.mount(mountpoint)
    assert [entry.name for entry in (mountpoint / "MyDrive").iterdir()] == ["kept.txt"]
    assert [entry.name for entry in (drive.cloud / "MyDrive").iterdir()] == ["kept.txt"]


def test_uploaded_file_is_warm_here_and_cold_elsewhere(drive: SimulatedDrive, mountpoint: Path) -> None:
    """What was written here is read from the cache, also after the upload and a remount."""
    sizes = {"small.bin": 1000, "large.bin": 1_000_000}
    drive.mount(mountpoint)
    for name, size in sizes.items():
        (mountpoint / "MyDrive" / name).write_bytes(os.urandom(size))
    assert drive.flush(timeout_s=10)

    def read_all() -> tuple[int, int]:
        for name in sizes:
            assert (mountpoint / "MyDrive" / name).read_bytes() == (drive.cloud / "MyDrive" / name).read_bytes()
        stats = drive.stats()
        return stats.cold_opens, stats.warm_opens

    assert read_all() == (0, 2)
    drive.unmount()
    drive.mount(mountpoint)
    assert read_all() == (0, 2)
    drive.new_machine()
    drive.mount(mountpoint)
    assert read_all() == (2, 0)


def test_a_time_that_is_set_while_a_file_arrives_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the copy that is uploaded and its arrival, as `shutil.copy2` may set it right after closing the file."""
    arrived: list[int] = []
    copied, held = threading.Event(), threading.Event()
    queue = UploadQueue(
        tmp_path / "uploads",
        knobs=DriveKnobs.quick(),
        stats=DriveStats(),
        finish=lambda _, copy: arrived.append(copy.stat().st_mtime_ns),
        is_dropped=lambda _: False,
        is_stalled=lambda: False,
    )
    copyfile = shutil.copyfile

    def slowly(source: Path, target: Path) -> None:
        copyfile(source, target)
        copied.set()
        assert held.wait(10)

    monkeypatch.setattr(shutil, "copyfile", slowly)
    pending = queue.new("/MyDrive/copy")
    queue.reopen(pending)
    pending.dirty = True
    queue.done_writing(pending)
    assert copied.wait(10)
    with queue.lock:
        held.set()
        time.sleep(0.1)  # until it waits for the lock
        assert queue.set_time("/MyDrive/copy", 10**18 + 123)
    queue._pool.shutdown()
    assert arrived == [10**18 + 123]
    assert not queue.set_time("/MyDrive/copy", 10**18)
