"""Gathering what `doctor` judges: the only part of it that touches anything, each touch under a deadline."""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.diagnose.health.facts import DiskFacts, Facts, GpuFacts, MountFacts, PackageFacts, PlatformFacts
from colabstage.diagnose.health.looking import look_at_dataset
from colabstage.errors import NotSupportedHereError
from colabstage.machine.gpu import open_gpus
from colabstage.machine.mounts import follow_links, list_mounts, mount_of, probe_mount, slow_reason
from colabstage.machine.platforms import detect_platform, system_root
from colabstage.machine.resources import free_space, read_resources
from colabstage.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.diagnose.health.facts import DatasetFacts
    from colabstage.machine.mounts import Mount

PACKAGES = ("numpy", "h5py", "torch", "gdown")

_SHARED_MEMORY = Path("/dev/shm")  # where torch puts results of worker processes
_DRIVE_CLIENT = "root/.config/Google/DriveFS"
_DRIVE_TYPE = "fuse.drive"
# A machine with more mounts than this is no notebook; their probes would take each other's time.
_MOST_MOUNTS = 16
# Of a deadline, for counting files: the rest is for what comes before and after.
_COUNTING_PART = 0.5


def gather_facts(
    path: str | os.PathLike[str] | None, *, num_workers: int | None, batch_size: int, timeout_s: float
) -> Facts:
    """Look at this machine, and at a dataset.

    Args:
        path: of the dataset; `None` for the machine alone.
        num_workers: of the loader that is asked about; `None` for the worker processes that run now.
        batch_size: samples of one batch.
        timeout_s: deadline of each look, in seconds; they are taken beside each other.
    """
    folder = current_folder()
    with ThreadPoolExecutor(3, "colabstage-doctor") as pool:
        dataset = None if path is None else pool.submit(_look, folder / Path(path).expanduser(), timeout_s)
        mounts = pool.submit(_probe_mounts, timeout_s)
        gpu = pool.submit(_look_at_gpus, timeout_s)
        here, resources = _look_at_platform(timeout_s), read_resources()
        workers, workers_from = (num_workers, "asked") if num_workers is not None else (_running_workers(), "running")
        return Facts(
            platform=here,
            disk=_look_at_disk(here, timeout_s),
            cores=resources.cores,
            memory_bytes=resources.memory_bytes,
            free_memory_bytes=resources.free_memory_bytes,
            shared_memory_bytes=_free(_SHARED_MEMORY) if _SHARED_MEMORY.is_dir() else None,
            workers=workers,
            workers_from="asked" if workers_from == "asked" else "running",
            batch_size=batch_size,
            folder=str(folder),
            folder_mount=slow_reason(mount_of(folder)),
            mounts=mounts.result(),
            packages={name: _look_at_package(name) for name in PACKAGES},
            gpu=gpu.result(),
            dataset=None if dataset is None else dataset.result(),
        )


def current_folder() -> Path:
    """The current folder by the kernel's own record: asking for it fails where it lies on a mount that has died."""
    try:
        # The kernel marks a folder that it has lost sight of, as those of a dead mount are.
        return Path(str(Path("/proc/self/cwd").readlink()).removesuffix(" (deleted)"))
    except OSError:
        return Path.cwd()


def _look(path: Path, timeout_s: float) -> DatasetFacts:
    return look_at_dataset(Path(os.path.normpath(path)), timeout_s=timeout_s)


def _look_at_platform(timeout_s: float) -> PlatformFacts:
    here = detect_platform()
    place = follow_links(here.fast_dir)
    slow = slow_reason(mount_of(place))
    answers = slow is None or probe_mount(mount_of(place).mountpoint, timeout_s).state == "alive"
    return PlatformFacts(
        name=here.name,
        title=here.title,
        system=sys.platform,
        python=platform.python_version(),
        fast_dir=str(here.fast_dir),
        fast_dir_problem=_write_problem(place) if answers else "its mount does not answer",
        fast_dir_mount=slow,
    )


