"""The commands `info` and `verify`: what a packed file holds, and whether every byte is as it was written."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from colabstage.cli import options as o  # noqa: TC001 - typer looks the annotations up
from colabstage.cli.outcome import exit_codes, fail, print_json, show, shows_progress
from colabstage.errors import PackFormatError, SourceNotFoundError, printable
from colabstage.io.arguments import NOTHING_DONE
from colabstage.io.files import hash_ranges
from colabstage.io.missing import whereabouts
from colabstage.io.units import format_bytes, format_count, format_duration, format_rate
from colabstage.machine.resources import usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from colabstage.h5.info import FieldInfo, PackInfo
    from colabstage.h5.manifest import Manifest, ManifestState
    from colabstage.io.progress import Progress

# More names would not help; --json has all of them.
_MOST_CLASSES = 12
_MOST_SKIPPED = 10
# Width of a table that goes into a pipe or a file, in columns: enough for any names.
_WIDE = 200
# Blocks hashed between two updates of the bar and checks for Ctrl-C: 512 MiB.
_BLOCKS_AT_ONCE = 64
_MOST_RANGES = 20


@dataclass(frozen=True, slots=True)
class PackDescription:
    """The result of `colabstage info`."""

    info: PackInfo
    """What it holds."""
    nbytes: int
    """Its length."""
    manifest: ManifestState
    """The state of its manifest."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
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


def describe_file(path: Path) -> PackDescription:
    """Examine an HDF5 file and its manifest; no sample is read.

    Raises:
        SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read.
    """
    from colabstage.h5.info import read_info
    from colabstage.h5.manifest import look_at_manifest

    info = read_info(path)
    nbytes = path.stat().st_size
    return PackDescription(info, nbytes, look_at_manifest(path, nbytes))


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


def print_description(described: PackDescription) -> None:
    """Print facts and table to stdout."""
    for name, value in _facts_of_pack(described):
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


def _facts_of_pack(described: PackDescription) -> list[tuple[str, str]]:
    info = described.info
    by = f", written by colabstage {described.manifest.written_by}" if described.manifest.written_by else ""
    # It can be read all the same, but there is nothing to compare its bytes with.
    form = "HDF5 that colabstage did not write" if info.format_version is None else f"pack {info.format_version}{by}"
    reason = f", because {info.encoding_reason}" if info.encoding_reason else ""
    names, more = info.classes, ", …" if len(info.classes) > _MOST_CLASSES else ""
    facts = [
        ("file", str(info.path)),
        ("size", format_bytes(described.nbytes)),
        ("format", form),
        ("source", info.source or ""),
        ("layout", info.layout or ""),
        ("samples", ", ".join(f"{name} {split.rows:,}" for name, split in info.splits.items())),
        ("classes", f"{len(names)}: {', '.join(names[:_MOST_CLASSES])}{more}" if names else ""),
        ("encoding", encoding_of(info) + reason),
        ("resized by", info.resizer or ""),
        ("manifest", described.manifest.detail),
    ]
    # Files from other programs have fewer facts; lines without a value are left out.
    return [(name, value) for name, value in facts if value]


def _print_table(info: PackInfo) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # Without a frame, so that lines can be copied from it.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("split", "rows", "dataset", "one row", "dtype", "size"):
        table.add_column(name, justify="right" if name in ("rows", "size") else "left")
    for name, split in info.splits.items():
        for number, field in enumerate(field for field in (split.x, split.y) if field is not None):
            # The name of a split appears once, beside its first dataset.
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
    # The remaining kind is encoded files, whose sizes may differ.
    what = "an image file" if field.mask is None else "a mask file"
    how = field.image or field.mask
    size = getattr(how, "size", None)
    return f"{what} of its own size" if size is None else f"{what}, to be {size[0]} x {size[1]}"


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """The result of the comparison."""

    path: Path
    """The file."""
    nbytes: int
    """Length of the file."""
    expected_bytes: int
    """Its length according to the manifest."""
    block_bytes: int
    """The size of each block except the last."""
    blocks: int
    """How many its manifest has, of `block_bytes` each."""
    damaged: tuple[int, ...]
    """Numbers of the blocks that differ, from 0."""
    seconds: float
    """Seconds that the comparison took."""

    @property
    def whole(self) -> bool:
        """Tell whether the file is as it was written."""
        return self.nbytes == self.expected_bytes and not self.damaged

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "path": str(self.path),
            "whole": self.whole,
            "bytes": self.nbytes,
            "expected_bytes": self.expected_bytes,
            "block_bytes": self.block_bytes,
            "blocks": self.blocks,
            "damaged_blocks": list(self.damaged),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        if self.whole:
            rate = format_rate(self.nbytes, self.seconds, "B")
            size, took = format_bytes(self.nbytes), format_duration(self.seconds)
            compared = f"{format_count(self.blocks, 'blocks')} of {size} in all"
            return f"'{self.path}' is intact: {compared}, each as it was written (compared in {took}, {rate})."
        # Both may apply: a copy that was cut off also ends within a block.
        faults = []
        if self.nbytes != self.expected_bytes:
            faults.append(f"it has {self.nbytes:,} bytes instead of {self.expected_bytes:,}")
        if self.damaged:
            size = format_bytes(self.block_bytes)
            faults.append(
                f"{len(self.damaged):,} of {self.blocks:,} blocks of {size} are not what was written: "
                f"{join_ranges(self.damaged)} (the first block is 0)"
            )
        return f"'{self.path}' is damaged: {' and '.join(faults)}. Delete it, then stage, copy or publish it again."


