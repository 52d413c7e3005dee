"""Open sources: as a file whose parts can be read, or as a tree of files, copied here first if necessary.

Every copy has a name that identifies its source (`copy_name`), so the call after a kill finds it. Several sources that
are one dataset are opened by `many`, with the same interface.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from colabstage.errors import ChecksumMismatchError, OptionError
from colabstage.io.environment import require_online
from colabstage.io.files import PATIENT, Closing, RetryPolicy, read_with_retry
from colabstage.io.ownership import sweep_orphans
from colabstage.io.progress import LateStep
from colabstage.io.units import format_count
from colabstage.io.workspace import disk_use, find_orphans, short_digest
from colabstage.machine.drive_attributes import Md5Questions, ask_md5s
from colabstage.machine.mounts import is_slow_mount, require_answer
from colabstage.machine.resources import check_space
from colabstage.sources.arriving import ALONG_BYTES, ArchiveWalk, StreamingCopy, ends_with_contents, fetch_file
from colabstage.sources.download import Download
from colabstage.sources.identity import (
    SourceIdentity,
    drive_md5s,
    identify_archive,
    identify_by_times,
    identify_remote,
    identify_tree,
)
from colabstage.sources.parse import (
    KaggleSource,
    LocalSource,
    ManySource,
    ObjectSource,
    ShareSource,
    TreeSource,
    WebSource,
    expand_pattern,
    is_on_drive,
    whole_of,
)
from colabstage.sources.remote import JoinedFile, MountedFile, given_up, pieces_of
from colabstage.sources.remote_files import RemoteFileTree, open_remote
from colabstage.sources.tree import SLOW_READERS
from colabstage.trees.bytes import JoinedBytes, LocalBytes
from colabstage.trees.folder import FolderTree
from colabstage.trees.listing import total_size
from colabstage.trees.open import OnlyTree, open_archive, recognise, recognise_archive

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from colabstage.io.progress import Cancellation, Progress
    from colabstage.sources.many import OpenList
    from colabstage.sources.parse import SingleSource, Source
    from colabstage.sources.remote import Checksum, RemoteFile
    from colabstage.sources.tree import Transport
    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import Tree

OpenSource: TypeAlias = "SourcePart | OpenList"

# Folder listings on a Drive mount take 0.3 s and more each. As with reads, about 20 at once are answered at full rate;
# a few more keep all of them busy while answers are processed.
SLOW_LISTERS = SLOW_READERS


def copy_name(address: str, name: str) -> str:
    """Return the name for copies of a source: the same for every try, and different from that of any other source.

    It depends on the source only, so a call that stages it with other options continues with the same copy.
    """
    return f"{_copy_prefix(address)}{name}"


def _copy_prefix(address: str) -> str:
    return f"{short_digest(address, 8)}-"


def sweep_copies(folder: Path, address: str) -> None:
    """Remove temporary copies of a source that dead runs left in `folder`."""
    sweep_orphans(folder, prefix=_copy_prefix(address))


@dataclass(frozen=True, slots=True)
class Opening:
    """Hold what opening any source needs besides the source."""

    folder: Path | None
    """An existing folder on the local disk for copies; `None` to read files in place."""
    progress: Progress
    """Shows the steps."""
    cancellation: Cancellation
    """Stops it."""
    checksum: Checksum | None = None
    """The checksum of a single file, as the caller gave it; compared by whatever fetches the file."""
    only: tuple[str, ...] = ()
    """The part of the source that is meant, as `read_only` gives it; nothing for all of it."""
    zip_encoding: str | None = None
    """The encoding of a zip's names where it declares none."""
    sparing: bool = False
    """Whether all of a source may not fit on the disk: then nothing is downloaded only to be opened, and a tar is read
    through in place."""


