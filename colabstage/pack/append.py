"""Adding to a dataset that is packed already: the same form, or a refusal that names the difference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import OptionError
from colabstage.h5.info import read_info
from colabstage.h5.parts import (
    FieldSchema,
    PackSchema,
    PartName,
    appended_beside,
    boxes_schema,
    find_parts,
    pack_schema,
    rows_schema,
    schema_difference,
    shard_pattern,
    shards_beside,
)
from colabstage.h5.schema import IMAGE_OPTIONS_ATTRIBUTE, MASK_OPTIONS_ATTRIBUTE
from colabstage.images.options import ImageOptions
from colabstage.layouts.table import Boxes, Values
from colabstage.pack.options import PackOptions, recorded_image

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.h5.info import PackInfo
    from colabstage.layouts.table import SampleTable
    from colabstage.pack.fields import StoredField
    from colabstage.pack.plan import PackPlan


def read_base(target: Path) -> PackInfo:
    """What is appended to: the file `target`, the first of its shards, or the dataset that a part belongs to.

    Raises:
        SourceNotFoundError: there is nothing, or shards are missing.
        PackFormatError, NewerFormatError, DamagedPackError: it cannot be read.
    """
    shards = [] if target.exists() else shards_beside(target)
    if shards:
        return read_info(find_parts(shard_pattern(target, PartName.of(shards[0]).count))[0])
    return read_info(target)


def dataset_of(part: Path) -> Path:
    """The file that a dataset would be if it were one: `NAME.h5` of `NAME.h5`, of a shard, and of what was appended."""
    name = PartName.of(part)
    return part.with_name(f"{name.stem}{name.suffix}")


def options_like(base: PackInfo, options: PackOptions) -> PackOptions:
    """The options for more of `base`: what is left at its default is as it was there."""
    plain = ImageOptions()
    recorded = recorded_image(base.options)
    asked = options.image
    image = ImageOptions(
        size=recorded.size if asked.size is None else asked.size,
        color_mode=recorded.color_mode if asked.color_mode == plain.color_mode else asked.color_mode,
        resize=recorded.resize if asked.resize == plain.resize else asked.resize,
    )
    encoding = options.encoding
    if encoding == "auto" and base.encoding is not None and base.encoding != "arrays":
        encoding = base.encoding
    return replace(options, image=image, encoding=encoding)


def with_classes(table: SampleTable, classes: tuple[str, ...]) -> SampleTable:
    """The table with the labels of `classes`, where its own are some of them."""
    if table.classes == classes or not set(table.classes) <= set(classes) or not table.classes:
        return table
    numbers = np.array([classes.index(name) for name in table.classes], np.int64)
    targets = table.targets
    if isinstance(targets, Values) and targets.values.ndim == 1 and targets.values.dtype.kind in "iu":
        return replace(table, classes=classes, targets=Values(numbers[targets.values]))
    if isinstance(targets, Boxes) and "labels" in targets.columns:
        columns = {**targets.columns, "labels": numbers[targets.columns["labels"]]}
        return replace(table, classes=classes, targets=replace(targets, columns=columns))
    return table


def check_fits(base: PackInfo, table: SampleTable, plan: PackPlan, options: PackOptions) -> None:
    """Make sure that what is planned can be read as one with `base`.

    Raises:
        OptionError: it cannot; the message says in what it differs.
    """
    expected = pack_schema(base, next(iter(base.splits)))
    difference = schema_difference(expected, _planned_schema(table, plan))
    prepare = options.to_json()["prepare"]
    if difference is None and base.options.get("prepare") != prepare:
        difference = f"its inputs are prepared by {prepare} instead of {base.options.get('prepare')}"
    if difference is None and base.encoding not in (None, plan.encoding):
        difference = f"its encoding is {plan.encoding} instead of {base.encoding}"
    if difference is not None:
        msg = (
            f"This cannot be appended to '{base.path}': {difference}. Nothing has been written; change the options or "
            "the source so that both agree, or pack it to a file of its own."
        )
        raise OptionError(msg)


def repeated_names(base: Path, table: SampleTable, *, but: Path) -> int:
    """How many of the samples have the name of one in the dataset's other files than `but`."""
    import h5py

    there: set[bytes] = set()
    for part in (base, *shards_beside(base), *appended_beside(base)):
        if part.is_file() and part != but:
            with h5py.File(part, "r", locking=False) as file:
                there.update(*(file[name][()].tolist() for name in file if name.startswith("key_")))
    return sum(key.encode(errors="backslashreplace") in there for key in table.keys)


def _planned_schema(table: SampleTable, plan: PackPlan) -> PackSchema:
    """What `pack_schema` will say of the file once it is written."""
    targets = table.targets
    if isinstance(targets, Values):
        y: FieldSchema | None = rows_schema(targets.values.shape[1:], targets.values.dtype)
    elif isinstance(targets, Boxes):
        y = boxes_schema(("boxes", *targets.columns))
    else:
        y = None if plan.y is None else _stored_schema(plan.y)
    return PackSchema(table.classes, _stored_schema(plan.x), y)


def _stored_schema(field: StoredField) -> FieldSchema:
    if field.shape is not None:
        return rows_schema(field.shape, field.dtype)
    if MASK_OPTIONS_ATTRIBUTE in field.attributes:
        return FieldSchema("encoded masks", {"mask_options": field.attributes[MASK_OPTIONS_ATTRIBUTE]})
    return FieldSchema("encoded images", field.attributes.get(IMAGE_OPTIONS_ATTRIBUTE, {}))
