"""The calls of the mounted file system, one by one: what works as on a disk, and what Drive refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import math
import os
import shutil
import stat
import time
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

from simulated_drive.knobs import DriveFaults, DriveKnobs, OpFault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from simulated_drive.drive import SimulatedDrive
    from tests.simulated_drive.conftest import MakeDrive

pytestmark = pytest.mark.fuse


@pytest.fixture
def mine(drive: SimulatedDrive, mountpoint: Path) -> Path:
    """`MyDrive` on a mounted Drive without waiting."""
    drive.mount(mountpoint)
    return mountpoint / "MyDrive"


def listed(folder: Path) -> list[str]:
    """The names in a folder."""
    return sorted(entry.name for entry in folder.iterdir())


def errno_of(call: Callable[[], object]) -> int | None:
    """The errno with which a call fails."""
    with pytest.raises(OSError) as caught:
        call()
    return caught.value.errno


def test_root_of_the_mount_is_not_writable(mine: Path) -> None:
    """Files and folders can only be made inside a drive, not beside it."""
    assert errno_of((mine.parent / "folder").mkdir) == errno.EOPNOTSUPP
    assert errno_of(lambda: (mine.parent / "file").write_text("x", encoding="utf-8")) == errno.EOPNOTSUPP


def test_links_are_not_supported(mine: Path) -> None:
    """Neither symbolic nor hard links can be made."""
    (mine / "file").touch()
    assert errno_of(lambda: (mine / "link").symlink_to("file")) == errno.EOPNOTSUPP
    assert errno_of(lambda: (mine / "link").hardlink_to(mine / "file")) == errno.EOPNOTSUPP


@pytest.mark.parametrize("suffix", ["gdoc", "gsheet", "gslides"])
def test_google_native_documents_are_listed_but_not_readable(drive: SimulatedDrive, mine: Path, suffix: str) -> None:
    """A Google document shows in the folder, and opening it answers errno 95."""
    document = drive.cloud / "MyDrive" / f"plan.{suffix}"
    document.write_text("{}", encoding="utf-8")
    assert listed(mine) == [document.name]
    assert errno_of((mine / document.name).read_bytes) == errno.EOPNOTSUPP


def test_shortcut_shows_as_a_normal_folder(drive: SimulatedDrive, tmp_path: Path, mine: Path) -> None:
    """A link in the cloud's folder plays a shortcut to something shared: it looks like the thing itself."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "a.txt").write_text("shared", encoding="utf-8")
    (drive.cloud / "MyDrive" / "shortcut").symlink_to(tmp_path / "theirs")
    assert (mine / "shortcut").is_dir()
    assert not (mine / "shortcut").is_symlink()
    assert (mine / "shortcut" / "a.txt").read_text(encoding="utf-8") == "shared"


def test_modes_are_private_and_changes_do_not_last(drive: SimulatedDrive, mountpoint: Path, mine: Path) -> None:
    """Files are 0600; making one executable works until the next mount."""
    script = mine / "run.sh"
    script.write_text("#!/bin/sh\n", encoding="utf-8")
    assert script.stat().st_mode & 0o777 == 0o600
    script.chmod(0o755)
    assert script.stat().st_mode & 0o777 == 0o755
    assert drive.flush(timeout_s=10)
    drive.unmount()
    drive.mount(mountpoint)
    assert script.stat().st_mode & 0o777 == 0o600


def test_locking_answers_as_the_knob_says(make_drive: MakeDrive, mountpoint: Path) -> None:
    """`flock` and `lockf` fail with the set errno, or work where the knob is `None`."""
    for number, expected in enumerate((errno.ENOSYS, errno.ENOLCK, None)):
        drive = make_drive(dataclasses.replace(DriveKnobs.quick(), flock_errno=expected))
        point = mountpoint.with_name(f"drive{number}")
        drive.mount(point)
        with (point / "MyDrive" / "file").open("wb") as file:
            if expected is None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                continue
            assert errno_of(lambda file=file: fcntl.flock(file, fcntl.LOCK_EX)) == expected  # type: ignore[misc]
            assert errno_of(lambda file=file: fcntl.lockf(file, fcntl.LOCK_EX)) == expected  # type: ignore[misc]


def told(path: Path) -> dict[str, str | None]:
    """What the client tells of a file by attributes; `None` for what it does not."""

    def ask(name: str) -> str | None:
        try:
            return os.getxattr(path, f"user.drive.{name}").decode()
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
            return None

    return {name: ask(name) for name in ("id", "md5", "uncommitted")}


