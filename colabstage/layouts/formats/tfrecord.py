"""TFRecord files of image examples: one tf.train.Example for each sample, as TensorFlow's tools and TFDS write them.

A record is its length (8 bytes), a checksum of that, the data, and a checksum of the data; checksums are CRC-32C
(Castagnoli). An Example is a protobuf message that maps names to lists of byte strings, floats or whole numbers. It is
parsed here, so that neither TensorFlow nor protobuf has to be installed.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from colabstage.errors import CorruptArchiveError, LayoutError
from colabstage.io.files import read_with_retry
from colabstage.io.units import counted
from colabstage.layouts.evidence import left_out_notes, require_files
from colabstage.layouts.mask_values import find_masks
from colabstage.layouts.records import Label, Labels, all_have, make_boxes, make_labels, names_of, records_state
from colabstage.layouts.samples import SampleSource
from colabstage.layouts.shards import (
    IMAGE_HEADS,
    Part,
    ScanMemory,
    ScanWindow,
    ShardFile,
    ShardParts,
    open_shard,
    scan_each,
)
from colabstage.layouts.table import BrokenDatasetError, Images

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.evidence import Evidence
    from colabstage.layouts.reading import Source
    from colabstage.layouts.samples import Content
    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import FileEntries, FileEntry

# TensorFlow's `crc32c::Mask`.
_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")

NAME = "tfrecord"
# x.tfrecord, x.tfrecord-00000-of-00008, x.tfrec.gz; and train-00000-of-01024, which may be anything.
_NAMED = re.compile(r".*\.(tfrecords?|tfrec)(-\d+-of-\d+)?(\.(gz|zst))?", re.IGNORECASE)
_NUMBERED = re.compile(r".*-\d{5}-of-\d{5}")
EXTENSIONS = (".tfrecord", ".tfrecords", ".tfrec", ".gz", ".zst", "")
_IMAGES = ("image/encoded", "image", "image_raw", "img", "encoded", "jpeg", "image/data", "image_bytes")
_LABELS = ("image/class/label", "label", "class", "class_id", "image/class/index", "target", "category")
_TEXTS = ("image/class/text", "class_name", "label_name", "label_text", "class/text", "image/class/synset", "text")
_CORNERS = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_MASKS = ("image/segmentation/class/encoded", "segmentation_mask", "image/mask", "mask", "label/encoded")
# The size of an image that is written as its pixels.
_SIZES = (
    ("height", "image/height", "rows"),
    ("width", "image/width", "cols"),
    ("depth", "channels", "image/channels", "image/depth"),
)
_BOX_LABEL, _BOX_TEXT = "image/object/class/label", "image/object/class/text"

# --- records ----------------------------------------------------------------------------------------------------------


def masked_crc32c(data: bytes) -> int:
    """Return the checksum as TFRecord files store it: rotated and moved, so that one of checksums is no trouble.

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    # Here, because this module is loaded with every layout, and few trees have records.
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF


def _is_record_head(head: bytes) -> bool:
    """Tell whether a TFRecord file begins so, by the checksum of the first record's length."""
    return len(head) >= _HEADER.size and bool(_HEADER.unpack_from(head)[1] == masked_crc32c(head[:8]))


def _scan_records(source: ByteSource) -> Iterator[tuple[int, int]]:
    """Yield where the data of each record lies: first byte and length."""
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
    """Return the data of a record, of the data and the checksum behind it."""
    data = stored[: -_CRC.size]
    if _CRC.unpack(stored[-_CRC.size :])[0] != masked_crc32c(data):
        msg = f"'{name}' is damaged: its content does not match its checksum. Copy or upload the file again."
        raise CorruptArchiveError(msg)
    return data


# --- examples ---------------------------------------------------------------------------------------------------------

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ByteSpan(NamedTuple):
    """A byte string inside a record's data."""

    start: int
    end: int
    """The byte behind its last."""


class BadMessageError(ValueError):
    """The bytes are no such message."""


