"""Batches on a device: copies that overlap with the model's work there, and whole splits that live there.

Copies are built on a `CopyStream`, the few operations of a CUDA stream and its events that they need. Tests drive the
same code with one that copies late, in a thread, on any machine.

Copies go to one stream for as long as the object lives. Four things make them safe:

- That stream first waits for all that the consumer had begun when an iteration starts: batches may be made from it.
- Pinned memory is used in turns: an event, recorded after the copies out of it, is awaited before it is filled again,
  and batches that came pinned are kept until theirs is reached.
- The consumer's stream waits for an event, recorded after the batch's copies, before the batch is handed out.
- Everything handed out is recorded on the consumer's stream, so the allocator gives its memory to no later batch
  while kernels that the consumer has queued still read it. The copying stream need not wait for them.

Rows of a split on the device are kept and gathered as words of up to eight bytes: a gather of single bytes would use a
fraction of a GPU's memory bandwidth.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from colabstage.errors import MissingDependencyError, OptionError
from colabstage.load.batches import host_batches, is_image, map_leaves, moves_itself
from colabstage.load.prefetch import Heartbeat, Prefetcher
from colabstage.load.reading.memory import BufferPool

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from colabstage.io.progress import Cancellation
    from colabstage.load.dataset import dataset_h5

try:
    import torch
except ImportError as error:
    _msg = "CudaDataLoader and make_loader need torch. Install it with: pip install torch"
    raise MissingDependencyError(_msg) from error


def usable_device(device: str | torch.device) -> torch.device:
    """The device of that name, with its number where there may be several.

    Raises:
        OptionError: there is no such device here.
    """
    try:
        # An empty tensor is there at once, and on the device that "cuda" without a number means now, in this thread.
        return torch.empty(0, device=torch.device(device)).device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        msg = f"device={str(device)!r} cannot be used here ({reason}). On Colab choose Runtime, Change runtime type."
        raise OptionError(msg) from error


def free_device_memory(device: torch.device) -> int | None:
    """Bytes of a CUDA device that this process may still take, what torch holds ready there included; `None` for
    devices that share this computer's memory or do not tell."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + int(idle)


class CopyEvent(Protocol):
    """A point in a lane's work."""

    def synchronize(self) -> None:
        """Wait, in the calling thread, until the work up to here is done."""


class CopyStream(Protocol):
    """Work for one device, done in order, beside the consumer's own. Its methods only put work there."""

    pinned: bool
    """Whether host memory must be pinned for its copies to be asynchronous."""

    def takes(self, host: torch.Tensor) -> bool:
        """Whether copies of this tensor are asynchronous as it is, without a stop in pinned memory."""

    def follow(self) -> None:
        """Let what comes from now on wait for all that the caller's own stream was given so far."""

    def entered(self) -> AbstractContextManager[object]:
        """A context in which this thread's device work goes onto the lane."""

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        """Begin to copy, in a new tensor on the device, what must stay unchanged in the host's memory until then."""

    def mark(self) -> CopyEvent:
        """The point after all that was put here so far."""

    def lead(self, mark: CopyEvent) -> None:
        """Let the caller's own stream wait for a point of this lane."""

    def used(self, tensor: torch.Tensor) -> None:
        """Say that the caller's own stream uses a tensor that was made on this lane."""


