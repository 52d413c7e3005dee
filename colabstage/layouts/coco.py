"""COCO's JSON: images, annotations and categories in one file, or in one for each split.

With boxes or, as in iNaturalist and camera traps, with one category for each image and no box.
"""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.given import show_content
from colabstage.io.units import listed
from colabstage.layouts.image_boxes import Column, LabelledImage, MissingImagesError, check_images, detection_table
from colabstage.layouts.names import (
    IMAGE_EXTENSIONS,
    FileLookup,
    required,
    split_of_path,
    split_of_word,
    stem_of,
)
from colabstage.layouts.reading import read_file
from colabstage.layouts.table import (
    BrokenDatasetError,
    Images,
    SampleTable,
    TreeFiles,
    Values,
    known_splits,
    left_out_notes,
)
from colabstage.trees.names import first_repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.trees.listing import FileEntries, FileEntry, Tree

# COCO's archives have fewer JSON files; tools that write one for each image have far more.
_MAX_FILES = 24
# Fields of COCO's other tasks, for which a category alone is not the answer.
_OTHER_KINDS = frozenset({"caption", "segments_info", "segmentation", "keypoints"})
_COLUMNS = (Column("iscrowd", np.uint8), Column("area", np.float32))


class _Annotation(NamedTuple):
    """The parts of an annotation that are kept while reading; polygons, most of the file, are dropped."""

    image: Any
    """The image's id."""
    category: Any
    """The category's id."""
    bbox: Any
    """Left, top, width and height, as in the file."""
    iscrowd: Any
    """Whether it is drawn around a group of objects."""
    area: Any
    """The area of the object's outline."""
    number: Any
    """The annotation's id."""


class _CocoFile(NamedTuple):
    """One file of annotations."""

    entry: FileEntry
    split: str
    """The split in its name; "" for none."""
    images: list[Any]
    boxes: list[Any]
    """Its list `annotations`, reduced to the necessary parts."""
    categories: list[Any]

    def place(self, images: FileEntries) -> tuple[list[tuple[Any, FileEntry]], int]:
        """Return the images that exist with their ids, and the number of missing ones.

        Raises:
            BrokenDatasetError: an image has no id or name.
            MissingImagesError: most are missing.
        """
        # file_name is relative to a folder that COCO does not name, so files are found by the end of their paths.
        lookup = FileLookup(images, posixpath.dirname(self.entry.name))
        placed = []
        seen: set[Any] = set()
        first = ""
        for image in self.images:
            name = _name_of(image)
            named = bool(name) and _is_id(image.get("id"))
            if not named or image["id"] in seen:
                trouble = "an id that another one has" if named else "no id, a number or a word, or no file_name"
                msg = f"'{self.entry.name}' has an image with {trouble}: {show_content(image)}."
                raise BrokenDatasetError(msg)
            # Annotations refer to their image by this id.
            seen.add(image["id"])
            # The split in the file's name decides between train/0001.jpg and val/0001.jpg.
            found = lookup.find(name, split=self.split)
            if found is not None:
                placed.append((image["id"], found))
            else:
                first = first or name
        check_images(f"'{self.entry.name}'", len(self.images), len(placed), first)
        return placed, len(self.images) - len(placed)

    @property
    def is_of_classes(self) -> bool:
        """Tell whether annotations have a category but no box."""
        return bool(self.boxes) and not any(isinstance(box, _Annotation) for box in self.boxes)

    def labels_of_images(self, numbers: dict[Any, int]) -> dict[Any, int]:
        """Return the class of each image, by its id.

        Raises:
            BrokenDatasetError: the class of an annotation is not listed, or an image has two classes.
        """
        known = {image["id"] for image in self.images}
        labels: dict[Any, int] = {}
        for place, one in enumerate(self.boxes):
            if not _is_class(one) or one["image_id"] not in known or one["category_id"] not in numbers:
                msg = (
                    f"'{self.entry.name}': annotation {place} is {show_content(one)}; expected the image_id of an "
                    "image and the category_id of a category that are listed, and no box, like the others."
                )
                raise BrokenDatasetError(msg)
            # Two annotations that agree are the same label twice, as in exports with several annotators.
            label = numbers[one["category_id"]]
            if labels.setdefault(one["image_id"], label) != label:
                msg = (
                    f"'{self.entry.name}' gives the image {show_content(one['image_id'])} two categories; expected one "
                    "for each. Give layout= a function that makes several labels of them."
                )
                raise BrokenDatasetError(msg)
        return labels

    def rows_of_images(self, numbers: dict[Any, int]) -> dict[Any, list[list[float]]]:
        """Return the boxes of each image, by its id, in the file's order."""
        # Boxes of unlisted images would be lost without a trace.
        known = {image["id"] for image in self.images}
        rows: dict[Any, list[list[float]]] = {}
        for place, box in enumerate(self.boxes):
            if not isinstance(box, _Annotation):
                if isinstance(box, dict) and "image_id" in box:
                    raise self.broken(place, box.get("id"), "has no bbox")
                raise self.broken(place, None, "is not an annotation")
            if not (_is_id(box.image) and _is_id(box.category)):
                raise self.broken(
                    place, box.number, "has an image_id or category_id that is neither a number nor a word"
                )
            if box.image not in known:
                raise self.broken(place, box.number, f"is of the image {show_content(box.image)}, which is not listed")
            if box.category not in numbers:
                raise self.broken(
                    place, box.number, f"is of the category {show_content(box.category)}, which is not listed"
                )
            try:
                x, y, width, height = (float(value) for value in box.bbox)
                # Most exports omit the area; in COCO itself it is that of the outline, which is smaller than the box.
                area = float(width * height if box.area is None else box.area)
                # Some tools write numbers as texts, and a text that is not empty would count as true.
                crowd = bool(float(box.iscrowd or 0))
            except (TypeError, ValueError, OverflowError) as error:
                area_said, crowd_said = show_content(box.area, 20), show_content(box.iscrowd, 20)
                said = f"has a bbox {show_content(box.bbox)}, area {area_said} and iscrowd {crowd_said}"
                raise self.broken(place, box.number, said) from error
            # COCO itself has boxes without width, which are kept; negative sizes mean corners instead of width and
            # height.
            if not (np.isfinite([x, y, width, height]).all() and width >= 0 and height >= 0):
                raise self.broken(place, box.number, f"has a bbox {show_content(box.bbox)}")
            row = [x, y, x + width, y + height, float(numbers[box.category]), float(crowd), area]
            rows.setdefault(box.image, []).append(row)
        return rows

    def broken(self, place: int, number: Any, what: str) -> BrokenDatasetError:
        return BrokenDatasetError(
            f"'{self.entry.name}': annotation {place} (id {show_content(number)}) {what}; expected image_id, "
            "category_id and bbox [x, y, width, height] in pixels."
        )


