"""Files: reads that retry transient failures, and typed errors for reads and writes that failed for good; reads and
writes of any size; folders to write in, JSON that is complete or absent, block hashes, a lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import inspect
import io
import json
import math
import os
import re
import stat
import time
import types
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from colabstage.errors import (
    ColabstageError,
    DriveDisconnectedError,
    NotEnoughSpaceError,
    SourceNotFoundError,
    SourceReadError,
    TargetNotWritableError,
)
from colabstage.io.callers_code import is_callers_own
from colabstage.io.pipeline import run_each
from colabstage.io.progress import SYSTEM_CLOCK, Cancellation, Clock
from colabstage.io.workspace import atomic_path, cut_own, is_own, remove_named, short_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import filelock

    T = TypeVar("T")

# 8 MiB: long enough that a mount reads at full speed and the hashes of 100 GB stay under a megabyte, short enough that
# reading one again costs next to nothing.
BLOCK_BYTES = 8 * 1024 * 1024
# How much is read and hashed at once.
_HASHED_TOGETHER = 2**20
# A shorter wait for a lock is not worth a notice.
_SOON_S = 0.5
# Errors of a Drive mount that may pass a moment later.
_TRANSIENT = frozenset({errno.EIO, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.EBUSY})
# A file that was there a moment ago is gone.
_GONE = frozenset({errno.ENOENT, errno.ESTALE})
# The client behind the mount is gone; only mounting again helps.
_DEAD = frozenset({errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNABORTED})


class Closing:
    """Call `close` at the end of a `with` block; for classes whose `close` may be called twice."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    attempts: int = 4
    """Tries for one item, including the first."""
    first_wait_s: float = 0.25
    """Seconds before the second try; each further wait doubles."""
    patience_s: float = 0.0
    """Minimum time in seconds during which a server is asked again: work of hours should not fail because a server had
    a bad minute. Not for mounts: a failing mount needs a person."""
    missing_is_transient: bool = True
    """Whether to retry a file that was listed a moment ago and is now not found, as on a dying mount."""


# For sources that are open, so they answered a moment ago.
PATIENT = RetryPolicy(patience_s=60.0)


def is_transient(error: OSError, policy: RetryPolicy) -> bool:
    """Return whether the same call may succeed a moment later."""
    return error.errno in _TRANSIENT or (error.errno == errno.ENOENT and policy.missing_is_transient)


def speaks_of_a_mount(error: OSError) -> bool:
    """Return whether this error says that a mount's client is dead or failing; local disks hardly ever raise it."""
    return error.errno in _DEAD or error.errno in _TRANSIENT


def translate_read_error(error: OSError, name: str, tries: int) -> OSError:
    """Return the typed error for a read that failed for good after `tries` tries."""
    often, reason = "1 try" if tries == 1 else f"{tries} tries", error.strerror or str(error)
    if error.errno in _DEAD:
        msg = (
            f"Reading '{name}' failed: {reason}. The Drive client has died. Mount it again with mount_drive() and run "
            "this cell once more; finished work is kept."
        )
        return DriveDisconnectedError(msg)
    # It was there a moment ago; otherwise nobody would have requested it.
    if error.errno == errno.ENOENT:
        msg = (
            f"'{name}' was listed but cannot be found any more ({often}). Was it moved or deleted meanwhile? Then try "
            "again; a mounted Drive may list what is gone until refresh_drive()."
        )
        return SourceNotFoundError(msg)
    msg = f"Reading '{name}' failed after {often}: {reason}."
    if error.errno == errno.EOPNOTSUPP:
        msg += " A mounted Drive says so of Google's own documents: download it from Drive in another form."
    if error.errno in _TRANSIENT:
        msg += (
            " On Google Drive this is often the download quota of a file or a folder with too many entries: "
            "stage a copy of the file, or one archive of the folder."
        )
    return SourceReadError(msg)


