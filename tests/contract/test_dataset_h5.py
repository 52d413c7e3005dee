"""`dataset_h5` reads each kind of HDF5 file as h5py does, bit by bit, whichever way rows are requested."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5, make_loader, pack_dataset
from colabstage.options import array_rows
from tests.support.invariants import Home

ROWS = 37
IMAGES = np.random.default_rng(0).integers(0, 256, (ROWS, 6, 5, 3), dtype=np.uint8)
LABELS = np.arange(ROWS) % 7


def plain(x: Any, y: Any = LABELS, **options: Any) -> Callable[[Path, h5py.File], None]:
    """Write inputs and targets with these options of h5py."""

    def write(folder: Path, file: h5py.File) -> None:
        file.create_dataset("X_train", data=x, **options)
        file.create_dataset("Y_train", data=y)

    return write


def ragged(folder: Path, file: h5py.File) -> None:
    rows = file.create_dataset("X_train", (ROWS,), h5py.vlen_dtype(np.float32))
    for number in range(ROWS):
        rows[number] = np.arange(1 + number % 5, dtype=np.float32) + number
    file["Y_train"] = LABELS


def linked(folder: Path, file: h5py.File) -> None:
    with h5py.File(folder / "other.h5", "w") as other:
        other["images"], other["labels"] = IMAGES, LABELS
    file["X_train"] = h5py.ExternalLink("other.h5", "images")
    file["Y_train"] = h5py.ExternalLink("other.h5", "labels")


def virtual(folder: Path, file: h5py.File) -> None:
    layout = h5py.VirtualLayout(IMAGES.shape, IMAGES.dtype)
    for part, (start, stop) in enumerate(((0, 20), (20, ROWS))):
        with h5py.File(folder / f"part{part}.h5", "w") as other:
            other["x"] = IMAGES[start:stop]
        layout[start:stop] = h5py.VirtualSource(f"part{part}.h5", "x", (stop - start, *IMAGES.shape[1:]))
    file.create_virtual_dataset("X_train", layout)
    file["Y_train"] = LABELS


def external(folder: Path, file: h5py.File) -> None:
    file.create_dataset("X_train", data=IMAGES, external=[(str(folder / "raw.bin"), 0, h5py.h5f.UNLIMITED)])
    file["Y_train"] = LABELS


def nested(folder: Path, file: h5py.File) -> None:
    file["deep/images"], file["Y_train"] = IMAGES, LABELS
    file["X_train"] = h5py.SoftLink("/deep/images")


# By the engine that should read them.
KINDS: dict[str, tuple[str, Callable[[Path, h5py.File], None]]] = {
    "contiguous": ("mapped", plain(IMAGES)),
    "chunked": ("h5py", plain(IMAGES, chunks=(5, 6, 5, 3))),
    "chunked across rows": ("h5py", plain(IMAGES, chunks=(4, 4, 5, 1))),
    "gzip": ("h5py", plain(IMAGES, chunks=(5, 6, 5, 3), compression="gzip")),
    "gzip, shuffled, with checksums": ("h5py", plain(IMAGES, compression="gzip", shuffle=True, fletcher32=True)),
    "lzf": ("h5py", plain(IMAGES, compression="lzf")),
    "resizable": ("h5py", plain(IMAGES, maxshape=(None, 6, 5, 3))),
    "float32": ("mapped", plain((IMAGES / 255).astype(np.float32))),
    "float64 of another byte order": ("h5py", plain((IMAGES / 255).astype(">f8"))),
    "int16 of another byte order": ("h5py", plain(IMAGES.astype(">i2"))),
    "float16": ("mapped", plain(IMAGES.astype(np.float16))),
    "bool": ("mapped", plain(IMAGES > 127)),
    "one axis": ("mapped", plain(np.arange(ROWS, dtype=np.float32))),
    "targets of several axes": ("mapped", plain(IMAGES, y=IMAGES[:, :, :, 0])),
    "targets of one more axis": ("mapped", plain(IMAGES, y=LABELS[:, None])),
    "rows of any length": ("h5py", ragged),
    "links to another file": ("mapped", linked),
    "a virtual dataset": ("h5py", virtual),
    "external storage": ("h5py", external),
    "a soft link": ("mapped", nested),
}


def same(one: Any, other: Any) -> None:
    """Compare arrays, or lists of them, bit by bit."""
    if isinstance(other, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            same(left, right)
        return
    left, right = np.asarray(one), np.asarray(other)
    assert (left.shape, left.dtype.newbyteorder("=")) == (right.shape, right.dtype.newbyteorder("="))
    assert left.astype(left.dtype.newbyteorder("=")).tobytes() == right.astype(right.dtype.newbyteorder("=")).tobytes()


def rows_of(values: Any, rows: Any) -> Any:
    """These rows as h5py reads them, as a list if their lengths differ."""
    return list(values[rows]) if values.dtype.kind == "O" else values[rows]


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any, Any]:
    """A file of each kind, and its content read by h5py."""
    path = tmp_path / "mine/data.h5"
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        KINDS[request.param][1](path.parent, file)
    with h5py.File(path) as file:
        return path, file["X_train"][()], file["Y_train"][()]


SLICES = [slice(None), slice(3, 19), slice(30, 2, -3), slice(5, 5)]
LISTS = [[4, 2, 2, 36, 0, -1, -37], [*range(ROWS)][::-1], [7, 8, 9, 10], []]


@pytest.mark.parametrize("in_memory", [False, True])
def test_rows(pair: tuple[Path, Any, Any], in_memory: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One by one, as slices, and as lists by several threads; also after the dataset was closed."""
    path, x, y = pair
    home = Home(tmp_path, theirs=["mine"])
    dataset = dataset_h5(path, in_memory=in_memory, allow_external=True)
    assert len(dataset) == len(x)
    assert dataset.engine.name == ("memory" if in_memory else KINDS[request.node.callspec.params["pair"]][0])
    for row in (0, 5, ROWS - 1, -1):
        got_x, got_y = dataset[row]
        same(got_x, x[row])
        same(got_y, y[row])
    dataset.close()
    for rows in SLICES:
        items = dataset[rows]
        same([item[0] for item in items], list(x[rows]))
        same([item[1] for item in items], list(y[rows]))
    for wanted in LISTS:
        got_x, got_y = dataset.read_batch(wanted, threads=3)
        numbers = np.array(wanted, int)
        same(got_x, rows_of(x, numbers))
        same(got_y, rows_of(y, numbers))
        same([item[0] for item in dataset.__getitems__(wanted)], list(x[numbers]))
    if x.dtype.kind != "O":
        out = np.empty((4, *x.shape[1:]), x.dtype.newbyteorder("="))
        assert dataset.read_batch([9, 1, 9, -1], out)[0] is out
        same(out, x[[9, 1, 9, -1]])
    home.check(finished=True)


