"""An unfinished file beside its target, with the hash of each block that is whole, for whoever continues with it.

`.colabstage-NAME.OWNER.tmp/` holds `data`, written at any place in any order, and `blocks`: a line of text that says
what is being fetched, then one line for each finished block with its hash. Renaming the folder takes both over at
once. Nothing about `data` counts by itself, neither that it exists nor its length; who takes it over hashes the blocks
that the journal names and keeps those that agree.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from typing import TYPE_CHECKING

from colabstage.errors import SourceReadError
from colabstage.io.files import block_ranges, hash_block, hash_ranges, pread_exactly, pwrite_exactly, typed_write_errors
from colabstage.io.ownership import put_file
from colabstage.io.workspace import (
    Journal,
    find_orphans,
    leave_for_next,
    read_journal,
    remove_own,
    take_orphan,
    temp_beside,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from xxhash import xxh3_64

    from colabstage.sources.remote import RemoteFacts


# As in the manifest of a pack, and for the same reasons.
BLOCK_BYTES = 8 * 1024 * 1024
_FORMAT = 2
_DATA = "data"
_BLOCKS = "blocks"
# Blocks hashed between two looks whether to stop.
_HASH_AT_ONCE = 16
# Hashing what is in the system's cache needs a core, reading from a disk needs two requests in flight.
_HASH_THREADS = 2


class BlockHashes:
    """Hashes the blocks that come through one connection from their first byte to their last.

    `size`: length of the whole file, whose last block may be short; `None` when nobody knows.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._hasher: xxh3_64 | None = None
        self._position = -1

    def feed(self, data: memoryview, offset: int) -> dict[int, str]:
        """Take in bytes at `offset`; return the hash of each block, by its number, that they complete."""
        import xxhash

        done: dict[int, str] = {}
        # Bytes in between went elsewhere, so the block that was begun is not hashed from here.
        if offset != self._position:
            self._hasher = None
        self._position = offset + len(data)
        while data:
            number, inside = divmod(offset, BLOCK_BYTES)
            part = data[: BLOCK_BYTES - inside]
            if inside == 0:
                self._hasher = xxhash.xxh3_64()
            if self._hasher is not None:
                self._hasher.update(part)
            offset, data = offset + len(part), data[len(part) :]
            if self._hasher is not None and (offset % BLOCK_BYTES == 0 or offset == self._size):
                done[number] = self._hasher.hexdigest()
                self._hasher = None
        return done

    def finish(self) -> tuple[str, ...]:
        """Return the hash of a last block that is short, if there is one, at the end of a file of unknown length."""
        return () if self._hasher is None else (self._hasher.hexdigest(),)


