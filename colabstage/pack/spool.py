"""Bytes whose lengths are known only once they are made: kept one behind the other as they come, placed at the end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from colabstage.fetch.copy import TargetFile

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class Spool:
    """A file that any thread appends to. Where each piece begins is for the caller to note."""

    def __init__(self, path: Path, *, start: int) -> None:
        """`start`: where the first new piece goes, behind all that is still needed."""
        self._file = TargetFile(path, fresh=False)
        self._lock = threading.Lock()
        self._end = start

    def append(self, data: memoryview) -> int:
        """Write a piece; returns where it begins."""
        with self._lock:
            start = self._end
            self._end += len(data)
        self._file.write(data, start)
        return start

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)
