"""What this machine must have to mount something with FUSE, and how to get a mountpoint ready and rid of its mount."""

from __future__ import annotations

import ctypes.util
import errno
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from colabstage.errors import OptionError

_CAP_SYS_ADMIN = 21
_INSTALL = "On Debian, Ubuntu or Colab: apt-get install fuse3; then pip install 'colabstage[fuse]'"


def fuse_problem() -> str | None:
    """Say which part is missing to mount a simulated Drive here, and how to get it; `None` when all are there."""
    if sys.platform != "linux":
        return f"A simulated Drive needs Linux, and this is {sys.platform}. The throttled tree works everywhere."
    if find_spec("mfusepy") is None:
        return f"The package mfusepy is not installed. {_INSTALL}."
    if ctypes.util.find_library("fuse3") is None or shutil.which("fusermount3") is None:
        return f"The FUSE library or its fusermount3 is not installed. {_INSTALL}."
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return (
            f"/dev/fuse cannot be opened ({error.strerror}). Start a container with "
            "'--device /dev/fuse --cap-add SYS_ADMIN'; on a machine of your own, run 'modprobe fuse'."
        )
    if os.geteuid() == 0 and not _may_mount():
        return "This container's root is not allowed to mount. Start the container with '--cap-add SYS_ADMIN'."
    return None


def _may_mount() -> bool:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return True


def unmount_lazily(mountpoint: Path, *, timeout_s: float = 10.0) -> None:
    """Take a mount out of the tree even while files on it are open; nothing mounted there is fine."""
    tool = shutil.which("fusermount3")
    command = [tool, "-u", "-z", "-q", str(mountpoint)] if tool else ["umount", "-l", str(mountpoint)]
    subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)


def is_dead(mountpoint: Path) -> bool:
    """Whether a mount is there whose client has died."""
    try:
        mountpoint.stat()
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def make_mountpoint(mountpoint: Path) -> None:
    """Have an empty folder to mount on, without a dead mount that an earlier process left there.

    Raises:
        OptionError: something is mounted there, or lies in the folder.
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
