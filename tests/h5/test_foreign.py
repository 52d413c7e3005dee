"""Random HDF5 files as other programs may write them, read by colabstage and compared with h5py.

A file has inputs, and mostly targets, of any type and storage, behind any link; a linked file may be missing. Whatever
h5py reads as numbers must be equal through every engine that could read it, and in a table for packing. Everything else
must be equal, or refused with an error of colabstage's own.
"""

import random
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from colabstage import dataset_h5
from colabstage.errors import ColabstageError
from colabstage.options import array_rows
from colabstage.trees.listing import Tree
from colabstage.trees.open import open_tree

_NUMBERS = (
    "u1", "i1", "<i2", ">i2", "<u2", "<i4", ">i4", "<u8", ">i8", "<f2", "<f4", ">f4", "<f8", ">f8", "?", "<c8", ">c16",
)  # fmt: skip
_ODD = (
    "longdouble", "enum", "twelve bits", "time", "quad", "compound", "text", "fixed text", "rows of any length",
    "opaque", "reference", "date", "array",
)  # fmt: skip
_STORAGES = (
    "contiguous", "contiguous", "chunked", "cut chunks", "gzip", "shuffle", "checksum", "lzf", "scaled",
    "virtual", "virtual in part", "unwritten", "unwritten chunks",
)  # fmt: skip
_LINKS = ("none", "none", "hard", "soft", "external", "through a group", "twice external")
_SHAPES = ((), (), (4,), (3, 5), (2, 3, 4), (1, 1), (4, 0))
_ODD_PART, _GONE_PART, _UNEVEN_PART = 0.2, 0.06, 0.04


