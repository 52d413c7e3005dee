"""Decide about loading in pure functions: facts and a request in, values with their reasons out.

How much of each image is decoded, how many small batches are gathered at once, in which order an epoch visits rows and
how large its windows are, whether worker processes gain and how they are started.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

from colabstage.errors import OptionError
from colabstage.io.page import facts_table, page
from colabstage.io.units import format_bytes, format_count
from colabstage.load.epoch import Shard
from colabstage.load.reading.memory import spare_memory

if TYPE_CHECKING:
    from colabstage.load.arrival import ArrivalFacts
    from colabstage.load.reading.storage import EngineChoice

Strategy = Literal["auto", "device", "memory", "direct", "workers"]
Shuffle = bool | Literal["auto", "window"]
StartMethod = Literal["fork", "forkserver", "spawn"]
Decode = Literal["auto", "crops", "whole"]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The device that batches go to."""

    type: str
    """Torch's word for its kind."""
    free_bytes: int
    """Of its memory."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What starting worker processes depends on."""

    threads: int
    """Threads of this process that Python knows."""
    cuda_started: bool
    """Whether this process uses CUDA."""
    unpicklable: str | None
    """Why the dataset cannot be sent to another process, `None` when it can."""
    methods: tuple[str, ...]
    """Ways of starting that this system has."""
    shared_memory_bytes: int
    """Free room for results on their way between processes."""
    runs_again: bool = False
    """Whether a process that is spawned would run the script that is running from its top, because the line that
    it is at is not below `if __name__ == "__main__":`."""


@dataclass(frozen=True, slots=True)
class SampleCost:
    """What a probe measured."""

    seconds: float
    """That a sample takes with its transform."""
    result_bytes: int
    """Length of its result."""


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """What the decision rests on."""

    rows: int
    """How many samples there are."""
    row_bytes: int
    """Length of one in memory."""
    stored_bytes: int
    """Length of all inputs as they are stored."""
    engine: EngineChoice
    """How they are read."""
    encoded: bool
    """Whether they are decoded on read."""
    per_sample: bool
    """Whether the dataset has a Python transform for each sample."""
    cores: int
    """That this process may use."""
    free_memory_bytes: int
    """That this process may use."""
    target_bytes: int = 8
    """Length of one target."""
    uniform: bool = True
    """Whether all inputs have one shape, and all targets."""
    random_rows: bool = False
    """Whether the rows of the file are in random order."""
    epoch_rows: int | None = None
    """Visited in an epoch, where that is not `rows`."""
    shard: Shard = field(default_factory=Shard)
    """This rank's part."""
    device: DeviceFacts | None = None
    """Where batches go, `None` for this computer's memory."""
    processes: ProcessFacts | None = None
    """`None` where nobody looked."""
    cost: SampleCost | None = None
    """Of a sample with its transform, `None` where nobody measured it."""
    crop_bytes: int | None = None
    """Length of one crop, where the batch transform begins with a random resized one, `None` where it does not."""
    whole_reason: str | None = None
    """Why these inputs cannot be decoded as crops, `None` where they can."""
    arrival: ArrivalFacts | None = None
    """Of a file of which some rows are not here yet, `None` of any other."""


@dataclass(frozen=True, slots=True)
class LoaderRequest:
    """What the caller of `make_loader` asked for, as far as the decision depends on it."""

    batch_size: int
    """Samples in a batch."""
    strategy: Strategy = "auto"
    """Where batches come from."""
    drop_last: bool = False
    """Whether a last batch that is not full is left out."""
    num_workers: int | Literal["auto"] = "auto"
    """Threads that copy or decode at once, or processes."""
    prefetch_factor: int | Literal["auto"] = "auto"
    """Batches prepared ahead, by each process where there are some."""
    shuffle: Shuffle = True
    """Whether rows are visited in random order, and in which kind of it."""
    memory_budget: int | None = None
    """Bytes that a window shuffle may take, `None` for a part of what is free."""
    sampling: bool = False
    """Whether a sampler decides by itself in which order rows come."""
    decode: Decode = "auto"
    """How much of each image file is decoded."""


@dataclass(frozen=True, slots=True)
class ReasonedValue:
    """A number and why it is that."""

    value: int
    """The number."""
    reason: str
    """Why, in words that follow it in brackets."""

    def __str__(self) -> str:
        return f"{self.value} ({self.reason})"


