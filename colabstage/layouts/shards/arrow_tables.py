"""Parquet and Arrow files with a column of images, as Hugging Face's `datasets` and its Hub have them.

Images in an Arrow file lie in it as they are, so only their places are noted. Those in parquet are compressed by pages:
they are unpacked once, to the local disk.
"""

from __future__ import annotations

import json
import posixpath
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.fields import Images
from colabstage.layouts.members import spool_folder
from colabstage.layouts.names import IMAGE_EXTENSIONS
from colabstage.layouts.shards.arrow_files import FileFacts, FoundRows, ImageSpool, find_rows, import_arrow, read_facts
from colabstage.layouts.shards.sample_labels import Label, make_labels
from colabstage.layouts.shards.shard_files import open_shard
from colabstage.layouts.shards.shard_source import Shard, ShardParts, scan_each, shard_of, splits_of_shards
from colabstage.layouts.table import ClaimedTreeError, SampleTable
from colabstage.trees.archive_bytes import LocalBytes
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.trees.tree import FileEntry, Tree

NAME = "arrow"

_IMAGES = ("image", "img", "jpg", "png", "picture", "photo")
_LABELS = ("label", "labels", "class", "fine_label", "target", "category", "class_id", "class_name")


class _Columns(NamedTuple):
    """The columns that matter: names of classes where the file has them; `others` are left out."""

    image: str
    label: str | None
    classes: tuple[str, ...]
    others: list[str]


def read_arrow(tree: Tree) -> SampleTable:
    """Make a table of a tree with parquet or Arrow files that have a column of images.

    x is that column; y the first ClassLabel of `datasets`, or the column label: whole numbers, numbers or words. Splits
    are those that all files, or the folders they lie in, are called after (train-00000-of-00002.parquet).

    Raises:
        EmptySourceError: there are no such files.
        MissingDependencyError: pyarrow is not installed.
        LayoutError: they have no column of images.
        ClaimedTreeError: files have different columns, or a row has no image; it is named.
        CorruptArchiveError: a file is damaged or truncated.
        NotEnoughSpaceError: the unpacked images of parquet files do not fit on the local disk.
    """
    entries = _data_files(tree)
    import_arrow(entries[0].name)
    shards = scan_each(len(entries), lambda number: shard_of(entries[number], open_shard(tree, entries[number])))
    facts = scan_each(len(shards), lambda number: read_facts(shards[number]))
    columns = _find_columns(tree, facts[0])
    _check_same(shards, facts, columns)
    found, shards = _find(tree, shards, facts, columns)
    parts = [part for rows in found for part in rows.images]
    names = [f"{shards[part.shard].name}[{row}]" for rows in found for row, part in enumerate(rows.images)]
    labels = [_label(value, names[0]) for rows in found for value in rows.labels]
    targets, classes = make_labels(labels, names, names=dict(enumerate(columns.classes)))
    splits = splits_of_shards([shard.name for shard in shards])
    return SampleTable(
        layout=NAME,
        keys=tuple(names),
        inputs=Images(ShardParts(shards, parts, names)),
        targets=targets,
        splits=None if splits is None else tuple(splits[part.shard] for part in parts),
        classes=classes,
        notes=(f"Columns that are left out: {', '.join(columns.others)}.",) if columns.others else (),
    )


def _data_files(tree: Tree) -> list[FileEntry]:
    found = [
        entry
        for entry in files_ending_in(tree.entries, (".parquet", ".arrow"))
        # What `datasets` computes and keeps beside the data.
        if not posixpath.basename(entry.name).startswith(("cache-", "indices"))
    ]
    if not found:
        msg = f"'{tree.label}' holds no parquet or Arrow files."
        raise EmptySourceError(msg)
    if files_ending_in(tree.entries, IMAGE_EXTENSIONS):
        msg = f"'{tree.label}' holds images as files of their own beside its parquet or Arrow files."
        raise LayoutError(msg)
    return found


def _find_columns(tree: Tree, facts: FileFacts) -> _Columns:
    features = _features(facts.schema)
    names = list(facts.schema.names)
    images = [name for name in names if features.get(name, {}).get("_type") == "Image"]
    images = images or [name for name in names if _holds_bytes(facts.schema.field(name).type)]
    if not images:
        msg = f"The files of '{tree.label}' have no column of images, but {', '.join(names)}."
        raise LayoutError(msg)
    image = next((name for name in _IMAGES if name in images), images[0])
    labels = [name for name in names if features.get(name, {}).get("_type") == "ClassLabel"]
    called = [name for name in _LABELS if name in names and name != image]
    labels = labels or [name for name in called if _is_label(facts.schema.field(name).type)]
    label = "label" if "label" in labels else next(iter(labels), None)
    if label is None and called:
        kind = facts.schema.field(called[0]).type
        msg = (
            f"The column '{called[0]}' of '{tree.label}' holds {kind} values, which are no labels; expected one number "
            "or word in each row. Rename it, or add a column of labels."
        )
        raise ClaimedTreeError(msg)
    classes = features.get(label or "", {}).get("names") or ()
    return _Columns(image, label, tuple(map(str, classes)), [name for name in names if name not in (image, label)])


def _features(schema: Any) -> dict[str, Any]:
    """What `datasets` notes of each column; nothing where another tool wrote the file."""
    try:
        found = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return {name: one for name, one in found.items() if isinstance(one, dict)} if isinstance(found, dict) else {}


def _holds_bytes(kind: Any) -> bool:
    text = str(kind)
    return text in ("binary", "large_binary") or text.startswith(("struct<bytes: binary", "struct<bytes: large_binary"))


def _is_label(kind: Any) -> bool:
    # As pandas writes a column of the type category.
    kind = getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind
    return str(kind).startswith(("int", "uint", "float", "double", "halffloat", "string", "large_string", "bool"))


def _check_same(shards: Sequence[Shard], facts: Sequence[FileFacts], columns: _Columns) -> None:
    wanted = [name for name in (columns.image, columns.label) if name is not None]
    for shard, one in zip(shards, facts, strict=True):
        missing = [name for name in wanted if name not in one.schema.names]
        if missing or _features(one.schema).get(columns.label or "") != _features(facts[0].schema).get(
            columns.label or ""
        ):
            msg = (
                f"'{shard.name}' and '{shards[0].name}' have different columns or classes "
                f"({', '.join(one.schema.names)}); expected files of one dataset."
            )
            raise ClaimedTreeError(msg)


def _find(
    tree: Tree, shards: list[Shard], facts: Sequence[FileFacts], columns: _Columns
) -> tuple[list[FoundRows], list[Shard]]:
    """The rows of each file, and the files to read their images from."""
    folder = spool_folder(sum(one.unpacked_bytes for one in facts), f"The unpacked images of '{tree.label}'")
    with tempfile.NamedTemporaryFile(dir=folder, prefix="colabstage-") as out:
        spool = ImageSpool(out.file)
        found = scan_each(
            len(shards), lambda number: find_rows(shards[number], number, columns.image, columns.label, spool)
        )
        out.flush()
        content = LocalBytes(Path(out.name), label=tree.label)
    return found, [
        shard._replace(content=content) if rows.spooled else shard for shard, rows in zip(shards, found, strict=True)
    ]


def _label(value: Any, name: str) -> Label:
    if value is None or isinstance(value, int | float | str):
        return value
    msg = f"'{name}' has a label of the kind {type(value).__name__}; expected a number or a word."
    raise ClaimedTreeError(msg)
