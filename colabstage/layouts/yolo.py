"""YOLO's labels: a text file for each image, and the names of classes that its tools leave beside them.

data.yaml is read by PyYAML: what people write there (quotes, apostrophes, comments, lists over several lines) is all of
YAML.
"""

from __future__ import annotations

import functools
import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.files import read_with_retry
from colabstage.layouts.image_boxes import LabelledImage, detection_table, without_boxes_note
from colabstage.layouts.names import IMAGE_EXTENSIONS, split_of_path
from colabstage.layouts.reading import read_files
from colabstage.layouts.table import BrokenDatasetError
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.layouts.table import SampleTable
    from colabstage.trees.tree import FileEntry, Tree

_LISTS = ("classes.txt", "_classes.txt", "obj.names", "classes.names", "_darknet.labels")
_EXTENSIONS = (".txt", ".names", ".labels", ".yaml", ".yml")
_MENTIONS_NAMES = re.compile(r"^names\s*:", re.MULTILINE)


class ClassFile(NamedTuple):
    """What a data.yaml or a list of names says of the classes."""

    names: tuple[str, ...]
    """In label order, empty where there are none."""
    keypoints: tuple[int, int] = (0, 0)
    """How many there are of a pose, and numbers of each, (0, 0) where boxes have none."""


def read_class_file(tree: Tree) -> ClassFile:
    """Return what a tree says of its classes.

    Raises:
        BrokenDatasetError: a YAML file has names in a form that is not read here.
    """
    files = files_ending_in(tree.entries, _EXTENSIONS).where(
        lambda name: name.lower().endswith((".yaml", ".yml")) or posixpath.basename(name).lower() in _LISTS
    )
    for entry in sorted(files, key=lambda entry: (entry.name.count("/"), entry.name)):
        base = posixpath.basename(entry.name).lower()
        # A plain list has a name in each line, and no keypoints.
        if base in _LISTS:
            lines = (line.strip() for line in _read_labels(tree, entry).splitlines())
            return ClassFile(tuple(line for line in lines if line))
        found = parse_class_file(_read_labels(tree, entry), entry.name)
        if found.names:
            return found
    return ClassFile(())


def _read_labels(tree: Tree, entry: FileEntry) -> str:
    data = read_with_retry(lambda: tree.read(entry), entry.name)
    return data.decode("utf-8-sig", "replace")


def parse_class_file(text: str, name: str) -> ClassFile:
    """Return what a data.yaml says under `names` and `kpt_shape`. Pure.

    >>> parse_class_file("nc: 2\\nnames: [dog's toy, 'no']", "data.yaml").names
    ("dog's toy", 'no')
    >>> parse_class_file("names:\\n  0: car  # the first\\n  1: dog\\nkpt_shape: [17, 3]", "data.yaml").keypoints
    (17, 3)

    Raises:
        BrokenDatasetError: there are names, but in another form.
    """
    import yaml

    if not _MENTIONS_NAMES.search(text):
        return ClassFile(())
    try:
        # Without types: a class called no, or 1, is a word.
        found = yaml.load(text, Loader=yaml.BaseLoader)  # makes nothing but texts, lists and mappings
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _odd(name, str(error)) from error
    names = found.get("names") if isinstance(found, dict) else None
    shape = found.get("kpt_shape")
    try:
        count, width = (0, 0) if shape is None else (int(part) for part in shape)
    except (TypeError, ValueError) as error:
        raise _odd(name, f"kpt_shape is {shape!r}") from error
    return ClassFile(_in_order(names, name), (count, width))


def _in_order(names: Any, file: str) -> tuple[str, ...]:
    if isinstance(names, list):
        found = dict(enumerate(names))
    elif isinstance(names, dict) and all(isinstance(key, str) and key.isdecimal() for key in names):
        found = {int(key): value for key, value in names.items()}
    else:
        raise _odd(file, f"names are {str(names)[:60]!r}")
    if sorted(found) != list(range(len(found))) or not all(isinstance(value, str) for value in found.values()):
        raise _odd(file, f"names are {str(names)[:60]}")
    return tuple(found[number] for number in range(len(found)))


