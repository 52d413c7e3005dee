"""COCO's JSON: images, annotations and categories in one file, or in one for each split.

With boxes or, as in iNaturalist and camera traps, with one category for each image and no box.
"""

from __future__ import annotations

import json
import math
import posixpath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.layouts.boxes import BoxColumn, Record, boxes_state, join_records, side_of
from colabstage.layouts.columns import show
from colabstage.layouts.evidence import Evidence, left_out_notes
from colabstage.layouts.faults import broken
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import Images, SampleTable, Values, known_splits

if TYPE_CHECKING:
    from colabstage.layouts.lookup import Lookup
    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntries

CLASSES = "coco_classes"
# COCO's archives have fewer JSON files; tools that write one for each image have far more.
_MAX_FILES = 24
# Fields of COCO's other tasks, for which a category alone is not the answer.
_OTHER_KINDS = frozenset({"caption", "segments_info", "segmentation", "keypoints"})
_TASKS = ("captions_", "person_keypoints_", "panoptic_", "stuff_", "image_info_")
_COLUMNS = (BoxColumn("iscrowd", np.uint8), BoxColumn("area", np.float32))
_MARKS = (b'"images"', b'"annotations"', b'"categories"')


class _Annotation(NamedTuple):
    """The fields of an annotation that are kept while reading; polygons, most of the file, are dropped."""

    image_id: Any
    category_id: Any
    bbox: Any
    iscrowd: Any
    area: Any
    id: Any


class CocoFile(NamedTuple):
    """One file of annotations: its lists, as they are."""

    name: str
    images: list[Any]
    annotations: list[Any]
    categories: list[Any]

    @property
    def is_of_classes(self) -> bool:
        """Tell whether annotations have a category but no box."""
        return bool(self.annotations) and not any(isinstance(one, _Annotation) for one in self.annotations)


def coco_state(source: Source, images: FileEntries, lookup: Lookup, *, classes: bool) -> Evidence:
    """Read images that COCO's JSON names, with boxes; or, of `classes`, with one category for each image and no box.

    Boxes are x0, y0, x1, y1 in pixels. Labels are indices into the classes, which are the categories by ascending id:
    the ids themselves may have gaps. Columns: iscrowd (0 or 1), area (in pixels of the original image). Images
    without annotations are kept beside boxes. Several files called after splits (instances_train2017.json,
    valid/_annotations.coco.json) are the splits.
    """
    # One folder may hold files of both kinds; those of classes are another layout.
    found = [file for file in _files(source, images) if file.is_of_classes == classes]
    if not found:
        what = " that gives each image a category and no box" if classes else ""
        msg = f"'{source.label}' has no JSON file with COCO's images, annotations and categories{what}, and images."
        raise LayoutError(msg)
    names = _categories(found)
    # Ids go up to 90 with gaps, which would be classes without samples. A few tools write them as words.
    numbers = {key: number for number, key in enumerate(sorted(names, key=lambda key: (isinstance(key, str), key)))}
    called = [names[key] for key in numbers]
    placed, notes = join_records(source, images, lookup, {file.name: _records(file, numbers) for file in found})
    # COCO's archive also has captions and keypoints of the same images, which take long to read.
    beside = source.ending_in((".json",)).where(lambda name: posixpath.basename(name).startswith(_TASKS))
    who, used = "COCO's annotations", frozenset(file.name for file in found).union(beside.names)
    if not classes:
        return boxes_state(source, who, placed, list(numbers), names=called, columns=_COLUMNS, notes=notes, used=used)
    kept = [one for one in placed if one.record.shapes]
    table = SampleTable(
        layout=CLASSES,
        keys=tuple(one.file.name for one in kept),
        inputs=Images(TreeFiles(source.tree, [one.file for one in kept])),
        targets=Values(np.array([numbers[one.record.shapes[0][0]] for one in kept], np.int64)),
        splits=known_splits([one.split for one in kept]),
        classes=tuple(called),
        notes=(*left_out_notes((len(placed) - len(kept), "images", "without an annotation")), *notes),
    )
    return Evidence(table, who, used)


def _files(source: Source, images: FileEntries) -> list[CocoFile]:
    entries = source.ending_in((".json",) if images else ())
    instances = entries.where(lambda name: posixpath.basename(name).startswith("instances_"))
    # With very many JSON files, each probably belongs to one image, and reading all would take long.
    chosen = instances or (entries if len(entries) <= _MAX_FILES else ())
    return [made for entry in chosen if (made := parse_coco(entry.name, source.read(entry))) is not None]


def parse_coco(name: str, content: bytes) -> CocoFile | None:
    """Return what a file holds; `None` where it is none of COCO's."""
    # First searched as bytes: parsing a gigabyte of JSON takes a minute, and most files are not annotations.
    if not all(mark in content for mark in _MARKS):
        return None
    try:
        found = json.loads(content, object_pairs_hook=_slim)
    except (ValueError, RecursionError) as error:
        raise broken(name, f"it looks like COCO's annotations but is not JSON ({show(error)})") from error
    parts = [found.get(mark.decode().strip('"')) for mark in _MARKS] if isinstance(found, dict) else []
    if not parts or not all(isinstance(part, list) for part in parts):
        return None
    images, annotations, categories = parts
    file = CocoFile(name, images or [], annotations or [], categories or [])
    # Captions and panoptic segments are in the same folder, without boxes.
    is_about_images = any(isinstance(one, _Annotation) or _is_class(one) for one in file.annotations)
    return file if is_about_images or not file.annotations else None


