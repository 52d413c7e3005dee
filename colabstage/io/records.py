"""Our own small JSON files: checked when they are read, and announced before what they vouch for takes its place.

A record is a frozen dataclass. Its fields' types are its schema, and what does not fit is not a record, because anybody
may have written there: every reader then does what it does where there is none, which is always safe, only slower.

A record beside a target is announced under another name before the work is put in its place, and takes its own name
after that: so whoever is killed in between has still said what is there.
"""

from __future__ import annotations

import contextlib
import functools
import types
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from colabstage.io.files import read_json, write_json
from colabstage.io.ownership import remove_named, rename_named, sweep_orphans
from colabstage.io.workspace import ANNOUNCED_SUFFIX, RECORD_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Record = TypeVar("Record")

# Sizes and times of files fit; what does not is nobody's.
_BEYOND = 1 << 63


@dataclass(frozen=True, slots=True)
class RecordFile(Generic[Record]):
    """The hidden record of one kind that is beside what it vouches for, and is found by that one's name.

    Beside it, not in it: a folder then holds what its source holds and nothing else.
    """

    kind: type[Record]
    """The dataclass that it holds."""
    version: tuple[str, int]
    """The JSON key that tells the format, and its value; a file with another one is not a record."""
    fits: Callable[[Record, Path], bool]
    """Says whether what is at a target is what a record speaks of."""
    to_json: Callable[[Record], dict[str, Any]]
    """Makes the JSON values that `read_fields` makes the record of."""

    def path(self, target: Path) -> Path:
        """Return where the record of a target stands."""
        return target.with_name(f".{target.name}{RECORD_SUFFIX}")

    def announced_path(self, target: Path) -> Path:
        """Return where the record stands of what is about to be put at a target."""
        return target.with_name(f".{target.name}{RECORD_SUFFIX}{ANNOUNCED_SUFFIX}")

    def read(self, target: Path) -> Record | None:
        """Return the record of what is at `target`; `None` when there is none.

        One that was only announced counts when it fits what is there: then its maker died right after the work.
        """
        return self._announced(target) or self._load(self.path(target))

    def find(self, folder: Path, wanted: Callable[[Record], bool]) -> Path | None:
        """Return the first target in `folder` that has a wanted record; `None` when there is none."""
        suffixes = (f"{RECORD_SUFFIX}{ANNOUNCED_SUFFIX}", RECORD_SUFFIX)
        for path in sorted(found for suffix in suffixes for found in folder.glob(f".*{suffix}")):
            name = path.name.removeprefix(".").removesuffix(ANNOUNCED_SUFFIX).removesuffix(RECORD_SUFFIX)
            record = self.read(folder / name)
            if record is not None and wanted(record):
                return folder / name
        return None

    def announce(self, target: Path, record: Record) -> None:
        """Say what is about to be put at `target`, in case whoever does it dies before it can write the record."""
        self._store(self.announced_path(target), record)

    def write(self, target: Path, record: Record) -> None:
        """Write the record of a target, atomically; what was announced has come to pass."""
        self._store(self.path(target), record)
        # Only now: in between, either of the two describes what is there.
        remove_named(self.announced_path(target))
        self.sweep(target)

    def settle(self, target: Path) -> None:
        """Give what was announced its own name, if it is at `target` now; clear away what dead runs left."""
        # What does not fit stays: another process may be about to put it there.
        if self._announced(target) is not None:
            # Of several that settle it, one does.
            with contextlib.suppress(FileNotFoundError):
                rename_named(self.announced_path(target), self.path(target))
        self.sweep(target)

    def sweep(self, target: Path) -> None:
        """Clear away what dead runs were about to write as the record of a target."""
        for path in (self.path(target), self.announced_path(target)):
            sweep_orphans(target.parent, name=path.name)

    def _announced(self, target: Path) -> Record | None:
        record = self._load(self.announced_path(target))
        return record if record is not None and self.fits(record, target) else None

    def _load(self, path: Path) -> Record | None:
        key, number = self.version
        raw = read_json(path)
        if not isinstance(raw, dict) or raw.pop(key, None) != number:
            return None
        return read_fields(self.kind, raw)

    def _store(self, path: Path, record: Record) -> None:
        key, number = self.version
        write_json(path, {key: number, **self.to_json(record)})


def read_fields(kind: type[Record], raw: Any) -> Record | None:
    """Return the dataclass `kind` from JSON values; `None` where one is missing, unknown, mistyped or too large."""
    try:
        return _instance(kind, raw)
    except (_UnfitError, ValueError, TypeError, RecursionError):
        return None


class _UnfitError(Exception):
    """A value is not of its field's type."""


@functools.cache
def _types(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _instance(kind: type[Record], raw: Any) -> Record:
    assert is_dataclass(kind)
    hints = _types(kind)
    # A key that nobody knows is of another version, which may mean the others differently.
    if not isinstance(raw, dict) or not hints.keys() >= raw.keys():
        raise _UnfitError
    values = {name: _value(hints[name], value) for name, value in raw.items()}
    needed = (one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING)
    if not values.keys() >= set(needed):
        raise _UnfitError
    return kind(**values)


def _value(hint: Any, raw: Any) -> Any:
    """Return `raw` as a value of the type `hint`, JSON's lists as tuples."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for one in inner:
            with contextlib.suppress(_UnfitError, ValueError):
                return _value(one, raw)
        raise _UnfitError
    if origin is Literal:
        fits = raw in inner and type(raw) in {type(one) for one in inner}
    elif origin is tuple and isinstance(raw, list):
        if inner[-1:] == (Ellipsis,):
            return tuple(_value(inner[0], part) for part in raw)
        return tuple(_value(one, part) for one, part in zip(inner, raw, strict=True))
    elif origin is dict and isinstance(raw, dict):
        return {_value(inner[0], name): _value(inner[1], value) for name, value in raw.items()}
    elif isinstance(hint, type) and is_dataclass(hint):
        return _instance(hint, raw)
    # `True` is an int to Python, and JSON's numbers have no end.
    elif hint is int:
        fits = type(raw) is int and abs(raw) < _BEYOND
    else:
        fits = hint is Any or (isinstance(hint, type) and type(raw) is hint)
    if not fits:
        raise _UnfitError
    return raw
