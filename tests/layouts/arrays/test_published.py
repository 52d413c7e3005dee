"""Well-known datasets in files of their own: MNIST's idx, CIFAR's pickles and .bin, STL10's .bin, SVHN's .mat."""

import gzip
import io
import os
import pickle
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colabstage.errors import DecodeError, EmptySourceError, LayoutError, MissingDependencyError
from colabstage.options import array_rows
from tests.layouts.known import wav
from tests.layouts.readers import by_split, contents, read

RNG = np.random.default_rng(18)
Y = [0, 1, 2, 0, 1, 2]
ANIMALS = ("cat", "dog", "eel")


def pixels(*shape: int) -> NDArray[np.uint8]:
    """Any image."""
    return RNG.integers(0, 256, shape, np.uint8)


def idx(values: NDArray[Any], code: int = 8) -> bytes:
    """As the page of MNIST describes it: two zeros, the type, the number of axes, their lengths, the values."""
    return struct.pack(f">HBB{values.ndim}I", 0, code, values.ndim, *values.shape) + values.tobytes()


def old_pickle(data: NDArray[np.uint8], labels: list[int], key: str = "labels", **more: list[int]) -> bytes:
    """CIFAR's pickles, in which Python 2 has left texts as they are: by hand, as Python 3 cannot write them."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    shape = number(data.shape[0]) + number(data.shape[1])
    array = b"".join(
        (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85", text(b"b"), b"\x87R(K\x01", shape,
            b"\x86cnumpy\ndtype\n", text(b"u1"), b"K\0K\x01\x87R(K\x03", text(b"|"),
            b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89", text(data.tobytes()), b"tb",
        )
    )  # fmt: skip
    lists = {key: labels, **more}
    items = b"".join(text(name.encode()) + b"](" + b"".join(map(number, one)) + b"e" for name, one in lists.items())
    return b"\x80\x02}(" + text(b"data") + array + items + b"u."


def upright(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images of CIFAR's rows, their channels last."""
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def digits(header: str, rows: list[str], end: str = "\n") -> bytes:
    """A table."""
    return end.join([header, *rows]).encode()


GREY, OTHER = pixels(6, 4, 4), pixels(6, 4, 4)
ROWS, TEST = pixels(6, 3072), pixels(6, 3072)
STL = pixels(3, 96, 96, 3)
LINES = [",".join(map(str, image.ravel())) for image in GREY]
PIXELS = ",".join(f"pixel{number}" for number in range(16))
USAGE = ["Training", "Training", "Training", "PublicTest", "PrivateTest", "PrivateTest"]
MNIST = {f"{split}-{kind}": idx(values) for split, x in (("train", GREY), ("t10k", OTHER)) for kind, values in
         (("images-idx3-ubyte", x), ("labels-idx1-ubyte", np.array(Y, np.uint8)))}  # fmt: skip
