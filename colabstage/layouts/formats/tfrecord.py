"""TFRecord files of image examples: one tf.train.Example for each sample, as TensorFlow's tools and TFDS write them.

A record is its length (8 bytes), a checksum of that, the data, and a checksum of the data; checksums are CRC-32C
(Castagnoli). An Example is a protobuf message that maps names to lists of byte strings, floats or integers. It is
parsed here, so that neither TensorFlow nor protobuf need be installed, and images are skipped while labels are read.
"""

from __future__ import annotations

import functools
import itertools
import math
import posixpath
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import ColabstageError, CorruptArchiveError, LayoutError
from colabstage.io.files import read_with_retry
from colabstage.io.units import counted
from colabstage.layouts.evidence import Evidence, left_out_notes, require_files
from colabstage.layouts.formats.masks import is_mask_name, mask_field, masks_of_records
from colabstage.layouts.reading import Source, broken
from colabstage.layouts.records import (
    BOX_KEYS,
    BOX_LABELS,
    FURTHER,
    BoxForm,
    FoundForm,
    Labels,
    Part,
    ScanMemory,
    ScanWindow,
    ShardFile,
    ShardParts,
    all_have,
    box_fields,
    boxes_in,
    boxes_of_records,
    fields_of,
    is_known_field,
    join_fields,
    labelled_shards,
    labels_of_fields,
    open_shard,
    records_state,
    scan_each,
)
from colabstage.layouts.table import Content, Images, Masks, SampleSource
from colabstage.layouts.words import RECORDS, is_group_name, stem_of
from colabstage.trees.bytes import image_ending

if TYPE_CHECKING:
    from numpy.typing import NDArray


# TensorFlow's `crc32c::Mask`.
_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")

NAME = "tfrecord"
# x.tfrecord, x.tfrecord-00000-of-00008, x.tfrec.gz; and train.record and train-00000-of-01024, which may be anything.
_UNNAMED = re.compile(r".*(\.record|-\d{5}-of-\d{5})")
EXTENSIONS = (".tfrecord", ".tfrecords", ".tfrec", ".record", ".gz", ".zst", "")
# What TFDS calls the names of a feature's classes: label.labels.txt.
_CLASSES = ".labels.txt"
_IMAGES = ("image/encoded", "image", "image_raw", "img", "encoded", "jpeg", "image/data", "image_bytes")
_CORNERS = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_MASKS = ("image/segmentation/class/encoded", "segmentation_mask", "image/mask", "mask", "label/encoded")
# Features with the size of an image that is stored as pixels.
_SIZES = (
    ("height", "image/height", "rows"),
    ("width", "image/width", "cols"),
    ("depth", "channels", "image/channels", "image/depth"),
)
_OF_BOXES = {"label": "image/object/class/label", "class_name": "image/object/class/text"}
# What TensorFlow's own converters say of the file besides, and what is read.
_OF_FILES = ("format", "colorspace", "filename", "source_id", "key/sha256", *itertools.chain(*_SIZES))
_NO_LABELS = {*_CORNERS, *_MASKS, *_OF_BOXES.values(), *_OF_FILES, *map("image/{}".format, _OF_FILES)}
# What TFDS says of boxes in its features.json; where it does not say, because it could not once, it is REL_YXYX.
_FORMS: dict[str, BoxForm] = {"YXYX": "yxyx", "XYXY": "xyxy", "XYWH": "xywh"}
_HAS_BOXES, _BOX_FORM = "BBoxFeature", re.compile(r'"bboxFormat":\s*"(REL_)?(YXYX|XYXY|XYWH)"')
# Longer records are read in parts while they are scanned, this much of each feature at once.
_SHORT_BYTES, _HEAD_BYTES = 16 * 1024, 512
# The longest label, and how much of a text is read; of a list that is not a label so many values are shown.
_MOST_LABEL_BYTES, _MOST_TEXT_BYTES, _SHOWN_VALUES = 400, 64 * 1024, 8

# --- records ----------------------------------------------------------------------------------------------------------


