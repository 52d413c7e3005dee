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
    """Which files an HDF5 file may lead to: those of its folder, all, or none."""

    def __init__(self, path: Path | None, label: str, *, anywhere: bool = False) -> None:
        """Take the file; `None` for bytes without a path, which lead to no other file. `anywhere`: any file is allowed.

        `label`: what messages call it.
        """
        self._path, self._label, self._anywhere = path, label, anywhere
        # Sources are shared and nested; each is checked once.
        self._sound: set[tuple[bytes, int]] = set()
        self._above: list[tuple[bytes, int]] = []

    def check(self, group: Any, name: str) -> bool:
        """Follow `name` from an open `GroupID` and judge every file on the way; return whether the name exists."""
        return self._follow(group, name.encode(errors="surrogateescape"), 0)

    def _follow(self, group: Any, name: bytes, links: int) -> bool:
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
            links += 1
            if links > _MAX_STEPS:
                msg = f"'{os.fsdecode(name)}' in '{self._label}' leads through more than {_MAX_STEPS} links."
                raise PackFormatError(msg)
            target = node.links.get_val(part)
            if kind == h5l.TYPE_EXTERNAL:
                with self._root_of(os.fsdecode(target[0]), node) as root:
                    # An external link's target is looked up from the root, however it is written.
                    rest = b"/".join([b"", target[1], *reversed(parts)])
                    return root is not None and self._follow(root, rest, links)
            parts += _parts(target)
            node = h5g.open(node, b"/") if target.startswith(b"/") else node
        self._check_sources(node)
        return True

    def _check_sources(self, node: Any) -> None:
        """Judge the files that an open object takes its values from."""
        if not isinstance(node, h5d.DatasetID):
            return
        # Neither opening the object nor this makes HDF5 look for a source; asking for the shape does.
        properties = node.get_create_plist()
        if properties.get_layout() == h5d.CONTIGUOUS and properties.get_external_count():
            self._check_storage(node, properties)
        if properties.get_layout() != h5d.VIRTUAL:
            return
        source = (h5f.get_name(node), h5o.get_info(node).addr)
        if source in self._above or len(self._above) > _MAX_STEPS:
            steps = len(self._above)
            msg = f"{_name_of(node)} in '{self._label}' is put together from itself, by way of {steps} others."
            raise PackFormatError(msg)
        if source not in self._sound:
            self._above.append(source)
            try:
                self._check_virtual(node, properties)
            finally:
                self._above.pop()
            self._sound.add(source)

    def _check_virtual(self, node: Any, properties: Any) -> None:
        names = (properties.get_virtual_filename, properties.get_virtual_dsetname)
        count = properties.get_virtual_count()
        # Each pair once, in order.
        for written, part in dict.fromkeys(tuple(name(number) for name in names) for number in range(count)):
            if any("%b" in name.replace("%%", "") for name in (written, part)):
                raise self._broken(node, f"is put together from files that it only numbers, '{written}'")
            file, part = written.replace("%%", "%"), part.replace("%%", "%")  # noqa: PLW2901
            with self._root_of(file, node) as root:
                if root is None:
                    raise self._broken(node, f"is put together from '{file}', which is not there")
                if not self.check(root, part):
                    raise self._broken(node, f"is put together from '{part}' in '{file}', which is not there")

    def _check_storage(self, node: Any, properties: Any) -> None:
        left = node.get_space().get_simple_extent_npoints() * node.get_type().get_size()
        for number in range(properties.get_external_count()):
            name, offset, size = properties.get_external(number)
            written = os.fsdecode(name)
            # Unlike the files of links and virtual sources, HDF5 looks for these in the current folder.
            there = self._judge(Path(written), written, node)
            # The last file may be unlimited, which h5py reports as a very large size.
            wanted = min(left, int(size))
            left -= wanted
            if there is None:
                raise self._broken(node, f"is in '{written}', which is not there")
            if there < int(offset) + wanted:
                raise self._broken(node, f"needs {int(offset) + wanted:,} bytes of '{written}', which has {there:,}")

    def _broken(self, node: Any, what: str) -> PackFormatError:
        return PackFormatError(
            f"{_name_of(node)} in '{self._label}' {what}; HDF5 would give zeros for its values. Put all files where "
            "they were written, or copy the dataset into one file."
        )

    @contextlib.contextmanager
    def _root_of(self, written: str, node: Any) -> Iterator[Any]:
        """Open the file that HDF5 would open for the name `written` in `node`'s file, and yield its root; `None` if
        there is none."""
        if written == ".":
            yield h5g.open(node, b"/")
            return
        if self._path is None:
            raise self._refusal(written)
        for place in _candidates(written, _home(node)):
            # If HDF5 cannot open a file in one place, it also tries the next.
            with contextlib.suppress(OSError):
                opener = functools.partial(h5py.File, place, "r")
                found = None if self._judge(place, written, node) is None else with_any_locking(opener)
                if found is not None:
                    break
        else:
            yield None
            return
        with found:
            yield found.id

    def _judge(self, place: Path, written: str, node: Any) -> int | None:
        """Return the length of a file that may be read; `None` if there is none."""
        if self._path is None:
            raise self._refusal(written)
        try:
            facts = place.stat()
        except (OSError, ValueError):
            return None
        if stat.S_ISDIR(facts.st_mode):
            return None
        # Opening a pipe would block, and a device does not belong to a dataset.
        if not stat.S_ISREG(facts.st_mode):
            msg = f"'{self._label}' leads to '{place}', which is not a regular file. Copy its values into one file."
            raise ExternalFileError(msg)
        is_full = Path(written).is_absolute()
        if not self._anywhere and not self._is_inside(place, node, is_full=is_full):
            raise self._refusal(str(place), by_full_path=is_full)
        return facts.st_size

    def _is_inside(self, place: Path, node: Any, *, is_full: bool) -> bool:
        assert self._path is not None
        found, home = place.resolve(), _home(node)
        # The folder may hold all of the user's files. A full path into it names a file that did not come with the
        # dataset, unless that is right beside this one, where writers use full paths for short ones.
        beside = {(folder / place.name).resolve() for folder in (home.parent, home.resolve().parent)}
        return found.is_relative_to(self._path.resolve().parent) and (not is_full or found in beside)

    def _refusal(self, target: str, *, by_full_path: bool = False) -> ExternalFileError:
        if self._path is None:
            return ExternalFileError(
                f"'{self._label}' leads to another file, '{target}', and files are found beside each other only in a "
                "folder. Stage the folder that has both, unpacked, or copy all of it into one file."
            )
        read = "only files in its own folder, and in folders below that, are read"
        if by_full_path:
            read = "by a full path only files beside it are read"
        return ExternalFileError(
            f"'{self._label}' leads to '{target}', which did not come with it: {read}. "
            f"If you trust the file: dataset_h5('{self._path}', allow_external=True)."
        )


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

    def get(self, name: str, default: Any = None, getclass: bool = False, getlink: bool = False) -> Any:
        """Return the object, its class or its link, as h5py does; `default` if there is none."""
        if getclass or getlink:
            self.reach.check(self.id, name)
            return super().get(name, default, getclass, getlink)  # type: ignore[misc]
        try:
            return self[name]
        except KeyError:
            return default

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

    beside: dict[str, tuple[ConfinedFile, str]]
    """The names that lead into other files, which close with this one, and the names there."""

    def __init__(self, file: Any, reach: Reach, *, locking: bool | None = None) -> None:
        """Open a path, or an object with `readinto` and `seek`."""
        super().__init__(file, "r", locking=locking)
        self.reach, self.beside = reach, {}

    def __getitem__(self, name: Any) -> Any:
        other, inner = self.beside.get(name, (None, name)) if isinstance(name, str) else (None, name)
        return super().__getitem__(inner) if other is None else other[inner]

    def get(self, name: str, default: Any = None, getclass: bool = False, getlink: bool = False) -> Any:
        """Return the object, its class or its link, as h5py does; `default` if there is none."""
        other, inner = self.beside.get(name, (None, name))
        if other is None:
            return super().get(name, default, getclass, getlink)
        return other.get(inner, default, getclass, getlink)

    def close(self) -> None:
        """Close it, and the files beside it."""
        for other, _ in self.beside.values():
            other.close()
        super().close()


def with_any_locking(opener: Callable[..., Any]) -> Any:
    """Return what `opener` opens with the default locking; if that is refused, without locking."""
    # Locks are tried first, because HDF5 opens a file twice in one process only with the same setting, and the user's
    # own code has the default. Network file systems refuse locks, and so does a file that is being written.
    for locking in (None, False):
        try:
            return opener(locking=locking)
        except OSError as error:
            if "lock" not in str(error):
                raise
    # The process may have the file open with `locking=True`, and HDF5 then accepts nothing else.
    return opener(locking=True)
