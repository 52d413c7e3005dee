"""Images with boxes in any annotation format; and the formats with one file for each image.

Pascal VOC's XML: JPEGImages/a.jpg with Annotations/a.xml, and lists of splits in ImageSets/Main. KITTI's object labels:
image_2/000000.png with label_2/000000.txt, one object in a line of fifteen columns.
YOLO's: images/a.jpg with labels/a.txt, or a.txt beside it, a class and a box in each line.
"""

from __future__ import annotations

import functools
import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple
from xml.etree.ElementTree import TreeBuilder
from xml.parsers import expat

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.units import counted, format_count
from colabstage.layouts.box_tools import FORMATS, read_box_tools, read_class_file, xml_parser, xml_text
from colabstage.layouts.coco import read_coco
from colabstage.layouts.image_boxes import (
    Column,
    LabelledImage,
    detection_table,
    numbers_as_names,
    without_boxes_note,
)
from colabstage.layouts.names import (
    IMAGE_EXTENSIONS,
    SPLIT_NAMES,
    folder_of,
    required,
    split_of_path,
    stem_of,
)
from colabstage.layouts.reading import decode_text, read_files, read_texts
from colabstage.layouts.table import BrokenDatasetError, SampleTable, first_that_fits, left_out_notes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import NoReturn

    from colabstage.trees.listing import FileEntry, Tree

_ANNOTATIONS, _LISTS = "Annotations", "ImageSets/Main"
# The poses in the order of their numbers; the first is for a missing or unknown one.
POSES = ("Unspecified", "Frontal", "Rear", "Left", "Right")
_VOC_COLUMNS = (Column("difficult", np.uint8), Column("truncated", np.uint8), Column("pose", np.int64))
_EDGES = ("xmin", "ymin", "xmax", "ymax")
_OF_OBJECT = ("name", "difficult", "truncated", "pose", *(f"bndbox/{edge}" for edge in _EDGES))
# If several lists name an image, the first counts; trainval only matters without lists of its parts.
_LIST_ORDER = tuple(dict.fromkeys(("train", "val", "test", "trainval", *SPLIT_NAMES)))
_MAX_DEPTH = 32
# Not CVAT's <annotations>, which one of its files may have beside an image of its name.
_IS_VOC = re.compile(rb"<annotation[\s>]")
_FLAGS = {"": 0.0, "unspecified": 0.0, "unknown": 0.0, "false": 0.0, "no": 0.0, "true": 1.0, "yes": 1.0}
# Folders that only describe their content, in any spelling: images/train/a.jpg belongs to annotations/train/a.xml.
_ROLES = frozenset(
    ("annotations", "annotation", "annots", "annot", "xmls", "xml", "labels", "label", "images", "image", "imgs", "img",
     "jpegimages", "photos", "pictures")
)  # fmt: skip


class _VocAnnotation(NamedTuple):
    """The contents of one file."""

    objects: list[tuple[str, list[float]]]
    """The objects in the image: name, box and further values of each."""
    size: tuple[int, int]
    """Height and width of the image; zeros if not given."""
    image: str = ""
    """What it calls its image; "" where it says nothing."""


_NOTHING = _VocAnnotation([], (0, 0))


