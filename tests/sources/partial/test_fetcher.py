"""The thread that begins to fetch: it looks again whenever a block has come."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, cast

from colabstage.sources.partial import fetcher

if TYPE_CHECKING:
    import pytest


class _Fetcher:
    """What the thread calls; it ends after the second time."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.woken: list[bool] = []

    def work(self, *, woken: bool) -> None:
        """Note whether something is said to have changed."""
        self.woken.append(woken)
        if len(self.woken) == 2:
            self.stop.set()


class _SetAfterTheWait(threading.Event):
    """An event that is set right after the first wait for it has ended in vain."""

    def __init__(self) -> None:
        super().__init__()
        self._waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as any event, then be set."""
        seen = super().wait(timeout)
        self._waits += 1
        if self._waits == 1:
            self.set()
        return seen


def test_a_block_that_comes_right_after_the_wait_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the last one under way; then nobody would wake the thread again, and the rest would never come."""
    monkeypatch.setattr(fetcher, "_TICK_S", 0.001)
    one, wake = _Fetcher(), _SetAfterTheWait()
    fetcher._run(weakref.ref(cast("Any", one)), one.stop, wake)
    assert one.woken == [False, True]
