"""What lies in the place of a file is named as what it is: images, tables, annotations and archives alike."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import ArchiveError, DecodeError
from colabstage.io.files import stand_in
from colabstage.layouts.table import BrokenDatasetError

if TYPE_CHECKING:
    from pathlib import Path

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"
PAGE = b"<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title></head></html>"
APPLE = b"\0\5\x16\7\0\2\0\0Mac OS X        "
STAND_INS = [(LFS, "git lfs pull"), (PAGE, "web page"), (APPLE, "AppleDouble")]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Images in two classes, and a table of them."""
    folder = tmp_path / "photos"
    for number in range(8):
        place = folder / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(place)
    return folder


@pytest.mark.parametrize(("content", "says"), STAND_INS)
@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_an_image_that_is_none_is_named(photos: Path, tmp_path: Path, content: bytes, says: str, kind: str) -> None:
    """Before, the eight bytes that it begins with were."""
    (photos / "a/0.png").write_bytes(content)
    source = photos if kind == "folder" else shutil.make_archive(str(tmp_path / "packed"), kind, photos)
    with pytest.raises(DecodeError, match=rf"'a/0\.png'.*no image but .*{says}"):
        pack_dataset(source, tmp_path / "a.h5", image_size=(8, 8), progress=False)
    report = pack_dataset(source, tmp_path / "b.h5", image_size=(8, 8), on_error="skip", progress=False)
    assert [says in why for why in report.skipped] == [True]


@pytest.mark.parametrize(("content", "says"), STAND_INS)
@pytest.mark.parametrize("name", ["labels.csv", "boxes.json", "a/0.xml"])
def test_a_table_that_is_none_is_named(photos: Path, tmp_path: Path, content: bytes, says: str, name: str) -> None:
    """And annotations: as text they said nothing, and folders would have been the classes."""
    (photos / name).write_bytes(content)
    with pytest.raises(BrokenDatasetError, match=rf"'{name}' is .*{says}"):
        pack_dataset(photos, tmp_path / "a.h5", progress=False)


@pytest.mark.parametrize(("content", "says"), STAND_INS)
@pytest.mark.parametrize("name", ["photos.zip", "photos.tar"])
def test_an_archive_that_is_none_is_named(tmp_path: Path, content: bytes, says: str, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArchiveError, match=says):
        pack_dataset(tmp_path / name, tmp_path / "a.h5", progress=False)


@pytest.mark.parametrize("head", [b"", b"version 1.0\n", b"<?xml version='1.0'?>", b"\x89PNG", b"\xff\xd8\xff\xe0"])
def test_other_files_may_be_what_they_are_called(head: bytes) -> None:
    assert not stand_in(head)