def _write_problem(folder: Path) -> str | None:
    """Why nothing can be written below `folder`, which need not exist; nothing is made or changed to find out."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        return f"'{there}' is no folder"
    return None if os.access(there, os.W_OK | os.X_OK) else f"'{there}' is read-only for this user"


def _look_at_disk(here: PlatformFacts, timeout_s: float) -> DiskFacts:
    cached, counted = _drive_cache(timeout_s * _COUNTING_PART)
    if here.fast_dir_problem is not None:
        return DiskFacts(None, None, cached, counted)
    place = Path(here.fast_dir)
    return DiskFacts(_free(place), _total(place), cached, counted)


def _free(place: Path) -> int | None:
    try:
        return free_space(place)
    except OSError:
        return None


def _total(place: Path) -> int | None:
    try:
        facts = os.statvfs(next(folder for folder in (place, *place.parents) if folder.exists()))
    except OSError:
        return None
    return facts.f_blocks * facts.f_frsize


def _drive_cache(counting_s: float) -> tuple[int | None, bool]:
    """Bytes that the Drive client's folder takes on the disk, and whether all of it could be counted in time."""
    deadline = time.monotonic() + counting_s
    root = system_root() / _DRIVE_CLIENT
    if not root.is_dir():
        return None, True
    total = 0
    for blocks in _blocks_below(root):
        total += 512 * blocks
        if time.monotonic() > deadline:
            return total, False
    return total, True


def _blocks_below(root: Path) -> Iterator[int]:
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                yield os.lstat(f"{folder}/{name}").st_blocks
            except OSError:  # evicted meanwhile
                continue


def _probe_mounts(timeout_s: float) -> tuple[MountFacts, ...]:
    """Ask every slow mount that can be seen; on a practice machine only those below its root count."""
    visible = {mount.mountpoint: mount for mount in list_mounts() if mount.mountpoint.is_relative_to(system_root())}
    slow = [mount for mount in visible.values() if slow_reason(mount) is not None][:_MOST_MOUNTS]
    if not slow:
        return ()
    with ThreadPoolExecutor(len(slow), "colabstage-probe") as pool:
        return tuple(pool.map(_probe, slow, [timeout_s] * len(slow)))


def _probe(mount: Mount, timeout_s: float) -> MountFacts:
    # The folder that people use: the root of a Drive is answered without asking Google.
    place = mount.mountpoint / "MyDrive" if mount.fstype == _DRIVE_TYPE else mount.mountpoint
    began = time.monotonic()
    answer = probe_mount(place, timeout_s)
    kind = slow_reason(mount) or mount.fstype
    return MountFacts(str(mount.mountpoint), kind, answer.state, answer.reason, time.monotonic() - began)


def _look_at_package(name: str) -> PackageFacts:
    try:
        installed: str | None = metadata.version(name)
    except metadata.PackageNotFoundError:
        installed = None
    loaded = sys.modules.get(name)
    return PackageFacts(installed, None if loaded is None else str(getattr(loaded, "__version__", "")) or None)


def _running_workers() -> int | None:
    """Processes that multiprocessing has started here and that still run, `DataLoader` workers as a rule."""
    return len(multiprocessing.active_children()) or None


def _look_at_gpus(timeout_s: float) -> GpuFacts:
    """Ask the driver, from a thread that is left behind where the driver never answers: a library has no deadline."""
    found: list[GpuFacts] = []
    asker = threading.Thread(target=lambda: found.append(_ask_gpus(timeout_s)), name="colabstage-gpu", daemon=True)
    asker.start()
    # nvidia-smi is called three times, and keeps its own deadline.
    asker.join(4 * timeout_s)
    return found[0] if found else GpuFacts(problem=f"The driver did not answer in {format_duration(4 * timeout_s)}.")


def _ask_gpus(timeout_s: float) -> GpuFacts:
    try:
        source = open_gpus(timeout_s=timeout_s)
        try:
            return GpuFacts(source.read(processes=True), ours=os.getpid())
        finally:
            source.close()
    except NotSupportedHereError as error:
        return GpuFacts(problem=str(error))