class CudaCopyStream:
    """A side stream of a CUDA device, one for the object's life.

    A new stream each epoch would strand the memory that torch's allocator keeps for the old one.
    """

    pinned = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def takes(self, host: torch.Tensor) -> bool:
        return host.is_pinned()

    def follow(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def entered(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(host, device=self._device).copy_(host, non_blocking=True)

    def mark(self) -> CopyEvent:
        # Blocking, so that a thread that waits for it sleeps instead of turning on a core.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def lead(self, mark: CopyEvent) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)  # type: ignore[arg-type]  # the event that `mark` made

    def used(self, tensor: torch.Tensor) -> None:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(self._device))


T = TypeVar("T")

# One is filled while the other is copied from.
_SLOTS = 2
# Each tensor begins at a multiple of this in the pinned memory: any dtype fits there.
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Staged(Generic[T]):
    """A batch on its way to a device; `copied` is the mark after which it is there, `None` on a CPU."""

    batch: T
    copied: CopyEvent | None


class PinnedBuffer:
    """Host memory that tensors are laid out in, one after the other, before they are copied to a device."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._memory = torch.empty(0, dtype=torch.uint8)

    def fill(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy CPU tensors here, over what was here.

        Returns:
            tensors over this memory, each equal to its original, and dense in the order of axes that it had.
        """
        starts, end = [], 0
        for tensor in tensors:
            starts.append(end)
            end += -(-tensor.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if end > len(self._memory):
            self._memory = torch.empty(end, dtype=torch.uint8, pin_memory=self._pinned)
        return [self._placed(tensor, start) for tensor, start in zip(tensors, starts, strict=True)]

    def _placed(self, tensor: torch.Tensor, start: int) -> torch.Tensor:
        # On "meta" nothing is allocated: this asks for the strides of a dense copy, channels_last kept.
        strides = torch.empty_like(tensor, device="meta").stride()
        flat = self._memory[start : start + tensor.nbytes].view(tensor.dtype)
        return flat.as_strided(tensor.shape, strides).copy_(tensor)


class _Slot:
    """Host memory that copies are under way from, and the mark after which it may be filled again."""

    def __init__(self, *, pinned: bool) -> None:
        self.stage = PinnedBuffer(pinned=pinned)
        self.lent: list[torch.Tensor] = []
        self.emptied: CopyEvent | None = None

    def empty(self) -> None:
        """Wait until nothing is copied from here any more."""
        if self.emptied is not None:
            self.emptied.synchronize()
        self.lent.clear()


class StreamStager:
    """Takes batches to a device by a lane. `stage` belongs to the thread that prepares, the rest to the consumer."""

    def __init__(self, lane: CopyStream, device: torch.device) -> None:
        self._lane = lane
        self._device = device
        self._slots = [_Slot(pinned=lane.pinned) for _ in range(_SLOTS)]
        self._turn = 0

    def begin(self) -> None:
        """Let the copies of an iteration come after all that the caller's stream was given so far."""
        self._lane.follow()

    def stage(self, batches: Generator[T | Heartbeat]) -> Generator[Staged[T] | Heartbeat]:
        """Start the copies of batch after batch.

        Batches are also made on the lane, so those that are on the device already are ordered like the rest.
        """
        with closing(batches), self._lane.entered(), torch.no_grad():
            try:
                yield from map(self._start, batches)  # type: ignore[arg-type]  # mypy loses T here
            finally:
                # Before the memory goes back to where it came from.
                for slot in self._slots:
                    slot.empty()

    def hand_out(self, staged: Staged[T]) -> T:
        """Make a batch the caller's: what its stream is given from now on finds the batch on the device."""
        if staged.copied is not None:
            self._lane.lead(staged.copied)

        def finish(leaf: Any) -> Any:
            if moves_itself(leaf):
                # Here, because nobody could record what is inside of it on the consumer's stream.
                return leaf.to(self._device)
            if isinstance(leaf, torch.Tensor):
                self._lane.used(leaf)
            return leaf

        return map_leaves(staged.batch, finish)  # type: ignore[no-any-return]

    def _start(self, batch: T | Heartbeat) -> Staged[T] | Heartbeat:
        if isinstance(batch, Heartbeat):
            return batch
        tensors: list[torch.Tensor] = []
        map_leaves(batch, lambda leaf: tensors.append(leaf) if _is_stageable(leaf) else None)
        copies = iter(self._copy(tensors))
        moved = map_leaves(batch, lambda leaf: next(copies) if _is_stageable(leaf) else self._moved(leaf))
        return Staged(moved, self._lane.mark())

    def _copy(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % _SLOTS
        slot.empty()
        # What the loader gathered into pinned memory needs no second copy there.
        ready = [self._lane.takes(tensor) for tensor in tensors]
        placed = iter(slot.stage.fill([tensor for tensor, there in zip(tensors, ready, strict=True) if not there]))
        copies = []
        for tensor, there in zip(tensors, ready, strict=True):
            if there:
                slot.lent.append(tensor)
            copies.append(self._lane.copy(tensor if there else next(placed)))
        slot.emptied = self._lane.mark()
        return copies

    def _moved(self, leaf: Any) -> Any:
        """What does not go through pinned memory: tensors on a device, sparse ones, and things that are no tensors."""
        return leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf


def _is_stageable(leaf: Any) -> bool:
    # Subclasses may carry more than their numbers; `to` knows how to take it along.
    return type(leaf) is torch.Tensor and leaf.device.type == "cpu" and leaf.layout == torch.strided


class PlainStager:
    """Takes batches to a device that has no streams of ours, such as the CPU itself; same methods as `StreamStager`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self) -> None:
        """Nothing to wait for."""

    def stage(self, batches: Generator[T | Heartbeat]) -> Generator[Staged[T] | Heartbeat]:
        """Move batch after batch; what is there already stays what it is."""
        with closing(batches):
            yield from map(self._start, batches)  # type: ignore[arg-type]  # mypy loses T here

    def hand_out(self, staged: Staged[T]) -> T:
        """The batch."""
        return staged.batch

    def _start(self, batch: T | Heartbeat) -> Staged[T] | Heartbeat:
        if isinstance(batch, Heartbeat):
            return batch

        def move(leaf: Any) -> Any:
            return leaf.to(self._device) if isinstance(leaf, torch.Tensor) or moves_itself(leaf) else leaf

        return Staged(map_leaves(batch, move), None)


Stager = StreamStager | PlainStager


def make_stager(device: torch.device) -> Stager:
    """The way of taking batches to a device that this device allows."""
    return StreamStager(CudaCopyStream(device), device) if device.type == "cuda" else PlainStager(device)


def prefetch_staged(
    batches: Generator[T | Heartbeat], stager: Stager, depth: int, name: str, cancellation: Cancellation | None = None
) -> Prefetcher[Staged[T]]:
    """Prepare batches in a thread of that name and start their copies, at most `depth` ahead of the caller.

    `cancellation`: as of `Prefetcher`.
    """
    stager.begin()
    return Prefetcher(stager.stage(batches), depth, name, cancellation)


def pinned_block(nbytes: int) -> memoryview:
    """Pinned memory that batches can be gathered into."""
    memory: Any = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
    return memoryview(memory)


# Large enough for the full rate of a disk and of PCIe, small enough to stay pinned twice.
_BLOCK_BYTES = 16 * 1024 * 1024
_WORDS = (torch.int64, torch.int32, torch.int16)


class DeviceTable:
    """N rows of one shape and dtype on a device."""

    def __init__(self, count: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        """`shape`: of one row."""
        self._shape = tuple(shape)
        self._dtype = dtype
        self._length = int(np.prod(self._shape, dtype=np.int64))
        row_bytes = dtype.itemsize * self._length
        word = next((word for word in _WORDS if row_bytes % word.itemsize == 0), torch.uint8)
        self._words = torch.empty((count, row_bytes // word.itemsize), dtype=word, device=device)

    def fill(self, start: int, rows: torch.Tensor) -> None:
        """Put `rows`, `(n, *shape)` on any device, at place `start`."""
        part = self._words[start : start + len(rows)]
        part.copy_(rows.contiguous().view(len(rows), self._length).view(torch.uint8).view(part.dtype).view(part.shape))

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Copies of the rows of `index`, int64 `(B,)` on the device: `(B, *shape)`."""
        words = self._words.index_select(0, index)
        return words.view(torch.uint8).view(self._dtype).view(len(index), *self._shape)


class DeviceSplit:
    """A split's inputs and targets on a device."""

    def __init__(self, dataset: dataset_h5, device: torch.device, threads: int) -> None:
        """Read all of it, in blocks, by way of pinned memory. Whether it fits has been looked at before.

        Args:
            dataset: rows of one shape, with targets of one shape, and no transform for each sample.
            device: where to.
            threads: how many copy or decode at once.
        """
        self._device = device
        self._images = is_image(dataset.reader.row_shape)
        self._x: DeviceTable | None = None
        self._y: DeviceTable | None = None
        step = max(1, _BLOCK_BYTES // max(1, dataset.reader.row_bytes))
        edges = [*range(0, len(dataset), step), len(dataset)]
        blocks = [np.arange(start, stop) for start, stop in itertools.pairwise(edges)]
        pool = BufferPool(2, pinned_block if device.type == "cuda" else None)
        stager = make_stager(device)
        source = host_batches(dataset, blocks, workers=threads, buffers=pool)
        with closing(prefetch_staged(source, stager, 1, "colabstage-device")) as staged:
            for start, block in zip(edges, staged, strict=False):
                self._fill(len(dataset), start, *stager.hand_out(block))
                del block
        if device.type == "cuda":
            # Batches may be gathered on any stream from now on.
            torch.cuda.synchronize(device)

    def _fill(self, count: int, start: int, x: torch.Tensor, y: torch.Tensor) -> None:
        x = x.permute(0, 2, 3, 1) if self._images else x
        if self._x is None or self._y is None:
            self._x = DeviceTable(count, x.shape[1:], x.dtype, self._device)
            self._y = DeviceTable(count, y.shape[1:], y.dtype, self._device)
        self._x.fill(start, x)
        self._y.fill(start, y)

    def batches(self, batches: Sequence[NDArray[np.intp]], *, with_index: bool) -> Generator[tuple[Any, ...]]:
        """Gather batch after batch, on the stream that is current then.

        Args:
            batches: rows of each.
            with_index: whether each is `(x, y, index)` instead of `(x, y)`.
        """
        if not batches or self._x is None or self._y is None:
            return
        order = torch.from_numpy(np.concatenate(batches)).to(self._device)
        start = 0
        for rows in batches:
            if order.is_cuda:
                order.record_stream(torch.cuda.current_stream(self._device))
            index = order[start : start + len(rows)]
            start += len(rows)
            x, y = self._x.take(index), self._y.take(index)
            x = x.permute(0, 3, 1, 2) if self._images else x
            # Copied, because a batch is the caller's to keep and to change.
            yield (x, y, index.clone()) if with_index else (x, y)
            del x, y
