"""Columns of tables and fields of records: what each is, told once by its distinct values; and labels as targets.

Cells stay text until the whole column has been seen, because "01" beside "1" is a code, not a number. Anything that a
person would call a mistake is an error with the line to write: numbers with a comma, lists written as text, words that
may be one label or several.
"""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.io.given import show_content
from colabstage.io.units import format_count, listed
from colabstage.layouts.table import Values, class_indices
from colabstage.layouts.words import (
    ABOUT_FILES,
    CAPTIONS,
    FLAGS,
    IDS,
    IMAGES,
    LABEL_WORDS,
    NO,
    PATHS,
    PERSONS,
    SCENES,
    SETS_OF_LABELS,
    SPLIT_COLUMNS,
    SPLITS,
    YES,
    is_index_name,
    is_label_name,
    label_names,
    plain_name,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan", re.IGNORECASE | re.ASCII)
_CODE = re.compile(r"0\d+", re.ASCII)
WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ]\d.*)?|\d{1,2}:\d{2}(:\d{2})?", re.ASCII
)
_SEPARATORS = ("|", ";")
# A cell may be a page of text.
_CELL_SHOWN = 60
# What programs write into an empty cell. "None" and "NA" may be words: a wall without damage, Namibia.
MISSING = frozenset({"", "nan", "<na>", "#n/a", "n/a", "nat", "null"})
# Cells in which Python, pandas or JSON wrote a list; and a list of words.
_WRITTEN_LIST = re.compile(r"\[.*\]|\(.*\)|\{.*\}", re.DOTALL)
_QUOTED = r"""(?:'[^']*'|"[^"]*")"""
_LIST_OF_WORDS = re.compile(rf"\[\s*(?:{_QUOTED}\s*(?:,\s*{_QUOTED}\s*)*)?\]")
# Whole numbers of 64 bits have fewer digits, and Python refuses to read thousands of them.
MOST_DIGITS = 40


def show(value: object) -> str:
    """Return the beginning of a cell, or of a value in its place, for messages."""
    text = str(value) if isinstance(value, str | Exception) else show_content(value, _CELL_SHOWN)
    return text if len(text) <= _CELL_SHOWN else f"{text[:_CELL_SHOWN]}…"


class Column:
    """N cells of text, and what is told of them by the distinct ones."""

    def __init__(self, name: str, cells: Sequence[str]) -> None:
        self.name = name
        self.plain = plain_name(name)
        self.cells = cells

    def __len__(self) -> int:
        return len(self.cells)

    @cached_property
    def distinct(self) -> frozenset[str]:
        """Return the different cells."""
        return frozenset(self.cells)

    @cached_property
    def filled(self) -> frozenset[str]:
        """Return the different cells that are not empty."""
        return self.distinct - {""}

    def are_all(self, pattern: re.Pattern[str]) -> bool:
        """Tell whether every cell that is not empty is of a pattern, and there are some."""
        return bool(self.filled) and all(map(pattern.fullmatch, self.filled))

    @cached_property
    def is_numeric(self) -> bool:
        """Tell whether all cells are numbers or empty. "01" is a code, not a number."""
        return (
            self.are_all(NUMBER)
            and not any(map(_CODE.fullmatch, self.filled))
            and all(math.isfinite(float(cell)) for cell in self.filled if cell.lower() != "nan")
        )

    @cached_property
    def has_decimal_commas(self) -> bool:
        """Tell whether cells are numbers as half of the world writes them: 3,5."""
        return any(map(_DECIMAL_COMMA.fullmatch, self.filled)) and all(
            _DECIMAL_COMMA.fullmatch(cell) or NUMBER.fullmatch(cell) for cell in self.filled
        )

    @cached_property
    def is_yes_and_no(self) -> bool:
        """Tell whether cells are words for yes and no, as programs write what is true."""
        return bool(self.distinct) and all(
            cell.lower() in YES | NO and not NUMBER.fullmatch(cell) for cell in self.distinct
        )

    @property
    def may_be_label(self) -> bool:
        """Tell whether it can be a label: it has a name, and not a different word in every row like an id."""
        if is_index_name(self.name) or self.plain in (*IDS, *CAPTIONS, *ABOUT_FILES, *PATHS):
            return False
        if is_label_name(self.name):
            return True
        # When a picture was taken is no class of it, a number for each row neither, and an empty column nothing at all.
        is_id = self.plain.endswith("_id") and len(self.distinct) == len(self.cells)
        if is_id or not self.filled or self.are_all(_DATE):
            return False
        few = len(self.cells) < 3 or len(self.distinct) < len(self.cells)
        return few or self.is_numeric or self.has_decimal_commas

    def numbers(self) -> NDArray[np.float64]:
        """Return the cells as numbers, NaN for empty ones."""
        known = {cell: float(cell or "nan") for cell in self.distinct}
        return np.fromiter(map(known.__getitem__, self.cells), np.float64, len(self.cells))


