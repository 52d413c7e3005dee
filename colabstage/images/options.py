"""How an image file becomes an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from colabstage.errors import OptionError

ColorMode = Literal["auto", "rgb", "grayscale", "keep"]
Resize = Literal["stretch", "crop", "pad"]


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How an image file becomes an array."""

    size: tuple[int, int] | None = None
    """`(height, width)` in pixels every image gets, `None` to keep each image's own."""
    color_mode: ColorMode = "auto"
    """`"rgb"` (3 channels), `"grayscale"` (1 channel), `"keep"` (1, 3 or 4 as the file has), `"auto"` (`"rgb"` for
    files and single images; who packs arrays whose channels are part of the data keeps them)."""
    resize: Resize = "stretch"
    """How an image of another shape reaches `size`: `"stretch"` ignores the aspect ratio; `"crop"` scales until both
    sides cover `size` and cuts the middle out; `"pad"` scales until both sides fit and fills with black.
    """

    def __post_init__(self) -> None:
        if self.color_mode not in get_args(ColorMode):
            msg = f"color_mode={self.color_mode!r} is unknown; expected one of {', '.join(get_args(ColorMode))}."
            raise OptionError(msg)
        if self.resize not in get_args(Resize):
            msg = f"resize={self.resize!r} is unknown; expected one of {', '.join(get_args(Resize))}."
            raise OptionError(msg)
        if self.size is not None and (len(tuple(self.size)) != 2 or min(self.size) < 1):
            msg = f"image_size={self.size!r} is not a size; expected (height, width) in pixels, for example (224, 224)."
            raise OptionError(msg)


# The class index of pixels that are of no class: where padding covers no image, and the borders in Pascal VOC's masks.
VOID = 255


@dataclass(frozen=True, slots=True)
class MaskOptions:
    """How a mask file becomes class indices."""

    size: tuple[int, int] | None = None
    """That of its image."""
    resize: Resize = "stretch"
    """That of its image."""
    colors: tuple[tuple[int, int, int], ...] | None = None
    """`(r, g, b)` of class 0, 1, …; `None` when its pixels are class indices already."""
    foreground: bool = False
    """Whether its pixels are 0, class 0, or 255, class 1."""

    def __post_init__(self) -> None:
        if self.colors is not None and not 1 <= len(self.colors) <= VOID:
            msg = f"There are {len(self.colors)} colours of classes; expected 1 to {VOID}, since {VOID} means no class."
            raise OptionError(msg)
