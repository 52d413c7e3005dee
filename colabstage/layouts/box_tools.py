"""Boxes in the formats of annotation tools and benchmarks: LabelMe, CVAT, Supervisely, VIA, and others; and the names
of classes that such tools leave beside the boxes.

Each format has a reader for one file, which returns the boxes of the images that it names; finding and numbering images
and making the table is the same for all. Polygons and rotated boxes become the boxes around them, and a note says so.

data.yaml is read by PyYAML, because people use all of YAML there (quotes, apostrophes, comments, multi-line lists).
"""

from __future__ import annotations

import codecs
import functools
import json
import math
import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import unquote
from xml.parsers import expat

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.given import show_content
from colabstage.layouts.image_boxes import LabelledImage, check_images, detection_table, numbers_as_names
from colabstage.layouts.names import IMAGE_EXTENSIONS, FileLookup, is_image, split_name, split_of_path, stem_of
from colabstage.layouts.reading import decode_text, read_file, read_files
from colabstage.layouts.table import BrokenDatasetError, left_out_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from colabstage.layouts.table import SampleTable
    from colabstage.trees.listing import FileEntries, FileEntry, Tree


class Shape(NamedTuple):
    """One object in an image."""

    label: str
    """Its class."""
    points: Sequence[tuple[float, float]]
    """Corners in pixels: two opposite ones of a box, or all points of an outline."""


class Annotated(NamedTuple):
    """The annotations of one image."""

    image: str
    """The image's path, as written."""
    shapes: Sequence[Shape]
    """The annotated shapes."""
    size: tuple[int, int] = (0, 0)
    """Its height and width; zeros if the file does not say."""
    left_out: int = 0
    """How many things are annotated that have no box: single points, lanes."""


class _Format(NamedTuple):
    """One format of boxes."""

    name: str
    extension: str
    """The extension of its files."""
    marks: tuple[bytes, ...]
    """Bytes that every such file contains."""
    parse: Callable[[str, bytes], list[Annotated]]
    """Reads a file, given its name and content; returns nothing if it has another format. For a broken file it raises
    Python's own error."""
    named: str = ""
    """A pattern for their paths."""
    per_image: bool = False
    """Whether each file belongs to one image, and is named after it."""
    polygons: bool = False
    """Whether outlines, which become the boxes around them, are common."""
    numbered: bool = False
    """Whether classes are numbers, with names in a list beside the images."""


def read_box_tools(tree: Tree) -> SampleTable:
    """Make a table of a tree whose boxes are in files of one of `FORMATS`.

    Boxes are x0, y0, x1, y1 in pixels; classes are the labels, sorted. Splits are those in the names of the files, or
    of the folders of images. Images that no file mentions are left out.

    Raises:
        LayoutError: there is no such file.
        BrokenDatasetError: a file is broken, or most images that it names are missing; the message names it.
    """
    images = tree.entries.ending_in(IMAGE_EXTENSIONS)
    # By extension, so that each file is read once, even if several formats share its extension.
    for extension in dict.fromkeys(form.extension for form in FORMATS) if images else ():
        found = _read_annotations(tree, extension)
        if found is not None:
            return _boxes_table(tree, images, *found)
    names = ", ".join(form.name for form in FORMATS)
    msg = f"'{tree.label}' has no annotation files in the formats of these tools: {names}."
    raise LayoutError(msg)


def _read_annotations(tree: Tree, extension: str) -> tuple[_Format, dict[str, list[Annotated]]] | None:
    """Return the format of the files with one extension, and the contents of each; `None` if the format is unknown."""
    forms = [form for form in FORMATS if form.extension == extension]
    # A format without a pattern of its own adds an empty alternative, which every path matches.
    named = re.compile("|".join(f"(?:{form.named})" for form in forms))
    files = tree.entries.ending_in((extension,)).where(lambda name: named.search(name) is not None)
    # A few files decide, so that thousands of files from another tool are not read.
    some = files.take(np.arange(min(len(files), _SNIFFED)))
    kinds = read_files(tree, some, lambda file, content: next((f for f in forms if _parsed(f, file, content)), None))
    # One format for the whole tree, because two formats would number classes separately.
    form = next((kind for kind in kinds.values() if kind is not None), None)
    return None if form is None else (form, read_files(tree, files, functools.partial(_parsed, form)))


