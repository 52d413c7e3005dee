"""Decide before a byte is written what a pack will be: how each sample is stored, and where.

Where a box is in the stored image depends on the image's original size, which is known only once it has been decoded.
So packing records every image's size; the boxes, which are small, are computed and written at the end (`execute`), for
a whole split at once.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import xxhash

from colabstage.errors import LayoutError, OptionError
from colabstage.h5.info import coding_to_json
from colabstage.h5.schema import (
    BOXES,
    BYTES,
    CLASSES,
    IMAGE_OPTIONS_ATTRIBUTE,
    MASK_OPTIONS_ATTRIBUTE,
    OFFSETS,
    SKIPPED,
    PackContent,
    ReservedDataset,
    key_name,
    x_name,
    y_name,
)
from colabstage.images.geometry import ImageOptions, MaskOptions
from colabstage.io.units import format_bytes, format_count
from colabstage.layouts.table import Arrays, Boxes, Images, Masks, SampleTable, Targets, UnreadBoxes, Values, files_of
from colabstage.layouts.words import originals, persons, same_split
from colabstage.trees.listing import take_strings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.images.decode import ImageFacts, Resizer
    from colabstage.pack.options import PackOptions

    Fractions = Sequence[tuple[str, float]]


# The split and the row of each sample.
#
# Both come from a hash of (seed, sample key), not from a random generator: they are the same in every version of every
# library, and a sample that is added later moves few of the others.


_GOLDEN = (5**0.5 - 1) / 2


class SplitPlan(NamedTuple):
    name: str
    samples: NDArray[np.int64]
    """int64, indices into the table, in row order."""


def key_hashes(keys: Sequence[str], *, seed: int, purpose: str) -> NDArray[np.uint64]:
    """Return one hash for each key, uint64 `(N,)`. Different purposes give independent orders."""
    # The purpose is hashed too, so that the order of rows is independent of the split.
    prefix = f"{seed}/{purpose}/".encode()
    encoded = (prefix + key.encode(errors="surrogateescape") for key in keys)
    return np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64, len(keys))


def split_rows(
    table: SampleTable, fractions: Fractions | None, *, seed: int, group_by: str | None = None
) -> dict[str, NDArray[np.int64]]:
    """Return the samples of each split, in row order: a seeded random order for `train`, the source's for others.

    Fractions divide all samples, or those of the source's `train` if it has splits. Samples of one file are always in
    one split. No split is empty.
    """
    if table.splits is not None:
        _check_whole_files(table, table.splits, "splits")
    own = table.splits or [fractions[0][0] if fractions else "train"] * len(table)
    # Those of the source in the order of first occurrence.
    names = list(dict.fromkeys([*(name for name, _ in fractions or ()), *own]))
    index = {name: number for number, name in enumerate(names)}
    assigned = np.fromiter(map(index.__getitem__, own), np.int64, len(table))
    if fractions is not None:
        if why := why_not_divided(table.splits, fractions):
            raise OptionError(why)
        divided = np.flatnonzero(assigned == index["train"]) if table.splits else np.arange(len(table))
        numbers = divide(table, fractions, divided, seed=seed, group_by=group_by)
        for (name, fraction), count in zip(fractions, np.bincount(numbers, minlength=len(fractions)), strict=True):
            # An empty split is refused here, not in the first epoch that uses it.
            if count == 0:
                msg = (
                    f"splits gives '{name}' the fraction {fraction}, which of {format_count(len(divided), 'samples')} "
                    "comes to none, if those of one group, person, place or picture stay together. Give it more, or "
                    "leave it out; group_by=r'.+' divides them too."
                )
                raise OptionError(msg)
        assigned[divided] = numbers
    rows = {name: np.flatnonzero(assigned == number) for number, name in enumerate(names)}
    # So that any range of `train` is a fair sample. Other splits keep the source's order, in which predictions are
    # usually submitted.
    if (train := rows.get("train")) is not None:
        # In one expression, so that the hashes of millions are freed before the rows exist twice.
        rows["train"] = train[
            np.argsort(key_hashes(take_strings(table.keys, train), seed=seed, purpose="row"), kind="stable")
        ]
    return rows


def why_not_divided(splits: Sequence[str] | None, fractions: Fractions) -> str:
    """Say why fractions cannot divide samples whose source has these splits; empty if they can. They divide its `train`
    among splits of other names: the same share of a split that is held out would mean nothing."""
    own = sorted(set(splits or ()))
    again = [name for name, _ in fractions if any(same_split(name, other) for other in own) and name != "train"]
    if not own or ("train" in own and "train" in dict(fractions) and not again):
        return ""
    free = next(name for name in ("val", "test", "holdout") if not any(same_split(name, other) for other in own))
    divided = f", or divide its 'train': splits={{'train': 0.9, '{free}': 0.1}}" if "train" in own else ""
    return f"The source already has splits ({', '.join(own)}); leave splits= out to use them{divided}."


def divide(
    table: SampleTable, fractions: Fractions, rows: NDArray[np.int64], *, seed: int, group_by: str | None
) -> NDArray[np.int64]:
    """Return the split of each of some samples, an index into `fractions`.

    What belongs together stays together: samples of one file, and of one group or, without groups, of one owner.
    """
    groups = table.groups if group_by is None else groups_of_keys(group_by, table.keys)
    if groups is not None:
        _check_whole_files(table, groups, "groups")
    units = _units(table) if groups is None else _numbered(groups)
    keys = table.keys if groups is None else groups
    purpose, labels = "split" if groups is None else "group", strata_of(table)[rows]
    if units is None:
        hashes = key_hashes(take_strings(keys, rows), seed=seed, purpose=purpose)
        return _assign(hashes, labels, np.ones(len(rows), np.int64), fractions)
    # All go where the first sample would, as samples of the rarest class among them: it has the fewest units.
    _, firsts, members, sizes = np.unique(units[rows], return_index=True, return_inverse=True, return_counts=True)
    hashes = key_hashes(take_strings(keys, rows[firsts]), seed=seed, purpose=purpose)
    # The inverse has different shapes in different versions of numpy.
    members, (_, classes, counts) = members.reshape(-1), np.unique(labels, return_inverse=True, return_counts=True)
    rarest = np.lexsort((counts[classes.reshape(-1)], members))[np.cumsum(sizes) - sizes]
    return _assign(hashes, labels[rarest], sizes, fractions)[members]


def _assign(
    hashes: NDArray[np.uint64], labels: NDArray[np.int64], sizes: NDArray[np.int64], fractions: Fractions
) -> NDArray[np.int64]:
    """Divide units of samples among splits, in the order of their hashes, and stratified: every split gets its fraction
    of the samples of every class, within one unit.

    `hashes`, `labels`, `sizes`: `(N,)`, those of each unit. `fractions`: adding up to 1.

    Returns:
        int64 `(N,)`, index into `fractions` of each unit's split.
    """
    # Each class is rounded by itself, so that adding a sample moves only samples of its own class. Classes are rounded
    # differently, so that errors cancel out and the totals are right as well.
    edges = np.cumsum([fraction for _, fraction in fractions])[:-1]
    assigned = np.empty(len(hashes), dtype=np.int64)
    order = np.lexsort((hashes, labels))
    starts = np.unique(labels[order], return_index=True)[1]
    for number, members in enumerate(np.split(order, starts)[1:]):
        # All edges of a class are rounded alike, so the count between two of them is rounded up or down, no further.
        # Half, for the first class, rounds to the nearest; the golden ratio spreads the roundings of any number of
        # classes.
        rounding = (0.5 + number * _GOLDEN) % 1
        ends = np.cumsum(sizes[members])
        # A product that is an integer but for a float's last bit is meant to be one.
        assigned[members] = np.searchsorted(edges * ends[-1] + 1e-9, ends - rounding * sizes[members])
    return assigned


def groups_of_keys(pattern: str, keys: Sequence[str]) -> list[str]:
    """Return what a regular expression finds in each key: its first group if it has one, otherwise the whole match."""
    found = [re.search(pattern, key) for key in keys]
    missing = next((key for key, match in zip(keys, found, strict=True) if match is None), None)
    if missing is not None:
        msg = f"group_by={pattern!r} finds nothing in '{missing}'; expected a part of every sample's name."
        raise OptionError(msg)
    return [(match[1] or "") if match.re.groups else match[0] for match in found if match is not None]


def _files(table: SampleTable) -> NDArray[np.int64] | None:
    """Return the number of the file that each sample comes from, int64 `(N,)`; `None` if no two come from one file."""
    names = files_of(table).names
    # Most layouts use file names as keys, which are unique.
    return None if names is table.keys else _numbered(names)


def _units(table: SampleTable) -> NDArray[np.int64] | None:
    """Return the number of the file that each sample comes from, or of its owner, int64 `(N,)`; `None` if no two come
    from one."""
    return _numbered(owners(files_of(table).names, strata_of(table)))


def owners(names: Sequence[str], labels: NDArray[np.int64] | None = None) -> list[str]:
    """Return what files belong to by their names, so that all of one are in one split: the person whom they show, or
    the picture or video that they are copies or pieces of.

    `labels`: the class of each. What has half of a class, such as a person who is one, or a single video, does not own
    the files of this class.
    """
    owned = list(names)
    for found in (originals(names), persons(names)):
        # Of a million names, most tell nothing.
        if not found or found is names:
            continue
        pairs = [*zip(found, itertools.repeat(None) if labels is None else labels.tolist(), strict=False)]
        sizes, counts = Counter(label for _, label in pairs), Counter(pairs if labels is not None else ())
        whole = {pair for pair, count in counts.items() if sizes[pair[1]] <= 2 * count}
        owned = [pair[0] if pair[0] and pair not in whole else own for pair, own in zip(pairs, owned, strict=True)]
    return owned


def _numbered(names: Sequence[str]) -> NDArray[np.int64] | None:
    """Return a number for each distinct name, int64 `(N,)`; `None` if all differ."""
    numbers = dict(zip(dict.fromkeys(names), itertools.count(), strict=False))
    return np.fromiter(map(numbers.__getitem__, names), np.int64, len(names)) if len(numbers) < len(names) else None


def _check_whole_files(table: SampleTable, parts: Sequence[str], what: str) -> None:
    """Refuse a file whose samples are in two splits or groups: it would be both trained on and tested with."""
    files = _files(table)
    seen: dict[int, str] = {}
    for sample, (file, part) in enumerate(zip(files.tolist(), parts, strict=True) if files is not None else ()):
        if seen.setdefault(file, part) != part:
            name = table.inputs.source.name(sample)
            msg = f"'{name}' has samples in the {what} '{seen[file]}' and '{part}'. Take it out of one of them."
            raise LayoutError(msg)


def strata_of(table: SampleTable) -> NDArray[np.int64]:
    """Return what every split should have its share of: the class of each sample if it has one, otherwise one for all.

    Integers count as classes, whatever they are called, unless most samples have one of their own.
    """
    targets = table.targets
    if isinstance(targets, Values) and targets.values.ndim == 1 and targets.values.dtype.kind in "biu":
        labels = targets.values.astype(np.int64)
        # Integers may also be counts or prices, most of which occur once.
        if table.classes or 2 * len(np.unique(labels)) <= len(labels):
            return labels
    return np.zeros(len(table), np.int64)


_UINT8 = np.dtype(np.uint8)
# Left free on the disk: the rest of the session needs some, and a full disk fails in ways that nobody has tested.
_SPARE_FRACTION = 0.05
# A JPEG photograph of quality 90 takes about two bits a pixel; twice that is planned for.
_PIXELS_OF_A_BYTE = 2
# Importing a torch before 2.10 takes one core 1.6 s; its kernel saves 1 ms for each photograph, divided among all
# cores. The number shows in the bytes, so it stays although loading the kernel alone takes 0.2 s.
TORCH_SAMPLES = 2_000
TORCH_BYTES = 4_096
# Said in advance, because a list surprises people who expect `x.to(device)` to work.
LISTS = "; a batch of them is a list, and with {} it is a tensor"
_ONE_SIZE, _ONE_FORM = "image_size=(height, width)", "color_mode='rgb'"
# Part of the reason in a file that a machine with more free space would have stored as pixels.
_NO_ROOM = "are free, so they are kept as they are"


@dataclass(frozen=True, slots=True)
class StoredField:
    """How one side of all N samples is stored in the file; each sample has a place of its own."""

    side: Literal["x", "y"]
    shape: tuple[int, ...] | None
    """Shape of one row; `None` for bytes whose lengths differ."""
    dtype: np.dtype[Any]
    lengths: NDArray[np.int64] | None = None
    """int64 `(N,)`, bytes of each sample, if `shape` is `None`; `None` until all samples have been encoded."""
    coding: ImageOptions | MaskOptions | None = None
    """How bytes are decoded."""

    @property
    def attributes(self) -> dict[str, dict[str, Any]]:
        """Return the attributes of the group of bytes, which say how to decode them."""
        name = MASK_OPTIONS_ATTRIBUTE if isinstance(self.coding, MaskOptions) else IMAGE_OPTIONS_ATTRIBUTE
        return {} if self.coding is None else {name: coding_to_json(self.coding)}

    @property
    def is_open(self) -> bool:
        """Return whether the places of its samples are still unknown."""
        return self.shape is None and self.lengths is None

    @property
    def row_bytes(self) -> int:
        """Return the length of one row in bytes; 0 if lengths differ."""
        return 0 if self.shape is None else int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def name(self, split: str) -> str:
        return x_name(split) if self.side == "x" else y_name(split)

    def lengths_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many bytes each of some samples has."""
        if self.lengths is None:
            return np.full(len(samples), self.row_bytes, np.int64)
        return self.lengths[samples]

    def reserve(self, split: SplitPlan) -> ReservedDataset:
        """Return the dataset that holds a split's samples, to be written later."""
        name = self.name(split.name)
        if self.shape is not None:
            return ReservedDataset(name, (len(split.samples), *self.shape), self.dtype)
        return ReservedDataset(f"{name}/{BYTES}", (int(self.lengths_of(split.samples).sum()),), self.dtype)

    def offsets(self, split: SplitPlan) -> dict[str, NDArray[np.int64]]:
        """Return where each row of bytes begins and ends, int64 `(rows + 1,)`, by the dataset's name.

        Rows of one shape have no offsets.
        """
        if self.shape is not None:
            return {}
        ends = np.cumsum(self.lengths_of(split.samples))
        return {f"{self.name(split.name)}/{OFFSETS}": np.concatenate([[0], ends]).astype(np.int64)}

    def places(self, splits: Sequence[SplitPlan], offsets: Mapping[str, int], count: int) -> NDArray[np.int64]:
        """Return where in the file each sample's bytes begin, int64 `(count,)`, by the sample's number.

        `offsets`: of the reserved datasets, as `create_pack` returns them. Samples of no split have no place.
        """
        places = np.zeros(count, dtype=np.int64)
        for split in splits:
            # Final before the first sample is decoded, so that threads write each one straight into its place, in any
            # order, without HDF5's lock.
            lengths = self.lengths_of(split.samples)
            places[split.samples] = offsets.get(self.reserve(split).name, 0) + np.cumsum(lengths) - lengths
        return places


