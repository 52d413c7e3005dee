"""`stage_dataset` with sources on this machine: what is made, what is reused, and what is refused without a trace."""

import ast
import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from colabstage import dataset_h5, extract_archive, fetch_files, plan_stage, publish_file, restore_file, stage_dataset
from colabstage.errors import (
    ColabstageError,
    CorruptArchiveError,
    DecodeError,
    EmptySourceError,
    LayoutError,
    NotEnoughSpaceError,
    OptionError,
    TargetExistsError,
    UnsafeArchiveError,
)
from tests.contract.served import numbers_in
from tests.support.archives import tar_bytes, write_archive, zip_bytes
from tests.support.images import image, in_classes, make_tree
from tests.support.invariants import contents

NUMBERS = in_classes(8)
FILES = {name: image(number) for name, number in NUMBERS.items()}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of images in two classes."""
    return make_tree(tmp_path / "photos", NUMBERS)


def stage(source: Path, **options: Any) -> Any:
    """Without output, and without a cache unless the test wants one."""
    return stage_dataset(source, **{"progress": False, "cache_dir": None, **options})


def everything_below(folder: Path) -> dict[str, bytes]:
    """Names and bytes of all files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_second_call_reads_nothing(photos: Path) -> None:
    first = stage(photos)
    before = everything_below(first.path.parent)
    for path in photos.rglob("*.png"):
        found = path.stat()
        path.write_bytes(bytes(found.st_size))
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))  # only reading it would show the change
    began = time.process_time()  # CPU time, since others may use the core
    second = stage(photos)
    seconds = time.process_time() - began
    assert second.report.origin == "local"
    assert "names, sizes and times of all files are unchanged" in second.report.steps[0].note
    assert everything_below(first.path.parent) == before
    assert seconds < 0.2  # under 0.01 s if nothing else runs


def test_touched_folders_and_a_pack_that_moved_are_still_those(photos: Path) -> None:
    folder = stage(photos).path.parent
    os.utime(photos / "cat")
    assert stage(photos).report.origin == "local"
    shutil.copytree(folder, folder.with_name("copy"))
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    assert [stage(photos).report.origin for _ in range(2)] == ["local", "local"]


@pytest.mark.parametrize(
    ("lost", "by"),
    [("a byte", "the disk"), ("all of it", "the disk"), ("its end", "somebody"), ("all of it", "somebody")],
)
def test_what_a_crash_of_the_machine_took_is_staged_again(photos: Path, lost: str, by: str) -> None:
    """The user need not decide if nothing has written to the pack since; otherwise it may be somebody's."""
    pack = stage(photos).path
    whole, manifest = pack.read_bytes(), pack.with_name(f"{pack.name}.json").read_bytes()
    left = {"a byte": whole[:-5] + b"!" + whole[-4:], "its end": whole[:5000], "all of it": b""}[lost]
    pack.write_bytes(left)
    os.utime(pack, (0, 0))
    record = pack.with_name("stage.json")
    noted, now = json.loads(record.read_text(encoding="utf-8")), pack.stat()
    if by == "the disk":
        # Only the kernel sets this time.
        noted["seal"] |= {"ctime_ns": now.st_ctime_ns, "world": "00000000"}
        record.write_text(json.dumps(noted), encoding="utf-8")
        again = stage(photos)
        assert any("damaged" in note for note in again.report.notes)
        assert (pack.read_bytes(), again.path) == (whole, pack)
    else:
        with pytest.raises(TargetExistsError, match=pack.name):
            stage(photos)
        assert (pack.read_bytes(), pack.with_name(f"{pack.name}.json").read_bytes()) == (left, manifest)


def test_both_forms_are_kept_and_what_is_lost_of_them_is_fetched_again(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "a.zip", FILES)
    staged = stage(archive, keep="both")
    assert staged.files is not None
    assert (contents(staged.files), numbers_in(staged.path)) == (FILES, NUMBERS)
    assert {stage(archive, keep=keep).report.origin for keep in ("pack", "both", "files")} == {"local"}
    (staged.files / "cat/000.png").unlink()
    assert stage(archive, keep="files", verify="full").report.origin == "source"
    assert contents(staged.files) == FILES


