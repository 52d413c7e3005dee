"""Run the tests on every Python that `make test` or `make test-all` has set up, and add up the results.

`make test` covers all behaviour, once. `make test-all` adds longer forms, other environments and other versions. Most
tests run in parallel; those that measure the machine run alone afterwards.

A few failed tests are tried once more, alone, because many wait for other processes on a machine that may be busy.
Those that then pass are named in the last lines, because each shows a fault of the test or a rare one of colabstage,
and are recorded in `build/second_tries.txt`: the second time this happens to a test, the run fails.

With `--until`, which `.ci/run` gives, nothing goes on beyond that moment: what still runs then is interrupted early
enough for pytest to tell what failed so far, and the run fails.

What every test and fixture cost is written to `build/durations.jsonl`; `make slowest` reads it.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import psutil

from colabstage.machine.mounts import list_mounts, unmount_lazily

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
DURATIONS = ROOT / "build/durations.jsonl"
SECOND_TRIES = ROOT / "build/second_tries.txt"
# Far above what a pass takes; a test that hangs is stopped long before, by pytest's own timeout.
PASS_TIMEOUT_S = 1500
# Reserved at the end of the time: for pytest to report when it is interrupted, and for tests that run alone.
TELL_S = 15
ALONE_S = 60
NO_TESTS = 5  # pytest's exit code when the marks select nothing
# More failures than this are not caused by a busy machine.
MOST_TRIED_AGAIN = 4


@dataclass(frozen=True, slots=True)
class Setup:
    """A Python environment: its path, what runs there, and the marks of what does not."""

    title: str
    folder: str
    missing: str = ""
    alone: bool = False
    hint: str = ""


FIRST = Setup(f"Python {sys.version_info.major}.{sys.version_info.minor}", ".venv", alone=True)
# What `make test-all` adds, if it is set up.
OTHERS = (
    Setup(
        "Python 3.13 without torch",
        ".venv313",
        missing=" and not torch and not gpu",
        hint="There is no Python 3.13 here, so nothing was tested on it.",
    ),
    Setup("Python 3.11 with the versions of Colab's image", ".venv-colab"),
)
ADDED = (
    "`make test-all` adds Python 3.13, the versions of Colab's image, the second machine of each notebook, JAX, and "
    "long forms of tests that ran here."
)
LEFT_OUT = "`make test` leaves out Python 3.13, the versions of Colab's image, JAX, and the tests marked `long`."


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
        """Tell whether tests ran and all passed."""
        return self.passed > 0 and not (self.failed or self.errors or self.broken)


def read_report(path: Path, exit_code: int) -> tuple[Outcome, tuple[str, ...]]:
    """Return the results that a pass wrote as JUnit XML, and the names of failed tests."""
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
    # A pass that failed without a failed test (for example, interrupted) does not count as passed either.
    broken = int(exit_code not in (0, NO_TESTS) and not failed + errors)
    return Outcome(max(total - failed - errors - skipped, 0), failed, errors, skipped, broken), names


@contextmanager
def own_folder() -> Iterator[Path]:
    """Provide a folder for everything that a pass writes, and leave nothing behind: no process, mount or file.

    Killed tests leave running clients and dead mounts; in the folder that pytest shares among runs, these make a later
    run fail when it cleans up.
    """
    folder = Path(tempfile.mkdtemp(prefix="tests-"))
    try:
        yield folder
    finally:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and any(f"{folder}/" in part for part in process.cmdline()):
                    process.kill()
        # The latest first, because one may be mounted inside another.
        for mount in reversed([mount for mount in list_mounts() if mount.mountpoint.is_relative_to(folder)]):
            print(f"\nA test left a mount: {mount.mountpoint}", flush=True)
            unmount_lazily(mount.mountpoint)
        shutil.rmtree(folder, ignore_errors=True)


def run_pytest(
    python: Path, folder: Path, options: list[str], until: float = math.inf
) -> tuple[Outcome, tuple[str, ...]]:
    """Run tests, with reports, pytest's memory of failures and the tests' files in `folder`; output goes to ours.

    Nothing runs beyond `until`, on the clock of `time.monotonic`.
    """
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-P", "-m", "pytest", "-q", f"--junitxml={report}", "-o", f"cache_dir={folder}/cache"]
    # A short name: the sockets that tests make below it may have 107 characters in all.
    command += [f"--basetemp={folder}/t"]
    with subprocess.Popen([*command, *options], cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        start = time.monotonic()
        stopped = False
        try:
            exit_code = process.wait(max(min(PASS_TIMEOUT_S, until - TELL_S - start), 0))
        except subprocess.TimeoutExpired:
            print(f"\nStopped after {time.monotonic() - start:.0f} s.", flush=True)
            process.send_signal(signal.SIGINT)
            exit_code, stopped = 1, True
            with suppress(subprocess.TimeoutExpired):
                process.wait(TELL_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    outcome, failed = read_report(report, exit_code)
    if stopped:
        print(f"Failed by then: {', '.join(failed) or 'nothing'}", flush=True)
    return outcome, failed


def run_pass(python: Path, selection: list[str], side_by_side: int = 0, until: float = math.inf) -> Outcome:
    """Run the tests that pytest's options select, by so many processes, and a few that failed once more, by one."""
    with own_folder() as folder:
        # A process without tests takes some from another, because a few tests take a hundred times as long as most.
        processes = ["-n", str(side_by_side), "--dist", "worksteal", "-p", "tests.longest_first"]
        first, failed = run_pytest(python, folder, [*selection, *processes], until)
        if first.broken or not 0 < len(failed) <= MOST_TRIED_AGAIN or time.monotonic() > until - 2 * TELL_S:
            return first
        print(f"\n== again, alone: {', '.join(failed)}", flush=True)
        second, again = run_pytest(
            python, folder, [*selection, "--last-failed", "--last-failed-no-failures=none"], until
        )
    return settle(first, failed, second, again)


