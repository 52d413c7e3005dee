"""Single files at addresses, each opened when it is read: one of them, or many that are a dataset only together."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from colabstage.errors import OptionError, SourceReadError
from colabstage.io.files import RetryPolicy, read_with_retry
from colabstage.io.pipeline import DaemonPool
from colabstage.io.progress import Cancellation
from colabstage.machine.drive_client import ask_md5s
from colabstage.sources.identity import as_one_of_many, identify_remote
from colabstage.sources.parse import LocalSource, ObjectSource, ShareSource, WebSource, is_on_drive
from colabstage.sources.remote import MountedFile, given_up, without_version_check
from colabstage.sources.transfer.connections import read_directly, read_through
from colabstage.trees.entries import check_collisions, clean_member_name
from colabstage.trees.open import distinct_names
from colabstage.trees.tree import FileEntry, RequestedBytes, Tree, unknown_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from colabstage.sources.identity import SourceIdentity
    from colabstage.sources.parse import SingleSource
    from colabstage.sources.remote import RemoteFacts, RemoteFile
    from colabstage.trees.tree import ByteSource

# How many files are asked for their size at once.
_ASKERS = 16
# What of a small file comes along with the first answer.
_SMALL_BYTES = 256 * 1024


class RemoteFileEntry(NamedTuple):
    """One file of a tree of files that lie anywhere."""

    name: str
    """Its name in the tree."""
    open: Callable[[], RemoteFile]
    """Opens it, any number of times."""


def name_remote_files(addresses: Sequence[str]) -> list[str]:
    """Name files by their addresses: the path below the folder that they have in common. Pure.

    Files of one folder have their plain names; those of several servers, or of one name twice, keep as much of the
    address as tells them apart, and at last a number.

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
        names = bases  # nothing in common: what servers they are on says nothing about the files
    return list(distinct_names(names, of_files=True))


def _address_steps(address: str) -> list[str]:
    parts = urlsplit(address) if "://" in address else None
    steps = [parts.netloc, *unquote(parts.path).split("/")] if parts else address.split("/")
    return [step for step in steps if step not in ("", ".", "..")] or ["file"]


