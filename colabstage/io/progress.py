"""Progress, cancellation and time, passed down as arguments.

Code that waits, measures or gives up takes a `Clock`, and a test passes one that it controls. Deadlines are compared
with `now`, pauses use `sleep`, and threads wait for each other with `wait`. Other programs and the kernel take real
time, whatever the clock says.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, Self

from colabstage.errors import CancelledError, OptionError, printable
from colabstage.io.environment import NO_PROGRESS_VARIABLE, is_set
from colabstage.io.page import Board, NotebookProgress, in_notebook, row_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from colabstage.io.page import Row


class Clock(Protocol):
    """The interface of `SystemClock` and of the clocks in tests."""

    def now(self) -> float:
        """Return seconds since some fixed moment; they never decrease."""

    def sleep(self, seconds: float, /) -> None:
        """Sleep for `seconds`."""

    def wait(self, condition: threading.Condition, timeout: float, /) -> bool:
        """Wait, with the lock held, until the condition is notified, for at most `seconds`."""


class SystemClock:
    """The computer's own clock: the functions themselves, so that a call costs nothing extra."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    wait = staticmethod(threading.Condition.wait)


SYSTEM_CLOCK = SystemClock()


class Cancellation:
    """A flag that long work checks between units; setting it stops the work at the next unit."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._followers: list[Callable[[], object]] = []

    def cancel(self) -> None:
        """Ask the work to stop. May be called from any thread, any number of times."""
        self._event.set()
        with self._lock:
            followers, self._followers = self._followers, []
        for tell in followers:
            tell()

    def follow(self, tell: Callable[[], object]) -> Callable[[], None]:
        """Make `cancel` also call `tell`, once; return what ends that: work that is over is not kept in memory."""
        with self._lock:
            self._followers.append(tell)
        if self._event.is_set():
            self.cancel()

        def leave() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._followers.remove(tell)

        return leave

    @property
    def cancelled(self) -> bool:
        """Return whether `cancel` has been called."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise `CancelledError` if `cancel` has been called."""
        if self.cancelled:
            msg = "Cancelled on request; nothing that was there before has changed."
            raise CancelledError(msg)

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`; raise `CancelledError` as soon as `cancel` is called."""
        self._event.wait(seconds)
        self.check()


class Demand(Cancellation):
    """Say what the consumer of a thread's work wants: nothing more (`cancel`), or the next result at once."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: Callable[[], bool] = lambda: True

    @property
    def urgent(self) -> bool:
        """Return whether nothing is ready for the consumer, who may be waiting. True until `urgent_when` is called."""
        return self._asked()

    def ask(self, whether: Callable[[], bool]) -> None:
        """Make `urgent` call this function from now on: from any thread, many times a second, without a lock."""
        self._asked = whether


def cancellation_of(progress: Progress) -> Cancellation:
    """Return the `cancellation` of a `Progress`, or a new one that nobody sets."""
    own = getattr(progress, "cancellation", None)
    return own if isinstance(own, Cancellation) else Cancellation()


class ProgressStep(Protocol):
    """One step of longer work, for example the copy of one file."""

    def advance(self, amount: int = 1) -> None:
        """Report `amount` further units (bytes, samples, files) done. May be called from any thread."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Progress(Protocol):
    """Show the steps of some work.

    An implementation with an attribute `cancellation` can also stop the work; see `cancellation_of`.
    """

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        """Open a step. `total` is in `unit`s, `None` when unknown; `unit` is "B" for bytes, else a noun."""


class _NullStep:
    def advance(self, amount: int = 1) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class NullProgress:
    """Shows nothing; `cancellation` stops the work."""

    def __init__(self, cancellation: Cancellation | None = None) -> None:
        self.cancellation = cancellation or Cancellation()

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        return _NullStep()


class _TqdmStep:
    def __init__(self, bar: Any) -> None:
        self._bar = bar
        # tqdm's own update is not safe to call from several threads.
        self._lock = threading.Lock()

    def advance(self, amount: int = 1) -> None:
        with self._lock:
            self._bar.update(amount)

    def start_at(self, amount: int) -> None:
        """Count what was done before, as `start_at` does."""
        with self._lock:
            self._bar.initial += amount
            self._bar.n += amount
            self._bar.refresh()

    def note(self, text: str) -> None:
        """Show a text after the bar."""
        with self._lock:
            self._bar.set_postfix_str(printable(text), refresh=False)

    def remove(self) -> None:
        """Remove the bar; its work continues unseen."""
        with self._lock:
            self._bar.leave = False
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._bar.close()


class TqdmProgress:
    """One tqdm bar for each step, as text on stderr; in notebooks too, where tqdm's widgets do not survive a reload."""

    def __init__(self) -> None:
        """Start without a bar."""
        self._steps: list[_TqdmStep] = []

    def background(self) -> Progress:
        """Remove the bars, and return lines of text: what the caller prints from now on would break a bar."""
        for step in self._steps:
            step.remove()
        self._steps.clear()
        return LineProgress()

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        from tqdm.std import tqdm

        class Bar(tqdm):  # type: ignore[misc]
            # tqdm's own thread is only needed for bars that skip updates; with `miniters=0` none are skipped.
            monitor_interval = 0

        scaled = unit == "B"
        bar = Bar(
            total=total,
            desc=printable(name),
            unit=unit if scaled else f" {unit}",
            unit_scale=scaled,
            unit_divisor=1000,
            dynamic_ncols=True,
            mininterval=0.2,
            miniters=0,
        )
        self._steps.append(step := _TqdmStep(bar))
        return step


# Lines come no more often than this: one or two for a step of seconds, ten for a step of hours.
_BETWEEN_LINES_S = 2.0


class LineProgress(Board):
    """Print a line at each tenth of a step, and one at its end."""

    def __init__(self) -> None:
        """Start without a line."""
        super().__init__(self._print)
        self._printed: dict[int, tuple[int, float]] = {}

    def _print(self, rows: tuple[Row, ...]) -> None:
        from tqdm.std import tqdm

        for number, row in enumerate(rows):
            printed, at_s = self._printed.get(number, (0, 0.0))
            tenths = int(10 * (row.fraction or 0.0)) if row.state == "running" else 11
            if tenths > printed and (tenths > 10 or row.seconds - at_s >= _BETWEEN_LINES_S):
                self._printed[number] = tenths, row.seconds
                # Above the caller's own bar, not into it.
                tqdm.write(row_text(row), file=sys.stderr)


def background_of(progress: Progress) -> Progress:
    """Return where to show progress while the caller's code runs, which may print and draw its own bars.

    A panel stays in the cell that opened it, and a terminal gets whole lines. A custom `Progress` shows nothing of it,
    unless it has a method `background` that returns a `Progress`.
    """
    background: Callable[[], Progress] = getattr(progress, "background", NullProgress)
    return background()


def annotate(step: ProgressStep, text: str) -> None:
    """Show a text beside a step, if it has a method `note`."""
    note = getattr(step, "note", None)
    if callable(note):
        note(text)


def start_at(step: ProgressStep, amount: int) -> None:
    """Count what was done before the step began, without affecting its rate, if it has a method `start_at`."""
    start: Callable[[int], object] = getattr(step, "start_at", step.advance)
    start(amount)


def resolve_progress(progress: bool | Progress) -> Progress:
    """Turn the public `progress=` argument into a `Progress`.

    `True` is a panel in notebooks and lines of text elsewhere, unless `COLABSTAGE_NO_PROGRESS` is set; `False` is
    silence.

    Raises:
        OptionError: it is none of these.
    """
    if progress is True:
        if is_set(NO_PROGRESS_VARIABLE):
            return NullProgress()
        if in_notebook():
            return NotebookProgress()
        # A process without a terminal may have no such stream at all: a daemon, or `pythonw`.
        return NullProgress() if sys.stderr is None or sys.stderr.closed else TqdmProgress()
    if progress is False:
        return NullProgress()
    if not callable(getattr(progress, "step", None)):
        msg = f"progress={progress!r} cannot show progress. Pass True, False, or an object with a method step()."
        raise OptionError(msg)
    return progress


class LateStep:
    """A step that opens at the first byte and closes at the last: most copies never begin, and a finished one is read
    long after."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress = progress
        self._name = name
        self._total = total
        self._lock = threading.Lock()
        self._done = 0
        self._step: ProgressStep | None = None

    def advance(self, amount: int = 1) -> None:
        self._count(amount, lambda step: step.advance(amount))

    def start_at(self, amount: int) -> None:
        """Count what was done before, as `start_at` does."""
        self._count(amount, lambda step: start_at(step, amount))

    def note(self, text: str) -> None:
        """Show a text beside it, as `annotate` does."""
        with self._lock:
            if self._step is not None:
                annotate(self._step, text)

    def _count(self, amount: int, tell: Callable[[ProgressStep], object]) -> None:
        with self._lock:
            # Bytes that came twice do not count twice.
            if self._done >= self._total > 0:
                return
            if self._step is None:
                self._step = self._progress.step(self._name, total=self._total, unit="B")
                self._step.__enter__()
            self._done += amount
            tell(self._step)
            if self._done >= self._total:
                self._step.__exit__(None, None, None)
                self._step = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: Any) -> None:
        with self._lock:
            step, self._step = self._step, None
        if step is not None:
            step.__exit__(*how)
