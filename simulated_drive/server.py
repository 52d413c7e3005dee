"""The simulated Drive's client: a process of its own that serves the mount, and ends with whoever started it.

    python -m simulated_drive.server '{"home": …, "mountpoint": …, "knobs": {…}, "control_fd": …, "parent_pid": …}'

It listens to its starter on a socket that it inherits: one JSON object a line, answered under the same number. It says
`ready` under the number 0 once the kernel has accepted the mount.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Which of the two libraries is loaded is decided when mfusepy is imported; only version 3 reads more than 128 KiB.
os.environ["FUSE_LIBRARY_NAME"] = "fuse3"

import mfusepy

from simulated_drive.cache import blocks_of
from simulated_drive.filesystem import FuseDrive
from simulated_drive.knobs import DriveFaults, DriveKnobs, FaultLedger

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

# More than anybody reads at once, since every call that waits holds a thread.
_THREADS = 256
_LOOK_AT_PARENT_S = 0.5
# How long the kernel may answer a stat by itself: libfuse's default. As short as this, a death or a change elsewhere
# shows soon; any shorter, and what came with a long listing would have to be asked for again.
ATTRIBUTES_S = 1.0
# libfuse's names: `FUSE_FILL_DIR_PLUS`, `FUSE_CAP_READDIRPLUS_AUTO`.
_FILL_PLUS, _PLUS_WHEN_ASKED = 1 << 1, 1 << 14

# libfuse's function that takes one name of a listing, called with Python's lock.
_FILLER = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int
)


def _detach(mountpoint: str) -> None:
    """Unmount, even while files are open there."""
    command = ["fusermount3", "-u", "-z", "-q", mountpoint]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False, cwd="/")


class _Mount(mfusepy.FUSE):  # type: ignore[misc]
    """mfusepy's callbacks, made cheap, and given the handle where they hand on only a path.

    Without `nullpath_ok`, libfuse would hold a lock on the path of a file during a read, however slow; with it, calls
    on open files come without their path.
    """

    def __init__(self, operations: FuseDrive, mountpoint: str, **options: Any) -> None:
        self._thread = threading.local()
        super().__init__(operations, mountpoint, **options)

    def _wrapper(self, function: Callable[..., int | None], *arguments: Any) -> int:
        """Make one call; what it raises becomes the errno it answers."""
        if not hasattr(self._thread, "kept"):
            # libfuse's threads are none of Python's, which would set up and tear down its state of the thread around
            # each call. One more reference keeps it: the server spends half the time per call.
            ctypes.pythonapi.PyGILState_Ensure()
            self._thread.kept = True
        try:
            return function(*arguments) or 0
        except OSError as error:
            return -(error.errno or errno.EIO)
        except Exception:
            log.exception("A call of the file system failed for a reason of its own.")
            return -errno.EIO

    def _path(self, path: bytes | None, fip: Any) -> str:
        if path is None:
            found: str = self.operations.path_of(fip.contents.fh)
            return found
        return path.decode(self.encoding, self.errors)

    def readdir_fuse_3(self, path: bytes | None, buf: Any, filler: Any, offset: int, *others: Any) -> int:
        """Hand out a listing from the entry numbered `offset` on, as far as there is room, with what `stat` answers.

        Listing a dataset is a stat of each file. One that the kernel has to ask for costs a mount in C some 20 µs, and
        one in Python ten times that.
        """
        stat, number = mfusepy.c_stat(), others[0].contents.fh
        # It only writes to memory, and calls nobody back. As it comes it gives up Python's lock for each name, and then
        # several listings at once take a multiple of the processor's time.
        filler = _FILLER(ctypes.cast(filler, ctypes.c_void_p).value or 0)
        times = (stat.st_atimespec, stat.st_mtimespec, stat.st_ctimespec)
        is_of_file = False
        for place, (name, entry, mode) in enumerate(self.operations.readdir(number, offset), offset + 1):
            if entry is not None and is_of_file and not entry.is_folder:
                # Nothing else differs between two files. To set all takes three times as long.
                stat.st_size, stat.st_blocks = entry.size, blocks_of(entry.size)
                seconds, nanoseconds = divmod(entry.mtime_ns, 10**9)
                for time_of in times:
                    time_of.tv_sec, time_of.tv_nsec = seconds, nanoseconds
            elif entry is not None:
                mfusepy.set_st_attrs(stat, entry.attributes(), use_ns=True)
                is_of_file = not entry.is_folder
            stat.st_mode = mode
            flags = 0 if entry is None else _FILL_PLUS
            if filler(buf, name.encode(self.encoding, self.errors), ctypes.byref(stat), place, flags):
                break
        return 0

    def getxattr(self, path: bytes, name: bytes, value: Any, size: int, *others: Any) -> int:
        """Answer an attribute, at less cost than mfusepy's: there are two questions for each file of a dataset."""
        answer = self.operations.getxattr(
            path.decode(self.encoding, self.errors), name.decode(self.encoding, self.errors)
        )
        if not value:
            return len(answer)
        if len(answer) > size:
            return -errno.ERANGE
        ctypes.memmove(value, answer, len(answer))
        return len(answer)

    def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
        result: int = self.operations.truncate(self._path(path, fip), length)
        return result

    def chmod_fuse_3(self, path: bytes | None, mode: int, fip: Any) -> int:
        result: int = self.operations.chmod(self._path(path, fip), mode)
        return result

    def chown_fuse_3(self, path: bytes | None, uid: int, gid: int, fip: Any) -> int:
        result: int = self.operations.chown(self._path(path, fip), uid, gid)
        return result

    def utimens_fuse_3(self, path: bytes | None, buf: Any, fip: Any) -> int:
        result: int = self.utimens_fuse_2(self._path(path, fip).encode(self.encoding, self.errors), buf)
        return result

    def flock(self, path: bytes | None, fip: Any, operation: int) -> int:
        result: int = self.operations.flock(None, fip, operation)
        return result


