"""Parquet and Arrow files whose rows are samples, as `datasets` writes them, read by pyarrow in batches.

Values are compressed in batches of rows, so a row is read with its neighbours, and only the batches in use are kept.
While a layout is detected, Parquet's labels are read but not its images, which are a separate column.
"""

from __future__ import annotations

import json
import posixpath
import threading
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import ColabstageError, CorruptArchiveError, LayoutError
from colabstage.io.arguments import as_arrays
from colabstage.io.files import read_with_retry
from colabstage.io.packages import refuse_import
from colabstage.io.units import listed
from colabstage.layouts.evidence import Evidence, require_files, size_in_file
from colabstage.layouts.formats.masks import is_mask_name, mask_field, masks_of_records
from colabstage.layouts.reading import Source, broken
from colabstage.layouts.records import (
    LABELS,
    ONE_LABEL,
    ScanMemory,
    ScanWindow,
    ShardFile,
    all_have,
    box_fields,
    boxes_in,
    boxes_of_records,
    label_fields,
    labelled_shards,
    labels_of_fields,
    names_of_feature,
    objects_of,
    open_shard,
    records_state,
    scan_each,
    split_of_shard,
)
from colabstage.layouts.stored import AS_THEY_ARE, ClipOptions, clip_rows
from colabstage.layouts.table import BrokenDatasetError, Images, Masks, SampleSource, SampleTable, join_samples
from colabstage.layouts.words import MAY_SPLIT, SPLIT_ORDER, is_group_name, plain_name, same_split
from colabstage.trees.bytes import SourceFile, image_ending

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.trees.listing import FileEntries

NAME = "arrow"
EXTENSIONS = (".parquet", ".arrow")

# Rows of a parquet file that are in memory at once; as many as `datasets` writes into a batch of images.
_ROWS = 100
# Readers are a few rows apart, and files are read one after the other.
_BATCHES_KEPT, _ROWS_KEPT = 3, 100
_NOWHERE = -1 - _BATCHES_KEPT
_COLUMN_BUFFER_BYTES = 1 << 20
# The end of a stream.
_END = b"\xff\xff\xff\xff\0\0\0\0"
_PARQUET, _FEATHER = b"PAR1", b"ARROW1"
# Types whose values all fit into int64.
_WHOLE = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})
_IMAGE_COLUMNS = ("image", "img", "jpg", "png", "picture", "photo")


