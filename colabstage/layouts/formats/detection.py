"""Boxes in files of annotations: of KITTI, Pascal VOC and YOLO, beside each image; of COCO; and of annotation tools.

Each format parses a file into records of the images that it names; finding and numbering images and making the table is
the same for all. Polygons and rotated boxes become the boxes around them.
"""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import math
import posixpath
import re
import zlib
from collections import defaultdict, namedtuple
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from colabstage.errors import LayoutError
from colabstage.images.decode import probe_image
from colabstage.io.units import counted, listed
from colabstage.layouts import words
from colabstage.layouts.columns import Column, group_of_fields, make_targets, note_on_groups, show
from colabstage.layouts.evidence import Evidence, left_out_notes, require_files
from colabstage.layouts.lists import (
    LIST_ENDS,
    MOST_CLASSES,
    ClassList,
    Lookup,
    held_out_of_others,
    lists_state,
    names_of_numbers,
    read_class_list,
)
from colabstage.layouts.reading import BEGINNING_BYTES, Source, broken, decode_text, parse_xml
from colabstage.layouts.records import OWN_BOXES, as_column
from colabstage.layouts.table import Boxes, BrokenDatasetError, Values, offsets_of
from colabstage.trees.names import first_repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping
    from xml.etree.ElementTree import Element

    from numpy.typing import NDArray

    from colabstage.trees.listing import FileEntries, FileEntry

NAME = "detection"
# What reading a broken file raises.
_OF_PYTHON = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, zlib.error, csv.Error,
)  # fmt: skip


class BoxColumn(NamedTuple):
    """A further fact about each box: its name in the pack, and how many numbers each box has for it."""

    name: str
    dtype: type[np.generic]
    width: int = 1


class Record(NamedTuple):
    """What a file of annotations states about one image; a format's `parse` returns a list of these."""

    image: str
    shapes: Sequence[tuple[Any, Sequence[float]]]
    """The class of each box, a word or a number, and x0, y0, x1, y1 with the values of further columns."""
    size: tuple[int, int] = (0, 0)
    """Its height and width; zeros if the file does not say."""
    split: str = ""
    left_out: int = 0
    """How many annotated things have no box: single points, lanes."""
    labels: Sequence[str] = ()
    """The classes of the whole image; counted in `left_out` too."""
    group: str = ""
    """What it shares with images that stay in one split with it: a place, a video."""


class Placed(NamedTuple):
    """An image, and what is stated about it."""

    file: FileEntry
    record: Record
    split: str


def _size(given: Any, height: str = "height", width: str = "width") -> tuple[int, int]:
    """Return an image's height and width as a file states them, zeros where it states none. Raises `ValueError`: one is
    no number."""
    sides = given.get(height), given.get(width)
    try:
        return max(int(float(sides[0] or 0)), 0), max(int(float(sides[1] or 0)), 0)
    except (TypeError, ValueError, OverflowError) as error:
        msg = f"the image's sides are {show(str(sides))}, which are no numbers of pixels"
        raise ValueError(msg) from error


# --- from records to a table ------------------------------------------------------------------------------------------


def _state(
    source: Source,
    who: str,
    placed: Sequence[Placed],
    targets: Boxes | Values,
    classes: Sequence[str],
    *,
    notes: Iterable[str],
    used: Iterable[str],
    layout: str = NAME,
    stated: dict[str, str] | None = None,
    within: str = "",
) -> Evidence:
    """Return the targets of all images as evidence, with the images in their order. Splits are the images' own if each
    has one, otherwise those of lists, as `lists_state` finds them."""
    if (twice := first_repeated(classes)) is not None:
        raise broken(source.label, f"two classes are called '{show(twice)}'", "one name and one number for each")
    files, splits = [one.file for one in placed], [one.split for one in placed]
    groups = [one.record.group for one in placed if one.record.group]
    made = Evidence.of_images(
        source, layout, files, targets, who, splits=splits, classes=classes, notes=notes, used=used, groups=groups
    )
    return made if made.table.splits is not None else lists_state(source, made, stated=stated, within=within)


def _as_boxes(
    placed: Sequence[Placed], classes: Sequence[Any], columns: Sequence[BoxColumn] = (), *, relative: bool = False
) -> Boxes:
    """Return the boxes of all images. `classes`: those of the records, in the order of their labels. `columns`: what
    follows the four numbers of each box. `relative`: whether these are fractions of width and height."""
    # The boxes of all images are in one array, because most images have a few and numpy has no ragged rows.
    offsets = offsets_of([len(one.record.shapes) for one in placed])
    number_of = {kind: number for number, kind in enumerate(classes)}
    numbers = [number_of[kind] for one in placed for kind, _ in one.record.shapes]
    width = 4 + sum(column.width for column in columns)
    rows = np.array([values for one in placed for _, values in one.record.shapes], np.float64).reshape(-1, width)
    sizes = np.array([one.record.size for one in placed], np.int64).reshape(-1, 2)
    found: dict[str, NDArray[Any]] = {"labels": np.array(numbers, np.int64)}
    start = 4
    for name, dtype, count in columns:
        made, odd = as_column(rows[:, start : start + count], dtype)
        if odd >= 0:
            file = placed[int(np.searchsorted(offsets, odd, side="right")) - 1].file.name
            what = f"a box has {rows[odd, start : start + count].tolist()} as {name}, which does not fit"
            raise broken(file, what, str(made.dtype))
        start += count
        found[name] = np.ascontiguousarray(made[:, 0] if count == 1 else made)
    corners = np.ascontiguousarray(rows[:, :4])
    return Boxes(offsets, corners, found, relative=relative, sizes=sizes if sizes.any() else None)


# --- which image a record is about ------------------------------------------------------------------------------------


def _records_beside(
    source: Source,
    images: FileEntries,
    files: Sequence[FileEntry | None],
    parse: Callable[[str, bytes], Record],
    what: str,
) -> tuple[list[Placed], list[str]]:
    """Return each image with what its file states; and a note on images without a file (called `what`)."""
    there = [file for file in files if file is not None]
    found = source.parse(there, lambda file, content: parse(file.name, content))
    nothing = Record("", ())
    placed = [
        Placed(image, nothing if file is None else found[file.name], words.split_of_path(image.name))
        for image, file in zip(images, files, strict=True)
    ]
    bare = len(images) - len(there)
    kept = f"{counted(bare, 'images', 'have')} no {what}, and {'is' if bare == 1 else 'are'} kept without boxes."
    return placed, [kept] if bare else []


def _join_records(
    source: Source, found: Mapping[str, Sequence[Record]], *, per_image: bool = False
) -> tuple[list[Placed], list[str]]:
    """Return the images that the records of each file name, in their order, and notes.

    `per_image`: whether each file is about one image and has its name.
    """
    images = source.ending_in(words.IMAGES)
    lookup = source.made_of(images, Lookup.of)
    owner: dict[int, str] = {}
    placed: list[Placed] = []
    missing: dict[str, list[str]] = {}
    # A file about one image has the image's name, which may be test_01.
    split_of = words.split_of_path if per_image else words.split_of_file
    splits = {file: split_of(file) for file in found}
    images_of = {file: [record.image for record in records] for file, records in found.items()}
    held_out = set() if per_image else held_out_of_others(lookup, splits, images_of)
    for file, records in found.items():
        folder, own, lost = posixpath.dirname(file), splits[file], missing.setdefault(file, [])
        for record in records:
            split = record.split or ("" if file in held_out else own)
            number = lookup.find(record.image, folder, split=split)
            if number < 0:
                lost.append(record.image)
                continue
            image = images.names[number]
            # If images were annotated or exported twice, their boxes may disagree.
            if number in owner:
                where = "twice" if owner[number] == file else f"again, after '{owner[number]}'"
                raise broken(file, f"it lists the image '{image}' {where}", "each image once; leave one of them out")
            owner[number] = file
            placed.append(Placed(images[number], record, record.split or own or words.split_of_path(image)))
    # People often download one split of COCO with the annotations of all splits.
    absent = [file for file in found if placed and not per_image and len(missing[file]) == len(found[file])]
    notes = [f"None of the images that '{file}' names are here; it was left out." for file in absent]
    rest = {file: lost for file, lost in missing.items() if file not in absent}
    lost, total = [*itertools.chain.from_iterable(rest.values())], sum(len(found[file]) for file in rest)
    if 2 * len(lost) > total or not placed:
        first = f" (first missing or not to be told from others: '{show(lost[0])}')" if lost else ""
        what = f"of {total:,} images that its annotations name, {total - len(lost):,} are there{first}"
        raise broken(next((file for file in rest if rest[file]), source.label), what, "at least half")
    notes += left_out_notes((lost, "images", "named by annotations but missing"))
    # Not an error: many datasets annotate only some of their images.
    bare = [name for number, name in enumerate(images.names) if number not in owner]
    notes += left_out_notes((bare, "images", "without annotations"))
    return placed, notes


