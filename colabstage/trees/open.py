"""Find out what a path holds, by content and never by name, and open it as a tree; or open a part of one."""

from __future__ import annotations

import contextlib
import difflib
import re
import stat
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NoReturn

import numpy as np

from colabstage.errors import ArchiveError, CorruptArchiveError, SourceNotFoundError
from colabstage.io.arguments import whereabouts
from colabstage.io.files import read_with_retry
from colabstage.io.units import HIDDEN, format_count, listed
from colabstage.trees.bytes import (
    ARCHIVE_SUFFIXES,
    HEAD_BYTES,
    ArchiveKind,
    ByteSource,
    Compression,
    LocalBytes,
    RequestedBytes,
    base_name,
    compression_of,
    describe_contents,
    is_tar_head,
    kind_by_magic,
)
from colabstage.trees.compressed import inner_name, open_stream, unpack_into
from colabstage.trees.folder import FolderTree
from colabstage.trees.listing import DEFAULT_LIMITS, ArchiveLimits, FileEntries, FileEntry, Tree, TreeView
from colabstage.trees.names import DRIVE_ZIP, distinct_names, first_repeated, parent_folders, with_wildcards
from colabstage.trees.seven_zip import ToolArchiveTree
from colabstage.trees.tar import TarTree
from colabstage.trees.zip import ZipTree, refuse_volume

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from colabstage.io.progress import Cancellation


TreeFormat = Literal["folder"] | ArchiveKind

# Files that layouts read alone. An .npz is opened as a zip; a .csv is useless without the files it names.
ALONE = (
    *(".npy", ".h5", ".hdf5", ".hdf", ".he5", ".mat"),
    *(".tfrecord", ".tfrecords", ".tfrec", ".parquet", ".arrow", ".mdb", ".lmdb"),
    *(".bin", ".txt", ".jsonl", ".csv"),
)
# What may belong to the files of an archive in the same list.
BESIDE = (*ALONE, ".tsv", ".json", ".xml", ".yaml", ".yml", ".names")
_TARS: dict[Compression, ArchiveKind] = {"gz": "tar.gz", "bz2": "tar.bz2", "xz": "tar.xz", "zst": "tar.zst"}
# How much of a compressed file is read to see what is in it.
_LOOK_BYTES = 64 * 1024


class SingleFileTree(Tree):
    """One file as a tree. `packed`: the bytes that its content was unpacked from."""

    kind = "file"
    source: ByteSource

    def __init__(self, source: ByteSource, name: str, packed: ByteSource | None = None) -> None:
        self.source, self.label = source, source.label
        self.packed = packed
        self.entries = FileEntries.of([FileEntry(name, source.size, 0, 0)])

    def open(self, entry: FileEntry) -> ByteSource:
        self._own(entry)
        return RequestedBytes(self.source.pread, self.source.size, label=self.label)

    def address_of(self, entry: FileEntry) -> str:
        # Packed, or at an address with hidden parts, it is not what the address gives.
        return "" if self.packed is not None or HIDDEN in self.label else self.label


def recognise(path: Path) -> TreeFormat | None:
    """Return what can be opened at `path`: a folder, an archive, a compressed file; `None` for anything else."""
    if is_folder(path):
        return "folder"
    with LocalBytes(path) as source:
        return recognise_archive(source)


def recognise_archive(source: ByteSource) -> ArchiveKind | None:
    """Return what kind of archive the bytes are, by the beginning of the file; `None` if they are none."""
    head = source.pread(HEAD_BYTES, 0)
    kind, compression = kind_by_magic(head), compression_of(head)
    # A tar may begin with any name.
    if kind != "zip" and is_tar_head(head):
        return "tar"
    if compression is None:
        return kind
    # A tar in a compressed stream shows only inside it; its name may say nothing, as after a download.
    try:
        with open_stream(source, read_bytes=_LOOK_BYTES) as stream:
            inside = stream.read(HEAD_BYTES)
    except CorruptArchiveError:
        return None
    return _TARS[compression] if is_tar_head(inside) else compression


def open_tree(path: Path, *, spool: Path, workers: int = 1, limits: ArchiveLimits = DEFAULT_LIMITS) -> Tree:
    """Open a folder, an archive or a compressed file as a tree. `spool`: a folder on a local disk for unpacked content;
    nothing remains there."""
    if is_folder(path):
        return FolderTree(path, workers=workers)
    return open_archive(LocalBytes(path), spool=spool, limits=limits)


