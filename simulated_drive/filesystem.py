"""The calls of the simulated Drive's file system, in terms of its parts (names, content cache, upload queue, faults),
and what the client tells of a file by extended attributes.

Handles carry everything a read or write needs, so calls on open files never look at paths. Nothing sleeps while
holding a lock that a call on another file needs. Ids and MD5s are the cloud's: an id stays when a file is renamed or
written again, an MD5 is of what was uploaded last.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import itertools
import json
import os
import stat
import stat as stat_bits
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from simulated_drive.cache import (
    MY_DRIVE,
    SHARED_DRIVES,
    SHORTCUT_TARGETS,
    Content,
    ContentCache,
    Entry,
    Folders,
    Visit,
    canonical,
    is_below_root,
)
from simulated_drive.knobs import SHORT_BYTES, DriveFaults, DriveKnobs, DriveStats, FaultLedger, FaultOp, Traffic
from simulated_drive.uploads import Account, Pending, UploadQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ID, MD5, UNCOMMITTED = "user.drive.id", "user.drive.md5", "user.drive.uncommitted"
NAMES = frozenset({ID, MD5, UNCOMMITTED})
_Version = tuple[int, int, int, int]
_NATIVE = (".gdoc", ".gsheet", ".gslides")
_WRITES = os.O_WRONLY | os.O_RDWR
_ROOTS = ("/", MY_DRIVE, SHARED_DRIVES, SHORTCUT_TARGETS)


class Attributes:
    """Ids and MD5s of what is in the cloud.

    An id follows from the cloud file's inode. An upload brings another inode, whose id is noted in a file of its own,
    so that ids survive a new client and a new machine.
    """

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._lock = threading.Lock()
        self._ids: dict[int, str] = {}
        self._md5s: dict[_Version, str] = {}
        if notes.is_file():
            # A client that was killed may have left half a line.
            *lines, _ = notes.read_text(encoding="utf-8").split("\n")
            self._ids = dict(json.loads(line) for line in lines)

    def put(self, copy: Path, target: Path) -> None:
        """Put an uploaded copy into its place in the cloud; it keeps the id of the file that it replaces."""
        arrived = copy.stat()
        with self._lock:
            # As on the real Drive, where share links of a file continue to work after an upload.
            try:
                file_id = self._id_of(target.stat().st_ino)
            except FileNotFoundError:  # not from the inode alone, which a deleted file may have had before
                file_id = _id_from(f"{arrived.st_ino} {arrived.st_ctime_ns}")
            copy.replace(target)
            self._ids[arrived.st_ino] = file_id
            with self._notes.open("a", encoding="utf-8") as file:
                file.write(json.dumps([arrived.st_ino, file_id]) + "\n")

    def answer(self, name: str, file: str, pending: Pending | None) -> bytes:
        """Return the value of one of `NAMES` for `file` in the cloud, or for a file that is only here as `pending`."""
        if name == UNCOMMITTED:
            return b"1" if pending is not None and pending.dirty else b"0"
        try:
            found = os.stat(file)  # noqa: PTH116 - one system call, on the hot path
        except FileNotFoundError:
            if name == MD5 or pending is None:
                raise OSError(errno.ENODATA, os.strerror(errno.ENODATA)) from None
            return f"local-{pending.number}".encode()
        if name == ID:
            with self._lock:
                return self._id_of(found.st_ino).encode()
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return self._md5_of(file, found).encode()

    def _id_of(self, inode: int) -> str:
        return self._ids.get(inode) or _id_from(str(inode))

    def _md5_of(self, file: str, found: os.stat_result) -> str:
        """Return the MD5 of a file, hashing each version once."""
        # On the first question and not after the upload, which would be held up by gigabytes.
        version = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        known = self._md5s.get(version)
        if known is None:
            with open(file, "rb") as content:
                known = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            self._md5s[version] = known
        return known


def _id_from(text: str) -> str:
    return "1" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())[:32].decode()


# Special values of utimensat(2): the present time, and no change.
_UTIME_NOW, _UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2


def _fail(number: int, path: str) -> NoReturn:
    raise OSError(number, os.strerror(number), path)


class ReadHandle:
    """A cloud file open for reading, through the content cache."""

    __slots__ = ("content", "counted", "is_short", "path", "visit")

    def __init__(self, path: str, content: Content, visit: Visit) -> None:
        self.path = path
        self.content = content
        self.visit = visit
        self.is_short = False
        self.counted = False

    def entry(self) -> Entry:
        """Return what `fstat` says."""
        return Entry(is_folder=False, size=self.content.size, mtime_ns=self.content.mtime_ns)


class LocalHandle:
    """A file that was written here, open for reading or writing."""

    __slots__ = ("counted", "fd", "pending", "visit", "writes")

    def __init__(self, pending: Pending, fd: int, visit: Visit, *, writes: bool) -> None:
        self.pending = pending
        self.fd = fd
        self.visit = visit
        self.writes = writes
        self.counted = False

    @property
    def path(self) -> str:
        """Return where the file is now."""
        return self.pending.path

    def entry(self) -> Entry:
        """Return what `fstat` says."""
        stat = os.fstat(self.fd)
        return Entry(is_folder=False, size=stat.st_size, mtime_ns=stat.st_mtime_ns)


class FuseDrive:
    """Every call that the kernel makes to the mount; each raises `OSError` with the errno to return."""

    use_ns = True
    # Calls on open files come without their path, because a file may have been renamed since it was opened.
    flag_nopath = 1
    flag_nullpath_ok = 1

    def __init__(self, home: Path, *, knobs: DriveKnobs, readonly: bool, die: Callable[[], None]) -> None:
        """Create it; `knobs` are scaled already, and `die()` begins the client's death."""
        # As with the real client, changes are refused here where `readonly`, and the mount table shows nothing of it.
        cloud, cache = home / "cloud", home / "cache"
        self.stats = DriveStats()
        self.ledger = FaultLedger(DriveFaults())
        self.dying = False
        self._knobs = knobs
        self._readonly = readonly
        self._die = die
        self._opens = 0
        self._lock = threading.Lock()
        self._handles: dict[int, ReadHandle | LocalHandle] = {}
        self._listings: dict[int, tuple[str, list[tuple[str, bool]]]] = {}
        self._numbers = itertools.count(1)
        # Drive stores no modes; those set by `chmod` last as long as the client, as with the real one.
        self._modes: dict[str, int] = {}
        self._folders = Folders(cloud, knobs=knobs, stats=self.stats)
        self._content = ContentCache(cache / "content", knobs=knobs, traffic=Traffic(knobs), stats=self.stats)
        self.queue = UploadQueue(
            cache / "uploads",
            knobs=knobs,
            stats=self.stats,
            finish=self._uploaded,
            is_dropped=lambda path: self.ledger.drops_upload(path[1:]),
            is_stalled=lambda: self.ledger.faults.stall_uploads,
        )
        self._account = Account(cloud, knobs=knobs, pending_bytes=lambda: self.queue.waiting()[1])
        # Beside the cloud and not in it, because ids belong to the service and are not among the user's files.
        self._attributes = Attributes(home / "ids")
        self.flock = self.lock = self._refuse_lock
        self.access = self._refuse_writing if readonly else None

    def _enter(self, op: FaultOp, path: str) -> None:
        """Fail a call that is meant to fail."""
        # The first sign of a dying client is that files seem to be missing.
        if self.dying:
            _fail(errno.ENOENT, path)
        # Tested without the lock first, because every call passes here and nearly all runs have no faults.
        if self.ledger.faults.ops:
            with self._lock:
                number = self.ledger.errno_for(op, path[1:])
                self.stats.errors_injected += number is not None
            if number is not None:
                _fail(number, path)

    def _enter_change(self, op: FaultOp, path: str) -> None:
        self._enter(op, path)
        # The folders above `MyDrive` belong to Drive, and nothing can be created in them.
        if not is_below_root(path):
            _fail(errno.EOPNOTSUPP, path)
        self._check_writable(path)

    def _check_writable(self, path: str) -> None:
        if self._readonly:
            _fail(errno.EROFS, path)

    def _refuse_writing(self, path: str, mode: int) -> int:
        if mode & os.W_OK:
            _fail(errno.EROFS, path)
        return 0

    def _count_open(self, path: str) -> None:
        with self._lock:
            self._opens += 1
            dies = self._opens == self._knobs.death_after_opens
        if dies:
            self._die()
            _fail(errno.ENOENT, path)

    def _find(self, path: str) -> Entry:
        """Return what is at a canonical path, as far as this mount knows; raises `FileNotFoundError`."""
        if path in _ROOTS:
            return Entry(is_folder=True, size=0, mtime_ns=0)
        # Files that were written here come first: this machine sees its own version until the upload is finished.
        pending = self.queue.by_path.get(path)
        if pending is not None:
            with contextlib.suppress(FileNotFoundError):  # its upload ended just now
                stat = pending.data.stat()
                return Entry(is_folder=False, size=stat.st_size, mtime_ns=stat.st_mtime_ns)
        entry = self._folders.find(path) if is_below_root(path) else None
        return entry or _fail(errno.ENOENT, path)

    def path_of(self, number: int) -> str:
        """Return the path of an open file."""
        return self._handles[number].path

    def getattr(self, path: str | None, fi: Any = None) -> dict[str, Any]:
        """Answer `stat`, by handle where the kernel has one."""
        if fi is not None:
            return self._handles[fi.fh].entry().attributes()
        path = canonical(path or "/")
        self._enter("stat", path)
        entry = self._find(path)
        return {**entry.attributes(), "st_mode": self._mode_of(path, entry)}

    def _mode_of(self, path: str, entry: Entry) -> int:
        mode = self._modes.get(path)
        return entry.mode if mode is None else stat_bits.S_IFMT(entry.mode) | mode

    def readlink(self, path: str) -> str:
        """Return where a shortcut leads, as the cloud's folder has it."""
        return os.readlink(self._folders.cloud_path(canonical(path)))  # noqa: PTH115 - the kernel wants text

    def getxattr(self, path: str, name: str, *_: Any) -> bytes:
        """Return an attribute by its name: Drive's id, MD5, and whether it waits for its upload."""
        # The kernel itself asks for others, before each write.
        if name not in NAMES:
            _fail(errno.ENODATA, path)
        if not self._knobs.attributes:
            _fail(errno.EOPNOTSUPP, path)
        path = canonical(path)
        if self.dying:
            _fail(errno.ENOENT, path)
        self._find(path)
        pending = self.queue.by_path.get(path)
        return self._attributes.answer(name, self._folders.cloud_path(path), pending)

    def listxattr(self, path: str) -> list[str]:
        """Return nothing, like the real client, which answers attributes by name only."""
        return []

    def opendir(self, path: str) -> int:
        """Take a folder's listing, which `readdir` then hands out."""
        path = canonical(path)
        self._enter("list", path)
        self._count_open(path)
        # Taken here and returned later, so that a listing shows one moment.
        names = self._list_roots() if path == "/" else self._list(path)
        with self._lock:
            # A mounted Drive sometimes lists only a part of a folder, without an error.
            kept = self.ledger.kept_of_listing(path[1:], len(names))
        number = next(self._numbers)
        self._listings[number] = (path, names[:kept])
        return number

    def _list_roots(self) -> list[tuple[str, bool]]:
        shared = Path(self._folders.cloud_path(SHARED_DRIVES))
        roots = ["MyDrive", "Shareddrives"] if shared.is_dir() and any(shared.iterdir()) else ["MyDrive"]
        return [(name, True) for name in roots]

    def _list(self, path: str) -> list[tuple[str, bool]]:
        # In this order: a file whose upload ends in between is in both, and not in neither.
        names = dict.fromkeys(self.queue.inside(path), False)
        names.update(self._folders.listing(path))
        return sorted(names.items())

    def readdir(self, number: int, first: int) -> Iterator[tuple[str, Entry | None, int]]:
        """Yield the names that `opendir` took, from one on: each with what is known of it, `None` where that is no more
        than what kind of file it is, and its mode."""
        folder, names = self._listings[number]
        # A stat that is meant to fail has to be made.
        known = {} if self.dying or self.ledger.faults.ops else self._folders.known(folder)
        prefix = f"{folder.rstrip('/')}/"
        for name, is_folder in names[first:]:
            path = prefix + name
            # As of now and not of `opendir`: the kernel takes it for the truth, also of a file that was written since.
            entry = None if path in self.queue.by_path else known.get(name)
            if entry is None:
                yield name, None, stat_bits.S_IFDIR if is_folder else stat_bits.S_IFREG
            else:
                yield name, entry, self._mode_of(path, entry)

    def releasedir(self, path: str | None, number: int) -> int:
        """Forget a listing."""
        self._listings.pop(number, None)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        """Return the account's storage."""
        figures = self._account.statfs()
        return figures if self._knobs.reports_space else {**figures, "f_blocks": 0, "f_bfree": 0, "f_bavail": 0}

    def open(self, path: str, fi: Any) -> int:
        """Open a file; one that is opened for writing is copied to the local disk at once."""
        path = canonical(path)
        self._enter("open", path)
        self._count_open(path)
        # Documents of Google's editors have no bytes, and the real client refuses to open them too.
        if path.endswith(_NATIVE):
            _fail(errno.EOPNOTSUPP, path)
        self._find(path)
        writes = bool(fi.flags & _WRITES)
        if writes:
            self._check_writable(path)
            handle: ReadHandle | LocalHandle = self._open_local(path, empty=bool(fi.flags & os.O_TRUNC))
        else:
            handle = self._open_read(path)
        with self._lock:
            handle.counted = self.ledger.counts_reads_of(path[1:])
            if isinstance(handle, ReadHandle):
                handle.is_short = self.ledger.ends_early(path[1:])
        # The kernel's page cache would merge reads, and fill up short ones from the size in the listing.
        fi.direct_io = int(handle.counted or (isinstance(handle, ReadHandle) and handle.is_short))
        return self._hand_out(handle, fi)

    def _hand_out(self, handle: ReadHandle | LocalHandle, fi: Any) -> int:
        number = next(self._numbers)
        self._handles[number] = handle
        fi.fh = number
        return 0

    def _open_read(self, path: str) -> ReadHandle | LocalHandle:
        pending = self.queue.by_path.get(path)
        if pending is not None:
            with contextlib.suppress(FileNotFoundError):  # its upload ended just now
                return LocalHandle(pending, os.open(pending.data, os.O_RDONLY), self._content.visit(), writes=False)
        content = self._content.open(self._folders.cloud_path(path))
        return ReadHandle(path, content, self._content.visit())

    def _open_local(self, path: str, *, empty: bool) -> LocalHandle:
        """Open a file for writing, as a copy of the one in the cloud unless it is to be emptied."""
        pending = self.queue.by_path.get(path)
        if pending is None or not self.queue.reopen(pending):
            pending = self.queue.new(path) if empty else self._copy_for_writing(path)
            self.queue.reopen(pending)
        fd = os.open(pending.data, os.O_RDWR)
        if empty:
            os.ftruncate(fd, 0)
            pending.dirty = True
        return LocalHandle(pending, fd, self._content.visit(), writes=True)

    def _copy_for_writing(self, path: str) -> Pending:
        def fill(data: Path) -> None:
            with data.open("wb") as file:
                for offset in range(0, content.size, self._knobs.block_bytes):
                    file.write(self._content.read(content, visit, self._knobs.block_bytes, offset))
            os.utime(data, ns=(content.mtime_ns, content.mtime_ns))

        visit = self._content.visit()
        content = self._content.open(self._folders.cloud_path(path))
        try:
            pending = self.queue.new(path, fill=fill)
        finally:
            self._content.release(content)
        # Only opening it for writing changes nothing, so there is nothing to upload.
        pending.dirty = False
        return pending

    def create(self, path: str, mode: int, fi: Any) -> int:
        """Start a new file."""
        path = canonical(path)
        self._enter_change("create", path)
        self._check_quota(path, 0)
        return self._hand_out(self._open_local(path, empty=True), fi)

    def read(self, path: str | None, size: int, offset: int, fi: Any) -> bytes:
        """Return the bytes of an open file, after the time that this takes."""
        handle = self._handles[fi.fh]
        if self.dying:
            _fail(errno.ENOTCONN, handle.path)
        if isinstance(handle, LocalHandle):
            return self._read_local(handle, size, offset)
        content = handle.content
        end = content.size - SHORT_BYTES if handle.is_short else content.size
        size = min(size, end - offset)
        if size <= 0:
            return b""
        if handle.counted:
            self._enter("read", handle.path)
        return self._content.read(content, handle.visit, size, offset)

    def _read_local(self, handle: LocalHandle, size: int, offset: int) -> bytes:
        data = os.pread(handle.fd, size, offset)
        if data and handle.counted:
            self._enter("read", handle.path)
        self._content.serve_warm(handle.visit, len(data))
        return data

    def write(self, path: str | None, data: bytes, offset: int, fi: Any) -> int:
        """Write bytes to the local copy."""
        handle = self._handles[fi.fh]
        if not isinstance(handle, LocalHandle):
            _fail(errno.EBADF, handle.path)
        if self.dying:
            _fail(errno.ENOTCONN, handle.path)
        self._enter("write", handle.path)
        self._check_quota(handle.path, max(0, offset + len(data) - os.fstat(handle.fd).st_size))
        handle.pending.dirty = True
        with self._lock:
            self.stats.bytes_written += len(data)
        return os.pwrite(handle.fd, data, offset)

    def _check_quota(self, path: str, growth: int) -> None:
        if self.ledger.faults.quota_exceeded or (growth and not self._account.take(growth)):
            _fail(errno.ENOSPC, path)

    def release(self, path: str | None, fi: Any) -> int:
        """Close a file; the upload of one that was written begins."""
        handle = self._handles.pop(fi.fh)
        if isinstance(handle, ReadHandle):
            self._content.release(handle.content)
            return 0
        os.close(handle.fd)
        if handle.writes:
            self.queue.done_writing(handle.pending)
        return 0

    def fsync(self, path: str | None, datasync: int, fi: Any) -> int:
        """Do nothing: bytes are in the local copy already, and nothing hastens the upload."""
        return 0

    def truncate(self, path: str, length: int) -> int:
        """Change a file's length."""
        path = canonical(path)
        self._enter_change("write", path)
        self._check_quota(path, max(0, length - self._find(path).size))
        handle = self._open_local(path, empty=not length)
        try:
            os.ftruncate(handle.fd, length)
            handle.pending.dirty = True
        finally:
            os.close(handle.fd)
            self.queue.done_writing(handle.pending)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        """Keep a mode until the next mount."""
        self._check_writable(path)
        self._modes[canonical(path)] = mode & 0o7777
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        """Do nothing: a Drive knows no owners."""
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None) -> int:
        """Set the modification time, in nanoseconds."""
        path = canonical(path)
        self._check_writable(path)
        mtime_ns = times[1] if times else _UTIME_NOW
        if mtime_ns == _UTIME_OMIT or self._find(path).is_folder:
            return 0
        if mtime_ns == _UTIME_NOW:
            mtime_ns = time.time_ns()
        if self.queue.set_time(path, mtime_ns):
            return 0
        file = Path(self._folders.cloud_path(path))
        before = file.stat()
        os.utime(file, ns=(mtime_ns, mtime_ns))
        self._content.rekey(before, file.stat())
        self._folders.patch(path)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        """Make a folder, which is in the cloud at once."""
        path = canonical(path)
        self._enter_change("mkdir", path)
        Path(self._folders.cloud_path(path)).mkdir()
        self._folders.made(path)
        return 0

    def rmdir(self, path: str) -> int:
        """Remove an empty folder."""
        path = canonical(path)
        self._enter_change("unlink", path)
        # The cloud's folder is empty as long as uploads into it are still to come.
        if self.queue.inside(path):
            _fail(errno.ENOTEMPTY, path)
        Path(self._folders.cloud_path(path)).rmdir()
        self._folders.gone(path)
        return 0

    def unlink(self, path: str) -> int:
        """Delete a file: what is in the cloud goes to the trash."""
        path = canonical(path)
        self._enter_change("unlink", path)
        # What only this machine has leaves no trace in the cloud, not even in its trash.
        was_pending = self.queue.remove(path)
        try:
            self._account.discard(Path(self._folders.cloud_path(path)))
        except FileNotFoundError:
            if not was_pending:
                raise
        self._modes.pop(path, None)
        self._folders.patch(path)
        return 0

    def rename(self, old: str, new: str) -> int:
        """Move a file or folder; what has not been uploaded yet arrives under its new name."""
        old, new = canonical(old), canonical(new)
        self._enter_change("rename", old)
        if not is_below_root(new):
            _fail(errno.EOPNOTSUPP, new)
        with self.queue.lock:
            was_pending = self.queue.move(old, new)
            if not was_pending:
                self.queue.remove(new)
            try:
                Path(self._folders.cloud_path(old)).rename(self._folders.cloud_path(new))
            except FileNotFoundError:
                if not was_pending:
                    raise
            else:
                self._folders.moved(old, new)
        if old in self._modes:
            self._modes[new] = self._modes.pop(old)
        return 0

    def link(self, target: str, source: str) -> int:
        """Refuse: a Drive has no links, neither hard nor symbolic ones."""
        _fail(errno.EOPNOTSUPP, canonical(target))

    symlink = link

    def _refuse_lock(self, path: str | None, *_: Any) -> int:
        _fail(errno.ENOSYS, path or "")

    def _uploaded(self, pending: Pending, copy: Path) -> None:
        """Put an uploaded copy into its place in the cloud, and keep the local one as cached content."""
        target = Path(self._folders.cloud_path(pending.path))
        target.parent.mkdir(parents=True, exist_ok=True)
        # In this order: what is listed has its id already, and what is cached was listed.
        self._attributes.put(copy, target)
        self._folders.patch(pending.path)
        self._content.adopt(pending.data, target.stat())
        pending.label.unlink(missing_ok=True)
