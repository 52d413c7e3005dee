"""For a given seed, all strategies give the same batches of rows in the same order. Frameworks:
tests/load/frameworks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabstage import dataset_h5, make_loader
from tests.support.made_files import write_rows

pytestmark = pytest.mark.torch

ROWS, BATCH, SEED, EPOCHS = 23, 4, 3, 2
STRATEGIES = ["direct", "memory", "device"]
Epochs = list[list[list[int]]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in which each x encodes its row, and y is the row."""
    x = np.broadcast_to(np.arange(ROWS, dtype=np.uint8)[:, None, None, None], (ROWS, 4, 5, 3))
    return write_rows(tmp_path_factory.mktemp("loaders") / "data.h5", x, np.arange(ROWS))


def epochs_of(path: Path, count: int = EPOCHS, **options: Any) -> Epochs:
    """The rows of each batch of each epoch, checked against both x and y."""
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
    """The result of the simplest way."""
    return epochs_of(path, strategy="direct", num_workers=0)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy(strategy: str, num_workers: int, path: Path, meant: Epochs) -> None:
    assert epochs_of(path, strategy=strategy, num_workers=num_workers) == meant


@pytest.mark.parametrize("strategy", ["memory", "device"])
def test_the_rest_of_an_epoch(strategy: Any, path: Path, meant: Epochs) -> None:
    """A loader that loads another one's state continues where that one stopped."""
    first, second = (make_loader(dataset_h5(path), BATCH, seed=SEED, strategy=strategy) for _ in range(2))
    batches = iter(first)
    seen = [next(batches)[1].tolist() for _ in range(2)]
    second.load_state_dict(first.state_dict())
    seen += [y.tolist() for _, y in second]
    assert seen == meant[0]
    assert [y.tolist() for _, y in second] == meant[1]
    del batches


@pytest.mark.parametrize(
    ("options", "rows"),
    [({"shuffle": False, "drop_last": True}, list(range(20))), ({"sampler": [5, 3, 9], "shuffle": False}, [5, 3, 9])],
    ids=str,
)
@pytest.mark.parametrize("strategy", ["memory", "device"])
def test_rows_in_a_given_order(strategy: str, options: dict[str, Any], rows: list[int], path: Path) -> None:
    (epoch,) = epochs_of(path, 1, strategy=strategy, **options)
    assert [row for batch in epoch for row in batch] == rows


@pytest.mark.parametrize(("strategy", "dtype"), [("direct", "float16"), ("memory", "bfloat16"), ("device", "float32")])
def test_floats(strategy: Any, dtype: str, path: Path) -> None:
    for x, y in make_loader(dataset_h5(path), BATCH, strategy=strategy, dtype=dtype, seed=SEED):
        assert str(x.dtype) == f"torch.{dtype}"
        np.testing.assert_allclose(
            x[:, 0, 0, 0].float().numpy(), y.numpy() / 255, rtol=1e-2 if dtype == "bfloat16" else 1e-3
        )
