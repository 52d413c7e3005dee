"""A Colab to practise on: a stand-in `google.colab` in a process that looks like one of the notebook platforms.

    with simulated_colab(folder, drive=SimulatedDrive(folder / "drive")) as colab:
        mount_drive(folder / "content/drive")

The package asks in the same order, says the same words and raises the same exceptions by name as the real one;
`ColabKnobs` decides what goes wrong. Other `google.*` packages stay importable.

`google.colab.drive` is written from the observed behaviour of the real module, step by step as it goes. That a
permission is asked for before anything is looked at, that a forced remount kills the client, and that the mount point
is judged last, are all on purpose: they are what code that mounts Drive has to live with.
"""

# ruff: noqa: ARG001 - the parameters are those of the real functions, used here or not
from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from colabstage.simulate.colab_machine import (
    AuthorizationError,
    ColabKnobs,
    Error,
    MessageError,
    NotebookAccessError,
    PracticeDrive,
    Preset,
    RuntimeManagementError,
    SecretNotFoundError,
    SimulatedColab,
    TimeoutException,
    WidgetException,
    check_preset,
    environment,
    make_machine,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
_WIDGETS_VERSION = "5.0.0a"


class TIMEOUT(Exception):  # noqa: N818 - the name of the exception it stands for
    """What pexpect raises when the client says nothing; code that knows it only by name must cope."""


TIMEOUT.__module__ = "pexpect.exceptions"


@dataclass(frozen=True, slots=True)
class _Env:
    """What the real module reads from the environment once."""

    home: str
    """The home of the person."""
    root_dir: str
    """The folder of the client."""


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
    """Ask as `os.path.isdir` does, for which a dead mount is simply not there."""
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


def errors_module(_: SimulatedColab) -> ModuleType:
    """Build `google.colab.errors`."""
    module: Any = ModuleType("google.colab.errors")
    for kind in (Error, AuthorizationError, RuntimeManagementError, WidgetException):
        setattr(module, kind.__name__, kind)
    return module  # type: ignore[no-any-return]


def message_module(colab: SimulatedColab) -> ModuleType:
    """Build `google.colab._message`."""

    def blocking_request(request_type: str, request: Any = "", timeout_sec: float = 5, parent: Any = None) -> Any:
        colab.calls.append(f"_message.{request_type}")
        answered = colab.request_auth(str((request or {}).get("authType", "")), timeout_s=timeout_sec)
        return {} if answered else None

    module: Any = ModuleType("google.colab._message")
    module.MessageError, module.blocking_request = MessageError, blocking_request
    return module  # type: ignore[no-any-return]


def userdata_module(colab: SimulatedColab) -> ModuleType:
    """Build `google.colab.userdata`."""
    lock = threading.Lock()

    def get(key: Any) -> str:
        if not isinstance(key, str) or not key:
            msg = "Please enter a valid secret name"
            raise ValueError(msg)
        if any(character.isspace() for character in key):
            msg = "Secret name cannot contain spaces or whitespace"
            raise ValueError(msg)
        with lock:
            colab.calls.append("userdata.get")
            if not colab.knobs.page_is_open:
                msg = f"Requesting secret {key} timed out. Secrets can only be fetched when running from the Colab UI."
                raise TimeoutException(msg)
            if key not in colab.knobs.secrets:
                msg = f"Secret {key} does not exist."
                raise SecretNotFoundError(msg)
            if key in colab.knobs.secrets_not_granted:
                msg = f"Notebook does not have access to secret {key}"
                raise NotebookAccessError(msg)
            return colab.knobs.secrets[key]

    module: Any = ModuleType("google.colab.userdata")
    module.get, module.SecretNotFoundError = get, SecretNotFoundError
    module.NotebookAccessError, module.TimeoutException = NotebookAccessError, TimeoutException
    return module  # type: ignore[no-any-return]


def files_module(colab: SimulatedColab) -> ModuleType:
    """Build `google.colab.files`: the browser's side is `knobs.uploads` (what is chosen) and `downloads` (what
    arrives)."""

    def upload(target_dir: str = "") -> dict[str, bytes]:
        colab.calls.append("files.upload")
        saved = {}
        for name, data in colab.knobs.uploads.items():
            target = _free_name(Path(target_dir, name))
            target.write_bytes(data)
            print(f"Saving {name} to {target}")
            saved[str(target)] = data
        return saved

    def upload_file(filename: str) -> None:
        colab.calls.append("files.upload_file")
        Path(filename).write_bytes(next(iter(colab.knobs.uploads.values()), b""))

    def download(filename: str) -> None:
        colab.calls.append("files.download")
        if not Path(filename).exists():
            msg = f"Cannot find file: {filename}"
            raise FileNotFoundError(msg)
        colab.downloads[Path(filename).name] = Path(filename).read_bytes()

    def view(filepath: str) -> None:
        colab.calls.append("files.view")
        if not Path(filepath).exists():
            msg = f"Cannot find file: {filepath}"
            raise FileNotFoundError(msg)

    module: Any = ModuleType("google.colab.files")
    module.upload, module.upload_file, module.download, module.view = upload, upload_file, download, view
    return module  # type: ignore[no-any-return]


def _free_name(path: Path) -> Path:
    """Find a name that is free: `name.ext`, else `name (1).ext`, `name (2).ext`, … ."""
    candidate, number = path, 0
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.stem} ({number}){path.suffix}")
    return candidate


