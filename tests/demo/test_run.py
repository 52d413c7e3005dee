"""The demo: a short form from end to end, and how it judges itself."""

import json
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from colabstage import stage_dataset
from demo import __main__ as demo_program
from demo.report import DemoResult, DemoSize, Session, broken_claims
from demo.train import Epoch, Training
from simulated_drive.knobs import DriveKnobs
from tests.cli.conftest import practice_environment, write_images
from tests.nurseries import Nurseries

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        find_spec("sklearn") is None,
        reason="needs scikit-learn: pip install --group demo",
    ),
]


@pytest.mark.fuse
@pytest.mark.slow
def test_the_short_demo(tmp_path: Path, nurseries: Nurseries) -> None:
    """It trains five times, stages from folder, zip and cache, its claims hold, and nothing is left behind."""
    # Slow enough that the compared times differ clearly, even on a busy machine; waiting costs no computing.
    done = subprocess.run(
        nurseries.command("torch", "script", demo_program.__file__, "--quick", "--json", "--time-scale", "0.6"),
        env={**practice_environment(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    straight, _unzipped, first, second = result["sessions"]
    assert result["broken_claims"] == []
    assert (straight["report"], first["report"]["origin"], second["report"]["origin"]) == (None, "source", "cache")
    assert result["zip_report"]["origin"] == "source"
    slowest, fastest = (one["training"]["epochs"] for one in (first, straight))
    assert max(epoch["seconds"] for epoch in slowest) < min(epoch["seconds"] for epoch in fastest)
    assert list(tmp_path.glob("colabstage-demo-*")) == []
    for expected in ("30.0 ms until its first byte", "Straight from the Drive folder", "accuracy"):
        assert expected in done.stderr


def result_of(
    source: Any, *, straight_s: float, first_s: float, second_s: float, accuracy: float = 0.99, origin: str = "cache"
) -> DemoResult:
    """A demo whose sessions had epochs of these lengths; `source`: the report of a staged one."""

    def session(name: str, seconds: float, report: Any) -> Session:
        epochs = [Epoch(seconds, 0.0, 100), Epoch(seconds, 0.0, 100)]
        return Session(name, Training(0.1, epochs, 0.1, accuracy, 2 * seconds), report)

    return DemoResult(
        100,
        1000,
        DriveKnobs(),
        session("straight", straight_s, None),
        session("unzipped", straight_s, None),
        session("first", first_s, source),
        session("second", second_s, replace(source, origin=origin)),
        source,
        0.0,
        0.0,
    )


SIZE = DemoSize(images=None, epochs=2, min_accuracy=0.95)


@pytest.mark.parametrize(
    ("figures", "complaints"),
    [
        ({}, []),
        ({"first_s": 6}, ["first: the first", "first: a later", "first: 12.0 s"]),
        (
            {"accuracy": 0.9},
            ["straight: 90", "unzipped: 90", "first: 90", "second: 90"],
        ),
        (
            {"origin": "source"},
            ["second: it was not staged from the cache."],
        ),
    ],
)
def test_claims_that_do_not_hold_are_named(tmp_path: Path, figures: dict[str, Any], complaints: list[str]) -> None:
    """The demo judges itself by its own figures, and by the origin of its data."""
    staged = stage_dataset(
        write_images(tmp_path / "photos", each=1), local_dir=tmp_path / "fast", cache_dir=None, progress=False
    )
    result = result_of(staged.report, **{"straight_s": 5, "first_s": 1, "second_s": 1, **figures})
    found = broken_claims(result, SIZE)
    assert [line.startswith(part) for line, part in zip(found, complaints, strict=True)] == [True] * len(complaints)
