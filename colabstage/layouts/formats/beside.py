"""Boxes in a file beside each image: KITTI's, Pascal VOC's, and YOLO's."""

from __future__ import annotations

import math
import posixpath
import re
from collections import defaultdict
from itertools import filterfalse
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.units import counted, listed
from colabstage.layouts import words
from colabstage.layouts.boxes import BoxColumn, Record, boxes_state, records_beside, side_of
from colabstage.layouts.columns import show
from colabstage.layouts.evidence import Evidence, left_out_notes
from colabstage.layouts.lists import LIST_ENDS, MOST_CLASSES, ClassList, Lookup, names_of_numbers, read_class_list
from colabstage.layouts.reading import Source, broken, decode_text, parse_xml
from colabstage.layouts.table import BrokenDatasetError
from colabstage.layouts.words import IMAGES, SPLIT_ORDER, folder_of, normal, normal_names, split_of_path, stems_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from xml.etree.ElementTree import Element

    from colabstage.trees.listing import FileEntries, FileEntry

# How many files are examined before all are parsed, because other tools write such files too.
_SNIFFED = 8


def _stem(name: str) -> str:
    """Return a path without its extension, in normal form."""
    return posixpath.splitext(normal(name))[0]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield number, line.strip()


# --- KITTI: image_2/000000.png with label_2/000000.txt, one object in a line of fifteen columns -----------------------

# The order of KITTI's readme; other types follow by name. Unlabelled regions come last.
_TYPES = ("Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc")
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
    texts = source.ending_in((".txt",)).where(lambda name: name.endswith(".txt") and folder_of(name) == "label_2")
    labels = {_stem(entry.name): entry for entry in texts}
    # image_3 is from the right camera, for which the boxes are not valid.
    images = source.ending_in(IMAGES if labels else ()).where(lambda name: folder_of(name) == "image_2")
    files = [labels.get(re.sub(r"image_2(/[^/]*)$", r"label_2\1", _stem(name))) for name in images.names]
    if not any(files):
        msg = f"'{source.label}' has no folder label_2 with a text for each image in a folder image_2 beside it."
        raise LayoutError(msg)
    placed, notes = records_beside(source, images, files, parse_kitti, "file in label_2", labels=texts.names)
    # In the order of KITTI's list, as other programs number them.
    order = {kind: number for number, kind in enumerate(_TYPES)} | {_DONT_CARE: len(_TYPES) + 1}
    found = {kind for one in placed for kind, _ in one.record.shapes}
    classes = sorted(found, key=lambda kind: (order.get(kind, len(_TYPES)), kind))
    if classes[-1:] == [_DONT_CARE]:
        notes.append(f"The last class, {len(classes) - 1}, is '{_DONT_CARE}': regions to leave out of a loss.")
    used = [file.name for file in files if file is not None]
    return boxes_state(source, "KITTI's files", placed, classes, columns=_OF_KITTI, notes=notes, used=used)


def parse_kitti(name: str, content: bytes) -> Record:
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

_LISTS = "ImageSets/Main"
# The poses in the order of their numbers; the first is for a missing or unknown one.
POSES = ("Unspecified", "Frontal", "Rear", "Left", "Right")
_OF_VOC = (BoxColumn("difficult", np.uint8), BoxColumn("truncated", np.uint8), BoxColumn("pose", np.int64))
# Not CVAT's <annotations>, which may be beside an image of the same name.
_IS_VOC = re.compile(r"<annotation[\s>]")
_FLAGS = {"": 0, "unspecified": 0, "unknown": 0, "false": 0, "no": 0, "true": 1, "yes": 1}
# Folders that only describe their content, in any spelling: images/train/a.jpg belongs to annotations/train/a.xml.
_ROLES = frozenset(
    ("annotations", "annotation", "annots", "annot", "xmls", "xml", "labels", "label", "images", "image", "imgs", "img",
     "jpegimages", "photos", "pictures")
)  # fmt: skip


