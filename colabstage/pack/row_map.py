"""Which rows of a file that is being packed are in it: one byte for each row, in a file that all processes map.

The packing process writes a row's byte once the row is in its place. Readers, in this process or in others, look at
the byte without taking a lock, so a fork can never leave one locked. The header says who packs, and how that ended.
"""

from __future__ import annotations

import json
import mmap
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import ColabstageError, NotStagedError, error_from_json, error_to_json
from colabstage.io.temporaries import cut_own, owner_is_alive, owner_token, remove_own

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_HEAD_BYTES = 16_384
_OWNER_AT, _ERROR_AT = 64, 1024
_LONGEST_MESSAGE = 2_000


class RowState(IntEnum):
    """The state of a row."""

    MISSING = 0
    """Not packed yet."""
    HERE = 1
    """In its place in the file."""
    LEFT_OUT = 2
    """It cannot be used, and its place is empty."""


class PackState(IntEnum):
    """The state of packing."""

    RUNNING = 0
    """More rows will come."""
    PLACED = 1
    """All rows are there, and the file is in its place."""
    FAILED = 2
    """It ended before that; the header says why."""


class RowMap:
    """The mapped file. Any process may read it; only the one that packs writes."""

    def __init__(self, path: Path) -> None:
        """Map the file that `create` made.

        Raises:
            FileNotFoundError: it was removed, with the work that it belonged to.
        """
        with path.open("r+b") as file:
            self._bytes = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
        self.rows: NDArray[np.uint8] = self._bytes[_HEAD_BYTES:]

    @classmethod
    def create(cls, path: Path, rows: int) -> RowMap:
        """Create a map at `path`, in a workspace of this process, with all rows missing."""
        # Removed and not truncated: readers of an earlier run may have it mapped, and would be killed by a signal.
        remove_own(path)
        path.touch()
        cut_own(path, _HEAD_BYTES + rows)
        made = cls(path)
        made._write_text(_OWNER_AT, owner_token())
        return made

    @property
    def state(self) -> PackState:
        """Return the state of packing."""
        return PackState(int(self._bytes[0]))

    @property
    def abandoned(self) -> bool:
        """Return whether the packing process has ended without saying so, as after a kill."""
        return self.state is PackState.RUNNING and owner_is_alive(self._read_text(_OWNER_AT)) is False

    @property
    def here(self) -> int:
        """Return how many rows are in their places, or left out for good."""
        return int(np.count_nonzero(self.rows))

    @property
    def left_out(self) -> int:
        """Return how many rows cannot be used."""
        return int(np.count_nonzero(self.rows == RowState.LEFT_OUT))

    def set_placed(self) -> None:
        """Record that the file is complete and in its place."""
        self._bytes[0] = PackState.PLACED

    def set_failed(self, error: BaseException) -> None:
        """Record that packing has ended, and why; unless the file is already in its place."""
        if self.state is PackState.PLACED:
            return
        kind, message = error_to_json(error)
        self._write_text(_ERROR_AT, json.dumps([kind, message[:_LONGEST_MESSAGE]]))
        # The state is written last, so that a process that sees it also finds the reason.
        self._bytes[0] = PackState.FAILED

    def failure(self, unit: str) -> ColabstageError:
        """Return the error for readers of rows that will not come: what happened, and how much is there."""
        here = f"{self.here:,} of {len(self.rows):,} {unit} are here, and are kept"
        again = "Call stage_dataset with the same arguments again: it goes on from there."
        text = self._read_text(_ERROR_AT)
        if not text:
            return NotStagedError(f"The process that packed has ended before all was here. {here}. {again}")
        raw = json.loads(text)
        kind, message = error_from_json(raw, NotStagedError)
        # The message of another library's error does not say what failed.
        what = message if raw[0] else f"Packing has ended: {message}"
        return kind(f"{what}. {here}. {again}")

    def _write_text(self, at: int, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        data = len(data).to_bytes(4, "little") + data
        self._bytes[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def _read_text(self, at: int) -> str:
        length = int.from_bytes(self._bytes[at : at + 4].tobytes(), "little")
        return self._bytes[at + 4 : at + 4 + length].tobytes().decode()
