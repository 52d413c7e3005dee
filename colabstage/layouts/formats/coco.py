"""COCO's JSON: images, annotations and categories in one file, or in one for each split.

With boxes or, as in iNaturalist and camera traps, with one category for each image and no box.
"""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.layouts.boxes import BoxColumn, Record, boxes_state, join_records, side_of
from colabstage.layouts.columns import show
from colabstage.layouts.evidence import Evidence, left_out_notes
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import BrokenDatasetError, Images, SampleTable, Values, known_splits

if TYPE_CHECKING:
    from colabstage.layouts.boxes import Joined
    from colabstage.layouts.lookup import Lookup
    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntries

CLASSES = "coco_classes"
# COCO's archives have fewer JSON files; tools that write one for each image have far more.
_MAX_FILES = 24
# Fields of COCO's other tasks, for which a category alone is not the answer.
_OTHER_KINDS = frozenset({"caption", "segments_info", "segmentation", "keypoints"})
_COLUMNS = (BoxColumn("iscrowd", np.uint8), BoxColumn("area", np.float32))
_MARKS = (b'"images"', b'"annotations"', b'"categories"')


class _Annotation(NamedTuple):
    """The parts of an annotation that are kept while reading; polygons, most of the file, are dropped."""

    image: Any
    category: Any
    bbox: Any
    """Left, top, width and height, as in the file."""
    iscrowd: Any
    area: Any
    number: Any


class CocoFile(NamedTuple):
    """One file of annotations."""

    name: str
    images: list[Any]
    boxes: list[Any]
    """Its list `annotations`, reduced to the necessary parts."""
    categories: list[Any]

    @property
    def is_of_classes(self) -> bool:
        """Tell whether annotations have a category but no box."""
        return bool(self.boxes) and not any(isinstance(box, _Annotation) for box in self.boxes)

    def records(self, numbers: dict[Any, int]) -> list[Record]:
        """Return what is stated of each image: the boxes, or the one category."""
        made: dict[Any, Record] = {}
        for image in self.images:
            name = _name_of(image)
            named = bool(name) and _is_id(image.get("id"))
            if not named or image["id"] in made:
                trouble = "an id that another one has" if named else "no id, a number or a word, or no file_name"
                msg = f"'{self.name}' has an image with {trouble}: {show(image)}."
                raise BrokenDatasetError(msg)
            # Annotations refer to their image by this id.
            size = side_of(image.get("height")), side_of(image.get("width"))
            made[image["id"]] = Record(name, [], size if all(size) else (0, 0))
        for place, box in enumerate(self.boxes):
            if self.is_of_classes:
                self._add_class(made, place, box, numbers)
            else:
                self._add_box(made, place, box, numbers)
        return list(made.values())

    def _add_class(self, made: dict[Any, Record], place: int, one: Any, numbers: dict[Any, int]) -> None:
        if not _is_class(one) or one["image_id"] not in made or one["category_id"] not in numbers:
            msg = (
                f"'{self.name}': annotation {place} is {show(one)}; expected the image_id of an image and the "
                "category_id of a category that are listed, and no box, like the others."
            )
            raise BrokenDatasetError(msg)
        shapes: Any = made[one["image_id"]].shapes
        # Two annotations that agree are the same label twice, as in exports with several annotators.
        label = one["category_id"]
        if shapes and shapes[0][0] != label:
            msg = (
                f"'{self.name}' gives the image {show(one['image_id'])!r} two categories; expected one for each. Give "
                "layout= a function that makes several labels of them."
            )
            raise BrokenDatasetError(msg)
        if not shapes:
            shapes.append((label, ()))

    def _add_box(self, made: dict[Any, Record], place: int, box: Any, numbers: dict[Any, int]) -> None:
        if not isinstance(box, _Annotation):
            if isinstance(box, dict) and "image_id" in box:
                raise self._broken(place, box.get("id"), "has no bbox")
            raise self._broken(place, None, "is not an annotation")
        if not (_is_id(box.image) and _is_id(box.category)):
            raise self._broken(place, box.number, "has an image_id or category_id that is neither a number nor a word")
        # Boxes of unlisted images would be lost without a trace.
        if box.image not in made:
            raise self._broken(place, box.number, f"is of the image {show(box.image)}, which is not listed")
        if box.category not in numbers:
            raise self._broken(place, box.number, f"is of the category {show(box.category)}, which is not listed")
        try:
            x, y, width, height = (float(value) for value in box.bbox)
            # Most exports omit the area; in COCO itself it is that of the outline, which is smaller than the box.
            area = float(width * height if box.area is None else box.area)
            # Some tools write numbers as texts, and a text that is not empty would count as true.
            crowd = bool(float(box.iscrowd or 0))
        except (TypeError, ValueError, OverflowError) as error:
            stated = f"has a bbox {show(box.bbox)}, area {show(repr(box.area))} and iscrowd {show(repr(box.iscrowd))}"
            raise self._broken(place, box.number, stated) from error
        # COCO itself has boxes without width, which are kept; negative sizes mean corners instead of width and height.
        if not (np.isfinite([x, y, width, height]).all() and width >= 0 and height >= 0):
            raise self._broken(place, box.number, f"has a bbox {show(box.bbox)}")
        shapes: Any = made[box.image].shapes
        shapes.append((box.category, (x, y, x + width, y + height, float(crowd), area)))

    def _broken(self, place: int, number: Any, what: str) -> BrokenDatasetError:
        return BrokenDatasetError(
            f"'{self.name}': annotation {place} (id {show(repr(number))}) {what}; expected image_id, category_id and "
            "bbox [x, y, width, height] in pixels."
        )


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
        msg = (
            f"'{source.label}' has no JSON file with images, annotations and categories, as COCO has it{what}, and "
            "images."
        )
        raise LayoutError(msg)
    names, numbers = _categories(found)
    joined = join_records(source, images, lookup, {file.name: file.records(numbers) for file in found})
    used = frozenset(file.name for file in found)
    if classes:
        return _of_classes(source, joined, names, numbers, used)
    return boxes_state(
        source,
        "COCO's annotations",
        joined.placed,
        numbers,
        names=names,
        columns=_COLUMNS,
        notes=joined.notes,
        used=used,
    )


