"""The boxes of one image, as a label file has them, and how those of all images become one field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.layouts.table import Boxes, Images, SampleTable, TreeFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.trees.tree import FileEntry, Tree

NAME = "detection"


class Column(NamedTuple):
    """What is known of each box beside its place."""

    name: str
    """What it is called in the pack."""
    dtype: type[np.generic]
    """Of its numbers."""
    width: int = 1
    """How many numbers each box has of it."""


class LabelledImage(NamedTuple):
    """An image and its boxes."""

    file: FileEntry
    """The image's file."""
    rows: Sequence[Sequence[float]]
    """Of each box x0, y0, x1, y1, then the label, then the further columns."""
    split: str
    """"" where no split is known of it."""
    size: tuple[int, int] = (0, 0)
    """Height and width in pixels that the label file says the image has; zeros where it says none."""


def detection_table(
    tree: Tree,
    images: Sequence[LabelledImage],
    classes: Sequence[str],
    columns: Sequence[Column] = (),
    *,
    relative: bool = False,
    notes: Sequence[str] = (),
) -> SampleTable:
    """Put the boxes of all images into one table, the images in their order.

    Splits are those of the images where each has one.
    """
    width = 5 + sum(column.width for column in columns)
    # Boxes of all images are in one array, because most images have a few and numpy has no rows of different lengths.
    offsets = np.concatenate([[0], np.cumsum([len(image.rows) for image in images])]).astype(np.int64)
    rows = np.array([row for image in images for row in image.rows], np.float64).reshape(-1, width)
    sizes = np.array([image.size for image in images], np.int64).reshape(-1, 2)
    found: dict[str, NDArray[Any]] = {"labels": rows[:, 4].astype(np.int64)}
    start = 5
    for further in columns:
        values = rows[:, start : start + further.width].astype(further.dtype)
        found[further.name] = np.ascontiguousarray(values[:, 0] if further.width == 1 else values)
        start += further.width
    boxes = Boxes(
        offsets,
        np.ascontiguousarray(rows[:, :4]),
        found,
        relative=relative,
        sizes=sizes if sizes.any() else None,
    )
    splits = tuple(image.split for image in images)
    return SampleTable(
        layout=NAME,
        keys=tuple(image.file.name for image in images),
        inputs=Images(TreeFiles(tree, [image.file for image in images])),
        targets=boxes,
        splits=splits if splits and all(splits) else None,
        classes=tuple(classes),
        notes=tuple(notes),
    )


def possible_forms(boxes: NDArray[np.float64], limits: tuple[int, int] | None = None) -> tuple[bool, bool]:
    """Tell whether boxes `(M, 4)` may be two corners each, and whether they may be a corner and a size.

    `limits`: width and height of the image that all of them are in.
    """
    first, last = boxes[:, :2], boxes[:, 2:]
    # A box may end a pixel behind the edge, because tools do not agree on where pixels are.
    ends = (np.inf, np.inf) if limits is None else (limits[0] + 1, limits[1] + 1)
    are_corners = bool(np.all(last >= first) and np.all(last <= ends))
    are_sizes = bool(np.all(boxes >= 0) and np.all(first + last <= ends))
    return are_corners, are_sizes


def without_boxes_note(count: int, what: str) -> list[str]:
    """Return a note on images that nothing is known of; empty where there are none."""
    return [f"{count:,} images have no {what}; they are kept without boxes."] if count else []
