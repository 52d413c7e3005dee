"""Progress during which something happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from colabstage.io.progress import Progress, ProgressStep

if TYPE_CHECKING:
    from collections.abc import Callable


class OneStep(Progress, ProgressStep):
    """Progress that is each of its steps: what `advance` does is done while the work goes on."""

    def step(self, name: str, *, total: int | None, unit: str) -> Self:
        return self


class Meanwhile(OneStep):
    """Calls a function whenever the work gets further."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens = happens

    def advance(self, amount: int = 1) -> None:
        self._happens()
