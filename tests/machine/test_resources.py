"""Cores, memory and disk, on machines that are written down as files and on this one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from colabstage.errors import NotEnoughSpaceError
from colabstage.machine.resources import check_space, free_space, read_resources, usable_cores

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    """Write a machine down: a text for each path under `root`."""
    for name, text in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")
    return root


def meminfo(total: int, available: int) -> dict[str, str]:
    """/proc/meminfo as the kernel writes it."""
    return {"proc/meminfo": f"MemTotal: {total // 1024} kB\nMemFree: 7 kB\nMemAvailable: {available // 1024} kB"}


def test_without_cgroups_the_computer_counts(tmp_path: Path) -> None:
    """Memory comes from /proc/meminfo and cores from the affinity."""
    found = read_resources(root=write(tmp_path, meminfo(16 * GIB, 9 * GIB)))
    assert (found.memory_bytes, found.free_memory_bytes) == (16 * GIB, 9 * GIB)
    assert found.cores == len(os.sched_getaffinity(0))


def test_cgroup_v2_limits_count_at_every_level(tmp_path: Path) -> None:
    """The parent's limit is the lower one here, and page cache of that group counts as free."""
    group = "sys/fs/cgroup/pod/box"
    machine = write(
        tmp_path,
        meminfo(64 * GIB, 60 * GIB)
        | {
            "proc/self/cgroup": "0::/pod/box",
            f"{group}/memory.max": "max",
            f"{group}/memory.current": str(3 * GIB),
            "sys/fs/cgroup/pod/memory.max": str(8 * GIB),
            "sys/fs/cgroup/pod/memory.current": str(7 * GIB),
            "sys/fs/cgroup/pod/memory.stat": f"anon {GIB}\nactive_file {2 * GIB}\ninactive_file {3 * GIB}\nshmem {GIB}",
            "sys/fs/cgroup/pod/cpu.max": "100000 100000",
            f"{group}/cpu.max": "max 100000",
        },
    )
    found = read_resources(root=machine)
    assert (found.memory_bytes, found.free_memory_bytes, found.cores) == (8 * GIB, 6 * GIB, 1)


def test_cgroup_v1_limits_count(tmp_path: Path) -> None:
    """Version 1, inside a container that sees its own group as the root while /proc names the host's path."""
    machine = write(
        tmp_path,
        meminfo(64 * GIB, 60 * GIB)
        | {
            "proc/self/cgroup": "9:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(3 * GIB),
            "sys/fs/cgroup/memory/memory.stat": f"cache 5\ntotal_active_file {GIB}\ntotal_inactive_file {GIB}",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
    )
    found = read_resources(root=machine)
    assert (found.memory_bytes, found.free_memory_bytes, found.cores) == (4 * GIB, 3 * GIB, 1)


def test_unlimited_cgroups_do_not_count(tmp_path: Path) -> None:
    """Version 1 writes 'no limit' as a huge number and 'no quota' as -1."""
    machine = write(
        tmp_path,
        meminfo(16 * GIB, 9 * GIB)
        | {
            "proc/self/cgroup": "9:memory:/\n4:cpu:/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(3 * GIB),
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    found = read_resources(root=machine)
    assert (found.memory_bytes, found.free_memory_bytes) == (16 * GIB, 9 * GIB)
    assert found.cores == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("quota", "cores"), [("50000 100000", 1), ("100000 100000", 1), ("9900000 100000", 99)])
def test_a_quota_never_raises_the_count_and_never_leaves_none(tmp_path: Path, quota: str, cores: int) -> None:
    """Half a core still counts as one; a quota above the affinity changes nothing."""
    machine = write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": quota})
    assert usable_cores(root=machine) == min(cores, len(os.sched_getaffinity(0)))


def test_a_group_over_its_limit_has_nothing_free(tmp_path: Path) -> None:
    """Use above the limit (swap, a limit lowered later) is no negative amount."""
    machine = write(
        tmp_path,
        meminfo(16 * GIB, 9 * GIB)
        | {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "100", "sys/fs/cgroup/memory.current": "200"},
    )
    assert read_resources(root=machine).free_memory_bytes == 0


def test_affinity_of_a_real_process_is_respected() -> None:
    """A process pinned to one core finds one core."""
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from colabstage.machine.resources import usable_cores; print(usable_cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "1"


def test_this_machine_has_figures_that_make_sense() -> None:
    """On the real machine: at least a core, and free memory within the limit."""
    found = read_resources()
    assert found.cores >= 1
    assert 0 < found.free_memory_bytes <= found.memory_bytes


def test_free_space_looks_at_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    """A target that is still to be made, or lies below a file, has its file system's free space."""
    (tmp_path / "file").write_text("")
    facts = os.statvfs(tmp_path)
    for target in (tmp_path / "a/b/c.h5", tmp_path / "file/below"):
        assert free_space(target) == pytest.approx(facts.f_bavail * facts.f_frsize, rel=0.05)


def test_too_little_space_is_refused_with_both_figures_and_a_remedy(tmp_path: Path) -> None:
    """The message says what needs how much, where, how much there is, and what to do."""
    with pytest.raises(NotEnoughSpaceError, match=r"The pack .* PB, .*x\.h5' .* free"):
        check_space(tmp_path / "x.h5", 9 * 10**18, "The pack")
    with pytest.raises(NotEnoughSpaceError, match="Use keep='pack'") as caught:
        check_space(tmp_path, 9 * 10**18, "The pack", remedy="Use keep='pack'.")
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), NotEnoughSpaceError)
