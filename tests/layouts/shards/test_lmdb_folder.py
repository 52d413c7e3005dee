"""LMDB databases, as the lmdb package writes them, read as it reads them."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage.errors import CorruptArchiveError, EmptySourceError, LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.formats.lmdb import scan_values
from colabstage.layouts.table import BrokenDatasetError, Values
from colabstage.pack.run import pack_dataset
from colabstage.trees.bytes import LocalBytes
from colabstage.trees.folder import FolderTree

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from colabstage.layouts.table import SampleTable

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


def contents(table: SampleTable) -> list[bytes]:
    """The images of a table."""
    source = table.inputs.source
    return [bytes(source.read(i)) for i in range(len(source))]


def ocr(count: int, words: list[str]) -> dict[bytes, bytes]:
    """Images and texts under the keys that OCR datasets have."""
    found = {b"num-samples": str(count).encode()}
    for number in range(1, count + 1):
        found[b"image-%09d" % number] = picture(number)
        found[b"label-%09d" % number] = words[number % len(words)].encode()
    return found


@pytest.mark.parametrize("count", [0, 1, 3, 500, 20_000])
def test_every_value_is_where_lmdb_has_it(tmp_path: Path, count: int) -> None:
    """Short values inside of pages and long ones in pages of their own, in trees of one level and of several."""
    sizes = np.random.default_rng(count).integers(0, 300, count)
    sizes[::50] *= 70
    data = {b"%x-%d" % (n * 7919 % 100_003, n): bytes([n % 251]) * int(size) for n, size in enumerate(sizes)}
    folder = write(tmp_path / "db", data)
    with LocalBytes(folder / "data.mdb") as file:
        assert {value.key: file.pread(value.size, value.start) for value in scan_values(file)} == data
    assert read_back(folder) == data


def test_a_database_that_was_changed_is_read_as_it_is_now(tmp_path: Path) -> None:
    """Pages that were given up are no part of it."""
    folder = write(tmp_path / "db", {b"%d" % n: bytes(n % 5000) for n in range(2000)})
    with lmdb.open(str(folder), map_size=1 << 28) as env:
        for step in range(5):
            with env.begin(write=True) as transaction:
                for n in range(step, 2000, 7):
                    transaction.delete(b"%d" % n)
                transaction.put(b"new %d" % step, b"x" * 9000)
    with LocalBytes(folder / "data.mdb") as file:
        found = {value.key: file.pread(value.size, value.start) for value in scan_values(file)}
    assert found == read_back(folder)


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


def datum(data: bytes, label: int, *, shape: tuple[int, int, int] = (0, 0, 0), encoded: bool = False) -> bytes:
    """Caffe's message of an image, written by protobuf's own rules."""

    def varint(number: int) -> bytes:
        return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])

    sizes = b"".join(bytes([field << 3]) + varint(side) for field, side in enumerate(shape, 1))
    return (
        sizes + b"\x22" + varint(len(data)) + data
        + b"\x28" + varint(label % (1 << 64)) + (b"\x38\x01" if encoded else b"")
    )  # fmt: skip


def test_caffes_pixels_are_rows(tmp_path: Path) -> None:
    """As create_cifar10 and convert_imageset write them: channels first, the label behind; -1 is a label too."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 5, 4), np.uint8)
    labels = [3, 0, 300, 2, 1, -1]
    for split, rows in (("train", range(4)), ("val", range(4, 6))):
        values = {b"%05d_a.jpg" % n: datum(pixels[n].tobytes(), labels[n], shape=(3, 5, 4)) for n in rows}
        write(tmp_path / "data" / f"cifar_{split}_lmdb", values)
    report = pack_dataset(tmp_path / "data", tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        packed = dict(zip([*file["Y_train"], *file["Y_val"]], [*file["X_train"], *file["X_val"]], strict=True))
        assert sorted(file["Y_val"]) == [-1, 1]
    np.testing.assert_array_equal([packed[label] for label in labels], pixels)
    assert "blue first" in " ".join(report.notes)


def test_caffes_image_files_are_images(tmp_path: Path) -> None:
    """--encoded: the file as it is in the message."""
    write(tmp_path / "db", {b"%d" % n: datum(picture(n), n, shape=(3, 8, 6), encoded=True) for n in range(5)})
    table = detect_layout(FolderTree(tmp_path))
    assert contents(table) == [picture(n) for n in range(5)]
    assert isinstance(table.targets, Values)
    assert table.targets.values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (datum(bytes(30), 0, shape=(3, 5, 2)), r"shape \(3, 5, 2\), and .*of \(3, 5, 4\)"),
        (datum(bytes(59), 0, shape=(3, 5, 4)), "does not hold image files"),
        (datum(b"no image", 0, encoded=True), "does not hold image files"),
        (picture(1), "1 values that are not"),
    ],
)
def test_odd_messages_of_caffes_are_refused(tmp_path: Path, second: bytes, says: str) -> None:
    """Another size, pixels that are cut, a file that is none, and a file among messages."""
    write(tmp_path / "db", {b"1": datum(bytes(60), 1, shape=(3, 5, 4)), b"2": second})
    with pytest.raises(LayoutError, match=says):
        detect_layout(FolderTree(tmp_path), "lmdb")


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


def test_named_databases_are_refused(tmp_path: Path) -> None:
    """Their values lie in trees of their own."""
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 20, max_dbs=2) as env:
        env.open_db(b"named")
    with pytest.raises(LayoutError, match="named databases"):
        detect_layout(FolderTree(tmp_path), "lmdb")


@pytest.mark.parametrize(("place", "value", "says"), [(92, 4, "several values"), (20, 2, "data version 2")])
def test_files_of_other_kinds_are_refused(tmp_path: Path, place: int, value: int, says: str) -> None:
    """Several values for a key, which the package does not make in a file's own database; a later version."""
    path = write(tmp_path / "db", {b"1": picture(1)}) / "data.mdb"
    content = bytearray(path.read_bytes())
    for meta in (0, 4096):
        content[meta + place] = value
    path.write_bytes(content)
    with pytest.raises(LayoutError, match=says):
        detect_layout(FolderTree(tmp_path), "lmdb")


def test_a_cut_database_is_named(tmp_path: Path) -> None:
    """Where the lmdb package would end the process by a signal."""
    folder = write(tmp_path / "db", {b"%d" % n: picture(n, 80) for n in range(50)})
    content = (folder / "data.mdb").read_bytes()
    for cut in (len(content) - 4096, len(content) // 2, 8192, 4096, 100):
        (folder / "data.mdb").write_bytes(content[:cut])
        with pytest.raises(CorruptArchiveError, match=r"data\.mdb'"):
            detect_layout(FolderTree(tmp_path), "lmdb")


def test_damaged_pages_are_refused_or_read(tmp_path: Path) -> None:
    """Whatever byte of a page is another one: some keys, or one error, and an end."""
    folder = write(tmp_path / "db", {b"%d" % n: bytes(100) for n in range(300)})
    content = (folder / "data.mdb").read_bytes()
    random = np.random.default_rng(0)
    refused = 0
    for place in random.integers(0, len(content), 300).tolist():
        broken = bytearray(content)
        broken[place] ^= 1 << int(random.integers(8))
        (folder / "data.mdb").write_bytes(broken)
        with LocalBytes(folder / "data.mdb") as file:
            try:
                assert all(value.start + value.size <= file.size for value in scan_values(file))
            except (CorruptArchiveError, LayoutError):
                refused += 1
    assert refused > 3


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