@dataclass(frozen=True, slots=True)
class OrderChoice:
    """Say in which order an epoch visits rows, and why."""

    name: Literal["permutation", "window", "arrival", "file", "sampler"]
    """`"permutation"` any order is as likely as any other; `"window"` rows are shuffled in windows; `"arrival"` so are
    those of units that are brought here together; `"file"` as stored; `"sampler"` as the sampler says."""
    reason: str
    """Why, in words that follow the name."""
    window_rows: int = 0
    """Rows that are shuffled among each other."""
    block_rows: int = 0
    """Neighbours in the file that windows are made of."""
    window_units: int = 0
    """Units of what arrives that are shuffled among each other."""
    mixing: float | None = None
    """How even the classes of a batch are, as `load.arrival.mixing_of` has it; `None` where nobody measured it."""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class DecodeChoice:
    """How much of each image file is decoded, and why."""

    name: Literal["crops", "whole"]
    """`"crops"` no more than the crop that the batch transform begins with needs; `"whole"` all of it."""
    reason: str
    """Why, in words that follow "because"."""

    def __str__(self) -> str:
        return f"{self.name}, because {self.reason}"


@dataclass(frozen=True, slots=True)
class StartChoice:
    """How worker processes are started, and why."""

    method: StartMethod
    """Python's word for it."""
    reason: str
    """Why, in words that follow it in brackets."""
    safe: bool = True
    """Whether that may be done unasked."""

    def __str__(self) -> str:
        return f"{self.method} ({self.reason})"


