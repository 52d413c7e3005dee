"""One file from a slow place to a fast one, or back, every block hashed on the way."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import SourceReadError
from colabstage.io.files import RetryPolicy, block_ranges, hash_ranges, typed_write_errors
from colabstage.io.workspace import cut_own
from colabstage.sources.arriving import StreamingCopy
from colabstage.sources.blocks import Blocks, Layout
from colabstage.sources.fetcher import Remotes
from colabstage.sources.remote import MountedFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from colabstage.io.progress import Cancellation, ProgressStep


class Copied(NamedTuple):
    """The result of copying a file."""

    hashes: list[str]
    """The hash of each block."""
    kept_bytes: int
    """How much an interrupted copy had left in place."""


def copy_blocks(
    source: Path,
    target: Path,
    *,
    size: int,
    block_bytes: int,
    expected: Sequence[str] | None,
    step: ProgressStep,
    cancellation: Cancellation,
    policy: RetryPolicy,
    stall_timeout_s: float = 180.0,
    resume: bool = False,
) -> Copied:
    """Copy a file block by block, in order, hashing each block as it passes.

    Args:
        source: read once, sequentially, by one reader: on the simulated Drive two take 1.15 times as long, four 1.2.
        target: a temporary name; overwritten, unless `resume` is given.
        size: length that `source` must have, in bytes; another one is refused before anything is written.
        block_bytes: length of a block.
        expected: hash of each block, or `None` to take the bytes as they come. A block that comes out wrong is read
            again.
        step: told of every byte.
        cancellation: looked at several times a second.
        policy: how often a failing read is tried again.
        stall_timeout_s: seconds without a byte after which it fails.
        resume: continue with what an interrupted copy left in `target`: blocks of it that have the right hash stay.
    """
    with contextlib.closing(MountedFile(source)) as file:
        # Before anything is written: a file that is still being written would be copied in part.
        if (found := file.facts.size) != size:
            msg = f"'{source}' has {found:,} bytes; expected {size:,}. Wait until its upload or copy is complete."
            raise SourceReadError(msg)
        if resume and expected is None:
            # What is here is compared with the source.
            expected = hash_ranges(source, block_ranges(size, block_bytes), threads=1, cancellation=cancellation)
        with typed_write_errors(target):
            if target.exists():
                cut_own(target, min(target.stat().st_size, size) if resume else 0)
        layout = Layout([target.name], [size], block_bytes, expected)
        blocks = Blocks(target.parent, layout, "", shared=False, gives_back=False, is_noted=False)
        unused = [file]
        copy = StreamingCopy(
            file,
            target,
            step=step,
            policy=policy,
            connections=1,
            stall_timeout_s=stall_timeout_s,
            cancellation=cancellation,
            # A mount may return the same wrong bytes to one handle for ever.
            into=(blocks, Remotes(str(source), [size], [lambda: unused.pop() if unused else MountedFile(source)])),
        )
        try:
            copy.wait()
        finally:
            copy.end()
    # A mount may report only now that it could not keep the data.
    blocks.close()
    return Copied(list(copy.block_hashes), copy.kept_bytes)