class ForeignFiles:
    """A writer of random files, each called `main.h5` with others around it."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._values = np.random.default_rng(seed)

    def write(self, folder: Path) -> str:
        chance = self._chance
        rows = chance.choice([1, 5, 9, 9, 9, 30])
        with h5py.File(folder / "main.h5", "w", libver=chance.choice(["earliest", "latest"])):
            pass
        told = [self._side(folder, "X_train", chance.choice(_SHAPES), rows)]
        if chance.random() < 0.8:
            uneven = chance.random() < _UNEVEN_PART
            told.append(self._side(folder, "Y_train", chance.choice([(), (), (1,), (2, 2)]), rows + uneven))
        others = sorted(path for path in folder.iterdir() if path.name != "main.h5")
        if others and chance.random() < _GONE_PART:
            gone = chance.choice(others)
            gone.unlink()
            told.append(f"{gone.name} is gone")
        return "; ".join(told)

    def _side(self, folder: Path, side: str, shape: tuple[int, ...], rows: int) -> str:
        chance = self._chance
        kind = chance.choice(_ODD if chance.random() < _ODD_PART else _NUMBERS)
        storage, link = chance.choice(_STORAGES), chance.choice(_LINKS)
        if link in ("none", "hard", "soft"):
            with h5py.File(folder / "main.h5", "a") as file:
                self._store(file, side if link == "none" else f"{side}_stored", kind, storage, (rows, *shape))
                if link != "none":
                    file[side] = h5py.SoftLink(f"/{side}_stored") if link == "soft" else file[f"{side}_stored"]
            return f"{side}: {kind} {shape} {storage}, {link}"
        with h5py.File(folder / f"{side}.h5", "w", userblock_size=chance.choice([0, 512])) as file:
            self._store(file, "stored", kind, storage, (rows, *shape))
        with h5py.File(folder / f"{side}-middle.h5", "w") as file:
            file["stored"] = h5py.ExternalLink(f"{side}.h5", "/stored")
        with h5py.File(folder / "main.h5", "a") as file:
            # This file has a dataset of the same name, with other values.
            if "stored" not in file:
                file["stored"] = np.full(rows, 99)
            if link == "through a group":
                file[f"group_{side}"] = h5py.ExternalLink(f"{side}.h5", "/")
                file[side] = h5py.SoftLink(f"/group_{side}/stored")
            else:
                file[side] = h5py.ExternalLink(f"{side}{'-middle' if 'twice' in link else ''}.h5", "/stored")
        return f"{side}: {kind} {shape} {storage}, {link}"

    def _store(self, file: Any, name: str, kind: str, storage: str, shape: tuple[int, ...]) -> None:
        # After something else, so that it has an offset of its own.
        file.create_dataset(f"pad_{len(file)}", data=np.zeros(self._chance.randrange(1, 400), np.uint8))
        if kind in ("time", "quad", "twelve bits"):
            dataset = h5py.h5d.create(file.id, name.encode(), _strange_type(kind), h5py.h5s.create_simple(shape))
            if kind == "twelve bits":
                h5py.Dataset(dataset)[...] = self._values.integers(0, 4096, shape)
            return
        values = self._numbers(kind, shape) if kind in _NUMBERS else self._odd_values(kind, shape)
        if storage.startswith("virtual") and kind in _NUMBERS:
            part = f"{Path(file.filename).stem}-{name}-part.h5"
            with h5py.File(Path(file.filename).parent / part, "w") as source:
                source["part"] = values
            layout = h5py.VirtualLayout(shape, values.dtype)
            stop = shape[0] if storage == "virtual" else shape[0] // 2
            layout[:stop] = h5py.VirtualSource(part, "part", shape=shape)[:stop]
            file.create_virtual_dataset(name, layout, fillvalue=values.dtype.type(self._chance.choice([0, 1])))
            return
        file.create_dataset(name, **self._storage(file, name, values, storage))

    def _storage(self, file: Any, name: str, values: NDArray[Any], storage: str) -> dict[str, Any]:
        """Return a dataset's options for this storage; plain ones if its values do not allow it."""
        shape, is_number = values.shape, values.dtype.kind in "biufc" and values.dtype.names is None
        plain: dict[str, Any] = {"data": values}
        if not values.size:
            return plain
        rows = self._chance.randrange(1, shape[0] + 1)
        chunks = (rows, *(max(1, side) for side in shape[1:]))
        cut = (rows, *(max(1, side // 2) for side in shape[1:]))
        fill = values.dtype.type(self._chance.choice([0, 1])) if is_number else None
        every: dict[str, dict[str, Any]] = {
            "chunked": {"chunks": chunks, "maxshape": (None, *shape[1:])},
            "cut chunks": {"chunks": cut},
            "gzip": {"chunks": cut, "compression": "gzip"},
            "lzf": {"chunks": chunks, "compression": "lzf"},
        }
        if is_number:
            every |= {
                "shuffle": {"chunks": chunks, "compression": "gzip", "shuffle": True},
                "checksum": {"chunks": chunks, "fletcher32": True},
                "unwritten": {"data": None, "shape": shape, "dtype": values.dtype, "fillvalue": fill},
                "unwritten chunks": {
                    "data": None, "shape": shape, "dtype": values.dtype, "fillvalue": fill, "chunks": chunks,
                },
            }  # fmt: skip
            if values.dtype.kind in "iu" and h5py.check_enum_dtype(values.dtype) is None:
                every["scaled"] = {"chunks": chunks, "scaleoffset": 0}
        return {**plain, **every.get(storage, {})}

    def _numbers(self, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
        dtype = np.dtype(kind)
        values = self._values.integers(0, 100, shape)
        return (values % 2 == 0) if dtype.kind == "b" else values.astype(dtype)

    def _odd_values(self, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
        numbers = self._values.integers(0, 3, shape)
        makers: dict[str, Callable[[], NDArray[Any]]] = {
            "longdouble": lambda: numbers.astype(np.longdouble),
            "enum": lambda: numbers.astype(h5py.enum_dtype({"a": 0, "b": 1, "c": 2}, "i1")),
            "compound": lambda: np.zeros(shape, [("a", "<f4"), ("b", "<i2")]),
            "text": lambda: np.full(shape, "ab", h5py.string_dtype()),
            "fixed text": lambda: np.full(shape, b"ab", "S4"),
            "opaque": lambda: np.zeros(shape, "V4"),
            "reference": lambda: np.full(shape, h5py.Reference(), h5py.ref_dtype),
            "date": lambda: numbers.astype("M8[s]").astype(h5py.opaque_dtype("M8[s]")),
            "array": lambda: np.zeros(shape, [("a", "<f4", (2,))]),
        }
        if kind in makers:
            return makers[kind]()
        values = np.empty(shape, h5py.vlen_dtype(np.int16))
        for place in np.ndindex(shape):
            values[place] = np.arange(self._chance.randrange(4), dtype=np.int16)
        return values


def _strange_type(kind: str) -> Any:
    if kind == "time":
        return h5py.h5t.UNIX_D32LE
    if kind == "twelve bits":
        found = h5py.h5t.STD_U16LE.copy()
        found.set_precision(12)
        return found
    # As IEEE defines it, unlike any numpy type on this kind of machine.
    found = h5py.h5t.IEEE_F64LE.copy()
    found.set_size(16)
    found.set_precision(128)
    found.set_fields(127, 112, 15, 0, 112)
    found.set_ebias(16383)
    return found


def truth_of(path: Path, side: str) -> Any:
    """All values of one side as h5py reads them; `None` if it does not exist, and a string if h5py cannot read it."""
    try:
        with h5py.File(path) as file:
            return file[side][()] if side in file else None
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        return str(error)


def is_plain(values: Any, kinds: str = "biufc") -> bool:
    return isinstance(values, np.ndarray) and values.ndim > 0 and values.dtype.kind in kinds


def equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, bytes | str):
        return bool(found == (expected.decode() if isinstance(expected, bytes) else expected))
    return bool(np.array_equal(np.asarray(found), np.asarray(expected)))


def readers_of(path: Path) -> list[Any]:
    """A reader for each engine that could read the inputs."""
    made: list[Any] = [
        dataset_h5(path, allow_external=True).reader,
        dataset_h5(path, allow_external=True, in_memory=True).reader,
    ]
    chosen = made[0].engine.name
    for name in ("mapped", "read", "h5py") if chosen in ("mapped", "read") else (chosen,):
        reader: Any = dataset_h5(path, allow_external=True).reader
        part = reader._parts[0]
        part._read_by(replace(part.engine, name=name))
        made.append(reader)
    return made


def compare(reader: Any, x: Any, y: Any, told: str) -> None:
    count = len(reader)
    rows = np.concatenate([np.random.default_rng(count).permutation(count), np.arange(-min(2, count), 0)])
    for expected, found in ((x, reader.read_x(rows)), (y, reader.read_y(rows))):
        if expected is None:
            assert (np.asarray(found) == -1).all(), told
        else:
            assert len(found) == len(rows), told
            for one, row in zip(found, rows.tolist(), strict=True):
                assert equal(one, expected[row]), f"{told}: row {row} by {reader.engine.name}"


def check_read(path: Path, told: str, outcome: Counter[str]) -> Any:
    """Compare what each engine reads; return the inputs as h5py reads them."""
    x, y = truth_of(path, "X_train"), truth_of(path, "Y_train")
    try:
        for reader in readers_of(path):
            compare(reader, x, y, told)
            outcome["readings"] += 1
    except ColabstageError as error:
        # h5py returns zeros for what is missing, which we must not.
        is_whole = is_plain(x) and (y is None or (is_plain(y) and len(x) == len(y))) and "is gone" not in told
        if is_whole:
            raise AssertionError(f"{told}: h5py reads it, and it was refused") from error
    else:
        outcome["equal"] += 1
    return x


def check_packed(tree: Tree, path: Path, x: Any, told: str, *, may_refuse: bool) -> None:
    # A dataset with two names in one file counts under its original one.
    with h5py.File(path) as file:
        own = "X_train_stored" if isinstance(file.get("X_train", getlink=True), h5py.SoftLink) else "X_train"
        own = own if own in file else "X_train"
    try:
        table = array_rows(x=f"main.h5/{own}")(tree)
        found = [table.inputs.source.read(row) for row in range(len(table))]
    except ColabstageError as error:
        is_whole = is_plain(x, "biuf") and x.size and x.dtype.itemsize <= 8 and "is gone" not in told
        if is_whole and not may_refuse:
            raise AssertionError(f"{told}: h5py reads it, and packing refused it") from error
        return
    assert all(equal(one, expected) for one, expected in zip(found, x, strict=True)), told


@pytest.mark.parametrize(
    ("count", "seed"),
    [(15, 2), (15, 18), pytest.param(1000, 30, marks=[pytest.mark.long, pytest.mark.timeout(600)])],
)
def test_random_files_equal_h5py_or_are_refused(tmp_path: Path, count: int, seed: int) -> None:
    """Of any type and storage, behind any link; through every engine, and as they would be packed."""
    outcome, files = Counter[str](), ForeignFiles(seed)
    for number in range(count):
        with tempfile.TemporaryDirectory(dir=tmp_path) as name, warnings.catch_warnings():
            folder, archive = Path(name), tmp_path / "main.zip"
            told = f"file {number} of seed {seed} ({files.write(folder)})"
            # Said of these alone: of any other file it would be an error here.
            if "unwritten" in told or "virtual in part" in told:
                warnings.filterwarnings("ignore", ".* were never written", UserWarning)
            x = check_read(folder / "main.h5", told, outcome)
            with zipfile.ZipFile(archive, "w") as made:
                for path in sorted(folder.iterdir()):
                    made.write(path, path.name)
            # Packing follows no link to another file.
            needs_others = any(word in told.partition("; ")[0] for word in ("virtual", "external", "through"))
            for source in (folder, archive):
                with open_tree(source, spool=tmp_path) as tree:
                    check_packed(tree, folder / "main.h5", x, f"{told}, {source.suffix}", may_refuse=needs_others)
    assert outcome["readings"] > 2 * outcome["equal"] > 0
