"""Samples from their sources into their places in the file: read, decode, write, in any order."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from colabstage.errors import CorruptArchiveError, DecodeError, LayoutError, OptionError, SourceReadError
from colabstage.images.complete import CompleteCheck
from colabstage.images.decode import PixelRoom, Scratch, decode_sized, encode_jpeg, fit_pixels
from colabstage.images.headers import is_animated
from colabstage.images.masks import fit_mask, level_counts, read_mask
from colabstage.io.files import RetryPolicy, TargetFile, read_with_retry
from colabstage.io.pipeline import PipelineLimits, PipelineResult, run_pipeline
from colabstage.io.progress import start_at
from colabstage.layouts.mask_values import check_lossless
from colabstage.layouts.table import Arrays, Boxes, Images, Masks, UnreadBoxes
from colabstage.pack.plan import image_options, mask_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sized
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.images.resample import TorchKernel
    from colabstage.io.progress import Cancellation, ProgressStep
    from colabstage.layouts.samples import Content, SampleSource
    from colabstage.layouts.table import SampleTable
    from colabstage.pack.journal import ContentDigests, MaskLevels, PackJournal, SampleFacts, Spool
    from colabstage.pack.options import PackOptions
    from colabstage.pack.plan import PackPlan, StoredField
    from colabstage.pack.stream import PackStream


class MixedImagesError(OptionError):
    """An image contradicts the shape that a few others have in common."""

    def as_refusal(self, *, streams: bool = False) -> LayoutError:
        """Return the error where nothing but pixels will do: because they were asked for, or rows have been read."""
        why = ", which is what streaming=True began with" if streams else ""
        return LayoutError(f"These images cannot be stored as pixels{why}: {self}.")


class MixedMasksError(LayoutError):
    """Masks are a foreground by all of them, and by the few that were looked at they were class indices."""


class RawSample(NamedTuple):
    """A sample as its sources return it."""

    x: Content
    """The input."""
    y: Content | None
    """The target; `None` where targets are known beforehand."""


class StoredSample(NamedTuple):
    """A sample as it is stored."""

    parts: tuple[memoryview, ...]
    """The bytes of each of its fields."""
    size: tuple[int, int]
    """Height and width of its upright image before it was resized; zeros where it is not an image."""
    animated: bool
    """Whether its image has further frames."""
    levels: NDArray[np.bool_] | None = None
    """Which values its mask has, `(256,)`; `None` where they are not compared with those of others."""


class BrokenSampleError(Exception):
    """A part of a sample cannot be used; `part` is the name to look for."""

    def __init__(self, part: str, error: Exception) -> None:
        super().__init__(f"{part}: {error}")
        self.part = part
        self.cause = error


@dataclass(frozen=True, slots=True)
class SampleCoder:
    """Turns samples into the bytes that are stored. Thread-safe."""

    table: SampleTable
    """The samples."""
    plan: PackPlan
    """How they are stored."""
    options: PackOptions
    """The options that the plan was made for."""
    torch: TorchKernel | None = None
    """torch's kernel, which may still be on its way, where torch is to resize."""
    complete: CompleteCheck = field(default_factory=CompleteCheck)
    """Finds files that are stored unchanged and cannot be decoded."""

    @property
    def target_source(self) -> SampleSource | None:
        """Return where targets are read from; `None` where they are known beforehand."""
        targets = self.table.targets
        return targets.source if isinstance(targets, Arrays | Masks | UnreadBoxes) else None

    @property
    def positions(self) -> NDArray[np.int64]:
        """Return int64 `(N,)`: the position of each sample in the source, so that ascending ones are read in order."""
        target = self.target_source
        # For a sample in two files the later position counts, because in an archive that is still arriving it cannot be
        # read before. A mask often is in another folder than its image, gigabytes behind it.
        positions = self.table.inputs.source.positions
        return positions if target is None else np.maximum(positions, target.positions)

    @property
    def costs(self) -> NDArray[np.int64]:
        """Return int64 `(N,)`: how many bytes are read for each sample."""
        target, sizes = self.target_source, np.asarray(self.table.inputs.source.sizes, np.int64)
        return sizes if target is None else sizes + target.sizes

    def stamp(self, index: int) -> str:
        """Return a text that changes whenever the content of a sample may have changed."""
        target = self.target_source
        stamp = self.table.inputs.source.stamp(index)
        return stamp if target is None else f"{stamp} {target.stamp(index)}"

    def cost(self, index: int) -> int:
        """Return how many bytes are read for a sample."""
        target = self.target_source
        return int(self.table.inputs.source.sizes[index]) + (0 if target is None else int(target.sizes[index]))

    def code(self, index: int, raw: RawSample, scratch: Scratch) -> StoredSample:
        """Make the bytes of one sample.

        Args:
            index: the sample's number in the table.
            raw: its content.
            scratch: this thread's memory; the result may point into it and is valid until the next call.

        Raises:
            BrokenSampleError: a part of it cannot be decoded.
            MixedImagesError: it does not have the planned shape.
            UnusableTorchError: torch was planned to resize it, but cannot.
            SourceReadError: a file is not as long as it was listed.
        """
        x, size = self._code_x(index, raw.x, scratch)
        self._check_drawn_size(index, size)
        # A note and not an error, because the first frame of an animation is mostly what people mean.
        animated = isinstance(self.table.inputs, Images) and isinstance(raw.x, bytes) and is_animated(raw.x)
        if self.plan.y is None or raw.y is None:
            return StoredSample((x,), size, animated)
        y, levels = self._code_y(index, raw.y, size)
        return StoredSample((x, y), size, animated, levels)

    @property
    def compares_masks(self) -> bool:
        """Return whether all masks are compared with what a few of them said of their values."""
        # Those of a foreground have two values, and each is refused that has another.
        return (
            isinstance(self.table.targets, Masks) and self.table.targets.guessed and not self.table.targets.foreground
        )

    def _code_x(self, index: int, content: Content, scratch: Scratch) -> tuple[memoryview, tuple[int, int]]:
        inputs, place = self.table.inputs, self.plan.x
        try:
            if isinstance(inputs, Arrays):
                return _row(inputs.to_array(content), place, inputs.source.name(index)), (0, 0)
            if place.shape is None and place.lengths is not None:
                needs_range = self.options.image.color_mode != "keep"
                return self._checked_file(content, place.lengths, index, inputs.source, needs_range=needs_range)
            pixels, size = self._pixels(content, scratch)
            if self.options.jpeg_quality is not None:
                return memoryview(encode_jpeg(pixels, self.options.jpeg_quality)), size
        except DecodeError as error:
            raise BrokenSampleError(inputs.source.name(index), error) from error
        # A row of another length would overwrite its neighbour, which may be written already.
        if pixels.shape != place.shape or pixels.dtype != place.dtype:
            is_size = place.shape is None or pixels.shape[:2] != place.shape[:2]
            remedy = "image_size=(height, width)" if is_size else "color_mode='rgb'"
            msg = (
                f"'{inputs.source.name(index)}' has shape {pixels.shape} and dtype {pixels.dtype} among images of "
                f"shape {place.shape} and dtype {place.dtype}; give {remedy}, or encoding='encoded'"
            )
            raise MixedImagesError(msg)
        return pixels.data.cast("B"), size

    def _check_drawn_size(self, index: int, size: tuple[int, int]) -> None:
        """Refuse an image whose size differs from the one that its boxes were drawn on."""
        targets = self.table.targets
        if not isinstance(targets, Boxes) or targets.sizes is None:
            return
        height, width = (int(side) for side in targets.sizes[index])
        # Zeros mean that the label file does not say.
        if (height, width) not in ((0, 0), size):
            msg = (
                f"its label file says {height} x {width} pixels and the image has {size[0]} x {size[1]} (height x "
                "width, turned as its EXIF orientation asks), so its boxes lie elsewhere. Take the images that the "
                "boxes were drawn on, or scale the boxes"
            )
            name = self.table.inputs.source.name(index)
            raise BrokenSampleError(name, DecodeError(f"{msg[0].upper()}{msg[1:]}."))

    def _pixels(self, content: Content, scratch: Scratch) -> tuple[NDArray[Any], tuple[int, int]]:
        resizer = self.plan.resizer or "pillow"
        # It is made ready beside the first reads; from the first image on it is needed.
        if self.torch is not None:
            self.torch.require()
        if isinstance(content, bytes):
            return decode_sized(content, self.options.image, resizer=resizer, scratch=scratch)
        image = image_options(self.table, self.options)
        return fit_pixels(content, image, resizer=resizer), (content.shape[0], content.shape[1])

    def _code_y(
        self, index: int, content: Content, size: tuple[int, int]
    ) -> tuple[memoryview, NDArray[np.bool_] | None]:
        """Return the bytes of a target, and of a mask which values it has, where they are compared."""
        targets, place = self.table.targets, self.plan.y
        if place is None or not isinstance(targets, Arrays | Masks | UnreadBoxes):
            msg = f"The targets of the layout '{self.table.layout}' are not read with the samples."
            raise TypeError(msg)
        name = targets.source.name(index)
        if isinstance(targets, UnreadBoxes):
            return array_bytes(np.asarray(content)), None
        try:
            if isinstance(targets, Arrays):
                return _row(targets.to_array(content), place, name), None
            data = None
            if place.lengths is not None:
                data, _ = self._checked_file(content, place.lengths, index, targets.source)
            if targets.guessed:
                check_lossless(content)
            # Decoded although the file may be what is stored: a broken one is found now, and not in the third epoch.
            options = mask_options(targets, self.options)
            indices = read_mask(content, options)
            _check_size((indices.shape[0], indices.shape[1]), size)
            levels = level_counts(indices) > 0 if self.compares_masks else None
            return fit_mask(indices, options).data.cast("B") if data is None else data, levels
        except DecodeError as error:
            raise BrokenSampleError(name, error) from error

    def _checked_file(
        self,
        content: Content,
        lengths: NDArray[np.int64],
        index: int,
        source: SampleSource,
        *,
        needs_range: bool = False,
    ) -> tuple[memoryview, tuple[int, int]]:
        """Return an image file that is stored unchanged, and the size in its header.

        `needs_range`: whether its pixels will be converted to 8 bits.
        """
        if not isinstance(content, bytes):
            msg = f"'{source.name(index)}' arrived as an array, expected the bytes of an image file."
            raise LayoutError(msg)
        # A truncated JPEG opens without complaint and shows grey below the cut.
        facts = self.complete.check(content)
        if needs_range and facts.dtype.kind == "f":
            msg = f"{facts.format} pixels of floating point have no agreed range for a conversion to 8 bits."
            msg += ' Pass color_mode="keep".'
            raise DecodeError(msg)
        # One byte too many would overwrite its neighbour.
        if len(content) != lengths[index]:
            name, expected = source.name(index), int(lengths[index])
            msg = f"'{name}' came as {len(content):,} bytes to store, its place has {expected:,}."
            raise SourceReadError(msg)
        return memoryview(content), (facts.height, facts.width)


