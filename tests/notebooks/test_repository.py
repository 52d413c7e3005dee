"""How notebooks are kept: opened by one badge, one form, valid Python, nothing of any run in them."""

import ast
import importlib.util
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks.checks import CHECKS

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAX_CELLS = 20
BADGE = (
    "[![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/colabstage/colabstage/blob/main/notebooks/{name})"
)
# Nobody owns the name yet, so the checkout is named. ipywidgets, because JupyterLab has none of its own.
INSTALL = re.compile(r"# There is no release yet\. .*\n%pip install -q \.\.( distributed)?( ipywidgets)?")
# A path of some machine; /content is Colab's, on each of its machines.
ABSOLUTE = re.compile(r"""(?<![\w./:)}-])/(?!content/)(?:[A-Za-z][\w.-]*/)+[\w.-]+""")


def complaints(notebook: dict[str, Any], name: str) -> list[str]:
    """What is not as it should be in a notebook of that file name."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    code = [source for kind, source in cells if kind == "code"]
    found = []
    if cells[0][0] != "markdown" or not cells[0][1].startswith("# ") or BADGE.format(name=name) not in cells[0][1]:
        found.append("the first cell is not a title with the badge that opens this notebook in Colab")
    if not INSTALL.fullmatch(code[0]):
        found.append("the first code cell does not install colabstage, or more than that")
    if not re.search(r'^SOURCE = ""  # @param \{type:"string"\}$', code[1], re.MULTILINE):
        found.append("the second code cell is no form that asks for SOURCE")
    if any(isinstance(node, ast.Assert) for source in code[1:] for node in walked(source)):
        found.append("asserts, which is for the cell that its test adds")
    if len(cells) > MAX_CELLS:
        found.append(f"{len(cells)} cells, more than {MAX_CELLS}")
    for before, after in pairwise(cells):
        if before[0] == after[0] == "code" and "# @param" not in before[1] and "%pip" not in before[1]:
            found.append(f"nothing is said before the cell {after[1][:40]!r}")
    found += [f"{match[0]!r} is a path of one machine" for _, source in cells for match in ABSOLUTE.finditer(source)]
    for source in code[1:]:
        try:
            parsed(source)
        except SyntaxError as error:
            found.append(f"no Python: {error}")
    if "widgets" in notebook["metadata"]:
        found.append("holds the state of widgets")
    return found


def walked(source: str) -> list[ast.AST]:
    """Everything in a cell; nothing of one that is no Python, which is told by itself."""
    try:
        return list(ast.walk(parsed(source)))
    except SyntaxError:
        return []


def parsed(source: str) -> ast.Module:
    """The cell's syntax tree."""
    return ast.parse(source)


def read(path: Path) -> dict[str, Any]:
    """A notebook's JSON."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def cleaner() -> Any:
    """The script that `make format` puts notebooks into their form with."""
    spec = importlib.util.spec_from_file_location("clean_notebooks", ROOT / "scripts/clean_notebooks.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_kept_as_agreed(path: Path) -> None:
    """Badge, installation, form, results and no assertions; every cell is Python, and belongs to no machine."""
    assert complaints(read(path), path.name) == []
    assert any(isinstance(node, ast.Assert) for node in ast.walk(parsed(CHECKS[path.stem]))), "its test checks nothing"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_holds_nothing_of_a_run(path: Path) -> None:
    """`make format` would change nothing: no counts, widgets or outputs but pictures, an id for each cell. No cell with
    the tag for a picture lacks one."""
    tool = cleaner()
    assert tool.as_text(tool.clean(read(path))) == path.read_text(encoding="utf-8")
    cells = read(path)["cells"]
    assert all(cell["outputs"] for cell in cells if "picture" in cell["metadata"].get("tags", ()))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_valid(path: Path) -> None:
    """The format's own schema accepts it."""
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install --group notebooks")
    nbformat.validate(read(path), relax_add_props=False)


def ran() -> dict[str, Any]:
    """A notebook of one cell that was run."""
    return {"metadata": {}, "cells": [{"cell_type": "code", "source": ["print(SOURCE)"], "outputs": []}]}


def test_what_a_run_leaves_is_stripped() -> None:
    """Outputs, counts, widget state and the machine's own metadata go; the accelerator that it asks for stays."""
    run = ran()
    run["metadata"] = {"widgets": {"state": {}}, "accelerator": "GPU", "language_info": {"version": "3.11.4"}}
    run["cells"][-1] |= {"outputs": [{"output_type": "stream"}], "execution_count": 3, "metadata": {"outputId": "x"}}
    kept = cleaner().clean(run)
    assert kept["metadata"].keys() == {"accelerator", "colab", "kernelspec", "language_info"}
    assert kept["cells"][-1]["outputs"] == []
    assert kept["cells"][-1]["execution_count"] is None
    assert kept["cells"][-1]["metadata"] == {}


def test_a_picture_stays_where_the_cell_has_the_tag() -> None:
    """The PNG alone, and not one that is large."""
    run = ran()
    png, html = {"data": {"image/png": "aaaa\n", "text/plain": "<Figure>"}}, {"data": {"text/html": "<b>"}}
    large = {"data": {"image/png": "aaaa" * 20_001}}
    run["cells"][-1] |= {"outputs": [html, png, large], "metadata": {"tags": ["picture"]}}
    (kept,) = cleaner().clean(run)["cells"][-1]["outputs"]
    assert kept["data"] == {"image/png": "aaaa"}
    run["cells"][-1]["metadata"] = {}
    assert cleaner().clean(run)["cells"][-1]["outputs"] == []
