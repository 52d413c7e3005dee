"""What every module keeps to: imports only go downwards, and siblings do not import each other; only one removes files;
messages keep to the word list."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.test_words import complaints, messages

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

PACKAGE = Path(__file__).resolve().parent.parent / "colabstage"
LAYERS = {
    **dict.fromkeys(("errors", "io"), 0),
    **dict.fromkeys(("machine", "trees", "images"), 1),
    "h5": 2,
    **dict.fromkeys(("sources", "layouts"), 3),
    **dict.fromkeys(("pack", "load"), 4),
    "stage": 5,
    **dict.fromkeys(("diagnose", "runs"), 6),
    **dict.fromkeys(("cli", "notebook"), 7),
    **dict.fromkeys(("options", "transforms"), 9),  # the public modules may import everything
    **dict.fromkeys(("__init__", "__main__"), 10),
}
# A training saves and logs values under names that its author chooses.
NAMED_BY_CALLERS = {"resumable", "step", "log"}
MAY_PRINT = {"cli", "notebook"}
# The simulated Drive is a file system: whatever it removes, a user asked it to. The demo clears its own temporary
# machine, and fsspec's stores contain no names of ours.
MAY_REMOVE = {"io/workspace.py", "sources/buckets.py"}
REMOVE = {"unlink", "rmtree", "rmdir", "truncate", "ftruncate", "rename", "renames", "removedirs"}


def removals(nodes: Collection[ast.AST]) -> Iterator[str]:
    """The calls that remove, empty or replace a file."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr == "O_TRUNC":
            yield node.attr
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, of_os = node.func.attr, isinstance(node.func.value, ast.Name) and node.func.value.id in {"os", "shutil"}
        one_path = name == "replace" and len(node.args) == 1 and not node.keywords
        if name in REMOVE or one_path or (of_os and name in {"replace", "remove", "move"}):
            yield name


def imported_packages(nodes: Collection[ast.AST], parents: list[str]) -> set[str]:
    """The packages (sub-packages, or modules of the root) that a module imports anywhere."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])
            start = base if node.level else node.module or ""
            names |= {f"{start}.{alias.name}" for alias in node.names}
    inside = [name.split(".") for name in names if name.split(".")[0] == "colabstage"]
    return {parts[1] if len(parts) > 1 and parts[1] in LAYERS else "__init__" for parts in inside}


def tunnels(tree: ast.Module, nodes: Collection[ast.AST]) -> list[str]:
    """Public functions and methods that take `**kwargs` whose names neither a type checker nor a person can see."""
    bodies = [tree.body, *(node.body for node in nodes if isinstance(node, ast.ClassDef))]
    functions = [node for body in bodies for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    public = [node for node in functions if node.args.kwarg and not node.name.startswith("_")]
    return [node.name for node in public if not is_spelt_out(node)]


def is_spelt_out(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether `**arguments: Unpack[...]` names the arguments, and `public` refuses all others and shows them."""
    kind = node.args.kwarg.annotation if node.args.kwarg else None
    named = isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Unpack"
    return named and any(ast.unparse(one).startswith("public(") for one in node.decorator_list)


def violations(path: Path, text: str) -> list[str]:
    """The rules that a module, at `path` inside the package, breaks."""
    package, tree = path.parts[0].removesuffix(".py"), ast.parse(text)
    if package not in LAYERS:
        return [f"{path}: '{package}' is in no layer yet; add it to LAYERS"]
    nodes = list(ast.walk(tree))
    above = {other for other in imported_packages(nodes, ["colabstage", *path.parts[:-1]]) if other != package}
    bad = sorted(other for other in above if LAYERS[other] >= max(LAYERS[package], 1))
    found = [f"{path}: layer {LAYERS[package]} imports '{other}' of layer {LAYERS[other]}" for other in bad]
    named = NAMED_BY_CALLERS if package == "runs" else set()
    found += [f"{path}: public '{name}' takes **kwargs" for name in tunnels(tree, nodes) if name not in named]
    found += [f"{path}: '{phrase}' is not in our words" for phrase in complaints(" ¶ ".join(messages(nodes)))]
    if str(path) not in MAY_REMOVE:
        found += [f"{path}: {call} is for io/workspace" for call in removals(nodes)]
    prints = any(isinstance(node, ast.Name) and node.id == "print" for node in nodes)
    return [*found, f"{path}: prints"] if prints and package not in MAY_PRINT else found


def test_no_module_breaks_a_rule() -> None:
    """No module breaks a rule."""
    modules = sorted(PACKAGE.rglob("*.py"))
    assert len(modules) > 100
    assert [line for path in modules for line in violations(path.relative_to(PACKAGE), path.read_text("utf-8"))] == []


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("path.unlink()", ["unlink"]),
        ("a.rename(b)", ["rename"]),
        ("a.replace(b)", ["replace"]),
        ("os.truncate(a, 0)", ["truncate"]),
        ("os.open(a, os.O_TRUNC)", ["O_TRUNC"]),
        ("text.replace('a', 'b'); items.remove(1); replace(record, seal={}); stamp.replace(tzinfo=None)", []),
    ],
)
def test_a_planted_call_is_noticed(code: str, calls: list[str]) -> None:
    """Whatever removes, empties or replaces a file."""
    assert list(removals([*ast.walk(ast.parse(code))])) == calls


def test_the_page_on_architecture_names_modules_that_are_there() -> None:
    """Each module, or name in a module, that it mentions by path is in the package."""
    page = PACKAGE.parent / "docs" / "architecture.md"
    named = set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+)(?:\.\w+)?`", page.read_text("utf-8")))
    ours = {name for name in named if (PACKAGE / name.partition("/")[0]).is_dir()}
    assert len(ours) >= 40
    assert [
        name for name in sorted(ours) if not (PACKAGE / f"{name}.py").exists() and not (PACKAGE / name).is_dir()
    ] == []
