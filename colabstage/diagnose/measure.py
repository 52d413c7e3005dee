"""The runs behind a profile: the loader alone, loader and step together, the step alone, the stages alone; and trials,
with a batch of the caller's own size, of what other ways of loading would cost here.

The timed runs read the clock twice for each batch and do nothing else. Stacks are sampled in a separate run of the
loader alone; if worker processes make its batches, of the loader without them.
"""

from __future__ import annotations

import inspect
import pickle
import shutil
import statistics
import sys
import tempfile
import threading
import time
import zlib
from array import array
from contextlib import closing
from dataclasses import replace
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from colabstage.diagnose.facts import (
    LOADER_STAGES,
    Costs,
    ProfileFacts,
    Span,
    StageCost,
    arrays_of,
    batch_size_of,
    image_size_of,
)
from colabstage.diagnose.gpu_monitor import GpuMonitor
from colabstage.diagnose.loaders import end_iterator
from colabstage.diagnose.stages import StackSampler
from colabstage.errors import OptionError
from colabstage.io.arguments import check_argument
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.machine.gpu import gpu_problem
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.diagnose.loaders import ProfiledLoader
    from colabstage.io.progress import Clock

_Run = TypeVar("_Run")
# Shares of the time: the loader alone, loader and step together, the step alone, the stages alone.
_PARTS = (0.25, 0.40, 0.10, 0.25)
_LEAST_BATCHES = 3
_GPU_EVERY_S = 0.2
# In epochs of one or two batches most are an epoch's first, which do not count, so epochs are limited too.
_MOST_EPOCHS = 20
_MOST_THREADS = 8
# About 2 ms of one core each, and together long enough for the scheduler to distribute the cores.
_WORK = bytes(4 << 20)
_ROUNDS = 25
_LEAST_CORES = 0.1
_TRIALS = 7
# Seconds to write or read a few hundred bytes in a pipe, including the thread that does it.
_PIPE_S = 0.0002


class _TimedBatches:
    """Batches of consecutive epochs, with the time of each and whether it was an epoch's first."""

    def __init__(self, start: Callable[[], Iterator[Any]], *, once: bool, clock: Clock = SYSTEM_CLOCK) -> None:
        self.now = clock.now
        self._start = start
        self._once = once
        self._iterator: Iterator[Any] | None = None
        self.first_s: list[float] = []
        self.taken = 0

    def take(self) -> tuple[Any, bool]:
        """Return the next batch, and whether it is an epoch's first.

        Raises:
            StopIteration: there are no more batches, and the loader cannot be iterated again.
        """
        if self._iterator is not None:
            try:
                batch = next(self._iterator)
            except StopIteration:
                self.close()
                if self._once:
                    raise
            else:
                self.taken += 1
                return batch, False
        began = self.now()
        self._iterator = self._start()
        batch = next(self._iterator)
        self.first_s.append(self.now() - began)
        self.taken += 1
        return batch, True

    def close(self) -> None:
        """End the running epoch and its workers."""
        iterator, self._iterator = self._iterator, None
        if not self._once:
            end_iterator(iterator)


