"""Finding the files that a table speaks of, however it writes their paths."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from colabstage.trees.tree import FileEntry


class FileLookup:
    """Files by what people write for them.

    In this order: the path as it is, from the table's folder or from the top; the same without leading folders, as an
    absolute path of another machine needs; the end of a path that only one file has. Each with the extension, then
    without.
    """

    def __init__(self, files: Iterable[FileEntry], folder: str) -> None:
        """`folder`: where the table lies, in the tree."""
        self._folder = folder
        self._whole: dict[str, FileEntry | None] = {}
        self._ends: dict[str, list[FileEntry]] = {}
        for file in files:
            bare = posixpath.splitext(file.name)[0]
            self._whole[file.name] = file
            # Two files that differ in their extension only are told apart by nothing but that.
            self._whole[f"\0{bare}"] = None if f"\0{bare}" in self._whole else file
            for name in (file.name, f"\0{bare}"):
                self._ends.setdefault(_last(name), []).append(file)

    def find(self, written: str) -> FileEntry | None:
        """The one file that is meant, or `None`."""
        parts = [part for part in written.replace("\\", "/").split("/") if part not in ("", ".")]
        if not parts or ".." in parts:
            parts = posixpath.normpath(posixpath.join(self._folder, *parts)).split("/") if parts else []
        for mark in ("", "\0"):
            found = self._find_parts(parts, mark)
            if found is not None:
                return found
        return None

    def _find_parts(self, parts: list[str], mark: str) -> FileEntry | None:
        for start in range(len(parts)):
            path = "/".join(parts[start:])
            for whole in (posixpath.join(self._folder, path), path):
                found = self._whole.get(mark + whole)
                if found is not None:
                    return found
        for start in range(len(parts)):
            path = "/".join(parts[start:])
            ends = [
                file for file in self._ends.get(mark + parts[-1], ()) if _ends_with(file.name, path, bare=bool(mark))
            ]
            if len(ends) == 1:
                return ends[0]
        return None


def _last(name: str) -> str:
    mark = "\0" if name.startswith("\0") else ""
    return mark + name.rpartition("/")[2].removeprefix("\0")


def _ends_with(name: str, path: str, *, bare: bool) -> bool:
    known = posixpath.splitext(name)[0] if bare else name
    return known == path or known.endswith(f"/{path}")
