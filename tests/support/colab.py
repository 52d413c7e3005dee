"""A Colab to practise on: a stand-in `google.colab` in a process that looks like one of the notebook platforms.

    with simulated_colab(folder, drive=SimulatedDrive(folder / "drive")) as colab:
        mount_drive(folder / "content/drive")

`google.colab.drive`, the one module that colabstage uses, asks in the same order, says the same words and raises the
same exceptions by name as the real one; `ColabKnobs` decides what goes wrong. Other `google.*` packages stay
importable.
"""

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

from simulated_drive.drive import SimulatedDrive

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

Preset = Literal["colab_cpu", "colab_gpu", "colab_enterprise", "colab_subprocess", "kaggle"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ColabKnobs:
    """How the practice Colab responds."""

    auth: Literal["granted", "refused", "silent"] = "granted"
    """How the permission dialogue ends: granted, refused, or, after the time that the request allows, unanswered."""
    mount: Literal["works", "root_too_large", "policy_disabled", "client_exits"] = "works"
    """What the Drive client does at its start."""


@dataclass(slots=True)
class SimulatedColab:
    """The practice machine behind the stand-in package, and the requests to it."""

    root: Path
    """The folder that stands for `/`."""
    drive: SimulatedDrive | None
    """What `drive.mount` mounts; `None` for a machine without one."""
    knobs: ColabKnobs
    """What goes wrong; may be replaced at any time."""
    calls: list[str] = field(default_factory=list)
    """The calls in order, as `module.function`."""
    shells: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The shell that the client has left in a mount."""

    def request_auth(self, kind: str, *, timeout_s: int) -> bool:
        """Ask the front end for a permission, if there is a kernel to ask through; return whether it was granted."""
        get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
        shell: Any = get_shell() if get_shell else None
        _ = shell.kernel  # outside a kernel the shell is None, so this fails as on Colab
        self.calls.append(f"request_auth {kind}")
        if self.knobs.auth == "refused":
            msg = "Error: credential propagation was unsuccessful"
            raise MessageError(msg)
        assert timeout_s > 0, "this request would wait for ever"
        return self.knobs.auth == "granted"


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
        if not colab.drive.flush(timeout_s=int(timeout_ms / 1000)):
            msg = "flush_and_unmount failed"
            raise ValueError(msg)
        colab.drive.unmount()

    module: Any = ModuleType("google.colab.drive")
    module.__all__ = ["flush_and_unmount", "mount"]
    module.mount, module.flush_and_unmount = mount, flush_and_unmount
    return module  # type: ignore[no-any-return]


def _check_environment(colab: SimulatedColab, mountpoint: str) -> None:
    if not (colab.root / "var/colab/hostname").exists():
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
    if problem == "policy_disabled":
        raise ValueError(_POLICY)
    # On a dead mount that could not be removed, no client can mount.
    if problem in {"client_exits", "root_too_large"} or not answered or _is_mounted(place):
        said = log.read_text(encoding="utf-8", errors="replace")
        msg = "mount failed" + (_ROOT_TIMEOUT if _ROOT_TIMEOUT_MARK in said else "")
        raise ValueError(msg)
    place.mkdir(exist_ok=True)
    assert colab.drive is not None, "pass one: simulated_colab(root, drive=SimulatedDrive(…))"
    colab.drive.mount(place, readonly=readonly)


@contextlib.contextmanager
def simulated_colab(
    root: Path, *, preset: Preset = "colab_cpu", drive: SimulatedDrive | None = None, knobs: ColabKnobs | None = None
) -> Iterator[SimulatedColab]:
    """Make this process look like one on a notebook platform, `google.colab` included; undone at the end.

    Args:
        root: a folder that stands for `/` on that machine: `root/content`, `root/var/colab/hostname`. Only Drives
            mounted below it are found by `ask_drives`.
        preset: `colab_cpu`, `colab_gpu`, `colab_enterprise`, `colab_subprocess` (a script that a notebook started: no
            kernel), `kaggle` (which carries some of Colab's variables).
        drive: what `drive.mount` mounts; unmounted at the end.
        knobs: what goes wrong.
    """
    root = root.resolve()
    colab = SimulatedColab(root=root, drive=drive, knobs=knobs or ColabKnobs())
    make_machine(preset, root)
    try:
        with environment(preset, root), _stand_in_shell(has_kernel=preset != "colab_subprocess"), _package(colab):
            yield colab
    finally:
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
        sys.modules.update(_present(colab))
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
