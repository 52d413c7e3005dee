"""Tests use the public names, and the protocols named in docs/architecture.md, so that everything behind them can move.

`tests/imports.txt` lists the files that still import internal modules, each with these modules. The list only shrinks:
a module that a file no longer imports has to be removed.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("imports.txt")
FACE = {"colabstage", "colabstage.errors", "colabstage.options", "colabstage.transforms"}
# Also in scripts that tests run.
_IMPORTED = re.compile(
    r"^\s*(?:from|import) (colabstage(?:\.\w+)*)(?: import (?:\(([^)]*)\)|([^\n;(]*)))?", re.MULTILINE
)
_PATCHED = re.compile(r"""["'](colabstage(?:\.\w+)+)["']""")


def protocols() -> set[str]:
    """Return the modules in the page's section on what tests may import."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.partition("\n## What tests may import\n")[2].partition("\n## ")[0]
    return {f"colabstage.{name.replace('/', '.')}" for name in re.findall(r"^- `([\w/]+)`", section, re.MULTILINE)}


def module_of(name: str) -> str:
    """Return the module of a dotted name; for one in the package's root, "colabstage" itself."""
    parts = name.split(".")
    while len(parts) > 1:
        place = ROOT.joinpath(*parts)
        if place.with_suffix(".py").exists() or (place / "__init__.py").exists():
            break
        parts.pop()
    return ".".join(parts)


def internal_modules(text: str) -> set[str]:
    """Return the internal modules that a test's text imports, or names as the target of a patch."""
    names = {name for found in _IMPORTED.findall(text) for name in names_of(*found)} | {*_PATCHED.findall(text)}
    return {module_of(name) for name in names} - FACE - protocols()


def names_of(module: str, *imported: str) -> list[str]:
    """Return the dotted names in an import of one or several names from a module."""
    return [f"{module}.{name.split()[0]}" for name in ",".join(imported).split(",") if name.strip()] or [module]


def listed() -> dict[str, set[str]]:
    """Return the listed modules by file."""
    lines = (line.split(": ", 1) for line in LIST.read_text(encoding="utf-8").splitlines())
    return {file: set(modules.split()) for file, modules in lines}


@cache
def found() -> dict[str, set[str]]:
    """Return the modules that the present files import, in the same form."""
    files = {
        str(path.relative_to(ROOT / "tests")): internal_modules(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    return {
        file: {module.removeprefix("colabstage.") for module in modules} for file, modules in files.items() if modules
    }


def lines_of(modules: dict[str, set[str]]) -> list[str]:
    """Return the list's lines."""
    return [f"{file}: {' '.join(sorted(modules[file]))}" for file in sorted(modules) if modules[file]]


def less(one: dict[str, set[str]], other: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return what only the first one contains."""
    return {file: modules - other.get(file, set()) for file, modules in one.items()}


def test_no_other_test_reaches_behind_the_public_face() -> None:
    """Use the public names, or a protocol that the page names."""
    assert lines_of(less(found(), listed())) == []


def test_the_list_only_shrinks() -> None:
    """A module that is no longer imported is removed: `python -m tests.test_imports` does it."""
    assert lines_of(less(listed(), found())) == []


if __name__ == "__main__":
    both = {file: modules & listed().get(file, set()) for file, modules in found().items()}
    LIST.write_text("".join(f"{line}\n" for line in lines_of(both)), encoding="utf-8")
