"""`browse_dataset`: samples as HTML, the position in a dataset, and widgets that move it.

A sample is shown as a picture with its mask and boxes, a sound's wave, tokens, or numbers. A page is one HTML text, not
a widget for each sample, so it arrives in one message; it holds no script. The widgets are created once, and are
limited to those of ipywidgets 7.7, which Colab has.
"""

from __future__ import annotations

import base64
import colorsys
import html
import io
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import ColabstageError, DecodeError, OptionError
from colabstage.images.decode import encode_jpeg
from colabstage.images.geometry import VOID
from colabstage.io.boundary import public
from colabstage.io.report import COLOURS, STYLE, TEXT_COLOUR, facts, notes
from colabstage.io.units import format_count
from colabstage.notebook.samples import (
    Sample,
    ShownSplits,
    SplitClasses,
    channels_first,
    class_name,
    open_splits,
    read_labels,
    read_samples,
    sample_kind,
)
from colabstage.notebook.saved import as_images, import_widgets, make_button, show_with_picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from colabstage.notebook.samples import Samples

# Images with shorter sides stay lossless and are enlarged without filtering. Digits of 28 pixels and CIFAR's 32 are
# viewed pixel by pixel; filtered they would be blurred.
_SMALL_PX = 96
# JPEG quality at which thumbnails of photographs show no blocks.
_JPEG_QUALITY = 82
_MASK_OPACITY = 0.5
_BACKGROUNDS = frozenset({"background", "_background_", "__background__", "bg", "unlabeled", "unlabelled", "void"})
# The golden ratio of a turn: consecutive classes are far apart in hue, however many there are.
_TURN = 0.618034
# Size of the drawing in its own units; it is stretched to fit.
_WAVE = (240, 120)
# More would cover the picture, and make pages of megabytes.
_MOST_BOXES = 200
# How many numbers or tokens of a sample are shown in the grid, and enlarged.
_FEW_VALUES, _MANY_VALUES = 40, 400
THUMB_PX = 176
LARGE_PX = 640
_MOST_IN_LEGEND = 24
_MOST_IN_CAPTION = 3
_MOST_VALUES = 50
# Bars beside the grid; more would make the page longer than the pictures do.
_AT_A_TIME = 14
_MOST_ON_A_PAGE = 100


# --- pictures ---


def class_colour(value: int) -> tuple[int, int, int]:
    """Return red, green and blue of a class, the same everywhere; in three lightnesses, all visible on photographs."""
    lightness = (0.55, 0.68, 0.44)[value % 3]
    red, green, blue = colorsys.hls_to_rgb((0.02 + value * _TURN) % 1.0, lightness, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


def _css_colour(value: int) -> str:
    # Boxes without classes all have one colour.
    return "#{:02x}{:02x}{:02x}".format(*class_colour(max(0, value)))


def is_background(value: int, classes: Sequence[str]) -> bool:
    """Return whether a mask's class is the background, which is not painted; 0 if classes have no names."""
    if value == VOID:
        return True
    return classes[value].strip().lower() in _BACKGROUNDS if value < len(classes) else value == 0 and not classes


def to_rgb(x: NDArray[Any], *, longest_px: int) -> NDArray[np.uint8]:
    """Convert an image of any dtype, `(H, W)`, `(H, W, C)` or `(C, H, W)`, to uint8 `(H, W, 3)`.

    Of two channels the first is shown, of four or more the first three. Larger images are reduced to about
    `longest_px`, by leaving out pixels.
    """
    pixels = np.moveaxis(x, 0, -1) if channels_first(x.shape) else np.atleast_3d(x)
    # Twice as large as shown, because the following filter takes means.
    step = max(1, max(pixels.shape[:2]) // (2 * longest_px))
    values = to_bytes(pixels[::step, ::step])
    values = values[..., : 1 if values.shape[2] == 2 else 3]
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))


def to_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Convert numbers to grey levels: bytes as they are, fractions from 0 to 1 times 255, others from minimum to
    maximum."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    # A single NaN must not make all other pixels black.
    numbers = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    least, most = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)
    # The usual meaning of floats in an image.
    if values.dtype.kind == "f" and least >= 0 and most <= 1:
        return (numbers * 255 + 0.5).astype(np.uint8)
    scaled = (numbers - least) * (255.0 / (most - least)) if most > least else np.zeros_like(numbers)
    return (scaled + 0.5).astype(np.uint8)


