"""What the values of masks mean: class indices, or a foreground that is 255.

Whatever makes masks has that decided here, by a look at a few. Once all have been read, what all of them say is
compared with it: the first masks of an archive may be of one value alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import DecodeError
from colabstage.images.geometry import VOID
from colabstage.images.headers import is_lossy
from colabstage.images.masks import color_table_advice, colors_of, count_levels, palette_of
from colabstage.layouts.faults import broken
from colabstage.layouts.reading import read_each
from colabstage.layouts.table import Masks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.samples import Content, SampleSource

Color = tuple[int, int, int]
# Enough to meet each common class, and few enough to cost no noticeable time on a mounted Drive.
_LOOKED_AT = 16
# Even a few masks contain this share of the class indices up to the highest; painted greys are far apart.
_DENSE = 1 / 8
_FEW_LEVELS = 64
# Beside pixels of 255, which of class indices is not a class, those of a smoothed edge.
_NEARLY_WHITE = 200
# With this many shades they are not class indices.
_SHOWN = 8
# Masks of which it is seen at once what values they have.
_PAGE = 1 << 14
# Colours of a JPEG are near those of the classes and not the same, so a class_dict.csv does not help.
_LOSSY = (
    "it is a JPEG, or a WebP like one, which has lost the exact values of its pixels; no class_dict.csv brings them "
    "back. Write the masks again as PNG; those of one class by a threshold: "
    "Image.fromarray((np.asarray(Image.open(path).convert('L')) > 127).astype('uint8') * 255).save(path_of_png)"
)


class _Mask(NamedTuple):
    """What a look at one mask shows."""

    name: str
    counts: NDArray[np.int64] | tuple[()] = ()
    """How many pixels have each value; none of a mask in true colours."""
    palette: Mapping[int, Color] = {}
    colors: frozenset[Color] = frozenset()
    """The colours of a mask in true colours."""
    lossy: bool = False


def find_masks(source: SampleSource, *, decoded: bool = False, spread: bool = True) -> Masks:
    """Make masks from a source, after examining a few.

    Args:
        source: mask files, or integer arrays `(H, W)`.
        decoded: whether they are arrays.
        spread: whether to examine some spread over all, or the first ones on the medium.
    """
    count = min(_LOOKED_AT, len(source))
    # The first files of an archive or a Drive are read quickly; examining some among all would require seeking.
    chosen = np.linspace(0, len(source) - 1, count).astype(int) if spread else np.argsort(source.positions)[:count]

    def look(index: int, content: Content) -> _Mask:
        name = source.name(index)
        if isinstance(content, bytes) and is_lossy(content):
            return _Mask(name, lossy=True)
        colors = colors_of(content)
        return _Mask(name, colors=colors) if colors else _Mask(name, count_levels(content), palette_of(content))

    # Broken files are reported when they are packed.
    found = read_each(source, chosen.tolist(), look, readers=_LOOKED_AT, skip_broken=True)
    for mask in found:
        if mask.lossy:
            raise broken(mask.name, _LOSSY)
    _refuse_painted(found)
    _refuse_two_palettes(found)
    plain = [mask for mask in found if not mask.colors]
    counts = np.array([mask.counts for mask in plain], np.int64).reshape(-1, VOID + 1)
    is_foreground = _is_foreground(counts.sum(axis=0), kinds_of(counts > 0), lambda number: plain[number].name)
    return Masks(source, decoded=decoded, foreground=is_foreground, guessed=True)


def _refuse_painted(masks: Sequence[_Mask]) -> None:
    """Refuse masks in true colours, which mean nothing without a table of them.

    Where other masks have indices, a painted one is a broken file, which is reported when it is packed.
    """
    painted = [mask for mask in masks if mask.colors]
    # Those of one value may be of images without any object.
    levels = [np.flatnonzero(mask.counts).tolist() for mask in masks if not mask.colors]
    if painted and all(len(values) == 1 for values in levels):
        colors = frozenset().union(*(mask.colors for mask in painted), ((value,) * 3 for (value,) in levels))
        advice = color_table_advice(colors).rstrip(".")
        what = f"it and others are painted in true colours, and no file says which is which class. {advice}"
        raise broken(painted[0].name, what)


def _refuse_two_palettes(masks: Sequence[_Mask]) -> None:
    """Refuse masks of which two have one colour under different numbers."""
    first: dict[Color, tuple[_Mask, int]] = {}
    for mask in masks:
        for value, color in mask.palette.items():
            other, at = first.setdefault(color, (mask, value))
            # Of one palette two classes may share a colour; and a value that is not there contradicts nothing.
            if at != value and other.palette.get(value, color) != color:
                what = f"it has the colour {color} under another number of its palette than '{other.name}'"
                raise broken(mask.name, what, "one palette for all, or true colours with a class_dict.csv")


def compare_with_all(masks: Masks, levels: NDArray[np.uint8]) -> tuple[bool, tuple[str, ...]]:
    """Return what all masks say that were taken for class indices: whether they are a foreground, and notes.

    Args:
        masks: as `find_masks` made them.
        levels: `(N, 32)`, one bit for each value that the pixels of a mask have; zeros for those that were left out.
    """
    present, kinds = np.zeros(VOID + 1, np.bool_), []
    for first in range(0, len(levels), _PAGE):
        page = np.unpackbits(levels[first : first + _PAGE], axis=1).astype(np.bool_)
        present |= page.any(axis=0)
        kinds.append(kinds_of(page))
    is_foreground = _is_foreground(present.astype(np.int64), np.concatenate(kinds), masks.source.name)
    values = np.flatnonzero(present)
    notes = (f"All pixels of all masks have the value {values[0]}: there is one class.",) if len(values) == 1 else ()
    classes = values[values != VOID]
    if len(values) > 1 and len(classes) and classes[0] > 0:
        notes = (f"The masks have the values {classes[0]} to {classes[-1]}, and no 0, where classes begin.",)
    return is_foreground, notes


def _is_foreground(counts: NDArray[np.int64], kinds: NDArray[np.bool_], name: Callable[[int], str]) -> bool:
    """Tell whether masks are of 0 and 255 for a foreground, and not of class indices.

    `counts`: how many pixels of all have each value, `(256,)`; 1 where it is known only that there are some.
    """
    two = two_foregrounds(kinds)
    if two is not None:
        raise broken(
            name(two[0]),
            f"it has the values 0 and 1, others such as '{name(two[1])}' 0 and {VOID}, which look like one foreground "
            f"written in two ways. Write it in one way; where {VOID} is no class, give layout= a function that returns "
            "a SampleTable with Masks as targets",
        )
    meaning = meaning_of(counts)
    if meaning == "greys":
        levels = np.flatnonzero(counts)
        shown = ", ".join(map(str, levels[:_SHOWN])) + (", …" if len(levels) > _SHOWN else "")
        # One that has any of them.
        raise broken(
            name(int(np.argmax(kinds[:, 2]))),
            f"it and others have {len(levels)} shades of grey ({shown}), which are not class indices: edges were "
            "smoothed, or classes painted. Say what they mean by a class_dict.csv with the columns name, r, g, b "
            "beside the images, or write masks whose pixels are 0 and 255, or 0, 1, 2 and so on",
        )
    return meaning == "foreground"


def meaning_of(counts: NDArray[np.int64]) -> str:
    """Return "indices", "foreground" or "greys": the meaning of pixels of which `counts[v]` have the value v. Pure.

    >>> meaning_of(np.bincount([0, 0, 0, 255], minlength=256))
    'foreground'
    """
    levels = np.flatnonzero(counts)
    inner = levels[(levels > 0) & (levels < VOID)]
    if not len(inner):
        # Masks with only 255 as "no class" would teach nothing.
        return "foreground" if counts[VOID] else "indices"
    highest = int(inner[-1])
    if counts[VOID] and (counts[VOID] > counts[1:VOID].sum() or highest >= _NEARLY_WHITE):
        return "greys"
    return "greys" if highest >= _FEW_LEVELS and len(levels) < _DENSE * highest else "indices"


def kinds_of(levels: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether each mask has pixels of 0, of 1, of something between 1 and 255, and of 255, `(N, 4)`.

    `levels`: `(N, 256)`, which values each has.
    """
    return np.stack([levels[:, 0], levels[:, 1], levels[:, 2:VOID].any(axis=1), levels[:, VOID]], axis=1)


def two_foregrounds(kinds: NDArray[np.bool_]) -> tuple[int, int] | None:
    """Return the numbers of a mask of 0 and 1 and one of 0 and 255 where masks are one or the other; `kinds` as
    `kinds_of`. Pure.

    Pixels without a class, also 255, border on those with one, so some mask would have both.
    """
    zero, one, between, void = kinds.T
    # A mask with a single value may be all foreground or all without a class, so it proves nothing.
    ones, voids = zero & one, zero & void
    if between.any() or not ones.any() or not voids.any() or (ones & voids).any():
        return None
    return int(np.argmax(ones)), int(np.argmax(voids))


def check_lossless(content: Content) -> None:
    """Refuse the file of a mask that keeps its values only about."""
    if isinstance(content, bytes) and is_lossy(content):
        msg = f"The mask cannot be used: {_LOSSY}."
        raise DecodeError(msg)
