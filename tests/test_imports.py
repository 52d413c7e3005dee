"""Tests use the public names, and the protocols named in docs/architecture.md, so that all behind them can move."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
    return {f"colabstage.{name.replace('/', '.')}" for name in re.findall(r"`(\w+/\w+)`", section)}


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


def test_no_test_reaches_behind_the_public_face() -> None:
    """Use the public names, or a protocol that the page names."""
    paths = (ROOT / "tests").rglob("*.py")
    found = {str(path.relative_to(ROOT)): internal_modules(path.read_text(encoding="utf-8")) for path in paths}
    assert {file: modules for file, modules in found.items() if modules} == {}
