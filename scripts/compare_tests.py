"""Compare the names of the tests of a commit with those of this checkout: `compare_tests.py COMMIT`.

What `make test` and `make test-all` run together is everything that pytest collects here, so a test that is missing
here is run by neither. Names that changed on purpose stand in RENAMED.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Old name, or the beginning of several, and what it is now.
RENAMED: dict[str, str] = {}


def names_in(folder: Path) -> set[str]:
    """Return the names of the tests that pytest collects in a checkout."""
    command = [sys.executable, "-P", "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
    # The checkout's own packages come before those that are installed.
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
        sys.exit(f"The tests of {folder} cannot be collected.")
    return {line for line in done.stdout.splitlines() if "::" in line}


def renamed(name: str) -> str:
    """Return what a test of old is called now."""
    old = max((old for old in RENAMED if name.startswith(old)), key=len, default=None)
    return name if old is None else RENAMED[old] + name.removeprefix(old)


def main(commit: str) -> int:
    """Print what is missing and how many are new; returns 1 where something is missing."""
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(before), commit], cwd=ROOT, check=True)
        try:
            old = {renamed(name) for name in names_in(before)}
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(before)], cwd=ROOT, check=True)
    new = names_in(ROOT)
    missing = sorted(old - new)
    print(*missing, sep="\n")
    print(f"{len(old)} tests then, {len(new)} now: {len(missing)} are missing, {len(new - old)} are new.")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