class Server:
    """One mount, from its start to its end."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._mountpoint = config["mountpoint"]
        self._parent_pid = config["parent_pid"]
        self._knobs = DriveKnobs(**config["knobs"]).scaled()
        self._control = socket.socket(fileno=config["control_fd"])
        # So that the end of the parent is noticed, which tells nobody.
        self._control.settimeout(_LOOK_AT_PARENT_S)
        self._files = FuseDrive(Path(config["home"]), knobs=self._knobs, readonly=config["readonly"], die=self.die)
        self._files.ledger = FaultLedger(DriveFaults.from_json(config["faults"]))
        self._files.init_with_config = self._connected  # type: ignore[attr-defined]

    def run(self) -> None:
        """Mount, and serve until unmounted."""
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        # Never longer than changes elsewhere take to show.
        kernel_s = min(ATTRIBUTES_S, self._knobs.visibility_s)
        options: dict[str, Any] = {"max_idle_threads": _THREADS}
        if (mfusepy.fuse_version_major, mfusepy.fuse_version_minor) >= (3, 12):
            options["max_threads"] = _THREADS
        _Mount(
            self._files,
            self._mountpoint,
            raw_fi=True,
            foreground=True,
            fsname="simulated-drive",
            subtype=self._knobs.type,
            # Else libfuse renames an open file that is removed, and the cloud would show a name that nobody gave.
            hard_remove=True,
            attr_timeout=kernel_s,
            entry_timeout=kernel_s,
            # A file that is not there yet is what callers wait for.
            negative_timeout=0,
            **options,
        )

    def _connected(self, connection: Any, config: Any) -> None:
        """Take up earlier uploads, once the kernel has accepted the mount, and say that all is ready."""
        if connection is not None:
            # Read-ahead counts as background work; the kernel's default of 12 would cap parallel readers.
            connection.max_background = 2 * _THREADS
            connection.congestion_threshold = 2 * _THREADS
            # By itself the kernel takes attributes with the first names alone, until somebody has asked for one.
            connection.want &= ~_PLUS_WHEN_ASKED
        try:
            self._files.queue.resume()
        except Exception:
            # libfuse would go on without a word to whoever waits for the mount.
            log.exception("What an earlier client left cannot be taken up.")
            _detach(self._mountpoint)
            os._exit(1)
        self._say(0, {"ready": True})

    def _say(self, number: int, answer: dict[str, Any]) -> None:
        self._control.sendall(json.dumps({"number": number, **answer}).encode() + b"\n")

    def _listen(self) -> None:
        buffered = b""
        while os.getppid() == self._parent_pid:
            try:
                received = self._control.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                break
            if not received:
                break
            *lines, buffered = (buffered + received).split(b"\n")
            for line in lines:
                request = json.loads(line)
                self._say(request["number"], self._answer(request))
                if request["do"] == "exit":
                    os._exit(0)
        # Whoever started this is gone: nobody else would ever unmount.
        _detach(self._mountpoint)
        os._exit(0)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "stats" | "exit":
                return self._stats()
            case "faults":
                self._files.ledger = FaultLedger(DriveFaults.from_json(request["faults"]))
            case "die":
                self.die()
        return {}

    def _stats(self) -> dict[str, Any]:
        stats = self._files.stats
        stats.uploads_pending, stats.bytes_pending = self._files.queue.waiting()
        return asdict(stats)

    def die(self) -> None:
        """Deny everything for a moment, then vanish without a word, the mount left dangling."""
        # The real client, too, answers "no such file" to everything for a moment before it is gone.
        self._files.dying = True
        death = threading.Timer(self._knobs.death_enoent_s, os._exit, (1,))
        death.daemon = True
        death.start()


def serve_mount() -> None:
    """Serve the mount that the command line's JSON describes."""
    logging.basicConfig(level=logging.WARNING)
    Server(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    serve_mount()
