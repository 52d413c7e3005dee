"""Files that are whole or absent: temporary names with an owner, atomic publication, block hashes, a local lock.

The rule everywhere is: write beside, verify, rename. A temporary name carries the process that owns it, so whoever
finds one can tell a dead owner's leftovers (removed) from a living one's work (left alone). That does not depend on
any lock, because locks are a fiction on many file systems that notebooks use.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import itertools
import json
import math
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colabstage.errors import TargetNotWritableError
from colabstage.redaction import show_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import filelock

_MARK = ".colabstage-"
_SUFFIX = ".tmp"
_counter = itertools.count()
# 255 less the mark, the owner's token, the number and the suffix at their longest.
_MAX_NAME_BYTES = 160
# A lock that is free so soon is not worth a word.
_SOON_S = 0.5
_NO_FSYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EROFS})


def current_world() -> str:
    """Eight hexadecimal digits that name what our process id is unique in: this boot of this container."""
    facts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            facts.append(str(Path(path).readlink()) if path.endswith("pid") else Path(path).read_text(encoding="ascii"))
        except OSError:
            facts.append(path)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]


def _started(pid: int) -> str:
    """The kernel's start time of a process in clock ticks, empty when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # from field 3 of proc(5) on, after the command's name
    # What has ended but was not waited for (Z, X) owns nothing any more.
    return "" if fields[0] in "ZX" else fields[19]


def owner_token() -> str:
    """Identify this process among all that ever ran here: world, process id, start time."""
    pid = os.getpid()
    return f"{current_world()}-{pid}-{_started(pid)}"


def owner_is_alive(token: str) -> bool | None:
    """Whether the process that made `token` still runs.

    `None` when that cannot be judged from here: the token is another boot's or another container's, or was made
    where the kernel does not tell when processes started.
    """
    world, _, rest = token.partition("-")
    pid, _, started = rest.partition("-")
    if not pid.isdigit() or not started or world != current_world():
        return None
    return _started(int(pid)) == started


def _short(name: str) -> str:
    """`name`, cut where the owner and the rest around it would exceed the 255 bytes that file systems take."""
    whole = os.fsencode(name)
    if len(whole) <= _MAX_NAME_BYTES:
        return name
    return f"{whole[: _MAX_NAME_BYTES - 9].decode(errors='ignore')}-{hashlib.sha256(whole).hexdigest()[:8]}"


def temp_beside(path: Path) -> Path:
    """A fresh temporary name in `path`'s folder that says who owns it."""
    return path.with_name(f"{_MARK}{_short(path.name)}.{owner_token()}.{next(_counter)}{_SUFFIX}")


def _name_and_owner(temp: Path) -> tuple[str, str] | None:
    """What a temporary file stands in for, and its owner's token; `None` for any other file."""
    if not (temp.name.startswith(_MARK) and temp.name.endswith(_SUFFIX)):
        return None
    parts = temp.name.removeprefix(_MARK).removesuffix(_SUFFIX).rsplit(".", 2)
    return (parts[0], parts[1]) if len(parts) == 3 else None


def disown(temp: Path) -> None:
    """Leave a temporary file or folder of ours for whoever comes next, this process included."""
    base, _, number = temp.name.removesuffix(_SUFFIX).rpartition(".")
    # No process has the id 0, so the owner counts as dead.
    temp.rename(temp.with_name(f"{base.rpartition('.')[0]}.{current_world()}-0-0.{number}{_SUFFIX}"))


def find_orphans(path: Path) -> list[Path]:
    """What processes that died in this very boot and container left unfinished for `path`; others' is not certain."""
    wanted = _short(path.name)
    found = []
    for entry in sorted(path.parent.glob(f"{_MARK}{glob.escape(wanted)}.*{_SUFFIX}")):
        parts = _name_and_owner(entry)
        if parts is not None and parts[0] == wanted and owner_is_alive(parts[1]) is False:
            found.append(entry)
    return found