def masked_crc32c(data: bytes) -> int:
    """Return the checksum as TFRecord files store it: rotated and offset, so that a checksum of checksums works.

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    # Imported late, because this module is loaded with every layout, and few trees have records.
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF


def _is_record_head(head: bytes) -> bool:
    """Tell whether a TFRecord file begins like this, by the checksum of the first record's length."""
    return len(head) >= _HEADER.size and bool(_HEADER.unpack_from(head)[1] == masked_crc32c(head[:8]))


def _scan_records(source: ScanWindow) -> Iterator[tuple[int, int]]:
    """Yield where the data of each record is: first byte and length."""
    at = number = 0
    while at < source.size:
        head = source.pread(_HEADER.size, at)
        if len(head) == _HEADER.size and not _is_record_head(head):
            msg = f"'{source.label}' is damaged at byte {at:,}: the length of its record {number} is not readable."
            raise CorruptArchiveError(msg)
        length = _HEADER.unpack(head)[0] if len(head) == _HEADER.size else 0
        start = at + _HEADER.size
        at = start + length + _CRC.size
        if at > source.size:
            msg = f"'{source.label}' is truncated: it ends inside its record {number}. Copy or upload it again."
            raise CorruptArchiveError(msg)
        yield start, length
        number += 1


def _check_record(stored: bytes, name: str) -> bytes:
    """Return the data of a record, given the data and the checksum after it."""
    data = stored[: -_CRC.size]
    if _CRC.unpack(stored[-_CRC.size :])[0] != masked_crc32c(data):
        msg = f"'{name}' is damaged: its content does not match its checksum. Copy or upload the file again."
        raise CorruptArchiveError(msg)
    return data


# --- examples ---------------------------------------------------------------------------------------------------------

_VARINT, _BYTES = 0, 2
_FIRST_BYTES, _SECOND_BYTES = 1 << 3 | _BYTES, 2 << 3 | _BYTES
_FIXED = {1: 8, 5: 4}
_STRINGS, _FLOATS = 1, 2
# The tag and the length of a field, of ten bytes each at most.
_TAG_BYTES = 20
# Reads some of a record's bytes: from the first to before the last.
Read = Callable[[int, int], bytes]


