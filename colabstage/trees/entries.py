"""The files of a tree in columns, some forty bytes for each where objects take three hundred; and what they may be.

Layouts see a sequence of `FileEntry`, each created on demand. Names are a `StringArray`.

The safety rules for what an archive may contain (names, links and amounts) are checked by the headers alone, before a
single member is read or written. A name that breaks a rule refuses the whole archive: skipping the one member would
hand over a dataset that is not the one its author packed.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from colabstage.errors import UnsafeArchiveError
from colabstage.io.given import show_content
from colabstage.io.units import format_bytes
from colabstage.io.workspace import is_our_name
from colabstage.trees.strings import StringArray, StringColumn, first_repeated, folders_of, narrowed
from colabstage.trees.tree import FileEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from numpy.typing import NDArray


# Entries that are created together while iterating.
_PAGE_ENTRIES = 1024
# With its dot. Longer endings are never asked for (".tfrecord-00000-of-00008").
_LONGEST_EXTENSION = 10
_TIME_END_NS = 1 << 63


@dataclass(frozen=True)
class _FactColumns:
    """Facts of M files."""

    names: StringArray
    """In the order of the other columns."""
    sizes: NDArray[Any]
    """As `FileEntry.size`, `(M,)` like all that follow."""
    mtimes_ns: NDArray[Any]
    """As `FileEntry.mtime_ns`."""
    positions: NDArray[Any]
    """As `FileEntry.position`."""
    executable: NDArray[Any]
    """As `FileEntry.executable`."""
    places: NDArray[Any] | None
    """The place of each in its tree; `None` where that is its number here."""

    # Computed once, because every layout asks for its own extensions, and most look at the folders.

    @cached_property
    def folders(self) -> tuple[list[str], NDArray[Any]]:
        """Return the folders that hold the files, "" for the root, and the number of each file's, `(M,)`."""
        return folders_of(self.names)

    @cached_property
    def endings(self) -> tuple[list[str], NDArray[Any]]:
        """Return what follows the last dots of the bare names, with the dot, and the number of each file's, `(M,)`."""
        dots, lengths = self.names.last_of(b"."), self.names.lengths
        return self.names.parts(np.where(dots > self.names.last_of(b"/"), dots, lengths), lengths)


def extension_of(name: str) -> str:
    """Return a name's extension in lower case, with its dot; "" where it has none, or a number in its place."""
    end = name[name.rfind(".") + 1 :]
    if len(end) >= min(_LONGEST_EXTENSION, len(name)) or not end.isalnum() or end.isdecimal():
        return ""
    return f".{end.lower()}"


