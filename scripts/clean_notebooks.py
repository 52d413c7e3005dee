"""Clean notebooks for committing: no outputs except small pictures, no counts, no widget state, Colab's metadata.

python scripts/clean_notebooks.py                        # all in notebooks/
python scripts/clean_notebooks.py --check                # changes nothing; exit code 1 when one is not in that form
python scripts/clean_notebooks.py --pictures [NAME ...]  # runs them, and keeps the pictures of cells that have the tag

A cell with the tag `picture` keeps what it drew as a PNG, so that a reader on GitHub sees something.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
TAG = "picture"
MAX_BYTES = 60_000
_WIDEST_PX = 900


def clean(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook as it is committed; the given one is not changed."""
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
        if TAG in cell.get("metadata", {}).get("tags", ()):
            cleaned["metadata"]["tags"] = [TAG]
            cleaned["outputs"] = [kept for output in cell["outputs"] if (kept := _kept(output))]
    return {**cleaned, "source": source.splitlines(keepends=True)}


def _kept(output: dict[str, Any]) -> dict[str, Any] | None:
    """Return an output's picture if it is small; `None` for everything else."""
    png = "".join(output.get("data", {}).get("image/png", "")).replace("\n", "")
    if not png or len(base64.b64decode(png)) > MAX_BYTES:
        return None
    return {"data": {"image/png": png}, "metadata": {}, "output_type": "display_data"}


def take_pictures(path: Path) -> None:
    """Run a notebook on practice data, and write what its cells with the tag draw into it."""
    from nbclient import NotebookClient
    from nbformat import reads

    notebook = clean(json.loads(path.read_text(encoding="utf-8")))
    ran = reads(as_text(notebook), as_version=4)  # type: ignore[no-untyped-call]
    for cell in ran.cells:
        if cell.cell_type == "code":
            cell.source = cell.source.replace("%pip", "# %pip")
    with tempfile.TemporaryDirectory(prefix="pictures-") as home:
        os.environ |= {"HOME": home, "COLABSTAGE_LOCAL_DIR": f"{home}/fast", "COLABSTAGE_SYSTEM_ROOT": home}
        shutil.copy(FOLDER / "practice.py", home)
        NotebookClient(ran, timeout=300, resources={"metadata": {"path": home}}).execute()
    for cell, drawn in zip(notebook["cells"], ran.cells, strict=True):
        if TAG in cell["metadata"].get("tags", ()):
            found = [output.get("data", {}) for output in drawn.outputs]
            pictures = [base64.b64decode(data["image/png"]) for data in found if "image/png" in data]
            pictures = pictures or [_seen(data["text/html"]) for data in found if "text/html" in data]
            outputs = [{"data": {"image/png": base64.b64encode(_small(one)).decode()}} for one in pictures]
            cell["outputs"] = [kept for output in outputs if (kept := _kept(output))]
            print(f"{path.name}: {[len(_small(one)) for one in pictures]} bytes")
    path.write_text(as_text(notebook), encoding="utf-8")


def _seen(page: str) -> bytes:
    """Return a picture of an output as a static page shows it."""
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(FOLDER.parent))
    from tests.browser import chromium_path

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport={"width": _WIDEST_PX, "height": 300})
        shown.set_content(f"<body style='margin:8px;background:#fff;color:#212121'>{page}</body>")
        taken: bytes = shown.screenshot(full_page=True)
        browser.close()
    return taken


def _small(picture: bytes) -> bytes:
    """Return it as a PNG with few colours, as large and with as many as fit."""
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as opened:
        image = opened.convert("RGB")
    buffer = io.BytesIO()
    for width, colours in ((_WIDEST_PX, 128), (_WIDEST_PX, 64), (700, 64), (500, 64), (350, 32)):
        image.thumbnail((width, 4 * width))
        buffer = io.BytesIO()
        image.quantize(colours, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= MAX_BYTES:
            break
    return buffer.getvalue()


def as_text(notebook: dict[str, Any]) -> str:
    """Return the notebook as the text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main() -> int:
    """Clean all notebooks, check that all are clean, or take their pictures."""
    words = sys.argv[1:]
    if "--pictures" in words:
        for path in sorted(FOLDER.glob("*.ipynb")):
            if len(words) == 1 or path.stem in words:
                take_pictures(path)
        return 0
    check = "--check" in words
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
