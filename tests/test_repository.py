"""What is committed: nothing of one machine, no registry, of notebook outputs small pictures only, nothing big."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 600 * 1024
MAX_PICTURE_BYTES = 60_000

# Homes that notebook platforms are known by are facts, not somebody's machine; Ann is nobody.
_OWN_PATHS = re.compile(
    r"(?<![\w./$}-])/(?:(?:home|Users)/(?!studio-lab-user|sagemaker-user|ann\b)\w|root/\.(?!config/Google)|work/\w)"
)
# In two pieces, so that this file passes its own test.
_REGISTRIES = re.compile("|".join((r"py" + r"pi\.org", r"python" + r"hosted\.org", r"download\." + r"pytorch\.org")))


@cache
def tracked() -> tuple[Path, ...]:
    """The files that git tracks."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout: what is committed is what is looked at")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    return tuple(path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file())


def text_of(path: Path) -> str:
    """A file's text; of pictures and other binary files, what of it is text."""
    return path.read_text(encoding="utf-8", errors="ignore")


def complaints(text: str) -> list[str]:
    """The passages of a text that belong to one machine or name a package registry."""
    return [
        text[match.start() : match.end() + 20] for rule in (_OWN_PATHS, _REGISTRIES) for match in rule.finditer(text)
    ]


def strays(notebook: str) -> int:
    """How many cells of a notebook carry an execution count, or outputs that are not small pictures by their tag."""
    cells = json.loads(notebook)["cells"]
    return sum(cell.get("execution_count") is not None or not all(map(allowed(cell), outputs(cell))) for cell in cells)


def outputs(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """What a cell shows."""
    found: list[dict[str, Any]] = cell.get("outputs", [])
    return found


def allowed(cell: dict[str, Any]) -> Callable[[dict[str, Any]], bool]:
    """Whether an output of the cell may be committed."""
    if "picture" not in cell.get("metadata", {}).get("tags", ()):
        return lambda _: False
    return lambda output: (
        [*output.get("data", {})] == ["image/png"]
        and len(base64.b64decode(output["data"]["image/png"])) <= MAX_PICTURE_BYTES
    )


def test_no_path_or_host_of_one_place() -> None:
    """No tracked file names a home, a work folder or a package registry."""
    found = {
        str(path.relative_to(ROOT)): bad
        for path in tracked()
        if path.suffix != ".png" and (bad := complaints(text_of(path)))
    }
    assert found == {}


def test_notebooks_are_stripped() -> None:
    """No notebook carries outputs but pictures, and no cell that is to have one is without."""
    notebooks = [path for path in tracked() if path.suffix == ".ipynb"]
    assert [path.name for path in notebooks if strays(text_of(path))] == []
    cells = [(path.stem, cell) for path in notebooks for cell in json.loads(text_of(path))["cells"]]
    tagged = [(name, len(outputs(cell))) for name, cell in cells if "picture" in cell["metadata"].get("tags", ())]
    assert len(tagged) > 10
    assert [name for name, shown in tagged if not shown] == []


def test_nothing_big_is_tracked() -> None:
    """No tracked file is above 600 KiB."""
    assert {path.name: path.stat().st_size for path in tracked() if path.stat().st_size > MAX_BYTES} == {}


def test_the_package_holds_modules_and_no_leftovers() -> None:
    """What an editor or a tool leaves beside a module would be in everybody's wheel."""
    inside = [path for path in tracked() if path.is_relative_to(ROOT / "colabstage")]
    assert len(inside) > 100
    assert [path.name for path in inside if path.suffix != ".py" and path.name != "py.typed"] == []


@pytest.mark.parametrize(
    "text", ["cd /" + "home/ada/data", "'/" + "root/.cache'", "(/" + "work/x)", "https://py" + "pi.org"]
)
def test_a_planted_passage_is_noticed(text: str) -> None:
    """Each rule notices what breaks it."""
    assert len(complaints(text)) == 1


@pytest.mark.parametrize(
    "text", ["/kaggle/" + "working/x", "/home/studio-lab-user", "$HOME/" + "work/x", "/work", "a/" + "work/b"]
)
def test_a_platforms_own_path_passes(text: str) -> None:
    """What is true of every machine of a platform may be written down."""
    assert complaints(text) == []


def test_planted_outputs_are_noticed() -> None:
    """A cell with a count is one too many, and so is any output but a small picture where the cell has the tag."""

    def cell(*, count: int | None = None, tags: tuple[str, ...] = ("picture",), **data: str) -> dict[str, object]:
        shown = [{"data": {name.replace("_", "/"): text for name, text in data.items()}}] if data else []
        return {"cell_type": "code", "outputs": shown, "execution_count": count, "metadata": {"tags": tags}}

    good = [cell(), cell(image_png="aaaa"), {"cell_type": "markdown"}]
    bad = [
        cell(count=3),
        cell(tags=(), image_png="aaaa"),
        cell(image_png="aaaa", text_plain="<Figure>"),
        cell(image_png="aaaa" * (MAX_PICTURE_BYTES // 3 + 1)),
    ]
    assert strays(json.dumps({"cells": good + bad})) == len(bad)
    assert strays(json.dumps({"cells": good})) == 0