# --- the box around what is drawn -------------------------------------------------------------------------------------

Shape = tuple[str, tuple[float, float, float, float]]
Points = list[tuple[float, float]]
# A class, and the points of what is drawn.
Drawing = tuple[Any, Iterable[Sequence[Any]]]


def _corners(x0: float, y0: float, x1: float, y1: float) -> Points:
    """Return the four corners of a box, in order."""
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]


def _turned(points: Points, around: tuple[float, float], degrees: Any) -> Points:
    """Return points rotated around another, clockwise in an image."""
    angle = math.radians(float(degrees or 0))
    (x0, y0), sine, cosine = around, math.sin(angle), math.cos(angle)
    moved = [(x - x0, y - y0) for x, y in points]
    return [(x0 + x * cosine - y * sine, y0 + x * sine + y * cosine) for x, y in moved]


def _record(
    image: str,
    drawn: Iterable[Drawing],
    size: tuple[int, int] = (0, 0),
    split: str = "",
    *,
    left_out: int = 0,
    labels: Sequence[str] = (),
) -> Record:
    """Return what is drawn on an image: the class of each drawing, and the box around its points; a single point has no
    box, and is left out."""
    shapes = list[Shape]()
    for label, points in drawn:
        places = [(float(x), float(y)) for x, y in points]
        xs, ys = zip(*places, strict=True) if places else ((), ())
        if not str(label) or not places or not all(map(math.isfinite, (*xs, *ys))):
            msg = f"a shape '{show(label)}' has the points {show(places)}; expected a label and numbers"
            raise ValueError(msg)
        if len(places) > 1:
            shapes.append((str(label), (min(xs), min(ys), max(xs), max(ys))))
        left_out += len(places) == 1
    return Record(image, shapes, size, split, left_out, labels)


def _box(x: Any, y: Any, width: Any, height: Any) -> Points:
    left, top = float(x), float(y)
    return _corners(left, top, left + float(width), top + float(height))


def _ellipse(x: Any, y: Any, across: Any, down: Any, degrees: Any = 0) -> Points:
    """Return the corners of the box around an ellipse, given its centre and half axes."""
    x, y, across, down, angle = *map(float, (x, y, across, down)), math.radians(float(degrees or 0))
    width = math.hypot(across * math.cos(angle), down * math.sin(angle))
    height = math.hypot(across * math.sin(angle), down * math.cos(angle))
    return _corners(x - width, y - height, x + width, y + height)


# --- in a file beside each image --------------------------------------------------------------------------------------

# How many files are examined before all are parsed, because other tools write such files too.
_SNIFFED = 8
# Folders that only describe their content, in any spelling: images/train/a.jpg belongs to annotations/train/a.xml.
_ROLES = frozenset(
    ("annotations", "annotation", "annots", "annot", "xmls", "xml", "labels", "label", "images", "image", "imgs", "img",
     "jpegimages", "photos", "pictures")
)  # fmt: skip


def _stem(name: str) -> str:
    """Return a path without its extension, in normal form."""
    return posixpath.splitext(words.normal(name))[0]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number, line.strip()


def _place(name: str, shared: Container[str] = ()) -> tuple[str, ...]:
    """Return the folders that distinguish a file from others, not those that all `shared`, and its stem."""
    *folders, stem = _stem(name).split("/")
    return (*(folder for folder in folders if folder.lower() not in _ROLES and folder not in shared), stem)


def _nearest_of(images: FileEntries, annotations: FileEntries) -> dict[str, FileEntry]:
    """Return the file of each image: in the same folders, apart from those that only describe their content; otherwise
    the nearest above that belongs to one image alone (crazing/1.jpg, annotations/1.xml)."""
    # A folder of annotations alone may have any name, but that of a split.
    of_images = {part for folder in images.folders[0] for part in words.normal(folder).split("/")}
    shared = words.shared_folders(map(words.normal, annotations.names))
    shared = [one for one in shared if one not in of_images and not words.is_split(one)]
    # Of two that may belong to one image, the other is compared with the first, as any other boxes are.
    by_place = {_place(file.name, shared): file for file in reversed([*annotations])}
    found: dict[str, FileEntry] = {}
    above: dict[str, list[tuple[str, FileEntry]]] = defaultdict(list)
    for image in images.names:
        *folders, stem = _place(image)
        depths = range(len(folders), -1, -1)
        depth = next((depth for depth in depths if (*folders[:depth], stem) in by_place), None)
        if depth is None:
            continue
        file = by_place[*folders[:depth], stem]
        if depth == len(folders):
            found[image] = file
        else:
            above[file.name].append((image, file))
    taken = {file.name for file in found.values()}
    # If two folders have images with one name, nothing says which of them the file belongs to.
    alone = dict(pairs[0] for name, pairs in above.items() if len(pairs) == 1 and name not in taken)
    return found | alone


# --- KITTI: image_2/000000.png with label_2/000000.txt, one object in a line of fifteen columns -----------------------

# The order of KITTI's readme; other types follow by name. Unlabelled regions come last.
_KITTI_TYPES = ("Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc")
_DONT_CARE = "DontCare"
_OF_KITTI = (
    BoxColumn("truncated", np.float32), BoxColumn("occluded", np.int64), BoxColumn("alpha", np.float32),
    BoxColumn("dimensions", np.float32, 3), BoxColumn("location", np.float32, 3), BoxColumn("rotation_y", np.float32),
)  # fmt: skip


def kitti_state(source: Source) -> Evidence:
    """Read images in the form of KITTI's object benchmark, including a folder `testing` without labels.

    Boxes are left, top, right, bottom as written, in pixels. Columns: truncated, occluded, alpha, dimensions (height,
    width, length in metres), location (x, y, z in metres), rotation_y. `DontCare` regions are the last class.
    """
    texts = source.ending_in((".txt",)).where(lambda name: name.endswith(".txt") and words.folder_of(name) == "label_2")
    labels = {_stem(entry.name): entry for entry in texts}
    # image_3 is from the right camera, for which the boxes are not valid.
    images = source.ending_in(words.IMAGES if labels else ()).where(lambda name: words.folder_of(name) == "image_2")
    files = [labels.get(re.sub(r"image_2(/[^/]*)$", r"label_2\1", _stem(name))) for name in images.names]
    if not any(files):
        msg = f"'{source.label}' has no folder label_2 with a text for each image in a folder image_2 beside it."
        raise LayoutError(msg)
    placed, notes = _records_beside(source, images, files, _parse_kitti, "file in label_2")
    # In the order of KITTI's list, as other programs number them.
    order = {kind: number for number, kind in enumerate(_KITTI_TYPES)} | {_DONT_CARE: len(_KITTI_TYPES) + 1}
    found = {kind for one in placed for kind, _ in one.record.shapes}
    classes = sorted(found, key=lambda kind: (order.get(kind, len(_KITTI_TYPES)), kind))
    used = [file.name for file in files if file is not None]
    boxes = _as_boxes(placed, classes, _OF_KITTI)
    return _state(source, "KITTI's files", placed, boxes, classes, notes=notes, used=used)