class FileEntries(Sequence[FileEntry]):
    """N files of a tree: all, or some in any order. Immutable; equal to any sequence of the same entries."""

    __slots__ = ("_columns", "_rows", "names")

    def __init__(self, columns: _FactColumns, rows: NDArray[Any] | None = None) -> None:
        """Take columns, or `rows` of them; call `of`, `where` or `take`."""
        self._columns = columns
        self._rows = rows
        self.names = columns.names if rows is None else columns.names.take(rows)

    @classmethod
    def of(cls, entries: Iterable[FileEntry]) -> FileEntries:
        """Return the entries of an iterable, in its order."""
        if isinstance(entries, FileEntries):
            return entries
        listing = Listing()
        places = array("q")
        for entry in entries:
            listing.add(entry.name, entry.size, entry.mtime_ns, entry.position, executable=entry.executable)
            places.append(entry.place)
        return listing.entries(places=narrowed(np.array(places, np.int64)))

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> FileEntry: ...
    @overload
    def __getitem__(self, index: slice) -> FileEntries: ...

    def __getitem__(self, index: int | slice) -> FileEntry | FileEntries:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        facts = self._columns
        row = range(len(facts.names))[index] if self._rows is None else int(self._rows[index])
        return FileEntry(
            facts.names[row],
            facts.sizes.item(row),
            facts.mtimes_ns.item(row),
            facts.positions.item(row),
            facts.executable.item(row),
            row if facts.places is None else facts.places.item(row),
        )

    def __iter__(self) -> Iterator[FileEntry]:
        facts = self._columns
        for first in range(0, len(self), _PAGE_ENTRIES):
            page = slice(first, min(first + _PAGE_ENTRIES, len(self)))
            rows = np.arange(page.start, page.stop) if self._rows is None else self._rows[page]
            columns = (facts.sizes, facts.mtimes_ns, facts.positions, facts.executable)
            values = [column[rows].tolist() for column in columns]
            places = (rows if facts.places is None else facts.places[rows]).tolist()
            yield from map(FileEntry, self.names[page], *values, places)

    def take(self, rows: NDArray[Any]) -> FileEntries:
        """Return some of them, in the order of `rows`, sharing the columns."""
        rows = rows if self._rows is None else self._rows[rows]
        count = len(self._columns.names)
        # All of them in order are the entries themselves, so that a layout which keeps every file holds nothing twice.
        if len(rows) == count and np.array_equal(rows, np.arange(count)):
            return self if self._rows is None else FileEntries(self._columns)
        return FileEntries(self._columns, narrowed(rows))

    def where(self, fits: Callable[[str], bool]) -> FileEntries:
        """Return those whose names fit, in the same order."""
        return self.take(np.flatnonzero(np.fromiter(map(fits, self.names), np.bool_, len(self))))

    def ending_in(self, extensions: Collection[str]) -> FileEntries:
        """Return those with one of these extensions, as `extension_of` has them, in the same order."""
        return self.take(np.flatnonzero(self._end_in(extensions)))

    def not_ending_in(self, extensions: Collection[str]) -> FileEntries:
        """Return all others than `ending_in`."""
        return self.take(np.flatnonzero(~self._end_in(extensions)))

    def _end_in(self, extensions: Collection[str]) -> NDArray[np.bool_]:
        endings, of_files = self._columns.endings
        fits = np.array([extension_of(ending) in extensions for ending in endings], np.bool_)
        own: NDArray[np.bool_] = fits[of_files if self._rows is None else of_files[self._rows]]
        return own

    @property
    def folders(self) -> tuple[list[str], NDArray[Any]]:
        """Return the folders that hold the files, "" for the root, the first that occurs first; and the number of each
        file's, `(N,)`."""
        return self._used(*self._columns.folders)

    @property
    def endings(self) -> tuple[list[str], NDArray[Any]]:
        """Return what follows the last dots of the bare names (".JPG"; "" where there is none), and the number of each
        file's, `(N,)`."""
        return self._used(*self._columns.endings)

    def _used(self, texts: list[str], of_files: NDArray[Any]) -> tuple[list[str], NDArray[Any]]:
        if self._rows is None:
            return texts, of_files
        own = of_files[self._rows]
        used, first, numbers = np.unique(own, return_index=True, return_inverse=True)
        order = np.argsort(first)
        turns = np.empty(len(used), np.int64)
        turns[order] = np.arange(len(used))
        return [texts[number] for number in used[order].tolist()], turns[numbers.reshape(-1)]

    def in_folders(self, fits: Callable[[str], bool]) -> FileEntries:
        """Return those in folders whose names fit, in the same order."""
        folders, of_files = self.folders
        return self.take(np.flatnonzero(np.array([fits(folder) for folder in folders], np.bool_)[of_files]))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return int64 `(N,)`, a new array: lengths in bytes."""
        return self._int64(self._columns.sizes)

    @property
    def mtimes_ns(self) -> NDArray[np.int64]:
        """Return int64 `(N,)`, a new array: when they were last written, in ns."""
        return self._int64(self._columns.mtimes_ns)

    @property
    def positions(self) -> NDArray[np.int64]:
        """Return int64 `(N,)`, a new array: where the medium has them."""
        return self._int64(self._columns.positions)

    def _int64(self, column: NDArray[Any]) -> NDArray[np.int64]:
        return (column if self._rows is None else column[self._rows]).astype(np.int64)

    def find(self, entry: FileEntry) -> int | None:
        """Return the number of an entry, by its name; `None` where it is missing. Only where names ascend."""
        # Entries of this very listing know their number.
        if 0 <= entry.place < len(self) and self.names[entry.place] == entry.name:
            return entry.place
        at = bisect_left(self.names, entry.name)
        return at if at < len(self) and self.names[at] == entry.name else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(own == entry for own, entry in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none either

    def __repr__(self) -> str:
        return f"FileEntries({self.names!r})"


def files_ending_in(entries: Sequence[FileEntry], extensions: tuple[str, ...]) -> FileEntries:
    """Return those of a tree's entries with one of these extensions (".jpg"; "" for none), in the same order, without
    an object for each. Names are looked at once, however often it is asked."""
    return FileEntries.of(entries).ending_in(extensions)


def total_size(entries: Sequence[FileEntry]) -> int:
    """Return the length of all files together in bytes."""
    # In Python's whole numbers: sums of what some archives claim do not fit 64 bits.
    return sum(FileEntries.of(entries).sizes.tolist())


def entry_names(entries: Sequence[FileEntry]) -> Iterable[str]:
    """Return the names of entries, in their order, without an object for each."""
    return entries.names if isinstance(entries, FileEntries) else (entry.name for entry in entries)


def _kept_time(mtime_ns: int) -> int:
    """Return a time as it is stored; 0 where it does not fit."""
    # A disk may have times after 2262, which 64 bits of nanoseconds cannot hold.
    return mtime_ns if -_TIME_END_NS <= mtime_ns < _TIME_END_NS else 0


class SortedListing(NamedTuple):
    """The files of a listing, sorted by name."""

    entries: FileEntries
    """The files."""
    order: NDArray[Any]
    """`(N,)`, when each of `entries` was added, or which row of the columns is its own."""


class Listing:
    """Files as they are found, to become `FileEntries`."""

    def __init__(self) -> None:
        self._names = StringColumn()
        self._sizes = array("q")
        self._mtimes_ns = array("q")
        self._positions = array("q")
        self._executable = bytearray()

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, name: str, size: int, mtime_ns: int, position: int, *, executable: bool = False) -> None:
        """Append a file; the arguments are those of `FileEntry`."""
        self._names.add(name)
        self._sizes.append(size)
        self._mtimes_ns.append(_kept_time(mtime_ns))
        self._positions.append(position)
        self._executable.append(executable)

    def add_all(self, prefix: str, bases: Sequence[str], sizes: Sequence[int], mtimes_ns: Sequence[int]) -> None:
        """Append the files of one folder, each in the next position.

        `prefix`: what precedes each of the names `bases`, "" or the folder with its slash.
        """
        self._names.add_all(prefix, bases)
        self._add_positions(len(bases))
        # Numbers of a list are taken one by one when an array is extended, and three times as fast when it is made.
        self._sizes.extend(array("q", sizes))
        try:
            times = array("q", mtimes_ns)
        except OverflowError:
            times = array("q", map(_kept_time, mtimes_ns))
        self._mtimes_ns.extend(times)
        self._executable += bytes(len(bases))

    def extend(self, other: Listing) -> None:
        """Append the files of another listing, each in the next position."""
        self._names.extend(other._names)
        self._add_positions(len(other))
        self._sizes.extend(other._sizes)
        self._mtimes_ns.extend(other._mtimes_ns)
        self._executable.extend(other._executable)

    def _add_positions(self, count: int) -> None:
        first = len(self._positions)
        self._positions.frombytes(np.arange(first, first + count, dtype=np.int64).tobytes())

    @property
    def names(self) -> StringArray:
        """Return all names so far, in the order in which they were added."""
        return self._names.strings()

    def by_name(self) -> SortedListing:
        """Return the files of a whole tree, sorted by name."""
        facts: dict[str, NDArray[Any]] = {
            "size": np.frombuffer(self._sizes, np.int64),
            "mtime_ns": np.frombuffer(self._mtimes_ns, np.int64),
            "offset": np.frombuffer(self._positions, np.int64),
            "executable": np.frombuffer(self._executable, np.bool_),
        }
        return sorted_by_name(self.names, facts)

    def entries(self, *, places: NDArray[Any] | None = None) -> FileEntries:
        """Return the files in the order in which they were added. `places`: where each is in its tree."""
        columns = _FactColumns(
            self.names,
            narrowed(np.array(self._sizes, np.int64)),
            np.array(self._mtimes_ns, np.int64),
            narrowed(np.array(self._positions, np.int64)),
            np.frombuffer(bytes(self._executable), np.bool_),
            places,
        )
        return FileEntries(columns)


def sorted_by_name(
    names: StringArray, facts: dict[str, NDArray[Any]], *, rows: NDArray[Any] | None = None
) -> SortedListing:
    """Return the files of a whole tree, N of them, sorted by name.

    `facts`: columns size, mtime_ns, offset and executable, each as in `FileEntry`, which are taken out. `rows`: `(N,)`,
    which row of these is each name's, and `order` of what is returned has them; by default the first is the first
    one's, `order` then the numbers of names.
    """
    order = names.order()
    names = names.take(order).packed()
    # From here on by the row, which is all that is wanted of a name's number.
    order = order if rows is None else rows[order]
    # Each goes when it has been sorted: all of them twice would be the most that listing takes.
    columns = _FactColumns(
        names,
        narrowed(facts.pop("size")[order]),
        facts.pop("mtime_ns")[order],
        narrowed(facts.pop("offset")[order]),
        facts.pop("executable")[order],
        None,
    )
    return SortedListing(FileEntries(columns), order)


_DRIVE_LETTER = re.compile(r"\A[A-Za-z]:")

_MAX_PART_BYTES = 255
JUNK_FOLDERS = frozenset({"__MACOSX", ".ipynb_checkpoints", ".git"})
# In lower case. Whatever else is junk by its own name begins with a dot.
JUNK_FILES = frozenset({".ds_store", "thumbs.db", "desktop.ini"})
# A chain of links longer than this is a loop for every practical purpose; Linux gives up at 40 as well.
_MAX_LINK_STEPS = 40


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What an honest dataset's archive stays under; a bomb does not."""

    max_members: int = 10_000_000
    """Ten million files are seven times ImageNet-21k's training set in number of bytes of directory alone."""
    max_total_bytes: int = 16 * 1024**4
    """Content of all members together; no notebook's disk holds 16 TiB."""
    max_ratio: float = 500.0
    """Content over archive size. Deflate can reach 1,032, masks and zero-filled arrays a few hundred, photographs about
    1."""
    ratio_from_bytes: int = 1024**3
    """Below this much content the ratio is not looked at, since it cannot do any harm."""


