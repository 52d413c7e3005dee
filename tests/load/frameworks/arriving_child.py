"""What Keras and `tf.data` get of a pack that is here in part, and of one that is still being packed, as JSON: in a
process of its own, because both are imported for real."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from pathlib import Path
from typing import Any

from colabstage import dataset_h5, stage_dataset, to_keras, to_tf_data
from colabstage.load.partial import PartialPack
from colabstage.trees.folder import FolderTree
from tests.load.frameworks.keras_child import constant_model, recorder

BATCH, SMALL, SEED = 50, 8, 3
# What a first batch may be of: four units of eight files, and the one after them. Keras looks at two before it trains,
# and at a third while it does.
FIRST, FIRST_OF_KERAS = 40, 72
_LONGEST_S = 90.0


class Gated(FolderTree):
    """A folder that gives the files of a first batch at once, and the rest when it is told to."""

    def __init__(self, folder: Path, first: int) -> None:
        super().__init__(folder, workers=1)
        self.tickets = threading.Semaphore(first)

    def read(self, entry: Any) -> bytes:
        assert self.tickets.acquire(timeout=_LONGEST_S)
        return super().read(entry)

    def let_through(self) -> None:
        """Let all others through."""
        self.tickets.release(10_000)


def of_part(pack: Path, limit: int, place: Path, keras: Any) -> dict[str, Any]:
    """Two epochs by each, of targets that are the numbers of rows."""
    found: dict[str, Any] = {}
    dataset = dataset_h5(pack, disk_limit=limit, local_dir=place)
    part = dataset.reader.arrival
    assert isinstance(part, PartialPack)
    record = recorder(keras)
    train = to_keras(dataset, BATCH, seed=SEED, dtype="float32")
    constant_model(keras).fit(train, epochs=2, verbose=0, callbacks=[record])
    found["fit"] = record.epochs
    batches = to_tf_data(dataset, BATCH, seed=SEED)
    found["tf_data"] = [[y.numpy().tolist() for _, y in batches] for _ in range(2)]
    # Loops that are left in the middle, and those that follow.
    left = to_tf_data(dataset, BATCH, seed=SEED)
    found["left"] = [y.numpy().tolist() for _, y in itertools.islice(left, 7)]
    found["after_left"] = [y.numpy().tolist() for _, y in left]
    stopped, model = to_keras(dataset, BATCH, seed=SEED, dtype="float32"), constant_model(keras)
    model.fit(stopped, epochs=2, verbose=0, callbacks=[recorder(keras, stop_after=7)])
    record = recorder(keras)
    model.fit(stopped, epochs=1, verbose=0, callbacks=[record])
    found["after_stop"] = record.epochs[0]
    found["evicted"] = part.figures["evicted"]
    part.close()
    return found


def of_packing(folder: Path, place: Path, keras: Any) -> dict[str, Any]:
    """One epoch by each while it is packed, and how much is here after its first batch; then one of the whole."""
    found: dict[str, Any] = {}
    arguments: dict[str, Any] = {"cache_dir": None, "progress": False, "image_size": (4, 4), "streaming": True}
    tree = Gated(folder, FIRST_OF_KERAS)
    data = stage_dataset(tree, local_dir=place / "keras", **arguments)
    ready: list[float] = []

    class Looks(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not ready:
                ready.append(data.ready.fraction)
                tree.let_through()

    record = recorder(keras)
    # With the seed that is expected, in whose order packing has begun already.
    train = to_keras(data["train"], SMALL, seed=0, dtype="float32")
    constant_model(keras).fit(train, epochs=2, verbose=0, callbacks=[record, Looks()])
    found["fit"], found["ready"] = record.epochs, ready[0]
    found["whole"] = data.wait(progress=False).ready.fraction

    tree = Gated(folder, FIRST)
    data = stage_dataset(tree, local_dir=place / "tf", **arguments)
    values: list[list[int]] = []
    for x, _ in to_tf_data(data["train"], SMALL, seed=0):
        if not values:
            found["tf_ready"] = data.ready.fraction
            tree.let_through()
        values.append(x.numpy()[:, 0, 0, 0].tolist())
    found["tf_data"] = values
    data.wait(progress=False)
    return found


def main(pack: Path, limit: int, folder: Path, place: Path) -> dict[str, Any]:
    """All facts."""
    import keras

    return {"part": of_part(pack, limit, place / "part", keras), "packing": of_packing(folder, place, keras)}


if __name__ == "__main__":
    arguments = sys.argv[1:]
    found = main(Path(arguments[0]), int(arguments[1]), Path(arguments[2]), Path(arguments[3]))
    sys.stdout.write(json.dumps(found) + "\n")
