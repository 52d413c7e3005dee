"""Open sources: one or several, as one tree of files with one state, copied here first if necessary.

Every copy has a name that identifies its source, so the call after a kill finds it. `fetch_files` takes
files as they are: archives stay archives, and each of thousands of addresses is opened when it is read. Staging,
packing and extracting take the files in archives.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from colabstage.errors import ChecksumMismatchError, OptionError, SourceChangedError
from colabstage.io.files import PATIENT, Closing
from colabstage.io.pipeline import DaemonPool
from colabstage.io.progress import LateStep, Progress
from colabstage.io.workspace import (
    disk_use,
    find_orphans,
    remove_own,
    short_digest,
    sweep_orphans,
    temp_beside,
)
from colabstage.machine.drive_attributes import Md5Questions, ask_md5s
from colabstage.machine.mounts import is_slow_mount, require_answer, slow_mounts_below
from colabstage.machine.resources import check_space
from colabstage.sources.arriving import ALONG_BYTES, ArchiveWalk, StreamingCopy, fetch_file
from colabstage.sources.gdrive import IN_FLIGHT
from colabstage.sources.http_file import HttpFile
from colabstage.sources.identity import (
    SourceIdentity,
    identify_archive,
    identify_by_times,
    identify_files,
    identify_many,
    identify_remote,
    identify_tree,
)
from colabstage.sources.kaggle import KaggleFolder
from colabstage.sources.parse import (
    KaggleSource,
    LocalSource,
    ManySource,
    ObjectSource,
    ShareSource,
    SingleSource,
    Source,
    TreeSource,
    WebSource,
    expand_source,
    is_on_drive,
    name_in_list,
    paths_of,
)
from colabstage.sources.remote import (
    LEADS_NOWHERE,
    Access,
    Checksum,
    JoinedFile,
    MountedFile,
    RemoteFile,
    Services,
    given_up,
    pieces_of,
    read_through,
)
from colabstage.sources.remote_files import (
    RemoteFileTree,
    bytes_along,
    name_remote_files,
    open_remote,
    remote_opener,
)
from colabstage.sources.to_folder import SLOW_READERS
from colabstage.trees.bytes import (
    ARCHIVE_SUFFIXES,
    ArchiveKind,
    ByteSource,
    JoinedBytes,
    LocalBytes,
    base_name,
)
from colabstage.trees.folder import FolderTree
from colabstage.trees.listing import Tree, total_size
from colabstage.trees.names import distinct_names
from colabstage.trees.open import (
    ALONE,
    BESIDE,
    JoinedTree,
    Joining,
    OnlyTree,
    is_folder,
    open_archive,
    recognise_archive,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


class SourceListingError(SourceChangedError):
    """A source no longer lists the files that it listed when it was opened, or was written to."""


Transport = Literal["local disk", "mount", "http", "object store", "share link", "kaggle", "tree"]

# Sources of a list that are opened at once, some of which may be share links.
_OPENERS = IN_FLIGHT


def _copy_prefix(address: str) -> str:
    """Return the beginning of the names of a source's copies, which depend on nothing else: a call with other options
    continues with the same copy."""
    return f"{short_digest(address, 8)}-"


def sweep_copies(folder: Path, address: str) -> None:
    """Remove temporary copies of a source that dead runs left in `folder`."""
    sweep_orphans(folder, prefix=_copy_prefix(address))


@dataclass(frozen=True, slots=True)
class Opening:
    folder: Path | None
    """An existing folder on the local disk for copies; `None` to read files in place."""
    progress: Progress
    checksum: Checksum | None = None
    """The checksum of a single file, as the caller gave it; compared by whatever fetches the file."""
    only: tuple[str, ...] = ()
    """The requested part of the source, from `read_only`; empty for all of it."""
    zip_encoding: str | None = None
    single_files: bool = True
    """Whether a file of arrays or records counts as the files in it, as it does alone; in a list it never does."""
    reads_next: bool = False
    """Whether its files are read next, so that small ones may come whole with their facts."""
    sparing: bool = False
    """Whether the source may not fit on the disk: then nothing is downloaded only to be opened, and a tar is read
    through in place."""
    skips: bool = False
    """Whether single addresses may lead nowhere, as of `RemoteFileTree`."""
    services: Services = field(default_factory=Services)
    """The connections that its addresses share, until it is closed."""


@dataclass(frozen=True, slots=True)
class Cost:
    opens_at_once: bool = True
    """Whether its files can be listed without copying all of it first."""
    is_walked: bool = False
    """Whether it is a tar that is read through in place, which may take a while."""
    unpacks_first: bool = False
    """Whether it is compressed as a whole, so that its files are only known after unpacking."""
    reads_slowly: bool = False
    """Whether each read of one of its files takes time."""
    archive_bytes: int = 0
    """The size of archives that are still to be copied here before they are read, if known."""
    mount_bytes: int = 0
    """How much of that passes through a mount of Google Drive, which keeps a second copy."""
    kept_bytes: int = 0
    """How much of that an interrupted run has already copied."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.opens_at_once and other.opens_at_once,
            self.is_walked or other.is_walked,
            self.unpacks_first or other.unpacks_first,
            self.reads_slowly or other.reads_slowly,
            self.archive_bytes + other.archive_bytes,
            self.mount_bytes + other.mount_bytes,
            self.kept_bytes + other.kept_bytes,
        )


