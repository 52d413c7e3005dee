"""`autotune_loader`: try the ways to load a dataset on this machine, within a time budget, and keep the best.

Successive halving: all candidates get a short trial, the better half a longer one, and so on while time lasts. A trial
ends early if it is clearly worse than the best so far. Among about equal candidates the one with the fewest processes
wins, because on two cores processes take time from the model.
"""

from __future__ import annotations

import math
import operator
import time
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.facts import batch_size_of
from colabstage.diagnose.loaders import end_iterator
from colabstage.diagnose.measure import check_step
from colabstage.diagnose.restore import preserve_attributes, preserve_randomness, preserve_training
from colabstage.errors import ColabstageError, OptionError, said_by
from colabstage.io.arguments import NOTHING_DONE, ONE_SPLIT, check_argument, refuse_argument, stops_with, takes
from colabstage.io.boundary import typed
from colabstage.io.page import notes, page, table
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Closer results count as equal: trials of a second or two are no more exact.
_EQUAL = 0.05
_CLEARLY_WORSE = 1.6
_LEAST_BATCHES = 4
_LEAST_S = 0.2
_STARTING_S = 0.5


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of loading."""

    options: dict[str, Any]
    """Arguments of `make_loader` or of torch's `DataLoader`."""
    weight: int = 0
    """How much of the machine it uses; among equally fast ones the lightest wins."""

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a candidate's last and longest trial."""

    candidate: Candidate
    """What was tried."""
    batch_s: float = math.inf
    """Seconds from batch to batch, with the step if there is one."""
    first_s: float = 0.0
    """Seconds to the first batch."""
    batches: int = 0
    """How many batches were taken."""
    samples: int = 0
    """Samples in each batch."""
    problem: str = ""
    """Why it could not be tried, if so."""
    stopped: bool = False
    """Whether it was clearly worse, and ended early."""


@dataclass(frozen=True, slots=True)
class TunedLoader:
    """The result of `autotune_loader`."""

    options: dict[str, Any]
    """The best arguments, to be passed on."""
    call: str
    """The same as code to paste."""
    table: tuple[Trial, ...]
    """All trials, the best first."""
    samples_per_s: float
    """The rate of the best."""
    gain: float
    """How many times faster than the default, torch's `DataLoader` without workers or `make_loader`'s own choice."""
    seconds: float
    """How long the search took."""
    _make: Callable[..., Any] = field(repr=False)
    notes: tuple[str, ...] = ()
    """What else the user should know."""

    def loader(self) -> Any:
        """Return a new loader with the best options."""
        return self._make(**self.options)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "call": self.call,
            "options": self.options,
            "samples_per_second": self.samples_per_s,
            "gain": self.gain,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "table": [
                {
                    "options": trial.candidate.options,
                    "batch_seconds": None if math.isinf(trial.batch_s) else trial.batch_s,
                    "first_seconds": trial.first_s,
                    "batches": trial.batches,
                    "stopped": trial.stopped,
                    "problem": trial.problem,
                }
                for trial in self.table
            ],
        }

    def summary(self) -> str:
        """Return the best call, and the table."""
        lines = [self._headline(), "", f"{'ms a batch':>12}{'first, s':>10}  options"]
        lines += [f"{_shown_time(trial):>12}{trial.first_s:>10.2f}  {_described_trial(trial)}" for trial in self.table]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def _headline(self) -> str:
        return (
            f"{self.call}: {self.samples_per_s:,.0f} samples/s, {self.gain:.1f}x the default "
            f"({len(self.table)} ways tried in {self.seconds:.0f} s)"
        )

    def __repr__(self) -> str:
        return f"TunedLoader: {self._headline()}"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        rows = [(_shown_time(trial), f"{trial.first_s:.2f}", _described_trial(trial)) for trial in self.table]
        shown = table(("ms a batch", "first, s", "options"), rows, numbers=frozenset({0, 1}))
        return page(self._headline(), shown + notes(self.notes))


def _shown_time(trial: Trial) -> str:
    return "–" if math.isinf(trial.batch_s) else f"{1000 * trial.batch_s:,.2f}"


def _described_trial(trial: Trial) -> str:
    end = f"  ({trial.problem})" if trial.problem else "  (clearly worse, ended early)" if trial.stopped else ""
    return f"{trial.candidate}{end}"


