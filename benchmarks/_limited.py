"""Running a script with less memory than the machine has, in a control group of its own, where one can be made."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROOT = Path("/sys/fs/cgroup")
_INSIDE = "COLABSTAGE_BENCH_LIMITED"


def is_limited() -> bool:
    """Whether this process was started by `run_limited` inside a group."""
    return _INSIDE in os.environ


def run_limited(module: str, arguments: Sequence[str], limit_bytes: int) -> int | None:
    """Run `python -m module` with so much memory, page cache included; its exit code, `None` where no group can be
    made."""
    with _group(limit_bytes) as group:
        if group is None:
            return None

        def join() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

        command = [sys.executable, "-u", "-m", module, *arguments]
        environment = {**os.environ, _INSIDE: "1"}
        return subprocess.run(command, env=environment, preexec_fn=join, check=False).returncode


@contextlib.contextmanager
def _group(limit_bytes: int) -> Iterator[Path | None]:
    """A group below this process's own: of version 1, or of version 2 where it may have groups below it."""
    made = None
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, place = line.split(":", 2)
        top, file = (_ROOT / "memory", "memory.limit_in_bytes") if controllers == "memory" else (_ROOT, "memory.max")
        if controllers not in ("", "memory"):
            continue
        group = top / place.lstrip("/") / f"colabstage-bench-{os.getpid()}"
        try:
            group.mkdir()
            (group / file).write_text(str(limit_bytes), encoding="ascii")
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        made = group
        break
    try:
        yield made
    finally:
        if made is not None:
            _remove(made)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
