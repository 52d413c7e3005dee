"""How each library stores and loads the samples of `peers_pixels`, as its documentation has it or faster.

Every library has `store` (the source's `x.npy` and `y.npy` to its own format) and `settings`: the ways of loading among
which the quickest is taken, each made by a call. What that gives is iterated once an epoch; batches are `(x, y)`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks._pixel_data import BATCH, PACKED, Shape, read_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Batches = Iterable[tuple[Any, Any]]
    Settings = Mapping[str, Callable[[], Batches]]

# None comes last: LMDB refuses to be opened in a process whose parent has it open.
WORKERS = (1, 2, 0)
# Of what LitData and MosaicML Streaming write.
SHARD_BYTES = 64_000_000


def _as_is(batch: Any) -> Any:
    return batch


def _worker_settings(make: Callable[..., Batches], title: str = "") -> dict[str, Callable[[], Batches]]:
    return {f"{title}{workers} workers": partial(make, workers) for workers in WORKERS}


def _data_loader(dataset: Any, workers: int, **options: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(dataset, num_workers=workers, persistent_workers=workers > 0, **options)


def _whole_batches(dataset: Any, workers: int, **options: Any) -> Any:
    """A DataLoader that asks the dataset for all rows of a batch at once."""
    from torch.utils.data import BatchSampler, RandomSampler

    sampler = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
    return _data_loader(dataset, workers, batch_size=None, sampler=sampler, **options)


class H5py:
    """h5py over colabstage's file, opened by each process for itself, its dataset objects looked up once."""

    packages = ("h5py",)

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._path, self._shape = folder / PACKED, shape

    def store(self) -> None:
        """Reads the file that colabstage's contender wrote."""

    def settings(self) -> Settings:
        one = partial(H5pyRows, self._path, self._shape)
        return {
            **_worker_settings(lambda n: _data_loader(one(), n, batch_size=BATCH, shuffle=True)),
            **_worker_settings(lambda n: _whole_batches(one(), n), "a batch in one call, "),
        }


class H5pyRows:
    """A map-style dataset; a list of rows is read in one call, in the file's order."""

    def __init__(self, path: Path, shape: Shape) -> None:
        self._path, self._shape = path, shape
        self._x: Any = None
        self._y: Any = None

    def __len__(self) -> int:
        return self._shape.samples

    def _open(self) -> None:
        import h5py

        file = h5py.File(self._path, "r")
        targets = file["Y_train"]
        self._x, self._y = file["X_train"], targets if self._shape.masks else targets[()]

    def __getitem__(self, index: int | list[int]) -> tuple[Any, Any]:
        if self._x is None:
            self._open()
        # Points are read only in ascending order; which rows are together in a batch stays random.
        chosen = sorted(index) if isinstance(index, list) else index
        return self._x[chosen], self._y[chosen]


class Npy:
    """npy files read into memory, as a TensorDataset."""

    packages = ("torch", "numpy")

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._folder = folder

    def store(self) -> None:
        """It is stored as it should be."""

    def settings(self) -> Settings:
        import torch
        from torch.utils.data import TensorDataset

        rows = TensorDataset(*map(torch.from_numpy, read_samples(self._folder, in_memory=True)))
        return {
            **_worker_settings(lambda n: _data_loader(rows, n, batch_size=BATCH, shuffle=True)),
            **_worker_settings(lambda n: _whole_batches(rows, n), "indexed by whole batches, "),
        }


class Lmdb:
    """LMDB: a record holds target and input; batches are filled straight from the map."""

    packages = ("lmdb",)

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._path, self._shape, self._folder = folder / "lmdb", shape, folder

    def store(self) -> None:
        import lmdb

        shape, (x, y) = self._shape, read_samples(self._folder)
        room = shape.samples * (shape.x_bytes + shape.y_bytes + 16_384) + (64 << 20)
        with lmdb.open(str(self._path), map_size=room, sync=False) as env, env.begin(write=True) as txn:
            for row in range(shape.samples):
                txn.put(_key(row), y[row].tobytes() + x[row].tobytes(), append=True)

    def settings(self) -> Settings:
        return _worker_settings(lambda n: _whole_batches(LmdbRows(self._path, self._shape), n))


