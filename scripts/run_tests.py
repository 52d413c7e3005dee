"""Run the tests on every Python that `make test` or `make test-all` has set up.

`make test` covers all behaviour, once. `make test-all` adds longer forms, other environments and other versions.

A few failed tests are tried a second time, alone, because many wait for other processes on a machine that may be busy.
pytest has named them in its first summary: each that then passes shows a fault of the test or a rare one of colabstage.

Where memory has room they write there: to wait for a disk takes longer than to make a pack of a few images.
Tests marked `disk`, and the longer forms of `make test-all`, write to the disk.

With `--until`, which `.ci/run` gives, nothing goes on beyond that moment: what still runs then is interrupted early
enough for pytest to report what failed so far, and the run fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from colabstage.machine.mounts import list_mounts, unmount_lazily

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
# Far above what a pass takes; a test that hangs is stopped long before, by pytest's own timeout.
PASS_TIMEOUT_S = 1500
# Reserved at the end of the time: for pytest to report when it is interrupted.
REPORT_S = 15
# A folder in memory, and what must be free there: several times what a run was seen to take.
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 6 << 30
# Plugins that take each process a third of a second to import.
UNUSED = ("-p", "no:anyio", "-p", "no:pytest-testmon")
OPTIONS = ("-q", "--durations=15", "--durations-min=5")
# pytest-timeout cannot end a test that keeps Python's lock. This is longer than any test of `make test` may take.
STUCK = ("-o", "faulthandler_timeout=400", "-o", "faulthandler_exit_on_timeout=true")
# More failures than these are not caused by a busy machine.
MOST_TRIED_AGAIN = 4
ADDED = (
    "`make test-all` adds the Python and the versions of Colab's and Kaggle's images, the second machine of each "
    "notebook, JAX, and long forms of tests that ran here."
)
LEFT_OUT = (
    "`make test` leaves out the Python and the versions of Colab's and Kaggle's images, JAX, and the tests marked "
    "`long`."
)


def has_room_in_memory() -> bool:
    """Return whether the files of a run fit into memory beside its processes."""
    free = psutil.disk_usage(str(MEMORY)).free if MEMORY.is_dir() else 0
    return bool(min(free, psutil.virtual_memory().available) > MEMORY_BYTES)


@contextmanager
def own_folder(parent: Path | None = None) -> Iterator[Path]:
    """Provide a folder for everything that a pass writes, and leave nothing behind: no process, mount or file.

    Killed tests leave running clients and dead mounts; in the folder that pytest shares among runs, these make a later
    run fail when it cleans up.
    """
    folder = Path(tempfile.mkdtemp(prefix="tests-", dir=parent))
    try:
        yield folder
    finally:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and any(f"{folder}/" in part for part in process.cmdline()):
                    process.kill()
        # The latest first, because one may be mounted inside another.
        for mount in reversed([mount for mount in list_mounts().values() if mount.mountpoint.is_relative_to(folder)]):
            print(f"\nA test left a mount: {mount.mountpoint}", flush=True)
            unmount_lazily(mount.mountpoint)
        shutil.rmtree(folder, ignore_errors=True)


def run_pytest(command: list[str], variables: dict[str, str], until: float) -> int:
    """Run pytest, but not beyond `until` on the clock of `time.monotonic`; return its exit code."""
    start = time.monotonic()
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            return process.wait(max(min(PASS_TIMEOUT_S, until - REPORT_S - start), 0))
        except subprocess.TimeoutExpired:
            print(f"\nStopped after {time.monotonic() - start:.0f} s.", flush=True)
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(REPORT_S)
            return pytest.ExitCode.INTERRUPTED
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def run_environment(environment: str, options: list[str], marks: str, until: float, *, in_memory: bool) -> bool:
    """Run the tests that pytest's options select in one environment, but not beyond `until`; return whether all passed.
    `in_memory`: whether to write there."""
    print(f"\n== {environment}", flush=True)
    # More than twice the number of cores, because tests wait half of the time. A process without tests takes some from
    # another, because a few tests take a hundred times as long as most.
    count = min(2 * len(os.sched_getaffinity(0)) + 1, 5)
    processes = ["-n", f"{count}", "--dist=worksteal", "-p", "tests.longest_first"]
    with own_folder() as disk, own_folder(MEMORY) if in_memory else nullcontext(disk) as folder:
        # A short name: the sockets that tests make below it may have 107 characters in all.
        own = ["-o", f"cache_dir={folder}/cache", f"--basetemp={folder}/t"]
        # OpenMP's threads spin while they wait, which takes the cores from the processes beside.
        variables = {"TMPDIR": str(folder), "TESTS_ON_DISK": str(disk), "OMP_WAIT_POLICY": "PASSIVE"}
        command = [f"{ROOT}/{environment}/bin/python", "-P", "-m", "pytest", *UNUSED, *OPTIONS, *own, *options]
        command += ["-m", marks, *(STUCK if marks else ()), "tests"]
        exit_code = run_pytest([*command, *processes], variables, until)
        if exit_code == pytest.ExitCode.TESTS_FAILED:
            failed = json.loads((folder / "cache/v/cache/lastfailed").read_text(encoding="utf-8"))
            if len(failed) <= MOST_TRIED_AGAIN:
                print(f"\n== {environment}: what failed, alone", flush=True)
                exit_code = run_pytest([*command, "--last-failed"], variables, until)
    return exit_code == 0


def main() -> int:
    """Run everything, return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--all", action="store_true", help="what `make test-all` runs")
    parser.add_argument("--until", type=float, metavar="TIME", help="seconds since 1970, after which nothing runs")
    arguments = parser.parse_args()
    start = time.monotonic()
    until = math.inf if arguments.until is None else start + arguments.until - time.time()
    options, marks = (["--hypothesis-profile=long"], "") if arguments.all else ([], "not long")
    in_memory = has_room_in_memory()
    passed = [run_environment(".venv", options, marks, until, in_memory=in_memory and not arguments.all)]
    if arguments.all:
        if (ROOT / ".venv313/.installed").exists():
            marks = "not long and not torch and not gpu"
            passed.append(run_environment(".venv313", [], marks, until, in_memory=in_memory))
        else:
            print("\nThere is no Python 3.13 here, so nothing was tested on it.", flush=True)
        passed += [
            run_environment(image, [], "not long", until, in_memory=in_memory)
            for image in (".venv-colab", ".venv-kaggle")
        ]
    print(f"\n{LEFT_OUT if arguments.all else ADDED}")
    print(f"{'All passed' if all(passed) else 'Tests failed: see above'}, in {time.monotonic() - start:.0f} s")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
