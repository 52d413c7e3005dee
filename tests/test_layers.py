"""What every module keeps to: imports only go downwards, and siblings do not import each other; only one removes files;
every wait has a deadline; messages keep to the word list."""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.test_words import complaints, messages

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
# Methods that block until something happens if they get no arguments.
BLOCKING = {"acquire", "communicate", "exception", "get", "join", "recv", "result", "wait"}
COMMANDS = {"call", "check_call", "check_output", "run"}

ENDED_BY = {
    "a wait before it": """
        diagnose/machine_facts.inspect_machine io/pipeline.results machine/drive_attributes.wait_uploaded
        machine/mounts.ask_children machine/watched._in_caller pack/shards.run_tasks pack/shards._loss_of
        runs/saver.wait sources/buckets._result sources/identity.check_freshness stage/source.stop_work
        stage/source.agree
        stage/streaming.start stage/streaming.splits stage/streaming.wait_published stage/streaming.wait
        stage/streaming._show""",
    "deadlines of what runs there": """
        io/pipeline.close io/pipeline.each runs/run.save runs/run._is_saved sources/arriving._copied
        stage/shards._publishing stage/shards.begin""",
    "a watch over the mount": "machine/watched.watch",
    "the pipeline that calls it": "sources/members.write",
    "nothing: the idle thread of a pool, and no wait": "cli/command.show io/pipeline._run",
}


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


def is_unbounded(call: ast.Call) -> bool:
    """Whether a call could block for ever."""
    function, named = call.func, {one.arg for one in call.keywords}
    if isinstance(function, ast.Name):
        return function.id == "wait" and len(call.args) < 2 and "timeout" not in named
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Name) and function.value.id == "subprocess":
        return function.attr in COMMANDS and "timeout" not in named
    # Locks of the kernel: for files, and for ranges of them.
    if function.attr in ("flock", "lockf", "fcntl"):
        shown = ast.unparse(call)
        return "SETLKW" in shown or (function.attr != "fcntl" and "LOCK_NB" not in shown and "LOCK_UN" not in shown)
    return function.attr in BLOCKING and not call.args and not call.keywords


def unbounded(path: Path, nodes: Collection[ast.AST]) -> Iterator[str]:
    """The functions of a module that could wait for ever."""
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    for call in [node for node in nodes if isinstance(node, ast.Call) and is_unbounded(node)]:
        around = [one for one in functions if one.lineno <= call.lineno <= (one.end_lineno or 0)]
        # The innermost comes last.
        yield f"{path.with_suffix('')}.{around[-1].name if around else ''}"


def violations(path: Path, tree: ast.Module, nodes: Collection[ast.AST]) -> list[str]:
    """The rules that a module, at `path` inside the package, breaks."""
    package = path.parts[0].removesuffix(".py")
    if package not in LAYERS:
        return [f"{path}: '{package}' is in no layer yet; add it to LAYERS"]
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
    """A wait that is new gets a deadline, a watch, or a line above that says what ends it."""
    paths, broken, waits = sorted(PACKAGE.rglob("*.py")), list[str](), set[str]()
    assert len(paths) > 100
    for path in paths:
        tree, where = ast.parse(path.read_text("utf-8")), path.relative_to(PACKAGE)
        nodes = list(ast.walk(tree))
        broken += violations(where, tree, nodes)
        waits.update(unbounded(where, nodes))
    assert broken == []
    assert sorted(waits) == sorted(name for names in ENDED_BY.values() for name in names.split())


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
