"""`pack_dataset` from end to end: every container, every encoding, every defect of a source."""

import contextlib
import errno
import os
import shutil
import threading
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import (
    CancelledError,
    CorruptArchiveError,
    DecodeError,
    DriveDisconnectedError,
    LayoutError,
    NotEnoughSpaceError,
    OptionError,
    SourceNotFoundError,
    SourceReadError,
    TargetExistsError,
)
from colabstage.h5.info import read_info
from colabstage.h5.manifest import is_whole, read_manifest
from colabstage.options import Images, SampleTable, TreeFiles
from colabstage.trees.listing import FileEntry, Tree
from tests.images.files import encode
from tests.support.images import image, in_classes, make_tree, noise
from tests.support.steps import Meanwhile, OneStep

COUNT = 30
FILES = {**in_classes(20), **in_classes(10, first=20, suffix=".jpg")}
BAD = {"cat/000.png": b"", "dog/011.png": image(11)[:40], "cat/028.jpg": b"<html>quota</html>"}


def pack(source: Path, out: Path, **options: Any) -> Any:
    return pack_dataset(source, out, progress=False, **options)


def rows_of(found: dict[str, Any], split: str) -> list[bytes]:
    """The stored bytes of each row in a split."""
    if f"X_{split}" in found:
        return [row.tobytes() for row in found[f"X_{split}"]]
    offsets, data = found[f"X_{split}/offsets"], found[f"X_{split}/bytes"]
    return [data[start:end].tobytes() for start, end in pairwise(offsets)]


# --- what is stored ---


def test_pixels_are_what_pillow_decodes(tmp_path: Path, photos: Path, read_pack: Any) -> None:
    """Every row is its file's image, JPEG or PNG, with its folder's label; the manifest agrees with it."""
    report = pack(photos, tmp_path / "there" / "out.h5")
    found = read_pack(tmp_path / "there/out.h5")
    assert (report.encoding, report.samples, report.skipped, report.resumed) == ("pixels", {"train": COUNT}, (), 0)
    assert sorted(found["key_train"]) == sorted(FILES)
    for row, (key, label) in enumerate(zip(found["key_train"], found["Y_train"], strict=True)):
        with Image.open(photos / key) as opened:
            np.testing.assert_array_equal(found["X_train"][row], np.asarray(opened.convert("RGB")))
        assert found["classes"][label] == key.split("/")[0]
    manifest = read_manifest(report.path)
    assert manifest is not None
    assert is_whole(report.path, manifest)
    assert (manifest.samples, manifest.size) == ({"train": COUNT}, report.nbytes)
    assert sorted(path.name for path in report.path.parent.iterdir()) == ["out.h5", "out.h5.json"]


def test_h5py_reads_it_as_anybody_would_want(tmp_path: Path, photos: Path) -> None:
    """Large datasets are contiguous, without filters, and begin on a page; strings are UTF-8."""
    with h5py.File(pack(photos, tmp_path / "out.h5", image_size=(40, 40)).path) as file:
        stored = file["X_train"]
        assert (stored.chunks, stored.compression, stored.id.get_offset() % 4096) == (None, None, 0)
        kind = h5py.check_string_dtype(file["classes"].dtype)
        assert (kind.encoding, kind.length) == ("utf-8", 3)


def test_names_of_any_kind_survive(tmp_path: Path, photos: Path, read_pack: Any) -> None:
    """Umlauts stay as they are, and a name that is not UTF-8 does not stop the pack."""
    (photos / "cat/000.png").rename(photos / "cat/größe №1.png")
    (photos / "dog/001.png").rename(photos / os.fsdecode(b"dog/caf\xe9.png"))
    keys = read_pack(pack(photos, tmp_path / "out.h5").path)["key_train"]
    assert {"cat/größe №1.png", r"dog/caf\udce9.png"} < set(keys)
    assert len(set(keys)) == COUNT


def one_pixel(mode: str, size: tuple[int, int] = (4, 4)) -> bytes:
    return encode(Image.new(mode, size), "PNG")


MANY_SIZES = {"cat/0.png": image(0), "dog/1.png": image(1, size=(4, 40))}
MIXED = {"cat/0.png": one_pixel("RGB"), "dog/1.png": one_pixel("L")}


