"""Decide how batches are loaded, by pure functions of facts and options, with a reason for every number."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from colabstage.errors import NotEnoughSpaceError, OptionError
from colabstage.images.decode import most_decoding_threads
from colabstage.io.arguments import check_argument, check_choice, whole_number
from colabstage.io.units import format_bytes, parse_bytes
from colabstage.load.epoch import Shard, count_batches
from colabstage.load.plan import Choice, LoaderOptions, LoaderPlan, ReasonedValue, Strategy
from colabstage.load.reading.memory import check_memory, spare_memory
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from colabstage.h5.arrival import UnitLayout
    from colabstage.load.reading.reader import SplitReader

__all__ = ["Choice", "LoaderFacts", "Shard", "choose_loader", "gather_facts"]

# More threads than this do not copy faster: the memory is the limit (benchmarks/read_pixels.py).
_MOST_COPY_THREADS = 4
# Reads in flight at once from a disk; twice as many are hardly faster (benchmarks/read_cold.py).
_READ_THREADS = 16
_PREFETCH = 2
# The part of free memory that batches in flight may take by default.
_MEMORY_PART = 4
# The part of spare memory that a split may take by default: other splits and the model come after it.
_UNASKED_PART = 2
# The same on a GPU, which must also hold the model, its gradients and its activations.
_UNASKED_DEVICE_PART = 8
# The part of free memory that decoded images may take: the model, other splits and the page cache come first. Large
# machines get no less: on an H100 a ResNet-50 trains on 3,780 images/s, and got 2,650 when half of 8,192 photographs
# were decoded again in each epoch, 3,100 when none was.
_KEPT_PART = 8
# What stays free of a GPU's memory if `"device"` was asked for: batches, and the least that a model needs.
_DEVICE_RESERVE_BYTES = 500_000_000

# For each group the threads take turns with Python's lock some ten times, which costs as much as copying this many
# bytes: groups of a quarter reached 0.4 to 0.7 of the limit, these reach 0.75 to 1. A caller who keeps one batch keeps
# the memory of its group.
_GROUP_BYTES = 8 * 1024 * 1024
_MOST_TOGETHER = 128
# If less than this part of an epoch could be kept, others can use the memory better.
_LEAST_KEPT_PART = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """Facts about the dataset and this computer that determine the plan."""

    rows: int
    row_bytes: int
    stored_bytes: int
    engine: Choice
    encoded: bool
    per_sample: bool = False
    cores: int
    free_memory_bytes: int
    shard: Shard = field(default_factory=Shard)
    target_bytes: int = 8
    decodes_targets: bool = False
    uniform: bool = True
    """Whether all inputs have one shape, and all targets too."""
    epoch_rows: int | None = None
    """Rows visited in an epoch, if not `rows`."""
    sampled: bool = False
    device: str | None = None
    """The type of the device that batches go to, as torch names it; `None` for this computer's memory."""
    device_free_bytes: int = 0
    crop_bytes: int | None = None
    """Bytes of one crop, if the batch transform begins with a random resized crop."""
    whole_reason: str | None = None
    """Why these inputs cannot be decoded as crops."""
    layout: UnitLayout | None = None
    complete: bool = True
    """Whether all rows are local and stay."""


def gather_facts(
    reader: SplitReader, layout: UnitLayout | None, *, crop_size: tuple[int, int] | None = None
) -> LoaderFacts:
    """Examine a dataset and this computer, and the headers of a few encoded samples. `layout`: the units that order the
    rows. `crop_size`: of the random resized crops that the batch transform begins with."""
    # Read now, not at import: a notebook's limits and free memory change.
    resources = read_resources()
    return LoaderFacts(
        rows=len(reader),
        row_bytes=reader.estimate_row_bytes(),
        stored_bytes=reader.stored_bytes,
        engine=reader.engine,
        encoded=reader.encoded,
        cores=resources.cores,
        free_memory_bytes=resources.free_memory_bytes,
        # Single integers become int64.
        target_bytes=max(8, reader.target_bytes or 0),
        decodes_targets=reader.decodes_targets,
        uniform=reader.target_bytes is not None and reader.row_shape is not None,
        crop_bytes=None if crop_size is None else crop_size[0] * crop_size[1] * reader.crop_channels,
        whole_reason=reader.whole_reason,
        layout=layout,
        complete=reader.arrival is None or reader.arrival.complete,
    )


