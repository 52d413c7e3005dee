"""Images per second into TensorFlow and Keras: raw images and TFRecords against to_tf_data and to_keras.

    python -m benchmarks.read_keras [--rounds 3] [--images 2000]

The same JPEG photographs (500x375, 100 kB) as 224x224 uint8 in batches of 64, shuffled, page cache warm, each at the
best settings found: tf.data with parallel maps and prefetching by AUTOTUNE, no determinism asked for. Raw images are
read by Keras's image_dataset_from_directory. TFRecords hold once the JPEG files as they came, once the decoded and
resized pixels; they are read in parallel from eight shards and shuffled in a buffer of 1,000 records. All contenders
take turns, round after round, in one process; the table has the median of the rounds. Each batch is touched in the same
way: one byte of every image is added up, and so are the labels.

Keras is set to its TensorFlow backend. What its adapter hands to `fit` of to_keras is measured too, with the adapter
made once, as `fit` makes it, and begun anew each epoch: Keras puts a PyDataset through
`tf.data.Dataset.from_generator`. TensorFlow takes 10 to 50 ms to begin an epoch, as long as make_loader takes for all
of these images, so ours read a file that holds them four times; make_loader, torch's side of the same reader, is the
rate to compare with.

Then `model.fit` itself, an epoch of each, with a model that looks at one pixel of every image: the rate that training
cannot exceed on this machine, whatever the model.

What TensorFlow and Keras can take takes part too: one batch in memory, handed out over and over by TensorFlow, to the
loop and to `fit`, and by a PyDataset, to `fit`; nothing is read for these. `fit` cannot be faster with to_tf_data than
the one, nor with to_keras than the other.

The step of `fit` takes a core about as long as gathering a batch takes two, and both have to be done, so on two cores
no `fit` on data that has to be gathered reaches the slower of the two. What they reach together is measured: `fit` from
memory, of either kind, while two threads gather the batches of the same file by bare calls of numpy into buffers by
turns. A step begins when its batch has been gathered; nothing is handed over. An epoch of `fit` lasts a fraction of a
second, so a round has five of each, by turns, and takes the median.

The processor seconds of every epoch are measured too, of all threads.

Ends with exit code 1 when to_tf_data or to_keras is less than 5 times as fast as image_dataset_from_directory, slower
than the faster of the TFRecord pipelines, or has less than 0.7 of make_loader; or when `fit` gets less than 0.7 of the
slower of make_loader and `fit` from memory, or less than 0.9 of `fit` beside bare gathering.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import h5py
import keras
import numpy as np
import tensorflow as tf

from benchmarks._photographs import write_photographs
from benchmarks._report import Promise, judge, median_ratio
from colabstage.load.dataset import dataset_h5
from colabstage.load.frameworks.arrays import to_keras
from colabstage.load.frameworks.tensorflow import to_tf_data
from colabstage.load.loader import make_loader
from colabstage.load.reading.memory import BufferPool
from colabstage.pack.run import pack_dataset

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

SIDE, BATCH, SHARDS, BUFFER = 224, 64, 8, 1000
REPEATS = 4
WANTED, WANTED_OF_BARE = (5.0, 1.0, 0.7), 0.9
AUTOTUNE = tf.data.AUTOTUNE
PEERS = ("image_dataset_from_directory", "TFRecords of JPEG files", "TFRecords of pixels")
OURS = ("make_loader", "to_tf_data", "to_keras", "to_keras, as fit takes it")
LIMIT_OF_LOOP = "from memory, by TensorFlow"
FROM_MEMORY, FROM_DATASET = "fit from memory, by TensorFlow", "fit from memory, by a PyDataset"
BARE, BARE_DATASET = "fit beside bare gathering", "fit beside bare gathering, by a PyDataset"
FITTED = ("fit(to_tf_data)", "fit(to_keras)", FROM_MEMORY, FROM_DATASET, BARE, BARE_DATASET)
# For each of ours: `fit` of one batch in memory that comes in the same way, and that beside bare gathering.
SAME_WAY = {"fit(to_tf_data)": (FROM_MEMORY, BARE), "fit(to_keras)": (FROM_DATASET, BARE_DATASET)}
# Epochs of `fit` in a round.
FIT_EPOCHS = 5
# One is trained on while the others are gathered into.
BUFFERS, THREADS = 4, 2


class Spent(NamedTuple):
    """Seconds that something took."""

    wall: float
    """By the clock."""
    processor: float
    """Of all threads of this process together, on any core."""

    @classmethod
    def so_far(cls) -> Spent:
        """Seconds since some moment before this process did anything."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, earlier: Spent) -> Spent:
        """Seconds from then to now."""
        return Spent(self.wall - earlier.wall, self.processor - earlier.processor)


