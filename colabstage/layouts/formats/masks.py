"""Masks of images: files of the same stem in folders of their own or with a suffix, and names of their values."""

from __future__ import annotations

import functools
import posixpath
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.units import listed
from colabstage.layouts.columns import Column, show
from colabstage.layouts.evidence import Evidence, left_out_notes, near, require_files
from colabstage.layouts.folders import bare_stem
from colabstage.layouts.lists import lists_state
from colabstage.layouts.mask_values import find_masks
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import BrokenDatasetError, Images, Masks, SampleTable, known_splits
from colabstage.layouts.words import (
    IMAGES,
    TABLES,
    holds_images,
    is_role,
    is_split,
    normal,
    shared_folders,
    split_of_path,
    stem_of,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from colabstage.layouts.evidence import Found
    from colabstage.layouts.reading import Source
    from colabstage.trees.listing import FileEntries, FileEntry

NAME = "pairs"
# Folders of masks and of the images that they belong to, by the words of their names, behind any others.
_MASK_FOLDER = re.compile(
    "(?:(.+?)_)??(?:masks?|labels?|annotations?|gt(?:_fine)?|ground_?truth|segmentations?|segmentation_?(?:class|object)"
    "|targets|trimaps|stuffthingmaps|instances|panoptic)|(.*?)_?annot"
)
_IMAGE_FOLDER = re.compile(
    "(?:(.+?)_)??(?:images?|imgs?|jpeg_?images|photos|pictures|inputs?|left_?img_8_bit|original)"
)
# What is behind the stem of a mask whose image has none, in any case. Without a joint only behind a number.
_MASK_WORDS = (
    "gtFine_labelTrainIds", "gtFine_labelIds", "labelTrainIds", "segmentation", "labelIds", "labels", "masks", "label",
    "mask", "annot", "seg", "gt",
)  # fmt: skip
_MASK_SUFFIX = re.compile(rf"(?<=.)(?:(?i:(?:[ ._-]|(?<=\d)(?=mask))(?:{'|'.join(_MASK_WORDS)}))|_[LP])$")
_IMAGE_SUFFIX = re.compile(r"(?<=.)(?i:[ ._-](?:leftImg8bit|image|img|sat))$")
_MAY_END_SO = re.compile(rf"(?i:{'|'.join((*_MASK_WORDS, '_L', '_P'))})\.[^./]*$")
_LAST_LETTERS = frozenset("".join(word[-1] + word[-1].upper() for word in (*_MASK_WORDS, "p")))
_AGAIN = re.compile(r"[ _.-]?\(?\d+\)?$")
_OBJECTS = frozenset({"instances", "instance", "panoptic", "segmentationobject", "segmentation_object"})
# A line of CVAT's labelmap.txt: label:color_rgb:parts:actions. Its first line, a comment, has no numbers.
_PAINTED = re.compile(
    r"^[ \t]*([^#:\n][^:\n]*):[ \t]*(\d+)[ \t]*,[ \t]*(\d+)[ \t]*,[ \t]*(\d+)[ \t]*(?::.*)?$", re.MULTILINE
)
_SEGMENTATION_LISTS = "ImageSets/Segmentation"


class _PairKey(NamedTuple):
    """The common part of the paths of an image and its mask."""

    folders: tuple[str, ...]
    """Folders other than those of images or masks; empty if stems alone decide."""
    stem: str
    """The base name without its extension and suffix."""


class _Sides(NamedTuple):
    """The files that may make pairs, each with its key."""

    images: dict[FileEntry, _PairKey]
    masks: dict[FileEntry, _PairKey]

    def by_stem(self, *, bare: bool) -> _Sides | None:
        """Return the same without folders, if stems distinguish all images and all masks.

        `bare`: without the words of their folders too.
        """

        def keys(side: dict[FileEntry, _PairKey]) -> dict[FileEntry, _PairKey]:
            if not bare:
                return {one: _PairKey((), key.stem) for one, key in side.items()}
            return {one: _PairKey((), bare_stem(key.stem, posixpath.dirname(one.name))) for one, key in side.items()}

        images, masks = keys(self.images), keys(self.masks)
        return _Sides(images, masks) if all(len(set(one.values())) == len(one) for one in (images, masks)) else None


class MaskClasses(NamedTuple):
    """What the files beside masks call their values."""

    names: tuple[str, ...] = ()
    colors: tuple[tuple[int, int, int], ...] | None = None


def masks_state(
    source: Source, tables: Mapping[str, Sequence[Column]], *, x: str | None = None, y: str | None = None
) -> Found:
    """Read images that have a mask of the same stem each.

    Masks are in a folder of their own (masks, labels, annotations, train_labels, …), or have a suffix (_mask, _L, …)
    beside their images. A `class_dict.csv` with the columns name, r, g, b, or CVAT's `labelmap.txt`, says which colour
    is which class; without one, masks hold class indices, which a `codes.txt` or Roboflow's `_classes.csv` names.
    Folders of splits are recognised, and lists of them; images of a split without any mask are left out. Samples come
    sorted by the images' names.

    `tables`: the columns of tables whose name has the word class. `x`, `y`: the folder of the images, and of the masks,
    or the end of their names, if they are not recognised.
    """
    sides = _sides(source, x, y)
    pairs = _match(sides)
    for bare in (False, True):
        if isinstance(pairs, list) and 2 * len(pairs) < len(sides.images) and (not bare or y is not None):
            by_stem = sides.by_stem(bare=bare)
            pairs = _match(by_stem) if by_stem is not None else pairs
    if isinstance(pairs, str):
        return near(pairs)
    # Competitions do not publish the masks of test images.
    splits = {split_of_path(image.name) for image, _ in pairs}
    expected = [image for image in sides.images if pairs and split_of_path(image.name) in splits]
    if 2 * len(pairs) < len(expected) or not pairs:
        paired = {image.name for image, _ in pairs}
        first = next((image.name for image in sides.images if image.name not in paired), "")
        msg = (
            f"Of {len(sides.images):,} images in '{source.label}' {len(pairs):,} have a mask of the same name (first "
            f"without: '{first}'); expected at least half."
        )
        raise LayoutError(msg)
    again = "" if y is not None else _second_masks(sides, pairs) or _further_files(sides, pairs)
    if again:
        raise BrokenDatasetError(again)
    used, classes = _classes(source, tables)
    masks = TreeFiles(source.tree, [mask for _, mask in pairs])
    targets = Masks(masks, classes.colors) if classes.colors else find_masks(masks, spread=source.tree.kind == "folder")
    objects = sum(map(_is_of_objects, sides.masks)) - sum(_is_of_objects(mask) for _, mask in pairs)
    table = SampleTable(
        layout=NAME,
        keys=tuple(image.name for image, _ in pairs),
        inputs=Images(TreeFiles(source.tree, [image for image, _ in pairs])),
        targets=targets,
        # Some images are in no split's folder, so the folders are something else.
        splits=known_splits([split_of_path(image.name) for image, _ in pairs]),
        classes=targets.classes or classes.names,
        notes=tuple(
            left_out_notes(
                (len(sides.images) - len(pairs), "images", "without a mask"),
                (objects, "masks", "that number single objects"),
                (len(sides.masks) - len(pairs) - objects, "masks", "without an image"),
            )
        ),
    )
    found = Evidence(table, "the masks", frozenset({*(mask.name for _, mask in pairs), *used}))
    return lists_state(source, found, within=_SEGMENTATION_LISTS)[0] if table.splits is None else found


def _called(name: str, wanted: str) -> bool:
    """Tell whether a file is in a folder, or its stem ends, as somebody wrote."""
    path, stem = wanted.strip("/"), stem_of(name)
    return f"/{path}/" in f"/{posixpath.dirname(name)}/" or (stem.endswith(wanted) and stem != wanted)


def _sides(source: Source, x: str | None, y: str | None) -> _Sides:
    """Return the images and masks of a source."""
    files = require_files(source.ending_in(IMAGES), source, "images")
    folders, of_files = files.folders
    # A folder shared by all files says nothing about one of them: Dataset_with_GT.
    depth = len(shared_folders(f"{folder}/" for folder in folders))
    # One decision for each of the few folders: whether all files in it are masks, or none by its ending.
    below = [folder.split("/")[depth:] for folder in folders]
    of_masks = np.array([any(map(_holds_masks, parts)) for parts in below], np.bool_)
    of_images = np.array([any(map(holds_images, parts)) for parts in below], np.bool_)
    are_masks = of_masks[of_files]
    # Few or none of a million names have such an ending, and only those are examined.
    may_end = np.fromiter(map(_may_end_so, files.names), np.bool_, len(files))
    for number in np.flatnonzero(may_end & ~of_images[of_files]).tolist():
        are_masks[number] |= _MASK_SUFFIX.search(stem_of(files.names[number])) is not None
    masks = files.take(np.flatnonzero(are_masks))
    if y is not None:
        masks = files.where(lambda name: _called(name, y) and not (x is not None and _called(name, x)))
        chosen = set(masks.names)
        images = (files if x is not None else files.take(np.flatnonzero(~are_masks))).where(
            lambda name: name not in chosen
        )
    else:
        images = files.take(np.flatnonzero(~are_masks)) if masks else masks
    if x is not None:
        images = images.where(lambda name: _called(name, x))
    if not masks or not images:
        what = "masks" if y is None else f"masks in a folder '{y}', or whose names end so,"
        which = "" if x is None else f" in '{x}'"
        there = f" Its folders are {listed([folder for folder in folders if folder])}." if y is not None else ""
        msg = (
            f"'{source.label}' has no {what} beside its images{which}: neither a folder called masks, labels, "
            f"annotations or the like, nor files that end in _mask.{there}"
        )
        raise LayoutError(msg)
    return _Sides(_keys(images, depth, _IMAGE_SUFFIX, x), _keys(masks, depth, _MASK_SUFFIX, y))


def _may_end_so(name: str) -> bool:
    """Tell whether a name may end as a mask's does; most of a million end in a digit."""
    last = name[name.rfind(".") - 1 :][:1]
    return last in _LAST_LETTERS and _MAY_END_SO.search(name) is not None


def _keys(files: FileEntries, depth: int, suffix: re.Pattern[str], called: str | None) -> dict[FileEntry, _PairKey]:
    own = [] if called is None else called.strip("/").split("/")

    def key(name: str) -> _PairKey:
        *folders, base = normal(name).split("/")[depth:]
        stem = posixpath.splitext(base)[0]
        if called is not None and own[-1] not in folders and stem.endswith(called) and stem != called:
            stem = stem.removesuffix(called).rstrip(" ._-")
        rest = (_without_role(folder) for folder in folders if folder not in own)
        return _PairKey(tuple(folder for folder in rest if folder), suffix.sub("", stem))

    return {file: key(file.name) for file in files}


@functools.lru_cache(maxsize=4096)
def _without_role(folder: str) -> str:
    """Return a folder's name without the words for images or masks: train from train_labels."""
    words = "_".join(words_of(folder))
    found = _MASK_FOLDER.fullmatch(words) or _IMAGE_FOLDER.fullmatch(words)
    return folder.lower() if found is None else "".join(filter(None, found.groups()))


@functools.lru_cache(maxsize=4096)
def _holds_masks(folder: str) -> bool:
    return _MASK_FOLDER.fullmatch("_".join(words_of(folder))) is not None


def _match(sides: _Sides) -> list[tuple[FileEntry, FileEntry]] | str:
    """Return each image with its mask; or, as text, that an image has several masks."""
    by_key: dict[_PairKey, FileEntry] = {}
    images = set(sides.images.values())
    for mask, key in sides.masks.items():
        other = by_key.setdefault(key, mask)
        if other is not mask and _is_of_objects(other) != _is_of_objects(mask):
            by_key[key] = mask if _is_of_objects(other) else other
        elif other is not mask and key in images:
            return _several(other.name, mask.name)
    return [(image, by_key[key]) for image, key in sides.images.items() if key in by_key]


def _several(one: str, other: str) -> str:
    which = posixpath.basename(posixpath.dirname(other)) or stem_of(other)
    first = posixpath.basename(posixpath.dirname(one))
    return (
        f"'{one}' and '{other}' are masks of the same image; expected one for each. Say which folder or suffix counts: "
        f"layout=image_masks('{first if first and first != which else 'NAME'}'), from colabstage.options; or join them."
    )


def _second_masks(sides: _Sides, pairs: list[tuple[FileEntry, FileEntry]]) -> str:
    """Find a further mask of an image that has one already: scan_mask and scan_mask_1."""
    mask_of = {sides.images[image]: mask for image, mask in pairs}
    rest = {one: key for one, key in sides.images.items() if key not in mask_of}
    rest |= {one: key for one, key in sides.masks.items() if key not in mask_of}
    for file, key in rest.items():
        without = _AGAIN.sub("", key.stem)
        bare = _MASK_SUFFIX.sub("", without)
        is_mask = file in sides.masks or bare != without
        first = mask_of.get(_PairKey(key.folders, bare)) if without != key.stem and is_mask else None
        if first is not None:
            return _several(first.name, file.name)
    return ""


def _further_files(sides: _Sides, pairs: list[tuple[FileEntry, FileEntry]]) -> str:
    """Find a folder of further images that are called after the samples: DRIVE's 1st_manual beside its mask."""
    own = {posixpath.dirname(image.name) for image, _ in pairs}
    tokens = {_first_word(image.name) for image, _ in pairs}
    counts: Counter[str] = Counter()
    firsts: dict[str, str] = {}
    for image in sides.images:
        folder = posixpath.dirname(image.name)
        if folder not in own and not any(map(is_split, folder.split("/")[-1:])) and _first_word(image.name) in tokens:
            counts[folder] += 1
            firsts.setdefault(folder, image.name)
    parents = {posixpath.dirname(folder) for folder in own}
    for folder, count in counts.items():
        if (
            2 * count >= len(tokens)
            and posixpath.dirname(folder) in parents
            and not is_role(posixpath.basename(folder))
        ):
            which = posixpath.basename(folder)
            return (
                f"'{firsts[folder]}' is called after a sample as its mask '{pairs[0][1].name}' is, and may be another "
                f"mask. Say which counts: layout=image_masks('{which}') or "
                f"layout=image_masks('{posixpath.basename(posixpath.dirname(pairs[0][1].name))}'), from "
                "colabstage.options."
            )
    return ""


def _first_word(name: str) -> str:
    return re.split(r"[ ._-]+", stem_of(name))[0]


def _is_of_objects(mask: FileEntry) -> bool:
    """Tell whether a mask numbers single objects, which Mapillary and Pascal VOC have beside masks of classes."""
    return not _OBJECTS.isdisjoint(mask.name.lower().split("/")[:-1])


def _classes(source: Source, tables: Mapping[str, Sequence[Column]]) -> tuple[list[str], MaskClasses]:
    """Return the files that tools leave beside masks, and the class names and colours in them."""
    found = {name: made for name, columns in tables.items() if (made := _of_table(name, columns)) is not None}
    texts = source.ending_in((".txt",))
    # CVAT's, beside masks in Pascal VOC's folders; fast.ai's list of names, in the order of their numbers.
    for base in ("labelmap.txt", "codes.txt"):
        if found:
            break
        named = texts.where(lambda name: posixpath.basename(name).lower() == base)  # noqa: B023
        for name, text in source.texts(named).items():
            painted = [match.groups() for match in _PAINTED.finditer(text)] if base == "labelmap.txt" else []
            if painted:
                names, *parts = zip(*painted, strict=True)
                colors = tuple((int(r), int(g), int(b)) for r, g, b in zip(*parts, strict=True))
                found[name] = MaskClasses(tuple(names), colors)
            elif base == "codes.txt":
                found[name] = MaskClasses(tuple(filter(None, map(str.strip, text.splitlines()))))
    if len(set(found.values())) > 1:
        first = next(iter(found))
        other = next(name for name, made in found.items() if made != found[first])
        msg = (
            f"'{first}' and '{other}' name the classes of masks differently ({listed(list(found[first].names), 3)}; "
            f"{listed(list(found[other].names), 3)}). Stage their folders one by one, or write one file for all."
        )
        raise BrokenDatasetError(msg)
    return list(found), next(iter(found.values()), MaskClasses())


def _of_table(name: str, columns: Sequence[Column]) -> MaskClasses | None:
    by_name = {column.name.lower(): column.cells for column in columns}
    try:
        if {"name", "r", "g", "b"} <= by_name.keys():
            colors = tuple(zip(*([int(cell) for cell in by_name[part]] for part in "rgb"), strict=True))
            return MaskClasses(tuple(by_name["name"]), tuple((r, g, b) for r, g, b in colors))
        # Roboflow's, which numbers them.
        if {"pixel value", "class"} <= by_name.keys():
            numbers = [int(cell) for cell in by_name["pixel value"]]
            return MaskClasses(tuple(by_name["class"])) if numbers == list(range(len(numbers))) else None
    except ValueError as error:
        msg = f"'{name}' has a colour that is not a whole number: {show(error)}."
        raise LayoutError(msg) from error
    return None


def class_tables(source: Source) -> FileEntries:
    """Return the tables that may name the classes of masks; any other with columns r, g, b may be about the colours of
    images."""
    return source.ending_in(TABLES).where(lambda name: "class" in posixpath.basename(name).lower())
