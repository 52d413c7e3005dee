"""What the two sides of a sample are: x one of `Images` and `Arrays`; y one of `Values`, `Arrays`, `Masks`, `Boxes`.

They say what the content means, not how it is stored: that is decided when a pack is planned. Audio and text need no
kind of their own. They are arrays of one shape, with a decoder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from colabstage.layouts.sources import Content, SampleSource


@dataclass(frozen=True, slots=True)
class Images:
    """One image for each sample.

    `source`: image files as bytes, or arrays `(H, W)` or `(H, W, C)` of decoded ones.
    `decoded`: whether the source gives arrays. Those cannot be stored as the files they were.
    `own_channels`: whether the channels of those arrays are part of the data: only who asks for grayscale changes them.
    """

    source: SampleSource
    decoded: bool = False
    own_channels: bool = False

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True)
class Arrays:
    """One array of one shape for each sample, stored as it is; as inputs or as targets.

    `source`: the arrays, or bytes for `decode`.
    `shape`, `dtype`: of each; `()` for a number. Another shape is an error that names the sample.
    `decode`: makes the array of what the source gives, in a worker thread. Raises `DecodeError` for a broken file;
    whatever else it raises stops the pack.
    """

    source: SampleSource
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    decode: Callable[[Any], NDArray[Any]] | None = None

    def __post_init__(self) -> None:
        # Longer floats have another layout on each machine; HDF5 has no dates.
        if self.dtype.kind not in "biufc" or self.dtype.itemsize > (16 if self.dtype.kind == "c" else 8):
            name = f"'{self.source.name(0)}' has" if len(self.source) else "They have"
            msg = (
                f"{name} dtype {self.dtype}, which cannot be stored; expected whole numbers, floats of 64 bits at the "
                'most, or bool. Convert them first, for example .astype("float64") or, of dates, .astype("int64").'
            )
            raise LayoutError(msg)

    def __len__(self) -> int:
        return len(self.source)

    def to_array(self, content: Content) -> NDArray[Any]:
        """The array of a sample's content."""
        if self.decode is not None:
            return self.decode(content)
        return np.frombuffer(content, self.dtype).reshape(self.shape) if isinstance(content, bytes) else content


@dataclass(frozen=True, slots=True)
class Values:
    """Targets that are known before any sample is read.

    `values`: `(N,)` or `(N, …)`, bool, integers or floats: a class index (int64, an index into the table's classes), a
    number to predict, one column for each of several labels.
    """

    values: NDArray[Any]

    def __post_init__(self) -> None:
        if self.values.ndim < 1 or self.values.dtype.kind not in "biuf":
            msg = f"Targets are {self.values.dtype} of shape {self.values.shape}; expected rows of numbers."
            raise LayoutError(msg)

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Masks:
    """One mask for each image: which class every pixel is, stored as uint8 `(H, W)`.

    `source`: mask files as bytes, or integer arrays `(H, W)`, each exactly as large as its image.
    `colors`: `(r, g, b)` of class 0, 1, …, for masks that are painted; `None` for masks whose pixels, or palette
    indices, are the class indices already.
    `foreground`: whether pixels are 0, class 0, or 255, class 1.
    """

    source: SampleSource
    colors: tuple[tuple[int, int, int], ...] | None = None
    decoded: bool = False
    foreground: bool = False

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Any number of boxes for each image. M boxes in all; those of sample i are `offsets[i]` up to `offsets[i + 1]`.

    `offsets`: int64 `(N + 1,)`.
    `boxes`: float `(M, 4)`, x0, y0, x1, y1 in pixels of the upright image, or in parts of its width and height.
    `columns`: what else is known of each box, by name, `(M, …)` of numbers; `labels` (int64) first of all.
    `relative`: whether `boxes` are parts of width and height, as in YOLO's files.
    `sizes`: int64 `(N, 2)`, height and width of each image that the boxes were drawn on, zeros where unknown; `None`
    where all are.
    """

    offsets: NDArray[np.int64]
    boxes: NDArray[np.floating[Any]]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    relative: bool = False
    sizes: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        count = len(self.boxes)
        if self.boxes.shape != (count, 4):
            msg = f"Boxes have shape {self.boxes.shape}; expected one row of x0, y0, x1, y1 for each box."
            raise LayoutError(msg)
        if (
            len(self.offsets) < 1
            or self.offsets[0] != 0
            or self.offsets[-1] != count
            or np.any(np.diff(self.offsets) < 0)
        ):
            msg = f"The offsets of boxes do not ascend from 0 to their number, {count}."
            raise LayoutError(msg)
        for name, values in self.columns.items():
            if len(values) != count or values.dtype.kind not in "biuf" or name in ("boxes", "offsets"):
                msg = (
                    f"The column {name!r} of boxes is {values.dtype} {values.shape}; expected {count} rows of numbers."
                )
                raise LayoutError(msg)

    def __len__(self) -> int:
        return len(self.offsets) - 1


Inputs = Images | Arrays
Targets = Values | Arrays | Masks | Boxes
