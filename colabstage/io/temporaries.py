"""Temporaries: files and folders whose name says that they are ours, and which process owns them.

`.colabstage-NAME.OWNER.N.tmp` stands in for NAME until that is whole. Whoever finds one can tell a dead owner's
leftovers, which are taken over or removed, from a living one's work, which is left alone. That does not depend on any
lock, because locks are a fiction on many file systems that notebooks use. Everything in such a folder is ours.

What goes is renamed first, to `….old`, so that nobody continues with half of it.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import math
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import TargetExistsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MARK = ".colabstage-"
# What is being made; what goes; what made room for its successor; a deed, and what that is called until it is whole.
TEMP, OLD, WAS, DEED, DRAFT = ".tmp", ".old", ".was", ".deed", ".draft"
_OWNED = (TEMP, OLD, WAS, DEED, DRAFT)
# What `fetch_files` and `extract_archive` leave beside what they made, and what that is called until the work is there.
RECORD_SUFFIX, ANNOUNCED_SUFFIX = ".colabstage.json", ".coming"
_counter = itertools.count()
# 255 less the mark, the owner's token, the number and the suffix at their longest.
_MAX_NAME_BYTES = 160


def current_world() -> str:
    """Return eight hexadecimal digits that name what our process id is unique in: this boot of this container."""
    facts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            facts.append(str(Path(path).readlink()) if path.endswith("pid") else Path(path).read_text(encoding="ascii"))
        except OSError:
            facts.append(path)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]


def _started(pid: int) -> str:
    """Return the kernel's start time of a process in clock ticks, empty when there is no such process."""
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
    """Return whether the process that made `token` still runs.

    `None` when that cannot be checked from here: the token is another boot's or another container's, or was made
    where the kernel does not tell when processes started.
    """
    # Process ids start over with each boot and in each container, so elsewhere they say nothing.
    world, _, rest = token.partition("-")
    pid, _, started = rest.partition("-")
    if not pid.isdigit() or not started or world != current_world():
        return None
    return _started(int(pid)) == started


def shortened(name: str) -> str:
    """Return `name`, cut where the owner and the rest around it would exceed the 255 bytes that file systems take."""
    whole = os.fsencode(name)
    if len(whole) <= _MAX_NAME_BYTES:
        return name
    return f"{whole[: _MAX_NAME_BYTES - 9].decode(errors='ignore')}-{hashlib.sha256(whole).hexdigest()[:8]}"


def owned_name(path: Path, suffix: str) -> Path:
    return path.with_name(f"{_MARK}{shortened(path.name)}.{owner_token()}.{next(_counter)}{suffix}")


def temp_beside(path: Path) -> Path:
    """Return a fresh temporary name in `path`'s folder that says who owns it."""
    return owned_name(path, TEMP)


def is_our_name(name: str) -> bool:
    """Return whether a name is one of colabstage's own beside somebody's data: a temporary, a record, a deed."""
    return name.startswith(_MARK) or (name[:1] == "." and name.removesuffix(ANNOUNCED_SUFFIX).endswith(RECORD_SUFFIX))


def name_and_owner(temp: Path) -> tuple[str, str] | None:
    """Return what a temporary file stands in for, and its owner's token; `None` for any other file."""
    base, suffix = os.path.splitext(temp.name)  # noqa: PTH122 - a name
    if suffix not in _OWNED or not base.startswith(_MARK):
        return None
    parts = base.removeprefix(_MARK).rsplit(".", 2)
    return (parts[0], parts[1]) if len(parts) == 3 else None


def is_own(path: Path) -> bool:
    """Return whether a path is a temporary of ours, or in one."""
    return any(name_and_owner(place) for place in (path, *path.parents))


def check_own(path: Path) -> None:
    """Refuse what is neither a temporary of ours nor in one: a mistake in colabstage, not in how it is used."""
    if not is_own(path):
        msg = f"'{path}' is not a temporary file of colabstage's, and not in one, so it is not removed or changed."
        raise ValueError(msg)


def leave_for_next(temp: Path) -> None:
    """Leave a temporary file or folder of ours for whoever comes next, this process included.

    Where that is not possible it is removed: nobody could tell that it is given up.
    """
    check_own(temp)
    base, _, number = temp.name.removesuffix(TEMP).rpartition(".")
    try:
        # No process has the id 0, so the owner counts as dead.
        temp.rename(temp.with_name(f"{base.rpartition('.')[0]}.{current_world()}-0-0.{number}{TEMP}"))
    except OSError:
        remove_own(temp)


