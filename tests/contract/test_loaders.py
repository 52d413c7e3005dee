"""Each strategy and each framework: the same batches of the same rows in the same order for a seed."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5, make_loader

if TYPE_CHECKING:
    from pathlib import Path

    from tests.nurseries import Nurseries

pytestmark = pytest.mark.torch

ROWS, BATCH, SEED, EPOCHS = 23, 4, 3, 2
STRATEGIES = ["direct", "memory", "device"]
FRAMEWORKS = {"keras": "keras", "tf.data": "tensorflow", "numpy": "numpy"}
Epochs = list[list[list[int]]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in which each x tells its row, and y is the row."""
    path = tmp_path_factory.mktemp("loaders") / "data.h5"
    with h5py.File(path, "w") as file:
        file["X_train"] = np.broadcast_to(np.arange(ROWS, dtype=np.uint8)[:, None, None, None], (ROWS, 4, 5, 3))
        file["Y_train"] = np.arange(ROWS)
    return path


def epochs_of(path: Path, count: int = EPOCHS, **options: Any) -> Epochs:
    """The rows of each batch of each epoch, as x and y both tell."""
    loader = make_loader(dataset_h5(path), BATCH, **{"seed": SEED, **options})
    epochs: Epochs = []
    for _ in range(count):
        epochs.append([])
        for x, y in loader:
            assert x.amax((1, 2, 3)).tolist() == x.amin((1, 2, 3)).tolist() == y.tolist()
            epochs[-1].append(y.tolist())
    return epochs


@pytest.fixture(scope="module")
def meant(path: Path) -> Epochs:
    """What the simplest way gives."""
    return epochs_of(path, strategy="direct", num_workers=0)


def test_each_row_once_an_epoch_and_another_order_each_time(meant: Epochs) -> None:
    flat = [[row for batch in epoch for row in batch] for epoch in meant]
    assert [sorted(epoch) for epoch in flat] == [list(range(ROWS))] * EPOCHS
    assert flat[0] != flat[1]
    assert [len(batch) for batch in meant[0]] == [4, 4, 4, 4, 4, 3]


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy(strategy: str, num_workers: int, path: Path, meant: Epochs) -> None:
    assert epochs_of(path, strategy=strategy, num_workers=num_workers) == meant


@pytest.mark.parametrize("strategy", ["direct", "memory"])
def test_the_rest_of_an_epoch(strategy: Any, path: Path, meant: Epochs) -> None:
    """A loader that takes over the state of another one goes on where that was."""
    first, second = (make_loader(dataset_h5(path), BATCH, seed=SEED, strategy=strategy) for _ in range(2))
    batches = iter(first)
    seen = [next(batches)[1].tolist() for _ in range(2)]
    second.load_state_dict(first.state_dict())
    seen += [y.tolist() for _, y in second]
    assert seen == meant[0]
    assert [y.tolist() for _, y in second] == meant[1]
    del batches


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("strategy", ["direct", "memory"])
def test_ranks_divide_an_epoch(strategy: str, ranks: int, path: Path) -> None:
    parts = [epochs_of(path, 1, strategy=strategy, rank=rank, world_size=ranks)[0] for rank in range(ranks)]
    assert sorted(row for part in parts for batch in part for row in batch) == list(range(ROWS))
    assert len({len(part) for part in parts}) == 1


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"shuffle": False}, list(range(ROWS))),
        ({"shuffle": False, "drop_last": True}, list(range(20))),
        ({"sampler": [5, 3, 9], "shuffle": False}, [5, 3, 9]),
    ],
    ids=str,
)
@pytest.mark.parametrize("strategy", ["direct", "memory"])
def test_rows_in_a_given_order(strategy: str, options: dict[str, Any], rows: list[int], path: Path) -> None:
    (epoch,) = epochs_of(path, 1, strategy=strategy, **options)
    assert [row for batch in epoch for row in batch] == rows


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("strategy", ["direct", "memory"])
def test_floats(strategy: Any, dtype: str, path: Path) -> None:
    for x, y in make_loader(dataset_h5(path), BATCH, strategy=strategy, dtype=dtype, seed=SEED):
        assert str(x.dtype) == f"torch.{dtype}"
        np.testing.assert_allclose(
            x[:, 0, 0, 0].float().numpy(), y.numpy() / 255, rtol=1e-2 if dtype == "bfloat16" else 1e-3
        )


def frameworks(path: str) -> dict[str, Epochs]:
    """The rows that Keras and tf.data get; called in a process of its own, as they stay where they are imported."""
    from colabstage import to_keras, to_numpy, to_tf_data

    def rows(batches: Any) -> list[list[int]]:
        found = []
        for inputs, targets in batches:
            x, y = np.asarray(inputs), np.asarray(targets)
            assert (x == y[:, None, None, None]).all()
            found.append(y.tolist())
        return found

    by_keras, by_tensorflow = to_keras(path, BATCH, seed=SEED), to_tf_data(path, BATCH, seed=SEED)
    by_numpy = to_numpy(path, BATCH, seed=SEED)
    return {
        "keras": [rows(by_keras[number] for number in range(len(by_keras))) for _ in range(1)],
        "tf.data": [rows(by_tensorflow) for _ in range(EPOCHS)],
        "numpy": [rows(by_numpy) for _ in range(EPOCHS)],
    }


@pytest.fixture(scope="module")
def by_frameworks(path: Path, nurseries: Nurseries) -> dict[str, Epochs]:
    for package in FRAMEWORKS.values():
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install -c constraints.txt --group tensorflow")
    found: dict[str, Epochs] = json.loads(nurseries.run_script("tensorflow", [__file__, path], {}))
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_framework(framework: str, by_frameworks: dict[str, Epochs], meant: Epochs) -> None:
    found = by_frameworks[framework]
    assert found == meant[: len(found)]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(frameworks(sys.argv[1])) + "\n")
