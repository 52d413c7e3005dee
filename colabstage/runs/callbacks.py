"""Other libraries' training loops in a resumable run: Lightning's `Trainer`, the Hugging Face `Trainer`, Keras's `fit`.

Each is a part of a run: its state is what the library itself resumes from, and its loop counts the run's steps.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from colabstage.errors import OptionError
from colabstage.load.loader import Loader
from colabstage.runs.listing import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from colabstage.runs.run import Run


class Loop:
    """A part of a run that has its own training loop."""

    knows_place: ClassVar[bool] = False
    """Whether its state includes the position in an epoch, as a loader's does."""
    local: Path
    """A folder for its own files, while the run is open."""
    checkpoint: str | None = None
    """What its loop should resume from, once a version is restored."""
    callback: Any = None
    """What tells the run the loop's progress, for loops that take it as an argument."""

    def __init__(self, owner: Any, library: Any) -> None:
        """Take a trainer or model, and the module of its class."""
        self._owner, self._library = owner, library
        self._last: dict[str, Any] = {}

    def inside(self) -> dict[str, Any]:
        """Return what it has that a program sets, by name: parts, dicts of settings, and lists of these."""
        raise NotImplementedError

    def join(self, run: Run) -> Callable[[], object]:
        """Count steps in this run from now on; returns what ends that, as the trainer may serve another run."""
        raise NotImplementedError


def _check_alone(devices: int) -> None:
    if devices > 1:
        msg = f"The Trainer has {devices} devices; a run saves it on one only. Use the Trainer's own checkpoints."
        raise OptionError(msg)


def _check_prepared(loader: object) -> None:
    """Refuse a loader whose epoch the Hugging Face `Trainer` cannot set when it resumes: it skips batches first."""
    if isinstance(loader, Loader):
        msg = (
            "The Trainer has a loader of make_loader that is not prepared, and would continue an epoch with other rows "
            "than are left. Have get_train_dataloader return self.accelerator.prepare(make_loader(…))."
        )
        raise OptionError(msg)


def _columns(logs: Mapping[str, Any] | None) -> dict[str, Any]:
    # Each row has an epoch already, and Hugging Face's is a fraction.
    return {
        name: value for name, value in (logs or {}).items() if name not in PLACES and isinstance(value, int | float)
    }


