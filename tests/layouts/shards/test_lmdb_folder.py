"""LMDB databases, as the lmdb package writes them, read as it reads them."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import CorruptArchiveError, EmptySourceError, LayoutError, MissingDependencyError
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.table import BrokenDatasetError
from colabstage.options import Values
from colabstage.trees.folder import FolderTree
from colabstage.trees.open import open_tree
from tests.layouts.readers import contents

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


lmdb = pytest.importorskip("lmdb", reason="needs lmdb: pip install -c constraints.txt lmdb")


def picture(number: int, side: int = 8) -> bytes:
    """An image file that no other number gives."""
    values = np.random.default_rng(number).integers(0, 255, (side, 6, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def write(folder: Path, values: Mapping[bytes, bytes], **options: Any) -> Path:
    """Make a database with the lmdb package."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(folder), map_size=1 << 28, **options) as env, env.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key, value)
    return folder


def read_back(folder: Path, **options: Any) -> dict[bytes, bytes]:
    """All keys and values as the lmdb package gives them."""
    with lmdb.open(str(folder), readonly=True, lock=False, **options) as env, env.begin() as transaction:
        return dict(transaction.cursor())


def ocr(count: int, words: list[str]) -> dict[bytes, bytes]:
    """Images and texts under the keys that OCR datasets have."""
    found = {b"num-samples": str(count).encode()}
    for number in range(1, count + 1):
        found[b"image-%09d" % number] = picture(number)
        found[b"label-%09d" % number] = words[number % len(words)].encode()
    return found


def test_images_without_labels(tmp_path: Path) -> None:
    """As LSUN has them: hashes as keys, one database for each split."""
    for split, first in (("train", 0), ("val", 30)):
        write(
            tmp_path / f"church_{split}_lmdb", {b"%040x" % (n * 7919**8): picture(n) for n in range(first, first + 9)}
        )
    table = detect_layout(FolderTree(tmp_path))
    theirs = {**read_back(tmp_path / "church_train_lmdb"), **read_back(tmp_path / "church_val_lmdb")}
    assert table.layout == "lmdb"
    assert table.targets is None
    assert table.splits == ("train",) * 9 + ("val",) * 9
    assert contents(table) == list(theirs.values())
    assert [key.partition("[")[2].rstrip("]").encode() for key in table.keys] == list(theirs)


@pytest.mark.parametrize(
    ("words", "values"),
    [(["0", "7"], [7, 0, 7, 0]), (["0.5", "1"], [1.0, 0.5, 1.0, 0.5])],
)
def test_numbers_beside_images_are_targets(tmp_path: Path, words: list[str], values: list[float]) -> None:
    """Under keys that differ in image and label only."""
    write(tmp_path / "db", ocr(4, words))
    table = detect_layout(FolderTree(tmp_path))
    assert isinstance(table.targets, Values)
    assert table.targets.values.tolist() == values


def test_texts_beside_images_are_rows_of_bytes(tmp_path: Path) -> None:
    """As OCR has them; a note says how they are stored."""
    folder = write(tmp_path / "db", ocr(4, ["größer", "7", ""]))
    table = detect_layout(FolderTree(tmp_path))
    theirs = read_back(folder)
    assert isinstance(table.targets, Values)
    found = [row.tobytes().rstrip(b"\0") for row in table.targets.values]
    assert found == [theirs[b"label-%09d" % n] for n in range(1, 5)]
    assert contents(table) == [theirs[b"image-%09d" % n] for n in range(1, 5)]
    assert any("UTF-8" in note for note in table.notes)


