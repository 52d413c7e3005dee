"""Boxes in the formats of annotation tools and benchmarks: LabelMe, CVAT, Supervisely, VIA, and others.

Each format parses one file into records of the images that it names; finding and numbering images and making the table
is the same for all. Polygons and rotated boxes become the boxes around them.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import posixpath
import re
import struct
import zlib
from collections import namedtuple
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from colabstage.errors import LayoutError
from colabstage.layouts.boxes import BoxColumn, Points, Record, boxes_state, edges, join_records, side_of, turned
from colabstage.layouts.columns import show
from colabstage.layouts.evidence import Evidence, left_out_notes, require_files
from colabstage.layouts.lists import Lookup, names_of_numbers, read_class_list
from colabstage.layouts.reading import Source, broken, decode_text, parse_xml
from colabstage.layouts.table import Values
from colabstage.layouts.words import IMAGES, SPLITS, is_image, split_name, stem_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from xml.etree.ElementTree import Element

    from colabstage.trees.listing import FileEntry


Shape = tuple[str, tuple[float, float, float, float]]
# A class, and the points of what is drawn.
Drawing = tuple[Any, Iterable[Sequence[Any]]]
_SNIFFED = 8
_KERAS_LINE = re.compile(r"(\S.*?\.\w+)((?: \d+,\d+,\d+,\d+,\d+)*)")
# What reading a broken file raises.
_OF_PYTHON = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, struct.error, zlib.error,
)  # fmt: skip
# Where a PNG's header ends that states its sides.
_PNG_HEAD_BYTES = 24


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
    """Read images whose boxes are in files of one of `FORMATS`.

    Boxes are x0, y0, x1, y1 in pixels; classes are the labels, sorted. Splits are those in the names of the files, or
    of the folders of images. Images that no file mentions are left out.
    """
    form, found = _read_annotations(source)
    if form is None:
        names = ", ".join(form.name for form in FORMATS)
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
        labels = list(map(str, range(len(called))))
    placed, notes = join_records(source, found, per_image=form.per_image)
    lost = sum(one.left_out for one in records)
    notes += left_out_notes((lost, "annotations", "without a box, such as points and classes of whole images,"))
    placed.sort(key=lambda one: one.file.name)
    who = f"{form.name}'s annotations"
    return boxes_state(source, who, placed, labels, names=called, notes=notes, used=[*found, *lists])


def _read_annotations(source: Source) -> tuple[Format | None, dict[str, list[Record]]]:
    """Return the format of the files, one for the whole tree, because two would number classes separately; and the
    records of each file."""
    # By extension, so that each file is read once, even if several formats share its extension.
    for extension in dict.fromkeys(form.extension for form in FORMATS):
        forms = [form for form in FORMATS if form.extension == extension]
        # A format without a pattern of its own adds an empty alternative, which every path matches.
        named = re.compile("|".join(f"(?:{form.named})" for form in forms))
        files = source.ending_in((extension,)).where(lambda name: named.search(name) is not None)  # noqa: B023

        def fits(file: FileEntry, content: bytes) -> tuple[Format | None, list[Record]]:
            every = ((form, form.records(file, content)) for form in forms)  # noqa: B023
            return next(((form, records) for form, records in every if records), (None, []))

        # A few files decide, so that thousands of files from another tool are not read.
        read = source.parse(files[:_SNIFFED], fits)
        form = next((one for one, _ in read.values() if one is not None), None)
        if form is not None:
            found = {name: records for name, (one, records) in read.items() if one is form}
            found |= source.parse(files[_SNIFFED:], form.records)
            return form, {name: records for name, records in found.items() if records}
    return None, {}


# --- shapes -----------------------------------------------------------------------------------------------------------


def _record(
    image: str, drawn: Iterable[Drawing], size: tuple[int, int] = (0, 0), split: str = "", left_out: int = 0
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
    return Record(image, shapes, size, split, left_out)


def _box(x: Any, y: Any, width: Any, height: Any) -> Points:
    left, top = float(x), float(y)
    return edges(left, top, left + float(width), top + float(height))


def _ellipse(x: Any, y: Any, across: Any, down: Any, degrees: Any = 0) -> Points:
    """Return the edges of the box around an ellipse, given its centre and half axes."""
    x, y, across, down, angle = *map(float, (x, y, across, down)), math.radians(float(degrees or 0))
    width = math.hypot(across * math.cos(angle), down * math.sin(angle))
    height = math.hypot(across * math.sin(angle), down * math.cos(angle))
    return edges(x - width, y - height, x + width, y + height)


def _size(given: Any, height: str = "height", width: str = "width") -> tuple[int, int]:
    return side_of(given.get(height)), side_of(given.get(width))


def _mapping(content: bytes, key: str, kind: type) -> dict[str, Any]:
    """Return the mapping in a JSON file; an empty one if it is not one, or has no such value under a key."""
    found = json.loads(content)
    return found if isinstance(found, dict) and isinstance(found.get(key), kind) else {}


def _list_of(content: bytes, key: str) -> list[dict[str, Any]]:
    """Return the mappings in a JSON list; empty if it is not such a list, or if one of them lacks the key."""
    found = json.loads(content)
    fits = isinstance(found, list) and all(isinstance(one, dict) and key in one for one in found)
    return found if fits else []


# --- formats ----------------------------------------------------------------------------------------------------------


def _labelme(name: str, content: bytes) -> list[Record]:
    found = _mapping(content, "shapes", list)
    drawn = [(shape["label"], _labelme_points(shape)) for shape in found.get("shapes", ())]
    # The image of the same name beside the file, because the path in the file is from the annotator's machine.
    return [_record(stem_of(name), drawn, _size(found, "imageHeight", "imageWidth"))] if found else []


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

    every = []
    for one in found.values():
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
    words = {word for one in ticked for word in one if word != ""}
    # With several attributes it is unclear which one is the class.
    if len(words) > 1 or not all(isinstance(word, str) for word in words):
        msg = f"a region has {show(sorted(map(str, words)))} as attributes; expected one word, its class"
        raise ValueError(msg)
    label = next(iter(words), "")
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
    # A mask is cut to its own box, and stored as a compressed PNG, whose header states width and height.
    packed, (x, y) = base64.b64decode(one["bitmap"]["data"]), one["bitmap"]["origin"]
    width, height = struct.unpack_from(">II", zlib.decompressobj().decompress(packed, _PNG_HEAD_BYTES), 16)
    return _box(x, y, width, height)


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
        path = next((str(word) for word in one["data"].values() if is_image(str(word))), "")
        # Local files are given by a query: /data/local-files/?d=photos/a.jpg.
        image = unquote(path.rpartition("?d=")[2])
        size, lost = sizes[-1] if sizes else (0, 0), len(results) - len(regions)
        every.append(_record(image, map(_label_studio_drawing, regions, sizes), size, left_out=lost))
    return every if any(one.shapes for one in every) else []


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
        points = turned(_box(x, y, value["width"] * across, value["height"] * down), (x, y), value.get("rotation"))
    elif kind == "ellipselabels":
        points = _ellipse(x, y, value["radiusX"] * across, value["radiusY"] * down, value.get("rotation"))
    return value[kind][0], points


def _keras_yolo(_: str, content: bytes) -> list[Record]:
    """Read a line for each image: its path, and x0,y0,x1,y1,class of each box."""
    lines = [line.strip() for line in decode_text(content).splitlines() if line.strip()]
    found = [match for match in map(_KERAS_LINE.fullmatch, lines) if match is not None]
    every = []
    for match in found if len(found) == len(lines) else ():
        boxes = [box.split(",") for box in match[2].split()]
        every.append(_record(match[1], [(int(box[4]), [box[:2], box[2:4]]) for box in boxes]))
    return every if any(one.shapes for one in every) else []


def _cvat(name: str, content: bytes) -> list[Record]:
    every: list[Record] = []

    def take(image: Element) -> None:
        if image.tag == "image":
            given = image.attrib
            found = [one for one in image if one.tag in _CVAT_SHAPES]
            drawn = [(one.attrib["label"], _CVAT_SHAPES[one.tag](one.attrib)) for one in found]
            split = SPLITS.get(given.get("subset", "").lower(), "")
            every.append(_record(given["name"], drawn, _size(given), split, len(image) - len(found)))

    parse_xml(name, content, "annotations", take)
    return every


def _cvat_box(given: dict[str, str]) -> Points:
    x0, y0, x1, y1 = (float(given[edge]) for edge in ("xtl", "ytl", "xbr", "ybr"))
    return turned(edges(x0, y0, x1, y1), ((x0 + x1) / 2, (y0 + y1) / 2), given.get("rotation"))


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
    rows = [words for words in lines if words]
    if any(len(words) not in (9, 10) for words in rows):
        return []
    return [_record(stem_of(name), [(one[8], zip(one[:8:2], one[1:8:2], strict=True)) for one in rows])]


def _wider(_: str, content: bytes) -> list[Record]:
    """Read WIDER FACE's list: a path, the number of faces, and a line of ten numbers for each."""
    lines = filter(None, (line.split() for line in decode_text(content).splitlines()))
    every = []
    for words in lines:
        path, count = " ".join(words), int(next(lines, ["none"])[0])
        # An image without faces still has one line of zeros.
        rows = [row for row in itertools.islice(lines, max(count, 1)) if len(row) >= 4]
        if len(rows) < count:
            msg = f"'{show(path)}' has {len(rows)} lines of numbers and says {count}"
            raise ValueError(msg)
        every.append(_record(path, [("face", _box(*row[:4])) for row in rows[:count]]))
    return every


