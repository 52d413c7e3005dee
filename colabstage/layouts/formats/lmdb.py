"""Images and labels in an LMDB database: its keys are read by page, its values by their places.

Not through the lmdb package: that maps the file, which on a mount is slow and, where the file is cut, ends the process
by a signal. Every value is one byte range of the file, so its place is all that reading needs. Format: LMDB 0.9
(data version 1) on 64-bit machines, little-endian; a header of 16 bytes begins each page.
"""

from __future__ import annotations

import math
import posixpath
import re
import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import CorruptArchiveError, EmptySourceError, LayoutError
from colabstage.io.units import counted
from colabstage.layouts.evidence import Evidence, require_files
from colabstage.layouts.labels import Label, Labels, make_labels, parse_label
from colabstage.layouts.protobuf import BadMessageError, ByteSpan, message_fields
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
from colabstage.layouts.table import Arrays, BrokenDatasetError, Images, SampleTable, Values
from colabstage.layouts.words import folder_of, is_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from colabstage.layouts.reading import Source
    from colabstage.layouts.samples import SampleSource
    from colabstage.trees.bytes import ByteSource

_PAGE = struct.Struct("<QHHHH")  # number, pad, flags, lower, upper
_META = struct.Struct("<IIQQ 48s 48s QQ")  # magic, version, address, map size, free and main database, last page, txn
_DATABASE = struct.Struct("<IHHQQQQQ")  # page size or pad, flags, depth, branch, leaf and overflow pages, entries, root
_NODE = struct.Struct("<HHHH")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF = 0x01, 0x02
_BIG, _SUB, _DUPLICATES = 0x01, 0x02, 0x04
_DUPSORT = 0x04
_NO_PAGE = 0xFFFF_FFFF_FFFF_FFFF
# Deeper trees than LMDB itself can make.
_MAX_DEPTH = 32


class Value(NamedTuple):
    """One key of a database, and its value's place."""

    key: bytes
    """As it is stored."""
    start: int
    """Where the value begins in the file, in bytes."""
    size: int
    """Length of the value in bytes."""


class _Meta(NamedTuple):
    """One of the two pages that a database begins with."""

    page_bytes: int
    """Length of a page."""
    root: int
    """Number of the main database's root page."""
    entries: int
    """How many keys the main database has."""
    flags: int
    """How the main database is kept."""
    last_page: int
    """Number of the last page in use."""
    txn: int
    """Number of the transaction that wrote this page; the later of the two counts."""


def is_lmdb_head(head: bytes) -> bool:
    """Tell whether an LMDB file begins so."""
    return len(head) >= 20 and int.from_bytes(head[16:20], "little") == _MAGIC


def scan_values(source: ByteSource) -> Iterator[Value]:
    """Yield every key of the file's main database, in order."""
    return _Database(source).values()