def walk_parts(path: Path) -> Iterator[Path]:
    """`path` itself, and all files and folders below it, while others may be making and removing some.

    What goes meanwhile is left out or, when it went after it was seen, named all the same; `Path.rglob` would raise.
    """
    yield path
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            yield Path(folder, name)


def disk_use(path: Path) -> int:
    """Bytes that a file, or all files in a folder, take on the disk; holes take none. 0 where there is nothing."""
    total = 0
    for part in walk_parts(path):
        with contextlib.suppress(FileNotFoundError):
            total += part.lstat().st_blocks * 512
    return total


def adopt_orphan(path: Path, temp: Path) -> bool:
    """Take over what a dead process left unfinished for `path`: rename it to `temp`, our own name for it.

    The rename is atomic, so of several that try, one succeeds.

    Returns:
        Whether there was anything to take over.
    """
    for entry in find_orphans(path):
        try:
            entry.rename(temp)
        except FileNotFoundError:
            continue
        return True
    return False


def sweep_orphans(
    folder: Path,
    *,
    name: str = "",
    prefix: str = "",
    foreign_age_s: float = 3600.0,
    remove: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Remove the temporary files and folders in `folder` whose owners are dead; return what was removed.

    With `name`, only those that were to become a file or folder of that name; with `prefix`, of one that begins so.
    `remove` is for places where removing
    takes more than `remove_any` does.

    Leftovers of another boot or container, whose owner cannot be looked up, go once nothing has touched them for
    `foreign_age_s` seconds.
    """
    removed: list[Path] = []
    if not folder.is_dir():
        return removed
    for entry in folder.iterdir():
        found = _name_and_owner(entry)
        if found is None or (name and found[0] != _short(name)) or not found[0].startswith(prefix):
            continue
        alive = owner_is_alive(found[1])
        if alive or (alive is None and time.time() - _last_touched(entry) < foreign_age_s):
            continue
        # Another sweeper may be at it too, and what cannot be removed is no reason to fail.
        with contextlib.suppress(OSError):
            (remove or remove_any)(entry)
        if not os.path.lexists(entry):
            removed.append(entry)
    return removed


def _last_touched(path: Path) -> float:
    """When a file, or anything in a folder, was last written, in seconds since 1970; infinity when it just went."""
    latest = -math.inf
    for part in walk_parts(path):
        try:
            latest = max(latest, part.lstat().st_mtime)
        except FileNotFoundError:
            return math.inf
    return latest


def remove_any(path: Path) -> None:
    """Remove a file, or as much of a folder as goes; nothing there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Force a file's bytes, or a folder's entries, to the disk.

    File systems that have no such thing are left as they are. One that tries and fails is an `OSError`: the bytes
    may be lost.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Create a folder with its parents.

    Raises:
        TargetNotWritableError: it cannot be created, or nothing can be written in it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"Cannot create the folder '{path}' ({error}). Choose another place, one that this user can write to."
        raise TargetNotWritableError(msg) from error
    if not os.access(path, os.W_OK | os.X_OK):
        msg = f"Cannot write in the folder '{path}'. Choose another place, or give this user the right to write there."
        raise TargetNotWritableError(msg)


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on any failure it is removed.

    What stands at `path` meanwhile is untouched. Works for a file; a folder replaces only an absent one.
    """
    temp = temp_beside(path)
    try:
        yield temp
        sync_file(temp)
        temp.replace(path)
    except BaseException:
        # Whatever keeps the leftover there must not hide what went wrong; a later sweep finds it.
        with contextlib.suppress(OSError):
            remove_any(temp)
        raise
    # The new entry is in its folder; only a crash of the whole machine could still undo it.
    with contextlib.suppress(OSError):
        sync_file(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, atomically, with sorted keys and a final newline."""
    with atomic_path(path) as temp:
        temp.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON; `None` when there is no such file or it is not whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def hash_block(data: bytes | bytearray | memoryview) -> str:
    """The xxh3-64 of one block, as 16 hexadecimal digits."""
    import xxhash

    digest: str = xxhash.xxh3_64_hexdigest(data)
    return digest


def block_ranges(size: int, block_bytes: int) -> list[tuple[int, int]]:
    """Split `size` bytes into `(offset, length)` blocks; the last one may be short."""
    return [(offset, min(block_bytes, size - offset)) for offset in range(0, size, block_bytes)]


def pread_exactly(handle: int, length: int, offset: int) -> bytes:
    """Read up to `length` bytes at `offset`, going on after short reads; shorter only at the end of the file."""
    first = os.pread(handle, length, offset)
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
    """Write all of `data` at `offset`, going on after short writes."""
    view = memoryview(data)
    if view.nbytes == 0:  # such a view cannot be cast
        return
    view = view.cast("B")
    done = 0
    while done < len(view):
        written = os.pwrite(handle, view[done:], offset + done)
        if written == 0:
            raise OSError(errno.EIO, f"nothing more was written at byte {offset + done}")
        done += written


def hash_ranges(path: Path, ranges: Sequence[tuple[int, int]], *, threads: int) -> list[str]:
    """Hash parts of a file, in parallel.

    Args:
        path: the file.
        ranges: `(offset, length)` of each part, in bytes; a part beyond the end hashes what there is of it.
        threads: how many parts are read at once. xxh3 releases the interpreter lock, so threads add up.

    Returns:
        One 16-digit hash for each part, in the order of `ranges`.
    """
    handle = os.open(path, os.O_RDONLY)
    try:

        def one(part: tuple[int, int]) -> str:
            return hash_block(pread_exactly(handle, part[1], part[0]))

        if len(ranges) < 2 or threads < 2:
            return [one(part) for part in ranges]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(one, ranges))
    finally:
        os.close(handle)


