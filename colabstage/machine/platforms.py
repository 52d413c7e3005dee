"""Which notebook platform this is, and where its fast and its persistent folders are: facts only, no policy."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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


class _Row(NamedTuple):
    """How a platform is recognised, and where its folders are.

    A folder is the first of its candidates that exists, or the last one; `~`, `temp` and `cache` are this user's.
    """

    title: str
    marks: tuple[str, ...] = ()
    """Environment variables, of which any is enough, or any pair. Empty ones count."""
    fast: tuple[str, ...] = ("temp",)
    persistent: tuple[str, ...] = ("~",)
    not_lasting: str = ""


_TABLE = {
    # Before Colab: Kaggle's images are built from Colab's and inherit their marks.
    "kaggle": _Row(
        *("Kaggle", ("KAGGLE_KERNEL_RUN_TYPE",), ("/kaggle/temp",), ()),
        "/kaggle/working would take the cache out of the 20 GB of the notebook's output, and lasts only where "
        "persistence is switched on; cache_dir='/kaggle/working/colabstage' uses it all the same",
    ),
    "colab": _Row("Google Colab", ("COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION"), ("/content",), ()),
    "studio-lab": _Row("SageMaker Studio Lab"),
    "paperspace": _Row(
        *("Paperspace Gradient", ("PAPERSPACE_NOTEBOOK_REPO_ID", "PAPERSPACE_CLUSTER_ID")),
        persistent=("/storage", "/notebooks"),
    ),
    "lightning": _Row(
        *("Lightning Studio", ("LIGHTNING_CLOUD_PROJECT_ID LIGHTNING_CLUSTER_ID", "LIGHTNING_CLOUDSPACE_HOST")),
        *(("/cache", "temp"), ("/teamspace/studios/this_studio",)),
    ),
    "python": _Row("Python", fast=("cache",)),
}


def _is_recognised(name: str, row: _Row) -> bool:
    # The package alone proves nothing: it can be installed, and other packages import it, on any machine.
    on_colab = sys.modules.get("google.colab") is not None and _in_system("/var/colab/hostname").exists()
    in_studio_lab = os.environ.get("HOME") == "/home/studio-lab-user"
    others = {"colab": on_colab, "studio-lab": in_studio_lab, "python": True}
    return any(os.environ.keys() >= {*mark.split()} for mark in row.marks) or others.get(name, False)


def _in_system(path: str) -> Path:
    """Return an absolute path below the system root, which a practice machine replaces."""
    return system_root() / path.lstrip("/")


def _place(candidates: tuple[str, ...]) -> Path | None:
    temp = Path(os.environ.get("TMPDIR") or _in_system("/tmp"))
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - of unknown users too
    # Where the user's own computer keeps files that can be made again: /tmp is in memory on many systems. The home of
    # a user whom a container knows by number is "/", and that of a service may be missing or read-only.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or (home / ".cache" if os.access(home, os.W_OK) else temp))
    own = {"temp": temp, "~": home, "cache": temp if os.environ.get("TMPDIR") else cache}
    places = [own.get(name) or _in_system(name) for name in candidates]
    return next((place for place in places if place.exists()), places[-1] if places else None)


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
    name = named or next(name for name, row in _TABLE.items() if _is_recognised(name, row))
    if name not in _TABLE:
        msg = f"{PLATFORM_VARIABLE}={named!r} names no platform. Known names: {', '.join(_TABLE)}."
        raise OptionError(msg)
    row = _TABLE[name]
    fast = absolute_path(local_dir, LOCAL_DIR_VARIABLE) if local_dir else _place(row.fast)
    assert fast is not None
    # The permission is requested through the kernel; google.colab looks for the file before it mounts.
    can_ask = _kernel() is not None and _is_attended() and _in_system("/var/colab/hostname").exists()
    return Platform(name, row.title, fast, _place(row.persistent), row.not_lasting, name == "colab" and can_ask)
