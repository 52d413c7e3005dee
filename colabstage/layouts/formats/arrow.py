"""Parquet and Arrow files whose rows are samples, as `datasets` writes them, read by pyarrow in batches.

Images in an Arrow file are stored unchanged, so only their positions are noted. Those in parquet are compressed in
pages, so they are unpacked once to the local disk.
"""

from __future__ import annotations

import json
import posixpath
import tempfile
import threading
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import (
    ColabstageError,
    CorruptArchiveError,
    LayoutError,
    MissingDependencyError,
    kind_of,
)
from colabstage.images.decode import probe_image
from colabstage.io.files import read_with_retry
from colabstage.layouts.boxes import possible_forms
from colabstage.layouts.columns import note_on_numbers
from colabstage.layouts.evidence import Evidence, require_files
from colabstage.layouts.labels import Label, make_labels
from colabstage.layouts.reading import spool_folder
from colabstage.layouts.shards import (
    ScanWindow,
    ShardFile,
    open_shard,
    samples_of_shards,
    scan_each,
    splits_of_shards,
)
from colabstage.layouts.table import Boxes, BrokenDatasetError, Images, SampleTable, offsets_of
from colabstage.layouts.words import IMAGES, label_names, plain_name
from colabstage.trees.bytes import LocalBytes, SourceFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import IO

    from numpy.typing import NDArray

    from colabstage.layouts.reading import Source
    from colabstage.layouts.samples import SampleSource
    from colabstage.layouts.table import Targets

# Rows of a parquet file that are in memory at once; as many as `datasets` writes into a batch of images.
_ROWS = 100
_COLUMN_BUFFER_BYTES = 1 << 20
# The ends of streams; the second is for streams that do not begin with its first half.
_END, _OLD_END = b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\0"
_PARQUET, _FEATHER = b"PAR1", b"ARROW1"
# Types whose values all fit into int64.
_WHOLE = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})
# The types of the stored offsets of values, by the type of a column.
_OFFSETS = {"binary": np.int32, "large_binary": np.int64}


class FileFacts(NamedTuple):
    """The facts about a file before its rows are read."""

    schema: Any
    """pyarrow's."""
    unpacked_bytes: int
    """Approximate size of its unpacked images; 0 if they are in the file unchanged."""


class FoundRows(NamedTuple):
    """The position of the image and the label of each of N rows."""

    images: NDArray[np.int64]
    """int64 `(N, 3)`, each a `Part`: the images' bytes, in the file or in the spool."""
    labels: list[Any] | NDArray[np.int64]
    """The label of each row, as in the file; an int64 array if all are integers."""
    spooled: bool
    """Whether the images were unpacked, so that `images` refers to the spool."""


class ImageSpool:
    """Unpacked images, one after the other in one file; may be used from several threads."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._end = 0
        self._lock = threading.Lock()

    def append(self, image: bytes) -> int:
        """Store an image; return its offset."""
        with self._lock:
            start, self._end = self._end, self._end + len(image)
            self._out.write(image)
        return start


def import_arrow(name: str) -> Any:
    """Return the module pyarrow."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        msg = f"'{name}' is read by pyarrow. Install it with: pip install pyarrow"
        raise MissingDependencyError(msg) from error
    return pyarrow


def read_facts(shard: ShardFile) -> FileFacts:
    """Read a file's schema and the size of its images."""
    with _ArrowFile(shard) as opened:
        ipc = opened.arrow.ipc
        if opened.head.startswith(_PARQUET):
            file = opened.parquet()
            return FileFacts(
                file.schema_arrow,
                sum(
                    file.metadata.row_group(group).column(column).total_uncompressed_size
                    for group in range(file.metadata.num_row_groups)
                    for column in range(file.metadata.num_columns)
                ),
            )
        if opened.head.startswith(_FEATHER):
            return FileFacts(ipc.open_file(opened.file).schema, 2 * shard.content.size)
        # Nearly all streams store values unchanged, so they are read in place.
        facts = FileFacts(ipc.open_stream(opened.file).schema, 0)
        # Refuse a stream that is cut between two batches, which pyarrow takes as its end.
        end = _END if opened.head.startswith(_END[:4]) else _OLD_END
        size = shard.content.size
        if read_with_retry(lambda: shard.content.pread(len(end), size - len(end)), shard.name) != end:
            msg = f"'{shard.name}' is truncated: its end marker is missing. Copy or upload it again."
            raise CorruptArchiveError(msg)
        return facts


