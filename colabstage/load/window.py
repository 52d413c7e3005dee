"""Shuffle in windows: for files larger than memory, random order at the rate of sequential reading.

The file is cut into blocks of neighbouring rows. Blocks come in a random order; as many rows as a window holds are
shuffled among each other. While one window is used, the next is read, block by block: two windows are all the memory
that is taken. It is fair where the rows of the file are in random order themselves, as those of `train` are that
colabstage packs.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from colabstage.io.pipeline import ThreadPool
from colabstage.load.batches import batch_of
from colabstage.load.epoch import random_order
from colabstage.load.prefetch import HEARTBEAT, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from colabstage.io.progress import Cancellation
    from colabstage.load.augment import CroppedInputs
    from colabstage.load.batches import Ragged
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.epoch import Shard
    from colabstage.load.reading.memory import BufferPool
    from colabstage.load.reading.reader import SplitReader

# Bytes read between two looks at whether anybody still waits.
_PART_BYTES = 64 * 1024 * 1024
_LOOK_S = 0.5


@dataclass(frozen=True)
class WindowOrder:
    """Visit blocks of neighbouring rows in random order, shuffled in windows."""

    samples: int
    """How many there are."""
    window_rows: int
    """Rows that are shuffled among each other."""
    block_rows: int
    """Neighbours in the file that are read together."""
    seed: int
    """What the order depends on, together with the epoch."""
    is_striped: ClassVar[bool] = False

    @property
    def count(self) -> int:
        return self.samples

    def rows(self, epoch: int, shard: Shard) -> NDArray[np.intp]:
        # The 1 tells this draw from that within windows, which has a 2.
        starts = self.block_rows * random_order(-(-self.samples // self.block_rows), self.seed, epoch, 1)
        blocks = (starts[:, None] + np.arange(self.block_rows)).reshape(-1)
        # Ranks take whole ranges, so that each reads its own part of the file and no other.
        rows = shard.part(blocks[blocks < self.samples])
        # Sorting by (window, random number) shuffles all windows at once.
        windows = np.arange(len(rows)) // self.window_rows
        drawn = random_order(len(rows), self.seed, epoch, 2, shard.rank)
        return rows[np.lexsort((drawn, windows))]

    def identity(self) -> dict[str, int]:
        return {"window_rows": self.window_rows, "block_rows": self.block_rows}


@dataclass(frozen=True, slots=True)
class Window:
    """Hold rows that are in memory together."""

    rows: NDArray[np.intp]
    """Ascending."""
    x: NDArray[Any] | list[NDArray[Any]]
    """Inputs of each, in that order."""
    y: Any
    """Targets of each, in that order."""

    def take(self, rows: NDArray[np.intp], x: NDArray[Any] | None) -> tuple[Any, Any]:
        """Copy some rows' inputs, into `x` where there is one, and their targets."""
        # The window was read in ascending order, as a disk likes it.
        places = np.searchsorted(self.rows, rows)
        return _take(self.x, places, x), _take(self.y, places, None)


def _take(values: Any, places: NDArray[np.intp], out: NDArray[Any] | None) -> Any:
    if isinstance(values, np.ndarray):
        return np.take(values, places, axis=0, out=out, mode="clip")
    return [values[place] for place in places.tolist()]


