"""Several trees as one: a dataset that comes in several archives or folders."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.trees.entries import FileEntries, Listing, narrowed
from colabstage.trees.names import parent_folders
from colabstage.trees.tree import TreeView, unknown_entry

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from colabstage.trees.tree import FileEntry, Tree

# What people call the parts of a dataset that are to stay apart.
_SPLIT_NAMES = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})
_NAMES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Joining:
    """How the files of several trees are named in one."""

    prefixes: tuple[str, ...]
    """For each tree the folder that its files are put into, "" for none."""
    reason: str
    """Why, as a sentence."""


def plan_joining(stems: Sequence[str], names: Sequence[Collection[str]]) -> Joining:
    """Decide how to name the files of several trees in one. Pure.

    They are united as they are, unless a name would be there twice, or the trees are named like splits (train, val,
    test …): then each part goes into a folder of its own name.

    Args:
        stems: the readable name of each tree; need not be distinct.
        names: the file names in each tree.
    """
    # Splits come first: united, train/ and test/ of two archives would lose which is which.
    folders = distinct_names(stems)
    if all(stem.lower() in _SPLIT_NAMES for stem in stems) and folders == tuple(stems):
        prefixes = tuple(
            "" if _lies_in(part, stem) else folder for folder, stem, part in zip(folders, stems, names, strict=True)
        )
        return Joining(prefixes, f"The parts are named like splits, so each is a folder: {_listed(folders)}.")
    collision = _first_collision(names)
    if collision is None:
        return Joining(("",) * len(stems), f"The files of {len(stems):,} parts are united; no name is there twice.")
    reason = f"'{collision}' is in more than one part, so each part is a folder: {_listed(folders)}."
    return Joining(folders, reason)


def distinct_names(stems: Sequence[str]) -> tuple[str, ...]:
    """Return the stems, those that were there before with a number behind them; two that differ in case are the same.

    >>> distinct_names(["a", "b", "A"])
    ('a', 'b', 'A-2')
    """
    taken: set[str] = set()
    found = []
    for stem in stems:
        name, number = stem, 1
        # A disk that ignores case would lay the two over each other.
        while name.lower() in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name.lower())
        found.append(name)
    return tuple(found)


def _lies_in(names: Collection[str], stem: str) -> bool:
    """Tell whether a tree has the folder of its own name already, and nothing beside it."""
    return bool(names) and all(name.lower().startswith(f"{stem.lower()}/") for name in names)


def _first_collision(names: Sequence[Collection[str]]) -> str | None:
    """Return a name that is in two trees, or a file in one and a folder in another; the first in order."""
    files = Counter(name for part in names for name in part)
    twice = [name for name, count in files.items() if count > 1]
    # One tree is written into one folder later, where a name cannot be a file and a folder.
    folders = parent_folders(files)
    return min([*twice, *(folders & files.keys())], default=None)


def _listed(folders: Sequence[str]) -> str:
    shown = ", ".join(f"'{folder}'" for folder in folders[:_NAMES_SHOWN])
    return f"{shown} and {len(folders) - _NAMES_SHOWN:,} more" if len(folders) > _NAMES_SHOWN else shown


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
        joining = joining or plan_joining([stem for stem, _ in parts], [entries.names for entries in parts_of])
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