DEFAULT_LIMITS = ArchiveLimits()


def check_limits(archive: str, members: int, total_bytes: int, archive_bytes: int, limits: ArchiveLimits) -> None:
    """Refuse an archive whose headers promise more than `limits` allow.

    Raises:
        UnsafeArchiveError: too many members, too much content, or too much content for the archive's own size.
    """
    if members > limits.max_members:
        problem = f"holds {members:,} members, more than the limit of {limits.max_members:,} (max_members)"
    elif total_bytes > limits.max_total_bytes:
        size, limit = format_bytes(total_bytes), format_bytes(limits.max_total_bytes)
        problem = f"would unpack to {size}, more than the limit of {limit} (max_total_bytes)"
    elif total_bytes >= limits.ratio_from_bytes and total_bytes > limits.max_ratio * archive_bytes:
        ratio = total_bytes / max(archive_bytes, 1)
        problem = (
            f"would unpack {format_bytes(archive_bytes)} to {format_bytes(total_bytes)}, {ratio:,.0f} times as much; "
            f"the limit is {limits.max_ratio:g} times (max_ratio)"
        )
    else:
        return
    msg = f"'{archive}' {problem}. That is how a decompression bomb looks; raise the limit only if you trust it."
    raise UnsafeArchiveError(msg)


