"""Remove, empty or replace only what colabstage made, and only in the state in which it made it.

All code that does so calls this module. The evidence that colabstage made something:

- **A temporary** says so in its name, with the process that owns it, and is a file or folder of this user (see
  `workspace`).
- Where names cannot be exchanged, what makes room for its successor is called `….was` for that moment: if nothing takes
  its place it is put back, never removed.
- **What was put in its place**, a file or a folder, has a receipt beside it (see `receipts`), or a manifest, which the
  caller knows. If it holds anything else, or anything in it has changed, it is not replaced. A link never is, because
  it leads to something else, nor is what another user made.

Everything is made by the same rule: write beside, verify, rename.

A lock is not evidence, because many file systems grant it to everybody. Another process may therefore do the same work
in the same place, and a refusal counts only if nothing changed there meanwhile (see `among_others`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from typing import TYPE_CHECKING

from colabstage.errors import TargetExistsError
from colabstage.io.workspace import (
    OLD,
    WAS,
    check_own,
    find_owned,
    is_made_here,
    is_our_name,
    owned_name,
    remove_own,
    sweep_temporaries,
    temp_beside,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeVar

    T = TypeVar("T")

_NO_FSYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EROFS})
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# How often to try again when others change the same places; each time one of them has made progress.
_LOOKS = 8
# Errors that mean that something has just appeared or disappeared.
_CAME_OR_WENT = frozenset({errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY})


def among_others(act: Callable[[], T], *places: Path) -> T:
    """Call `act` on places where other processes may do the same at the same time; return its result.

    Between any two steps of `act` another process may put something there, replace it or remove it. So `act`, which
    can be repeated, is called again if something that it saw is gone, if something has appeared, or if it refused
    something that has changed since. `places`: all that it judges.
    """
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
    """Return values that change when something appears, disappears or is written; nothing only for what is missing."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


# --- files ---


def remove_empty(folder: Path) -> None:
    """Remove a folder if it is empty."""
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
        going = owned_name(path, OLD)
        path.rename(going)
        remove_own(going, empty=empty)
    return True


def remove_named(path: Path) -> None:
    """Remove a file with a name that only colabstage uses, if possible; a missing file is fine."""
    if not is_our_name(path.name):
        msg = f"'{path}' is not a name that only colabstage gives, so it is not removed."
        raise ValueError(msg)
    with contextlib.suppress(OSError):
        path.unlink()


def move_vouched(path: Path, to: Path, ours: Callable[[Path], bool]) -> None:
    """Rename a file that `ours` vouches for to a name that is not in use."""
    if not is_made_here(path) or not path.is_file() or not ours(path) or _facts_of(to):
        msg = f"'{path}' cannot become '{to}': one of them is not as colabstage made it. Rename it, then try again."
        raise TargetExistsError(msg)
    path.rename(to)


def put_file(made: Path, target: Path, *, replaces: Callable[[Path], bool]) -> None:
    """Put a finished file, which is one of our temporaries or inside one, in its place in one step.

    `replaces` tells whether a file at `target` may be replaced, because it is ours and as we made it, or because the
    caller was told to.
    """
    check_own(made)

    def check() -> None:
        if _facts_of(target) and (stat.S_ISDIR(target.lstat().st_mode) or not replaces(target)):
            was = "is there already, and colabstage did not make it as it is now"
            msg = f"'{target}' {was}. Rename it, then try again."
            raise TargetExistsError(msg)

    among_others(check, target)
    made.replace(target)


def whatever_is_there(_: Path) -> bool:
    """Allow `put_file` to replace whatever is there, because somebody asked for that."""
    return True


@contextlib.contextmanager
def atomic_path(path: Path, *, replaces: Callable[[Path], bool] = whatever_is_there) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on any failure it is removed.

    Until then, what is at `path` is untouched. `replaces`: as for `put_file`; by default the name is one that only
    colabstage uses, or the caller has checked before.
    """
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


def sync_file(path: Path) -> None:
    """Force a file's bytes, or a folder's entries, to the disk.

    File systems that do not support this are ignored. One that tries and fails raises `OSError`: the bytes may be lost.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            error.filename = os.fspath(path)  # the system knows only the open file
            raise
    finally:
        os.close(handle)


# --- folders ---


def exchange(made: Path, target: Path) -> None:
    """Give a finished folder, one of our temporaries, the name `target`; what has it, which the caller has judged, is
    removed."""
    check_own(made)
    if not os.path.lexists(target):
        made.rename(target)
        return
    # So that no other call continues with it: after an exchange, this is the name of what was at the target.
    was = made.rename(owned_name(target, WAS))
    try:
        if not _exchange_names(was, target):
            # No exchange here: for a moment nothing is at the target. If the process dies then, `put_back` repairs it.
            coming, was = was, target.rename(owned_name(target, WAS))
            try:
                coming.rename(target)
            except BaseException:
                was.rename(target)
                was = coming
                raise
    except BaseException:
        with contextlib.suppress(OSError):
            was.rename(made)
        raise
    remove_own(was.rename(was.with_suffix(OLD)))


def _exchange_names(one: Path, other: Path) -> bool:
    # Python has no call for this, and neither have musl and old kernels.
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(other))


# --- leftovers ---


def sweep_orphans(folder: Path, *, name: str = "", prefix: str = "", empty: bool = False) -> list[Path]:
    """Remove what dead processes left in `folder`, which may be missing; return what was removed.

    `name`, `prefix`: as for `find_owned`; `empty`: as for `remove_own`.
    """
    return sweep_temporaries(find_owned(folder, name=name, prefix=prefix), empty=empty)
