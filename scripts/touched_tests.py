"""Run the tests that a change can break: `python -m scripts.touched_tests FILE...`, or `changed` for git's list.

A file of the package stands for its sub-package: the tests of that and of everything above it are run, by the imports
that `tests/test_layers.py` sees, the nearest first. A test file stands for itself, a shared helper for all tests beside
it, a page for the tests of all pages, and a notebook for its own run. Long tests, and those that measure time, are left
to `make test`. If that has recorded durations, only as many tests are run as take a minute: the cheap and near ones; it
says how many are left out.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

from tests.test_layers import LAYERS, PACKAGE, imported_packages

ROOT = Path(__file__).resolve().parent.parent
DURATIONS = ROOT / "build/durations.jsonl"
MARKS = "not alone and not long and not slow"
PROCESSES = 3
MOST_SECONDS = 60.0
# Both ways to run a notebook; the `long` one is excluded by its mark.
MACHINES = ("practice Colab", "plain computer")
# The tests that check every page and build the site.
PAGES, SITE = "tests/test_docs.py", "tests/test_site.py"


@cache
def users_of() -> dict[str, set[str]]:
    """Return, for each sub-package, itself and all that import it, directly or through others."""
    uses: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE)
        packages = imported_packages(ast.parse(path.read_text(encoding="utf-8")), ["colabstage", *inside.parts[:-1]])
        uses.setdefault(inside.parts[0].removesuffix(".py"), set()).update(packages)

    def reaches(package: str, target: str, seen: set[str]) -> bool:
        if package == target:
            return True
        seen.add(package)
        return any(reaches(other, target, seen) for other in uses.get(package, ()) if other not in seen)

    # The public module imports everything, so its tests cover everything.
    below = [package for package in uses if not package.startswith("__")]
    return {package: {other for other in below if reaches(other, package, set())} for package in below}


def changed_files() -> list[str]:
    """Return the files that differ from main, and untracked ones."""
    base = subprocess.run(["git", "merge-base", "HEAD", "main"], cwd=ROOT, capture_output=True, text=True, check=False)
    commands = (["diff", "--name-only", base.stdout.strip() or "HEAD"], ["ls-files", "--others", "--exclude-standard"])
    outputs = (
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True) for command in commands
    )
    return [name for output in outputs for name in output.stdout.splitlines()]


def tests_that_name(path: Path) -> list[str]:
    """Return the tests of the project that mention or import a file."""
    words = {path.name, ".".join(path.with_suffix("").parts)} if path.parts[:-1] else {path.name}
    return [
        str(test.relative_to(ROOT))
        for test in (ROOT / "tests").glob("test_*.py")
        if any(word in test.read_text(encoding="utf-8") for word in words)
    ]


def places_of(files: list[str]) -> dict[str, int]:
    """Return the paths of the tests of these files, relative to the project's root, the nearest first.

    Each with its distance in layers; -1 for a test file that was given.
    """
    users = users_of()
    places: dict[str, int] = {}
    for file in files:
        path = Path(file)
        if path.parts[0] == "tests":
            place = path if path.name.startswith("test_") or len(path.parts) == 2 else path.parent
            places[str(place)] = -1
        elif path.parts[0] == "colabstage" and len(path.parts) > 1:
            package = path.parts[1].removesuffix(".py")
            for other in users.get(package, set()):
                distance = LAYERS[other] - LAYERS[package]
                for name in (f"tests/{other}", f"tests/test_{other}.py"):
                    if (ROOT / name).exists():
                        places[name] = min(distance, places.get(name, distance))
        elif path.suffix == ".ipynb":
            runs = (f"tests/notebooks/test_notebooks.py::test_runs[{path.stem}-{machine}]" for machine in MACHINES)
            places |= dict.fromkeys(["tests/notebooks/test_repository.py", *runs], 0)
        elif (ROOT / "tests" / path.parts[0]).is_dir():  # benchmarks, campaigns
            places.setdefault(f"tests/{path.parts[0]}", 0)
        else:
            named = (
                [PAGES, SITE] if path.suffix == ".md" else [SITE] if path.stem.startswith(("mkdocs", "site_")) else []
            )
            own = f"tests/test_{path.stem.lower()}.py"
            places |= dict.fromkeys([*named, *[own] * (ROOT / own).exists(), *tests_that_name(path)], 0)
    return dict(sorted(places.items(), key=lambda item: (item[1], item[0])))


def costs_of(record: Path) -> dict[str, float]:
    """Return the seconds of each test in the last run, including its share of fixtures."""
    costs: Counter[str] = Counter()
    if record.exists():
        for line in record.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            if one["kind"] in ("setup", "call", "teardown"):
                costs[one["name"]] += one["wall_s"]
    return dict(costs)


def too_many(places: dict[str, int], costs: dict[str, float], most_s: float) -> list[str]:
    """Return the tests at these paths that do not fit into `most_s` seconds: the expensive and distant ones first."""
    order: list[tuple[float, str]] = []
    for name, cost in costs.items():
        distances = [
            layers for place, layers in places.items() if name == place or name.startswith((f"{place}/", f"{place}::"))
        ]
        if distances and min(distances) >= 0:
            order.append((cost * (1 + min(distances)), name))
    left = most_s
    over = []
    for _, name in sorted(order):
        left -= costs[name]
        over += [name] if left < 0 else []
    return over


def main(words: list[str]) -> int:
    """Run them, and print which."""
    files = changed_files() if words == ["changed"] else words
    places = {place: layers for place, layers in places_of(files).items() if (ROOT / place.partition("::")[0]).exists()}
    if not places:
        print(f"No tests belong to {', '.join(files) or 'no change'}.")
        return 0
    print(f"Tests of {' '.join(places)}: what is quick of them; make test has the rest.", flush=True)
    over = too_many(places, costs_of(DURATIONS), MOST_SECONDS * PROCESSES)
    if over:
        print(f"{len(over):,} of them would take longer than a minute together, and are left out.", flush=True)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-n", str(PROCESSES), "--dist", "worksteal"]
    command += ["-m", MARKS, *(f"--deselect={name}" for name in over), *places]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
