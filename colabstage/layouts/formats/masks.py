"""Masks of images: files of the same stem in separate folders or with a suffix, and names of their values."""

from __future__ import annotations

import functools
import itertools
import posixpath
import re
import zlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, LayoutError, said_by
from colabstage.images.decode import is_lossy
from colabstage.images.geometry import VOID, MaskOptions
from colabstage.images.masks import (
    AS_PICTURES,
    color_table_advice,
    colors_of,
    draw_runs,
    is_black_and_white,
    is_picture,
    level_counts,
    palette_of,
    read_mask,
)
from colabstage.io.units import counted, listed
from colabstage.layouts import words
from colabstage.layouts.columns import show
from colabstage.layouts.evidence import Evidence, Found, Miss, gather, left_out_notes, near, require_files, size_in_file
from colabstage.layouts.formats.tables import Table, parse_table
from colabstage.layouts.lists import NONE, Lookup, check_one_list, lists_state
from colabstage.layouts.names import bare_stem
from colabstage.layouts.reading import Source, broken, items_of, read_each
from colabstage.layouts.records import Labels
from colabstage.layouts.table import BrokenDatasetError, Content, Masks, SampleSource, TreeFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.trees.listing import FileEntries, FileEntry


# What the values of masks mean: class indices, or a foreground that is 255.
#
# This is decided here for whatever makes masks, by looking at a few. Once all have been read, they are compared with
# that decision: the first masks of an archive may have a single value.


Color = tuple[int, int, int]
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)
# Enough to meet each common class, and few enough to cost no noticeable time on a mounted Drive.
_LOOKED_AT = 16
# Even a few masks contain this share of the class indices up to the highest; painted greys are far apart.
_DENSE = 1 / 8
_FEW_LEVELS = 64
# Pixels from here on, beside pixels of 255, are a smoothed edge rather than classes.
_NEARLY_WHITE = 200
# With this many shades they are not class indices.
_SHOWN = 8
# One bit for each value of a pixel but 0, 1 and 255.
_BETWEEN = np.packbits(np.isin(np.arange(VOID + 1), (0, 1, VOID), invert=True))
# A JPEG's values are only near those of the classes, so a class_dict.csv does not help.
_LOSSY = (
    "it is a JPEG, or a WebP like one, which has lost the exact values of its pixels; only black and white are told "
    f"apart in one, and no class_dict.csv brings others back. Write the masks again as PNG. {AS_PICTURES}"
)
_BLURRED = "The edges of the masks are blurred, by smoothing or as JPEGs: pixels from 128 on count as foreground."


class _Mask(NamedTuple):
    name: str
    counts: NDArray[np.int64] | tuple[()] = ()
    """How many pixels have each value; none for a mask in true colours."""
    palette: Mapping[int, Color] = {}
    colors: frozenset[Color] = frozenset()
    is_lossy: bool = False
    is_two_level: bool = False
    """Whether it is black and white but for its edges."""
    is_picture: bool = False


def find_masks(source: SampleSource, *, decoded: bool = False, spread: bool = True) -> Masks:
    """Make masks from a source, after examining a few.

    `decoded`: whether they are integer arrays `(H, W)`, not files. `spread`: whether to examine some spread over all,
    or the first ones on the medium.
    """
    count = min(_LOOKED_AT, len(source))
    # The first files of an archive or a Drive are read quickly; spreading over all would require seeking.
    chosen = np.linspace(0, len(source) - 1, count).astype(int) if spread else np.argsort(source.positions)[:count]

    def look(index: int, content: Content) -> _Mask:
        name, lossy = source.name(index), isinstance(content, bytes) and is_lossy(content)
        colors = colors_of(content)
        if colors:
            return _Mask(name, colors=colors, is_lossy=lossy)
        indices = read_mask(content, MaskOptions())
        two_level = is_black_and_white(indices, lossy=lossy)
        picture = not two_level and is_picture(indices)
        return _Mask(name, level_counts(indices), palette_of(content), frozenset(), lossy, two_level, picture)

    # Broken files are reported when they are packed.
    found = read_each(source, chosen.tolist(), look, readers=_LOOKED_AT, skip_broken=True)
    plain = [mask for mask in found if not mask.colors]
    counts = np.array([mask.counts for mask in plain], np.int64).reshape(-1, VOID + 1)
    total, some_lossy = counts.sum(axis=0), any(mask.is_lossy for mask in found)
    if total[_NEARLY_WHITE:].any() and (some_lossy or total[1:VOID].any()) and all(mask.is_two_level for mask in found):
        notes = (*_compare_palettes(found), _BLURRED)
        return Masks(source, decoded=decoded, foreground=True, guessed=True, notes=notes)
    if some_lossy:
        raise broken(min((mask.is_two_level, mask.name) for mask in found if mask.is_lossy)[1], _LOSSY)
    _refuse_painted(found)
    pictures = [mask.name for mask in found if mask.is_picture]
    notes = _compare_palettes(found)
    if pictures:
        notes += (f"Shades of grey change from pixel to pixel in '{pictures[0]}', as no classes do. {AS_PICTURES}.",)
    kinds = _kinds_of(np.packbits(counts > 0, axis=1))
    is_foreground = _is_foreground(total, kinds, lambda number: plain[number].name)
    return Masks(source, decoded=decoded, foreground=is_foreground, guessed=True, notes=notes)


