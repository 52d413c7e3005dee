"""`profile_loader` with the real keras and tensorflow, each in a process of its own."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.nurseries import Nurseries

CHILD = Path(__file__).with_name("framework_child.py")

pytestmark = pytest.mark.timeout(240)


def test_a_keras_dataset_is_iterated_as_fit_does(nurseries: Nurseries) -> None:
    """Reading is named, workers are advised, its own threads are used, and random generators are restored."""
    if find_spec("keras") is None:
        pytest.skip("needs keras: pip install -c constraints.txt --group tensorflow")
    backend = "torch" if find_spec("torch") else "tensorflow"
    facts = json.loads(nurseries.run_script(backend, [CHILD, "keras"], {}))
    assert (facts["bound"], facts["stage"]) == ("input-bound", "read")
    assert any("workers=" in argument for argument in facts["advice"])
    assert facts["same"]
    assert facts["put_back"] == [True, True]
    assert facts["threads_gain"] > 1.5


def test_a_tensorflow_pipeline_is_measured_by_its_prefixes(nurseries: Nurseries) -> None:
    """Decoding is named, the advice uses TensorFlow's terms, and the note says what was not restored."""
    if find_spec("tensorflow") is None:
        pytest.skip("needs tensorflow: pip install -c constraints.txt --group tensorflow")
    facts = json.loads(nurseries.run_script("tensorflow", [CHILD, "tensorflow"], {}))
    assert (facts["bound"], facts["stage"]) == ("input-bound", "decode")
    assert any("AUTOTUNE" in argument for argument in facts["advice"])
    # Without prefixes, no stage is invented.
    assert facts["plain"] == ["input-bound", None]
    assert ["huffling" in note for note in facts["notes"]] == [True]
