"""One source, opened: a file any part of which can be read, or a tree of files; and what has to be copied here first.

Every copy has a name that identifies its source from the first byte on (`copy_name`), and records the source's state.
So the call after a kill finds it, and continues it or removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from colabstage.errors import ChecksumMismatchError
from colabstage.io.files import Closing, disk_use, read_json, write_json
from colabstage.io.ownership import sweep_orphans
from colabstage.io.retry import RetryPolicy, typed_write_errors
from colabstage.io.temporaries import (
    find_orphans,
    is_our_name,
    leave_for_next,
    remove_own,
    rename_own,
    take_orphan,
    temp_beside,
)
from colabstage.io.units import format_count
from colabstage.machine.drive_client import Md5Questions, ask_md5s
from colabstage.machine.resources import check_space
from colabstage.sources.identity import SourceIdentity, identify_archive, identify_remote, identify_tree
from colabstage.sources.look import drive_md5s
from colabstage.sources.parse import LocalSource, TreeSource
from colabstage.sources.transfer.streaming_copy import StreamingCopy
from colabstage.sources.transfer.whole_file import fetch_file
from colabstage.trees.entries import entry_names, total_size
from colabstage.trees.folder import FolderTree
from colabstage.trees.open import open_archive, recognise_archive
from colabstage.trees.tree import LocalBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from types import TracebackType

    from colabstage.io.progress import Cancellation, Progress, ProgressStep
    from colabstage.sources.parse import SingleSource
    from colabstage.sources.remote import Checksum, RemoteFacts, RemoteFile
    from colabstage.sources.tree import Transport
    from colabstage.trees.tree import ByteSource, Tree

# Folder listings on a Drive mount take 0.3 s and more each; like reads, about twenty at once are answered at full rate.
SLOW_LISTERS = 24
_HASH_BYTES = 8 * 1024 * 1024
_STATE = "state.json"
_CONTENT = "content"
_COMING = "coming"
_VERSION = "version.json"


def copy_name(address: str, name: str) -> str:
    """Return what is called for what comes of a source: the same for every try, and no other source's.

    It follows from the source and not from what is made of it: who stages it with other options continues with it.
    """
    return f"{_copy_prefix(address)}{name}"


def _copy_prefix(address: str) -> str:
    return f"{hashlib.sha256(address.encode(errors='surrogateescape')).hexdigest()[:8]}-"


def is_on_drive(source: SingleSource) -> bool:
    """Return whether a source is on a Google Drive, whose client knows the MD5 of its files."""
    return isinstance(source, LocalSource) and source.on_drive


def sweep_copies(folder: Path, address: str) -> None:
    """Remove what dead runs brought of a source into `folder` only to read it."""
    sweep_orphans(folder, prefix=_copy_prefix(address))


class Download:
    """What comes of one source, and stays until `discard`, or until somebody else takes it over after `close`.

    Args:
        lasting: the name that it is made for, in a folder that exists.
        state: which source in which state; what a dead process left is continued only if it says the same. `None`
            where the source did not say now: then whatever is there is continued, and keeps its state. What is
            continued compares it again.
    """

    def __init__(self, lasting: Path, state: str | None) -> None:
        self.folder = temp_beside(lasting)
        self._closed = False
        # Of another state of the source nothing can be used: half of one version and half of another would be neither.
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
        # What stands here was renamed in one step when it was complete.
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
        # An empty folder would only make the next run look for something to continue.
        if any(any((self.folder / part).iterdir()) for part in (_CONTENT, _COMING)):
            with contextlib.suppress(OSError):
                leave_for_next(self.folder)
                return
        remove_own(self.folder)

    def discard(self) -> None:
        """Keep nothing. Calling it twice is fine."""
        self._closed = True
        remove_own(self.folder)


@dataclass(frozen=True, slots=True)
class Opening:
    """What opening any source needs besides the source."""

    folder: Path | None
    """An existing folder on the local disk for copies; `None` where files are read where they are."""
    progress: Progress
    """Where steps are shown."""
    cancellation: Cancellation
    """What stops it."""
    checksum: Checksum | None = None
    """The checksum of a single file, as the caller gave it; compared by whatever fetches the file."""


@dataclass(slots=True, eq=False)
class SourcePart(Closing):
    """One source, opened. At most one of `file` and `tree` is set; neither where the source is opened for each read."""

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
    """Where it is on this machine's disks or mounts; `None` where it is only reached over the network."""
    facts: RemoteFacts | None = None
    """What the service reports about a file that was downloaded as a whole."""
    download: Download | None = None
    """Where it was downloaded to, if it had to be."""
    resumed: bool = False
    """Whether an earlier run had downloaded all of it."""
    movable: bool = False
    """Whether `path` was downloaded for this call, so that it may be moved instead of copied."""
    questions: Md5Questions | None = None
    """What asks Drive's client for the MD5 of each file of a folder before the file is read; `None` elsewhere."""
    version: str = ""
    """The service's name for the state that was downloaded, where it is known."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the report."""
    in_place: bool = False
    """Whether an archive is read where it is although each answer takes time, because there is no room for a copy."""
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What has to be closed before the file or tree itself."""
    _bytes: ByteSource | None = None
    """The bytes of the file, once they have been read from."""
    _copy: StreamingCopy | None = None
    """The same, where they are copied here while they are read."""
    _archive: Tree | None = None
    """The files in the archive, once they have been asked for."""
    _identity: SourceIdentity | None = None
    """Its state, once it has been asked for."""

    @property
    def identity(self) -> SourceIdentity:
        """Return the state in which it was when this was first asked for, or of a folder when it was opened."""
        if self._identity is None:
            self._identity = self._identify()
        return self._identity

    @property
    def extent(self) -> tuple[int, int]:
        """Return how many files it has and their bytes together, without waiting for a client's answers."""
        if self.questions is None or self.tree is None:
            return self.identity.files, self.identity.nbytes
        return len(self.tree.entries), total_size(self.tree.entries)

    def _identify(self) -> SourceIdentity:
        address = self.source.address
        # Downloaded as a whole: the service's own version says more than the times of the local copy.
        if self.facts is not None and self.facts.size is not None and self.facts.version:
            return identify_remote(self.facts, self.facts.size, address=address)
        if self.tree is not None:
            version = self.facts.version if self.facts is not None else self.version or self.tree.stamp
            digest = self.source.digest if isinstance(self.source, TreeSource) else ""
            md5s: Sequence[str] = ()
            if self.questions is not None and isinstance(self.tree, FolderTree):
                md5s, _ = drive_md5s(self.tree, self.questions)
            identity = identify_tree(self.tree, address=address, digest=digest, md5s=md5s)
            return replace(identity, version=version)
        assert self.file is not None
        facts = self.file.facts
        # For a remote file its version or time is enough. For a local one, and one that has neither, the two ends are
        # read as well.
        if self.comes_first or (self.path is None and (facts.version or facts.mtime_ns)):
            return identify_remote(facts, facts.size or 0, address=address)
        # Before the ends are read, so that a write in between shows as a change.
        md5s, _ = ask_md5s([str(self.path)]) if self.slow and is_on_drive(self.source) else ([], "")
        identity = identify_archive(self._content, facts.mtime_ns, address=address)
        return replace(identity, md5=md5s[0] if md5s else "")

    @property
    def comes_first(self) -> bool:
        """Return whether it is a file without range requests, all of which has to come before anything is read."""
        file = self.file
        return file is not None and self.path is None and (file.facts.size is None or not file.facts.ranges)

    @property
    def opens_at_once(self) -> bool:
        """Return whether its files can be listed without bringing all of it here first."""
        if self.comes_first:
            return False
        # A zip has its directory at the end, which one request fetches. A tar has to be read from its beginning.
        return not self._is_copied or recognise_archive(self._content) in ("zip", None)

    @property
    def unpacks_first(self) -> bool:
        """Return whether it is compressed as a whole, so that its files are known only once all of it is unpacked."""
        if self.file is None or self.comes_first:
            return False
        return recognise_archive(self._content) not in ("zip", "tar", None)

    @property
    def is_archive(self) -> bool:
        """Return whether it is a file that is an archive; reads its beginning."""
        return self.file is not None and recognise_archive(self._content) is not None

    @property
    def reads_slowly(self) -> bool:
        """Return whether its files, each read by itself, take time to answer."""
        return self.slow and (self.in_place or not self._is_copied)

    @property
    def archive_bytes(self) -> int:
        """Return the length of an archive that is still to be copied here, where it is known; 0 for everything else."""
        if self.file is None or not self._is_copied or (self.comes_first and self._bytes is not None):
            return 0
        return self.file.facts.size or 0

    @property
    def kept_bytes(self) -> int:
        """Return how much of that is on the disk already, from an interrupted run."""
        if self._copy is None:
            return 0
        # A sparse file has its whole length from the beginning; what it takes on the disk is what has come.
        return min(self._copy.size, sum(map(disk_use, find_orphans(self._copy_path))))

    @property
    def resumed_bytes(self) -> int:
        """Return how much of a copy or download an interrupted run had finished and this one has used."""
        if self.resumed:
            return self.identity.nbytes
        return self._copy.kept_bytes if self._copy is not None else 0

    @property
    def _is_copied(self) -> bool:
        """Tell whether a file is copied here, because reading it where it is takes too long."""
        # A mount counts as far: random reads of an archive through it are slower than a copy of all of it.
        return self.file is not None and self.opening.folder is not None and (self.path is None or self.slow)

    @property
    def _content(self) -> ByteSource:
        """The bytes of a file, which is downloaded now if it has to be."""
        if self._bytes is None:
            self._bytes = self._open_bytes()
        return self._bytes

    def _open_bytes(self) -> ByteSource:
        assert self.file is not None
        label = self.source.label
        if self.path is not None and not self._is_copied:
            return self._stack.enter_context(LocalBytes(self.path, label=label))
        if self.comes_first:
            return self._stack.enter_context(LocalBytes(self._fetch_whole(), label=label))
        facts = self.file.facts
        assert facts.size is not None
        step = self._stack.enter_context(LateStep(self.opening.progress, f"copy {facts.name}", facts.size))
        self._copy = self._stack.enter_context(
            StreamingCopy(
                self.file, self._copy_path, step=step, policy=RetryPolicy(), cancellation=self.opening.cancellation
            )
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
                    policy=RetryPolicy(),
                )
            return fetched.path

        return self.download.fetch(bring)[0]

    def verify(self, checksum: Checksum) -> None:
        """Hash the whole file, which has to arrive for that.

        Raises:
            ChecksumMismatchError: it is another file than the one that was asked for; nothing was made of it.
        """
        # Taken before the bytes are read, so that a file which changes meanwhile shows as changed.
        identity = self.identity
        hasher = checksum.new_hasher()
        content = self._content
        # From the copy, where there is one: each part would otherwise be a request of its own, and all of it is copied
        # anyway.
        read = content.pread if self._copy is None else self._copy.read_here
        for offset in range(0, content.size, _HASH_BYTES):
            self.opening.cancellation.check()
            hasher.update(read(_HASH_BYTES, offset))
        if hasher.hexdigest() != checksum.digest:
            # The next call would continue with it, and fail in the same way.
            self.discard()
            msg = (
                f"'{self.source.label}' arrived complete, but its {checksum.algorithm} is {hasher.hexdigest()}, not "
                f"{checksum.digest}. Nothing was staged. Compare the checksum with its publisher's."
            )
            raise ChecksumMismatchError(msg)
        self._identity = replace(identity, checksum=str(checksum))

    def open_tree(self, spool: Path, *, alone: bool = False) -> Tree:
        """Open the files. An archive that can only be read from its beginning starts to arrive.

        Args:
            spool: a folder on the local disk for the unpacked form of a compressed tar.
            alone: whether it is the whole source, so that a file of arrays or records counts too.

        Raises:
            ArchiveError, CorruptArchiveError, UnsafeArchiveError: as `trees.open_tree`.
        """
        if self.tree is not None:
            return self.tree
        if self._archive is None:
            content = self._content
            if not self.opens_at_once:
                self.start()
            self._archive = self._stack.enter_context(
                open_archive(
                    content,
                    spool=spool,
                    single_files=alone,
                    name="" if self.file is None else self.file.facts.name,
                    cancellation=self.opening.cancellation,
                )
            )
        return self._archive

    def relisted(self) -> str:
        """List a folder on a slow mount again; return how it differs from the first listing, in a sentence, or ""."""
        # A mounted Drive sometimes lists only a part of a folder, without an error.
        if self.tree is None or self.path is None or not self.slow:
            return ""
        leave_out = self.source.leave_out if isinstance(self.source, LocalSource) else frozenset()
        again = FolderTree(self.path, workers=SLOW_LISTERS, leave_out=leave_out)
        if identify_tree(again).times == identify_tree(self.tree).times:
            return ""
        names, names_now = set(entry_names(self.tree.entries)), set(entry_names(again.entries))
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
        """Read an archive where it is, which `opens_at_once`. Instead of `start`."""
        self.in_place = True
        if self._copy is not None:
            self._copy.read_in_place()

    def prefer(self, byte_ranges: Iterable[tuple[int, int]]) -> None:
        """Copy these byte ranges of a remote archive first; do nothing for any other source."""
        if self._copy is not None:
            self._copy.prefer(byte_ranges)

    def discard(self) -> None:
        """Remove copies that were made only in order to read them."""
        if self._copy is not None:
            self._copy.discard()
        if self.download is not None:
            self.download.discard()

    def close(self) -> None:
        """Release connections and handles; what has arrived stays for the next run. Calling it twice is fine."""
        if self.opening.cancellation.cancelled and self.file is not None:
            # The connection is closed first: closing the copy waits for its readers, and those for the server.
            self.file.close()
        self._stack.close()
        if self.questions is not None:
            self.questions.close()
        if self.file is not None:
            self.file.close()
        # A tree that the caller has opened is the caller's to close.
        if self.tree is not None and not isinstance(self.source, TreeSource):
            self.tree.close()
        if self.download is not None:
            self.download.close()


class LateStep:
    """A step from the first byte to the last: most copies never begin, and one that is here is read for long after."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress = progress
        self._name = name
        self._total = total
        self._lock = threading.Lock()
        self._done = 0
        self._step: ProgressStep | None = None

    def advance(self, amount: int = 1) -> None:
        with self._lock:
            # What came twice is no further copy.
            if self._done >= self._total > 0:
                return
            if self._step is None:
                self._step = self._progress.step(self._name, total=self._total, unit="B")
                self._step.__enter__()
            self._done += amount
            self._step.advance(amount)
            if self._done >= self._total:
                self._step.__exit__(None, None, None)
                self._step = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            step, self._step = self._step, None
        if step is not None:
            step.__exit__(kind, error, trace)