class _Database:
    """The pages of a database file, of which each is held against what the others say of it."""

    def __init__(self, source: ByteSource) -> None:
        self.source = source

    def values(self) -> Iterator[Value]:
        """Yield all values in the order of their keys."""
        meta = self._read_meta()
        # Values of one key are in a tree of their own there.
        if meta.flags & _DUPSORT:
            msg = f"'{self.source.label}' keeps several values for each key, which is not read here."
            raise LayoutError(msg)
        count = 0
        stack = [] if meta.root == _NO_PAGE else [(meta.root, 1)]
        pages = 0
        while stack:
            number, depth = stack.pop()
            pages += 1
            # Damaged pages may point to each other in a ring.
            if depth > _MAX_DEPTH or pages > meta.last_page + 1:
                raise self._damaged(number)
            page, flags, places = self._read_page(meta, number)
            if flags & _BRANCH:
                if not places:
                    raise self._damaged(number)
                nodes = (_NODE.unpack_from(page, place) for place in reversed(places))
                stack += [(low | high << 16 | top << 32, depth + 1) for low, high, top, _ in nodes]
                continue
            for place in places:
                yield self._value(meta, number, page, place)
                count += 1
        # A page that was lost takes its keys with it, and the file would only seem smaller.
        if count != meta.entries:
            msg = f"'{self.source.label}' is damaged: it holds {count:,} keys and says that it has {meta.entries:,}."
            raise CorruptArchiveError(msg)

    def _read_meta(self) -> _Meta:
        first = self.source.pread(_PAGE.size + _META.size, 0)
        if not is_lmdb_head(first) or len(first) < _PAGE.size + _META.size:
            msg = f"'{self.source.label}' is not an LMDB file."
            raise CorruptArchiveError(msg)
        # The page size is noted in the file, and need not be this machine's.
        page_bytes = _DATABASE.unpack(_META.unpack_from(first, _PAGE.size)[4])[0]
        if page_bytes < 512 or page_bytes > 65536 or page_bytes & (page_bytes - 1):
            raise self._damaged(0)
        # A writer that is killed leaves the newer of the two heads as it was before: the other one counts then.
        second = self.source.pread(_PAGE.size + _META.size, page_bytes)
        meta = max((self._parse_meta(head, page_bytes) for head in (first, second)), key=lambda meta: meta.txn)
        needed = (meta.last_page + 1) * page_bytes
        if needed > self.source.size and meta.root != _NO_PAGE:
            msg = (
                f"'{self.source.label}' is truncated: it has {self.source.size:,} bytes, and its pages take "
                f"{needed:,}. Copy or upload it again."
            )
            raise CorruptArchiveError(msg)
        return meta

    def _parse_meta(self, head: bytes, page_bytes: int) -> _Meta:
        if not is_lmdb_head(head) or len(head) < _PAGE.size + _META.size:
            raise self._damaged(1)
        _, version, _, _, _, main, last_page, txn = _META.unpack_from(head, _PAGE.size)
        if version != _VERSION:
            msg = (
                f"'{self.source.label}' is of LMDB's data version {version}; only version {_VERSION} (LMDB 0.9) "
                "is read here."
            )
            raise LayoutError(msg)
        _, flags, _, _, _, _, entries, root = _DATABASE.unpack(main)
        return _Meta(page_bytes, root, entries, flags, last_page, txn)

    def _read_page(self, meta: _Meta, number: int) -> tuple[bytes, int, list[int]]:
        """Return a page, its flags, and where its nodes begin."""
        page = self.source.pread(meta.page_bytes, number * meta.page_bytes) if number <= meta.last_page else b""
        if len(page) != meta.page_bytes:
            raise self._damaged(number)
        own, _, flags, lower, upper = _PAGE.unpack_from(page)
        kind = flags & (_BRANCH | _LEAF)
        if own != number or kind not in (_BRANCH, _LEAF) or not _PAGE.size <= lower <= upper <= len(page) or lower % 2:
            raise self._damaged(number)
        places = list(struct.unpack_from(f"<{(lower - _PAGE.size) // 2}H", page, _PAGE.size))
        if any(not upper <= place <= len(page) - _NODE.size for place in places):
            raise self._damaged(number)
        return page, kind, places

    def _value(self, meta: _Meta, number: int, page: bytes, place: int) -> Value:
        low, high, flags, key_size = _NODE.unpack_from(page, place)
        size = low | high << 16
        key_at = place + _NODE.size
        data_at = key_at + key_size
        key = page[key_at:data_at]
        # They are trees in the tree, and which of them holds the samples nobody says.
        if flags & (_SUB | _DUPLICATES):
            msg = f"'{self.source.label}' holds named databases ({key[:40]!r}), which are not read here."
            raise LayoutError(msg)
        if not flags & _BIG:
            if data_at + size > len(page):
                raise self._damaged(number)
            return Value(key, number * meta.page_bytes + data_at, size)
        if data_at + 8 > len(page):
            raise self._damaged(number)
        start = int.from_bytes(page[data_at : data_at + 8], "little") * meta.page_bytes + _PAGE.size
        if start + size > (meta.last_page + 1) * meta.page_bytes:
            raise self._damaged(number)
        return Value(key, start, size)

    def _damaged(self, page: int) -> CorruptArchiveError:
        return CorruptArchiveError(
            f"'{self.source.label}' is damaged: its page {page:,} is not readable. Copy or upload it again; a "
            "copy that was made while the database was being written is not consistent."
        )


NAME = "lmdb"
EXTENSIONS = (".mdb", ".lmdb")

_NUMBERED = re.compile(rb"(image|img|label|lbl)[-_](.+)", re.DOTALL)
# What writers note beside the samples.
_NOTES = re.compile(rb"num[-_]samples|length|len|nsamples|keys|meta|__.*__", re.DOTALL)
_MAX_LABEL_BYTES = 64 * 1024
# Of a message of Caffe's: its pixels, or the file of an image, and the fields that are numbers (channels, height,
# width, label, encoded).
_DATA, _NUMBERS = 4, (1, 2, 3, 5, 7)
# The numbers before the pixels, and how an image file begins.
_HEAD_BYTES = 64


