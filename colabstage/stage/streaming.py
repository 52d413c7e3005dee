"""`stage_dataset(streaming=True)`: the same call, in a thread; the caller has the dataset as soon as it is planned.

The thread does what the call would have done: it packs, or copies from the cache, verifies, writes the manifest and the
record, and publishes. In the end the disk holds exactly the same. Meanwhile rows are read from the file that is being
written.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from colabstage.errors import CancelledError, NotStagedError, WorkersLostError, said_by
from colabstage.h5.info import PackInfo, read_info
from colabstage.io.display import resolve_progress
from colabstage.io.progress import SYSTEM_CLOCK, Progress, ProgressStep
from colabstage.io.units import format_duration, format_rate
from colabstage.load.partial import PartialPack, UnitOrder, even_window, open_whole
from colabstage.pack.arrival import PackArrival, PackStream
from colabstage.stage.dataset import StagedDataset, StageReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from colabstage.h5.arrival import Readiness
    from colabstage.stage.publish import PublishReport

    # A whole dataset that is arriving: a pack that is being written, or is copied from the cache.
    Arriving = PackArrival | PartialPack

R = TypeVar("R")

# Waits are cut into pieces of this length, because Ctrl-C does not interrupt waiting for a future.
_LOOK_S = 0.1
# Cancelled work cleans up first.
_CLEAR_UP_S = 30.0
# A page that has stopped responding must not hold the caller.
_LAST_DRAWING_S = 2.0


class _UntilHandedOut(Progress):
    """A progress that shows steps until the dataset is handed out, and can be cancelled at any time.

    After that the user's own cells run, and `BackgroundPack` shows one row for all steps.
    """

    def __init__(self, shown: Progress) -> None:
        super().__init__(shown.cancellation)
        self._shown = shown

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        return self._shown.step(name, total=total, unit=unit)

    def quiet_step(self, name: str) -> ProgressStep:
        return self._shown.quiet_step(name)

    def move_to_background(self) -> Progress:
        """Show no further steps, and return where the background's single row goes."""
        shown, self._shown = self._shown, Progress()
        return shown.background()


