"""Deciding how batches are loaded, from facts alone, with the reason beside every number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from colabstage.errors import OptionError
from colabstage.load.memory import check_memory, spare_memory
from colabstage.load.storage import EngineChoice
from colabstage.units import format_bytes

Strategy = Literal["auto", "direct", "memory"]

# More threads than this do not copy faster: the memory is the limit (benchmarks/read_pixels.py).
_MOST_COPY_THREADS = 4
# Reads under way at once from a disk; twice as many are hardly faster (benchmarks/read_cold.py).
_READ_THREADS = 16
_PREFETCH = 2
# Part of the free memory that batches in flight may take by default.
_MEMORY_PART = 4
# Part of the memory to spare that a split may take unasked: other splits and the model come after it.
_UNASKED_PART = 2


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """What the decision rests on.

    `rows`: samples. `row_bytes`: of one in memory. `stored_bytes`: of all inputs as they are stored. `engine`: how they
    are read. `encoded`: whether they are decoded on read. `per_sample`: whether the dataset has a Python transform for
    each sample. `cores`, `free_memory_bytes`: what this process may use.
    """

    rows: int
    row_bytes: int
    stored_bytes: int
    engine: EngineChoice
    encoded: bool
    per_sample: bool
    cores: int
    free_memory_bytes: int


@dataclass(frozen=True, slots=True)
class LoaderRequest:
    """What the caller of `make_loader` asked for, as far as the decision depends on it."""

    batch_size: int
    strategy: Strategy = "auto"
    drop_last: bool = False
    num_workers: int | Literal["auto"] = "auto"
    prefetch: int | Literal["auto"] = "auto"


@dataclass(frozen=True, slots=True)
class Reasoned:
    """A number and why it is that."""

    value: int
    reason: str

    def __str__(self) -> str:
        return f"{self.value} ({self.reason})"


@dataclass(frozen=True, slots=True)
class LoaderPlan:
    """How batches will be loaded.

    `strategy`: with `"direct"` a background thread copies, or decodes, batches straight out of the file; with
    `"memory"` the whole split is read once, and batches come from there. `engine`: what rows are read by then.
    `batches`: in an epoch. `workers`: threads that copy or decode at once. `prefetch`: batches prepared ahead.
    """

    strategy: Literal["direct", "memory"]
    reason: str
    batch_size: int
    batches: int
    workers: Reasoned
    prefetch: Reasoned
    engine: EngineChoice

    def __str__(self) -> str:
        return (
            f"{self.strategy}: {self.reason}; {self.batches:,} batches of {self.batch_size}; "
            f"workers: {self.workers}; prefetch: {self.prefetch}; engine: {self.engine}"
        )


def choose_loader(facts: LoaderFacts, request: LoaderRequest) -> LoaderPlan:
    """Decide how to load.

    Raises:
        OptionError: a value that cannot work, with those that can.
        NotEnoughSpaceError: `"memory"` was asked for, and the split does not fit there.
    """
    _check(request)
    batches = -(-facts.rows // request.batch_size)
    if request.drop_last:
        batches = facts.rows // request.batch_size
        if facts.rows and not batches:
            msg = (
                f"batch_size={request.batch_size} with drop_last=True leaves no batch of {facts.rows:,} samples. "
                "Use a smaller batch_size, or drop_last=False."
            )
            raise OptionError(msg)
    strategy, source = _choose_strategy(facts, request)
    facts = replace(facts, engine=source)
    return LoaderPlan(
        strategy=strategy,
        reason=_strategy_reason(facts),
        batch_size=request.batch_size,
        batches=batches,
        workers=_choose_workers(facts, request),
        prefetch=_choose_prefetch(facts, request),
        engine=facts.engine,
    )


def _check(request: LoaderRequest) -> None:
    if request.strategy not in get_args(Strategy):
        msg = f"strategy={request.strategy!r} is unknown; expected one of {', '.join(get_args(Strategy))}."
        raise OptionError(msg)
    counts = {"batch_size": request.batch_size, "num_workers": request.num_workers, "prefetch": request.prefetch}
    for name, value in counts.items():
        if value == "auto" and name != "batch_size":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            words = "a whole number, 1 or more" + ("" if name == "batch_size" else ', or "auto"')
            msg = f"{name}={value!r} cannot work; expected {words}."
            raise OptionError(msg)


def _choose_strategy(facts: LoaderFacts, request: LoaderRequest) -> tuple[Literal["direct", "memory"], EngineChoice]:
    """Where batches come from, and the engine that reads them there."""
    engine, size = facts.engine, format_bytes(facts.stored_bytes)
    if request.strategy == "direct":
        return "direct", engine
    if engine.name == "memory":
        return "memory", engine
    if request.strategy == "memory":
        check_memory(
            facts.stored_bytes, facts.free_memory_bytes, 'strategy="memory"', remedy='Use strategy="direct" or "auto".'
        )
        return "memory", EngineChoice("memory", f"as asked, all {size} are read once")
    if engine.name == "h5py" and facts.stored_bytes * _UNASKED_PART <= spare_memory(facts.free_memory_bytes):
        why = f"reading in random order would be slow, as {engine.reason}; its {size} fit, and are read once"
        return "memory", EngineChoice("memory", why)
    return "direct", engine


def _strategy_reason(facts: LoaderFacts) -> str:
    source = "memory" if facts.engine.name == "memory" else "the file"
    if facts.per_sample:
        return (
            "a background thread reads each batch at once, then calls the dataset's transform sample by sample; "
            "batch_transform would work on whole batches"
        )
    if facts.encoded:
        return f"threads decode each batch straight out of {source}"
    return f"a background thread copies each batch straight out of {source}"


def _choose_workers(facts: LoaderFacts, request: LoaderRequest) -> Reasoned:
    if request.num_workers != "auto":
        return Reasoned(request.num_workers, "as asked")
    if facts.engine.name == "read":
        return Reasoned(max(_READ_THREADS, facts.cores), "most wait for the disk")
    if facts.encoded:
        return Reasoned(facts.cores, "decoding keeps every core busy")
    if facts.engine.name == "h5py":
        return Reasoned(1, "HDF5 lets only one thread read at a time")
    if facts.cores <= _MOST_COPY_THREADS:
        return Reasoned(facts.cores, "one for each core")
    return Reasoned(_MOST_COPY_THREADS, "more do not copy faster, memory is the limit")


def _choose_prefetch(facts: LoaderFacts, request: LoaderRequest) -> Reasoned:
    if request.prefetch != "auto":
        return Reasoned(request.prefetch, "as asked")
    # One more is with the consumer, and one in the making.
    batch_bytes = max(1, request.batch_size * facts.row_bytes)
    fitting = facts.free_memory_bytes // _MEMORY_PART // batch_bytes - 2
    if fitting >= _PREFETCH:
        return Reasoned(_PREFETCH, "evens out batches that take longer")
    return Reasoned(1, f"batches of {format_bytes(batch_bytes)} leave memory for no more")
