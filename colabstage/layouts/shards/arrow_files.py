"""One parquet or Arrow file: its schema, where its images lie, and the column of labels; batch by batch, by pyarrow."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import ColabstageError, CorruptArchiveError, MissingDependencyError
from colabstage.layouts.members import SeekableBytes
from colabstage.layouts.shards.shard_source import Part, ScanWindow, Shard, rest_shard
from colabstage.layouts.table import ClaimedTreeError
from colabstage.retry import RetryPolicy, read_with_retry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

# Rows of a parquet file that are in memory at once; as many as `datasets` writes into a batch of images.
_ROWS = 100
_COLUMN_BUFFER_BYTES = 1 << 20
# How a stream ends; the second is that of streams that do not begin with the first half of it.
_END, _OLD_END = b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\0"
_PARQUET, _FEATHER = b"PAR1", b"ARROW1"


class FileFacts(NamedTuple):
    """What a file says before its rows are read.

    `schema`: pyarrow's. `unpacked_bytes`: about what its images take when they have to be unpacked, 0 where they lie in
    the file as they are.
    """

    schema: Any
    unpacked_bytes: int


class FoundRows(NamedTuple):
    """Where each row's image lies, in the file or in the spool, and its label."""

    images: list[Part]
    labels: list[Any]
    spooled: bool


