"""Bring batches to a device by copies that overlap with the model's work there.

`CudaDataLoader` does it for any loader: with T1 seconds to load a batch and T2 to train on it, a batch costs
max(T1, T2) instead of T1 + T2.

All copies use one stream for the life of the loader; each iteration has a stager and pinned memory of its own. Four
rules make them safe:

- When an iteration starts, that stream first waits for all work that the consumer has queued: it may make batches.
- Pinned memory is reused only after an event that was recorded after the copies out of it; batches that came pinned are
  kept until their event is reached.
- The consumer's stream waits for an event, recorded after the batch's copies, before the batch is handed out.
- What the consumer's stream reads is recorded on it (`used_here`), so the allocator gives its memory to nothing else
  while kernels that the consumer has queued still read it. The copying stream need not wait for them.

Small batches are copied, and gathered on the device, in groups: copying a single one costs less than its calls.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from colabstage.errors import OptionError
from colabstage.io.arguments import refuse_argument, whole_number
from colabstage.io.boundary import public_class
from colabstage.io.packages import refuse_import
from colabstage.io.progress import Demand
from colabstage.load.ahead import Ahead, Iterated, Iteration, Steps
from colabstage.load.batch import Batcher, Group, is_image_shape, target_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.load.ahead import Source
    from colabstage.load.reading.memory import Block
    from colabstage.load.reading.reader import SplitReader

try:
    import torch
    from torch.utils.data import DataLoader, default_collate
except ImportError as error:
    refuse_import("torch", "CudaDataLoader and make_loader need", error)

from colabstage.load.batches import map_leaves, move_to, moves_itself, tensor_of


def usable_device(device: str | torch.device) -> torch.device:
    """Return the named device, with its number if there may be several; raise OptionError if it does not exist."""
    try:
        # An empty tensor is made at once, on the device that plain "cuda" means now in this thread.
        return torch.empty(0, device=torch.device(device)).device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        msg = (
            f"device={str(device)!r} cannot be used here ({reason}). Torch calls NVIDIA's GPUs 'cuda'; on Colab choose "
            "Runtime, Change runtime type."
        )
        raise OptionError(msg) from error


def free_device_memory(device: torch.device, otherwise: int) -> int:
    """Return the bytes of a CUDA device that this process may still take, including those that torch's allocator
    holds; `otherwise`, those of this computer, for devices that share its memory or do not tell."""
    if device.type != "cuda":
        return otherwise
    free, _ = torch.cuda.mem_get_info(device)
    # The driver counts this as used, but torch will allocate from it.
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + int(idle)


class CopyStream:
    """Does work for one CUDA device in order, on a side stream beside the consumer's own, the same one for the object's
    life. Its methods only queue work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        """Make later work on this stream wait for everything queued so far on the caller's stream."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def entered(self) -> AbstractContextManager[object]:
        """Return a context in which this thread's device work goes onto the stream."""
        return torch.cuda.stream(self._stream)

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        """Begin to copy a tensor to a new one on the device; the original must not change until then."""
        # Allocated on this stream, so that torch's allocator knows when the memory may be reused.
        return torch.empty_like(host, device=self._device).copy_(host, non_blocking=True)

    def record(self) -> Any:
        """Return an event that follows everything queued on this stream so far; its `synchronize` waits for that."""
        # Blocking, so that a waiting thread sleeps instead of spinning on a core.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def lead(self, event: Any) -> None:
        """Make the caller's stream wait for an event of this stream."""
        torch.cuda.current_stream(self._device).wait_event(event)