class Span(NamedTuple):
    """Bytes inside a record's data: the first, and the one after the last."""

    start: int
    end: int


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an integer, and where the next field begins."""
    value = 0
    # Ten bytes hold 64 bits; damage may have no end.
    for shift in range(0, 64, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    msg = f"a number at byte {at:,} that never ends"
    raise ValueError(msg)


def _fields(read: Read, span: Span) -> Iterator[tuple[int, Span]]:
    """Yield the tag of each field of a message, and where its value is; the values themselves are not read."""
    at, end = span
    while at < end:
        head = read(at, at + _TAG_BYTES)
        tag, start = head[0], 1
        # Nearly all tags and lengths are of one byte.
        if tag > 127:
            tag, start = _varint(head, 0)
        kind = tag & 7
        if kind == _BYTES:
            length, start = _varint(head, start) if head[start] > 127 else (head[start], start + 1)
            stop = start + length
        elif kind == _VARINT:
            _, stop = _varint(head, start)
        elif kind in _FIXED:
            stop = start + _FIXED[kind]
        else:
            msg = f"a field of kind {kind}"
            raise ValueError(msg)
        # A length that reaches too far would take in other fields' bytes.
        if at + stop > end or tag < 8:
            msg = f"a field at byte {at:,} ends after its message, at byte {end:,}"
            raise ValueError(msg)
        yield tag, Span(at + start, at + stop)
        at += stop


def _ahead(read: Read, start: int) -> Read:
    """Return the same, holding what is at `start`: a pass over a long record does not go back to a short feature."""
    head = read(start, start + _HEAD_BYTES)
    # A shorter one has all bytes to the end of the record.
    end = start + len(head) if len(head) == _HEAD_BYTES else math.inf
    return lambda first, last: head[first - start : last - start] if last <= end else read(first, last)


def _messages(read: Read, span: Span) -> Iterator[Span]:
    """Yield the messages, or byte strings, in field 1 of another one."""
    # Unknown fields are skipped, as protobuf requires: newer writers may add some.
    return (inner for tag, inner in _fields(read, span) if tag == _FIRST_BYTES)


def _numbers(read: Read, kind: int, values: Span) -> list[Any]:
    """Return the floats or integers of a feature."""
    found: list[Any] = []
    # Packed, as every writer does today, or one by one, as the format also allows: the bytes are the same.
    for _, span in _fields(read, values):
        data, at = read(*span), 0
        if kind == _FLOATS:
            found += struct.unpack(f"<{len(data) // 4}f", data)
            continue
        while at < len(data):
            number, at = _varint(data, at)
            # Negative numbers are written in two's complement of 64 bits.
            found.append(number - (1 << 64) if number >> 63 else number)
    return found


class _Record(NamedTuple):
    """What a record states about its image."""

    name: str
    stored: Part
    """Its data and checksum, in its shard."""
    image: Span
    """Where in the data it is, like the mask."""
    mask: Span | None
    shape: tuple[int, ...]
    """Height, width and depth of pixels; empty for an image file."""
    objects: dict[str, list[Any]] | None
    """Its boxes, and what is stated of each, by field; `None` if it has none of their features."""


class _Example:
    """The features of one record; only requested ones are read."""

    def __init__(self, read: Read, length: int, name: str) -> None:
        self.name, self.read = name, read
        # For each feature whether it holds byte strings, floats or integers, where their list is, and what reads it.
        self.features: dict[str, tuple[int, Span, Read]] = {}
        self._none = 0, Span(0, 0), read
        # A map is written as messages of key and value.
        for entry in (one for features in _messages(read, Span(0, length)) for one in _messages(read, features)):
            own = _ahead(read, entry.start)
            key, found = "", self._none
            for tag, span in _fields(own, entry):
                if tag == _FIRST_BYTES:
                    key = own(*span).decode()
                # If one feature has several lists, the last counts, as in a protobuf oneof.
                for kind, values in _fields(own, span) if tag == _SECOND_BYTES else ():
                    found = (kind >> 3, values, own) if kind & 7 == _BYTES else found
            self.features[key] = found

    def values(self, name: str) -> list[Any]:
        """Return the values of a feature; for byte strings, where they are."""
        kind, span, read = self.features.get(name, self._none)
        return list(_messages(read, span)) if kind == _STRINGS else _numbers(read, kind, span)

    def first(self, name: str) -> Span | None:
        """Return the first byte string of a feature, unless it is empty, which some writers use for none."""
        kind, values, read = self.features.get(name, self._none)
        span = next(_messages(read, values), None) if kind == _STRINGS else None
        return span if span is not None and span.end > span.start else None

    def only(self, name: str) -> Span | None:
        """Return the same of an image. Raises `BrokenDatasetError`: there are several."""
        if (count := len(self.values(name))) > 1:
            expected = "one in each record; items (x, y) of a dataset object may hold all"
            raise broken(self.name, f"it has {count} images in '{name}'", expected)
        return self.first(name)

    def is_image(self, span: Span) -> bool:
        return bool(image_ending(self.read(span.start, min(span.end, span.start + 16))))

    def shape(self, image: Span) -> tuple[int, ...]:
        """Return height, width and depth of an image stored as pixels; nothing if it is a file, or another length."""
        stated = ([side for name in names for side in self.values(name) if isinstance(side, int)] for names in _SIZES)
        (height, *_), (width, *_), (depth, *_) = ([*sides, 0] for sides in stated)
        length = image.end - image.start
        # Four bytes for each pixel may be a float.
        depth = depth or (3 if 3 * height * width == length else 1)
        fits = height * width * depth == length and depth in (1, 3, 4) and not self.is_image(image)
        return (height, width, depth) if fits else ()

    def image_feature(self) -> str:
        """Return the feature that holds an image file, otherwise the pixels of one; "" if none does."""
        # Common names come first: a thumbnail may be beside the image.
        spans = {name: span for name in (*_IMAGES, *self.features) if (span := self.first(name)) is not None}
        files = (name for name, span in spans.items() if self.is_image(span))
        return next(files, "") or next((name for name, span in spans.items() if self.shape(span)), "")

    def fields(self, image: str, lengths: dict[str, int]) -> dict[str, Any]:
        """Return what each feature that may be a label, split or group states, besides that of the image. `lengths`: of
        each in the first record that has it; this adds to them."""
        found: dict[str, list[Any]] = {}
        for name in self.features:
            field = _field_of(name) if name != image else ""
            values = self._texts(name) if field else []
            if values and found.setdefault(field, values) != values:
                raise broken(self.name, f"it has another {field} in '{name}'", "one of the two")
        return {field: _one(values, lengths.setdefault(field, len(values))) for field, values in found.items()}

    def _texts(self, name: str) -> list[Any]:
        """Return the values of a feature, with byte strings as texts; for one too long for a label, its first bytes."""
        return [self._text(name, value) if isinstance(value, Span) else value for value in self.values(name)]

    def _text(self, name: str, span: Span) -> str | bytes:
        head = self.features[name][2](span.start, min(span.end, span.start + _MOST_TEXT_BYTES))
        try:
            return head.decode()
        except UnicodeDecodeError as error:
            if len(head) > _MOST_LABEL_BYTES or is_group_name(_short(name)):
                return head[:_MOST_LABEL_BYTES]
            raise broken(self.name, f"its '{name}' is not text") from error

    def objects(self, box: str) -> dict[str, list[Any]] | None:
        """Return its boxes, as TensorFlow's object detection has them or in a feature of TFDS, and what is stated of
        each; `None` if it has none of these features."""
        corners = [self.values(box)[side::4] for side in range(4)] if box else [*map(self.values, _CORNERS)]
        if not any(name in self.features for name in (box, *_CORNERS)):
            return None
        beside = {name: f"{posixpath.dirname(box)}/{name}" for name in (*BOX_LABELS, *FURTHER)} if box else _OF_BOXES
        stated = {name: values for name, feature in beside.items() if (values := self._texts(feature))}
        return {BOX_KEYS[-1]: list(zip(*corners, strict=True)), **stated}

    def as_record(self, stored: Part, image: Span, box: str) -> _Record:
        spans = {name: span for name in filter(_is_mask, self.features) if (span := self.first(name)) is not None}
        masks = [name for name, span in spans.items() if self.is_image(span)]
        mask = next((name for name in _MASKS if name in masks), "") or mask_field(self.name, masks, "")
        return _Record(self.name, stored, image, self.only(mask), self.shape(image), self.objects(box))


@contextmanager
def _example(window: ScanWindow, start: int, length: int, name: str) -> Iterator[_Example]:
    """Read the Example of one record; anything in it that cannot be read is an error that names it."""

    def read_part(first: int, last: int) -> bytes:
        return window.pread(min(last, length) - first, start + first)

    data = window.pread(length, start) if length <= _SHORT_BYTES else b""
    read = (lambda first, last: data[first:last]) if data else read_part
    try:
        yield _Example(read, length, name)
    except ColabstageError:
        raise
    except (ValueError, IndexError, struct.error) as error:
        # An unreadable message is damage if its checksum is wrong, and not an Example if it is right.
        _check_record(window.pread(length + _CRC.size, start), name)
        raise broken(name, f"it is not a tf.train.Example, or cut off ({error})") from error


# --- files ------------------------------------------------------------------------------------------------------------


def tfrecord_state(source: Source) -> Evidence:
    """Read TFRecord files with an encoded image in each Example.

    x is image/encoded, image or another feature that holds an image file, or otherwise the pixels of one, whose height
    and width the record states; y the boxes in image/object/bbox, or a mask (image/segmentation/class/encoded), or
    otherwise image/class/label or label. Integers stay unchanged, even if they count from 1; a list of zeros and one 1
    counts as the position of the 1; image/class/text names them. Splits are those in the names of all files
    (train-00000-of-01024).
    """
    shards = _record_files(source)
    described = source.ending_in((".json",)).where(lambda name: posixpath.basename(name) == "features.json")
    form = next(filter(None, map(_form_of, source.texts(described).values())), None)
    window, lengths = ScanWindow(shards[0], _SHORT_BYTES), dict[str, int]()
    with _example(window, *next(_scan_records(window)), f"{shards[0].name}[0]") as first:
        image = first.image_feature()
        if image:
            first.fields(image, lengths)
    ends = [name for name in first.features if name.endswith(f"/{BOX_KEYS[-1]}")] if form else []
    box = next(iter(box_fields(source.label, {name: {BOX_KEYS[-1]: []} for name in ends})), "")
    if not image:
        msg = (
            f"The first record of '{source.label}' holds no image file (JPEG, PNG, GIF, BMP, TIFF, WebP) but the "
            f"features {', '.join(sorted(first.features)) or 'of no Example'}. Give layout= a function that reads it."
        )
        raise LayoutError(msg)
    scanned = scan_each(shards, lambda number, shard: _scan_shard(shard, number, image, lengths, box))
    names, who = [shard.name for shard in shards], "fields of the records"
    targets = [[one.mask or boxes_in(one.objects) for one in found] for found, *_ in scanned]
    kept, lost = labelled_shards(names, [stated for _, stated, _ in scanned], targets)
    scanned = [scanned[number] for number in kept]
    records = [record for found, _, _ in scanned for record in found]
    fields = join_fields([(stated, len(found)) for found, stated, _ in scanned])
    odd = next((record for record in records if bool(record.shape) is not bool(records[0].shape)), None)
    if odd is not None:
        what = f"its image has another form than that of '{records[0].name}'"
        raise broken(odd.name, what, "image files alone, or pixels alone, each of the height and width beside them")
    notes = [*lost, *left_out_notes((sum(count for *_, count in scanned), "records", f"without '{image}'"))]
    parts = np.array([record.stored for record in records], np.int64).reshape(-1, 3)
    stored = ShardParts(shards, parts, [record.name for record in records])
    lists = source.ending_in((".txt",)).where(lambda name: name.endswith(_CLASSES))
    named = {name: _short(stem_of(stem_of(name)).replace("-", "/")) for name in lists.names}
    classes = {named[name]: text.splitlines() for name, text in source.texts(lists).items()}
    labels = _labels_of(source, records, fields, stored, classes=classes, box=box, form=form)
    shapes = np.array([record.shape for record in records], np.int64).reshape(-1, 3)
    inputs = Images(_inside(stored, [record.image for record in records], shapes), decoded=bool(len(shapes)))
    # What may be a label by another name, and is not read.
    others = [name for name in first.features if not _field_of(name) and name not in (image, *_NO_LABELS)]
    fields |= {_short(name): [] for name in others if not (_is_mask(name) and isinstance(labels.targets, Masks))}
    unknown = next((name for name in others if name.endswith("/bbox")), None)
    if labels.targets is None and unknown is not None:
        raise broken(first.name, f"its '{unknown}' may be boxes in any form", "features.json, as TFDS writes it beside")
    files = [name for name, field in named.items() if field in labels.used]
    labels = labels._replace(files=(*labels.files, *files, *(described.names if box else ())))
    return records_state(NAME, who, inputs, labels, shards=names, shard_of=parts[:, 0], fields=fields, notes=notes)


def _record_files(source: Source) -> list[ShardFile]:
    files = source.ending_in(EXTENSIONS)
    named = files.where(lambda name: RECORDS.fullmatch(name) is not None)
    entries = named or files.where(lambda name: _UNNAMED.fullmatch(name) is not None)
    require_files(entries, source, "TFRecord files (.tfrecord, .tfrec, train-00000-of-00008)")
    memory = ScanMemory()
    # Writers that divide rows among many files leave some empty.
    shards = [open_shard(source.tree, entry, memory) for entry in entries if entry.size]

    def fits(_: int, shard: ShardFile) -> bool:
        head = read_with_retry(lambda: shard.pread(_HEADER.size, 0), shard.name)
        shard.rest()
        return _is_record_head(head)

    wrong = [shard for shard, one_fits in zip(shards, scan_each(shards, fits), strict=True) if not one_fits]
    if named and wrong:
        msg = (
            f"'{wrong[0].name}' is not a TFRecord file, or its beginning is damaged. Files compressed with gzip or "
            "Zstandard are read, those with ZLIB are not."
        )
        raise CorruptArchiveError(msg)
    if wrong or not shards:
        msg = f"'{source.label}' holds no TFRecord files that have any record."
        raise LayoutError(msg)
    return shards


def _scan_shard(
    shard: ShardFile, number: int, image: str, lengths: dict[str, int], box: str
) -> tuple[list[_Record], dict[str, list[Any]], int]:
    """Return every record of a file that has an image, what these state, and how many have none, in one pass."""
    window = ScanWindow(shard, _SHORT_BYTES)
    records, stated = [], []
    count = 0
    for start, length in _scan_records(window):
        with _example(window, start, length, f"{shard.name}[{count}]") as example:
            found = example.only(image)
            if found is None and (other := example.image_feature()):
                raise broken(example.name, f"its image is in '{other}', and that of others in '{image}'", "one name")
            if found is not None:
                records.append(example.as_record(Part(number, start, length + _CRC.size), found, box))
                stated.append(example.fields(image, lengths))
        count += 1
    window.close()
    return records, fields_of(stated), count - len(records)


# All records have the same features.
@functools.lru_cache(maxsize=1024)
def _field_of(feature: str) -> str:
    """Return the name of a feature that may be a label, split or group, without the slashes of TensorFlow's names:
    class_label for image/class/label; "" for any other."""
    field = _short(feature)
    return field if is_known_field(field) else ""


@functools.lru_cache(maxsize=1024)
def _is_mask(feature: str) -> bool:
    return feature in _MASKS or is_mask_name(_short(feature))


def _short(feature: str) -> str:
    return feature.removeprefix("image/").replace("/", "_")


def _one(values: list[Any], length: int) -> Any:
    """Return the only value, or the position of the only 1 among zeros; the first of others, which are no label."""
    is_place = len(values) == length and values.count(1) == 1 and values.count(0) == length - 1
    return values[0] if len(values) == length == 1 else values.index(1) if is_place else values[:_SHOWN_VALUES]


def _inside(
    records: SampleSource, spans: Sequence[Span], shapes: Sequence[Any] | NDArray[np.int64] = ()
) -> SampleSource:
    """Return a span of each record, given these with their checksums, or the pixels in it if it has `shapes`; reading
    one verifies its whole record."""
    ends = np.array(spans, np.int64).reshape(-1, 2)
    read = functools.partial(_read_inside, records, ends, shapes)
    return SampleSource(ends[:, 1] - ends[:, 0], records.positions, name=records.name, stamp=records.stamp, read=read)


def _read_inside(
    records: SampleSource, ends: NDArray[np.int64], shapes: Sequence[Any] | NDArray[np.int64], index: int
) -> Content:
    data = _check_record(bytes(records.read(index)), records.name(index))[slice(*ends[index])]
    return np.frombuffer(data, np.uint8).reshape(shapes[index]) if len(shapes) else data


def _labels_of(
    source: Source,
    records: Sequence[_Record],
    fields: Mapping[str, list[Any]],
    stored: ShardParts,
    *,
    classes: Mapping[str, Sequence[str]],
    box: str,
    form: FoundForm | None,
) -> Labels:
    """Return the targets: boxes or masks if there are any, because a label beside boxes is most often that of the
    first. `classes`: what the numbers in a field stand for. `box`, `form`: the feature of TFDS with boxes, and how."""
    names = [record.name for record in records]
    masks = [record.mask for record in records]
    bare = sum(record.objects is None for record in records)
    if bare < len(records):
        if any(masks):
            what = f"it and others have boxes ('{box or _CORNERS[0]}', …) and masks as well"
            raise broken(names[0], what, "one of them; give layout= a function")
        objects = [record.objects for record in records]
        folder = posixpath.dirname(box)
        found = boxes_of_records(
            objects,
            names,
            lambda _: None,
            lambda label: classes.get(_short(f"{folder}/{label}"), ()),
            found=form if box and form else _OF_OD,
        )
        # A feature without values is often not written at all.
        notes = [f"{counted(bare, 'records', 'have')} no features of boxes: kept without boxes."] if bare else []
        used = (_short(f"{folder}/{key}") for one in objects for key in one or ())
        return found._replace(used=tuple(dict.fromkeys(used)), notes=(*found.notes, *notes))
    if all_have(masks, names, "mask"):
        return masks_of_records(source, _inside(stored, [mask for mask in masks if mask]))
    return labels_of_fields(fields, names, classes=classes)


_OF_OD = FoundForm("xyxy", relative=True)


def _form_of(text: str) -> FoundForm | None:
    """Return how boxes are written by TFDS' features.json; `None` if it has none, or several forms."""
    stated = {*_BOX_FORM.findall(text)} or {("REL_", "YXYX")}
    (relative, form), *others = stated
    return FoundForm(_FORMS[form], relative=bool(relative)) if _HAS_BOXES in text and not others else None
