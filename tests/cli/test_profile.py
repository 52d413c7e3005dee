"""`colabstage profile`: what it prints, and how it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run

pytestmark = pytest.mark.torch


def rows(folder: Path) -> None:
    """Make `rows.h5` in a folder."""
    with h5py.File(folder / "rows.h5", "w") as file:
        file["X_train"] = np.zeros((400, 16, 16, 3), np.uint8)
        file["Y_train"] = np.arange(400)


def test_a_file_is_profiled_with_a_step_of_known_length(start: Run, tmp_path: Path) -> None:
    """As JSON: a step of 200 ms is what such a small file is bound by, on a busy machine too."""
    rows(tmp_path)
    done = start("profile", "rows.h5", "--step-ms", "200", "--seconds", "2", "--batch-size", "32", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"]["bound"] == "compute-bound"
    assert found["facts"]["batch_samples"] == 32
    assert 0 < found["headroom_samples_per_s"] < 32 / 0.2


def test_what_to_do_next_is_said_in_flags(run: Run, tmp_path: Path) -> None:
    """Without a step, the option that gives one; with it, no word of a model that nobody passed."""
    rows(tmp_path)
    for flags, said in (((), "--step-ms"), (("--step-ms", "1"), "bound")):
        done = run("profile", "rows.h5", "--seconds", "0.5", *flags)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
        assert "handed over" not in done.stdout


def test_a_file_is_tuned(run: Run, tmp_path: Path) -> None:
    """As text, with a call to paste first."""
    rows(tmp_path)
    done = run("profile", "rows.h5", "--tune", "--seconds", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("make_loader(dataset, 64")


def test_a_file_that_is_not_there_is_one_line(run: Run) -> None:
    """And exit code 1."""
    done = run("profile", "missing.h5")
    assert done.returncode == 1
    assert "missing.h5" in done.stderr
    assert "Traceback" not in done.stderr