def arrow_state(source: Source, *, sound: ClipOptions = AS_THEY_ARE) -> Evidence:
    """Read parquet or Arrow files that have a column of images, or otherwise of clips of sound.

    x is that column, of clips the rows that `sound` describes; y the boxes in a column such as `objects`, as xyxy or
    xywh, whichever is possible for all of them, or a second image that is called a mask; otherwise the first ClassLabel
    of `datasets`, or the column label: integers, numbers or words. Splits are those in the names of all files or of
    their folders (train-00000-of-00002.parquet), or those in a column split.
    """
    # Files that `datasets` computes and stores beside the data start so.
    entries = source.ending_in(EXTENSIONS).where(
        lambda name: not posixpath.basename(name).startswith(("cache-", "indices"))
    )
    require_files(entries, source, "parquet or Arrow files")
    kept, memory = _Kept(), ScanMemory()
    files = scan_each(entries, lambda _, entry: _ArrowFile(open_shard(source.tree, entry, memory), kept))
    # Those of all files: a test set that lacks the labels may come first.
    features = {name: one for file in reversed(files) for name, one in _features(file.schema).items()}
    kinds, types = _types(files), {name: one.get("_type") for name, one in features.items()}
    image, others, is_sound = _content_columns(source, entries, files[0].schema)
    dataset = _as_object(source, entries, types, [image, *(masks := _are_images(files, others))])
    about = box_fields(source.label, {name: _example_of(kind) for name, kind in kinds.items()})
    mask = _mask_column(source, masks, dataset, about)
    names = list(dict.fromkeys(name for file in files for name in file.schema.names))
    in_all = set(names).intersection(*(file.schema.names for file in files))
    typed = [name for name in names if types.get(name) == "ClassLabel"]
    # No lists, fields or bytes, which are no labels and take long to read.
    flat = [name for name, kind in kinds.items() if not kind.num_fields and not str(kind).startswith(_BYTES)]
    splits = [name for name in flat if plain_name(name) in MAY_SPLIT and name in in_all]
    # The first ClassLabel of `datasets` precedes any column that is named like a label.
    first = sorted((plain_name(name) for name in typed if name not in splits), key="label".__ne__)
    candidates = label_fields([name for name in names if name not in (image, mask)], first)
    # Of several labels those that all files have.
    labelling = [name for name in candidates if name in flat]
    called = [name for name in labelling if name in in_all] or labelling
    odd = [name for name in candidates if plain_name(name) in (*first, *LABELS) and not (called or about or mask)]
    if odd:
        what = f"the column '{odd[0]}' holds {kinds[odd[0]]} values, which are not labels"
        raise broken(source.label, what, ONE_LABEL)
    groups = [name for name in flat if is_group_name(name) and name in in_all and name not in typed]
    columns = list(dict.fromkeys([*about, *(() if about or mask else called), *splits, *groups, *filter(None, [mask])]))
    _refuse_other_columns(source, files, features, [image, *columns])
    parts = scan_each(files, lambda _, file: file.scan(image, columns, mask))
    lengths = [np.asarray(part.get(mask, ())) for part in parts]
    targets = [
        [*map(boxes_in, objects_of(part, about)), *(own >= 0)] or [()] * len(file)
        for part, own, file in zip(parts, lengths, files, strict=True)
    ]
    numbers, lost = labelled_shards(entries.names, parts, targets)
    files, parts = [files[number] for number in numbers], [parts[number] for number in numbers]
    fields = {name: _joined([part[name] for part in parts]) for name in columns}
    contents = join_samples([file.samples() for file in files])
    rows = [*map(contents.name, range(len(contents)))]
    classes, views = {name: names_of_feature(features.get(name)) for name in columns}, list[_ArrowFile]()
    if about:
        named = partial(names_of_feature, features.get(about[0])) if len(about) == 1 else classes.__getitem__
        labels = boxes_of_records(objects_of(fields, about), rows, partial(size_in_file, contents), named)
    elif all_have([None if size < 0 else size for size in fields.get(mask, ())], rows, "mask"):
        views = [file.view(mask, lengths[number]) for file, number in zip(files, numbers, strict=True)]
        labels = masks_of_records(source, join_samples([view.samples() for view in views]))
    else:
        labels = labels_of_fields(fields, rows, first=first, classes=classes)
    names_of = {name: dict(enumerate(classes[name])) for name in splits if classes[name]}
    in_words = {name: [own.get(value, value) for value in fields[name]] for name, own in names_of.items()}
    inputs, *notes = clip_rows(contents, sound) if is_sound and len(contents) else (Images(contents),)
    made = records_state(
        NAME,
        "columns of the rows",
        inputs,
        labels._replace(used=labels.used or (*about, mask)),
        shards=entries.names,
        shard_of=np.repeat(numbers, [len(file) for file in files]),
        fields=fields | in_words | {name: () for name in names if name not in (image, *columns)},
        notes=[*notes, *lost],
    )
    complete = partial(_measured, files, views) if any(file.is_parquet for file in files) else None
    return replace(made, table=replace(made.table, complete=complete))


def _types(files: Sequence[_ArrowFile]) -> dict[str, Any]:
    """Return the type of each column: where a file has no values, it may not know it."""
    every = [field for file in reversed(files) for field in file.schema]
    return {field.name: field.type for field in sorted(every, key=lambda field: "null" not in str(field.type))}