def _check_size(mask: tuple[int, int], image: tuple[int, int]) -> None:
    if mask != image:
        msg = (
            f"The mask has {mask[0]} x {mask[1]} pixels and its image {image[0]} x {image[1]} (height x width, turned "
            "as their EXIF orientation asks); expected the same."
        )
        raise DecodeError(msg)


def _row(values: NDArray[Any], place: StoredField, name: str) -> memoryview:
    """Return an array as the bytes of its row.

    Raises:
        LayoutError: its shape or dtype differs from what was planned.
    """
    if values.shape != place.shape or values.dtype != place.dtype:
        msg = (
            f"'{name}' has shape {values.shape} and dtype {values.dtype}; expected {place.shape} and {place.dtype}, as "
            "all the others."
        )
        raise LayoutError(msg)
    return array_bytes(values)


def array_bytes(values: NDArray[Any]) -> memoryview:
    """Return the bytes of an array, in C order."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Everything that one run of the writer works on, read-only."""

    coder: SampleCoder
    """Turns samples into bytes."""
    order: NDArray[np.int64]
    """int64 `(N,)`, the sample at each position of the reading order."""
    places: tuple[NDArray[np.int64], ...]
    """For each field of the plan, int64 `(N,)`: byte offset of each sample in `target`."""
    target: Path
    """The file, which has room for all samples."""
    spool: Spool | None
    """Takes the bytes that have no place yet; `None` where all have one."""
    facts: SampleFacts | None
    """Where the images' own sizes, and places in the spool, are recorded; `None` where they are not needed."""
    retry: RetryPolicy
    """Which failed reads are tried again."""
    contents: ContentDigests | None = None
    """Where digests of image files are noted; `None` where they are not compared."""
    levels: MaskLevels | None = None
    """Where the values of masks are noted; `None` where they are not compared."""


