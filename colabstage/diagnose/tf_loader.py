"""A `tf.data.Dataset` as something to profile.

Its stages run in TensorFlow's own threads, where no Python stack tells anything. But a pipeline is a chain, so each
beginning of it is measured alone, inside of TensorFlow, and what the next link adds is that link's time. What a link
does is told by the operations in its function.

Iterating a shuffled dataset moves the seed of its next epoch on. So a copy is iterated: the pipeline's graph, in which
shuffling has a seed of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.facts import LOADER_STAGES, Setting, StageCost
from colabstage.diagnose.loaders import ProfiledLoader
from colabstage.errors import said_by

if TYPE_CHECKING:
    from colabstage.diagnose.facts import StageName

_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
# Links that hand on what they get; taking them along would measure their filling.
_THROUGH = ("Prefetch", "Shuffle", "Repeat", "Options", "Take", "Skip", "Shard", "Cache", "MemoryCache")
# Runs of each length, of which the shortest counts.
_LEAST_TRIES = 3


def profiled_tf(dataset: Any) -> ProfiledLoader:
    """Look at a `tf.data.Dataset` of batches."""
    chain = _chain(dataset)
    maps = [link for link in chain if hasattr(link, "_map_func")]
    python = any(_PYTHON & _operations(link) for link in maps)
    prefetched = "Prefetch" in type(chain[-1]).__name__
    setting = Setting(
        "tf.data",
        workers=int(prefetched),
        prefetch=2 if prefetched else 0,
        batches=count if (count := int(dataset.cardinality())) >= 0 else None,
        parallel_map=not any(type(link).__name__ in {"_MapDataset", "MapDataset"} for link in maps),
        prefetched=prefetched,
    )
    notes: list[str] = []
    try:
        copied = _copy(dataset)
    except Exception as error:  # noqa: BLE001 - whatever TensorFlow says of a graph that it cannot write down
        copied = dataset
        why = said_by(error).partition("\n")[0]
        notes.append(f"The pipeline could not be copied ({why}), so shuffling in it has moved on.")
    return ProfiledLoader(
        setting,
        start=lambda: iter(copied),
        stages=lambda seconds: _measure_chain(chain, seconds, python=python),
        repeats=lambda: not any("Random" in name for link in maps for name in _operations(link)),
        consumer_seen=False,
        notes=notes,
    )


def _chain(dataset: Any) -> list[Any]:
    """Return the pipeline's links, from the source on; of links with several inputs, the first."""
    chain = [dataset]
    while inputs := chain[-1]._inputs():
        chain.append(inputs[0])
    return chain[::-1]


def _copy(dataset: Any) -> Any:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.python.data.ops.dataset_ops import _VariantDataset

    # 1: state outside, such as a Python function's, is used as it is.
    written = tf.raw_ops.DatasetToGraphV2(
        input_dataset=dataset._variant_tensor, external_state_policy=1, strip_device_assignment=False
    )
    graph = GraphDef.FromString(written.numpy())
    for node in graph.node:
        if node.op == "ShuffleDatasetV3":
            # The third version's seed lives in a resource that the copy would share; the first has it inside.
            node.op = "ShuffleDataset"
            del node.input[4]
    return _VariantDataset(tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString()), dataset.element_spec)


def _operations(link: Any) -> set[str]:
    return {operation.type for operation in link._map_func.function.graph.get_operations()}


def _stage(link: Any, name: str) -> StageName:
    if "Batch" in name:
        return "collate"
    if "Map" not in name or not hasattr(link, "_map_func"):
        return "read"
    operations = _operations(link)
    if any(operation.startswith("Decode") and operation != "DecodeRaw" for operation in operations):
        return "decode"
    if "ReadFile" in operations and len(operations) < 8:
        return "read"
    return "transform"


