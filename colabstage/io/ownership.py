"""Only what colabstage made, and only as it made it, is removed, emptied or replaced. Whatever does that asks here.

Evidence shows what colabstage made:

- **A temporary** says so in its name, with the process that owns it (see `workspace`).
- What makes room for its successor where names cannot be exchanged is `….was` for that moment: with nothing in its
  place it is put back, never swept.
- **A folder that was put in its place** has an inventory beside it: size and time of everything in it, nothing left
  out. If it holds anything else, or anything in it has changed, it is not replaced.
- **A file** is vouched for by its caller, by a manifest or record of colabstage's; a link never is, because it leads to
  something else.

The rule for making is: write beside, verify, rename.

A lock is no evidence, because many file systems grant it to everybody. So another process may do the same in the same
place, and a refusal counts only of what stayed as it was while it was looked at (see `among_others`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from colabstage.errors import TargetExistsError
from colabstage.io.units import listed
from colabstage.io.workspace import (
    DRAFT,
    FOREIGN_AGE_S,
    INVENTORY,
    OLD,
    WAS,
    check_own,
    find_owned,
    is_our_name,
    last_touched,
    name_and_owner,
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
# How often what others change at the same time is judged again; each time one of them has got on with its work.
_LOOKS = 8
# What is answered where something has just come or gone.
_CAME_OR_WENT = frozenset({errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY})
# Names that an error tells; more are counted.
_TOLD = 3


def among_others(act: Callable[[], T], *places: Path) -> T:
    """Do something at places where other processes may do the same at the same time; return what `act` returns.

    Between any two steps of `act` another process may put something there, replace it or clear it away. So it is done
    again when it misses what it has seen, or meets what was not there, and when it refuses what has changed since.

    Args:
        act: looks at the places and changes them; what it has done already, it can do again.
        places: all that it judges.

    Raises:
        Exception: as `act`, when nothing has changed there, or it still fails after some times.
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
    """Return what changes when something comes, goes or is written; nothing for what is not there."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def sweep_orphans(folder: Path, *, name: str = "", prefix: str = "", empty: bool = False) -> list[Path]:
    """Remove what processes that are dead left in `folder`, as `sweep_temporaries`; return what was removed.

    Of several inventories of a folder that is there, the one that fits it best stays.

    Args:
        folder: where to look; it may be missing.
        name, prefix: as for `find_owned`.
        empty: as for `sweep_temporaries`.
    """
    owned = find_owned(folder, name=name, prefix=prefix)
    removed = sweep_temporaries(owned, empty=empty)
    inventories: dict[Path, list[Path]] = {}
    for entry, target, _ in owned:
        if entry.suffix == INVENTORY:
            inventories.setdefault(target, []).append(entry)
    for target, several in inventories.items():
        removed += _sweep_inventories(target, several)
    return removed


def _sweep_inventories(target: Path, inventories: list[Path]) -> list[Path]:
    """Remove those that dead owners announced and never put there, or that stand for what was replaced."""
    # A single one may be announced for what is about to be put there.
    if len(inventories) < 2 or look_at(target).kind != "folder":
        return []
    there = _take_inventory(target)
    # One that cannot be read fits nothing.
    standings = {inventory: _compare(_read_inventory(inventory) or {}, there) for inventory in inventories}
    best = min(inventories, key=lambda inventory: standings[inventory].distance())
    if not standings[best].inventory:
        return []
    removed = []
    for inventory in inventories:
        _, owner = name_and_owner(inventory) or ("", "")
        alive = owner_is_alive(owner)
        if inventory != best and (
            alive is False or (alive is None and time.time() - last_touched(inventory) > FOREIGN_AGE_S)
        ):
            remove_named(inventory)
            removed.append(inventory)
    return removed


def remove_empty(folder: Path) -> None:
    """Remove a folder that holds nothing; any other stays."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove_vouched(path: Path, ours: Callable[[Path], bool], *, empty: bool = False) -> bool:
    """Remove a file or folder that `ours` vouches for; whether it is gone. A link, or anybody else's, stays.

    `empty`: as for `remove_own`.
    """
    if not os.path.lexists(path):
        return True
    # Where locks hold nobody off, another process may remove it between any two of these steps.
    with contextlib.suppress(FileNotFoundError):
        if path.is_symlink() or not ours(path):
            return not os.path.lexists(path)
        # Renamed first, so that nobody opens a file that is half gone.
        going = owned_name(path, OLD)
        path.rename(going)
        remove_own(going, empty=empty)
    return True


def remove_named(path: Path) -> None:
    """Remove a file whose name only colabstage gives, where that is possible; nothing there is fine.

    Raises:
        ValueError: its name is another one; a mistake in colabstage.
    """
    _check_named(path)
    with contextlib.suppress(OSError):
        path.unlink()