def read_voc(tree: Tree) -> SampleTable:
    """Make a table of a tree with one XML file of Pascal VOC's form for each image, in `Annotations` or beside it.

    VOC counts pixels from 1 and its last one is part of the box; here boxes are x0 = xmin - 1, y0 = ymin - 1,
    x1 = xmax, y1 = ymax, so that x1 - x0 is the width. Columns: difficult, truncated (0 or 1), pose (number of
    `POSES`). Splits come from ImageSets/Main, otherwise from folders; with lists, unlisted images are left out.

    Raises:
        LayoutError: no image has such a file.
        BrokenDatasetError: a file is broken; it is named with the line.
    """
    annotations = tree.entries.ending_in((".xml",))
    images = tree.entries.ending_in(IMAGE_EXTENSIONS if annotations else ())
    # Masks are in SegmentationClass and SegmentationObject by the same stems.
    images = images.where(lambda name: not folder_of(name).startswith("Segmentation"))
    files_of = _AnnotationFiles(annotations)
    labels = {image.name: label for image in images if (label := files_of.of_image(image.name)) is not None}
    # Other tools also write XML, so a few files are checked before all are parsed.
    some = list(labels.values())[:4]
    if not any(read_files(tree, some, lambda _, content: _IS_VOC.search(content) is not None).values()):
        msg = (
            f"'{tree.label}' has no XML file of Pascal VOC's form: neither in a folder such as {_ANNOTATIONS}, by the "
            "name of its image, nor beside it."
        )
        raise LayoutError(msg)
    lists = _read_lists(tree)
    if lists:
        listed = [image for image in images if _voc_key(image.name) in lists]
    else:
        # Images without a file count only in folders where others have one.
        folders = {posixpath.dirname(name) for name in labels}
        listed = [image for image in images if posixpath.dirname(image.name) in folders]
    if not listed:
        msg = f"The lists in {_LISTS} of '{tree.label}' name none of its images."
        raise BrokenDatasetError(msg)
    files = [labels[image.name] for image in listed if image.name in labels]
    parsed = read_files(tree, files, lambda file, content: _parse_voc(file.name, content))
    # The files have only class names; sorted, so that all machines number them alike.
    classes = sorted({name for each in parsed.values() for name, _ in each.objects})
    numbers = {name: float(number) for number, name in enumerate(classes)}
    said = [parsed[labels[image.name].name] if image.name in labels else _NOTHING for image in listed]
    samples = [
        LabelledImage(
            image,
            [[*values[:4], numbers[name], *values[4:]] for name, values in one.objects],
            lists[_voc_key(image.name)] if lists else split_of_path(image.name),
            one.size,
        )
        for image, one in zip(listed, said, strict=True)
    ]
    notes = without_boxes_note(len(listed) - len(files), "XML file")
    # Files that were numbered again keep the old name inside, so their own names count.
    there = {posixpath.basename(image.name) for image in listed}
    others = [
        image.name
        for image, one in zip(listed, said, strict=True)
        if one.image in there and one.image != posixpath.basename(image.name)
    ]
    if others:
        notes.append(
            f"{counted(len(others), 'XML files', 'have')} another image of the dataset as filename (first that of "
            f"'{others[0]}'): the file of an image is the one of its name."
        )
    # With lists, unlisted images were left out on purpose; a note still counts them.
    unlisted = sum(image.name in labels for image in images) - len(files)
    notes += left_out_notes((unlisted, "images", f"with boxes that no list in {_LISTS} names"))
    return detection_table(tree, samples, classes, _VOC_COLUMNS, notes=notes)


def _voc_key(image: str) -> tuple[str, str]:
    """Return the dataset's folder and the stem of an image in JPEGImages."""
    folder, base = posixpath.split(image)
    return posixpath.dirname(folder), posixpath.splitext(base)[0]


class _AnnotationFiles:
    """The XML files of a tree, found by their images."""

    def __init__(self, entries: Iterable[FileEntry]) -> None:
        self._by_path = {posixpath.splitext(entry.name)[0]: entry for entry in entries}
        # By paths without descriptive folders. Two files with the same such path are ambiguous, so neither counts.
        self._by_role: dict[tuple[str, ...], FileEntry] = {}
        shared: set[tuple[str, ...]] = set()
        for entry in entries:
            place = _without_roles(entry.name)
            if self._by_role.setdefault(place, entry) is not entry:
                shared.add(place)
        for place in shared:
            del self._by_role[place]

    def of_image(self, image: str) -> FileEntry | None:
        """Return the file in `Annotations`, otherwise beside the image, otherwise in folders with the same remaining
        names."""
        root, stem = _voc_key(image)
        found = self._by_path.get(posixpath.join(root, _ANNOTATIONS, stem))
        return found or self._by_path.get(posixpath.splitext(image)[0]) or self._by_role.get(_without_roles(image))


def _without_roles(name: str) -> tuple[str, ...]:
    *folders, base = name.split("/")
    return (*(folder for folder in folders if folder.lower() not in _ROLES), posixpath.splitext(base)[0])


def _read_lists(tree: Tree) -> dict[tuple[str, str], str]:
    """Return the split of every listed image, by the dataset's folder and the image's stem."""
    texts = tree.entries.ending_in((".txt",)).where(
        lambda name: f"/{posixpath.dirname(name)}".endswith(f"/{_LISTS}") and stem_of(name).lower() in _LIST_ORDER
    )
    order = sorted(texts, key=lambda entry: (_LIST_ORDER.index(stem_of(entry.name).lower()), entry.name))
    found: dict[tuple[str, str], str] = {}
    for name, text in read_texts(tree, order).items():
        root = posixpath.dirname(name).removesuffix(_LISTS).rstrip("/")
        split = SPLIT_NAMES.get(stem_of(name).lower(), "train")
        for listed in (line.split()[0] for line in text.splitlines() if line.strip()):
            # An image in several lists belongs to the first: trainval repeats train and val.
            found.setdefault((root, listed), split)
    return found


