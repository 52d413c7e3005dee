"""What limits a pipeline and what to change, as arguments to paste, each with its gain: pure functions of measured
times.

The model says how long a batch would take if a pipeline were set up differently. It has two bounds, and the longer one
counts. The first is waiting: each worker makes one batch at a time, may be a few batches ahead, and batches are taken
in order (`simulate`). The second is shared resources: cores, and Python's lock within a process.

The verdict compares the step alone, on a batch that is ready, with the step and the loader together. That works even if
the step only queues work on a GPU and the waiting shows elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from colabstage.io.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from colabstage.diagnose.facts import ProfileFacts, Setting, StageName

# Enough that the first batches, which are ready early, hardly count.
_SIMULATED = 200
Bound = Literal["input-bound", "compute-bound", "balanced"]
# work: the stage is slower than the step. prefetch: batches are made fast enough on average, but not when they are
# wanted. gil: threads wait for each other. cores: loading and step want more cores than there are. start: of epochs.
Cause = Literal["work", "prefetch", "gil", "cores", "start"]
# A smaller loss is noise, and not worth changing a line.
_LOST = 0.10
# A loader this close to the step's time would be the next limit.
_NEXT_LIMIT = 0.80
_SLOWER = 1.15
WHAT: dict[StageName, str] = {
    "read": "reading",
    "decode": "decoding",
    "transform": "transforms",
    "collate": "collating",
    "transfer": "the transfer to the device",
    "step": "the step",
}
# Smaller gains are not worth changing a line.
_LEAST_GAIN = 1.1
_MOST_WORKERS = 16
_CLOSE_GAIN = 0.85
# The file of a dataset that is packed from its items.
_PACKED = 'dataset_h5("data.h5")'
# A stage below this share of the loading is not worth a change.
_WORTH = 0.3


def simulate(made_s: Sequence[float], step_s: float, workers: int, ahead: int) -> float:
    """Return the seconds from batch to batch if `workers` make batches in turn, each at most `ahead` in advance.

    `made_s`: seconds to make each batch, repeated as needed. As in torch's `DataLoader`, each batch that the consumer
    takes orders one more.
    """
    # Nothing overlaps: a batch is made, then used.
    if workers == 0:
        return sum(made_s) / len(made_s) + step_s
    # At least twice through the measured batches, so that a slow one counts as often as it occurred.
    count = max(_SIMULATED, 2 * len(made_s))
    in_flight = workers * ahead
    taken: list[float] = []
    worker_free = [0.0] * workers
    consumer_free = 0.0
    for number in range(count):
        ordered = taken[number - in_flight] if number >= in_flight else 0.0
        # In turn, as in torch: a slow batch delays all later ones, whichever worker made them.
        worker = number % workers
        ready = max(ordered, worker_free[worker]) + made_s[number % len(made_s)]
        worker_free[worker] = ready
        taken.append(max(ready, consumer_free))
        consumer_free = taken[-1] + step_s
    # From the batch at which the queue is full.
    first = count // 4
    return (taken[-1] - taken[first]) / (count - 1 - first)


def cycle_with_processes(facts: ProfileFacts, workers: int, ahead: int) -> float:
    """Return the seconds from batch to batch with `workers` processes, each `ahead` batches in advance."""
    handover_s, take_s = (facts.costs.handover_s, facts.costs.take_s) if workers else (0.0, 0.0)
    step_s = facts.step_s + take_s
    made = facts.produced_s or (facts.serial_s,)
    # Each process uses one thread, so work that several cores did here takes longer there.
    slower = max(1.0, facts.cpu_s / facts.serial_s) if facts.serial_s else 1.0
    chain_s = simulate([seconds * slower + handover_s for seconds in made], step_s, workers, ahead)
    cores_s = facts.cores_s(facts.cpu_s + handover_s + max(handover_s, take_s))
    # Without workers, loading and step take turns on a core, which the chain covers already.
    return max(chain_s, cores_s if workers else 0.0)


def with_threads(facts: ProfileFacts, threads: int, ahead: int) -> float:
    """Return the seconds from batch to batch with this many threads in this process, which share Python's lock."""
    made = facts.produced_s or (facts.serial_s,)
    chain_s = simulate(made, facts.step_s, threads, ahead)
    return max(chain_s, facts.cores_s(facts.cpu_s), facts.gil_s)