def read_with_retry(
    read: Callable[[], T], name: str, *, policy: RetryPolicy = RetryPolicy(), clock: Clock = SYSTEM_CLOCK
) -> T:
    """Call `read()` until it succeeds or `policy` is spent.

    A `ColabstageError` raised by `read` itself passes through.
    """
    tries = 1
    while True:
        try:
            return read()
        # Some of our errors are OSErrors too, and need no translation.
        except ColabstageError:
            raise
        except OSError as error:
            if tries >= policy.attempts or not is_transient(error, policy):
                raise translate_read_error(error, name, tries) from error
        clock.sleep(policy.first_wait_s * 2 ** (tries - 1))
        tries += 1


class typed_write_errors:  # noqa: N801 - as contextlib.suppress is named
    """Raise a disk's errors in the block as the typed errors of `translate_write_error`; the caller's own stay.

    A class, because a generator takes as long as a small write. May be entered by several threads.
    """

    __slots__ = ("_target",)

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, ColabstageError):
            if is_callers_own(error, self._target):
                return
            raise translate_write_error(error, self._target) from error


def translate_write_error(error: OSError, target: Path, verb: str = "write") -> OSError:
    """Return the typed error for a write that failed; `verb`: what cannot be done to the target."""
    # Names of temporaries mean nothing to a user.
    place = next(folder for folder in target.parents if not is_own(folder))
    target = place if is_own(target) else target
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        msg = (
            f"'{place}' is full ({error.strerror}). Delete something there (on Google Drive, empty the trash too), or "
            "choose another place."
        )
        return NotEnoughSpaceError(msg)
    if error.errno in _DEAD:
        msg = (
            f"Writing '{target}' failed: {error.strerror}. The Drive client has died. Mount it again with "
            "mount_drive(), then try again."
        )
        return DriveDisconnectedError(msg)
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        # The system does not say which folder on the way is a file.
        for file in filter(Path.is_file, (target, *target.parents)):
            msg = f"Cannot {verb} '{target}': '{file}' is a file. Move it, or choose another place."
            return TargetNotWritableError(msg)
    passes = error.errno in (*_GONE, *_TRANSIENT)
    again = "Try again in a minute; if it is on a mount, mount that again first."
    remedy = again if passes else "Choose another place, or another name."
    msg = f"Cannot {verb} '{target}' ({error.strerror or error}). {remedy}"
    return TargetNotWritableError(msg)


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise translate_write_error(error, path, "create the folder") from error
    # The folder existed already, or its file system is mounted read-only.
    if not os.access(path, os.W_OK | os.X_OK):
        msg = f"Cannot write in the folder '{path}'. Choose another place, or give this user the right to write there."
        raise TargetNotWritableError(msg)


def temporary_folder() -> Path:
    """Return this machine's folder for temporary files, or the one that TMPDIR names."""
    import tempfile

    try:
        return Path(tempfile.gettempdir())
    # Python has tried to write a file into each that it knows; it remembers only a success.
    except FileNotFoundError as error:
        msg = (
            f"{error.strerror}: each is full, missing or read-only. Free some space there, or name another folder: "
            "os.environ['TMPDIR'] = '/path/to/folder'"
        )
        raise TargetNotWritableError(msg) from error


def make_own_folder(path: Path) -> None:
    """Create a folder for colabstage's data, and make sure that it is this user's own where others may write too."""
    # Of one that exists, only the folder itself has to be writable: a home is in a folder of the system's.
    if not path.exists():
        make_folder(path.parent)
    # Another user may create it first and own it, so the owner is checked afterwards.
    if _others_may_write(path.parent):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)  # noqa: PTH102 - created with this mode, never with a wider one
    check_own_folder(path)
    make_folder(path)


def check_own_folder(path: Path) -> None:
    """Refuse a folder that another user made where everybody may write: that user could change the files in it."""
    try:
        found = path.lstat()
    # A missing folder does not belong to another user.
    except (FileNotFoundError, NotADirectoryError):
        return
    if not _others_may_write(path.parent):
        return
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
        msg = (
            f"'{path}' is where everybody can write, and is a link, or another user's, or open to all. Give a "
            "folder of your own as local_dir."
        )
        raise TargetNotWritableError(msg)