@dataclass(slots=True, eq=False)
class SourcePart(Closing):
    """Read one open source. At most one of `file` and `tree` is set; neither if the source is opened for each read."""

    source: SingleSource
    """What was opened."""
    transport: Transport
    """How it is reached."""
    slow: bool
    """Whether each answer takes time."""
    opening: Opening
    """What it was opened with."""
    file: RemoteFile | None = None
    """The file, where the source is one."""
    tree: Tree | None = None
    """The files of the folder, where the source is one."""
    path: Path | None = None
    """Its path on this machine's disks or mounts; `None` if it is only reached over the network."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the report."""
    version: str = ""
    """The service's name for its version, where the files here do not tell it."""
    questions: Md5Questions | None = None
    """Asks Drive's client for MD5s: of each file of a folder before the file is read, of a zip while its directory is
    read; otherwise `None`."""
    in_place: bool = False
    """Whether an archive is read in place although each answer takes time, because there is no room for a copy."""
    download: Download | None = None
    """The download of a source that can only be downloaded as a whole."""
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What has to be closed before the file or tree itself."""
    _bytes: ByteSource | None = None
    """The bytes of the file, after the first read."""
    _copy: StreamingCopy | None = None
    """The same, if they are copied here while they are read."""
    _archive: Tree | None = None
    """The files in the archive, after the first access."""
    _part: Tree | None = None
    """Those of the files that are meant, after the first access."""
    _identity: SourceIdentity | None = None
    """Its state, after the first access."""

    @property
    def identity(self) -> SourceIdentity:
        """Return its state at the first call, or, for a folder, when it was opened."""
        if self._identity is None:
            self._identity = self._identify()
        return self._identity

    @property
    def slowest(self) -> SourcePart:
        """Return itself: the part of a list by which the number of concurrent reads is chosen."""
        return self

    @property
    def extent(self) -> tuple[int, int]:
        """Return the number of its files and their total size, without waiting for a client's answers."""
        if self.questions is None or self.tree is None:
            return self.identity.files, self.identity.nbytes
        return len(self.tree.entries), total_size(self.tree.entries)

    def take_state(self) -> None:
        """Collect the facts that identify its state, before it is read.

        A folder on Drive has been listed already, and the MD5 of each file is asked for right before the file is read:
        `identity` waits for missing ones.
        """
        if self.tree is None or self.questions is None:
            self._identity = self.identity

    def _identify(self) -> SourceIdentity:
        address = self.source.address
        if self.tree is not None:
            digest = self.source.digest if isinstance(self.source, TreeSource) else ""
            md5s: Sequence[str] = ()
            if self.questions is not None and isinstance(self.tree, FolderTree):
                md5s, _ = drive_md5s(self.tree, self.questions)
            identity = identify_tree(self.tree, address=address, digest=digest, md5s=md5s)
            return replace(identity, version=self.version or self.tree.stamp)
        assert self.file is not None
        facts = self.file.facts
        # For a remote file its version or time is enough. For local files, and those without either, both ends are read
        # as well.
        if self.comes_first or (self.path is None and (facts.version or facts.mtime_ns)):
            return identify_remote(facts, facts.size or 0, address=address)
        if self.questions is None:
            # Before the ends are read, so that a write in between is noticed.
            md5s, _ = ask_md5s([str(self.path)]) if self.slow and is_on_drive(self.source) else ([], "")
            identity = identify_archive(self._content, facts.mtime_ns, address=address)
        else:
            # In a zip, a write in between is noticed when members are read: their checksums are in its directory.
            identity = identify_archive(self._content, facts.mtime_ns, address=address)
            md5s, _ = self.questions.answers([str(self.path)])
        return replace(identity, md5=md5s[0] if md5s else "")

    @property
    def comes_first(self) -> bool:
        """Return whether it is a file without range requests, which has to be downloaded completely before anything is
        read."""
        file = self.file
        return file is not None and self.path is None and (file.facts.size is None or not file.facts.ranges)

    @property
    def opens_at_once(self) -> bool:
        """Return whether its files can be listed without copying all of it first."""
        if self.comes_first:
            return False
        # A zip has its directory at the end, which one request fetches. A tar has to be read from its beginning.
        return not self._is_copied or recognise_archive(self._content) in ("zip", None) or self.is_walked

    @property
    def is_walked(self) -> bool:
        """Return whether it is a tar that is read through in place, which may take a while."""
        is_far = self.opening.sparing and self._is_copied and not self.comes_first
        return is_far and recognise_archive(self._content) == "tar"

    @property
    def unpacks_first(self) -> bool:
        """Return whether it is compressed as a whole, so that its files are only known after unpacking."""
        if self.file is None or self.comes_first:
            return False
        return recognise_archive(self._content) not in ("zip", "tar", None)

    @property
    def is_archive(self) -> bool:
        """Return whether it is a file that is an archive; reads its beginning."""
        return self.file is not None and recognise_archive(self._content) is not None

    @property
    def reads_slowly(self) -> bool:
        """Return whether each read of one of its files takes time."""
        return self.slow and (self.in_place or not self._is_copied)

    @property
    def archive_bytes(self) -> int:
        """Return the size of an archive that is still to be copied here, if known; otherwise 0."""
        if self.file is None or not self._is_copied or (self.comes_first and self._bytes is not None):
            return 0
        return self.file.facts.size or 0

    @property
    def mount_bytes(self) -> int:
        """Return how much of that passes through a mount of Google Drive, which keeps a second copy."""
        return 0 if not self.archive_bytes or self.identity.trusts_times else self.archive_bytes

    @property
    def kept_bytes(self) -> int:
        """Return how much of that an interrupted run has already copied."""
        if self._copy is None:
            return 0
        # A sparse file has its full length from the beginning; its use of the disk is what has arrived.
        return min(self._copy.size, sum(map(disk_use, find_orphans(self._copy_path))))

    @property
    def resumed_bytes(self) -> int:
        """Return how much of an interrupted run's copy or download this one has reused."""
        return self._copy.kept_bytes if self._copy is not None else 0

    @property
    def waits_for(self) -> str:
        """Return why requested bytes are not arriving at present; "" if they are."""
        if self._copy is not None:
            return self._copy.waits_for
        return "" if self.tree is None else self.tree.waits_for

    @property
    def _is_copied(self) -> bool:
        """Tell whether a file is copied here, because reading it in place takes too long."""
        # A slow mount counts as remote: random reads of an archive through it are slower than copying all of it.
        return self.file is not None and self.opening.folder is not None and (self.path is None or self.slow)

    @property
    def _content(self) -> ByteSource:
        """Return the bytes of a file, which is downloaded now if necessary."""
        if self._bytes is None:
            self._bytes = self._open_bytes()
        return self._bytes

    def _open_bytes(self) -> ByteSource:
        assert self.file is not None
        label = self.source.label
        if self.path is not None and not self._is_copied:
            pieces = self.source.pieces if isinstance(self.source, LocalSource) else ()
            if pieces:
                return self._stack.enter_context(JoinedBytes(label, [LocalBytes(piece) for piece in pieces]))
            return self._stack.enter_context(LocalBytes(self.path, label=label))
        if self.comes_first:
            return self._stack.enter_context(LocalBytes(self._fetch_whole(), label=label))
        facts = self.file.facts
        assert facts.size is not None
        step = self._stack.enter_context(LateStep(self.opening.progress, f"copy {facts.name}", facts.size))
        self._copy = self._stack.enter_context(
            StreamingCopy(self.file, self._copy_path, step=step, policy=PATIENT, cancellation=self.opening.cancellation)
        )
        return self._copy

    @property
    def _copy_path(self) -> Path:
        assert self.file is not None
        assert self.opening.folder is not None
        return self.opening.folder / copy_name(self.source.address, self.file.facts.name)

    def _fetch_whole(self) -> Path:
        assert self.file is not None
        file, facts = self.file, self.file.facts
        # A download of another version must not be continued.
        state = f"{self.source.address} {facts.size} {facts.version} {facts.mtime_ns}"
        check_space(self._copy_path.parent, facts.size or 0, f"The copy of '{self.source.label}'")
        self.download = Download(self._copy_path, state)

        def bring(folder: Path) -> Path:
            with self.opening.progress.step(f"copy {facts.name}", total=facts.size, unit="B") as step:
                fetched = fetch_file(
                    file,
                    folder / facts.name,
                    step=step,
                    cancellation=self.opening.cancellation,
                    policy=PATIENT,
                )
            return fetched.path

        return self.download.fetch(bring)[0]

    def verify(self, checksum: Checksum) -> None:
        """Hash the whole file, which requires reading all of it.

        Raises:
            OptionError: it is a folder.
            ChecksumMismatchError: it is not the requested file; nothing was made from it.
        """
        if self.file is None:
            raise not_one_file(self.source.label)
        # Before the bytes are read, so that a change meanwhile is noticed.
        identity = self.identity
        content = self._content
        # From the copy, if there is one: otherwise each part would be a separate request, and all of it is copied
        # anyway.
        read = content.pread if self._copy is None else self._copy.read_here
        walk = self._walk("compare") if self._copy is not None and self.opening.sparing else None
        if walk is not None:
            # There may be no room for a copy, so all of it is read once for this and not kept.
            read = walk.pread
        digest = checksum.digest_of(pieces_of(read, content.size, self.opening.cancellation))
        if walk is not None:
            walk.end()
        if digest != checksum.digest:
            # The next call would continue with it, and fail again.
            self.discard()
            msg = (
                f"'{self.source.label}' arrived complete, but its {checksum.algorithm} is {digest}, not "
                f"{checksum.digest}. Nothing was staged. Compare the checksum with its publisher's."
            )
            raise ChecksumMismatchError(msg)
        self._identity = replace(identity, checksum=str(checksum))

    def open_tree(self, spool: Path, *, alone: bool = True) -> Tree:
        """Open the files. An archive that can only be read in order starts to be copied.

        Args:
            spool: a folder on the local disk for the unpacked form of a compressed tar.
            alone: whether it is the whole source, so that a single file of arrays or records is accepted too.

        Raises:
            ArchiveError, CorruptArchiveError, UnsafeArchiveError: as `trees.open_tree`.
            SourceNotFoundError: `only=` fits nothing in it.
        """
        if self._part is None:
            whole = self._open_whole(spool, alone=alone)
            self._part = OnlyTree(whole, self.opening.only) if self.opening.only else whole
        return self._part

    def _open_whole(self, spool: Path, *, alone: bool) -> Tree:
        if self.tree is not None:
            return self.tree
        if self._archive is None:
            content: ByteSource = self._content
            walk = None
            if self.is_walked:
                content = walk = self._walk("look through")
            elif not self.opens_at_once:
                self.start()
            self._archive = self._stack.enter_context(
                open_archive(
                    content,
                    spool=spool,
                    single_files=alone,
                    name="" if self.file is None else self.file.facts.name,
                    zip_encoding=self.opening.zip_encoding,
                    cancellation=self.opening.cancellation,
                )
            )
            if walk is not None:
                walk.end()
        return self._archive

    def _walk(self, verb: str) -> ArchiveWalk:
        """Return the bytes of a remote file, for reading it once from beginning to end."""
        assert self.file is not None
        content = self._content
        step = self._stack.enter_context(
            LateStep(self.opening.progress, f"{verb} {self.file.facts.name}", content.size)
        )
        return ArchiveWalk(content, self.file, step, self.opening.cancellation)

    def relisted(self) -> str:
        """Look for changes that reading cannot notice: list a folder on a slow mount again, and compare the time of a
        local file. Return what has changed, in a sentence, or ""."""
        if self.file is not None and self.path is not None and isinstance(self._bytes, LocalBytes):
            # Of the open file, because its path may lead to another one meanwhile.
            now, facts = os.fstat(self._bytes.fileno()), self.file.facts
            if (now.st_size, now.st_mtime_ns) == (facts.size, facts.mtime_ns):
                return ""
            return f"'{self.path}' was written to while it was being read; wait until whatever writes it is done."
        # A mounted Drive sometimes lists only a part of a folder, without an error.
        if self.tree is None or self.path is None or not self.slow:
            return ""
        leave_out = self.source.leave_out if isinstance(self.source, LocalSource) else frozenset()
        again = FolderTree(self.path, workers=SLOW_LISTERS, leave_out=leave_out)
        if identify_by_times(again).times == identify_by_times(self.tree).times:
            return ""
        names, names_now = set(self.tree.entries.names), set(again.entries.names)
        came, went = sorted(names_now - names), sorted(names - names_now)
        parts = [f"{format_count(len(came), 'files')} more (first '{came[0]}')"] if came else []
        parts += [f"{len(went):,} fewer (first '{went[0]}')"] if went else []
        found = " and ".join(parts) or "other sizes or times"
        return f"'{self.path}' lists {found} than when it was first listed."

    def start(self) -> None:
        """Begin to copy a remote archive; do nothing for any other source."""
        if self._copy is not None:
            self._copy.start()

    def read_in_place(self) -> None:
        """Read an archive that `opens_at_once` in place. Call this instead of `start`."""
        self.in_place = True
        if self._copy is not None:
            self._copy.read_in_place()

    def read_members(self, byte_ranges: Iterable[tuple[int, int]], *, readers: int) -> None:
        """Expect reads of these members of an archive in place; do nothing for any other source."""
        if self._copy is not None and self.in_place:
            self._copy.read_members(byte_ranges, readers=readers)

    def prefer(self, byte_ranges: Iterable[tuple[int, int]], *, alone: bool = False) -> None:
        """Copy these byte ranges of a remote archive first; with `alone`, no others until somebody waits for them. Do
        nothing for any other source."""
        if self._copy is not None:
            self._copy.prefer(byte_ranges, alone=alone)

    def discard(self) -> None:
        """Remove temporary copies."""
        if self._copy is not None:
            self._copy.discard()
        if self.download is not None:
            self.download.discard()

    def close(self) -> None:
        """Release connections and handles; copied data stays for the next run. Calling it twice is fine."""
        if self.opening.cancellation.cancelled and self.file is not None:
            # The connection is closed first: closing the copy waits for its readers, and they wait for the server.
            self.file.close()
        self._stack.close()
        if self.questions is not None:
            self.questions.close()
        if self.file is not None:
            self.file.close()
        # A tree that the caller has opened is closed by the caller.
        if self.tree is not None and not isinstance(self.source, TreeSource):
            self.tree.close()
        if self.download is not None:
            self.download.close()


