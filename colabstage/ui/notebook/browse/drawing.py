"""One sample as HTML: a picture with its mask and boxes, a sound's wave, tokens, or numbers. No script."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.page import COLOURS
from colabstage.ui.notebook.browse.pixels import css_colour, data_uri, is_small, paint_mask, shrink, to_rgb
from colabstage.ui.samples.kinds import kind_of
from colabstage.ui.samples.labels import class_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.ui.samples.reading import Sample

_WAVE = (240, 120)
_MOST_BOXES = 200
_SHOWN_NUMBERS = 40
_SHOWN_TOKENS = 400


def draw_sample(sample: Sample, *, classes: Sequence[str], layout: str | None, longest_px: int, large: bool) -> str:
    """A sample's input as HTML, with what its target says of places in it.

    Args:
        sample: which.
        classes: their names, in label order.
        layout: of the file, as it says.
        longest_px: of pictures, height or width at the most.
        large: alone, with all of its numbers; otherwise one of many.
    """
    kind = kind_of(sample.x.shape, sample.x.dtype, layout)
    if kind == "image":
        return _picture(sample, classes, longest_px, large=large)
    if kind == "sound":
        return _wave(sample.x)
    if kind == "tokens":
        return _text_block(_tokens(sample.x, _SHOWN_TOKENS if large else _SHOWN_NUMBERS))
    return _text_block(_numbers(sample.x, _SHOWN_TOKENS if large else _SHOWN_NUMBERS))


def mask_of(sample: Sample) -> NDArray[Any] | None:
    """The sample's mask `(H, W)`, `None` where its target is none."""
    y = sample.y
    return y if isinstance(y, np.ndarray) and y.ndim == 2 and y.dtype.kind in "ui" and min(y.shape) > 1 else None


def boxes_of(sample: Sample) -> dict[str, NDArray[Any]] | None:
    """The sample's boxes with what is known of each, `None` where its target is none."""
    return sample.y if isinstance(sample.y, dict) and "boxes" in sample.y else None


def _picture(sample: Sample, classes: Sequence[str], longest_px: int, *, large: bool) -> str:
    image, _ = to_rgb(sample.x, longest_px=longest_px)
    image = shrink(image, longest_px)
    mask = mask_of(sample)
    if mask is not None:
        image = paint_mask(image, mask, classes)
    height, width = sample.size or image.shape[:2]
    boxes = boxes_of(sample)
    marks = "" if boxes is None else _boxes(boxes, classes, max(height, width), large=large)
    pixelated = " style='image-rendering:pixelated'" if is_small(image) else ""
    shown = f"style='width:{_large_width(height, width, longest_px)}px;max-width:100%'" if large else ""
    return (
        f"<svg class='cs-picture' viewBox='0 0 {width} {height}' {shown} role='img'>"
        f"<image href='{data_uri(image)}' width='{width}' height='{height}' preserveAspectRatio='none'{pixelated}/>"
        f"{marks}</svg>"
    )


def _large_width(height: int, width: int, longest_px: int) -> int:
    """Small images are enlarged, to half of what a large one may have."""
    longest = max(height, width)
    return round(width * (longest_px if longest >= longest_px else max(longest, longest_px * 0.6)) / longest)


def _boxes(boxes: dict[str, NDArray[Any]], classes: Sequence[str], longest: int, *, large: bool) -> str:
    """Rectangles with names; lines are as thick on a thumbnail as on a large picture."""
    labels = boxes.get("labels", np.full(len(boxes["boxes"]), -1))
    font = longest / (34 if large else 14)
    parts = []
    for (x0, y0, x1, y1), label in zip(
        boxes["boxes"][:_MOST_BOXES].tolist(), labels[:_MOST_BOXES].tolist(), strict=True
    ):
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
    """Least and most of each stretch of a signal, a band for each channel."""
    channels = x.reshape(len(x), -1).T if x.ndim == 2 and x.shape[0] >= x.shape[1] else np.atleast_2d(x)
    width, height = _WAVE
    band = height / len(channels)
    lines = "".join(_band(channel, band * number, band, width) for number, channel in enumerate(channels))
    return f"<svg class='cs-picture' viewBox='0 0 {width} {height}' preserveAspectRatio='none' role='img'>{lines}</svg>"


def _band(channel: NDArray[Any], top: float, height: float, width: int) -> str:
    values = np.nan_to_num(channel.astype(np.float32))
    count = min(width, len(values))
    if not count:
        return ""
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
    """Bytes that are text as text, other tokens as their numbers."""
    flat = x.reshape(-1)
    if flat.dtype == np.uint8 and len(flat):
        text = flat.tobytes().rstrip(b"\0").decode("utf-8", errors="replace")
        if text and sum(sign.isprintable() or sign.isspace() for sign in text) >= 0.9 * len(text):
            return text if len(text) <= 4 * most else f"{text[: 4 * most]} …"
    shown = " ".join(map(str, flat[:most].tolist()))
    return shown if len(flat) <= most else f"{shown} … {len(flat):,} in all"


def _numbers(x: NDArray[Any], most: int) -> str:
    flat = x.reshape(-1)
    shown = "  ".join(f"{value:.4g}" if flat.dtype.kind == "f" else str(value) for value in flat[:most].tolist())
    # Lines may break behind a hyphen, but not behind a minus.
    shown = shown.replace("-", "\N{MINUS SIGN}")
    return shown if len(flat) <= most else f"{shown} … {len(flat):,} in all"


def _text_block(text: str) -> str:
    return f"<div class='cs-text'>{html.escape(text)}</div>"
