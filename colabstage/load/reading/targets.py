"""Read targets of every kind as rows: numbers and arrays of one shape, masks that are decoded, boxes of any number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from colabstage.errors import DamagedPackError
from colabstage.h5.schema import BOXES
from colabstage.images.geometry import fit_boxes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from colabstage.images.options import ImageOptions
    from colabstage.load.reading.encoded import EncodedRows
    from colabstage.load.reading.engines import RowEngine
    from colabstage.load.reading.storage import StorageFacts
    from colabstage.load.reading.threads import ThreadPool

# Targets of B rows: one array `(B, …)`, or where rows have their own shapes a list of B.
TargetBatch = NDArray[Any] | list[NDArray[Any]] | list[dict[str, NDArray[Any]]] | list[str]


class TargetRows(Protocol):
    """Read targets of rows. May be called from any thread, from several at once."""

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> TargetBatch:
        """Return the targets of `rows`, each in `[0, N)`, in their order; put into `out` where they share a shape."""


class FixedTargets:
    """Read targets of one shape, as stored."""

    def __init__(self, engine: RowEngine, facts: StorageFacts) -> None:
        self._engine = engine
        self._facts = facts

    def read(self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read `(B, …)` as stored."""
        target = np.empty((len(rows), *self._facts.shape[1:]), self._facts.dtype) if out is None else out
        self._engine.read_rows(rows, target, pool)
        return target


class MaskTargets:
    """Decode masks when they are read, into the geometry of their images."""

    def __init__(self, encoded: EncodedRows, size: tuple[int, int] | None) -> None:
        """Take `size`, height and width of all, `None` where each has its own."""
        self._encoded = encoded
        self._size = size

    def read(
        self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None
    ) -> NDArray[Any] | list[NDArray[Any]]:
        """Decode uint8 `(B, H, W)`, or a list of `(H, W)`."""
        if self._size is None:
            return self._encoded.decode_list(rows, pool)
        target = np.empty((len(rows), *self._size), np.uint8) if out is None else out
        self._encoded.decode_rows(rows, target, pool)
        return target


class BoxTargets:
    """Read boxes of each row, and what else is known of them.

    Where images are resized when they are read, boxes move with them: then the images' own sizes are read from their
    headers, and `image` says how they are fitted.
    """

    def __init__(
        self,
        label: str,
        offsets: NDArray[np.int64],
        columns: Mapping[str, tuple[RowEngine, StorageFacts]],
        *,
        image: ImageOptions | None = None,
        sizes_of: Callable[[NDArray[np.intp], ThreadPool], NDArray[np.int64]] | None = None,
    ) -> None:
        """Take `label`, where they are, for messages. `offsets`: int64 `(N + 1,)`. `columns`: by name, `boxes` among
        them. `sizes_of`: height and width of rows' images, int64 `(B, 2)`.

        Raises:
            DamagedPackError: the offsets do not ascend, or reach outside.
        """
        count = columns[BOXES][1].shape[0]
        if len(offsets) and (offsets[0] < 0 or offsets[-1] > count or bool((np.diff(offsets) < 0).any())):
            msg = f"The offsets of {label} do not ascend inside its {count:,} boxes. Stage or copy the file again."
            raise DamagedPackError(msg)
        self._offsets = offsets
        self._columns = columns
        self._image = image
        self._sizes_of = sizes_of

    def read(
        self, rows: NDArray[np.intp], pool: ThreadPool, out: NDArray[Any] | None = None
    ) -> list[dict[str, NDArray[Any]]]:
        """Return for each row a dict: `boxes`, float32 `(M, 4)`, and every other column, `(M, …)`."""
        starts = self._offsets[rows]
        # Boxes of all rows are gathered at once: a read for each row would cost more than its boxes.
        counts = self._offsets[rows + 1] - starts
        ends = np.cumsum(counts)
        wanted = (np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())).astype(np.intp)
        values = {name: _gather(engine, facts, wanted, pool) for name, (engine, facts) in self._columns.items()}
        if self._image is not None and self._sizes_of is not None and self._image.size is not None:
            sizes = np.repeat(self._sizes_of(rows, pool), counts, axis=0)
            moved, kept = fit_boxes(values[BOXES].astype(np.float64), sizes, self._image.size, self._image.resize)
            values[BOXES] = moved.astype(values[BOXES].dtype)
            values = {name: column[kept] for name, column in values.items()}
            # Boxes outside have gone, so each row's end moves down by those before it.
            ends = np.concatenate([[0], np.cumsum(kept)])[ends]
        starts = np.concatenate([[0], ends[:-1]])
        # Of each row its own: a view would keep the boxes of the whole batch.
        return [
            {name: column[start:end].copy() for name, column in values.items()}
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]


def _gather(engine: RowEngine, facts: StorageFacts, rows: NDArray[np.intp], pool: ThreadPool) -> NDArray[Any]:
    values = np.empty((len(rows), *facts.shape[1:]), facts.dtype)
    if len(rows):
        engine.read_rows(rows, values, pool)
    return values
