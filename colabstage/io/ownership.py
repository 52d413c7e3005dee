"""Remove, empty or replace only what colabstage made, and only in the state in which it made it.

All code that does so calls this module. The evidence that colabstage made something:

- **A temporary** says so in its name, with the process that owns it, and is a file or folder of this user (see
  `workspace`).
- Where names cannot be exchanged, what makes room for its successor is called `….was` for that moment: if nothing takes
  its place it is put back, never removed.
- **A folder that was put in its place** has an inventory beside it: size and time of everything in it. If it holds
  anything else, or anything in it has changed, it is not replaced.
- **A file** is vouched for by its caller, by a manifest or record of colabstage. A link never is, because it leads to
  something else, nor is what another user made.

Everything is made by the same rule: write beside, verify, rename.

A lock is not evidence, because many file systems grant it to everybody. Another process may therefore do the same work
in the same place, and a refusal counts only if nothing changed there meanwhile (see `among_others`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from colabstage.errors import TargetExistsError
from colabstage.io.units import listed
from colabstage.io.workspace import (
    DRAFT,
    INVENTORY,
    OLD,
    WAS,
    check_own,
    find_owned,
    is_made_here,
    is_our_name,
    owned_beside,
    owned_name,
    owner_is_alive,
    owner_token,
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
_INVENTORY_HEAD = b"colabstage deed 1"
# How often to try again when others change the same places; each time one of them has made progress.
_LOOKS = 8
# Errors that mean that something has just appeared or disappeared.
_CAME_OR_WENT = frozenset({errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY})
# Names listed in an error; the rest are counted.
_TOLD = 3


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
    """Return values that change when something appears, disappears or is written; nothing for what does not exist."""
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
    if not os.path.lexists(path):
        return True
    # Where locks have no effect, another process may remove it between any two of these steps.
    with contextlib.suppress(FileNotFoundError):
        if not is_made_here(path) or not ours(path):
            return not os.path.lexists(path)
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
    _check_named(path)
    with contextlib.suppress(OSError):
        path.unlink()


def rename_named(path: Path, to: Path) -> None:
    """Rename a file with a name that only colabstage uses to another such name, replacing what has it."""
    _check_named(path, to)
    path.replace(to)


def _check_named(*paths: Path) -> None:
    for path in paths:
        if not is_our_name(path.name):
            msg = f"'{path}' is not a name that only colabstage gives, so it is not removed or replaced."
            raise ValueError(msg)


def move_vouched(path: Path, to: Path, ours: Callable[[Path], bool]) -> None:
    """Rename a file that `ours` vouches for to a name that is not in use."""
    if not is_made_here(path) or not path.is_file() or not ours(path) or os.path.lexists(to):
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
        if os.path.lexists(target) and (stat.S_ISDIR(target.lstat().st_mode) or not replaces(target)):
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

    Until then, what is at `path` is untouched. Works for a file; a folder is only put where nothing is. `replaces`: as
    for `put_file`; by default the name is one that only colabstage uses, or the caller has checked before.
    """
    temp = temp_beside(path)
    try:
        yield temp
        sync_file(temp)
        if temp.is_dir():
            temp.replace(path)
        else:
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


Inventory = dict[str, str]
"""What is in a folder by name: size and time of a file, the target of a link, or that it is a folder."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is at a place, compared with its inventory."""

    kind: Literal["nothing", "empty folder", "folder", "file or link"]
    inventory: str = ""
    """The digest of the inventory; "" if there is none, or if everything that it lists is gone."""
    strange: tuple[str, ...] = ()
    """Names that are there but not in the inventory."""
    changed: tuple[str, ...] = ()
    """Names that are there, but differ from the inventory."""
    gone: tuple[str, ...] = ()
    """Names that are only in the inventory."""

    @classmethod
    def of(cls, listed: Inventory, there: Inventory) -> Standing:
        """Compare what is in a folder with an inventory of it."""
        strange, gone = sorted(there.keys() - listed.keys()), sorted(listed.keys() - there.keys())
        changed = sorted(name for name, facts in listed.items() if there.get(name, facts) != facts)
        if len(changed) + len(gone) == len(listed):
            return cls("folder")
        return cls("folder", _digest(listed), tuple(strange), tuple(changed), tuple(gone))

    @property
    def is_as_made(self) -> bool:
        """Return whether everything that was put there is unchanged, and nothing else is there."""
        return bool(self.inventory) and not (self.strange or self.changed or self.gone)

    @property
    def is_replaceable(self) -> bool:
        """Return whether removing it would lose nothing of anybody else's."""
        nothing_else = bool(self.inventory) and not (self.strange or self.changed)
        return self.kind in ("nothing", "empty folder") or nothing_else

    def distance(self) -> tuple[bool, int]:
        """Return how far it is from the inventory; without one it is farthest."""
        return not self.inventory, len(self.strange) + len(self.changed) + len(self.gone)

    def __str__(self) -> str:
        if not self.inventory:
            return "was not made by colabstage"
        differs = {"not from colabstage": self.strange, "changed": self.changed, "gone": self.gone}
        said = [f"{what}: {listed(names, _TOLD)}" for what, names in differs.items() if names]
        return f"was changed since it was made ({'; '.join(said)})" if said else "is as it was made"


def look_at(target: Path) -> Standing:
    """Compare what is at `target` with its inventory: size and time of everything there."""
    try:
        found = target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return Standing("nothing")
    if not stat.S_ISDIR(found.st_mode):
        return Standing("file or link")
    there = _take_inventory(target) if is_made_here(target) else {"": "another user's"}
    if not there:
        return Standing("empty folder")
    # There may be several: one whose folder was never put in place fits worse than the one before it.
    known = [Standing.of(_read_inventory(path), there) for path, _ in owned_beside(target, INVENTORY)]
    return min(known, key=Standing.distance, default=Standing("folder"))