def md5_of(data: bytes) -> str:
    """As Drive writes it."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def test_attributes_are_the_clouds(drive: SimulatedDrive, mine: Path, mountpoint: Path) -> None:
    """Ids outlive rewriting, renaming and the machine; an MD5 is of what was uploaded last; nothing lists them."""
    (drive.cloud / "MyDrive" / "a").write_bytes(b"first")
    drive.set_faults(DriveFaults(stall_uploads=True))
    before = told(mine / "a")
    assert before == {"id": before["id"], "md5": md5_of(b"first"), "uncommitted": "0"}
    (mine / "a").write_bytes(b"other")
    assert told(mine / "a") == {**before, "uncommitted": "1"}
    (mine / "b").write_bytes(b"new")
    only_here = told(mine / "b")
    assert (only_here["md5"], only_here["uncommitted"]) == (None, "1")
    assert str(only_here["id"]).startswith("local-")
    drive.set_faults(DriveFaults())
    assert drive.flush(timeout_s=10)
    assert told(mine / "a") == {**before, "md5": md5_of(b"other")}
    assert told(mine / "b")["md5"] == md5_of(b"new")
    (mine / "a").rename(mine / "c")
    (mine / "a").write_bytes(b"another")
    assert drive.flush(timeout_s=10)
    drive.new_machine()
    drive.mount(mountpoint)
    assert told(mine / "c")["id"] == before["id"]
    assert len({told(mine / name)["id"] for name in "abc"}) == 3
    assert os.listxattr(mine / "c") == []
    assert told(mine)["md5"] is None


def test_attributes_are_not_answered_where_the_knob_says_so(make_drive: MakeDrive, mountpoint: Path) -> None:
    """As by a client that knows none."""
    drive = make_drive(dataclasses.replace(DriveKnobs.quick(), attributes=False))
    (drive.cloud / "MyDrive" / "a").write_bytes(b"first")
    drive.mount(mountpoint)
    path = mountpoint / "MyDrive" / "a"
    assert errno_of(lambda: os.getxattr(path, "user.drive.md5")) == errno.EOPNOTSUPP


def test_readonly_mount_refuses_writes(drive: SimulatedDrive, mountpoint: Path) -> None:
    """Every change on a read-only mount answers errno 30, reading works."""
    (drive.cloud / "MyDrive" / "a.txt").write_text("hello", encoding="utf-8")
    drive.mount(mountpoint, readonly=True)
    file = mountpoint / "MyDrive" / "a.txt"
    assert file.read_text(encoding="utf-8") == "hello"
    assert errno_of(lambda: file.write_text("x", encoding="utf-8")) == errno.EROFS
    assert errno_of(file.unlink) == errno.EROFS
    assert errno_of((file.parent / "folder").mkdir) == errno.EROFS


def test_disk_usage_is_the_accounts(make_drive: MakeDrive, mountpoint: Path) -> None:
    """Total and free space are the quota's, not the local disk's."""
    drive = make_drive(dataclasses.replace(DriveKnobs.quick(), quota_bytes=1 << 30))
    (drive.cloud / "MyDrive" / "a.bin").write_bytes(bytes(1 << 20))
    drive.mount(mountpoint)
    usage = shutil.disk_usage(mountpoint)
    assert (usage.total, usage.used) == (1 << 30, 1 << 20)


def test_full_account_refuses_writes_and_trash_keeps_it_full(make_drive: MakeDrive, mountpoint: Path) -> None:
    """Beyond the quota writing fails; deleting frees nothing, but truncating before deleting does."""
    drive = make_drive(dataclasses.replace(DriveKnobs.quick(), quota_bytes=1_000_000))
    drive.mount(mountpoint)
    mine = mountpoint / "MyDrive"
    (mine / "a.bin").write_bytes(bytes(700_000))
    assert errno_of(lambda: (mine / "b.bin").write_bytes(bytes(700_000))) == errno.ENOSPC
    for name, left in (("b.bin", 0), ("a.bin", 600_000)):
        os.truncate(mine / name, left)
        assert drive.flush(timeout_s=10)
        (mine / name).unlink()
    time.sleep(0.6)
    assert shutil.disk_usage(mine).used == pytest.approx(600_000, abs=4096)
    assert errno_of(lambda: (mine / "c.bin").write_bytes(bytes(700_000))) == errno.ENOSPC


def test_folder_over_the_limit_is_listed_after_some_attempts(make_drive: MakeDrive, mountpoint: Path) -> None:
    """A folder with 25 entries and a limit of 10 answers errno 5 twice; its files can be opened all the while."""
    drive = make_drive(dataclasses.replace(DriveKnobs.quick(), entry_limit=10))
    for number in range(25):
        (drive.cloud / "MyDrive" / f"{number:02}").write_bytes(b"x")
    drive.mount(mountpoint)
    mine = mountpoint / "MyDrive"
    assert errno_of(lambda: listed(mine)) == errno.EIO
    assert (mine / "07").read_bytes() == b"x"
    assert errno_of(lambda: listed(mine)) == errno.EIO
    assert len(listed(mine)) == 25


def test_download_quota_of_a_file_is_used_up(make_drive: MakeDrive, mountpoint: Path) -> None:
    """After the allowed number of cold opens a file answers errno 5, and others still read."""
    drive = make_drive(dataclasses.replace(DriveKnobs.quick(), downloads_per_file=1, block_bytes=1 << 20))
    for name in ("a.bin", "b.bin"):
        (drive.cloud / "MyDrive" / name).write_bytes(bytes(4 << 20))
    drive.mount(mountpoint)
    for name in ("a.bin", "b.bin"):
        with (mountpoint / "MyDrive" / name).open("rb", buffering=0) as file:
            assert len(os.pread(file.fileno(), 1000, 0)) == 1000
    with (mountpoint / "MyDrive" / "a.bin").open("rb", buffering=0) as file:
        assert errno_of(lambda: os.pread(file.fileno(), 1000, 3 << 20)) == errno.EIO


def test_files_are_written_changed_and_grown_like_anywhere(drive: SimulatedDrive, mine: Path) -> None:
    """Writing, appending, overwriting in the middle, growing and shrinking end up in the cloud as written."""
    file = mine / "a.bin"
    file.write_bytes(b"0123456789")
    assert drive.flush(timeout_s=10)
    with file.open("ab") as handle:
        handle.write(b"abc")
    with file.open("r+b") as handle:
        handle.seek(2)
        handle.write(b"XY")
        handle.truncate(12)
    assert file.read_bytes() == b"01XY456789ab"
    os.truncate(file, 14)
    assert file.read_bytes() == b"01XY456789ab\0\0"
    assert drive.flush(timeout_s=10)
    assert (drive.cloud / "MyDrive" / "a.bin").read_bytes() == b"01XY456789ab\0\0"


def test_large_file_changed_in_place_keeps_the_rest(drive: SimulatedDrive, mine: Path) -> None:
    """A few bytes changed in a file of many blocks that was never read here leave the others as they were."""
    content = bytearray(os.urandom(3_000_000))
    (drive.cloud / "MyDrive" / "large.bin").write_bytes(content)
    with (mine / "large.bin").open("r+b") as handle:
        handle.seek(2_000_000)
        handle.write(b"changed")
    content[2_000_000:2_000_007] = b"changed"
    assert drive.flush(timeout_s=10)
    assert (drive.cloud / "MyDrive" / "large.bin").read_bytes() == content


def test_open_for_change_without_a_change_uploads_nothing(drive: SimulatedDrive, mine: Path) -> None:
    """Opening a file for writing and closing it again leaves the cloud's version alone."""
    (drive.cloud / "MyDrive" / "a.bin").write_bytes(b"content")
    with (mine / "a.bin").open("r+b") as handle:
        assert handle.read() == b"content"
    assert drive.flush(timeout_s=10)
    assert drive.stats().uploads_done == 0


