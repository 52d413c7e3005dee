"""Samples as HTML, without scripts: a grid of many, one enlarged with its details, and classes as bars.

A sample is shown as a picture with its mask and boxes, a sound's wave, tokens, or numbers. Arrays of any dtype and any
channels become 8-bit pictures, with masks drawn over them, and are in the page as data URIs.
"""

from __future__ import annotations

import base64
import colorsys
import html
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.images.decode import encode_jpeg
from colabstage.io.page import COLOURS
from colabstage.io.report import Row, Table, facts
from colabstage.io.units import format_count
from colabstage.notebook.samples import channels_first, class_name, sample_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from colabstage.notebook.samples import Sample

# Images with shorter sides stay lossless and are enlarged without filtering. Digits of 28 pixels and CIFAR's 32 are
# viewed pixel by pixel; filtered they would be blurred.
_SMALL_PX = 96
# JPEG quality at which thumbnails of photographs show no blocks.
_JPEG_QUALITY = 82
_MASK_OPACITY = 0.5
# "No class" in our masks.
NO_CLASS = 255
_BACKGROUNDS = frozenset({"background", "_background_", "__background__", "bg", "unlabeled", "unlabelled", "void"})
# The golden ratio of a turn: consecutive classes are far apart in hue, however many there are.
_TURN = 0.618034
_GREY = 128

# Size of the drawing in its own units; it is stretched to fit.
_WAVE = (240, 120)
# More would cover the picture, and make pages of megabytes.
_MOST_BOXES = 200
_SHOWN_NUMBERS = 40
_SHOWN_TOKENS = 400
THUMB_PX = 176
LARGE_PX = 640
_MOST_IN_LEGEND = 24
_MOST_IN_CAPTION = 3
_MOST_IN_TABLE = 50


def class_colour(value: int) -> tuple[int, int, int]:
    """Return red, green and blue of a class, the same everywhere; in three lightnesses, all visible on photographs."""
    lightness = (0.55, 0.68, 0.44)[value % 3]
    red, green, blue = colorsys.hls_to_rgb((0.02 + value * _TURN) % 1.0, lightness, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


def css_colour(value: int) -> str:
    """Return the colour of a class as `#rrggbb`."""
    return "#{:02x}{:02x}{:02x}".format(*class_colour(value))


def is_background(value: int, classes: Sequence[str]) -> bool:
    """Tell whether a mask's class is the background, which is not painted; 0 if classes have no names."""
    if value == NO_CLASS:
        return True
    return classes[value].strip().lower() in _BACKGROUNDS if value < len(classes) else value == 0 and not classes


def to_rgb(x: NDArray[Any], *, longest_px: int) -> tuple[NDArray[np.uint8], str]:
    """Convert an image of any dtype, `(H, W)`, `(H, W, C)` or `(C, H, W)`, to uint8 `(H, W, 3)`, with a text that says
    how values became grey levels; empty if they are grey levels.

    Of two channels the first is shown, of five or more the first three; a fourth is transparency, over grey. Larger
    images are reduced to about `longest_px`, by leaving out pixels.
    """
    pixels = np.moveaxis(x, 0, -1) if channels_first(x.shape) else x
    # Twice as large as shown, because the following filter takes means.
    step = max(1, max(pixels.shape[:2]) // (2 * longest_px))
    pixels = pixels[::step, ::step]
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    values, note = to_bytes(pixels)
    if values.shape[2] in (1, 2):
        values = values[..., :1]
    elif values.shape[2] == 4:
        # Over grey, on which both dark and light objects are visible.
        alpha = values[..., 3:].astype(np.float32) / 255
        values = (values[..., :3] * alpha + _GREY * (1 - alpha) + 0.5).astype(np.uint8)
    values = values[..., :3]
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3))), note


def to_bytes(values: NDArray[Any]) -> tuple[NDArray[np.uint8], str]:
    """Convert numbers to grey levels: bytes as they are, fractions from 0 to 1 times 255, others from minimum to
    maximum."""
    if values.dtype == np.uint8:
        return values, ""
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255), ""
    # A single NaN must not make all other pixels black.
    numbers = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    least, most = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)
    # The usual meaning of floats in an image.
    if values.dtype.kind == "f" and least >= 0 and most <= 1:
        return (numbers * 255 + 0.5).astype(np.uint8), ""
    scaled = (numbers - least) * (255.0 / (most - least)) if most > least else np.zeros_like(numbers)
    return (scaled + 0.5).astype(np.uint8), f"black is {least:,.4g}, white is {most:,.4g}"


