"""What is profiled: any loader, seen as an object that starts epochs and describes its setup.

A torch `DataLoader`, stock or colabstage's, is iterated as a shallow copy. The copy shares dataset, sampler and
functions, but has its own iterator, its own worker processes and, if it is colabstage's, its own position. If batches
are made in processes, which cannot be observed from here, a second copy without processes shows the stages. A Keras
`PyDataset` is iterated as `fit` does it, with its threads or processes.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.facts import LOADER_STAGES, Setting, StageCost, arrays_of
from colabstage.errors import ColabstageError, said_by
from colabstage.io.arguments import refuse_argument
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.formats.items import read_dataset
from colabstage.machine.mounts import is_slow_mount
from colabstage.trees.open import open_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    import numpy as np
    from numpy.typing import NDArray

    from colabstage.diagnose.facts import StageName

# With more files, finding out would take too long.
_MOST_FILES = 2_000
# The values of these settings in a DataLoader without workers.
_ALONE = {
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "pin_memory": False,
    "timeout": 0,
    "worker_init_fn": None,
    "_iterator": None,
    "_DataLoader__multiprocessing_context": None,
}

_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
# Links that only pass batches on; including them would measure how they fill up.
_THROUGH = ("Prefetch", "Shuffle", "Repeat", "Options", "Take", "Skip", "Shard", "Cache", "MemoryCache")
# Number of runs of each length; the shortest counts.
_LEAST_TRIES = 3


@dataclass(slots=True)
class ProfiledLoader:
    """A loader to profile."""

    setting: Setting
    """How it is set up."""
    start: Callable[[], Iterator[Any]]
    """Starts an epoch."""
    alone: Callable[[], Iterator[Any]] | None = None
    """Starts an epoch whose batches are made in this thread, if the loader's own are made in other processes."""
    close: Callable[[], object] = lambda: None
    """Ends whatever the loader keeps between epochs."""
    known: dict[CodeType, StageName] = field(default_factory=dict)
    """The stages of the loader's functions."""
    roots: tuple[object, ...] = ()
    """The objects whose attributes are restored."""
    stages: Callable[[float], tuple[StageCost, ...]] | None = None
    """Measures the stages within a number of seconds, if stacks do not show them."""
    repeats: Callable[[], bool] = lambda: False
    """Checks whether a sample is the same each time."""
    can_stage: Callable[[], bool | None] = lambda: None
    """Checks whether staging could replace it, as in `Setting`."""
    can_pack: Callable[[], bool] = lambda: False
    """Checks whether its items could be packed, as in `Setting`."""
    consumer_seen: bool = True
    """Whether the consumer's stack shows stages."""
    once: bool = False
    """Whether it can be iterated only once."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user about the profile."""


def profiled_iterable(loader: Any) -> ProfiledLoader:
    is_iterable = hasattr(type(loader), "__iter__") or hasattr(type(loader), "__getitem__")
    if not is_iterable or isinstance(loader, (str, bytes, os.PathLike)):
        remedy = "Of a packed file pass make_loader(dataset_h5(path), 64)."
        refuse_argument("loader", loader, "a loader of batches", remedy=remedy)
    inner = getattr(loader, "loader", None)
    ours = type(loader).__module__.startswith("colabstage.")
    once = hasattr(type(loader), "__next__")
    # Other libraries call them so as well; where none is told, one that is not ours is taken to work only when asked.
    workers = _count_of(loader, "num_workers") or _count_of(loader, "num_threads") or (1 if ours else 0)
    setting = Setting("iterable", workers=workers, prefetch=2 if workers else 0, batches=_length(loader))
    known = known_stages(getattr(inner, "dataset", None), getattr(loader, "dataset", None))
    roots = () if ours or once else (loader,)
    profiled = ProfiledLoader(setting, lambda: iter(loader), known=known, once=once, roots=roots)
    if once:
        profiled.notes.append("The loader can be iterated only once: the batches that were measured are gone from it.")
    return profiled


def _count_of(owner: object, name: str) -> int:
    value = getattr(owner, name, 0)
    return value if isinstance(value, int) else 0


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def known_stages(*datasets: object) -> dict[CodeType, StageName]:
    """Return the transforms and loading functions in the attributes of datasets, including wrapped ones."""
    known: dict[CodeType, StageName] = {}
    for layer in chain.from_iterable(map(_layers, datasets)):
        for name in ("transform", "target_transform", "transforms", "transform_fn", "augment"):
            _learn(known, getattr(layer, name, None), "transform")
    return known


