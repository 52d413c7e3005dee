"""What colabstage makes on a disk: beside its place, then put there whole. Only what is ours is removed or replaced.

All code that removes, empties or replaces anything calls this module. The evidence that colabstage made something:

- **A temporary** says so in its name, with the process that owns it, and is a regular file or a folder of this user,
  never a link (`is_made_here`), because anybody can give a file such a name.
- **What was put in its place** has a receipt beside it (`receipts`), or a manifest, which the caller knows. If it holds
  anything else, or anything in it has changed, it is not replaced.

A lock is not evidence, because many file systems grant it to everybody: a refusal counts only if nothing changed there
meanwhile (`among_others`).

`.colabstage-NAME.OWNER.N.tmp` stands for NAME until NAME is complete. The name tells the leftovers of a dead owner,
which are taken over or removed, from the work of a living one, which is left alone. What is removed is first renamed to
`….old`, so that nobody continues with half of it; what makes room for its successor to `….was`, and if nothing takes
its place it is put back.

Long work is done in a workspace, which is such a folder: the next call for the same target takes over that of a dead
process by one rename. Its journal says what is done: the first line, the head, which work it belongs to; each further
line one JSON value, appended with one write, so that a kill cuts off at most one, which is not read. Nothing is forced
to the disk: after a reboot lines may be lost, and what they claim, so a caller that cannot check it puts
`current_world()` into the head.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import itertools
import json
import math
import os
import secrets
import shutil
import stat
import time
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from colabstage.errors import TargetExistsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

T = TypeVar("T")

OWN_MARK = ".colabstage-"
# Work in progress; what is being removed; what made room for its successor; a receipt (`receipts`), and its name until
# it is complete.
TEMP, OLD, WAS, RECEIPT, DRAFT = ".tmp", ".old", ".was", ".receipt", ".draft"
# Earlier versions had inventories of folders, records under the target's name, and notes of packs that were being
# replaced, which are of no use any more.
EARLIER_INVENTORY, EARLIER_EXCHANGE = ".deed", ".exchange"
RECORD_SUFFIX, ANNOUNCED_SUFFIX = ".colabstage.json", ".coming"
# Evidence about a file beside it. It is removed with that file, not by its age.
_EVIDENCE = (RECEIPT, EARLIER_INVENTORY)
_OWNED = (TEMP, OLD, WAS, DRAFT, EARLIER_EXCHANGE, *_EVIDENCE)
# If the owner is of another boot or container, it cannot be checked. Its work counts as abandoned after this long
# without a change; a name that only made room for a moment, much sooner.
FOREIGN_AGE_S, _FOREIGN_RENAME_S = 3600.0, 60.0
_counter = itertools.count()
# 255 minus the longest mark, owner token, number and suffix.
_MAX_NAME_BYTES = 160
# How often to create a dataset's folder again if others remove it because it is empty.
_TRIES = 8
# Lines joined into one write when a journal is begun: the journal of a pack of a million samples has 125,000.
_LINES_AT_ONCE = 4096
_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FSYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EROFS})
_AT_FDCWD, _RENAME_NOREPLACE, _RENAME_EXCHANGE = -100, 1, 2
# How often to try again when others change the same places; each time one of them has made progress.
_LOOKS = 8
# Errors that mean that something has just appeared or disappeared.
_CAME_OR_WENT = frozenset({errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY})


def short_digest(text: str, digits: int = 16) -> str:
    """Return the first hexadecimal digits of a text's SHA-256, for names and keys."""
    # File names on Linux need not be UTF-8.
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:digits]


# --- owners ---


def current_world() -> str:
    """Return eight hexadecimal digits for this boot of this container, within which process ids are unique."""
    path = "/proc/self/ns/pid"
    try:
        return _world_of(os.readlink(path))  # noqa: PTH115
    except OSError:
        return _world_of(path)


# A boot keeps its id, but a forked process may be in another namespace.
@functools.lru_cache(maxsize=4)
def _world_of(namespace: str) -> str:
    path = "/proc/sys/kernel/random/boot_id"
    try:
        boot = Path(path).read_text(encoding="ascii")
    except OSError:
        boot = path
    return short_digest(f"{boot}\n{namespace}", 8)


