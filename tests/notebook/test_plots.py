"""The pictures: what they show, that a notebook shows them, and what cannot be drawn."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from colabstage.errors import EmptySourceError, OptionError
from tests.notebook.packs import CLASSES, photos, write_boxed, write_pack

pytest.importorskip("matplotlib", reason="needs matplotlib: pip install matplotlib")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from colabstage import plot_class_balance, plot_image_sizes


@pytest.fixture(scope="module", autouse=True)
def fonts_are_open(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Matplotlib keeps the font files that it has used open for good; so it opens them before leaks are looked for."""
    pack = tmp_path_factory.mktemp("fonts") / "a.h5"
    png_of(plot_class_balance(write_pack(pack, photos(4), np.arange(4) % 2, classes=CLASSES)))


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


def test_class_balance_has_a_panel_for_each_split(tmp_path: Path) -> None:
    """With the count of every class, also of those that a split lacks."""
    names = (r"$\frac$", *CLASSES[1:])
    figure = plot_class_balance(write_pack(tmp_path / "a.h5", photos(30), np.arange(30) % 2, classes=names))
    figure._repr_html_()  # draws a name that is no formula
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
    """The same figures of a pack's headers as of a folder's, upright."""
    for row, image in enumerate(photos(6)):
        turn = Image.Exif()
        turn[0x0112] = 6 if row == 3 else 1
        pixels = image[: 40 - 2 * row]
        Image.fromarray(pixels.swapaxes(0, 1) if row == 3 else pixels).save(tmp_path / f"{row}.png", exif=turn)
    (tmp_path / "broken.jpg").write_bytes(b"none")
    packed = plot_image_sizes(write_boxed(tmp_path / "a.h5").path)
    loose = plot_image_sizes(tmp_path)
    zipped = plot_image_sizes(shutil.make_archive(str(tmp_path / "all"), "zip", tmp_path, "."))
    for figure in (packed, loose, zipped):
        assert places(figure) == [[56, 40 - 2 * row] for row in (5, 4, 3, 2, 1, 0)]
        assert any("35 x 56" in text for text in texts(figure))
    assert len(places(plot_image_sizes(tmp_path, most=2))) <= 2


def test_frequent_sizes_are_larger_dots_and_the_middle_is_marked(tmp_path: Path) -> None:
    """On axes of one length, which hold all of them: a line between shows what is square."""
    for row, side in enumerate([10, 10, 10, 30, 50]):
        Image.fromarray(np.zeros((20, side), np.uint8)).save(tmp_path / f"{row}.png")
    figure: Any = plot_image_sizes(tmp_path)
    axis, (dots,) = figure.axes[0], figure.axes[0].collections
    areas = dict(zip((int(x) for x, _ in dots.get_offsets()), dots.get_sizes(), strict=True))
    assert areas[10] > 1.3 * areas[30]
    assert areas[30] == areas[50] > 14
    middle, square = axis.lines
    assert (middle.get_xdata().tolist(), middle.get_ydata().tolist()) == ([10.0], [20.0])
    assert axis.get_xlim() == axis.get_ylim()
    assert 50 < axis.get_xlim()[1] < 60
    assert list(square.get_xdata()) == list(square.get_ydata()) == list(axis.get_xlim())


def test_sizes_of_pixels_are_one(tmp_path: Path) -> None:
    """Packed pixels have one size."""
    figure = plot_image_sizes(write_pack(tmp_path / "a.h5", photos(30), None), split="test")
    assert any("40 x 56" in text for text in texts(figure))


def test_sizes_of_what_is_no_image(tmp_path: Path) -> None:
    """Refused: of tables, of empty folders, of none at all."""
    with pytest.raises(OptionError, match="not images"):
        plot_image_sizes(write_pack(tmp_path / "a.h5", np.zeros((30, 4)), None))
    (tmp_path / "empty").mkdir()
    with pytest.raises(EmptySourceError, match=r"\.jpg"):
        plot_image_sizes(tmp_path / "empty")
    with pytest.raises(OptionError, match="most=0"):
        plot_image_sizes(tmp_path, most=0)


def test_pyplot_is_left_alone(tmp_path: Path) -> None:
    """Drawing changes no backend and opens no window."""
    Image.fromarray(photos(1)[0]).save(tmp_path / "0.png")
    code = (
        f"import sys; from colabstage import plot_image_sizes; plot_image_sizes({str(tmp_path)!r})._repr_png_(); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
