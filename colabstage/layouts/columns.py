"""Columns of tables and fields of records: what each is, by its distinct cells; and labels as targets.

Cells stay text until the whole column has been seen, because "01" beside "1" is a code, not a number. Anything that a
person would call a mistake is an error with the line to write: numbers with a comma, lists written as text, words that
may be one label or several.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np

from colabstage.errors import LayoutError, said_by
from colabstage.io.arguments import show_content
from colabstage.io.units import counted, listed
from colabstage.layouts import words
from colabstage.layouts.table import Values, class_indices

if TYPE_CHECKING:
    from numpy import typing as npt
    from numpy.typing import NDArray

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan", re.IGNORECASE | re.ASCII)
WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_CODE = re.compile(r"0\d+", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ]\d.*)?|\d{1,2}:\d{2}(:\d{2})?", re.ASCII
)
# Cells into which Python, pandas or JSON wrote a list; and a list of words.
_WRITTEN_LIST = re.compile(r"\[.*\]|\(.*\)|\{.*\}", re.DOTALL)
_QUOTED = r"""(?:'[^']*'|"[^"]*")"""
_LIST_OF_WORDS = re.compile(rf"\[\s*(?:{_QUOTED}\s*(?:,\s*{_QUOTED}\s*)*)?\]")
# What programs write into an empty cell. "None" and "NA" may be words: a wall without damage, Namibia.
MISSING = frozenset({"", "nan", "<na>", "#n/a", "n/a", "nat", "null"})
# What a spreadsheet writes where its formula failed.
_FAILED = frozenset({"#ref!", "#value!", "#div/0!", "#name?", "#null!", "#num!"})
_PERHAPS_MISSING = frozenset({"na", "n.a.", "none", "nil", "-", "--", "?", ".", "-99", "-999", "-9999"})
# 64-bit integers have fewer digits, and Python refuses to parse thousands of them.
MOST_DIGITS = 40
# Fewer words may be the name of a class.
_BLANKS_OF_TEXT = 3
# A cell may be a page of text.
_CELL_SHOWN, _REASON_SHOWN = 60, 240
_NO_LABELS = (*words.IDS, *words.CAPTIONS, *words.ABOUT_FILES, *words.PATHS)
Kind = Literal["empty", "number", "comma", "flag", "date", "word"]
Targets = tuple[Values, tuple[str, ...]]


def show(value: object) -> str:
    """Return the beginning of a cell, of a value in its place, or of what an error says, for messages."""
    if isinstance(value, Exception):
        # Its end says what was expected.
        text, most = " ".join(said_by(value).split()), _REASON_SHOWN
    else:
        text, most = str(value) if isinstance(value, str) else show_content(value, _CELL_SHOWN), _CELL_SHOWN
    return text if len(text) <= most else f"{text[:most]}…"


class NumberedCells(Sequence[str]):
    """Cells as numbers of the distinct ones, which may be few: a table has millions of cells, whose texts would
    dominate time and memory."""

    def __init__(self, known: list[str], numbers: NDArray[np.integer[Any]]) -> None:
        self.known = known
        """The different cells; each occurs."""
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        found = self.numbers[index].tolist()
        return [self.known[number] for number in found] if isinstance(index, slice) else self.known[found]

    def __iter__(self) -> Iterator[str]:
        return map(self.known.__getitem__, self.numbers.tolist())


