"""Pascal VOC's XML: JPEGImages/a.jpg with Annotations/a.xml, and lists of splits in ImageSets/Main."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.units import counted
from colabstage.layouts.boxes import BoxColumn, Placed, Record, boxes_state, side_of, without_boxes_note
from colabstage.layouts.columns import show
from colabstage.layouts.evidence import left_out_notes
from colabstage.layouts.table import BrokenDatasetError
from colabstage.layouts.words import IMAGES, SPLITS, folder_of, normal, split_of_path, stem_of
from colabstage.layouts.xml import parse_xml

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from xml.etree.ElementTree import Element

    from colabstage.layouts.evidence import Evidence
    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntry

_ANNOTATIONS, _LISTS = "Annotations", "ImageSets/Main"
# The poses in the order of their numbers; the first is for a missing or unknown one.
POSES = ("Unspecified", "Frontal", "Rear", "Left", "Right")
_COLUMNS = (BoxColumn("difficult", np.uint8), BoxColumn("truncated", np.uint8), BoxColumn("pose", np.int64))
_EDGES = ("xmin", "ymin", "xmax", "ymax")
_OF_OBJECT = ("name", "difficult", "truncated", "pose", *(f"bndbox/{edge}" for edge in _EDGES))
# If several lists name an image, the first counts; trainval only matters without lists of its parts.
_LIST_ORDER = tuple(dict.fromkeys(("train", "val", "test", "trainval", *SPLITS)))
# Not CVAT's <annotations>, which one of its files may have beside an image of its name.
_IS_VOC = re.compile(rb"<annotation[\s>]")
_FLAGS = {"": 0, "unspecified": 0, "unknown": 0, "false": 0, "no": 0, "true": 1, "yes": 1}
_SNIFFED = 4
# Folders that only describe their content, in any spelling: images/train/a.jpg belongs to annotations/train/a.xml.
_ROLES = frozenset(
    ("annotations", "annotation", "annots", "annot", "xmls", "xml", "labels", "label", "images", "image", "imgs", "img",
     "jpegimages", "photos", "pictures")
)  # fmt: skip


def voc_state(source: Source) -> Evidence:
    """Read images with one XML file of Pascal VOC's form each, in `Annotations` or beside it.

    VOC counts pixels from 1 and its last one is part of the box; here boxes are x0 = xmin - 1, y0 = ymin - 1,
    x1 = xmax, y1 = ymax, so that x1 - x0 is the width. Columns: difficult, truncated (0 or 1), pose (number of
    `POSES`). Splits come from ImageSets/Main, otherwise from folders; with lists, unlisted images are left out.
    """
    annotations = source.ending_in((".xml",))
    images = source.ending_in(IMAGES if annotations else ())
    # Masks are in SegmentationClass and SegmentationObject by the same stems.
    images = images.where(lambda name: not folder_of(name).startswith("Segmentation"))
    files_of = _AnnotationFiles(annotations)
    labels = files_of.of_images([image.name for image in images])
    # Other tools also write XML, so a few files are checked before all are parsed.
    some = list(labels.values())[:_SNIFFED]
    if not any(source.parse(some, lambda _, content: _IS_VOC.search(content) is not None).values()):
        msg = (
            f"'{source.label}' has no XML file of Pascal VOC's form: neither in a folder such as {_ANNOTATIONS}, by "
            "the name of its image, nor beside it."
        )
        raise LayoutError(msg)
    used, lists = _read_lists(source)
    if lists:
        chosen = [image for image in images if _key_of(image.name) in lists]
    else:
        # Images without a file count only in folders where others have one.
        folders = {posixpath.dirname(name) for name in labels}
        chosen = [image for image in images if posixpath.dirname(image.name) in folders]
    if not chosen:
        msg = f"The lists in {_LISTS} of '{source.label}' name none of its images."
        raise BrokenDatasetError(msg)
    files = [labels[image.name] for image in chosen if image.name in labels]
    parsed = source.parse(files, lambda file, content: parse_voc(file.name, content))
    # The files have only class names; sorted, so that all machines number them alike.
    classes = sorted({name for each in parsed.values() for name, _ in each.shapes})
    placed = [
        Placed(
            image,
            parsed[labels[image.name].name] if image.name in labels else Record("", ()),
            lists[_key_of(image.name)] if lists else split_of_path(image.name),
        )
        for image in chosen
    ]
    notes = without_boxes_note(len(chosen) - len(files), "XML file")
    # Files that were numbered again keep the old name inside, so their own names count.
    bases = {image.name: normal(posixpath.basename(image.name)) for image in chosen}
    there = set(bases.values())
    others = [file.name for file, record, _ in placed if record.image in there - {bases[file.name]}]
    if others:
        notes.append(
            f"{counted(len(others), 'XML files', 'have')} another image of the dataset as filename (first that of "
            f"'{others[0]}'): the file of an image is the one of its name."
        )
    # With lists, unlisted images were left out on purpose; a note still counts them.
    unlisted = sum(image.name in labels for image in images) - len(files)
    notes += left_out_notes((unlisted, "images", f"with boxes that no list in {_LISTS} names"))
    numbers = {name: number for number, name in enumerate(classes)}
    read = [*(file.name for file in files), *used]
    return boxes_state(source, "Pascal VOC's files", placed, numbers, columns=_COLUMNS, notes=notes, used=read)


def _key_of(image: str) -> tuple[str, str]:
    """Return the dataset's folder and the stem of an image in JPEGImages."""
    folder, base = posixpath.split(normal(image))
    return posixpath.dirname(folder), posixpath.splitext(base)[0]