def auth_module(colab: SimulatedColab) -> ModuleType:
    """Build `google.colab.auth`."""

    def authenticate_user(clear_output: bool = True, project_id: str | None = None) -> None:
        colab.calls.append("auth.authenticate_user")
        if os.environ.get("VERTEX_PRODUCT") == "COLAB_ENTERPRISE":
            print("WARNING: google.colab.auth.authenticate_user() is not supported in Colab Enterprise.")
            return
        if colab.knobs.auth != "granted":
            msg = "Failed to fetch user credentials"
            raise AuthorizationError(msg)
        colab.signed_in = True

    module: Any = ModuleType("google.colab.auth")
    module.authenticate_user = authenticate_user
    return module  # type: ignore[no-any-return]


def runtime_module(colab: SimulatedColab) -> ModuleType:
    """Build `google.colab.runtime`."""

    def unassign() -> None:
        colab.calls.append("runtime.unassign")
        if not os.environ.get("TBE_RUNTIME_ADDR"):
            msg = "Kernel does not support runtime management"
            raise RuntimeManagementError(msg)
        colab.delete_machine()

    module: Any = ModuleType("google.colab.runtime")
    module.unassign = unassign
    return module  # type: ignore[no-any-return]


def output_module(colab: SimulatedColab) -> ModuleType:
    """Build `google.colab.output`, which notes what was asked for."""

    def enable_custom_widget_manager(version: str = _WIDGETS_VERSION) -> None:
        if version != _WIDGETS_VERSION:
            msg = f"Unknown widgets version: {version}"
            raise ValueError(msg)
        colab.calls.append("output.enable_custom_widget_manager")

    def disable_custom_widget_manager() -> None:
        colab.calls.append("output.disable_custom_widget_manager")

    def clear(wait: Any = False, output_tags: Any = ()) -> None:
        if not isinstance(wait, bool):
            msg = f"wait must be a bool, got {wait!r}"
            raise ValueError(msg)  # noqa: TRY004 - as the real one does
        colab.calls.append("output.clear")

    def eval_js(script: str, ignore_result: bool = False, timeout_sec: float | None = None) -> Any:
        colab.calls.append("output.eval_js")

    def register_callback(function_name: str, callback: Callable[..., Any]) -> None:
        colab.calls.append(f"output.register_callback {function_name}")

    @contextlib.contextmanager
    def temporary() -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def use_tags(tags: Any, append: bool = True) -> Iterator[None]:
        yield

    module: Any = ModuleType("google.colab.output")
    module.enable_custom_widget_manager = enable_custom_widget_manager
    module.disable_custom_widget_manager = disable_custom_widget_manager
    module.clear, module.eval_js, module.register_callback = clear, eval_js, register_callback
    module.temporary, module.use_tags = temporary, use_tags
    return module  # type: ignore[no-any-return]


