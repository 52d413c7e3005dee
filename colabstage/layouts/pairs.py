"""Images with a mask each, paired by their names, and what the values of masks mean by a look at a few of them."""

from __future__ import annotations

import functools
import posixpath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.images.masks import count_levels, is_lossy
from colabstage.images.options import VOID
from colabstage.layouts.columns import TABLE_EXTENSIONS, read_rows
from colabstage.layouts.names import IMAGE_EXTENSIONS, SPLIT_NAMES
from colabstage.layouts.reading import read_each
from colabstage.layouts.table import BrokenDatasetError, Images, Masks, SampleTable, TreeFiles
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.layouts.table import Content, SampleSource
    from colabstage.trees.tree import FileEntry, Tree

FOREGROUND_CLASSES = ("background", "foreground")
# Enough to meet each class that is common, and few enough not to be noticed on a mounted Drive.
_LOOKED_AT = 16
# Of class indices, even a few masks have this part of all up to their highest; painted greys are far apart.
_DENSE = 1 / 8
_FEW_LEVELS = 64
# Beside pixels of 255, which of class indices is no class, those of a smoothed edge.
_NEARLY_WHITE = 200
# As many shades as show that they are no class indices.
_SHOWN = 8
_REMEDY = (
    "Say what they mean by a class_dict.csv with the columns name, r, g, b beside the images, or write masks whose "
    "pixels are 0 and 255, or 0, 1, 2, …"
)


def find_masks(source: SampleSource, *, decoded: bool = False, spread: bool = True) -> Masks:
    """Make masks of a source, after a look at a few.

    Args:
        source: mask files, or integer arrays `(H, W)`.
        decoded: whether they are arrays.
        spread: whether to look at some among all, or at the first ones of the medium.

    Raises:
        BrokenDatasetError: their values are no class indices: shades of grey, or a lossy file's.
    """
    counts, example = _look(source, spread=spread)
    meaning = meaning_of(counts)
    if meaning == "greys":
        levels = np.flatnonzero(counts)
        shown = ", ".join(map(str, levels[:_SHOWN])) + (", …" if len(levels) > _SHOWN else "")
        msg = (
            f"Masks such as '{example}' have {len(levels)} shades of grey ({shown}), which are no class indices: edges "
            f"were smoothed, or classes painted. {_REMEDY}"
        )
        raise BrokenDatasetError(msg)
    return Masks(source, decoded=decoded, foreground=meaning == "foreground")


def meaning_of(counts: NDArray[np.int64]) -> str:
    """Return "indices", "foreground" or "greys": what pixels mean of which `counts[v]` have the value v. Pure.

    >>> meaning_of(np.bincount([0, 0, 0, 255], minlength=256))
    'foreground'
    """
    levels = np.flatnonzero(counts)
    inner = levels[(levels > 0) & (levels < VOID)]
    if not len(inner):
        # 255 without any class would be a set of masks of which nothing can be learnt.
        return "foreground" if counts[VOID] else "indices"
    highest = int(inner[-1])
    if counts[VOID] and (counts[VOID] > counts[1:VOID].sum() or highest >= _NEARLY_WHITE):
        return "greys"
    return "greys" if highest >= _FEW_LEVELS and len(levels) < _DENSE * highest else "indices"


def _look(source: SampleSource, *, spread: bool) -> tuple[NDArray[np.int64], str]:
    count = min(_LOOKED_AT, len(source))
    # An archive or a Drive reads its first files at once; looking among all would mean seeking through it.
    chosen = np.linspace(0, len(source) - 1, count).astype(int) if spread else np.argsort(source.positions)[:count]
    example = source.name(int(chosen[0])) if count else ""

    def look(index: int, content: Content) -> NDArray[np.int64]:
        if isinstance(content, bytes) and is_lossy(content):
            msg = f"The mask '{source.name(index)}' is a JPEG, which has lost the exact values of its pixels. {_REMEDY}"
            raise BrokenDatasetError(msg)
        return count_levels(content)

    # What is broken is met again, and named, when it is packed.
    found = read_each(source, chosen.tolist(), look, readers=_LOOKED_AT, skip_broken=True)
    return sum(found, np.zeros(VOID + 1, np.int64)), example