def write_records(folder: Path, target: Path, *, decoded: bool) -> None:
    """Write the photographs as TFRecords: as they are, or as pixels of the final size."""
    target.mkdir()
    writers = [tf.io.TFRecordWriter(str(target / f"{number}.tfrecord")) for number in range(SHARDS)]
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
        data = path.read_bytes()
        if decoded:
            data = _resized(tf.io.decode_jpeg(data, channels=3)).numpy().tobytes()
        label = int(path.parent.name.removeprefix("class_"))
        values = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[data])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=values))
        writers[number % SHARDS].write(example.SerializeToString())
    for writer in writers:
        writer.close()


def _resized(image: Any) -> Any:
    return tf.cast(tf.round(tf.image.resize(image, (SIDE, SIDE))), tf.uint8)


def from_records(folder: Path, *, decoded: bool) -> Any:
    """The TFRecord pipeline of TensorFlow's own performance guide."""
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(records: Any) -> Any:
        values = tf.io.parse_example(records, features)
        return tf.reshape(tf.io.decode_raw(values["image"], tf.uint8), (-1, SIDE, SIDE, 3)), values["label"]

    def parse_one(record: Any) -> Any:
        values = tf.io.parse_single_example(record, features)
        return _resized(tf.io.decode_jpeg(values["image"], channels=3)), values["label"]

    options = tf.data.Options()
    options.deterministic = False
    files = tf.data.Dataset.list_files(str(folder / "*.tfrecord")).with_options(options)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=SHARDS, num_parallel_calls=AUTOTUNE)
    records = records.shuffle(BUFFER)
    if decoded:
        # Whole batches at once: one call of parse_example for 64 records.
        return (
            records.batch(BATCH, num_parallel_calls=AUTOTUNE).map(parse, num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE)
        )
    return records.map(parse_one, num_parallel_calls=AUTOTUNE).batch(BATCH).prefetch(AUTOTUNE)


def from_folder(folder: Path) -> Any:
    """Keras's own pipeline of raw images."""
    images = keras.utils.image_dataset_from_directory(
        str(folder), batch_size=BATCH, image_size=(SIDE, SIDE), shuffle=True, verbose=False
    )
    return images.prefetch(AUTOTUNE)


class AsFitTakes:
    """What `fit` makes of its data on this backend, once, and iterates epoch after epoch."""

    def __init__(self, dataset: Any) -> None:
        from keras.src.trainers.data_adapters import get_data_adapter

        self._adapter = get_data_adapter(dataset, shuffle=False)
        self._batches = self._adapter.get_tf_dataset()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        self._adapter.on_epoch_begin()
        yield from self._batches
        self._adapter.on_epoch_end()


class OnePixel(keras.Model):  # type: ignore[misc]  # keras has no type information
    """A model that looks at one pixel of every image."""

    def __init__(self) -> None:
        super().__init__()
        self._last = keras.layers.Dense(1)

    def call(self, images: Any) -> Any:
        return self._last(keras.ops.cast(images[:, 0, 0], "float32"))


class Fitting:
    """Epochs of `fit`, of one model each, whose step TensorFlow has compiled in the first."""

    def __init__(self, dataset: Any, *callbacks: keras.callbacks.Callback) -> None:
        self._dataset, self._callbacks, self._model = dataset, callbacks, OnePixel()
        self._model.compile(keras.optimizers.SGD(1e-6), "mse")

    def time(self) -> Spent:
        """Time an epoch, start-up included."""
        began = Spent.so_far()
        self._model.fit(self._dataset, shuffle=False, verbose=0, callbacks=list(self._callbacks))
        return Spent.so_far().since(began)


