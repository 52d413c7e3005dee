"""Random HDF5 files as other programs may write them, read by colabstage and compared with h5py.

A file has inputs, and mostly targets, of any type and storage, behind any link; a linked file may be missing. Whatever
h5py reads as numbers must be equal through every engine that could read it, and in a table for packing. Everything else
must be equal, or refused with an error of colabstage's own.
"""

import random
import shutil
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
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
    "virtual", "virtual in part", "external", "unwritten", "unwritten chunks",
)  # fmt: skip
_LINKS = ("none", "none", "hard", "soft", "external", "through a group", "twice external")
_SHAPES = ((), (), (4,), (3, 5), (2, 3, 4), (1, 1), (4, 0))
_ODD_PART, _GONE_PART, _UNEVEN_PART = 0.2, 0.06, 0.04
_ENGINES: dict[str, tuple[str, ...]] = {"mapped": ("mapped", "read", "h5py"), "read": ("mapped", "read", "h5py")}


class ForeignFileError(AssertionError):
    """A file was read differently from h5py, or ended in an error that is not ours."""


@dataclass
class ForeignOutcome:
    """The results for some random files."""

    files: int = 0
    """How many files there were."""
    equal: int = 0
    """How many were read, equal to h5py's values."""
    readings: int = 0
    """Compared readings: one for each engine, and two as packed, from a folder and a zip."""
    refused: Counter[str] = field(default_factory=Counter)
    """How many were refused, by error class."""
    seconds: float = 0
    """How long all took."""


