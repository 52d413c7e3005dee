"""Images outside class folders: their file names show whether each has a mask, a class or no label.

Images without labels are a dataset as well (faces for a GAN, photographs to classify), but only where nothing beside
them, and nothing in their names, may be their labels.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.units import left_out, listed
from colabstage.layouts.columns import TABLE_EXTENSIONS, read_rows
from colabstage.layouts.mask_values import find_masks
from colabstage.layouts.names import (
    IMAGE_EXTENSIONS,
    is_foreign_folder,
    is_image_folder,
    is_note,
    required,
    shared_folders,
    split_name,
    split_of_path,
    stem_of,
    words_of,
)
from colabstage.layouts.reading import read_texts
from colabstage.layouts.table import (
    Images,
    Masks,
    NearMissError,
    SampleTable,
    TreeFiles,
    class_indices,
    first_that_fits,
    known_splits,
    left_out_notes,
)
from colabstage.trees.listing import FileEntries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.trees.listing import FileEntry, Tree


PAIRS = "pairs"
FILE_NAMES = "file_names"
IMAGES = "images"

# What the last words of a folder's name are: of masks, or of the images that they belong to.
_MASK_ENDS = (
    ("masks",), ("mask",), ("labels",), ("label",), ("annotations",), ("annotation",), ("annot",), ("gt",),
    ("ground", "truth"), ("groundtruth",), ("gt", "fine"), ("segmentation",), ("segmentations",),
    ("segmentation", "class"), ("segmentationclass",), ("segmentation", "object"), ("segmentationobject",),
    ("targets",), ("trimaps",), ("stuffthingmaps",), ("instances",), ("panoptic",),
)  # fmt: skip
_IMAGE_ENDS = (
    ("images",), ("image",), ("imgs",), ("img",), ("jpegimages",), ("jpeg", "images"), ("photos",), ("pictures",),
    ("inputs",), ("input",), ("left", "img", "8", "bit"), ("leftimg", "8", "bit"), ("original",),
)  # fmt: skip
# What is behind the stem of a mask whose image has none, in any case. Without a joint only behind a number.
_MASK_WORDS = (
    "gtFine_labelTrainIds", "gtFine_labelIds", "labelTrainIds", "segmentation", "labelIds", "labels", "masks", "label",
    "mask", "annot", "seg", "gt",
)  # fmt: skip
_MASK_SUFFIX = re.compile(rf"(?<=.)(?:(?i:(?:[ ._-]|(?<=\d)(?=mask))(?:{'|'.join(_MASK_WORDS)}))|_[LP])$")
_IMAGE_SUFFIX = re.compile(r"(?<=.)(?i:[ ._-](?:leftImg8bit|image|img|sat))$")
_OBJECTS = frozenset({"instances", "instance", "panoptic", "segmentationobject", "segmentation_object"})
# A line of CVAT's labelmap.txt: label:color_rgb:parts:actions. Its first line, a comment, has no numbers.
_PAINTED = re.compile(
    r"^[ \t]*([^#:\n][^:\n]*):[ \t]*(\d+)[ \t]*,[ \t]*(\d+)[ \t]*,[ \t]*(\d+)[ \t]*(?::.*)?$", re.MULTILINE
)


class _PairKey(NamedTuple):
    """The common part of the paths of an image and its mask."""

    folders: tuple[str, ...]
    """Folders other than those of images or masks; empty if stems alone decide."""
    stem: str
    """The base name without its extension and suffix."""


class _Sides(NamedTuple):
    """The files of a tree that may make pairs, each with its place."""

    images: dict[FileEntry, _PairKey]
    """The files that are not masks."""
    masks: dict[FileEntry, _PairKey]
    """The files in mask folders, or with a mask's suffix."""

    def by_stem(self) -> _Sides | None:
        """Return the same without folders, if stems distinguish all images and all masks."""
        images, masks = (
            {one: _PairKey((), place.stem) for one, place in side.items()} for side in (self.images, self.masks)
        )
        return _Sides(images, masks) if all(len(set(one.values())) == len(one) for one in (images, masks)) else None