def _started(pid: int) -> str:
    """Return the start time of a process in clock ticks, from the kernel; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # from field 3 of proc(5) on, after the command's name
    # A process that has ended but was not waited for (Z, X) no longer owns anything.
    return "" if fields[0] in "ZX" else fields[19]


def owner_token() -> str:
    """Identify this process among all that ever ran: world, process id, start time."""
    return f"{current_world()}-{os.getpid()}-{_started(os.getpid())}"


def owner_is_alive(token: str) -> bool | None:
    """Return whether the process that made `token` still runs; `None` if that cannot be checked, because it belongs to
    another boot or container, or the system does not report start times."""
    world, _, rest = token.partition("-")
    pid, _, started = rest.partition("-")
    if not pid.isdigit() or not started or world != current_world():
        return None
    return _started(int(pid)) == started


def is_abandoned(path: Path, owner: str) -> bool:
    """Return whether the owner of one of our names is dead, or cannot be checked and has not touched it for an hour."""
    alive = owner_is_alive(owner)
    return alive is False or (alive is None and time.time() - last_touched(path) > FOREIGN_AGE_S)


# --- names ---


def shortened(name: str) -> str:
    """Shorten `name` so that it fits into the file systems' limit of 255 bytes, with the owner and suffix."""
    whole = os.fsencode(name)
    if len(whole) <= _MAX_NAME_BYTES:
        return name
    return f"{whole[: _MAX_NAME_BYTES - 9].decode(errors='ignore')}-{hashlib.sha256(whole).hexdigest()[:8]}"


def owned_name(path: Path, suffix: str) -> Path:
    """Return a new name beside `path` that says what it stands for and who owns it."""
    # Random digits, so that nobody can put a link under the name in advance.
    number = f"{next(_counter)}-{secrets.token_hex(4)}"
    return path.with_name(f"{OWN_MARK}{shortened(path.name)}.{owner_token()}.{number}{suffix}")


def free_name(path: Path, ending: str) -> Path:
    """Return an unused name beside `path`, for people: its own and an ending, with a number if that is in use."""
    numbered = chain([""], (f"-{number}" for number in itertools.count(2)))
    names = (path.with_name(f"{path.name}{ending}{number}") for number in numbered)
    return next(name for name in names if not os.path.lexists(name))


def temp_beside(path: Path) -> Path:
    """Return a new temporary name in `path`'s folder."""
    return owned_name(path, TEMP)


def is_our_name(name: str) -> bool:
    """Return whether a name is one that colabstage gives files beside the user's data: a temporary or a receipt."""
    is_record = name.removesuffix(ANNOUNCED_SUFFIX).endswith(RECORD_SUFFIX)
    return name.startswith(OWN_MARK) or (name[:1] == "." and is_record)


def name_and_owner(temp: Path) -> tuple[str, str] | None:
    """Return what a temporary file stands for, and its owner's token; `None` for any other file."""
    base, suffix = os.path.splitext(temp.name)  # noqa: PTH122 - a name
    if suffix not in _OWNED or not base.startswith(OWN_MARK):
        return None
    parts = base.removeprefix(OWN_MARK).rsplit(".", 2)
    return (parts[0], parts[1]) if len(parts) == 3 else None


def is_own(path: Path) -> bool:
    """Return whether a path is one of our temporaries, or inside one."""
    return any(name_and_owner(place) for place in (path, *path.parents))


def check_own(path: Path) -> None:
    """Refuse a path that is not one of our temporaries, nor inside one: a bug in colabstage, not a user's mistake."""
    if not is_own(path):
        msg = f"'{path}' is not a temporary file of colabstage's, and not in one, so it is not removed or changed."
        raise ValueError(msg)


class Owned(NamedTuple):
    path: Path
    target: Path
    """What it stands for."""
    owner: str

    @property
    def is_abandoned(self) -> bool:
        return is_abandoned(self.path, self.owner)


def find_owned(folder: Path, *, name: str = "", prefix: str = "", suffixes: tuple[str, ...] = _OWNED) -> list[Owned]:
    """Return the owned names in a folder that this user made, sorted; with `name` or `prefix`, only those that stand
    for that name, or for names that begin so."""
    try:
        # As names, not paths: a folder may have a hundred thousand other files.
        names = sorted(one for one in os.listdir(folder) if one.startswith(OWN_MARK) and one.endswith(suffixes))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    owned = ((folder / one, *found) for one in names if (found := name_and_owner(folder / one)) is not None)
    return [
        Owned(entry, folder / (name or base), owner)
        for entry, base, owner in owned
        if (not name or base == shortened(name)) and base.startswith(prefix) and is_made_here(entry)
    ]


