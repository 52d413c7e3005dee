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
    assert facts["threads_gain"] > 1.5


# Links are told apart by the time they take.
@pytest.mark.alone
def test_a_tensorflow_pipeline_is_measured_link_by_link(tmp_path: Path) -> None:
    """Decoding is named, its own words are advised, and the order of its shuffling stays what it was."""
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
    own = ("to_tf_data(", "AUTOTUNE", ".cache()")  # TensorFlow may decode in several threads already
    assert any(word in argument for argument in facts["advice"] for word in own)
    assert facts["same"]
    # Its step trains nothing, which is said; nothing else is.
    assert [note.partition(" was found")[0] for note in facts["notes"]] == ["Nothing that trains"]
