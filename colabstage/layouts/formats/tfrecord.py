"""TFRecord files of image examples: one tf.train.Example for each sample, as TensorFlow's tools and TFDS write them.

A record is its length (8 bytes), a checksum of that, the data, and a checksum of the data; checksums are CRC-32C
(Castagnoli). An Example is a protobuf message that maps names to lists of byte strings, floats or whole numbers. It is
parsed here, so that neither TensorFlow nor protobuf has to be installed.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from colabstage.errors import CorruptArchiveError, LayoutError
from colabstage.io.files import read_with_retry
from colabstage.io.units import counted
from colabstage.layouts.columns import note_on_numbers
from colabstage.layouts.evidence import Evidence, left_out_notes, require_files
from colabstage.layouts.labels import Label, make_labels, names_of
from colabstage.layouts.mask_values import find_masks
from colabstage.layouts.protobuf import BadMessageError, ByteSpan, message_fields, read_varint
from colabstage.layouts.samples import Samples
from colabstage.layouts.shards import (
    IMAGE_HEADS,
    Part,
    ScanWindow,
    ShardFile,
    open_shard,
    samples_of_shards,
    scan_each,
    splits_of_shards,
)
from colabstage.layouts.table import Boxes, BrokenDatasetError, Images, SampleTable, offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.reading import Source
    from colabstage.layouts.samples import Content, SampleSource
    from colabstage.layouts.table import Targets
    from colabstage.trees.bytes import ByteSource
    from colabstage.trees.listing import FileEntries, FileEntry

# TensorFlow's `crc32c::Mask`.
_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
FOOTER_BYTES = _CRC.size


Feature = list[ByteSpan] | list[int] | list[float]


def masked_crc32c(data: bytes) -> int:
    """Return the checksum as TFRecord files store it: rotated and moved, so that one of checksums is no trouble.

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    # Here, because this module is loaded with every layout, and few trees have records.
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF


def is_record_head(head: bytes) -> bool:
    """Tell whether a TFRecord file begins so, by the checksum of the first record's length."""
    # A file that is shorter than one header holds no record and is none.
    if len(head) < _HEADER.size:
        return False
    _, crc = _HEADER.unpack_from(head)
    return bool(crc == masked_crc32c(head[:8]))


def scan_records(source: ByteSource) -> Iterator[tuple[int, int]]:
    """Yield where the data of each record lies: first byte and length."""
    # Only headers are read: the data of each record is verified when it is read.
    at = number = 0
    while at < source.size:
        head = source.pread(_HEADER.size, at)
        if len(head) == _HEADER.size and not is_record_head(head):
            msg = f"'{source.label}' is damaged at byte {at:,}: the length of its record {number} is not readable."
            raise CorruptArchiveError(msg)
        length = _HEADER.unpack(head)[0] if len(head) == _HEADER.size else 0
        start = at + _HEADER.size
        at = start + length + FOOTER_BYTES
        if at > source.size:
            msg = f"'{source.label}' is truncated: it ends inside its record {number}. Copy or upload it again."
            raise CorruptArchiveError(msg)
        yield start, length
        number += 1


def check_record(stored: bytes, name: str) -> bytes:
    """Return the data of a record, of the data and the checksum behind it."""
    data = stored[:-FOOTER_BYTES]
    if _CRC.unpack(stored[-FOOTER_BYTES:])[0] != masked_crc32c(data):
        msg = f"'{name}' is damaged: its content does not match its checksum. Copy or upload the file again."
        raise CorruptArchiveError(msg)
    return data


def parse_example(data: bytes) -> dict[str, Feature]:
    """Return the features of an Example by name; of byte strings only where they are."""
    # Byte strings stay where they are, since an image would otherwise be copied once more.
    found: dict[str, Feature] = {}
    try:
        for field, features in message_fields(data, ByteSpan(0, len(data))):
            # Fields that are not known are passed over, as protobuf wants it: newer writers may add some.
            if field != 1 or not isinstance(features, ByteSpan):
                continue
            for number, entry in message_fields(data, features):
                # A map is written as messages of key and value.
                if number == 1 and isinstance(entry, ByteSpan):
                    name, feature = _entry(data, entry)
                    found[name] = feature
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        msg = f"it is cut off, or not a protobuf message ({error})"
        raise BadMessageError(msg) from error
    return found


def _entry(data: bytes, entry: ByteSpan) -> tuple[str, Feature]:
    name, feature = "", ByteSpan(0, 0)
    for number, value in message_fields(data, entry):
        if number == 1 and isinstance(value, ByteSpan):
            name = data[value.start : value.end].decode()
        elif number == 2 and isinstance(value, ByteSpan):
            feature = value
    found: Feature = []
    for kind, values in message_fields(data, feature):
        if isinstance(values, ByteSpan):
            # Of several values in one feature the last counts, as protobuf has it for a oneof.
            found = {1: _strings, 2: _floats, 3: _integers}.get(kind, _strings)(data, values)
    return name, found


