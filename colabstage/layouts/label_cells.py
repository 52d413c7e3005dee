"""Convert the cells of label columns to targets: numbers, classes, sets of labels.

Anything that a person would call a mistake is an error with the line to write: numbers with a comma, lists written as
text, words that may be one label or several.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.given import show_content
from colabstage.io.units import format_count, listed
from colabstage.layouts.columns import (
    CODE,
    DECIMAL_COMMA,
    NUMBER,
    SETS_OF_LABELS,
    YES,
    are_all,
    are_yes_and_no,
    has_decimal_commas,
    is_label_name,
    is_numeric,
    plain_name,
)
from colabstage.layouts.table import Values, class_indices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_SEPARATORS = ("|", ";")
# A cell may be a page of text.
_CELL_SHOWN = 60
# What programs write into an empty cell. "None" and "NA" may be words: a wall without damage, Namibia.
_MISSING = frozenset({"", "nan", "<na>", "#n/a", "n/a", "nat", "null"})
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_MOST_DIGITS = 30
# Cells in which Python, pandas or JSON wrote a list; and a list of words.
_WRITTEN_LIST = re.compile(r"\[.*\]|\(.*\)|\{.*\}", re.DOTALL)
_QUOTED = r"""(?:'[^']*'|"[^"]*")"""
_LIST_OF_WORDS = re.compile(rf"\[\s*(?:{_QUOTED}\s*(?:,\s*{_QUOTED}\s*)*)?\]")


def make_targets(
    columns: Mapping[str, Sequence[str]], *, separator: str | None = None, samples: Sequence[str] = ()
) -> tuple[Values, tuple[str, ...]]:
    """Return the targets of label columns, and the names of their classes.

    One column of words: int64 `(N,)`, index into the sorted words; with "|" or ";" in them, or lists of words as JSON
    and Python write them, uint8 `(N, K)`, one column for each word. One of numbers: int64 or float32 `(N,)`; integers
    that count from 0 are class names. Several of numbers: `(N, K)` in their order, uint8 where all are 0 or 1, or yes
    and no in words, NaN for an empty cell.

    Args:
        columns: cells by column name.
        separator: the text between several labels in one cell; "" if each cell is one label; `None` to find out.
        samples: the name of each row's sample for messages, because people find a row by its file, not by a number.

    Raises:
        LayoutError: several columns of words; integers that would become equal, or are too large; an empty cell in a
            single column; two spellings of one number; numbers with commas; lists of numbers; words with spaces or
            commas that may be one label or several.
    """
    if separator is None:
        _check_commas(columns)
    if len(columns) == 1:
        return _of_one_column(*next(iter(columns.items())), separator, samples)
    columns = {
        name: [str(int(cell.lower() in YES)) for cell in cells] if are_yes_and_no(cells) else cells
        for name, cells in columns.items()
    }
    words = [name for name, cells in columns.items() if not is_numeric(cells)]
    if words:
        msg = f"Several label columns must all be numbers; {listed(words)} have words. Choose one of them."
        raise LayoutError(msg)
    table = np.array([[float(cell or "nan") for cell in cells] for cells in columns.values()], np.float64).T
    # Several columns of 0 and 1 are labels that may apply together, one column for each.
    if np.isin(table, (0, 1)).all():
        return Values(np.ascontiguousarray(table.astype(np.uint8))), tuple(columns)
    for (name, cells), numbers in zip(columns.items(), table.T, strict=True):
        check_kept_apart(name, numbers if _whole_cells(cells) is None else _exact(name, cells))
    return Values(np.ascontiguousarray(table.astype(np.float32))), ()


def _of_one_column(
    name: str, cells: Sequence[str], separator: str | None, samples: Sequence[str]
) -> tuple[Values, tuple[str, ...]]:
    if separator == "":
        return _as_classes(name, cells, samples)
    if are_all(_LIST_OF_WORDS, cells):
        found = [re.findall(_QUOTED, cell) for cell in cells]
        return _as_sets(name, cells, [{word[1:-1].strip() for word in words} for words in found], samples)
    if separator is None and is_numeric(cells):
        return _as_numbers(name, cells, samples)
    mark = separator or separator_of(cells)
    if mark:
        return _as_sets(name, cells, [{word.strip() for word in cell.split(mark)} for cell in cells], samples)
    _check_numbers(name, cells, samples)
    _check_lists(name, cells)
    _check_several(name, cells)
    return _as_classes(name, cells, samples)


def _check_filled(name: str, cells: Sequence[str], samples: Sequence[str]) -> None:
    """Refuse a label column in which some cells are empty or marked as empty. `samples`: their names; empty if unknown.

    Raises:
        LayoutError: there is such a cell.
    """
    missing = [number for number, cell in enumerate(cells) if cell.lower() in _MISSING]
    if missing:
        first, written = missing[0], cells[missing[0]]
        which = f"that of '{samples[first]}'" if samples else f"number {first + 1}"
        msg = (
            f"{len(missing):,} of {format_count(len(cells), 'rows')} {'has' if len(missing) == 1 else 'have'} no label "
            f"in '{name}' (the first is {which}{f': {written!r}' if written else ''}). Fill them in, or take the rows "
            "out."
        )
        raise LayoutError(msg)


