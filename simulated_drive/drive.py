"""A simulated Google Drive: a folder that stands for the cloud, mounted with Drive's speed, behaviour and failures; and
the requirements for FUSE mounts.
"""

from __future__ import annotations

import ctypes.util
import dataclasses
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Self

from colabstage.errors import NotSupportedHereError, OptionError
from colabstage.machine.mounts import list_mounts, unmount_lazily
from simulated_drive.knobs import DriveFaults, DriveKnobs, DriveStats

_CAP_SYS_ADMIN = 21
_INSTALL = "On Debian, Ubuntu or Colab: apt-get install fuse3; then pip install mfusepy"
# Starting a Python process takes a second, and many on a busy machine with one core.
_START_S = 30.0
_ANSWER_S = 10.0
_POLL_S = 0.01
# Makes the client allocate buffers of 128 KiB and more from a heap that it keeps, not from fresh pages each time.
_ALLOCATOR = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "268435456"}
__all__ = ["SimulatedDrive", "fuse_problem", "stop_client"]


def fuse_problem() -> str | None:
    """Say what is missing to mount a simulated Drive here, and how to get it; `None` if nothing is."""
    if sys.platform != "linux":
        return f"A simulated Drive needs Linux, and this is {sys.platform}."
    if find_spec("mfusepy") is None:
        return f"The package mfusepy is not installed. {_INSTALL}."
    if ctypes.util.find_library("fuse3") is None or shutil.which("fusermount3") is None:
        return f"The FUSE library or its fusermount3 is not installed. {_INSTALL}."
    try:
        # Opened, not only looked up: a container may have the device without the right to use it.
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return (
            f"/dev/fuse cannot be opened ({error.strerror}). Start a container with "
            "'--device /dev/fuse --cap-add SYS_ADMIN'; on a machine of your own, run 'modprobe fuse'."
        )
    # Other users mount through fusermount3, which has the right for them.
    if os.geteuid() == 0 and not _has_right_to_mount():
        return "This container's root is not allowed to mount. Start the container with '--cap-add SYS_ADMIN'."
    return None


def _has_right_to_mount() -> bool:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return True