def _parse_kitti(name: str, content: bytes) -> Record:
    shapes = []
    for number, line in _lines(decode_text(content)):
        kind, *cells = line.split()
        try:
            values = list(map(float, cells))
        except ValueError:
            values = []
        # A sixteenth value is the score, which only results have. The occlusion is a small integer.
        if len(values) not in (14, 15) or not all(map(math.isfinite, values)) or abs(values[1]) > 1e9:
            what = f"{line[:120]!r} is not a KITTI object"
            raise broken(name, what, "its type and fourteen numbers", line=number)
        shapes.append((kind, [*values[3:7], *values[:3], *values[7:14]]))
    return Record("", shapes)


# --- Pascal VOC: JPEGImages/a.jpg with Annotations/a.xml, and lists of splits in ImageSets/Main -----------------------

_VOC_LISTS = "ImageSets/Main"
# The poses in the order of their numbers; the first is for a missing or unknown one.
_POSES = ("Unspecified", "Frontal", "Rear", "Left", "Right")
_OF_VOC = (BoxColumn("difficult", np.uint8), BoxColumn("truncated", np.uint8), BoxColumn("pose", np.int64))
# Not CVAT's <annotations>, which may be beside an image of the same name.
_IS_VOC = re.compile(r"<annotation[\s>]")
_VOC_FLAGS = {"": 0, "unspecified": 0, "unknown": 0, "false": 0, "no": 0, "true": 1, "yes": 1}


def voc_state(source: Source) -> Evidence:
    """Read images with one XML file of Pascal VOC's form each, in `Annotations` or beside it.

    VOC counts pixels from 1 and its last one is part of the box; here boxes are x0 = xmin - 1, y0 = ymin - 1,
    x1 = xmax, y1 = ymax, so that x1 - x0 is the width. Columns: difficult, truncated (0 or 1), pose (number of
    `_POSES`). Splits come from folders, otherwise from the lists in ImageSets/Main; unlisted images are then left out.
    """
    annotations = source.ending_in((".xml",))
    images = source.ending_in(words.IMAGES if annotations else ())
    # Masks are in SegmentationClass and SegmentationObject by the same stems.
    images = images.where(lambda name: not words.folder_of(name).startswith("Segmentation"))
    labels = _nearest_of(images, annotations)
    some = list(labels.values())[:_SNIFFED]
    if not any(map(_IS_VOC.search, source.texts(some).values())):
        msg = (
            f"'{source.label}' has no XML file of Pascal VOC's form with the name of an image, beside it or elsewhere."
        )
        raise LayoutError(msg)
    # Images without a file count only in folders where others have one.
    folders = set(map(posixpath.dirname, labels))
    chosen = images.where(lambda name: posixpath.dirname(name) in folders)
    files = [labels.get(name) for name in chosen.names]
    placed, notes = _records_beside(source, chosen, files, _parse_voc, "XML file")
    notes += left_out_notes((len(images) - len(chosen), "images", "in folders without annotations"))
    # The files have only class names; sorted, so that all machines number them alike.
    classes = sorted({kind for one in placed for kind, _ in one.record.shapes})
    boxes, used = _as_boxes(placed, classes, _OF_VOC), [file.name for file in labels.values()]
    return _state(source, "Pascal VOC's files", placed, boxes, classes, notes=notes, used=used, within=_VOC_LISTS)


def _parse_voc(name: str, content: bytes) -> Record:
    """Return the objects of one file, and the size of its image."""
    shapes: list[tuple[str, Sequence[float]]] = []
    size = (0, 0)

    def take(element: Element) -> None:
        nonlocal size
        # Parts of an object (a person's head) are nested objects, not boxes of the image.
        if element.tag == "object":
            shapes.append(_voc_object(element))
        elif element.tag == "size":
            # Some tools write zeros for a size that they do not know.
            size = _size({side: _text(element, side) for side in ("height", "width")})
            size = size if all(size) else (0, 0)

    parse_xml(name, content, "annotation", take)
    return Record("", shapes, size)


