"""The calls of the mounted file system: which work as on a disk, and which Drive refuses."""

import errno
import hashlib
import mmap
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults
from tests.support.images import make_tree
from tests.support.invariants import contents

pytestmark = pytest.mark.fuse

LARGE = np.random.default_rng(0).bytes(3_000_000)
NAME = "Фото 中文 é.jpg"


def folders(drive: SimulatedDrive, name: str) -> tuple[Path, Path]:
    """Return a folder on the mount, and the same in the cloud."""
    assert drive.mountpoint is not None
    return drive.mountpoint / "MyDrive" / name, drive.cloud / "MyDrive" / name


def errno_of(call: Callable[[], object]) -> int | None:
    """Return the errno with which a call fails."""
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def change_and_grow(folder: Path) -> None:
    with (folder / "a.bin").open("ab") as file:
        file.write(b"abc")
    with (folder / "a.bin").open("r+b") as file:
        file.seek(2)
        file.write(b"XY")
        file.truncate(12)
    os.truncate(folder / "a.bin", 14)


def change_in_place(folder: Path) -> None:
    with (folder / "large.bin").open("r+b") as file:
        file.seek(2_000_000)
        file.write(b"changed")


def delete_while_open(folder: Path) -> object:
    with (folder / "large.bin").open("rb", buffering=0) as file:
        (folder / "large.bin").unlink()
        return file.read(), (folder / "large.bin").exists()


def replace(folder: Path) -> None:
    (folder / "a.bin.tmp").write_bytes(b"new")
    (folder / "a.bin.tmp").replace(folder / "a.bin")
    (folder / NAME).write_bytes(b"x")
    (folder / NAME).rename(folder / f"2 {NAME}")


def move_folders(folder: Path) -> object:
    make_tree(folder, {"a/b/one.txt": "1", "d/e.txt": "2"})
    (folder / "a").rename(folder / "c")
    (folder / "c/b/two.txt").write_text("2", encoding="utf-8")
    shutil.rmtree(folder / "d")
    return errno_of((folder / "c").rmdir), sorted(path.name for path in folder.rglob("*"))


def set_times(folder: Path) -> object:
    (folder / "here").write_bytes(b"x")
    os.utime(folder / "here", ns=(10**18, 10**18 + 123))
    shutil.copy2(folder / "here", folder / "copy")
    os.utime(folder / "a.bin", ns=(10**18, 10**18 + 456))
    before = time.time()
    with (folder / "large.bin").open("rb") as file:
        os.utime(file.fileno())
    is_now = (folder / "large.bin").stat().st_mtime >= before - 1
    return is_now, [(folder / name).stat().st_mtime_ns for name in ("copy", "a.bin")]


def map_into_memory(folder: Path) -> object:
    with (folder / "large.bin").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        return view[:]


def write_hdf5(folder: Path) -> object:
    values = np.arange(100_000, dtype=np.int32).reshape(100, 1000)
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = values
    with h5py.File(folder / "a.h5") as file:
        return np.array_equal(file["x"][:], values)


CHANGES = {
    change.__name__: change
    for change in (
        *(change_and_grow, change_in_place, delete_while_open, replace, move_folders),
        *(set_times, map_into_memory, write_hdf5),
    )
}


@pytest.mark.parametrize("name", CHANGES)
def test_files_are_changed_as_on_a_disk(shared: SimulatedDrive, tmp_path: Path, name: str) -> None:
    """Each call has the same result as in a plain folder, at once on the mount and after a flush in the cloud."""
    here, cloud = folders(shared, name)
    for folder in (tmp_path, cloud):
        make_tree(folder, {"a.bin": b"0123456789", "large.bin": LARGE})
    assert CHANGES[name](here) == CHANGES[name](tmp_path)
    assert contents(here) == contents(tmp_path)
    assert shared.flush(timeout_s=10)
    assert contents(cloud) == contents(tmp_path)
    if name == "set_times":
        assert (cloud / "copy").stat().st_mtime_ns == 10**18 + 123


