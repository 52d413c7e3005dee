"""What is left when every sample has been decoded: gaps to close, spooled bytes to place, boxes to write."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from colabstage.errors import LayoutError
from colabstage.fetch.copy import TargetFile
from colabstage.h5.create import create_pack
from colabstage.images.options import ImageOptions
from colabstage.layouts.fields import Boxes
from colabstage.machine.resources import check_space
from colabstage.pack.compact import FieldCopy, copy_rows, without_samples
from colabstage.pack.fields import pack_content, split_boxes
from colabstage.pack.samples import array_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from colabstage.pack.job import PackJob
    from colabstage.pack.plan import PackPlan
    from colabstage.pack.writer import SampleFacts

# File and tables around the samples.
OVERHEAD_BYTES = 4 * 1024 * 1024


class DecodedPack(NamedTuple):
    """All samples, decoded and written. `data` is the file, `places` where each field's samples lie in it, `offsets`
    those of its datasets; `spool` has what had no place, `facts` what was noted of each sample."""

    data: Path
    places: tuple[NDArray[np.int64], ...]
    offsets: dict[str, int]
    spool: Path
    facts: SampleFacts


class FinishedPack(NamedTuple):
    """The file to publish, and the plan that it follows."""

    file: Path
    plan: PackPlan


def finish_pack(
    job: PackJob,
    decoded: DecodedPack,
    *,
    left_out: NDArray[np.int64],
    skipped: tuple[str, ...],
    attributes: Mapping[str, Any],
) -> FinishedPack:
    """Make the final file of decoded samples. May be called again after it was interrupted.

    Args:
        job: the plan.
        decoded: the samples.
        left_out: int64, samples that could not be decoded; `skipped` says why, one sentence for each.
        attributes: of the file's root.

    Raises:
        LayoutError: nothing is left.
        NotEnoughSpaceError: the disk cannot hold a second file beside the first.
    """
    if not skipped and not job.plan.x.is_open:
        _write_boxes(job, job.plan, decoded.data, decoded.offsets, decoded.facts)
        return FinishedPack(decoded.data, job.plan)
    plan = without_samples(job.plan, left_out)
    if not plan.splits:
        msg = f"None of the {len(job.table):,} {job.table.unit} can be decoded. The first: {skipped[0]}"
        raise LayoutError(msg)
    copies = [FieldCopy(decoded.data, places) for places in decoded.places]
    if plan.x.is_open:
        noted = decoded.facts.read()
        plan = replace(plan, x=replace(plan.x, lengths=noted["length"].astype(np.int64)))
        copies[0] = FieldCopy(decoded.spool, noted["start"].astype(np.int64))
    check_space(decoded.data.parent, plan.nbytes + OVERHEAD_BYTES, f"The final pack of '{job.label}'")
    final = decoded.data.with_name("final.h5")
    content = pack_content(job.table, plan, job.options, attributes=attributes, skipped=skipped)
    offsets = create_pack(final, content)
    copy_rows(plan, copies, target=final, offsets=offsets)
    _write_boxes(job, plan, final, offsets, decoded.facts)
    return FinishedPack(final, plan)


def _write_boxes(job: PackJob, plan: PackPlan, file: Path, offsets: Mapping[str, int], facts: SampleFacts) -> None:
    """Write the boxes of all samples, now that every image's own size is known."""
    boxes = job.table.targets
    if not isinstance(boxes, Boxes):
        return
    noted = facts.read()
    sizes = np.stack([noted["height"], noted["width"]], axis=1).astype(np.int64)
    # Images that are kept as they came are resized when they are read, and so are their boxes.
    image = ImageOptions() if plan.encoding == "encoded" else job.options.image
    with TargetFile(file, fresh=False) as target:
        for split in plan.splits:
            for name, values in split_boxes(boxes, split, sizes, image).items():
                if values.nbytes:
                    target.write(array_bytes(values), offsets[name])
