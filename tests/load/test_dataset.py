"""`dataset_h5`: a Dataset for any file that behaves as torch's users expect; tests/contract/test_dataset_h5.py compares
the rows of every kind of storage with h5py's."""

import ast
import gc
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader

from colabstage import ColabstageError, dataset_h5, make_loader, pack_dataset, to_numpy
from colabstage.errors import (
    DamagedPackError,
    DecodeError,
    DriveDisconnectedError,
    NotEnoughSpaceError,
    OptionError,
    PackFormatError,
    SourceNotFoundError,
    SplitNotFoundError,
)
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.load.conftest import picture
from tests.nurseries import Nurseries
from tests.support.images import in_classes, make_tree
from tests.support.made_files import make_sparse_h5

WORDS = ["cat", "dög", "", "a longer name"]


def write(path: Path, **datasets: Any) -> Path:
    """A file with these datasets; lists of arrays become rows of different lengths."""
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            if isinstance(values, list) and isinstance(values[0], np.ndarray):
                rows = file.create_dataset(name, (len(values),), h5py.vlen_dtype(values[0].dtype))
                for row, value in enumerate(values):
                    rows[row] = value
            else:
                file[name] = values
    return path


def numbers(count: int = 9, *shape: int) -> NDArray[Any]:
    return np.random.default_rng(count).integers(1, 200, (count, *shape)).astype(np.int32)


@pytest.mark.parametrize(
    "out",
    [
        np.empty((3, 10, 12, 3), np.uint8),
        np.empty((4, 10, 12, 3), np.int8),
        np.empty((4, 10, 12, 6), np.uint8)[..., ::2],
        np.broadcast_to(np.uint8(0), (4, 10, 12, 3)),
    ],
    ids=["shape", "dtype", "order", "read-only"],
)
def test_an_array_that_cannot_take_the_rows_is_refused(make_file: Callable[..., Any], out: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match=r"\(4, 10, 12, 3\)"):
        dataset_h5(make_file("pack", 23).path).read_batch([0, 1, 2, 3], out)


@pytest.mark.parametrize("bad", [23, -24])
def test_a_row_that_is_not_there_is_named(make_file: Callable[..., Any], bad: int) -> None:
    dataset = dataset_h5(make_file("pack", 23).path)
    for read in (lambda: dataset[bad], lambda: dataset.read_batch([0, bad])):
        with pytest.raises(IndexError, match=f"{bad}"):
            read()


def test_a_sample_is_x_as_stored_and_y_as_int(make_file: Callable[..., Any]) -> None:
    """(x, y): x a writable array (H, W, C) of its own, y a Python int; numpy's and torch's integers are indices. The
    number that comes with a sample counts from the front."""
    sample = make_file("pack", 23)
    dataset = dataset_h5(sample.path)
    for index in (0, -23, np.int64(5), torch.tensor(7)):
        x, y = dataset[index]  # type: ignore[index]  # anything with __index__ works
        np.testing.assert_array_equal(x, sample.x[int(index)])
        assert type(y) is int
        assert y == sample.y[int(index)]
    x[...] = 0
    np.testing.assert_array_equal(dataset[7][0], sample.x[7])
    numbered = dataset_h5(sample.path, return_index=True)
    assert [index for _, index in (numbered[-2], *numbered.__getitems__([-1, 4, -23]))] == [21, 22, 4, 0]


def test_each_sample_has_the_name_of_its_source(make_file: Callable[..., Any]) -> None:
    """A file that colabstage did not pack has none, and the error says so."""
    dataset = dataset_h5(make_file("pack", 23).path)
    name, label = dataset.samples[22]
    assert (label, len(set(dataset.filenames)), dataset.class_to_idx["e"]) == (dataset[22][1], 23, 4)
    assert (dataset.filenames[22], dataset.classes[label]) == (name, name.partition("/")[0])
    for attribute in ("samples", "filenames"):
        with pytest.raises(PackFormatError):
            getattr(dataset_h5(make_file("contiguous", 3).path), attribute)
        assert not hasattr(dataset_h5(make_file("contiguous", 3).path), attribute)


