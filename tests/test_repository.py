"""What is committed: no path of one machine, no registry, of notebook outputs only small pictures, nothing big."""

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

# Homes that identify notebook platforms are facts, not somebody's machine; Ann is nobody.
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
    """A file's text; for pictures and other binary files, the text in them."""
    return path.read_text(encoding="utf-8", errors="ignore")


def complaints(text: str) -> list[str]:
    """The passages that belong to one machine or name a package registry."""
    return [
        text[match.start() : match.end() + 20] for rule in (_OWN_PATHS, _REGISTRIES) for match in rule.finditer(text)
    ]


def strays(notebook: str) -> int:
    """The number of a notebook's cells with an execution count, or with outputs other than the small pictures that a
    tag allows."""
    cells = json.loads(notebook)["cells"]
    return sum(cell.get("execution_count") is not None or not all(map(allowed(cell), outputs(cell))) for cell in cells)


def outputs(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """A cell's outputs."""
    found: list[dict[str, Any]] = cell.get("outputs", [])
    return found


def allowed(cell: dict[str, Any]) -> Callable[[dict[str, Any]], bool]:
    """Whether an output of this cell may be committed."""
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
    """No notebook has outputs other than pictures, and no cell tagged for a picture lacks one."""
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
    """Files that an editor or a tool leaves beside a module would end up in everybody's wheel."""
    inside = [path for path in tracked() if path.is_relative_to(ROOT / "colabstage")]
    assert len(inside) > 100
    assert [path.name for path in inside if path.suffix != ".py" and path.name != "py.typed"] == []
