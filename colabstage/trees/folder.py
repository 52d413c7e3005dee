"""A folder as a tree: listed level by level by many threads, because on a mounted Drive every answer takes time."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
import threading
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, TypeVar

from colabstage.errors import SourceNotFoundError, SourceReadError
from colabstage.io.files import RetryPolicy, block_ranges, pread_exactly, read_with_retry
from colabstage.io.pipeline import DaemonPool
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.units import left_out
from colabstage.trees.ahead import ReadAhead
from colabstage.trees.entries import JUNK_FILES, FileEntries, Listing, is_junk, is_junk_folder, without_files
from colabstage.trees.tree import PIECE_BYTES, FileEntry, LocalBytes, Tree, count_by

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")

# Google's own document kinds: the mount lists them but answers "Operation not supported" to every read.
GOOGLE_NATIVE = (
    *(".gdoc", ".gsheet", ".gslides", ".gform", ".gdraw", ".gmap"),
    *(".gsite", ".gtable", ".gscript", ".gjam", ".glink"),
)
# Find in names, each between two slashes and all in lower case, what `_look_at_entry` may not take for a file of a
# dataset. Each begins with one mark that `re` can leap to: both in one pattern take twenty times as long.
_ODD_NAMES = re.compile(rf"/(?:\.|(?:{'|'.join(map(re.escape, sorted(JUNK_FILES)))})/)")
_ODD_ENDINGS = re.compile(rf"\.(?:{'|'.join(re.escape(kind.removeprefix('.')) for kind in GOOGLE_NATIVE)})/")
# One task of the pool looks up at most this many entries, so that its own cost (about 20 µs) vanishes.
_LOOK_BATCH = 256
# Entries of a folder by which its pace shows; the seconds for one above which it is that of round trips, of which
# several at once take no longer than one; and those below which nobody but the kernel is asked.
_FIRST_LOOKS, _SLOW_LOOK_S, _KERNEL_LOOK_S = 4, 0.001, 0.00005
# Folders that are listed before what is in them is put in its place: enough for every worker, and a bound on what of a
# listing is held as objects.
_LIST_FOLDERS = 512
# Longer than the slowest listing anybody reported from a Drive mount (20 s) with its retries.
_STALL_S = 300.0
# With O_NONBLOCK a file that turned into a FIFO after the listing cannot block the open.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

_Identity = tuple[int, int]


class _UnlistedFolder(NamedTuple):
    """A folder still to be listed."""

    name: str
    """Its name in the tree, "" for the root."""
    ancestors: frozenset[_Identity]
    """The folders above it."""
    through_link: bool
    """Whether a link leads to it; only then can it be one of its ancestors."""

    @property
    def prefix(self) -> str:
        """Return what is before the names of what is in it."""
        return f"{self.name}/" if self.name else ""


class _SeenEntry(NamedTuple):
    """What one entry of a folder turned out to be."""

    kind: Literal["file", "folder", "native", "broken", "left out"]
    """What it is; "native" is a document of Google's own kinds, "broken" a link that leads nowhere."""
    size: int = 0
    """Of a file, in bytes."""
    mtime_ns: int = 0
    """Of a file, in nanoseconds since 1970."""
    through_link: bool = False
    """Whether the entry is a link."""


class _Looked(NamedTuple):
    """What some entries of a folder are."""

    total: int
    """How many there are, junk included."""
    files: Listing
    """The files, in columns since there may be millions."""
    others: list[tuple[str, _SeenEntry]]
    """The few that are none, by name."""


class _ListedFolder(NamedTuple):
    """What one folder holds."""

    folder: _UnlistedFolder
    """Which folder it is."""
    mtime_ns: int
    """When something in it was last added, removed or renamed."""
    identity: _Identity
    """Device and inode, by which a loop is known."""
    looped: bool
    """Whether a link leads back to a folder that it is in."""
    entries: list[os.DirEntry[str]]
    """Those that nobody has looked at yet."""
    looked: list[_Looked]
    """Those that somebody has."""


