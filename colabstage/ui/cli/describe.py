"""What `colabstage info` shows of a file: facts first, then one line for each dataset."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from colabstage.errors import printable
from colabstage.h5.info import read_info
from colabstage.h5.manifest import look_at_manifest
from colabstage.ui.cli.outcome import show
from colabstage.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.h5.info import FieldInfo, PackInfo
    from colabstage.h5.manifest import ManifestState

# More names than this tell nobody anything; --json has them all.
_MOST_CLASSES = 12
_MOST_SKIPPED = 10
_WIDE = 200


@dataclass(frozen=True, slots=True)
class Description:
    """One file: `info` is what it holds, `nbytes` its length, `manifest` the state of what vouches for it."""

    info: PackInfo
    nbytes: int
    manifest: ManifestState

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        info = self.info
        return {
            "path": str(info.path),
            "bytes": self.nbytes,
            "format": info.format_version,
            "layout": info.layout,
            "source": info.source,
            "encoding": encoding_of(info),
            "encoding_reason": info.encoding_reason,
            "resizer": info.resizer,
            "options": dict(info.options),
            "classes": list(info.classes),
            "splits": {
                name: {
                    "rows": split.rows,
                    "x": _field_to_dict(split.x),
                    "y": None if split.y is None else _field_to_dict(split.y),
                    "keys": split.keys,
                }
                for name, split in info.splits.items()
            },
            "manifest": asdict(self.manifest),
            "skipped": list(info.skipped),
        }


def _field_to_dict(field: FieldInfo) -> dict[str, Any]:
    return {
        "name": field.name,
        "kind": field.kind,
        "shape": None if field.shape is None else list(field.shape),
        "dtype": str(field.dtype),
        "bytes": field.nbytes,
    }


def describe_file(path: Path) -> Description:
    """Look at an HDF5 file and its manifest; no sample is read.

    Raises:
        SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read.
    """
    info = read_info(path)
    nbytes = path.stat().st_size
    return Description(info, nbytes, look_at_manifest(path, nbytes))


def encoding_of(info: PackInfo) -> str:
    """How inputs are stored, of all splits: as the file says, else `pixels`, `encoded`, or `arrays` where rows are no
    images."""
    if info.encoding is not None:
        return info.encoding
    fields = [split.x for split in info.splits.values()]
    if any(field.kind == "encoded" for field in fields):
        return "encoded"
    return "pixels" if all(_are_pixels(field) for field in fields) else "arrays"


def _are_pixels(field: FieldInfo) -> bool:
    """Whether rows look like images: of bytes, with as many channels as images have."""
    shape = field.shape or ()
    return field.dtype.kind == "u" and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 2, 3, 4)))


def print_description(described: Description) -> None:
    """Print facts and table to stdout."""
    for name, value in _facts(described):
        show(f"{name:<9} {value}")
    show("")
    _print_table(described.info)
    skipped = described.info.skipped
    if skipped:
        show(f"{len(skipped):,} left out:")
        for line in skipped[:_MOST_SKIPPED]:
            show(f"  {line}")
        if len(skipped) > _MOST_SKIPPED:
            show(f"  … and {len(skipped) - _MOST_SKIPPED:,} more, with --json")


def _facts(described: Description) -> list[tuple[str, str]]:
    info = described.info
    by = f", written by colabstage {described.manifest.written_by}" if described.manifest.written_by else ""
    form = "HDF5 that colabstage did not write" if info.format_version is None else f"pack {info.format_version}{by}"
    reason = f", because {info.encoding_reason}" if info.encoding_reason else ""
    facts = [
        ("file", str(info.path)),
        ("size", format_bytes(described.nbytes)),
        ("format", form),
        ("source", info.source or ""),
        ("layout", info.layout or ""),
        ("samples", ", ".join(f"{name} {split.rows:,}" for name, split in info.splits.items())),
        ("classes", _classes(info.classes)),
        ("encoding", encoding_of(info) + reason),
        ("resized by", info.resizer or ""),
        ("manifest", described.manifest.detail),
    ]
    return [(name, value) for name, value in facts if value]


def _classes(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    more = ", …" if len(names) > _MOST_CLASSES else ""
    return f"{len(names)}: {', '.join(names[:_MOST_CLASSES])}{more}"


def _print_table(info: PackInfo) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("split", "rows", "dataset", "one row", "dtype", "size"):
        table.add_column(name, justify="right" if name in ("rows", "size") else "left")
    for name, split in info.splits.items():
        for number, field in enumerate(field for field in (split.x, split.y) if field is not None):
            first = (printable(name), f"{split.rows:,}") if number == 0 else ("", "")
            table.add_row(*first, printable(field.name), _one_row(field), str(field.dtype), format_bytes(field.nbytes))
    # A pipe has no width; rich would fold the table to 80 columns.
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE, highlight=False).print(table)


def _one_row(field: FieldInfo) -> str:
    if field.kind == "boxes":
        return f"any number of {', '.join(field.columns)}"
    if field.kind == "fixed":
        return " x ".join(map(str, field.shape or ())) or "one number"
    if field.kind in ("ragged", "texts"):
        return "a text" if field.kind == "texts" else "any number of values"
    what = "an image file" if field.mask is None else "a mask file"
    how = field.image or field.mask
    size = getattr(how, "size", None)
    return f"{what} of its own size" if size is None else f"{what}, to be {size[0]} x {size[1]}"
