"""A few threads that share out one piece of work and come back together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Crew:
    """`threads` threads, the caller's own among them. Idle ones wait; `close` ends them."""

    def __init__(self, threads: int) -> None:
        self.threads = max(1, threads)
        self._pool = ThreadPoolExecutor(self.threads - 1, "colabstage-crew") if self.threads > 1 else None

    def share(self, count: int, work: Callable[[int, int], None]) -> None:
        """Call `work(start, stop)` on contiguous parts of `range(count)`, one part a thread, and wait for all.

        Raises:
            Exception: the first one that a part raised, after all parts have ended.
        """
        parts = min(self.threads, count)
        if parts < 2 or self._pool is None:
            work(0, count)
            return
        edges = [count * part // parts for part in range(parts + 1)]
        others = [self._pool.submit(work, edges[part], edges[part + 1]) for part in range(1, parts)]
        try:
            work(edges[0], edges[1])
        finally:
            # The parts write into the caller's array: none may go on after this returns.
            wait(others)
        for other in others:
            other.result()

    def close(self) -> None:
        """End the threads. Calling it twice is fine."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


SOLO = Crew(1)
