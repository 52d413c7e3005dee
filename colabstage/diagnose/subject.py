"""What is profiled: any loader, seen as something that starts epochs and tells how it is set up."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.costs import arrays_of
from colabstage.diagnose.facts import Setting
from colabstage.errors import ColabstageError, OptionError
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.items import read_dataset
from colabstage.machine.mounts import is_slow_mount
from colabstage.trees.open import open_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from colabstage.diagnose.facts import StageCost, StageName


# Reading the annotations of more takes longer than an answer is worth.
_MOST_FILES = 2_000


@dataclass(slots=True)
class Subject:
    """A loader to profile.

    `start`: begins an epoch. `alone`: begins one whose batches are made in this thread, where the loader's own are made
    in other processes. `close`: ends what the loader keeps between epochs. `known`: stages of functions. `roots`: whose
    attributes are put back. `stages`: measures the stages, within so many seconds, where stacks do not tell them.
    `repeats`: looks whether a sample is the same each time, `can_stage` and `can_pack` as in `Setting`.
    `consumer_seen`: whether the consumer's stack tells stages.
    `once`: whether it can be iterated only once.
    """

    setting: Setting
    start: Callable[[], Iterator[Any]]
    alone: Callable[[], Iterator[Any]] | None = None
    close: Callable[[], object] = lambda: None
    known: dict[CodeType, StageName] = field(default_factory=dict)
    roots: tuple[object, ...] = ()
    stages: Callable[[float], tuple[StageCost, ...]] | None = None
    repeats: Callable[[], bool] = lambda: False
    can_stage: Callable[[], bool | None] = lambda: None
    can_pack: Callable[[], bool] = lambda: False
    consumer_seen: bool = True
    once: bool = False
    notes: list[str] = field(default_factory=list)


def subject_of(loader: object) -> Subject:
    """Find out whose loader this is.

    Raises:
        OptionError: it cannot be iterated over.
    """
    names = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(loader).__mro__}
    if "torch.DataLoader" in names:
        from colabstage.diagnose.subject_torch import torch_subject

        return torch_subject(loader)
    if {"keras.PyDataset", "keras.Sequence"} & names:
        from colabstage.diagnose.subject_keras import keras_subject

        return keras_subject(loader)
    if "tensorflow.DatasetV2" in names:
        from colabstage.diagnose.subject_tf import tf_subject

        return tf_subject(loader)
    return _iterable_subject(loader)


def _iterable_subject(loader: Any) -> Subject:
    if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
        msg = f"loader={loader!r} cannot be iterated over; expected a loader of batches."
        raise OptionError(msg)
    inner = getattr(loader, "loader", None)
    ours = type(loader).__module__.startswith("colabstage.")
    once = hasattr(type(loader), "__next__")
    workers = _count(loader, "num_workers") or _count(loader, "num_threads") or (1 if ours else 0)
    setting = Setting("iterable", workers=workers, prefetch=2 if workers else 0, batches=_length(loader))
    known = known_stages(getattr(inner, "dataset", None), getattr(loader, "dataset", None))
    subject = Subject(setting, lambda: iter(loader), known=known, once=once, roots=() if ours else (loader,))
    if once:
        subject.roots = ()
        subject.notes.append("The loader can be iterated only once: the batches that were measured are gone from it.")
    return subject


def _count(owner: object, name: str) -> int:
    value = getattr(owner, name, 0)
    return value if isinstance(value, int) else 0


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def known_stages(*datasets: object) -> dict[CodeType, StageName]:
    """The transforms and loading functions that datasets name, also inside of what wraps them."""
    known: dict[CodeType, StageName] = {}
    for dataset in datasets:
        layer, depth = dataset, 0
        while layer is not None and depth < 5:
            for name in ("transform", "target_transform", "transforms", "transform_fn", "augment"):
                _note(known, getattr(layer, name, None), "transform")
            layer, depth = getattr(layer, "dataset", None), depth + 1
    return known


def _note(known: dict[CodeType, StageName], function: object, stage: StageName) -> None:
    for part in (function, *_members(function)):
        bound = getattr(part, "__func__", part)
        code = getattr(bound, "__code__", None)
        if code is None and part is not None:
            call = type(part).__call__ if callable(part) else None
            code = getattr(call, "__code__", None)
            # A class from a library, whose `__call__` many objects share, is told by its file.
            if code is not None and "site-packages" in code.co_filename:
                code = None
        if code is not None:
            known[code] = stage


def note_collate(known: dict[CodeType, StageName], function: object) -> None:
    """Take note of what makes batches of samples."""
    _note(known, function, "collate")


def _members(function: object) -> list[object]:
    members = getattr(function, "transforms", None)
    return list(members) if isinstance(members, list | tuple) else []


def gives_the_same(dataset: Any) -> bool:
    """Whether a dataset's first item is the same when it is asked for again: nothing in it is drawn at random."""
    import numpy as np

    try:
        first, again = dataset[0], dataset[0]
        pairs = zip(arrays_of(first), arrays_of(again), strict=True)
        same = [np.array_equal(np.asarray(one), np.asarray(other)) for one, other in pairs]
    except Exception:  # noqa: BLE001 - whatever a dataset raises where nobody else asks it; then nobody knows
        return False
    return bool(same) and all(same)


def source_of(dataset: Any) -> str | None:
    """The folder that a dataset says it is of, as torchvision's do; `None` of others."""
    layer = dataset
    for _ in range(5):
        root = getattr(layer, "root", None)
        if isinstance(root, str | PathLike):
            return str(root)
        layer = getattr(layer, "dataset", None)
    return None


def can_be_staged(folder: str | None) -> bool | None:
    """Whether a folder's samples are found by a layout; `None` where that would take long to find out."""
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
    """Whether a dataset's items, by the look of the first, can be packed as they are."""
    try:
        read_dataset(dataset)
    except Exception:  # noqa: BLE001 - as in gives_the_same
        return False
    return True


def h5_behind(dataset: object) -> str | None:
    """The path of an HDF5 file that a dataset, or what it wraps, has open as an attribute; `None` without one."""
    h5py = sys.modules.get("h5py")
    layer: Any = dataset
    for _ in range(5):
        if layer is None or h5py is None or type(layer).__module__.startswith("colabstage."):
            return None
        for value in vars(layer).values() if hasattr(layer, "__dict__") else ():
            handle = value.file if isinstance(value, h5py.Dataset | h5py.Group) and value.id.valid else None
            if handle is not None:
                with contextlib.suppress(ValueError, OSError):
                    return str(handle.filename)
        layer = getattr(layer, "dataset", None)
    return None
