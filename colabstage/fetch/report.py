"""What fetching did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.errors import printable
from colabstage.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class FetchReport:
    """What one `fetch_files` did.

    `path`: the file or folder that was made. `files`, `nbytes`: what it holds. `seconds`: of wall clock.
    `kept_bytes`: those that were here already: all of them when nothing had changed, else what an interrupted run left.
    `transport`: how the source was reached. `notes`: what else a person should know.
    """

    path: Path
    files: int
    nbytes: int
    seconds: float
    kept_bytes: int
    transport: str
    notes: tuple[str, ...] = ()

    @property
    def fetched_bytes(self) -> int:
        """Bytes that were read from the source."""
        return self.nbytes - self.kept_bytes

    @property
    def rate(self) -> float:
        """Bytes a second read from the source; 0 when there was nothing to read."""
        return self.fetched_bytes / self.seconds if self.fetched_bytes and self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "path": str(self.path),
            "files": self.files,
            "nbytes": self.nbytes,
            "seconds": self.seconds,
            "rate": self.rate,
            "kept_bytes": self.kept_bytes,
            "transport": self.transport,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return "\n  ".join(map(printable, (self._summary(), *self.notes)))

    def _summary(self) -> str:
        size = format_bytes(self.nbytes)
        what = size if self.files == 1 else f"{self.files:,} files, {size},"
        if self.nbytes and self.kept_bytes == self.nbytes:
            return f"{what} are in '{self.path}' already, and the source has not changed."
        took = (
            f"{format_duration(self.seconds)} ({format_rate(self.fetched_bytes, self.seconds, 'B')}, {self.transport})"
        )
        kept = f"; {format_bytes(self.kept_bytes)} were here from before" if self.kept_bytes else ""
        return f"Fetched {what} to '{self.path}' in {took}{kept}."
