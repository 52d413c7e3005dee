"""Several packs that are one dataset: what their files are called, and in which order their rows come.

`NAME-00002-of-00008.h5` is one of eight shards that were written together. `NAME-append-00001.h5` was added later to
`NAME.h5`, or to its shards. What was there keeps its name then, because records, manifests and other machines refer to
it by that; and it keeps its rows' numbers, because what was added comes last.
"""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import DamagedPackError, OptionError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    # One file, a pattern that several match, or several files.
    Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.[^.]+)?")
_APPENDED = re.compile(r"(?P<stem>.+)-append-(?P<number>\d{5})(?P<suffix>\.[^.]+)?")
_MAX_PARTS = 99_999
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True, order=True)
class PartName:
    """A file as part of a dataset; ascending in the order of their rows.

    `folder`, `stem`, `suffix`: of the dataset: "." , "NAME" and ".h5".
    `appended`: whether it was added later. `number`: among the shards, from 0, or among those added, from 1; 0 for a
    file that stands alone. `count`: of all shards, 0 for what is none.
    """

    folder: str
    stem: str
    suffix: str
    appended: bool
    number: int
    count: int

    @classmethod
    def of(cls, path: Path) -> PartName:
        """What a file's name says."""
        folder = str(path.parent)
        if found := _SHARD.fullmatch(path.name):
            return cls(folder, found["stem"], found["suffix"] or "", False, int(found["number"]), int(found["count"]))
        if found := _APPENDED.fullmatch(path.name):
            return cls(folder, found["stem"], found["suffix"] or "", True, int(found["number"]), 0)
        return cls(folder, path.stem, path.suffix, False, 0, 0)

    @property
    def dataset(self) -> tuple[str, str, str]:
        """What all parts of one dataset have in common."""
        return self.folder, self.stem, self.suffix


def shard_path(target: Path, number: int, count: int) -> Path:
    """The name of one of `count` shards of the dataset that one file `target` would hold."""
    return target.with_name(f"{target.stem}-{number:05}-of-{count:05}{target.suffix}")


def shard_pattern(target: Path, count: int) -> Path:
    """A pattern that all shards match; `dataset_h5` reads it."""
    return target.with_name(f"{glob.escape(target.stem)}-?????-of-{count:05}{target.suffix}")


def appended_path(target: Path, number: int) -> Path:
    """The name of what was added to the dataset `target` as its `number`-th, from 1."""
    return target.with_name(f"{target.stem}-append-{number:05}{target.suffix}")


def shards_beside(target: Path) -> list[Path]:
    """All shards of the dataset `target` that there are, of any count, in order."""
    return _named(target, "-?????-of-?????")


def appended_beside(target: Path) -> list[Path]:
    """All that was added to the dataset `target`, in order."""
    return _named(target, "-append-?????")


def _named(target: Path, pattern: str) -> list[Path]:
    wanted = f"{glob.escape(target.stem)}{pattern}{glob.escape(target.suffix)}"
    found = [path for path in target.parent.glob(wanted) if PartName.of(path).stem == target.stem]
    return sorted(found, key=PartName.of)


def next_appended(target: Path) -> Path:
    """The name for what is added to the dataset `target` now.

    Raises:
        OptionError: there are as many as names can tell apart.
    """
    found = appended_beside(target)
    number = PartName.of(found[-1]).number + 1 if found else 1
    if number > _MAX_PARTS:
        msg = f"'{target}' has {number - 1:,} appended files; pack all of it anew into one."
        raise OptionError(msg)
    return appended_path(target, number)


def find_parts(files: Files) -> tuple[Path, ...]:
    """The files that are to be read as one, in the order of their rows; absolute.

    One path is that file alone, also when there are shards or appended files of its name. A pattern (`*`, `?`, `[`) is
    all that match it: of each name the one file, its shards, then what was appended. A list is taken as it is.

    Raises:
        SourceNotFoundError: nothing matches the pattern, or shards are missing of a set.
        DamagedPackError: shards of two sets match it.
        OptionError: the list is empty.
    """
    if isinstance(files, str | os.PathLike):
        path = Path(files).expanduser().absolute()
        if path.exists() or not glob.has_magic(str(path)):
            return (path,)
        return _matching(path)
    parts = tuple(Path(part).expanduser().absolute() for part in files)
    if not parts:
        msg = "The list of files is empty; expected one HDF5 file at least."
        raise OptionError(msg)
    return parts


def _matching(pattern: Path) -> tuple[Path, ...]:
    everything = map(Path, glob.glob(str(pattern)))  # noqa: PTH207  # the pattern's folders may have stars too
    found = [path for path in everything if not path.is_dir()]
    # Manifests match a pattern that ends in a star.
    names = sorted(PartName.of(path) for path in found if path.suffix != ".json")
    if not names:
        msg = f"No file matches '{pattern}'."
        raise SourceNotFoundError(msg)
    for dataset in dict.fromkeys(name.dataset for name in names):
        _check_whole_set(name for name in names if name.dataset == dataset)
    order = {PartName.of(path): path for path in found}
    return tuple(order[name] for name in names)


def _check_whole_set(names: Iterable[PartName]) -> None:
    shards = [name for name in names if name.count]
    if not shards:
        return
    first = shards[0]
    target = Path(first.folder) / f"{first.stem}{first.suffix}"
    counts = sorted({name.count for name in shards})
    if len(counts) > 1:
        msg = (
            f"There are shards of several sets of '{target}': of {' and of '.join(map(str, counts))}. Remove those of "
            f"one, or name one, for example '{shard_pattern(target, counts[-1])}'."
        )
        raise DamagedPackError(msg)
    missing = sorted(set(range(first.count)) - {name.number for name in shards})
    if missing:
        shown = ", ".join(shard_path(target, number, first.count).name for number in missing[:_NAMES_SHOWN])
        msg = (
            f"Of the {first.count} shards of '{target}', {len(missing)} are missing: {shown}"
            f"{', …' if len(missing) > _NAMES_SHOWN else ''}. Copy or pack them again, or give a list of those to read."
        )
        raise SourceNotFoundError(msg)
