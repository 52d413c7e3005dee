"""Overlapping copies without a GPU: a stream that copies late, in a thread, reveals every missing wait."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch

from colabstage.load.device import CopyStream, Stager, stage_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

CPU = torch.device("cpu")


class Reached:
    """An event of the slow stream."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def synchronize(self) -> None:
        assert self.event.wait(30)


class SlowStream(CopyStream):
    """Works in order, in a thread; each copy starts some time after the request."""

    pinned = False

    def __init__(self, delay_s: float, *, takes_all: bool) -> None:
        self._delay_s = delay_s
        self._takes_all = takes_all
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="slow-stream")
        self._thread.start()
        self.followed = 0
        self.recorded: list[int] = []

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def close(self) -> None:
        self._work.put(None)
        self._thread.join(30)

    def takes(self, host: torch.Tensor) -> bool:
        return self._takes_all

    def follow(self) -> None:
        self.followed += 1

    def entered(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        there = torch.full_like(host, 77)
        # A copy engine knows only an address, and keeps nothing alive.
        address = host.detach()

        def arrive() -> None:
            time.sleep(self._delay_s)
            there.copy_(address)

        self._work.put(arrive)
        return there

    def record(self) -> Reached:
        reached = Reached()
        self._work.put(reached.event.set)
        return reached

    def lead(self, event: Any) -> None:
        # A GPU's stream would wait by itself; a CPU thread has to.
        event.synchronize()

    def used(self, tensor: torch.Tensor) -> None:
        self.recorded.append(tensor.data_ptr())


@pytest.fixture
def make_stream() -> Generator[Callable[..., SlowStream]]:
    """Make streams, and end them."""
    streams: list[SlowStream] = []

    def make(**options: Any) -> SlowStream:
        streams.append(SlowStream(0.005, **options))
        return streams[-1]

    yield make
    for stream in streams:
        stream.close()


class ReusedBuffers:
    """Makes batches in memory that it refills, like a pool, as soon as a batch is dropped."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._idle: list[torch.Tensor] = []
        self.made = 0

    def batches(self) -> Generator[dict[str, Any]]:
        for number in range(self._count):
            memory = self._idle.pop() if self._idle else torch.empty(64, dtype=torch.int64)
            self.made += 1
            yield self._lend(memory.fill_(number))
            del memory

    def _lend(self, memory: torch.Tensor) -> dict[str, Any]:
        lent = memory.view(8, 8)
        weakref.finalize(lent, self._idle.append, memory)
        return {"x": [lent], "label": "cat"}


@pytest.mark.parametrize("takes_all", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_no_memory_is_filled_while_it_is_copied_from(
    make_stream: Callable[..., SlowStream], takes_all: bool, depth: int
) -> None:
    """Every batch arrives unchanged, although its memory is wanted again at once; both through our pinned memory and
    straight from where the batch was gathered."""
    stream = make_stream(takes_all=takes_all)
    stager = Stager(stream, CPU)
    buffers = ReusedBuffers(30)
    got = []
    for staged in stage_ahead(buffers.batches(), stager, depth, "colabstage-test"):
        batch = stager.hand_out(staged)
        got.append(batch["x"][0])
        assert batch["label"] == "cat"
    assert [part.unique().tolist() for part in got] == [[number] for number in range(30)]
    assert set(stream.recorded) == {part.data_ptr() for part in got}
    assert stream.followed == 1


def test_ending_early_waits_for_the_copies_under_way(make_stream: Callable[..., SlowStream]) -> None:
    """Memory is given back only when no copy reads it any more, even if nobody takes the batches."""
    stream = make_stream(takes_all=True)
    stager = Stager(stream, CPU)
    buffers = ReusedBuffers(30)
    ahead = stage_ahead(buffers.batches(), stager, 2, "colabstage-test")
    assert int(stager.hand_out(next(ahead))["x"][0][0, 0]) == 0
    ahead.close()
    assert stream._work.empty()
    assert buffers.made < 10


def test_iterations_share_a_stream(make_stream: Callable[..., SlowStream]) -> None:
    """Iterations that were left early do not disturb the following ones."""
    stream = make_stream(takes_all=False)
    for _ in range(5):
        stager = Stager(stream, CPU)
        ahead = stage_ahead(ReusedBuffers(9).batches(), stager, 2, "colabstage-test")
        assert [int(stager.hand_out(next(ahead))["x"][0][0, 0]) for _ in range(4)] == [0, 1, 2, 3]
        ahead.close()
    assert stream.followed == 5
