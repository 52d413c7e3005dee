"""Fetch blocks in the order of the plan and let others go, in threads of the one process that has the fetcher's lock.

What readers in all processes of this computer will read stands in a file for each of them, beside the blocks. Blocks
that somebody waits for come first, then what readers will need next. A block is in memory until it has been verified,
and written once there is room for it, so that what is here never takes more than was allowed, and a limit of a few
blocks does not leave the line idle: as many as keep it busy are asked for, with or without room.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import ColabstageError, DamagedPackError, SourceChangedError, error_to_json
from colabstage.io.files import PATIENT, hash_block, pwrite_exactly, read_json, typed_write_errors, write_json
from colabstage.io.pipeline import DaemonPool, in_thread
from colabstage.io.workspace import is_made_here, name_and_owner, owner_is_alive, remove_own, rename_own, temp_beside
from colabstage.sources.partial.local import CAPACITY, FETCHED, FETCHER, UNPROVED, WHOLE
from colabstage.sources.partial.plan import NEVER, Pacer, Reader, Visits, look_ahead, plan_misses
from colabstage.sources.transfer.connections import read_directly, stopped_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.sources.partial.local import LocalPart
    from colabstage.sources.partial.plan import Outlook
    from colabstage.sources.remote import RemoteFile

_log = logging.getLogger(__name__)

_NAME = "expected"
_TICK_NS, _LIST_NS = 50_000_000, 1_000_000_000


# A reader writes its visits once and from then on only how far it is, which the one who fetches sees in the mapped
# file. The name says whose it is, so what a dead process left counts for nothing and is removed.
class Expected:
    """Tell all processes what one reader will read."""

    def __init__(self, folder: Path, visits: Visits) -> None:
        """Write the visits to a file in `folder`."""
        self._path = temp_beside(folder / _NAME)
        values = np.stack([visits.blocks, visits.first, visits.last]).astype(np.int64)
        # Written beside and then named, so that nobody reads a half. The first number is how far the reader is.
        writing = temp_beside(folder / "expecting")
        handle = os.open(writing, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with typed_write_errors(self._path):
                pwrite_exactly(handle, bytes(8) + values.tobytes(), 0)
            self._map = mmap.mmap(handle, 8 + values.nbytes)
        except BaseException:
            remove_own(writing)
            raise
        finally:
            os.close(handle)
        rename_own(writing, self._path)
        self._reached = np.frombuffer(self._map, np.int64, 1)

    def reached(self, rows: int) -> None:
        """Tell that the first so many rows are done with."""
        self._reached[0] = rows

    def close(self) -> None:
        """Take it back. Calling it twice is fine."""
        remove_own(self._path)


class Readers:
    """Look at what all readers say."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen_at = self._listed_at = -1
        self._open: dict[str, tuple[Reader, mmap.mmap]] = {}

    def look(self) -> bool:
        """Look how far readers are; whether some have come or gone since."""
        changed, now, written = False, time.time_ns(), self._folder.stat().st_mtime_ns
        # What is written in the same tick of the file system's clock is distinguished by looking again; and whoever
        # died has changed nothing.
        if written != self._seen_at or now - written < _TICK_NS or now - self._listed_at > _LIST_NS:
            self._seen_at, self._listed_at = written, now
            changed = self._list()
        for reader, mapped in self._open.values():
            reader.reached = int.from_bytes(mapped[:8], "little")
        return changed

    @property
    def all(self) -> list[Reader]:
        """Return every reader's visits, and how far it is."""
        return [reader for reader, _ in self._open.values()]

    def _list(self) -> bool:
        there = {path.name: path for path in self._folder.iterdir() if _is_alive(path)}
        gone = [name for name in self._open if name not in there]
        for name in gone:
            del self._open[name]
        come = [path for name, path in there.items() if name not in self._open]
        for path in come:
            # It may have been taken back this moment.
            with contextlib.suppress(FileNotFoundError):
                self._open[path.name] = _map_visits(path)
        return bool(gone or come)


def _is_alive(path: Path) -> bool:
    """Tell whether a file is what a living process expects; what a dead one left is removed."""
    parts = name_and_owner(path)
    if parts is None or parts[0] != _NAME or not is_made_here(path):
        return False
    if owner_is_alive(parts[1]) is True:
        return True
    remove_own(path)
    return False