class ImageSpool:
    """Images that were unpacked, one after the other in one file; from several threads."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._end = 0
        self._lock = threading.Lock()

    def append(self, image: bytes) -> int:
        """Keep an image; where it begins."""
        with self._lock:
            start, self._end = self._end, self._end + len(image)
            self._out.write(image)
        return start


def import_arrow(name: str) -> Any:
    """The module pyarrow.

    Raises:
        MissingDependencyError: it is not installed; `name` is the file that needs it.
    """
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        msg = f"'{name}' is read by pyarrow. Install it with: pip install 'colabstage[arrow]'"
        raise MissingDependencyError(msg) from error
    return pyarrow


def read_facts(shard: Shard) -> FileFacts:
    """Look at a file's schema, and at how much its images take.

    Raises:
        CorruptArchiveError: it is truncated or damaged, or neither parquet nor Arrow.
    """
    arrow = import_arrow(shard.name)
    with _Opened(arrow, shard) as opened:
        if opened.head.startswith(_PARQUET):
            file = opened.parquet()
            return FileFacts(file.schema_arrow, _column_bytes(file.metadata))
        if opened.head.startswith(_FEATHER):
            return FileFacts(arrow.ipc.open_file(opened.file).schema, 2 * shard.content.size)
        facts = FileFacts(arrow.ipc.open_stream(opened.file).schema, 0)
        _check_end(shard, opened.head)
        return facts


def find_rows(shard: Shard, number: int, image: str, label: str | None, spool: ImageSpool) -> FoundRows:
    """Find every row's image and label, in one pass over the file.

    Args:
        shard: the file.
        number: which of the shards it is.
        image: the column of images: bytes, or a struct with `bytes` as `datasets` writes it.
        label: the column of labels.
        spool: takes the images that do not lie in the file as they are.

    Raises:
        ClaimedTreeError: a row has no image; it is named.
        CorruptArchiveError: the file is truncated or damaged.
    """
    arrow = import_arrow(shard.name)
    with _Opened(arrow, shard) as opened:
        if not opened.head.startswith((_PARQUET, _FEATHER)):
            found = _in_place(arrow, opened, number, image, label)
            if found is not None:
                return found
    with _Opened(arrow, shard) as opened:
        images: list[Part] = []
        labels: list[Any] = []
        for batch in opened.batches(image, label):
            for content in _bytes_column(batch.column(image)).to_pylist():
                if content is None:
                    raise _no_image(shard, len(images))
                images.append(Part(number, spool.append(content), len(content)))
            labels += batch.column(label).to_pylist() if label else [None] * len(batch)
    return FoundRows(images, labels, spooled=True)


class _Opened:
    """A file as pyarrow reads it; what goes wrong inside becomes one typed error."""

    def __init__(self, arrow: Any, shard: Shard) -> None:
        self._arrow = arrow
        self.shard = shard
        window = ScanWindow(shard.content)
        self.head = window.pread(8, 0)
        self.file = arrow.PythonFile(SeekableBytes(window), mode="r")

    def parquet(self) -> Any:
        """The file as a table; a column is read as a stream, not by whole row groups."""
        return self._arrow.parquet.ParquetFile(self.file, pre_buffer=False, buffer_size=_COLUMN_BUFFER_BYTES)

    def batches(self, image: str, label: str | None) -> Iterator[Any]:
        """The rows, some at a time."""
        if self.head.startswith(_PARQUET):
            columns = [image, label] if label else [image]
            yield from self.parquet().iter_batches(batch_size=_ROWS, columns=columns, use_threads=False)
        elif self.head.startswith(_FEATHER):
            reader = self._arrow.ipc.open_file(self.file)
            yield from map(reader.get_batch, range(reader.num_record_batches))
        else:
            yield from self._arrow.ipc.open_stream(self.file)

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        rest_shard(self.shard)
        if error is not None and self._is_about_format(error):
            msg = f"'{self.shard.name}' is truncated, damaged or of an unknown kind: {error}. Copy or upload it again."
            raise CorruptArchiveError(msg) from error

    def _is_about_format(self, error: BaseException) -> bool:
        """Whether pyarrow complains of what it read; what a mount answers has a number, and what we raise is typed."""
        if isinstance(error, ColabstageError):
            return False
        return isinstance(error, self._arrow.ArrowException) or (isinstance(error, OSError) and error.errno is None)


def _check_end(shard: Shard, head: bytes) -> None:
    """Refuse a stream that stops between two batches, which pyarrow takes for its end."""
    end = _END if head.startswith(_END[:4]) else _OLD_END
    size = shard.content.size
    if read_with_retry(lambda: shard.content.pread(len(end), size - len(end)), shard.name, policy=RetryPolicy()) != end:
        msg = f"'{shard.name}' is truncated: it stops without the mark of its end. Copy or upload it again."
        raise CorruptArchiveError(msg)


def _column_bytes(metadata: Any) -> int:
    return sum(
        metadata.row_group(group).column(column).total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )


def _in_place(arrow: Any, opened: _Opened, number: int, image: str, label: str | None) -> FoundRows | None:
    """Rows of an Arrow stream by their places in the file; `None` where images are compressed or of another type."""
    reader = arrow.ipc.MessageReader.open_stream(opened.file)
    schema = arrow.ipc.read_schema(reader.read_next_message())
    images: list[Part] = []
    labels: list[Any] = []
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            break
        if message.type != "record batch":
            return None
        body = message.body
        start = opened.file.tell() - body.size
        batch = arrow.ipc.read_record_batch(message, schema)
        column = _bytes_column(batch.column(image))
        if column.null_count:
            raise _no_image(opened.shard, len(images) + column.is_null().to_pylist().index(True))
        offsets = _offsets(arrow, column)
        data = column.buffers()[2]
        if offsets is None or data is None or not body.address <= data.address <= body.address + body.size - data.size:
            return None
        first = start + data.address - body.address
        for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            images.append(Part(number, first + begin, end - begin))
        labels += batch.column(label).to_pylist() if label else [None] * len(batch)
    return FoundRows(images, labels, spooled=False)


def _bytes_column(column: Any) -> Any:
    return column.field("bytes") if hasattr(column, "field") else column


def _offsets(arrow: Any, column: Any) -> Any:
    kinds = ((arrow.binary(), np.int32), (arrow.large_binary(), np.int64))
    dtype = next((dtype for kind, dtype in kinds if column.type == kind), None)
    if dtype is None:
        return None
    return np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column) + 1]


def _no_image(shard: Shard, row: int) -> ClaimedTreeError:
    return ClaimedTreeError(
        f"Row {row:,} of '{shard.name}' has no bytes in its image: it may name a file instead. Embed the images before "
        "saving, as datasets' push_to_hub and save_to_disk do, or stage the folder of images."
    )
