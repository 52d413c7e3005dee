"""COCO's JSON: images, annotations and categories in one file, or in one for each split."""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.retry import RetryPolicy, read_with_retry
from colabstage.layouts.image_boxes import Column, LabelledImage, detection_table, split_of_folders, split_of_word
from colabstage.layouts.names import IMAGE_EXTENSIONS, FileLookup, listed
from colabstage.layouts.table import BrokenDatasetError
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from colabstage.layouts.table import SampleTable
    from colabstage.trees.entries import FileEntries
    from colabstage.trees.tree import FileEntry, Tree

# More JSON files than this are one for each image: another tool's.
_MAX_FILES = 24
_COLUMNS = (Column("iscrowd", np.uint8), Column("area", np.float32))


class _Box(NamedTuple):
    """What is kept of an annotation while its file is read; polygons, most of the file, are not."""

    image: Any
    """The image's id."""
    category: Any
    """The category's id."""
    bbox: Any
    """Left, top, width and height, as the file has them."""
    iscrowd: Any
    """Whether it is drawn around many things at once."""
    area: Any
    """What the file says of the area of the thing's outline."""
    number: Any
    """How many boxes of the file came before."""


class _CocoFile(NamedTuple):
    """One file of annotations."""

    entry: FileEntry
    """The file."""
    split: str
    """The split that it is called after, "" for none."""
    images: list[Any]
    """Its list `images`."""
    boxes: list[Any]
    """Its list `annotations`, of each what is needed."""
    categories: list[Any]
    """Its list `categories`."""

    def place(self, images: FileEntries) -> tuple[list[tuple[Any, FileEntry]], int]:
        lookup = FileLookup(images, posixpath.dirname(self.entry.name))
        placed = []
        seen: set[Any] = set()
        first = ""
        for image in self.images:
            named = isinstance(image, dict) and _is_id(image.get("id")) and isinstance(image.get("file_name"), str)
            if not named or image["id"] in seen:
                trouble = "an id that another one has" if named else "no id, a number or a word, or no file_name"
                msg = f"'{self.entry.name}' has an image with {trouble}: {str(image)[:80]}."
                raise BrokenDatasetError(msg)
            # Annotations find their image by its id.
            seen.add(image["id"])
            found = lookup.find(image["file_name"], split=self.split)
            if found is not None:
                placed.append((image["id"], found))
            else:
                first = first or image["file_name"]
        # A few missing images are common; most of them missing is another folder, or a download that stopped.
        if 2 * len(placed) < len(self.images):
            msg = (
                f"Of {len(self.images):,} images that '{self.entry.name}' names, {len(placed):,} are there (first "
                "missing "
                f"or not to be told from others: '{first}'); expected at least half."
            )
            raise BrokenDatasetError(msg)
        return placed, len(self.images) - len(placed)

    def rows_of_images(self, numbers: dict[Any, int]) -> dict[Any, list[list[float]]]:
        """Return the boxes of each image, by its id, in the file's order."""
        # Boxes of images that are not listed would be lost, and which images they are of could never be told.
        known = {image["id"] for image in self.images}
        rows: dict[Any, list[list[float]]] = {}
        for place, box in enumerate(self.boxes):
            if not isinstance(box, _Box):
                if isinstance(box, dict) and "image_id" in box:
                    raise self.broken(place, box.get("id"), "has no bbox")
                raise self.broken(place, None, "is no annotation")
            if not (_is_id(box.image) and _is_id(box.category)):
                raise self.broken(place, box.number, "has an image_id or category_id that is no number and no word")
            if box.image not in known:
                raise self.broken(place, box.number, f"is of the image {box.image!r}, which is not listed")
            if box.category not in numbers:
                raise self.broken(place, box.number, f"is of the category {box.category!r}, which is not listed")
            try:
                x, y, width, height = (float(value) for value in box.bbox)
                area = float(width * height if box.area is None else box.area)
            except (TypeError, ValueError) as error:
                raise self.broken(place, box.number, f"has a bbox {str(box.bbox)[:60]}") from error
            if not (np.isfinite([x, y, width, height]).all() and width >= 0 and height >= 0):
                raise self.broken(place, box.number, f"has a bbox {box.bbox}")
            row = [x, y, x + width, y + height, float(numbers[box.category]), float(bool(box.iscrowd)), area]
            rows.setdefault(box.image, []).append(row)
        return rows

    def broken(self, place: int, number: Any, what: str) -> BrokenDatasetError:
        return BrokenDatasetError(
            f"'{self.entry.name}': annotation {place} (id {number!r}) {what}; expected image_id, category_id and "
            "bbox [x, y, width, height] in pixels."
        )


