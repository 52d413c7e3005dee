"""WebDataset's tars: each is scanned once for the places of its images, and for the labels between them.

One tar may be the tree itself, several may be joined to it, or any number of them are in it.
"""

from __future__ import annotations

import json
import posixpath
import re
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, EmptySourceError, LayoutError, SourceChangedError
from colabstage.io.arguments import show_content
from colabstage.layouts.columns import same_partition
from colabstage.layouts.evidence import left_out_notes, near
from colabstage.layouts.formats.masks import find_masks
from colabstage.layouts.reading import broken
from colabstage.layouts.records import (
    Label,
    Labels,
    Part,
    ScanMemory,
    ScanWindow,
    ShardFile,
    ShardParts,
    all_have,
    are_classes,
    decode_label,
    make_labels,
    names_of,
    open_shard,
    parse_label,
    records_state,
    scan_each,
    splits_of_field,
)
from colabstage.layouts.stored import ClipOptions, clip_rows, decode_npy
from colabstage.layouts.table import Arrays, Images
from colabstage.layouts.words import IMAGES, SOUNDS, SPLIT_FIELDS, label_names, plain_name
from colabstage.trees.names import clean_member_name, extension_of, is_junk
from colabstage.trees.tar import scan_members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.layouts.evidence import Found
    from colabstage.layouts.reading import Source
    from colabstage.layouts.table import SampleSource
    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import Tree

NAME = "webdataset"
_SHARDS = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
EXTENSIONS = tuple(extension_of(shard) for shard in _SHARDS)

_KEY_AND_REST = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
# The kinds of content by the rest of a name, by preference; WebDataset's own examples ask for "jpg;png".
_KINDS = (
    dict.fromkeys(("jpg", "jpeg", "png", "webp", *(ending[1:] for ending in IMAGES)), "image")
    | {"npy": "npy"}
    | dict.fromkeys(sorted(ending[1:] for ending in SOUNDS), "sound")
)
_NUMBERS, _DOCUMENT, _TEXT = ("cls", "class", "label"), "json", "txt"
_LABELS = (*_NUMBERS, _DOCUMENT, _TEXT)
_MASKS = ("seg.png", "mask.png", "segmentation.png", "labels.png")
_LABEL_ENDS = tuple(f".{rest}" for rest in (*_LABELS, *_MASKS))
# Samples that WebDataset's own decoders read, and nothing here.
_UNREAD = frozenset({"pth", "pt", "pyd", "pkl", "pickle", "npz", "ten", "tb", "mp4", "avi"})
_LABELS_IN_JSON = ("label", "labels", "cls", "class_id", "class_index", "class", "target", "category")
_NAMES_IN_JSON = ("class_name", "classname", "label_name", "label_text", "class", "category")
# What is longer is not a label.
_MAX_LABEL_BYTES = 1 << 20
# Clips, where nothing is said about them: of one length, rate and number of channels.
_AS_THEY_ARE = ClipOptions()


class PackedSample(NamedTuple):
    """Files that share a name up to the first dot, one of them an image, an array or a clip of sound."""

    name: str
    """Of that, in its shard."""
    content: Part
    kind: str
    """"image", "npy" or "sound"."""
    mask: Part | None
    label: Label
    """From its cls or json."""
    text: str | None
    """The label in words, where the json has both."""
    caption: str | None
    annotated: bool
    """Whether it has a mask, cls, json or txt at all."""
    other: Label = None
    """What its json says beside its cls."""
    split: tuple[str, str] | None = None
    """The field of its json that says which split it is of, and what is there."""


class ShardSamples(NamedTuple):
    """The samples of one shard."""

    samples: list[PackedSample]
    without: int
    """How many have no image, array or clip."""
    left: frozenset[str]
    """What files of samples end in that are read by nobody."""


# The place and name of content or of a mask; what may be a label; or nothing of any other file.
_Files = dict[str, tuple[Part, str] | bytes | None]


def scan_shard(shard: ShardFile, number: int) -> ShardSamples:
    """Find every sample of a shard, in one pass over it."""
    window = ScanWindow(shard)
    # One small dict for each sample: there may be a million, and the words for their kinds are the same for all.
    groups: dict[str, _Files] = {}
    kinds: dict[str, str] = {}
    for member in scan_members(window):
        name = clean_member_name(window.label, member.name) if member.kind == "file" else ""
        key, rest = _split_name(name)
        if not key or is_junk(name):
            continue
        rest = kinds.setdefault(rest, rest)
        files = groups.setdefault(key, {})
        if rest in files:
            raise broken(shard.name, f"it holds '{name}' twice", "one file of each kind for each sample")
        files[rest] = None
        if rest in _KINDS or rest in _MASKS:
            files[rest] = (Part(number, member.offset, member.size), name)
        # A label is read while the tar is scanned; what is larger is none.
        elif rest in _LABELS and member.size <= _MAX_LABEL_BYTES:
            files[rest] = window.pread(member.size, member.offset)
    # Hundreds of shards may follow, and a process may open so many files only.
    window.close()
    samples: list[PackedSample] = []
    left: set[str] = set()
    count = len(groups)
    for key in list(groups):
        # What was found of each goes when the sample has been made of it.
        files = groups.pop(key)
        contents = [rest for rest in _KINDS if isinstance(files.get(rest), tuple)]
        if contents:
            samples.append(_as_sample(f"{shard.name}/{key}", contents[0], files))
        if any(one is not None for one in files.values()):
            left |= {rest for rest, one in files.items() if one is None}
            # An array beside an image is not read; another form of the image need not be.
            left |= {rest for rest in contents[1:] if _KINDS[rest] != "image"}
    return ShardSamples(samples, count - len(samples), frozenset(left))