class _Datum(NamedTuple):
    """What a value of Caffe's says of its image."""

    data: ByteSpan
    """Where its bytes are in the value."""
    shape: tuple[int, ...]
    """Channels, height and width of pixels; () of an image file."""
    label: int
    """Its class; 0 where it says none, as protobuf has it."""


class _ScannedDatabase(NamedTuple):
    """What one database holds of samples."""

    shard: ShardFile
    """The database's file."""
    images: dict[str, Part]
    """Its images by name."""
    labels: dict[str, bytes]
    """Their labels by the same names, where there are any."""
    datums: dict[str, _Datum]
    """What Caffe's messages say of them, by the same names; empty where values are images themselves."""


def lmdb_state(source: Source) -> Evidence:
    """Read LMDB databases (data.mdb, or a file .lmdb) whose values are image files, or Caffe's
    messages of one or of its pixels, uint8 `(channels, height, width)`.

    y: Caffe's label; with keys as image-000000001 and label-000000001, whole numbers as they are, other numbers, or
    texts as uint8 `(N, L)`, UTF-8 with zeros up to the longest; with keys as cat/1.jpg the folder; else none. Splits
    are those that all databases are called after (train/data.mdb, val.lmdb). Nothing is unpickled.
    """
    found = source.ending_in(EXTENSIONS).where(_is_database)
    entries = require_files(found, source, "LMDB database (data.mdb, or a file .lmdb)")
    scanned = scan_each(entries, lambda number, entry: _scan_values(open_shard(source.tree, entry), number))
    shards = [found.shard for found in scanned]
    parts = [part for found in scanned for part in found.images.values()]
    names = [f"{found.shard.name}[{name}]" for found in scanned for name in found.images]
    if not parts:
        msg = f"The databases in '{source.label}' hold no values."
        raise EmptySourceError(msg)
    contents = samples_of_shards(shards, parts, names)
    notes: list[str] = []
    if any(found.datums for found in scanned):
        inputs, labels = _of_caffe(scanned, contents, notes)
    else:
        inputs, labels = Images(contents), _labels_of_values(scanned, names, notes)
    table = SampleTable(
        layout=NAME,
        keys=names,
        inputs=inputs,
        targets=labels.targets,
        splits=splits_of_shards(shards, parts),
        classes=labels.classes,
        notes=tuple(notes),
    )
    return Evidence(table, "the databases", frozenset(entries.names))


def _is_database(name: str) -> bool:
    base = posixpath.basename(name).lower()
    return base == "data.mdb" or (base.endswith((".lmdb", ".mdb")) and base != "lock.mdb")


def _scan_values(shard: ShardFile, number: int) -> _ScannedDatabase:
    window = ScanWindow(shard.content)
    found = _ScannedDatabase(shard, {}, {}, {})
    for value in scan_values(window):
        if _NOTES.fullmatch(value.key):
            continue
        match = _NUMBERED.fullmatch(value.key)
        name = _key_name(match[2] if match else value.key)
        if match and match[1] in (b"label", b"lbl"):
            if value.size > _MAX_LABEL_BYTES:
                msg = f"'{shard.name}[{name}]' has a label of {value.size:,} bytes; expected a number or a text."
                raise BrokenDatasetError(msg)
            found.labels[name] = window.pread(value.size, value.start)
            continue
        found.images[name] = Part(number, value.start, value.size)
        if len(found.images) == 1 or found.datums:
            # Every other image file is looked at when it is decoded.
            head = window.pread(min(value.size, _HEAD_BYTES), value.start)
            if head.startswith(IMAGE_HEADS):
                continue
            datum = _read_datum(window, value, head)
            if datum is None:
                raise _no_images(shard, name, head[:16])
            found.datums[name] = datum
            found.images[name] = Part(number, value.start + datum.data.start, datum.data.end - datum.data.start)
    shard.rest()
    return found


