"""Open several sources as one dataset: one tree of files with one identity.

`fetch_files` takes files as they are: archives stay archives, and each of thousands of addresses is opened when it is
read. Staging and packing take the files in archives. Both use `OpenList`, so that they agree on the list's parts, the
names of its files and its state.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from colabstage.errors import LayoutError
from colabstage.io.files import Closing
from colabstage.io.pipeline import DaemonPool
from colabstage.machine.mounts import is_slow_mount, require_answer
from colabstage.sources.identity import identify_many
from colabstage.sources.opening import SourcePart, not_one_file, open_part
from colabstage.sources.parse import (
    KaggleSource,
    LocalSource,
    ObjectSource,
    ShareSource,
    WebSource,
    name_in_list,
    paths_of,
)
from colabstage.sources.remote_files import RemoteFileTree, list_files
from colabstage.trees.bytes import ARCHIVE_SUFFIXES
from colabstage.trees.joined import JoinedTree, Joining
from colabstage.trees.names import distinct_names
from colabstage.trees.open import OnlyTree

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from colabstage.sources.identity import SourceIdentity
    from colabstage.sources.opening import Opening
    from colabstage.sources.parse import ManySource, SingleSource
    from colabstage.sources.remote import Checksum
    from colabstage.trees.listing import Tree

_TABLES = (".csv", ".tsv")
# Sources of a list that are opened at once.
_OPENERS = 8


class OpenList(Closing):
    """Read several open sources as one, with the members of a `SourcePart`; a context manager that releases everything.

    `parts`: the sources in the list. `files`: the single files of the list, each opened when it is read; `None` if
    there are none.
    """

    def __init__(self, source: ManySource, opening: Opening, *, unpack: bool) -> None:
        """Open all parts; as `open_source`."""
        self.parts: list[SourcePart] = []
        self.files: RemoteFileTree | None = None
        self._source = source
        self._opening = opening
        self._closed = False
        self._stack = contextlib.ExitStack()
        self._tree: Tree | None = None
        self._identity: SourceIdentity | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            if unpack:
                self._open_archives()
            else:
                self._open_as_they_are()
            undo.pop_all()

    def _open(self, source: SingleSource) -> SourcePart:
        # What is meant is a part of all of them together.
        part = open_part(source, replace(self._opening, only=()))
        self._stack.callback(part.close)
        if self._closed:  # another one failed meanwhile, and nobody waits for this one
            part.close()
        return part

    def _open_archives(self) -> None:
        _refuse_table(self._source)
        first, *others = self._source.parts
        self.parts.append(self._open(first))
        opened = self.parts[0]
        # The first source determines the kind of list. Single files are opened when they are read, because there may be
        # thousands of addresses.
        have_addresses = all(isinstance(part, LocalSource | WebSource | ObjectSource) for part in self._source.parts)
        if opened.file is not None and not opened.is_archive and have_addresses:
            self._stack.pop_all().close()
            self.parts = [_unopened(part, self._opening) for part in self._source.parts]
            self._tree = self.files = self._list_files()
            return
        with DaemonPool(_OPENERS, "colabstage-open") as pool:
            # Many at once, because opening an archive on a server or a mount is two round trips of waiting.
            self.parts += pool.run(self._open, others, cancellation=self._opening.cancellation)

    def _list_files(self) -> RemoteFileTree:
        """Return the single files among the parts as one tree."""
        files: list[tuple[str, SingleSource]] = []
        for part in self.parts:
            if part.tree is None:
                # A share link's address says nothing about the file.
                named = part.file is not None and isinstance(part.source, ShareSource | KaggleSource)
                files.append((part.file.facts.name if named and part.file else part.source.label, part.source))
        return list_files(self._source.label, files, cancellation=self._opening.cancellation)

    def _open_as_they_are(self) -> None:
        source = self._source
        # Before anything is touched, because every call on a hanging mount would block.
        require_answer(*paths_of(source))
        for part in source.parts:
            alone = isinstance(part, WebSource) or (isinstance(part, LocalSource) and part.path.is_file())
            self.parts.append(_unopened(part, self._opening) if alone else self._open(part))
        self.files = self._list_files()
        folders = [part for part in self.parts if part.tree is not None]
        tops = sorted({entry.name.partition("/")[0] for entry in self.files.entries})
        # Files keep their names at the top, so a folder with the same name as a file gets a number.
        stems = distinct_names([*tops, *(name_in_list(part.source) for part in folders)])[len(tops) :]
        trees: list[Tree] = [self.files, *(part.tree for part in folders if part.tree is not None)]
        joined = list(zip(("", *stems), trees, strict=True))
        self._tree = JoinedTree(source.label, joined, joining=Joining(("", *stems), "")) if folders else self.files

    @property
    def notes(self) -> list[str]:
        """Return sentences for the report."""
        return [note for part in self.parts for note in part.notes]

    @property
    def slowest(self) -> SourcePart:
        """Return the part by which the number of concurrent reads is chosen."""
        return next((part for part in self.parts if part.slow), self.parts[0])

    @property
    def reads_slowly(self) -> bool:
        """Return whether each read of one of its files takes time."""
        return self.files is not None or any(part.reads_slowly for part in self.parts)

    @property
    def opens_at_once(self) -> bool:
        """Return whether its files can be listed without copying all of it first."""
        return all(part.opens_at_once for part in self.parts)

    @property
    def is_walked(self) -> bool:
        """Return whether some part is a tar that is read through in place."""
        return any(part.is_walked for part in self.parts)

    @property
    def unpacks_first(self) -> bool:
        """Return whether some part is compressed as a whole, so that its files are only known after unpacking."""
        return any(part.unpacks_first for part in self.parts)

    @property
    def archive_bytes(self) -> int:
        """Return the size of all archives that are copied here before they are read."""
        return sum(part.archive_bytes for part in self.parts)

    @property
    def mount_bytes(self) -> int:
        """Return how much of that passes through a mount of Google Drive, which keeps a second copy."""
        return sum(part.mount_bytes for part in self.parts)

    @property
    def kept_bytes(self) -> int:
        """Return how much of the archives an interrupted run has left on the disk."""
        return sum(part.kept_bytes for part in self.parts)

    @property
    def resumed_bytes(self) -> int:
        """Return how much of an interrupted run's data this one has reused."""
        return sum(part.resumed_bytes for part in self.parts)

    @property
    def waits_for(self) -> str:
        """Return why nothing of a part is arriving at present; "" if all parts are."""
        return next((why for part in self.parts if (why := part.waits_for)), "")

    @property
    def extent(self) -> tuple[int, int]:
        """Return the number of its files, counting an archive as one, and their total size."""
        return self.parts[0].extent if self._is_one else (self.identity.files, self.identity.nbytes)

    def take_state(self) -> None:
        """Collect the facts that identify its state, before it is read."""
        if self._is_one:
            self.parts[0].take_state()
        else:
            self._identity = self.identity

    @property
    def identity(self) -> SourceIdentity:
        """Return its state at the first call, or when `take_state` was called."""
        if self._identity is None:
            self._identity = self._identify()
        return self._identity

    def _identify(self) -> SourceIdentity:
        address = self._source.address
        if self._is_one:
            return replace(self.parts[0].identity, address=address)
        listed = [part for part in self.parts if self.files is not None and part.tree is None]
        states = [] if self.files is None else self.files.identities([part.source for part in listed])
        found = dict(zip(map(id, listed), states, strict=True))
        with DaemonPool(_OPENERS, "colabstage-open") as pool:
            others = [part for part in self.parts if id(part) not in found]
            # A part's state may take a request, and lists have thousands of parts.
            states = pool.run(lambda part: part.identity, others, cancellation=self._opening.cancellation)
        found.update(zip(map(id, others), states, strict=True))
        return identify_many([found[id(part)] for part in self.parts], address=address)

    @property
    def _is_one(self) -> bool:
        # A pattern that matches one file stands for that file, so both have the same state and key.
        return len(self.parts) == 1 and self.files is None

    def verify(self, checksum: Checksum) -> None:
        """Hash the only file that a pattern matches; as `SourcePart.verify`."""
        if len(self.parts) != 1:
            raise not_one_file(self._source.label)
        self.parts[0].verify(checksum)
        # The part's identity has the checksum now.
        self._identity = None

    def open_tree(self, spool: Path) -> Tree:
        """Return all files. Archives that can only be read in order start to be copied.

        Args:
            spool: a folder on the local disk for the unpacked form of compressed tars.

        Raises:
            ArchiveError, CorruptArchiveError, UnsafeArchiveError: as `trees.open_tree`.
        """
        if self._tree is None:
            joined = self._join(spool)
            self._tree = OnlyTree(joined, self._opening.only) if self._opening.only else joined
        return self._tree

    @property
    def tree(self) -> Tree:
        """Return the files of a folder, or of a list that was opened without unpacking."""
        tree = self._tree or self.parts[0].tree
        assert tree is not None
        return tree

    def _join(self, spool: Path) -> Tree:
        if len(self.parts) == 1:
            return self.parts[0].open_tree(spool)
        with DaemonPool(_OPENERS, "colabstage-open") as pool:
            # Unpacking may take hours; reads inside have deadlines of their own.
            trees = pool.run(
                lambda part: part.open_tree(spool, alone=False),
                self.parts,
                cancellation=self._opening.cancellation,
                stall_timeout_s=float("inf"),
            )
        names = [name_in_list(part.source) for part in self.parts]
        return JoinedTree(self._source.label, list(zip(names, trees, strict=True)))

    def relisted(self) -> str:
        """List folders on slow mounts again; return how one differs from its first listing, in a sentence, or ""."""
        return next(filter(None, (part.relisted() for part in self.parts)), "")

    def start(self) -> None:
        """Begin to copy remote archives."""
        for part in self.parts:
            part.start()

    def read_in_place(self) -> None:
        """Read archives in place, if there is no room for copies. Call this instead of `start`."""
        for part in self.parts:
            part.read_in_place()

    def read_members(self, byte_ranges: Iterable[tuple[int, int]], *, readers: int) -> None:
        """Expect reads of these members of a single archive in place."""
        # As for `prefer`.
        if len(self.parts) == 1:
            self.parts[0].read_members(byte_ranges, readers=readers)

    def prefer(self, byte_ranges: Iterable[tuple[int, int]], *, alone: bool = False) -> None:
        """Copy these byte ranges `(begin, end)` of a single remote archive first; with `alone`, no others until
        somebody waits for them."""
        # The archives of a list have positions of their own, and are copied in order.
        if len(self.parts) == 1:
            self.parts[0].prefer(byte_ranges, alone=alone)

    def discard(self) -> None:
        """Remove temporary copies."""
        for part in self.parts:
            part.discard()

    def close(self) -> None:
        """Release handles; copied data stays for the next run."""
        self._closed = True
        self._stack.close()


