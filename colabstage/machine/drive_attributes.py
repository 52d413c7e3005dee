"""The extended attributes in which Google Drive's client reports about files, and how they prove uploads.

A file's id, its MD5 and whether it has been uploaded are attributes that the client returns by name only, and not every
client has them. A missing one is returned as empty, together with the reason, and never guessed.

The client does not announce the end of an upload. A file has arrived when it is no longer waiting, the reported MD5 is
that of what was written, and a second fact shows that this is not just the MD5 of the local copy: an id that Drive has
assigned, or an earlier report that something was waiting. `wait_uploaded` polls until then.
"""

from __future__ import annotations

import errno
import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from colabstage.errors import DriveError
from colabstage.io.files import Closing
from colabstage.io.pipeline import DaemonPool, in_thread
from colabstage.io.progress import SYSTEM_CLOCK, Cancellation
from colabstage.io.units import format_duration
from colabstage.machine.mounts import require_answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path


_ID, _MD5, _UNCOMMITTED = "user.drive.id", "user.drive.md5", "user.drive.uncommitted"
_MD5_FORM = re.compile(r"[0-9a-f]{32}")
# A thread takes this many files at once, because taking one costs as much as a quick query.
_BATCH = 32
# The client responds from its local database, so after a minute no response will come.
_STALL_S = 60.0
# The errors of a client that lacks these attributes, or does not return them for this file.
_MISSING = frozenset(
    {errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EACCES, errno.EIO}
)
_LOCAL_ID = "local-"
# Frequent at first, because a small file is uploaded within a second, and less and less frequent after that.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.05, 5.0
# A file may be without its MD5 for a moment after its upload.
_MD5_LAGS_S = 10.0


class _Upload(NamedTuple):
    waits: bool | None
    """Whether local changes wait to be uploaded; `None` if that is not reported."""
    md5: str = ""
    """That of the content in the cloud; "" if it is not reported, or is not that of the local content."""
    why: str = ""
    """Why there is no `md5`, in words."""
    errno: int = 0


def ask_md5s(paths: Sequence[str]) -> list[str]:
    """Ask Drive's client for the MD5 of many files at once; return none if one is missing."""
    with Md5Questions() as questions:
        return questions.answers(paths)


class Md5Questions(Closing):
    """Ask Drive's client for the MD5s of files. One file without an MD5 leaves the whole listing unproved, so asking
    stops there."""

    def __init__(self, *, workers: int = 16) -> None:
        self._pool = DaemonPool(workers, "colabstage-ask")
        self._md5s: dict[str, str] = {}
        self._has_ended = False

    def ask_before_read(self, path: str) -> None:
        """Query a file and wait for the answer, unless that has been done: its MD5 is then never newer than the content
        that is read afterwards."""
        if path not in self._md5s:
            self._ask([path])

    def known(self, paths: Sequence[str]) -> list[str]:
        """Return the MD5 of each of `paths`, in order; "" if unknown."""
        missing = [path for path in paths if path not in self._md5s]
        # One first: a client without these attributes then costs one query, not thousands.
        self._ask(missing[:1])
        self._ask(missing[1:])
        return [self._md5s.get(path, "") for path in paths]

    def answers(self, paths: Sequence[str]) -> list[str]:
        """Return the MD5s as `known`; none if one is missing."""
        found = self.known(paths)
        return found if all(found) else []

    def close(self) -> None:
        """Send no more queries. Calling it twice is fine."""
        self._has_ended = True
        # A thread whose query hangs can never be joined.
        self._pool.close(abandon=True)

    def _ask(self, paths: Sequence[str]) -> None:
        if self._has_ended:
            return
        # In threads: a client that never responds must not hang the reader.
        batches = [paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH)]
        if not _are_answered([self._pool.submit(partial(self._ask_for, batch)) for batch in batches]):
            self._has_ended = True

    def _ask_for(self, paths: Sequence[str]) -> None:
        for path in paths:
            if self._has_ended:
                return
            if not (md5 := _look_at_upload(path).md5):
                self._has_ended = True
                return
            self._md5s[path] = md5


