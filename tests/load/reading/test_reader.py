"""Reading rows without torch: every engine gives what h5py gives, and nothing surprising happens around it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from colabstage.errors import (
    DamagedPackError,
    DecodeError,
    PackFormatError,
)
from colabstage.images.decode import decode_image
from colabstage.images.geometry import ImageOptions
from colabstage.io.pipeline import ThreadPool
from colabstage.load.reading.memory import empty_array
from colabstage.load.reading.reader import SplitReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

KINDS = [
    *("pack", "contiguous", "float32", "bool", "userblock", "recipe", "big-endian", "12-bit", "chunked"),
    *("one-row-chunks", "cut-chunks", "growable", "gzip", "lzf", "virtual", "unwritten"),
]

# What a list of indices may look like, for a split of 23 rows.
REQUESTS: dict[str, Any] = {
    "shuffled": np.random.default_rng(0).permutation(23),
    "repeated": [3, 3, 0, 22, 3, 0],
    "negative": [-1, -23, 5, -2],
    "last partial": [22],
    "descending": list(range(22, -1, -1)),
    "neighbours": [4, 5, 6, 7, 8],
    "none": [],
}


def fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_memory", [False, True])
def test_every_engine_equals_h5py(make_file: Callable[..., Any], kind: str, in_memory: bool) -> None:
    """Shuffled, repeated, negative, last and no rows are bit for bit h5py's, whatever the storage."""
    sample = make_file(kind, 23)
    reader = SplitReader(sample.path)
    reader = reader.into_memory() if in_memory else reader
    assert reader.engine.name == ("memory" if in_memory else sample.engine)
    assert reader.engine.reason
    for request in REQUESTS.values():
        x, y = reader.read_x(request), reader.read_y(request)
        assert isinstance(x, np.ndarray)
        assert isinstance(y, np.ndarray)
        picked = np.asarray(request, dtype=np.intp)
        assert (x.dtype, y.dtype) == (sample.x.dtype, sample.y.dtype)
        np.testing.assert_array_equal(x, sample.x[picked])
        np.testing.assert_array_equal(y, sample.y[picked])


@pytest.mark.parametrize("kind", ["pack", "gzip", "chunked"])
def test_reading_into_an_array_of_the_caller(make_file: Callable[..., Any], kind: str) -> None:
    """With out, the rows land there and that array is returned."""
    sample = make_file(kind, 23)
    out = np.empty((4, *sample.x.shape[1:]), np.uint8)
    assert SplitReader(sample.path).read_x([9, 1, 9, -1], out) is out
    np.testing.assert_array_equal(out, sample.x[[9, 1, 9, -1]])


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
def test_out_of_another_kind_is_refused(make_file: Callable[..., Any], out: NDArray[Any]) -> None:
    """An array that cannot take the rows as they are is an error that says what was expected."""
    with pytest.raises(ValueError, match=r"\(4, 10, 12, 3\)"):
        SplitReader(make_file("pack", 23).path).read_x([0, 1, 2, 3], out)


@pytest.mark.parametrize("bad", [[23], [-24], [0, 1, 99]])
def test_rows_that_are_not_there(make_file: Callable[..., Any], bad: list[int]) -> None:
    """A row outside the split is an IndexError with its number, for inputs and targets."""
    reader = SplitReader(make_file("pack", 23).path)
    for read in (reader.read_x, reader.read_y):
        with pytest.raises(IndexError, match=r"(23|-24|99) .*23 samples"):
            read(bad)


def test_threads_share_a_large_batch(tmp_path: Path) -> None:
    """Several threads fill one batch with exactly the rows that one thread would."""
    values = np.random.default_rng(0).integers(0, 256, (64, 200, 200, 3), dtype=np.uint8)
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file["X_train"], file["Y_train"] = values, np.arange(64)
    rows = np.random.default_rng(1).permutation(64)
    with ThreadPool(3) as pool:
        np.testing.assert_array_equal(SplitReader(tmp_path / "large.h5").read_x(rows, pool=pool), values[rows])


def test_keys_name_the_source_of_each_row(make_file: Callable[..., Any]) -> None:
    """The source keys come back as str, all or chosen ones."""
    reader = SplitReader(make_file("pack", 23).path)
    assert reader.keys([1, -1]) == ["folder/ü0001.jpg", "folder/ü0022.jpg"]
    assert len(reader.keys()) == 23
    assert reader.classes == ("a", "b", "c", "d", "e")


