"""Workspaces: folders beside a target in which it is made, which survive a kill and are continued; and their journals.

Everything that takes long enough to be interrupted is made in one: a copy, a download, an extracted folder, a pack.
The folder's name says which process owns it (see `ownership`). The next call for the same target finds the one that a
dead process left, takes it over by one rename, which succeeds for one of several that try, and reads from the journal
that it keeps there what is done already.

A journal is a text file. Its first line is the head, which says which work it belongs to; each line after it is one
JSON value, appended with one write. A kill therefore leaves whole lines and at most one that is cut, which has no end
and is not read. Nothing is forced to the disk: what a killed process wrote, the kernel still has. After a reboot it may
not, so whoever cannot check what a line claims puts `current_world()` into the head.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any

from colabstage.io.files import Closing, disk_use
from colabstage.io.ownership import sweep_orphans
from colabstage.io.temporaries import begin_journal, find_orphans, leave_for_next, remove_own, take_orphan, temp_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
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


class Journal(Closing):
    """A journal that is being written. `append` from any thread; a context manager that closes it.

    Opening one writes it again, beside the old one and then in its place: so a line that a kill cut off stays behind,
    and whoever dies while it is begun leaves the old one whole.
    """

    def __init__(self, path: Path, head: Mapping[str, object], kept: Iterable[object] = ()) -> None:
        """Begin a journal.

        Args:
            path: in a temporary of ours.
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


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
