"""HDF5 files that lead nowhere else unless the caller allows it.

External links, virtual datasets and external storage name other files, and HDF5 opens whatever they name: a private key
read as samples, or a pipe that never answers. And it reads missing sources, or storage that is too short, as zeros. So
every name is followed here first, link by link.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
from h5py import h5d, h5f, h5g, h5i, h5l, h5o

from colabstage.errors import ExternalFileError, PackFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

# As many links as HDF5 follows by default.
_MAX_STEPS = 16


class Reach:
    """Whether an HDF5 file may lead to other files."""

    def __init__(self, path: Path | None, label: str, *, anywhere: bool = False) -> None:
        """Take the file; `None` for bytes without a path, which lead to no other file. `anywhere`: any file is allowed.

        `label`: what messages call it.
        """
        self._path, self._label, self._anywhere = path, label, anywhere

    def check(self, group: Any, name: str) -> None:
        """Follow `name` from an open `GroupID` as far as this file goes, and refuse what leads out of it."""
        parts = _parts(name.encode(errors="surrogateescape"))
        node, steps = h5g.open(group, b"/") if name.startswith("/") else group, 0
        while parts:
            part = parts.pop()
            # h5py reports what is missing.
            if not isinstance(node, h5g.GroupID) or not node.links.exists(part):
                return
            kind = node.links.get_info(part).type
            if kind == h5l.TYPE_HARD:
                node = h5o.open(node, part)
                continue
            target, steps = node.links.get_val(part), steps + 1
            if kind == h5l.TYPE_EXTERNAL:
                self._check_leading(os.fsdecode(target[0]))
                return
            if steps > _MAX_STEPS:
                msg = f"'{name}' in '{self._label}' leads through more than {_MAX_STEPS} links."
                raise PackFormatError(msg)
            parts += _parts(target)
            node = h5g.open(node, b"/") if target.startswith(b"/") else node

    def _check_leading(self, target: str) -> None:
        if self._path is None:
            msg = (
                f"'{self._label}' leads to another file, '{target}', and files are found beside each other only in a "
                "folder. Stage the folder that has both, unpacked, or copy all of it into one file."
            )
            raise ExternalFileError(msg)
        if not self._anywhere:
            msg = (
                f"'{self._label}' leads to another file, '{target}'. If you trust it: "
                f"dataset_h5('{self._path}', allow_external=True)."
            )
            raise ExternalFileError(msg)

    def check_sources(self, node: Any) -> None:
        """Judge the files that an open object takes its values from; HDF5 gives zeros for those that are missing."""
        if not isinstance(node, h5d.DatasetID):
            return
        # Neither opening the dataset nor this makes HDF5 look for a source; asking for the shape does.
        properties = node.get_create_plist()
        names, name = list[str](), os.fsdecode(h5i.get_name(node) or b"?").removeprefix("/")
        if properties.get_layout() == h5d.VIRTUAL:
            parts = {
                (properties.get_virtual_filename(number), properties.get_virtual_dsetname(number))
                for number in range(properties.get_virtual_count())
            }
            names = sorted({file for file, _ in parts})
            # Other datasets of this file may be put together from files in turn.
            for part in sorted(part for file, part in parts if file == "."):
                self.check(root := h5g.open(node, b"/"), part)
                self.check_sources(h5o.open(root, part.encode()))
        elif properties.get_layout() == h5d.CONTIGUOUS:
            names = [os.fsdecode(properties.get_external(n)[0]) for n in range(properties.get_external_count())]
        home = Path(os.fsdecode(h5f.get_name(node)))
        for one in names:
            if one == ".":
                continue
            self._check_leading(one)
            # HDF5 looks beside the file, and in the current folder.
            if not any(place.is_file() for place in (home.parent / one, Path(one), home.resolve().parent / one)):
                msg = (
                    f"{name} in '{self._label}' is put together from '{one}', which is not there; HDF5 would give "
                    "zeros for its values. Put all files where they were written, or copy the dataset into one file."
                )
                raise PackFormatError(msg)


def _parts(name: bytes) -> list[bytes]:
    """Return the names in a path, last first."""
    return [part for part in reversed(name.split(b"/")) if part not in (b"", b".")]


class _Confined:
    """What groups and files share: names are judged before h5py follows them."""

    id: Any
    reach: Reach

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, str):
            self.reach.check(self.id, name)
        node = super().__getitem__(name)  # type: ignore[misc]
        self.reach.check_sources(node.id)
        return ConfinedGroup(node.id, self.reach) if isinstance(node, h5py.Group) else node

    def get(self, name: str, default: Any = None, getclass: bool = False, getlink: bool = False) -> Any:
        """Return the object, its class or its link, as h5py does; `default` if there is none."""
        self.reach.check(self.id, name)
        return super().get(name, default, getclass, getlink)  # type: ignore[misc]

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str):
            self.reach.check(self.id, name)
        return bool(super().__contains__(name))  # type: ignore[misc]


class ConfinedGroup(_Confined, h5py.Group):  # type: ignore[misc]
    """A group whose names lead only to what its file may reach."""

    def __init__(self, bound: Any, reach: Reach) -> None:
        super().__init__(bound)
        self.reach = reach


class ConfinedFile(_Confined, h5py.File):  # type: ignore[misc]
    """A file, open for reading, whose names lead only to what it may reach."""

    beside: dict[str, Any]
    """Datasets of other files, by the names under which they are found in this one."""

    def __init__(self, file: Any, reach: Reach, *, locking: bool | None = None) -> None:
        """Open a path, or an object with `readinto` and `seek`."""
        super().__init__(file, "r", locking=locking)
        self.reach, self.beside = reach, {}

    def __getitem__(self, name: Any) -> Any:
        found = self.beside.get(name) if isinstance(name, str) else None
        return super().__getitem__(name) if found is None else found

    def __contains__(self, name: object) -> bool:
        return name in self.beside or super().__contains__(name)

    def close(self) -> None:
        """Close it, and the files beside it."""
        for found in self.beside.values():
            found.file.close()
        super().close()


def with_any_locking(opener: Callable[..., Any]) -> Any:
    """Return what `opener` opens with the default locking; if that is refused, without locking."""
    # With locking first, because HDF5 opens a file twice in one process only with the same setting, and the user's own
    # code has the default. Network file systems refuse locks, and so does a file that is being written.
    try:
        return opener()
    except OSError as error:
        if "lock" not in str(error):
            raise
        return opener(locking=False)
