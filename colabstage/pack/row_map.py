"""Which rows of a file that is being packed are in it: one byte for each row, in a file that all processes map.

Whoever packs writes a row's byte once the row is in its place. Readers, in this process or in others, look at the byte
and need no lock, so a fork at any moment leaves none locked. The head says who packs, and how that ended.
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
    """Say where a row is."""

    MISSING = 0
    """Not packed yet."""
    HERE = 1
    """In its place in the file."""
    LEFT_OUT = 2
    """It cannot be used, and nothing stands in its place."""


class PackState(IntEnum):
    """Say how packing stands."""

    RUNNING = 0
    """Rows still come."""
    PLACED = 1
    """All are there, and the file is at its place."""
    FAILED = 2
    """It has ended before that; the head says why."""


class RowMap:
    """The mapped file. Anybody may read; only whoever packs writes."""

    def __init__(self, path: Path) -> None:
        """Map the file that `create` made.

        Raises:
            FileNotFoundError: it is gone, with the work that it belonged to.
        """
        with path.open("r+b") as file:
            self._bytes = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
        self.rows: NDArray[np.uint8] = self._bytes[_HEAD_BYTES:]

    @classmethod
    def create(cls, path: Path, rows: int) -> RowMap:
        """Make a map of rows that are all missing, packed by this process. `path` is in a temporary of ours."""
        # Never cut: readers of an earlier run may have it mapped.
        remove_own(path)
        path.touch()
        cut_own(path, _HEAD_BYTES + rows)
        made = cls(path)
        made._write_text(_OWNER_AT, owner_token())
        return made

    @property
    def state(self) -> PackState:
        """Return how packing stands."""
        return PackState(int(self._bytes[0]))

    @property
    def abandoned(self) -> bool:
        """Return whether who packed has ended without a word, as after a kill."""
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
        """Say that the file is whole and at its place."""
        self._bytes[0] = PackState.PLACED

    def set_failed(self, error: BaseException) -> None:
        """Say that packing has ended, and why; for all processes. What is placed already stays so."""
        if self.state is PackState.PLACED:
            return
        kind, message = error_to_json(error)
        self._write_text(_ERROR_AT, json.dumps([kind, message[:_LONGEST_MESSAGE]]))
        # The state last: who reads it finds the reason.
        self._bytes[0] = PackState.FAILED

    def failure(self, unit: str) -> ColabstageError:
        """Return what is raised to who needs a row that does not come any more: what happened, and what is here."""
        here = f"{self.here:,} of {len(self.rows):,} {unit} are here, and are kept"
        again = "Call stage_dataset with the same arguments again: it goes on from there."
        text = self._read_text(_ERROR_AT)
        if not text:
            return NotStagedError(f"The process that packed has ended before all was here. {here}. {again}")
        raw = json.loads(text)
        kind, message = error_from_json(raw, NotStagedError)
        # What is none of ours says nothing of where it happened.
        what = message if raw[0] else f"Packing has ended: {message}"
        return kind(f"{what}. {here}. {again}")

    def _write_text(self, at: int, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        data = len(data).to_bytes(4, "little") + data
        self._bytes[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def _read_text(self, at: int) -> str:
        length = int.from_bytes(self._bytes[at : at + 4].tobytes(), "little")
        return self._bytes[at + 4 : at + 4 + length].tobytes().decode()
