"""Move samples from their sources into their places in the file: read, decode, write, in any order; and what an
unfinished pack stores beside it, so that a killed run can continue.

`PackJournal` says which samples are in place: a journal (see `io.workspace`) with one line for each finished block of
samples. A line cannot be verified without decoding the samples again, so a journal counts only in the boot that wrote
it: a crash of the machine may keep the line and lose the pixels. The local disk of a rented machine does not outlive a
boot anyway.

`Spool` holds bytes that have no place yet, and each `SampleColumn` one fact about each sample.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import xxhash

from colabstage.errors import (
    CancelledError,
    ColabstageError,
    CorruptArchiveError,
    DecodeError,
    DriveError,
    LayoutError,
    SourceError,
    SourceReadError,
)
from colabstage.images.decode import (
    LOSSES,
    DecodedImage,
    Loss,
    PixelRoom,
    Scratch,
    check_complete,
    check_kept,
    decode_sized,
    encode_jpeg,
    fit_pixels,
    no_range,
    orientation_of,
    upright_size,
)
from colabstage.images.masks import fit_mask, level_counts, read_mask
from colabstage.io.files import Closing, RetryPolicy, TargetFile, block_ranges, pread_exactly, read_with_retry
from colabstage.io.pipeline import PipelineLimits, run_pipeline
from colabstage.io.workspace import Journal, current_world, cut_own, walk_journal
from colabstage.layouts.formats.masks import check_lossless
from colabstage.layouts.table import (
    Arrays,
    Boxes,
    Content,
    Images,
    Masks,
    SampleSource,
    SampleTable,
    TreeFiles,
    UnreadBoxes,
)
from colabstage.pack.job import PackJob, ReplanError, keeps_files, target_source
from colabstage.pack.plan import StoredField, image_options, mask_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Sized
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.images.geometry import ColorMode
    from colabstage.io.progress import Progress
    from colabstage.pack.arrival import PackStream
    from colabstage.pack.options import PackOptions

    R = TypeVar("R")

# Samples in a block. With 32 reads in flight several blocks are unfinished, and a kill loses those; a line costs 3 µs.
BLOCK_SAMPLES = 8
# The errors after which finished samples are kept, because the next attempt may succeed: an interrupt, a source or
# mount that is back by then, a repaired file. Not a full disk, of which they take a part.
KEPT_AFTER = (KeyboardInterrupt, CancelledError, SourceError, DriveError, DecodeError)
# The stamp of an unfinished block. Finished blocks never have it: a stamp that would be 0 is written as 1.
_NO_STAMP = 0
# For each sample: the size of its upright image; which bytes of the spool are its x and its y; a digest of its image
# file, 0 for none; which values its mask has, a bit for each; and which parts of its image file are not stored.
FACTS = np.dtype(
    [
        *(("height", "<i4"), ("width", "<i4"), ("start", "<i8", (2,)), ("length", "<i8", (2,))),
        *(("content", "<u8"), ("levels", "u1", (32,)), *((part, "?") for part in LOSSES)),
    ]
)


class PackJournal(Closing):
    """Which of N samples are finished.

    A block counts only while each of its samples has the stamp that it had when the block was finished. So a file that
    is repaired or replaced costs its own block, not all the work.

    Attributes:
        skipped: why samples were left out, by their positions.
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

    def _read(self, *, keep_skipped: bool) -> None:
        """If the journal belongs to this work, take over its blocks whose samples have not changed."""
        try:
            for value in walk_journal(self._path, self._head):
                if "block" in value:
                    self._stamps[value["block"]] = value["stamp"]
                elif "skipped" in value:
                    self.skipped[value["skipped"]] = value["why"]
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
        self.skipped = {
            position: why
            for position, why in self.skipped.items()
            if self._stamps[position // BLOCK_SAMPLES] != _NO_STAMP
        }

    def _begin(self) -> Journal:
        # How many samples of each block are unfinished; one byte each, because there may be millions of blocks.
        self._left = np.full(len(self._stamps), BLOCK_SAMPLES, np.uint8)
        self._left[-1:] = self._samples - BLOCK_SAMPLES * (len(self._left) - 1)
        finished = np.flatnonzero(self._stamps != _NO_STAMP)
        blocks = zip(finished.tolist(), self._stamps[finished].tolist(), strict=True)
        kept = chain(
            ({"block": block, "stamp": stamp} for block, stamp in blocks),
            ({"skipped": position, "why": why} for position, why in sorted(self.skipped.items())),
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

    def finish(self, position: int, *, skipped: str | None = None) -> None:
        """Record that a sample is in its place, or was left out for the reason `skipped`; once for each sample, from
        any thread."""
        with self._lock:
            if skipped is not None:
                self.skipped[position] = skipped
                self._lines.append({"skipped": position, "why": skipped})
            self._count_off(position // BLOCK_SAMPLES, 1)

    def finish_rows(self, positions: NDArray[np.int64]) -> None:
        """Record that samples are in their places, as `finish` does for one."""
        blocks, counts = np.unique(positions // BLOCK_SAMPLES, return_counts=True)
        with self._lock:
            for block, count in zip(blocks.tolist(), counts.tolist(), strict=True):
                self._count_off(block, count)

    def _count_off(self, block: int, count: int) -> None:
        self._left[block] -= count
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


class SampleFacts(Closing):
    """`FACTS` of each of N samples, in a file: written in any order, from any thread, and then read.

    Unwritten facts are zeros, as for samples that were left out.
    """

    def __init__(self, path: Path, count: int) -> None:
        """Open the file of an earlier run, or make it."""
        self._path, self._count = path, count
        path.touch()
        cut_own(path, count * FACTS.itemsize)
        # Not mapped: mapped pages count as this process's memory for as long as it packs.
        self._file = TargetFile(path, fresh=False)

    def write(self, index: int, value: bytes) -> None:
        self._file.write(value, index * FACTS.itemsize)

    def put(self, indices: NDArray[np.int64], values: NDArray[np.void]) -> None:
        """Write the facts of some samples, while nothing else writes."""
        np.memmap(self._path, FACTS, "r+", shape=self._count)[indices] = values

    def read(self, *names: str) -> NDArray[np.void]:
        """Return these facts of all samples; not mapped, because a mount that dies would kill the process."""
        found = np.empty(self._count, [(name, FACTS[name]) for name in names])
        with self._path.open("rb") as file:
            for first, count in block_ranges(self._count, _MOST_ROWS):
                found[first : first + count] = np.fromfile(file, FACTS, count)[list(names)]
        return found

    def close(self) -> None:
        """Close the file, which can still be read."""
        self._file.close()


def spool_end(facts: SampleFacts) -> int:
    """Return the end of the last piece of the spool that belongs to a sample, in bytes."""
    # A run that died before it recorded them wrote the pieces after it.
    noted = facts.read("start", "length")
    return int((noted["start"] + noted["length"]).max(initial=0))


# --- samples ----------------------------------------------------------------------------------------------------------

# Large enough for a disk's full rate, and little compared with the memory of one decoder.
COPY_BYTES = 8 * 1024 * 1024
# Of rows of arrays this much is read and written at once: Python takes 30 µs to pass something from thread to thread,
# and a row of 3 kB takes 1 µs. More would only make progress coarser, and lose more work to a kill.
_ROWS_BYTES, _MOST_ROWS = 1024 * 1024, 8192

Size = tuple[int, int]


class RawSample(NamedTuple):
    x: Content
    y: Content | None = None
    """`None` if targets are known in advance."""


class RawRows(NamedTuple):
    """Several samples that were read at once, as arrays `(M, …)`."""

    x: NDArray[Any]
    y: NDArray[Any] | None = None

    def sample(self, number: int) -> RawSample:
        return RawSample(*(part[number, ...] for part in self.parts))

    @property
    def parts(self) -> tuple[NDArray[Any], ...]:
        return (self.x,) if self.y is None else (self.x, self.y)


class StoredSample(NamedTuple):
    parts: tuple[memoryview, ...]
    size: Size
    """Height and width of its upright image before resizing; zeros if it is not an image."""
    lost: tuple[Loss, ...]
    levels: NDArray[np.bool_] | None = None
    """Which values its mask has, `(256,)`; `None` if masks are not compared."""


class BrokenSampleError(Exception):
    """A part of a sample cannot be used; `part` is the name to look for."""

    def __init__(self, part: str, error: Exception) -> None:
        super().__init__(f"{part}: {error}")
        self.part = part
        self.cause = error


def sample_positions(table: SampleTable) -> NDArray[np.int64]:
    """Return int64 `(N,)`: the position of each sample in the source, so that ascending ones are read in order."""
    target = target_source(table)
    # For a sample in two files the later position counts, because in an arriving archive it cannot be read before that.
    # A mask is often in another folder than its image, gigabytes further on.
    positions = table.inputs.source.positions
    return positions if target is None else np.maximum(positions, target.positions)


def sample_costs(table: SampleTable) -> NDArray[np.int64]:
    """Return int64 `(N,)`: how many bytes are read for each sample."""
    target, sizes = target_source(table), np.asarray(table.inputs.source.sizes, np.int64)
    return sizes if target is None else sizes + target.sizes


def sample_stamps(table: SampleTable, *, marked: bool = False) -> Callable[[int], str]:
    """Return what gives a text for each sample that changes whenever its content may have changed.

    `marked`: also with what shows a change only on this machine.
    """
    target, stamp = target_source(table), table.inputs.source.stamp
    files = [source for source in (table.inputs.source, target) if marked and isinstance(source, TreeFiles)]
    if target is None and not files:
        return stamp

    def stamp_all(index: int) -> str:
        targets = [] if target is None else [target.stamp(index)]
        marks = [source.tree.mark_of(source.entries[index]) for source in files]
        return " ".join([stamp(index), *targets, *filter(None, marks)])

    return stamp_all


def compares_masks(table: SampleTable) -> bool:
    """Return whether all masks are compared with what a few of them suggest about their values."""
    # Foreground masks have two values, and each mask with another value is refused.
    return isinstance(table.targets, Masks) and table.targets.guessed and not table.targets.foreground


class SampleEncoder:
    """Turns the samples of a job into the bytes that are stored. Thread-safe."""

    def __init__(self, job: PackJob) -> None:
        self._table, self._plan, self._options = job.table, job.plan, job.options
        self._target, self._compares_masks = target_source(job.table), compares_masks(job.table)

    def encode(self, index: int, raw: RawSample, scratch: Scratch) -> StoredSample:
        """Encode one sample; the bytes may be in this thread's `scratch` until the next call."""
        part, levels = self._table.inputs.source.name(index), None
        try:
            x, size, lost = self._encode_x(index, raw.x, scratch)
            check_kept(lost, self._options.image.color_mode)
            parts: tuple[memoryview, ...] = (x,)
            drawn: Size | None = None
            if isinstance(targets := self._table.targets, Boxes):
                # Zeros if nothing states the size that they were drawn on.
                drawn = (0, 0) if targets.sizes is None else tuple(targets.sizes[index].tolist())
            if self._target is not None and raw.y is not None:
                part = self._target.name(index)
                y, drawn, levels = self._encode_y(index, raw.y)
                parts = (x, y)
            if drawn is not None and is_turned(raw.x, size, drawn, mask=raw.y):
                lost = (*lost, "turned")
        except DecodeError as error:
            raise BrokenSampleError(part, error) from error
        except Exception as error:
            # The caller's own functions do not know which sample they are called with.
            if not isinstance(error, ColabstageError):
                error.add_note(f"This happened with '{part}'.")
            raise
        return StoredSample(parts, size, lost, levels)

    def keeps(self, index: int, rows: RawRows, scratch: Scratch) -> bool:
        """Tell whether rows are stored as they were read, which the first of them, sample `index`, shows."""
        # What is stored of it is then its own memory.
        stored = self.encode(index, rows.sample(0), scratch).parts
        return all(map(np.may_share_memory, stored, rows.parts))

    def _encode_x(self, index: int, content: Content, scratch: Scratch) -> tuple[memoryview, Size, tuple[Loss, ...]]:
        """Return the bytes of an input, the size of its upright image, and what of its file they leave out."""
        inputs, field, options = self._table.inputs, self._plan.x, self._options
        if isinstance(inputs, Arrays):
            return _row(inputs.to_array(content), field, inputs.source.name(index)), (0, 0), ()
        if field.shape is None and field.lengths is not None:
            return _checked_file(content, field.lengths, index, inputs.source, options.image.color_mode)
        pixels, size, lost = self._decode(content, scratch)
        if options.jpeg_quality is not None:
            return memoryview(encode_jpeg(pixels, options.jpeg_quality)), size, lost
        # A row of another length would overwrite its neighbour, which may be written already.
        if pixels.shape != field.shape or pixels.dtype != field.dtype:
            is_size = field.shape is None or pixels.shape[:2] != field.shape[:2]
            remedy = "image_size=(height, width)" if is_size else "color_mode='rgb'"
            msg = (
                f"'{inputs.source.name(index)}' has shape {pixels.shape} and dtype {pixels.dtype} among images of "
                f"shape {field.shape} and dtype {field.dtype}; give {remedy}, or encoding='encoded'"
            )
            # "auto" has examined only sixteen images. If another size turns up, packing starts over with the original
            # files: that loses work, but no image is stretched unasked.
            raise ReplanError(msg, keeps_files)
        return pixels.data.cast("B"), size, lost

    def _decode(self, content: Content, scratch: Scratch) -> DecodedImage:
        resizer = self._plan.resizer or "pillow"
        if isinstance(content, bytes):
            return decode_sized(content, self._options.image, resizer=resizer, scratch=scratch)
        pixels = fit_pixels(content, image_options(self._table, self._options), resizer=resizer)
        lost: tuple[Loss, ...] = ("bits",) if pixels.dtype.itemsize < content.dtype.itemsize else ()
        return DecodedImage(pixels, (content.shape[0], content.shape[1]), lost)

    def _encode_y(self, index: int, content: Content) -> tuple[memoryview, Size | None, NDArray[np.bool_] | None]:
        """Return the bytes of a target; for boxes and masks, the size of what they were drawn on, zeros if unknown; and
        for a mask, which values it has, if these are compared."""
        targets, field = self._table.targets, self._plan.y
        assert field is not None
        if isinstance(targets, UnreadBoxes):
            return array_bytes(np.asarray(content)), (0, 0), None
        if isinstance(targets, Arrays):
            return _row(targets.to_array(content), field, targets.source.name(index)), None, None
        assert isinstance(targets, Masks)
        data = None if field.lengths is None else _checked_file(content, field.lengths, index, targets.source)[0]
        if targets.guessed and not targets.foreground:
            check_lossless(content)
        # Decoded even if the file itself is stored: a broken one is found now, not in the third epoch.
        options = mask_options(targets, self._options)
        indices = read_mask(content, options)
        levels = level_counts(indices) > 0 if self._compares_masks else None
        y = fit_mask(indices, options).data.cast("B") if data is None else data
        return y, (indices.shape[0], indices.shape[1]), levels


def is_turned(image: Content, size: Size, drawn: Size, *, mask: Content | None) -> bool:
    """Tell whether EXIF turns an image and nothing shows if its boxes or mask were drawn before or after that; refuse
    those that were drawn on another size.

    `drawn`: height and width by the label file, zeros if it does not say, or those of the `mask`.
    """
    turns = [orientation_of(one) if isinstance(one, bytes) else 1 for one in (image, mask)]
    is_across = len({upright_size(size, turn) for turn in turns}) > 1
    if drawn in ((0, 0), size):
        # An image that EXIF turns sideways has these sides only upright.
        return turns[0] != turns[1] and not (is_across and drawn == size)
    msg = (
        f"The {'label file' if mask is None else 'mask'} has {drawn[0]} x {drawn[1]} pixels and the image {size[0]} x "
        f"{size[1]} (height x width, upright). Take the image that it was drawn on, or correct it."
    )
    raise DecodeError(msg)


def _checked_file(
    content: Content, lengths: NDArray[np.int64], index: int, source: SampleSource, color_mode: ColorMode = "keep"
) -> tuple[memoryview, Size, tuple[Loss, ...]]:
    """Return an image file that is stored unchanged, the size in its header, and what is lost in `color_mode`."""
    assert isinstance(content, bytes)
    # A truncated JPEG opens without complaint and is grey below the cut.
    facts = check_complete(content)
    if color_mode != "keep" and facts.dtype.kind == "f":
        raise no_range(facts.dtype)
    # One byte too many would overwrite its neighbour.
    if len(content) != lengths[index]:
        name, expected = source.name(index), int(lengths[index])
        msg = f"'{name}' came as {len(content):,} bytes to store, its place has {expected:,}."
        raise SourceReadError(msg)
    return memoryview(content), (facts.height, facts.width), facts.losses(color_mode)


def _row(values: NDArray[Any], place: StoredField, name: str) -> memoryview:
    if values.shape != place.shape or values.dtype != place.dtype:
        msg = (
            f"'{name}' has shape {values.shape} and dtype {values.dtype}; expected {place.shape} and {place.dtype}, as "
            "all the others. Pad, cut or convert them; rows of any length can stay in an HDF5 file of your own, which "
            "dataset_h5 reads."
        )
        raise LayoutError(msg)
    return array_bytes(values)


def array_bytes(values: NDArray[Any]) -> memoryview:
    """Return the bytes of an array, in C order."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True)
class WriteJob:
    """What one run of the writer works on, read-only."""

    job: PackJob
    order: NDArray[np.int64]
    """int64 `(N,)`, the sample at each position of the reading order."""
    target: Path
    """The file, which has space for all samples whose lengths are known."""
    offsets: Mapping[str, int]
    places: tuple[NDArray[np.int64], ...]
    """For each field of the plan, int64 `(N,)`: byte offset of each sample in `target`."""
    facts: SampleFacts | None = None
    """What is recorded of each sample beside its bytes; `None` if there is nothing."""
    spool: Spool | None = None
    """Takes the bytes that have no place yet; `None` if all have one."""


def write_samples(
    work: WriteJob,
    journal: PackJournal,
    *,
    left: Sequence[int],
    limits: PipelineLimits,
    progress: Progress,
    stream: PackStream | None = None,
) -> int:
    """Write the samples at the positions `left` of the reading order to their places; return how many threads read."""
    # A reader of a stream asks for samples in any order, and waits for each.
    at_once = 1 if stream is not None else _rows_at_once(work)

    def check_left_out() -> None:
        check_share(work.job.options, journal.skipped, len(work.order), journal.a_reason)

    with (
        progress.step("pack", total=len(work.order), unit=work.job.table.unit) as step,
        TargetFile(work.target, fresh=False) as file,
    ):
        step.start_at(len(work.order) - len(left))
        samples = _Samples(work, journal, file, stream)

        def rows_from(first: int) -> NDArray[np.int64]:
            return np.asarray(left[first : first + at_once])

        def use(position: int, raw: RawSample | BrokenSampleError) -> None:
            samples.store(position, raw)
            advance(1)

        def use_rows(first: int, raw: RawRows | None) -> None:
            positions = rows_from(first)
            samples.store_rows(positions, raw)
            advance(len(positions))

        def advance(count: int) -> None:
            step.advance(count)
            # After each, so that a folder of the wrong files is noticed within seconds.
            check_left_out()

        # What makes one read slow, for so many.
        limits = replace(limits, slow_read_s=limits.slow_read_s * at_once)
        run = partial(run_pipeline, limits=limits, cancellation=progress.cancellation)
        if at_once == 1:
            readers = run(left, read=samples.read, use=use, cost=samples.cost)
        else:
            readers = run(
                range(0, len(left), at_once),
                read=lambda first: samples.read_rows(rows_from(first)),
                use=use_rows,
                cost=lambda first: at_once * samples.cost(left[first]),
            )
        check_left_out()
    return readers


class _Memory(threading.local):
    """Memory to decode into, separate for each worker."""

    def __init__(self) -> None:
        self.scratch = Scratch()


class _Samples:
    """Reads samples by their position in the reading order, and stores each."""

    def __init__(self, work: WriteJob, journal: PackJournal, file: TargetFile, stream: PackStream | None) -> None:
        self._work, self._journal, self._file, self._stream = work, journal, file, stream
        target = target_source(work.job.table)
        self._sources = (work.job.table.inputs.source, *([] if target is None else [target]))
        self._costs = sample_costs(work.job.table)
        self._encoder, self._memory, self._room = SampleEncoder(work.job), _Memory(), PixelRoom()

    def cost(self, position: int) -> int:
        return int(self._costs[self._work.order[position]])

    def read(self, position: int) -> RawSample | BrokenSampleError:
        index = int(self._work.order[position])
        try:
            x, *y = (_read_part(source.name(index), partial(source.read, index)) for source in self._sources)
            return RawSample(x, *y)
        # Returned, not raised, because the worker records which samples are left out.
        except BrokenSampleError as error:
            return error

    def read_rows(self, positions: NDArray[np.int64]) -> RawRows | None:
        """Read rows of arrays at once; `None` if one of them is damaged, which shows when each is read by itself."""
        indices = self._work.order[positions]
        try:
            x, *y = (
                _read_part(source.name(int(indices[0])), partial(source.read_rows, indices))
                for source in self._sources
                if source.read_rows is not None
            )
        except BrokenSampleError:
            return None
        return RawRows(x, *y)

    def store(self, position: int, raw: RawSample | BrokenSampleError) -> None:
        """Store a sample, or note why it is left out."""
        why: str | None = None
        # A few kilobytes of PNG may hold 170 million pixels, so this limits what is decoded at the same time.
        with self._room.room_for(raw.x if isinstance(raw, RawSample) else None):
            try:
                if isinstance(raw, BrokenSampleError):
                    raise raw
                self._store(int(self._work.order[position]), raw)
            except BrokenSampleError as error:
                why = _leave_out(self._work.job.options, error)
        # Last, because a sample that is in the journal but not in place would be lost.
        self._journal.finish(position, skipped=why)
        if self._stream is not None:
            self._stream.arrived(position)

    def store_rows(self, positions: NDArray[np.int64], rows: RawRows | None) -> None:
        """Store samples that were read at once."""
        indices = self._work.order[positions]
        if rows is not None and self._encoder.keeps(int(indices[0]), rows, self._memory.scratch):
            for part, places in zip(rows.parts, self._work.places, strict=True):
                self._file.write_rows(array_bytes(part), places[indices].tolist())
            self._journal.finish_rows(positions)
            return
        for number, position in enumerate(positions.tolist()):
            self.store(position, self.read(position) if rows is None else rows.sample(number))

    def _store(self, index: int, raw: RawSample) -> None:
        """Decode one sample and write it."""
        work, stored = self._work, self._encoder.encode(index, raw, self._memory.scratch)
        starts, lengths = [0, 0], [0, 0]
        fields = zip(work.job.plan.fields, stored.parts, work.places, strict=True)
        for number, (field, part, places) in enumerate(fields):
            if field.is_open:
                assert work.spool is not None
                starts[number], lengths[number] = work.spool.append(part), len(part)
            else:
                self._file.write(part, int(places[index]))
        if work.facts is not None:
            facts = np.zeros((), FACTS)
            facts["height"], facts["width"] = stored.size
            facts["start"], facts["length"] = starts, lengths
            facts["content"] = xxhash.xxh3_64_intdigest(raw.x) if isinstance(raw.x, bytes) else 0
            facts["levels"] = 0 if stored.levels is None else np.packbits(stored.levels)
            for loss in stored.lost:
                facts[loss] = True
            work.facts.write(index, facts.tobytes())


def _rows_at_once(work: WriteJob) -> int:
    """Return how many samples are read and written at once: several if they are short rows of arrays."""
    table = work.job.table
    is_decoded = isinstance(table.inputs, Arrays) or table.inputs.decoded
    # What is noted of each sample shows only when it is decoded.
    if not is_decoded or work.job.plan.is_open or isinstance(table.targets, Boxes) or compares_masks(table):
        return 1
    parts = [part for part in (table.inputs, table.targets) if isinstance(part, Arrays | Images | Masks | UnreadBoxes)]
    are_rows = all(part.source.read_rows is not None for part in parts)
    # The caller's own functions are called for one sample, in whichever thread reads or decodes it.
    if not are_rows or any(isinstance(part, Arrays) and part.decode is not None for part in parts):
        return 1
    nbytes = sample_costs(table)[:1].sum()
    return int(np.clip(_ROWS_BYTES // max(1, nbytes), 1, _MOST_ROWS))


def _read_part(name: str, read: Callable[[], R]) -> R:
    try:
        # Damaged content is not a failure of the medium: reading it again returns the same.
        return read_with_retry(read, name, policy=RetryPolicy())
    except (CorruptArchiveError, DecodeError) as error:
        raise BrokenSampleError(name, error) from error


def check_share(options: PackOptions, left_out: Sized, total: int, a_reason: Callable[[], str]) -> None:
    """Stop when more of `total` samples are left out than `on_error` allows."""
    share, out = options.skip_share, len(left_out)
    if share is not None and out > share * total:
        msg = (
            f"{out:,} of {total:,} samples cannot be used, more than on_error={options.on_error!r} allows. "
            f"One of them: {a_reason()}. Finished work is kept."
        )
        raise DecodeError(msg)


def _leave_out(options: PackOptions, error: BrokenSampleError) -> str:
    """Return why a sample is left out, or raise an error with its name."""
    why = str(error.cause).rstrip(".")
    if options.skip_share is not None:
        return f"{error.part}: {why}"
    msg = f"'{error.part}' cannot be used: {why}. Repair or remove it, or give on_error='skip' to leave such files out."
    kind = CorruptArchiveError if isinstance(error.cause, CorruptArchiveError) else DecodeError
    raise kind(msg) from error.cause


def copy_runs(
    old: int, new: TargetFile, starts: NDArray[np.int64], places: NDArray[np.int64], lengths: NDArray[np.int64]
) -> None:
    """Copy rows from their places in an open file to their places in a new one."""
    # The longest runs of rows that are neighbours in both: rows are a few kilobytes, and a read and a write for each of
    # a million would take minutes.
    cuts = np.flatnonzero((starts[1:] != starts[:-1] + lengths[:-1]) | (places[1:] != places[:-1] + lengths[:-1])) + 1
    first = np.concatenate([[0], cuts]).astype(np.int64)
    runs = (column.tolist() for column in (starts[first], np.add.reduceat(lengths, first), places[first]))
    for start, length, place in zip(*runs, strict=True):
        for offset, size in block_ranges(length, COPY_BYTES):
            new.write(pread_exactly(old, size, start + offset), place + offset)
