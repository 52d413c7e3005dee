"""One sample from its content to the bytes that are stored: decoded, fitted, checked against its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, LayoutError, OptionError, SourceReadError
from colabstage.images.animation import is_animated
from colabstage.images.complete import check_complete
from colabstage.images.decode import decode_sized, fit_pixels
from colabstage.images.encode import encode_jpeg
from colabstage.images.masks import fit_mask, read_mask
from colabstage.layouts.table import Arrays, Boxes, Images, Masks
from colabstage.pack.plan import image_options, mask_options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.images.scratch import Scratch
    from colabstage.layouts.table import Content, SampleSource, SampleTable
    from colabstage.pack.fields import StoredField
    from colabstage.pack.options import PackOptions
    from colabstage.pack.plan import PackPlan


class MixedImagesError(OptionError):
    """An image contradicts the one shape that was seen on a few."""


class RawSample(NamedTuple):
    """A sample as its sources give it. `y` is `None` where targets are known before."""

    x: Content
    y: Content | None


class StoredSample(NamedTuple):
    """A sample as it is stored. `size`: height and width of its upright image before it was resized; zeros for what
    is no image. `animated`: whether its image has further frames."""

    parts: tuple[memoryview, ...]
    size: tuple[int, int]
    animated: bool


class BrokenSampleError(Exception):
    """A part of a sample cannot be used; `part` is what a person would look for."""

    def __init__(self, part: str, error: Exception) -> None:
        super().__init__(f"{part}: {error}")
        self.part = part
        self.cause = error


@dataclass(frozen=True, slots=True)
class SampleCoder:
    """Makes of each sample what its places hold. From any number of threads at once."""

    table: SampleTable
    plan: PackPlan
    options: PackOptions

    @property
    def target_source(self) -> SampleSource | None:
        """Where targets are read from, `None` where they are known before."""
        targets = self.table.targets
        return targets.source if isinstance(targets, Arrays | Masks) else None

    @property
    def positions(self) -> NDArray[np.int64]:
        """int64 `(N,)`: samples by ascending position come in the order of the medium. Of a sample in two files the
        later counts: in an archive that is still arriving, that is when it can be read without waiting."""
        target = self.target_source
        positions = self.table.inputs.source.positions
        return positions if target is None else np.maximum(positions, target.positions)

    def stamp(self, index: int) -> str:
        """Differs whenever the content of a sample may have changed."""
        target = self.target_source
        stamp = self.table.inputs.source.stamp(index)
        return stamp if target is None else f"{stamp} {target.stamp(index)}"

    def cost(self, index: int) -> int:
        """Bytes that reading a sample takes."""
        target = self.target_source
        return int(self.table.inputs.source.sizes[index]) + (0 if target is None else int(target.sizes[index]))

    def code(self, index: int, raw: RawSample, scratch: Scratch) -> StoredSample:
        """Make the bytes of one sample.

        Args:
            index: which sample of the table.
            raw: its content.
            scratch: this thread's memory; the bytes may lie in it, until the next call.

        Raises:
            BrokenSampleError: a part of it cannot be decoded.
            MixedImagesError: it is not of the one shape that was planned.
            SourceReadError: a file is not as long as it was listed.
        """
        x, size = self._code_x(index, raw.x, scratch)
        self._check_drawn_size(index, size)
        animated = isinstance(self.table.inputs, Images) and isinstance(raw.x, bytes) and is_animated(raw.x)
        if self.plan.y is None or raw.y is None:
            return StoredSample((x,), size, animated)
        return StoredSample((x, self._code_y(index, raw.y, size)), size, animated)

    def _code_x(self, index: int, content: Content, scratch: Scratch) -> tuple[memoryview, tuple[int, int]]:
        inputs, place = self.table.inputs, self.plan.x
        try:
            if isinstance(inputs, Arrays):
                return _row(inputs.to_array(content), place, inputs.source.name(index)), (0, 0)
            if place.shape is None and place.lengths is not None:
                return _checked_file(
                    content, place.lengths, index, inputs.source, needs_range=self.options.image.color_mode != "keep"
                )
            pixels, size = self._pixels(content, scratch)
            if self.options.jpeg_quality is not None:
                return memoryview(encode_jpeg(pixels, self.options.jpeg_quality)), size
        except DecodeError as error:
            raise BrokenSampleError(inputs.source.name(index), error) from error
        if pixels.shape != place.shape or pixels.dtype != place.dtype:
            msg = (
                f"'{inputs.source.name(index)}' has shape {pixels.shape} and dtype {pixels.dtype} among images of "
                f"shape {place.shape} and dtype {place.dtype}; give image_size=(height, width) and a color_mode, or "
                "encoding='encoded'"
            )
            raise MixedImagesError(msg)
        return pixels.data.cast("B"), size

    def _check_drawn_size(self, index: int, size: tuple[int, int]) -> None:
        """Refuse an image of another size than its boxes were drawn on."""
        targets = self.table.targets
        if not isinstance(targets, Boxes) or targets.sizes is None:
            return
        height, width = (int(side) for side in targets.sizes[index])
        if (height, width) not in ((0, 0), size):
            msg = (
                f"its label file says {height} x {width} pixels and the image has {size[0]} x {size[1]} (height x "
                "width, turned as its EXIF orientation asks), so its boxes lie elsewhere. Take the images that the "
                "boxes were drawn on, or scale the boxes"
            )
            name = self.table.inputs.source.name(index)
            raise BrokenSampleError(name, DecodeError(f"{msg[0].upper()}{msg[1:]}."))

    def _pixels(self, content: Content, scratch: Scratch) -> tuple[NDArray[Any], tuple[int, int]]:
        resizer = self.plan.resizer or "pillow"
        if isinstance(content, bytes):
            return decode_sized(content, self.options.image, resizer=resizer, scratch=scratch)
        image = image_options(self.table, self.options)
        return fit_pixels(content, image, resizer=resizer), (content.shape[0], content.shape[1])

    def _code_y(self, index: int, content: Content, size: tuple[int, int]) -> memoryview:
        targets, place = self.table.targets, self.plan.y
        if place is None or not isinstance(targets, Arrays | Masks):
            msg = f"The targets of the layout '{self.table.layout}' are not read with the samples."
            raise TypeError(msg)
        name = targets.source.name(index)
        try:
            if isinstance(targets, Arrays):
                return _row(targets.to_array(content), place, name)
            if place.lengths is None:
                return self._mask(content, targets, size)
            data, _ = _checked_file(content, place.lengths, index, targets.source)
            indices = read_mask(content, mask_options(targets, self.options))
            _check_size((indices.shape[0], indices.shape[1]), size)
        except DecodeError as error:
            raise BrokenSampleError(name, error) from error
        return data

    def _mask(self, content: Content, masks: Masks, size: tuple[int, int]) -> memoryview:
        options = mask_options(masks, self.options)
        indices = read_mask(content, options)
        _check_size((indices.shape[0], indices.shape[1]), size)
        return fit_mask(indices, options).data.cast("B")


def _checked_file(
    content: Content, lengths: NDArray[np.int64], index: int, source: SampleSource, *, needs_range: bool = False
) -> tuple[memoryview, tuple[int, int]]:
    """An image file that is kept as it is, and the size it says of itself. `needs_range`: whether 8 bits will be made
    of its pixels."""
    if not isinstance(content, bytes):
        msg = f"'{source.name(index)}' came as an array, expected the bytes of an image file."
        raise LayoutError(msg)
    facts = check_complete(content)
    if needs_range and facts.dtype.kind == "f":
        msg = f'{facts.format} pixels of floating point have no agreed range to make 8 bits of. Pass color_mode="keep".'
        raise DecodeError(msg)
    _check_length(len(content), int(lengths[index]), source.name(index))
    return memoryview(content), (facts.height, facts.width)


def _check_length(found: int, expected: int, name: str) -> None:
    if found != expected:  # One byte too long would end in its neighbour's place.
        msg = f"'{name}' came as {found:,} bytes to store, its place has {expected:,}."
        raise SourceReadError(msg)


def _check_size(mask: tuple[int, int], image: tuple[int, int]) -> None:
    if mask != image:
        msg = (
            f"The mask has {mask[0]} x {mask[1]} pixels and its image {image[0]} x {image[1]} (height x width, turned "
            "as their EXIF orientation asks); expected the same."
        )
        raise DecodeError(msg)


def _row(values: NDArray[Any], place: StoredField, name: str) -> memoryview:
    """An array as the bytes of its row.

    Raises:
        LayoutError: it is of another shape, or of a dtype that does not fit.
    """
    if values.shape != place.shape or values.dtype != place.dtype:
        msg = (
            f"'{name}' has shape {values.shape} and dtype {values.dtype}; expected {place.shape} and {place.dtype}, as "
            "all the others."
        )
        raise LayoutError(msg)
    return array_bytes(values)


def array_bytes(values: NDArray[Any]) -> memoryview:
    """The bytes of an array, in C order."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