def owned_beside(path: Path, suffix: str) -> list[Owned]:
    """Return what has an owned name for `path` and was made by this user."""
    return find_owned(path.parent, name=path.name, suffixes=(suffix,))


def find_orphans(path: Path) -> list[Path]:
    """Return what dead processes, on this machine or another, left unfinished for `path`, if it is ours."""
    found = owned_beside(path, TEMP)
    return [one.path for one in found if one.is_abandoned and all(map(is_made_here, walk_parts(one.path)))]


# --- what is on the disk ---


def is_made_here(path: Path) -> bool:
    """Return whether a path is a regular file or a folder that this user made; false for links and missing files."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        return False
    user = os.geteuid()
    if found.st_uid == user:
        return True
    # Some mounts give all files one owner, whoever creates them.
    with contextlib.suppress(OSError):
        return found.st_uid == _owner_given(path.parent, found.st_dev, user)
    return False


# A failure is not cached: a minute later the mount may respond, or have room.
@functools.lru_cache(maxsize=256)
def _owner_given(folder: Path, _device: int, _user: int) -> int:
    """Return the owner that a new file of this user gets in a folder: mounts may give another."""
    probe = temp_beside(folder / "owner")
    handle = os.open(probe, _NEW | os.O_EXCL, 0o600)
    try:
        return os.fstat(handle).st_uid
    finally:
        os.close(handle)
        probe.unlink()


def walk_parts(path: Path) -> Iterator[Path]:
    """Yield `path` and everything below it, even while others create and remove files there, which `Path.rglob` cannot
    handle; links are not followed."""
    yield path
    for folder, folders, files in () if path.is_symlink() else os.walk(path):
        for name in (*folders, *files):
            yield Path(folder, name)


def disk_use(path: Path) -> int:
    """Return the bytes that a file, or all of a folder, takes up on disk, without holes; 0 if there is none."""
    total = 0
    for part in walk_parts(path):
        # Others may be removing files meanwhile.
        with contextlib.suppress(FileNotFoundError):
            total += part.lstat().st_blocks * 512
    return total


def last_touched(path: Path) -> float:
    """Return when a file, or anything in a folder, was last written, since 1970; infinity if it has just
    disappeared."""
    try:
        return max(part.lstat().st_mtime for part in walk_parts(path))
    except FileNotFoundError:
        return math.inf


# --- temporaries are given up, taken over, changed and removed ---


def leave_for_next(temp: Path) -> None:
    """Give up a temporary of ours, so that any process can take it over; if that is impossible, remove it."""
    check_own(temp)
    base, _, number = temp.name.removesuffix(TEMP).rpartition(".")
    try:
        # No process has the id 0, so this owner counts as dead.
        temp.rename(temp.with_name(f"{base.rpartition('.')[0]}.{current_world()}-0-0.{number}{TEMP}"))
    except OSError:
        remove_own(temp)


def take_orphan(orphan: Path, temp: Path) -> bool:
    """Rename what `find_orphans` found to `temp`, our own name; return whether it was still there. Only one of several
    processes succeeds."""
    check_own(orphan)
    with contextlib.suppress(OSError):
        orphan.rename(temp)
        return True
    return False


def remove_own(path: Path, *, empty: bool = False) -> None:
    """Remove one of our temporaries, or something in one, as far as possible; a missing one is fine. It never raises a
    disk's error, because it cleans up after errors that must not be hidden.

    `empty`: empty files first, for Google Drive, whose trash counts against the quota; not those with a second name.
    """
    check_own(path)
    with contextlib.suppress(OSError):
        for part in walk_parts(path) if empty else ():
            with contextlib.suppress(OSError):  # an account over its quota may refuse even this
                _set_length(part, 0, most_names=1)
    # Twice, because no later call may come to sweep here: a mount may refuse in passing.
    for _ in range(2):
        try:
            path.unlink(missing_ok=True)
            return
        except IsADirectoryError:
            break
        except OSError:
            continue
    if path.suffix == TEMP and name_and_owner(path):
        # Nobody must continue with half a folder. A mount that refuses renames may still remove.
        with contextlib.suppress(OSError):
            path = path.rename(path.with_suffix(OLD))
    for _ in range(2):
        shutil.rmtree(path, ignore_errors=True)


def cut_own(path: Path, size: int) -> None:
    """Set the length in bytes of a file in one of our temporaries."""
    check_own(path)
    _set_length(path, size)


def _set_length(path: Path, size: int, *, most_names: float = math.inf) -> None:
    """Set the length of a regular file that is not a link and has at most `most_names` names."""
    # Opening must not block on a FIFO.
    handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_nlink <= most_names:
            os.ftruncate(handle, size)
    finally:
        os.close(handle)


def rename_own(path: Path, to: Path) -> Path:
    """Rename one of our temporaries, or something in one, to a name in one or a free name; return that name."""
    check_own(path)
    if not is_own(to) and os.path.lexists(to):
        msg = f"'{to}' is there already. Rename it, then try again."
        raise TargetExistsError(msg)
    return path.replace(to)


def sweep_temporaries(owned: Iterable[Owned], *, empty: bool = False) -> list[Path]:
    """Remove those of `find_owned` whose owners are dead, except evidence; return what was removed. `empty`: as for
    `remove_own`."""
    removed: list[Path] = []
    for one in owned:
        # This process has finished with what it renamed to `.old`.
        is_done = one.path.suffix == OLD and one.owner == owner_token()
        if one.path.suffix in _EVIDENCE or not (is_done or one.is_abandoned):
            continue
        if one.path.suffix == WAS and (put_back(one.target) or not os.path.lexists(one.target)):
            continue
        remove_own(one.path, empty=empty)  # another sweeper may be removing it too
        removed += [] if os.path.lexists(one.path) else [one.path]
    return removed


def sweep_orphans(folder: Path, *, name: str = "", prefix: str = "", empty: bool = False) -> list[Path]:
    """Remove what dead processes left in a folder; the arguments are those of `find_owned` and `remove_own`."""
    return sweep_temporaries(find_owned(folder, name=name, prefix=prefix), empty=empty)


def put_back(target: Path) -> bool:
    """Put back what made room for a successor whose process died; return whether there was anything."""
    if os.path.lexists(target):
        return False
    for one in owned_beside(target, WAS):
        alive = owner_is_alive(one.owner)
        with contextlib.suppress(OSError):
            if alive is False or (alive is None and time.time() - one.path.lstat().st_ctime > _FOREIGN_RENAME_S):
                one.path.rename(target)
                return True
    return False


# --- what is finished is put in its place, and removed ---


def among_others(act: Callable[[], T], *places: Path) -> T:
    """Return the result of `act`, which judges `places` where other processes may do the same at the same time: it is
    called again if something has appeared or is gone meanwhile, or if it refused something that has changed since."""
    for _ in range(_LOOKS):
        before = [_facts_of(place) for place in places]
        try:
            return act()
        except OSError as error:
            refused = isinstance(error, TargetExistsError)
            if refused and [_facts_of(place) for place in places] == before:
                raise
            if not refused and error.errno not in _CAME_OR_WENT:
                raise
    return act()


def _facts_of(path: Path) -> tuple[int, ...]:
    """Return values that change when something appears, disappears or is written; nothing for what does not exist."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove_vouched(path: Path, ours: Callable[[Path], bool], *, empty: bool = False) -> bool:
    """Remove a file or folder that `ours` vouches for; return whether it is gone. A link stays, and so does what
    another user made. `empty`: as for `remove_own`."""
    if not _facts_of(path):
        return True
    # Where locks have no effect, another process may remove it between any two of these steps.
    with contextlib.suppress(FileNotFoundError):
        if not is_made_here(path) or not ours(path):
            return not _facts_of(path)
        if not empty and path.is_file():
            path.unlink()
            return True
        # Renamed first, so that nobody opens a half-removed folder, or an emptied file.
        remove_own(path.rename(owned_name(path, OLD)), empty=empty)
    return True


