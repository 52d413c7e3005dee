"""YOLO's text files: images/a.jpg with labels/a.txt, or a.txt beside it, a class and a box in each line."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from colabstage.errors import LayoutError
from colabstage.io.units import counted, listed
from colabstage.layouts.boxes import Placed, Record, boxes_state, without_boxes_note
from colabstage.layouts.class_lists import ClassList, read_class_list
from colabstage.layouts.columns import show
from colabstage.layouts.lookup import Lookup
from colabstage.layouts.reading import decode_text
from colabstage.layouts.table import BrokenDatasetError
from colabstage.layouts.words import IMAGES, normal, split_of_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.layouts.evidence import Evidence
    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntries, FileEntry

_IMAGES, _LABELS = "images", "labels"
_LISTS = (".txt", ".lst")
# Tools write 1.0000001 for the edge; more than this is another unit.
_SLACK = 0.01
_SNIFFED = 8
# With fewer lines than this, agreement may be chance.
_FEW_POSES = 4
# Class numbers beyond this are no indices.
_MOST_CLASSES = 1_000_000
_LONGEST_NUMBER = 64


def yolo_state(source: Source) -> Evidence:
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
    beside = any(
        label is not None and posixpath.dirname(image) == posixpath.dirname(label.name)
        for image, label in zip(images.names, labels, strict=True)
    )
    if not files or (beside and not classes.names):
        msg = (
            f"'{source.label}' has no text file for any image, neither in a folder {_LABELS} beside one called "
            f"{_IMAGES}, nor beside the images with a classes.txt."
        )
        raise LayoutError(msg)
    # How many numbers of a pose follow the box in each line.
    pose = classes.keypoints[0] * classes.keypoints[1]
    _sniff(source, files, pose)
    parsed = source.parse(files, lambda file, content: parse_yolo(file.name, content, pose=pose))
    every = [row for rows in parsed.values() for row in rows]
    if not pose:
        _check_poses(files[0].name, every)
    names = _names(classes, parsed)
    splits, notes = _stated_splits(images, classes)
    nothing = Record("", ())
    records = {name: Record("", [(int(row[0]), _corners(row[1:])) for row in rows]) for name, rows in parsed.items()}
    placed = [
        Placed(image, nothing if label is None else records[label.name], split or split_of_path(image.name))
        for image, label, split in zip(images, labels, splits, strict=True)
    ]
    notes = [*without_boxes_note(len(images) - len(files), "label file"), *notes]
    if pose:
        notes.append(f"Of each box {counted(classes.keypoints[0], 'keypoints', 'were')} left out.")
    polygons = [row for row in every if len(row) > 5]
    if polygons:
        # Oriented boxes look like polygons of four points; a note says that their angle is lost.
        four = all(len(row) == 9 for row in polygons)
        what = "outlines of four points, as oriented boxes have," if four else "polygons"
        notes.append(f"Boxes around {what} are kept without these: {len(polygons):,}.")
    return boxes_state(
        source,
        "YOLO's files",
        placed,
        {number: number for number in range(len(names))},
        names=names,
        relative=True,
        notes=notes,
        used=[*parsed, *lists],
        stated=_stated_lists(source, classes),
    )


def _label_file_of(image: str, texts: dict[str, FileEntry]) -> FileEntry | None:
    """Return the label file that Ultralytics would use: with the last folder `images` of the path replaced by `labels`;
    or the one beside the image."""
    stem = posixpath.splitext(image)[0]
    head, found, tail = f"/{stem}".rpartition(f"/{_IMAGES}/")
    moved = f"{head}/{_LABELS}/{tail}.txt".lstrip("/") if found else ""
    return texts.get(moved) or texts.get(f"{stem}.txt")


def _names(classes: ClassList, parsed: dict[str, list[list[float]]]) -> Sequence[str]:
    """Return the names of the classes; without a list of them, as many numbers as the highest one needs."""
    count = max((int(row[0]) + 1 for rows in parsed.values() for row in rows), default=0)
    names = classes.names or [str(number) for number in range(count)]
    # Too few names are from another dataset, or an older state of this one.
    if count > len(names):
        worst = next(name for name, rows in parsed.items() if any(row[0] >= len(names) for row in rows))
        line = 1 + next(place for place, row in enumerate(parsed[worst]) if row[0] >= len(names))
        msg = f"'{worst}', box {line}: there is no class {count - 1}; {len(names)} are named ({show(names[0])}, …)."
        raise BrokenDatasetError(msg)
    return names


def _stated_splits(images: FileEntries, classes: ClassList) -> tuple[list[str], list[str]]:
    """Return the split of each image by the folders that data.yaml names, "" for none; and notes."""
    folders, of_files = images.folders
    nothing = [""] * len(images)
    # Folders that are called after splits keep these names.
    if all(split_of_path(f"{folder}/") for folder in folders):
        return nothing, []
    # By parts from the end: `../train/images` is relative to where the file was written.
    found: dict[int, set[str]] = {}
    for split, paths in classes.splits.items():
        for path in (path for path in paths if not path.lower().endswith(_LISTS)):
            parts = [part for part in normal(path).replace("\\", "/").split("/") if part not in ("", ".", "..")]
            for number, folder in enumerate(folders):
                if parts and f"/{'/'.join(parts)}/" in f"/{normal(folder)}/":
                    found.setdefault(number, set()).add(split)
    # Folders of two splits, as coco128's train and val are, say nothing.
    stated = {number: next(iter(splits)) for number, splits in found.items() if len(splits) == 1}
    if len(stated) < len(folders) or len(set(stated.values())) < 2:
        return nothing, []
    note = f"Splits are the folders that data.yaml names: {listed(sorted(set(stated.values())))}."
    return [stated[number] for number in of_files.tolist()], [note]


def _stated_lists(source: Source, classes: ClassList) -> dict[str, str]:
    """Return the lists of images that data.yaml or obj.data name, with their splits; or all that are called so."""
    texts = source.ending_in(_LISTS)
    lookup = Lookup(texts.names)
    found = {}
    for split, paths in classes.splits.items():
        for path in paths:
            number = lookup.find(path) if path.lower().endswith(_LISTS) else None
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
            lines = [line.replace(",", " ") for line in _lines(content).values()]
            return error, any(len(_numbers(line) or _numbers(line, 1)) >= 4 for line in lines)
        return None

    wrong = [one for one in source.parse(looked_at, trouble).values() if one is not None]
    if not wrong or len(wrong) < len(looked_at):
        return
    # Rows of numbers where YOLO has its boxes are meant to be boxes, and words are not.
    for error, are_boxes in wrong:
        if are_boxes:
            raise error
    msg = f"The text files of the images in '{source.label}' have no lines of YOLO's form: {wrong[0][0]}"
    raise LayoutError(msg)


def _check_poses(name: str, rows: Sequence[Sequence[float]]) -> None:
    """Refuse lines that may be polygons as well as poses, as long as nothing says which: all are as long, and the first
    four numbers are a box that holds all points, or every third number may say whether a point is visible."""
    lengths = {len(row) for row in rows}
    if len(rows) < _FEW_POSES or len(lengths) > 1 or lengths == {5}:
        return
    count = lengths.pop()
    has_visible = (count - 5) % 3 == 0 and all(value in (0, 1, 2) for row in rows for value in row[7::3])
    if has_visible or (count > 10 and all(map(_holds_points, rows))):
        shape = f"[{(count - 5) // 3}, 3]" if has_visible else f"[{(count - 5) // 2}, 2]"
        msg = (
            f"The lines of '{name}' and all others have {count} numbers: polygons, or boxes with keypoints inside. For "
            f"poses, say kpt_shape: {shape} in data.yaml."
        )
        raise BrokenDatasetError(msg)


def _holds_points(row: Sequence[float]) -> bool:
    """Tell whether the first four numbers are a box that contains the following points; points at 0, 0 are hidden."""
    x0, y0, x1, y1 = _corners(row[1:5])
    points = [(x, y) for x, y in zip(row[5::2], row[6::2], strict=True) if (x, y) != (0, 0)]
    return all(x0 - _SLACK <= x <= x1 + _SLACK and y0 - _SLACK <= y <= y1 + _SLACK for x, y in points)


def _lines(content: bytes) -> dict[int, str]:
    """Return the lines that are not empty, by number."""
    found = enumerate(decode_text(content).splitlines(), 1)
    return {number: line.strip() for number, line in found if line.strip()}


def _numbers(line: str, first: int = 0) -> list[float]:
    """Return the words of a line as numbers; nothing if one is not a number, or so long that nobody wrote it."""
    # One or the other separates them: in a line that has both, commas may be those of decimals.
    words = [word.strip() for word in (line.split(",") if "," in line else line.split())][first:]
    try:
        return [float(word) for word in words] if all(len(word) <= _LONGEST_NUMBER for word in words) else []
    except ValueError:
        return []


def parse_yolo(name: str, content: bytes, *, pose: int = 0) -> list[list[float]]:
    """Return the class and the numbers of each line: a box by its centre and size, or the points of a polygon."""
    rows = []
    for number, line in _lines(content).items():
        values = _numbers(line)
        if pose:
            # Keypoints are left out, and the box is before them.
            values = values[:5] if len(values) in (5, 5 + pose) else []
        if not _is_box(values):
            shape = f", {pose} further ones as kpt_shape says" if pose else ", or a polygon of at least three points"
            msg = (
                f"'{name}', line {number}: {line[:120]!r} is not a YOLO box; expected a class, from 0, and four "
                f"numbers from 0 to 1, cxcywh in parts of the image's width and height{shape}. For poses say kpt_shape "
                "in data.yaml."
            )
            raise BrokenDatasetError(msg)
        rows.append(values)
    return rows


def _is_box(values: Sequence[float]) -> bool:
    if len(values) != 5 and not (len(values) >= 7 and len(values) % 2):
        return False
    # Pixels instead of fractions are another format, and would give boxes far outside the image.
    inside = all(-_SLACK <= value <= 1 + _SLACK for value in values[1:])
    return inside and 0 <= values[0] < _MOST_CLASSES and values[0] == int(values[0])


def _corners(values: Sequence[float]) -> tuple[float, float, float, float]:
    if len(values) > 4:
        xs, ys = values[::2], values[1::2]
        return min(xs), min(ys), max(xs), max(ys)
    x, y, width, height = values
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2