@dataclass(eq=False)
class Part(Closing):
    source: SingleSource
    transport: Transport
    slow: bool
    opening: Opening
    file: RemoteFile | None = None
    tree: Tree | None = None
    path: Path | None = None
    """Its path on this machine's disks or mounts; `None` if it is only reached over the network."""
    notes: list[str] = field(default_factory=list)
    version: str = ""
    """The service's name for its version, if the files here do not tell it."""
    questions: Md5Questions | None = None
    """Asks Drive's client for the MD5 of each file of a folder before the file is read."""
    loose: tuple[SingleSource, ...] = ()
    """The single files of a list, if the tree is made of these; `source` then stands for the slowest of them."""
    in_place: bool = False
    """Whether an archive is read in place although each response takes time, because there is no space for a copy."""
    kind: ArchiveKind | None = None
    """The kind of archive that a file is, once `recognise` has determined it."""
    copy: StreamingCopy | None = None
    """The bytes of the file, if they are copied here while they are read."""
    kept_bytes: int = 0
    """How much of that copy an interrupted run has left."""
    _content: ByteSource | None = None
    _opened: Sequence[LocalBytes] = ()
    """The files of this machine that it reads: one, or the pieces of an archive."""
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def comes_first(self) -> bool:
        """Return whether it is a file without range requests, which has to be downloaded completely before anything is
        read."""
        file = self.file
        return file is not None and self.path is None and (file.facts.size is None or not file.facts.ranges)

    def recognise(self) -> None:
        """Read the beginning of a file, to determine which kind of archive it is."""
        if self.file is not None and not self.comes_first:
            self.kind = recognise_archive(self.open_content())

    def is_archive(self) -> bool:
        """Return whether it is an archive, by the beginning of its file; one that comes as one stream by its name."""
        if self.file is not None and self.comes_first:
            return self.file.facts.name.lower().endswith(ARCHIVE_SUFFIXES)
        self.recognise()
        return self.kind is not None

    @property
    def cost(self) -> Cost:
        archive_bytes = 0
        if self.file is not None and self._is_copied and not (self.comes_first and self._content is not None):
            archive_bytes = self.file.facts.size or 0
        is_far = self.opening.sparing and self._is_copied and not self.comes_first
        is_walked = is_far and self.kind == "tar"
        return Cost(
            # A zip has its directory at the end, which one request fetches. A tar is read from its beginning.
            opens_at_once=not self.comes_first and (not self._is_copied or self.kind in ("zip", None) or is_walked),
            is_walked=is_walked,
            unpacks_first=self.kind not in ("zip", "tar", None),
            reads_slowly=self.slow and (self.in_place or not self._is_copied),
            archive_bytes=archive_bytes,
            mount_bytes=archive_bytes if is_on_drive(self.source) else 0,
            kept_bytes=self.kept_bytes,
        )

    @property
    def _is_copied(self) -> bool:
        """Return whether a file is copied here, because reading it in place takes too long."""
        # A slow mount counts as remote: random reads of an archive through it are slower than copying all of it.
        return self.file is not None and self.opening.folder is not None and (self.path is None or self.slow)

    def identify(self) -> SourceIdentity:
        """Return its present state; for a folder, its state when it was opened."""
        address = self.source.address
        if self.tree is not None:
            digest = self.source.digest if isinstance(self.source, TreeSource) else ""
            md5s: Sequence[str] = ()
            if self.questions is not None and isinstance(self.tree, FolderTree):
                md5s = self.questions.answers(self.tree.paths)
            identity = identify_tree(self.tree, address=address, digest=digest, md5s=md5s)
            return replace(identity, version=self.version or self.tree.stamp)
        assert self.file is not None
        facts = self.file.facts
        # For a remote file its version or time is enough. For local files, and those without either, both ends are read
        # as well.
        if self.comes_first or (self.path is None and (facts.version or facts.mtime_ns)):
            return identify_remote(facts, facts.size or 0, address=address)
        on_drive = [str(path) for path in self.source.files] if self.slow and is_on_drive(self.source) else []
        # Before the ends are read, so that a write in between is noticed.
        md5s = ask_md5s(on_drive) if on_drive else []
        identity = identify_archive(self.open_content(), facts.mtime_ns, address=address)
        return replace(identity, md5=" ".join(md5s))

    def open_content(self) -> ByteSource:
        """Return the bytes of a file, downloading it now if necessary."""
        if self._content is None:
            content = self._opened_content()
            self._stack.callback(content.close)
            self._content = content
        return self._content

    def _opened_content(self) -> LocalBytes | JoinedBytes | StreamingCopy:
        assert self.file is not None
        label, facts = self.source.label, self.file.facts
        if self.path is not None and not self._is_copied:
            if isinstance(self.source, LocalSource) and self.source.pieces:
                self._opened = [LocalBytes(piece) for piece in self.source.pieces]
                return JoinedBytes(label, self._opened)
            self._opened = [LocalBytes(self.path, label=label)]
            return self._opened[0]
        if self.comes_first:
            return LocalBytes(self._downloaded(), label=label)
        assert facts.size is not None
        # A sparse file has its full length from the beginning; its use of the disk is what has arrived.
        self.kept_bytes = min(facts.size, sum(map(disk_use, find_orphans(self._copy_path))))
        step = self._stack.enter_context(LateStep(self.opening.progress, f"copy {facts.name}", facts.size))
        self.copy = StreamingCopy(
            self.file, self._copy_path, step=step, policy=PATIENT, cancellation=self.opening.progress.cancellation
        )
        return self.copy

    @property
    def _copy_path(self) -> Path:
        assert self.file is not None
        assert self.opening.folder is not None
        return self.opening.folder / f"{_copy_prefix(self.source.address)}{self.file.facts.name}"

    def _downloaded(self) -> Path:
        """Download a file that comes as one stream, which nothing can continue, for as long as this is open."""
        assert self.file is not None
        facts, progress = self.file.facts, self.opening.progress
        check_space(self._copy_path.parent, facts.size or 0, f"The copy of '{self.source.label}'")
        folder = temp_beside(self._copy_path)
        folder.mkdir()
        self._stack.callback(remove_own, folder)
        with progress.step(f"copy {facts.name}", total=facts.size, unit="B") as step:
            path = folder / facts.name
            fetch_file(self.file, path, step=step, cancellation=progress.cancellation, policy=PATIENT)
        return path

    def verify(self, checksum: Checksum) -> None:
        """Hash the whole file, which requires reading all of it; another file than the requested one is an error."""
        if self.file is None:
            raise _not_one_file(self.source.label)
        content, cancellation = self.open_content(), self.opening.progress.cancellation
        if self.copy is not None and self.opening.sparing:
            # There may be no space for a copy, so the file is read once for this and not kept.
            pieces = read_through(self.file, policy=PATIENT, check=cancellation.check)
        else:
            # With a copy each part would be a separate request otherwise, and all of it is copied anyway.
            read = content.pread if self.copy is None else self.copy.read_here
            pieces = pieces_of(read, content.size, cancellation)
        digest = checksum.digest_of(pieces)
        if digest != checksum.digest:
            # The next call would continue with it, and fail again.
            self.discard()
            msg = (
                f"'{self.source.label}' arrived complete, but its {checksum.algorithm} is {digest}, not "
                f"{checksum.digest}. Nothing was staged. Compare the checksum with its publisher's."
            )
            raise ChecksumMismatchError(msg)

    def open_tree(self, spool: Path, *, alone: bool = True) -> Tree:
        """Open the files. An archive that can only be read in order starts to be copied.

        A compressed tar is unpacked to `spool`, on the local disk. `alone`: whether it is the whole source; files
        of arrays or records are accepted then, and beside others tables and lists.
        """
        if self.tree is not None:
            return self.tree
        assert self.file is not None
        content, walk = self.open_content(), None
        if self.cost.is_walked:
            assert self.copy is not None
            step = LateStep(self.opening.progress, f"look through {self.file.facts.name}", self.copy.size)
            content = walk = ArchiveWalk(self.copy, self._stack.enter_context(step))
        elif not self.cost.opens_at_once and self.copy is not None:
            missing = self.copy.size - self.kept_bytes
            check_space(self._copy_path.parent, missing, f"The copy of '{self.source.label}'")
            self.copy.start()
        tree = open_archive(
            content,
            spool=spool,
            single_files=(ALONE if alone else BESIDE) if self.opening.single_files else (),
            name=self.file.facts.name,
            zip_encoding=self.opening.zip_encoding,
            cancellation=self.opening.progress.cancellation,
        )
        if walk is not None:
            walk.end()
        return self._stack.enter_context(tree)

    def changes(self) -> str:
        """Look for changes that reading cannot notice: list a folder on a slow mount again, and compare the time of a
        local file. Return what has changed and what to wait for, or ""."""
        if self.file is not None and self._opened:
            if any(one.fileno() < 0 for one in self._opened):
                return ""  # closed with a tree that could not be opened
            # By the open files, because their paths may lead to others meanwhile.
            now, facts = [os.fstat(one.fileno()) for one in self._opened], self.file.facts
            times = " ".join(str(one.st_mtime_ns) for one in now)
            if (sum(one.st_size for one in now), times) == (facts.size, facts.version):
                return ""
            return f"'{self.path}' was written to while it was being read; wait until whatever writes it is done"
        # A mounted Drive sometimes lists only a part of a folder, without an error.
        if self.tree is None or self.path is None or not self.slow or self.loose:
            return ""
        again = _list_folder(self.source, self.path, slow=True)
        if identify_by_times(again).times == identify_by_times(self.tree).times:
            return ""
        return (
            f"'{self.path}' lists other files, sizes or times than when it was first listed; wait until uploads to it "
            "are complete"
        )

    def discard(self) -> None:
        if self.copy is not None:
            self.copy.discard()

    def close(self) -> None:
        """Release connections and handles; copied data stays for the next run. Calling it twice is fine."""
        self._stack.close()
        if self.questions is not None:
            self.questions.close()
        if self.file is not None:
            self.file.close()
        # A tree that the caller has opened is closed by the caller.
        if self.tree is not None and not isinstance(self.source, TreeSource):
            self.tree.close()