def remove_named(path: Path) -> None:
    """Remove a file with a name that only colabstage uses, if possible."""
    if not is_our_name(path.name):
        msg = f"'{path}' is not a name that only colabstage gives, so it is not removed."
        raise ValueError(msg)
    with contextlib.suppress(OSError):
        path.unlink()


def move_vouched(path: Path, to: Path) -> None:
    """Rename a file that the caller vouches for to a name that is not in use."""
    if is_made_here(path) and path.is_file() and not _facts_of(to):
        # At this moment another process may take the name, or move the file.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            _take_free_name(path, to)
            return
    msg = f"'{path}' cannot become '{to}': one of them is not as colabstage made it. Rename it, then try again."
    raise TargetExistsError(msg)


def put_file(made: Path, target: Path, *, replaces: Callable[[Path], bool]) -> None:
    """Put a finished file, which is one of our temporaries or inside one, in its place in one step; `replaces` tells
    whether a file at `target` may be replaced."""
    check_own(made)

    def put() -> None:
        if _judged(target, replaces):
            made.replace(target)
        else:
            _take_free_name(made, target)

    among_others(put, target)


def _judged(target: Path, replaces: Callable[[Path], bool]) -> tuple[int, ...]:
    """Return the facts of what is at `target`, which may be replaced."""
    facts = _facts_of(target)
    if facts and (stat.S_ISDIR(target.lstat().st_mode) or not replaces(target)):
        msg = f"'{target}' is there already, and colabstage did not make it as it is now. Rename it, then try again."
        raise TargetExistsError(msg)
    return facts


