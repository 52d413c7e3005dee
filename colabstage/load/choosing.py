"""Decide how batches are loaded, from facts alone, with the reason beside every number."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from colabstage.errors import NotEnoughSpaceError, OptionError
from colabstage.io.units import format_bytes
from colabstage.load.choices import (
    LoaderFacts,
    LoaderPlan,
    LoaderRequest,
    ReasonedValue,
    Strategy,
    batches_together,
    choose_decoding,
    choose_order,
    choose_processes,
    prefetch_of_small,
    processes_gain,
    with_crops,
)
from colabstage.load.epoch import count_batches
from colabstage.load.reading.memory import check_memory, spare_memory
from colabstage.load.reading.storage import EngineChoice

# More threads than this do not copy faster: the memory is the limit (benchmarks/read_pixels.py).
_MOST_COPY_THREADS = 4
# Reads under way at once from a disk; twice as many are hardly faster (benchmarks/read_cold.py).
_READ_THREADS = 16
_PREFETCH = 2
# Part of the free memory, or of the memory given, that batches in flight may take by default.
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
    # From here on a row is as long as its crop, which is what is held in memory.
    whole, facts = facts, with_crops(replace(facts, engine=engine), decode)
    prefetch = _choose_prefetch(facts, request)
    workers, start = _choose_workers(facts, request), None
    # Processes have their own counts: a thread of this one would only wait for them.
    if strategy == "workers":
        workers, prefetch, start = choose_processes(facts, request)
    if strategy == "device":
        prefetch = ReasonedValue(0, "the device makes a batch when it is asked for")
    return LoaderPlan(
        strategy=strategy,
        reason=_strategy_reason(strategy, facts, request),
        batch_size=request.batch_size,
        batches=batches,
        workers=workers,
        prefetch=prefetch,
        engine=facts.engine,
        # Whether crops are decoded may differ from rank to rank.
        order=choose_order(facts if facts.shard.world_size == 1 else whole, request, strategy, prefetch.value),
        start=start,
        decode=decode,
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
        return ("workers" if asked == "workers" else "direct"), facts.engine
    if asked == "device":
        return "device", _on_device(facts)
    # The fastest first, where it costs nobody else their memory.
    if asked == "auto" and _belongs_on_device(facts):
        free = format_bytes(facts.device.free_bytes if facts.device else 0)
        part = f"{format_bytes(_device_bytes(facts))} of the {free} that are free there"
        return "device", EngineChoice("memory", f"the whole split is on the device and takes {part}")
    if asked == "workers" or (asked == "auto" and processes_gain(facts, request)):
        return "workers", facts.engine
    return ("direct", facts.engine) if asked == "direct" else _file_or_memory(facts, request)


def _file_or_memory(facts: LoaderFacts, request: LoaderRequest) -> _Resolved:
    engine, size = facts.engine, format_bytes(facts.stored_bytes)
    # The dataset was opened with in_memory=True: nothing is left to choose.
    if engine.name == "memory":
        return "memory", engine
    if request.strategy == "memory":
        check_memory(
            facts.stored_bytes, facts.free_memory_bytes, 'strategy="memory"', remedy='Use strategy="direct" or "auto".'
        )
        return "memory", EngineChoice("memory", f"as asked, all {size} are read once")
    # Elsewhere the system's cache serves rows as fast, and gives the memory back.
    slow = engine.name == "h5py" or engine.costly
    if slow and facts.stored_bytes * _UNASKED_PART <= spare_memory(facts.free_memory_bytes):
        why = f"reading in random order would be slow, as {engine.reason}; its {size} fit, and are read once"
        return "memory", EngineChoice("memory", why)
    return "direct", engine


def _device_bytes(facts: LoaderFacts) -> int:
    # As they are on the device, decoded, and not as they are stored.
    return facts.rows * (facts.row_bytes + facts.target_bytes)


def _belongs_on_device(facts: LoaderFacts) -> bool:
    if facts.device is None or facts.device.type == "cpu" or not facts.uniform or facts.per_sample:
        return False
    return _device_bytes(facts) * _UNASKED_DEVICE_PART <= facts.device.free_bytes


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
    several = min(fitting, _choose_several(facts, request))
    if several > _PREFETCH:
        together = batches_together(several, batch_bytes)
        return ReasonedValue(several, f"batches are small, so {together} at a time are gathered")
    if fitting >= _PREFETCH:
        return ReasonedValue(_PREFETCH, "evens out batches that take longer")
    return ReasonedValue(1, f"batches of {format_bytes(batch_bytes)} leave memory for no more")


def _choose_several(facts: LoaderFacts, request: LoaderRequest) -> int:
    """Choose how many batches to prepare ahead where they are small; 0 where they cannot be gathered together."""
    # What is read at once must be here at once.
    if facts.arrival is not None and not facts.arrival.complete:
        return 0
    # Rows of one shape only: of others a group cannot be taken apart by slices.
    if not facts.uniform or facts.encoded or facts.per_sample:
        return 0
    batch_bytes = max(1, request.batch_size * facts.row_bytes)
    several = prefetch_of_small(batch_bytes)
    # A window shuffle's own memory comes first.
    return (
        several if request.memory_budget is None else min(several, request.memory_budget // _MEMORY_PART // batch_bytes)
    )
