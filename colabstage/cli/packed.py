"""The commands `info` and `verify`: what a packed file holds, and whether every byte is as it was written."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colabstage.cli import options as o  # noqa: TC001 - typer looks the annotations up
from colabstage.cli.outcome import exit_codes, fail, print_json, show, shows_progress
from colabstage.io.arguments import NOTHING_DONE
from colabstage.io.units import format_bytes, text_table

if TYPE_CHECKING:
    from colabstage.h5.info import FieldInfo, PackInfo
    from colabstage.h5.manifest import ManifestState

# More names would not help; --json has all of them.
_MOST_CLASSES = 12
_MOST_SKIPPED = 10


def encoding_of(info: PackInfo) -> str:
    """Return how inputs are stored: as the file says, otherwise `pixels`, `encoded`, or `arrays` if rows are not
    images."""
    if info.encoding is not None:
        return info.encoding
    fields = [split.x for split in info.splits.values()]
    # One split of encoded images is enough: the file then needs decoding when it is read.
    if any(field.kind == "encoded" for field in fields):
        return "encoded"
    return "pixels" if all(_are_pixels(field) for field in fields) else "arrays"


def _are_pixels(field: FieldInfo) -> bool:
    """Tell whether rows look like images: bytes, with as many channels as images have."""
    shape = field.shape or ()
    # Signed bytes and floats may be anything; unsigned bytes of this shape are images in all programs.
    return field.dtype.kind == "u" and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 2, 3, 4)))


def _as_json(info: PackInfo, nbytes: int, manifest: ManifestState) -> dict[str, Any]:
    return {
        "path": str(info.path),
        "bytes": nbytes,
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
                "x": _field_as_json(split.x),
                "y": None if split.y is None else _field_as_json(split.y),
                "keys": split.keys,
            }
            for name, split in info.splits.items()
        },
        "manifest": asdict(manifest),
        "skipped": list(info.skipped),
    }


def _field_as_json(field: FieldInfo) -> dict[str, Any]:
    return {
        "name": field.name,
        "kind": field.kind,
        "shape": None if field.shape is None else list(field.shape),
        "dtype": str(field.dtype),
        "bytes": field.nbytes,
    }


def _print_info(info: PackInfo, nbytes: int, manifest: ManifestState) -> None:
    by = f", written by colabstage {manifest.written_by}" if manifest.written_by else ""
    # It can be read all the same, but there is nothing to compare its bytes with.
    form = "HDF5 that colabstage did not write" if info.format_version is None else f"pack {info.format_version}{by}"
    reason = f", because {info.encoding_reason}" if info.encoding_reason else ""
    names, more = info.classes, ", …" if len(info.classes) > _MOST_CLASSES else ""
    facts = {
        "file": str(info.path),
        "size": format_bytes(nbytes),
        "format": form,
        "source": info.source or "",
        "layout": info.layout or "",
        "samples": ", ".join(f"{name} {split.rows:,}" for name, split in info.splits.items()),
        "classes": f"{len(names)}: {', '.join(names[:_MOST_CLASSES])}{more}" if names else "",
        "encoding": encoding_of(info) + reason,
        "resized by": info.resizer or "",
        "manifest": manifest.detail,
    }
    # Files from other programs have fewer facts; lines without a value are left out.
    show(*(f"{name:<10} {value}" for name, value in facts.items() if value), "")
    rows = [
        (name, f"{split.rows:,}", field.name, _one_row(field), str(field.dtype), format_bytes(field.nbytes))
        for name, split in info.splits.items()
        for field in (split.x, split.y)
        if field is not None
    ]
    show(text_table(("split", "rows", "dataset", "one row", "dtype", "size"), rows, numbers=frozenset({1, 5})))
    skipped = info.skipped
    if skipped:
        rest = len(skipped) - _MOST_SKIPPED
        show("", f"{len(skipped):,} left out:", *(f"  {line}" for line in skipped[:_MOST_SKIPPED]))
        if rest > 0:
            show(f"  … and {rest:,} more, with --json")


def _one_row(field: FieldInfo) -> str:
    if field.kind == "boxes":
        return f"any number of {', '.join(field.columns)}"
    if field.kind == "fixed":
        return " x ".join(map(str, field.shape or ())) or "one number"
    if field.kind in ("ragged", "texts"):
        return "a text" if field.kind == "texts" else "any number of values"
    # The remaining kind is encoded files, whose sizes may differ.
    what = "an image file" if field.mask is None else "a mask file"
    size = getattr(field.image or field.mask, "size", None)
    return f"{what} of its own size" if size is None else f"{what}, to be {size[0]} x {size[1]}"


def info(file: o.PackFile, as_json: o.AsJson = False, debug: o.Debug = False) -> None:
    """Show what an HDF5 file with X_<split> and Y_<split> holds.

    It works for any such file, whichever tool wrote it. Samples are not read.

    Examples:
      colabstage info /content/colabstage/kitti-1f2e3d4c/kitti-1f2e3d4c.h5
      colabstage info data.h5 --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.h5.info import read_info
        from colabstage.h5.manifest import look_at_manifest
        from colabstage.sources.parse import refuse_address

        refuse_address("FILE", file, "copy it here with fetch_files first")
        held, nbytes = read_info(Path(file)), Path(file).stat().st_size
        manifest = look_at_manifest(held.path, nbytes)
        if as_json:
            print_json(_as_json(held, nbytes, manifest))
        else:
            _print_info(held, nbytes, manifest)


def verify(file: o.PackFile, as_json: o.AsJson = False, debug: o.Debug = False) -> None:
    """Compare every byte of a file with its manifest.

    The manifest is the file of the same name with .json added. Damaged blocks are listed, and the exit code is 1.

    Examples:
      colabstage verify /content/drive/MyDrive/colabstage/kitti-1f2e3d4c.h5
      colabstage verify model.pt --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.h5.verify import verify_file

        found = verify_file(file, progress=shows_progress())
        if as_json:
            print_json(found.to_dict())
        elif found.whole:
            show(found)
        if not found.whole:
            fail(str(found))
