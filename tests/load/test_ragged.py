"""Rows of any length and texts in files that others wrote: every way of reading gives what h5py gives."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from colabstage import dataset_h5, make_loader, pack_dataset
from colabstage.errors import (
    DamagedPackError,
    DecodeError,
    LayoutError,
    NotEnoughSpaceError,
    OptionError,
    PackFormatError,
)
from colabstage.load.frameworks.arrays import ArrayBatches
from colabstage.load.plan import ArrayOptions
from colabstage.load.reading import fields
from colabstage.load.reading.reader import SplitReader

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

COUNT = 23
NAMES = [["cat", "dög", "", "a longer name"][row % 4] for row in range(COUNT)]
STORAGE: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (4,), "maxshape": (None,)},
    "gzip": {"chunks": (5,), "compression": "gzip", "shuffle": True},
}
REQUESTS: dict[str, Any] = {
    "shuffled": np.random.default_rng(0).permutation(COUNT),
    "repeated": [3, 3, 0, 22, 3, 0],
    "negative": [-1, -23, 5, -2],
    "neighbours": [4, 5, 6, 7],
    "none": [],
}


def rows_of(dtype: str, count: int = COUNT, seed: int = 0) -> list[NDArray[Any]]:
    """Rows of 0 to 40 values."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 200, rng.integers(0, 41)).astype(dtype) for _ in range(count)]


def write(path: Path, x: list[Any], y: Any = None, **storage: Any) -> Path:
    """A file of rows of any length; `y` may be such rows too, or texts."""
    with h5py.File(path, "w") as file:
        for name, values in (("X_train", x), ("Y_train", NAMES[: len(x)] if y is None else y)):
            is_text = isinstance(values[0], str)
            kind = h5py.string_dtype() if is_text else h5py.vlen_dtype(np.asarray(values[0]).dtype)
            if isinstance(values, np.ndarray):
                file[name] = values
                continue
            dataset = file.create_dataset(name, (len(values),), kind, **storage)
            for row, value in enumerate(values):
                dataset[row] = value
    return path