def read_pairs(tree: Tree, *, masks: str | None = None) -> SampleTable:
    """Make a table of a tree in which every image has a mask of the same stem.

    Masks are in a folder of their own (masks, labels, annotations, train_labels, …), or have a suffix (_mask, _L, …)
    beside their images. A `class_dict.csv` with the columns name, r, g, b, or CVAT's `labelmap.txt`, says which colour
    is which class; without one, masks hold class indices, which a `codes.txt` or Roboflow's `_classes.csv` names.
    Folders of splits are recognised; images of a split without any mask are left out. Samples come sorted by the
    images' names.

    Args:
        tree: the dataset's files.
        masks: the folder or suffix of the masks, if there are several kinds.

    Raises:
        EmptySourceError: there are no images.
        LayoutError: less than half of the images have a mask, or some have several.
        BrokenDatasetError: masks are JPEGs or shades of grey, which are not classes.
    """
    sides = _sides(tree, masks)
    pairs = _match_sides(sides)
    if 2 * len(pairs) < len(sides.images):
        by_stem = sides.by_stem()
        pairs = _match_sides(by_stem) if by_stem is not None else pairs
    # Competitions do not publish the masks of test images.
    splits = {split_of_path(image.name) for image, _ in pairs}
    expected = [image for image in sides.images if pairs and split_of_path(image.name) in splits]
    if 2 * len(pairs) < len(expected) or not pairs:
        paired = {image.name for image, _ in pairs}
        first = next((image.name for image in sides.images if image.name not in paired), "")
        msg = (
            f"Of {len(sides.images):,} images in '{tree.label}' {len(pairs):,} have a mask of the same name (first "
            f"without: '{first}'); expected at least half."
        )
        raise LayoutError(msg)
    classes, colors = _read_classes(tree)
    source = TreeFiles(tree, [mask for _, mask in pairs])
    targets = Masks(source, colors) if colors else find_masks(source, spread=tree.kind == "folder")
    found = [split_of_path(image.name) for image, _ in pairs]
    objects = sum(map(_is_of_objects, sides.masks)) - sum(_is_of_objects(mask) for _, mask in pairs)
    return SampleTable(
        layout=PAIRS,
        keys=tuple(image.name for image, _ in pairs),
        inputs=Images(TreeFiles(tree, [image for image, _ in pairs])),
        targets=targets,
        # Some images are in no split's folder, so the folders are something else.
        splits=known_splits(found),
        classes=targets.classes or classes,
        notes=tuple(
            left_out_notes(
                (len(sides.images) - len(pairs), "images", "without a mask"),
                (objects, "masks", "that number single objects"),
                (len(sides.masks) - len(pairs) - objects, "masks", "without an image"),
            )
        ),
    )


