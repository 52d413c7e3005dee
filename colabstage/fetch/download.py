"""A place for what has to come here whole before it can be read: an owned temporary folder that outlives a kill."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from colabstage.fetch.copy import typed_write_errors
from colabstage.fileops import read_json, write_json
from colabstage.ownership import disown, find_orphans, is_our_name, remove_own, rename_own, take_orphan, temp_beside

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_STATE = "state.json"
_CONTENT = "content"
_COMING = "coming"
_VERSION = "version.json"


class Download:
    """What comes of one source, and stays until `discard`, or until somebody else takes it over after `close`.

    Args:
        lasting: the name that it is made for, in a folder that exists.
        state: which source in which state; what a dead process left is gone on with only if it says the same. `None`
            where the source did not say now: then whatever is there is gone on with, and keeps its state. What is
            continued compares it again.
    """

    def __init__(self, lasting: Path, state: str | None) -> None:
        self.folder = temp_beside(lasting)
        self._closed = False
        for orphan in find_orphans(lasting):
            if state is not None and read_json(orphan / _STATE) != {"state": state}:
                remove_own(orphan)
                continue
            if take_orphan(orphan, self.folder):
                break
        with typed_write_errors(self.folder):
            for part in (_CONTENT, _COMING):
                (self.folder / part).mkdir(parents=True, exist_ok=True)
        if state is not None or not (self.folder / _STATE).exists():
            write_json(self.folder / _STATE, {"state": state})

    def fetch(self, bring: Callable[[Path], Path]) -> tuple[Path, bool]:
        """What `bring` makes, in the folder that it is given or where it was before; whole only once it has returned.

        Returns:
            Its path, and whether an earlier run had brought it.
        """
        content, coming = self.folder / _CONTENT, self.folder / _COMING
        whole = list(content.iterdir())
        if whole:
            return whole[0], True
        for refused in coming.iterdir():
            # What can be gone on with has an owned temporary name; the rest came whole once, and was refused.
            if not is_our_name(refused.name):
                remove_own(refused)
        path = bring(coming)
        if not path.is_relative_to(coming):
            return path, False
        with typed_write_errors(content):
            return rename_own(path, content / path.name), False

    @property
    def version(self) -> str:
        """What the service called the version that came; "" where it did not tell."""
        found = read_json(self.folder / _VERSION)
        return found if isinstance(found, str) else ""

    def note_version(self, version: str) -> None:
        """Keep with the content which version it is."""
        write_json(self.folder / _VERSION, version)

    def close(self) -> None:
        """Leave what came for the next run. Calling it twice is fine."""
        if self._closed:
            return
        self._closed = True
        if any(any((self.folder / part).iterdir()) for part in (_CONTENT, _COMING)):
            with contextlib.suppress(OSError):
                disown(self.folder)
                return
        remove_own(self.folder)

    def discard(self) -> None:
        """Keep nothing. Calling it twice is fine."""
        self._closed = True
        remove_own(self.folder)
