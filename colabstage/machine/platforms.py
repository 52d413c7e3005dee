"""Which notebook platform this is, and where its fast and its persistent folders are: facts only, no policy.

One table, read from top to bottom: the first row whose test holds wins.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import OptionError
from colabstage.io.environment import LOCAL_DIR_VARIABLE, PLATFORM_VARIABLE, SYSTEM_ROOT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
    """A folder that outlives the machine; `None` where there is none. On Colab only a mounted Drive outlives the
    machine (`ask_drives` knows whether and where), so it is `None` there: a folder created in Drive's place while Drive
    is not mounted is lost, and prevents Drive from being mounted.
    """
    not_lasting: str = ""
    """Why `persistent_dir` is `None` although a folder could be used, and what that would cost."""
    drive_mountable: bool = False
    """Whether `google.colab.drive.mount` can work in this process."""
    notes: tuple[str, ...] = ()
    """What the user should know about the platform's limits."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the rows of the table test."""

    environ: Mapping[str, str]
    """The environment."""
    path_exists: Callable[[str], bool]
    """Whether a path exists."""
    modules: Mapping[str, object]
    """The imported modules by name."""

    def any_set(self, *names: str) -> bool:
        # Empty ones count as set, like Colab's `COLAB_GPU` on a machine without a GPU.
        return any(name in self.environ for name in names)

    def exists(self, path: str) -> bool:
        return self.path_exists(str(self.system(path)))

    def system(self, path: str) -> Path:
        """Return an absolute path below the system root, which a practice machine replaces."""
        return system_root(self.environ) / path.lstrip("/")

    def first_existing(self, *paths: str) -> Path:
        """Return the first path that exists, otherwise the last one."""
        return self.system(next((path for path in paths if self.exists(path)), paths[-1]))

    @property
    def home(self) -> Path:
        try:
            return Path(self.environ.get("HOME") or Path.home())
        except RuntimeError:  # a user without an entry, as containers are started with a number
            return self.temp

    @property
    def temp(self) -> Path:
        return Path(self.environ.get("TMPDIR") or self.system("/tmp"))

    @property
    def cache(self) -> Path:
        """Return where the user's own computer keeps files that can be made again."""
        # Not /tmp, which is kept in memory on many systems.
        if self.environ.get("TMPDIR"):
            return self.temp
        home = self.home
        return Path(self.environ.get("XDG_CACHE_HOME") or (home if home == self.temp else home / ".cache"))

    @property
    def in_kernel(self) -> bool:
        """Return whether this process is a notebook kernel, and not a script that a notebook started."""
        # Without importing IPython: where it is not imported, this is no kernel.
        get_shell = getattr(self.modules.get("IPython"), "get_ipython", None)
        return getattr(get_shell() if get_shell else None, "kernel", None) is not None


@dataclass(frozen=True, slots=True)
class _PlatformRow:
    """One platform: how it is recognised, and where its folders are."""

    name: str
    """As in `Platform`."""
    title: str
    """As in `Platform`."""
    holds: Callable[[_Facts], bool]
    """Whether the facts are those of such a machine."""
    fast: Callable[[_Facts], Path] = lambda facts: facts.temp
    """Its fast folder."""
    persistent: Callable[[_Facts], Path | None] = lambda facts: facts.home
    """Its persistent folder, or `None`."""
    notes: tuple[str, ...] = ()
    """As in `Platform`."""
    not_lasting: str = ""
    """As in `Platform`."""


