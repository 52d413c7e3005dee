"""Deciding what a pack will be, before a byte of it is written. Pure: facts in, plan out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from colabstage.errors import LayoutError
from colabstage.h5.create import PackContent, ReservedDataset
from colabstage.h5.info import image_options_to_json
from colabstage.h5.names import (
    BYTES,
    CLASSES,
    IMAGE_OPTIONS_ATTRIBUTE,
    OFFSETS,
    SKIPPED,
    key_name,
    x_name,
    y_name,
)
from colabstage.pack.splits import split_rows
from colabstage.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.images.decode import ImageFacts
    from colabstage.layouts.table import SampleTable
    from colabstage.pack.options import PackOptions

# Left free on the disk: other things of the session need some, and a full disk fails in ways nobody tested.
_SPARE_FRACTION = 0.05


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """One split: `samples` are int64 indices into the table, in row order."""

    name: str
    samples: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackPlan:
    """What will be written.

    `encoding`: what `"auto"` came to, with the `reason` in a sentence.
    `row_shape`, `dtype`: of one stored image; `None` and uint8 when encoded. Where a few images only were looked at,
    another may yet contradict it.
    `nbytes`: length of all samples in the file, in bytes.
    """

    encoding: Literal["pixels", "encoded"]
    reason: str
    row_shape: tuple[int, int, int] | None
    dtype: np.dtype[Any]
    splits: tuple[SplitPlan, ...]
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Length of one stored image in bytes; 0 when encoded."""
        return 0 if self.row_shape is None else int(np.prod(self.row_shape)) * self.dtype.itemsize


def needs_facts(options: PackOptions) -> bool:
    """Whether some images must be looked at before planning."""
    known = options.image.size is not None and options.image.color_mode != "keep"
    return options.encoding != "encoded" and not known


def plan_pack(
    table: SampleTable,
    options: PackOptions,
    *,
    facts: Sequence[ImageFacts],
    free_bytes: int | None,
) -> PackPlan:
    """Decide how `table` is stored.

    Args:
        table: the samples.
        options: what the caller asked for.
        facts: of a few images, where `needs_facts`.
        free_bytes: what the disk has left; `None` skips the question whether it fits.

    Raises:
        LayoutError: pixels are asked for images that have no one size.
        OptionError: splits are asked of a source that has its own.
    """
    rows = split_rows(table, options.splits, seed=options.seed)
    splits = tuple(SplitPlan(name, samples) for name, samples in rows.items())
    source_bytes = sum(entry.size for entry in table.files)
    encoded = PackPlan("encoded", "", None, np.dtype(np.uint8), splits, source_bytes)
    if options.encoding == "encoded":
        return _because(encoded, "encoding='encoded' was asked for")
    shape, dtype, trouble = _row_shape(options, facts)
    if shape is None:
        if options.encoding == "pixels":
            msg = f"{trouble}, so they cannot be pixels. Give image_size=(height, width), or encoding='encoded'."
            raise LayoutError(msg)
        return _because(encoded, f"{trouble}, so they are kept as they came")
    nbytes = len(table) * int(np.prod(shape)) * dtype.itemsize
    pixels = PackPlan("pixels", "", shape, dtype, splits, nbytes)
    if options.encoding == "pixels":
        return _because(pixels, "encoding='pixels' was asked for")
    size = f"{shape[0]}x{shape[1]}x{shape[2]}"
    if free_bytes is not None and nbytes > free_bytes * (1 - _SPARE_FRACTION):
        why = (
            f"as {size} pixels they would take {format_bytes(nbytes)} and {format_bytes(free_bytes)} are free, "
            "so they are kept as they came and decoded on every read"
        )
        return _because(encoded, why)
    return _because(
        pixels, f"as {size} pixels they take {format_bytes(nbytes)}, which fits, and are never decoded again"
    )


