"""A planned pack: the samples of a tree, and how they will be stored."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import CorruptArchiveError, DecodeError
from colabstage.images.decode import probe_image
from colabstage.layouts.detect import detect_layout
from colabstage.pack.plan import PackPlan, needs_facts, plan_pack
from colabstage.pipeline import PipelineLimits, run_pipeline
from colabstage.progress import Cancellation
from colabstage.retry import RetryPolicy, read_with_retry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.images.decode import ImageFacts
    from colabstage.layouts.table import SampleTable
    from colabstage.pack.options import PackOptions
    from colabstage.trees.tree import Tree

# Enough to see that a folder holds images of many sizes; few enough to cost one round trip of parallel reads.
_PROBES = 16


@dataclass(frozen=True, slots=True)
class PackJob:
    """A pack that is planned but not begun: `table` of the samples of `tree`, `plan` for `options`."""

    tree: Tree
    table: SampleTable
    plan: PackPlan
    options: PackOptions


def prepare_pack(tree: Tree, options: PackOptions, *, free_bytes: int | None) -> PackJob:
    """Find the samples of a tree and plan their pack; reads names, and the headers of a few images where needed.

    Raises:
        LayoutError, OptionError: as `pack_dataset`.
        SourceReadError, SourceNotFoundError, DriveDisconnectedError: the source cannot be read.
    """
    table = detect_layout(tree, options.layout)
    facts = look_at_images(tree, table) if needs_facts(options) else ()
    return PackJob(tree, table, plan_pack(table, options, facts=facts, free_bytes=free_bytes), options)


def look_at_images(tree: Tree, table: SampleTable) -> Sequence[ImageFacts]:
    """Read the headers of a few images, spread over a folder; of an archive the first, which arrive first."""
    entries = table.files
    if tree.kind == "folder":
        chosen = [entries[int(i)] for i in np.linspace(0, len(entries) - 1, min(_PROBES, len(entries)))]
    else:
        chosen = sorted(entries, key=lambda entry: entry.position)[:_PROBES]
    policy = RetryPolicy()
    found: dict[int, ImageFacts] = {}

    def read(number: int) -> bytes:
        entry = chosen[number]
        try:
            return read_with_retry(lambda: tree.read(entry), entry.name, policy=policy)
        except CorruptArchiveError:
            return b""

    def use(number: int, data: bytes) -> None:
        # What is no image is met again, and named, when it is packed.
        with suppress(DecodeError):
            found[number] = probe_image(data)

    run_pipeline(
        range(len(chosen)),
        read=read,
        use=use,
        cost=lambda number: chosen[number].size,
        limits=PipelineLimits(readers=_PROBES, max_readers=_PROBES, workers=1),
        cancellation=Cancellation(),
    )
    return [found[number] for number in sorted(found)]
