"""The recipe's `dataset_h5`, as its author published it: the baseline that reading is measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class RecipeDataset(Dataset[Any]):
    """Opens the file in `__init__` and looks its datasets up for every sample."""

    def __init__(self, in_file: Path, transform: Callable[[Any], Any] | None = None) -> None:
        self.file = h5py.File(in_file, "r")
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        x = self.file["X_train"][index, ...]
        y = self.file["Y_train"][index, ...]
        if self.transform is not None:
            x = self.transform(x)
        return ((x, y), index)

    def __len__(self) -> int:
        return int(self.file["X_train"].shape[0])
