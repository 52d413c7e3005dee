"""A listing: the files of a tree in columns, and what every tree offers: any file's content by one positioned read."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import xxhash

from colabstage.errors import SourceReadError, UnsafeArchiveError
from colabstage.io.files import Closing, block_ranges
from colabstage.io.units import format_bytes, format_count, left_out, listed
from colabstage.trees.bytes import PIECE_BYTES, ByteSource, cut_while_read
from colabstage.trees.names import (
    check_collisions,
    clean_member_name,
    extension_of,
    is_junk,
    is_plain,
    refuse_member,
    resolve_link,
    resolve_links,
    without_files,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.trees.zip_member import ZipMember

TreeKind = Literal["folder", "zip", "tar", "7z", "rar", "file"]

# Entries that are created together while iterating.
_PAGE_ENTRIES = 1024
TIME_END_NS = 1 << 63


@dataclass(frozen=True, slots=True)
class FileEntry:
    # Entries are created and dropped by the million, so this holds only facts; the tree reads the content.
    name: str
    """Path inside the tree, with `/`, never absolute, never with `..`."""
    size: int
    mtime_ns: int
    """Modification time in nanoseconds since 1970; 0 if the container stores none."""
    position: int
    """Reading entries by ascending position is sequential for the medium: the offset in an archive, or the place in a
    folder's listing."""
    executable: bool = False
    """Whether an archive marks it as executable by its owner; a folder does not tell."""


@dataclass(frozen=True, eq=False, repr=False)
class FileEntries(Sequence[FileEntry]):
    """N files of a tree in columns: all, sorted by name, or some in any order. Immutable."""

    names: list[str]
    """As in `FileEntry`, like all that follow."""
    sizes: NDArray[np.int64]
    """`(N,)`, like all that follow."""
    mtimes_ns: NDArray[np.int64]
    positions: NDArray[np.int64]
    executable: NDArray[np.bool_]

    @classmethod
    def of(cls, entries: Iterable[FileEntry]) -> FileEntries:
        if isinstance(entries, FileEntries):
            return entries
        found = list(entries)
        return cls(
            [entry.name for entry in found],
            np.array([entry.size for entry in found], np.int64),
            # A disk may have times after 2262, which 64 bits of nanoseconds cannot hold.
            np.array([entry.mtime_ns if abs(entry.mtime_ns) < TIME_END_NS else 0 for entry in found], np.int64),
            np.array([entry.position for entry in found], np.int64),
            np.array([entry.executable for entry in found], np.bool_),
        )

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> FileEntry: ...
    @overload
    def __getitem__(self, index: slice) -> FileEntries: ...

    def __getitem__(self, index: int | slice) -> FileEntry | FileEntries:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        row = range(len(self))[index]
        size, mtime_ns, position, executable = [column.item(row) for column in self._columns]
        return FileEntry(self.names[row], size, mtime_ns, position, executable)

    def __iter__(self) -> Iterator[FileEntry]:
        # Page by page: an object for each of millions would take most of a listing's memory.
        for first in range(0, len(self), _PAGE_ENTRIES):
            page = slice(first, min(first + _PAGE_ENTRIES, len(self)))
            yield from map(FileEntry, self.names[page], *[column[page].tolist() for column in self._columns])

    @property
    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.sizes, self.mtimes_ns, self.positions, self.executable

    def take(self, rows: NDArray[Any]) -> FileEntries:
        """Return the entries of some rows, in that order; for all rows in order, these entries themselves."""
        if len(rows) == len(self) and np.array_equal(rows, np.arange(len(self))):
            return self
        sizes, times, positions, executable = [column[rows] for column in self._columns]
        made = FileEntries(take_strings(self.names, rows), sizes, times, positions, executable)
        # What is known of all is known of some.
        for known in self.__dict__.keys() & {"folders", "endings"}:
            texts, numbers = self.__dict__[known]
            made.__dict__[known] = _numbered(take_strings(texts, numbers[rows]))
        return made

    def where(self, fits: Callable[[str], bool]) -> FileEntries:
        """Return those whose names fit, in the same order."""
        return self.take(np.flatnonzero(np.fromiter(map(fits, self.names), np.bool_, len(self))))

    def without(self, names: Collection[str]) -> FileEntries:
        called = np.fromiter(map(names.__contains__, self.names), np.bool_, len(self))
        return self.take(np.flatnonzero(~called))

    def ending_in(self, extensions: Collection[str]) -> FileEntries:
        """Return those with one of these extensions, as from `extension_of`, in the same order."""
        return self._of(self.endings, lambda end: extension_of(end) in extensions)

    def not_ending_in(self, extensions: Collection[str]) -> FileEntries:
        return self._of(self.endings, lambda end: extension_of(end) not in extensions)

    def _of(self, numbered: tuple[list[str], NDArray[np.integer[Any]]], fits: Callable[[str], bool]) -> FileEntries:
        texts, of_files = numbered
        return self.take(np.flatnonzero(np.fromiter(map(fits, texts), np.bool_, len(texts))[of_files]))

    # Computed once, because every layout filters by its own extensions, and most need the folders.

    @cached_property
    def folders(self) -> tuple[list[str], NDArray[np.integer[Any]]]:
        """Return the folders that hold the files, in order of first occurrence, "" for the root; and the number of each
        file's folder, `(N,)`."""
        return folders_of(self.names)

    @cached_property
    def endings(self) -> tuple[list[str], NDArray[np.integer[Any]]]:
        """Return the extensions after the last dots of the bare names (".JPG"; "" for none), and the number of each
        file's, `(N,)`."""
        texts, of_files = _numbered([name[name.rfind(".") :] for name in self.names])
        # A text without a dot is the last letter of a name without one; a dot in a folder's name begins no extension.
        endings, of_texts = _numbered([text if text[0] == "." and "/" not in text else "" for text in texts])
        return endings, of_texts[of_files]

    def in_folders(self, fits: Callable[[str], bool]) -> FileEntries:
        """Return those in folders whose names fit, in the same order."""
        return self._of(self.folders, fits)

    def find(self, entry: FileEntry | str) -> int | None:
        """Return the number of an entry, by its name; `None` if it is missing. Only if names ascend."""
        name = entry.name if isinstance(entry, FileEntry) else entry
        at = bisect_left(self.names, name)
        return at if at < len(self) and self.names[at] == name else None