def paint_mask(image: NDArray[np.uint8], mask: NDArray[Any], classes: Sequence[str]) -> NDArray[np.uint8]:
    """Paint a mask `(h, w)` of class numbers over an image `(H, W, 3)`, in the classes' colours."""
    height, width = image.shape[:2]
    rows = (np.arange(height) * mask.shape[0]) // height
    columns = (np.arange(width) * mask.shape[1]) // width
    # By the nearest pixel, because there is nothing between two classes.
    near = mask[rows[:, None], columns]
    painted = image.copy()
    for value in np.unique(near).tolist():
        if not is_background(value, classes):
            where = near == value
            colour = np.array(class_colour(value), np.float32)
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
    if not _is_small(image):
        return f"data:image/jpeg;base64,{base64.b64encode(encode_jpeg(image, _JPEG_QUALITY)).decode()}"
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _is_small(image: NDArray[np.uint8]) -> bool:
    """Return whether an image is enlarged without filtering, so that each pixel is visible."""
    return int(max(image.shape[:2])) <= _SMALL_PX


# --- one sample ---


def _draw_sample(sample: Sample, classes: Sequence[str], layout: str | None, *, large: bool) -> str:
    """Draw a sample's input, with its mask or boxes; `large`: with all of its numbers."""
    kind = sample_kind(sample.x.shape, sample.x.dtype, layout)
    if kind == "image":
        return _draw_picture(sample, classes, large=large)
    if kind == "sound":
        return _draw_wave(sample.x, f"style='width:{LARGE_PX}px;max-width:100%'" if large else "")
    text = _values_of(sample.x, _MANY_VALUES if large else _FEW_VALUES, tokens=kind == "tokens")
    return f"<div class='cs-text'>{html.escape(text)}</div>"


def _draw_picture(sample: Sample, classes: Sequence[str], *, large: bool) -> str:
    longest_px = LARGE_PX if large else THUMB_PX
    image = shrink(to_rgb(sample.x, longest_px=longest_px), longest_px)
    if sample.mask is not None:
        image = paint_mask(image, sample.mask, classes)
    height, width = sample.size or image.shape[:2]
    longest, shown = max(height, width), ""
    if large:
        # Small images are enlarged to six tenths of the length of large ones.
        scale = min(longest_px, max(longest, longest_px * 0.6)) / longest
        shown = f"style='width:{round(width * scale)}px;max-width:100%'"
    marks = "" if sample.boxes is None else _draw_boxes(sample.boxes, classes, longest, 34 if large else 14)
    pixelated = " style='image-rendering:pixelated'" if _is_small(image) else ""
    return (
        f"<svg class='cs-picture' viewBox='0 0 {width} {height}' {shown} aria-hidden='true'>"
        f"<image href='{data_uri(image)}' width='{width}' height='{height}' preserveAspectRatio='none'{pixelated}/>"
        f"{marks}</svg>"
    )


def _draw_boxes(boxes: dict[str, NDArray[Any]], classes: Sequence[str], longest: int, most: int) -> str:
    """Draw rectangles, with names if there are at most as many as lines of text fit into `longest` pixels."""
    parts, font = [], longest / most
    # More names would cover each other and the picture; the legend has the classes' colours.
    named = "labels" in boxes and len(boxes["boxes"]) <= most
    for (x0, y0, x1, y1), label in zip(boxes["boxes"][:_MOST_BOXES].tolist(), _labels_of(boxes), strict=False):
        colour, name = _css_colour(label), class_name(label, classes) if named else ""
        parts.append(
            f"<rect x='{x0:.1f}' y='{y0:.1f}' width='{max(0.0, x1 - x0):.1f}' height='{max(0.0, y1 - y0):.1f}' "
            f"fill='none' stroke='{colour}' stroke-width='2' vector-effect='non-scaling-stroke'/>"
            f"<text x='{x0 + font * 0.15:.1f}' y='{max(y0 - font * 0.25, font * 0.85):.1f}' font-size='{font:.1f}' "
            f"font-weight='600' fill='#fff' stroke='#000' stroke-opacity='.75' stroke-width='{font / 5:.1f}' "
            f"paint-order='stroke' stroke-linejoin='round'>{html.escape(name)}</text>"
        )
    return "".join(parts)