@dataclass(frozen=True, slots=True)
class PackPlan:
    encoding: str
    """How inputs are stored, with `"auto"` decided: `"pixels"`, `"encoded"`, `"jpeg:Q"`, or `"arrays"` for others."""
    reason: str
    x: StoredField
    """The inputs. If only a few images were examined, another one may still contradict their shape."""
    y: StoredField | None
    """Targets that are read with the samples; `None` if they are known in advance."""
    splits: tuple[SplitPlan, ...]
    open_bytes: int = 0
    """An estimate of the size of inputs whose lengths are not known yet."""
    resizer: Resizer | None = None
    """What resizes the images, which shows in the bytes; `None` if they are not resized."""

    @property
    def fields(self) -> tuple[StoredField, ...]:
        """Return the fields that each sample is written to."""
        return (self.x,) if self.y is None else (self.x, self.y)

    @property
    def is_open(self) -> bool:
        """Return whether some places are known only once all samples have been read."""
        return any(part.is_open for part in self.fields)

    @property
    def nbytes(self) -> int:
        """Return the length of all samples in the file, in bytes."""
        known = sum(int(part.lengths_of(split.samples).sum()) for part in self.fields for split in self.splits)
        return known + (self.open_bytes if self.x.is_open else 0)


def reserve_boxes(boxes: Boxes, split: SplitPlan) -> list[ReservedDataset]:
    """Return the datasets of a split's boxes: offsets, coordinates and each further column."""
    group, count = y_name(split.name), int(np.diff(boxes.offsets)[split.samples].sum())
    return [
        ReservedDataset(f"{group}/{OFFSETS}", (len(split.samples) + 1,), np.dtype(np.int64)),
        ReservedDataset(f"{group}/{BOXES}", (count, 4), np.dtype(np.float32)),
        *(
            ReservedDataset(f"{group}/{name}", (count, *values.shape[1:]), values.dtype)
            for name, values in sorted(boxes.columns.items())
        ),
    ]


