"""One running iteration over batches, and the rule that there is only one at a time."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")


class Source(Protocol[S_co]):
    """What an iteration takes from: a thread's results (`Ahead`), or a generator."""

    def __next__(self) -> S_co: ...

    def close(self) -> None:
        """End it, and free what it holds. Calling it twice is fine."""


class Iteration(Generic[S, T]):
    """One running iteration. Holds nothing of the loader but what it needs, so that either may be dropped first."""

    def __init__(
        self, source: Source[S], hand_out: Callable[[S], T], at_end: Callable[[], object] = lambda: None
    ) -> None:
        """`hand_out`: makes what the source gives the consumer's, in the consumer's thread. `at_end`: called when the
        consumer has been told that there is no more."""
        self._source = source
        self._hand_out = hand_out
        self._at_end = at_end
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._closed:
            msg = "This iteration was ended, by a newer one over the same loader or by close(). Start a new one."
            raise RuntimeError(msg)
        try:
            given = next(self._source)
        except StopIteration:
            self._at_end()
            raise
        return self._hand_out(given)

    def close(self) -> None:
        """End it, with the thread behind it."""
        self._closed = True
        self._source.close()


class OneAtATime:
    """A loader with one running iteration at the most; as a context, it ends it."""

    _running: weakref.ref[Iteration[Any, Any]] | None = None

    def _begun(self, iteration: Iteration[S, T]) -> Iteration[S, T]:
        """Take note of the iteration that runs from now on."""
        self._running = weakref.ref(iteration)
        return iteration

    def close(self) -> None:
        """End the iteration that runs, if one does. The loader can be iterated again."""
        self._end_iteration()

    def _end_iteration(self) -> None:
        iteration = None if self._running is None else self._running()
        self._running = None
        if iteration is not None:
            iteration.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