def _mask_column(source: Source, masks: Sequence[str], dataset: str, about: Sequence[str]) -> str:
    """Return the column of masks; "" for none. Refuse several, and one beside columns `about` boxes."""
    mask = mask_field(source.label, masks, dataset)
    if about and mask:
        how = f"one of both: pack_dataset({dataset}.remove_columns('{mask}'), 'packed.h5') leaves out the masks"
        raise broken(source.label, f"{listed(about)} hold boxes, and '{mask}' masks", how)
    return mask


def _are_images(files: Sequence[_ArrowFile], columns: Sequence[str]) -> list[str]:
    """Return the columns that are called as masks are and hold image files, by the first value that is there."""
    named = filter(is_mask_name, columns)
    return [one for one in named if image_ending(next(filter(None, (file.first(one) for file in files)), b""))]


def _refuse_other_columns(
    source: Source, files: Sequence[_ArrowFile], features: Mapping[str, Any], columns: Sequence[str]
) -> None:
    # A different schema would otherwise appear as a missing column in the middle of packing.
    of_columns = {one: own for one, own in features.items() if one in columns}
    lacking = {
        file.name: file.schema.names
        for file in files
        if {*columns}.difference(file.schema.names)
        or {one: own for one, own in _features(file.schema).items() if one in columns} != of_columns
    }
    for name, header in lacking.items():
        only = source.only({file.name for file in files} - lacking.keys(), lacking)
        what = f"it and others have different columns or classes ({', '.join(header)})"
        raise broken(name, what, f"files of one dataset{only and f', or some of them alone, {only}'}")


def _measured(files: Sequence[_ArrowFile], masks: Sequence[_ArrowFile], table: SampleTable) -> SampleTable:
    """Return the table with the length of each image or clip, and of each mask."""
    scan_each([*files, *masks], lambda _, file: file.measure())
    source, targets = join_samples([file.samples() for file in files]), table.targets
    if isinstance(targets, Masks) and masks:
        targets = replace(targets, source=join_samples([file.samples() for file in masks]))
    return replace(table, inputs=replace(table.inputs, source=source), targets=targets, complete=None)


# --- rows -------------------------------------------------------------------------------------------------------------


