"""Which batches of an unfinished extraction are on the disk, so that a killed run goes on where it was.

One line for each finished batch, written after its last file is closed. Nothing is forced to the disk: what a killed
process wrote, the kernel still has. After a reboot it may not, so a journal counts only in the boot that wrote it.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Self

from colabstage.ownership import begin_journal, current_world

if TYPE_CHECKING:
    from pathlib import Path


class ExtractJournal:
    """The journal of one run; `fingerprint` says which archive and which members it belongs to.

    Whoever opens one writes it anew, so that a line which a kill cut off stays behind.
    """

    def __init__(self, path: Path, *, fingerprint: str) -> None:
        self._head = json.dumps({"fingerprint": fingerprint, "world": current_world()})
        self.finished = _read(path, self._head)
        lines = (self._head, *sorted(self.finished))
        self._handle = begin_journal(path, ["".join(f"{line}\n" for line in lines).encode()])

    def finish(self, first: int, count: int) -> None:
        """Note that `count` members from `first` on are there, whole and verified."""
        os.write(self._handle, f"{_line(first, count)}\n".encode())

    def has(self, first: int, count: int) -> bool:
        """Whether an earlier run finished this very batch."""
        return _line(first, count) in self.finished

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        os.close(self._handle)


def _line(first: int, count: int) -> str:
    return f"{first} {count}"


def _read(path: Path, head: str) -> set[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # a last line without its end was cut off
    except (FileNotFoundError, UnicodeDecodeError):
        return set()
    return set(lines[1:]) if lines and lines[0] == head else set()
