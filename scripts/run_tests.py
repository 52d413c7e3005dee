"""Run the test-suite on every Python that `make test` has set up, and add the outcomes up in one last line.

Most tests run side by side; those that measure time run alone after them, on the first Python only. A few tests that
fail are tried once more, alone: many wait for other processes, on a machine that may be busy with something else. Those
that pass then are named in the last lines, because each is a fault of the test, or a rare one of ours.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
# Far above what a pass takes; a test that hangs is stopped long before, by pytest's own timeout.
PASS_TIMEOUT_S = 1500
NO_TESTS = 5  # pytest's exit code when the marks select nothing
# More failures than these have a reason that is not the machine's.
MOST_TRIED_AGAIN = 4
# Where versions of Python differ: files, archives, threads and processes. Both Pythons have half an hour together.
ON_ANOTHER_PYTHON = [f"tests/{name}" for name in ("machine", "trees", "images", "layouts", "h5", "pack", "stage")]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Numbers of tests by outcome; `broken` counts passes that ended without a report.

    `shaky`: names of tests that failed, and passed when they were tried again. They count as passed.
    """

    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    broken: int = 0
    shaky: tuple[str, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.passed + other.passed,
            self.failed + other.failed,
            self.errors + other.errors,
            self.skipped + other.skipped,
            self.broken + other.broken,
            self.shaky + other.shaky,
        )

    @property
    def good(self) -> bool:
        """Whether tests ran and all went well."""
        return self.passed > 0 and not (self.failed or self.errors or self.broken)


def read_report(path: Path, exit_code: int) -> tuple[Outcome, tuple[str, ...]]:
    """The outcome that a pass wrote as JUnit XML, and the names of the tests that failed."""
    try:
        suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return Outcome(broken=1), ()
    total, failed, errors, skipped = (
        sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    cases = [case for suite in suites for case in suite.iter("testcase")]
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    names = tuple(dict.fromkeys(f"{case.get('classname')}::{case.get('name')}" for case in bad))
    # A pass that failed without a failed test (interrupted, for example) is not a good one either.
    broken = int(exit_code not in (0, NO_TESTS) and not failed + errors)
    return Outcome(max(total - failed - errors - skipped, 0), failed, errors, skipped, broken), names


def run_pytest(python: Path, folder: Path, options: list[str]) -> tuple[Outcome, tuple[str, ...]]:
    """Run tests, with reports and pytest's memory of failures in `folder`; their output goes to ours."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-P", "-m", "pytest", "-q", f"--junitxml={report}", "-o", f"cache_dir={folder}/cache"]
    with subprocess.Popen([*command, *options], cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            exit_code = process.wait(PASS_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            print(f"Stopped after {PASS_TIMEOUT_S} s.", flush=True)
            exit_code = 1
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return read_report(report, exit_code)


def run_pass(python: Path, selection: list[str], side_by_side: int = 0) -> Outcome:
    """Run the tests that pytest's options select, by so many processes, and a few that failed once more, by one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A process that has run out of tests takes some of another's: a few tests take a hundred times as long as most.
        processes = ["-n", str(side_by_side), "--dist", "worksteal"]
        first, failed = run_pytest(python, folder, [*selection, *processes])
        if first.broken or not 0 < len(failed) <= MOST_TRIED_AGAIN:
            return first
        print(f"\n== again, alone: {', '.join(failed)}", flush=True)
        second, again = run_pytest(python, folder, [*selection, "--last-failed", "--last-failed-no-failures=none"])
    return settle(first, failed, second, again)


def settle(first: Outcome, failed: tuple[str, ...], second: Outcome, again: tuple[str, ...]) -> Outcome:
    """The outcome of a pass whose `failed` tests were tried a second time, when `again` failed."""
    passed = tuple(name for name in failed if name not in again)
    if second.broken or second.passed != len(passed):
        return first  # not just those, and not all of those, were tried
    return Outcome(first.passed + second.passed, second.failed, second.errors, first.skipped, first.broken, passed)


def run_side_by_side(python: Path, title: str, marks: str, places: list[str]) -> Outcome:
    """What `marks` select, below `places`, of the tests that do not mind others beside them."""
    # One more than cores, so that tests that wait do not hold up the others; more than four only fight for the disk.
    workers = min(len(os.sched_getaffinity(0)) + 1, 4)
    print(f"\n== {title}: side by side", flush=True)
    return run_pass(python, ["-m", marks, *places], workers)


def run_alone(python: Path, title: str) -> Outcome:
    """The tests that measure time."""
    # Of all files, pytest would import those as well that have none of them, and their libraries.
    files = [
        str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.alone" in path.read_text("utf-8")
    ]
    print(f"\n== {title}: alone", flush=True)
    return run_pass(python, ["-m", "alone", *files])


def main() -> int:
    """Run everything, print the sum, return the exit code."""
    start = time.monotonic()
    first, other = ROOT / ".venv/bin/python", ROOT / ".venv313/bin/python"
    outcome = run_side_by_side(first, "Python 3.11", "not alone", ["tests"]) + run_alone(first, "Python 3.11")
    if (ROOT / ".venv313/.installed").exists():
        title, marks = "Python 3.13 without torch", "not alone and not torch and not gpu and not slow"
        outcome += run_side_by_side(other, title, marks, ON_ANOTHER_PYTHON)
    else:
        print("\nThere is no Python 3.13 here, so what needs no torch was tested on 3.11 only.", flush=True)
    broken = f", {outcome.broken} passes broken" if outcome.broken else ""
    for name in outcome.shaky:
        print(f"\nPassed only when it was tried again, alone: {name}", flush=True)
    print(
        f"\n{outcome.passed} passed, {outcome.failed} failed, {outcome.errors} errors, {outcome.skipped} skipped"
        f"{broken} in {time.monotonic() - start:.0f} s"
    )
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
