"""Single files at addresses, each opened when it is read: one of them, or many that form a dataset."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit

from colabstage.errors import DecodeError, OptionError, SourceError, SourceReadError
from colabstage.io.environment import require_online
from colabstage.io.files import PATIENT, RetryPolicy, read_with_retry
from colabstage.io.pipeline import DaemonPool
from colabstage.io.units import HIDDEN
from colabstage.sources.gdrive import IN_FLIGHT, SharedFolder, open_share
from colabstage.sources.http_file import open_http
from colabstage.sources.kaggle import KaggleFolder, find_kaggle_folder, open_kaggle
from colabstage.sources.parse import KaggleSource, LocalSource, ObjectSource, ShareSource, SingleSource, WebSource
from colabstage.sources.remote import (
    LEADS_NOWHERE,
    LOOK_BYTES,
    NOTHING,
    Access,
    MountedFile,
    RemoteFacts,
    RemoteFile,
    Services,
    given_up,
    read_through,
)
from colabstage.trees.bytes import ByteSource, RequestedBytes
from colabstage.trees.listing import FileEntries, FileEntry, FileStates, Tree, hash_texts
from colabstage.trees.names import check_collisions, clean_member_name, distinct_names, extension_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from colabstage.io.progress import Cancellation

# Sources that can be a single file with an address.
FileSource: TypeAlias = LocalSource | WebSource | ObjectSource | ShareSource | KaggleSource

# How many files are asked for their size at once.
_ASKERS = 16
# How much of a small file arrives with the first answer.
_SMALL_BYTES = 256 * 1024
# The most bytes of a tree's files that arrive with their facts and stay in memory.
_KEPT_BYTES = 128 * 1024 * 1024


def name_remote_files(addresses: Sequence[str]) -> list[str]:
    """Name files by their addresses: the path below the folder that they have in common. Pure.

    Files of one folder have their plain names; files of several servers, or with equal names, keep as much of the
    address as distinguishes them, and if necessary a number.

    >>> name_remote_files(["https://x.org/pets/cat/1.jpg", "https://x.org/pets/dog/1.jpg"])
    ['cat/1.jpg', 'dog/1.jpg']
    """
    parts = [_address_steps(address) for address in addresses]
    depth = 0
    while all(len(steps) > depth + 1 for steps in parts) and len({steps[depth] for steps in parts}) == 1:
        depth += 1
    names = ["/".join(steps[depth:]) for steps in parts]
    bases = [steps[-1] for steps in parts]
    if depth == 0 and len({base.lower() for base in bases}) == len(bases):
        names = bases  # nothing in common: the servers' names say nothing about the files
    return list(distinct_names(names, of_files=True))


def _address_steps(address: str) -> list[str]:
    parts = urlsplit(address) if "://" in address else None
    steps = [parts.netloc, *unquote(parts.path).split("/")] if parts else address.split("/")
    return [step for step in steps if step not in ("", ".", "..")] or ["file"]


class RemoteFileTree(Tree):
    """A tree of files anywhere, each opened when it is read. Their sizes are requested when it is made.

    `files`: the name of each in the tree, and what opens it, any number of times; in the order in which to read. A name
    without an ending gets that of the file as its service names it. A file on the web is only opened by it once: what
    came with its facts is not requested again.
    `stamp`: what is the same while no file is added, removed or renamed; "" if nothing tells. `facts`: what is known of
    each file already, as from a listing; otherwise each is opened for it. `skips`: whether an address that leads to no
    file counts as a file that cannot be decoded, unless all do. `on_close`: called when the tree is closed.
    """

    kind = "folder"
    by_request = True

    def __init__(
        self,
        label: str,
        files: Sequence[tuple[str, Callable[[], RemoteFile]]],
        *,
        policy: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        cancellation: Cancellation | None = None,
        askers: int = _ASKERS,
        stamp: str = "",
        facts: Sequence[RemoteFacts] | None = None,
        notes: tuple[str, ...] = (),
        skips: bool = False,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        self.label = label
        self.notes = notes
        self._on_close = on_close
        self._stamp = stamp
        self._policy = policy
        self._skips, dead = skips, list[SourceError]()
        names, openers = [clean_member_name(label, name) for name, _ in files], [opener for _, opener in files]
        check_collisions(label, names, ())
        if facts is None:
            # A service that hangs must not delay the interpreter's exit.
            with DaemonPool(min(askers, len(files)) or 1, "colabstage-list") as pool:
                asked = pool.run(partial(self._ask, dead), openers, cancellation=cancellation)
            if dead and len(dead) == len(files):
                raise dead[0]
            # The name of a dead address has the ending of others.
            name = next((one.name for one, _ in asked if one.version != NOTHING), "")
            facts = [replace(one, name=name) if one.version == NOTHING else one for one, _ in asked]
            if len(files) <= _KEPT_BYTES // LOOK_BYTES:
                openers = [opener for _, opener in asked]
        endings = ["" if extension_of(name) else extension_of(one.name) for name, one in zip(names, facts, strict=True)]
        if any(endings):
            names = list(distinct_names(map("".join, zip(names, endings, strict=True)), of_files=True))
        self._open = dict(zip(names, openers, strict=True))
        # In the order of `files`.
        self.facts: dict[str, RemoteFacts] = dict(zip(names, facts, strict=True))
        entries = [
            FileEntry(name, one.size or 0, one.mtime_ns, position)
            for position, (name, one) in enumerate(self.facts.items())
        ]
        self.entries = FileEntries.of(sorted(entries, key=lambda entry: entry.name))

    def close(self) -> None:
        self._on_close()

    def _ask(
        self, dead: list[SourceError], opener: Callable[[], RemoteFile]
    ) -> tuple[RemoteFacts, Callable[[], RemoteFile]]:
        """Return the facts of a file, and what opens it, without another request if it can."""
        try:
            with given_up(), contextlib.closing(opener()) as file:
                facts = file.facts
                if facts.size is None:
                    # A plan needs the length, which only reading all of it shows.
                    facts = replace(facts, size=sum(map(len, read_through(file, policy=self._policy))))
                return facts, lambda: file.open_again() or opener()
        except LEADS_NOWHERE as error:
            if not self._skips:
                raise
            dead.append(found := error)

        def open_nothing() -> RemoteFile:
            raise DecodeError(str(found)) from found

        return RemoteFacts("", "", 0, version=NOTHING), open_nothing

    @property
    def stamp(self) -> str:
        return self._stamp

    def file_states(self) -> FileStates:
        facts = [self.facts[name] for name in self.entries.names]
        times = [f"time:{one.mtime_ns}" if one.mtime_ns else "" for one in facts]
        return FileStates(
            hash_texts(str(one.checksum or "") for one in facts),
            hash_texts(one.version or time for one, time in zip(facts, times, strict=True)),
        )

    def address_of(self, entry: FileEntry) -> str:
        label = self.facts[entry.name].label
        # An address with hidden parts cannot be used.
        return "" if HIDDEN in label else label

    def open(self, entry: FileEntry) -> ByteSource | None:
        """Return the bytes of one file; `None` if its service only serves the whole file from its beginning."""
        if not self.facts[entry.name].ranges:
            return None
        return RequestedBytes(partial(self._read_part, entry), entry.size, label=f"{self.label}/{entry.name}")

    def read(self, entry: FileEntry) -> bytes:
        return b"".join(self.chunks(entry))

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Yield the content in pieces of at most a megabyte, as they arrive, and finally compare it with the service's
        checksum."""
        with self._reading(entry) as file:
            pieces = read_through(file, policy=self._policy, tell=self._wait_for)
            for piece in self._verified(entry, pieces):
                self._wait_for("")
                yield piece

    def verify(self, entry: FileEntry, pieces: Iterable[bytes]) -> None:
        for _ in self._verified(entry, pieces):
            pass

    def _verified(self, entry: FileEntry, pieces: Iterable[bytes]) -> Iterator[bytes]:
        checksum = self.facts[entry.name].checksum
        if checksum is None:
            yield from pieces
            return
        hasher = checksum.new_hasher()
        for piece in pieces:
            hasher.update(piece)
            yield piece
        if hasher.hexdigest() != checksum.digest:
            msg = f"'{entry.name}' of '{self.label}' is damaged: its {checksum.algorithm} is not {checksum.digest}."
            raise SourceReadError(msg)

    def _read_part(self, entry: FileEntry, length: int, offset: int) -> bytes:
        with self._reading(entry) as file:
            # Some serve only the whole file, from the beginning.
            skipped = 0 if file.facts.ranges else offset
            pieces = read_through(file, offset - skipped, length + skipped, policy=self._policy, tell=self._wait_for)
            data = b"".join(pieces)[skipped:]
        self._wait_for("")
        return data

    def _wait_for(self, why: str) -> None:
        self.waits_for = why

    @contextlib.contextmanager
    def _reading(self, entry: FileEntry) -> Iterator[RemoteFile]:
        before = self.facts[entry.name]
        # Opening it includes retries.
        with given_up():
            file = self._open[entry.name]()
        with contextlib.closing(file):
            # If the service did not report the length, it was counted.
            now = file.facts if file.facts.size is not None else replace(file.facts, size=entry.size)
            if (now.size, now.version) != (before.size, before.version):
                msg = (
                    f"'{file.facts.label}' was listed with {before.size:,} bytes and is another file now. Wait until "
                    "its upload is complete, then stage again."
                )
                raise SourceReadError(msg)
            yield file