def _labels_of(boxes: dict[str, NDArray[Any]]) -> list[int]:
    return [int(label) for label in boxes.get("labels", np.full(len(boxes["boxes"]), -1)).tolist()]


def _draw_wave(x: NDArray[Any], shown: str) -> str:
    """Draw the minimum and maximum of each stretch of a signal, over all of its channels."""
    # The longer axis is time, because files of both orders exist. NaN would leave a hole in the path, and some browsers
    # then draw nothing.
    moments = np.nan_to_num(np.atleast_2d(x).astype(np.float32))
    values = moments if moments.shape[0] >= moments.shape[1] else moments.T
    width, height = _WAVE
    count = min(width, len(values))
    path = ""
    if count:
        # Minimum and maximum of each stretch, because single samples would miss the peaks.
        starts = (np.arange(count) * len(values)) // count
        low, high = np.minimum.reduceat(values, starts).min(axis=1), np.maximum.reduceat(values, starts).max(axis=1)
        scale, step = height * 0.46 / max(float(np.abs(values).max()), 1e-9), width / count
        path = "".join(
            f"M{(number + 0.5) * step:.1f} {height / 2 - scale * up:.1f}V{height / 2 - scale * down + 0.4:.1f}"
            for number, (down, up) in enumerate(zip(low.tolist(), high.tolist(), strict=True))
        )
    return (
        f"<svg class='cs-picture' viewBox='0 0 {width} {height}' {shown} preserveAspectRatio='none' aria-hidden='true'>"
        f"<path d='{path}' stroke='{COLOURS['accent']}' stroke-width='1.2' fill='none'/></svg>"
    )


def _values_of(x: NDArray[Any], most: int, *, tokens: bool) -> str:
    """Write numbers; tokens that are the bytes of a text as that text."""
    flat = x.reshape(-1)
    # Wider dtypes may hold bytes as well: a byte tokenizer counts from 0 to 255.
    if tokens and flat.dtype.kind in "iu" and len(flat) and 0 <= int(flat.min()) <= int(flat.max()) < 256:
        # Rows of one length are padded with zeros.
        text = flat.astype(np.uint8).tobytes().rstrip(b"\0").decode("utf-8", errors="replace")
        # Bytes may be anything; if nine tenths are readable, they are text.
        if text and sum(sign.isprintable() or sign.isspace() for sign in text) >= 0.9 * len(text):
            return text if len(text) <= 4 * most else f"{text[: 4 * most]} …"
    shown = "  ".join(f"{value:.4g}" if flat.dtype.kind == "f" else str(value) for value in flat[:most].tolist())
    # Lines may break behind a hyphen, but not behind a minus.
    shown = shown.replace("-", "\N{MINUS SIGN}")
    return shown if len(flat) <= most else f"{shown} … {len(flat):,} in all"


def caption(sample: Sample, classes: Sequence[str]) -> str:
    y = sample.y
    if sample.boxes is not None:
        count = len(sample.boxes["boxes"])
        return format_count(count, "boxes") + (f", {_MOST_BOXES} drawn" if count > _MOST_BOXES else "")
    if sample.mask is not None:
        names = [class_name(value, classes) for value, _ in _shares(sample.mask) if not is_background(value, classes)]
        more = len(names) - _MOST_IN_CAPTION
        return ", ".join(names[:_MOST_IN_CAPTION]) + (f" and {more} more" if more > 0 else "")
    if isinstance(y, np.ndarray):
        # Zeros and ones for each class are several labels.
        if y.ndim == 1 and len(y) == len(classes) and bool(((y == 0) | (y == 1)).all()):
            return ", ".join(classes[number] for number in np.flatnonzero(y).tolist()) or "none"
        return f"{' x '.join(map(str, y.shape))} {y.dtype}"
    if isinstance(y, float) and not (classes and y.is_integer()):
        return f"{y:.4g}"
    return y if isinstance(y, str) else class_name(int(y), classes)


def _shares(mask: NDArray[Any]) -> list[tuple[int, float]]:
    """Return the classes in a mask with each one's fraction of the pixels, the largest first."""
    if mask.dtype == np.uint8:
        # Ten times as fast as sorting the pixels.
        every = np.bincount(mask.reshape(-1), minlength=256)
        values = np.flatnonzero(every)
        counts = every[values]
    else:
        values, counts = np.unique(mask, return_counts=True)
    # Stable, so that equal shares are always in label order.
    order = np.argsort(-counts, kind="stable")
    return [(int(values[number]), float(counts[number] / mask.size)) for number in order.tolist()]


