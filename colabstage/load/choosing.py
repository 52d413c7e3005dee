"""Decide how batches are loaded, by pure functions of facts and a request, with the reason beside every number.

Where batches come from and by how many threads or processes, how much of each image is decoded, how many small batches
are gathered at once, and in which order an epoch visits rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from colabstage.errors import NotEnoughSpaceError, OptionError
from colabstage.io.units import format_bytes
from colabstage.load.epoch import count_batches
from colabstage.load.plan import (
    Decode,
    DecodeChoice,
    KeepChoice,
    LoaderPlan,
    OrderChoice,
    ReasonedValue,
    StartChoice,
    Strategy,
)
from colabstage.load.reading.engines import EngineChoice
from colabstage.load.reading.memory import check_memory, keepable_bytes, spare_memory

if TYPE_CHECKING:
    from colabstage.load.arrival import ArrivalFacts
    from colabstage.load.plan import LoaderFacts, LoaderRequest, ProcessFacts

# More threads than this do not copy faster: the memory is the limit (benchmarks/read_pixels.py).
_MOST_COPY_THREADS = 4
# Reads under way at once from a disk; twice as many are hardly faster (benchmarks/read_cold.py).
_READ_THREADS = 16
_PREFETCH = 2
# Part of the free memory, or of the memory given, that batches in flight, and windows, may take by default.
_MEMORY_PART = 4
# Part of the memory to spare that a split may take unasked: other splits and the model come after it.
_UNASKED_PART = 2
# The same on a GPU, where the model, its gradients and its activations are what the memory is for.
_UNASKED_DEVICE_PART = 4
# What stays free of a GPU's memory when it was asked for: batches, and the least that a model can do with.
_DEVICE_RESERVE_BYTES = 500_000_000

_Resolved = tuple[Literal["device", "memory", "direct", "workers"], EngineChoice]


def choose_loader(facts: LoaderFacts, request: LoaderRequest) -> LoaderPlan:
    """Decide how to load.

    Raises:
        OptionError: a value that cannot work, with those that can.
        NotEnoughSpaceError: `"memory"` or `"device"` was asked for, and the split does not fit there.
    """
    # Before anything is measured or read.
    _check(request)
    # A sampler may visit fewer rows than there are, or some more than once.
    rows = facts.rows if facts.epoch_rows is None else facts.epoch_rows
    batches = count_batches(rows, request.batch_size, facts.shard, drop_last=request.drop_last)
    # An epoch of nothing would train nothing and say nothing.
    if request.drop_last and rows and not batches:
        ranks = "" if facts.shard.world_size == 1 else f" for {facts.shard.world_size} ranks"
        msg = (
            f"batch_size={request.batch_size} with drop_last=True leaves no batch of {rows:,} samples{ranks}. "
            "Use a smaller batch_size, or drop_last=False."
        )
        raise OptionError(msg)
    strategy, engine = _choose_strategy(facts, request)
    decode = choose_decoding(facts, request, strategy)
    whole, facts = facts, replace(facts, engine=engine)
    # From here on a row is as long as its crop, which is what is held in memory.
    if decode is not None and decode.name == "crops" and facts.crop_bytes is not None:
        facts = replace(facts, row_bytes=facts.crop_bytes)
    prefetch = _choose_prefetch(facts, request)
    workers, start = _choose_workers(facts, request), None
    # Processes have their own counts: a thread of this one would only wait for them.
    if strategy == "workers":
        workers, prefetch, start = choose_processes(facts, request)
    if strategy == "device":
        prefetch = ReasonedValue(0, "the device makes a batch when it is asked for")
    # Whether crops are decoded may differ from rank to rank.
    order = choose_order(facts if facts.shard.world_size == 1 else whole, request, strategy, prefetch.value)
    return LoaderPlan(
        strategy=strategy,
        reason=_strategy_reason(strategy, facts, request),
        batch_size=request.batch_size,
        batches=batches,
        workers=workers,
        prefetch=prefetch,
        engine=facts.engine,
        order=order,
        start=start,
        decode=decode,
        keep=choose_keeping(whole, request, strategy, order),
        # Processes read by themselves.
        together=1 if strategy == "workers" else _choose_together(facts, request, prefetch.value),
    )


def _check(request: LoaderRequest) -> None:
    if request.strategy not in get_args(Strategy):
        msg = f"strategy={request.strategy!r} is unknown; expected one of {', '.join(get_args(Strategy))}."
        raise OptionError(msg)
    if not isinstance(request.shuffle, bool) and request.shuffle not in ("auto", "window"):
        msg = f'shuffle={request.shuffle!r} is unknown; expected True, False, "window" or "auto".'
        raise OptionError(msg)
    counts = {
        "batch_size": request.batch_size,
        "num_workers": request.num_workers,
        "prefetch_factor": request.prefetch_factor,
    }
    for name, value in counts.items():
        # Nobody but the caller knows what a batch is.
        if value == "auto" and name != "batch_size":
            continue
        # True is an int to Python, and a mistake here.
        least = 0 if name == "num_workers" and request.strategy != "workers" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            words = f"a whole number, {least} or more" + ("" if name == "batch_size" else ', or "auto"')
            msg = f"{name}={value!r} cannot work; expected {words}."
            raise OptionError(msg)
    if request.num_workers == 0 and request.prefetch_factor != "auto":
        msg = (
            f"prefetch_factor={request.prefetch_factor} cannot go with num_workers=0, by which nothing is prepared "
            "ahead. Leave out one of them."
        )
        raise OptionError(msg)


def _choose_strategy(facts: LoaderFacts, request: LoaderRequest) -> _Resolved:
    """Choose where batches come from, and the engine that reads them there."""
    asked = request.strategy
    if facts.arrival is not None and not facts.arrival.complete:
        if asked in ("device", "memory"):
            msg = (
                f'strategy="{asked}" reads all rows at once, and of this file some are not here: '
                f'{facts.arrival.reason}. Use strategy="auto".'
            )
            raise OptionError(msg)
        if asked == "workers" and facts.arrival.leaves_out:
            msg = (
                'strategy="workers" hands whole batches to processes beforehand, and which samples on_error="skip" '
                'leaves out shows only as they arrive. Use strategy="auto", or call data.wait() first.'
            )
            raise OptionError(msg)
        if facts.shard.world_size > 1 and facts.arrival.leaves_out:
            msg = (
                'Ranks make equally many steps, and which samples on_error="skip" leaves out shows only as they '
                "arrive. Call data.wait() in each of them first."
            )
            raise OptionError(msg)
        return ("workers" if asked == "workers" else "direct"), facts.engine
    if asked == "device":
        return "device", _on_device(facts)
    # The fastest first, where it costs nobody else their memory.
    device = None if facts.device is None or facts.device.type == "cpu" else facts.device
    can_be_there = asked == "auto" and facts.uniform and not facts.per_sample
    if can_be_there and device and _device_bytes(facts) * _UNASKED_DEVICE_PART <= device.free_bytes:
        part = f"{format_bytes(_device_bytes(facts))} of the {format_bytes(device.free_bytes)} that are free there"
        return "device", EngineChoice("memory", f"the whole split is on the device and takes {part}")
    if asked == "workers" or (asked == "auto" and processes_gain(facts, request)):
        return "workers", facts.engine
    return ("direct", facts.engine) if asked == "direct" else _file_or_memory(facts, request)


def _file_or_memory(facts: LoaderFacts, request: LoaderRequest) -> _Resolved:
    engine = facts.engine
    # The dataset was opened with in_memory=True: nothing is left to choose.
    if engine.name == "memory":
        return "memory", engine
    if request.strategy == "memory":
        check_memory(
            facts.stored_bytes, facts.free_memory_bytes, 'strategy="memory"', remedy='Use strategy="direct" or "auto".'
        )
        return "memory", EngineChoice("memory", f"as asked, all {format_bytes(facts.stored_bytes)} are read once")
    # Elsewhere the system's cache serves rows as fast, and gives the memory back.
    slow = engine.name == "h5py" or engine.costly
    if slow and facts.stored_bytes * _UNASKED_PART <= spare_memory(facts.free_memory_bytes):
        size = format_bytes(facts.stored_bytes)
        why = f"reading in random order would be slow, as {engine.reason}; its {size} fit, and are read once"
        return "memory", EngineChoice("memory", why)
    return "direct", engine


def _device_bytes(facts: LoaderFacts) -> int:
    # As they are on the device, decoded, and not as they are stored.
    return facts.rows * (facts.row_bytes + facts.target_bytes)


def _on_device(facts: LoaderFacts) -> EngineChoice:
    """Return the engine of a split that is to be on the device.

    Raises:
        OptionError: its rows cannot be on the device.
        NotEnoughSpaceError: they do not fit; the message has both figures.
    """
    if facts.per_sample:
        msg = (
            'strategy="device" cannot work with the dataset\'s transforms, which take samples one by one in this '
            "computer's memory. Use batch_transform, which takes whole batches on the device."
        )
        raise OptionError(msg)
    if not facts.uniform:
        msg = (
            'strategy="device" needs inputs of one shape and targets of one shape; here rows have their own. Stage '
            'with image_size=… or use strategy="auto".'
        )
        raise OptionError(msg)
    # Without a device batches stay in this computer's memory, and so does the split.
    free = facts.free_memory_bytes if facts.device is None else facts.device.free_bytes
    needed = _device_bytes(facts)
    if needed > max(0, free - _DEVICE_RESERVE_BYTES):
        msg = (
            f'strategy="device" needs {format_bytes(needed)} of the device\'s memory, of which {format_bytes(free)} '
            f'are free, and {format_bytes(_DEVICE_RESERVE_BYTES)} must stay so. Use strategy="auto".'
        )
        raise NotEnoughSpaceError(msg)
    return EngineChoice("memory", f"as asked, all {format_bytes(needed)} are on the device")


def _strategy_reason(strategy: str, facts: LoaderFacts, request: LoaderRequest) -> str:
    if strategy == "device":
        return "the device gathers each batch out of its own memory"
    if strategy == "workers":
        asked = "" if request.strategy == "auto" else "as asked, "
        return f"{asked}processes call the dataset's transform, each for whole batches, seeded for each batch"
    source = "memory" if facts.engine.name == "memory" else "the file"
    if facts.per_sample:
        return (
            "a background thread reads each batch at once; the dataset's transform is then called in your own thread, "
            'sample by sample, as by a DataLoader without workers. strategy="workers" would call it beside your step, '
            "batch_transform for whole batches"
        )
    if facts.encoded:
        return f"threads decode each batch straight out of {source}"
    return f"a background thread copies each batch straight out of {source}"


def _choose_workers(facts: LoaderFacts, request: LoaderRequest) -> ReasonedValue:
    if request.num_workers != "auto":
        return ReasonedValue(request.num_workers, "as asked" if request.num_workers else "as asked, by the loop itself")
    if facts.engine.name == "read":
        return ReasonedValue(max(_READ_THREADS, facts.cores), "most wait for the disk")
    if facts.encoded:
        return ReasonedValue(facts.cores, "decoding keeps every core busy")
    # More threads would take turns at HDF5's lock.
    if facts.engine.name == "h5py":
        return ReasonedValue(1, "HDF5 lets only one thread read at a time")
    if facts.cores <= _MOST_COPY_THREADS:
        return ReasonedValue(facts.cores, "one for each core")
    return ReasonedValue(_MOST_COPY_THREADS, "more do not copy faster, memory is the limit")


def _choose_prefetch(facts: LoaderFacts, request: LoaderRequest) -> ReasonedValue:
    if request.num_workers == 0:
        return ReasonedValue(0, "nothing works beside the loop")
    if request.prefetch_factor != "auto":
        return ReasonedValue(request.prefetch_factor, "as asked")
    batch_bytes = max(1, request.batch_size * facts.row_bytes)
    # One more is with the consumer, and one in the making.
    fitting = facts.free_memory_bytes // _MEMORY_PART // batch_bytes - 2
    several = 0
    if _can_group(facts):
        several = min(fitting, prefetch_of_small(batch_bytes, copied=facts.engine.name in ("mapped", "memory")))
        # A window shuffle's own memory comes first.
        if request.memory_budget is not None:
            several = min(several, request.memory_budget // _MEMORY_PART // batch_bytes)
    if several > _PREFETCH:
        together = _choose_together(facts, request, several)
        return ReasonedValue(several, f"batches are small, so {together} at a time are gathered")
    if fitting >= _PREFETCH:
        return ReasonedValue(_PREFETCH, "evens out batches that take longer")
    return ReasonedValue(1, f"batches of {format_bytes(batch_bytes)} leave memory for no more")


def _can_group(facts: LoaderFacts) -> bool:
    """Tell whether several batches can be read as one and taken apart."""
    # Rows of one shape only: of others a group cannot be taken apart by slices. And what is read at once must be here.
    arrives = facts.arrival is not None and not facts.arrival.complete
    return facts.uniform and not (arrives or facts.encoded or facts.per_sample)


def _choose_together(facts: LoaderFacts, request: LoaderRequest, prefetch: int) -> int:
    return batches_together(prefetch, request.batch_size * facts.row_bytes) if _can_group(facts) else 1


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
    obstacle = None
    if not facts.encoded:
        obstacle = "inputs are not image files that are decoded when they are read"
    elif facts.crop_bytes is None:
        obstacle = "batch_transform does not begin with a RandomResizedCrop"
    elif facts.whole_reason is not None:
        obstacle = f"images cannot be cropped while they are decoded, as {facts.whole_reason}"
    # Of the transform nobody knows whether it would still see the whole image.
    elif facts.per_sample:
        obstacle = "the dataset's own transform takes whole images"
    elif strategy not in ("direct", "memory"):
        obstacle = f'with strategy="{strategy}" batch_transform gets whole images'
    if request.decode == "crops" and obstacle is not None:
        msg = f'decode="crops" cannot work: {obstacle}. Use decode="auto".'
        raise OptionError(msg)
    if not facts.encoded:
        return None
    # Told apart from an obstacle, so that the plan says whose choice it was.
    if request.decode == "whole":
        return DecodeChoice("whole", "that was asked for")
    return DecodeChoice("crops", _CROPS) if obstacle is None else DecodeChoice("whole", obstacle)


# Where less than this part of an epoch could be kept, its memory is of more use to whoever else is here.
_LEAST_KEPT_PART = 8


def choose_keeping(facts: LoaderFacts, request: LoaderRequest, strategy: str, order: OrderChoice) -> KeepChoice | None:
    """Decide how much memory decoded images may take that are kept for later epochs; `None` where no epoch after the
    first decodes any.

    Args:
        facts: rows as long as whole images are, whatever is cut out of them.
        request: what was asked for.
        strategy: where batches come from.
        order: in which rows are visited.
    """
    if not (facts.encoded or facts.decodes_targets) or strategy == "device":
        return None
    if strategy == "workers":
        return KeepChoice(0, "as each process would keep its own")
    if order.name == "window":
        return KeepChoice(0, "as windows of the file take the memory")
    if request.memory_budget == 0:
        return KeepChoice(0, "as asked")
    rows = facts.rows if facts.epoch_rows is None else min(facts.rows, facts.epoch_rows)
    row_bytes = facts.row_bytes if facts.encoded else 0
    if facts.decodes_targets:
        # Masks of their own sizes have one channel where their images mostly have three.
        row_bytes += facts.target_bytes if facts.uniform else facts.row_bytes // 3
    needed = max(1, rows * row_bytes)
    free = facts.free_memory_bytes
    # Ranks are mostly on one computer, and each of them visits other images in each epoch.
    most = keepable_bytes(free) // facts.shard.world_size if request.memory_budget is None else request.memory_budget
    size = format_bytes(min(most, needed))
    if request.memory_budget is None and most * _LEAST_KEPT_PART < needed:
        why = f"as all would take {format_bytes(needed)}, and {size} of the {format_bytes(free)} free can be spared"
        return KeepChoice(0, f"{why}; memory_budget= gives them more")
    asked = "" if request.memory_budget is None else ", as asked"
    part = "most images" if most >= needed else f"about {most / needed:.0%} of the images"
    return KeepChoice(most, f"up to {size} of {format_bytes(free)} free{asked}: later epochs skip decoding {part}")


# Each group makes the threads take turns with Python's lock some ten times, which costs as much as copying these bytes:
# groups of a quarter gave 0.4 to 0.7 of the limit where these give 0.75 to 1. Whoever keeps one batch keeps the memory
# of its group.
_GROUP_BYTES = 8 * 1024 * 1024
_MOST_TOGETHER = 128
# Of rows that are decoded or read from the disk, so that the first batch need not wait for many others.
_SLOW_GROUP_BYTES = 2 * 1024 * 1024
_MOST_SLOW_TOGETHER = 32


def prefetch_of_small(batch_bytes: int, *, copied: bool) -> int:
    """Return the number of batches to prepare ahead, when they are small enough to be gathered in groups: two
    groups. `copied`: whether rows are only copied, out of memory."""
    most, nbytes = (_MOST_TOGETHER, _GROUP_BYTES) if copied else (_MOST_SLOW_TOGETHER, _SLOW_GROUP_BYTES)
    return 2 * min(most, nbytes // max(1, batch_bytes))


def batches_together(prefetch: int, batch_bytes: int) -> int:
    """Return the number of batches that are gathered at once.

    Args:
        prefetch: batches prepared ahead; a group is half of them at most, so that no more are.
        batch_bytes: length of one.
    """
    return max(1, min(prefetch // 2, prefetch_of_small(batch_bytes, copied=True) // 2))


# A disk reads blocks of this size in any order as fast as in theirs: 768 KiB gave 500 to 600 MB/s where sequential
# reading gave the same.
_BLOCK_BYTES = 4 * 1024 * 1024
# With fewer blocks a window would mix too little.
_BLOCKS = 16
# No window takes more unasked. A power of two, as is whatever they take unasked: so a run that is resumed on another
# day, with a little more or less memory free, has the same windows.
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
                f"{at_random} reads rows in any order, and some rows of this file are not here: {arrival.reason}. "
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
