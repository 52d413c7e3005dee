"""WebDataset's tars: each is scanned once for the places of its images, and for the labels between them.

One tar may be the tree itself, several may be joined into it, or it may contain any number of them.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import re
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, LayoutError, SourceChangedError
from colabstage.layouts.evidence import Found, Miss, left_out_notes, require_files, size_in_file
from colabstage.layouts.formats.masks import masks_of_records
from colabstage.layouts.reading import Source, broken
from colabstage.layouts.records import (
    Part,
    ScanMemory,
    ScanWindow,
    ShardFile,
    ShardParts,
    all_have,
    box_fields,
    boxes_in,
    boxes_of_records,
    decode_label,
    fields_of,
    is_known_field,
    join_fields,
    labelled_shards,
    labels_of_fields,
    open_shard,
    parse_label,
    records_state,
    scan_each,
)
from colabstage.layouts.stored import AS_THEY_ARE, ClipOptions, clip_rows, decode_npy
from colabstage.layouts.table import Arrays, Images, SampleSource
from colabstage.layouts.words import IMAGES, SOUNDS
from colabstage.trees.names import clean_member_name, extension_of, is_junk
from colabstage.trees.tar import scan_members

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
_ROLES = dict.fromkeys(_KINDS, "content") | {end: end for end in _LABELS}
# What the boxes in a json are called here, wherever they are in it.
_OBJECTS = "boxes of the json"
_MASKS = ("seg.png", "mask.png", "segmentation.png", "labels.png")
_LABEL_ENDS = tuple(f".{rest}" for rest in (*_LABELS, *_MASKS))
# Longer files are not labels.
_MAX_LABEL_BYTES = 1 << 20


class PackedSample(NamedTuple):
    """Files that share a name up to the first dot, one of them an image, an array or a sound clip."""

    name: str
    """The place of that file in its shard."""
    content: Part
    kind: str
    """"image", "npy" or "sound"."""
    mask: Part | None


class ShardSamples(NamedTuple):
    samples: list[PackedSample]
    fields: dict[str, list[Any]]
    """What they state, by field: the cls, the txt, and the fields of the json."""
    are_labelled: bool
    """Whether any of them has a mask, cls, json or txt at all."""
    without: int
    """How many have no image, array or clip."""
    left: frozenset[str]
    """The endings of samples' files that nothing reads."""
    unread: frozenset[str]
    """The fields of their json that state neither labels nor splits."""
    odd: str
    """A key with several images, arrays or clips, none of which is called as one is; "" for none."""


# For content or a mask, its place and name; for a possible label, its bytes; `None` for other files.
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
        last = rest.rpartition(".")[2]
        if last in _KINDS:
            files[rest] = (Part(number, member.offset, member.size), name)
        # A label is read while the tar is scanned; a larger file is not a label.
        elif last in _LABELS and member.size <= _MAX_LABEL_BYTES:
            files[rest] = window.pread(member.size, member.offset)
    # Hundreds of shards may follow, and a process may open only so many files.
    window.close()
    samples: list[PackedSample] = []
    stated: list[dict[str, Any]] = []
    left, unread = set[str](), set[str]()
    are_labelled, count, odd = False, len(groups), ""
    for key in list(groups):
        # Each entry is dropped once its sample has been made.
        files = _bare(groups.pop(key))
        places = {end: one for end, one in files.items() if isinstance(one, tuple)}
        contents = [end for end in _KINDS if end in places]
        if contents:
            kind, (content, name) = _KINDS[contents[0]], places[contents[0]]
            mask = next((places[end][0] for end in _MASKS if end in places), None)
            samples.append(PackedSample(name, content, kind, mask))
            stated.append(_stated(f"{shard.name}/{key}", files, unread))
            are_labelled |= _is_labelled(kind, [end for end, one in files.items() if one is not None])
        elif len(places.keys() - {*_MASKS}) > 1:
            odd = odd or f"{shard.name}/{key}.{min(places)}"
        if any(one is not None for one in files.values()):
            used = {*contents[:1], *[end for end in _MASKS if end in places][:1]}
            left |= {end for end, one in files.items() if end not in _LABELS or one is None} - used
    without = count - len(samples)
    return ShardSamples(samples, fields_of(stated), are_labelled, without, frozenset(left), frozenset(unread), odd)


def _bare(files: _Files) -> _Files:
    """Return the files of a sample by their last ending, where only one has it: label.cls is its cls."""
    if not any("." in end for end in files):
        return files
    roles = {end: _ROLES.get(end.rpartition(".")[2], "") for end in files if end not in _MASKS}
    counts = Counter(filter(None, roles.values()))
    alone = {end: end.rpartition(".")[2] for end, role in roles.items() if counts[role] == 1}
    return {alone.get(end, end): file for end, file in files.items()}


def _is_labelled(kind: str, ends: Iterable[str]) -> bool:
    """Tell whether one of the files of a sample may label it."""
    # A text beside a clip is often its transcript, in collections that are not shards.
    return any(end in _MASKS or (end in _LABELS and (end, kind) != (_TEXT, "sound")) for end in ends)