# --- a page, and one sample with its details ---


def draw_grid(samples: Iterable[Sample | str], *, classes: Sequence[str], layout: str | None) -> str:
    """Draw samples side by side, each with its class and name, or with the reason why it cannot be read."""
    cells = []
    for sample in samples:
        if isinstance(sample, str):
            cells.append(f"<div class='cs-cell'><div class='cs-face cs-broken'>{html.escape(sample)}</div></div>")
            continue
        name = sample.key.rpartition("/")[2]
        cells.append(
            f"<div class='cs-cell'><div class='cs-face'>{_draw_sample(sample, classes, layout, large=False)}</div>"
            f"<div class='cs-name'>{html.escape(caption(sample, classes))}&#8203;</div>"
            f"<div class='cs-name cs-muted'>#{sample.row}{html.escape(f' {name}' if name else '')}</div></div>"
        )
    return f"<div class='cs-grid'>{''.join(cells)}</div>"


def draw_legend(samples: Iterable[Sample], *, classes: Sequence[str]) -> str:
    found: set[int] = set()
    for sample in samples:
        if sample.mask is not None:
            found |= {value for value, _ in _shares(sample.mask) if not is_background(value, classes)}
        elif sample.boxes is not None and "labels" in sample.boxes:
            found |= set(_labels_of(sample.boxes))
    chips = "".join(
        f"<span class='cs-chip'><i style='background:{_css_colour(value)}'></i>"
        f"{html.escape(class_name(value, classes))}</span>"
        for value in sorted(found)[:_MOST_IN_LEGEND]
    )
    more = len(found) - _MOST_IN_LEGEND
    return f"<div class='cs-legend'>{chips}{f'and {more} more' if more > 0 else ''}</div>" if found else ""


def draw_large(sample: Sample, *, split: str, classes: Sequence[str], layout: str | None) -> str:
    picture, legend = _draw_sample(sample, classes, layout, large=True), draw_legend([sample], classes=classes)
    x, y = sample.x, sample.y
    made_from = [("made from", sample.key)] if sample.key else []
    known = [("sample", f"{split}[{sample.row}]"), *made_from, ("target", caption(sample, classes))]
    if isinstance(y, float):
        # The caption has four digits of it.
        known.append(("value", str(y)))
    elif isinstance(y, np.ndarray) and sample.mask is None:
        known.append(("values", np.array2string(y.reshape(-1)[:_MOST_VALUES], precision=4, separator=" ")))
    # An image is read at the size at which it is shown.
    is_smaller = sample.size is not None and sample.size not in (x.shape[:2], x.shape[1:])
    shape = sample.size if is_smaller and sample.size is not None else x.shape
    known.append(("input", f"{' x '.join(map(str, shape))} {x.dtype}{', shown smaller' if is_smaller else ''}"))
    return f"<div class='cs-large'><div>{picture}{legend}</div><div>{facts(known).html}</div></div>"


def draw_bars(bars: Sequence[tuple[str, int, bool]], most: int) -> str:
    """Draw a bar for each `(name, count, chosen)`; `most` is the count of a full bar."""
    lines = "".join(
        f"<div class='cs-bar{' cs-chosen' if chosen else ''}'><span class='cs-bar-name'>{html.escape(name)}</span>"
        f"<span class='cs-bar-count'>{count:,}</span>"
        f"<i style='width:{100 * count / max(1, most):.1f}%;background:{COLOURS['accent']}'></i></div>"
        for name, count, chosen in bars
    )
    return f"<div class='cs-bars'>{lines}</div>"


_COLUMNS = (
    "display:grid!important;grid-template-columns:repeat(auto-fill,minmax(132px,1fr));grid-auto-rows:176px;gap:8px"
)
_BARS = "display:grid!important;grid-template-columns:minmax(0,1fr);grid-auto-rows:24px;gap:0"