class Column:
    """N cells of text, and what the distinct ones say about them."""

    def __init__(self, name: str, cells: Sequence[str]) -> None:
        self.name = name
        self.plain = words.plain_name(name)
        self.cells = cells

    def __len__(self) -> int:
        return len(self.cells)

    @cached_property
    def distinct(self) -> frozenset[str]:
        return frozenset(self.cells.known if isinstance(self.cells, NumberedCells) else self.cells)

    def as_values(self, value_of: Mapping[str, Any], dtype: npt.DTypeLike) -> NDArray[Any]:
        """Return the value of each cell, `(N,)`, given those of the distinct ones."""
        if not isinstance(self.cells, NumberedCells):
            return np.array([value_of[cell] for cell in self.cells], dtype)
        values = np.array([value_of[cell] for cell in self.cells.known], dtype)
        return values.take(self.cells.numbers)

    @cached_property
    def filled(self) -> frozenset[str]:
        """Return the different cells that are not empty."""
        return self.distinct - {""}

    def are_all(self, pattern: re.Pattern[str]) -> bool:
        """Tell whether every cell that is not empty fits a pattern, and there are some."""
        return bool(self.filled) and all(map(pattern.fullmatch, self.filled))

    @cached_property
    def kind(self) -> Kind:
        """Return what the cells are. "01" is a code, and so a word; 3,5 is how half of the world writes a number."""
        if not self.filled:
            return "empty"
        if all(cell.lower() in words.YES | words.NO and not NUMBER.fullmatch(cell) for cell in self.distinct):
            return "flag"
        odd = [cell for cell in self.filled if not NUMBER.fullmatch(cell) or _CODE.fullmatch(cell)]
        if not odd and all(cell.lower() == "nan" or math.isfinite(float(cell)) for cell in self.filled):
            return "number"
        if odd and all(map(_DECIMAL_COMMA.fullmatch, odd)):
            return "comma"
        return "date" if self.are_all(_DATE) else "word"

    @property
    def is_numeric(self) -> bool:
        return self.kind == "number"

    @property
    def is_yes_or_no(self) -> bool:
        return {cell.lower() for cell in self.distinct} <= words.YES | words.NO

    @cached_property
    def are_files(self) -> bool:
        """Tell whether all cells are names of images or clips, or empty."""
        return bool(self.filled) and all(map(words.is_sample, self.filled))

    @cached_property
    def are_texts(self) -> bool:
        """Tell whether it is called as captions are, or its cells are mostly sentences, each its own."""
        sentences = sum(cell.count(" ") >= _BLANKS_OF_TEXT for cell in self.distinct)
        return self.plain in words.CAPTIONS or (2 * sentences > len(self.distinct) and 2 * sentences > len(self))

    @property
    def may_be_label(self) -> bool:
        """Tell whether it can be a label: it has a name, and not a different word in every row like an id."""
        if words.is_index_name(self.name) or self.plain in _NO_LABELS or self.are_files:
            return False
        # The time of a picture is not its class, nor is a number for each row; and an empty column says nothing.
        differ = len(self.distinct) == len(self.cells)
        if words.is_label_name(self.name) or self.kind in ("empty", "date") or (differ and self.plain.endswith("_id")):
            return words.is_label_name(self.name)
        return not differ or len(self.cells) < 3 or self.kind in ("number", "comma")

    @cached_property
    def number_of(self) -> dict[str, float]:
        """Return each distinct cell as a number, NaN for an empty cell and others; words for yes are 1, for no 0."""
        is_flag = self.kind == "flag"
        return {cell: float(cell.lower() in words.YES if is_flag else _number(cell)) for cell in self.distinct}

    def numbers(self) -> NDArray[np.float64]:
        return self.as_values(self.number_of, np.float64)


def _number(cell: str) -> float:
    return float(cell) if NUMBER.fullmatch(cell) else math.nan


# --- which column is what ---------------------------------------------------------------------------------------------


class ColumnRoles(NamedTuple):
    """The names of columns by purpose."""

    labels: tuple[str, ...]
    split: str | None
    group: str | None
    number: str | None = None
    """The column that numbers the classes; each cell of the label is one class then, even if it contains spaces."""


