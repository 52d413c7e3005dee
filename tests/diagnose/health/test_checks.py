"""Every check of `doctor`, on facts made by hand: what makes it pass, what makes it complain, what it skips."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from colabstage.diagnose.doctor import (
    ALL_CHECKS,
    CoresCheck,
    CrowdedFolderCheck,
    CurrentFolderCheck,
    DiskCheck,
    DriveCacheCheck,
    GdownCheck,
    GpuCheck,
    LibrariesCheck,
    MemoryCheck,
    MountCheck,
    NetworkMountCheck,
    PackCheck,
    PlatformCheck,
    ResidencyCheck,
    SharedMemoryCheck,
    judge_machine,
    remedy_of,
)
from colabstage.diagnose.health import (
    DatasetFacts,
    DiskFacts,
    GpuFacts,
    MachineFacts,
    MountFacts,
    PackageFacts,
    PackFacts,
    PlatformFacts,
)
from colabstage.machine.gpu import GpuProcess, GpuReading

if TYPE_CHECKING:
    from colabstage.diagnose.doctor import Check, Status

GB = 1_000_000_000
PLATFORM = PlatformFacts("colab", "Google Colab", "linux", "3.12.13", "/content")
PACK = PackFacts(5000, 150_528, ours=True, manifest="agrees", manifest_detail="its manifest: agrees", sealed=True)
FILE = DatasetFacts("/content/photos.h5", "file", nbytes=GB, files=1, resident=1.0, pack=PACK)
UNREACHABLE = DatasetFacts("/x", "unreachable", problem="no answer")
FOLDER = DatasetFacts("/content/photos", "folder", nbytes=GB, files=9000, largest_folder=4500)
ON_DRIVE = replace(FOLDER, path="/content/drive/MyDrive/photos", slow_mount="Google Drive")
ANSWERS = MountFacts("/content/drive", "Google Drive", "alive", "alive", 0.1)
T4 = GpuReading(0, "GPU-1", "Tesla T4", 0.0, 3 << 20, 15 << 30)
PACKAGES = {
    "numpy": PackageFacts("2.1.3", "2.1.3"),
    "h5py": PackageFacts("3.16.0"),
    "torch": PackageFacts("2.11.0+cu128"),
    "gdown": PackageFacts("6.5.1"),
}
WELL = MachineFacts(
    platform=PLATFORM,
    disk=DiskFacts(60 * GB, 115 * GB, drive_cache_bytes=2 * GB),
    cores=2,
    memory_bytes=13 * GB,
    free_memory_bytes=11 * GB,
    shared_memory_bytes=6 * GB,
    workers=1,
    batch_size=64,
    folder="/content",
    folder_mount=None,
    mounts=(ANSWERS,),
    packages=PACKAGES,
    gpu=GpuFacts((T4,), ours=1),
    dataset=FILE,
)


def packages(**versions: str | None) -> dict[str, Any]:
    """The facts with other versions installed."""
    return {"packages": {**PACKAGES, **{name: PackageFacts(version) for name, version in versions.items()}}}


def gpu(reading: GpuReading) -> dict[str, Any]:
    """The facts with another GPU."""
    return {"gpu": GpuFacts((reading,), ours=1)}


CASES: list[tuple[type[Check], dict[str, Any], Status, str]] = [
    (PlatformCheck, {}, "ok", "Google Colab, Python 3.12.13 on linux"),
    (PlatformCheck, {"platform": replace(PLATFORM, system="darwin")}, "warn", "on darwin"),
    (PlatformCheck, {"platform": replace(PLATFORM, fast_dir_mount="Google Drive")}, "warn", "which is Google Drive"),
    (PlatformCheck, {"platform": replace(PLATFORM, fast_dir_problem="it is read-only")}, "fail", "it is read-only"),
    (DiskCheck, {}, "ok", "60 GB free"),
    (DiskCheck, {"disk": DiskFacts(3 * GB, 115 * GB)}, "warn", "3 GB free"),
    (DiskCheck, {"disk": DiskFacts(GB // 2, 115 * GB)}, "fail", "Only 500 MB free"),
    (DiskCheck, {"disk": DiskFacts(None, None)}, "fail", "does not say"),
    (DiskCheck, {"dataset": replace(ON_DRIVE, nbytes=29 * GB)}, "ok", "60 GB free"),
    (DiskCheck, {"dataset": replace(ON_DRIVE, nbytes=31 * GB)}, "fail", "takes 62 GB (twice its size"),
    (DiskCheck, {"dataset": replace(ON_DRIVE, nbytes=31 * GB, slow_mount="a network file system (nfs4)")}, "ok", "60"),
    (DiskCheck, {"dataset": replace(FOLDER, nbytes=70 * GB)}, "ok", "60 GB free"),
    (DriveCacheCheck, {}, "ok", "holds 2 GB, 60 GB of the disk are free"),
    (DriveCacheCheck, {"disk": DiskFacts(60 * GB, None, 70 * GB)}, "warn", "holds 70 GB"),
    (DriveCacheCheck, {"disk": DiskFacts(GB // 2, None, 70 * GB, False)}, "fail", "holds at least 70 GB"),
    (DriveCacheCheck, {"disk": DiskFacts(60 * GB, None)}, "skip", "No Drive client"),
    (MountCheck, {}, "ok", "1 mount answered"),
    (MountCheck, {"mounts": (ANSWERS, replace(ANSWERS, seconds=5.0))}, "warn", "after 5.00 s"),
    (MountCheck, {"mounts": (replace(ANSWERS, state="dead", reason="not connected"),)}, "fail", "not connected, after"),
    (MountCheck, {"mounts": (ANSWERS, replace(ANSWERS, state="silent", reason="no answer"))}, "fail", "no answer"),
    (MountCheck, {"mounts": ()}, "skip", "Nothing is mounted"),
    (CurrentFolderCheck, {}, "ok", "on a local disk"),
    (CurrentFolderCheck, {"folder_mount": "Google Drive"}, "warn", "'/content' is on Google Drive"),
    (GdownCheck, {}, "ok", "gdown 6.5.1."),
    (GdownCheck, packages(gdown="6.3"), "ok", "gdown 6.3."),
    (GdownCheck, packages(gdown="5.2.2"), "fail", "gdown 5.2.2 is installed, which takes a download that broke off"),
    (GdownCheck, {"packages": {"gdown": PackageFacts("6.5.1", "5.2.2")}}, "fail", "has loaded gdown 5.2.2 already"),
    (GdownCheck, packages(gdown=None), "warn", "Google Drive links need the package gdown"),
    (MemoryCheck, {}, "ok", "11 GB of 13 GB free; '/content/photos.h5' has 1 GB: it fits"),
    (MemoryCheck, {"dataset": replace(FILE, nbytes=10 * GB)}, "warn", "it does not fit"),
    (MemoryCheck, {"dataset": replace(FOLDER, nbytes=10 * GB, counted=False)}, "warn", "has at least 10 GB"),
    (MemoryCheck, {"dataset": None}, "ok", "no dataset"),
    (MemoryCheck, {"dataset": None, "free_memory_bytes": GB // 2}, "warn", "500 MB of 13 GB free"),
    (SharedMemoryCheck, {}, "ok", "batches of 64 from 1 worker take up to 38.5 MB"),
    (SharedMemoryCheck, {"shared_memory_bytes": 64 << 20}, "warn", "67.1 MB free in /dev/shm"),
    (SharedMemoryCheck, {"shared_memory_bytes": 64 << 20, "workers": 4}, "fail", "from 4 workers take up to 125 MB"),
    (SharedMemoryCheck, {"shared_memory_bytes": 64 << 20, "workers": 0}, "ok", "no worker process needs it"),
    (SharedMemoryCheck, {"shared_memory_bytes": None}, "skip", "no /dev/shm"),
    (CoresCheck, {}, "ok", "2 cores, 1 worker asked about"),
    (CoresCheck, {"workers": None}, "ok", "at most 1 worker beside"),
    (CoresCheck, {"workers": 4, "workers_from": "running"}, "warn", "2 cores, 4 workers running"),
    (NetworkMountCheck, {}, "ok", "is on a local disk"),
    (NetworkMountCheck, {"dataset": ON_DRIVE}, "fail", "(9,000 files) is on Google Drive"),
    (NetworkMountCheck, {"dataset": replace(FILE, slow_mount="Google Drive")}, "fail", "is on Google Drive"),
    (NetworkMountCheck, {"dataset": replace(FILE, slow_mount="Google Drive", pack=None)}, "warn", "is on Google Drive"),
    (NetworkMountCheck, {"dataset": DatasetFacts("/x", "missing")}, "fail", "nothing at '/x'"),
    (NetworkMountCheck, {"dataset": UNREACHABLE}, "fail", "no answer"),
    (NetworkMountCheck, {"dataset": None}, "skip", "No path"),
    (CrowdedFolderCheck, {"dataset": ON_DRIVE}, "ok", "4,500 entries, on Google Drive"),
    (CrowdedFolderCheck, {"dataset": replace(ON_DRIVE, largest_folder=77_000)}, "warn", "77,000 entries"),
    (CrowdedFolderCheck, {"dataset": replace(FOLDER, largest_folder=77_000)}, "ok", "of any size"),
    (CrowdedFolderCheck, {}, "skip", "is not a folder"),
    (CrowdedFolderCheck, {"dataset": None}, "skip", "No path"),
    (CrowdedFolderCheck, {"dataset": UNREACHABLE}, "skip", "Not known"),
    (ResidencyCheck, {}, "ok", "100% of the file"),
    (ResidencyCheck, {"dataset": replace(FILE, resident=0.4)}, "warn", "40% of the file"),
    (ResidencyCheck, {"dataset": FOLDER}, "skip", "is not a file on a local disk"),
    (ResidencyCheck, {"dataset": UNREACHABLE}, "skip", "Not known"),
    (PackCheck, {}, "ok", "untouched since it was staged here"),
    (PackCheck, {"dataset": replace(FILE, pack=replace(PACK, sealed=False))}, "warn", "changed since it was staged"),
    (PackCheck, {"dataset": replace(FILE, pack=replace(PACK, manifest="missing"))}, "warn", "5,000 samples"),
    (PackCheck, {"dataset": replace(FILE, pack=replace(PACK, manifest="missing", ours=False))}, "ok", "5,000 samples"),
    (PackCheck, {"dataset": replace(FILE, pack=replace(PACK, manifest="differs"))}, "fail", "5,000 samples"),
    (PackCheck, {"dataset": replace(FILE, pack=replace(PACK, manifest="unreadable"))}, "fail", "5,000 samples"),
    (PackCheck, {"dataset": replace(FILE, pack=None, problem="it is cut off")}, "fail", "it is cut off"),
    (PackCheck, {"dataset": FOLDER}, "skip", "is not an HDF5 file"),
    (PackCheck, {"dataset": UNREACHABLE}, "skip", "Not known, because '/x'"),
    (LibrariesCheck, {}, "ok", "numpy 2.1.3, h5py 3.16.0, torch 2.11.0"),
    (LibrariesCheck, packages(torch=None), "ok", "torch missing"),
    (LibrariesCheck, packages(torch="2.3.1"), "fail", "needed: torch 2.4 or newer"),
    (LibrariesCheck, packages(h5py=None), "fail", "needed: h5py 3.12 or newer"),
    (LibrariesCheck, packages(numpy="1.25.2"), "fail", "needed: numpy 1.26 or newer"),
    (GpuCheck, {}, "ok", "Tesla T4 (16.1 GB), idle"),
    (GpuCheck, gpu(replace(T4, utilisation=0.9)), "warn", "GPU 0 90% busy"),
    (GpuCheck, gpu(replace(T4, memory_used_bytes=9 << 30)), "warn", "9.66 GB held"),
    (GpuCheck, gpu(replace(T4, memory_used_bytes=9 << 30, processes=(GpuProcess(1),))), "ok", "idle"),
    (GpuCheck, gpu(GpuReading(0, "GPU-1", "NVIDIA A100", sliced=True)), "ok", "NVIDIA A100"),
    (GpuCheck, packages(torch="2.11.0+cpu"), "fail", "torch 2.11.0+cpu was built for CPUs only"),
    (GpuCheck, {"gpu": GpuFacts(problem="there is none")}, "warn", "there is none"),
    (
        GpuCheck,
        {"gpu": GpuFacts(problem="there is none"), "platform": replace(PLATFORM, name="python")},
        "skip",
        "there is none",
    ),
]


@pytest.mark.parametrize(
    ("kind", "changes", "status", "said"), CASES, ids=[f"{kind.__name__}-{n}" for n, (kind, *_) in enumerate(CASES)]
)
def test_a_check_judges(kind: type[Check], changes: dict[str, Any], status: Status, said: str) -> None:
    """The verdict is the one expected, and its sentence has the figures."""
    verdict = kind().check(replace(WELL, **changes))
    assert verdict.status == status, verdict
    assert said in verdict.message
    assert re.search(r"[.\w)']$", verdict.message)


def test_what_is_larger_than_the_disk_is_read_in_part() -> None:
    """The remedy names a limit that the disk has room for; a pack is opened as it is, anything else is packed first."""
    small = replace(WELL, disk=DiskFacts(9 * GB, 115 * GB))
    pack = replace(FILE, path="/content/drive/MyDrive/photos.h5", nbytes=50 * GB, slow_mount="Google Drive")
    said = DiskCheck().check(replace(small, dataset=pack))
    assert said.status == "fail"
    assert "dataset_h5('/content/drive/MyDrive/photos.h5', disk_limit=\"4GB\")" in said.remedy
    said = DiskCheck().check(replace(small, dataset=replace(ON_DRIVE, nbytes=50 * GB)))
    assert 'Give stage_dataset disk_limit="4GB": it reads the packed copy' in said.remedy


def test_every_check_has_cases_for_both_sides() -> None:
    """No check is without a case that makes it pass and one that makes it complain."""
    passing = {kind for kind, _, status, _ in CASES if status == "ok"}
    complaining = {kind for kind, _, status, _ in CASES if status in {"warn", "fail"}}
    assert {type(check) for check in ALL_CHECKS} == passing == complaining


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.title)
def test_a_remedy_is_a_paragraph_for_people(check: Check) -> None:
    """Every check's docstring is whole sentences in one paragraph."""
    remedy = remedy_of(check)
    assert 40 < len(remedy) < 500
    assert remedy.endswith(".")
    assert "  " not in remedy


