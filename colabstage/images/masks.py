"""Segmentation masks: the class of every pixel of an image, placed exactly like the image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import DecodeError
from colabstage.images.decode import is_lossy, open_upright
from colabstage.images.geometry import VOID, MaskOptions, place_image
from colabstage.io.units import counted, format_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

# Where targets are pictures, such as the sharp image of a blurred one.
AS_PICTURES = "If they are pictures and no masks, give pack_dataset an object whose items are (x, y), y a numpy array"
# Distinct colours beyond this are smoothed edges, not classes.
_MOST_COLORS = 64
# From here on a pixel of a foreground mask with blurred edges is foreground.
_HALF = 128
# A lossy format changes black and white by less than this, and the shade of a plain area by at most that.
_STRAY, _RIPPLE = 32, 12
# Blurred edges have at least so many shades, unless they are only a few pixels, and at most this share of a mask.
_EDGE_SHADES, _FEW_PIXELS, _MOST_GREY = 3, 16, 1 / 3
_INDEX_MODES = ("L", "P", "1", "I;16", "I;16L", "I;16B", "I;16N", "I")


def decode_mask(content: bytes | NDArray[Any], options: MaskOptions) -> NDArray[np.uint8]:
    """Make class indices, C-contiguous, writable uint8 `(H, W)`, of a mask file or of decoded indices `(H, W)` (colours
    `(H, W, 3)` with `options.colors`). Padding without an image is 255, a loss's `ignore_index`."""
    return fit_mask(read_mask(content, options), options)


def read_mask(content: bytes | NDArray[Any], options: MaskOptions) -> NDArray[np.uint8]:
    """Return class indices at the mask's own size, as `decode_mask` without its fitting."""
    values = _indices_of_file(content, painted=options.colors is not None) if isinstance(content, bytes) else content
    if options.colors is not None:
        return _look_up(values, options.colors)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.ndim != 2 or values.dtype.kind not in "biu":
        msg = f"The mask is {values.dtype} of shape {values.shape}; expected integers (height, width). {AS_PICTURES}."
        raise DecodeError(msg)
    if values.dtype.itemsize > 1 and values.size and not 0 <= int(values.min()) <= int(values.max()) <= VOID:
        expected = f"expected class indices from 0 to {VOID}. {AS_PICTURES}."
        msg = f"The mask has values from {values.min()} to {values.max()}; {expected}"
        raise DecodeError(msg)
    indices = values.astype(np.uint8, copy=False)
    if not options.foreground:
        return indices
    # A mask of classes among foreground masks: it contradicts the few that were examined.
    if not is_black_and_white(indices, lossy=isinstance(content, bytes) and is_lossy(content)):
        other = indices[(indices != 0) & (indices != VOID)]
        msg = (
            f"The mask has the value {int(other[0])} among 0 and {VOID}, which the others have for a foreground. Write "
            f"0 and {VOID} alone; or, if {VOID} is no class, give layout= a function that returns a SampleTable with "
            "Masks as targets."
        )
        raise DecodeError(msg)
    foreground: NDArray[np.uint8] = (indices >= _HALF).astype(np.uint8)
    return foreground


def is_black_and_white(indices: NDArray[np.uint8], *, lossy: bool) -> bool:
    """Tell whether a mask `(H, W)` has two levels, 0 and 255, but for pixels along their edges: smoothed, or `lossy`.

    Along edges the shade changes from pixel to pixel; a third class has an area, or lines, of one shade, and a picture
    has greys everywhere.
    """
    low, high, ripple = (_STRAY, VOID + 1 - _STRAY, _RIPPLE) if lossy else (1, VOID, 0)
    between = indices[(indices >= low) & (indices < high)]
    if not between.size:
        return True
    are_lines = not lossy and between.size > _FEW_PIXELS and np.count_nonzero(np.bincount(between)) < _EDGE_SHADES
    least, most = (_around(indices, pick) for pick in (np.minimum, np.maximum))
    is_area = bool(((least >= low) & (most < high) & (most - least <= ripple)).any())
    # Class indices beside 255 may be as thin as an edge, but they are low.
    are_indices = int(between.max()) < _STRAY
    greys = np.count_nonzero((indices >= _STRAY) & (indices <= VOID - _STRAY))
    return not (is_area or are_lines or are_indices or greys > _MOST_GREY * indices.size)