def in_background(facts: ProfileFacts, load_s: float, load_cpu_s: float) -> float:
    """Return the seconds from batch to batch if batches that take this long are made beside the step."""
    return max(load_s, facts.step_s, facts.cores_s(load_cpu_s))


def fewest_workers(facts: ProfileFacts, ahead: int) -> tuple[int, float]:
    """Return the smallest number of worker processes, 1 to 16, within 5 % of the best, and its time."""
    return _least_of((workers, cycle_with_processes(facts, workers, ahead)) for workers in range(1, _MOST_WORKERS + 1))


def smallest_ahead(facts: ProfileFacts, workers: int) -> tuple[int, float]:
    """Return the smallest `prefetch_factor` of 2, 4, … 64 within 5 % of the best, and its time."""
    return _least_of((ahead, cycle_with_processes(facts, workers, ahead)) for ahead in (2, 4, 8, 16, 32, 64))


def _least_of(trials: Iterable[tuple[int, float]]) -> tuple[int, float]:
    """Return the first of ascending numbers whose time is within 5 % of the best."""
    # A worker costs memory and a core, so the last 5 % are not worth one.
    times = list(trials)
    best = min(seconds for _, seconds in times)
    return next((number, seconds) for number, seconds in times if seconds <= 1.05 * best)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a pipeline."""

    bound: Bound
    """What the loop waits for."""
    stage: StageName | None
    """The stage that takes most of the loading; `None` if the loader is not the limit."""
    cause: Cause | None
    """Why the step waits for it."""
    sentence: str
    """The verdict as text."""


def judge(facts: ProfileFacts) -> Verdict:
    """Say what limits the pipeline."""
    # The slowest stage of the loader.
    stage = max(facts.stages, key=lambda cost: cost.seconds).name if facts.stages else "read"
    if facts.step_alone_s is None:
        share = facts.seconds(stage) / facts.serial_s if facts.serial_s else 1.0
        # "Transforms" is the one plural among the names.
        takes = "take" if stage == "transform" else "takes"
        sentence = (
            f"Of loading, {WHAT[stage]} {takes} most: {share:.0%}. Whether training waits for it shows with step=."
        )
        return Verdict("input-bound", stage, _threads_wait(facts) or "work", sentence)
    now_s = facts.batch_s
    lost = max(0.0, 1 - facts.step_alone_s / now_s)
    if lost < _LOST:
        return _not_input(facts)
    cause = _cause(facts, now_s)
    if cause == "work" and (facts.transfer_s or 0.0) > max(facts.seconds(stage), 0.5 * (now_s - facts.step_alone_s)):
        stage = "transfer"
    rate, headroom = (facts.setting.batch_samples / (seconds or 1.0) for seconds in (now_s, facts.step_alone_s))
    sentence = (
        f"Input-bound by {_words_for(facts, stage, cause)}: {lost:.0%} of the time is lost, {rate:,.0f} samples/s "
        f"where the step could take {headroom:,.0f}."
    )
    return Verdict("input-bound", stage, cause, sentence)


def _threads_wait(facts: ProfileFacts) -> Cause | None:
    setting = facts.setting
    shared = setting.workers > 1 and not setting.processes
    return "gil" if shared and facts.gil_s > 0.5 * facts.load_s else None


def _cause(facts: ProfileFacts, now_s: float) -> Cause:
    # Checked first: if workers start again in each epoch, everything else looks slow too.
    if facts.epoch_start_s > 0.5 * (now_s - facts.step_s):
        return "start"
    if (waiting := _threads_wait(facts)) is not None:
        return waiting
    if facts.setting.overlapped and facts.cycle_s > _SLOWER * max(facts.load_s, facts.step_s):
        if _queue_is_short(facts):
            return "prefetch"
        return "cores" if facts.cores_s(facts.cpu_s) > 0.85 * facts.cycle_s else "work"
    return "work"


def _queue_is_short(facts: ProfileFacts) -> bool:
    """Tell whether batches as irregular as these would be ready in time with a longer queue."""
    setting = facts.setting
    if not facts.produced_s or not setting.workers:
        return False
    as_is, longest = (
        simulate(facts.produced_s, facts.step_s, setting.workers, ahead)
        # 64 stands for any long queue: batches that are late even then are too slow on average.
        for ahead in (setting.prefetch, 64)
    )
    return as_is > _SLOWER * longest


def _not_input(facts: ProfileFacts) -> Verdict:
    step_s = facts.step_s
    if facts.load_s < _NEXT_LIMIT * step_s:
        sentence = (
            f"Compute-bound: the step takes {format_duration(step_s)} a batch, and the loader could make one in "
            f"{format_duration(facts.load_s)}. Faster loading gains nothing."
        )
        return Verdict("compute-bound", None, None, sentence)
    sentence = (
        f"Balanced: the step takes {format_duration(step_s)} a batch, the loader {format_duration(facts.load_s)}, and "
        "they run side by side."
    )
    return Verdict("balanced", None, None, sentence)


def _words_for(facts: ProfileFacts, stage: StageName, cause: Cause) -> str:
    what = WHAT[stage]
    if cause == "gil":
        return f"{what} ({facts.setting.workers} threads that wait for each other: it holds Python's lock)"
    if cause == "prefetch":
        return f"too short a queue ({what} is fast enough on average, but batches come in bursts)"
    if cause == "cores":
        return f"{what} (it and the step want more cores than the {facts.costs.cores:.1f} that are here)"
    if cause == "start":
        return f"starting each epoch ({format_duration(facts.start_s)} until its first batch)"
    return what if facts.setting.overlapped else f"{what} (nothing is loaded while the step runs)"


@dataclass(frozen=True, slots=True)
class Advice:
    """One change."""

    argument: str
    """What to paste."""
    why: str
    """One sentence."""
    cycle_s: float
    """Seconds from batch to batch, then."""
    gain: float = 1.0
    """How many times as fast as now."""
    at_most: bool = False
    """Whether this is only a bound, because the replacement of the old stage has not been measured."""
    options: dict[str, Any] = field(default_factory=dict)
    """The arguments as values, if there are any."""
    packs: bool = False
    """Whether it needs packing the dataset, which is more than changing an argument."""

    def __str__(self) -> str:
        word = "at most " if self.at_most else ""
        return f"{self.argument}: {word}{self.gain:.1f}x ({self.why})"


def advise(facts: ProfileFacts) -> tuple[Advice, ...]:
    """Return all worthwhile changes: measured gains before bounds, the largest first, and of about equal ones the least
    work."""
    kind = facts.setting.kind
    # By the kind of loader, because advice is written in its arguments.
    found = {"torch": _torch, "colabstage": _ours, "keras": _keras, "tf.data": _tf, "iterable": _iterable}[kind](facts)
    worth = [replace(advice, gain=facts.batch_s / advice.cycle_s) for advice in found if advice.cycle_s > 0]
    kept = [advice for advice in worth if advice.gain >= _LEAST_GAIN]
    best = max((advice.gain for advice in kept if not advice.at_most), default=0.0)

    def rank(advice: Advice) -> tuple[bool, bool, bool, float]:
        is_close = advice.gain >= _CLOSE_GAIN * best
        return advice.at_most, not is_close, advice.packs, -advice.gain

    return tuple(sorted(kept, key=rank))


def _cores(facts: ProfileFacts) -> str:
    return f"of {format_count(facts.costs.core_count, 'cores')} here {facts.costs.cores:.1f} can be had now"


def _torch(facts: ProfileFacts) -> Iterator[Advice]:
    yield from _advise_processes(facts)
    yield from _longer_queue(facts)
    yield from _persistent(facts)
    yield from _advise_packing(facts, "make_loader({data}, {batch})")
    yield from _by_batches(facts)


def _advise_processes(facts: ProfileFacts) -> Iterator[Advice]:
    setting = facts.setting
    ahead = max(2, setting.prefetch)
    workers, cycle_s = fewest_workers(facts, ahead)
    before_s = cycle_with_processes(facts, setting.workers, ahead) if setting.processes else facts.batch_s
    # If processes already run, another number is compared with the model's result for the present one.
    if workers == setting.workers or (setting.processes and cycle_s > 0.9 * before_s):
        return
    longer, longer_s = smallest_ahead(facts, workers)
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True}
    if longer > ahead and longer_s < 0.95 * cycle_s:
        options["prefetch_factor"], cycle_s = longer, longer_s
    if setting.processes:
        cycle_s *= facts.cycle_s / before_s
    room = _cores(facts)
    if workers > facts.costs.core_count:
        cores = format_count(facts.costs.core_count, "cores")
        room = f"more than the {cores} here, of which torch warns, but they mostly wait"
    if setting.is_stream and workers > 1:
        room += (
            ". Each process iterates over the whole IterableDataset: have its __iter__ take a part by "
            "torch.utils.data.get_worker_info(), or every sample comes once from each"
        )
    yield Advice(
        f"DataLoader(..., {_pasted(options)})",
        f"{format_count(workers, 'processes')} would make batches while the step runs; {room}",
        max(cycle_s, facts.step_s) + _restart_s(facts, cycle_s),
        options=options,
    )


def _restart_s(facts: ProfileFacts, cycle_s: float) -> float:
    """Return what starting an epoch adds to each batch if workers persist: the wait for the first batch."""
    return max(0.0, facts.serial_s - cycle_s) / facts.setting.batches if facts.setting.batches else 0.0


def _longer_queue(facts: ProfileFacts) -> Iterator[Advice]:
    setting = facts.setting
    if not setting.processes:
        return
    ahead, cycle_s = smallest_ahead(facts, setting.workers)
    if ahead > setting.prefetch:
        yield Advice(
            f"DataLoader(..., prefetch_factor={ahead})",
            f"batches come in bursts, and {setting.workers * setting.prefetch} of them do not bridge the slow ones",
            cycle_s + facts.epoch_start_s,
            options={"prefetch_factor": ahead},
        )


def _persistent(facts: ProfileFacts) -> Iterator[Advice]:
    # Then only the first batch of an epoch is waited for, not the start of Python in each process.
    if facts.setting.processes and not facts.setting.persistent:
        yield Advice(
            "DataLoader(..., persistent_workers=True)",
            "the processes are started again in every epoch",
            facts.cycle_s + min(facts.epoch_start_s, _restart_s(facts, facts.cycle_s)),
            options={"persistent_workers": True},
        )


def _advise_packing(facts: ProfileFacts, call: str) -> Iterator[Advice]:
    """Read one packed file instead, in the background. Transforms stay, unless they are deterministic and can be
    applied while packing."""
    # Stage the folder that the dataset names, if its samples are found there; otherwise pack the dataset's items. If it
    # names no folder and gives images, advise both: a user who knows the folder can stage it, and gets 8-bit images.
    setting, costs = facts.setting, facts.costs
    once = setting.repeats and setting.h5_file is None
    kept = [stage for stage in facts.stages if stage.name == "transform" and not once]
    kept_s = sum(stage.seconds for stage in kept)
    if setting.strategy is not None or facts.serial_s - kept_s < _WORTH * facts.serial_s:
        return
    if setting.h5_file is not None and costs.pack_s is None:
        return  # our reader was tried on it and failed
    read_s = costs.gather_s if costs.pack_s is None else costs.pack_s
    cycle_s = in_background(facts, read_s + kept_s, read_s + sum(stage.cpu_s for stage in kept))
    if setting.kind == "tf.data":
        cycle_s += costs.handover_s  # batches come from Python and are copied into TensorFlow's memory
    for itself in _ways_to_pack(setting, once=once):
        pack_bytes = 0 if setting.h5_file is not None else _pack_bytes(setting, itself=itself)
        if costs.free_disk_bytes is not None and pack_bytes > costs.free_disk_bytes:
            continue
        argument = call.format(data=_PACKED if itself else _data(facts), batch=setting.batch_samples)
        why, is_large = _why_packed(facts, once=once, itself=itself), pack_bytes > costs.free_memory_bytes
        if is_large:
            size, free = format_bytes(pack_bytes), format_bytes(costs.free_memory_bytes)
            why += f"; it takes {size}, of which {free} fit the memory, so it comes no faster than the disk gives it"
        yield Advice(
            f'pack_dataset(loader.dataset, "data.h5"); {argument}' if itself else argument,
            why,
            cycle_s,
            at_most=is_large,
            packs=setting.h5_file is None,
        )


def _ways_to_pack(setting: Setting, *, once: bool) -> tuple[bool, ...]:
    """Tell for each recommendation whether the dataset itself is packed (`True`) or its folder staged; first the one
    that runs as written."""
    itself = once and setting.can_pack
    if not itself:
        # If no layout fits the folder, only the dataset's own code finds its samples.
        return () if setting.can_stage is False else (False,)
    if setting.source is not None:
        return (False,) if setting.can_stage else (True,)
    return (True, False) if setting.image_size is not None else (True,)


def _pack_bytes(setting: Setting, *, itself: bool) -> int:
    """Estimate the size of a pack in bytes, 0 if unknown: from uint8 pixels if images are staged, from the batches if
    the dataset's items are packed."""
    each = setting.batch_bytes / max(1, setting.batch_samples)
    # Staged images are stored as RGB bytes, whatever dtype batches have.
    if setting.image_size is not None and not itself:
        each = 3.0 * setting.image_size[0] * setting.image_size[1]
    return int((setting.batches or 0) * setting.batch_samples * each)


