"""A simulated notebook machine: requests to it and its responses, and the variables, marker files and folders of each
platform.

Absolute paths of the platform (`/var/colab/hostname`, `/content`) are under a root folder of the practice machine,
which `COLABSTAGE_SYSTEM_ROOT` makes known.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import subprocess
    import threading
    from collections.abc import Iterator
    from pathlib import Path

Preset = Literal["colab_cpu", "colab_gpu", "colab_enterprise", "colab_subprocess", "kaggle", "local"]

# These identify platforms, so the real machine's own must be hidden.
_TELLTALES = re.compile(
    "COLAB|KAGGLE|VERTEX_|TBE_|SAGEMAKER_|PAPERSPACE_|LIGHTNING_|DATABRICKS_|DEEPNOTE_|CODESPACES|DATALORE_|HEX_|"
    "CLOUD_SHELL|JPY_PARENT_PID|CLOUDSDK_CONFIG|USE_AUTH_EPHEM|ENABLE_DIRECTORYPREFETCHER"
)
# The form since 2026, from which programs take the date; before, it was `release-colab_20250902-…`.
_RELEASE = "release-colab-external-images_20260909-060100_RC00"


def variables_of(preset: Preset, root: Path) -> dict[str, str]:
    """Return the environment variables that the platform sets, with its folders under `root`."""
    practice = {"COLABSTAGE_SYSTEM_ROOT": str(root)}
    if preset == "local":
        return practice
    home = {"HOME": str(root / "root"), "COLAB_RELEASE_TAG": _RELEASE}
    if preset == "kaggle":
        # Its images are based on Colab's, and keep this.
        home["COLAB_IMAGE_TYPE"] = "cpu"
        proxy = {"KAGGLE_DATA_PROXY_URL": "https://dp.kaggle.net", "KAGGLE_URL_BASE": "https://www.kaggle.com"}
        return practice | home | proxy | {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "JPY_PARENT_PID": "9"}
    return practice | home | _colab_variables(preset, root)


def _colab_variables(preset: Preset, root: Path) -> dict[str, str]:
    variables = {
        "COLAB_GPU": "1" if preset == "colab_gpu" else "",  # set but empty on a machine without a GPU
        "COLAB_TPU_1VM": "",
        "COLAB_IMAGE_TYPE": "gpu" if preset == "colab_gpu" else "cpu",  # exists since 2026
        "COLAB_BACKEND_VERSION": "next",
        "COLAB_JUPYTER_TRANSPORT": "ipc",
        "COLAB_JUPYTER_IP": "172.28.0.12",
        "COLAB_NOTEBOOK_ID": "practice",
        "COLAB_FILE_HANDLER_ADDR": "localhost:3453",
        "TBE_CREDS_ADDR": "172.28.0.1:8008",
        "TBE_EPHEM_CREDS_ADDR": "172.28.0.1:8009",
        "TBE_RUNTIME_ADDR": "172.28.0.1:8011",
        "USE_AUTH_EPHEM": "1",
        "CLOUDSDK_CONFIG": str(root / "content/.config"),
        "ENABLE_DIRECTORYPREFETCHER": "1",
        "JPY_PARENT_PID": "94",
        "PYTHONUTF8": "1",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    if find_spec("matplotlib_inline"):
        variables["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    if preset == "colab_enterprise":
        variables["VERTEX_PRODUCT"] = "COLAB_ENTERPRISE"
    return variables


def make_machine(preset: Preset, root: Path) -> None:
    """Create the folders and marker files of a fresh machine; existing ones stay."""
    root.mkdir(parents=True, exist_ok=True)
    if preset == "local":
        return
    folders = ("root", "kaggle/working", "kaggle/input") if preset == "kaggle" else ("root", "content/.config")
    for name in folders:
        (root / name).mkdir(parents=True, exist_ok=True)
    if preset != "kaggle":
        (root / "var/colab").mkdir(parents=True, exist_ok=True)
        (root / "var/colab/hostname").write_text("m-s-practice\n", encoding="ascii")


@contextlib.contextmanager
def environment(preset: Preset, root: Path) -> Iterator[None]:
    """Give this process the platform's environment variables; restore its own afterwards."""
    before = dict(os.environ)
    try:
        # Otherwise a test in such a platform's container would be on two platforms at once.
        for name in [name for name in os.environ if _TELLTALES.match(name)]:
            del os.environ[name]
        os.environ.update(variables_of(preset, root))
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class MessageError(Exception):
    """`google.colab._message.MessageError`: the front end responded with an error."""


