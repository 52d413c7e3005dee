"""`pack_dataset` from end to end: every container, every way to store, every bad thing a source can hold."""

from __future__ import annotations

import html
import io
import os
import shutil
import zipfile
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import (
    ArchiveError,
    CorruptArchiveError,
    DecodeError,
    EmptySourceError,
    LayoutError,
    NotEnoughSpaceError,
    OptionError,
    SourceNotFoundError,
    TargetExistsError,
    TargetNotWritableError,
)
from colabstage.h5.info import read_info
from colabstage.h5.manifest import is_whole, read_manifest
from colabstage.trees.open import open_tree
from tests.support.steps import Meanwhile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Fixture = Any


def pack(source: Path, out: Path, **options: Any) -> Any:
    """Pack in silence."""
    return pack_dataset(source, out, progress=False, **options)


def _pillow(path: Path) -> Any:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_pixels_are_what_pillow_decodes(tmp_path: Path, photos: Path, read_pack: Fixture) -> None:
    """Every row is its file's image, JPEG and PNG alike, with the label of its folder."""
    out = tmp_path / "out.h5"
    report = pack(photos, out)
    found = read_pack(out)
    assert report.encoding == "pixels"
    assert (report.samples, report.skipped, report.resumed) == ({"train": 30}, (), 0)
    assert found["X_train"].shape == (30, 16, 20, 3)
    assert found["X_train"].dtype == np.uint8
    assert sorted(found["key_train"]) == sorted(str(p.relative_to(photos)) for p in photos.rglob("*.*"))
    for row, (key, label) in enumerate(zip(found["key_train"], found["Y_train"], strict=True)):
        assert np.array_equal(found["X_train"][row], _pillow(photos / key))
        assert found["classes"][label] == key.split("/")[0]


def test_encoded_rows_are_the_files_own_bytes(tmp_path: Path, photos: Path, read_pack: Fixture) -> None:
    """With encoding="encoded" a row is its file, byte for byte."""
    out = tmp_path / "out.h5"
    report = pack(photos, out, encoding="encoded", color_mode="grayscale")
    found = read_pack(out)
    offsets, data = found["X_train/offsets"], found["X_train/bytes"]
    assert (report.encoding, offsets[0], offsets[-1]) == ("encoded", 0, len(data))
    for row, key in enumerate(found["key_train"]):
        assert data[offsets[row] : offsets[row + 1]].tobytes() == (photos / key).read_bytes()
    image = read_info(out).split("train").x.image
    assert image is not None
    assert image.color_mode == "grayscale"


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_every_container_of_the_same_images_gives_the_same_samples(
    tmp_path: Path, photos: Path, make_zip: Fixture, make_tar: Fixture, read_pack: Fixture, encoding: str
) -> None:
    """Folder, zip, tar and tar.gz differ in nothing but the source's name in the attributes."""
    sources = (
        photos,
        make_zip(photos, tmp_path / "photos.zip"),
        make_tar(photos, tmp_path / "photos.tar"),
        make_tar(photos, tmp_path / "photos.tar.gz"),
    )
    packs = []
    for number, source in enumerate(sources):
        out = tmp_path / "packs" / f"{number}.h5"
        pack(source, out, encoding=encoding, splits={"train": 0.8, "test": 0.2})
        packs.append(read_pack(out))
    for other in packs[1:]:
        assert other.keys() == packs[0].keys()
        for name, value in packs[0].items():
            assert np.array_equal(value, other[name]), name


def test_a_notebook_shows_the_report(tmp_path: Path, photos: Path) -> None:
    """What it says as text, and where the file is."""
    report = pack_dataset(photos, tmp_path / "<u>.h5", progress=False)
    shown = report._repr_html_()
    assert str(report).splitlines()[0] in html.unescape(shown)
    assert "&lt;u&gt;.h5" in shown
    assert "<u>" not in shown