class ColumnRoles(NamedTuple):
    """Names of columns by purpose."""

    labels: tuple[str, ...]
    split: str | None
    group: str | None
    is_one_class: bool = False
    """Whether a label cell is one class even if it contains spaces, because another column numbers it."""


def split_of_cell(column: str, cell: str) -> str:
    """Return the split that a cell of a split column names, as it is stored."""
    flags, word = FLAGS.get(plain_name(column)), cell.lower()
    if flags is not None and word in YES | NO:
        return flags[word in NO]
    if flags is not None or word not in SPLITS:
        expected = "True or False" if flags is not None else listed(list(SPLITS))
        msg = (
            f"The column '{column}' says which split a row belongs to, but one row says '{show(cell)}'; expected "
            f"{expected}."
        )
        raise LayoutError(msg)
    return SPLITS[word]


def find_roles(
    columns: Mapping[str, Column], *, labels: Sequence[str] | None, inputs: Collection[str] = ()
) -> ColumnRoles:
    """Find the roles of a table's columns, except the path.

    Args:
        columns: by name.
        inputs: columns that are known of unlabelled samples too, so that they are no labels.
        labels: the columns that hold the labels, if the user named them.
    """
    missing = [name for name in labels or () if name not in columns]
    if missing:
        msg = f"There is no column {listed(missing)}; there are {listed(sorted(columns)) or 'no others'}."
        raise LayoutError(msg)
    # If the user names label columns, one of them may look like a split.
    free = [column for name, column in columns.items() if name not in (labels or ())]
    split = next((column for column in free if not is_label_name(column.name) and _is_split(column)), None)
    split = split or _flag_of_split(free)
    rest = [column for column in free if column is not split]
    group = next((column.name for column in rest if PERSONS.fullmatch(column.plain)), None)
    scene = next((column.name for column in rest if SCENES.fullmatch(column.plain)), None) if group is None else None
    split_at = None if split is None else split.name
    if labels:
        return ColumnRoles(tuple(labels), split_at, group or scene)
    odd = next((one.name for one in rest if one.plain in SPLIT_COLUMNS and one.is_numeric), None)
    if odd is not None:
        msg = (
            f"The column '{odd}' says in numbers which split a row belongs to. Write words instead, one of "
            f"{listed(list(SPLITS))}; or, if it says something else, call it otherwise."
        )
        raise LayoutError(msg)
    apart = {group, *_sizes_of_images(columns), *(name for name in inputs if not is_label_name(name))}
    candidates = {column.name: column for column in rest if column.name not in apart and column.may_be_label}
    named = _named_labels(candidates)
    if named is not None:
        # If another column numbers the cells, each cell is one class: ATLAS MOTH is 7.
        numbered = any(is_label_name(name) and name != named and one.is_numeric for name, one in candidates.items())
        return ColumnRoles((named,), split_at, group or scene, numbered)
    return ColumnRoles(_find_labels(candidates, rest), split_at, group)


def _is_split(column: Column) -> bool:
    """Tell whether a column contains only names of splits."""
    found = {cell.lower() for cell in column.distinct}
    others = found - SPLITS.keys()
    if others and found & SPLITS.keys() and column.plain in SPLIT_COLUMNS:
        msg = (
            f"The column '{column.name}' names splits and other values: {listed(sorted(map(show, others)))}. Expected "
            f"{listed(list(SPLITS))} in every row."
        )
        raise LayoutError(msg)
    return bool(column.cells) and not others