def _as_sample(address: str, rest: str, files: _Files) -> PackedSample:
    places = {end: one for end, one in files.items() if isinstance(one, tuple)}
    texts = {end: decode_label(one, address) for end in _LABELS if isinstance(one := files.get(end), bytes)}
    written = next((texts[end] for end in _NUMBERS if end in texts), None)
    label, text, split = None, None, None
    if _DOCUMENT in texts:
        label, text, split = _read_document(address, texts[_DOCUMENT], needed=written is None)
    other = None if written is None else label
    if written is not None:
        label = parse_label(written)
    kind, mask = _KINDS[rest], next((places[end][0] for end in _MASKS if end in places), None)
    # A text beside a clip is what is said in it, in many collections that are no shards.
    annotated = bool(texts.keys() - ({_TEXT} if kind == "sound" else set())) or mask is not None
    content, name = places[rest]
    return PackedSample(name, content, kind, mask, label, text, texts.get(_TEXT), annotated, other, split)


def _split_name(name: str) -> tuple[str, str]:
    """Return what WebDataset takes for the sample's key, and the rest in lower case; "" for neither."""
    match = _KEY_AND_REST.fullmatch(name)
    return ("", "") if match is None else (match[1], match[2].lower())


def has_samples(names: Sequence[str]) -> bool:
    """Tell whether, of files of these names, an image, array or clip and a possible label share theirs up to the first
    dot."""
    # Labels first, which most tars of a million files have none of.
    labels: dict[str, set[str]] = {}
    for key, rest in map(_split_name, filter(lambda name: name.lower().endswith(_LABEL_ENDS), names)):
        if rest in (*_LABELS, *_MASKS):
            labels.setdefault(key, set()).add(rest)
    return any(
        rest in _KINDS and key in labels and (labels[key] != {_TEXT} or _KINDS[rest] != "sound")
        for key, rest in map(_split_name, names if labels else ())
    )


def _read_document(address: str, content: str, *, needed: bool) -> tuple[Label, str | None, tuple[str, str] | None]:
    """Return the label in a json, its name there, and the field of its split; if the label is `needed`, one that is no
    label is an error."""
    file = f"{address}.json"
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise broken(file, f"it is not JSON ({error})") from error
    if not isinstance(found, dict):
        return (found if isinstance(found, int | str) else None), None, None
    called = label_names(found, _LABELS_IN_JSON)
    label = next((found[key] for key in called if isinstance(found[key], int | float | str)), None)
    odd = next((key for key in called if found[key] is not None and plain_name(key) in _LABELS_IN_JSON), None)
    if needed and label is None and odd is not None:
        raise broken(file, f"it has {show_content(found[odd])} under '{odd}'", "one number or word")
    text = next((found[key] for key in _NAMES_IN_JSON if isinstance(found.get(key), str)), None)
    splits = ((key, str(value)) for key, value in found.items() if isinstance(value, str | int))
    return label, text, next((pair for pair in splits if plain_name(pair[0]) in SPLIT_FIELDS), None)


def webdataset_state(source: Source, *, sound: ClipOptions = _AS_THEY_ARE) -> Found:
    """Read a tar, or the tars in a tree, as WebDataset's `TarWriter` makes them.

    x is a sample's jpg, jpeg, png, webp or other image, or else its npy, or its wav, flac or other clip, of which
    `sound` says what rows are; y its mask (seg.png), or its cls, the label in its json, or its txt, where that is a
    class and no caption. Splits are those that all shards are called after
    (train-000001.tar, val/000.tar). Keys name the shard and the image in it; the samples' own need not be unique.
    """
    shards = _shards_of(source)
    first = scan_shard(shards[0], 0)
    # The first shard tells, before hundreds of others are scanned.
    if not any(sample.annotated for sample in first.samples):
        return _declined(source, first.left)
    scanned = [first, *scan_each(shards[1:], lambda number, shard: scan_shard(shard, number + 1))]
    samples = [sample for found in scanned for sample in found.samples]
    names = [f"{shards[sample.content.shard].name}/{sample.name}" for sample in samples]
    notes: list[str] = []
    masks = [sample.mask for sample in samples]
    if all_have(masks, names, "mask"):
        found = find_masks(ShardParts(shards, [mask for mask in masks if mask], names), spread=False)
        labels = Labels(found, found.classes)
        if any(sample.label is not None for sample in samples):
            notes.append("The samples have masks and labels; the masks are the targets, and the labels were left out.")
    else:
        labels = _labels_of(samples, names)
    without = sum(found.without for found in scanned)
    notes += left_out_notes((without, "samples", "of the shards without an image, array or clip"))
    left = sorted(frozenset().union(*(found.left for found in scanned)))
    if left:
        notes.append(f"Other files of the samples were left out: {', '.join(left)}.")
    if labels.targets is None:
        notes.append("The samples have no label in a cls or json, and texts that are captions; only images are kept.")
    parts = np.array([sample.content for sample in samples], np.int64)
    inputs = _make_inputs(ShardParts(shards, parts, names), [one.kind for one in samples], sound, notes)
    who, called = "fields of the samples", [shard.name for shard in shards]
    named = next((sample.split[0] for sample in samples if sample.split is not None), "")
    cells = [sample.split[1] if sample.split is not None else "" for sample in samples] if named else ()
    splits = splits_of_field(names[0], named, cells) if named else ()
    notes += [f"Splits are as '{named}' says."] if splits else []
    return records_state(
        NAME, who, inputs, labels, shards=called, shard_of=parts[:, 0], field="cls", notes=notes, stated=splits
    )


