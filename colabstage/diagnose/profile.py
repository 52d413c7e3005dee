"""`profile_loader`: where the time of a training loop goes, and what to change.

The runs read the clock a few times per batch and do nothing else; only the last one is sampled, of a loader with worker
processes a copy without them.
"""

from __future__ import annotations

import copy
import inspect
import math
import random
import sys
import types
from collections import deque
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from colabstage.diagnose.advice import Advice, ProfileFacts, Verdict, advise, judge
from colabstage.diagnose.loaders import Feed, View, arrays_of, batch_size_of, time_alone, time_loop, time_step, view_of
from colabstage.diagnose.stages import StackSampler
from colabstage.errors import OptionError, said_by
from colabstage.io.arguments import check_argument, refuse_argument
from colabstage.io.boundary import NOTHING_DONE, public
from colabstage.io.progress import SYSTEM_CLOCK, Clock
from colabstage.io.report import Report, Row, Table
from colabstage.io.units import format_bytes, format_duration
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


# A dataset may wrap others, each with transforms inside transforms.
_MOST_PARTS = 500
# Their objects are not the user's own; torch's wrappers of datasets and samplers are entered: the user's are inside.
_FOREIGN = frozenset(
    {"builtins", "torch", "numpy", "h5py", "PIL", "pandas", "keras", "tensorflow", "threading", "pathlib"}
    | {"collections", "colabstage", "functools", "re", "types", "_thread", "_io", "io"}
)
# Nothing in them can change.
_PLAIN = (str, bytes, int, float, complex, type(None), type(...), range, slice, np.generic, frozenset)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)
_ACCEPTED = "a model, an optimizer, anything with state_dict(), or a list, dict, set, array, tensor or generator"


@contextmanager
def preserve_randomness(generators: Iterable[object] = ()) -> Iterator[None]:
    """Restore the state of Python's, numpy's and torch's random numbers, and of these generators, at the end."""
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 - what users' transforms draw from
        if (torch := sys.modules.get("torch")) is not None:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            if torch.cuda.is_initialized():
                stack.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
        for generator in generators:
            stack.callback(_generator_restorer(generator) or (lambda: None))
        yield


def _generator_restorer(part: Any) -> Callable[[], object] | None:
    """Return a function that restores a random generator's present state; `None` for anything else."""
    torch: Any = sys.modules.get("torch")
    if isinstance(part, random.Random):
        return partial(part.setstate, part.getstate())
    if isinstance(part, np.random.Generator):
        return partial(setattr, part.bit_generator, "state", copy.deepcopy(part.bit_generator.state))
    if isinstance(part, np.random.RandomState) or (torch is not None and isinstance(part, torch.Generator)):
        return partial(part.set_state, part.get_state())
    return None


@contextmanager
def preserve_attributes(roots: Iterable[object]) -> Iterator[None]:
    """Restore the attributes of these objects, and of the objects of the user's own classes in them, at the end: forked
    worker processes would share the handle of a dataset that opens its file at the first sample. The contents of
    arrays, lists and dicts are not restored."""
    with ExitStack() as stack:
        seen: dict[int, object] = {}
        generators: list[object] = []
        left = list(roots)
        while left and len(seen) < _MOST_PARTS:
            part: Any = left.pop()
            if id(part) in seen or isinstance(part, (*_PLAIN, *_CODE)):
                continue
            seen[id(part)] = part
            if isinstance(part, list | tuple):
                left += part[:_MOST_PARTS]
            elif _generator_restorer(part) is not None:
                generators.append(part)
            elif _is_users(part):
                stack.callback(_restore_attributes, part, dict(vars(part)))
                left += vars(part).values()
        stack.enter_context(preserve_randomness(generators))
        yield


def _is_users(part: object) -> bool:
    module = type(part).__module__ or ""
    known = module.partition(".")[0] in _FOREIGN and not module.startswith("torch.utils.data")
    return hasattr(part, "__dict__") and not known


def _restore_attributes(part: Any, attributes: dict[str, Any]) -> None:
    now = vars(part)
    if now.keys() != attributes.keys() or any(now[name] is not value for name, value in attributes.items()):
        now.clear()
        now.update(attributes)


