"""Samples from a tree into their places in the file: read, decode, write, in any order."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.errors import CorruptArchiveError, DecodeError, NotEnoughSpaceError, OptionError
from colabstage.fileops import pwrite_exactly
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
    """An image contradicts the one shape that was seen on the first few."""


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
        NotEnoughSpaceError: the disk filled up meanwhile.
        CancelledError: the caller asked to stop.
    """
    left = [position for position in range(len(job.order)) if not journal.is_finished(position)]
    step.advance(len(job.order) - len(left))
    handle = os.open(job.target, os.O_WRONLY)

    def read(position: int) -> bytes:
        entry = job.entry(position)
        try:
            return read_with_retry(lambda: job.tree.read(entry), entry.name, policy=job.retry)
        except CorruptArchiveError as error:
            _tolerate(job, journal, position, error)
            return b""

    def use(position: int, data: bytes) -> None:
        if data or job.entry(position).size == 0:
            _store(job, journal, position, data, handle)
        step.advance()

    try:
        return run_pipeline(
            left,
            read=read,
            use=use,
            cost=lambda position: job.entry(position).size,
            limits=limits,
            cancellation=cancellation,
        )
    finally:
        os.close(handle)


def _store(job: WriteJob, journal: Journal, position: int, data: bytes, handle: int) -> None:
    """Decode one sample and write it; a sample that cannot be decoded follows `on_error`."""
    try:
        content = _content(job, data)
    except DecodeError as error:
        _tolerate(job, journal, position, error)
        return
    _check_length(job, position, len(content))
    _write(handle, content, int(job.places[job.order[position]]), job.target)
    journal.finish(position)


def _content(job: WriteJob, data: bytes) -> memoryview:
    """The bytes to store of one image file."""
    if job.plan.row_shape is None:
        check_complete(data)
        return memoryview(data)
    pixels: NDArray[Any] = decode_image(data, job.options.image)
    if pixels.shape != job.plan.row_shape or pixels.dtype != job.plan.dtype:
        msg = (
            f"an image of shape {pixels.shape} and dtype {pixels.dtype} among images of shape {job.plan.row_shape} "
            f"and dtype {job.plan.dtype}; give image_size=(height, width) and a color_mode, or encoding='encoded'"
        )
        if job.plan.assumed:
            raise MixedImagesError(msg)
        raise DecodeError(msg)
    return pixels.data.cast("B")


def _check_length(job: WriteJob, position: int, length: int) -> None:
    """A sample one byte too long would end in its neighbour's place."""
    entry = job.entry(position)
    expected = job.plan.row_bytes or entry.size
    if length != expected:
        msg = f"'{entry.name}' came as {length:,} bytes to store, its place has {expected:,}; was the source changed?"
        raise DecodeError(msg)


def _tolerate(job: WriteJob, journal: Journal, position: int, error: DecodeError | CorruptArchiveError) -> None:
    """Note a sample that is left out, or raise with its name."""
    name = job.entry(position).name
    if job.options.on_error == "skip":
        journal.finish(position, skipped=f"{name}: {error}")
        return
    msg = f"'{name}' cannot be used: {error}. Repair or remove it, or give on_error='skip' to leave such files out."
    raise type(error)(msg) from error


def _write(handle: int, content: memoryview, place: int, target: Path) -> None:
    try:
        pwrite_exactly(handle, content, place)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        msg = f"The disk of '{target.parent}' filled up while packing. Free some space, or choose another local_dir."
        raise NotEnoughSpaceError(msg) from error
