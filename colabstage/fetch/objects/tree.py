"""A folder of a remote service as a tree: listed once, its objects read whole or in parts, many at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from colabstage.errors import SourceChangedError, SourceReadError
from colabstage.fetch.objects.file import ObjectFile, mtime_ns_of, size_of, version_of
from colabstage.fetch.objects.store import ObjectStore
from colabstage.fetch.remote import PassingError, RemoteFacts
from colabstage.fileops import hash_block
from colabstage.retry import RetryPolicy
from colabstage.trees.folder import GOOGLE_NATIVE
from colabstage.trees.names import check_collisions, clean_member_name, is_junk, parent_folders
from colabstage.trees.tree import FileEntry, TreeKind, foreign_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

T = TypeVar("T")


class _Member(NamedTuple):
    """What an entry is called by the service, and its version in the listing."""

    path: str
    version: str


class _Listed(NamedTuple):
    entries: list[FileEntry]
    members: dict[str, _Member]
    native: list[str]
    links: list[str]


class ObjectTree:
    """The files below a folder of any service that fsspec knows. Listed when it is made, and stays as it was then.

    Left out: the empty objects that stand for folders, junk of operating systems, Google's own documents (with a note).

    Args:
        url: such as `s3://bucket/train`.
        workers: how many folders are listed at once, where the service does not list all of them in one answer.
        storage_options: for fsspec's file system, as for `open_object`.
        retry: how often an object is asked for again when the service fails in a way that passes.

    Raises:
        OptionError, MissingDependencyError, SourceNotFoundError, SourceAccessError, PassingError: as for `open_object`.
        SourceReadError: it is a file, or the listing failed.
        UnsafeArchiveError: a name is one that no folder can hold: `..`, absolute, a file that is also a folder.
    """

    def __init__(
        self,
        url: str,
        *,
        workers: int = 16,
        storage_options: Mapping[str, Any] | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
    ) -> None:
        self._store = ObjectStore(url, storage_options)
        self._retry = retry
        try:
            listed = self._patiently(lambda: self._list(workers))
        except BaseException:
            self._store.close()
            raise
        self._entries = tuple(sorted(listed.entries, key=lambda entry: entry.name))
        self._members = listed.members
        self._notes = (*self._store.notes, *_notes(listed))

    @property
    def kind(self) -> TreeKind:
        """`"folder"`: many files, each read by itself."""
        return "folder"

    @property
    def label(self) -> str:
        """The folder's address, without secrets."""
        return self._store.label

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, and whether it was read without a login."""
        return self._notes

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """All files, sorted by name; `position` is the place in the listing."""
        return self._entries

    @property
    def stamp(self) -> str:
        """A hash of all names, sizes and versions: the same as long as nothing was added, removed or rewritten."""
        lines = (f"{entry.name}\t{entry.size}\t{self._members[entry.name].version}" for entry in self._entries)
        return hash_block("\n".join(lines).encode(errors="surrogateescape"))

    def read(self, entry: FileEntry) -> bytes:
        """The whole content of one object, tried again where the failure passes.

        Raises:
            SourceChangedError: it is not `entry.size` bytes long any more.
            SourceNotFoundError, SourceAccessError, PassingError, SourceReadError: as the service answers.
        """
        if not entry.size:
            return b""
        path = self._member(entry).path
        # One byte more than listed: a longer object shows without a further question.
        data = self._patiently(lambda: b"".join(self._store.read(path, 0, entry.size + 1)))
        if len(data) != entry.size:
            raise self._changed(entry, len(data))
        return data

    def read_part(self, entry: FileEntry, offset: int, length: int) -> bytes:
        """A part of one object; that the object is still the listed one is checked with the service after it.

        Raises:
            SourceChangedError: it is another one.
            SourceNotFoundError, SourceAccessError, PassingError, SourceReadError: as the service answers.
        """
        file = self._open(entry)
        return self._patiently(lambda: b"".join(file.read_range(offset, length)))

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """The content in pieces of at most a megabyte; verified when the last has come.

        Raises:
            SourceChangedError: it is another object than the listed one.
            SourceNotFoundError, SourceAccessError, PassingError, SourceReadError: as the service answers.
        """
        file = self._open(entry)
        at = tries = 0
        while at < entry.size:  # the last piece comes after the question whether it is still the same object
            try:
                for piece in file.read_range(at, entry.size - at):
                    at += len(piece)
                    tries = 0
                    yield piece
            except PassingError as error:
                tries += 1
                self._rest(tries, error)

    def close(self) -> None:
        """Hang up. Calling it twice is fine."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _list(self, workers: int) -> _Listed:
        root = self._store.path.rstrip("/")
        is_file = self._store.info().get("type") != "directory"
        listed = [] if is_file and not self._store.folders_are_prefixes else self._store.list_files(workers=workers)
        rows = [row for row in listed if str(row["name"]).rstrip("/") != root]
        if is_file and not rows:
            msg = f"'{self.label}' is a file, not a folder."
            raise SourceReadError(msg)
        return _sort_in(self.label, root, rows)

    def _open(self, entry: FileEntry) -> ObjectFile:
        member = self._member(entry)
        facts = RemoteFacts(
            label=f"{self.label.rstrip('/')}/{entry.name}",
            name=entry.name.rpartition("/")[2],
            size=entry.size,
            version=member.version,
            mtime_ns=entry.mtime_ns,
        )
        return ObjectFile(self._store, member.path, facts, owns_store=False)

    def _member(self, entry: FileEntry) -> _Member:
        try:
            return self._members[entry.name]
        except KeyError:
            raise foreign_entry(self.label, entry.name) from None

    def _changed(self, entry: FileEntry, got: int) -> SourceChangedError:
        found = f"{got:,} bytes were there" if got <= entry.size else "there is more"
        return SourceChangedError(
            f"'{self.label.rstrip('/')}/{entry.name}' was listed with {entry.size:,} bytes, but {found}: it changed "
            "while being read. Wait until its upload is complete, then stage again."
        )

    def _patiently(self, read: Callable[[], T]) -> T:
        tries = 0
        while True:
            try:
                return read()
            except PassingError as error:
                tries += 1
                self._rest(tries, error)

    def _rest(self, tries: int, error: PassingError) -> None:
        """Wait before the next try; raise `error` when there have been enough."""
        if tries >= self._retry.attempts:
            raise error
        time.sleep(max(self._retry.first_wait_s * 2 ** (tries - 1), min(error.wait_s or 0.0, 60.0)))