def _text(element: Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _voc_object(element: Element) -> tuple[str, Sequence[float]]:
    name, pose = _text(element, "name"), _text(element, "pose").capitalize()
    try:
        x0, y0, x1, y1 = (float(_text(element, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax"))
        written = [_text(element, flag).lower() for flag in ("difficult", "truncated")]
        flags = [_VOC_FLAGS[word] if word in _VOC_FLAGS else int(word[:20]) for word in written]
    except ValueError as error:
        what = f"an object '{show(name)}' has no readable bndbox or flags ({error})"
        msg = f"{what}. Write xmin, ymin, xmax and ymax{OWN_BOXES}"
        raise ValueError(msg) from error
    if not name or not all(map(math.isfinite, (x0, y0, x1, y1))):
        msg = f"an object '{show(name)}' has the bndbox {show([x0, y0, x1, y1])}; expected a name, and numbers"
        raise ValueError(msg)
    # Tools that count from 0 write 0 here, and also mean the first pixel.
    return name, (max(x0 - 1, 0.0), max(y0 - 1, 0.0), x1, y1, *flags, _POSES.index(pose) if pose in _POSES else 0)


# --- YOLO: images/a.jpg with labels/a.txt, or a.txt beside it, a class and a box in each line -------------------------

# Tools write 1.0000001 for the edge; more than this is another unit.
_SLACK = 0.01
# With fewer lines than this, agreement may be chance. The lines of oriented boxes, four corners each, are all alike.
_FEW_POSES, _OF_QUADS = 4, 9


def yolo_state(source: Source) -> Evidence:
    """Read images with text files of YOLO's form, in folders `labels` beside `images`, or beside the images.

    Boxes are x0, y0, x1, y1 as fractions of width and height; a polygon becomes the box around it. An empty file means
    no boxes, and so does a missing one, with a note. Names of classes come from data.yaml, classes.txt or obj.names;
    splits from data.yaml, lists or folders.
    """
    entries = source.ending_in((".txt",))
    images = source.ending_in(words.IMAGES if entries else ())
    files = _label_files(source, images, entries)
    there = [file for file in files if file is not None]
    lists, classes = read_class_list(source) if there else ([], ClassList(()))
    # If there are rows of numbers in the places of YOLO's boxes, they are meant as boxes; captions and other labels are
    # not.
    some = [file for file in there if file.size][:_SNIFFED]
    is_text = bool(some) and not any(map(_has_numbers, source.texts(some).values()))
    pairs = [(image, file.name) for image, file in zip(images.names, files, strict=False) if file is not None]
    are_beside = not classes.names and any(posixpath.dirname(one) == posixpath.dirname(file) for one, file in pairs)
    if not there or is_text or are_beside:
        msg = (
            f"'{source.label}' has no text file of YOLO's form for any image, neither in a folder labels beside one "
            "called images, nor beside the images with a classes.txt."
        )
        raise LayoutError(msg)
    # How many numbers of a pose follow the box in each line.
    pose = classes.keypoints[0] * classes.keypoints[1]
    rows: dict[str, list[list[float]]] = {}

    def parse(name: str, content: bytes) -> Record:
        rows[name] = _parse_yolo(name, content, pose=pose)
        return Record("", [(int(row[0]), _yolo_corners(row[1:])) for row in rows[name]])

    stated, notes = _stated_splits(images, classes)
    splits = stated or [*map(words.split_of_path, images.names)]
    # A split without any label file is not one without objects.
    labelled = {split for split, file in zip(splits, files, strict=True) if file is not None}
    kept = [number for number, split in enumerate(splits) if split in labelled]
    notes += left_out_notes((len(images) - len(kept), "images", "of splits without a label file"))
    images, files = images.take(np.array(kept)), [files[number] for number in kept]
    placed, more = _records_beside(source, images, files, parse, "label file")
    notes += more
    if stated:
        placed = [one._replace(split=splits[number]) for one, number in zip(placed, kept, strict=True)]
    every = [row for found in rows.values() for row in found]
    if pose:
        notes.append(f"Of each box {counted(classes.keypoints[0], 'keypoints', 'were')} left out.")
    elif len(lengths := {*map(len, every)}) == 1 and len(every) >= _FEW_POSES and (count := min(lengths)) > _OF_QUADS:
        what = f"its lines and all others have {count} numbers: polygons, or boxes with keypoints"
        shapes = " or ".join(f"[{(count - 5) // width}, {width}]" for width in (2, 3) if (count - 5) % width == 0)
        how = (
            f"kpt_shape: {shapes} in data.yaml for poses; for polygons, in one of them the first point again at its end"
        )
        raise broken(there[0].name, what, how)
    if polygons := sum(len(row) > 5 for row in every):
        notes.append(f"Boxes around polygons, and around oriented boxes, are kept without these: {polygons:,}.")
    names = names_of_numbers(classes.names, {name: [int(row[0]) for row in found] for name, found in rows.items()})
    boxes, stated_lists = _as_boxes(placed, range(len(names)), relative=True), _stated_lists(source, classes)
    return _state(source, "YOLO's files", placed, boxes, names, notes=notes, used=[*rows, *lists], stated=stated_lists)


def _label_files(source: Source, images: FileEntries, entries: FileEntries) -> list[FileEntry | None]:
    """Return the label file of each image, or nothing: the one that Ultralytics would use, with the last folder
    `images` of the path called `labels`; or the one beside the image; or, where none has either, the nearest."""
    # Mostly no text is called as any image is.
    stems, ends = {*words.stems_of(words.normal_names(entries.names))}, images.endings[0]
    may_be = {stem + end for stem in stems for end in ends}
    if source.made_of(images, Lookup.of).unknown(may_be) == may_be:
        return []
    # By exact names, because thousands of labels are looked up, with the case of the images' names.
    texts = {_stem(entry.name): entry for entry in entries}
    parts = [(stem, f"/{stem}".rpartition("/images/")) for stem in map(_stem, images.names)]
    moved = [f"{head}/labels/{tail}".lstrip("/") if found else "" for _, (head, found, tail) in parts]
    files = [texts.get(other) or texts.get(stem) for other, (stem, _) in zip(moved, parts, strict=True)]
    if any(files):
        return files
    nearest = _nearest_of(images, entries)
    read = source.texts(list(nearest.values())[:_SNIFFED])
    # VisDrone's files are in the same places, but have another form.
    are_boxes = all(_is_yolo(_numbers(line)) for text in read.values() for _, line in _lines(text))
    return [nearest.get(name) for name in images.names] if are_boxes else []


def _stated_splits(images: FileEntries, classes: ClassList) -> tuple[list[str], list[str]]:
    """Return the split of each image from the folders that data.yaml names, empty if it names none; and notes."""
    folders, of_files = images.folders
    # By parts from the end: `../train/images` is relative to where the file was written.
    places = [
        (split, "/".join(part for part in words.normal(path).replace("\\", "/").split("/") if part.strip(".")))
        for split, paths in classes.splits.items()
        for path in paths
        if not path.lower().endswith(LIST_ENDS)
    ]
    found = [
        {split for split, place in places if place and f"/{place}/" in f"/{words.normal(folder)}/"}
        for folder in folders
    ]
    own = [words.split_of_path(f"{folder}/") for folder in folders]
    for folder, split, splits in zip(folders, own, found, strict=True):
        if split == "train" and splits and "train" not in splits:
            msg = f"data.yaml holds '{folder}' out as {listed(sorted(splits))}. Correct it, or rename the folder."
            raise BrokenDatasetError(msg)
    # Folders in two splits, such as coco128's train and val, say nothing.
    stated = [next(iter(splits)) if len(splits) == 1 else "" for splits in found]
    named = sorted({*stated})
    # Folders that are named after splits keep these names.
    if all(own) or not all(stated) or len(named) < 2:
        return [], []
    return [stated[number] for number in of_files.tolist()], [
        f"Splits are those that data.yaml names: {listed(named)}."
    ]


def _stated_lists(source: Source, classes: ClassList) -> dict[str, str] | None:
    """Return the lists of images that data.yaml or obj.data name, with their splits; `None` where they name none."""
    texts = source.ending_in(LIST_ENDS)
    lookup = Lookup(texts.names)
    named = [(lookup.find(path), split) for split, paths in classes.splits.items() for path in paths
             if path.lower().endswith(LIST_ENDS)]  # fmt: skip
    # People who hold nothing out give the same list again: valid = train.txt.
    named.sort(key=lambda one: words.SPLIT_ORDER[one[1]], reverse=True)
    return {texts.names[number]: split for number, split in named if number >= 0} or None


def _has_numbers(text: str) -> bool:
    """Tell whether a line has as many numbers as a box, after a class that may be a word."""
    lines = (line.replace(",", " ") for _, line in _lines(text))
    return any(len(_numbers(line) or _numbers(line.partition(" ")[2])) >= 4 for line in lines)


def _numbers(line: str) -> list[float]:
    """Return the words of a line as numbers; empty if one is not a number."""
    # One or the other separates them: in a line with both, commas may be decimal commas.
    cells = line.split(",") if "," in line else line.split()
    try:
        return list(map(float, cells))
    except ValueError:
        return []


def _parse_yolo(name: str, content: bytes, *, pose: int = 0) -> list[list[float]]:
    """Return the class and the numbers of each line: a box by its centre and size, or the points of a polygon."""
    rows = []
    for number, line in _lines(decode_text(content)):
        values = _numbers(line)
        if pose:
            # Keypoints are left out; the box precedes them.
            values = values[:5] if len(values) in (5, 5 + pose) else []
        if not _is_yolo(values):
            shape = f"{pose} further ones as kpt_shape says" if pose else "or a polygon of at least three points"
            expected = (
                "a class, from 0, and four numbers from 0 to 1, cxcywh in parts of the image's width and height, "
                f"{shape}; for poses kpt_shape in data.yaml"
            )
            raise broken(name, f"{line[:120]!r} is not a YOLO box", expected, line=number)
        rows.append(values)
    return rows


def _is_yolo(values: Sequence[float]) -> bool:
    if len(values) != 5 and not (len(values) >= 7 and len(values) % 2):
        return False
    # Pixels instead of fractions are another format, and would give boxes far outside the image.
    inside = all(-_SLACK <= value <= 1 + _SLACK for value in values[1:])
    return inside and 0 <= values[0] < MOST_CLASSES and values[0] == int(values[0])


def _yolo_corners(values: Sequence[float]) -> tuple[float, float, float, float]:
    if len(values) > 4:
        xs, ys = values[::2], values[1::2]
        return min(xs), min(ys), max(xs), max(ys)
    x, y, width, height = values
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


# --- annotation tools and benchmarks: LabelMe, CVAT, Supervisely, VIA, and others -------------------------------------


class Format(NamedTuple):
    name: str
    extension: str
    marks: tuple[bytes, ...]
    """Bytes that every such file contains."""
    parse: Callable[[str, bytes], list[Record]]
    """Reads a file, given its name and content; returns nothing if it has another format. For a broken file it raises
    Python's own error."""
    named: str = ""
    """A pattern of the files' paths."""
    per_image: bool = False
    """Whether each file belongs to one image, and is named after it."""
    numbered: bool = False
    """Whether classes are numbers, with names in a list beside the images."""

    def records(self, file: FileEntry, content: bytes) -> list[Record]:
        """Return the records of a file; empty if it does not have this format."""
        # Looking for bytes is much faster than parsing, and most files are not annotations.
        if not all(mark in content for mark in self.marks) or re.search(self.named, file.name) is None:
            return []
        try:
            return self.parse(file.name, content)
        # The file has the marks of this format, so if anything is missing it is broken, and no other format is tried.
        except _OF_PYTHON as error:
            what = f"it looks like {self.name}'s annotations but cannot be read as such ({show(error)})"
            raise broken(file.name, what) from error


def tools_state(source: Source) -> Evidence:
    """Read images whose boxes are in files of one of `_FORMATS`; where nothing is drawn, with the classes of whole
    images, one each, or uint8 (N, K) if some have several.

    Boxes are x0, y0, x1, y1 in pixels; classes are the labels, sorted. Splits are those in the names of the files, or
    of the folders of images. Images that no file mentions are left out.
    """
    form, found = _read_annotations(source)
    if form is None:
        names = ", ".join(dict.fromkeys(form.name for form in _FORMATS))
        msg = f"'{source.label}' has no annotation files in the formats of these tools: {names}."
        raise LayoutError(msg)
    records = [one for each in found.values() for one in each]
    # Classes are those that occur: not every tool lists its classes in an export.
    called: Sequence[str] = sorted({label for one in records for label, _ in one.shapes})
    labels, lists = called, list[str]()
    if form.numbered:
        lists, named = read_class_list(source)
        numbers = {name: [int(label) for one in each for label, _ in one.shapes] for name, each in found.items()}
        called = names_of_numbers(named.names, numbers)
        labels = [*map(str, range(len(called)))]
    placed, notes = _join_records(source, found, per_image=form.per_image)
    placed.sort(key=lambda one: one.file.name)
    who = f"{form.name}'s annotations"
    whole = [] if called else [one for one in placed if one.record.labels]
    if whole:
        words_of = [[*dict.fromkeys(one.record.labels)] for one in whole]
        several = "\n" if any(len(own) > 1 for own in words_of) else ""
        stated = Column("label", [several.join(own) for own in words_of])
        targets, classes = make_targets([stated], separator=several)
        notes += left_out_notes((len(placed) - len(whole), "images", "without a class"))
        return _state(source, who, whole, targets, classes, notes=notes, used=found)
    lost = sum(one.left_out for one in records)
    notes += left_out_notes((lost, "annotations", "without a box, such as points and classes of whole images,"))
    return _state(source, who, placed, _as_boxes(placed, labels), called, notes=notes, used=[*found, *lists])


def _read_annotations(source: Source) -> tuple[Format | None, dict[str, list[Record]]]:
    """Return the format of the files, one for the whole tree, because two would number classes separately; and the
    records of each file."""
    # By extension, so that each file is read once, even if several formats share its extension.
    for extension in dict.fromkeys(form.extension for form in _FORMATS):
        forms = [form for form in _FORMATS if form.extension == extension]
        # A format without a pattern of its own adds an empty alternative, which every path matches.
        named = re.compile("|".join(f"(?:{form.named})" for form in forms))
        files = source.ending_in((extension,)).where(lambda name: named.search(name) is not None)  # noqa: B023

        def fits(file: FileEntry, content: bytes) -> tuple[Format | None, list[Record]]:
            every = ((form, form.records(file, content)) for form in forms)  # noqa: B023
            return next(((form, records) for form, records in every if records), (None, []))

        if extension in words.TABLES:
            heads = [source.head(file, BEGINNING_BYTES) for file in files[:_SNIFFED]]
            if not any(all(mark in head for mark in form.marks) for form in forms for head in heads):
                continue
        # A few files decide, so that thousands of files from another tool are not read.
        read = source.parse(files[:_SNIFFED], fits)
        form = next((one for one, _ in read.values() if one is not None), None)
        if form is not None:
            found = {name: records for name, (one, records) in read.items() if one is form}
            found |= source.parse(files[_SNIFFED:], form.records)
            return form, {name: records for name, records in found.items() if records}
    return None, {}


def is_of_tool(columns: Sequence[Column]) -> bool:
    """Tell whether a table is a tool's: a format's marks are one of its columns, and others or cells of that one."""
    known = {one.name: one for one in columns}
    marks = ([mark.decode().strip('"') for mark in form.marks] for form in _FORMATS if form.extension in words.TABLES)
    return any(first in known and {*rest} <= known.keys() | known[first].filled for first, *rest in marks)


def _mapping(content: bytes, key: str, kind: type) -> dict[str, Any]:
    """Return the mapping in a JSON file; an empty one if it is not one, or has no such value under a key."""
    found = json.loads(content)
    return found if isinstance(found, dict) and isinstance(found.get(key), kind) else {}


def _list_of(content: bytes, key: str) -> list[dict[str, Any]]:
    """Return the mappings in a JSON list; empty if it is not such a list, or if one of them lacks the key."""
    found = json.loads(content)
    fits = isinstance(found, list) and all(isinstance(one, dict) and key in one for one in found)
    return found if fits else []


# --- each of these formats --------------------------------------------------------------------------------------------


def _labelme(name: str, content: bytes) -> list[Record]:
    found = _mapping(content, "shapes", list)
    drawn = [(shape["label"], _labelme_points(shape)) for shape in found.get("shapes", ())]
    ticked = [word for word, is_on in (found.get("flags") or {}).items() if is_on]
    size = _size(found, "imageHeight", "imageWidth")
    # The image of the same name beside the file, because the path in the file is from the annotator's machine.
    record = _record(words.stem_of(name), drawn, size, left_out=len(ticked), labels=ticked)
    return [record] if found else []


def _labelme_points(shape: dict[str, Any]) -> Points:
    points = [(float(x), float(y)) for x, y in shape["points"]]
    # A circle is stored as its centre and a point on its edge.
    if shape.get("shape_type") == "circle":
        radius = math.dist(*points)
        return _ellipse(*points[0], radius, radius)
    return points


def _createml(_: str, content: bytes) -> list[Record]:
    """Read CreateML's file: boxes by centre and size."""

    def draw(one: dict[str, Any]) -> Drawing:
        x, y, width, height = (one["coordinates"][key] for key in ("x", "y", "width", "height"))
        return one["label"], _box(x - width / 2, y - height / 2, width, height)

    return [
        _record(str(one.get("image") or one["imagefilename"]), map(draw, one["annotations"]))
        for one in _list_of(content, "annotations")
    ]


def _via(_: str, content: bytes) -> list[Record]:
    """Read the VGG Image Annotator's file; a region's only attribute is its class, "object" if no region has one."""
    found = json.loads(content)
    # A saved project wraps the contents of an export.
    found = found.get("_via_img_metadata", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(one, dict) and "regions" in one for one in found.values()):
        return []
    return _of_via(found.values())


def _via_csv(_: str, content: bytes) -> list[Record]:
    """Read its table, with a region in each row, or none."""
    of_image: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(io.StringIO(decode_text(content), newline=""), strict=True):
        at, values = (json.loads(row[key] or "{}") for key in ("region_shape_attributes", "region_attributes"))
        regions = of_image.setdefault(row["filename"], {"filename": row["filename"], "regions": []})["regions"]
        regions += [{"shape_attributes": at, "region_attributes": values}] if at else []
    return _of_via(of_image.values())


def _of_via(images: Iterable[dict[str, Any]]) -> list[Record]:
    every = []
    for one in images:
        # Version 1 of the tool wrote objects with numbers as keys, version 2 writes a list.
        regions = one["regions"].values() if isinstance(one["regions"], dict) else one["regions"]
        every.append((str(one["filename"]), [*map(_via_drawing, regions)]))
    bare = [image for image, drawn in every for label, _ in drawn if not label]
    if bare and any(label for _, drawn in every for label, _ in drawn):
        msg = f"a region of '{show(bare[0])}' has no class, and others have; give it one, or take it out"
        raise ValueError(msg)
    return [_record(image, [(label or "object", points) for label, points in drawn]) for image, drawn in every]


def _via_drawing(region: dict[str, Any]) -> Drawing:
    at, values = region["shape_attributes"], (region.get("region_attributes") or {}).values()
    # Checkboxes are written as {"cat": true}.
    ticked = [[word for word, on in one.items() if on] if isinstance(one, dict) else [one] for one in values]
    stated = {word for one in ticked for word in one if word != ""}
    # With several attributes it is unclear which one is the class.
    if len(stated) > 1 or not all(isinstance(word, str) for word in stated):
        msg = f"a region has {show(sorted(map(str, stated)))} as attributes; expected one word, its class"
        raise ValueError(msg)
    label = next(iter(stated), "")
    if "all_points_x" in at:
        return label, list(zip(at["all_points_x"], at["all_points_y"], strict=True))
    if "width" in at:
        return label, _box(at["x"], at["y"], at["width"], at["height"])
    across, down = at.get("rx", at.get("r")), at.get("ry", at.get("r"))
    if across is None:
        return label, [(at["cx"], at["cy"])]
    return label, _ellipse(at["cx"], at["cy"], across, down, math.degrees(at.get("theta") or 0))


def _supervisely(name: str, content: bytes) -> list[Record]:
    """Read Supervisely's file for one image, which has the image's name followed by .json."""
    found = _mapping(content, "objects", list)
    drawn = [(one["classTitle"], _supervisely_points(one)) for one in found.get("objects", ())]
    image = posixpath.basename(name).removesuffix(".json")
    return [_record(image, drawn, _size(found.get("size") or {}))] if found else []


def _supervisely_points(one: dict[str, Any]) -> Points:
    if "bitmap" not in one:
        exterior: Points = one["points"]["exterior"]
        return exterior
    # A mask is cut to its own box, and stored as a compressed PNG.
    mask, (x, y) = probe_image(zlib.decompress(base64.b64decode(one["bitmap"]["data"]))), one["bitmap"]["origin"]
    return _box(x, y, mask.width, mask.height)


_ANSWERS = ("accept", "reject", "ignore")


def _prodigy(_: str, content: bytes) -> list[Record]:
    """Read Prodigy's lines, of which only those whose answer is accept say something: what is drawn, or the classes."""
    found = [json.loads(line) for line in decode_text(content).splitlines() if line.strip()]
    if not all(isinstance(one, dict) and one.get("answer") in _ANSWERS for one in found):
        return []
    every = []
    for one in (one for one in found if one["answer"] == _ANSWERS[0]):
        drawn = [
            (span["label"], span.get("points") or _box(*map(span.get, ("x", "y", "width", "height"))))
            for span in one.get("spans") or ()
        ]
        named = {option["id"]: str(option.get("text", option["id"])) for option in one.get("options") or ()}
        labels = [
            *([one["label"]] if one.get("label") else []),
            *(named.get(key, key) for key in one.get("accept") or ()),
        ]
        every.append(_record(str(one.get("path") or one["image"]), drawn, _size(one), labels=labels))
    return every


def _bdd(_: str, content: bytes) -> list[Record]:
    every = []
    for one in _list_of(content, "name"):
        # Lanes and drivable areas are labels without a box.
        labels = one.get("labels") or []
        boxes = [(each["category"], each["box2d"]) for each in labels if each.get("box2d") is not None]
        drawn = [(label, [(at["x1"], at["y1"]), (at["x2"], at["y2"])]) for label, at in boxes]
        every.append(_record(str(one["name"]), drawn, left_out=len(labels) - len(boxes)))
    return every


def _label_studio(_: str, content: bytes) -> list[Record]:
    """Read Label Studio's JSON: boxes and outlines in percent of the image, boxes rotated around their corner."""
    every = []
    questions = set[Any]()
    for one in _list_of(content, "data"):
        # Skipped tasks stay in the export as empty answers.
        kept = [each for each in one["annotations"] if not each.get("was_cancelled")]
        if len(kept) > 1:
            msg = f"task {show(one.get('id'))} has {len(kept)} annotations, by several people; export one for each"
            raise ValueError(msg)
        # Nobody has looked at it yet, so it is not an image without objects.
        if not kept:
            continue
        results = [region for each in kept for region in each["result"]]
        regions = [region for region in results if str(region.get("type")).endswith("labels")]
        sizes = [_size(region, "original_height", "original_width") for region in regions]
        path = next((str(word) for word in one["data"].values() if words.is_image(str(word))), "")
        # Local files are given by a query: /data/local-files/?d=photos/a.jpg.
        image = unquote(path.rpartition("?d=")[2])
        size, lost = sizes[-1] if sizes else (0, 0), len(results) - len(regions)
        choices = [each for each in results if each.get("type") == "choices" and "x" not in each["value"]]
        questions |= {each.get("from_name") for each in choices}
        labels = [word for each in choices for word in each["value"]["choices"]]
        every.append(_record(image, map(_label_studio_drawing, regions, sizes), size, left_out=lost, labels=labels))
    if len(questions) > 1 and not any(one.shapes for one in every):
        asked = listed(sorted(map(show, questions)))
        msg = f"its tasks answer several questions, {asked}; export a CSV, which has a column for each"
        raise ValueError(msg)
    return every if any(one.image for one in every) else []


def _label_studio_drawing(region: dict[str, Any], size: tuple[int, int]) -> Drawing:
    value, kind = region.get("value") or {}, region["type"]
    # In pixels, because a percent of the height and of the width have different lengths.
    down, across = size[0] / 100, size[1] / 100
    if kind not in ("polygonlabels", "rectanglelabels", "ellipselabels", "keypointlabels"):
        msg = f"a region is of the type {show(kind)!r}, whose box is not stated; expected rectangles and polygons"
        raise ValueError(msg)
    if len(value[kind]) != 1:
        msg = f"a region has {len(value[kind])} labels; expected one"
        raise ValueError(msg)
    if kind == "polygonlabels":
        return value[kind][0], [(x * across, y * down) for x, y in value["points"]]
    x, y = value["x"] * across, value["y"] * down
    points: Points = [(x, y)]
    if kind == "rectanglelabels":
        points = _turned(_box(x, y, value["width"] * across, value["height"] * down), (x, y), value.get("rotation"))
    elif kind == "ellipselabels":
        points = _ellipse(x, y, value["radiusX"] * across, value["radiusY"] * down, value.get("rotation"))
    return value[kind][0], points


def _keras_yolo(_: str, content: bytes) -> list[Record]:
    """Read a line for each image: its path, and x0,y0,x1,y1,class of each box."""
    every = []
    for line in [line for _, line in _lines(decode_text(content))]:
        image, *boxes = re.split(r" (?=(?:\d+,){4}\d+(?: |$))", line)
        values = [box.split(",") for box in boxes]
        every.append(_record(image, [(label, [(x0, y0), (x1, y1)]) for x0, y0, x1, y1, label in values]))
    return every if any(one.shapes for one in every) else []


def _cvat(name: str, content: bytes) -> list[Record]:
    every: list[Record] = []

    def take(image: Element) -> None:
        if image.tag == "image":
            given = image.attrib
            found = [one for one in image if one.tag in _CVAT_SHAPES]
            drawn = [(one.attrib["label"], _CVAT_SHAPES[one.tag](one.attrib)) for one in found]
            split = words.SPLITS.get(given.get("subset", "").lower(), "")
            tags = [one.attrib["label"] for one in image if one.tag == "tag"]
            every.append(
                _record(given["name"], drawn, _size(given), split, left_out=len(image) - len(found), labels=tags)
            )

    parse_xml(name, content, "annotations", take)
    return every


def _cvat_box(given: dict[str, str]) -> Points:
    x0, y0, x1, y1 = (float(given[edge]) for edge in ("xtl", "ytl", "xbr", "ybr"))
    return _turned(_corners(x0, y0, x1, y1), ((x0 + x1) / 2, (y0 + y1) / 2), given.get("rotation"))


def _cvat_outline(given: dict[str, str]) -> Points:
    return [(float(x), float(y)) for x, y in (point.split(",") for point in given["points"].split(";"))]


_CVAT_SHAPES: dict[str, Callable[[dict[str, str]], Points]] = {
    "box": _cvat_box,
    "ellipse": lambda given: _ellipse(*(given.get(name) for name in ("cx", "cy", "rx", "ry", "rotation"))),
    "mask": lambda given: _box(*(given[name] for name in ("left", "top", "width", "height"))),
    "polygon": _cvat_outline,
    "polyline": _cvat_outline,
}


def _dota(name: str, content: bytes) -> list[Record]:
    """Read DOTA's file for one image: each line has eight numbers, a class and whether it is difficult."""
    # The first lines say where the image is from.
    lines = [
        line.split() for line in decode_text(content).splitlines() if not line.startswith(("imagesource:", "gsd:"))
    ]
    rows = list(filter(None, lines))
    if any(len(row) not in (9, 10) for row in rows):
        return []
    return [_record(words.stem_of(name), [(one[8], zip(one[:8:2], one[1:8:2], strict=True)) for one in rows])]


def _wider(_: str, content: bytes) -> list[Record]:
    """Read WIDER FACE's list: a path, the number of faces, and a line of ten numbers for each."""
    lines = filter(None, (line.split() for line in decode_text(content).splitlines()))
    every = []
    for line in lines:
        path, count = " ".join(line), int(next(lines, ["none"])[0])
        # An image without faces still has one line of zeros.
        rows = [row for row in itertools.islice(lines, max(count, 1)) if len(row) >= 4]
        if len(rows) < count:
            msg = f"'{show(path)}' has {len(rows)} lines of numbers and says {count}"
            raise ValueError(msg)
        every.append(_record(path, [("face", _box(*row[:4])) for row in rows[:count]]))
    return every


# The stricter formats come first.
_FORMATS = (
    Format("LabelMe", ".json", (b'"shapes"', b'"imagePath"'), _labelme, per_image=True),
    Format("CreateML", ".json", (b'"annotations"', b'"coordinates"'), _createml),
    Format("VGG Image Annotator", ".json", (b'"regions"', b'"shape_attributes"'), _via),
    Format("VGG Image Annotator", ".csv", (b"region_shape_attributes", b"region_attributes"), _via_csv),
    Format("Prodigy", ".jsonl", (b'"answer"', b'"accept"'), _prodigy),
    Format("Supervisely", ".json", (b'"objects"',), _supervisely, r"/ann/[^/]+\.json$", per_image=True),
    Format("BDD100K", ".json", (b'"box2d"', b'"category"'), _bdd),
    Format("Label Studio", ".json", (b'"annotations"', b'"result"', b'"data"'), _label_studio),
    Format("CVAT", ".xml", (b"<annotations", b"<image"), _cvat),
    Format("DOTA", ".txt", (), _dota, r"labelTxt[^/]*/", per_image=True),
    Format("WIDER FACE", ".txt", (), _wider, r"_bbx_gt\.txt$"),
    Format("Keras YOLO", ".txt", (), _keras_yolo, r"(?:^|/)_annotations\.txt$", numbered=True),
)


# --- COCO: images, annotations and categories in one file, or in one for each split -----------------------------------

# With boxes or, as in iNaturalist and camera traps, with one category for each image and no box.
COCO_CLASSES = "coco_classes"
# COCO's archives have fewer JSON files; tools that write one for each image have far more.
_MOST_COCO_FILES = 24
# Fields of COCO's other tasks, for which a category alone is not the answer.
_OTHER_KINDS = frozenset({"caption", "segments_info", "segmentation", "keypoints"})
_OTHER_TASKS = ("captions_", "person_keypoints_", "panoptic_", "stuff_", "image_info_")
_OF_COCO = (BoxColumn("iscrowd", np.uint8), BoxColumn("area", np.float32))
_COCO_LISTS = ("images", "annotations", "categories")
_NO_BOX = ()
_IDS, _IS_NUMBER = ("id", "image_id", "category_id"), re.compile(r"0|[1-9]\d{0,17}", re.ASCII)


# The fields of an annotation that are kept while reading; of keypoints, and of outlines beside boxes, most of the file,
# only whether there are any.
_Annotation = namedtuple("_Annotation", "image_id category_id bbox iscrowd area id segmentation keypoints")


class CocoFile(NamedTuple):
    """One file of annotations: its lists, unchanged."""

    name: str
    images: list[Any]
    annotations: list[Any] | None
    """`None` if it has no such list, as for a test with secret answers."""
    categories: list[Any]

    @property
    def kind(self) -> str:
        """Return what its annotations have: "boxes", or outlines that have one, "classes" alone, or "" for neither."""
        own = [one for one in self.annotations or () if isinstance(one, _Annotation)]
        if self.annotations is None or (self.annotations and not own):
            return ""
        return "boxes" if not own or any(one.bbox != _NO_BOX or one.segmentation for one in own) else "classes"


def coco_state(source: Source, *, classes: bool) -> Evidence:
    """Read images that COCO's JSON names, with boxes; or, with `classes`, with one category for each image and no box.

    Boxes are x0, y0, x1, y1 in pixels. Labels are indices into the classes, which are the categories by ascending id:
    the ids themselves may have gaps. Columns: iscrowd (0 or 1), area (in pixels of the original image). Images
    without annotations are kept beside boxes. Several files called after splits (instances_train2017.json,
    valid/_annotations.coco.json) are the splits.
    """
    # COCO's archive also has captions and keypoints of the same images, which take long to read.
    require_files(source.ending_in(words.IMAGES), source, "images")
    entries = source.ending_in((".json",))
    instances = entries.where(lambda name: posixpath.basename(name).startswith("instances_"))
    beside = entries.where(lambda name: posixpath.basename(name).startswith(_OTHER_TASKS))
    # With very many JSON files, each probably belongs to one image, and reading all would take long.
    chosen = instances or (entries if len(entries) <= _MOST_COCO_FILES else ())
    files = [file for entry in chosen if (file := _parse_coco(entry.name, source.read(entry))) is not None]
    # One folder may hold files of both kinds; those of classes are another layout.
    found = [file for file in files if file.kind == ("classes" if classes else "boxes")]
    if not found:
        what = " that gives each image a category and no box" if classes else ""
        msg = f"'{source.label}' has no JSON file with COCO's images, annotations and categories{what}, and images."
        raise LayoutError(msg)
    called, numbers = _coco_categories(found)
    images = [image for file in found for image in file.images if isinstance(image, dict)]
    group = group_of_fields({key: [image.get(key) for image in images] for key in (images[0] if images else ())})
    records = {file.name: _coco_records(file, numbers[file.name], group) for file in found}
    placed, notes = _join_records(source, records)
    notes += note_on_groups(group, [one.record.group for one in placed if group], (one.split for one in placed))
    used = frozenset(file.name for file in files).union(beside.names)
    who = "COCO's annotations"
    if classes:
        kept = [one for one in placed if one.record.shapes]
        targets = Values(np.array([one.record.shapes[0][0] for one in kept], np.int64))
        notes = [*left_out_notes((len(placed) - len(kept), "images", "without an annotation")), *notes]
        return _state(source, who, kept, targets, called, notes=notes, used=used, layout=COCO_CLASSES)
    every = [one for file in found for one in file.annotations or ()]
    for what, field in (("outlines", "segmentation"), ("sets", "keypoints")):
        notes += left_out_notes((sum(bool(getattr(one, field)) for one in every), what, f"of {field}"))
    boxes = _as_boxes(placed, range(len(called)), _OF_COCO)
    return _state(source, who, placed, boxes, called, notes=notes, used=used)


def _parse_coco(name: str, content: bytes) -> CocoFile | None:
    """Return what a file holds; `None` if it is not COCO's."""
    # First searched as bytes: parsing a gigabyte of JSON takes a minute, and most files are not annotations.
    if b'"images"' not in content or not (b'"file_name"' in content or b'"coco_url"' in content):
        return None
    try:
        found = json.loads(content, object_pairs_hook=_slim)
    except (ValueError, RecursionError) as error:
        raise broken(name, f"it looks like COCO's annotations but is not JSON ({show(error)})") from error
    images, annotations, categories = map(found.get, _COCO_LISTS) if isinstance(found, dict) else (None, None, None)
    if not isinstance(images, list) or not all(isinstance(part or [], list) for part in (annotations, categories)):
        return None
    return CocoFile(name, images, annotations, categories or [])


def _slim(pairs: list[tuple[str, Any]]) -> Any:
    """Return a JSON object; for an annotation only the necessary fields: polygons beside boxes take most memory."""
    found = dict(pairs)
    # Some tools write a number as a text, in one list or in all.
    for key in _IDS:
        if isinstance(word := found.get(key), str) and _IS_NUMBER.fullmatch(word):
            found[key] = int(word)
    is_label = "category_id" in found and (bool(found.get("segmentation")) or _OTHER_KINDS.isdisjoint(found))
    if "image_id" not in found or "file_name" in found or not ("bbox" in found or is_label):
        return found
    found["keypoints"] = bool(found.get("keypoints"))
    found["segmentation"] = bool(found.get("segmentation")) if found.get("bbox") else found.get("segmentation")
    found.setdefault("bbox", _NO_BOX)
    return _Annotation(*map(found.get, _Annotation._fields))


def _coco_categories(found: list[CocoFile]) -> tuple[list[str], dict[str, dict[Any, int]]]:
    """Return the names of the categories by ascending id, and for each file the numbers of its own ids: splits that
    were exported separately may number them differently, or list them only once."""
    first: dict[str, Any] = {}
    called: dict[str, dict[Any, str]] = {}
    for file in found:
        pairs = list[tuple[Any, str]]()
        for one in file.categories:
            if not isinstance(one, dict) or not isinstance(one.get("id"), int | str) or "name" not in one:
                raise broken(file.name, f"it has a category {show(one)}", "an id, a number or a word, and a name")
            pairs.append((one["id"], str(one["name"])))
        own = called[file.name] = dict(pairs)
        if not len(own) == len({*own.values()}) == len({*pairs}):
            raise broken(file.name, "two of its categories have one id or one name", "one name and one number for each")
        for number, name in own.items():
            first.setdefault(name, number)
    # Ids go up to 90 with gaps, which would be classes without samples. A few tools write them as words.
    names = sorted(first, key=lambda name: (isinstance(first[name], str), first[name]))
    stated = [own for own in called.values() if own]
    alike = stated[0] if stated and all(own == stated[0] for own in stated) else {}
    number_of = {name: number for number, name in enumerate(names)}
    return names, {file: {key: number_of[name] for key, name in (own or alike).items()} for file, own in called.items()}


def _coco_records(file: CocoFile, numbers: dict[Any, int], group: str) -> list[Record]:
    """Return what a file states about each image: its boxes, or its one category."""
    shapes: dict[Any, list[Any]] = {}
    found = []
    for image in file.images:
        name, key = _coco_name(image), image.get("id") if isinstance(image, dict) else None
        # Annotations refer to their image by this id.
        if not name or not isinstance(key, int | str) or key in shapes:
            raise broken(file.name, f"it has an image {show(image)}", "a file_name, and an id that no other one has")
        size = _size(image)
        own = shapes.setdefault(key, [])
        found.append(Record(name, own, size if all(size) else (0, 0), group=str(image.get(group, ""))))
    is_class = file.kind == "classes"
    for place, one in enumerate(file.annotations or ()):
        try:
            if not isinstance(one, _Annotation):
                msg = f"it is {show(one)}"
                raise TypeError(msg)
            # Boxes of unlisted images would be lost without a trace.
            if one.category_id not in numbers or one.image_id not in shapes:
                is_listed = one.category_id in numbers
                what = f"image {one.image_id}" if is_listed else f"category {one.category_id}"
                msg = f"it is of the {what}, which is not listed"
                raise ValueError(msg)
            shape = numbers[one.category_id], () if is_class else _coco_corners(one)
            own = shapes[one.image_id]
            # Two annotations that agree are the same label twice, as in exports with several annotators.
            if not is_class or not own:
                own.append(shape)
            elif own[0] != shape:
                msg = f"the image {one.image_id!r} has two categories"
                raise ValueError(msg)
        except _OF_PYTHON as error:
            kind = "no bbox" if is_class else "bbox [x, y, width, height] in pixels"
            expected = f"image_id, category_id and {kind}, like the others, of images and categories that are listed"
            what = f"annotation {place} (id {show(getattr(one, 'id', None))}) cannot be read: {show(error)}"
            raise broken(file.name, what, expected) from error
    return found


def _coco_corners(one: _Annotation) -> tuple[float, ...]:
    bbox = one.bbox
    # Some tools write none, or an empty one, beside an outline.
    if not bbox and isinstance(one.segmentation, list):
        points = [at for line in one.segmentation for at in zip(line[::2], line[1::2], strict=True)]
        ((_, (x0, y0, x1, y1)),) = _record("", [("outline", points)]).shapes
        bbox = [x0, y0, x1 - x0, y1 - y0]
    if not isinstance(bbox, list) or len(bbox) != 4:
        msg = f"its bbox is {show(bbox) if bbox != _NO_BOX else 'missing'}; give it one, or leave it out"
        raise ValueError(msg)
    x, y, width, height = map(float, bbox)
    # Most exports omit the area; in COCO itself it is the outline's, which is smaller than the box.
    area = float(width * height if one.area is None else one.area)
    # Some tools write numbers as texts, and a text that is not empty would count as true.
    crowd = float(bool(float(one.iscrowd or 0)))
    # COCO itself has boxes without width, which are kept; negative sizes mean corners instead of width and height.
    if not all(map(math.isfinite, (x, y, width, height, area))) or min(width, height) < 0:
        msg = f"bbox {show(one.bbox)}, area {show(one.area)}"
        raise ValueError(msg)
    return (x, y, x + width, y + height, crowd, area)


def _coco_name(image: Any) -> str:
    """Return the path of an image; in LVIS, the end of an address instead. "" if there is none."""
    if not isinstance(image, dict):
        return ""
    name = image.get("file_name")
    if isinstance(name, str):
        return name
    # train2017/000000391895.jpg is the end of LVIS's addresses, and the files' path below its folder.
    address = image.get("coco_url")
    return "/".join(address.split("/")[-2:]) if isinstance(address, str) and name is None else ""
