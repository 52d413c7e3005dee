"""What inputs of a batch are read as: whole rows, as they are stored, or what somebody makes of them while reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from colabstage.load.dataset import dataset_h5
    from colabstage.load.reading.crew import Crew


class Inputs(Protocol):
    """Inputs of rows. May be called from several threads at once."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of each; `None` where rows have their own."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of each, where they have one shape."""

    @property
    def row_bytes(self) -> int:
        """About how many bytes each takes in memory."""

    def read(self, rows: NDArray[np.intp], out: NDArray[Any] | None, crew: Crew) -> NDArray[Any] | list[NDArray[Any]]:
        """The inputs of rows, `(B, *shape)`, in `out` where there is one; a list of B where rows have their own
        shapes."""


class WholeInputs:
    """Rows as they are stored; encoded ones decoded."""

    def __init__(self, dataset: dataset_h5) -> None:
        self._reader = dataset.reader

    @property
    def shape(self) -> tuple[int, ...] | None:
        return self._reader.row_shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._reader.row_dtype

    @property
    def row_bytes(self) -> int:
        return self._reader.row_bytes

    def read(self, rows: NDArray[np.intp], out: NDArray[Any] | None, crew: Crew) -> NDArray[Any] | list[NDArray[Any]]:
        return self._reader.read_x(rows, out, crew=crew)
