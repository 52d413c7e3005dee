"""Progress as lines of text."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from colabstage.errors import printable

if TYPE_CHECKING:
    from types import TracebackType

    from colabstage.progress.protocol import ProgressStep


class _TqdmStep:
    def __init__(self, bar: Any) -> None:
        self._bar = bar
        # tqdm's own update is not safe to call from several threads.
        self._lock = threading.Lock()

    def advance(self, amount: int = 1) -> None:
        with self._lock:
            self._bar.update(amount)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._bar.close()


class TqdmProgress:
    """One tqdm bar a step, as text on stderr; also in notebooks, where tqdm's widgets do not outlive a reload."""

    def step(self, name: str, *, total: int | None, unit: str) -> ProgressStep:
        from tqdm.std import tqdm

        class Bar(tqdm):  # type: ignore[misc]
            # No thread of tqdm's own: it is there for bars that skip updates, and `miniters=0` skips none.
            monitor_interval = 0

        scaled = unit == "B"
        return _TqdmStep(
            Bar(
                total=total,
                desc=printable(name),
                unit=unit if scaled else f" {unit}",
                unit_scale=scaled,
                unit_divisor=1000,
                dynamic_ncols=True,
                mininterval=0.2,
                miniters=0,
            )
        )
