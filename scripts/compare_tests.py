"""Compare the names of a commit's tests with those of this checkout: `compare_tests.py COMMIT`.

`make test` and `make test-all` together run everything that pytest collects here, so a test that is missing here is run
by neither. `compare_tests.toml` says what became of tests that were removed on purpose. Any other missing test is an
error, and so is a replacement that does not exist.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
TRACED = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class Gone:
    """Names of tests, or prefixes of names, and what they became.

    Either `moved`, with the rest of each name unchanged; or the names or prefixes in `now`, with the reason.
    """

    old: tuple[str, ...]
    moved: str = ""
    now: tuple[str, ...] = ()
    why: str = ""

    def __post_init__(self) -> None:
        if not self.old or bool(self.moved) == bool(self.now) or bool(self.now) != bool(self.why):
            msg = f"An entry has `old`, and either `moved`, or `now` with `why`; got {self}."
            raise ValueError(msg)
        if self.moved and len(self.old) > 1:
            msg = f"What moved has one old beginning; got {self}."
            raise ValueError(msg)


def read_traced(path: Path) -> list[Gone]:
    """Return the entries of a file."""
    return [
        Gone(tuple(one.pop("old")), now=tuple(one.pop("now", ())), **one)
        for one in tomllib.loads(path.read_text(encoding="utf-8"))["gone"]
    ]


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
        timeout=600,
    )
    if done.returncode:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
        sys.exit(f"The tests of {folder} cannot be collected.")
    return {line for line in done.stdout.splitlines() if "::" in line}


def find_losses(old: set[str], new: set[str], traced: Sequence[Gone]) -> list[str]:
    """Return a line for each test of `old` that nothing in `new` replaces."""
    by_beginning = {beginning: entry for entry in traced for beginning in entry.old}
    losses: list[str] = []
    stands_for: dict[Gone, list[str]] = {}
    for name in sorted(old - new):
        beginning = max((one for one in by_beginning if name.startswith(one)), key=len, default=None)
        if beginning is None:
            losses.append(name)
        elif (entry := by_beginning[beginning]).moved:
            moved = entry.moved + name.removeprefix(beginning)
            losses += [] if moved in new else [f"{name}: moved to {moved}, which is not here"]
        else:
            stands_for.setdefault(entry, []).append(name)
    for entry, names in stands_for.items():
        found = {beginning: {name for name in new if name.startswith(beginning)} for beginning in entry.now}
        for beginning in (one for one in entry.now if not found[one]):
            losses.append(f"{names[0]}: shown by {beginning}, which is not here")
        if len(total := set[str]().union(*found.values())) < len(names):
            losses.append(f"{names[0]} and others: {len(total)} tests stand for {len(names)}")
    return losses


def main(commit: str) -> int:
    """Print which tests are missing and how many are new; returns 1 if any is missing."""
    traced = read_traced(TRACED)
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(before), commit], cwd=ROOT, check=True)
        try:
            old = names_in(before)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(before)], cwd=ROOT, check=True)
    new = names_in(ROOT)
    losses = find_losses(old, new, traced)
    print(*losses, sep="\n", end="\n" if losses else "")
    print(
        f"{len(old)} tests then, {len(new)} now. Of those then, {len(old & new)} are here by name; what became of "
        f"{len(old - new)} others is traced in {TRACED.name}: {len(losses) or 'nothing'} missing."
    )
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
