"""The stand-in `google.colab.drive`: the same questions in the same order, the same words, a practice Drive behind.

Written from the observed behaviour of the real module, step by step as it goes. That a permission is asked for before
anything is looked at, that a forced remount kills the client, and that the mount point is judged last, are all on
purpose: they are what code that mounts Drive has to live with.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from colabstage.simulate.colab import SimulatedColab

_UNSUPPORTED = (
    "Mounting drive is unsupported in this environment. Use PyDrive2 instead. See examples at "
    "https://colab.research.google.com/notebooks/io.ipynb#scrollTo=7taylj9wpsA2."
)
_ROOT_TIMEOUT = (
    "mount failed: timeout during initial read of root folder; for more info: "
    "https://research.google.com/colaboratory/faq.html#drive-timeout"
)
_POLICY = "The domain policy has disabled Drive File Stream: https://support.google.com/a/answer/7496409"
_DAY_MS = 24 * 60 * 60 * 1000


class TIMEOUT(Exception):  # noqa: N818 - the name of the exception it stands for
    """What pexpect raises when the client says nothing; code that knows it only by name must cope."""


TIMEOUT.__module__ = "pexpect.exceptions"


@dataclass(frozen=True, slots=True)
class _Env:
    """What the real module reads from the environment once."""

    home: str
    root_dir: str


def drive_module(colab: SimulatedColab) -> ModuleType:
    """Build the module on top of a practice machine."""

    def mount(mountpoint: str, force_remount: bool = False, timeout_ms: int = 120000, readonly: bool = False) -> None:
        _mount(mountpoint, force_remount=force_remount, timeout_ms=timeout_ms, ephemeral=True, readonly=readonly)

    def _mount(
        mountpoint: str,
        force_remount: bool = False,
        timeout_ms: int = 120000,
        ephemeral: bool = False,
        readonly: bool = False,
    ) -> None:
        colab.calls.append("drive.mount")
        _check_environment(colab, mountpoint, ephemeral=ephemeral)
        answered = colab.request_auth("dfs_ephemeral" if ephemeral else "dfs", timeout_s=int(timeout_ms / 1000))
        mountpoint = os.path.expanduser(mountpoint)  # noqa: PTH111 - a string stays one in every message
        if not force_remount and _is_folder(Path(mountpoint, "My Drive")):
            print(
                f"Drive already mounted at {mountpoint}; to attempt to forcibly remount, call "
                f'drive.mount("{mountpoint}", force_remount=True).'
            )
            return
        _make_settings_folder()
        _kill_client(colab)
        _check_mountpoint(Path(mountpoint))
        _start_client(colab, Path(mountpoint), answered=answered, readonly=readonly)
        print(f"Mounted at {mountpoint}")

    def flush_and_unmount(timeout_ms: int = _DAY_MS) -> None:
        colab.calls.append("drive.flush_and_unmount")
        if colab.marker("/var/colab/mp").exists():
            msg = "google.colab.drive is unsupported in this environment."
            raise NotImplementedError(msg)
        _env()
        if colab.drive is None or colab.drive.mountpoint is None:
            print("Drive not mounted, so nothing to flush and unmount.")
            return
        if colab.knobs.flush == "fails" or not colab.drive.flush(timeout_s=timeout_ms / 1000):
            msg = "flush_and_unmount failed"
            raise ValueError(msg)
        colab.drive.unmount()
        colab.was_flushed = True

    module: Any = ModuleType("google.colab.drive")
    module.__all__ = ["flush_and_unmount", "mount"]
    mount._DEBUG = False  # type: ignore[attr-defined]
    module.mount, module.flush_and_unmount = mount, flush_and_unmount
    module._mount, module._env, module._logs_dir, module._timeouts_path = _mount, _env, _logs_dir, _timeouts_path
    return module  # type: ignore[no-any-return]


def _check_environment(colab: SimulatedColab, mountpoint: str, *, ephemeral: bool) -> None:
    if not colab.marker("/var/colab/hostname").exists():
        raise NotImplementedError(_UNSUPPORTED)
    if " " in mountpoint:
        msg = "Mountpoint must not contain a space."
        raise ValueError(msg)
    if os.environ.get("VERTEX_PRODUCT") == "COLAB_ENTERPRISE":
        msg = "google.colab.drive.mount is not supported in Colab Enterprise."
        raise NotImplementedError(msg)
    _ = os.environ["TBE_EPHEM_CREDS_ADDR" if ephemeral else "TBE_CREDS_ADDR"]


def _is_folder(path: Path) -> bool:
    """As `os.path.isdir`, for which a dead mount is simply not there."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir lets the errno of a dead mount through


def _make_settings_folder() -> None:
    folder = Path(os.environ["HOME"], ".config/Google")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        msg = f"{folder} must be a directory if present"
        raise ValueError(msg) from None


def _kill_client(colab: SimulatedColab) -> None:
    if colab.drive is not None and colab.drive.mountpoint is not None:
        colab.drive.kill()
        colab.drive.unmount()


def _check_mountpoint(place: Path) -> None:
    if place.is_symlink():
        msg = "Mountpoint must not be a symlink"
        raise ValueError(msg)
    if place.is_dir() and any(place.iterdir()):
        msg = "Mountpoint must not already contain files"
        raise ValueError(msg)
    if place.exists() and not place.is_dir():
        msg = "Mountpoint must either be a directory or not exist"
        raise ValueError(msg)
    if not place.parent.exists():
        msg = "Mountpoint must be in a directory that exists"
        raise ValueError(msg)


def _start_client(colab: SimulatedColab, place: Path, *, answered: bool, readonly: bool) -> None:
    Path(_logs_dir()).mkdir(parents=True, exist_ok=True)
    log = Path(_logs_dir(), "drive_fs.txt")
    log.write_text("practice client starting\n", encoding="ascii")
    problem = colab.knobs.mount
    if problem == "hangs":
        msg = "Timeout exceeded."
        raise TIMEOUT(msg)
    if problem == "root_too_large":
        log.write_text("QueryManager timed out\n", encoding="ascii")
        raise ValueError(_ROOT_TIMEOUT)
    if problem == "policy_disabled":
        raise ValueError(_POLICY)
    if problem == "client_exits" or not answered or (colab.knobs.remount == "fails" and colab.was_flushed):
        msg = "mount failed"
        raise ValueError(msg)
    place.mkdir(exist_ok=True)
    colab.practice_drive().mount(place, readonly=readonly)
    if problem == "dies":
        with contextlib.suppress(OSError):
            colab.practice_drive().kill()


def _env() -> _Env:
    home = os.environ["HOME"]
    root = Path(os.environ["CLOUDSDK_CONFIG"], "../..")
    return _Env(home=home, root_dir=os.path.realpath(root))


def _logs_dir() -> str:
    return str(Path(os.environ["HOME"], ".config/Google/DriveFS/Logs"))


def _timeouts_path() -> str:
    return str(Path(_logs_dir(), "timeouts.txt"))
