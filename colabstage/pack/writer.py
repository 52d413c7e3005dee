"""Samples from their sources into their places in the file: read, decode, write, in any order."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import CorruptArchiveError, DecodeError
from colabstage.fetch.copy import TargetFile
from colabstage.images.scratch import PixelRoom, Scratch
from colabstage.pack.samples import BrokenSampleError, RawSample, SampleCoder
from colabstage.pipeline import PipelineLimits, PipelineResult, run_pipeline
from colabstage.retry import RetryPolicy, read_with_retry

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from colabstage.layouts.sources import Content, SampleSource
    from colabstage.pack.facts import SampleFacts
    from colabstage.pack.journal import Journal
    from colabstage.pack.spool import Spool
    from colabstage.progress import Cancellation, ProgressStep


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Everything one run of the writer works on, read-only.

    `order`: int64 `(N,)`, the sample at each position of the reading order.
    `places`: of each field of the plan, int64 `(N,)`: byte offset of each sample in `target`.
    `spool`: takes what has no place yet.
    `facts`: where the images' own sizes, and places in the spool, are noted, `None` where nobody asks for them.
    """

    coder: SampleCoder
    order: NDArray[np.int64]
    places: tuple[NDArray[np.int64], ...]
    target: Path
    spool: Spool
    facts: SampleFacts | None
    retry: RetryPolicy


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
    """Memory to decode into, of each worker its own, and the room that they share."""

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
    """Decode one sample and write it; returns why it is left out, `None` when it is in its place, and whether only its
    first frame is."""
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
    """Why a sample is left out, or an error with its name."""
    why = str(error.cause).rstrip(".")
    if job.coder.options.skip_share is not None:
        return f"{error.part}: {why}"
    msg = f"'{error.part}' cannot be used: {why}. Repair or remove it, or give on_error='skip' to leave such files out."
    kind = CorruptArchiveError if isinstance(error.cause, CorruptArchiveError) else DecodeError
    raise kind(msg) from error.cause