def _parse_voc(name: str, content: bytes) -> _VocAnnotation:
    """Read one file."""
    builder = TreeBuilder()
    found: list[tuple[str, list[float]]] = []
    depth = 0

    def fail(reason: str, line: int = 0, cause: Exception | None = None) -> NoReturn:
        msg = f"'{name}', line {line or parser.CurrentLineNumber}: {reason}."
        raise BrokenDatasetError(msg) from cause

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth == 1 and tag != "annotation":
            fail(f"it is a file of '{tag}', expected 'annotation'")
        if depth > _MAX_DEPTH:
            fail(f"elements are nested {_MAX_DEPTH} deep")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        element = builder.end(tag)
        # Parts of an object (a person's head) are nested objects, not boxes of the image.
        if depth == 1 and tag == "object":
            said = {one: text.strip() for one in _OF_OBJECT if (text := element.findtext(one)) is not None}
            if not said.get("name"):
                fail("an object has no name")
            try:
                x0, y0, x1, y1 = (float(said[f"bndbox/{edge}"]) for edge in _EDGES)
                flags = [
                    _FLAGS[text.lower()] if text.lower() in _FLAGS else float(int(text))
                    for text in (said.get("difficult", ""), said.get("truncated", ""))
                ]
            except (KeyError, ValueError, OverflowError) as error:
                fail(f"an object has no readable bndbox or flags ({error})", cause=error)
            if not np.isfinite([x0, y0, x1, y1]).all():
                fail("an edge of an object's bndbox is not a number")
            pose = said.get("pose", "").capitalize()
            number = float(POSES.index(pose)) if pose in POSES else 0.0
            # Tools that count from 0 write 0 here, and also mean the first pixel.
            found.append((said["name"], [max(x0 - 1, 0.0), max(y0 - 1, 0.0), x1, y1, *flags, number]))

    parser = xml_parser(fail)
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(xml_text(content), True)
    except expat.ExpatError as error:
        fail(f"it is not XML ({expat.ErrorString(error.code)})", error.lineno, error)
    except (UnicodeError, LookupError) as error:
        fail(f"it is not text in the encoding that it declares ({error})", 1, error)
    root = builder.close()
    try:
        height, width = (int(float((root.findtext(f"size/{side}") or "").strip() or 0)) for side in ("height", "width"))
    except (ValueError, OverflowError) as error:
        fail(f"the image's size is not a number of pixels ({error})", cause=error)
    # Some tools write zeros for a size that they do not know.
    image = posixpath.basename((root.findtext("filename") or "").strip().replace("\\", "/"))
    return _VocAnnotation(found, (height, width) if height > 0 and width > 0 else (0, 0), image)


_KITTI_IMAGES, _KITTI_LABELS = "image_2", "label_2"
# The order of KITTI's readme; other types follow by name. Unlabelled regions come last.
_KITTI_TYPES = ("Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc")
_DONT_CARE = "DontCare"
_KITTI_COLUMNS = (
    Column("truncated", np.float32),
    Column("occluded", np.int64),
    Column("alpha", np.float32),
    Column("dimensions", np.float32, 3),
    Column("location", np.float32, 3),
    Column("rotation_y", np.float32),
)


