"""A source, opened: one or several parts, together one tree of files with one identity.

`fetch_files` takes files as they are: of a list, archives stay archives, and thousands of addresses are opened when
each is read. Staging and packing take what is in archives. Both are one `OpenSource`, because what a list is made of,
how its files are named and what state it is in have to be one answer.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from colabstage.errors import ChecksumMismatchError, OptionError, SourceReadError
from colabstage.io.files import Closing
from colabstage.io.pipeline import DaemonPool
from colabstage.io.retry import RetryPolicy, read_with_retry
from colabstage.machine.drive_client import Md5Questions, ask_md5s
from colabstage.machine.mounts import is_slow_mount, require_answer
from colabstage.sources.identity import SourceIdentity, identify_many
from colabstage.sources.look import open_remote
from colabstage.sources.parse import (
    KaggleSource,
    LocalSource,
    ManySource,
    ObjectSource,
    ShareSource,
    TreeSource,
    WebSource,
    expand_pattern,
    local_source,
)
from colabstage.sources.part import SLOW_LISTERS, Download, Opening, SourcePart, copy_name, is_on_drive
from colabstage.sources.remote import MountedFile, check_file, given_up
from colabstage.sources.remote_files import RemoteFileEntry, RemoteFileTree, name_remote_files
from colabstage.sources.transfer.streaming_copy import ALONG_BYTES, ends_with_contents
from colabstage.trees.folder import FolderTree
from colabstage.trees.open import JoinedTree, Joining, distinct_names, recognise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from colabstage.sources.parse import SingleSource, Source
    from colabstage.sources.remote import Checksum, RemoteFile
    from colabstage.sources.tree import Transport
    from colabstage.trees.tree import Tree

# Sources of a list that are opened at once.
_OPENERS = 8


def comes_whole(source: Source) -> bool:
    """Return whether opening a source may mean to download all of it."""
    parts = source.parts if isinstance(source, ManySource) else (source,)
    return any(isinstance(part, ShareSource | KaggleSource) for part in parts)


class OpenSource(Closing):
    """An open source; a context manager that releases everything.

    `parts`: the sources that it consists of. `files`: the single files of a list, each opened when it is read; `None`
    where there are none.
    """

    def __init__(self, source: Source, opening: Opening, *, unpack: bool) -> None:
        """Open a source by reading a folder's listing, an archive's two ends, or what a service reports about it.

        Data behind a share link or on Kaggle is downloaded completely now.

        Args:
            source: the source; a pattern is expanded.
            opening: what opening needs besides.
            unpack: whether an archive means the files in it, and not itself.

        Raises:
            SourceNotFoundError: there is nothing.
            SourceReadError, SourceAccessError, DriveDisconnectedError, DriveQuotaError: it cannot be read.
            MissingDependencyError: its kind needs a package; the message has the install line.
            ArchiveError: it is a file but not an archive; the message says what it is.
            OptionError: it is a folder, and a checksum was given.
        """
        self.parts: list[SourcePart] = []
        self.files: RemoteFileTree | None = None
        self._source = source
        self._opening = opening
        self._closed = False
        self._stack = contextlib.ExitStack()
        self._tree: Tree | None = None
        self._identity: SourceIdentity | None = None
        opened = expand_pattern(source) if isinstance(source, LocalSource) else source
        self._is_list = isinstance(opened, ManySource)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            if not isinstance(opened, ManySource):
                self.parts.append(self._open(opened))
            elif unpack:
                self._open_archives(opened)
            else:
                self._open_as_they_are(opened)
            undo.pop_all()

    def _open(self, source: SingleSource) -> SourcePart:
        part = open_part(source, self._opening)
        self._stack.callback(part.close)
        if self._closed:  # another one failed meanwhile, and nobody waited for this one
            part.close()
        return part

    def _open_archives(self, source: ManySource) -> None:
        first, *others = source.parts
        self.parts.append(self._open(first))
        opened = self.parts[0]
        # The first one tells what kind of list it is. Single files are opened when they are read, because there may be
        # thousands of addresses.
        have_addresses = all(isinstance(part, LocalSource | WebSource | ObjectSource) for part in source.parts)
        if opened.file is not None and not opened.is_archive and have_addresses:
            self._stack.pop_all().close()
            self.parts = [_unopened(part, self._opening) for part in source.parts]
            self._tree = self.files = self._list_files()
            return
        with DaemonPool(_OPENERS, "colabstage-open") as pool:
            # Many at once, because opening an archive on a server or a mount is two round trips in which nothing else
            # happens.
            self.parts += pool.run(self._open, others, cancellation=self._opening.cancellation)

    def _open_as_they_are(self, source: ManySource) -> None:
        # Before anything is touched, because every question to a mount that hangs would block.
        require_answer(*(part.path for part in source.parts if isinstance(part, LocalSource)))
        for part in source.parts:
            alone = isinstance(part, WebSource) or (isinstance(part, LocalSource) and part.path.is_file())
            self.parts.append(_unopened(part, self._opening) if alone else self._open(part))
        self.files = self._list_files()
        folders = [part for part in self.parts if part.tree is not None]
        tops = sorted({entry.name.partition("/")[0] for entry in self.files.entries})
        # Files keep their names at the top, so a folder that is called like one of them gets a number.
        stems = distinct_names([*tops, *(part.source.name for part in folders)])[len(tops) :]
        trees: list[Tree] = [self.files, *(part.tree for part in folders if part.tree is not None)]
        joined = list(zip(("", *stems), trees, strict=True))
        self._tree = JoinedTree(source.label, joined, joining=Joining(("", *stems), "")) if folders else self.files

    def _list_files(self) -> RemoteFileTree:
        files = [part for part in self.parts if part.tree is None]
        # A share link's address says nothing about the file, so a downloaded file is called by its own name.
        brought = [part.path if part.movable else None for part in files]
        names = name_remote_files(
            [part.source.label if path is None else path.name for part, path in zip(files, brought, strict=True)]
        )
        openers = [
            remote_opener(part.source if path is None else local_source(path))
            for part, path in zip(files, brought, strict=True)
        ]
        entries = [RemoteFileEntry(*pair) for pair in zip(names, openers, strict=True)]
        return RemoteFileTree(self._source.label, entries, cancellation=self._opening.cancellation)

    @property
    def file(self) -> SourcePart | None:
        """Return the part if the source is a single file, otherwise `None`."""
        return self.parts[0] if not self._is_list and self.parts[0].file is not None else None

    @property
    def notes(self) -> list[str]:
        """Return sentences for the report."""
        return [note for part in self.parts for note in part.notes]

    @property
    def slowest(self) -> SourcePart:
        """Return the part by which the number of concurrent reads is chosen."""
        return next((part for part in self.parts if part.slow), self.parts[0])

    @property
    def slow(self) -> bool:
        """Return whether its files, each read by itself, take time to answer."""
        return self.files is not None or any(part.reads_slowly for part in self.parts)

    @property
    def opens_at_once(self) -> bool:
        """Return whether its files can be listed without bringing all of it here first."""
        return all(part.opens_at_once for part in self.parts)

    @property
    def unpacks_first(self) -> bool:
        """Return whether some of it is compressed as a whole, so that its files are known only once it is unpacked."""
        return any(part.unpacks_first for part in self.parts)

    @property
    def archive_bytes(self) -> int:
        """Return the length of all archives that are copied here before they are read."""
        return sum(part.archive_bytes for part in self.parts)

    @property
    def mount_bytes(self) -> int:
        """Return how much of that passes through a mount of Google Drive, which keeps a second copy."""
        return sum(part.archive_bytes for part in self.parts if part.archive_bytes and not part.identity.trusts_times)

    @property
    def kept_bytes(self) -> int:
        """Return how much of the archives an interrupted run has left on the disk."""
        return sum(part.kept_bytes for part in self.parts)

    @property
    def resumed_bytes(self) -> int:
        """Return how much of the source an interrupted run had finished and this one has used."""
        return sum(part.resumed_bytes for part in self.parts)

    @property
    def extent(self) -> tuple[int, int]:
        """Return how many files it has, where an archive is one, and their bytes together."""
        return self.parts[0].extent if self._is_one else (self.identity.files, self.identity.nbytes)

    def take_state(self) -> None:
        """Take what tells its state, before it is read.

        Of a folder on Drive the listing has been taken, and the MD5 of each file is asked for right before that is
        read: `identity` waits for those that are missing then.
        """
        if not self._is_one or self.parts[0].questions is None:
            self._identity = self.identity

    @property
    def identity(self) -> SourceIdentity:
        """Return its state when this was first asked for, or `take_state` was called."""
        if self._identity is None:
            self._identity = self._identify()
        return self._identity

    def _identify(self) -> SourceIdentity:
        address = self._source.address
        if self._is_one:
            return replace(self.parts[0].identity, address=address)
        listed = [part for part in self.parts if self.files is not None and part.tree is None]
        found = dict(zip(map(id, listed), self._identify_files(), strict=True))
        with DaemonPool(_OPENERS, "colabstage-open") as pool:
            others = [part for part in self.parts if id(part) not in found]
            # A part's state may be a request of its own, and lists have thousands.
            states = pool.run(lambda part: part.identity, others, cancellation=self._opening.cancellation)
        found.update(zip(map(id, others), states, strict=True))
        return identify_many([found[id(part)] for part in self.parts], address=address)

    @property
    def _is_one(self) -> bool:
        # A pattern that matches one file means that file, so both have one state and one key.
        return len(self.parts) == 1 and self.files is None and not isinstance(self._source, ManySource)

    def _identify_files(self) -> list[SourceIdentity]:
        if self.files is None:
            return []
        sources = [part.source for part in self.parts if part.tree is None]
        found = self.files.identities([source.address for source in sources])
        on_drive = {
            source.address: str(source.path)
            for source in sources
            if isinstance(source, LocalSource) and source.on_drive
        }
        md5s, _ = ask_md5s(list(on_drive.values())) if on_drive else ([], "")
        told = dict(zip(on_drive, md5s, strict=False))
        return [replace(one, md5=told.get(one.address, "")) for one in found]

    def verify(self, checksum: Checksum) -> None:
        """Compare the whole file with a checksum, which means copying all of it here.

        Raises:
            OptionError: it is not a single file.
            ChecksumMismatchError: it is another file; nothing was made from it.
        """
        if len(self.parts) != 1 or self.parts[0].file is None:
            msg = f"'{self._source.label}' is not one file, and hash= is for one file. Leave it out."
            raise OptionError(msg)
        self.parts[0].verify(checksum)
        # The part's identity has the checksum now.
        self._identity = None

    def open_tree(self, spool: Path) -> Tree:
        """Return all files. Archives that can only be read from their beginning start to arrive.

        Args:
            spool: a folder on the local disk for the unpacked form of compressed tars.

        Raises:
            ArchiveError, CorruptArchiveError, UnsafeArchiveError: as `trees.open_tree`.
        """
        if self._tree is None:
            self._tree = self._join(spool)
        return self._tree

    @property
    def tree(self) -> Tree:
        """Return the files of a folder, or of a list that was opened as it is."""
        tree = self._tree or self.parts[0].tree
        assert tree is not None
        return tree

    def _join(self, spool: Path) -> Tree:
        if len(self.parts) == 1:
            return self.parts[0].open_tree(spool, alone=True)
        with DaemonPool(_OPENERS, "colabstage-open") as pool:
            # Unpacking may take hours; reads inside have deadlines of their own.
            trees = pool.run(
                lambda part: part.open_tree(spool),
                self.parts,
                cancellation=self._opening.cancellation,
                stall_timeout_s=float("inf"),
            )
        names = [part.source.name for part in self.parts]
        return JoinedTree(self._source.label, list(zip(names, trees, strict=True)))

    def relisted(self) -> str:
        """List folders on slow mounts again; return how one differs from its first listing, in a sentence, or ""."""
        return next(filter(None, (part.relisted() for part in self.parts)), "")

    def start(self) -> None:
        """Begin to copy remote archives; do nothing for any other source."""
        for part in self.parts:
            part.start()

    def read_in_place(self) -> None:
        """Read archives where they are, for whoever has no room for copies. Instead of `start`."""
        for part in self.parts:
            part.read_in_place()

    def prefer(self, byte_ranges: Iterable[tuple[int, int]]) -> None:
        """Copy these byte ranges `(begin, end)` of a single remote archive first."""
        # The archives of a list have positions of their own, and are copied in order.
        if len(self.parts) == 1:
            self.parts[0].prefer(byte_ranges)

    def discard(self) -> None:
        """Remove copies that were made only in order to read them."""
        for part in self.parts:
            part.discard()

    def close(self) -> None:
        """Release handles; what has arrived stays for the next run."""
        self._closed = True
        self._stack.close()


def open_part(source: SingleSource, opening: Opening) -> SourcePart:
    """Open one source, in which a pattern has been expanded.

    Raises:
        Exception: as `OpenSource`.
    """
    with given_up():
        match source:
            case LocalSource():
                require_answer(source.path)
                part = _open_path(source, source.path, "local disk", opening)
            case WebSource():
                # Imported where they are needed: each of these brings libraries that local files do without.
                from colabstage.sources.http_file import open_http

                # The two ends of a zip are read next.
                is_zip = opening.folder is not None and ends_with_contents(urlsplit(source.url).path)
                along = ALONG_BYTES if is_zip else 0
                file = open_http(source.url, checksum=opening.checksum, along_bytes=along)
                part = SourcePart(source, "http", slow=True, opening=opening, file=file)
            case ObjectSource():
                part = _open_object(source, opening)
            case ShareSource():
                part = _open_shared(source, opening)
            case KaggleSource():
                part = _open_kaggle(source, opening)
            case TreeSource():
                part = SourcePart(source, "tree", slow=False, opening=opening, tree=source.tree)
    if opening.checksum is not None and part.tree is not None:
        part.close()
        msg = f"'{source.label}' is a folder, and hash= is for one file. Leave it out."
        raise OptionError(msg)
    return part


def _open_path(source: SingleSource, path: Path, transport: Transport, opening: Opening) -> SourcePart:
    slow = is_slow_mount(path)
    if slow and transport == "local disk":
        transport = "mount"
    # The first look at a file reads its beginning, and a mount may fail there as anywhere.
    if read_with_retry(lambda: recognise(path), str(path), policy=RetryPolicy()) == "folder":
        leave_out = source.leave_out if isinstance(source, LocalSource) else frozenset()
        if slow and is_on_drive(source):
            questions = Md5Questions(workers=SLOW_LISTERS)
            # The client answers while other reads wait for the mount; beside the listing it would answer that later.
            tree = FolderTree(path, workers=SLOW_LISTERS, before_read=questions.ask_before_read, leave_out=leave_out)
            return SourcePart(source, transport, slow, opening, tree=tree, path=path, questions=questions)
        tree = FolderTree(path, workers=SLOW_LISTERS if slow else 1, leave_out=leave_out)
        return SourcePart(source, transport, slow, opening, tree=tree, path=path)
    file = MountedFile(path)
    # What was downloaded has been compared on its way.
    if opening.checksum is not None and isinstance(source, LocalSource):
        file.facts = replace(file.facts, checksum=opening.checksum)
    return SourcePart(source, transport, slow, opening, file=file, path=path)


def _open_object(source: ObjectSource, opening: Opening) -> SourcePart:
    from colabstage.sources.objects_fsspec import ObjectTree, object_kind, open_object

    if object_kind(source.url) == "folder":
        tree = ObjectTree(source.url, workers=SLOW_LISTERS)
        return SourcePart(source, "object store", slow=True, opening=opening, tree=tree)
    file = open_object(source.url, checksum=opening.checksum)
    return SourcePart(source, "object store", slow=True, opening=opening, file=file)


def _open_shared(source: ShareSource, opening: Opening) -> SourcePart:
    from colabstage.sources.share_download import download_share_link, share_link_facts

    facts = share_link_facts(source.link, cancellation=opening.cancellation)
    # A service that did not answer now says nothing of what came before: that is continued, and compared.
    state = None if facts is None else f"{source.address} {facts.size} {facts.version}"
    notes: list[str] = []

    def bring(folder: Path) -> Path:
        return download_share_link(
            source.link,
            folder,
            progress=opening.progress,
            cancellation=opening.cancellation,
            checksum=opening.checksum,
            note=notes.append,
        )

    part = _bring_whole(source, state, "share link", bring, opening)
    part.facts = facts
    part.notes += notes
    return part


def _open_kaggle(source: KaggleSource, opening: Opening) -> SourcePart:
    from colabstage.sources.kaggle_datasets import KaggleFiles, open_kaggle

    brought: list[KaggleFiles] = []

    def bring(folder: Path) -> Path:
        files = open_kaggle(source.dataset, folder, progress=opening.progress, cancellation=opening.cancellation)
        brought.append(files)
        return files.path

    part = _bring_whole(source, source.address, "kaggle", bring, opening)
    assert part.download is not None
    if brought and brought[0].version:
        part.download.note_version(brought[0].version)
    part.version = part.download.version
    part.notes += [note for files in brought for note in files.notes]
    return part


def _bring_whole(
    source: SingleSource, state: str | None, transport: Transport, bring: Callable[[Path], Path], opening: Opening
) -> SourcePart:
    """Open what a service's own tool brings here whole, or what an interrupted run has brought of it."""
    assert opening.folder is not None
    download = Download(opening.folder / copy_name(source.address, source.name), state)
    with contextlib.ExitStack() as undo:
        undo.callback(download.close)
        path, resumed = download.fetch(bring)
        if resumed and opening.checksum is not None and path.is_file():
            # Whoever brought it may not have been asked for this checksum, or for any.
            try:
                check_file(path, opening.checksum, source.label)
            except ChecksumMismatchError:
                download.discard()
                raise
        part = _open_path(source, path, transport, opening)
        part.download, part.resumed = download, resumed
        # Files that lie in a service's own cache, or on its mount, belong to others and are copied.
        part.movable = path.is_relative_to(download.folder)
        undo.pop_all()
    return part


def _unopened(source: SingleSource, opening: Opening) -> SourcePart:
    """Return a single file of a list, of which there may be thousands: each is opened when it is read."""
    if not isinstance(source, LocalSource):
        return SourcePart(source, "http" if isinstance(source, WebSource) else "object store", True, opening)
    slow = is_slow_mount(source.path)
    return SourcePart(source, "mount" if slow else "local disk", slow, opening, path=source.path)


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
    msg = f"'{source.label}' cannot be one of a list of single files; give it alone."
    raise OptionError(msg)


def _mounted(path: Path) -> MountedFile:
    if path.is_dir():
        msg = f"'{path}' is a folder in a list of files that are not archives. Give only files, or only folders."
        raise SourceReadError(msg)
    return MountedFile(path)