def test_deleted_file_stays_readable_where_it_is_open(drive: SimulatedDrive, mine: Path) -> None:
    """An open handle reads on after the file is deleted."""
    (drive.cloud / "MyDrive" / "a.bin").write_bytes(bytes(300_000))
    with (mine / "a.bin").open("rb", buffering=0) as handle:
        (mine / "a.bin").unlink()
        assert not (mine / "a.bin").exists()
        assert len(handle.read()) == 300_000
    assert listed(mine) == []


def test_folders_are_made_renamed_and_removed(drive: SimulatedDrive, mine: Path) -> None:
    """Trees can be moved and deleted, with files in them that are and are not in the cloud yet."""
    (mine / "a" / "b").mkdir(parents=True)
    (mine / "a" / "b" / "one.txt").write_text("1", encoding="utf-8")
    assert drive.flush(timeout_s=10)
    (mine / "a" / "b" / "two.txt").write_text("2", encoding="utf-8")
    (mine / "a").rename(mine / "c")
    assert {path.relative_to(mine).as_posix() for path in mine.rglob("*")} == {"c", "c/b", "c/b/one.txt", "c/b/two.txt"}
    assert (mine / "c" / "b" / "two.txt").read_text(encoding="utf-8") == "2"
    assert errno_of((mine / "c").rmdir) == errno.ENOTEMPTY
    assert drive.flush(timeout_s=10)
    assert listed(drive.cloud / "MyDrive" / "c" / "b") == ["one.txt", "two.txt"]
    shutil.rmtree(mine / "c")
    assert listed(mine) == []
    assert listed(drive.cloud / "MyDrive") == []