def read_coco(tree: Tree) -> SampleTable:
    """Make a table of a tree with COCO's instances in JSON, and the images that they name.

    Boxes are x0, y0, x1, y1 in pixels. Labels are indices into the classes, which are the categories by ascending id:
    the ids themselves may have gaps. Columns: iscrowd (0 or 1), area (in pixels of the original image). Images
    without annotations are kept. Several files called after splits (instances_train2017.json,
    valid/_annotations.coco.json) are the splits.

    Raises:
        LayoutError: there is no such file.
        BrokenDatasetError: an annotation is broken, or most images of a file are not there; they are named.
    """
    images = tree.entries.ending_in(IMAGE_EXTENSIONS)
    # One folder may hold files of both kinds; those of classes are another layout.
    found = [file for file in _find_files(tree, images) if not file.is_of_classes]
    if not found:
        msg = f"'{tree.label}' has no JSON file with images, annotations and categories, as COCO has it, and images."
        raise LayoutError(msg)
    names, numbers = _categories(found)
    samples: list[LabelledImage] = []
    notes: list[str] = []
    for file, placed in _placed(found, images, notes):
        rows = file.rows_of_images(numbers)
        sizes = {image["id"]: _size_of(image) for image in file.images}
        samples += [
            LabelledImage(image, rows.get(key, []), file.split or split_of_path(image.name), sizes[key])
            for key, image in placed
        ]
    # Keys must be unique, and two files about one image might disagree about its boxes.
    _check_once([sample.file.name for sample in samples], found)
    # Not an error: many datasets annotate only some of their images.
    notes += left_out_notes((len(images) - len(samples), "images", "that no annotation file names"))
    return detection_table(tree, samples, names, _COLUMNS, notes=notes)


CLASSES = "coco_classes"
EXTENSIONS = (".json",)


def read_coco_classes(tree: Tree) -> SampleTable:
    """Make a table of a tree with JSON in COCO's form whose annotations have a category and no box, one for each image.

    Classes are the categories by ascending id. Several files called after splits (train2018.json, val2018.json) are
    the splits.

    Raises:
        EmptySourceError: there are no images.
        LayoutError: there is no such file.
        BrokenDatasetError: an annotation is broken, an image has two categories, or most images are not there.
    """
    images = required(tree.entries.ending_in(IMAGE_EXTENSIONS), tree, "images")
    found = [file for file in _find_files(tree, images) if file.is_of_classes]
    if not found:
        msg = f"'{tree.label}' has no JSON file in COCO's form that gives each image a category, and images."
        raise LayoutError(msg)
    names, numbers = _categories(found)
    notes: list[str] = []
    samples: list[tuple[FileEntry, int, str]] = []
    unlabelled = 0
    for file, placed in _placed(found, images, notes):
        labels = file.labels_of_images(numbers)
        split = file.split
        samples += [(image, labels[key], split or split_of_path(image.name)) for key, image in placed if key in labels]
        unlabelled += sum(key not in labels for key, _ in placed)
    _check_once([image.name for image, _, _ in samples], found)
    notes += left_out_notes(
        (unlabelled, "images", "without an annotation"),
        (len(images) - len(samples) - unlabelled, "images", "that no annotation file names"),
    )
    return SampleTable(
        layout=CLASSES,
        keys=tuple(image.name for image, _, _ in samples),
        inputs=Images(TreeFiles(tree, [image for image, _, _ in samples])),
        targets=Values(np.array([label for _, label, _ in samples], np.int64)),
        splits=known_splits([split for _, _, split in samples]),
        classes=tuple(names),
        notes=tuple(notes),
    )


