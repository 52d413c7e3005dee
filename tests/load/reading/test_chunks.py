"""Foreign files read without HDF5: every layout, filter and dtype gives what h5py gives."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from colabstage.errors import DamagedPackError, PackFormatError
from colabstage.io.pipeline import ThreadPool
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader
from colabstage.load.reading import chunks, engines, open_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

pytestmark = pytest.mark.torch

DTYPES = ["u1", "<u2", ">u2", "<i4", ">i8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "?", "<c8", ">c16"]
FILTERS: list[dict[str, Any]] = [
    {},
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True},
    {"compression": "gzip", "compression_opts": 0},
    {"shuffle": True},
    {"fletcher32": True},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
    {"compression": "lzf", "shuffle": True},
    {"compression": "szip", "compression_opts": ("nn", 2)},
    {"scaleoffset": 0},
]


@st.composite
def _files(draw: st.DrawFn) -> dict[str, Any]:
    """What a foreign file may look like: shape of its rows, dtype, and how it is stored."""
    shape = (draw(st.integers(0, 9)), *draw(st.lists(st.integers(1, 5), max_size=3)))
    kwargs: dict[str, Any] = {**draw(st.sampled_from(FILTERS))}
    dtype = draw(st.sampled_from(DTYPES))
    if np.dtype(dtype).kind in "cb":
        kwargs = {} if kwargs.get("compression") == "szip" or "scaleoffset" in kwargs else kwargs
    if np.dtype(dtype).kind == "f":
        kwargs.pop("scaleoffset", None)
    if kwargs or draw(st.sampled_from([True, False])):
        kwargs["chunks"] = (draw(st.integers(2, 6)), *(draw(st.integers(1, 6)) for _ in shape[1:]))
        kwargs["maxshape"] = (None,) * len(shape)
    return {
        "shape": shape,
        "dtype": dtype,
        "written": draw(st.sampled_from(["all", "some", "none"])),
        "fillvalue": draw(st.sampled_from([None, 1])) if np.dtype(dtype).kind != "c" else None,
        "userblock": draw(st.sampled_from([0, 512])),
        "libver": draw(st.sampled_from(["earliest", "latest"])),
        "storage": kwargs,
    }


def _write(path: Path, kind: dict[str, Any]) -> None:
    values = np.random.default_rng(0).integers(0, 2 if kind["dtype"] == "?" else 90, kind["shape"])
    with h5py.File(path, "w", userblock_size=kind["userblock"], libver=kind["libver"]) as file:
        dataset = file.create_dataset(
            "X_train", kind["shape"], kind["dtype"], fillvalue=kind["fillvalue"], **kind["storage"]
        )
        if kind["written"] == "all":
            dataset[...] = values.astype(kind["dtype"])
        elif kind["written"] == "some" and values.size:
            # Not in their order, so that the chunks do not lie in theirs, and with places left out.
            for row in range(kind["shape"][0] - 1, -1, -3):
                dataset[row] = values[row].astype(kind["dtype"])


def test_a_file_that_is_shorter_than_a_row_that_was_never_written(tmp_path: Path) -> None:
    """Reads as fill values, as by h5py: there is nothing in the file to copy."""
    path = tmp_path / "empty.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X_train", (3, 500, 8), "u1", chunks=(2, 500, 8), fillvalue=7)
    assert path.stat().st_size < 500 * 8
    got, _ = dataset_h5(path).read_batch([2, 0])
    assert isinstance(got, np.ndarray)
    assert got.shape == (2, 500, 8)
    assert (got == 7).all()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "sides",
    [
        pytest.param((3, 300, 200), id="whole rows"),
        pytest.param((2, 130, 150), id="short pieces"),
        pytest.param((2, 299, 199), id="long pieces"),
        pytest.param((4, 290, 7), id="a few values of each line"),
    ],
)
def test_pieces_of_any_length_are_put_together(tmp_path: Path, sides: tuple[int, ...], threads: int) -> None:
    """Whether they are copied together or one by one, up to the dataset's edge and where nobody wrote a chunk."""
    path = tmp_path / "pieces.h5"
    values = np.random.default_rng(0).integers(0, 2**16, (90, 300, 200)).astype(">u2")
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("X_train", values.shape, ">u2", chunks=sides, fillvalue=77)
        for row in (0, 1, 5, 6, 7, 60, 89):
            dataset[row] = values[row]
        wanted = dataset[()].astype("u2")
    rows = [89, 3, 7, 7, -1, *range(80)]
    got, _ = dataset_h5(path).read_batch(rows, threads=threads)
    assert isinstance(got, np.ndarray)
    assert np.array_equal(got, wanted[rows])