def test_a_sample_with_a_mask_has_the_array(tmp_path: Path) -> None:
    """Not lists of numbers, which take many times its memory."""
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4)
    pack_dataset([(mask, mask)] * 2, tmp_path / "masks.h5", progress=False)
    _, target = dataset_h5(tmp_path / "masks.h5").samples[1]
    np.testing.assert_array_equal(target, mask, strict=True)


def test_a_split_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    """If a pack was not divided, the error shows the fractions that divide it."""
    make_tree(tmp_path / "photos", in_classes(20))
    pack_dataset(tmp_path / "photos", tmp_path / "whole.h5", progress=False)
    with pytest.raises(SplitNotFoundError, match="'train'") as caught:
        dataset_h5(tmp_path / "whole.h5", split="val")
    fractions = ast.literal_eval(re.findall(r"splits=(\{.*?\})", str(caught.value))[0])
    pack_dataset(tmp_path / "photos", tmp_path / "divided.h5", splits=fractions, progress=False)
    assert len(dataset_h5(tmp_path / "divided.h5", split="val")) == 4


def test_it_describes_itself(tmp_path: Path, make_file: Callable[..., Any], make_encoded: Callable[..., Path]) -> None:
    """As text and in a notebook: what the samples are and how they are read."""
    dataset = dataset_h5(make_file("gzip", 23).path)
    for text in (repr(dataset), dataset._repr_html_()):
        assert all(words in text for words in ("23", "10 x 12 x 3 uint8", "chunks"))
    assert "float32" in repr(dataset_h5(write(tmp_path / "a.h5", X_train=rows_of("f4"))))
    write(tmp_path / "b.h5", X_train=rows_of("f4"))
    both = dataset_h5(tmp_path / "[ab].h5")
    assert all("a.h5 and 1 more" in text for text in (repr(both), both._repr_html_()))
    assert "images of their own sizes" in repr(dataset_h5(make_encoded(3)))