def wait_uploaded(files: Mapping[Path, str], *, timeout_s: float, cancellation: Cancellation) -> str:
    """Wait until files on a mounted Drive are in the cloud as they were written, for `timeout_s` seconds together.

    `files`: the MD5 of what was written, by path. Return "" when all are; otherwise why the client cannot tell.
    """
    # Set by any of the files: it shows that this client does report pending uploads.
    began, has_waited = SYSTEM_CLOCK.now(), False

    def look(path: Path) -> tuple[_Upload, str, int]:
        found = _look_at_upload(path)
        return found, *(_ask(path, _ID) if found.md5 else ("", found.errno))

    for path, md5 in files.items():
        pause_s, committed_at = _FIRST_LOOK_S, float("inf")
        while True:
            cancellation.check()
            # In a thread, which is abandoned if the client never responds.
            asked = in_thread(partial(look, path), "colabstage-ask")
            if not _are_answered([asked], cancellation):
                return f"'{path}': it did not answer for {_STALL_S:.0f} s"
            found, file_id, number = asked.result()
            has_waited = has_waited or found.waits is True
            why, now = found.why, SYSTEM_CLOCK.now()
            if found.md5 == md5:
                if has_waited or (file_id and not file_id.startswith(_LOCAL_ID)):
                    break
                if not file_id and number in (0, *_MISSING):
                    return f"'{path}': only its MD5 is reported, which may be that of the copy on this machine"
                why = f"'{path}' has no id in the cloud yet"
            elif found.md5:
                why = f"what is in the cloud has another MD5 ({found.md5})"
            # Only the time since the last pending change counts, because a file may be rewritten while it is uploaded.
            committed_at = min(committed_at, now) if found.waits is False else float("inf")
            if number:
                # A dying client reports for a moment that files do not exist, and then stops answering.
                require_answer(path)
            if found.errno in _MISSING and (found.waits is None or now - committed_at > _MD5_LAGS_S):
                return why
            if now - began > timeout_s:
                msg = (
                    f"'{path}' was written, but had not arrived in the cloud after {format_duration(timeout_s)}: {why}."
                    " It is on this machine: keep the session open and publish it again, which continues to wait and "
                    "copies nothing twice; use a larger timeout when there is much to upload."
                )
                raise DriveError(msg)
            SYSTEM_CLOCK.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_LOOK_S)
    return ""


def _look_at_upload(path: str | os.PathLike[str]) -> _Upload:
    # In this order: otherwise a file that is uploaded between the two queries would get its predecessor's MD5.
    waits, number = _ask(path, _UNCOMMITTED)
    if waits not in ("0", "1"):
        answer = os.strerror(number) if number else repr(waits)
        return _Upload(None, why=f"'{os.fspath(path)}': no word on whether it is uploaded ({answer})", errno=number)
    if waits == "1":
        return _Upload(True, why=f"'{os.fspath(path)}' is not uploaded yet")
    md5, number = _ask(path, _MD5)
    if not _MD5_FORM.fullmatch(md5):
        answer = os.strerror(number) if number else repr(md5)
        return _Upload(False, why=f"'{os.fspath(path)}': no MD5 is reported ({answer})", errno=number)
    return _Upload(False, md5)


def _are_answered(asked: Sequence[Future[Any]], cancellation: Cancellation | None = None) -> bool:
    """Wait for queries; return whether all were answered."""
    try:
        DaemonPool.results(asked, cancellation=cancellation, stall_timeout_s=_STALL_S)
    except TimeoutError:
        return False
    return True


def _ask(path: str | os.PathLike[str], name: str) -> tuple[str, int]:
    """Return the value of an attribute, or the error number if there is none."""
    try:
        return os.getxattr(path, name).decode("ascii", "replace").strip("\0\n "), 0
    except OSError as error:  # if the mount is dying, the next call says so
        return "", error.errno or errno.EIO