@dataclass(slots=True)
class _WalkResult:
    """All that a walk brought home."""

    files: Listing = field(default_factory=Listing)
    """All regular files."""
    stamp: dict[str, tuple[int, int]] = field(default_factory=dict)
    """As `FolderTree.listing_stamp` gives it."""
    native: list[str] = field(default_factory=list)
    """Documents of Google's own kinds, by name."""
    broken: list[str] = field(default_factory=list)
    """Links that lead nowhere, by name."""
    looped: list[str] = field(default_factory=list)
    """Links back to a folder that they are in, by name."""
    own: list[str] = field(default_factory=list)
    """Folders that the caller had left out, by name."""


class FolderTree(Tree):
    """The files under a folder. Links to files and folders are followed, as torchvision does; loops are cut.

    The tree is listed when it is made and stays as it was then.

    Args:
        path: the folder.
        workers: how many folders are listed, or files looked up, at once. Some twenty are right for a Drive mount,
            where each answer takes 0.3 s and more; a local disk gains nothing from more than one.
        retry: how long a listing that fails is tried again.
        heard: called, in any thread, whenever a folder has been read: the disk or mount is slow, not dead.
        found: called, in any thread, with the paths of some files as soon as these are known to be there, while others
            are still looked for.
        before_read: called, in any thread, with the path of a file before anything of its content is read.
        ahead: extensions of files of which a few are read while others are listed, since who plans a pack asks for them
            next; for several workers. Others are read as ever.
        leave_out: names of folders in it that are no part of it, such as what colabstage made of it before.

    Raises:
        SourceNotFoundError: there is no such folder, or a part of it vanished while it was listed.
        SourceReadError: `path` is not a folder, or a listing failed for good.
        DriveDisconnectedError: the mount is dead.
    """

    kind = "folder"
    entries: FileEntries

    def __init__(
        self,
        path: Path,
        *,
        workers: int = 1,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        heard: Callable[[], object] = lambda: None,
        found: Callable[[Sequence[str]], object] | None = None,
        before_read: Callable[[str], object] | None = None,
        ahead: Collection[str] = (),
        leave_out: Collection[str] = (),
    ) -> None:
        # A string: a path object for each of a million files would cost more than reading its entry.
        self._root = os.fspath(path)
        self._before_read = before_read
        # When files were written of which a part has been read, by path.
        self._times: dict[str, int] = {}
        _check_root(self._root)
        self._ahead = ReadAhead(self._read, ahead) if ahead and workers > 1 else None
        try:
            with _Threads(workers) as threads:
                walk = _LevelWalk(self._root, threads, retry, heard, found)
                walked = walk.all_but(leave_out, self._ahead)
        except BaseException:
            self.drop_ahead()
            raise
        self.label = self._root
        self.entries = walked.files.by_name().entries
        self._stamp = walked.stamp
        notes = []
        if walked.native:
            kinds = count_by(Path(name).suffix.lower() for name in walked.native)
            notes.append(
                f"{left_out(len(walked.native), 'Google documents')} ({kinds}; first '{min(walked.native)}'): a "
                "mounted Drive cannot read them. Export them from Drive if they belong to the dataset."
            )
        if walked.broken:
            notes.append(f"{left_out(len(walked.broken), 'links', 'to nothing')} (first '{min(walked.broken)}').")
        if walked.looped:
            first = min(walked.looped)
            notes.append(f"{left_out(len(walked.looped), 'links', 'to a folder above')} (first '{first}').")
        if walked.own:
            named = ", ".join(f"'{name}'" for name in sorted(walked.own)[:3])
            notes.append(
                f"{left_out(len(walked.own), 'folders', 'in which colabstage keeps what it makes')} ({named})."
            )
        self.notes = tuple(notes)

    @property
    def empty_folders(self) -> tuple[str, ...]:
        """Return the folders that hold no file at any depth, by name."""
        # By the folders of files, which others ask for too, and not by each name again.
        return without_files(self._stamp, (f"{folder}/" for folder in self.entries.folders[0]))

    def listing_stamp(self) -> Mapping[str, tuple[int, int]]:
        """Return for every folder its time in ns and its number of entries."""
        return dict(self._stamp)

    def path_of(self, entry: FileEntry) -> Path:
        """Return where a file lies."""
        return Path(self._about_to_read(entry))

    def open(self, entry: FileEntry) -> FolderFile:
        """Return the bytes of one file, which takes a handle when it is first read."""
        return FolderFile(self.path_of(entry), entry.size, times=self._times)

    def read(self, entry: FileEntry) -> bytes:
        """Return the whole content of one file: one open, one read, one close.

        Raises:
            OSError: as the disk or mount answers.
            SourceReadError: the file is no longer `entry.size` bytes long.
        """
        found = None if self._ahead is None else self._ahead.take(entry)
        return self._read(entry) if found is None else found

    def drop_ahead(self) -> None:
        """Drop what was read ahead and nobody has asked for. Calling it twice is fine."""
        if self._ahead is not None:
            self._ahead.close()

    def close(self) -> None:
        """Drop what was read ahead; nothing else is held open."""
        self.drop_ahead()

    def _read(self, entry: FileEntry) -> bytes:
        handle = os.open(self._about_to_read(entry), _OPEN_FLAGS)
        try:
            # One byte more than listed: a longer file shows without a further call.
            data = os.read(handle, entry.size + 1)
            if len(data) < entry.size:
                # A read may give less than was asked for, as mounts do, and only nothing means the end.
                wanted = entry.size + 1
                parts = [data]
                got = len(data)
                while got < wanted and (part := os.read(handle, wanted - got)):
                    parts.append(part)
                    got += len(part)
                data = b"".join(parts)
        finally:
            os.close(handle)
        if len(data) != entry.size:
            raise _changed_while_read(self._root, entry, len(data))
        return data

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Yield the content of one file in pieces of at most 16 MiB; the file is open only while one is read.

        Raises:
            As `read`.
        """
        path = self._about_to_read(entry)
        # One byte more than listed: a longer file shows.
        for offset, length in block_ranges(entry.size + 1, PIECE_BYTES):
            handle = os.open(path, _OPEN_FLAGS)
            try:
                before = _written_ns(handle)
                data = pread_exactly(handle, length, offset)
                _check_time(path, handle, self._times.setdefault(path, before))
            finally:
                os.close(handle)
            if len(data) != min(length, entry.size - offset):
                raise _changed_while_read(self._root, entry, offset + len(data))
            if data:
                yield data

    def _about_to_read(self, entry: FileEntry) -> str:
        """Return where a file lies, once whoever wants to know of its reading has been told."""
        path = f"{self._root}/{entry.name}"
        if self._before_read is not None:
            self._before_read(path)
        return path


class FolderFile:
    """A file of a folder, of the size that was listed: opened when it is read, and again after `close`.

    `follow`: whether it may be a link. `times`: when files were written that have been opened, by path: those who read
    parts of one file share it, so that all parts are of one state.
    """

    def __init__(self, path: Path, size: int, *, follow: bool = True, times: dict[str, int] | None = None) -> None:
        self._path = path
        self._follow = follow
        self._times = {} if times is None else times
        self.label = str(path)
        self.size = size
        self._open: LocalBytes | None = None

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`.

        Raises:
            OSError: as the disk or mount answers.
            SourceReadError: the file is no longer as long as it was listed, or was written to.
        """
        # A name of this thread's own keeps the handle open while it reads, also when another one releases the file.
        file = self._open
        if file is None:
            file = LocalBytes(self._path, follow=self._follow)
            if file.size != self.size:
                msg = (
                    f"'{self._path}' was listed with {self.size:,} bytes and has {file.size:,} now: it changed while "
                    "being read. Wait until its upload or copy is complete, then stage again."
                )
                raise SourceReadError(msg)
            self._times.setdefault(self.label, _written_ns(file.fileno()))
            self._open = file
        data = file.pread(length, offset)
        _check_time(self.label, file.fileno(), self._times[self.label])
        return data

    def close(self) -> None:
        """Release the handle as soon as no thread reads from it. Calling it twice is fine."""
        self._open = None