def test_a_pickle_is_small_and_no_descriptor_stays_open(
    make_file: Callable[..., Any], tmp_path: Path, nurseries: Nurseries
) -> None:
    """A used dataset still reads after it was pickled, also in a process that has not imported colabstage; closed, it
    holds nothing."""
    sample = make_file("gzip", 23)
    dataset = dataset_h5(sample.path, in_memory=True)
    data = pickle.dumps(dataset)
    assert len(data) < 4000
    np.testing.assert_array_equal(pickle.loads(data)[5][0], sample.x[5])
    (tmp_path / "dataset").write_bytes(data)
    script = tmp_path / "script.py"
    script.write_text("import pickle, sys\nprint(pickle.load(open(sys.argv[1], 'rb'))[5][0].sum())\n", "utf-8")
    assert int(nurseries.run_script("torch", [script, tmp_path / "dataset"], {})) == sample.x[5].sum()
    reader = dataset_h5(sample.path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        reader.read_batch([0])
        reader.close()
        reader.close()
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.parametrize(
    ("kind", "in_memory", "workers", "method", "persistent"),
    [
        ("gzip", False, 2, "fork", False),
        ("pack", True, 1, "fork", True),
        # Its workers import torch.
        pytest.param("pack", True, 1, "spawn", True, marks=pytest.mark.long),
    ],
)
def test_in_a_plain_dataloader(
    make_file: Callable[..., Any], kind: str, workers: int, method: str, persistent: bool, in_memory: bool
) -> None:
    """torch's own DataLoader reads every sample correctly, after the parent has used the dataset, and twice in a
    row."""
    sample = make_file(kind, 23)
    dataset = dataset_h5(sample.path, in_memory=in_memory)
    dataset[0]
    how: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": method, "timeout": 60}
    loader = DataLoader(dataset, 4, persistent_workers=persistent, **how)
    for _ in range(2):
        batches = list(loader)
        assert [len(y) for _, y in batches] == [4, 4, 4, 4, 4, 3]
        np.testing.assert_array_equal(torch.cat([x for x, _ in batches]).numpy(), sample.x)
        np.testing.assert_array_equal(torch.cat([y for _, y in batches]).numpy(), sample.y)
    np.testing.assert_array_equal(dataset[22][0], sample.x[22])


# --- files that change, and files that are wrong ----------------------------------------------------------------------


def cut(path: Path, other: Path) -> None:
    os.truncate(path, 4096)


def replaced(path: Path, other: Path) -> None:
    other.replace(path)


def touched(path: Path, other: Path) -> None:
    os.utime(path, (1, 1))


@pytest.mark.parametrize(("kind", "change"), [("pack", cut), ("pack", replaced), ("gzip", replaced), ("gzip", touched)])
def test_a_file_that_changes_is_refused(make_file: Callable[..., Any], kind: str, change: Any) -> None:
    """Neither wrong rows nor a bus error; if the file was replaced, an open dataset keeps the old rows."""
    sample = make_file(kind, 23)
    opened, unopened = dataset_h5(sample.path), dataset_h5(sample.path)
    opened.read_batch([0])
    change(sample.path, make_file(kind, 24).path)
    with pytest.raises(DamagedPackError, match=re.escape(str(sample.path))):
        unopened.read_batch([22])
    if change is replaced:
        np.testing.assert_array_equal(opened.read_batch([7])[0], sample.x[[7]])
    elif kind == "pack":
        with pytest.raises(DamagedPackError):
            opened.read_batch([22])


@pytest.mark.parametrize(
    ("shape", "dtype", "named"),
    [
        ((3,), h5py.vlen_dtype(h5py.vlen_dtype(np.uint8)), ""),
        ((3, 2), h5py.string_dtype(), ""),
        ((3,), np.dtype([("mean", "f4"), ("count", "i4")]), "mean.*count"),
        ((3,), np.dtype("V4"), r"\|V4"),
    ],
)
@pytest.mark.parametrize("name", ["X_train", "Y_train"])
def test_values_that_are_no_rows_of_numbers_are_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...], dtype: Any, named: str
) -> None:
    """When opening, not at the thousandth sample, saying what they are."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X_train" if name == "Y_train" else "Y_train"] = np.zeros(3)
        file.create_dataset(name, shape, dtype)
    with pytest.raises(PackFormatError, match=f"{name}.*{named}"):
        dataset_h5(tmp_path / "a.h5")


def test_values_that_nobody_wrote_without_a_fill_value(tmp_path: Path) -> None:
    """Zeros beside values that exist, as in h5py."""
    path, properties = tmp_path / "a.h5", h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((3,))
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple((9,))
        dataset = h5py.h5d.create(file.id, b"X_train", h5py.h5t.NATIVE_FLOAT, space, properties)
        h5py.Dataset(dataset)[:3] = [1, 2, 3]
    # In version 2 of the fill value message, byte 4 says whether there is one.
    content, head = path.read_bytes(), bytes([2, 3, 2, 1, 0, 0, 0, 0])
    assert content.count(head) == 1
    path.write_bytes(content.replace(head, head[:3] + bytes(5)))
    with pytest.warns(UserWarning, match="2 of the 3 chunks"):
        dataset = dataset_h5(path)
    assert np.asarray(dataset.read_batch(range(9))[0]).tolist() == [1, 2, 3] + [0] * 6


# --- other names and other files --------------------------------------------------------------------------------------


def test_names_of_ones_own(tmp_path: Path) -> None:
    """Inputs and targets under any name, in groups and in other files; the description shows them."""
    x, y = numbers(9, 3, 5), numbers(9)
    for name in ("a.h5", "b.h5"):
        write(tmp_path / name, **{"images": x, "meta/labels": y})
    for files, count in ((tmp_path / "a.h5", 1), ([tmp_path / "a.h5", tmp_path / "b.h5"], 2)):
        dataset = dataset_h5(files, x="images", y="meta/labels", split="test")
        found = pickle.loads(pickle.dumps(dataset)).read_batch(range(count * 9))
        np.testing.assert_array_equal(found[0], np.concatenate([x] * count))
        np.testing.assert_array_equal(found[1], np.concatenate([y] * count))
        assert "meta/labels" in repr(dataset)
    assert dataset_h5(tmp_path / "a.h5", x="images")[0][1] == -1
    write(tmp_path / "y.h5", **{"pad": np.zeros(333), "deep/y": y + 7})
    found = dataset_h5(tmp_path / "a.h5", x="images", y="y.h5/deep/y").read_batch(range(9))
    np.testing.assert_array_equal(found[1], y + 7)


@pytest.mark.parametrize(
    ("names", "error", "named"),
    [
        ({"x": "images", "y": "nowhere.h5/y"}, SourceNotFoundError, r"nowhere\.h5"),
        ({"x": "images", "y": "a.h5/y"}, PackFormatError, r"a\.h5/y"),
        ({"x": "imgs"}, PackFormatError, "'imgs'.*images, meta"),
        ({}, PackFormatError, "images, meta"),
        ({"y": "images"}, OptionError, "y='images'"),
    ],
)
def test_names_that_are_not_there_are_named_with_those_that_are(
    tmp_path: Path, names: dict[str, Any], error: type[ColabstageError], named: str
) -> None:
    path = write(tmp_path / "a.h5", **{"images": numbers(), "meta/labels": numbers()})
    with pytest.raises(error, match=named):
        dataset_h5(path, **names)


@pytest.mark.parametrize(("x", "y"), [("X_train", "y_train"), ("x_train", "Y_Train")])
def test_scikit_learns_spelling_has_its_labels(tmp_path: Path, x: str, y: str) -> None:
    """A lower-case x or y counts as the same name."""
    dataset = dataset_h5(write(tmp_path / "a.h5", **{x: numbers(9, 2), y: numbers(9), "x_offset": [1.0]}))
    np.testing.assert_array_equal(dataset.targets, numbers(9))
    np.testing.assert_array_equal(dataset.read_batch(range(9))[0], numbers(9, 2))


def external(folder: Path) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        raw = [(str(folder / "x.raw"), 0, h5py.h5f.UNLIMITED)]
        file.create_dataset("X_train", data=numbers(9, 4), external=raw)
    return folder / "x.raw"


def test_values_in_a_file_that_is_gone_are_an_error(tmp_path: Path) -> None:
    """HDF5 would replace what is missing by zeros; also in the middle of an epoch."""
    raw = external(tmp_path)
    dataset = dataset_h5(tmp_path / "a.h5", allow_external=True)
    np.testing.assert_array_equal(dataset.read_batch([2, 0])[0], numbers(9, 4)[[2, 0]])
    raw.unlink()
    with pytest.raises(DamagedPackError, match=r"a\.h5"):
        dataset.read_batch([1])
    with pytest.raises(PackFormatError, match=r"x\.raw"):
        dataset_h5(tmp_path / "a.h5", allow_external=True)


def test_targets_that_a_dead_link_leads_to_are_no_missing_targets(tmp_path: Path) -> None:
    """An error that names its target, instead of -1 for every label."""
    path = write(tmp_path / "a.h5", X_train=numbers(), Y_train=h5py.ExternalLink("labels.h5", "/y"))
    with pytest.raises(PackFormatError, match=r"labels\.h5"):
        dataset_h5(path)


# --- rows of any length, and strings ----------------------------------------------------------------------------------


def rows_of(dtype: str, count: int = 23) -> list[NDArray[Any]]:
    """Rows of 0 to 40 values."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 200, rng.integers(0, 41)).astype(dtype) for _ in range(count)]


