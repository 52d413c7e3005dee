"""A Colab to practise on: a stand-in `google.colab` in a process that looks like one of the notebook platforms.

    with simulated_colab(folder, drive=SimulatedDrive(folder / "drive")) as colab:
        mount_drive(folder / "content/drive")

`google.colab.drive`, the one module that colabstage uses, asks in the same order, says the same words and raises the
same exceptions by name as the real one; `ColabKnobs` decides what goes wrong. Other `google.*` packages stay
importable.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.support.colab_machine import (
    ColabKnobs,
    PracticeDrive,
    Preset,
    SimulatedColab,
    environment,
    make_machine,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNSUPPORTED = (
    "Mounting drive is unsupported in this environment. Use PyDrive2 instead. See examples at "
    "https://colab.research.google.com/notebooks/io.ipynb#scrollTo=7taylj9wpsA2."
)
_ROOT_TIMEOUT = (
    ": timeout during initial read of root folder; for more info: "
    "https://research.google.com/colaboratory/faq.html#drive-timeout"
)
_ROOT_TIMEOUT_MARK = "QueryManager timed out"
_POLICY = "The domain policy has disabled Drive File Stream: https://support.google.com/a/answer/7496409"
_DAY_MS = 24 * 60 * 60 * 1000
_UMOUNT_S = 10.0
# Longer than any test runs.
_SHELL_S = 600


class TIMEOUT(Exception):  # noqa: N818 - the name of the exception it stands for
    """What pexpect raises if the client prints nothing; our code must work knowing only its name."""


TIMEOUT.__module__ = "pexpect.exceptions"


def drive_module(colab: SimulatedColab) -> ModuleType:
    """Build the stand-in `google.colab.drive`, which does what the real module was seen to do, step by step.

    That a permission is asked for before anything is looked at, that a forced remount kills the client, and that the
    mount point is checked last, are all on purpose: they are what code that mounts Drive has to live with. So are
    these:

    - What is mounted at the place is unmounted plainly, by force and then without. A mount in which anything is open,
      or stands, is busy: it stays, its client dead, and the next client fails for it. One at another place is not
      unmounted at all: its client is killed, and it stays, dead, beside the new one.
    - The client's shell starts where the caller stands. After a failure a part of it continues to wait there, and what
      is in a mount keeps it busy, also for every later try.
    - Why a mount failed is looked up in all of the client's log, also in what an earlier failure wrote there.
    - A time is handed on in whole seconds, rounded down, and none at all means for ever.
    """

    def mount(mountpoint: str, force_remount: bool = False, timeout_ms: int = 120000, readonly: bool = False) -> None:
        colab.calls.append("drive.mount")
        _check_environment(colab, mountpoint)
        answered = colab.request_auth("dfs_ephemeral", timeout_s=int(timeout_ms / 1000))
        mountpoint = os.path.expanduser(mountpoint)  # noqa: PTH111 - a string stays one in every message
        if not force_remount and _is_live_folder(Path(mountpoint, "My Drive")):
            print(
                f"Drive already mounted at {mountpoint}; to attempt to forcibly remount, call "
                f'drive.mount("{mountpoint}", force_remount=True).'
            )
            return
        folder = Path(os.environ["HOME"], ".config/Google")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            msg = f"{folder} must be a directory if present"
            raise ValueError(msg) from None
        place = Path(mountpoint)
        with _client_shell(colab, place):
            _end_client(colab, place)
            _refuse_mountpoint(place)
            _start_client(colab, place, answered=answered, readonly=readonly)
        print(f"Mounted at {mountpoint}")

    def flush_and_unmount(timeout_ms: int = _DAY_MS) -> None:
        colab.calls.append("drive.flush_and_unmount")
        _ = os.environ["CLOUDSDK_CONFIG"]
        if colab.drive is None or colab.drive.mountpoint is None:
            print("Drive not mounted, so nothing to flush and unmount.")
            return
        if colab.knobs.flush == "fails" or not colab.drive.flush(timeout_s=int(timeout_ms / 1000)):
            msg = "flush_and_unmount failed"
            raise ValueError(msg)
        _unmount_soon(colab)

    module: Any = ModuleType("google.colab.drive")
    module.__all__ = ["flush_and_unmount", "mount"]
    module.mount, module.flush_and_unmount = mount, flush_and_unmount
    return module  # type: ignore[no-any-return]


def _check_environment(colab: SimulatedColab, mountpoint: str) -> None:
    if not colab.marker("/var/colab/hostname").exists():
        raise NotImplementedError(_UNSUPPORTED)
    if " " in mountpoint:
        msg = "Mountpoint must not contain a space."
        raise ValueError(msg)
    if os.environ.get("VERTEX_PRODUCT") == "COLAB_ENTERPRISE":
        msg = "google.colab.drive.mount is not supported in Colab Enterprise."
        raise NotImplementedError(msg)
    _ = os.environ["TBE_EPHEM_CREDS_ADDR"]


def _is_live_folder(path: Path) -> bool:
    """As `os.path.isdir`, for which a dead mount does not exist."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir lets the errno of a dead mount through


