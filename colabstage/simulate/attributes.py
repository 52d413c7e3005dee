"""What the client tells of a file by extended attributes: its id, its MD5, and whether it waits for its upload.

Ids and MD5s are the cloud's: an id stays when a file is renamed or written anew, an MD5 is of what was uploaded last.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import stat
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.simulate.uploads import Pending

ID, MD5, UNCOMMITTED = "user.drive.id", "user.drive.md5", "user.drive.uncommitted"
NAMES = frozenset({ID, MD5, UNCOMMITTED})
_Version = tuple[int, int, int, int]


class Attributes:
    """Ids and MD5s of what is in the cloud.

    An id follows from the cloud file's inode. An upload brings another inode, whose id is noted in a file of its own,
    so that ids survive a new client and a new machine.
    """

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._lock = threading.Lock()
        self._ids: dict[int, str] = {}
        self._md5s: dict[_Version, str] = {}
        if notes.is_file():
            # A client that was killed may have left half a line.
            *lines, _ = notes.read_text(encoding="utf-8").split("\n")
            self._ids = dict(json.loads(line) for line in lines)

    def put(self, copy: Path, target: Path) -> None:
        """Put an uploaded copy into its place in the cloud; what it replaces leaves it its id."""
        arrived = copy.stat()
        with self._lock:
            try:
                file_id = self._id_of(target.stat().st_ino)
            except FileNotFoundError:  # not by its inode alone, which may have been that of a file that is no more
                file_id = _id_from(f"{arrived.st_ino} {arrived.st_ctime_ns}")
            copy.replace(target)
            self._ids[arrived.st_ino] = file_id
            with self._notes.open("a", encoding="utf-8") as file:
                file.write(json.dumps([arrived.st_ino, file_id]) + "\n")

    def answer(self, name: str, file: Path, pending: Pending | None) -> bytes:
        """The value of one of `NAMES`, of what lies at `file` in the cloud, or is only here as `pending`.

        Raises:
            OSError: errno 61, there is no such attribute.
        """
        if name == UNCOMMITTED:
            return b"1" if pending is not None and pending.dirty else b"0"
        try:
            found = file.stat()
        except FileNotFoundError:
            if name == MD5 or pending is None:
                raise OSError(errno.ENODATA, os.strerror(errno.ENODATA)) from None
            return f"local-{pending.number}".encode()
        if name == ID:
            with self._lock:
                return self._id_of(found.st_ino).encode()
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        return self._md5_of(file, found).encode()

    def _id_of(self, inode: int) -> str:
        return self._ids.get(inode) or _id_from(str(inode))

    def _md5_of(self, file: Path, found: os.stat_result) -> str:
        """Computed once for each version, when it is first asked for: an upload of gigabytes is not held up by it."""
        version = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        known = self._md5s.get(version)
        if known is None:
            with file.open("rb") as content:
                known = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            self._md5s[version] = known
        return known


def _id_from(text: str) -> str:
    return "1" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())[:32].decode()
