"""Have any loader's batches on the device by the time that the model asks for them: `CudaDataLoader`.

With T1 seconds to load a batch and T2 to train on it, a batch costs max(T1, T2) instead of T1 + T2.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from colabstage.errors import OptionError
from colabstage.load.batches import map_leaves
from colabstage.load.device import make_stager, prefetch_staged, usable_device
from colabstage.load.prefetch import Iterated, Iteration

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

T = TypeVar("T")


class CudaDataLoader(Iterated, Generic[T]):
    """Run a loader in a background thread and move its batches to a device, a few ahead of the model.

    >>> for x, y in CudaDataLoader(DataLoader(dataset, 64), "cuda"):  # doctest: +SKIP
    ...     train_step(x, y)

    A batch may nest lists, tuples, named tuples and mappings; every tensor in it arrives on the device with its dtype,
    shape and memory format, detached from any graph. What has a method `to` of its own (`PackedSequence`) is moved by
    that when it is handed out; everything else stays as it is. The loader needs no `pin_memory`: copies start from
    pinned memory of our own. On a CPU device batches are only prepared ahead. A loader may fill the same memory for
    each batch: arrays, and tensors that are on the device already, are copied where it is not a `DataLoader` that makes
    new ones.

    Each batch is the caller's own and may be used on the stream that is current when it is taken. On the device
    `queue_size` batches wait, one is on its way, and those are kept that the caller keeps.

    One iteration runs at a time: a new one ends the one before. Leaving a loop early, by `break` or an exception, ends
    the thread with it. An error in the loader is raised in the loop, with its traceback, after the batches before it.

    Attributes:
        loader: where batches come from.
        device: where they go.
    """

    def __init__(self, loader: Iterable[T], device: str | torch.device, queue_size: int = 2) -> None:
        """Look at the arguments; nothing is loaded yet.

        Args:
            loader: any iterable of batches, such as a `DataLoader`; iterated anew in each iteration.
            device: where batches go: `"cuda"`, `"cuda:1"`, `"cpu"`, …
            queue_size: batches that wait on the device, 1 or more.

        Raises:
            OptionError: there is no such device here, or an argument that cannot work.
        """
        # Before the device is touched, which may take seconds the first time.
        _check(loader, queue_size)
        self.loader = loader
        self.device = usable_device(device)
        self._queue_size = queue_size
        # One for all iterations: its stream and its pinned memory are made once.
        self._stager = make_stager(self.device)

    def __len__(self) -> int:
        """Count the batches in an iteration.

        Raises:
            TypeError: the loader does not know.
        """
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        """Start the next iteration; the loader's own begins here, in the caller's thread."""
        # Two iterations would fill the same pinned memory.
        self._end_iterations()
        # Before our thread is there: worker processes that a loader forks should inherit no locks from it.
        batches = iter(self.loader)
        own = None if _gives_new_batches(self.loader) else partial(_own, self.device)
        source = _taken(batches, own, owned=batches is not self.loader)
        return self._begun(
            Iteration(prefetch_staged(source, self._stager, self._queue_size, "colabstage-cuda"), self._stager.hand_out)
        )

    def __repr__(self) -> str:
        return f"CudaDataLoader({self.loader!r}, device='{self.device}', queue_size={self._queue_size})"


def _check(loader: object, queue_size: object) -> None:
    # Anything with __getitem__ may be iterable too, by counting up from 0.
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        msg = f"loader={loader!r} cannot be iterated over; expected a loader of batches."
        raise OptionError(msg)
    if not isinstance(queue_size, int) or isinstance(queue_size, bool) or queue_size < 1:
        msg = f"queue_size={queue_size!r} cannot work; expected a whole number, 1 or more."
        raise OptionError(msg)


def _gives_new_batches(loader: Any) -> bool:
    """Tell whether each batch has memory of its own for certain: batches of a `DataLoader` that stacks samples, or
    whose processes send them. Any other loader may fill the same memory again while a batch waits."""
    # Nobody can know what another class keeps, and a copy costs less than a wrong batch.
    if not isinstance(loader, DataLoader):
        return False
    if loader.num_workers > 0 or type(loader).__module__.startswith("colabstage."):
        return True
    stacked: Any = default_collate
    return loader.collate_fn is stacked and getattr(loader, "batch_sampler", None) is not None


def _own(device: torch.device, leaf: Any) -> Any:
    """Return a part of a batch that stays what it is when its loader fills its memory again. What is copied on its way
    to the device anyway, before the loader is asked for more, is left."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    if not isinstance(leaf, torch.Tensor):
        return leaf
    index: Any = device.index
    there = leaf.device.type == device.type and (index is None or leaf.device.index == index)
    # Pinned memory is copied from later.
    return leaf.detach().clone() if there or leaf.is_pinned() else leaf


def _taken(batches: Iterator[T], own: Callable[[Any], Any] | None, *, owned: bool) -> Generator[T]:
    """Yield the batches of an iterator, made our own by `own`; one that was made for this is closed at the end, if it
    can be."""
    try:
        yield from batches if own is None else map(partial(map_leaves, change=own), batches)
    finally:
        # A generator's own clean-up runs now, not whenever it is collected.
        close: Any = getattr(batches, "close", None)
        if owned and callable(close):
            close()
