"""A torch `DataLoader`, stock or ours, as something to profile.

What is iterated is a shallow copy: it shares dataset, sampler and functions, but has its own iterator, its own worker
processes and, if it is ours, its own place in training. Where batches are made in processes, which cannot be looked
into from here, a second copy without processes shows the stages.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.facts import Setting
from colabstage.diagnose.subject import (
    Subject,
    can_be_packed,
    can_be_staged,
    gives_the_same,
    h5_behind,
    known_stages,
    note_collate,
    source_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# What a DataLoader that makes its batches itself has in these places.
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


def torch_subject(loader: Any) -> Subject:
    """Look at a `DataLoader`."""
    machine = getattr(loader, "_machine", None)
    copied = _copy(loader, {"_iterator": None})
    if machine is not None:
        # Places move on as batches are handed out, so the copy has its own.
        places = {"_running": None, "_done": copy.copy(loader._done), "_next": copy.copy(loader._next)}
        return _our_subject(loader, _copy(loader, places))
    known = known_stages(loader.dataset)
    note_collate(known, loader.collate_fn)
    workers = loader.num_workers
    setting = Setting(
        "torch",
        workers=workers,
        processes=workers > 0,
        prefetch=loader.prefetch_factor or 0,
        persistent=loader.persistent_workers,
        batches=_batches(loader),
        h5_file=h5_behind(loader.dataset),
        source=(source := source_of(loader.dataset)),
    )
    return Subject(
        setting,
        start=lambda: iter(copied),
        alone=(lambda: iter(_copy(loader, _ALONE))) if workers else None,
        close=lambda: _end(copied),
        repeats=lambda: gives_the_same(loader.dataset),
        can_stage=lambda: can_be_staged(source),
        can_pack=lambda: can_be_packed(loader.dataset),
        known=known,
        roots=(loader.dataset, loader.sampler, loader.batch_sampler, loader.generator, loader.collate_fn),
    )


def _our_subject(loader: Any, copied: Any) -> Subject:
    plan = loader.plan
    processes = plan.strategy == "workers"
    setting = Setting(
        "colabstage",
        # Where the consumer calls transforms, what is read ahead is the smaller part.
        workers=plan.workers.value if processes else int(not loader.dataset.per_sample),
        processes=processes,
        prefetch=max(1, plan.prefetch.value),
        persistent=True,
        batches=len(loader),
        strategy=plan.strategy,
    )
    known = known_stages(loader.dataset)
    note_collate(known, loader.collate_fn)
    for function in (getattr(loader._machine.finish, "batch_transform", None),):
        if (code := getattr(function, "__code__", None)) is not None:
            known[code] = "transform"
    sampler = loader._machine.sampler
    asked = sampler.asked

    def close() -> None:
        copied.close()
        sampler.asked = asked

    return Subject(
        setting,
        start=lambda: iter(copied),
        # Without its machine it is the plain DataLoader that other frameworks build of it.
        alone=(lambda: iter(_copy(loader, {**_ALONE, "_machine": None}))) if processes else None,
        close=close,
        known=known,
        roots=(loader.dataset.transform, loader.dataset.target_transform, loader._machine.finish.batch_transform),
    )


def _copy(loader: Any, changes: dict[str, Any]) -> Any:
    copied = copy.copy(loader)
    # Past `DataLoader.__setattr__`, which guards what belongs to the sampler.
    copied.__dict__.update(changes)
    return copied


def _batches(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _end(loader: Any) -> None:
    iterator, loader.__dict__["_iterator"] = loader.__dict__.get("_iterator"), None
    end_iterator(iterator)


def end_iterator(iterator: Iterator[Any] | None) -> None:
    """End an iterator with the threads or processes behind it."""
    for name in ("close", "_shutdown_workers"):
        if callable(end := getattr(iterator, name, None)):
            end()
            return
