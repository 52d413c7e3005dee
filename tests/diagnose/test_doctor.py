"""`doctor` on real parts: real mounts that work, hang and die, real files, real disks, real versions."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colabstage import doctor
from colabstage.errors import OptionError
from simulated_drive.drive import SimulatedDrive
from tests.diagnose.nvidia_smi import IDLE_T4, T4, FakeSmi
from tests.support.images import in_classes, make_tree

pytestmark = pytest.mark.usefixtures("machine")


def finding(report: Any, title: str) -> Any:
    """Return a check's finding."""
    return next(one for one in report.findings if one.title == title)


def test_a_machine_alone(machine: Path) -> None:
    """Without a path the dataset's checks are skipped, the others have figures, and all of it is JSON."""
    report = doctor(timeout_s=5.0)
    skipped = {one.title for one in report.findings if one.status == "skip"}
    assert {"location", "mounts"} <= skipped
    assert finding(report, "platform").status == "ok"
    assert finding(report, "libraries").status == "ok"
    assert json.loads(json.dumps(report.to_dict()))["facts"]["cores"] >= 1
    assert not (machine / "fast").exists()


@pytest.mark.fuse
def test_a_drive_that_answers(my_drive: Path) -> None:
    """A live Drive passes; a folder on it is reported as being in the wrong place."""
    make_tree(my_drive / "photos", in_classes(6))
    report = doctor(my_drive / "photos", timeout_s=5.0)
    assert finding(report, "mounts").status == "ok"
    assert [mount.kind for mount in report.facts.mounts] == ["Google Drive"]
    assert finding(report, "location").status == "warn"
    assert "stage_dataset(path)" in finding(report, "location").remedy
    assert report.exit_code == 0


@pytest.mark.fuse
def test_a_drive_that_hangs_does_not_hang_doctor(drive: SimulatedDrive, my_drive: Path) -> None:
    """A stopped client is reported at the deadline, for the mount and for a path on it."""
    make_tree(my_drive / "photos", in_classes(2))
    drive.hang()
    try:
        began = time.monotonic()
        report = doctor(my_drive / "photos", timeout_s=1.0)
        assert time.monotonic() - began < 10.0
    finally:
        drive.go_on()
    assert finding(report, "mounts").status == "fail"
    # How long after the deadline depends on the machine's other work.
    assert re.search(r"no answer, after [1-9]\.\d+ s", finding(report, "mounts").message)
    assert finding(report, "location").message.endswith("no answer before the deadline.")
    assert report.facts.dataset is not None
    assert report.facts.dataset.slow_mount == "Google Drive"


@pytest.mark.fuse
def test_a_drive_that_died_is_reported(drive: SimulatedDrive, my_drive: Path) -> None:
    """A dead client is reported with the kernel's message, and how to mount it again."""
    drive.kill()
    report = doctor(my_drive / "photos", timeout_s=5.0)
    assert "Transport endpoint is not connected" in finding(report, "mounts").message
    assert "mount_drive()" in finding(report, "mounts").remedy
    assert "Transport endpoint is not connected" in finding(report, "location").message


@pytest.mark.fuse
def test_the_current_folder_on_a_drive_that_died(drive: SimulatedDrive, my_drive: Path) -> None:
    """Even from a folder that no longer responds, doctor says so, and a relative path is checked."""
    code = (
        "import os, sys, colabstage\n"
        "sys.path.insert(0, '')\n"  # as a notebook's kernel has it
        f"os.chdir({str(my_drive)!r})\n"
        "print('there', flush=True)\n"
        "sys.stdin.readline()\n"
        "print(colabstage.doctor('photos', timeout_s=5.0))\n"
    )
    # Without -P, Python 3.13.0 cannot import even its own modules from a folder that no longer answers.
    command = [sys.executable, "-P", "-c", code]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "there\n"
    drive.kill()
    said, _ = child.communicate("go\n", timeout=60)
    assert child.returncode == 0
    assert f"The current folder '{my_drive}' is on Google Drive." in " ".join(said.split())
    assert f"'{my_drive}/photos' could not be looked at" in " ".join(said.split())


def test_a_system_that_does_not_name_the_current_folder(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without /proc, whose links are followed elsewhere; and a file that is there but cannot be read."""
    follow = os.readlink

    def readlink(path: str) -> str:
        if path.startswith("/proc"):
            raise FileNotFoundError(path)
        return follow(path)

    monkeypatch.setattr(os, "readlink", readlink)
    monkeypatch.chdir(machine)
    found = doctor("/proc/self/mem")
    assert found.facts.folder == str(machine)
    assert finding(found, "location").message == "'/proc/self/mem' could not be looked at: Input/output error."
    assert finding(found, "location").remedy.startswith("Check its permissions")


def test_a_small_disk(machine: Path, make_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 8 MB is too small for anything, and a file is not a folder for staging."""
    assert finding(doctor(timeout_s=5.0), "disk").status in {"ok", "warn"}
    monkeypatch.setenv("COLABSTAGE_LOCAL_DIR", str(make_disk(8) / "fast"))
    found = finding(doctor(timeout_s=5.0), "disk")
    assert found.status == "fail"
    assert "Only 8." in found.message
    (machine / "file").write_bytes(b"")
    monkeypatch.setenv("COLABSTAGE_LOCAL_DIR", str(machine / "file" / "fast"))
    assert "is not a folder" in finding(doctor(timeout_s=5.0), "platform").message


def test_a_gpu_that_somebody_uses(smi: FakeSmi) -> None:
    """The driver is asked: idle is fine, busy is said with the figures. (The torch of these tests is one for CPUs.)"""
    smi.answer(IDLE_T4)
    assert "Tesla T4 (16.1 GB)" in finding(doctor(timeout_s=5.0), "GPU").message
    smi.answer(T4)
    assert doctor(timeout_s=5.0).facts.gpus[0].utilisation == 0.37


def test_a_driver_that_hangs_does_not_hang_doctor(smi: FakeSmi) -> None:
    """nvidia-smi that never responds costs the deadline."""
    smi.answer(T4, answers=0)
    began = time.monotonic()
    report = doctor(timeout_s=0.5)
    assert time.monotonic() - began < 5.0
    assert "timed out" in (report.facts.gpu_problem or "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"timeout_s": 0}, "timeout_s=0 cannot work; expected more than 0"),
        ({"path": "https://ann:pw@example.org/photos.zip"}, "'https://example.org/photos.zip' is an .*plan_stage"),
        ({"path": "s3://bucket/photos.h5"}, "'s3://bucket/photos.h5' is an address"),
        ({"path": ""}, "path='' names nothing"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], said: str) -> None:
    """Impossible numbers are named, and so are objects that are not paths."""
    with pytest.raises(OptionError, match=said):
        doctor(**arguments)