def find_orphans(path: Path) -> list[Path]:
    """Return what processes that died in this boot and container left unfinished for `path`; others' is not certain."""
    return [entry for entry, owner in owned_beside(path, TEMP) if owner_is_alive(owner) is False]


def owned_beside(path: Path, suffix: str) -> Iterator[tuple[Path, str]]:
    """Return what has an owned name for `path`, with the owner."""
    wanted = shortened(path.name)
    for entry in sorted(path.parent.glob(f"{_MARK}{glob.escape(wanted)}.*{suffix}")):
        parts = name_and_owner(entry)
        if parts is not None and parts[0] == wanted:
            yield entry, parts[1]


def take_orphan(orphan: Path, temp: Path) -> bool:
    """Rename what `find_orphans` found to `temp`, our own name; whether it was still there.

    The rename is atomic, so of several that try, one succeeds.
    """
    check_own(orphan)
    try:
        orphan.rename(temp)
    except OSError:
        return False
    return True


def walk_parts(path: Path) -> Iterator[Path]:
    """Return `path` itself, and all files and folders below it, while others may be making and removing some.

    What goes meanwhile is left out or, when it went after it was seen, named all the same; `Path.rglob` would raise.
    """
    yield path
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            yield Path(folder, name)


def last_touched(path: Path) -> float:
    """Return when a file, or anything in a folder, was last written, since 1970; infinity when it just went."""
    latest = -math.inf
    for part in walk_parts(path):
        try:
            latest = max(latest, part.lstat().st_mtime)
        except FileNotFoundError:
            return math.inf
    return latest


def remove_own(path: Path, *, empty: bool = False) -> None:
    """Remove a temporary of ours, or something in one, as far as it goes; nothing there is fine.

    It never raises for what a disk answers, because it clears up after errors that must not be hidden; a later sweep
    finds what stays. `empty`: empty files first, for Google Drive, whose trash counts against the account; one that has
    another name as well is somebody's copy, and only loses this one.

    Raises:
        ValueError: it is not a temporary of colabstage; a mistake in colabstage.
    """
    check_own(path)
    with contextlib.suppress(OSError):
        found = path.lstat()
        for part in walk_parts(path) if empty else ():
            with contextlib.suppress(OSError):  # an account that is full may refuse even this
                inside = part.lstat()
                if stat.S_ISREG(inside.st_mode) and inside.st_nlink == 1:
                    os.truncate(part, 0)
        if not stat.S_ISDIR(found.st_mode):
            path.unlink()
            return
        if path.suffix == TEMP and name_and_owner(path):
            # Half a folder must not be gone on with. A mount that renames nothing may yet remove.
            with contextlib.suppress(OSError):
                path = path.rename(path.with_suffix(OLD))
        shutil.rmtree(path, ignore_errors=True)


def rename_own(path: Path, to: Path) -> Path:
    """Give a temporary of ours, or something in one, a name in one too, or one that nothing has; returns that.

    Raises:
        ValueError: it is not a temporary of colabstage; a mistake in colabstage.
        TargetExistsError: something has that name, and it is not in a temporary of ours.
        OSError: as the disk answers.
    """
    check_own(path)
    if not is_own(to) and os.path.lexists(to):
        msg = f"'{to}' is there already. Rename it, then try again."
        raise TargetExistsError(msg)
    return path.replace(to)


def cut_own(path: Path, size: int) -> None:
    """Set the length in bytes of a file in a temporary of ours.

    Raises:
        ValueError: it is not a temporary of colabstage; a mistake in colabstage.
    """
    check_own(path)
    os.truncate(path, size)


def begin_journal(path: Path, lines: Iterable[bytes]) -> int:
    """Begin a journal in a temporary of ours again; it replaces the one that is there when it is whole.

    Returns:
        Its handle, which appends.
    """
    check_own(path)
    fresh = path.with_name(f"{path.name}.new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        for line in lines:
            os.write(handle, line)
        fresh.replace(path)
    except BaseException:
        os.close(handle)
        raise
    return handle