def is_picture(indices: NDArray[np.uint8]) -> bool:
    """Tell whether a mask `(H, W)` has more shades than classes have, which change from pixel to pixel."""
    changes = np.count_nonzero(indices[:, 1:] != indices[:, :-1])
    return bool(2 * changes > indices.size and np.count_nonzero(level_counts(indices)) > _MOST_COLORS)


def _around(values: NDArray[np.uint8], pick: np.ufunc) -> NDArray[np.uint8]:
    """Return the least or the greatest value of each square of three by three."""
    rows = pick(pick(values[:-2], values[1:-1]), values[2:])
    square: NDArray[np.uint8] = pick(pick(rows[:, :-2], rows[:, 1:-1]), rows[:, 2:])
    return square


def palette_of(content: bytes | NDArray[Any]) -> dict[int, tuple[int, int, int]]:
    """Return the colour of each value that occurs in a mask; empty without a palette."""
    if not isinstance(content, bytes):
        return {}
    with open_upright(content) as image:
        colours = image.getpalette("RGB") if image.mode == "P" else None
        used = np.flatnonzero(image.histogram()).tolist() if colours else []
    rows = np.reshape(colours or [], (-1, 3)).tolist()
    return {value: (red, green, blue) for value in used if value < len(rows) for red, green, blue in [rows[value]]}


def colors_of(content: bytes | NDArray[Any]) -> frozenset[tuple[int, int, int]]:
    """Return the colours of a mask file in true colours; empty if its pixels have one channel, or are all grey."""
    if not isinstance(content, bytes):
        return frozenset()
    with open_upright(content) as image:
        found = frozenset() if image.mode in _INDEX_MODES else _distinct(np.asarray(image.convert("RGB")))
    return frozenset() if all(red == green == blue for red, green, blue in found) else found


def color_table_advice(colors: Iterable[tuple[int, int, int]]) -> str:
    """Return how to write the table that painted masks need, as a line to paste; its classes are numbers."""
    found = sorted(colors)
    if len(found) > _MOST_COLORS:
        return (
            f"There are {len(found):,} colours, too many for one colour a class, as after smoothing. Write the masks "
            f"again with one exact colour for each class, as PNG. {AS_PICTURES}."
        )
    rows = "".join(f"class_{number},{red},{green},{blue}\\n" for number, (red, green, blue) in enumerate(found))
    return (
        "Painted masks need a table of the classes' colours. This line writes one with the "
        f"{format_count(len(found), 'colours')} found into a folder of its own: from pathlib import Path; "
        'Path("colours").mkdir(exist_ok=True); '
        f'Path("colours/class_dict.csv").write_text("name,r,g,b\\n{rows}"). Give the classes names there, and stage '
        'that folder with the source: stage_dataset([source, "colours"]).'
    )


def _distinct(pixels: NDArray[np.uint8]) -> frozenset[tuple[int, int, int]]:
    """Return the colours of pixels `(H, W, 3)`."""
    red, green, blue = pixels.astype(np.uint32).transpose(2, 0, 1)
    codes = np.unique(red << 16 | green << 8 | blue).tolist()
    return frozenset((code >> 16, code >> 8 & 255, code & 255) for code in codes)


def draw_runs(runs: NDArray[np.integer[Any]], size: tuple[int, int], *, down: bool) -> NDArray[np.uint8]:
    """Draw a mask `(H, W)` of 0 and the values of its runs, `(M, 3)`: the first pixel, the one after the last, and the
    value. Pixels are counted from 0, `down` the columns or across the rows."""
    height, width = size
    if len(runs) and (end := int(runs[:, 1].max())) > height * width:
        msg = f"Its mask's runs end at pixel {end:,} of {height} x {width}. Take the image that it was drawn on."
        raise DecodeError(msg)
    flat = np.zeros(height * width, np.uint8)
    for first, end, value in runs.tolist():
        flat[first:end] = value
    return np.ascontiguousarray(flat.reshape(width, height).T) if down else flat.reshape(height, width)


