"""What limits a loop, and what to change: pure functions of measured times.

The verdict compares the step alone, on a batch that is ready, with the step and the loader together. That works even if
the step only queues work on a GPU and the waiting shows elsewhere. Advice is a line to paste with a bound: no loop is
faster than its step alone, nor than the stages that a change leaves as they are. What a change gains is not predicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from colabstage.io.units import format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Kind = Literal["torch", "colabstage", "keras", "tf.data", "iterable"]
Bound = Literal["input-bound", "compute-bound", "balanced"]
# work: loading takes longer than the step, or nothing is loaded meanwhile. prefetch: batches are made fast enough on
# average, but not when they are needed. cores: the step itself is slower beside the loader. start: the start of epochs.
Cause = Literal["work", "prefetch", "cores", "start"]

# A smaller loss is noise, and not worth changing a line; as is one that a few lines of Python take.
_LOST = 0.10
_LEAST_LOST_S = 50e-6
_TICK_S = 1e-9
# A loader this close to the step's time would be the next limit.
_NEXT_LIMIT = 0.80
_SLOWER = 1.15
_LEAST_GAIN = 1.1
# A stage below this share of the loading is not worth a change.
_WORTH = 0.3
_MEANWHILE = "batches would be made while the step runs"
_WHAT = {"read": "reading", "decode": "decoding", "transform": "transforms", "collate": "collating"}
_WHAT |= {"rest": "the rest of the pipeline"}


@dataclass(frozen=True, slots=True)
class ProfileFacts:
    """How a loader is set up, and what was measured: seconds per batch on average, unless a name says otherwise."""

    kind: Kind
    workers: int = 0
    """Processes or threads that make batches beside the loop; 0 if the loop makes them itself."""
    prefetch: int = 0
    """How many batches each of them may prepare in advance."""
    persistent: bool = False
    stream: bool = False
    """Whether each worker iterates over the whole dataset, unless its code takes a part: torch's `IterableDataset`."""
    of_batches: bool = False
    """Whether transforms are called with whole batches, by the loop itself: a `batch_transform`."""
    batches: int | None = None
    batch_samples: int = 1
    batch_bytes: int = 0
    image_size: tuple[int, int] | None = None
    cores: int = 1
    has_gpu: bool = False
    load_s: float = 0.0
    both_s: float = 0.0
    step_s: float | None = None
    """The step alone, on a batch that is ready; `None` without a step."""
    start_s: float = 0.0
    """Additional seconds for the first batch of an epoch."""
    wait_s: float = 0.0
    """The part of `both_s` in which the loop waits for its batch."""
    busy_s: float = 0.0
    """The part of `both_s` that the step takes."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """The stages of making a batch, in sequence; empty if unknown."""

    @property
    def batch_s(self) -> float:
        """Return the seconds from batch to batch, including each batch's share of the epoch's start."""
        # A clock that ticks slowly may not have moved.
        return max(self.both_s + self.epoch_start_s, _TICK_S)

    @property
    def alone_s(self) -> float:
        return self.load_s + self.epoch_start_s

    @property
    def epoch_start_s(self) -> float:
        """Return what starting the epoch adds to each of its batches."""
        return self.start_s / self.batches if self.batches else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    bound: Bound
    stage: str | None
    """The stage that takes most of the loading; `None` if the loader is not the limit, or its stages are unknown."""
    cause: Cause | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Advice:
    argument: str
    why: str
    least_s: float
    """The least seconds from batch to batch afterwards."""
    gain: float = 1.0
    """How many times as fast as now, at most."""
    options: Mapping[str, Any] = field(default_factory=dict)


def judge(facts: ProfileFacts) -> Verdict:
    stages, step_s, now_s = facts.stages, facts.step_s, facts.batch_s
    stage = max(stages, key=lambda name: stages[name], default=None)
    if step_s is None:
        most = ""
        if stage is not None:
            most = f", mostly for {_WHAT.get(stage, stage)} ({stages[stage] / sum(stages.values()):.0%})"
        made = f"The loader makes a batch in {format_duration(facts.alone_s)}{most}."
        return Verdict("input-bound", stage, "work", f"{made} Pass step= to see whether training waits for it.")
    lost = max(0.0, 1 - step_s / now_s)
    # A loop loses no more than its own loading takes: anything else is other work on the machine.
    lost = lost if facts.workers else min(lost, facts.alone_s / now_s)
    took = f"the step takes {format_duration(step_s)} a batch, the loader {format_duration(facts.alone_s)}"
    if lost < _LOST or now_s - step_s < _LEAST_LOST_S:
        if facts.alone_s < _NEXT_LIMIT * step_s:
            return Verdict("compute-bound", None, None, f"Compute-bound: {took}. Faster loading gains nothing.")
        return Verdict("balanced", None, None, f"Balanced: {took}, and hardly any time is lost.")
    cause = _cause(facts, step_s)
    rate, headroom = (facts.batch_samples / (seconds or math.inf) for seconds in (now_s, step_s))
    could = f", {rate:,.0f} samples/s where the step could take {headroom:,.0f}" if headroom else ""
    sentence = f"Input-bound by {_words(facts, stage, cause)}: {lost:.0%} of the time is lost{could}."
    return Verdict("input-bound", stage, cause, sentence)


def _cause(facts: ProfileFacts, step_s: float) -> Cause:
    # Checked first: if workers start again in each epoch, everything else looks slow too.
    if facts.epoch_start_s > 0.5 * (facts.batch_s - step_s):
        return "start"
    # Nothing makes these faster beside the step.
    own = facts.of_batches and facts.stages.get("transform", 0.0) > 0.5 * sum(facts.stages.values())
    if facts.workers and not own and facts.both_s > _SLOWER * max(facts.load_s, step_s):
        # A step that takes next to nothing competes for no core.
        if facts.busy_s > max(_SLOWER * step_s, _LOST * facts.both_s):
            return "cores"
        if facts.load_s <= _SLOWER * step_s:
            return "prefetch"
    return "work"


def _words(facts: ProfileFacts, stage: str | None, cause: Cause) -> str:
    what = "loading" if stage is None else _WHAT.get(stage, stage)
    if cause == "work" and stage == "transform" and facts.of_batches:
        return f"{what} (the loop itself calls the batch_transform, before each step)"
    return {
        "start": f"starting each epoch ({format_duration(facts.start_s)} until its first batch)",
        "prefetch": f"too short a queue (on average {what} would be fast enough, but batches come in bursts)",
        "cores": f"{what} (each is faster alone: loader and step compete for the {facts.cores} cores)",
        "work": what if facts.workers else f"{what} (nothing is loaded while the step runs)",
    }[cause]


def advise(facts: ProfileFacts) -> tuple[Advice, ...]:
    """Return all changes that may be worthwhile, those that may gain most first."""
    verdict = judge(facts)
    found = _changes(facts, verdict.cause) if verdict.bound == "input-bound" else ()
    # Zero: without a step there may be nothing that bounds a change.
    gains = [replace(one, gain=facts.batch_s / one.least_s) for one in found if one.least_s > 0]
    return tuple(sorted((one for one in gains if one.gain >= _LEAST_GAIN), key=lambda one: -one.gain))


def _changes(facts: ProfileFacts, cause: Cause | None) -> Iterator[Advice]:
    step_s, load_s, kind = facts.step_s or 0.0, facts.load_s, facts.kind
    beside_s, made_s, transform_s = max(load_s, step_s), sum(facts.stages.values()), facts.stages.get("transform", 0.0)
    # What one worker does for a batch.
    one_s = made_s or load_s * max(1, facts.workers)
    # As many workers as keep up with the step: at most as many as cores, or twice as many if they mostly wait.
    most = facts.cores * (2 if facts.stages.get("read", 0.0) > 0.5 * one_s else 1)
    count = max(1, min(most, math.ceil(one_s / facts.step_s))) if facts.step_s else most
    # Threads do not run in parallel if the work is Python code.
    several = transform_s > 0.5 * one_s
    if kind == "torch":
        yield from _processes(facts, cause, count, max(one_s / count, step_s))
    elif kind == "iterable" and not facts.workers and facts.has_gpu:
        yield Advice("CudaDataLoader(loader, device)", f"{_MEANWHILE}, by a thread", beside_s)
    elif kind == "keras" and count > facts.workers:
        options = {"workers": count, "use_multiprocessing": several, "max_queue_size": 4 * count}
        line = f"PyDataset.__init__({_pasted(options)})"
        yield Advice(line, _MEANWHILE, max(one_s / count, step_s), options=options)
    elif kind == "colabstage":
        line = f"autotune_loader(loader, {facts.batch_samples}, step=step)"
        least_s = step_s + transform_s if facts.of_batches else step_s
        yield Advice(line, "it tries in which ways this dataset can be read beside your step", least_s)
    elif kind == "tf.data":
        if not facts.workers:
            yield Advice(".prefetch(tf.data.AUTOTUNE)", _MEANWHILE, beside_s)
        line = ".map(f, num_parallel_calls=tf.data.AUTOTUNE)"
        yield Advice(line, "several samples would be processed at once", step_s)
    stored_s = facts.stages.get("read", 0.0) + facts.stages.get("decode", 0.0)
    if kind != "colabstage" and made_s > 0 and (facts.image_size is not None or stored_s >= _WORTH * made_s):
        call = {"keras": "to_keras", "tf.data": "to_tf_data"}.get(kind, "make_loader")
        size = "" if facts.image_size is None else f", image_size={facts.image_size}"
        line = f'{call}(stage_dataset(SOURCE{size})["train"], {facts.batch_samples})'
        why = (
            "files are read and decoded once, and batches are gathered from one file; SOURCE is your folder or file, "
            "and prepare= takes what is the same each time"
        )
        yield Advice(line, why, step_s)
    if kind in {"torch", "colabstage"} and not facts.of_batches and transform_s >= _WORTH * made_s > 0:
        rest_s = load_s * (1 - transform_s / made_s)
        why = "one call for a batch, on the device, instead of one for each sample; its own time comes on top"
        least_s = max(rest_s, step_s) if facts.workers else rest_s + step_s
        yield Advice("make_loader(..., batch_transform=f)", why, least_s)


def _processes(facts: ProfileFacts, cause: Cause | None, count: int, least_s: float) -> Iterator[Advice]:
    if cause == "start" and facts.workers and not facts.persistent:
        yield _torch("the processes are started again in every epoch", facts.both_s, persistent_workers=True)
    if cause == "prefetch" and facts.prefetch:
        why = f"batches come in bursts, which {facts.workers * facts.prefetch} of them in advance do not bridge"
        yield _torch(why, max(facts.load_s, facts.step_s or 0.0), prefetch_factor=4 * facts.prefetch)
    if count > facts.workers:
        why = f"{_MEANWHILE}, by {format_count(count, 'processes')}; autotune_loader measures how many are best"
        if facts.stream and count > 1:
            why += ". An IterableDataset must take a part in each, by torch.utils.data.get_worker_info()"
        yield _torch(why, least_s, num_workers=count, persistent_workers=True)


def _torch(why: str, least_s: float, **options: int | bool) -> Advice:
    return Advice(f"DataLoader(..., {_pasted(options)})", why, least_s, options=options)


def _pasted(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())
