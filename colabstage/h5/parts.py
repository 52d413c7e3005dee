"""Packs of several files: how they are named, and what they must have in common to be read as one.

`NAME-00002-of-00008.h5` is one of eight shards that were written together. `NAME-append-00001.h5` was added later to
`NAME.h5`, or to its shards, and is read last, so that rows keep their numbers.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import DamagedPackError, OptionError, PackFormatError, SourceNotFoundError
from colabstage.h5.info import FieldInfo, PackInfo, coding_to_json
from colabstage.images.geometry import MaskOptions
from colabstage.io.arguments import absolute_path, refuse_argument, text_of_path

if TYPE_CHECKING:
    Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_CLASSES_SHOWN, _NAMES_SHOWN = 5, 3
# Numbers in names have five digits, so that names sort in the order of the rows.
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.[^.]+)?")
_APPENDED = re.compile(r"(?P<stem>.+)-append-(?P<number>\d{5})(?P<suffix>\.[^.]+)?")

_FOR_ADDRESSES = "give an address to stage_dataset or fetch_files, or to dataset_h5 with disk_limit="


class PackSchema(NamedTuple):
    """What all samples of a pack have in common."""

    classes: tuple[str, ...]
    x: FieldInfo
    y: FieldInfo | None


def pack_schema(info: PackInfo, split: str) -> PackSchema:
    fields = info.split(split)
    return PackSchema(info.classes, fields.x, fields.y)


def schema_difference(expected: PackSchema, found: PackSchema) -> str | None:
    """Say how the second differs from the first, as a clause ("its classes are …"); `None` when they agree."""
    if expected.classes != found.classes:
        return f"its classes are {_list(found.classes)} instead of {_list(expected.classes)}"
    for side, wanted, there in (("inputs", expected.x, found.x), ("targets", expected.y, found.y)):
        one, other = _common(wanted), _common(there)
        # The names of both: a fact that only one of them has is a difference too.
        for name in {**one, **other}:
            if one.get(name) != other.get(name):
                return f"its {side} have {name} {other.get(name)} instead of {one.get(name)}"
    return None


def _common(field: FieldInfo | None) -> dict[str, Any]:
    """Return what all rows of a field have in common."""
    if field is None:
        return {"kind": "none"}
    if field.coding is not None:
        kind = "encoded masks" if isinstance(field.coding, MaskOptions) else "encoded images"
        return {"kind": kind, **coding_to_json(field.coding)}
    if field.kind in ("boxes", "texts"):
        return {"kind": field.kind, "columns": sorted(field.columns)}
    # Readers return native byte order however values are stored, so files may differ in it.
    return {"kind": field.kind, "shape": field.shape, "dtype": str(field.dtype.newbyteorder("="))}


def _list(classes: tuple[str, ...]) -> str:
    if not classes:
        return "not named"
    shown = ", ".join(classes[:_CLASSES_SHOWN])
    return f"({shown}, … {len(classes)} in all)" if len(classes) > _CLASSES_SHOWN else f"({shown})"


def check_schemas(infos: list[PackInfo], split: str) -> None:
    """Make sure that files can be read as one."""
    # Each is compared with the first file, so that thousands of shards take one comparison each.
    expected = pack_schema(infos[0], split)
    for other in infos[1:]:
        difference = schema_difference(expected, pack_schema(other, split))
        if difference is not None:
            msg = f"'{other.path}' cannot be read as one with '{infos[0].path.name}': {difference}."
            raise PackFormatError(msg)


def joined_info(infos: Sequence[PackInfo]) -> PackInfo:
    """Return what several files hold together: the first one's facts, with the rows of all."""
    splits = dict(infos[0].splits)
    for info in infos[1:]:
        for name, split in info.splits.items():
            known = splits.setdefault(name, split)
            if known is not split:
                y = None if known.y is None or split.y is None else _joined_field(known.y, split.y)
                splits[name] = replace(known, x=_joined_field(known.x, split.x), y=y)
    return replace(infos[0], splits=splits, skipped=tuple(text for info in infos for text in info.skipped))


def _joined_field(first: FieldInfo, second: FieldInfo) -> FieldInfo:
    return replace(first, rows=first.rows + second.rows, nbytes=first.nbytes + second.nbytes)


@dataclass(frozen=True, slots=True, order=True)
class PartName:
    """The name of a file as part of a dataset; names sort in the order of the rows."""

    folder: str
    stem: str
    """Of the dataset's one file."""
    suffix: str
    appended: bool
    number: int
    """Of a shard from 0, of an appended file from 1; 0 for a single file."""
    count: int
    """How many shards the set has; 0 for other files."""

    @classmethod
    def of(cls, path: Path) -> PartName:
        folder = str(path.parent)
        if found := _SHARD.fullmatch(path.name):
            return cls(folder, found["stem"], found["suffix"] or "", False, int(found["number"]), int(found["count"]))
        if found := _APPENDED.fullmatch(path.name):
            return cls(folder, found["stem"], found["suffix"] or "", True, int(found["number"]), 0)
        return cls(folder, path.stem, path.suffix, False, 0, 0)

    @property
    def dataset(self) -> tuple[str, str, str]:
        """Return what all parts of one dataset have in common."""
        return self.folder, self.stem, self.suffix