def folders_of(names: Iterable[str]) -> tuple[list[str], NDArray[np.integer[Any]]]:
    """Return the folders of some files' names, in order of first occurrence, "" for the root; and the number of each
    file's folder, `(N,)`."""
    return _numbered([name[:at] if (at := name.rfind("/")) > 0 else "" for name in names])


def _numbered(texts: list[str]) -> tuple[list[str], NDArray[np.integer[Any]]]:
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    # Folders and extensions are few, so their numbers are short.
    return list(numbers), np.fromiter(map(numbers.__getitem__, texts), np.min_scalar_type(len(numbers)), len(texts))


def take_strings(strings: Sequence[str], rows: NDArray[Any]) -> list[str]:
    return list(map(strings.__getitem__, rows.tolist()))


def sorted_by_name(names: list[str], *columns: NDArray[Any]) -> tuple[list[str], list[NDArray[Any]], NDArray[np.int64]]:
    """Return sorted names, with equal ones in their old order; the columns in the same order; and each name's old
    number."""
    order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    return take_strings(names, order), [column[order] for column in columns], order


def total_size(entries: Sequence[FileEntry]) -> int:
    # In Python's integers: sums of what some archives claim exceed 64 bits.
    return sum(FileEntries.of(entries).sizes.tolist())


_KEYS_SHOWN = 5


