"""What Google Drive's client tells of a file by extended attributes: its id, its MD5, and whether it is uploaded.

It answers them by name only (listing them gives nothing), and not every client does. So each of them may be missing,
and what is missing is given as empty with the reason, never guessed.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.io.pipeline import DaemonPool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ID, _MD5, _UNCOMMITTED = "user.drive.id", "user.drive.md5", "user.drive.uncommitted"
_MD5_FORM = re.compile(r"[0-9a-f]{32}")
# One task of the pool asks so many files: its own cost is that of a quick answer.
_BATCH = 32
# The client answers from what it knows of the account. Who says nothing for so long says nothing.
_STALL_S = 60.0


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """What the client tells of one file.

    `id`: Drive's own; one that begins with `local-` exists only on this machine. "" where it is not told.
    `md5`: of the content in the cloud, 32 hexadecimal digits; "" where it is not told, or where what a reader gets
    here may be another content, because it is not uploaded.
    `uncommitted`: whether what is here waits for its upload; `None` where that is not told.
    `why`: why there is no `md5`, in words; "" where there is one.
    """

    id: str
    md5: str
    uncommitted: bool | None
    why: str


def ask_client(path: str | os.PathLike[str]) -> ClientFacts:
    """Ask Drive's client for what it tells of one file. A client that hangs is waited for: ask in a thread."""
    file_id, _ = _ask(path, _ID)
    uncommitted, md5, why = _ask_md5(path)
    return ClientFacts(file_id, md5, uncommitted, why)


def ask_md5s(
    paths: Sequence[str], *, workers: int = 16, heard: Callable[[], object] = lambda: None
) -> tuple[list[str], str]:
    """Ask Drive's client for the MD5 of many files at once.

    Args:
        paths: files on a mounted Drive.
        workers: how many are asked at once.
        heard: called, in any thread, whenever a file has been answered for.

    Returns:
        The MD5 of each, in order, and ""; or an empty list and why: one is not told, or is not uploaded, or nothing
        came for a minute. One file that nothing vouches for leaves all of them unproved, so the others are not asked.
    """

    def ask_some(some: Sequence[str]) -> list[str]:
        md5s = []
        for path in some:
            _, md5, why = _ask_md5(path)
            heard()
            if not md5:
                raise _UntoldError(why)
            md5s.append(md5)
        return md5s

    rest = [paths[at : at + _BATCH] for at in range(1, len(paths), _BATCH)]
    try:
        with DaemonPool(min(workers, len(rest)) or 1, "colabstage-ask") as pool:
            # One first: where nothing is told at all, that is one question and not thousands.
            told = pool.run(ask_some, [paths[:1]], stall_timeout_s=_STALL_S)
            told += pool.run(ask_some, rest, stall_timeout_s=_STALL_S)
    except _UntoldError as error:
        return [], str(error)
    except TimeoutError:
        return [], f"it told nothing for {_STALL_S:.0f} s"
    return [md5 for some in told for md5 in some], ""


class _UntoldError(Exception):
    """There is no MD5 of one file; says why."""


def _ask_md5(path: str | os.PathLike[str]) -> tuple[bool | None, str, str]:
    """Whether it waits for its upload, its MD5 or "", and why there is none."""
    # In this order: what is uploaded between the two questions would otherwise go under the MD5 of what was before.
    waits, problem = _ask(path, _UNCOMMITTED)
    if waits not in ("0", "1"):
        return None, "", f"'{os.fspath(path)}': whether it is uploaded is not told ({problem or repr(waits)})"
    if waits == "1":
        return True, "", f"'{os.fspath(path)}' is not uploaded yet"
    md5, problem = _ask(path, _MD5)
    if not _MD5_FORM.fullmatch(md5):
        return False, "", f"'{os.fspath(path)}': no MD5 is told ({problem or repr(md5)})"
    return False, md5, ""


def _ask(path: str | os.PathLike[str], name: str) -> tuple[str, str]:
    """The value of an attribute, and why there is none."""
    if sys.platform != "linux":
        return "", "this system has no such attributes"
    try:
        return os.getxattr(path, name).decode("ascii", "replace").strip("\0\n "), ""
    except OSError as error:  # a mount that is dying says so again at the next call
        return "", os.strerror(error.errno or errno.EIO)