class OpenedSource(Closing):
    """Read one or several sources as one; a context manager that releases everything.

    `parts`: the sources. `files`: the tree of the single files among them, which is a part, too; `None` if there are
    none.
    """

    def __init__(self, source: Source, opening: Opening, *, unpack: bool) -> None:
        self.parts: list[Part] = []
        self.files: RemoteFileTree | None = None
        self._source, self._opening, self._unpacks = source, opening, unpack
        self._closed = False
        self._stack = contextlib.ExitStack()
        self._whole: Tree | None = None
        self._tree: Tree | None = None
        self._state: SourceIdentity | None = None
        self._checksum = ""
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            if not isinstance(source, ManySource):
                self._open([source])
            elif unpack:
                self._open_archives(source)
            else:
                # Nothing is copied here only to be read.
                self._opening = replace(opening, folder=None)
                self._open_as_they_are(source)
            if unpack:
                for part in self.parts:
                    if part.kind is None:
                        part.recognise()
            undo.pop_all()

    def _open(self, sources: Sequence[SingleSource]) -> None:
        if len(sources) == 1:
            self.parts.append(self._open_one(sources[0]))
            return
        with DaemonPool(_OPENERS, "colabstage-open") as pool:
            # Many at once, because opening an archive on a server or a mount is two round trips of waiting.
            self.parts += pool.run(self._open_one, sources, cancellation=self._opening.progress.cancellation)

    def _open_one(self, source: SingleSource) -> Part:
        part = _open_part(source, self._opening)
        self._stack.callback(part.close)
        if self._closed:  # another one failed meanwhile, and nobody waits for this one
            part.close()
        return part

    def _open_archives(self, source: ManySource) -> None:
        require_answer(*paths_of(source))
        # Tables and lists may come before the archives or folders that they are about.
        about = [part for part in source.parts if not base_name(part.label).lower().endswith(BESIDE)]
        services = self._opening.services
        are_whole = bool(about) and all(
            part.label.lower().endswith(ARCHIVE_SUFFIXES) or _lists(part, services) for part in about
        )
        first, *others = source.parts
        have_addresses = all(isinstance(part, LocalSource | WebSource | ObjectSource) for part in source.parts)
        may_be_loose, opened = have_addresses and not are_whole, None
        # The first one determines the kind of list. If it leads nowhere, the error for all says how to do without it.
        with contextlib.suppress(*(LEADS_NOWHERE if may_be_loose else ())):
            opened = self._open_one(first)
        if opened is None or (may_be_loose and opened.file is not None and not opened.is_archive()):
            # Single files are opened when they are read, because there may be thousands of addresses.
            self._stack.pop_all().close()
            self._whole = self._list([(part.label, part) for part in source.parts], {})
        else:
            self.parts.append(opened)
            self._open(others)

    def _open_as_they_are(self, source: ManySource) -> None:
        # Before anything is touched, because every call on a hanging mount would block.
        require_answer(*paths_of(source))
        names = {
            one.address: one.label
            for one in source.parts
            if isinstance(one, WebSource) or (isinstance(one, LocalSource) and one.path.is_file())
        }
        self._open([one for one in source.parts if one.address not in names])
        again: dict[str, Callable[[], RemoteFile]] = {}
        opened, self.parts = self.parts, [part for part in self.parts if part.file is None]
        for part in opened:
            if (file := part.file) is not None:
                one = part.source
                # A share link's address says nothing about the file.
                names[one.address] = file.facts.name if isinstance(one, ShareSource | KaggleSource) else one.label
                if isinstance(file, HttpFile):
                    again[one.address] = file.open_again
                part.close()
        loose = [(names[one.address], one) for one in source.parts if one.address in names]
        folders = [(name_in_list(part.source), part.tree) for part in self.parts if part.tree is not None]
        files = self._list(loose, again)
        if not folders:
            self._whole = files
            return
        tops = sorted({entry.name.partition("/")[0] for entry in files.entries})
        # Files keep their names at the top, so a folder with the same name as a file gets a number.
        stems = ("", *distinct_names([*tops, *(name for name, _ in folders)])[len(tops) :])
        joined = list(zip(stems, [files, *(tree for _, tree in folders)], strict=True))
        self._whole = JoinedTree(source.label, joined, joining=Joining(stems, ""))

    def _list(
        self, loose: list[tuple[str, SingleSource]], again: Mapping[str, Callable[[], RemoteFile]]
    ) -> RemoteFileTree:
        """Add single files, each with the address that names it, as one part; `again` opens some by their addresses."""
        along, names = bytes_along(len(loose), self._opening.reads_next), name_remote_files([name for name, _ in loose])
        cancellation = self._opening.progress.cancellation
        access = Access(along=along, cancellation=cancellation, services=self._opening.services)
        openers = [again.get(one.address) or remote_opener(one, access) for _, one in loose]
        files = list(zip(names, openers, strict=True))
        try:
            self.files = RemoteFileTree(self._source.label, files, cancellation=cancellation, skips=self._opening.skips)
        except LEADS_NOWHERE as error:
            if self._opening.skips or not self._unpacks:
                raise
            msg = f"{error} Images of the list whose addresses lead nowhere are left out with on_error='skip'."
            raise type(error)(msg) from error
        if loose:
            sources = tuple(source for _, source in loose)
            reached = [_reached(source) for source in sources]
            slowest = next((number for number, (_, slow) in enumerate(reached) if slow), 0)
            shown = sources[slowest]
            path = shown.path if isinstance(shown, LocalSource) else None
            part = Part(shown, *reached[slowest], self._opening, tree=self.files, path=path, loose=sources)
            self.parts.append(part)
        return self.files

    @property
    def notes(self) -> list[str]:
        return [note for part in self.parts for note in part.notes]

    @property
    def one(self) -> Part | None:
        """Return the only part, if there is no other: a pattern that matches one file stands for that file."""
        return self.parts[0] if len(self.parts) == 1 and self.files is None else None

    @property
    def slowest(self) -> Part:
        """Return the part by which the number of concurrent reads is chosen."""
        return next((part for part in self.parts if part.slow), self.parts[0])

    @property
    def cost(self) -> Cost:
        """Return what is still to be done before its files are read, and to read them."""
        if self.files is not None:
            return Cost(reads_slowly=True)
        return sum((part.cost for part in self.parts[1:]), self.parts[0].cost)

    @property
    def resumed_bytes(self) -> int:
        """Return how much of an interrupted run's data this one has reused."""
        return sum(part.copy.kept_bytes for part in self.parts if part.copy is not None)

    @property
    def waits_for(self) -> str:
        """Return why nothing of a part is arriving at present; "" if all parts are."""
        waiting = (part.copy or part.tree for part in self.parts)
        return next((one.waits_for for one in waiting if one is not None and one.waits_for), "")

    def take_state(self) -> tuple[int, int]:
        """Collect the facts that identify its state, before it is read; `identify` waits for the client's answers,
        which come later. Return the number of its files, counting an archive as one, and their total size."""
        one = self.one
        # The MD5s of a folder on Drive are requested right before each file is read.
        if one is not None and one.tree is not None and one.questions is not None:
            return len(one.tree.entries), total_size(one.tree.entries)
        state = self.identify()
        return state.files, state.nbytes

    def identify(self) -> SourceIdentity:
        """Return its state when this was first called, and the checksum that was verified."""
        if self._state is None:
            self._state = self._found_state()
        return replace(self._state, checksum=self._checksum) if self._checksum else self._state

    def _found_state(self) -> SourceIdentity:
        if self.one is not None:
            return replace(self.one.identify(), address=self._source.address)
        assert isinstance(self._source, ManySource)
        found: dict[str, SourceIdentity] = {}
        opened = [part for part in self.parts if not part.loose]
        with DaemonPool(_OPENERS, "colabstage-open") as pool:
            # A part's state may take a request, and lists have thousands of parts.
            states = pool.run(Part.identify, opened, cancellation=self._opening.progress.cancellation)
        found.update(zip((part.source.address for part in opened), states, strict=True))
        for part in self.parts:
            if part.loose and self.files is not None:
                addresses = [source.address for source in part.loose]
                found.update(zip(addresses, identify_files(self.files, part.loose), strict=True))
        return identify_many([found[part.address] for part in self._source.parts], address=self._source.address)

    def verify(self, checksum: Checksum) -> None:
        if self.one is None:
            raise _not_one_file(self._source.label)
        # Before the bytes are read, so that a change meanwhile is noticed.
        self.identify()
        self.one.verify(checksum)
        self._checksum = str(checksum)

    def open_tree(self, spool: Path) -> Tree:
        """Return all files, as `Part.open_tree` does of each part; `only=` that fits nothing is an error."""
        if self._tree is None:
            joined = self._whole or self._join(spool)
            self._tree = OnlyTree(joined, self._opening.only) if self._opening.only else joined
        return self._tree

    def _join(self, spool: Path) -> Tree:
        if len(self.parts) == 1:
            return self.parts[0].open_tree(spool)
        with DaemonPool(_OPENERS, "colabstage-open") as pool:
            # Unpacking may take hours; reads inside have deadlines of their own.
            trees = pool.run(
                lambda part: part.open_tree(spool, alone=False),
                self.parts,
                cancellation=self._opening.progress.cancellation,
                stall_timeout_s=float("inf"),
            )
        names = [name_in_list(part.source) for part in self.parts]
        return JoinedTree(self._source.label, list(zip(names, trees, strict=True)))

    def check_unchanged(self) -> None:
        """List folders on slow mounts again, and compare the times of local files, right before what was made of them
        is put in its place; raises `SourceListingError`."""
        for part in self.parts:
            if problem := part.changes():
                msg = f"{problem}, then try again. Nothing was put in its place."
                raise SourceListingError(msg)

    def start(self) -> None:
        """Begin to copy remote archives."""
        for part in self.parts:
            if part.copy is not None:
                part.copy.start()

    def read_in_place(self) -> None:
        """Read archives in place, if there is no room for copies. Call this instead of `start`."""
        for part in self.parts:
            part.in_place = True
            if part.copy is not None:
                part.copy.read_in_place()

    def read_members(self, byte_ranges: Iterable[tuple[int, int]]) -> None:
        """Expect reads of these members `(begin, end)` of a single archive in place."""
        # The archives of a list have positions of their own.
        if self.one is not None and self.one.copy is not None and self.one.in_place:
            self.one.copy.read_members(byte_ranges)

    def prefer(self, byte_ranges: Iterable[tuple[int, int]], *, alone: bool = False) -> None:
        """Copy these byte ranges `(begin, end)` of a single remote archive first; with `alone`, no others until
        somebody waits for them."""
        # As above: those of a list are copied in order.
        if self.one is not None and self.one.copy is not None:
            self.one.copy.prefer(byte_ranges, alone=alone)

    def discard(self) -> None:
        for part in self.parts:
            part.discard()

    def close(self) -> None:
        """Release connections and handles; copied data stays for the next run."""
        self._closed = True
        self._stack.close()
        self._opening.services.close()


