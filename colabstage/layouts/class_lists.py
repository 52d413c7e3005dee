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
_EXTENSIONS = (".txt", ".names", ".labels", ".yaml", ".yml", ".data")
_MENTIONS = re.compile(r"^(names|kpt_shape|train|val|test)\s*:", re.MULTILINE)
_MOST_CLASSES = 1_000_000
_DIGITS = 8


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
    files = source.ending_in(_EXTENSIONS).where(
        lambda name: (
            name.lower().endswith((".yaml", ".yml", ".data")) or posixpath.basename(name).lower() in _NAME_LISTS
        )
    )
    found: dict[str, ClassList] = {}
    for entry in sorted(files, key=lambda entry: (entry.name.count("/"), entry.name)):
        made = parse_class_list(entry.name, source.read(entry))
        if made.names or made.keypoints != (0, 0) or made.splits:
            found[entry.name] = made
    named = {name: made for name, made in found.items() if made.names}
    if len({made.names for made in named.values()}) > 1:
        first = next(iter(named))
        other = next(name for name, made in named.items() if made.names != named[first].names)
        msg = (
            f"'{first}' names the classes {listed(named[first].names, 4)}, and '{other}' "
            f"{listed(named[other].names, 4)}: "
            "two datasets, whose numbers mean different classes. Stage their folders one by one, or give all one list."
        )
        raise BrokenDatasetError(msg)
    return list(found), ClassList(
        next((made.names for made in named.values()), ()),
        next((made.keypoints for made in found.values() if made.keypoints != (0, 0)), (0, 0)),
        next((made.splits for made in found.values() if made.splits), {}),
    )


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
        stated = {key.strip().lower(): value.strip() for key, _, value in pairs}
        return ClassList((), splits={SPLITS[key]: [value] for key, value in stated.items() if key in SPLITS})
    if not _MENTIONS.search(text):
        return ClassList(())
    found = _load_yaml(name, text)
    if not isinstance(found, dict):
        return ClassList(())
    shape = found.get("kpt_shape")
    try:
        count, width = (0, 0) if shape is None else (_small(part) for part in shape)
    except (TypeError, ValueError) as error:
        raise _odd_names(name, f"kpt_shape is {show_content(shape)}") from error
    splits = {SPLITS[key]: _as_list(found[key]) for key in found if isinstance(key, str) and key in SPLITS}
    names = () if found.get("names") is None else _in_order(found["names"], name)
    return ClassList(names, (count, width), {split: paths for split, paths in splits.items() if paths})


def _load_yaml(name: str, text: str) -> Any:
    import yaml

    try:
        # Without types, so that a class called no, or 1, is a word.
        return yaml.load(text, Loader=yaml.BaseLoader)  # makes only texts, lists and mappings
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise _odd_names(name, show(error)) from error


def _as_list(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, str) and one]


def _in_order(names: Any, file: str) -> tuple[str, ...]:
    if isinstance(names, list):
        found = dict(enumerate(names))
    elif isinstance(names, dict) and all(isinstance(key, str) and key.isdecimal() and len(key) < 9 for key in names):
        found = {int(key): value for key, value in names.items()}
    else:
        raise _odd_names(file, f"names are {show_content(names)}")
    if (
        len(found) > _MOST_CLASSES
        or sorted(found) != list(range(len(found)))
        or not all(isinstance(value, str) for value in found.values())
    ):
        raise _odd_names(file, f"names are {show_content(names)}")
    return tuple(normal(found[number]) for number in range(len(found)))


def _small(part: Any) -> int:
    if not isinstance(part, str) or len(part) > _DIGITS:
        msg = "not a number of keypoints"
        raise ValueError(msg)
    return int(part)


def _odd_names(name: str, what: str) -> BrokenDatasetError:
    return BrokenDatasetError(
        f"'{name}' has class names in a form that is not read here ({what}); expected names: ['car', 'dog'], or one in "
        "each line below it, as '- car' or '0: car', numbered from 0 without a gap, and kpt_shape: [17, 3] for poses."
    )