def find_rows(shard: ShardFile, number: int, image: str, label: str | None, spool: ImageSpool) -> FoundRows:
    """Find every row's image and label, in one pass over the file.

    Args:
        shard: the file.
        number: its number among the shards.
        image: the column of images: bytes, or a struct with `bytes` as `datasets` writes it.
        label: the column of labels.
        spool: receives the images that are not stored unchanged in the file.
    """
    with _ArrowFile(shard) as opened:
        if not opened.head.startswith((_PARQUET, _FEATHER)):
            found = opened.rows_in_place(number, image, label)
            if found is not None:
                return found
    with _ArrowFile(shard) as opened:
        rows = _RowColumns(number, label)
        for batch in opened.batches(image, label):
            for content in _bytes_column(batch.column(image)).to_pylist():
                if content is None:
                    raise _no_image(shard, len(rows))
                rows.add_image(spool.append(content), len(content))
            rows.add_labels(batch)
    return rows.found(spooled=True)


class _RowColumns:
    """Collect rows with two numbers in memory for each image, and one for most labels."""

    def __init__(self, number: int, label: str | None) -> None:
        """Take the shard's number, and the column of labels."""
        self._number = number
        self._label = label
        self._places = array("q")
        self._labels: list[NDArray[np.int64] | list[Any]] = []
        self._words: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._places) // 2

    def add_image(self, start: int, size: int) -> None:
        """Note the position of the next row's image."""
        self._places.extend((start, size))

    def add_labels(self, batch: Any) -> None:
        """Note the labels of some rows."""
        if self._label is None:
            self._labels.append([None] * len(batch))
            return
        column = batch.column(self._label)
        if str(column.type) in _WHOLE and not column.null_count:
            self._labels.append(column.to_numpy(zero_copy_only=False).astype(np.int64))
            return
        values = column.to_pylist()
        # A word shared by a thousand rows is stored once.
        known = self._words
        self._labels.append([known.setdefault(value, value) if type(value) is str else value for value in values])

    def found(self, *, spooled: bool) -> FoundRows:
        """Return all rows; `spooled` as in `FoundRows`."""
        images = np.empty((len(self), 3), np.int64)
        images[:, 0] = self._number
        images[:, 1:] = np.frombuffer(self._places, np.int64).reshape(-1, 2)
        return FoundRows(images, _joined_labels(self._labels), spooled)


def _joined_labels(parts: Sequence[list[Any] | NDArray[np.int64]]) -> list[Any] | NDArray[np.int64]:
    """Return the labels of all parts, as an array if all parts are arrays."""
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if parts and len(arrays) == len(parts):
        return np.concatenate(arrays)
    return [value for part in parts for value in (part.tolist() if isinstance(part, np.ndarray) else part)]


