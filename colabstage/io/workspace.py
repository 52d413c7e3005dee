"""Unfinished work: temporary files and folders whose names say who owns them, workspaces, and their journals.

`.colabstage-NAME.OWNER.N.tmp` stands in for NAME until that is whole. Whoever finds one can tell a dead owner's
leftovers, which are taken over or removed, from a living one's work, which is left alone. That does not depend on any
lock, because locks are a fiction on many file systems that notebooks use. Everything in such a folder is ours. What
goes is renamed first, to `….old`, so that nobody continues with half of it.

Whatever takes long enough to be interrupted is made in a workspace, such a folder: a copy, a download, an extracted
folder, a pack. The next call for the same target finds the one that a dead process left, takes it over by one rename,
which succeeds for one of several that try, and reads from the journal that it keeps there what is done already.

A journal is a text file. Its first line is the head, which says which work it belongs to; each line after it is one
JSON value, appended with one write. A kill therefore leaves whole lines and at most one that is cut, which has no end
and is not read. Nothing is forced to the disk: what a killed process wrote, the kernel still has. After a reboot it may
not, so whoever cannot check what a line claims puts `current_world()` into the head.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import json
import math
import os
import shutil
import stat
import time
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colabstage.errors import TargetExistsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_MARK = ".colabstage-"
# What is being made; what goes; what made room for its successor; the inventory of what was put in its place, and what
# that is called until it is whole.
TEMP, OLD, WAS, INVENTORY, DRAFT = ".tmp", ".old", ".was", ".deed", ".draft"
_OWNED = (TEMP, OLD, WAS, INVENTORY, DRAFT)
# What `fetch_files` and `extract_archive` leave beside what they made, and what that is called until the work is there.
RECORD_SUFFIX, ANNOUNCED_SUFFIX = ".colabstage.json", ".coming"
# How long a rename by a process that cannot be asked may take before its work counts as given up.
_FOREIGN_RENAME_S = 60.0
# How long what an owner left whom nobody can look up, of another boot or container, has to rest until it goes.
FOREIGN_AGE_S = 3600.0
_counter = itertools.count()
# 255 less the mark, the owner's token, the number and the suffix at their longest.
_MAX_NAME_BYTES = 160


def short_digest(text: str, digits: int = 16) -> str:
    """Return the first hexadecimal digits of a text's SHA-256: for names and keys that follow from it."""
    # A path may hold what is not UTF-8, as file names on Linux can.
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:digits]


def current_world() -> str:
    """Return eight hexadecimal digits that name what our process id is unique in: this boot of this container."""
    facts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            facts.append(str(Path(path).readlink()) if path.endswith("pid") else Path(path).read_text(encoding="ascii"))
        except OSError:
            facts.append(path)
    return short_digest("\n".join(facts), 8)


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
    """Return whether a name is one of colabstage's own beside somebody's data: a temporary, a record, an inventory."""
    return name.startswith(_MARK) or (name[:1] == "." and name.removesuffix(ANNOUNCED_SUFFIX).endswith(RECORD_SUFFIX))


def name_and_owner(temp: Path) -> tuple[str, str] | None:
    """Return what a temporary file stands in for, and its owner's token; `None` for any other file."""
    base, suffix = os.path.splitext(temp.name)  # noqa: PTH122 - a name
    if suffix not in _OWNED or not base.startswith(_MARK):
        return None
    parts = base.removeprefix(_MARK).rsplit(".", 2)
    return (parts[0], parts[1]) if len(parts) == 3 else None


def is_own(path: Path) -> bool:
    """Return whether a path is one of our temporaries, or in one."""
    return any(name_and_owner(place) for place in (path, *path.parents))


def check_own(path: Path) -> None:
    """Refuse what is neither one of our temporaries nor in one: a mistake in colabstage, not in how it is used."""
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


def is_worked_in(folder: Path, *, but: Path) -> bool:
    """Return whether a process that lives, or whose death is not certain, has a temporary in `folder`, `but` apart."""
    owned = [owner for entry, _, owner in find_owned(folder) if entry.suffix == TEMP and entry != but]
    return any(owner_is_alive(owner) is not False for owner in owned)


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


