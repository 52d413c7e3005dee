"""LMDB databases of images and labels, read by the lmdb package."""

from __future__ import annotations

import math
import posixpath
import re
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import CorruptArchiveError, EmptySourceError, LayoutError, MissingDependencyError
from colabstage.layouts.evidence import require_files
from colabstage.layouts.protobuf import BadMessageError, ByteSpan, message_fields
from colabstage.layouts.reading import copy_of
from colabstage.layouts.records import Label, Labels, all_have, decode_label, make_labels, parse_label, records_state
from colabstage.layouts.samples import Samples, join_samples, stamp_of
from colabstage.layouts.shards import IMAGE_HEADS, scan_each
from colabstage.layouts.table import Arrays, BrokenDatasetError, Images, Values
from colabstage.layouts.words import folder_of, is_image

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from colabstage.layouts.evidence import Evidence
    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntry

NAME = "lmdb"
EXTENSIONS = (".mdb", ".lmdb")

_NUMBERED = re.compile(rb"(image|img|label|lbl)[-_](.+)", re.DOTALL)
# What writers note beside the samples.
_NOTES = re.compile(rb"num[-_]samples|length|len|nsamples|keys|meta|__.*__", re.DOTALL)
# Of a message of Caffe's: its pixels, or the file of an image, and the fields that are numbers (channels, height,
# width, label, encoded).
_DATA, _NUMBERS = 4, (1, 2, 3, 5, 7)


class _Datum(NamedTuple):
    """What a value of Caffe's says of its image."""

    data: ByteSpan
    """Where its bytes are in the value."""
    shape: tuple[int, ...]
    """Channels, height and width of pixels; () of an image file."""
    label: int
    """Its class; 0 where it says none, as protobuf has it."""


class _Record(NamedTuple):
    """An image in a database."""

    key: bytes
    name: str
    size: int
    datum: _Datum | None
    """`None` where the value is the image file itself."""


def lmdb_state(source: Source) -> Evidence:
    """Read LMDB databases (data.mdb, or a file .lmdb) whose values are image files, or Caffe's
    messages of one or of its pixels, uint8 `(channels, height, width)`.

    y: Caffe's label; with keys as image-000000001 and label-000000001, whole numbers as they are, other numbers, or
    texts as uint8 `(N, L)`, UTF-8 with zeros up to the longest; with keys as cat/1.jpg the folder; else none. Splits
    are those that all databases are called after (train/data.mdb, val.lmdb). Nothing is unpickled.
    """
    found = source.ending_in(EXTENSIONS).where(_is_database)
    entries = require_files(found, source, "LMDB database (data.mdb, or a file .lmdb)")
    databases = scan_each(entries, lambda _, entry: _Database(source, entry))
    records = [record for database in databases for record in database.records]
    if not records:
        msg = f"The databases in '{source.label}' hold no values."
        raise EmptySourceError(msg)
    contents = join_samples([database.samples() for database in databases if database.records])
    names = [contents.name(number) for number in range(len(contents))]
    notes: list[str] = []
    inputs: Images | Arrays = Images(contents)
    if any(record.datum for record in records):
        labels, shape = _of_caffe(records, names)
        if shape:
            inputs = Arrays(contents, shape, np.dtype(np.uint8))
            notes.append(
                "Pixels are as Caffe has them, (channels, height, width), with blue first where OpenCV wrote them."
            )
    else:
        texts = [database.labels.get(record.name) for database in databases for record in database.records]
        labels = _labels_of_values(records, texts, names, notes)
    shard_of = np.repeat(np.arange(len(databases)), [len(database.records) for database in databases])
    return records_state(NAME, "the databases", inputs, labels, shards=entries.names, shard_of=shard_of, notes=notes)


def _is_database(name: str) -> bool:
    base = posixpath.basename(name).lower()
    return base == "data.mdb" or (base.endswith((".lmdb", ".mdb")) and base != "lock.mdb")