class _ArrowFile:
    """A file opened by pyarrow; its errors become one typed error."""

    def __init__(self, shard: ShardFile) -> None:
        self.arrow = arrow = import_arrow(shard.name)
        self.shard = shard
        window = ScanWindow(shard.content)
        self.head = window.pread(8, 0)
        self.file = arrow.PythonFile(SourceFile(window), mode="r")

    def parquet(self) -> Any:
        """Return the file as a table; a column is read as a stream, not by whole row groups."""
        return self.arrow.parquet.ParquetFile(self.file, pre_buffer=False, buffer_size=_COLUMN_BUFFER_BYTES)

    def batches(self, image: str, label: str | None) -> Iterator[Any]:
        """Yield the rows in batches."""
        if self.head.startswith(_PARQUET):
            # Other columns, such as embeddings or captions in ten languages, may be far larger than the images.
            columns = [image, label] if label else [image]
            yield from self.parquet().iter_batches(batch_size=_ROWS, columns=columns, use_threads=False)
        elif self.head.startswith(_FEATHER):
            reader = self.arrow.ipc.open_file(self.file)
            yield from map(reader.get_batch, range(reader.num_record_batches))
        else:
            yield from self.arrow.ipc.open_stream(self.file)

    def __enter__(self) -> _ArrowFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # One handle at a time: a dataset may have thousands of files.
        self.shard.rest()
        # A mount's errors have a number, and ours are typed; all others are pyarrow's errors about the content.
        of_arrow = isinstance(error, self.arrow.ArrowException) or (isinstance(error, OSError) and error.errno is None)
        if of_arrow and not isinstance(error, ColabstageError):
            msg = f"'{self.shard.name}' is truncated, damaged or of an unknown kind: {error}. Copy or upload it again."
            raise CorruptArchiveError(msg) from error

    def rows_in_place(self, number: int, image: str, label: str | None) -> FoundRows | None:
        """Find the rows of an Arrow stream by their offsets in the file; `None` if images are compressed or have a
        special type."""
        ipc = self.arrow.ipc
        reader = ipc.MessageReader.open_stream(self.file)
        schema = ipc.read_schema(reader.read_next_message())
        rows = _RowColumns(number, label)
        while True:
            try:
                message = reader.read_next_message()
            except StopIteration:
                break
            if message.type != "record batch":
                return None
            body = message.body
            start = self.file.tell() - body.size
            batch = ipc.read_record_batch(message, schema)
            column = _bytes_column(batch.column(image))
            if column.null_count:
                raise _no_image(self.shard, len(rows) + column.is_null().to_pylist().index(True))
            dtype = _OFFSETS.get(str(column.type))
            if dtype is None:
                return None
            offsets = np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column) + 1]
            data = column.buffers()[2]
            if data is None or not body.address <= data.address <= body.address + body.size - data.size:
                return None
            first = start + data.address - body.address
            for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                rows.add_image(first + begin, end - begin)
            rows.add_labels(batch)
        return rows.found(spooled=False)


def _bytes_column(column: Any) -> Any:
    return column.field("bytes") if hasattr(column, "field") else column


def _no_image(shard: ShardFile, row: int) -> BrokenDatasetError:
    return BrokenDatasetError(
        f"Row {row:,} of '{shard.name}' has no bytes in its image: it may name a file instead. Embed the images before "
        "saving, as datasets' push_to_hub and save_to_disk do, or stage the folder of images."
    )


NAME = "arrow"
EXTENSIONS = (".parquet", ".arrow")

_IMAGE_COLUMNS = ("image", "img", "jpg", "png", "picture", "photo")
_OBJECTS, _BOX = ("objects", "annotations"), "bbox"
_BOX_LABELS = ("category", "categories", "category_id", "label", "labels", "class", "class_id")
# Number of images with boxes that are examined to find the meaning of the four numbers.
_LOOKED_AT = 64
_LABELS = ("label", "labels", "class", "fine_label", "target", "category", "class_id", "class_name", "y")


class _ColumnRoles(NamedTuple):
    """The columns of a file by purpose."""

    image: str
    label: str | None
    classes: tuple[str, ...]
    """Names of the classes, if the file has them."""
    others: list[str]
    """Columns that are left out."""