def measure(
    profiled: ProfiledLoader,
    step: Callable[[Any], object] | None,
    seconds: float,
    *,
    device: Any = None,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[ProfileFacts, tuple[Span, ...]]:
    """Run the loader, and the step.

    Args:
        profiled: the loader.
        step: called with each batch; `None` measures the loader alone.
        seconds: about how long all runs may take.
        device: where each batch goes before the step; `None` leaves it where it is.
        clock: the clock for batches and steps; stacks are sampled in real time.

    Returns:
        The times, and the batches of the run together.

    Raises:
        OptionError: the loader has no batch.
    """
    # Separate runs, because sampling stacks slows a loader down, and would change the times that count.
    parts = [
        _PARTS[0],
        _PARTS[1] if step is not None or device is not None else 0.0,
        _PARTS[2] if step is not None else 0.0,
        _PARTS[3],
    ]
    alone, together, repeated, stages = tuple(seconds * part / sum(parts) for part in parts)
    feed = _TimedBatches(profiled.start, once=profiled.once, clock=clock)
    with closing(profiled), closing(feed):
        gaps, batch = _run_alone(feed, alone)
        spans, transfer_s, gpu_busy = _run_together(feed, step, device, batch, together)
    samples, size = batch_size_of(batch)
    setting = replace(
        profiled.setting,
        batch_samples=samples,
        batch_bytes=size,
        image_size=image_size_of(batch),
        # At the end, because these call the dataset again, which may open files.
        repeats=profiled.repeats(),
        can_stage=profiled.can_stage(),
        can_pack=profiled.can_pack(),
    )
    ahead = setting.workers * setting.prefetch
    load_s = _mean(_settled(gaps, ahead))
    facts = ProfileFacts(setting, (), load_s, load_s, load_s, start_s=max(0.0, _mean(feed.first_s) - load_s))
    if kept := _settled(spans, ahead):
        wait_s = _mean([span.given_s - span.asked_s for span in kept])
        busy_s = _mean([span.done_s - span.given_s for span in kept])
        facts = replace(facts, cycle_s=wait_s + busy_s, wait_s=wait_s, busy_s=busy_s)
    if step is not None:
        alone_s, cpu_s = _run_step(step, _move_to(batch, device), repeated, clock.now)
        facts = replace(facts, step_alone_s=alone_s, step_cpu_s=cpu_s)
    facts = replace(_with_stages(facts, profiled, gaps, stages, clock), transfer_s=transfer_s, gpu_busy=gpu_busy)
    return replace(facts, costs=_costs(facts, batch)), tuple(spans)


def _settled(runs: list[_Run], ahead: int) -> list[_Run]:
    """Leave out the first batches, which were prepared in advance, if enough others are left."""
    return runs[ahead:] if len(runs) > 3 * ahead else runs[len(runs) // 3 :]


def _run_alone(feed: _TimedBatches, seconds: float) -> tuple[list[float], Any]:
    """Take batches without using them; return the time of each that was not an epoch's first, and a full batch, because
    an epoch's last one may have fewer samples.

    If an epoch is one batch, all batches are first ones, and their times are returned.
    """
    # The start of an epoch is measured separately, because it is paid once, not for every batch.
    gaps: list[float] = []
    whole: Any = None
    most = -1
    deadline = feed.now() + seconds
    while feed.taken == 0 or len(gaps) < _LEAST_BATCHES or feed.now() < deadline:
        began = feed.now()
        try:
            batch, first = feed.take()
        except StopIteration:
            if feed.taken == 0:
                msg = "The loader has no batches, so there is nothing to measure. Check its dataset and its sampler."
                raise OptionError(msg) from None
            break
        if not first:
            gaps.append(feed.now() - began)
        elif len(feed.first_s) > 1 and feed.now() > deadline:
            break  # epochs of one batch
        # Between two measurements. The other batches are released, because their memory may be reused.
        if (samples := batch_size_of(batch)[0]) > most:
            whole, most = batch, samples
        del batch
    # The very first also opened files and started threads.
    return gaps or feed.first_s[1:] or feed.first_s, whole


def _run_together(
    feed: _TimedBatches, step: Callable[[Any], object] | None, device: Any, batch: Any, seconds: float
) -> tuple[list[Span], float | None, float | None]:
    """Take batches and do the step with each, as a training loop does."""
    if seconds == 0:
        return [], None, None
    step = step or (lambda _: None)
    transfer_s = None if device is None else _transfer_s(batch, device)
    # One unmeasured step, because the first one compiles, allocates and warms up.
    step(_move_to(batch, device))
    if gpu_problem() is not None:
        return _spans(feed, step, device, seconds), transfer_s, None
    # Five samples a second are enough for a mean, and hardly disturb the loop.
    with GpuMonitor(_GPU_EVERY_S, live=False) as monitor:
        spans = _spans(feed, step, device, seconds)
    # The busiest one, because a step usually uses one GPU, and others on the machine are idle.
    shares = [one.utilisation for one in monitor.figures if one.utilisation is not None]
    return spans, transfer_s, max(shares, default=None)


def _spans(feed: _TimedBatches, step: Callable[[Any], object], device: Any, seconds: float) -> list[Span]:
    # In an array of numbers, because objects for each batch would make Python collect garbage during the measurement.
    marks, firsts = array("d"), array("d")
    start = feed.now()
    while len(marks) < 3 * _LEAST_BATCHES or feed.now() - start < seconds:
        asked = feed.now()
        try:
            batch, first = feed.take()
        except StopIteration:
            break
        given = feed.now()
        step(batch if device is None else _move_to(batch, device))
        done = feed.now()
        # The start of an epoch is counted separately.
        (firsts if first else marks).extend((asked, given, done))
        if first and len(feed.first_s) > _MOST_EPOCHS and done - start > seconds:
            break
    _synchronise()
    # Where an epoch is one batch, its start is a part of every batch.
    marks = marks or firsts
    if marks and start < marks[0]:
        start = marks[0]
    return [Span(*(mark - start for mark in marks[at : at + 3])) for at in range(0, len(marks), 3)]


def check_step(step: object) -> None:
    """Refuse what cannot be called with one batch, before anything is measured.

    Raises:
        OptionError: it is no function, or one with other arguments; the message has the line to write.
    """
    if step is None:
        return
    check_argument("step", step, "function", remedy="This cannot be called with a batch.")
    try:
        signature = inspect.signature(step)  # type: ignore[arg-type]  # it can be called, as was just checked
    except (TypeError, ValueError):
        # Some functions written in C have none.
        return
    try:
        signature.bind(None)
    except TypeError:
        msg = (
            f"step takes {signature}, and is called with one batch as the loader gives it. Write "
            "step=lambda batch: step(*batch), with your step."
        )
        raise OptionError(msg) from None


def _run_step(
    step: Callable[[Any], object], batch: Any, seconds: float, now: Callable[[], float]
) -> tuple[float, float]:
    """Return the seconds, and CPU seconds, of the step on a batch that is ready."""
    count = 0
    # CUDA returns before the work is done; without waiting here, the previous run's queue would be measured.
    _synchronise()
    began, began_cpu = now(), time.process_time()
    while count < _LEAST_BATCHES or now() - began < seconds:
        step(batch)
        count += 1
    _synchronise()
    return (now() - began) / count, (time.process_time() - began_cpu) / count


def _move_to(batch: Any, device: Any) -> Any:
    if device is None:
        return batch
    from colabstage.load.batches import map_leaves

    # Only torch has devices, so it is installed.
    return map_leaves(batch, lambda part: part.to(device, non_blocking=True) if hasattr(part, "to") else part)


def _transfer_s(batch: Any, device: Any) -> float:
    def move() -> None:
        _move_to(batch, device)
        _synchronise()

    # The first copy creates the CUDA context; the shortest of the others was disturbed least.
    move()
    return _best_of(move, 3)


def _synchronise() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _with_stages(
    facts: ProfileFacts, profiled: ProfiledLoader, gaps: list[float], seconds: float, clock: Clock
) -> ProfileFacts:
    if profiled.stages is not None:
        return replace(facts, stages=profiled.stages(seconds))
    sampler = StackSampler(profiled.known, threading.get_ident() if profiled.consumer_seen else None)
    if profiled.once:
        # It is used up, and cannot run again with a sampler.
        return replace(facts, stages=_shares(sampler, facts.load_s), produced_s=tuple(gaps))
    feed = _TimedBatches(profiled.alone or profiled.start, once=False, clock=clock)
    with closing(profiled), closing(feed):
        # Half of the time without a sampler, for the true time of a batch; half with it, for the shares of the stages.
        untouched = [] if profiled.alone is None else _run_alone(feed, seconds / 2)[0]
        with sampler:
            taken_before = feed.taken
            _run_alone(feed, seconds / 2 if untouched else seconds)
    if profiled.alone is not None:
        return replace(facts, stages=_shares(sampler, _mean(untouched)), produced_s=tuple(untouched))
    if profiled.setting.workers == 0:
        return replace(facts, stages=_shares(sampler, facts.load_s), produced_s=tuple(gaps))
    # Threads overlap, so their times add up to more than a batch takes, and are not scaled to it.
    return replace(facts, stages=_stage_costs(sampler, 1 / (feed.taken - taken_before)))


def _shares(sampler: StackSampler, batch_s: float) -> tuple[StageCost, ...]:
    """Return the costs of the stages where one thread does everything, from the shares that were sampled."""
    # Scaled to the measured time, because sampling makes everything slower by about the same factor.
    seen = sum(entry.seconds for entry in sampler.times.values())
    # All batches were made between two samples.
    if seen == 0:
        return (StageCost("read", batch_s, batch_s),)
    return _stage_costs(sampler, batch_s / seen)


def _stage_costs(sampler: StackSampler, scale: float) -> tuple[StageCost, ...]:
    return tuple(
        StageCost(name, entry.seconds * scale, entry.cpu_s * scale, entry.gil_s * scale)
        for name in LOADER_STAGES
        if (entry := sampler.times.get(name)) is not None
    )


def _costs(facts: ProfileFacts, batch: Any) -> Costs:
    resources = read_resources()
    if facts.setting.kind in {"keras", "tf.data"} or "torch" not in sys.modules:
        handover_s, take_s = measure_pickling(batch), 0.0  # its own threads take it, beside the step
    else:
        handover_s, take_s = measure_handover(batch)
    return Costs(
        handover_s=handover_s,
        take_s=take_s,
        gather_s=measure_gather(batch),
        pack_s=None if facts.setting.h5_file is None else _pack_s(facts.setting.h5_file, facts.setting.batch_samples),
        cores=measure_cores(resources.cores),
        core_count=resources.cores,
        free_memory_bytes=resources.free_memory_bytes,
        free_disk_bytes=shutil.disk_usage(tempfile.gettempdir()).free,
    )


def _pack_s(path: str, samples: int) -> float | None:
    """Return the seconds to read a batch of this HDF5 file with our own reader; `None` if it cannot."""
    from colabstage.load.reading.reader import SplitReader

    try:
        # Under the usual name, because the advice for another one could not be pasted.
        reader = SplitReader(path, "train", in_memory=False)
        rows = np.random.default_rng(0).integers(0, len(reader), samples)
        # The first read may come from the disk, which later epochs do not.
        return _best_of(lambda: reader.read_x(rows), 3)
    except Exception:  # noqa: BLE001 - the file may have another form; then this advice is not given
        return None


def measure_cores(cores: int) -> float:
    """Return how many cores' worth of work this process gets done, in code that releases Python's lock.

    Two cores that share units are less than two, and so are cores that other programs are using.
    """
    threads = min(cores, _MOST_THREADS)
    # CPU time, because others may also use this core, which only the measurement of all cores is to show.
    began = time.thread_time()
    _work(_ROUNDS)
    alone_s = (time.thread_time() - began) / _ROUNDS
    began = time.perf_counter()
    others = [
        threading.Thread(target=_work, args=(_ROUNDS,), name="colabstage-profile-core", daemon=True)
        for _ in range(threads - 1)
    ]
    for thread in others:
        thread.start()
    _work(_ROUNDS)
    for thread in others:
        thread.join(10.0)
    done = threads * _ROUNDS * alone_s / (time.perf_counter() - began)
    return max(_LEAST_CORES, min(float(cores), cores / threads * done))


def _work(rounds: int) -> None:
    for _ in range(rounds):
        zlib.crc32(_WORK)


def measure_gather(batch: Any) -> float:
    """Return the seconds to copy this batch's bytes, row by row in random order, from memory to a reused buffer.

    If the batch consists of floats, they are converted from stored bytes and scaled.
    """
    samples, size = batch_size_of(batch)
    if size == 0:
        return 0.0
    first = next(arrays_of(batch))
    floats = "float" in str(first.dtype)
    # Packs store bytes, a quarter of the size of a batch's floats.
    row_bytes = max(1, size // max(1, samples) // (4 if floats else 1))
    # More rows than in a batch, so that they do not all fit in the processor's cache.
    rows = np.ones((max(2, min(4 * samples, (256 << 20) // row_bytes)), row_bytes), np.uint8)
    chosen = np.random.default_rng(0).integers(0, len(rows), samples)
    out = np.empty((samples, row_bytes), np.uint8)

    def gather() -> None:
        np.take(rows, chosen, axis=0, out=out, mode="clip")
        if floats:
            np.multiply(out, np.float32(1 / 255), dtype=np.float32)

    return _best_of(gather)


def measure_handover(batch: Any) -> tuple[float, float]:
    """Return the seconds that a worker process takes to send a batch, and the consumer to receive it.

    As in torch's `DataLoader`: the batch is copied into new shared memory; its tensors' names are pickled and sent
    through a pipe; the consumer requests each tensor's memory over a socket and maps it.
    """
    import torch
    import torch.multiprocessing  # says how tensors are pickled

    # Without a batch of arrays there is nothing to copy, and only the pipe is left.
    tensors = [torch.as_tensor(np.asarray(array)) for array in arrays_of(batch) if array.nbytes]
    if not tensors:
        return 0.0005, 0.0002
    given, taken = [], []
    was_there = resource_sharer._resource_sharer._thread is not None  # type: ignore[attr-defined]
    try:
        for _ in range(_TRIALS):
            began = time.perf_counter()
            pickled = ForkingPickler.dumps([tensor.clone() for tensor in tensors])
            given.append(time.perf_counter() - began)
            began = time.perf_counter()
            pickle.loads(pickled)
            taken.append(time.perf_counter() - began)
    finally:
        # The thread that serves tensors' memory, unless it existed before.
        if not was_there:
            resource_sharer.stop(timeout=5.0)
    # The minimum for work that can be deferred; the median for what the step waits for each time.
    return _PIPE_S + min(given), _PIPE_S + statistics.median(taken)


def measure_pickling(batch: Any) -> float:
    """Return the seconds to send a batch to another process as Keras does: pickled, through a pipe, and unpickled."""
    arrays = [np.asarray(array) for array in arrays_of(batch)]
    # Writing to the pipe and reading from it costs about as much again.
    return 0.0005 + 2 * _best_of(lambda: pickle.loads(pickle.dumps(arrays)))


def _best_of(work: Callable[[], object], trials: int = _TRIALS) -> float:
    """Return the seconds of the shortest of several trials, which was disturbed least."""
    seconds = []
    for _ in range(trials):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
