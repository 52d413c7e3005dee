"""Boxes in the formats of annotation tools and benchmarks: LabelMe, CVAT, Supervisely, VIA, and others.

Each format parses one file into records of the images that it names; finding and numbering images and making the table
is the same for all. Polygons and rotated boxes become the boxes around them, and a note says so.
"""

from __future__ import annotations

import functools
import json
import math
import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from colabstage.errors import LayoutError
from colabstage.layouts.boxes import Record, boxes_state, join_records, side_of
from colabstage.layouts.class_lists import read_class_list
from colabstage.layouts.columns import show
from colabstage.layouts.evidence import left_out_notes
from colabstage.layouts.reading import decode_text
from colabstage.layouts.table import BrokenDatasetError
from colabstage.layouts.words import SPLITS, is_image, stem_of
from colabstage.layouts.xml import parse_xml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from xml.etree.ElementTree import Element

    from colabstage.layouts.evidence import Evidence
    from colabstage.layouts.lookup import Lookup
    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntries, FileEntry

Points = list[tuple[float, float]]
_SNIFFED = 8
_KERAS_LINE = re.compile(r"(\S.*?\.\w+)((?: \d+,\d+,\d+,\d+,\d+)*)")
_LONGEST_NUMBER = 40
# What reading a broken file raises.
_OF_PYTHON = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


class _Format(NamedTuple):
    """One format of boxes."""

    name: str
    extension: str
    marks: tuple[bytes, ...]
    """Bytes that every such file contains."""
    parse: Callable[[str, bytes], list[Record]]
    """Reads a file, given its name and content; returns nothing if it has another format. For a broken file it raises
    Python's own error."""
    named: str = ""
    per_image: bool = False
    """Whether each file belongs to one image, and is named after it."""
    polygons: bool = False
    """Whether outlines, which become the boxes around them, are common."""
    numbered: bool = False
    """Whether classes are numbers, with names in a list beside the images."""


def tools_state(source: Source, images: FileEntries, lookup: Lookup) -> Evidence:
    """Read images whose boxes are in files of one of `FORMATS`.

    Boxes are x0, y0, x1, y1 in pixels; classes are the labels, sorted. Splits are those in the names of the files, or
    of the folders of images. Images that no file mentions are left out.
    """
    # By extension, so that each file is read once, even if several formats share its extension.
    for extension in dict.fromkeys(form.extension for form in FORMATS) if images else ():
        found = _read_annotations(source, extension)
        if found is not None:
            return _make_table(source, images, lookup, *found)
    names = ", ".join(form.name for form in FORMATS)
    msg = f"'{source.label}' has no annotation files in the formats of these tools: {names}."
    raise LayoutError(msg)


def _read_annotations(source: Source, extension: str) -> tuple[_Format, dict[str, list[Record]]] | None:
    """Return the format of the files with one extension, and the records of each; `None` if the format is unknown."""
    forms = [form for form in FORMATS if form.extension == extension]
    # A format without a pattern of its own adds an empty alternative, which every path matches.
    named = re.compile("|".join(f"(?:{form.named})" for form in forms))
    files = source.ending_in((extension,)).where(lambda name: named.search(name) is not None)
    # A few files decide, so that thousands of files from another tool are not read.
    some = files.take(np.arange(min(len(files), _SNIFFED)))
    kinds = source.parse(some, lambda file, content: next((f for f in forms if _parsed(f, file, content)), None))
    # One format for the whole tree, because two formats would number classes separately.
    form = next((kind for kind in kinds.values() if kind is not None), None)
    return None if form is None else (form, source.parse(files, functools.partial(_parsed, form)))