def voc_state(source: Source) -> Evidence:
    """Read images with one XML file of Pascal VOC's form each, in `Annotations` or beside it.

    VOC counts pixels from 1 and its last one is part of the box; here boxes are x0 = xmin - 1, y0 = ymin - 1,
    x1 = xmax, y1 = ymax, so that x1 - x0 is the width. Columns: difficult, truncated (0 or 1), pose (number of
    `POSES`). Splits come from folders, otherwise from the lists in ImageSets/Main; unlisted images are then left out.
    """
    annotations = source.ending_in((".xml",))
    images = source.ending_in(IMAGES if annotations else ())
    # Masks are in SegmentationClass and SegmentationObject by the same stems.
    images = images.where(lambda name: not folder_of(name).startswith("Segmentation"))
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
    placed, notes = records_beside(source, chosen, files, parse_voc, "XML file", labels=annotations.names)
    # Renumbered files keep the old name inside, so their own names count.
    bases = set(map(_base, chosen.names))
    others = [file.name for file, record, _ in placed if record.image in bases and record.image != _base(file.name)]
    if others:
        notes.append(
            f"{counted(len(others), 'XML files', 'have')} another image of the dataset as filename (first that of "
            f"'{others[0]}'): the file of an image is the one of its name."
        )
    notes += left_out_notes((len(images) - len(chosen), "images", "in folders without annotations"))
    # The files have only class names; sorted, so that all machines number them alike.
    classes = sorted({kind for one in placed for kind, _ in one.record.shapes})
    used = [file.name for file in labels.values()]
    who = "Pascal VOC's files"
    return boxes_state(source, who, placed, classes, columns=_OF_VOC, notes=notes, used=used, within=_LISTS)


def _base(name: str) -> str:
    return normal(posixpath.basename(name))


def _place(name: str) -> tuple[str, ...]:
    """Return the folders that distinguish a file from others, and its stem."""
    *folders, stem = _stem(name).split("/")
    return (*(folder for folder in folders if folder.lower() not in _ROLES), stem)


def _nearest_of(images: FileEntries, annotations: FileEntries) -> dict[str, FileEntry]:
    """Return the file of each image: in the same folders, apart from those that only describe their content; otherwise
    the nearest above that belongs to one image alone (crazing/1.jpg, annotations/1.xml)."""
    # Of two that may belong to one image, the other is compared with the first, as any other boxes are.
    by_place = {_place(file.name): file for file in reversed([*annotations])}
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


def parse_voc(name: str, content: bytes) -> Record:
    """Return the objects of one file, the size of its image, and the image's name in it."""
    shapes: list[tuple[str, Sequence[float]]] = []
    size, image = (0, 0), ""

    def take(element: Element) -> None:
        nonlocal size, image
        # Parts of an object (a person's head) are nested objects, not boxes of the image.
        if element.tag == "object":
            shapes.append(_object(element))
        elif element.tag == "size":
            # Some tools write zeros for a size that they do not know.
            height, width = (side_of(_text(element, side)) for side in ("height", "width"))
            size = (height, width) if height and width else (0, 0)
        elif element.tag == "filename":
            image = _base((element.text or "").strip().replace("\\", "/"))

    parse_xml(name, content, "annotation", take)
    return Record(image, shapes, size)


