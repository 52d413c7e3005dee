"""Well-known datasets in files of their own: MNIST's idx, CIFAR's pickles and .bin, STL10's .bin, SVHN's .mat."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage.errors import DecodeError, EmptySourceError, LayoutError, MissingDependencyError
from colabstage.layouts.detect import detect_layout
from colabstage.options import Images, SampleTable, Values, array_rows
from colabstage.trees.bytes import LocalBytes
from colabstage.trees.folder import FolderTree
from colabstage.trees.zip import ZipTree

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

RNG = np.random.default_rng(18)
LABELS = np.arange(6, dtype=np.uint8) % 3


def pixels(*shape: int) -> NDArray[np.uint8]:
    """Any image."""
    return RNG.integers(0, 256, shape, np.uint8)


def idx(values: NDArray[Any], code: int = 8) -> bytes:
    """As the page of MNIST describes it: two zeros, the type, the number of axes, their lengths, the values."""
    return struct.pack(f">HBB{values.ndim}I", 0, code, values.ndim, *values.shape) + values.tobytes()


def told(table: SampleTable) -> dict[str, list[tuple[NDArray[Any], int]]]:
    """Images and labels of each split, in their order."""
    assert isinstance(table.inputs, Images)
    assert isinstance(table.targets, Values)
    found: dict[str, list[tuple[NDArray[Any], int]]] = {}
    for row, label in enumerate(table.targets.values.tolist()):
        found.setdefault(table.splits[row] if table.splits else "", []).append((read(table, row), label))
    return found


def read(table: SampleTable, row: int) -> NDArray[Any]:
    """One image."""
    content = table.inputs.source.read(row)
    assert not isinstance(content, bytes)
    return content


def check(table: SampleTable, split: str, x: NDArray[Any], y: Any) -> None:
    """These are the images and labels of a split."""
    images, labels = zip(*told(table)[split], strict=True)
    np.testing.assert_array_equal(np.stack(images), x)
    assert list(labels) == np.asarray(y).tolist()


@pytest.mark.parametrize(
    "form",
    ["{}-images-idx3-ubyte.gz {}-labels-idx1-ubyte.gz", "{}-images.idx3-ubyte {}-labels.idx1-ubyte"],
    ids=["as published", "as on Kaggle"],
)
def test_mnist(tmp_path: Path, form: str) -> None:
    """Compressed or not; the same file in a second form, as torchvision and Kaggle leave it, counts once."""
    x = {"train": pixels(6, 5, 5), "t10k": pixels(6, 5, 5)}
    for split, images in x.items():
        for name, values in zip(form.format(split, split).split(), (images, LABELS), strict=True):
            content = idx(values)
            (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
            (tmp_path / name.removesuffix(".gz").replace(".", "-")).write_bytes(content)
    table = detect_layout(FolderTree(tmp_path))
    assert table.layout == "arrays"
    check(table, "train", x["train"], LABELS)
    check(table, "test", x["t10k"], LABELS)


def test_idx_of_wider_numbers(tmp_path: Path) -> None:
    """Big-endian in the file, native here; a cut file is refused."""
    values = RNG.normal(size=(6, 4)).astype(">f4")
    (tmp_path / "x-idx2-float").write_bytes(idx(values, 13))
    table = detect_layout(FolderTree(tmp_path))
    np.testing.assert_array_equal(np.stack([np.asarray(table.inputs.source.read(row)) for row in range(6)]), values)
    (tmp_path / "x-idx2-float").write_bytes(idx(values, 13)[:-1])
    with pytest.raises(LayoutError, match="takes 108"):
        detect_layout(FolderTree(tmp_path))


def old_pickle(data: NDArray[np.uint8], labels: list[int], key: str = "labels", **more: list[int]) -> bytes:
    """CIFAR's pickles, in which Python 2 has left texts as they are: by hand, as Python 3 cannot write them."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text(b"b") + b"\x87R"
        b"(K\x01"
        + number(data.shape[0])
        + number(data.shape[1])
        + b"\x86cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\0K\x01\x87R"
        b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89" + text(data.tobytes()) + b"tb"
    )
    lists = {key: labels, **more}
    items = b"".join(text(name.encode()) + b"](" + b"".join(map(number, one)) + b"e" for name, one in lists.items())
    return b"\x80\x02}(" + text(b"data") + array + items + b"u."