def not_one_file(label: str) -> OptionError:
    """Return the error for a checksum of something that is not a single file."""
    return OptionError(f"'{label}' is not one file, and hash= is for one file. Leave it out.")


def open_source(source: Source, opening: Opening, *, unpack: bool) -> OpenSource:
    """Open a source by reading a folder's listing, both ends of an archive, or what a service reports about it.

    Args:
        source: the source; a pattern is expanded.
        opening: what else opening needs.
        unpack: whether an archive in a list stands for its files, not for itself.

    Raises:
        SourceNotFoundError: there is nothing.
        SourceReadError, SourceAccessError, DriveDisconnectedError, DriveQuotaError: it cannot be read.
        MissingDependencyError: its kind needs a package; the message has the install line.
        ArchiveError: it is a file but not an archive; the message says what it is.
        OptionError: it is a folder, and a checksum was given.
    """
    opened = expand_pattern(source) if isinstance(source, LocalSource) else source
    # Copying takes files as they are.
    if unpack and isinstance(opened, LocalSource | ManySource):
        opened = whole_of(opened)
    if isinstance(opened, ManySource):
        # Imported here because lists open their parts with this module.
        from colabstage.sources.many import OpenList

        return OpenList(opened, opening, unpack=unpack)
    return open_part(opened, opening)


