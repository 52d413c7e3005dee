"""Whose a file is: what proves it, what does not, and what a session on another machine can go on with."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import fetch_files, pack_dataset, publish_file, stage_dataset
from colabstage.errors import CancelledError, TargetExistsError
from colabstage.h5.manifest import is_time_as_noted, manifest_path
from colabstage.io.progress import Cancellation
from colabstage.io.workspace import is_made_here
from colabstage.stage.publish import previous_path
from colabstage.stage.purge import sweep_leftovers
from tests.support.faulty_mount import faulty_mount
from tests.support.steps import OneStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulated_drive.drive import SimulatedDrive

MB = 1_000_000
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
OTHER = 65534


def checkpoint(path: Path, tag: int, *, nbytes: int = 20 * MB) -> Path:
    """A file whose blocks all differ from those of another tag."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes([tag]) * nbytes)
    return path


def move_times(*files: Path, seconds: float = 10.0) -> None:
    """What a remount or a copy does to times."""
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


class _Stops(OneStep):
    """Stops the work after some bytes."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(Cancellation())
        self._left = nbytes

    def advance(self, amount: int = 1) -> None:
        self._left -= amount
        if self._left < 0:
            self.cancellation.cancel()


@pytest.mark.parametrize(
    ("found", "beside", "expected"),
    [
        (1_700_000_000_123_456_789, 1_700_000_000_555_555_555, True),
        (1_700_000_000_123_456_788, 1_700_000_000_555_555_555, False),
        (1_700_000_000_123_456_000, 1_700_000_000_555_555_000, True),
        (1_700_000_000_123_000_000, 1_700_000_000_555_000_000, True),
        (1_700_000_000_124_000_000, 1_700_000_000_555_000_000, True),
        (1_700_000_000_000_000_000, 1_700_000_001_000_000_000, True),
        # The manifest shows that this disk does not round.
        (1_700_000_000_000_000_000, 1_700_000_001_555_555_555, False),
        (1_699_999_999_000_000_000, 1_700_000_001_000_000_000, False),
        (1_700_000_000_125_000_000, 1_700_000_000_555_000_000, False),
    ],
)
def test_a_time_is_as_noted_also_where_a_disk_rounds_it(found: int, beside: int, *, expected: bool) -> None:
    assert is_time_as_noted(1_700_000_000_123_456_789, found, beside) is expected
    assert not is_time_as_noted(0, found, beside)


@pytest.mark.parametrize("verb", ["shards", "stage"])
def test_a_manifest_without_a_time_asks_the_hashes(verb: str, tmp_path: Path, photos: Path) -> None:
    for content, is_ours in (("as written", True), ("another", False)):
        home = tmp_path / content
        file, again = _made(verb, home, photos)
        beside = manifest_path(file)
        raw = json.loads(beside.read_text(encoding="utf-8"))
        assert raw.pop("mtime_ns") == file.stat().st_mtime_ns
        beside.write_text(json.dumps(raw, indent=1, sort_keys=True), encoding="utf-8")
        if not is_ours:
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            was = file.stat().st_mtime_ns
            file.write_bytes(data)
            os.utime(file, ns=(was, was))
        before = file.read_bytes()
        assert again() is is_ours
        assert (file.exists() and file.read_bytes() == before) is not is_ours


def _made(verb: str, home: Path, photos: Path) -> tuple[Path, Callable[[], bool]]:
    """Something of ours, and the call that replaces or removes it, which tells whether it did."""

    def tells(call: Callable[[], object]) -> bool:
        try:
            call()
        except TargetExistsError:
            return False
        return True

    if verb == "shards":

        def pack(side: int) -> Any:
            return pack_dataset(
                photos, home / "p.h5", shards=2, overwrite=True, image_size=(side, side), progress=False
            )

        return Path(pack(8).files[0]), lambda: tells(lambda: pack(9))
    home.mkdir()
    options: dict[str, Any] = {"image_size": (8, 8), "local_dir": home / "fast", "progress": False}
    found = stage_dataset(photos, cache_dir=None, **options)

    def stage() -> object:
        # Other bytes for the same name.
        first = next(photos.rglob("*.png"))
        shutil.copyfile(next(one for one in photos.rglob("*.png") if one != first), first)
        return stage_dataset(photos, cache_dir=None, refresh=True, **options)

    return found.path, lambda: tells(stage)


def test_times_that_a_remount_moved_cost_no_reading_in_a_second_call(tmp_path: Path, make_images: Any) -> None:
    """The pack in the cache is not read, and neither is the version before a published file."""
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


def test_a_published_file_whose_time_moved_is_hashed_once(tmp_path: Path) -> None:
    model, target = checkpoint(tmp_path / "model.pt", 1), tmp_path / "drive/model.pt"
    publish_file(model, target, progress=False)
    move_times(target, manifest_path(target))
    checkpoint(model, 2)
    moved = bytes_read(lambda: publish_file(model, target, progress=False))
    checkpoint(model, 3)
    plain = bytes_read(lambda: publish_file(model, target, progress=False))
    assert 19 * MB < moved - plain < 21 * MB
    assert previous_path(target).read_bytes()[0] == 2


class TestASessionOnAnotherMachine:
    @staticmethod
    def leave(target: Path, source: Path, *, hours_ago: float, suffix: str = "") -> Path:
        """What a session on another machine left when it died in the middle of publishing."""
        folder = target.with_name(f".colabstage-{target.name}.0dead0d0-4321-98765.3{suffix}.tmp")
        folder.mkdir(parents=True)
        (folder / target.name).write_bytes(source.read_bytes()[: 16 * 2**20] if source.exists() else b"half")
        long_ago = time.time() - hours_ago * 3600
        for path in (folder / target.name, folder):
            os.utime(path, (long_ago, long_ago))
        return folder

    def test_publishing_goes_on(self, tmp_path: Path) -> None:
        model, target = checkpoint(tmp_path / "model.pt", 1), tmp_path / "drive/model.pt"
        left = self.leave(target, model, hours_ago=2)
        report = publish_file(model, target, progress=False)
        assert report.kept_bytes == 16 * 2**20
        assert target.read_bytes() == model.read_bytes()
        assert not left.exists()

    def test_on_a_mounted_drive_too(self, tmp_path: Path, drive: SimulatedDrive, my_drive: Path) -> None:
        """Where all files have one owner."""
        model, target = checkpoint(tmp_path / "model.pt", 1), my_drive / "drive/model.pt"
        self.leave(drive.cloud / "MyDrive/drive/model.pt", model, hours_ago=2)
        assert publish_file(model, target, progress=False).kept_bytes == 16 * 2**20
        assert sorted(path.name for path in target.parent.iterdir()) == ["model.pt", "model.pt.json"]

    def test_fetching_goes_on(self, tmp_path: Path) -> None:
        source, target = checkpoint(tmp_path / "data.bin", 1, nbytes=80 * MB), tmp_path / "copies/data.bin"
        with pytest.raises(CancelledError):
            fetch_files(source, target, progress=_Stops(30 * MB))
        (left,) = target.parent.iterdir()
        elsewhere = left.rename(left.with_name(".colabstage-data.bin.0dead0d0-4321-98765.3.tmp"))
        long_ago = time.time() - 7200
        for path in (*elsewhere.iterdir(), elsewhere):
            os.utime(path, (long_ago, long_ago))
        assert fetch_files(source, target, progress=False).kept_bytes > 0
        assert target.read_bytes() == source.read_bytes()
        assert not elsewhere.exists()

    def test_what_is_of_another_file_is_swept(self, tmp_path: Path) -> None:
        model, target = checkpoint(tmp_path / "model.pt", 1), tmp_path / "drive/model.pt"
        (tmp_path / "cache").mkdir()
        left = self.leave(tmp_path / "cache/photos-01234567.h5", tmp_path / "nothing", hours_ago=2)
        beside = self.leave(target.with_name("model.pt.json"), tmp_path / "nothing", hours_ago=2)
        publish_file(model, target, progress=False)
        sweep_leftovers(local_dir=tmp_path / "fast", cache_dir=tmp_path / "cache")
        assert not left.exists()
        assert not beside.exists()

    def test_what_may_be_alive_is_left(self, tmp_path: Path) -> None:
        model, target = checkpoint(tmp_path / "model.pt", 1), tmp_path / "drive/model.pt"
        left = self.leave(target, model, hours_ago=0.5)
        assert publish_file(model, target, progress=False).kept_bytes == 0
        assert left.exists()

    @pytest.mark.parametrize("kind", ["link", "link inside", pytest.param("another user's", marks=needs_root)])
    def test_what_is_not_proved_ours_is_left_and_named(self, tmp_path: Path, kind: str) -> None:
        model, cache = checkpoint(tmp_path / "model.pt", 1), tmp_path / "cache"
        target = cache / "model.pt"
        left = self.leave(target, model, hours_ago=2)
        if kind == "link":
            left = left.rename(tmp_path / "mine")
            target.with_name(".colabstage-model.pt.0dead0d0-4321-98765.3.tmp").symlink_to(left)
        elif kind == "link inside":
            (left / "model.pt").rename(tmp_path / "mine")
            (left / "model.pt").symlink_to(tmp_path / "mine")
        else:
            for path in (left, *left.iterdir()):
                os.chown(path, OTHER, OTHER)
        mine = tmp_path / "mine" if kind == "link inside" else left / "model.pt"
        before = mine.read_bytes()
        assert publish_file(model, target, progress=False).kept_bytes == 0
        assert mine.read_bytes() == before


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
    (tmp_path / "root").mkdir()
    with faulty_mount(tmp_path / "root", tmp_path / "mount") as mount:
        file = mount.place / "model.pt"
        file.write_bytes(b"1")
        # To this user, all files there are another's, also new ones.
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
        mount.fail("create", errno.ENOSPC)
        assert not is_made_here(file)
        mount.heal()
        assert is_made_here(file)
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["model.pt"]
