"""Targets that lie in another file than their inputs, as PatchCamelyon has them: both read as one file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from colabstage.io.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_IN_FILE = re.compile(r"(.+\.(?:h5|hdf5|hdf|he5|mat))/(.+)", re.IGNORECASE)


def beside(path: Path, name: str | None) -> tuple[Path, str] | None:
    """Return the file and the name in it that `labels.h5/y` means, seen from `path`; `None` where a name is one of
    `path` itself."""
    found = _IN_FILE.fullmatch(name or "")
    return None if found is None else (path.parent / found[1], found[2])


class FileBeside(Closing):
    """An open `h5py.File`, with one name that leads into another; whatever else is asked of it, the first answers."""

    def __init__(self, file: Any, other: Any, name: str, inner: str) -> None:
        self._file = file
        self._other = other
        self._name = name
        self._inner = inner

    def __getitem__(self, name: str) -> Any:
        return self._other[self._inner] if name == self._name else self._file[name]

    def get(self, name: str, *, getlink: bool = False) -> Any:
        """Return what the name leads to, or the link itself, as h5py does; `None` where there is none."""
        if name == self._name:
            return self._other.get(self._inner, getlink=getlink)
        return self._file.get(name, getlink=getlink)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __contains__(self, name: str) -> bool:
        return name in self._file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        """Close both files."""
        self._other.close()
        self._file.close()
