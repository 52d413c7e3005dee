"""Rows of arrays in files: those that were written, in their splits; what cannot be read row by row is refused."""

import gzip
import io
import os
import pickle
import re
import struct
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import (
    CorruptArchiveError,
    DecodeError,
    EmptySourceError,
    LayoutError,
    MissingDependencyError,
    OptionError,
)
from colabstage.layouts.detect import detect_layout
from colabstage.options import Arrays, Images, Masks, array_rows
from colabstage.trees.open import open_archive
from tests.layouts.known import wav
from tests.layouts.readers import by_split, contents, read
from tests.support.archives import RecordingBytes, tar_bytes
from tests.support.made_files import matlab, npy, npz, write_files

RNG = np.random.default_rng(18)
X = RNG.integers(0, 256, (12, 8, 6, 3), np.uint8)
Y = np.arange(12) % 3
FLOATS = RNG.random((12, 5), np.float32)
WORDS = np.array(["dog", "cat", "bird"])[Y]
OF_WORDS = np.array([2, 1, 0])[Y]
NUMBERED = ("0", "1", "2")


def h5(values: dict[str, Any], *, userblock: int = 0, matlab: bool = False, **options: Any) -> bytes:
    """An HDF5 file of arrays, written by h5py with options for each that is of numbers."""
    file = io.BytesIO()
    with h5py.File(file, "w", userblock_size=userblock) as made:
        for key, array in values.items():
            own = options if np.asarray(array).dtype.kind != "O" else {}
            made.create_dataset(key, data=array, **own)
            if matlab:
                is_text = made[key].dtype == np.uint16
                made[key].attrs["MATLAB_class"] = np.bytes_("char" if is_text else "double")
    return file.getvalue()