def _parsed(form: _Format, file: FileEntry, content: bytes) -> list[Annotated]:
    """Return the contents of a file; nothing if it does not have this format."""
    # Looking for bytes is much faster than parsing, and most files are not annotations.
    if not all(mark in content for mark in form.marks) or re.search(form.named, file.name) is None:
        return []
    try:
        return form.parse(file.name, content)
    # The file has the marks of this format, so if anything is missing it is broken, and no other format is tried.
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, expat.ExpatError) as error:
        msg = f"'{file.name}' looks like {form.name}'s annotations but cannot be read as such ({error})."
        raise BrokenDatasetError(msg) from error


def _boxes_table(tree: Tree, images: FileEntries, form: _Format, found: dict[str, list[Annotated]]) -> SampleTable:
    lookups: dict[str, FileLookup] = {}
    # Classes are those that occur: not every tool lists its classes in an export.
    words = {shape.label for said in found.values() for one in said for shape in one.shapes}
    classes = _names_of_numbers(tree, form, words) if form.numbered else sorted(words)
    numbers = {str(number) if form.numbered else name: float(number) for number, name in enumerate(classes)}
    samples: dict[str, LabelledImage] = {}
    missing, total, first = 0, 0, ""
    for file, said in found.items():
        folder = posixpath.dirname(file)
        if folder not in lookups:
            lookups[folder] = FileLookup(images, folder)
        # A file about one image has the image's name, which may well be test_01.
        own = "" if form.per_image else split_name(stem_of(file)).split
        split = own or split_of_path(file)
        for one in said:
            total += 1
            image = lookups[folder].find(one.image, split=split)
            if image is None:
                missing += 1
                first = first or one.image
                continue
            # After annotating or exporting twice, boxes need not agree.
            if image.name in samples:
                msg = f"'{file}' names '{image.name}', which already has boxes; expected each image once."
                raise BrokenDatasetError(msg)
            rows = [[*_around(file, shape), numbers[shape.label]] for shape in one.shapes]
            samples[image.name] = LabelledImage(image, rows, split or split_of_path(image.name), one.size)
    check_images(f"{form.name}'s annotations in '{tree.label}'", total, total - missing, first)
    notes = [
        f"Boxes are those of {form.name}'s annotations.",
        *left_out_notes(
            (missing, "images", "named by annotations but missing"),
            (len(images) - len(samples), "images", "that no annotation file names"),
            (sum(one.left_out for said in found.values() for one in said), "shapes", "without a box, such as points,"),
        ),
    ]
    if form.polygons:
        notes.append("Outlines became the boxes around them.")
    return detection_table(tree, [samples[name] for name in sorted(samples)], classes, notes=notes)


def _names_of_numbers(tree: Tree, form: _Format, words: set[str]) -> list[str]:
    """Return the names of numbered classes, or the numbers themselves if no list has names."""
    # Classes without boxes count too, or numbers would shift.
    count = 1 + max(map(int, words), default=-1)
    names = list(read_class_file(tree).names)
    if names and count > len(names):
        msg = f"{form.name}'s annotations have the class {count - 1}; {len(names)} are named ({names[0]}, …)."
        raise BrokenDatasetError(msg)
    return names or numbers_as_names(count, f"'{tree.label}'")


def _around(file: str, shape: Shape) -> tuple[float, float, float, float]:
    points = np.array(shape.points, np.float64).reshape(-1, 2)
    if not shape.label or len(points) < 2 or not np.isfinite(points).all():
        msg = f"'{file}' has a shape '{shape.label}' with the points {points.tolist()}; expected a label and numbers."
        raise BrokenDatasetError(msg)
    (x0, y0), (x1, y1) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    return x0, y0, x1, y1