class _AnnotationFiles:
    """The XML files of a source, found by their images."""

    def __init__(self, entries: Iterable[FileEntry]) -> None:
        self._by_path = {posixpath.splitext(normal(entry.name))[0]: entry for entry in entries}
        # By paths without descriptive folders. Two files with the same such path are ambiguous, so neither counts.
        self._by_role: dict[tuple[str, ...], FileEntry] = {}
        shared: set[tuple[str, ...]] = set()
        for entry in entries:
            place = _without_roles(entry.name)
            if self._by_role.setdefault(place, entry) is not entry:
                shared.add(place)
        for place in shared:
            del self._by_role[place]

    def of_images(self, images: Sequence[str]) -> dict[str, FileEntry]:
        """Return the files of images that have one: otherwise the nearest file above that is of one image alone."""
        found = {image: file for image in images if (file := self._of_image(image)) is not None}
        taken = {file.name for file in found.values()}
        above: dict[str, list[tuple[str, FileEntry]]] = {}
        for image in images:
            file = None if image in found else self._above(image)
            if file is not None and file.name not in taken:
                above.setdefault(file.name, []).append((image, file))
        # Two images of one name in two folders: nothing says whose file it is.
        return found | dict(pairs[0] for pairs in above.values() if len(pairs) == 1)

    def _above(self, image: str) -> FileEntry | None:
        """Return the file of an image's name for one of the folders above its own: crazing/1.jpg, annotations/1.xml."""
        *folders, stem = _without_roles(image)
        places = ((*folders[:depth], stem) for depth in reversed(range(len(folders))))
        return next((self._by_role[place] for place in places if place in self._by_role), None)

    def _of_image(self, image: str) -> FileEntry | None:
        """Return the file in `Annotations`, otherwise beside the image, otherwise in folders with the same remaining
        names."""
        root, stem = _key_of(image)
        found = self._by_path.get(posixpath.join(root, _ANNOTATIONS, stem))
        found = found or self._by_path.get(posixpath.splitext(normal(image))[0])
        return found or self._by_role.get(_without_roles(image))


def _without_roles(name: str) -> tuple[str, ...]:
    *folders, base = normal(name).split("/")
    return (*(folder for folder in folders if folder.lower() not in _ROLES), posixpath.splitext(base)[0])


def _read_lists(source: Source) -> tuple[list[str], dict[tuple[str, str], str]]:
    """Return the lists, and the split of every listed image, by the dataset's folder and the image's stem."""
    texts = source.ending_in((".txt",)).where(
        lambda name: f"/{posixpath.dirname(name)}".endswith(f"/{_LISTS}") and stem_of(name).lower() in _LIST_ORDER
    )
    order = sorted(texts, key=lambda entry: (_LIST_ORDER.index(stem_of(entry.name).lower()), entry.name))
    found: dict[tuple[str, str], str] = {}
    for name, text in source.texts(order).items():
        root = normal(posixpath.dirname(name).removesuffix(_LISTS).rstrip("/"))
        split = SPLITS.get(stem_of(name).lower(), "train")
        for listed in (line.split()[0] for line in text.splitlines() if line.strip()):
            # An image in several lists belongs to the first: trainval repeats train and val.
            found.setdefault((root, normal(listed)), split)
    return [entry.name for entry in order], found


def parse_voc(name: str, content: bytes) -> Record:
    """Read one file."""
    shapes: list[tuple[str, list[float]]] = []
    size, image = (0, 0), ""

    def take(element: Element) -> None:
        nonlocal size, image
        # Parts of an object (a person's head) are nested objects, not boxes of the image.
        if element.tag == "object":
            shapes.append(_object(element))
        elif element.tag == "size":
            size = _size(element)
        elif element.tag == "filename":
            image = normal(posixpath.basename((element.text or "").strip().replace("\\", "/")))

    parse_xml(name, content, "annotation", take)
    return Record(image, shapes, size)


def _object(element: Element) -> tuple[str, list[float]]:
    stated = {one: text.strip() for one in _OF_OBJECT if (text := element.findtext(one)) is not None}
    if not stated.get("name"):
        msg = "an object has no name"
        raise ValueError(msg)
    try:
        x0, y0, x1, y1 = (float(stated[f"bndbox/{edge}"]) for edge in _EDGES)
        flags = [_flag(stated.get(flag, "")) for flag in ("difficult", "truncated")]
    except (KeyError, ValueError) as error:
        msg = f"an object has no readable bndbox or flags ({show(error)})"
        raise ValueError(msg) from error
    if not np.isfinite([x0, y0, x1, y1]).all():
        msg = "an edge of an object's bndbox is not a number"
        raise ValueError(msg)
    pose = stated.get("pose", "").capitalize()
    number = POSES.index(pose) if pose in POSES else 0
    # Tools that count from 0 write 0 here, and also mean the first pixel.
    return stated["name"], [max(x0 - 1, 0.0), max(y0 - 1, 0.0), x1, y1, *flags, number]


def _size(element: Element) -> tuple[int, int]:
    texts = [(element.findtext(side) or "").strip() for side in ("height", "width")]
    try:
        for text in texts:
            float(text or 0)
    except ValueError as error:
        msg = f"the image's size is not a number of pixels ({show(' x '.join(texts))})"
        raise ValueError(msg) from error
    # Some tools write zeros for a size that they do not know.
    height, width = map(side_of, texts)
    return (height, width) if height and width else (0, 0)


def _flag(text: str) -> int:
    number = _FLAGS.get(text.lower())
    if number is None:
        number = int(text[:20])
    if not 0 <= number <= 255:
        msg = f"a flag of {show(text)}"
        raise ValueError(msg)
    return number
