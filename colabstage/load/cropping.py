"""Random resized crops that are cut while their images are decoded, instead of by the batch transform afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.load.augment import Compose, RandomResizedCrop
from colabstage.load.epoch.dice import BatchPlace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.load.augment import Transform
    from colabstage.load.dataset import dataset_h5
    from colabstage.load.reading.crew import Crew


@dataclass(frozen=True, slots=True)
class FirstCrop:
    """What a batch transform begins with.

    `crop`: its first step. `stream`: of the numbers that this draws. `rest`: what follows, with the numbers that it
    draws after the crop; `None` where nothing does.
    """

    crop: RandomResizedCrop
    stream: tuple[int, ...]
    rest: Compose | None


def first_crop(transform: Transform | None) -> FirstCrop | None:
    """The crop that a transform begins with; `None` where it begins with anything else."""
    # Not what derives from them, which may do something else.
    if type(transform) is RandomResizedCrop:
        return FirstCrop(transform, (), None)
    if type(transform) is not Compose or not transform.transforms:
        return None
    first, *others = transform.transforms
    inner = first_crop(first)
    if inner is None:
        return None
    # Parts draw by their number, so the crop leaves something in its place.
    rest = Compose([inner.rest or _unchanged, *others])
    return FirstCrop(inner.crop, (0, *inner.stream), rest if others or inner.rest else None)


def _unchanged(x: Any, y: Any) -> tuple[Any, Any]:
    return x, y


@dataclass(frozen=True, slots=True)
class Crops:
    """What a loader has cut while images are decoded. `seed`: what it depends on, together with epoch and row."""

    first: FirstCrop
    seed: int

    def of_epoch(self, dataset: dataset_h5, epoch: int) -> CroppedInputs:
        """The inputs of an epoch."""
        return CroppedInputs(dataset, self.first, self.seed, epoch)


@dataclass(frozen=True, slots=True)
class CroppedInputs:
    """The crops of an epoch, as a dataset's inputs. `seed`, `epoch`: what they depend on, together with the row."""

    dataset: dataset_h5
    first: FirstCrop
    seed: int
    epoch: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of each: height, width, channels."""
        return (*self.first.crop.target_size, self.dataset.reader.crop_channels)

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8."""
        return np.dtype(np.uint8)

    @property
    def row_bytes(self) -> int:
        """Length of each in bytes."""
        return int(np.prod(self.shape, dtype=np.int64))

    def read(self, rows: NDArray[np.intp], out: NDArray[Any] | None, crew: Crew) -> NDArray[np.uint8]:
        """Decode the crops of rows, into `out` where there is one."""
        size = self.first.crop.target_size

        def choose(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
            return self._crops(rows, sizes)

        return self.dataset.reader.read_crops(rows, size, choose, out, crew=crew)

    def move(self, y: Any, rows: NDArray[np.intp]) -> Any:
        """The targets of a batch of these rows, where they go with the crops."""
        reader = self.dataset.reader
        if not reader.has_boxes and reader.target_shape in ((), None) and not isinstance(y, list):
            return y
        sizes = reader.image_sizes(rows)
        return self.first.crop.move(y, sizes, self._crops(rows, sizes))

    def _crops(self, rows: NDArray[np.intp], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.first.crop.choose(sizes, BatchPlace(self.seed, self.epoch, rows, self.first.stream))
