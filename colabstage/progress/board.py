"""`Board`: the steps of a work with how far each is, told to whoever draws them a few times a second.

Whoever does the work only adds to a number; looking and drawing are the business of one thread, which lives while a
step is open. So a report costs the time of one lock however often it comes, and what is drawn stays true when no report
comes at all.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from colabstage.errors import CancelledError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from colabstage.progress.cancellation import Cancellation

# "ended" is a step that closed without an error before all of it was done: the copy of an archive, for example, when
# the one who reads it has failed.
State = Literal["running", "done", "failed", "cancelled", "ended"]

# Five pictures a second look alive; a picture of two rows takes well under 1 ms.
_INTERVAL_S = 0.2
# The rate is that of the last seconds: of the whole step it would still promise what a source that has stalled gave.
_WINDOW_S = 5.0
_MARK_S = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """One step as it is at one moment.

    `total`, `done`: in `unit`s ("B" for bytes). `seconds`: since it was opened, or what it took.
    `rate`: units per second, of the last seconds while it runs and of the whole step afterwards.
    `idle_s`: seconds without a report, as far as somebody looked. `problem`: of a failed step, what went wrong.
    """

    name: str
    unit: str
    total: int | None
    done: int
    state: State
    seconds: float
    rate: float
    idle_s: float = 0.0
    problem: str = ""

    @property
    def fraction(self) -> float | None:
        """The part that is done, 0 to 1; `None` when nobody knows how much there is."""
        if not self.total:
            return None if self.total is None else 1.0
        return min(1.0, self.done / self.total)

    @property
    def seconds_left(self) -> float | None:
        """At the present rate; `None` when that is nothing, or the total unknown."""
        if self.total is None or self.rate <= 0 or self.state != "running":
            return None
        return max(0.0, (self.total - self.done) / self.rate)


class BoardStep:
    """One step of a `Board`."""

    def __init__(self, board: Board, name: str, total: int | None, unit: str) -> None:
        self._board = board
        self._name, self._total, self._unit = name, total, unit
        self._lock = threading.Lock()
        self._began = self._changed = time.monotonic()
        self._done = self._seen = 0
        self._marks: deque[tuple[float, int]] = deque([(self._began, 0)])
        self._final: Row | None = None

    def advance(self, amount: int = 1) -> None:
        """Add `amount` units. From any thread."""
        with self._lock:
            self._done += amount

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._final is not None:
                return
            state = self._ending(kind)
            seconds = time.monotonic() - self._began
            rate = self._done / seconds if seconds > 0 else 0.0
            problem = str(error) or type(error).__name__ if error is not None and state == "failed" else ""
            self._final = Row(self._name, self._unit, self._total, self._done, state, seconds, rate, problem=problem)
        self._board.closed()

    def _ending(self, kind: type[BaseException] | None) -> State:
        if kind is not None:
            return "cancelled" if issubclass(kind, (CancelledError, KeyboardInterrupt)) else "failed"
        if self._total is None or self._done >= self._total:
            return "done"
        cancellation = self._board.cancellation
        return "cancelled" if cancellation is not None and cancellation.cancelled else "ended"

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return self._final is None

    def look(self) -> Row:
        """How far it is."""
        with self._lock:
            if self._final is not None:
                return self._final
            now = time.monotonic()
            while len(self._marks) > 1 and self._marks[1][0] < now - _WINDOW_S:
                self._marks.popleft()
            since, before = self._marks[0]
            rate = (self._done - before) / (now - since) if now > since else 0.0
            if now - self._marks[-1][0] >= _MARK_S:
                self._marks.append((now, self._done))
            if self._seen != self._done:
                self._seen, self._changed = self._done, now
            idle_s = now - self._changed
            return Row(self._name, self._unit, self._total, self._done, "running", now - self._began, rate, idle_s)


class Board:
    """A `Progress` that shows all steps of a work together, wherever `show` draws them.

    `cancellation`: what a button beside it sets; `None` where there is none.
    """

    def __init__(
        self,
        show: Callable[[tuple[Row, ...]], None],
        *,
        cancellation: Cancellation | None = None,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        """`show` gets all rows in order, from several threads but never from two at once."""
        self.cancellation = cancellation
        self._show = show
        self._interval_s = interval_s
        self._steps: list[BoardStep] = []
        self._lock = threading.Lock()
        self._drawing = threading.Lock()
        self._stop: threading.Event | None = None

    def step(self, name: str, *, total: int | None, unit: str) -> BoardStep:
        """Open a step; it is shown at once."""
        step = BoardStep(self, name, total, unit)
        with self._lock:
            self._steps.append(step)
        self._draw()
        with self._lock:
            if self._stop is None and step.open:
                self._stop = threading.Event()
                # With the caller's context, by which a kernel knows the cell that this belongs to.
                run = contextvars.copy_context().run
                threading.Thread(
                    target=run, args=(self._keep_drawing, self._stop), name="colabstage-progress", daemon=True
                ).start()
        return step

    def closed(self) -> None:
        """A step has ended: show how, and rest if it was the last one that was open."""
        with self._lock:
            if self._stop is not None and not any(step.open for step in self._steps):
                self._stop.set()
                self._stop = None
        self._draw()

    def rows(self) -> tuple[Row, ...]:
        """All steps as they are now, in the order in which they were opened."""
        with self._lock:
            steps = tuple(self._steps)
        return tuple(step.look() for step in steps)

    def _draw(self) -> None:
        with self._drawing:
            self._show(self.rows())

    def _keep_drawing(self, stop: threading.Event) -> None:
        while not stop.wait(self._interval_s):
            self._draw()