def test_file_without_keys_says_so(make_file: Callable[..., Any]) -> None:
    """A file that nobody here packed has no keys, and the error says which files have."""
    with pytest.raises(PackFormatError, match="source keys"):
        SplitReader(make_file("contiguous", 3).path).keys()


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (np.dtype([("mean", "f4"), ("count", "i4")]), "mean, count.*member"),
        (np.dtype("V4"), r"\|V4 values.*as numbers"),
    ],
)
def test_values_that_are_no_numbers_are_refused(tmp_path: Path, dtype: Any, words: str) -> None:
    """On opening, not on the thousandth sample: what they are, and what to do."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file.create_dataset("X_train", (3,), dtype)
    with pytest.raises(PackFormatError, match=words):
        SplitReader(tmp_path / "other.h5")


@pytest.mark.parametrize("kind", ["pack", "gzip"])
def test_file_cut_off_before_opening(make_file: Callable[..., Any], kind: str) -> None:
    """A file that lost its tail is refused when it is opened."""
    path = make_file(kind, 23).path
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DamagedPackError):
        SplitReader(path).read_x([22])


@pytest.mark.parametrize("kind", ["pack", "gzip"])
def test_file_cut_off_while_open_does_not_kill_the_process(make_file: Callable[..., Any], kind: str) -> None:
    """A file that shrinks under a reader is an error, not a bus error."""
    sample = make_file(kind, 23)
    reader = SplitReader(sample.path)
    if kind == "pack":
        reader.read_x([0])
    os.truncate(sample.path, 4096)
    with pytest.raises(DamagedPackError, match="replaced or written to"):
        reader.read_x([22])


def test_file_replaced_between_description_and_use(make_file: Callable[..., Any]) -> None:
    """A reader that was pickled, or never opened, refuses a new file under the old name."""
    sample = make_file("pack", 23)
    reader = SplitReader(sample.path)
    other = make_file("pack", 24).path
    other.replace(sample.path)
    with pytest.raises(DamagedPackError, match="new dataset_h5"):
        reader.read_x([0])


def test_file_replaced_while_open_keeps_its_old_rows(make_file: Callable[..., Any]) -> None:
    """Replacing the file by rename does not disturb who has it open: the old bytes stay theirs."""
    sample = make_file("pack", 23)
    reader = SplitReader(sample.path)
    reader.read_x([0])
    make_file("pack", 24).path.replace(sample.path)
    np.testing.assert_array_equal(reader.read_x([7]), sample.x[[7]])


def test_pickled_reader_carries_no_handles(make_file: Callable[..., Any]) -> None:
    """A used reader pickles small and reads on after."""
    sample = make_file("pack", 23)
    reader = SplitReader(sample.path).into_memory()
    reader.read_x([0])
    data = pickle.dumps(reader)
    assert len(data) < 4000
    np.testing.assert_array_equal(pickle.loads(data).read_x([5]), sample.x[[5]])


def sum_in_child(reader: SplitReader, rows: list[int]) -> int:
    return int(np.asarray(reader.read_x(rows)).sum())


@pytest.mark.parametrize(
    ("kind", "in_memory", "method"),
    [("pack", False, "fork"), ("gzip", False, "fork"), ("gzip", True, "fork"), ("pack", False, "spawn")],
)
def test_used_reader_works_in_child_processes(
    make_file: Callable[..., Any], kind: str, in_memory: bool, method: str
) -> None:
    """A reader that was used in the parent reads in children, however they are started, and in the parent after."""
    if method == "fork" and sys.version_info >= (3, 14):
        pytest.skip("needs a Python before 3.14, which forks: run it with 3.13")
    sample = make_file(kind, 23)
    reader = SplitReader(sample.path)
    reader = reader.into_memory() if in_memory else reader
    reader.read_x([0])
    with multiprocessing.get_context(method).Pool(2) as pool:
        rows = [[1, 2], [22, 3], [5]]
        sums = pool.starmap(sum_in_child, [(reader, row) for row in rows])
        assert sums == [int(sample.x[row].sum()) for row in rows]
        pool.close()
        pool.join()
    np.testing.assert_array_equal(reader.read_x([1]), sample.x[[1]])


@pytest.mark.parametrize("kind", ["pack", "gzip"])
def test_opening_and_closing_leaves_no_descriptor(make_file: Callable[..., Any], kind: str) -> None:
    """A hundred openings and closings leave as many descriptors open as there were."""
    sample = make_file(kind, 23)
    reader = SplitReader(sample.path)
    reader.read_x([0])
    reader.close()
    gc.collect()
    before = fds()
    for _ in range(100):
        reader.read_x([0])
        reader.close()
        reader.close()
    gc.collect()
    assert fds() <= before


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_encoded_rows_of_one_size_come_as_one_array(
    make_encoded: Callable[..., Path], compression: str | None, in_memory: bool
) -> None:
    """Images with a size in their options are decoded to it, by any engine and several threads."""
    path = make_encoded(9, size=(6, 7), compression=compression)
    reader = SplitReader(path)
    reader = reader.into_memory() if in_memory else reader
    assert reader.row_shape == (6, 7, 3)
    with ThreadPool(2) as pool:
        batch = reader.read_x([8, 3, 3, 0], pool=pool)
    with h5py.File(path, "r") as file:
        offsets, data = file["X_train/offsets"][()], file["X_train/bytes"][()].tobytes()
    for image, row in zip(batch, [8, 3, 3, 0], strict=True):
        expected = decode_image(data[offsets[row] : offsets[row + 1]], ImageOptions((6, 7)))
        np.testing.assert_array_equal(image, expected)


@pytest.mark.parametrize("size", [None, (6, 7)])
def test_broken_encoded_row_is_named(make_encoded: Callable[..., Path], size: tuple[int, int] | None) -> None:
    """A row that does not decode is an error with its number and the file's path."""
    path = make_encoded(5, size=size, broken=2)
    with pytest.raises(DecodeError, match=re.escape(f"Row 2 of X_train in '{path}'")):
        SplitReader(path).read_x([1, 2])