def _read_datum(window: ScanWindow, value: Value, head: bytes) -> _Datum | None:
    """Return what Caffe's message of an image says, `None` where a value is none; its pixels are passed over."""
    fields: dict[int, ByteSpan | int] = {}
    try:
        # Protobuf writes fields by number: what says the size is before the pixels, and the label behind them.
        for field, found in message_fields(head, ByteSpan(0, value.size)):
            fields[field] = found
            if field == _DATA:
                break
        data = fields.pop(_DATA, 0)
        if not isinstance(data, ByteSpan):
            return None
        tail = window.pread(value.size - data.end, value.start + data.end) if data.end < value.size else b""
        fields |= dict(message_fields(tail, ByteSpan(0, len(tail))))
    except (BadMessageError, IndexError):
        return None
    numbers = [found for field in _NUMBERS if isinstance(found := fields.pop(field, 0), int)]
    if fields or len(numbers) < len(_NUMBERS):
        return None
    *shape, label, encoded = numbers
    is_file = head[data.start :].startswith(IMAGE_HEADS)
    fits = is_file if encoded else 0 < data.end - data.start == math.prod(shape)
    # Negative numbers are written in two's complement of 64 bits.
    return _Datum(data, () if encoded else tuple(shape), label - (label >> 63 << 64)) if fits else None


def _key_name(key: bytes) -> str:
    """Return a key as text; as hexadecimal digits where it is none."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


def _no_images(shard: ShardFile, name: str, head: bytes) -> LayoutError:
    is_pickle = head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5")
    what = "a pickle, which is never loaded here because it can run any program" if is_pickle else f"{head!r}…"
    msg = (
        f"'{shard.name}' does not hold image files: the value of '{name}' is {what}. Read it with your own code: give "
        "pack_dataset the dataset object that you train with."
    )
    return LayoutError(msg)


def _of_caffe(
    scanned: Sequence[_ScannedDatabase], source: SampleSource, notes: list[str]
) -> tuple[Images | Arrays, Labels]:
    """Return the inputs and labels of databases of Caffe's messages."""
    datums = [datum for found in scanned for datum in found.datums.values()]
    if len(datums) != len(source):
        msg = (
            f"'{scanned[0].shard.name}' and others hold messages of Caffe's, and {len(source) - len(datums):,} values "
            "that are not. Stage them separately."
        )
        raise BrokenDatasetError(msg)
    odd = next((number for number, datum in enumerate(datums) if datum.shape != datums[0].shape), None)
    if odd is not None:
        msg = (
            f"'{source.name(odd)}' has pixels of the shape {datums[odd].shape}, and '{source.name(0)}' of "
            f"{datums[0].shape}; expected one. Have convert_imageset resize them, or write image files (--encoded)."
        )
        raise BrokenDatasetError(msg)
    labels = Labels(Values(np.array([datum.label for datum in datums], np.int64)), ())
    if not datums[0].shape:
        return Images(source), labels
    notes.append("Pixels are as Caffe has them, (channels, height, width), with blue first where OpenCV wrote them.")
    return Arrays(source, datums[0].shape, np.dtype(np.uint8)), labels


def _labels_of_values(scanned: Sequence[_ScannedDatabase], names: Sequence[str], notes: list[str]) -> Labels:
    if not any(found.labels for found in scanned):
        # Keys that are written like paths of images say their classes as folders do.
        keys = [name for found in scanned for name in found.images]
        are_paths = all("/" in key and is_image(key) for key in keys)
        return make_labels([folder_of(key) if are_paths else None for key in keys], names)
    texts = [found.labels.get(name) for found in scanned for name in found.images]
    missing = [name for name, text in zip(names, texts, strict=True) if text is None]
    if missing:
        msg = f"{counted(len(missing), 'images', 'have', of=len(names))} no label (first '{missing[0]}')."
        raise BrokenDatasetError(msg)
    words = [text or b"" for text in texts]
    labels: list[Label] = []
    for name, word in zip(names, words, strict=True):
        try:
            labels.append(parse_label(word.decode()))
        except UnicodeDecodeError as error:
            msg = f"The label of '{name}' is not text: {word[:20]!r}."
            raise BrokenDatasetError(msg) from error
    if not any(label is None or isinstance(label, str) for label in labels):
        return make_labels(labels, names)
    # All labels may be empty, and a row has at least one byte.
    width = max(1, *map(len, words))
    rows = b"".join(word.ljust(width, b"\0") for word in words)
    notes.append(f"Labels are texts: rows of {width} bytes, UTF-8, with zeros up to the end.")
    return Labels(Values(np.frombuffer(rows, np.uint8).reshape(len(words), width)), ())
