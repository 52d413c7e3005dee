"""The table of samples that every layout makes of a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import LayoutError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from colabstage.trees.tree import FileEntry


@dataclass(frozen=True, slots=True)
class SampleTable:
    """Which file is which sample, with its label and split. N samples.

    `layout`: name of the layout that made the table.
    `files`: the image file of each sample, N entries; the entry's name is the sample's key.
    `labels`: int64 `(N,)`, index into `classes`.
    `splits`: the split of each sample, N names, or `None` where the source has no splits.
    `classes`: class names, in label order.
    `notes`: sentences a person should see about what was found or left out.
    """

    layout: str
    files: tuple[FileEntry, ...]
    labels: NDArray[np.int64]
    splits: tuple[str, ...] | None
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.files), len(self.labels), len(self.files) if self.splits is None else len(self.splits)}
        if len(lengths) != 1:
            msg = (
                f"A sample table needs one label and one split for each file, got {len(self.files)} files, "
                f"{len(self.labels)} labels and {None if self.splits is None else len(self.splits)} splits."
            )
            raise LayoutError(msg)

    def __len__(self) -> int:
        return len(self.files)