def test_packing_twice_gives_the_same_bytes(tmp_path: Path, photos: Path) -> None:
    """The same source and options make the same file; another seed orders the rows differently."""
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        pack(photos, tmp_path / f"{name}.h5", seed=seed)
    first, again, other = ((tmp_path / f"{name}.h5").read_bytes() for name in "abc")
    assert first == again
    assert first != other


def test_manifest_vouches_for_every_byte(tmp_path: Path, photos: Path) -> None:
    """A finished pack has a manifest that fits it, and nothing else is left beside it."""
    out = tmp_path / "there" / "out.h5"
    report = pack(photos, out)
    manifest = read_manifest(out)
    assert manifest is not None
    assert is_whole(out, manifest)
    assert (manifest.samples, manifest.size) == ({"train": 30}, report.nbytes)
    assert sorted(path.name for path in out.parent.iterdir()) == ["out.h5", "out.h5.json"]


def test_split_folders_are_kept_as_they_are(tmp_path: Path, photos: Path, read_pack: Fixture) -> None:
    """Folders of splits become datasets of that name; test keeps the source's order, train is shuffled."""
    source = tmp_path / "with-splits"
    shutil.copytree(photos, source / "train")
    shutil.copytree(photos, source / "test")
    out = tmp_path / "out.h5"
    pack(source, out)
    found = read_pack(out)
    assert found["key_test"] == sorted(found["key_test"])
    assert found["key_train"] != sorted(found["key_train"])
    assert len(found["key_train"]) == len(found["key_test"]) == 30


def test_images_of_many_sizes_stay_encoded_unless_a_size_is_given(
    tmp_path: Path, photos: Path, image_bytes: Fixture
) -> None:
    """Mixed sizes are kept as they came and the report says so; image_size makes pixels of them; "pixels" refuses."""
    (photos / "class0" / "odd.png").write_bytes(image_bytes(99, size=(17, 40)))
    report = pack(photos, tmp_path / "auto.h5")
    assert report.encoding == "encoded"
    assert "many sizes" in report.reason
    assert pack(photos, tmp_path / "sized.h5", image_size=(8, 8)).encoding == "pixels"
    with pytest.raises(LayoutError, match="image_size"):
        pack(photos, tmp_path / "pixels.h5", encoding="pixels")
    assert not (tmp_path / "pixels.h5").exists()


def test_an_odd_image_that_the_first_look_missed_changes_the_plan(
    tmp_path: Path,
    make_images: Fixture,
    image_bytes: Fixture,
    read_pack: Fixture,
    leftovers: Callable[[Path], list[str]],
) -> None:
    """Of 200 images 16 are looked at; one of another size among the rest makes the pack encoded, or is named."""
    photos = make_images(tmp_path / "photos", 200)
    # The seventh of a folder: not among those the first look picks.
    odd = sorted((photos / "class1").iterdir())[7]
    odd.write_bytes(image_bytes(999, size=(9, 9)))
    out = tmp_path / "out.h5"
    report = pack(photos, out)
    assert report.encoding == "encoded"
    assert len(read_pack(out)["key_train"]) == 200
    with pytest.raises(LayoutError, match=odd.name):
        pack(photos, tmp_path / "pixels.h5", encoding="pixels")
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("color_mode", "channels"), [("rgb", 3), ("grayscale", 1)])
def test_colours_become_what_was_asked(tmp_path: Path, photos: Path, color_mode: str, channels: int) -> None:
    """The last axis has the channels that color_mode names."""
    out = tmp_path / "out.h5"
    pack(photos, out, color_mode=color_mode, image_size=(8, 12))
    assert read_info(out).split("train").x.shape == (8, 12, channels)


def test_16_bit_images_are_kept_in_16_bits(tmp_path: Path, read_pack: Fixture) -> None:
    """With color_mode="keep" a deep image is stored with its own dtype."""
    values = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    for name in ("a/1.png", "b/2.png"):
        place = tmp_path / "deep" / name
        place.parent.mkdir(parents=True)
        Image.fromarray(values).save(place)
    out = tmp_path / "out.h5"
    pack(tmp_path / "deep", out, color_mode="keep")
    stored = read_pack(out)["X_train"]
    assert stored.dtype == np.uint16
    assert np.array_equal(stored[0, :, :, 0], values)


