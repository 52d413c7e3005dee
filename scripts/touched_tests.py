"""Run the tests that a change can break: `python -m scripts.touched_tests FILE...`, or `changed` for what git says.

A file of the package stands for its sub-package: run are the tests of that and of everything above it, by the imports
that `tests/test_floors.py` sees, the nearest first. A test file stands for itself, and what tests share for all tests
beside it. Tests that take long, or measure time, are left to `make test`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tests.test_floors import FLOORS, PACKAGE, imported_rooms

ROOT = Path(__file__).resolve().parent.parent
MARKS = "not alone and not long and not slow"


def users_of() -> dict[str, set[str]]:
    """Return, for each sub-package, itself and all that import it, directly or through others."""
    uses: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE)
        rooms = imported_rooms(ast.parse(path.read_text(encoding="utf-8")), ["colabstage", *inside.parts[:-1]])
        uses.setdefault(inside.parts[0].removesuffix(".py"), set()).update(rooms)

    def reaches(room: str, target: str, seen: set[str]) -> bool:
        if room == target:
            return True
        seen.add(room)
        return any(reaches(other, target, seen) for other in uses.get(room, ()) if other not in seen)

    # The public face imports everything, and all of its tests are tests of what it shows.
    below = [room for room in uses if not room.startswith("__")]
    return {room: {other for other in below if reaches(other, room, set())} for room in below}


def changed_files() -> list[str]:
    """Return what differs from main, and what git does not know yet."""
    base = subprocess.run(["git", "merge-base", "HEAD", "main"], cwd=ROOT, capture_output=True, text=True, check=False)
    commands = (["diff", "--name-only", base.stdout.strip() or "HEAD"], ["ls-files", "--others", "--exclude-standard"])
    outputs = (
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True) for command in commands
    )
    return [name for output in outputs for name in output.stdout.splitlines()]


def places_of(files: list[str]) -> list[str]:
    """Return the places of the tests of these files, given from the root of the project: the nearest first."""
    users = users_of()
    places: dict[str, int] = {}
    for file in files:
        path = Path(file)
        if path.parts[0] == "tests":
            place = path if path.name.startswith("test_") or len(path.parts) == 2 else path.parent
            places.setdefault(str(place), -1)
        elif path.parts[0] == "colabstage" and len(path.parts) > 1:
            room = path.parts[1].removesuffix(".py")
            for other in users.get(room, set()):
                distance = FLOORS[other] - FLOORS[room]
                for name in (f"tests/{other}", f"tests/test_{other}.py"):
                    if (ROOT / name).exists():
                        places[name] = min(distance, places.get(name, distance))
        elif (ROOT / "tests" / path.parts[0]).is_dir():  # benchmarks, campaigns, notebooks
            places.setdefault(f"tests/{path.parts[0]}", 0)
        elif (beside := ROOT / f"tests/test_{path.stem.lower()}.py").exists():
            places.setdefault(str(beside.relative_to(ROOT)), 0)
    return sorted(places, key=lambda place: (places[place], place))


def main(words: list[str]) -> int:
    """Run them, and say which."""
    files = changed_files() if words == ["changed"] else words
    places = [place for place in places_of(files) if (ROOT / place).exists()]
    if not places:
        print(f"No tests belong to {', '.join(files) or 'no change'}.")
        return 0
    print(f"Tests of {' '.join(places)}: what is quick of them; make test has the rest.", flush=True)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-n", "3", "--dist", "worksteal", "-m", MARKS, *places]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