def _slim(pairs: list[tuple[str, Any]]) -> Any:
    """Return a JSON object; of an annotation only the necessary fields, which saves the memory of polygons."""
    found = dict(pairs)
    is_box = "image_id" in found and "bbox" in found
    return _Annotation(*map(found.get, _Annotation._fields)) if is_box else found


def _is_class(annotation: Any) -> bool:
    """Tell whether an annotation gives only an image's category."""
    if not isinstance(annotation, dict) or annotation.keys() & _OTHER_KINDS:
        return False
    return _is_id(annotation.get("image_id")) and _is_id(annotation.get("category_id"))


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str)


def _categories(found: list[CocoFile]) -> dict[Any, str]:
    """Return the name of each category, by its id."""
    names: dict[Any, str] = {}
    for file in found:
        for one in file.categories:
            if not isinstance(one, dict) or not _is_id(one.get("id")) or "name" not in one:
                raise broken(file.name, f"it has a category {show(one)}", "an id, a number or a word, and a name")
            number, name = one["id"], str(one["name"])
            # Splits that were exported separately may number categories differently, which would mix up classes.
            if names.setdefault(number, name) != name:
                what = f"it calls the category {show(number)} '{show(name)}', and another file '{show(names[number])}'"
                raise broken(file.name, what, "one numbering in all, or one of the files alone, by only=")
    return names


def _records(file: CocoFile, numbers: dict[Any, int]) -> list[Record]:
    """Return what a file states of each image: its boxes, or its one category."""
    shapes: dict[Any, list[Any]] = {}
    found = []
    for image in file.images:
        name, key = _name_of(image), image.get("id") if isinstance(image, dict) else None
        # Annotations refer to their image by this id.
        if not name or not _is_id(key) or key in shapes:
            raise broken(file.name, f"it has an image {show(image)}", "a file_name, and an id that no other one has")
        size = side_of(image.get("height")), side_of(image.get("width"))
        found.append(Record(name, shapes.setdefault(key, []), size if all(size) else (0, 0)))
    for place, one in enumerate(file.annotations):
        made = _class_of(one) if file.is_of_classes else _box_of(one)
        # Boxes of unlisted images would be lost without a trace.
        why = made if isinstance(made, str) else "" if made[0] in shapes else _unlisted("image", made[0])
        if not why and not isinstance(made, str):
            key, shape = made
            # Two annotations that agree are the same label twice, as in exports with several annotators.
            is_second = file.is_of_classes and bool(shapes[key])
            if shape[0] not in numbers:
                why = _unlisted("category", shape[0])
            elif is_second and shapes[key][0] != shape:
                why = f"gives the image {show(key)!r} two categories"
            elif not is_second:
                shapes[key].append(shape)
        if why:
            number = one.id if isinstance(one, _Annotation) else one.get("id") if isinstance(one, dict) else None
            kind = "no bbox" if file.is_of_classes else "bbox [x, y, width, height] in pixels"
            expected = f"image_id, category_id and {kind}, like the others"
            raise broken(file.name, f"annotation {place} (id {show(repr(number))}) {why}", expected)
    return found


def _unlisted(what: str, key: Any) -> str:
    return f"is of the {what} {show(key)}, which is not listed"


# The image of an annotation, its category and the numbers of its box; or why it is none.
_Made = tuple[Any, tuple[Any, tuple[float, ...]]] | str


def _class_of(one: Any) -> _Made:
    return (one["image_id"], (one["category_id"], ())) if _is_class(one) else f"is {show(one)}"


def _box_of(one: Any) -> _Made:
    if not isinstance(one, _Annotation):
        return "has no bbox"
    if not (_is_id(one.image_id) and _is_id(one.category_id)):
        return "has an image_id or category_id that is neither a number nor a word"
    try:
        x, y, width, height = map(float, one.bbox)
        # Most exports omit the area; in COCO itself it is that of the outline, which is smaller than the box.
        area = float(width * height if one.area is None else one.area)
        # Some tools write numbers as texts, and a text that is not empty would count as true.
        crowd = float(bool(float(one.iscrowd or 0)))
    except (TypeError, ValueError, OverflowError):
        x = math.nan
    # COCO itself has boxes without width, which are kept; negative sizes mean corners instead of width and height.
    if math.isnan(x) or not (all(map(math.isfinite, (x, y, width, height))) and width >= 0 and height >= 0):
        return f"has a bbox {show(one.bbox)}, area {show(repr(one.area))} and iscrowd {show(repr(one.iscrowd))}"
    return one.image_id, (one.category_id, (x, y, x + width, y + height, crowd, area))


def _name_of(image: Any) -> str:
    """Return the path of an image; in LVIS, the end of an address instead. "" if there is none."""
    if not isinstance(image, dict):
        return ""
    name = image.get("file_name")
    if isinstance(name, str):
        return name
    # train2017/000000391895.jpg is the end of LVIS's addresses, and how the files are named below its folder.
    address = image.get("coco_url")
    return "/".join(address.split("/")[-2:]) if isinstance(address, str) and name is None else ""
