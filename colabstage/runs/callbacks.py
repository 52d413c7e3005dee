"""Training loops of others in a resumable run: Lightning's `Trainer`, the Hugging Face `Trainer`, and Keras's `fit`.

Each is a part of a run: its state is what the library itself goes on from, and its loop counts the run's steps.
"""

from __future__ import annotations

import importlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from colabstage.errors import OptionError
from colabstage.io.whole_imports import refuse_import

try:
    import torch
except ImportError as error:
    refuse_import("torch", "resumable needs", error)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from colabstage.runs.run import Run


@runtime_checkable
class Loop(Protocol):
    """A part of a run that has a training loop of its own."""

    knows_place: ClassVar[bool]
    """Whether its state has the place in an epoch, as a loader's has."""
    checkpoint: str | None
    """What its loop is to go on from, once a version was restored."""
    callback: Any
    """What tells the run how far the loop is, for loops that take it as an argument."""

    def state_dict(self) -> dict[str, Any]:
        """Return its state; empty while its loop has not begun."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the loop go on from a state."""

    def join(self, run: Run) -> None:
        """Count in this run from now on."""


def as_part(part: Any, local: Path) -> Any:
    """Return what saves a part: itself, or for a model or trainer with a loop of its own, a `Loop`.

    `local`: a folder for files, which is there as long as the run is.
    """
    for base in type(part).__mro__:
        match base.__module__.split(".")[0], base.__name__:
            case ("lightning" | "pytorch_lightning", "Trainer"):
                return LightningLoop(part, local)
            case "transformers", "Trainer":
                return HuggingFaceLoop(part, local)
            case "keras", "Model":
                return KerasLoop(part)
    return part


def _is_alone(devices: int, name: str) -> None:
    if devices > 1:
        msg = (
            f"The {name} trains on {devices} devices, and resumable() saves one of these loops only where it has one "
            f"device. Use the {name}'s own checkpoints, or write the loop yourself, whose ranks a run saves together."
        )
        raise OptionError(msg)


class LightningLoop:
    """Lightning's `Trainer`, which saves and restores its module, optimizers, loops and loaders in one checkpoint."""

    # Its loaders' places are in its state, but only loaders that have one.
    knows_place = False

    def __init__(self, trainer: Any, local: Path) -> None:
        self.checkpoint: str | None = None
        self.callback: Any = None
        self._trainer, self._file = trainer, local / "lightning.ckpt"

    def state_dict(self) -> dict[str, Any]:
        """Return its checkpoint, byte for byte."""
        if not self._trainer.training:
            return {}
        written = self._file.with_suffix(".new")
        self._trainer.save_checkpoint(written)
        content = torch.from_numpy(np.fromfile(written, np.uint8))
        written.unlink()
        return {"checkpoint": content}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write the checkpoint to a file, for `fit(ckpt_path=run.checkpoint)`."""
        self.checkpoint = None
        if state:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            state["checkpoint"].numpy().tofile(self._file)
            self.checkpoint = str(self._file)

    def join(self, run: Run) -> None:
        """Add a callback to the trainer."""
        _is_alone(self._trainer.world_size, "Trainer")
        package = type(self._trainer).__module__.split(".")[0]
        base: Any = importlib.import_module("lightning.pytorch" if package == "lightning" else package).Callback

        class Counting(base):  # type: ignore[misc]
            def on_train_start(self, trainer: Any, module: Any) -> None:
                run.restore_random()

            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
                loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
                run.step(**({} if loss is None else {"loss": loss}))

            def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
                run.end_epoch()

        self._trainer.callbacks.append(Counting())


class HuggingFaceLoop:
    """The Hugging Face `Trainer`, which goes on from a folder, and finds its place by counting batches."""

    knows_place = True

    def __init__(self, trainer: Any, local: Path) -> None:
        self.checkpoint: str | None = None
        self.callback: Any = None
        self._trainer, self._folder = trainer, local / "huggingface"

    def state_dict(self) -> dict[str, Any]:
        """Return the states of model, optimizer and schedule, and the trainer's counters."""
        if self._trainer.optimizer is None or not self._trainer.state.global_step:
            return {}
        return {
            "model": self._trainer.model.state_dict(),
            "optimizer": self._trainer.optimizer.state_dict(),
            "scheduler": self._trainer.lr_scheduler.state_dict(),
            "counters": asdict(self._trainer.state),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write the folder, for `train(resume_from_checkpoint=run.checkpoint)`."""
        self.checkpoint = None
        if not state:
            return
        transformers: Any = importlib.import_module("transformers")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._trainer.model.load_state_dict(state["model"])
        self._trainer.save_model(str(self._folder))
        torch.save(state["optimizer"], self._folder / "optimizer.pt")
        torch.save(state["scheduler"], self._folder / "scheduler.pt")
        transformers.TrainerState(**state["counters"]).save_to_json(str(self._folder / "trainer_state.json"))
        self.checkpoint = str(self._folder)

    def join(self, run: Run) -> None:
        """Add a callback to the trainer."""
        _is_alone(self._trainer.args.world_size, "Trainer")
        base: Any = importlib.import_module("transformers").TrainerCallback

        class Counting(base):  # type: ignore[misc]
            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                run.restore_random()

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                run.step()

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                run.log(**{name: value for name, value in (logs or {}).items() if isinstance(value, int | float)})

            def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                run.end_epoch()

        self._trainer.add_callback(Counting())


class KerasLoop:
    """A Keras model, whose `fit` begins with an epoch that it is given."""

    knows_place = False

    def __init__(self, model: Any) -> None:
        self.checkpoint: str | None = None
        self.callback: Any = None
        self._model = model

    def _variables(self) -> dict[str, list[Any]]:
        optimizer = getattr(self._model, "optimizer", None)
        if not self._model.built or optimizer is None:
            msg = (
                "The Keras model has no weights yet, or no optimizer. Call model.build(…) and model.compile(…) before."
            )
            raise OptionError(msg)
        if not optimizer.built:
            optimizer.build(self._model.trainable_variables)
        # Without the counts of metrics, which begin with each epoch.
        counts = {id(variable) for metric in self._model.metrics for variable in metric.variables}
        own = [variable for variable in self._model.variables if id(variable) not in counts]
        return {"model": own, "optimizer": list(optimizer.variables)}

    def state_dict(self) -> dict[str, Any]:
        """Return the values of all variables, those of random numbers and of the optimizer included."""
        import keras

        return {
            name: [torch.from_numpy(np.array(keras.ops.convert_to_numpy(one))) for one in variables]
            for name, variables in self._variables().items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give all variables their values."""
        ours = self._variables()
        for name, variables in ours.items():
            shapes = [tuple(variable.shape) for variable in variables]
            saved = [tuple(value.shape) for value in state[name]]
            if shapes != saved:
                msg = f"Its {name} has {len(shapes)} variables of other shapes than the {len(saved)} that were saved."
                raise OptionError(msg)
        for name, variables in ours.items():
            for variable, value in zip(variables, state[name], strict=True):
                variable.assign(value.numpy())

    def join(self, run: Run) -> None:
        """Make the callback for `fit(initial_epoch=run.epoch, callbacks=[run.callback])`."""
        import keras

        class Counting(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_begin(self, logs: Any = None) -> None:
                run.restore_random()

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                run.step()

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                run.log(**(logs or {}))
                run.end_epoch()

        self.callback = Counting()
