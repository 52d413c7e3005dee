"""What an unfinished pack stores beside it, so that a killed run can continue.

`PackJournal` says which samples are in place: a journal (see `io.workspace`) with one line for each finished block of
samples. A line cannot be verified without decoding the samples again, so a journal counts only in the boot that wrote
it: a crash of the machine may keep the line and lose the pixels. The local disk of a rented machine does not outlive a
boot anyway.

`Spool` holds bytes that have no place yet, and each `SampleColumn` one fact about each sample.
"""

from __future__ import annotations

import threading
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from colabstage.errors import CancelledError, DecodeError, DriveError, SourceError
from colabstage.io.files import Closing, TargetFile
from colabstage.io.workspace import Journal, current_world, cut_own, walk_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from numpy.typing import NDArray

# Samples in a block. With 32 reads in flight several blocks are unfinished, and a kill loses those; a line costs 3 µs.
BLOCK_SAMPLES = 8
# The errors after which finished samples are kept, because the next attempt may succeed: an interrupt, a source or
# mount that is back by then, a repaired file. Not a full disk, of which they take a part.
KEPT_AFTER = (KeyboardInterrupt, CancelledError, SourceError, DriveError, DecodeError)
# The stamp of an unfinished block. Finished blocks never have it: a stamp that would be 0 is written as 1.
_NO_STAMP = 0
# For each sample: the size of its upright image, and which bytes of the spool are its x and its y.
FACTS = np.dtype([("height", "<i4"), ("width", "<i4"), ("start", "<i8", (2,)), ("length", "<i8", (2,))])