def _flag_of_split(columns: Sequence[Column]) -> Column | None:
    """Return the column that says for each row whether it belongs to one split; `None` if there is none."""
    found = [
        column
        for column in columns
        if column.plain in FLAGS and {cell.lower() for cell in column.distinct} <= YES | NO and len(column.distinct) > 1
    ]
    if len(found) > 1:
        names = listed([column.name for column in found])
        msg = f"The columns {names} each name a split. Write one column 'split' with train, valid or test."
        raise LayoutError(msg)
    for column in found:
        yes, no = FLAGS[column.plain]
        count = sum(split_of_cell(column.name, cell) != "train" for cell in column.cells)
        if 2 * count > len(column):
            msg = (
                f"The column '{column.name}' would put {count:,} of {len(column):,} rows into the split "
                f"'{no if yes == 'train' else yes}'. If that is meant, write a column 'split' with the words instead; "
                f"if '{column.name}' says something else, give it another name."
            )
            raise LayoutError(msg)
    return found[0] if found else None


def _sizes_of_images(columns: Iterable[str]) -> set[str]:
    """Return the columns for width and height of the images: both, because one alone may be that of a person."""
    plain = {plain_name(name): name for name in columns}
    pairs = ((name, name.replace("width", "height")) for name in plain if "width" in name)
    return {plain[name] for pair in pairs if pair[1] in plain for name in pair}


def _named_labels(columns: Mapping[str, Column]) -> str | None:
    """Return the column whose name means a label; of several with the same content, the one in words."""
    named = label_names(columns)
    if not named:
        return None
    first = columns[named[0]]
    if any(not same_partition(first.cells, columns[other].cells) for other in named[1:]):
        raise _which(named)
    return next((name for name in named if not columns[name].is_numeric), named[0])


