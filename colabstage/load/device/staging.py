"""Copies from host memory to one device that overlap with the model's work there, and are safe.

The copies go onto one lane for as long as the object lives. Four things make them safe:

- The lane first waits for all that the consumer had begun when an iteration starts: batches may be made from it.
- Host memory is used in turns: a mark, made after the copies out of it, is awaited before it is filled again, and
  pinned batches are kept until theirs is reached.
- The consumer's stream waits for a mark, made after the batch's copies, before the batch is handed out.
- Everything handed out is recorded on the consumer's stream, so the allocator gives its memory to no later batch
  while kernels that the consumer has queued still read it. The lane need not wait for them.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from colabstage.load.batching.ahead import Ahead, Tick
from colabstage.load.batching.nested import map_leaves, moves_itself
from colabstage.load.device.lanes import CudaLane

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from colabstage.load.device.lanes import Lane, Mark

T = TypeVar("T")

# One is filled while the other is copied from.
_SLOTS = 2
# Each tensor begins at a multiple of this in the pinned memory: any dtype fits there.
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Staged(Generic[T]):
    """A batch on its way to a device; `copied` is the mark after which it is there, `None` on a CPU."""

    batch: T
    copied: Mark | None


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
    """Host memory that copies are under way from, and the mark after which it may be filled again."""

    def __init__(self, *, pinned: bool) -> None:
        self.stage = HostStage(pinned=pinned)
        self.lent: list[torch.Tensor] = []
        self.emptied: Mark | None = None

    def empty(self) -> None:
        """Wait until nothing is copied from here any more."""
        if self.emptied is not None:
            self.emptied.synchronize()
        self.lent.clear()


class LaneStager:
    """Takes batches to a device by a lane. `stage` belongs to the thread that prepares, the rest to the consumer."""

    def __init__(self, lane: Lane, device: torch.device) -> None:
        self._lane = lane
        self._device = device
        self._slots = [_Slot(pinned=lane.pinned) for _ in range(_SLOTS)]
        self._turn = 0

    def begin(self) -> None:
        """Let the copies of an iteration come after all that the caller's stream was given so far."""
        self._lane.follow()

    def stage(self, batches: Generator[T | Tick]) -> Generator[Staged[T] | Tick]:
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

    def _start(self, batch: T | Tick) -> Staged[T] | Tick:
        if isinstance(batch, Tick):
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
    """Takes batches to a device that has no streams of ours, such as the CPU itself; same methods as `LaneStager`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self) -> None:
        """Nothing to wait for."""

    def stage(self, batches: Generator[T | Tick]) -> Generator[Staged[T] | Tick]:
        """Move batch after batch; what is there already stays what it is."""
        with closing(batches):
            yield from map(self._start, batches)  # type: ignore[arg-type]  # mypy loses T here

    def hand_out(self, staged: Staged[T]) -> T:
        """The batch."""
        return staged.batch

    def _start(self, batch: T | Tick) -> Staged[T] | Tick:
        if isinstance(batch, Tick):
            return batch

        def move(leaf: Any) -> Any:
            return leaf.to(self._device) if isinstance(leaf, torch.Tensor) or moves_itself(leaf) else leaf

        return Staged(map_leaves(batch, move), None)


Stager = LaneStager | PlainStager


def make_stager(device: torch.device) -> Stager:
    """The way of taking batches to a device that this device allows."""
    return LaneStager(CudaLane(device), device) if device.type == "cuda" else PlainStager(device)


def staged_ahead(batches: Generator[T | Tick], stager: Stager, depth: int, name: str) -> Ahead[Staged[T]]:
    """Prepare batches in a thread of that name and start their copies, at most `depth` ahead of the caller."""
    stager.begin()
    return Ahead(stager.stage(batches), depth, name)


def pinned_block(nbytes: int) -> memoryview:
    """Pinned memory that batches can be gathered into."""
    memory: Any = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
    return memoryview(memory)
