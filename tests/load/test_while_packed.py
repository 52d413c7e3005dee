"""A first epoch over a dataset that is still being packed: in Keras's `fit`, and after a kill in its middle."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabstage import stage_dataset
from colabstage.trees.listing import FileEntry
from tests.nurseries import Nurseries
from tests.stage.test_streaming import Gate, GatedTree
from tests.support.images import make_tree
from tests.support.made_files import grey
from tests.support.steps import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

COUNT, BATCH, SEED = 96, 8, 3
# All but one, which is then the only one that keeps a block of samples unfinished, in whatever order threads read.
FIRST = COUNT - 1


class NotedTree(GatedTree):
    """A folder behind a gate that records each file that is read."""

    log: Path

    def read(self, entry: FileEntry) -> bytes:
        content = super().read(entry)
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{entry.name}\n")
        return content


def open_tree(place: Path) -> NotedTree:
    """The folder of images, whose first reads are let through."""
    tree = NotedTree(place / "photos")
    tree.gate, tree.log = Gate(), place / "log"
    tree.gate.tickets.release(FIRST)
    return tree


def stage(tree: Any, folder: Path) -> Any:
    return stage_dataset(tree, local_dir=folder, streaming=True, image_size=(4, 4), cache_dir=None, progress=False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of images with one value each, in two classes."""
    values = {row: grey(np.full((4, 4), row, np.uint8)) for row in range(COUNT)}
    make_tree(tmp_path / "photos", {f"c{row % 2}/{row:03}.png": made for row, made in values.items()})
    return tmp_path


def epochs_of(data: Any, count: int) -> list[list[list[float]]]:
    """The image values in each batch of some epochs of `make_loader`, minus their labels."""
    loader = data.loader("train", BATCH, seed=SEED)
    return [[(x[:, 0, 0, 0].float() - y).tolist() for x, y in loader] for _ in range(count)]


def train_for_ever(place: Path) -> None:
    """Take batches until no more come; report when one has come, and all that is let through is packed."""
    data = stage(open_tree(place), place / "a")
    sys.stdout.write(f"{os.getpid()}\n")
    for _ in data.loader("train", BATCH, seed=SEED, num_workers=0):
        wait_until(lambda: data.ready.rows >= FIRST)
        sys.stdout.write("a batch\n")
        sys.stdout.flush()


def test_after_a_kill_in_a_streamed_epoch_nothing_is_fetched_twice(place: Path, nurseries: Nurseries) -> None:
    """The next session has the batches of an uninterrupted epoch, and reads what the first one lacked."""
    command = nurseries.command("torch", "script", __file__, "kill", place)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        trainer = int(child.stdout.readline())
        assert child.stdout.readline() == b"a batch\n"
        os.kill(trainer, signal.SIGKILL)
    before = (place / "log").read_text("utf-8").split()
    assert BATCH < len(before) <= FIRST
    tree = open_tree(place)
    tree.gate.open()
    data = stage(tree, place / "a")
    found = epochs_of(data, 1)
    data.wait(progress=False)
    read = Counter((place / "log").read_text("utf-8").split())
    assert len(read) == COUNT
    # The unfinished block is read again.
    assert read.total() <= COUNT + BATCH
    whole = stage(place / "photos", place / "b")
    assert found == epochs_of(whole, 1)
    whole.wait(progress=False)


def train_keras(place: Path) -> dict[str, Any]:
    """Return the running means of the loss in two epochs, and how much was ready after the first step."""
    import keras

    tree, ready = open_tree(place), list[float]()
    data = stage(tree, place / "a")
    epochs: list[list[float]] = []

    class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            epochs.append([])

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            epochs[-1].append(float(logs["loss"]))
            ready.append(data.ready.fraction)
            tree.gate.open()

    # It returns an image's mean, and learns nothing.
    mean = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(1 / (4 * 4 * 3)))
    model = keras.Sequential([keras.layers.Flatten(), mean])
    model.compile(keras.optimizers.SGD(0.0), "mae")
    model.fit(data.to_keras("train", BATCH, seed=SEED), epochs=2, verbose=0, callbacks=[Recorder()])
    data.wait(progress=False)
    return {"ready": ready[0], "epochs": epochs}


@pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="needs tensorflow: pip install -c constraints.txt --group tensorflow"
)
def test_keras_trains_while_the_pack_is_packed(place: Path, nurseries: Nurseries) -> None:
    """With the batches of `make_loader`, in the first epoch and in the next."""
    found = json.loads(nurseries.run_script("tensorflow", [__file__, "keras", place], {}))
    assert found["ready"] <= FIRST / COUNT
    whole = stage(place / "photos", place / "b")
    for means, batches in zip(found["epochs"], epochs_of(whole, 2), strict=True):
        sums = np.cumsum([np.abs(batch).sum() for batch in batches])
        np.testing.assert_allclose(means, sums / np.cumsum([len(batch) for batch in batches]), rtol=1e-4)
    whole.wait(progress=False)


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        train_for_ever(Path(sys.argv[2]))
    else:
        sys.stdout.write(json.dumps(train_keras(Path(sys.argv[2]))) + "\n")