@pytest.mark.parametrize(
    ("files", "options", "shape", "reason"),
    [
        (FILES, {}, (4, 4, 3), "fits"),
        (MANY_SIZES, {}, None, "many sizes"),
        (MANY_SIZES, {"image_size": (2, 3)}, (2, 3, 3), "fits"),
        (MIXED, {"color_mode": "keep"}, None, "color_mode='rgb'"),
        (MIXED, {"image_size": 5, "color_mode": "grayscale"}, (5, 5, 1), "fits"),
        ({"cat/0.png": one_pixel("RGBA")}, {"color_mode": "keep", "layout": "image_folder"}, (4, 4, 4), "fits"),
        ({"cat/0.png": one_pixel("I;16")}, {"color_mode": "keep", "layout": "image_folder"}, (4, 4, 1), "fits"),
        (FILES, {"encoding": "encoded"}, None, "asked for"),
    ],
)
def test_images_of_one_form_become_pixels(
    tmp_path: Path, files: dict[str, Any], options: dict[str, Any], shape: tuple[int, ...] | None, reason: str
) -> None:
    """All others are stored unchanged, and the report says why."""
    report = pack(make_tree(tmp_path / "data", files), tmp_path / "out.h5", **options)
    x = read_info(tmp_path / "out.h5").split("train").x
    assert (report.encoding, x.shape) == ("pixels" if shape else "encoded", shape)
    assert reason in report.reason
    assert x.dtype == (np.uint16 if files == {"cat/0.png": one_pixel("I;16")} else np.uint8)


@pytest.mark.parametrize(
    ("files", "remedies", "not_named"),
    [
        (MANY_SIZES, ["image_size="], "color_mode="),
        (MIXED, ["color_mode='rgb'"], "image_size="),
        ({**MIXED, "dog/2.png": image(2, size=(9, 4))}, ["image_size=", "color_mode='rgb'"], "seed="),
    ],
)
def test_pixels_that_cannot_be_are_refused_with_the_remedy(
    tmp_path: Path, files: dict[str, Any], remedies: list[str], not_named: str
) -> None:
    with pytest.raises(LayoutError) as caught:
        pack(make_tree(tmp_path / "data", files), tmp_path / "out.h5", encoding="pixels", color_mode="keep")
    assert all(remedy in str(caught.value) for remedy in remedies)
    assert not_named not in str(caught.value)
    assert not (tmp_path / "out.h5").exists()


def test_an_odd_image_that_the_first_look_missed_changes_the_plan(
    tmp_path: Path, leftovers: Callable[[Path], list[str]]
) -> None:
    """16 of 60 images are examined; one of another size among the rest makes the pack encoded, or is named."""
    photos = make_tree(tmp_path / "photos", {**in_classes(60), "cat/005x.png": image(99, size=(5, 7))})
    assert pack(photos, tmp_path / "out.h5").encoding == "encoded"
    assert read_info(tmp_path / "out.h5").rows == {"train": 61}
    with pytest.raises(LayoutError, match=r"005x\.png"):
        pack(photos, tmp_path / "pixels.h5", encoding="pixels")
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("mode", "options", "told"), [
    ("RGBA", {}, True), ("LA", {}, True), ("RGBA", {"color_mode": "keep"}, False),
])  # fmt: skip
def test_a_channel_that_is_left_out_is_told(tmp_path: Path, mode: str, options: dict[str, Any], told: bool) -> None:
    """Transparent pixels show the colour behind them, which nobody has checked."""
    photos = make_tree(tmp_path / "photos", {f"{name}/1.png": one_pixel(mode) for name in "ab"})
    assert any("alpha" in note for note in pack(photos, tmp_path / "out.h5", **options).notes) == told


# --- what is broken ---


