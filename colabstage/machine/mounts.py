"""Which mount a path is on, whether that is slow or Google Drive, whether it responds, and who uses it.

A mount whose client hangs blocks every caller for good. So the kernel's mount table says which mount a path is on, and
whether that is slow; only a child process with a deadline touches the mount itself, or work that `run_watched` calls.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import NamedTuple, Protocol, TypeVar

from colabstage.errors import CancelledError, ColabstageError, DriveDisconnectedError, DriveError, DriveNotMountedError
from colabstage.io.environment import DRIVE_VARIABLE, current_folder
from colabstage.io.pipeline import in_thread
from colabstage.io.units import listed
from colabstage.machine.platforms import detect_platform, system_root

T = TypeVar("T")
R = TypeVar("R")

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
DEFAULT_MOUNTPOINT = "/content/drive"
DRIVE_TYPES = frozenset({"fuse.drive", "fuse.drivefs"})
"""The types of Google's own client: the one on Colab, and the name it has elsewhere."""
# The client that mounted Drive before Google's own existed, and sometimes still does.
OLD_DRIVE_CLIENT = "google-drive-ocamlfuse"
OLD_DRIVE_TYPE = f"fuse.{OLD_DRIVE_CLIENT}"
# The client redirects the spelling with a space to the one without; two spellings would be two sources and two keys.
DRIVE_SPELLINGS = {"My Drive": "MyDrive", "Shared drives": "Shareddrives"}
DRIVE_FOLDERS = frozenset({*DRIVE_SPELLINGS, *DRIVE_SPELLINGS.values(), ".shortcut-targets-by-id"})
"""The folders that the root of a mounted Drive holds, in all spellings."""
# A mount that does not respond for this long counts as silent: even a busy client has its root in memory.
_ANSWER_S = 10.0
_UNMOUNT_S = 10.0
# Killed children end within this time, unless they hang inside the kernel.
_END_S = 1.0
WAITS_IN_CACHE = (
    "What it had not uploaded waits in its cache on this machine, and the next client takes it up: keep this session "
    "until that is done."
)
"""What happens to files that a dead client had not uploaded, worded the same everywhere."""
_MAX_LINKS = 40  # as many as the kernel follows
_NAMES_SHOWN = 5
# The states that `stat` reports in words.
_STATES = {
    "No such file or directory": "missing",
    "Not a directory": "missing",
    "Transport endpoint is not connected": "dead",
    "Software caused connection abort": "dead",
    "Cannot send after transport endpoint shutdown": "dead",
}


@dataclass(frozen=True, slots=True)
class Mount:
    mountpoint: Path
    fstype: str
    """The kernel's name for the type: `ext4`, `nfs4`, `fuse.drive`."""
    source: str
    """The mounted device or service, as the file system describes it."""
    readonly: bool = False

    @property
    def is_drive(self) -> bool:
        """Return whether it is a Google Drive, with whichever client."""
        return self.fstype in {*DRIVE_TYPES, OLD_DRIVE_TYPE}


_LOCAL = Mount(Path("/"), "", "")
MountTable = Mapping[str, Mount]
"""The visible mounts, by mount point: a later one hides an earlier one at the same place."""


class MountProbe(NamedTuple):
    state: str
    """`alive`; `missing`: nothing is at the path; `dead`: the client behind the mount is gone; `failing`: any other
    error; `silent`: no response before the deadline."""
    reason: str = ""
    """The error, in the system's words."""


def list_mounts(mountinfo: str | None = None) -> MountTable:
    if mountinfo is None:
        try:
            # Not as text: this is read several times in a call, and decoding by a file object would double the time.
            with open("/proc/self/mountinfo", "rb", buffering=0) as file:
                mountinfo = file.readall().decode("utf-8", "surrogateescape")
        except OSError:
            return {}
    return _parse(mountinfo)