class _Kept:
    """The batches in memory, of all files: the latest, with at least as many rows as readers are apart."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Kept, ()

    def __init__(self) -> None:
        self._batches: OrderedDict[tuple[str, int], Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, file: str, number: int) -> Any:
        return self._batches.get((file, number))

    def put(self, file: str, number: int, batch: Any) -> None:
        with self._lock:
            self._batches[file, number] = batch
            self._batches.move_to_end((file, number))
            while len(self._batches) > _BATCHES_KEPT and sum(map(len, self._batches.values())) > _ROWS_KEPT:
                self._batches.popitem(last=False)


class _ArrowFile:
    """One file, read by pyarrow in batches of rows; in another process from what `scan` noted in this one."""

    def __init__(self, shard: ShardFile, kept: _Kept, image: str = "", starts: NDArray[np.int64] | None = None) -> None:
        self.name, self.shard = shard.name, shard
        self.sizes = np.zeros(0, np.int64)
        # Opened before pyarrow is imported: for a Git LFS pointer, installing a package would not help.
        at = shard.content.size - len(_END)
        self._arrow = _import_arrow(shard.name)
        self._lock = threading.Lock()
        # The number of the first row of each batch.
        self._kept, self._image = kept, image
        self._starts = np.zeros(1, np.int64) if starts is None else starts
        self._ahead: Iterator[Any] = iter(())
        self._next = _NOWHERE
        with self._errors():
            reader = self._open()
            self.schema: Any = reader.schema_arrow if self.is_parquet else reader.schema
            # A stream may be cut between two batches, which pyarrow takes as its end.
            is_stream = not self._head.startswith((_PARQUET, _FEATHER))
            if is_stream and read_with_retry(lambda: shard.pread(len(_END), at), self.name) != _END:
                msg = f"'{self.name}' is truncated: its end marker is missing. Copy or upload it again."
                raise CorruptArchiveError(msg)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return _ArrowFile, (self.shard, self._kept, self._image, self._starts)

    @property
    def is_parquet(self) -> bool:
        """Tell whether its columns are stored separately."""
        return self._head.startswith(_PARQUET)

    def _open(self) -> Any:
        window = ScanWindow(self.shard)
        self._head = window.pread(8, 0)
        file = self._arrow.PythonFile(SourceFile(window), mode="r")
        if self.is_parquet:
            # A column is read as a stream, not by whole row groups.
            return self._arrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=_COLUMN_BUFFER_BYTES)
        return self._arrow.ipc.open_file(file) if self._head.startswith(_FEATHER) else self._arrow.ipc.open_stream(file)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except ColabstageError:
            raise
        # A mount's errors have a number; others are pyarrow's errors about the content.
        except (self._arrow.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            msg = f"'{self.name}' is truncated, damaged or of an unknown kind: {error}. Copy or upload it again."
            raise CorruptArchiveError(msg) from error
        finally:
            # One handle at a time: a dataset may have thousands of files.
            self.shard.rest()

    def _batches(self, columns: Sequence[str], first: int = 0) -> Iterator[Any]:
        """Yield the batches, from the first wanted one on."""
        reader = self._open()
        if self._head.startswith(_FEATHER):
            yield from map(reader.get_batch, range(first, reader.num_record_batches))
        elif not self.is_parquet:
            yield from islice(reader, first, None)
        # Other columns, such as embeddings or captions in ten languages, may be far larger than the images.
        for group in range(reader.num_row_groups if self.is_parquet else 0):
            count = -(-reader.metadata.row_group(group).num_rows // _ROWS)
            if first < count:
                found = reader.iter_batches(_ROWS, row_groups=[group], columns=list(columns), use_threads=False)
                yield from islice(found, first, None)
            first = max(0, first - count)

    def scan(self, image: str, columns: Sequence[str], mask: str) -> dict[str, list[Any] | NDArray[np.int64]]:
        """Return the values of some columns, of that of masks how long each is, and -1 for none; and note where each
        batch begins, and how long each image is. In Parquet only about how long, from the size of all."""
        self._image = image
        known: dict[str, str] = {}
        read = [name for name in columns if name != mask or not self.is_parquet]

        def values_of(batches: Iterator[Any]) -> dict[str, list[Any] | NDArray[np.int64]]:
            parts = [{name: values(batch, name) for name in read} for batch in batches]
            return {name: _joined([part[name] for part in parts]) for name in read}

        def values(batch: Any, name: str) -> list[Any] | NDArray[np.int64]:
            return self._lengths(batch, name) if name == mask else _values_of(batch.column(name), known)

        if not self.is_parquet:
            return values_of(self._measure([image, *columns]))
        with self._errors():
            sizes, counts, nulls = self._groups(image)
            if nulls.any():
                self.measure()  # names the row
            found = values_of(self._batches(read)) if read else {}
            masks, _, without = self._groups(mask or image)
        self.sizes = np.repeat(sizes, counts)
        starts = [min(_ROWS, rows - first) for rows in counts.tolist() for first in range(0, rows, _ROWS)]
        self._starts = np.cumsum([0, *starts]).astype(np.int64)
        if (without % counts).any():
            self.view(mask, ()).measure()
        return found | {mask: np.repeat(np.where(without, -1, masks), counts)} if mask else found

    def first(self, column: str) -> bytes:
        """Return the first value of a column in the first batch that is no null, if it is there."""
        with self._errors():
            batch = next(self._batches([column]) if column in self.schema.names else iter(()), None)
        values = () if batch is None else _bytes_column(batch.column(column))
        return next((bytes(value.as_py()) for value in values if value.is_valid), b"")

    def view(self, column: str, sizes: Any) -> _ArrowFile:
        """Return the same file with another column in place of that of the images, given how long its values are."""
        found = _ArrowFile(self.shard, _Kept(), column, self._starts)
        found.sizes = np.asarray(sizes, np.int64)
        return found

    def _groups(self, column: str) -> NDArray[np.int64]:
        """Return of each row group how many bytes a value of a column takes, how many rows it has, and how many of
        these are without bytes, int64 `(3, N)`."""
        metadata = self._open().metadata
        found = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            columns = [group.column(place) for place in range(group.num_columns)]
            own = next(one for one in columns if one.path_in_schema in (column, f"{column}.bytes"))
            nulls = own.statistics.null_count if own.statistics is not None else None
            found.append((own.total_uncompressed_size // max(1, group.num_rows), group.num_rows, nulls or 0))
        return np.array(found, np.int64).reshape(-1, 3).T

    def _lengths(self, batch: Any, column: str) -> NDArray[np.int64]:
        """Return how many bytes each value of a column has, -1 for none."""
        lengths = self._arrow.compute.binary_length(_bytes_column(batch.column(column))).fill_null(-1)
        found: NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        return found

    def _without_bytes(self, row: int) -> BrokenDatasetError:
        what = f"row {row:,} has no bytes in '{self._image}', and may name a file instead"
        return broken(self.name, what, "images inside, as push_to_hub and save_to_disk of datasets put them")

    def measure(self) -> None:
        """Note how long each image is, and where each batch begins."""
        for _ in self._measure([self._image]):
            pass

    def _measure(self, columns: Sequence[str]) -> Iterator[Any]:
        sizes: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        with self._errors():
            for batch in self._batches(columns):
                lengths = self._lengths(batch, self._image)
                if (lengths < 0).any():
                    raise self._without_bytes(sum(map(len, sizes)) + int(np.argmin(lengths)))
                sizes.append(lengths)
                yield batch
        self.sizes = np.concatenate(sizes)
        self._starts = np.cumsum([len(one) for one in sizes]).astype(np.int64)

    def samples(self) -> SampleSource:
        rows = np.arange(len(self.sizes))
        return SampleSource(self.sizes, rows, name=self.name_of, stamp=self.stamp_of, read=self.read)

    def name_of(self, row: int) -> str:
        return f"{self.name}[{row}]"

    def stamp_of(self, row: int) -> str:
        return f"{self.shard.stamp} {row}"

    def read(self, row: int) -> bytes:
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        with self._lock:
            batch = self._kept.get(self.name, number)
            if batch is None:
                with self._errors():
                    batch = self._read_batch(number)
        content = batch[row - int(self._starts[number])].as_py()
        if content is None:
            raise self._without_bytes(row)
        return bytes(content)

    def _read_batch(self, number: int) -> Any:
        """Read on to a batch; start at its row group again if it is behind, or far ahead."""
        if not self._next <= number < self._next + _BATCHES_KEPT:
            self._ahead, self._next = self._batches([self._image], number), number
        batch: Any = []
        while self._next <= number:
            found = next(self._ahead, None)
            batch = [] if found is None else _bytes_column(found.column(self._image))
            if len(batch) != self._starts[self._next + 1] - self._starts[self._next]:
                msg = f"'{self.name}' has changed since its rows were counted. Start again when nothing writes to it."
                raise CorruptArchiveError(msg)
            self._kept.put(self.name, self._next, batch)
            self._next += 1
        # A reader would keep its buffers, for each of thousands of files.
        if self._next == len(self._starts) - 1:
            self._ahead, self._next = iter(()), _NOWHERE
        return batch


def _import_arrow(name: str) -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        refuse_import("pyarrow", f"'{name}' is read by", error)
    return pyarrow


def _values_of(column: Any, known: dict[str, str]) -> NDArray[np.int64] | list[Any]:
    if str(column.type) in _WHOLE and not column.null_count:
        numbers: NDArray[np.int64] = column.to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers
    # A word shared by a thousand rows is stored once.
    return [known.setdefault(value, value) if type(value) is str else value for value in column.to_pylist()]


def _joined(parts: Sequence[list[Any] | NDArray[np.int64]]) -> list[Any] | NDArray[np.int64]:
    """Return the values of all parts, as an array if all parts are arrays."""
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if parts and len(arrays) == len(parts):
        return np.concatenate(arrays)
    return [value for part in parts for value in (part.tolist() if isinstance(part, np.ndarray) else part)]


def _bytes_column(column: Any) -> Any:
    return column.field("bytes") if hasattr(column, "field") else column


# --- columns ----------------------------------------------------------------------------------------------------------


def _content_columns(source: Source, entries: FileEntries, schema: Any) -> tuple[str, list[str], bool]:
    """Return the column of the samples' contents, those of further images, and whether the samples are clips."""
    types = {name: one.get("_type") for name, one in _features(schema).items()}
    binary = [name for name in schema.names if str(schema.field(name).type).startswith(_BYTES)]
    # Without types, a column of the name that `datasets` gives it.
    sounds = [name for name in binary if types.get(name, name.title()) == "Audio"]
    images = [name for name in binary if types.get(name) == "Image"] or [name for name in binary if name not in sounds]
    if not images and not sounds:
        rows, kinds = _as_object(source, entries, types, ()), [*map(str, schema.types)]
        texts = f"Of text make lines: {rows}.to_json('train.jsonl'). " * any("string" in kind for kind in kinds)
        how = texts + as_arrays(f"{rows}.to_pandas()", are_lists=any("list<" in kind for kind in kinds))
        msg = f"The files of '{source.label}' have no column of images or clips, but {', '.join(schema.names)}. {how}"
        raise LayoutError(msg)
    pictures = [name for name in images if not is_mask_name(name)] or images
    content = next((name for name in _IMAGE_COLUMNS if name in images), [*pictures, *sounds][0])
    return content, [name for name in images if name != content], not images