class RemoteFileTree(Tree):
    """A tree of files that lie anywhere, each opened when it is read. Their sizes are asked for when it is made.

    Args:
        label: its address, for messages.
        files: in the order in which to read.
        policy: how often a file is asked for again when it fails in a transient way.
        cancellation: looked at while the files are asked for.

    Raises:
        As the files' `open`.
        UnsafeArchiveError: a name is one that no folder can hold.
    """

    kind = "folder"
    by_request = True

    def __init__(
        self,
        label: str,
        files: Sequence[RemoteFileEntry],
        *,
        policy: RetryPolicy = RetryPolicy(),  # noqa: B008  # frozen
        cancellation: Cancellation | None = None,
    ) -> None:
        self.label = label
        self._policy = policy
        names = [clean_member_name(label, file.name) for file in files]
        check_collisions(label, names, ())
        self._open = dict(zip(names, (file.open for file in files), strict=True))
        # A service that hangs must not hold up the interpreter's end.
        with DaemonPool(min(_ASKERS, len(files)) or 1, "colabstage-list") as pool:
            facts = pool.run(self._ask, names, cancellation=cancellation)
        # In the order of `files`.
        self.facts: dict[str, RemoteFacts] = dict(zip(names, facts, strict=True))
        self.entries = tuple(
            sorted(
                (
                    FileEntry(name, one.size or 0, one.mtime_ns, position)
                    for position, (name, one) in enumerate(self.facts.items())
                ),
                key=lambda entry: entry.name,
            )
        )

    def open(self, entry: FileEntry) -> ByteSource | None:
        """Return the bytes of one file; `None` where its service only gives all of it from its beginning."""
        if not self.gives_parts(entry):
            return None
        label = f"{self.label}/{entry.name}"
        return RequestedBytes(lambda length, offset: self.read_part(entry, offset, length), entry.size, label=label)

    def read(self, entry: FileEntry) -> bytes:
        """Return the whole content of one file.

        Raises:
            SourceReadError: it is not `entry.size` bytes long any more, or not what its service's checksum says.
            As the file's service answers.
        """
        data = self.read_part(entry, 0, entry.size) if self.gives_parts(entry) else b"".join(self.chunks(entry))
        checksum = self.facts[entry.name].checksum
        if checksum is not None and checksum.digest_of([data]) != checksum.digest:
            msg = f"'{entry.name}' of '{self.label}' is damaged: its {checksum.algorithm} is not {checksum.digest}."
            raise SourceReadError(msg)
        return data

    def read_part(self, entry: FileEntry, offset: int, length: int) -> bytes:
        """Return a part of one file; as `read`, without the checksum."""
        if not length:
            return b""
        with self._at_service(entry) as file:
            # Some give only the whole, from the beginning.
            skipped = 0 if file.facts.ranges else offset
            data = read_directly(file, offset - skipped, length + skipped, policy=self._policy, stopped=lambda: False)
        return data[skipped:]

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Yield the content in pieces of at most 16 MiB; of a file that is only given whole, as they come."""
        if self.gives_parts(entry):
            yield from super().chunks(entry)
            return
        with self._at_service(entry) as file:
            yield from read_through(file, policy=self._policy, cancellation=Cancellation())

    def gives_parts(self, entry: FileEntry) -> bool:
        """Return whether parts of a file can be asked for, or only all of it from its beginning."""
        if entry.name not in self.facts:
            raise unknown_entry(self.label, entry.name)
        return self.facts[entry.name].ranges

    @contextlib.contextmanager
    def _at_service(self, entry: FileEntry) -> Iterator[RemoteFile]:
        if entry.name not in self._open:
            raise unknown_entry(self.label, entry.name)
        # What opens it has tried again already.
        with given_up():
            file = self._open[entry.name]()
        try:
            # A length that the service did not tell was counted.
            now = file.facts if file.facts.size is not None else replace(file.facts, size=entry.size)
            before = self.facts[entry.name]
            if (now.size, now.version) != (before.size, before.version):
                msg = (
                    f"'{file.facts.label}' was listed with {before.size:,} bytes and is another file now. Wait until "
                    "its upload is complete, then stage again."
                )
                raise SourceReadError(msg)
            yield file
        finally:
            file.close()

    def _ask(self, name: str) -> RemoteFacts:
        with given_up():
            file = self._open[name]()
        try:
            # Nothing but reading it all tells its length, which a plan needs.
            if file.facts.size is None:
                whole = read_through(file, policy=self._policy, cancellation=Cancellation())
                return replace(file.facts, size=sum(map(len, whole)))
            return file.facts
        finally:
            file.close()

    def identities(self, sources: Sequence[SingleSource]) -> list[SourceIdentity]:
        """Return the state of each file when it was listed; `sources` are theirs, in the order of `files`."""
        on_drive = {source.address: str(source.path) for source in sources if is_on_drive(source)}
        md5s, _ = ask_md5s(list(on_drive.values())) if on_drive else ([], "")
        told = dict(zip(on_drive, md5s, strict=False))
        found = [
            as_one_of_many(identify_remote(one, one.size or 0, address=source.address))
            for one, source in zip(self.facts.values(), sources, strict=True)
        ]
        return [replace(one, md5=told.get(one.address, "")) for one in found]


def list_files(
    label: str, files: Sequence[tuple[str, SingleSource]], *, cancellation: Cancellation | None = None
) -> RemoteFileTree:
    """Return single files as one tree: each by the address that names it, and where it is."""
    names = name_remote_files([address for address, _ in files])
    entries = [RemoteFileEntry(name, remote_opener(source)) for name, (_, source) in zip(names, files, strict=True)]
    return RemoteFileTree(label, entries, cancellation=cancellation)


def remote_opener(source: SingleSource) -> Callable[[], RemoteFile]:
    """Return how to open one file that has an address, any number of times.

    Raises:
        OptionError: it is a source of another kind.
    """
    match source:
        case LocalSource():
            return lambda: _mounted(source.path)
        case WebSource() | ObjectSource():
            return lambda: open_remote(source)
        case ShareSource():
            from colabstage.sources.share_service import open_shared_file

            return lambda: open_shared_file(source)
    msg = f"'{source.label}' cannot be one of a list of single files; give it alone."
    raise OptionError(msg)


def read_small_file(source: SingleSource) -> bytes:
    """Return all of a file that fits into memory: by one round trip where its service allows that and it is short.

    Whether it changed while it was read is not asked.

    Raises:
        As what `remote_opener` returns, and `RemoteFile.read_range`.
    """
    if isinstance(source, ObjectSource):
        from colabstage.sources.objects_fsspec import read_at_once

        if (data := read_at_once(source.url)) is not None:
            return data
    if isinstance(source, WebSource):
        from colabstage.sources.http_file import open_http

        with contextlib.closing(open_http(source.url, along_bytes=_SMALL_BYTES)) as page:
            size = page.facts.size
            came = None if size is None else page.known(0, size)
            return _read_all(page) if came is None else came
    with contextlib.closing(remote_opener(source)()) as file:
        return _read_all(file)


def _read_all(file: RemoteFile) -> bytes:
    if (size := file.facts.size) is None:
        return b"".join(file.read_range(0, None))
    return read_directly(without_version_check(file), 0, size, policy=RetryPolicy(), stopped=lambda: False)


def _mounted(path: Path) -> MountedFile:
    # The first question to a mount, which may have died since it answered.
    if read_with_retry(path.is_dir, str(path)):
        msg = f"'{path}' is a folder in a list of files that are not archives. Give only files, or only folders."
        raise SourceReadError(msg)
    return MountedFile(path)


def open_remote(source: WebSource | ObjectSource, *, policy: RetryPolicy | None = None) -> RemoteFile:
    """Open one file at an address; its service is asked for the facts.

    Raises:
        As `open_http` and `open_object`.
    """
    if isinstance(source, WebSource):
        from colabstage.sources.http_file import open_http

        return open_http(source.url, policy=policy)
    from colabstage.sources.objects_fsspec import open_object

    return open_object(source.url)
