"""Which arrays of a dataset are inputs and which targets, of which split, by what people call them. Pure."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import LayoutError
from colabstage.layouts.boxes.image_boxes import split_of_word
from colabstage.layouts.names import SPLIT_NAMES, listed

if TYPE_CHECKING:
    from collections.abc import Iterable

_X = {
    "x",
    "xs",
    "image",
    "images",
    "img",
    "imgs",
    "data",
    "feature",
    "features",
    "input",
    "inputs",
    "samples",
    "signals",
}
_Y = {"y", "ys", "label", "labels", "target", "targets", "class", "mask", "masks", "output", "outputs"}
_CLASSES = {"classes", "class_names", "classnames", "label_names", "list_classes", "target_names", "categories"}
_SUFFIXES = (".npy", ".npz", ".h5", ".hdf5", ".hdf", ".he5", ".mat")


class SplitArrays(NamedTuple):
    """Names of the arrays of one split; `split` is "" where there is just one set, `y` `None` without targets."""

    split: str
    x: str
    y: str | None


class _Part(NamedTuple):
    split: str
    role: str


def find_splits(names: Iterable[str], *, x: str | None = None, y: str | None = None) -> list[SplitArrays]:
    """Pair inputs with targets.

    >>> find_splits(["mnist.npz/x_train", "mnist.npz/y_train"])
    [SplitArrays(split='train', x='mnist.npz/x_train', y='mnist.npz/y_train')]

    Args:
        names: paths of all arrays, the key in a file as the last part.
        x, y: last parts of the names of inputs and targets, where somebody says which they are.

    Raises:
        LayoutError: no array is called like inputs, or several are for one split.
    """
    every = list(names)
    if x is not None:
        return [_given(every, x, y)]
    by_split: dict[str, dict[str, list[str]]] = {}
    for name in every:
        part = _part(name)
        by_split.setdefault(part.split, {"x": [], "y": [], "": []})[part.role].append(name)
    found = [_pair(split, roles["x"], roles["y"]) for split, roles in by_split.items() if roles["x"]]
    if found:
        alone = len(found) == 1
        order = list(dict.fromkeys(SPLIT_NAMES.values()))
        named = [one if alone or one.split else one._replace(split="train") for one in found]
        if len({one.split for one in named}) == len(named):
            return sorted(named, key=lambda one: order.index(one.split) if one.split else 0)
    elif len(every) == 1:
        return [SplitArrays("", every[0], None)]
    msg = (
        f"Which of the arrays {listed(every)} are inputs and which targets? Expected names such as X and y, x_train "
        "and y_train, images and labels. Or say so: layout=functools.partial(read_arrays, x='NAME', y='NAME')."
    )
    raise LayoutError(msg)


def is_class_names(name: str) -> bool:
    """Whether an array is called like a list of the names of classes."""
    last = _bare(name.rpartition("/")[2]).lower()
    return last in _CLASSES or last.removeprefix("train_").removeprefix("test_") in _CLASSES


def _given(names: list[str], x: str, y: str | None) -> SplitArrays:
    def one(wanted: str) -> str:
        found = [
            name
            for name in names
            if name == wanted or _bare(name).endswith(f"/{_bare(wanted)}") or _bare(name) == _bare(wanted)
        ]
        if len(found) != 1:
            msg = f"{len(found)} arrays are called '{wanted}'; there are {listed(names)}."
            raise LayoutError(msg)
        return found[0]

    return SplitArrays("", one(x), None if y is None else one(y))


def _pair(split: str, xs: list[str], ys: list[str]) -> SplitArrays:
    if len(xs) > 1 or len(ys) > 1:
        msg = (
            f"Several arrays are called like {'inputs' if len(xs) > 1 else 'targets'}: "
            f"{listed(xs if len(xs) > 1 else ys)}. Say which to take: "
            "layout=functools.partial(read_arrays, x='NAME', y='NAME')."
        )
        raise LayoutError(msg)
    return SplitArrays(split, xs[0], ys[0] if ys else None)


def _part(name: str) -> _Part:
    """The split and role that a path's parts name; the last part that names one counts."""
    split = role = ""
    if is_class_names(name):
        return _Part("", "")
    for part in reversed(name.split("/")):
        words = _words(part)
        role = role or next(("x" if word in _X else "y" for word in reversed(words) if word in _X | _Y), "")
        split = split or next((found for word in words if (found := split_of_word(word))), "")
    return _Part(split, role)


def _words(part: str) -> list[str]:
    """train_images, X-train, xTrain, XTrain and Xtrain in words."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=\b[XY])(?=[A-Z])", "_", _bare(part))
    words = [word.lower() for word in re.split(r"[^A-Za-z0-9]+", text) if word]
    split = [
        [word[0], word[1:]] if word[0] in "xy" and split_of_word(word[1:]) else
        [word[:-1], word[-1]] if word[-1] in "xy" and split_of_word(word[:-1]) else [word]
        for word in words
    ]  # fmt: skip
    return [word for pair in split for word in pair]


def _bare(name: str) -> str:
    stem, suffix = posixpath.splitext(name)
    return stem if suffix.lower() in _SUFFIXES else name