def _sides(tree: Tree, wanted: str | None) -> _Sides:
    """Return the images and masks of a tree.

    Raises:
        EmptySourceError, LayoutError: there are no images, or no masks.
    """
    files = required(tree.entries.ending_in(IMAGE_EXTENSIONS), tree, "images")
    folders, of_files = files.folders
    # A folder shared by all files says nothing about one of them: Dataset_with_GT.
    depth = len(shared_folders(f"{folder}/" for folder in folders))
    # One decision for each of the few folders: whether all files in it are masks, or none by its ending.
    below = [folder.split("/")[depth:] for folder in folders]
    of_masks = np.array([any(_rest(one, _MASK_ENDS) is not None for one in parts) for parts in below], np.bool_)
    of_images = np.array([any(map(is_image_folder, parts)) for parts in below], np.bool_)
    are_masks = of_masks[of_files]
    # Few or none of a million names have such an ending, and only those are examined.
    ends = (*_MASK_WORDS, "_L", "_P")
    together = "\n".join(files.names).lower()
    has_some = any(f"{end}.".lower() in together for end in ends)
    for number in np.flatnonzero(~of_images[of_files]).tolist() if has_some else ():
        are_masks[number] |= _MASK_SUFFIX.search(stem_of(files.names[number])) is not None
    masks = files.take(np.flatnonzero(are_masks))
    images = files.take(np.flatnonzero(~are_masks)).ending_in(IMAGE_EXTENSIONS) if masks else masks
    if wanted is not None:
        masks = masks.where(lambda name: wanted in name.split("/") or posixpath.splitext(name)[0].endswith(wanted))
    if not masks or not images:
        what = "masks" if wanted is None else f"masks in a folder '{wanted}', or whose names end so,"
        msg = (
            f"'{tree.label}' has no {what} beside its images: neither a folder called masks, labels, annotations or "
            "the like, nor files that end in _mask."
        )
        raise LayoutError(msg)
    return _Sides(
        {image: _pair_key(image.name.split("/")[depth:], _IMAGE_SUFFIX) for image in images},
        {mask: _pair_key(mask.name.split("/")[depth:], _MASK_SUFFIX) for mask in masks},
    )


def _pair_key(parts: list[str], suffix: re.Pattern[str]) -> _PairKey:
    *folders, base = parts
    left = (_without_role(folder) for folder in folders)
    return _PairKey(tuple(folder for folder in left if folder), suffix.sub("", posixpath.splitext(base)[0]))


@functools.lru_cache(maxsize=4096)
def _without_role(folder: str) -> str:
    """Return a folder's name without the words for images or masks: train from train_labels."""
    rest = _rest(folder, _MASK_ENDS)
    if rest is None:
        rest = _rest(folder, _IMAGE_ENDS)
    return folder.lower() if rest is None else "_".join(rest)


@functools.lru_cache(maxsize=4096)
def _rest(folder: str, ends: tuple[tuple[str, ...], ...]) -> tuple[str, ...] | None:
    """Return the words before one of the endings; `None` for a folder without them."""
    words = words_of(folder)
    # Some names have no separator, such as SegNet's trainannot.
    if ends is _MASK_ENDS and words and words[-1].endswith("annot"):
        return tuple(filter(None, (*words[:-1], words[-1].removesuffix("annot"))))
    # The longest ending counts, so that segmentation_class does not leave "segmentation".
    for end in sorted(ends, key=len, reverse=True):
        if words[-len(end) :] == end:
            return words[: -len(end)]
    return None


def _match_sides(sides: _Sides) -> list[tuple[FileEntry, FileEntry]]:
    """Return each image with its mask.

    Raises:
        NearMissError: an image has several masks.
    """
    by_place: dict[_PairKey, FileEntry] = {}
    images = set(sides.images.values())
    for mask, place in sides.masks.items():
        other = by_place.setdefault(place, mask)
        if other is not mask and _is_of_objects(other) != _is_of_objects(mask):
            by_place[place] = mask if _is_of_objects(other) else other
        elif other is not mask and place in images:
            msg = (
                f"'{other.name}' and '{mask.name}' are masks of the same image; expected one for each. Say which "
                "folder or suffix counts: layout=image_masks(masks='NAME'), from colabstage.options; or join them."
            )
            raise NearMissError(msg)
    return [(image, by_place[place]) for image, place in sides.images.items() if place in by_place]


def _is_of_objects(mask: FileEntry) -> bool:
    """Tell whether a mask numbers single objects, which Mapillary and Pascal VOC have beside masks of classes."""
    return not _OBJECTS.isdisjoint(mask.name.lower().split("/")[:-1])


