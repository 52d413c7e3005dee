"""One source, opened: a file whose parts can be asked for, or a tree of files."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from colabstage.errors import ChecksumMismatchError, OptionError, SourceReadError
from colabstage.io.files import read_json, write_json
from colabstage.io.retry import RetryPolicy, read_with_retry, typed_write_errors
from colabstage.io.temporaries import (
    find_orphans,
    is_our_name,
    leave_for_next,
    remove_own,
    rename_own,
    take_orphan,
    temp_beside,
)
from colabstage.machine.drive_client import ask_md5s
from colabstage.machine.mounts import is_slow_mount, require_answer
from colabstage.sources.identity import SourceIdentity, identify_archive, identify_remote, identify_tree
from colabstage.sources.look import list_and_ask, open_remote
from colabstage.sources.parse import (
    KaggleSource,
    LocalSource,
    ManySource,
    ObjectSource,
    ShareSource,
    TreeSource,
    WebSource,
)
from colabstage.sources.remote import check_file, given_up
from colabstage.sources.transfer.connections import read_directly
from colabstage.sources.transfer.mounted import MountedFile
from colabstage.trees.entries import file_names
from colabstage.trees.folder import FolderTree
from colabstage.trees.open import recognise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from colabstage.io.progress import Cancellation, Progress
    from colabstage.sources.parse import SingleSource, Source
    from colabstage.sources.remote import Checksum, RemoteFacts, RemoteFile
    from colabstage.sources.tree import Transport
    from colabstage.trees.tree import ByteSource, Tree

_STATE = "state.json"
_CONTENT = "content"
_COMING = "coming"
_VERSION = "version.json"


class Download:
    """What comes of one source, and stays until `discard`, or until somebody else takes it over after `close`.

    Args:
        lasting: the name that it is made for, in a folder that exists.
        state: which source in which state; what a dead process left is gone on with only if it says the same. `None`
            where the source did not say now: then whatever is there is gone on with, and keeps its state. What is
            continued compares it again.
    """

    def __init__(self, lasting: Path, state: str | None) -> None:
        self.folder = temp_beside(lasting)
        self._closed = False
        for orphan in find_orphans(lasting):
            if state is not None and read_json(orphan / _STATE) != {"state": state}:
                remove_own(orphan)
                continue
            if take_orphan(orphan, self.folder):
                break
        with typed_write_errors(self.folder):
            for part in (_CONTENT, _COMING):
                (self.folder / part).mkdir(parents=True, exist_ok=True)
        if state is not None or not (self.folder / _STATE).exists():
            write_json(self.folder / _STATE, {"state": state})

    def fetch(self, bring: Callable[[Path], Path]) -> tuple[Path, bool]:
        """Return what `bring` makes in the folder that it is given, or what is there from before.

        It counts as whole only once `bring` has returned.

        Returns:
            Its path, and whether an earlier run had brought it.
        """
        content, coming = self.folder / _CONTENT, self.folder / _COMING
        whole = list(content.iterdir())
        if whole:
            return whole[0], True
        for refused in coming.iterdir():
            # What can be gone on with has an owned temporary name; the rest came whole once, and was refused.
            if not is_our_name(refused.name):
                remove_own(refused)
        path = bring(coming)
        if not path.is_relative_to(coming):
            return path, False
        with typed_write_errors(content):
            return rename_own(path, content / path.name), False

    @property
    def version(self) -> str:
        """What the service called the version that came; "" where it did not tell."""
        found = read_json(self.folder / _VERSION)
        return found if isinstance(found, str) else ""

    def note_version(self, version: str) -> None:
        """Keep with the content which version it is."""
        write_json(self.folder / _VERSION, version)

    def close(self) -> None:
        """Leave what came for the next run. Calling it twice is fine."""
        if self._closed:
            return
        self._closed = True
        if any(any((self.folder / part).iterdir()) for part in (_CONTENT, _COMING)):
            with contextlib.suppress(OSError):
                leave_for_next(self.folder)
                return
        remove_own(self.folder)

    def discard(self) -> None:
        """Keep nothing. Calling it twice is fine."""
        self._closed = True
        remove_own(self.folder)


# Folder listings on a Drive mount take 0.3 s and more each; sixteen at once is what the mount answers at full rate.
SLOW_LISTERS = 16


@dataclass(slots=True)
class Opened:
    """One source. Either `file` or `tree` is set.

    `transport`: how it is reached. `slow`: whether each answer takes its time.
    `path`: where it is on this machine's disks or mounts, `None` for what is only reached over the network.
    `facts`: what the service says of a file that was downloaded whole.
    `download`: where it was brought whole, if it had to be. `resumed`: whether an earlier run had brought it.
    `movable`: whether what is at `path` was brought for this, so that it may be moved instead of copied.
    `md5s`: of each file of a folder, in the order of its entries, where Drive's client tells them.
    `version`: what a service calls the state that it brought, where that is known.
    `notes`: sentences for whoever reads the report.
    """

    source: SingleSource
    transport: Transport
    slow: bool
    file: RemoteFile | None = None
    tree: Tree | None = None
    path: Path | None = None
    facts: RemoteFacts | None = None
    download: Download | None = None
    resumed: bool = False
    movable: bool = False
    version: str = ""
    md5s: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)

    def identify(self, content: ByteSource | None = None) -> SourceIdentity:
        """Its state now. Of a file here, or one without a version or a time, the two ends of `content` are read.

        Of one on a mounted Drive, its client is asked for the MD5.
        """
        address = self.source.address
        if self.facts is not None and self.facts.size is not None and self.facts.version:
            return identify_remote(self.facts, self.facts.size, address=address)
        if self.tree is not None:
            version = self.facts.version if self.facts is not None else self.version or self.tree.stamp
            digest = self.source.digest if isinstance(self.source, TreeSource) else ""
            identity = identify_tree(self.tree, address=address, digest=digest, md5s=self.md5s)
            return replace(identity, version=version)
        assert self.file is not None
        facts = self.file.facts
        if self.path is None and (facts.version or facts.mtime_ns or not facts.ranges):
            return identify_remote(facts, facts.size or 0, address=address)
        # Before its ends are read: what is written in between then shows as another content, not as the same.
        md5s, _ = ask_md5s([str(self.path)]) if self.slow and _on_drive(self.source) else ([], "")
        identity = identify_archive(content or RemoteBytes(self.file), facts.mtime_ns, address=address)
        return replace(identity, md5=md5s[0] if md5s else "")

    def relisted(self) -> str:
        """List a folder on a slow mount again; in what it differs from the first listing, as a sentence, or ""."""
        if self.tree is None or self.path is None or not self.slow:
            return ""
        again = FolderTree(self.path, workers=SLOW_LISTERS, leave_out=_left_out(self.source))
        if identify_tree(again).times == identify_tree(self.tree).times:
            return ""
        names, names_now = set(file_names(self.tree.entries)), set(file_names(again.entries))
        came, went = sorted(names_now - names), sorted(names - names_now)
        parts = [f"{len(came):,} files more (first '{came[0]}')"] if came else []
        parts += [f"{len(went):,} fewer (first '{went[0]}')"] if went else []
        found = " and ".join(parts) or "other sizes or times"
        return f"'{self.path}' lists {found} than when it was first listed."

    def close(self) -> None:
        """Let go of connections and handles; what was brought whole stays for the next run."""
        if self.file is not None:
            self.file.close()
        if self.tree is not None and not isinstance(self.source, TreeSource):
            self.tree.close()
        if self.download is not None:
            self.download.close()

    def discard(self) -> None:
        """Remove what was brought whole: it has been made use of."""
        if self.download is not None:
            self.download.discard()


@dataclass(frozen=True, slots=True)
class Opener:
    """What opening any source needs besides the source.

    `folder`: on the local disk, exists; for what has to come whole. `checksum`: of one file, as the caller gave it.
    """

    folder: Path
    progress: Progress
    cancellation: Cancellation
    checksum: Checksum | None = None

    def open(self, source: SingleSource) -> Opened:
        """Open one source; a local one may not be a pattern any more.

        Raises:
            SourceNotFoundError: there is nothing.
            SourceAccessError, SourceReadError, DriveDisconnectedError, DriveQuotaError: it cannot be read.
            MissingDependencyError: its kind needs a package; the message has the install line.
            OptionError: it is a folder, and a checksum was given.
        """
        with given_up():
            opened = self._open(source)
        if self.checksum is not None and opened.tree is not None:
            opened.close()
            msg = f"'{source.label}' is a folder, and hash= is for one file. Leave it out."
            raise OptionError(msg)
        return opened

    def _open(self, source: SingleSource) -> Opened:
        match source:
            case LocalSource():
                require_answer(source.path)
                return _open_path(source, source.path, "local disk", checksum=self.checksum)
            case WebSource():
                return self._open_web(source)
            case ObjectSource():
                return self._open_object(source)
            case ShareSource():
                return self._open_shared(source)
            case KaggleSource():
                return self._open_kaggle(source)
            case TreeSource():
                return Opened(source, "tree", slow=False, tree=source.tree)

    def _open_web(self, source: WebSource) -> Opened:
        from colabstage.sources.http_file import open_http

        return Opened(source, "http", slow=True, file=open_http(source.url, checksum=self.checksum))

    def _open_object(self, source: ObjectSource) -> Opened:
        from colabstage.sources.objects_fsspec import ObjectTree, object_kind, open_object

        if object_kind(source.url) == "folder":
            return Opened(source, "object store", slow=True, tree=ObjectTree(source.url, workers=SLOW_LISTERS))
        return Opened(source, "object store", slow=True, file=open_object(source.url, checksum=self.checksum))

    def _open_shared(self, source: ShareSource) -> Opened:
        from colabstage.sources.share_links import download_share_link, share_link_facts

        facts = share_link_facts(source.link, cancellation=self.cancellation)
        state = None if facts is None else f"{source.address} {facts.size} {facts.version}"
        notes: list[str] = []

        def bring(folder: Path) -> Path:
            return download_share_link(
                source.link,
                folder,
                progress=self.progress,
                cancellation=self.cancellation,
                checksum=self.checksum,
                note=notes.append,
            )

        opened = self._bring(source, state, "share link", bring)
        opened.facts = facts
        opened.notes += notes
        return opened

    def _bring(
        self, source: SingleSource, state: str | None, transport: Transport, bring: Callable[[Path], Path]
    ) -> Opened:
        digest = hashlib.sha256(source.address.encode()).hexdigest()[:8]
        download = Download(self.folder / f"{source.name}-{digest}", state)
        with contextlib.ExitStack() as undo:
            undo.callback(download.close)
            path, resumed = download.fetch(bring)
            if resumed and self.checksum is not None and path.is_file():
                # Whoever brought it may not have been asked for this checksum, or for any.
                try:
                    check_file(path, self.checksum, source.label)
                except ChecksumMismatchError:
                    download.discard()
                    raise
            opened = _open_path(source, path, transport)
            opened.download, opened.resumed = download, resumed
            opened.movable = path.is_relative_to(download.folder)
            undo.pop_all()
        return opened

    def _open_kaggle(self, source: KaggleSource) -> Opened:
        from colabstage.sources.kaggle_datasets import KaggleFiles, open_kaggle

        brought: list[KaggleFiles] = []

        def bring(folder: Path) -> Path:
            files = open_kaggle(source.dataset, folder, progress=self.progress, cancellation=self.cancellation)
            brought.append(files)
            return files.path

        opened = self._bring(source, source.address, "kaggle", bring)
        assert opened.download is not None
        if brought and brought[0].version:
            opened.download.note_version(brought[0].version)
        opened.version = opened.download.version
        opened.notes += [note for files in brought for note in files.notes]
        return opened


class RemoteBytes:
    """A `ByteSource` over a file of known length somewhere else: each read is a request."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.label = file.facts.label
        self.size: int = file.facts.size or 0

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes at `offset`, tried again where the failure passes."""
        length = max(0, min(length, self.size - offset))
        return read_directly(self._file, offset, length, policy=RetryPolicy(), stopped=lambda: False) if length else b""

    def close(self) -> None:
        """Do nothing: the file stays open, it is its owner's."""


