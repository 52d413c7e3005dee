"""What each setting of a simulated Drive does: its speed, its limits, and when changes made elsewhere show."""

import errno
import fcntl
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults
from tests.simulated_drive.conftest import MakeDrive
from tests.simulated_drive.test_filesystem import errno_of
from tests.support.images import make_tree

pytestmark = pytest.mark.fuse

# Long enough that even on a busy machine, the longer of two waits stays the longer one.
COLD_S, LISTING_S, ENTRY_S, RATE = 0.3, 0.8, 0.02, 10e6


def seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedDrive]:
    """A mounted Drive that takes its time."""
    from simulated_drive.drive import SimulatedDrive
    from simulated_drive.knobs import DriveKnobs

    home = tmp_path_factory.mktemp("slow")
    knobs = DriveKnobs(
        cold_open_latency_s=COLD_S,
        listing_latency_s=LISTING_S,
        listing_per_entry_s=ENTRY_S,
        stream_bytes_per_s=RATE,
        upload_bytes_per_s=0.5e6,
    )
    with SimulatedDrive(home / "home", knobs=knobs) as drive:
        cloud = drive.cloud / "MyDrive"
        make_tree(cloud, {f"listed/{number}": b"x" for number in range(20)})
        make_tree(cloud, {f"small/{number:02}": os.urandom(20_000) for number in range(28)})
        make_tree(cloud, {"large.bin": os.urandom(4_000_000)})
        drive.mount(home / "drive")
        yield drive


@pytest.fixture
def mine(slow: SimulatedDrive) -> Path:
    assert slow.mountpoint is not None
    return slow.mountpoint / "MyDrive"


def test_listing_is_slow_once(mine: Path) -> None:
    """The first listing of a folder pays for its entries; later ones, and access to single files, do not."""
    names_in(mine)
    cold, warm = (seconds(lambda: names_in(mine / "listed")) for _ in range(2))
    stats = seconds(lambda: [(mine / "listed" / f"{number}").stat() for number in range(20)])
    assert cold >= LISTING_S + 20 * ENTRY_S
    assert warm < cold / 4
    assert stats < cold / 2


def test_first_read_is_cold_and_many_readers_share_the_wait(slow: SimulatedDrive, mine: Path) -> None:
    """Reading again costs little, and sixteen readers need a small part of the time that one needs."""
    names_in(mine / "small")
    before = slow.stats()
    alone = [seconds((mine / "small" / f"{number:02}").read_bytes) for number in range(4)]
    assert min(alone) >= COLD_S
    assert seconds((mine / "small/00").read_bytes) < min(alone) / 2
    after = slow.stats()
    assert (after.cold_opens - before.cold_opens, after.bytes_cold - before.bytes_cold) == (4, 80_000)
    assert (after.warm_opens - before.warm_opens, after.bytes_warm - before.bytes_warm) == (1, 20_000)
    files = [mine / "small" / f"{number:02}" for number in range(4, 28)]
    with ThreadPoolExecutor(16) as pool:
        together = seconds(lambda: list(pool.map(lambda file: file.read_bytes(), files)))
    assert together / 24 < sum(alone) / 4 / 4


def test_ranges_of_one_file_share_its_stream(slow: SimulatedDrive, mine: Path) -> None:
    """Four threads that read four quarters, each by its own handle, are no faster than the file's rate."""

    def read_quarter(number: int) -> bytes:
        with (mine / "large.bin").open("rb", buffering=0) as file:
            return os.pread(file.fileno(), 1_000_000, number * 1_000_000)

    with ThreadPoolExecutor(4) as pool:
        start = time.perf_counter()
        parts = list(pool.map(read_quarter, range(4)))
    assert time.perf_counter() - start >= 4e6 / RATE
    assert b"".join(parts) == (slow.cloud / "MyDrive/large.bin").read_bytes()


def test_uploads_take_their_time_side_by_side(slow: SimulatedDrive, mine: Path) -> None:
    """Four files at 0.5 MB/s each; one that is rewritten during its upload arrives once, in its last version."""
    done = slow.stats().uploads_done
    # So that writing waits for no upload, however slow this machine is.
    slow.set_faults(DriveFaults(stall_uploads=True))
    for number in range(3):
        (mine / f"{number}.bin").write_bytes(bytes(600_000))
    for number in range(3):
        (mine / "state.bin").write_bytes(bytes([number]) * 30_000)
    assert slow.stats().uploads_done == done
    start = time.perf_counter()
    slow.set_faults(DriveFaults())
    assert slow.flush(timeout_s=30)
    assert 1.2 <= time.perf_counter() - start < 3 * 1.2
    assert (slow.cloud / "MyDrive/state.bin").read_bytes() == bytes([2]) * 30_000
    assert slow.stats().uploads_done - done == 4


def test_locks_and_attributes_are_missing(make_drive: MakeDrive, mountpoint: Path) -> None:
    drive = make_drive(attributes=False)
    drive.mount(mountpoint)
    mine = mountpoint / "MyDrive"
    with (mine / "lock").open("wb") as file:
        for lock in (fcntl.flock, fcntl.lockf):
            assert errno_of(lambda lock=lock: lock(file, fcntl.LOCK_EX)) == errno.ENOSYS  # type: ignore[misc]
    assert errno_of(lambda: os.getxattr(mine / "lock", "user.drive.md5")) == errno.EOPNOTSUPP


def test_a_full_account_refuses_writes_and_trash_keeps_it_full(make_drive: MakeDrive, mountpoint: Path) -> None:
    """Total and free space are the quota's. Deleting frees nothing, but truncating before deleting does."""
    drive = make_drive(quota_bytes=1_000_000)
    drive.mount(mountpoint)
    mine = mountpoint / "MyDrive"
    (mine / "a.bin").write_bytes(bytes(700_000))
    assert [*shutil.disk_usage(mine)[:2]] == pytest.approx([1_000_000, 700_000], abs=4096)
    assert errno_of(lambda: (mine / "b.bin").write_bytes(bytes(700_000))) == errno.ENOSPC
    for name, left in (("b.bin", 0), ("a.bin", 600_000)):
        os.truncate(mine / name, left)
        assert drive.flush(timeout_s=10)
        (mine / name).unlink()
    time.sleep(0.6)
    assert shutil.disk_usage(mine).used == pytest.approx(600_000, abs=4096)
    assert errno_of(lambda: (mine / "c.bin").write_bytes(bytes(700_000))) == errno.ENOSPC


@pytest.mark.parametrize("visibility_s", [1.5, math.inf])
def test_a_change_elsewhere_shows_late_and_an_own_one_at_once(
    make_drive: MakeDrive, mountpoint: Path, visibility_s: float
) -> None:
    """After the visibility time, or after the next mount."""
    drive = make_drive(time_scale=1.0, listing_latency_s=0, visibility_s=visibility_s)
    drive.mount(mountpoint)
    folder = mountpoint / "MyDrive"
    assert names_in(folder) == []
    (drive.cloud / "MyDrive/theirs").touch()
    (folder / "mine").touch()
    assert (names_in(folder), (folder / "theirs").exists()) == (["mine"], False)
    if math.isinf(visibility_s):
        time.sleep(0.6)
        assert names_in(folder) == ["mine"]
        drive.unmount()
        drive.mount(mountpoint)
    deadline = time.monotonic() + 10
    while not (folder / "theirs").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert names_in(folder) == ["mine", "theirs"]