def disk_use(path: Path) -> int:
    """Return the bytes that a file, or all in a folder, takes on the disk; holes take none, and nothing takes 0."""
    total = 0
    for part in walk_parts(path):
        # Others may be clearing up meanwhile.
        with contextlib.suppress(FileNotFoundError):
            total += part.lstat().st_blocks * 512
    return total


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
    """Remove one of our temporaries, or something in one, as far as it goes; nothing there is fine.

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


def find_owned(folder: Path, *, name: str = "", prefix: str = "") -> list[tuple[Path, Path, str]]:
    """Return what has an owned name in a folder: each with what it stands in for, and its owner.

    With `name`, only what stands in for a file or folder of that name; with `prefix`, for one that begins so.
    """
    try:
        entries = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    owned = [(entry, found) for entry in entries if (found := name_and_owner(entry)) is not None]
    return [
        (entry, folder / (name or base), owner)
        for entry, (base, owner) in owned
        if (not name or base == shortened(name)) and base.startswith(prefix)
    ]


def sweep_temporaries(owned: Iterable[tuple[Path, Path, str]], *, empty: bool = False) -> list[Path]:
    """Remove those of `find_owned` whose owners are dead, but no inventories; return what was removed.

    What made room for a successor that never came is put back. Leftovers of another boot or container, whose owner
    cannot be looked up, go once nothing has touched them for an hour. `empty`: as for `remove_own`.
    """
    removed: list[Path] = []
    for entry, target, owner in owned:
        if entry.suffix == INVENTORY:
            continue
        alive = owner_is_alive(owner) and not (entry.suffix == OLD and owner == owner_token())
        if alive or (alive is None and time.time() - last_touched(entry) < FOREIGN_AGE_S):
            continue
        if entry.suffix == WAS and (put_back(target) or not os.path.lexists(target)):
            continue
        remove_own(entry, empty=empty)  # another sweeper may be at it too
        if not os.path.lexists(entry):
            removed.append(entry)
    return removed


def put_back(target: Path) -> bool:
    """Put back what made room for a successor that never came, because its maker died; whether there was anything."""
    if os.path.lexists(target):
        return False
    for entry, owner in owned_beside(target, WAS):
        alive = owner_is_alive(owner)
        with contextlib.suppress(OSError):
            if alive is False or (alive is None and time.time() - entry.lstat().st_ctime > _FOREIGN_RENAME_S):
                entry.rename(target)
                return True
    return False


def link_own(path: Path, to: Path) -> bool:
    """Give a file that has one name a second one, in one of our temporaries; whether it has that.

    So it can be gone on with while whoever else looks for it finds it. What has several names already is somebody's
    copy, which must not change; some file systems know no links.
    """
    check_own(to)
    with contextlib.suppress(OSError):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            to.hardlink_to(path)
            return True
    return False


def rename_own(path: Path, to: Path) -> Path:
    """Give one of our temporaries, or something in one, a name in one too, or one that nothing has; returns that.

    Raises:
        ValueError: it is not a temporary of colabstage; a mistake in colabstage.
        TargetExistsError: something has that name, and it is not in one of our temporaries.
        OSError: as the disk answers.
    """
    check_own(path)
    if not is_own(to) and os.path.lexists(to):
        msg = f"'{to}' is there already. Rename it, then try again."
        raise TargetExistsError(msg)
    return path.replace(to)


def cut_own(path: Path, size: int) -> None:
    """Set the length in bytes of a file in one of our temporaries.

    Raises:
        ValueError: it is not a temporary of colabstage; a mistake in colabstage.
    """
    check_own(path)
    os.truncate(path, size)


def begin_journal(path: Path, lines: Iterable[bytes]) -> int:
    """Begin a journal in one of our temporaries again; it replaces the one that is there when it is whole.

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