def _others_may_write(folder: Path) -> bool:
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def json_text(value: Any) -> str:
    """Return `value` as JSON, with sorted keys and a final newline: the same value is the same text."""
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write `value` as `json_text`, atomically."""
    with atomic_path(path) as temp:
        temp.write_text(json_text(value), encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON; `None` if there is no such regular file, or where `parse_json` returns `None`."""
    try:
        # Reading a pipe or a device might never end.
        return parse_json(path.read_bytes()) if path.is_file() else None
    except (FileNotFoundError, NotADirectoryError):
        return None


def parse_json(text: bytes) -> Any:
    """Return the value of JSON; `None` if it is incomplete, or something that `json_text` never writes.

    Deep nesting and numbers that are not finite are an attack or an accident, not a record.
    """
    try:
        return json.loads(text.decode(), parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def hash_block(data: bytes | bytearray | memoryview) -> str:
    """Return the xxh3-64 of one block, as 16 hexadecimal digits."""
    # Imported here, because most callers hash nothing.
    import xxhash

    return str(xxhash.xxh3_64_hexdigest(data))


def block_ranges(size: int, block_bytes: int) -> list[tuple[int, int]]:
    """Split `size` bytes into `(offset, length)` blocks; the last one may be short."""
    return [(offset, min(block_bytes, size - offset)) for offset in range(0, size, block_bytes)]


def file_state(file: Path | int) -> tuple[int, ...]:
    """Return values that change when a file, open or by path, is written to or replaced by another one."""
    found = os.stat(file)  # noqa: PTH116
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def pread_exactly(handle: int, length: int, offset: int) -> bytes:
    """Read up to `length` bytes at `offset`, continuing after short reads; shorter only at the end of the file."""
    first = os.pread(handle, length, offset)
    # The first read is nearly always complete; it is returned without a copy.
    if len(first) in (0, length):
        return first
    parts = [first]
    got = len(first)
    while got < length:
        part = os.pread(handle, length - got, offset + got)
        if not part:
            break
        parts.append(part)
        got += len(part)
    return b"".join(parts)


def pwrite_exactly(handle: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`, continuing after short writes."""
    left = memoryview(data)
    if left.nbytes == 0:  # such a view cannot be cast
        return
    left = left.cast("B")
    while len(left):
        written = os.pwrite(handle, left, offset)
        # Without this, a disk that accepts nothing and reports no error would be asked for ever.
        if written == 0:
            raise OSError(errno.EIO, f"nothing more was written at byte {offset}")
        left, offset = left[written:], offset + written


def reserve(handle: int, size: int) -> None:
    """Give a file that will be mapped `size` bytes, and room for them on the disk; existing bytes stay.

    Without reserved room, writing to the mapping on a full disk kills the process by a signal.
    """
    os.posix_fallocate(handle, 0, size)


# From Linux's falloc.h.
_KEEP_SIZE, _PUNCH_HOLE = 1, 2


@functools.cache
def _fallocate() -> Any:
    # Python's own call does not take a mode.
    function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function


def punch_hole(handle: int, offset: int, length: int) -> None:
    """Return a part of a file to the disk; it then reads as zeros."""
    if _fallocate()(handle, _PUNCH_HOLE | _KEEP_SIZE, offset, length) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class TargetFile(Closing):
    """A new file to write, as a context manager: its failures are typed as those of the target, not of the source.

    A late thread finds the file closed, never another file under the same descriptor.
    """

    def __init__(self, path: Path, *, fresh: bool = True) -> None:
        """Create the file. With `fresh` it is emptied first; otherwise several writers may write parts of it."""
        self._typed_errors = typed_write_errors(path)
        with self._typed_errors:
            # `open` with a flag would empty any file of that name, also one that is not ours.
            if fresh and path.exists():
                cut_own(path, 0)
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = io.FileIO(os.open(path, flags, 0o644), "wb")

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`. May be called from any thread."""
        with self._typed_errors:
            pwrite_exactly(self._file.fileno(), data, offset)

    def write_rows(self, rows: memoryview, offsets: Sequence[int]) -> None:
        """Write the equal parts of `rows`, bytes, to an offset each, as `write` does."""
        nbytes, handle = len(rows) // len(offsets), self._file.fileno()
        with self._typed_errors:
            for start, offset in zip(range(0, len(rows), nbytes), offsets, strict=True):
                data = rows[start : start + nbytes]
                # In one call, as nearly always: there may be millions of rows of a hundred bytes.
                if (written := os.pwrite(handle, data, offset)) < nbytes:
                    pwrite_exactly(handle, data[written:], offset + written)

    def close(self) -> None:
        # A mount may report only on closing that it could not keep the data.
        with self._typed_errors:
            self._file.close()

    def __exit__(self, *how: object) -> None:
        # The error that ended the block matters more.
        with contextlib.suppress(OSError) if any(how) else contextlib.nullcontext():
            self.close()


def close_quietly(handle: int) -> None:
    """Close a file that was only read. On a dead mount even that fails, and would hide the error that matters."""
    with contextlib.suppress(OSError):
        os.close(handle)


def hash_ranges(
    path: Path,
    ranges: Sequence[tuple[int, int]],
    *,
    threads: int,
    cancellation: Cancellation | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> list[str]:
    """Return the xxh3-64 of parts of a file, `(offset, length)` each, as `hash_block` does; a part that crosses the end
    is hashed up to the end. `advance` is called, in any thread, with the length of each part that was hashed."""
    handle = os.open(path, os.O_RDONLY)
    try:

        def one(part: tuple[int, int]) -> str:
            if cancellation is not None:
                cancellation.check()
            digest = _hash_part(handle, *part)
            advance(part[1])
            return digest

        return run_each(one, ranges, threads, cancellation)
    finally:
        os.close(handle)


def _hash_part(handle: int, offset: int, length: int) -> str:
    import xxhash

    # Read in pieces into the same memory, which stays in the processor's cache: a new buffer for each block of 8 MiB
    # would cost a page fault for every 4 KiB, and the allocator would keep several of them.
    digest, piece = xxhash.xxh3_64(), memoryview(bytearray(min(length, _HASHED_TOGETHER)))
    done = 0
    while done < length:
        got = os.preadv(handle, [piece[: length - done]], offset + done)
        if not got:
            break
        digest.update(piece[:got])
        done += got
    return str(digest.hexdigest())


@contextlib.contextmanager
def local_lock(
    path: Path,
    *,
    timeout_s: float,
    notice: Callable[[str], object] = lambda _: None,
    cancellation: Cancellation | None = None,
) -> Iterator[bool | None]:
    """Hold a lock file on a local disk, which is removed with the lock; yields whether the lock is really held: `False`
    while another process holds it, `None` where none can be had (no locks, a full disk, another user's folder).

    The lock only saves work: without it the caller continues after `timeout_s` seconds, and unique temporary names keep
    the result correct. `notice` gets a sentence that says who is waited for, or that work continues without the lock.
    """
    import filelock

    # Where locks are missing, later versions of filelock would use a plain file, which outlives a killed process.
    takes = inspect.signature(filelock.FileLock).parameters
    options: dict[str, Any] = {"fallback_to_soft": False} if "fallback_to_soft" in takes else {}
    lock = filelock.FileLock(path, **options)
    held: bool | None = None
    with contextlib.suppress(OSError, NotImplementedError):
        make_own_folder(path.parent)
        held = _acquire(lock, path, timeout_s, notice, cancellation)
    try:
        yield held
    finally:
        if held:
            # Removed before it is released: a process that has the file open then sees that it has no name, and
            # retries.
            try:
                remove_named(path)
            finally:
                lock.release()


def lock_for(path: Path) -> Path:
    """Return where processes of this machine lock a path that may be on a drive without locks: in the folder for
    temporary files."""
    # Where that takes no files, there is no lock either, which `local_lock` finds out.
    folder = Path(os.devnull)
    with contextlib.suppress(TargetNotWritableError):
        folder = temporary_folder()
    return folder / f"colabstage-{os.geteuid()}" / f".colabstage-{short_digest(str(path.absolute()))}.lock"


def clear_lock(path: Path) -> None:
    """Remove the lock file of a process that died; a missing file is fine, and a held lock stays."""
    if path.exists():
        with local_lock(path, timeout_s=0):
            pass


def _acquire(
    lock: filelock.BaseFileLock,
    path: Path,
    timeout_s: float,
    notice: Callable[[str], object],
    cancellation: Cancellation | None,
) -> bool | None:
    import filelock

    deadline, is_noticed = time.monotonic() + timeout_s, False
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        with contextlib.suppress(filelock.Timeout):
            lock.acquire(timeout=min(_SOON_S, left_s))
            return True
        if left_s <= _SOON_S:
            break
        # Reported only now, because most locks are free at once.
        if not is_noticed:
            notice(f"Waited for another process, which holds '{path}'.")
        is_noticed = True
        if cancellation is not None:
            cancellation.check()
    if is_noticed:
        notice(f"Continued beside another process, which has held '{path}' for more than {timeout_s:.0f} s.")
    # A folder that takes no files looks to filelock like one where the lock is held.
    return False if path.exists() else None


# colabstage's own small JSON files. A record is a frozen dataclass, and the types of its fields are its schema. JSON
# that does not fit is no record, because anybody may have written it: readers then act as if there were none.

Record = TypeVar("Record")

# Sizes and times of files fit; anything larger is not ours.
_BEYOND = 1 << 63


def read_fields(kind: type[Record], raw: Any) -> Record | None:
    """Return JSON values as the dataclass `kind`; `None` if one is missing, unknown, mistyped or too large."""
    try:
        return _instance(kind, raw)
    except (ValueError, TypeError, RecursionError):
        return None


_types = functools.cache(get_type_hints)


def _instance(kind: type[Record], raw: Any) -> Record:
    assert is_dataclass(kind)
    hints = _types(kind)
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    # An unknown key is from another version, which may give the other keys another meaning.
    if not isinstance(raw, dict) or not needed <= raw.keys() <= hints.keys():
        raise TypeError
    return kind(**{name: _value(hints[name], value) for name, value in raw.items()})


def _value(hint: Any, raw: Any) -> Any:
    """Return `raw` as a value of the type `hint`, JSON's lists as tuples; raises `TypeError` where it does not fit."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        for one in inner:
            with contextlib.suppress(ValueError, TypeError):
                return _value(one, raw)
    elif origin is tuple and isinstance(raw, list):
        each = inner[:1] * len(raw) if inner[-1:] == (Ellipsis,) else inner
        return tuple(_value(one, part) for one, part in zip(each, raw, strict=True))
    elif origin is dict and isinstance(raw, dict):
        return {_value(inner[0], name): _value(inner[1], value) for name, value in raw.items()}
    elif isinstance(hint, type) and is_dataclass(hint):
        return _instance(hint, raw)
    elif hint is int:
        # To Python `True` is an int, and numbers in JSON have no limit.
        if type(raw) is int and abs(raw) < _BEYOND:
            return raw
    elif (
        hint is Any
        or (origin is Literal and any(raw == one and type(raw) is type(one) for one in inner))
        or (isinstance(hint, type) and type(raw) is hint)
    ):
        return raw
    raise TypeError


# What often replaces a data file: a web page, and by its first bytes a pointer or a file of macOS.
_HTML = re.compile(rb"(?is)\A(?:\xef\xbb\xbf)?\s*(?:<!--.{0,400}?-->\s*)?<(?:!doctype\s+html|html|head|body)\b")
_STAND_INS = {
    b"version https://git-lfs.github.com/spec/v1": "a pointer of Git LFS, which names the file and does not hold it. "
    "Clone the repository and run git lfs pull; the zip that GitHub makes of one has nothing but pointers",
    b"/annex/objects/": "a pointer of git-annex, which names the file and does not hold it. Run git annex get",
    b"\0\5\x16\7": "what macOS notes about a file beside it (AppleDouble)",
}


def is_html(head: bytes) -> bool:
    return _HTML.match(head) is not None


def stand_in(head: bytes) -> str:
    """Return what a file really is, by its first bytes, as the end of "it is …"; "" if it is none of these.

    >>> stand_in(b"<!doctype html><title>Google Drive - Virus scan warning")
    'a web page (HTML) saved under this name, as a download leaves that wanted a confirmation'
    """
    if is_html(head):
        return "a web page (HTML) saved under this name, as a download leaves that wanted a confirmation"
    return next((what for begin, what in _STAND_INS.items() if head.startswith(begin)), "")
