"""A few samples at a time, at the size they are shown: only the rows asked for are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.load.reading.threads import ThreadPool
from colabstage.machine.resources import usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.ui.samples.source import Reader, Source

# Inputs in memory at once while a page is made.
_HELD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample.

    `row`: its number in the split. `x`: the input, as stored, or an image reduced to the size asked for.
    `y`: its target as a number, an array, a dict of arrays for boxes, or a text. `key`: the name of the file that it
    was made from, empty where that is not known. `size`: height and width of the image that `y` is about, which `x`
    may be a reduction of; `None` for what is no image.
    """

    row: int
    x: NDArray[Any]
    y: Any
    key: str
    size: tuple[int, int] | None = None


def read_samples(source: Source, split: str, rows: Sequence[int], *, longest_px: int) -> list[Sample]:
    """Read samples, in the order of `rows`.

    Args:
        source: what there is to look at.
        split: of which split.
        rows: which ones.
        longest_px: images that are files are decoded to about this size, which takes a fraction of the time; others
            come as they are stored.

    Raises:
        DecodeError: an image is broken; the message names its row.
        DamagedPackError: the file changed since it was opened, or is cut off.
    """
    reader = source.reader(split)
    samples: list[Sample] = []
    step = max(1, _HELD_BYTES // max(1, reader.estimate_row_bytes()))
    keys = source.keys(split, rows)
    with ThreadPool(usable_cores()) as pool:
        for start in range(0, len(rows), step):
            part = list(rows[start : start + step])
            xs, sizes = _read_inputs(reader, part, longest_px, pool)
            ys = list(reader.read_y(part, pool=pool))
            samples += [
                Sample(row, x, _target(y), key, size)
                for row, x, y, key, size in zip(part, xs, ys, keys[start : start + step], sizes, strict=True)
            ]
    return samples


def _read_inputs(
    reader: Reader, rows: list[int], longest_px: int, pool: ThreadPool
) -> tuple[list[NDArray[Any]], list[tuple[int, int] | None]]:
    if reader.encoded and reader.whole_reason is None:
        return _read_reduced(reader, rows, longest_px, pool)
    xs = list(reader.read_x(rows, pool=pool))
    return xs, [_size(x) for x in xs]


def _read_reduced(
    reader: Reader, rows: list[int], longest_px: int, pool: ThreadPool
) -> tuple[list[NDArray[Any]], list[tuple[int, int] | None]]:
    """Images of many sizes, each decoded no larger than it is shown. Those of one size are decoded together."""
    sizes = [(int(height), int(width)) for height, width in reader.image_sizes(rows)]
    shown = [_fit(size, longest_px) for size in sizes]
    images: list[Any] = [None] * len(rows)
    for target in dict.fromkeys(shown):
        places = [place for place, size in enumerate(shown) if size == target]
        group = reader.read_crops([rows[place] for place in places], target, _whole, pool=pool)
        for place, image in zip(places, group, strict=True):
            images[place] = image
    return images, list(sizes)


def _whole(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """All of each image: top, left, height, width."""
    return np.concatenate([np.zeros_like(sizes), sizes], axis=1)


def _fit(size: tuple[int, int], longest_px: int) -> tuple[int, int]:
    scale = min(1.0, longest_px / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _size(x: NDArray[Any]) -> tuple[int, int] | None:
    from colabstage.ui.samples.kinds import channels_first

    if x.ndim < 2:
        return None
    height, width = x.shape[1:3] if channels_first(x.shape) else x.shape[:2]
    return int(height), int(width)


def _target(y: Any) -> Any:
    """A lone number as such, whatever axes of length one it is stored with."""
    if isinstance(y, np.ndarray | np.generic) and y.size == 1:
        return np.asarray(y).reshape(-1)[0].item()
    return y
