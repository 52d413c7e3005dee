"""What `doctor` knows about this machine and a dataset before it judges any of it: plain values, all of them JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from colabstage.machine.gpu import GpuReading

ProbeState = Literal["alive", "missing", "dead", "failing", "silent"]


@dataclass(frozen=True, slots=True)
class PlatformFacts:
    """`name`, `title`: as `detect_platform` has them. `system`: `sys.platform`. `python`: its version.
    `fast_dir`: where datasets are staged. `fast_dir_problem`: why nothing can be written there, `None` when it can.
    `fast_dir_mount`: why that folder is a slow one ("Google Drive"), `None` on a local disk."""

    name: str
    title: str
    system: str
    python: str
    fast_dir: str
    fast_dir_problem: str | None = None
    fast_dir_mount: str | None = None


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """`free_bytes`, `total_bytes`: of the disk that datasets are staged on; `None` where it does not tell.
    `drive_cache_bytes`: what the Drive client keeps on this machine of all that went through the mount, `None`
    without such a client; at least so much where `drive_cache_counted` is `False`."""

    free_bytes: int | None
    total_bytes: int | None
    drive_cache_bytes: int | None = None
    drive_cache_counted: bool = True


@dataclass(frozen=True, slots=True)
class MountFacts:
    """`mountpoint`; `kind`: why it is a slow one. `state`, `reason`: what it answered, `seconds`: after how long."""

    mountpoint: str
    kind: str
    state: ProbeState
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PackageFacts:
    """`installed`: the version that pip knows; `imported`: the one that this process has loaded; `None` for none."""

    installed: str | None
    imported: str | None = None

    @property
    def version(self) -> str | None:
        """The one that counts in this process."""
        return self.imported or self.installed


@dataclass(frozen=True, slots=True)
class PackFacts:
    """An HDF5 file of `X_<split>`.

    `rows`, `row_bytes`: samples of all splits, and bytes of one input as it is handed over.
    `ours`: whether colabstage wrote it.
    `manifest`: whether what vouches for its bytes is beside it and speaks of a file of this length.
    `manifest_detail`: the same as a sentence. `sealed`: whether the file is untouched since it was staged here, by its
    record; `None` where no record stands beside it.
    """

    rows: int
    row_bytes: int
    ours: bool
    manifest: Literal["agrees", "differs", "missing", "unreadable", "newer"]
    manifest_detail: str
    sealed: bool | None = None


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What `path` is.

    `state`: `"missing"`; `"unreachable"`, nothing could be asked before the deadline; else what it is.
    `nbytes`, `files`: bytes on disk, and how many files; a lower bound where `counted` is `False`.
    `largest_folder`: entries of the folder with the most of them. `slow_mount`: why it lies on a slow one, or `None`.
    `resident`: part of the file, 0 to 1, that is in the page cache; `None` for what is no local file.
    `pack`: what it holds; `problem`: why it could not be read as a pack, where it is HDF5.
    """

    path: str
    state: Literal["missing", "unreachable", "file", "folder"]
    nbytes: int = 0
    files: int = 0
    largest_folder: int = 0
    counted: bool = True
    slow_mount: str | None = None
    resident: float | None = None
    pack: PackFacts | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """`gpus`: as the driver tells; `problem`: why there are none; `ours`: this process's number among their users."""

    gpus: tuple[GpuReading, ...] = ()
    problem: str | None = None
    ours: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the checks look at.

    `cores`, `memory_bytes`, `free_memory_bytes`: as `read_resources`.
    `shared_memory_bytes`: free in `/dev/shm`; `None` where there is none.
    `workers`: processes that load data: as the caller said, else those that run now; `workers_from` says which.
    `batch_size`: samples of a batch, for what goes through `/dev/shm`.
    `folder`: the current folder, as the kernel names it; `folder_mount`: why that is a slow one, or `None`.
    `packages`: by name. `dataset`: what the caller asked about, if anything.
    """

    platform: PlatformFacts
    disk: DiskFacts
    cores: int
    memory_bytes: int
    free_memory_bytes: int
    shared_memory_bytes: int | None
    workers: int | None
    batch_size: int
    folder: str
    folder_mount: str | None
    workers_from: Literal["asked", "running"] = "asked"
    mounts: tuple[MountFacts, ...] = ()
    packages: Mapping[str, PackageFacts] = field(default_factory=dict)
    gpu: GpuFacts = field(default_factory=GpuFacts)
    dataset: DatasetFacts | None = None