def _labels_of(samples: Sequence[PackedSample], names: Sequence[str]) -> Labels:
    # A cls or json is a label on purpose; a txt may be one.
    labels = [sample.label for sample in samples]
    others = [sample.other for sample in samples]
    if None not in others and not same_partition(labels, others):
        what = f"it is '{labels[0]}' by its cls and '{others[0]}' by its json, and these divide the samples differently"
        raise broken(names[0], what, "shards with one of the two, or a function as layout=")
    if all(label is None for label in labels):
        # A txt is a class where it is short and others say the same; else it is a caption.
        texts = [sample.caption or "" for sample in samples]
        labels = [parse_label(text) for text in texts] if are_classes(texts) else [None] * len(texts)
    return make_labels(labels, names, names=names_of(labels, [sample.text for sample in samples], names))


def _make_inputs(source: SampleSource, kinds: Sequence[str], sound: ClipOptions, notes: list[str]) -> Images | Arrays:
    odd = next((number for number, kind in enumerate(kinds) if kind != kinds[0]), None)
    if odd is not None:
        what = f"it and '{source.name(0)}' are of two kinds"
        raise broken(source.name(odd), what, "images, arrays or clips for all")
    if kinds[0] == "image":
        return Images(source)
    if kinds[0] == "sound":
        rows, note = clip_rows(source, sound)
        notes.append(note)
        return rows
    try:
        first = decode_npy(source.read(0))
    except DecodeError as error:
        raise broken(source.name(0), f"it cannot be used ({error})") from error
    return Arrays(source, first.shape, first.dtype, decode=decode_npy)


def _shards_of(source: Source) -> list[ShardFile]:
    """Return the tars that a tree is made of, or that are in it."""
    tree, memory, parts = source.tree, ScanMemory(), source.tree.parts()
    # Tars that are opened themselves are not searched again inside the tree that they make up.
    tars = [part.source for part in parts if part.kind == "tar" and part.source is not None]
    own = tars if len(tars) == len(parts) else []
    inside = source.ending_in(EXTENSIONS).where(lambda name: not own and name.lower().endswith(_SHARDS))
    if not (own or inside):
        msg = f"'{source.label}' holds no tars."
        raise EmptySourceError(msg)
    # A picture in a readme is no dataset; more images than shards are one.
    if not has_samples(source.files.names) if own else len(source.ending_in(IMAGES)) > len(inside):
        raise _misfit(source)
    if not own:
        return [open_shard(tree, entry, memory) for entry in inside]
    # Tars of several folders may be called the same, and samples are named after their shard.
    names = [posixpath.basename(tar.label) for tar in own]
    names = [name if names.count(name) == 1 else f"{number}/{name}" for number, name in enumerate(names)]
    return [
        ShardFile(name, f"{name!r} {tar.size}", partial(_own_tar, tree, number, tar.size), memory)
        for number, (name, tar) in enumerate(zip(names, own, strict=True))
    ]


def _own_tar(tree: Tree, number: int, size: int) -> ByteSource:
    """Return one of the tars that a tree is made of."""
    found = tree.parts()[number].source
    if found is None or found.size != size:
        msg = f"'{tree.label}' is made of other tars than those that were scanned. Start again."
        raise SourceChangedError(msg)
    return found


def _misfit(source: Source) -> LayoutError:
    return LayoutError(
        f"'{source.label}' is not a WebDataset: expected tars in which images, arrays or clips have a .cls, .json or "
        ".txt of the same name beside them, and no images outside of them."
    )


def _declined(source: Source, left: frozenset[str]) -> Found:
    """Return how to read what nothing here reads, or raise what was expected."""
    unread = sorted(left & _UNREAD)
    if not unread:
        raise _misfit(source)
    return near(
        f"The samples in the tars of '{source.label}' are {', '.join(unread)}, which are not read from tars. Pass "
        "pack_dataset what WebDataset makes of them: "
        f"list(webdataset.WebDataset(URL).decode().to_tuple({unread[0]!r}, 'cls'))."
    )