def _stated(address: str, files: _Files, unread: set[str]) -> dict[str, Any]:
    """Return what the files of a sample state, by field; further fields of the json are added to `unread`."""
    texts = {end: decode_label(one, address) for end in _LABELS if isinstance(one := files.get(end), bytes)}
    fields: dict[str, Any] = {}
    if _DOCUMENT in texts:
        try:
            document = json.loads(texts[_DOCUMENT])
        except (ValueError, RecursionError) as error:
            where = f"{address}.json"
            raise broken(where, f"it is not JSON ({error})") from error
        fields = document if isinstance(document, dict) else {"label": document}
    about = box_fields(address, fields)
    filled = {name: value for name, value in fields.items() if value not in ([], None) and name not in about}
    found = {name: value for name, value in filled.items() if is_known_field(name)}
    unread |= filled.keys() - found.keys()
    if fields:
        found[_OBJECTS] = fields[about[0]] if len(about) == 1 else {name: fields[name] for name in about}
    of_files: dict[str, Any] = {end: parse_label(texts[end]) for end in _NUMBERS if end in texts}
    of_files |= {_TEXT: texts[_TEXT]} if _TEXT in texts else {}
    # A field of the json and a file may have the same name.
    return of_files | {f"json.{name}" if name in of_files else name: value for name, value in found.items()}


def _split_name(name: str) -> tuple[str, str]:
    """Return what WebDataset takes for the sample's key, and the rest in lower case; "" for neither."""
    match = _KEY_AND_REST.fullmatch(name)
    return ("", "") if match is None else (match[1], match[2].lower())


def has_samples(names: Sequence[str]) -> bool:
    """Tell whether, among files of these names, an image, array or clip and a possible label share a name up to the
    first dot."""
    # Labels first, because most tars of a million files have none.
    may_have = any(name.lower().endswith(_LABEL_ENDS) for name in names)
    for key, own in itertools.groupby(map(_split_name, names if may_have else ()), lambda one: one[0]):
        ends = _bare(dict.fromkeys(rest for _, rest in own))
        if key and any(end in _KINDS and _is_labelled(_KINDS[end], ends) for end in ends):
            return True
    return False


def webdataset_state(source: Source, *, sound: ClipOptions = AS_THEY_ARE) -> Found:
    """Read a tar, or the tars in a tree, as WebDataset's `TarWriter` makes them.

    x is a sample's jpg, jpeg, png, webp or other image, or otherwise its npy, or its wav, flac or other clip, whose
    rows `sound` describes; y its mask (seg.png), or its cls, the label in its json, or its txt, if that is a class and
    not a caption. Splits are those in the names of all shards (train-000001.tar, val/000.tar). Keys name the shard and
    the image in it; the samples' own need not be unique.
    """
    shards = _shards_of(source)
    first = scan_shard(shards[0], 0)
    # The first shard decides, before hundreds of others are scanned.
    if not first.are_labelled:
        return Miss(_misfit(source), near=bool(first.odd))
    scanned = [first, *scan_each(shards[1:], lambda number, shard: scan_shard(shard, number + 1))]
    for odd in filter(None, (found.odd for found in scanned)):
        raise broken(odd, "it is one of several images, arrays or clips of a sample", "one, or one called .jpg alone")
    called, who = [shard.name for shard in shards], "fields of the samples"
    boxes = [found.fields.get(_OBJECTS) or [None] * len(found.samples) for found in scanned]
    targets = [
        [sample.mask or boxes_in(own) for sample, own in zip(found.samples, objects, strict=True)]
        for found, objects in zip(scanned, boxes, strict=True)
    ]
    kept, lost = labelled_shards(called, [one.fields for one in scanned], targets)
    scanned = [scanned[number] for number in kept]
    samples = [sample for found in scanned for sample in found.samples]
    names = [f"{shards[sample.content.shard].name}/{sample.name}" for sample in samples]
    fields = join_fields([(found.fields, len(found.samples)) for found in scanned])
    masks = [sample.mask for sample in samples]
    parts = np.array([sample.content for sample in samples], np.int64)
    contents, objects = ShardParts(shards, parts, names), fields.pop(_OBJECTS, [])
    if any(map(boxes_in, objects)) and all_have(objects, names, "json"):
        if any(masks):
            raise broken(names[0], "it and others have boxes and masks as well", "one of them; give layout= a function")
        labels = boxes_of_records(objects, names, partial(size_in_file, contents), lambda _: ())
    elif all_have(masks, names, "mask"):
        labels = masks_of_records(source, ShardParts(shards, [mask for mask in masks if mask], names))
    else:
        labels = labels_of_fields(fields, names, first=(*_NUMBERS, *(f"json_{name}" for name in _NUMBERS)))
    without = sum(found.without for found in scanned)
    notes = [*lost, *left_out_notes((without, "samples", "of the shards without an image, array or clip"))]
    left = sorted(frozenset().union(*(found.left for found in scanned)))
    if left:
        notes.append(f"Other files of the samples were left out: {', '.join(left)}.")
    if labels.targets is None:
        notes.append("The samples have no label in a cls or json, and texts that are captions; only images are kept.")
    inputs = _make_inputs(contents, [one.kind for one in samples], sound, notes)
    unread = sorted(frozenset().union(*(found.unread for found in scanned)))
    fields |= {name: list[Any]() for name in unread}
    return records_state(NAME, who, inputs, labels, shards=called, shard_of=parts[:, 0], fields=fields, notes=notes)


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
    # Tars that are opened themselves are not searched again inside the tree that they form.
    tars = [part.source for part in parts if part.kind == "tar" and part.source is not None]
    own = tars if len(tars) == len(parts) else []
    inside = source.ending_in(EXTENSIONS).where(lambda name: not own and name.lower().endswith(_SHARDS))
    require_files(own or inside, source, "tars")
    if own and not has_samples(source.files.names):
        raise _misfit(source)
    if not own:
        return [open_shard(tree, entry, memory) for entry in inside]
    # Tars from several folders may share a name, and samples are named after their shard.
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
        ".txt of the same name, which ends at its first dot, beside them; of several images one is called .jpg alone."
    )
