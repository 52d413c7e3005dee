"""The mount table: longest prefix, odd names, links, slow kinds; and the probe under a deadline."""

from __future__ import annotations

import errno
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from colabstage.machine.mounts import (
    Mount,
    MountProbe,
    MountTable,
    is_slow_mount,
    list_mounts,
    mount_of,
    place_in,
    probe_mount,
    slow_reason,
)

if TYPE_CHECKING:
    from tests.machine.conftest import MakeSilentMount

TABLE = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:40 / /content/drive rw,nosuid,nodev,relatime - fuse.drive drive ro,user_id=0
24 22 0:41 / /mnt/my\040disk ro,nosuid shared:7 - nfs4 server:/a\134b rw
25 22 0:42 / /content/drive2 rw - tmpfs tmpfs rw
26 22 0:43 / /twice rw - ext4 /dev/vdb rw
27 26 0:44 / /twice rw - fuse.gcsfuse bucket rw
"""
MOUNTS = list_mounts(TABLE)


def test_the_table_is_read_with_escapes_and_optional_fields() -> None:
    """Spaces and backslashes come octal, and the number of optional fields before the dash varies."""
    assert MOUNTS[2] == Mount(Path("/mnt/my disk"), "nfs4", "server:/a\\b", readonly=True, device="0:41")


@pytest.mark.parametrize(
    ("path", "mountpoint"),
    [
        ("/content/drive", "/content/drive"),
        ("/content/drive/MyDrive/a b/c", "/content/drive"),
        ("/content/drive2/x", "/content/drive2"),
        ("/content/drivers", "/"),
        ("/content/drive/../x", "/"),
        ("/mnt/my disk/x", "/mnt/my disk"),
        ("/nowhere/at/all", "/"),
    ],
)
def test_a_path_lies_on_the_mount_with_the_longest_matching_folders(path: str, mountpoint: str) -> None:
    """Whole names count, not characters."""
    assert mount_of(path, mounts=MOUNTS).mountpoint == Path(mountpoint)


def test_of_two_mounts_at_one_place_the_later_counts() -> None:
    """A mount hides what was mounted at the same place before."""
    assert mount_of("/twice/x", mounts=MOUNTS).fstype == "fuse.gcsfuse"


def test_links_into_a_slow_mount_are_followed_without_touching_it(tmp_path: Path) -> None:
    """A local link to Drive counts as Drive, in one step or in several, absolute or relative."""
    slow = Mount(tmp_path / "drive", "fuse.drive", "drive")
    table = MountTable((*list_mounts(), slow))
    (tmp_path / "deep").mkdir()
    (tmp_path / "direct").symlink_to(tmp_path / "drive/MyDrive")
    (tmp_path / "deep/relative").symlink_to("../direct/data")
    for name in ("direct", "direct/x", "deep/relative/y"):
        assert mount_of(tmp_path / name, mounts=table) == slow
    assert mount_of(tmp_path / "deep", mounts=table) != slow


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    """A loop of links is a path like any other, not a hang."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert mount_of(tmp_path / "a").fstype == mount_of(tmp_path).fstype


@pytest.mark.parametrize(
    ("fstype", "slow"),
    [
        ("fuse.drive", True),
        ("fuse.gcsfuse", True),
        ("fuse.sshfs", True),
        ("fuse", True),
        ("nfs4", True),
        ("cifs", True),
        ("9p", True),
        ("lustre", True),
        ("ext4", False),
        ("overlay", False),
        ("tmpfs", False),
        ("fuseblk", False),
        ("fuse.fuse-overlayfs", False),
    ],
)
def test_kinds_of_mounts_are_slow_or_not(fstype: str, slow: bool) -> None:
    """Networks and user-space file systems are slow, except those that are views of a local disk."""
    assert (slow_reason(Mount(Path("/mnt"), fstype, "")) is not None) is slow


def test_a_root_over_9p_is_a_sandbox_not_a_network() -> None:
    """gVisor shows a container's own disk as 9p."""
    assert slow_reason(Mount(Path("/"), "9p", "none")) is None


def test_this_machine_has_a_table_and_its_temporary_folder_is_local(tmp_path: Path) -> None:
    """The real table has a root, and a test's folder is not on a slow mount."""
    assert Path("/") in {mount.mountpoint for mount in list_mounts()}
    assert not is_slow_mount(tmp_path)


