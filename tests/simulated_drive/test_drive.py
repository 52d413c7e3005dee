"""The mounted Drive as a whole: what it shows, what reading costs, how it dies and comes back."""

from __future__ import annotations

import dataclasses
import errno
import math
import mmap
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from colabstage.errors import OptionError
from simulated_drive.knobs import DriveKnobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulated_drive.drive import SimulatedDrive
    from tests.simulated_drive.conftest import MakeDrive

pytestmark = pytest.mark.fuse
# Waits are long enough that a busy machine does not change which of two is the longer one.


def fill(drive: SimulatedDrive, count: int, size: int = 20_000) -> list[str]:
    """Put files of random bytes into the cloud; return their names below the drive's folder."""
    folder = drive.cloud / "MyDrive" / "data"
    folder.mkdir(exist_ok=True)
    names = [f"data/{number:03}.bin" for number in range(count)]
    for name in names:
        (drive.cloud / "MyDrive" / name).write_bytes(os.urandom(size))
    return names


def listed(folder: Path) -> list[str]:
    """The names in a folder."""
    return sorted(entry.name for entry in folder.iterdir())


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def test_mount_shows_what_is_in_the_cloud_under_both_spellings(drive: SimulatedDrive, mountpoint: Path) -> None:
    """Files read the same as in the cloud; the spelling with the space works and is not listed."""
    (drive.cloud / "MyDrive" / "a.txt").write_text("hello", encoding="utf-8")
    (drive.cloud / "Shareddrives" / "team").mkdir()
    drive.mount(mountpoint)
    assert listed(mountpoint) == ["MyDrive", "Shareddrives"]
    assert (mountpoint / "MyDrive" / "a.txt").read_text(encoding="utf-8") == "hello"
    assert (mountpoint / "My Drive" / "a.txt").read_text(encoding="utf-8") == "hello"
    assert listed(mountpoint / "Shared drives") == ["team"]


def test_mount_table_names_the_file_system_as_on_colab(drive: SimulatedDrive, mountpoint: Path) -> None:
    """The type is `fuse.drive`, which is what tools look for; what is mounted says that it is for practice."""
    drive.mount(mountpoint)
    lines = [line.split()[:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    assert ["simulated-drive", str(mountpoint), "fuse.drive"] in lines


def test_first_read_is_cold_and_the_next_one_warm(make_drive: MakeDrive, mountpoint: Path) -> None:
    """The first read of a file pays the latency of its open; reading it again does not."""
    drive = make_drive(dataclasses.replace(DriveKnobs.good_day(), cold_open_latency_s=0.5))
    (name,) = fill(drive, 1)
    drive.mount(mountpoint)
    file = mountpoint / "MyDrive" / name
    file.stat()
    cold, warm = seconds(file.read_bytes), seconds(file.read_bytes)
    assert cold >= 0.5
    assert warm < cold / 2
    stats = drive.stats()
    assert (stats.cold_opens, stats.warm_opens, stats.bytes_cold, stats.bytes_warm) == (1, 1, 20_000, 20_000)


def test_small_files_are_read_faster_by_many_readers(make_drive: MakeDrive, mountpoint: Path) -> None:
    """Sixteen readers need a small part of the time that one needs, as latency is what small files cost."""
    drive = make_drive(dataclasses.replace(DriveKnobs.good_day(), cold_open_latency_s=0.15))
    names = fill(drive, 52)
    drive.mount(mountpoint)
    files = [mountpoint / "MyDrive" / name for name in names]
    listed(files[0].parent)

    def read(file: Path) -> bytes:
        return file.read_bytes()

    with ThreadPoolExecutor(16) as pool:
        together = seconds(lambda: list(pool.map(read, files[:48])))
    alone = seconds(lambda: [read(file) for file in files[48:]])
    assert alone / 4 > 0.15
    assert together / 48 < alone / 4 / 5


def test_ranges_of_one_file_share_its_stream(make_drive: MakeDrive, mountpoint: Path) -> None:
    """Four threads reading four quarters of a file, each by its own handle, are no faster than the file's rate."""
    drive = make_drive(dataclasses.replace(DriveKnobs.good_day(), stream_bytes_per_s=10e6, readahead_bytes=0))
    (name,) = fill(drive, 1, size=4_000_000)
    drive.mount(mountpoint)

    def read_quarter(number: int) -> bytes:
        with (mountpoint / "MyDrive" / name).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), 1_000_000, number * 1_000_000)

    with ThreadPoolExecutor(4) as pool:
        start = time.perf_counter()
        parts = list(pool.map(read_quarter, range(4)))
        elapsed = time.perf_counter() - start
    assert b"".join(parts) == (drive.cloud / "MyDrive" / name).read_bytes()
    assert elapsed >= 0.4