@contextlib.contextmanager
def simulated_colab(
    root: Path, *, preset: Preset = "colab_cpu", drive: PracticeDrive | None = None, knobs: ColabKnobs | None = None
) -> Iterator[SimulatedColab]:
    """Make this process look like one on a notebook platform, `google.colab` included; undone at the end.

    Args:
        root: a folder that stands for `/` on that machine: `root/content`, `root/var/colab/hostname`. Only Drives
            mounted below it are found by `find_drive`.
        preset: `colab_cpu`, `colab_gpu`, `colab_enterprise`, `colab_subprocess` (a script that a notebook started: no
            kernel), `kaggle` (which carries some of Colab's variables), `local` (no `google.colab` at all).
        drive: what `drive.mount` mounts; unmounted at the end.
        knobs: what goes wrong.

    Raises:
        OptionError: `preset` is no such word.
    """
    check_preset(preset)
    root = root.resolve()
    colab = SimulatedColab(root=root, preset=preset, drive=drive, knobs=knobs or ColabKnobs())
    make_machine(preset, root)
    try:
        with environment(preset, root), _shell(has_kernel=preset not in {"colab_subprocess", "local"}), _package(colab):
            yield colab
    finally:
        if drive is not None and drive.mountpoint is not None:
            drive.unmount()


@contextlib.contextmanager
def _package(colab: SimulatedColab) -> Iterator[None]:
    """Put the stand-in package into `sys.modules`, beside the other `google.*` packages; or its absence."""
    with _modules_restored("google", "google.colab"):
        google: Any = importlib.import_module("google") if find_spec("google") else _empty_package("google")
        before = getattr(google, "colab", None)
        sys.modules["google"] = google
        # `None` is Python's own way to say that a module cannot be imported.
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
    package.__version__ = "0.0.1a2"
    package.__all__ = ["auth", "drive", "errors", "files", "output", "runtime"]
    modules = {
        "drive": drive_module(colab),
        "errors": errors_module(colab),
        "files": files_module(colab),
        "auth": auth_module(colab),
        "runtime": runtime_module(colab),
        "output": output_module(colab),
        "userdata": userdata_module(colab),
        "_message": message_module(colab),
    }
    for name, module in modules.items():
        if name != "userdata":  # the real package does not import it either
            setattr(package, name, module)
    return {"google.colab": package} | {f"google.colab.{name}": module for name, module in modules.items()}


def _empty_package(name: str) -> ModuleType:
    package = ModuleType(name)
    package.__path__ = []
    return package


@contextlib.contextmanager
def _shell(*, has_kernel: bool) -> Iterator[None]:
    """Make `IPython.get_ipython()` answer as in a kernel, or as outside one; the rest of IPython stays what it is."""
    real: Any = importlib.import_module("IPython") if find_spec("IPython") else None
    kernel_runs = getattr(real.get_ipython() if real else None, "kernel", None) is not None
    if kernel_runs == has_kernel:
        yield
        return
    stand_in: Any = ModuleType("IPython")
    stand_in.__path__ = list(real.__path__) if real else []
    # No `IPKernelApp` in the config: progress bars must not try to draw widgets here.
    shell = SimpleNamespace(kernel=SimpleNamespace(), config={}) if has_kernel else None
    stand_in.get_ipython = lambda: shell
    if real:
        stand_in.__getattr__ = lambda name: getattr(real, name)
    with _modules_restored("IPython"):
        sys.modules["IPython"] = stand_in
        yield


@contextlib.contextmanager
def _modules_restored(*names: str) -> Iterator[None]:
    """Put the modules of these names, and those of `google.colab`, back as they were."""

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
