"""What `to_keras` does with the backend named by KERAS_BACKEND, as JSON. In its own process, because keras chooses its
backend once."""

import json
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from colabstage import to_keras
from colabstage.errors import OptionError, PackFormatError

BATCH, SEED = 5, 3


def threads() -> list[str]:
    """The running threads of colabstage."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("colabstage")]


def threads_left() -> list[str]:
    """The threads that are still there after all had time to end."""
    deadline = time.monotonic() + 10
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    return threads()


def refusal(act: Callable[[], object]) -> str:
    """The message of the error that the call raises."""
    try:
        act()
    except OptionError as error:
        return str(error)
    return "nothing"


def constant_model(keras: Any) -> Any:
    """A model that always returns 0 and learns nothing: its loss is the mean of the targets."""
    layers = [keras.layers.Flatten(), keras.layers.Dense(1, kernel_initializer="zeros")]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.0), "mae")
    return model


def recorder(keras: Any, *, stop_after: int | None = None) -> Any:
    """A callback that records the sum of each batch's targets, epoch by epoch, computed from the running mean of the
    loss."""

    class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.epochs: list[list[float]] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epochs.append([])

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.epochs[-1].append(float(logs["loss"]))
            if stop_after is not None and batch + 1 == stop_after:
                self.model.stop_training = True

    return Recorder()


def warnings_of_names(*batches: Any) -> list[str]:
    """What each warns of when its file names are read, which this file does not have."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for one in batches:
            with suppress(PackFormatError):
                list(one.filenames)
    return [str(one.message) for one in warned]


def main(path: Path) -> dict[str, Any]:
    """All facts."""
    with h5py.File(path) as file:
        x = file["X_train"][()]
    by_hand = to_keras(path, BATCH, seed=SEED)
    facts: dict[str, Any] = {"torch_is_imported": "torch" in sys.modules}
    import keras

    facts["backend"] = keras.backend.backend()
    facts["by_hand"] = [[np.asarray(y).tolist() for _, y in by_hand] for _ in range(2)]

    looked = to_keras(path, BATCH, seed=SEED)
    facts["parts"] = [[np.asarray(looked[number][1]).tolist() for number in range(3)] for _ in range(2)]
    read = [np.asarray(looked[3][1]).tolist(), looked.num_batches, np.asarray(looked[4][1]).tolist()]
    facts["asked_in_the_middle"] = read

    train = to_keras(path, BATCH, seed=SEED, dtype="float32")
    model, record = constant_model(keras), recorder(keras)
    model.fit(train, epochs=3, verbose=0, callbacks=[record])
    facts["fit"] = record.epochs
    facts["threads_after_fit"] = threads_left()

    still = to_keras(path, BATCH, shuffle=False, dtype="float32")
    echo = keras.Sequential([keras.layers.Flatten()])
    predicted = echo.predict(still, verbose=0)
    np.testing.assert_allclose(predicted, x.reshape(len(x), -1) / np.float32(255), rtol=1e-6)
    ordered = recorder(keras)
    model.fit(still, epochs=1, verbose=0, shuffle=False, callbacks=[ordered])
    facts["fit_in_order"] = ordered.epochs[0]
    mixed = recorder(keras)
    model.fit(still, epochs=1, verbose=0, callbacks=[mixed])
    facts["fit_mixed"] = mixed.epochs[0]

    chosen = to_keras(path, BATCH, seed=SEED, dtype="float32")
    chosen.set_epoch(7)
    facts["chosen"] = [np.asarray(y).tolist() for _, y in chosen]
    weighted = recorder(keras)
    model.fit(chosen, epochs=1, verbose=0, class_weight=dict.fromkeys(range(len(x)), 2.0), callbacks=[weighted])
    facts["weighted"] = weighted.epochs[0]

    # A fold with sample weights: losses are those of its rows, weighted.
    rows, weights, fold = list(range(0, len(x), 3)), np.arange(len(x)) % 2 + 1.0, recorder(keras)
    folded = to_keras(path, BATCH, seed=SEED, dtype="float32", rows=rows, shuffle=True, sample_weight=weights)
    model.fit(folded, epochs=1, verbose=0, callbacks=[fold])
    facts["fold"] = [fold.epochs[0][-1], float((weights * np.arange(len(x)))[rows].sum() / len(rows))]
    facts["fold_says"] = [folded.class_indices, len(folded), warnings_of_names(folded, still)]

    part = recorder(keras)
    steps = to_keras(path, BATCH, seed=SEED, dtype="float32")
    model.fit(steps, epochs=4, steps_per_epoch=len(steps) // 2, verbose=0, callbacks=[part])
    facts["fit_by_steps"] = part.epochs

    stopped = to_keras(path, BATCH, seed=SEED, dtype="float32")
    model.fit(stopped, epochs=5, verbose=0, callbacks=[recorder(keras, stop_after=2)])
    facts["refusals"] = [
        refusal(partial(setattr, stopped, "workers", 4)),
        refusal(partial(setattr, stopped, "use_multiprocessing", True)),
        refusal(partial(stopped.set_epoch, -1)),
    ]
    facts["threads_after_stop"] = threads_left()
    by_hand.close()
    return facts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))) + "\n")