def test_a_chunk_that_is_longer_than_the_table_says_is_not_read_beyond_the_file(tmp_path: Path) -> None:
    """Beyond a mapping's end lies a crash, or what is no part of the file."""
    path = tmp_path / "damaged.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("X_train", data=np.zeros((8, 8), np.uint8), chunks=(4, 8))
        place = dataset.id.get_chunk_info(1).byte_offset
    data = path.read_bytes()
    entry = struct.pack("<IIQQQQ", 32, 0, 4, 0, 0, place)
    assert data.count(entry) == 1
    path.write_bytes(data.replace(entry, struct.pack("<IIQQQQ", 16, 0, 4, 0, 0, len(data) - 16)))
    with pytest.raises(DamagedPackError, match="cut off"):
        dataset_h5(path).read_batch([0, 7])


def test_shards_share_what_one_file_could_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone would be kept as rows; both together are more than that, so chunks are kept, of less."""
    rows = np.arange(2 * 64 * 100, dtype=np.int32).reshape(2, 64, 100)
    paths = [tmp_path / f"part-{number}.h5" for number in range(2)]
    for path, values in zip(paths, rows, strict=True):
        with h5py.File(path, "w") as file:
            file.create_dataset("X_train", data=values, chunks=(8, 50), compression="gzip")
            file["Y_train"] = np.zeros(len(values), np.int64)
    monkeypatch.setattr(open_file, "keepable_bytes", lambda _: int(1.5 * rows[0].nbytes))
    kept: list[int] = []
    make = chunks.CachedChunks.__init__

    def counted(self: chunks.CachedChunks, source: chunks.ChunkSource, most: int) -> None:
        kept.append(most)
        make(self, source, most)

    monkeypatch.setattr(chunks.CachedChunks, "__init__", counted)
    for files, expected in (paths[:1], []), (paths, [int(0.75 * rows[0].nbytes)] * 2):
        kept.clear()
        got, _ = dataset_h5(files).read_batch(range(len(files) * 64))
        np.testing.assert_array_equal(got, rows[: len(files)].reshape(-1, 100))
        assert kept == expected


@settings(max_examples=200, deadline=None)
@given(kind=_files(), data=st.data(), threads=st.sampled_from([1, 3]), most_kept=st.sampled_from([None, 100]))
def test_every_foreign_file_gives_what_h5py_gives(
    kind: dict[str, Any], data: st.DataObject, threads: int, most_kept: int | None
) -> None:
    """Any rows, repeated, negative or none, of any layout, dtype and filter are bit for bit those of h5py, whether all
    that is decoded is kept or only some chunks are."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        if most_kept is not None:
            monkeypatch.setattr(open_file, "keepable_bytes", lambda _: most_kept)
        path = Path(folder) / "foreign.h5"
        _write(path, kind)
        with h5py.File(path, "r") as file:
            stored = file["X_train"][()]
        wanted = stored.astype(stored.dtype.newbyteorder("="))
        count = len(wanted)
        indices = data.draw(st.lists(st.integers(-count, count - 1), max_size=12) if count else st.just([]))
        dataset = dataset_h5(path)
        # Once more, out of what was kept.
        for _ in range(2):
            got, _ = dataset.read_batch(indices, threads=threads)
            assert isinstance(got, np.ndarray)
            assert got.dtype == wanted.dtype
            assert got.tobytes() == wanted[np.array(indices, int)].tobytes(), (dataset.engine, indices)
        assert dataset_h5(path, in_memory=True).reader.read_x(range(count)).tobytes() == wanted.tobytes()  # type: ignore[union-attr]
        dataset.close()


@pytest.mark.parametrize(
    ("storage", "engine", "reason"),
    [
        ({"chunks": (4, 6, 5)}, "chunks", "inside one unfiltered chunk"),
        ({"chunks": (4, 2, 5)}, "chunks", "cut through rows"),
        ({"chunks": (4, 6, 5), "compression": "gzip", "shuffle": True}, "chunks", "shuffle, deflate"),
        ({"chunks": (4, 6, 5), "compression": "lzf"}, "h5py", "lzf is left to HDF5"),
        ({"chunks": (4, 6, 5), "compression": "szip"}, "h5py", "szip is left to HDF5"),
    ],
)
def test_the_engine_is_named_with_its_reason(tmp_path: Path, storage: dict[str, Any], engine: str, reason: str) -> None:
    """HDF5 itself is the last resort, and a dataset says what made it necessary."""
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X_train", data=np.ones((9, 6, 5), np.uint16), **storage)
    choice = dataset_h5(path).engine
    assert choice.name == engine
    assert reason in choice.reason


