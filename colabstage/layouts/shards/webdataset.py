"""WebDataset's shards: tars in which the files of a sample share their name up to the first dot.

One tar may be the tree itself, several may be joined to it, or any number of them lie in it.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.fields import Images
from colabstage.layouts.names import IMAGE_EXTENSIONS
from colabstage.layouts.shards.sample_labels import Label, make_labels, names_of, parse_label
from colabstage.layouts.shards.shard_files import open_shard
from colabstage.layouts.shards.shard_source import Shard, ShardParts, scan_each, shard_of, splits_of_shards
from colabstage.layouts.shards.webdataset_shard import PackedSample, ShardSamples, has_samples, scan_shard
from colabstage.layouts.table import SampleTable
from colabstage.trees.entries import extension_of, file_names, files_ending_in
from colabstage.trees.joined import JoinedTree
from colabstage.trees.tar import TarTree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.trees.tree import FileEntry, Tree

NAME = "webdataset"

_SHARDS = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
# A txt longer than this, in characters, is a caption.
_MAX_CLASS_NAME = 100


def read_webdataset(tree: Tree) -> SampleTable:
    """Make a table of a tar, or of the tars in a tree, as WebDataset's `TarWriter` makes them.

    x is a sample's jpg, jpeg, png, webp or other image; y its cls, the label in its json, or its txt, where that is a
    class and no caption. Splits are those that all shards are called after (train-000001.tar, val/000.tar). Keys name
    the shard and the image in it; the samples' own need not be unique.

    Raises:
        EmptySourceError: there are no tars.
        LayoutError: they hold no images with files of the same name beside them.
        ClaimedTreeError: a sample is broken; it is named.
        CorruptArchiveError, UnsafeArchiveError: a shard is no whole tar.
    """
    openers = _shard_openers(tree)
    first = _scan(openers, 0)
    if not any(sample.annotated for sample in first[1].samples):
        raise _declined(tree)
    scanned = [first, *scan_each(len(openers) - 1, lambda number: _scan(openers, number + 1))]
    shards = [shard for shard, _ in scanned]
    samples = [sample for _, found in scanned for sample in found.samples]
    names = [f"{shards[sample.image.shard].name}/{sample.name}" for sample in samples]
    labels = _labels(samples)
    targets, classes = make_labels(labels, names, names=names_of(labels, [sample.text for sample in samples]))
    splits = splits_of_shards([shard.name for shard in shards])
    return SampleTable(
        layout=NAME,
        keys=tuple(names),
        inputs=Images(ShardParts(shards, [sample.image for sample in samples], names)),
        targets=targets,
        splits=None if splits is None else tuple(splits[sample.image.shard] for sample in samples),
        classes=classes,
        notes=_notes(sum(found.without for _, found in scanned), labelled=targets is not None),
    )


def _shard_openers(tree: Tree) -> list[Callable[[], Shard]]:
    """How to open each tar: the tree itself, the parts that it is joined of, or those that lie in it."""
    own = _own_tars(tree)
    if own:
        if not has_samples(file_names(tree.entries)):
            raise _declined(tree)
        names = _unique([posixpath.basename(part.label) for part in own])
        return [_own_opener(name, part) for name, part in zip(names, own, strict=True)]
    files = files_ending_in(tree.entries, tuple(extension_of(shard) for shard in _SHARDS))
    inside = files.where(lambda name: name.lower().endswith(_SHARDS))
    if not inside:
        msg = f"'{tree.label}' holds no tars."
        raise EmptySourceError(msg)
    if files_ending_in(tree.entries, IMAGE_EXTENSIONS):
        raise _declined(tree)
    return [_inner_opener(tree, entry) for entry in inside]


def _own_tars(tree: Tree) -> list[TarTree]:
    """The tars that a tree is made of, where it is made of tars only."""
    parts = [tree]
    if isinstance(tree, JoinedTree):
        parts = list(dict.fromkeys(tree.origin(entry)[0] for entry in tree.entries))
    tars = [part for part in parts if isinstance(part, TarTree)]
    return tars if len(tars) == len(parts) else []


def _own_opener(name: str, tree: TarTree) -> Callable[[], Shard]:
    return lambda: Shard(name, f"{name!r} {tree.source.size}", tree.source)


def _inner_opener(tree: Tree, entry: FileEntry) -> Callable[[], Shard]:
    return lambda: shard_of(entry, open_shard(tree, entry))


def _unique(names: Sequence[str]) -> list[str]:
    """Names of which none is there twice: tars of several folders may be called the same."""
    return [name if names.count(name) == 1 else f"{number}/{name}" for number, name in enumerate(names)]


def _scan(openers: Sequence[Callable[[], Shard]], number: int) -> tuple[Shard, ShardSamples]:
    shard = openers[number]()
    return shard, scan_shard(shard, number)


def _declined(tree: Tree) -> LayoutError:
    return LayoutError(
        f"'{tree.label}' is no WebDataset: expected tars in which images have a .cls, .json or .txt of the same name "
        "beside them, and no images outside of them."
    )


def _labels(samples: Sequence[PackedSample]) -> list[Label]:
    """Labels of cls and json, or else the texts, where they are classes: short, and fewer than samples."""
    labels = [sample.label for sample in samples]
    if any(label is not None for label in labels):
        return labels
    texts = [sample.caption or "" for sample in samples]
    are_classes = all(0 < len(text) <= _MAX_CLASS_NAME for text in texts) and 2 * len(set(texts)) <= len(texts)
    return [parse_label(text) for text in texts] if are_classes else labels


def _notes(without: int, *, labelled: bool) -> tuple[str, ...]:
    notes = []
    if without:
        notes.append(f"{without:,} samples of the shards have no image and were left out.")
    if not labelled:
        notes.append("The samples have no label in a cls or json, and texts that are captions; only images are kept.")
    return tuple(notes)
