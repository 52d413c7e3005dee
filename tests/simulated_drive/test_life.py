"""The life of a mount: what the cache keeps, what waits for its upload, how the client dies and comes back."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from colabstage.errors import NotSupportedHereError, OptionError
from colabstage.machine.mounts import unmount_lazily
from simulated_drive.drive import SimulatedDrive, fuse_problem, make_mountpoint
from simulated_drive.knobs import DriveFaults
from tests.simulated_drive.conftest import MakeDrive
from tests.simulated_drive.test_filesystem import errno_of
from tests.support.images import make_tree
from tests.support.invariants import contents

pytestmark = pytest.mark.fuse

STALLED = DriveFaults(stall_uploads=True)


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_mount_shows_the_cloud_as_on_colab(drive: SimulatedDrive, mountpoint: Path) -> None:
    """Under both spellings, one of which is listed; the mount table has the type that tools look for."""
    make_tree(drive.cloud, {"MyDrive/a.txt": "hello", "Shareddrives/team/b": "x"})
    drive.mount(mountpoint)
    assert names_in(mountpoint) == ["MyDrive", "Shareddrives"]
    assert (mountpoint / "MyDrive/a.txt").read_bytes() == (mountpoint / "My Drive/a.txt").read_bytes() == b"hello"
    assert names_in(mountpoint / "Shared drives") == ["team"]
    lines = [line.split()[:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    assert ["simulated-drive", str(mountpoint), "fuse.drive"] in lines


def test_the_cache_outlives_the_mount_but_not_the_machine(drive: SimulatedDrive, mountpoint: Path) -> None:
    """Files that were read or written are warm after a remount, and cold on a new machine."""
    make_tree(drive.cloud / "MyDrive", {"small.bin": os.urandom(1000), "large.bin": os.urandom(2_000_000)})

    def read_all() -> tuple[int, int]:
        before = drive.stats()
        assert contents(mountpoint / "MyDrive") == contents(drive.cloud / "MyDrive")
        after = drive.stats()
        return after.cold_opens - before.cold_opens, after.warm_opens - before.warm_opens

    drive.mount(mountpoint)
    assert read_all() == (2, 0)
    make_tree(mountpoint / "MyDrive", {"written.bin": os.urandom(1000), "long.bin": os.urandom(1_000_000)})
    assert drive.flush(timeout_s=10)
    for _ in range(2):
        assert read_all() == (0, 4)
        drive.unmount()
        drive.mount(mountpoint)
    content = drive.cloud.parent / "cache/content"
    assert sum(file.stat().st_blocks * 512 for file in content.iterdir()) >= 3_002_000
    drive.new_machine()
    assert drive.mountpoint is None
    drive.mount(mountpoint)
    assert read_all() == (4, 0)


def test_what_is_written_is_here_at_once_and_in_the_cloud_later(drive: SimulatedDrive, mountpoint: Path) -> None:
    """A flush waits for it, and fails when time is over; the cloud has the old file until the upload is complete, and
    never a temporary name or a file deleted meanwhile."""
    cloud, mine = drive.cloud / "MyDrive", mountpoint / "MyDrive"
    make_tree(cloud, {"pack.h5": b"old"})
    drive.set_faults(STALLED)
    drive.mount(mountpoint)
    make_tree(mine, {"pack.h5.tmp": b"new", "deleted": b"x"})
    (mine / "pack.h5.tmp").replace(mine / "pack.h5")
    (mine / "deleted").unlink()
    assert contents(mine) == {"pack.h5": b"new"}
    assert contents(cloud) == {"pack.h5": b"old"}
    assert not drive.flush(timeout_s=0.2)
    stats = drive.stats()
    assert (stats.uploads_pending, stats.bytes_pending) == (1, 3)
    drive.set_faults(DriveFaults())
    assert drive.flush(timeout_s=10)
    assert contents(cloud) == {"pack.h5": b"new"}
    with (mine / "log.txt").open("wb", buffering=0) as file:
        file.write(b"begin")
        assert not drive.flush(timeout_s=0.2), "uploading begins when the last writer closes the file"
    assert drive.flush(timeout_s=10)
    assert contents(cloud) == {"pack.h5": b"new", "log.txt": b"begin"}
    assert drive.stats().uploads_done == 2


def test_uploads_wait_for_the_next_mount_and_are_lost_with_the_machine(drive: SimulatedDrive, mountpoint: Path) -> None:
    """They survive an unmount and the client's death, and are visible again."""
    cloud, mine = drive.cloud / "MyDrive", mountpoint / "MyDrive"
    drive.set_faults(STALLED)
    drive.mount(mountpoint)
    make_tree(mine, {"folder/a.bin": b"first"})
    drive.unmount()
    assert (drive.stats().uploads_pending, drive.flush(timeout_s=0.1)) == (1, False)
    drive.mount(mountpoint)
    make_tree(mine, {"folder/b.bin": b"second"})
    drive.kill()
    drive.unmount()
    drive.set_faults(DriveFaults())
    drive.mount(mountpoint)
    assert contents(mine)["folder/b.bin"] == b"second"
    assert drive.flush(timeout_s=10)
    assert contents(cloud) == {"folder/a.bin": b"first", "folder/b.bin": b"second"}
    drive.set_faults(STALLED)
    make_tree(mine, {"folder/a.bin": b"lost", "c.bin": b"lost"})
    drive.new_machine()
    drive.set_faults(DriveFaults())
    drive.mount(mountpoint)
    assert drive.flush(timeout_s=10)
    assert contents(mine) == contents(cloud) == {"folder/a.bin": b"first", "folder/b.bin": b"second"}