def rename_named(path: Path, to: Path) -> None:
    """Give a file whose name only colabstage gives another such name; what has it is replaced.

    Raises:
        ValueError: one of them is another name; a mistake in colabstage.
        OSError: as the disk answers.
    """
    _check_named(path)
    _check_named(to)
    path.replace(to)


def _check_named(path: Path) -> None:
    if not is_our_name(path.name):
        msg = f"'{path}' is not a name that only colabstage gives, so it is not removed or replaced."
        raise ValueError(msg)


def move_vouched(path: Path, to: Path, ours: Callable[[Path], bool]) -> None:
    """Give a file that `ours` vouches for another name, which nothing has.

    Raises:
        TargetExistsError: it does not, or something has that name. Nothing has changed.
        OSError: as the disk answers.
    """
    if path.is_symlink() or not path.is_file() or not ours(path) or os.path.lexists(to):
        msg = f"'{path}' cannot become '{to}': one of them is not as colabstage made it. Rename it, then try again."
        raise TargetExistsError(msg)
    path.rename(to)


def put_file(made: Path, target: Path, *, replaces: Callable[[Path], bool]) -> None:
    """Put a finished file, one of our temporaries or in one, in its place, in one step.

    Args:
        made: the file.
        target: what it becomes.
        replaces: says of a file that is at `target` whether it may be replaced: because it is ours and as we made
            it, or because the caller was told to.

    Raises:
        TargetExistsError: it may not, or a folder is there.
        OSError: as the disk answers.
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
    """Return that it may be replaced, to `put_file`: somebody said so, whatever is there."""
    return True


@contextlib.contextmanager
def atomic_path(path: Path, *, replaces: Callable[[Path], bool] = whatever_is_there) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on any failure it is removed.

    What is at `path` meanwhile is untouched. Works for a file; a folder replaces only an absent one. `replaces`:
    as for `put_file`; by default the name itself is one that only colabstage gives, or the caller has asked before.
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
    # The new entry is in its folder; only a crash of the whole machine could still undo it.
    with contextlib.suppress(OSError):
        sync_file(path.parent)


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


@dataclass(frozen=True, slots=True)
class Standing:
    """What is at a place, compared with its inventory."""

    kind: Literal["nothing", "empty folder", "folder", "file or link"]
    """Of what kind it is."""
    inventory: str = ""
    """The digest of the inventory; "" without one, or where all that it lists is gone."""
    strange: tuple[str, ...] = ()
    """Names of what is there and not in the inventory."""
    changed: tuple[str, ...] = ()
    """Names of what is there, but not as in the inventory."""
    gone: tuple[str, ...] = ()
    """Names of what is in the inventory only."""

    @property
    def is_as_made(self) -> bool:
        """Return whether all that was put there is there as it was put, and nothing else."""
        return bool(self.inventory) and not (self.strange or self.changed or self.gone)

    @property
    def is_replaceable(self) -> bool:
        """Return whether nothing of anybody else's would be lost."""
        nothing_else = bool(self.inventory) and not (self.strange or self.changed)
        return self.kind in ("nothing", "empty folder") or nothing_else

    def distance(self) -> tuple[bool, int]:
        """Return how far it is from the inventory; one that has none is farthest."""
        return not self.inventory, len(self.strange) + len(self.changed) + len(self.gone)

    def __str__(self) -> str:
        if not self.inventory:
            return "was not made by colabstage"
        said = [f"not from colabstage: {listed(self.strange, _TOLD)}"] if self.strange else []
        said += [f"changed: {listed(self.changed, _TOLD)}"] if self.changed else []
        said += [f"gone: {listed(self.gone, _TOLD)}"] if self.gone else []
        return f"was changed since it was made ({'; '.join(said)})" if said else "is as it was made"


def look_at(target: Path) -> Standing:
    """Compare what is at `target` with its inventory: size and time of everything there, nothing left out."""
    try:
        found = target.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return Standing("nothing")
    if not stat.S_ISDIR(found.st_mode):
        return Standing("file or link")
    there = _take_inventory(target)
    if not there:
        return Standing("empty folder")
    # There may be several: an announced one that never came to pass fits worse than the one before it.
    inventories = [_read_inventory(path) for path, _ in owned_beside(target, INVENTORY)]
    known = [_compare(listed, there) for listed in inventories if listed is not None]
    return min(known, key=Standing.distance, default=Standing("folder"))


def _compare(listed: dict[str, str], there: dict[str, str]) -> Standing:
    strange, gone = sorted(there.keys() - listed.keys()), sorted(listed.keys() - there.keys())
    changed = sorted(name for name, facts in listed.items() if there.get(name, facts) != facts)
    if len(changed) + len(gone) == len(listed):
        return Standing("folder")
    return Standing("folder", _digest(listed), tuple(strange), tuple(changed), tuple(gone))