@pytest.mark.parametrize("encoding", ["encoded", "jpeg:80"])
def test_what_is_left_out_is_named_and_moves_nothing(
    tmp_path: Path, photos: Path, read_pack: Any, encoding: str
) -> None:
    """Every skipped file is named with its reason in report, file and manifest; all others keep split, label and
    order."""
    options: dict[str, Any] = {"encoding": encoding, "splits": {"train": 0.5, "dev": 0.25, "test": 0.25}}
    whole = read_pack(pack(photos, tmp_path / "whole.h5", **options).path)
    make_tree(photos, BAD)
    report = pack(photos, tmp_path / "gaps.h5", on_error="skip", **options)
    gaps = read_pack(tmp_path / "gaps.h5")
    assert sorted(line.split(":")[0] for line in gaps["skipped"]) == sorted(BAD)
    assert all(len(line.split(": ", 1)[1]) > 10 for line in report.skipped)
    manifest = read_manifest(tmp_path / "gaps.h5")
    assert manifest is not None
    assert is_whole(tmp_path / "gaps.h5", manifest)
    assert read_info(tmp_path / "gaps.h5").skipped == report.skipped == manifest.skipped == tuple(gaps["skipped"])
    assert sum(report.samples.values()) == sum(manifest.samples.values()) == COUNT - len(BAD)
    for split in report.samples:
        kept = [row for row, key in enumerate(whole[f"key_{split}"]) if key not in BAD]
        assert gaps[f"key_{split}"] == [whole[f"key_{split}"][row] for row in kept]
        np.testing.assert_array_equal(gaps[f"Y_{split}"], whole[f"Y_{split}"][kept])
        assert rows_of(gaps, split) == [rows_of(whole, split)[row] for row in kept]
        own = [(photos / key).read_bytes() for key in gaps[f"key_{split}"]]
        assert (rows_of(gaps, split) == own) == (encoding == "encoded")


def test_a_split_of_nothing_but_bad_images_goes(tmp_path: Path, read_pack: Any) -> None:
    """No empty dataset is left."""
    files = {f"train/{name}": number for name, number in in_classes(6).items()}
    source = make_tree(tmp_path / "splits", {**files, "test/cat/1.png": b"", "test/dog/2.png": b""})
    assert pack(source, tmp_path / "out.h5", on_error="skip").samples == {"train": 6}
    assert set(read_pack(tmp_path / "out.h5")) == {"X_train", "Y_train", "key_train", "classes", "skipped"}


@pytest.mark.parametrize(("limit", "stops"), [("skip:10%", False), ("skip:9.9%", True), ("skip:0%", True)])
def test_skipping_has_a_limit(tmp_path: Path, photos: Path, limit: str, stops: bool) -> None:
    """Three of thirty may be skipped if a tenth may, and no more."""
    make_tree(photos, BAD)
    if not stops:
        assert len(pack(photos, tmp_path / "out.h5", on_error=limit).skipped) == 3
        return
    with pytest.raises(DecodeError, match=r"of 30 .*skip:"):
        pack(photos, tmp_path / "out.h5", on_error=limit)
    assert not (tmp_path / "out.h5").exists()


def test_a_source_of_nothing_but_bad_images_is_an_error_even_when_skipping(tmp_path: Path, photos: Path) -> None:
    """An empty pack would be useless."""
    make_tree(photos, dict.fromkeys(FILES, b"no image"))
    with pytest.raises(LayoutError, match=r"\b30\b"):
        pack(photos, tmp_path / "out.h5", on_error="skip", image_size=(8, 8))
    assert not (tmp_path / "out.h5").exists()


def damage_member(archive: Path, name: str) -> None:
    """Flip bytes in the middle of a member's data."""
    with zipfile.ZipFile(archive) as opened:
        member = opened.getinfo(name)
    data = bytearray(archive.read_bytes())
    middle = member.header_offset + 30 + len(name) + member.compress_size // 2
    data[middle : middle + 4] = bytes(byte ^ 0xFF for byte in data[middle : middle + 4])
    archive.write_bytes(data)


@pytest.mark.parametrize(("name", "encoding"), [("cat/000.png", "encoded"), ("cat/028.jpg", "pixels")])
def test_a_corrupt_member_of_a_zip_is_one_bad_sample(tmp_path: Path, photos: Path, name: str, encoding: str) -> None:
    """Also if the plan is based on it: named when raising, left out when skipping."""
    archive = Path(shutil.make_archive(str(photos), "zip", photos))
    damage_member(archive, name)
    with pytest.raises(CorruptArchiveError, match=name):
        pack(archive, tmp_path / "out.h5", encoding=encoding)
    report = pack(archive, tmp_path / "out.h5", encoding=encoding, on_error="skip")
    assert [line.split(":")[0] for line in report.skipped] == [name]
    assert report.samples == {"train": COUNT - 1}


