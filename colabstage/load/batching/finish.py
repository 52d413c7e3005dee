"""What happens to a batch between being read and being the caller's: its dtype, and the caller's own transform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.load.batching.ahead import Tick
from colabstage.load.batching.batches import scale_to
from colabstage.load.epoch.dice import apply_transform

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import torch

    from colabstage.load.epoch.dice import BatchPlace


@dataclass(frozen=True, slots=True)
class Finish:
    """Takes batches `(x, y)` or `(x, y, index)`. `dtype`: of x, `None` to leave it; `batch_transform`: of `(x, y)`."""

    dtype: torch.dtype | None
    batch_transform: Callable[[Any, Any], tuple[Any, Any]] | None

    def scale(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """The batch with x in its dtype, on the device that it is on."""
        return batch if self.dtype is None else (scale_to(batch[0], self.dtype), *batch[1:])

    def transform(self, batch: tuple[Any, ...], place: BatchPlace | None = None) -> Any:
        """The batch as the caller gets it: `(x, y)`, or `((x, y), index)`. `place`: where it stands, if that is known,
        for transforms that take it."""
        x, y, *index = batch
        sample = self._transformed(x, y, place)
        return (sample, index[0]) if index else sample

    def _transformed(self, x: Any, y: Any, place: BatchPlace | None) -> tuple[Any, Any]:
        if self.batch_transform is None:
            return x, y
        return self.batch_transform(x, y) if place is None else apply_transform(self.batch_transform, x, y, place)

    def scale_each(self, batches: Generator[tuple[Any, ...] | Tick]) -> Generator[tuple[Any, ...] | Tick]:
        """The batches, each in its dtype, made where they are: in the thread that prepares them."""

        def scaled(batch: tuple[Any, ...] | Tick) -> tuple[Any, ...] | Tick:
            return batch if isinstance(batch, Tick) else self.scale(batch)

        try:
            # Not a loop: its variable would keep a batch alive while the next one is made.
            yield from map(scaled, batches)
        finally:
            batches.close()


@dataclass(frozen=True, slots=True)
class Collate:
    """`collate_fn` for loaders that frameworks build of our parts: what they get is finished, in host memory."""

    finish: Finish

    def __call__(self, batch: tuple[Any, ...]) -> Any:
        return self.finish.transform(self.finish.scale(batch))