def _find_files(tree: Tree, images: FileEntries) -> list[_CocoFile]:
    entries = list(tree.entries.ending_in(EXTENSIONS)) if images else []
    # COCO's archive also has captions and keypoints of the same images.
    instances = [entry for entry in entries if posixpath.basename(entry.name).startswith("instances_")]
    # With very many JSON files, each probably belongs to one image, and reading all would take long.
    chosen = instances or (entries if len(entries) <= _MAX_FILES else [])
    return [file for entry in chosen if (file := _read_file(tree, entry)) is not None]


def _placed(
    found: list[_CocoFile], images: FileEntries, notes: list[str]
) -> Iterator[tuple[_CocoFile, list[tuple[Any, FileEntry]]]]:
    """Yield each file with its images.

    Raises:
        Exception: as `_CocoFile.place`, if no file has its images.
    """
    # People often download one split of COCO with the annotations of all splits.
    kept = []
    absent: list[MissingImagesError] = []
    for file in found:
        try:
            kept.append((file, *file.place(images)))
        except MissingImagesError as error:
            # Some of its images exist, so the file is meant, and most of the dataset is missing.
            if error.found:
                raise
            absent.append(error)
            notes.append(f"None of the images that '{file.entry.name}' names are here; it was left out.")
    if not kept:
        raise absent[0]
    for file, placed, missing in kept:
        notes += left_out_notes((missing, "images", f"named by '{file.entry.name}' and not there"))
        yield file, placed


def _categories(found: list[_CocoFile]) -> tuple[list[str], dict[Any, int]]:
    """Return the names of the categories by ascending id, and the position of each id among them."""
    # COCO's ids go up to 90 with gaps, which would be classes without samples.
    names: dict[Any, str] = {}
    for one in found:
        for category in one.categories:
            if not isinstance(category, dict) or not {"id", "name"} <= category.keys():
                msg = f"'{one.entry.name}' has a category without id or name: {show_content(category)}."
                raise BrokenDatasetError(msg)
            number, name = category["id"], str(category["name"])
            if not _is_id(number):
                shown = show_content(number)
                msg = f"'{one.entry.name}' has a category with the id {shown}; expected a number or a word."
                raise BrokenDatasetError(msg)
            # Splits that were exported separately may number categories differently, which would mix up classes.
            if names.setdefault(number, name) != name:
                msg = f"'{one.entry.name}' calls the category {number} '{name}', another file '{names[number]}'."
                raise BrokenDatasetError(msg)
    # Numbers and strings cannot be compared, and a few tools write ids as strings.
    order = sorted(names, key=lambda key: (isinstance(key, str), key))
    return [names[key] for key in order], {key: number for number, key in enumerate(order)}


def _check_once(names: list[str], found: list[_CocoFile]) -> None:
    # An image in two files would be two samples of one key.
    twice = first_repeated(names)
    if twice is not None:
        files_named = listed([file.entry.name for file in found])
        msg = f"The image '{twice}' is listed twice in {files_named}. Move all but one file of annotations of it away."
        raise BrokenDatasetError(msg)


def _read_file(tree: Tree, entry: FileEntry) -> _CocoFile | None:
    content = read_file(tree, entry)
    # First searched as bytes: parsing a gigabyte of JSON takes a minute, and most files are not annotations.
    looks_right = all(word in content for word in (b'"images"', b'"annotations"', b'"categories"'))
    if not looks_right:
        return None
    try:
        found = json.loads(content, object_pairs_hook=_slim)
    except (ValueError, RecursionError) as error:
        msg = f"'{entry.name}' looks like COCO's annotations but is not JSON: {error}."
        raise BrokenDatasetError(msg) from error
    # The three words may occur in any list.
    if not isinstance(found, dict):
        return None
    parts = [found.get(name) for name in ("images", "annotations", "categories")]
    images, annotations, categories = parts
    if not (isinstance(images, list) and isinstance(annotations, list) and isinstance(categories, list)):
        return None
    # Captions and panoptic segments are in the same folder, without boxes.
    if annotations and not any(isinstance(box, _Annotation) or _is_class(box) for box in annotations):
        return None
    # instances_train2017, _annotations.coco, train-annotations: one word among others is the split, or the folder is.
    stem = stem_of(entry.name)
    words = {split for word in stem.replace("-", "_").replace(".", "_").split("_") if (split := split_of_word(word))}
    return _CocoFile(
        entry, words.pop() if len(words) == 1 else split_of_path(entry.name), images, annotations, categories
    )


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


def _size_of(image: dict[str, Any]) -> tuple[int, int]:
    """Return an image's height and width according to the file; zeros if it does not say."""
    height, width = image.get("height"), image.get("width")
    if isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0:
        return height, width
    return 0, 0
