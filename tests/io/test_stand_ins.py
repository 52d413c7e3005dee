"""Anything in place of a file is named for what it is: for images, tables, annotations and archives alike."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from colabstage import pack_dataset
from colabstage.errors import ArchiveError, DecodeError, LayoutError
from colabstage.io.files import stand_in
from tests.support.images import make_tree

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"
PAGE = b"<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title></head></html>"
APPLE = b"\0\5\x16\7\0\2\0\0Mac OS X        "
ANNEX = b"/annex/objects/MD5E-s12345--4d7a214614ab2935c943f9e0ff69d22e.png\n"
STAND_INS = [(LFS, "git lfs pull"), (ANNEX, "git annex get"), (PAGE, "web page"), (APPLE, "AppleDouble")]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Images in two classes, and a table of them."""
    return make_tree(tmp_path / "photos", {f"{'ab'[number % 2]}/{number}.png": number for number in range(8)})


@pytest.mark.parametrize(("content", "says"), STAND_INS)
def test_what_a_stand_in_is_is_named(photos: Path, tmp_path: Path, content: bytes, says: str) -> None:
    """In place of an image, anywhere; of a table or annotations, which it does not contain; of an archive."""

    def pack(source: Path, **options: Any) -> Any:
        return pack_dataset(source, tmp_path / "a.h5", image_size=(8, 8), progress=False, **options)

    for name in ("labels.csv", "boxes.json", "a/0.xml"):
        (photos / name).write_bytes(content)
        with pytest.raises(LayoutError, match=rf"'{name}' is .*{says}"):
            pack(photos)
        (photos / name).unlink()
    for name in ("photos.zip", "photos.tar"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ArchiveError, match=says):
            pack(tmp_path / name)
    (photos / "a/0.png").write_bytes(content)
    archives = [Path(shutil.make_archive(f"{tmp_path}/it", kind, photos)) for kind in ("zip", "tar")]
    for source in (photos, *archives):
        with pytest.raises(DecodeError, match=rf"'a/0\.png'.*no image but .*{says}"):
            pack(source)
    assert [says in why for why in pack(photos, on_error="skip").skipped] == [True]


@pytest.mark.parametrize("head", [b"", b"version 1.0\n", b"<?xml version='1.0'?>", b"\x89PNG", b"\xff\xd8\xff\xe0"])
def test_other_files_may_be_what_they_are_called(head: bytes) -> None:
    assert not stand_in(head)