def _read_classes(tree: Tree) -> tuple[tuple[str, ...], tuple[tuple[int, int, int], ...] | None]:
    """Return the class names and colours from the files that tools leave beside masks; nothing if there are none."""
    for entry in tree.entries.ending_in(TABLE_EXTENSIONS):
        # Any other table with columns r, g, b may be about the colours of images.
        if "class" not in posixpath.basename(entry.name).lower():
            continue
        header, *body = read_rows(tree, entry) or [[]]
        columns = {name.lower(): [row[place] for row in body] for place, name in enumerate(header)}
        try:
            if {"name", "r", "g", "b"} <= columns.keys():
                colors = zip(*([int(cell) for cell in columns[name]] for name in "rgb"), strict=True)
                return tuple(columns["name"]), tuple((r, g, b) for r, g, b in colors)
            # Roboflow's, which numbers them.
            if {"pixel value", "class"} <= columns.keys():
                numbers = [int(cell) for cell in columns["pixel value"]]
                return (tuple(columns["class"]), None) if numbers == list(range(len(numbers))) else ((), None)
        except ValueError as error:
            msg = f"'{entry.name}' has a colour that is not a whole number: {error}."
            raise LayoutError(msg) from error
    texts = tree.entries.ending_in((".txt",))
    # CVAT's, beside masks in Pascal VOC's folders.
    maps = list(texts.where(lambda name: posixpath.basename(name).lower() == "labelmap.txt"))
    for text in read_texts(tree, maps[:1]).values():
        painted = [match.groups() for match in _PAINTED.finditer(text)]
        if painted:
            names, reds, greens, blues = zip(*painted, strict=True)
            colors = zip(map(int, reds), map(int, greens), map(int, blues), strict=True)
            return tuple(names), tuple(colors)
    # fast.ai's list of names, in the order of their numbers.
    codes = list(texts.where(lambda name: posixpath.basename(name).lower() == "codes.txt"))
    lines = [line.strip() for text in read_texts(tree, codes[:1]).values() for line in text.splitlines()]
    return tuple(filter(None, lines)), None


# The only unambiguous form: a word, a dot and a number.
_WORD_AND_NUMBER = re.compile(r"(?:^|/)([A-Za-z][A-Za-z_ -]*)\.\d+\.[A-Za-z]+$")
# A last word of a name that is not just a number.
_AFTER_STEM = re.compile(r"[ ._-]?(?=[^/ ._-]*[A-Za-z])[^/ ._-]+$")
# Files that hold no labels.
# What reads a file of labels with pandas, if it is a table.
_PANDAS = {
    ".xlsx": "read_excel", ".xls": "read_excel", ".ods": "read_excel", ".json": "read_json", ".pkl": "read_pickle",
    ".pickle": "read_pickle", ".gz": "read_csv", ".feather": "read_feather",
}  # fmt: skip
_HARMLESS = frozenset(
    {*IMAGE_EXTENSIONS, "", ".gif", ".md", ".rst", ".py", ".ipynb", ".m", ".html", ".pdf", ".docx", ".db", ".ini"}
)
# The part before the last number of a name: pug in pug_12, 25_0_2 in 25_0_2_20170116.
_BEFORE_NUMBER = re.compile(r"(.*?[A-Za-z0-9])[ _.()-]*\d+\D*$")
# The same of whole names, for who has to write it.
_BEFORE_NUMBER_TYPED = r"([^/]*?[A-Za-z0-9])[ _.()-]*\d+[^\d/]*\.\w+$"


def _images(tree: Tree) -> FileEntries:
    images = tree.entries.ending_in(IMAGE_EXTENSIONS)
    images = images.in_folders(lambda folder: not any(map(is_foreign_folder, folder.split("/"))))
    return required(images, tree, "images")


