"""Names of classes where YOLO's tools leave them: data.yaml, classes.txt, obj.names."""

from __future__ import annotations

import ast
import posixpath
import re
from typing import TYPE_CHECKING

from colabstage.layouts.table import ClaimedTreeError
from colabstage.retry import RetryPolicy, read_with_retry
from colabstage.trees.entries import files_ending_in

if TYPE_CHECKING:
    from colabstage.trees.tree import FileEntry, Tree

_LISTS = ("classes.txt", "obj.names", "classes.names", "_darknet.labels")
_EXTENSIONS = (".txt", ".names", ".labels", ".yaml", ".yml")
_ITEM = re.compile(r"\s*(?:-|['\"]?(\d+)['\"]?\s*:)\s+(.*)")


def read_class_names(tree: Tree) -> tuple[str, ...]:
    """The names that a tree gives its classes, in label order; empty where it has no such file.

    Raises:
        ClaimedTreeError: a YAML file has names in a form that is not read here.
    """
    files = files_ending_in(tree.entries, _EXTENSIONS).where(_may_name_classes)
    for entry in sorted(files, key=lambda entry: (entry.name.count("/"), entry.name)):
        base = posixpath.basename(entry.name).lower()
        if base in _LISTS:
            lines = (line.strip() for line in _text(tree, entry).splitlines())
            return tuple(line for line in lines if line)
        if base.endswith((".yaml", ".yml")):
            names = parse_names(_text(tree, entry), entry.name)
            if names:
                return names
    return ()


def _may_name_classes(name: str) -> bool:
    base = posixpath.basename(name).lower()
    return base in _LISTS or base.endswith((".yaml", ".yml"))


def _text(tree: Tree, entry: FileEntry) -> str:
    data = read_with_retry(lambda: tree.read(entry), entry.name, policy=RetryPolicy())
    return data.decode("utf-8-sig", "replace")


def parse_names(text: str, name: str) -> tuple[str, ...]:
    """The `names` of a data.yaml: a list or numbered names, in one line or one under the other. Pure.

    YAML is more than this; the files that YOLO's tools write are not.

    >>> parse_names("nc: 2\\nnames: ['car', 'dog']", "data.yaml")
    ('car', 'dog')
    >>> parse_names("names:\\n  0: car  # the first\\n  1: dog", "data.yaml")
    ('car', 'dog')

    Raises:
        ClaimedTreeError: there are names, but in another form.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if re.match(r"names\s*:", line)), None)
    if start is None:
        return ()
    inline = lines[start].partition(":")[2].strip()
    if inline and not inline.startswith("#"):
        return _inline(_joined(inline, lines[start + 1 :]), name)
    found: dict[int, str] = {}
    for line in lines[start + 1 :]:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        item = _ITEM.fullmatch(line)
        if item is None:
            break
        found[int(item[1]) if item[1] else len(found)] = _scalar(item[2])
    return _in_order(found, name)


def _joined(inline: str, rest: list[str]) -> str:
    """A list or mapping in brackets, which may go on in the next lines."""
    for line in rest:
        if inline.count("[") + inline.count("{") <= inline.count("]") + inline.count("}"):
            break
        inline += f" {line.strip()}"
    return inline


def _inline(text: str, name: str) -> tuple[str, ...]:
    body = text.partition(" #")[0].strip()
    is_map = body.startswith("{") and body.endswith("}")
    if not is_map and not (body.startswith("[") and body.endswith("]")):
        raise _odd(name)
    parts = re.findall(r"""(?:'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"|[^,'"])+""", body[1:-1])
    items = [part.strip() for part in parts if part.strip()]
    if not is_map:
        return tuple(_scalar(item) for item in items)
    pairs = [item.partition(":") for item in items]
    try:
        return _in_order({int(_scalar(key)): _scalar(value) for key, _, value in pairs}, name)
    except ValueError as error:
        raise _odd(name) from error


def _scalar(text: str) -> str:
    text = text.strip()
    quoted = re.match(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*\"""", text)
    if quoted is None:
        return text.partition(" #")[0].strip()
    if quoted[0].startswith("'"):
        return quoted[0][1:-1].replace("''", "'")
    return str(ast.literal_eval(quoted[0]))


def _in_order(names: dict[int, str], file: str) -> tuple[str, ...]:
    if sorted(names) != list(range(len(names))):
        raise _odd(file)
    return tuple(names[number] for number in range(len(names)))


def _odd(name: str) -> ClaimedTreeError:
    return ClaimedTreeError(
        f"'{name}' has class names in a form that is not read here; expected names: ['car', 'dog'], or one in each "
        "line below it, as '- car' or '0: car', numbered from 0 without a gap."
    )
