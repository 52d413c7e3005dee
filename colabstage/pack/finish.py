"""What is left to do when every sample has been decoded: close gaps, move spooled bytes into place, write boxes.

When samples are left out, the others keep their split, their label and their order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.h5.schema import create_pack
from colabstage.images.options import ImageOptions
from colabstage.io.files import TargetFile, block_ranges, pread_exactly
from colabstage.layouts.table import Boxes, UnreadBoxes
from colabstage.machine.resources import check_space
from colabstage.pack.plan import pack_content, split_boxes
from colabstage.pack.splits import SplitPlan
from colabstage.pack.writer import array_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from colabstage.pack.job import PackJob
    from colabstage.pack.plan import PackPlan
    from colabstage.pack.writer import SampleFacts


# For HDF5's own structures around the samples.
OVERHEAD_BYTES = 4 * 1024 * 1024
_COPY_BYTES = 8 * 1024 * 1024


def without_samples(plan: PackPlan, left_out: NDArray[np.int64]) -> PackPlan:
    """Return the plan without some samples; splits that become empty are removed."""
    keep = [split.samples[~np.isin(split.samples, left_out)] for split in plan.splits]
    splits = (SplitPlan(split.name, samples) for split, samples in zip(plan.splits, keep, strict=True) if len(samples))
    return replace(plan, splits=tuple(splits))


class FieldCopy(NamedTuple):
    """Where the samples of a field are."""

    file: Path
    """The file that holds them."""
    places: NDArray[np.int64]
    """int64 `(N,)`, the byte offset of each in that file."""


def copy_rows(plan: PackPlan, sources: Sequence[FieldCopy], *, target: Path, offsets: Mapping[str, int]) -> None:
    """Copy `plan`'s samples to their places in a new file.

    Args:
        plan: the plan of the samples that remain.
        sources: where each field's samples are now.
        target: the new file, which has room for them at `offsets`, as `create_pack` returned them.
    """
    kept = np.concatenate([split.samples for split in plan.splits])
    with TargetFile(target, fresh=False) as new:
        for part, source in zip(plan.fields, sources, strict=True):
            places = part.places(plan.splits, offsets, len(source.places))
            with open(source.file, "rb") as old:
                for start, length, place in _runs_of_rows(source.places[kept], places[kept], part.lengths_of(kept)):
                    for offset, size in block_ranges(length, _COPY_BYTES):
                        new.write(pread_exactly(old.fileno(), size, start + offset), place + offset)


def _runs_of_rows(
    old: NDArray[np.int64], new: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Iterator[tuple[int, int, int]]:
    """Yield `(old place, length, new place)` of the longest runs of rows that are neighbours in both files."""
    # Rows are a few kilobytes, and a read and a write for each of a million would take minutes.
    cuts = np.flatnonzero((old[1:] != old[:-1] + lengths[:-1]) | (new[1:] != new[:-1] + lengths[:-1])) + 1
    first = np.concatenate([[0], cuts]).astype(np.int64)
    totals = np.add.reduceat(lengths, first)
    yield from zip(old[first].tolist(), totals.tolist(), new[first].tolist(), strict=True)


class DecodedPack(NamedTuple):
    """All samples, decoded and written."""

    data: Path
    """The file."""
    places: tuple[NDArray[np.int64], ...]
    """Byte offsets of each field's samples in it."""
    offsets: dict[str, int]
    """Byte offsets of its datasets."""
    spool: Path
    """The file of bytes that had no place yet."""
    facts: SampleFacts
    """What was recorded about each sample."""


class FinishedPack(NamedTuple):
    """The file to publish, and the plan that it follows."""

    file: Path
    """The file to publish."""
    plan: PackPlan
    """The plan without the samples that were left out."""


def finish_pack(
    job: PackJob,
    decoded: DecodedPack,
    *,
    left_out: NDArray[np.int64],
    skipped: tuple[str, ...],
    attributes: Mapping[str, Any],
) -> FinishedPack:
    """Make the final file from decoded samples. May be called again after it was interrupted.

    Args:
        job: the plan.
        decoded: the samples.
        left_out: int64, samples that could not be decoded; `skipped` says why, one sentence for each.
        attributes: those of the file's root.

    Raises:
        LayoutError: nothing is left.
        NotEnoughSpaceError: the disk cannot hold a second file beside the first.
    """
    # The usual case: every sample is in its final place, so nothing has to be copied.
    if not skipped and not job.plan.is_open:
        _write_boxes(job, job.plan, decoded.data, decoded.offsets, decoded.facts)
        return FinishedPack(decoded.data, job.plan)
    # Gaps are closed, so that the file is byte for byte that of a source without the broken samples.
    plan = without_samples(job.plan, left_out)
    if not plan.splits:
        msg = f"None of the {len(job.table):,} {job.table.unit} can be decoded. The first: {skipped[0]}"
        raise LayoutError(msg)
    copies = [FieldCopy(decoded.data, places) for places in decoded.places]
    # JPEGs made while packing were spooled in the order in which workers finished; only now that all their lengths are
    # known do they have places.
    if plan.x.is_open:
        noted = decoded.facts.read()
        plan = replace(plan, x=replace(plan.x, lengths=noted["length"][:, 0].astype(np.int64)))
        copies[0] = FieldCopy(decoded.spool, noted["start"][:, 0].astype(np.int64))
    # Boxes too: from here on they are those of a source that had them in files of their own.
    if isinstance(job.table.targets, UnreadBoxes):
        job = replace(job, table=replace(job.table, targets=_spooled_boxes(job.table.targets, decoded)))
        plan, copies = replace(plan, y=None), copies[:1]
    # Before a byte is written; what is decoded stays for the next attempt.
    check_space(decoded.data.parent, plan.nbytes + OVERHEAD_BYTES, f"The final pack of '{job.label}'")
    final = decoded.data.with_name("final.h5")
    content = pack_content(job.table, plan, job.options, attributes=attributes, skipped=skipped)
    offsets = create_pack(final, content)
    copy_rows(plan, copies, target=final, offsets=offsets)
    _write_boxes(job, plan, final, offsets, decoded.facts)
    return FinishedPack(final, plan)


def _spooled_boxes(targets: UnreadBoxes, decoded: DecodedPack) -> Boxes:
    """Return the boxes of all samples, none for those that were left out."""
    noted = decoded.facts.read()
    starts, lengths = noted["start"][:, 1], noted["length"][:, 1]
    with open(decoded.spool, "rb") as spool:
        pieces = [
            pread_exactly(spool.fileno(), length, start)
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
            if length
        ]
    rows = np.frombuffer(b"".join(pieces), targets.dtype)
    return targets.read(rows, (lengths // targets.dtype.itemsize).astype(np.int64))


def _write_boxes(job: PackJob, plan: PackPlan, file: Path, offsets: Mapping[str, int], facts: SampleFacts) -> None:
    """Write the boxes of all samples, now that every image's own size is known."""
    boxes = job.table.targets
    if not isinstance(boxes, Boxes):
        return
    noted = facts.read()
    sizes = np.stack([noted["height"], noted["width"]], axis=1).astype(np.int64)
    # Images stored as files are resized when they are read, and their boxes with them; arrays are not resized.
    image = ImageOptions() if plan.encoding in ("encoded", "arrays") else job.options.image
    with TargetFile(file, fresh=False) as target:
        for split in plan.splits:
            for name, values in split_boxes(boxes, split, sizes, image).items():
                if values.nbytes:
                    target.write(array_bytes(values), offsets[name])
