"""Put notebooks into the form in which they are committed: no outputs, no counts, no widget state, Colab's metadata.

python scripts/clean_notebooks.py             # all in notebooks/
python scripts/clean_notebooks.py --check     # changes nothing; exit code 1 when one is not in that form
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"


def clean(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook as it is committed; the one that is given stays as it is."""
    colab = notebook.get("metadata", {}).get("colab", {})
    metadata: dict[str, Any] = {
        "colab": {"provenance": [], **{key: colab[key] for key in ("gpuType",) if key in colab}},
        "kernelspec": {"display_name": "Python 3", "name": "python3"},
        "language_info": {"name": "python"},
    }
    if "accelerator" in notebook.get("metadata", {}):
        metadata["accelerator"] = notebook["metadata"]["accelerator"]
    taken: set[str] = set()
    cells = [_clean_cell(cell, taken) for cell in notebook["cells"] if "".join(cell["source"]).strip()]
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _clean_cell(cell: dict[str, Any], taken: set[str]) -> dict[str, Any]:
    source = "".join(cell["source"]).strip()
    name = cell.get("id") or cell.get("metadata", {}).get("id") or ""
    while not name or name in taken:
        name = hashlib.sha256(f"{source}{len(taken)}{name}".encode()).hexdigest()[:8]
    taken.add(name)
    cleaned: dict[str, Any] = {"cell_type": cell["cell_type"], "id": name, "metadata": {}}
    if cell["cell_type"] == "code":
        if "# @param" in source:
            cleaned["metadata"]["cellView"] = "form"
        cleaned |= {"execution_count": None, "outputs": []}
    return {**cleaned, "source": source.splitlines(keepends=True)}


def as_text(notebook: dict[str, Any]) -> str:
    """The notebook as the text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> int:
    """Clean all, or look whether all are clean."""
    check = "--check" in sys.argv[1:]
    unclean = 0
    for path in sorted(FOLDER.glob("*.ipynb")):
        text = path.read_text(encoding="utf-8")
        cleaned = as_text(clean(json.loads(text)))
        if cleaned != text:
            unclean += 1
            print(f"{path.name} is {'not ' if check else ''}in the form in which notebooks are kept")
            if not check:
                path.write_text(cleaned, encoding="utf-8")
    return int(check and unclean > 0)


if __name__ == "__main__":
    sys.exit(main())
