"""What texts and JSON beside samples say: one statement for each line or key, and what it means for classes."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import TYPE_CHECKING

from colabstage.layouts.columns import show
from colabstage.layouts.words import normal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WORD = re.compile(r"[^\s,;|\"'<>\[\]{}()=:]+")
_CELL = re.compile(r"[^,;\t|\"<>]+")
# "# file label", "#file label"; but #1.jpg is a name.
_COMMENT = re.compile(r"#(\s|[^.]*$)")


class Statement:
    """One line of a text, or one key or item of JSON."""

    def __init__(self, text: str, *, is_record: bool = False) -> None:
        self.text, self.is_record = text, is_record
        """And whether it is one of a list of records, which say more of a sample than its path."""
        self.words = _WORD.findall(text)
        """What is between blanks, quotes and delimiters."""

    @cached_property
    def cells(self) -> list[str]:
        """Return what may be a name or a label: the words, and the text between delimiters: names may have blanks."""
        return [*self.words, *(cell.strip() for cell in _CELL.findall(self.text))]

    @property
    def folders(self) -> list[str]:
        """Return the parts of paths among the words."""
        return [part for word in self.words for part in word.split("/")]

    @cached_property
    def parts(self) -> set[str]:
        """Return their folders and base names."""
        return {part for cell in self.cells for part in _split_path(cell)}

    def beside(self, name: str) -> list[str]:
        """Return the words beside a name."""
        rest = [word for word in self.words if name not in _split_path(word)]
        return rest if len(rest) < len(self.words) else _WORD.findall(self.text.replace(name, "", 1))


def _split_path(word: str) -> list[str]:
    return word.replace("\\", "/").split("/")


def is_comment(line: str) -> bool:
    """Tell whether a line of a text is a comment."""
    return _COMMENT.match(line) is not None


def lines_of(text: str) -> list[str]:
    """Return the lines of a text that are neither empty nor comments.

    >>> lines_of("# file label\\n1.jpg cat\\n\\n#1.jpg dog")
    ['1.jpg cat', '#1.jpg dog']
    """
    lines = map(str.strip, text.splitlines())
    return [line for line in lines if line and not is_comment(line)]


def statements_of(text: str) -> list[Statement]:
    """Return the statement of each line of a text; for JSON, of each key, or of each item."""
    text = normal(text)
    try:
        found = json.loads(text) if text.lstrip().startswith(("{", "[")) else None
    except (ValueError, RecursionError):
        found = None
    # {"classes": {"cat": 0}}
    while isinstance(found, dict) and len(found) == 1 and isinstance(inner := next(iter(found.values())), dict | list):
        found = inner
    items = [{key: value} for key, value in found.items()] if isinstance(found, dict) else found
    if isinstance(items, list):
        texts = [json.dumps(one, ensure_ascii=False) for one in items]
        return [Statement(text, is_record=items is found and text.startswith("{")) for text in texts]
    return list(map(Statement, lines_of(text)))


def joins_classes(beside: Sequence[str]) -> bool:
    """Tell whether the text beside each class is the same for several classes and different for others, like labels of
    folders, rather than a name, a number or a remark."""
    return 1 < len(set(beside)) < len(beside)


def other_number(classes: Sequence[str], numbers: Mapping[int, int]) -> str:
    """Write which class has a different number in a file, given the file's numbers by ours; "" for none."""
    odd = next((place for place, number in numbers.items() if number != place), None)
    return "" if odd is None else f"'{show(classes[odd])}' is {numbers[odd]} there, and {odd} here"