def assert_rows(found: Any, expected: list[NDArray[Any]]) -> None:
    """Check that rows are equal bit for bit, each separately."""
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        values = np.asarray(row)
        assert values.dtype == other.dtype
        np.testing.assert_array_equal(values, other)


@pytest.mark.parametrize(("dtype", "in_memory"), [("u1", False), ("f4", True), ("?", True)])
def test_rows_of_any_length_are_arrays_of_their_own(tmp_path: Path, dtype: str, in_memory: bool) -> None:
    """In one file and in several, as inputs and targets, in every order; they cannot be read into a given array."""
    rows = rows_of(dtype)
    for number, own in enumerate((slice(0, 9), slice(9, 23))):
        write(tmp_path / f"part-{number}.h5", X_train=rows[own], Y_train=rows[own])
    dataset = dataset_h5([tmp_path / "part-0.h5", tmp_path / "part-1.h5"], in_memory=in_memory)
    for wanted in ([3, 3, 0, 22, -1, -23], list(range(22, -1, -1)), [7, 8, 9, 10], []):
        for side in dataset.read_batch(wanted):
            assert_rows(side, [rows[row] for row in wanted])
    (first, _), (second, _) = dataset.__getitems__([3, 3])
    assert first.flags.writeable
    assert not np.shares_memory(first, second)
    with pytest.raises(ValueError, match="shape"):
        dataset.read_batch([0], np.empty((1, 4), dtype))
    write(tmp_path / "part-2.h5", X_train=rows_of("i4"))
    with pytest.raises(PackFormatError, match="int32"):
        dataset_h5([tmp_path / "part-0.h5", tmp_path / "part-2.h5"])


