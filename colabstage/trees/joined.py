"""Several trees as one: a dataset that comes in several archives or folders."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from colabstage.trees.entries import FileEntries, Listing, narrowed
from colabstage.trees.names import parent_folders
from colabstage.trees.tree import empty_folders, unknown_entry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from types import TracebackType

    from colabstage.trees.tree import FileEntry, Tree, TreeKind

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


class JoinedTree:
    """The files of several trees as one tree; closing it closes them all.

    Args:
        label: its address, for messages.
        parts: the readable name of each tree, and the tree.
        joining: how their files are named; decided by `plan_joining` without it.
    """

    def __init__(self, label: str, parts: Sequence[tuple[str, Tree]], *, joining: Joining | None = None) -> None:
        self._label = label
        self._trees = [tree for _, tree in parts]
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
        self._entries, order = listing.by_name()
        self._parts = parts_of
        self._firsts = np.cumsum([0, *(len(entries) for entries in parts_of)])
        self._origins = narrowed(order)
        self._notes = (
            *filter(None, [joining.reason]),
            # Parts that come from one place say the same, which is said once.
            *dict.fromkeys(note for tree in self._trees for note in tree.notes),
        )

    @property
    def kind(self) -> TreeKind:
        """Return `"folder"` if one of the parts is a folder, whose files can all be read at once; else that of the
        first."""
        kinds = [tree.kind for tree in self._trees]
        return "folder" if "folder" in kinds else kinds[0]

    @property
    def label(self) -> str:
        """Return the address it was given."""
        return self._label

    @property
    def notes(self) -> tuple[str, ...]:
        """Return how the parts were joined, and what each of them says."""
        return self._notes

    @property
    def entries(self) -> FileEntries:
        """Return all files, sorted by name; by `position`, one part comes after the other."""
        return self._entries

    @property
    def empty_folders(self) -> tuple[str, ...]:
        """Return those of the parts that know, named as their files are."""
        parts = zip(self._prefixes, self._trees, strict=True)
        return tuple(f"{prefix}/{name}" if prefix else name for prefix, tree in parts for name in empty_folders(tree))

    def read(self, entry: FileEntry) -> bytes:
        """Return the whole content of one file, as its own tree gives it."""
        tree, own = self.origin(entry)
        return tree.read(own)

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Return the content of one file in pieces, as its own tree gives them."""
        tree, own = self.origin(entry)
        return tree.chunks(own)

    def origin(self, entry: FileEntry) -> tuple[Tree, FileEntry]:
        """Return the part that has a file, and the file as that part has it.

        Raises:
            SourceReadError: the entry is another tree's.
        """
        place = self._entries.find(entry)
        if place is None:
            raise unknown_entry(self.label, entry.name)
        # Numbers count through all parts, so the part is the last that begins at or before this one.
        origin = int(self._origins[place])
        part = int(np.searchsorted(self._firsts, origin, side="right")) - 1
        return self._trees[part], self._parts[part][origin - int(self._firsts[part])]

    def close(self) -> None:
        """Close all parts. Calling it twice is fine."""
        for tree in self._trees:
            tree.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