def find_roles(
    columns: Mapping[str, Column], *, labels: Sequence[str] | None, inputs: Collection[str] = ()
) -> ColumnRoles:
    """Find the roles of a table's columns, except the path. `labels`: those that the user named; `inputs`: columns that
    are known for unlabelled samples too, and so are not labels."""
    missing = [name for name in labels or () if name not in columns]
    if missing:
        msg = f"There is no column {listed(missing)}; there are {listed(sorted(columns)) or 'no others'}."
        raise LayoutError(msg)
    # If the user names label columns, one of them may look like a split.
    free = [column for name, column in columns.items() if name not in (labels or ())]
    split = _split_column(free, labelled=bool(labels))
    rest = [column for column in free if column is not split]
    group, scene = find_groups(rest)
    roles = ColumnRoles(tuple(labels or ()), None if split is None else split.name, group or scene)
    if not labels:
        apart = {group, *sides_of_images(columns), *itertools.filterfalse(words.is_label_name, inputs)}
        candidates = {one.name: one for one in rest if one.name not in apart and one.may_be_label}
        named = words.label_names(candidates)
        if any(not same_partition(candidates[named[0]].cells, candidates[other].cells) for other in named[1:]):
            raise _which(named, rest)
        # The one in words, where several have the same content.
        found = tuple(sorted(named, key=lambda name: candidates[name].is_numeric)[:1])
        roles = roles._replace(labels=found or _find_labels(candidates, rest), group=roles.group if found else group)
    return roles._replace(number=_numbering(columns, roles.labels[0]) if len(roles.labels) == 1 else None)


def find_groups(columns: Sequence[Column]) -> tuple[str | None, str | None]:
    """Return the column of persons, and that of places or otherwise scenes, which may be the label instead."""
    varied = [one for one in columns if len(one.distinct) > 1]
    coded = (one for one in varied if all(any(map(str.isdecimal, cell)) for cell in one.distinct))
    # A place that has half of the samples, such as one of two hospitals, cannot be in one split.
    small = (one for one in coded if 2 * max(Counter(one.cells).values()) < len(one))
    persons, places, scenes = (
        next((one.name for one in own if pattern.fullmatch(one.plain)), None)
        for pattern, own in zip(words.GROUPS, (varied, small, varied), strict=True)
    )
    return persons, places or scenes


def group_of_fields(fields: Mapping[str, Iterable[Any]]) -> str:
    """Return the field that says which records belong together, as of one camera trap; "" for none that all have."""
    stated = [
        Column(name, [str(one) if isinstance(one, str | int | np.integer) else "" for one in fields[name]])
        for name in filter(words.is_group_name, fields)
    ]
    return next(filter(None, find_groups([one for one in stated if "" not in one.distinct])), "")


def kept_together(groups: Sequence[str], targets: object) -> Sequence[str]:
    """Return groups whose samples stay in one split: none if they are the classes, which each split needs."""
    values = targets.values if isinstance(targets, Values) else np.empty((0, 0))
    return () if groups and values.ndim == 1 and same_partition(values.tolist(), groups) else groups


def note_on_groups(name: str, groups: Sequence[str], splits: Iterable[str], *, what: str = "Samples") -> list[str]:
    """Say that samples of one group stay in one split, or which group the source's own splits divide."""
    split_of: dict[str, str] = {}
    # Without splits of its own, the source divides none.
    divided = (one for one, split in zip(groups, splits, strict=False) if split_of.setdefault(one, split) != split)
    odd = next(divided, None)
    how = "stay in one split" if odd is None else f"are in several splits of the source (first '{show(odd)}')"
    return [f"{what} with the same '{name}' {how}."] if groups else []


def sides_of_images(columns: Iterable[str]) -> list[str]:
    """Return the columns of height and width of the images, the shortest names first: both, because one alone may be a
    person's."""
    plain = {words.plain_name(name): name for name in columns}
    sides = [(one.replace("width", "height"), one) for one in sorted(plain, key=len) if "width" in one]
    return [plain[one] for pair in sides if pair[0] in plain for one in pair]


def _numbering(columns: Mapping[str, Column], label: str) -> str | None:
    """Return the column that has a number for each class of a label, and is called after it or as labels are."""
    called = set(words.words_of(label))
    for name, column in () if columns[label].is_numeric else columns.items():
        is_called = words.is_label_name(name) or not called.isdisjoint(words.words_of(name))
        if is_called and column.is_numeric and same_partition(columns[label].cells, column.cells):
            return name
    return None