def paint_mask(image: NDArray[np.uint8], mask: NDArray[Any], classes: Sequence[str]) -> NDArray[np.uint8]:
    """Paint a mask `(h, w)` of class numbers over an image `(H, W, 3)`, in the classes' colours."""
    height, width = image.shape[:2]
    rows = (np.arange(height) * mask.shape[0]) // height
    columns = (np.arange(width) * mask.shape[1]) // width
    # By the nearest pixel, because there is nothing between two classes.
    near = mask[rows[:, None], columns]
    painted = image.copy()
    for value in np.unique(near).tolist():
        if not is_background(int(value), classes):
            where = near == value
            colour = np.array(class_colour(int(value)), np.float32)
            painted[where] = image[where] * (1 - _MASK_OPACITY) + colour * _MASK_OPACITY
    return painted


def shrink(image: NDArray[np.uint8], longest_px: int) -> NDArray[np.uint8]:
    """Reduce an image `(H, W, 3)` to this height or width, if it is larger."""
    scale = longest_px / max(image.shape[:2])
    if scale >= 1:
        return image
    from PIL import Image

    size = max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0))


def data_uri(image: NDArray[np.uint8]) -> str:
    """Encode an image `(H, W, 3)` as a data URI: small ones as PNG, others as JPEG."""
    if is_small(image):
        from PIL import Image

        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG", compress_level=1)
        return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return f"data:image/jpeg;base64,{base64.b64encode(encode_jpeg(image, _JPEG_QUALITY)).decode()}"


def is_small(image: NDArray[np.uint8]) -> bool:
    """Tell whether an image is enlarged without filtering, so that each pixel is visible."""
    return int(max(image.shape[:2])) <= _SMALL_PX


def draw_sample(sample: Sample, *, classes: Sequence[str], layout: str | None, longest_px: int, large: bool) -> str:
    """Draw a sample's input as HTML, with its mask or boxes; `large`: with all of its numbers."""
    kind = sample_kind(sample.x.shape, sample.x.dtype, layout)
    if kind == "image":
        return _picture(sample, classes, longest_px, large=large)
    if kind == "sound":
        return _wave(sample.x)
    if kind == "tokens":
        return _text_block(_tokens(sample.x, _SHOWN_TOKENS if large else _SHOWN_NUMBERS))
    return _text_block(_format_numbers(sample.x, _SHOWN_TOKENS if large else _SHOWN_NUMBERS))


def mask_of(sample: Sample) -> NDArray[Any] | None:
    """Return the sample's mask `(H, W)`; `None` if its target is not a mask."""
    y = sample.y
    return y if isinstance(y, np.ndarray) and y.ndim == 2 and y.dtype.kind in "ui" and min(y.shape) > 1 else None


def boxes_of(sample: Sample) -> dict[str, NDArray[Any]] | None:
    """Return the sample's boxes with their columns; `None` if its target is not boxes."""
    return sample.y if isinstance(sample.y, dict) and "boxes" in sample.y else None


def _picture(sample: Sample, classes: Sequence[str], longest_px: int, *, large: bool) -> str:
    image, _ = to_rgb(sample.x, longest_px=longest_px)
    image = shrink(image, longest_px)
    mask = mask_of(sample)
    if mask is not None:
        image = paint_mask(image, mask, classes)
    height, width = sample.size or image.shape[:2]
    boxes = boxes_of(sample)
    marks = "" if boxes is None else _draw_boxes(boxes, classes, max(height, width), large=large)
    pixelated = " style='image-rendering:pixelated'" if is_small(image) else ""
    shown = f"style='width:{_large_width(height, width, longest_px)}px;max-width:100%'" if large else ""
    return (
        f"<svg class='cs-picture' viewBox='0 0 {width} {height}' {shown} role='img'>"
        f"<image href='{data_uri(image)}' width='{width}' height='{height}' preserveAspectRatio='none'{pixelated}/>"
        f"{marks}</svg>"
    )


