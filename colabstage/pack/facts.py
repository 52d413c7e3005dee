"""What is learnt of each sample while it is packed and needed when all are: a file of fixed records beside the pack.

A record is written before the journal counts its sample as finished, so a run that goes on finds those of all finished
samples, as it finds their pixels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from colabstage.fetch.copy import TargetFile
from colabstage.ownership import cut_own

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

_RECORD = np.dtype([("height", "<i4"), ("width", "<i4"), ("start", "<i8"), ("length", "<i8")])


class SampleFacts:
    """One record for each of N samples: its image's own size, and where its bytes are in a spool."""

    def __init__(self, path: Path, count: int) -> None:
        """Open the file, or make it."""
        self._path = path
        self._count = count
        if not path.exists():
            path.touch()
        cut_own(path, count * _RECORD.itemsize)
        self._file = TargetFile(path, fresh=False)

    def note(self, index: int, *, size: tuple[int, int] = (0, 0), start: int = 0, length: int = 0) -> None:
        """Write a sample's record. May be called from any thread."""
        record = np.array([(*size, start, length)], _RECORD)
        self._file.write(record.tobytes(), index * _RECORD.itemsize)

    def read(self) -> NDArray[np.void]:
        """All records, `(N,)`; zeros for samples that were not noted."""
        return np.fromfile(self._path, _RECORD, self._count)

    def forget(self) -> None:
        """Begin anew: nothing is noted."""
        cut_own(self._path, 0)
        cut_own(self._path, self._count * _RECORD.itemsize)

    def spool_end(self) -> int:
        """Where the last piece of the spool ends that any sample has, in bytes."""
        noted = self.read()
        return int((noted["start"] + noted["length"]).max(initial=0))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
