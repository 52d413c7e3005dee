"""A folder read by one table that is named by itself, where others lie beside it: the source `photos/labels.csv`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import LayoutError
from colabstage.layouts.audio import read_audio
from colabstage.layouts.columns import is_table
from colabstage.layouts.csv_table import NAME, read_table
from colabstage.layouts.table import BrokenDatasetError
from colabstage.trees.tree import PartOfTree

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.layouts.table import SampleTable
    from colabstage.trees.tree import Tree

_SUFFIXES = (".csv", ".tsv")


@dataclass(frozen=True, slots=True)
class TableFile:
    """The layout of a folder whose samples one table lists."""

    name: str
    """The table, in the folder; other tables do not count."""

    def __call__(self, tree: Tree) -> SampleTable:
        """Return the samples that the table names: images, or else clips of sound.

        Raises:
            LayoutError: it leads to neither.
        """
        entries = [entry for entry in tree.entries if entry.name == self.name or not is_table(entry.name)]
        seen = PartOfTree(tree, entries)
        try:
            return read_table(seen)
        except BrokenDatasetError:
            raise
        except LayoutError as error:
            try:
                return read_audio(seen)
            except LayoutError:
                raise error from None


def is_table_file(path: Path, layout: object) -> bool:
    """Tell whether a path names a table that lists samples beside it, and the layout asked for says nothing else."""
    return layout in ("auto", NAME) and path.suffix.lower() in _SUFFIXES and not path.is_dir()