def test_modification_times_are_kept(drive: SimulatedDrive, mine: Path, tmp_path: Path) -> None:
    """`copy2` and `utime` set times that the cloud takes over, before and after the upload."""
    source = tmp_path / "source"
    source.write_bytes(b"x")
    os.utime(source, ns=(10**18, 10**18 + 123))
    shutil.copy2(source, mine / "copy")
    assert (mine / "copy").stat().st_mtime_ns == 10**18 + 123
    assert drive.flush(timeout_s=10)
    assert (drive.cloud / "MyDrive" / "copy").stat().st_mtime_ns == 10**18 + 123
    os.utime(mine / "copy", ns=(10**18, 10**18 + 456))
    assert (mine / "copy").stat().st_mtime_ns == 10**18 + 456
    before = time.time()
    with (mine / "copy").open("rb") as handle:
        os.utime(handle.fileno())
    assert (mine / "copy").stat().st_mtime >= before - 1


def test_a_listing_brings_what_stat_answers(make_drive: MakeDrive, mountpoint: Path) -> None:
    """Size, time and mode of each name come with it, over many pages: the kernel asks for none of them one by one."""
    drive = make_drive(DriveKnobs(listing_latency_s=0, listing_per_entry_s=0))
    cloud, mine = drive.cloud / "MyDrive" / "many", mountpoint / "MyDrive" / "many"
    cloud.mkdir()
    for number in range(1_000):
        file = cloud / f"{number:03}"
        file.write_bytes(bytes(number))
        os.utime(file, ns=(0, 10**18 + number * 1_500_000_001))
    (cloud / "500 folder").mkdir()
    drive.mount(mountpoint)
    (mine / "007").chmod(0o755)
    (mine / "008").write_bytes(b"not uploaded")
    files = [file for file in cloud.iterdir() if file.is_file()]
    wanted = {file.name: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
    found: dict[str, tuple[int, int]] = {}
    # The kernel knows them for half a second, which may pass before they are asked for on a busy machine.
    for _ in range(20):
        drive.set_faults(DriveFaults())
        with os.scandir(mine) as scan:
            entries = list(scan)
        drive.set_faults(DriveFaults(ops=(OpFault(op="stat", errno=errno.EIO),)))
        with contextlib.suppress(OSError):
            answers = {entry.name: entry.stat() for entry in entries if entry.name in wanted.keys() - {"008"}}
            found = {name: (answer.st_size, answer.st_mtime_ns) for name, answer in answers.items()}
            break
    assert found == {name: facts for name, facts in wanted.items() if name != "008"}
    assert answers.pop("007").st_mode == stat.S_IFREG | 0o755
    assert {answer.st_mode for answer in answers.values()} == {stat.S_IFREG | 0o600}
    assert [entry.name for entry in entries if entry.is_dir()] == ["500 folder"]
    # What is written here is not in the cloud's listing yet.
    drive.set_faults(DriveFaults())
    assert {entry.name: entry.stat().st_size for entry in os.scandir(mine)}["008"] == len(b"not uploaded")


def test_names_of_any_script_work(drive: SimulatedDrive, mine: Path) -> None:
    """Names with spaces and letters beyond ASCII are made, listed, moved and uploaded."""
    name = "Фото 中文 é.jpg"
    (mine / name).write_bytes(b"x")
    (mine / name).rename(mine / f"2 {name}")
    assert drive.flush(timeout_s=10)
    assert listed(mine) == listed(drive.cloud / "MyDrive") == [f"2 {name}"]


def test_hdf5_file_is_written_and_read_on_the_mount(drive: SimulatedDrive, mine: Path) -> None:
    """HDF5 works on a mount whose locks answer errno 38, as it does by its own default."""
    values = np.arange(100_000, dtype=np.int32).reshape(100, 1000)
    with h5py.File(mine / "a.h5", "w") as file:
        file["x"] = values
    assert drive.flush(timeout_s=10)
    with h5py.File(mine / "a.h5") as file:
        assert np.array_equal(file["x"][:], values)
    with h5py.File(drive.cloud / "MyDrive" / "a.h5") as file:
        assert np.array_equal(file["x"][:], values)


def test_cold_read_of_another_file_does_not_hold_up_a_rename(make_drive: MakeDrive, mountpoint: Path) -> None:
    """While one file takes its seconds to arrive, names in the same folder can be changed at once."""
    import threading

    knobs = DriveKnobs(cold_open_latency_s=1.5, listing_latency_s=0.0, visibility_s=math.inf)
    drive = make_drive(knobs)
    (drive.cloud / "MyDrive" / "slow.bin").write_bytes(b"x" * 1000)
    drive.mount(mountpoint)
    mine = mountpoint / "MyDrive"
    (mine / "a").touch()
    reader = threading.Thread(target=(mine / "slow.bin").read_bytes)
    reader.start()
    time.sleep(0.2)
    (mine / "a").rename(mine / "b")
    assert reader.is_alive()
    reader.join(10)