def pack_content(
    table: SampleTable,
    plan: PackPlan,
    options: PackOptions,
    *,
    attributes: Mapping[str, Any],
    skipped: Sequence[str] = (),
) -> PackContent:
    """Return everything that the file holds before its samples.

    `skipped` has one sentence for each sample that was left out.
    """
    reserved: list[ReservedDataset] = []
    arrays: dict[str, NDArray[Any] | Sequence[str]] = {
        CLASSES: table.classes,
        **({SKIPPED: skipped} if skipped else {}),
    }
    # Bytes of unknown length are spooled first, and get a dataset in the final file.
    known = [part for part in plan.fields if not part.is_open]
    for split in plan.splits:
        arrays[key_name(split.name)] = take_strings(table.keys, split.samples)
        if isinstance(table.targets, Values):
            arrays[y_name(split.name)] = table.targets.values[split.samples]
        elif isinstance(table.targets, Boxes):
            reserved += reserve_boxes(table.targets, split)
        reserved += [part.reserve(split) for part in known]
        for part in known:
            arrays.update(part.offsets(split))
    groups = {part.name(split.name): part.attributes for split in plan.splits for part in known if part.attributes}
    return PackContent(reserved, arrays, {"layout": table.layout, "options": options.to_json(), **attributes}, groups)


