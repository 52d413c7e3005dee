"""`autotune_loader`: try the ways to load a dataset on this machine, within a time budget, and keep the best.

Among about equal candidates the one with the fewest processes wins, because on two cores they take time from the model.
"""

from __future__ import annotations

import math
import operator
import warnings
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.loaders import Feed, batch_size_of, end_iterator, time_loop
from colabstage.diagnose.profile import Restored, check_step, preserve_attributes, preserve_randomness
from colabstage.errors import ColabstageError, OptionError, said_by
from colabstage.io.arguments import ONE_SPLIT, check_argument, refuse_argument
from colabstage.io.boundary import NOTHING_DONE, public
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.report import Report, Row, Table
from colabstage.io.units import format_duration
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Closer results count as equal: trials of a second or two are no more exact.
_EQUAL = 0.05
_CLEARLY_WORSE = 1.6
_LEAST_S = 0.2
_STARTING_S = 0.5


@dataclass(frozen=True, slots=True)
class Trial:
    """One way of loading, and the result of its trial."""

    options: Mapping[str, Any]
    maker: str
    call: str
    """The line that makes the loader."""
    _make: Callable[..., Any]
    batch_s: float = math.inf
    """Seconds from batch to batch, with the step if there is one."""
    samples: int = 0
    problem: str = ""
    """Why it could not be tried, or that it ended early."""

    @property
    def processes(self) -> int:
        """Return how many processes it needs; among equally fast ways the one with the fewest wins."""
        return int(self.options.get("num_workers", 0)) if self.maker == "DataLoader" else 0

    def __str__(self) -> str:
        return f"{self.maker}({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    @classmethod
    def of(cls, maker: Callable[..., Any], start: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> Trial:
        """Return the trial of what `maker` makes. `start`: the beginning of the line; `given`: the options that a trial
        does not change, without which the line would load other batches."""
        every = {name: value for name, value in {**given, **options}.items() if value is not None}
        call = ", ".join([start, *(f"{name}={_text(name, value)}" for name, value in every.items())]) + ")"
        return cls(options, start.partition("(")[0], call, partial(maker, **{**given, **options}))


@dataclass(frozen=True, kw_only=True, repr=False)
class TunedLoader(Report):
    """The result of `autotune_loader`: options and `call` of the best trial, and all trials, the best first."""

    options: Mapping[str, Any]
    call: str
    table: tuple[Trial, ...]
    samples_per_s: float
    gain: float
    """How many times faster than the default, torch's `DataLoader` without workers or `make_loader`'s own choice."""
    seconds: float

    def loader(self) -> Any:
        """Return a new loader with the best options."""
        return self.table[0]._make()


def _text(name: str, value: object) -> str:
    """Write a value as code, or the name of what has no such form: a function, or a sampler."""
    is_plain = isinstance(value, str | int | float | list) or type(value).__name__ == "dtype"
    return repr(value) if is_plain else name


@public(stopped=NOTHING_DONE)
def autotune_loader(
    dataset: Any,
    batch_size: int,
    *,
    step: Callable[[Any], object] | None = None,
    restore: object = None,
    budget_s: float = 20.0,
    device: Any = None,
    collate_fn: Callable[[Any], Any] | None = None,
    shuffle: bool = True,
) -> TunedLoader:
    """Try numbers of workers, prefetching and strategies on a dataset, and say which is fastest here.

    >>> tuned = autotune_loader(dataset, 64, step=train_step, restore=(model, optimizer))  # doctest: +SKIP
    >>> print(tuned)  # doctest: +SKIP
    >>> loader = tuned.loader()  # doctest: +SKIP

    Random numbers, the dataset's attributes and what `restore` names are restored afterwards, as in `profile_loader`.

    Args:
        dataset: a `dataset_h5` or a `Subset` of one, for which `make_loader`'s strategies are tried; a loader that it
            made, whose options are kept; or any other map-style torch dataset, for which torch's `DataLoader` is
            tried, as for all with `collate_fn`.
        batch_size: samples in a batch.
        step: called with each batch, as in the training loop; without it loaders are compared alone, which favours more
            processes than are good for a training loop that needs the cores itself.
        restore: what the step changes and you want back, as in `profile_loader`.
        budget_s: seconds for the whole search, including starting processes. A slow batch may exceed it.
        device: where batches go, for `make_loader`.
        collate_fn: of the `DataLoader`; `make_loader` has none.
        shuffle: whether samples are visited in a random order.

    Returns:
        What was tried, the fastest first: `.call` is the line to paste, `.loader()` makes that loader.

    Raises:
        OptionError: the dataset has no length, no candidate can load it (the message has the first reason), or
            something in `restore` cannot be restored.
    """
    check_step(step)
    check_argument("budget_s", budget_s, "above zero")
    from colabstage.load.loader import Loader

    named, given = "dataset", dict[str, Any](shuffle=shuffle)
    if isinstance(dataset, Loader):
        named, given, dataset = "loader.dataset", dataset.options | ({} if shuffle else given), dataset.dataset
    # By its value: an object without a length may have a `__len__` that raises.
    has_samples = operator.length_hint(dataset, -1) >= 0 and hasattr(dataset, "__getitem__")
    if not has_samples or isinstance(dataset, (str, bytes)):
        remedy = f"{ONE_SPLIT} Of a DataLoader pass its dataset."
        refuse_argument("dataset", dataset, "a dataset with a length and samples by number", remedy=remedy)
    began = SYSTEM_CLOCK.now()
    given |= {} if device is None else {"device": str(device)}
    trying = _Trying(step)
    # Making a loader draws its seed.
    with preserve_randomness(), Restored(restore) as saved, warnings.catch_warnings():
        candidates, roots = _ways(dataset, batch_size, named, given, collate_fn)
        # torch warns about more processes than cores, but whether they help is what is measured here.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        with preserve_attributes(roots):
            trials = trying.search(candidates, budget_s)
    best = _lightest(trials)
    note = saved.note(trying.steps, "autotune_loader(dataset, batch_size, step=step, restore=(model, optimizer))")
    table = (best, *sorted((trial for trial in trials if trial is not best), key=lambda trial: trial.batch_s))
    rate, gain, seconds = best.samples / best.batch_s, trials[0].batch_s / best.batch_s, SYSTEM_CLOCK.now() - began
    return TunedLoader(
        headline=f"{best.call}: {rate:,.0f} samples/s, {gain:.1f} times as fast as the default "
        f"({len(table)} ways tried in {seconds:.0f} s)",
        tables=(Table(tuple(map(_bar, table)), numbers=frozenset({1})),),
        notes=(note,) if note else (),
        options=best.options,
        call=best.call,
        table=table,
        samples_per_s=rate,
        gain=gain,
        seconds=seconds,
    )


def _bar(trial: Trial) -> Row:
    if math.isinf(trial.batch_s):
        return Row((str(trial), "–", trial.problem), bar=0.0)
    cells = str(trial), f"{format_duration(trial.batch_s)} a batch", trial.problem
    return Row(cells, bar=trial.samples / trial.batch_s)


def _ways(
    dataset: Any, batch_size: int, named: str, given: Mapping[str, Any], collate_fn: Callable[[Any], Any] | None
) -> tuple[list[Trial], tuple[object, ...]]:
    """Return the candidates, the default first, and the objects that they may change. `named`: how the caller writes
    the dataset; `given`: the options of every loader."""
    from torch.utils.data import DataLoader, Subset

    from colabstage.load.dataset import dataset_h5
    from colabstage.load.loader import make_loader

    below, resources = dataset, read_resources()
    cores = resources.cores
    # One less than the cores leaves one for training; twice as many is best for datasets that mostly wait. Persistent,
    # or starting processes would be measured in every epoch of a small dataset.
    counts = sorted({1, 2, max(1, cores - 1), cores, 2 * cores})
    processes = [{"num_workers": count, "persistent_workers": True} for count in counts]
    while isinstance(below, Subset):
        below = below.dataset
    if not isinstance(below, dataset_h5) or collate_fn is not None:
        # For another dataset, or form of a batch, only torch's loader can be tried.
        options = {"shuffle": given.get("shuffle", True), "collate_fn": collate_fn}
        stock = partial(
            Trial.of, partial(DataLoader, dataset, batch_size), f"DataLoader({named}, {batch_size}", options
        )
        tried = [{"num_workers": 0}, *({**one, "prefetch_factor": ahead} for one in processes for ahead in (2, 8))]
        return list(map(stock, tried)), (dataset, collate_fn)
    ours = partial(Trial.of, partial(make_loader, dataset, batch_size), f"make_loader({named}, {batch_size}", given)
    reader = below.reader
    ways: list[dict[str, Any]] = [{}, *({"strategy": "direct", "num_workers": count} for count in sorted({1, cores}))]
    ways.append({"strategy": "direct", "num_workers": cores, "prefetch_factor": 8})
    # Half, because the training needs memory too.
    if reader.stored_bytes < resources.free_memory_bytes / 2:
        ways.append({"strategy": "memory"})
    candidates = list(map(ours, ways))
    # Processes bring no batches to a device, and the order of a seed is that of our loader alone.
    on_host = str(given.get("device", "cpu")) == "cpu"
    if (below.per_sample or reader.encoded) and on_host and "seed" not in given:
        # Of the parts of ours, so that they give the step the same batches.
        made, names = ours({"strategy": "direct"})._make(), ("sampler", "drop_last", "collate_fn")
        own = named if named != "dataset" else f"(loader := {candidates[0].call}).dataset"
        start = f"DataLoader({own}, {batch_size}, {', '.join(f'{name}=loader.{name}' for name in names)}"
        parts = partial(DataLoader, made.dataset, batch_size, **{name: getattr(made, name) for name in names})
        candidates += [Trial.of(parts, start, {}, one) for one in processes]
    return candidates, (below.transform, below.target_transform)


def _lightest(trials: Sequence[Trial]) -> Trial:
    """Return the lightest of the trials within 5 % of the fastest, of those that were measured to the end."""
    measured = [trial for trial in trials if not trial.problem] or trials
    # Smaller differences are not reproducible, and unused cores are left for training.
    fastest = min(trial.batch_s for trial in measured)
    if math.isinf(fastest):
        msg = f"No way to load this dataset worked: {trials[0].problem}."
        raise OptionError(msg)
    equal = [trial for trial in measured if trial.batch_s <= (1 + _EQUAL) * fastest]
    return min(equal, key=lambda trial: (trial.processes, trial.batch_s))


class _Trying:
    def __init__(self, step: Callable[[Any], object] | None) -> None:
        self.steps, self._step = 0, step
        self._failed: BaseException | None = None

    def search(self, candidates: list[Trial], budget_s: float) -> list[Trial]:
        deadline, best_s, trials = SYSTEM_CLOCK.now() + budget_s, math.inf, list[Trial]()
        for number, candidate in enumerate(candidates):
            # Each one is tried, because an untried candidate cannot be ruled out. Starting processes counts against
            # the budget, since the user waits for it.
            share_s = (deadline - SYSTEM_CLOCK.now()) / (len(candidates) - number)
            share_s -= _STARTING_S * (candidate.processes > 0)
            trials.append(self._try_out(candidate, max(_LEAST_S, share_s), best_s))
            best_s = min(best_s, trials[-1].batch_s)
        return trials

    def _try_out(self, trial: Trial, seconds: float, best_s: float) -> Trial:
        """Run one candidate for a while, or until it is clearly worse than `best_s`; an error in it is its result."""
        loader: Any = None
        try:
            # Nothing is kept decoded meanwhile, or a later candidate would find what an earlier one decoded.
            own = {"memory_budget": 0} if trial.maker == "make_loader" else {}
            loader = trial._make(**own)
            with closing(Feed(lambda: iter(loader), SYSTEM_CLOCK)) as feed:
                batch = feed.take()
                trial = replace(trial, samples=batch_size_of(batch)[0])
                self._take_step(batch)
                # Otherwise the first batch's memory would be held while the others are timed.
                del batch
                ahead = trial.processes * int(trial.options.get("prefetch_factor") or 2)
                worse_s = _CLEARLY_WORSE * best_s
                loop = time_loop(feed, self._take_step, seconds, ahead=ahead, with_starts=True, give_up_s=worse_s)
        # A dataset may work without processes and fail to pickle, for example.
        except (ColabstageError, RuntimeError, ValueError, OSError, TypeError, AttributeError) as error:
            # An error of the caller's own code is no fault of a loader.
            if error is self._failed:
                raise
            return replace(trial, problem=said_by(error).partition("\n")[0])
        finally:
            if hasattr(loader, "close"):
                loader.close()
            # Between two epochs only the loader has its persistent workers.
            end_iterator(getattr(loader, "_iterator", None))
        return replace(trial, batch_s=loop.both_s, problem="clearly worse, ended early" if loop.gave_up else "")

    def _take_step(self, batch: Any) -> None:
        if self._step is None:
            return
        self.steps += 1
        try:
            self._step(batch)
        except Exception as error:
            self._failed = error
            raise
