"""Every check of `doctor`, on facts made by hand: what passes, what is reported, what is skipped."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from colabstage import doctor
from colabstage.io.report import Status


def other(part: Any, **changes: Any) -> Any:
    """The same part of the facts with changes."""
    return SimpleNamespace(**{**vars(part), **changes})


GB = 1_000_000_000
FILE = SimpleNamespace(path="/content/photos.h5", state="file", slow_mount=None, problem=None, instead="")
MISSING = other(FILE, path="/x", state="missing")
UNREACHABLE = other(MISSING, state="unreachable", problem="no answer")
ON_DRIVE = other(FILE, path="/content/drive/MyDrive/photos", state="folder", slow_mount="Google Drive")
ANSWERS = SimpleNamespace(mountpoint="/content/drive", kind="Google Drive", state="alive", reason="alive", seconds=0.1)
T4 = SimpleNamespace(
    index=0, name="Tesla T4", utilisation=0.0, memory_used_bytes=3 << 20, memory_total_bytes=15 << 30, processes=()
)
VERSIONS = {"numpy": "2.1.3", "h5py": "3.16.0", "torch": "2.11.0+cu128"}
WELL: dict[str, Any] = {
    "platform": "colab",
    "title": "Google Colab",
    "system": "linux",
    "python": "3.12.13",
    "fast_dir": "/content",
    "free_bytes": 60 * GB,
    "cores": 2,
    "memory_bytes": 13 * GB,
    "free_memory_bytes": 11 * GB,
    "folder": "/content",
    "folder_mount": None,
    "mounts": (ANSWERS,),
    "versions": VERSIONS,
    "gpus": (T4,),
    "pid": 1,
    "dataset": FILE,
}


def versions(**changes: str | None) -> dict[str, Any]:
    """The facts with other versions installed."""
    return {"versions": VERSIONS | changes}


CASES: list[tuple[str, dict[str, Any], Status, str]] = [
    ("platform", {}, "ok", "Google Colab, Python 3.12.13 on linux"),
    ("platform", {"system": "darwin"}, "warn", "on darwin"),
    ("platform", {"fast_dir_mount": "Google Drive"}, "warn", "which is Google Drive"),
    ("platform", {"fast_dir_problem": "it is read-only"}, "fail", "it is read-only"),
    ("disk", {}, "ok", "60 GB free"),
    ("disk", {"free_bytes": 3 * GB}, "warn", "3 GB free"),
    ("disk", {"free_bytes": GB // 2}, "fail", "Only 500 MB free"),
    ("disk", {"free_bytes": None}, "fail", "does not say"),
    ("mounts", {}, "ok", "1 mount answered"),
    ("mounts", {"mounts": (ANSWERS, other(ANSWERS, seconds=5.0))}, "warn", "after 5.00 s"),
    ("mounts", {"mounts": (other(ANSWERS, state="dead", reason="not connected"),)}, "fail", "not connected, after"),
    ("mounts", {"mounts": ()}, "skip", "Nothing is mounted"),
    ("current folder", {}, "ok", "on a local disk"),
    ("current folder", {"folder_mount": "Google Drive"}, "warn", "'/content' is on Google Drive"),
    ("memory", {}, "ok", "11 GB of 13 GB free"),
    ("memory", {"free_memory_bytes": GB // 2}, "warn", "500 MB of 13 GB free"),
    ("location", {}, "ok", "is on a local disk"),
    ("location", {"dataset": ON_DRIVE}, "warn", "is on Google Drive"),
    ("location", {"dataset": MISSING}, "fail", "nothing at '/x'"),
    ("location", {"dataset": UNREACHABLE}, "fail", "no answer"),
    ("location", {"dataset": None}, "skip", "No path"),
    ("libraries", {}, "ok", "numpy 2.1.3, h5py 3.16.0, torch 2.11.0"),
    ("libraries", versions(torch=None), "ok", "torch missing"),
    ("libraries", versions(torch="2.3.1"), "fail", "needed: torch 2.4 or newer"),
    ("libraries", versions(h5py=None), "fail", "needed: h5py 3.12 or newer"),
    ("GPU", {}, "ok", "Tesla T4 (16.1 GB), idle"),
    ("GPU", {"gpus": (other(T4, utilisation=0.9),)}, "warn", "GPU 0 90% busy"),
    ("GPU", {"gpus": (other(T4, memory_used_bytes=9 << 30, utilisation=None),)}, "warn", "GPU 0 0% busy, 9.66 GB held"),
    ("GPU", {"gpus": (other(T4, memory_used_bytes=9 << 30, processes=(SimpleNamespace(pid=1),)),)}, "ok", "idle"),
    ("GPU", versions(torch="2.11.0+cpu"), "fail", "torch 2.11.0+cpu was built for CPUs only"),
    ("GPU", {"gpus": (), "gpu_problem": "there is none"}, "warn", "there is none"),
    ("GPU", {"gpus": (), "gpu_problem": "there is none", "platform": "python"}, "skip", "there is none"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The report of `doctor` on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path_factory.mktemp("machine")))
        return doctor(timeout_s=2.0)


def judged(report: Any, **changes: Any) -> Any:
    """The report of `doctor` on a machine that is fine except for these facts."""
    return report.from_facts(replace(report.facts, **{**WELL, **changes}))


@pytest.mark.parametrize(
    ("check", "changes", "status", "said"), CASES, ids=[f"{check}-{n}" for n, (check, *_) in enumerate(CASES)]
)
def test_a_check_judges(report: Any, check: str, changes: dict[str, Any], status: Status, said: str) -> None:
    """The verdict is the one expected, and its sentence has the figures."""
    (verdict,) = (one for one in judged(report, **changes).findings if one.title == check)
    assert verdict.status == status, verdict
    assert said in verdict.message
    assert re.search(r"[.\w)']$", verdict.message)


def test_every_check_has_cases_for_both_sides(report: Any) -> None:
    """Every check has a case that passes and one that is reported."""
    passing = {check for check, _, status, _ in CASES if status == "ok"}
    complaining = {check for check, _, status, _ in CASES if status in {"warn", "fail"}}
    assert {one.title for one in report.findings} == passing == complaining


def test_only_what_is_broken_fails(report: Any) -> None:
    """Faults that only cost time have a remedy, and the exit code stays 0; the page escapes quoted text."""
    well = judged(report)
    assert well.exit_code == 0
    assert not any(finding.remedy for finding in well.findings)
    assert str(well).splitlines()[0] == "All 8 checks passed."
    warned = judged(report, folder_mount="Google Drive")
    assert warned.exit_code == 0
    assert str(warned).startswith("1 warning; ")
    assert "→ Leave it: os.chdir('/content')." in str(warned)
    broken = judged(report, dataset=other(MISSING, path="/x/<b>"))
    assert broken.exit_code == broken.to_dict()["exit_code"] == 1
    page = broken._repr_html_()
    assert "nothing at &#x27;/x/&lt;b&gt;&#x27;" in page
    assert "Check the spelling" in page
