"""The mount table: longest prefix, odd names, links, slow kinds; and the probe under a deadline."""

import mmap
import subprocess
import time
from pathlib import Path

import pytest

from colabstage.machine.mounts import (
    Mount,
    MountProbe,
    drive_root,
    follow_links,
    is_slow_mount,
    list_mounts,
    mount_of,
    path_on_drive,
    place_in,
    probe_mount,
    slow_reason,
)
from tests.machine.conftest import MakeSilentMount

# Of two mounts at one place, the later hides the earlier; the number of optional fields before the dash varies.
MOUNTS = list_mounts(r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:40 / /content/drive rw,nosuid,nodev,relatime - fuse.drive drive ro,user_id=0
24 22 0:41 / /mnt/my\040disk ro,nosuid shared:7 - nfs4 server:/a\134b rw
25 22 0:42 / /content/drive2 rw - tmpfs tmpfs rw
26 22 0:43 / /twice rw - ext4 /dev/vdb rw
27 26 0:44 / /twice rw - fuse.gcsfuse bucket rw
""")


@pytest.mark.parametrize(
    ("path", "mountpoint", "is_slow"),
    [
        ("/content/drive/MyDrive/a b/c", "/content/drive", True),
        ("/content/drivers", "/", False),
        ("/content/drive/../x", "/", False),
        ("/mnt/my disk/x", "/mnt/my disk", True),
        ("/twice/x", "/twice", True),
    ],
)
def test_a_path_lies_on_the_mount_with_the_longest_matching_folders(path: str, mountpoint: str, is_slow: bool) -> None:
    found = mount_of(path, mounts=MOUNTS)
    assert (found.mountpoint, slow_reason(found) is not None) == (Path(mountpoint), is_slow)
    assert MOUNTS["/mnt/my disk"] == Mount(Path("/mnt/my disk"), "nfs4", "server:/a\\b", readonly=True)


def test_links_into_a_slow_mount_are_followed_without_touching_it(tmp_path: Path) -> None:
    """A local link to Drive counts as Drive, in one step or in several; a circle of links ends."""
    slow = Mount(tmp_path / "drive", "fuse.drive", "drive")
    table = {**list_mounts(), str(slow.mountpoint): slow}
    (tmp_path / "deep").mkdir()
    (tmp_path / "direct").symlink_to(tmp_path / "drive/MyDrive")
    (tmp_path / "deep/relative").symlink_to("../direct/data")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for name in ("direct", "direct/x", "deep/relative/y"):
        assert mount_of(tmp_path / name, mounts=table) == slow
    for name in ("deep", "a"):
        assert mount_of(tmp_path / name, mounts=table) == mount_of(tmp_path)
    assert not is_slow_mount(tmp_path)
    # Nor if all of a machine is on one.
    everything = Mount(Path("/"), "nfs4", "server:/")
    assert follow_links("/a/./c/../b", mounts={"/": everything}) == Path("/a/b")


@pytest.mark.parametrize(
    ("kinds", "is_slow"),
    [
        ("fuse.drive fuse.gcsfuse fuse.sshfs fuse nfs4 cifs 9p lustre", True),
        # Views of this machine's own disks.
        ("ext4 overlay tmpfs fuseblk fuse.fuse-overlayfs", False),
    ],
)
def test_kinds_of_mounts_are_slow_or_not(kinds: str, is_slow: bool) -> None:
    assert {slow_reason(Mount(Path("/mnt"), kind, "")) is not None for kind in kinds.split()} == {is_slow}
    # gVisor shows a container's own disk like this.
    assert slow_reason(Mount(Path("/"), "9p", "none")) is None


def test_the_probe_tells_alive_from_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any language, and from a working folder that no longer exists, as when its mount dies."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert probe_mount(tmp_path) == MountProbe("alive")
    assert probe_mount(tmp_path / "no") == MountProbe("missing", "No such file or directory")


def test_paths_on_a_mount_that_hangs_are_judged_without_touching_it(
    tmp_path: Path, silent_mount: MakeSilentMount
) -> None:
    """The probe says 'silent' at the deadline, and 'dead' once the client is gone."""
    mount = silent_mount(tmp_path / "drive", "fuse.drive")
    root = mount.place
    (tmp_path / "link").symlink_to(root / "My Drive/data")
    started = time.monotonic()
    for path, spelt in {
        root / "My Drive/My Drive/a b": "MyDrive/My Drive/a b",
        root / "Shared drives/team/x": "Shareddrives/team/x",
        root / "MyDrive/x": "MyDrive/x",
        root: ".",
        tmp_path / "link/x": "MyDrive/data/x",
    }.items():
        assert (drive_root(path), path_on_drive(path)) == (root, Path(spelt))
        assert place_in(path, root) == Path(spelt)
    assert probe_mount(root / "MyDrive", timeout_s=0.5) == MountProbe("silent", "no answer")
    assert time.monotonic() - started < 5.0
    mount.kill()
    assert probe_mount(root / "MyDrive") == MountProbe("dead", "Transport endpoint is not connected")


@pytest.mark.parametrize(
    ("path", "folder", "expected"),
    [
        ("/data/a/b", "/data", "a/b"),
        ("/data/../data/a", "/data/x/..", "a"),
        ("/database", "/data", None),
        ("/content/drive/My Drive/a", "/content/drive/MyDrive", "a"),
    ],
)
def test_a_path_is_in_a_folder_whatever_the_two_are_called(path: str, folder: str, expected: str | None) -> None:
    """Using only the mount table: none of these exists."""
    found = place_in(path, folder, mounts=MOUNTS)
    assert (None if found is None else str(found)) == expected


def test_a_path_is_in_a_folder_through_links(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "a").mkdir(parents=True)
    (tmp_path / "to").symlink_to("data")
    (tmp_path / "into").symlink_to(tmp_path / "to" / "a")
    (data / "out").symlink_to(tmp_path)
    cases: list[tuple[Path, Path, str | None]] = [
        (tmp_path / "to/new/x", data, "new/x"),
        (data / "a/x", tmp_path / "to", "a/x"),
        (tmp_path / "into/x", data, "a/x"),
        (tmp_path / "into", data / "a", "."),
        (data / "out/x", data, None),
    ]
    for path, folder, expected in cases:
        assert place_in(path, folder) == (None if expected is None else Path(expected)), path


def test_a_local_folder_of_drives_name_is_on_no_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    place = tmp_path / "content/drive/My Drive"
    place.mkdir(parents=True)
    assert (drive_root(place), path_on_drive(place)) == (None, None)


@pytest.mark.fuse
def test_a_file_that_is_mapped_from_a_mount_that_hangs_stops_no_question(tmp_path: Path) -> None:
    """Starting a process closes all open files in it, which waits until what was written has arrived."""
    from simulated_drive.drive import SimulatedDrive
    from simulated_drive.knobs import DriveKnobs

    with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:
        (drive.cloud / "MyDrive/data").write_bytes(bytes(3000))
        drive.mount(tmp_path / "drive")
        assert drive._server is not None
        # Where this fails, another process ends the wait.
        rescue = subprocess.Popen(["sh", "-c", f"sleep 20; kill -CONT {drive._server.pid}"])
        with (tmp_path / "drive/MyDrive/data").open("r+b") as file, mmap.mmap(file.fileno(), 3000) as view:
            view[0] = 1
            drive.hang()
            began = time.monotonic()
            try:
                assert probe_mount(tmp_path / "drive", 0.5).state == "silent"
                assert time.monotonic() - began < 10
            finally:
                drive.go_on()
                rescue.kill()
                rescue.wait()