class Restored:
    """What the caller named: copied on creation, restored at the end of a `with`."""

    def __init__(self, parts: object) -> None:
        """Copy a tuple or list of things, or one thing, or refuse it; `None` if the caller named nothing."""
        self._parts = tuple(parts) if isinstance(parts, tuple | list) else () if parts is None else (parts,)
        self._is_given = parts is not None
        # By id; the objects are held, so that no other gets one of these ids.
        self._seen: dict[int, object] = {}
        self._stack = ExitStack()
        for number, part in enumerate(self._parts):
            try:
                why = (
                    "" if self._save(part) else "Hand over what holds it, or its parts: restore=(model, trainer.losses)"
                )
            except Exception as error:  # noqa: BLE001 - whatever a library raises where its state cannot be copied
                why = f"Copying its state failed: {said_by(error)}"
            if why:
                self._stack.pop_all()
                name = type(part).__name__
                msg = f"restore[{number}] is a {name}, which cannot be restored; expected {_ACCEPTED}. {why}."
                raise OptionError(msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def note(self, runs: int, call: str) -> str:
        """Say what was restored and what was not, after so many runs of a step; empty if there is nothing to say."""
        if not runs or (self._is_given and not self._parts):
            return ""
        ran = f"The step ran {runs:,} times"
        if self._parts:
            names = ", ".join(dict.fromkeys(type(part).__name__ for part in self._parts))
            return f"{ran}. Restored: {names}. Anything else that it changed stays changed."
        return f"{ran}, without restore=: what it trained and recorded stays changed. To restore it, write {call}."

    def _save(self, part: Any) -> bool:
        """Copy a part, and the parts in it as far as they are known; return whether it is known itself."""
        if id(part) in self._seen:
            return True
        self._seen[id(part)] = part
        restore = None if isinstance(part, (*_PLAIN, *_CODE)) else self._restorer(part)
        if restore is None:
            return False
        self._stack.callback(restore)
        return True

    def _restorer(self, part: Any) -> Callable[[], object] | None:
        """Return a function that restores a part; `None` if nothing can."""
        torch: Any = sys.modules.get("torch")
        inner: Iterable[object] = ()
        restore = _generator_restorer(part)
        # First, because with torch as Keras's backend its models are modules as well.
        if _variables_of(part):
            restore = _variables_restorer(part)
        elif torch is not None and isinstance(part, torch.Tensor):
            restore = _tensor_restorer(part)
        elif torch is not None and isinstance(part, torch.nn.Module):
            # Metrics and counters are plain attributes; modules inside are in one of them.
            inner, restore = _values_in(part), partial(_restore_attributes, part, dict(vars(part)))
        elif _has(part, "state_dict", "load_state_dict"):
            # An optimizer's state does not contain the values that it trains.
            inner = [one for group in getattr(part, "param_groups", ()) for one in group["params"]]
            restore = partial(_load_state, part, _on_host(part.state_dict()))
        elif isinstance(part, np.ndarray):
            inner = part.tolist() if part.dtype == object else ()
            restore = partial(np.copyto, part, part.copy())
        elif isinstance(part, list | deque | set | dict | bytearray | tuple):
            inner = part.values() if isinstance(part, dict) else part
            restore = partial(_refill, part, copy.copy(part))
        for one in inner:
            self._save(one)
        return restore


def _values_in(module: Any) -> tuple[object, ...]:
    return (*module.parameters(), *module.buffers(), *vars(module).values())


def _refill(part: Any, before: Any) -> None:
    if not isinstance(part, tuple):
        part.clear()
        (getattr(part, "extend", None) or part.update)(before)


def _tensor_restorer(tensor: Any) -> Callable[[], object]:
    value = _on_host(tensor)
    gradient = _on_host(tensor.grad) if tensor.is_leaf and tensor.grad is not None else None

    def restore() -> None:
        # In place, because others refer to this tensor.
        tensor.data.copy_(value)
        if gradient is not None and tensor.grad is not None:
            tensor.grad.copy_(gradient)
        elif tensor.is_leaf:
            tensor.grad = None if gradient is None else gradient.to(tensor.device)

    return restore


def _variables_restorer(owner: Any) -> Callable[[], object]:
    """Return a function that restores a variable of Keras or TensorFlow, or all of a model or an optimizer, and of the
    model's optimizer."""
    known = [(variable, np.array(variable.numpy())) for variable in _variables_of(owner)]
    optimizer = getattr(owner, "optimizer", None)
    inner = (lambda: None) if optimizer is None else _variables_restorer(optimizer)

    def restore() -> None:
        for variable, value in known:
            variable.assign(value)
        # Zeroing resets slots that the first step created.
        for variable in _variables_of(owner)[len(known) :]:
            variable.assign(variable * 0)
        inner()

    return restore


def _variables_of(part: Any) -> list[Any]:
    if _has(part, "assign", "numpy"):
        return [part]
    found = getattr(part, "variables", None)
    variables = list(found) if isinstance(found, list | tuple) else []
    return variables if all(_has(one, "assign", "numpy") for one in variables) else []


def _has(part: object, *names: str) -> bool:
    return all(callable(getattr(part, name, None)) for name in names)


def _load_state(part: Any, state: dict[str, Any]) -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(part, torch.optim.Optimizer):
        # Otherwise its moments would briefly be on the GPU twice.
        part.state.clear()
    part.load_state_dict(state)


def _on_host(value: Any) -> Any:
    """Copy a state, with tensors in the computer's memory: a second copy may not fit on the GPU."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _on_host(item) for key, item in value.items()}
    return [_on_host(item) for item in value] if type(value) is list else copy.deepcopy(value)


# Visible on white and on black.
COLOURS = {"read": "#2a86b0", "decode": "#b7791f", "transform": "#8a5aa8", "collate": "#c8553d", "step": "#2e8b57"}
_OTHER = "#808890"
# Shares of the time: the loader alone, loader and step together, the step alone, the stages.
_PARTS = (0.25, 0.40, 0.10, 0.25)
# Nobody notices a shorter start of an epoch.
_NOTICED_S = 0.05
_RESTORE = "profile_loader(loader, step, restore=(model, optimizer))"


@dataclass(frozen=True, kw_only=True, repr=False)
class LoaderProfile(Report):
    """Where the time of a training loop goes, and what to change. Made by `profile_loader`."""

    facts: ProfileFacts
    verdict: Verdict
    advice: tuple[Advice, ...]
    """What to change, with the largest possible gain first; empty if nothing is worth it."""

    @classmethod
    def from_facts(cls, facts: ProfileFacts, notes: tuple[str, ...] = ()) -> Self:
        verdict, advice = judge(facts), advise(facts)
        stages = {**facts.stages, **({} if facts.step_s is None else {"step": facts.step_s})}
        bars = [
            Row((name, f"{format_duration(seconds)} a batch"), bar=seconds, colour=COLOURS.get(name, _OTHER))
            for name, seconds in stages.items()
        ]
        changes = [Row((f"at most {one.gain:.1f}×", one.argument), one.why, "change") for one in advice]
        tables = (Table(tuple(bars), numbers=frozenset({1})), Table((*map(Row, _figures(facts)), *changes)))
        return cls(verdict.sentence, tables, notes, facts=facts, verdict=verdict, advice=advice)

    @property
    def batch_s(self) -> float:
        """Return the seconds from batch to batch, including each one's share of the start of an epoch."""
        return self.facts.batch_s

    @property
    def samples_per_s(self) -> float:
        return self.facts.batch_samples / self.batch_s


@public(stopped=NOTHING_DONE)
def profile_loader(
    loader: Iterable[Any] | object,
    step: Callable[[Any], object] | None = None,
    *,
    restore: object = None,
    prefixes: Mapping[str, Iterable[Any]] | None = None,
    budget_s: float = 10.0,
) -> LoaderProfile:
    """Measure where the time of a training loop goes, and say what to change.

    >>> profile_loader(loader, train_step, restore=(model, optimizer))  # doctest: +SKIP
    >>> profile_loader(loader, train_step, restore=(model, optimizer)).advice[0].argument  # doctest: +SKIP
    'DataLoader(..., num_workers=2, persistent_workers=True)'

    The loader runs alone, then with the step, then the step on one batch again and again, each for a part of
    `budget_s`; while the loader runs alone once more, a thread samples Python's stacks and derives the stages from
    them. Advice comes with what it can gain at most: no loop is faster than its step alone.

    The loader's position, its worker processes, the dataset's attributes, all random numbers and what `restore` names
    are restored afterwards; anything else keeps the changes of the measured steps, as the report says. A running loop
    over a colabstage loader ends.

    Args:
        loader: any iterable of batches: a `Loader` or a `DataLoader`, a Keras `PyDataset`, a `tf.data.Dataset`, or any
            other object that can be iterated over.
        step: called with each batch, as the training loop would; without it only the loader is measured.
        restore: what the step changes and you want back: models, optimizers, lists, dicts, arrays, tensors, generators.
            They are copied to the computer's memory and restored in place. `()` says that there is nothing.
        prefixes: earlier forms of the same pipeline, each with batches as large as the loader's, by what each adds:
            `{"read": files.batch(8), "decode": files.map(decode).batch(8)}`. Each is measured alone, and a stage is the
            difference to the one before. For tf.data, whose stages run outside Python.
        budget_s: about how long to measure, in seconds; each run takes at least three batches.

    Returns:
        A `LoaderProfile`: the verdict, the seconds of each stage, and `.advice`, each with an `.argument` and its
        greatest `.gain`.

    Raises:
        OptionError: the loader cannot be iterated over or has no batches, something in `restore` cannot be restored, or
            an argument cannot work.
    """
    check_step(step)
    check_argument("budget_s", budget_s, "above zero")
    # Examining the loader may already draw random numbers.
    with preserve_randomness(), Restored(restore) as saved:
        view = view_of(loader)
        with preserve_attributes(view.roots):
            runs = Runs(view, step, SYSTEM_CLOCK)
            facts = runs.measure(budget_s, prefixes or {})
    note = saved.note(runs.steps, _RESTORE)
    return LoaderProfile.from_facts(facts, (*view.notes, *filter(None, [note])))


def _figures(facts: ProfileFacts) -> Iterator[tuple[str, str]]:
    rate = facts.batch_samples / facts.batch_s
    bytes_s = facts.batch_bytes / facts.batch_s
    together = f"{format_duration(facts.batch_s)} a batch, {rate:,.0f} samples/s, {format_bytes(bytes_s)}/s"
    if facts.step_s is None:
        yield "loader alone", together
    else:
        yield "loader and step", together
        yield "loader alone", f"{format_duration(facts.alone_s)} a batch"
        headroom = f", {facts.batch_samples / facts.step_s:,.0f} samples/s" if facts.step_s else ""
        yield "step alone", f"{format_duration(facts.step_s)} a batch{headroom}"
        yield "waiting for batches", f"{min(1.0, facts.wait_s / (facts.both_s or math.inf)):.0%} of the time"
    if facts.start_s > _NOTICED_S:
        yield "start of an epoch", format_duration(facts.start_s)


def check_step(step: object) -> None:
    """Refuse a step that cannot be called with one batch, before anything is measured."""
    if step is None:
        return
    check_argument("step", step, "function", remedy="It is called with a batch.")
    try:
        inspect.signature(step).bind(None)  # type: ignore[arg-type]  # it can be called, as was just checked
    except TypeError as error:
        msg = f"step is called with one batch ({error}). Write step=lambda batch: step(*batch), with your step."
        raise OptionError(msg) from None
    except ValueError:
        return  # some functions written in C have no signature


class Runs:
    def __init__(self, view: View, step: Callable[[Any], object] | None, clock: Clock) -> None:
        self.steps = 0
        self._view, self._step, self._clock = view, step, clock

    def measure(self, budget_s: float, prefixes: Mapping[str, Iterable[Any]]) -> ProfileFacts:
        view, together = self._view, self._step is not None
        # Without a step, the loader gets the time of the step's runs.
        parts = _PARTS if together else (_PARTS[0] + _PARTS[1], 0.0, 0.0, _PARTS[2] + _PARTS[3])
        alone_s, both_s, step_s, stages_s = (part * budget_s for part in parts)
        feed = Feed(view.start, self._clock)
        with closing(view), closing(feed):
            load_s, whole = time_alone(feed, alone_s)
            samples, nbytes = batch_size_of(whole)
            starts = feed.first_s[1:] or feed.first_s
            facts = replace(
                view.facts,
                batch_samples=samples,
                batch_bytes=nbytes,
                image_size=_image_size(whole),
                load_s=load_s,
                both_s=load_s,
                start_s=max(0.0, sum(starts) / len(starts) - load_s),
            )
            if together:
                # The first step compiles, allocates and warms up.
                self._take_step(whole)
                ahead = facts.workers * facts.prefetch
                # The start of an epoch is counted separately, unless nothing else is left.
                loop = time_loop(feed, self._take_step, both_s, ahead=ahead, with_starts=facts.batches == 1)
                facts = replace(
                    facts,
                    both_s=loop.both_s,
                    wait_s=loop.wait_s,
                    busy_s=loop.busy_s,
                    step_s=time_step(self._take_step, whole, step_s, self._clock),
                )
            del whole
        torch = sys.modules.get("torch")
        return replace(
            facts,
            stages=self._prefixes(prefixes, facts.batch_samples, stages_s)
            if prefixes
            else self._stages(facts.alone_s, stages_s),
            cores=read_resources().cores,
            has_gpu=torch is not None and torch.cuda.is_available(),
        )

    def _take_step(self, batch: Any) -> None:
        if self._step is not None:
            self.steps += 1
            self._step(batch)

    def _stages(self, load_s: float, seconds: float) -> dict[str, float]:
        """Return the seconds of each Python stage for one batch, from the shares that were sampled."""
        view = self._view
        # TensorFlow's threads have no Python stacks.
        if view.facts.kind == "tf.data":
            return {}
        feed = Feed(view.alone or view.start, self._clock)
        sampler = StackSampler(view.known, get_ident())
        with closing(view), closing(feed):
            if view.alone is not None:
                # Half of the time without a sampler, for the true time of a batch that one process makes.
                seconds /= 2
                load_s = time_alone(feed, seconds)[0]
            with sampler:
                time_alone(feed, seconds)
        # Scaled to the measured time, because sampling makes everything slower by about the same factor.
        sampled = sum(sampler.seconds.values())
        ordered = sorted(sampler.seconds.items(), key=lambda item: list(COLOURS).index(item[0]))
        return {name: seconds * load_s / sampled for name, seconds in ordered}

    def _prefixes(self, prefixes: Mapping[str, Iterable[Any]], samples: int, seconds: float) -> dict[str, float]:
        """Return the seconds that each prefix adds to the one before it, and the loader to the last."""
        starts = {**{name: view_of(prefix).start for name, prefix in prefixes.items()}, "rest": self._view.start}
        took = dict.fromkeys(starts, math.inf)
        # In turns, and the shorter time counts: other work on the machine can only add to it.
        for name, start in [*starts.items()] * 2:
            with closing(Feed(start, self._clock)) as feed:
                took_s, batch = time_alone(feed, seconds / 2 / len(starts))
            if (found := batch_size_of(batch)[0]) != samples:
                expected = f"batches of {samples} samples, as the loader gives"
                refuse_argument(f"prefixes[{name!r}]", found, expected, remedy=f"Append .batch({samples}) to it.")
            took[name] = min(took[name], took_s)
        # A prefix that seems faster than its predecessors adds nothing.
        ends = list(accumulate(took.values(), max))
        return {name: end - before for name, end, before in zip(took, ends, [0.0, *ends], strict=False)}


def _image_size(batch: Any) -> tuple[int, int] | None:
    """Return the height and width of the images in a batch's first array, wherever the channels are."""
    shape = next((tuple(array.shape) for array in arrays_of(batch)), ())
    if len(shape) != 4:
        return None
    # There are at most four channels; no image is that low.
    height, width = shape[2:] if shape[1] <= 4 else shape[1:3]
    return int(height), int(width)
