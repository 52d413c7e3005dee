"""What inputs are to a person's eye: an image, a sound, tokens, text or numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["image", "sound", "tokens", "numbers"]

_MOST_CHANNELS = 4
_LEAST_SIDE = 4
# A longer row of fractions is a signal, a shorter one a row of a table.
_LEAST_SIGNAL = 512


def kind_of(shape: tuple[int, ...], dtype: np.dtype[np.generic], layout: str | None) -> Kind:
    """Decide by the shape of one input, its dtype, and the file's layout where it has one."""
    if layout in ("audio", "tokens"):
        return "sound" if layout == "audio" else "tokens"
    if _is_image(shape):
        return "image"
    if len(shape) == 1 and dtype.kind in "iu" and layout != "csv":
        return "tokens"
    if dtype.kind in "fi" and max(shape, default=0) >= _LEAST_SIGNAL and _signals(shape):
        return "sound"
    return "numbers"


def _signals(shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 or (len(shape) == 2 and min(shape) <= _MOST_CHANNELS)


def _is_image(shape: tuple[int, ...]) -> bool:
    """Height and width, alone, or with the channels behind or before them."""
    if len(shape) == 2:
        return min(shape) > _MOST_CHANNELS
    if len(shape) != 3:
        return False
    return channels_first(shape) or (shape[2] <= _MOST_CHANNELS and min(shape[:2]) >= _LEAST_SIDE)


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether the channels of an image come before its height and width, as some programs store them."""
    return len(shape) == 3 and shape[0] <= _MOST_CHANNELS < min(shape[1:])