def _lists(source: SingleSource, services: Services) -> bool:
    """Return whether a source is a folder, as far as its service says so before it is listed."""
    if not isinstance(source, ObjectSource):
        return isinstance(source, LocalSource) and is_folder(source.path)
    # Imported late, as in `open_remote`.
    from colabstage.sources.objects import is_object_folder

    with contextlib.suppress(*LEADS_NOWHERE):
        return is_object_folder(source.url, services)
    return False


def _reached(source: SingleSource) -> tuple[Transport, bool]:
    """Return how a file with an address is reached, and whether each response takes time."""
    if isinstance(source, LocalSource):
        slow = is_slow_mount(source.path)
        return ("mount" if slow else "local disk"), slow
    kinds: dict[type, Transport] = {WebSource: "http", ShareSource: "share link", KaggleSource: "kaggle"}
    return kinds.get(type(source), "object store"), True


def _not_one_file(label: str) -> OptionError:
    return OptionError(f"'{label}' is not one file, and hash= is for one file. Leave it out.")


def open_source(source: Source, opening: Opening, *, unpack: bool) -> OpenedSource:
    """Open a source by reading a folder's listing, both ends of an archive, or what a service reports about it.

    A list or pattern is expanded. `unpack`: whether an archive in a list stands for its files, not for itself.
    """
    whole = expand_source(source, unpack=unpack, services=opening.services)
    return OpenedSource(whole, opening, unpack=unpack)