def refuse_member(archive: str, name: str, reason: str) -> UnsafeArchiveError:
    """Return the error for one member that no archive should have."""
    return UnsafeArchiveError(
        f"'{archive}' is refused because of its member {show_content(name, 300)}: {reason}. Nothing was read or "
        "written. Make the archive again from a folder that holds the dataset's files only."
    )


# Each folder of a name is known by its whole name, so a name of many is much more in memory than in the archive.
MOST_FOLDERS = 200


def clean_member_name(archive: str, raw: str) -> str:
    """Return the name of a file inside a tree, from the name that an archive gives it: no `./`, no doubled slashes.

    Raises:
        UnsafeArchiveError: the name is empty, absolute, climbs out with `..`, ends in a slash though it is a file's,
            or carries a NUL, a backslash or a drive letter.
    """
    # Nearly every name passes here, and there may be ten million of them.
    if not _needs_a_closer_look(raw):
        return raw
    reason = _name_fault(raw)
    if reason is not None:
        raise refuse_member(archive, raw, reason)
    return posixpath.normpath(raw)


def _needs_a_closer_look(raw: str) -> bool:
    """Tell whether a name may break a rule or have parts to drop. Ten times as fast as a regular expression of the
    rules."""
    return (
        len(raw) > MOST_FOLDERS
        or raw[:1] in ("", "/", ".")
        or raw[1:2] == ":"
        or raw[-1] == "/"
        or "/." in raw
        or "//" in raw
        or "\\" in raw
        or "\0" in raw
    )


