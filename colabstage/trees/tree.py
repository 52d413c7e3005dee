"""What every tree offers, and what it reads from: files with their sizes, the content of each, bytes at any place."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from colabstage.errors import SourceReadError
from colabstage.io.files import Closing, block_ranges
from colabstage.io.units import left_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from colabstage.trees.zip_directory import ZipMember

TreeKind = Literal["folder", "zip", "tar", "7z", "rar", "file"]

# The most that `Tree.chunks` hands over at once.
PIECE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One regular file of a tree."""

    # Entries are made and dropped by the million, so this holds facts only; what reads them is the tree.
    name: str
    """Path inside the tree, with `/`, never absolute, never with `..`."""
    size: int
    """Length of its content in bytes."""
    mtime_ns: int
    """Modification time in nanoseconds since 1970; 0 where the container keeps none."""
    position: int
    """Reading entries by ascending position is sequential for the medium: the offset in an archive, the place in the
    listing of a folder."""
    executable: bool = False
    """Whether an archive marks it as a program of its owner; a folder does not tell."""
    # No part of what an entry is: two listings of one file are equal wherever it is in them.
    place: int = field(default=-1, compare=False, repr=False)
    """Its number among the entries of its tree, where it is found sooner than by name; -1 where nobody said."""


class ByteSource(Protocol):
    """Random access to the bytes of one file, from many threads: what an archive's tree reads from.

    A file on the local disk is the usual one. A file that is still being copied here is another: its `pread` waits,
    with a deadline, until the bytes have arrived.
    """

    @property
    def label(self) -> str:
        """Return the file's address, for messages."""

    @property
    def size(self) -> int:
        """Return the length of the whole file in bytes."""

    def pread(self, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end of the file."""

    def close(self) -> None:
        """Release the handle. Calling it twice is fine."""


class Tree(Closing):
    """A dataset's files by name. Every method may be called from any thread, `read` from many at once.

    A kind of tree sets `kind`, `label` and `entries`, and says in `open` how any part of a file is had; where only the
    whole of one can be, in `read` and `chunks`.
    """

    kind: TreeKind
    """What holds the files."""
    label: str
    """The tree's address as a person would write it, for messages."""
    entries: Sequence[FileEntry]
    """All regular files, sorted by name; junk that operating systems leave (`__MACOSX`, `.DS_Store`) left out."""
    notes: tuple[str, ...] = ()
    """Sentences about what was left out and why (Google-native documents, for example)."""
    source: ByteSource | None = None
    """The bytes that positions of entries count in; `None` where each file is by itself. Closed with the tree."""
    by_request: bool = False
    """Whether each part of a file is a question of its own to a service: who reads here and there wants a copy."""
    unpacked: Path | None = None
    """The folder with all files in it that an archive was unpacked to; who takes them from there takes the tree's
    place."""

    @property
    def stamp(self) -> str:
        """Return what is the same while nothing is added, removed or rewritten; "" where only its times tell."""
        return ""

    @property
    def empty_folders(self) -> tuple[str, ...]:
        """Return the folders in which no file lies, by name; none where that cannot be known, as in a bucket."""
        return ()

    def listing_stamp(self) -> Mapping[str, tuple[int, int]]:
        """Return for every folder that was listed ("" is the root): its modification time in ns and its number of
        entries; nothing for a tree that is no folder.

        A folder's time changes when something in it is added, removed or renamed, not when a file is rewritten.
        """
        return {}

    def parts(self) -> tuple[Tree, ...]:
        """Return the trees that this one is made of, in the order of their first files."""
        return (self,)

    def origin(self, entry: FileEntry) -> tuple[Tree, FileEntry]:
        """Return the part that has a file, and the file as that part has it.

        Raises:
            SourceReadError: the entry is another tree's.
        """
        return self, entry

    def path_of(self, entry: FileEntry) -> Path | None:
        """Return where a file lies by itself among the dataset's others; `None` where it is part of something."""
        return None

    def packing(self, entry: FileEntry) -> ZipMember | None:
        """Return how a file is packed in `source`; `None` where it is stored unchanged."""
        return None

    def open(self, entry: FileEntry) -> ByteSource | None:
        """Return the bytes of one file, any part of which is read from where it is; `None` where only the whole can
        be had, because it is packed, or has a checksum that only the whole of it meets.

        Raises:
            OSError: as the medium answers.
            SourceReadError: the entry is another tree's.
        """
        return None

    def read(self, entry: FileEntry) -> bytes:
        """Return the whole content of one file, `entry.size` bytes, verified by the container's checksum where it has
        one.

        Raises:
            OSError: as the medium answers (a mount's errno 5, 107, …).
            SourceReadError: the content is shorter or longer than listed.
            CorruptArchiveError: the member is damaged.
        """
        file = self._opened(entry)
        try:
            # Some sources answer an empty range with an error.
            data = file.pread(file.size, 0) if file.size else b""
        finally:
            file.close()
        if len(data) != file.size:
            raise cut_while_read(self.label, entry.name)
        return data

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Yield the content of one file in order, in pieces of at most `PIECE_BYTES`, so that none is held in memory
        whole.

        Verified as `read` does it, once the last piece has come: what was made of the pieces counts only when the
        iterator has ended.

        Raises:
            As `read`; while iterating.
        """
        with contextlib.closing(self._opened(entry)) as file:
            for offset, length in block_ranges(file.size, PIECE_BYTES):
                data = file.pread(length, offset)
                if len(data) != length:
                    raise cut_while_read(self.label, entry.name)
                yield data

    def _opened(self, entry: FileEntry) -> ByteSource:
        file = self.open(entry)
        if file is None:
            msg = f"A {type(self).__name__} opens no files, so it has to say itself how it reads them."
            raise NotImplementedError(msg)
        return file

    def close(self) -> None:
        """Release file handles. Calling it twice is fine."""
        if self.source is not None:
            self.source.close()


class TreeView(Tree):
    """Files that are other trees', and are read as those do it: `origin` says of each whose it is."""

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


class PartOfTree(TreeView):
    """Some files of a tree; whoever opened that closes it."""

    def __init__(self, tree: Tree, entries: Sequence[FileEntry]) -> None:
        self._tree = tree
        # Not its `source`: positions of entries count in it, but this tree does not close it.
        self.kind, self.label, self.notes, self.entries = tree.kind, tree.label, tree.notes, entries

    def origin(self, entry: FileEntry) -> tuple[Tree, FileEntry]:
        return self._tree.origin(entry)


class _GivenTree(Tree):
    """Somebody's own object that has files, as a tree."""

    def __init__(self, given: Any) -> None:
        self._given = given
        # A folder is what no reader makes any assumption about.
        self.kind = getattr(given, "kind", "folder")
        self.label, self.entries = given.label, given.entries
        self.notes = tuple(getattr(given, "notes", ()))

    @property
    def stamp(self) -> str:
        return str(getattr(self._given, "stamp", ""))

    @property
    def empty_folders(self) -> tuple[str, ...]:
        return tuple(getattr(self._given, "empty_folders", ()))

    def read(self, entry: FileEntry) -> bytes:
        content: bytes = self._given.read(entry)
        return content

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        # What is in memory anyway gains nothing from pieces, so nobody has to write that.
        yield from self._given.chunks(entry) if hasattr(self._given, "chunks") else (self._given.read(entry),)

    def close(self) -> None:
        if hasattr(self._given, "close"):
            self._given.close()


def as_tree(given: object) -> Tree | None:
    """Return a tree as it is, and one of whatever has `label`, `entries` and `read`; `None` for anything else."""
    if isinstance(given, Tree):
        return given
    return _GivenTree(given) if all(hasattr(given, name) for name in ("entries", "read", "label")) else None


def count_by(keys: Iterable[str], *, most: int = 5) -> str:
    """Write how often each key occurs, the commonest first.

    >>> count_by([".txt", ".csv", ".csv"])
    '2 .csv, 1 .txt'
    """
    # By name where counts are equal, so that the sentence is the same each time.
    counts = sorted(Counter(keys).items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{count:,} {key}" for key, count in counts[:most]]
    if len(counts) > most:
        shown.append(f"{sum(count for _, count in counts[most:]):,} others")
    return ", ".join(shown)


def skipped_links(names: Sequence[str]) -> tuple[str, ...]:
    """Return the note on an archive's links that were left out; `names` is sorted."""
    if not names:
        return ()
    return (f"{left_out(len(names), 'links', 'to no file of the archive')} (first '{names[0]}').",)


def cut_while_read(archive: str, member: str) -> SourceReadError:
    """Return the error for an archive that was longer when it was opened."""
    return SourceReadError(
        f"'{archive}' ends inside its member {member!r}: the file changed or was cut while being read. "
        "Wait until its upload or copy is complete, then stage again."
    )


def unknown_entry(tree: str, name: str) -> SourceReadError:
    """Return the error for an entry that the tree does not have."""
    return SourceReadError(f"'{tree}' has no member {name!r}; the entry is from another tree.")