def _data(facts: ProfileFacts) -> str:
    setting = facts.setting
    if setting.h5_file is not None:
        return f'dataset_h5("{setting.h5_file}")'
    source = "SOURCE" if setting.source is None else f'"{setting.source}"'
    size = "" if setting.image_size is None else f", image_size={setting.image_size}"
    return f'stage_dataset({source}{size})["train"]'


def _why_packed(facts: ProfileFacts, *, once: bool, itself: bool) -> str:
    if facts.setting.h5_file is not None:
        return "our reader gathers a batch of this very file at once"
    what = "read, decoded and transformed once (samples are the same each time)" if once else "read and decoded once"
    why = f"pack it: files are {what}, and batches are gathered from one file in the system's cache"
    if once and not itself and facts.seconds("transform"):
        why += "; prepare= takes what is more than resizing"
    return why


def _by_batches(facts: ProfileFacts) -> Iterator[Advice]:
    transform_s = facts.seconds("transform")
    if transform_s < _WORTH * facts.serial_s:
        return
    # The result is a bound, because one call for a whole batch has not been measured.
    rest_s = facts.serial_s - transform_s
    step_s = facts.step_s
    without_s = max(rest_s, step_s) if facts.setting.overlapped else rest_s + step_s
    yield Advice(
        "make_loader(..., batch_transform=f)",
        "one call for a batch, on the device, instead of one for each sample; its own time comes on top",
        max(without_s, facts.costs.gather_s),
        at_most=True,
    )


