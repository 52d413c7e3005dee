"""Many samples as a grid, one sample alone, and the classes as bars: HTML, made of what was read. No script."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.page import COLOURS, facts_table, table
from colabstage.ui.notebook.browse.drawing import boxes_of, draw_sample, mask_of
from colabstage.ui.notebook.browse.pixels import NO_CLASS, css_colour, is_background, to_rgb
from colabstage.ui.samples.kinds import kind_of
from colabstage.ui.samples.labels import class_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from colabstage.ui.samples.reading import Sample

THUMB_PX = 176
LARGE_PX = 640
_MOST_IN_LEGEND = 24
_MOST_IN_CAPTION = 3
_MOST_IN_TABLE = 50


def draw_grid(samples: Iterable[Sample | str], *, classes: Sequence[str], layout: str | None) -> str:
    """Samples side by side, each with its class and name; of one that cannot be read, why."""
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
    """What a target says, in a few words."""
    y = sample.y
    boxes, mask = boxes_of(sample), mask_of(sample)
    if boxes is not None:
        count = len(boxes["boxes"])
        return f"{count} box{'' if count == 1 else 'es'}"
    if mask is not None:
        names = [class_name(value, classes) for value, _ in mask_shares(mask) if not is_background(value, classes)]
        more = len(names) - _MOST_IN_CAPTION
        return ", ".join(names[:_MOST_IN_CAPTION]) + (f" and {more} more" if more > 0 else "")
    if isinstance(y, str):
        return y
    if isinstance(y, np.ndarray):
        return _caption_of_array(y, classes)
    if isinstance(y, float):
        return class_name(int(y), classes) if classes and y.is_integer() else f"{y:.4g}"
    return class_name(int(y), classes)


def _caption_of_array(y: NDArray[Any], classes: Sequence[str]) -> str:
    if y.ndim == 1 and len(y) == len(classes) and bool(((y == 0) | (y == 1)).all()):
        return ", ".join(classes[number] for number in np.flatnonzero(y).tolist()) or "none"
    return f"{' x '.join(map(str, y.shape))} {y.dtype}"


def mask_shares(mask: NDArray[Any]) -> list[tuple[int, float]]:
    """The classes in a mask with the part of its pixels that each has, the most first."""
    if mask.dtype == np.uint8:
        # Ten times as fast as sorting the pixels.
        every = np.bincount(mask.reshape(-1), minlength=256)
        values = np.flatnonzero(every)
        counts = every[values]
    else:
        values, counts = np.unique(mask, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(values[number]), float(counts[number] / mask.size)) for number in order.tolist()]


def draw_legend(samples: Iterable[Sample], *, classes: Sequence[str]) -> str:
    """The colours of the classes in masks and boxes; nothing where there are none."""
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
    """One sample with all that is known of it."""
    picture = draw_sample(sample, classes=classes, layout=layout, longest_px=LARGE_PX, large=True)
    facts = [("sample", f"{split}[{sample.row}]")]
    facts += [("made from", sample.key)] if sample.key else []
    facts += [("target", caption(sample, classes)), *_target_facts(sample), *_input_facts(sample, layout)]
    legend = draw_legend([sample], classes=classes)
    return (
        f"<div class='cs-large'><div>{picture}{legend}</div>"
        f"<div>{facts_table(facts)}{_details(sample, classes)}</div></div>"
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
    facts = [("input", f"{' x '.join(map(str, x.shape))} {x.dtype}")]
    if sample.size is not None and kind_of(x.shape, x.dtype, layout) == "image":
        if sample.size != x.shape[:2] and sample.size != x.shape[1:]:
            facts[0] = ("input", f"{sample.size[0]} x {sample.size[1]} {x.dtype}, shown smaller")
        _, note = to_rgb(x, longest_px=LARGE_PX)
        facts += [("shown so that", note)] if note else []
    if x.size and x.dtype.kind in "iuf":
        least, mean, most = float(x.min()), float(x.mean(dtype=np.float64)), float(x.max())
        facts.append(("least, mean, most", f"{least:,.4g}, {mean:,.4g}, {most:,.4g}"))
    return facts


def _details(sample: Sample, classes: Sequence[str]) -> str:
    boxes, mask = boxes_of(sample), mask_of(sample)
    if boxes is not None:
        others = [name for name in boxes if name not in ("boxes", "labels")]
        labels = boxes.get("labels", np.full(len(boxes["boxes"]), -1))
        rows = [
            (
                class_name(int(labels[number]), classes),
                *(f"{place:.1f}" for place in boxes["boxes"][number].tolist()),
                *(_short(boxes[name][number]) for name in others),
            )
            for number in range(min(len(boxes["boxes"]), _MOST_IN_TABLE))
        ]
        head = ("class", "x0", "y0", "x1", "y1", *others)
        return table(head, rows, numbers=frozenset(range(1, len(head)))) if rows else ""
    if mask is not None:
        shares = [
            ("no class" if value == NO_CLASS else class_name(value, classes), f"{share:.1%}")
            for value, share in mask_shares(mask)[:_MOST_IN_TABLE]
        ]
        return table(("class", "of the pixels"), shares, numbers=frozenset({1}))
    return ""


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def draw_bars(bars: Sequence[tuple[str, int, bool]], most: int) -> str:
    """Classes with how many samples each has: `(name, count, chosen)`; `most` is as long as a bar can be."""
    lines = "".join(
        f"<div class='cs-bar{' cs-chosen' if chosen else ''}'><span class='cs-bar-name'>{html.escape(name)}</span>"
        f"<span class='cs-bar-count'>{count:,}</span>"
        f"<i style='width:{100 * count / max(1, most):.1f}%;background:{COLOURS['accent']}'></i></div>"
        for name, count, chosen in bars
    )
    return f"<div class='cs-bars'>{lines}</div>"
