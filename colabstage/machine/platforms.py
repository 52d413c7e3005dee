"""Which notebook platform this is, and where its fast and its persistent folders are: facts only, no policy.

One table, read from top to bottom: the first row whose test succeeds wins.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colabstage.errors import OptionError
from colabstage.io.environment import LOCAL_DIR_VARIABLE, PLATFORM_VARIABLE, SYSTEM_ROOT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Platform:
    """The facts about one notebook platform."""

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
    """Whether `google.colab.drive.mount` can work in this process."""
    attended: bool = True
    """Whether a dialogue that this process opens can be answered: false for code that a command line or a scheduler
    runs in a notebook's kernel."""


class _Facts:
    """The present value of each fact that the rows of the table test."""

    def any_set(self, *names: str) -> bool:
        # Empty ones count as set, like Colab's `COLAB_GPU` on a machine without a GPU.
        return any(name in os.environ for name in names)

    def exists(self, path: str) -> bool:
        return self.system(path).exists()

    def system(self, path: str) -> Path:
        """Return an absolute path below the system root, which a practice machine replaces."""
        return system_root() / path.lstrip("/")

    @property
    def home(self) -> Path:
        try:
            return Path(os.environ.get("HOME") or Path.home())
        except RuntimeError:  # a user without an entry, as containers are started with a number
            return self.temp

    @property
    def temp(self) -> Path:
        return Path(os.environ.get("TMPDIR") or self.system("/tmp"))

    @property
    def cache(self) -> Path:
        """Return where the user's own computer keeps files that can be made again."""
        # Not /tmp, which is kept in memory on many systems.
        if os.environ.get("TMPDIR"):
            return self.temp
        home = self.home
        return Path(os.environ.get("XDG_CACHE_HOME") or (home if home == self.temp else home / ".cache"))

    @property
    def kernel(self) -> Any:
        """Return the notebook kernel that this process is; `None` for a script that a notebook started."""
        # Without importing IPython: where it is not imported, this is no kernel.
        get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
        return getattr(get_shell() if get_shell else None, "kernel", None)

    @property
    def attended(self) -> bool:
        """Return whether the kernel's client can answer prompts, which each request to run code declares."""
        get_request = getattr(self.kernel, "get_parent", None)
        request = get_request() if get_request else None
        # `colab exec`, nbclient and papermill declare that they cannot; a button of a widget declares nothing.
        return not isinstance(request, dict) or request.get("content", {}).get("allow_stdin", True) is not False


@dataclass(frozen=True, slots=True)
class _Row:
    """How a platform is recognised, and where its folders are; names as in `Platform`."""

    name: str
    title: str
    holds: Callable[[_Facts], bool]
    fast: Callable[[_Facts], Path] = lambda facts: facts.temp
    persistent: Callable[[_Facts], Path | None] = lambda facts: facts.home
    not_lasting: str = ""


# Images are built from each other's and inherit their marks, so the more specific platform comes first, and plain
# Python, which always matches, last.
_TABLE: tuple[_Row, ...] = (
    # Before Colab: Kaggle's images are built from Colab's and have Colab's variables set.
    _Row(
        "kaggle",
        "Kaggle",
        lambda facts: facts.any_set("KAGGLE_KERNEL_RUN_TYPE"),
        lambda facts: facts.system("/kaggle/temp"),
        lambda _: None,
        "/kaggle/working would take the cache out of the 20 GB of the notebook's output, and lasts only where "
        "persistence is switched on; cache_dir='/kaggle/working/colabstage' uses it all the same",
    ),
    _Row(
        "colab",
        "Google Colab",
        lambda facts: (
            facts.any_set("COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION")
            # The package alone proves nothing: it can be installed, and other packages import it, on any machine.
            or (sys.modules.get("google.colab") is not None and facts.exists("/var/colab/hostname"))
        ),
        lambda facts: facts.system("/content"),
        lambda _: None,
    ),
    _Row(
        "studio-lab",
        "SageMaker Studio Lab",
        lambda _: os.environ.get("HOME") == "/home/studio-lab-user",
    ),
    _Row(
        "paperspace",
        "Paperspace Gradient",
        lambda facts: facts.any_set("PAPERSPACE_NOTEBOOK_REPO_ID", "PAPERSPACE_CLUSTER_ID"),
        persistent=lambda facts: facts.system("/storage" if facts.exists("/storage") else "/notebooks"),
    ),
    _Row(
        "lightning",
        "Lightning Studio",
        lambda facts: (
            (facts.any_set("LIGHTNING_CLOUD_PROJECT_ID") and facts.any_set("LIGHTNING_CLUSTER_ID"))
            or facts.any_set("LIGHTNING_CLOUDSPACE_HOST")
        ),
        lambda facts: facts.system("/cache") if facts.exists("/cache") else facts.temp,
        lambda facts: facts.system("/teamspace/studios/this_studio"),
    ),
    _Row(
        "jupyter",
        "Jupyter",
        lambda facts: facts.any_set("JPY_PARENT_PID") or facts.kernel is not None,
        lambda facts: facts.cache,
    ),
    _Row("python", "Python", lambda _: True, lambda facts: facts.cache),
)

PLATFORM_NAMES: tuple[str, ...] = tuple(row.name for row in _TABLE)
"""Every platform's name, in the order in which they are tested."""


def system_root() -> Path:
    """Return the folder that stands for `/`: `/` itself, unless `COLABSTAGE_SYSTEM_ROOT` names a practice machine's."""
    return Path(os.environ.get(SYSTEM_ROOT_VARIABLE) or "/")


def detect_platform() -> Platform:
    """Tell which platform this process runs on.

    `COLABSTAGE_PLATFORM` overrides the answer, and `COLABSTAGE_LOCAL_DIR` replaces the platform's fast folder.
    """
    facts, named = _Facts(), os.environ.get(PLATFORM_VARIABLE)
    row = next((row for row in _TABLE if (row.name == named if named else row.holds(facts))), None)
    if row is None:
        msg = f"{PLATFORM_VARIABLE}={named!r} names no platform. Known names: {', '.join(PLATFORM_NAMES)}."
        raise OptionError(msg)
    local_dir = os.environ.get(LOCAL_DIR_VARIABLE)
    return Platform(
        name=row.name,
        title=row.title,
        fast_dir=Path(local_dir).expanduser() if local_dir else row.fast(facts),
        persistent_dir=row.persistent(facts),
        not_lasting=row.not_lasting,
        # The permission is requested through the kernel; google.colab looks for the file before it mounts.
        drive_mountable=(
            row.name == "colab" and facts.kernel is not None and facts.attended and facts.exists("/var/colab/hostname")
        ),
        attended=facts.attended,
    )