def shard_path(target: Path, number: int, count: int) -> Path:
    """Return the name of one of `count` shards of the dataset that one file `target` would hold."""
    return target.with_name(f"{target.stem}-{number:05}-of-{count:05}{target.suffix}")


def shard_pattern(target: Path, count: int) -> Path:
    """Return a pattern that matches all shards, for `dataset_h5`."""
    return target.with_name(f"{glob.escape(target.stem)}-?????-of-{count:05}{target.suffix}")


def shards_beside(target: Path) -> list[Path]:
    """Return all existing shards of the dataset `target`, of any count, in order."""
    return _paths_like(target, "-?????-of-?????")


def appended_beside(target: Path) -> list[Path]:
    """Return all files appended to the dataset `target`, in order."""
    return _paths_like(target, "-append-?????")


def _paths_like(target: Path, pattern: str) -> list[Path]:
    wanted = f"{glob.escape(target.stem)}{pattern}{glob.escape(target.suffix)}"
    # `NAME-append-?????` also matches parts of a dataset whose own name ends so; the stem tells them apart.
    found = [path for path in target.parent.glob(wanted) if PartName.of(path).stem == target.stem]
    return sorted(found, key=PartName.of)


def next_appended(target: Path) -> Path:
    """Return the name of the next file to append to the dataset `target`."""
    found = appended_beside(target)
    # After the last file, never in a gap: a file in between would renumber the rows after it.
    number = PartName.of(found[-1]).number + 1 if found else 1
    return target.with_name(f"{target.stem}-append-{number:05}{target.suffix}")


def check_files(files: object) -> tuple[str, ...]:
    """Return the paths or addresses in a list, or the one path, pattern or address; refuse anything else."""
    # Not every iterable: an open h5py.File yields the names in it, and a set has no stable order.
    is_list = isinstance(files, Sequence | np.ndarray) or hasattr(files, "to_list")
    given: Any = files if is_list and not isinstance(files, str | bytes) else (files,)
    for one in given:
        if not isinstance(one, str | os.PathLike):
            remedy = "stage_dataset and pack_dataset make such files."
            refuse_argument("path", one, "the path of a file, or a list of them", remedy=remedy)
    return tuple(text_of_path(one, "path") for one in given)


def find_parts(files: Files) -> tuple[Path, ...]:
    """Return the absolute paths of the files that are read as one, in the order of their rows: a path alone; for a
    pattern (`*`, `?`, `[`) all files that match, for each name the single file, its shards, then the appended ones; a
    list as it is."""
    # Absolute, because a loader's workers may be started from another folder.
    parts = tuple(absolute_path(part, instead=_FOR_ADDRESSES) for part in check_files(files))
    if not parts:
        msg = "The list of files is empty; expected at least one HDF5 file."
        raise OptionError(msg)
    if len(set(parts)) < len(parts):
        again = next(path for number, path in enumerate(parts) if path in parts[:number])
        msg = (
            f"The list of files has '{again}' twice, so each of its samples would count twice. Name it once; for some "
            "samples more often than others give make_loader a sampler, such as torch's WeightedRandomSampler."
        )
        raise OptionError(msg)
    # A file whose name happens to contain a star or a bracket is that file.
    is_pattern = isinstance(files, str | os.PathLike) and glob.has_magic(str(parts[0])) and not parts[0].exists()
    return _matching(parts[0]) if is_pattern else parts


def _matching(pattern: Path) -> tuple[Path, ...]:
    everything = map(Path, glob.glob(str(pattern)))  # noqa: PTH207  # the pattern's folders may have stars too
    # Manifests match a pattern that ends in a star.
    found = {PartName.of(path): path for path in everything if path.suffix != ".json" and not path.is_dir()}
    if not found:
        msg = f"No file matches '{pattern}'."
        raise SourceNotFoundError(msg)
    for folder, stem, suffix in {name.dataset for name in found}:
        shards = [name for name in found if name.count and name.dataset == (folder, stem, suffix)]
        _check_whole_set(Path(folder) / f"{stem}{suffix}", shards)
    return tuple(found[name] for name in sorted(found))


def _check_whole_set(target: Path, shards: list[PartName]) -> None:
    # A missing shard would only show as fewer rows, and two sets read together as duplicate rows.
    counts = sorted({name.count for name in shards})
    if len(counts) > 1:
        msg = (
            f"There are shards of several sets of '{target}': of {' and of '.join(map(str, counts))}. Remove those of "
            f"one, or name one, for example '{shard_pattern(target, counts[-1])}'."
        )
        raise DamagedPackError(msg)
    count = counts[0] if counts else 0
    missing = sorted(set(range(count)) - {name.number for name in shards})
    if missing:
        shown = ", ".join(shard_path(target, number, count).name for number in missing[:_NAMES_SHOWN])
        msg = (
            f"Of the {count} shards of '{target}', {len(missing)} are missing: {shown}"
            f"{', …' if len(missing) > _NAMES_SHOWN else ''}. Copy or pack them again, or give a list of those to read."
        )
        raise SourceNotFoundError(msg)