@pytest.mark.parametrize(("kind", "in_memory"), [("utf-8", False), ("ascii", True), ("S20", True)])
def test_texts_are_str(tmp_path: Path, kind: str, in_memory: bool) -> None:
    """Of any length and of a fixed one, as targets and as inputs."""
    words = ["cat", "dog", "", "a longer name"] if kind == "ascii" else WORDS
    dtype = np.dtype(kind) if kind == "S20" else h5py.string_dtype(kind)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("X_train", "Y_train"):
            file.create_dataset(name, data=[word.encode() for word in words], dtype=dtype)
    dataset = dataset_h5(tmp_path / "a.h5", in_memory=in_memory)
    assert dataset.read_batch([3, 0, 1]) == ([words[3], words[0], words[1]],) * 2
    assert dataset[-2] == (words[2], words[2])


def test_rows_that_are_longer_than_they_seemed_do_not_fill_the_memory(
    tmp_path: Path, have_free: Callable[[int], None]
) -> None:
    """The length is estimated from a few; reading into memory stops when that is full."""
    rows = [np.zeros(0, np.uint8)] * 400
    rows[1] = np.zeros(30_000_000, np.uint8)
    path = write(tmp_path / "a.h5", X_train=rows, Y_train=np.arange(400))
    have_free(1_003_000_000)
    with pytest.raises(NotEnoughSpaceError, match="X_train"):
        dataset_h5(path, in_memory=True)


