"""The pictures: what they show, that a notebook shows them, and what cannot be drawn."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path  # noqa: TC003 - fixtures
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage.errors import EmptySourceError, OptionError
from colabstage.stage.dataset import StageReport, StageStep
from tests.ui.packs import CLASSES, photos, write_boxed, write_pack

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")

from colabstage.ui.plots import (
    RecordedStep,
    SessionTimes,
    ThroughputRecorder,
    plot_class_balance,
    plot_epochs,
    plot_image_sizes,
    plot_throughput,
    rates_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPORT = StageReport(
    steps=[
        StageStep("look", 1.0, 30, "files", moves=False),
        StageStep("copy", 10.0, 500_000_000, "B"),
        StageStep("pack", 20.0, 30_000, "samples"),
    ]
)


@pytest.fixture(scope="module", autouse=True)
def fonts_are_open() -> None:
    """Matplotlib keeps the font files that it has used open for good; so it opens them before leaks are looked for."""
    png_of(plot_epochs({"a": [1.0, 2.0], "b": [1.0, 2.0]}, note="a note"))


def png_of(figure: Any) -> bytes:
    """What a notebook shows of a figure."""
    png: bytes = figure._repr_png_()
    assert png.startswith(b"\x89PNG")
    return png


def texts(figure: Figure) -> list[str]:
    """All that is written in a figure."""
    from matplotlib.text import Text

    found = figure.findobj(lambda one: isinstance(one, Text))
    return [one.get_text() for one in found if isinstance(one, Text) and one.get_text()]


def places(figure: Figure) -> list[list[float]]:
    """Where the points of a figure are."""
    found: list[list[float]] = np.asarray(figure.axes[0].collections[0].get_offsets()).tolist()
    return found


def widths(axis: Axes) -> list[float]:
    """How long the bars of an axis are."""
    from matplotlib.patches import Rectangle

    return [patch.get_width() for patch in axis.patches if isinstance(patch, Rectangle)]


def test_epochs_show_what_is_known_of_all() -> None:
    """Lists have epochs only; what only some know is left out, and so are later epochs where one has none."""
    full = plot_epochs({"a": SessionTimes([40.0, 20.0, 30.0], 5.0, 99.0), "b": SessionTimes([4.0, 2.0], 1.0, 8.0)})
    assert [axis.get_title(loc="left") for axis in full.axes] == [
        "Until the first batch",
        "First epoch",
        "Each later epoch",
        "Whole session",
    ]
    assert "25.0 s" in texts(full)
    some = plot_epochs({"a": SessionTimes([40.0, 20.0], 5.0), "b": [4.0, 2.0]})
    assert [axis.get_title(loc="left") for axis in some.axes] == ["First epoch", "Each later epoch"]
    assert [axis.get_title(loc="left") for axis in plot_epochs({"a": [40.0, 2.0], "b": [4.0]}).axes] == ["First epoch"]
    assert len(png_of(full)) > 10_000


@pytest.mark.parametrize("sessions", [{}, {"a": [1.0], "b": []}])
def test_epochs_that_are_none(sessions: dict[str, list[float]]) -> None:
    """Refused, by name."""
    with pytest.raises(OptionError, match="one epoch at least"):
        plot_epochs(sessions)


def test_class_balance_has_a_panel_for_each_split(tmp_path: Path) -> None:
    """With the count of every class, also of those that a split lacks."""
    figure = plot_class_balance(write_pack(tmp_path / "a.h5", photos(30), np.arange(30) % 2, classes=CLASSES))
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["train (30)", "test (3)"]
    assert [widths(axis) for axis in figure.axes] == [[15, 15, 0], [2, 1, 0]]


def test_many_classes_are_the_most_and_the_least_frequent(tmp_path: Path) -> None:
    """A hundred bars cannot be read."""
    y = np.repeat(np.arange(100), np.arange(1, 101))
    figure = plot_class_balance(write_pack(tmp_path / "a.h5", np.zeros((len(y), 4), np.uint8), y))
    bars = widths(figure.axes[0])
    assert (len(bars), bars[0], bars[-1]) == (40, 100, 1)
    assert any("60 classes" in text for text in texts(figure))


def test_targets_that_are_no_classes_are_not_counted(tmp_path: Path) -> None:
    """Refused, with what they are."""
    with pytest.raises(OptionError, match="float64 numbers"):
        plot_class_balance(write_pack(tmp_path / "a.h5", photos(30), np.linspace(0, 1, 30)))


def test_sizes_of_image_files_and_of_a_folder(tmp_path: Path) -> None:
    """The same figures of a pack's headers as of a folder's."""
    from PIL import Image

    for row, image in enumerate(photos(6)):
        Image.fromarray(image[: 40 - 2 * row]).save(tmp_path / f"{row}.png")
    (tmp_path / "broken.jpg").write_bytes(b"none")
    packed = plot_image_sizes(write_boxed(tmp_path / "a.h5").path)
    loose = plot_image_sizes(tmp_path)
    zipped = plot_image_sizes(shutil.make_archive(str(tmp_path / "all"), "zip", tmp_path, "."))
    for figure in (packed, loose, zipped):
        assert places(figure) == [[56, 40 - 2 * row] for row in (5, 4, 3, 2, 1, 0)]
        assert any("56 x 35" in text for text in texts(figure))
    assert len(places(plot_image_sizes(tmp_path, most=2))) <= 2


def test_sizes_of_pixels_are_one(tmp_path: Path) -> None:
    """Packed pixels have one size."""
    figure = plot_image_sizes(write_pack(tmp_path / "a.h5", photos(30), None), split="test")
    assert any("56 x 40" in text for text in texts(figure))


def test_sizes_of_what_is_no_image(tmp_path: Path) -> None:
    """Refused: of tables, of empty folders, of none at all."""
    with pytest.raises(OptionError, match="not images"):
        plot_image_sizes(write_pack(tmp_path / "a.h5", np.zeros((30, 4)), None))
    (tmp_path / "empty").mkdir()
    with pytest.raises(EmptySourceError, match=r"\.jpg"):
        plot_image_sizes(tmp_path / "empty")
    with pytest.raises(OptionError, match="most=0"):
        plot_image_sizes(tmp_path, most=0)


def test_throughput_of_a_report() -> None:
    """A panel for bytes and one for samples; steps that only look are left out, but their time is not."""
    figure = plot_throughput(REPORT)
    assert [axis.get_ylabel() for axis in figure.axes] == ["MB/s", "samples/s"]
    assert figure.axes[0].get_xlim() == (0, 31)
    assert "copy: 50 MB/s" in texts(figure)
    assert not any(text.startswith("look") for text in texts(figure))


def test_a_recorder_notes_and_passes_on() -> None:
    """What was done when; where steps are shown as well sees the same."""
    inner = ThroughputRecorder(False)
    outer = ThroughputRecorder(inner)
    with outer.step("copy", total=100, unit="B") as step:
        for _ in range(10):
            step.advance(10)
    assert [one.amounts[-1] for one in (*outer.steps, *inner.steps)] == [100, 100]
    assert outer.steps[0].seconds == sorted(outer.steps[0].seconds)
    assert outer.cancellation is inner.cancellation
    assert len(plot_throughput(outer).axes) == 1


def test_rates_are_those_of_each_stretch() -> None:
    """However many were noted, some hundred are drawn, and together they are all that was done."""
    assert rates_of(RecordedStep("a", "B", [1.0, 2.0, 4.0], [0, 10, 50])) == ([1.0, 2.0, 4.0], [10.0, 20.0])
    seconds = [float(second) for second in range(5000)]
    edges, rates = rates_of(RecordedStep("a", "B", seconds, list(range(0, 50_000, 10))))
    assert len(rates) <= 301
    assert (edges[0], edges[-1]) == (0, 4999)
    assert set(rates) == {10.0}


def test_nothing_that_moved_cannot_be_drawn() -> None:
    """Refused."""
    with pytest.raises(OptionError, match="no throughput"):
        plot_throughput(StageReport(steps=[REPORT.steps[0]]))
    with pytest.raises(OptionError, match="no throughput"):
        plot_throughput(ThroughputRecorder(False))


def test_pyplot_is_left_alone() -> None:
    """Drawing changes no backend and opens no window."""
    code = (
        "import sys; from colabstage import plot_epochs; plot_epochs({'a': [1.0]})._repr_png_(); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