def image_options(table: SampleTable, options: PackOptions) -> ImageOptions:
    """Return how images become what is stored, with the colour mode decided."""
    # Arrays keep their channels, which somebody chose; except for JPEG, which has only some forms. Files become RGB,
    # because a folder of photographs usually holds a few grey ones.
    if options.image.color_mode != "auto":
        return options.image
    keeps = isinstance(table.inputs, Images) and table.inputs.own_channels and options.jpeg_quality is None
    return replace(options.image, color_mode="keep" if keeps else "rgb")


def mask_options(masks: Masks, options: PackOptions) -> MaskOptions:
    """Return how masks become class indices, with the geometry of their images."""
    return MaskOptions(options.image.size, options.image.resize, masks.colors, masks.foreground)


def has_files(table: SampleTable) -> bool:
    """Return whether images, and masks if there are any, are files that can be stored unchanged."""
    parts = (table.inputs, table.targets) if isinstance(table.targets, Masks) else (table.inputs,)
    return all(isinstance(part, Images | Masks) and not part.decoded for part in parts)


def needs_facts(table: SampleTable, options: PackOptions) -> bool:
    """Return whether some images must be examined before planning, because options alone do not tell in which form and
    shape they are stored."""
    image = image_options(table, options)
    knows = options.encoding not in ("auto", "pixels") or (image.size is not None and image.color_mode != "keep")
    # Arrays may be maps or points of the image, which are compared with its size.
    is_array = len(_target_shape(table.targets)) > isinstance(table.targets, Values)
    return isinstance(table.inputs, Images) and (not knows or is_array)


