"""Which layout the files of a tree form: each reader is asked in turn, and those that decline say why."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import EmptySourceError, LayoutError, MissingDependencyError, OptionError
from colabstage.layouts.arrays import row_arrays
from colabstage.layouts.boxes import detection
from colabstage.layouts.folders import image_folder, pairs
from colabstage.layouts.sequences import audio, tokens
from colabstage.layouts.shards import arrow_tables, lmdb_folder, tfrecord, webdataset
from colabstage.layouts.table import ClaimedTreeError
from colabstage.layouts.tables import csv_table

if TYPE_CHECKING:
    from colabstage.layouts.table import SampleTable
    from colabstage.trees.tree import Tree


LayoutFunction = Callable[["Tree"], "SampleTable"]


class LayoutReader(NamedTuple):
    """One layout.

    `read` makes the table, or raises LayoutError with the reason why the tree is not of this layout; ClaimedTreeError
    where it is and cannot be read.
    """

    name: str
    read: Callable[[Tree], SampleTable]


# Asked in this order: the more a layout demands of a tree, the earlier it stands.
READERS: tuple[LayoutReader, ...] = (
    LayoutReader(detection.NAME, detection.read_detection),
    LayoutReader(webdataset.NAME, webdataset.read_webdataset),
    LayoutReader(tfrecord.NAME, tfrecord.read_tfrecord),
    LayoutReader(lmdb_folder.NAME, lmdb_folder.read_lmdb),
    LayoutReader(arrow_tables.NAME, arrow_tables.read_arrow),
    LayoutReader(csv_table.NAME, csv_table.read_table),
    LayoutReader(pairs.NAME, pairs.read_pairs),
    LayoutReader(image_folder.NAME, image_folder.read_image_folder),
    LayoutReader(row_arrays.NAME, row_arrays.read_arrays),
    LayoutReader(audio.NAME, audio.read_audio),
    LayoutReader(tokens.NAME, tokens.read_tokens),
)


def detect_layout(tree: Tree, layout: str | LayoutFunction = "auto") -> SampleTable:
    """Make the table of samples of a tree.

    Args:
        tree: the dataset's files.
        layout: name of a layout, "auto" for the first that fits, or a function that makes the table. With "auto" the
            table's last note says which it is and why those asked before declined.

    Raises:
        OptionError: there is no layout of that name.
        EmptySourceError: the tree holds no sample of any layout.
        LayoutError: no layout fits; the message has the reason of each.
        ClaimedTreeError: the layout is found, but something in the tree is broken.
    """
    if not isinstance(layout, str):
        return layout(tree)
    check_layout_name(layout)
    declined: list[tuple[str, LayoutError]] = []
    for reader in READERS:
        if layout in ("auto", reader.name):
            try:
                table = reader.read(tree)
                return (
                    table
                    if layout != "auto"
                    else replace(table, notes=(*table.notes, _choice(table, declined, tree.label)))
                )
            except ClaimedTreeError:
                raise
            except MissingDependencyError as error:
                if layout != "auto":
                    raise
                declined.append((reader.name, LayoutError(str(error))))
            except LayoutError as error:
                declined.append((reader.name, error))
    if len(declined) == 1:
        raise declined[0][1]
    reasons = "".join(f"\n  {name}: {error}" for name, error in declined)
    msg = f"The files of '{tree.label}' fit none of the layouts known here:{reasons}"
    if all(isinstance(error, EmptySourceError) for _, error in declined):
        raise EmptySourceError(msg)
    raise LayoutError(msg)


def _choice(table: SampleTable, declined: list[tuple[str, LayoutError]], label: str) -> str:
    reasons = "; ".join(f"not {name}: {_in_short(str(error), label)}" for name, error in declined)
    return f"The layout is {table.layout}{f' ({reasons})' if reasons else ''}."


def _in_short(reason: str, label: str) -> str:
    """What the first sentence begins with; the rest are details for who asked for that layout."""
    reason = reason.replace(f"'{label}' ", "").partition(". ")[0].rstrip(".")
    return re.split(r" \(|: ", reason, maxsplit=1)[0]


def check_layout_name(layout: str) -> None:
    """Refuse the name of a layout that there is not, before any tree is opened.

    Raises:
        OptionError: `layout` is neither "auto" nor a known name; the message lists them.
    """
    names = ["auto", *(reader.name for reader in READERS)]
    if layout not in names:
        msg = f"There is no layout {layout!r}. Choose one of {', '.join(names)}."
        raise OptionError(msg)