def _ours(facts: ProfileFacts) -> Iterator[Advice]:
    setting = facts.setting
    read_s, decode_s, transform_s = (facts.seconds(name) for name in ("read", "decode", "transform"))
    if setting.strategy == "direct" and read_s > _WORTH * facts.serial_s:
        rest = [stage for stage in facts.stages if stage.name != "read"]
        load_s = facts.costs.gather_s + sum(stage.seconds for stage in rest)
        cpu_s = facts.costs.gather_s + sum(stage.cpu_s for stage in rest)
        need = (setting.batches or 1) * setting.batch_bytes
        if need < facts.costs.free_memory_bytes / 2:
            yield Advice(
                'make_loader(..., strategy="memory")',
                "the split is read once, front to back, and fits the memory",
                in_background(facts, load_s, cpu_s),
                options={"strategy": "memory"},
            )
    if not setting.processes and transform_s + decode_s > _WORTH * facts.serial_s:
        workers, cycle_s = fewest_workers(facts, 2)
        options = {"strategy": "workers", "num_workers": workers}
        yield Advice(
            f"make_loader(..., {_pasted(options)})",
            f"{format_count(workers, 'processes')} would run what is called for each sample; {_cores(facts)}",
            cycle_s,
            options=options,
        )
    yield from _by_batches(facts)