def folder_stamps(
    path: Path, names: Iterable[str], *, workers: int = 1, heard: Callable[[], object] = lambda: None
) -> dict[str, int | None]:
    """Read again the modification times of folders of a tree, to see cheaply whether its listing may have changed.

    Args:
        path: the tree's folder.
        names: names of folders in it, as `FolderTree.listing_stamp` gives them.
        workers: how many are asked at once.
        heard: called, in any thread, whenever one has answered.

    Returns:
        For each name the time in ns, `None` where there is no such folder any more.

    Raises:
        OSError: as the disk or mount answers.
    """
    root = os.fspath(path)

    def one(name: str) -> int | None:
        try:
            return os.stat(_path_below(root, name)).st_mtime_ns  # noqa: PTH116  # names, not paths: thousands of them
        except (FileNotFoundError, NotADirectoryError):
            return None
        finally:
            heard()

    wanted = list(names)
    with _Threads(workers) as threads:
        return dict(zip(wanted, threads.list_each(one, wanted), strict=True))


def _written_ns(handle: int) -> int:
    return os.fstat(handle).st_mtime_ns


def _check_time(path: str, handle: int, written_ns: int) -> None:
    """Refuse a part of a file that was written to after another part of it was read, or while this one was.

    Its time in the listing is not compared: a mount may tell it in another precision.

    Raises:
        SourceReadError: it was.
    """
    if _written_ns(handle) != written_ns:
        msg = (
            f"'{path}' was written to while it was being read, so what was read is of two states. Wait until its "
            "upload or copy is complete, then try again."
        )
        raise SourceReadError(msg)