def _odd(name: str, what: str) -> BrokenDatasetError:
    return BrokenDatasetError(
        f"'{name}' has class names in a form that is not read here ({what}); expected names: ['car', 'dog'], or one in "
        "each line below it, as '- car' or '0: car', numbered from 0 without a gap, and kpt_shape: [17, 3] for poses."
    )


_IMAGES, _LABELS = "images", "labels"
# Tools write 1.0000001 for the edge; more than this is another unit.
_SLACK = 0.01
_SNIFFED = 8
# Fewer lines than this may agree by chance.
_FEW_POSES = 4
_BOX_POINTS = 4
_POLYGON_ROW = 7

_Rows = list[list[float]]


def read_yolo(tree: Tree) -> SampleTable:
    """Make a table of a tree with text files of YOLO's form, in folders `labels` beside `images`, or beside the images.

    Boxes are x0, y0, x1, y1 in parts of width and height; of a polygon, the box around it. An empty file means no
    boxes, and so does a missing one, which is noted. Names of classes come from data.yaml, classes.txt or obj.names;
    splits from folders.

    Raises:
        LayoutError: no image has such a file.
        BrokenDatasetError: a line is not of this form, or its class has no name; it is named.
    """
    # By exact names: labels are looked for by the thousand, and in the case that the images have.
    texts = {entry.name: entry for entry in files_ending_in(tree.entries, (".txt",)) if entry.name.endswith(".txt")}
    images = list(files_ending_in(tree.entries, IMAGE_EXTENSIONS)) if texts else []
    labels = [_label_file_of(image.name, texts) for image in images]
    files = [label for label in labels if label is not None]
    names, keypoints = read_class_file(tree)
    beside = sum(
        posixpath.dirname(a.name) == posixpath.dirname(b.name)
        for a, b in [(image, label) for image, label in zip(images, labels, strict=True) if label is not None]
    )
    if not files or (beside and not names):
        msg = (
            f"'{tree.label}' has no text file for any image, neither in a folder {_LABELS} beside one called "
            f"{_IMAGES}, nor beside the images with a classes.txt."
        )
        raise LayoutError(msg)
    # Further numbers of a pose; a box and so many are in each line.
    pose = keypoints[0] * keypoints[1]
    parse = functools.partial(_parse_labels, pose=pose)
    # Refuse the tree where none of the first files has a line of this form: they hold captions, or labels of other
    # tools.
    looked_at = [file for file in files if file.size][:_SNIFFED]

    def is_right(file: FileEntry, content: bytes) -> bool:
        try:
            parse(file, content)
        except BrokenDatasetError:
            return False
        return True

    if looked_at and not any(read_files(tree, looked_at, is_right).values()):
        msg = f"The text files of the images in '{tree.label}' have no lines of YOLO's form (first '{files[0].name}')."
        raise LayoutError(msg)
    parsed = read_files(tree, files, parse)
    every = [row for found in parsed.values() for row in found]
    # As many points in every line, all of them inside the box that its first numbers are: what may be poses as well.
    if not pose and len(every) >= _FEW_POSES and all(len(row) == _POLYGON_ROW and row[6] for row in every):
        counts = {int(row[5]) for row in every}
        if len(counts) == 1 and min(counts) > _BOX_POINTS:
            msg = (
                f"The lines of '{files[0].name}' and all others have {1 + 2 * min(counts)} numbers: polygons, or boxes "
                "with keypoints inside. For poses, say kpt_shape: [COUNT, 2] in data.yaml."
            )
            raise BrokenDatasetError(msg)
    rows = {name: [row[:5] for row in found] for name, found in parsed.items()}
    # Without names, classes are as many as the highest number says.
    count = max((int(row[4]) + 1 for found in rows.values() for row in found), default=0)
    # Names that are too few are those of another dataset, or of an older state of this one.
    if names and count > len(names):
        worst = next(name for name, found in rows.items() if any(row[4] >= len(names) for row in found))
        line = 1 + next(i for i, row in enumerate(rows[worst]) if row[4] >= len(names))
        msg = f"'{worst}', box {line}: there is no class {count - 1}; {len(names)} are named ({names[0]}, …)."
        raise BrokenDatasetError(msg)
    samples = [
        LabelledImage(image, [] if label is None else rows[label.name], split_of_path(image.name))
        for image, label in zip(images, labels, strict=True)
    ]
    notes = without_boxes_note(len(images) - len(files), "label file")
    if pose:
        notes.append(f"The {keypoints[0]} keypoints of each box were left out.")
    polygons = [row for row in every if len(row) > 5]
    if polygons:
        # Oriented boxes look like polygons of four points; their angle is lost, which is said.
        four = "four points, as oriented boxes have" if all(row[5] == 4 for row in polygons) else "polygons"
        notes.append(f"{len(polygons):,} boxes are those around {four}; their own outlines were left out.")
    return detection_table(tree, samples, names or [str(number) for number in range(count)], relative=True, notes=notes)