def _layers(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those that it wraps, from the outside in."""
    # Subsets and concatenations wrap each other; nobody needs more than five levels, and a cycle ends there.
    for _ in range(5):
        if dataset is None:
            return
        yield dataset
        dataset = getattr(dataset, "dataset", None)


def _learn(known: dict[CodeType, StageName], function: object, stage: StageName) -> None:
    members = getattr(function, "transforms", None)
    for part in (function, *(list(members) if isinstance(members, list | tuple) else [])):
        bound = getattr(part, "__func__", part)
        code = getattr(bound, "__code__", None)
        if code is None and part is not None:
            call = type(part).__call__ if callable(part) else None
            code = getattr(call, "__code__", None)
            # A library class, whose `__call__` many objects share, is recognised by its file.
            if code is not None and "site-packages" in code.co_filename:
                code = None
        if code is not None:
            known[code] = stage


def gives_the_same(dataset: Any) -> bool:
    """Tell whether a dataset's first item is the same when it is requested again, so that nothing in it is random."""
    import numpy as np

    try:
        first, again = dataset[0], dataset[0]
        pairs = zip(arrays_of(first), arrays_of(again), strict=True)
        same = [np.array_equal(np.asarray(one), np.asarray(other)) for one, other in pairs]
    except Exception:  # noqa: BLE001 - whatever a dataset raises where nobody else asks it; then nobody knows
        return False
    return bool(same) and all(same)


def named_folder(dataset: Any) -> str | None:
    """Return the folder in a dataset's attributes, as torchvision's have it; otherwise `None`."""
    # torchvision's name for the folder of a dataset.
    roots = (getattr(layer, "root", None) for layer in _layers(dataset))
    return next((str(root) for root in roots if isinstance(root, str | PathLike)), None)


def can_be_staged(folder: str | None) -> bool | None:
    """Tell whether a layout finds a folder's samples; `None` if finding out would take long."""
    if folder is None or is_slow_mount(Path(folder)):
        return None
    count = 0
    for _, _, files in os.walk(folder):
        count += len(files)
        if count > _MOST_FILES:
            return None
    try:
        with tempfile.TemporaryDirectory() as spool, open_tree(Path(folder), spool=Path(spool) / "spool") as tree:
            detect_layout(tree)
    except ColabstageError:
        return False
    return True


def can_be_packed(dataset: Any) -> bool:
    """Tell whether a dataset's items can be packed as they are, judged by the first one."""
    try:
        read_dataset(dataset)
    except Exception:  # noqa: BLE001 - as in gives_the_same
        return False
    return True


def h5_behind(dataset: object) -> str | None:
    """Return the path of an open HDF5 file in the attributes of a dataset or of one that it wraps; `None` without
    one."""
    h5py = sys.modules.get("h5py")
    for layer in _layers(dataset):
        if h5py is None or type(layer).__module__.startswith("colabstage."):
            return None
        for value in vars(layer).values() if hasattr(layer, "__dict__") else ():
            handle = value.file if isinstance(value, h5py.Dataset | h5py.Group) and value.id.valid else None
            if handle is not None:
                with contextlib.suppress(ValueError, OSError):
                    return str(handle.filename)
    return None


def profiled_torch(loader: Any) -> ProfiledLoader:
    """Examine a `DataLoader`."""
    from torch.utils.data import IterableDataset

    if getattr(loader, "_machine", None) is not None:
        return _profiled_ours(loader)
    copied = _copy_loader(loader, {"_iterator": None})

    def close() -> None:
        iterator, copied.__dict__["_iterator"] = copied.__dict__["_iterator"], None
        end_iterator(iterator)

    known = known_stages(loader.dataset)
    _learn(known, loader.collate_fn, "collate")
    workers = loader.num_workers
    # With batch_size=None the dataset's items are returned as they are. They may be batches or single samples, which
    # cannot be told, so a pack might have rows of either kind.
    as_they_are = loader.batch_sampler is None
    setting = Setting(
        "torch",
        workers=workers,
        is_stream=isinstance(loader.dataset, IterableDataset),
        processes=workers > 0,
        prefetch=loader.prefetch_factor or 0,
        persistent=loader.persistent_workers,
        batches=_length(loader),
        h5_file=h5_behind(loader.dataset),
        source=(source := named_folder(loader.dataset)),
    )
    return ProfiledLoader(
        setting,
        start=lambda: iter(copied),
        # Stacks of other processes cannot be sampled, so a copy without processes shows the stages.
        alone=(lambda: iter(_copy_loader(loader, _ALONE))) if workers else None,
        close=close,
        repeats=lambda: gives_the_same(loader.dataset),
        can_stage=lambda: can_be_staged(source),
        can_pack=lambda: not as_they_are and can_be_packed(loader.dataset),
        notes=[_AS_THEY_ARE] if as_they_are else [],
        known=known,
        roots=(loader.dataset, loader.sampler, loader.batch_sampler, loader.generator, loader.collate_fn),
    )


_AS_THEY_ARE = (
    "With batch_size=None each item of the dataset is taken for a batch, its first axis for the samples. If items are "
    "single samples, samples/s and the advice count their rows: give a batch_size= and profile again."
)
_KEPT = (
    "Decoded images are kept for later epochs (loader.plan.keep), so some of what was measured may come from memory. "
    "The first epoch takes longer, and later ones may take less. memory_budget=0 shows decoding alone."
)


def _profiled_ours(loader: Any) -> ProfiledLoader:
    # The copy has its own position, so the loader's does not change.
    plan, copied = loader.plan, copy.copy(loader)
    processes = plan.strategy == "workers"
    setting = Setting(
        "colabstage",
        # If the consumer calls transforms, reading ahead is the smaller part.
        workers=plan.workers.value if processes else int(not loader.dataset.per_sample and plan.workers.value > 0),
        processes=processes,
        prefetch=max(1, plan.prefetch.value),
        persistent=True,
        batches=len(loader),
        strategy=plan.strategy,
    )
    known = known_stages(loader.dataset)
    _learn(known, loader.collate_fn, "collate")
    _learn(known, loader._machine.finish.batch_transform, "transform")
    sampler, source = loader._machine.sampler, loader._machine.source
    asked, kept = sampler.asked, source.kept

    def close() -> None:
        copied.close()
        # Images that were kept before belong to the training loop; others are dropped.
        source.kept = kept
        # The copy shares the sampler, whose state must be as before.
        sampler.asked = asked

    notes = [] if plan.keep is None or not plan.keep.most_bytes else [_KEPT]
    return ProfiledLoader(
        setting,
        start=lambda: iter(copied),
        notes=notes,
        # Without its own machinery it is the plain DataLoader that other frameworks build from it.
        alone=(lambda: iter(_copy_loader(loader, {**_ALONE, "_machine": None}))) if processes else None,
        close=close,
        known=known,
        roots=(loader.dataset.transform, loader.dataset.target_transform, loader._machine.finish.batch_transform),
    )


def _copy_loader(loader: Any, changes: dict[str, Any]) -> Any:
    copied = copy.copy(loader)
    # Bypasses `DataLoader.__setattr__`, which protects the sampler's attributes.
    copied.__dict__.update(changes)
    return copied


def end_iterator(iterator: Iterator[Any] | None) -> None:
    """End an iterator with the threads or processes behind it."""
    for name in ("close", "_shutdown_workers"):
        if callable(end := getattr(iterator, name, None)):
            end()
            return


def profiled_keras(dataset: Any) -> ProfiledLoader:
    """Examine a `PyDataset`."""
    workers, processes = int(dataset.workers), bool(dataset.use_multiprocessing)
    pooled = workers > 1 or (workers > 0 and processes)
    ours = type(dataset).__module__.startswith("colabstage.")
    setting = Setting(
        "keras",
        workers=workers if pooled else int(ours),
        processes=processes and pooled,
        prefetch=max(1, int(dataset.max_queue_size) // max(1, workers)) if pooled else 2 * ours,
        batches=len(dataset),
        strategy=dataset.plan.strategy if ours else None,
        h5_file=h5_behind(dataset),
    )
    return ProfiledLoader(
        setting,
        start=lambda: _pooled(dataset) if pooled else _batches_of(dataset),
        alone=(lambda: _batches_of(dataset)) if processes and pooled else None,
        known=known_stages(dataset),
        repeats=lambda: not ours and gives_the_same(dataset),
        roots=(dataset,),
    )


def _batches_of(dataset: Any) -> Iterator[Any]:
    for number in range(dataset.num_batches):
        yield dataset[number]


def _pooled(dataset: Any) -> Iterator[Any]:
    # The class that `fit` uses; Keras 3 has no public name for it.
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    adapter = PyDatasetAdapter(dataset)
    try:
        yield from adapter._get_iterator()
    finally:
        # Its threads do not end together with the generator.
        if adapter.enqueuer is not None:
            adapter.enqueuer.stop()


def profiled_tf(dataset: Any) -> ProfiledLoader:
    """Examine a `tf.data.Dataset` of batches.

    Its stages run in TensorFlow's threads, which have no Python stacks. But a pipeline is a chain, so each prefix of it
    is measured alone, inside TensorFlow, and the difference to the next prefix is that link's time. The operations in a
    link's function show what it does.

    Iterating over a shuffled dataset advances the seed of its next epoch. So a copy is iterated: the pipeline's graph,
    in which shuffling has its own seed.
    """
    # The pipeline's links, beginning with the source; for links with several inputs, the first input.
    chain = [dataset]
    while inputs := chain[-1]._inputs():
        chain.append(inputs[0])
    chain.reverse()
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
        copied = _rebuilt(dataset)
    except Exception as error:  # noqa: BLE001 - whatever TensorFlow raises for a graph that it cannot serialise
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


def _rebuilt(dataset: Any) -> Any:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.python.data.ops.dataset_ops import _VariantDataset

    # 1: external state, such as that of a Python function, is used as it is.
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
        # Elements of this link for one final batch.
        per_batch = 1
        for other in later:
            per_batch *= int(getattr(other, "_batch_size", 1))
        copied = link
        with contextlib.suppress(Exception):  # as in profiled_tf, which says so
            copied = _rebuilt(link)
        took_s, cpu_s = _time_of(copied, per_batch, seconds / len(links))
        name = type(link).__name__
        stage = _stage(link, name)
        # Measurements scatter: a link that seems to take less than its predecessors takes nothing.
        own_s, own_cpu_s = max(0.0, took_s - before_s), max(0.0, cpu_s - before_cpu_s)
        calls_python = "Generator" in name or (hasattr(link, "_map_func") and bool(_PYTHON & _operations(link)))
        gil_s = min(own_s, own_cpu_s) if python and calls_python else 0.0
        old = costs[stage]
        costs[stage] = (old[0] + own_s, old[1] + own_cpu_s, old[2] + gil_s)
        before_s, before_cpu_s = max(before_s, took_s), max(before_cpu_s, cpu_s)
    return tuple(StageCost(name, *cost) for name, cost in costs.items() if cost[0] > 0)


def _time_of(dataset: Any, per_batch: int, seconds: float) -> tuple[float, float]:
    """Return the seconds, and CPU seconds, of this prefix of the pipeline for one batch."""
    import numpy as np

    # From the difference between a run and one of twice its length, so that one-time work, such as filling buffers,
    # cancels out. Each is the shortest of several, because other work on the machine can only add time.
    deadline = time.monotonic() + seconds
    count = per_batch
    few, _ = _first_elements(dataset, count)
    few()
    many, made = _first_elements(dataset, 2 * count)
    while made == 2 * count and many()[0] < seconds / 8 and time.monotonic() < deadline:
        count *= 2
        few, (many, made) = many, _first_elements(dataset, 2 * count)
    if made < 2 * count:
        # It is shorter: half of it and all of it, in whole batches.
        count = made // (2 * per_batch) * per_batch
        if not count:
            took_s, took_cpu_s = (many() * per_batch / max(1, made)).tolist()
            return took_s, took_cpu_s
        few, many = _first_elements(dataset, count)[0], _first_elements(dataset, 2 * count)[0]
    short, long = few(), many()
    tries = 1
    while tries < _LEAST_TRIES or time.monotonic() < deadline:
        short, long = np.minimum(short, few()), np.minimum(long, many())
        tries += 1
    # One-time work only adds to a run, so a batch costs no more than the mean of either run; if it seems to, something
    # else was running.
    ways = [np.maximum(0, long - short) / count, long / (2 * count), short / count]
    took_s, took_cpu_s = (np.min(ways, axis=0) * per_batch).tolist()
    return took_s, took_cpu_s


def _first_elements(dataset: Any, count: int) -> tuple[Callable[[], NDArray[np.float64]], int]:
    """Return what goes through the first `count` elements of a dataset, all where it has fewer, in TensorFlow, and
    throws them away: it returns the seconds and core seconds, float64 `(2,)`. And how many elements it makes."""
    import numpy as np
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    # They would run a map in as many threads as autotuning currently prefers.
    options.experimental_optimization.apply_default_optimizations = False
    taken = dataset.take(count)
    known = int(taken.cardinality())
    elements = known if known >= 0 else int(taken.reduce(np.int64(0), lambda number, *_: number + 1))
    # Traced here, so that a run contains only the work; in one thread, whatever TensorFlow would choose.
    thrown_away = taken.filter(lambda *_: False).with_options(options)

    def run() -> NDArray[np.float64]:
        began, began_cpu = time.perf_counter(), time.process_time()
        for _ in thrown_away:
            pass
        return np.array([time.perf_counter() - began, time.process_time() - began_cpu])

    return run, elements
