"""A Colab to practise on: a stand-in `google.colab` in a process that looks like one of the notebook platforms.

    with simulated_colab(folder, drive=SimulatedDrive(folder / "drive")) as colab:
        mount_drive(folder / "content/drive")

The package asks in the same order, says the same words and raises the same exceptions by name as the real one;
`ColabKnobs` decides what goes wrong. Other `google.*` packages stay importable.

`colab_drive` is the one that matters, with the order of its steps; `colab_modules` holds the others.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from colabstage.simulate.colab_drive import drive_module
from colabstage.simulate.colab_machine import (
    ColabKnobs,
    PracticeDrive,
    Preset,
    SimulatedColab,
    check_preset,
    environment,
    make_machine,
)
from colabstage.simulate.colab_modules import (
    auth_module,
    display_modules,
    errors_module,
    files_module,
    message_module,
    output_module,
    runtime_module,
    userdata_module,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
        colab.wait_unmounted()
        for shell in colab.shells:
            shell.kill()
            shell.wait()
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
    drawing = display_modules(colab)
    package.__all__ = sorted(["auth", "drive", "files", "output", "runtime", *drawing])
    modules = {
        "drive": drive_module(colab),
        "errors": errors_module(colab),
        "files": files_module(colab),
        "auth": auth_module(colab),
        "runtime": runtime_module(colab),
        "output": output_module(colab),
        "userdata": userdata_module(colab),
        "_message": message_module(colab),
        **drawing,
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