def write_cifar10(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Two batches of three images, and a test batch: in one form or the other."""
    folder.mkdir()
    train, test = pixels(6, 3072), pixels(6, 3072)
    (folder / "data_batch_1").write_bytes(old_pickle(train[:3], [0, 1, 2]))
    (folder / "data_batch_2").write_bytes(pickle.dumps({b"data": train[3:], b"labels": [0, 1, 2]}, 4))
    (folder / "test_batch").write_bytes(pickle.dumps({b"data": test, b"labels": LABELS.tolist()}, 2))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"cat", b"dog", b"eel"]}, 2))
    return train, test


def upright(rows: NDArray[np.uint8], shape: tuple[int, ...] = (3, 32, 32)) -> NDArray[np.uint8]:
    """Images with their channels last."""
    return rows.reshape(-1, *shape).transpose(0, 2, 3, 1)


def test_cifar_10(tmp_path: Path) -> None:
    """Its batches are one split, in their order; class names come from batches.meta. In a zip as in a folder."""
    train, test = write_cifar10(tmp_path / "cifar-10-batches-py")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in (tmp_path / "cifar-10-batches-py").iterdir():
            archive.write(path, f"cifar-10-batches-py/{path.name}")
    with ZipTree(LocalBytes(tmp_path / "a.zip")) as zipped:
        for table in (detect_layout(FolderTree(tmp_path / "cifar-10-batches-py")), detect_layout(zipped)):
            assert table.classes == ("cat", "dog", "eel")
            check(table, "train", upright(train), LABELS)
            check(table, "test", upright(test), LABELS)


def test_cifar_100(tmp_path: Path) -> None:
    """Its classes are the fine ones; a note names the coarse ones."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    train, test = pixels(6, 3072), pixels(6, 3072)
    fine = LABELS.tolist()
    for name, data in (("train", train), ("test", test)):
        (folder / name).write_bytes(old_pickle(data, fine, "fine_labels", coarse_labels=[1] * 6))
    names = {b"fine_label_names": [b"a", b"b", b"c"], b"coarse_label_names": [b"all"]}
    (folder / "meta").write_bytes(pickle.dumps(names, 2))
    table = detect_layout(FolderTree(folder))
    assert table.classes == ("a", "b", "c")
    check(table, "train", upright(train), fine)
    check(table, "test", upright(test), fine)
    assert any("'train_coarse'" in note for note in table.notes)


def test_cifar_in_binary_form(tmp_path: Path) -> None:
    """One byte of the class before each image; names in batches.meta.txt."""
    data = pixels(6, 3072)
    for name, part in (("data_batch_1.bin", slice(3)), ("data_batch_2.bin", slice(3, 6)), ("test_batch.bin", slice(6))):
        (tmp_path / name).write_bytes(np.hstack([LABELS[part, None], data[part]]).tobytes())
    (tmp_path / "batches.meta.txt").write_text("cat\ndog\neel\n\n")
    table = detect_layout(FolderTree(tmp_path))
    assert table.classes == ("cat", "dog", "eel")
    check(table, "train", upright(data), LABELS)
    check(table, "test", upright(data), LABELS)


class Command:
    """What must not be run."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    "content",
    [pickle.dumps({b"data": Command()}), pickle.dumps([1]), b"\x80\x02}(", b"", pickle.dumps({b"data": [1]})],
    ids=["a command", "a list", "cut", "empty", "no array"],
)
def test_a_pickle_that_is_none_of_cifars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Nothing of it is run; the file is named."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data_batch_1").write_bytes(content)
    with pytest.raises(LayoutError, match="data_batch_1"):
        detect_layout(FolderTree(tmp_path / "data"), "arrays")
    assert not (tmp_path / "ran").exists()


def test_stl10(tmp_path: Path) -> None:
    """Columns first, labels from 1; what has no labels is left out, and a note says so."""
    x = pixels(3, 96, 96, 3)
    for split in ("train", "test"):
        (tmp_path / f"{split}_X.bin").write_bytes(x.transpose(0, 3, 2, 1).tobytes())
        (tmp_path / f"{split}_y.bin").write_bytes(bytes([1, 2, 3]))
    (tmp_path / "class_names.txt").write_text("airplane\nbird\ncar\n")
    (tmp_path / "fold_indices.txt").write_text("0 1\n")
    table = detect_layout(FolderTree(tmp_path))
    assert table.classes == ("airplane", "bird", "car")
    check(table, "train", x, [0, 1, 2])
    check(table, "test", x, [0, 1, 2])


def test_svhn(tmp_path: Path) -> None:
    """MATLAB's last axis counts samples; its tenth class is the digit 0, as torchvision has it."""
    matlab = pytest.importorskip("scipy.io", reason="needs scipy: pip install 'colabstage[matlab]'")
    x = pixels(4, 5, 6, 3)
    for split in ("train", "test", "extra"):
        y = np.array([[1], [9], [10], [2]], np.uint8)
        matlab.savemat(tmp_path / f"{split}_32x32.mat", {"X": np.moveaxis(x, 0, -1), "y": y}, do_compression=True)
    table = detect_layout(FolderTree(tmp_path))
    for split in ("train", "test", "extra"):
        check(table, split, x, [1, 9, 0, 2])


def test_matlab_5_is_read_as_matlab_73(tmp_path: Path) -> None:
    """Other names and types, chosen by `array_rows`; a damaged file is one error."""
    matlab = pytest.importorskip("scipy.io", reason="needs scipy: pip install 'colabstage[matlab]'")
    x = RNG.normal(size=(6, 4))
    matlab.savemat(tmp_path / "a.mat", {"spectra": x, "age": LABELS[:, None].astype(np.int16), "note": "text"})
    table = detect_layout(FolderTree(tmp_path), array_rows(x="spectra", y="age"))
    np.testing.assert_array_equal(np.stack([np.asarray(table.inputs.source.read(row)) for row in range(6)]), x)
    (tmp_path / "a.mat").write_bytes((tmp_path / "a.mat").read_bytes()[:150])
    with pytest.raises(LayoutError, match=r"a\.mat"):
        detect_layout(FolderTree(tmp_path), "arrays")


def test_matlab_5_without_scipy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "scipy", None)
    (tmp_path / "a.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
    with pytest.raises(MissingDependencyError, match="pip install scipy"):
        detect_layout(FolderTree(tmp_path), "arrays")


def test_numbered_arrays_of_savez(tmp_path: Path) -> None:
    """The first are inputs and the second their labels, where their shapes agree; four are asked about."""
    x = pixels(6, 4, 4)
    np.savez(tmp_path / "a.npz", x, LABELS)
    check(detect_layout(FolderTree(tmp_path)), "", x, LABELS)
    for arrays in ((LABELS, x), (x, LABELS, x, LABELS), (x, x)):
        np.savez(tmp_path / "a.npz", *arrays)
        with pytest.raises(LayoutError, match=r"array_rows\(x='NAME', y='NAME'\)"):
            detect_layout(FolderTree(tmp_path))


@pytest.mark.parametrize("dtype", ["u1", ">f4"])
def test_arrays_in_fortran_order(tmp_path: Path, dtype: str) -> None:
    """Turned, row by row, as np.load has them."""
    values = RNG.integers(0, 100, (6, 3, 4, 2)).astype(dtype)
    np.save(tmp_path / "x.npy", np.asfortranarray(values))
    table = detect_layout(FolderTree(tmp_path))
    np.testing.assert_array_equal(np.stack([np.asarray(table.inputs.source.read(row)) for row in range(6)]), values)


def digits(header: str, rows: list[str]) -> str:
    """A table."""
    return "\n".join([header, *rows]) + "\n"


def test_kaggles_digits(tmp_path: Path) -> None:
    """A column for each pixel, the class first or last; a test set without classes is left out, with a note."""
    x = pixels(6, 4, 4)
    names = ",".join(f"pixel{number}" for number in range(16))
    lines = [",".join(map(str, row.ravel())) for row in x]
    (tmp_path / "train.csv").write_text(
        digits(f"label,{names}", [f"{label},{line}" for label, line in zip(LABELS, lines, strict=True)])
    )
    (tmp_path / "test.csv").write_text(digits(names, lines))
    table = detect_layout(FolderTree(tmp_path))
    assert table.layout == "pixel_table"
    check(table, "train", x, LABELS)
    assert table.classes == ("0", "1", "2")
    assert any("test.csv" in note for note in table.notes)
    (tmp_path / "test.csv").write_bytes(
        digits(f"{names},label", [f"{line},7" for line in lines]).replace("\n", "\r\n").rstrip().encode()
    )
    check(detect_layout(FolderTree(tmp_path)), "test", x, [7] * 6)


def test_fer2013(tmp_path: Path) -> None:
    """All pixels in one column, the split in another, which calls two of them a test."""
    x = pixels(6, 4, 4)
    usage = ["Training", "Training", "Training", "PublicTest", "PrivateTest", "PrivateTest"]
    (tmp_path / "fer2013.csv").write_text(
        digits(
            "emotion, Usage, pixels",
            [f'{LABELS[row]},{usage[row]},"{" ".join(map(str, x[row].ravel()))}"' for row in range(6)],
        )
    )
    table = detect_layout(FolderTree(tmp_path))
    check(table, "train", x[:3], LABELS[:3])
    check(table, "val", x[3:4], LABELS[3:4])
    check(table, "test", x[4:], LABELS[4:])


@pytest.mark.parametrize("cells", ["1,256", "1,-1", "1,1.5", "1,", "1"])
def test_a_row_of_other_numbers_is_a_broken_sample(tmp_path: Path, cells: str) -> None:
    """It is told when it is read; nothing is rounded or cut."""
    names = ",".join(f"{row}x{column}" for row in range(4) for column in range(4))
    zeros = ",".join("0" * 14)
    (tmp_path / "train.csv").write_text(digits(f"label,{names}", [f"0,{zeros},{cells}"]))
    with pytest.raises(DecodeError, match="pixel"):
        read(detect_layout(FolderTree(tmp_path)), 0)


def test_tables_that_hold_no_pixels(tmp_path: Path) -> None:
    """Numbers in columns of their own names are features, and no image."""
    (tmp_path / "train.csv").write_text("label,a,b\n0,1,2\n")
    with pytest.raises(EmptySourceError):
        detect_layout(FolderTree(tmp_path), "pixel_table")


def test_an_array_in_each_file_of_class_folders(tmp_path: Path) -> None:
    """Folders say classes and splits, as of images; files named like inputs and targets are something else."""
    values = {name: RNG.normal(size=(2, 3)) for name in ("train/cat/1", "train/dog/2", "test/cat/3", "test/dog/4")}
    for name, one in values.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / name, one)
    table = detect_layout(FolderTree(tmp_path))
    assert (table.layout, table.classes) == ("array_folder", ("cat", "dog"))
    assert isinstance(table.targets, Values)
    for row, key in enumerate(table.keys):
        array = table.inputs.to_array(table.inputs.source.read(row))  # type: ignore[union-attr]
        np.testing.assert_array_equal(array, values[key.removesuffix(".npy")])
        assert table.classes[table.targets.values[row]] in key
    np.save(tmp_path / "train" / "cat" / "labels.npy", LABELS)
    with pytest.raises(LayoutError, match=r"labels\.npy"):
        detect_layout(FolderTree(tmp_path), "array_folder")


def test_a_damaged_array_is_a_broken_sample(tmp_path: Path) -> None:
    """Pickled objects too, which are never loaded."""
    for name in ("a/1", "b/2"):
        (tmp_path / name).parent.mkdir()
        np.save(tmp_path / name, LABELS)
    decode: Any = detect_layout(FolderTree(tmp_path)).inputs.decode  # type: ignore[union-attr]
    held = io.BytesIO()
    np.save(held, np.array([Command()], object), allow_pickle=True)
    for content in (held.getvalue(), (tmp_path / "a" / "1.npy").read_bytes()[:-1], b""):
        with pytest.raises(DecodeError, match=r"\.npy"):
            decode(content)


@pytest.mark.parametrize(
    ("name", "remedy"), [("a/1.dcm", "pydicom"), ("a/1.nii.gz", "nibabel"), ("run/1.mp4", "ffmpeg")]
)
def test_files_that_nothing_reads(tmp_path: Path, name: str, remedy: str) -> None:
    """The first line of the error says how to get them in."""
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_bytes(b"\0")
    with pytest.raises(LayoutError) as caught:
        detect_layout(FolderTree(tmp_path))
    assert remedy in str(caught.value).partition("\n")[0]
