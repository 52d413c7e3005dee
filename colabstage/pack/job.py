"""A planned pack: the samples of a tree, and how they will be stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from colabstage.images.decode import ImageFacts, fit_pixels, probe_image
from colabstage.images.options import ImageOptions
from colabstage.images.resample import can_torch_resize
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.fields import Arrays
from colabstage.layouts.reading import read_each
from colabstage.machine.resources import release_freed_memory
from colabstage.pack.plan import PackPlan, gains_by_torch, needs_facts, plan_pack
from colabstage.pack.prepare import prepared_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.layouts.sources import Content
    from colabstage.layouts.table import SampleTable
    from colabstage.pack.options import PackOptions
    from colabstage.trees.tree import Tree

# Enough to see that a folder holds images of many sizes; few enough to cost one round trip of parallel reads.
_PROBES = 16


@dataclass(frozen=True, slots=True)
class PackJob:
    """A pack that is planned but not begun: `table` of the samples of `tree`, `plan` for `options`.

    `tree` is `None` where samples come from Python objects.
    """

    tree: Tree | None
    table: SampleTable
    plan: PackPlan
    options: PackOptions

    @property
    def label(self) -> str:
        """The source's address, for messages."""
        return f"a dataset of {len(self.table)} items" if self.tree is None else self.tree.label

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should see about the source."""
        return (*(() if self.tree is None else self.tree.notes), *self.table.notes)


def prepare_pack(tree: Tree, options: PackOptions, *, free_bytes: int | None) -> PackJob:
    """Find the samples of a tree and plan their pack; reads names, and the headers of a few images where needed.

    Raises:
        LayoutError, OptionError: as `pack_dataset`.
        SourceReadError, SourceNotFoundError, DriveDisconnectedError: the source cannot be read.
    """
    return plan_job(tree, detect_layout(tree, options.layout), options, free_bytes=free_bytes)


def plan_job(
    tree: Tree | None,
    table: SampleTable,
    options: PackOptions,
    *,
    free_bytes: int | None,
    facts: Sequence[ImageFacts] | None = None,
    has_torch: bool | None = None,
) -> PackJob:
    """Plan the pack of a table of samples, as `prepare_pack`.

    `facts`: of a few images, where somebody has looked. `has_torch`: whether torch may resize, where that is decided;
    `None` finds out, which imports torch where that pays.
    """
    if options.image.size is not None and isinstance(table.inputs, Arrays):
        shape = "x".join(map(str, table.inputs.shape)) or "one number"
        note = (
            f"image_size={options.image.size} changes nothing: the inputs are arrays ({shape} of {table.inputs.dtype}) "
            "and no images, and are stored as they are; prepare= may resize them"
        )
        table = replace(table, notes=(*table.notes, note))
    if options.prepare is not None:
        table = prepared_table(table, options.prepare, options.image)
    if facts is None:
        facts = seen_facts(tree, table, options)
    if has_torch is None:
        has_torch = gains_by_torch(table, options) and can_torch_resize()
    plan = plan_pack(table, options, facts=facts, free_bytes=free_bytes, has_torch=has_torch)
    release_freed_memory()  # listing and sorting are done; what follows keeps its columns for hours
    return PackJob(tree, table, plan, options)


def seen_facts(tree: Tree | None, table: SampleTable, options: PackOptions) -> Sequence[ImageFacts]:
    """Look at a few images, where that is needed to plan their pack."""
    if options.prepare is not None or not needs_facts(table, options):
        return ()
    # Items of a dataset are taken in their order, each once, and those that come first are kept.
    return look_at_images(table, spread=tree is not None and tree.kind == "folder", in_caller=tree is None)


def look_at_images(table: SampleTable, *, spread: bool, in_caller: bool = False) -> Sequence[ImageFacts]:
    """Look at a few images: with `spread` over all, else at the first ones of an archive, which arrive first;
    `in_caller` in this thread, one after the other."""
    source, count = table.inputs.source, min(_PROBES, len(table))
    chosen = np.linspace(0, len(table) - 1, count).astype(int) if spread else np.argsort(source.positions)[:count]
    # What is no image is met again, and named, when it is packed.
    return read_each(
        source,
        chosen.tolist(),
        lambda _, content: _facts_of(content),
        readers=_PROBES,
        skip_broken=True,
        in_caller=in_caller,
    )


def _facts_of(content: Content) -> ImageFacts:
    if isinstance(content, bytes):
        return probe_image(content)
    pixels = fit_pixels(content, ImageOptions(color_mode="keep"))
    height, width, channels = pixels.shape
    return ImageFacts(height, width, channels, pixels.dtype, "array")
