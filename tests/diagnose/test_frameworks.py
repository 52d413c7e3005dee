"""`profile_loader` with the real keras and tensorflow, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("framework_child.py")

pytestmark = pytest.mark.timeout(200)


def found(name: str, folder: Path) -> dict[str, Any]:
    """What the child saw."""
    if find_spec(name) is None:
        pytest.skip(f"needs {name}: pip install -c constraints.txt --group tensorflow")
    backend = "torch" if find_spec("torch") else "tensorflow"
    variables = {"KERAS_BACKEND": backend, "KERAS_HOME": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-P", CHILD, name],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(facts, dict)
    return facts


def test_a_keras_dataset_is_iterated_as_fit_does(tmp_path: Path) -> None:
    """Reading is named, workers are advised, its own threads are used, and no dice are thrown."""
    facts = found("keras", tmp_path)
    assert (facts["bound"], facts["stage"]) == ("input-bound", "read")
    assert any("workers=" in argument for argument in facts["advice"])
    assert facts["same"]
    assert facts["threads_gain"] > 1.5


def test_a_tensorflow_pipeline_is_measured_link_by_link(tmp_path: Path) -> None:
    """Decoding is named, its own words are advised, and the order of its shuffling stays what it was."""
    facts = found("tensorflow", tmp_path)
    assert (facts["bound"], facts["stage"]) == ("input-bound", "decode")
    own = ("to_tf_data(", "AUTOTUNE", ".cache()")  # TensorFlow may decode in several threads already
    assert any(word in argument for argument in facts["advice"] for word in own)
    assert facts["same"]
    # Its step trains nothing, which is said; nothing else is.
    assert [note.partition(" was found")[0] for note in facts["notes"]] == ["Nothing that trains"]