def level_counts(indices: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how many of the indices `(H, W)` are each value, int64 `(256,)`."""
    from PIL import Image

    # numpy would first convert them to 64-bit integers.
    return np.array(Image.fromarray(np.ascontiguousarray(indices)).histogram(), np.int64)


def fit_mask(indices: NDArray[np.uint8], options: MaskOptions) -> NDArray[np.uint8]:
    """Bring class indices `(H, W)` to the options' size: by the nearest pixel, so that no class appears by mixing."""
    placement = place_image((indices.shape[0], indices.shape[1]), options.size, options.resize)
    if placement.is_identity:
        return np.array(indices, order="C")
    from PIL import Image

    height, width = placement.scaled
    image = Image.fromarray(np.ascontiguousarray(indices))
    scaled = np.array(image.resize((width, height), Image.Resampling.NEAREST, placement.box), np.uint8)
    if not placement.is_padded:
        return scaled
    # Without an image there is no class, and a loss ignores 255.
    result = np.full(placement.target, VOID, np.uint8)
    top, left = placement.offset
    result[top : top + height, left : left + width] = scaled
    return result


def _indices_of_file(data: bytes, *, painted: bool) -> NDArray[Any]:
    # A further page may hold the mask of another class.
    with open_upright(data, is_mask=True) as image:
        # Then colours count, however the file stores them: with a palette, or as true colours.
        if painted:
            return np.asarray(image.convert("RGB"))
        # In a palette the indices count, which are the classes; its colours are for people.
        if image.mode in _INDEX_MODES:
            return np.asarray(image)
        if image.mode == "F":
            values = np.asarray(image)
            whole = values.astype(np.int32)
            return values if (whole != values).any() else whole
        colours = np.asarray(image.convert("RGB"))
        if "A" in image.mode and np.ptp(colours) == 0 and np.ptp(np.asarray(image.getchannel("A"))) > 0:
            msg = (
                "The mask has one colour, and its pixels differ in how transparent they are. Write what is transparent "
                "as class indices."
            )
            raise DecodeError(msg)
        red, green, blue = colours.transpose(2, 0, 1)
        if not (np.array_equal(red, green) and np.array_equal(green, blue)):
            msg = (
                f"The mask is an image of colours ({image.mode}), expected one whose pixels are class indices. "
                f"{color_table_advice(_distinct(colours))}"
            )
            raise DecodeError(msg)
        grey: NDArray[np.uint8] = red
        return grey


def _look_up(values: NDArray[Any], colors: tuple[tuple[int, int, int], ...]) -> NDArray[np.uint8]:
    """Return the class of each colour of `(H, W, 3)`."""
    if values.ndim != 3 or values.shape[2] != 3:
        msg = f"The mask has shape {values.shape}; expected colours (height, width, 3)."
        raise DecodeError(msg)
    # One number per pixel instead of three, so that a search finds its class: a table of 16 million would take 16 MB.
    packed = values.astype(np.uint32)
    codes = packed[..., 0] << 16 | packed[..., 1] << 8 | packed[..., 2]
    table = np.array([red << 16 | green << 8 | blue for red, green, blue in colors], np.uint32)
    # Colours are in the order of classes, and a search needs them sorted.
    order = np.argsort(table, kind="stable")
    places = np.minimum(np.searchsorted(table, codes, sorter=order), len(table) - 1)
    indices = order[places]
    strange = table[indices] != codes
    if strange.any():
        row, column = (int(part) for part in np.argwhere(strange)[0])
        red, green, blue = (int(part) for part in values[row, column])
        msg = (
            f"The mask's pixel in row {row}, column {column} has the colour ({red}, {green}, {blue}), and in all "
            f"{counted(int(strange.sum()), 'pixels', 'have')} one that belongs to no class. Add it to the classes' "
            "colours; a mask saved as JPEG has lost them."
        )
        raise DecodeError(msg)
    return indices.astype(np.uint8)