def _strings(data: bytes, values: ByteSpan) -> Feature:
    return [value for _, value in message_fields(data, values) if isinstance(value, ByteSpan)]


def _floats(data: bytes, values: ByteSpan) -> Feature:
    found: list[float] = []
    for _, value in message_fields(data, values):
        # Packed, as every writer of today has it; one by one is what the format allows as well.
        if isinstance(value, ByteSpan):
            found += struct.unpack(f"<{(value.end - value.start) // 4}f", data[value.start : value.end])
        else:
            found += struct.unpack("<f", struct.pack("<I", value))
    return found


def _integers(data: bytes, values: ByteSpan) -> Feature:
    found: list[int] = []
    for _, value in message_fields(data, values):
        if not isinstance(value, ByteSpan):
            found.append(_signed(value))
            continue
        at = value.start
        while at < value.end:
            number, at = read_varint(data, at)
            found.append(_signed(number))
    return found


def _signed(value: int) -> int:
    # Negative numbers are written in two's complement of 64 bits.
    return value - (1 << 64) if value >> 63 else value


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


class _RecordBox(NamedTuple):
    """One box of an image."""

    corners: tuple[float, ...]
    """In parts of width and height."""
    label: Label
    """As a number."""
    text: str | None
    """In words; `None` where the record has none."""


class _Record(NamedTuple):
    """A record that has an image."""

    name: str
    """What the sample is called."""
    stored: Part
    """Its data and checksum, in its shard."""
    image: ByteSpan
    """Where in the data."""
    label: Label
    """`None` where it has none."""
    text: str | None
    """The label in words, where it has both."""
    boxes: list[_RecordBox] | None
    """`None` where it has none of their features."""
    mask: ByteSpan | None
    """Where in the data, `None` where it has none."""
    shape: tuple[int, int, int] | None
    """Height, width and depth of pixels; `None` of an image file."""
    classes: int
    """How many a one-hot label tells apart; 0 of any other."""


def images_of_records(
    records: SampleSource, spans: Sequence[ByteSpan], shapes: Sequence[tuple[int, int, int] | None] = ()
) -> Samples:
    """Return the image in each of N records, or its pixels where that is what they are; reading one verifies its whole
    record."""

    def read(index: int) -> Content:
        stored = records.read(index)
        data = check_record(bytes(stored), records.name(index))[slice(*spans[index])]
        shape = shapes[index] if shapes else None
        return data if shape is None else np.frombuffer(data, np.uint8).reshape(shape)

    sizes: NDArray[np.int64] = np.array([span.end - span.start for span in spans], np.int64)
    return Samples(sizes, records.positions, name=records.name, stamp=records.stamp, read=read)


def tfrecord_state(source: Source) -> Evidence:
    """Read TFRecord files with an encoded image in each Example.

    x is image/encoded, image or another feature that holds an image file, or else the pixels of one, whose height,
    width and depth the record says; y the boxes in image/object/bbox, or a mask (image/segmentation/class/encoded), or
    else image/class/label or label. Whole numbers stay what they are, also where they count from 1; of a list of zeros
    and one 1 the place of that counts; image/class/text names them. Splits are those that all files are called after
    (train-00000-of-01024).
    """
    shards = _record_files(source)
    image = _image_feature(source, shards)
    scanned = scan_each(shards, lambda number, shard: _scan_records(shard, number, image))
    records = [record for found, _ in scanned for record in found]
    names = [record.name for record in records]
    stored = [record.stored for record in records]
    parts = samples_of_shards(shards, stored, names)
    without = sum(count for _, count in scanned)
    notes = left_out_notes((without, "records", f"without '{image}'"))
    targets, classes = _targets_of_records(records, parts, notes)
    odd = next((record for record in records if (record.shape is None) is not (records[0].shape is None)), None)
    if odd is not None:
        msg = f"Of '{records[0].name}' and '{odd.name}', only one holds an image file."
        raise BrokenDatasetError(msg)
    values = getattr(targets, "values", None)
    notes += [] if values is None else note_on_numbers("label", values, classes)
    table = SampleTable(
        layout=NAME,
        keys=names,
        inputs=Images(
            images_of_records(parts, [record.image for record in records], [record.shape for record in records]),
            decoded=any(record.shape is not None for record in records),
        ),
        targets=targets,
        splits=splits_of_shards(shards, stored),
        classes=classes,
        notes=tuple(notes),
    )
    return Evidence(table, "fields of the records", frozenset(shard.name for shard in shards))