def _as_numbers(name: str, cells: Sequence[str], samples: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    _check_filled(name, cells, samples)
    if _whole_cells(cells) is not None:
        whole = _exact(name, cells)
    else:
        values = np.array([float(cell) for cell in cells], np.float64)
        # From 2 ** 53 on floats skip integers, so numbers written as floats may already be wrong.
        if np.any(values != np.rint(values)) or np.abs(values).max() >= 2**53:
            check_kept_apart(name, values)
            return Values(values.astype(np.float32)), ()
        whole = values.astype(np.int64)
    return Values(whole), class_numbers(whole)


def _whole_cells(cells: Sequence[str]) -> list[int] | None:
    """Return the numbers of a column whose cells contain only digits; `None` for any other."""
    return list(map(_to_int, cells)) if all(map(_WHOLE.fullmatch, cells)) else None


def _to_int(cell: str) -> int:
    # Python refuses to read a number of more than 4,300 digits. None of so many fits anyway.
    digits = cell.lstrip("+-0")
    return int(cell) if len(digits) < _MOST_DIGITS else 10**_MOST_DIGITS


def _exact(name: str, cells: Sequence[str]) -> NDArray[np.int64]:
    whole = _whole_cells(cells) or []
    large = next((cell for cell, number in zip(cells, whole, strict=True) if not -(2**63) <= number < 2**63), None)
    if large is not None:
        shown = show_content(large)
        msg = f"'{name}' has the label {shown}, which does not fit into 64 bits. Write such labels as words."
        raise LayoutError(msg)
    return np.array(whole, np.int64)


def check_kept_apart(name: str, numbers: NDArray[Any]) -> None:
    """Refuse integers of which two would become equal in float32, in which numbers other than classes are stored.

    Args:
        name: of the column, for the message.
        numbers: int64 or float64 `(N,)`.

    Raises:
        LayoutError: there are two such; the message names them.
    """
    # Fractions are measurements, for which the eighth digit does not matter.
    whole = np.unique(numbers[np.isfinite(numbers) & (numbers == np.rint(numbers))])
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 they would be infinite, which is not a label
        merged = np.flatnonzero(np.diff(whole.astype(np.float32)) == 0)
    if len(merged):
        one, other = int(whole[merged[0]]), int(whole[merged[0] + 1])
        msg = (
            f"'{name}' has the numbers {one} and {other}, which would become the same number in float32. Take it as "
            "the only label, with digits alone in its cells, or write smaller numbers."
        )
        raise LayoutError(msg)


def class_numbers(whole: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the numbers as class names, if integers count classes from 0; otherwise nothing."""
    found = np.unique(whole)
    if not len(found) or found[0] != 0 or found[-1] != len(found) - 1 or 2 * len(found) > len(whole):
        return ()
    return tuple(str(number) for number in found.tolist())


def _as_classes(name: str, cells: Sequence[str], samples: Sequence[str]) -> tuple[Values, tuple[str, ...]]:
    _check_filled(name, cells, samples)
    values, classes = class_indices(cells)
    # Some programs take 01 and 1 as two classes, others as one.
    seen: dict[str, str] = {}
    for word in classes:
        if word.isascii() and word.isdecimal() and seen.setdefault(word.lstrip("0"), word) != word:
            other = seen[word.lstrip("0")]
            msg = f"'{name}' has the labels '{other}' and '{word}', which are the same number. Write it in one way."
            raise LayoutError(msg)
    return values, classes


def notes_on_targets(columns: Mapping[str, Sequence[str]], targets: Values, classes: Sequence[str]) -> list[str]:
    """Return notes on targets that a loss, or the author of the table, may not expect.

    Args:
        columns: cells of the label columns by name.
        targets: what was made of them.
        classes: the names of their classes.
    """
    values, names = targets.values, list(columns)
    if values.ndim == 1:
        if 2 * len(classes) > len(targets) > 2:
            return [f"'{names[0]}' has {len(classes):,} classes for {len(targets):,} samples: is it a label?"]
        return _note_on_numbers(names[0], targets, classes)
    if len(columns) == 1:
        mark = separator_of(columns[names[0]])
        between = f"with '{mark}' between them" if mark else "written as a list"
        note = (
            f"A cell of '{names[0]}' may hold several labels, {between}: each of the {values.shape[1]:,} classes is a "
            "column of 0 and 1. For one class in each cell: layout=table_rows(separator='')."
        )
        return [note]
    notes = []
    empty = int(np.isnan(values).sum())
    if empty:
        notes.append(
            f"{format_count(empty, 'cells')} of the label columns {'is' if empty == 1 else 'are'} empty, and NaN in y; "
            "a loss over them is NaN. Fill them in, or leave them out in the loop: y.isnan()."
        )
    if np.any(values == -1) and bool(np.isin(values[~np.isnan(values)], (-1, 0, 1)).all()):
        notes.append(
            "The label columns hold -1, which a loss for yes and no does not take. Convert it in the loop: "
            "(y > 0).float() takes it for no."
        )
    return notes


def _note_on_numbers(name: str, targets: Values, classes: Sequence[str]) -> list[str]:
    """Return a note if a label column contains integers that a loss cannot use as classes."""
    found = np.unique(targets.values)
    # Numbers that mostly differ are measurements, and those that count from 0 without a gap have names.
    if classes or not is_label_name(name) or targets.values.dtype != np.int64 or 2 * len(found) > len(targets):
        return []
    note = (
        f"The labels in '{name}' stay the numbers {int(found[0]):,} to {int(found[-1]):,}; classes would be "
        f"0 to {len(found) - 1:,}. For classes write words, or convert the numbers in the loop."
    )
    return [note]


def _check_commas(columns: Mapping[str, Sequence[str]]) -> None:
    """Refuse numbers with a comma, which would be taken as words and become classes."""
    for name, cells in columns.items():
        first = next((cell for cell in cells if DECIMAL_COMMA.fullmatch(cell)), "")
        if first and has_decimal_commas(cells):
            thousands = ", or without it, if it is between thousands" if re.search(r",\d{3}$", first) else ""
            msg = (
                f"'{name}' has numbers with a comma ('{first}'). Write them with a point ('{first.replace(',', '.')}')"
                f"{thousands}; in pandas, read_csv(PATH, sep=';', decimal=',').to_csv(PATH, index=False). If they are "
                f"no such numbers: {_of_separators(',')}."
            )
            raise LayoutError(msg)


def _check_numbers(name: str, cells: Sequence[str], samples: Sequence[str]) -> None:
    """Refuse numbers mixed with words, which would make a class of each different number."""
    odd = [number for number, cell in enumerate(cells) if not NUMBER.fullmatch(cell) or CODE.fullmatch(cell)]
    if 0 < len(odd) <= len(cells) / 4:
        first = odd[0]
        which = f"that of '{samples[first]}'" if samples else f"number {first + 1}"
        msg = (
            f"Most cells of '{name}' are numbers, and {len(odd):,} of {len(cells):,} are not: '{cells[first]}' (the "
            f"first is {which}). Correct them, or take the rows out; if all are words, layout=table_rows(separator='')."
        )
        raise LayoutError(msg)


def _of_separators(mark: str) -> str:
    return f"layout=table_rows(separator='') for one class, table_rows(separator='{mark}') for several labels"


def separator_of(cells: Sequence[str]) -> str:
    """Return the separator between the labels of a cell, if it never occurs in a word; otherwise ""."""
    return next((mark for mark in _SEPARATORS if any(mark in cell for cell in cells)), "")


def _check_lists(name: str, cells: Sequence[str]) -> None:
    """Refuse lists of numbers, and other lists written as text, because each different one would be a class."""
    for cell in sorted(set(cells)):
        parts = cell.strip("[](){}").replace(",", " ").split()
        if _WRITTEN_LIST.fullmatch(cell) or (len(parts) > 1 and all(map(NUMBER.fullmatch, parts))):
            msg = (
                f"'{name}' has cells such as '{cell[:_CELL_SHOWN]}', a list written as text. Write a column for each "
                f"number ({name}_0, {name}_1, and so on); or, if it lists several labels, put | between them: "
                f"{'|'.join(parts[:3])[:_CELL_SHOWN] or 'a|b'}. layout=table_rows(separator='') takes each different "
                "cell for one class."
            )
            raise LayoutError(msg)


def _check_several(name: str, cells: Sequence[str]) -> None:
    """Refuse words with spaces or commas that may be one label or several."""
    known = set(cells)
    by_comma = {cell: [part.strip() for part in cell.split(",")] for cell in known if "," in cell}
    parts = [part for found in by_comma.values() for part in found]
    # The parts of a single name with a comma do not occur elsewhere.
    several = {*by_comma} if len(set(parts)) < len(parts) or not known.isdisjoint(parts) else set()
    separator = "," if by_comma else " "
    if not several:
        several = {cell for cell in known if len(cell.split()) > 1}
        words = {word for cell in several for word in cell.split()}
        if not (several and (plain_name(name) in SETS_OF_LABELS or words <= known)):
            return
    msg = (
        f"'{name}' has labels such as '{min(several)[:_CELL_SHOWN]}'. Is that one class, or several labels? Say so: "
        f"{_of_separators(separator)}."
    )
    raise LayoutError(msg)


def _as_sets(
    name: str, cells: Sequence[str], sets: Sequence[set[str]], samples: Sequence[str]
) -> tuple[Values, tuple[str, ...]]:
    """Return sets of labels, one for each cell, as columns of 0 and 1."""
    # An empty cell is a sample without a label; a program's mark for a missing value is not a word.
    _check_filled(name, [cell or "-" for cell in cells], samples)
    # A label repeated in a cell counts once.
    sets = [found - {""} for found in sets]
    classes = sorted(set().union(*sets))
    table = np.array([[word in found for word in classes] for found in sets], np.uint8)
    return Values(table.reshape(len(cells), len(classes))), tuple(classes)
