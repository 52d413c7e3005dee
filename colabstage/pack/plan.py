"""Deciding what a pack will be, before a byte of it is written. Pure: facts in, plan out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import LayoutError, OptionError
from colabstage.h5.info import image_options_to_json, mask_options_to_json
from colabstage.h5.schema import IMAGE_OPTIONS_ATTRIBUTE, MASK_OPTIONS_ATTRIBUTE
from colabstage.images.options import MaskOptions
from colabstage.io.units import format_bytes
from colabstage.layouts.table import Arrays, Images, Masks
from colabstage.pack.fields import StoredField
from colabstage.pack.splits import SplitPlan, split_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.h5.info import PackInfo
    from colabstage.images.decode import ImageFacts
    from colabstage.images.options import ImageOptions
    from colabstage.images.resample import Resizer
    from colabstage.layouts.table import SampleTable
    from colabstage.pack.options import PackOptions

# Left free on the disk: other things of the session need some, and a full disk fails in ways nobody tested.
_SPARE_FRACTION = 0.05
# A photograph as JPEG of quality 90 takes about two bits a pixel; twice that is planned for.
_PIXELS_OF_A_BYTE = 2
# Importing torch takes one core 1.6 s; its kernel saves 1 ms with a photograph, which all cores share.
TORCH_SAMPLES = 2_000
"""So many images are worth importing torch for,"""
TORCH_BYTES = 4_096
"""of so many bytes in the mean. Those of a few thousand pixels take Pillow no longer than torch."""


# How a file says that another machine, or a later day, might have stored pixels.
_NO_ROOM = "are free, so they are kept as they came"


def lacked_room(info: PackInfo) -> bool:
    """Whether `encoding="auto"` kept the files' own bytes of a pack only because pixels did not fit on that disk."""
    return info.encoding == "encoded" and _NO_ROOM in (info.encoding_reason or "")


@dataclass(frozen=True, slots=True)
class PackPlan:
    """What will be written.

    `encoding`: how inputs are stored: `"pixels"`, `"encoded"`, `"jpeg:Q"`, or `"arrays"` where they are no images;
    what `"auto"` came to, with the `reason` in a sentence.
    `x`: the inputs. Where a few images only were looked at, another may yet contradict their shape.
    `y`: targets that are read with the samples, `None` where they are known before.
    `splits`: the samples of each split, in row order.
    `open_bytes`: about how much inputs will take whose lengths are not known yet.
    `resizer`: what scales the images, which shows in the bytes; `None` where they are not scaled.
    """

    encoding: str
    reason: str
    x: StoredField
    y: StoredField | None
    splits: tuple[SplitPlan, ...]
    open_bytes: int = 0
    resizer: Resizer | None = None

    @property
    def fields(self) -> tuple[StoredField, ...]:
        """What each sample is written to."""
        return (self.x,) if self.y is None else (self.x, self.y)

    @property
    def nbytes(self) -> int:
        """Length of all samples in the file, in bytes."""
        known = sum(int(part.lengths_of(split.samples).sum()) for part in self.fields for split in self.splits)
        return known + (self.open_bytes if self.x.is_open else 0)


def image_options(table: SampleTable, options: PackOptions) -> ImageOptions:
    """How images become what is stored: rows of arrays keep their channels unless others are asked for, or JPEG, which
    needs a form of its own; all else becomes RGB."""
    if options.image.color_mode != "auto":
        return options.image
    keeps = isinstance(table.inputs, Images) and table.inputs.own_channels and options.jpeg_quality is None
    return replace(options.image, color_mode="keep" if keeps else "rgb")


def needs_facts(table: SampleTable, options: PackOptions) -> bool:
    """Whether some images must be looked at before planning."""
    image = image_options(table, options)
    known = image.size is not None and image.color_mode != "keep"
    return isinstance(table.inputs, Images) and options.encoding in ("auto", "pixels") and not known