def in_order_of(number: Column, label: Column, classes: Sequence[str]) -> tuple[Sequence[str], str]:
    """Return the classes in the order of the numbers beside them in another column, if these count from 0 or 1, and
    what is to be said of that."""
    pairs = {*zip(label.cells, number.cells, strict=True)}
    number_of = {name: _number(cell) for name, cell in pairs}
    if len(number_of) < len(pairs):
        msg = f"'{number.name}' and '{label.name}' divide the rows differently. Correct one, or take it out."
        raise LayoutError(msg)
    stated = [number_of.get(name, math.nan) for name in classes]
    for first, how in (0, ""), (1, ", which counts from 1, and y from 0"):
        if {*stated} == {*range(first, first + len(classes))}:
            return sorted(classes, key=number_of.__getitem__), f"Classes are in the order of '{number.name}'{how}."
    odd = next(place for place, one in enumerate(stated) if one != place)
    which = f"'{show(classes[odd])}' is {stated[odd]:g} there, and {odd} here"
    return classes, f"'{number.name}' numbers classes otherwise: {which}."


def split_of_cell(column: str, cell: str) -> str:
    """Return the split that a cell of a split column names, as it is stored."""
    flags, word = words.flagged_splits(column), cell.lower()
    if flags is not None and word in words.YES | words.NO:
        return flags[word in words.NO]
    if flags is None and cell.isdecimal() and int(cell) < len(words.NUMBERED_SPLITS):
        return words.NUMBERED_SPLITS[int(cell)]
    read = words.split_name(cell)
    if not read.split or read.rest:
        raise _odd_split(column, f"says which split a row belongs to, and one row says '{show(cell)}'")
    return read.split


def splits_of_column(column: Column) -> list[str]:
    """Return the split of each row, from a column named like one of splits; empty if it has other words."""
    if _split_column([column]) is None:
        return []
    known = {cell: split_of_cell(column.name, cell) for cell in column.distinct}
    return [known[cell] for cell in column.cells]


def _split_column(columns: Sequence[Column], *, labelled: bool = False) -> Column | None:
    """Return the column that contains only names of splits, or yes and no for one split. `labelled`: whether another
    column has the labels."""
    found = next(filter(_names_splits, columns), None)
    return _flag_column(columns, labelled=labelled) if found is None else found


def _names_splits(column: Column) -> bool:
    """Tell whether a column has the name of a split in each row. Refuse one that is called so and names others too."""
    is_called = column.plain in words.SPLIT_COLUMNS
    numbered = [*map(list(column.cells).count, "012")] if is_called and column.distinct == {*"012"} else []
    # Most samples are to train on; two numbers may be either way round.
    if numbered and numbered[0] == max(numbered):
        return True
    # Each row has its own name, such as train_129225, which is no split.
    are_few = 2 * len(column.distinct) <= len(column)
    others = {cell for cell in column.distinct if cell.lower() not in words.SPLITS}
    others -= {cell for cell in others if are_few and "/" not in cell and words.split_name(cell).split}
    if column.distinct and not others and not words.is_label_name(column.name):
        return True
    # A subset or a set may be one of anything, unless it names a split too; and a split is one of the samples.
    may_be = others < column.distinct and column.plain in words.PERHAPS_SPLITS
    if may_be or (is_called and (column.is_numeric or ("split" in column.plain and len(column.filled) > 1))):
        what = "names splits and other values" if others < column.distinct else "has words that name no split"
        raise _odd_split(column.name, f"{what}: {listed(sorted(map(show, others)))}")
    return False


