"""Counts how many different orders and batches Keras and TensorFlow get, and prints that as JSON. Run by the tests
beside it."""

import json
import sys
from typing import Any

import keras
import numpy as np

from colabstage import to_keras, to_tf_data


class Losses(keras.callbacks.Callback):  # type: ignore[misc]
    """Remembers the loss of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append(round(float(logs["loss"]), 4))


def targets(batches: Any, most: int = 1000) -> tuple[int, ...]:
    """Return the targets of the first batches."""
    found: list[int] = []
    for number, (_, y) in enumerate(batches):
        if number == most:
            break
        found += np.asarray(y).tolist()
    return tuple(found)


def fitted(train: Any) -> int:
    """Return how many different losses three batches have in ten epochs."""
    model, losses = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")]), Losses()
    model.compile(keras.optimizers.SGD(0.0), "mae")
    model.fit(train.take(3), epochs=10, verbose=0, callbacks=[losses])
    return len(set(losses.seen))


def orders(make: Any, path: str) -> int:
    """Return how many different orders five new datasets have, each with another seed."""
    found = set()
    for epoch in range(5):
        keras.utils.set_random_seed(epoch)
        found.add(targets(make(path, 8)))
    return len(found)


def main(path: str) -> None:
    """Count and print."""
    broken, first, taken = to_keras(path, 8), to_keras(path, 8), to_tf_data(path, 8)
    counts = {
        "to_keras, made anew": orders(to_keras, path),
        "to_tf_data, made anew": orders(to_tf_data, path),
        "next(iter(train))": len({targets(first, 1) for _ in range(5)}),
        "a loop that breaks": len({targets(broken, 3) for _ in range(5)}),
        "fit(to_tf_data.take(3))": fitted(taken),
    }
    sys.stdout.write(f"{json.dumps(counts)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
