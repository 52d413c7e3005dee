"""Which mount a path lies on, whether that is a slow one, whether it still answers, and what this process has of it.

The kernel's mount table answers the first two questions without touching the file system in question, which matters:
a mount whose client hangs takes every caller with it. The third question has to touch it, so a child process asks.

What is taken away from under a process breaks in three ways. An open file answers with errors. The current folder is
nowhere, and so is every program started from then on. Memory that is mapped from a file ends the process with a signal
as soon as it is touched, with no error to catch; and a mapping outlives the file that it was made of, so no open file
tells of it. Reading the links and the table of mappings does not touch the mount.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from colabstage.errors import DriveDisconnectedError, DriveError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Network file systems of the kernel itself.
_NETWORK_TYPES = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"),
        *("ocfs2", "orangefs", "pvfs2", "smb2", "smb3", "smbfs", "wekafs"),
    }
)
# FUSE file systems that are a view of this machine's own disks.
_LOCAL_FUSE_TYPES = frozenset(
    {
        *("fuse.bindfs", "fuse.encfs", "fuse.exfat", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.lxcfs"),
        *("fuse.mergerfs", "fuse.ntfs-3g", "fuse.portal", "fuse.snapfuse", "fuse.squashfuse", "fuse.unionfs"),
    }
)
# What a simulated Drive gives as its source, so that nobody takes it for a person's own.
PRACTICE_SOURCE = "colabstage-practice"
# A mount that says nothing for so long counts as silent: a busy one answers for its root out of its memory.
_ANSWER_S = 10.0
_UNMOUNT_S = 10.0
WAITS_IN_CACHE = (
    "What it had not uploaded waits in its cache on this machine, and the next client takes it up: keep this session "
    "until that is done."
)
"""What becomes of what a dead client was given, said the same way everywhere."""
_MAX_LINKS = 40  # as many as the kernel follows
_NAMES_SHOWN = 5

_PROBE = """
import os, sys
try:
    os.statvfs(sys.argv[1])  # unlike stat, this is never answered from the kernel's cache
    os.stat(sys.argv[1])
except OSError as error:
    print(error.errno)
else:
    print(0)
"""


@dataclass(frozen=True, slots=True)
class Mount:
    """Hold one line of the mount table."""

    mountpoint: Path
    """The folder that it is mounted at."""
    fstype: str
    """The kernel's word for it: `ext4`, `nfs4`, `fuse.drive`."""
    source: str
    """What is mounted, in its own words."""
    readonly: bool = False
    """Whether nothing there can be changed."""


@dataclass(frozen=True, slots=True)
class MountProbe:
    """Say what a path answered."""

    state: Literal["alive", "missing", "dead", "failing", "silent"]
    """`alive`; `missing`, nothing at the path; `dead`, the client behind the mount is gone; `failing`, any other error;
    `silent`, no answer before the deadline.
    """
    errno: int = 0
    """The error number, 0 where there was none."""

    @property
    def reason(self) -> str:
        """Return the answer in words."""
        return os.strerror(self.errno) if self.errno else {"silent": "no answer"}.get(self.state, self.state)


def list_mounts(mountinfo: str | None = None) -> tuple[Mount, ...]:
    """Read the mount table, in the order of mounting.

    Args:
        mountinfo: text in the format of `/proc/self/mountinfo`; that file, read now, by default. Where the system has
            no such file the table is empty.
    """
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return ()
    return tuple(_parse_line(line) for line in mountinfo.splitlines() if line.strip())


def mount_of(path: str | os.PathLike[str], *, mounts: Sequence[Mount] | None = None) -> Mount:
    """Tell which mount a path lies on, without touching that mount when it is a slow one.

    Links are followed as far as that is so: a link on the local disk that points into a slow mount counts as lying
    on that mount. The path need not exist.

    Args:
        path: any path.
        mounts: the mount table; this machine's by default, read now.
    """
    table = list_mounts() if mounts is None else mounts
    return _covering(follow_links(path, mounts=table), table)


def follow_links(path: str | os.PathLike[str], *, mounts: Sequence[Mount] | None = None) -> Path:
    """Make a path absolute and follow its links until it enters a slow mount; nothing there is touched.

    Args:
        path: any path; it need not exist.
        mounts: the mount table; this machine's by default, read now.
    """
    table = list_mounts() if mounts is None else mounts
    todo = _steps(Path(path) if Path(path).is_absolute() else Path.cwd() / path)
    current = Path("/")
    links = 0
    while todo:
        step = todo.pop()
        following = current.parent if step == ".." else current / step
        if slow_reason(_covering(following, table)) is not None:
            return Path(os.path.normpath(following.joinpath(*reversed(todo))))
        target = _read_link(following)
        if target is None or links == _MAX_LINKS:
            current = following
            continue
        links += 1
        todo += _steps(target)
        current = Path("/") if target.is_absolute() else current
    return current


