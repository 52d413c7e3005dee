"""The facts about this machine and a dataset that `doctor` judges, as plain JSON values, and how they are collected.
This is the only part of `doctor` that touches anything, always under a deadline.

A dataset's path is examined in a process of its own, because a process that touches a hanging mount hangs too. Run as a
program with the path, this module prints `DatasetFacts` as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from colabstage.diagnose.gpu import GpuReading, open_gpus
from colabstage.errors import NotSupportedHereError
from colabstage.io.arguments import whereabouts
from colabstage.io.environment import current_folder
from colabstage.io.packages import ACCELERATORS, installed_version
from colabstage.io.pipeline import in_thread
from colabstage.io.units import format_duration
from colabstage.machine.mounts import (
    DRIVE_TYPES,
    Mount,
    ask_children,
    follow_links,
    list_mounts,
    mount_of,
    probe_mount,
    slow_reason,
)
from colabstage.machine.platforms import detect_platform, system_root
from colabstage.machine.resources import free_space, read_resources

if TYPE_CHECKING:
    from collections.abc import Mapping


PACKAGES = ("numpy", "h5py", "torch", *ACCELERATORS)
# A machine with more mounts than this is not a notebook, and so many probes would slow each other down.
_MOST_MOUNTS = 16


@dataclass(frozen=True, slots=True)
class MountFacts:
    """A slow mount: why it is slow, how it answered (as `MountProbe`), and how long the answer took."""

    mountpoint: str
    kind: str
    state: str
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """The facts about the given path."""

    path: str
    state: Literal["missing", "unreachable", "file", "folder"]
    slow_mount: str | None = None
    problem: str | None = None
    instead: str = ""
    """A sentence on what exists instead of a missing path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """All facts for the checks; platform, cores and memory as in `detect_platform` and `read_resources`."""

    platform: str
    title: str
    system: str
    python: str
    fast_dir: str
    fast_dir_problem: str | None = None
    """Why nothing can be written there; `None` if it is writable."""
    fast_dir_mount: str | None = None
    """Why that folder is slow ("Google Drive"); `None` on a local disk."""
    free_bytes: int | None
    cores: int
    memory_bytes: int
    free_memory_bytes: int
    folder: str
    folder_mount: str | None
    mounts: tuple[MountFacts, ...] = ()
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """The versions of packages, as loaded in this process, otherwise as installed; `None` for missing ones."""
    gpus: tuple[GpuReading, ...] = ()
    gpu_problem: str | None = None
    pid: int = 0
    dataset: DatasetFacts | None = None


def inspect_dataset(path: Path, *, timeout_s: float) -> DatasetFacts:
    """Examine an absolute path in a child process, which is ended after `timeout_s` seconds."""
    # The child runs our code from wherever it is, including a checkout that is not installed.
    root = str(Path(__file__).parents[2])
    answers = ask_children(
        [[sys.executable, "-m", __name__, os.fspath(path)]],
        timeout_s,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))},
    )
    problem = "no answer before the deadline"
    if answers is not None:
        (answer,) = answers
        if not answer.returncode:
            return DatasetFacts(**json.loads(answer.stdout))
        # The last line of a traceback says what went wrong.
        problem = next(
            reversed(answer.stderr.decode(errors="replace").strip().splitlines()), f"exit code {answer.returncode}"
        )
    return DatasetFacts(str(path), "unreachable", slow_mount=slow_reason(mount_of(path)), problem=problem)


def _inspect_here(path: Path) -> DatasetFacts:
    """Examine a path in this process; takes as long as its mount."""
    facts = DatasetFacts(str(path), "missing", slow_mount=slow_reason(mount_of(path)))
    try:
        if path.is_dir():
            next(path.iterdir(), None)
            return replace(facts, state="folder")
        if not path.exists():
            return replace(facts, instead=whereabouts(path))
        # Opened, because permissions, and a mount that fails at each read, show only then.
        with path.open("rb") as file:
            file.read(1)
        return replace(facts, state="file")
    except OSError as error:
        return replace(facts, state="unreachable", problem=error.strerror or str(error))


