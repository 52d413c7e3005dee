"""The facts about this machine and a dataset that `doctor` judges, as plain JSON values, and how they are collected.
This is the only part of `doctor` that touches anything, always under a deadline.

A dataset's path is examined in a process of its own, because a process that touches a hanging mount hangs too. Run as a
program (with the path, and the seconds for counting files) this module prints `DatasetFacts` as JSON.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from colabstage.errors import ColabstageError, NotSupportedHereError
from colabstage.io.accelerated import ACCELERATORS
from colabstage.io.files import read_json
from colabstage.io.missing import whereabouts
from colabstage.io.pipeline import in_thread
from colabstage.io.units import format_duration
from colabstage.machine.gpu import open_gpus
from colabstage.machine.mounts import (
    DRIVE_TYPES,
    ask_children,
    current_folder,
    follow_links,
    list_mounts,
    mount_of,
    probe_mount,
    slow_reason,
)
from colabstage.machine.platforms import detect_platform, system_root
from colabstage.machine.resources import free_shared_memory, free_space, read_resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from colabstage.machine.gpu import GpuReading
    from colabstage.machine.mounts import Mount

ProbeState = Literal["alive", "missing", "dead", "failing", "silent"]
_HDF5_MARK = b"\x89HDF\r\n\x1a\n"
_HDF5_SUFFIXES = {".h5", ".hdf5"}
# The share of a deadline for counting files; the rest is for starting the process, its answer, and everything else.
_COUNTING_PART = 0.5
PACKAGES = ("numpy", "h5py", "torch", *ACCELERATORS)
_DRIVE_CLIENT = "root/.config/Google/DriveFS"
# A machine with more mounts than this is not a notebook, and so many probes would slow each other down.
_MOST_MOUNTS = 16


@dataclass(frozen=True, slots=True)
class PlatformFacts:
    """What this computer is; the names are those of `detect_platform`."""

    name: str
    title: str
    system: str
    python: str
    fast_dir: str
    """Where datasets are staged."""
    fast_dir_problem: str | None = None
    """Why nothing can be written there; `None` if it is writable."""
    fast_dir_mount: str | None = None
    """Why that folder is slow ("Google Drive"); `None` on a local disk."""


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The disk on which datasets are staged, `None` if unknown, and the cache of Drive's client, `None` without one."""

    free_bytes: int | None
    total_bytes: int | None
    drive_cache_bytes: int | None = None
    drive_cache_counted: bool = True
    """Whether all of Drive's cache could be counted in time; otherwise its size is a lower bound."""


@dataclass(frozen=True, slots=True)
class MountFacts:
    """A slow mount: why it is slow, whether it answered, what went wrong, and how long the answer took."""

    mountpoint: str
    kind: str
    state: ProbeState
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """Versions of a package: installed according to pip, and loaded in this process."""

    installed: str | None
    imported: str | None = None

    @property
    def version(self) -> str | None:
        """Return the version in use in this process."""
        return self.imported or self.installed


@dataclass(frozen=True, slots=True)
class PackFacts:
    """An HDF5 file of `X_<split>`."""

    rows: int
    """The samples of all splits."""
    row_bytes: int
    """The bytes of one input as it is returned."""
    ours: bool
    """Whether colabstage wrote it."""
    manifest: Literal["agrees", "differs", "missing", "unreadable", "newer"]
    manifest_detail: str
    sealed: bool | None = None
    """Whether the file is unchanged since it was staged here, according to its record; `None` without a record."""


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """The facts about the given path; sizes and counts are lower bounds if `counted` is `False`."""

    path: str
    state: Literal["missing", "unreachable", "file", "folder"]
    """`"unreachable"`: without an answer before the deadline."""
    nbytes: int = 0
    files: int = 0
    largest_folder: int = 0
    """Number of entries in its largest folder."""
    counted: bool = True
    slow_mount: str | None = None
    """Why its mount is slow, or `None`."""
    resident: float | None = None
    """Fraction of the file, 0 to 1, in the page cache; `None` if it is not a local file."""
    pack: PackFacts | None = None
    problem: str | None = None
    """Why it could not be read, as a pack if it is HDF5."""
    instead: str = ""
    """A sentence on what exists instead of a missing path."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The GPUs as the driver reports them, or why there are none; `ours` is the id of this process."""

    gpus: tuple[GpuReading, ...] = ()
    problem: str | None = None
    ours: int = 0


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """All facts for the checks; cores and memory as in `read_resources`."""

    platform: PlatformFacts
    disk: DiskFacts
    cores: int
    memory_bytes: int
    free_memory_bytes: int
    shared_memory_bytes: int | None
    """Free bytes in `/dev/shm`; `None` if there is none."""
    workers: int | None
    """Number of loader processes, as given by the caller or running now."""
    batch_size: int
    folder: str
    """The current folder, according to the kernel."""
    folder_mount: str | None
    """Why that is slow, or `None`."""
    workers_from: Literal["asked", "running"] = "asked"
    mounts: tuple[MountFacts, ...] = ()
    packages: Mapping[str, PackageFacts] = field(default_factory=dict)
    gpu: GpuFacts = field(default_factory=GpuFacts)
    dataset: DatasetFacts | None = None


