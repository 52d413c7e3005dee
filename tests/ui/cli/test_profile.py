"""`colabstage profile` as a process: what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a folder with `rows.h5`."""
    with h5py.File(folder / "rows.h5", "w") as file:
        file["X_train"] = np.zeros((400, 16, 16, 3), np.uint8)
        file["Y_train"] = np.arange(400)
    command = [sys.executable, "-m", "colabstage", "profile", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_a_file_is_profiled_with_a_step_of_known_length(tmp_path: Path) -> None:
    """As JSON: a step of 30 ms is what such a small file is bound by."""
    done = run(tmp_path, "rows.h5", "--step-ms", "30", "--seconds", "1", "--batch-size", "32", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"]["bound"] == "compute-bound"
    assert found["facts"]["setting"]["batch_samples"] == 32
    assert 0 < found["headroom_samples_per_second"] < 32 / 0.03


def test_a_file_is_tuned(tmp_path: Path) -> None:
    """As text, with a call to paste first."""
    done = run(tmp_path, "rows.h5", "--tune", "--seconds", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("make_loader(dataset, 64")


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """And exit code 1."""
    done = run(tmp_path, "missing.h5")
    assert done.returncode == 1
    assert "missing.h5" in done.stderr
    assert "Traceback" not in done.stderr