BROWSE_STYLE = (
    STYLE
    + "<style>"
    + f".cs-browse,.cs-browse .widget-html-content{{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;"
    f"font-size:13px;line-height:1.4;color:{TEXT_COLOUR}}}"
    f".cs-browse .cs-grid,.cs-browse .cs-over-grid{{{_COLUMNS};width:100%}}"
    f".cs-browse .cs-bars,.cs-browse .cs-over-bars{{{_BARS};width:100%}}"
    """
.cs-browse .cs-text,.cs-browse .cs-name{color:inherit}
.cs-browse .cs-stack{display:grid!important;overflow:visible}
.cs-browse .cs-stack>*{grid-area:1/1;margin:0;width:100%;min-width:0;height:auto;align-self:start}
.cs-browse .cs-stack .widget-html-content,.cs-browse .cs-stack .jupyter-widgets{width:100%;max-width:none}
.cs-browse .cs-over{overflow:visible;margin:0;padding:0}
.cs-browse .cs-over>*{margin:0!important;width:auto!important;height:auto!important;max-width:none;min-width:0;
background:transparent!important;box-shadow:none!important;border:2px solid transparent!important;border-radius:6px;
color:transparent}
.cs-browse .cs-over>*:hover,.cs-browse .cs-over>*:focus-visible{border-color:#2a86b0!important;outline:none}
.cs-cell{width:auto!important;display:flex!important;margin:0!important;flex-direction:column;min-width:0;padding:4px;border-radius:6px;background:rgba(128,136,144,.1)}
.cs-face{flex:1 1 auto;min-height:0;display:flex;align-items:center;justify-content:center;overflow:hidden}
.cs-face .cs-picture{width:100%;height:100%}
.cs-picture{display:block;overflow:hidden}
.cs-name{flex:none;height:18px;line-height:18px;font-size:12px;white-space:nowrap;overflow:hidden;
text-overflow:ellipsis}
.cs-muted{opacity:.72}
.cs-text{font:11px/1.35 ui-monospace,Menlo,Consolas,monospace;width:100%;max-height:100%;overflow:hidden;
white-space:pre-wrap;overflow-wrap:anywhere}
.cs-broken{font-size:11px;color:#d64545;align-items:flex-start;overflow-wrap:anywhere}
.cs-legend{display:flex;flex-wrap:wrap;gap:2px 14px;margin:6px 0}
.cs-chip i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:5px;vertical-align:-1px}
.cs-bar{position:relative;padding:0 6px;border-radius:4px;display:flex;justify-content:space-between;gap:8px;
line-height:20px;height:24px}
.cs-bar i{position:absolute;left:4px;bottom:1px;height:3px;border-radius:2px;max-width:calc(100% - 8px)}
.cs-bar-name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.cs-bar-count{font-variant-numeric:tabular-nums;opacity:.8}
.cs-chosen{background:rgba(42,134,176,.22);font-weight:600}
.cs-large{display:flex;flex-wrap:wrap;gap:20px;align-items:flex-start}
.cs-large>div:last-child{flex:1 1 220px;min-width:0}
.cs-large>div:first-child{flex:0 1 auto;min-width:200px;max-width:100%}
.cs-large .cs-picture{height:auto;max-height:640px}
.cs-large .cs-text{max-width:640px}
</style>"""
)


# --- the position ---


