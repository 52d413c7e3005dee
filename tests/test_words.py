"""The word list in CONTRIBUTING.md is kept by everything people read: pages, notebooks and the command line's help.

Messages are checked in `test_layers`.
"""

import ast
import functools
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.pages import DOCS, README, ROOT

_STYLE = ROOT / "CONTRIBUTING.md"
_CODE = re.compile(r"^`{3,}.*?^`{3,}$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@functools.cache
def forbidden() -> re.Pattern[str]:
    """Return what finds the phrases in the first column of the word list."""
    table = _STYLE.read_text(encoding="utf-8").partition("## Word list")[2]
    rows = [line.partition(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    phrases = [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row)]
    ends = [re.escape(phrase) + (r"\b" if phrase[-1].isalnum() else "") for phrase in phrases]
    return re.compile(rf"(?i)\b(?:{'|'.join(ends)})")


def complaints(text: str) -> list[str]:
    """Return the forbidden phrases in a text, with the text after them; line ends and capitals make no difference."""
    flat = " ".join(text.split())
    return [flat[match.start() :][:60] for match in forbidden().finditer(flat)]


def pages() -> list[Path]:
    """Return every page in prose except the list itself and the record of past changes."""
    return [README, *sorted({*ROOT.glob("*.md")} - {README, _STYLE, ROOT / "CHANGELOG.md"}), *DOCS]


def help_texts(path: Path) -> Iterator[str]:
    """Yield the docstrings of commands and the texts of options in one module of the command line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield ast.get_docstring(node) or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def messages(nodes: Collection[ast.AST]) -> Iterator[str]:
    """Yield a module's strings that are not docstrings, with `…` in place of values."""
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_pages_keep_to_the_word_list(path: Path) -> None:
    """Code is left out."""
    assert complaints(_CODE.sub("", path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_keep_to_the_word_list(path: Path) -> None:
    """The text between their code cells."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    said = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    assert said
    assert complaints("\n\n".join(said)) == []


@pytest.mark.parametrize("path", sorted((ROOT / "colabstage/cli").glob("*.py")), ids=lambda path: path.stem)
def test_the_help_keeps_to_the_word_list(path: Path) -> None:
    """Docstrings, which are the help of commands, and the texts of options."""
    assert [bad for text in help_texts(path) for bad in complaints(text)] == []


def test_the_navigation_keeps_to_the_word_list() -> None:
    """The site's page titles."""
    assert complaints((ROOT / "mkdocs.yml").read_text(encoding="utf-8")) == []