class _Database:
    """One database: its images, and its labels by the same names."""

    def __init__(self, source: Source, entry: FileEntry) -> None:
        self.entry = entry
        self.records: list[_Record] = []
        self.labels: dict[str, bytes] = {}
        path = source.tree.path_of(entry)
        # What cannot be mapped where it lies is copied to the local disk, for as long as its samples are read.
        self._copy = copy_of(source.tree, entry) if path is None else None
        self._path = str(path) if self._copy is None else self._copy.name
        self._lock = threading.Lock()
        self._opened: Any = None
        self._users = 0
        with self._reading() as transaction:
            for key, value in transaction.cursor():
                self._add(bytes(key), value)

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        """Open the database while some threads read: the package opens a file once in a process."""
        with self._lock:
            self._opened = self._opened if self._users else self._open()
            self._users += 1
        try:
            with self._opened.begin(buffers=True) as transaction:
                yield transaction
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._opened.close()

    def _open(self) -> Any:
        name = self.entry.name
        try:
            import lmdb
        except ImportError as error:
            msg = f"'{name}' is an LMDB database, which needs lmdb. Install it with: pip install lmdb"
            raise MissingDependencyError(msg) from error
        try:
            opened = lmdb.open(self._path, subdir=False, readonly=True, lock=False)
        except (lmdb.Error, OSError) as error:
            msg = f"'{name}' cannot be opened as an LMDB database: {error}. Copy or upload it again."
            raise CorruptArchiveError(msg) from error
        # Reading behind the end of a mapped file would end the process by a signal.
        needed = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
        if needed > self.entry.size and opened.stat()["entries"]:
            opened.close()
            msg = (
                f"'{name}' is truncated: it has {self.entry.size:,} bytes, and its pages take {needed:,}. Copy or "
                "upload it again."
            )
            raise CorruptArchiveError(msg)
        return opened

    def _add(self, key: bytes, value: memoryview) -> None:
        if _NOTES.fullmatch(key):
            return
        match = _NUMBERED.fullmatch(key)
        name = _key_name(match[2] if match else key)
        if match and match[1] in (b"label", b"lbl"):
            self.labels[name] = bytes(value)
            return
        datum = None
        # Every other image file is looked at when it is decoded.
        is_messages = bool(self.records) and self.records[0].datum is not None
        if (not self.records or is_messages) and not bytes(value[:16]).startswith(IMAGE_HEADS):
            datum = _read_datum(bytes(value))
            if datum is None:
                raise _no_images(self.entry.name, name, bytes(value[:16]))
        size = len(value) if datum is None else datum.data.end - datum.data.start
        self.records.append(_Record(key, name, size, datum))

    def samples(self) -> Samples:
        """Return the images, each read by its key."""
        stamp = stamp_of(self.entry)

        def read(index: int) -> bytes:
            record = self.records[index]
            with self._reading() as transaction:
                value = transaction.get(record.key)
                return bytes(value if record.datum is None else value[slice(*record.datum.data)])

        return Samples(
            np.array([record.size for record in self.records], np.int64),
            np.arange(len(self.records), dtype=np.int64),
            name=lambda index: f"{self.entry.name}[{self.records[index].name}]",
            stamp=lambda index: f"{stamp} {self.records[index].name}",
            read=read,
        )


def _read_datum(value: bytes) -> _Datum | None:
    """Return what Caffe's message of an image says, `None` where a value is none."""
    try:
        fields = dict(message_fields(value, ByteSpan(0, len(value))))
    except (BadMessageError, IndexError):
        return None
    data = fields.pop(_DATA, 0)
    numbers = [found for field in _NUMBERS if isinstance(found := fields.pop(field, 0), int)]
    if not isinstance(data, ByteSpan) or fields or len(numbers) < len(_NUMBERS):
        return None
    *shape, label, encoded = numbers
    is_file = value[data.start :].startswith(IMAGE_HEADS)
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


def _no_images(file: str, name: str, head: bytes) -> LayoutError:
    is_pickle = head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5")
    what = "a pickle, which is never loaded here because it can run any program" if is_pickle else f"{head!r}…"
    return LayoutError(
        f"'{file}' does not hold image files: the value of '{name}' is {what}. Read it with your own code: give "
        "pack_dataset the dataset object that you train with."
    )


def _of_caffe(records: Sequence[_Record], names: Sequence[str]) -> tuple[Labels, tuple[int, ...]]:
    """Return the labels of Caffe's messages, and the shape of their pixels; () of image files."""
    datums = [record.datum for record in records if record.datum is not None]
    if len(datums) != len(records):
        msg = (
            f"'{names[0]}' and others are messages of Caffe's, and {len(records) - len(datums):,} values that are not. "
            "Stage them separately."
        )
        raise BrokenDatasetError(msg)
    odd = next((number for number, datum in enumerate(datums) if datum.shape != datums[0].shape), None)
    if odd is not None:
        msg = (
            f"'{names[odd]}' has pixels of the shape {datums[odd].shape}, and '{names[0]}' of {datums[0].shape}; "
            "expected one. Have convert_imageset resize them, or write image files (--encoded)."
        )
        raise BrokenDatasetError(msg)
    return Labels(Values(np.array([datum.label for datum in datums], np.int64)), ()), datums[0].shape


def _labels_of_values(
    records: Sequence[_Record], texts: Sequence[bytes | None], names: Sequence[str], notes: list[str]
) -> Labels:
    if not all_have(texts, names, "label"):
        # Keys that are written like paths of images say their classes as folders do.
        are_paths = all("/" in record.name and is_image(record.name) for record in records)
        return make_labels([folder_of(record.name) if are_paths else None for record in records], names)
    words = [text or b"" for text in texts]
    labels: list[Label] = [parse_label(decode_label(word, name)) for word, name in zip(words, names, strict=True)]
    if not any(label is None or isinstance(label, str) for label in labels):
        return make_labels(labels, names)
    # All labels may be empty, and a row has at least one byte.
    width = max(1, *map(len, words))
    rows = b"".join(word.ljust(width, b"\0") for word in words)
    notes.append(f"Labels are texts: rows of {width} bytes, UTF-8, with zeros up to the end.")
    return Labels(Values(np.frombuffer(rows, np.uint8).reshape(len(words), width)), ())
