"""Decide how batches are loaded, by pure functions of facts and a request, with the reason beside every number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from colabstage.errors import NotEnoughSpaceError, OptionError
from colabstage.io.units import format_bytes
from colabstage.load.arrival import facts_of
from colabstage.load.epoch import Shard, count_batches
from colabstage.load.plan import (
    STOCK_LOADER,
    DecodeChoice,
    KeepChoice,
    LoaderFacts,
    LoaderPlan,
    OrderChoice,
    ReasonedValue,
    Strategy,
)
from colabstage.load.reading.fields import EngineChoice
from colabstage.load.reading.memory import check_memory, keepable_bytes, spare_memory
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from colabstage.load.arrival import Arrival, ArrivalFacts
    from colabstage.load.plan import DeviceFacts, LoaderRequest
    from colabstage.load.reading.reader import SplitReader

# More threads than this do not copy faster: the memory is the limit (benchmarks/read_pixels.py).
_MOST_COPY_THREADS = 4
# Reads under way at once from a disk; twice as many are hardly faster (benchmarks/read_cold.py).
_READ_THREADS = 16
_PREFETCH = 2
# Part of the free memory that batches in flight may take by default.
_MEMORY_PART = 4
# Part of the memory to spare that a split may take unasked: other splits and the model come after it.
_UNASKED_PART = 2
# The same on a GPU, where the model, its gradients and its activations are still to come.
_UNASKED_DEVICE_PART = 8
# What stays free of a GPU's memory when it was asked for: batches, and the least that a model can do with.
_DEVICE_RESERVE_BYTES = 500_000_000

# Values that are gone, and what to write instead.
_GONE = {
    ("strategy", "workers"): f"a stock loader reads whole batches in processes: {STOCK_LOADER}.",
    ("shuffle", "window"): "rows of a file larger than memory are read by position. Write shuffle=True.",
}

# Each group makes the threads take turns with Python's lock some ten times, which costs as much as copying these bytes:
# groups of a quarter gave 0.4 to 0.7 of the limit where these give 0.75 to 1. Whoever keeps one batch keeps the memory
# of its group.
_GROUP_BYTES = 8 * 1024 * 1024
_MOST_TOGETHER = 128
# Of rows that are read from the disk, so that the first batch need not wait for many others.
_SLOW_GROUP_BYTES = 2 * 1024 * 1024
_MOST_SLOW_TOGETHER = 32
# Where less than this part of an epoch could be kept, its memory is of more use to others.
_LEAST_KEPT_PART = 8


def gather_facts(
    reader: SplitReader,
    *,
    per_sample: bool,
    shard: Shard | None = None,
    device: DeviceFacts | None = None,
    epoch_rows: int | None = None,
    crop_size: tuple[int, int] | None = None,
    units: Arrival | None = None,
) -> LoaderFacts:
    """Look at a dataset and this computer. Reads no sample, but a few headers of encoded ones.

    `crop_size`: height and width of the random resized crops that the batch transform begins with. `units`: the arrival
    whose units order the rows, if not the reader's own.
    """
    # Now and not at import: a notebook's limits and free memory change.
    resources = read_resources()
    return LoaderFacts(
        rows=len(reader),
        row_bytes=reader.estimate_row_bytes(),
        stored_bytes=reader.stored_bytes,
        engine=reader.engine,
        encoded=reader.encoded,
        per_sample=per_sample,
        cores=resources.cores,
        free_memory_bytes=resources.free_memory_bytes,
        # Single integers become int64.
        target_bytes=max(8, reader.target_bytes or 0),
        decodes_targets=reader.decodes_targets,
        uniform=reader.target_bytes is not None and reader.row_shape is not None,
        epoch_rows=epoch_rows,
        shard=shard or Shard(),
        device=device,
        crop_bytes=None if crop_size is None else crop_size[0] * crop_size[1] * reader.crop_channels,
        whole_reason=reader.whole_reason,
        arrival=None if reader.arrival is None else facts_of(reader.arrival, units),
    )


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
    # An epoch of nothing would train nothing, without a word.
    if request.drop_last and rows and not batches:
        ranks = "" if facts.shard.world_size == 1 else f" for {facts.shard.world_size} ranks"
        msg = (
            f"batch_size={request.batch_size} with drop_last=True leaves no batch of {rows:,} samples{ranks}. "
            "Use a smaller batch_size, or drop_last=False."
        )
        raise OptionError(msg)
    strategy, engine = _choose_strategy(facts, request)
    decode = choose_decoding(facts)
    whole, facts = facts, replace(facts, engine=engine)
    # From here on a row is as long as its crop, which is what is held in memory.
    if decode is not None and decode.name == "crops" and facts.crop_bytes is not None:
        facts = replace(facts, row_bytes=facts.crop_bytes)
    prefetch = _choose_prefetch(facts, request)
    if strategy == "device":
        prefetch = ReasonedValue(0, "the device makes batches when they are asked for")
    return LoaderPlan(
        strategy=strategy,
        reason=_strategy_reason(strategy, facts),
        batch_size=request.batch_size,
        batches=batches,
        workers=_choose_workers(facts, request),
        prefetch=prefetch,
        engine=engine,
        order=choose_order(facts, request),
        decode=decode,
        keep=choose_keeping(whole, request, strategy),
        together=_together(facts, request, 2 * _MOST_TOGETHER if strategy == "device" else prefetch.value),
    )


def _check(request: LoaderRequest) -> None:
    expected = {"strategy": get_args(Strategy), "shuffle": (True, False, "auto")}
    for name, values in expected.items():
        given: object = getattr(request, name)
        if given not in values or (name == "shuffle" and isinstance(given, int) and not isinstance(given, bool)):
            gone = _GONE.get((name, str(given)), f"expected one of {', '.join(map(str, values))}.")
            msg = f"{name}={given!r} is unknown; {gone}"
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
        least = 0 if name == "num_workers" else 1
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


def _choose_strategy(
    facts: LoaderFacts, request: LoaderRequest
) -> tuple[Literal["device", "memory", "direct"], EngineChoice]:
    """Choose where batches come from, and how rows are read there."""
    asked = request.strategy
    if facts.arrival is not None and not facts.arrival.complete:
        _check_arriving(facts, facts.arrival, asked)
        return "direct", facts.engine
    if asked == "device":
        return "device", _on_device(facts)
    # The fastest first, where it costs nobody else their memory.
    device = None if facts.device is None or facts.device.type == "cpu" else facts.device
    alone = facts.shard.world_size == 1
    if asked == "auto" and device and alone and facts.uniform and not facts.per_sample:
        needed = _device_bytes(facts)
        if needed * _UNASKED_DEVICE_PART <= device.free_bytes:
            part = f"{format_bytes(needed)} of the {format_bytes(device.free_bytes)} that are free there"
            return "device", EngineChoice("memory", f"the whole split is on the device and takes {part}")
    return ("direct", facts.engine) if asked == "direct" else _file_or_memory(facts, request)


def _check_arriving(facts: LoaderFacts, arrival: ArrivalFacts, strategy: str) -> None:
    if strategy in ("device", "memory"):
        msg = (
            f'strategy="{strategy}" reads all rows at once, and some rows of this file are not here: {arrival.reason}. '
            'Use strategy="auto".'
        )
        raise OptionError(msg)
    if facts.shard.world_size > 1 and arrival.leaves_out:
        msg = (
            'Ranks make equally many steps, and which samples on_error="skip" leaves out shows only as they arrive. '
            "Call data.wait() in each of them first."
        )
        raise OptionError(msg)


def _file_or_memory(facts: LoaderFacts, request: LoaderRequest) -> tuple[Literal["memory", "direct"], EngineChoice]:
    engine, size = facts.engine, format_bytes(facts.stored_bytes)
    # The dataset was opened with in_memory=True: nothing is left to choose.
    if engine.name == "memory":
        return "memory", engine
    if request.strategy == "memory":
        remedy = 'Use strategy="direct" or "auto".'
        check_memory(facts.stored_bytes, facts.free_memory_bytes, 'strategy="memory"', remedy=remedy)
        return "memory", EngineChoice("memory", f"as asked, all {size} are read once")
    # Elsewhere the system's cache serves rows as fast, and gives the memory back.
    if engine.name == "h5py" and facts.stored_bytes * _UNASKED_PART <= spare_memory(facts.free_memory_bytes):
        why = f"reading in random order would be slow, as {engine.reason}; its {size} fit, and are read once"
        return "memory", EngineChoice("memory", why)
    return "direct", engine


def _device_bytes(facts: LoaderFacts) -> int:
    # As they are on the device, decoded, and not as they are stored.
    return facts.rows * (facts.row_bytes + facts.target_bytes)


def _on_device(facts: LoaderFacts) -> EngineChoice:
    """Return how rows of a split on the device are read, or refuse those that cannot be there."""
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


def _strategy_reason(strategy: str, facts: LoaderFacts) -> str:
    if strategy == "device":
        return "the device gathers each batch out of its own memory"
    source = "memory" if facts.engine.name == "memory" else "the file"
    if facts.per_sample:
        return (
            "a background thread reads each batch at once; the dataset's transform is then called in your own thread, "
            f"sample by sample. Processes would call it beside your step, {STOCK_LOADER}, and batch_transform takes "
            "whole batches"
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
    if several > _PREFETCH:
        together = _together(facts, request, several)
        return ReasonedValue(several, f"batches are small, so {together} at a time are gathered")
    if fitting >= _PREFETCH:
        return ReasonedValue(_PREFETCH, "evens out batches that take longer")
    return ReasonedValue(1, f"batches of {format_bytes(batch_bytes)} leave memory for no more")


def prefetch_of_small(batch_bytes: int, *, copied: bool) -> int:
    """Return the number of batches to prepare ahead, when they are small enough to be gathered in groups: two
    groups. `copied`: whether rows are only copied, out of memory."""
    most, nbytes = (_MOST_TOGETHER, _GROUP_BYTES) if copied else (_MOST_SLOW_TOGETHER, _SLOW_GROUP_BYTES)
    return 2 * min(most, nbytes // max(1, batch_bytes))


def _can_group(facts: LoaderFacts) -> bool:
    """Return whether several batches can be read as one and taken apart."""
    # Rows of one shape only: of others a group cannot be taken apart by slices. And what is read at once must be here.
    arrives = facts.arrival is not None and not facts.arrival.complete
    return facts.uniform and not (arrives or facts.encoded or facts.decodes_targets or facts.per_sample)


def _together(facts: LoaderFacts, request: LoaderRequest, prefetch: int) -> int:
    """Return the number of batches that are gathered at once: at most half of those prepared ahead."""
    if not _can_group(facts):
        return 1
    batch_bytes = request.batch_size * facts.row_bytes
    return max(1, min(prefetch // 2, prefetch_of_small(batch_bytes, copied=True) // 2))


def choose_decoding(facts: LoaderFacts) -> DecodeChoice | None:
    """Decide how much of each image file is decoded; `None` where inputs are no image files."""
    if not facts.encoded:
        return None
    if facts.crop_bytes is None:
        return DecodeChoice("whole", "batch_transform does not begin with a RandomResizedCrop")
    if facts.whole_reason is not None:
        return DecodeChoice("whole", f"images cannot be cropped while they are decoded, as {facts.whole_reason}")
    # Nobody knows whether it would still see the whole image.
    if facts.per_sample:
        return DecodeChoice("whole", "the dataset's own transform takes whole images")
    return DecodeChoice(
        "crops", "batch_transform begins with a RandomResizedCrop, and no more of a file is decoded than its crop needs"
    )


def choose_keeping(facts: LoaderFacts, request: LoaderRequest, strategy: str) -> KeepChoice | None:
    """Decide how much memory decoded images may take that are kept for later epochs; `None` where no epoch after the
    first decodes any. `facts`: of rows as long as whole images."""
    if not (facts.encoded or facts.decodes_targets) or strategy == "device":
        return None
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


def choose_order(facts: LoaderFacts, request: LoaderRequest) -> OrderChoice:
    """Decide in which order rows are visited.

    Ranks share out one order, and each decides here alone: so nothing that may differ from rank to rank decides.

    Raises:
        OptionError: rows wanted at random of a file of which some are not here.
    """
    arrival = facts.arrival
    if arrival is not None and not request.sampling and request.shuffle == "auto":
        why = f"rows are shuffled in windows of {arrival.window_units:,} of the units that they come in"
        return OrderChoice("arrival", f"{why}: {arrival.reason}", window_units=arrival.window_units)
    if arrival is not None and not arrival.complete and (request.sampling or request.shuffle):
        at_random = "a sampler that draws" if request.sampling else "shuffle=True"
        msg = (
            f"{at_random} reads rows in any order, and some rows of this file are not here: {arrival.reason}. Use "
            'shuffle="auto", which visits every row once, in windows, or have all of it here first: without '
            "disk_limit=, or after data.wait()."
        )
        raise OptionError(msg)
    if request.sampling:
        return OrderChoice("sampler", "the sampler decides")
    if not request.shuffle:
        return OrderChoice("file", "not shuffled")
    return OrderChoice("permutation", "every order is as likely as any other")