@dataclass(frozen=True, slots=True)
class LoaderPlan:
    """How batches will be loaded."""

    strategy: Literal["device", "memory", "direct", "workers"]
    """With `"direct"` a background thread copies, or decodes, batches straight out of the file; with `"memory"` the
    whole split is read once, and batches come from there; with `"device"` the same on the device; with `"workers"`
    processes make them."""
    reason: str
    """Why, in words that follow the strategy."""
    batch_size: int
    """Samples in a batch."""
    batches: int
    """In an epoch, of this rank."""
    workers: ReasonedValue
    """Threads that copy or decode at once, or processes."""
    prefetch: ReasonedValue
    """Batches prepared ahead, by each process where there are some."""
    engine: EngineChoice
    """What rows are read by then."""
    order: OrderChoice
    """In which rows are visited."""
    start: StartChoice | None = None
    """How processes are started, `None` without any."""
    decode: DecodeChoice | None = None
    """How much of image files is decoded, `None` where inputs are none."""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Tell what was chosen, and why, one choice after the other."""
        chosen = [
            ("strategy", f"{self.strategy}: {self.reason}"),
            ("batches", f"{self.batches:,} of {self.batch_size:,}"),
            ("workers", str(self.workers)),
            ("prefetch", str(self.prefetch)),
            ("engine", str(self.engine)),
            ("order", str(self.order)),
        ]
        chosen += [] if self.start is None else [("start", str(self.start))]
        return chosen if self.decode is None else [*chosen, ("decode", str(self.decode))]

    def _repr_html_(self) -> str:
        return page(f"LoaderPlan: {self.strategy}", facts_table(self.facts))

    def __str__(self) -> str:
        start = "" if self.start is None else f"; start: {self.start}"
        decode = "" if self.decode is None else f"; decode: {self.decode}"
        return (
            f"{self.strategy}: {self.reason}; {format_count(self.batches, 'batches')} of {self.batch_size}; "
            f"workers: {self.workers}; prefetch: {self.prefetch}; engine: {self.engine}; order: {self.order}"
            f"{start}{decode}"
        )


_CROPS = "batch_transform begins with a RandomResizedCrop, and no more of a file is decoded than its crop needs"


def choose_decoding(facts: LoaderFacts, request: LoaderRequest, strategy: str) -> DecodeChoice | None:
    """Decide how much of each image file is decoded; `None` where inputs are no image files.

    Raises:
        OptionError: an unknown value; or crops were asked for and cannot be, with the reason.
    """
    if request.decode not in get_args(Decode):
        msg = f"decode={request.decode!r} is unknown; expected one of {', '.join(get_args(Decode))}."
        raise OptionError(msg)
    # Found first, because "auto" needs its absence and "crops" its words.
    obstacle = _obstacle(facts, strategy)
    if request.decode == "crops" and obstacle is not None:
        msg = f'decode="crops" cannot work: {obstacle}. Use decode="auto".'
        raise OptionError(msg)
    if not facts.encoded:
        return None
    # Told apart from an obstacle, so that the plan says whose choice it was.
    if request.decode == "whole":
        return DecodeChoice("whole", "that was asked for")
    return DecodeChoice("crops", _CROPS) if obstacle is None else DecodeChoice("whole", obstacle)


def _obstacle(facts: LoaderFacts, strategy: str) -> str | None:
    """Tell why images cannot be decoded as crops."""
    if not facts.encoded:
        return "inputs are not image files that are decoded when they are read"
    if facts.crop_bytes is None:
        return "batch_transform does not begin with a RandomResizedCrop"
    if facts.whole_reason is not None:
        return f"images cannot be cropped while they are decoded, as {facts.whole_reason}"
    # Of the transform nobody knows whether it would still see the whole image.
    if facts.per_sample:
        return "the dataset's own transform takes whole images"
    if strategy not in ("direct", "memory"):
        return f'with strategy="{strategy}" batch_transform gets whole images'
    return None


def with_crops(facts: LoaderFacts, decode: DecodeChoice | None) -> LoaderFacts:
    """Return the facts about what is read by then."""
    if decode is None or decode.name != "crops" or facts.crop_bytes is None:
        return facts
    return replace(facts, row_bytes=facts.crop_bytes)


# As much is copied in about the time that handing it to another thread takes ten times.
_GROUP_BYTES = 2 * 1024 * 1024
# More batches in a group gain nothing, and whoever keeps one of them keeps the memory of all.
_MOST_TOGETHER = 32


def prefetch_of_small(batch_bytes: int) -> int:
    """Return the number of batches to prepare ahead, when they are small enough to be gathered in groups: two
    groups."""
    return 2 * min(_MOST_TOGETHER, _GROUP_BYTES // max(1, batch_bytes))


def batches_together(prefetch: int, batch_bytes: int) -> int:
    """Return the number of batches that are gathered at once.

    Args:
        prefetch: batches prepared ahead; a group is half of them at most, so that no more are.
        batch_bytes: length of one.
    """
    return max(1, min(prefetch // 2, prefetch_of_small(batch_bytes) // 2))


# A disk reads blocks of this size in any order as fast as in theirs: 768 KiB gave 500 to 600 MB/s where sequential
# reading gave the same.
_BLOCK_BYTES = 4 * 1024 * 1024
# With fewer blocks a window would mix too little.
_BLOCKS = 16
# Taken unasked: this part of the memory to spare, but no more than this. A power of two, so that a run resumed on
# another day, with a little more or less memory free, has the same windows.
_MEMORY_PART = 4
_MOST_BYTES = 2**31
# The same for each of several ranks, and the batches ahead that count: those of one loader on average.
_RANKS_BYTES = 2**28
_RANKS_PREFETCH = 2


def choose_order(facts: LoaderFacts, request: LoaderRequest, strategy: str, prefetch: int) -> OrderChoice:
    """Decide in which order rows are visited.

    Ranks share out one order, and each of them decides here alone. So where there are several, only what is the same on
    all of them decides: neither the memory that is free, nor what is read from memory, nor what follows from those.

    Raises:
        OptionError: a window shuffle that cannot be: with a sampler, or with too little memory; or rows wanted at
            random of a file of which some are not here.
    """
    if facts.arrival is not None and (request.sampling or request.shuffle):
        return _of_arrival(facts.arrival, request)
    if request.shuffle == "window":
        if request.sampling or facts.epoch_rows is not None:
            msg = 'shuffle="window" visits all rows; it cannot go with sampler=. Leave out one of them.'
            raise OptionError(msg)
        return _window(facts, request, prefetch, "as asked")
    if request.sampling:
        return OrderChoice("sampler", "the sampler decides")
    if not request.shuffle:
        return OrderChoice("file", "not shuffled")
    # True means a full permutation, however slow: only "auto" leaves the choice to us.
    if request.shuffle is True or facts.epoch_rows is not None:
        return OrderChoice("permutation", "every order is as likely as any other")
    return _by_cost(facts, request, strategy, prefetch)


def _of_arrival(arrival: ArrivalFacts, request: LoaderRequest) -> OrderChoice:
    """Choose the order of rows that arrive by units. It is the same whether or not they are here already.

    Raises:
        OptionError: rows were asked for at random, and not all are here.
    """
    at_random = "a sampler that draws" if request.sampling else "shuffle=True"
    if request.sampling or request.shuffle is True:
        if not arrival.complete:
            msg = (
                f"{at_random} wants any row next to any other, and of this file some are not here: {arrival.reason}. "
                'Use shuffle="auto", which visits every row once, in windows, or have all of it here first: without '
                "disk_limit=, or after data.wait()."
            )
            raise OptionError(msg)
        if request.sampling:
            return OrderChoice("sampler", "the sampler decides")
        return OrderChoice("permutation", "as asked, and all rows are here")
    why = f"rows are shuffled in windows of {arrival.window_units:,} of the units that they come in"
    return OrderChoice("arrival", f"{why}: {arrival.reason}", window_units=arrival.window_units)


def _by_cost(facts: LoaderFacts, request: LoaderRequest, strategy: str, prefetch: int) -> OrderChoice:
    """Choose a permutation where rows come as fast in any order, and a window where they do not and it is fair."""
    # One rank with more free memory must not visit another order than the rest.
    if facts.shard.world_size > 1:
        why = 'ranks must come to one order, whatever memory each has; shuffle="window" on all is for files beyond it'
        return OrderChoice("permutation", why)
    # Only a disk is faster by neighbours; memory and decoders are not.
    if facts.engine.name != "read" or strategy != "direct":
        return OrderChoice("permutation", "rows come as fast in any order from where they are read")
    cold = "the file is not in memory and does not fit there"
    # A file sorted by class would come out of windows almost as sorted.
    if not facts.random_rows:
        why = f'although {cold}: its own rows may be in no random order; shuffle="window" is faster where they are'
        return OrderChoice("permutation", why)
    try:
        return _window(facts, request, prefetch, f"{cold}, and its own rows are in random order")
    except OptionError:
        # Who gave a budget is told that it is too small; who gave none gets the order that needs none.
        if request.memory_budget is not None:
            raise
        return OrderChoice("permutation", f"although {cold}: there is too little memory for a window")


def _window(facts: LoaderFacts, request: LoaderRequest, prefetch: int, reason: str) -> OrderChoice:
    row_bytes = max(1, facts.row_bytes + facts.target_bytes)
    budget = request.memory_budget
    if facts.shard.world_size > 1:
        budget = _RANKS_BYTES if budget is None else budget
        prefetch = request.prefetch_factor if isinstance(request.prefetch_factor, int) else _RANKS_PREFETCH
    elif budget is None:
        # The rest is for the model, other splits, and whoever else uses this machine.
        spare = spare_memory(facts.free_memory_bytes) // _MEMORY_PART
        budget = min(_MOST_BYTES, 1 << max(0, spare.bit_length() - 1))
    # Beside the two windows: batches that wait, one in the making, one with the consumer.
    waiting = (prefetch + 2) * request.batch_size * row_bytes
    fitting = (budget - waiting) // 2 // row_bytes // request.batch_size
    if fitting < 1:
        least = waiting + 2 * request.batch_size * row_bytes
        msg = (
            f"memory_budget={format_bytes(budget)} is too little for a window shuffle in batches of "
            f"{request.batch_size}, which needs at least {format_bytes(least)}. Give more, or use smaller batches."
        )
        raise OptionError(msg)
    # Whole batches: none then waits for two windows. No larger than the file either.
    window_rows = request.batch_size * min(fitting, -(-max(1, facts.rows) // request.batch_size))
    block_rows = max(1, min(_BLOCK_BYTES // row_bytes, window_rows // _BLOCKS))
    size = f"windows of {window_rows:,} rows ({format_bytes(window_rows * row_bytes)}), blocks of {block_rows:,}"
    return OrderChoice("window", f"{reason}; {size}", window_rows, block_rows)


# What a batch costs on its way between processes: waking, sending, mapping; and the rate of the copies.
_BATCH_S = 1e-3
_BYTES_PER_S = 1e9
# How many times faster processes must be to be taken unasked: each of them starts an interpreter and imports torch.
_LEAST_GAIN = 1.5
_AHEAD = 2
# Part of the shared memory that batches may fill; a worker that finds none dies.
_SHARED_PART = 2


def may_gain(facts: LoaderFacts, request: LoaderRequest) -> bool:
    """Tell whether a probe of a sample's cost could speak for processes at all."""
    if request.strategy != "auto" or not facts.per_sample or facts.processes is None:
        return False
    # A probe would wait for rows from all over the file.
    if facts.arrival is not None:
        return False
    # What may hang or run a script twice is not begun unasked, however much it gains.
    safe = facts.processes.unpicklable is None and choose_start(facts.processes).safe
    return safe and _worker_count(facts, request) > 1