def _refuse_painted(masks: Sequence[_Mask]) -> None:
    """Refuse masks in true colours, which mean nothing without a table of them.

    If other masks have indices, a painted one is a broken file, which is reported when it is packed.
    """
    painted = [mask for mask in masks if mask.colors]
    # Masks with a single value may belong to images without any object.
    levels = [np.flatnonzero(mask.counts).tolist() for mask in masks if not mask.colors]
    if painted and all(len(values) == 1 for values in levels):
        colors = frozenset().union(*(mask.colors for mask in painted), ((value,) * 3 for (value,) in levels))
        advice = color_table_advice(colors).rstrip(".")
        what = f"it and others are painted in true colours, and no file says which is which class. {advice}"
        raise broken(painted[0].name, what)


def _compare_palettes(masks: Sequence[_Mask]) -> tuple[str, ...]:
    """Refuse masks of which two have one colour under different numbers; return a note on palettes that contradict the
    numbers: one number in two colours, or 0 as white and another as black."""
    first: dict[Color, tuple[_Mask, int]] = {}
    named: dict[int, Color] = {}
    odd = ""
    for mask in masks:
        for value, color in mask.palette.items():
            other, at = first.setdefault(color, (mask, value))
            # Within one palette two classes may share a colour; and an absent value contradicts nothing.
            if at != value and other.palette.get(value, color) != color:
                what = f"it has the colour {color} under another number of its palette than '{other.name}'"
                raise broken(mask.name, what, "one palette for all, or true colours with a class_dict.csv")
            is_inverted = (value, color) == (0, _WHITE) and _BLACK in mask.palette.values()
            odd = odd or (mask.name if is_inverted or named.setdefault(value, color) != color else "")
    if not odd:
        return ()
    note = (
        f"Masks are taken by the numbers in their files, which the palette of '{odd}' contradicts: 0 is white, or a "
        f"number has another colour elsewhere. If the colours are the classes, the masks are painted. "
        f"{color_table_advice(first)}"
    )
    return (note,)


def compare_with_all(
    masks: Masks, levels: NDArray[np.uint8], names: Sequence[str] = ()
) -> tuple[bool, tuple[str, ...]]:
    """Return what all masks say that were taken for class indices: whether they are a foreground, and notes.

    `levels`: `(N, 32)`, one bit for each value that the pixels of a mask have; zeros for those that were left out.
    """
    present, of_masks = np.unpackbits(np.bitwise_or.reduce(levels, axis=0)), _kinds_of(levels)
    is_foreground = _is_foreground(present.astype(np.int64), of_masks, masks.source.name)
    values, notes = np.flatnonzero(present), list[str]()
    classes = values[values != VOID]
    if names and len(classes) and classes[-1] >= len(names):
        notes.append(f"The masks have values up to {classes[-1]}, and {counted(len(names), 'classes', 'are')} named.")
    if len(values) == 1:
        notes.append(f"All pixels of all masks have the value {values[0]}: there is one class.")
    has_classes, voids = of_masks[:, 1] | of_masks[:, 2], of_masks[:, 0] & of_masks[:, 3]
    # Pixels without a class border on those with one, so some mask would have both.
    if has_classes.any() and voids.any() and not (has_classes & voids).any():
        notes.append(
            f"{VOID} counts as no class, and no mask that has classes has it; others have 0 and {VOID} alone (first "
            f"'{masks.source.name(int(np.argmax(voids)))}'). If it is a class there, write the number of the class."
        )
    return is_foreground, tuple(notes)


def _is_foreground(counts: NDArray[np.int64], kinds: NDArray[np.bool_], name: Callable[[int], str]) -> bool:
    """Tell whether masks with 0 and 255 are a foreground, not class indices.

    `counts`: how many pixels of all masks have each value, `(256,)`; 1 if it is known only that there are some.
    """
    zero, one, between, void = kinds.T
    # A mask with a single value may be all foreground or all without a class, so it proves nothing.
    ones, voids = zero & one, zero & void
    # Pixels without a class, also 255, border on those with one, so some mask would have both.
    if ones.any() and voids.any() and not between.any() and not (ones & voids).any():
        what = f"it has the values 0 and 1, others such as '{name(int(np.argmax(voids)))}' 0 and {VOID}"
        expected = f"one foreground to be written in one way; for {VOID} as no class, some mask with both"
        raise broken(name(int(np.argmax(ones))), what, expected)
    meaning = meaning_of(counts)
    if meaning == "greys":
        levels = np.flatnonzero(counts)
        shown = ", ".join(map(str, levels[:_SHOWN])) + (", …" if len(levels) > _SHOWN else "")
        what = f"it and others have {len(levels)} shades of grey ({shown}), which are not class indices"
        expected = "pixels of 0 and 255, or 0, 1, 2 and so on, or a class_dict.csv with the columns name, r, g, b"
        # Any mask that has one of them.
        raise broken(name(int(np.argmax(between))), what, f"{expected}. {AS_PICTURES}")
    return meaning == "foreground"