def read_kitti(tree: Tree) -> SampleTable:
    """Make a table of a tree in the form of KITTI's object benchmark, including a folder `testing` without labels.

    Boxes are left, top, right, bottom as written, in pixels. Columns: truncated, occluded, alpha, dimensions (height,
    width, length in metres), location (x, y, z in metres), rotation_y. `DontCare` regions are the last class.

    Raises:
        LayoutError: there is no folder label_2 beside one called image_2.
        BrokenDatasetError: a line is not of fifteen columns of numbers; it is named.
    """
    texts = tree.entries.ending_in((".txt",))
    labels = {
        posixpath.splitext(entry.name)[0]: entry
        for entry in texts.where(lambda name: name.endswith(".txt") and folder_of(name) == _KITTI_LABELS)
    }
    images = tree.entries.ending_in(IMAGE_EXTENSIONS if labels else ())
    # image_3 is from the right camera, for which the boxes are not valid.
    images = images.where(lambda name: folder_of(name) == _KITTI_IMAGES)
    places = [posixpath.splitext(image.name)[0].split("/") for image in images]
    wanted = [labels.get("/".join([*place[:-2], _KITTI_LABELS, place[-1]])) for place in places]
    files = [label for label in wanted if label is not None]
    if not files:
        msg = (
            f"'{tree.label}' has no folder {_KITTI_LABELS} with a text file for each image in a folder "
            f"{_KITTI_IMAGES} beside it."
        )
        raise LayoutError(msg)
    objects = read_files(tree, files, _parse_kitti)
    # In the order of KITTI's list, as other programs number them; regions to leave out come last.
    order = {kind: number for number, kind in enumerate(_KITTI_TYPES)}
    classes = sorted(
        {kind for found in objects.values() for kind, _ in found},
        key=lambda kind: (kind == _DONT_CARE, order.get(kind, len(order)), kind),
    )
    numbers = {kind: float(number) for number, kind in enumerate(classes)}
    samples = [
        LabelledImage(
            image,
            [] if label is None else [[*v[3:7], numbers[kind], *v[:3], *v[7:]] for kind, v in objects[label.name]],
            split_of_path(image.name),
        )
        for image, label in zip(images, wanted, strict=True)
    ]
    notes = without_boxes_note(len(images) - len(files), f"file in {_KITTI_LABELS}")
    if classes[-1:] == [_DONT_CARE]:
        notes.append(f"The last class, {len(classes) - 1}, is '{_DONT_CARE}': regions to leave out of a loss.")
    return detection_table(tree, samples, classes, _KITTI_COLUMNS, notes=notes)


def _lines_of_words(content: bytes) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the number and the words of each non-empty line."""
    for number, line in enumerate(decode_text(content).splitlines(), 1):
        if words := line.split():
            yield number, line, words


def _numbers(words: list[str]) -> list[float]:
    """Return words as numbers; nothing if one is not a number."""
    try:
        return [float(word) for word in words]
    except ValueError:
        return []


def _parse_kitti(file: FileEntry, content: bytes) -> list[tuple[str, list[float]]]:
    """Return the type and the fourteen numbers of each object, in KITTI's order."""
    found = []
    for number, line, words in _lines_of_words(content):
        values = _numbers(words[1:])
        # A sixteenth value is the score, which only results have.
        if len(values) not in _KITTI_NUMBERS or not np.isfinite(values).all():
            msg = (
                f"'{file.name}', line {number}: {line.strip()[:120]!r} is not a KITTI object; expected its type and "
                "fourteen numbers."
            )
            raise BrokenDatasetError(msg)
        found.append((words[0], values[:14]))
    return found


_YOLO_IMAGES, _YOLO_LABELS = "images", "labels"
# Tools write 1.0000001 for the edge; more than this is another unit.
_SLACK = 0.01
_SNIFFED = 8
# With fewer lines than this, agreement may be chance.
_FEW_POSES = 4
_BOX_POINTS = 4
_POLYGON_ROW = 8
# KITTI's objects: a word and fourteen numbers, or fifteen with a score.
_KITTI_NUMBERS = (14, 15)


