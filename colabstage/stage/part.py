"""One source of a request, opened: its identity, its files as a tree, and the copy that a far archive is given."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from colabstage.errors import ChecksumMismatchError
from colabstage.io.files import disk_use
from colabstage.io.ownership import sweep_orphans
from colabstage.io.retry import RetryPolicy
from colabstage.io.temporaries import find_orphans
from colabstage.machine.resources import check_space
from colabstage.sources.opening import Download
from colabstage.sources.transfer.streaming_copy import StreamingCopy
from colabstage.sources.transfer.whole_file import fetch_file
from colabstage.trees.archive_bytes import LocalBytes
from colabstage.trees.open import open_archive, recognise_archive

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from colabstage.io.progress import Progress, ProgressStep
    from colabstage.sources.identity import SourceIdentity
    from colabstage.sources.opening import Opened, Opener
    from colabstage.sources.remote import Checksum
    from colabstage.trees.tree import ByteSource, Tree

_HASH_BYTES = 8 * 1024 * 1024


def sweep_copies(folder: Path, address: str) -> None:
    """Remove what dead runs brought of a source into `folder` only to read it."""
    sweep_orphans(folder, prefix=_copy_prefix(address))


def _copy_prefix(address: str) -> str:
    return f"{hashlib.sha256(address.encode(errors='surrogateescape')).hexdigest()[:8]}-"


class SourcePart:
    """One source that has been opened; a context manager that lets go of everything.

    `identity`: its state now.
    """

    def __init__(self, opened: Opened, opener: Opener) -> None:
        """Look at what was opened.

        Raises:
            SourceReadError, SourceNotFoundError, DriveDisconnectedError: it cannot be read.
        """
        self.opened = opened
        self._opener = opener
        self._stack = contextlib.ExitStack()
        self._download = opened.download
        self._arriving: StreamingCopy | None = None
        self._bytes: ByteSource | None = None
        self._tree = opened.tree
        with contextlib.ExitStack() as undo:
            self._stack.callback(opened.close)
            undo.callback(self.close)
            if opened.file is not None and not self._comes_whole:
                self._bytes = self._open_bytes(opened)
            self.identity: SourceIdentity = opened.identify(self._bytes)
            undo.pop_all()

    @property
    def _comes_whole(self) -> bool:
        """Whether it is a file of which no parts can be had, so that it is fetched before anything is read."""
        file = self.opened.file
        return file is not None and self.opened.path is None and (file.facts.size is None or not file.facts.ranges)

    @property
    def _content(self) -> ByteSource:
        """The bytes of a file, which comes here whole now if it has to."""
        if self._bytes is None:
            self._bytes = self._stack.enter_context(LocalBytes(self._fetch_whole(), label=self.opened.source.label))
        return self._bytes

    @property
    def opens_at_once(self) -> bool:
        """Whether its files can be listed without bringing all of it here first."""
        if self._comes_whole:
            return False
        return self._arriving is None or recognise_archive(self._arriving) in ("zip", None)

    @property
    def unpacks_first(self) -> bool:
        """Whether it is compressed as a whole, so that its files are known only once all of it is unpacked."""
        if self.opened.file is None or self._comes_whole:
            return False
        return recognise_archive(self._content) not in ("zip", "tar", None)

    @property
    def slow(self) -> bool:
        """Whether its files, each read by itself, take their time to answer."""
        return self.opened.slow and self.opened.tree is not None

    @property
    def is_archive(self) -> bool:
        """Whether it is a file that is an archive; reads its beginning."""
        return self.opened.file is not None and recognise_archive(self._content) is not None

    @property
    def archive_bytes(self) -> int:
        """Length of an archive that is still to be copied here, where it is known; 0 for everything else."""
        if self._arriving is not None:
            return self._arriving.size
        file = self.opened.file
        return (file.facts.size or 0) if file is not None and self._bytes is None else 0

    @property
    def kept_bytes(self) -> int:
        """What of that is on the disk already, from an interrupted run."""
        if self._arriving is None:
            return 0
        return min(self._arriving.size, sum(map(disk_use, find_orphans(self._copy_path))))

    @property
    def resumed_bytes(self) -> int:
        """What of an archive's copy, or of a download, an interrupted run had finished and this one used."""
        if self.opened.resumed:
            return self.identity.nbytes
        return self._arriving.kept_bytes if self._arriving is not None else 0

    def verify(self, checksum: Checksum) -> None:
        """Hash the whole file, which has to arrive for that.

        Raises:
            ChecksumMismatchError: it is another file than the one that was asked for; nothing was made of it.
        """
        hasher = checksum.new_hasher()
        content = self._content
        read = content.pread if self._arriving is None else self._arriving.read_here
        for offset in range(0, content.size, _HASH_BYTES):
            self._opener.cancellation.check()
            hasher.update(read(_HASH_BYTES, offset))
        if hasher.hexdigest() != checksum.digest:
            self.discard()
            msg = (
                f"'{self.opened.source.label}' came whole, but its {checksum.algorithm} is {hasher.hexdigest()}, not "
                f"{checksum.digest}. Nothing was staged. Compare the checksum with its publisher's."
            )
            raise ChecksumMismatchError(msg)
        self.identity = replace(self.identity, checksum=str(checksum))

    def open_tree(self, spool: Path, *, alone: bool = False) -> Tree:
        """Open the files. An archive that can only be read from its beginning starts to arrive.

        Args:
            spool: a folder on the local disk for the unpacked form of a compressed tar.
            alone: whether it is the whole source, so that a file of arrays or records counts too.

        Raises:
            ArchiveError, CorruptArchiveError, UnsafeArchiveError: as `trees.open_tree`.
        """
        if self._tree is None:
            content = self._content
            if not self.opens_at_once:
                self.start()
            self._tree = self._stack.enter_context(
                open_archive(content, spool=spool, single_files=alone, cancellation=self._opener.cancellation)
            )
        return self._tree

    def start(self) -> None:
        """Begin to copy an archive that is far away; nothing to do for anything else."""
        if self._arriving is not None:
            self._arriving.start()

    def discard(self) -> None:
        """Remove what came here only to be read."""
        if self._arriving is not None:
            self._arriving.discard()
        if self._download is not None:
            self._download.discard()

    def close(self) -> None:
        """Let go of handles; what has arrived stays for the next run. Calling it twice is fine."""
        if self._opener.cancellation.cancelled:
            # Hang up first: whoever reads would otherwise be waited for until the other side has said something.
            self.opened.close()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_bytes(self, opened: Opened) -> ByteSource:
        assert opened.file is not None
        label = opened.source.label
        if opened.path is not None and not opened.slow:
            return self._stack.enter_context(LocalBytes(opened.path, label=label))
        facts = opened.file.facts
        assert facts.size is not None
        step = self._stack.enter_context(_LateStep(self._opener.progress, f"copy {facts.name}", facts.size))
        self._arriving = self._stack.enter_context(
            StreamingCopy(
                opened.file,
                self._copy_path,
                step=step,
                policy=RetryPolicy(),
                cancellation=self._opener.cancellation,
            )
        )
        return self._arriving

    @property
    def _copy_path(self) -> Path:
        """What an archive's copy is named for; no two sources of one dataset share a name."""
        assert self.opened.file is not None
        return self._opener.folder / f"{_copy_prefix(self.opened.source.address)}{self.opened.file.facts.name}"

    def _fetch_whole(self) -> Path:
        """Bring a file of which no parts can be had."""
        assert self.opened.file is not None
        file, facts = self.opened.file, self.opened.file.facts
        state = f"{self.opened.source.address} {facts.size} {facts.version} {facts.mtime_ns}"
        check_space(self._opener.folder, facts.size or 0, f"The copy of '{self.opened.source.label}'")
        self._download = Download(self._copy_path, state)
        self._stack.callback(self._download.close)

        def bring(folder: Path) -> Path:
            with self._opener.progress.step(f"copy {facts.name}", total=facts.size, unit="B") as step:
                fetched = fetch_file(
                    file,
                    folder / facts.name,
                    step=step,
                    cancellation=self._opener.cancellation,
                    policy=RetryPolicy(),
                )
            return fetched.path

        return self._download.fetch(bring)[0]


class _LateStep:
    """A step that shows itself when its first byte has come: most copies never begin."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress = progress
        self._name = name
        self._total = total
        self._lock = threading.Lock()
        self._step: ProgressStep | None = None

    def advance(self, amount: int = 1) -> None:
        with self._lock:
            if self._step is None:
                self._step = self._progress.step(self._name, total=self._total, unit="B")
                self._step.__enter__()
            step = self._step
        step.advance(amount)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            step, self._step = self._step, None
        if step is not None:
            step.__exit__(kind, error, trace)