class PartialFile:
    """The unfinished file that is to become `target`; made by `take_partial_file`. Any thread may call anything.

    `blocks`: `(offset, length)` of every block. `finished`: hash of each finished block by its number.
    """

    def __init__(self, target: Path, folder: Path, facts: RemoteFacts, recorded: Mapping[int, str]) -> None:
        self._target = target
        self._folder = folder
        self._path = folder / _DATA
        self._facts = facts
        self.blocks = block_ranges(facts.size or 0, BLOCK_BYTES)
        self._recorded = dict(recorded)
        self._lock = threading.Lock()
        # Handles are closed by the last who uses them, because a thread may hang in a read for minutes.
        self._users = 0
        self._closing = False
        with typed_write_errors(self._target):
            self._data = io.FileIO(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")
        self._journal: Journal | None = None
        self._verified = False
        self.finished: dict[int, str] = {}

    def verify(self, stop: Callable[[], bool]) -> None:
        """Hash what an earlier run noted as finished, keep in `finished` what agrees, and open the journal.

        Must be called once, before `note`. `stop` is asked now and then; when it says so, nothing is changed.
        """
        numbers = sorted(self._recorded)
        kept: dict[int, str] = {}
        # In portions, so that a cancellation need not wait for gigabytes.
        for at in range(0, len(numbers), _HASH_AT_ONCE):
            if stop():
                return
            some = numbers[at : at + _HASH_AT_ONCE]
            hashes = hash_ranges(self._path, [self.blocks[number] for number in some], threads=_HASH_THREADS)
            kept.update(
                (number, got) for number, got in zip(some, hashes, strict=True) if got == self._recorded[number]
            )
        self.finished = kept
        # Anew, so that a block that proved wrong is named no more; it replaces the old one when it is whole.
        with self._using(), typed_write_errors(self._target):
            noted = ([number, digest] for number, digest in sorted(kept.items()))
            self._journal = Journal(self._folder / _BLOCKS, _head_of(self._facts), noted)
        self._verified = True

    def note(self, number: int, digest: str) -> None:
        """Note that a block is whole on the disk."""
        with self._using(), typed_write_errors(self._target):
            assert self._journal is not None
            # Before others see it as finished: what is told as here is also what a next run finds.
            self._journal.append([number, digest])
            self.finished[number] = digest

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`.

        Raises:
            NotEnoughSpaceError, TargetNotWritableError: the disk failed.
            SourceReadError: it was closed.
        """
        with self._using(), typed_write_errors(self._target):
            pwrite_exactly(self._data.fileno(), data, offset)

    def read(self, length: int, offset: int) -> bytes:
        """Return bytes that were written before."""
        with self._using():
            return pread_exactly(self._data.fileno(), length, offset)

    def hash_block(self, number: int) -> str:
        """Return the hash of a block, from what is on the disk."""
        offset, length = self.blocks[number]
        return hash_block(self.read(length, offset))

    def close(self) -> None:
        """Release the files, once nobody is at them any more. Calling it twice is fine."""
        with self._lock:
            self._closing = True
        self._close_unused()

    def leave(self) -> None:
        """Close, and leave what is finished for whoever comes next; nothing finished leaves nothing."""
        self.close()
        # Stopped before anything was hashed, the old journal still says what is here.
        if self.finished or (self._recorded and not self._verified):
            leave_for_next(self._folder)
            return
        self.remove()

    def remove(self) -> None:
        """Close, and remove everything. Calling it twice is fine."""
        self.close()
        remove_own(self._folder)

    def move_to(self, path: Path, replaces: Callable[[Path], bool]) -> None:
        """Close, and give the data another name, replacing what is there if `replaces` says so; the rest goes.

        Raises:
            TargetExistsError: it does not.
            NotEnoughSpaceError, TargetNotWritableError: the disk failed; the data is where it was.
        """
        self.close()
        with typed_write_errors(path):
            # The source's own time, by which other programs tell whether they have this state.
            if self._facts.mtime_ns:
                os.utime(self._path, ns=(self._facts.mtime_ns, self._facts.mtime_ns))
            put_file(self._path, path, replaces=replaces)
        remove_own(self._folder)

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """Keep the handles open in here: what hung somewhere must not come back to handles that are other files."""
        with self._lock:
            if self._closing:
                msg = f"The copy of '{self._facts.label}' was stopped before all of it was here."
                raise SourceReadError(msg)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
            self._close_unused()

    def _close_unused(self) -> None:
        with self._lock:
            if self._users or not self._closing:
                return
            self._data.close()
            journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()


def take_partial_file(target: Path, facts: RemoteFacts) -> PartialFile:
    """Take over what a dead process left unfinished of this very file for `target`, or start over.

    What is of another file, or of another version of it, is removed; what a living process works on is not touched.

    Raises:
        NotEnoughSpaceError, TargetNotWritableError: nothing can be made beside `target`.
    """
    folder = temp_beside(target)
    journals = [(orphan, _read_journal(orphan, facts)) for orphan in find_orphans(target)]
    ours = [(orphan, recorded) for orphan, recorded in journals if recorded is not None]
    # The one that holds most; another process may take it first, then the next.
    for orphan, recorded in sorted(ours, key=lambda one: len(one[1]), reverse=True):
        if not take_orphan(orphan, folder):
            continue
        if recorded:
            return PartialFile(target, folder, facts, recorded)
        remove_own(folder)
    with typed_write_errors(target):
        folder.mkdir()
    try:
        return PartialFile(target, folder, facts, {})
    except BaseException:
        remove_own(folder)
        raise


def _read_journal(folder: Path, facts: RemoteFacts) -> dict[int, str] | None:
    """Return the hashes of finished blocks that a journal names, none of another file's; `None` without a journal."""
    if not (folder / _BLOCKS).exists():
        return None
    # Else nothing would tell old blocks from those of a new content of the same length.
    can_prove = facts.ranges and bool(facts.version or facts.mtime_ns or facts.checksum)
    try:
        found = read_journal(folder / _BLOCKS, _head_of(facts)) if can_prove else None
        count = len(block_ranges(facts.size or 0, BLOCK_BYTES))
        # A number beyond the file is of no journal that we wrote.
        return {number: str(digest) for number, digest in found or () if 0 <= number < count}
    except OSError:
        return None
    except (ValueError, TypeError):
        return {}


def _head_of(facts: RemoteFacts) -> dict[str, object]:
    return {
        "format": _FORMAT,
        "label": facts.label,
        "size": facts.size,
        "version": facts.version,
        "mtime_ns": facts.mtime_ns,
        "checksum": str(facts.checksum or ""),
        "block_bytes": BLOCK_BYTES,
    }
