"""KITTI's object labels: image_2/000000.png with label_2/000000.txt, one object in a line of fifteen columns."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import LayoutError
from colabstage.layouts.image_boxes import (
    Column,
    LabelledImage,
    detection_table,
    split_of_folders,
    without_boxes_note,
)
from colabstage.layouts.names import IMAGE_EXTENSIONS
from colabstage.layouts.reading import read_files
from colabstage.layouts.table import BrokenDatasetError
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from colabstage.layouts.table import SampleTable
    from colabstage.trees.tree import FileEntry, Tree

_IMAGES, _LABELS = "image_2", "label_2"
# The order of KITTI's own readme; other types follow by name. Regions that nobody labelled come last.
_TYPES = ("Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc")
_DONT_CARE = "DontCare"
_COLUMNS = (
    Column("truncated", np.float32),
    Column("occluded", np.int64),
    Column("alpha", np.float32),
    Column("dimensions", np.float32, 3),
    Column("location", np.float32, 3),
    Column("rotation_y", np.float32),
)


def read_kitti(tree: Tree) -> SampleTable:
    """Make a table of a tree as KITTI's object benchmark has it, a folder `testing` without labels included.

    Boxes are left, top, right, bottom as written, in pixels. Columns: truncated, occluded, alpha, dimensions (height,
    width, length in metres), location (x, y, z in metres), rotation_y. `DontCare` regions are the last class.

    Raises:
        LayoutError: there is no folder label_2 beside one called image_2.
        BrokenDatasetError: a line is not of fifteen columns of numbers; it is named.
    """
    texts = files_ending_in(tree.entries, (".txt",))
    labels = {
        posixpath.splitext(entry.name)[0]: entry
        for entry in texts.where(lambda name: name.endswith(".txt") and _folder(name) == _LABELS)
    }
    images = files_ending_in(tree.entries, IMAGE_EXTENSIONS if labels else ())
    # image_3 is the right camera's, for which the boxes are not drawn.
    images = images.where(lambda name: _folder(name) == _IMAGES)
    places = [posixpath.splitext(image.name)[0].split("/") for image in images]
    wanted = [labels.get("/".join([*place[:-2], _LABELS, place[-1]])) for place in places]
    files = [label for label in wanted if label is not None]
    if not files:
        msg = f"'{tree.label}' has no folder {_LABELS} with a text file for each image in a folder {_IMAGES} beside it."
        raise LayoutError(msg)
    objects = dict(zip([file.name for file in files], read_files(tree, files, _parse), strict=True))
    # In the order of KITTI's own list, as other programs number them; regions to leave out come last.
    order = {kind: number for number, kind in enumerate(_TYPES)}
    classes = sorted(
        {kind for found in objects.values() for kind, _ in found},
        key=lambda kind: (kind == _DONT_CARE, order.get(kind, len(order)), kind),
    )
    numbers = {kind: float(number) for number, kind in enumerate(classes)}
    samples = [
        LabelledImage(
            image,
            [] if label is None else [[*v[3:7], numbers[kind], *v[:3], *v[7:]] for kind, v in objects[label.name]],
            split_of_folders(image.name),
        )
        for image, label in zip(images, wanted, strict=True)
    ]
    notes = without_boxes_note(len(images) - len(files), f"file in {_LABELS}")
    if classes[-1:] == [_DONT_CARE]:
        notes.append(f"The last class, {len(classes) - 1}, is '{_DONT_CARE}': regions to leave out of a loss.")
    return detection_table(tree, samples, classes, _COLUMNS, notes=notes)


def _folder(name: str) -> str:
    return posixpath.basename(posixpath.dirname(name))


def _parse(file: FileEntry, content: bytes) -> list[tuple[str, list[float]]]:
    """Return the type and the fourteen numbers of each object, in KITTI's order."""
    found = []
    for number, line in enumerate(content.decode("utf-8-sig", "replace").splitlines(), 1):
        words = line.split()
        # Files end in an empty line or two.
        if not words:
            continue
        try:
            values = [float(word) for word in words[1:]]
        except ValueError:
            values = []
        # A sixteenth is the score, which results have and labels have not.
        if len(values) not in (14, 15) or not np.isfinite(values).all():
            msg = (
                f"'{file.name}', line {number}: {line.strip()[:120]!r} is no object of KITTI; expected its type and "
                "fourteen numbers."
            )
            raise BrokenDatasetError(msg)
        found.append((words[0], values[:14]))
    return found
