"""Stages a dataset in several processes at once; each prints its origin and its path.

Run as python stager.py SOURCE LOCAL_DIR LOCKS COUNT.

LOCKS is `real`, or `none` for a machine whose locks always succeed and hold nobody off.
"""

import json
import os
import sys
from typing import Any

import filelock

from colabstage import stage_dataset


class IdleLock:
    """A lock like that of some network file systems: granted to everybody."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""

    def acquire(self, **_: Any) -> None:
        """Always succeed."""

    def release(self) -> None:
        """Do nothing."""


def stage(source: str, local_dir: str) -> int:
    """Stage, and print a line; return the exit code."""
    staged = stage_dataset(source, local_dir=local_dir, progress=False)
    notes = staged.report.notes
    line = json.dumps({"origin": staged.report.origin, "path": str(staged.path), "notes": notes})
    os.write(sys.stdout.fileno(), f"{line}\n".encode())
    return 0


def main() -> int:
    """Fork the processes, so that what they need is imported once, and wait for them."""
    source, local_dir, locks, count = sys.argv[1:]
    if locks == "none":
        filelock.FileLock = IdleLock  # type: ignore[assignment]
    children = []
    for _ in range(int(count)):
        if not (child := os.fork()):
            code = 1
            try:
                code = stage(source, local_dir)
            except BaseException:  # noqa: BLE001 - the test shows it
                sys.excepthook(*sys.exc_info())
            os._exit(code)
        children.append(child)
    return max(os.waitpid(child, 0)[1] for child in children) and 1


if __name__ == "__main__":
    sys.exit(main())
