"""Deciding how batches are loaded, from facts alone, with the reason beside every number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from colabstage.errors import OptionError
from colabstage.units import format_bytes

if TYPE_CHECKING:
    from colabstage.load.storage import EngineChoice

Strategy = Literal["auto", "direct"]

# More threads than this do not copy faster: the memory is the limit (benchmarks/read_pixels.py).
_MOST_COPY_THREADS = 4
_PREFETCH = 2
# Part of the free memory that batches in flight may take by default.
_MEMORY_PART = 4


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """What the decision rests on.

    `rows`: samples. `row_bytes`: of one in memory. `engine`: how they are read. `encoded`: whether they are decoded on
    read. `per_sample`: whether the dataset has a Python transform for each sample. `cores`, `free_memory_bytes`: what
    this process may use.
    """

    rows: int
    row_bytes: int
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

    `strategy`: `"direct"`: a background thread copies, or decodes, batches straight out of the file.
    `batches`: in an epoch. `workers`: threads that copy or decode at once. `prefetch`: batches prepared ahead.
    """

    strategy: Literal["direct"]
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
    return LoaderPlan(
        strategy="direct",
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


def _strategy_reason(facts: LoaderFacts) -> str:
    if facts.per_sample:
        return (
            "a background thread reads each batch at once, then calls the dataset's transform sample by sample; "
            "batch_transform would work on whole batches"
        )
    if facts.encoded:
        return "threads decode each batch straight out of the file"
    return "a background thread copies each batch straight out of the file"


def _choose_workers(facts: LoaderFacts, request: LoaderRequest) -> Reasoned:
    if request.num_workers != "auto":
        return Reasoned(request.num_workers, "as asked")
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