def _changed_while_read(root: str, entry: FileEntry, got: int) -> SourceReadError:
    found = f"{got:,} bytes were there" if got <= entry.size else "there is more"
    return SourceReadError(
        f"'{root}/{entry.name}' was listed with {entry.size:,} bytes, but {found}: it changed or was cut while being "
        "read. Wait until its upload or copy is complete, then stage again."
    )


def _check_root(root: str) -> None:
    try:
        is_folder = stat.S_ISDIR(os.stat(root).st_mode)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"There is no folder '{root}'."
        raise SourceNotFoundError(msg) from error
    except OSError:
        return  # A mount's bad day: the listing retries and says so.
    if not is_folder:
        msg = f"'{root}' is a file, not a folder."
        raise SourceReadError(msg)


def _path_below(root: str, name: str) -> str:
    return f"{root}/{name}" if name else root


class _Threads:
    """Threads that list, and as many that look at what was listed; for one worker none but the caller's.

    A look that waited for its turn behind folders to be listed would leave the mount with nothing to do but these.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._listers = DaemonPool(workers, "colabstage-list")
        self._lookers = DaemonPool(workers, "colabstage-look")

    @property
    def many(self) -> bool:
        """Return whether there are any."""
        return self.workers > 1

    def list_each(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call `function` with each item, and return the results in order; fails when nothing moves for `_STALL_S`."""
        if not self.many:
            return [function(item) for item in items]
        return self.results([self._listers.submit(functools.partial(function, item)) for item in items])

    def look(self, function: Callable[[], R]) -> Future[R]:
        """Have a call made by those that look."""
        return self._lookers.submit(function)

    def results(self, calls: Sequence[Future[R]]) -> list[R]:
        """Wait for calls, and return their results in order; fails when nothing moves for `_STALL_S`."""
        try:
            return DaemonPool.results(calls, stall_timeout_s=_STALL_S)
        except TimeoutError as error:
            if error.errno is not None:  # the mount's own answer
                raise
            msg = f"Listing made no progress for {_STALL_S:.0f} s. Mount the Drive again and run this once more."
            raise SourceReadError(msg) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for pool in (self._listers, self._lookers):
            pool.close(abandon=error is not None)