def arrow_state(source: Source) -> Evidence:
    """Read parquet or Arrow files that have a column of images.

    x is that column; y the first ClassLabel of `datasets`, or the column label: whole numbers, numbers or words; else
    the boxes in a column `objects`, as corners or as a corner and a size, whichever is possible for all of them. Splits
    are those that all files, or the folders they are in, are called after (train-00000-of-00002.parquet).
    """
    # Files that `datasets` computes and stores beside the data start so.
    entries = source.ending_in(EXTENSIONS).where(
        lambda name: not posixpath.basename(name).startswith(("cache-", "indices"))
    )
    require_files(entries, source, "parquet or Arrow files")
    # A picture in a readme is no dataset.
    if len(source.ending_in(IMAGES)) > len(entries):
        msg = f"'{source.label}' holds separate image files beside its parquet or Arrow files."
        raise LayoutError(msg)
    # Before any file is opened, so that a missing package is reported at once.
    import_arrow(entries[0].name)
    shards = scan_each(entries, lambda _, entry: open_shard(source.tree, entry))
    facts = scan_each(shards, lambda _, shard: read_facts(shard))
    columns = _find_columns(source.label, facts[0])
    # A different schema would otherwise appear as a missing column in the middle of packing.
    wanted = [name for name in (columns.image, columns.label) if name is not None]
    for other, one in zip(shards, facts, strict=True):
        missing = [name for name in wanted if name not in one.schema.names]
        if missing or _features(one.schema).get(columns.label or "") != _features(facts[0].schema).get(
            columns.label or ""
        ):
            msg = (
                f"'{other.name}' and '{shards[0].name}' have different columns or classes "
                f"({', '.join(one.schema.names)}); expected files of one dataset."
            )
            raise BrokenDatasetError(msg)
    found, shards = _find_images(source.label, shards, facts, columns)
    counts = [len(rows.images) for rows in found]
    names = [f"{shard.name}[{row}]" for shard, count in zip(shards, counts, strict=True) for row in range(count)]
    parts = np.concatenate([rows.images for rows in found])
    contents = samples_of_shards(shards, parts, names)
    values = _joined_labels([rows.labels for rows in found])
    del found
    targets: Targets | None
    if columns.label in _OBJECTS:
        targets, classes = _boxes_of_rows(values, contents, columns.classes)
    else:
        labels = values if isinstance(values, np.ndarray) else [_label(value, names[0]) for value in values]
        targets, classes = make_labels(labels, names, names=dict(enumerate(columns.classes)))
    notes = [f"Columns left out: {', '.join(columns.others)}."] if columns.others else []
    numbers = getattr(targets, "values", None)
    notes += [] if numbers is None else note_on_numbers(columns.label or "", numbers, classes)
    table = SampleTable(
        layout=NAME,
        keys=names,
        inputs=Images(contents),
        targets=targets,
        splits=splits_of_shards(shards, parts),
        classes=classes,
        notes=tuple(notes),
    )
    return Evidence(table, "columns of the rows", frozenset(entries.names))


def _find_columns(label_of_tree: str, facts: FileFacts) -> _ColumnRoles:
    features = _features(facts.schema)
    names = list(facts.schema.names)
    images = [name for name in names if features.get(name, {}).get("_type") == "Image"]
    images = images or [name for name in names if _is_binary(facts.schema.field(name).type)]
    if not images:
        msg = f"The files of '{label_of_tree}' have no column of images, but {', '.join(names)}."
        raise LayoutError(msg)
    image = next((name for name in _IMAGE_COLUMNS if name in images), images[0])
    labels = [name for name in names if features.get(name, {}).get("_type") == "ClassLabel"]
    called = label_names([name for name in names if name != image], _LABELS)
    labels = labels or [name for name in called if _is_label(facts.schema.field(name).type)]
    label = "label" if "label" in labels else next(iter(labels), None)
    if label is None:
        label = next(
            (name for name in _OBJECTS if name in names and f"{_BOX}: " in str(facts.schema.field(name).type)), None
        )
    others = [name for name in names if name not in (image, label)]
    if label in _OBJECTS:
        return _ColumnRoles(image, label, _box_names(features.get(label)), others)
    odd = next((name for name in called if plain_name(name) in _LABELS), None)
    if label is None and odd is not None:
        kind = facts.schema.field(odd).type
        msg = (
            f"The column '{odd}' of '{label_of_tree}' holds {kind} values, which are not labels; expected one "
            "number or word in each row. Rename it, or add a column of labels."
        )
        raise BrokenDatasetError(msg)
    classes = features.get(label or "", {}).get("names") or ()
    return _ColumnRoles(image, label, tuple(map(str, classes)), others)


def _box_names(feature: Any) -> tuple[str, ...]:
    """Return the names of the classes of boxes, in any of the forms that `datasets` writes."""
    if isinstance(feature, list):
        return next((names for one in feature if (names := _box_names(one))), ())
    if not isinstance(feature, dict):
        return ()
    if feature.get("_type") == "ClassLabel":
        return tuple(map(str, feature.get("names") or ()))
    return next((names for one in feature.values() if (names := _box_names(one))), ())