def remote_opener(source: SingleSource) -> Callable[[], RemoteFile]:
    """How to open one file that has an address, any number of times.

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
        msg = f"'{path}' is a folder in a list of files that are no archives. Give files alone, or folders alone."
        raise SourceReadError(msg)
    return MountedFile(path)


def _open_path(source: SingleSource, path: Path, transport: Transport, *, checksum: Checksum | None = None) -> Opened:
    slow = is_slow_mount(path)
    if slow and transport == "local disk":
        transport = "mount"
    # The first look at a file reads its beginning, and a mount may fail there as anywhere.
    if read_with_retry(lambda: recognise(path), str(path), policy=RetryPolicy()) == "folder":
        if slow and _on_drive(source):
            tree, md5s, _ = list_and_ask(path, workers=SLOW_LISTERS, leave_out=_left_out(source))
            return Opened(source, transport, slow, tree=tree, path=path, md5s=md5s)
        tree = FolderTree(path, workers=SLOW_LISTERS if slow else 1, leave_out=_left_out(source))
        return Opened(source, transport, slow, tree=tree, path=path)
    file = MountedFile(path)
    if checksum is not None:
        file.facts = replace(file.facts, checksum=checksum)
    return Opened(source, transport, slow, file=file, path=path)


def _on_drive(source: SingleSource) -> bool:
    return isinstance(source, LocalSource) and source.on_drive


def _left_out(source: SingleSource) -> frozenset[str]:
    return source.leave_out if isinstance(source, LocalSource) else frozenset()


def comes_whole(source: Source) -> bool:
    """Whether opening a source may mean to download all of it."""
    parts = source.parts if isinstance(source, ManySource) else (source,)
    return any(isinstance(part, ShareSource | KaggleSource) for part in parts)