@takes(remedies={"batch_size": 'Write autotune_loader(data["train"], 64).'})
@stops_with(NOTHING_DONE)
@typed()
def autotune_loader(
    dataset: Any,
    batch_size: int,
    *,
    step: Callable[[Any], object] | None = None,
    budget_s: float = 20.0,
    device: Any = None,
    collate_fn: Callable[[Any], Any] | None = None,
    shuffle: bool = True,
) -> TunedLoader:
    """Try numbers of workers, prefetching and strategies on a dataset, and say which is fastest here.

    >>> tuned = autotune_loader(dataset, 64, step=train_step)  # doctest: +SKIP
    >>> print(tuned)  # doctest: +SKIP
    >>> loader = tuned.loader()  # doctest: +SKIP

    Random numbers, the dataset's attributes and what the step trains are restored afterwards, as in `profile_loader`.

    Args:
        dataset: a `dataset_h5`, for which `make_loader`'s strategies are tried, or any other map-style torch dataset,
            for which torch's `DataLoader` is.
        batch_size: samples in a batch.
        step: called with each batch, as in the training loop; without it loaders are compared alone, which favours more
            processes than are good for a training loop that needs the cores itself.
        budget_s: seconds for the whole search, including starting processes. A slow batch may exceed it.
        device: where batches go, for `make_loader`.
        collate_fn: of the `DataLoader`.
        shuffle: whether samples are visited in a random order.

    Raises:
        OptionError: the dataset has no length, or no candidate can load it; the message has the first reason.
    """
    check_step(step)
    check_argument("budget_s", budget_s, "above zero")
    # By its value: what has no length may have a method that says so.
    has_samples = operator.length_hint(dataset, -1) >= 0 and hasattr(dataset, "__getitem__")
    if not has_samples or isinstance(dataset, (str, bytes)):
        refuse_argument("dataset", dataset, "a dataset with a length and samples by number", remedy=ONE_SPLIT)
    resources = read_resources()
    began = time.monotonic()
    from colabstage.load.dataset import dataset_h5

    make: Callable[..., Any]
    decodes = False
    # Our dataset has several strategies; for any other only torch's loader can be tried.
    if isinstance(dataset, dataset_h5):
        from colabstage.load.loader import make_loader

        name = "make_loader"
        make = partial(make_loader, dataset, batch_size, device=device, shuffle=shuffle)
        roots: tuple[object, ...] = (dataset.transform, dataset.target_transform)
        decodes = dataset.reader.encoded or dataset.reader.decodes_targets
        candidates = our_candidates(
            resources.cores,
            # Half, because the training needs memory too.
            fits=bool(dataset.reader.stored_bytes < resources.free_memory_bytes / 2),
            per_sample=dataset.per_sample or bool(dataset.reader.encoded),
        )
    else:
        from torch.utils.data import DataLoader

        name = "DataLoader"
        make = partial(DataLoader, dataset, batch_size, shuffle=shuffle, collate_fn=collate_fn)
        roots, candidates = (dataset, collate_fn), stock_candidates(resources.cores)
    with (
        preserve_randomness(),
        preserve_attributes(roots),
        preserve_training(step) as put_back,
        warnings.catch_warnings(),
    ):
        # torch warns about more processes than cores, but whether they help is what is measured here.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        # Nothing is kept decoded, or a later candidate would find what an earlier one decoded.
        trials = _search(candidates, partial(make, memory_budget=0) if decodes else make, step, budget_s)
        best = choose(trials)
    options = best.candidate.options
    default = next((trial for trial in trials if trial.candidate == candidates[0]), best)
    return TunedLoader(
        # The arguments as values, and as a line of code.
        options,
        f"{name}(dataset, {batch_size}{''.join(f', {key}={value!r}' for key, value in options.items())})",
        (best, *sorted((trial for trial in trials if trial is not best), key=lambda trial: trial.batch_s)),
        best.samples / best.batch_s,
        default.batch_s / best.batch_s,
        time.monotonic() - began,
        make,
        (put_back,) if put_back else (),
    )


def stock_candidates(cores: int) -> list[Candidate]:
    """List the candidates of torch's `DataLoader`: no processes, and up to twice as many as cores."""
    # One less than the cores leaves one for training; twice as many is best for datasets that mostly wait.
    counts = sorted({1, 2, max(1, cores - 1), cores, 2 * cores})
    found = [Candidate({"num_workers": 0})]
    for count in counts:
        # Otherwise starting processes would be measured in every epoch of a small dataset.
        options = {"num_workers": count, "persistent_workers": True}
        found += [Candidate({**options, "prefetch_factor": ahead}, count) for ahead in (2, 8)]
    return found


def our_candidates(cores: int, *, fits: bool, per_sample: bool) -> list[Candidate]:
    """List the candidates of `make_loader`: its own choice, each strategy that can work, and processes if useful."""
    # The first one is the default, against which gains are measured.
    found = [Candidate({}), *(Candidate({"strategy": "direct", "num_workers": count}, 0) for count in {1, cores})]
    found.append(Candidate({"strategy": "direct", "num_workers": cores, "prefetch_factor": 8}))
    if fits:
        found.append(Candidate({"strategy": "memory"}))
    if per_sample:
        counts = sorted({1, cores, 2 * cores})
        found += [Candidate({"strategy": "workers", "num_workers": count}, count) for count in counts]
    return found


