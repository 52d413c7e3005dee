"""What `colabstage verify` does: every byte of a file against its manifest, with the rate and the damaged blocks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.errors import PackFormatError, SourceNotFoundError
from colabstage.fileops import hash_ranges
from colabstage.h5.manifest import manifest_path, read_manifest
from colabstage.machine.resources import usable_cores
from colabstage.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from colabstage.h5.manifest import Manifest
    from colabstage.progress import Progress

# Blocks hashed between two looks at the bar and at Ctrl-C: 512 MiB.
_BLOCKS_AT_ONCE = 64
_MOST_RANGES = 20


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """What the comparison found.

    `nbytes`: length of the file; `expected_bytes`: as its manifest says. `blocks`: in the manifest, of `block_bytes`
    each. `damaged`: numbers of those that differ, from 0. `seconds`: how long it took.
    """

    path: Path
    nbytes: int
    expected_bytes: int
    block_bytes: int
    blocks: int
    damaged: tuple[int, ...]
    seconds: float

    @property
    def whole(self) -> bool:
        """Whether the file is what was written."""
        return self.nbytes == self.expected_bytes and not self.damaged

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
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
            compared = f"{self.blocks:,} block{'s' if self.blocks != 1 else ''} of {size} in all"
            return f"'{self.path}' is whole: {compared}, each as it was written (compared in {took}, {rate})."
        faults = []
        if self.nbytes != self.expected_bytes:
            faults.append(f"it has {self.nbytes:,} bytes instead of {self.expected_bytes:,}")
        if self.damaged:
            size = format_bytes(self.block_bytes)
            faults.append(
                f"{len(self.damaged):,} of {self.blocks:,} blocks of {size} are not what was written: "
                f"number {join_ranges(self.damaged)}, counted from 0"
            )
        return f"'{self.path}' is damaged: {' and '.join(faults)}. Stage it again with --refresh, or copy it again."


def verify_file(path: Path, *, progress: Progress) -> VerifiedFile:
    """Compare a file, packed or published, with its manifest.

    Raises:
        SourceNotFoundError: there is no such file.
        PackFormatError: it has no manifest, so there is nothing to compare it with.
        NewerFormatError: a newer colabstage wrote the manifest.
    """
    if not path.is_file():
        msg = f"There is no file '{path}'."
        raise SourceNotFoundError(msg)
    manifest = read_manifest(path)
    if manifest is None:
        msg = (
            f"'{path}' has no whole manifest '{manifest_path(path).name}' beside it, so nothing says what its bytes "
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
    threads = usable_cores()
    damaged: list[int] = []
    with progress.step(f"verify {path.name}", total=manifest.size, unit="B") as step:
        for first in range(0, len(manifest.ranges), _BLOCKS_AT_ONCE):
            part = manifest.ranges[first : first + _BLOCKS_AT_ONCE]
            found = hash_ranges(path, part, threads=threads)
            expected = manifest.hashes[first : first + len(part)]
            damaged += [first + i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]
            step.advance(sum(length for _, length in part))
    return damaged


def join_ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers shortly.

    >>> join_ranges([0, 1, 2, 7])
    '0-2, 7'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:_MOST_RANGES]]
    return ", ".join(texts) + (", …" if len(runs) > _MOST_RANGES else "")