def _file_of_chunks(
    path: Path, values: NDArray[Any], number: int, encode: Callable[[bytes], bytes], options: tuple[int, ...] = ()
) -> None:
    """Chunks of two rows, each stored as `encode` makes them, under a filter that h5py need not have."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((2, *values.shape[1:]))
    properties.set_filter(number, h5py.h5z.FLAG_OPTIONAL, options)
    space, kind = h5py.h5s.create_simple(values.shape), h5py.h5t.py_create(values.dtype)
    with h5py.File(path, "w") as file:
        dataset = h5py.h5d.create(file.id, b"X_train", kind, space, properties)
        for row in range(0, len(values), 2):
            dataset.write_direct_chunk((row, *[0] * (values.ndim - 1)), encode(values[row : row + 2].tobytes()))


def test_zstandard_needs_no_plugin(tmp_path: Path) -> None:
    """Chunks compressed by Zstandard are read although HDF5 here may lack the filter."""
    values = np.arange(6 * 50, dtype=np.uint16).reshape(6, 50)
    path = tmp_path / "zstd.h5"
    _file_of_chunks(path, values, 32015, zstandard.ZstdCompressor().compress)
    got, _ = dataset_h5(path).read_batch([5, 0, -2])
    assert np.array_equal(got, values[[5, 0, 4]])


def test_an_unknown_filter_is_refused_by_name(tmp_path: Path) -> None:
    """A filter that nothing here can undo is refused on opening, with what to install."""
    if h5py.h5z.filter_avail(32004):
        pytest.skip("needs an h5py without the LZ4 filter: run without hdf5plugin")
    path = tmp_path / "lz4.h5"
    _file_of_chunks(path, np.zeros((4, 5), np.uint8), 32004, bytes)
    with pytest.raises(PackFormatError, match=r"HDF5 filter 32004.*hdf5plugin"):
        dataset_h5(path)


def test_a_broken_chunk_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Where neither we nor HDF5 can decode a chunk, reading it is an error, and the others are read."""
    path = tmp_path / "broken.h5"
    values = np.arange(6 * 50, dtype=np.uint16).reshape(6, 50)
    stored = [zlib.compress(values[row : row + 2].tobytes()) for row in (0, 2, 4)]
    stored[1] = stored[1][:20] + b"\xff" * 20 + stored[1][40:]
    pieces = iter(stored)
    _file_of_chunks(path, values, 1, lambda _: next(pieces), (4,))
    dataset = dataset_h5(path)
    assert np.array_equal(dataset.read_batch([0, 5])[0], values[[0, 5]])
    for _ in range(2):
        with pytest.raises(DamagedPackError, match="X_train"):
            dataset.read_batch([3, 1])
    assert np.array_equal(dataset.read_batch([1, 4])[0], values[[1, 4]])


def test_a_checksum_that_does_not_hold_is_an_error(tmp_path: Path) -> None:
    """A byte changed under HDF5's own checksum is found."""
    path = tmp_path / "checked.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X_train", data=np.arange(400, dtype=np.uint16), chunks=(100,), fletcher32=True)
        address = file["X_train"].id.get_chunk_info(1).byte_offset
    with open(path, "r+b") as handle:
        handle.seek(address + 7)
        handle.write(b"\xaa")
    dataset = dataset_h5(path)
    assert dataset.read_batch([0, 399])[0].tolist() == [0, 399]  # type: ignore[union-attr]
    with pytest.raises(DamagedPackError, match="X_train"):
        dataset.read_batch([150])