def _flag_column(columns: Sequence[Column], *, labelled: bool) -> Column | None:
    """Return the column of yes and no for one split. Refuse several, and one that would hold most rows out."""
    decided = [one for one in columns if len(one.distinct) > 1 and one.is_yes_or_no]
    named = [one for one in decided if words.flagged_splits(one.name)]
    called = words.label_names([one.name for one in columns])
    # Beside "city" it may be the label that "train" is, and beside "bus" it is a class as well.
    is_sure = (labelled or called) and all(one in named or one.name in called for one in decided)
    held_out = {one.name: _held_out(one) for one in named}
    alike = Counter(words.flagged_splits(one.name) for one in named)
    flags = [
        one
        for one in named
        if one.plain in words.SPLIT_FIELDS
        # "valid" may mean usable, and test1 beside test2 what was tested.
        or (is_sure and 2 * held_out[one.name] <= len(one) and alike[words.flagged_splits(one.name)] == 1)
    ]
    if len(flags) > 1:
        raise _odd_split(flags[0].name, f"names a split, and so does '{flags[1].name}'")
    for column in flags:
        count = held_out[column.name]
        # A name of both splits means nothing else.
        if 2 * count > len(column) and not {"train", "test"} <= {*words.words_of(column.plain)}:
            split = next(one for one in words.flagged_splits(column.name) or () if one != "train")
            raise _odd_split(column.name, f"would put {count:,} of {len(column):,} rows into the split '{split}'")
    return flags[0] if flags else None


def _held_out(flag: Column) -> int:
    """Return how many rows are not to train on."""
    cells = {cell for cell in flag.distinct if split_of_cell(flag.name, cell) != "train"}
    return sum(cell in cells for cell in flag.cells)


def _odd_split(column: str, what: str) -> LayoutError:
    known = listed(list(words.SPLITS))
    return LayoutError(f"The column '{column}' {what}. Write one of {known} in every row, or give it another name.")