def _move_judged(
    path: Path, aside: Path, judged: tuple[int, ...], move: Callable[..., object], replaces: Callable[[Path], bool]
) -> None:
    """Move what was judged aside; what has come since goes back, unless `replaces` allows for that as well."""
    move(path, aside)
    # Moving changes the last of its times, and on some mounts its inode, or all times.
    if _facts_of(aside)[1:3] != judged[1:3] and not replaces(aside):
        move(aside, path)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def whatever_is_there(_: Path) -> bool:
    """Allow `put_file` to replace whatever is there, because somebody asked for that."""
    return True


@contextlib.contextmanager
def atomic_path(path: Path, *, replaces: Callable[[Path], bool] = whatever_is_there) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on any failure it is removed. `replaces`: as
    for `put_file`; by default the name is one that only colabstage uses, or the caller has checked before."""
    temp = temp_beside(path)
    try:
        yield temp
        sync_file(temp)
        put_file(temp, path, replaces=replaces)
    except BaseException:
        remove_own(temp)
        raise
    # The entry is in its folder now; only a crash of the machine could still undo that.
    with contextlib.suppress(OSError):
        sync_file(path.parent)


@contextlib.contextmanager
def making_room(path: Path, *, replaces: Callable[[Path], bool]) -> Iterator[None]:
    """Give a file at `path` another name, so that its successor finds this one free. It is removed when the block
    succeeds; after an error it has its name again, unless something else took that. `replaces`: as for `put_file`."""
    aside = owned_name(path, OLD)

    def move() -> None:
        if judged := _judged(path, replaces):
            _move_judged(path, aside, judged, Path.rename, replaces)

    try:
        among_others(move, path)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if not _facts_of(path):
                aside.rename(path)
        raise
    remove_own(aside)


def sync_file(path: Path) -> None:
    """Force a file's bytes, or a folder's entries, to the disk, where the file system supports that."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            error.filename = os.fspath(path)  # the system knows only the open file
            raise
    finally:
        os.close(handle)


def exchange(made: Path, target: Path, judge: Callable[[], bool]) -> None:
    """Give a finished folder, one of our temporaries, the name `target`; what has it is removed, unless `judge` raises.
    It returns whether anything may be removed."""
    check_own(made)

    def put() -> None:
        judged = _facts_of(target)
        takes_any = judge()
        if not judged:
            _take_free_name(made, target)
            return
        # So that no other call continues with it: after an exchange, this is the name of what was at the target.
        was = made.rename(owned_name(target, WAS))
        try:
            _move_judged(target, was, judged, _swap, lambda _: takes_any)
        except BaseException:
            with contextlib.suppress(OSError):
                was.rename(made)
            raise
        remove_own(was.rename(was.with_suffix(OLD)))

    among_others(put, target)


def _swap(one: Path, other: Path) -> None:
    if _rename_by(one, other, _RENAME_EXCHANGE):
        return
    # No exchange here: for a moment one of them is missing. If the process dies then, `put_back` repairs it.
    aside = one.rename(owned_name(one, WAS))
    try:
        other.rename(one)
    except BaseException:
        aside.rename(one)
        raise
    aside.rename(other)


def _take_free_name(path: Path, to: Path) -> None:
    # Where the system cannot rename to free names alone, another process may take it at this moment.
    if not _rename_by(path, to, _RENAME_NOREPLACE):
        path.rename(to)


def _rename_by(one: Path, other: Path, flag: int) -> bool:
    """Rename a file with a flag of the system; return whether this system and the file system know it."""
    # Python has no call for this, and neither have musl and old kernels.
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(other))


# --- workspaces ---


class Workspace(NamedTuple):
    """A folder to work in, made by `open_workspace`."""

    path: Path
    resumed: bool
    """Whether a dead process left it; then it may hold finished work."""