def jpeg(row: int) -> NDArray[np.uint8]:
    """A JPEG file that differs for each row."""
    pixels = np.random.default_rng(row).integers(0, 256, (3 + row % 4, 4, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return np.frombuffer(buffer.getvalue(), np.uint8)


def assert_rows(found: Any, expected: list[NDArray[Any]]) -> None:
    """Bit for bit the same, each row by itself."""
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        values = row.numpy() if isinstance(row, torch.Tensor) else row
        assert values.dtype == other.dtype
        np.testing.assert_array_equal(values, other)


@pytest.mark.parametrize(
    ("storage", "dtype"),
    [*(("contiguous", dtype) for dtype in ("u1", "f4", "i8", "f2", "?")), ("chunked", "f4"), ("gzip", "f4")],
)
@pytest.mark.parametrize("in_memory", [False, True])
def test_rows_of_any_length_equal_h5py(tmp_path: Path, storage: str, dtype: str, in_memory: bool) -> None:
    """Shuffled, repeated, negative and no rows are h5py's on both sides, each an array of its own."""
    path = write(tmp_path / "foreign.h5", rows_of(dtype), rows_of(dtype, seed=1), **STORAGE[storage])
    with h5py.File(path) as file:
        x, y = file["X_train"][()], file["Y_train"][()]
    dataset = dataset_h5(path, in_memory=in_memory)
    assert dataset.engine.name == ("memory" if in_memory else "h5py")
    assert in_memory or "variable-length" in dataset.engine.reason
    for request in REQUESTS.values():
        xs, ys = dataset.read_batch(request)
        picked = np.asarray(request, np.intp)
        assert_rows(xs, list(x[picked]))
        assert_rows(ys, list(y[picked]))
    (first, _), (second, _) = dataset.__getitems__([3, 3])
    assert first.flags.writeable
    assert not np.shares_memory(first, second)
    with pytest.raises(ValueError, match="shape"):
        dataset.read_batch([0], np.empty((1, 4), dtype))


@pytest.mark.parametrize("kind", ["variable", "ascii", "fixed"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_texts_are_str(tmp_path: Path, kind: str, in_memory: bool) -> None:
    """Texts of any length and of one are `str`, as h5py decodes them, as targets and as inputs."""
    words = [name.encode("ascii", "replace") if kind == "ascii" else name.encode() for name in NAMES]
    dtypes = {"variable": h5py.string_dtype(), "ascii": h5py.string_dtype("ascii"), "fixed": np.dtype("S20")}
    with h5py.File(tmp_path / "texts.h5", "w") as file:
        for name in ("X_train", "Y_train"):
            file.create_dataset(name, data=words, dtype=dtypes[kind])
    dataset = dataset_h5(tmp_path / "texts.h5", in_memory=in_memory)
    expected = [word.decode() for word in words]
    rows = REQUESTS["shuffled"]
    assert dataset.read_batch(rows) == ([expected[row] for row in rows], [expected[row] for row in rows])
    assert dataset[-1] == (expected[-1], expected[-1])
    assert in_memory or "texts" in dataset.engine.reason


def test_estimates_that_were_too_low_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows whose length was guessed too low stop being read when memory is full, with a message."""
    rows = [np.zeros(0, np.uint8)] * 400
    rows[1] = np.zeros(3_000_000, np.uint8)
    path = write(tmp_path / "uneven.h5", rows, np.arange(400))
    reader = SplitReader(path)
    assert reader.stored_bytes < 1000
    monkeypatch.setattr(fields, "spare_memory", lambda _free_bytes: 2_000_000)
    with pytest.raises(NotEnoughSpaceError, match="can be spared"):
        reader.into_memory()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("strategy", ["auto", "direct"])
def test_loader_visits_every_row_once(tmp_path: Path, shuffle: Any, strategy: Any) -> None:
    """In file order, shuffled, and out of memory: lists of tensors and texts, each row once."""
    rows = rows_of("f4")
    path = write(tmp_path / "foreign.h5", rows)
    dataset = dataset_h5(path, return_index=True)
    loader = make_loader(dataset, 4, shuffle=shuffle, strategy=strategy)
    assert loader.plan.engine.name == ("h5py" if strategy == "direct" else "memory")
    seen: list[int] = []
    for (x, y), index in loader:
        assert_rows(x, [rows[row] for row in index])
        assert y == [NAMES[row] for row in index]
        seen += index.tolist()
    assert sorted(seen) == list(range(COUNT))
    assert (seen == list(range(COUNT))) is (shuffle is False)


def test_transforms_take_rows_and_texts(tmp_path: Path) -> None:
    """A transform of one side makes what `default_collate` takes, and the other side stays rows of any length."""
    rows = rows_of("i4")
    path = write(tmp_path / "foreign.h5", rows)
    numbers = {name: number for number, name in enumerate(sorted(set(NAMES)))}
    (x, y), *_ = make_loader(dataset_h5(path, target_transform=numbers.__getitem__), 5, shuffle=False)
    assert_rows(x, rows[:5])
    assert y.tolist() == [numbers[name] for name in NAMES[:5]]
    (x, y), *_ = make_loader(dataset_h5(path, transform=len), 5, shuffle=False)
    assert x.tolist() == [len(row) for row in rows[:5]]
    assert y == NAMES[:5]


def test_several_files_read_as_one(tmp_path: Path) -> None:
    """Rows of shards follow each other; a file with other values is refused by the difference."""
    rows = rows_of("f4")
    for number, own in enumerate((slice(0, 9), slice(9, COUNT))):
        write(tmp_path / f"part-{number}.h5", rows[own], NAMES[own])
    dataset = dataset_h5([tmp_path / "part-0.h5", tmp_path / "part-1.h5"])
    for request in REQUESTS.values():
        x, y = dataset.read_batch(request)
        picked = np.arange(COUNT)[np.asarray(request, np.intp)]
        assert_rows(x, [rows[row] for row in picked])
        assert y == [NAMES[row] for row in picked]
    write(tmp_path / "part-2.h5", rows_of("i4"))
    with pytest.raises(PackFormatError, match=r"int32 .*float32"):
        dataset_h5([tmp_path / "part-0.h5", tmp_path / "part-2.h5"])


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    """Letters of another coding are an error with the row, not wrong letters."""
    with h5py.File(tmp_path / "latin.h5", "w") as file:
        file["X_train"] = np.zeros((3, 4), np.float32)
        file.create_dataset("Y_train", data=[b"a", "dög".encode("latin-1"), b"c"], dtype=h5py.string_dtype())
    dataset = dataset_h5(tmp_path / "latin.h5")
    assert dataset[0][1] == "a"
    with pytest.raises(DecodeError, match=r"Row 1 of Y_train"):
        dataset.read_batch([0, 1])


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [
        ((3,), h5py.vlen_dtype(h5py.vlen_dtype(np.uint8)), "variable length"),
        ((3,), h5py.vlen_dtype(np.dtype([("a", "f4"), ("b", "i2")])), "compounds of a, b"),
        ((3,), h5py.vlen_dtype(np.dtype(">f4")), "native numbers"),
        ((3, 2), h5py.vlen_dtype(np.float32), "lists of values.*each row"),
        ((3, 2), h5py.string_dtype(), "texts.*each row"),
        ((3,), np.dtype([("mean", "f4"), ("count", "i4")]), "mean, count"),
    ],
)
def test_what_is_still_refused(tmp_path: Path, shape: tuple[int, ...], dtype: Any, words: str) -> None:
    """On opening, with the reason."""
    for name in ("X_train", "Y_train"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["X_train" if name == "Y_train" else "Y_train"] = np.zeros(3)
            file.create_dataset(name, shape, dtype)
        with pytest.raises(PackFormatError, match=f"{name}.*{words}"):
            dataset_h5(tmp_path / f"{name}.h5")


def test_no_rows_and_rows_that_nobody_wrote(tmp_path: Path) -> None:
    """An empty split reads as none; rows that were never written are empty."""
    for count in (0, 3):
        with h5py.File(tmp_path / f"{count}.h5", "w") as file:
            file.create_dataset("X_train", (count,), h5py.vlen_dtype(np.float32))
            file.create_dataset("Y_train", (count,), h5py.string_dtype())
        for in_memory in (False, True):
            dataset = dataset_h5(tmp_path / f"{count}.h5", in_memory=in_memory)
            x, y = dataset.read_batch(range(count))
            assert_rows(x, [np.zeros(0, np.float32)] * count)
            assert y == [""] * count
            assert "float32" in repr(dataset)


def test_frameworks_that_need_arrays_say_what_to_do(tmp_path: Path) -> None:
    """Batches for Keras and TensorFlow are arrays: a transform must make them, and then they are read."""
    path = write(tmp_path / "foreign.h5", rows_of("f4"))
    with pytest.raises(OptionError, match=r"inputs.*transform"):
        ArrayBatches(path, 4)
    with h5py.File(tmp_path / "named.h5", "w") as file:
        file["X_train"], file["Y_train"] = np.zeros((4, 2), np.float32), NAMES[:4]
    with pytest.raises(OptionError, match=r"targets.*target_transform"):
        ArrayBatches(tmp_path / "named.h5", 4)
    batches = ArrayBatches(dataset_h5(path, len, target_transform=len), 4, ArrayOptions(shuffle=False))
    x, y = batches.read(0, 0)
    assert x.tolist() == [len(row) for row in rows_of("f4")[:4]]
    assert y.tolist() == [len(name) for name in NAMES[:4]]


def test_heap_that_is_broken(tmp_path: Path) -> None:
    """Rows whose values are overwritten by others' are an error that says the file is damaged."""
    path = write(tmp_path / "foreign.h5", rows_of("f4", 2000), np.arange(2000))
    dataset = dataset_h5(path)
    with h5py.File(path) as file:
        start = file["X_train"].id.get_offset() + file["X_train"].id.get_storage_size()
    dataset.read_batch([0])
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(b"\xff" * (path.stat().st_size - start))
    dataset.close()
    with pytest.raises(DamagedPackError):
        dataset.read_batch(range(2000))


def test_packing_them_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """A pack holds rows of one shape; the message says how such a file is read instead."""
    write(tmp_path / "foreign.h5", rows_of("f4"))
    with pytest.raises(LayoutError, match=r"float32.*dataset_h5"):
        pack_dataset(tmp_path / "foreign.h5", tmp_path / "packed.h5")
    assert not (tmp_path / "packed.h5").exists()


def test_padding_values_is_refused_with_the_line_that_pads_them(tmp_path: Path) -> None:
    """Boxes are padded by `ragged="pad"`; rows of any length by torch's own function, as the error says."""
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        rows = file.create_dataset("X_train", (6,), dtype=h5py.vlen_dtype("f4"))
        for number in range(6):
            rows[number] = np.arange(number + 1, dtype="f4")
        file["Y_train"] = np.arange(6)
    dataset = dataset_h5(tmp_path / "rows.h5")
    with pytest.raises(OptionError, match="pad_sequence") as refused:
        make_loader(dataset, 3, ragged="pad")
    line = str(refused.value).partition("batch_transform=")[2].removesuffix(".")
    batches = make_loader(dataset, 3, shuffle=False, batch_transform=eval(line, {"torch": torch}))
    assert [x.shape for x, _ in batches] == [(3, 3), (3, 6)]
