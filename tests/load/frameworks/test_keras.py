"""`to_keras` with the real keras on each of its backends, each in its own process."""

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5, make_loader, to_keras
from colabstage.errors import MissingDependencyError
from tests.nurseries import Nurseries
from tests.nursery import PRELOADED

CHILD = Path(__file__).with_name("keras_child.py")
ROWS, BATCH, SEED = 38, 5, 3

pytestmark = [
    pytest.mark.skipif(
        find_spec("keras") is None, reason="needs keras: pip install -c constraints.txt --group tensorflow"
    ),
    pytest.mark.timeout(240),
    pytest.mark.torch,
]


def backends() -> list[Any]:
    """All backends of keras, skipped if their package is missing."""
    groups = {"tensorflow": "--group tensorflow", "jax": "--group large", "torch": "torch"}
    missing = {
        name: pytest.mark.skipif(
            find_spec(name) is None, reason=f"needs {name}: pip install -c constraints.txt {group}"
        )
        for name, group in groups.items()
    }
    return [pytest.param(name, marks=[mark, *[pytest.mark.long] * (name == "jax")]) for name, mark in missing.items()]


def write_rows(path: Path, rows: int = ROWS) -> Path:
    """A file whose targets are its row numbers."""
    with h5py.File(path, "w") as file:
        file["X_train"] = np.random.default_rng(0).integers(0, 256, (rows, 4, 6, 3), dtype=np.uint8)
        file["Y_train"] = np.arange(rows)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keras")


@pytest.fixture(scope="module", params=backends())
def facts(request: pytest.FixtureRequest, folder: Path, nurseries: Nurseries) -> dict[str, Any]:
    """The child's results under one backend."""
    backend = request.param
    path = write_rows(folder / f"{backend}.h5")
    line = nurseries.run_script(backend, [CHILD, path], {}) if backend in PRELOADED else _run_alone(backend, path)
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def _run_alone(backend: str, path: Path) -> str:
    """Return the last line of a child that imports its backend itself."""
    variables = {"KERAS_BACKEND": backend, "KERAS_HOME": str(path.parent), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-P", CHILD, path],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


@cache
def batches_of(epoch: int, *, shuffle: bool = True) -> list[list[int]]:
    """The rows of an epoch's batches, as `make_loader` has them."""
    with tempfile.TemporaryDirectory() as folder:
        loader = make_loader(dataset_h5(write_rows(Path(folder) / "rows.h5")), BATCH, shuffle=shuffle, seed=SEED)
        loader.set_epoch(epoch)
        return [y.tolist() for _, y in loader]


def running_means(batches: list[list[int]]) -> list[float]:
    """The mean of all targets up to the end of each batch."""
    sums, counts = np.cumsum([sum(rows) for rows in batches]), np.cumsum([len(rows) for rows in batches])
    return [float(mean) for mean in sums / counts]


def test_torch_is_imported_only_where_it_is_the_backend(facts: dict[str, Any]) -> None:
    """Importing it takes seconds and hundreds of megabytes."""
    assert facts["torch_is_imported"] == (facts["backend"] == "torch")


def test_each_pass_by_hand_is_the_next_epoch(facts: dict[str, Any]) -> None:
    """Batches are those of `make_loader`, epoch after epoch."""
    assert facts["by_hand"] == [batches_of(0), batches_of(1)]


def test_each_request_of_the_first_batches_again_is_the_next_epoch(facts: dict[str, Any]) -> None:
    """However short a pass is; asking for the number of batches in the middle of one does not end it."""
    assert facts["parts"] == [batches_of(epoch)[:3] for epoch in range(2)]
    assert facts["asked_in_the_middle"] == [batches_of(1)[3], len(batches_of(1)), batches_of(1)[4]]


def test_fit_trains_on_the_epochs_of_make_loader(facts: dict[str, Any]) -> None:
    """In their order, although `fit` shuffles the numbers of batches, and from the first epoch on, although it reads
    some data before it trains."""
    assert len(facts["fit"]) == 3
    for epoch, means in enumerate(facts["fit"]):
        np.testing.assert_allclose(means, running_means(batches_of(epoch)), rtol=1e-5)


def test_without_shuffling_batches_come_by_number(facts: dict[str, Any]) -> None:
    """In the file's order, or in the one that `fit` shuffles them into."""
    still = batches_of(0, shuffle=False)
    np.testing.assert_allclose(facts["fit_in_order"], running_means(still), rtol=1e-5)
    assert not np.allclose(facts["fit_mixed"], running_means(still))
    np.testing.assert_allclose(facts["fit_mixed"][-1], running_means(still)[-1], rtol=1e-5)


def test_epochs_by_steps_go_on_where_they_stopped(facts: dict[str, Any]) -> None:
    """With `steps_per_epoch`, two of Keras's epochs make one pass over the data."""
    for epoch in range(2):
        first, second = facts["fit_by_steps"][2 * epoch : 2 * epoch + 2]
        batches = batches_of(epoch)
        np.testing.assert_allclose(first, running_means(batches[: len(first)]), rtol=1e-5)
        np.testing.assert_allclose(second, running_means(batches[len(first) :]), rtol=1e-5)


def test_what_is_made_of_it_knows_the_epochs(facts: dict[str, Any]) -> None:
    """The next pass is the epoch that was set, and class weights are applied."""
    assert facts["chosen"] == batches_of(7)
    np.testing.assert_allclose(facts["weighted"], 2 * np.array(running_means(batches_of(8))), rtol=1e-5)


def test_a_fold_is_trained_on_with_weights_of_its_samples(facts: dict[str, Any]) -> None:
    """The loss is that of its rows, each times its weight."""
    found, expected = facts["fold"]
    assert found == pytest.approx(expected, rel=1e-5)
    classes, batches, (warned,) = facts["fold_says"]
    assert (classes, batches) == ({}, -(-len(range(0, ROWS, 3)) // BATCH))
    # Predictions that are compared with names by position would belong to other files.
    assert "pass shuffle=False to to_keras" in warned


def test_nothing_is_left_behind(facts: dict[str, Any]) -> None:
    """No thread is left after training, even if it stopped in the middle of an epoch and the dataset still exists."""
    assert facts["threads_after_fit"] == []
    assert facts["threads_after_stop"] == []


def test_keras_workers_are_refused(facts: dict[str, Any]) -> None:
    """The message says what to do instead."""
    workers, processes, epoch = facts["refusals"]
    assert "num_workers=" in workers
    assert "reads ahead" in processes
    assert "epoch=-1" in epoch


def test_a_keras_that_shuffles_batches_afterwards_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras 3.4 to 3.7 would train on other batches than those of the epoch, and say nothing."""
    old, utils = ModuleType("keras"), ModuleType("keras.utils")
    old.__dict__.update(__version__="3.7.0", utils=utils)
    utils.__dict__.update(PyDataset=object)
    monkeypatch.setitem(sys.modules, "keras", old)
    monkeypatch.setitem(sys.modules, "keras.utils", utils)
    for name in [name for name in sys.modules if name.endswith(".keras_dataset")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingDependencyError, match=r'3\.7\.0 is loaded.*pip install "keras>=3\.8"'):
        to_keras(write_rows(tmp_path / "rows.h5"), BATCH)