@contextlib.contextmanager
def _client_shell(colab: SimulatedColab, place: Path) -> Any:
    """Start the client's shell in the caller's folder; after a failure it stays there."""
    standing = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")  # noqa: PTH115 - of a dead mount, too
    if not Path(standing).is_relative_to(place):
        yield
        return
    shell = subprocess.Popen(["sleep", str(_SHELL_S)], stdin=subprocess.DEVNULL)
    colab.shells.append(shell)
    yield
    shell.kill()
    shell.wait()


def _is_mounted(place: Path) -> bool:
    mounted = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return str(place).replace(" ", r"\040") in mounted


def _end_client(colab: SimulatedColab, place: Path) -> None:
    """Unmount plainly, then kill any client."""
    colab.wait_unmounted()
    if _is_mounted(place):
        tools = ["umount", "-f"], ["umount"], ["fusermount3", "-u", "-q"]
        for tool in [tool for tool in tools if shutil.which(tool[0])]:
            command = [*tool, str(place)]
            if subprocess.run(command, capture_output=True, timeout=_UMOUNT_S, check=False, cwd="/").returncode == 0:
                break
    if colab.drive is not None and colab.drive.mountpoint is not None:
        colab.drive.kill()
        # Only this place was unmounted: if the client was mounted elsewhere, its dead mount stays.
        if colab.drive.mountpoint == place and not _is_mounted(place):
            colab.drive.unmount()


def _refuse_mountpoint(place: Path) -> None:
    # With os.path throughout, for which a dead mount does not exist; Path raises its errno.
    if os.path.islink(place):  # noqa: PTH114
        msg = "Mountpoint must not be a symlink"
        raise ValueError(msg)
    if _is_live_folder(place) and any(place.iterdir()):
        msg = "Mountpoint must not already contain files"
        raise ValueError(msg)
    if not _is_live_folder(place) and os.path.exists(place):  # noqa: PTH110
        msg = "Mountpoint must either be a directory or not exist"
        raise ValueError(msg)
    if not place.parent.exists():
        msg = "Mountpoint must be in a directory that exists"
        raise ValueError(msg)


def _start_client(colab: SimulatedColab, place: Path, *, answered: bool, readonly: bool) -> None:
    log = Path(os.environ["HOME"], ".config/Google/DriveFS/Logs/drive_fs.txt")
    log.parent.mkdir(parents=True, exist_ok=True)
    problem = colab.knobs.mount
    with log.open("a", encoding="utf-8") as file:
        file.write("practice client starting\n")
        if problem == "root_too_large":
            file.write(f"{_ROOT_TIMEOUT_MARK}\n")
    if problem == "hangs":
        msg = "Timeout exceeded."
        raise TIMEOUT(msg)
    if problem == "policy_disabled":
        raise ValueError(_POLICY)
    fails = problem in {"client_exits", "root_too_large"} or (colab.knobs.remount == "fails" and colab.was_flushed)
    # On a dead mount that could not be removed, no client can mount.
    if fails or not answered or _is_mounted(place):
        said = log.read_text(encoding="utf-8", errors="replace")
        msg = "mount failed" + (_ROOT_TIMEOUT if _ROOT_TIMEOUT_MARK in said else "")
        raise ValueError(msg)
    place.mkdir(exist_ok=True)
    colab.practice_drive().mount(place, readonly=readonly)
    if problem == "dies":
        with contextlib.suppress(OSError):
            colab.practice_drive().kill()