def test_a_dead_client_answers_errno_107_until_the_next_mount(make_drive: MakeDrive, mountpoint: Path) -> None:
    """Also for open files. Another Drive may be mounted there, which the dead one's owner leaves alone."""
    dead, living = make_drive(), make_drive()
    make_tree(dead.cloud / "MyDrive", {"a.bin": b"content"})
    dead.mount(mountpoint)
    file = mountpoint / "MyDrive/a.bin"
    handle = os.open(file, os.O_RDONLY)
    dead.kill()
    calls: list[Callable[[], object]] = [
        lambda: names_in(mountpoint),
        file.stat,
        file.read_bytes,
        lambda: os.pread(handle, 10, 0),
        lambda: os.close(handle),
    ]
    assert [errno_of(call) for call in calls] == [errno.ENOTCONN] * len(calls)
    assert not dead.is_alive()
    dead.unmount()
    dead.mount(mountpoint)
    assert file.read_bytes() == b"content"
    dead.kill()
    living.mount(mountpoint)
    dead.unmount()
    assert contents(mountpoint / "MyDrive") == {}


def test_mounting_over_something_is_refused(make_drive: MakeDrive, mountpoint: Path) -> None:
    """A folder with files, a mounted folder, and a second mount of one Drive."""
    first, second = make_drive(), make_drive()
    make_tree(mountpoint, {"mine.txt": "x"})
    with pytest.raises(OptionError, match="not empty"):
        first.mount(mountpoint)
    (mountpoint / "mine.txt").unlink()
    first.mount(mountpoint)
    for drive, place in ((second, mountpoint), (first, mountpoint.with_name("other"))):
        with pytest.raises(OptionError, match="already"):
            drive.mount(place)
    assert names_in(mountpoint) == ["MyDrive"]
    make_mountpoint(mountpoint.with_name("a") / "b")
    assert names_in(mountpoint.with_name("a")) == ["b"]


def test_unmounting_works_twice_and_while_a_file_is_open(drive: SimulatedDrive, mountpoint: Path) -> None:
    make_tree(drive.cloud / "MyDrive", {"a.bin": b"content"})
    with drive:
        drive.mount(mountpoint)
        with (mountpoint / "MyDrive/a.bin").open("rb", buffering=0) as handle:
            drive.unmount()
            assert errno_of(handle.read) in (errno.ENOTCONN, errno.ECONNABORTED)
    drive.unmount()
    assert (drive.is_alive(), mountpoint.is_mount(), names_in(mountpoint)) == (False, False, [])


_MOUNT_AND_WAIT = """
import sys, time
from pathlib import Path
from simulated_drive import drive as module
from tests.support.forked_drive import ForkedClient
if sys.argv[3] == "True":
    module.start_client = ForkedClient
drive = module.SimulatedDrive(Path(sys.argv[1]))
drive.mount(Path(sys.argv[2]))
print(drive._server.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("is_forked", [False, True])
def test_a_killed_parent_leaves_neither_mount_nor_client(tmp_path: Path, mountpoint: Path, is_forked: bool) -> None:
    """That of a test's process ends although it is stopped, or a test that hangs on its mount would never end."""
    command = [sys.executable, "-c", _MOUNT_AND_WAIT, str(tmp_path / "home"), str(mountpoint), str(is_forked)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server = psutil.Process(int(parent.stdout.readline()))
        assert os.path.ismount(mountpoint)
        if is_forked:
            server.suspend()
        parent.send_signal(signal.SIGKILL)
    try:
        server.wait(10)
    finally:
        if is_forked:  # so suddenly that it unmounts nothing
            with suppress(psutil.NoSuchProcess):
                server.kill()
            unmount_lazily(mountpoint)
    assert not os.path.ismount(mountpoint)


def test_without_fuse_the_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounting raises it before anything is created."""
    monkeypatch.setenv("PATH", str(tmp_path))
    problem = fuse_problem()
    assert problem is not None
    assert "apt-get install fuse3" in problem
    with SimulatedDrive(tmp_path / "home") as drive, pytest.raises(NotSupportedHereError) as caught:
        drive.mount(tmp_path / "drive")
    assert str(caught.value) == problem
    assert not (tmp_path / "drive").exists()
