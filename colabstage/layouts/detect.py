"""Which layout the files of a tree form: each reader is asked in turn, the weakest last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import EmptySourceError, LayoutError, MissingDependencyError, OptionError
from colabstage.layouts import evidence
from colabstage.layouts.arrays import row_arrays
from colabstage.layouts.boxes import detection
from colabstage.layouts.folders import file_names, image_folder, pairs
from colabstage.layouts.sequences import audio, tokens
from colabstage.layouts.shards import arrow_tables, lmdb_folder, tfrecord, webdataset
from colabstage.layouts.table import ClaimedTreeError, NearMissError
from colabstage.layouts.tables import csv_table

if TYPE_CHECKING:
    from colabstage.layouts.table import SampleTable
    from colabstage.trees.tree import Tree


LayoutFunction = Callable[["Tree"], "SampleTable"]


class LayoutReader(NamedTuple):
    """One layout.

    `read` makes the table, or raises LayoutError with the reason why the tree is not of this layout; ClaimedTreeError
    where it is and cannot be read. `guess` is what "auto" asks instead, where more speaks for a layout, or against it,
    than whoever names it needs to know; and whether the samples are more of a dataset that is there.
    """

    name: str
    read: Callable[[Tree], SampleTable]
    guess: Callable[[Tree, bool], SampleTable] | None = None


# Asked in this order: the more a layout demands of a tree, the earlier it stands.
READERS: tuple[LayoutReader, ...] = (
    LayoutReader(detection.NAME, detection.read_detection),
    LayoutReader(webdataset.NAME, webdataset.read_webdataset),
    LayoutReader(tfrecord.NAME, tfrecord.read_tfrecord),
    LayoutReader(lmdb_folder.NAME, lmdb_folder.read_lmdb),
    LayoutReader(arrow_tables.NAME, arrow_tables.read_arrow),
    LayoutReader(csv_table.NAME, csv_table.read_table, evidence.guess_table),
    LayoutReader(pairs.NAME, pairs.read_pairs),
    LayoutReader(image_folder.NAME, image_folder.read_image_folder, evidence.guess_image_folder),
    LayoutReader(row_arrays.NAME, row_arrays.read_arrays),
    LayoutReader(file_names.NAME, file_names.read_file_names),
    LayoutReader(audio.NAME, audio.read_audio, evidence.guess_audio),
    LayoutReader(tokens.NAME, tokens.read_tokens),
)


def detect_layout(tree: Tree, layout: str | LayoutFunction = "auto", *, is_more: bool = False) -> SampleTable:
    """Make the table of samples of a tree.

    Args:
        tree: the dataset's files.
        layout: name of a layout, "auto" for the first that fits, or a function that makes the table.
        is_more: whether the samples are more of a dataset that is there, so that one class is as good as any.

    Raises:
        OptionError: there is no layout of that name.
        EmptySourceError: the tree holds no sample of any layout.
        LayoutError: no layout fits; the message says first which would nearly, and then why each other does not.
        ClaimedTreeError: the layout is found, but something in the tree is broken, or speaks for another as well.
        MissingDependencyError: folders or a table could be meant, and a file that may say more needs a package.
    """
    if not isinstance(layout, str):
        return layout(tree)
    check_layout_name(layout)
    if layout != "auto":
        return next(reader for reader in READERS if reader.name == layout).read(tree)
    declined: list[tuple[str, LayoutError]] = []
    unread = ""
    for reader in READERS:
        try:
            table = reader.read(tree) if reader.guess is None else reader.guess(tree, is_more)
        except ClaimedTreeError:
            raise
        except MissingDependencyError as error:
            declined.append((reader.name, NearMissError(str(error))))
            unread = unread or str(error)
        except LayoutError as error:
            declined.append((reader.name, error))
        else:
            if unread and reader.guess is not None:
                # What cannot be read may say what the samples are, and a guess would not.
                msg = f'{unread} Or give layout="{table.layout}", which does without it.'
                raise MissingDependencyError(msg)
            return replace(table, notes=(*table.notes, f"The layout is {table.layout}."))
    raise _nothing_fits(tree.label, declined)


def _nothing_fits(label: str, declined: list[tuple[str, LayoutError]]) -> LayoutError:
    """The error that says first what would nearly fit."""
    nearest = next((error for _, error in declined if isinstance(error, NearMissError)), None)
    reasons = "".join(f"\n  {name}: {error}" for name, error in declined if error is not nearest)
    if nearest is not None:
        return LayoutError(f"{nearest}\nThe files of '{label}' fit none of the other layouts known here:{reasons}")
    kind = EmptySourceError if all(isinstance(error, EmptySourceError) for _, error in declined) else LayoutError
    return kind(f"The files of '{label}' fit none of the layouts known here:{reasons}")


def check_layout_name(layout: str) -> None:
    """Refuse the name of a layout that there is not, before any tree is opened.

    Raises:
        OptionError: `layout` is neither "auto" nor a known name; the message lists them.
    """
    names = ["auto", *(reader.name for reader in READERS)]
    if layout not in names:
        msg = f"There is no layout {layout!r}. Choose one of {', '.join(names)}."
        raise OptionError(msg)
