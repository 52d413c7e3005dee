"""The account's limits: what the cloud holds, its trash included, with what is on the way there; and downloads."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.clock import SYSTEM_CLOCK
from colabstage.machine.drive_errors import drive_log_path
from colabstage.machine.platforms import system_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from colabstage.clock import Clock
    from colabstage.simulate.knobs import DriveKnobs

_BLOCK_BYTES = 4096
_FRESH_S = 0.5


def note_quota_exceeded(path: str) -> None:
    """Write into the client's log what the real one writes when a file's downloads are used up.

    Only on a practice machine: elsewhere that log is the real client's.
    """
    if system_root() == Path("/"):
        return
    log = drive_log_path()
    with contextlib.suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"content_fetcher: download of '{path}' failed: QUOTA_EXCEEDED\n")


class Account:
    """How full the account is. The cloud's folder is measured now and then; writes in between are added up."""

    def __init__(
        self, cloud: Path, *, knobs: DriveKnobs, pending_bytes: Callable[[], int], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._cloud = cloud
        self._trash = cloud / "Trash"
        self._quota_bytes = knobs.quota_bytes
        self._pending_bytes = pending_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._measured_at = float("-inf")
        self._used = 0
        self._numbers = itertools.count()

    def used_bytes(self) -> int:
        """Bytes that count against the quota."""
        with self._lock:
            if self._clock.now() > self._measured_at + _FRESH_S:
                self._used = _folder_bytes(self._cloud) + self._pending_bytes()
                self._measured_at = self._clock.now()
            return self._used

    def take(self, nbytes: int) -> bool:
        """Take up `nbytes` more; return whether they fit."""
        with self._lock:
            fits = self._used + nbytes <= self._quota_bytes and self._measured_at > 0
            if fits:
                self._used += nbytes
                return True
        fits = self.used_bytes() + nbytes <= self._quota_bytes
        if fits:
            with self._lock:
                self._used += nbytes
        return fits

    def discard(self, file: Path) -> None:
        """Move a file of the cloud to the trash, where it keeps counting."""
        self._trash.mkdir(exist_ok=True)
        file.rename(self._trash / f"{time.time_ns()}-{next(self._numbers)}-{file.name[-100:]}")

    def statfs(self) -> dict[str, int]:
        """The answer to `statvfs`: the account, not the local disk."""
        free_bytes = max(0, self._quota_bytes - self.used_bytes())
        return {
            "f_bsize": _BLOCK_BYTES,
            "f_frsize": _BLOCK_BYTES,
            "f_blocks": self._quota_bytes // _BLOCK_BYTES,
            "f_bfree": free_bytes // _BLOCK_BYTES,
            "f_bavail": free_bytes // _BLOCK_BYTES,
            "f_namemax": 255,
        }


def _folder_bytes(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(where, name).lstat().st_size
            except OSError:  # gone meanwhile
                continue
    return total
