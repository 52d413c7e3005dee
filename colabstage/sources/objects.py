"""Read from services that fsspec knows, or that installed packages add: an object as a `RemoteFile`, a folder as a
`Tree`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from colabstage.errors import SourceChangedError, SourceError, SourceNotFoundError, SourceReadError
from colabstage.io.files import RetryPolicy, hash_block
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.redaction import show_address
from colabstage.io.units import left_out
from colabstage.sources.buckets import ObjectStore
from colabstage.sources.fsspec_answers import checksum_of, mtime_ns_of, size_of, version_of
from colabstage.sources.remote import RemoteFacts, RemoteFile, TransientError
from colabstage.sources.remote_files import RemoteFileTree
from colabstage.sources.retry import RetryBudget, read_directly, read_through
from colabstage.sources.services import service_of
from colabstage.trees.bytes import RequestedBytes
from colabstage.trees.folder import GOOGLE_NATIVE
from colabstage.trees.listing import FileEntries, FileEntry, FileStates, Tree, hash_texts, unknown_entry
from colabstage.trees.names import check_collisions, clean_member_name, is_junk, parent_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.io.progress import Clock
    from colabstage.sources.remote import Checksum
    from colabstage.trees.bytes import ByteSource

# The length to request if an object is expected to be shorter.
_SHORT_BYTES = 1024 * 1024


class ObjectFile(RemoteFile):
    """Read one object as a `RemoteFile`. All bytes are of `facts.version`: the service is asked at the end of each
    range.

    The last piece of a range is returned after that, so that a complete range has been checked, and everything read
    before the check was read while the version was still the first one.
    """

    def __init__(
        self, store: ObjectStore, path: str, facts: RemoteFacts, *, owns_store: bool = True, asks_version: bool = True
    ) -> None:
        self._store = store
        self._path = path
        self.facts = facts
        self._owns_store = owns_store
        self._asks_version = asks_version

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences for the user, for example that it was read without a login."""
        return self._store.notes

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Return the content from `offset` on, in pieces of at most a megabyte; see `RemoteFile`."""
        size = self.facts.size
        if offset and not self.facts.ranges:
            msg = f"'{self.facts.label}' can only be read from its beginning; its service has no range requests."
            raise SourceReadError(msg)
        end = size if length is None else offset + length
        at = offset
        # The last piece is held back until the version has been checked.
        held = b""
        try:
            for piece in self._store.read(self._path, offset, end) if end is None or offset < end else ():
                at += len(piece)
                if end is not None and at > end:
                    msg = f"'{self.facts.label}' sent more than was requested: its service has no range requests."
                    raise SourceReadError(msg)
                if held:
                    yield held
                held = piece
        except TransientError:
            # It is good, and not the last: otherwise retries would never progress on a service that breaks off
            # repeatedly.
            if held and end is not None and at < end:
                yield held
            raise
        except SourceError:
            # Reads of an object that shrank or vanished fail in many ways.
            self._check_version()
            raise
        if self._asks_version:
            self._check_version()
        if end is not None and at < end:
            msg = f"'{self.facts.label}' was cut off at byte {at:,} of {end:,}."
            raise TransientError(msg)
        if held:
            yield held

    def without_version_check(self) -> ObjectFile:
        """Return the same object, for a reader that compares hashes; it is closed with this one."""
        return ObjectFile(self._store, self._path, self.facts, owns_store=False, asks_version=False)

    def close(self) -> None:
        """Close the connections. Calling it twice is fine."""
        if self._owns_store:
            self._store.close()

    def _check_version(self) -> None:
        try:
            info = self._store.info(self._path)
        except SourceNotFoundError as error:
            msg = f"'{self.facts.label}' was removed while it was read."
            raise SourceChangedError(msg) from error
        now, then = version_of(info), self.facts.version
        # A listing may contain less than the facts on one object.
        if size_of(info) != self.facts.size or (now and then and now != then):
            msg = (
                f"'{self.facts.label}' changed while it was read (version '{then}' became '{now}'). Wait until its "
                "upload is complete, then fetch it again."
            )
            raise SourceChangedError(msg)


T = TypeVar("T")


class _StoreEntry(NamedTuple):
    """Describe an entry in the service's terms."""

    path: str
    """Its name in the service."""
    version: str
    """Its version in the listing."""


