"""HDF5 files whose links, under any name, lead only to files in their own folder.

External links, virtual datasets and external storage name other files, and HDF5 opens whatever they name: a private key
read as samples, or a pipe that never answers. And it reads missing sources, or storage that is too short, as zeros. So
every name is followed here first, link by link, and every file on the way is judged before HDF5 opens it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
from h5py import h5d, h5f, h5g, h5i, h5l, h5o

from colabstage.errors import ExternalFileError, PackFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# As many links as HDF5 follows by default. Nobody nests virtual datasets that deep.
_MAX_STEPS = 16


class Reach:
    """Which files an HDF5 file may lead to: those of its folder and below, all, or none."""

    def __init__(self, path: Path | None, label: str, *, anywhere: bool = False) -> None:
        """Take the file; `None` for bytes without a path, which lead to no other file. `anywhere`: any file is allowed.

        `label`: what messages call it.
        """
        self._path, self._label, self._anywhere = path, label, anywhere

    def check(self, group: Any, name: str, steps: int = 0) -> bool:
        """Follow `name` from an open `GroupID` and judge every file on the way; return whether the name exists.

        `steps`: how many links, and virtual datasets, have led here.
        """
        return self._follow(group, name.encode(errors="surrogateescape"), steps)

    def _follow(self, group: Any, name: bytes, steps: int) -> bool:
        node = h5g.open(group, b"/") if name.startswith(b"/") else group
        parts = _parts(name)
        while parts:
            part = parts.pop()
            if not isinstance(node, h5g.GroupID) or not node.links.exists(part):
                return False
            kind = node.links.get_info(part).type
            if kind == h5l.TYPE_HARD:
                node = h5o.open(node, part)
                continue
            steps = self._step(steps, os.fsdecode(name))
            target = node.links.get_val(part)
            if kind == h5l.TYPE_EXTERNAL:
                with self._root_of(os.fsdecode(target[0]), node) as root:
                    # An external link's target is looked up from the root, however it is written.
                    rest = b"/".join([b"", target[1], *reversed(parts)])
                    return root is not None and self._follow(root, rest, steps)
            parts += _parts(target)
            node = h5g.open(node, b"/") if target.startswith(b"/") else node
        if isinstance(node, h5d.DatasetID):
            self._check_sources(node, steps)
        return True

    def _step(self, steps: int, name: str) -> int:
        if steps >= _MAX_STEPS:
            msg = f"'{name}' in '{self._label}' leads through more than {_MAX_STEPS} links."
            raise PackFormatError(msg)
        return steps + 1

    def _check_sources(self, node: Any, steps: int) -> None:
        """Judge the files that an open dataset takes its values from."""
        # Neither opening the dataset nor this makes HDF5 look for a source; asking for the shape does.
        properties = node.get_create_plist()
        name, remedy = _name_of(node), "Put all files where they were written, or copy the dataset into one file."
        if properties.get_layout() == h5d.CONTIGUOUS and properties.get_external_count():
            msg = f"{name} in '{self._label}' has its values in files without HDF5's form, which are not read. {remedy}"
            raise PackFormatError(msg)
        if properties.get_layout() != h5d.VIRTUAL:
            return
        steps = self._step(steps, name)
        names = (properties.get_virtual_filename, properties.get_virtual_dsetname)
        count = properties.get_virtual_count()
        # Each pair once, in order.
        for file, part in dict.fromkeys(tuple(name(number) for name in names) for number in range(count)):
            with self._root_of(file, node) as root:
                if root is None or not self.check(root, part, steps):
                    msg = (
                        f"{name} in '{self._label}' is put together from '{part}' in '{file}', which is not there; "
                        f"HDF5 would give zeros for its values. {remedy}"
                    )
                    raise PackFormatError(msg)

    @contextlib.contextmanager
    def _root_of(self, written: str, node: Any) -> Iterator[Any]:
        """Open the file that HDF5 would open for the name `written` in `node`'s file, and yield its root; `None` if
        there is none."""
        if written == ".":
            yield h5g.open(node, b"/")
            return
        for place in _candidates(written, _home(node)):
            # If HDF5 cannot open a file in one place, it also tries the next.
            with contextlib.suppress(OSError):
                opener = functools.partial(h5py.File, place, "r")
                found = with_any_locking(opener) if self._may_open(place) else None
                if found is not None:
                    break
        else:
            yield None
            return
        with found:
            yield found.id

    def _may_open(self, place: Path) -> bool:
        """Tell whether there is a file; one that must not be opened is refused."""
        if self._path is None:
            msg = (
                f"'{self._label}' leads to another file, '{place}', and files are found beside each other only in a "
                "folder. Stage the folder that has both, unpacked, or copy all of it into one file."
            )
            raise ExternalFileError(msg)
        try:
            facts = place.stat()
        except (OSError, ValueError):
            return False
        if stat.S_ISDIR(facts.st_mode):
            return False
        # Opening a pipe would block, and a device does not belong to a dataset.
        if not stat.S_ISREG(facts.st_mode):
            msg = f"'{self._label}' leads to '{place}', which is not a regular file. Copy its values into one file."
            raise ExternalFileError(msg)
        if not self._anywhere and not place.resolve().is_relative_to(self._path.resolve().parent):
            msg = (
                f"'{self._label}' leads to '{place}', which did not come with it: only files in its own folder, and in "
                f"folders below that, are read. If you trust the file: dataset_h5('{self._path}', allow_external=True)."
            )
            raise ExternalFileError(msg)
        return True


def _home(node: Any) -> Path:
    """Return the file that an open object is stored in."""
    return Path(os.fsdecode(h5f.get_name(node)))


def _name_of(node: Any) -> str:
    return os.fsdecode(h5i.get_name(node) or b"?").removeprefix("/")


def _candidates(written: str, home: Path) -> Iterator[Path]:
    """Return where HDF5 looks for another file, in HDF5's order."""
    given = Path(written)
    bare = Path(given.name) if given.is_absolute() else given
    if given.is_absolute():
        yield given
    yield from (home.parent / bare, bare, home.resolve().parent / bare)


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
        return ConfinedGroup(node.id, self.reach) if isinstance(node, h5py.Group) else node

    def get(self, name: str, *further: Any, **named: Any) -> Any:
        """Return the object, its class or its link, as h5py does."""
        self.reach.check(self.id, name)
        return super().get(name, *further, **named)  # type: ignore[misc]

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