def _boxes_of_rows(
    values: Iterable[Any], source: SampleSource, classes: tuple[str, ...]
) -> tuple[Boxes, tuple[str, ...]]:
    """Return the boxes of all images, and the names of their classes."""
    rows: list[list[Sequence[float]]] = []
    labels: list[Label] = []
    owners: list[str] = []
    for number, value in enumerate(values):
        name = source.name(number)
        # `datasets` stores a list of objects as one list for each field.
        one = value or {}
        if isinstance(one, list):
            one = {key: [each.get(key) for each in one] for key in (one[0] if one else ())}
        key = next((key for key in _BOX_LABELS if key in one), None)
        found, said = one.get(_BOX) or [], [] if key is None else one[key] or []
        if len(found) != len(said) or any(box is None or len(box) != 4 for box in found):
            msg = (
                f"'{name}' has {len(found)} boxes and {len(said)} classes; expected four numbers and a class for each."
            )
            raise BrokenDatasetError(msg)
        rows.append(found)
        labels += [_label(each, name) for each in said]
        owners += [name] * len(said)
    targets, names = make_labels(labels, owners, names=dict(enumerate(classes)))
    offsets = offsets_of([len(found) for found in rows])
    corners = np.array([box for found in rows for box in found], np.float64).reshape(-1, 4)
    numbers = np.zeros(0, np.int64) if targets is None else targets.values
    return Boxes(offsets, _boxes_as_corners(corners, offsets, source), {"labels": numbers}), names


def _boxes_as_corners(
    boxes: NDArray[np.float64], offsets: NDArray[np.int64], source: SampleSource
) -> NDArray[np.float64]:
    """Return boxes as corners, whether they are stored as corners or as a corner and a size."""
    are_corners, are_sizes = possible_forms(boxes)
    for number in np.flatnonzero(np.diff(offsets))[:_LOOKED_AT].tolist() if are_sizes else ():
        image = probe_image(bytes(source.read(number)))
        own = possible_forms(boxes[offsets[number] : offsets[number + 1]], (image.width, image.height))
        are_corners, are_sizes = are_corners and own[0], are_sizes and own[1]
    if len(boxes) and are_corners == are_sizes:
        what = "may be two corners as well as a corner and a size" if are_corners else "are not inside their images"
        msg = (
            f"The boxes in '{source.name(0)}' and others {what} (first {boxes[0].tolist()}). Give layout= a "
            "function that says what they are, or write COCO's JSON beside image files."
        )
        raise BrokenDatasetError(msg)
    return boxes if are_corners else np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


def _features(schema: Any) -> dict[str, Any]:
    """Return the features that `datasets` stores for each column; nothing if another tool wrote the file."""
    try:
        found = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    if not isinstance(found, dict):
        return {}
    # A list of objects is written as a list with the feature of one.
    lists = {name: {"feature": one} for name, one in found.items() if isinstance(one, list)}
    return lists | {name: one for name, one in found.items() if isinstance(one, dict)}


def _is_binary(kind: Any) -> bool:
    # By its name in pyarrow, so that importing this module does not need pyarrow.
    text = str(kind)
    return text in ("binary", "large_binary") or text.startswith(("struct<bytes: binary", "struct<bytes: large_binary"))


def _is_label(kind: Any) -> bool:
    # As pandas writes a categorical column.
    kind = getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind
    return str(kind).startswith(("int", "uint", "float", "double", "halffloat", "string", "large_string", "bool"))


def _find_images(
    label: str, shards: list[ShardFile], facts: Sequence[FileFacts], columns: _ColumnRoles
) -> tuple[list[FoundRows], list[ShardFile]]:
    """Return the rows of each file, and the files to read their images from."""
    # Images in a parquet file are compressed together, so a single one cannot be read.
    folder = spool_folder(sum(one.unpacked_bytes for one in facts), f"The unpacked images of '{label}'")
    with tempfile.NamedTemporaryFile(dir=folder, prefix="colabstage-") as out:
        spool = ImageSpool(out.file)
        found = scan_each(shards, lambda number, shard: find_rows(shard, number, columns.image, columns.label, spool))
        # Data in Python's buffer would be missing when the file is opened again.
        out.flush()
        content = LocalBytes(Path(out.name), label=label)
    return found, [
        shard._replace(content=content) if rows.spooled else shard for shard, rows in zip(shards, found, strict=True)
    ]


def _label(value: Any, name: str) -> Label:
    if value is None or isinstance(value, int | float | str):
        return value
    msg = f"'{name}' has {kind_of(value)} as its label; expected a number or a word."
    raise BrokenDatasetError(msg)