def _of_classes(
    source: Source, joined: Joined, names: list[str], numbers: dict[Any, int], used: frozenset[str]
) -> Evidence:
    kept = [one for one in joined.placed if one.record.shapes]
    notes = left_out_notes((len(joined.placed) - len(kept), "images", "without an annotation")) + joined.notes
    table = SampleTable(
        layout=CLASSES,
        keys=tuple(one.file.name for one in kept),
        inputs=Images(TreeFiles(source.tree, [one.file for one in kept])),
        targets=Values(np.array([numbers[one.record.shapes[0][0]] for one in kept], np.int64)),
        splits=known_splits([one.split for one in kept]),
        classes=tuple(names),
        notes=tuple(notes),
    )
    return Evidence(table, "COCO's annotations", used)


def _files(source: Source, images: FileEntries) -> list[CocoFile]:
    entries = source.ending_in((".json",) if images else ())
    # COCO's archive also has captions and keypoints of the same images.
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
        msg = f"'{name}' looks like COCO's annotations but is not JSON: {show(error)}."
        raise BrokenDatasetError(msg) from error
    # The three words may occur in any list.
    if not isinstance(found, dict):
        return None
    images, annotations, categories = (found.get(part) for part in ("images", "annotations", "categories"))
    if not (isinstance(images, list) and isinstance(annotations, list) and isinstance(categories, list)):
        return None
    # Captions and panoptic segments are in the same folder, without boxes.
    if annotations and not any(isinstance(box, _Annotation) or _is_class(box) for box in annotations):
        return None
    return CocoFile(name, images, annotations, categories)


def _categories(found: list[CocoFile]) -> tuple[list[str], dict[Any, int]]:
    """Return the names of the categories by ascending id, and the position of each id among them."""
    # COCO's ids go up to 90 with gaps, which would be classes without samples.
    names: dict[Any, str] = {}
    for one in found:
        for category in one.categories:
            if not isinstance(category, dict) or not {"id", "name"} <= category.keys():
                msg = f"'{one.name}' has a category without id or name: {show(category)}."
                raise BrokenDatasetError(msg)
            number, name = category["id"], str(category["name"])
            if not _is_id(number):
                msg = f"'{one.name}' has a category with the id {show(number)}; expected a number or a word."
                raise BrokenDatasetError(msg)
            # Splits that were exported separately may number categories differently, which would mix up classes.
            if names.setdefault(number, name) != name:
                msg = (
                    f"'{one.name}' calls the category {show(number)} '{show(name)}', another file "
                    f"'{show(names[number])}'."
                )
                raise BrokenDatasetError(msg)
    # Numbers and strings cannot be compared, and a few tools write ids as strings.
    order = sorted(names, key=lambda key: (isinstance(key, str), key))
    return [names[key] for key in order], {key: number for number, key in enumerate(order)}


def _slim(pairs: list[tuple[str, Any]]) -> Any:
    """Return a JSON object; of an annotation only the necessary parts, which saves the memory of polygons."""
    found = dict(pairs)
    if "image_id" in found and "bbox" in found:
        keys = ("image_id", "category_id", "bbox", "iscrowd", "area", "id")
        return _Annotation(*(found.get(key) for key in keys))
    return found


def _is_class(annotation: Any) -> bool:
    """Tell whether an annotation gives only an image's category."""
    if not isinstance(annotation, dict) or annotation.keys() & _OTHER_KINDS:
        return False
    return _is_id(annotation.get("image_id")) and _is_id(annotation.get("category_id"))


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


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str)
