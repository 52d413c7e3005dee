"""Journals: which parts of unfinished work are done, line by line, so that a killed run continues where it was.

A journal is a text file in a temporary of ours. Its first line is the head, which says which work it belongs to; each
line after it is one JSON value, appended with one write. A kill therefore leaves whole lines and at most one that is
cut, which has no end and is not read. Nothing is forced to the disk: what a killed process wrote, the kernel still has.
After a reboot it may not, so whoever cannot check what a line claims puts `current_world()` into the head.
"""

from __future__ import annotations

import json
import os
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any

from colabstage.io.files import Closing
from colabstage.io.temporaries import begin_journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

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
            msg = f"The journal '{path}' belongs to other work, or to none; begin it anew."
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
        self._handle = begin_journal(path, _pieces(chain([head], kept)))

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


def _pieces(values: Iterable[object]) -> Iterator[bytes]:
    lines = map(_line, values)
    while some := b"".join(islice(lines, _LINES_AT_ONCE)):
        yield some


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
