"""The recipe, colabstage and the limit, as contenders of `peers_pixels`; run in the project's own environment."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks._pixel_data import BATCH, PACKED, Shape, read_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Batches = Iterable[tuple[Any, Any]]
    Settings = Mapping[str, Callable[[], Batches]]


class Recipe:
    """Its class in a DataLoader. The handle is opened in `__init__`, so no process but that one may read."""

    packages = ("h5py",)

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._path = folder / PACKED

    def store(self) -> None:
        """Reads the file that colabstage's contender wrote."""

    def settings(self) -> Settings:
        return {"0 workers": self._open}

    def _open(self) -> Batches:
        from torch.utils.data import DataLoader

        from benchmarks._recipe import RecipeDataset

        return _Samples(DataLoader(RecipeDataset(self._path), BATCH, shuffle=True))


class _Samples:
    """Without the index that the recipe returns with every sample."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for sample, _ in self._loader:
            yield sample


class Ours:
    """`make_loader` with nothing chosen by hand, over a file as the recipe packs it: targets with two more axes."""

    packages = ("colabstage", "h5py")

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._path, self._shape, self._folder = folder / PACKED, shape, folder

    def store(self) -> None:
        import h5py

        x, y = read_samples(self._folder)
        with h5py.File(self._path, "w") as file:
            file["X_train"] = x
            file["Y_train"] = y if self._shape.masks else y[:, None, None]

    def settings(self) -> Settings:
        return {"auto": self._open}

    def _open(self) -> Batches:
        from colabstage.load.dataset import dataset_h5
        from colabstage.load.loader import make_loader

        return make_loader(dataset_h5(self._path), BATCH)


class InDataLoader(Ours):
    """`dataset_h5` in a stock DataLoader."""

    def store(self) -> None:
        """Reads the file that colabstage's contender wrote."""

    def settings(self) -> Settings:
        return {"0 workers": self._stock}

    def _stock(self) -> Batches:
        from torch.utils.data import DataLoader

        from colabstage.load.dataset import dataset_h5

        return DataLoader(dataset_h5(self._path), BATCH, shuffle=True)


class Limit:
    """The same batches out of arrays in memory by one thread, into buffers that are used again and again."""

    packages = ("numpy",)
    buffers = 1

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._folder, self._shape = folder, shape

    def store(self) -> None:
        """There is nothing to store."""

    def settings(self) -> Settings:
        return {"1 thread": partial(Gather, *read_samples(self._folder, in_memory=True), self.buffers)}


class TwoBuffers(Limit):
    """By turns, as a loop needs it that holds a batch while the next one is made."""

    buffers = 2


class Gather:
    """One `np.take` of inputs and of targets a batch."""

    def __init__(self, x: NDArray[Any], y: NDArray[Any], buffers: int) -> None:
        self._x, self._y = x, y
        self._buffers = [(np.empty_like(x[:BATCH]), np.empty_like(y[:BATCH])) for _ in range(buffers)]
        self._rng = np.random.default_rng(0)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        import torch

        order = self._rng.permutation(len(self._x))
        for number, start in enumerate(range(0, len(order), BATCH)):
            rows = order[start : start + BATCH]
            x, y = (buffer[: len(rows)] for buffer in self._buffers[number % len(self._buffers)])
            np.take(self._x, rows, axis=0, out=x, mode="clip")
            np.take(self._y, rows, axis=0, out=y, mode="clip")
            yield torch.from_numpy(x), torch.from_numpy(y)


OWN = {"recipe": Recipe, "colabstage": Ours, "dataset": InDataLoader, "limit": Limit, "two buffers": TwoBuffers}
