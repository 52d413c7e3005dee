"""`FileSet`: the files of one pack that is somewhere else, and how their blocks are numbered: pure.

Blocks are counted through all files, one file after the other, so that one plan, one table and one limit are enough for
however many there are. An *address* counts bytes in the same way: each file begins with a block of its own, at the
number of that block times the length of a block. Of a single file, addresses are its offsets.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import PackFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.h5.manifest import Manifest
    from colabstage.sources.parse import SingleSource


@dataclass(frozen=True, slots=True)
class FileOfSet:
    """One file of a pack."""

    source: SingleSource
    """Where it is."""
    name: str
    """What its local, sparse file is called; each of a set has a name of its own."""
    manifest: Manifest
    """What it holds, with the hash of each block."""


class FileSet:
    """Files whose blocks are counted together. Pickles.

    `files`: in the order of their rows. `label`: what all of them are called in messages. `block_bytes`: the length of
    a block, the same in all. Of each block, `file_of`: the number of its file; `offsets`: where in that file it begins;
    `lengths`: its length in bytes; `hashes`: its hash.
    """

    def __init__(self, files: Sequence[FileOfSet], label: str = "") -> None:
        """Count their blocks.

        Args:
            files: at least one.
            label: by default that of the first.

        Raises:
            PackFormatError: their blocks have different lengths.
        """
        self.files = tuple(files)
        self.label = label or self.files[0].source.label
        lengths = {one.manifest.block_bytes for one in self.files}
        if len(lengths) > 1:
            msg = (
                f"The files of '{self.label}' have blocks of {' and of '.join(f'{one:,}' for one in sorted(lengths))} "
                "bytes, and are no set that was written together. Open each alone, or pack them again."
            )
            raise PackFormatError(msg)
        (self.block_bytes,) = lengths
        self.hashes = tuple(text for one in self.files for text in one.manifest.hashes)
        counts = [len(one.manifest.hashes) for one in self.files]
        self._firsts = np.cumsum([0, *counts])
        self.file_of = np.repeat(np.arange(len(counts)), counts)
        self.offsets = (np.arange(self.blocks) - self._firsts[self.file_of]) * self.block_bytes
        sizes = np.array([one.manifest.size for one in self.files], np.int64)
        self.lengths = np.minimum(self.block_bytes, sizes[self.file_of] - self.offsets)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileSet, (self.files, self.label)

    @property
    def blocks(self) -> int:
        """Count the blocks of all files."""
        return len(self.hashes)

    @property
    def firsts(self) -> NDArray[np.int64]:
        """Return the first block of each file."""
        return self._firsts[:-1]

    @property
    def size(self) -> int:
        """Return the length of all files together, in bytes."""
        return sum(one.manifest.size for one in self.files)

    @property
    def samples(self) -> dict[str, int]:
        """Return the rows of each split, in all files together."""
        found: dict[str, int] = {}
        for one in self.files:
            for split, rows in one.manifest.samples.items():
                found[split] = found.get(split, 0) + rows
        return found

    @property
    def skipped(self) -> tuple[str, ...]:
        """Return one sentence for each sample that was left out of any file."""
        return tuple(text for one in self.files for text in one.manifest.skipped)

    @property
    def digest(self) -> str:
        """Return 64 hexadecimal digits that change with the content of any block."""
        return hashlib.sha256("".join(self.hashes).encode()).hexdigest()

    def locate(self, block: int) -> tuple[int, int, int]:
        """Return the number of a block's file, where in it the block begins, and its length in bytes."""
        return int(self.file_of[block]), int(self.offsets[block]), int(self.lengths[block])

    def begin(self, number: int) -> int:
        """Return the address at which a file begins."""
        return int(self._firsts[number]) * self.block_bytes

    def end(self, number: int) -> int:
        """Return the address behind the last byte of a file."""
        return self.begin(number) + self.files[number].manifest.size

    def find(self, address: int) -> tuple[int, int]:
        """Return the number of the file that has an address, and the offset in it."""
        number = int(self.file_of[address // self.block_bytes])
        return number, address - self.begin(number)
