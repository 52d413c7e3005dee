"""Workspaces: folders beside a target in which it is made, which survive a kill and are continued.

Everything that takes long enough to be interrupted is made in one: a copy, a download, an extracted folder, a pack.
The folder's name says which process owns it (see `ownership`). The next call for the same target finds the one that a
dead process left, takes it over by one rename, which succeeds for one of several that try, and reads from whatever
journal it keeps there what is done already.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.io.files import disk_use
from colabstage.io.ownership import sweep_orphans
from colabstage.io.temporaries import find_orphans, leave_for_next, remove_own, take_orphan, temp_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


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

    Raises:
        OSError: the folder cannot be made.
    """
    folder = temp_beside(target)
    # Of several, the one that holds most; the rest are swept.
    orphans = sorted(find_orphans(target), key=disk_use, reverse=True)
    # A file was left by work of another kind for the same target: a copy that was to become it.
    resumed = any(orphan.is_dir() and accepts(orphan) and take_orphan(orphan, folder) for orphan in orphans)
    sweep_orphans(target.parent, name=target.name, empty=empty)
    if not resumed:
        folder.mkdir()
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


@contextlib.contextmanager
def open_spool(name: Path) -> Iterator[Path]:
    """Yield a place beside `name` for what has to be unpacked before it can be read; it is removed in the end.

    The place is made by whoever needs it. What a dead run left there is not continued, because it has not been
    verified.
    """
    sweep_orphans(name.parent, name=name.name)
    place = temp_beside(name)
    try:
        yield place
    finally:
        remove_own(place)