def put_folder(
    made: Path, target: Path, *, overwrite: bool = False, announce: Callable[[str], object] = lambda _: None
) -> str:
    """Put a finished folder, one of our temporaries or in one, in its place, and write its inventory.

    Where the file system can exchange two names there is no moment at which nothing is at `target`; elsewhere, who
    dies in that moment leaves what `put_back` puts back.

    Args:
        made: the folder.
        target: what it becomes.
        overwrite: whether somebody said that what is there is to be replaced, whatever it is.
        announce: told the digest of the inventory right before.

    Returns:
        The digest of the inventory, as `Standing.inventory` has it.

    Raises:
        TargetExistsError: something is there that is not ours, or not as we made it. Nothing has changed.
        OSError: as the disk answers.
    """
    check_own(made)
    listed = _take_inventory(made)
    inventory = owned_name(target, INVENTORY)

    def put() -> None:
        if not overwrite:
            check_replaceable(target)
        _write_inventory(inventory, listed)
        announce(_digest(listed))
        _swap(made, target)

    among_others(put, target)
    if not inventory.exists():  # another thread that put the same there has cleared up
        _write_inventory(inventory, listed)
    for path, owner in list(owned_beside(target, INVENTORY)):
        # Earlier states' inventories; one of a living process is announced for what it is about to put there.
        if path != inventory and (owner == owner_token() or not owner_is_alive(owner)):
            remove_named(path)
    return _digest(listed)


def check_replaceable(target: Path, remedy: str = "Move that away, or choose another target.") -> None:
    """Refuse a target that is not ours to replace.

    Args:
        target: the folder to become.
        remedy: the sentence that says what to do.

    Raises:
        TargetExistsError: something is there that is not ours, or not as we made it; some of it is named.
    """
    here = look_at(target)
    if not here.is_replaceable:
        msg = f"'{target}' {here}. {remedy}"
        raise TargetExistsError(msg)


def _swap(made: Path, target: Path) -> None:
    if not os.path.lexists(target):
        made.rename(target)
        return
    # So that no other call continues with it: after an exchange, this is the name of what stood at the target.
    was = made.rename(owned_name(target, WAS))
    try:
        if not _exchange(was, target):
            # No exchange here: for a moment nothing is at the target, and `put_back` helps who dies in it.
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
    # Python has no call for it; musl and old kernels have none either.
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(other))


def _take_inventory(folder: Path) -> dict[str, str]:
    """Return what is in a folder by name: of a file size and time, of a link where to, of a folder that it is one."""
    listed: dict[str, str] = {}
    todo = [""]
    while todo:
        prefix = todo.pop()
        try:
            with os.scandir(f"{folder}/{prefix}") as scan:
                for entry in scan:
                    name = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        listed[name] = "folder"
                        todo.append(f"{name}/")
                    elif entry.is_symlink():
                        listed[name] = f"link {os.readlink(entry.path)}"  # noqa: PTH115 - thousands of them
                    else:
                        found = entry.stat(follow_symlinks=False)
                        is_file = stat.S_ISREG(found.st_mode)
                        listed[name] = f"{found.st_size} {found.st_mtime_ns}" if is_file else "device"
        except OSError as error:
            # It went meanwhile, or cannot be looked at: as no inventory has it.
            listed[prefix or "."] = f"error {error.errno}"
    return listed


def _write_inventory(inventory: Path, listed: dict[str, str]) -> None:
    # Not a temporary for the inventory's own name, which nobody would ask for, nor one for the folder's, which is
    # adopted.
    draft = inventory.with_suffix(DRAFT)
    try:
        draft.write_bytes(_inventory_text(listed))
        sync_file(draft)
        draft.replace(inventory)
    except BaseException:
        remove_own(draft)
        raise


def _inventory_text(listed: dict[str, str]) -> bytes:
    # Sorted, so that the digest follows from what it lists; NUL is in no file name.
    parts = [os.fsencode(text) for item in sorted(listed.items()) for text in item]
    return b"\0".join([_INVENTORY_HEAD, *parts])


def _digest(listed: dict[str, str]) -> str:
    return hashlib.sha256(_inventory_text(listed)).hexdigest()[:16]


def _read_inventory(path: Path) -> dict[str, str] | None:
    try:
        head, *parts = path.read_bytes().split(b"\0")
    except OSError:
        return None
    if head != _INVENTORY_HEAD or len(parts) % 2:
        return None
    names = map(os.fsdecode, parts[::2])
    return dict(zip(names, map(os.fsdecode, parts[1::2]), strict=True))