def _large_width(height: int, width: int, longest_px: int) -> int:
    """Return the width on the page: small images are enlarged to half the maximum of large ones."""
    longest = max(height, width)
    return round(width * (longest_px if longest >= longest_px else max(longest, longest_px * 0.6)) / longest)


def _draw_boxes(boxes: dict[str, NDArray[Any]], classes: Sequence[str], longest: int, *, large: bool) -> str:
    """Draw rectangles with names; lines are equally thick on thumbnails and large pictures."""
    labels = boxes.get("labels", np.full(len(boxes["boxes"]), -1))
    # In pixels of the image, which thumbnails shrink.
    font = longest / (34 if large else 14)
    parts = []
    for (x0, y0, x1, y1), label in zip(
        boxes["boxes"][:_MOST_BOXES].tolist(), labels[:_MOST_BOXES].tolist(), strict=True
    ):
        # Boxes without classes all have one colour.
        colour = css_colour(max(0, int(label)))
        name = class_name(int(label), classes) if "labels" in boxes else ""
        parts.append(
            f"<rect x='{x0:.1f}' y='{y0:.1f}' width='{max(0.0, x1 - x0):.1f}' height='{max(0.0, y1 - y0):.1f}' "
            f"fill='none' stroke='{colour}' stroke-width='2' vector-effect='non-scaling-stroke'/>"
            f"<text x='{x0 + font * 0.15:.1f}' y='{max(y0 - font * 0.25, font * 0.85):.1f}' font-size='{font:.1f}' "
            f"font-weight='600' fill='{colour}' stroke='#000' stroke-opacity='.75' stroke-width='{font / 5:.1f}' "
            f"paint-order='stroke' stroke-linejoin='round'>{html.escape(name)}</text>"
        )
    return "".join(parts)


def _wave(x: NDArray[Any]) -> str:
    """Draw the minimum and maximum of each stretch of a signal, one band for each channel."""
    # The longer axis is time, because files of both orders exist.
    channels = x.reshape(len(x), -1).T if x.ndim == 2 and x.shape[0] >= x.shape[1] else np.atleast_2d(x)
    width, height = _WAVE
    band = height / len(channels)
    lines = "".join(_band(channel, band * number, band, width) for number, channel in enumerate(channels))
    return f"<svg class='cs-picture' viewBox='0 0 {width} {height}' preserveAspectRatio='none' role='img'>{lines}</svg>"


def _band(channel: NDArray[Any], top: float, height: float, width: int) -> str:
    # NaN would leave a hole in the path, and some browsers then draw nothing.
    values = np.nan_to_num(channel.astype(np.float32))
    count = min(width, len(values))
    if not count:
        return ""
    # Minimum and maximum of each stretch, because single samples would miss the peaks.
    starts = (np.arange(count) * len(values)) // count
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    most = max(float(np.abs(values).max()), 1e-9)
    middle, half = top + height / 2, height * 0.46
    step = width / count
    path = "".join(
        f"M{(number + 0.5) * step:.1f} {middle - half * up / most:.1f}V{middle - half * down / most + 0.4:.1f}"
        for number, (down, up) in enumerate(zip(low.tolist(), high.tolist(), strict=True))
    )
    return f"<path d='{path}' stroke='{COLOURS['accent']}' stroke-width='{min(1.4, step):.1f}' fill='none'/>"


def _tokens(x: NDArray[Any], most: int) -> str:
    """Show bytes that are text as text, and other tokens as numbers."""
    flat = x.reshape(-1)
    # Wider dtypes may hold bytes as well: a byte tokenizer counts from 0 to 255.
    if flat.dtype.kind in "iu" and len(flat) and 0 <= int(flat.min()) <= int(flat.max()) < 256:
        # Rows of one length are padded with zeros.
        text = flat.astype(np.uint8).tobytes().rstrip(b"\0").decode("utf-8", errors="replace")
        # Bytes may be anything; if nine tenths are readable, they are text.
        if text and sum(sign.isprintable() or sign.isspace() for sign in text) >= 0.9 * len(text):
            return text if len(text) <= 4 * most else f"{text[: 4 * most]} …"
    shown = " ".join(map(str, flat[:most].tolist()))
    return shown if len(flat) <= most else f"{shown} … {len(flat):,} in all"


