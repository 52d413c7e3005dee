"""Share out one piece of work among a few threads that come back together."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from colabstage.io.files import Closing
from colabstage.io.progress import Cancellation

if TYPE_CHECKING:
    from collections.abc import Callable

# More parts than threads, taken one after the other: a thread that wakes late, or whose core has other work, then takes
# fewer of them, instead of having the others wait. Halves were a quarter slower than eighths by two threads. Each is a
# trip through Python's lock, though: beside a step that holds it, eighths took a tenth more of the processor than
# quarters, which are as fast.
_PARTS_A_THREAD = 2


class ThreadPool(Closing):
    """Hold `threads` threads, the caller's own among them. Idle ones wait; `close` ends them.

    Attributes:
        threads: how many.
        cancellation: stops what is shared: no part is begun after it. Work whose parts take long, as decoding does,
            looks at it between rows.
    """

    def __init__(self, threads: int, cancellation: Cancellation | None = None) -> None:
        self.threads = max(1, threads)
        self.cancellation = cancellation or Cancellation()
        self._pool = ThreadPoolExecutor(self.threads - 1, "colabstage-pool") if self.threads > 1 else None

    def share(self, count: int, work: Callable[[int, int], None]) -> None:
        """Call `work(start, stop)` on contiguous parts of `range(count)`, a few parts a thread, and wait for all.

        Raises:
            Exception: one that a part raised, after all parts that had begun have ended; no other is begun then.
            CancelledError: nobody wants it any more; likewise.
        """
        self.cancellation.check()
        # No more than there are rows to share.
        threads = min(self.threads, count)
        # Without waking anybody, as most batches of one thread want it.
        if threads < 2 or self._pool is None:
            work(0, count)
            return
        parts = min(threads * _PARTS_A_THREAD, count)
        edges = [count * part // parts for part in range(parts + 1)]
        left = deque(range(parts))

        def take_parts() -> None:
            try:
                while (part := _taken(left)) is not None:
                    self.cancellation.check()
                    work(edges[part], edges[part + 1])
            except BaseException:
                left.clear()
                raise

        others = [self._pool.submit(take_parts) for _ in range(1, threads)]
        try:
            take_parts()
        finally:
            # The parts write into the caller's array: none may continue after this returns. A thread that has not even
            # begun is not waited for.
            running = [other for other in others if not other.cancel()]
            wait(running)
        for other in running:
            other.result()

    def each(self, count: int, work: Callable[[int], None]) -> None:
        """Call `work(place)` for each of `range(count)`, each thread the next one when it is free, and wait for all.

        For work that takes a millisecond or more, and some of it twice as long as other.

        Raises:
            As `share`.
        """
        places = iter(range(count))

        def take_places(_start: int, _stop: int) -> None:
            # All threads take from one iterator; its next step is atomic.
            for place in places:
                self.cancellation.check()
                try:
                    work(place)
                except BaseException:
                    for _ in places:
                        """Leave none to begin."""
                    raise

        self.share(min(self.threads, count), take_places)

    def close(self) -> None:
        """End the threads. Calling it twice is fine."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _taken(left: deque[int]) -> int | None:
    """Return the next part, `None` when none is left. Popping is atomic: no two threads get the same."""
    try:
        return left.popleft()
    except IndexError:
        return None


SOLO = ThreadPool(1)
