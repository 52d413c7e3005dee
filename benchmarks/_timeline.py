"""Where the seconds of a first epoch go that is trained while its rows are packed.

An epoch is the time to its first batch, waits for later ones, and the steps. A wait ends either because the last row of
the batch has come, so the line or the packing was waited for; or later, so the loader was. What is trained after the
last row has come is what no faster loader spares: the line was busy until then.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.pack.arrival import PackArrival

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from colabstage.h5.arrival import Expectation
    from colabstage.stage.dataset import StagedDataset

_SAMPLE_S = 0.005


@dataclass(frozen=True)
class Seconds:
    """The parts of one epoch, in seconds from the call of `stage_dataset`."""

    handed_out: float
    """When the dataset was returned."""
    first_batch: float
    """When the first batch came."""
    rows: float
    """Waits for rows, after the first batch."""
    loader: float
    """Waits for batches all of whose rows were here, after the first batch."""
    last_row: float
    """When the last row was in its place."""
    whole: float
    """When the last step ended."""

    def __str__(self) -> str:
        return (
            f"handed out after {self.handed_out:.2f} s, first batch {self.first_batch:.2f}; waits for rows "
            f"{self.rows:.2f}, for the loader {self.loader:.2f}; last row after {self.last_row:.2f}, then "
            f"{self.whole - self.last_row:.2f} of training"
        )


class Timeline:
    """Watch one loop over the split `train`; made when the dataset was handed out, before its loader."""

    def __init__(self, data: StagedDataset, began: float) -> None:
        """Begin to watch. `began`: `time.perf_counter()` before the call of `stage_dataset`."""
        assert data.arriving is not None
        arrival = data.arriving.arrival
        assert isinstance(arrival, PackArrival)
        self._began = began
        self._handed_out = time.perf_counter() - began
        self._order: NDArray[np.intp] = np.arange(0)
        self._asked: list[tuple[float, float, int]] = []
        rows = arrival.row_states("train")
        self._came = np.full(len(rows), np.inf)
        expect = arrival.expect

        def noted(split: str, wanted: NDArray[np.intp], **options: Callable[[], Any]) -> Expectation:
            if not len(self._order):
                self._order = wanted
            return expect(split, wanted, **options)

        arrival.expect = noted  # type: ignore[method-assign,assignment]  # to learn the order of the rows
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(rows,), daemon=True)
        self._thread.start()

    def _look(self, rows: NDArray[np.uint8]) -> None:
        while not self._stop.wait(_SAMPLE_S) and np.isinf(self._came).any():
            self._came[(rows != 0) & np.isinf(self._came)] = time.perf_counter() - self._began

    def watch(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield its batches, and note when each was asked for and came."""
        batches, asked = iter(loader), time.perf_counter() - self._began
        for batch in batches:
            self._asked.append((asked, time.perf_counter() - self._began, len(batch[1])))
            yield batch
            asked = time.perf_counter() - self._began
        self._stop.set()
        self._thread.join()

    def seconds(self) -> Seconds:
        """Return the parts, after the loop."""
        whole = time.perf_counter() - self._began
        waited, rows, done = 0.0, 0.0, self._asked[0][2]
        for asked, came, count in self._asked[1:]:
            complete = float(self._came[self._order[done : done + count]].max())
            rows += max(0.0, min(came, complete) - asked)
            waited += came - asked
            done += count
        last = float(self._came[np.isfinite(self._came)].max())
        return Seconds(self._handed_out, self._asked[0][1], rows, waited - rows, last, whole)
