"""colabstage's own small JSON files: checked when read, and announced before the files they describe take their place.

A record is a frozen dataclass. The types of its fields are its schema. JSON that does not fit is not a record, because
anybody may have written it: readers then act as if there were none, which is always safe, only slower.

The record beside a target is first written under another name, then the work is put in its place, then the record gets
its own name. So even after a kill in between there is a record of what is there.
"""

from __future__ import annotations

import contextlib
import functools
import types
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from colabstage.io.files import read_json, write_json
from colabstage.io.ownership import remove_named, rename_named, sweep_orphans
from colabstage.io.workspace import ANNOUNCED_SUFFIX, RECORD_SUFFIX, is_made_here

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Record = TypeVar("Record")

# Sizes and times of files fit; anything larger is not ours.
_BEYOND = 1 << 63


@dataclass(frozen=True, slots=True)
class RecordFile(Generic[Record]):
    """A hidden record of one kind, beside the target that it vouches for and found by the target's name.

    Beside it, not in it, so that a folder holds what its source holds and nothing else.
    """

    kind: type[Record]
    """The dataclass that it stores."""
    version: tuple[str, int]
    """The JSON key and value that identify the format; a file without them is not a record."""
    fits: Callable[[Record, Path], bool]
    """Tells whether what is at a target is what a record describes."""
    to_json: Callable[[Record], dict[str, Any]]
    """Converts a record to the JSON values that `read_fields` reads."""

    def path(self, target: Path) -> Path:
        """Return the path of a target's record."""
        return target.with_name(f".{target.name}{RECORD_SUFFIX}")

    def announced_path(self, target: Path) -> Path:
        """Return the path of the record that announces what is about to be put at a target."""
        return target.with_name(f".{target.name}{RECORD_SUFFIX}{ANNOUNCED_SUFFIX}")

    def read(self, target: Path) -> Record | None:
        """Return the record of what is at `target`; `None` when there is none.

        An announced record counts if it fits what is there: its process died right after the work.
        """
        return self._announced(target) or self._load(self.path(target))

    def find(self, folder: Path, wanted: Callable[[Record], bool]) -> Path | None:
        """Return the first target in `folder` whose record is wanted; `None` if there is none."""
        announced = sorted(folder.glob(f".*{RECORD_SUFFIX}{ANNOUNCED_SUFFIX}"))
        for path in (*announced, *sorted(folder.glob(f".*{RECORD_SUFFIX}"))):
            target = folder / path.name[1:].removesuffix(ANNOUNCED_SUFFIX).removesuffix(RECORD_SUFFIX)
            record = self.read(target)
            if record is not None and wanted(record):
                return target
        return None

    def announce(self, target: Path, record: Record) -> None:
        """Announce what is about to be put at `target`, in case the process dies before it can write the record."""
        self._store(self.announced_path(target), record)

    def write(self, target: Path, record: Record) -> None:
        """Write the record of a target, atomically, and remove its announcement."""
        self._store(self.path(target), record)
        # Only now, so that at any moment one of the two describes what is there.
        remove_named(self.announced_path(target))
        self.sweep(target)

    def settle(self, target: Path) -> None:
        """Give an announced record its own name if it fits `target` now; remove what dead runs left."""
        # An announcement that does not fit stays: another process may be about to put its work there.
        if self._announced(target) is not None:
            # If several processes do this, one succeeds.
            with contextlib.suppress(FileNotFoundError):
                rename_named(self.announced_path(target), self.path(target))
        self.sweep(target)

    def sweep(self, target: Path) -> None:
        """Remove unfinished records of a target that dead runs left."""
        for path in (self.path(target), self.announced_path(target)):
            sweep_orphans(target.parent, name=path.name)

    def _announced(self, target: Path) -> Record | None:
        record = self._load(self.announced_path(target))
        return record if record is not None and self.fits(record, target) else None

    def _load(self, path: Path) -> Record | None:
        key, number = self.version
        # Another user may write anything, and what it describes would be taken for ours.
        raw = read_json(path) if is_made_here(path) else None
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
    except (ValueError, TypeError, RecursionError):
        return None


_types = functools.cache(get_type_hints)


def _instance(kind: type[Record], raw: Any) -> Record:
    assert is_dataclass(kind)
    hints = _types(kind)
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    # An unknown key is from another version, which may give the others another meaning.
    if not isinstance(raw, dict) or not needed <= raw.keys() <= hints.keys():
        raise TypeError
    return kind(**{name: _value(hints[name], value) for name, value in raw.items()})


def _value(hint: Any, raw: Any) -> Any:
    """Return `raw` as a value of the type `hint`, JSON's lists as tuples; raises `TypeError` where it does not fit."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for one in inner:
            with contextlib.suppress(ValueError, TypeError):
                return _value(one, raw)
    elif origin is tuple and isinstance(raw, list):
        each = inner[:1] * len(raw) if inner[-1:] == (Ellipsis,) else inner
        return tuple(_value(one, part) for one, part in zip(each, raw, strict=True))
    elif origin is dict and isinstance(raw, dict):
        return {_value(inner[0], name): _value(inner[1], value) for name, value in raw.items()}
    elif isinstance(hint, type) and is_dataclass(hint):
        return _instance(hint, raw)
    elif hint is int:
        # `True` is an int to Python, and JSON's numbers have no end.
        if type(raw) is int and abs(raw) < _BEYOND:
            return raw
    elif (
        hint is Any
        or (origin is Literal and any(raw == one and type(raw) is type(one) for one in inner))
        or (isinstance(hint, type) and type(raw) is hint)
    ):
        return raw
    raise TypeError