# The rest differ in how rows are read, which `test_rows` compares.
IN_A_LOADER = {
    "contiguous", "chunked across rows", "float64 of another byte order", "bool", "one axis", "targets of several axes",
    "rows of any length", "links to another file", "external storage",
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize(
    "pair", [pytest.param(kind, marks=[pytest.mark.long] * (kind not in IN_A_LOADER)) for kind in KINDS], indirect=True
)
def test_an_epoch(pair: tuple[Path, Any, Any]) -> None:
    """Each row once, on one rank, with its own target."""
    path, x, y = pair
    for shuffle, ranks in ((True, 1), (False, 1), (True, 3)):
        seen: list[int] = []
        for rank in range(ranks):
            dataset = dataset_h5(path, return_index=True, allow_external=True)
            for (got_x, got_y), index in make_loader(dataset, 5, shuffle=shuffle, seed=1, rank=rank, world_size=ranks):
                rows = index.tolist()
                seen += rows
                if isinstance(got_x, list):
                    same([one.numpy() for one in got_x], rows_of(x, rows))
                else:
                    as_stored = got_x.movedim(1, -1) if x.ndim == 4 else got_x
                    same(as_stored.numpy(), x[rows])
                assert np.array_equal(got_y.numpy(), y[rows])
        assert sorted(seen) == list(range(ROWS))
        assert (seen == sorted(seen)) == (not shuffle)


@pytest.mark.parametrize(("files", "y"), [("left.h5", None), ("left.h5", "age"), ("*.h5", None), ("*.h5", "age")])
def test_the_line_that_packs_a_slow_file_packs_what_is_read_of_it(tmp_path: Path, files: str, y: str | None) -> None:
    """Of all its files, whatever they are called, with the targets that were asked for, not others."""
    for name in ("left", "right"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("X_train", data=IMAGES, compression="gzip")
            file["Y_train"], file["age"] = LABELS, np.arange(ROWS) + 0.5
    dataset = dataset_h5(tmp_path / files, x=None if y is None else "X_train", y=y)
    line = str(dataset.engine).partition("mapped: ")[2].removesuffix(", from colabstage.options")
    calls = {
        "pack_dataset": lambda path, _, **options: pack_dataset(path, tmp_path / "packed.h5", **options),
        "dataset_h5": dataset_h5,
        "array_rows": array_rows,
    }
    packed = dataset_h5(eval(line, calls).path)
    assert sorted((x.tobytes(), y) for x, y in packed) == sorted((x.tobytes(), y) for x, y in dataset)
