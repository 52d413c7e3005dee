"""What lists of names and data.yaml, which tools leave beside numbered boxes, say: classes, keypoints, splits.

YAML is read by PyYAML, because people use all of it there (quotes, apostrophes, comments, multi-line lists).
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from colabstage.io.given import show_content
from colabstage.io.units import listed
from colabstage.layouts.columns import show
from colabstage.layouts.reading import decode_text
from colabstage.layouts.table import BrokenDatasetError
from colabstage.layouts.words import SPLITS, normal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from colabstage.layouts.reading import Source

_NAME_LISTS = ("classes.txt", "_classes.txt", "obj.names", "classes.names", "_darknet.labels", "predefined_classes.txt")
_SETTINGS = (".yaml", ".yml", ".data")
_MENTIONS = re.compile(r"^(names|kpt_shape|train|val|test)\s*:", re.MULTILINE)
_MOST_CLASSES = 1_000_000
_NUMBER = re.compile(r"\d{1,8}", re.ASCII)


class ClassList(NamedTuple):
    """What one file says."""

    names: tuple[str, ...]
    """Of the classes, in label order; empty if there are none."""
    keypoints: tuple[int, int] = (0, 0)
    """Number of keypoints, and numbers for each; (0, 0) for boxes without keypoints."""
    splits: Mapping[str, Sequence[str]] = {}
    """The folders and lists of each split, as written."""


def read_class_list(source: Source) -> tuple[list[str], ClassList]:
    """Return the files of a source that say what its classes are, and what they say."""
    files = source.ending_in((*_SETTINGS, ".txt", ".names", ".labels")).where(is_class_list)
    entries = sorted(files, key=lambda entry: (entry.name.count("/"), entry.name))
    made = {entry.name: parse_class_list(entry.name, source.read(entry)) for entry in entries}
    found = {name: one for name, one in made.items() if one != ClassList(())}
    names = {one.names: name for name, one in reversed(found.items()) if one.names}
    if len(names) > 1:
        (other, second), (first, one) = list(names.items())[-2:]
        msg = (
            f"'{one}' names the classes {listed(first, 4)}, and '{second}' {listed(other, 4)}: two datasets, whose "
            "numbers mean different classes. Stage their folders one by one, or give all one list."
        )
        raise BrokenDatasetError(msg)
    return list(found), ClassList(
        next(iter(names), ()),
        next((one.keypoints for one in found.values() if one.keypoints != (0, 0)), (0, 0)),
        next((one.splits for one in found.values() if one.splits), {}),
    )


def is_class_list(name: str) -> bool:
    """Tell whether a file may say what the classes are, by its name."""
    return name.lower().endswith(_SETTINGS) or posixpath.basename(name).lower() in _NAME_LISTS


def parse_class_list(name: str, content: bytes) -> ClassList:
    """Return what a file says. Pure.

    >>> parse_class_list("data.yaml", b"nc: 2\\nnames: [dog's toy, 'no']").names
    ("dog's toy", 'no')
    >>> parse_class_list("data.yaml", b"names:\\n  0: car  # the first\\n  1: dog\\nkpt_shape: [17, 3]").keypoints
    (17, 3)
    """
    text = decode_text(content)
    # A plain list has one name per line, and no keypoints.
    if posixpath.basename(name).lower() in _NAME_LISTS:
        return ClassList(tuple(normal(line.strip()) for line in text.splitlines() if line.strip()))
    if name.lower().endswith(".data"):
        # Darknet's: train = data/train.txt.
        pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
        found: Any = {key.strip().lower(): value.strip() for key, _, value in pairs}
        found.pop("names", None)
    else:
        found = _load_yaml(name, text) if _MENTIONS.search(text) else None
    if not isinstance(found, dict):
        return ClassList(())
    splits = {SPLITS[key]: _as_list(found[key]) for key in found if isinstance(key, str) and key in SPLITS}
    return ClassList(
        _in_order(name, found.get("names")),
        _keypoints(name, found.get("kpt_shape")),
        {split: paths for split, paths in splits.items() if paths},
    )


def _load_yaml(name: str, text: str) -> Any:
    import yaml

    try:
        # Without types, so that a class called no, or 1, is a word.
        return yaml.load(text, Loader=yaml.BaseLoader)  # makes only texts, lists and mappings
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise _odd(name, show(error)) from error


def _as_list(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, str) and one]


def _in_order(file: str, names: Any) -> tuple[str, ...]:
    """Return the names of the classes, given as a list or by number."""
    found = {str(number): name for number, name in enumerate(names)} if isinstance(names, list) else names or {}
    are_numbers = isinstance(found, dict) and all(isinstance(key, str) and _NUMBER.fullmatch(key) for key in found)
    by_number: dict[int, Any] = {int(key): name for key, name in found.items()} if are_numbers else {-1: None}
    count = len(by_number)
    if count > _MOST_CLASSES or by_number.keys() != set(range(count)) or not {*map(type, by_number.values())} <= {str}:
        raise _odd(file, f"names are {show_content(names)}")
    return tuple(normal(by_number[number]) for number in range(count))


def _keypoints(file: str, shape: Any) -> tuple[int, int]:
    if shape is None:
        return 0, 0
    parts = shape if isinstance(shape, list) and len(shape) == 2 else [""]
    if not all(isinstance(part, str) and _NUMBER.fullmatch(part) for part in parts):
        raise _odd(file, f"kpt_shape is {show_content(shape)}")
    return int(parts[0]), int(parts[1])


def _odd(name: str, what: str) -> BrokenDatasetError:
    return BrokenDatasetError(
        f"'{name}' has class names in a form that is not read here ({what}); expected names: ['car', 'dog'], or one in "
        "each line below it, as '- car' or '0: car', numbered from 0 without a gap, and kpt_shape: [17, 3] for poses."
    )
