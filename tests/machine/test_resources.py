"""Cores, memory and disk, on machines described by files and on this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from colabstage import doctor
from tests.support.images import make_tree

GIB = 1 << 30
CORES = len(os.sched_getaffinity(0))


def meminfo(total: int, available: int) -> dict[str, str]:
    """/proc/meminfo as the kernel writes it."""
    return {"proc/meminfo": f"MemTotal: {total // 1024} kB\nMemFree: 7 kB\nMemAvailable: {available // 1024} kB\n"}


MACHINES: dict[str, tuple[dict[str, str], tuple[int, int, int]]] = {
    "without cgroups": ({}, (64 * GIB, 60 * GIB, CORES)),
    # The parent's limit is lower, and that group's page cache counts as free.
    "version 2": (
        {
            "proc/self/cgroup": "0::/pod/box",
            "sys/fs/cgroup/pod/box/memory.max": "max",
            "sys/fs/cgroup/pod/box/memory.current": f"{3 * GIB}",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000",
            "sys/fs/cgroup/pod/memory.max": f"{8 * GIB}",
            "sys/fs/cgroup/pod/memory.current": f"{7 * GIB}",
            "sys/fs/cgroup/pod/memory.stat": f"anon {GIB}\nactive_file {2 * GIB}\ninactive_file {3 * GIB}\nshmem {GIB}",
            "sys/fs/cgroup/pod/cpu.max": "100000 100000",
        },
        (8 * GIB, 6 * GIB, 1),
    ),
    # In a container that sees its own group as the root, while /proc names the host's path.
    "version 1": (
        {
            "proc/self/cgroup": "9:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}",
            "sys/fs/cgroup/memory/memory.stat": f"cache 5\ntotal_active_file {GIB}\ntotal_inactive_file {GIB}",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        },
        (4 * GIB, 3 * GIB, 1),
    ),
    # "No limit" is a huge number there, and "no quota" -1.
    "version 1, unlimited": (
        {
            "proc/self/cgroup": "9:memory:/\n4:cpu:/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
        (64 * GIB, 60 * GIB, CORES),
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_may_be_used(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, expected = MACHINES[name]
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(make_tree(tmp_path, meminfo(64 * GIB, 60 * GIB) | files)))
    found = doctor(timeout_s=5.0).facts
    assert (found.memory_bytes, found.free_memory_bytes, found.cores) == expected


def run(code: str, *arguments: str) -> int:
    """Run a program; return the number that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


def test_this_machine_and_a_process_with_one_core() -> None:
    found = doctor(timeout_s=5.0).facts
    assert found.cores >= 1
    assert 0 < found.free_memory_bytes <= found.memory_bytes
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "import colabstage; print(colabstage.doctor(timeout_s=5.0).facts.cores)"
    )
    assert run(code) == 1


def test_free_space_looks_at_the_nearest_folder_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that does not exist yet has its file system's free space."""
    facts = os.statvfs(tmp_path)
    monkeypatch.setenv("COLABSTAGE_LOCAL_DIR", str(tmp_path / "a/b/c"))
    assert doctor(timeout_s=5.0).facts.free_bytes == pytest.approx(facts.f_bavail * facts.f_frsize, rel=0.05)