# Types by their names in pyarrow, so that importing this module does not need pyarrow.
_BYTES = ("binary", "large_binary", "struct<bytes: binary", "struct<bytes: large_binary")


def _features(schema: Any) -> dict[str, Any]:
    """Return the features that `datasets` stores for each column; nothing if another tool wrote the file."""
    try:
        found = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {name: one if isinstance(one, dict) else {"feature": one} for name, one in found.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def _example_of(kind: Any) -> Any:
    """Return a value of the shape that a type's values have."""
    if not kind.num_fields:
        return None
    if hasattr(kind, "value_type"):
        return [_example_of(kind.value_type)]
    return {kind.field(place).name: _example_of(kind.field(place).type) for place in range(kind.num_fields)}


def _as_object(source: Source, files: FileEntries, types: Mapping[str, Any], images: Sequence[str]) -> str:
    """Return the line that opens the files with `datasets`, which must be told what columns of another tool hold."""
    names, splits = files.names, {*map(split_of_shard, files.names)}
    split = min(splits, key=lambda split: SPLIT_ORDER.get(split, -1)) or "train"
    called = "validation" if same_split(split, "val") else split
    ending = posixpath.splitext(names[0])[1][1:]
    if any(posixpath.basename(name) == "state.json" for name in source.files.names):
        opened = f"datasets.load_from_disk('{source.label}')" + f"['{split}']" * any(splits)
    elif ending == "parquet" and not source.label.endswith(names[0]):
        opened = f"datasets.load_dataset('{source.label}', split='{called}')"
    else:
        paths = source.addresses(files.where(lambda name: split_of_shard(name) in (split, "")))[1]
        opened = f"datasets.load_dataset('{ending}', data_files={paths}, split='train')"
    untyped = (name for name in images if types.get(name) != "Image")
    return opened + "".join(f".cast_column('{name}', datasets.Image())" for name in untyped)