MessageError.__module__ = "google.colab._message"


class WaitsForEverError(RuntimeError):
    """Stands for an endless wait, which no test can make: a request without response and limit."""


class PracticeDrive(Protocol):
    """The methods that a Drive needs behind `google.colab.drive`; `SimulatedDrive` is one."""

    @property
    def mountpoint(self) -> Path | None:
        """Return where it is mounted."""

    def mount(self, mountpoint: Path, *, readonly: bool = False) -> object:
        """Mount it at an empty folder."""

    def unmount(self) -> None:
        """Remove the mount; uploads that are pending stay in the cache."""

    def flush(self, *, timeout_s: float) -> bool:
        """Upload everything; return whether that was done in time."""

    def kill(self) -> None:
        """End the client as SIGKILL does; the mount stays, dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColabKnobs:
    """How the practice Colab responds."""

    auth: Literal["granted", "refused", "silent"] = "granted"
    """How the permission dialogue ends: granted, refused, or without an answer in time."""
    waits_really: bool = False
    """Whether an unanswered dialogue takes as long as the request allows; otherwise it ends at once."""
    mount: Literal["works", "root_too_large", "policy_disabled", "client_exits", "hangs", "dies"] = "works"
    """What the Drive client does at its start."""
    flush: Literal["works", "fails"] = "works"
    """How `flush_and_unmount` ends."""
    unmount_lag_s: float = 0.0
    """Seconds from the end of a flush until the mount is gone."""
    remount: Literal["works", "fails"] = "works"
    """How a mount after a flush ends."""


@dataclass(slots=True)
class SimulatedColab:
    """The practice machine behind the stand-in package, and the requests to it.

    `knobs` may be replaced at any time.
    """

    root: Path
    """The folder that stands for `/`."""
    preset: Preset
    """Which platform it looks like."""
    drive: PracticeDrive | None
    """What `drive.mount` mounts; `None` for a machine without one."""
    knobs: ColabKnobs
    """What goes wrong; may be replaced at any time."""
    calls: list[str] = field(default_factory=list)
    """The calls in order, as `module.function`."""
    auth_requests: int = 0
    """How often a permission was requested."""
    was_flushed: bool = False
    """Whether the Drive was flushed, after which a mount may fail."""
    waits: list[float | None] = field(default_factory=list)
    """The seconds that each request to the front end would wait; 0 and `None` mean for ever."""
    shells: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The shell that the client has left in a mount."""
    leaving: threading.Timer | None = None
    """The pending end of a flushed mount."""

    def marker(self, path: str) -> Path:
        """Return the path that stands for an absolute path of the machine."""
        return self.root / path.lstrip("/")

    def wait_unmounted(self) -> None:
        """Wait for a mount that is being removed."""
        if self.leaving is not None:
            self.leaving.join()
            self.leaving = None

    def practice_drive(self) -> PracticeDrive:
        """Return the machine's Drive, which it must have."""
        assert self.drive is not None, "pass one: simulated_colab(root, drive=SimulatedDrive(…))"
        return self.drive

    def request_auth(self, kind: str, *, timeout_s: float | None) -> bool:
        """Ask the front end for a permission, if there is a kernel to ask through; return whether it was granted.

        Silence ends at once, unless `knobs.waits_really`.

        Raises:
            WaitsForEverError: nobody answers, and the request has no limit.
        """
        get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
        shell: Any = get_shell() if get_shell else None
        _ = shell.kernel  # outside a kernel the shell is None, so this fails as on Colab
        self.auth_requests += 1
        self.calls.append(f"request_auth {kind}")
        if self.knobs.auth == "refused":
            msg = "Error: credential propagation was unsuccessful"
            raise MessageError(msg)
        self.waits.append(timeout_s)
        if self.knobs.auth == "silent" and not timeout_s:
            msg = f"The request {kind!r} would wait for ever."
            raise WaitsForEverError(msg)
        if self.knobs.auth == "silent" and self.knobs.waits_really and timeout_s is not None:
            time.sleep(timeout_s)
        return self.knobs.auth == "granted"
