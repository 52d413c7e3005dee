"""A 7z or rar as a tree: listed and judged, then unpacked by its tool into a folder that vanishes with the tree."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, NamedTuple, Self

from isal import isal_zlib

from colabstage.errors import CorruptArchiveError, UnsafeArchiveError
from colabstage.fileops import block_ranges, make_folder, pread_exactly
from colabstage.ownership import remove_own, rename_own, temp_beside
from colabstage.progress import Cancellation
from colabstage.trees.archive_bytes import LocalBytes, owners_bytes
from colabstage.trees.contents import HEAD_BYTES, foreign_kind
from colabstage.trees.foreign_tools import Listed, Reader, find_reader
from colabstage.trees.messages import cut_while_read, foreign_entry
from colabstage.trees.names import (
    DEFAULT_LIMITS,
    ArchiveLimits,
    check_collisions,
    check_limits,
    clean_folder_name,
    clean_member_name,
    is_junk,
    refuse_member,
)
from colabstage.trees.tree import PIECE_BYTES, FileEntry, TreeKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from colabstage.trees.tree import ByteSource

# An archive without members is a few headers.
_EMPTY_BYTES = 128


class _Checked(NamedTuple):
    """The files that belong to the dataset, and the names of all that unpacking may leave."""

    files: dict[str, Listed]
    all_files: frozenset[str]


class ForeignTree:
    """The files in a 7z or rar archive. Those formats pack many members into one stream, so all is unpacked at once.

    Args:
        source: the archive's bytes; closed with the tree.
        spool: a folder on a local disk with room for the content; created if need be.
        limits: what the listing may promise.
        cancellation: looked at several times a second while 7-Zip works, and between the parts of a copy.

    Raises:
        MissingDependencyError: neither a tool nor a package that reads it is there.
        ArchiveError: it is encrypted.
        CorruptArchiveError: it is truncated or damaged.
        UnsafeArchiveError: a member that no archive should have, or more content than `limits` allow.
        TargetNotWritableError: nothing can be written in `spool`.
    """

    def __init__(
        self,
        source: ByteSource,
        *,
        spool: Path,
        limits: ArchiveLimits = DEFAULT_LIMITS,
        cancellation: Cancellation | None = None,
    ) -> None:
        self._source = source
        kind = foreign_kind(source.pread(HEAD_BYTES, 0))
        if kind is None:
            msg = f"'{source.label}' is neither a 7z nor a rar archive."
            raise CorruptArchiveError(msg)
        self._kind: TreeKind = kind
        make_folder(spool)
        self._folder = temp_beside(spool / "unpacked")
        try:
            cancellation = cancellation or Cancellation()
            with _as_file(source, temp_beside(spool / "archive"), cancellation) as (path, handle):
                reader = find_reader(kind, path, source.label, handle, cancellation)
                self._files = self._unpack(reader, limits)
        except BaseException:
            remove_own(self._folder)
            raise
        self._entries = tuple(
            FileEntry(name, listed.size, self._mtime_ns(name), number, listed.executable)
            for number, (name, listed) in enumerate(sorted(self._files.items()))
        )

    def _unpack(self, reader: Reader, limits: ArchiveLimits) -> dict[str, Listed]:
        members = reader.members()
        if not members and self._source.size > _EMPTY_BYTES:
            msg = f"'{self.label}' is damaged: no member can be found in it. Copy or upload the archive again."
            raise CorruptArchiveError(msg)
        total = sum(member.size for member in members)
        check_limits(self.label, len(members), total, self._source.size, limits)
        checked = _check_members(self.label, members)
        self._folder.mkdir()
        reader.unpack(self._folder, largest=max((member.size for member in members), default=0), total=total)
        _check_unpacked(self.label, self._folder, checked)
        return checked.files

    def _mtime_ns(self, name: str) -> int:
        return (self._folder / name).lstat().st_mtime_ns

    @property
    def kind(self) -> TreeKind:
        """`"7z"` or `"rar"`."""
        return self._kind

    @property
    def label(self) -> str:
        """The archive's address."""
        return self._source.label

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing is left out."""
        return ()

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """All files, sorted by name."""
        return self._entries

    def read(self, entry: FileEntry) -> bytes:
        """The whole content of one member; its checksum was verified when it was unpacked.

        Raises:
            OSError: as the disk answers.
            SourceReadError: the entry is another tree's, or its file is gone.
        """
        with self._opened(entry) as handle:
            data = pread_exactly(handle, entry.size, 0)
        if len(data) != entry.size:
            raise cut_while_read(self.label, entry.name)
        return data

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """The content of one member in pieces of at most 16 MiB.

        Raises:
            As `read`.
        """
        with self._opened(entry) as handle:
            for offset, length in block_ranges(entry.size, PIECE_BYTES):
                data = pread_exactly(handle, length, offset)
                if len(data) != length:
                    raise cut_while_read(self.label, entry.name)
                yield data

    @contextlib.contextmanager
    def _opened(self, entry: FileEntry) -> Iterator[int]:
        if entry.name not in self._files:
            raise foreign_entry(self.label, entry.name)
        handle = os.open(self._folder / entry.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            yield handle
        finally:
            os.close(handle)

    def move(self, entry: FileEntry, place: Path) -> None:
        """Give one file away, to `place` on the same disk; it cannot be read here any more.

        Raises:
            OSError: as the disk answers.
        """
        unpacked = self._folder / entry.name
        unpacked.chmod(0o755 if entry.executable else 0o644)
        rename_own(unpacked, place)

    def close(self) -> None:
        """Close the source and remove what was unpacked. Calling it twice is fine."""
        remove_own(self._folder)
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def _as_file(source: ByteSource, temp: Path, cancellation: Cancellation) -> Iterator[tuple[str, int]]:
    """A path at which a tool finds the archive's bytes, and the handle that it depends on."""
    owners = owners_bytes(source)
    if isinstance(owners, LocalBytes):
        yield f"/proc/self/fd/{owners.fileno()}", owners.fileno()
        return
    try:
        with temp.open("xb") as copy:
            for offset, length in block_ranges(source.size, PIECE_BYTES):
                cancellation.check()
                copy.write(source.pread(length, offset))
            copy.flush()
            yield str(temp), copy.fileno()
    finally:
        remove_own(temp)


