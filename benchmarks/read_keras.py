"""Images per second into TensorFlow and Keras: raw images and TFRecords against to_tf_data and to_keras.

    python -m benchmarks.read_keras [--rounds 3] [--images 2000] [--json OUT]

The same JPEG photographs (500x375, 100 kB) as 224x224 uint8 in batches of 64, shuffled, page cache warm, each at the
best settings found: tf.data with parallel maps and prefetching by AUTOTUNE, no determinism asked for. Raw images are
read by Keras's image_dataset_from_directory. TFRecords hold once the JPEG files as they came, once the decoded and
resized pixels; they are read in parallel from eight shards and shuffled in a buffer of 1,000 records. All contenders
take turns, round after round, in one process; the table has the median of the rounds. Each batch is touched in the same
way: one byte of every image is added up, and so are the labels.

Keras is set to its TensorFlow backend, where `fit` takes to_keras through `tf.data.Dataset.from_generator`: that is
measured too.

Ends with exit code 1 when to_tf_data or to_keras is less than 5 times as fast as image_dataset_from_directory, or
slower than the faster of the TFRecord pipelines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from benchmarks._photographs import write_photographs
from colabstage.load.frameworks.keras import to_keras
from colabstage.load.frameworks.tensorflow import to_tf_data
from colabstage.pack.run import pack_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SIDE, BATCH, SHARDS, BUFFER = 224, 64, 8, 1000
WANTED_RATIO = 5.0
AUTOTUNE = tf.data.AUTOTUNE


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


def through_adapter(dataset: Any) -> Any:
    """What `fit` makes of a PyDataset on this backend."""
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    return PyDatasetAdapter(dataset, shuffle=True).get_tf_dataset()


def touch(x: Any, y: Any) -> int:
    """The work that stands for a training step: one byte of every image, and the labels."""
    return int(np.asarray(x)[:, 0, 0, 0].sum(dtype=np.int64)) + int(np.asarray(y).sum())


def time_epoch(batches: Iterable[tuple[Any, Any]]) -> tuple[float, int]:
    """Seconds for an epoch, start-up included, and how many samples there were."""
    start, samples = time.perf_counter(), 0
    for x, y in batches:
        touch(x, y)
        samples += len(y)
    return time.perf_counter() - start, samples


def measure(contenders: dict[str, Callable[[], Any]], images: int, rounds: int) -> dict[str, list[float]]:
    """Images per second of each contender in each round, after one round that is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, make in contenders.items():
            seconds, samples = time_epoch(make())
            if samples != images:
                sys.exit(f"{name} gave {samples} samples of {images}.")
            if number:
                rates[name].append(images / seconds)
    return rates


def median_ratio(values: list[float], base: list[float]) -> float:
    """Median of the ratios within a round, which a machine that slows down for a while disturbs least."""
    return statistics.median(value / other for value, other in zip(values, base, strict=True))


def prepare(folder: Path, images: int) -> dict[str, Callable[[], Any]]:
    """Write all forms of the photographs; return what reads them, the raw images first."""
    photos = folder / "photos"
    write_photographs(photos, images)
    write_records(photos, folder / "jpeg", decoded=False)
    write_records(photos, folder / "pixels", decoded=True)
    pack_dataset(photos, folder / "pack.h5", image_size=(SIDE, SIDE), encoding="pixels", progress=False)
    ours, for_keras = to_tf_data(folder / "pack.h5", BATCH), to_keras(folder / "pack.h5", BATCH)
    raw, jpeg = from_folder(photos), from_records(folder / "jpeg", decoded=False)
    pixels = from_records(folder / "pixels", decoded=True)
    return {
        "image_dataset_from_directory": lambda: raw,
        "TFRecords of JPEG files": lambda: jpeg,
        "TFRecords of pixels": lambda: pixels,
        "to_tf_data": lambda: ours,
        "to_keras": lambda: for_keras,
        "to_keras, as fit takes it": lambda: through_adapter(for_keras),
    }


def report(rates: dict[str, list[float]]) -> dict[str, tuple[float, float]]:
    """Print the table; return for each of ours the ratio to raw images and to the faster TFRecords."""
    raw, jpeg, pixels, *_ = rates.values()
    records = max(jpeg, pixels, key=statistics.median)
    print(f"{'images/s':34}{'median':>10}{'lowest':>10}{'highest':>10}{'x raw':>9}{'x TFRecord':>12}")
    ratios = {}
    for name, values in rates.items():
        to_raw, to_records = median_ratio(values, raw), median_ratio(values, records)
        middle = statistics.median(values)
        print(f"{name:34}{middle:10,.0f}{min(values):10,.0f}{max(values):10,.0f}{to_raw:9.1f}{to_records:12.2f}")
        if name.startswith("to_"):
            ratios[name] = (to_raw, to_records)
    return ratios


def main() -> int:
    """Run the benchmark; 0 when both are fast enough."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are counted")
    parser.add_argument("--images", type=int, default=2000, help="photographs")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    print(f"tensorflow {tf.__version__}, keras {keras.__version__}, {len(os.sched_getaffinity(0))} cores\n")
    with tempfile.TemporaryDirectory(prefix="read-keras-") as folder:
        rates = measure(prepare(Path(folder), arguments.images), arguments.images, arguments.rounds)
    ratios = report(rates)
    found = "; ".join(f"{name}: {raw:.1f} and {records:.2f} times" for name, (raw, records) in ratios.items())
    print(f"\n{found} (wanted: {WANTED_RATIO:.0f} times raw images, and faster than TFRecords)")
    if arguments.json:
        arguments.json.write_text(json.dumps({"images_per_s": rates, "ratios": ratios}, indent=1) + "\n", "utf-8")
    return 0 if all(raw >= WANTED_RATIO and records > 1 for raw, records in ratios.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
