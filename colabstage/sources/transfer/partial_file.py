"""Keep an unfinished file beside its target, with the hash of each complete block, so that a later run can continue it.

`.colabstage-NAME.OWNER.tmp/` holds `data`, written in any order, and `blocks`: a line of text that says what is being
fetched, then one line for each finished block with its hash. Renaming the folder takes over both at once. Neither the
existence of `data` nor its length proves anything; a run that takes it over hashes the blocks in the journal and keeps
those that match.
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


# As in the manifest of a pack, for the same reasons.
BLOCK_BYTES = 8 * 1024 * 1024
_FORMAT = 2
_DATA = "data"
_BLOCKS = "blocks"
# Blocks hashed between two checks whether to stop.
_HASH_AT_ONCE = 16
# Hashing cached data needs a core, reading from a disk needs two requests in flight.
_HASH_THREADS = 2


class BlockHashes:
    """Hash the blocks that arrive on one connection from their first byte to their last.

    `size`: length of the whole file, whose last block may be short; `None` if unknown.
    """

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._hasher: xxh3_64 | None = None
        self._position = -1

    def feed(self, data: memoryview, offset: int) -> dict[int, str]:
        """Hash bytes at `offset`; return the hashes of the blocks that they complete, by number."""
        import xxhash

        done: dict[int, str] = {}
        # Bytes in between arrived elsewhere, so the current block cannot be hashed here.
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
        """Return the hash of a short last block, if there is one, at the end of a file of unknown length."""
        return () if self._hasher is None else (self._hasher.hexdigest(),)


class PartialFile:
    """Write and read the unfinished file for `target`; made by `take_partial_file`. Thread-safe.

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
        # Handles are closed by their last user, because a thread may hang in a read for minutes.
        self._users = 0
        self._closing = False
        with typed_write_errors(self._target):
            self._data = io.FileIO(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")
        self._journal: Journal | None = None
        self._verified = False
        self.finished: dict[int, str] = {}

    def verify(self, stop: Callable[[], bool]) -> None:
        """Hash what an earlier run noted as finished, keep what matches in `finished`, and open the journal.

        Must be called once, before `note`. `stop` is called now and then; if it returns true, nothing is changed.
        """
        numbers = sorted(self._recorded)
        kept: dict[int, str] = {}
        # In portions, so that cancellation does not wait for gigabytes.
        for at in range(0, len(numbers), _HASH_AT_ONCE):
            if stop():
                return
            some = numbers[at : at + _HASH_AT_ONCE]
            hashes = hash_ranges(self._path, [self.blocks[number] for number in some], threads=_HASH_THREADS)
            kept.update(
                (number, got) for number, got in zip(some, hashes, strict=True) if got == self._recorded[number]
            )
        self.finished = kept
        # A new journal without blocks that proved wrong; it replaces the old one when it is complete.
        with self._using(), typed_write_errors(self._target):
            noted = ([number, digest] for number, digest in sorted(kept.items()))
            self._journal = Journal(self._folder / _BLOCKS, _head_of(self._facts), noted)
        self._verified = True

    def note(self, number: int, digest: str) -> None:
        """Note that a block is complete on the disk."""
        with self._using(), typed_write_errors(self._target):
            assert self._journal is not None
            # Before others see it as finished, so that a later run finds everything that was reported.
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
        """Return bytes that have been written."""
        with self._using():
            return pread_exactly(self._data.fileno(), length, offset)

    def hash_block(self, number: int) -> str:
        """Return the hash of a block, read from the disk."""
        offset, length = self.blocks[number]
        return hash_block(self.read(length, offset))

    def close(self) -> None:
        """Release the files, once nobody uses them any more. Calling it twice is fine."""
        with self._lock:
            self._closing = True
        self._close_unused()

    def leave(self) -> None:
        """Close, and leave finished blocks for a later run; without any, leave nothing."""
        self.close()
        # If stopped before anything was hashed, the old journal is still valid.
        if self.finished or (self._recorded and not self._verified):
            leave_for_next(self._folder)
            return
        self.remove()

    def remove(self) -> None:
        """Close, and remove everything. Calling it twice is fine."""
        self.close()
        remove_own(self._folder)

    def move_to(self, path: Path, replaces: Callable[[Path], bool]) -> None:
        """Close, and rename the data, replacing an existing file if `replaces` says so; the rest is removed.

        Raises:
            TargetExistsError: it does not.
            NotEnoughSpaceError, TargetNotWritableError: the disk failed; the data is where it was.
        """
        self.close()
        with typed_write_errors(path):
            # The source's own time, which other programs compare to see whether they have this state.
            if self._facts.mtime_ns:
                os.utime(self._path, ns=(self._facts.mtime_ns, self._facts.mtime_ns))
            put_file(self._path, path, replaces=replaces)
        remove_own(self._folder)

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """Keep the handles open: a call that hung must not return to handles that now belong to other files."""
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
    """Take over what a dead process left unfinished of the same file for `target`, or start over.

    Leftovers of other files or versions are removed; those of living processes are not touched.

    Raises:
        NotEnoughSpaceError, TargetNotWritableError: nothing can be created beside `target`.
    """
    folder = temp_beside(target)
    journals = [(orphan, _read_journal(orphan, facts)) for orphan in find_orphans(target)]
    ours = [(orphan, recorded) for orphan, recorded in journals if recorded is not None]
    # The largest first; if another process takes it, the next one.
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
    """Return the hashes of finished blocks in a journal, none if it is another file's; `None` without a journal."""
    if not (folder / _BLOCKS).exists():
        return None
    # Otherwise old blocks could not be told from those of new content of the same length.
    can_prove = facts.ranges and bool(facts.version or facts.mtime_ns or facts.checksum)
    try:
        found = read_journal(folder / _BLOCKS, _head_of(facts)) if can_prove else None
        count = len(block_ranges(facts.size or 0, BLOCK_BYTES))
        # No journal that we wrote has a number beyond the end of the file.
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
