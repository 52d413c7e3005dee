"""YOLO's text files: images/a.jpg with labels/a.txt, or a.txt beside it, a class and a box in each line."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.units import counted, format_count, listed
from colabstage.layouts.boxes import LabelledImage, boxes_table, without_boxes_note
from colabstage.layouts.class_lists import ClassList, read_class_list
from colabstage.layouts.columns import show
from colabstage.layouts.evidence import Evidence
from colabstage.layouts.lists import lists_state
from colabstage.layouts.lookup import Lookup
from colabstage.layouts.reading import decode_text
from colabstage.layouts.table import BrokenDatasetError
from colabstage.layouts.words import IMAGES, normal, split_of_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from colabstage.layouts.evidence import Found
    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntries, FileEntry

_IMAGES, _LABELS = "images", "labels"
# Tools write 1.0000001 for the edge; more than this is another unit.
_SLACK = 0.01
_SNIFFED = 8
# With fewer lines than this, agreement may be chance.
_FEW_POSES = 4
# Class numbers beyond this are no indices.
_MOST_CLASSES = 1_000_000
_LONGEST_NUMBER = 64


def yolo_state(source: Source) -> Found:
    """Read images with text files of YOLO's form, in folders `labels` beside `images`, or beside the images.

    Boxes are x0, y0, x1, y1 as fractions of width and height; a polygon becomes the box around it. An empty file means
    no boxes, and so does a missing one, with a note. Names of classes come from data.yaml, classes.txt or obj.names;
    splits from data.yaml, lists or folders.
    """
    # By exact names, because thousands of labels are looked up, with the case of the images' names.
    texts = {normal(entry.name): entry for entry in source.ending_in((".txt",)) if entry.name.endswith(".txt")}
    images = source.ending_in(IMAGES if texts else ())
    labels = [_label_file_of(normal(name), texts) for name in images.names]
    files = [label for label in labels if label is not None]
    lists, classes = read_class_list(source) if files else ([], ClassList(()))
    names = classes.names
    beside = any(
        label is not None and posixpath.dirname(image) == posixpath.dirname(label.name)
        for image, label in zip(images.names, labels, strict=True)
    )
    if not files or (beside and not names):
        msg = (
            f"'{source.label}' has no text file for any image, neither in a folder {_LABELS} beside one called "
            f"{_IMAGES}, nor beside the images with a classes.txt."
        )
        raise LayoutError(msg)
    # How many numbers of a pose follow the box in each line.
    pose = classes.keypoints[0] * classes.keypoints[1]
    _sniff(source, files, pose)
    parsed = source.parse(files, lambda file, content: parse_yolo(file.name, content, pose=pose))
    every = [row for found in parsed.values() for row in found]
    if not pose:
        _check_poses(files[0].name, every)
    # Without names, the highest number determines the number of classes.
    count = max((int(row[4]) + 1 for row in every), default=0)
    # Too few names are from another dataset, or an older state of this one.
    if names and count > len(names):
        worst = next(name for name, found in parsed.items() if any(row[4] >= len(names) for row in found))
        line = 1 + next(i for i, row in enumerate(parsed[worst]) if row[4] >= len(names))
        msg = f"'{worst}', box {line}: there is no class {count - 1}; {len(names)} are named ({show(names[0])}, …)."
        raise BrokenDatasetError(msg)
    splits, notes = _stated_splits(images, classes)
    samples = [
        LabelledImage(
            image, [] if label is None else [row[:5] for row in parsed[label.name]], split or split_of_path(image.name)
        )
        for image, label, split in zip(images, labels, splits, strict=True)
    ]
    notes = [*without_boxes_note(len(images) - len(files), "label file"), *notes]
    if pose:
        notes.append(f"Of each box {counted(classes.keypoints[0], 'keypoints', 'were')} left out.")
    polygons = [row for row in every if len(row) > 5]
    if polygons:
        # Oriented boxes look like polygons of four points; a note says that their angle is lost.
        four = (
            "outlines of four points, as oriented boxes have," if all(row[5] == 4 for row in polygons) else "polygons"
        )
        notes.append(f"Boxes around {four} are kept without these: {len(polygons):,}.")
    called = names or [str(number) for number in range(count)]
    table = boxes_table(source.tree, samples, called, relative=True, notes=notes)
    found = Evidence(table, "YOLO's files", frozenset({*(file.name for file in files), *lists}))
    if table.splits is not None:
        return found
    stated = _stated_lists(source, classes)
    return lists_state(source, found, stated=stated)[0] if stated else found


def _label_file_of(image: str, texts: dict[str, FileEntry]) -> FileEntry | None:
    """Return the label file that Ultralytics would use: with the last folder `images` of the path replaced by `labels`;
    or the one beside the image."""
    stem = posixpath.splitext(image)[0]
    head, found, tail = f"/{stem}".rpartition(f"/{_IMAGES}/")
    # The last such folder of the path, as Ultralytics replaces it: one above may be called images too.
    moved = f"{head}/{_LABELS}/{tail}.txt".lstrip("/") if found else ""
    return texts.get(moved) or texts.get(f"{stem}.txt")


def _stated_splits(images: FileEntries, classes: ClassList) -> tuple[list[str], list[str]]:
    """Return the split of each image by the folders that data.yaml names, "" for none; and notes."""
    folders, of_files = images.folders
    # Folders that are called after splits keep these names.
    if all(split_of_path(f"{folder}/") for folder in folders):
        return [""] * len(images), []
    # By parts from the end: `../train/images` is relative to where the file was written.
    found: dict[int, set[str]] = {}
    for split, paths in classes.splits.items():
        for path in paths:
            if path.lower().endswith((".txt", ".lst")):
                continue
            parts = [part for part in normal(path).replace("\\", "/").split("/") if part not in ("", ".", "..")]
            for number, folder in enumerate(folders):
                inside = f"/{normal(folder)}/"
                if parts and f"/{'/'.join(parts)}/" in inside:
                    found.setdefault(number, set()).add(split)
    # Folders of two splits, as coco128's train and val are, say nothing.
    stated = {number: next(iter(splits)) for number, splits in found.items() if len(splits) == 1}
    if len(stated) < len(folders) or len(set(stated.values())) < 2:
        return [""] * len(images), []
    return [stated[number] for number in of_files.tolist()], [
        f"Splits are the folders that data.yaml names: {listed(sorted(set(stated.values())))}."
    ]


def _stated_lists(source: Source, classes: ClassList) -> dict[str, str]:
    """Return the lists of images that data.yaml or obj.data name, with their splits; or all that are called so."""
    texts = source.ending_in((".txt", ".lst"))
    lookup = Lookup(texts.names)
    found = {}
    for split, paths in classes.splits.items():
        for path in paths:
            number = lookup.find(path) if path.lower().endswith((".txt", ".lst")) else None
            if number is not None:
                found[texts.names[number]] = split
    bases = {"train.txt": "train", "val.txt": "val", "valid.txt": "valid", "test.txt": "test"}
    return found or {name: bases[base] for name in texts.names if (base := posixpath.basename(name).lower()) in bases}


def _sniff(source: Source, files: list[FileEntry], pose: int) -> None:
    """Refuse files none of which has a line of this form: they hold captions, or labels of other tools."""
    looked_at = [file for file in files if file.size][:_SNIFFED]

    def trouble(file: FileEntry, content: bytes) -> tuple[BrokenDatasetError, bool] | None:
        try:
            parse_yolo(file.name, content, pose=pose)
        except BrokenDatasetError as error:
            return error, any(_may_be_box(words) for _, _, words in _lines_of_words(content))
        return None

    wrong = [one for one in source.parse(looked_at, trouble).values() if one is not None]
    if not wrong or len(wrong) < len(looked_at):
        return
    # Rows of numbers where YOLO has its boxes are meant to be boxes, and words are not.
    error = next((error for error, are_boxes in wrong if are_boxes), None)
    if error is not None:
        raise error
    msg = f"The text files of the images in '{source.label}' have no lines of YOLO's form: {wrong[0][0]}"
    raise LayoutError(msg)


def _check_poses(name: str, rows: Sequence[Sequence[float]]) -> None:
    """Refuse lines that may be polygons as well as poses, as long as nothing says which.

    As many numbers in every line: the first four are a box that holds all points, or every third number behind a box
    may say whether a point is visible.
    """
    if len(rows) < _FEW_POSES or not all(len(row) == 8 for row in rows):
        return
    counts = {int(row[5]) for row in rows}
    holds, has_visible = (all(row[place] for row in rows) for place in (6, 7))
    if len(counts) == 1 and ((holds and min(counts) > 4) or has_visible):
        count = 1 + 2 * min(counts)
        shape = f"[{(count - 5) // 3}, 3]" if has_visible else f"[{(count - 5) // 2}, 2]"
        msg = (
            f"The lines of '{name}' and all others have {count} numbers: polygons, or boxes with keypoints inside. For "
            f"poses, say kpt_shape: {shape} in data.yaml."
        )
        raise BrokenDatasetError(msg)


def _lines_of_words(content: bytes) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the number and the words of each non-empty line."""
    for number, line in enumerate(decode_text(content).splitlines(), 1):
        if words := line.split():
            yield number, line, words