def _map_visits(path: Path) -> tuple[Reader, mmap.mmap]:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mapped = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(handle)
    return Reader(Visits(*np.frombuffer(mapped, np.int64, offset=8).reshape(3, -1))), mapped


# How soon what another process asks for is seen.
_TICK_S = 0.01
# How long a block that could not be fetched ahead is left alone, unless somebody waits for it.
_REST_S = 5.0
# How long a block stays for somebody who waited for it and has not taken it.
_WISH_S = 5.0
# How long the end waits for the thread that looks what is wanted, and for a disk that is taking a block.
_LOOK_ENDS_S, _WRITE_S = 1.0, 10.0
# Readings of a block whose hash is wrong, before the source counts as damaged.
_BLOCK_TRIES = 3
# Part of the room that is for what is read now, and next: the rest keeps what the next epoch needs.
_AHEAD_PART = 8
_LEAST_AHEAD, _MOST_AHEAD = 3, 32
_MOST_CONNECTIONS = 8
# Of a file that comes whole from a mount: one block is read while another is written. On the simulated Drive the first
# batch came after 2.2 s with two readers and after 3.2 s with four, and all of 200 MB in 4.0 s and in 4.8 s.
_WHOLE_CONNECTIONS = 2
# Files that are open at once, of a pack that has many.
_MOST_OPEN = 16