def test_a_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    """Letters in another encoding are an error with the row, not wrong letters."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X_train"] = np.zeros((3, 4), np.float32)
        file.create_dataset("Y_train", data=[b"a", "dög".encode("latin-1"), b"c"], dtype=h5py.string_dtype())
    dataset = dataset_h5(tmp_path / "a.h5")
    assert dataset[0][1] == "a"
    with pytest.raises(DecodeError, match="Row 1 of Y_train"):
        dataset.read_batch([0, 1])


@pytest.mark.parametrize(("shuffle", "strategy"), [(False, "auto"), (True, "direct")])
def test_a_loader_gives_lists_of_rows_and_texts(tmp_path: Path, shuffle: Any, strategy: Any) -> None:
    """Each row once; a transform of one side makes what `default_collate` accepts."""
    rows, names = rows_of("f4"), [WORDS[row % 4] for row in range(23)]
    path = write(tmp_path / "a.h5", X_train=rows, Y_train=names)
    loader = make_loader(dataset_h5(path, return_index=True), 4, shuffle=shuffle, strategy=strategy)
    seen: list[int] = []
    for (x, y), index in loader:
        assert_rows(x, [rows[row] for row in index])
        assert y == [names[row] for row in index]
        seen += index.tolist()
    assert sorted(seen) == list(range(23))
    assert (seen == sorted(seen)) is (shuffle is False)
    (x, y), *_ = make_loader(dataset_h5(path, target_transform=len), 5, shuffle=False, strategy=strategy)
    assert_rows(x, rows[:5])
    assert y.tolist() == [len(name) for name in names[:5]]


def test_no_rows_and_rows_that_nobody_wrote(tmp_path: Path) -> None:
    """An empty split has no rows; rows that were never written are empty."""
    for count in (0, 3):
        with h5py.File(tmp_path / f"{count}.h5", "w") as file:
            file.create_dataset("X_train", (count,), h5py.vlen_dtype(np.float32))
            file.create_dataset("Y_train", (count,), h5py.string_dtype())
        for in_memory in (False, True):
            x, y = dataset_h5(tmp_path / f"{count}.h5", in_memory=in_memory).read_batch(range(count))
            assert_rows(x, [np.zeros(0, np.float32)] * count)
            assert y == [""] * count


def test_who_needs_arrays_is_told_what_makes_them(tmp_path: Path) -> None:
    """Keras and TensorFlow, and packing: each message suggests something that works."""
    rows = rows_of("f4")
    path = write(tmp_path / "a.h5", X_train=rows, Y_train=np.arange(23))
    with pytest.raises(OptionError, match="transform"):
        to_numpy(path, 4)
    with pytest.raises(OptionError, match="target_transform"):
        to_numpy(write(tmp_path / "b.h5", X_train=np.zeros((4, 2)), Y_train=WORDS), 4)
    x, y = next(iter(to_numpy(dataset_h5(path, len), 4, shuffle=False)))
    assert (x.tolist(), y.tolist()) == ([len(row) for row in rows[:4]], [0, 1, 2, 3])
    with pytest.raises(ColabstageError, match="dataset_h5"):
        pack_dataset(path, tmp_path / "packed.h5", progress=False)
    assert not (tmp_path / "packed.h5").exists()


def test_a_heap_that_is_broken_is_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", X_train=rows_of("f4", 200), Y_train=np.arange(200))
    with h5py.File(path) as file:
        start = file["X_train"].id.get_offset() + file["X_train"].id.get_storage_size()
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * (path.stat().st_size - start))
    with pytest.raises(DamagedPackError):
        dataset_h5(path).read_batch(range(200))


# --- image files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("compression", "in_memory"), [(None, False), ("gzip", True)])
def test_image_files_are_brought_to_their_size(
    make_encoded: Callable[..., Path], compression: str | None, in_memory: bool
) -> None:
    """The same one by one and in batches, within a grey level of Pillow's own filter; unchanged without a size."""
    dataset = dataset_h5(make_encoded(9, size=(6, 7), compression=compression), in_memory=in_memory)
    batch, _ = dataset.read_batch([8, 3, 3, 0], threads=2)
    for image, row in zip(batch, [8, 3, 3, 0], strict=True):
        np.testing.assert_array_equal(image, dataset[row][0])
        wanted = Image.fromarray(picture(row, 8 + row, 20)).resize((7, 6), Image.Resampling.BILINEAR)
        assert np.abs(image.astype(int) - np.asarray(wanted)).max() <= 1
    whole = dataset_h5(make_encoded(9, compression=compression), in_memory=in_memory)
    np.testing.assert_array_equal(whole[5][0], picture(5, 13, 20))


def test_offsets_that_make_no_sense_are_damage(make_encoded: Callable[..., Path]) -> None:
    path = make_encoded(5)
    with h5py.File(path, "r+") as file:
        file["X_train/offsets"][2] = 10**9
    with pytest.raises(DamagedPackError):
        dataset_h5(path).read_batch([0])


# --- files that are not in memory -------------------------------------------------------------------------------------


@pytest.mark.disk
def test_a_cold_file_is_read_through_before_the_first_batch(tmp_path: Path) -> None:
    """Afterwards all of the file is in memory, and all batches are right."""
    path, count = tmp_path / "large.h5", 150
    values = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, 256, 256, 3))
    write(path, X_train=values, Y_train=np.arange(count))
    with path.open("r+b") as file:
        os.fsync(file)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    dataset = dataset_h5(path)
    if "100%" in dataset.engine.reason:
        pytest.skip("needs a file system whose cache can be dropped: run with --basetemp on a local disk, not tmpfs")
    batches = iter(make_loader(dataset, 16))
    first = next(batches)
    assert "100%" in dataset_h5(path).engine.reason
    for x, y in [first, *batches]:
        assert torch.equal(x.amin((1, 2, 3)).long(), y)
        assert torch.equal(x.amax((1, 2, 3)).long(), y)


