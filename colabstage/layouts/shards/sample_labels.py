"""Labels as packed samples carry them, one by one, made into targets: class indices, words, numbers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.layouts.fields import Values
from colabstage.layouts.table import ClaimedTreeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Label = int | float | str | None

# More classes than this, and the numbers are no class indices.
_MAX_CLASSES = 1_000_000


class Labels(NamedTuple):
    """Targets, `None` where there are none, and the classes' names in label order."""

    targets: Values | None
    classes: tuple[str, ...]


def make_labels(labels: Sequence[Label], samples: Sequence[str], *, names: Mapping[int, str] | None = None) -> Labels:
    """Make targets of the labels of N samples.

    Whole numbers stay what they are, int64 `(N,)`, also where they count from 1. Words are int64 indices into the
    sorted words. Other numbers are float32 `(N,)`.

    Args:
        labels: of each sample; `None` where it has none.
        samples: what each is called, for messages.
        names: what whole numbers mean, where that is known; a number without a name is named by its digits.

    Raises:
        ClaimedTreeError: some samples have a label and others none, or words are mixed with numbers.
    """
    without = [sample for sample, label in zip(samples, labels, strict=True) if label is None]
    if len(without) == len(labels):
        return Labels(None, ())
    if without:
        msg = f"{len(without):,} of {len(labels):,} samples have no label (first '{without[0]}'); expected all or none."
        raise ClaimedTreeError(msg)
    kinds = {_kind(label) for label in labels}
    if kinds == {str}:
        return _words([str(label) for label in labels])
    if str in kinds:
        first = next(sample for sample, label in zip(samples, labels, strict=True) if isinstance(label, str))
        msg = f"The label of '{first}' is a word, that of others a number; expected one kind for all."
        raise ClaimedTreeError(msg)
    if kinds == {int}:
        values = _whole(labels, samples)
        return Labels(Values(values), _class_names(values, names or {}))
    return Labels(Values(np.array(labels, np.float32)), ())


def names_of(labels: Sequence[Label], texts: Sequence[str | None]) -> dict[int, str]:
    """What whole numbers mean, by the text that stands beside each; nothing where one number has two texts."""
    found: dict[int, str] = {}
    for label, text in zip(labels, texts, strict=True):
        if not isinstance(label, int) or not text:
            continue
        if found.setdefault(label, text) != text:
            return {}
    return found


def parse_label(text: str) -> Label:
    """A label as people write it: a whole number, another number, a word; `None` for nothing.

    >>> parse_label(" 7\\n"), parse_label("0.5"), parse_label("cat"), parse_label("")
    (7, 0.5, 'cat', None)
    """
    text = text.strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


def _kind(label: Label) -> type:
    return str if isinstance(label, str) else float if isinstance(label, float) else int


def _words(words: list[str]) -> Labels:
    classes = sorted(set(words))
    numbers = {word: number for number, word in enumerate(classes)}
    return Labels(Values(np.fromiter((numbers[word] for word in words), np.int64, len(words))), tuple(classes))


def _whole(labels: Sequence[Label], samples: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    try:
        return np.array([int(label or 0) for label in labels], np.int64)
    except OverflowError as error:
        large = next(i for i, label in enumerate(labels) if not -(2**63) <= int(label or 0) < 2**63)
        msg = f"The label of '{samples[large]}' is {labels[large]}, which no 64-bit number can be."
        raise ClaimedTreeError(msg) from error


def _class_names(values: np.ndarray[tuple[int], np.dtype[np.int64]], names: Mapping[int, str]) -> tuple[str, ...]:
    top = max([int(values.max()), *names])
    # -1 is what test sets have whose labels are kept secret.
    if not names or min(names) < 0 or values.min() < -1 or top >= _MAX_CLASSES:
        return ()
    return tuple(names.get(number, str(number)) for number in range(top + 1))