def used_here(tensor: torch.Tensor) -> None:
    """Record that the caller's stream uses a dense tensor, which may have been made on another one."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


T = TypeVar("T")

# One is filled while the other is copied from.
_SLOTS = 2
# Each tensor in pinned memory begins at a multiple of this, which fits any dtype.
_ALIGNMENT_BYTES = 64


class _Slot:
    """Pinned memory from which copies are in flight, and the event after which it may be filled again."""

    def __init__(self) -> None:
        self._memory = torch.from_numpy(np.empty(0, np.uint8))
        self._borrowed: list[torch.Tensor] = []
        self.emptied: Any = None

    def empty(self) -> None:
        """Wait until no copy from here is in flight."""
        # Nothing has been copied from a new slot.
        if self.emptied is not None:
            self.emptied.synchronize()
        self._borrowed.clear()

    def fill(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy CPU tensors here, over the previous ones; return dense tensors in pinned memory, equal to them. Those
        that are pinned already are kept instead, until the slot is emptied."""
        starts: list[int | None] = []
        end = 0
        for tensor in tensors:
            pinned = tensor.is_pinned()
            starts.append(None if pinned else end)
            end += 0 if pinned else -(-tensor.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        # Grows to the largest batch and stays: pinning takes milliseconds.
        if end > len(self._memory):
            self._memory = torch.empty(end, dtype=torch.uint8, pin_memory=True)
        pairs = [*zip(tensors, starts, strict=True)]
        self._borrowed += [tensor for tensor, start in pairs if start is None]
        return [tensor if start is None else self._copy_in(tensor, start) for tensor, start in pairs]

    def _copy_in(self, tensor: torch.Tensor, start: int) -> torch.Tensor:
        # "meta" allocates nothing: this computes the strides of a dense copy that keeps channels_last.
        strides = torch.empty_like(tensor, device="meta").stride()
        flat = self._memory[start : start + tensor.nbytes]
        placed = flat.view(tensor.dtype).as_strided(tensor.shape, strides)
        if strides != tensor.stride() or tensor.is_conj() or tensor.is_neg():
            return placed.copy_(tensor)
        # Without gaps, one copy of bytes does: torch's own would use as many threads as cores, which are decoding.
        values = tensor.detach().as_strided((tensor.numel(),), (1,))
        np.copyto(flat.numpy(), values.view(torch.uint8).numpy())
        return placed


class Stager:
    """Take the batches of one iteration to a device: by a stream, or directly if we have no streams for the device,
    such as the CPU. The thread that prepares calls `stage`, the consumer calls the rest."""

    def __init__(self, stream: CopyStream | None, device: torch.device) -> None:
        self._stream = stream
        self._device = device
        self._slots = [] if stream is None else [_Slot() for _ in range(_SLOTS)]
        self._turn = 0

    def begin(self) -> None:
        """Make the copies of an iteration follow all work that the caller's stream has queued so far."""
        if self._stream is not None:
            self._stream.follow()

    def stage(self, batches: Source[T]) -> Generator[tuple[T, Any]]:
        """Start the copies of each batch in turn, and yield it with the event after which it is there. Batches are also
        made on the stream, so that those already on the device are ordered like the rest."""
        entered = nullcontext() if self._stream is None else self._stream.entered()
        with closing(batches), entered, torch.no_grad():
            try:
                yield from map(self._start, batches)
            finally:
                # Before the memory is returned to its pool.
                for slot in self._slots:
                    slot.empty()

    def hand_out(self, staged: tuple[T, Any]) -> T:
        """Give a batch to the caller: work that the caller's stream queues from now on finds it on the device."""
        batch, copied = staged
        if self._stream is not None:
            self._stream.lead(copied)

        def finish(leaf: Any) -> Any:
            if _is_dense(leaf):
                used_here(leaf)
                return leaf
            # Moved here, because nothing could record its contents on the consumer's stream.
            return leaf.to(self._device) if isinstance(leaf, torch.Tensor) or moves_itself(leaf) else leaf

        return map_leaves(batch, finish)  # type: ignore[no-any-return]

    def _start(self, batch: T) -> tuple[T, Any]:
        if self._stream is None:
            return move_to(batch, self._device), None
        tensors: list[torch.Tensor] = []
        map_leaves(batch, lambda leaf: tensors.append(leaf) if _is_stageable(leaf) else None)
        copies = iter(self._copy(self._stream, tensors))
        # Others do not go through pinned memory.
        moved = map_leaves(
            batch,
            lambda leaf: next(copies) if _is_stageable(leaf) else leaf.to(self._device) if _is_dense(leaf) else leaf,
        )
        return moved, self._stream.record()

    def _copy(self, stream: CopyStream, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % _SLOTS
        slot.empty()
        copies = [stream.copy(tensor) for tensor in slot.fill(tensors)]
        # After the last copy out of it, not after the batch: other work may follow.
        slot.emptied = stream.record()
        return copies


def _is_stageable(leaf: Any) -> bool:
    # Subclasses may carry more than their numbers, which `to` moves too.
    return type(leaf) is torch.Tensor and _is_dense(leaf) and leaf.device.type == "cpu"


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not leaf.is_nested


def copy_stream(device: torch.device) -> CopyStream | None:
    """Return a stream for copies to a device; `None` if we have none for its kind."""
    return CopyStream(device) if device.type == "cuda" else None


def stage_ahead(
    batches: Source[T], stager: Stager, depth: int, name: str, demand: Demand | None = None
) -> Ahead[tuple[T, Any]]:
    """Prepare batches in a thread of that name and start their copies, at most `depth` ahead of the caller."""
    stager.begin()
    return Ahead(stager.stage(batches), depth, name, demand)


def pinned_block(nbytes: int) -> Block:
    memory: Any = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
    # Not a view of the array, in whose place numpy would put that array itself.
    return memoryview((ctypes.c_ubyte * nbytes).from_buffer(memory))


@public_class
class CudaDataLoader(Iterated, Generic[T]):
    """Run a loader in a background thread and copy its batches to a device before the model needs them.

    >>> for x, y in CudaDataLoader(DataLoader(dataset, 64), "cuda"):  # doctest: +SKIP
    ...     train_step(x, y)

    A batch may nest lists, tuples, named tuples and mappings; every tensor in it arrives on the device with its dtype,
    shape and memory format, detached from any graph. An object with a method `to(device)` (`PackedSequence`) is moved
    by that; everything else is passed on. The loader needs no `pin_memory`, and may fill one memory for all batches.

    Each batch is yours to keep and change, on the stream that is current when you get it. The device holds up to
    `queue_size` that wait and one that is being copied. One iteration runs at a time: a new one ends the one before,
    and leaving a loop ends the thread. An error in the loader is raised in the loop, after the batches before it.

    Attributes:
        loader: where batches come from.
        device: where they go.
    """

    def __init__(self, loader: Iterable[T], device: str | torch.device, queue_size: int = 2) -> None:
        """Look at the arguments; nothing is loaded yet.

        Args:
            loader: any iterable of batches, such as a `DataLoader`; iterated again in each iteration.
            device: where batches go: `"cuda"`, `"cuda:1"`, `"cpu"`, …
            queue_size: batches that wait on the device, 1 or more.

        Raises:
            OptionError: there is no such device here, or an argument that cannot work.
        """
        given: object = loader
        # Checked before the device is touched, which may take seconds. By __getitem__ Python counts up from 0.
        if isinstance(given, str | bytes) or not (isinstance(given, Iterable) or hasattr(given, "__getitem__")):
            refuse_argument("loader", loader, "a loader of batches")
        whole_number("queue_size", queue_size, least=1)
        self.loader = loader
        self.device = usable_device(device)
        self._queue_size = queue_size
        # One for all iterations: each new stream would strand the memory that the allocator keeps for the old one.
        self._stream = copy_stream(self.device)

    def __len__(self) -> int:
        """Count the batches in an iteration.

        Raises:
            TypeError: the loader does not know.
        """
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        """Start the next iteration; the loader's own iterator is created here, in the caller's thread."""
        self.close()
        # Before our thread exists: worker processes that a loader forks should inherit no locks from it.
        batches = iter(self.loader)
        own = None if _gives_new_batches(self.loader) else partial(_own_leaf, self.device)
        source, stager = _own_batches(batches, own, owned=batches is not self.loader), Stager(self._stream, self.device)
        staged = stage_ahead(source, stager, self._queue_size, "colabstage-cuda")
        return self._begun(Iteration(Steps(staged, lambda one: (one,), stager.hand_out)))

    def __repr__(self) -> str:
        return f"CudaDataLoader({self.loader!r}, device='{self.device}', queue_size={self._queue_size})"


def _gives_new_batches(loader: Any) -> bool:
    """Return whether each batch has memory of its own: it is stacked, or sent by another process."""
    # Other classes may keep anything, and a copy costs less than a wrong batch.
    if not isinstance(loader, DataLoader):
        return False
    stacked: Any = loader.collate_fn is default_collate and loader.batch_sampler is not None
    return bool(stacked or loader.num_workers > 0 or type(loader).__module__.startswith("colabstage."))


def _own_leaf(device: torch.device, leaf: Any) -> Any:
    """Return a part of a batch that does not change if its loader reuses the memory."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    # Copies from pinned memory happen later; others are made before the loader is asked for more.
    stays = isinstance(leaf, torch.Tensor) and (leaf.device.type == device.type or leaf.is_pinned())
    return leaf.detach().clone() if stays else leaf


def _own_batches(batches: Iterator[T], own: Callable[[Any], Any] | None, *, owned: bool) -> Generator[T]:
    """Yield an iterator's batches, each part passed through `own`; if `owned`, close the iterator at the end."""
    try:
        yield from batches if own is None else map(partial(map_leaves, change=own), batches)
    finally:
        # So that a generator's clean-up runs now, not whenever it is collected.
        close: Any = getattr(batches, "close", None)
        if owned and callable(close):
            close()


# Large enough for the full rate of a disk and of PCIe, small enough to keep two pinned.
_BLOCK_BYTES = 16 * 1024 * 1024
_WORDS = (torch.int64, torch.int32, torch.int16)


class DeviceTable:
    """N rows of one shape and dtype on a device, gathered as words of up to eight bytes: gathering single bytes would
    use a fraction of a GPU's memory bandwidth."""

    def __init__(self, count: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        """Allocate memory for `count` rows of this `shape` each."""
        self._shape = tuple(shape)
        self._dtype = dtype
        self._length = int(np.prod(self._shape, dtype=np.int64))
        row_bytes = dtype.itemsize * self._length
        word = next((word for word in _WORDS if row_bytes % word.itemsize == 0), torch.uint8)
        self.words = torch.empty((count, row_bytes // word.itemsize), dtype=word, device=device)

    def fill(self, start: int, rows: torch.Tensor) -> None:
        """Put `rows`, `(n, *shape)` on any device, at row `start`."""
        part = self.words[start : start + len(rows)]
        # Rows of no length cannot be viewed as words.
        if rows.numel():
            values = rows.contiguous().view(len(rows), self._length)
            part.copy_(values.view(torch.uint8).view(part.dtype).view(part.shape))

    def take(self, index: torch.Tensor) -> torch.Tensor:
        """Return copies of the rows of `index`, int64 `(B,)` on the device: `(B, *shape)`."""
        words = self.words.index_select(0, index)
        return words.view(self._dtype).view(len(index), *self._shape)


class ResidentSplit:
    """A split on a device, which gathers batches out of its own memory."""

    def __init__(self, reader: SplitReader, device: torch.device, stream: CopyStream | None, threads: int) -> None:
        """Read all rows, in blocks, through pinned memory; the caller has checked that they fit."""
        self._device = device
        self._images = is_image_shape(reader.row_shape)
        self._tables: tuple[DeviceTable, DeviceTable] | None = None
        step = max(1, _BLOCK_BYTES // max(1, reader.row_bytes))
        edges = [*range(0, len(reader), step), len(reader)]
        blocks = [np.arange(start, stop) for start, stop in pairwise(edges)]
        demand, stager = Demand(reader.paths), Stager(stream, device)
        batcher = Batcher(reader, workers=threads, allocate=pinned_block if device.type == "cuda" else None)

        def tensors(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
            return tensor_of(group.x), tensor_of(target_array(group.y))

        read = batcher.groups(blocks, demand, tensors)
        with closing(stage_ahead(read, stager, 1, "colabstage-device", demand)) as staged:
            for start, block in zip(edges, staged, strict=False):
                parts = stager.hand_out(block)
                if self._tables is None:
                    x, y = (DeviceTable(len(reader), part.shape[1:], part.dtype, device) for part in parts)
                    self._tables = x, y
                for table, rows in zip(self._tables, parts, strict=True):
                    table.fill(start, rows)
                del block, parts, rows
        if device.type == "cuda":
            # From now on, any stream may gather batches.
            torch.cuda.synchronize(device)

    def groups(
        self, batches: Sequence[NDArray[np.intp]], together: int, *, with_index: bool
    ) -> Generator[tuple[torch.Tensor, ...]]:
        """Gather `together` batches at once, when they are taken, on the stream that is then current."""
        if not batches or self._tables is None:
            return
        x, y = self._tables
        # The row numbers of the epoch are copied at once, not batch by batch.
        order = torch.from_numpy(np.concatenate(batches)).to(self._device)
        ends = np.cumsum([len(rows) for rows in batches])[together - 1 :: together].tolist()
        ends += [len(order)] if not ends or ends[-1] < len(order) else []
        for start, stop in pairwise([0, *ends]):
            # Made on a stream that may be another one, and dropped with the loader.
            for tensor in (order, x.words, y.words):
                used_here(tensor)
            index = order[start:stop]
            images = x.take(index)
            images = images.permute(0, 3, 1, 2) if self._images else images
            # Copied, because the caller may keep and change a batch.
            made = (images, y.take(index), *([index.clone()] if with_index else []))
            del images
            yield made
            del made


def split_group(group: tuple[Any, ...], sizes: Iterator[int]) -> Iterator[tuple[Any, ...]]:
    """Return the batches of a group of tensors; `sizes`: the lengths of the epoch's remaining batches."""
    count, start = len(group[1]), 0
    found = deque[tuple[Any, ...]]()
    while start < count or not found:
        stop = start + next(sizes)
        found.append(group if stop - start == count else tuple(part[start:stop] for part in group))
        start = stop
    return iter(found)


class StreamGuard:
    """Make the batches of a group usable on the stream that is current when each is taken."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._stream: Any = None

    def begin(self) -> None:
        """Remember the stream on which a group was made, or which waited for it."""
        if self._device is not None:
            self._stream = torch.cuda.current_stream(self._device)

    def take(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a batch, ready on the current stream."""
        if self._device is not None and (now := torch.cuda.current_stream(self._device)) != self._stream:
            now.wait_stream(self._stream)
            map_leaves(batch, lambda leaf: used_here(leaf) if isinstance(leaf, torch.Tensor) else None)
        return batch
