"""Progress, cancellation and time, passed down as arguments.

Code that waits, measures or gives up takes a `Clock`, and a test passes one that it controls. Other programs and the
kernel take real time, whatever the clock says.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

from colabstage.errors import CancelledError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType


class Clock(Protocol):
    """The interface of `SystemClock` and of the clocks in tests."""

    def now(self) -> float:
        """Return seconds since some fixed moment; they never decrease."""

    def sleep(self, seconds: float, /) -> None:
        """Sleep for `seconds`."""

    def wait(self, condition: threading.Condition, timeout: float, /) -> bool:
        """Wait, with the lock held, until the condition is notified, for at most `seconds`."""


class SystemClock:
    """The computer's own clock. It holds the functions themselves, so that a call costs nothing extra."""

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
        """Make `cancel` also call `tell`, once; return what undoes this, so that finished work leaves memory."""
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
    """Say what the consumer of a thread's work wants: nothing more (`cancel`), or the next result at once. `touches`:
    files that the work reads, which may be on a mount that hangs."""

    def __init__(self, touches: Sequence[Path] = ()) -> None:
        super().__init__()
        self.touches = touches
        self._asked: Callable[[], bool] = lambda: True

    @property
    def urgent(self) -> bool:
        """Return whether nothing is ready for the consumer, who may be waiting. True until `ask` is called."""
        return self._asked()

    def ask(self, whether: Callable[[], bool]) -> None:
        """Make `urgent` call this function from now on: from any thread, many times a second, without a lock."""
        self._asked = whether


class ProgressStep:
    """One step of longer work, for example the copy of one file; a context manager. Any method may be called from any
    thread.

    This one shows nothing. Derive from it, and override what you show.
    """

    def advance(self, amount: int = 1) -> None:
        """Count `amount` further units (bytes, samples, files)."""

    def start_at(self, amount: int) -> None:
        """Count what was done before the step began, which is no part of its rate."""
        self.advance(amount)

    def note(self, text: str) -> None:
        """Replace the text beside it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Progress:
    """Show the steps of some work, and stop it.

    This one shows nothing. Derive from it, and override what you show.
    """

    def __init__(self, cancellation: Cancellation | None = None) -> None:
        """Let `cancellation` stop the work; by default one of its own."""
        if cancellation is not None:
            self.cancellation = cancellation

    @cached_property
    def cancellation(self) -> Cancellation:
        """Return what stops the work."""
        # Created here, because a derived class may not call `super().__init__()`.
        return Cancellation()

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        """Open a step. `total` is in `unit`s, `None` when unknown; `unit` is "B" for bytes, else a noun; "" if nothing
        is counted."""
        return ProgressStep()

    def background(self) -> Progress:
        """Return where to show progress while the caller's code runs, which may print and draw its own bars."""
        return Progress()

    @property
    def is_silent(self) -> bool:
        """Return whether it shows no steps."""
        return type(self).step is Progress.step


# Who sees nothing for longer believes that nothing happens.
SILENCE_S = 2.0


@contextlib.contextmanager
def shown_if_slow(progress: Progress, name: str) -> Iterator[None]:
    """Show a step in which nothing is counted if the block takes more than two seconds."""
    if progress.is_silent:
        yield
        return
    lock, shown, ended = threading.Lock(), contextlib.ExitStack(), threading.Event()

    def show() -> None:
        with lock:
            if not ended.is_set():
                shown.enter_context(progress.step(name, total=None, unit=""))

    # In the caller's context, which tells a kernel to which cell the output belongs.
    timer = threading.Timer(SILENCE_S, contextvars.copy_context().run, (show,))
    timer.daemon = True
    timer.start()
    with shown:
        try:
            yield
        finally:
            timer.cancel()
            with lock:
                ended.set()


class LateStep(ProgressStep):
    """A step from the first byte to the last: most copies never begin, and a finished one may be read for long."""

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
        self._count(amount, lambda step: step.start_at(amount))

    def note(self, text: str) -> None:
        with self._lock:
            if self._step is not None:
                self._step.note(text)

    def _count(self, amount: int, tell: Callable[[ProgressStep], object]) -> None:
        with self._lock:
            # Bytes that arrive twice count once.
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

    def __exit__(self, *how: Any) -> None:
        with self._lock:
            step, self._step = self._step, None
        if step is not None:
            step.__exit__(*how)