def _message_fields(data: bytes, span: ByteSpan) -> Iterator[tuple[int, ByteSpan | int]]:
    """Yield the fields of a protobuf message: number, and a span of bytes or a whole number."""
    at = span.start
    while at < span.end:
        tag, at = _read_varint(data, at)
        field, kind = tag >> 3, tag & 7
        value: ByteSpan | int
        if kind == _VARINT:
            value, at = _read_varint(data, at)
        elif kind == _BYTES:
            length, at = _read_varint(data, at)
            value = ByteSpan(at, at + length)
            at += length
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
            value = int.from_bytes(data[at : at + length], "little")
            at += length
        else:
            msg = f"a field of kind {kind}"
            raise BadMessageError(msg)
        # A length that reaches too far would be taken for other fields' bytes.
        if at > span.end or field == 0:
            msg = f"a field at byte {at:,} ends after its message, of {span.end:,} bytes"
            raise BadMessageError(msg)
        yield field, value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a whole number, and where the next field begins."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        # Ten bytes hold 64 bits; damage may have no end.
        if shift > 63:
            msg = f"a number at byte {at:,} that never ends"
            raise BadMessageError(msg)


Feature = list[ByteSpan] | list[int] | list[float]


def parse_example(data: bytes) -> dict[str, Feature]:
    """Return the features of an Example by name; of byte strings only their spans. Any other bytes are a
    `BadMessageError`."""
    # Byte strings stay where they are, since an image would otherwise be copied once more.
    found: dict[str, Feature] = {}
    try:
        for field, features in _message_fields(data, ByteSpan(0, len(data))):
            # Fields that are not known are passed over, as protobuf wants it: newer writers may add some.
            if field != 1 or not isinstance(features, ByteSpan):
                continue
            for number, entry in _message_fields(data, features):
                # A map is written as messages of key and value.
                if number == 1 and isinstance(entry, ByteSpan):
                    name, feature = _entry(data, entry)
                    found[name] = feature
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        msg = f"it is cut off, or not a protobuf message ({error})"
        raise BadMessageError(msg) from error
    return found


def _entry(data: bytes, entry: ByteSpan) -> tuple[str, Feature]:
    spans = {number: value for number, value in _message_fields(data, entry) if isinstance(value, ByteSpan)}
    name = data[slice(*spans.get(1, (0, 0)))].decode()
    found: Feature = []
    for kind, values in _message_fields(data, spans.get(2, ByteSpan(0, 0))):
        if isinstance(values, ByteSpan):
            # Of several values in one feature the last counts, as protobuf has it for a oneof.
            found = {1: _strings, 2: _floats, 3: _integers}.get(kind, _strings)(data, values)
    return name, found


def _strings(data: bytes, values: ByteSpan) -> Feature:
    return [value for _, value in _message_fields(data, values) if isinstance(value, ByteSpan)]


def _floats(data: bytes, values: ByteSpan) -> Feature:
    found: list[float] = []
    for _, value in _message_fields(data, values):
        # Packed, as every writer of today has it; one by one is what the format allows as well.
        if isinstance(value, ByteSpan):
            found += struct.unpack(f"<{(value.end - value.start) // 4}f", data[value.start : value.end])
        else:
            found += struct.unpack("<f", struct.pack("<I", value))
    return found


def _integers(data: bytes, values: ByteSpan) -> Feature:
    found: list[int] = []
    for _, value in _message_fields(data, values):
        if not isinstance(value, ByteSpan):
            found.append(_signed(value))
            continue
        at = value.start
        while at < value.end:
            number, at = _read_varint(data, at)
            found.append(_signed(number))
    return found


def _signed(value: int) -> int:
    # Negative numbers are written in two's complement of 64 bits.
    return value - (1 << 64) if value >> 63 else value


class _Box(NamedTuple):
    """One box of an image."""

    corners: tuple[float, ...]
    """In parts of width and height."""
    label: Label
    text: str | None
    """The label in words, if the record has both."""


class _Record(NamedTuple):
    """A record that has an image."""

    name: str
    stored: Part
    """Its data and checksum, in its shard."""
    image: ByteSpan
    """Where in the data."""
    label: Label
    text: str | None
    """The label in words, if it has both."""
    boxes: list[_Box] | None
    """`None` if it has none of their features."""
    mask: ByteSpan | None
    """Where in the data."""
    shape: tuple[int, int, int] | None
    """Height, width and depth of pixels; `None` of an image file."""
    classes: int
    """How many a one-hot label tells apart; 0 of any other."""