def _keras(facts: ProfileFacts) -> Iterator[Advice]:
    setting = facts.setting
    # Our loader works ahead by itself, and already reads a packed file.
    if setting.strategy is not None:
        return
    processes = fewest_workers(facts, 4)
    threads = _least_of((count, with_threads(facts, count, 4)) for count in range(2, _MOST_WORKERS + 1))
    # Threads, unless processes are clearly better: threads copy nothing and start at once.
    several = processes[1] < 0.85 * threads[1]
    workers, cycle_s = processes if several else threads
    if several != setting.processes or workers > setting.workers:
        options = {"workers": workers, "use_multiprocessing": several, "max_queue_size": 4 * workers}
        kind = "processes" if several else "threads"
        why = "its Python code holds Python's lock, so threads would wait for each other" if several else _cores(facts)
        yield Advice(
            f"PyDataset.__init__({_pasted(options)})",
            f"{format_count(workers, kind)} would make batches while the step runs; {why}",
            cycle_s,
            options=options,
        )
    yield from _advise_packing(facts, "to_keras({data}, {batch})")


def _tf(facts: ProfileFacts) -> Iterator[Advice]:
    setting = facts.setting
    mapped = sum(stage.seconds for stage in facts.stages if stage.name in {"decode", "transform"})
    load_s = facts.load_s
    words, options = [], {}
    if not setting.parallel_map and mapped > _WORTH * facts.serial_s:
        load_s = max(facts.cpu_s / facts.costs.cores, facts.gil_s, facts.serial_s - mapped, mapped / _MOST_WORKERS)
        words.append(".map(f, num_parallel_calls=tf.data.AUTOTUNE)")
        options["num_parallel_calls"] = True
    if not setting.prefetched:
        words.append(".prefetch(tf.data.AUTOTUNE)")
        options["prefetch"] = True
    if words:
        cycle_s = in_background(facts, load_s, facts.cpu_s)
        why = f"links of the chain would work side by side; {_cores(facts)}"
        yield Advice("  ".join(words), why, cycle_s, options=options)
    if (
        facts.serial_s > facts.step_s
        and (setting.batches or 0) * setting.batch_bytes < facts.costs.free_memory_bytes / 3
    ):
        yield Advice(
            ".cache()  (after the last .map that draws nothing at random)",
            "from the second epoch on; all batches together fit the memory",
            in_background(facts, facts.costs.gather_s, facts.costs.gather_s),
            at_most=True,
        )
    yield from _advise_packing(facts, "to_tf_data({data}, {batch})")


def _iterable(facts: ProfileFacts) -> Iterator[Advice]:
    if not facts.setting.overlapped and facts.step_alone_s is not None:
        yield Advice(
            "CudaDataLoader(loader, device)",
            "a thread would make the next batches while the step runs",
            in_background(facts, facts.load_s, facts.cpu_s),
            options={"background": True},
        )
    yield from _advise_processes(facts)
    yield from _advise_packing(facts, "make_loader({data}, {batch})")
    yield from _by_batches(facts)


def _pasted(options: dict[str, Any]) -> str:
    return ", ".join(
        f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}" for name, value in options.items()
    )