NAME = "pairs"

_IMAGE_FOLDERS = ("images", "image", "imgs", "img", "jpegimages", "photos", "pictures", "leftimg8bit", "inputs")
_MASK_FOLDERS = (
    "masks", "mask", "labels", "label", "annotations", "annotation", "annot", "gt", "groundtruth", "ground_truth",
    "gtfine", "segmentation", "segmentations", "segmentationclass", "targets",
)  # fmt: skip
# What stands behind the stem of a mask whose image has none; the longest first.
_MASK_SUFFIXES = (
    "_gtFine_labelTrainIds", "_gtFine_labelIds", "_segmentation", "_labelIds", "_labels", "_masks", "_label", "_mask",
    "-mask", "_annot", "_seg", "_gt", "_L",
)  # fmt: skip
_IMAGE_SUFFIXES = ("_leftImg8bit", "_image", "_img", "_sat", "-image")
# Masks with a palette are at times GIFs, which no layout takes for images.
_MASK_EXTENSIONS = IMAGE_EXTENSIONS


class _Where(NamedTuple):
    """What a file is matched by."""

    folders: tuple[str, ...]
    """Folders that are neither the images' nor the masks' own."""
    stem: str
    """The bare name without its extension."""


def read_pairs(tree: Tree) -> SampleTable:
    """Make a table of a tree in which every image has a mask of the same stem.

    Masks lie in a folder of their own (masks, labels, annotations, train_labels, …), or have a suffix (_mask, _L, …)
    beside their images. A `class_dict.csv` with the columns name, r, g, b says which colour is which class; without
    one, masks hold class indices. Folders of splits are recognised. Samples come sorted by the images' names.

    Raises:
        EmptySourceError: there are no images.
        LayoutError: less than half of the images have a mask, or several.
        BrokenDatasetError: masks are JPEGs or shades of grey, which are no classes.
    """
    files = files_ending_in(tree.entries, _MASK_EXTENSIONS)
    if not files:
        msg = f"'{tree.label}' holds no images."
        raise EmptySourceError(msg)
    masks = files.where(_is_mask)
    images = files.ending_in(IMAGE_EXTENSIONS).where(lambda name: not _is_mask(name)) if masks else masks
    if not masks or not images:
        msg = (
            f"'{tree.label}' has no masks beside its images: neither a folder called masks, labels, annotations or the "
            "like, nor files that end in _mask."
        )
        raise LayoutError(msg)
    by_place: dict[_Where, FileEntry] = {}
    for mask in masks:
        place = _mask_place(mask.name)
        if place in by_place:
            msg = f"'{by_place[place].name}' and '{mask.name}' are masks of the same image; expected one for each."
            raise LayoutError(msg)
        by_place[place] = mask
    pairs = [(image, by_place[where]) for image in images if (where := _image_place(image.name)) in by_place]
    # Where few match, the names mean something else, and most images would be lost without a word.
    if 2 * len(pairs) < len(images):
        first = next((image.name for image in images if _image_place(image.name) not in by_place), "")
        msg = (
            f"Of {len(images):,} images in '{tree.label}' {len(pairs):,} have a mask of the same name (first without: "
            f"'{first}'); expected at least half."
        )
        raise LayoutError(msg)
    classes, colors = _class_colors(tree)
    source = TreeFiles(tree, [mask for _, mask in pairs])
    targets = Masks(source, colors) if colors else find_masks(source, spread=tree.kind == "folder")
    # The split that each image's folders name, where they all do.
    found = [
        next((SPLIT_NAMES[folder] for folder in _image_place(image.name).folders if folder in SPLIT_NAMES), None)
        for image, _ in pairs
    ]
    # Some images in no split's folder: then the folders are something else.
    named = [split for split in found if split is not None]
    return SampleTable(
        layout=NAME,
        keys=tuple(image.name for image, _ in pairs),
        inputs=Images(TreeFiles(tree, [image for image, _ in pairs])),
        targets=targets,
        splits=tuple(named) if len(named) == len(found) else None,
        classes=FOREGROUND_CLASSES if targets.foreground else classes,
        notes=tuple(
            f"{count:,} {kind} were left out."
            for count, kind in (
                (len(images) - len(pairs), "images that have no mask"),
                (len(masks) - len(pairs), "masks that have no image"),
            )
            if count
        ),
    )


