"""What a pack's file holds before its samples: known targets, keys, offsets, classes, and room for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.h5.create import PackContent, ReservedDataset
from colabstage.h5.schema import CLASSES, SKIPPED, key_name, y_name
from colabstage.layouts.fields import Boxes, Values
from colabstage.pack.boxes import reserve_boxes
from colabstage.trees.entries import take_strings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.table import SampleTable
    from colabstage.pack.options import PackOptions
    from colabstage.pack.plan import PackPlan


def pack_content(
    table: SampleTable,
    plan: PackPlan,
    options: PackOptions,
    *,
    attributes: Mapping[str, Any],
    skipped: Sequence[str] = (),
) -> PackContent:
    """All that the file holds before its samples.

    `skipped` has one sentence for each sample that was left out.
    """
    reserved: list[ReservedDataset] = []
    arrays: dict[str, NDArray[Any]] = {CLASSES: np.array(table.classes, dtype=object)}
    if skipped:
        arrays[SKIPPED] = np.array(skipped, dtype=object)
    texts: dict[str, Sequence[str]] = {}
    groups: dict[str, Mapping[str, Any]] = {}
    for split in plan.splits:
        texts[key_name(split.name)] = take_strings(table.keys, split.samples)
        if isinstance(table.targets, Values):
            arrays[y_name(split.name)] = table.targets.values[split.samples]
        elif isinstance(table.targets, Boxes):
            reserved += reserve_boxes(table.targets, split)
        for part in plan.fields:
            if part.is_open:
                continue
            arrays.update(part.offsets(split))
            reserved.append(part.reserve(split))
            if part.attributes:
                groups[part.name(split.name)] = part.attributes
    return PackContent(
        reserved=reserved,
        arrays=arrays,
        texts=texts,
        attributes={"layout": table.layout, "options": options.to_json(), **attributes},
        group_attributes=groups,
    )
