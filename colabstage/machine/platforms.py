"""Which notebook platform this is, and where its fast and its persistent folders are: facts only, no policy."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colabstage.errors import OptionError
from colabstage.io.arguments import absolute_path
from colabstage.io.environment import LOCAL_DIR_VARIABLE, PLATFORM_VARIABLE, SYSTEM_ROOT_VARIABLE, shell


@dataclass(frozen=True, slots=True)
class Platform:
    name: str
    """Its name in code and in `COLABSTAGE_PLATFORM`."""
    title: str
    """Its name for people."""
    fast_dir: Path
    """A folder on the machine's own disk, lost with the machine on most platforms; it may not exist yet."""
    persistent_dir: Path | None
    """A folder that outlives the machine; `None` if there is none. On Colab only a mounted Drive outlives the machine
    (`ask_drives` knows whether and where), so it is `None` there: a folder created in Drive's place while Drive is not
    mounted is lost, and prevents mounting Drive."""
    not_lasting: str = ""
    """Why `persistent_dir` is `None` although a folder could be used, and what that would cost."""
    drive_mountable: bool = False
    """Whether `google.colab.drive.mount` can work in this process, and somebody can answer its dialogue."""


_TITLES = {"kaggle": "Kaggle", "colab": "Google Colab", "python": "Python"}
# Environment variables, of which any is enough; empty ones count. Kaggle's images are built from Colab's and inherit
# their marks, so Kaggle comes first.
_MARKS = {"kaggle": ("KAGGLE_KERNEL_RUN_TYPE",), "colab": ("COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION")}
_KAGGLES_OUTPUT = (
    "/kaggle/working would take the cache out of the 20 GB of the notebook's output, and lasts only where persistence "
    "is switched on; cache_dir='/kaggle/working/colabstage' uses it all the same"
)


def _recognised() -> str:
    # The package alone proves nothing: it can be installed, and other packages import it, on any machine.
    on_colab = sys.modules.get("google.colab") is not None and _in_system("/var/colab/hostname").exists()
    marked = (name for name, marks in _MARKS.items() if not os.environ.keys().isdisjoint(marks))
    return next(marked, "colab" if on_colab else "python")


def _in_system(path: str) -> Path:
    """Return an absolute path below the system root, which a practice machine replaces."""
    return system_root() / path.lstrip("/")


def _own_fast_dir(home: Path) -> Path:
    """Return where the user's own computer keeps files that can be made again: /tmp is in memory on many systems."""
    if temp := os.environ.get("TMPDIR"):
        return Path(temp)
    # The home of a user whom a container knows by number is "/", and that of a service may be missing or read-only.
    cache = home / ".cache" if os.access(home, os.W_OK) else _in_system("/tmp")
    return Path(os.environ.get("XDG_CACHE_HOME") or cache)


def _kernel() -> Any:
    """Return the notebook kernel that this process is; `None` for a script that a notebook started."""
    return getattr(shell(), "kernel", None)


def _is_attended() -> bool:
    """Return whether the kernel's client can answer prompts, which each request to run code declares."""
    get_request = getattr(_kernel(), "get_parent", None)
    request = get_request() if get_request else None
    # `colab exec`, nbclient and papermill declare that they cannot; a button of a widget declares nothing.
    return not isinstance(request, dict) or request.get("content", {}).get("allow_stdin", True) is not False


def system_root() -> Path:
    """Return the folder that stands for `/`: `/` itself, unless `COLABSTAGE_SYSTEM_ROOT` names a practice machine's."""
    return Path(os.environ.get(SYSTEM_ROOT_VARIABLE) or "/")


def detect_platform() -> Platform:
    """Tell which platform this process runs on.

    `COLABSTAGE_PLATFORM` overrides the answer, and `COLABSTAGE_LOCAL_DIR` replaces the platform's fast folder.
    """
    named, local_dir = os.environ.get(PLATFORM_VARIABLE), os.environ.get(LOCAL_DIR_VARIABLE)
    name = named or _recognised()
    if name not in _TITLES:
        msg = f"{PLATFORM_VARIABLE}={named!r} names no platform. Known names: {', '.join(_TITLES)}."
        raise OptionError(msg)
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - of unknown users too
    usual = {"kaggle": _in_system("/kaggle/temp"), "colab": _in_system("/content")}.get(name) or _own_fast_dir(home)
    # The permission is requested through the kernel; google.colab looks for the file before it mounts.
    can_ask = _kernel() is not None and _is_attended() and _in_system("/var/colab/hostname").exists()
    return Platform(
        name,
        _TITLES[name],
        absolute_path(local_dir, LOCAL_DIR_VARIABLE) if local_dir else usual,
        None if name in ("kaggle", "colab") else home,
        _KAGGLES_OUTPUT if name == "kaggle" else "",
        name == "colab" and can_ask,
    )