def test_a_damaged_chunk_costs_its_own_rows(tmp_path: Path, read_pack: Any) -> None:
    """Rows are read many at once, and in a damaged chunk each by itself."""
    numbers = np.random.default_rng(0).normal(size=(1000, 50))
    with h5py.File(tmp_path / "in.h5", "w") as file:
        x = file.create_dataset("X_train", data=numbers, chunks=(64, 50), compression="gzip")
        file["Y_train"] = np.arange(2000.0).reshape(1000, 2)
        start = x.id.get_chunk_info(3).byte_offset
    data = bytearray((tmp_path / "in.h5").read_bytes())
    data[start + 100 : start + 140] = bytes(40)
    (tmp_path / "in.h5").write_bytes(data)
    with pytest.raises(DecodeError, match=r"X_train\[192\]"):
        pack(tmp_path / "in.h5", tmp_path / "out.h5")
    report = pack(tmp_path / "in.h5", tmp_path / "out.h5", on_error="skip")
    assert [line.split(":")[0] for line in report.skipped] == [f"in.h5/X_train[{row}]" for row in range(192, 256)]
    found = read_pack(tmp_path / "out.h5")
    rows = [int(name.partition("[")[2][:-1]) for name in found["key_train"]]
    assert sorted(rows) == [row for row in range(1000) if not 192 <= row < 256]
    assert np.array_equal(found["X_train"], numbers[rows])
    assert np.array_equal(found["Y_train"][:, 0], 2.0 * np.array(rows))


class WatchedTree(Tree):
    """A tree that calls `before` before each file is read, to act as a disk or person might."""

    def __init__(self, tree: Tree, before: Callable[[str], object]) -> None:
        self._tree, self._before = tree, before
        self.kind, self.label, self.entries = tree.kind, tree.label, tree.entries

    def read(self, entry: FileEntry) -> bytes:
        self._before(entry.name)
        return self._tree.read(entry)


def watched(before: Callable[[str], object]) -> Callable[[Tree], SampleTable]:
    """A layout of all files in a watched tree."""
    return lambda tree: SampleTable(
        "mine", [entry.name for entry in tree.entries], Images(TreeFiles(WatchedTree(tree, before), tree.entries)), None
    )


@pytest.mark.parametrize(
    ("code", "error"),
    [(errno.EIO, SourceReadError), (errno.ENOTCONN, DriveDisconnectedError), (errno.ENOENT, SourceNotFoundError)],
)
def test_a_source_that_fails_is_named(tmp_path: Path, photos: Path, code: int, error: type[Exception]) -> None:
    """A read that always fails is a typed error with the file's name."""

    def fail(name: str) -> None:
        if name == "cat/028.jpg":
            raise OSError(code, os.strerror(code))

    with pytest.raises(error, match=r"cat/028\.jpg"):
        pack(photos, tmp_path / "out.h5", layout=watched(fail), encoding="encoded")
    assert not (tmp_path / "out.h5").exists()


def test_a_passing_failure_does_not_show(tmp_path: Path, photos: Path) -> None:
    """A read that fails once with errno 5 is tried again."""
    failed: set[str] = set()
    lock = threading.Lock()

    def fail_once(name: str) -> None:
        with lock:
            first = name not in failed and "7" in name
            failed.add(name)
        if first:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    report = pack(photos, tmp_path / "out.h5", layout=watched(fail_once), encoding="encoded")
    assert report.samples == {"train": COUNT}


def test_an_image_that_grows_while_it_is_read_is_an_error(tmp_path: Path, photos: Path) -> None:
    """It would overwrite its neighbour."""

    def grow(name: str) -> None:
        if name == "dog/017.png":
            (photos / name).write_bytes(image(17) + b"more")

    with pytest.raises(SourceReadError, match=r"dog/017\.png"):
        pack(photos, tmp_path / "out.h5", layout=watched(grow), encoding="encoded")
    assert not (tmp_path / "out.h5").exists()


# --- the target ---


def test_a_disk_that_fills_up_midway_is_left_as_it_was(small_disk: Path, tmp_path: Path) -> None:
    """If somebody else fills the space that was free at the start, the error says so and no file of ours stays."""
    photos = make_tree(
        tmp_path / "photos", {f"{number:03}.png": noise(number, size=(160, 120)) for number in range(40)}
    )
    filler = small_disk / "filler"

    def fill(name: str) -> None:
        if name == "020.png" and not filler.exists():
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(65536)):
                    pass

    with pytest.raises(NotEnoughSpaceError, match=str(small_disk)):
        pack(photos, small_disk / "out.h5", layout=watched(fill), encoding="encoded")
    assert list(small_disk.iterdir()) == [filler]