def _text(element: Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _object(element: Element) -> tuple[str, Sequence[float]]:
    name, pose = _text(element, "name"), _text(element, "pose").capitalize()
    try:
        x0, y0, x1, y1 = (float(_text(element, f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax"))
        words = [_text(element, flag).lower() for flag in ("difficult", "truncated")]
        flags = [_FLAGS[word] if word in _FLAGS else int(word[:20]) for word in words]
    except ValueError as error:
        msg = f"an object '{show(name)}' has no readable bndbox or flags ({error})"
        raise ValueError(msg) from error
    if not name or not all(map(math.isfinite, (x0, y0, x1, y1))):
        msg = "an object has no name" if not name else "an edge of an object's bndbox is not a number"
        raise ValueError(msg)
    # Tools that count from 0 write 0 here, and also mean the first pixel.
    return name, (max(x0 - 1, 0.0), max(y0 - 1, 0.0), x1, y1, *flags, POSES.index(pose) if pose in POSES else 0)


# --- YOLO: images/a.jpg with labels/a.txt, or a.txt beside it, a class and a box in each line -------------------------

# Tools write 1.0000001 for the edge; more than this is another unit.
_SLACK = 0.01
# With fewer lines than this, agreement may be chance.
_FEW_POSES = 4


def yolo_state(source: Source) -> Evidence:
    """Read images with text files of YOLO's form, in folders `labels` beside `images`, or beside the images.

    Boxes are x0, y0, x1, y1 as fractions of width and height; a polygon becomes the box around it. An empty file means
    no boxes, and so does a missing one, with a note. Names of classes come from data.yaml, classes.txt or obj.names;
    splits from data.yaml, lists or folders.
    """
    entries = source.ending_in((".txt",))
    images = source.ending_in(IMAGES if entries else ())
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
        rows[name] = parse_yolo(name, content, pose=pose)
        return Record("", [(int(row[0]), _corners(row[1:])) for row in rows[name]])

    stated, notes = _stated_splits(images, classes)
    splits = stated or [*map(split_of_path, images.names)]
    # A split without any label file is not one without objects.
    labelled = {split for split, file in zip(splits, files, strict=True) if file is not None}
    kept = [number for number, split in enumerate(splits) if split in labelled]
    notes += left_out_notes((len(images) - len(kept), "images", "of splits without a label file"))
    images, files = images.take(np.array(kept)), [files[number] for number in kept]
    labels = {*entries.names}.difference(lists)
    placed, more = records_beside(source, images, files, parse, "label file", labels=labels)
    notes += more
    if stated:
        placed = [one._replace(split=splits[number]) for one, number in zip(placed, kept, strict=True)]
    every = [row for found in rows.values() for row in found]
    if pose:
        notes.append(f"Of each box {counted(classes.keypoints[0], 'keypoints', 'were')} left out.")
    elif why := _may_be_poses(every):
        raise broken(there[0].name, f"its lines and all others have {why}")
    if polygons := sum(len(row) > 5 for row in every):
        notes.append(f"Boxes around polygons, and around oriented boxes, are kept without these: {polygons:,}.")
    names = names_of_numbers(classes.names, {name: [int(row[0]) for row in found] for name, found in rows.items()})
    return boxes_state(
        source,
        "YOLO's files",
        placed,
        range(len(names)),
        names=names,
        relative=True,
        notes=notes,
        used=[*rows, *lists],
        stated=_stated_lists(source, classes),
    )


def _label_files(source: Source, images: FileEntries, entries: FileEntries) -> list[FileEntry | None]:
    """Return the label file of each image, or nothing: the one that Ultralytics would use, with the last folder
    `images` of the path called `labels`; or the one beside the image; or, where none has either, the nearest."""
    # Mostly no text is called as any image is.
    stems, ends = {*stems_of(normal_names(entries.names))}, images.endings[0]
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
    are_boxes = all(_is_box(_numbers(line)) for text in read.values() for _, line in _lines(text))
    return [nearest.get(name) for name in images.names] if are_boxes else []


def _stated_splits(images: FileEntries, classes: ClassList) -> tuple[list[str], list[str]]:
    """Return the split of each image from the folders that data.yaml names, empty if it names none; and notes."""
    folders, of_files = images.folders
    there = {part for folder in folders for part in normal(folder).split("/")}
    stated_in = [(split, path) for split, paths in classes.splits.items() for path in paths]
    # By parts from the end: `../train/images` is relative to where the file was written.
    parts_of = {
        path: [part for part in normal(path).replace("\\", "/").split("/") if part not in ("", ".", "..")]
        for _, path in stated_in
        if not path.lower().endswith(LIST_ENDS)
    }
    places = [(split, f"/{'/'.join(parts)}/") for split, path in stated_in if (parts := parts_of.get(path))]
    lasts = {path: next(filterfalse(words.is_role, reversed(parts)), "") for path, parts in parts_of.items()}
    # People who hold nothing out name the images to train on again.
    lost = {path for path, last in lasts.items() if last and last not in there} - {*classes.splits.get("train", ())}
    notes = [f"'{path}', which data.yaml calls '{split}', is not there." for split, path in stated_in if path in lost]
    found = [{split for split, place in places if place in f"/{normal(folder)}/"} for folder in folders]
    own = [split_of_path(f"{folder}/") for folder in folders]
    for folder, split, splits in zip(folders, own, found, strict=True):
        if split == "train" and splits and "train" not in splits:
            held_out = listed(sorted(splits))
            msg = f"data.yaml holds '{folder}' out as {held_out}. Correct it, or rename the folder."
            raise BrokenDatasetError(msg)
    # Folders in two splits, such as coco128's train and val, say nothing.
    stated = [next(iter(splits)) if len(splits) == 1 else "" for splits in found]
    named = sorted({*stated})
    # Folders that are named after splits keep these names.
    if all(own) or not all(stated) or len(named) < 2:
        return [], notes
    notes.append(f"Splits are those that data.yaml names: {listed(named)}.")
    return [stated[number] for number in of_files.tolist()], notes


def _stated_lists(source: Source, classes: ClassList) -> dict[str, str] | None:
    """Return the lists of images that data.yaml or obj.data name, with their splits; `None` where they name none."""
    texts = source.ending_in(LIST_ENDS)
    lookup = Lookup(texts.names)
    named = [(lookup.find(path), split) for split, paths in classes.splits.items() for path in paths
             if path.lower().endswith(LIST_ENDS)]  # fmt: skip
    # People who hold nothing out give the same list again: valid = train.txt.
    named.sort(key=lambda one: SPLIT_ORDER[one[1]], reverse=True)
    return {texts.names[number]: split for number, split in named if number >= 0} or None


def _may_be_poses(rows: Sequence[Sequence[float]]) -> str:
    """Return why lines may be poses as well as polygons, if nothing decides: all have the same length, and the first
    four numbers are a box that contains all points, or every third number may say whether a point is visible."""
    lengths = {len(row) for row in rows}
    if len(rows) < _FEW_POSES or len(lengths) > 1 or lengths == {5}:
        return ""
    count = lengths.pop()
    has_visible = (count - 5) % 3 == 0 and all(value in (0, 1, 2) for row in rows for value in row[7::3])
    if not has_visible and not (count > 10 and all(map(_holds_points, rows))):
        return ""
    shape = [(count - 5) // 3, 3] if has_visible else [(count - 5) // 2, 2]
    return f"{count} numbers: polygons, or boxes with keypoints inside. For poses, say kpt_shape: {shape} in data.yaml."


def _holds_points(row: Sequence[float]) -> bool:
    """Tell whether the first four numbers are a box that contains the following points; points at 0, 0 are hidden."""
    x0, y0, x1, y1 = _corners(row[1:5])
    points = [(x, y) for x, y in zip(row[5::2], row[6::2], strict=True) if (x, y) != (0, 0)]
    return all(x0 - _SLACK <= x <= x1 + _SLACK and y0 - _SLACK <= y <= y1 + _SLACK for x, y in points)


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


def parse_yolo(name: str, content: bytes, *, pose: int = 0) -> list[list[float]]:
    """Return the class and the numbers of each line: a box by its centre and size, or the points of a polygon."""
    rows = []
    for number, line in _lines(decode_text(content)):
        values = _numbers(line)
        if pose:
            # Keypoints are left out; the box precedes them.
            values = values[:5] if len(values) in (5, 5 + pose) else []
        if not _is_box(values):
            shape = f"{pose} further ones as kpt_shape says" if pose else "or a polygon of at least three points"
            expected = (
                "a class, from 0, and four numbers from 0 to 1, cxcywh in parts of the image's width and height, "
                f"{shape}; for poses kpt_shape in data.yaml"
            )
            raise broken(name, f"{line[:120]!r} is not a YOLO box", expected, line=number)
        rows.append(values)
    return rows


def _is_box(values: Sequence[float]) -> bool:
    if len(values) != 5 and not (len(values) >= 7 and len(values) % 2):
        return False
    # Pixels instead of fractions are another format, and would give boxes far outside the image.
    inside = all(-_SLACK <= value <= 1 + _SLACK for value in values[1:])
    return inside and 0 <= values[0] < MOST_CLASSES and values[0] == int(values[0])


def _corners(values: Sequence[float]) -> tuple[float, float, float, float]:
    if len(values) > 4:
        xs, ys = values[::2], values[1::2]
        return min(xs), min(ys), max(xs), max(ys)
    x, y, width, height = values
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2
