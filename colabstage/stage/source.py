"""A source, opened: its files as a tree, its identity, and the local copy an archive on a slow mount is given."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from colabstage.fetch.arriving import ArrivingFile
from colabstage.fetch.mounted import MountedFile
from colabstage.machine.mounts import is_slow_mount
from colabstage.retry import RetryPolicy
from colabstage.stage.identity import identify_archive, identify_tree
from colabstage.trees.archive_bytes import LocalBytes
from colabstage.trees.folder import FolderTree
from colabstage.trees.open import open_archive, recognise, recognise_archive

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from colabstage.progress import Progress
    from colabstage.stage.identity import SourceIdentity
    from colabstage.stage.request import StageRequest
    from colabstage.trees.tree import ByteSource, Tree

# Folder listings on a Drive mount take 0.3 s and more each; sixteen at once is what the mount answers at full rate.
SLOW_LISTERS = 16


class OpenSource:
    """A request's source; a context manager that lets go of everything.

    `slow`: whether it lies on a network or FUSE mount. `identity`: its state now.
    """

    def __init__(self, request: StageRequest, *, progress: Progress) -> None:
        """Open the source; reads a folder's listing, or an archive's two ends.

        Raises:
            SourceNotFoundError: there is nothing.
            SourceReadError, DriveDisconnectedError: it cannot be read.
            ArchiveError: it is a file that is no archive; the message says what it is.
        """
        self._request = request
        self._stack = contextlib.ExitStack()
        self._tree: Tree | None = request.tree
        self._bytes: ByteSource | None = None
        self._arriving: ArrivingFile | None = None
        self.slow = request.tree is None and is_slow_mount(request.place)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self.identity = self._identify(progress)
            undo.pop_all()

    @property
    def archive_bytes(self) -> int:
        """Length of an archive that is copied here before it is read; 0 for everything else."""
        return self._arriving.size if self._arriving is not None else 0

    def open_tree(self, spool: Path) -> Tree:
        """The files. An archive that can only be read from its beginning starts to arrive.

        Args:
            spool: a folder on the local disk for the unpacked form of a compressed tar.

        Raises:
            ArchiveError, CorruptArchiveError, UnsafeArchiveError: as `trees.open_tree`.
        """
        if self._tree is None:
            assert self._bytes is not None
            if self._arriving is not None and recognise_archive(self._bytes) not in ("zip", None):
                self._arriving.start()
            self._tree = self._stack.enter_context(open_archive(self._bytes, spool=spool))
        return self._tree

    def start(self) -> None:
        """Begin to copy an archive that lies on a slow mount; nothing to do for anything else."""
        if self._arriving is not None:
            self._arriving.start()

    def close(self) -> None:
        """Let go of handles and remove the copy of the archive."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _identify(self, progress: Progress) -> SourceIdentity:
        place = self._request.place
        if self._tree is not None:
            return identify_tree(self._tree)
        if recognise(place) == "folder":
            self._tree = FolderTree(place, workers=SLOW_LISTERS if self.slow else 1)
            return identify_tree(self._tree)
        self._bytes = self._open_bytes(progress)
        return identify_archive(self._bytes, place.stat().st_mtime_ns)

    def _open_bytes(self, progress: Progress) -> ByteSource:
        place = self._request.place
        if not self.slow:
            return self._stack.enter_context(LocalBytes(place))
        source = self._stack.enter_context(contextlib.closing(MountedFile(place)))
        step = self._stack.enter_context(progress.step(f"copy {place.name}", total=source.facts.size, unit="B"))
        self._arriving = ArrivingFile(source, self._request.folder / place.name, step=step, policy=RetryPolicy())
        self._stack.callback(self._arriving.discard)
        return self._arriving