def test_a_machine_that_is_well_needs_no_remedy() -> None:
    """Without a complaint the report ends with 0 and says nothing but facts."""
    report = judge_machine(WELL)
    assert report.exit_code == 0
    assert not any(finding.remedy for finding in report.findings)
    assert str(report).splitlines()[0] == "All 14 checks passed."


def test_warnings_do_not_fail() -> None:
    """What merely costs time has a remedy, and the exit code stays 0."""
    report = judge_machine(replace(WELL, folder_mount="Google Drive"))
    assert report.exit_code == 0
    assert str(report).startswith("1 warning; ")
    assert "→ Leave it: os.chdir('/content')." in str(report)


def test_what_is_broken_fails() -> None:
    """One broken thing is enough for exit code 1; the page names it, with its remedy, and escapes what it quotes."""
    report = judge_machine(replace(WELL, dataset=DatasetFacts("/x/<b>", "missing")))
    assert report.exit_code == 1
    page = report._repr_html_()
    assert "nothing at &#x27;/x/&lt;b&gt;&#x27;" in page
    assert "Check the spelling" in page
    away = judge_machine(replace(WELL, dataset=ON_DRIVE))
    assert any("Stage it: stage_dataset(path)" in finding.remedy for finding in away.findings)
    assert report.to_dict()["exit_code"] == 1