def _because(plan: PackPlan, reason: str) -> PackPlan:
    return replace(plan, reason=reason)


def _row_shape(
    options: PackOptions, facts: Sequence[ImageFacts]
) -> tuple[tuple[int, int, int] | None, np.dtype[Any], str]:
    """The one shape of all images as far as `facts` tell, and its dtype; or no shape, with the reason."""
    image = options.image
    uint8 = np.dtype(np.uint8)
    channels = {"rgb": 3, "grayscale": 1}.get(image.color_mode)
    if image.size is not None and channels is not None:
        return (*image.size, channels), uint8, ""
    sizes = {image.size or (fact.height, fact.width) for fact in facts}
    depths = {channels or fact.channels for fact in facts}
    dtypes = {uint8 if channels else np.dtype(fact.dtype) for fact in facts}
    if len(sizes) > 1:
        (a, b), (c, d) = min(sizes), max(sizes)
        return None, uint8, f"the images have many sizes ({a}x{b} to {c}x{d})"
    if len(depths) > 1 or len(dtypes) > 1:
        kinds = ", ".join(sorted({f"{fact.channels} x {np.dtype(fact.dtype)}" for fact in facts}))
        return None, uint8, f"the images have different channels ({kinds})"
    if not facts:
        return None, uint8, "no image could be looked at"
    height, width = sizes.pop()
    return (height, width, depths.pop()), dtypes.pop(), ""


def pack_content(
    table: SampleTable,
    plan: PackPlan,
    options: PackOptions,
    *,
    attributes: Mapping[str, Any],
    skipped: Sequence[str] = (),
) -> PackContent:
    """All that the file holds before its samples: labels, keys, offsets, classes, and room for the samples.

    `skipped` has one sentence for each sample that was left out.
    """
    reserved: list[ReservedDataset] = []
    arrays: dict[str, NDArray[Any]] = {CLASSES: np.array(table.classes, dtype=object)}
    if skipped:
        arrays[SKIPPED] = np.array(skipped, dtype=object)
    groups: dict[str, Mapping[str, Any]] = {}
    sizes = np.fromiter((entry.size for entry in table.files), dtype=np.int64, count=len(table))
    for split in plan.splits:
        name = x_name(split.name)
        arrays[y_name(split.name)] = table.labels[split.samples]
        arrays[key_name(split.name)] = np.array([table.files[i].name for i in split.samples.tolist()], dtype=object)
        if plan.row_shape is not None:
            reserved.append(ReservedDataset(name, (len(split.samples), *plan.row_shape), plan.dtype))
            continue
        offsets = np.concatenate([[0], np.cumsum(sizes[split.samples])]).astype(np.int64)
        arrays[f"{name}/{OFFSETS}"] = offsets
        reserved.append(ReservedDataset(f"{name}/{BYTES}", (int(offsets[-1]),), np.dtype(np.uint8)))
        groups[name] = {IMAGE_OPTIONS_ATTRIBUTE: image_options_to_json(options.image)}
    return PackContent(
        reserved=reserved,
        arrays=arrays,
        attributes={"layout": table.layout, "options": options.to_json(), **attributes},
        group_attributes=groups,
    )


def sample_places(table: SampleTable, plan: PackPlan, offsets: Mapping[str, int]) -> NDArray[np.int64]:
    """Where in the file each sample's bytes begin, int64 `(N,)`, indexed like the table."""
    places = np.empty(len(table), dtype=np.int64)
    sizes = np.fromiter((entry.size for entry in table.files), dtype=np.int64, count=len(table))
    for split in plan.splits:
        name = x_name(split.name)
        if plan.row_shape is not None:
            places[split.samples] = offsets[name] + np.arange(len(split.samples)) * plan.row_bytes
        else:
            starts = np.concatenate([[0], np.cumsum(sizes[split.samples])[:-1]])
            places[split.samples] = offsets.get(f"{name}/{BYTES}", 0) + starts
    return places
