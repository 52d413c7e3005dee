"""Every wait has a deadline: calls that could block for ever are listed here, with what ends them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import colabstage

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def _is_unbounded(call: ast.Call) -> bool:
    function, named = call.func, {one.arg for one in call.keywords}
    if isinstance(function, ast.Name):
        return function.id == "wait" and len(call.args) < 2 and "timeout" not in named
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Name) and function.value.id == "subprocess":
        return function.attr in COMMANDS and "timeout" not in named
    # Locks of the kernel: for files, and for ranges of them.
    shown = ast.unparse(call)
    is_lock = function.attr in ("flock", "lockf") and "LOCK_NB" not in shown and "LOCK_UN" not in shown
    return is_lock or "SETLKW" in shown or (function.attr in BLOCKING and not call.args and not call.keywords)


def _unbounded(node: ast.AST, where: str, name: str = "") -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        name = node.name
    if isinstance(node, ast.Call) and _is_unbounded(node):
        yield f"{where}.{name}"
    for child in ast.iter_child_nodes(node):
        yield from _unbounded(child, where, name)


def test_every_wait_has_a_deadline() -> None:
    """A call that is new here gets a deadline, a watch, or a line above that says what ends it."""
    package = Path(colabstage.__file__).parent
    found = {
        one
        for path in package.rglob("*.py")
        for one in _unbounded(ast.parse(path.read_text("utf-8")), path.relative_to(package).with_suffix("").as_posix())
    }
    assert sorted(found) == sorted(name for names in ENDED_BY.values() for name in names.split())