def bytes_along(files: int, reads_next: bool) -> int:
    """Return how much of each file to request with its facts, beyond what tells what it is."""
    return min(_SMALL_BYTES, _KEPT_BYTES // max(1, files)) if reads_next else 0


def remote_opener(source: SingleSource, access: Access = Access()) -> Callable[[], RemoteFile]:  # noqa: B008 - frozen
    """Return a function that opens one file with an address, any number of times."""
    if not isinstance(source, FileSource):
        msg = f"'{source.label}' cannot be one of a list of single files; give it alone."
        raise OptionError(msg)

    def open_it() -> RemoteFile:
        if not isinstance(source, LocalSource):
            found = open_remote(source, access)
            if not isinstance(found, RemoteFileTree | KaggleFolder):
                return found
            if isinstance(found, RemoteFileTree):
                found.close()
        # The first access to a mount, which may have died since it responded.
        elif not read_with_retry(source.path.is_dir, str(source.path)):
            return MountedFile(source.path)
        msg = f"'{source.label}' is a folder, or several files, where one is expected. Give its files, or it alone."
        raise SourceReadError(msg)

    return open_it


def open_remote(
    source: WebSource | ObjectSource | ShareSource | KaggleSource, access: Access, *, reads_next: bool = False
) -> RemoteFile | RemoteFileTree | KaggleFolder:
    """Open the file or the folder at an address: the only place that maps sources to transports.

    `reads_next`: whether all files of a folder are read next, so that small ones come whole with their facts.
    """
    if isinstance(source, KaggleSource) and (mounted := find_kaggle_folder(source)) is not None:
        return mounted
    require_online(source.label)
    match source:
        case KaggleSource():
            return open_kaggle(source, access)
        case WebSource():
            return open_http(source.url, access)
        case ObjectSource():
            # Imported late: other sources do not need what it loads.
            from colabstage.sources.objects import open_address

            return open_address(source.url, replace(access, policy=PATIENT))
        case ShareSource():
            shared = open_share(source, access)
            if not isinstance(shared, SharedFolder):
                return shared
            each = Access(
                along=bytes_along(len(shared.files), reads_next),
                cancellation=access.cancellation,
                services=access.services,
            )
            return RemoteFileTree(
                source.label,
                [(name, remote_opener(link, each)) for name, link in shared.files.items()],
                policy=PATIENT,
                cancellation=access.cancellation,
                askers=IN_FLIGHT,
                stamp=shared.version,
                notes=shared.notes,
            )


def read_small_file(source: SingleSource, services: Services | None = None) -> bytes:
    """Return the whole content of a file that fits into memory, from the web in one round trip if it is short. It is
    not checked for changes while it is read."""
    along = _SMALL_BYTES if isinstance(source, WebSource) else 0
    opener = remote_opener(source, Access(along=along, services=services))
    with given_up(), contextlib.closing(opener()) as file:
        return b"".join(read_through(file.without_version_check(), policy=RetryPolicy()))
