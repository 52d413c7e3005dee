"""Whose a file is: what proves it, what does not, and what a session on another machine can continue."""

import errno
import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files, publish_file, stage_dataset
from colabstage.errors import ColabstageError, TargetExistsError, TargetNotWritableError
from colabstage.h5.manifest import is_time_as_noted, manifest_path
from colabstage.stage.publish import previous_path
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs, OpFault
from tests.support.images import image, make_tree
from tests.support.invariants import contents

MB, BLOCKS = 1_000_000, 16 * 2**20
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
OTHER = 65534


def checkpoint(path: Path, tag: int, *, nbytes: int = 20 * MB) -> Path:
    """A file whose blocks all differ from those with another tag."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes([tag]) * nbytes)
    return path


def move_times(*files: Path, seconds: float = 10.0) -> None:
    """Move times as a remount or a copy does."""
    for file in files:
        ns = file.stat().st_mtime_ns + int(seconds * 1e9)
        os.utime(file, ns=(ns, ns))


def bytes_read(call: Callable[[], object]) -> int:
    """How much this process reads from files during a call."""

    def read_so_far() -> int:
        return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])

    before = read_so_far()
    call()
    return read_so_far() - before


@pytest.mark.parametrize(
    ("found", "beside", "expected"),
    [
        (1_700_000_000_123_456_789, 1_700_000_000_555_555_555, True),
        (1_700_000_000_123_456_788, 1_700_000_000_555_555_555, False),
        (1_700_000_000_123_456_000, 1_700_000_000_555_555_000, True),
        (1_700_000_000_124_000_000, 1_700_000_000_555_000_000, True),
        (1_700_000_000_000_000_000, 1_700_000_001_000_000_000, True),
        # The manifest shows that this disk does not round times.
        (1_700_000_000_000_000_000, 1_700_000_001_555_555_555, False),
        (1_700_000_000_125_000_000, 1_700_000_000_555_000_000, False),
    ],
)
def test_a_time_is_as_noted_also_where_a_disk_rounds_it(found: int, beside: int, *, expected: bool) -> None:
    assert is_time_as_noted(1_700_000_000_123_456_789, found, beside) is expected
    assert not is_time_as_noted(0, found, beside)


def test_times_that_a_remount_moved_cost_no_reading_in_a_second_call(tmp_path: Path, make_images: Any) -> None:
    """Neither the pack in the cache is read, nor the version before a published file."""
    source, cache = make_images(tmp_path / "many", 40, size=(200, 200)), tmp_path / "cache"

    def stage() -> None:
        data = stage_dataset(source, image_size=(200, 200), cache_dir=cache, progress=False)
        assert data.report.origin == "local"
        data.wait_published()

    first = stage_dataset(source, image_size=(200, 200), cache_dir=cache, progress=False)
    assert first.path.stat().st_size > 4 * MB
    stage()
    usual = bytes_read(stage)
    move_times(*cache.iterdir())
    assert bytes_read(stage) < usual + MB

    model, target = checkpoint(tmp_path / "model.pt", 1), tmp_path / "drive/model.pt"
    publish_file(model, target, progress=False)
    checkpoint(model, 2)
    publish_file(model, target, progress=False)
    same = bytes_read(lambda: publish_file(model, target, progress=False))
    move_times(target, manifest_path(target), previous_path(target), manifest_path(previous_path(target)))
    assert bytes_read(lambda: publish_file(model, target, progress=False)) < same + MB


def leave(target: Path, content: bytes, *, hours_ago: float) -> Path:
    """Leave the work of a session on another machine that died while publishing."""
    folder = target.with_name(f".colabstage-{target.name}.0dead0d0-4321-98765.3.tmp")
    folder.mkdir(parents=True)
    (folder / target.name).write_bytes(content)
    age(folder, hours_ago)
    return folder


def age(folder: Path, hours_ago: float) -> None:
    long_ago = time.time() - hours_ago * 3600
    for path in (*folder.iterdir(), folder):
        os.utime(path, (long_ago, long_ago))


@pytest.mark.parametrize("on_drive", [False, pytest.param(True, marks=pytest.mark.fuse)])
def test_publishing_goes_on_where_another_machine_died(
    tmp_path: Path, request: pytest.FixtureRequest, on_drive: bool
) -> None:
    """Also on a Drive, where all files have one owner; work that may be in progress is left alone."""
    model, folder = checkpoint(tmp_path / "model.pt", 1), tmp_path / "kept"
    behind = target = folder / "model.pt"
    if on_drive:
        target = request.getfixturevalue("my_drive") / "kept/model.pt"
        behind = request.getfixturevalue("drive").cloud / "MyDrive/kept/model.pt"
    left = leave(behind, model.read_bytes()[:BLOCKS], hours_ago=2)
    assert publish_file(model, target, progress=False).kept_bytes == BLOCKS
    assert target.read_bytes() == model.read_bytes()
    assert sorted(path.name for path in target.parent.iterdir()) == ["model.pt", "model.pt.json"]
    if not on_drive:
        left = leave(target.with_name("other.pt"), model.read_bytes()[:BLOCKS], hours_ago=0.5)
        assert publish_file(model, target.with_name("other.pt"), progress=False).kept_bytes == 0
        assert left.exists()


@pytest.mark.parametrize("kind", ["link", "link inside", pytest.param("another user's", marks=needs_root)])
def test_what_is_not_proved_ours_is_left(tmp_path: Path, kind: str) -> None:
    model, target = checkpoint(tmp_path / "model.pt", 1), tmp_path / "kept/model.pt"
    left = leave(target, model.read_bytes()[:BLOCKS], hours_ago=2)
    mine = tmp_path / "mine"
    if kind == "link":
        left.rename(mine)
        left.symlink_to(mine)
        mine = mine / "model.pt"
    elif kind == "link inside":
        (left / "model.pt").rename(mine)
        (left / "model.pt").symlink_to(mine)
    else:
        mine = left / "model.pt"
        for path in (left, mine):
            os.chown(path, OTHER, OTHER)
    assert publish_file(model, target, progress=False).kept_bytes == 0
    assert mine.read_bytes() == model.read_bytes()[:BLOCKS]


@needs_root
@pytest.mark.parametrize("what", ["the file", "its receipt", "the folder", "the receipt of the folder"])
def test_another_users_record_or_content_is_not_taken_for_ours(tmp_path: Path, what: str) -> None:
    is_file = what in ("the file", "its receipt")
    source = checkpoint(tmp_path / "source/data.bin", 1, nbytes=1000)
    target = tmp_path / "shared/copy"
    wanted = source if is_file else source.parent
    fetch_files(wanted, str(target), progress=False)
    theirs = target
    if "receipt" in what:
        theirs = next(target.parent.glob(".colabstage-copy*.receipt"))
    os.chown(theirs, OTHER, OTHER)
    with pytest.raises(TargetExistsError, match="copy"):
        fetch_files(wanted, str(target), progress=False)
    assert theirs.exists()


@pytest.mark.fuse
def test_a_mount_with_one_owner_for_all_may_fail_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To this user, all files there, new ones included, belong to somebody else; only creating one shows it."""
    model, knobs = checkpoint(tmp_path / "model.pt", 1, nbytes=1000), replace(DriveKnobs.quick(), type="mirror")
    with SimulatedDrive(tmp_path / "home", knobs=knobs) as drive:
        drive.mount(tmp_path / "mount")
        target = tmp_path / "mount/MyDrive/model.pt"
        publish_file(model, target, progress=False)
        checkpoint(model, 2, nbytes=1000)
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
        drive.set_faults(DriveFaults(ops=(OpFault(op="create", errno=errno.ENOSPC),)))
        with pytest.raises(ColabstageError):
            publish_file(model, target, progress=False)
        assert target.read_bytes() == bytes([1]) * 1000
        drive.set_faults(DriveFaults())
        assert publish_file(model, target, progress=False).previous