def read_yolo(tree: Tree) -> SampleTable:
    """Make a table of a tree with text files of YOLO's form, in folders `labels` beside `images`, or beside the images.

    Boxes are x0, y0, x1, y1 as fractions of width and height; a polygon becomes the box around it. An empty file means
    no boxes, and so does a missing one, with a note. Names of classes come from data.yaml, classes.txt or obj.names;
    splits from folders.

    Raises:
        LayoutError: no image has such a file.
        BrokenDatasetError: a line is not of this form, or its class has no name; it is named.
    """
    # By exact names, because thousands of labels are looked up, with the case of the images' names.
    texts = {entry.name: entry for entry in tree.entries.ending_in((".txt",)) if entry.name.endswith(".txt")}
    images = list(tree.entries.ending_in(IMAGE_EXTENSIONS)) if texts else []
    labels = [_label_file_of(image.name, texts) for image in images]
    files = [label for label in labels if label is not None]
    names, keypoints = read_class_file(tree)
    beside = sum(
        posixpath.dirname(a.name) == posixpath.dirname(b.name)
        for a, b in [(image, label) for image, label in zip(images, labels, strict=True) if label is not None]
    )
    if not files or (beside and not names):
        msg = (
            f"'{tree.label}' has no text file for any image, neither in a folder {_YOLO_LABELS} beside one called "
            f"{_YOLO_IMAGES}, nor beside the images with a classes.txt."
        )
        raise LayoutError(msg)
    # How many numbers of a pose follow the box in each line.
    pose = keypoints[0] * keypoints[1]
    parse = functools.partial(_parse_yolo, pose=pose)
    # Refuse the tree where none of the first files has a line of this form: they hold captions, or labels of other
    # tools.
    looked_at = [file for file in files if file.size][:_SNIFFED]

    def trouble(file: FileEntry, content: bytes) -> tuple[BrokenDatasetError, bool] | None:
        try:
            parse(file, content)
        except BrokenDatasetError as error:
            return error, any(_may_be_box(words) for _, _, words in _lines_of_words(content))
        return None

    wrong = [one for one in read_files(tree, looked_at, trouble).values() if one is not None]
    if wrong and len(wrong) == len(looked_at):
        # Rows of numbers where YOLO has its boxes are meant to be boxes, and words are not.
        error = next((error for error, are_boxes in wrong if are_boxes), None)
        if error is not None:
            raise error
        msg = f"The text files of the images in '{tree.label}' have no lines of YOLO's form: {wrong[0][0]}"
        raise LayoutError(msg)
    parsed = read_files(tree, files, parse)
    every = [row for found in parsed.values() for row in found]
    # As many numbers in every line: what may be poses as well, where the first four are a box that holds all points, or
    # every third number behind a box may say whether a point is visible.
    if not pose and len(every) >= _FEW_POSES and all(len(row) == _POLYGON_ROW for row in every):
        counts = {int(row[5]) for row in every}
        holds, has_visible = (all(row[place] for row in every) for place in (6, 7))
        if len(counts) == 1 and ((holds and min(counts) > _BOX_POINTS) or has_visible):
            count = 1 + 2 * min(counts)
            shape = f"[{(count - 5) // 3}, 3]" if has_visible else f"[{(count - 5) // 2}, 2]"
            msg = (
                f"The lines of '{files[0].name}' and all others have {count} numbers: polygons, or boxes with "
                f"keypoints inside. For poses, say kpt_shape: {shape} in data.yaml."
            )
            raise BrokenDatasetError(msg)
    rows = {name: [row[:5] for row in found] for name, found in parsed.items()}
    # Without names, the highest number determines the number of classes.
    count = max((int(row[4]) + 1 for found in rows.values() for row in found), default=0)
    # Too few names are from another dataset, or an older state of this one.
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
        notes.append(f"Of each box {counted(keypoints[0], 'keypoints', 'were')} left out.")
    polygons = [row for row in every if len(row) > 5]
    if polygons:
        # Oriented boxes look like polygons of four points; a note says that their angle is lost.
        four = (
            "outlines of four points, as oriented boxes have," if all(row[5] == 4 for row in polygons) else "polygons"
        )
        notes.append(f"Boxes around {four} are kept without these: {len(polygons):,}.")
    return detection_table(
        tree, samples, names or numbers_as_names(count, f"'{tree.label}'"), relative=True, notes=notes
    )


def _label_file_of(image: str, texts: dict[str, FileEntry]) -> FileEntry | None:
    """Return the label file that Ultralytics would use: with the last folder `images` of the path replaced by `labels`;
    or the one beside the image."""
    stem = posixpath.splitext(image)[0]
    head, found, tail = f"/{stem}".rpartition(f"/{_YOLO_IMAGES}/")
    # The last such folder of the path, as Ultralytics replaces it: one above may be called images too.
    moved = f"{head}/{_YOLO_LABELS}/{tail}.txt".lstrip("/") if found else ""
    return texts.get(moved) or texts.get(f"{stem}.txt")