def test_folders_in_keys_are_classes(tmp_path: Path) -> None:
    """Where every key is written like the path of an image; one file without a folder is a database, too."""
    values = {b"dog/1.png": picture(1), b"cat/2.png": picture(2), b"cat/1.png": picture(3)}
    write(tmp_path / "test.lmdb", values, subdir=False)
    table = detect_layout(FolderTree(tmp_path))
    assert isinstance(table.targets, Values)
    assert table.classes == ("cat", "dog")
    assert table.targets.values.tolist() == [0, 0, 1]
    assert table.splits == ("test",) * 3
    assert contents(table) == list(read_back(tmp_path / "test.lmdb", subdir=False).values())


@pytest.mark.parametrize(
    ("value", "says"),
    [(pickle.dumps((b"x", 1)), "a pickle, which is never loaded"), (b"\x08\x03\x10\x20", "does not hold image files")],
)
def test_values_that_are_no_images_are_refused(tmp_path: Path, value: bytes, says: str) -> None:
    """Pickles above all; the message says what to do."""
    write(tmp_path / "db", {b"1": value})
    with pytest.raises(LayoutError, match=f"(?s){says}.*pack_dataset"):
        detect_layout(FolderTree(tmp_path), "lmdb")


def test_images_without_their_label_are_named(tmp_path: Path) -> None:
    """Some with and some without is a broken dataset."""
    values = ocr(4, ["1"])
    del values[b"label-000000003"]
    write(tmp_path / "db", values)
    with pytest.raises(BrokenDatasetError, match=r"1 of 4 .*000000003"):
        detect_layout(FolderTree(tmp_path))


def test_a_cut_database_is_named(tmp_path: Path) -> None:
    """Before reading behind its end would end the process by a signal."""
    folder = write(tmp_path / "db", {b"%d" % n: picture(n, 80) for n in range(50)})
    content = (folder / "data.mdb").read_bytes()
    for cut in (len(content) - 4096, len(content) // 2, 8192, 4096, 100):
        (folder / "data.mdb").write_bytes(content[:cut])
        with pytest.raises(CorruptArchiveError, match=r"data\.mdb'"):
            detect_layout(FolderTree(tmp_path), "lmdb")


def test_a_database_in_an_archive_is_read(tmp_path: Path) -> None:
    """From a copy on the local disk."""
    folder = write(tmp_path / "db", ocr(3, ["1", "2"]))
    with zipfile.ZipFile(tmp_path / "d.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "data.mdb", "train/data.mdb")
    with open_tree(tmp_path / "d.zip", spool=tmp_path) as tree:
        assert contents(detect_layout(tree)) == [picture(n) for n in range(1, 4)]


def test_without_lmdb_there_is_an_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for each optional package."""
    write(tmp_path / "db", ocr(3, ["1", "2"]))
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingDependencyError, match=r"data\.mdb'.*pip install lmdb"):
        detect_layout(FolderTree(tmp_path), "lmdb")


def test_other_files_are_not_claimed(tmp_path: Path) -> None:
    """A lock alone, or an Access database by its name."""
    (tmp_path / "lock.mdb").write_bytes(bytes(8192))
    with pytest.raises(EmptySourceError):
        detect_layout(FolderTree(tmp_path), "lmdb")


@pytest.mark.torch
@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_databases_are_packed(tmp_path: Path, encoding: str) -> None:
    """End to end: the packed pixels and labels are those that the lmdb package reads."""
    dataset_h5 = pytest.importorskip("colabstage.load.dataset", reason="needs torch: pip install torch").dataset_h5
    folder = write(tmp_path / "d" / "test", ocr(8, ["0", "1", "2"]))
    pack_dataset(tmp_path / "d", tmp_path / "out.h5", encoding=encoding, progress=False)
    theirs = read_back(folder)
    packed = dataset_h5(tmp_path / "out.h5", split="test")
    assert len(packed) == 8
    for number, (x, y) in enumerate((packed[i] for i in range(len(packed))), 1):
        image = Image.open(io.BytesIO(theirs[b"image-%09d" % number]))
        np.testing.assert_array_equal(x, np.asarray(image))
        assert y == int(theirs[b"label-%09d" % number])
    packed.close()
