"""Loops of other libraries in a resumable run: they end with the weights of a training that nothing interrupted."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

HOW = {
    "lightning": "pip install --group large",
    "transformers": "pip install transformers accelerate",
    "keras": "pip install --group tensorflow",
}


@pytest.mark.slow
@pytest.mark.timeout(300)  # a process that imports torch, and TensorFlow
@pytest.mark.parametrize(
    ("library", "deaths"),
    [
        pytest.param(
            name, deaths, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"needs {name}: {HOW[name]}")
        )
        for name, deaths in {"lightning": [9, 7], "transformers": [9, 7], "keras": [17]}.items()
    ],
)
def test_weights_are_those_of_a_training_that_nothing_interrupted(
    tmp_path: Path, library: str, deaths: list[int]
) -> None:
    """In the middle of an epoch, or for Keras from its beginning; and a training that is done is not done again."""
    command = [sys.executable, "-m", "tests.runs.loops", library, str(tmp_path), *map(str, deaths)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("from") > 0
    assert found == {"died": len(deaths), "same": True, "steps": 36, "epochs": 3, "again": 0}