def test_names_of_any_kind_survive(tmp_path: Path, photos: Path, read_pack: Fixture) -> None:
    """Umlauts come out as they are, and a name that is no UTF-8 does not stop the pack."""
    (photos / "class0" / "0000.jpg").rename(photos / "class0" / "größe №1.jpg")
    (photos / "class1" / "0001.jpg").rename(photos / "class1" / os.fsdecode(b"caf\xe9.jpg"))
    out = tmp_path / "out.h5"
    pack(photos, out)
    keys = read_pack(out)["key_train"]
    assert "class0/größe №1.jpg" in keys
    assert any(key.startswith("class1/caf") for key in keys)
    assert len(set(keys)) == 30


def _break(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "text": b"<html>quota</html>"}[how])


@pytest.mark.parametrize("encoding", ["pixels", "encoded", "auto"])
@pytest.mark.parametrize("how", ["empty", "cut", "text"])
def test_a_bad_image_is_named_and_nothing_is_made(
    tmp_path: Path, photos: Path, leftovers: Callable[[Path], list[str]], how: str, encoding: str
) -> None:
    """on_error="raise" stops at the file by name; what is finished is kept until the next try ends."""
    whole = (photos / "class1" / "0004.png").read_bytes()
    _break(photos / "class1" / "0004.png", how)
    out = tmp_path / "out.h5"
    with pytest.raises(DecodeError, match=r"class1/0004\.png.*on_error='skip'"):
        pack(photos, out, encoding=encoding)
    assert not out.exists()
    (photos / "class1" / "0004.png").write_bytes(whole)
    pack(photos, out, encoding=encoding)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("then", ["repair", "skip"])
def test_work_done_before_a_bad_image_is_kept(tmp_path: Path, make_images: Fixture, then: str) -> None:
    """A file repaired, or on_error="skip" after all: of 300 images the next try does but the rest."""
    photos = make_images(tmp_path / "photos", 300)
    last = photos / max(open_tree(photos, spool=tmp_path).entries, key=lambda entry: entry.position).name
    whole = last.read_bytes()
    _break(last, "cut")
    out = tmp_path / "out.h5"
    with pytest.raises(DecodeError, match=last.name):
        pack(photos, out, encoding="pixels", image_size=(16, 20))
    on_error = "skip"
    if then == "repair":
        last.write_bytes(whole)
        on_error = "raise"
    report = pack(photos, out, encoding="pixels", image_size=(16, 20), on_error=on_error)
    assert report.resumed > 200
    assert report.samples == {"train": 300 if then == "repair" else 299}
    pack(photos, tmp_path / "undisturbed.h5", encoding="pixels", image_size=(16, 20), on_error=on_error)
    assert out.read_bytes() == (tmp_path / "undisturbed.h5").read_bytes()


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_skipping_gives_what_packing_without_the_bad_files_gives(
    tmp_path: Path, photos: Path, read_pack: Fixture, encoding: str
) -> None:
    """Every skipped file is named with its reason in report, file and manifest; the rest is as if it had never been."""
    bad = {"class0/0000.jpg": "empty", "class1/0004.png": "cut", "class2/0029.png": "text"}
    for name, how in bad.items():
        _break(photos / name, how)
    report = pack(photos, tmp_path / "skipped.h5", encoding=encoding, on_error="skip")
    for name in bad:
        (photos / name).unlink()
    pack(photos, tmp_path / "without.h5", encoding=encoding)
    skipped, without = read_pack(tmp_path / "skipped.h5"), read_pack(tmp_path / "without.h5")
    assert [line.split(":")[0] for line in sorted(skipped.pop("skipped"))] == sorted(bad)
    assert skipped.keys() == without.keys()
    for name, value in without.items():
        assert np.array_equal(value, skipped[name]), name
    assert sorted(line.split(":")[0] for line in report.skipped) == sorted(bad)
    assert all(len(line.split(": ", 1)[1]) > 10 for line in report.skipped)
    assert read_info(tmp_path / "skipped.h5").skipped == report.skipped
    manifest = read_manifest(tmp_path / "skipped.h5")
    assert manifest is not None
    assert (manifest.skipped, manifest.samples) == (report.skipped, {"train": 27})
    assert is_whole(tmp_path / "skipped.h5", manifest)
    assert report.samples == {"train": 27}