def open_part(source: SingleSource, opening: Opening) -> SourcePart:
    """Open one source; patterns have been expanded.

    Raises:
        Exception: as `open_source`.
    """
    if isinstance(source, WebSource | ObjectSource | ShareSource):
        require_online(source.label)
    # Both ends of a zip are read next.
    along = 0 if opening.folder is None else ALONG_BYTES
    with given_up():
        match source:
            case LocalSource():
                require_answer(source.path)
                part = _open_path(source, source.path, "local disk", opening)
            case WebSource():
                is_zip = ends_with_contents(urlsplit(source.url).path)
                file = open_remote(source, checksum=opening.checksum, along_bytes=along if is_zip else 0)
                part = SourcePart(source, "http", slow=True, opening=opening, file=file)
            case ObjectSource():
                part = _open_object(source, opening)
            case ShareSource():
                part = _open_shared(source, opening, along)
            case KaggleSource():
                part = _open_kaggle(source, opening, along)
            case TreeSource():
                part = SourcePart(source, "tree", slow=False, opening=opening, tree=source.tree)
    # The zip that Kaggle sends is not what anybody has a checksum of.
    if opening.checksum is not None and (part.tree is not None or isinstance(source, KaggleSource)):
        part.close()
        msg = f"'{source.label}' is a folder, and hash= is for one file. Leave it out."
        raise OptionError(msg)
    return part


