"""Stages a dataset in its own process, and prints its origin and its path.

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
    """A lock like that of some network file systems: granted to everybody."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""

    def acquire(self, **_: Any) -> None:
        """Always succeed."""

    def release(self) -> None:
        """Do nothing."""


def main() -> None:
    """Wait for a line of input, so that all processes start at once; then stage."""
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