def _refuse_table(source: ManySource) -> None:
    """Refuse a table anywhere in a list of folders or archives; the message has the list that reads both.

    Raises:
        LayoutError: there is one.
        DriveDisconnectedError: the mount of a source is dead, or does not answer.
    """
    tables = [part for part in source.parts if isinstance(part, LocalSource) and part.path.suffix in _TABLES]
    others = [part for part in source.parts if part not in tables]
    if not tables or not others:
        return
    require_answer(*paths_of(source))
    folders = [part.path for part in others if isinstance(part, LocalSource) and part.path.is_dir()]
    opened = [
        part for part in others if part.label.lower().endswith(ARCHIVE_SUFFIXES) or part.label in map(str, folders)
    ]
    if not opened:
        return
    places = list(dict.fromkeys(part.path.parent for part in tables))
    # A folder is read with everything below it, except archives.
    inside = {str(folder) for folder in folders if any(folder.is_relative_to(place) for place in places)}
    wanted = [*map(str, places), *(part.label for part in others if part.label not in inside)]
    written = repr(wanted if len(wanted) > 1 else wanted[0])
    msg = (
        f"'{tables[0].label}' is a table in a list of folders or archives (first '{opened[0].label}'). A table is read "
        f"from the folder that it is in. Give that folder in its place: {written}."
    )
    raise LayoutError(msg)


def _unopened(source: SingleSource, opening: Opening) -> SourcePart:
    """Return a single file of a list, of which there may be thousands: each is opened when it is read."""
    if not isinstance(source, LocalSource):
        return SourcePart(source, "http" if isinstance(source, WebSource) else "object store", True, opening)
    slow = is_slow_mount(source.path)
    return SourcePart(source, "mount" if slow else "local disk", slow, opening, path=source.path)