def _numbers(words: Sequence[str]) -> list[float]:
    """Return words as numbers; nothing if one is not a number, or so long that nobody wrote it."""
    try:
        return [float(word) for word in words] if all(len(word) <= _LONGEST_NUMBER for word in words) else []
    except ValueError:
        return []


def parse_yolo(name: str, content: bytes, *, pose: int = 0) -> list[list[float]]:
    """Return x0, y0, x1, y1 and the class of each box; of a polygon also its number of points, whether they all lie in
    the box that its first four numbers would be, and whether the others may be keypoints that are visible or not.
    """
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
                f"'{name}', line {number}: {line.strip()[:120]!r} is not a YOLO box; expected a class and four numbers "
                f"from 0 to 1 (centre x, centre y, width, height){shape}.{_remedy(parts)}"
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
    """Return what a line looks like that is no YOLO box, and what to do, behind a blank; "" if that is unclear."""
    values, rest = _numbers(words), _numbers(words[1:])
    points = format_count((len(values) - 5) // 3, "keypoints")
    told = (
        (not values and len(rest) in (14, 15), "It looks like KITTI's, whose folders are image_2 and label_2."),
        (
            not values and len(rest) >= 4,
            f"In place of '{show(words[0])}' write its number in the names of data.yaml, from 0.",
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
    return inside and 0 <= values[0] < _MOST_CLASSES and values[0] == int(values[0])


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
