"""Progress during which something happens, and waiting for it."""

import io
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pickle import dumps, loads
from typing import Any, Self

from colabstage.io.progress import Progress, ProgressStep


class OneStep(Progress, ProgressStep):
    """A `Progress` that is also each of its steps: `advance` acts while the work is under way."""

    def step(self, name: str, *, total: int | None, unit: str) -> Self:
        return self


class Meanwhile(OneStep):
    """Calls a function at each advance, of every step or of those with one name."""

    def __init__(self, happens: Callable[[], object], *, during: str | None = None) -> None:
        super().__init__()
        self._happens = happens
        self._during = during

    def step(self, name: str, *, total: int | None, unit: str) -> Self | ProgressStep:  # type: ignore[override]
        return self if self._during in (None, name) else ProgressStep()

    def advance(self, amount: int = 1) -> None:
        self._happens()


class AtStep(Progress):
    """Calls a function whenever a step with this name begins."""

    def __init__(self, name: str, act: Callable[[], object]) -> None:
        super().__init__()
        self._name = name
        self._act = act

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        if name == self._name:
            self._act()
        return super().step(name, total=total, unit=unit)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def wait_until(is_so: Callable[[], bool], *, seconds: float = 30.0) -> None:
    """Wait until a condition holds; fail if it does not in time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"it did not come about within {seconds} s"
        time.sleep(0.01)


class AfterThat(Executor):
    """Runs a task in this thread, sent as to another process, once something has happened."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens = happens

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        self._happens()
        future: Future[Any] = Future()
        try:
            future.set_result(function(*loads(dumps(arguments))))
        except Exception as error:  # noqa: BLE001  # as an executor does
            future.set_exception(loads(dumps(error)))
        return future
