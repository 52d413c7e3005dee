"""Several trees as one, and files that are parts of one thing: how they are recognised and what is still missing."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import ArchiveError
from colabstage.io.units import format_count, listed
from colabstage.trees.listing import FileEntries, FileEntry, Tree, TreeView, sorted_by_name
from colabstage.trees.names import distinct_names, parent_folders
from colabstage.trees.volumes import DRIVE_ZIP

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

# What people call the parts of a dataset that are to stay apart.
_SPLIT_NAMES = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})
# Where there is one of these, it may have the labels.
_NO_CLASSES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt", ".xml")
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
        names: the file names in each tree; without what is the same in one before.
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
    downloads = [DRIVE_ZIP.fullmatch(f"{stem}.zip") for stem in stems]
    if all(downloads) and len({match["stem"] for match in downloads if match is not None}) == 1:
        msg = (
            f"'{collision}' is in more than one part of '{stems[0]}.zip' … with other contents: two files "
            "of one name in a folder of the Drive. Rename one of them there, and download the folder again."
        )
        raise ArchiveError(msg)
    reason = f"'{collision}' is in more than one part, so each part is a folder: {listed(folders, _FOLDERS_SHOWN)}."
    return Joining(folders, reason)


def _first_collision(names: Sequence[Collection[str]]) -> str | None:
    """Return a name that is in two trees, or a file in one and a folder in another; the first in order."""
    files = Counter(name for part in names for name in part)
    twice = [name for name, count in files.items() if count > 1]
    # One tree is written into one folder later, where a name cannot be a file and a folder.
    return min([*twice, *(parent_folders(files) & files.keys())], default=None)


# Of files without checksums that are in several parts, what is read to see whether they are the same.
_COMPARED_BYTES = 64 << 20


def _without_copies(trees: Sequence[Tree]) -> list[FileEntries]:
    """Return the files of each tree without those that an earlier tree has with the same name and content."""
    firsts: dict[str, tuple[Tree, int]] = {}
    budget = _COMPARED_BYTES
    found = []
    for tree in trees:
        entries = tree.entries
        kept = []
        for number, name in enumerate(entries.names):
            other, at = firsts.setdefault(name, (tree, number))
            size = entries.sizes.item(number)
            if other is tree or other.entries.sizes.item(at) != size:
                kept.append(number)
            elif tree.crcs is not None and other.crcs is not None:
                if tree.crcs[number] != other.crcs[at]:
                    kept.append(number)
            else:
                budget -= size
                if budget < 0 or tree.read(entries[number]) != other.read(other.entries[at]):
                    kept.append(number)
        found.append(entries.take(np.array(kept, np.int64)))
    return found


class JoinedTree(TreeView):
    """The files of several trees as one tree; a file that several have with the same content is there once. Closing it
    closes them all.
    """

    def __init__(self, label: str, parts: Sequence[tuple[str, Tree]], *, joining: Joining | None = None) -> None:
        self.label = label
        self._trees = [tree for _, tree in parts]
        kinds = [tree.kind for tree in self._trees]
        # A folder's files can all be read at once, which is what its kind is looked at for.
        self.kind = "folder" if "folder" in kinds else kinds[0]
        stems, of_folders = [stem for stem, _ in parts], all(kind == "folder" for kind in kinds)
        listings = [tree.entries for tree in self._trees]
        if joining is None:
            united = _without_copies(self._trees)
            joining = plan_joining(stems, [entries.names for entries in united], of_folders=of_folders)
            copies = sum(map(len, listings)) - sum(map(len, united))
            if copies and not any(joining.prefixes):
                listings = united
                files = format_count(copies, "files")
                joining = replace(joining, reason=f"{joining.reason} {files} were in several with the same content.")
        names: list[str] = []
        starts, start = [], 0
        for prefix, entries in zip(joining.prefixes, listings, strict=True):
            names += [f"{prefix}/{name}" for name in entries.names] if prefix else entries.names
            starts.append(start)
            # One part after the other is the order that each of them likes best.
            start += int(entries.positions.max(initial=-1)) + 1
        columns = [
            np.concatenate([getattr(entries, column) for entries in listings])
            for column in ("sizes", "mtimes_ns", "executable")
        ]
        positions = np.concatenate([entries.positions + at for entries, at in zip(listings, starts, strict=True)])
        names, (sizes, times, executable, positions), self._order = sorted_by_name(names, *columns, positions)
        self.entries = FileEntries(names, sizes, times, positions, executable)
        self._listings = listings
        self._firsts = np.cumsum([0, *map(len, listings)])
        folders = zip(joining.prefixes, self._trees, strict=True)
        self.empty_folders = tuple(
            f"{prefix}/{name}" if prefix else name for prefix, tree in folders for name in tree.empty_folders
        )
        # Parts that come from one place say the same, which is said once.
        notes = dict.fromkeys(note for tree in self._trees for note in tree.notes)
        self.notes = (*filter(None, [joining.reason]), *notes)

    def parts(self) -> tuple[Tree, ...]:
        """Return the trees that have files, in the order of their first ones."""
        numbers, firsts = np.unique(np.searchsorted(self._firsts, self._order, side="right") - 1, return_index=True)
        return tuple(part for number in numbers[np.argsort(firsts)] for part in self._trees[number].parts())

    def origin(self, entry: FileEntry) -> tuple[Tree, FileEntry]:
        """Return the tree that has a file, and the file as that one has it."""
        row = int(self._order[self._own(entry)])
        # Rows count through all parts, so the part is the last that begins at or before one.
        part = int(np.searchsorted(self._firsts, row, side="right")) - 1
        return self._trees[part].origin(self._listings[part][row - int(self._firsts[part])])

    def close(self) -> None:
        """Close all parts. Calling it twice is fine."""
        for tree in self._trees:
            tree.close()
