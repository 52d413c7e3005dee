"""A source that has changed: only new and changed files are read, the rest comes from the earlier pack, and the new
pack is byte for byte the one that reading everything makes."""

import io
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from colabstage import StagedDataset, list_datasets, plan_stage, purge_datasets, stage_dataset
from colabstage.errors import DecodeError
from simulated_drive.drive import SimulatedDrive
from tests.sources.servers import BucketService
from tests.support.archives import zip_bytes
from tests.support.http_server import WebServer
from tests.support.made_files import grey, image
from tests.support.steps import AtStep

SIZE = (12, 16)
COUNTS = re.compile(r"([\d,]+) added, ([\d,]+) changed, ([\d,]+) gone, ([\d,]+) taken over; ([\d,]+) file")


def jpeg(number: int) -> bytes:
    return image(number, size=(24, 32), form="JPEG")


def stage(source: Path | str, local: Path, **options: Any) -> StagedDataset:
    wanted = {"progress": False, "cache_dir": None, "image_size": SIZE, **options}
    return stage_dataset(source, local_dir=local, **wanted)


def counts(shown: object) -> tuple[int, ...] | None:
    """Return the numbers of added, changed, removed, reused and read files, as a report or plan shows them."""
    found = COUNTS.search(str(shown))
    return None if found is None else tuple(int(one.replace(",", "")) for one in found.groups())


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_photos(folder: Path, count: int) -> None:
    for number in range(count):
        write(folder / ("cat" if number % 2 else "dog") / f"{number:05}.jpg", jpeg(number))


@dataclass
class Edits:
    """How many files are added, removed, rewritten with the same length, and moved to the other class."""

    folder: Path
    count: int

    def make(self) -> None:
        files = sorted(self.folder.rglob("*.jpg"))
        random.Random(1).shuffle(files)
        removed, rewritten, moved = (files[at * self.count : (at + 1) * self.count] for at in range(3))
        for number in range(self.count):
            write(self.folder / "cat" / f"new{number:05}.jpg", jpeg(100_000 + number))
            removed[number].unlink()
            before = rewritten[number].stat()
            content = bytearray(rewritten[number].read_bytes())
            content[-20] ^= 0x55
            rewritten[number].write_bytes(content)
            assert rewritten[number].stat().st_size == before.st_size
            other = {"cat": "dog", "dog": "cat"}[moved[number].parent.name]
            moved[number].rename(self.folder / other / moved[number].name)


@pytest.mark.fuse
def test_on_drive_only_what_needs_it_is_opened(drive: SimulatedDrive, my_drive: Path, tmp_path: Path) -> None:
    """Relabelled files are recognized by their MD5s, wherever they were moved to."""
    photos = drive.cloud / "MyDrive" / "photos"
    write_photos(photos, 40)
    stage(my_drive / "photos", tmp_path / "local")
    Edits(photos, 4).make()
    drive.new_machine()
    drive.mount(my_drive.parent)
    planned = plan_stage(my_drive / "photos", local_dir=tmp_path / "local", cache_dir=None, image_size=SIZE)
    assert counts(planned) == (4, 4, 4, 32, 8)
    before = drive.stats()
    updated = stage(my_drive / "photos", tmp_path / "local")
    after = drive.stats()
    assert counts(updated.report) == (4, 4, 4, 32, 8)
    opens = after.cold_opens + after.warm_opens - before.cold_opens - before.warm_opens
    needed = [*photos.rglob("new*.jpg")]
    assert 8 <= opens <= 12
    moved = after.bytes_cold + after.bytes_warm - before.bytes_cold - before.bytes_warm
    assert moved <= 1.2 * 2 * sum(path.stat().st_size for path in needed)
    fresh = stage(my_drive / "photos", tmp_path / "fresh")
    assert counts(fresh.report) is None
    assert updated.path.read_bytes() == fresh.path.read_bytes()
    # The folder has another name, and the person other splits.
    photos.rename(photos.with_name("pictures"))
    drive.new_machine()
    drive.mount(my_drive.parent)
    before = drive.stats()
    moved_away = stage(my_drive / "pictures", tmp_path / "local", splits=0.8)
    after = drive.stats()
    assert counts(moved_away.report) == (0, 0, 0, 40, 0)
    assert after.cold_opens + after.warm_opens == before.cold_opens + before.warm_opens


