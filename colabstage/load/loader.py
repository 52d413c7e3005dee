"""`make_loader`: batches as tensors, prepared by threads of this process while the model computes."""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import torch

from colabstage.errors import OptionError
from colabstage.load.ahead import Ahead
from colabstage.load.batches import Ragged, host_batches, move_to, scale_to
from colabstage.load.buffers import BufferPool
from colabstage.load.dataset import dataset_h5
from colabstage.load.devices import usable_device
from colabstage.load.order import epoch_order
from colabstage.load.plan import LoaderFacts, LoaderRequest, choose_loader
from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from colabstage.load.plan import LoaderPlan, Strategy


def make_loader(
    dataset: dataset_h5,
    batch_size: int,
    *,
    device: str | torch.device | None = None,
    strategy: Strategy = "auto",
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    batch_transform: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    dtype: torch.dtype | None = None,
    num_workers: int | Literal["auto"] = "auto",
    prefetch: int | Literal["auto"] = "auto",
    ragged: Ragged = "list",
) -> Loader:
    """Make batches of a dataset, the fastest way this machine has; `loader.plan` says which and why.

    >>> loader = make_loader(dataset_h5("data.h5"), 64, device="cuda", dtype=torch.float32)  # doctest: +SKIP
    >>> for x, y in loader:  # doctest: +SKIP
    ...     train_step(x, y)

    A batch is `(x, y)`, or `((x, y), index)` for a dataset with `return_index`:

    - `x`: `(B, C, H, W)` for images, in `channels_last` memory, of the stored dtype (uint8) or of `dtype`. Inputs that
      are no images (three axes, the last at most 4 long) keep their axes. Encoded images of many sizes are a list of
      tensors `(C, H, W)`.
    - `y`: int64 `(B,)` where targets are integers, otherwise as stored; masks uint8 `(B, H, W)`. Boxes are a list of B
      dicts of tensors, as torchvision's detection models take them, or one dict of padded ones.
    - `index`: int64 `(B,)`, the rows.

    Each batch is the caller's own: it may be kept and changed. Its memory is used again once nothing refers to it.

    Args:
        dataset: the samples. Its transforms, where it has any, are called sample by sample in the background thread,
            and batches are then what torch's `default_collate` makes of the results.
        batch_size: samples in a batch; the last one of an epoch may have fewer.
        device: where batches end up; `None` is the memory of this computer.
        strategy: `"direct"` reads each batch out of the file. `"memory"` reads all inputs now, front to back, and
            batches from memory, which the loader keeps as long as it lives. `"auto"` takes memory where the file can
            only be read through HDF5 (compressed, chunked, on a mounted Drive) and half of what is free is enough.
        shuffle: visit the samples in a random order, another one each epoch.
        seed: what that order depends on, together with the epoch.
        drop_last: leave out a last batch that is not full.
        batch_transform: called with `(x, y)` of each batch, on the device, after `dtype`; returns the new `(x, y)`.
        dtype: floating-point dtype of x, converted on the device; uint8 and uint16 become [0, 1].
        num_workers: threads that copy or decode at once. They are threads of this process, not processes.
        prefetch: batches prepared ahead.
        ragged: what boxes are: `"list"` for a list of dicts, `"pad"` for one dict of `boxes` `(B, M, 4)`, `labels`
            `(B, M)` filled up with -1, and so on, with `lengths` `(B,)`.

    Raises:
        OptionError: an argument that cannot work.
        NotEnoughSpaceError: with `strategy="memory"`, when the inputs do not fit; nothing has been read.
    """
    _check_dataset(dataset)
    seed = _whole("seed", seed)
    if dtype is not None and not dtype.is_floating_point:
        msg = f"dtype={dtype} is not a floating-point dtype; leave it out for batches as they are stored."
        raise OptionError(msg)
    if ragged not in get_args(Ragged):
        msg = f"ragged={ragged!r} is unknown; expected one of {', '.join(get_args(Ragged))}."
        raise OptionError(msg)
    request = LoaderRequest(batch_size, strategy, drop_last, num_workers, prefetch)
    plan = choose_loader(_facts(dataset), request)
    finish = _Finish(None if device is None else usable_device(device), dtype, batch_transform)
    return Loader(dataset, plan, finish, shuffle=shuffle, seed=seed, ragged=ragged)


def _check_dataset(dataset: object) -> None:
    if not isinstance(dataset, dataset_h5):
        msg = (
            f"make_loader needs a dataset_h5, got {type(dataset).__name__}. For other datasets use "
            "torch.utils.data.DataLoader."
        )
        raise OptionError(msg)


def _facts(dataset: dataset_h5) -> LoaderFacts:
    resources = read_resources()
    return LoaderFacts(
        rows=len(dataset),
        row_bytes=dataset.reader.estimate_row_bytes(),
        stored_bytes=dataset.reader.stored_bytes,
        engine=dataset.engine,
        encoded=dataset.reader.encoded,
        per_sample=dataset.transform is not None or dataset.target_transform is not None,
        cores=resources.cores,
        free_memory_bytes=resources.free_memory_bytes,
    )


def _in_memory(dataset: dataset_h5) -> dataset_h5:
    """The same dataset over memory. A copy: the caller's goes on reading from the file, and keeps none of it."""
    source = copy.copy(dataset)
    source.reader = dataset.reader.into_memory()
    return source