def _parsed(form: _Format, file: FileEntry, content: bytes) -> list[Record]:
    """Return the records of a file; nothing if it does not have this format."""
    # Looking for bytes is much faster than parsing, and most files are not annotations.
    if not all(mark in content for mark in form.marks) or re.search(form.named, file.name) is None:
        return []
    try:
        return form.parse(file.name, content)
    # The file has the marks of this format, so if anything is missing it is broken, and no other format is tried.
    except _OF_PYTHON as error:
        msg = f"'{file.name}' looks like {form.name}'s annotations but cannot be read as such ({show(error)})."
        raise BrokenDatasetError(msg) from error


def _make_table(
    source: Source, images: FileEntries, lookup: Lookup, form: _Format, found: Mapping[str, list[Record]]
) -> Evidence:
    words = {label for records in found.values() for one in records for label, _ in one.shapes}
    flags = next((name for name, records in found.items() if any(one.left_out < 0 for one in records)), None)
    # Used for classes of whole images, which are no boxes.
    if not words and flags is not None:
        msg = (
            f"'{flags}' and others of {form.name}'s files have no shapes, but flags of whole images, which are not "
            "read. Write a table with a path and a label in each row beside the images."
        )
        raise BrokenDatasetError(msg)
    # Classes are those that occur: not every tool lists its classes in an export.
    lists, classes = _names_of_numbers(source, form, words) if form.numbered else ([], sorted(words))
    numbers = {str(number) if form.numbered else name: number for number, name in enumerate(classes)}
    joined = join_records(source, images, lookup, found, per_image=form.per_image)
    placed = sorted(joined.placed, key=lambda one: one.file.name)
    lost = sum(max(one.left_out, 0) for records in found.values() for one in records)
    notes = [
        f"Boxes are those of {form.name}'s annotations.",
        *joined.notes,
        *left_out_notes((lost, "shapes", "without a box, such as points,")),
    ]
    if form.polygons:
        notes.append("Outlines became the boxes around them.")
    who, used = f"{form.name}'s annotations", [*found, *lists]
    return boxes_state(source, who, placed, numbers, names=classes, notes=notes, used=used)


def _names_of_numbers(source: Source, form: _Format, words: set[str]) -> tuple[list[str], list[str]]:
    """Return the names of numbered classes, or the numbers themselves if no list has names; and the lists."""
    # Classes without boxes count too, or numbers would shift.
    count = 1 + max(map(int, words), default=-1)
    lists, found = read_class_list(source)
    if found.names and count > len(found.names):
        msg = (
            f"{form.name}'s annotations have the class {count - 1}; {len(found.names)} are named ({found.names[0]}, …)."
        )
        raise BrokenDatasetError(msg)
    return lists, list(found.names) or [str(number) for number in range(count)]


def _shape(label: Any, points: Iterable[Sequence[Any]]) -> tuple[str, tuple[float, float, float, float]]:
    """Return a class and the box around points."""
    places = [(float(x), float(y)) for x, y in points]
    xs, ys = zip(*places, strict=True) if places else ((), ())
    if not str(label) or len(places) < 2 or not all(map(math.isfinite, (*xs, *ys))):
        msg = f"a shape '{show(label)}' has the points {show(places)}; expected a label and numbers"
        raise ValueError(msg)
    return str(label), (min(xs), min(ys), max(xs), max(ys))


def _box(x: Any, y: Any, width: Any, height: Any) -> Points:
    left, top = float(x), float(y)
    return [(left, top), (left + float(width), top + float(height))]


def _turned(points: Points, around: tuple[float, float], angle: float) -> Points:
    """Return points turned by an angle around another."""
    (x0, y0), sine, cosine = around, math.sin(angle), math.cos(angle)
    moved = [(x - x0, y - y0) for x, y in points]
    return [(x0 + x * cosine - y * sine, y0 + x * sine + y * cosine) for x, y in moved]


def _edges(x0: float, y0: float, x1: float, y1: float) -> Points:
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]


def _size(height: Any, width: Any) -> tuple[int, int]:
    return side_of(height), side_of(width)