def test_too_little_disk_is_told_before_the_first_byte(small_disk: Path, tmp_path: Path) -> None:
    """Pixels that do not fit are refused with both figures; "auto" keeps the images encoded and says why."""
    photos = make_tree(tmp_path / "photos", {"a/0.png": image(0, size=(2000, 2000))})
    with pytest.raises(NotEnoughSpaceError, match=r"MB.*MB free"):
        pack(photos, small_disk / "out.h5", layout="image_folder", encoding="pixels")
    assert list(small_disk.iterdir()) == []
    report = pack(photos, small_disk / "out.h5", layout="image_folder")
    assert report.encoding == "encoded"
    assert "free" in report.reason


def test_what_stands_at_the_target_is_not_replaced_unasked(tmp_path: Path, photos: Path) -> None:
    """A file needs overwrite=True, a folder is never replaced, and a source never by its own pack."""
    (tmp_path / "out.h5").write_text("mine")
    (tmp_path / "folder").mkdir()
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["y"] = np.arange(12.0).reshape(6, 2), np.arange(6)
    (tmp_path / "link.h5").symlink_to("data.h5")
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.h5")}
    for source, target, overwrite, error in (
        (photos, "out.h5", False, TargetExistsError),
        (photos, "folder", True, TargetExistsError),
        (photos, "not-there/", False, OptionError),
        (tmp_path / "data.h5", "data.h5", True, OptionError),
        (tmp_path / "data.h5", "link.h5", True, OptionError),
    ):
        # Within a second, instead of after hours of work.
        working = Meanwhile(lambda: pytest.fail("the work began"))
        with pytest.raises(error, match=target):
            pack_dataset(source, f"{tmp_path}/{target}", overwrite=overwrite, progress=working)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.h5")} == before
    assert not (tmp_path / "not-there").exists()


def test_what_comes_to_the_target_meanwhile_is_not_replaced(tmp_path: Path, photos: Path) -> None:
    """Without overwrite=True it stays unchanged, and the packed data is kept for the next call."""
    out = tmp_path / "place" / "out.h5"
    out.parent.mkdir()
    with pytest.raises(TargetExistsError, match="overwrite=True"):
        pack_dataset(photos, out, progress=Meanwhile(lambda: out.write_bytes(b"of somebody else")))
    assert out.read_bytes() == b"of somebody else"
    assert not out.with_name("out.h5.json").exists()
    out.unlink()
    report = pack(photos, out)
    assert report.resumed == sum(report.samples.values())
    assert sorted(path.name for path in out.parent.iterdir()) == ["out.h5", "out.h5.json"]


class _Cancels(OneStep):
    done = 0

    def advance(self, amount: int = 1) -> None:
        self.done += amount
        if self.done >= 60:
            self.cancellation.cancel()
            threading.Event().wait(0.05)  # the caller checks several times a second


def test_cancelling_stops_and_keeps_finished_work(tmp_path: Path) -> None:
    photos = make_tree(tmp_path / "photos", in_classes(200))
    with pytest.raises(CancelledError):
        pack_dataset(photos, tmp_path / "out.h5", progress=_Cancels())
    assert not (tmp_path / "out.h5").exists()
    assert 20 < pack(photos, tmp_path / "out.h5").resumed < 200


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("on_error", "skip:1"),
        ("on_error", "skip:101%"),
        ("splits", {"a/b": 1.0}),
        ("splits", {"train": 1.0, "test": 0.0}),
        ("splits", {"train": float("nan"), "test": 0.5}),
        ("encoding", "jpeg:0"),
        ("encoding", "jpeg:101"),
        ("encoding", "jpeg:9.5"),
        ("executor", "threads"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_happens(
    tmp_path: Path, photos: Path, option: str, value: Any
) -> None:
    """In addition to those in the file of messages: each names itself, and no file or folder is created."""
    with pytest.raises(OptionError, match=option.removesuffix("s")):
        pack(photos, tmp_path / "new" / "out.h5", **{option: value})
    assert not (tmp_path / "new").exists()