def test_a_file_larger_than_memory_is_read_by_rows(tmp_path: Path, make_encoded: Callable[..., Path]) -> None:
    """Nothing is read ahead; the requested rows come right, many reads at a time."""
    make_sparse_h5(tmp_path / "huge.h5", (2**20, 1024, 1024, 1))
    with h5py.File(tmp_path / "huge.h5") as file:
        start = file["X_train"].id.get_offset()
    with (tmp_path / "huge.h5").open("r+b") as raw:
        raw.seek(start + 2**39)
        raw.write(b"\7" * 2**20)
    dataset = dataset_h5(tmp_path / "huge.h5")
    assert dataset.engine.name == "read"
    x, _ = dataset.read_batch([2**19, 0, 2**19 + 1, -1], threads=4)
    assert [int(np.sum(row)) for row in x] == [7 * 2**20, 0, 0, 0]
    assert make_loader(dataset, 2, shuffle=False).plan.workers.value >= 16
    os.utime(tmp_path / "huge.h5", (1, 1))
    with pytest.raises(DamagedPackError):
        dataset.read_batch([0])
    path = make_encoded(9)
    with h5py.File(path, "r+") as file:
        data = file["X_train/bytes"][()]
        del file["X_train/bytes"]
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((2**40,))
        h5py.Dataset(h5py.h5d.create(file.id, b"X_train/bytes", h5py.h5t.STD_U8LE, space, created))[: len(data)] = data
    encoded = dataset_h5(path)
    assert encoded.engine.name == "read"
    for row, image in enumerate(encoded.read_batch(range(9), threads=2)[0]):
        np.testing.assert_array_equal(image, picture(row, 8 + row, 20))


@pytest.mark.fuse
@pytest.mark.filterwarnings("ignore:.*in_memory=True:UserWarning")
@pytest.mark.parametrize("chunks", [None, (1, 256, 256, 3)])
def test_a_mount_that_dies_between_two_batches_is_named(tmp_path: Path, chunks: tuple[int, ...] | None) -> None:
    """The file is not called damaged, whichever engine reads: the message names the mount, and how to mount it
    again."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("X_train", data=np.ones((64, 256, 256, 3), np.uint8), chunks=chunks)
    with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:
        shutil.copy(tmp_path / "a.h5", drive.cloud / "MyDrive" / "data.h5")
        drive.mount(tmp_path / "drive")
        dataset = dataset_h5(tmp_path / "drive" / "MyDrive" / "data.h5")
        dataset.read_batch([0])
        drive.kill()
        with pytest.raises(DriveDisconnectedError, match="mount_drive"):
            dataset.read_batch(range(64))
        dataset.close()


@pytest.mark.fuse
def test_a_file_on_a_slow_mount_warns_and_is_not_mapped(make_file: Callable[..., Any], tmp_path: Path) -> None:
    """On Drive's mount, the dataset says what that costs, and reads through h5py, or once into memory."""
    sample = make_file("pack", 23)
    with SimulatedDrive(tmp_path / "home", knobs=DriveKnobs.quick()) as drive:
        shutil.copy(sample.path, drive.cloud / "MyDrive" / "data.h5")
        drive.mount(tmp_path / "drive")
        path = tmp_path / "drive" / "MyDrive" / "data.h5"
        with pytest.warns(UserWarning, match="in_memory=True"):
            dataset = dataset_h5(path)
        assert dataset.engine.name == "h5py"
        np.testing.assert_array_equal(dataset.read_batch([3, -1, 3])[0], sample.x[[3, -1, 3]])
        dataset.close()
        # Without a warning, which would be an error here.
        loaded = dataset_h5(path, in_memory=True)
        np.testing.assert_array_equal(loaded[5][0], sample.x[5])
        loaded.close()
