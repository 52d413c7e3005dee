"""How much of this computer may be used: cores, memory and disk, as affinity, cgroups and file systems allow.

A container sees the whole host's figures; the limits that apply are in its cgroup, of either version, at every level
from this process's group upwards.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import NotEnoughSpaceError
from colabstage.io.environment import current_folder
from colabstage.io.files import translate_write_error
from colabstage.io.units import format_bytes
from colabstage.machine.mounts import drive_root
from colabstage.machine.platforms import system_root

if TYPE_CHECKING:
    from collections.abc import Iterator


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files by `count`, as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_HANDLES
    if soft < wanted and soft != resource.RLIM_INFINITY:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard))


# In addition to the counted ones: files of libraries, connections and pipes.
_OTHER_HANDLES = 64
UNKNOWN_SPACE = 1 << 62
"""Returned by `free_space` if it is unknown: more than anything needs."""
# Version 1 of cgroups writes "no limit" as a number near 2**63, rounded down to a page.
_NO_LIMIT_BYTES = 1 << 60
# Controller, limit, use and page cache of memory in both versions.
_MEMORY_FILES = (
    ("", "memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)


@dataclass(frozen=True, slots=True)
class Resources:
    cores: int
    """Whole cores, at least 1."""
    memory_bytes: int
    """The limit on memory: the cgroup's, or the computer's if that is lower."""
    free_memory_bytes: int
    """How much of it is available. Page cache counts as free, because the kernel drops it on demand."""


def _system() -> Path:
    """Return the root of the kernel's figures: `/`, or a practice machine's root if it has its own."""
    root = system_root()
    return root if (root / "proc/meminfo").is_file() else Path("/")


def read_resources() -> Resources:
    """Read the cores and the memory that this process may use now."""
    root = _system()
    figures = {name: 1024 * kib for name, kib in _read_table(root / "proc/meminfo").items()}
    computer = figures.get("MemTotal:", 0) or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = figures.get("MemAvailable:", computer)
    # A cgroup counts the page cache of its files as used, and would seem full after reading one large file.
    limits = [(limit, limit - used + cache) for limit, used, cache in _memory_limits(root)]
    return Resources(
        cores=usable_cores(),
        memory_bytes=min([computer, *(limit for limit, _ in limits)]),
        free_memory_bytes=max(0, min([available, *(free for _, free in limits)])),
    )


def usable_cores() -> int:
    """Count the whole cores that this process may use: its affinity, limited by the cgroup's quota; at least 1."""
    # Rounded down: threads beyond the quota are stopped for the rest of each period, all at once.
    quotas = [int(quota) for quota in _cpu_quotas(_system())]
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def free_space(path: Path) -> int:
    """Count the bytes that this user can still write under `path`, which need not exist yet; `UNKNOWN_SPACE` where a
    Drive's client reports 0, as it also does for an account without a limit."""
    place = Path(os.path.normpath(current_folder() / path))  # `resolve` would touch every folder on the way
    for candidate in (place, *place.parents):
        try:
            facts = os.statvfs(candidate)
        # Missing folders will be created on the file system of the nearest existing parent.
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise translate_write_error(error, candidate, "measure the free space of") from error
        if not facts.f_bavail and drive_root(candidate) is not None:
            return UNKNOWN_SPACE
        # Not `f_bfree`, which includes blocks that are reserved for root.
        return facts.f_bavail * facts.f_frsize
    return UNKNOWN_SPACE


def check_space(path: Path, needed_bytes: int, what: str, *, remedy: str = "") -> None:
    """Make sure that `needed_bytes` fit under `path`, which need not exist, before anything is written there. `what`
    needs them ("The pack of 'cats.zip'"); `remedy`: what to do instead of freeing space, as the end of a sentence."""
    free = free_space(path)
    if free >= needed_bytes:
        return
    advice = f"Free {format_bytes(needed_bytes - free)} there, or {remedy or 'choose a folder on a larger disk'}."
    msg = f"{what} needs {format_bytes(needed_bytes)}, but '{path}' has {format_bytes(free)} free. {advice}"
    raise NotEnoughSpaceError(msg)


def _memory_limits(root: Path) -> Iterator[tuple[int, int, int]]:
    """Yield limit, use and page cache in bytes of every cgroup that limits this process's memory."""
    for controller, limit_name, used_name, cache_names in _MEMORY_FILES:
        for folder in _cgroup_folders(root, controller):
            limit = _read_number(folder / limit_name)
            if limit is not None and limit < _NO_LIMIT_BYTES:
                figures = _read_table(folder / "memory.stat")
                yield limit, _read_number(folder / used_name) or 0, sum(figures.get(name, 0) for name in cache_names)


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the quota in cores of every cgroup that limits this process's computing time."""
    for folder in _cgroup_folders(root, ""):
        quota, _, period = _read_text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and int(period or 100_000) > 0:
            yield int(quota) / int(period or 100_000)
    for folder in _cgroup_folders(root, "cpu"):
        quota_us = _read_number(folder / "cpu.cfs_quota_us")
        period_us = _read_number(folder / "cpu.cfs_period_us")
        if quota_us and period_us and quota_us > 0:
            yield quota_us / period_us


def _cgroup_folders(root: Path, controller: str) -> tuple[Path, ...]:
    """Return the folders of this process's cgroup and of all groups above it; `controller` is empty for version 2."""
    return _folders_of_groups(root, controller, _read_text(root / "proc/self/cgroup"))


# A group exists as long as this process is in it. Its limits may change, and are read each time.
@functools.lru_cache(maxsize=8)
def _folders_of_groups(root: Path, controller: str, groups: str) -> tuple[Path, ...]:
    folders: list[Path] = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        # Version 2 is mounted at the top, or beside version 1 under the name "unified".
        names = (controller, controllers) if controller else ("", "unified")
        for name in dict.fromkeys(names):
            top = root / "sys/fs/cgroup" / name
            group = top / path.lstrip("/")
            parents = [parent for parent in group.parents if parent.is_relative_to(top)]
            # A container often sees its own group as the root of the hierarchy, while /proc names the host's path.
            folders += (folder for folder in (group, *parents) if folder.is_dir())
    return tuple(folders)


def _read_table(path: Path) -> dict[str, int]:
    rows = (line.split() for line in _read_text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _read_number(path: Path) -> int | None:
    try:
        return int(_read_text(path))
    except ValueError:
        return None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
