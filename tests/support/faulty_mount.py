"""A FUSE mirror of a folder that responds with a network mount's errors, or still shows for a while what is gone.

    with faulty_mount(root, at) as mount:
        mount.fail("open", errno.EIO, below="images")

Unlike the simulated Drive it has no behaviour of its own: each operation goes to the folder behind it, unless a fault
says otherwise. The server is a separate process, because a process must not serve a mount that it uses.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATIONS = (
    *("getattr", "readdir", "open", "create", "read", "write", "truncate", "mkdir", "unlink", "rmdir", "rename"),
    *("utimens", "statfs", "flush", "fsync"),
)
_START_S = 20.0
_STAT = ("st_atime", "st_ctime", "st_gid", "st_mode", "st_mtime", "st_nlink", "st_size", "st_uid")
_STATVFS = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_flag", "f_frsize")


class FaultyMount:
    """A mount whose faults are switched on and off during its use."""

    def __init__(self, place: Path, control: Path) -> None:
        self.place = place
        self._control = control
        self.heal()

    def fail(self, operation: str, number: int, *, below: str = "", first: int = 1, times: int | None = None) -> None:
        """Let an operation fail with the errno `number`, `times` times from its `first` call on; by default for ever.

        `below`: only for paths that have this component.
        """
        assert operation in OPERATIONS, operation
        self._write({"operation": operation, "errno": number, "below": below, "first": first, "times": times})

    def heal(self) -> None:
        """End all faults."""
        self._write({})

    def _write(self, fault: dict[str, Any]) -> None:
        # The server restarts its count for each new fault, which it knows by its number.
        draft = self._control.with_suffix(".draft")
        draft.write_text(json.dumps({**fault, "number": time.monotonic_ns()}), encoding="utf-8")
        draft.replace(self._control)


@contextmanager
def faulty_mount(root: Path, at: Path, *, subtype: str = "", remembers_s: float = 0.0) -> Iterator[FaultyMount]:
    """Mount `root` at the folder `at`, which is created.

    Args:
        root: the folder behind the mount.
        at: where.
        subtype: the kernel then calls its type `fuse.<subtype>`, such as `drive`.
        remembers_s: seconds during which the kernel believes what it last saw of a name, whatever became of it in
            `root`, as for the files of a network mount that others change.
    """
    at.mkdir(parents=True, exist_ok=True)
    control = at.with_name(f"{at.name}.fault.json")
    mount = FaultyMount(at, control)
    command = [sys.executable, str(Path(__file__)), str(root), str(at), str(control), subtype, str(remembers_s)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + _START_S
        while not os.path.ismount(at):
            assert server.poll() is None, server.stderr and server.stderr.read()
            assert time.monotonic() < deadline, "the mount did not come up"
            time.sleep(0.01)
        yield mount
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(at)], check=False, capture_output=True, timeout=20)
        try:
            server.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()
        control.unlink(missing_ok=True)


def _serve(root: str, at: str, control: str, subtype: str, remembers_s: float) -> None:
    import mfusepy

    calls: dict[int, int] = {}
    read = functools.lru_cache(1)(lambda _: json.loads(Path(control).read_text(encoding="utf-8")))

    def real(path: str, operation: str) -> str:
        # Each fault is a new file; to parse it for every operation took most of the time.
        fault = read(os.stat(control).st_ino)  # noqa: PTH116
        if fault.get("operation") == operation and fault["below"] in path:
            calls[fault["number"]] = count = calls.get(fault["number"], 0) + 1
            if count >= fault["first"] and (fault["times"] is None or count < fault["first"] + fault["times"]):
                raise mfusepy.FuseOSError(fault["errno"])
        return os.path.join(root, path.lstrip("/"))  # noqa: PTH118 - `path` is the kernel's text

    class Mirror(mfusepy.Operations):  # type: ignore[misc]  # the library has no types
        use_ns = False

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            found = os.lstat(real(path, "getattr"))
            return {name: getattr(found, name) for name in _STAT}

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *(entry.name for entry in Path(real(path, "readdir")).iterdir())]

        def readlink(self, path: str) -> str:
            return str(Path(real(path, "readlink")).readlink())

        def open(self, path: str, flags: int) -> int:
            return os.open(real(path, "open"), flags)

        def create(self, path: str, mode: int, fi: Any = None) -> int:
            return os.open(real(path, "create"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            real(path, "read")
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            real(path, "write")
            return os.pwrite(fh, data, offset)

        def flush(self, path: str, fh: int) -> None:
            real(path, "flush")

        def fsync(self, path: str, datasync: int, fh: int) -> None:
            real(path, "fsync")

        def truncate(self, path: str, length: int, fh: int | None = None) -> None:
            os.truncate(real(path, "truncate"), length)

        def mkdir(self, path: str, mode: int) -> None:
            Path(real(path, "mkdir")).mkdir(mode=mode)

        def unlink(self, path: str) -> None:
            Path(real(path, "unlink")).unlink()

        def rmdir(self, path: str) -> None:
            Path(real(path, "rmdir")).rmdir()

        def rename(self, old: str, new: str, flags: int = 0) -> None:
            Path(real(old, "rename")).rename(real(new, ""))

        def chmod(self, path: str, mode: int) -> int:
            return 0

        def chown(self, path: str, uid: int, gid: int) -> int:
            return 0

        def utimens(self, path: str, times: Any = None) -> None:
            os.utime(real(path, "utimens"), times)

        def statfs(self, path: str) -> dict[str, int]:
            found = os.statvfs(real(path, "statfs"))
            return {name: getattr(found, name) for name in _STATVFS}

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

    named = {"subtype": subtype} if subtype else {}
    mfusepy.FUSE(
        Mirror(),
        at,
        foreground=True,
        nothreads=False,
        attr_timeout=remembers_s,
        entry_timeout=remembers_s,
        negative_timeout=0,
        fsname=subtype or "mirror",
        **named,
    )


if __name__ == "__main__":
    _, *texts, seconds = sys.argv
    _serve(texts[0], texts[1], texts[2], texts[3], float(seconds))