def same_partition(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Tell whether two labellings of the same samples are the same up to names."""
    pairs = set(zip(one, other, strict=True))
    return len(pairs) == len(set(one)) == len(set(other))


def _find_labels(candidates: Mapping[str, Column], others: Sequence[Column]) -> tuple[str, ...]:
    """Return the labels among columns that are not called so.

    Args:
        candidates: those that can be labels.
        others: all columns beside the paths.
    """
    numbers = [name for name, column in candidates.items() if column.is_numeric or column.has_decimal_commas]
    numeric = set(numbers)
    flags = {name for name, column in candidates.items() if name not in numeric and column.is_yes_and_no}
    words = [name for name in candidates if name not in numeric and name not in flags]
    # What is one word for all rows tells none from another.
    words = [name for name in words if len(candidates[name].distinct) > 1] or words
    # Words beside numbers: numbers are usually measurements, and one word in each row is its class.
    if len(words) == 1:
        return (words[0],)
    texts = [column.name for column in others if column.plain in CAPTIONS]
    if not words and texts:
        also = f", or {_say_labels(sorted(candidates)[:1])} for that column" if candidates else ""
        msg = (
            f"Its column '{texts[0]}' holds texts, which are no labels and are not read. Give layout=\"images\" for "
            f"the images alone{also}; for images with their texts pass pack_dataset an object whose items are (image, "
            "numbers), the numbers being the tokens of the text, as many of each."
        )
        raise LayoutError(msg)
    # Yes and no beside a measurement are one of two things to learn, and beside each other several of one kind.
    of_one_kind = not flags or all(candidates[name].distinct <= YES | NO for name in numbers)
    if candidates and not words and (of_one_kind or len(candidates) == 1):
        return tuple(candidates)
    if candidates:
        raise _which(sorted(candidates))
    known = [column for column in others if not is_index_name(column.name)]
    files = next((one.name for one in known if all(cell.lower().endswith(IMAGES) for cell in one.distinct)), "")
    if files:
        msg = (
            f"Its column '{files}' names images as well. If they are masks, layout=\"pairs\" reads both by their names."
        )
        raise LayoutError(msg)
    if not known:
        what = "The columns beside the paths have no names in the first row" if others else "It has paths alone"
        msg = f"{what}. Write the label of each file behind its path, and a first row that says so: path,label."
        raise LayoutError(msg)
    msg = (
        f"None of the columns beside the paths is a label by its name or by what it holds: "
        f"{listed([one.name for one in known])}. If one is, say so: {_say_labels([known[0].name])}, from "
        "colabstage.options."
    )
    raise LayoutError(msg)


def _say_labels(names: Sequence[str]) -> str:
    """Write the argument that says which columns are labels."""
    return f"layout=table_rows(labels=[{', '.join(map(repr, names))}])"


def _which(columns: list[str]) -> LayoutError:
    return LayoutError(
        f"Which of the columns {listed(columns)} is the label? Say so: {_say_labels(columns[:1])}, from "
        "colabstage.options."
    )


# --- cells of tables as targets ---------------------------------------------------------------------------------------


def make_targets(
    columns: Sequence[Column], *, separator: str | None = None, sample: Callable[[int], str] | None = None
) -> tuple[Values, tuple[str, ...]]:
    """Return the targets of label columns, and the names of their classes.

    One column of words: int64 `(N,)`, index into the sorted words; with "|" or ";" in them, or lists of words as JSON
    and Python write them, uint8 `(N, K)`, one column for each word. One of numbers: int64 or float32 `(N,)`; integers
    that count from 0 are class names. Several of numbers: `(N, K)` in their order, uint8 where all are 0 or 1, or yes
    and no in words, NaN for an empty cell.

    Args:
        columns: one or more.
        separator: the text between several labels in one cell; "" if each cell is one label; `None` to find out.
        sample: returns what a row's sample is called, because people find a row by its file, not by a number.
    """
    if separator is None:
        for column in columns:
            _check_commas(column)
    if len(columns) == 1:
        return _LabelColumn(columns[0], sample).targets(separator)
    words = [column.name for column in columns if not (column.is_numeric or column.is_yes_and_no)]
    if words:
        msg = f"Several label columns must all be numbers; {listed(words)} have words. Choose one of them."
        raise LayoutError(msg)
    table = np.empty((len(columns[0]), len(columns)), np.float64)
    for number, column in enumerate(columns):
        if column.is_yes_and_no:
            table[:, number] = np.fromiter((cell.lower() in YES for cell in column.cells), np.bool_, len(column))
        else:
            table[:, number] = column.numbers()
    # Several columns of 0 and 1 are labels that may apply together, one column for each.
    if all(column.is_yes_and_no or column.distinct <= {"0", "1", "0.0", "1.0"} for column in columns) or (
        np.isin(table, (0, 1)).all()
    ):
        return Values(table.astype(np.uint8)), tuple(column.name for column in columns)
    for column in columns:
        # The distinct cells tell, of which there are few.
        few = Column(column.name, sorted(column.filled))
        check_kept_apart(column.name, _exact(few) if column.are_all(WHOLE) else few.numbers())
    return Values(table.astype(np.float32)), ()


class _LabelColumn:
    """The only label column of a table."""

    def __init__(self, column: Column, sample: Callable[[int], str] | None) -> None:
        self.column = column
        self.name = column.name
        self.sample = sample

    def targets(self, separator: str | None) -> tuple[Values, tuple[str, ...]]:
        column = self.column
        if separator == "":
            return self._as_classes()
        if column.are_all(_LIST_OF_WORDS) and "" not in column.distinct:
            return self._as_sets(lambda cell: {word[1:-1].strip() for word in re.findall(_QUOTED, cell)})
        if separator is None and column.is_numeric:
            return self._as_numbers()
        mark = separator or separator_of(column)
        if mark:
            return self._as_sets(lambda cell: {word.strip() for word in cell.split(mark)})
        self._check_numbers()
        self._check_lists()
        self._check_several()
        return self._as_classes()

    def _which(self, place: int) -> str:
        return f"that of '{self.sample(place)}'" if self.sample else f"number {place + 1}"

    def _check_filled(self, allowed: str | None = None) -> None:
        """Refuse a label column in which some cells are marked as empty, or are empty unless that is `allowed`."""
        missing = {cell for cell in self.column.distinct if cell.lower() in MISSING} - {allowed}
        if missing:
            cells = self.column.cells
            count = sum(cell in missing for cell in cells)
            first = next(place for place, cell in enumerate(cells) if cell in missing)
            written = f": {cells[first]!r}" if cells[first] else ""
            msg = (
                f"{count:,} of {format_count(len(cells), 'rows')} {'has' if count == 1 else 'have'} no label in "
                f"'{self.name}' (the first is {self._which(first)}{written}). Fill them in, or take the rows out."
            )
            raise LayoutError(msg)

    def _as_numbers(self) -> tuple[Values, tuple[str, ...]]:
        self._check_filled()
        if self.column.are_all(WHOLE):
            whole = _exact(self.column)
        else:
            values = self.column.numbers()
            # From 2 ** 53 on floats skip integers, so numbers written as floats may already be wrong.
            if np.any(values != np.rint(values)) or np.abs(values).max() >= 2**53:
                check_kept_apart(self.name, values)
                return Values(values.astype(np.float32)), ()
            whole = values.astype(np.int64)
        return Values(whole), class_numbers(whole)

    def _as_classes(self) -> tuple[Values, tuple[str, ...]]:
        self._check_filled()
        values, classes = class_indices(self.column.cells)
        # Some programs take 01 and 1 as two classes, others as one.
        seen: dict[str, str] = {}
        for word in classes:
            number = word.lstrip("0") if word.isascii() and word.isdecimal() else None
            if number is not None and seen.setdefault(number, word) != word:
                msg = (
                    f"'{self.name}' has the labels '{seen[number]}' and '{word}', which are the same number. Write it "
                    "in one way."
                )
                raise LayoutError(msg)
        return values, classes

    def _as_sets(self, words_of_cell: Callable[[str], set[str]]) -> tuple[Values, tuple[str, ...]]:
        """Return sets of labels, one for each cell, as columns of 0 and 1."""
        # An empty cell is a sample without a label; a program's mark for a missing value is not a word.
        self._check_filled(allowed="")
        sets = {cell: words_of_cell(cell) - {""} for cell in self.column.distinct}
        classes = sorted(set().union(*sets.values()))
        rows = {cell: np.array([word in found for word in classes], np.uint8) for cell, found in sets.items()}
        table = np.stack([rows[cell] for cell in self.column.cells]) if rows else np.zeros((0, 0), np.uint8)
        return Values(table.reshape(len(self.column), len(classes))), tuple(classes)

    def _check_numbers(self) -> None:
        """Refuse numbers mixed with words, which would make a class of each different number."""
        odd = {cell for cell in self.column.distinct if not NUMBER.fullmatch(cell) or _CODE.fullmatch(cell)}
        places = [place for place, cell in enumerate(self.column.cells) if cell in odd]
        if 0 < len(places) <= len(self.column) / 4:
            msg = (
                f"Most cells of '{self.name}' are numbers, and {len(places):,} of {len(self.column):,} are not: "
                f"'{show(self.column.cells[places[0]])}' (the first is {self._which(places[0])}). Correct them, or "
                "take the rows out; if all are words, layout=table_rows(separator='')."
            )
            raise LayoutError(msg)

    def _check_lists(self) -> None:
        """Refuse lists of numbers, and other lists written as text, because each different one would be a class."""
        for cell in sorted(self.column.distinct):
            parts = cell.strip("[](){}").replace(",", " ").split()
            if _WRITTEN_LIST.fullmatch(cell) or (len(parts) > 1 and all(map(NUMBER.fullmatch, parts))):
                msg = (
                    f"'{self.name}' has cells such as '{show(cell)}', a list written as text. Write a column for each "
                    f"number ({self.name}_0, {self.name}_1, and so on); or, if it lists several labels, put | between "
                    f"them: {show('|'.join(parts[:3]) or 'a|b')}. layout=table_rows(separator='') takes each different "
                    "cell for one class."
                )
                raise LayoutError(msg)

    def _check_several(self) -> None:
        """Refuse words with spaces or commas that may be one label or several."""
        known = self.column.distinct
        by_comma = {cell: [part.strip() for part in cell.split(",")] for cell in known if "," in cell}
        parts = [part for found in by_comma.values() for part in found]
        # The parts of a single name with a comma do not occur elsewhere.
        several = {*by_comma} if len(set(parts)) < len(parts) or not known.isdisjoint(parts) else set()
        separator = "," if by_comma else " "
        if not several:
            several = {cell for cell in known if len(cell.split()) > 1}
            words = {word for cell in several for word in cell.split()}
            if not (several and (self.column.plain in SETS_OF_LABELS or words <= known)):
                return
        msg = (
            f"'{self.name}' has labels such as '{show(min(several))}'. Is that one class, or several labels? Say so: "
            f"{_of_separators(separator)}."
        )
        raise LayoutError(msg)


def _exact(column: Column) -> NDArray[np.int64]:
    """Return the whole numbers of a column whose cells contain only digits."""
    long = next((cell for cell in column.distinct if len(cell) > MOST_DIGITS), None)
    known = {cell: int(cell) for cell in column.distinct} if long is None else {}
    large = long or next((cell for cell, number in known.items() if not -(2**63) <= number < 2**63), None)
    if large is not None:
        msg = (
            f"'{column.name}' has the label {show(large)}, which does not fit into 64 bits. Write such labels as words."
        )
        raise LayoutError(msg)
    return np.fromiter(map(known.__getitem__, column.cells), np.int64, len(column))


def check_kept_apart(name: str, numbers: NDArray[Any]) -> None:
    """Refuse integers of which two would become equal in float32, in which numbers other than classes are stored.

    Args:
        name: of the column, for the message.
        numbers: int64 or float64 `(N,)`.
    """
    # Fractions are measurements, for which the eighth digit does not matter.
    whole = np.unique(numbers[np.isfinite(numbers) & (numbers == np.rint(numbers))])
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 they would be infinite, which is not a label
        merged = np.flatnonzero(np.diff(whole.astype(np.float32)) == 0)
    if len(merged):
        one, other = int(whole[merged[0]]), int(whole[merged[0] + 1])
        msg = (
            f"'{name}' has the numbers {show(one)} and {show(other)}, which would become the same number in float32. "
            "Take it as the only label, with digits alone in its cells, or write smaller numbers."
        )
        raise LayoutError(msg)


def class_numbers(whole: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the numbers as class names, if integers count classes from 0; otherwise nothing."""
    found = np.unique(whole)
    if not len(found) or found[0] != 0 or found[-1] != len(found) - 1 or 2 * len(found) > len(whole):
        return ()
    return tuple(str(number) for number in found.tolist())


def note_on_numbers(name: str, values: NDArray[Any], classes: Sequence[str]) -> list[str]:
    """Return a note if labels are integers that a loss cannot use as classes."""
    if classes or values.ndim != 1 or values.dtype != np.int64:
        return []
    found = np.unique(values)
    # Numbers that mostly differ are measurements, and those that count from 0 without a gap have names.
    if not len(found) or 2 * len(found) > len(values):
        return []
    note = (
        f"The labels in '{name}' stay the numbers {int(found[0]):,} to {int(found[-1]):,}; classes would be 0 to "
        f"{len(found) - 1:,}. For classes write words, or convert the numbers in the loop."
    )
    return [note]


def notes_on_targets(columns: Sequence[Column], targets: Values, classes: Sequence[str]) -> list[str]:
    """Return notes on targets that a loss, or the author of the table, may not expect."""
    values, first = targets.values, columns[0]
    if values.ndim == 1:
        if 2 * len(classes) > len(targets) > 2:
            return [f"'{first.name}' has {len(classes):,} classes for {len(targets):,} samples: is it a label?"]
        is_class = not {"id", *LABEL_WORDS}.isdisjoint(words_of(first.name))
        return note_on_numbers(first.name, values, classes) if is_class or is_label_name(first.name) else []
    if len(columns) == 1:
        mark = separator_of(first)
        between = f"with '{mark}' between them" if mark else "written as a list"
        note = (
            f"A cell of '{first.name}' may hold several labels, {between}: each of the {values.shape[1]:,} classes is "
            "a column of 0 and 1. For one class in each cell: layout=table_rows(separator='')."
        )
        return [note]
    if values.dtype == np.uint8:
        return []
    notes = []
    empty = int(np.isnan(values).sum())
    if empty:
        notes.append(
            f"{format_count(empty, 'cells')} of the label columns {'is' if empty == 1 else 'are'} empty, and NaN in y; "
            "a loss over them is NaN. Fill them in, or leave them out in the loop: y.isnan()."
        )
    if np.any(values == -1) and bool((np.isin(values, (-1, 0, 1)) | np.isnan(values)).all()):
        notes.append(
            "The label columns hold -1, which a loss for yes and no does not take. Convert it in the loop: "
            "(y > 0).float() takes it for no."
        )
    return notes


def _check_commas(column: Column) -> None:
    """Refuse numbers with a comma, which would be taken as words and become classes."""
    if column.has_decimal_commas:
        first = next(cell for cell in column.cells if _DECIMAL_COMMA.fullmatch(cell))
        thousands = ", or without it, if it is between thousands" if re.search(r",\d{3}$", first) else ""
        msg = (
            f"'{column.name}' has numbers with a comma ('{show(first)}'). Write them with a point "
            f"('{show(first.replace(',', '.'))}'){thousands}; in pandas, read_csv(PATH, sep=';', decimal=',')"
            f".to_csv(PATH, index=False). If they are no such numbers: {_of_separators(',')}."
        )
        raise LayoutError(msg)


def _of_separators(mark: str) -> str:
    return f"layout=table_rows(separator='') for one class, table_rows(separator='{mark}') for several labels"


def separator_of(column: Column) -> str:
    """Return the separator between the labels of a cell, if it never occurs in a word; otherwise ""."""
    return next((mark for mark in _SEPARATORS if any(mark in cell for cell in column.distinct)), "")