def open_archive(
    source: ByteSource,
    *,
    spool: Path,
    limits: ArchiveLimits = DEFAULT_LIMITS,
    single_files: tuple[str, ...] = (),
    name: str = "",
    zip_encoding: str | None = None,
    cancellation: Cancellation | None = None,
) -> Tree:
    """Open the archive whose bytes `source` gives; the source is closed with the tree, and when this fails.

    Args:
        spool, limits: as in `open_tree`.
        single_files: the endings of files that are accepted too, each as a tree of that one file.
        name: its name in the service, used if its address does not tell what it is.
        zip_encoding: the encoding of a zip's names if it declares none.
        cancellation: checked while content that is compressed as a whole is unpacked.
    """
    # Whatever fails, nobody else refers to what is open; a tree closes it itself.
    with contextlib.ExitStack() as stack:
        stack.callback(source.close)
        kind = recognise_archive(source)
        if kind is None:
            called = next(
                (one for one in map(base_name, (source.label, name)) if one.lower().endswith(single_files)), ""
            )
            if not called:
                _refuse_file(source, single_files=single_files == ALONE)
            tree: Tree = SingleFileTree(source, called)
        elif kind == "zip":
            tree = ZipTree(source, limits=limits, encoding=zip_encoding)
        elif kind in ("7z", "rar"):
            tree = ToolArchiveTree(source, kind, spool, limits, cancellation)
        elif kind == "tar":
            tree = TarTree(source, limits, cancellation)
        else:
            # Anything in a compressed stream can be reached only through all before it.
            content = unpack_into(spool, source, limits, cancellation)
            stack.callback(content.close)
            if kind.startswith("tar"):
                tree = TarTree(content, limits, cancellation, packed=source)
            else:
                tree = SingleFileTree(content, inner_name(source, base_name(source.label), name), source)
        stack.pop_all()
        return tree


def _refuse_file(source: ByteSource, *, single_files: bool) -> NoReturn:
    """Raise the error for a file that is not an archive; the message says what it is, and what is read instead."""
    head = source.pread(HEAD_BYTES, 0)
    what = describe_contents(head) + (" that does not unpack" if compression_of(head) is not None else "")
    archives = "a zip, a tar, a 7z or a rar, or a file compressed with gzip, bzip2, xz or Zstandard"
    name = base_name(source.label)
    # Named like an archive but not one: a failed download or copy, which a second try may fix.
    named = name.lower().endswith(ARCHIVE_SUFFIXES)
    again = "Copy or download it again; expected" if named else "Expected"
    also = (
        "; the folder that holds it; or a file of arrays, records, tokens or paths (.npy, .h5, .tfrecord, .parquet, "
        ".bin, .txt, .csv)"
    )
    msg = f"'{source.label}' is {what}, not an archive. {again} {archives}{also if single_files else ''}."
    if name.lower().endswith(".zip"):
        refuse_volume(source)
    raise (CorruptArchiveError(msg) if named else ArchiveError(msg))


def is_folder(path: Path) -> bool:
    """Return whether a path leads to a folder, not to a file; anything else is an error."""

    def mode_of() -> int:
        try:
            return path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            msg = f"There is nothing at '{path}'. {whereabouts(path)}"
            raise SourceNotFoundError(msg) from None

    mode = read_with_retry(mode_of, str(path))
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        msg = f"'{path}' is neither a file nor a folder, but a device, a pipe or a socket."
        raise ArchiveError(msg)
    return stat.S_ISDIR(mode)


class OnlyTree(TreeView):
    """The part of a tree that `only=` names: paths, and patterns, in which `*` stands for a part of a name and `**` for
    any folders; a folder stands for all in it.

    A single folder becomes the root: its files lose its name. Any other choice keeps the names.
    """

    def __init__(self, tree: Tree, only: Sequence[str]) -> None:
        names = tree.entries.names
        known, count = [*names, *tree.dangling], len(names)
        chosen = np.zeros(len(known), np.bool_)
        for part in only:
            fits = np.fromiter((name.startswith(f"{part}/") or name == part for name in known), np.bool_, len(known))
            if not fits.any() and any(mark in part for mark in "*?["):
                # Also what is in a folder that fits.
                pattern = re.compile(f"(?:{with_wildcards(part)})(?:/.*)?", re.DOTALL)
                fits = np.fromiter((pattern.fullmatch(name) is not None for name in known), np.bool_, len(known))
            if not fits[:count].any():
                raise _nothing_fits(tree, part)
            chosen |= fits
        rows = np.flatnonzero(chosen[:count])
        prefix = f"{only[0]}/" if len(only) == 1 and names[rows[0]].startswith(f"{only[0]}/") else ""
        super().__init__([tree], rows, [names[row].removeprefix(prefix) for row in rows.tolist()])
        # A data.yaml above the chosen folders names the classes of their labels.
        above = {"", *parent_folders(f"{prefix}{folder}/" for folder in self.entries.folders[0])}
        telling = [names[row] for row in np.flatnonzero(~chosen[:count]).tolist() if names[row].endswith(_TELLING)]
        left = [name for name in telling if name.rpartition("/")[0] in above and _SAYS_NOTHING.search(name) is None]
        what = f"only= leaves out {listed(left)}, above what it chooses"
        note = f"{what}; to read that too, only={[*only, *left[:1]]}."
        self.kind, self.label, self.source = tree.kind, tree.label, tree.source
        self.notes = (*tree.notes, *([note] if left else []))
        self.by_request, self.prefix = tree.by_request, prefix
        self.unpacked = None if tree.unpacked is None else tree.unpacked / prefix
        links = zip(tree.dangling, chosen[count:], strict=True)
        self.dangling = tuple(name.removeprefix(prefix) for name, is_chosen in links if is_chosen)
        self.empty_folders = tuple(
            name.removeprefix(prefix) for name in tree.empty_folders if prefix and name.startswith(prefix)
        )