def same_partition(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Tell whether two labellings of the same samples are equal up to names."""
    return one is other or (divides_further(one, other) and divides_further(other, one))


def divides_further(finer: Sequence[Any], classes: Sequence[Any]) -> bool:
    """Tell whether the samples with each of the finer labels are of one class."""
    return len(set(zip(finer, classes, strict=True))) == len(set(finer))


def _find_labels(candidates: Mapping[str, Column], others: Sequence[Column]) -> tuple[str, ...]:
    """Return the labels among columns that are not named so; `others`: all columns besides the paths."""
    by_kind: dict[Kind, list[str]] = {}
    for name, column in candidates.items():
        by_kind.setdefault(column.kind, []).append(name)
    # A word that all rows share distinguishes nothing.
    named = by_kind.get("word", [])
    named = [name for name in named if len(candidates[name].distinct) > 1] or named
    # Beside words, a number may be the target instead, unless it numbers their classes or is the same in all rows.
    numbers = [candidates[name] for name in by_kind.get("number", ())]
    varied = [one for one in numbers if len(one.distinct) > 1]
    if len(named) == 1 and all(same_partition(candidates[named[0]].cells, one.cells) for one in varied):
        return (named[0],)
    # Yes and no beside a measurement is one of two possible targets; columns of yes and no are targets of one kind.
    measured = any(not one.distinct <= words.YES | words.NO for one in numbers)
    has_texts = any(column.plain in words.CAPTIONS for column in others)
    if not candidates or named or has_texts or (measured and "flag" in by_kind):
        raise _which(sorted(candidates, key=lambda name: (name not in named, name)), others)
    return tuple(candidates)


def _which(candidates: list[str], others: Sequence[Column]) -> LayoutError:
    about = (*words.ABOUT_FILES, *words.SPLIT_COLUMNS)
    named = [one.name for one in others if not words.is_index_name(one.name)]
    known = [one.name for one in others if one.name in named and one.plain not in about and not one.are_files]
    known = candidates or known
    if not known:
        what = f"It has no labels beside {listed(named) or 'the paths'}"
        return LayoutError(
            f"{what}. Write the label of each file behind its path, and a first row that says so: path,label."
        )
    # One without an empty cell, because a label is in each row.
    filled = {one.name for one in others if MISSING.isdisjoint(map(str.lower, one.distinct))}
    texts = {one.name for one in others if one.are_texts}
    may_be = [name for name in known if name not in texts]
    shown = next((name for name in may_be if name in filled), next(iter(may_be), ""))
    how = f" Say so: layout=table_rows(labels=[{shown!r}]), from colabstage.options." if shown else ""
    return LayoutError(f"Which of the columns {listed(known)} is the label?{how}")


# --- cells of tables as targets ---------------------------------------------------------------------------------------


def make_targets(
    columns: Sequence[Column], *, separator: str | None = None, sample: Callable[[int], str] = "row {}".format
) -> Targets:
    """Return the targets of label columns, and the names of their classes.

    One column of words: int64 `(N,)`, index into the sorted words; with "|" or ";" in them, or lists of words as JSON
    and Python write them, uint8 `(N, K)`, one column for each word. One of numbers: int64 or float32 `(N,)`; integers
    that count from 0 are class names. Several of numbers: `(N, K)` in their order, uint8 if all are 0 or 1, or yes and
    no in words, NaN for an empty cell.

    `separator`: the text between several labels in one cell; "" if each cell is one label; `None` to find out. `sample`
    returns the name of a row's sample, because people find a row by its file, not by a number.
    """
    first = columns[0]
    if len(columns) > 1:
        return _several_columns(columns)
    # If cells may have several labels, an empty one is a sample without any; a mark for a missing value is not a word.
    of_words = separator != "" and first.are_all(_LIST_OF_WORDS) and "" not in first.distinct
    mark = separator or (separator_of(first) if separator is None and not of_words else "")
    missing = {cell for cell in first.distinct if cell.lower() in MISSING | _FAILED} - ({""} if mark else set())
    if not (of_words or mark or separator == "" or first.is_numeric):
        _check_classes(first, missing, sample)
    if missing:
        places = [place for place, cell in enumerate(first.cells) if cell in missing]
        lacking = counted(len(places), "rows", "have", of=len(first))
        cell = f": {first.cells[places[0]]!r}" if first.cells[places[0]] else ""
        first_one = f"(the first is that of '{sample(places[0])}'{cell})"
        msg = f"{lacking} no label in '{first.name}' {first_one}. Fill them in, or take the rows out."
        raise LayoutError(msg)
    if of_words:
        return _as_sets(first, lambda cell: [word[1:-1] for word in re.findall(_QUOTED, cell)])
    if mark:
        return _as_sets(first, lambda cell: cell.split(mark))
    return _as_numbers(first) if separator is None and first.is_numeric else class_indices(first.cells)


def separator_of(column: Column) -> str:
    """Return the separator between the labels of a cell, if it never occurs in a word; otherwise ""."""
    return next((mark for mark in "|;" if any(mark in cell for cell in column.distinct)), "")


def _several_columns(columns: Sequence[Column]) -> Targets:
    odd = next((column for column in columns if column.kind not in ("number", "flag")), None)
    if odd is not None:
        msg = f"Several label columns must all be numbers; '{odd.name}' has '{show(min(odd.distinct))}'. Write numbers."
        raise LayoutError(msg)
    # Several columns of 0 and 1 are labels that may apply together, one column for each.
    are_flags = all({*column.number_of.values()} <= {0, 1} for column in columns)
    every = [(column.name, column.numbers()) for column in columns]
    kept = [values.astype(np.uint8) if are_flags else as_float32(name, values) for name, values in every]
    return Values(np.stack(kept, axis=1)), tuple(column.name for column in columns if are_flags)


def _as_numbers(column: Column) -> Targets:
    values = column.numbers()
    if column.are_all(WHOLE):
        whole = _exact(column)
    # From 2 ** 53 on floats skip integers, so integers written as floats may already be wrong.
    elif np.any(values != np.rint(values)) or np.abs(values).max() >= 2**53:
        return Values(as_float32(column.name, values)), ()
    else:
        whole = values.astype(np.int64)
    return Values(whole), class_numbers(whole)


def _as_sets(column: Column, words_of_cell: Callable[[str], list[str]]) -> Targets:
    """Return sets of labels, one for each cell, as columns of 0 and 1."""
    sets = {cell: {word.strip() for word in words_of_cell(cell)} - {""} for cell in column.distinct}
    classes = sorted(set().union(*sets.values()))
    rows = {cell: np.array([word in found for word in classes], np.uint8) for cell, found in sets.items()}
    table = np.array([rows[cell] for cell in column.cells], np.uint8).reshape(len(column), len(classes))
    return Values(table), tuple(classes)


def _check_classes(column: Column, missing: set[str], sample: Callable[[int], str]) -> None:
    """Refuse cells that a person would not call classes, because each distinct one would become a class."""
    cells, known = column.cells, column.distinct
    numbers = {cell for cell in known if NUMBER.fullmatch(cell) and not _CODE.fullmatch(cell)}
    filled = [cell for cell in cells if cell not in missing]
    words_among = [cell for cell in filled if cell not in numbers]
    by_comma = {cell: [part.strip() for part in cell.split(",")] for cell in known if "," in cell}
    parts = [part for found in by_comma.values() for part in found]
    # The parts of a single name with a comma do not occur elsewhere.
    recur = len(set(parts)) < len(parts) or not known.isdisjoint(parts)
    spaced = {cell for cell in known if len(cell.split()) > 1}
    are_sets = column.plain in words.SETS_OF_LABELS or {word for cell in spaced for word in cell.split()} <= known
    commas = filter(_DECIMAL_COMMA.fullmatch, cells if column.kind == "comma" else ())
    point, fill = "write a point, and nothing between thousands", "correct them, or take the rows out"
    split, several = "write a column for each number, or | between several labels", "one class or several labels"
    doubts: tuple[tuple[Iterable[str], str, str], ...] = (
        (commas, f"a number with a comma: {point}", ","),
        (words_among if len(words_among) <= len(filled) / 4 else (), f"and most are numbers: {fill}", ""),
        (sorted(filter(is_list, known)), f"a list written as text: {split}", ""),
        (sorted(by_comma) if recur else (), several, ","),
        (sorted(spaced) if are_sets else (), several, "," if by_comma else " "),
    )
    for cell, what, mark in ((cell, what, mark) for found, what, mark in doubts for cell in found):
        more = f", table_rows(separator='{mark}') for several labels" if mark else ""
        msg = (
            f"'{column.name}' has cells such as '{show(cell)}' (the first is that of '{sample(cells.index(cell))}'), "
            f"{what}. Or say what it is: layout=table_rows(separator='') for one class{more}."
        )
        raise LayoutError(msg)


def is_list(cell: str) -> bool:
    """Tell whether a cell is a list written as text: each distinct one would become a class."""
    parts = cell.strip("[](){}").replace(",", " ").split()
    return _WRITTEN_LIST.fullmatch(cell) is not None or (len(parts) > 1 and all(map(NUMBER.fullmatch, parts)))


def _exact(column: Column) -> NDArray[np.int64]:
    """Return the integers of a column whose cells contain only digits."""
    known = {cell: int(cell) if len(cell) <= MOST_DIGITS else 2**64 for cell in column.distinct}
    large = next((cell for cell, number in known.items() if not -(2**63) <= number < 2**63), None)
    if large is not None:
        msg = f"'{column.name}' has the label {show(large)}, which does not fit into 64 bits. Write words."
        raise LayoutError(msg)
    return column.as_values(known, np.int64)


def as_float32(name: str, numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return numbers as all but classes are stored; refuse integers of which two become equal."""
    # Fractions are measurements, for which the eighth digit does not matter.
    large = np.unique(numbers[(np.abs(numbers) >= 2**24) & (numbers == np.rint(numbers))])
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 they are infinite, which is no label
        stored, merged = numbers.astype(np.float32), np.flatnonzero(np.diff(large.astype(np.float32)) == 0)
    if len(merged):
        one, other = (f"{number:.0f}" for number in large[merged[0] :][:2])
        msg = f"'{name}' has {one} and {other}, the same number in float32. Write smaller numbers."
        raise LayoutError(msg)
    return stored


# --- what a loss may not expect ---------------------------------------------------------------------------------------


def class_numbers(whole: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the numbers as class names, if integers count classes from 0; otherwise nothing."""
    found = np.unique(whole)
    if not len(found) or found[0] != 0 or found[-1] != len(found) - 1 or 2 * len(found) > len(whole):
        return ()
    return tuple(str(number) for number in found.tolist())


def note_on_numbers(name: str, values: NDArray[Any], classes: Sequence[str]) -> list[str]:
    """Return a note if labels are numbers that a loss cannot use: NaN, or integers that are not classes."""
    missing = int(np.isnan(values).sum()) if values.dtype.kind == "f" else 0
    if missing:
        return [f"{missing:,} of {values.size:,} numbers in '{name}' are NaN, as missing labels are written."]
    is_whole = not classes and values.ndim == 1 and values.dtype == np.int64
    found = np.unique(values) if is_whole else values[:0]
    # Numbers that mostly differ are measurements, and those that count from 0 without a gap have names.
    if not len(found) or 2 * len(found) > len(values):
        return []
    note = f"The labels in '{name}' stay the numbers {int(found[0]):,} to {int(found[-1]):,}; for classes write words."
    return [note]


def notes_on_labels(name: str, targets: object, classes: Sequence[str]) -> list[str]:
    """Return notes on labels of any format that a loss, or their author, may not expect."""
    if not isinstance(targets, Values):
        return []
    return _note_on_missing(name, classes) or note_on_numbers(name, targets.values, classes)


def _note_on_missing(name: str, classes: Iterable[str]) -> list[str]:
    """Say which classes may mean that a label is missing."""
    odd = [one for one in classes if one.lower() in _PERHAPS_MISSING or words.is_unlabelled(one)]
    which = f"{listed(sorted(odd))} in '{name}' {'counts' if len(odd) == 1 else 'count'} like the others."
    return [f"{which} If that says that a label is missing, take these rows out."] if odd else []


def notes_on_targets(columns: Sequence[Column], targets: Values, classes: Sequence[str]) -> list[str]:
    """Return notes on targets that a loss, or the author of the table, may not expect."""
    values, first = targets.values, columns[0]
    if len(columns) == 1 and (missing := _note_on_missing(first.name, classes or first.filled)):
        return missing
    if values.ndim == 1:
        if 2 * len(classes) > len(targets) > 2:
            return [f"'{first.name}' has {len(classes):,} classes for {len(targets):,} samples: is it a label?"]
        is_class = not {"id", *words.LABEL_WORDS}.isdisjoint(words.words_of(first.name))
        return note_on_numbers(first.name, values, classes) if is_class or words.is_label_name(first.name) else []
    if len(columns) == 1:
        mark = separator_of(first)
        between = f"with '{mark}' between them" if mark else "written as a list"
        note = f"A cell of '{first.name}' may hold several labels, {between}; for one: layout=table_rows(separator='')."
        return [note]
    notes, empty = list[str](), int(np.isnan(values).sum())
    if empty:
        notes.append(f"{counted(empty, 'cells', 'are', which='of the label columns')} empty, and NaN in y.")
    called = {words.words_of(column.name) for column in columns}
    # left_eye_x beside left_eye_y; fractions fit images of any size.
    of_points = any("x" in name and tuple("y" if one == "x" else one for one in name) in called for name in called)
    if of_points and (np.abs(values) > 1).any():
        how = "stay as written: where image_size= or a transform changes the images, change the points too."
        notes.append(f"The label columns hold points, which {how}")
    written = {cell for column in columns if column.is_numeric for cell in column.filled if cell.lower() != "nan"}
    if set(map(float, written)) - {0.0, 1.0} == {-1.0}:
        notes.append("The label columns hold -1, which no loss for yes and no takes: (y > 0).float() takes it for no.")
    return notes