def read_file_names(tree: Tree, *, pattern: str | None = None) -> SampleTable:
    """Make a table of images with the classes in their names: without a pattern, every name is label.number.extension.

    Images of a test folder whose names have no class are left out; with a pattern, so are all whose paths do not fit
    it. Folders of splits are recognised. Samples come sorted by name; classes are numbered in the order of their sorted
    names.

    Args:
        tree: the dataset's files.
        pattern: a regular expression that is searched in each image's path; its first group, or else the whole match,
            is the class.

    Raises:
        EmptySourceError: there are no images.
        LayoutError: a name has no class, or all have the same.
    """
    images = _images(tree)
    wanted = _WORD_AND_NUMBER if pattern is None else re.compile(pattern)
    # The first of a million names usually shows that they have no class.
    unsaid = (name for name in images.names if wanted.search(name) is None and split_of_path(name) != "test")
    odd = next(unsaid, None) if pattern is None else None
    found = [wanted.search(name) for name in images.names] if odd is None else []
    silent = [name for name, match in zip(images.names, found, strict=True) if match is None] if odd is None else []
    if odd is not None or len(silent) == len(images):
        expected = f"{pattern!r} in it" if pattern is not None else "a name such as cat.0.jpg"
        msg = f"The name of '{odd or silent[0]}' in '{tree.label}' does not say its class; expected {expected}."
        raise LayoutError(msg)
    words = [(match[1] or "") if wanted.groups else match[0] for match in found if match is not None]
    values, classes = class_indices(words)
    # The same class in all names is a common prefix, such as IMG, not a class.
    if len(classes) < 2:
        msg = f"The names of the images in '{tree.label}' do not tell classes apart: all say {list(classes)}."
        raise LayoutError(msg)
    # Names without a class belong to a test set.
    files = images.take(np.flatnonzero([match is not None for match in found]))
    notes = [f"Classes are what the files are called, as in '{posixpath.basename(files.names[0])}'."]
    if silent:
        which = "of a test folder whose names give no class" if pattern is None else f"whose paths have no {pattern!r}"
        notes.append(f"{left_out(len(silent), 'images', which)} (first '{silent[0]}').")
    return SampleTable(
        layout=FILE_NAMES,
        keys=files.names,
        inputs=Images(TreeFiles(tree, files)),
        targets=values,
        splits=known_splits([split_of_path(name) for name in files.names]),
        classes=classes,
        notes=tuple(notes),
    )


def read_images(tree: Tree) -> SampleTable:
    """Make a table of all images of a tree, in order of their names, without labels.

    Splits come from folders, if all images are in split folders.

    Raises:
        EmptySourceError: there are no images.
    """
    images = _images(tree)
    splits_of = _splits_of_folders(images)
    notes = ["The images have no labels: neither folders of classes, nor files of annotations, nor words in names."]
    folders, _ = images.folders
    if len(folders) == 1 and folders[0] and not splits_of[0]:
        notes.append(f"All are in the folder '{folders[0]}'; layout='image_folder' makes it their class.")
    if not any(splits_of):
        notes.append("Rows of 'train' are in random order; with splits={'test': 1.0} they keep that of their names.")
    return SampleTable(
        layout=IMAGES,
        keys=images.names,
        inputs=Images(TreeFiles(tree, images)),
        targets=None,
        splits=known_splits([splits_of[number] for number in images.folders[1].tolist()]),
        notes=tuple(notes),
    )


def _splits_of_folders(images: FileEntries) -> list[str]:
    """Return the split of each folder with images, in the order of `FileEntries.folders`; "" for none."""
    folders, _ = images.folders
    # DIV2K_train_HR beside DIV2K_valid_HR: the same words beside the split.
    depth = len(shared_folders(f"{folder}/" for folder in folders))
    tops = [split_name("".join(folder.split("/")[depth : depth + 1])) for folder in folders]
    same = len({read.rest for read in tops}) == 1
    return [
        split_of_path(f"{folder}/") or (top.split if same else "") for folder, top in zip(folders, tops, strict=True)
    ]


