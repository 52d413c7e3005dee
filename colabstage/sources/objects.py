"""Read from services that fsspec knows, or that installed packages add: an object as a `RemoteFile`, a folder as a
`Tree`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from colabstage.errors import SourceChangedError, SourceError, SourceNotFoundError, SourceReadError
from colabstage.io.arguments import names_like
from colabstage.io.environment import require_online
from colabstage.io.files import PATIENT, RetryPolicy, hash_block
from colabstage.io.packages import added_by_packages
from colabstage.io.units import left_out, show_address
from colabstage.sources.buckets import PIECE_BYTES, ObjectStore
from colabstage.sources.fsspec_answers import checksum_of, mtime_ns_of, size_of, version_of
from colabstage.sources.parse import split_pattern
from colabstage.sources.remote import (
    Access,
    RemoteFacts,
    RemoteFile,
    Services,
    TransientError,
    given_up,
    with_retries,
)
from colabstage.sources.remote_files import RemoteFileTree
from colabstage.trees.bytes import ARCHIVE_SUFFIXES
from colabstage.trees.names import clean_member_name, is_junk, parent_folders, refuse_member, with_wildcards

# What an installed package opens at an address of its scheme, the name of an entry point in the group
# "colabstage.sources": a file; or for each file of a folder its name in it, and what opens it, any number of times.
Found: TypeAlias = RemoteFile | Mapping[str, Callable[[], RemoteFile]]


class ObjectFile(RemoteFile):
    """Read one object as a `RemoteFile`. All bytes are of `facts.version`: this is checked at the end of each range,
    unless the whole object came in one response, which is of one version.

    The last piece of a range is returned after that. So a complete range has been checked, and everything read before
    the check was read while the version was still the first one.
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
        return self._store.notes

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        size, label = self.facts.size, self.facts.label
        end = size if length is None else offset + length
        is_one_answer = offset == 0 and end is not None and end == size and end < PIECE_BYTES
        # One byte more than listed, so that a longer object is noticed without another request.
        asked = end + 1 if is_one_answer and end is not None else end
        at = offset
        # The last piece is held back until the version has been checked.
        held = b""
        try:
            for piece in self._store.read(self._path, offset, asked) if end is None or offset < end else ():
                at += len(piece)
                if held:
                    yield held
                held = piece
        except TransientError:
            # It is valid, and not the last: otherwise retries would never progress on a service that breaks off
            # repeatedly.
            if held and end is not None and at < end:
                yield held
            raise
        except SourceError:
            # Reads of an object that shrank or vanished fail in many ways.
            self._check_version()
            raise
        if at != end if is_one_answer else self._asks_version:
            self._check_version()
        if end is not None and at > end:
            msg = f"'{label}' sent more than was requested: its service has no range requests."
            raise SourceReadError(msg)
        if end is not None and at < end:
            msg = f"'{label}' was cut off at byte {at:,} of {end:,}. Try again."
            raise TransientError(msg)
        if held:
            yield held

    def without_version_check(self) -> ObjectFile:
        """Return the same object, for a reader that compares hashes; it is closed with this one."""
        return ObjectFile(self._store, self._path, self.facts, owns_store=False, asks_version=False)

    def open_again(self) -> ObjectFile | None:
        store = self._store.open_again()
        return None if store is None else ObjectFile(store, self._path, self.facts)

    def close(self) -> None:
        if self._owns_store:
            self._store.close()

    def _check_version(self) -> None:
        try:
            info = self._store.info(self._path)
        except SourceNotFoundError as error:
            msg = f"'{self.facts.label}' was removed while it was read."
            raise SourceChangedError(msg) from error
        now, then = version_of(info), self.facts.version
        # A listing may contain less than an object's own metadata.
        if size_of(info) != self.facts.size or (now and then and now != then):
            msg = (
                f"'{self.facts.label}' changed while it was read (version '{then}' became '{now}'). Wait until its "
                "upload is complete, then fetch it again."
            )
            raise SourceChangedError(msg)


def _open_folder(store: ObjectStore, *, pattern: str = "", workers: int, retry: RetryPolicy) -> RemoteFileTree:
    """Return the files below a folder of any service that fsspec knows, as they are listed now; closed with its store.

    Empty objects that stand for folders, operating systems' junk files, and links (with a note) are left out. With a
    `pattern`, only what matches it is read, a folder with all that is in it.
    """
    wanted = re.compile(f"(?:{with_wildcards(pattern)})(?:/.*)?" if pattern else ".*", re.DOTALL)

    def list_rows() -> list[dict[str, Any]]:
        # There may be far more below the folder than in it.
        rows = store.list_folder(store.path) if pattern and "/" not in pattern and "**" not in pattern else []
        folders = [row for row in rows if row.get("type") == "directory"]
        if rows and not any(wanted.fullmatch(str(row["name"]).rstrip("/").rpartition("/")[2]) for row in folders):
            return [row for row in rows if row not in folders]
        return store.list_files(workers=workers)

    # To see whether they are archives, the files of a pattern were listed right before.
    rows = store.listings.pop(whole := f"{store.path}/{pattern}", None)
    if rows is None:
        with given_up():
            rows = with_retries(list_rows, retry)
        if pattern:
            store.listings[whole] = rows
    listing, notes = _sort_listing(store, rows)
    members = {name: member for name, member in listing.items() if wanted.fullmatch(name)}
    if pattern and not members:
        msg = f"Nothing fits the pattern '{store.label}/{pattern}'. {names_like(pattern, store.label, sorted(listing))}"
        raise SourceNotFoundError(msg)
    lines = (f"{name}\t{facts.size}\t{facts.version}" for name, (_, facts) in sorted(members.items()))
    return RemoteFileTree(
        "/".join(filter(None, (store.label, pattern))),
        [(name, partial(ObjectFile, store, *member, owns_store=False)) for name, member in members.items()],
        policy=retry,
        stamp=hash_block("\n".join(lines).encode(errors="surrogateescape")),
        facts=[facts for _, facts in members.values()],
        notes=(*store.notes, *notes),
        on_close=store.close,
    )


