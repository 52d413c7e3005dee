"""What is told of progress: `Progress`, `ProgressStep`, and the one that shows nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType


class ProgressStep(Protocol):
    """One step of a longer work, for example the copy of one file."""

    def advance(self, amount: int = 1) -> None:
        """Report `amount` further units (bytes, samples, files) done. May be called from any thread."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Progress(Protocol):
    """Where the steps of a work are shown.

    One that has an attribute `cancellation`, a `Cancellation`, can also stop the work; see `cancellation_of`.
    """

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        """Open a step. `total` is in `unit`s, `None` when unknown; `unit` is "B" for bytes, else a noun."""


class _NullStep:
    def advance(self, amount: int = 1) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class NullProgress:
    """Shows nothing."""

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        return _NullStep()