def test_offsets_that_make_no_sense_are_refused(make_encoded: Callable[..., Path]) -> None:
    """Offsets that go backwards are a damaged file, not a strange image."""
    path = make_encoded(5)
    with h5py.File(path, "r+") as file:
        file["X_train/offsets"][2] = 10**9
    with pytest.raises(DamagedPackError, match="do not ascend"):
        SplitReader(path).read_x([0])


def test_reading_needs_no_torch(make_file: Callable[..., Any]) -> None:
    """The reader works in a process where torch cannot be imported."""
    sample = make_file("pack", 23)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from colabstage.load.reading.reader import SplitReader\n"
        f"print(int(SplitReader({str(sample.path)!r}).read_x([3, 4]).sum()))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(answer.stdout) == int(sample.x[[3, 4]].sum())


def test_what_needs_torch_says_how_to_install_it() -> None:
    """By each name that is imported first."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import colabstage\n"
        "for name in ('make_loader', 'dataset_h5', 'CudaDataLoader'):\n"
        "    try: getattr(colabstage, name)\n"
        "    except colabstage.errors.MissingDependencyError as error: print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.count("torch. Install it with: pip install torch") == 3


def test_targets_go_where_they_are_asked_to(tmp_path: Path) -> None:
    """Targets of one shape fill an array that is given, and refuse one that does not fit; so do those of joined
    files."""
    masks = np.random.default_rng(0).integers(0, 5, (6, 3, 4), np.uint8)
    for number in range(2):
        with h5py.File(tmp_path / f"part-{number}.h5", "w") as file:
            file["X_train"] = np.zeros((3, 2), np.uint8)
            file["Y_train"] = masks[3 * number : 3 * number + 3]
    one = SplitReader(tmp_path / "part-1.h5")
    both = SplitReader((tmp_path / "part-0.h5", tmp_path / "part-1.h5"))
    for reader, rows, expected in ((one, [2, 0], masks[[5, 3]]), (both, [5, 0, 1], masks[[5, 0, 1]])):
        assert reader.target_dtype == np.uint8
        out = np.empty(expected.shape, np.uint8)
        assert reader.read_y(rows, out) is out
        assert np.array_equal(out, expected)
        with pytest.raises(ValueError, match="out is"):
            reader.read_y(rows, np.empty(expected.shape, np.int16))


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8", "c16"])
def test_new_arrays_begin_at_a_line_of_the_cache(dtype: str) -> None:
    """Large arrays that nobody gave are aligned, writable and of the right shape."""
    for rows in (1, 100):
        array = empty_array((rows, 50, 3), np.dtype(dtype))
        assert (array.shape, array.dtype) == ((rows, 50, 3), np.dtype(dtype))
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.nbytes < 4096 or array.ctypes.data % 64 == 0