def _open_part(source: SingleSource, opening: Opening) -> Part:
    with given_up():
        if isinstance(source, TreeSource):
            part = Part(source, "tree", slow=False, opening=opening, tree=source.tree)
        elif isinstance(source, LocalSource):
            require_answer(source.path)
            part = _open_path(source, source.path, opening)
        else:
            part = _open_far(source, opening)
    # A user's checksum is not of the zip that Kaggle sends.
    if opening.checksum is not None and (part.tree is not None or isinstance(source, KaggleSource)):
        part.close()
        raise _not_one_file(source.label)
    return part


def _open_far(source: WebSource | ObjectSource | ShareSource | KaggleSource, opening: Opening) -> Part:
    # Both ends of a zip are read next.
    may_be_zip = not isinstance(source, WebSource) or urlsplit(source.url).path.lower().endswith(".zip")
    along = ALONG_BYTES if may_be_zip and opening.folder is not None else 0
    access = Access(
        checksum=opening.checksum,
        along=along,
        tail=along,
        cancellation=opening.progress.cancellation,
        services=opening.services,
    )
    found = open_remote(source, access, reads_next=opening.reads_next)
    if isinstance(found, KaggleFolder):
        part = _open_path(source, found.path, opening)
        part.notes.append(found.note)
        part.version = found.version
        if part.tree is not None:
            # Messages name what the person wrote.
            part.tree.label = source.label
        return part
    transport, slow = _reached(source)
    if isinstance(found, RemoteFileTree):
        return Part(source, transport, slow, opening, tree=found)
    return Part(source, transport, slow, opening, file=found, notes=[*found.notes])


