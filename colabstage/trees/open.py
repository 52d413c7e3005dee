"""Find out what a path holds, by its content and never by its name, and open it as a tree.

Here, too, are the trees of one file: one that is a whole dataset by itself (arrays, records, tokens), or was compressed
by itself; and the tree of several, of a dataset that comes in several archives or folders.
"""

from __future__ import annotations

import posixpath
import re
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from urllib.parse import unquote, urlsplit

import numpy as np

from colabstage.errors import ArchiveError, CorruptArchiveError, SourceNotFoundError
from colabstage.io.files import RetryPolicy, read_with_retry
from colabstage.io.missing import whereabouts
from colabstage.io.units import listed
from colabstage.trees.decompress import open_stream, unpack_into
from colabstage.trees.entries import (
    DEFAULT_LIMITS,
    ArchiveLimits,
    FileEntries,
    Listing,
    clean_member_name,
    parent_folders,
    refuse_member,
)
from colabstage.trees.folder import FolderTree
from colabstage.trees.strings import narrowed
from colabstage.trees.tar import TarTree
from colabstage.trees.tool_archives import ToolArchiveTree
from colabstage.trees.tree import (
    HEAD_BYTES,
    ArchiveKind,
    Compression,
    FileEntry,
    LocalBytes,
    SharedBytes,
    Tree,
    TreeView,
    compression_of,
    describe_contents,
    is_tar_head,
    is_zip_head,
    tool_archive_kind,
    unknown_entry,
)
from colabstage.trees.zip import ZipTree

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from colabstage.io.progress import Cancellation
    from colabstage.trees.tree import ByteSource

_WEB = re.compile(r"(?i)https?://")
# What layouts read of one file. An .npz is a zip, and opened as one; a .csv is nothing without the files it names.
_SUFFIXES = (
    *(".npy", ".h5", ".hdf5", ".hdf", ".he5", ".mat"),
    *(".tfrecord", ".tfrecords", ".tfrec", ".parquet", ".arrow", ".mdb", ".lmdb"),
    *(".bin", ".txt", ".jsonl"),
)


def may_be_single_file(label: str) -> bool:
    """Tell whether a file at this address may be a dataset by itself."""
    return base_name(label).lower().endswith(_SUFFIXES)


def base_name(label: str) -> str:
    """Return what a file is called by its address: the last part of a path; of a web address without its query.

    >>> base_name("https://example.org/records/7/data.npy?download=1")
    'data.npy'
    """
    # Only what is a web address: a path may hold a question mark or a percent sign.
    path = unquote(urlsplit(label).path) if _WEB.match(label) else label
    return path.rstrip("/").rpartition("/")[2]


class SingleFileTree(Tree):
    """One file as a tree.

    Args:
        source: its bytes; closed with the tree.
        name: what the file is called; the last part of the source's address where not given.
    """

    kind = "file"
    source: ByteSource

    def __init__(self, source: ByteSource, name: str = "") -> None:
        self.source, self.label = source, source.label
        self.entries = (FileEntry(name or base_name(source.label), source.size, 0, 0),)

    def open(self, entry: FileEntry) -> ByteSource:
        """Return the file's bytes, which stay open until the tree is closed."""
        if entry.name != self.entries[0].name:
            raise unknown_entry(self.label, entry.name)
        return SharedBytes(self.source)


_COMPRESSED_SUFFIXES = {
    "gz": (".gz", ".tgz", ".z"),
    "bz2": (".bz2", ".tbz2", ".tbz"),
    "xz": (".xz", ".txz"),
    "zst": (".zst", ".zstd", ".tzst"),
}
# RFC 1952: the flags of a gzip header, and the parts that may stand before the name.
_FEXTRA, _FNAME = 4, 8