def test_reading_a_part_does_not_fetch_the_whole(drive: SimulatedDrive, mountpoint: Path) -> None:
    """A thousand bytes in the middle of a 10 GB file bring a few blocks of it, which then lie on the local disk."""
    big = drive.cloud / "MyDrive" / "big.bin"
    with big.open("wb") as file:
        file.seek(5_000_000_000)
        file.write(b"needle")
        file.truncate(10_000_000_000)
    drive.mount(mountpoint)
    with (mountpoint / "MyDrive" / "big.bin").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 6, 5_000_000_000) == b"needle"
    fetched = drive.stats().bytes_cold
    assert 0 < fetched <= 4 << 20
    (cached,) = (drive.cloud.parent / "cache" / "content").glob("*.part")
    assert cached.stat().st_blocks * 512 >= fetched


def test_content_read_takes_space_on_the_local_disk(drive: SimulatedDrive, mountpoint: Path) -> None:
    """What came through the mount is kept, byte for byte, in the cache."""
    names = [*fill(drive, 3, size=50_000), "large.bin"]
    (drive.cloud / "MyDrive" / "large.bin").write_bytes(os.urandom(3_000_000))
    drive.mount(mountpoint)
    for name in names:
        (mountpoint / "MyDrive" / name).read_bytes()
    content = drive.cloud.parent / "cache" / "content"
    assert sum(file.stat().st_blocks * 512 for file in content.iterdir()) >= 3_150_000


def test_mapped_file_reads_the_same(drive: SimulatedDrive, mountpoint: Path) -> None:
    """Memory mapping works, as it does on Drive until it breaks."""
    (name,) = fill(drive, 1, size=1_000_000)
    drive.mount(mountpoint)
    with (mountpoint / "MyDrive" / name).open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert view[:] == (drive.cloud / "MyDrive" / name).read_bytes()


def test_cache_outlives_the_mount_but_not_the_machine(drive: SimulatedDrive, mountpoint: Path) -> None:
    """Small and large files are warm after a remount, and cold on a new machine."""
    names = [*fill(drive, 2), "large.bin"]
    (drive.cloud / "MyDrive" / "large.bin").write_bytes(os.urandom(2_000_000))

    def read_all() -> tuple[int, int]:
        drive.mount(mountpoint)
        for name in names:
            assert (mountpoint / "MyDrive" / name).read_bytes() == (drive.cloud / "MyDrive" / name).read_bytes()
        stats = drive.stats()
        return stats.cold_opens, stats.warm_opens

    assert read_all() == (3, 0)
    drive.unmount()
    assert read_all() == (0, 3)
    drive.new_machine()
    assert drive.mountpoint is None
    assert read_all() == (3, 0)


def test_listing_is_slow_once_and_quick_after(make_drive: MakeDrive, mountpoint: Path) -> None:
    """The first look into a folder pays for its entries, later ones and looks at single files do not."""
    knobs = dataclasses.replace(DriveKnobs.good_day(), listing_latency_s=0.8, listing_per_entry_s=0.02)
    drive = make_drive(knobs)
    names = fill(drive, 20)
    drive.mount(mountpoint)
    (mountpoint / "MyDrive").stat()
    listed(mountpoint / "MyDrive")
    cold = seconds(lambda: listed(mountpoint / "MyDrive" / "data"))
    warm = seconds(lambda: listed(mountpoint / "MyDrive" / "data"))
    stats = seconds(lambda: [(mountpoint / "MyDrive" / name).stat() for name in names])
    assert cold >= 1.2
    assert warm < cold / 4
    assert stats < cold / 2


def test_time_scale_shortens_every_wait(make_drive: MakeDrive, mountpoint: Path) -> None:
    """At a tenth of the time scale, a second's latency takes a tenth of a second."""
    drive = make_drive(DriveKnobs(cold_open_latency_s=2.0, listing_latency_s=0.0, time_scale=0.1))
    (name,) = fill(drive, 1)
    drive.mount(mountpoint)
    assert 0.2 <= seconds((mountpoint / "MyDrive" / name).read_bytes) < 2.0


def test_dead_client_answers_errno_107_until_the_next_mount(drive: SimulatedDrive, mountpoint: Path) -> None:
    """After the client's death every call fails, also on files that were open; a new mount works again."""
    (name,) = fill(drive, 1)
    drive.mount(mountpoint)
    file = mountpoint / "MyDrive" / name
    handle = os.open(file, os.O_RDONLY)
    drive.kill()
    calls: list[Callable[[], object]] = [
        lambda: listed(mountpoint),
        file.stat,
        file.read_bytes,
        lambda: os.pread(handle, 10, 0),
        lambda: os.close(handle),
    ]
    for call in calls:
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ENOTCONN
    assert not drive.is_alive()
    drive.unmount()
    drive.mount(mountpoint)
    assert file.read_bytes() == (drive.cloud / "MyDrive" / name).read_bytes()


