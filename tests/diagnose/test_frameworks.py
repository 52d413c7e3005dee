"""`profile_loader` with the real keras and tensorflow, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.nurseries import Nurseries

CHILD = Path(__file__).with_name("framework_child.py")

pytestmark = pytest.mark.timeout(240)


def facts_of(line: str) -> dict[str, Any]:
    """What the child saw, of what it printed."""
    facts = json.loads(line)
    assert isinstance(facts, dict)
    return facts


def test_a_keras_dataset_is_iterated_as_fit_does(nurseries: Nurseries) -> None:
    """Reading is named, workers are advised, its own threads are used, and no rng are thrown."""
    if find_spec("keras") is None:
        pytest.skip("needs keras: pip install -c constraints.txt --group tensorflow")
    backend = "torch" if find_spec("torch") else "tensorflow"
    facts = facts_of(nurseries.run_script(backend, [CHILD, "keras"], {}))
    assert (facts["bound"], facts["stage"]) == ("input-bound", "read")
    assert any("workers=" in argument for argument in facts["advice"])
    assert facts["same"]
    assert facts["put_back"] == [True, True]
    assert facts["threads_gain"] > 1.5


def test_a_tensorflow_pipeline_is_measured_by_its_prefixes(tmp_path: Path) -> None:
    """Decoding is named, TensorFlow's own words are advised, and the note says what was not put back."""
    if find_spec("tensorflow") is None:
        pytest.skip("needs tensorflow: pip install -c constraints.txt --group tensorflow")
    # Started as a person's process is, and not forked.
    variables = {"KERAS_BACKEND": "tensorflow", "KERAS_HOME": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-P", CHILD, "tensorflow"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    facts = facts_of(done.stdout.splitlines()[-1])
    assert (facts["bound"], facts["stage"]) == ("input-bound", "decode")
    assert any("AUTOTUNE" in argument for argument in facts["advice"])
    # Without prefixes no stage is made up.
    assert facts["plain"] == ["input-bound", None]
    assert ["huffling" in note for note in facts["notes"]] == [True]
