"""`profile_loader` with the real keras and tensorflow, each in a process of its own."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.nurseries import Nurseries

CHILD = Path(__file__).with_name("framework_child.py")

pytestmark = pytest.mark.timeout(240)


def found(name: str, nurseries: Nurseries) -> dict[str, Any]:
    """What the child saw; Keras there is the one with torch, if there is torch."""
    if find_spec(name) is None:
        pytest.skip(f"needs {name}: pip install -c constraints.txt --group tensorflow")
    backend = "torch" if name == "keras" and find_spec("torch") else "tensorflow"
    facts = json.loads(nurseries.run_script(backend, [CHILD, name], {}))
    assert isinstance(facts, dict)
    return facts


def test_a_keras_dataset_is_iterated_as_fit_does(nurseries: Nurseries) -> None:
    """Reading is named, workers are advised, its own threads are used, and no dice are thrown."""
    facts = found("keras", nurseries)
    assert (facts["bound"], facts["stage"]) == ("input-bound", "read")
    assert any("workers=" in argument for argument in facts["advice"])
    assert facts["same"]
    assert facts["threads_gain"] > 1.5


def test_a_tensorflow_pipeline_is_measured_link_by_link(nurseries: Nurseries) -> None:
    """Decoding is named, its own words are advised, and the order of its shuffling stays what it was."""
    facts = found("tensorflow", nurseries)
    assert (facts["bound"], facts["stage"]) == ("input-bound", "decode")
    own = ("to_tf_data(", "AUTOTUNE", ".cache()")  # TensorFlow may decode in several threads already
    assert any(word in argument for argument in facts["advice"] for word in own)
    assert facts["same"]
    # Its step trains nothing, which is said; nothing else is.
    assert [note.partition(" was found")[0] for note in facts["notes"]] == ["Nothing that trains"]