def _format_numbers(x: NDArray[Any], most: int) -> str:
    flat = x.reshape(-1)
    shown = "  ".join(f"{value:.4g}" if flat.dtype.kind == "f" else str(value) for value in flat[:most].tolist())
    # Lines may break behind a hyphen, but not behind a minus.
    shown = shown.replace("-", "\N{MINUS SIGN}")
    return shown if len(flat) <= most else f"{shown} … {len(flat):,} in all"


def _text_block(text: str) -> str:
    return f"<div class='cs-text'>{html.escape(text)}</div>"


def draw_grid(samples: Iterable[Sample | str], *, classes: Sequence[str], layout: str | None) -> str:
    """Draw samples side by side, each with its class and name, or with the reason why it cannot be read."""
    cells = "".join(
        f"<div class='cs-cell'><div class='cs-face cs-broken'>{html.escape(sample)}</div></div>"
        if isinstance(sample, str)
        else _cell(sample, classes, layout)
        for sample in samples
    )
    return f"<div class='cs-grid'>{cells}</div>"


def _cell(sample: Sample, classes: Sequence[str], layout: str | None) -> str:
    face = draw_sample(sample, classes=classes, layout=layout, longest_px=THUMB_PX, large=False)
    name = sample.key.rpartition("/")[2]
    return (
        f"<div class='cs-cell'><div class='cs-face'>{face}</div>"
        f"<div class='cs-name'>{html.escape(caption(sample, classes))}&#8203;</div>"
        f"<div class='cs-name cs-muted'>#{sample.row}{html.escape(f' {name}' if name else '')}</div></div>"
    )


def caption(sample: Sample, classes: Sequence[str]) -> str:
    """Say what a target is, in a few words."""
    y = sample.y
    boxes, mask = boxes_of(sample), mask_of(sample)
    if boxes is not None:
        return format_count(len(boxes["boxes"]), "boxes")
    if mask is not None:
        names = [class_name(value, classes) for value, _ in mask_shares(mask) if not is_background(value, classes)]
        more = len(names) - _MOST_IN_CAPTION
        return ", ".join(names[:_MOST_IN_CAPTION]) + (f" and {more} more" if more > 0 else "")
    if isinstance(y, str):
        return y
    if isinstance(y, np.ndarray):
        # Zeros and ones for each class are several labels.
        several = y.ndim == 1 and len(y) == len(classes) and bool(((y == 0) | (y == 1)).all())
        names = [classes[number] for number in np.flatnonzero(y).tolist()] if several else []
        return (", ".join(names) or "none") if several else f"{' x '.join(map(str, y.shape))} {y.dtype}"
    if isinstance(y, float):
        return class_name(int(y), classes) if classes and y.is_integer() else f"{y:.4g}"
    return class_name(int(y), classes)


def mask_shares(mask: NDArray[Any]) -> list[tuple[int, float]]:
    """Return the classes in a mask with each one's fraction of the pixels, the largest first."""
    if mask.dtype == np.uint8:
        # Ten times as fast as sorting the pixels.
        every = np.bincount(mask.reshape(-1), minlength=256)
        values = np.flatnonzero(every)
        counts = every[values]
    else:
        values, counts = np.unique(mask, return_counts=True)
    # Stable, so that equal shares stand in label order each time.
    order = np.argsort(-counts, kind="stable")
    return [(int(values[number]), float(counts[number] / mask.size)) for number in order.tolist()]


def draw_legend(samples: Iterable[Sample], *, classes: Sequence[str]) -> str:
    """Draw a legend of the classes in masks and boxes; nothing if there are none."""
    found: set[int] = set()
    for sample in samples:
        mask, boxes = mask_of(sample), boxes_of(sample)
        if mask is not None:
            found |= {value for value, _ in mask_shares(mask) if not is_background(value, classes)}
        elif boxes is not None and "labels" in boxes:
            found |= set(boxes["labels"].tolist())
    chips = "".join(
        f"<span class='cs-chip'><i style='background:{css_colour(max(0, value))}'></i>"
        f"{html.escape(class_name(value, classes))}</span>"
        for value in sorted(found)[:_MOST_IN_LEGEND]
    )
    more = len(found) - _MOST_IN_LEGEND
    return f"<div class='cs-legend'>{chips}{f'and {more} more' if more > 0 else ''}</div>" if found else ""