class _Example:
    """The features of one record."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name
        self.features = parse_example(data)

    def is_image(self, span: ByteSpan) -> bool:
        return self.data[slice(*span)].startswith(IMAGE_HEADS)

    def first(self, feature: str) -> ByteSpan | None:
        """Return the first byte string of a feature, unless it is empty, as some writers say that there is none."""
        found = next(iter(self.features.get(feature, [])), None)
        return found if isinstance(found, ByteSpan) and found.end > found.start else None

    def shape(self, image: ByteSpan) -> tuple[int, int, int] | None:
        """Return height, width and depth of an image that is written as its pixels; `None` where its length does not
        say so."""
        found = ([number for name in names for number in self.features.get(name, ())][:1] for names in _SIZES)
        height, width, depth = (next(iter(numbers), 0) for numbers in found)
        if not (isinstance(height, int) and isinstance(width, int) and isinstance(depth, int)) or height * width < 1:
            return None
        depth = depth or (image.end - image.start) // (height * width)
        fits = depth in (1, 3, 4) and height * width * depth == image.end - image.start
        return (height, width, depth) if fits else None

    def image_feature(self) -> str:
        """Return the feature that holds an image file, or else the pixels of one; "" if none does."""
        # Names that everybody uses come first: a thumbnail may stand beside the image.
        order = [*_IMAGES, *(name for name in self.features if name not in _IMAGES)]
        spans = {name: span for name in order if (span := self.first(name)) is not None}
        files = (name for name, span in spans.items() if self.is_image(span))
        pixels = (name for name, span in spans.items() if self.shape(span) is not None)
        return next(files, "") or next(pixels, "")

    def as_record(self, stored: Part, image: ByteSpan) -> _Record:
        text = self._one(_TEXTS)
        masks = (span for name in _MASKS if (span := self.first(name)) is not None and self.is_image(span))
        return _Record(
            name=self.name,
            stored=stored,
            image=image,
            label=self._one(_LABELS),
            text=text if isinstance(text, str) else None,
            boxes=self._boxes(),
            mask=next(masks, None),
            shape=None if self.is_image(image) else self.shape(image),
            classes=next((len(found) for name in _LABELS if len(found := self.features.get(name, [])) > 1), 0),
        )

    def _one(self, names: Sequence[str]) -> Label:
        """Return the one value of the first of some features that there is."""
        name = next((name for name in names if self.features.get(name)), None)
        if name is None:
            return None
        values = self._values(name)
        if len(values) > 1 and sorted(values, key=str) == [0] * (len(values) - 1) + [1]:
            return values.index(1)
        if len(values) != 1:
            msg = f"'{self.name}' has {len(values):,} values in '{name}'; expected one label. Give layout= a function."
            raise BrokenDatasetError(msg)
        return values[0]

    def _values(self, name: str) -> list[Label]:
        feature = self.features.get(name, [])
        try:
            return [self.data[slice(*value)].decode() if isinstance(value, ByteSpan) else value for value in feature]
        except UnicodeDecodeError as error:
            msg = f"'{self.name}' has a label that is not text."
            raise BrokenDatasetError(msg) from error

    def _boxes(self) -> list[_Box] | None:
        if not any(name in self.features for name in _CORNERS):
            return None
        corners = [cast("list[float]", self.features.get(name, [])) for name in _CORNERS]
        labels, texts = self._values(_BOX_LABEL), self._values(_BOX_TEXT)
        counts = {len(values) for values in (*corners, labels or corners[0], texts or corners[0])}
        if len(counts) != 1 or not (labels or texts or not corners[0]):
            msg = f"'{self.name}' has corners, labels and names of boxes in different numbers."
            raise BrokenDatasetError(msg)
        rows = zip(zip(*corners, strict=True), labels or texts, texts or labels, strict=True)
        return [_Box(corner, label, text if isinstance(text, str) else None) for corner, label, text in rows]


# --- files ------------------------------------------------------------------------------------------------------------


def tfrecord_state(source: Source) -> Evidence:
    """Read TFRecord files with an encoded image in each Example.

    x is image/encoded, image or another feature that holds an image file, or else the pixels of one, whose height,
    width and depth the record says; y the boxes in image/object/bbox, or a mask (image/segmentation/class/encoded), or
    else image/class/label or label. Whole numbers stay what they are, also where they count from 1; of a list of zeros
    and one 1 the place of that counts; image/class/text names them. Splits are those that all files are called after
    (train-00000-of-01024).
    """
    shards = _record_files(source)
    window = ScanWindow(shards[0].content)
    first = _example_at(window, *next(_scan_records(window)), f"{shards[0].name}[0]")
    image = first.image_feature()
    if not image:
        msg = (
            f"The first record of '{source.label}' holds no image file (JPEG, PNG, GIF, BMP, TIFF, WebP) but the "
            f"features {', '.join(sorted(first.features)) or 'of no Example'}. Give layout= a function that reads it."
        )
        raise LayoutError(msg)
    scanned = scan_each(shards, lambda number, shard: _scan_shard(shard, number, image))
    records = [record for found, _ in scanned for record in found]
    odd = next((record for record in records if (record.shape is None) is not (records[0].shape is None)), None)
    if odd is not None:
        msg = f"Of '{records[0].name}' and '{odd.name}', only one holds an image file."
        raise BrokenDatasetError(msg)
    notes = left_out_notes((sum(count for _, count in scanned), "records", f"without '{image}'"))
    parts = np.array([record.stored for record in records], np.int64).reshape(-1, 3)
    stored = ShardParts(shards, parts, [record.name for record in records])
    labels = _labels_of_records(records, stored, notes)
    pixels = _within(stored, [record.image for record in records], [record.shape for record in records])
    inputs = Images(pixels, decoded=any(record.shape is not None for record in records))
    shard_names = [shard.name for shard in shards]
    return records_state(
        NAME, "fields of the records", inputs, labels, shards=shard_names, shard_of=parts[:, 0], notes=notes
    )


def named_records(source: Source) -> FileEntries:
    """Return the files that are named as TFRecord files are; nothing is read."""
    return source.ending_in(EXTENSIONS).where(lambda name: _NAMED.fullmatch(name) is not None)


def _record_files(source: Source) -> list[ShardFile]:
    named, files = named_records(source), source.ending_in(EXTENSIONS)
    entries = named or files.where(lambda name: _NUMBERED.fullmatch(name) is not None)
    require_files(entries, source, "TFRecord files (.tfrecord, .tfrec, train-00000-of-00008)")
    # Writers that share rows among many files leave some empty.
    filled = [entry for entry in entries if entry.size]

    memory = ScanMemory()

    def look(_: int, entry: FileEntry) -> tuple[ShardFile, bool]:
        shard = open_shard(source.tree, entry, memory)
        head = read_with_retry(lambda: shard.content.pread(_HEADER.size, 0), shard.name)
        shard.rest()
        return shard, _is_record_head(head)

    shards = scan_each(filled, look)
    wrong = next((shard for shard, fits in shards if not fits), None)
    if wrong is None and shards:
        return [shard for shard, _ in shards]
    if not named or wrong is None:
        msg = f"'{source.label}' holds no TFRecord files that have any record."
        raise LayoutError(msg)
    msg = (
        f"'{wrong.name}' is not a TFRecord file, or its beginning is damaged. Files compressed with gzip or Zstandard "
        "are read, those with ZLIB are not."
    )
    raise CorruptArchiveError(msg)


def _example_at(window: ScanWindow, start: int, length: int, name: str) -> _Example:
    try:
        return _Example(window.pread(length, start), name)
    except BadMessageError as error:
        # A message that cannot be read is damage where its checksum is wrong, and no Example where it is right.
        _check_record(window.pread(length + _CRC.size, start), name)
        msg = f"'{name}' is not a tf.train.Example: {error}."
        raise BrokenDatasetError(msg) from error


def _scan_shard(shard: ShardFile, number: int, image: str) -> tuple[list[_Record], int]:
    """Return every record of a file that has an image, and how many have none, in one pass over it."""
    window = ScanWindow(shard.content)
    records = []
    count = 0
    for start, length in _scan_records(window):
        example = _example_at(window, start, length, f"{shard.name}[{count}]")
        found = example.first(image)
        if found is not None:
            records.append(example.as_record(Part(number, start, length + _CRC.size), found))
        count += 1
    shard.rest()
    return records, count - len(records)


class _Within(SampleSource):
    """A span of each record, or the pixels there; reading one verifies its whole record.

    Args:
        records: the records, with their checksums.
        spans: first and last (exclusive) byte of each in its record, `(N, 2)`.
        shape: height, width and depth of the pixels of each, `(N, 3)`; zeros of image files.
    """

    def __init__(self, records: SampleSource, spans: NDArray[np.int64], shapes: NDArray[np.int64]) -> None:
        self._records, self._spans, self._shapes = records, spans, shapes
        sizes = spans[:, 1] - spans[:, 0]
        super().__init__(sizes, records.positions, name=records.name, stamp=records.stamp, read=self._read)

    def take(self, chosen: NDArray[np.integer[Any]]) -> SampleSource:
        return _Within(self._records.take(chosen), self._spans[chosen], self._shapes[chosen])

    def _read(self, index: int) -> Content:
        stored = bytes(self._records.read(index))
        data = _check_record(stored, self._records.name(index))[slice(*self._spans[index])]
        shape = self._shapes[index]
        return np.frombuffer(data, np.uint8).reshape(shape) if shape.any() else data


def _within(records: SampleSource, spans: Sequence[ByteSpan], shapes: Sequence[tuple[int, int, int] | None]) -> _Within:
    columns = [np.array(spans, np.int64), np.array([shape or (0, 0, 0) for shape in shapes], np.int64)]
    return _Within(records, columns[0].reshape(-1, 2), columns[1].reshape(-1, 3))


def _labels_of_records(records: Sequence[_Record], stored: SampleSource, notes: list[str]) -> Labels:
    """Return the targets: boxes or masks if there are any, because a label beside boxes is most often that of the
    first of them."""
    names = [record.name for record in records]
    masks = [record.mask for record in records]
    with_boxes = sum(record.boxes is not None for record in records)
    if with_boxes and any(masks):
        msg = (
            f"The records have boxes ('{_CORNERS[0]}', …) and masks as well (first '{names[0]}'); which are meant? "
            "Give layout= a function that reads one of them."
        )
        raise BrokenDatasetError(msg)
    if with_boxes:
        # A feature of no values is often not written at all.
        bare = len(records) - with_boxes
        notes += [f"{counted(bare, 'records', 'have')} no features of boxes: kept without boxes."] if bare else []
        return _boxes_of_records(records)
    if all_have(masks, names, "mask"):
        found = find_masks(_within(stored, [mask for mask in masks if mask], [None] * len(masks)), spread=False)
        return Labels(found, found.classes)
    odd = next((record for record in records if record.classes != records[0].classes), None)
    if odd is not None:
        msg = (
            f"'{names[0]}' has a label of {records[0].classes or 1} numbers and '{odd.name}' one of {odd.classes or 1};"
            " expected as many in all."
        )
        raise BrokenDatasetError(msg)
    # Without a label, a text is one where it is a class's name; the features called so say that it is.
    labels = [record.text if record.label is None else record.label for record in records]
    return make_labels(labels, names, names=names_of(labels, [record.text for record in records]))


def _boxes_of_records(records: Sequence[_Record]) -> Labels:
    boxes = [(record.name, box) for record in records for box in record.boxes or []]
    labels = [box.label for _, box in boxes]
    return make_boxes(
        [len(record.boxes or []) for record in records],
        np.array([box.corners for _, box in boxes], np.float64).reshape(-1, 4),
        labels,
        # A box has no name of its own, and its record has.
        [name for name, _ in boxes],
        names=names_of(labels, [box.text for _, box in boxes]),
        relative=True,
    )