def slow_reason(mount: Mount) -> str | None:
    """Say why reading from `mount` must be expected to be slow; `None` for a local disk."""
    kind = mount.fstype
    if kind == "9p" and mount.mountpoint == Path("/"):
        return None  # gVisor shows a container's own disk like this
    if kind == "fuse.drive":
        return "Google Drive"
    if (kind == "fuse" or kind.startswith("fuse.")) and kind not in _LOCAL_FUSE_TYPES:
        return f"a FUSE mount ({kind})"
    if kind in _NETWORK_TYPES:
        return f"a network file system ({kind})"
    return None


def is_slow_mount(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` lies on a network or user-space mount, where each file opened costs a round trip."""
    return slow_reason(mount_of(path)) is not None


def probe_mount(path: str | os.PathLike[str], timeout_s: float = 10.0) -> MountProbe:
    """Ask the file system that `path` lies on for a sign of life, from a child process and under a deadline.

    Never blocks much longer than `timeout_s` seconds, whatever the mount does.
    """
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROBE, os.fspath(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    try:
        answer, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return MountProbe("silent")
    finally:
        _end_child(child)
    return _judge(int(answer)) if answer.strip().isdigit() else MountProbe("failing", errno.EIO)


def unmount_lazily(mountpoint: str | os.PathLike[str], *, timeout_s: float = _UNMOUNT_S) -> None:
    """Take a mount out of the tree even while something is open, or stands, in it; nothing mounted there is fine.

    Only for a mount whose client is dead, or one's own: whoever has something open there keeps what can only fail.
    """
    place = os.fspath(mountpoint)
    commands = [["fusermount3", "-u", "-z", "-q", place], ["fusermount", "-u", "-z", "-q", place]]
    if os.geteuid() == 0:
        commands.insert(0, ["umount", "-l", place])
    command = next((command for command in commands if shutil.which(command[0])), None)
    if command is not None:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False, cwd="/")


def silence_of(*paths: str | os.PathLike[str], timeout_s: float | None = None) -> DriveDisconnectedError | None:
    """Say why paths cannot be touched now: a mount that one of them lies on is dead or does not answer; else `None`.

    Every verb asks this before anything else: a call into a mount that hangs never returns, a thread in such a call
    keeps even the interpreter from ending, and a dead one answers in a different way at every place. Paths on local
    disks cost nothing; of each slow mount one child process asks, 30 ms where it answers.

    Args:
        paths: any; none of them is touched.
        timeout_s: seconds that each mount may take; 10 by default.
    """
    timeout_s = _ANSWER_S if timeout_s is None else timeout_s
    table = list_mounts()
    slow = {mount.mountpoint: mount for path in paths if slow_reason(mount := mount_of(path, mounts=table)) is not None}
    for mount in slow.values():
        probe = probe_mount(mount.mountpoint, timeout_s)
        if probe.state in ("dead", "silent"):
            return _disconnected(mount, probe, timeout_s)
    return None


def require_answer(*paths: str | os.PathLike[str], timeout_s: float | None = None) -> None:
    """Make sure that paths can be touched, as `silence_of` finds out.

    Raises:
        DriveDisconnectedError: a mount that one of them lies on is dead, or does not answer in `timeout_s` seconds.
    """
    error = silence_of(*paths, timeout_s=timeout_s)
    if error is not None:
        raise error


def remount_words(mountpoint: str | os.PathLike[str]) -> str:
    """Return the call that mounts a dead Drive again."""
    usual = os.fspath(mountpoint) == "/content/drive"
    return "mount_drive()" if usual else f"mount_drive('{os.fspath(mountpoint)}')"


def hang_words(mountpoint: str | os.PathLike[str]) -> str:
    """Say what to do about a client that neither answers nor dies."""
    return f"If that does not help, end it (!pkill -9 -x drive) and call {remount_words(mountpoint)}. {WAITS_IN_CACHE}"


def current_folder() -> Path | None:
    """Return the current folder, also where that is on a mount that has died; `None` where it is nowhere."""
    try:
        # Of one that is gone, as all are on a dead mount, the kernel says so behind its name.
        return follow_links(str(Path("/proc/self/cwd").readlink()).removesuffix(" (deleted)"))
    except OSError:  # no such table on this system
        with contextlib.suppress(OSError):
            return Path.cwd()
        return None


def is_inside(root: Path) -> bool:
    """Return whether the current folder is below `root`."""
    folder = current_folder()
    return folder is not None and folder.is_relative_to(root)


@contextlib.contextmanager
def outside(root: Path) -> Iterator[None]:
    """Leave `root` for the block, where the current folder is below it, and return when the block ends well.

    Drive's client starts a shell where the caller stands. One that stands in the mount keeps it busy, also for every
    later try.
    """
    folder = current_folder()
    if folder is None or not folder.is_relative_to(root):
        yield
        return
    os.chdir(next(parent for parent in root.parents if parent.is_dir()))
    yield
    try:
        os.chdir(folder)
    except OSError as error:
        warnings.warn(
            f"The current folder was '{folder}', which is not there any more ({error.strerror}); now it is "
            f"'{Path.cwd()}'.",
            stacklevel=3,
        )


def check_unused(root: Path) -> None:
    """Refuse to take a Drive away from under this process.

    Raises:
        DriveError: the current folder, an open file or a mapping is below `root`; the message names them.
    """
    if is_inside(root):
        msg = f"The current folder is on Drive ({current_folder()}). Leave it first: os.chdir('/content')."
        raise DriveError(msg)
    mapped = _mapped_below(root)
    if mapped:
        msg = (
            f"Files on Drive are mapped into this notebook's memory: {_names(mapped)}. Touching that after Drive is "
            "unmounted ends the notebook. Delete what was read from them (torch.load(mmap=True), safetensors and "
            "numpy.memmap map files), or load it from a local copy, then try again."
        )
        raise DriveError(msg)
    opened = _open_below(root)
    if opened:
        msg = f"Files on Drive are open in this notebook and would break: {_names(opened)}. Close them, then try again."
        raise DriveError(msg)


def _names(paths: set[str]) -> str:
    shown = ", ".join(f"'{path}'" for path in sorted(paths)[:_NAMES_SHOWN])
    return shown if len(paths) <= _NAMES_SHOWN else f"{shown} and {len(paths) - _NAMES_SHOWN} more"


def _open_below(root: Path) -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, for example the handle that lists this folder
            target = link.readlink()
            if target.is_relative_to(root):
                found.add(str(target))
    return found


def _mapped_below(root: Path) -> set[str]:
    """Read proc(5)'s maps: five fields, then the path, in which a newline is written as \\012."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        paths = {fields[5] for line in lines if len(fields := line.split(None, 5)) == 6}
        return {path.removesuffix(" (deleted)") for path in paths if Path(path).is_relative_to(root)}
    return set()


def _disconnected(mount: Mount, probe: MountProbe, timeout_s: float) -> DriveDisconnectedError:
    is_drive = slow_reason(mount) == "Google Drive"
    what = "The Drive client at" if is_drive else "The file system behind"
    if probe.state == "dead":
        again = f"Mount it again with {remount_words(mount.mountpoint)}" if is_drive else "Mount it again"
        kept = f" {WAITS_IN_CACHE}" if is_drive else ""
        msg = f"{what} '{mount.mountpoint}' has died ({probe.reason}). {again}, then try again.{kept}"
    else:
        force = hang_words(mount.mountpoint) if is_drive else "Mount it again if that does not help."
        msg = (
            f"{what} '{mount.mountpoint}' has not answered for {timeout_s:.0f} s. It may be busy: wait, then try "
            f"again. {force}"
        )
    return DriveDisconnectedError(msg)


def _judge(number: int) -> MountProbe:
    if number == 0:
        return MountProbe("alive")
    if number in {errno.ENOENT, errno.ENOTDIR}:
        return MountProbe("missing", number)
    if number in {errno.ENOTCONN, errno.ECONNABORTED, errno.ESHUTDOWN}:
        return MountProbe("dead", number)
    return MountProbe("failing", number)


def _end_child(child: subprocess.Popen[bytes]) -> None:
    """Kill the child if it still runs. One that hangs in the kernel for good is left to the kernel."""
    if child.stdout is not None:
        child.stdout.close()
    if child.poll() is None:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)


def _parse_line(line: str) -> Mount:
    """Read the fields of proc(5): 4 is the mount point, 5 its options; after a lone dash come type and source."""
    before, _, after = line.partition(" - ")
    fields = before.split(" ")
    fstype, source, *_ = [*after.split(" "), ""]
    return Mount(Path(_unescape(fields[4])), fstype, _unescape(source), readonly="ro" in fields[5].split(","))


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _covering(path: Path, mounts: Sequence[Mount]) -> Mount:
    """Return the mount with the longest mount point above `path`; of two at one place the later one, which hides the
    other.
    """
    # By names, which paths keep: is_relative_to makes new paths, a hundred for one look, 8 ms of opening a file.
    parts = path.parts
    above = [mount for mount in mounts if parts[: len(mount.mountpoint.parts)] == mount.mountpoint.parts]
    return max(reversed(above), key=lambda mount: len(mount.mountpoint.parts), default=Mount(Path("/"), "", ""))


def _steps(path: Path) -> list[str]:
    """Return the names on the way along `path`, the last one first."""
    return [name for name in reversed(path.parts) if name != "/"]


def _read_link(path: Path) -> Path | None:
    try:
        return path.readlink()
    except OSError:
        return None