class CompressedFileTree(SingleFileTree):
    """The one file in a gzip, bzip2, xz or Zstandard file that is no tar; unpacked once, into an unnamed file.

    It is named like the compressed file without its suffix; where that has none, as gzip noted its name. Gzip, bzip2
    and xz verify the content by their checksums while it is unpacked.

    Args:
        source: the compressed bytes; closed with the tree.
        spool: a folder on a local disk with room for the content; created if need be.
        limits: how much it may unpack to.
        name: what the service calls it, for where its address does not say how it is compressed.
        cancellation: looked at while it is unpacked.

    Raises:
        ArchiveError: not compressed.
        CorruptArchiveError: truncated or damaged.
        UnsafeArchiveError: it unpacks to more than `limits` allow, or its noted name leads elsewhere.
        NotEnoughSpaceError, TargetNotWritableError: the content does not fit in `spool`, or nothing can be written.
    """

    def __init__(
        self,
        source: ByteSource,
        *,
        spool: Path,
        limits: ArchiveLimits = DEFAULT_LIMITS,
        name: str = "",
        cancellation: Cancellation | None = None,
    ) -> None:
        # Before unpacking, which takes long: a name that leads elsewhere refuses the file.
        inside = single_name(source, name)
        super().__init__(unpack_into(spool, source, limits, cancellation), inside)
        self._compressed = source

    def close(self) -> None:
        """Close the source and drop the content. Calling it twice is fine."""
        super().close()
        self._compressed.close()


def single_name(source: ByteSource, name: str = "") -> str:
    """Return what the file inside a compressed one is called, whose service calls it `name`.

    Raises:
        ArchiveError: the source is not compressed.
        UnsafeArchiveError: only gzip's header names it, and with a path.
    """
    head = source.pread(HEAD_BYTES, 0)
    compression = compression_of(head)
    if compression is None:
        msg = f"'{source.label}' is not compressed with gzip, bzip2, xz or Zstandard."
        raise ArchiveError(msg)
    base = base_name(source.label) or "content"
    for called in (base, name):
        stem, suffix = posixpath.splitext(called)
        if stem and suffix.lower() in _COMPRESSED_SUFFIXES[compression]:
            return stem
    # Only gzip notes a name, and only the name of the file that was compressed, whatever it is called now.
    noted = _gzip_name(head) if compression == "gz" else ""
    if not noted:
        return base
    name = clean_member_name(source.label, noted)
    if "/" in name:
        raise refuse_member(source.label, noted, "gzip notes a name without folders, and this one has some")
    return name


def _gzip_name(head: bytes) -> str:
    if len(head) < 10 or not head[3] & _FNAME:
        return ""
    at = 10
    if head[3] & _FEXTRA:
        at += 2 + int.from_bytes(head[10:12], "little")
    name, end, _ = head[at:].partition(b"\0")
    return name.decode("latin-1") if end else ""


TreeFormat = Literal["folder"] | ArchiveKind

_TARS: dict[Compression, ArchiveKind] = {"gz": "tar.gz", "bz2": "tar.bz2", "xz": "tar.xz", "zst": "tar.zst"}
_ARCHIVE_SUFFIXES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_TABLE_SUFFIXES = (".csv", ".tsv")
# Where there is one of these, it may have the labels.
_NO_CLASSES = (*_TABLE_SUFFIXES, ".json", ".jsonl", ".parquet", ".txt", ".xml")
# Of a compressed file, to see what is in it.
_LOOK_BYTES = 64 * 1024


def recognise(path: Path) -> TreeFormat | None:
    """Return what can be opened at `path`: a folder, an archive, a compressed file; `None` for anything else.

    Raises:
        SourceNotFoundError: there is nothing; the message says what is there instead.
        SourceReadError, DriveDisconnectedError: the disk or mount does not say what is there.
        OSError: as the disk or mount answers when the file is read.
    """
    if _is_folder(path):
        return "folder"
    with LocalBytes(path) as source:
        return recognise_archive(source)