def processes_gain(facts: LoaderFacts, request: LoaderRequest) -> bool:
    """Tell whether a sample's transform takes so long that processes are worth having."""
    if facts.cost is None or not may_gain(facts, request):
        return False
    # Against one thread, which calls all transforms where there are no processes.
    thread_s = request.batch_size * facts.cost.seconds
    moving_s = _BATCH_S + request.batch_size * facts.cost.result_bytes / _BYTES_PER_S
    return thread_s >= _LEAST_GAIN * (thread_s / _worker_count(facts, request) + moving_s)


def choose_processes(facts: LoaderFacts, request: LoaderRequest) -> tuple[ReasonedValue, ReasonedValue, StartChoice]:
    """Choose how many processes there are, how many batches each makes ahead, and how they are started."""
    processes = facts.processes
    if processes is None:
        msg = "Worker processes cannot be planned without facts about this process."
        raise TypeError(msg)
    asked = request.num_workers != "auto"
    count = _worker_count(facts, request)
    reason = "as asked" if asked else "all cores but the one that trains"
    ahead = _AHEAD if request.prefetch_factor == "auto" else request.prefetch_factor
    ahead_reason = "of each process" if request.prefetch_factor == "auto" else "as asked"
    # What goes between processes is the transform's result, often floats four times as long.
    result_bytes = facts.row_bytes if facts.cost is None else facts.cost.result_bytes
    batch_bytes = max(1, request.batch_size * result_bytes)
    # One more of each is in the making, and one on its way.
    fitting = processes.shared_memory_bytes // _SHARED_PART // batch_bytes
    # Who asked for so many gets them: perhaps /dev/shm is about to be made larger.
    if not asked and count * (ahead + 1) + 1 > fitting:
        room = f"batches of {format_bytes(batch_bytes)} leave shared memory for no more"
        if request.prefetch_factor == "auto":
            ahead, ahead_reason = 1, room
        if count * (ahead + 1) + 1 > fitting:
            count, reason = max(1, (fitting - 1) // (ahead + 1)), room
    return ReasonedValue(count, reason), ReasonedValue(ahead, ahead_reason), choose_start(processes)


def choose_start(facts: ProcessFacts) -> StartChoice:
    """Choose how to start processes safely.

    A forked process has the locks of threads that it does not have, locked for ever if they were, and must not touch
    CUDA. One that is spawned takes seconds, must be sent the dataset, and imports the script: where that would run
    from its top again, it is forked all the same, as a stock `DataLoader` would be.
    """
    # CUDA first: a fork breaks it for certain, and threads only perhaps.
    busy = "CUDA is in use" if facts.cuda_started else f"{facts.threads} threads run" if facts.threads > 1 else None
    can_fork = "fork" in facts.methods
    if can_fork and busy is None:
        return StartChoice("fork", "no other thread runs, and CUDA is not in use")
    # Not safe and yet the only way: so never unasked.
    if can_fork and facts.unpicklable is not None:
        why = f"although {busy}: the dataset cannot be sent to another process, as {facts.unpicklable}"
        return StartChoice("fork", why, safe=False)
    if can_fork and facts.runs_again:
        why = f'although {busy}: a new process would run this script again, which has no "__main__" guard here'
        return StartChoice("fork", why, safe=False)
    why = busy or "this system cannot fork"
    if "forkserver" in facts.methods:
        why = f"{why}, and a fork would copy their locks" if can_fork else why
        return StartChoice("forkserver", why, safe=not facts.runs_again)
    return StartChoice("spawn", why, safe=not facts.runs_again)


def _worker_count(facts: LoaderFacts, request: LoaderRequest) -> int:
    return request.num_workers if request.num_workers != "auto" else max(1, facts.cores - 1)
