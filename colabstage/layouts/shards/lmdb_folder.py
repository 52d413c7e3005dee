"""LMDB databases of images: keys to image files as LSUN has them, or image-000000001 and label-000000001 as OCR has."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.fields import Images, Values
from colabstage.layouts.names import is_image
from colabstage.layouts.shards.lmdb_file import scan_values
from colabstage.layouts.shards.sample_labels import Label, make_labels, parse_label
from colabstage.layouts.shards.shard_files import open_shard
from colabstage.layouts.shards.shard_source import (
    IMAGE_HEADS,
    Part,
    ScanWindow,
    Shard,
    ShardParts,
    rest_shard,
    scan_each,
    shard_of,
    splits_of_shards,
)
from colabstage.layouts.table import ClaimedTreeError, SampleTable
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.trees.tree import Tree

NAME = "lmdb"

_NUMBERED = re.compile(rb"(image|img|label|lbl)[-_](.+)", re.DOTALL)
# What writers note beside the samples.
_NOTES = re.compile(rb"num[-_]samples|length|len|nsamples|keys|meta|__.*__", re.DOTALL)
_MAX_LABEL_BYTES = 64 * 1024


class _Scanned(NamedTuple):
    """One database: its images by name, and their labels, where there are any."""

    shard: Shard
    images: dict[str, Part]
    labels: dict[str, bytes]


class _Targets(NamedTuple):
    values: Values | None
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_lmdb(tree: Tree) -> SampleTable:
    """Make a table of a tree with LMDB databases (data.mdb, or a file .lmdb) whose values are image files.

    y: with keys as image-000000001 and label-000000001, whole numbers as they are, other numbers, or texts as uint8
    `(N, L)`, UTF-8 with zeros up to the longest; with keys as cat/1.jpg the folder; else none. Splits are those that
    all databases are called after (train/data.mdb, val.lmdb). Nothing is unpickled.

    Raises:
        EmptySourceError: there is no such database.
        LayoutError: the values are no image files: arrays, pickles, named databases.
        ClaimedTreeError: some images have a label and others none.
        CorruptArchiveError: a database is damaged or truncated.
    """
    entries = files_ending_in(tree.entries, (".mdb", ".lmdb")).where(_is_database)
    if not entries:
        msg = f"'{tree.label}' holds no LMDB database (data.mdb, or a file .lmdb)."
        raise EmptySourceError(msg)
    scanned = scan_each(
        len(entries), lambda number: _scan(shard_of(entries[number], open_shard(tree, entries[number])), number)
    )
    shards = [found.shard for found in scanned]
    parts = [part for found in scanned for part in found.images.values()]
    names = [f"{found.shard.name}[{name}]" for found in scanned for name in found.images]
    if not parts:
        msg = f"The databases in '{tree.label}' hold no values."
        raise EmptySourceError(msg)
    source = ShardParts(shards, parts, names)
    targets = _targets(scanned, names)
    splits = splits_of_shards([shard.name for shard in shards])
    return SampleTable(
        layout=NAME,
        keys=tuple(names),
        inputs=Images(source),
        targets=targets.values,
        splits=None if splits is None else tuple(splits[part.shard] for part in parts),
        classes=targets.classes,
        notes=targets.notes,
    )


def _is_database(name: str) -> bool:
    base = posixpath.basename(name).lower()
    return base == "data.mdb" or (base.endswith((".lmdb", ".mdb")) and base != "lock.mdb")


def _scan(shard: Shard, number: int) -> _Scanned:
    window = ScanWindow(shard.content)
    found = _Scanned(shard, {}, {})
    for value in scan_values(window):
        if _NOTES.fullmatch(value.key):
            continue
        match = _NUMBERED.fullmatch(value.key)
        name = _key_name(match[2] if match else value.key)
        if match and match[1] in (b"label", b"lbl"):
            if value.size > _MAX_LABEL_BYTES:
                msg = f"'{shard.name}[{name}]' has a label of {value.size:,} bytes; expected a number or a text."
                raise ClaimedTreeError(msg)
            found.labels[name] = window.pread(value.size, value.start)
            continue
        if not found.images:
            # Every other value is looked at when it is decoded.
            _check_image(shard, name, window.pread(min(value.size, 16), value.start))
        found.images[name] = Part(number, value.start, value.size)
    rest_shard(shard)
    return found


def _key_name(key: bytes) -> str:
    """A key as text; as hexadecimal digits where it is none."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


def _check_image(shard: Shard, name: str, head: bytes) -> None:
    if head.startswith(IMAGE_HEADS):
        return
    is_pickle = head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5")
    what = "a pickle, which is never loaded here because it can run any program" if is_pickle else f"{head!r}…"
    msg = (
        f"'{shard.name}' does not hold image files: the value of '{name}' is {what}. Read it with your own code: give "
        "pack_dataset the dataset object that you train with."
    )
    raise LayoutError(msg)


def _targets(scanned: Sequence[_Scanned], names: Sequence[str]) -> _Targets:
    if not any(found.labels for found in scanned):
        targets, classes = make_labels(_folders(scanned), names)
        return _Targets(targets, classes)
    texts = [found.labels.get(name) for found in scanned for name in found.images]
    missing = [name for name, text in zip(names, texts, strict=True) if text is None]
    if missing:
        msg = f"{len(missing):,} of {len(names):,} images have no label (first '{missing[0]}')."
        raise ClaimedTreeError(msg)
    words = [text or b"" for text in texts]
    labels = [parse_label(_decode(name, word)) for name, word in zip(names, words, strict=True)]
    if not any(label is None or isinstance(label, str) for label in labels):
        targets, classes = make_labels(labels, names)
        return _Targets(targets, classes)
    width = max(1, *map(len, words))
    rows = b"".join(word.ljust(width, b"\0") for word in words)
    note = f"Labels are texts: rows of {width} bytes, UTF-8, with zeros up to the end."
    return _Targets(Values(np.frombuffer(rows, np.uint8).reshape(len(words), width)), notes=(note,))


def _folders(scanned: Sequence[_Scanned]) -> list[Label]:
    """The folder of each key that is written like the path of an image, where all are."""
    keys = [name for found in scanned for name in found.images]
    if all("/" in key and is_image(key) for key in keys):
        return [posixpath.basename(posixpath.dirname(key)) for key in keys]
    return [None] * len(keys)


def _decode(name: str, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        msg = f"The label of '{name}' is no text: {text[:20]!r}."
        raise ClaimedTreeError(msg) from error