def _check_members(archive: str, members: list[Listed]) -> _Checked:
    """The rules of `names` for all that is listed; links are none that a tool should follow, so they are refused."""
    files: dict[str, Listed] = {}
    names: list[str] = []
    folders: list[str] = []
    for member in members:
        if member.is_folder:
            folders.append(clean_folder_name(archive, member.name))
            continue
        name = clean_member_name(archive, member.name)
        if member.is_link:
            raise refuse_member(archive, name, "it is a link, which is not read from such an archive")
        names.append(name)
        files[name] = member
    check_collisions(archive, names, folders)
    kept = {name: member for name, member in files.items() if not is_junk(name)}
    return _Checked(kept, frozenset(files))


def _check_unpacked(archive: str, folder: Path, checked: _Checked) -> None:
    """Look at all that the tool left: nothing but the listed files, each with its size and checksum.

    Raises:
        UnsafeArchiveError: something else is there.
        CorruptArchiveError: a file is missing or not what was listed.
    """
    found = set(_walk(archive, folder))
    if extra := found - checked.all_files:
        msg = f"'{archive}' is refused: it unpacks to {min(extra)!r}, which it does not list."
        raise UnsafeArchiveError(msg)
    for name, listed in checked.files.items():
        if name not in found:
            msg = f"'{archive}' is damaged: {name!r} was not unpacked. Copy or upload the archive again."
            raise CorruptArchiveError(msg)
        _check_file(archive, name, folder / name, listed)


def _walk(archive: str, folder: Path, prefix: str = "") -> Iterator[str]:
    with os.scandir(folder) as scan:
        for entry in scan:
            name = f"{prefix}{entry.name}"
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                os.chmod(entry.path, 0o755)  # noqa: PTH101  # an entry's path
                yield from _walk(archive, folder / entry.name, f"{name}/")
            elif stat.S_ISREG(mode):
                yield name
            else:
                msg = f"'{archive}' is refused: {name!r} unpacks to a link or a device."
                raise UnsafeArchiveError(msg)


def _check_file(archive: str, name: str, path: Path, listed: Listed) -> None:
    crc = size = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(1 << 20):
            size += len(piece)
            crc = isal_zlib.crc32(piece, crc)
    if size != listed.size or (listed.crc is not None and crc != listed.crc):
        msg = f"The member {name!r} of '{archive}' is damaged: it is not what the archive lists. Copy it again."
        raise CorruptArchiveError(msg)