@dataclass(slots=True)
class Browsing:
    source: ShownSplits
    split: str
    page_size: int
    chosen: int | None = None
    """The index in `labels.names` of the class that is shown; `None` for all."""
    page: int = 0
    place: int | None = None
    """The position of the enlarged sample among all that are shown; `None` for the grid."""
    _labels: dict[str, SplitClasses] = field(default_factory=dict)

    @property
    def labels(self) -> SplitClasses:
        """Return the split's classes; its targets are read when they are first asked for."""
        if self.split not in self._labels:
            # All targets are read for it, while a page reads only its rows.
            self._labels[self.split] = read_labels(self.source, self.split)
        return self._labels[self.split]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.reader(self.split).classes

    @property
    def shown(self) -> range | NDArray[np.int64]:
        return range(self.source.rows[self.split]) if self.chosen is None else self.labels.rows_of(self.chosen)

    @property
    def count(self) -> int:
        return len(self.shown)

    @property
    def pages(self) -> int:
        return max(1, -(-self.count // self.page_size))

    @property
    def rows(self) -> list[int]:
        start = self.page * self.page_size
        return [int(row) for row in self.shown[start : start + self.page_size]]

    @property
    def row(self) -> int | None:
        return None if self.place is None else int(self.shown[self.place])

    def choose_split(self, split: str) -> None:
        """Show another split, from its first page, of all classes."""
        # Refuses an unknown name before anything has changed.
        self.source.reader(split)
        # Each split has its own classes, so an index means another class in the next split.
        self.split, self.chosen = split, None
        self.turn_to(0)

    def choose_class(self, number: int | None) -> None:
        """Show only samples of the class at this index of `labels.names`; `None` for all."""
        if number is not None and not 0 <= number < len(self.labels.names):
            msg = f"There is no class {number}; expected 0 to {len(self.labels.names) - 1}."
            raise OptionError(msg)
        self.chosen = number
        self.turn_to(0)

    def turn_to(self, page: int) -> None:
        # The nearest one, because people also press the buttons at the ends.
        self.page = min(max(0, page), self.pages - 1)
        self.place = None

    def enlarge(self, place: int) -> None:
        """Enlarge a sample, by its position among those shown, or the nearest one; its page becomes the current one."""
        if self.count:
            self.place = min(max(0, place), self.count - 1)
            self.page = self.place // self.page_size

    def go_to_row(self, row: int) -> None:
        """Enlarge a row of the split; if the chosen class does not have it, all classes are shown."""
        row = min(max(0, row), max(0, self.source.rows[self.split] - 1))
        place = bisect_left(self.shown, row)
        if self.chosen is not None and (place == self.count or self.shown[place] != row):
            self.chosen, place = None, row
        self.enlarge(place)

    def read(self, rows: Sequence[int], longest_px: int) -> list[Sample | str]:
        """Read samples, with an explanation in place of each broken one."""
        try:
            return list(read_samples(self.source, self.split, rows, longest_px=longest_px))
        except DecodeError as error:
            # A page is read at once; only if it has a broken image, one by one, to show the others.
            if len(rows) == 1:
                return [str(error)]
            return [sample for row in rows for sample in self.read([row], longest_px)]


# --- widgets ---


class Overlay:
    """HTML with an invisible button over each of its cells, so that a click on a picture reaches Python in every
    notebook, without a script."""

    def __init__(self, widgets: Any, kind: str, count: int, tooltip: str, press: Callable[[int], object]) -> None:
        """Make `count` buttons, which are shown or hidden: creating a widget again costs a message and a flicker."""
        self.drawn, self._tooltip = widgets.HTML(), tooltip
        self.buttons = [make_button(widgets, "", tooltip, partial(press, number)) for number in range(count)]
        over = widgets.Box(self.buttons)
        over.add_class("cs-over")
        over.add_class(f"cs-over-{kind}")
        self.widget = widgets.Box([self.drawn, over])
        self.widget.add_class("cs-stack")

    def show(self, drawn: str, names: Sequence[str]) -> None:
        self.drawn.value = drawn
        for button, name in zip_longest(self.buttons, names):
            # A button over an empty cell would open the wrong one.
            _set_shown(button, name is not None)
            # Transparent text, which screen readers read; and the whole of a name that is cut off.
            button.description = button.tooltip = f"{name}: {self._tooltip}"


class Bars:
    """The classes as bars; if there are many, the most frequent of those that a search field finds."""

    def __init__(self, widgets: Any, choose: Callable[[int | None], object]) -> None:
        self._choose, self._labels = choose, SplitClasses()
        self._chosen: int | None = None
        self._shown: list[int] = []
        self._bars = Overlay(widgets, "bars", _AT_A_TIME, "Show only this class, or all again", self._press)
        self._search = widgets.Text(placeholder="find a class", layout=widgets.Layout(width="auto"))
        self._search.observe(lambda _: self._draw(), "value")
        self._found = widgets.Label()
        layout = widgets.Layout(flex="0 1 190px", min_width="150px", margin="0 14px 0 0")
        self.widget = widgets.VBox([self._search, self._bars.widget, self._found], layout=layout)

    def show(self, labels: SplitClasses, chosen: int | None) -> None:
        another, self._labels, self._chosen = labels is not self._labels, labels, chosen
        if another:
            self._search.value = ""
        self._draw()

    def _draw(self) -> None:
        labels, typed = self._labels, self._search.value.strip().casefold()
        # By number if all are visible at once, otherwise by frequency.
        many = len(labels.names) > _AT_A_TIME
        order = np.argsort(-labels.counts, kind="stable").tolist() if many else range(len(labels.names))
        found = [number for number in order if typed in labels.names[number].casefold()]
        self._shown = found[:_AT_A_TIME]
        bars = [(labels.names[number], int(labels.counts[number]), number == self._chosen) for number in self._shown]
        self._bars.show(draw_bars(bars, int(labels.counts.max(initial=0))), [name for name, _, _ in bars])
        self._found.value = f"{len(bars)} of {format_count(len(found), 'classes')}"
        _set_shown(self.widget, bool(labels.names))
        for one in (self._search, self._found):
            _set_shown(one, many)

    def _press(self, place: int) -> None:
        number = self._shown[place]
        self._choose(None if number == self._chosen else number)


@public()
def browse_dataset(data: Samples, *, split: str | None = None, page_size: int = 24) -> DatasetBrowser:
    """Browse a dataset's samples in a notebook: page by page, by split and class; click one to enlarge it.

    >>> browse_dataset(data)  # doctest: +SKIP

    It shows images of any dtype, with masks and boxes drawn over them in the colours of their classes; sounds as waves;
    tokens and numbers as text. It reads only the rows of the current page and, to find the classes, the targets of each
    split once, so 200,000 samples are as quick to browse as 200.

    Args:
        data: what `stage_dataset` returns, a `dataset_h5` (its split), or the path of an HDF5 file with `X_<split>`;
            a pattern, such as `"data-*.h5"`, for several files that are one dataset.
        split: which to show first; by default `train`, or the first if there is no `train`.
        page_size: samples on a page, 1 to 100.

    Returns:
        The browser, which a notebook shows if it is a cell's last line. A saved notebook, or one that does not render
        widgets, shows the last page.

    Raises:
        MissingDependencyError: ipywidgets is not installed.
        OptionError: there are no samples to look at in `data`, or `page_size` cannot work.
        SplitNotFoundError: there is no such split; the message lists those that exist.
        SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read.
    """
    widgets = import_widgets("browse_dataset")
    if type(page_size) is not int or not 1 <= page_size <= _MOST_ON_A_PAGE:
        msg = f"page_size={page_size!r} cannot work; expected a whole number from 1 to {_MOST_ON_A_PAGE}."
        raise OptionError(msg)
    source = open_splits(data)
    usual = "train" if "train" in source.rows else next(iter(source.rows))
    first = usual if split is None else split
    source.reader(first)
    return DatasetBrowser(widgets, Browsing(source, first, page_size))


class DatasetBrowser:
    """A browser for one dataset. Made by `browse_dataset`.

    Attributes:
        state: the current position; call `show` after changing it.
        widget: the whole browser, for use in a larger layout.
    """

    def __init__(self, widgets: Any, state: Browsing) -> None:
        """Create the widgets from the module ipywidgets, and show the page in `state`."""
        self.state = state
        self._quiet = False
        self._page_html = ""

        def move(to: Callable[..., None], *where: Any) -> None:
            to(*where)
            self.show()

        def button(text: str, tooltip: str, act: Callable[[], None], width: str = "42px") -> Any:
            made = make_button(widgets, text, tooltip, lambda: move(act))
            made.layout.width = width
            return made

        def follow(widget: Any, width: str, to: Callable[[Any], None]) -> Any:
            # ipywidgets reports values that we set like those that a person chooses.
            widget.observe(lambda change: None if self._quiet else move(to, change["new"]), "value")
            # A name that is part of the field is what screen readers read.
            widget.layout.width, widget.style.description_width = width, "initial"
            return widget

        options = [(f"{name} ({count:,})", name) for name, count in state.source.rows.items()]
        split = widgets.Dropdown(description="split", options=options, value=state.split)
        self._split = follow(split, "190px", state.choose_split)
        row = widgets.BoundedIntText(continuous_update=False, description="sample")
        self._row = follow(row, "140px", state.go_to_row)
        filters = widgets.HBox([self._split, self._row], layout=widgets.Layout(flex_flow="row wrap"))

        self._back = button("‹", "Page before", lambda: state.turn_to(state.page - 1))
        self._on = button("›", "Next page", lambda: state.turn_to(state.page + 1))
        page = widgets.BoundedIntText(value=1, min=1, continuous_update=False, description="page")
        self._page = follow(page, "120px", lambda page: state.turn_to(page - 1))
        self._of = widgets.Label(layout=widgets.Layout(flex="0 0 auto"))
        pager = widgets.HBox([self._back, self._page, self._of, self._on])

        self._bars = Bars(widgets, lambda number: move(state.choose_class, number))
        self._message, self._legend, self._large = (widgets.HTML() for _ in range(3))
        self._grid = Overlay(
            widgets,
            "grid",
            state.page_size,
            "Show this sample large",
            lambda number: move(state.enlarge, state.page * state.page_size + number),
        )
        self._grid_box = widgets.VBox([pager, self._grid.widget, self._legend])
        around = [
            button("Back to the page", "Show this sample's page", lambda: state.turn_to(state.page), "auto"),
            button("‹", "Sample before", lambda: state.enlarge((state.place or 0) - 1)),
            button("›", "Next sample", lambda: state.enlarge((state.place or 0) + 1)),
        ]
        self._large_box = widgets.VBox([widgets.HBox(around), self._large])
        # Otherwise a long class name would push the grid out of the cell.
        layout = widgets.Layout(flex="1 1 360px", min_width="0")
        right = widgets.VBox([filters, self._message, self._grid_box, self._large_box], layout=layout)
        layout = widgets.Layout(flex_flow="row wrap", align_items="flex-start")
        content = widgets.HBox([self._bars.widget, right], layout=layout)
        self.widget = widgets.VBox([widgets.HTML(BROWSE_STYLE), content])
        self.widget.add_class("cs-browse")
        self.show()

    def show(self) -> None:
        try:
            self._bars.show(self.state.labels, self.state.chosen)
            self._draw()
            self._message.value = notes([self._sentence()])
        except ColabstageError as error:
            self._message.value = f"<b style='color:{COLOURS['fail']}'>{type(error).__name__}</b>{notes([str(error)])}"
        finally:
            # The notebook keeps a reference to this widget as long as the kernel lives, so it must not keep files open.
            self.state.source.close()
        self._follow()

    def _draw(self) -> None:
        state, layout, classes = self.state, self.state.source.layout, self.state.classes
        # Hidden, not removed, so that the page behind it is back at once.
        _set_shown(self._grid_box, state.row is None)
        _set_shown(self._large_box, state.row is not None)
        if state.row is not None:
            (sample,) = state.read([state.row], LARGE_PX)
            if isinstance(sample, Sample):
                drawn = draw_large(sample, split=state.split, classes=classes, layout=layout)
            else:
                drawn = draw_grid([sample], classes=classes, layout=layout)
            self._large.value = f"<div class='cs-report'>{drawn}</div>"
            return
        samples = state.read(state.rows, THUMB_PX)
        # Saved notebooks, which do not render widgets, show the last page.
        self._page_html = draw_grid(samples, classes=classes, layout=layout)
        names = [one if isinstance(one, str) else f"{caption(one, classes)} #{one.row} {one.key}" for one in samples]
        self._grid.show(self._page_html, names)
        self._legend.value = draw_legend([one for one in samples if isinstance(one, Sample)], classes=classes)

    def _sentence(self) -> str:
        state = self.state
        of = state.source.rows[state.split]
        chosen = "" if state.chosen is None else f" of class {state.labels.names[state.chosen]}"
        few = "" if state.count == of else f", of {of:,} in all"
        why = f" No filter by class: {state.labels.why_none}." if state.labels.why_none else ""
        return f"{state.source.name}: {format_count(state.count, 'samples')}{chosen} in {state.split}{few}.{why}"

    def _follow(self) -> None:
        state = self.state
        self._quiet = True
        try:
            self._page.max, self._page.value = state.pages, state.page + 1
            self._of.value = f"of {state.pages:,}"
            self._row.max = max(0, state.source.rows[state.split] - 1)
            if state.row is not None:
                self._row.value = state.row
            self._back.disabled = state.page == 0
            self._on.disabled = state.page == state.pages - 1
        finally:
            self._quiet = False

    def __repr__(self) -> str:
        return f"DatasetBrowser: {self._sentence()}"

    def _repr_html_(self) -> str:
        """Return the last page, for places without working buttons."""
        return f"{BROWSE_STYLE}<div class='cs-browse'>{as_images(self._page_html)}{notes([self._sentence()])}</div>"

    def _ipython_display_(self) -> None:
        """Show the widgets, or the last page if they no longer exist."""
        show_with_picture(self.widget, self._repr_html_(), repr(self))


def _set_shown(widget: Any, shown: bool) -> None:
    widget.layout.display = "" if shown else "none"
