"""Shards of each kind, as the library of its format writes them, in memory."""

import gzip
import io
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.layouts.readers import picture
from tests.support.archives import tar_bytes


def tar_of(samples: Sequence[Mapping[str, Any]]) -> bytes:
    """A WebDataset shard: each sample a file for each of its fields."""
    files = {}
    for number, sample in enumerate(samples):
        for field, value in sample.items():
            files[f"{number:06d}.{field}"] = value if isinstance(value, bytes) else str(value).encode()
    return tar_bytes(files)


def record(data: bytes) -> bytes:
    writer = pytest.importorskip("tfrecord.writer", reason="needs tfrecord: pip install -c constraints.txt tfrecord")
    length = struct.pack("<Q", len(data))
    sums = (writer.TFRecordWriter.masked_crc(part) for part in (length, data))
    return b"".join((length, next(sums), data, next(sums)))


def example(features: Mapping[str, Any]) -> bytes:
    """A tf.train.Example of numbers, texts, bytes, or lists of these."""
    writer = pytest.importorskip("tfrecord.writer", reason="needs tfrecord: pip install -c constraints.txt tfrecord")
    return bytes(writer.TFRecordWriter.serialize_tf_example({name: _feature(one) for name, one in features.items()}))


def _feature(value: Any) -> tuple[list[Any], str]:
    values = value if isinstance(value, list) else [value]
    if any(isinstance(one, float) for one in values) or not values:
        return values, "float"
    if all(isinstance(one, int) for one in values):
        return values, "int"
    return [one.encode() if isinstance(one, str) else one for one in values], "byte"


def records_of(examples: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(record(example(one)) for one in examples)


def parquet_of(columns: Mapping[str, Any], **options: Any) -> bytes:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'colabstage[arrow]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    parquet.write_table(arrow.table(columns), file, **options)
    return file.getvalue()


def stream_of(columns: Mapping[str, Any], *, batch: int = 3, compression: str | None = None) -> bytes:
    """An Arrow stream, several batches long."""
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'colabstage[arrow]'")
    table, file = arrow.table(columns), io.BytesIO()
    options = arrow.ipc.IpcWriteOptions(compression=compression)
    with arrow.ipc.new_stream(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch)
    return file.getvalue()


def feather_of(columns: Mapping[str, Any]) -> bytes:
    """An Arrow file that is compressed."""
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'colabstage[arrow]'")
    feather = pytest.importorskip("pyarrow.feather")
    file = io.BytesIO()
    feather.write_feather(arrow.table(columns), file, "lz4")
    return file.getvalue()


def lmdb_of(values: Mapping[bytes, bytes]) -> bytes:
    lmdb = pytest.importorskip("lmdb", reason="needs lmdb: pip install -c constraints.txt lmdb")
    with tempfile.TemporaryDirectory() as folder:
        with lmdb.open(folder, map_size=1 << 26) as env, env.begin(write=True) as transaction:
            for key, value in values.items():
                transaction.put(key, value)
        return Path(folder, "data.mdb").read_bytes()


def columns_of(numbers: Iterable[int], **more: Any) -> dict[str, Any]:
    """Images as Hugging Face's `datasets` keeps them, with a number each."""
    rows = [*numbers]
    images = [{"bytes": picture(n), "path": f"{n}.png"} for n in rows]
    return {"image": images, "label": [n % 3 for n in rows], **more}


def _lmdb(numbers: Sequence[int]) -> bytes:
    images = {b"image-%09d" % n: picture(n) for n in numbers}
    return lmdb_of(images | {b"label-%09d" % n: b"%d" % (n % 3) for n in numbers})


KINDS: dict[str, tuple[str, Callable[[Sequence[int]], bytes]]] = {
    "webdataset": ("{}-0.tar", lambda rows: tar_of([{"png": picture(n), "cls": n % 3} for n in rows])),
    "webdataset, compressed": ("{}-0.tar.gz",
        lambda rows: gzip.compress(tar_of([{"png": picture(n), "json": f'{{"label": {n % 3}}}'} for n in rows]))),
    "tfrecord": ("{}-00000-of-00001",
        lambda rows: records_of({"image/encoded": picture(n), "image/class/label": n % 3} for n in rows)),
    "tfrecord, compressed": ("pets-{}.tfrecord-00000-of-00001",
        lambda rows: gzip.compress(records_of({"image": picture(n), "label": n % 3} for n in rows))),
    "parquet": ("data/{}-00000-of-00001.parquet", lambda rows: parquet_of(columns_of(rows), row_group_size=2)),
    "arrow": ("{}/data-00000-of-00001.arrow", lambda rows: stream_of(columns_of(rows))),
    "lmdb": ("set_{}_lmdb/data.mdb", _lmdb),
}  # fmt: skip
"""What a shard of each kind is called, with the split in it, and how one of these numbers is made."""
