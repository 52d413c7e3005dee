"""The file of a tree that a table or an annotation means, however it writes the path."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from colabstage.layouts.names import is_split_folder, same_split, split_name, split_of_path
from colabstage.trees.entries import FileEntries
from colabstage.trees.names import parent_folders

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from colabstage.trees.tree import FileEntry


class FileLookup:
    """Files by what people write for them.

    In this order: the path as it is, from the folder of what names it or from the top; the same without leading
    folders, as an absolute path of another machine needs; the end of a path. Each with the extension, then without.
    A folder that is written and is there is where the file has to be, and a file of one split is never found for
    another: what is missing stays missing.
    """

    def __init__(self, files: Iterable[FileEntry], folder: str) -> None:
        """`folder`: where the table or the annotations lie, in the tree."""
        self._files = FileEntries.of(files)
        self._folder = folder
        self._whole: dict[str, int] = {}
        self._by_base: dict[str, list[int]] = {}
        self._by_stem: dict[str, list[int]] = {}
        for number, name in enumerate(self._files.names):
            base = name.rpartition("/")[2]
            self._whole[name] = number
            self._by_base.setdefault(base, []).append(number)
            self._by_stem.setdefault(posixpath.splitext(base)[0], []).append(number)
        self._folders = {posixpath.basename(path) for path in parent_folders(self._files.names)}
        self.has_splits = any(map(is_split_folder, self._folders))

    def __len__(self) -> int:
        return len(self._files)

    def may_find(self, written: str) -> bool:
        """Whether there is a file of this bare name, somewhere: a quick look before `search`."""
        base = written.replace("\\", "/").rstrip("/").rpartition("/")[2]
        return base in self._by_base or base in self._by_stem

    def is_base(self, written: str) -> bool:
        """Whether a file has this bare name, extension included."""
        return written.replace("\\", "/").rpartition("/")[2] in self._by_base

    def find(self, written: str, *, split: str = "") -> FileEntry | None:
        """The one file that is meant, or `None`; `split`: which split it is of, where that is known."""
        found = self.search(written, split=split)
        return self._files[found[0]] if len(found) == 1 else None

    def search(self, written: str, *, split: str = "") -> Sequence[int]:
        """The numbers of the files that may be meant: none, one, or several that nothing tells apart."""
        if "/" not in written and "\\" not in written and not split:
            # Nearly every row of nearly every table: a bare name that one file has.
            numbers = self._by_base.get(written) or self._by_stem.get(written)
            if numbers is not None and len(numbers) == 1:
                return numbers
        parts = [part for part in written.replace("\\", "/").split("/") if part not in ("", ".")]
        if ".." in parts:
            parts = posixpath.normpath(posixpath.join(self._folder, *parts)).split("/")
        if not parts:
            return []
        path = "/".join(parts)
        for whole in (posixpath.join(self._folder, path), path):
            if whole in self._whole:
                return [self._whole[whole]]
        # A folder that is written says more than what the row is said to be of.
        split = next((split_name(part).split for part in reversed(parts[:-1]) if is_split_folder(part)), split)
        for known in (self._by_base, self._by_stem):
            found = self._nearest(parts, known.get(parts[-1], ()), split)
            if found:
                return found
        return []

    def _nearest(self, parts: list[str], numbers: Sequence[int], split: str) -> list[int]:
        """Those of some files with the right base name whose folders agree best with what is written."""
        names = self._files.names
        paths = {number: _folders(names[number]) for number in numbers}
        own = [part for part in self._folder.split("/") if part]
        for start in range(len(parts)):
            wanted = parts[start:-1]
            dropped = {part for part in parts[:start] if part in self._folders}
            ends = [
                number
                for number, folders in paths.items()
                if folders[len(folders) - len(wanted) :] == wanted
                and dropped.issubset(folders)
                and self._is_of(names[number], split)
            ]
            for place in ([*own, *wanted], wanted):
                if exact := [number for number in ends if paths[number] == place]:
                    return exact
            if ends:
                return self._told_apart(ends, split)
        return []

    @staticmethod
    def _is_of(name: str, split: str) -> bool:
        other = split_of_path(name) if split else ""
        return not other or same_split(other, split)

    def _told_apart(self, numbers: list[int], split: str) -> list[int]:
        """One of several, where one alone lies beside what names it, or in the folder of its split."""
        names = self._files.names
        beside = [number for number in numbers if self._folder and names[number].startswith(f"{self._folder}/")]
        of_split = [number for number in numbers if split and split_of_path(names[number])]
        return next((found for found in (numbers, beside, of_split) if len(found) == 1), numbers)


def _folders(name: str) -> list[str]:
    return name.split("/")[:-1]