def settle(first: Outcome, failed: tuple[str, ...], second: Outcome, again: tuple[str, ...]) -> Outcome:
    """Return the outcome of a pass whose `failed` tests were tried a second time, when `again` failed."""
    passed = tuple(name for name in failed if name not in again)
    if second.broken or second.passed != len(passed):
        return first  # not just those, and not all of those, were tried
    return Outcome(first.passed + second.passed, second.failed, second.errors, first.skipped, first.broken, passed)


def run_setup(setup: Setup, *, everything: bool, until: float = math.inf) -> Outcome:
    """Run what is to run in one environment: side by side, then alone."""
    python = ROOT / setup.folder / "bin/python"
    options = ["-p", "tests.recorder", "--record", str(DURATIONS)] if setup is FIRST else []
    options += ["--hypothesis-profile=long"] if everything and setup is FIRST else []
    marks = ("" if everything and setup is FIRST else " and not long") + setup.missing
    # Twice the number of cores, because tests wait half of the time; more than four only compete for the disk.
    workers = min(2 * len(os.sched_getaffinity(0)), 4)
    print(f"\n== {setup.title}: side by side", flush=True)
    outcome = run_pass(python, [*options, "-m", f"not alone{marks}", "tests"], workers, until - ALONE_S)
    if setup.alone:
        # Given all files, pytest would also import those without such tests, and their libraries.
        files = [
            str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.alone" in path.read_text("utf-8")
        ]
        print(f"\n== {setup.title}: alone", flush=True)
        outcome += run_pass(python, [*options, "-m", f"alone{marks}", *files], until=until)
    return outcome


def had_before(shaky: tuple[str, ...], record: Path) -> list[str]:
    """Record the tests that passed only at the second try; return those that also did in an earlier run."""
    known = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("a", encoding="utf-8") as out:
        out.writelines(f"{name}\n" for name in shaky)
    return [name for name in shaky if name in known]


def main() -> int:
    """Run everything, print the totals, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--all", action="store_true", help="what `make test-all` runs")
    parser.add_argument("--until", type=float, metavar="TIME", help="seconds since 1970, after which nothing runs")
    arguments = parser.parse_args()
    everything: bool = arguments.all
    start = time.monotonic()
    until = math.inf if arguments.until is None else start + arguments.until - time.time()
    DURATIONS.unlink(missing_ok=True)
    outcome = run_setup(FIRST, everything=everything, until=until)
    for setup in OTHERS if everything else ():
        if (ROOT / setup.folder / ".installed").exists():
            outcome += run_setup(setup, everything=True, until=until)
        else:
            print(f"\n{setup.hint or f'{setup.title}: not set up here.'}", flush=True)
    repeated = had_before(outcome.shaky, SECOND_TRIES)
    for name in outcome.shaky:
        again = f", as in an earlier run ({SECOND_TRIES}): find the cause" if name in repeated else ""
        print(f"\nPassed only when it was tried again, alone{again}: {name}", flush=True)
    broken = f", {outcome.broken} passes broken" if outcome.broken else ""
    print(f"\n{LEFT_OUT if everything else ADDED}")
    print(
        f"{outcome.passed} passed, {outcome.failed} failed, {outcome.errors} errors, {outcome.skipped} skipped"
        f"{broken} in {time.monotonic() - start:.0f} s"
    )
    return 0 if outcome.good and not repeated else 1


if __name__ == "__main__":
    sys.exit(main())