def test_what_drive_does_not_support(shared: SimulatedDrive, tmp_path: Path) -> None:
    """Files beside the drives, links and Google documents give errno 95; shortcuts look like their targets."""
    here, cloud = folders(shared, "refused")
    make_tree(cloud, {"plan.gdoc": "{}", "sheet.gsheet": "{}", "talk.gslides": "{}", "file": "x"})
    make_tree(tmp_path, {"theirs/a.txt": "shared"})
    (cloud / "shortcut").symlink_to(tmp_path / "theirs")
    root = here.parent.parent
    calls: list[Callable[[], object]] = [
        (root / "folder").mkdir,
        (root / "file").touch,
        lambda: (here / "link").symlink_to("file"),
        lambda: (here / "link").hardlink_to(here / "file"),
        *((here / name).read_bytes for name in ("plan.gdoc", "sheet.gsheet", "talk.gslides")),
    ]
    assert [errno_of(call) for call in calls] == [errno.EOPNOTSUPP] * len(calls)
    assert {path.name for path in here.iterdir()} >= {"plan.gdoc", "sheet.gsheet", "talk.gslides"}
    assert ((here / "shortcut").is_dir(), (here / "shortcut").is_symlink()) == (True, False)
    assert (here / "shortcut/a.txt").read_text(encoding="utf-8") == "shared"


def attributes(path: Path) -> dict[str, str | None]:
    """Return a file's attributes from the client; `None` for missing ones."""

    def value(name: str) -> str | None:
        try:
            return os.getxattr(path, f"user.drive.{name}").decode()
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
            return None

    return {name: value(name) for name in ("id", "md5", "uncommitted")}


def md5_of(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def test_attributes_are_the_clouds(drive: SimulatedDrive, mountpoint: Path) -> None:
    """Ids survive rewriting, renaming and a new machine; an MD5 is that of the last upload; listings show neither."""
    mine = mountpoint / "MyDrive"
    (drive.cloud / "MyDrive/a").write_bytes(b"first")
    drive.set_faults(DriveFaults(stall_uploads=True))
    drive.mount(mountpoint)
    before = attributes(mine / "a")
    assert before == {"id": before["id"], "md5": md5_of(b"first"), "uncommitted": "0"}
    (mine / "a").write_bytes(b"other")
    (mine / "b").write_bytes(b"new")
    assert attributes(mine / "a") == {**before, "uncommitted": "1"}
    only_here = attributes(mine / "b")
    assert (str(only_here["id"])[:6], only_here["md5"], only_here["uncommitted"]) == ("local-", None, "1")
    drive.set_faults(DriveFaults())
    assert drive.flush(timeout_s=10)
    assert attributes(mine / "a") == {**before, "md5": md5_of(b"other")}
    assert attributes(mine / "b")["md5"] == md5_of(b"new")
    (mine / "a").rename(mine / "c")
    (mine / "a").write_bytes(b"another")
    (mine / "c").chmod(0o755)
    assert (mine / "c").stat().st_mode & 0o777 == 0o755
    assert drive.flush(timeout_s=10)
    drive.new_machine()
    drive.mount(mountpoint)
    assert attributes(mine / "c")["id"] == before["id"]
    assert (mine / "c").stat().st_mode & 0o777 == 0o600
    assert len({attributes(mine / name)["id"] for name in "abc"}) == 3
    assert (os.listxattr(mine / "c"), attributes(mine)["md5"]) == ([], None)


def test_readonly_mount_refuses_changes(drive: SimulatedDrive, mountpoint: Path) -> None:
    make_tree(drive.cloud / "MyDrive", {"a.txt": "hello"})
    drive.mount(mountpoint, readonly=True)
    file = mountpoint / "MyDrive/a.txt"
    assert file.read_text(encoding="utf-8") == "hello"
    calls: list[Callable[[], object]] = [lambda: file.write_text("x"), file.unlink, (file.parent / "folder").mkdir]
    assert [errno_of(call) for call in calls] == [errno.EROFS] * 3