# The stricter formats come first.
FORMATS = (
    Format("LabelMe", ".json", (b'"shapes"', b'"imagePath"'), _labelme, per_image=True),
    Format("CreateML", ".json", (b'"annotations"', b'"coordinates"'), _createml),
    Format("VGG Image Annotator", ".json", (b'"regions"', b'"shape_attributes"'), _via),
    Format("Supervisely", ".json", (b'"objects"',), _supervisely, r"/ann/[^/]+\.json$", per_image=True),
    Format("BDD100K", ".json", (b'"box2d"', b'"category"'), _bdd),
    Format("Label Studio", ".json", (b'"annotations"', b'"original_width"'), _label_studio),
    Format("CVAT", ".xml", (b"<annotations", b"<image"), _cvat),
    Format("DOTA", ".txt", (), _dota, r"labelTxt[^/]*/", per_image=True),
    Format("WIDER FACE", ".txt", (), _wider, r"_bbx_gt\.txt$"),
    Format("Keras YOLO", ".txt", (), _keras_yolo, r"(?:^|/)_annotations\.txt$", numbered=True),
)


# --- COCO: images, annotations and categories in one file, or in one for each split -----------------------------------

# With boxes or, as in iNaturalist and camera traps, with one category for each image and no box.
CLASSES = "coco_classes"
# COCO's archives have fewer JSON files; tools that write one for each image have far more.
_MAX_FILES = 24
# Fields of COCO's other tasks, for which a category alone is not the answer.
_OTHER_KINDS = frozenset({"caption", "segments_info", "segmentation", "keypoints"})
_TASKS = ("captions_", "person_keypoints_", "panoptic_", "stuff_", "image_info_")
_COLUMNS = (BoxColumn("iscrowd", np.uint8), BoxColumn("area", np.float32))
_LISTS = ("images", "annotations", "categories")
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
    images = require_files(source.ending_in(IMAGES), source, "images")
    entries = source.ending_in((".json",))
    instances = entries.where(lambda name: posixpath.basename(name).startswith("instances_"))
    beside = entries.where(lambda name: posixpath.basename(name).startswith(_TASKS))
    # With very many JSON files, each probably belongs to one image, and reading all would take long.
    chosen = instances or (entries if len(entries) <= _MAX_FILES else ())
    files = [file for entry in chosen if (file := parse_coco(entry.name, source.read(entry))) is not None]
    # One folder may hold files of both kinds; those of classes are another layout.
    found = [file for file in files if file.kind == ("classes" if classes else "boxes")]
    if not found:
        what = " that gives each image a category and no box" if classes else ""
        msg = f"'{source.label}' has no JSON file with COCO's images, annotations and categories{what}, and images."
        raise LayoutError(msg)
    called, numbers = _categories(found)
    placed, notes = join_records(source, {file.name: _records(file, numbers[file.name]) for file in found})
    here, lookup = {one.file.name for one in placed}, source.made_of(images, Lookup.of)
    for file in (one for one in files if one not in found):
        folder, split = posixpath.dirname(file.name), split_name(stem_of(file.name)).split
        found_by = (lookup.find(name, folder, split=split) for name in map(_name_of, file.images) if name)
        named = {images.names[number] for number in found_by if number >= 0}
        is_other = bool(named) and here.isdisjoint(named)
        if is_other and file.annotations is not None:
            what = f"no annotation of its {len(named):,} images has {'a category alone' if classes else 'a bbox'}"
            expected = f"annotations like those of '{found[0].name}', or its images moved away with it"
            raise broken(file.name, what, expected)
        notes += [f"The images of '{file.name}' have no annotations there."] if is_other else []
    used = frozenset(file.name for file in files).union(beside.names)
    who = "COCO's annotations"
    if not classes:
        boxes = [one for file in found for one in file.annotations or ()]
        parts = [("outlines", "segmentation"), ("sets", "keypoints")]
        notes += left_out_notes(
            *((sum(bool(getattr(one, field)) for one in boxes), what, f"of {field}") for what, field in parts)
        )
        kinds = range(len(called))
        return boxes_state(source, who, placed, kinds, names=called, columns=_COLUMNS, notes=notes, used=used)
    kept = [one for one in placed if one.record.shapes]
    targets = Values(np.array([one.record.shapes[0][0] for one in kept], np.int64))
    notes = [*left_out_notes((len(placed) - len(kept), "images", "without an annotation")), *notes]
    own, splits = [one.file for one in kept], [one.split for one in kept]
    return Evidence.of_images(source, CLASSES, own, targets, who, splits=splits, classes=called, notes=notes, used=used)


