"""Work in a thread of its own, one at a time: the kernel stays free, so buttons answer while it runs."""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Worker:
    """Runs one piece of work at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = False

    @property
    def busy(self) -> bool:
        """Whether something runs."""
        return self._busy

    def start(self, work: Callable[[], None], *, begun: Callable[[], None], ended: Callable[[], None]) -> None:
        """Call `begun`; then run `work` and after it `ended`, whatever became of it. Nothing while something runs."""
        with self._lock:
            if self._busy:
                return
            self._busy = True
        begun()

        def run() -> None:
            try:
                work()
            finally:
                ended()
                # Last, so that what `ended` does cannot fall into the next work.
                self._busy = False

        # Ends with the kernel: what was finished by then is kept, and the next call goes on from there.
        threading.Thread(
            target=contextvars.copy_context().run, args=(run,), name="colabstage-form", daemon=True
        ).start()
