"""What files must have in common to be read as one: shape, dtype, coding, classes and kind of target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.errors import PackFormatError
from colabstage.h5.info import image_options_to_json, mask_options_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from colabstage.h5.info import FieldInfo, PackInfo

_CLASSES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class FieldSchema:
    """One side of every sample. `kind` in words; `facts`: whatever else must agree, by name."""

    kind: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PackSchema:
    """All samples of a pack. `y` is `None` where there are no targets."""

    classes: tuple[str, ...]
    x: FieldSchema
    y: FieldSchema | None


def rows_schema(shape: tuple[int, ...], dtype: np.dtype[Any]) -> FieldSchema:
    """Rows of one shape."""
    return FieldSchema("values of one shape", {"shape": shape, "dtype": str(dtype.newbyteorder("="))})


def boxes_schema(columns: tuple[str, ...]) -> FieldSchema:
    """Any number of boxes, with `columns` known of each."""
    return FieldSchema("boxes", {"columns": tuple(sorted(columns))})


def field_schema(info: FieldInfo) -> FieldSchema:
    """What a file says of one of its fields."""
    if info.kind == "fixed" and info.shape is not None:
        return rows_schema(info.shape, info.dtype)
    if info.kind == "boxes":
        return boxes_schema(info.columns)
    if info.kind == "ragged":
        return FieldSchema("rows of any number of values", {"dtype": str(info.dtype)})
    if info.kind == "texts":
        return FieldSchema("texts", {})
    if info.mask is not None:
        return FieldSchema("encoded masks", {"mask_options": mask_options_to_json(info.mask)})
    return FieldSchema("encoded images", {} if info.image is None else image_options_to_json(info.image))


def pack_schema(info: PackInfo, split: str) -> PackSchema:
    """What a file says of one of its splits.

    Raises:
        SplitNotFoundError: it has no such split.
    """
    fields = info.split(split)
    return PackSchema(info.classes, field_schema(fields.x), None if fields.y is None else field_schema(fields.y))


def schema_difference(expected: PackSchema, found: PackSchema) -> str | None:
    """In what the second differs from the first, in words that need no subject; `None` when they agree."""
    if expected.classes != found.classes:
        return f"its classes are {_list(found.classes)} instead of {_list(expected.classes)}"
    return _field_difference("inputs", expected.x, found.x) or _field_difference("targets", expected.y, found.y)


def _field_difference(side: str, expected: FieldSchema | None, found: FieldSchema | None) -> str | None:
    kinds = tuple(f"no {side}" if field is None else field.kind for field in (expected, found))
    if kinds[0] != kinds[1]:
        return f"its {side} are {kinds[1]} instead of {kinds[0]}"
    if expected is None or found is None:
        return None
    for name in sorted({*expected.facts, *found.facts}):
        wanted, there = expected.facts.get(name), found.facts.get(name)
        if wanted != there:
            return f"its {side} have {name} {there} instead of {wanted}"
    return None


def _list(classes: tuple[str, ...]) -> str:
    if not classes:
        return "not named"
    shown = ", ".join(classes[:_CLASSES_SHOWN])
    return f"({shown}, … {len(classes)} in all)" if len(classes) > _CLASSES_SHOWN else f"({shown})"


def check_schemas(infos: list[PackInfo], split: str) -> None:
    """Make sure that files can be read as one.

    Raises:
        PackFormatError: one differs from the first; the message says in what.
    """
    first = infos[0]
    expected = pack_schema(first, split)
    for other in infos[1:]:
        difference = schema_difference(expected, pack_schema(other, split))
        if difference is not None:
            msg = f"'{other.path}' cannot be read as one with '{first.path.name}': {difference}."
            raise PackFormatError(msg)