def test_what_is_staged_in_its_source_through_a_link_is_no_part_of_it(tmp_path: Path) -> None:
    photos = make_tree(tmp_path / "photos", {"a/1.png": 1, "b/1.png": 2})
    places: dict[str, Any] = {}
    for name in ("local", "cache"):
        (photos / name).mkdir()
        (tmp_path / name).symlink_to(photos / name)
        places[f"{name}_dir"] = tmp_path / name
    for origin in ("source", "local"):
        staged = stage_dataset(photos, keep="both", progress=False, **places)
        assert staged.files is not None
        assert contents(staged.files) == {"a/1.png": image(1), "b/1.png": image(2)}
        assert staged.report.origin == origin


@pytest.mark.parametrize("local", [".", "staged"])
def test_what_is_kept_below_a_source_is_left_out(local: str, tmp_path: Path) -> None:
    source = make_tree(tmp_path / "content", {"data/a.txt": "1", "cache/pack.h5": "pack"})
    places: dict[str, Any] = {"local_dir": source / local, "cache_dir": source / "cache"}
    staged = [stage_dataset(source, keep="files", progress=False, **places) for _ in range(3)]
    assert [one.report.origin for one in staged] == ["source", "local", "local"]
    assert staged[0].files is not None
    assert contents(staged[0].files) == {"data/a.txt": b"1"}


def test_a_folder_that_somebody_planted_is_refused(tmp_path: Path) -> None:
    """A link with the predictable name would redirect what is staged."""
    source = make_tree(tmp_path / "source", {"a.txt": "1"})
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "victim").mkdir()
    local = shared / "colabstage"
    local.symlink_to(tmp_path / "victim")
    options: dict[str, Any] = {"keep": "files", "local_dir": local, "cache_dir": None, "progress": False}
    with pytest.raises(TargetNotWritableError, match="colabstage"):
        stage_dataset(source, **options)
    assert list((tmp_path / "victim").iterdir()) == []
    local.unlink()
    stage_dataset(source, **options)
    assert stat.S_IMODE(local.stat().st_mode) == 0o700
