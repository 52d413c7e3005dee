"""Samples that are records of shards: what their fields state becomes targets, classes, splits and notes.

A format finds the records of its files and the fields in them: keys of WebDataset, features of an Example, columns of
Arrow, values of LMDB. What labels mean, and that all records have them or none, is the same for all.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.units import counted
from colabstage.layouts.columns import (
    MISSING,
    MOST_DIGITS,
    NUMBER,
    WHOLE,
    Column,
    check_kept_apart,
    class_numbers,
    note_on_numbers,
    splits_of_column,
)
from colabstage.layouts.evidence import Evidence
from colabstage.layouts.faults import broken
from colabstage.layouts.shards import split_of_shard
from colabstage.layouts.table import (
    Boxes,
    BrokenDatasetError,
    SampleTable,
    Values,
    class_indices,
    known_splits,
    offsets_of,
)
from colabstage.layouts.words import same_split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.table import Inputs, Targets

# With more classes than this, the numbers are not class indices.
_MAX_CLASSES = 1_000_000
_OF_SERIES = re.compile(r"^(.*)-(\d+)-of-(\d+)(.*)$")
Label = int | float | str | None


class Labels(NamedTuple):
    """The targets made from labels, and their classes."""

    targets: Targets | None
    classes: tuple[str, ...]


def records_state(
    layout: str,
    who: str,
    inputs: Inputs,
    labels: Labels,
    *,
    shards: Sequence[str],
    shard_of: NDArray[np.integer[Any]],
    field: str = "label",
    notes: Sequence[str] = (),
    stated: Sequence[str] = (),
) -> Evidence:
    """Return what records state, each named as its content is.

    `who`: what states the labels. `shard_of`: the number of the file of each record, in `shards`. `field`: the name of
    the field of the labels. `stated`: the split of each record, where a field says it.
    """
    splits = [split_of_shard(name) or "" for name in shards]
    odd = next((name for name, split in zip(shards, splits, strict=True) if not split), None)
    if odd is not None and any(splits):
        other = next(name for name, split in zip(shards, splits, strict=True) if split)
        what = f"'{other}' is called after a split and it is not, so nothing says which its samples are of"
        raise broken(odd, what, f"a split in the name of each, or some of them alone, only={other!r}")
    of_records = tuple([splits[number] for number in shard_of.tolist()]) if all(splits) else ()
    for number, split in enumerate(stated if of_records else ()):
        if not same_split(split, of_records[number]):
            what = f"it is in '{shards[shard_of[number]]}' and in the split '{split}'"
            raise broken(inputs.source.name(number), what, "one split")
    values = labels.targets.values if isinstance(labels.targets, Values) else None
    table = SampleTable(
        layout=layout,
        keys=[inputs.source.name(number) for number in range(len(inputs))],
        inputs=inputs,
        targets=labels.targets,
        splits=known_splits(of_records or stated),
        classes=labels.classes,
        notes=(
            *notes,
            *_missing_shards(shards),
            *([] if values is None else note_on_numbers(field, values, labels.classes)),
        ),
    )
    return Evidence(table, who, frozenset(shards))


def splits_of_field(where: str, name: str, cells: Sequence[str]) -> Sequence[str]:
    """Return the split of each record, by a field that is called as those of splits are; nothing where it has other
    words."""
    try:
        return splits_of_column(Column(name, cells))
    except LayoutError as error:
        msg = f"'{where}' has records of samples. {error}"
        raise BrokenDatasetError(msg) from error


def _missing_shards(names: Sequence[str]) -> list[str]:
    """Return a note for each series of shards, train-00000-of-00003, of which not all are there."""
    series: dict[tuple[str, ...], set[str]] = {}
    for name in names:
        for before, number, count, after in _OF_SERIES.findall(name):
            series.setdefault((before, count, after), set()).add(number)
    return [
        f"Only {len(found):,} of {int(count):,} files '{before}-…-of-{count}{after}' are there."
        for (before, count, after), found in series.items()
        if len(found) < int(count)
    ]


def all_have(values: Sequence[Any], names: Sequence[str], what: str) -> bool:
    """Tell whether all records have a value; it is an error that names one if only some have."""
    missing = [number for number, value in enumerate(values) if value is None]
    if missing and len(missing) < len(values):
        lacking = counted(len(missing), "samples", "have", of=len(values))
        msg = f"{lacking} no {what} (first '{names[missing[0]]}'); expected all or none."
        raise BrokenDatasetError(msg)
    return not missing and len(values) > 0


def make_labels(
    labels: Sequence[Label] | NDArray[np.int64], samples: Sequence[str], *, names: Mapping[int, str] | None = None
) -> Labels:
    """Make targets from the labels of N samples.

    Integers stay as they are, int64 `(N,)`, even if they count from 1. Words become int64 indices into the sorted
    words. Other numbers become float32 `(N,)`. A missing label is `None` or NaN, as pandas writes it. `names`: the
    meaning of whole numbers, if known; a number without a name is named by its digits.
    """
    if isinstance(labels, np.ndarray):
        return _whole_numbers(labels, names or {})
    labels = [None if isinstance(label, float) and math.isnan(label) else label for label in labels]
    if not all_have(labels, samples, "label"):
        return Labels(None, ())
    words = [label for label in labels if isinstance(label, str)]
    whole = [label for label in labels if isinstance(label, int)]
    if len(words) == len(labels):
        return Labels(*class_indices(words))
    large = [label for label in whole if not -(2**63) <= label < 2**63] if len(whole) == len(labels) else []
    odd_ones: list[Label] = [*words[:1], *large[:1]]
    for odd in odd_ones:
        what = "a word, that of others a number" if words else f"{odd:.3e}, which does not fit into 64 bits"
        msg = f"The label of '{samples[labels.index(odd)]}' is {what}; expected one kind for all."
        raise BrokenDatasetError(msg)
    if len(whole) == len(labels):
        return _whole_numbers(np.array(whole, np.int64), names or {})
    if whole:
        check_kept_apart("label", np.array(labels, np.float64))
    return Labels(Values(np.array(labels, np.float32)), ())


def _whole_numbers(values: NDArray[np.int64], names: Mapping[int, str]) -> Labels:
    if not len(values):
        return Labels(None, ())
    top = max([int(values.max()), *names])
    # Test sets with secret labels use -1.
    are_classes = names and min(names) >= 0 and values.min() >= -1 and top < _MAX_CLASSES
    found = tuple(names.get(number, str(number)) for number in range(top + 1)) if are_classes else ()
    return Labels(Values(values), found if names else class_numbers(values))


def make_boxes(
    counts: Sequence[int],
    corners: NDArray[np.float64],
    labels: Sequence[Label],
    owners: Sequence[str],
    *,
    names: Mapping[int, str],
    relative: bool = False,
) -> Labels:
    """Make boxes of N samples, which have `counts` each, from the corners `(M, 4)`, label and sample's name of each
    box."""
    targets, classes = make_labels(labels, owners, names=names)
    numbers = getattr(targets, "values", np.zeros(0, np.int64))
    return Labels(Boxes(offsets_of(counts), corners, {"labels": numbers}, relative=relative), classes)


def names_of(labels: Sequence[Label], texts: Sequence[str | None]) -> dict[int, str]:
    """Return the meaning of integers, by the text beside each; nothing if a number has two texts."""
    found: dict[int, str] = {}
    for label, text in zip(labels, texts, strict=True):
        # A number with two texts: the texts are captions, not classes.
        if isinstance(label, int) and text and found.setdefault(label, text) != text:
            return {}
    return found


def decode_label(content: bytes, name: str) -> str:
    """Return a label's text."""
    try:
        # Editors on Windows begin a text with the mark, which would be part of the label.
        return content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        msg = f"The label of '{name}' is not text: {content[:20]!r}."
        raise BrokenDatasetError(msg) from error


def parse_label(text: str) -> Label:
    """Parse a label as people write it: an integer, another number, a word; `None` for an empty text.

    >>> parse_label(" 7\\n"), parse_label("0.5"), parse_label("25_0"), parse_label("")
    (7, 0.5, '25_0', None)
    """
    text = text.strip()
    if text.lower() in MISSING:
        return None
    # Python's own reader takes 25_0 for 250, and infinity for a number.
    if WHOLE.fullmatch(text) and len(text) <= MOST_DIGITS:
        return int(text)
    if NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text
