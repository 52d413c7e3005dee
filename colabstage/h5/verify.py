"""`verify_file`: compare every byte of a packed or published file with its manifest."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colabstage.errors import PackFormatError, SourceNotFoundError
from colabstage.h5.manifest import manifest_path, read_manifest
from colabstage.io.arguments import check_argument, whereabouts
from colabstage.io.boundary import NOTHING_DONE, public
from colabstage.io.display import resolve_progress
from colabstage.io.files import hash_ranges
from colabstage.io.units import format_bytes, format_count, format_duration, format_rate
from colabstage.machine.mounts import run_watched
from colabstage.machine.resources import usable_cores

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from colabstage.io.progress import Progress

# Blocks hashed between two updates of the bar and checks for Ctrl-C: 512 MiB.
_BLOCKS_AT_ONCE = 64
_MOST_RANGES = 20


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """The result of `verify_file`."""

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


@public(reads=("path",), stopped=NOTHING_DONE)
def verify_file(path: str | os.PathLike[str], *, progress: bool | Progress = True) -> VerifiedFile:
    """Compare every byte of a file, packed or published, with its manifest.

    >>> verify_file("photos.h5").whole  # doctest: +SKIP
    True

    Args:
        path: the file; its manifest has the same name with `.json` added.
        progress: whether to show the progress; or an object that shows it.

    Returns:
        Which blocks are damaged, if any.

    Raises:
        SourceNotFoundError: there is no such file.
        PackFormatError: it has no manifest, so there is nothing to compare it with.
        NewerFormatError: a newer colabstage wrote the manifest.
    """
    check_argument("path", path, "path")
    shown, file = resolve_progress(progress), Path(path)
    return run_watched(lambda: _verify(file, shown), file)


def _verify(file: Path, shown: Progress) -> VerifiedFile:
    if file.is_dir():
        msg = f"'{file}' is a folder; expected a packed file, for example the .path of a staged dataset."
        raise PackFormatError(msg)
    if not file.is_file():
        msg = f"There is no file '{file}'. {whereabouts(file)}"
        raise SourceNotFoundError(msg)
    # Refused before hashing: without a manifest, hours of reading would prove nothing.
    manifest = read_manifest(file)
    if manifest is None:
        msg = (
            f"'{file}' has no complete manifest '{manifest_path(file).name}' beside it, so nothing says what its bytes "
            "should be. Packs and published files of colabstage have one."
        )
        raise PackFormatError(msg)
    began, damaged = time.monotonic(), list[int]()
    blocks = list(zip(manifest.ranges, manifest.hashes, strict=True))
    with shown.step(f"verify {file.name}", total=manifest.size, unit="B") as step:
        # In parts, so that the bar moves and Ctrl-C works.
        for first in range(0, len(blocks), _BLOCKS_AT_ONCE):
            shown.cancellation.check()
            ranges, hashes = zip(*blocks[first : first + _BLOCKS_AT_ONCE], strict=True)
            found = hash_ranges(file, ranges, threads=usable_cores())
            damaged += [first + at for at, pair in enumerate(zip(found, hashes, strict=True)) if pair[0] != pair[1]]
            step.advance(sum(length for _, length in ranges))
    seconds, size = time.monotonic() - began, file.stat().st_size
    return VerifiedFile(file, size, manifest.size, manifest.block_bytes, len(blocks), tuple(damaged), seconds)


def join_ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers as ranges.

    >>> join_ranges([0, 1, 2, 7])
    '0-2, 7'
    """
    # Damage often covers whole ranges; their ends say more than thousands of numbers.
    runs = [list(run) for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    texts = [str(run[0][1]) if len(run) == 1 else f"{run[0][1]}-{run[-1][1]}" for run in runs[:_MOST_RANGES]]
    return ", ".join(texts) + (", …" if len(runs) > _MOST_RANGES else "")
