"""Count how many small faults, planted one at a time in the package, the tests notice.

    python -m scripts.mutants sample --count 200 --seed 1 > build/mutants.json
    python -m pytest -n 4 -p scripts.reached tests
    python -m scripts.mutants run build/mutants.json > build/outcomes.jsonl

Mutants are spread evenly over the lines of the package that can be changed. Each is run against the tests that call its
function, those of its own package first, until one fails. A test that fails without the mutant as
well is no evidence and is left out. `run` changes files of this checkout and puts them back: use a worktree.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "colabstage"
MOST_TESTS = 60
LIMIT_S = 150

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.Mod: ast.FloorDiv,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one expression or statement: the bytes `start:stop` of a file become `text`."""

    file: str
    line: int
    start: int
    stop: int
    before: str
    text: str


def variants(node: ast.AST) -> Iterator[str]:
    """Yield the source of what may stand in place of a node."""
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in _SWAPS:
            yield f"({ast.unparse(ast.Compare(left, [_SWAPS[type(op)]()], [right]))})"  # type: ignore[list-item]
        case ast.BoolOp(op, values):
            yield f"({ast.unparse(ast.BoolOp(_SWAPS[type(op)](), values))})"  # type: ignore[arg-type]
        case ast.UnaryOp(ast.Not(), operand):
            yield f"({ast.unparse(operand)})"
        case ast.BinOp(left, op, right) if type(op) in _SWAPS and not isinstance(left, ast.JoinedStr):
            yield f"({ast.unparse(ast.BinOp(left, _SWAPS[type(op)](), right))})"  # type: ignore[arg-type]
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Constant(int() | float() as value):
            yield repr(value + 1)
        case ast.IfExp(test, body, orelse):
            yield f"({ast.unparse(ast.IfExp(test, orelse, body))})"
        case ast.Return(value) if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            yield "return None"
        case ast.Expr(ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Break():
            yield "pass"


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk over what runs: no annotations, type imports, decorators, formatted strings."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list", "type_params"}:
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr):
                continue
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            yield node
            yield from nodes(node)


def mutants_of(path: Path) -> list[Mutant]:
    """Return all mutants of a module."""
    source = path.read_bytes()
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    found = []
    for node in nodes(ast.parse(source)):
        for text in variants(node):
            assert isinstance(node, ast.expr | ast.stmt)
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start = begins[node.lineno - 1] + node.col_offset
            stop = begins[node.end_lineno - 1] + node.end_col_offset
            before = source[start:stop].decode()
            found.append(Mutant(str(path.relative_to(ROOT)), node.lineno, start, stop, before, text))
    return found


def sample(paths: list[Path], count: int, seed: int) -> list[Mutant]:
    """Return mutants of lines at equal distances, one of each line's at random."""
    draw = random.Random(seed)
    by_line: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for path in paths:
        for mutant in mutants_of(path):
            by_line[mutant.file, mutant.line].append(mutant)
    lines = sorted(by_line)
    step = len(lines) / count
    first = draw.random() * step
    return [draw.choice(by_line[lines[int(first + step * number)]]) for number in range(count)]


def reached_functions(folder: Path) -> dict[str, dict[int, list[str]]]:
    """Return the tests by file and first line of the functions that they call, as `scripts.reached` noted them."""
    tests: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("reached-*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            test, places = json.loads(line)
            for file, first in places:
                tests[file][first].append(test)
    return tests


def tests_of(mutant: Mutant, reached: dict[int, list[str]]) -> list[str]:
    """Return the tests that call a mutant's function: those of its own package first, of each file in turn."""
    first = max((line for line in reached if 1 < line <= mutant.line), default=0)
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in reached.get(first, []):
        by_file[test.partition("::")[0]].append(test)
    package = f"tests/{Path(mutant.file).parts[1].removesuffix('.py')}"
    files = sorted(by_file, key=lambda file: (not file.startswith(package), len(by_file[file])))
    queues = [by_file[file] for file in files]
    longest = max(map(len, queues), default=0)
    return [queue[place] for place in range(longest) for queue in queues if place < len(queue)][:MOST_TESTS]


def run_tests(tests: list[str], limit_s: float) -> tuple[int | None, list[str]]:
    """Run tests until one fails; return pytest's exit code (`None` when out of time) and what failed."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
    try:
        done = subprocess.run(
            [*command, "-rfE", *tests], cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None, []
    lines = [line.split(" ", 1)[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return done.returncode, [line.partition(" - ")[0] for line in lines]


def judge(mutant: Mutant, tests: list[str]) -> tuple[str, str]:
    """Return `killed`, `timeout`, `survived` or `uncovered`, and the test that killed it."""
    if not tests:
        return "uncovered", ""
    path = ROOT / mutant.file
    source = path.read_bytes()
    deadline = time.monotonic() + LIMIT_S
    while tests:
        path.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.stop :])
        try:
            code, failed = run_tests(tests, max(deadline - time.monotonic(), 1))
        finally:
            path.write_bytes(source)
        if code is None:
            return "timeout", ""
        if code == 0:
            return "survived", ""
        if not failed or not any(name in tests for name in failed):
            return "killed", "collection"  # the package does not even import, or pytest itself ended
        if run_tests(failed, 60)[0] == 0:
            return "killed", failed[0]
        tests = [test for test in tests if test not in failed]
    return "uncovered", ""


def main() -> int:
    """Sample mutants, or run them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    sampling = commands.add_parser("sample")
    sampling.add_argument("--count", type=int, default=200)
    sampling.add_argument("--seed", type=int, default=1)
    sampling.add_argument("--under", default="", help="a package, for example layouts")
    running = commands.add_parser("run")
    running.add_argument("mutants", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "sample":
        chosen = sample(sorted((PACKAGE / arguments.under).rglob("*.py")), arguments.count, arguments.seed)
        print(json.dumps([asdict(mutant) for mutant in chosen], indent=1))
        return 0
    reached = reached_functions(ROOT / "build")
    for fields in json.loads(arguments.mutants.read_text("utf-8")):
        mutant = Mutant(**fields)
        outcome, test = judge(mutant, tests_of(mutant, reached[mutant.file]))
        print(json.dumps({**fields, "outcome": outcome, "test": test}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
