"""What `to_tf_data` gives, as JSON. A process of its own: importing tensorflow takes seconds and hundreds of
megabytes, and its threads stay."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from colabstage.load.frameworks.tensorflow import to_tf_data

BATCH, SEED = 5, 3


def rows_of(dataset: Any) -> list[list[int]]:
    """The targets, which are the numbers of rows, of each batch."""
    return [y.numpy().tolist() for _, y in dataset]


def files(path: Path) -> int:
    """How many descriptors of the file are open."""
    targets = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    return targets.count(str(path.resolve()))


def reads_after_one(dataset: Any) -> int:
    """How many batches were read when one was taken and nothing more is asked for."""
    batches, numbers = dataset.colabstage_batches, list[int]()
    read = batches.read

    def counted(epoch: int, number: int, *others: Any) -> Any:
        numbers.append(number)
        return read(epoch, number, *others)

    batches.read = counted
    iterator = iter(dataset)
    next(iterator)
    deadline = time.monotonic() + 30
    while len(numbers) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    return len(numbers)


def described(spec: Any) -> Any:
    """Shapes and dtypes of an element."""
    if isinstance(spec, dict):
        return {name: described(part) for name, part in spec.items()}
    if isinstance(spec, tuple):
        return [described(part) for part in spec]
    return [spec.shape.as_list(), spec.dtype.name]


def main(path: Path, boxes: Path) -> dict[str, Any]:
    """All facts."""
    with h5py.File(path) as file:
        x = file["X_train"][()]
    dataset = to_tf_data(path, BATCH, seed=SEED)
    facts: dict[str, Any] = {"torch_is_imported": "torch" in sys.modules}
    facts["spec"], facts["batches"] = described(dataset.element_spec), int(dataset.cardinality())
    facts["spec_full"] = described(to_tf_data(path, BATCH, drop_last=True, dtype="float32", one_hot=38).element_spec)
    facts["epochs"] = [rows_of(dataset) for _ in range(2)]
    facts["repeated"] = rows_of(dataset.repeat(2))
    for _ in dataset:
        break
    facts["after_break"] = rows_of(dataset)
    facts["resumed"] = rows_of(to_tf_data(path, BATCH, seed=SEED, epoch=7))
    for batch, rows in to_tf_data(path, BATCH, dtype="float32", prefetch_factor=3, num_workers=8):
        np.testing.assert_array_equal(batch.numpy(), x[rows.numpy()] / np.float32(255))
    facts["reads_after_one"] = reads_after_one(to_tf_data(path, BATCH, num_workers=2, prefetch_factor=2))
    padded = to_tf_data(boxes, 4, shuffle=False)
    facts["spec_boxes"] = described(padded.element_spec)
    facts["lengths"] = [y["lengths"].numpy().tolist() for _, y in padded]
    mapped = to_tf_data(path, BATCH, seed=SEED).map(lambda batch, rows: (batch, rows + 1)).prefetch(1)
    gc.collect()
    facts["mapped"] = rows_of(mapped)

    import keras

    model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    facts["fitted"] = len(model.fit(to_tf_data(path, BATCH), epochs=2, verbose=0).history["loss"])

    iterator = iter(to_tf_data(path, 1))
    next(iterator)
    facts["files_while_used"] = files(path)
    del dataset, padded, mapped, model, iterator, batch, rows, _
    gc.collect()
    facts["files_after_drop"] = files(path)
    facts["threads"] = [thread.name for thread in threading.enumerate() if thread.name.startswith("colabstage")]
    return facts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))) + "\n")
