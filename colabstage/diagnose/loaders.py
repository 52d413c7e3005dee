"""What is profiled: any loader, seen as a `View` that starts epochs without moving the loader itself, and its times.

A torch `DataLoader`, stock or colabstage's, is iterated as a copy with its own position and worker processes, and if
these make the batches, a second copy without processes shows the stages. A Keras `PyDataset` is iterated as `fit` does.
"""

from __future__ import annotations

import copy
import math
import os
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.advice import Kind, ProfileFacts
from colabstage.errors import OptionError
from colabstage.io.arguments import refuse_argument
from colabstage.io.callers_code import is_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from colabstage.diagnose.stages import StageName
    from colabstage.io.progress import Clock

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
_SHUFFLED = "Shuffling in the tf.data pipeline has moved on by the epochs that were measured: it cannot be copied."
_KEPT = (
    "Decoded images are kept for later epochs, so some of what was measured may come from memory. The first epoch "
    "takes longer, and later ones may take less. memory_budget=0 shows decoding alone."
)


@dataclass(slots=True)
class View:
    facts: ProfileFacts
    """How it is set up; the times are measured later."""
    start: Callable[[], Iterator[Any]]
    alone: Callable[[], Iterator[Any]] | None = None
    """Starts an epoch whose batches are made in this thread, if the loader's own are made in other processes."""
    close: Callable[[], object] = lambda: None
    known: dict[CodeType, StageName] = field(default_factory=dict)
    roots: tuple[object, ...] = ()
    """The objects whose attributes are restored."""
    notes: tuple[str, ...] = ()


def view_of(loader: object) -> View:
    names = _class_names(loader)
    if "torch.DataLoader" in names:
        return _torch_view(loader)
    if {"keras.PyDataset", "keras.Sequence"} & names:
        return _keras_view(loader)
    # A dataset's samples would be taken for batches, the first side of each for their number.
    gives_samples = "torch.Dataset" in names and "torch.IterableDataset" not in names
    if gives_samples or isinstance(loader, str | Mapping | os.PathLike) or not hasattr(type(loader), "__iter__"):
        remedy = "Pass DataLoader(dataset, 64), or data.loader('train', 64) of what stage_dataset returns."
        refuse_argument("loader", loader, "a loader of batches", remedy=remedy)
    return _iterable_view(loader, is_tf="tensorflow.DatasetV2" in names)


def _class_names(part: object) -> set[str]:
    # By name, so that no framework is imported to find out that a loader is not its.
    return {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(part).__mro__}


def _iterable_view(loader: Any, *, is_tf: bool) -> View:
    ours = type(loader).__module__.startswith("colabstage.")
    # One that is not ours is otherwise taken to work only when it is iterated.
    workers = getattr(loader, "num_threads", 0) or int("Prefetch" in type(loader).__name__ if is_tf else ours)
    kind: Kind = "tf.data" if is_tf else "iterable"
    facts = ProfileFacts(kind, workers=workers, prefetch=2 if workers else 0, batches=_length(loader))
    return View(
        facts,
        lambda: iter(loader),
        known=_known_stages(getattr(getattr(loader, "loader", loader), "dataset", None)),
        roots=() if ours or is_tf else (loader,),
        notes=(_SHUFFLED,) if is_tf else (),
    )


def _torch_view(loader: Any) -> View:
    known = _known_stages(loader.dataset)
    _learn(known, loader.collate_fn, "collate")
    facts = ProfileFacts(
        "torch",
        workers=loader.num_workers,
        prefetch=loader.prefetch_factor or 0,
        persistent=loader.persistent_workers,
        stream="torch.IterableDataset" in _class_names(loader.dataset),
        batches=_length(loader),
    )
    copied = copy.copy(loader)
    if type(loader).__module__.startswith("colabstage."):
        # `loader.dataset` of a subset is torch's own `Subset`.
        own, of_batches = loader._pipeline.form.dataset, loader._pipeline.rest
        _learn(known, of_batches, "transform")
        keeps = loader.plan.keep is not None and loader.plan.keep.value
        # If the loop itself calls transforms, reading ahead is the smaller part.
        threads = int(not loader._pipeline.in_loop)
        return View(
            replace(
                facts,
                kind="colabstage",
                workers=threads,
                persistent=True,
                of_batches=of_batches is not None and not own.per_sample,
            ),
            lambda: iter(copied),
            known=known,
            roots=(own.transform, own.target_transform, of_batches),
            notes=(_KEPT,) if keeps else (),
        )
    _set(copied, {"_iterator": None})

    def close() -> None:
        iterator = copied.__dict__["_iterator"]
        _set(copied, {"_iterator": None})
        end_iterator(iterator)

    return View(
        facts,
        lambda: iter(copied),
        # Stacks of other processes cannot be sampled, so a copy without processes shows the stages.
        alone=(lambda: iter(_set(copy.copy(loader), _ALONE))) if loader.num_workers else None,
        close=close,
        known=known,
        roots=(loader.dataset, loader.sampler, loader.batch_sampler, loader.generator, loader.collate_fn),
    )


