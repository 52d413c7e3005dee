"""What `to_tf_data` gives, as JSON. In its own process: importing tensorflow takes seconds and hundreds of megabytes,
and its threads stay."""

import gc
import json
import os
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from colabstage import to_tf_data

BATCH, SEED = 5, 3


def rows_of(dataset: Any) -> list[list[int]]:
    """The targets, which are row numbers, of each batch."""
    return [y.numpy().tolist() for _, y in dataset]


def files(path: Path) -> int:
    """How many descriptors of the file are open."""
    targets = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    return targets.count(str(path.resolve()))


def count_reads(dataset: Any) -> list[int]:
    """The batches that the reader is called for from now on."""
    # A dataset that TensorFlow derived from ours refers to it.
    while not hasattr(dataset, "colabstage_batches"):
        (*_, dataset) = dataset._inputs()
    batches, numbers = dataset.colabstage_batches, list[int]()
    read = batches.read

    def counted(epoch: int, number: int, *others: Any) -> Any:
        numbers.append(number)
        return read(epoch, number, *others)

    batches.read = counted
    return numbers


def reads_after_one(dataset: Any) -> int:
    """How many batches were read after one was taken and no more requested."""
    numbers = count_reads(dataset)
    iterator = iter(dataset)
    next(iterator)
    deadline = time.monotonic() + 30
    while len(numbers) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    return len(numbers)


def epochs_of(path: Path) -> dict[str, Any]:
    """Which rows come in which epoch, and whether the reader made batches of them."""
    # Without a queue behind it, which would be the object returned.
    dataset = to_tf_data(path, BATCH, seed=SEED, num_workers=2, prefetch_factor=2)
    reads = count_reads(dataset)
    facts: dict[str, Any] = {"spec": described(dataset.element_spec), "batches": int(dataset.cardinality())}
    facts["epochs"] = [rows_of(dataset) for _ in range(2)]
    facts["repeated"] = rows_of(dataset.repeat(2))
    for _ in dataset:
        break
    facts["after_break"] = rows_of(dataset)
    first, second = iter(dataset), iter(dataset)
    both = [(next(first)[1].numpy().tolist(), next(second)[1].numpy().tolist()) for _ in range(facts["batches"])]
    facts["beside"] = [list(rows) for rows in zip(*both, strict=True)]
    facts["resumed"] = rows_of(to_tf_data(path, BATCH, seed=SEED, epoch=7))
    half: dict[str, Any] = {"rows": range(0, 38, 2), "shuffle": False, "sample_weight": np.arange(38) / 2}
    facts["weighted"] = [
        (y.numpy().tolist(), weights.numpy().tolist()) for _, y, weights in to_tf_data(path, 16, **half)
    ]
    facts["full"] = rows_of(to_tf_data(path, BATCH, seed=SEED, drop_last=True))
    facts["reads"] = len(reads)
    with h5py.File(path) as file:
        x = file["X_train"][()]
    for batch, rows in to_tf_data(path, BATCH):
        np.testing.assert_array_equal(batch.numpy(), x[rows.numpy()])
    return facts


def reads_of_large(path: Path) -> int:
    """How often the reader is called in an epoch of 6 MB batches."""
    with h5py.File(path, "w") as file:
        file["X_train"], file["Y_train"] = np.arange(6 * 3_000_000, dtype=np.uint8).reshape(6, -1), np.arange(6)
    dataset = to_tf_data(path, 2, num_workers=2, prefetch_factor=2)
    reads = count_reads(dataset)
    for x, rows in dataset:
        np.testing.assert_array_equal(x.numpy()[:, 0], (rows.numpy() * 3_000_000).astype(np.uint8))
    return len(reads)


def error_of(path: Path) -> str:
    """The error that ends an epoch after somebody has written to the file."""
    dataset = to_tf_data(path, BATCH)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))
    try:
        rows_of(dataset)
    except Exception as error:  # noqa: BLE001 - TensorFlow's own kind
        return str(error)
    return "nothing"


def described(spec: Any) -> Any:
    """Shapes and dtypes of an element."""
    if isinstance(spec, dict):
        return {name: described(part) for name, part in spec.items()}
    if isinstance(spec, tuple):
        return [described(part) for part in spec]
    return [spec.shape.as_list(), spec.dtype.name]


def of_part(pack: Path, limit: int) -> dict[str, list[int]]:
    """The sums of a partial pack's batches: of a whole epoch, and of one that follows an epoch left in the middle."""
    # Imported last: torch comes with it.
    from colabstage import dataset_h5

    def sums(batches: Any) -> list[int]:
        return [int(x.numpy().sum()) for x, _ in batches]

    dataset = dataset_h5(pack, disk_limit=limit, local_dir=pack.parent / "part")
    found = {"whole": sums(to_tf_data(dataset, 50, seed=SEED))}
    batches = to_tf_data(dataset, 50, seed=SEED)
    found["left"] = sums(islice(batches, 7))
    found["after left"] = sums(batches)
    arrival: Any = dataset.reader.arrival
    arrival.close()
    return found


def main(files_of: list[Path], limit: int) -> dict[str, Any]:
    """All facts: about rows in a mapped file, rows decoded into memory, and rows at an unaligned offset."""
    path, boxes, chunked, odd, pack = files_of
    with h5py.File(path) as file:
        x = file["X_train"][()]
    facts: dict[str, Any] = {"mapped": epochs_of(path), "chunked": epochs_of(chunked), "odd": epochs_of(odd)}
    facts["reads_of_large"] = reads_of_large(path.parent / "large.h5")
    facts["torch_is_imported"] = "torch" in sys.modules
    classes = to_tf_data(path, BATCH, seed=SEED, one_hot=38)
    facts["one_hot"] = [y.numpy().tolist() for _, y in classes]
    facts["spec_full"] = described(to_tf_data(path, BATCH, drop_last=True, dtype="float32", one_hot=38).element_spec)
    for batch, rows in to_tf_data(path, BATCH, dtype="float32", prefetch_factor=3, num_workers=8):
        np.testing.assert_array_equal(batch.numpy(), x[rows.numpy()] / np.float32(255))
    facts["reads_after_one"] = reads_after_one(to_tf_data(odd, BATCH, num_workers=2, prefetch_factor=2))
    padded = to_tf_data(boxes, 4, shuffle=False)
    facts["spec_boxes"] = described(padded.element_spec)
    facts["lengths"] = [y["lengths"].numpy().tolist() for _, y in padded]
    dataset = to_tf_data(path, BATCH, seed=SEED)
    derived = dataset.map(lambda batch, rows: (batch, rows + 1)).prefetch(1)
    del dataset
    gc.collect()
    facts["derived"] = rows_of(derived)

    import keras

    model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    facts["fitted"] = len(model.fit(to_tf_data(path, BATCH), epochs=2, verbose=0).history["loss"])

    iterator = iter(to_tf_data(path, 1))
    next(iterator)
    facts["files_while_used"] = files(path)
    del classes, padded, derived, model, iterator, batch, rows
    gc.collect()
    facts["files_after_drop"] = files(path)
    facts["errors"] = [error_of(path), error_of(odd)]
    facts["part"] = of_part(pack, limit)
    gc.collect()
    facts["threads"] = [thread.name for thread in threading.enumerate() if thread.name.startswith("colabstage")]
    return facts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main([Path(name) for name in sys.argv[1:6]], int(sys.argv[6]))) + "\n")