def parse_coco(name: str, content: bytes) -> CocoFile | None:
    """Return what a file holds; `None` if it is not COCO's."""
    # First searched as bytes: parsing a gigabyte of JSON takes a minute, and most files are not annotations.
    if b'"images"' not in content or not (b'"file_name"' in content or b'"coco_url"' in content):
        return None
    try:
        found = json.loads(content, object_pairs_hook=_slim)
    except (ValueError, RecursionError) as error:
        raise broken(name, f"it looks like COCO's annotations but is not JSON ({show(error)})") from error
    images, annotations, categories = map(found.get, _LISTS) if isinstance(found, dict) else (None, None, None)
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


def _categories(found: list[CocoFile]) -> tuple[list[str], dict[str, dict[Any, int]]]:
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


def _records(file: CocoFile, numbers: dict[Any, int]) -> list[Record]:
    """Return what a file states about each image: its boxes, or its one category."""
    shapes: dict[Any, list[Any]] = {}
    found = []
    for image in file.images:
        name, key = _name_of(image), image.get("id") if isinstance(image, dict) else None
        # Annotations refer to their image by this id.
        if not name or not isinstance(key, int | str) or key in shapes:
            raise broken(file.name, f"it has an image {show(image)}", "a file_name, and an id that no other one has")
        size = _size(image)
        found.append(Record(name, shapes.setdefault(key, []), size if all(size) else (0, 0)))
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
            shape = numbers[one.category_id], () if is_class else _corners_of(one)
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


def _corners_of(one: _Annotation) -> tuple[float, ...]:
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


def _name_of(image: Any) -> str:
    """Return the path of an image; in LVIS, the end of an address instead. "" if there is none."""
    if not isinstance(image, dict):
        return ""
    name = image.get("file_name")
    if isinstance(name, str):
        return name
    # train2017/000000391895.jpg is the end of LVIS's addresses, and the files' path below its folder.
    address = image.get("coco_url")
    return "/".join(address.split("/")[-2:]) if isinstance(address, str) and name is None else ""