def clean_folder_name(archive: str, raw: str) -> str:
    """Return the name of a folder inside a tree, `.` for the root; the same rules, but a final slash is fine.

    Raises:
        UnsafeArchiveError: as for `clean_member_name`.
    """
    reason = _name_fault(raw, folder=True)
    if reason is not None:
        raise refuse_member(archive, raw, reason)
    return posixpath.normpath(raw)


def _name_fault(raw: str, *, folder: bool = False) -> str | None:
    # In the order in which they are to be named: a NUL or a backslash makes what follows unclear.
    faults = (
        ("\0" in raw, "its name contains a NUL character"),
        ("\\" in raw, "its name contains a backslash, which some systems take for a folder separator"),
        (_DRIVE_LETTER.match(raw), "its name begins with a drive letter"),
        (raw.startswith("/"), "its name is absolute"),
        (".." in raw.split("/"), "its name climbs out of the archive's folder with '..'"),
        (not folder and posixpath.normpath(raw) == ".", "it is a file without a name"),
        (raw.count("/") > MOST_FOLDERS, f"it is in more than {MOST_FOLDERS} folders, one in the other"),
        (not folder and raw.endswith("/"), "it is a file, but its name ends in a slash like a folder's"),
    )
    return next((reason for broken, reason in faults if broken), None)


def resolve_link(archive: str, name: str, target: str) -> str:
    """Return the name inside the archive that the symbolic link `name` points to.

    Raises:
        UnsafeArchiveError: the link points outside the archive.
    """
    if not target or target.startswith("/") or "\\" in target or "\0" in target or _DRIVE_LETTER.match(target):
        raise refuse_member(archive, name, f"it is a link to {target!r}, outside the archive")
    # Decided by words, not by a disk: nothing has been unpacked yet.
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    if resolved == ".." or resolved.startswith("../"):
        raise refuse_member(archive, name, f"it is a link to {target!r}, outside the archive")
    return resolved


def resolve_links(links: Mapping[str, str], files: Collection[str]) -> dict[str, str]:
    """Find for each link the regular file it finally leads to; links to folders, to nothing or to themselves are
    absent."""
    found: dict[str, str] = {}
    for name in links:
        target = name
        # Links may lead to links, also in a loop.
        for _ in range(_MAX_LINK_STEPS):
            if target not in links:
                break
            target = links[target]
        if target in files:
            found[name] = target
    return found