def _box(x: Any, y: Any, width: Any, height: Any) -> list[tuple[float, float]]:
    left, top = float(x), float(y)
    return [(left, top), (left + float(width), top + float(height))]


def _turned(middle: tuple[float, float], halves: tuple[float, float], angle: float) -> list[tuple[float, float]]:
    """Return the corners of a box, by its middle and half its sides, that is turned by an angle around its middle."""
    (x, y), (across, down) = middle, halves
    sine, cosine = math.sin(angle), math.cos(angle)
    ends = ((-across, -down), (across, -down), (across, down), (-across, down))
    return [(x + right * cosine - below * sine, y + right * sine + below * cosine) for right, below in ends]


def _labelme(name: str, content: bytes) -> list[Annotated]:
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
            radius = float(np.hypot(edge[0] - x, edge[1] - y))
            points = [(x - radius, y - radius), (x + radius, y + radius)]
        # A single point is not a box; a line is one, however thin.
        if len(points) > 1:
            shapes.append(Shape(str(shape["label"]), points))
    left_out = len(found["shapes"]) - len(shapes)
    size = (int(found.get("imageHeight") or 0), int(found.get("imageWidth") or 0))
    # The image of the same name beside the file, because the path in the file is from the annotator's machine.
    return [Annotated(stem_of(name), shapes, size, left_out)]


def _records(content: bytes, key: str) -> list[dict[str, Any]]:
    """Return the mappings in a JSON list; nothing if it is not such a list, or if one of them lacks the key."""
    found = json.loads(content)
    fits = isinstance(found, list) and all(isinstance(one, dict) and key in one for one in found)
    return found if fits else []


def _createml(_: str, content: bytes) -> list[Annotated]:
    """Read CreateML's file: boxes by centre and size."""
    every = []
    for one in _records(content, "annotations"):
        places = [(shape["label"], shape["coordinates"]) for shape in one["annotations"]]
        shapes = [
            Shape(str(label), _box(at["x"] - at["width"] / 2, at["y"] - at["height"] / 2, at["width"], at["height"]))
            for label, at in places
        ]
        every.append(Annotated(str(one.get("image") or one["imagefilename"]), shapes))
    return every


def _via(_: str, content: bytes) -> list[Annotated]:
    """Read the VGG Image Annotator's file; a region's only attribute is its class; without one the class is
    "object"."""
    found = json.loads(content)
    # A saved project wraps the contents of an export.
    found = found.get("_via_img_metadata", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(one, dict) and "regions" in one for one in found.values()):
        return []
    every = []
    for one in found.values():
        shapes = []
        regions = one["regions"]
        # Version 1 of the tool wrote objects with numbers as keys, version 2 writes a list.
        for region in regions.values() if isinstance(regions, dict) else regions:
            at, said = region["shape_attributes"], list((region.get("region_attributes") or {}).values())
            # With several attributes it is unclear which one is the class.
            if len(said) > 1 or not all(isinstance(word, str) for word in said):
                msg = f"a region has {said} as attributes; expected one word, its class"
                raise ValueError(msg)
            if "all_points_x" in at:
                points = [(float(x), float(y)) for x, y in zip(at["all_points_x"], at["all_points_y"], strict=True)]
            elif "width" in at:
                points = _box(at["x"], at["y"], at["width"], at["height"])
            else:
                msg = f"a region is a {show_content(at.get('name'))}; expected polygons and rectangles"
                raise ValueError(msg)
            shapes.append(Shape(said[0] if said else "object", points))
        every.append(Annotated(str(one["filename"]), shapes))
    return every


def _supervisely(name: str, content: bytes) -> list[Annotated]:
    """Read Supervisely's file for one image, which has the image's name followed by .json."""
    found = json.loads(content)
    if not isinstance(found, dict) or not isinstance(found.get("objects"), list):
        return []
    shapes = [
        Shape(str(one["classTitle"]), [(float(x), float(y)) for x, y in one["points"]["exterior"]])
        for one in found["objects"]
    ]
    size = found.get("size") or {}
    return [
        Annotated(
            posixpath.basename(name).removesuffix(".json"),
            shapes,
            (int(size.get("height") or 0), int(size.get("width") or 0)),
        )
    ]


