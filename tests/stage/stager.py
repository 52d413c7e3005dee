"""Stages a dataset as a process of its own, and prints where from and where to.

Run as python stager.py SOURCE LOCAL_DIR LOCKS.

LOCKS is `real`, or `none` for a machine whose locks always succeed and hold nobody off.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import filelock

from colabstage import stage_dataset


class IdleLock:
    """A lock as some network file systems have it: granted to everybody."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Nothing to keep."""

    def acquire(self, **_: Any) -> None:
        """Always yours."""

    def release(self) -> None:
        """As you like."""


def main() -> None:
    """Wait for the word, so that all begin at once; then stage."""
    source, local_dir, locks = sys.argv[1:]
    if locks == "none":
        filelock.FileLock = IdleLock  # type: ignore[assignment]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    staged = stage_dataset(source, local_dir=local_dir, progress=False)
    notes = staged.report.notes
    sys.stdout.write(json.dumps({"origin": staged.report.origin, "path": str(staged.path), "notes": notes}) + "\n")


if __name__ == "__main__":
    main()