def _key(row: int) -> bytes:
    return row.to_bytes(4, "big")


class LmdbRows:
    """A dataset of batches."""

    def __init__(self, path: Path, shape: Shape) -> None:
        self._path, self._shape = path, shape
        self._txn: Any = None

    def __len__(self) -> int:
        return self._shape.samples

    def _open(self) -> None:
        import lmdb

        env = lmdb.open(str(self._path), readonly=True, lock=False, readahead=False, meminit=False)
        self._txn = env.begin(buffers=True)

    def __getitem__(self, rows: list[int]) -> tuple[Any, Any]:
        if self._txn is None:
            self._open()
        shape = self._shape
        x = np.empty((len(rows), *shape.x_shape), shape.dtype)
        y = np.empty((len(rows), *shape.y_shape), shape.y_dtype)
        x_bytes, y_bytes = x.reshape(len(rows), -1).view(np.uint8), y.reshape(len(rows), -1).view(np.uint8)
        for place, row in enumerate(rows):
            record = np.frombuffer(self._txn.get(_key(row)), np.uint8)
            y_bytes[place], x_bytes[place] = record[: shape.y_bytes], record[shape.y_bytes :]
        return x, y


class WebDataset:
    """WebDataset: raw bytes in eight tar shards, shards shuffled, then samples in a buffer of 1,000."""

    packages = ("webdataset",)
    _SHARDS = 8

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._place, self._shape, self._folder = folder / "webdataset", shape, folder

    def store(self) -> None:
        import webdataset as wds

        self._place.mkdir()
        x, y = read_samples(self._folder)
        count = -(-self._shape.samples // self._SHARDS)
        with wds.ShardWriter(str(self._place / "%06d.tar"), maxcount=count, maxsize=1e12, verbose=0) as writer:
            for row in range(self._shape.samples):
                writer.write({"__key__": f"{row:08}", "x.bin": x[row].tobytes(), "y.bin": y[row].tobytes()})

    def settings(self) -> Settings:
        return _worker_settings(self._open)

    def _open(self, workers: int) -> Batches:
        import webdataset as wds

        shards = [str(path) for path in sorted(self._place.glob("*.tar"))]
        stages = wds.WebDataset(shards, shardshuffle=len(shards), empty_check=False).shuffle(1000)
        batches = stages.map(self._parse).batched(BATCH, collation_fn=_stack)
        loader: Batches = wds.WebLoader(batches, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
        return loader

    def _parse(self, sample: dict[str, bytes]) -> tuple[NDArray[Any], NDArray[Any]]:
        return _parse(sample["x.bin"], sample["y.bin"], self._shape)


def _parse(x: Any, y: Any, shape: Shape) -> tuple[NDArray[Any], NDArray[Any]]:
    inputs = np.frombuffer(x, shape.dtype).reshape(shape.x_shape)
    return inputs, np.frombuffer(y, shape.y_dtype).reshape(shape.y_shape)


def _stack(samples: list[tuple[NDArray[Any], NDArray[Any]]]) -> tuple[Any, Any]:
    import torch

    x, y = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(x)), torch.from_numpy(np.stack(y))


class LitData:
    """LitData: raw bytes, optimised into chunks, read from the local folder."""

    packages = ("litdata",)

    def __init__(self, folder: Path, shape: Shape, shard_bytes: int = SHARD_BYTES) -> None:
        self._place, self._shape, self._folder, self._shard_bytes = folder / "litdata", shape, folder, shard_bytes

    def store(self) -> None:
        from litdata import optimize

        optimize(
            partial(_lit_sample, self._folder),
            list(range(self._shape.samples)),
            output_dir=str(self._place),
            num_workers=1,
            chunk_bytes=self._shard_bytes,
        )

    def settings(self) -> Settings:
        return _worker_settings(self._open)

    def _open(self, workers: int) -> Batches:
        from litdata import StreamingDataLoader, StreamingDataset

        loader: Batches = StreamingDataLoader(
            StreamingDataset(str(self._place), shuffle=True, drop_last=False),
            batch_size=BATCH,
            shuffle=True,
            drop_last=False,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=partial(stack_bytes, shape=self._shape),
        )
        return loader


def _lit_sample(folder: Path, row: int) -> dict[str, bytes]:
    x, y = read_samples(folder)
    return {"x": x[row].tobytes(), "y": y[row].tobytes()}


def stack_bytes(samples: list[dict[str, bytes]], shape: Shape) -> tuple[Any, Any]:
    """A batch of what LitData and MosaicML Streaming store."""
    return _stack([_parse(sample["x"], sample["y"], shape) for sample in samples])


class Mosaic:
    """MosaicML Streaming: raw bytes in MDS shards, read from the local folder."""

    packages = ("mosaicml-streaming",)

    def __init__(self, folder: Path, shape: Shape, shard_bytes: int = SHARD_BYTES) -> None:
        self._place, self._shape, self._folder, self._shard_bytes = folder / "mosaic", shape, folder, shard_bytes

    def store(self) -> None:
        from streaming import MDSWriter

        x, y = read_samples(self._folder)
        with MDSWriter(
            out=str(self._place), columns={"x": "bytes", "y": "bytes"}, size_limit=self._shard_bytes
        ) as writer:
            for row in range(self._shape.samples):
                writer.write({"x": x[row].tobytes(), "y": y[row].tobytes()})

    def settings(self) -> Settings:
        return _worker_settings(self._open)

    def _open(self, workers: int) -> Batches:
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        # It refuses a folder that a dataset of this process has open, unless what they share is given back first.
        clean_stale_shared_memory()
        dataset = StreamingDataset(local=str(self._place), shuffle=True, batch_size=BATCH)
        loader: Batches = _data_loader(
            dataset, workers, batch_size=BATCH, collate_fn=partial(stack_bytes, shape=self._shape)
        )
        return loader


class HuggingFace:
    """Hugging Face datasets: bytes in an Arrow file, mapped; a batch is one selection of its rows, as Arrow.

    Array features in torch's format, as its tutorials have it, are many times slower.
    """

    packages = ("datasets", "pyarrow")

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._place, self._shape, self._folder = folder / "datasets", shape, folder
        self._rows: Any = None

    def store(self) -> None:
        import datasets as hf

        hf.disable_progress_bars()
        features = hf.Features({"x": hf.Value("large_binary"), "y": hf.Value("large_binary")})
        self._rows = hf.Dataset.from_generator(
            partial(_bytes_of_rows, self._folder),
            features=features,
            cache_dir=str(self._place),
            writer_batch_size=max(1, (64 << 20) // (self._shape.x_bytes + self._shape.y_bytes)),
        )

    def settings(self) -> Settings:
        rows, parse = self._rows.with_format("arrow"), partial(_from_arrow, shape=self._shape)
        return _worker_settings(lambda n: _whole_batches(rows, n, collate_fn=parse))


def _bytes_of_rows(folder: Path) -> Iterator[dict[str, bytes]]:
    for x, y in zip(*read_samples(folder), strict=True):
        yield {"x": x.tobytes(), "y": y.tobytes()}


def _from_arrow(table: Any, shape: Shape) -> tuple[Any, Any]:
    import torch

    found = []
    for name, one, dtype in (("x", shape.x_shape, shape.dtype), ("y", shape.y_shape, shape.y_dtype)):
        column = table[name].combine_chunks()
        values = np.frombuffer(column.buffers()[2], np.uint8)
        offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset :]
        part = values[offsets[0] : offsets[len(column)]].view(dtype).reshape(len(column), *one)
        found.append(torch.from_numpy(part))
    return found[0], found[1]


class Lance:
    """Lance: fixed-size binary columns, taken by random rows, a whole batch in one call.

    Its own threads read, so the loop may go without workers; those that there are must be spawned, for it does not
    survive a fork.
    """

    packages = ("pylance", "pyarrow")

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._address, self._shape, self._folder = str(folder / "samples.lance"), shape, folder

    def store(self) -> None:
        import lance
        import pyarrow as pa

        shape, (x, y) = self._shape, read_samples(self._folder)
        schema = pa.schema([("x", pa.binary(shape.x_bytes)), ("y", pa.binary(shape.y_bytes))])
        step = max(1, (64 << 20) // (shape.x_bytes + shape.y_bytes))

        def batches() -> Iterator[Any]:
            for start in range(0, shape.samples, step):
                part = slice(start, start + step)
                columns = [
                    pa.FixedSizeBinaryArray.from_buffers(kind, len(x[part]), [None, pa.py_buffer(rows[part].tobytes())])
                    for kind, rows in zip(schema.types, (x, y), strict=True)
                ]
                yield pa.record_batch(columns, schema=schema)

        lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), self._address)

    def settings(self) -> Settings:
        return {f"{workers} workers": partial(self.open, self._address, self._shape, workers) for workers in WORKERS}

    @staticmethod
    def open(address: str, shape: Shape, workers: int) -> Batches:
        """Return a loader over a dataset at a path or an address."""
        method = "spawn" if workers else None
        rows = LanceRows(address, shape)
        loader: Batches = _whole_batches(rows, workers, collate_fn=_as_is, multiprocessing_context=method)
        return loader


