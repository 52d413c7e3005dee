"""A request's source, opened: one or several, together one tree of files with one identity."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from colabstage.errors import OptionError, SourceChangedError
from colabstage.io.pipeline import DaemonPool
from colabstage.machine.drive_client import ask_md5s
from colabstage.sources.identity import SourceIdentity, identify_many
from colabstage.sources.opening import Opener, remote_opener
from colabstage.sources.parse import LocalSource, ManySource, ObjectSource, WebSource, expand_pattern
from colabstage.sources.remote_files import RemoteFileEntry, RemoteFileTree, name_remote_files
from colabstage.stage.part import SourcePart
from colabstage.trees.joined import JoinedTree

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from colabstage.io.progress import Cancellation, Progress
    from colabstage.sources.parse import SingleSource, Source
    from colabstage.stage.request import StageRequest
    from colabstage.trees.tree import Tree

# Sources of a list that are opened at once.
_OPENERS = 8


class SourceListingError(SourceChangedError):
    """A folder on a mount lists other files now than when it was opened."""


class OpenSource:
    """A request's source; a context manager that lets go of everything.

    `identity`: its state now. `notes`: sentences for the report.
    """

    def __init__(self, request: StageRequest, *, progress: Progress, cancellation: Cancellation) -> None:
        """Open the source; reads a folder's listing, an archive's two ends, or what a service says of it.

        What cannot be read in parts, and what is behind a share link, is brought here whole now.

        Raises:
            SourceNotFoundError: there is nothing.
            SourceReadError, SourceAccessError, DriveDisconnectedError, DriveQuotaError: it cannot be read.
            MissingDependencyError: its kind needs a package.
            ArchiveError: it is a file that is no archive; the message says what it is.
        """
        self._request = request
        self._closed = False
        self._cancellation = cancellation
        self._stack = contextlib.ExitStack()
        self._parts: list[SourcePart] = []
        self._loose: RemoteFileTree | None = None
        self._loose_sources: Sequence[SingleSource] = ()
        self._tree: Tree | None = None
        # Beside the dataset's own folder: the same source with other options goes on with it.
        opener = Opener(request.folder.parent, progress, cancellation)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            source = request.source
            self._open(expand_pattern(source) if isinstance(source, LocalSource) else source, opener)
            self.identity = self._identify()
            undo.pop_all()
        self.notes = [note for part in self._parts for note in part.opened.notes]

    @property
    def opens_at_once(self) -> bool:
        """Whether its files can be listed without bringing all of it here first."""
        return all(part.opens_at_once for part in self._parts)

    @property
    def unpacks_first(self) -> bool:
        """Whether some of it is compressed as a whole, so that its files are known only once all of it is unpacked."""
        return any(part.unpacks_first for part in self._parts)

    @property
    def slow(self) -> bool:
        """Whether its files, each read by itself, take their time to answer."""
        return self._loose is not None or any(part.slow for part in self._parts)

    @property
    def archive_bytes(self) -> int:
        """Length of all archives that are copied here before they are read."""
        return sum(part.archive_bytes for part in self._parts)

    @property
    def mount_bytes(self) -> int:
        """How much of that passes through a mount of Google Drive, which keeps a second copy."""
        return sum(part.archive_bytes for part in self._parts if not part.identity.trusts_times)

    @property
    def kept_bytes(self) -> int:
        """What of the archives an interrupted run has left on the disk."""
        return sum(part.kept_bytes for part in self._parts)

    @property
    def resumed_bytes(self) -> int:
        """What an interrupted run had brought here whole, and this one used."""
        return sum(part.resumed_bytes for part in self._parts)

    def open_tree(self, spool: Path) -> Tree:
        """All files. Archives that can only be read from their beginning start to arrive.

        Args:
            spool: a folder on the local disk for the unpacked form of compressed tars.

        Raises:
            ArchiveError, CorruptArchiveError, UnsafeArchiveError: as `trees.open_tree`.
        """
        if self._tree is None:
            self._tree = self._loose if self._loose is not None else self._join(spool)
        return self._tree

    def start(self) -> None:
        """Begin to copy archives that are far away; nothing to do for anything else."""
        for part in self._parts:
            part.start()

    def discard(self) -> None:
        """Remove what came here only to be read."""
        for part in self._parts:
            part.discard()

    def close(self) -> None:
        """Let go of handles; what has arrived stays for the next run."""
        self._closed = True
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, source: Source, opener: Opener) -> None:
        if not isinstance(source, ManySource):
            self._parts.append(self._open_part(source, opener))
            return
        first, *others = source.parts
        self._parts.append(self._open_part(first, opener))
        if self._parts[0].opened.file is not None and not self._parts[0].is_archive and _can_be_loose(source.parts):
            self._stack.pop_all().close()
            self._parts.clear()
            self._loose_sources = source.parts
            self._loose = _open_loose(source.label, source.parts, opener.cancellation)
            return
        with DaemonPool(_OPENERS, "colabstage-open") as pool:
            self._parts += pool.run(
                lambda part: self._open_part(part, opener), others, cancellation=opener.cancellation
            )

    def _open_part(self, source: SingleSource, opener: Opener) -> SourcePart:
        opened = opener.open(source)
        part = SourcePart(opened, opener)
        self._stack.callback(part.close)
        if self._closed:  # another one failed meanwhile, and nobody waited for this one
            part.close()
        return part

    def _identify(self) -> SourceIdentity:
        address = self._request.address
        if self._loose is not None:
            return identify_many(self._identify_loose(self._loose), address=address)
        if len(self._parts) == 1 and not isinstance(self._request.source, ManySource):
            return replace(self._parts[0].identity, address=address)
        return identify_many([part.identity for part in self._parts], address=address)

    def _identify_loose(self, files: RemoteFileTree) -> list[SourceIdentity]:
        found = files.identities([part.address for part in self._loose_sources])
        local = (part for part in self._loose_sources if isinstance(part, LocalSource))
        on_drive = {part.address: str(part.path) for part in local if part.on_drive}
        md5s, _ = ask_md5s(list(on_drive.values())) if on_drive else ([], "")
        told = dict(zip(on_drive, md5s, strict=False))
        return [replace(one, md5=told.get(one.address, "")) for one in found]

    def verify(self) -> None:
        """Compare the whole file with the hash that the caller gave, if one was given; all of it comes here for that.

        Raises:
            OptionError: it is not one file.
            ChecksumMismatchError: it is another file; nothing was made of it.
        """
        checksum = self._request.checksum
        if checksum is None:
            return
        if len(self._parts) != 1 or self._parts[0].opened.file is None:
            msg = f"'{self._request.source.label}' is not one file, and hash= is for one file. Leave it out."
            raise OptionError(msg)
        self._parts[0].verify(checksum)
        self.identity = self._identify()

    def check_listing(self) -> None:
        """List folders on slow mounts again: one of Google Drive at times lacks entries for a while, without an error.

        Raises:
            SourceListingError: names, sizes or times are other ones than what was read. Nothing made of it counts.
            As `FolderTree`.
        """
        for part in self._parts:
            relist_problem = part.opened.relisted()
            if relist_problem:
                raise SourceListingError(relist_problem)

    def _join(self, spool: Path) -> Tree:
        if len(self._parts) == 1:
            return self._parts[0].open_tree(spool, alone=True)
        with DaemonPool(_OPENERS, "colabstage-open") as pool:
            # Each of them may unpack for hours; what moves inside has a deadline of its own.
            trees = pool.run(
                lambda part: part.open_tree(spool),
                self._parts,
                cancellation=self._cancellation,
                stall_timeout_s=float("inf"),
            )
        names = [part.opened.source.name for part in self._parts]
        return JoinedTree(self._request.source.label, list(zip(names, trees, strict=True)))


def _can_be_loose(parts: Sequence[SingleSource]) -> bool:
    return all(isinstance(part, LocalSource | WebSource | ObjectSource) for part in parts)


def _open_loose(label: str, parts: Sequence[SingleSource], cancellation: Cancellation) -> RemoteFileTree:
    names = name_remote_files([part.label for part in parts])
    files = [RemoteFileEntry(name, remote_opener(part)) for name, part in zip(names, parts, strict=True)]
    return RemoteFileTree(label, files, cancellation=cancellation)