def _labelme(name: str, content: bytes) -> list[Record]:
    """Read LabelMe's file of one image."""
    found = json.loads(content)
    if not isinstance(found, dict) or not isinstance(found.get("shapes"), list):
        return []
    shapes = []
    for shape in found["shapes"]:
        # Boxes have two points, outlines many; both become the box around their points.
        points = [(float(x), float(y)) for x, y in shape["points"]]
        # A circle is stored as its centre and a point on its edge.
        if shape.get("shape_type") == "circle":
            (x, y), edge = points
            radius = math.hypot(edge[0] - x, edge[1] - y)
            points = [(x - radius, y - radius), (x + radius, y + radius)]
        # A single point is not a box; a line is one, however thin.
        if len(points) > 1:
            shapes.append(_shape(shape["label"], points))
    left_out = len(found["shapes"]) - len(shapes)
    flags = found.get("flags")
    if not found["shapes"] and isinstance(flags, dict) and any(flags.values()):
        left_out = -1
    # The image of the same name beside the file, because the path in the file is from the annotator's machine.
    size = _size(found.get("imageHeight"), found.get("imageWidth"))
    return [Record(stem_of(name), shapes, size, left_out=left_out)]


def _records(content: bytes, key: str) -> list[dict[str, Any]]:
    """Return the mappings in a JSON list; nothing if it is not such a list, or if one of them lacks the key."""
    found = json.loads(content)
    fits = isinstance(found, list) and all(isinstance(one, dict) and key in one for one in found)
    return found if fits else []


def _createml(_: str, content: bytes) -> list[Record]:
    """Read CreateML's file: boxes by centre and size."""
    every = []
    for one in _records(content, "annotations"):
        shapes = []
        for shape in one["annotations"]:
            at = shape["coordinates"]
            left, top = at["x"] - at["width"] / 2, at["y"] - at["height"] / 2
            shapes.append(_shape(shape["label"], _box(left, top, at["width"], at["height"])))
        every.append(Record(str(one.get("image") or one["imagefilename"]), shapes))
    return every


def _via(_: str, content: bytes) -> list[Record]:
    """Read the VGG Image Annotator's file; a region's only attribute is its class; without one the class is
    "object"."""
    found = json.loads(content)
    # A saved project wraps the contents of an export.
    found = found.get("_via_img_metadata", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(one, dict) and "regions" in one for one in found.values()):
        return []
    every = []
    for one in found.values():
        regions = one["regions"]
        # Version 1 of the tool wrote objects with numbers as keys, version 2 writes a list.
        shapes = [_region(region) for region in (regions.values() if isinstance(regions, dict) else regions)]
        every.append(Record(str(one["filename"]), shapes))
    return every


def _region(region: dict[str, Any]) -> tuple[str, tuple[float, float, float, float]]:
    at, words = region["shape_attributes"], list((region.get("region_attributes") or {}).values())
    # With several attributes it is unclear which one is the class.
    if len(words) > 1 or not all(isinstance(word, str) for word in words):
        msg = f"a region has {show(words)} as attributes; expected one word, its class"
        raise ValueError(msg)
    if "all_points_x" in at:
        points = list(zip(at["all_points_x"], at["all_points_y"], strict=True))
    elif "width" in at:
        points = _box(at["x"], at["y"], at["width"], at["height"])
    else:
        msg = f"a region is a {show(at.get('name'))!r}; expected polygons and rectangles"
        raise ValueError(msg)
    return _shape(words[0] if words else "object", points)


def _supervisely(name: str, content: bytes) -> list[Record]:
    """Read Supervisely's file for one image, which has the image's name followed by .json."""
    found = json.loads(content)
    if not isinstance(found, dict) or not isinstance(found.get("objects"), list):
        return []
    shapes = [_shape(one["classTitle"], one["points"]["exterior"]) for one in found["objects"]]
    size = found.get("size") or {}
    return [
        Record(posixpath.basename(name).removesuffix(".json"), shapes, _size(size.get("height"), size.get("width")))
    ]