@pytest.mark.parametrize(("limit", "stops"), [("skip:10%", False), ("skip:9.9%", True), ("skip:0%", True)])
def test_skipping_has_a_limit(tmp_path: Path, photos: Path, limit: str, stops: bool) -> None:
    """Three of thirty may be left out where a tenth may, and no more."""
    for name in ("class0/0000.jpg", "class1/0004.png", "class2/0029.png"):
        _break(photos / name, "cut")
    out = tmp_path / "out.h5"
    if not stops:
        assert len(pack(photos, out, on_error=limit).skipped) == 3
        return
    with pytest.raises(DecodeError, match=r"of 30 .*skip:"):
        pack(photos, out, on_error=limit)
    assert not out.exists()


@pytest.mark.parametrize("wrong", ["skip:", "skip:1", "skip:101%", "skip:-1%", "ignore"])
def test_limits_that_cannot_be_are_refused(tmp_path: Path, photos: Path, wrong: str) -> None:
    """A limit is a share in percent."""
    with pytest.raises(OptionError, match="skip:1%"):
        pack(photos, tmp_path / "out.h5", on_error=wrong)


def test_samples_once_skipped_are_tried_again_when_none_may_be(tmp_path: Path, photos: Path) -> None:
    """A journal written under "skip" hides no broken image from a run under "raise"."""
    names = ("class0/0000.jpg", "class0/0003.png", "class2/0029.png")
    for name in names:
        _break(photos / name, "cut")
    out = tmp_path / "out.h5"
    with pytest.raises(DecodeError):
        pack(photos, out, on_error="skip:7%")
    with pytest.raises(DecodeError, match="on_error='skip'"):
        pack(photos, out)


def test_a_source_of_nothing_but_bad_images_is_an_error_even_when_skipping(tmp_path: Path, photos: Path) -> None:
    """An empty pack helps nobody; the first reason is in the message."""
    for path in photos.rglob("*.*"):
        _break(path, "cut")
    with pytest.raises(LayoutError, match=r"\b30\b"):
        pack(photos, tmp_path / "out.h5", on_error="skip", image_size=(8, 8))
    assert not (tmp_path / "out.h5").exists()