def inspect_machine(path: Path | None, *, timeout_s: float) -> MachineFacts:
    """Examine this machine and a dataset, with a deadline for each examination; they run in parallel."""
    folder = current_folder()
    # In separate threads, because each waits for something else: a child process, the mounts, the driver.
    with ThreadPoolExecutor(3, "colabstage-doctor") as pool:
        dataset = None if path is None else pool.submit(inspect_dataset, path, timeout_s=timeout_s)
        mounts, gpus = pool.submit(_probe_mounts, timeout_s), pool.submit(_inspect_gpus, timeout_s)
        resources = read_resources()
        return MachineFacts(
            **_inspect_platform(timeout_s),
            cores=resources.cores,
            memory_bytes=resources.memory_bytes,
            free_memory_bytes=resources.free_memory_bytes,
            folder=str(folder),
            folder_mount=slow_reason(mount_of(folder)),
            mounts=mounts.result(),
            versions={name: _version(name) for name in PACKAGES},
            **gpus.result(),
            pid=os.getpid(),
            dataset=None if dataset is None else dataset.result(),
        )


def _inspect_platform(timeout_s: float) -> dict[str, Any]:
    here = detect_platform()
    place = follow_links(here.fast_dir)
    slow = slow_reason(mount_of(place))
    # Before the folder itself is touched, which would wait as long as its mount.
    answers = slow is None or probe_mount(mount_of(place).mountpoint, timeout_s).state == "alive"
    problem = _write_problem(place) if answers else "its mount does not answer"
    free = None
    # If nothing can be written, free space does not matter; a mount that does not answer would not answer this either.
    if problem is None:
        with contextlib.suppress(OSError):
            free = free_space(place)
    return {
        "platform": here.name,
        "title": here.title,
        "system": sys.platform,
        "python": platform.python_version(),
        "fast_dir": str(here.fast_dir),
        "fast_dir_problem": problem,
        "fast_dir_mount": slow,
        "free_bytes": free,
    }


def _write_problem(folder: Path) -> str | None:
    """Return why nothing can be written below `folder`, which need not exist, without creating anything."""
    # A missing folder would be created in the nearest existing one.
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        return f"'{there}' is not a folder"
    return None if os.access(there, os.W_OK | os.X_OK) else f"'{there}' is read-only for this user"


def _probe_mounts(timeout_s: float) -> tuple[MountFacts, ...]:
    """Probe every visible slow mount; on a practice machine only those below its root count."""
    visible = [mount for mount in list_mounts().values() if mount.mountpoint.is_relative_to(system_root())]
    slow = [mount for mount in visible if slow_reason(mount) is not None][:_MOST_MOUNTS]
    # At the same time, so that several hanging mounts cost one deadline.
    with ThreadPoolExecutor(max(1, len(slow)), "colabstage-probe") as pool:
        return tuple(pool.map(_probe, slow, [timeout_s] * len(slow)))


def _probe(mount: Mount, timeout_s: float) -> MountFacts:
    # The folder that people use, because the root of a Drive is answered without asking Google.
    place = mount.mountpoint / "MyDrive" if mount.fstype in DRIVE_TYPES else mount.mountpoint
    began = time.monotonic()
    answer = probe_mount(place, timeout_s)
    kind = slow_reason(mount) or mount.fstype
    return MountFacts(str(mount.mountpoint), kind, answer.state, answer.reason, time.monotonic() - began)


def _version(name: str) -> str | None:
    # Not imported: torch alone takes seconds, and a broken package would end the check.
    if loaded := getattr(sys.modules.get(name), "__version__", None):
        return str(loaded)
    return installed_version(name) or None


def _inspect_gpus(timeout_s: float) -> dict[str, Any]:
    """Ask the driver in a thread that is abandoned if it never answers, because a library has no deadline."""

    def ask() -> tuple[GpuReading, ...]:
        with open_gpus(timeout_s=timeout_s) as read:
            return read(True)

    try:
        # nvidia-smi is called three times, and keeps its own deadline.
        return {"gpus": in_thread(ask, "colabstage-gpu").result(4 * timeout_s)}
    except TimeoutError:
        return {"gpu_problem": f"The driver did not answer in {format_duration(4 * timeout_s)}."}
    except NotSupportedHereError as error:
        return {"gpu_problem": str(error)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(_inspect_here(Path(sys.argv[1])))))
