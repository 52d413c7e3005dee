"""Blocks of tokens for language models: of files of tokens as they are, or of text."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.arrays.row_sources import ConvertedRows, join_sources
from colabstage.layouts.boxes.image_boxes import split_of_folders, split_of_word
from colabstage.layouts.fields import Arrays
from colabstage.layouts.names import SPLIT_NAMES, count_kinds
from colabstage.layouts.sequences.token_streams import TokenOptions, TokenStream, make_tokens, open_tokens
from colabstage.layouts.sources import FileSlices
from colabstage.layouts.table import SampleTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.layouts.sources import SampleSource
    from colabstage.trees.tree import FileEntry, Tree

NAME = "tokens"

_TOKENS = (".bin",)
_TEXTS = (".txt", ".jsonl")
# Of the names of files that hold something else.
_ARRAY_WORDS = frozenset(("x", "y", "image", "images", "label", "labels", "target", "targets", "batch"))
# What may lie beside without making the tree another one.
_BESIDE = (".md", ".pkl", ".json", ".py", ".rst", ".yaml", ".yml", ".log")


def read_tokens(tree: Tree, *, options: TokenOptions = TokenOptions()) -> SampleTable:  # noqa: B008  # frozen
    """Make a table of a tree that holds tokens or text and nothing else.

    Files train.bin and val.bin are tokens as nanoGPT and llm.c write them, and are taken as they are; else .txt and
    .jsonl files are text. Each split is one stream, its files in the order of their names, cut into rows of one length;
    what is left at its end is left out.

    Args:
        tree: the dataset's files.
        options: what the rows are.

    Raises:
        EmptySourceError: there is neither.
        LayoutError: there is something else, or no stream is as long as a row.
        ClaimedTreeError: a file is broken.
    """
    tokens, texts = _with(tree, _TOKENS), _with(tree, _TEXTS)
    if not tokens and not texts:
        msg = f"'{tree.label}' holds neither tokens (.bin) nor text ({', '.join(_TEXTS)})."
        raise EmptySourceError(msg)
    others = [entry for entry in tree.entries if not entry.name.lower().endswith((*_TOKENS, *_TEXTS, *_BESIDE))]
    if any("." in posixpath.basename(other.name) for other in others):
        msg = f"'{tree.label}' holds more than text and tokens: {count_kinds(others)}."
        raise LayoutError(msg)
    named = [entry for entry in tokens if _split_of(entry.name)]
    parts = [entry for entry in tokens if _ARRAY_WORDS & set(_words(entry.name))]
    if parts:
        msg = (
            f"'{parts[0].name}' is called like the inputs or labels of arrays (STL10's files are), not like tokens. "
            "Read it by numpy.fromfile, and save it as .npy."
        )
        raise LayoutError(msg)
    if len(named) < len(tokens) and (named or not texts):
        msg = f"'{next(e.name for e in tokens if e not in named)}' may hold anything; expected train.bin and val.bin."
        raise LayoutError(msg)
    if named:
        streams = {
            split: [open_tokens(tree, entry, options) for entry in entries]
            for split, entries in _by_split(named).items()
        }
    else:
        streams = {split: [make_tokens(tree, entries, options)] for split, entries in _by_split(texts).items()}
    return _table(tree, streams, options)


def _with(tree: Tree, suffixes: tuple[str, ...]) -> list[FileEntry]:
    names = ((entry, posixpath.basename(entry.name).lower()) for entry in tree.entries)
    return [entry for entry, base in names if base.endswith(suffixes) and not base.startswith(("readme", "license"))]


def _split_of(name: str) -> str:
    words = (split for word in _words(name) if (split := split_of_word(word)))
    return next(words, "") or split_of_folders(name)


def _words(name: str) -> list[str]:
    stem = posixpath.splitext(posixpath.basename(name))[0]
    return re.split(r"[^a-z0-9]+", stem.lower())


def _by_split(entries: Sequence[FileEntry]) -> dict[str, list[FileEntry]]:
    """Files by split, in the usual order; those that name none are for training."""
    found: dict[str, list[FileEntry]] = {}
    for entry in entries:
        found.setdefault(_split_of(entry.name), []).append(entry)
    if len(found) > 1 and "" in found:
        found["train"] = sorted(found.pop("") + found.get("train", []), key=lambda entry: entry.name)
    order = list(dict.fromkeys(SPLIT_NAMES.values()))
    return dict(sorted(found.items(), key=lambda item: order.index(item[0]) if item[0] else 0))


def _table(tree: Tree, streams: dict[str, list[TokenStream]], options: TokenOptions) -> SampleTable:
    extra = 1 if options.next_tokens else 0
    rows = [
        (split, stream, (stream.count - extra) // options.length)
        for split, parts in streams.items()
        for stream in parts
        if stream.count - extra >= options.length
    ]
    total = sum(stream.count for parts in streams.values() for stream in parts)
    if not rows:
        msg = f"'{tree.label}' holds {total:,} tokens, too few for a row of {options.length:,}. Choose a shorter one."
        raise LayoutError(msg)
    dtype = np.result_type(*(stream.dtype for _, stream, _ in rows)).newbyteorder("=")

    def side(shift: int) -> Arrays:
        parts = [_rows(stream, count, options.length, shift, dtype) for _, stream, count in rows]
        return Arrays(join_sources(parts), (options.length,), dtype)

    used = sum(count for _, _, count in rows)
    return SampleTable(
        layout=NAME,
        keys=tuple(f"{stream.name}[{row}]" for _, stream, count in rows for row in range(count)),
        inputs=side(0),
        targets=side(1) if options.next_tokens else None,
        splits=tuple(split for split, _, count in rows for _ in range(count)) if rows[0][0] else None,
        notes=(_note(total, used, options, str(dtype)),),
    )


def _note(total: int, rows: int, options: TokenOptions, dtype: str) -> str:
    targets = ", with the next ones as targets" if options.next_tokens else ""
    left = total - rows * options.length
    return (
        f"{total:,} tokens are {rows:,} rows of {options.length:,} {dtype} tokens{targets}; {left:,} at the ends were "
        "left out."
    )


def _rows(stream: TokenStream, count: int, length: int, shift: int, dtype: np.dtype[np.generic]) -> SampleSource:
    row_bytes = length * stream.dtype.itemsize
    starts = stream.start + shift * stream.dtype.itemsize + np.arange(count, dtype=np.int64) * row_bytes
    source = FileSlices(
        stream.content, starts, np.full(count, row_bytes, np.int64), stamp=stream.stamp, shape=(length,),
        dtype=stream.dtype,
    )  # fmt: skip
    return source if stream.dtype == dtype else ConvertedRows(source, lambda row: row.astype(dtype))