def _is_mask(name: str) -> bool:
    folder, base = posixpath.split(name)
    if _is_mask_path(folder):
        return True
    stem = posixpath.splitext(base)[0]
    return (
        stem.endswith(_MASK_SUFFIXES)
        and _without_suffix(stem, _MASK_SUFFIXES) != stem
        and not any(folder in _IMAGE_FOLDERS for folder in folder.lower().split("/"))
    )


@functools.lru_cache(maxsize=1024)
def _is_mask_path(path: str) -> bool:
    return any(_mask_folder(folder) is not None for folder in path.lower().split("/"))


def _parts(name: str) -> tuple[list[str], str]:
    folder, base = posixpath.split(name)
    return folder.lower().split("/") if folder else [], posixpath.splitext(base)[0]


def _mask_folder(folder: str) -> str | None:
    """Return what is left of the name of a masks' folder: "" of "masks", "train" of "train_labels", `None` of
    others."""
    for name in _MASK_FOLDERS:
        if folder == name:
            return ""
        for joint in ("_", "-", ""):
            # Without a joint only the one that people write so: trainannot.
            if folder.endswith(joint + name) and (joint or name == "annot"):
                return folder.removesuffix(joint + name)
    return None


def _image_folder(folder: str) -> str:
    for name in _IMAGE_FOLDERS:
        if folder == name:
            return ""
        for joint in ("_", "-"):
            if folder.endswith(joint + name):
                return folder.removesuffix(joint + name)
    return folder


def _without_suffix(stem: str, suffixes: tuple[str, ...]) -> str:
    for suffix in suffixes:
        if stem.endswith(suffix) and len(stem) > len(suffix):
            return stem.removesuffix(suffix)
    return stem


def _image_place(name: str) -> _Where:
    folders, stem = _parts(name)
    kept = tuple(left for folder in folders if (left := _image_folder(folder)))
    return _Where(kept, _without_suffix(stem, _IMAGE_SUFFIXES))


def _mask_place(name: str) -> _Where:
    folders, stem = _parts(name)
    left = [mask if (mask := _mask_folder(folder)) is not None else _image_folder(folder) for folder in folders]
    return _Where(tuple(folder for folder in left if folder), _without_suffix(stem, _MASK_SUFFIXES))


def _class_colors(tree: Tree) -> tuple[tuple[str, ...], tuple[tuple[int, int, int], ...] | None]:
    """Return the names and colours of the classes, from a table with the columns name, r, g, b; nothing where there is
    none."""
    for entry in files_ending_in(tree.entries, TABLE_EXTENSIONS):
        # Any other table with columns r, g, b may be about the images' own colours.
        if "class" not in posixpath.basename(entry.name).lower():
            continue
        rows = read_rows(tree, entry)
        header = [cell.lower() for cell in rows[0]] if rows else []
        if set("rgb") <= set(header) and "name" in header:
            places = [header.index(name) for name in ("r", "g", "b")]
            try:
                colors = [tuple(int(row[place]) for place in places) for row in rows[1:]]
            except ValueError as error:
                msg = f"'{entry.name}' has a colour that is no whole number: {error}."
                raise LayoutError(msg) from error
            return tuple(row[header.index("name")] for row in rows[1:]), tuple((r, g, b) for r, g, b in colors)
    return (), None