def write_samples(
    job: WriteJob,
    journal: PackJournal,
    *,
    limits: PipelineLimits,
    step: ProgressStep,
    cancellation: Cancellation,
    stream: PackStream | None = None,
) -> PipelineResult:
    """Write every sample that is not in `journal` yet to its place, in the order of `stream` where there is one.

    Raises:
        DecodeError: a sample cannot be decoded, and `on_error` is `"raise"`; the message names it.
        MixedImagesError: an image has another shape than the plan assumed.
        SourceReadError, SourceNotFoundError, DriveDisconnectedError: the source failed for good.
        NotEnoughSpaceError, TargetNotWritableError: the disk filled up meanwhile, or fails.
        CancelledError: the caller asked to stop.
    """
    # In the order of the source: one pass over an archive, and no seeking on a mount.
    left = journal.unfinished() if stream is None else stream.left
    start_at(step, len(job.order) - len(left))
    coder, memory = job.coder, _Memory(PixelRoom())

    def read(position: int) -> RawSample | BrokenSampleError:
        index = int(job.order[position])
        try:
            x = _read_part(coder.table.inputs.source, index, job.retry)
            target = coder.target_source
            return RawSample(x, None if target is None else _read_part(target, index, job.retry))
        # Returned and not raised, because the worker records which samples are left out.
        except BrokenSampleError as error:
            return error

    with TargetFile(job.target, fresh=False) as file:

        def use(position: int, raw: RawSample | BrokenSampleError) -> None:
            # A few kilobytes of PNG may hold 170 million pixels, so these limit what is decoded at the same time.
            with memory.room.room_for(raw.x if isinstance(raw, RawSample) else None):
                why, animated = _store(job, int(job.order[position]), raw, file, memory.scratch)
                # One huge image would otherwise keep its memory in each thread until the end.
                memory.scratch.forget_huge()
            # Last, because a sample that is in the journal but not in its place would be lost.
            kept = journal.finish(position, skipped=why, animated=animated)
            if stream is not None:
                stream.arrived(position, left_out=why is not None, kept=kept)
            step.advance()
            # After each sample, so that a folder of something else entirely is noticed within seconds.
            check_share(coder.options, journal.skipped, len(job.order), journal.a_reason)

        result = run_pipeline(
            left,
            read=read,
            use=use,
            cost=lambda position: coder.cost(int(job.order[position])),
            limits=limits,
            cancellation=cancellation,
        )
    check_share(coder.options, journal.skipped, len(job.order), journal.a_reason)
    return result