def _parse_yolo(file: FileEntry, content: bytes, *, pose: int = 0) -> list[list[float]]:
    """Return x0, y0, x1, y1 and the class of each box; of a polygon also its number of points, whether they all lie in
    the box that its first four numbers would be, and whether the others may be keypoints that are visible or not."""
    rows = []
    for number, line, words in _lines_of_words(content):
        # One or the other: in a line that has both, commas may be those of decimals.
        parts = [part.strip() for part in line.split(",")] if "," in line else words
        values = _numbers(parts)
        # Keypoints are left out, and the box is before them.
        if pose and len(values) == 5 + pose:
            values = values[:5]
        elif pose and len(values) != 5:
            values = []
        if not _is_box(values):
            shape = f", {pose} further ones as kpt_shape says" if pose else ", or a polygon of at least three points"
            msg = (
                f"'{file.name}', line {number}: {line.strip()[:120]!r} is not a YOLO box; expected a class and four "
                f"numbers from 0 to 1 (centre x, centre y, width, height){shape}.{_remedy(parts)}"
            )
            raise BrokenDatasetError(msg)
        row = [*_to_corners(values[1:]), values[0]]
        if len(values) > 5:
            row += [len(values) // 2, float(_holds_rest(values[1:])), float(_has_visible(values))]
        rows.append(row)
    return rows


def _may_be_box(words: list[str]) -> bool:
    """Tell whether a line is of numbers, a box among them, whatever is wrong with it."""
    parts = [part for word in words for part in word.split(",") if part]
    return len(_numbers(parts) or _numbers(parts[1:])) >= 4


def _remedy(words: list[str]) -> str:
    """Return what a line looks like that is no YOLO box, and what to do, behind a blank; "" where that cannot be told.

    >>> _remedy("0 0.5 0.5 0.2 0.2 0.5 0.5 2 0.4 0.6 1".split())
    ' It looks like a box with 2 keypoints: say kpt_shape: [2, 3] in data.yaml.'
    """
    values, rest = _numbers(words), _numbers(words[1:])
    points = format_count((len(values) - 5) // 3, "keypoints")
    told = (
        (not values and len(rest) in _KITTI_NUMBERS, "It looks like KITTI's, whose folders are image_2 and label_2."),
        (
            not values and len(rest) >= 4,
            f"In place of '{words[0]}' write its number in the names of data.yaml, from 0.",
        ),
        (len(values) == 4, "Four numbers are a box alone: write its class before them."),
        (
            len(values) == 6,
            "A sixth number is a confidence, or an angle, which labels have not; of a confidence, keep the others.",
        ),
        (
            _has_visible(values) and max(values[1:5]) <= 1 + _SLACK,
            f"It looks like a box with {points}: say kpt_shape: [{points.split()[0]}, 3] in data.yaml.",
        ),
        (
            len(values) >= 5 and min(values) >= 0 and max(values[1:]) > 1 + _SLACK,
            "These may be pixels: divide x and width by the image's width, y and height by its height.",
        ),
    )
    return next((f" {text}" for fits, text in told if fits), "")


def _has_visible(values: Sequence[float]) -> bool:
    """Tell whether numbers may be a class, a box, and x, y and 0, 1 or 2 of keypoints."""
    return len(values) > 5 and (len(values) - 5) % 3 == 0 and all(value in (0, 1, 2) for value in values[7::3])


def _is_box(values: Sequence[float]) -> bool:
    if len(values) != 5 and not (len(values) >= 7 and len(values) % 2):
        return False
    places = np.array(values[1:])
    # Pixels instead of fractions are another format, and would give boxes far outside the image.
    inside = bool(np.all((places >= -_SLACK) & (places <= 1 + _SLACK)))
    return inside and values[0] >= 0 and float(values[0]).is_integer()


def _holds_rest(values: Sequence[float]) -> bool:
    """Tell whether the first four numbers are a box that contains the following points; points at 0, 0 are hidden."""
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


# Stricter formats first, because a YOLO export often has a JSON or XML file with the same boxes.
_FORMATS = {"KITTI": read_kitti, "Pascal VOC": read_voc, "COCO": read_coco, "YOLO": read_yolo, "others": read_box_tools}
# Extensions of all their annotation files.
EXTENSIONS = tuple(dict.fromkeys((".txt", ".xml", ".json", *(form.extension for form in FORMATS))))


def read_detection(tree: Tree) -> SampleTable:
    """Make a table of images with boxes: labels of KITTI, Pascal VOC, COCO, YOLO, or one of the formats of
    `box_tools`, whichever there are.

    Raises:
        EmptySourceError: there are no images.
        LayoutError: there are no labels of any of these forms; the message has the reason of each.
        BrokenDatasetError: there are, and one is broken; it is named.
    """
    required(tree.entries.ending_in(IMAGE_EXTENSIONS), tree, "images")
    found = first_that_fits(*(functools.partial(read, tree) for read in _FORMATS.values()))
    if isinstance(found, SampleTable):
        return found
    reasons = " ".join(f"{name}: {error}" for name, error in zip(_FORMATS, found, strict=True))
    msg = f"'{tree.label}' has no boxes beside its images. {reasons}"
    raise LayoutError(msg)