def _damage_member(archive: Path, name: str) -> None:
    """Flip bytes in the middle of a member's data."""
    with zipfile.ZipFile(archive) as opened:
        member = opened.getinfo(name)
    with archive.open("r+b") as handle:
        handle.seek(member.header_offset + 30 + len(name) + member.compress_size // 2)
        old = handle.read(4)
        handle.seek(-4, io.SEEK_CUR)
        handle.write(bytes(byte ^ 0xFF for byte in old))


@pytest.mark.parametrize("encoding", ["auto", "pixels", "encoded"])
@pytest.mark.parametrize("name", ["class0/0000.jpg", "class2/0029.png"])
def test_a_corrupt_member_of_a_zip_is_one_bad_sample(
    tmp_path: Path, photos: Path, make_zip: Fixture, name: str, encoding: str
) -> None:
    """Also when it is among those that the plan is made from: named when raising, left out when skipping."""
    archive = make_zip(photos, tmp_path / "photos.zip")
    _damage_member(archive, name)
    with pytest.raises(CorruptArchiveError, match=name):
        pack(archive, tmp_path / "out.h5", encoding=encoding)
    report = pack(archive, tmp_path / "out.h5", encoding=encoding, on_error="skip")
    assert [line.split(":")[0] for line in report.skipped] == [name]
    assert report.samples == {"train": 29}


def test_an_empty_member_with_a_wrong_checksum_is_left_out_once(
    tmp_path: Path, photos: Path, make_zip: Fixture
) -> None:
    """It is damaged as a member and empty as an image; the rest of its block is still packed whole."""
    (photos / "class0" / "0000.jpg").write_bytes(b"")
    archive = make_zip(photos, tmp_path / "photos.zip")
    raw = bytearray(archive.read_bytes())
    directory = raw.rfind(b"PK\1\2", 0, raw.rfind(b"class0/0000.jpg"))
    raw[directory + 16 : directory + 20] = b"\1\2\3\4"
    archive.write_bytes(raw)
    report = pack(archive, tmp_path / "out.h5", on_error="skip")
    assert len(report.skipped) == 1
    assert report.samples == {"train": 29}


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        (lambda place: None, SourceNotFoundError),
        (lambda place: place.mkdir(), EmptySourceError),
        (lambda place: place.write_bytes(b"PK\3\4 cut off"), ArchiveError),
        (lambda place: place.write_bytes(b"<!DOCTYPE html><title>Sign in</title>"), ArchiveError),
    ],
    ids=["missing", "empty folder", "cut archive", "web page"],
)
def test_a_bad_source_changes_nothing(
    tmp_path: Path, photos: Path, prepare: Callable[[Path], object], error: type[Exception]
) -> None:
    """A pack that stood at the target is as it was, also with overwrite=True; no folder is made for a new one."""
    out = tmp_path / "kept" / "out.h5"
    pack(photos, out)
    before = {path.name: path.read_bytes() for path in out.parent.iterdir()}
    bad = tmp_path / "bad.zip"
    prepare(bad)
    with pytest.raises(error):
        pack(bad, out, overwrite=True)
    assert {path.name: path.read_bytes() for path in out.parent.iterdir()} == before
    with pytest.raises(error):
        pack(bad, tmp_path / "new" / "out.h5")
    assert not (tmp_path / "new").exists()


def test_a_failure_midway_keeps_the_old_pack(tmp_path: Path, photos: Path) -> None:
    """With overwrite=True what stands at the target is replaced at the very end, or not at all."""
    out = tmp_path / "out.h5"
    pack(photos, out)
    before = {path.name: path.read_bytes() for path in (out, tmp_path / "out.h5.json")}
    _break(photos / "class2" / "0029.png", "cut")
    with pytest.raises(DecodeError):
        pack(photos, out, overwrite=True)
    assert {path.name: path.read_bytes() for path in (out, tmp_path / "out.h5.json")} == before
    (photos / "class2" / "0029.png").unlink()
    pack(photos, out, overwrite=True)
    manifest = read_manifest(out)
    assert manifest is not None
    assert manifest.samples == {"train": 29}
    assert is_whole(out, manifest)


def test_what_stands_at_the_target_is_not_replaced_unasked(tmp_path: Path, photos: Path) -> None:
    """A file needs overwrite=True; a folder is never replaced."""
    out = tmp_path / "out.h5"
    out.write_text("mine")
    with pytest.raises(TargetExistsError, match="overwrite=True"):
        pack(photos, out)
    assert out.read_text() == "mine"
    (tmp_path / "folder").mkdir()
    with pytest.raises(TargetExistsError, match="folder"):
        pack(photos, tmp_path / "folder", overwrite=True)
    with pytest.raises(OptionError, match="is a folder"):
        pack_dataset(photos, f"{tmp_path}/not-there/", progress=False)
    assert not (tmp_path / "not-there").exists()


