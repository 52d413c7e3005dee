"""Open a pack in the cache where it is, because it is larger than what may be here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.h5.info import read_info
from colabstage.io.units import format_bytes
from colabstage.load.partial import open_partial
from colabstage.stage.dataset import StagedDataset

if TYPE_CHECKING:
    from colabstage.stage.cache import CachedPack
    from colabstage.stage.make import StageCall
    from colabstage.stage.request import StageRequest


def exceeds_limit(request: StageRequest, cached: CachedPack) -> bool:
    """Tell whether a pack is larger than what may be here."""
    return request.disk_limit is not None and cached.manifest.size > request.disk_limit


def open_in_part(call: StageCall, cached: CachedPack) -> StagedDataset:
    """Open a pack of which no more than `disk_limit` is ever here.

    Raises:
        As `open_partial`.
    """
    request, report, limit = call.request, call.report, call.request.disk_limit
    assert limit is not None
    report.origin = "cache"
    report.skipped = cached.manifest.skipped
    with report.timed("open in part", unit="B") as step:
        part = open_partial(cached.path, limit, local_dir=request.folder.parent)
        step.amount = part.figures["fetched"]
        step.note = f"index and labels; never more than {format_bytes(limit)} of {format_bytes(cached.manifest.size)}"
    report.note(
        f"The pack stays in the cache ('{cached.path}') and is read from there block by block; keep it there and "
        "reachable while loaders run."
    )
    return StagedDataset(path=part.path, files=None, report=report, info=read_info(part.path), part=part)