class LightningLoop(Loop):
    """Lightning's `Trainer`, which saves and restores its module, optimizers, loops and loaders in one checkpoint.

    Not all loaders have a position in an epoch, so a loader that has one must be the run's as well.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return its checkpoint, byte for byte; before and after `fit` the last one."""
        if self._owner.training:
            with tempfile.TemporaryDirectory(dir=self.local) as folder:
                written = Path(folder) / "lightning.ckpt"
                self._owner.save_checkpoint(written, weights_only=False)
                self._last = {"checkpoint": torch.from_numpy(np.fromfile(written, np.uint8))}
        return self._last

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write the checkpoint to a file, for `fit(ckpt_path=run.checkpoint)`."""
        self._last, self.checkpoint = dict(state), str(self.local / "lightning.ckpt")
        state["checkpoint"].numpy().tofile(self.checkpoint)

    def inside(self) -> dict[str, Any]:
        owner = self._owner
        if not owner.training:  # it has none yet
            return {}
        schedules = [config.scheduler for config in owner.lr_scheduler_configs]
        return {"lightning_module": owner.lightning_module, "optimizers": owner.optimizers, "schedules": schedules}

    def join(self, run: Run) -> Callable[[], object]:
        _check_alone(self._owner.world_size)
        losses: list[Any] = []
        given: dict[str, Any] = {}

        def end_batch(_: Any, trainer: Any, _module: Any, outputs: Any, _batch: Any, number: int) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            losses.extend([] if loss is None else [loss])
            # Gradients that are being accumulated are in no state.
            if (number + 1) % trainer.accumulate_grad_batches and not trainer.is_last_batch:
                return
            # Lightning has divided each by their number.
            run.step(**({"loss": sum(losses)} if losses else {}))
            losses.clear()
            # A session that resumes here would leave out the validation that comes next.
            done = (trainer.fit_loop.total_batch_idx if trainer.check_val_every_n_epoch is None else number) + 1
            if not (trainer.enable_validation and trainer.val_check_batch and done % trainer.val_check_batch == 0):
                run._between(after_step=True)

        def end_epoch(_: Any, trainer: Any, *_all: Any) -> None:
            # Schedules that watch a metric come last in an epoch, too late for this version, and in the first epoch
            # that Lightning resumes not at all.
            loop = trainer.fit_loop
            if run.steps > (run._edge or 0) and loop.epoch_loop._num_ready_batches_reached():
                loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
                loop._restarting = True  # so it does not do them again
            run.end_epoch()
            run._between()

        def begin(*_: Any) -> None:
            for sentence in run._compare(given):
                run._note(sentence)
            run.restore_random()

        events = {
            # It has made its optimizers by now, and not restored them.
            "on_fit_start": lambda *_: given.update(run._settings()),
            "on_train_start": begin,
            "on_train_batch_end": end_batch,
            "on_train_epoch_end": end_epoch,
            "on_train_end": lambda *_: self.state_dict(),
        }
        # The module's own end of an epoch comes before those of checkpoints.
        counting = type("Counting", (self._library.callbacks.Checkpoint,), events)()
        self._owner.callbacks.append(counting)
        return lambda: self._owner.callbacks.remove(counting)


class HuggingFaceLoop(Loop):
    """The Hugging Face `Trainer`, which resumes from a folder, and finds its position by counting batches."""

    knows_place = True

    def _callbacks(self) -> dict[str, Any]:
        """Return the callbacks that have a state, by class, as `EarlyStoppingCallback` has."""
        kind = getattr(self._library, "ExportableState", ())
        return {type(one).__name__: one for one in self._owner.callback_handler.callbacks if isinstance(one, kind)}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of model, optimizer, schedule and callbacks, and the trainer's counters."""
        if self._owner.optimizer is None or not self._owner.state.global_step:
            return {}
        counters = asdict(self._owner.state)
        # The trainer notes them in its own checkpoints only.
        for name, one in self._callbacks().items():
            counters["stateful_callbacks"][name] = one.state()
        return {
            "arguments": self._arguments(),
            "order": self._order(),
            "model": self._owner.model.state_dict(),
            "optimizer": self._owner.optimizer.state_dict(),
            "scheduler": self._owner.lr_scheduler.state_dict(),
            "counters": counters,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write the folder, for `train(resume_from_checkpoint=run.checkpoint)`."""
        for name, now in self._order().items():
            if (then := state.get("order", {}).get(name, now)) != now:
                msg = f"{name} is {now}, and was {then}"
                raise ValueError(msg)
        vars(self._owner.args).update(state.get("arguments", {}))
        folder = self.local / "huggingface"
        folder.mkdir()
        self._owner.model.load_state_dict(state["model"])
        self._owner.save_model(str(folder))
        torch.save(state["optimizer"], folder / "optimizer.pt")
        torch.save(state["scheduler"], folder / "scheduler.pt")
        self._library.TrainerState(**state["counters"]).save_to_json(str(folder / "trainer_state.json"))
        # The trainer restores them only if `restore_callback_states_from_checkpoint` is set.
        for name, one in self._callbacks().items():
            vars(one).update(state["counters"]["stateful_callbacks"].get(name, {}).get("attributes", {}))
        self.checkpoint = str(folder)

    def inside(self) -> dict[str, Any]:
        return {"model": self._owner.model, "args": self._arguments()}

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments that it overrides by what it restores."""
        args, names = self._owner.args, ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2")
        return {name: getattr(args, name) for name in names}

    def _order(self) -> dict[str, Any]:
        """Return what its place in the data depends on, which it finds by the number of steps."""
        args, rows = self._owner.args, self._owner.train_dataset
        each = args.train_batch_size * args.gradient_accumulation_steps
        count = len(rows) if hasattr(rows, "__len__") else None
        return {"rows in a step": each, "rows": count, "seed": args.seed, "data_seed": args.data_seed}

    def join(self, run: Run) -> Callable[[], object]:
        _check_alone(self._owner.args.world_size)

        def begin_step(*_: Any, **_all: Any) -> None:
            run.restore_random()
            # By now, the step before has been logged and evaluated.
            run._between()

        # Each is called with everything in the trainer, by name.
        events = {
            "on_train_begin": lambda *_, train_dataloader=None, **_all: _check_prepared(train_dataloader),
            "on_step_begin": begin_step,
            "on_step_end": lambda *_, **_all: run.step(),
            "on_log": lambda *_, logs=None, **_all: run.log(**_columns(logs)),
            "on_epoch_end": lambda *_, **_all: run.end_epoch(),
        }
        counting = type("Counting", (self._library.TrainerCallback,), events)()
        self._owner.add_callback(counting)
        return lambda: self._owner.remove_callback(counting)


class KerasLoop(Loop):
    """A Keras model, whose `fit` begins with an epoch that it is given."""

    def _variables(self) -> dict[str, list[Any]]:
        optimizer = getattr(self._owner, "optimizer", None)
        if not self._owner.built or optimizer is None:
            msg = "The Keras model has no weights, or no optimizer. Call model.build(…) and model.compile(…)."
            raise OptionError(msg)
        if not optimizer.built:
            optimizer.build(self._owner.trainable_variables)
        # Without the counts of metrics, which start over with each epoch.
        counts = {id(variable) for metric in self._owner.metrics for variable in metric.variables}
        own = [variable for variable in self._owner.variables if id(variable) not in counts]
        return {"model": own, "optimizer": list(optimizer.variables)}

    def state_dict(self) -> dict[str, Any]:
        """Return the values of all variables, including those of random generators and the optimizer."""
        return {
            name: [torch.from_numpy(np.array(self._library.ops.convert_to_numpy(one.value))) for one in variables]
            for name, variables in self._variables().items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, variables in self._variables().items():
            for variable, value in zip(variables, state[name], strict=True):
                if tuple(variable.shape) != value.shape:  # Keras's own error has all its numbers
                    msg = f"{variable.path} is {tuple(variable.shape)}, and was saved as {tuple(value.shape)}"
                    raise ValueError(msg)
                variable.assign(value.numpy())

    def inside(self) -> dict[str, Any]:
        settings = self._owner.optimizer.get_config().items()
        # Keras computes them as float32.
        rounded = {name: float(f"{one:.7g}") if isinstance(one, float) else one for name, one in settings}
        # Not their configs, which some layers do not have, and whose names Keras counts up.
        each = [vars(layer).items() for layer in self._owner._flatten_layers(include_self=False)]
        plain = [{key: one for key, one in own if key[0] != "_" and isinstance(one, int | float | str)} for own in each]
        return {"optimizer": rounded, "layers": plain}

    def join(self, run: Run) -> Callable[[], object]:
        def end(_: Any, _epoch: int, logs: Any = None) -> None:
            run.log(**_columns(logs))
            run.end_epoch()

        events = {
            "on_train_begin": lambda *_, **_all: run.restore_random(),
            "on_train_batch_end": lambda *_, **_all: run.step(),
            # By now, other callbacks have ended the epoch before: they may have changed the learning rate.
            "on_epoch_begin": lambda *_, **_all: run._between(),
            "on_epoch_end": end,
        }
        self.callback = type("Counting", (self._library.callbacks.Callback,), events)()
        return lambda: None


class Generator:
    """A random generator of the program's own, which the state of the global ones does not include."""

    def __init__(self, owner: Any, _: Any) -> None:
        own: Any = owner.bit_generator if isinstance(owner, np.random.Generator) else owner
        self._read: Any = getattr(own, "getstate", getattr(own, "get_state", lambda: own.state))
        self._write: Any = getattr(own, "setstate", getattr(own, "set_state", partial(setattr, own, "state")))

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._read()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._write(state["state"])


# The module in which each library defines its class; it is imported if there is an object of that class.
_PARTS: tuple[tuple[str, str, Callable[[Any, Any], Any]], ...] = (
    ("lightning.pytorch", "Trainer", LightningLoop),
    ("pytorch_lightning", "Trainer", LightningLoop),
    ("transformers.trainer", "Trainer", HuggingFaceLoop),
    ("keras", "Model", KerasLoop),
    ("numpy.random", "Generator", Generator),
    ("torch", "Generator", Generator),
    ("random", "Random", Generator),
    # Each is what it wraps, so that a run continues with it or without.
    ("accelerate.optimizer", "AcceleratedOptimizer", lambda wrapper, _: wrapper.optimizer),
    ("accelerate.scheduler", "AcceleratedScheduler", lambda wrapper, _: wrapper.scheduler),
)


def as_part(part: Any) -> Any:
    """Return what saves a part: the part itself, a `Loop` for a model or trainer that has one, a `Generator`."""
    for module, name, kind in _PARTS:
        library = sys.modules.get(module)
        if library is not None and isinstance(part, getattr(library, name, ())):
            return kind(part, library)
    return part