def gains_by_torch(table: SampleTable, options: PackOptions) -> bool:
    """Return whether the images to resize are so many, and so large, that importing torch pays."""
    # By samples and options alone, not by cores or by whether torch happens to be imported, because the resizer shows
    # in the bytes.
    if not isinstance(table.inputs, Images) or options.image.size is None or options.encoding == "encoded":
        return False
    if options.image.color_mode == "grayscale" or len(table) < TORCH_SAMPLES:
        return False
    return int(table.inputs.source.sizes.sum()) >= TORCH_BYTES * len(table)


def plan_pack(
    table: SampleTable,
    options: PackOptions,
    *,
    facts: Sequence[ImageFacts],
    free_bytes: int | None,
    has_torch: bool = False,
) -> PackPlan:
    """Decide how `table` is stored.

    `facts`: those of a few images, if `needs_facts` says so. `free_bytes`: the free space of the disk; `None` to skip
    the question whether the pack fits. `has_torch`: whether torch's kernel is available to resize images.
    """
    rows = split_rows(table, options.fractions, seed=options.seed, group_by=options.group_by)
    splits = tuple(SplitPlan(name, samples) for name, samples in rows.items())
    if isinstance(table.inputs, Arrays):
        if options.encoding not in ("auto", "pixels"):
            msg = (
                f"encoding={options.encoding!r} is for images; the samples of the layout '{table.layout}' are arrays. "
                "Leave it out."
            )
            raise OptionError(msg)
        x, y = StoredField("x", table.inputs.shape, table.inputs.dtype), plan_target(table, options, None)
        return PackPlan("arrays", "the samples are arrays of one shape", x, y, splits)
    _check_resized(table.targets, options.image.size, facts)
    if options.jpeg_quality is not None:
        plan = _plan_jpeg(table.inputs, table, options, splits)
    elif options.encoding != "encoded":
        plan = _plan_pixels(table, options, splits, facts, free_bytes)
    elif has_files(table):
        plan = _plan_files(table, options, splits, "encoding='encoded' was asked for")
    else:
        msg = f"The layout '{table.layout}' gives decoded arrays, no image files to keep. Use encoding='pixels'."
        raise OptionError(msg)
    if options.image.size is None or plan.encoding == "encoded":
        return plan
    # Decided before anything is written, and recorded in the file: the two filters differ by a grey level.
    return replace(plan, resizer="torch" if has_torch and gains_by_torch(table, options) else "pillow")


