"""Which samples of an unfinished pack are already in their places, so that a killed run goes on where it was.

One line of text for each finished block of samples, appended with one write. Whoever takes a journal over writes it
anew first, so that a line cut off by a kill, or a reason from an unfinished block, stays behind. Nothing is forced to
the disk: what a killed process wrote, the kernel still has. After a reboot it may not, so a journal counts only in the
boot that wrote it; a rented machine's local disk does not outlive that anyway.
"""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING, Self

import xxhash

from colabstage.fileops import current_world

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

# Samples in a block. With 32 reads in flight several blocks are under way, and a kill costs those; a line costs 3 µs.
BLOCK_SAMPLES = 8


class Journal:
    """The journal of one run. `fingerprint` says which work it belongs to; N samples in all.

    A block counts only as long as each of its samples has the stamp that it had when it was finished, so that one file
    that is repaired or replaced costs its own block, not the work.
    """

    def __init__(
        self, path: Path, *, fingerprint: str, samples: int, stamp: Callable[[int], str], keep_skipped: bool = True
    ) -> None:
        """Open the journal, keeping what an earlier run with the same fingerprint finished.

        `stamp`: what tells one state of the sample at a position from another. `keep_skipped`: whether samples that
        an earlier run left out may stay out; otherwise they are tried again.
        """
        self._lock = threading.Lock()
        self._samples = samples
        self._stamp = stamp
        self._head = {"fingerprint": fingerprint, "samples": samples, "world": current_world()}
        self._finished, self.skipped, self.animated = _read(path, self._head, self._block_stamp)
        if not keep_skipped:
            for position in self.skipped:
                self._finished.pop(position // BLOCK_SAMPLES, None)
            self.skipped = {}
        fresh = path.with_name(f"{path.name}.new")
        self._handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        try:
            self._begin()
            fresh.replace(path)
        except BaseException:
            self.close()
            raise

    @property
    def resumed(self) -> bool:
        """Whether an earlier run finished anything."""
        return bool(self._finished)

    @property
    def finished_samples(self) -> int:
        """How many samples an earlier run has put in their places."""
        return self._samples - sum(self._left.values())

    def forget(self) -> None:
        """Begin anew: nothing is finished. Only before the first `finish`."""
        self._finished, self.skipped, self.animated = {}, {}, set()
        os.ftruncate(self._handle, 0)
        self._begin()

    def _begin(self) -> None:
        lines: list[dict[str, object]] = [self._head]
        lines += ({"block": block, "stamp": stamp} for block, stamp in sorted(self._finished.items()))
        lines += ({"skipped": position, "why": why} for position, why in sorted(self.skipped.items()))
        lines += ({"animated": position} for position in sorted(self.animated))
        os.write(self._handle, b"".join(_line(line) for line in lines))
        self._left = self._count_left()

    def _block_stamp(self, block: int) -> str:
        first = block * BLOCK_SAMPLES
        stamps = "\n".join(self._stamp(i) for i in range(first, min(first + BLOCK_SAMPLES, self._samples)))
        return xxhash.xxh3_64_hexdigest(stamps.encode(errors="surrogateescape"))

    def _count_left(self) -> dict[int, int]:
        """Samples still to come of each unfinished block."""
        blocks = range(-(-self._samples // BLOCK_SAMPLES))
        return {
            block: min(BLOCK_SAMPLES, self._samples - block * BLOCK_SAMPLES)
            for block in blocks
            if block not in self._finished
        }

    def is_finished(self, position: int) -> bool:
        """Whether the sample at this position of the reading order is in its place."""
        return position // BLOCK_SAMPLES in self._finished

    def finish(self, position: int, *, skipped: str | None = None, animated: bool = False) -> None:
        """Note that a sample is in its place, or was left out for the reason `skipped`; once for each sample.

        `animated`: whether only the first of its frames is stored. May be called from any thread.
        """
        block = position // BLOCK_SAMPLES
        with self._lock:
            if animated:
                self.animated.add(position)
                os.write(self._handle, _line({"animated": position}))
            if skipped is not None:
                self.skipped[position] = skipped
                os.write(self._handle, _line({"skipped": position, "why": skipped}))
            self._left[block] -= 1
            if self._left[block] == 0:
                os.write(self._handle, _line({"block": block, "stamp": self._block_stamp(block)}))

    def a_reason(self) -> str:
        """Why one of the samples was left out."""
        with self._lock:
            return next(iter(self.skipped.values()), "")

    def close(self) -> None:
        """Let go of the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _line(value: dict[str, object]) -> bytes:
    return (json.dumps(value) + "\n").encode()


def _read(
    path: Path, head: dict[str, object], stamp: Callable[[int], str]
) -> tuple[dict[int, str], dict[int, str], set[int]]:
    """Finished blocks with their stamps, the reasons of samples left out in them, and those that are animated; nothing
    of another work's."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # a last line without its end was cut off
        values = [json.loads(line) for line in lines]
    except (FileNotFoundError, ValueError):
        return {}, {}, set()
    if not values or values[0] != head:
        return {}, {}, set()
    noted = {value["block"]: value["stamp"] for value in values if "block" in value}
    blocks = {block: noted_stamp for block, noted_stamp in noted.items() if stamp(block) == noted_stamp}
    skipped = {value["skipped"]: value["why"] for value in values if "skipped" in value}
    animated = {value["animated"] for value in values if "animated" in value}
    return (
        blocks,
        {position: why for position, why in skipped.items() if position // BLOCK_SAMPLES in blocks},
        {position for position in animated if position // BLOCK_SAMPLES in blocks},
    )
