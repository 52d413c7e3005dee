"""Profiles a Keras `PyDataset` or a tf.data pipeline in a separate process, and prints the result as JSON."""

import json
import sys
import time
from typing import Any

import numpy as np

from colabstage import profile_loader


def step(_: object) -> None:
    time.sleep(0.01)


def short_step(_: object) -> None:
    """Takes a fraction of what decoding takes, also where that is quick."""
    time.sleep(0.002)


def keras_facts() -> dict[str, Any]:
    """A dataset that waits for its reads, and draws from Python's and numpy's generators."""
    import keras

    class Slow(keras.utils.PyDataset):  # type: ignore[misc]  # keras has no type information
        def __len__(self) -> int:
            return 200

        def read(self, number: int) -> Any:
            time.sleep(0.04)
            return np.full((4, 8, 8, 3), number, np.float32)

        def __getitem__(self, number: int) -> Any:
            return self.read(number) + np.float32(np.random.random()), np.zeros(4)  # noqa: NPY002 - as users do

    np.random.seed(3)  # noqa: NPY002 - as users do
    expected = np.random.random()  # noqa: NPY002 - as users do
    np.random.seed(3)  # noqa: NPY002 - as users do
    profile = profile_loader(Slow(), step, budget_s=1.0)
    same = np.random.random() == expected  # noqa: NPY002 - as users do
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1), keras.layers.BatchNormalization()])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    batches = [(np.ones((4, 8), np.float32), np.zeros(4))] * 3
    model.train_on_batch(*batches[0])

    def state() -> Any:
        return [np.array(one.numpy()).tolist() for one in (*model.variables, *model.optimizer.variables)]

    before = state()
    profile_loader(batches, lambda batch: model.train_on_batch(*batch), budget_s=0.2)
    trained = state()
    profile_loader(batches, lambda batch: model.train_on_batch(*batch), restore=(model, model.optimizer), budget_s=0.2)
    put_back = [before != trained, state() == trained]
    threads = profile_loader(Slow(workers=4, use_multiprocessing=False), step, budget_s=1.0)
    return {
        **_found(profile),
        "same": bool(same),
        "put_back": put_back,
        "threads_gain": profile.facts.load_s / threads.facts.load_s,
    }


def tensorflow_facts() -> dict[str, Any]:
    """A pipeline that decodes images one by one, measured by its prefixes."""
    import tensorflow as tf

    image = tf.io.encode_png(np.random.default_rng(0).integers(0, 255, (500, 500, 3), dtype=np.uint8))

    numbers = tf.data.Dataset.range(160).shuffle(160)
    decoded = numbers.map(lambda number: (tf.io.decode_png(image), number))
    profile = profile_loader(
        decoded.batch(8),
        short_step,
        restore=(),
        prefixes={"read": numbers.batch(8), "decode": decoded.batch(8)},
        budget_s=2.0,
    )
    plain = profile_loader(decoded.batch(8), short_step, restore=(), budget_s=1.0)
    return {**_found(profile), "plain": [plain.verdict.bound, plain.verdict.stage]}


def _found(profile: Any) -> dict[str, Any]:
    return {
        "bound": profile.verdict.bound,
        "stage": profile.verdict.stage,
        "advice": [advice.argument for advice in profile.advice],
        "notes": list(profile.notes),
    }


sys.stdout.write(json.dumps(keras_facts() if sys.argv[1] == "keras" else tensorflow_facts()) + "\n")
