"""What `colabstage info` says about an HDF5 file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.cli.command import Output
from colabstage.h5.info import FieldInfo, read_info
from colabstage.h5.manifest import look_at_manifest
from colabstage.io.report import Row, Table, facts, json_values
from colabstage.io.units import NAMES_SHOWN, format_bytes, format_names

if TYPE_CHECKING:
    from pathlib import Path

# More lines would not help; --json has all of them.
_MOST_SKIPPED = 10


def describe_pack(file: Path) -> Output:
    info, nbytes = read_info(file), file.stat().st_size
    manifest = look_at_manifest(info.path, nbytes)
    by = f", written by colabstage {manifest.written_by}" if manifest.written_by else ""
    # It can still be read, but there is nothing to compare its bytes with.
    form = "HDF5 that colabstage did not write" if info.format_version is None else f"pack {info.format_version}{by}"
    known = {
        "file": str(info.path),
        "size": format_bytes(nbytes),
        "format": form,
        "source": info.source or "",
        "layout": info.layout or "",
        "samples": ", ".join(f"{name} {rows:,}" for name, rows in info.rows.items()),
        "classes": format_names(info.classes[:NAMES_SHOWN], len(info.classes)) if info.classes else "",
        "encoding": ", because ".join(filter(None, (info.encoding, info.encoding_reason))),
        "resized by": info.resizer or "",
        "manifest": manifest.detail,
    }
    fields = [(split, field) for split in info.splits.values() for field in (split.x, split.y) if field is not None]
    rows = tuple(
        Row((split.name, f"{split.rows:,}", one.name, _one_row(one), str(one.dtype), format_bytes(one.nbytes)))
        for split, one in fields
    )
    head = ("split", "rows", "dataset", "one row", "dtype", "size")
    lines = [str(facts((name, text) for name, text in known.items() if text)), ""]
    lines.append(str(Table(rows, head, numbers=frozenset({1, 5}))))
    if info.skipped:
        rest = len(info.skipped) - _MOST_SKIPPED
        more = [f"  … and {rest:,} more, with --json"] if rest > 0 else []
        lines += ["", f"{len(info.skipped):,} left out:", *(f"  {one}" for one in info.skipped[:_MOST_SKIPPED]), *more]
    found = json_values(info) | {"nbytes": nbytes, "manifest": json_values(manifest)}
    return Output(found, "\n".join(lines))


def _one_row(field: FieldInfo) -> str:
    if field.kind == "fixed":
        return " x ".join(map(str, field.shape or ())) or "one number"
    if field.kind == "encoded":
        what, options = ("an image file", field.image) if field.mask is None else ("a mask file", field.mask)
        size = getattr(options, "size", None)
        return f"{what} of its own size" if size is None else f"{what}, to be {size[0]} x {size[1]}"
    names = {"boxes": f"any number of {', '.join(field.columns)}", "texts": "a text"}
    return names.get(field.kind, "any number of values")