class _LevelWalk:
    """List one level of a tree after the other: some folders at once, and what they hold meanwhile."""

    def __init__(
        self,
        root: str,
        threads: _Threads,
        retry: RetryPolicy,
        heard: Callable[[], object],
        found: Callable[[Sequence[str]], object] | None,
    ) -> None:
        self._root = root
        self._threads = threads
        self._retry = retry
        self._heard = heard
        self._found = found
        self._ahead: ReadAhead | None = None
        self._chosen: Mapping[str, int] = {}
        self._turn = threading.Lock()

    def all_but(self, leave_out: Collection[str], ahead: ReadAhead | None) -> _WalkResult:
        """Return all that is there, but for folders of these names; `ahead` begins to read some of it."""
        self._ahead = ahead
        found = _WalkResult()
        level = [_UnlistedFolder("", frozenset(), through_link=False)]
        at_once = _LIST_FOLDERS if self._threads.many else 1
        while level:
            deeper: list[_UnlistedFolder] = []
            if self._ahead is not None:
                self._chosen = self._ahead.choose(folder.name for folder in level)
            for first in range(0, len(level), at_once):
                for listed in self._list_some(level[first : first + at_once]):
                    inside = _sort_folder(found, listed)
                    deeper += (folder for folder in inside if folder.name not in leave_out)
                    found.own += [folder.name for folder in inside if folder.name in leave_out]
            level = deeper
        return found

    def _list_some(self, folders: Sequence[_UnlistedFolder]) -> list[_ListedFolder]:
        """List some folders at once, those first of which files are read ahead; return them in their order."""
        chosen_first = sorted(folders, key=lambda folder: folder.name not in self._chosen)
        listed = {one.folder.name: one for one in self._threads.list_each(self._list, chosen_first)}
        return [listed[folder.name] for folder in folders]

    def _list(self, folder: _UnlistedFolder) -> _ListedFolder:
        """List one folder, and look at what is in it."""
        name = _path_below(self._root, folder.name)
        listed = read_with_retry(lambda: self._read(folder, name), name, policy=self._retry)
        self._heard()
        entries = listed.entries
        length = min(max(1, -(-len(entries) // (4 * self._threads.workers))), _LOOK_BATCH)
        batches = [entries[start : start + length] for start in range(0, len(entries), length)]
        looks = [self._threads.look(functools.partial(self._look_and_tell, folder, batch)) for batch in batches]
        # Each entry is to go when it has been looked at.
        entries.clear()
        listed.looked.extend(self._threads.results(looks))
        if self._ahead is not None and folder.name in self._chosen:
            self._ahead.start([some.files for some in listed.looked], self._chosen[folder.name])
        return listed

    def _read(self, folder: _UnlistedFolder, path: str) -> _ListedFolder:
        """Read one folder, and look at its entries meanwhile; among other threads, only until that proves slow."""
        # Asked before the listing: a change while the folder is being listed then shows in the stamp.
        status = os.stat(path)  # noqa: PTH116
        identity = (status.st_dev, status.st_ino)
        looped = folder.through_link and identity in folder.ancestors
        listed = _ListedFolder(folder, status.st_mtime_ns, identity, looped, [], [])
        if looped:
            return listed
        alone = not self._threads.many
        # Entries of an open folder are looked up in it; those of a path each from the root of the file system, but also
        # later and by others.
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if alone else None
        try:
            with os.scandir(path if handle is None else handle) as scan:
                count, look_s = _FIRST_LOOKS, _SLOW_LOOK_S
                # At once: a mount that tells sizes with the names keeps them for a second or less.
                while batch := list(islice(scan, count)):
                    # Where no look leaves the kernel, threads that look at the same time would only take Python's lock
                    # from each other, at each entry.
                    with self._turn if look_s < _KERNEL_LOOK_S and not alone else contextlib.nullcontext():
                        began = SYSTEM_CLOCK.now()
                        looked = self._look_at(folder, batch)
                        look_s = (SYSTEM_CLOCK.now() - began) / count
                    listed.looked.append(self._told(looked))
                    # On a mount that leaves them out each look is a round trip of its own.
                    if not alone and look_s > _SLOW_LOOK_S:
                        listed.entries.extend(scan)
                    count = _LOOK_BATCH
        finally:
            if handle is not None:
                os.close(handle)
        return listed

    def _look_and_tell(self, folder: _UnlistedFolder, entries: list[os.DirEntry[str]]) -> _Looked:
        return self._told(self._look_at(folder, entries))

    def _look_at(self, folder: _UnlistedFolder, entries: list[os.DirEntry[str]]) -> _Looked:
        """Look at each entry once, which empties the list; what they are is checked by all names at once, because
        nearly all are plain files."""
        prefix = folder.prefix
        looked = _Looked(len(entries), Listing(), [])
        names = [entry.name for entry in entries]
        named = f"/{'/'.join(names).lower()}/"
        odd_names = _ODD_NAMES.search(named) is not None or _ODD_ENDINGS.search(named) is not None
        odd: list[os.DirEntry[str]] = []
        sizes: list[int] = []
        times: list[int] = []
        for entry in entries:
            try:
                if odd_names or not entry.is_file(follow_symlinks=False):
                    odd.append(entry)
                    continue
                found = entry.stat()
            except OSError:
                odd.append(entry)
                continue
            sizes.append(found.st_size)
            times.append(found.st_mtime_ns)
        # An entry that was looked at holds nearly a kilobyte, and there may be millions.
        entries.clear()
        if odd:
            others = {entry.name for entry in odd}
            names = [name for name in names if name not in others]
        looked.files.add_all(prefix, names, sizes, times)
        for entry in odd:
            path = f"{self._root}/{prefix}{entry.name}"
            seen = read_with_retry(functools.partial(_look_at_entry, entry), path, policy=self._retry)
            if seen.kind == "file":
                looked.files.add_all(prefix, [entry.name], [seen.size], [seen.mtime_ns])
            elif seen.kind != "left out":
                looked.others.append((prefix + entry.name, seen))
        return looked

    def _told(self, looked: _Looked) -> _Looked:
        """Tell of the files that are now known to be there."""
        if self._found is not None:
            self._found([f"{self._root}/{name}" for name in looked.files.names])
        return looked


def _look_at_entry(entry: os.DirEntry[str]) -> _SeenEntry:
    linked = entry.is_symlink()
    try:
        if entry.is_dir():
            return _SeenEntry("left out" if is_junk_folder(entry.name) else "folder", through_link=linked)
        if is_junk(entry.name):
            return _SeenEntry("left out")
        if entry.name.lower().endswith(GOOGLE_NATIVE):
            return _SeenEntry("native")
        status = entry.stat()
    except OSError as error:
        if linked and error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
            return _SeenEntry("broken")
        raise
    if not stat.S_ISREG(status.st_mode):
        return _SeenEntry("left out")
    return _SeenEntry("file", status.st_size, status.st_mtime_ns)


def _sort_folder(found: _WalkResult, listed: _ListedFolder) -> list[_UnlistedFolder]:
    """Put what was seen in a folder where it belongs; returns the folders in it."""
    folder = listed.folder
    if listed.looped:
        found.looped.append(folder.name)
        return []
    found.stamp[folder.name] = (listed.mtime_ns, sum(some.total for some in listed.looked))
    ancestors = folder.ancestors | {listed.identity}
    inside: list[_UnlistedFolder] = []
    for some in listed.looked:
        found.files.extend(some.files)
        for name, (kind, _, _, through_link) in some.others:
            if kind == "folder":
                inside.append(_UnlistedFolder(name, ancestors, through_link))
            else:
                (found.native if kind == "native" else found.broken).append(name)
    return inside