def inspect_dataset(path: Path, *, timeout_s: float) -> DatasetFacts:
    """Examine an absolute path in a child process, which is ended after `timeout_s` seconds."""
    # The child runs our code from wherever it is, including a checkout that is not installed.
    root = str(Path(__file__).parents[2])
    places = [place for place in (root, os.environ.get("PYTHONPATH")) if place]
    answers = ask_children(
        [[sys.executable, "-m", __name__, os.fspath(path), str(timeout_s * _COUNTING_PART)]],
        time.monotonic() + timeout_s,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )
    if answers is None:
        return _unreachable(path, "no answer before the deadline")
    ((status, answer, complaint),) = answers
    if status:
        # The last line of a traceback says what went wrong.
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        return _unreachable(path, last[0] if last else f"exit code {status}")
    told = json.loads(answer)
    pack = told.pop("pack")
    return DatasetFacts(**told, pack=None if pack is None else PackFacts(**pack))


def _unreachable(path: Path, why: str) -> DatasetFacts:
    return DatasetFacts(str(path), "unreachable", slow_mount=slow_reason(mount_of(path)), problem=why)


def look_here(path: Path, *, counting_s: float) -> DatasetFacts:
    """Examine a path in this process; takes as long as its mount."""
    slow = slow_reason(mount_of(path))
    facts = DatasetFacts(str(path), "missing", slow_mount=slow)
    try:
        if path.is_dir():
            return _inspect_folder(replace(facts, state="folder"), path, counting_s)
        if not path.exists():
            return replace(facts, instead=whereabouts(path))
        facts = replace(facts, state="file", nbytes=path.stat().st_size, files=1)
        # Asking which pages are cached requires mapping the file, which on a mount would read it.
        facts = replace(facts, resident=None if slow else _resident_part(path))
        return _inspect_pack(facts, path) if _is_hdf5(path) else facts
    except OSError as error:
        return replace(facts, state="unreachable", problem=error.strerror or str(error))


def _inspect_folder(facts: DatasetFacts, folder: Path, counting_s: float) -> DatasetFacts:
    """Count the files in a folder until the time is up."""
    deadline = time.monotonic() + counting_s
    nbytes = files = largest = 0
    todo, counted = [os.fspath(folder)], True
    while todo and counted:
        entries = 0
        with os.scandir(todo.pop()) as scan:
            for entry in scan:
                entries += 1
                # Following a link to a parent folder would never end.
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                elif entry.is_file():
                    files += 1
                    nbytes += entry.stat().st_size
                if time.monotonic() > deadline:
                    counted = False
                    break
        largest = max(largest, entries)
    return replace(facts, nbytes=nbytes, files=files, largest_folder=largest, counted=counted)


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as handle:
        # By its first bytes, because HDF5 files can have any name.
        return handle.read(len(_HDF5_MARK)) == _HDF5_MARK or path.suffix.lower() in _HDF5_SUFFIXES


def _resident_part(path: Path) -> float:
    import numpy as np

    from colabstage.load.reading.memory import resident_part

    if path.stat().st_size == 0:
        return 1.0
    return resident_part(np.memmap(path, np.uint8, "r"))


def _inspect_pack(facts: DatasetFacts, path: Path) -> DatasetFacts:
    from colabstage.h5.info import read_info
    from colabstage.h5.manifest import look_at_manifest
    from colabstage.load.reading.reader import SplitReader
    from colabstage.sources.identity import file_seal

    try:
        info = read_info(path)
        # Opened, because only that reveals a file that was cut off.
        readers = [SplitReader(path, split) for split in info.splits]
        row_bytes = max(reader.estimate_row_bytes() for reader in readers)
    except ColabstageError as error:
        return replace(facts, problem=str(error))
    manifest = look_at_manifest(path, facts.nbytes)
    record = read_json(path.with_name("stage.json"))
    seal = record.get("seal") if isinstance(record, dict) else None
    pack = PackFacts(
        rows=sum(split.rows for split in info.splits.values()),
        row_bytes=row_bytes,
        ours=info.format_version is not None,
        manifest=manifest.state,
        manifest_detail=f"its manifest: {manifest.detail}",
        sealed=seal == file_seal(path) if seal else None,
    )
    for reader in readers:
        reader.close()
    return replace(facts, pack=pack)


def print_facts() -> None:
    """Examine the path in the arguments and print the facts."""
    facts = look_here(Path(sys.argv[1]), counting_s=float(sys.argv[2]))
    sys.stdout.write(json.dumps(asdict(facts)))