@pytest.mark.parametrize("has_tool", [True, False])
def test_the_probe_tells_alive_from_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tool: bool) -> None:
    """A folder that is there answers; one that is not is missing, with the error number; also where no `stat` is."""
    if not has_tool:
        monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert probe_mount(tmp_path) == MountProbe("alive")
    assert probe_mount(tmp_path / "no") == MountProbe("missing", errno.ENOENT)


def test_the_probe_survives_a_working_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a mount dies under the current folder, asking about it must still work."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert probe_mount(tmp_path).state == "alive"


def test_a_mount_that_never_answers_does_not_hang_the_caller(tmp_path: Path, silent_mount: MakeSilentMount) -> None:
    """A mount whose client has stopped answering is 'silent' at the deadline, and 'dead' once the client is gone."""
    mount = silent_mount(tmp_path / "drive", "fuse.drive")
    inside = mount.place / "MyDrive"
    started = time.monotonic()
    assert probe_mount(inside, timeout_s=0.5) == MountProbe("silent")
    assert time.monotonic() - started < 5.0
    assert replace(mount_of(inside / "x"), device="") == Mount(mount.place, "fuse.drive", "practice")
    assert place_in(inside / "x", mount.place) == Path("MyDrive/x")
    assert is_slow_mount(inside)
    mount.kill()
    assert probe_mount(inside) == MountProbe("dead", errno.ENOTCONN)


@pytest.mark.parametrize(
    ("path", "folder", "expected"),
    [
        ("/data/a/b", "/data", "a/b"),
        ("/data", "/data", "."),
        ("/data/../data/a", "/data/x/..", "a"),
        ("/database", "/data", None),
        ("/data", "/data/a", None),
        ("/content/drive/My Drive/a", "/content/drive/MyDrive", "a"),
        # Of a bind mount: both ways, deeper than what is mounted, and beside it.
        ("/view/b", "/disk/data/a", "b"),
        ("/view/b", "/disk/data", "a/b"),
        ("/disk/data/a/b", "/view", "b"),
        ("/disk/data/b", "/view", None),
        # Another file system of the same kind.
        ("/other/data/a", "/disk/data", None),
    ],
)
def test_a_path_is_in_a_folder_whatever_the_two_are_called(path: str, folder: str, expected: str | None) -> None:
    """By the mount table alone: none of these exists."""
    table = list_mounts(
        TABLE
        + r"""
30 22 8:1 / /disk rw - ext4 /dev/sda rw
31 22 8:1 /data/a /view rw - ext4 /dev/sda rw
32 22 8:2 / /other rw - ext4 /dev/sdb rw
"""
    )
    found = place_in(path, folder, mounts=table)
    assert (None if found is None else str(found)) == expected


def test_a_path_is_in_a_folder_through_links_and_mounts(tmp_path: Path) -> None:
    """Links to the folder, into it and out of it, chains of them, and a folder mounted at a second place."""
    data, view = tmp_path / "data", tmp_path / "view"
    (data / "a").mkdir(parents=True)
    view.mkdir()
    (tmp_path / "to").symlink_to("data")
    (tmp_path / "into").symlink_to(tmp_path / "to" / "a")
    (data / "out").symlink_to(tmp_path)
    assert place_in(tmp_path / "to" / "new" / "x", data) == Path("new/x")
    assert place_in(data / "a" / "x", tmp_path / "to") == Path("a/x")
    assert place_in(tmp_path / "into" / "x", data) == Path("a/x")
    assert place_in(tmp_path / "into", data / "a") == Path()
    assert place_in(data / "out" / "x", data) is None
    (data / "file").write_text("")
    (tmp_path / "linked").hardlink_to(data / "file")
    assert place_in(tmp_path / "linked", data / "file") == Path()
    if subprocess.run(["mount", "--bind", data / "a", view], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        assert place_in(view / "x", data) == Path("a/x")
        assert place_in(data / "a" / "x", view) == Path("x")
        assert place_in(view, data / "a") == Path()
        assert place_in(data / "x", view) is None
    finally:
        subprocess.run(["umount", view], check=True)