def _target_shape(targets: Targets | None) -> tuple[int, ...]:
    """Return the shape of the numbers of each sample, which are stored as they are; () for others."""
    if isinstance(targets, Values):
        return targets.values.shape[1:]
    return targets.shape if isinstance(targets, Arrays) else ()


def _check_resized(targets: Targets | None, size: tuple[int, int] | None, facts: Sequence[ImageFacts]) -> None:
    """Refuse a size for images whose targets are arrays of their height and width, which would keep theirs."""
    sides, shape = {(fact.height, fact.width) for fact in facts}, _target_shape(targets)
    if size is not None and sides and not sides <= {size} and sides <= {shape[:2], shape[-2:]}:
        msg = (
            f"image_size={size} would resize the images and not their targets, arrays of {'x'.join(map(str, shape))}, "
            "the images' own height and width. Leave it out and resize both in a transform; or give masks as one whole "
            "number for each pixel, which are resized with the images."
        )
        raise OptionError(msg)


def _plan_files(table: SampleTable, options: PackOptions, splits: tuple[SplitPlan, ...], reason: str) -> PackPlan:
    """Plan images whose files are stored unchanged."""
    # The listing has the lengths of the files, so their places are known before one is read.
    x = StoredField("x", None, _UINT8, table.inputs.source.sizes, options.image)
    return PackPlan("encoded", reason, x, plan_target(table, options, None), splits)


def _plan_jpeg(images: Images, table: SampleTable, options: PackOptions, splits: tuple[SplitPlan, ...]) -> PackPlan:
    """Plan images that are encoded again, whose lengths are known only afterwards."""
    size = options.image.size
    # Stored images already have the final size; resizing them again when they are read changes nothing.
    x = StoredField("x", None, _UINT8, coding=options.image)
    y = plan_target(table, options, None if size is None else (*size, 3))
    # Only for the check of free space; the file becomes as large as its JPEGs are.
    guess = int(images.source.sizes.sum()) if size is None else len(table) * size[0] * size[1] // _PIXELS_OF_A_BYTE
    return PackPlan(options.encoding, f"encoding='{options.encoding}' was asked for", x, y, splits, guess)


