"""Samples from a tree into their places in the file: read, decode, write, in any order."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.errors import CorruptArchiveError, DecodeError, OptionError, SourceReadError
from colabstage.fetch.copy import TargetFile
from colabstage.images.complete import check_complete
from colabstage.images.decode import decode_image
from colabstage.pipeline import PipelineLimits, PipelineResult, run_pipeline
from colabstage.retry import RetryPolicy, read_with_retry

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleTable
    from colabstage.pack.journal import Journal
    from colabstage.pack.options import PackOptions
    from colabstage.pack.plan import PackPlan
    from colabstage.progress import Cancellation, ProgressStep
    from colabstage.trees.tree import FileEntry, Tree


class MixedImagesError(OptionError):
    """An image contradicts the one shape that was seen on a few."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Everything one run of the writer works on, read-only.

    `order`: int64 `(N,)`, the sample at each position of the reading order.
    `places`: int64 `(N,)`, byte offset of each sample in `target`.
    """

    tree: Tree
    table: SampleTable
    plan: PackPlan
    options: PackOptions
    order: NDArray[np.int64]
    places: NDArray[np.int64]
    target: Path
    retry: RetryPolicy

    def entry(self, position: int) -> FileEntry:
        """The file of the sample at a position of the reading order."""
        return self.table.files[int(self.order[position])]


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
    left = [position for position in range(len(job.order)) if not journal.is_finished(position)]
    step.advance(len(job.order) - len(left))

    def read(position: int) -> bytes | CorruptArchiveError:
        entry = job.entry(position)
        try:
            return read_with_retry(lambda: job.tree.read(entry), entry.name, policy=job.retry)
        except CorruptArchiveError as error:
            return error

    scratch = _Scratch()
    with TargetFile(job.target, fresh=False) as file:

        def use(position: int, data: bytes | CorruptArchiveError) -> None:
            journal.finish(position, skipped=_store(job, position, data, file, scratch.memory))
            step.advance()

        return run_pipeline(
            left,
            read=read,
            use=use,
            cost=lambda position: job.entry(position).size,
            limits=limits,
            cancellation=cancellation,
        )


class _Scratch(threading.local):
    """Memory to decode into, of each worker its own."""

    def __init__(self) -> None:
        self.memory = bytearray()


def _store(
    job: WriteJob, position: int, data: bytes | CorruptArchiveError, file: TargetFile, scratch: bytearray
) -> str | None:
    """Decode one sample and write it; returns why it is left out, `None` when it is in its place."""
    entry = job.entry(position)
    if isinstance(data, CorruptArchiveError):
        return _leave_out(job, entry, data)
    try:
        content = _content(job, entry, data, scratch)
    except DecodeError as error:
        return _leave_out(job, entry, error)
    expected = job.plan.row_bytes or entry.size
    if len(content) != expected:  # One byte too long would end in its neighbour's place.
        msg = f"'{entry.name}' came as {len(content):,} bytes to store, its place has {expected:,}."
        raise SourceReadError(msg)
    file.write(content, int(job.places[job.order[position]]))
    return None


def _content(job: WriteJob, entry: FileEntry, data: bytes, scratch: bytearray) -> memoryview:
    """The bytes to store of one image file."""
    if job.plan.row_shape is None:
        check_complete(data)
        return memoryview(data)
    pixels: NDArray[Any] = decode_image(data, job.options.image, scratch=scratch)
    if pixels.shape != job.plan.row_shape or pixels.dtype != job.plan.dtype:
        msg = (
            f"'{entry.name}' has shape {pixels.shape} and dtype {pixels.dtype} among images of shape "
            f"{job.plan.row_shape} and dtype {job.plan.dtype}; give image_size=(height, width) and a color_mode, or "
            "encoding='encoded'"
        )
        raise MixedImagesError(msg)
    return pixels.data.cast("B")


def _leave_out(job: WriteJob, entry: FileEntry, error: DecodeError | CorruptArchiveError) -> str:
    """Why a sample is left out, or an error with its name."""
    why = str(error).rstrip(".")
    if job.options.on_error == "skip":
        return f"{entry.name}: {why}"
    msg = f"'{entry.name}' cannot be used: {why}. Repair or remove it, or give on_error='skip' to leave such files out."
    raise type(error)(msg) from error