def draw_large(sample: Sample, *, split: str, classes: Sequence[str], layout: str | None) -> str:
    """Draw one sample with all its details."""
    picture = draw_sample(sample, classes=classes, layout=layout, longest_px=LARGE_PX, large=True)
    known = [("sample", f"{split}[{sample.row}]")]
    known += [("made from", sample.key)] if sample.key else []
    known += [("target", caption(sample, classes)), *_target_facts(sample), *_input_facts(sample, layout)]
    legend = draw_legend([sample], classes=classes)
    return (
        f"<div class='cs-large'><div>{picture}{legend}</div>"
        f"<div>{facts(known).html}{_details(sample, classes)}</div></div>"
    )


def _target_facts(sample: Sample) -> list[tuple[str, str]]:
    y = sample.y
    if isinstance(y, int | float) and not isinstance(y, bool):
        return [("value", str(y))]
    if isinstance(y, np.ndarray) and mask_of(sample) is None:
        shown = np.array2string(y.reshape(-1)[:_MOST_IN_TABLE], precision=4, separator=" ")
        return [("values", shown)]
    return []


def _input_facts(sample: Sample, layout: str | None) -> list[tuple[str, str]]:
    x = sample.x
    known = [("input", f"{' x '.join(map(str, x.shape))} {x.dtype}")]
    if sample.size is not None and sample_kind(x.shape, x.dtype, layout) == "image":
        # It is read at the size at which it is shown; the facts are about the original image.
        if sample.size != x.shape[:2] and sample.size != x.shape[1:]:
            known[0] = ("input", f"{sample.size[0]} x {sample.size[1]} {x.dtype}, shown smaller")
        _, note = to_rgb(x, longest_px=LARGE_PX)
        known += [("shown so that", note)] if note else []
    if x.size and x.dtype.kind in "iuf":
        least, mean, most = float(x.min()), float(x.mean(dtype=np.float64)), float(x.max())
        known.append(("min, mean, max", f"{least:,.4g}, {mean:,.4g}, {most:,.4g}"))
    return known


def _details(sample: Sample, classes: Sequence[str]) -> str:
    boxes, mask = boxes_of(sample), mask_of(sample)
    if boxes is not None:
        # Additional columns of a layout are shown as they are.
        others = [name for name in boxes if name not in ("boxes", "labels")]
        labels = boxes.get("labels", np.full(len(boxes["boxes"]), -1))
        head = ("class", "x0", "y0", "x1", "y1", *others)
        rows = []
        for number in range(min(len(boxes["boxes"]), _MOST_IN_TABLE)):
            corners = (f"{corner:.1f}" for corner in boxes["boxes"][number].tolist())
            values = (boxes[name][number].item() for name in others)
            shown = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)
            rows.append(Row((class_name(int(labels[number]), classes), *corners, *shown)))
    elif mask is not None:
        head = ("class", "of the pixels")
        shares = mask_shares(mask)[:_MOST_IN_TABLE]
        names = ("no class" if value == NO_CLASS else class_name(value, classes) for value, _ in shares)
        rows = [Row((name, f"{share:.1%}")) for name, (_, share) in zip(names, shares, strict=True)]
    else:
        return ""
    return Table(tuple(rows), head, numbers=frozenset(range(1, len(head)))).html


def draw_bars(bars: Sequence[tuple[str, int, bool]], most: int) -> str:
    """Draw a bar for each `(name, count, chosen)`; `most` is the count of a full bar."""
    lines = "".join(
        f"<div class='cs-bar{' cs-chosen' if chosen else ''}'><span class='cs-bar-name'>{html.escape(name)}</span>"
        f"<span class='cs-bar-count'>{count:,}</span>"
        f"<i style='width:{100 * count / max(1, most):.1f}%;background:{COLOURS['accent']}'></i></div>"
        for name, count, chosen in bars
    )
    return f"<div class='cs-bars'>{lines}</div>"