def inspect_machine(
    path: str | os.PathLike[str] | None, *, num_workers: int | None, batch_size: int, timeout_s: float
) -> MachineFacts:
    """Examine this machine and a dataset, with a deadline for each examination; they run in parallel."""
    folder = current_folder() or Path.cwd()
    # In separate threads, because each waits for something else: a child process, the mounts, the driver.
    with ThreadPoolExecutor(3, "colabstage-doctor") as pool:
        place = None if path is None else Path(os.path.normpath(folder / Path(path).expanduser()))
        dataset = None if place is None else pool.submit(inspect_dataset, place, timeout_s=timeout_s)
        mounts = pool.submit(_probe_mounts, timeout_s)
        gpu = pool.submit(_inspect_gpus, timeout_s)
        here, resources = _inspect_platform(timeout_s), read_resources()
        # Running child processes of multiprocessing are usually the workers of a `DataLoader`.
        running = len(multiprocessing.active_children()) or None
        return MachineFacts(
            platform=here,
            disk=_inspect_disk(here, timeout_s),
            cores=resources.cores,
            memory_bytes=resources.memory_bytes,
            free_memory_bytes=resources.free_memory_bytes,
            shared_memory_bytes=free_shared_memory(),
            workers=running if num_workers is None else num_workers,
            workers_from="running" if num_workers is None else "asked",
            batch_size=batch_size,
            folder=str(folder),
            folder_mount=slow_reason(mount_of(folder)),
            mounts=mounts.result(),
            packages={name: _inspect_package(name) for name in PACKAGES},
            gpu=gpu.result(),
            dataset=None if dataset is None else dataset.result(),
        )


def _inspect_platform(timeout_s: float) -> PlatformFacts:
    here = detect_platform()
    place = follow_links(here.fast_dir)
    slow = slow_reason(mount_of(place))
    # Before the folder itself is touched, which would wait as long as its mount.
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
    """Return why nothing can be written below `folder`, which need not exist; nothing is created or changed to find
    out."""
    # A missing folder would be created in the nearest existing one.
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        return f"'{there}' is not a folder"
    return None if os.access(there, os.W_OK | os.X_OK) else f"'{there}' is read-only for this user"


def _inspect_disk(here: PlatformFacts, timeout_s: float) -> DiskFacts:
    cached, counted = _drive_cache(timeout_s * _COUNTING_PART)
    free = total = None
    # If nothing can be written, free space does not matter; and a mount that does not answer would not answer this
    # either.
    if here.fast_dir_problem is None:
        place = Path(here.fast_dir)
        with contextlib.suppress(OSError):
            free = free_space(place)
            facts = os.statvfs(next(folder for folder in (place, *place.parents) if folder.exists()))
            total = facts.f_blocks * facts.f_frsize
    return DiskFacts(free, total, cached, counted)


def _drive_cache(counting_s: float) -> tuple[int | None, bool]:
    """Return the size of the Drive client's folder on disk, and whether all of it could be counted in time."""
    deadline = time.monotonic() + counting_s
    # Only below the client's folder: files on the mount itself take no space here.
    root = system_root() / _DRIVE_CLIENT
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(OSError):  # evicted meanwhile
                # Blocks, not lengths, because the client's files are sparse.
                total += 512 * os.lstat(f"{folder}/{name}").st_blocks
            if time.monotonic() > deadline:
                return total, False
    return total if root.is_dir() else None, True


def _probe_mounts(timeout_s: float) -> tuple[MountFacts, ...]:
    """Probe every visible slow mount; on a practice machine only those below its root count."""
    visible = {mount.mountpoint: mount for mount in list_mounts() if mount.mountpoint.is_relative_to(system_root())}
    slow = [mount for mount in visible.values() if slow_reason(mount) is not None][:_MOST_MOUNTS]
    if not slow:
        return ()
    # At the same time, so that several hanging mounts cost one deadline.
    with ThreadPoolExecutor(len(slow), "colabstage-probe") as pool:
        return tuple(pool.map(_probe, slow, [timeout_s] * len(slow)))


def _probe(mount: Mount, timeout_s: float) -> MountFacts:
    # The folder that people use, because the root of a Drive is answered without asking Google.
    place = mount.mountpoint / "MyDrive" if mount.fstype in DRIVE_TYPES else mount.mountpoint
    began = time.monotonic()
    answer = probe_mount(place, timeout_s)
    kind = slow_reason(mount) or mount.fstype
    return MountFacts(str(mount.mountpoint), kind, answer.state, answer.reason, time.monotonic() - began)


def _inspect_package(name: str) -> PackageFacts:
    try:
        installed: str | None = metadata.version(name)
    except metadata.PackageNotFoundError:
        installed = None
    # Not imported: torch alone takes seconds, and a broken package would end the check.
    loaded = sys.modules.get(name)
    return PackageFacts(installed, None if loaded is None else str(getattr(loaded, "__version__", "")) or None)


def _inspect_gpus(timeout_s: float) -> GpuFacts:
    """Ask the driver in a thread that is abandoned if it never answers, because a library has no deadline."""

    def ask() -> GpuFacts:
        with contextlib.closing(open_gpus(timeout_s=timeout_s)) as source:
            return GpuFacts(source.read(processes=True), ours=os.getpid())

    try:
        # nvidia-smi is called three times, and keeps its own deadline.
        return in_thread(ask, "colabstage-gpu").result(4 * timeout_s)
    except TimeoutError:
        return GpuFacts(problem=f"The driver did not answer in {format_duration(4 * timeout_s)}.")
    except NotSupportedHereError as error:
        return GpuFacts(problem=str(error))


if __name__ == "__main__":
    print_facts()