def named_records(source: Source) -> FileEntries:
    """Return the files that are named as TFRecord files are; nothing is read."""
    return source.ending_in(EXTENSIONS).where(lambda name: _NAMED.fullmatch(name) is not None)


def _record_files(source: Source) -> list[ShardFile]:
    named, files = named_records(source), source.ending_in(EXTENSIONS)
    entries = named or files.where(lambda name: _NUMBERED.fullmatch(name) is not None)
    require_files(entries, source, "TFRecord files (.tfrecord, .tfrec, train-00000-of-00008)")
    # Writers that share rows among many files leave some empty.
    filled = [entry for entry in entries if entry.size]

    def look(_: int, entry: FileEntry) -> tuple[ShardFile, bool]:
        shard = open_shard(source.tree, entry)
        head = read_with_retry(lambda: shard.content.pread(12, 0), shard.name)
        shard.rest()
        return shard, is_record_head(head)

    shards = scan_each(filled, look)
    wrong = next((shard for shard, fits in shards if not fits), None)
    if wrong is None and shards:
        return [shard for shard, _ in shards]
    if not named or wrong is None:
        msg = f"'{source.label}' holds no TFRecord files that have any record."
        raise LayoutError(msg)
    msg = (
        f"'{wrong.name}' is not a TFRecord file, or its beginning is damaged. Files compressed with gzip "
        "or Zstandard are read, those with ZLIB are not."
    )
    raise CorruptArchiveError(msg)


def _image_feature(source: Source, shards: Sequence[ShardFile]) -> str:
    """Return the feature of the first record that holds an image file, or else the pixels of one."""
    window = ScanWindow(shards[0].content)
    start, length = next(scan_records(window))
    data = window.pread(length, start)
    try:
        features = parse_example(data)
    except BadMessageError as error:
        msg = f"'{shards[0].name}[0]' is not a tf.train.Example: {error}."
        raise BrokenDatasetError(msg) from error
    # Names that everybody uses come first: a thumbnail may stand beside the image.
    order = [*_IMAGES, *(name for name in features if name not in _IMAGES)]
    pixels = ""
    for name in order:
        first = next(iter(features.get(name, [])), None)
        if isinstance(first, ByteSpan) and data[slice(*first)].startswith(IMAGE_HEADS):
            return name
        if isinstance(first, ByteSpan) and _pixel_shape(features, first) is not None:
            pixels = pixels or name
    if pixels:
        return pixels
    msg = (
        f"The first record of '{source.label}' holds no image file (JPEG, PNG, GIF, BMP, TIFF, WebP) but the features "
        f"{', '.join(sorted(features)) or 'of no Example'}. Give layout= a function that reads it."
    )
    raise LayoutError(msg)


def _pixel_shape(features: dict[str, Feature], image: ByteSpan) -> tuple[int, int, int] | None:
    """Return height, width and depth of an image that is written as its pixels; `None` where its length does not say
    so."""
    found = ([number for name in names for number in features.get(name, ())][:1] for names in _SIZES)
    height, width, depth = (next(iter(numbers), 0) for numbers in found)
    if not (isinstance(height, int) and isinstance(width, int) and isinstance(depth, int)) or height * width < 1:
        return None
    depth = depth or (image.end - image.start) // (height * width)
    fits = depth in (1, 3, 4) and height * width * depth == image.end - image.start
    return (height, width, depth) if fits else None


def _scan_records(shard: ShardFile, number: int, image: str) -> tuple[list[_Record], int]:
    """Return every record of a file that has an image, and how many have none, in one pass over it."""
    window = ScanWindow(shard.content)
    records = []
    count = 0
    for start, length in scan_records(window):
        name = f"{shard.name}[{count}]"
        data = window.pread(length, start)
        try:
            features = parse_example(data)
        except BadMessageError as error:
            # A message that cannot be read is damage where its checksum is wrong, and no Example where it is right.
            check_record(window.pread(length + FOOTER_BYTES, start), name)
            msg = f"'{name}' is not a tf.train.Example: {error}."
            raise BrokenDatasetError(msg) from error
        found = next(iter(features.get(image, [])), None)
        # An empty string is how some writers say that there is no image.
        if isinstance(found, ByteSpan) and found.end > found.start:
            stored = Part(number, start, length + FOOTER_BYTES)
            records.append(_Example(data, features, name).as_record(stored, found))
        count += 1
    shard.rest()
    return records, count - len(records)