def gains_by_torch(table: SampleTable, options: PackOptions) -> bool:
    """Whether so many images of three channels, and so large ones, are to be resized that importing torch pays.

    Depends on the samples and options alone: not on cores, nor on whether torch happens to be imported already, since
    the resizer shows in the bytes.
    """
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

    Args:
        table: the samples.
        options: what the caller asked for.
        facts: of a few images, where `needs_facts`.
        free_bytes: what the disk has left; `None` skips the question whether it fits.
        has_torch: whether torch's kernel is there to resize images.

    Raises:
        LayoutError: pixels are asked for images that have no one size.
        OptionError: splits are asked of a source that has its own; an encoding that these samples cannot have.
    """
    rows = split_rows(table, options.splits, seed=options.seed, group_by=options.group_by)
    splits = tuple(SplitPlan(name, samples) for name, samples in rows.items())
    if isinstance(table.inputs, Arrays):
        return _plan_arrays(table.inputs, table, options, splits)
    plan = _plan_images(table.inputs, table, options, splits, facts, free_bytes)
    if options.image.size is None or plan.encoding == "encoded":
        return plan
    return replace(plan, resizer="torch" if has_torch and gains_by_torch(table, options) else "pillow")


def _plan_arrays(inputs: Arrays, table: SampleTable, options: PackOptions, splits: tuple[SplitPlan, ...]) -> PackPlan:
    if options.encoding not in ("auto", "pixels"):
        msg = (
            f"encoding={options.encoding!r} is for images; the samples of the layout '{table.layout}' are arrays. "
            "Leave it out."
        )
        raise OptionError(msg)
    x = StoredField("x", inputs.shape, inputs.dtype)
    return PackPlan("arrays", "the samples are arrays of one shape", x, _plan_target(table, options, None), splits)


def _plan_images(  # noqa: PLR0917  # what one decision needs, each passed on once
    images: Images,
    table: SampleTable,
    options: PackOptions,
    splits: tuple[SplitPlan, ...],
    facts: Sequence[ImageFacts],
    free_bytes: int | None,
) -> PackPlan:
    def encoded(reason: str) -> PackPlan:
        group = {IMAGE_OPTIONS_ATTRIBUTE: image_options_to_json(options.image)}
        x = StoredField("x", None, np.dtype(np.uint8), lengths=images.source.sizes, attributes=group)
        return PackPlan("encoded", reason, x, _plan_target(table, options, None), splits)

    if options.jpeg_quality is not None:
        return _plan_jpeg(images, table, options, splits)
    if options.encoding == "encoded":
        _check_files(images, table)
        return encoded("encoding='encoded' was asked for")
    shape, dtype, trouble = _row_shape(image_options(table, options), facts)
    if shape is None:
        if options.encoding == "pixels" or not _has_files(images, table):
            msg = f"{trouble}, so they cannot be pixels. Give image_size=(height, width), or encoding='encoded'."
            raise LayoutError(msg)
        return encoded(f"{trouble}, so they are kept as they came")
    x = StoredField("x", shape, dtype)
    pixels = PackPlan("pixels", "", x, _plan_target(table, options, shape), splits)
    if options.encoding == "pixels":
        return replace(pixels, reason="encoding='pixels' was asked for")
    size = f"{shape[0]}x{shape[1]}x{shape[2]}"
    nbytes = pixels.nbytes
    if free_bytes is not None and nbytes > free_bytes * (1 - _SPARE_FRACTION) and _has_files(images, table):
        return encoded(
            f"as {size} pixels they would take {format_bytes(nbytes)} and {format_bytes(free_bytes)} {_NO_ROOM} and "
            "decoded on every read"
        )
    return replace(
        pixels, reason=f"as {size} pixels they take {format_bytes(nbytes)}, which fits, and are never decoded again"
    )


def _plan_jpeg(images: Images, table: SampleTable, options: PackOptions, splits: tuple[SplitPlan, ...]) -> PackPlan:
    """Images encoded anew: bytes whose lengths show when they are there."""
    size = options.image.size
    # What is stored has its size already; fitting it again when it is read changes nothing.
    x = StoredField(
        "x", None, np.dtype(np.uint8), attributes={IMAGE_OPTIONS_ATTRIBUTE: image_options_to_json(options.image)}
    )
    y = _plan_target(table, options, None if size is None else (*size, 3))
    guess = int(images.source.sizes.sum()) if size is None else len(table) * size[0] * size[1] // _PIXELS_OF_A_BYTE
    return PackPlan(options.encoding, f"encoding='{options.encoding}' was asked for", x, y, splits, guess)


def _plan_target(
    table: SampleTable, options: PackOptions, image_shape: tuple[int, int, int] | None
) -> StoredField | None:
    """How targets that come with the samples are stored; masks as their images are."""
    targets = table.targets
    if isinstance(targets, Arrays):
        return StoredField("y", targets.shape, targets.dtype)
    if not isinstance(targets, Masks):
        return None
    if image_shape is not None:
        return StoredField("y", image_shape[:2], np.dtype(np.uint8))
    group = {MASK_OPTIONS_ATTRIBUTE: mask_options_to_json(mask_options(targets, options))}
    return StoredField("y", None, np.dtype(np.uint8), lengths=targets.source.sizes, attributes=group)


def mask_options(masks: Masks, options: PackOptions) -> MaskOptions:
    """How masks become class indices: the geometry of their images."""
    return MaskOptions(options.image.size, options.image.resize, masks.colors, masks.foreground)


def _has_files(images: Images, table: SampleTable) -> bool:
    """Whether images, and masks where there are, come as files that can be kept as they are."""
    return not images.decoded and not (isinstance(table.targets, Masks) and table.targets.decoded)


def _check_files(images: Images, table: SampleTable) -> None:
    if not _has_files(images, table):
        msg = f"The layout '{table.layout}' gives decoded arrays, no image files to keep. Use encoding='pixels'."
        raise OptionError(msg)


def _row_shape(
    image: ImageOptions, facts: Sequence[ImageFacts]
) -> tuple[tuple[int, int, int] | None, np.dtype[Any], str]:
    """The one shape of all images as far as `facts` tell, and its dtype; or no shape, with the reason."""
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