def read_coco(tree: Tree) -> SampleTable:
    """Make a table of a tree with COCO's instances in JSON, and the images that they name.

    Boxes are x0, y0, x1, y1 in pixels. Labels are indices into the classes, which are the categories by ascending id:
    the ids themselves may have gaps. Columns: iscrowd (0 or 1), area (in pixels of the image as it came). Images
    without annotations are kept. Several files called after splits (instances_train2017.json,
    valid/_annotations.coco.json) are the splits.

    Raises:
        LayoutError: there is no such file.
        BrokenDatasetError: an annotation is broken, or most images of a file are not there; they are named.
    """
    images = files_ending_in(tree.entries, IMAGE_EXTENSIONS)
    entries = list(files_ending_in(tree.entries, (".json",))) if images else []
    instances = [entry for entry in entries if posixpath.basename(entry.name).startswith("instances_")]
    # Among very many files of JSON each is something of its own, and reading all would take long.
    chosen = instances or (entries if len(entries) <= _MAX_FILES else [])
    found = [file for entry in chosen if (file := _read_file(tree, entry)) is not None]
    if not found:
        msg = f"'{tree.label}' has no JSON file with images, annotations and categories, as COCO has it, and images."
        raise LayoutError(msg)
    names: dict[Any, str] = {}
    for one in found:
        for category in one.categories:
            if not isinstance(category, dict) or not {"id", "name"} <= category.keys():
                msg = f"'{one.entry.name}' has a category without id or name: {str(category)[:80]}."
                raise BrokenDatasetError(msg)
            number, name = category["id"], str(category["name"])
            if not _is_id(number):
                msg = f"'{one.entry.name}' has a category with the id {str(number)[:60]}; expected a number or a word."
                raise BrokenDatasetError(msg)
            if names.setdefault(number, name) != name:
                msg = f"'{one.entry.name}' calls the category {number} '{name}', another file '{names[number]}'."
                raise BrokenDatasetError(msg)
    numbers = {key: number for number, key in enumerate(sorted(names, key=lambda key: (isinstance(key, str), key)))}
    samples: list[LabelledImage] = []
    notes: list[str] = []
    for file in found:
        placed, missing = file.place(images)
        if missing:
            notes.append(f"{missing:,} images that '{file.entry.name}' names are not there and were left out.")
        rows = file.rows_of_images(numbers)
        sizes = {image["id"]: _size_of(image) for image in file.images}
        samples += [
            LabelledImage(image, rows.get(key, []), file.split or split_of_folders(image.name), sizes[key])
            for key, image in placed
        ]
    # An image in two files would be two samples of one key.
    seen: set[str] = set()
    twice = next((s.file.name for s in samples if s.file.name in seen or seen.add(s.file.name)), None)  # type: ignore[func-returns-value]
    if twice is not None:
        files_named = listed([file.entry.name for file in found])
        msg = f"The image '{twice}' is listed twice in {files_named}. Move all but one file of annotations of it away."
        raise BrokenDatasetError(msg)
    # A person should see that images are left out, and how many.
    unused = len(images) - len(samples)
    if unused:
        notes.append(f"{unused:,} images that no file of annotations names were left out.")
    return detection_table(tree, samples, [names[key] for key in numbers], _COLUMNS, notes=notes)


def _read_file(tree: Tree, entry: FileEntry) -> _CocoFile | None:
    content = read_with_retry(lambda: tree.read(entry), entry.name, policy=RetryPolicy())
    # Looked for as bytes first: parsing a JSON of a gigabyte takes a minute, and most files are no annotations.
    looks_right = all(word in content for word in (b'"images"', b'"annotations"', b'"categories"'))
    if not looks_right:
        return None
    try:
        found = json.loads(content, object_pairs_hook=_slim)
    except (ValueError, RecursionError) as error:
        msg = f"'{entry.name}' looks like COCO's annotations but is no JSON: {error}."
        raise BrokenDatasetError(msg) from error
    if not isinstance(found, dict):
        return None
    parts = [found.get(name) for name in ("images", "annotations", "categories")]
    images, annotations, categories = parts
    if not (isinstance(images, list) and isinstance(annotations, list) and isinstance(categories, list)):
        return None
    # Captions and panoptic segments lie in the same folder and have no boxes.
    if annotations and not any(isinstance(box, _Box) for box in annotations):
        return None
    stem = posixpath.splitext(posixpath.basename(entry.name))[0]
    words = {split for word in stem.replace("-", "_").replace(".", "_").split("_") if (split := split_of_word(word))}
    return _CocoFile(
        entry, words.pop() if len(words) == 1 else split_of_folders(entry.name), images, annotations, categories
    )


def _slim(pairs: list[tuple[str, Any]]) -> Any:
    """Return a JSON object; of an annotation only what is needed, which spares most of the memory that polygons
    take."""
    found = dict(pairs)
    if "image_id" in found and "bbox" in found:
        keys = ("image_id", "category_id", "bbox", "iscrowd", "area", "id")
        return _Box(*(found.get(key) for key in keys))
    return found


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str)


def _size_of(image: dict[str, Any]) -> tuple[int, int]:
    """Return the height and width that a file says its image has; zeros where it does not."""
    height, width = image.get("height"), image.get("width")
    if isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0:
        return height, width
    return 0, 0