@contextlib.contextmanager
def local_lock(path: Path, *, timeout_s: float, notice: Callable[[str], object] = lambda _: None) -> Iterator[bool]:
    """Hold a lock file on a local disk; yields whether the lock is really held.

    The lock only spares work. Where it cannot be had (a file system without locks, or a holder that does not finish
    in `timeout_s` seconds) the caller goes on without it, and unique temporary names keep the result correct.
    `notice` is told in a sentence for whom it waits, and when it goes on without.
    """
    import filelock

    lock = filelock.FileLock(path)
    held = False
    try:
        held = _acquire(lock, path, timeout_s, notice)
    except (OSError, NotImplementedError):
        held = False
    try:
        yield held
    finally:
        if held:
            lock.release()


def _acquire(lock: filelock.BaseFileLock, path: Path, timeout_s: float, notice: Callable[[str], object]) -> bool:
    import filelock

    soon_s = min(timeout_s, _SOON_S)
    try:
        lock.acquire(timeout=soon_s)
    except filelock.Timeout:
        if timeout_s <= soon_s:
            return False
    else:
        return True
    began = time.monotonic()
    notice(f"Waited for {lock_holder(path)}, which holds '{path}'.")
    try:
        lock.acquire(timeout=timeout_s - soon_s)
    except filelock.Timeout:
        waited_s = time.monotonic() - began + soon_s
        notice(f"Went on beside {lock_holder(path)}, which has held '{path}' for more than {waited_s:.0f} s.")
        return False
    return True


def lock_holder(path: Path) -> str:
    """Who holds a lock file, in words, as far as the kernel tells."""
    try:
        found = path.stat()
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        # proc_locks(5): number, FLOCK, ADVISORY, WRITE, process, place, start, end; a second field "->" is a waiter.
        pids = [fields[4] for fields in map(str.split, lines) if fields[5:6] == [place] and fields[1] != "->"]
        command = show_command(Path(f"/proc/{pids[0]}/cmdline").read_bytes().decode(errors="replace").split("\0"))
    except (OSError, IndexError):
        return "another process"
    return f"process {pids[0]} ({command[:80]})"
