"""A folder as a tree: listed level by level by many threads, because on a mounted Drive every response takes time."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from array import array
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from colabstage.errors import SourceChangedError, SourceReadError
from colabstage.io.files import hash_block, pread_exactly, read_with_retry
from colabstage.io.pipeline import DaemonPool
from colabstage.io.units import left_out
from colabstage.trees.bytes import LocalBytes
from colabstage.trees.listing import (
    FileEntries,
    FileEntry,
    FileStates,
    Tree,
    count_by,
    hash_rows,
    hash_texts,
    sorted_by_name,
)
from colabstage.trees.names import JUNK_FILES, is_junk, is_junk_folder, without_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")
R = TypeVar("R")

# Google's own document kinds: the mount lists them but fails every read with "Operation not supported".
GOOGLE_NATIVE = (
    *(".gdoc", ".gsheet", ".gslides", ".gform", ".gdraw", ".gmap"),
    *(".gsite", ".gtable", ".gscript", ".gjam", ".glink"),
)
# What names end in that may not be files of a dataset.
_ODD_ENDINGS = (*GOOGLE_NATIVE, *JUNK_FILES)
# How many entries are looked up together: on a mount, where each may be a round trip, few enough that others are looked
# up at the same time, and enough that the cost of a task (about 20 µs) does not matter.
_LOOKS, _SLOW_LOOKS = 256, 8
# Longer than the slowest reported listing of a Drive mount (20 s) with its retries.
_STALL_S = 300.0
# With O_NONBLOCK a file that turned into a FIFO after the listing cannot block the open.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

_Identity = tuple[int, int]
_64_BITS = 2**64 - 1


class FolderTree(Tree):
    """The files under a folder. Links to files and folders are followed, as torchvision does; loops are cut.

    The tree is listed when it is made and stays as it was then.

    Args:
        workers: how many folders are listed, or files looked up, at once: some twenty for a Drive mount.
        on_response: called, in any thread, whenever a folder has been read: the disk or mount is slow, not dead.
        found: called, in any thread, with the paths of some files as soon as these are known to exist.
        before_read: called, in any thread, with the path of a file before anything of its content is read.
        leave_out: names of folders in it that are no part of it, such as what colabstage made of it before.
        mounts: names of folders in it that something slow is mounted at, which are left out with a note.
        md5s: returns the MD5 of each of some paths, "" for one that its client does not report; for a folder on Google
            Drive, where times count to the second.
        keeps_inodes: whether a file keeps its inode for as long as it is there, as on a local disk.
    """

    kind = "folder"

    def __init__(
        self,
        path: Path,
        *,
        workers: int = 1,
        on_response: Callable[[], object] = lambda: None,
        found: Callable[[Sequence[str]], object] | None = None,
        before_read: Callable[[str], object] | None = None,
        leave_out: Collection[str] = (),
        mounts: Collection[str] = (),
        md5s: Callable[[Sequence[str]], Sequence[str]] | None = None,
        keeps_inodes: bool = False,
    ) -> None:
        # A string, because a path object for each of a million files would cost more than reading its entry.
        self._root = self.label = os.fspath(path)
        self._before_read = before_read
        self._md5s = md5s
        # The modification times of files that have been partly read, by path.
        self._times: dict[str, int] = {}
        with _threads(workers) as listers, _threads(workers) as lookers:
            walk = _Walk(self._root, listers, lookers, on_response, found)
            walk.list_all_but({**dict.fromkeys(mounts, "mount"), **dict.fromkeys(leave_out, "own")})
        facts = np.array(walk.files.facts, np.uint64).reshape(-1, 4).T
        names, (sizes, times_ns, inodes, changed_ns), order = sorted_by_name(walk.files.names, *facts)
        # A hash of the file's inode and of when it was last written to, renamed or given another time.
        self._marks = hash_rows(inodes, changed_ns) if keeps_inodes else None
        self._inodes = inodes if keeps_inodes else None
        executable = np.zeros(len(names), np.bool_)
        self.entries = FileEntries(names, sizes.view(np.int64), times_ns.view(np.int64), order, executable)
        self._stamp = walk.stamp
        self.empty_folders = without_files(self._stamp, (f"{folder}/" for folder in walk.with_files))
        self.notes = tuple(_notes(walk.files.left_out))
        self.dangling = tuple(sorted(name for kind, name in walk.files.left_out if kind == "broken"))

    @property
    def paths(self) -> list[str]:
        return [f"{self.label}/{name}" for name in self.entries.names]

    def listing_stamp(self) -> Mapping[str, tuple[int, int]]:
        return dict(self._stamp)

    def file_states(self) -> FileStates:
        names, times_ns = self.entries.names, self.entries.mtimes_ns
        if self._md5s is None:
            # Tools give a new file the time of the one it replaces, and archives give all files one time.
            marks = np.zeros_like(times_ns) if self._marks is None else self._marks
            return FileStates(np.zeros(len(names), np.uint64), hash_rows(marks, times_ns))
        md5s = self._md5s([f"{self._root}/{name}" for name in names])
        return FileStates(hash_texts(md5s), hash_rows(times_ns // 1_000_000_000))

    @property
    def inodes(self) -> str:
        return "" if self._inodes is None else hash_block(self._inodes.tobytes())

    def mark_of(self, entry: FileEntry) -> str:
        place = self.entries.find(entry)
        return "" if self._marks is None or place is None else str(self._marks[place])

    def path_of(self, entry: FileEntry) -> Path:
        return Path(self._about_to_read(entry))

    def open(self, entry: FileEntry) -> FolderFile:
        """Return the bytes of one file, which is opened when first read."""
        return FolderFile(self.path_of(entry), entry.size, times=self._times)

    def read(self, entry: FileEntry) -> bytes:
        path = self._about_to_read(entry)
        handle = os.open(path, _OPEN_FLAGS)
        try:
            # One byte more than listed, so that a longer file shows without a further call.
            data = os.read(handle, entry.size + 1)
            if len(data) < entry.size:
                # A read may return less than requested, as on mounts; only an empty one means the end.
                data += pread_exactly(handle, entry.size + 1 - len(data), len(data))
        finally:
            os.close(handle)
        if len(data) != entry.size:
            raise _changed_error(path, entry.size)
        return data

    def _about_to_read(self, entry: FileEntry) -> str:
        """Return where a file is, after calling `before_read`."""
        path = f"{self._root}/{entry.name}"
        if self._before_read is not None:
            self._before_read(path)
        return path


class FolderFile:
    """A file of a folder, with the listed size: opened when first read, and again after `close`. `times`: the
    modification times of opened files, by path: readers of parts of one file share it, so that all parts are of one
    state."""

    def __init__(self, path: Path, size: int, *, follow: bool = True, times: dict[str, int] | None = None) -> None:
        self._path = path
        self._follow = follow
        self._times = {} if times is None else times
        self.label = str(path)
        self.size = size
        self._open: LocalBytes | None = None

    def pread(self, length: int, offset: int) -> bytes:
        # This thread's own reference keeps the handle open while it reads, even if another thread releases the file.
        file = self._open
        if file is None:
            file = LocalBytes(self._path, follow=self._follow)
            if file.size != self.size:
                raise _changed_error(self.label, self.size)
            self._times.setdefault(self.label, os.fstat(file.fileno()).st_mtime_ns)
            self._open = file
        data = file.pread(length, offset)
        # The listed time is not compared, because a mount may report it in another precision.
        if os.fstat(file.fileno()).st_mtime_ns != self._times[self.label]:
            raise _changed_error(self.label, self.size)
        return data

    def close(self) -> None:
        """Release the handle as soon as no thread reads from it. Calling it twice is fine."""
        self._open = None


def _changed_error(path: str, size: int) -> SourceChangedError:
    return SourceChangedError(
        f"'{path}' was listed with {size:,} bytes, and was written to or cut since. Wait until its upload or copy is "
        "complete, then stage again."
    )


def folder_stamps(
    path: Path, names: Iterable[str], *, workers: int, on_response: Callable[[], object]
) -> dict[str, int | None]:
    """Return the modification times in ns of folders in a tree's folder, named as in `FolderTree.listing_stamp`; `None`
    for one that no longer exists. `on_response`: called, in any thread, whenever one of `workers` has read one."""
    root, wanted = os.fspath(path), list(names)

    def one(name: str) -> int | None:
        try:
            return os.stat(_path_below(root, name)).st_mtime_ns  # noqa: PTH116  # names, not paths: thousands of them
        except (FileNotFoundError, NotADirectoryError):
            return None
        finally:
            on_response()

    with _threads(workers) as pool:
        return dict(zip(wanted, _at_once(one, wanted, pool), strict=True))


def _threads(workers: int) -> DaemonPool | contextlib.nullcontext[None]:
    return DaemonPool(workers, "colabstage-list") if workers > 1 else contextlib.nullcontext()


def _at_once(function: Callable[[T], R], items: Sequence[T], pool: DaemonPool | None) -> list[R]:
    """Call `function` with each item, and return the results in their order."""
    if pool is None:
        return [function(item) for item in items]
    return _results([pool.submit(partial(function, item)) for item in items])


def _results(calls: Sequence[Future[R]]) -> list[R]:
    try:
        return DaemonPool.results(calls, stall_timeout_s=_STALL_S)
    except TimeoutError as error:
        if error.errno is not None:  # the mount's own error
            raise
        msg = f"Listing made no progress for {_STALL_S:.0f} s. Mount the Drive again and run this once more."
        raise SourceReadError(msg) from error


def _path_below(root: str, name: str) -> str:
    return f"{root}/{name}" if name else root


class _Folder(NamedTuple):
    """A folder that was found and must still be listed."""

    name: str
    """Its name in the tree, "" for the root."""
    ancestors: frozenset[_Identity]
    """The folders above it, by device and inode."""
    through_link: bool
    """Whether a link leads to it; only then can it be one of its ancestors."""


@dataclass(slots=True)
class _Found:
    """The kinds and sizes of some entries of a folder. Files are in columns, because there may be millions."""

    total: int = 0
    """The number of entries, including junk."""
    names: list[str] = field(default_factory=list)
    facts: array[int] = field(default_factory=lambda: array("Q"))
    """For each file: its size, when its content was written, its inode, and when anything about it was changed."""
    folders: list[tuple[str, bool]] = field(default_factory=list)
    """With whether a link leads there."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """The kind and name of entries that are not files of the tree but may be missed."""

    def add_file(self, name: str, status: os.stat_result) -> None:
        self.names.append(name)
        # A time before 1970 is negative.
        times_ns = status.st_mtime_ns & _64_BITS, status.st_ctime_ns & _64_BITS
        self.facts.extend((status.st_size, times_ns[0], status.st_ino, times_ns[1]))

    def add(self, other: _Found) -> None:
        self.total += other.total
        self.names += other.names
        self.facts += other.facts
        self.folders += other.folders
        self.left_out += other.left_out


def _notes(left_out_names: list[tuple[str, str]]) -> Iterator[str]:
    """Yield a sentence about each kind of entry that was left out and may be missed."""
    left: dict[str, list[str]] = {}
    for kind, name in sorted(left_out_names):
        left.setdefault(kind, []).append(name)
    if native := left.get("native"):
        kinds = count_by(Path(name).suffix.lower() for name in native)
        yield (
            f"{left_out(len(native), 'Google documents')} ({kinds}; first '{native[0]}'): a mounted Drive cannot "
            "read them. Export them from Drive if they belong to the dataset."
        )
    for kind, where in (("broken", "to nothing"), ("looped", "to a folder above")):
        if names := left.get(kind):
            yield f"{left_out(len(names), 'links', where)} (first '{names[0]}')."
    if names := left.get("mount"):
        left_names = left_out(len(names), "folders", "at which something else is mounted")
        named = ", ".join(f"'{name}'" for name in names[:3])
        yield f"{left_names} ({named}): give them as sources of their own if they belong to it."


class _Listed(NamedTuple):
    mtime_ns: int
    identity: _Identity
    """Device and inode, which identify a loop."""
    found: _Found
    looks: list[Future[_Found]]
    """What is looked up by others."""


class _Walk:
    """Lists one level of a tree after the other: as many folders at once as there are workers."""

    def __init__(
        self,
        root: str,
        listers: DaemonPool | None,
        lookers: DaemonPool | None,
        on_response: Callable[[], object],
        on_files: Callable[[Sequence[str]], object] | None,
    ) -> None:
        self._root, self._listers, self._lookers = root, listers, lookers
        self._on_response, self._on_files = on_response, on_files
        self.files = _Found()
        self.stamp: dict[str, tuple[int, int]] = {}
        self.with_files: list[str] = []

    def list_all_but(self, leave_out: Mapping[str, str]) -> None:
        """List all folders except those with these names, which map to the kind of their note."""
        level = [_Folder("", frozenset(), through_link=False)]
        while level:
            below: list[_Folder] = []
            for folder, listed in zip(level, _at_once(self._list, level, self._listers), strict=True):
                if listed is None:
                    self.files.left_out.append(("looped", folder.name))
                    continue
                for more in _results(listed.looks):
                    listed.found.add(more)
                self.stamp[folder.name] = (listed.mtime_ns, listed.found.total)
                ancestors = folder.ancestors | {listed.identity}
                for name, linked in listed.found.folders:
                    if name in leave_out:
                        self.files.left_out.append((leave_out[name], name))
                    else:
                        below.append(_Folder(name, ancestors, linked))
                listed.found.folders.clear()
                if listed.found.names:
                    self.with_files.append(folder.name)
                self.files.add(listed.found)
            level = below

    def _list(self, folder: _Folder) -> _Listed | None:
        """List one folder, and look up its entries; `None` if a link leads back to one of its own ancestors."""
        path = _path_below(self._root, folder.name)
        listed = read_with_retry(lambda: self._read(folder, path), path)
        self._on_response()
        return listed

    def _read(self, folder: _Folder, path: str) -> _Listed | None:
        # Before the listing, so that a change while the folder is being listed shows in the stamp.
        status = os.stat(path)  # noqa: PTH116
        identity = (status.st_dev, status.st_ino)
        if folder.through_link and identity in folder.ancestors:
            return None
        found, looks, length = _Found(), list[Future[_Found]](), _LOOKS if self._lookers is None else _SLOW_LOOKS
        with os.scandir(path) as scan:
            # At once: a mount that returns sizes with the names caches them for a second or less.
            while batch := list(islice(scan, length)):
                if self._lookers is None:
                    found.add(self._look_at(folder, batch))
                else:
                    # By other threads: lookups that waited behind folders would all be left for the end.
                    looks.append(self._lookers.submit(partial(self._look_at, folder, batch)))
        return _Listed(status.st_mtime_ns, identity, found, looks)

    def _look_at(self, folder: _Folder, entries: list[os.DirEntry[str]]) -> _Found:
        """Look up each entry, which empties the list."""
        prefix, found = f"{folder.name}/" if folder.name else "", _Found(len(entries))
        for entry in entries:
            base, name = entry.name, prefix + entry.name
            # Nearly all are plain files, of which no more is asked.
            is_odd = base[0] == "." or base.lower().endswith(_ODD_ENDINGS)
            try:
                if not is_odd and entry.is_file(follow_symlinks=False):
                    found.add_file(name, entry.stat())
                else:
                    _look_at(entry, name, found)
            except OSError:
                read_with_retry(partial(_look_at, entry, name, found), f"{self._root}/{name}")
        # An entry holds nearly a kilobyte once it is looked up, and there may be millions.
        entries.clear()
        if self._on_files is not None:
            self._on_files([f"{self._root}/{name}" for name in found.names])
        return found


def _look_at(entry: os.DirEntry[str], name: str, found: _Found) -> None:
    """Find out what an entry is; junk, pipes and sockets are left out."""
    base, linked = entry.name, entry.is_symlink()
    try:
        if entry.is_dir():
            if not is_junk_folder(base):
                found.folders.append((name, linked))
        elif is_junk(base):
            return
        elif base.lower().endswith(GOOGLE_NATIVE):
            found.left_out.append(("native", name))
        elif stat.S_ISREG((status := entry.stat()).st_mode):
            found.add_file(name, status)
    except OSError as error:
        if not linked or error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
            raise
        found.left_out.append(("broken", name))