class _Counted:
    """Chunks of one number each, and how often each was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def chunk(self, place: tuple[int, ...]) -> NDArray[Any]:
        self.asked.append(place)
        return np.full(100, place[0], np.uint8)

    def is_ready(self, place: tuple[int, ...]) -> bool:
        return False

    def check(self) -> None:
        """Nothing to check."""


def test_chunks_are_kept_as_far_as_memory_allows() -> None:
    """A chunk that was used lately is not decoded again; the one used longest ago gives way."""
    source = _Counted()
    kept = chunks.CachedChunks(source, 250)
    for number in (0, 1, 0, 2, 0, 1):
        values = kept.chunk((number,))
        assert values is not None
        assert set(values.tolist()) == {number}
    assert source.asked == [(0,), (1,), (2,), (1,)]
    assert [kept.is_ready((number,)) for number in range(3)] == [True, True, False]


def test_a_chunk_larger_than_the_budget_is_not_kept() -> None:
    """Memory for chunks is not exceeded by a single large one."""
    source = _Counted()
    kept = chunks.CachedChunks(source, 99)
    kept.chunk((0,))
    kept.chunk((0,))
    assert source.asked == [(0,), (0,)]


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_reading_into_memory_takes_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    """Not twice, by keeping what was decoded beside it; each chunk is decoded once, however parts would cut them."""
    values = np.repeat(np.random.default_rng(0).integers(0, 256, (500, 80), dtype=np.uint8), 100, 1)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("X_train", data=values, chunks=(7, 4000), compression=compression)
    monkeypatch.setattr(engines, "_SCRATCH_BYTES", 200_000)
    dataset = dataset_h5(tmp_path / "a.h5")
    asked: list[Any] = []

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def chunk(source: Any, place: Any) -> Any:
            asked.append(place)
            return real(source, place)

        return chunk

    for kind in (chunks.StoredChunks, chunks.H5pyChunks):
        monkeypatch.setattr(kind, "chunk", counting(kind.chunk))
    tracemalloc.start()
    try:
        loaded = dataset.reader.into_memory()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(asked) == len(set(asked)) == 72 * 2
    assert values.nbytes <= peak < 1.4 * values.nbytes
    assert np.array_equal(loaded.read_x(range(500)), values)


def test_shuffled_batches_decode_a_chunk_once_while_it_is_kept(tmp_path: Path) -> None:
    """An epoch in random order through many batches gives every row once, by several threads."""
    path = tmp_path / "gzip.h5"
    values = np.random.default_rng(0).integers(0, 256, (200, 30, 4), dtype=np.uint8)
    with h5py.File(path, "w") as file:
        file.create_dataset("X_train", data=values, chunks=(16, 30, 4), compression="gzip")
        file["Y_train"] = np.arange(200)
    with make_loader(dataset_h5(path), 7, strategy="direct", num_workers=3) as loader:
        rows = [(int(label), x.numpy()) for xs, ys in loader for x, label in zip(xs, ys, strict=True)]
    assert sorted(label for label, _ in rows) == list(range(200))
    assert all(np.array_equal(x, values[label]) for label, x in rows)


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_rows_that_fit_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    """However small the pieces that chunks have of them: each chunk is asked for once, and only if a row is in it."""
    path = tmp_path / "pieces.h5"
    values = np.random.default_rng(0).integers(0, 9, (50, 30, 8), dtype=np.uint8)
    with h5py.File(path, "w") as file:
        file.create_dataset("X_train", data=values, chunks=(4, 16, 3), compression=compression)
    asked: list[Any] = []
    kind = chunks.StoredChunks if compression == "gzip" else chunks.H5pyChunks
    real = kind.chunk

    def chunk(source: Any, place: Any) -> Any:
        asked.append(place)
        return real(source, place)

    monkeypatch.setattr(kind, "chunk", chunk)
    reader = dataset_h5(path).reader
    with ThreadPool(2) as pool:
        for rows in ([49, 3, 3], [0, 2, 48]):
            assert np.array_equal(reader.read_x(rows, pool=pool), values[rows])
        assert sorted(asked) == [(group, i, j) for group in (0, 12) for i in range(2) for j in range(3)]
        order = np.random.default_rng(1).permutation(50)
        for start in range(0, 50, 7):
            some = order[start : start + 7]
            assert np.array_equal(reader.read_x(some, pool=pool), values[some])
    assert len(asked) == len(set(asked)) == 13 * 6


def test_rows_that_are_kept_are_those_of_the_file_that_was_opened(tmp_path: Path) -> None:
    """A file that was written to is refused, though all of its rows are in memory."""
    path = tmp_path / "gzip.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X_train", data=np.zeros((8, 5)), chunks=(4, 5), compression="gzip")
    dataset = dataset_h5(path)
    dataset.read_batch(range(8))
    os.utime(path, (1, 1))
    with pytest.raises(DamagedPackError, match="written to"):
        dataset.read_batch([0])


def test_threads_share_one_dataset(tmp_path: Path) -> None:
    """Parts of a batch decoded at once land in their own places."""
    path = tmp_path / "gzip.h5"
    values = np.random.default_rng(0).integers(0, 256, (64, 1000), dtype=np.uint8)
    with h5py.File(path, "w") as file:
        file.create_dataset("X_train", data=values, chunks=(3, 400), compression="gzip", shuffle=True)
    reader = dataset_h5(path).reader
    order = np.random.default_rng(1).permutation(64)
    with ThreadPool(4) as pool:
        assert np.array_equal(reader.read_x(order, pool=pool), values[order])