def verify_file(path: Path, *, progress: Progress) -> VerifiedFile:
    """Compare a file, packed or published, with its manifest.

    Raises:
        SourceNotFoundError: there is no such file.
        PackFormatError: it has no manifest, so there is nothing to compare it with.
        NewerFormatError: a newer colabstage wrote the manifest.
    """
    from colabstage.h5.manifest import manifest_path, read_manifest

    if path.is_dir():
        msg = f"'{path}' is a folder; expected a packed file, for example the .path of a staged dataset."
        raise PackFormatError(msg)
    if not path.is_file():
        msg = f"There is no file '{path}'. {whereabouts(path)}"
        raise SourceNotFoundError(msg)
    # Refused before hashing: without a manifest, hours of reading would prove nothing.
    manifest = read_manifest(path)
    if manifest is None:
        msg = (
            f"'{path}' has no complete manifest '{manifest_path(path).name}' beside it, so nothing says what its bytes "
            "should be. Packs and published files of colabstage have one."
        )
        raise PackFormatError(msg)
    began = time.monotonic()
    damaged = _damaged_blocks(path, manifest, progress)
    return VerifiedFile(
        path=path,
        nbytes=path.stat().st_size,
        expected_bytes=manifest.size,
        block_bytes=manifest.block_bytes,
        blocks=len(manifest.hashes),
        damaged=tuple(damaged),
        seconds=time.monotonic() - began,
    )


def _damaged_blocks(path: Path, manifest: Manifest, progress: Progress) -> list[int]:
    # Hashing releases Python's lock, so threads use all cores.
    threads = usable_cores()
    damaged: list[int] = []
    with progress.step(f"verify {path.name}", total=manifest.size, unit="B") as step:
        for first in range(0, len(manifest.ranges), _BLOCKS_AT_ONCE):
            part = manifest.ranges[first : first + _BLOCKS_AT_ONCE]
            # In parts, so that the bar moves and Ctrl-C works.
            found = hash_ranges(path, part, threads=threads)
            expected = manifest.hashes[first : first + len(part)]
            damaged += [first + i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
            step.advance(sum(length for _, length in part))
    return damaged


def join_ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers as ranges.

    >>> join_ranges([0, 1, 2, 7])
    '0-2, 7'
    """
    # Damage often covers whole ranges; their ends say more than thousands of numbers.
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:_MOST_RANGES]]
    return ", ".join(texts) + (", …" if len(runs) > _MOST_RANGES else "")


def _local(file: str) -> Path:
    """Return the path of a file on this machine.

    Raises:
        OptionError: it is an address.
    """
    from pathlib import Path

    from colabstage.sources.parse import refuse_address

    refuse_address("FILE", file, "bring it here with fetch_files first")
    return Path(file)


def info(file: o.PackFile, as_json: o.AsJson = False, debug: o.Debug = False) -> None:
    """Show what an HDF5 file with X_<split> and Y_<split> holds.

    It works for any such file, whichever tool wrote it. Samples are not read.

    Examples:
      colabstage info /content/colabstage/kitti-1f2e3d4c/kitti-1f2e3d4c.h5
      colabstage info data.h5 --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        described = describe_file(_local(file))
        if as_json:
            print_json(described.to_dict())
        else:
            print_description(described)


def verify(file: o.PackFile, as_json: o.AsJson = False, debug: o.Debug = False) -> None:
    """Compare every byte of a file with its manifest.

    The manifest is the file of the same name with .json added. Damaged blocks are listed, and the exit code is 1.

    Examples:
      colabstage verify /content/drive/MyDrive/colabstage/kitti-1f2e3d4c.h5
      colabstage verify model.pt --json
    """
    with exit_codes(debug=debug, kept=NOTHING_DONE):
        from colabstage.io.progress import resolve_progress

        found = verify_file(_local(file), progress=resolve_progress(shows_progress()))
        if as_json:
            print_json(found.to_dict())
        elif found.whole:
            show(found)
        if not found.whole:
            fail(str(found))