class PackJournal(Closing):
    """Which of N samples are finished.

    A block counts only while each of its samples has the stamp that it had when the block was finished. So a file that
    is repaired or replaced costs its own block, not all the work.

    Attributes:
        skipped: why samples were left out, by their positions.
        lost: for each part of an image file that may not be stored, the positions of samples that lack it.
    """

    def __init__(
        self, path: Path, *, fingerprint: str, samples: int, stamp: Callable[[int], str], keep_skipped: bool
    ) -> None:
        """Open the journal, keeping what an earlier run with the same fingerprint finished.

        `stamp`: returns a text that changes with the sample at a position. `keep_skipped`: whether samples that an
        earlier run left out may stay out; otherwise they are tried again.
        """
        self._lock = threading.Lock()
        self._samples, self._stamp, self._path = samples, stamp, path
        self._head = {"fingerprint": fingerprint, "samples": samples, "world": current_world()}
        self._clear()
        self._read(keep_skipped=keep_skipped)
        self._lines = self._begin()

    def _clear(self) -> None:
        # The stamp of each block that an earlier run finished, or `_NO_STAMP`.
        self._stamps = np.full(-(-self._samples // BLOCK_SAMPLES), _NO_STAMP, np.uint64)
        self.skipped: dict[int, str] = {}
        self.lost: dict[str, set[int]] = {}

    def _read(self, *, keep_skipped: bool) -> None:
        """If the journal belongs to this work, take over its blocks whose samples have not changed."""
        try:
            for value in walk_journal(self._path, self._head):
                if "block" in value:
                    self._stamps[value["block"]] = value["stamp"]
                elif "skipped" in value:
                    self.skipped[value["skipped"]] = value["why"]
                elif "lost" in value:
                    self.lost.setdefault(value["lost"], set()).add(value["of"])
        except (FileNotFoundError, NotADirectoryError):
            return
        # Whatever else the file holds: packing again is always right, so nothing is worth an error.
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
            self._clear()
        for block in np.flatnonzero(self._stamps != _NO_STAMP).tolist():
            # The source may have changed since; then the packed samples are the old ones.
            if self._stamps[block] != self._block_stamp(block):
                self._stamps[block] = _NO_STAMP
        # With on_error="raise", a broken sample must raise again.
        for position in () if keep_skipped else self.skipped:
            self._stamps[position // BLOCK_SAMPLES] = _NO_STAMP

        # The other blocks are packed again, and these samples with them.
        def is_kept(position: int) -> bool:
            return bool(self._stamps[position // BLOCK_SAMPLES] != _NO_STAMP)

        self.skipped = {position: why for position, why in self.skipped.items() if is_kept(position)}
        self.lost = {part: set(filter(is_kept, positions)) for part, positions in self.lost.items()}

    def _begin(self) -> Journal:
        # How many samples of each block are unfinished; one byte each, because there may be millions of blocks.
        self._left = np.full(len(self._stamps), BLOCK_SAMPLES, np.uint8)
        self._left[-1:] = self._samples - BLOCK_SAMPLES * (len(self._left) - 1)
        finished = np.flatnonzero(self._stamps != _NO_STAMP)
        blocks = zip(finished.tolist(), self._stamps[finished].tolist(), strict=True)
        kept = chain(
            ({"block": block, "stamp": stamp} for block, stamp in blocks),
            ({"skipped": position, "why": why} for position, why in sorted(self.skipped.items())),
            ({"lost": part, "of": position} for part, lost in self.lost.items() for position in sorted(lost)),
        )
        return Journal(self._path, self._head, kept)

    def _block_stamp(self, block: int) -> int:
        positions = range(block * BLOCK_SAMPLES, min((block + 1) * BLOCK_SAMPLES, self._samples))
        stamps = "\n".join(map(self._stamp, positions))
        return xxhash.xxh3_64_intdigest(stamps.encode(errors="surrogateescape")) or 1

    @property
    def finished_samples(self) -> int:
        """Return how many samples an earlier run has finished."""
        return int(np.count_nonzero(~self.unfinished()))

    def unfinished(self) -> NDArray[np.bool_]:
        """Return which positions the next run must pack, `(N,)`."""
        return np.repeat(self._stamps == _NO_STAMP, BLOCK_SAMPLES)[: self._samples]

    def forget(self) -> None:
        """Start over with nothing finished; only before the first `finish`."""
        self._clear()
        self._lines.close()
        self._lines = self._begin()

    def finish(self, position: int, *, skipped: str | None = None, lost: Iterable[str] = ()) -> None:
        """Record that a sample is in its place, or was left out for the reason `skipped`; once for each sample, from
        any thread. `lost`: which parts of its image file are not stored.
        """
        block = position // BLOCK_SAMPLES
        with self._lock:
            for part in lost:
                self.lost.setdefault(part, set()).add(position)
                self._lines.append({"lost": part, "of": position})
            if skipped is not None:
                self.skipped[position] = skipped
                self._lines.append({"skipped": position, "why": skipped})
            self._left[block] -= 1
            # Workers finish in any order; whoever finishes a block's last sample writes the line.
            if not self._left[block]:
                stamp = self._block_stamp(block)
                self._stamps[block] = stamp
                self._lines.append({"block": block, "stamp": stamp})

    def a_reason(self) -> str:
        """Return why one of the samples was left out."""
        with self._lock:
            return next(iter(self.skipped.values()), "")

    def close(self) -> None:
        self._lines.close()


class Spool(Closing):
    """Appends pieces to a file, from any thread. The caller remembers where each begins."""

    def __init__(self, path: Path, *, start: int) -> None:
        """Open or create the file; the first new piece goes to `start`, after everything that is still needed."""
        self._file = TargetFile(path, fresh=False)
        self._lock = threading.Lock()
        self._end = start

    def append(self, data: memoryview) -> int:
        """Write a piece, and return where it begins."""
        # Only the position is reserved under the lock; several threads write at the same time.
        with self._lock:
            start = self._end
            self._end += len(data)
        self._file.write(data, start)
        return start

    def close(self) -> None:
        self._file.close()


class SampleColumn(Closing):
    """One fact about each of N samples, in a file: written in any order, from any thread, and then read.

    Unwritten facts are zeros, as for samples that were left out.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], count: int) -> None:
        """Open the file of an earlier run, or make it."""
        self._path, self._dtype, self._count = path, dtype, count
        path.touch()
        cut_own(path, count * dtype.itemsize)
        # Not mapped: mapped pages count as this process's memory for as long as it packs.
        self._file = TargetFile(path, fresh=False)

    def write(self, index: int, value: bytes) -> None:
        self._file.write(value, index * self._dtype.itemsize)

    def put(self, indices: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Write the facts of some samples, while nothing else writes."""
        mapped = np.memmap(self._path, self._dtype.base, "r+", shape=(self._count, *self._dtype.shape))
        mapped[indices] = values

    def read(self) -> NDArray[Any]:
        return np.fromfile(self._path, self._dtype)

    def close(self) -> None:
        """Close the file, which can still be read."""
        self._file.close()


def spool_end(facts: SampleColumn) -> int:
    """Return the end of the last piece of the spool that belongs to a sample, in bytes."""
    # A run that died before it recorded them wrote the pieces after it.
    noted = facts.read()
    return int((noted["start"] + noted["length"]).max(initial=0))