def _nothing_fits(tree: Tree, part: str) -> SourceNotFoundError:
    names = [*sorted(parent_folders(tree.entries.names)), *tree.entries.names]
    by_last = {name.rpartition("/")[2].lower(): name for name in reversed(names)}
    base = part.rpartition("/")[2].partition("*")[0].lower()
    near = [by_last[one] for one in difflib.get_close_matches(base, [*by_last][-5000:])]
    shown = near or sorted({name.partition("/")[0] for name in names})[:5]
    written = " or ".join(f"only={name!r}" for name in shown)
    return SourceNotFoundError(f"only={part!r} matches nothing in '{tree.label}'. Write one that does: {written}.")


# Usual names for the parts of a dataset that should stay separate.
_SPLIT_NAMES = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})
# A file of these kinds may hold the labels.
_NO_CLASSES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt", ".xml")
# And of these, what they mean.
_TELLING = (".csv", ".tsv", ".json", ".txt", ".yaml", ".yml", ".names")
# A competition's submission has made-up labels.
_SAYS_NOTHING = re.compile("readme|submission", re.IGNORECASE)
_FOLDERS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Joining:
    """How the files of several trees are named in one."""

    prefixes: tuple[str, ...]
    """For each tree, the folder that its files go into, "" for none."""
    reason: str
    """Why, as a sentence."""


def plan_joining(stems: Sequence[str], names: Sequence[Collection[str]]) -> Joining:
    """Decide how to name the files of several trees, called by their `stems`, in one. They are united unchanged, unless
    a name would occur twice, or the trees are named like splits (train, val, test …): then each part goes into a folder
    of its own name. `names`: of the files in each tree, without those that an earlier tree has too."""
    # Splits come first: united, train/ and test/ of two archives would no longer be separate.
    folders = distinct_names(stems)
    if all(stem.lower() in _SPLIT_NAMES for stem in stems) and folders == tuple(stems):
        prefixes = tuple(
            # A tree may already have a folder of its own name, and nothing beside it.
            "" if part and all(name.lower().startswith(f"{stem.lower()}/") for name in part) else folder
            for folder, stem, part in zip(folders, stems, names, strict=True)
        )
        reason = f"The parts are named like splits, so each is a folder: {listed(folders, _FOLDERS_SHOWN)}."
        return Joining(prefixes, reason)
    files = Counter(name for part in names for name in part)
    # One tree may later be written into one folder, where a name cannot be both a file and a folder.
    twice = [*(name for name, count in files.items() if count > 1), *(parent_folders(files) & files.keys())]
    collision = min(twice, default=None)
    if collision is None:
        reason = f"The files of {len(stems):,} parts are united; no name is there twice." if len(stems) > 1 else ""
        # A shell's photos/*: class folders, each as a part, whose own names would be lost.
        is_flat = not any("/" in name or name.lower().endswith(_NO_CLASSES) for part in names for name in part)
        # Numbered parts of one thing, such as images_001 and images_002, are not classes; 0 and 1 may be.
        is_counted = any(map(str.isalpha, stems[0])) and len({re.sub(r"\d+", "", stem) for stem in stems}) == 1
        if is_flat and len(set(stems)) == len(stems) > 1 and not is_counted:
            called = listed(stems, _FOLDERS_SHOWN)
            reason += f" What the parts are called ({called}) is lost: if these are classes, stage a folder of folders."
        return Joining(("",) * len(stems), reason)
    if all(DRIVE_ZIP.fullmatch(f"{stem}.zip") for stem in stems):
        msg = (
            f"'{collision}' is in more than one part of '{stems[0]}.zip' … with other contents. Rename one of them on "
            "Drive, and download the folder again."
        )
        raise ArchiveError(msg)
    reason = f"'{collision}' is in more than one part, so each part is a folder: {listed(folders, _FOLDERS_SHOWN)}."
    return Joining(folders, reason)