def _bdd(_: str, content: bytes) -> list[Annotated]:
    """Read BDD100K's file."""
    every = []
    for one in _records(content, "name"):
        # Lanes and drivable areas are labels without a box.
        labels = one.get("labels") or []
        shapes = [
            Shape(str(shape["category"]), [(float(at["x1"]), float(at["y1"])), (float(at["x2"]), float(at["y2"]))])
            for shape in labels
            if (at := shape.get("box2d")) is not None
        ]
        every.append(Annotated(str(one["name"]), shapes, left_out=len(labels) - len(shapes)))
    return every


def _label_studio(_: str, content: bytes) -> list[Annotated]:
    """Read Label Studio's JSON: boxes and outlines in percent of the image, boxes rotated around their corner."""
    every = []
    for one in _records(content, "data"):
        # Skipped tasks stay in the export as empty answers.
        kept = [each for each in one["annotations"] if not each.get("was_cancelled")]
        if len(kept) > 1:
            msg = f"task {one.get('id')} has {len(kept)} annotations, by several annotators; export one for each task"
            raise ValueError(msg)
        shapes, size = [], (0, 0)
        for region in (region for each in kept for region in each["result"]):
            value, kind = region.get("value") or {}, str(region.get("type"))
            if kind not in ("rectanglelabels", "polygonlabels"):
                if kind.endswith("labels"):
                    msg = f"a region is of the type {show_content(kind)}; expected rectanglelabels and polygonlabels"
                    raise ValueError(msg)
                continue
            size = (int(region["original_height"]), int(region["original_width"]))
            # A region with several labels raises here, which becomes an error that names the file.
            (label,) = value[kind]
            corners = value["points"] if kind == "polygonlabels" else _rotated(value, size)
            shapes.append(Shape(str(label), [(x * size[1] / 100, y * size[0] / 100) for x, y in corners]))
        path = next((str(word) for word in one["data"].values() if is_image(str(word))), "")
        # Local files are given by a query: /data/local-files/?d=photos/a.jpg.
        every.append(Annotated(unquote(path.rpartition("?d=")[2]), shapes, size))
    return every if any(one.shapes for one in every) else []


def _rotated(value: dict[str, Any], size: tuple[int, int]) -> list[tuple[float, float]]:
    """Return the corners, in percent, of a box that is rotated clockwise around its first corner."""
    # In pixels, because a percent of the height and of the width have different lengths.
    angle = math.radians(value.get("rotation") or 0)
    across, down = value["width"] * size[1], value["height"] * size[0]
    ends = [(0.0, 0.0), (across, 0.0), (across, down), (0.0, down)]
    sine, cosine = math.sin(angle), math.cos(angle)
    return [
        (value["x"] + (x * cosine - y * sine) / size[1], value["y"] + (x * sine + y * cosine) / size[0])
        for x, y in ends
    ]


def _keras_yolo(_: str, content: bytes) -> list[Annotated]:
    """Read a line for each image: its path, and x0,y0,x1,y1,class of each box."""
    every = []
    for line in decode_text(content).splitlines():
        found = _KERAS_LINE.fullmatch(line.strip())
        if found is None and line.strip():
            return []
        if found is not None:
            boxes = [box.split(",") for box in found[2].split()]
            every.append(
                Annotated(
                    found[1],
                    [Shape(box[4], [(float(box[0]), float(box[1])), (float(box[2]), float(box[3]))]) for box in boxes],
                )
            )
    return every if any(one.shapes for one in every) else []


def xml_parser(refuse: Callable[[str], NoReturn]) -> expat.XMLParserType:
    """Return an XML parser that refuses entities, with which a small file could grow to gigabytes or read other files;
    `refuse` raises the reason."""
    parser = expat.ParserCreate()

    def meet_entity(*_: object) -> NoReturn:
        refuse("it declares an entity, which no annotation needs; refused")

    parser.EntityDeclHandler = parser.ExternalEntityRefHandler = meet_entity
    return parser