class ForeignFiles:
    """A writer of random files, each called `main.h5` with others around it."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._values = np.random.default_rng(seed)

    def write(self, folder: Path) -> str:
        """Write a file, and describe it in words."""
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
                "external": {"external": [(f"{Path(file.filename).with_suffix('')}-{name}.raw", 16, 2**20)]},
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


def check_foreign_files(count: int, seed: int) -> ForeignOutcome:
    """Write random files and read each.

    Raises:
        ForeignFileError: one was read otherwise than h5py does; the message has its number and what it is.
    """
    outcome, files, start = ForeignOutcome(), ForeignFiles(seed), time.monotonic()
    for number in range(count):
        folder = Path(tempfile.mkdtemp(prefix="foreign-"))
        try:
            told = files.write(folder)
            with warnings.catch_warnings():
                # Said of these alone: of any other file it would be an error here.
                if "unwritten" in told or "virtual in part" in told:
                    warnings.filterwarnings("ignore", ".* were never written", UserWarning)
                _check(folder, f"file {number} of seed {seed} ({told})", outcome)
        finally:
            shutil.rmtree(folder)
    outcome.files, outcome.seconds = count, time.monotonic() - start
    return outcome


def _check(folder: Path, told: str, outcome: ForeignOutcome) -> None:
    truth = truth_of(folder / "main.h5")
    missing = "is gone" in told
    try:
        readers = list(_each_engine(folder / "main.h5"))
        for reader in readers:
            _compare(reader, truth, told)
    except ColabstageError as error:
        # h5py returns zeros for what is missing, which we must not.
        if not missing and is_plain(truth):
            msg = f"{told}: h5py reads it, and it was refused: {error}"
            raise ForeignFileError(msg) from error
        outcome.refused[type(error).__name__] += 1
    except ForeignFileError:
        raise
    except Exception as error:
        msg = f"{told}: ended in {type(error).__name__}: {error}"
        raise ForeignFileError(msg) from error
    else:
        outcome.equal += 1
        outcome.readings += len(readers)
    outcome.readings += _compare_packed(folder, truth, told)


def truth_of(path: Path) -> dict[str, Any]:
    """Return what h5py reads on both sides, as `_truth`."""
    return {side: _truth(path, side) for side in ("X_train", "Y_train")}


def _truth(path: Path, side: str) -> Any:
    """Return all values of one side as h5py reads them; `None` if it does not exist, and a string if h5py cannot read
    it."""
    try:
        with h5py.File(path) as file:
            return file[side][()] if side in file else None
    except (OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        return str(error)


def is_plain(truth: dict[str, Any]) -> bool:
    """Return whether both sides are numbers, with equally many samples."""
    x, y = truth["X_train"], truth["Y_train"]
    plain = [isinstance(one, np.ndarray) and one.ndim > 0 and one.dtype.kind in "biufc" for one in (x, y)]
    return plain[0] and (y is None or plain[1]) and (y is None or len(x) == len(y))


def _each_engine(path: Path) -> Iterator[Any]:
    """Yield readers of one split, one for each engine that could read its inputs."""
    yield dataset_h5(path).reader
    yield dataset_h5(path, in_memory=True).reader
    chosen = dataset_h5(path).reader.engine.name
    for name in _ENGINES.get(chosen, (chosen,)):
        reader: Any = dataset_h5(path).reader
        part = reader._parts[0]
        part._read_by(replace(part.engine, name=name))
        yield reader


def _compare(reader: Any, truth: dict[str, Any], told: str) -> None:
    count = len(reader)
    rows = np.concatenate([np.random.default_rng(count).permutation(count), np.arange(-min(2, count), 0)])
    for side, read in (("X_train", reader.read_x), ("Y_train", reader.read_y)):
        expected = truth[side]
        found = read(rows)
        if expected is None:
            same = side == "Y_train" and (np.asarray(found) == -1).all()
        else:
            same = len(found) == len(rows) and all(
                _equal(one, expected[row]) for one, row in zip(found, rows.tolist(), strict=True)
            )
        if not same:
            msg = f"{told}: {side} by {reader.engine.name} is not what h5py reads"
            raise ForeignFileError(msg)


def _equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, bytes | str):
        return bool(found == (expected.decode() if isinstance(expected, bytes) else expected))
    return bool(np.array_equal(np.asarray(found), np.asarray(expected)))


def _compare_packed(folder: Path, truth: dict[str, Any], told: str) -> int:
    """Compare what packing would store from a folder and from a zip of it; return how many of these would be packed."""
    archive = folder.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as made:
        for path in sorted(folder.iterdir()):
            made.write(path, path.name)
    try:
        with open_tree(archive, spool=folder.parent) as zipped, open_tree(folder, spool=folder.parent) as tree:
            # A file in an archive cannot refer to another, so files that need others may be refused.
            needs_others = any(word in told.partition("; ")[0] for word in ("virtual", "external", "through"))
            return _packs_right(tree, folder, truth, told) + _packs_right(
                zipped, folder, truth, f"{told}, in a zip", may_refuse=needs_others
            )
    finally:
        archive.unlink()


def _packs_right(tree: Tree, folder: Path, truth: dict[str, Any], told: str, *, may_refuse: bool = False) -> bool:
    """Compare what packing would store; return whether it would store something."""
    try:
        # A dataset with two names in one file counts under its original one.
        with h5py.File(folder / "main.h5") as file:
            own = "X_train_stored" if isinstance(file.get("X_train", getlink=True), h5py.SoftLink) else "X_train"
            own = own if own in file else "X_train"
        table = array_rows(x=f"main.h5/{own}")(tree)
        found = [table.inputs.source.read(row) for row in range(len(table))]
    except ColabstageError as error:
        x = truth["X_train"]
        plain = isinstance(x, np.ndarray) and x.ndim > 0 and x.dtype.kind in "biuf" and x.dtype.itemsize <= 8
        if plain and x.size and "is gone" not in told and not may_refuse:
            msg = f"{told}: h5py reads it, and packing refused it: {error}"
            raise ForeignFileError(msg) from error
        return False
    except Exception as error:
        msg = f"{told}: packing ended in {type(error).__name__}: {error}"
        raise ForeignFileError(msg) from error
    if not all(_equal(one, expected) for one, expected in zip(found, truth["X_train"], strict=True)):
        msg = f"{told}: what would be packed is not what h5py reads"
        raise ForeignFileError(msg)
    return True