# How often a dataset's folder is made again that others remove because it is empty.
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder to work in, made by `open_workspace`."""

    path: Path
    """The folder; it exists."""
    resumed: bool
    """Whether a dead process left it, so that it may hold finished work."""


def always(_: Path, __: BaseException) -> bool:
    """Keep a workspace whatever ended the work: its contents are verified by the call that continues."""
    return True


def unless(*refused: type[BaseException]) -> Callable[[Path, BaseException], bool]:
    """Return a rule for `open_workspace`: keep what is there unless one of these errors ended the work."""
    return lambda _, error: not isinstance(error, refused)


def only_for(*transient: type[BaseException]) -> Callable[[Path, BaseException], bool]:
    """Return a rule for `open_workspace`: keep what is there for transient errors, remove it for all others."""
    return lambda _, error: isinstance(error, transient)


@contextlib.contextmanager
def open_workspace(
    target: Path,
    *,
    accepts: Callable[[Path], bool] = lambda _: True,
    keeps: Callable[[Path, BaseException], bool] = always,
    answers: Callable[[Path], bool] = lambda _: True,
    empty: bool = False,
    in_own_folder: bool = False,
) -> Iterator[Workspace]:
    """Yield a folder beside `target` to make it in; it goes when the block ends well.

    Args:
        target: what the work is for; its folder exists. It need never exist itself: the name is what the next call
            finds the leftovers by.
        accepts: asked of each folder that a dead process left for `target` whether its content can be gone on with;
            the others are removed.
        keeps: asked, when the block ends with an error, whether the folder stays for the next call. It is told the
            folder and the error.
        answers: asked first, when the block ends with an error, whether the disk answers at all: on a mount that hangs,
            clearing up would never end. What stays there is swept by the next call.
        empty: whether files are emptied before they are removed, as for `remove_own`.
        in_own_folder: whether the folder that `target` is in is a dataset's own. Another process that fails removes
            that where it is empty (`remove_empty`), and then it is made again; the folder that it is in never is,
            because where a mount has gone that would be one on the disk below.

    Raises:
        OSError: the folder cannot be made.
    """
    folder = temp_beside(target)
    # Of several, the one that holds most; the rest are swept.
    orphans = sorted(find_orphans(target), key=disk_use, reverse=True)
    # A file was left by work of another kind for the same target: a copy that was to become it.
    resumed = any(orphan.is_dir() and accepts(orphan) and take_orphan(orphan, folder) for orphan in orphans)
    sweep_temporaries(find_owned(target.parent, name=target.name), empty=empty)
    if not resumed:
        _make(folder, in_own_folder=in_own_folder)
    try:
        yield Workspace(folder, resumed)
    except BaseException as error:
        if not answers(folder):
            raise
        # The block may have put the folder itself in its place. Asked so that a mount which has died meanwhile hides
        # no error of the block's.
        if os.path.lexists(folder) and keeps(folder, error):
            leave_for_next(folder)
        else:
            remove_own(folder, empty=empty)
        raise
    remove_own(folder, empty=empty)


def _make(folder: Path, *, in_own_folder: bool) -> None:
    """Make a workspace's folder; what is in a folder keeps others from removing that."""
    for _ in range(_TRIES if in_own_folder else 0):
        with contextlib.suppress(FileNotFoundError):
            folder.mkdir()
            return
        folder.parent.mkdir(exist_ok=True)
    folder.mkdir()


@contextlib.contextmanager
def open_spool(name: Path) -> Iterator[Path]:
    """Yield a place beside `name` for what has to be unpacked before it can be read; it is removed in the end.

    The place is made by whoever needs it. What a dead run left there is not continued, because it has not been
    verified.
    """
    sweep_temporaries(find_owned(name.parent, name=name.name))
    place = temp_beside(name)
    try:
        yield place
    finally:
        remove_own(place)


# Lines joined for one write when a journal is begun: a pack of a million samples has 125,000 of them.
_LINES_AT_ONCE = 4096


def read_journal(path: Path, head: Mapping[str, object]) -> list[Any] | None:
    """Return what the whole lines of a journal say, in order.

    Args:
        path: the journal.
        head: which work it has to belong to, as it was given to `Journal`.

    Returns:
        The values, of which each is whatever JSON holds and for the caller to check; `None` where there is no journal,
        where it belongs to other work, or where a whole line is no JSON.

    Raises:
        OSError: as the disk answers, but for a file that is not there.
    """
    try:
        return list(walk_journal(path, head))
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None


def walk_journal(path: Path, head: Mapping[str, object]) -> Iterator[Any]:
    """Yield what the whole lines of a journal say, one by one, for journals of which not all should be in memory.

    Args:
        path: the journal.
        head: which work it has to belong to, as it was given to `Journal`.

    Raises:
        ValueError: it belongs to other work, or a whole line is no JSON.
        RecursionError: a line is nested too deeply.
        OSError: as the disk answers.
    """
    with path.open("rb") as file:
        # A last line without its end was cut off by a kill.
        whole = takewhile(lambda line: line.endswith(b"\n"), file)
        if json.loads(next(whole, b"null")) != head:
            msg = f"The journal '{path}' belongs to other work, or to none; begin it again."
            raise ValueError(msg)
        yield from map(json.loads, whole)


class Journal(contextlib.AbstractContextManager["Journal"]):
    """A journal that is being written. `append` from any thread; a context manager that closes it.

    Opening one writes it again, beside the old one and then in its place: so a line that a kill cut off stays behind,
    and whoever dies while it is begun leaves the old one whole.
    """

    def __init__(self, path: Path, head: Mapping[str, object], kept: Iterable[object] = ()) -> None:
        """Begin a journal.

        Args:
            path: in one of our temporaries.
            head: which work it belongs to.
            kept: the values that it begins with: what an earlier run had noted, and what is still true.

        Raises:
            OSError: as the disk answers; the journal that was there still is.
        """
        lines = map(_line, chain([head], kept))
        self._handle = begin_journal(path, iter(lambda: b"".join(islice(lines, _LINES_AT_ONCE)), b""))

    def append(self, *values: object) -> None:
        """Note values, a line each, in one write.

        Raises:
            OSError: as the disk answers.
        """
        os.write(self._handle, b"".join(map(_line, values)))

    def close(self) -> None:
        """Release the file. Calling it twice is fine."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
