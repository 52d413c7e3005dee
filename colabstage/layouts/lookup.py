"""Find files by the names that people write for them: in tables, lists and annotations."""

from __future__ import annotations

import posixpath
from functools import cached_property
from typing import TYPE_CHECKING

from colabstage.layouts.words import is_split, normal, same_split, split_name, split_of_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# In place of the number of a file: a name leads to none, or to several.
NONE, SEVERAL = -1, -2


def only(numbers: Sequence[int]) -> int:
    """Return the one number; `NONE` or `SEVERAL` otherwise."""
    return numbers[0] if len(numbers) == 1 else SEVERAL if numbers else NONE


class Lookup:
    """One index of names, for all that names them.

    A name is found, in this order: by the path as it is, from the folder of what names it or from the top; the same
    without leading folders, as an absolute path of another machine needs; the end of a path. Each with the extension,
    then without. A folder that is written and is there is where the file has to be, and a file of one split is never
    found for another: what is missing stays missing.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = [normal(name) for name in names]
        folders = {name.rpartition("/")[0] for name in self.names}
        self._folders = {part for folder in folders for part in folder.split("/") if part}
        self.has_splits = any(map(is_split, self._folders))

    # Each index is made when a name first needs it: of a million names each takes a second.

    @cached_property
    def _whole(self) -> dict[str, int]:
        return dict(zip(self.names, range(len(self.names)), strict=True))

    @cached_property
    def _by_base(self) -> _Index:
        return _Index([name[name.rfind("/") + 1 :] for name in self.names])

    @cached_property
    def _by_stem(self) -> _Index:
        # As `posixpath.splitext`, in a tenth of its time.
        bases = (name[name.rfind("/") + 1 :] for name in self.names)
        return _Index([base[:dot] if (dot := base.rfind(".")) > 0 else base for base in bases])

    def __len__(self) -> int:
        return len(self.names)

    def may_find(self, written: str) -> bool:
        """Tell whether there is a file of this bare name, somewhere: a quick look before `search`."""
        base = normal(written).replace("\\", "/").rstrip("/").rpartition("/")[2]
        return base in self._by_base or base in self._by_stem

    def search_each(self, written: Iterable[str], folder: str = "") -> tuple[dict[str, int], int]:
        """Return the number of the file that each of many names means, if any, `SEVERAL` where that cannot be said; and
        how many of the names have the file's extension."""
        names, bases = list(written), self._by_base
        # In nearly all tables each is the base name of one file.
        found = {
            name: number
            for name, number in zip(names, map(bases.last.get, names), strict=True)
            if number is not None and name not in bases.several
        }
        whole = len(found)
        for name in names if len(found) < len(names) else ():
            if name not in found and name and (numbers := self.search(name, folder)):
                found[name] = only(numbers)
                base = self.names[numbers[0]].rpartition("/")[2]
                whole += name.endswith(base) or normal(name).endswith(base)
        return found, whole

    def find(self, written: str, folder: str = "", *, split: str = "") -> int | None:
        """Return the number of the one file that is meant, or `None`."""
        found = self.search(written, folder, split=split)
        return found[0] if len(found) == 1 else None

    def search(self, written: str, folder: str = "", *, split: str = "") -> Sequence[int]:
        """Return the numbers of the files that may be meant: none, one, or several that cannot be distinguished.
        `folder`: that of the file which names it."""
        written = normal(written)
        if "/" not in written and "\\" not in written and not split:
            # The common case in nearly all tables: a base name of exactly one file.
            numbers = self._by_base.get(written) or self._by_stem.get(written)
            if len(numbers) < 2:
                return numbers
        folder = normal(folder)
        parts = [part for part in written.replace("\\", "/").split("/") if part not in ("", ".")]
        if ".." in parts:
            parts = posixpath.normpath(posixpath.join(folder, *parts)).split("/")
        path = "/".join(parts)
        for whole in (posixpath.join(folder, path), path) if parts else ():
            if whole in self._whole:
                return [self._whole[whole]]
        # A written folder is stronger evidence than the row's split.
        split = next((split_name(part).split for part in reversed(parts[:-1]) if is_split(part)), split)
        found = self._nearest(parts, folder, self._by_base.get(parts[-1]), split) if parts else ()
        return found or (self._nearest(parts, folder, self._by_stem.get(parts[-1]), split) if parts else ())

    def _nearest(self, parts: list[str], folder: str, numbers: Sequence[int], split: str) -> Sequence[int]:
        """Return the files with the right base name whose folders agree best with the written path."""
        paths = {number: self.names[number].split("/")[:-1] for number in numbers if self._is_of(number, split)}
        own = [part for part in folder.split("/") if part]
        # An end of the path that is longer than a file's folders agrees with none, and a path may have many parts.
        first = max(0, len(parts) - 1 - max(map(len, paths.values()), default=0))
        for start in range(first, len(parts) if paths else first):
            wanted = parts[start:-1]
            # What is written before that and is a folder here has to be among those of the file.
            dropped = self._folders.intersection(parts[:start])
            ends = [
                number
                for number, folders in paths.items()
                if folders[len(folders) - len(wanted) :] == wanted and dropped.issubset(folders)
            ]
            for place in ([*own, *wanted], wanted):
                if exact := [number for number in ends if paths[number] == place]:
                    return exact
            if ends:
                # One of several is meant if it alone is beside the naming file, or in the folder of its split.
                beside = [number for number in ends if folder and self.names[number].startswith(f"{folder}/")]
                of_split = [number for number in ends if split and split_of_path(self.names[number])]
                return next((found for found in (ends, beside, of_split) if len(found) == 1), ends)
        return ()

    def _is_of(self, number: int, split: str) -> bool:
        other = split_of_path(self.names[number]) if split else ""
        return not other or same_split(other, split)


class _Index:
    """The places of names in a list, nearly all of which are different."""

    def __init__(self, names: list[str]) -> None:
        self.last = dict(zip(names, range(len(names)), strict=True))
        """The last place of each."""
        self.several: dict[str, list[int]] = {}
        """All places of those that have more than one."""
        if len(self.last) < len(names):
            for number, name in enumerate(names):
                if self.last[name] != number:
                    self.several.setdefault(name, []).append(number)
            for name, numbers in self.several.items():
                numbers.append(self.last[name])

    def __contains__(self, name: str) -> bool:
        return name in self.last

    def get(self, name: str) -> Sequence[int]:
        """Return the places of a name."""
        found = self.several.get(name)
        return found if found is not None else (self.last[name],) if name in self.last else ()