@contextlib.contextmanager
def open_workspace(
    target: Path,
    *,
    accepts: Callable[[Path], bool] = lambda _: True,
    keeps: tuple[type[BaseException], ...] = (BaseException,),
    drops: tuple[type[BaseException], ...] = (),
    answers: Callable[[Path], bool] = lambda _: True,
    empty: bool = False,
    in_own_folder: bool = False,
) -> Iterator[Workspace]:
    """Yield a folder beside `target` to make it in; it is removed when the block succeeds.

    Args:
        target: what the work is for; its folder exists. The name is what the next call finds the leftovers by.
        accepts: tells whether work can continue with a folder that a dead process left; the others are removed.
        keeps: the errors of the block after which the folder stays for the next call, which verifies its contents.
        drops: those among them after which it does not.
        answers: called first when the block fails; tells whether the disk answers at all, because cleaning up on a
            mount that hangs would never end.
        empty: whether files are emptied before they are removed, as for `remove_own`.
        in_own_folder: whether the folder that `target` is in is a dataset's own, which another process that fails
            removes if it is empty, and which then is created again; its parent never is, which a mount may have been.
    """
    folder = temp_beside(target)
    # The fullest one is continued; the others are removed.
    orphans = sorted(find_orphans(target), key=disk_use, reverse=True)
    # A file is a leftover of other work for the same target: a copy that was to become it.
    resumed = any(orphan.is_dir() and accepts(orphan) and take_orphan(orphan, folder) for orphan in orphans)
    sweep_orphans(target.parent, name=target.name, empty=empty)
    if not resumed:
        _make(folder, tries=_TRIES if in_own_folder else 0)
    try:
        yield Workspace(folder, resumed)
    except BaseException as error:
        if not answers(folder):
            raise
        # The block may have put the folder itself in its place; on a dead mount this raises nothing.
        if os.path.lexists(folder) and isinstance(error, keeps) and not isinstance(error, drops):
            leave_for_next(folder)
        else:
            remove_own(folder, empty=empty)
        raise
    remove_own(folder, empty=empty)


def _make(folder: Path, *, tries: int) -> None:
    """Create a workspace's folder; once it exists, nobody removes the folder around it."""
    for _ in range(tries):
        with contextlib.suppress(FileNotFoundError):
            folder.mkdir()
            return
        folder.parent.mkdir(exist_ok=True)
    folder.mkdir()


@contextlib.contextmanager
def open_spool(name: Path) -> Iterator[Path]:
    """Yield a path beside `name`, to be created if needed, for data that must be unpacked before it can be read; it is
    removed at the end, and leftovers of a dead run are not used."""
    sweep_orphans(name.parent, name=name.name)
    place = temp_beside(name)
    try:
        yield place
    finally:
        remove_own(place)


# --- journals ---


def read_journal(path: Path, head: Mapping[str, object]) -> list[Any] | None:
    """Return the values in a journal's complete lines, which the caller has to check; `None` if there is none for this
    work, or a complete line is not JSON."""
    try:
        return list(walk_journal(path, head))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None


def walk_journal(path: Path, head: Mapping[str, object]) -> Iterator[Any]:
    """Yield the values in a journal's complete lines one by one, for journals too large for memory; `head` names its
    work."""
    with path.open("rb") as file:
        # A last line without a line end was cut off by a kill.
        whole = takewhile(lambda line: line.endswith(b"\n"), file)
        if json.loads(next(whole, b"null")) != head:
            msg = f"The journal '{path}' belongs to other work, or to none; begin it again."
            raise ValueError(msg)
        yield from map(json.loads, whole)


class Journal:
    """A journal that is being written, from any thread. Opening one rewrites it beside the old one, without a line that
    was cut off."""

    def __init__(self, path: Path, head: Mapping[str, object], kept: Iterable[object] = ()) -> None:
        """Begin a journal, in one of our temporaries, for the work `head`; `kept`: earlier values that are still
        true."""
        check_own(path)
        lines = map(_line, chain([head], kept))
        fresh = path.with_name(f"{path.name}.new")
        self._handle = os.open(fresh, _NEW | os.O_TRUNC | os.O_APPEND, 0o644)
        try:
            while some := b"".join(islice(lines, _LINES_AT_ONCE)):
                os.write(self._handle, some)
            fresh.replace(path)
        except BaseException:
            self.close()
            raise

    def append(self, *values: object) -> None:
        """Append values, one line each, in one write."""
        os.write(self._handle, b"".join(map(_line, values)))

    def close(self) -> None:
        """Release the file. Calling it twice is fine."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
