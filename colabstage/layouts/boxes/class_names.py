"""What YOLO's tools leave beside the labels: names of classes, and of how many keypoints a pose is.

data.yaml is read by PyYAML: what people write there (quotes, apostrophes, comments, lists over several lines) is all of
YAML.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from colabstage.layouts.table import ClaimedTreeError
from colabstage.retry import RetryPolicy, read_with_retry
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from colabstage.trees.tree import FileEntry, Tree

_LISTS = ("classes.txt", "obj.names", "classes.names", "_darknet.labels")
_EXTENSIONS = (".txt", ".names", ".labels", ".yaml", ".yml")
_MENTIONS_NAMES = re.compile(r"^names\s*:", re.MULTILINE)


class ClassFile(NamedTuple):
    """Class names in label order, empty where there are none; `keypoints`: how many there are of a pose, and numbers
    of each, (0, 0) where boxes have none."""

    names: tuple[str, ...]
    keypoints: tuple[int, int] = (0, 0)


def read_class_file(tree: Tree) -> ClassFile:
    """Return what a tree says of its classes.

    Raises:
        ClaimedTreeError: a YAML file has names in a form that is not read here.
    """
    files = files_ending_in(tree.entries, _EXTENSIONS).where(_may_name_classes)
    for entry in sorted(files, key=lambda entry: (entry.name.count("/"), entry.name)):
        base = posixpath.basename(entry.name).lower()
        if base in _LISTS:
            lines = (line.strip() for line in _text(tree, entry).splitlines())
            return ClassFile(tuple(line for line in lines if line))
        found = parse_class_file(_text(tree, entry), entry.name)
        if found.names:
            return found
    return ClassFile(())


def _may_name_classes(name: str) -> bool:
    base = posixpath.basename(name).lower()
    return base in _LISTS or base.endswith((".yaml", ".yml"))


def _text(tree: Tree, entry: FileEntry) -> str:
    data = read_with_retry(lambda: tree.read(entry), entry.name, policy=RetryPolicy())
    return data.decode("utf-8-sig", "replace")


def parse_class_file(text: str, name: str) -> ClassFile:
    """Return what a data.yaml says under `names` and `kpt_shape`. Pure.

    >>> parse_class_file("nc: 2\\nnames: [dog's toy, 'no']", "data.yaml").names
    ("dog's toy", 'no')
    >>> parse_class_file("names:\\n  0: car  # the first\\n  1: dog\\nkpt_shape: [17, 3]", "data.yaml").keypoints
    (17, 3)

    Raises:
        ClaimedTreeError: there are names, but in another form.
    """
    import yaml

    if not _MENTIONS_NAMES.search(text):
        return ClassFile(())
    try:
        # Without types: a class called no, or 1, is a word.
        found = yaml.load(text, Loader=yaml.BaseLoader)  # makes nothing but texts, lists and mappings
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _odd(name, str(error)) from error
    names = found.get("names") if isinstance(found, dict) else None
    return ClassFile(_in_order(names, name), _keypoints(found.get("kpt_shape"), name))


def _in_order(names: Any, file: str) -> tuple[str, ...]:
    if isinstance(names, list):
        found = dict(enumerate(names))
    elif isinstance(names, dict) and all(isinstance(key, str) and key.isdecimal() for key in names):
        found = {int(key): value for key, value in names.items()}
    else:
        raise _odd(file, f"names are {str(names)[:60]!r}")
    if sorted(found) != list(range(len(found))) or not all(isinstance(value, str) for value in found.values()):
        raise _odd(file, f"names are {str(names)[:60]}")
    return tuple(found[number] for number in range(len(found)))


def _keypoints(shape: Any, file: str) -> tuple[int, int]:
    if shape is None:
        return (0, 0)
    try:
        count, width = (int(part) for part in shape)
    except (TypeError, ValueError) as error:
        raise _odd(file, f"kpt_shape is {shape!r}") from error
    return count, width


def _odd(name: str, what: str) -> ClaimedTreeError:
    return ClaimedTreeError(
        f"'{name}' has class names in a form that is not read here ({what}); expected names: ['car', 'dog'], or one in "
        "each line below it, as '- car' or '0: car', numbered from 0 without a gap, and kpt_shape: [17, 3] for poses."
    )