def _bdd(_: str, content: bytes) -> list[Record]:
    """Read BDD100K's file."""
    every = []
    for one in _records(content, "name"):
        # Lanes and drivable areas are labels without a box.
        labels = one.get("labels") or []
        shapes = [
            _shape(shape["category"], [(at["x1"], at["y1"]), (at["x2"], at["y2"])])
            for shape in labels
            if (at := shape.get("box2d")) is not None
        ]
        every.append(Record(str(one["name"]), shapes, left_out=len(labels) - len(shapes)))
    return every


def _label_studio(_: str, content: bytes) -> list[Record]:
    """Read Label Studio's JSON: boxes and outlines in percent of the image, boxes rotated around their corner."""
    every = []
    for one in _records(content, "data"):
        # Skipped tasks stay in the export as empty answers.
        kept = [each for each in one["annotations"] if not each.get("was_cancelled")]
        if len(kept) > 1:
            msg = (
                f"task {show(one.get('id'))} has {len(kept)} annotations, by several annotators; export one for each "
                "task"
            )
            raise ValueError(msg)
        shapes, size = [], (0, 0)
        for region in (region for each in kept for region in each["result"]):
            value, kind = region.get("value") or {}, str(region.get("type"))
            if kind not in ("rectanglelabels", "polygonlabels"):
                if kind.endswith("labels"):
                    msg = f"a region is of the type {show(kind)!r}; expected rectanglelabels and polygonlabels"
                    raise ValueError(msg)
                continue
            size = _size(region["original_height"], region["original_width"])
            # A region with several labels raises here, which becomes an error that names the file.
            (label,) = value[kind]
            # In pixels, because a percent of the height and of the width have different lengths.
            across, down = size[1] / 100, size[0] / 100
            if kind == "polygonlabels":
                points = [(x * across, y * down) for x, y in value["points"]]
            else:
                x, y = value["x"] * across, value["y"] * down
                corners = _edges(x, y, x + value["width"] * across, y + value["height"] * down)
                points = _turned(corners, (x, y), math.radians(value.get("rotation") or 0))
            shapes.append(_shape(label, points))
        path = next((str(word) for word in one["data"].values() if is_image(str(word))), "")
        # Local files are given by a query: /data/local-files/?d=photos/a.jpg.
        every.append(Record(unquote(path.rpartition("?d=")[2]), shapes, size))
    return every if any(one.shapes for one in every) else []


def _keras_yolo(_: str, content: bytes) -> list[Record]:
    """Read a line for each image: its path, and x0,y0,x1,y1,class of each box."""
    every = []
    for line in decode_text(content).splitlines():
        found = _KERAS_LINE.fullmatch(line.strip())
        if found is None and line.strip():
            return []
        if found is not None:
            boxes = [box.split(",") for box in found[2].split()]
            if any(len(number) > _LONGEST_NUMBER for box in boxes for number in box):
                msg = f"a number of more than {_LONGEST_NUMBER} digits"
                raise ValueError(msg)
            every.append(Record(found[1], [_shape(int(box[4]), [box[:2], box[2:4]]) for box in boxes]))
    return every if any(one.shapes for one in every) else []


def _cvat(name: str, content: bytes) -> list[Record]:
    """Read CVAT's XML for images."""
    every: list[Record] = []

    def take(image: Element) -> None:
        if image.tag != "image":
            return
        given = image.attrib
        found = [one for one in image if one.tag in _CVAT_SHAPES]
        shapes = [_shape(one.attrib["label"], _CVAT_SHAPES[one.tag](one.attrib)) for one in found]
        lost = sum(one.tag in ("skeleton", "cuboid", "points") for one in image)
        split = SPLITS.get(given.get("subset", "").lower(), "")
        every.append(Record(given["name"], shapes, _size(given.get("height"), given.get("width")), split, lost))

    parse_xml(name, content, "annotations", take)
    return every


