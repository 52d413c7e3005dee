"""What the values of masks mean, by a look at a few of them: class indices, or 0 and 255 for a foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from colabstage.images.masks import count_levels, is_lossy
from colabstage.images.options import VOID
from colabstage.layouts.fields import Masks
from colabstage.layouts.reading import read_each
from colabstage.layouts.table import ClaimedTreeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.layouts.sources import Content, SampleSource

FOREGROUND_CLASSES = ("background", "foreground")
_LOOKED_AT = 16
# Of class indices, even a few masks have this part of all up to their highest; painted greys are far apart.
_DENSE = 1 / 8
_FEW_LEVELS = 64
# Beside pixels of 255, which of class indices is no class, those of a smoothed edge.
_NEARLY_WHITE = 200
_SHOWN = 8
_REMEDY = (
    "Say what they mean by a class_dict.csv with the columns name, r, g, b beside the images, or write masks whose "
    "pixels are 0 and 255, or 0, 1, 2, …"
)


def find_masks(source: SampleSource, *, decoded: bool = False, spread: bool = True) -> Masks:
    """Make masks of a source, after a look at a few.

    Args:
        source: mask files, or integer arrays `(H, W)`.
        decoded: whether they are arrays.
        spread: whether to look at some among all, or at the first ones of the medium.

    Raises:
        ClaimedTreeError: their values are no class indices: shades of grey, or a lossy file's.
    """
    counts, example = _look(source, spread=spread)
    meaning = meaning_of(counts)
    if meaning == "greys":
        levels = np.flatnonzero(counts)
        shown = ", ".join(map(str, levels[:_SHOWN])) + (", …" if len(levels) > _SHOWN else "")
        msg = (
            f"Masks such as '{example}' have {len(levels)} shades of grey ({shown}), which are no class indices: edges "
            f"were smoothed, or classes painted. {_REMEDY}"
        )
        raise ClaimedTreeError(msg)
    return Masks(source, decoded=decoded, foreground=meaning == "foreground")


def meaning_of(counts: NDArray[np.int64]) -> str:
    """Return "indices", "foreground" or "greys": what pixels mean of which `counts[v]` have the value v. Pure.

    >>> meaning_of(np.bincount([0, 0, 0, 255], minlength=256))
    'foreground'
    """
    levels = np.flatnonzero(counts)
    inner = levels[(levels > 0) & (levels < VOID)]
    if not len(inner):
        # 255 without any class would be a set of masks of which nothing can be learnt.
        return "foreground" if counts[VOID] else "indices"
    highest = int(inner[-1])
    if counts[VOID] and (counts[VOID] > counts[1:VOID].sum() or highest >= _NEARLY_WHITE):
        return "greys"
    return "greys" if highest >= _FEW_LEVELS and len(levels) < _DENSE * highest else "indices"


def _look(source: SampleSource, *, spread: bool) -> tuple[NDArray[np.int64], str]:
    count = min(_LOOKED_AT, len(source))
    chosen = np.linspace(0, len(source) - 1, count).astype(int) if spread else np.argsort(source.positions)[:count]
    example = source.name(int(chosen[0])) if count else ""

    def look(index: int, content: Content) -> NDArray[np.int64]:
        if isinstance(content, bytes) and is_lossy(content):
            msg = f"The mask '{source.name(index)}' is a JPEG, which has lost the exact values of its pixels. {_REMEDY}"
            raise ClaimedTreeError(msg)
        return count_levels(content)

    # What is broken is met again, and named, when it is packed.
    found = read_each(source, chosen.tolist(), look, readers=_LOOKED_AT, skip_broken=True)
    return sum(found, np.zeros(VOID + 1, np.int64)), example