class _Memory(threading.local):
    """Memory to decode into, separate for each worker, and the pixel limit that they share."""

    def __init__(self, room: PixelRoom) -> None:
        self.room = room
        self.scratch = Scratch()


def _read_part(source: SampleSource, index: int, retry: RetryPolicy) -> Content:
    name = source.name(index)
    try:
        # Damaged content is no failure of the medium: reading it again returns the same.
        return read_with_retry(lambda: source.read(index), name, policy=retry)
    except (CorruptArchiveError, DecodeError) as error:
        raise BrokenSampleError(name, error) from error


def _store(
    job: WriteJob, index: int, raw: RawSample | BrokenSampleError, file: TargetFile, scratch: Scratch
) -> tuple[str | None, bool]:
    """Decode one sample and write it.

    Returns:
        Why it is left out, `None` when it is not; and whether only its first frame is stored.
    """
    if isinstance(raw, BrokenSampleError):
        return _leave_out(job, raw), False
    try:
        stored = job.coder.code(index, raw, scratch)
    except BrokenSampleError as error:
        return _leave_out(job, error), False
    pieces = []
    for place, part, places in zip(job.coder.plan.fields, stored.parts, job.places, strict=True):
        if place.is_open:
            assert job.spool is not None
            pieces.append((job.spool.append(part), len(part)))
        else:
            pieces.append((0, 0))
            file.write(part, int(places[index]))
    if job.levels is not None and stored.levels is not None:
        job.levels.note(index, stored.levels)
    if job.contents is not None and isinstance(raw.x, bytes):
        job.contents.note(index, raw.x)
    if job.facts is not None:
        job.facts.note(index, size=stored.size, pieces=pieces)
    return None, stored.animated


def check_share(options: PackOptions, left_out: Sized, total: int, a_reason: Callable[[], str]) -> None:
    """Stop when more of `total` samples are left out than `on_error` allows.

    Raises:
        DecodeError: they are; the message has the share, the limit and one of the reasons.
    """
    share, out = options.skip_share, len(left_out)
    if share is not None and out > share * total:
        msg = (
            f"{out:,} of {total:,} samples cannot be used, more than on_error={options.on_error!r} allows. "
            f"One of them: {a_reason()}. Finished work is kept."
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