# In the order in which they are asked: images are built on each other's and keep each other's marks, so the more
# specific platform comes first, and plain Python, which fits everywhere, last.
_TABLE: tuple[_PlatformRow, ...] = (
    _PlatformRow(
        "colab-enterprise",
        "Colab Enterprise",
        lambda facts: facts.environ.get("VERTEX_PRODUCT") == "COLAB_ENTERPRISE",
        lambda facts: facts.system("/content") if facts.exists("/content") else facts.home,
        lambda _: None,
        ("Google Drive cannot be mounted here; keep data in a Cloud Storage bucket.",),
    ),
    _PlatformRow(
        "vertex-workbench",
        "Vertex AI Workbench",
        lambda facts: facts.environ.get("VERTEX_PRODUCT") == "WORKBENCH_INSTANCE",
    ),
    # Before Colab: Kaggle's images are built from Colab's and have Colab's variables set.
    _PlatformRow(
        "kaggle",
        "Kaggle",
        lambda facts: facts.any_set("KAGGLE_KERNEL_RUN_TYPE"),
        lambda facts: facts.system("/kaggle/temp"),
        lambda _: None,
        (
            "/kaggle/working holds 20 GB and is saved as the notebook's output; /kaggle/input is read-only.",
            "The free space shown for / is the host's; ask for the folder that is written to.",
        ),
        "/kaggle/working would take the cache out of the 20 GB of the notebook's output, and lasts only where "
        "persistence is switched on; cache_dir='/kaggle/working/colabstage' uses it all the same",
    ),
    _PlatformRow(
        "colab",
        "Google Colab",
        lambda facts: (
            facts.any_set("COLAB_RELEASE_TAG", "COLAB_BACKEND_VERSION")
            # The package alone proves nothing: it can be installed, and other packages import it, on any machine.
            or (facts.modules.get("google.colab") is not None and facts.exists("/var/colab/hostname"))
        ),
        lambda facts: facts.system("/content"),
        lambda _: None,
        (
            "The local disk is lost when the session ends; only Google Drive stays.",
            "Everything read or written through the Drive mount takes the same space on the local disk again.",
        ),
    ),
    _PlatformRow(
        "studio-lab",
        "SageMaker Studio Lab",
        lambda facts: facts.environ.get("HOME") == "/home/studio-lab-user",
        notes=("The home folder is limited to 15 GB; other drives cannot be mounted.",),
    ),
    _PlatformRow(
        "sagemaker-studio",
        "SageMaker Studio",
        lambda facts: facts.any_set("SAGEMAKER_INTERNAL_IMAGE_URI", "SAGEMAKER_APP_TYPE"),
        lambda facts: facts.system("/mnt/sagemaker-nvme") if facts.exists("/mnt/sagemaker-nvme") else facts.temp,
        lambda facts: facts.system("/home/sagemaker-user"),
        ("/opt/ml is reserved by the platform.",),
    ),
    _PlatformRow(
        "paperspace",
        "Paperspace Gradient",
        lambda facts: facts.any_set("PAPERSPACE_NOTEBOOK_REPO_ID", "PAPERSPACE_CLUSTER_ID"),
        persistent=lambda facts: facts.first_existing("/storage", "/notebooks"),
        notes=("/storage is a network file system that the whole team shares.",),
    ),
    _PlatformRow(
        "lightning",
        "Lightning Studio",
        lambda facts: (
            (facts.any_set("LIGHTNING_CLOUD_PROJECT_ID") and facts.any_set("LIGHTNING_CLUSTER_ID"))
            or facts.any_set("LIGHTNING_CLOUDSPACE_HOST")
        ),
        lambda facts: facts.system("/cache") if facts.exists("/cache") else facts.temp,
        lambda facts: facts.system("/teamspace/studios/this_studio"),
    ),
    _PlatformRow(
        "databricks",
        "Databricks",
        lambda facts: facts.any_set("DATABRICKS_RUNTIME_VERSION"),
        lambda facts: facts.system("/local_disk0") if facts.exists("/local_disk0") else facts.temp,
        lambda facts: facts.system("/dbfs") if facts.exists("/dbfs") else None,
        ("Volumes are under /Volumes/<catalog>/<schema>/<volume>; name one to keep a cache there.",),
    ),
    _PlatformRow(
        "deepnote",
        "Deepnote",
        lambda facts: facts.any_set("DEEPNOTE_PROJECT_ID"),
        persistent=lambda facts: facts.system("/work"),
    ),
    _PlatformRow(
        "codespaces",
        "GitHub Codespaces",
        lambda facts: facts.any_set("CODESPACES"),
        persistent=lambda facts: facts.system("/workspaces"),
        notes=("Only /workspaces is kept when the container is rebuilt.",),
    ),
    _PlatformRow("datalore", "Datalore", lambda facts: facts.any_set("DATALORE_USER")),
    _PlatformRow("hex", "Hex", lambda facts: facts.any_set("HEX_PROJECT_ID")),
    _PlatformRow("cloud-shell", "Google Cloud Shell", lambda facts: facts.any_set("CLOUD_SHELL")),
    _PlatformRow(
        "jupyter",
        "Jupyter",
        lambda facts: facts.any_set("JPY_PARENT_PID") or facts.in_kernel,
        lambda facts: facts.cache,
    ),
    _PlatformRow("python", "Python", lambda _: True, lambda facts: facts.cache),
)

PLATFORM_NAMES: tuple[str, ...] = tuple(row.name for row in _TABLE)
"""Every platform's name, in the order in which they are tested."""


def system_root(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder that stands for `/`: `/` itself, unless `COLABSTAGE_SYSTEM_ROOT` names a practice machine's."""
    return Path((os.environ if environ is None else environ).get(SYSTEM_ROOT_VARIABLE) or "/")


def detect_platform(
    *,
    environ: Mapping[str, str] | None = None,
    path_exists: Callable[[str], bool] | None = None,
    modules: Mapping[str, object] | None = None,
) -> Platform:
    """Tell which platform this process runs on.

    `COLABSTAGE_PLATFORM` overrides the answer, and `COLABSTAGE_LOCAL_DIR` replaces the platform's fast folder.

    Args:
        environ: the environment; this process's by default, read now.
        path_exists: whether a path exists; by default on the real disk.
        modules: the imported modules by name; this process's by default.

    Raises:
        OptionError: `COLABSTAGE_PLATFORM` has a value that names no platform.

    >>> detect_platform(environ={"KAGGLE_KERNEL_RUN_TYPE": "Batch", "COLAB_RELEASE_TAG": "release"}).name
    'kaggle'
    """
    facts = _Facts(
        environ=os.environ if environ is None else environ,
        path_exists=os.path.exists if path_exists is None else path_exists,
        modules=sys.modules if modules is None else modules,
    )
    named = facts.environ.get(PLATFORM_VARIABLE)
    row = next((row for row in _TABLE if (row.name == named if named else row.holds(facts))), None)
    if row is None:
        msg = f"{PLATFORM_VARIABLE}={named!r} names no platform. Known names: {', '.join(PLATFORM_NAMES)}."
        raise OptionError(msg)
    local_dir = facts.environ.get(LOCAL_DIR_VARIABLE)
    return Platform(
        name=row.name,
        title=row.title,
        fast_dir=Path(local_dir).expanduser() if local_dir else row.fast(facts),
        persistent_dir=row.persistent(facts),
        # The permission is asked for through the kernel; the file is what google.colab looks for before it mounts.
        drive_mountable=row.name == "colab" and facts.in_kernel and facts.exists("/var/colab/hostname"),
        notes=row.notes,
        not_lasting=row.not_lasting,
    )