class LanceRows:
    """A dataset of batches, opened by each process for itself."""

    def __init__(self, address: str, shape: Shape) -> None:
        self._address, self._shape = address, shape
        self._rows: Any = None

    def __len__(self) -> int:
        return self._shape.samples

    def __getitem__(self, rows: list[int]) -> tuple[Any, Any]:
        import torch

        if self._rows is None:
            import lance

            self._rows = lance.dataset(self._address)
        # Sorted it is up to four times as fast; which rows are together in a batch stays random.
        table = self._rows.take(sorted(rows))
        found = []
        for name, one, dtype in (
            ("x", self._shape.x_shape, self._shape.dtype),
            ("y", self._shape.y_shape, self._shape.y_dtype),
        ):
            column = table[name].combine_chunks()
            size = column.type.byte_width
            values = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * size :][: len(rows) * size]
            found.append(torch.from_numpy(values.view(dtype).reshape(len(rows), *one)))
        return found[0], found[1]


class Ffcv:
    """FFCV: raw arrays in one file, in the system's cache, batches compiled by Numba."""

    packages = ("ffcv", "numba")

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._path, self._shape, self._folder = folder / "samples.beton", shape, folder

    def store(self) -> None:
        from ffcv.fields import IntField, NDArrayField
        from ffcv.writer import DatasetWriter

        shape = self._shape
        target = NDArrayField(np.dtype(shape.y_dtype), shape.y_shape) if shape.masks else IntField()
        fields = {"x": NDArrayField(np.dtype(shape.dtype), shape.x_shape), "y": target}
        writer = DatasetWriter(str(self._path), fields, num_workers=1)
        writer.from_indexed_dataset(FfcvRows(self._folder, shape))

    def settings(self) -> Settings:
        return {f"{threads} threads": partial(self._open, threads) for threads in (1, 2)}

    def _open(self, threads: int) -> Batches:
        from ffcv.fields.decoders import IntDecoder, NDArrayDecoder
        from ffcv.loader import Loader, OrderOption
        from ffcv.transforms import Squeeze, ToTensor

        target = [NDArrayDecoder(), ToTensor()] if self._shape.masks else [IntDecoder(), ToTensor(), Squeeze()]
        loader: Batches = Loader(
            str(self._path),
            BATCH,
            threads,
            os_cache=True,
            order=OrderOption.RANDOM,
            drop_last=False,
            pipelines={"x": [NDArrayDecoder(), ToTensor()], "y": target},
        )
        return loader


class FfcvRows:
    """What FFCV's writer takes."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._folder, self._shape = folder, shape
        self._rows: Any = None

    def __len__(self) -> int:
        return self._shape.samples

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if self._rows is None:
            self._rows = read_samples(self._folder)
        x, y = self._rows
        return np.array(x[index]), np.array(y[index]) if self._shape.masks else int(y[index])


LIBRARIES = {
    "h5py": H5py,
    "npy": Npy,
    "lmdb": Lmdb,
    "webdataset": WebDataset,
    "litdata": LitData,
    "mosaic": Mosaic,
    "datasets": HuggingFace,
    "ffcv": Ffcv,
    "lance": Lance,
}