def check_collisions(archive: str, files: Sequence[str], folders: Iterable[str]) -> None:
    """Refuse names that cannot stand beside each other in one folder.

    Args:
        archive: its address, for messages.
        files: cleaned names of all members that are not folders.
        folders: cleaned names of the folders that the archive lists.

    Raises:
        UnsafeArchiveError: a name occurs twice, or a file is also the folder of another member.
    """
    twice = first_repeated(files)
    if twice is not None:
        raise refuse_member(archive, twice, "its name occurs twice, so which of the two is meant is unclear")
    names = StringArray.of(files)
    both = names.among(parent_folders(names) | parent_folders([f"{folder}/" for folder in folders]))
    if len(both):
        raise refuse_member(archive, names[int(both[0])], "it is a file and also a folder of other members")


def parent_folders(names: Iterable[str]) -> set[str]:
    """Return every folder that `names` are in, at any depth."""
    folders: set[str] = set()
    for direct in folders_of(StringArray.of(names))[0]:
        folder = direct
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def without_files(folders: Iterable[str], files: Iterable[str]) -> tuple[str, ...]:
    """Return those of some folders, by cleaned name, that no file is in at any depth; without what holds only
    junk."""
    # Folders are listed by themselves in some archives, and only by their files in others.
    taken = parent_folders(files)
    empty = {name for name in folders if name not in ("", ".") and name not in taken}
    return tuple(sorted(name for name in empty if not is_junk(f"{name}/_")))


def check_case_collisions(archive: str, names: Iterable[str]) -> None:
    """Refuse names that one folder cannot hold on a disk that ignores case or the way accents are encoded.

    Only extraction onto a disk needs this.

    Raises:
        UnsafeArchiveError: two names differ in upper and lower case only, or in the encoding of accents only.
    """
    paths = list(names)
    seen: dict[str, str] = {}
    for path in [*paths, *sorted(parent_folders(paths))]:
        other = seen.setdefault(_folded(path), path)
        if other != path:
            what = "upper and lower case" if path.casefold() == other.casefold() else "the encoding of its characters"
            raise refuse_member(archive, path, f"it differs from {other!r} in {what} only")


def _folded(name: str) -> str:
    if name.isascii():
        return name.lower()
    # Folding case may undo the normal form, so that is made twice.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def check_lengths(archive: str, names: Iterable[str], *, room_bytes: int) -> None:
    """Refuse names that no Linux file system takes.

    Args:
        archive: its address, for messages.
        names: cleaned names.
        room_bytes: what a whole name may take.

    Raises:
        UnsafeArchiveError: a name, or one part of it, is too long.
    """
    for name in names:
        # No character takes more than four bytes, so most names need no closer look.
        if len(name) * 4 <= _MAX_PART_BYTES:
            continue
        whole = os.fsencode(name)
        if len(whole) > room_bytes or max(map(len, whole.split(b"/"))) > _MAX_PART_BYTES:
            shown = f"{name[:40]}…"
            reason = f"its name is {len(whole):,} bytes long; file systems take {_MAX_PART_BYTES} for each part of one"
            raise refuse_member(archive, shown, f"{reason} and {room_bytes:,} for all")


def is_junk(name: str) -> bool:
    """Tell whether an operating system, a notebook or colabstage left this file, so that it is no part of a dataset."""
    folder, _, base = name.rpartition("/")
    return base.startswith("._") or base.lower() in JUNK_FILES or is_our_name(base) or _in_junk(folder)


# Of millions of files, folder after folder.
@functools.lru_cache(maxsize=1024)
def _in_junk(folder: str) -> bool:
    return any(map(is_junk_folder, folder.split("/")))


def is_junk_folder(base: str) -> bool:
    """Tell whether a folder of this name (its last component) holds only junk."""
    return base in JUNK_FOLDERS or is_our_name(base)