def _sort_listing(
    store: ObjectStore, rows: Sequence[dict[str, Any]]
) -> tuple[dict[str, tuple[str, RemoteFacts]], list[str]]:
    """Return the path and facts of each file by its name, and notes on what was left out."""
    label, root = store.label, store.path.rstrip("/")
    members: dict[str, tuple[str, RemoteFacts]] = {}
    links = []
    for row in rows:
        path, size = str(row["name"]), size_of(row) or 0
        # Some services list the folder itself among its contents.
        if path.rstrip("/") == root:
            continue
        raw = path.removeprefix(f"{root}/") if root else path.lstrip("/")
        # Not a real file, but a marker of a folder: consoles make `folder/`, Hadoop `folder_$folder$`.
        if size == 0 and (not raw or raw.endswith(("/", "_$folder$"))):
            continue
        name = clean_member_name(label, raw)
        if is_junk(name):
            continue
        if row.get("type") != "file":
            links.append(name)
        else:
            if name in members:
                raise refuse_member(label, raw, "its name occurs twice")
            whole, base = f"{label.rstrip('/')}/{name}", name.rpartition("/")[2]
            members[name] = path, RemoteFacts(whole, base, size, version_of(row), mtime_ns_of(row))
    # Leave out empty objects that have others below them, which also mark folders.
    for name in parent_folders(members) & members.keys():
        if not members[name][1].size:
            del members[name]
    notes = [f"{left_out(len(links), 'links')} (first '{min(links)}')."] if links else []
    return members, notes


def _service_of(address: str) -> Callable[[str], Found] | None:
    """Return what opens the addresses of a scheme; `None` where no package adds it."""
    scheme = address.partition("://")[0].lower()
    found = next(iter(added_by_packages("colabstage.sources").select(name=scheme)), None)
    if found is None:
        return None
    opener: Callable[[str], Found] = found.load()
    return opener


def open_address(
    url: str,
    access: Access = Access(),  # noqa: B008 - frozen
    *,
    workers: int = 32,
) -> RemoteFile | RemoteFileTree:
    """Open what is at an address of a service that fsspec knows, or that an installed package adds: a file or a folder.

    If a bucket has both, an address that ends in a slash means the folder, and an empty object is its marker. A star in
    an address makes it a pattern of what is below the folder before it. `workers`: how many folders are listed at once.
    """
    service = _service_of(url)
    found = _open_in_store(url, access, workers) if service is None else service(url)
    if isinstance(found, Mapping):
        return RemoteFileTree(show_address(url), list(found.items()), policy=access.policy, askers=workers)
    if access.checksum is not None and not isinstance(found, RemoteFileTree):
        found.facts = replace(found.facts, checksum=access.checksum)
    return found


def _open_in_store(url: str, access: Access, workers: int) -> ObjectFile | RemoteFileTree:
    folder, pattern = split_pattern(url)
    store = ObjectStore(folder, access.cancellation, access.services)
    with contextlib.ExitStack() as on_error:
        on_error.callback(store.close)
        if pattern and store.exists(whole := f"{store.path}/{pattern}"):
            store.path, store.label, pattern = whole, f"{store.label}/{pattern}", ""
        info = store.info()
        size = size_of(info)
        may_be_marker = store.folders_are_prefixes and (url.endswith("/") or size == 0)
        is_folder = pattern or info.get("type") == "directory" or (may_be_marker and store.list_folder(store.path))
        found: ObjectFile | RemoteFileTree
        if is_folder:
            found = _open_folder(store, pattern=pattern, workers=workers, retry=access.policy)
        else:
            facts = RemoteFacts(
                label=store.label,
                name=store.path.rstrip("/").rpartition("/")[2],
                size=size,
                version=version_of(info),
                mtime_ns=mtime_ns_of(info),
                checksum=checksum_of(info),
                ranges=size is not None,
                connections=store.connections if size is not None else 1,
            )
            found = ObjectFile(store, store.path, facts)
        on_error.pop_all()
    return found


def is_object_folder(url: str, services: Services) -> bool:
    """Return whether an address is of a folder, or with a star stands for files, without listing it."""
    if split_pattern(url)[1] or _service_of(url) is not None:
        return bool(split_pattern(url)[1])
    require_online(show_address(url))
    with given_up(), ObjectStore(url, services=services) as store:
        return bool(store.info().get("type") == "directory")


def archives_matching(url: str, services: Services | None) -> list[str]:
    """Return the address of each archive that an address with a star stands for; none if it stands for other files."""
    folder, pattern = split_pattern(url)
    if not pattern or _service_of(url) is not None:
        return []
    require_online(show_address(url))
    with contextlib.closing(open_address(url, Access(policy=PATIENT, services=services))) as found:
        names = found.entries.names if isinstance(found, RemoteFileTree) else []
    are_archives = all(name.lower().endswith(ARCHIVE_SUFFIXES) for name in names)
    return [f"{folder}/{name}" for name in names] if are_archives else []