# It changes seldom.
@functools.lru_cache(maxsize=4)
def _parse(mountinfo: str) -> MountTable:
    mounts = (_parse_line(line) for line in mountinfo.splitlines() if line.strip())
    return {str(mount.mountpoint): mount for mount in mounts}


def _parse_line(line: str) -> Mount:
    # proc(5): field 4 is the mount point, 5 the options; any number of fields follow, then a dash, type and source.
    before, _, after = line.partition(" - ")
    mountpoint, options = before.split(" ")[4:6]
    fstype, source, *_ = [*after.split(" "), ""]
    return Mount(Path(_unescape(mountpoint)), fstype, _unescape(source), readonly="ro" in options.split(","))


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def slow_reason(mount: Mount) -> str | None:
    """Say why reading from `mount` is likely to be slow; `None` for a local disk."""
    kind = mount.fstype
    if kind == "9p" and mount.mountpoint == Path("/"):
        return None  # gVisor shows a container's own disk like this
    if kind in DRIVE_TYPES:
        return "Google Drive"
    # Unknown FUSE file systems count as slow: a needless copy costs less than a round trip for every file.
    if (kind == "fuse" or kind.startswith("fuse.")) and kind not in _LOCAL_FUSE_TYPES:
        return f"a FUSE mount ({kind})"
    return f"a network file system ({kind})" if kind in _NETWORK_TYPES else None


def mount_of(path: str | os.PathLike[str], *, mounts: MountTable | None = None) -> Mount:
    """Return the mount that a path, which need not exist, is on; a link on the local disk into a slow mount counts as
    being there. Nothing on a slow mount is touched, here and below."""
    table = list_mounts() if mounts is None else mounts
    return _covering(_resolved(path, table), table)


def _covering(path: str, mounts: MountTable) -> Mount:
    """Return the mount that an absolute path without links and dots is on."""
    while (mount := mounts.get(path)) is None:
        if path == "/":
            return _LOCAL
        path = path.rpartition("/")[0] or "/"
    return mount


def follow_links(path: str | os.PathLike[str], *, mounts: MountTable | None = None) -> Path:
    """Make a path absolute and follow its links until it enters a slow mount; nothing there is touched."""
    return Path(_resolved(path, list_mounts() if mounts is None else mounts))


def _resolved(path: str | os.PathLike[str], mounts: MountTable) -> str:
    """Follow links as strings, because creating a path for each step takes longer than everything else."""
    # Not `Path.resolve`, which touches every folder on the way, even on a mount that hangs.
    written = os.fspath(path)
    absolute = written if written.startswith("/") else f"{current_folder()}/{written}"
    todo = absolute.split("/")[::-1]
    current, links = "", 0
    while slow_reason(mounts.get(current or "/", _LOCAL)) is None and todo:
        step = todo.pop()
        if step == "..":
            current = current.rpartition("/")[0]
        elif step not in ("", "."):
            following = f"{current}/{step}"
            target = _read_link(following, mounts) if links < _MAX_LINKS else None
            if target is None:
                current = following
            else:
                links += 1
                todo += target.split("/")[::-1]
                current = "" if target.startswith("/") else current
    rest = "/".join(reversed(todo)).lstrip("/")
    return os.path.normpath(f"{current}/{rest}") if rest else current or "/"


def _read_link(path: str, mounts: MountTable) -> str | None:
    if path in mounts:  # a mount point is no link
        return None
    try:
        return os.readlink(path)  # noqa: PTH115
    except (OSError, ValueError):  # no name contains a NUL
        return None