def _open_path(source: SingleSource, path: Path, transport: Transport, opening: Opening) -> SourcePart:
    slow = is_slow_mount(path)
    if slow and transport == "local disk":
        transport = "mount"
    # Recognising a file reads its beginning, which may fail on a mount like any read.
    kind = read_with_retry(lambda: recognise(path), str(path), policy=RetryPolicy())
    if kind == "folder":
        leave_out = source.leave_out if isinstance(source, LocalSource) else frozenset()
        if slow and is_on_drive(source):
            questions = Md5Questions(workers=SLOW_LISTERS)
            # The client answers while other reads wait for the mount; asking during the listing would slow that down.
            tree = FolderTree(
                path,
                workers=SLOW_LISTERS,
                before_read=questions.ask_before_read,
                leave_out=leave_out,
                md5s=questions.known,
            )
            return SourcePart(source, transport, slow, opening, tree=tree, path=path, questions=questions)
        workers = SLOW_LISTERS if slow else 1
        tree = FolderTree(path, workers=workers, leave_out=leave_out)
        return SourcePart(source, transport, slow, opening, tree=tree, path=path)
    pieces = source.pieces if isinstance(source, LocalSource) else ()
    file: RemoteFile = JoinedFile([MountedFile(piece) for piece in pieces], path) if pieces else MountedFile(path)
    # Downloads have been compared already.
    if opening.checksum is not None and isinstance(source, LocalSource):
        file.facts = replace(file.facts, checksum=opening.checksum)
    part = SourcePart(source, transport, slow, opening, file=file, path=path)
    if kind == "zip" and slow and is_on_drive(source):
        part.questions = Md5Questions(workers=1)
        part.questions.ask([str(path)])
    return part