def check_replaceable(target: Path, remedy: str = "Move that away, or choose another target.") -> None:
    """Refuse a target that colabstage may not replace; `remedy`: the sentence that says what to do."""
    here = look_at(target)
    if not here.is_replaceable:
        msg = f"'{target}' {here}. {remedy}"
        raise TargetExistsError(msg)


def put_folder(
    made: Path, target: Path, *, overwrite: bool = False, announce: Callable[[str], object] = lambda _: None
) -> str:
    """Put a finished folder, which is one of our temporaries or inside one, in its place, and write its inventory.

    If the file system can exchange two names, `target` always exists; otherwise, if the process dies in between,
    `put_back` restores the old folder.

    Args:
        made: the folder.
        target: its final path.
        overwrite: whether the user asked to replace whatever is there.
        announce: called with the digest of the inventory right before.

    Returns:
        The digest of the inventory, as `Standing.inventory` has it.
    """
    check_own(made)
    listed, inventory = _take_inventory(made), owned_name(target, INVENTORY)

    def put() -> None:
        if not overwrite:
            check_replaceable(target)
        _write_inventory(inventory, listed)
        announce(_digest(listed))
        _swap(made, target)

    among_others(put, target)
    if not inventory.exists():  # another thread that put the same folder there has removed it
        _write_inventory(inventory, listed)
    for path, owner in owned_beside(target, INVENTORY):
        # Inventories of earlier states. One of a living process is for the folder that it is about to put there.
        if path != inventory and (owner == owner_token() or not owner_is_alive(owner)):
            remove_named(path)
    return _digest(listed)


def _swap(made: Path, target: Path) -> None:
    if not os.path.lexists(target):
        made.rename(target)
        return
    # So that no other call continues with it: after an exchange, this is the name of what was at the target.
    was = made.rename(owned_name(target, WAS))
    try:
        if not _exchange(was, target):
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


def _exchange(one: Path, other: Path) -> bool:
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


def _take_inventory(folder: Path) -> Inventory:
    found: Inventory = {}
    todo = [""]
    while todo:
        prefix = todo.pop()
        try:
            with os.scandir(f"{folder}/{prefix}") as scan:
                for entry in scan:
                    name = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        found[name] = "folder"
                        todo.append(f"{name}/")
                    elif entry.is_symlink():
                        found[name] = f"link {os.readlink(entry.path)}"  # noqa: PTH115 - thousands of them
                    else:
                        about = entry.stat(follow_symlinks=False)
                        is_file = stat.S_ISREG(about.st_mode)
                        found[name] = f"{about.st_size} {about.st_mtime_ns}" if is_file else "device"
        except OSError as error:
            # It disappeared meanwhile, or cannot be examined; no inventory has this value.
            found[prefix or "."] = f"error {error.errno}"
    return found


def _write_inventory(inventory: Path, listed: Inventory) -> None:
    # Not a temporary of the inventory's own name, which nobody would look for, nor of the folder's, which would be
    # adopted.
    draft = inventory.with_suffix(DRAFT)
    try:
        draft.write_bytes(_inventory_text(listed))
        sync_file(draft)
        draft.replace(inventory)
    except BaseException:
        remove_own(draft)
        raise


def _inventory_text(listed: Inventory) -> bytes:
    # Sorted, so that the digest depends only on what is listed; file names cannot contain NUL.
    parts = [os.fsencode(text) for item in sorted(listed.items()) for text in item]
    return b"\0".join([_INVENTORY_HEAD, *parts])


def _digest(listed: Inventory) -> str:
    return hashlib.sha256(_inventory_text(listed)).hexdigest()[:16]


def _read_inventory(path: Path) -> Inventory:
    """Return an inventory; an empty one, which fits nothing, where it cannot be read."""
    with contextlib.suppress(OSError):
        head, *parts = path.read_bytes().split(b"\0")
        if head == _INVENTORY_HEAD and len(parts) % 2 == 0:
            return dict(zip(map(os.fsdecode, parts[::2]), map(os.fsdecode, parts[1::2]), strict=True))
    return {}


# --- leftovers ---


def sweep_orphans(folder: Path, *, name: str = "", prefix: str = "", empty: bool = False) -> list[Path]:
    """Remove what dead processes left in `folder`, which may be missing; return what was removed.

    Of several inventories of an existing folder, the one that fits best stays; the others are of folders that were
    announced and never put in place, or that have been replaced. A single one may be for a folder that is about to be
    put there. `name`, `prefix`: as for `find_owned`; `empty`: as for `remove_own`.
    """
    owned = find_owned(folder, name=name, prefix=prefix)
    removed = sweep_temporaries(owned, empty=empty)
    inventories = [one for one in owned if one.path.suffix == INVENTORY]
    for target in dict.fromkeys(one.target for one in inventories):
        several = [one for one in inventories if one.target == target]
        if len(several) < 2 or look_at(target).kind != "folder":
            continue
        there = _take_inventory(target)
        standings = [Standing.of(_read_inventory(one.path), there) for one in several]
        best = min(range(len(several)), key=lambda at: standings[at].distance())
        for at, one in enumerate(several if standings[best].inventory else ()):
            if at != best and one.is_abandoned:
                remove_named(one.path)
                removed.append(one.path)
    return removed
