"""Download a file in full before it is read, from a server without ranges.

The source's state is recorded from the first byte on, so the call after a kill finds the download, and continues or
removes it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from colabstage.io.files import read_json, write_json
from colabstage.io.workspace import (
    find_orphans,
    is_our_name,
    leave_for_next,
    remove_own,
    rename_own,
    take_orphan,
    temp_beside,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_STATE = "state.json"
_CONTENT = "content"
_COMING = "coming"
_VERSION = "version.json"


class Download:
    """The download of one source, which stays until `discard`, or until another run takes it over after `close`.

    Args:
        lasting: the name that it is made for, in a folder that exists.
        state: which source in which state; what a dead process left is continued only if it says the same. `None`
            where the source did not say now: then whatever is there is continued, and keeps its state. What is
            continued compares it again.
    """

    def __init__(self, lasting: Path, state: str | None) -> None:
        self.folder = temp_beside(lasting)
        self._closed = False
        # Nothing from another state of the source can be used: half of one version and half of another would be
        # neither.
        for orphan in find_orphans(lasting):
            if state is not None and read_json(orphan / _STATE) != {"state": state}:
                remove_own(orphan)
                continue
            if take_orphan(orphan, self.folder):
                break
        for part in (_CONTENT, _COMING):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        if state is not None or not (self.folder / _STATE).exists():
            write_json(self.folder / _STATE, {"state": state})

    def fetch(self, bring: Callable[[Path], Path]) -> tuple[Path, bool]:
        """Return what `bring` creates in the given folder, or what an earlier run left there.

        It counts as complete only once `bring` has returned.

        Returns:
            Its path, and whether an earlier run had brought it.
        """
        content, coming = self.folder / _CONTENT, self.folder / _COMING
        # It was renamed in one step when it was complete.
        whole = list(content.iterdir())
        if whole:
            return whole[0], True
        for refused in coming.iterdir():
            # What can be continued has an owned temporary name; the rest arrived completely once, and was refused.
            if not is_our_name(refused.name):
                remove_own(refused)
        path = bring(coming)
        if not path.is_relative_to(coming):
            return path, False
        return rename_own(path, content / path.name), False

    @property
    def version(self) -> str:
        """The service's name for the downloaded version; "" if it did not say."""
        found = read_json(self.folder / _VERSION)
        return found if isinstance(found, str) else ""

    def note_version(self, version: str) -> None:
        """Record the version of the content."""
        write_json(self.folder / _VERSION, version)

    def close(self) -> None:
        """Leave what has arrived for the next run. Calling it twice is fine."""
        if self._closed:
            return
        self._closed = True
        # An empty folder would only make the next run look for something to continue.
        if any(any((self.folder / part).iterdir()) for part in (_CONTENT, _COMING)):
            with contextlib.suppress(OSError):
                leave_for_next(self.folder)
                return
        remove_own(self.folder)

    def discard(self) -> None:
        """Keep nothing. Calling it twice is fine."""
        self._closed = True
        remove_own(self.folder)