class BareGathering(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no type information
    """Have threads gather the batches of a file in random order, each into the next of some buffers as soon as it is
    free; a step begins when its batch is there."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        with h5py.File(file) as opened:
            x, self._y = opened["X_train"], opened["Y_train"][:]
            self._x = np.memmap(file, x.dtype, "r", x.id.get_offset(), x.shape)
        pool = BufferPool(0)
        self._buffers = [pool.borrow((BATCH, *self._x.shape[1:]), self._x.dtype) for _ in range(BUFFERS)]
        self._threads = ThreadPoolExecutor(THREADS)
        self._rng = np.random.default_rng(0)

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Begin to gather."""
        order = self._rng.permutation(len(self._x))
        self._rows = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        self._gathered: list[Future[NDArray[Any]]] = []
        for number in range(BUFFERS - 1):
            self._begin(number)

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Wait for a batch; the buffer of the one before it is free."""
        if len(self._gathered[batch].result()) != len(self._rows[batch]):
            sys.exit("A batch was gathered in part.")
        self._begin(batch + BUFFERS - 1)

    def _begin(self, number: int) -> None:
        if number < len(self._rows):
            self._gathered.append(self._threads.submit(self._gather, self._rows[number], number % BUFFERS))

    def _gather(self, rows: NDArray[Any], buffer: int) -> NDArray[Any]:
        np.take(self._x, rows, axis=0, out=self._buffers[buffer][: len(rows)], mode="clip")
        return np.take(self._y, rows)


class FromMemory(keras.utils.PyDataset):  # type: ignore[misc]  # keras has no type information
    """One batch in memory, over and over, as often as makes up so many samples."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self._samples, self._x = samples, BufferPool(0).borrow((BATCH, SIDE, SIDE, 3), np.uint8)
        self._x.fill(1)

    def __len__(self) -> int:
        return math.ceil(self._samples / BATCH)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        count = min(BATCH, self._samples - index * BATCH)
        return self._x[:count], np.zeros(count, np.int64)


def by_tensorflow(batches: FromMemory) -> Any:
    """The same, handed out by TensorFlow."""
    full, last = (
        tf.data.Dataset.from_tensors(tuple(map(tf.constant, batches[number]))) for number in (0, len(batches) - 1)
    )
    return full.repeat(len(batches) - 1).concatenate(last)


def repeat_rows(packed: Path, target: Path) -> None:
    """Write a file that has every row of a packed one several times."""
    with h5py.File(packed) as source, h5py.File(target, "w") as file:
        for name in ("X_train", "Y_train"):
            rows = source[name]
            made = file.create_dataset(name, (len(rows) * REPEATS, *rows.shape[1:]), rows.dtype)
            for number in range(REPEATS):
                made[number * len(rows) : (number + 1) * len(rows)] = rows[...]


def touch(x: Any, y: Any) -> int:
    """The work that stands for a training step: one byte of every image, and the labels."""
    return int(np.asarray(x)[:, 0, 0, 0].sum(dtype=np.int64)) + int(np.asarray(y).sum())


def time_epoch(batches: Iterable[tuple[Any, Any]]) -> tuple[Spent, int]:
    """Time an epoch, start-up included; tell how many samples there were."""
    began, samples = Spent.so_far(), 0
    for x, y in batches:
        touch(x, y)
        samples += len(y)
    return Spent.so_far().since(began), samples


def measure(contenders: dict[str, Any], images: int, rounds: int) -> tuple[dict[str, list[float]], ...]:
    """Measure each contender in each round, after one round that is not counted: images per second, and microseconds of
    the processor for an image."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    work: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, made in contenders.items():
            if isinstance(made, Fitting):
                continue
            expected = images * (1 if name in PEERS else REPEATS)
            spent, samples = time_epoch(made)
            if samples != expected:
                sys.exit(f"{name} gave {samples} samples of {expected}.")
            if number:
                rates[name].append(samples / spent.wall)
                work[name].append(1e6 * spent.processor / samples)
        fitted = {name: made for name, made in contenders.items() if isinstance(made, Fitting)}
        epochs = [{name: made.time() for name, made in fitted.items()} for _ in range(FIT_EPOCHS)]
        if number:
            for name in fitted:
                samples = images * REPEATS
                rates[name].append(samples / statistics.median(epoch[name].wall for epoch in epochs))
                work[name].append(1e6 * statistics.median(epoch[name].processor for epoch in epochs) / samples)
    return rates, work


def prepare(folder: Path, images: int) -> dict[str, Any]:
    """Write all forms of the photographs; return what reads them or has `fit` do so, the raw images first."""
    photos = folder / "photos"
    write_photographs(photos, images)
    write_records(photos, folder / "jpeg", decoded=False)
    write_records(photos, folder / "pixels", decoded=True)
    pack_dataset(photos, folder / "pack.h5", image_size=(SIDE, SIDE), encoding="pixels", progress=False)
    rows = folder / "rows.h5"
    repeat_rows(folder / "pack.h5", rows)
    torchs, ours = make_loader(dataset_h5(rows), BATCH), to_tf_data(rows, BATCH)
    for_keras = to_keras(rows, BATCH)
    peers = [
        from_folder(photos),
        *(from_records(folder / kind, decoded=kind == "pixels") for kind in ("jpeg", "pixels")),
    ]
    again = FromMemory(images * REPEATS)
    limit = by_tensorflow(again)
    read = [torchs, ours, for_keras, AsFitTakes(to_keras(rows, BATCH))]
    fitted = [Fitting(dataset) for dataset in (ours, for_keras, limit, again)]
    fitted += [Fitting(dataset, BareGathering(rows)) for dataset in (limit, again)]
    names, made = (*PEERS, *OURS, *FITTED, LIMIT_OF_LOOP), [*peers, *read, *fitted, limit]
    return dict(zip(names, made, strict=True))


def report(rates: dict[str, list[float]], work: dict[str, list[float]]) -> dict[str, tuple[float, ...]]:
    """Print the table; return for each of ours the ratio to raw images, to the faster TFRecords, and to make_loader or,
    of `fit`, to the slower of that and `fit` from memory, and to `fit` beside bare gathering."""
    raw, jpeg, pixels, torchs, *_ = rates.values()
    records = max(jpeg, pixels, key=statistics.median)
    columns = f"{'median':>10}{'lowest':>10}{'highest':>10}{'x raw':>9}{'x TFRecord':>12}{'x loader':>10}{'CPU us':>8}"
    print(f"{'images/s':34}{columns}")
    ratios: dict[str, tuple[float, ...]] = {}
    for name, values in rates.items():
        to_raw, to_records = median_ratio(values, raw), median_ratio(values, records)
        to_torch, middle = median_ratio(values, torchs), statistics.median(values)
        figures = f"{middle:10,.0f}{min(values):10,.0f}{max(values):10,.0f}{to_raw:9.1f}{to_records:12.2f}"
        cost = f"{statistics.median(work[name]):8.1f}" if name in work else ""
        print(f"{name:34}{figures}{to_torch:10.2f}{cost}")
        if name in SAME_WAY:
            from_memory, bare = (rates[limit] for limit in SAME_WAY[name])
            to_torch = median_ratio(values, min(torchs, from_memory, key=statistics.median))
            ratios[name] = (to_raw, to_records, to_torch, median_ratio(values, bare))
        elif name.startswith("to_"):
            ratios[name] = (to_raw, to_records, to_torch)
    return ratios


def main() -> int:
    """Run the benchmark; 0 when both are fast enough."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are counted")
    parser.add_argument("--images", type=int, default=2000, help="photographs")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"tensorflow {tf.__version__}, keras {keras.__version__}, {cores} cores\n")
    with tempfile.TemporaryDirectory(prefix="read-keras-") as folder:
        rates, work = measure(prepare(Path(folder), arguments.images), arguments.images, arguments.rounds)
    promises = []
    for name, found in report(rates, work).items():
        loader = "the slower of make_loader and fit from memory" if name in FITTED else "make_loader"
        promises += [
            Promise(f"{name}: times raw images", found[0], "at least", WANTED[0], 1),
            Promise(f"{name}: times TFRecords", found[1], "at least", WANTED[1]),
            Promise(f"{name}: of {loader}", found[2], "at least", WANTED[2]),
        ]
        if name in FITTED:
            promises.append(Promise(f"{name}, of {SAME_WAY[name][1]}", found[3], "at least", WANTED_OF_BARE))
    return judge(promises)


if __name__ == "__main__":
    sys.exit(main())
