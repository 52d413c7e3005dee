"""Describe a packed file in Croissant 1.0, the JSON-LD by which Kaggle, Hugging Face and OpenML exchange datasets.

The file, its splits and its classes are described as the format requires. Croissant cannot read HDF5 yet, so the fields
of samples name their dataset in the file as a `column`: for people, and for tools that know HDF5.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from colabstage.errors import TargetExistsError
from colabstage.io.arguments import absolute_path
from colabstage.io.files import write_json
from colabstage.machine.mounts import require_drive

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from colabstage.h5.info import FieldInfo, PackInfo, SplitInfo

CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
_OWN_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet", "format"),
    *("includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex"),
    *("repeated", "replace", "samplingRate", "separator", "source", "subField", "transform"),
)
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _OWN_TERMS},
}
_ROLES = {"train": "Training", "test": "Test", **dict.fromkeys(("dev", "val", "valid", "validation"), "Validation")}
_NUMBERS = {"b": "sc:Boolean", "f": "sc:Float", "i": "sc:Integer", "u": "sc:Integer"}


def describe_pack(info: PackInfo, about: Mapping[str, str]) -> dict[str, Any]:
    """Return the description of a packed file, which is read in full for its SHA-256.

    `about`: `name`, `description`, `license`, `url` and so on, named as in schema.org.
    """
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": info.path.stem,
        "description": f"An HDF5 file with the datasets {', '.join(_datasets(info))}.",
        **about,
        "distribution": [_file_object(info.path)],
        "recordSet": [_splits(info), *_classes(info), *(_samples(info, split) for split in info.splits.values())],
    }


def write_description(description: dict[str, Any], target: str | os.PathLike[str], *, overwrite: bool) -> None:
    place = absolute_path(target, "target")
    require_drive(place)
    if place.exists() and not overwrite:
        msg = f"There is a file '{place}' already. Choose another name, or write overwrite=True to replace it."
        raise TargetExistsError(msg)
    write_json(place, description)


def _datasets(info: PackInfo) -> Iterator[str]:
    for split in info.splits.values():
        yield from (field.name for field in (split.x, split.y) if field is not None)


def _file_object(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "@type": "cr:FileObject",
        "@id": path.name,
        "name": path.name,
        "contentUrl": path.name,
        "contentSize": f"{path.stat().st_size} B",
        "encodingFormat": "application/x-hdf5",
        "sha256": digest,
    }


def _listed(name: str, kind: str, columns: Mapping[str, str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a record set whose few rows are in the description itself; the first column is the key."""
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "dataType": kind,
        "key": {"@id": f"{name}/{next(iter(columns))}"},
        "field": [_field(name, column, data_type) for column, data_type in columns.items()],
        "data": [{f"{name}/{column}": value for column, value in row.items()} for row in rows],
    }


def _field(record_set: str, name: str, data_type: str) -> dict[str, Any]:
    return {"@type": "cr:Field", "@id": f"{record_set}/{name}", "name": name, "dataType": data_type}


def _splits(info: PackInfo) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [{"name": name, "rows": split.rows} for name, split in info.splits.items()]
    columns = {"name": "sc:Text", "rows": "sc:Integer"}
    # The format knows only three roles, and all rows of a record set must have the same columns.
    if all(name in _ROLES for name in info.splits):
        rows = [{**row, "url": f"cr:{_ROLES[row['name']]}Split"} for row in rows]
        columns["url"] = "sc:URL"
    return _listed("splits", "cr:Split", columns, rows)


def _classes(info: PackInfo) -> Iterator[dict[str, Any]]:
    if info.classes:
        rows = [{"label": label, "name": name} for label, name in enumerate(info.classes)]
        yield _listed("classes", "sc:Enumeration", {"label": "sc:Integer", "name": "sc:Text"}, rows)


def _samples(info: PackInfo, split: SplitInfo) -> dict[str, Any]:
    name = f"samples_{split.name}"

    def column(role: str, dataset: str, data_type: str) -> dict[str, Any]:
        source = {"fileObject": {"@id": info.path.name}, "extract": {"column": dataset}}
        return {**_field(name, role, data_type), "source": source}

    fields = [{**column("x", split.x.name, _data_type(split.x)), **_repeated(split.x)}]
    if split.y is not None:
        is_class = info.classes and split.y.kind == "fixed" and split.y.shape == () and split.y.dtype.kind in "iu"
        label = {"references": {"field": {"@id": "classes/label"}}} if is_class else {}
        fields.append({**column("y", split.y.name, _data_type(split.y)), **_repeated(split.y), **label})
    if split.keys is not None:
        fields.append(column("key", split.keys, "sc:Text"))
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "field": fields}


def _data_type(field: FieldInfo) -> str:
    pixels = field.kind == "fixed" and field.dtype == "uint8" and len(field.shape or ()) in (2, 3)
    if pixels or field.kind == "encoded":
        return "sc:ImageObject"
    return {"boxes": "cr:BoundingBox", "texts": "sc:Text"}.get(field.kind) or _NUMBERS.get(field.dtype.kind, "sc:Text")


def _repeated(field: FieldInfo) -> dict[str, bool]:
    several = field.kind in ("boxes", "ragged") or (bool(field.shape) and _data_type(field) != "sc:ImageObject")
    return {"repeated": True} if several else {}