class Fetcher:
    """Fetch for all readers of one part. Made by `become_fetcher`.

    `waits_for`: why nothing comes at present although it is still asked for; "" where it does.
    """

    def __init__(self, part: LocalPart, folder: Path, openers: Sequence[Callable[[], RemoteFile]], lock: int) -> None:
        self._part, self._folder, self._openers, self._lock = part, folder, openers, lock
        self._readers = Readers(folder)
        self._wake, self._stop = threading.Event(), threading.Event()
        # One more, that writes what has come.
        self._pool = DaemonPool(_MOST_CONNECTIONS + 1, "colabstage-fetch")
        self._guard, self._writing = threading.Lock(), threading.Lock()
        # By the number of the file, the one that was opened first in front.
        self._remotes: dict[int, RemoteFile] = {}
        self._users: dict[RemoteFile, int] = {}
        self._connections = 2
        # What is asked for and not in its place: some of it without room on the disk yet, and of that some is here, in
        # memory. The rest is being read.
        self._in_flight: set[int] = set()
        self._roomless: set[int] = set()
        self._landed: dict[int, bytes] = {}
        self._pacer = Pacer()
        self._rest: dict[int, float] = {}
        self._wished: dict[int, float] = {}
        self._planned = self._paused = False
        self._last: object = None
        self.waits_for = ""
        self._pid = os.getpid()
        part.begin()
        # It holds the fetcher weakly: the last reader of this process that goes ends it.
        self._thread = threading.Thread(
            target=_run, args=(weakref.ref(self), self._stop, self._wake), name="colabstage-blocks", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Look for what is wanted now."""
        self._wake.set()

    def plan_again(self) -> None:
        """Take note that what stays here has changed."""
        self._planned = False
        self.wake()

    def close(self) -> None:
        """Fetch nothing more; what is on its way is left behind. Calling it twice is fine."""
        # The threads stayed with the parent, and with them locks that a fork may have left locked.
        if self._pid != os.getpid():
            return
        self._stop.set()
        self._wake.set()
        self._pool.close(abandon=True)
        # It may be in the middle of a look, and the table belongs to others afterwards. Garbage may be collected in it.
        if self._thread is not threading.current_thread():
            self._thread.join(_LOOK_ENDS_S)
        # Whoever fetches next gives back what is not noted: nothing may be written and noted once it can begin.
        if self._writing.acquire(timeout=_WRITE_S):
            self._writing.release()
            self._let_go()
        else:
            _log.warning(
                "The disk of '%s' has not taken a block for %.0f s. Its write is left to end alone; until then nothing "
                "is fetched there.",
                self._folder,
                _WRITE_S,
            )
            in_thread(self._let_go_once_written, "colabstage-blocks")
        with self._guard:
            remotes = [*self._remotes.values()]
            self._remotes.clear()
        for remote in remotes:
            remote.close()

    def _let_go_once_written(self) -> None:
        with self._writing:
            self._let_go()

    def _let_go(self) -> None:
        """Let another fetch."""
        handle, self._lock = self._lock, -1
        if handle >= 0:
            os.close(handle)

    def work(self, *, woken: bool) -> None:
        """Do what there is to do now. What goes wrong is told to all who wait: nobody else is there to hear it."""
        try:
            self.tick(woken=woken)
        except Exception as error:  # noqa: BLE001 - as above
            if not self._stop.is_set():
                for block in np.flatnonzero(self._part.wanted).tolist():
                    self._fail(block, error, time.monotonic())

    def tick(self, *, woken: bool) -> None:
        """Begin to fetch what there is room for; `woken`: whether something has changed for certain."""
        changed = self._readers.look()
        part, readers = self._part, self._readers.all
        # With many blocks a look ahead takes time, and mostly nothing has changed since the last.
        now = [reader.reached for reader in readers]
        if now == self._last and not (woken or changed or self._paused or part.wanted.any() or self._rest):
            return
        self._last = now
        capacity = int(part.counters[CAPACITY])
        if changed or not self._planned:
            self._planned = True
            if readers and capacity:
                # What is read, and what takes its place; what is on its way waits in memory.
                ahead = max(1, min(_MOST_AHEAD, max(capacity // _AHEAD_PART, _LEAST_AHEAD)))
                here = set(np.flatnonzero((part.state == WHOLE) | (part.state == UNPROVED)).tolist())
                plan_misses(readers, max(1, capacity - ahead), here)
        outlook = look_ahead(readers, len(part.state))
        self._shrink(outlook, capacity)
        wanted = self._wishes()
        self._place_landed(outlook, wanted)
        self._paused = False
        while len(self._in_flight) - len(self._landed) < self._connections:
            if (found := self._next(outlook, wanted)) is None:
                return
            self._pacer.begin(time.monotonic(), int(part.files.lengths[found]))
            self._in_flight.add(found)
            self._pool.submit(lambda block=found: self._fetch(block))  # type: ignore[misc]

    def _shrink(self, outlook: Outlook, capacity: int) -> None:
        """Release what is here from a time when more was allowed."""
        takes: NDArray[np.bool_] = self._part.let_go_of()
        while capacity and takes.sum() > capacity:
            victim = outlook.victim(takes, None, needed_now=True)
            if victim is None:
                return
            takes[victim] = False
            self._part.let_go(victim)

    def _wishes(self) -> NDArray[np.bool_]:
        """Return which blocks somebody waits for. What was granted and is not taken is forgotten after a while."""
        part, now = self._part, time.monotonic()
        wanted: NDArray[np.bool_] = part.wanted != 0
        for block in np.flatnonzero(wanted & (part.state == WHOLE)).tolist():
            if now - self._wished.setdefault(block, now) > _WISH_S:
                part.wanted[block] = 0
                del self._wished[block]
        return wanted

    def _next(self, outlook: Outlook, wanted: NDArray[np.bool_]) -> int | None:
        """Return a block to fetch, for which there is room now."""
        missing = self._part.state != WHOLE
        missing[list(self._in_flight)] = False
        waited = np.flatnonzero(missing & wanted)
        if len(waited):
            block = int(waited[outlook.next_use[waited].argmin()])
            return block if self._make_room(block, outlook, wanted, needed_now=True) else None
        now = time.monotonic()
        # A copy, because blocks fail in other threads meanwhile.
        for block, until in list(self._rest.items()):
            if until <= now:
                self._rest.pop(block, None)
        missing[list(self._rest)] = False
        ahead = outlook.first_missing(missing)
        if ahead is None:
            return None
        if self._pacer.wait_s(now) > 0:
            self._paused = True
            return None
        if not self._make_room(ahead, outlook, wanted, needed_now=False):
            # Memory for as many as the line needs under way: its room is found by the time that it is here, or later.
            if len(self._roomless) >= self._connections:
                return None
            self._roomless.add(ahead)
        return ahead

    def _place_landed(self, outlook: Outlook, wanted: NDArray[np.bool_]) -> None:
        """Find room for what was asked for without it, in the order in which it is needed; what has come is written."""
        part = self._part
        for block in sorted(self._roomless, key=lambda block: (not wanted[block], outlook.next_use[block])):
            if self._make_room(block, outlook, wanted, needed_now=bool(wanted[block])):
                with self._writing:
                    self._roomless.discard(block)
                    landed = block in self._landed
                if landed:
                    self._pool.submit(lambda block=block: self._put_landed(block))  # type: ignore[misc]
            elif outlook.next_use[block] == NEVER and block in self._landed:
                # Whoever expected it has gone. It has come all the same, and is counted.
                part.counters[FETCHED] += part.files.lengths[block]
                self._forget(block)
            else:
                # Nothing can go for this one, so nothing can for those that are needed later.
                return

    def _put_landed(self, block: int) -> None:
        try:
            with self._writing:
                if not self._stop.is_set():
                    self._part.put(block, self._landed[block])
        except BaseException as error:  # noqa: BLE001 - as in `_fetch`
            with self._writing:
                if not self._stop.is_set():
                    self._fail(block, error, time.monotonic())
        finally:
            self._forget(block)
            self._wake.set()

    def _forget(self, block: int) -> None:
        """Take note that a block is no longer on its way: it is in its place, or will not come."""
        with self._writing:
            self._landed.pop(block, None)
            self._roomless.discard(block)
            self._in_flight.discard(block)

    def _make_room(self, block: int, outlook: Outlook, wanted: NDArray[np.bool_], *, needed_now: bool) -> bool:
        part, capacity = self._part, int(self._part.counters[CAPACITY])
        # What is kept has its own room; before the room is known, nothing else is fetched.
        if part.kept[block] or not capacity:
            return True
        takes = part.let_go_of()
        # Taken once: blocks arrive while this is worked out. What has no room yet takes none.
        flying = list(self._in_flight - self._roomless)
        takes[flying] = part.kept[flying] == 0
        if takes[block] and block not in flying:
            return True  # it is here, and only to be proved
        let_go = takes & ~wanted
        let_go[flying] = False
        used = int(takes.sum())
        while used >= capacity:
            victim = outlook.victim(let_go, block, needed_now=needed_now)
            if victim is None:
                return False
            let_go[victim] = False
            # As with writing: after `close` nothing is let go that whoever fetches next, or looks, counts on.
            with self._writing:
                if self._stop.is_set():
                    return False
                used -= part.let_go(victim)
        return True

    def _fetch(self, block: int) -> None:
        part, began, waits = self._part, time.monotonic(), False
        try:
            if part.state[block] == UNPROVED:
                with self._writing:
                    if self._stop.is_set() or part.prove(block):
                        return
            data = self._read(block)
            self._pacer.end(began, time.monotonic(), len(data))
            with self._writing:
                if self._stop.is_set():
                    return
                if waits := block in self._roomless:
                    self._landed[block] = data
                    return
                part.put(block, data)
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for the block
            with self._writing:
                # Whoever continues with this part, perhaps at once, is not told of what was stopped here.
                if not self._stop.is_set():
                    self._fail(block, error, began)
        finally:
            # What waits for room may have got it by now, have been let go, and be asked for again.
            if not waits:
                self._forget(block)
            self._wake.set()

    def _read(self, block: int) -> bytes:
        """Return a block with the right hash."""
        (number, offset, length), wanted = self._part.files.locate(block), self._part.files.hashes[block]
        changed: SourceChangedError | None = None
        label = ""
        for turn in range(_BLOCK_TRIES):
            # A file that was written again may have the same content: each block's hash tells.
            try:
                with self._lent(number) as remote:
                    changed, label = None, remote.facts.label
                    # After a wrong hash the question is worth a round trip: "changed" says more than "damaged".
                    asked = remote if turn else remote.without_version_check()
                    data = read_directly(
                        asked, offset, length, policy=PATIENT, stopped=self._stop.is_set, tell=self._wait_for
                    )
                    self._wait_for("")
                    if hash_block(data) == wanted:
                        return data
                    self._drop(number, remote)
            except SourceChangedError as error:
                changed = error
        if changed is not None:
            raise changed
        msg = (
            f"'{label}' is damaged: the {length:,} bytes from {offset:,} on are not those that were written, in "
            f"{_BLOCK_TRIES} readings."
        )
        raise DamagedPackError(msg)

    def _wait_for(self, what: str) -> None:
        self.waits_for = what

    def _open(self, number: int) -> RemoteFile:
        with self._guard:
            # A thread that was left behind would open what nobody closes any more.
            if self._stop.is_set():
                raise stopped_error(str(self._folder))
            remote = self._remotes.get(number)
            if remote is None:
                remote = self._openers[number]()
                size, expected = remote.facts.size, self._part.files.files[number].manifest.size
                if size is not None and size != expected:
                    # Nobody else knows of it yet.
                    remote.close()
                    msg = f"'{remote.facts.label}' has {size:,} bytes; expected {expected:,}: it is another file now."
                    raise SourceChangedError(msg)
                many = self._part.gives_back or remote.facts.eager
                most = _MOST_CONNECTIONS if many else _WHOLE_CONNECTIONS
                self._connections = max(1, min(most, remote.facts.connections))
                while len(self._remotes) >= _MOST_OPEN:
                    oldest = self._remotes.pop(next(iter(self._remotes)))
                    if not self._users.get(oldest):
                        oldest.close()
                self._remotes[number] = remote
            self._users[remote] = self._users.get(remote, 0) + 1
            return remote

    @contextlib.contextmanager
    def _lent(self, number: int) -> Iterator[RemoteFile]:
        """Lend a file that blocks come from. After an error it is opened again, and closed once nobody reads it."""
        remote = self._open(number)
        try:
            yield remote
        except ColabstageError:
            # Another one may not have what is wrong with this one.
            self._drop(number, remote)
            raise
        finally:
            with self._guard:
                self._users[remote] -= 1
                unused = not self._users[remote] and self._remotes.get(number) is not remote
                if not self._users[remote]:
                    del self._users[remote]
            if unused:
                remote.close()

    def _drop(self, number: int, remote: RemoteFile) -> None:
        with self._guard:
            if self._remotes.get(number) is remote:
                del self._remotes[number]

    def _fail(self, block: int, error: BaseException, began: float) -> None:
        part = self._part
        self._rest[block] = time.monotonic() + _REST_S
        # A full disk has no room for the reason either: whoever reads it sees that it is of another time.
        with contextlib.suppress(OSError):
            write_json(_failure_path(self._folder, block), [error_to_json(error), began])
        # In this order: whoever waits asks no more once it has seen the failure.
        part.failed_at[block] = began
        part.wanted[block] = 0
        part.failures[block] += 1


def _run(fetcher: weakref.ref[Fetcher], stop: threading.Event, wake: threading.Event) -> None:
    """Tick until nobody has the fetcher any more."""
    while not stop.is_set():
        # Cleared only if it was seen, and before the work: a block that comes right after the wait has ended must not
        # be forgotten. It may have been the last one under way, and then nobody would wake this thread again.
        if woken := wake.wait(_TICK_S):
            wake.clear()
        one = fetcher()
        if one is None or stop.is_set():
            return
        one.work(woken=woken)
        del one


def take_lock(folder: Path) -> int | None:
    """Return a handle that has the fetcher's lock until it is closed; `None` while anybody reads the part."""
    handle = os.open(folder / FETCHER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def become_fetcher(part: LocalPart, folder: Path, openers: Sequence[Callable[[], RemoteFile]]) -> Fetcher | None:
    """Begin to fetch for all processes, from files that `openers` open, one for each; `None` where another process does
    it, or another reader of this one."""
    handle = take_lock(folder)
    if handle is None:
        return None
    fetcher = Fetcher(part, folder, openers, handle)
    one = weakref.ref(fetcher)
    # A child has the handle too, and with it the lock, for as long as it lives.
    os.register_at_fork(after_in_child=lambda: _let_go_after_fork(one))
    return fetcher


def _let_go_after_fork(fetcher: weakref.ref[Fetcher]) -> None:
    one = fetcher()
    if one is not None and one._lock >= 0:
        os.close(one._lock)
        one._lock = -1


def read_failure(folder: Path, block: int, began: float) -> object:
    """Return why the try that began then (monotonic) could not fetch a block, as `error_to_json` wrote it; `None` where
    it could not be written."""
    raw = read_json(_failure_path(folder, block))
    return raw[0] if isinstance(raw, list) and len(raw) == 2 and raw[1] == began else None


def _failure_path(folder: Path, block: int) -> Path:
    return folder / f"failure-{block}.json"