def test_of_a_bucket_only_changed_objects_are_asked_for(s3: BucketService, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    write_photos(photos, 32)

    def upload() -> None:
        there = {f"photos/{path.relative_to(photos)}": path.read_bytes() for path in photos.rglob("*.jpg")}
        objects = s3.backend.buckets[s3.bucket].keys
        for key in set(objects) - set(there):
            s3.remove(key)
        for key, content in there.items():
            if key not in objects or objects[key].value != content:
                s3.put(key, content)

    upload()
    stage("s3://data/photos", tmp_path / "local")
    Edits(photos, 4).make()
    upload()
    planned = plan_stage("s3://data/photos", local_dir=tmp_path / "local", cache_dir=None, image_size=SIZE)
    # ETags are not compared between names, so moved files are read.
    assert counts(planned) == counts((updated := stage("s3://data/photos", tmp_path / "local")).report)
    assert counts(planned) == (8, 4, 8, 20, 12)
    assert planned.figures.source_bytes < 15 * len(jpeg(0)) * 1.2
    assert updated.path.read_bytes() == stage("s3://data/photos", tmp_path / "fresh").path.read_bytes()


Now = tuple[Path, dict[str, Any]]
_IN_ANOTHER_WAY: dict[str, Callable[[Path], Now]] = {
    "splits": lambda source: (source, {"splits": 0.8}),
    "seed": lambda source: (source, {"seed": 3}),
    "groups": lambda source: (source, {"splits": 0.5, "group_by": r"\d(?=\.)"}),
    "name": lambda source: (source.rename(source.with_name(f"other{source.suffix}")), {}),
    "both": lambda source: (source.rename(source.with_name(f"other{source.suffix}")), {"splits": 0.8, "seed": 1}),
}


@pytest.mark.parametrize("way", _IN_ANOTHER_WAY)
@pytest.mark.parametrize("kind", ["folder", "zip", "cached"])
def test_the_same_files_in_another_order_or_under_another_name_are_not_read(
    tmp_path: Path, kind: str, way: str
) -> None:
    """Where their rows are is for the pack to say, and what the source is called for nothing."""
    write_photos(tmp_path / "photos", 40)
    source, cache = tmp_path / "photos", tmp_path / "cache" if kind == "cached" else None
    if kind == "zip":
        source = tmp_path / "photos.zip"
        source.write_bytes(zip_of(tmp_path / "photos"))
    stage(source, tmp_path / "first", cache_dir=cache)
    source, options = _IN_ANOTHER_WAY[way](source)
    again = stage(source, tmp_path / ("second" if kind == "cached" else "first"), cache_dir=cache, **options)
    assert counts(again.report) == (0, 0, 0, 40, 0)
    assert again.path.read_bytes() == stage(source, tmp_path / "fresh", **options).path.read_bytes()


@pytest.mark.fuse
def test_of_a_large_cache_only_packs_of_about_the_same_length_are_looked_at(
    drive: SimulatedDrive, my_drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open a manifest takes 0.4 s on an ordinary day, and people have hundreds; a look at each of four files for a
    pack, six times, took 16 s for 400 packs."""
    cache = drive.cloud / "MyDrive" / "cache"
    write_photos(tmp_path / "photos", 40)
    pack = stage(tmp_path / "photos", tmp_path / "first", cache_dir=cache).path
    for number in range(60):
        other = cache / f"other-{number:08}.h5"
        other.write_bytes(bytes(pack.stat().st_size * (number % 5 + 2)))
        other.with_name(f"{other.name}.json").write_bytes((cache / f"{pack.name}.json").read_bytes())
        other.with_name(f"{other.name}.0123456789abcdef.rows").write_bytes(b"")
    drive.new_machine()
    drive.mount(my_drive.parent)
    looks, lstat = list[str](), Path.lstat

    def look(path: Path) -> os.stat_result:
        looks.append(path.name)
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", look)
    again = stage(tmp_path / "photos", tmp_path / "second", cache_dir=my_drive / "cache", splits=0.8)
    assert counts(again.report) == (0, 0, 0, 40, 0)
    assert drive.stats().cold_opens <= 16 + 4
    assert not [name for name in looks if name.startswith("other") and name.endswith(".rows")]


def test_of_other_files_with_the_same_names_sizes_and_times_nothing_is_taken(tmp_path: Path) -> None:
    for number, folder in enumerate(("photos", "others")):
        for name in range(8):
            write(tmp_path / folder / "cat" / f"{name}.bmp", image(8 * number + name, size=(24, 32), form="BMP"))
        for path in (tmp_path / folder).rglob("*.bmp"):
            os.utime(path, ns=(10**18, 10**18))
        found = stage(tmp_path / folder, tmp_path / "local")
        assert counts(found.report) is None
        assert found.path.read_bytes() == stage(tmp_path / folder, tmp_path / "fresh").path.read_bytes()


def zip_of(folder: Path) -> bytes:
    return zip_bytes(
        {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.*"))}, method=0
    )


def test_of_a_zip_on_the_web_only_changed_members_are_fetched(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    write_photos(photos, 100)
    for path in photos.rglob("*.jpg"):
        path.write_bytes(path.read_bytes() + bytes(45_000))
    with WebServer({"photos.zip": zip_of(photos)}) as server:
        stage(server.url("photos.zip"), tmp_path / "local")
        Edits(photos, 5).make()
        server.put("photos.zip", archive := zip_of(photos))
        server.forget_requests()
        updated = stage(server.url("photos.zip"), tmp_path / "local")
        # A member with the same base name and CRC has the same content, whatever its folder.
        assert counts(updated.report) == (5, 5, 5, 90, 10)
        # Besides changed members, only the archive's end is fetched, which has the directory of members.
        assert server.bytes_sent < 10 * 49_000 + 2 * 256 * 1024 + 100_000
        assert len(archive) > 4_000_000
        fresh = stage(server.url("photos.zip"), tmp_path / "fresh")
        assert updated.path.read_bytes() == fresh.path.read_bytes()
        divided = stage(server.url("photos.zip"), tmp_path / "local", splits=0.8).report
        assert counts(divided) == (0, 0, 0, 100, 0)
        assert "readers" not in str(divided)
        assert "being copied" not in str(divided)


def test_in_a_new_session_rows_come_from_the_pack_in_the_cache(tmp_path: Path) -> None:
    photos, cache = tmp_path / "photos", tmp_path / "cache"
    write_photos(photos, 40)
    stage(photos, tmp_path / "first", cache_dir=cache)
    write(photos / "cat" / "new.jpg", jpeg(1000))
    planned = plan_stage(photos, local_dir=tmp_path / "second", cache_dir=cache, image_size=SIZE)
    assert counts(planned) == (1, 0, 0, 40, 1)
    assert not (tmp_path / "second").exists()
    updated = stage(photos, tmp_path / "second", cache_dir=cache)
    assert counts(updated.report) == (1, 0, 0, 40, 1)
    assert updated.path.read_bytes() == stage(photos, tmp_path / "fresh").path.read_bytes()
    # The record was published with the new pack, and is restored with it.
    assert stage(photos, tmp_path / "third", cache_dir=cache).report.origin == "cache"
    write(photos / "cat" / "newer.jpg", jpeg(1001))
    assert counts(stage(photos, tmp_path / "third").report) == (1, 0, 0, 41, 1)
    purge_datasets(list_datasets(local_dir=tmp_path / "third", cache_dir=cache))
    assert [path for place in (cache, tmp_path / "third") for path in place.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(("local", "added"), [("first", 1), ("second", 1), ("second", 60)])
def test_classes_that_get_other_numbers_are_told(tmp_path: Path, local: str, added: int) -> None:
    """Here, and on a new machine, whether or not rows are taken over: a model that was trained with the earlier pack
    would name them wrongly."""
    photos, cache = tmp_path / "photos", tmp_path / "cache"
    write_photos(photos, 40)
    stage(photos, tmp_path / "first", cache_dir=cache)
    write(photos / "zebra" / "new.jpg", jpeg(1000))
    stage(photos, tmp_path / "first", cache_dir=cache)
    for number in range(added):
        write(photos / "ant" / f"{number}.jpg", jpeg(1001 + number))
    with pytest.warns(UserWarning, match=r"'cat', 'dog', 'zebra' \('cat' was 0 and is 1\)") as caught:
        data = stage(photos, tmp_path / local, cache_dir=cache)
    assert caught[0].filename == __file__
    assert str(caught[0].message) in data.report.notes


def test_a_record_has_the_columns_of_its_form(tmp_path: Path) -> None:
    """Others under the same number would make every row of the packs that people have be read once more, in silence."""
    write_photos(tmp_path / "photos", 4)
    (record,) = stage(tmp_path / "photos", tmp_path / "local").path.parent.glob("*.rows")
    with np.load(record) as stored:
        form, names = json.loads(stored["head"].tobytes())["format"], stored["rows"].dtype.names
    columns = {"colabstage rows 2": "name digest version content height width frames bits turned"}
    assert " ".join(names) == columns[form]


def test_without_room_for_both_packs_everything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos, cache, size = tmp_path / "photos", tmp_path / "cache", (512, 512)
    write_photos(photos, 20)
    pack = stage(photos, tmp_path / "first", cache_dir=cache, image_size=size).path
    write(photos / "cat" / "new.jpg", jpeg(1000))
    found = list(os.statvfs(tmp_path))
    found[3] = found[4] = (pack.stat().st_size + (12 << 20)) // found[1]
    with monkeypatch.context() as full:
        full.setattr(os, "statvfs", lambda _: os.statvfs_result(found))
        updated = stage(photos, tmp_path / "second", cache_dir=cache, image_size=size)
    assert counts(updated.report) is None
    assert "no room here" in str(updated.report)
    assert updated.path.read_bytes() == stage(photos, tmp_path / "fresh", image_size=size).path.read_bytes()


@pytest.mark.parametrize("spoilt", [b"notes of mine", (6, 0), "rows", "head"])
def test_a_record_that_is_none_counts_for_nothing(tmp_path: Path, spoilt: bytes | tuple[int, int] | str) -> None:
    """Also one with a wrong bit in what a zip's directory says of its first member: version, flags or method; and one
    of other rows than the pack has."""
    photos = tmp_path / "photos"
    write_photos(photos, 4)
    (record,) = stage(photos, tmp_path / "local").path.parent.glob("*.rows")
    content = bytearray(record.read_bytes())
    if isinstance(spoilt, tuple):
        content[content.index(b"PK\x01\x02") + spoilt[0]] ^= 1 << spoilt[1]
    elif isinstance(spoilt, str):
        with np.load(record) as stored:
            arrays = dict(stored)
        rows, head = arrays["rows"], json.loads(arrays["head"].tobytes())
        head["splits"] = [["another", len(rows)]]
        others = {
            "rows": rows[:-1],
            "head": np.frombuffer(json.dumps(head).encode(), np.uint8),
        }
        made = io.BytesIO()
        np.savez(made, **{**arrays, spoilt: others[spoilt]})
        content[:] = made.getvalue()
    else:
        content[:] = spoilt
    record.write_bytes(content)
    write(photos / "cat" / "new.jpg", jpeg(1000))
    updated = stage(photos, tmp_path / "local")
    assert counts(updated.report) in {None, (1, 0, 0, 4, 1)}
    assert updated.path.read_bytes() == stage(photos, tmp_path / "fresh").path.read_bytes()
    if isinstance(spoilt, str):
        assert counts(updated.report) is None
    if isinstance(spoilt, bytes):
        # It may be somebody else's.
        assert (counts(updated.report), record.read_bytes()) == (None, spoilt)


def _exchange_folders(photos: Path) -> None:
    (photos / "cat").rename(photos / "aside")
    (photos / "dog").rename(photos / "cat")
    (photos / "aside").rename(photos / "dog")


def test_what_an_interrupted_run_has_packed_is_proved_too(tmp_path: Path) -> None:
    """Otherwise the pack's record would vouch for rows that were read under other names."""
    photos = tmp_path / "photos"
    for number in range(302):
        picture = image(number, size=(24, 32), form="BMP")
        write(photos / ("cat" if number % 2 else "dog") / f"{number // 2:03}.bmp", picture)
    last = photos / "dog" / "150.bmp"
    whole = last.read_bytes()
    last.write_bytes(b"no image".ljust(len(whole)))
    for path in photos.rglob("*.bmp"):
        os.utime(path, ns=(10**18, 10**18))
    with pytest.raises(DecodeError, match=r"150\.bmp"):
        stage(photos, tmp_path / "local")
    last.write_bytes(whole)
    _exchange_folders(photos)
    finished = stage(photos, tmp_path / "local")
    assert finished.path.read_bytes() == stage(photos, tmp_path / "fresh").path.read_bytes()


def test_an_earlier_pack_that_is_removed_meanwhile_is_done_without(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    write_photos(photos, 12)
    pack = stage(photos, tmp_path / "local").path
    write(photos / "cat" / "new.jpg", jpeg(1000))
    updated = stage(photos, tmp_path / "local", progress=AtStep("take over", pack.unlink))
    assert updated.path.read_bytes() == stage(photos, tmp_path / "fresh").path.read_bytes()


def test_a_label_in_a_table_that_is_mended_costs_no_reading(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for number in range(12):
        write(photos / f"{number}.jpg", jpeg(number))

    def label(cats: range) -> None:
        rows = [f"{number}.jpg,{'cat' if number in cats else 'dog'}" for number in range(12)]
        (photos / "labels.csv").write_text("\n".join(["file,label", *rows]), encoding="utf-8")

    label(range(6))
    stage(photos, tmp_path / "local")
    label(range(5))
    updated = stage(photos, tmp_path / "local")
    assert counts(updated.report) == (0, 0, 0, 12, 0)
    assert updated.path.read_bytes() == stage(photos, tmp_path / "fresh").path.read_bytes()


@pytest.mark.torch
def test_streaming_begins_with_the_rows_that_are_here(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    write_photos(photos, 64)
    stage(photos, tmp_path / "local")
    Edits(photos, 4).make()
    streamed = stage(photos, tmp_path / "local", streaming=True)
    seen = sum(len(batch[0]) for batch in streamed.loader("train", batch_size=8))
    updated = streamed.wait()
    assert seen == 64
    assert counts(updated.report) == (8, 4, 8, 52, 12)
    assert updated.path.read_bytes() == stage(photos, tmp_path / "fresh").path.read_bytes()


Edit = Callable[[Path, int], None]


def _photos(folder: Path) -> list[Path]:
    return sorted((folder / "images").rglob("*.jpg"))


def _any(folder: Path, number: int) -> Path:
    files = _photos(folder)
    return files[number % len(files)]


def _beside(path: Path) -> Path:
    """The same name in the other of two folders."""
    (other,) = (one for one in path.parent.parent.iterdir() if one != path.parent)
    return other / path.name


def _add(folder: Path, number: int) -> None:
    write(_any(folder, number).parent / f"n{number}.jpg", jpeg(500 + number))


def _rewrite(folder: Path, number: int) -> None:
    _any(folder, number).write_bytes(jpeg(900 + number))


def _remove(folder: Path, number: int) -> None:
    if len(_photos(folder)) > 8:
        _any(folder, number).unlink()


def _move(folder: Path, number: int) -> None:
    path = _any(folder, number)
    path.rename(_beside(path))


def _copy(folder: Path, number: int) -> None:
    """The same content twice, with the same name in two folders and the same time."""
    path = _any(folder, number)
    shutil.copy2(path, _beside(path))


def _swap(folder: Path, number: int) -> None:
    """Two files exchange their names, and keep their times."""
    one, other = _any(folder, number), _any(folder, number // 3)
    if one != other:
        shutil.move(one, folder / "aside")
        shutil.move(other, one)
        shutil.move(folder / "aside", other)


def _cross(folder: Path, number: int) -> None:
    """The two folders exchange their names."""
    one, other = sorted((folder / "images").iterdir())
    one.rename(folder / "aside")
    other.rename(one)
    (folder / "aside").rename(other)


def _disguise(folder: Path, number: int) -> None:
    """All files have one size and one time, and one of them has new content."""
    _any(folder, number).write_bytes(jpeg(1900 + number))
    for path in _photos(folder):
        if (size := path.stat().st_size) < 4000:
            with path.open("ab") as file:
                file.write(bytes(4000 - size))
        os.utime(path, ns=(10**18, 10**18))


def _spoil(folder: Path, number: int) -> None:
    """A file is cut, or one that was cut is whole again."""
    for path in folder.rglob("broken.jpg"):
        path.write_bytes(jpeg(7)[: 300 if path.stat().st_size > 300 else None])


_EDITS: dict[str, Edit] = {
    "add": _add,
    "rewrite": _rewrite,
    "remove": _remove,
    "move": _move,
    "copy": _copy,
    "swap": _swap,
    "cross": _cross,
    "disguise": _disguise,
    "spoil": _spoil,
}
_FORMS: list[dict[str, Any]] = [
    {"image_size": SIZE},
    {"image_size": SIZE, "resize": "crop"},
    {"encoding": "encoded"},
    {"encoding": "jpeg:80", "image_size": SIZE},
    {"image_size": None, "color_mode": "keep"},
    {"image_size": SIZE, "on_error": "skip"},
]


def _dressed(folder: Path, form: str) -> Path:
    """Make the source from the images: a zip of them, or masks, boxes or a table beside them."""
    files = _photos(folder)
    if form == "masks":
        shutil.rmtree(folder / "masks", ignore_errors=True)
        for path in files:
            place = folder / "masks" / path.relative_to(folder / "images").with_suffix(".png")
            write(place, grey(np.random.default_rng(path.stat().st_size).integers(0, 4, (24, 32), np.uint8)))
            # As written by programs that copy the original's time.
            os.utime(place, ns=(path.stat().st_mtime_ns, path.stat().st_mtime_ns))
    if form == "boxes":
        shutil.rmtree(folder / "labels", ignore_errors=True)
        for number, path in enumerate(files):
            place = folder / "labels" / path.relative_to(folder / "images").with_suffix(".txt")
            write(place, f"{number % 2} 0.5 0.5 0.{1 + number % 8} 0.5\n".encode())
    if form == "table":
        rows = [f"{path.relative_to(folder)},{len(path.name) % 2}.5" for path in files]
        (folder / "labels.csv").write_text("\n".join(["file,label", *rows]), encoding="utf-8")
    if form == "zip":
        (folder.parent / "data.zip").write_bytes(zip_of(folder))
        return folder.parent / "data.zip"
    return folder


@pytest.mark.slow
@given(
    st.sampled_from(["folders", "zip", "masks", "boxes", "table"]),
    st.sampled_from(_FORMS),
    st.lists(
        st.lists(st.tuples(st.sampled_from(sorted(_EDITS)), st.integers(0, 999)), max_size=5), min_size=1, max_size=3
    ),
)
@settings(
    max_examples=settings().max_examples // 8,  # an example has up to ten calls
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_after_any_edits_the_pack_is_that_of_reading_everything(
    tmp_path: Path, form: str, options: dict[str, Any], rounds: list[list[tuple[str, int]]]
) -> None:
    for place in tmp_path.iterdir():
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    folder = tmp_path / "data"
    for number in range(10):
        write(folder / "images" / ("train", "val")[number % 2] / f"{number}.jpg", jpeg(number))
    if options.get("on_error"):
        write(folder / "images" / "train" / "broken.jpg", jpeg(7)[:300])
    stage(_dressed(folder, form), tmp_path / "local", **options)
    for edits in rounds:
        for name, number in edits:
            _EDITS[name](folder, number)
        source = _dressed(folder, form)
        shutil.rmtree(tmp_path / "fresh", ignore_errors=True)
        planned = plan_stage(source, local_dir=tmp_path / "local", cache_dir=None, **{"image_size": SIZE, **options})
        updated, fresh = (stage(source, tmp_path / place, **options) for place in ("local", "fresh"))
        assert counts(planned) == counts(updated.report)
        assert updated.report.skipped == fresh.report.skipped
        assert updated.path.read_bytes() == fresh.path.read_bytes()
        assert len(list(updated.path.parent.glob("*.rows"))) == 1
