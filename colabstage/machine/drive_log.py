"""What the Drive client says in its own log about a failure that the mount only calls errno 5.

Drive limits how often one file may be downloaded in a day, by anybody. The mount then answers 'Input/output error',
as it does for many other reasons; the client's log says `QUOTA_EXCEEDED`.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from colabstage.errors import DriveQuotaError, SourceChangedError, SourceReadError
from colabstage.machine.platforms import system_root

if TYPE_CHECKING:
    from pathlib import Path

_MARK = b"QUOTA_EXCEEDED"
# The log grows by megabytes a minute on a busy day; what was written about a failure stands at its end.
_TAIL_BYTES = 1 << 20
_MAX_CHAIN = 20


def drive_log_path() -> Path:
    """The log of Colab's Drive client."""
    return system_root() / "root/.config/Google/DriveFS/Logs/drive_fs.txt"


def drive_log_size() -> int:
    """How long the log is now, in bytes; 0 without one. To be asked before the work that may fail."""
    try:
        return drive_log_path().stat().st_size
    except OSError:
        return 0


def quota_error(error: BaseException, log_size: int) -> DriveQuotaError | None:
    """The typed error for a read that failed because Drive's download quota is used up; `None` for any other failure.

    Args:
        error: what the work raised.
        log_size: what `drive_log_size` said before the work began.
    """
    if not isinstance(error, SourceReadError) or isinstance(error, SourceChangedError):
        return None
    if not _is_input_output_error(error) or _MARK not in _written_since(log_size):
        return None
    msg = (
        f"{error} The Drive client's log says {_MARK.decode()}: too many downloads of this file, by all who use it, in "
        "a day. Make a copy of it in your own Drive ('Make a copy' on drive.google.com, which resets the count) and "
        "use that, or wait 24 hours; what has arrived is kept."
    )
    return DriveQuotaError(msg)


def _is_input_output_error(error: BaseException) -> bool:
    current: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if current is None:
            return False
        if isinstance(current, OSError) and current.errno == errno.EIO:
            return True
        current = current.__cause__ or current.__context__
    return False


def _written_since(log_size: int) -> bytes:
    try:
        with drive_log_path().open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            # A log that became shorter was begun anew meanwhile.
            log.seek(max(log_size if log_size <= end else 0, end - _TAIL_BYTES))
            return log.read(_TAIL_BYTES)
    except OSError:
        return b""