def _cvat_box(given: dict[str, str]) -> Points:
    x0, y0, x1, y1 = (float(given[edge]) for edge in ("xtl", "ytl", "xbr", "ybr"))
    angle = math.radians(float(given.get("rotation") or 0))
    return _turned(_edges(x0, y0, x1, y1), ((x0 + x1) / 2, (y0 + y1) / 2), angle)


def _cvat_ellipse(given: dict[str, str]) -> Points:
    x, y, across, down = (float(given[name]) for name in ("cx", "cy", "rx", "ry"))
    angle = math.radians(float(given.get("rotation") or 0))
    width = math.hypot(across * math.cos(angle), down * math.sin(angle))
    height = math.hypot(across * math.sin(angle), down * math.cos(angle))
    return [(x - width, y - height), (x + width, y + height)]


def _cvat_outline(given: dict[str, str]) -> Points:
    return [(float(x), float(y)) for x, y in (point.split(",") for point in given["points"].split(";"))]


_CVAT_SHAPES: dict[str, Callable[[dict[str, str]], Points]] = {
    "box": _cvat_box,
    "ellipse": _cvat_ellipse,
    "mask": lambda given: _box(*(given[name] for name in ("left", "top", "width", "height"))),
    "polygon": _cvat_outline,
    "polyline": _cvat_outline,
}


def _dota(name: str, content: bytes) -> list[Record]:
    """Read DOTA's file for one image: each line has eight numbers, a class and whether it is difficult."""
    shapes = []
    for line in decode_text(content).splitlines():
        words = line.split()
        # The first lines say where the image is from.
        if not words or words[0].startswith(("imagesource:", "gsd:")):
            continue
        if len(words) not in (9, 10):
            return []
        shapes.append(_shape(words[8], zip(words[:8:2], words[1:8:2], strict=True)))
    return [Record(stem_of(name), shapes)]


def _wider(_: str, content: bytes) -> list[Record]:
    """Read WIDER FACE's list: a path, the number of faces, and a line of ten numbers for each."""
    lines = decode_text(content).splitlines()
    every = []
    at = 0
    while at < len(lines):
        path = lines[at].strip()
        at += 1
        if not path:
            continue
        count = int(lines[at][:_LONGEST_NUMBER])
        # An image without faces has one line of zeros all the same.
        rows = [line.split() for line in lines[at + 1 : at + 1 + max(count, 1)]]
        if len(rows) < count or any(len(row) < 4 for row in rows):
            msg = f"'{show(path)}' has {len(rows)} lines of numbers and says {count}"
            raise ValueError(msg)
        at += 1 + len(rows)
        every.append(Record(path, [_shape("face", _box(*row[:4])) for row in rows[:count]]))
    return every


# The stricter formats come first.
FORMATS = (
    _Format("LabelMe", ".json", (b'"shapes"', b'"imagePath"'), _labelme, per_image=True, polygons=True),
    _Format("CreateML", ".json", (b'"annotations"', b'"coordinates"'), _createml),
    _Format("VGG Image Annotator", ".json", (b'"regions"', b'"shape_attributes"'), _via, polygons=True),
    _Format(
        "Supervisely", ".json", (b'"objects"',), _supervisely, named=r"/ann/[^/]+\.json$", per_image=True, polygons=True
    ),
    _Format("BDD100K", ".json", (b'"box2d"', b'"category"'), _bdd),
    _Format("Label Studio", ".json", (b'"annotations"', b'"original_width"'), _label_studio, polygons=True),
    _Format("CVAT", ".xml", (b"<annotations", b"<image"), _cvat, polygons=True),
    _Format("DOTA", ".txt", (), _dota, named=r"labelTxt[^/]*/", per_image=True, polygons=True),
    _Format("WIDER FACE", ".txt", (), _wider, named=r"_bbx_gt\.txt$"),
    _Format("Keras YOLO", ".txt", (), _keras_yolo, named=r"(?:^|/)_annotations\.txt$", numbered=True),
)