# How much is read to compare files without checksums that are in several parts.
_COMPARED_BYTES = 64 << 20


def _without_parts(trees: Sequence[Tree]) -> Iterator[list[int]]:
    """Yield the numbers of each tree's files, without archives that are trees of their own beside their folder."""
    labels = {tree.label for tree in trees if tree.kind not in {"folder", "file"}}
    ends = ARCHIVE_SUFFIXES if labels else ()
    for tree in trees:
        named = [number for number, name in enumerate(tree.entries.names) if name.lower().endswith(ends)]
        parts = {number for number in named if tree.address_of(tree.entries[number]) in labels}
        yield [number for number in range(len(tree.entries)) if number not in parts]


def _without_copies(trees: Sequence[Tree], own: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return which of the numbers of each tree's files stay without those that an earlier tree has with the same name
    and content."""
    firsts: dict[str, tuple[Tree, int]] = {}
    budget, found = _COMPARED_BYTES, []
    for tree, some in zip(trees, own, strict=True):
        entries, numbers = tree.entries, []
        for number in some:
            other, at = firsts.setdefault(entries.names[number], (tree, number))
            size = entries.sizes.item(number)
            is_same = other is not tree and other.entries.sizes.item(at) == size
            if is_same and tree.crcs is not None and other.crcs is not None:
                is_same = bool(tree.crcs[number] == other.crcs[at])
            elif is_same:
                budget -= size
                is_same = budget >= 0 and tree.read(entries[number]) == other.read(other.entries[at])
            if not is_same:
                numbers.append(number)
        found.append(numbers)
    return found


class JoinedTree(TreeView):
    """The files of several trees as one tree; a file that several have with the same content is there once."""

    def __init__(self, label: str, parts: Sequence[tuple[str, Tree]], *, joining: Joining | None = None) -> None:
        trees = [tree for _, tree in parts]
        kinds = [tree.kind for tree in trees]
        listings = [tree.entries.names for tree in trees]
        numbers: Sequence[Sequence[int]] = [range(len(names)) for names in listings]
        if joining is None:
            numbers = list(_without_parts(trees))
            united = _without_copies(trees, numbers)
            # Tables and lists beside archives keep their names, from which paths lead on.
            whole = [number for number, kind in enumerate(kinds) if kind != "file"] or range(len(kinds))
            names = [[listings[number][row] for row in united[number]] for number in whole]
            joining = plan_joining([parts[number][0] for number in whole], names)
            copies = sum(map(len, numbers)) - sum(map(len, united))
            if copies and not any(joining.prefixes):
                numbers = united
                files = format_count(copies, "files")
                joining = replace(joining, reason=f"{joining.reason} {files} were in several with the same content.")
            prefix_of = dict(zip(whole, joining.prefixes, strict=True))
            joining = replace(joining, prefixes=tuple(prefix_of.get(number, "") for number in range(len(kinds))))
        firsts = np.cumsum([0, *map(len, listings)])
        rows = [np.array(some, np.int64) + first for some, first in zip(numbers, firsts[:-1], strict=True)]
        folders = [f"{prefix}/" if prefix else "" for prefix in joining.prefixes]
        named = zip(folders, listings, numbers, strict=True)
        joined = [folder + names[number] for folder, names, some in named for number in some]
        if "file" in kinds and (twice := first_repeated(joined)) is not None:
            msg = f"'{twice}' is in more than one part of '{label}', with other contents. Rename one, or leave it out."
            raise ArchiveError(msg)
        super().__init__(trees, np.concatenate(rows), joined)
        # A folder's files can all be read at once, which is what readers check the kind for.
        self.label, self.kind = label, "folder" if "folder" in kinds else kinds[0]
        of_trees = list(zip(folders, trees, strict=True))
        self.empty_folders = tuple(folder + name for folder, tree in of_trees for name in tree.empty_folders)
        self.dangling = tuple(folder + name for folder, tree in of_trees for name in tree.dangling)
        # Parts from one place have the same notes, which are shown once.
        notes = dict.fromkeys(note for tree in trees for note in tree.notes)
        self.notes = (*filter(None, [joining.reason]), *notes)