def recognise_archive(source: ByteSource) -> ArchiveKind | None:
    """Return what kind of archive the bytes are, by the beginning of the file; `None` when they are none.

    Raises:
        OSError: as the medium answers.
    """
    head = source.pread(HEAD_BYTES, 0)
    # Uncompressed kinds first: telling them takes no unpacking.
    if is_zip_head(head):
        return "zip"
    if is_tar_head(head):
        return "tar"
    compression = compression_of(head)
    if compression is None:
        return tool_archive_kind(head)
    # A tar in a compressed stream shows only inside it; its name may say nothing, as a download's does.
    try:
        with open_stream(source, read_bytes=_LOOK_BYTES) as stream:
            inside = stream.read(HEAD_BYTES)
    except CorruptArchiveError:
        return None
    return _TARS[compression] if is_tar_head(inside) else compression


def open_tree(
    path: Path,
    *,
    spool: Path,
    workers: int = 1,
    limits: ArchiveLimits = DEFAULT_LIMITS,
) -> Tree:
    """Open a folder, an archive or a compressed file as a tree.

    Args:
        path: the folder or archive.
        spool: a folder on a local disk for the unpacked form of what is compressed as a whole; nothing stays in it.
        workers: how many folders are listed at once; for folders on a mounted Drive.
        limits: what an archive's headers may promise.

    Raises:
        SourceNotFoundError: there is nothing at `path`; the message says what is there instead.
        SourceReadError, DriveDisconnectedError: a folder could not be listed.
        OSError: as the disk or mount answers when an archive is read.
        ArchiveError: the file is not an archive; the message says what it is.
        CorruptArchiveError, UnsafeArchiveError: as for `ZipTree` and `TarTree`.
        MissingDependencyError: a 7z or rar, and neither tool nor package that reads it.
        NotEnoughSpaceError: the unpacked form does not fit in `spool`.
    """
    if _is_folder(path):
        return FolderTree(path, workers=workers)
    return open_archive(LocalBytes(path), spool=spool, limits=limits)


def open_archive(
    source: ByteSource,
    *,
    spool: Path,
    limits: ArchiveLimits = DEFAULT_LIMITS,
    single_files: bool = False,
    name: str = "",
    cancellation: Cancellation | None = None,
) -> Tree:
    """Open the archive whose bytes `source` gives; the source is closed with the tree, and when this fails.

    Args:
        source: its bytes.
        spool, limits: as of `open_tree`.
        single_files: whether a file of arrays or records counts too, as a tree of that one file.
        name: what the service calls it, for where its address does not say what it is.
        cancellation: looked at while what is compressed as a whole is unpacked.

    Raises:
        Everything that `open_tree` raises for a file.
    """
    try:
        called = next(filter(may_be_single_file, (source.label, name)), None)
        if single_files and called is not None and recognise_archive(source) is None:
            return SingleFileTree(source, base_name(called))
        kind = recognise_archive(source)
        if kind is None:
            _refuse_file(source, single_files=single_files)
        if kind == "zip":
            return ZipTree(source, limits=limits)
        if kind in ("7z", "rar"):
            return ToolArchiveTree(source, spool=spool, limits=limits, cancellation=cancellation)
        # The tree unpacks a compressed tar by itself, since its headers are only read in the unpacked form.
        if kind.startswith("tar"):
            return TarTree(source, spool=spool, limits=limits, cancellation=cancellation)
        return CompressedFileTree(source, spool=spool, limits=limits, name=name, cancellation=cancellation)
    # The tree would have closed it; without one nobody else knows of it.
    except BaseException:
        source.close()
        raise


def _refuse_file(source: ByteSource, *, single_files: bool) -> NoReturn:
    """Raise the error for a file that is no archive; the message says what it is, and what is read in its place."""
    head = source.pread(HEAD_BYTES, 0)
    what = describe_contents(head) + (" that does not unpack" if compression_of(head) is not None else "")
    archives = "a zip, a tar, a 7z or a rar, or a file compressed with gzip, bzip2, xz or Zstandard"
    read = f"Expected {archives}."
    if single_files:
        read = (
            f"Give a folder; {archives}; or a file of arrays, records, tokens or paths (.npy, .h5, .tfrecord, "
            ".parquet, .bin, .txt, .csv)."
        )
    msg = f"'{source.label}' is {what}, not an archive. {read}"
    name = base_name(source.label)
    if name.lower().endswith(_TABLE_SUFFIXES):
        msg = (
            f"'{source.label}' is {what}. A table is read from the folder that it is in. Give that folder, in a list "
            "the folder in place of the table: ['FOLDER', 'FOLDER/train.zip']."
        )
    # Called like an archive and none: a download or copy that failed, which trying again may mend.
    named = name.lower().endswith(_ARCHIVE_SUFFIXES)
    raise (CorruptArchiveError(msg) if named else ArchiveError(msg))


