"""A Colab to practise on: a stand-in `google.colab` in a process that looks like one of the notebook platforms.

    with simulated_colab(folder, drive=SimulatedDrive(folder / "drive")) as colab:
        mount_drive(folder / "content/drive")

The package asks in the same order, says the same words and raises the same exceptions by name as the real one;
`ColabKnobs` decides what goes wrong. Other `google.*` packages stay importable.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from colabstage.errors import OptionError
from colabstage.simulate import colab_modules
from colabstage.simulate.colab_drive import drive_module
from colabstage.simulate.colab_machine import Preset, check_preset, environment, make_machine, wipe_machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class PracticeDrive(Protocol):
    """What a Drive must be able to do to stand behind `google.colab.drive`; `SimulatedDrive` is one."""

    @property
    def mountpoint(self) -> Path | None:
        """Where it is mounted."""

    def mount(self, mountpoint: Path, *, readonly: bool = False) -> object:
        """Mount it at an empty folder."""

    def unmount(self) -> None:
        """Take the mount away; what is not uploaded waits in the cache."""

    def flush(self, *, timeout_s: float) -> bool:
        """Upload everything; whether that was done in time."""

    def kill(self) -> None:
        """End the client as SIGKILL does; the mount stays, dead."""

    def new_machine(self) -> None:
        """Lose the cache with everything that waits in it, as with a new machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColabKnobs:
    """What the practice Colab does when it is asked.

    `auth`: how the permission dialogue ends: granted, refused, or not answered in time.
    `mount`: what the Drive client does when it starts.
    `flush`: how `flush_and_unmount` ends. `remount`: how a mount after a flush ends.
    `page_is_open`: whether there is a browser page to answer requests for secrets.
    `secrets`, `secrets_not_granted`: the secrets by name, and those this notebook may not read.
    `uploads`: what the person chooses in an upload dialogue, bytes by file name.
    """

    auth: Literal["granted", "refused", "silent"] = "granted"
    mount: Literal["works", "root_too_large", "policy_disabled", "client_exits", "hangs", "dies"] = "works"
    flush: Literal["works", "fails"] = "works"
    remount: Literal["works", "fails"] = "works"
    page_is_open: bool = True
    secrets: Mapping[str, str] = field(default_factory=dict)
    secrets_not_granted: frozenset[str] = frozenset()
    uploads: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class SimulatedColab:
    """The practice machine behind the stand-in package, and what was asked of it.

    `knobs` may be replaced at any time. `calls`: the calls in their order, as `module.function`.
    `auth_requests`: how often a permission was asked for. `downloads`: what arrived in the browser.
    """

    root: Path
    preset: Preset
    drive: PracticeDrive | None
    knobs: ColabKnobs
    calls: list[str] = field(default_factory=list)
    auth_requests: int = 0
    downloads: dict[str, bytes] = field(default_factory=dict)
    signed_in: bool = False
    was_flushed: bool = False

    def marker(self, path: str) -> Path:
        """Where an absolute path of the machine lies."""
        return self.root / path.lstrip("/")

    def practice_drive(self) -> PracticeDrive:
        """The Drive.

        Raises:
            OptionError: the machine was made without one.
        """
        if self.drive is None:
            msg = (
                "This practice machine has no Drive to mount. Pass one: simulated_colab(root, drive=SimulatedDrive(…))."
            )
            raise OptionError(msg)
        return self.drive

    def request_auth(self, kind: str, *, timeout_s: float) -> bool:
        """Ask the front end for a permission, as far as there is a kernel to ask through; whether it was granted.

        Silence is answered at once: nobody wants to practise waiting.
        """
        get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
        shell: Any = get_shell() if get_shell else None
        _ = shell.kernel  # outside a kernel the shell is None, and this fails as it does on Colab
        self.auth_requests += 1
        self.calls.append(f"request_auth {kind}")
        if self.knobs.auth == "refused":
            msg = "Error: credential propagation was unsuccessful"
            raise colab_modules.MessageError(msg)
        return self.knobs.auth == "granted"

    def delete_machine(self) -> None:
        """'Disconnect and delete runtime': the disk, the mount and what was not uploaded are gone; a fresh machine
        stands in its place. (A mere restart of the kernel changes nothing here.)"""
        if self.drive is not None:
            if self.drive.mountpoint is not None:
                self.drive.kill()
                self.drive.unmount()
            self.drive.new_machine()
        self.signed_in = self.was_flushed = False
        wipe_machine(self.preset, self.root)


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
        sys.modules.update(_absent() if colab.preset == "local" else _present(colab))
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
        "errors": colab_modules.errors_module(colab),
        "files": colab_modules.files_module(colab),
        "auth": colab_modules.auth_module(colab),
        "runtime": colab_modules.runtime_module(colab),
        "output": colab_modules.output_module(colab),
        "userdata": colab_modules.userdata_module(colab),
        "_message": colab_modules.message_module(colab),
    }
    for name, module in modules.items():
        if name != "userdata":  # the real package does not import it either
            setattr(package, name, module)
    return {"google.colab": package} | {f"google.colab.{name}": module for name, module in modules.items()}


def _absent() -> dict[str, Any]:
    return {"google.colab": None}  # Python's own way to say that a module cannot be imported


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