def _plan_pixels(
    table: SampleTable,
    options: PackOptions,
    splits: tuple[SplitPlan, ...],
    facts: Sequence[ImageFacts],
    free_bytes: int | None,
) -> PackPlan:
    """Plan images that are decoded; with `encoding="auto"`, as files if they differ in form, or do not fit."""
    image = image_options(table, options)
    channels = {"rgb": 3, "grayscale": 1}.get(image.color_mode)
    # What options determine is the same for all; what only the files tell may differ.
    sizes = {image.size} if image.size else {(fact.height, fact.width) for fact in facts}
    forms = {(channels, _UINT8)} if channels else {(fact.channels, np.dtype(fact.dtype)) for fact in facts}
    if len(sizes) != 1 or len(forms) != 1:
        trouble, remedy = _why_not_pixels(sizes, forms)
        if options.encoding == "pixels" or not has_files(table):
            kept = "encoded" if has_files(table) else "jpeg:90"
            whole = f"{trouble[:1].upper()}{trouble[1:]}"
            msg = f"{whole}, so they cannot be pixels. Give {remedy}, or encoding='{kept}'."
            raise LayoutError(msg)
        return _plan_files(table, options, splits, f"{trouble}, so they are kept as they are{LISTS.format(remedy)}")
    (height, width), (depth, dtype) = sizes.pop(), forms.pop()
    shape = (height, width, depth)
    plan = PackPlan("pixels", "", StoredField("x", shape, dtype), plan_target(table, options, shape), splits)
    if options.encoding == "pixels":
        return replace(plan, reason="encoding='pixels' was asked for")
    size, nbytes = f"{height}x{width}x{depth}", plan.nbytes
    fits = free_bytes is None or nbytes <= free_bytes * (1 - _SPARE_FRACTION)
    if not fits and has_files(table):
        reason = (
            f"as {size} pixels they would take {format_bytes(nbytes)} and {format_bytes(free_bytes or 0)} {_NO_ROOM} "
            "and decoded on every read"
        )
        return _plan_files(table, options, splits, reason)
    room = ", which fits on the disk" if fits else ""
    return replace(plan, reason=f"as {size} pixels they take {format_bytes(nbytes)}{room}; no image is decoded again")


def plan_target(table: SampleTable, options: PackOptions, image_shape: tuple[int, ...] | None) -> StoredField | None:
    """Plan how targets that are read with the samples are stored; masks like their images."""
    targets = table.targets
    if isinstance(targets, Arrays):
        return StoredField("y", targets.shape, targets.dtype)
    # Their number is known only at the end; until then their rows are spooled.
    if isinstance(targets, UnreadBoxes):
        return StoredField("y", None, targets.dtype)
    if not isinstance(targets, Masks):
        return None
    if image_shape is not None:
        return StoredField("y", image_shape[:2], _UINT8)
    return StoredField("y", None, _UINT8, targets.source.sizes, mask_options(targets, options))


def why_kept(image: ImageOptions) -> str:
    """Return why images are stored as files although the few examined ones have a common form, and the remedy."""
    sizes, forms = image.size is None, image.color_mode == "keep"
    what = " or ".join(["many sizes"] * sizes + ["different channels"] * forms)
    remedy = " and ".join([_ONE_SIZE] * sizes + [_ONE_FORM] * forms)
    return f"the images have {what}, so they are kept as they are{LISTS.format(remedy)}"


def _why_not_pixels(sizes: set[tuple[int, int]], forms: set[tuple[int, np.dtype[Any]]]) -> tuple[str, str]:
    """Return why images of these sizes and forms have no common row, and the options that give them one."""
    # Rows of one shape make reading fast; several shapes would need padding, or a size that nobody asked for.
    if len(sizes) > 1:
        (a, b), (c, d) = min(sizes), max(sizes)
        remedy = f"{_ONE_SIZE} and {_ONE_FORM}" if len(forms) > 1 else _ONE_SIZE
        return f"the images have many sizes ({a}x{b} to {c}x{d})", remedy
    if len(forms) > 1:
        kinds = ", ".join(sorted(f"{channels} x {dtype}" for channels, dtype in forms))
        return f"the images have different channels ({kinds})", _ONE_FORM
    return "no image could be looked at", _ONE_SIZE