def group_by_window(
    batches: Sequence[NDArray[np.intp]], rows_before: int, window_rows: int
) -> list[list[NDArray[np.intp]]]:
    """Put batches together that come out of the same window. Windows hold whole batches.

    Args:
        batches: rows of the batches that are left.
        rows_before: how many rows of the epoch come before them.
        window_rows: how many rows make up a window, counted from the epoch's first.
    """
    groups: dict[int, list[NDArray[np.intp]]] = {}
    for rows in batches:
        groups.setdefault(rows_before // window_rows, []).append(rows)
        rows_before += len(rows)
    return list(groups.values())


class WindowReader:
    """Read windows, one ahead of the one in use, into two buffers that take turns."""

    def __init__(
        self,
        dataset: dataset_h5,
        pool: ThreadPool,
        windows: list[NDArray[np.intp]],
        inputs: SplitReader | CroppedInputs | None = None,
    ) -> None:
        self._reader = dataset.reader
        self._inputs = dataset.reader if inputs is None else inputs
        self._pool = pool
        self._windows = windows
        self._buffers: list[NDArray[Any] | None] = [None, None]
        self._stop = Event()
        self._thread = ThreadPoolExecutor(1, "colabstage-window")
        self._next: deque[Future[Window]] = deque()
        self._begin(0)

    def windows(self) -> Generator[Window | Heartbeat]:
        """Yield each window when it is there, heartbeats while it is not. One that was yielded is overwritten by the
        next but one."""
        for number in range(len(self._windows)):
            # Into the buffer of the window before, which is in use no more; and before this one is there, so that the
            # disk is not idle until this thread has taken notice of it.
            self._begin(number + 1)
            while self._next and not self._next[0].done():
                yield HEARTBEAT
                wait([self._next[0]], timeout=_LOOK_S)
            if not self._next:
                return
            window = self._next.popleft().result()
            yield window
            del window

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._next.clear()

    def _begin(self, number: int) -> None:
        """Have a window read after those that were begun before it."""
        if number < len(self._windows):
            self._next.append(self._thread.submit(self._read, number))

    def _read(self, number: int) -> Window:
        rows, inputs = self._windows[number], self._inputs
        x = self._buffer(number % 2, len(rows))
        step = max(1, _PART_BYTES // max(1, inputs.row_bytes))
        images: list[NDArray[Any]] = []
        for start in range(0, len(rows), step):
            # A window may take minutes, and nobody should wait for one that is not wanted.
            if self._stop.is_set():
                break
            part = rows[start : start + step]
            if x is None:
                images += inputs.read_x(part, None, pool=self._pool)
            else:
                inputs.read_x(part, x[start : start + len(part)], pool=self._pool)
        return Window(rows, images if x is None else x, self._reader.read_y(rows, pool=self._pool))

    def _buffer(self, turn: int, count: int) -> NDArray[Any] | None:
        shape = self._inputs.row_shape
        if shape is None:
            return None
        buffer = self._buffers[turn]
        # The last window is shorter and fits into the buffer of a whole one.
        if buffer is None or len(buffer) < count:
            buffer = self._buffers[turn] = np.empty((count, *shape), self._inputs.row_dtype)
        return buffer[:count]


def window_batches(
    dataset: dataset_h5,
    batches: Sequence[NDArray[np.intp]],
    rows_before: int,
    window_rows: int,
    *,
    workers: int,
    buffers: BufferPool,
    ragged: Ragged,
    inputs: SplitReader | CroppedInputs | None = None,
    cancellation: Cancellation | None = None,
) -> Generator[tuple[Any, Any] | Heartbeat]:
    """Make batches out of windows: as `host_batches`, for batches in the order of `WindowOrder`.

    Args:
        rows_before: how many rows of the epoch come before these batches.
        window_rows: how many rows make up a window.
        inputs: what x is read by; the dataset's own reader by default.
        cancellation: stops the reading, also inside a window.
    """
    inputs = dataset.reader if inputs is None else inputs
    groups = group_by_window(batches, rows_before, window_rows)
    windows = [np.sort(np.concatenate(group)) for group in groups]
    with ThreadPool(workers, cancellation) as pool, closing(WindowReader(dataset, pool, windows, inputs)) as ahead:
        waiting = iter(groups)
        for window in ahead.windows():
            if isinstance(window, Heartbeat):
                yield HEARTBEAT
                continue
            for rows in next(waiting):
                shape = inputs.row_shape
                out = None if shape is None else buffers.borrow((len(rows), *shape), inputs.row_dtype)
                # Transforms are not called in this thread: see `host_batches`.
                yield (
                    window.take(rows, out) if dataset.per_sample else batch_of(dataset, *window.take(rows, out), ragged)
                )
                del out