def guess_images(tree: Tree, is_more: bool) -> SampleTable:
    """Read images without labels, if they are in one folder, or one for each split, and nothing may be their labels.

    Raises:
        EmptySourceError: there are no images.
        NearMissError: something may be their labels; the message says what, and what to write.
        LayoutError: they are in several folders.
    """
    images = _images(tree)
    if is_more:
        msg = f"The images of '{tree.label}' are only a part of a dataset: one folder is one of its classes."
        raise LayoutError(msg)
    # First, because it declines most class folders after examining folders instead of images.
    splits = _splits_of_folders(images)
    if len(splits) > 1 and (not all(splits) or len(splits) > len(set(splits))):
        msg = f"The images of '{tree.label}' are in {len(splits):,} folders, not in one, or one for each split."
        raise LayoutError(msg)
    if not isinstance(first_that_fits(lambda: read_file_names(tree)), list):
        msg = f"The images of '{tree.label}' have classes in their names."
        raise LayoutError(msg)
    without = 'layout="images" reads the images without labels.'
    others = FileEntries.of(tree.entries).not_ending_in(_HARMLESS)
    labels = [name for name in others.names if not is_note(name)]
    if labels:
        msg = (
            f"The images of '{tree.label}' are in no folders of classes, and {listed(labels[:3])} may hold their "
            "labels, in a form that is not read here. Write a table with a path and a label in each row beside the "
            f"images{_as_csv(labels[0])}, or give a function as layout=. {without}"
        )
        raise NearMissError(msg)
    beginnings = _beginnings(images.names)
    if beginnings:
        msg = (
            f"The images of '{tree.label}' are in no folders of classes, but their names may say the class: "
            f"{listed(beginnings)}. Say which part it is: layout=file_names(r'{_BEFORE_NUMBER_TYPED}'), from "
            f"colabstage.options, for what comes before the last number. {without}"
        )
        raise NearMissError(msg)
    pair = _pair_by_name(images.names)
    if pair is not None:
        msg = (
            f"The images of '{tree.label}' come in twos by their names: '{pair[1]}' may be the mask of '{pair[0]}', or "
            "another part of the sample. Put one kind into a folder called images and the other into one called masks; "
            f"or, where each is a sample, {without}"
        )
        raise NearMissError(msg)
    return read_images(tree)


def _pair_by_name(names: Sequence[str]) -> tuple[str, str] | None:
    """Return an image and one that is called after it, where most images are one or the other; else nothing."""
    by_stem: dict[str, list[str]] = {}
    for name in names:
        by_stem.setdefault(posixpath.splitext(name)[0], []).append(name)
    ends: dict[str, tuple[str, str]] = {}
    counts: Counter[str] = Counter()
    for stem, same in by_stem.items():
        found = _AFTER_STEM.search(stem)
        after = stem[: found.start()] if found is not None else ""
        # Called alike but for the extension, as MSRA10K has a.jpg and a.png; or with a word behind: a_manual.
        if len(same) > 1:
            end, pair = "", (same[0], same[1])
        elif found is not None and after in by_stem:
            end, pair = found[0], (by_stem[after][0], same[0])
        else:
            continue
        counts[end] += 1
        ends.setdefault(end, pair)
    end, count = next(iter(counts.most_common(1)), ("", 0))
    return ends[end] if count > 1 and 4 * count > len(names) else None


def _as_csv(name: str) -> str:
    """Return how pandas writes a file as a table that is read, in brackets; "" where that depends on what is in it."""
    base, extension = posixpath.splitext(name)
    reader, base = _PANDAS.get(extension.lower()), base.removesuffix(".csv")
    return "" if reader is None else f" (pandas.{reader}('{name}').to_csv('{base}.csv', index=False))"


def _beginnings(names: Sequence[str]) -> list[str]:
    """Return what precedes the numbers in the names, if that makes classes; otherwise nothing."""
    # Images to be classified are often only numbered.
    names = [name for name in names if split_of_path(name) != "test"] or names
    matches = [_BEFORE_NUMBER.match(stem_of(name)) for name in names]
    found = {match[1] for match in matches if match is not None}
    # As many prefixes as images are not classes, and neither is a single one, such as IMG.
    are_classes = len(found) > 1 and 2 * len(found) <= len(names) and all(matches)
    return sorted(found) if are_classes else []