class _Example:
    """What one record holds beside its image."""

    def __init__(self, data: bytes, features: dict[str, Feature], record: str) -> None:
        self._data = data
        self._features = features
        self._record = record

    def as_record(self, stored: Part, image: ByteSpan) -> _Record:
        """Return all that is known of the record."""
        label, text = self._one(_LABELS), self._one(_TEXTS)
        shape = None
        if not self._data[slice(*image)].startswith(IMAGE_HEADS):
            shape = _pixel_shape(self._features, image)
        return _Record(
            name=self._record,
            stored=stored,
            image=image,
            label=label,
            text=text if isinstance(text, str) else None,
            boxes=self._boxes(),
            mask=self._mask(),
            shape=shape,
            classes=next((len(found) for name in _LABELS if len(found := self._features.get(name, [])) > 1), 0),
        )

    def _one(self, names: Sequence[str]) -> Label:
        """Return the one value of the first of some features that there is."""
        name = next((name for name in names if self._features.get(name)), None)
        if name is None:
            return None
        values = self._values(name)
        if len(values) > 1 and sorted(values, key=str) == [0] * (len(values) - 1) + [1]:
            return values.index(1)
        if len(values) != 1:
            msg = (
                f"'{self._record}' has {len(values):,} values in '{name}'; expected one label. Give layout= a function."
            )
            raise BrokenDatasetError(msg)
        return values[0]

    def _values(self, name: str) -> list[Label]:
        feature = self._features.get(name, [])
        try:
            return [self._data[slice(*value)].decode() if isinstance(value, ByteSpan) else value for value in feature]
        except UnicodeDecodeError as error:
            msg = f"'{self._record}' has a label that is not text."
            raise BrokenDatasetError(msg) from error

    def _boxes(self) -> list[_RecordBox] | None:
        if not any(name in self._features for name in _CORNERS):
            return None
        corners = [cast("list[float]", self._features.get(name, [])) for name in _CORNERS]
        labels, texts = self._values(_BOX_LABEL), self._values(_BOX_TEXT)
        counts = {len(values) for values in (*corners, labels or corners[0], texts or corners[0])}
        if len(counts) != 1 or not (labels or texts or not corners[0]):
            msg = f"'{self._record}' has corners, labels and names of boxes in different numbers."
            raise BrokenDatasetError(msg)
        rows = zip(zip(*corners, strict=True), labels or texts, texts or labels, strict=True)
        return [_RecordBox(corner, label, text if isinstance(text, str) else None) for corner, label, text in rows]

    def _mask(self) -> ByteSpan | None:
        """Return the first feature that is named like a mask and holds an image file."""
        found = (next(iter(self._features.get(name, [])), None) for name in _MASKS)
        return next(
            (span for span in found if isinstance(span, ByteSpan) and self._data[slice(*span)].startswith(IMAGE_HEADS)),
            None,
        )


def _targets_of_records(
    records: Sequence[_Record], parts: SampleSource, notes: list[str]
) -> tuple[Targets | None, tuple[str, ...]]:
    # What is there decides: a label beside boxes is most often that of the first of them.
    with_boxes = sum(record.boxes is not None for record in records)
    masks = [record.mask for record in records if record.mask is not None]
    if with_boxes and masks:
        msg = (
            f"The records have boxes ('{_CORNERS[0]}', …) and masks as well (first '{records[0].name}'); which are "
            "meant? Give layout= a function that reads one of them."
        )
        raise BrokenDatasetError(msg)
    if with_boxes:
        # A feature of no values is often not written at all.
        if with_boxes < len(records):
            notes.append(
                f"{counted(len(records) - with_boxes, 'records', 'have')} no features of boxes: kept without boxes."
            )
        boxes = [box for record in records for box in record.boxes or []]
        box_labels = [box.label for box in boxes]
        # For messages: a box has no name of its own, and its record has.
        owners = [record.name for record in records for _ in record.boxes or []]
        values, classes = make_labels(box_labels, owners, names=names_of(box_labels, [box.text for box in boxes]))
        offsets = offsets_of([len(record.boxes or []) for record in records])
        corners = np.array([box.corners for box in boxes], np.float64).reshape(-1, 4)
        numbers = np.zeros(0, np.int64) if values is None else values.values
        return Boxes(offsets, corners, {"labels": numbers}, relative=True), classes
    if masks:
        if len(masks) < len(records):
            bare = next(record.name for record in records if record.mask is None)
            msg = f"'{bare}' has no mask and {len(masks):,} other records have; expected all or none."
            raise BrokenDatasetError(msg)
        found = find_masks(images_of_records(parts, masks), spread=False)
        return found, found.classes
    if len({record.classes for record in records}) > 1:
        odd = next(record for record in records if record.classes != records[0].classes)
        msg = (
            f"'{records[0].name}' has a label of {records[0].classes or 1} numbers and '{odd.name}' one of "
            f"{odd.classes or 1}; expected as many in all."
        )
        raise BrokenDatasetError(msg)
    # Without a label, a text is one where it is a class's name; the features called so say that it is.
    labels = [record.text if record.label is None else record.label for record in records]
    return make_labels(
        labels, [record.name for record in records], names=names_of(labels, [record.text for record in records])
    )
