"""Tests use the public face, and the protocols that docs/architecture.md names: so everything behind these can move.

`tests/imports.txt` lists the files that still reach behind it, each with the modules that it imports. The list only
shrinks: a module that a file no longer imports has to leave it.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("imports.txt")
FACE = {"colabstage", "colabstage.errors", "colabstage.options", "colabstage.transforms"}
# In the text of a script that a test runs, and as the target of a patch.
_SCRIPTED = re.compile(r"^\s*(?:from|import) (colabstage(?:\.\w+)+)(?: import (\w+))?", re.MULTILINE)
_PATCHED = re.compile(r"colabstage(?:\.\w+)+")


def protocols() -> set[str]:
    """Return the modules in the section of the page that says what tests may import."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.partition("\n## What tests may import\n")[2].partition("\n## ")[0]
    return {f"colabstage.{name.replace('/', '.')}" for name in re.findall(r"^- `([\w/]+)`", section, re.MULTILINE)}


def module_of(name: str) -> str:
    """Return the module that a dotted name is, or is in; a module of the package's root is "colabstage" itself."""
    parts = name.split(".")
    while len(parts) > 1:
        place = ROOT.joinpath(*parts)
        if place.with_suffix(".py").exists() or (place / "__init__.py").exists():
            break
        parts.pop()
    return ".".join(parts)


def internal_modules(text: str) -> set[str]:
    """Return the modules behind the public face that a test's text imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {".".join(filter(None, found)) for found in _SCRIPTED.findall(node.value)}
            names |= {node.value} if _PATCHED.fullmatch(node.value) else set()
    modules = {module_of(name) for name in names if name.partition(".")[0] == "colabstage"}
    return modules - FACE - protocols()


def listed() -> dict[str, set[str]]:
    """Return the list: modules by file, both as in the list."""
    lines = (line.split(": ", 1) for line in LIST.read_text(encoding="utf-8").splitlines())
    return {file: set(modules.split()) for file, modules in lines}


@cache
def found() -> dict[str, set[str]]:
    """Return the same of the files that are here now."""
    files = {
        str(path.relative_to(ROOT / "tests")): internal_modules(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    return {
        file: {module.removeprefix("colabstage.") for module in modules} for file, modules in files.items() if modules
    }


def lines_of(modules: dict[str, set[str]]) -> list[str]:
    """Return lines of the list."""
    return [f"{file}: {' '.join(sorted(modules[file]))}" for file in sorted(modules) if modules[file]]


def less(one: dict[str, set[str]], other: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return what only the first has."""
    return {file: modules - other.get(file, set()) for file, modules in one.items()}


def test_no_other_test_reaches_behind_the_public_face() -> None:
    """Say it by the public face, or by a protocol that the page names."""
    assert lines_of(less(found(), listed())) == []


def test_the_list_only_shrinks() -> None:
    """What is no longer imported leaves the list: `python -m tests.test_imports` takes it out."""
    assert lines_of(less(listed(), found())) == []


if __name__ == "__main__":
    both = {file: modules & listed().get(file, set()) for file, modules in found().items()}
    LIST.write_text("".join(f"{line}\n" for line in lines_of(both)), encoding="utf-8")