def count_by(keys: Iterable[str]) -> str:
    """Write how often each key occurs, the commonest first.

    >>> count_by([".txt", ".csv", ".csv"])
    '2 .csv, 1 .txt'
    """
    # By name if counts are equal, so that the sentence is always the same.
    counts = sorted(Counter(keys).items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{count:,} {key}" for key, count in counts[:_KEYS_SHOWN]]
    if len(counts) > _KEYS_SHOWN:
        shown.append(f"{sum(count for _, count in counts[_KEYS_SHOWN:]):,} others")
    return ", ".join(shown)


class FileStates(NamedTuple):
    """For each of N files, what shows whether its content is unchanged: hashes, uint64 `(N,)`, 0 if nothing does."""

    digests: NDArray[np.uint64]
    """Hashes of a checksum that the container or service stores: equal wherever the file is and whatever its name."""
    versions: NDArray[np.uint64]
    """Hashes of what changes when the file is rewritten, a time or an ETag: they say nothing about a file of another
    name."""


def hash_texts(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return a hash of each text, never 0 except for an empty one."""
    encoded = (text.encode(errors="surrogateescape") for text in texts)
    return np.fromiter((xxhash.xxh3_64_intdigest(text) or 1 if text else 0 for text in encoded), np.uint64)


def hash_rows(*columns: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a hash of each row of integers, never 0 unless the last column has a 0."""
    found = np.zeros(len(columns[-1]), np.uint64)
    for column in columns:
        # The final steps of MurmurHash3: each bit of a column changes half of the bits of the hash.
        found ^= column.astype(np.uint64)
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            found ^= found >> np.uint64(33)
            found *= np.uint64(factor)
        found ^= found >> np.uint64(33)
    return np.where(columns[-1] != 0, np.maximum(found, 1), 0).astype(np.uint64)


class Tree(Closing):
    """A dataset's files by name, for any thread. A kind of tree sets `kind`, `label` and `entries`. Its `open` says how
    to read any part of a file; if only whole files can be read, its `read` and `chunks` do that."""

    kind: TreeKind
    label: str
    """The tree's address as a person would write it, for messages."""
    entries: FileEntries
    """All regular files, sorted by name; junk that operating systems leave (`__MACOSX`, `.DS_Store`) left out."""
    notes: tuple[str, ...] = ()
    """Sentences about what was left out and why (Google-native documents, for example)."""
    source: ByteSource | None = None
    """The bytes in which entries' positions count; `None` if each file is separate. Closed with the tree."""
    packed: ByteSource | None = None
    """The archive whose content was unpacked to be read; closed with the tree."""
    by_request: bool = False
    """True if every read is a network request; copy the file before random access."""
    waits_for: str = ""
    """Why no file arrives at present although one is needed; "" if some do."""
    unpacked: Path | None = None
    """The folder with all files that an archive was unpacked to, which is moved or removed with the tree."""
    empty_folders: tuple[str, ...] = ()
    """The folders without files, by name; none if that cannot be known, as in a bucket."""
    dangling: tuple[str, ...] = ()
    """The links to no file of the tree, by name; they may have been samples, or folders of them."""
    prefix: str = ""
    """The part of the source's names that these lack: the folder, with its slash, that `only=` chose."""
    is_unfolded: bool = False
    """Whether its files are arrays of a file, so that `only=` chooses none of them."""
    crcs: NDArray[np.uint32] | None = None
    """The CRC-32 of each file, `(N,)`; `None` if the container stores none."""

    @property
    def stamp(self) -> str:
        """Return a text that is unchanged while nothing is added, removed or rewritten; "" if only times tell."""
        return ""

    @property
    def inodes(self) -> str:
        """Return a hash of which file each name has, on this machine alone; "" if files do not keep their inodes."""
        return ""

    def listing_stamp(self) -> Mapping[str, tuple[int, int]]:
        """Return for every listed folder ("" is the root) its modification time in ns, which changes when something in
        it is added, removed or renamed, and its number of entries; empty for a tree that is not a folder."""
        return {}

    def file_states(self) -> FileStates:
        """Return the state of each file, in the order of `entries`, as it was before any of them was read."""
        unknown = np.zeros(len(self.entries), np.uint64)
        # A checksum may be 0.
        digests = unknown if self.crcs is None else hash_rows(self.crcs.astype(np.uint64) + np.uint64(1))
        return FileStates(digests, unknown)

    def parts(self) -> tuple[Tree, ...]:
        """Return the trees that this one is made of, in the order of their first files."""
        return (self,)

    def origin(self, entry: FileEntry) -> tuple[Tree, FileEntry]:
        """Return the part that has a file, and that part's own entry of it."""
        return self, entry

    def written_name(self, entry: FileEntry) -> str:
        """Return what a file is called where it is: arrays of a file may be read as files."""
        return entry.name

    def mark_of(self, entry: FileEntry) -> str:
        """Return what, on this machine alone, tells a file from any that replaces it; "" if nothing does."""
        tree, own = self.origin(entry)
        return "" if tree is self else tree.mark_of(own)

    def path_of(self, entry: FileEntry) -> Path | None:
        """Return the path of a file that is by itself; `None` if it is part of something."""
        return None

    def address_of(self, entry: FileEntry) -> str:
        """Return what to pass as the source for this file alone; "" if it is part of something."""
        tree, own = self.origin(entry)
        return str(self.path_of(entry) or "") if tree is self else tree.address_of(own)

    def packing(self, entry: FileEntry) -> ZipMember | None:
        """Return how a file is packed in `source`; `None` if it is stored unchanged."""
        return None

    def open(self, entry: FileEntry) -> ByteSource | None:
        """Return the bytes of one file, any part of which is read in place; `None` if only the whole can be read,
        because it is packed, or has a checksum of the whole."""
        return None

    def read(self, entry: FileEntry) -> bytes:
        """Return the whole content of one file, `entry.size` bytes, verified by its checksum, if there is one."""
        with contextlib.closing(self._opened(entry)) as file:
            # Some sources fail on an empty range.
            data = file.pread(file.size, 0) if file.size else b""
        if len(data) != file.size:
            raise cut_while_read(self.label, entry.name)
        return data

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Yield the content of one file in order, in pieces of at most `PIECE_BYTES`; verified as by `read`, after the
        last piece."""
        with contextlib.closing(self._opened(entry)) as file:
            for offset, length in block_ranges(file.size, PIECE_BYTES):
                data = file.pread(length, offset)
                if len(data) != length:
                    raise cut_while_read(self.label, entry.name)
                yield data

    def verify(self, entry: FileEntry, pieces: Iterable[bytes]) -> None:
        """Compare a file's whole content, in `pieces` that were read in parts, with its checksum; without one, read
        none of them."""

    def _opened(self, entry: FileEntry) -> ByteSource:
        file = self.open(entry)
        if file is None:
            msg = f"A {type(self).__name__} opens no files, so it has to say itself how it reads them."
            raise NotImplementedError(msg)
        return file

    def _own(self, entry: FileEntry) -> int:
        place = self.entries.find(entry)
        if place is None:
            raise unknown_entry(self.label, entry.name)
        return place

    def close(self) -> None:
        """Release file handles. Calling it twice is fine."""
        for source in filter(None, (self.source, self.packed)):
            source.close()


def only_line(tree: Tree, *parts: str) -> str:
    """Return the argument that stages parts of a tree, folders and files by name or pattern, for messages."""
    found = [tree.prefix + part for part in parts]
    if tree.is_unfolded:
        return f"a file with {listed(found)} alone"
    return f"only={found if len(found) > 1 else found[0]!r}"


def unknown_entry(tree: str, name: str) -> SourceReadError:
    return SourceReadError(f"'{tree}' has no member {name!r}; the entry is from another tree.")


MemberKind = Literal["file", "folder", "symlink", "hardlink", "special"]


class Members:
    """The files of an archive by cleaned name, each with its number among the members. Of members with one name the
    last counts, as for every reader; links are the files that they lead to."""

    def __init__(self, archive: str) -> None:
        self._archive = archive
        self._files: dict[str, int] = {}
        self._links: dict[str, str] = {}
        self._folders: list[str] = []
        self._repeated: set[str] = set()

    def add(self, raw: str, kind: MemberKind, number: int, link: str = "") -> None:
        """Add the next member, `raw` and `link` as they are in the archive."""
        if kind == "file" and is_plain(raw) and raw not in self._files and raw not in self._links:
            self._files[raw] = number
            return
        if kind == "folder":
            self._folders.append(clean_member_name(self._archive, raw, folder=True))
            return
        name = clean_member_name(self._archive, raw)
        if kind == "special":
            raise refuse_member(self._archive, name, "it is a device, a pipe or a folder with content")
        if is_junk(name):
            return
        if name in self._files or name in self._links:
            self._repeated.add(name)
            self._links.pop(name, None)
        if kind == "symlink":
            target = resolve_link(self._archive, name, link)
        elif kind == "hardlink":
            target = clean_member_name(self._archive, link)
            # The file as it is at this point in the archive.
            number = self._files.get(target, -1)
        if kind == "symlink" or number < 0:
            self._files.pop(name, None)
            self._links[name] = target
        else:
            self._files[name] = number

    def finish(self, tree: Tree) -> tuple[list[str], NDArray[np.int64]]:
        """Return the files' names, sorted, and the number of each; note on the tree what was left out."""
        files, links = self._files, self._links
        check_collisions(self._archive, [*files, *links], self._folders)
        tree.empty_folders = without_files(self._folders, [*files, *links]) if self._folders else ()
        found = resolve_links(links, files)
        tree.dangling = tuple(sorted(links.keys() - found.keys()))
        tree.notes = ()
        if tree.dangling:
            left = left_out(len(tree.dangling), "links", "to no file of the archive")
            tree.notes += (f"{left} (first '{tree.dangling[0]}').",)
        if self._repeated:
            named = f"{format_count(len(self._repeated), 'names')} more than once"
            tree.notes += (f"The archive has {named}; the last of each counts (first '{min(self._repeated)}').",)
        files |= {name: files[target] for name, target in found.items()}
        sorted_names, (numbers,), _ = sorted_by_name(list(files), np.fromiter(files.values(), np.int64, len(files)))
        return sorted_names, numbers


class TreeView(Tree):
    """Files of other trees under new names, read as by those trees; closing it closes them all. `rows`: which files,
    counted through the entries of all trees in sequence."""

    def __init__(self, trees: Sequence[Tree], rows: NDArray[Any], names: list[str]) -> None:
        self._trees = trees
        listings = [tree.entries for tree in trees]
        self._firsts = np.cumsum([0, *map(len, listings)])
        names, (self._rows,), _ = sorted_by_name(names, rows)
        # One tree after the other, because each is read fastest in its own order.
        ends = np.cumsum([0, *(int(entries.positions.max(initial=-1)) + 1 for entries in listings)])
        positions = [entries.positions + start for entries, start in zip(listings, ends[:-1], strict=True)]
        sizes, times, executable = (
            np.concatenate([getattr(entries, column) for entries in listings])[self._rows]
            for column in ("sizes", "mtimes_ns", "executable")
        )
        self.entries = FileEntries(names, sizes, times, np.concatenate(positions)[self._rows], executable)

    @property
    def stamp(self) -> str:
        return self._trees[0].stamp if len(self._trees) == 1 else ""

    def file_states(self) -> FileStates:
        states = [tree.file_states() for tree in self._trees]
        digests, versions = (np.concatenate(columns)[self._rows] for columns in zip(*states, strict=True))
        return FileStates(digests, versions)

    @cached_property
    def _parts(self) -> tuple[Tree, ...]:
        numbers, firsts = np.unique(np.searchsorted(self._firsts, self._rows, side="right") - 1, return_index=True)
        return tuple(part for number in numbers[np.argsort(firsts)] for part in self._trees[number].parts())

    def parts(self) -> tuple[Tree, ...]:
        # Found once: each of thousands of shards looks itself up.
        return self._parts

    def _inner(self, entry: FileEntry) -> tuple[Tree, FileEntry]:
        row = int(self._rows[self._own(entry)])
        number = int(np.searchsorted(self._firsts, row, side="right")) - 1
        tree = self._trees[number]
        return tree, tree.entries[row - int(self._firsts[number])]

    def origin(self, entry: FileEntry) -> tuple[Tree, FileEntry]:
        tree, own = self._inner(entry)
        return tree.origin(own)

    def packing(self, entry: FileEntry) -> ZipMember | None:
        tree, own = self._inner(entry)
        return None if self.source is None else tree.packing(own)

    def path_of(self, entry: FileEntry) -> Path | None:
        tree, own = self.origin(entry)
        return tree.path_of(own)

    def open(self, entry: FileEntry) -> ByteSource | None:
        tree, own = self.origin(entry)
        return tree.open(own)

    def read(self, entry: FileEntry) -> bytes:
        tree, own = self.origin(entry)
        return tree.read(own)

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        tree, own = self.origin(entry)
        return tree.chunks(own)

    def verify(self, entry: FileEntry, pieces: Iterable[bytes]) -> None:
        tree, own = self.origin(entry)
        tree.verify(own, pieces)

    def close(self) -> None:
        for tree in self._trees:
            tree.close()


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """Limits that an honest dataset's archive keeps; a bomb does not."""

    max_members: int = 10_000_000
    """For ten million files, the directory alone takes seven times the bytes of ImageNet-21k's training set."""
    max_total_bytes: int = 16 * 1024**4
    """Content of all members together; no notebook's disk holds 16 TiB."""
    max_ratio: float = 500.0
    """Content over archive size. Deflate can reach 1,032, masks and zero-filled arrays a few hundred, photographs about
    1."""
    ratio_from_bytes: int = 1024**3
    """Below this much content the ratio is not checked, because it can do no harm."""


DEFAULT_LIMITS = ArchiveLimits()


def check_limits(archive: str, members: int, total_bytes: int, archive_bytes: int, limits: ArchiveLimits) -> None:
    """Refuse an archive whose headers promise more than `limits` allow."""
    is_dense = total_bytes >= limits.ratio_from_bytes and total_bytes > limits.max_ratio * archive_bytes
    if members <= limits.max_members and total_bytes <= limits.max_total_bytes and not is_dense:
        return
    msg = (
        f"'{archive}' would unpack {format_bytes(archive_bytes)} to {members:,} files of {format_bytes(total_bytes)}, "
        "as a decompression bomb does. If you trust it, unpack it with its own tool, and give the folder."
    )
    raise UnsafeArchiveError(msg)