def is_dead(mountpoint: Path) -> bool:
    """Return whether there is a mount whose client has died."""
    try:
        mountpoint.stat()
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def start_client(config: dict[str, Any], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the process that serves a mount; `config` is that of `simulated_drive.server`."""
    root = str(Path(__file__).parents[1])
    paths = [path for path in (os.environ.get("PYTHONPATH"), root) if path]
    return subprocess.Popen(
        # The last two are not read: as with the real client, they tell others what is mounted and how.
        [
            *(sys.executable, "-m", "simulated_drive.server", json.dumps(config)),
            f"--features=read_only_mode:{str(config['readonly']).lower()}",
            f"--preferences=mount_point_path:{config['mountpoint']}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[config["control_fd"]],
        env={**os.environ, **_ALLOCATOR, "PYTHONPATH": os.pathsep.join(paths)},
        # Ctrl-C in a terminal goes to all processes of a session, and this one ends on request alone.
        start_new_session=True,
    )


def stop_client(pid: int) -> None:
    """Stop a client's process, so that no call on its mount returns until a SIGCONT; return once it has stopped.

    The signal wakes one thread, which stops the others: on a busy machine, they still respond for a while.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _ANSWER_S
    while any(_state(task) not in "Tt" for task in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > deadline:
            msg = f"The client {pid} of a simulated Drive has not stopped within {_ANSWER_S:.0f} s."
            raise TimeoutError(msg)
        time.sleep(_POLL_S / 10)


def _state(task: Path) -> str:
    """Return the letter for what a thread is doing, behind its name in parentheses; T also for one that has ended."""
    try:
        stat = (task / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "T"
    return stat.rpartition(")")[2].split()[0]


def make_mountpoint(mountpoint: Path) -> None:
    """Provide an empty folder to mount on, without a dead mount from an earlier process.

    Raises:
        OptionError: something is mounted there, or is in the folder.
    """
    if is_dead(mountpoint):
        unmount_lazily(mountpoint)
    mountpoint.mkdir(parents=True, exist_ok=True)
    if mountpoint.is_mount():
        msg = f"Something is mounted at '{mountpoint}' already. Unmount it, or choose another folder."
        raise OptionError(msg)
    if any(mountpoint.iterdir()):
        msg = f"'{mountpoint}' is not empty, and mounting would hide what it holds. Choose an empty folder."
        raise OptionError(msg)


class SimulatedDrive:
    """One Drive account with one machine that mounts it.

    `home/cloud` is the cloud; `home/cache` is what this machine keeps (content that was read, files waiting for their
    upload, the client's log); `home/ids` has the ids of rewritten files. Nothing else in `home` is touched.

    Example:
        >>> with SimulatedDrive(Path("/tmp/practice")) as drive:  # doctest: +SKIP
        ...     (drive.cloud / "MyDrive" / "hello.txt").write_text("put there by another machine")
        ...     drive.mount(Path("/tmp/drive"))
        ...     Path("/tmp/drive/MyDrive/hello.txt").read_text()
        'put there by another machine'
    """

    def __init__(self, home: Path, *, knobs: DriveKnobs = DriveKnobs()) -> None:  # noqa: B008 - frozen
        self.cloud = home.absolute() / "cloud"
        self.mountpoint: Path | None = None
        self._left: list[Path] = []
        self.knobs = knobs
        self._home = home.absolute()
        self._cache = self._home / "cache"
        self._faults = DriveFaults()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._received = b""
        self._asked = 0
        self._lock = threading.Lock()
        self._last_stats = DriveStats()
        for folder in (self.cloud / "MyDrive", self.cloud / "Shareddrives", self._cache):
            folder.mkdir(parents=True, exist_ok=True)

    def mount(self, mountpoint: Path, *, readonly: bool = False) -> None:
        """Mount the Drive at an empty folder, which is made if it is missing.

        If its client died at another mount point, the dead mount stays there until the Drive is unmounted.

        Raises:
            NotSupportedHereError: FUSE cannot be used here; the message says what to install.
            OptionError: something is mounted already, or is in the folder.
        """
        problem = fuse_problem()
        if problem is not None:
            raise NotSupportedHereError(problem)
        if self.mountpoint is not None and self.is_alive():
            msg = f"This Drive is mounted at '{self.mountpoint}' already. Unmount it first."
            raise OptionError(msg)
        mountpoint = mountpoint.absolute()
        make_mountpoint(mountpoint)
        if self.mountpoint not in (None, mountpoint):
            self._left.append(self.mountpoint)
        # A dead client is still a process to wait for, and its counters are not those of the next one.
        self._end_server()
        self._last_stats = DriveStats()
        self.mountpoint = mountpoint
        try:
            self._start(mountpoint, readonly=readonly)
        except BaseException:
            self.unmount()
            raise

    def _start(self, mountpoint: Path, *, readonly: bool) -> None:
        # A socket pair without a name in the file system, so that nobody else can control this client.
        ours, theirs = socket.socketpair()
        self._control, self._received, self._asked = ours, b"", 0
        config = {
            "home": str(self._home),
            "mountpoint": str(mountpoint),
            "readonly": readonly,
            "knobs": dataclasses.asdict(self.knobs),
            "faults": dataclasses.asdict(self._faults),
            "control_fd": theirs.fileno(),
            "parent_pid": os.getpid(),
        }
        with theirs, (self._cache / "client.log").open("wb") as log:
            self._server = start_client(config, log)
        answer = self._receive(0, timeout_s=_START_S)
        if not answer.get("ready"):
            said = (self._cache / "client.log").read_text(encoding="utf-8", errors="replace").strip()
            msg = f"The simulated Drive did not start at '{mountpoint}'. Its client said: {said[-500:] or 'nothing'}"
            raise NotSupportedHereError(msg)

    def _receive(self, number: int, *, timeout_s: float) -> dict[str, Any]:
        """Return the client's answer with that number; empty if it died or takes too long."""
        deadline = time.monotonic() + timeout_s
        while self._control is not None:
            line, newline, rest = self._received.partition(b"\n")
            if newline:
                self._received = rest
                answer: dict[str, Any] = json.loads(line)
                if answer.pop("number") == number:
                    return answer
                continue  # the late answer to an abandoned request
            self._control.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                part = self._control.recv(65536)
            except OSError:
                break
            if not part:
                break
            self._received += part
        return {}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request to the client; the answer is empty if there is no living client."""
        with self._lock:
            if self._control is None:
                return {}
            self._asked += 1
            try:
                self._control.sendall(json.dumps({"number": self._asked, **request}).encode() + b"\n")
            except OSError:
                return {}
            return self._receive(self._asked, timeout_s=_ANSWER_S)

    def unmount(self) -> None:
        """Unmount; pending uploads stay queued in the cache. Calling it twice is fine."""
        for dead in filter(is_dead, self._left):
            unmount_lazily(dead)
        self._left.clear()
        if self.mountpoint is None:
            return
        if self.is_alive() or is_dead(self.mountpoint):
            # Otherwise it is already gone, and the present mount may be somebody else's.
            unmount_lazily(self.mountpoint)
        # The last counters come with the reply to the shutdown, because afterwards the client is gone.
        stats = self._ask({"do": "exit"})
        if stats:
            self._last_stats = DriveStats(**stats)
        self._end_server()
        self.mountpoint = None

    def _end_server(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._server is not None:
            try:
                self._server.wait(_ANSWER_S if self._server.poll() is None else 0)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait(_ANSWER_S)
            self._server = None

    def flush(self, *, timeout_s: float) -> bool:
        """Wait until everything written here is in the cloud; `False` if that takes longer than `timeout_s`, or if the
        client is dead or unmounted with something left to upload."""
        deadline = time.monotonic() + timeout_s
        while True:
            stats = self.stats()
            if not stats.uploads_pending:
                return True
            if not self.is_alive() or time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)

    def is_alive(self) -> bool:
        """Return whether the Drive is mounted and its client runs."""
        return self._server is not None and self._server.poll() is None

    def kill(self) -> None:
        """Kill the client. Files disappear for `death_enoent_s`, then every call fails with errno 107 until the Drive
        is unmounted and mounted again. Returns once calls fail."""
        if self._server is None or self.mountpoint is None:
            return
        self._ask({"do": "die"})
        try:
            self._server.wait(self.knobs.death_enoent_s * self.knobs.time_scale + _ANSWER_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(_ANSWER_S)
        deadline = time.monotonic() + _ANSWER_S
        # Check the mount table, which includes dead mounts.
        if str(self.mountpoint) not in list_mounts():  # somebody has unmounted it
            return
        # The kernel may still answer for the dead client from its cache.
        while time.monotonic() < deadline and not is_dead(self.mountpoint):
            time.sleep(_POLL_S)

    def hang(self) -> None:
        """Stop the client: from here on, calls wait until `go_on`."""
        assert self._server is not None, "a Drive that is not mounted has no client"
        stop_client(self._server.pid)

    def go_on(self) -> None:
        """Let the client respond again, also to what was asked meanwhile."""
        if self._server is not None:
            self._server.send_signal(signal.SIGCONT)

    def new_machine(self) -> None:
        """Start over on a fresh machine: unmounted, nothing cached, and what was not uploaded is lost."""
        self.unmount()
        shutil.rmtree(self._cache)
        self._cache.mkdir()

    def set_faults(self, faults: DriveFaults) -> None:
        """Set the faults from now on, also after the next mount. Counters start again."""
        # Kept here too, because the next client starts with them.
        self._faults = faults
        self._ask({"do": "faults", "faults": dataclasses.asdict(faults)})

    def stats(self) -> DriveStats:
        """Return the counters since the last mount; while unmounted, those at its end, with the files waiting in the
        cache."""
        answer = self._ask({"do": "stats"})
        if answer:
            self._last_stats = DriveStats(**answer)
        elif not self.is_alive():
            waiting = [label.with_suffix(".data") for label in (self._cache / "uploads").glob("*.path")]
            self._last_stats.uploads_pending = len(waiting)
            self._last_stats.bytes_pending = sum(data.stat().st_size for data in waiting)
        return dataclasses.replace(self._last_stats)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()
