"""One of WebDataset's tars, scanned once: where its images lie, and the labels that lie between them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from colabstage.layouts.names import IMAGE_EXTENSIONS
from colabstage.layouts.shards.sample_labels import Label, parse_label
from colabstage.layouts.shards.shard_source import Part, ScanWindow, Shard, rest_shard
from colabstage.layouts.table import ClaimedTreeError
from colabstage.trees.names import clean_member_name, is_junk
from colabstage.trees.tar import scan_members

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEY_AND_REST = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
# By preference; WebDataset's own examples ask for "jpg;png".
_IMAGES = tuple(dict.fromkeys(("jpg", "jpeg", "png", "webp", *(ending[1:] for ending in IMAGE_EXTENSIONS))))
_NUMBERS, _DOCUMENT, _TEXT = ("cls", "class", "label"), "json", "txt"
_LABELS = frozenset({*_NUMBERS, _DOCUMENT, _TEXT})
_LABELS_IN_JSON = ("label", "cls", "class_id", "class_index", "class", "target", "category")
_NAMES_IN_JSON = ("class_name", "classname", "label_name", "label_text", "class", "category")
# What is longer is no label.
_MAX_LABEL_BYTES = 1 << 20


class PackedSample(NamedTuple):
    """Files that share a name up to the first dot, one of them an image.

    `name`: of the image, in its shard. `image`: where that lies. `label`: from its cls or json. `text`: the label in
    words, where the json has both. `caption`: its txt. `annotated`: whether it has a cls, json or txt at all.
    """

    name: str
    image: Part
    label: Label
    text: str | None
    caption: str | None
    annotated: bool


class ShardSamples(NamedTuple):
    """The samples of one shard that have an image, and how many have none."""

    samples: list[PackedSample]
    without: int


class _Files(NamedTuple):
    """The files of one sample by the rest of their names: places of images, contents of labels."""

    images: dict[str, tuple[str, Part]]
    labels: dict[str, bytes]
    others: set[str]


def has_samples(names: Iterable[str]) -> bool:
    """Whether, of files of these names, an image and a possible label share theirs up to the first dot."""
    images: set[str] = set()
    labels: set[str] = set()
    for key, rest in filter(None, map(_split_name, names)):
        if rest in _IMAGES:
            images.add(key)
        elif rest in _LABELS:
            labels.add(key)
    return not images.isdisjoint(labels)


def scan_shard(shard: Shard, number: int) -> ShardSamples:
    """Find every sample of a shard, in one pass over it.

    Args:
        shard: a tar, not compressed.
        number: which of the shards it is.

    Raises:
        ClaimedTreeError: a sample has two files of one kind, or a json that is none.
        CorruptArchiveError, UnsafeArchiveError, ArchiveError: as for `trees.TarTree`.
        OSError, SourceReadError: it cannot be read.
    """
    window = ScanWindow(shard.content)
    groups: dict[str, _Files] = {}
    for member in scan_members(window):
        name = clean_member_name(window.label, member.name) if member.kind == "file" else ""
        split = _split_name(name)
        if split is None or is_junk(name):
            continue
        key, rest = split
        files = groups.setdefault(key, _Files({}, {}, set()))
        if rest in files.images or rest in files.labels or rest in files.others:
            msg = f"'{shard.name}' holds '{name}' twice; expected one file of each kind for each sample."
            raise ClaimedTreeError(msg)
        if rest in _IMAGES:
            files.images[rest] = (name, Part(number, member.offset, member.size))
        elif rest in _LABELS and member.size <= _MAX_LABEL_BYTES:
            files.labels[rest] = window.pread(member.size, member.offset)
        else:
            files.others.add(rest)
    rest_shard(shard)
    samples = [_sample(f"{shard.name}/{key}", files) for key, files in groups.items() if files.images]
    return ShardSamples(samples, len(groups) - len(samples))


def _split_name(name: str) -> tuple[str, str] | None:
    """What WebDataset takes for the sample's key, and the rest in lower case."""
    match = _KEY_AND_REST.fullmatch(name)
    return None if match is None else (match[1], match[2].lower())


def _sample(address: str, files: _Files) -> PackedSample:
    name, image = next(files.images[rest] for rest in _IMAGES if rest in files.images)
    written = next((files.labels[rest] for rest in _NUMBERS if rest in files.labels), None)
    label, text = None, None
    if _DOCUMENT in files.labels:
        label, text = _document_label(address, files.labels[_DOCUMENT], needed=written is None)
    if written is not None:
        label = parse_label(_decode(address, written))
    caption = _decode(address, files.labels[_TEXT]).strip() if _TEXT in files.labels else None
    return PackedSample(name, image, label, text, caption, annotated=bool(files.labels))


def _decode(address: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"The label of '{address}' is no text: {content[:20]!r}."
        raise ClaimedTreeError(msg) from error


def _document_label(address: str, content: bytes, *, needed: bool) -> tuple[Label, str | None]:
    """The label in a json, and what it is called there; where that is `needed`, one that is no label is an error."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        msg = f"'{address}.json' is no JSON: {error}."
        raise ClaimedTreeError(msg) from error
    if not isinstance(found, dict):
        return (found, None) if isinstance(found, int | str) else (None, None)
    label = next((found[key] for key in _LABELS_IN_JSON if isinstance(found.get(key), int | float | str)), None)
    odd = next((key for key in _LABELS_IN_JSON if found.get(key) is not None), None)
    if needed and label is None and odd is not None:
        msg = (
            f"'{address}.json' has {str(found[odd])[:60]} under '{odd}', which is no label; expected one number or "
            "word. Give layout= a function that reads it."
        )
        raise ClaimedTreeError(msg)
    text = next((found[key] for key in _NAMES_IN_JSON if isinstance(found.get(key), str)), None)
    return label, text