def test_dying_client_first_denies_that_files_exist(make_drive: MakeDrive, mountpoint: Path) -> None:
    """At the set number of opens, existing files are not found for a while, and then nothing works any more."""
    knobs = DriveKnobs(cold_open_latency_s=0, listing_latency_s=0, death_after_opens=2, death_enoent_s=1.0)
    drive = make_drive(knobs)
    names = fill(drive, 2)
    drive.mount(mountpoint)
    (mountpoint / "MyDrive" / names[0]).read_bytes()
    with pytest.raises(FileNotFoundError):
        (mountpoint / "MyDrive" / names[1]).read_bytes()
    deadline = time.monotonic() + 10
    while drive.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(OSError) as caught:
        (mountpoint / "MyDrive" / names[1]).read_bytes()
    assert caught.value.errno == errno.ENOTCONN


def test_dead_mount_of_another_process_is_replaced(make_drive: MakeDrive, mountpoint: Path) -> None:
    """A mountpoint that a dead client still occupies can be mounted on, and the dead one's owner leaves that alone."""
    dead, living = make_drive(), make_drive()
    dead.mount(mountpoint)
    dead.kill()
    living.mount(mountpoint)
    dead.unmount()
    assert listed(mountpoint) == ["MyDrive"]


def test_mounting_over_something_is_refused(make_drive: MakeDrive, mountpoint: Path) -> None:
    """A folder with files, a mounted folder, and a second mount of one Drive are refused by name."""
    first, second = make_drive(), make_drive()
    mountpoint.mkdir()
    (mountpoint / "mine.txt").touch()
    with pytest.raises(OptionError, match="not empty"):
        first.mount(mountpoint)
    (mountpoint / "mine.txt").unlink()
    first.mount(mountpoint)
    with pytest.raises(OptionError, match="already"):
        second.mount(mountpoint)
    with pytest.raises(OptionError, match="already"):
        first.mount(mountpoint.with_name("other"))
    assert listed(mountpoint) == ["MyDrive"]


def test_unmounting_twice_is_fine(drive: SimulatedDrive, mountpoint: Path) -> None:
    """Leaving the context unmounts, and unmounting again changes nothing."""
    with drive:
        drive.mount(mountpoint)
        assert drive.is_alive()
    drive.unmount()
    assert not drive.is_alive()
    assert listed(mountpoint) == []


def test_unmounting_works_while_a_file_is_open(drive: SimulatedDrive, mountpoint: Path) -> None:
    """An open handle does not keep the Drive mounted; it gets errno 107."""
    (name,) = fill(drive, 1)
    drive.mount(mountpoint)
    with (mountpoint / "MyDrive" / name).open("rb", buffering=0) as handle:
        drive.unmount()
        with pytest.raises(OSError) as caught:
            handle.read()
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    assert not os.path.ismount(mountpoint)


_MOUNT_AND_WAIT = """
import sys, time
from pathlib import Path
from simulated_drive.drive import SimulatedDrive
drive = SimulatedDrive(Path(sys.argv[1]))
drive.mount(Path(sys.argv[2]))
print(drive._server.pid, flush=True)
time.sleep(60)
"""


def test_killed_parent_leaves_neither_mount_nor_server(tmp_path: Path, mountpoint: Path) -> None:
    """When the process that mounted the Drive is killed, its client unmounts and ends."""
    command = [sys.executable, "-c", _MOUNT_AND_WAIT, str(tmp_path / "home"), str(mountpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        assert os.path.ismount(mountpoint)
        parent.send_signal(signal.SIGKILL)
    server.wait(10)
    assert not os.path.ismount(mountpoint)


def test_change_elsewhere_shows_late_and_own_change_at_once(make_drive: MakeDrive, mountpoint: Path) -> None:
    """A file uploaded elsewhere stays invisible until the visibility time is over; one written here is there."""
    drive = make_drive(dataclasses.replace(DriveKnobs.good_day(), visibility_s=1.5))
    drive.mount(mountpoint)
    folder = mountpoint / "MyDrive"
    assert listed(folder) == []
    (drive.cloud / "MyDrive" / "theirs").touch()
    (folder / "mine").touch()
    assert listed(folder) == ["mine"]
    assert not (folder / "theirs").exists()
    deadline = time.monotonic() + 10
    while not (folder / "theirs").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert listed(folder) == ["mine", "theirs"]


def test_remount_shows_what_would_never_show(make_drive: MakeDrive, mountpoint: Path) -> None:
    """With infinite visibility time only a new mount sees changes made elsewhere."""
    drive = make_drive(dataclasses.replace(DriveKnobs.quick(), visibility_s=math.inf))
    drive.mount(mountpoint)
    assert listed(mountpoint / "MyDrive") == []
    (drive.cloud / "MyDrive" / "theirs").touch()
    time.sleep(0.6)
    assert listed(mountpoint / "MyDrive") == []
    drive.unmount()
    drive.mount(mountpoint)
    assert listed(mountpoint / "MyDrive") == ["theirs"]