def test_a_pack_does_not_take_the_place_of_its_own_source(tmp_path: Path) -> None:
    """Whatever else is asked for, also where a link leads to it."""
    out, link = tmp_path / "data.h5", tmp_path / "link.h5"
    with h5py.File(out, "w") as file:
        file["x"] = np.arange(12.0).reshape(6, 2)
        file["y"] = np.arange(6)
    link.symlink_to(out)
    before = out.read_bytes()
    for target in (out, link):
        with pytest.raises(OptionError, match=r"\.h5"):
            pack(out, target, overwrite=True)
    assert out.read_bytes() == before


def test_a_target_that_cannot_be_written_is_refused(tmp_path: Path, photos: Path) -> None:
    """A file in the way of the target's folder is one typed error."""
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(TargetNotWritableError):
        pack(photos, tmp_path / "file" / "out.h5")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("layout", "imagenet"),
        ("encoding", "zip"),
        ("on_error", "ignore"),
        ("color_mode", "cmyk"),
        ("resize", "squeeze"),
        ("image_size", (0, 8)),
        ("splits", {"train": 0.7, "test": 0.7}),
        ("splits", {"a/b": 1.0}),
        ("splits", {"train": 0.999, "test": 0.001}),
        ("progress", "yes"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_happens(
    tmp_path: Path, photos: Path, option: str, value: object
) -> None:
    """Each names itself, and no file or folder is made."""
    options: dict[str, Any] = {"progress": False, option: value}
    with pytest.raises(OptionError, match=option.removesuffix("s")):
        pack_dataset(photos, tmp_path / "new" / "out.h5", **options)
    assert not (tmp_path / "new").exists()


def test_too_little_disk_is_told_before_the_first_byte(small_disk: Path, tmp_path: Path, make_images: Fixture) -> None:
    """Pixels that do not fit are refused with both figures; "auto" keeps the images encoded and says why."""
    photos = make_images(tmp_path / "photos", 12, size=(500, 600))
    with pytest.raises(NotEnoughSpaceError, match=r"MB.*MB free"):
        pack(photos, small_disk / "out.h5", encoding="pixels")
    assert list(small_disk.iterdir()) == []
    small = make_images(tmp_path / "small-files", 2, size=(8, 8))
    plain = io.BytesIO()
    Image.new("RGB", (2000, 2000)).save(plain, "PNG")
    for place in small.rglob("*.*"):
        place.write_bytes(plain.getvalue())
    report = pack(small, small_disk / "out.h5")
    assert report.encoding == "encoded"
    assert "free" in report.reason


def test_rows_are_read_by_h5py_without_any_filter(tmp_path: Path, photos: Path) -> None:
    """The large dataset is contiguous, unfiltered and begins on a page."""
    out = tmp_path / "out.h5"
    pack(photos, out)
    with h5py.File(out) as file:
        rows = file["X_train"]
        assert rows.chunks is None
        assert rows.compression is None
        assert rows.id.get_offset() % 4096 == 0
        assert rows[-1].shape == (16, 20, 3)


def test_what_comes_to_the_target_meanwhile_is_not_replaced(tmp_path: Path, photos: Path) -> None:
    """Without overwrite=True it stays as it is, and what is packed is kept for the next call."""
    out = tmp_path / "place" / "out.h5"
    out.parent.mkdir()
    with pytest.raises(TargetExistsError, match="overwrite=True"):
        pack_dataset(photos, out, progress=Meanwhile(lambda: out.write_bytes(b"of somebody else")))
    assert out.read_bytes() == b"of somebody else"
    assert not out.with_name("out.h5.json").exists()
    out.unlink()
    report = pack_dataset(photos, out, progress=False)
    assert report.resumed == sum(report.samples.values())
    assert sorted(path.name for path in out.parent.iterdir()) == ["out.h5", "out.h5.json"]


@pytest.mark.parametrize("executor", [5, "threads", object()])
def test_what_is_no_executor_is_refused(tmp_path: Path, photos: Path, executor: Any) -> None:
    """Before anything is opened."""
    with pytest.raises(OptionError, match="executor="):
        pack_dataset(photos, tmp_path / "out.h5", executor=executor, progress=False)