def _is_folder(path: Path) -> bool:
    def mode_of() -> int | None:
        try:
            return path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    mode = read_with_retry(mode_of, str(path), policy=RetryPolicy(missing_is_transient=False))
    if mode is None:
        msg = f"There is nothing at '{path}'. {whereabouts(path)}"
        raise SourceNotFoundError(msg)
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        msg = f"'{path}' is neither a file nor a folder, but a device, a pipe or a socket."
        raise ArchiveError(msg)
    return stat.S_ISDIR(mode)


# What people call the parts of a dataset that are to stay apart.
_SPLIT_NAMES = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})
_FOLDERS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Joining:
    """How the files of several trees are named in one."""

    prefixes: tuple[str, ...]
    """For each tree the folder that its files are put into, "" for none."""
    reason: str
    """Why, as a sentence."""


def plan_joining(stems: Sequence[str], names: Sequence[Collection[str]], *, of_folders: bool = True) -> Joining:
    """Decide how to name the files of several trees in one. Pure.

    They are united as they are, unless a name would be there twice, or the trees are named like splits (train, val,
    test …): then each part goes into a folder of its own name.

    Args:
        stems: the readable name of each tree; need not be distinct.
        names: the file names in each tree.
        of_folders: whether all trees are folders, and none an archive.
    """
    # Splits come first: united, train/ and test/ of two archives would lose which is which.
    folders = distinct_names(stems)
    if all(stem.lower() in _SPLIT_NAMES for stem in stems) and folders == tuple(stems):
        prefixes = tuple(
            # A tree may have the folder of its own name already, and nothing beside it.
            "" if part and all(name.lower().startswith(f"{stem.lower()}/") for name in part) else folder
            for folder, stem, part in zip(folders, stems, names, strict=True)
        )
        return Joining(
            prefixes, f"The parts are named like splits, so each is a folder: {listed(folders, _FOLDERS_SHOWN)}."
        )
    collision = _first_collision(names)
    if collision is None:
        reason = f"The files of {len(stems):,} parts are united; no name is there twice."
        # photos/* of a shell: the folders of classes, each as a part, whose own names are nowhere then.
        is_flat = not any("/" in name or name.lower().endswith(_NO_CLASSES) for part in names for name in part)
        # Parts of one thing that are counted, as images_001 and images_002, are no classes; 0 and 1 may be.
        is_counted = any(map(str.isalpha, stems[0])) and len({re.sub(r"\d+", "", stem) for stem in stems}) == 1
        if is_flat and len(set(stems)) == len(stems) > 1 and not is_counted:
            remedy = "stage the folder that they are in" if of_folders else "extract each into a folder of its name"
            reason += (
                f" What the parts are called ({listed(stems, _FOLDERS_SHOWN)}) is lost: if these are classes, {remedy}."
            )
        return Joining(("",) * len(stems), reason)
    reason = f"'{collision}' is in more than one part, so each part is a folder: {listed(folders, _FOLDERS_SHOWN)}."
    return Joining(folders, reason)


def distinct_names(names: Sequence[str], *, of_files: bool = False) -> tuple[str, ...]:
    """Return the names, those that were there before with a number behind them; two that differ in case are the same.

    Args:
        names: in the order in which they keep their own.
        of_files: whether they have extensions, before which the number goes.

    >>> distinct_names(["a", "b", "A"])
    ('a', 'b', 'A-2')
    >>> distinct_names(["x/a.jpg", "x/a.jpg"], of_files=True)
    ('x/a.jpg', 'x/a-2.jpg')
    """
    taken: set[str] = set()
    found = []
    for name in names:
        suffix = PurePosixPath(name).suffix if of_files else ""
        free, number = name, 1
        # A disk that ignores case would lay the two over each other.
        while free.lower() in taken:
            number += 1
            free = f"{name.removesuffix(suffix)}-{number}{suffix}"
        taken.add(free.lower())
        found.append(free)
    return tuple(found)