def choose(trials: Sequence[Trial]) -> Trial:
    """Return the lightest of the candidates within 5 % of the fastest.

    Raises:
        OptionError: none could be tried.
    """
    # Smaller differences are not reproducible, and unused cores are left for training.
    tried = [trial for trial in trials if math.isfinite(trial.batch_s)]
    if not tried:
        msg = f"No way to load this dataset worked: {trials[0].problem if trials else 'none was tried'}."
        raise OptionError(msg)
    fastest = min(trial.batch_s for trial in tried)
    equal = [trial for trial in tried if trial.batch_s <= (1 + _EQUAL) * fastest]
    return min(equal, key=lambda trial: (trial.candidate.weight, trial.batch_s))


def next_round(trials: Sequence[Trial]) -> list[Candidate]:
    """Return the better half of the candidates, at least two, without those that failed or were stopped."""
    # Successive halving: most of the time is spent on comparing the best ones.
    going = sorted(
        (trial for trial in trials if math.isfinite(trial.batch_s) and not trial.stopped), key=lambda t: t.batch_s
    )
    return [trial.candidate for trial in going[: max(2, math.ceil(len(going) / 2))]]


def _search(
    candidates: list[Candidate],
    make: Callable[..., Any],
    step: Callable[[Any], object] | None,
    budget: float,
) -> list[Trial]:
    deadline = time.monotonic() + budget
    rounds = max(1, math.ceil(math.log2(len(candidates))))
    latest: dict[int, Trial] = {}
    left = candidates
    for number in range(rounds):
        # Each round gets an equal share of the time, so fewer candidates are measured for longer.
        share_s = (deadline - time.monotonic()) / (rounds - number) / len(left)
        for candidate in left:
            # Each one is tried at least once, because an untried candidate cannot be ruled out.
            if latest.get(id(candidate)) is not None and time.monotonic() > deadline:
                break
            best_s = min((trial.batch_s for trial in latest.values()), default=math.inf)
            # Starting processes counts against the budget, since the user waits for it.
            seconds = max(_LEAST_S, share_s - _STARTING_S * (candidate.weight > 0))
            latest[id(candidate)] = _try(candidate, make, step, seconds, best_s)
        left = next_round([latest[id(candidate)] for candidate in left])
        if len(left) < 2 or time.monotonic() > deadline:
            break
    return list(latest.values())


def _try(
    candidate: Candidate, make: Callable[..., Any], step: Callable[[Any], object] | None, seconds: float, best_s: float
) -> Trial:
    """Run one candidate for a while, or until it is clearly worse than `best_s`; an error in it is its result."""
    trial = Trial(candidate)
    loader: Any = None
    iterator: Any = None
    try:
        began = time.perf_counter()
        loader = make(**candidate.options)
        iterator = iter(loader)
        batch = next(iterator)
        trial = replace(trial, first_s=time.perf_counter() - began, samples=batch_size_of(batch)[0])
        if step is not None:
            step(batch)
        # Otherwise the first batch's memory would be held while the others are timed.
        del batch
        return _time_trial(trial, loader, iterator, step=step, seconds=seconds, best_s=best_s)
    except StopIteration:
        return replace(trial, problem="the dataset has no batch of this size")
    # A dataset may work without processes and fail to pickle, for example.
    except (ColabstageError, RuntimeError, ValueError, OSError, TypeError, AttributeError) as error:
        return replace(trial, problem=said_by(error).partition("\n")[0])
    finally:
        end_iterator(iterator)
        if hasattr(loader, "close"):
            loader.close()


def _time_trial(
    trial: Trial,
    loader: Any,
    iterator: Any,
    *,
    step: Callable[[Any], object] | None,
    seconds: float,
    best_s: float,
) -> Trial:
    # If batches come fast, those that were prepared before the measurement do not count.
    ahead = trial.candidate.weight * int(trial.candidate.options.get("prefetch_factor") or 2)
    began = counted_from = time.perf_counter()
    count = skipped = 0
    while count < _LEAST_BATCHES or time.perf_counter() - began < seconds:
        batch = next(iterator, None)
        if batch is None:
            iterator = iter(loader)
            batch = next(iterator)
        if step is not None:
            step(batch)
        count += 1
        now = time.perf_counter()
        if skipped == 0 and count >= ahead and now - began < seconds / 2:
            skipped, counted_from = count, now
        if count - skipped >= _LEAST_BATCHES and now - began > _LEAST_S / 2:
            mean_s = (now - counted_from) / (count - skipped)
            # The rest of its time is better spent on candidates that may win.
            if mean_s > _CLEARLY_WORSE * best_s:
                return replace(trial, batch_s=mean_s, batches=count, stopped=True)
    return replace(trial, batch_s=(time.perf_counter() - counted_from) / max(1, count - skipped), batches=count)
