"""Loops of other libraries in a resumable run: they end with the weights of an uninterrupted training."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colabstage import dataset_h5, make_loader, resumable
from colabstage.errors import OptionError
from tests.nurseries import Nurseries
from tests.support.made_files import write_rows

LOOPS = Path(__file__).with_name("loops.py")
HOW = {
    "lightning": "pip install --group large",
    "transformers": "pip install transformers accelerate",
    "keras": "pip install --group tensorflow",
}


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("library", "deaths", "steps"),
    [
        pytest.param(
            name, deaths, steps, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"needs {name}: {HOW[name]}")
        )
        for name, deaths, steps in [("lightning", [9, 7], 18), ("transformers", [9, 7], 36), ("keras", [17], 36)]
    ],
)
def test_weights_are_those_of_a_training_that_nothing_interrupted(
    tmp_path: Path, nurseries: Nurseries, library: str, deaths: list[int], steps: int
) -> None:
    """After deaths in the middle of an epoch, or with Keras from its beginning; and a finished training is not
    repeated. Nor are gradients lost that were being accumulated, or what callbacks and evaluations do after a step or
    an epoch. A rate that the code has changed is not used, and the run says so; and that other layers are."""
    kind = "tensorflow" if library == "keras" else "torch"
    found = json.loads(nurseries.run_script(kind, [LOOPS, library, tmp_path, *map(str, deaths)], {}))
    assert found.pop("from") > 0
    what = {
        "lightning": "'weight_decay'] stays",
        "transformers": "'learning_rate'] stays",
        "keras": "'rate'] is 0.6 from",
    }
    assert what[library] in str(found.pop("said"))
    assert found == {"died": len(deaths), "same": True, "steps": steps, "epochs": 3, "again": 0}


def make_trainer(monkeypatch: pytest.MonkeyPatch, library: str) -> Any:
    """A stand-in for a library's `Trainer`, which calls its callbacks."""

    class Trainer:
        world_size, model, optimizer, training = 1, None, None, False
        accumulate_grad_batches, enable_validation, check_val_every_n_epoch = 1, False, 1
        args = SimpleNamespace(world_size=1, learning_rate=1, weight_decay=0, adam_beta1=0, adam_beta2=0)

        def __init__(self) -> None:
            self.callbacks: list[Any] = []
            self.add_callback, self.remove_callback = self.callbacks.append, self.callbacks.remove

        def train(self, loader: object = None) -> None:
            for callback in self.callbacks:
                step = getattr(callback, "on_train_batch_end", None)
                if step is None:
                    callback.on_train_begin(train_dataloader=loader)
                    callback.on_step_end()
                else:
                    step(self, None, {}, None, 0)

    module: Any = ModuleType(library)
    module.Trainer, module.TrainerCallback = Trainer, object
    module.callbacks = SimpleNamespace(Checkpoint=object)
    monkeypatch.setitem(sys.modules, library, module)
    return Trainer()


@pytest.mark.torch
def test_a_loader_whose_place_a_trainer_cannot_find_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hugging Face `Trainer` skips batches of a loader before it sets the epoch, which only a prepared one has."""
    loader = make_loader(dataset_h5(write_rows(tmp_path / "rows.h5", np.zeros((8, 4)), np.arange(8))), 4)
    trainer = make_trainer(monkeypatch, "transformers.trainer")
    with (
        pytest.raises(OptionError, match=r"accelerator\.prepare"),
        resumable(tmp_path / "run", trainer=trainer, progress=False),
    ):
        trainer.train(loader)


@pytest.mark.torch
@pytest.mark.parametrize("library", ["pytorch_lightning", "transformers.trainer"])
def test_a_trainer_may_enter_its_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """As when a cell is run once more in the same kernel: only the run that is open counts its steps."""
    trainer = make_trainer(monkeypatch, library)
    run = resumable(tmp_path, trainer=trainer, progress=False)
    for again in (run, run, resumable(tmp_path, trainer=trainer, progress=False)):
        with again:
            trainer.train()
    assert (again.steps, trainer.callbacks) == (3, [])