class BackgroundPack:
    """One call of `stage_dataset` that continues in a thread of its own.

    The interpreter does not wait for it: at exit the work is stopped, and finished work is kept for the next call. But
    a complete pack is first published to the cache, as `stage_dataset(wait=False)` promises.
    """

    def __init__(
        self,
        work: Callable[[Progress, PackStream, Callable[[PartialPack], object]], StagedDataset],
        report: StageReport,
        shown: Progress,
    ) -> None:
        self._work, self._report, self._progress = work, report, _UntilHandedOut(shown)
        self._wanted = not shown.is_silent
        self._background: Progress = Progress()
        self._planned: Future[PackInfo] = Future()
        self._done: Future[StagedDataset] = Future()
        self._handed_out: StagedDataset | None = None
        self._began, self._ended_s = SYSTEM_CLOCK.now(), float("inf")
        self._stream = PackStream(even_window, _first_rows, self._let_in)
        self._arrival: Arriving | None = None
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="colabstage-stage", daemon=True)
        self._shown: threading.Thread | None = None

    @property
    def arrival(self) -> Arriving:
        assert self._arrival is not None
        return self._arrival

    def start(self) -> StagedDataset:
        """Start, and return the dataset once the pack is planned, or complete if it was already local."""
        # At exit, the interpreter cuts daemon threads off, here perhaps in the middle of a write.
        atexit.register(self._stop_at_exit)
        self._thread.start()
        try:
            either: tuple[Future[Any], ...] = (self._planned, self._done)
            while not any(future.done() for future in either):
                wait(either, timeout=_LOOK_S, return_when="FIRST_COMPLETED")
        except KeyboardInterrupt:
            # Nobody has the dataset yet, so nobody could stop the thread later.
            self.cancel()
            raise
        if not self._planned.done():
            whole = self._done.result()
            # Its first epoch has the order of a pack that is being copied, so a loader continues where a killed one
            # was.
            return replace(whole, part=open_whole(whole.path))
        self._handed_out = StagedDataset(
            path=self.arrival.place, files=None, report=self._report, info=self._planned.result(), arriving=self
        )
        if not self._background.is_silent:
            name, total, unit = self.arrival.bar
            # Opened here: a panel belongs to the cell that the caller's thread runs.
            step = self._background.step(name, total=total, unit=unit)
            self._shown = threading.Thread(target=self._show, args=(step,), name="colabstage-shown", daemon=True)
            self._shown.start()
        return self._handed_out

    @property
    def ready(self) -> Readiness:
        return self.arrival.ready

    @property
    def splits(self) -> Mapping[str, int]:
        return self._planned.result().rows

    def wait_published(self, timeout_s: float) -> PublishReport[Any] | None:
        """Wait until everything is local and in the cache; as `StagedDataset.wait_published`."""
        # One timeout for both: the upload gets what packing leaves.
        deadline = SYSTEM_CLOCK.now() + timeout_s
        self.wait(timeout_s, progress=False)
        return self._done.result().wait_published(max(0.0, deadline - SYSTEM_CLOCK.now()))

    def open(self, reader: Callable[..., R], split: str) -> R:
        """Return a `reader` of a split, such as `dataset_h5`, that waits for rows when they are read."""
        # After a failure a file may remain, but only for the next call to continue.
        self.arrival.check()
        try:
            # The file may get its final name at any moment.
            with contextlib.suppress(FileNotFoundError):
                return reader(self.arrival.path, split=split, arrival=self.arrival)
            return reader(self.arrival.place, split=split, arrival=self.arrival)
        except OSError:
            # If work that failed meanwhile removed it, that failure is the reason.
            self.arrival.check()
            raise

    def wait(self, timeout_s: float | None, progress: bool | Progress | None) -> StagedDataset:
        """Return the dataset once all of it is local; raises `TimeoutError` if that takes too long."""
        # A bar would only jump from zero to the end, below what the caller has printed meanwhile.
        if not self._done.done():
            if os.getpid() != self._pid:
                msg = "The dataset is staged by a thread of another process, before a fork. Wait for it there."
                raise WorkersLostError(msg)
            shown = resolve_progress(self._wanted if progress is None else progress)
            deadline = float("inf") if timeout_s is None else SYSTEM_CLOCK.now() + timeout_s

            def check() -> None:
                shown.cancellation.check()
                if SYSTEM_CLOCK.now() > deadline and not self._done.done():
                    coming = f"the rest is still being {self.arrival.verb}"
                    msg = f"After {timeout_s:g} seconds {self.ready} are here; {coming}."
                    raise TimeoutError(msg)

            name, total, unit = self.arrival.bar
            with shown.step(name, total=total, unit=unit) as step:
                self._follow(step, check)
        if self._shown is not None:
            # The panel's final state belongs to the cell that waits: a notebook run as a whole keeps no later one.
            self._shown.join(_LAST_DRAWING_S)
        self._done.result()
        # The object that was handed out, so that there is only one.
        assert self._handed_out is not None
        return self._handed_out

    def _show(self, step: ProgressStep) -> None:
        """Show how far it is, until the work ends."""
        error: BaseException | None = None
        try:
            self._follow(step, lambda: None)
            error = self._done.exception()
        finally:
            step.__exit__(None if error is None else type(error), error, None)

    def _follow(self, step: ProgressStep, check: Callable[[], object]) -> None:
        """Advance a step with the work, until the work ends or `check` raises."""
        # What an earlier call did does not count for this one's rate.
        step.start_at(done := self.arrival.moved)
        is_over = False
        while not is_over:
            step.note(self.arrival.waits_for or self._training())
            is_over = bool(wait((self._done,), timeout=_LOOK_S).done)
            now = self.arrival.moved
            step.advance(now - done)
            done = now
            check()
        step.note(self._training())

    def _training(self) -> str:
        """Say how training proceeds while data arrives; "" before the first batch."""
        got = self.arrival.handed_out
        if got.first_s is None:
            return ""
        rate = format_rate(got.rows, got.last_s - got.first_s, "samples")
        return f"training: {rate}, waited {format_duration(got.waited_s)} for data"

    def cancel(self) -> None:
        """Stop the work and wait for its end; packed rows are kept for the next call."""
        self._progress.cancellation.cancel()
        self._thread.join(_CLEAR_UP_S)

    def figures(self) -> dict[str, float]:
        """Return the figures of `StageReport.arrival`."""
        found: dict[str, float] = {**self.arrival.figures}
        got = self.arrival.handed_out
        if got.first_s is not None:
            # Training continues after the last row has arrived; only the part beside the work counts.
            overlap_s = max(0.0, min(got.last_s, self._ended_s) - got.first_s)
            found |= {"first_batch_s": got.first_s - self._began, "overlap_s": overlap_s, "waited_s": got.waited_s}
        return found

    def _let_in(self, arrival: Arriving) -> None:
        self._arrival = arrival
        # Before the dataset is handed out: from then on, output belongs to the user's cells.
        self._background = self._progress.move_to_background()
        self._report.arrival, self._report.state = self.figures, "arriving"
        self._report.note(
            f"Returned after {format_duration(SYSTEM_CLOCK.now() - self._began)}, with {arrival.ready} {arrival.verb}"
        )
        # Now, while the file still has its temporary name.
        self._planned.set_result(replace(read_info(arrival.path), path=arrival.place))

    def _run(self) -> None:
        try:
            staged = self._work(self._progress, self._stream, self._let_in)
            self._ended_s = SYSTEM_CLOCK.now()
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits, and to readers
            stopped, again = isinstance(error, CancelledError), error
            if stopped:
                msg = "Staging was cancelled; what is done is kept. Call stage_dataset again: it continues from there."
                again = CancelledError(msg)
            elif not isinstance(error, Exception):
                again = NotStagedError(f"Packing was ended: {said_by(error)}.")
            # The report outlives the cell that showed the error.
            self._report.note(str(again) if stopped else f"It failed: {said_by(again)}")
            self._report.state = "stopped" if stopped else "failed"
            self._stream.failed(error)
            self._done.set_exception(again)
        else:
            self._report.state = "done"
            self._done.set_result(staged)
        finally:
            # At exit the function is already being called, and cannot be unregistered.
            with contextlib.suppress(Exception):
                atexit.unregister(self._stop_at_exit)

    def _stop_at_exit(self) -> None:
        # A forked child inherits this function, but not the thread.
        if os.getpid() == self._pid and self._thread.is_alive():
            self.cancel()


def _first_rows(units: NDArray[np.intp], window_units: int, first_units: int, together: int) -> NDArray[np.intp]:
    """Return the rows of the first epoch of a loader with the default seed, in order."""
    return UnitOrder(units, window_units, None, first_units, together).rows(0, 0)