class _Listing(NamedTuple):
    """Hold the result of a listing."""

    entries: list[FileEntry]
    """The files of the tree."""
    members: dict[str, _StoreEntry]
    """Their names in the service and versions, by name."""
    native: list[str]
    """Google's own documents, which are not files."""
    links: list[str]
    """Links that do not lead to a file."""


class ObjectTree(Tree):
    """Read the files below a folder of any service that fsspec knows, as listed when this is made.

    Empty objects that stand for folders, operating systems' junk files, and Google's own documents (with a note) are
    left out.

    Args:
        url: such as `s3://bucket/train`.
        workers: how many folders are listed at once, if the service does not list everything in one answer.
        retry: how often an object is requested again after transient failures.
        clock: replaced in tests.

    Raises:
        OptionError, MissingDependencyError, SourceNotFoundError, SourceAccessError: as `open_object`.
        SourceReadError: it is a file, or the listing failed after several tries.
        UnsafeArchiveError: a folder cannot hold one of the names: `..`, an absolute name, a file that is also a folder.
    """

    kind = "folder"
    by_request = True

    def __init__(
        self,
        url: str,
        *,
        workers: int = 16,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = ObjectStore(url, clock=clock)
        self.label = self._store.label
        self._retry = retry
        self._clock = clock
        try:
            # Waiting cannot be reported to anybody yet.
            listed = self._patiently(lambda: self._list(workers), replace(retry, patience_s=0.0))
        except BaseException:
            self._store.close()
            raise
        # Services list in their own order; trees are sorted by name.
        self.entries = FileEntries.of(sorted(listed.entries, key=lambda entry: entry.name))
        self._members = listed.members
        self.notes = (*self._store.notes, *_notes(listed))

    @property
    def stamp(self) -> str:
        """Return a hash of all names, sizes and versions: the same while nothing is added, removed or rewritten."""
        lines = (f"{entry.name}\t{entry.size}\t{self._members[entry.name].version}" for entry in self.entries)
        return hash_block("\n".join(lines).encode(errors="surrogateescape"))

    def file_states(self) -> FileStates:
        versions = hash_texts(self._members[name].version for name in self.entries.names)
        return FileStates(np.zeros_like(versions), versions)

    def read(self, entry: FileEntry) -> bytes:
        """Return the whole content of one object, with retries after transient failures.

        Raises:
            SourceChangedError: it is no longer `entry.size` bytes long.
            SourceNotFoundError, SourceAccessError, SourceReadError: as the service answers.
        """
        # There is nothing to request, and some services refuse an empty range.
        if not entry.size:
            return b""
        path = self._member(entry).path
        # One byte more than listed, so that a longer object is noticed without another request.
        data = self._patiently(lambda: b"".join(self._store.read(path, 0, entry.size + 1)), self._retry)
        if len(data) != entry.size:
            found = f"{len(data):,} bytes were there" if len(data) < entry.size else "there is more"
            msg = (
                f"'{self.label.rstrip('/')}/{entry.name}' was listed with {entry.size:,} bytes, but {found}: it "
                "changed while being read. Wait until its upload is complete, then stage again."
            )
            raise SourceChangedError(msg)
        return data

    def open(self, entry: FileEntry) -> ByteSource:
        """Return the bytes of one object; each part is requested when it is read."""
        label = f"{self.label}/{entry.name}"
        return RequestedBytes(lambda length, offset: self.read_part(entry, offset, length), entry.size, label=label)

    def read_part(self, entry: FileEntry, offset: int, length: int) -> bytes:
        """Return a part of one object. If the service breaks off, received bytes are not requested again; afterwards
        the service is asked whether the object is still the listed one.

        Raises:
            SourceChangedError: the object has changed.
            SourceNotFoundError, SourceAccessError, SourceReadError: as the service answers.
        """
        found = read_directly(
            self._object(entry), offset, length, policy=self._retry, clock=self._clock, tell=self._wait_for
        )
        self._wait_for("")
        return found

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Return the content in pieces of at most a megabyte; verified before the last one.

        Raises:
            SourceChangedError: it is no longer the listed object.
            SourceNotFoundError, SourceAccessError, SourceReadError: as the service answers.
        """
        if not entry.size:  # nothing to ask for
            return
        # The last piece comes after the check that it is still the same object.
        for piece in read_through(self._object(entry), policy=self._retry, clock=self._clock, tell=self._wait_for):
            self._wait_for("")
            yield piece

    def close(self) -> None:
        """Close the connections. Calling it twice is fine."""
        self._store.close()

    def _list(self, workers: int) -> _Listing:
        root = self._store.path.rstrip("/")
        is_file = self._store.info().get("type") != "directory"
        listed = [] if is_file and not self._store.folders_are_prefixes else self._store.list_files(workers=workers)
        # Some services list the folder itself among its contents.
        rows = [row for row in listed if str(row["name"]).rstrip("/") != root]
        if is_file and not rows:
            msg = f"'{self.label}' is a file, not a folder."
            raise SourceReadError(msg)
        return _sort_listing(self.label, root, rows)

    def _object(self, entry: FileEntry) -> ObjectFile:
        member = self._member(entry)
        facts = RemoteFacts(
            label=f"{self.label.rstrip('/')}/{entry.name}",
            name=entry.name.rpartition("/")[2],
            size=entry.size,
            version=member.version,
            mtime_ns=entry.mtime_ns,
        )
        return ObjectFile(self._store, member.path, facts, owns_store=False)

    def _member(self, entry: FileEntry) -> _StoreEntry:
        try:
            return self._members[entry.name]
        except KeyError:
            raise unknown_entry(self.label, entry.name) from None

    def _patiently(self, ask: Callable[[], T], policy: RetryPolicy) -> T:
        """Return the answer to a request that has to be answered as a whole, with retries if it breaks off."""
        budget = RetryBudget(policy, self._clock)
        while True:
            try:
                found = ask()
            except TransientError as error:
                budget.rest(error, self.label, arrived=0, sleep=self._clock.sleep, tell=self._wait_for)
            else:
                self._wait_for("")
                return found

    def _wait_for(self, why: str) -> None:
        self.waits_for = why


def _sort_listing(label: str, root: str, rows: list[dict[str, Any]]) -> _Listing:
    """Judge a listing's names; the service is not contacted."""
    listed = _Listing([], {}, [], [])
    sizes: dict[str, int] = {}
    for position, row in enumerate(rows):
        path = str(row["name"])
        size = size_of(row) or 0
        raw = path.removeprefix(f"{root}/") if root else path.lstrip("/")
        # Not a real file, but a marker of a folder: consoles make `folder/`, Hadoop `folder_$folder$`.
        if size == 0 and (not raw or raw.endswith(("/", "_$folder$"))):
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
            listed.members[name] = _StoreEntry(path, version_of(row))
            listed.entries.append(FileEntry(name, size, mtime_ns_of(row), position))
    # Leave out empty objects that have others below them, which also mark folders; refuse those with content. Here a
    # name cannot be both a file and a folder, although buckets allow it.
    markers = {name for name in parent_folders(sizes) if sizes.get(name) == 0}
    check_collisions(label, [name for name in sizes if name not in markers], [])
    return listed._replace(
        entries=[entry for entry in listed.entries if entry.name not in markers],
        members={name: member for name, member in listed.members.items() if name not in markers},
    )


def _notes(listed: _Listing) -> tuple[str, ...]:
    notes = []
    if listed.native:
        notes.append(
            f"{left_out(len(listed.native), 'Google documents')} (first '{min(listed.native)}'): they are links, "
            "not content. Export them from Drive if they belong to the dataset."
        )
    if listed.links:
        notes.append(f"{left_out(len(listed.links), 'links', 'to no file')} (first '{min(listed.links)}').")
    return tuple(notes)


def open_object(url: str, *, checksum: Checksum | None = None) -> RemoteFile:
    """Open one file of a service that fsspec knows, or that an installed package adds.

    Args:
        url: such as `s3://bucket/data.zip`.
        checksum: the expected hash of its whole content; otherwise the service's own, if it is certain.

    Raises:
        OptionError: not an address that fsspec knows.
        MissingDependencyError: the protocol's package is not installed.
        SourceNotFoundError: there is nothing; the message says what is there instead.
        SourceAccessError: a login or a permission is missing; the message says how to give it.
        TransientError: the service does not answer at present.
        SourceReadError: it is a folder, or the service fails in another way.
    """
    if (service := service_of(url)) is not None:
        found = service(url)
        if isinstance(found, Mapping):
            raise _is_folder(show_address(url))
        if checksum is not None:
            found.facts = replace(found.facts, checksum=checksum)
        return found
    store = ObjectStore(url)
    try:
        facts = _facts_of_object(store, checksum)
    except BaseException:
        store.close()
        raise
    return ObjectFile(store, store.path, facts)


def read_at_once(url: str) -> bytes | None:
    """Return all of a short object with one request; `None` if that is not enough: an object of a mebibyte or more,
    another kind of service, a refused login, a transient failure. `open_object` then reads it, or says what is wrong.

    Raises:
        OptionError, MissingDependencyError, SourceNotFoundError: as `open_object`.
    """
    if service_of(url) is not None:
        return None
    store = ObjectStore(url)
    try:
        # Other services have to be asked for the size first, and so does s3fs for ranges without an end.
        data = b"".join(store.read(store.path, 0, _SHORT_BYTES)) if store.folders_are_prefixes else b""
        return data if 0 < len(data) < _SHORT_BYTES else None
    except SourceNotFoundError:
        raise
    except SourceError:
        return None
    finally:
        store.close()


def object_kind(url: str) -> Literal["file", "folder"]:
    """Return whether an address is that of a file or of a folder.

    If a bucket has both, an address that ends in a slash means the folder, and an empty object is its marker.

    Raises:
        OptionError, MissingDependencyError, SourceNotFoundError, SourceAccessError, TransientError, SourceReadError: as
            for `open_object`.
    """
    if (service := service_of(url)) is not None:
        found = service(url)
        if isinstance(found, Mapping):
            return "folder"
        found.close()
        return "file"
    store = ObjectStore(url)
    try:
        info = store.info()
        if info.get("type") == "directory":
            return "folder"
        may_be_marker = store.folders_are_prefixes and (url.endswith("/") or size_of(info) == 0)
        return "folder" if may_be_marker and store.list_folder(store.path) else "file"
    finally:
        store.close()


def open_folder(url: str, *, workers: int, retry: RetryPolicy) -> Tree:
    """Return the files of a folder; the arguments as of `ObjectTree`."""
    service = service_of(url)
    if service is None:
        return ObjectTree(url, workers=workers, retry=retry)
    found, label = service(url), show_address(url)
    if not isinstance(found, Mapping):
        found.close()
        msg = f"'{label}' is a file, not a folder."
        raise SourceReadError(msg)
    return RemoteFileTree(label, list(found.items()), policy=retry, askers=workers)


def _is_folder(label: str) -> SourceReadError:
    return SourceReadError(f"'{label}' is a folder, not a file.")


def _facts_of_object(store: ObjectStore, checksum: Checksum | None) -> RemoteFacts:
    info = store.info()
    if info.get("type") == "directory":
        raise _is_folder(store.label)
    size = size_of(info)
    return RemoteFacts(
        label=store.label,
        name=store.path.rstrip("/").rpartition("/")[2],
        size=size,
        version=version_of(info),
        mtime_ns=mtime_ns_of(info),
        checksum=checksum or checksum_of(info),
        ranges=size is not None,
        connections=store.connections if size is not None else 1,
    )