def _measure_chain(chain: list[Any], seconds: float, *, python: bool) -> tuple[StageCost, ...]:
    links = [link for link in chain if not type(link).__name__.lstrip("_").startswith(_THROUGH)]
    costs = dict.fromkeys(LOADER_STAGES, (0.0, 0.0, 0.0))
    before_s = before_cpu_s = 0.0
    for number, link in enumerate(links):
        later = [other for other in links[number + 1 :] if "Batch" in type(other).__name__]
        # Elements of this link that one batch of the end takes.
        per_batch = 1
        for other in later:
            per_batch *= int(getattr(other, "_batch_size", 1))
        took_s, cpu_s = _time_of(_copy_or_same(link), per_batch, seconds / len(links))
        name = type(link).__name__
        stage = _stage(link, name)
        # Measuring scatters: a link that seems to take less than what comes before it takes nothing.
        own_s, own_cpu_s = max(0.0, took_s - before_s), max(0.0, cpu_s - before_cpu_s)
        calls_python = "Generator" in name or (hasattr(link, "_map_func") and bool(_PYTHON & _operations(link)))
        gil_s = min(own_s, own_cpu_s) if python and calls_python else 0.0
        old = costs[stage]
        costs[stage] = (old[0] + own_s, old[1] + own_cpu_s, old[2] + gil_s)
        before_s, before_cpu_s = max(before_s, took_s), max(before_cpu_s, cpu_s)
    return tuple(StageCost(name, *cost) for name, cost in costs.items() if cost[0] > 0)


def _copy_or_same(link: Any) -> Any:
    try:
        return _copy(link)
    except Exception:  # noqa: BLE001 - as in profiled_tf, which says so
        return link


def _time_of(dataset: Any, per_batch: int, seconds: float) -> tuple[float, float]:
    """Return the seconds, and core seconds, that this beginning of the pipeline takes for one batch.

    From the difference of a short run and one of twice its length, so that what happens once, such as the filling of
    buffers, drops out. Each is the shortest of several, because anything else on the machine only adds to them.
    """
    deadline = time.monotonic() + seconds
    few = _Beginning.of(dataset, per_batch)
    few.run()
    count = per_batch
    many = _Beginning.of(dataset, 2 * count)
    while many.elements == 2 * count and many.run().seconds < seconds / 8 and time.monotonic() < deadline:
        count *= 2
        few, many = many, _Beginning.of(dataset, 2 * count)
    if many.elements < 2 * count:
        # It ends before: half of it and all of it, in whole batches.
        count = many.elements // (2 * per_batch) * per_batch
        if not count:
            return many.run().of(per_batch)
        few, many = _Beginning.of(dataset, count), _Beginning.of(dataset, 2 * count)
    short, long = few.run(), many.run()
    tries = 1
    while tries < _LEAST_TRIES or time.monotonic() < deadline:
        short, long = short.least(few.run()), long.least(many.run())
        tries += 1
    # What comes once only adds to a run, so a batch costs no more than the mean of either; where it seems to, something
    # else was running during one of them.
    alone = [run.of(per_batch) for run in (long.less(short), long, short)]
    return min(seconds for seconds, _ in alone), min(cpu_s for _, cpu_s in alone)


@dataclass(frozen=True, slots=True)
class _Run:
    """What a run of so many elements took, in seconds and core seconds."""

    seconds: float
    """By the clock."""
    cpu_s: float
    """Of all cores."""
    elements: int
    """How many elements came."""

    def least(self, other: _Run) -> _Run:
        """Return the shorter times of two runs of as many elements."""
        return _Run(min(self.seconds, other.seconds), min(self.cpu_s, other.cpu_s), self.elements)

    def less(self, other: _Run) -> _Run:
        """Return what a shorter run leaves of this one."""
        elements = self.elements - other.elements
        return _Run(max(0.0, self.seconds - other.seconds), max(0.0, self.cpu_s - other.cpu_s), elements)

    def of(self, elements: int) -> tuple[float, float]:
        """Return the seconds and core seconds of so many elements."""
        scale = elements / max(1, self.elements)
        return self.seconds * scale, self.cpu_s * scale


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The first so many elements of a dataset, or all where it has fewer, made and thrown away in TensorFlow."""

    thrown_away: Any
    """The dataset, which filters out all that it makes."""
    elements: int
    """How many it makes."""

    @classmethod
    def of(cls, dataset: Any, count: int) -> _Beginning:
        """Trace it here, so that a run is no more than the work; by one thread, whatever TensorFlow would try."""
        import numpy as np
        import tensorflow as tf

        options = tf.data.Options()
        options.autotune.enabled = False
        # They would run a map in as many threads as autotuning finds best at the moment.
        options.experimental_optimization.apply_default_optimizations = False
        taken = dataset.take(count)
        known = int(taken.cardinality())
        elements = known if known >= 0 else int(taken.reduce(np.int64(0), lambda number, *_: number + 1))
        return cls(taken.filter(lambda *_: False).with_options(options), elements)

    def run(self) -> _Run:
        """Go through it once."""
        began, began_cpu = time.perf_counter(), time.process_time()
        for _ in self.thrown_away:
            pass
        return _Run(time.perf_counter() - began, time.process_time() - began_cpu, self.elements)