def _sort_in(label: str, root: str, rows: list[dict[str, Any]]) -> _Listed:
    """Judge a listing's names; nothing is asked of the service."""
    listed = _Listed([], {}, [], [])
    sizes: dict[str, int] = {}
    for position, row in enumerate(rows):
        path = str(row["name"])
        size = size_of(row) or 0
        raw = path.removeprefix(f"{root}/") if root else path.lstrip("/")
        if _is_marker(raw, size):
            continue
        name = clean_member_name(label, raw)
        if is_junk(name):
            continue
        if name.lower().endswith(GOOGLE_NATIVE):
            listed.native.append(name)
        elif row.get("type") != "file":
            listed.links.append(name)
        elif name in sizes:
            check_collisions(label, [name, name], [])
        else:
            sizes[name] = size
            listed.members[name] = _Member(path, version_of(row))
            listed.entries.append(FileEntry(name, size, mtime_ns_of(row), position))
    return _without_empty_folders(label, listed, sizes)


def _is_marker(raw: str, size: int) -> bool:
    """Whether an object only stands for a folder: consoles make `folder/`, Hadoop `folder_$folder$`."""
    return size == 0 and (not raw or raw.endswith(("/", "_$folder$")))


def _without_empty_folders(label: str, listed: _Listed, sizes: dict[str, int]) -> _Listed:
    """An empty object that others lie below is a folder's marker as well; one with content is refused."""
    markers = {name for name in parent_folders(sizes) if sizes.get(name) == 0}
    check_collisions(label, [name for name in sizes if name not in markers], [])
    return listed._replace(
        entries=[entry for entry in listed.entries if entry.name not in markers],
        members={name: member for name, member in listed.members.items() if name not in markers},
    )


def _notes(listed: _Listed) -> tuple[str, ...]:
    notes = []
    if listed.native:
        notes.append(
            f"{len(listed.native):,} Google documents were left out (first '{min(listed.native)}'): they are links, "
            "not content. Export them from Drive if they belong to the dataset."
        )
    if listed.links:
        notes.append(f"{len(listed.links):,} links that lead to no file were left out (first '{min(listed.links)}').")
    return tuple(notes)