def npz_deflated(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


LABELS = [0, 1, 2, 0, 1, 2]
ANIMALS = ("cat", "dog", "eel")


def pixels(*shape: int) -> NDArray[np.uint8]:
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
    return end.join([header, *rows]).encode()


GREY, OTHER = pixels(6, 4, 4), pixels(6, 4, 4)
ROWS, OF_TEST = pixels(6, 3072), pixels(6, 3072)
STL = pixels(3, 96, 96, 3)
WIDER = RNG.normal(size=(6, 4)).astype(">f4")
LINES = [",".join(map(str, image.ravel())) for image in GREY]
PIXELS = ",".join(f"pixel{number}" for number in range(16))
USAGE = ["Training", "Training", "Training", "PublicTest", "PrivateTest", "PrivateTest"]
MNIST = {f"{split}-{kind}": idx(values) for split, x in (("train", GREY), ("t10k", OTHER)) for kind, values in
         (("images-idx3-ubyte", x), ("labels-idx1-ubyte", np.array(LABELS, np.uint8)))}  # fmt: skip
COARSE = {b"fine_label_names": [b"cat", b"dog", b"eel"], b"coarse_label_names": [b"all"]}
Rows = dict[str, tuple[Any, Any]]
TRAIN, TEST = (X[:8], Y[:8]), (X[8:], Y[8:])
WIDE = np.repeat(np.arange(9, dtype=np.uint8)[:, None], 2**20, 1)
KERAS = {"x_train": X[:8, ..., 0], "y_train": Y[:8], "x_test": X[8:, ..., 0], "y_test": Y[8:]}
# Files, the layout, the rows of each split, classes, and what a note names.
READ: dict[str, tuple[Any, ...]] = {
    "Keras' MNIST": ({"mnist.npz": npz(**KERAS)}, "auto", {"train": (X[:8, ..., 0], Y[:8]), "test": (X[8:, ..., 0], Y[8:])}, NUMBERED),
    "a file for each split": ({"train.npz": npz_deflated(images=FLOATS, labels=Y), "val.npz": npz(images=FLOATS[:3], labels=Y[:3])}, "auto",
                              {"train": (FLOATS, Y), "val": (FLOATS[:3], Y[:3])}, NUMBERED),
    "words": ({"images.npy": npy(X), "labels.npy": npy(WORDS)}, "auto", {"": (X, OF_WORDS)}, ("bird", "cat", "dog")),
    "Fortran's order": ({"X.npy": npy(np.asfortranarray(FLOATS)), "y.npy": npy(Y)}, "auto", {"": (FLOATS, Y)}, NUMBERED),
    "numbered by savez": ({"a.npz": npz(arr_0=X, arr_1=Y)}, "auto", {"": (X, Y)}, NUMBERED),
    "numbered .npy": ({"x_0.npy": npy(X[:8]), "x_1.npy": npy(X[8:]), "y_0.npy": npy(Y[:8]), "y_1.npy": npy(Y[8:])}, "auto", {"": (X, Y)}, NUMBERED),
    "names that are given": ({"a.npz": npz(faces=X, ages=Y, noise=Y)}, array_rows(x="faces", y="ages"), {"": (X, Y)}, NUMBERED),
    "HDF5, names of classes beside": ({"train.h5": h5({"train_set_x": X, "train_set_y": Y, "list_classes": np.array([b"a", b"b", b"c"])})}, "auto",
                                      {"train": (X, Y)}, ("a", "b", "c")),
    "HDF5, small chunks": ({"a.h5": h5({"x": X}, chunks=(7, 3, 2, 1), compression="lzf", shuffle=True), "b.npy": npy(Y)}, array_rows(x="x", y="b.npy"), {"": (X, Y)}, NUMBERED),
    "HDF5, many blocks": ({"a.h5": h5({"x": WIDE}, chunks=(1, 2**20), compression="gzip"), "y.npy": npy(np.arange(9))},
                          array_rows(x="x", y="y.npy"), {"": (WIDE, np.arange(9))}, ()),
    "HDF5, a block of the user's": ({"a.h5": h5({"x": X, "y": Y}, userblock=1024)}, "auto", {"": (X, Y)}, NUMBERED),
    "HDF5, big-endian": ({"a.h5": h5({"x": FLOATS.astype(">f4"), "y": Y})}, "auto", {"": (FLOATS, Y)}, NUMBERED),
    "HDF5, groups and texts": ({"a.hdf5": h5({"train/images": X, "train/labels": WORDS.astype(object), "test/images": X[:3], "test/labels": WORDS[:3].astype(object)})}, "auto",
                               {"train": (X, OF_WORDS), "test": (X[:3], OF_WORDS[:3])}, ("bird", "cat", "dog")),
    "the recipe's": ({"data.h5": h5({"X_train": X, "Y_train": Y[:, None, None].astype(np.uint8), "X_dev": X[:3], "Y_dev": Y[:3, None, None].astype(np.uint8)})}, "auto",
                     {"train": (X, Y), "dev": (X[:3], Y[:3])}, NUMBERED),
    "MATLAB 7.3, images": ({"a.mat": h5({"X": np.moveaxis(X, 0, -1).T, "y": Y[None] + 1.0}, userblock=512, matlab=True)}, "auto", {"": (X, Y + 1.0)}, ()),
    "MATLAB 7.3, words": ({"a.mat": h5({"X": FLOATS.T.astype(float), "y": np.array([[*map(ord, one.ljust(4))] for one in WORDS], np.uint16).T}, userblock=512, matlab=True)},
                          "auto", {"": (FLOATS.astype(float), OF_WORDS)}, ("bird", "cat", "dog")),
    "a split without targets": ({"a.npz": npz(x_train=X, y_train=Y, x_test=X)}, "auto", {"train": (X, Y)}, NUMBERED, "12 rows", "x_test"),
    "MNIST, and a second form of the same files": (
        {f"{name}.gz": gzip.compress(content) for name, content in MNIST.items()} | MNIST, "auto",
        {"train": (GREY, LABELS), "test": (OTHER, LABELS)}, ("0", "1", "2"),
    ),
    "idx of wider numbers": (
        {"train-images-idx2-float": idx(WIDER, 13), "train-labels-idx1-ubyte": idx(np.array(LABELS, np.uint8))}, "auto",
        {"train": (WIDER, LABELS)}, ("0", "1", "2"),
    ),
    "CIFAR-100": (
        {
            "cifar-100-python/train": old_pickle(ROWS, LABELS, "fine_labels", coarse_labels=[1] * 6),
            "cifar-100-python/test": old_pickle(OF_TEST, LABELS, "fine_labels", coarse_labels=[1] * 6),
            "cifar-100-python/meta": pickle.dumps(COARSE, 2),
        }, "auto",
        {"train": (upright(ROWS), LABELS), "test": (upright(OF_TEST), LABELS)}, ANIMALS, "train_coarse",
    ),
    "CIFAR-10, binary": (
        {
            **{
                f"{name}.bin": np.hstack([np.array(LABELS, np.uint8)[part, None], ROWS[part]]).tobytes()
                for name, part in (("data_batch_1", slice(3)), ("data_batch_2", slice(3, 6)), ("test_batch", slice(6)))
            },
            "batches.meta.txt": b"cat\ndog\neel\n\n",
        }, "auto",
        {"train": (upright(ROWS), LABELS), "test": (upright(ROWS), LABELS)}, ANIMALS,
    ),
    "CIFAR-100, binary": (
        {
            **{
                f"cifar-100-binary/{split}.bin": np.hstack([np.array([[9, y] for y in LABELS], np.uint8), ROWS]).tobytes()
                for split in ("train", "test")
            },
            "cifar-100-binary/fine_label_names.txt": b"cat\ndog\neel\n",
        }, "auto",
        {"train": (upright(ROWS), LABELS), "test": (upright(ROWS), LABELS)}, ANIMALS,
    ),
    "STL10, columns first": (
        {
            **{f"{split}_X.bin": STL.transpose(0, 3, 2, 1).tobytes() for split in ("train", "test")},
            "train_y.bin": bytes([1, 2, 3]), "test_y.bin": bytes([1, 2, 3]),
            "class_names.txt": b"airplane\nbird\ncar\n", "fold_indices.txt": b"0 1\n",
        }, "auto",
        {"train": (STL, [0, 1, 2]), "test": (STL, [0, 1, 2])}, ("airplane", "bird", "car"),
    ),
    "Kaggle's digits, a test set without classes": (
        {
            "train.csv": digits(f"label,{PIXELS}", [f"{y},{line}" for y, line in zip(LABELS, LINES, strict=True)]),
            "test.csv": digits(PIXELS, LINES),
        }, "auto",
        {"": (GREY[..., None], LABELS)}, ("0", "1", "2"), "of 'test'",
    ),
    "FER2013": (
        {
            "fer2013.csv": digits(
                "emotion, Usage, pixels",
                [f'{LABELS[row]},{USAGE[row]},"{" ".join(map(str, GREY[row].ravel()))}"' for row in range(6)],
            )
        }, "auto",
        {
            split: (GREY[part, ..., None], LABELS[part])
            for split, part in (("train", slice(3)), ("val", slice(3, 4)), ("test", slice(4, 6)))
        },
        ("0", "1", "2"),
    ),
}  # fmt: skip


def check(found: Any, rows: Rows) -> None:
    """Rows and labels of each split, with the dtype that they were written with in this machine's order."""
    stated = by_split(found)
    assert stated.keys() == rows.keys() or set(rows) == {""} or set(stated) == {""}
    for split, (x, y) in rows.items():
        xs, ys = stated[split if split in stated else next(iter(stated))]
        np.testing.assert_array_equal(np.stack(xs).reshape(x.shape), x)
        assert xs[0].dtype == x.dtype.newbyteorder("=")
        np.testing.assert_array_equal(ys, y)


@pytest.mark.parametrize("case", READ)
def test_rows_are_those_that_were_written(case: str) -> None:
    """In each split, with their classes; uint8 of an image's shape are images."""
    files, layout, rows, classes, *named = READ[case]
    found = read(files, layout)
    assert (found.layout in ("arrays", "pixel_table"), found.classes) == (True, classes)
    check(found, rows)
    assert all(any(name in note for note in found.notes) for name in named)
    first = next(iter(rows.values()))[0]
    assert isinstance(found.inputs, Images) == (first.dtype == np.uint8 and first.ndim > 2)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(">f4", (12, 7)), ("<f8", (12, 2, 3, 4)), (">i2", (12,)), ("<u2", (12, 7)), ("?", (12,)), (">u8", (12, 7)), ("<f2", (12, 7))],
    ids=str,
)  # fmt: skip
def test_arrays_of_other_numbers_stay_as_they_are(dtype: str, shape: tuple[int, ...]) -> None:
    """Whatever the version of the header; one number for each sample included."""
    values = RNG.integers(0, 2**15, shape).astype(dtype)
    for version in ((1, 0), (2, 0), (3, 0)):
        file = io.BytesIO()
        np.lib.format.write_array(file, values, version)
        found = read({"features.npy": file.getvalue(), "targets.npy": npy(np.linspace(0, 1, 12).astype(">f8"))})
        assert isinstance(found.inputs, Arrays)
        check(found, {"": (values, np.linspace(0, 1, 12))})