def _label_file_of(image: str, texts: dict[str, FileEntry]) -> FileEntry | None:
    """Return the file that Ultralytics would look for: the last folder `images` of the path is `labels`; or the one
    beside."""
    stem = posixpath.splitext(image)[0]
    head, found, tail = f"/{stem}".rpartition(f"/{_IMAGES}/")
    # The last such folder of the path, as Ultralytics replaces it: one above may be called images too.
    moved = f"{head}/{_LABELS}/{tail}.txt".lstrip("/") if found else ""
    return texts.get(moved) or texts.get(f"{stem}.txt")


def _parse_labels(file: FileEntry, content: bytes, *, pose: int = 0) -> _Rows:
    """Return x0, y0, x1, y1 and the class of each box; of a polygon also its number of points, and whether they all lie
    in the box that its first four numbers would be."""
    rows = []
    for number, line in enumerate(content.decode("utf-8-sig", "replace").splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            values = [float(word) for word in words]
        except ValueError:
            values = []
        # Keypoints are left out, and the box is before them.
        if pose and len(values) == 5 + pose:
            values = values[:5]
        elif pose and len(values) != 5:
            values = []
        if not _is_box(values):
            shape = f", {pose} further ones as kpt_shape says" if pose else ", or a polygon of at least three points"
            msg = (
                f"'{file.name}', line {number}: {line.strip()[:120]!r} is not a YOLO box; expected a class and four "
                f"numbers from 0 to 1 (centre x, centre y, width, height){shape}."
            )
            raise BrokenDatasetError(msg)
        row = [*_to_corners(values[1:]), values[0]]
        if len(values) > 5:
            row += [len(values) // 2, float(_holds_rest(values[1:]))]
        rows.append(row)
    return rows


def _is_box(values: Sequence[float]) -> bool:
    if len(values) != 5 and not (len(values) >= 7 and len(values) % 2):
        return False
    places = np.array(values[1:])
    # Pixels in place of parts of the image are another format, and would be boxes far outside of it.
    inside = bool(np.all((places >= -_SLACK) & (places <= 1 + _SLACK)))
    return inside and values[0] >= 0 and values[0] == int(values[0])


def _holds_rest(values: Sequence[float]) -> bool:
    """Tell whether the first four numbers are a box that holds the points that follow; points at 0, 0 are hidden
    ones."""
    x0, y0, x1, y1 = _to_corners(values[:4])
    points = zip(values[4::2], values[5::2], strict=True)
    near = (x0 - _SLACK <= x <= x1 + _SLACK and y0 - _SLACK <= y <= y1 + _SLACK for x, y in points if (x, y) != (0, 0))
    return all(near)


def _to_corners(values: Sequence[float]) -> tuple[float, float, float, float]:
    if len(values) > 4:
        xs, ys = values[::2], values[1::2]
        return min(xs), min(ys), max(xs), max(ys)
    x, y, width, height = values
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2
