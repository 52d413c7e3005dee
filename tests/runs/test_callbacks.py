"""Loops of other libraries in a resumable run: they end with the weights of an uninterrupted training."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.nurseries import Nurseries

LOOPS = Path(__file__).with_name("loops.py")
HOW = {
    "lightning": "pip install --group large",
    "transformers": "pip install transformers accelerate",
    "keras": "pip install --group tensorflow",
}


@pytest.mark.slow
@pytest.mark.timeout(240)
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
    tmp_path: Path, nurseries: Nurseries, library: str, deaths: list[int]
) -> None:
    """After deaths in the middle of an epoch, or with Keras from its beginning; and a finished training is not
    repeated."""
    kind = "tensorflow" if library == "keras" else "torch"
    found = json.loads(nurseries.run_script(kind, [LOOPS, library, tmp_path, *map(str, deaths)], {}))
    assert found.pop("from") > 0
    assert found == {"died": len(deaths), "same": True, "steps": 36, "epochs": 3, "again": 0}