def _open_object(source: ObjectSource, opening: Opening) -> SourcePart:
    from colabstage.sources.objects import ObjectTree, object_kind

    if object_kind(source.url) == "folder":
        tree = ObjectTree(source.url, workers=SLOW_LISTERS, retry=PATIENT)
        return SourcePart(source, "object store", slow=True, opening=opening, tree=tree)
    file = open_remote(source, checksum=opening.checksum)
    return SourcePart(source, "object store", slow=True, opening=opening, file=file)


def _open_shared(source: ShareSource, opening: Opening, along_bytes: int) -> SourcePart:
    from colabstage.sources.gdrive import (
        IN_FLIGHT,
        list_shared_folder,
        open_shared_file,
        resolve_link,
        shared_openers,
    )

    link = resolve_link(source.link)
    if link.kind != "folder":
        file = open_shared_file(link, checksum=opening.checksum, along_bytes=along_bytes)
        return SourcePart(source, "share link", slow=True, opening=opening, file=file)
    folder = list_shared_folder(link, cancellation=opening.cancellation)
    tree = RemoteFileTree(
        source.label,
        shared_openers(folder),
        policy=PATIENT,
        cancellation=opening.cancellation,
        askers=IN_FLIGHT,
        stamp=folder.version,
    )
    return SourcePart(source, "share link", slow=True, opening=opening, tree=tree, notes=list(folder.notes))


def _open_kaggle(source: KaggleSource, opening: Opening, along_bytes: int) -> SourcePart:
    from colabstage.sources.kaggle import KaggleFolder, find_kaggle_folder, open_kaggle

    found = find_kaggle_folder(source.dataset)
    if found is None:
        require_online(source.label)
        opened = open_kaggle(source.dataset, checksum=opening.checksum, along_bytes=along_bytes)
        if not isinstance(opened, KaggleFolder):
            return SourcePart(source, "kaggle", slow=True, opening=opening, file=opened)
        found = opened
    part = _open_path(source, found.path, "kaggle", opening)
    part.notes.append(found.note)
    part.version = found.version
    if part.tree is not None:
        # Messages name what the person wrote.
        part.tree.label = source.label
    return part
