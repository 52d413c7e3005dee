"""The browser's widgets, pressed without a browser; with the oldest ipywidgets that is promised, too."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabstage.errors import MissingDependencyError
from tests.notebook.packs import CLASSES, PACKS, photos, write_boxed, write_pack

pytest.importorskip("ipywidgets", reason="needs ipywidgets: pip install --group notebooks")
_OLD = Path(sys.prefix) / "ipywidgets7"


def browse(path: Path, **options: Any) -> Any:
    """A browser of a file."""
    from colabstage import browse_dataset

    return browse_dataset(path, **options)


def shown(browser: Any) -> int:
    """How many pictures can be pressed."""
    return sum(button.layout.display != "none" for button in browser._grid.buttons)


def test_pages_are_turned(tmp_path: Path) -> None:
    """By buttons and by number; at the ends there is no way on."""
    browser = browse(PACKS["labels"](tmp_path / "a.h5"), page_size=8)
    assert (browser._back.disabled, browser._on.disabled, browser._of.value) == (True, False, "of 4")
    browser._on.click()
    assert ("#8 " in browser._grid.drawn.value, "#7 " in browser._grid.drawn.value) == (True, False)
    browser._page.value = 4
    assert (shown(browser), browser._on.disabled, browser.state.page) == (6, True, 3)
    browser._back.click()
    assert (shown(browser), browser._page.value) == (8, 3)


def test_class_and_split_are_chosen(tmp_path: Path) -> None:
    """By a bar, which pressed again shows all; another split has classes of its own."""
    browser = browse(PACKS["labels"](tmp_path / "a.h5"), page_size=8)
    browser._bars._bars.buttons[2].click()
    assert browser.state.rows[:3] == [2, 5, 8]
    assert "of class van" in browser._message.value
    browser._bars._bars.buttons[0].click()
    assert browser.state.rows[:2] == [0, 3]
    browser._bars._bars.buttons[0].click()
    assert browser.state.count == 30
    browser._bars._bars.buttons[0].click()
    browser._split.value = "test"
    assert (browser.state.count, shown(browser)) == (3, 3)
    assert browser._bars._bars.drawn.value.count("cs-bar-name") == len(CLASSES)


def test_a_sample_is_enlarged(tmp_path: Path) -> None:
    """By a press on it or by its number, of any class; forwards, backwards, and back to its page."""
    browser = browse(PACKS["labels"](tmp_path / "a.h5"), page_size=8)
    browser._on.click()
    # What a screen reader says of buttons without faces.
    assert browser._grid.buttons[3].tooltip == "van #11 folder/<i>train-11.jpg: Show this sample large"
    assert browser._bars._bars.buttons[2].tooltip == "van: Show only this class, or all again"
    browser._grid.buttons[3].click()
    assert "train[11]" in browser._large.value
    assert (browser._grid_box.layout.display, browser._large_box.layout.display) == ("none", "")
    back, before, following = browser._large_box.children[0].children
    following.click()
    before.click()
    before.click()
    assert "train[10]" in browser._large.value
    browser._bars._bars.buttons[1].click()
    browser._row.value = 25
    assert ("train[25]" in browser._large.value, browser.state.chosen) == (True, 1)
    browser._row.value = 26
    assert ("train[26]" in browser._large.value, browser.state.chosen) == (True, None), "no sample of this class"
    back.click()
    assert (browser.state.page, browser._grid_box.layout.display) == (3, "")


def test_many_classes_are_searched(tmp_path: Path) -> None:
    """A word finds those that hold it, and a press chooses the class that is seen there."""
    names = [f"breed {number:02}" for number in range(40)]
    bars = browse(write_pack(tmp_path / "a.h5", photos(40), np.arange(40), classes=names))
    found = bars._bars
    assert found._found.value == "14 of 40 classes"
    found._search.value = "BREED 1"
    assert found._found.value == "10 of 10 classes"
    found._bars.buttons[3].click()
    assert bars.state.rows == [13]
    assert found._search.value == "BREED 1", "a press leaves what was searched for"
    found._search.value = "cat"
    assert found._found.value == "0 of 0 classes"


def test_a_broken_image_is_said_in_its_place(tmp_path: Path) -> None:
    """The others are shown."""
    browser = browse(write_boxed(tmp_path / "a.h5", broken=2).path)
    assert (browser._grid.drawn.value.count("<svg"), shown(browser)) == (5, 6)
    assert "cs-broken" in browser._grid.drawn.value


def test_a_file_that_changes_is_an_error_that_is_seen(tmp_path: Path) -> None:
    """In the browser, because what a button's reaction raises is seen nowhere."""
    path = write_boxed(tmp_path / "a.h5").path
    browser = browse(path, page_size=2)
    path.write_bytes(path.read_bytes() + b"x")
    browser._on.click()
    assert "DamagedPackError" in browser._message.value


def test_it_can_be_read_where_nothing_can_be_pressed(tmp_path: Path) -> None:
    """The page that was shown last is there as HTML too, and a sentence as text."""
    browser = browse(PACKS["masks"](tmp_path / "a.h5"))
    drawn = browser._repr_html_()
    assert drawn.count("<img") == 24, "what is not trusted loses drawings, and keeps images"
    assert "<svg" not in drawn
    assert drawn.count("src='data:image/svg+xml;base64,") == 24
    # A row begins where the tallest cell of the one before ends, which floats would not wait for.
    assert drawn.count("<div class='cs-cell' style='display:inline-block;vertical-align:top;") == 24
    assert "30 samples in train" in repr(browser)


def test_without_ipywidgets_it_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is read."""
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(MissingDependencyError, match="pip install ipywidgets"):
        browse(tmp_path / "nothing.h5")


@pytest.mark.long
@pytest.mark.skipif(not _OLD.is_dir(), reason="needs ipywidgets 7.7 in a folder of its own: make .venv/.ipywidgets7")
def test_with_the_ipywidgets_of_colab() -> None:
    """All of the above with version 7.7, in a process of its own."""
    code = (
        f"import sys; sys.path.insert(0, {str(_OLD)!r})\n"
        "import ipywidgets, pytest\n"
        "assert ipywidgets.__version__.startswith('7.')\n"
        f"sys.exit(pytest.main([{__file__!r}, '-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', '-k', 'not colab']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
