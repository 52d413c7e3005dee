"""Every check of `doctor`, on facts made by hand: what makes it pass, what makes it complain, what it skips."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from colabstage.diagnose.doctor import (
    CHECKS,
    judge_cores,
    judge_crowded_folder,
    judge_current_folder,
    judge_disk,
    judge_gpu,
    judge_libraries,
    judge_machine,
    judge_memory,
    judge_mount,
    judge_network_mount,
    judge_pack,
    judge_platform,
    judge_shared_memory,
)
from colabstage.diagnose.gpu import GpuProcess, GpuReading
from colabstage.diagnose.machine_facts import DatasetFacts, MachineFacts, MountFacts, PackFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from colabstage.diagnose.doctor import Finding
    from colabstage.io.report import Status

    Check = Callable[[MachineFacts], Finding]

GB = 1_000_000_000
PACK = PackFacts(5000, 150_528, ours=True, manifest="agrees", manifest_detail="its manifest: agrees")
FILE = DatasetFacts("/content/photos.h5", "file", nbytes=GB, files=1, pack=PACK)
UNREACHABLE = DatasetFacts("/x", "unreachable", problem="no answer")
FOLDER = DatasetFacts("/content/photos", "folder", nbytes=GB, files=9000, largest_folder=4500)
ON_DRIVE = replace(FOLDER, path="/content/drive/MyDrive/photos", slow_mount="Google Drive")
ANSWERS = MountFacts("/content/drive", "Google Drive", "alive", "alive", 0.1)
T4 = GpuReading(0, "Tesla T4", 0.0, 3 << 20, 15 << 30)
VERSIONS = {"numpy": "2.1.3", "h5py": "3.16.0", "torch": "2.11.0+cu128"}
WELL = MachineFacts(
    platform="colab",
    title="Google Colab",
    system="linux",
    python="3.12.13",
    fast_dir="/content",
    free_bytes=60 * GB,
    cores=2,
    memory_bytes=13 * GB,
    free_memory_bytes=11 * GB,
    shared_memory_bytes=6 * GB,
    workers=1,
    batch_size=64,
    folder="/content",
    folder_mount=None,
    mounts=(ANSWERS,),
    versions=VERSIONS,
    gpus=(T4,),
    pid=1,
    dataset=FILE,
)


def versions(**changes: str | None) -> dict[str, Any]:
    """The facts with other versions installed."""
    return {"versions": VERSIONS | changes}


CASES: list[tuple[Check, dict[str, Any], Status, str]] = [
    (judge_platform, {}, "ok", "Google Colab, Python 3.12.13 on linux"),
    (judge_platform, {"system": "darwin"}, "warn", "on darwin"),
    (judge_platform, {"fast_dir_mount": "Google Drive"}, "warn", "which is Google Drive"),
    (judge_platform, {"fast_dir_problem": "it is read-only"}, "fail", "it is read-only"),
    (judge_disk, {}, "ok", "60 GB free"),
    (judge_disk, {"free_bytes": 3 * GB}, "warn", "3 GB free"),
    (judge_disk, {"free_bytes": GB // 2}, "fail", "Only 500 MB free"),
    (judge_disk, {"free_bytes": None}, "fail", "does not say"),
    (judge_disk, {"dataset": replace(ON_DRIVE, nbytes=29 * GB)}, "ok", "60 GB free"),
    (judge_disk, {"dataset": replace(ON_DRIVE, nbytes=31 * GB)}, "fail", "takes 62 GB (twice its size"),
    (judge_disk, {"dataset": replace(ON_DRIVE, nbytes=31 * GB, slow_mount="a network file system (nfs4)")}, "ok", "60"),
    (judge_mount, {}, "ok", "1 mount answered"),
    (judge_mount, {"mounts": (ANSWERS, replace(ANSWERS, seconds=5.0))}, "warn", "after 5.00 s"),
    (
        judge_mount,
        {"mounts": (replace(ANSWERS, state="dead", reason="not connected"),)},
        "fail",
        "not connected, after",
    ),
    (judge_mount, {"mounts": ()}, "skip", "Nothing is mounted"),
    (judge_current_folder, {}, "ok", "on a local disk"),
    (judge_current_folder, {"folder_mount": "Google Drive"}, "warn", "'/content' is on Google Drive"),
    (judge_memory, {}, "ok", "11 GB of 13 GB free; '/content/photos.h5' has 1 GB: it fits"),
    (judge_memory, {"dataset": replace(FILE, nbytes=10 * GB)}, "warn", "it does not fit"),
    (judge_memory, {"dataset": replace(FOLDER, nbytes=10 * GB, counted=False)}, "warn", "has at least 10 GB"),
    (judge_memory, {"dataset": None}, "ok", "no dataset"),
    (judge_memory, {"dataset": None, "free_memory_bytes": GB // 2}, "warn", "500 MB of 13 GB free"),
    (judge_shared_memory, {}, "ok", "batches of 64 from 1 worker take up to 38.5 MB"),
    (judge_shared_memory, {"shared_memory_bytes": 64 << 20}, "warn", "67.1 MB free in /dev/shm"),
    (judge_shared_memory, {"shared_memory_bytes": 64 << 20, "workers": 4}, "fail", "from 4 workers take up to 125 MB"),
    (judge_shared_memory, {"shared_memory_bytes": None}, "skip", "no /dev/shm"),
    (judge_cores, {}, "ok", "2 cores, 1 worker"),
    (judge_cores, {"workers": None}, "ok", "at most 1 worker beside"),
    (judge_cores, {"workers": 4}, "warn", "2 cores, 4 workers"),
    (judge_network_mount, {}, "ok", "is on a local disk"),
    (judge_network_mount, {"dataset": ON_DRIVE}, "warn", "(9,000 files) is on Google Drive"),
    (judge_network_mount, {"dataset": replace(FILE, slow_mount="Google Drive")}, "warn", "is on Google Drive"),
    (judge_network_mount, {"dataset": DatasetFacts("/x", "missing")}, "fail", "nothing at '/x'"),
    (judge_network_mount, {"dataset": UNREACHABLE}, "fail", "no answer"),
    (judge_network_mount, {"dataset": None}, "skip", "No path"),
    (judge_crowded_folder, {"dataset": ON_DRIVE}, "ok", "4,500 entries, on Google Drive"),
    (judge_crowded_folder, {"dataset": replace(ON_DRIVE, largest_folder=77_000)}, "warn", "77,000 entries"),
    (judge_crowded_folder, {"dataset": replace(FOLDER, largest_folder=77_000)}, "ok", "of any size"),
    (judge_crowded_folder, {}, "skip", "is not a folder"),
    (judge_crowded_folder, {"dataset": UNREACHABLE}, "skip", "Not known"),
    (judge_pack, {}, "ok", "its manifest: agrees"),
    (judge_pack, {"dataset": replace(FILE, pack=replace(PACK, manifest="missing"))}, "warn", "5,000 samples"),
    (judge_pack, {"dataset": replace(FILE, pack=replace(PACK, manifest="missing", ours=False))}, "ok", "5,000 samples"),
    (judge_pack, {"dataset": replace(FILE, pack=replace(PACK, manifest="differs"))}, "fail", "5,000 samples"),
    (judge_pack, {"dataset": replace(FILE, pack=None, problem="it is cut off")}, "fail", "it is cut off"),
    (judge_pack, {"dataset": FOLDER}, "skip", "is not an HDF5 file"),
    (judge_pack, {"dataset": UNREACHABLE}, "skip", "Not known, because '/x'"),
    (judge_libraries, {}, "ok", "numpy 2.1.3, h5py 3.16.0, torch 2.11.0"),
    (judge_libraries, versions(torch=None), "ok", "torch missing"),
    (judge_libraries, versions(torch="2.3.1"), "fail", "needed: torch 2.4 or newer"),
    (judge_libraries, versions(h5py=None), "fail", "needed: h5py 3.12 or newer"),
    (judge_gpu, {}, "ok", "Tesla T4 (16.1 GB), idle"),
    (judge_gpu, {"gpus": (replace(T4, utilisation=0.9),)}, "warn", "GPU 0 90% busy"),
    (judge_gpu, {"gpus": (replace(T4, memory_used_bytes=9 << 30),)}, "warn", "9.66 GB held"),
    (judge_gpu, {"gpus": (replace(T4, memory_used_bytes=9 << 30, processes=(GpuProcess(1),)),)}, "ok", "idle"),
    (judge_gpu, versions(torch="2.11.0+cpu"), "fail", "torch 2.11.0+cpu was built for CPUs only"),
    (judge_gpu, {"gpus": (), "gpu_problem": "there is none"}, "warn", "there is none"),
    (judge_gpu, {"gpus": (), "gpu_problem": "there is none", "platform": "python"}, "skip", "there is none"),
]


def name_of(check: Check) -> str:
    """What the check is about, in a word."""
    return f"{check.__name__.removeprefix('judge_').title().replace('_', '')}Check"


@pytest.mark.parametrize(
    ("check", "changes", "status", "said"), CASES, ids=[f"{name_of(check)}-{n}" for n, (check, *_) in enumerate(CASES)]
)
def test_a_check_judges(check: Check, changes: dict[str, Any], status: Status, said: str) -> None:
    """The verdict is the one expected, and its sentence has the figures."""
    verdict = check(replace(WELL, **changes))
    assert verdict.status == status, verdict
    assert said in verdict.message
    assert re.search(r"[.\w)']$", verdict.message)


def test_every_check_has_cases_for_both_sides() -> None:
    """No check is without a case that makes it pass and one that makes it complain."""
    passing = {check for check, _, status, _ in CASES if status == "ok"}
    complaining = {check for check, _, status, _ in CASES if status in {"warn", "fail"}}
    assert set(CHECKS.values()) == passing == complaining


def test_only_what_is_broken_fails() -> None:
    """What merely costs time has a remedy, and the exit code stays 0; a page escapes what it quotes."""
    report = judge_machine(WELL)
    assert report.exit_code == 0
    assert not any(finding.remedy for finding in report.findings)
    assert str(report).splitlines()[0] == "All 11 checks passed."
    report = judge_machine(replace(WELL, folder_mount="Google Drive"))
    assert report.exit_code == 0
    assert str(report).startswith("1 warning; ")
    assert "→ Leave it: os.chdir('/content')." in str(report)
    report = judge_machine(replace(WELL, dataset=DatasetFacts("/x/<b>", "missing")))
    assert report.exit_code == report.to_dict()["exit_code"] == 1
    page = report._repr_html_()
    assert "nothing at &#x27;/x/&lt;b&gt;&#x27;" in page
    assert "Check the spelling" in page
