"""The demo: a short form of it from end to end, where a Drive can be mounted and where not, and its own judgement."""

from __future__ import annotations

import json
import subprocess
import tempfile
import zipfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from colabstage.simulate.knobs import DriveKnobs
from colabstage.stage.dataset import StageReport
from colabstage.ui.demo.report import DemoResult, DemoSize, Session, broken_claims
from colabstage.ui.demo.run import SIDE, times_of, write_digits
from colabstage.ui.demo.train import Epoch, FolderOfImages, Training, stock_loader
from colabstage.ui.plots import plot_epochs
from tests.ui.conftest import COMMAND, Done, Run, practice_environment

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        find_spec("sklearn") is None or find_spec("matplotlib") is None,
        reason="needs scikit-learn and matplotlib: pip install 'colabstage[demo]'",
    ),
]


WORDS = ("demo", "--quick", "--out", "pictures", "--json", "--time-scale")


def check_result(done: Done, folder: Path) -> dict[str, Any]:
    """Sessions as they are promised, a picture, and nothing left behind; returns what is on stdout."""
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    straight, *unzipped, first, second = result["sessions"]
    assert [session["name"] for session in unzipped] == ["zip copied and unpacked"] * result["mounted"]
    assert result["broken_claims"] == []
    assert (straight["report"], first["report"]["origin"], second["report"]["origin"]) == (None, "source", "cache")
    assert max(epoch["seconds"] for epoch in first["epochs"]) < min(epoch["seconds"] for epoch in straight["epochs"])
    with Image.open(folder / "pictures" / "demo.png") as picture:
        assert picture.size[0] > 1000
    assert list(folder.glob("colabstage-*")) == []
    return result


@pytest.mark.fuse
@pytest.mark.slow
def test_the_short_demo_on_a_mounted_drive(tmp_path: Path) -> None:
    """It trains five times, stages from folder, zip and cache, and its claims hold."""
    done = subprocess.run(
        [*COMMAND, *WORDS, "0.3"],
        cwd=tmp_path,
        env={**practice_environment(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    result = check_result(done, tmp_path)
    assert result["mounted"] is True
    assert result["zip"]["origin"] == "source"
    for expected in (
        "15.0 ms until its first byte",
        "Straight from the Drive folder",
        "copy from cache",
        "accuracy",
        "fastest, and count",
    ):
        assert expected in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("fonts_are_open")
def test_the_short_demo_where_nothing_can_be_mounted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so and why, and shows the same with reads that take as long as on Drive."""
    # Where no program is found, fusermount3 is not.
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    threads = torch.get_num_threads()
    # Of one process that reads one file after the other, each wait counts in full.
    done = run(*WORDS, "0.1")
    result = check_result(done, tmp_path)
    assert result["mounted"] is False
    assert "Nothing can be mounted here." in done.stderr
    assert "apt-get install fuse3" in done.stderr
    assert torch.get_num_threads() == threads, "the demo trains with one thread, and then as before"


def test_digits_are_written_as_folder_and_zip(tmp_path: Path) -> None:
    """80 to 20, the same for the same seed, one folder a class; the zip holds the same files."""
    assert write_digits(tmp_path, images=200, seed=3)[0] == 200
    train, test = (FolderOfImages(tmp_path / "digits" / split) for split in ("train", "test"))
    assert (len(train), len(test)) == (160, 40)
    images, labels = next(iter(stock_loader(train, workers=0, shuffle=False, seed=0)))
    assert (images.shape[1:], images.dtype, labels.dtype) == ((1, SIDE, SIDE), torch.float32, torch.int64)
    assert 0 <= float(images.min()) < 0.1
    assert 0.9 < float(images.max()) <= 1
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("digits/*/*/*.jpg")}
    with zipfile.ZipFile(tmp_path / "digits.zip") as archive:
        assert set(archive.namelist()) == names


def result_of(*, straight_s: float, first_s: float, second_s: float, accuracy: float = 0.99) -> DemoResult:
    """A demo whose sessions had epochs of these lengths."""

    def session(name: str, seconds: float, report: StageReport | None) -> Session:
        epochs = [Epoch(seconds, 0.0, 100), Epoch(seconds, 0.0, 100)]
        return Session(name, Training(0.1, epochs, 0.1, accuracy, 2 * seconds), report)

    return DemoResult(
        100,
        1000,
        DriveKnobs(),
        True,
        session("straight", straight_s, None),
        None,
        session("first", first_s, StageReport(origin="source")),
        session("second", second_s, StageReport(origin="cache")),
        None,
        0.0,
        0.0,
        Path("demo.png"),
    )


SIZE = DemoSize(images=None, epochs=2, min_accuracy=0.95)


def test_claims_that_hold() -> None:
    """Faster epochs, faster sessions, enough accuracy: nothing to complain about."""
    assert broken_claims(result_of(straight_s=5, first_s=1, second_s=1), SIZE) == []


@pytest.mark.parametrize(
    ("result", "complaints"),
    [
        (result_of(straight_s=5, first_s=6, second_s=1), ["first: the first", "first: a later", "first: 12.0 s"]),
        (result_of(straight_s=5, first_s=1, second_s=5), ["second: the first", "second: a later", "second: 10.0 s"]),
        (result_of(straight_s=5, first_s=1, second_s=1, accuracy=0.9), ["straight: 90", "first: 90", "second: 90"]),
    ],
)
def test_claims_that_do_not_hold_are_named(result: DemoResult, complaints: list[str]) -> None:
    """The demo judges itself by its own figures."""
    found = broken_claims(result, SIZE)
    assert [line.startswith(part) for line, part in zip(found, complaints, strict=True)] == [True] * len(complaints)


def test_a_second_session_that_did_not_use_the_cache_is_named() -> None:
    """Where the data came from is part of the claim."""
    result = result_of(straight_s=5, first_s=1, second_s=1)
    result.second = replace(result.second, report=StageReport(origin="source"))
    assert broken_claims(result, SIZE) == ["second: it was not staged from the cache."]


def draw(path: Path) -> None:
    """A chart of sessions of very different lengths."""
    result = result_of(straight_s=500, first_s=0.001, second_s=1)
    sessions = {session.name: times_of(session.training) for session in result.sessions}
    plot_epochs(sessions, title="A title", note="A note").savefig(path, dpi=150)


@pytest.fixture(scope="module")
def fonts_are_open(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Matplotlib keeps the font files that it has used open for good; so it opens them before leaks are looked for."""
    draw(tmp_path_factory.mktemp("fonts") / "chart.png")


@pytest.mark.usefixtures("fonts_are_open")
def test_the_chart_is_drawn_without_a_display(tmp_path: Path) -> None:
    """A PNG of the promised width, whatever the lengths of the bars."""
    draw(tmp_path / "chart.png")
    with Image.open(tmp_path / "chart.png") as picture:
        assert (picture.format, picture.size[0]) == ("PNG", 1650)