def meaning_of(counts: NDArray[np.int64]) -> str:
    """Return "indices", "foreground" or "greys": the meaning of pixels of which `counts[v]` have the value v. Pure.

    >>> meaning_of(np.bincount([0, 0, 0, 255], minlength=256))
    'foreground'
    """
    levels = np.flatnonzero(counts)
    inner = levels[(levels > 0) & (levels < VOID)]
    if not len(inner):
        # Masks with only 255 as "no class" would teach nothing.
        return "foreground" if counts[VOID] else "indices"
    highest = int(inner[-1])
    if counts[VOID] and (counts[VOID] > counts[1:VOID].sum() or highest >= _NEARLY_WHITE):
        return "greys"
    return "greys" if highest >= _FEW_LEVELS and len(levels) < _DENSE * highest else "indices"


def _kinds_of(levels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether each mask has pixels of 0, of 1, of something between 1 and 255, and of 255, `(N, 4)`.

    `levels`: `(N, 32)`, one bit for each value.
    """
    between = (levels & _BETWEEN).any(axis=1)
    return np.stack([levels[:, 0] & 0x80, levels[:, 0] & 0x40, between, levels[:, -1] & 1], axis=1).astype(np.bool_)


# --- masks as run lengths ---------------------------------------------------------------------------------------------

# Each run is its first pixel and its length, with a blank after each number: Kaggle's form.
RUNS = re.compile(r"\d{1,18} \d{1,18}(?: \d{1,18} \d{1,18})*", re.ASCII)
# Read in the wrong direction, masks fall apart, and their outlines are longer, by a part and in pixels.
_LONGER_PART, _LONGER_PIXELS = 1.25, 64


def parse_runs(cell: str) -> NDArray[np.int64]:
    """Return the runs in a cell, `(M, 2)`: the first pixel and the one after the last, counted as they are written.
    Raises `ValueError`: they do not follow each other."""
    runs = np.array(cell.split(" ") if cell else [], np.int64).reshape(-1, 2)
    runs[:, 1] += runs[:, 0]
    if (runs[:, 1] <= runs[:, 0]).any() or (runs[1:, 0] < runs[:-1, 1]).any():
        msg = "its runs overlap, descend or are empty"
        raise ValueError(msg)
    return runs


class _RunMasks(NamedTuple):
    """Masks that are drawn from run lengths, as large as their images."""

    images: TreeFiles
    runs: Sequence[NDArray[np.int64]]
    """Those of each image, `(M, 3)`, as `draw_runs` takes them."""
    sizes: NDArray[np.int64] | None
    """int64 `(N, 2)`, height and width of each image, if a table states them; otherwise its file does."""
    down: bool

    def name(self, index: int) -> str:
        return self.images.name(index)

    def stamp(self, index: int) -> str:
        return f"{self.images.stamp(index)} {zlib.crc32(self.runs[index].tobytes())} {self.down}"

    def read(self, index: int) -> NDArray[np.uint8]:
        stated = None if self.sizes is None else (self.sizes.item(index, 0), self.sizes.item(index, 1))
        size = stated or size_in_file(self.images, index)
        # A broken image is reported itself.
        return np.zeros((0, 0), np.uint8) if size is None else draw_runs(self.runs[index], size, down=self.down)


def masks_of_runs(
    images: TreeFiles, runs: Sequence[NDArray[np.int64]], sizes: NDArray[np.int64] | None
) -> tuple[Masks, str]:
    """Return masks of runs, `(M, 3)` for each image: the first pixel and the one after the last, as written, and the
    class, from 1; and a note that says how they are read.

    Pixels count from 0 where a run begins there, otherwise from 1; and down the columns, as Kaggle's do, unless the
    outlines of some masks are much shorter across the rows.
    """
    filled = np.flatnonzero([*map(len, runs)]).tolist()
    first = min(1, *(int(runs[number][:, 0].min()) for number in filled))
    made = [own - np.array([first, first, 0]) for own in runs]
    ways = {"down the columns": True, "across the rows": False}
    every = {way: _RunMasks(images, made, sizes, down) for way, down in ways.items()}
    chosen = [filled[place] for place in np.linspace(0, len(filled) - 1, min(_LOOKED_AT, len(filled))).astype(int)]
    outlines = dict.fromkeys(ways, 1)
    for number, way in itertools.product(chosen, ways):
        try:
            mask = every[way].read(number)
        except DecodeError as error:
            # A few are reported when they are packed.
            if number == chosen[-1] and {*outlines.values()} == {1}:
                raise broken(images.name(number), said_by(error).rstrip(".")) from error
            continue
        outlines[way] += int(np.count_nonzero(mask[1:] != mask[:-1]) + np.count_nonzero(mask[:, 1:] != mask[:, :-1]))
    (way, shorter), (other, longer) = sorted(outlines.items(), key=lambda one: one[1])
    why = f"{other} their outlines would be {longer / shorter:.1f} times as long"
    if longer <= shorter * _LONGER_PART + _LONGER_PIXELS:
        way, other = ways
        why = f"Kaggle's form; nothing else shows whether they are meant {other}, so look at some"
    made_so = every[way]
    source = SampleSource(images.sizes, images.positions, name=made_so.name, stamp=made_so.stamp, read=made_so.read)
    return Masks(source, decoded=True), f"Runs are read {way}, from pixel {first} on: {why}."


def check_lossless(content: Content) -> None:
    """Refuse the file of a mask whose format does not preserve exact values."""
    if isinstance(content, bytes) and is_lossy(content):
        msg = f"The mask cannot be used: {_LOSSY}."
        raise DecodeError(msg)


def is_mask_name(name: str) -> bool:
    """Tell whether the field of a record is called as masks are."""
    return bool(_MASK_FOLDER.fullmatch(_spelled(name)) or _MASK_SUFFIX.search(name))


def mask_field(where: str, names: Iterable[str], dataset: str = "dataset") -> str:
    """Return the field that is called as masks are, of those of a record that hold a second image; "" for none.
    `dataset`: the line that opens the records as a dataset object."""
    found = [*filter(is_mask_name, names)]
    found = [name for name in found if _OBJECTS.isdisjoint(words.words_of(name))] or found
    if len(found) > 1:
        line = f": pack_dataset({dataset}.remove_columns({found[1:]}), 'packed.h5') takes '{found[0]}'"
        raise broken(where, f"{listed(found)} may all be masks", f"one mask of each image{line * bool(dataset)}")
    return next(iter(found), "")


def masks_of_records(source: Source, masks: SampleSource, *, spread: bool = False) -> Labels:
    """Return masks as targets, with what files beside them say of their values; `spread` as for `find_masks`."""
    used, named = _classes(source)
    targets = Masks(masks, named.colors) if named.colors else find_masks(masks, spread=spread)
    return Labels(targets, targets.classes or named.names, files=tuple(used))


NAME = "pairs"
# Folders of masks and of the images that they belong to, by the words in their names, after any others.
_MASK_FOLDER = re.compile(
    "(?:(.+?)_)??(?:masks?|labels?|anns?|annotations?|gt(?:_fine)?|ground_?truth|segmentations?"
    "|segmentation_?(?:class|object)|targets|trimaps|stuffthingmaps|instances|panoptic)|(.*?)_?annot"
)
_IMAGE_FOLDER = re.compile(
    "(?:(.+?)_)??(?:images?|imgs?|jpeg_?images|photos|pictures|inputs?|left_?img_8_bit|original)"
)
# What follows the stem of a mask but not of its image, in any case, or is all of it in a folder for each sample.
# Without a separator only after a number.
_MASK_WORDS = (
    "gtFine_labelTrainIds", "gtFine_labelIds", "labelTrainIds", "segmentation", "labelIds", "labels", "masks", "label",
    "mask", "annot", "seg", "gt",
)  # fmt: skip
_MASK_SUFFIX = re.compile(rf"(?:^|(?<=.)(?:[ ._-]|(?<=\d)(?=(?i:mask))))(?i:{'|'.join(_MASK_WORDS)})$|(?<=.)_[LP]$")
_IMAGE_SUFFIX = re.compile(r"(?:^|(?<=.)[ ._-])(?i:leftImg8bit|image|img|sat)$")
_MASK_ENDS = (*map(str.lower, _MASK_WORDS), "_l", "_p")
_AGAIN = re.compile(r"[ _.-]?\(?\d+\)?$")
_OBJECTS = frozenset({"instances", "instance", "panoptic", "segmentationobject", "segmentation_object"})
# A line of CVAT's labelmap.txt: label:color_rgb:parts:actions. Its first line, a comment, has no numbers.
_PAINTED = re.compile(
    r"^[ \t]*([^#:\n][^:\n]*):[ \t]*(\d+)[ \t]*,[ \t]*(\d+)[ \t]*,[ \t]*(\d+)[ \t]*(?::.*)?$", re.MULTILINE
)

# What the paths of an image and its mask have in common: folders other than those of images or masks, empty if stems
# alone decide; and the base name without its extension and suffix.
_Key = tuple[tuple[str, ...], str]
_Pairs = list[tuple["FileEntry", "FileEntry"]]
# The mask of each image, and the table that says so.
_Stated = dict["FileEntry", tuple["FileEntry", str]]


class _Sides(NamedTuple):
    """The files that may make pairs, each with its key."""

    images: dict[FileEntry, _Key]
    masks: dict[FileEntry, _Key]


class MaskClasses(NamedTuple):
    """The names of values in the files beside masks."""

    names: tuple[str, ...] = ()
    colors: tuple[tuple[int, int, int], ...] | None = None


def masks_state(source: Source, *, x: str | None = None, y: str | None = None) -> Found:
    """Read images that have a mask of the same stem each.

    Masks are in a folder of their own (masks, labels, annotations, train_labels, …), or have a suffix (_mask, _L, …)
    beside their images. A `class_dict.csv` with the columns name, r, g, b, or CVAT's `labelmap.txt`, says which colour
    is which class; without one, masks hold class indices, which a `codes.txt` or Roboflow's `_classes.csv` names.
    Folders of splits are recognised, and lists of them; images of a split without any mask are left out. Samples come
    sorted by the images' names.

    `x`, `y`: the folder of the images, and of the masks, or the end of their names, if they are not recognised.
    """
    on_tables: list[str] = []
    stated = _stated_pairs(source, on_tables) if y is None else {}
    found = _pairs_of(source, x, y, stated)
    if isinstance(found, Miss):
        return found
    sides, pairs = found
    if y is None:
        _refuse_further(sides, pairs)
    objects = sum(map(_is_of_objects, sides.masks)) - sum(_is_of_objects(mask) for _, mask in pairs)
    files = TreeFiles(source.tree, [mask for _, mask in pairs])
    try:
        targets, classes, _, notes, used = masks_of_records(source, files, spread=source.tree.kind == "folder")
    except BrokenDatasetError as error:
        image, mask = (one.name for one in pairs[0])
        if posixpath.splitext(image)[0] != posixpath.splitext(mask)[0]:
            raise
        kept = " or ".join([source.only([image], [mask]), source.only([mask], [image])])
        msg = f"'{image}' and '{mask}' may be one picture in two formats; take one: {kept}. As masks: {error}"
        raise BrokenDatasetError(msg) from error
    images = [image for image, _ in pairs]
    masked = {image.name for image in images}
    notes = (
        *notes,
        *on_tables,
        *left_out_notes(
            ([one.name for one in sides.images if one.name not in masked], "images", "without a mask"),
            (objects, "masks", "that number single objects"),
            (len(sides.masks) - len({mask for _, mask in pairs}) - objects, "masks", "without an image"),
        ),
    )
    # If some images are in no split's folder, the folders are something else.
    splits = [words.split_of_path(image.name) for image in images]
    used = (*used, *(mask.name for mask in sides.masks))
    made = Evidence.of_images(
        source, NAME, images, targets, "the masks", splits=splits, classes=classes, notes=notes, used=used
    )
    if made.table.splits is None:
        made = lists_state(source, made, within="ImageSets/Segmentation")
    # Only now, because they may state splits as well.
    return replace(made, used=frozenset({*made.used, *(table for _, table in stated.values())}))


def _pairs_of(source: Source, x: str | None, y: str | None, stated: _Stated) -> tuple[_Sides, _Pairs] | Miss:
    """Return the images and masks of `masks_state`, and which belong together, by their names and by tables."""
    found = gather(lambda: pair_names(source, x, y))
    if isinstance(found, Miss) and not stated:
        return found
    sides, named = (_stated_sides(source, stated), []) if isinstance(found, Miss) else found
    mask_of = dict(named)
    for image, (mask, table) in stated.items():
        if (other := mask_of.setdefault(image, mask)) != mask:
            what = f"it has '{mask.name}' as the mask of '{image.name}', whose name is that of '{other.name}'"
            raise broken(table, what, "one mask of each image: correct the table, or take it away")
    return sides, [*mask_of.items()]


def _stated_sides(source: Source, stated: _Stated) -> _Sides:
    """Return all files as images or masks, where only tables tell them apart: masks are those in their folders."""
    masks = {mask for mask, _ in stated.values()}
    folders = {posixpath.dirname(one.name) for one in masks} - {posixpath.dirname(one.name) for one in stated}
    keys: dict[FileEntry, _Key] = {one: ((), one.name) for one in source.ending_in(words.IMAGES)}
    masks |= {one for one in keys if posixpath.dirname(one.name) in folders}
    return _Sides(*({one: key for one, key in keys.items() if (one in masks) is side} for side in (False, True)))


def _stated_pairs(source: Source, notes: list[str]) -> _Stated:
    """Return the mask that rows of a table name beside an image, and the table's name, where most of its rows do, and
    no other column names further images."""
    files = source.ending_in(words.IMAGES)
    stated: _Stated = {}
    # Without images, a table may be one of pixels, and large.
    tables = source.ending_in((".csv", ".tsv", ".jsonl") if files else ())
    tables = tables.where(lambda name: not words.is_submission(name))
    for name, table in source.parse_once(tables, parse_table).items():
        # Without the words for a file: mask for mask_image_path.
        named = {
            one: [word for word in words.words_of(one.name) if word not in words.OF_PATHS] for one in table.columns
        }
        masks = [column for column, rest in named.items() if is_mask_name("_".join(rest)) and column.are_files]
        if len(masks) != 1:
            continue
        lookup, folder = source.made_of(files, Lookup.of), posixpath.dirname(name)
        leads = {
            column: [*map(lookup.search_each(column.distinct, folder)[0].get, column.cells, itertools.repeat(NONE))]
            for column in table.columns
            if column.plain in words.PATHS or column.are_files
        }
        of_masks = leads.pop(masks[0])
        of_images = max(leads.values(), key=lambda found: len(found) - found.count(NONE), default=of_masks)
        are_further = any(
            one != image for found in leads.values() for one, image in zip(found, of_images, strict=True) if one >= 0
        )
        pairs = [(a, b) for a, b in zip(of_images, of_masks, strict=True) if min(a, b) >= 0 and a != b]
        if are_further or 2 * len(pairs) <= len(of_masks):
            continue
        for image, mask in pairs:
            other, first = stated.setdefault(files[image], (files[mask], name))
            if other != files[mask]:
                what = f"it has '{files[mask].name}' as the mask of '{files[image].name}', and '{first}' '{other.name}'"
                raise broken(name, what, "one mask of each image: join them, or take the other one out")
        notes += left_out_notes((len(of_masks) - len(pairs), "rows", f"of '{name}' whose image or mask is not there"))
        known = (*words.SPLIT_COLUMNS, *words.PATHS)
        unread = [one.name for one in table.columns if not (one in (*leads, masks[0]) or one.plain in known)]
        if unread := [one for one in unread if not words.is_index_name(one)]:
            notes.append(f"Of '{name}' {listed(unread)} {'is' if len(unread) == 1 else 'are'} not used.")
    return dict(sorted(stated.items(), key=lambda pair: pair[0].name))


def pair_names(source: Source, x: str | None, y: str | None) -> tuple[_Sides, _Pairs] | Miss:
    """Return the images and masks of `masks_state`, and which belong together, by their names alone."""
    sides = _sides(source, x, y)
    pairs = _match(sides)
    # First without folders, then also without the folders' words in the stems: the files may be in other folders.
    for bare in (False, True) if y is not None else (False,):
        if isinstance(pairs, list) and 2 * len(pairs) < len(sides.images):
            pairs = _match(_by_stem(sides, bare=bare))
    if isinstance(pairs, BrokenDatasetError):
        return near(str(pairs))
    # Competitions do not publish the masks of test images.
    splits = {words.split_of_path(image.name) for image, _ in pairs}
    of_images = {words.split_of_path(image.name) for image in sides.images}
    expected = [image for image in sides.images if words.split_of_path(image.name) in splits]
    if 2 * len(pairs) < len(expected) or not pairs or (y is None and "train" in of_images - splits):
        paired = {image.name for image, _ in pairs}
        first = next((image.name for image in sides.images if image.name not in paired), "")
        msg = (
            f"Of {len(sides.images):,} images in '{source.label}' {len(pairs):,} have a mask of the same name (first "
            f"without: '{first}'); expected at least half, and some of those in train."
        )
        raise LayoutError(msg)
    return sides, pairs


# --- which files are masks --------------------------------------------------------------------------------------------


def _sides(source: Source, x: str | None, y: str | None) -> _Sides:
    files = require_files(source.ending_in(words.IMAGES), source, "images")
    folders, of_files = files.folders
    # A folder shared by all files says nothing about one of them: Dataset_with_GT.
    depth = len(words.shared_folders(f"{folder}/" for folder in folders))
    # One decision for each of the few folders: whether all files in it are masks, or none by its extension.
    below = [folder.split("/")[depth:] for folder in folders]
    spelled = [[*map(_spelled, parts)] for parts in below]
    of_masks = np.array([any(map(_MASK_FOLDER.fullmatch, parts)) for parts in spelled], np.bool_)
    of_images = np.array([any(map(words.holds_images, parts)) for parts in below], np.bool_)
    are_masks = of_masks[of_files]
    ends = tuple(word + ending.lower() for word in _MASK_ENDS for ending in files.endings[0])
    for row in (row for row, name in enumerate(files.names) if name.lower().endswith(ends)):
        if not of_images[of_files[row]]:
            are_masks[row] |= _MASK_SUFFIX.search(words.stem_of(files.names[row])) is not None
    if y is None and not are_masks.any() and len(files.endings[0]) > 1:
        # a.jpg beside a.png, as MSRA10K has them: of two formats the masks' is not the lossy one.
        stems = {name[: name.rfind(".")] for name in files.ending_in(words.JPEGS).names}
        twins = {name for name in files.not_ending_in(words.JPEGS).names if name[: name.rfind(".")] in stems}
        are_masks = np.fromiter(map(twins.__contains__, files.names), np.bool_, len(files))
    masks, images = files.take(np.flatnonzero(are_masks)), files.take(np.flatnonzero(~are_masks))
    if y is not None:
        masks = files.where(lambda name: _called(name, y) and not (x is not None and _called(name, x)))
        chosen = set(masks.names)
        images = (images if x is None else files).without(chosen)
    if x is not None:
        images = images.where(lambda name: _called(name, x))
    if not masks or not images:
        what = "masks" if y is None else f"masks in a folder '{y}', or whose names end so,"
        which = "" if x is None else f" in '{x}'"
        named = [folder for folder in folders if folder]
        where = f", in its folders {listed(named)}" if named else ""
        msg = (
            f"'{source.label}' has no {what} beside its images{which}{where}; expected a folder called masks, labels, "
            "annotations or the like, or files that end in _mask."
        )
        raise LayoutError(msg)
    return _Sides(_keys(images, depth, _IMAGE_SUFFIX, x), _keys(masks, depth, _MASK_SUFFIX, y))


def _called(name: str, wanted: str) -> bool:
    """Tell whether a file is in the given folder, or its stem has the given ending."""
    path, stem = wanted.strip("/"), words.stem_of(name)
    return f"/{path}/" in f"/{posixpath.dirname(name)}/" or (stem.endswith(wanted) and stem != wanted)


def _keys(files: FileEntries, depth: int, suffix: re.Pattern[str], called: str | None) -> dict[FileEntry, _Key]:
    own = [] if called is None else called.strip("/").split("/")

    def key(name: str) -> _Key:
        *folders, base = words.normal(name).split("/")[depth:]
        stem = posixpath.splitext(base)[0]
        if called is not None and own[-1] not in folders and stem.endswith(called) and stem != called:
            stem = stem.removesuffix(called).rstrip(" ._-")
        # A folder of one format says nothing about an image.
        named = (folder for folder in folders if folder not in own and f".{folder.lower()}" not in words.IMAGES)
        rest = map(_without_role, named)
        return tuple(filter(None, rest)), suffix.sub("", stem)

    return {file: key(file.name) for file in files}


def _spelled(folder: str) -> str:
    return "_".join(word for word in words.words_of(folder) if word not in words.OF_FOLDERS)


@functools.lru_cache(maxsize=4096)
def _without_role(folder: str) -> str:
    """Return a folder's name without the words for images or masks: train for train_labels."""
    spelled = _spelled(folder)
    found = _MASK_FOLDER.fullmatch(spelled) or _IMAGE_FOLDER.fullmatch(spelled)
    return folder.lower() if found is None else "".join(filter(None, found.groups()))


def _is_of_objects(mask: FileEntry) -> bool:
    """Tell whether a mask numbers single objects, which Mapillary and Pascal VOC have beside masks of classes."""
    return not _OBJECTS.isdisjoint(mask.name.lower().split("/")[:-1])


# --- which belongs to which -------------------------------------------------------------------------------------------


def _match(sides: _Sides) -> _Pairs | BrokenDatasetError:
    """Return each image with its mask; or the error that an image has several masks."""
    by_key: dict[_Key, FileEntry] = {}
    images = set(sides.images.values())
    for mask, key in sides.masks.items():
        other = by_key.setdefault(key, mask)
        if other is not mask and _is_of_objects(other) != _is_of_objects(mask):
            by_key[key] = mask if _is_of_objects(other) else other
        elif other is not mask and key in images:
            return _two_masks_error(other.name, mask.name)
    return [(image, by_key[key]) for image, key in sides.images.items() if key in by_key]


def _by_stem(sides: _Sides, *, bare: bool) -> _Sides:
    """Return the same without folders, if stems distinguish all images and all masks; `bare`: and without the words of
    their folders, and those that all images or all masks share (21_training, 21_manual1)."""
    made: list[dict[FileEntry, _Key]] = []
    for side in sides:
        keys = {one: stem for one, (_, stem) in side.items()}
        if bare:
            parts = [bare_stem(stem, posixpath.dirname(one.name)).split("_") for one, stem in keys.items()]
            # By their places from either end: a_0_0, a_1_0. One file alone shares nothing.
            places = range(min(map(len, parts)) if len(parts) > 1 else 0)
            front = {place for place in places if len({own[place] for own in parts}) == 1}
            back = {place for place in places if len({own[-1 - place] for own in parts}) == 1}
            kept = (
                [word for place, word in enumerate(own) if place not in front and len(own) - 1 - place not in back]
                for own in parts
            )
            keys = dict(zip(keys, map("_".join, kept), strict=True))
        if len(set(keys.values())) < len(keys):
            return sides
        made.append({one: ((), stem) for one, stem in keys.items()})
    return _Sides(*made)


def _two_masks_error(one: str, other: str) -> BrokenDatasetError:
    names = [words.folder_of(name) or words.stem_of(name) for name in (one, other)]
    if names[0] == names[1]:
        stems = [words.stem_of(one), words.stem_of(other)]
        shared = len(posixpath.commonprefix(stems).rstrip(" ._-"))
        names = [stem[shared:] for stem in stems] if shared < min(map(len, stems)) else ["NAME"]
    formats = [part for name in (one, other) for part in name.split("/") if f".{part.lower()}" in words.IMAGES]
    ways = [f"only='**/{part}'" for part in formats] if len(formats) == 2 else []
    lines = " or ".join(ways or [f"layout=image_masks('{name}')" for name in names])
    what = f"it and '{other}' may both be masks of the same image"
    return broken(one, what, f"one for each; say which folder, or end of names, counts, {lines}, or join them")


def _refuse_further(sides: _Sides, pairs: _Pairs) -> None:
    """Refuse a second mask of an image: scan_mask and scan_mask_1; and a folder of further images that are named like
    the samples: DRIVE's 1st_manual beside its mask."""
    mask_of = {sides.images[image]: mask for image, mask in pairs}
    for file, key in (sides.images | sides.masks).items():
        folders, stem = key
        without = _AGAIN.sub("", stem)
        bare = _MASK_SUFFIX.sub("", without)
        first = mask_of.get((folders, bare)) if without != stem and (file in sides.masks or bare != without) else None
        # One more word before the suffix: frame_1_color_mask beside frame_1_mask.
        if first is None and file in sides.masks:
            first = mask_of.get((folders, words.before_last_word(stem)))
        if first is not None and key not in mask_of:
            raise _two_masks_error(first.name, file.name)
    own = {posixpath.dirname(image.name) for image, _ in pairs}
    parents = set(map(posixpath.dirname, own))
    tokens = {_first_word(image.name) for image, _ in pairs}
    folders_of = {
        image.name: posixpath.dirname(image.name) for image in sides.images if _first_word(image.name) in tokens
    }
    for folder, count in Counter(folders_of.values()).items():
        base = posixpath.basename(folder)
        is_beside = folder not in own and posixpath.dirname(folder) in parents
        if is_beside and 2 * count >= len(tokens) and not words.is_split(base) and not words.is_role(base):
            raise _two_masks_error(pairs[0][1].name, next(name for name, one in folders_of.items() if one == folder))


def _first_word(name: str) -> str:
    return re.split(r"[ ._-]+", words.stem_of(name))[0]


# --- what their values mean -------------------------------------------------------------------------------------------


def _classes(source: Source) -> tuple[list[str], MaskClasses]:
    """Return the files that tools leave beside masks, and the class names and colours in them."""
    # Others with columns r, g, b may be about colours.
    named = source.ending_in(words.TABLES).where(lambda name: "class" in posixpath.basename(name).lower())
    tables = source.parse_once(named, parse_table)
    found = {name: made for name, table in tables.items() if (made := _of_table(table)) is not None}
    texts = source.ending_in((".txt", ".json") if not found else ())
    for base, read in _LISTS.items():
        named = texts.where(lambda name: posixpath.basename(name).lower() == base)  # noqa: B023
        found = found or {name: made for name, text in source.texts(named).items() if (made := read(text)).names}
    check_one_list({(*made.names, *map(str, made.colors or ())): name for name, made in reversed(found.items())})
    return list(found), next(iter(found.values()), MaskClasses())


def _of_labelmap(text: str) -> MaskClasses:
    painted = [match.groups() for match in _PAINTED.finditer(text)]
    colors = tuple((int(r), int(g), int(b)) for _, r, g, b in painted)
    return MaskClasses(tuple(name for name, *_ in painted), colors or None)


def _of_numbers(text: str) -> MaskClasses:
    """Return the names in a JSON that maps each number from 0 to one."""
    names: dict[str, Any] = dict(one for one in items_of(text) or () if isinstance(one, tuple))
    return MaskClasses(tuple(map(str, names.values())) if [*names] == [*map(str, range(len(names)))] else ())


# CVAT's, beside masks in Pascal VOC's folders; fast.ai's list of names, in the order of their numbers; the Hub's.
_LISTS: dict[str, Callable[[str], MaskClasses]] = {
    "labelmap.txt": _of_labelmap,
    "codes.txt": lambda text: MaskClasses(tuple(filter(None, map(str.strip, text.splitlines())))),
    "id2label.json": _of_numbers,
}


def _of_table(table: Table) -> MaskClasses | None:
    by_name = {column.name.lower(): column.cells for column in table.columns}
    try:
        if {"name", "r", "g", "b"} <= by_name.keys():
            colors = zip(*(map(int, by_name[part]) for part in "rgb"), strict=True)
            return MaskClasses(tuple(by_name["name"]), tuple(colors))
        # Roboflow's table, which numbers them.
        if {"pixel value", "class"} <= by_name.keys():
            numbers = [int(cell) for cell in by_name["pixel value"]]
            return MaskClasses(tuple(by_name["class"])) if numbers == list(range(len(numbers))) else None
    except ValueError as error:
        msg = f"'{table.name}' has a colour that is not a whole number: {show(error)}."
        raise LayoutError(msg) from error
    return None