def _list_folder(source: SingleSource, path: Path, *, slow: bool, questions: Md5Questions | None = None) -> FolderTree:
    return FolderTree(
        path,
        workers=SLOW_READERS if slow else 1,
        before_read=None if questions is None else questions.ask_before_read,
        leave_out=source.leave_out if isinstance(source, LocalSource) else (),
        mounts=slow_mounts_below(path),
        md5s=None if questions is None else questions.known,
        keeps_inodes=not slow,
    )


def _open_path(source: SingleSource, path: Path, opening: Opening) -> Part:
    transport, slow = _reached(source)
    if not isinstance(source, LocalSource):
        slow = is_slow_mount(path)
    if is_folder(path):
        # The client answers while other reads wait for the mount; asking during the listing would slow that down.
        questions = Md5Questions(workers=SLOW_READERS) if slow and is_on_drive(source) else None
        tree = _list_folder(source, path, slow=slow, questions=questions)
        return Part(source, transport, slow, opening, tree=tree, path=path, questions=questions)
    pieces = source.pieces if isinstance(source, LocalSource) else ()
    file: RemoteFile = JoinedFile([MountedFile(piece) for piece in pieces], path) if pieces else MountedFile(path)
    # Downloads have been compared already.
    if opening.checksum is not None and isinstance(source, LocalSource):
        file.facts = replace(file.facts, checksum=opening.checksum)
    return Part(source, transport, slow, opening, file=file, path=path)