WHOLE = zip_bytes(FILES, method=0)
BROKEN = {**FILES, "cat/broken.png": image(1)[:40]}
# The source's files, or its single file; options; and the expected refusal.
REFUSED: dict[str, tuple[dict[str, Any] | tuple[str, bytes], dict[str, Any], type[ColabstageError], str]] = {
    "no samples": ({"a.csv": "a,b\n"}, {}, EmptySourceError, "csv"),
    "a broken image": (BROKEN, {}, DecodeError, "broken.png"),
    "a damaged zip": (("a.zip", WHOLE[:80] + bytes(9) + WHOLE[89:]), {}, CorruptArchiveError, "cat/000.png"),
    "an unsafe name": (("evil.tar", tar_bytes({"../evil.png": image(1)})), {}, UnsafeArchiveError, "evil.png"),
    "no folder": (FILES, {"local_dir": "source/cat/000.png"}, OptionError, "cat/000.png"),
    "a small disk": (FILES, {"image_size": (1024, 1024), "encoding": "pixels"}, NotEnoughSpaceError, "29.4 MB"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_staged_is_refused_without_a_trace(name: str, tmp_path: Path, small_disk: Path) -> None:
    made, options, error, named = REFUSED[name]
    if isinstance(made, dict):
        (tmp_path / "source").mkdir()
        source = make_tree(tmp_path / "source", made)
    else:
        source = make_tree(tmp_path, {made[0]: made[1]}) / made[0]
    local = tmp_path / options["local_dir"] if "local_dir" in options else small_disk / "fast"
    with pytest.raises(ColabstageError) as refused:
        stage(source, **{**options, "local_dir": local, "cache_dir": tmp_path / "cache"})
    assert refused.type is error
    assert named in str(refused.value)
    left = [path for path in small_disk.rglob("*") if path.is_file()]
    assert [path for path in left if not path.parent.name.startswith(".colabstage-")] == []
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("room", [27, 31])
def test_what_a_plan_says_of_room_holds(room: int, tmp_path: Path, make_disk: Callable[[int], Path]) -> None:
    """A pack of 25 MB takes a little more than its rows."""
    source, disk = make_tree(tmp_path / "source", FILES), make_disk(room)
    options: Any = {"image_size": (1024, 1024), "encoding": "pixels", "local_dir": disk / "fast", "cache_dir": None}
    plan = plan_stage(source, **options)
    with contextlib.nullcontext() if plan.fits else pytest.raises(NotEnoughSpaceError):
        stage(source, **options)
    assert plan.fits is (room == 31)


@pytest.mark.parametrize("place", ["s3://bucket/model.pt", Path("s3://bucket/model.pt"), ""])
def test_no_address_becomes_a_folder_of_the_current_one(
    place: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint published to a bucket would be searched there: every path argument says what is wrong."""
    monkeypatch.chdir(tmp_path)
    file = make_tree(tmp_path, {"model.pt": "weights"}) / "model.pt"
    archive = write_archive(tmp_path / "photos.zip", {"a.txt": b"a"})
    calls: list[tuple[Callable[..., object], str]] = [
        (partial(publish_file, file, place), "target="),
        (partial(publish_file, place, tmp_path / "copy.pt"), "path="),
        (partial(restore_file, place, tmp_path / "copy.pt"), "published="),
        (partial(restore_file, file, place), "target="),
        (partial(extract_archive, archive, place), "target="),
        (partial(fetch_files, file, place), "target="),
    ]
    for call, named in calls:
        with pytest.raises(OptionError, match=f"^{named}"):
            call(progress=False)
    assert sorted(tmp_path.iterdir()) == [file, archive]


@pytest.mark.torch
@pytest.mark.parametrize(("encoding", "in_folder"), [("pixels", False), ("encoded", True)])
def test_a_pack_is_opened_and_not_packed_again(photos: Path, tmp_path: Path, encoding: str, in_folder: bool) -> None:
    """Its samples would lose their names; the error shows the line that opens it, ready for a second notebook."""
    first = stage(photos, encoding=encoding, cache_dir=tmp_path / "cache")
    (pack,) = (tmp_path / "cache").glob("*.h5")
    with pytest.raises(LayoutError) as caught:
        stage(pack.parent if in_folder else pack)
    opened = re.search(r"dataset_h5\((.*?)\)", str(caught.value))
    assert opened is not None
    again = dataset_h5(ast.literal_eval(opened[1]))
    assert (again.samples, again.classes) == (first["train"].samples, first.classes)