@pytest.mark.parametrize("kind", ["deflated", "tar", "one file"])
@pytest.mark.parametrize("name", ["a.npz", "a.h5"])
def test_arrays_in_archives_are_those_of_a_folder(tmp_path: Path, kind: str, name: str) -> None:
    """And their packs have these rows."""
    content = npz_deflated(x_train=FLOATS, y_train=Y) if name.endswith("z") else h5({"x_train": FLOATS, "y_train": Y})
    source = write_files(tmp_path / "set", {name: content})
    if kind == "one file":
        source /= name
    elif kind == "tar":
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            tar.add(source, ".")
        source = tmp_path / "a.tar"
    else:
        with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, content, compress_type=archive.compression)
        source = tmp_path / "a.zip"
    pack_dataset(source, tmp_path / "out.h5", progress=False)
    dataset = dataset_h5(tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        order = [int(key.rpartition("[")[2][:-1]) for key in file["key_train"].asstr()]
    assert sorted(order) == list(range(12))
    for row, number in enumerate(order):
        np.testing.assert_array_equal(dataset[row][0], FLOATS[number])
        assert dataset[row][1] == Y[number]


def test_integers_of_the_images_shape_are_masks() -> None:
    masks = RNG.integers(0, 5, (12, 8, 6, 1), dtype=np.int32)
    found = read({"images.npy": npy(X), "labels.npy": npy(masks)})
    assert isinstance(found.targets, Masks)
    for number in range(12):
        mask = np.asarray(found.targets.source.read(number))
        np.testing.assert_array_equal(mask.reshape(8, 6), masks[number, ..., 0])


def linked(path: Path, **links: Any) -> Path:
    """An HDF5 file with inputs and targets, some of them links."""
    with h5py.File(path, "w") as file:
        file["group/x"], file["X_train"], file["Y_train"] = np.zeros((4, 3)), np.zeros((4, 3)), np.arange(4)
        for name, link in links.items():
            if name in file:
                del file[name]
            file[name] = link
    return path


OUT = {"out": h5py.ExternalLink("other.h5", "/group"), "again": h5py.SoftLink("/out")}


@pytest.mark.parametrize(
    ("kind", "through"), [("zip", "/again/x"), ("zip", "own.h5"), ("one file", "/out/x"), ("one file", "/./out/../x")]
)
def test_links_to_other_files_are_refused_where_there_are_none(tmp_path: Path, kind: str, through: str) -> None:
    """HDF5 takes a file without a path for every file that links name, so rows would be this file's own."""
    link = h5py.ExternalLink(through, "/group/x") if through.endswith("h5") else h5py.SoftLink(through)
    path = linked(tmp_path / "own.h5", **OUT, X_train=link)
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.write(path, "own.h5")
        path = tmp_path / "a.zip"
    with pytest.raises(LayoutError, match=r"'own\.h5/X_train'"):
        pack_dataset(path, tmp_path / "out.h5", layout=array_rows(x="X_train", y="Y_train"), progress=False)


# --- what is broken, or cannot be told --------------------------------------------------------------------------------


class Command:
    """What must not be run."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def bomb(*, whole: bool = True) -> bytes:
    """A .npy of objects that would run code when it is loaded."""
    if whole:
        file = io.BytesIO()
        np.save(file, np.array([Command()], object), allow_pickle=True)
        return file.getvalue()
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    return head.getvalue() + pickle.dumps(Command())


def flipped(content: bytes, place: int) -> bytes:
    """One bit of it is another one."""
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


NPY = npy(X)
ASKED = r"array_rows\(x='NAME'"
ZEROS = ",".join("0" * 14)
REFUSED: dict[str, tuple[Any, ...]] = {
    "objects": ({"X.npy": bomb()}, "arrays", r"X\.npy"),
    "a pickle": ({"X.npy": bomb(whole=False)}, "arrays", r"X\.npy"),
    "records": ({"X.npy": npy(np.zeros(3, [("a", "f4"), ("b", "i4")]))}, "arrays", r"X\.npy.*\(a, b\)"),
    "cut": ({"X.npy": NPY[:-1]}, "arrays", r"X\.npy"),
    "another magic": ({"X.npy": b"PK" + NPY[2:]}, "arrays", r"X\.npy"),
    "other keys": ({"X.npy": NPY.replace(b"'descr'", b"'dascr'")}, "arrays", r"X\.npy"),
    "a long header": ({"X.npy": NPY[:8] + b"\xff\xff" + NPY[10:]}, "arrays", r"X\.npy.*a header that"),
    "a damaged .mat of version 5": ({"X.mat": b"MATLAB 5.0 MAT-file" + bytes(600)}, "arrays", r"X\.mat.*-v7\.3"),
    "damaged HDF5": ({"X.mat": b"\x89HDF\r\n\x1a\n" + bytes(64)}, "arrays", r"X\.mat.*Copy it again"),
    "fewer labels": ({"a.npz": npz(x=X, y=Y[1:])}, "arrays", r"\(12, 8, 6, 3\).*\(11,\)"),
    "other rows in a split": ({"a.npz": npz(x_train=np.zeros((3, 4)), x_test=np.zeros((3, 5)))}, "arrays", "x_(train|test)"),
    **{f"{dtype}": ({"a.npz": npz(x_train=np.zeros((12, 3), dtype), y_train=Y)}, "auto", "x_train") for dtype in ("longdouble", "M8[s]")},
    "no rows": ({"a.npz": npz(x=np.zeros((0, 4)))}, "arrays", r"\(0, 4\)"),
    "words as inputs": ({"x.npy": npy(WORDS), "y.npy": npy(Y)}, "arrays", r"'x\.npy\[0\]' has dtype"),
    "names that say nothing": ({"a.npy": npy(X), "b.npy": npy(Y)}, "auto", ASKED),
    "numbered inputs without targets": ({"x_0.npy": npy(X), "x_1.npy": npy(X), "y_0.npy": npy(Y)}, "auto", ASKED),
    **{f"inputs without targets beside {held} with some": ({"a.npz": npz(x=X, **{f"x_{held}": X[:3], f"y_{held}": Y[:3]})}, "auto", ASKED) for held in ("test", "val")},
    "a name that is not there": ({"a.npz": npz(faces=X)}, array_rows(x="face"), "'face'"),
    **{
        f"targets of no inputs: {names}": (
            {"a.npz": npz(**{name: Y[:4] if name[0] in "yl" or "labels" in name else X[:4] for name in names})}, "auto", r"array_rows\("
        )
        for names in (("x_train", "labels"), ("X_train", "X_test", "y"), ("train_images", "test_labels"))
    },
    **{
        f"numbered by savez: {[one.shape for one in arrays]}": (
            {"a.npz": npz(**{f"arr_{n}": one for n, one in enumerate(arrays)})}, "auto", ASKED
        )
        for arrays in ((Y, X), (X, Y, X, Y), (X, X))
    },
    "idx, cut": ({"x-idx2-float": idx(np.zeros((6, 4), ">f4"), 13)[:-1]}, "auto", r"idx2.*\b108\b", LayoutError),
    "a command": ({"data_batch_1": pickle.dumps({b"data": Command()})}, "arrays", "data_batch_1", LayoutError),
    "a list": ({"data_batch_1": pickle.dumps([1])}, "arrays", "data_batch_1", LayoutError),
    "no array": ({"data_batch_1": pickle.dumps({b"data": [1]})}, "arrays", "data_batch_1", LayoutError),
    "no pixels": ({"train.csv": b"label,a,b\n0,1,2\n"}, "pixel_table", "dataset", EmptySourceError),
    **{
        f"pixels {cells!r}": (
            {"train.csv": digits(f"label,{PIXELS}", [f"0,{ZEROS},{cells}"])}, "auto", "pixel", DecodeError
        )
        for cells in ("1,256", "1,-1", "1,1.5", "1,", "1")
    },
}  # fmt: skip


# As in the user's own programs, where a warning of numpy ends nothing.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_row_by_row_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """By name, and nothing is unpickled."""
    monkeypatch.chdir(tmp_path)
    files, layout, named, *kinds = REFUSED[case]
    with pytest.raises(tuple(kinds) or (LayoutError, MissingDependencyError), match=named):
        contents(read(files, layout))
    assert not (tmp_path / "ran").exists()


def test_a_damaged_member_of_an_npz_is_named() -> None:
    """By its checksum, before any row is given out."""
    with pytest.raises(CorruptArchiveError, match=r"'x\.npy'.*'a\.npz'"):
        contents(read({"a.npz": flipped(npz(x=X, y=Y), 800)}))


def test_a_damaged_chunk_is_a_broken_sample() -> None:
    """It names the row, and costs no other chunk."""
    content = h5({"X": X}, chunks=(4, 8, 6, 3), compression="gzip", fletcher32=True)
    with h5py.File(io.BytesIO(content)) as file:
        place = file["X"].id.get_chunk_info(1).byte_offset
    source = read({"a.h5": flipped(content, place + 20)}).inputs.source
    with pytest.raises(DecodeError, match=r"Row 5 of 'a\.h5/X'"):
        source.read(5)
    assert np.array_equal(source.read(3), X[3])


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (["X.npy", "y.npy"], [("", "X.npy", True)]),
        (["train/x.npy", "train/y.npy", "val/x.npy", "val/y.npy"], [("train", "train/x.npy", True), ("val", "val/x.npy", True)]),
        (["x/train.npy", "y/train.npy"], [("train", "x/train.npy", True)]),
        (["train_images.npy", "train_labels.npy", "test_images.npy", "test_labels.npy"], [("train", "train_images.npy", True), ("test", "test_images.npy", True)]),
        (["X.npy", "y.npy", "X_test.npy"], [("train", "X.npy", True)]),
        (["whatever.npy"], [("", "whatever.npy", False)]),
    ],
)  # fmt: skip
def test_roles_are_told_by_name(names: list[str], rows: list[tuple[str, str, bool]]) -> None:
    """The names that people use: the split, the inputs, and whether there are targets."""
    is_y = re.compile(r"(^|[/_])(y|labels|target)|^Y", re.ASCII)
    found = read({name: npy(Y if is_y.search(name) else X) for name in names})
    keys = dict.fromkeys(key.partition("[")[0] for key in found.keys)
    splits = dict.fromkeys(found.splits or ("",))
    assert [*keys] == [inputs for _, inputs, _ in rows]
    assert [*splits] == [split for split, *_ in rows] or [*splits] == [""]
    assert (found.targets is not None) == rows[0][2]


def test_rows_that_were_never_written_are_noted(tmp_path: Path) -> None:
    """HDF5 gives zeros for them, which as labels would be a class."""
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["X_train"] = np.ones((4, 2))
        file.create_dataset("Y_train", (4,), np.int64, chunks=(2,))[:2] = 1
    report = pack_dataset(tmp_path / "rows.h5", tmp_path / "pack.h5", progress=False)
    assert "1 of the 2 chunks of 'rows.h5/Y_train' were never written, and are read as 0." in report.notes


def test_archives_are_not_read_whole(tmp_path: Path) -> None:
    """Opening a tar reads headers and labels; rows come when they are asked for."""
    source = RecordingBytes(tar_bytes({"X.npy": npy(np.zeros((1000, 5000), np.float32))}), "a.tar")
    with open_archive(source, spool=tmp_path) as tree:
        table = detect_layout(tree)
        assert len(table) == 1000
        assert sum(length for _, length in source.reads) < 300_000
        assert np.array_equal(table.inputs.source.read(999), np.zeros(5000, np.float32))


# --- colours ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(28, 28), (8, 6, 4)], ids=str)
def test_arrays_keep_their_channels_unless_others_are_asked_for(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """As RGB grey ones are tripled and a fourth channel is dropped."""
    x = RNG.integers(0, 256, (12, *shape), np.uint8)
    source = write_files(tmp_path / "set", {"images.npy": npy(x), "labels.npy": npy(Y)})
    whole = x.reshape(12, *shape[:2], -1)
    expected = {"auto": whole, "rgb": np.broadcast_to(whole[..., :3], (12, *shape[:2], 3)), "grayscale": None}
    for mode, pixels in expected.items():
        options: dict[str, Any] = {"encoding": "pixels", "color_mode": mode, "progress": False}
        pack_dataset(source, tmp_path / f"{mode}.h5", **options)
        with h5py.File(tmp_path / f"{mode}.h5") as file:
            order = [int(key.rpartition("[")[2][:-1]) for key in file["key_train"].asstr()]
            if pixels is None:
                assert file["X_train"].shape == (12, *shape[:2], 1)
            else:
                np.testing.assert_array_equal(file["X_train"][()], pixels[order])


def test_more_of_a_pack_takes_its_colours_unless_others_are_asked_for(tmp_path: Path) -> None:
    """What was packed by default goes on as it is; `rgb` is refused where it would be another form."""
    more = write_files(tmp_path / "set", {"images.npy": npy(np.zeros((12, 8, 6, 4), np.uint8)), "labels.npy": npy(Y)})
    modes: dict[str, Any] = {"own": "auto", "rgb": "rgb"}
    for name, mode in modes.items():
        pack_dataset(more, tmp_path / f"{name}.h5", encoding="pixels", color_mode=mode, progress=False)
    with pytest.raises(OptionError, match=r"\(8, 6, 3\).*\(8, 6, 4\)"):
        pack_dataset(more, append_to=tmp_path / "own.h5", color_mode="rgb", progress=False)
    for name, channels in (("own", 4), ("rgb", 3)):
        report = pack_dataset(more, append_to=tmp_path / f"{name}.h5", progress=False)
        with h5py.File(report.path) as file:
            assert file["X_train"].shape == (12, 8, 6, channels)


@pytest.mark.parametrize(
    ("option", "value", "noted"),
    [("color_mode", "auto", False), ("color_mode", "rgb", True), ("image_size", (4, 4), True)],
)
@pytest.mark.parametrize("x", [FLOATS, np.zeros((12, 3, 8, 8), np.uint8)], ids=["numbers", "channels first"])
def test_an_option_for_images_is_noted_of_others(tmp_path: Path, x: Any, option: str, value: Any, noted: bool) -> None:
    """Arrays stay unchanged, and the report says that the option did nothing."""
    source = write_files(tmp_path / "set", {"x.npy": npy(x), "y.npy": npy(Y)})
    report = pack_dataset(source, tmp_path / "out.h5", progress=False, **{option: value})
    assert any(f"{option}= changes nothing" in note for note in report.notes) == noted
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["X_train"].shape == x.shape


# --- one array in each file -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [bomb(), npy(Y)[:-1], b"\x93NUMPY\x01\x00\x10\x00{'descr': O" + bytes(8)])
def test_a_damaged_array_is_a_broken_sample(content: bytes) -> None:
    """Pickled objects too, which are never loaded."""
    inputs = read({"a/1.npy": npy(Y), "b/2.npy": npy(Y)}).inputs
    assert isinstance(inputs, Arrays)
    with pytest.raises(DecodeError, match=r"\.npy"):
        inputs.to_array(content)


# --- MATLAB's, and files of none ---------------------------------------------------------------------------------------


MATLAB = {"spectra": RNG.normal(size=(6, 4)), "age": np.array(LABELS, np.int16)[:, None], "note": "text"}
SVHN = {"X": np.moveaxis(pixels(4, 5, 6, 3), 0, -1), "y": np.array([[1], [9], [10], [2]], np.uint8)}


def test_matlab_5_is_read_as_matlab_73(monkeypatch: pytest.MonkeyPatch) -> None:
    """SVHN's tenth class is the digit 0, as torchvision has it; a damaged file is one error; scipy may be missing."""
    found = by_split(read({f"{split}_32x32.mat": matlab(SVHN) for split in ("train", "test", "extra")}))
    assert [*found] == ["train", "test", "extra"]
    for images, digit in found.values():
        np.testing.assert_array_equal(np.stack(images), np.moveaxis(SVHN["X"], -1, 0))
        assert digit == [1, 9, 0, 2]
    rows = read({"a.mat": matlab(MATLAB)}, array_rows(x="spectra", y="age"))
    np.testing.assert_array_equal(np.stack(contents(rows)), MATLAB["spectra"])
    of_4 = read(
        {"a.mat": matlab({name: MATLAB[name] for name in ("spectra", "age")}, version="4")},
        array_rows(x="spectra", y="age"),
    )
    np.testing.assert_array_equal(np.stack(contents(of_4)), MATLAB["spectra"])
    with pytest.raises(LayoutError, match=r"a\.mat"):
        read({"a.mat": matlab(MATLAB)[:150]}, "arrays")
    content = matlab(MATLAB)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingDependencyError, match="pip install scipy"):
        read({"a.mat": content}, "arrays")


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
