"""`stage_dataset(streaming=True)`: the same call, in a thread; who asked has the dataset as soon as its plan stands.

The thread does what the call would have done: it packs, verifies, writes the manifest and the record, and publishes. So
in the end there is the very same on the disk. Meanwhile rows are read from the file that is being written.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from colabstage.errors import CancelledError, NotStagedError, SourceNotFoundError, said_by
from colabstage.h5.info import read_info
from colabstage.io.clock import SYSTEM_CLOCK
from colabstage.io.progress import Cancellation, NullProgress, cancellation_of, resolve_progress
from colabstage.io.units import format_duration
from colabstage.load.arrival import UnitOrder
from colabstage.load.epoch import Shard
from colabstage.pack.stream import PackStream
from colabstage.stage.dataset import StagedDataset

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from colabstage.h5.info import PackInfo
    from colabstage.io.progress import Progress, ProgressStep
    from colabstage.load.dataset import dataset_h5
    from colabstage.pack.arrival import PackArrival, Readiness
    from colabstage.stage.publish import PublishReport
    from colabstage.stage.report import StageReport

# How often whoever waits looks; an interrupt has to get through.
_LOOK_S = 0.1
# What was told to stop clears up after itself first.
_CLEAR_UP_S = 30.0


class _UntilHandedOut:
    """A progress that shows steps until the dataset is handed out, and none after: the notebook is somebody else's
    then. It can be cancelled all the time."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self.cancellation: Cancellation = cancellation_of(shown)

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        return self._shown.step(name, total=total, unit=unit)

    def fall_silent(self) -> None:
        """Show no further steps."""
        self._shown = NullProgress()