def choose_loader(facts: LoaderFacts, batch_size: int, options: LoaderOptions | None = None) -> LoaderPlan:
    """Decide how to load, or refuse values that cannot work, and a split that does not fit where it was asked for."""
    options = options or LoaderOptions()
    # Checked before anything is measured or read.
    batch_size = _check(batch_size, options)
    # A sampler may visit fewer rows than there are, or repeat some.
    rows = facts.rows if facts.epoch_rows is None else facts.epoch_rows
    count = partial(count_batches, rows, batch_size, drop_last=options.drop_last)
    batches, ranks = count(facts.shard), (0, facts.shard.world_size - 1)
    # An empty epoch would train nothing, and evaluate nothing, without an error.
    if not rows or (options.drop_last and not batches):
        remedy = "Use a smaller batch_size, or drop_last=False." if rows else "Choose other rows, or make no loader."
        msg = (
            f"An epoch of {rows:,} of the {facts.rows:,} samples would have no batch (batch_size={batch_size}, "
            f"drop_last={options.drop_last}, world_size={facts.shard.world_size}). {remedy}"
        )
        raise OptionError(msg)
    strategy, engine = _choose_strategy(facts, options.strategy)
    decode, keep = _choose_decoding(facts), _choose_keeping(facts, options, strategy)
    facts = replace(facts, engine=engine)
    # From here on, `row_bytes` is the length of a crop, because crops are what memory holds.
    if decode is not None and decode.name == "crops" and facts.crop_bytes is not None:
        facts = replace(facts, row_bytes=facts.crop_bytes)
    batch_bytes = batch_size * facts.row_bytes
    prefetch = _choose_prefetch(facts, batch_bytes, options)
    ahead = prefetch.value
    if strategy == "device":
        prefetch, ahead = ReasonedValue(0, "the device makes batches when they are asked for"), 2 * _MOST_TOGETHER
    return LoaderPlan(
        strategy=strategy,
        reason=_strategy_reason(strategy, facts),
        batch_size=batch_size,
        batches=batches,
        is_joint={count(replace(facts.shard, rank=rank)) for rank in ranks} == {batches},
        workers=_choose_workers(facts, options.num_workers),
        prefetch=prefetch,
        engine=engine,
        order=_choose_order(facts, options),
        decode=decode,
        keep=keep,
        together=max(1, min(ahead // 2, _most_together(facts, batch_bytes))),
    )


def _check(batch_size: int, options: LoaderOptions) -> int:
    """Refuse values that cannot work; return the batch size as Python's own number."""
    check_choice("strategy", options.strategy, Strategy)
    if not isinstance(options.shuffle, bool | None):
        check_choice("shuffle", options.shuffle, Literal["auto"], otherwise=", or True or False")
    check_argument("drop_last", options.drop_last, "switch")
    for name, least in (("num_workers", 0), ("prefetch_factor", 1)):
        count = getattr(options, name)
        if not isinstance(count, str | None) or count not in ("auto", None):
            whole_number(name, count, least=least, otherwise=', or "auto"')
    # Nothing else is checked: only the caller knows what a batch is.
    return whole_number("batch_size", batch_size, least=1)


def _choose_strategy(facts: LoaderFacts, asked: Strategy) -> tuple[Literal["device", "memory", "direct"], Choice]:
    """Choose where batches come from, and how rows are read there."""
    if facts.layout is not None and not facts.complete:
        if asked in ("device", "memory"):
            msg = (
                f'strategy="{asked}" reads all rows at once, and some rows of this file are not here: '
                f'{facts.layout.reason}. Use strategy="auto".'
            )
            raise OptionError(msg)
        return "direct", facts.engine
    if asked == "device":
        return "device", _on_device(facts)
    # The fastest first, if nothing else needs the memory.
    on_device = facts.device not in (None, "cpu")
    alone = facts.shard.world_size == 1
    if asked == "auto" and on_device and alone and facts.uniform and not facts.per_sample:
        needed = _device_bytes(facts)
        if needed * _UNASKED_DEVICE_PART <= facts.device_free_bytes:
            part = f"{format_bytes(needed)} of the {format_bytes(facts.device_free_bytes)} that are free there"
            return "device", Choice("memory", f"the whole split is on the device and takes {part}")
    return ("direct", facts.engine) if asked == "direct" else _file_or_memory(facts, asked)


def _file_or_memory(facts: LoaderFacts, asked: Strategy) -> tuple[Literal["memory", "direct"], Choice]:
    engine, size = facts.engine, format_bytes(facts.stored_bytes)
    # The dataset was opened with in_memory=True, so nothing is left to choose.
    if engine.name == "memory":
        return "memory", engine
    if asked == "memory":
        remedy = 'Use strategy="direct" or "auto".'
        check_memory(facts.stored_bytes, facts.free_memory_bytes, 'strategy="memory"', remedy=remedy)
        return "memory", Choice("memory", f"as asked, all {size} are read once")
    # Otherwise the system's cache serves rows as fast, and gives the memory back.
    if engine.name == "h5py" and facts.stored_bytes * _UNASKED_PART <= spare_memory(facts.free_memory_bytes):
        why = f"reading in random order would be slow, as {engine.reason}; its {size} fit, and are read once"
        return "memory", Choice("memory", why)
    return "direct", engine


def _device_bytes(facts: LoaderFacts) -> int:
    # Decoded, as they are on the device, not as stored.
    return facts.rows * (facts.row_bytes + facts.target_bytes)


def _on_device(facts: LoaderFacts) -> Choice:
    """Return how rows of a split on the device are read; refuse a split that cannot be there."""
    if facts.per_sample or not facts.uniform:
        msg = (
            'strategy="device" needs rows of one shape, without transforms of single samples. Stage with image_size=…, '
            'use batch_transform, or strategy="auto".'
        )
        raise OptionError(msg)
    # Without a device, batches and the split stay in this computer's memory.
    free = facts.free_memory_bytes if facts.device is None else facts.device_free_bytes
    needed = _device_bytes(facts)
    if needed > max(0, free - _DEVICE_RESERVE_BYTES):
        msg = (
            f'strategy="device" needs {format_bytes(needed)} of the device\'s memory, of which {format_bytes(free)} '
            f'are free, and {format_bytes(_DEVICE_RESERVE_BYTES)} must stay so. Use strategy="auto".'
        )
        raise NotEnoughSpaceError(msg)
    return Choice("memory", f"as asked, all {format_bytes(needed)} are on the device")


def _strategy_reason(strategy: str, facts: LoaderFacts) -> str:
    if strategy == "device":
        return "the device gathers each batch out of its own memory"
    source = "memory" if facts.engine.name == "memory" else "the file"
    if facts.per_sample:
        return "a thread reads each batch; your own calls the transform for each sample, a batch_transform once"
    if facts.encoded:
        return f"threads decode each batch straight out of {source}"
    return f"a background thread copies each batch straight out of {source}"


def _choose_workers(facts: LoaderFacts, asked: int | Literal["auto"]) -> ReasonedValue:
    if asked != "auto":
        return ReasonedValue(asked, "as asked" if asked else "as asked, by the loop itself")
    if facts.engine.name == "read":
        return ReasonedValue(max(_READ_THREADS, facts.cores), "most wait for the disk")
    # More threads would only wait for HDF5's lock.
    if facts.engine.name == "h5py" and not facts.encoded:
        return ReasonedValue(1, "HDF5 lets only one thread read at a time")
    most, why = _MOST_COPY_THREADS, "more do not copy faster, memory is the limit"
    if facts.encoded:
        most = most_decoding_threads(facts.stored_bytes // max(1, facts.rows))
        why = "more would decode less, because they wait for Python's lock"
    return ReasonedValue(facts.cores, "one for each core") if facts.cores <= most else ReasonedValue(most, why)


def _choose_prefetch(facts: LoaderFacts, batch_bytes: int, options: LoaderOptions) -> ReasonedValue:
    if options.num_workers == 0:
        return ReasonedValue(0, "nothing works beside the loop")
    if (asked := options.prefetch_factor) is not None and asked != "auto":
        return ReasonedValue(asked, "as asked")
    # Two more batches exist: one with the consumer, one being made.
    fitting = facts.free_memory_bytes // _MEMORY_PART // max(1, batch_bytes) - 2
    several = min(fitting, 2 * _most_together(facts, batch_bytes))
    if several > _PREFETCH:
        return ReasonedValue(several, "batches are small")
    if fitting >= _PREFETCH:
        return ReasonedValue(_PREFETCH, "evens out batches that take longer")
    return ReasonedValue(1, f"batches of {format_bytes(batch_bytes)} leave memory for no more")


def _most_together(facts: LoaderFacts, batch_bytes: int) -> int:
    """Return how many batches may be gathered at once."""
    # Only if all rows have one shape, or a group could not be split by slices. And all rows of a group must be local.
    if facts.encoded or facts.decodes_targets or facts.per_sample or not (facts.uniform and facts.complete):
        return 1
    return max(1, min(_MOST_TOGETHER, _GROUP_BYTES // max(1, batch_bytes)))


def _choose_decoding(facts: LoaderFacts) -> Choice | None:
    """Decide how much of each image file is decoded; `None` if inputs are not image files."""
    if not facts.encoded:
        return None
    if facts.crop_bytes is None:
        return Choice("whole", "batch_transform does not begin with a RandomResizedCrop")
    if facts.whole_reason is not None:
        return Choice("whole", f"images cannot be cropped while they are decoded, as {facts.whole_reason}")
    # The transform may need the whole image.
    if facts.per_sample:
        return Choice("whole", "the dataset's own transform takes whole images")
    return Choice("crops", "batch_transform begins with a RandomResizedCrop, and no more is needed of a file")


def _choose_keeping(facts: LoaderFacts, options: LoaderOptions, strategy: str) -> ReasonedValue | None:
    """Decide how much memory may hold decoded images for later epochs; `None` if no later epoch decodes any."""
    budget = options.memory_budget
    asked = None if budget is None else parse_bytes(budget, "memory_budget", may_be_zero=True)
    if not (facts.encoded or facts.decodes_targets) or strategy == "device":
        return None
    if asked == 0:
        return ReasonedValue(0, "as asked")
    rows = facts.rows if facts.epoch_rows is None else min(facts.rows, facts.epoch_rows)
    row_bytes = facts.row_bytes if facts.encoded else 0
    if facts.decodes_targets:
        # Masks of different sizes have one channel; their images mostly have three.
        row_bytes += facts.target_bytes if facts.uniform else facts.row_bytes // 3
    needed = max(1, rows * row_bytes)
    free = facts.free_memory_bytes
    # Ranks mostly share a computer, and each visits different images in each epoch.
    most = free // _KEPT_PART // facts.shard.world_size if asked is None else asked
    size = f"{format_bytes(min(most, needed))} of the {format_bytes(free)} free"
    if asked is None and most * _LEAST_KEPT_PART < needed:
        why = f"as all would take {format_bytes(needed)}, and {size} can be spared"
        return ReasonedValue(0, f"{why}; memory_budget= gives them more")
    part = "most images" if most >= needed else f"about {most / needed:.0%} of the images"
    reason = f"up to {size}{'' if asked is None else ', as asked'}: later epochs skip decoding {part}"
    return ReasonedValue(most, reason)


def _choose_order(facts: LoaderFacts, options: LoaderOptions) -> Choice:
    """Decide in which order rows are visited. Ranks share one order, and each decides it alone: so it must not depend
    on anything that may differ between ranks."""
    layout, shuffle = facts.layout, options.shuffle
    if facts.sampled and shuffle is True:
        msg = "shuffle=True would have no effect beside a sampler, which decides the order itself. Leave it out."
        raise OptionError(msg)
    if layout is not None and not facts.sampled and shuffle in ("auto", None):
        why = f"rows are shuffled in windows of {layout.window_units:,} of the units that they come in"
        return Choice("arrival", f"{why}: {layout.reason}")
    if layout is not None and not facts.complete and (facts.sampled or shuffle):
        at_random = "a sampler that draws" if facts.sampled else "shuffle=True"
        msg = (
            f"{at_random} reads rows in any order, and some rows of this file are not here: {layout.reason}. Use "
            'shuffle="auto", which visits every row once; or have all of it here: without disk_limit=, or after '
            "data.wait()."
        )
        raise OptionError(msg)
    if facts.sampled:
        return Choice("sampler", "the sampler decides")
    if shuffle is False:
        return Choice("file", "not shuffled")
    return Choice("permutation", "every order is as likely as any other")