def _first_collision(names: Sequence[Collection[str]]) -> str | None:
    """Return a name that is in two trees, or a file in one and a folder in another; the first in order."""
    files = Counter(name for part in names for name in part)
    twice = [name for name, count in files.items() if count > 1]
    # One tree is written into one folder later, where a name cannot be a file and a folder.
    folders = parent_folders(files)
    return min([*twice, *(folders & files.keys())], default=None)


class JoinedTree(TreeView):
    """The files of several trees as one tree; closing it closes them all.

    Args:
        label: its address, for messages.
        parts: the readable name of each tree, and the tree.
        joining: how their files are named; decided by `plan_joining` without it.
    """

    entries: FileEntries

    def __init__(self, label: str, parts: Sequence[tuple[str, Tree]], *, joining: Joining | None = None) -> None:
        self.label = label
        self._trees = [tree for _, tree in parts]
        kinds = [tree.kind for tree in self._trees]
        # A folder's files can all be read at once, which is what its kind is looked at for.
        self.kind = "folder" if "folder" in kinds else kinds[0]
        parts_of = [FileEntries.of(tree.entries) for tree in self._trees]
        joining = joining or plan_joining(
            [stem for stem, _ in parts],
            [entries.names for entries in parts_of],
            of_folders=all(kind == "folder" for kind in kinds),
        )
        listing = Listing()
        start = 0
        for prefix, entries in zip(joining.prefixes, parts_of, strict=True):
            end = start
            # Into columns at once: as many entries as objects would be most of the memory that joining takes.
            for entry in entries:
                name, position = f"{prefix}/{entry.name}" if prefix else entry.name, start + entry.position
                listing.add(name, entry.size, entry.mtime_ns, position, executable=entry.executable)
                end = max(end, position + 1)
            # One part after the other is the order that each of them likes best.
            start = end
        self._prefixes = joining.prefixes
        self.entries, order = listing.by_name()
        self._parts = parts_of
        self._firsts = np.cumsum([0, *(len(entries) for entries in parts_of)])
        self._origins = narrowed(order)
        self.notes = (
            *filter(None, [joining.reason]),
            # Parts that come from one place say the same, which is said once.
            *dict.fromkeys(note for tree in self._trees for note in tree.notes),
        )

    @property
    def empty_folders(self) -> tuple[str, ...]:
        """Return those of the parts that know, named as their files are."""
        parts = zip(self._prefixes, self._trees, strict=True)
        return tuple(f"{prefix}/{name}" if prefix else name for prefix, tree in parts for name in tree.empty_folders)

    def parts(self) -> tuple[Tree, ...]:
        """Return the trees that have files, in the order of their first ones."""
        numbers, firsts = np.unique(self._part_number(self._origins), return_index=True)
        return tuple(part for number in numbers[np.argsort(firsts)] for part in self._trees[number].parts())

    def origin(self, entry: FileEntry) -> tuple[Tree, FileEntry]:
        """Return the tree that has a file, and the file as that one has it.

        Raises:
            SourceReadError: the entry is another tree's.
        """
        place = self.entries.find(entry)
        if place is None:
            raise unknown_entry(self.label, entry.name)
        origin = int(self._origins[place])
        part = int(self._part_number(origin))
        return self._trees[part].origin(self._parts[part][origin - int(self._firsts[part])])

    def _part_number(self, origins: int | NDArray[Any]) -> Any:
        # Numbers count through all parts, so the part is the last that begins at or before one.
        return np.searchsorted(self._firsts, origins, side="right") - 1

    def close(self) -> None:
        """Close all parts. Calling it twice is fine."""
        for tree in self._trees:
            tree.close()
