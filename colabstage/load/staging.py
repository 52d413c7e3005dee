"""Copies from host memory to one CUDA device that overlap with the model's work there, and are safe.

The copies run on one side stream for as long as the object lives (a new stream each epoch would strand the memory
that the allocator keeps for the old one). Four things make them safe:

- The stream first waits for all that the consumer had begun when an iteration starts: batches may be made from it.
- Host memory is pinned and used in turns; an event, recorded after the copies out of it, is awaited before it is
  filled again.
- The consumer's stream waits for an event, recorded after the batch's copies, before the batch is handed out.
- Everything handed out is recorded on the consumer's stream, so the allocator gives its memory to no later batch
  while kernels that the consumer has queued still read it. The side stream need not wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from colabstage.load.nested import map_leaves, moves_itself

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

T = TypeVar("T")

# One is filled while the other is copied from.
_SLOTS = 2
# Each tensor begins at a multiple of this in the pinned memory: any dtype fits there.
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Staged(Generic[T]):
    """A batch on its way to a device; `copied` is the event after which it is there, `None` on a CPU."""

    batch: T
    copied: torch.cuda.Event | None


class HostStage:
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
    """Pinned memory, and the event after which it may be filled again."""

    def __init__(self) -> None:
        self.stage = HostStage(pinned=True)
        # Blocking, so that the thread that waits sleeps instead of turning on a core.
        self.emptied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]


class CudaStager:
    """Takes batches to one CUDA device. `stage` belongs to the thread that prepares, the rest to the consumer."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._slots = [_Slot() for _ in range(_SLOTS)]
        self._turn = 0

    def begin(self) -> None:
        """Let the copies of an iteration come after all that the caller's stream was given so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def stage(self, batches: Iterator[T]) -> Generator[Staged[T]]:
        """Start the copies of batch after batch.

        Batches are also made on the side stream, so those that are on the device already are ordered like the rest.
        """
        with torch.cuda.stream(self._stream), torch.no_grad():
            yield from map(self._start, batches)

    def hand_out(self, staged: Staged[T]) -> T:
        """Make a batch the caller's: what its stream is given from now on finds the batch on the device."""
        consumer = torch.cuda.current_stream(self._device)
        if staged.copied is not None:
            consumer.wait_event(staged.copied)

        def finish(leaf: Any) -> Any:
            if moves_itself(leaf):
                # Here, because nobody could record what is inside of it on the consumer's stream.
                return leaf.to(self._device)
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                leaf.record_stream(consumer)
            return leaf

        return map_leaves(staged.batch, finish)  # type: ignore[no-any-return]

    def _start(self, batch: T) -> Staged[T]:
        tensors: list[torch.Tensor] = []
        map_leaves(batch, lambda leaf: tensors.append(leaf) if _is_stageable(leaf) else None)
        staged = iter(self._copy(tensors))
        moved = map_leaves(batch, lambda leaf: next(staged) if _is_stageable(leaf) else self._moved(leaf))
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(self._stream)
        return Staged(moved, copied)

    def _copy(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        slot = self._slots[self._turn]
        self._turn = (self._turn + 1) % _SLOTS
        slot.emptied.synchronize()
        copies = [torch.empty_like(tensor, device=self._device) for tensor in tensors]
        for copy, host in zip(copies, slot.stage.fill(tensors), strict=True):
            copy.copy_(host, non_blocking=True)
        slot.emptied.record(self._stream)
        return copies

    def _moved(self, leaf: Any) -> Any:
        """What does not go through pinned memory: tensors on a device, sparse ones, and things that are no tensors."""
        return leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf


def _is_stageable(leaf: Any) -> bool:
    # Subclasses may carry more than their numbers; `to` knows how to take it along.
    return type(leaf) is torch.Tensor and leaf.device.type == "cpu" and leaf.layout == torch.strided


class PlainStager:
    """Takes batches to a device that has no streams of ours, such as the CPU itself; same methods as `CudaStager`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self) -> None:
        """Nothing to wait for."""

    def stage(self, batches: Iterator[T]) -> Generator[Staged[T]]:
        """Move batch after batch; what is there already stays what it is."""
        yield from map(self._start, batches)

    def hand_out(self, staged: Staged[T]) -> T:
        """The batch."""
        return staged.batch

    def _start(self, batch: T) -> Staged[T]:
        def move(leaf: Any) -> Any:
            return leaf.to(self._device) if isinstance(leaf, torch.Tensor) or moves_itself(leaf) else leaf

        return Staged(map_leaves(batch, move), None)