COARSE = {b"fine_label_names": [b"cat", b"dog", b"eel"], b"coarse_label_names": [b"all"]}
# Files, the images and labels of each split, classes, and what a note names.
Splits = dict[str, tuple[Any, Any]]
READ: dict[str, tuple[Mapping[str, bytes], Splits, tuple[str, ...], str]] = {
    "MNIST, and a second form of the same files": (
        {f"{name}.gz": gzip.compress(content) for name, content in MNIST.items()} | MNIST,
        {"train": (GREY, Y), "test": (OTHER, Y)}, ("0", "1", "2"), "",
    ),
    "CIFAR-100": (
        {
            "cifar-100-python/train": old_pickle(ROWS, Y, "fine_labels", coarse_labels=[1] * 6),
            "cifar-100-python/test": old_pickle(TEST, Y, "fine_labels", coarse_labels=[1] * 6),
            "cifar-100-python/meta": pickle.dumps(COARSE, 2),
        },
        {"train": (upright(ROWS), Y), "test": (upright(TEST), Y)}, ANIMALS, "train_coarse",
    ),
    "CIFAR-10, binary": (
        {
            **{
                f"{name}.bin": np.hstack([np.array(Y, np.uint8)[part, None], ROWS[part]]).tobytes()
                for name, part in (("data_batch_1", slice(3)), ("data_batch_2", slice(3, 6)), ("test_batch", slice(6)))
            },
            "batches.meta.txt": b"cat\ndog\neel\n\n",
        },
        {"train": (upright(ROWS), Y), "test": (upright(ROWS), Y)}, ANIMALS, "",
    ),
    "STL10, columns first": (
        {
            **{f"{split}_X.bin": STL.transpose(0, 3, 2, 1).tobytes() for split in ("train", "test")},
            "train_y.bin": bytes([1, 2, 3]), "test_y.bin": bytes([1, 2, 3]),
            "class_names.txt": b"airplane\nbird\ncar\n", "fold_indices.txt": b"0 1\n",
        },
        {"train": (STL, [0, 1, 2]), "test": (STL, [0, 1, 2])}, ("airplane", "bird", "car"), "",
    ),
    "Kaggle's digits, a test set without classes": (
        {
            "train.csv": digits(f"label,{PIXELS}", [f"{y},{line}" for y, line in zip(Y, LINES, strict=True)]),
            "test.csv": digits(PIXELS, LINES),
        },
        {"": (GREY[..., None], Y)}, ("0", "1", "2"), "test.csv",
    ),
    "FER2013": (
        {
            "fer2013.csv": digits(
                "emotion, Usage, pixels",
                [f'{Y[row]},{USAGE[row]},"{" ".join(map(str, GREY[row].ravel()))}"' for row in range(6)],
            )
        },
        {
            split: (GREY[part, ..., None], Y[part])
            for split, part in (("train", slice(3)), ("val", slice(3, 4)), ("test", slice(4, 6)))
        },
        ("0", "1", "2"), "",
    ),
    "a column of splits, and a table that is named after one": (
        {
            "fer.csv": digits(
                "label,pixels,Usage", [f"{Y[n]},{' '.join(map(str, GREY[n].ravel()))},{USAGE[n]}" for n in range(6)]
            ),
            "test.csv": digits("label,pixels", [f"{Y[n]},{' '.join(map(str, GREY[n].ravel()))}" for n in range(2)]),
        },
        {
            split: (GREY[rows, ..., None], [Y[row] for row in rows])
            for split, rows in (("train", [0, 1, 2]), ("val", [3]), ("test", [4, 5, 0, 1]))
        },
        ("0", "1", "2"), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_images_and_labels_are_those_of_the_files(case: str) -> None:
    """In each split, with their classes."""
    files, splits, classes, note = READ[case]
    found = read(files)
    assert found.classes == classes
    stated = by_split(found)
    assert stated.keys() == splits.keys() or "" in splits
    for split, (x, y) in splits.items():
        images, labels = stated[split or next(iter(stated))]
        np.testing.assert_array_equal(np.stack(images).reshape(x.shape), x)
        assert labels == y
    assert not note or any(note in one for one in found.notes)


def test_idx_of_wider_numbers_is_native() -> None:
    """Big-endian in the file."""
    values = RNG.normal(size=(6, 4)).astype(">f4")
    np.testing.assert_array_equal(np.stack(contents(read({"x-idx2-float": idx(values, 13)}))), values)


MATLAB = {"spectra": RNG.normal(size=(6, 4)), "age": np.array(Y, np.int16)[:, None], "note": "text"}
SVHN = {"X": np.moveaxis(pixels(4, 5, 6, 3), 0, -1), "y": np.array([[1], [9], [10], [2]], np.uint8)}


def mat(arrays: dict[str, Any]) -> bytes:
    """A MATLAB file of version 5."""
    matlab = pytest.importorskip("scipy.io", reason="needs scipy: pip install 'colabstage[matlab]'")
    file = io.BytesIO()
    matlab.savemat(file, arrays, do_compression=True)
    return file.getvalue()


def test_matlab_5_is_read_as_matlab_73(monkeypatch: pytest.MonkeyPatch) -> None:
    """SVHN's tenth class is the digit 0, as torchvision has it; a damaged file is one error; scipy may be missing."""
    found = by_split(read({f"{split}_32x32.mat": mat(SVHN) for split in ("train", "test", "extra")}))
    assert [*found] == ["train", "test", "extra"]
    for images, labels in found.values():
        np.testing.assert_array_equal(np.stack(images), np.moveaxis(SVHN["X"], -1, 0))
        assert labels == [1, 9, 0, 2]
    rows = read({"a.mat": mat(MATLAB)}, array_rows(x="spectra", y="age"))
    np.testing.assert_array_equal(np.stack(contents(rows)), MATLAB["spectra"])
    with pytest.raises(LayoutError, match=r"a\.mat"):
        read({"a.mat": mat(MATLAB)[:150]}, "arrays")
    content = mat(MATLAB)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingDependencyError, match="pip install scipy"):
        read({"a.mat": content}, "arrays")


class Command:
    """What must not be run."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


ZEROS = ",".join("0" * 14)
REFUSED: dict[str, tuple[Mapping[str, bytes], str, type[Exception], str]] = {
    "idx, cut": ({"x-idx2-float": idx(np.zeros((6, 4), ">f4"), 13)[:-1]}, "auto", LayoutError, r"idx2.*\b108\b"),
    "a command": ({"data_batch_1": pickle.dumps({b"data": Command()})}, "arrays", LayoutError, "data_batch_1"),
    "a list": ({"data_batch_1": pickle.dumps([1])}, "arrays", LayoutError, "data_batch_1"),
    "no array": ({"data_batch_1": pickle.dumps({b"data": [1]})}, "arrays", LayoutError, "data_batch_1"),
    "no pixels": ({"train.csv": b"label,a,b\n0,1,2\n"}, "pixel_table", EmptySourceError, "dataset"),
    **{
        f"pixels {cells!r}": (
            {"train.csv": digits(f"label,{PIXELS}", [f"0,{ZEROS},{cells}"])}, "auto", DecodeError, "pixel"
        )
        for cells in ("1,256", "1,-1", "1,1.5", "1,", "1")
    },
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_none_of_these_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """By the file, or the row when it is read; nothing of a pickle is run, nothing is rounded or cut."""
    monkeypatch.chdir(tmp_path)
    files, layout, kind, named = REFUSED[case]
    with pytest.raises(kind, match=named):
        contents(read(files, layout))
    assert not (tmp_path / "ran").exists()


EMPTY = (
    "image_folder", "detection", "arrays", "array_folder", "audio", "tokens", "webdataset", "tfrecord", "lmdb", "arrow",
    "table", "pairs", "images", "coco_classes", "file_names", "pixel_table",
)  # fmt: skip


@pytest.mark.parametrize("layout", EMPTY)
def test_every_layout_tells_nothing_there_from_not_understood(layout: str) -> None:
    """By the error's class."""
    with pytest.raises(EmptySourceError):
        read({}, layout)
    other = {"a.wav": wav()} if layout != "audio" else {"a.jpg": b""}
    with pytest.raises(LayoutError):
        read(other, layout)