@dataclass(frozen=True, slots=True)
class _Finish:
    """What happens to a batch when the consumer takes it."""

    device: torch.device | None
    dtype: torch.dtype | None
    batch_transform: Callable[[Any, Any], tuple[Any, Any]] | None

    def __call__(self, x: Any, y: Any) -> tuple[Any, Any]:
        if self.device is not None:
            x, y = move_to(x, self.device), move_to(y, self.device)
        if self.dtype is not None:
            x = scale_to(x, self.dtype)
        return (x, y) if self.batch_transform is None else self.batch_transform(x, y)


@dataclass(slots=True)
class _Place:
    """How far an epoch has been handed out."""

    epoch: int
    batches_done: int


class Loader:
    """Iterates over batches; each iteration is the next epoch. Made by `make_loader`.

    One iteration runs at a time: a new one ends the one before, whose next step is then an error. Leaving a loop
    early, by `break` or an exception, ends the background threads with it.

    Attributes:
        plan: how batches are loaded, and why.
        dataset: where from.
    """

    def __init__(
        self, dataset: dataset_h5, plan: LoaderPlan, finish: _Finish, *, shuffle: bool, seed: int, ragged: Ragged
    ) -> None:
        self.dataset = dataset
        self.plan = plan
        self._source = _in_memory(dataset) if plan.strategy == "memory" else dataset
        self._finish = finish
        self._shuffle = shuffle
        self._seed = seed
        self._ragged = ragged
        self._place = _Place(0, 0)
        self._next = _Place(0, 0)
        # One block with the consumer, one in the making, the others in between.
        self._pool = BufferPool(max_idle=plan.prefetch.value + 2)
        self._running: weakref.ref[_Epoch] | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self.plan.batches

    def __iter__(self) -> Iterator[Any]:
        """Start the next epoch, or go on where `load_state_dict` said."""
        self.close()
        self._place, self._next = self._next, _Place(self._next.epoch + 1, 0)
        epoch = _Epoch(self, self._place, self._batches(self._place))
        self._running = weakref.ref(epoch)
        return epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`, from its first batch.

        Raises:
            OptionError: a negative number, or none.
        """
        self._next = _Place(_whole("epoch", epoch), 0)
        self._place = self._next

    def state_dict(self) -> dict[str, int]:
        """Where the loader is: seed, epoch and batches handed out, and what else a resumed loader must share.

        Taken inside the loop, the batch at hand counts as done.
        """
        place = self._place
        if place.batches_done >= len(self) > 0:
            place = _Place(place.epoch + 1, 0)
        return {**self._identity(), "epoch": place.epoch, "batches_done": place.batches_done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next iteration go on exactly where `state_dict` was taken.

        Raises:
            OptionError: the state is of a loader with another seed, batch size, order or number of samples.
        """
        for name, here in self._identity().items():
            if state.get(name) != here:
                msg = f"This state has {name}={state.get(name)!r}, the loader has {here!r}; both must be the same."
                raise OptionError(msg)
        done = _whole("batches_done", state.get("batches_done"))
        if done > len(self):
            msg = f"This state has batches_done={done}, but an epoch has {len(self)} batches."
            raise OptionError(msg)
        self._next = _Place(_whole("epoch", state.get("epoch")), done)
        self._place = self._next

    def close(self) -> None:
        """End the iteration that runs, if one does. The loader can be iterated again."""
        epoch = None if self._running is None else self._running()
        self._running = None
        if epoch is not None:
            epoch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Loader of {self.dataset!r}\n  {self.plan}"

    def _repr_html_(self) -> str:
        return f"<b>Loader</b> {escape(str(self.plan))}<br>{self.dataset._repr_html_()}"

    def _identity(self) -> dict[str, int]:
        return {
            "seed": self._seed,
            "shuffle": int(self._shuffle),
            "batch_size": self.plan.batch_size,
            "samples": len(self.dataset),
        }

    def _batches(self, place: _Place) -> list[NDArray[np.intp]]:
        """Rows of the batches that are left of an epoch."""
        order = epoch_order(len(self.dataset), shuffle=self._shuffle, seed=self._seed, epoch=place.epoch)
        size = self.plan.batch_size
        return [order[number * size : (number + 1) * size] for number in range(place.batches_done, len(self))]


class _Epoch:
    """One running iteration. Holds nothing of the loader but what it needs, so that either may be dropped first."""

    def __init__(self, loader: Loader, place: _Place, batches: list[NDArray[np.intp]]) -> None:
        self._place = place
        self._finish = loader._finish
        self._rows = iter(batches) if loader.dataset.return_index else None
        self._closed = False
        workers, prefetch = loader.plan.workers.value, loader.plan.prefetch.value
        source = host_batches(loader._source, batches, workers=workers, pool=loader._pool, ragged=loader._ragged)
        self._ahead = Ahead(source, prefetch, "colabstage-loader")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._closed:
            msg = "This iteration was ended, by a newer one over the same loader or by close(). Start a new one."
            raise RuntimeError(msg)
        x, y = next(self._ahead)
        batch = self._finish(x, y)
        self._place.batches_done += 1
        if self._rows is None:
            return batch
        index = torch.from_numpy(next(self._rows).copy())
        return batch, index if self._finish.device is None else index.to(self._finish.device)

    def close(self) -> None:
        """End the threads."""
        self._closed = True
        self._ahead.close()


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        msg = f"{name}={value!r} cannot work; expected a whole number, 0 or more."
        raise OptionError(msg)
    return value
