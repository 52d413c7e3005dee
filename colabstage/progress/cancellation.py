"""Asking work to stop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from colabstage.errors import CancelledError

if TYPE_CHECKING:
    from colabstage.progress.protocol import Progress


class Cancellation:
    """A flag that long work looks at between units; setting it stops the work at the next unit."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Ask the work to stop. May be called from any thread, any number of times."""
        self._event.set()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` has been called."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise `CancelledError` if `cancel` has been called."""
        if self._event.is_set():
            msg = "Cancelled on request; nothing that was there before has changed."
            raise CancelledError(msg)


def cancellation_of(progress: Progress) -> Cancellation:
    """What stops the work that `progress` shows: its own `cancellation`, or one that nobody uses."""
    own = getattr(progress, "cancellation", None)
    return own if isinstance(own, Cancellation) else Cancellation()