def _set(loader: Any, changes: dict[str, Any]) -> Any:
    # Bypasses `DataLoader.__setattr__`, which protects the sampler's attributes.
    loader.__dict__.update(changes)
    return loader


def end_iterator(iterator: Iterator[Any] | None) -> None:
    for name in ("close", "_shutdown_workers"):
        if callable(end := getattr(iterator, name, None)):
            end()
            return


def _keras_view(dataset: Any) -> View:
    workers, processes = int(dataset.workers), bool(dataset.use_multiprocessing)
    pooled = workers > 1 or (workers > 0 and processes)
    ours = type(dataset).__module__.startswith("colabstage.")
    ahead = max(1, int(dataset.max_queue_size) // max(1, workers)) if pooled else 2 * ours

    def in_turn() -> Iterator[Any]:
        return map(dataset.__getitem__, range(len(dataset)))

    return View(
        ProfileFacts("keras", workers=workers if pooled else int(ours), prefetch=ahead, batches=len(dataset)),
        (lambda: _pooled(dataset)) if pooled else in_turn,
        alone=in_turn if processes and pooled else None,
        known=_known_stages(dataset),
        roots=(dataset,),
    )


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


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _known_stages(dataset: object) -> dict[CodeType, StageName]:
    """Return the transforms in the attributes of a dataset, including wrapped ones."""
    known: dict[CodeType, StageName] = {}
    # Subsets and concatenations wrap each other; nobody needs more than five levels, and a cycle ends there.
    for _ in range(5):
        for name in ("transform", "target_transform", "transforms", "augment"):
            _learn(known, getattr(dataset, name, None), "transform")
        dataset = getattr(dataset, "dataset", None)
    return known


def _learn(known: dict[CodeType, StageName], function: object, stage: StageName) -> None:
    members = getattr(function, "transforms", None)
    for part in (function, *(members if isinstance(members, list | tuple) else ())):
        code = getattr(getattr(part, "__func__", part), "__code__", None)
        if code is None and callable(part):
            code = getattr(type(part).__call__, "__code__", None)
        # The `__call__` of a library's class is shared by many objects.
        if code is not None and not is_installed(type(part).__module__, code.co_filename):
            known[code] = stage


def arrays_of(batch: Any) -> Iterator[Any]:
    """Yield the arrays and tensors in a batch of nested tuples, lists and mappings."""
    if hasattr(batch, "nbytes") and hasattr(batch, "shape"):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from arrays_of(part)
    elif hasattr(batch, "shape") and hasattr(batch, "numpy"):
        yield batch.numpy()  # TensorFlow's tensors do not give their size


def batch_size_of(batch: Any) -> tuple[int, int]:
    """Return the number of samples in a batch, as its last part has it (images of different sizes come as a list), and
    the bytes of all its arrays."""
    parts: list[Any] = list(batch) if isinstance(batch, list | tuple) else [batch]
    last = parts[-1] if parts else None
    last = next(iter(last.values()), None) if isinstance(last, Mapping) else last
    shape: Any = getattr(last, "shape", ())
    count = len(last) if isinstance(last, list | tuple) else int(shape[0]) if len(shape) else 1
    return count, sum(int(array.nbytes) for array in arrays_of(batch))


# How long the batches take, alone or with a training step, by a few readings of the clock for each.

LEAST_BATCHES = 3
# In epochs of one or two batches most are an epoch's first, which do not count, so epochs are limited too.
_MOST_EPOCHS = 20
# How many batches are examined to find a full one: an epoch's last one may have fewer samples.
_EXAMINED = 16


class Feed:
    """Batches of consecutive epochs; `first` tells whether the last one was its epoch's first."""

    def __init__(self, start: Callable[[], Iterator[Any]], clock: Clock) -> None:
        self.first = False
        self.first_s = array("d")
        """How long each epoch took to its first batch."""
        self.now = clock.now
        self._start = start
        self._iterator: Iterator[Any] | None = None

    def take(self) -> Any:
        if self._iterator is not None:
            try:
                batch = next(self._iterator)
            except StopIteration:
                # Persistent workers go on with the next epoch, which fails once they have been ended.
                if getattr(self._iterator, "_persistent_workers", False):
                    self._iterator = None
                self.close()
            else:
                self.first = False
                return batch
        began = self.now()
        self._iterator = self._start()
        try:
            batch = next(self._iterator)
        except StopIteration:
            msg = (
                "The loader has no batches, or can be iterated only once, so there is nothing to measure. Check its "
                "dataset and its sampler; in place of an iterator pass what it iterates over."
            )
            raise OptionError(msg) from None
        self.first = True
        self.first_s.append(self.now() - began)
        return batch

    def close(self) -> None:
        iterator, self._iterator = self._iterator, None
        end_iterator(iterator)


def time_alone(feed: Feed, seconds: float) -> tuple[float, Any]:
    """Take batches; return the mean time of those that were not an epoch's first, and a full one."""
    gaps, whole, most, taken = array("d"), None, -1, 0
    deadline = feed.now() + seconds
    while len(gaps) < LEAST_BATCHES or feed.now() < deadline:
        began = feed.now()
        batch = feed.take()
        taken += 1
        if not feed.first:
            gaps.append(feed.now() - began)
        elif taken > 1 and feed.now() > deadline:
            break  # epochs of one or two batches
        # Between two measurements. The other batches are released, because their memory may be reused.
        if taken <= _EXAMINED and (samples := batch_size_of(batch)[0]) > most:
            whole, most = batch, samples
        del batch
    # If an epoch is one batch, all are first ones; the very first also opened files and started threads.
    kept = gaps or feed.first_s[1:] or feed.first_s
    return sum(kept) / len(kept), whole


@dataclass(frozen=True, slots=True)
class Shares:
    """The mean seconds from batch to batch in a loop: waiting for the next one, and in the step."""

    wait_s: float
    busy_s: float
    gave_up: bool = False

    @property
    def both_s(self) -> float:
        return self.wait_s + self.busy_s


def time_loop(
    feed: Feed,
    step: Callable[[Any], object],
    seconds: float,
    *,
    ahead: int,
    with_starts: bool,
    give_up_s: float = math.inf,
) -> Shares:
    """Take batches and do the step with each, as a training loop does, until the mean exceeds `give_up_s`.

    `ahead` batches were prepared in advance, and do not count if enough others are left. `with_starts`: whether the
    first batch of an epoch counts, for which a loader may have to start threads or processes.
    """
    waits, busy = array("d"), array("d")
    firsts, now, began = 0, feed.now, feed.now()
    gave_up = False
    while not gave_up and (len(busy) < LEAST_BATCHES or now() - began < seconds):
        asked = now()
        batch = feed.take()
        given = now()
        step(batch)
        done = now()
        del batch
        firsts += feed.first
        if not feed.first or with_starts:
            waits.append(given - asked)
            busy.append(done - given)
        # Not at once: the first batches may have waited for threads to start.
        fair = len(busy) > LEAST_BATCHES and done - began > seconds / 4
        gave_up = fair and sum(waits) + sum(busy) > give_up_s * len(busy)
        if firsts > _MOST_EPOCHS and done - began > seconds:
            break
    synchronise()
    first = ahead if len(busy) > 3 * ahead else len(busy) // 3
    wait_s, busy_s = (sum(some[first:]) / max(1, len(some) - first) for some in (waits, busy))
    return Shares(wait_s, busy_s, gave_up)


def time_step(step: Callable[[Any], object], batch: Any, seconds: float, clock: Clock) -> float:
    """Return the mean seconds of the step, repeated with one batch."""
    # CUDA returns before the work is done; without waiting here, an earlier queue would be measured.
    synchronise()
    count, began = 0, clock.now()
    while count < LEAST_BATCHES or clock.now() - began < seconds:
        step(batch)
        count += 1
    synchronise()
    return (clock.now() - began) / count


def synchronise() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