def is_slow_mount(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is on a network or user-space mount, where opening a file costs a round trip."""
    return slow_reason(mount_of(path)) is not None


def lost_with_machine(folder: str | os.PathLike[str]) -> str:
    """Say that a folder does not outlive the machine; "" if it does, or if nothing is known about that."""
    here = detect_platform()
    lasts = here.persistent_dir is not None or here.not_lasting or is_slow_mount(folder)
    return "" if lasts else f"'{os.fspath(folder)}' is on this machine's own disk, which {here.title} deletes with it"


def slow_mounts_below(folder: str | os.PathLike[str]) -> frozenset[str]:
    """Return the names in a local folder at which something slow is mounted; nothing there is touched."""
    table = list_mounts()
    top = follow_links(folder, mounts=table)
    # A share that is mounted in parts still counts as one.
    if slow_reason(_covering(str(top), table)) is not None:
        return frozenset()
    slow = [mount.mountpoint for mount in table.values() if slow_reason(mount) is not None]
    return frozenset(str(place.relative_to(top)) for place in slow if place.is_relative_to(top))


def drive_root(path: str | os.PathLike[str]) -> Path | None:
    """Return the mount point of the Google Drive that contains `path`, which need not exist; `None` when it is
    elsewhere."""
    mount = mount_of(path)
    return mount.mountpoint if mount.is_drive else None


def path_on_drive(path: str | os.PathLike[str]) -> Path | None:
    """Return where a path is from the root of the Drive that it is meant to be on, mounted or not, in the canonical
    spelling: `MyDrive` for `My Drive`; `None` for other paths.

    If no Drive is mounted, these paths are meant to be on one:

    - everything below the mount point that `mount_drive` used last, also in programs that this process starts;
    - on Colab, everything below `/content/drive`;
    - on Colab, `MyDrive` or a sibling of it, with everything below, in a folder at which Drive could be mounted: one
      without files, in a folder that exists; and if it does not exist, in any other folder.
    """
    table = list_mounts()
    found = _drive_meant(follow_links(path, mounts=table), table)
    return None if found is None else _spelt_on_drive(found[1])


def _spelt_on_drive(inside: Path) -> Path:
    # The root itself has no first part.
    first, *rest = [*inside.parts, ""]
    return Path(DRIVE_SPELLINGS.get(first, first), *rest)


def _drive_meant(place: Path, mounts: MountTable) -> tuple[Path, Path] | None:
    """Return the mount point of the Drive that a place is meant to be on, and where it is there."""
    mount = _covering(str(place), mounts)
    root = mount.mountpoint if mount.is_drive else _unmounted_drive(place, mounts)
    # Something else may be mounted there.
    if root is None or (not mount.is_drive and mount.mountpoint.is_relative_to(root)):
        return None
    named = _drive_folder_in(place)
    return root, place.relative_to(root) if place.is_relative_to(root) else Path(*place.parts[named:])


def _unmounted_drive(place: Path, mounts: MountTable) -> Path | None:
    last = os.environ.get(DRIVE_VARIABLE)
    if last and place.is_relative_to(last):
        return Path(last)
    usual, named = _usual_mountpoint(), _drive_folder_in(place)
    # The platform last, because detecting it takes longer than comparing paths.
    if not (place.is_relative_to(usual) or named) or detect_platform().name != "colab":
        return None
    folder = Path(*place.parts[:named])
    if place.is_relative_to(usual):
        return usual
    if slow_reason(_covering(str(folder), mounts)) is not None:
        return None
    is_free = folder != usual.parent and not any(Path(other).is_relative_to(folder) for other in mounts)
    if is_free and folder.parent.is_dir() and next(files_below(folder), None) is None:
        return folder
    return None if os.path.lexists(Path(*place.parts[: (named or 0) + 1])) else usual


def _drive_folder_in(place: Path) -> int | None:
    """Return which part of a path is the first that is named like a folder at a Drive's root."""
    return next((number for number, part in enumerate(place.parts) if part in DRIVE_FOLDERS), None)


def _usual_mountpoint() -> Path:
    return system_root() / DEFAULT_MOUNTPOINT.lstrip("/")


def files_below(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder that is not itself a folder, links to folders included."""
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in files)
        yield from (path for name in folders if (path := Path(parent, name)).is_symlink())


def place_in(
    path: str | os.PathLike[str], folder: str | os.PathLike[str], *, mounts: MountTable | None = None
) -> PurePath | None:
    """Return where a path is in a folder, whatever names lead there (links, Drive's two spellings); "." for the folder
    itself, `None` if it is not in it. Neither need exist; nothing on a slow mount is touched."""
    table = list_mounts() if mounts is None else mounts
    inner, outer = (follow_links(one, mounts=table) for one in (path, folder))
    inside, around = _covering(str(inner), table), _covering(str(outer), table)
    if inside.is_drive and around.is_drive:
        inner, outer = (
            mount.mountpoint / _spelt_on_drive(one.relative_to(mount.mountpoint))
            for one, mount in ((inner, inside), (outer, around))
        )
    return inner.relative_to(outer) if inner.is_relative_to(outer) else None


def probe_mount(path: str | os.PathLike[str], timeout_s: float = 10.0) -> MountProbe:
    """Check whether the file system of `path` responds; takes little more than `timeout_s` seconds."""
    place = os.fspath(path)
    # Both, because the kernel may answer the second from its cache.
    commands = [["stat", "-f", "--", place], ["stat", "--", place]]
    answers = ask_children(commands, timeout_s, env={**os.environ, "LC_ALL": "C"})
    if answers is None:
        return MountProbe("silent", "no answer")
    complaints = [answer.stderr.decode(errors="replace") for answer in answers if answer.returncode]
    if not complaints:
        return MountProbe("alive")
    reason = complaints[0].strip().rpartition(": ")[2]
    return MountProbe(_STATES.get(reason, "failing"), reason)


def run_apart(
    command: Sequence[str], timeout_s: float, *, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a command while mounts may hang; raises `TimeoutExpired` if it does not end in time."""
    # The working directory may be on such a mount. And before Python 3.11.4, the interpreter stands still while a child
    # closes inherited files itself.
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        cwd="/",
        env=env,
        close_fds=False,
    )


def ask_children(
    commands: Sequence[Sequence[str]], timeout_s: float, *, env: Mapping[str, str] | None = None
) -> list[subprocess.CompletedProcess[bytes]] | None:
    """Run commands in parallel and return their results in order; `None` if one does not end in time."""
    # In threads: the system closes inherited files before a command begins, which blocks, in the child and in the call
    # that starts it, if one is mapped from a mount that hangs.
    asked = [in_thread(partial(run_apart, command, timeout_s, env=env), "colabstage-ask") for command in commands]
    if wait(asked, timeout_s + _END_S).not_done:
        return None
    try:
        return [one.result() for one in asked]
    except subprocess.TimeoutExpired:
        return None


def silence_of(*paths: str | os.PathLike[str], timeout_s: float | None = None) -> DriveError | None:
    """Return why paths cannot be used now: one of them is meant to be on a Drive that is not mounted, or its mount is
    dead or does not respond; otherwise `None`."""
    # Every public function calls this first: a call into a mount that hangs never returns, and a dead mount fails
    # differently in every function.
    table = list_mounts()
    places = [follow_links(path, mounts=table) for path in paths]
    absent = _absent_drive(paths, places, table)
    if absent is not None:
        return absent
    timeout_s = _ANSWER_S if timeout_s is None else timeout_s
    for mount in dict.fromkeys(_covering(str(place), table) for place in places):
        if slow_reason(mount) is None:
            continue
        probe = probe_mount(mount.mountpoint, timeout_s)
        if probe.state in ("dead", "silent"):
            return gone_error(mount, probe, timeout_s)
    return None


def gone_error(mount: Mount, probe: MountProbe, timeout_s: float) -> DriveDisconnectedError:
    """Return the error for a mount whose client is dead, or was silent for so long, and what to do."""
    place, is_drive = mount.mountpoint, mount.fstype in DRIVE_TYPES
    what = "The Drive client at" if is_drive else "The file system behind"
    again = f"Mount it again with {remount_words(place)}" if is_drive else "Mount it again"
    kept = f" {WAITS_IN_CACHE}" if is_drive else ""
    if probe.state == "dead":
        return DriveDisconnectedError(f"{what} '{place}' has died ({probe.reason}). {again}, then try again.{kept}")
    end = ", after its client is ended (!pkill -9 -x drive)" if is_drive else ""
    msg = (
        f"{what} '{place}' has not answered for {timeout_s:.0f} s. It may be busy: wait, then try again. {again} if "
        f"that does not help{end}.{kept}"
    )
    return DriveDisconnectedError(msg)


def visible_mounts(mounts: MountTable) -> list[Mount]:
    """Return the mounts below the system root, the one at `/content/drive` first, then the latest first."""
    found = [mount for mount in [*mounts.values()][::-1] if mount.mountpoint.is_relative_to(system_root())]
    return sorted(found, key=lambda mount: mount.mountpoint != Path(DEFAULT_MOUNTPOINT))


def _absent_drive(
    paths: Sequence[str | os.PathLike[str]], places: Sequence[Path], mounts: MountTable
) -> DriveNotMountedError | None:
    """Return the error for the first path without its Drive. `places`: the paths from `follow_links`."""
    for path, place in zip(paths, places, strict=True):
        if (found := _drive_meant(place, mounts)) is None:
            continue
        (mountpoint, meant), otherwise = found, ""
        if not place.is_relative_to(mountpoint):
            otherwise = "; or, for a folder of this machine, make it first"
        elif _covering(str(place), mounts).is_drive:
            continue
        mounted = next((one.mountpoint for one in visible_mounts(mounts) if one.fstype in DRIVE_TYPES), None)
        use = "Use" if mounted else f"Call {remount_words(mountpoint)} in a cell, then use"
        text = os.fspath(path)
        # The slash says that it is a folder.
        there = f"{(mounted or mountpoint) / meant}{'/' if text.endswith('/') else ''}"
        msg = f"'{text}' is not on a mounted Google Drive. {use} '{there}'{otherwise}."
        return DriveNotMountedError(msg)
    return None


def require_answer(*paths: str | os.PathLike[str]) -> None:
    error = silence_of(*paths)
    if error is not None:
        raise error


def require_drive(*paths: str | os.PathLike[str]) -> None:
    """Make sure that paths that are meant to be on a Drive have one mounted; nothing on it is touched."""
    table = list_mounts()
    error = _absent_drive(paths, [follow_links(path, mounts=table) for path in paths], table)
    if error is not None:
        raise error


@contextlib.contextmanager
def required_to_stay(*places: str | os.PathLike[str]) -> Iterator[None]:
    """Make sure that places can be used, as `require_answer` does, and at the end that no Drive was unmounted: without
    its Drive a path is on the local disk, where writing also succeeds."""
    require_answer(*places)
    roots = {root for place in places if (root := drive_root(place)) is not None}
    failure: Exception | None = None
    try:
        yield
    except CancelledError:
        raise
    except (ColabstageError, OSError) as error:
        failure = error
    for root in sorted(root for root in roots if drive_root(root) != root):
        msg = (
            f"Google Drive was unmounted from '{root}' during this, so it is not known what of it is on Drive. Call "
            f"{remount_words(root)} in a notebook cell, then do it again."
        )
        raise DriveNotMountedError(msg) from failure
    if failure is not None:
        raise failure


def remount_words(mountpoint: str | os.PathLike[str]) -> str:
    """Return the call that mounts a dead Drive again."""
    usual = os.fspath(mountpoint) == DEFAULT_MOUNTPOINT
    return "mount_drive()" if usual else f"mount_drive('{os.fspath(mountpoint)}')"


def unmount_lazily(mountpoint: str | os.PathLike[str]) -> None:
    """Detach a mount even while it is in use. Only for one whose client is dead: open files there fail from now on."""
    place = os.fspath(mountpoint)
    commands = [[name, "-u", "-z", "-q", place] for name in ("fusermount3", "fusermount")]
    if os.geteuid() == 0:
        commands.insert(0, ["umount", "-l", place])
    command = next((command for command in commands if shutil.which(command[0])), None)
    if command is not None:
        run_apart(command, _UNMOUNT_S)


@contextlib.contextmanager
def outside(root: Path) -> Iterator[None]:
    """Leave `root` for the block if the current folder is below it, and return when the block succeeds."""
    # Drive's client starts a shell in the current folder. Inside the mount, that shell would keep it busy, for this
    # attempt and for every later one.
    folder = current_folder()
    if not folder.is_relative_to(root):
        yield
        return
    os.chdir(next(parent for parent in root.parents if parent.is_dir()))
    yield
    try:
        os.chdir(folder)
    except OSError as error:
        warnings.warn(
            f"The current folder was '{folder}', which no longer exists ({error.strerror}); now it is '{Path.cwd()}'.",
            stacklevel=3,
        )


def check_unused(root: Path) -> None:
    """Refuse to unmount a Drive that this process uses: memory that is mapped from a file on it would end the process
    as soon as it is touched."""
    used = sorted(path for path in {*_used_files(), str(current_folder())} if Path(path).is_relative_to(root))
    if used:
        msg = (
            f"This notebook uses {listed(used, _NAMES_SHOWN)} on Drive, and touching that after Drive is unmounted may "
            "end it. Leave Drive's folders, os.chdir('/content'), close its files, and delete what was read from them "
            "(torch.load(mmap=True), safetensors and numpy.memmap map files), then try again."
        )
        raise DriveError(msg)


def _used_files() -> set[str]:
    """Return the files that this process has open or mapped: a mapping outlives the file object it was made from."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile, for example the handle that lists this folder
            found.add(str(link.readlink()))
    # proc(5): five fields, then the path, in which a newline is written as \\012.
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        found |= {fields[5].removesuffix(" (deleted)") for line in lines if len(fields := line.split(None, 5)) == 6}
    return found


class InCaller(Protocol):
    """Call a function in the thread that waits for the work, and return its result."""

    def __call__(self, function: Callable[[], R], /) -> R: ...


def call_here(function: Callable[[], R]) -> R:
    """Call a function: the `InCaller` of work that runs in the caller's own thread."""
    return function()


def run_watched(work: Callable[[], T], *places: str | os.PathLike[str]) -> T:
    """Call `work()`; if one of `places` is on a slow mount, in a thread with the caller's context, and fail if the
    mount stops responding. Interrupts, and whatever `work` raises, reach the caller as usual; only a failure that the
    log of Drive's client explains by its download quota is raised as that."""
    return run_watched_for_caller(lambda _: work(), *places)


def run_watched_for_caller(work: Callable[[InCaller], T], *places: str | os.PathLike[str]) -> T:
    """Call `work(in_caller)` as `run_watched` does; functions that it passes to `in_caller`, the caller's own code, run
    in the caller's thread, one after the other, for any time. The mount is checked between them."""
    table = list_mounts()
    slow = [place for place in places if slow_reason(mount_of(place, mounts=table)) is not None]
    if not slow:
        return work(call_here)
    # Imported late: few calls need it, and it loads everything about Drive.
    from colabstage.machine.watched import watch

    return watch(work, slow)


def run_with_one_remount(
    work: Callable[[], T], *places: str | os.PathLike[str], notice: Callable[[str], object] = lambda _: None
) -> T:
    """Call `work()`, which uses `places`; when the Drive of the first that is on one dies meanwhile, mount it again and
    call `work()` once more, which has nothing open there after it has failed. `notice` is called with a sentence then.
    """
    table = list_mounts()
    drive = next((mount for place in places if (mount := mount_of(place, mounts=table)).is_drive), None)
    if drive is None:
        return run_watched(work, *places)
    # Imported late, as above.
    from colabstage.machine.watched import remount_once

    return remount_once(work, drive, places, notice)