def _unmount_soon(colab: SimulatedColab) -> None:
    """Unmount at once, or a little later, as the knobs say; the caller is told at once that everything is done."""
    drive, lag_s = colab.practice_drive(), colab.knobs.unmount_lag_s
    colab.was_flushed = True
    if not lag_s:
        drive.unmount()
        return
    colab.leaving = threading.Timer(lag_s, drive.unmount)
    colab.leaving.start()


@contextlib.contextmanager
def simulated_colab(
    root: Path, *, preset: Preset = "colab_cpu", drive: PracticeDrive | None = None, knobs: ColabKnobs | None = None
) -> Iterator[SimulatedColab]:
    """Make this process look like one on a notebook platform, `google.colab` included; undone at the end.

    Args:
        root: a folder that stands for `/` on that machine: `root/content`, `root/var/colab/hostname`. Only Drives
            mounted below it are found by `ask_drives`.
        preset: `colab_cpu`, `colab_gpu`, `colab_enterprise`, `colab_subprocess` (a script that a notebook started: no
            kernel), `kaggle` (which carries some of Colab's variables), `local` (no `google.colab` at all).
        drive: what `drive.mount` mounts; unmounted at the end.
        knobs: what goes wrong.
    """
    root = root.resolve()
    colab = SimulatedColab(root=root, preset=preset, drive=drive, knobs=knobs or ColabKnobs())
    make_machine(preset, root)
    try:
        with (
            environment(preset, root),
            _stand_in_shell(has_kernel=preset not in {"colab_subprocess", "local"}),
            _package(colab),
        ):
            yield colab
    finally:
        colab.wait_unmounted()
        for shell in colab.shells:
            shell.kill()
            shell.wait()
        if drive is not None and drive.mountpoint is not None:
            drive.unmount()


@contextlib.contextmanager
def _package(colab: SimulatedColab) -> Iterator[None]:
    """Put the stand-in package, or its absence, into `sys.modules`, beside the other `google.*` packages."""
    with _modules_restored("google", "google.colab"):
        google: Any = importlib.import_module("google") if find_spec("google") else _empty_package("google")
        before = getattr(google, "colab", None)
        sys.modules["google"] = google
        # `None` is Python's own mark for a module that cannot be imported.
        absent: dict[str, Any] = {"google.colab": None}
        sys.modules.update(absent if colab.preset == "local" else _present(colab))
        google.colab = sys.modules["google.colab"]
        try:
            yield
        finally:
            del google.colab
            if before is not None:
                google.colab = before


def _present(colab: SimulatedColab) -> dict[str, ModuleType]:
    package: Any = _empty_package("google.colab")
    package.__version__, package.__all__ = "0.0.1a2", ["drive"]
    package.drive = drive_module(colab)
    return {"google.colab": package, "google.colab.drive": package.drive}


def _empty_package(name: str) -> ModuleType:
    package = ModuleType(name)
    package.__path__ = []
    return package


@contextlib.contextmanager
def _stand_in_shell(*, has_kernel: bool) -> Iterator[None]:
    """Make `IPython.get_ipython()` return what it does in a kernel, or outside one; the rest of IPython is
    unchanged."""
    real: Any = importlib.import_module("IPython") if find_spec("IPython") else None
    kernel_runs = getattr(real.get_ipython() if real else None, "kernel", None) is not None
    if kernel_runs == has_kernel:
        yield
        return
    stand_in: Any = ModuleType("IPython")
    stand_in.__path__ = list(real.__path__) if real else []
    # No `IPKernelApp` in the config, so that progress bars do not try to draw widgets.
    shell = SimpleNamespace(kernel=SimpleNamespace(), config={}) if has_kernel else None
    stand_in.get_ipython = lambda: shell
    if real:
        stand_in.__getattr__ = lambda name: getattr(real, name)
    with _modules_restored("IPython"):
        sys.modules["IPython"] = stand_in
        yield


@contextlib.contextmanager
def _modules_restored(*names: str) -> Iterator[None]:
    """Restore the modules of these names, and those of `google.colab`."""

    def ours(name: str) -> bool:
        return name in names or ("google.colab" in names and name.startswith("google.colab."))

    before = {name: module for name, module in sys.modules.items() if ours(name)}
    for name in before:
        if name != "google":
            del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)
