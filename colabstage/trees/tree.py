"""What every tree offers, and what it reads from: files with their sizes, the content of each, bytes at any place."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, Self, runtime_checkable

from colabstage.errors import SourceReadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

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
    # No part of what an entry is: two listings of one file are equal wherever it stands in them.
    place: int = field(default=-1, compare=False, repr=False)
    """Its number among the entries of its tree, where it is found sooner than by name; -1 where nobody said."""


class Tree(Protocol):
    """A dataset's files by name. Every method may be called from any thread, `read` from many at once."""

    @property
    def kind(self) -> TreeKind:
        """Return what holds the files."""

    @property
    def label(self) -> str:
        """Return the tree's address as a person would write it, for messages."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences about what was left out and why (Google-native documents, for example)."""

    @property
    def entries(self) -> Sequence[FileEntry]:
        """Return all regular files, sorted by name; junk that operating systems leave (`__MACOSX`, `.DS_Store`) left
        out."""

    def read(self, entry: FileEntry) -> bytes:
        """Return the whole content of one file, `entry.size` bytes, verified by the container's checksum where it has
        one.

        Raises:
            OSError: as the medium answers (a mount's errno 5, 107, …).
            SourceReadError: the content is shorter or longer than listed.
            CorruptArchiveError: the member is damaged.
        """

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Return the content of one file in order, in pieces of at most `PIECE_BYTES`, so that none is held in memory
        whole.

        Verified as `read` does it, once the last piece has come: what was made of the pieces counts only when the
        iterator has ended.

        Raises:
            As `read`; while iterating.
        """

    def close(self) -> None:
        """Let go of file handles. Calling it twice is fine."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class ListsFolders(Protocol):
    """A tree that knows of folders in which no file lies; an object store does not."""

    @property
    def empty_folders(self) -> tuple[str, ...]:
        """Return their names."""


def empty_folders(tree: Tree) -> tuple[str, ...]:
    """Return the folders of a tree in which no file lies; none where it cannot know."""
    return tree.empty_folders if isinstance(tree, ListsFolders) else ()


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
        """Let go of the handle. Calling it twice is fine."""


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
    return (f"{len(names):,} links that lead to no file of the archive were left out (first '{names[0]}').",)


def cut_while_read(archive: str, member: str) -> SourceReadError:
    """Return the error for an archive that was longer when it was opened."""
    return SourceReadError(
        f"'{archive}' ends inside its member {member!r}: the file changed or was cut while being read. "
        "Wait until its upload or copy is complete, then stage again."
    )


def unknown_entry(tree: str, name: str) -> SourceReadError:
    """Return the error for an entry that the tree does not have."""
    return SourceReadError(f"'{tree}' has no member {name!r}; the entry is from another tree.")
