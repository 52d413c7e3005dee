"""Samples from their sources into their places in the file: read, decode, write, in any order.

Beside the file go what has no place yet (`Spool`), and what is learnt of each sample while it is packed and needed when
all are (`SampleFacts`). A record of these is written before the journal counts its sample as finished, so a run that
goes on finds those of all finished samples, as it finds their pixels.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from colabstage.errors import CorruptArchiveError, DecodeError
from colabstage.images.scratch import PixelRoom, Scratch
from colabstage.io.ownership import cut_own
from colabstage.io.pipeline import PipelineLimits, PipelineResult, run_pipeline
from colabstage.io.retry import RetryPolicy, read_with_retry
from colabstage.pack.samples import BrokenSampleError, RawSample, SampleCoder
from colabstage.sources.copy import TargetFile

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.layouts.table import Content, SampleSource
    from colabstage.pack.journal import Journal

# Of one sample: the size of its upright image, and which bytes of the spool are its own.
_RECORD = np.dtype([("height", "<i4"), ("width", "<i4"), ("start", "<i8"), ("length", "<i8")])


class Spool:
    """Append pieces to a file, from any thread. Where each begins is for the caller to note."""

    def __init__(self, path: Path, *, start: int) -> None:
        """Open the file, or make it; the first new piece goes to `start`, behind all that is still needed."""
        self._file = TargetFile(path, fresh=False)
        self._lock = threading.Lock()
        self._end = start

    def append(self, data: memoryview) -> int:
        """Write a piece, and return where it begins."""
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


class SampleFacts:
    """Keep one record for each of N samples: its image's own size, and where its bytes are in a spool."""

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
        """Return all records, `(N,)`; zeros for samples that were not noted."""
        return np.fromfile(self._path, _RECORD, self._count)

    def forget(self) -> None:
        """Forget all that is noted."""
        cut_own(self._path, 0)
        cut_own(self._path, self._count * _RECORD.itemsize)

    def spool_end(self) -> int:
        """Return where the last piece of the spool ends that any sample has, in bytes."""
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


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Hold everything that one run of the writer works on, read-only."""

    coder: SampleCoder
    """Makes of each sample what its places hold."""
    order: NDArray[np.int64]
    """int64 `(N,)`, the sample at each position of the reading order."""
    places: tuple[NDArray[np.int64], ...]
    """Of each field of the plan, int64 `(N,)`: byte offset of each sample in `target`."""
    target: Path
    """The file, which has room for all samples."""
    spool: Spool
    """Takes what has no place yet."""
    facts: SampleFacts | None
    """Where the images' own sizes, and places in the spool, are noted; `None` where nobody asks for them."""
    retry: RetryPolicy
    """Which failed reads are tried again."""


def write_samples(
    job: WriteJob, journal: Journal, *, limits: PipelineLimits, step: ProgressStep, cancellation: Cancellation
) -> PipelineResult:
    """Bring every sample that `journal` does not know yet to its place.

    Raises:
        DecodeError: a sample cannot be decoded, and `on_error` is `"raise"`; the message names it.
        MixedImagesError: an image has another shape than the plan assumed.
        SourceReadError, SourceNotFoundError, DriveDisconnectedError: the source failed for good.
        NotEnoughSpaceError, TargetNotWritableError: the disk filled up meanwhile, or fails.
        CancelledError: the caller asked to stop.
    """
    left = journal.unfinished()
    step.advance(len(job.order) - len(left))
    coder, memory = job.coder, _Memory(PixelRoom())

    def read(position: int) -> RawSample | BrokenSampleError:
        index = int(job.order[position])
        try:
            x = _read_part(coder.table.inputs.source, index, job.retry)
            target = coder.target_source
            return RawSample(x, None if target is None else _read_part(target, index, job.retry))
        except BrokenSampleError as error:
            return error

    with TargetFile(job.target, fresh=False) as file:

        def use(position: int, raw: RawSample | BrokenSampleError) -> None:
            with memory.room.room_for(raw.x if isinstance(raw, RawSample) else None):
                why, animated = _store(job, int(job.order[position]), raw, file, memory.scratch)
                memory.scratch.forget_huge()
            journal.finish(position, skipped=why, animated=animated)
            step.advance()
            _check_share(job, journal)

        result = run_pipeline(
            left,
            read=read,
            use=use,
            cost=lambda position: coder.cost(int(job.order[position])),
            limits=limits,
            cancellation=cancellation,
        )
    _check_share(job, journal)
    return result


class _Memory(threading.local):
    """Hold memory to decode into, of each worker its own, and the room that they share."""

    def __init__(self, room: PixelRoom) -> None:
        self.room = room
        self.scratch = Scratch()


def _read_part(source: SampleSource, index: int, retry: RetryPolicy) -> Content:
    name = source.name(index)
    try:
        return read_with_retry(lambda: source.read(index), name, policy=retry)
    except (CorruptArchiveError, DecodeError) as error:
        raise BrokenSampleError(name, error) from error


def _store(
    job: WriteJob, index: int, raw: RawSample | BrokenSampleError, file: TargetFile, scratch: Scratch
) -> tuple[str | None, bool]:
    """Decode one sample and write it.

    Returns:
        Why it is left out, `None` when it is in its place, and whether only its first frame is.
    """
    if isinstance(raw, BrokenSampleError):
        return _leave_out(job, raw), False
    try:
        stored = job.coder.code(index, raw, scratch)
    except BrokenSampleError as error:
        return _leave_out(job, error), False
    start = length = 0
    for field, part, places in zip(job.coder.plan.fields, stored.parts, job.places, strict=True):
        if field.is_open:
            start, length = job.spool.append(part), len(part)
        else:
            file.write(part, int(places[index]))
    if job.facts is not None:
        job.facts.note(index, size=stored.size, start=start, length=length)
    return None, stored.animated


def _check_share(job: WriteJob, journal: Journal) -> None:
    """Stop when more samples are out than may be.

    Raises:
        DecodeError: the share, the limit, and one of the reasons.
    """
    share, out = job.coder.options.skip_share, len(journal.skipped)
    if share is not None and out > share * len(job.order):
        msg = (
            f"{out:,} of {len(job.order):,} samples cannot be used, more than on_error={job.coder.options.on_error!r} "
            f"allows. One of them: {journal.a_reason()}. Finished work is kept."
        )
        raise DecodeError(msg)


def _leave_out(job: WriteJob, error: BrokenSampleError) -> str:
    """Return why a sample is left out, or raise an error with its name."""
    why = str(error.cause).rstrip(".")
    if job.coder.options.skip_share is not None:
        return f"{error.part}: {why}"
    msg = f"'{error.part}' cannot be used: {why}. Repair or remove it, or give on_error='skip' to leave such files out."
    kind = CorruptArchiveError if isinstance(error.cause, CorruptArchiveError) else DecodeError
    raise kind(msg) from error.cause