_XML_ENCODING = re.compile(rb"""<\?xml[^>]{0,200}?\sencoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
# What Python calls the encodings whose characters have several bytes, which expat does not know.
_MULTI_BYTE = (
    "gb",
    "big5",
    "shift_jis",
    "euc_",
    "iso2022_",
    "cp932",
    "cp949",
    "cp950",
    "johab",
    "hz",
    "utf-7",
    "utf-32",
)


def xml_text(content: bytes) -> bytes | str:
    """Return XML as expat takes it: decoded, if it declares one of the encodings of Chinese, Japanese and Korean.

    Raises:
        ValueError: it is not in the encoding that it declares.
    """
    found = _XML_ENCODING.match(content)
    try:
        name = codecs.lookup(found[1].decode()).name if found else ""
    except LookupError:
        # Expat says so too.
        return content
    return content.decode(name) if name.startswith(_MULTI_BYTE) else content


def _cvat(_: str, content: bytes) -> list[Annotated]:
    """Read CVAT's XML for images."""
    every: list[Annotated] = []
    shapes: list[Shape] = []
    left_out: list[str] = []

    def start(tag: str, given: dict[str, str]) -> None:
        if tag == "image":
            shapes.clear()
            left_out.clear()
            size = (int(given.get("height") or 0), int(given.get("width") or 0))
            every.append(Annotated(given["name"], [], size))
        elif every and tag == "box":
            x0, y0, x1, y1 = (float(given[edge]) for edge in ("xtl", "ytl", "xbr", "ybr"))
            angle = math.radians(float(given.get("rotation") or 0))
            middle, halves = ((x0 + x1) / 2, (y0 + y1) / 2), ((x1 - x0) / 2, (y1 - y0) / 2)
            shapes.append(Shape(given["label"], _turned(middle, halves, angle)))
        elif every and tag == "ellipse":
            x, y, across, down = (float(given[name]) for name in ("cx", "cy", "rx", "ry"))
            angle = math.radians(float(given.get("rotation") or 0))
            width = math.hypot(across * math.cos(angle), down * math.sin(angle))
            height = math.hypot(across * math.sin(angle), down * math.cos(angle))
            shapes.append(Shape(given["label"], [(x - width, y - height), (x + width, y + height)]))
        elif every and tag == "mask":
            shapes.append(Shape(given["label"], _box(*(given[name] for name in ("left", "top", "width", "height")))))
        elif every and tag in ("polygon", "polyline"):
            points = [tuple(map(float, point.split(","))) for point in given["points"].split(";")]
            shapes.append(Shape(given["label"], [(x, y) for x, y in points]))
        elif every and (tag in ("skeleton", "cuboid") or (tag == "points" and "label" in given)):
            left_out.append(tag)

    def end(tag: str) -> None:
        if tag == "image":
            # The points of a skeleton are counted as one thing.
            count = len(left_out) if "skeleton" not in left_out else sum(tag != "points" for tag in left_out)
            every[-1] = every[-1]._replace(shapes=tuple(shapes), left_out=count)

    def refuse(why: str) -> NoReturn:
        raise ValueError(why)

    # Expat, not ElementTree, so that files with millions of boxes are read without a tree in memory.
    parser = xml_parser(refuse)
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.Parse(xml_text(content), True)
    return every


def _dota(name: str, content: bytes) -> list[Annotated]:
    """Read DOTA's file for one image: each line has eight numbers, a class and whether it is difficult."""
    shapes = []
    for line in decode_text(content).splitlines():
        words = line.split()
        # The first lines say where the image is from.
        if not words or words[0].startswith(("imagesource:", "gsd:")):
            continue
        if len(words) not in (9, 10):
            return []
        values = [float(word) for word in words[:8]]
        shapes.append(Shape(words[8], list(zip(values[::2], values[1::2], strict=True))))
    return [Annotated(stem_of(name), shapes)]


def _wider(_: str, content: bytes) -> list[Annotated]:
    """Read WIDER FACE's list: a path, the number of faces, and a line of ten numbers for each."""
    lines = decode_text(content).splitlines()
    every = []
    at = 0
    while at < len(lines):
        path = lines[at].strip()
        at += 1
        if not path:
            continue
        count = int(lines[at])
        # An image without faces has one line of zeros all the same.
        rows = [line.split() for line in lines[at + 1 : at + 1 + max(count, 1)]]
        if len(rows) < count or any(len(row) < 4 for row in rows):
            msg = f"'{path}' has {len(rows)} lines of numbers and says {count}"
            raise ValueError(msg)
        at += 1 + len(rows)
        every.append(Annotated(path, [Shape("face", _box(*row[:4])) for row in rows[:count]]))
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
_SNIFFED = 8
_KERAS_LINE = re.compile(r"(\S.*?\.\w+)((?: \d+,\d+,\d+,\d+,\d+)*)")


_CLASS_LISTS = ("classes.txt", "_classes.txt", "obj.names", "classes.names", "_darknet.labels")
_CLASS_FILES = (".txt", ".names", ".labels", ".yaml", ".yml")
_MENTIONS_NAMES = re.compile(r"^names\s*:", re.MULTILINE)


class ClassFile(NamedTuple):
    """What a data.yaml or a list of names says about the classes."""

    names: tuple[str, ...]
    """In label order; empty if there are none."""
    keypoints: tuple[int, int] = (0, 0)
    """Number of keypoints, and numbers for each; (0, 0) for boxes without keypoints."""


def read_class_file(tree: Tree) -> ClassFile:
    """Return what a tree says about its classes.

    Raises:
        BrokenDatasetError: a YAML file has names in a form that is not read here.
    """
    files = tree.entries.ending_in(_CLASS_FILES).where(
        lambda name: name.lower().endswith((".yaml", ".yml")) or posixpath.basename(name).lower() in _CLASS_LISTS
    )
    for entry in sorted(files, key=lambda entry: (entry.name.count("/"), entry.name)):
        text = decode_text(read_file(tree, entry))
        # A plain list has one name per line, and no keypoints.
        if posixpath.basename(entry.name).lower() in _CLASS_LISTS:
            return ClassFile(tuple(filter(None, map(str.strip, text.splitlines()))))
        found = parse_class_file(text, entry.name)
        if found.names:
            return found
    return ClassFile(())


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
        # Without types, so that a class called no, or 1, is a word.
        found = yaml.load(text, Loader=yaml.BaseLoader)  # makes only texts, lists and mappings
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _odd_names(name, str(error)) from error
    names = found.get("names") if isinstance(found, dict) else None
    shape = found.get("kpt_shape")
    try:
        count, width = (0, 0) if shape is None else (int(part) for part in shape)
    except (TypeError, ValueError, AttributeError) as error:
        raise _odd_names(name, f"kpt_shape is {show_content(shape)}") from error
    return ClassFile(_in_order(names, name), (count, width))


def _in_order(names: Any, file: str) -> tuple[str, ...]:
    if isinstance(names, list):
        found = dict(enumerate(names))
    elif isinstance(names, dict) and all(isinstance(key, str) and key.isdecimal() for key in names):
        found = {_number(key): value for key, value in names.items()}
    else:
        raise _odd_names(file, f"names are {show_content(names)}")
    if sorted(found) != list(range(len(found))) or not all(isinstance(value, str) for value in found.values()):
        raise _odd_names(file, f"names are {show_content(names)}")
    return tuple(found[number] for number in range(len(found)))


def _number(key: str) -> int:
    # Python refuses to read a number of more than 4,300 digits.
    return int(key) if len(key) < 20 else -1


def _odd_names(name: str, what: str) -> BrokenDatasetError:
    return BrokenDatasetError(
        f"'{name}' has class names in a form that is not read here ({what}); expected names: ['car', 'dog'], or one in "
        "each line below it, as '- car' or '0: car', numbered from 0 without a gap, and kpt_shape: [17, 3] for poses."
    )
