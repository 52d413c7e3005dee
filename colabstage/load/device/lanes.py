"""Asynchronous ways to a device: the few operations that overlapping copies with computing is made of.

`CudaLane` is one over a CUDA stream. What is built on a lane (`staging`) is tested with one that copies late, in a
thread, on any machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Mark(Protocol):
    """A point in a lane's work."""

    def synchronize(self) -> None:
        """Wait, in the calling thread, until the work up to here is done."""


class Lane(Protocol):
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

    def mark(self) -> Mark:
        """The point after all that was put here so far."""

    def lead(self, mark: Mark) -> None:
        """Let the caller's own stream wait for a point of this lane."""

    def used(self, tensor: torch.Tensor) -> None:
        """Say that the caller's own stream uses a tensor that was made on this lane."""


class CudaLane:
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

    def mark(self) -> Mark:
        # Blocking, so that a thread that waits for it sleeps instead of turning on a core.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def lead(self, mark: Mark) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)  # type: ignore[arg-type]  # the event that `mark` made

    def used(self, tensor: torch.Tensor) -> None:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(self._device))
