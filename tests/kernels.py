"""Runs cells with nbclient in a real ipykernel, in separate processes, and returns what a notebook would store of
them."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.nurseries import Nurseries

ROOT = Path(__file__).resolve().parent.parent
WIDGETS_7 = ROOT / ".venv/ipywidgets7"

_RUN = """
import json, sys
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
cells = [new_code_cell(text) for text in json.loads(sys.argv[1])]
notebook = new_notebook(cells=cells)
client = NotebookClient(notebook, timeout=90, startup_timeout=60, allow_errors=True, kernel_name="python3")
client.execute()
json.dump([cell.outputs for cell in notebook.cells], sys.stdout)
"""

Outputs = list[list[dict[str, Any]]]


def run_cells(*cells: str, folder: Path, nurseries: Nurseries, before: Path | None = None) -> Outputs:
    """Run the cells in `folder`; return each cell's outputs as in notebook format 4.

    `before`: a folder whose packages take precedence over those of the environment.
    """
    absent = [name for name in ("ipykernel", "nbclient", "nbformat") if find_spec(name) is None]
    if absent:
        pytest.skip(f"needs {', '.join(absent)}: pip install --group notebooks (or: make .venv/.tested)")
    places = [str(place) for place in (before, ROOT) if place is not None]
    own = {f"JUPYTER_{name}_DIR": str(folder / ".jupyter" / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    script = folder / ".run_cells.py"
    script.write_text(_RUN, encoding="utf-8")
    environment = {
        **own,
        "PYTHONPATH": os.pathsep.join(places),
        "IPYTHONDIR": str(folder / ".ipython"),
        "JUPYTER_PATH": str(nurseries.kernel("torch")),
        "COLABSTAGE_SYSTEM_ROOT": str(folder / ".system"),
    }
    line = nurseries.run_script("torch", [script, json.dumps(cells)], environment, folder=folder)
    outputs: Outputs = json.loads(line)
    return outputs


def widgets_7() -> Path:
    """The folder with the ipywidgets of Colab's image; the test is skipped if it is missing."""
    if not (WIDGETS_7 / "ipywidgets").is_dir():
        pytest.skip("needs ipywidgets 7.7 in a folder of its own: make .venv/.ipywidgets7")
    return WIDGETS_7


def errors_in(outputs: Outputs) -> list[str]:
    """Every error that ended a cell."""
    return [f"{one['ename']}: {one['evalue']}" for cell in outputs for one in cell if one["output_type"] == "error"]


def text_in(outputs: list[dict[str, Any]]) -> str:
    """The text that one cell printed and displayed."""
    parts = []
    for one in outputs:
        if one["output_type"] == "stream":
            parts.append(one["text"])  # a line may be split over several outputs
        else:
            parts += ["\n", one.get("data", {}).get("text/plain", ""), "\n"]
    return "".join(parts).strip("\n")
