"""KITTI's object labels: image_2/000000.png with label_2/000000.txt, one object in a line of fifteen columns."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import LayoutError
from colabstage.layouts.boxes import BoxColumn, Placed, Record, boxes_state, without_boxes_note
from colabstage.layouts.reading import decode_text
from colabstage.layouts.table import BrokenDatasetError
from colabstage.layouts.words import IMAGES, folder_of, normal, split_of_path

if TYPE_CHECKING:
    from colabstage.layouts.evidence import Evidence
    from colabstage.layouts.reading import Source

_IMAGES, _LABELS = "image_2", "label_2"
# The order of KITTI's readme; other types follow by name. Unlabelled regions come last.
_TYPES = ("Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc")
_DONT_CARE = "DontCare"
_COLUMNS = (
    BoxColumn("truncated", np.float32),
    BoxColumn("occluded", np.int64),
    BoxColumn("alpha", np.float32),
    BoxColumn("dimensions", np.float32, 3),
    BoxColumn("location", np.float32, 3),
    BoxColumn("rotation_y", np.float32),
)


def kitti_state(source: Source) -> Evidence:
    """Read images in the form of KITTI's object benchmark, including a folder `testing` without labels.

    Boxes are left, top, right, bottom as written, in pixels. Columns: truncated, occluded, alpha, dimensions (height,
    width, length in metres), location (x, y, z in metres), rotation_y. `DontCare` regions are the last class.
    """
    texts = source.ending_in((".txt",)).where(lambda name: name.endswith(".txt") and folder_of(name) == _LABELS)
    labels = {posixpath.splitext(normal(entry.name))[0]: entry for entry in texts}
    images = source.ending_in(IMAGES if labels else ())
    # image_3 is from the right camera, for which the boxes are not valid.
    images = images.where(lambda name: folder_of(name) == _IMAGES)
    places = [posixpath.splitext(normal(image.name))[0].split("/") for image in images]
    wanted = [labels.get("/".join([*place[:-2], _LABELS, place[-1]])) for place in places]
    files = [label for label in wanted if label is not None]
    if not files:
        msg = (
            f"'{source.label}' has no folder {_LABELS} with a text file for each image in a folder {_IMAGES} beside it."
        )
        raise LayoutError(msg)
    records = source.parse(files, lambda file, content: parse_kitti(file.name, content))
    # In the order of KITTI's list, as other programs number them; regions to leave out come last.
    order = {kind: number for number, kind in enumerate(_TYPES)}
    classes = sorted(
        {kind for record in records.values() for kind, _ in record.shapes},
        key=lambda kind: (kind == _DONT_CARE, order.get(kind, len(order)), kind),
    )
    placed = [
        Placed(image, Record("", ()) if label is None else records[label.name], split_of_path(image.name))
        for image, label in zip(images, wanted, strict=True)
    ]
    notes = without_boxes_note(len(images) - len(files), f"file in {_LABELS}")
    if classes[-1:] == [_DONT_CARE]:
        notes.append(f"The last class, {len(classes) - 1}, is '{_DONT_CARE}': regions to leave out of a loss.")
    numbers = {kind: number for number, kind in enumerate(classes)}
    return boxes_state(source, "KITTI's files", placed, numbers, columns=_COLUMNS, notes=notes, used=records)


def parse_kitti(name: str, content: bytes) -> Record:
    """Return the type of each object, its box and the further columns."""
    shapes = []
    for number, line in enumerate(decode_text(content).splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            values = [float(word) for word in words[1:]]
        except ValueError:
            values = []
        # A sixteenth value is the score, which only results have. What is occluded is a small whole number.
        if len(values) not in (14, 15) or not np.isfinite(values).all() or abs(values[1]) > 1e9:
            msg = (
                f"'{name}', line {number}: {line.strip()[:120]!r} is not a KITTI object; expected its type and "
                "fourteen numbers."
            )
            raise BrokenDatasetError(msg)
        shapes.append((words[0], [*values[3:7], *values[:3], *values[7:14]]))
    return Record("", shapes)
