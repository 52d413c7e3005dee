"""A training by another library in a resumable run, interrupted and continued.

    python -m tests.runs.loops LIBRARY FOLDER DEATH [DEATH ...]

Prints as JSON: whether the weights are those of an uninterrupted training, where the last session began, its steps and
epochs, how many steps a further session does, and what the last two say, whose code has another rate.
"""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from colabstage import dataset_h5, make_loader, resumable, to_keras
from tests.runs.training import ROWS, write_data

EPOCHS = 3
RATE = {"now": 0.01}


class DiedError(Exception):
    """Ends a session in the middle of a step."""


def make_net() -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4))


class Steps:
    """Counts steps, and dies in number `death`."""

    def __init__(self, death: int | None) -> None:
        self.done, self.death = 0, death

    def __call__(self) -> None:
        if self.done == self.death:
            raise DiedError
        self.done += 1


def with_lightning(folder: Path, data: Path, steps: Steps) -> tuple[list[np.ndarray], Any]:
    lightning: Any = importlib.import_module("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def training_step(self, batch: Any, _: int) -> Any:
            steps()
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, *_: Any) -> None:
            self.log("worse", 1.0)
            for group in self.optimizers().param_groups:
                group["lr"] *= 0.9

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=RATE["now"])
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "worse"}}

    loader = make_loader(dataset_h5(data), 8, seed=5, dtype=torch.float32)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    often = {"accumulate_grad_batches": 2, "val_check_interval": 4, "limit_val_batches": 1, "num_sanity_val_steps": 0}
    often["enable_model_summary"] = False
    trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", devices=1, **often, **quiet)
    module = Module()
    with resumable(folder, trainer=trainer, loader=loader, every="1 steps", progress=False) as run:
        trainer.fit(module, loader, make_loader(dataset_h5(data), 8), ckpt_path=run.checkpoint)
    return [value.numpy() for value in module.state_dict().values()], run


def with_hugging_face(folder: Path, data: Path, steps: Steps) -> tuple[list[np.ndarray], Any]:
    transformers: Any = importlib.import_module("transformers")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def forward(self, x: Any, labels: Any) -> Any:
            if self.training:
                steps()
            return {"loss": nn.functional.cross_entropy(self.net(x), labels)}

    class Counting(transformers.TrainerCallback, transformers.trainer_callback.ExportableState):  # type: ignore[misc]
        count = 0

        def on_evaluate(self, *_: Any, **_all: Any) -> None:
            self.count += 1

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"count": self.count}}

    rows = dataset_h5(data)
    items = [{"x": torch.as_tensor(rows[row][0]).float() / 255, "labels": int(rows[row][1])} for row in range(ROWS)]
    options: dict[str, Any] = {"num_train_epochs": EPOCHS, "per_device_train_batch_size": 8, "save_strategy": "no"}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "learning_rate": RATE["now"]}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder.with_suffix(".out")), report_to=[], use_cpu=True, disable_tqdm=True, seed=5, **options
    )
    model, counting = Model(), Counting()
    data_of = {"train_dataset": items, "eval_dataset": items[:8]}
    trainer = transformers.Trainer(model=model, args=arguments, callbacks=[counting], **data_of)
    with resumable(folder, trainer=trainer, every="1 steps", progress=False) as run:
        trainer.train(resume_from_checkpoint=run.checkpoint)
    evaluated = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    return [*(value.numpy() for value in model.state_dict().values()), np.array([*evaluated, counting.count])], run


def with_keras(folder: Path, data: Path, steps: Steps) -> tuple[list[np.ndarray], Any]:
    import keras

    class Counting(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            steps()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate.assign(0.01 / (epoch + 2))

    keras.utils.set_random_seed(0)
    layers = keras.layers
    dropout = layers.Dropout(30 * RATE["now"])
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Flatten(), layers.Rescaling(1 / 255), dropout, layers.Dense(4)]
    )
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    train = to_keras(data, batch_size=8, seed=5)
    with resumable(folder, model=model, every=0, progress=False) as run:
        train.set_epoch(run.epoch)
        model.fit(train, epochs=EPOCHS, initial_epoch=run.epoch, callbacks=[run.callback, Counting()], verbose=0)
    return model.get_weights(), run


def main() -> None:
    """Train once without a break, and once with these deaths."""
    library, place, *deaths = sys.argv[1:]
    folder = Path(place)
    train: Callable[[Path, Path, Steps], tuple[list[np.ndarray], Any]] = {
        "lightning": with_lightning,
        "transformers": with_hugging_face,
        "keras": with_keras,
    }[library]
    data = write_data(folder / "rows.h5")
    whole, _ = train(folder / "whole", data, Steps(None))
    died = 0
    for death in deaths:
        try:
            train(folder / "run", data, Steps(int(death)))
        except DiedError:
            died += 1
    changed = {"now": 0.02}
    RATE.update(changed if library != "keras" else {})
    weights, run = train(folder / "run", data, Steps(None))
    again = Steps(None)
    RATE.update(changed)
    _, last = train(folder / "run", data, again)
    found = {
        "died": died,
        "same": all(np.array_equal(one, other) for one, other in zip(whole, weights, strict=True)),
        "from": run.resumed_from.step,
        "steps": run.steps,
        "epochs": run.epoch,
        "again": again.done,
        "said": run.notes + last.notes,
    }
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