class BackgroundPack:
    """Go on with one call of `stage_dataset` in a thread of its own.

    The interpreter does not wait for it: at its end the work is stopped, and what is finished is kept for the next
    call. A pack that is whole is published to the cache first, as `stage_dataset(wait=False)` promises.
    """

    def __init__(
        self, work: Callable[[Progress, PackStream], StagedDataset], report: StageReport, shown: Progress
    ) -> None:
        """Prepare `work`, which does the call."""
        self._report = report
        self._progress = _UntilHandedOut(shown)
        self._planned: Future[PackInfo] = Future()
        self._handed_out: StagedDataset | None = None
        self._began = SYSTEM_CLOCK.now()
        self._done: Future[StagedDataset] = Future()
        self._stream = PackStream(_first_rows, self._let_in)
        self._work = work
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="colabstage-stage", daemon=True)

    @property
    def arrival(self) -> PackArrival:
        """Return what readers wait with."""
        assert self._stream.arrival is not None
        return self._stream.arrival

    def start(self) -> StagedDataset:
        """Begin, and return the dataset: once its plan stands, or whole where it was here already.

        Raises:
            As `stage_dataset`, of what comes before.
        """
        # Before the end of the interpreter, which daemons would be cut off by in the middle of a write.
        atexit.register(self._stop_at_exit)
        self._thread.start()
        try:
            either: tuple[Future[Any], ...] = (self._planned, self._done)
            while not any(future.done() for future in either):
                wait(either, timeout=_LOOK_S, return_when="FIRST_COMPLETED")
        except KeyboardInterrupt:
            self._progress.cancellation.cancel()
            self._thread.join(_CLEAR_UP_S)
            raise
        if not self._planned.done():
            return self._done.result()
        self._handed_out = StagedDataset(
            path=self.arrival.place, files=None, report=self._report, info=self._planned.result(), arriving=self
        )
        return self._handed_out

    @property
    def ready(self) -> Readiness:
        """Tell how far it is."""
        return self.arrival.ready

    def wait_published(self, timeout_s: float) -> PublishReport | None:
        """Wait until all is here, and its copy in the cache too; as `StagedDataset.wait_published`."""
        deadline = SYSTEM_CLOCK.now() + timeout_s
        self.wait(timeout_s, progress=False)
        return self._done.result().wait_published(max(0.0, deadline - SYSTEM_CLOCK.now()))

    def open(self, split: str) -> dataset_h5:
        """Return a split whose rows are waited for; of a pack that is whole, the split as it is.

        Raises:
            SplitNotFoundError: there is no such split.
            What ended the work.
        """
        from colabstage.load.dataset import dataset_h5

        # The file is where the next call finds it, and nobody else.
        self.arrival.check()
        if self._done.done() and (whole := self._result()) is not self._handed_out:
            return dataset_h5(whole.path, split=split)
        try:
            return dataset_h5(self.arrival.readable_path, split=split, arrival=self.arrival)
        except SourceNotFoundError:
            # It got its own name in this very moment, or lost the one that it had.
            self.arrival.check()
            return dataset_h5(self.arrival.readable_path, split=split, arrival=self.arrival)

    def wait(self, timeout_s: float | None, progress: bool | Progress) -> StagedDataset:
        """Return the dataset once all of it is here.

        Raises:
            TimeoutError: it is not after so many seconds.
            What ended the work.
        """
        if self._done.done():
            # A bar would jump from nothing to all, behind what the caller has printed meanwhile.
            return self._result()
        deadline = None if timeout_s is None else SYSTEM_CLOCK.now() + timeout_s
        shown, done = resolve_progress(progress), self.ready.rows
        with shown.step("pack", total=self.ready.total, unit=self.arrival.unit) as step:
            step.advance(done)
            while not self._done.done():
                wait((self._done,), timeout=_LOOK_S)
                cancellation_of(shown).check()
                now = self.ready.rows
                step.advance(now - done)
                done = now
                if deadline is not None and SYSTEM_CLOCK.now() > deadline and not self._done.done():
                    msg = f"After {timeout_s:g} seconds {self.ready} are here; the rest still comes."
                    raise TimeoutError(msg)
        return self._result()

    def _result(self) -> StagedDataset:
        """Return the dataset now that all is here: the one that was handed out, unless samples were left out, so that
        rows have other numbers now."""
        whole = self._done.result()
        assert self._handed_out is not None
        return self._handed_out if whole.splits == self._handed_out.splits else whole

    def cancel(self) -> None:
        """Stop, and return when that is done; what is packed is kept for the next call."""
        self._progress.cancellation.cancel()
        self._thread.join(_CLEAR_UP_S)

    def _let_in(self, arrival: PackArrival) -> None:
        self._progress.fall_silent()
        self._report.note(
            f"Handed out after {format_duration(SYSTEM_CLOCK.now() - self._began)}, with {arrival.ready} packed; the "
            "rest is packed meanwhile"
        )
        # Here, where the file still has the name that it is written under.
        self._planned.set_result(replace(read_info(arrival.path), path=arrival.place))

    def _run(self) -> None:
        try:
            staged = self._work(self._progress, self._stream)
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits, and to readers
            self._stream.failed(error)
            self._done.set_exception(_said_again(error))
        else:
            self._done.set_result(staged)
        finally:
            # At the interpreter's end it is being called, and cannot be taken back.
            with contextlib.suppress(Exception):
                atexit.unregister(self._stop_at_exit)

    def _stop_at_exit(self) -> None:
        # A forked child has no thread to stop.
        if os.getpid() == self._pid and self._thread.is_alive():
            self.cancel()


def _said_again(error: BaseException) -> BaseException:
    """Return what is raised by `wait`: a stop on request says how to go on."""
    if isinstance(error, CancelledError):
        msg = "Packing was stopped on request; what is packed is kept. Call stage_dataset again: it goes on from there."
        return CancelledError(msg)
    return error if isinstance(error, Exception) else NotStagedError(f"Packing was ended: {said_by(error)}.")


def _first_rows(units: NDArray[np.intp], window_units: int) -> NDArray[np.intp]:
    """Return the rows of the first epoch in the order of a loader with the default seed."""
    return UnitOrder(units, window_units, 0).rows(0, Shard())
