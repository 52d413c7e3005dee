"""What people meet in a real browser: that widgets answer, the dataset browser, staging by a form and in a cell.

In one module, because all of its tests share one JupyterLab that is open in one Chromium.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from tests.notebook.packs import PACKS
from tests.support.archives import stored_zip
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import WebServer
from tests.support.images import in_classes, noise

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser import Notebook, OpenNotebook, Theme


def test_a_person_looks_at_a_dataset(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    """The grid appears; pages turn; bars filter; a click on a picture enlarges it; boxes and masks are seen.

    One notebook for all of it, because opening one takes seconds.
    """
    files = {name: str(PACKS[name](tmp_path / f"{name}.h5")) for name in ("labels", "boxes", "masks", "long names")}
    notebook = open_notebook(
        "import colabstage",
        f"colabstage.browse_dataset({files['labels']!r}, page_size=8)",
        f"colabstage.browse_dataset({files['boxes']!r})",
        f"colabstage.browse_dataset({files['masks']!r}, page_size=6)",
        f"colabstage.browse_dataset({files['long names']!r}, page_size=6)",
        f"colabstage.plot_class_balance({files['labels']!r})",
        theme="dark",
        width=1000,
        height=2600,
    )
    notebook.run()
    page = notebook.page
    first, boxes, masks, long = (page.locator(".cs-browse.widget-vbox").nth(number) for number in range(4))

    first.locator(".cs-name", has_text="#7 ").wait_for()
    first.get_by_role("spinbutton", name="page").fill("2")
    first.get_by_role("spinbutton", name="page").press("Enter")
    first.locator(".cs-name", has_text="#15 ").wait_for()

    # By the name that a screen reader reads, with the keyboard.
    first.get_by_role("button", name="van: Show only this class").press("Enter")
    first.get_by_text("10 samples of class van").wait_for()
    assert first.locator(".cs-grid .cs-name:not(.cs-muted)").all_inner_texts() == ["van\u200b"] * 8
    first.locator(".cs-over-bars button").nth(0).click()
    first.get_by_text("10 samples of class car").wait_for()

    # The faceless button that a click on the fifth picture meets is the fifth.
    first.locator(".cs-cell").nth(4).click(force=True)
    first.get_by_text("train[12]").wait_for()
    assert first.locator(".cs-large svg").bounding_box()["width"] > 200  # type: ignore[index]
    first.get_by_role("button", name="Back to the page").click()
    first.locator(".cs-name", has_text="#12 ").wait_for()

    boxes.locator(".cs-grid rect").first.wait_for()
    assert boxes.locator(".cs-grid rect").count() == 8
    assert boxes.locator(".cs-grid text").first.text_content() == "car"
    masks.locator(".cs-legend", has_text="car").wait_for()
    inside = "one => one.getBoundingClientRect().right <= one.closest('.cs-bars').getBoundingClientRect().right"
    assert long.locator(".cs-bar-count").first.evaluate(inside)

    # Drawn without pyplot, and shown all the same.
    page.locator(".jp-OutputArea-output img[src^='data:image/png']").first.wait_for()
    notebook.screenshot("browse")
    assert notebook.errors == []


@pytest.mark.long
def test_a_saved_notebook_shows_a_picture(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    """Live, the widgets and no picture of them; opened again, the pictures and no word of models, trusted or not.

    The short form is test_plots.py, without a page.
    """
    pack = str(PACKS["boxes"](tmp_path / "boxes.h5"))
    notebook = open_notebook(
        f"from colabstage import browse_dataset, plot_class_balance, stage_form\nbrowse_dataset({pack!r})",
        "stage_form('photos', image_size=64)",
        f"plot_class_balance({pack!r})",
        theme="dark",
        width=360,
        height=2200,
    )
    notebook.run()
    page = notebook.page
    page.locator(".cs-browse.widget-vbox .cs-grid rect").first.wait_for()
    page.locator(".colabstage-form").wait_for()
    pictures = page.locator("[class^=cs-saved]")
    assert [pictures.nth(number).is_visible() for number in range(pictures.count())] == [False, False]
    notebook.screenshot("live-360")
    for trusted in (True, False):
        notebook.reopen(trusted=trusted)
        page.locator("[class^=cs-saved] img").first.wait_for()
        assert page.locator("[class^=cs-saved]").count() == 2
        shown = page.locator(".jp-OutputArea").all_inner_texts()
        assert any("stage_dataset(" in text for text in shown)
        lost = ("model not found", "Loading widget", "matplotlib.org")
        assert not any(words in text for text in shown for words in lost), shown
        notebook.screenshot(f"saved-{'trusted' if trusted else 'untrusted'}")
    assert notebook.errors == []


_FORM = "from colabstage import stage_form\nform = stage_form({source!r}, local_dir={place!r}, cache_dir=None)\nform"
# Twenty seconds for all of it, which comes in pieces of 1 MB; nobody waits for more than the first two.
_SLOW = 700_000
_FAST = 100_000_000


@pytest.fixture(scope="module")
def archive() -> bytes:
    """A zip of 600 PNGs of 25 kB."""
    return stored_zip({name: noise(number, size=(90, 90)) for name, number in in_classes(600).items()})


@pytest.fixture
def server(archive: bytes) -> Iterator[WebServer]:
    """Serves the archive as `photos.zip`, slowly."""
    with WebServer({"photos.zip": archive}, knobs=WebKnobs(total_bytes_per_s=_SLOW)) as served:
        yield served


def show_form(open_notebook: OpenNotebook, source: str, place: Path, theme: Theme = "light") -> Notebook:
    """Open a notebook with the form on it."""
    notebook = open_notebook(_FORM.format(source=source, place=str(place)), "form.dataset.splits", theme=theme)
    notebook.run_cell(0)
    notebook.page.locator(".colabstage-form .cs-code").wait_for()
    return notebook


def press(page: Page, name: str) -> None:
    """Click a button of the form, once it can be."""
    page.locator(".colabstage-form").get_by_role("button", name=name, exact=True).click()


_BAR = ".cs-progress tr:has(th:text('copy')) [role=progressbar]"


def wait_for_percent(page: Page, least: float) -> float:
    """Wait until the archive's bar is so far; returns how far it is."""
    deadline = time.monotonic() + 45
    while time.monotonic() < deadline:
        reached = float(page.locator(_BAR).get_attribute("aria-valuenow") or 0)
        if reached >= least:
            return reached
        page.wait_for_timeout(50)
    pytest.fail(f"the bar did not reach {least:.0f} %")


def test_progress_moves_is_cancelled_and_goes_on(
    open_notebook: OpenNotebook, server: WebServer, tmp_path: Path
) -> None:
    """The bar moves while the kernel stays free; Cancel stops it and keeps what is here; Stage again finishes."""
    notebook = show_form(open_notebook, server.url("photos.zip"), tmp_path)
    page = notebook.page
    press(page, "Stage")
    before = wait_for_percent(page, 2)
    assert wait_for_percent(page, before + 3) < 100
    notebook.screenshot("form_running")
    press(page, "Cancel")
    # Not before it has reached the kernel, or all might be there by then.
    page.get_by_text(re.compile("Cancelling …|Cancelled[.]")).wait_for()
    server.set_knobs(WebKnobs(total_bytes_per_s=_FAST))
    page.get_by_text("Cancelled. What is finished is kept").wait_for()
    assert page.locator(".cs-cancelled").count() >= 1
    assert page.locator(".cs-running").count() == 0
    notebook.screenshot("form_cancelled")
    press(page, "Stage")
    page.get_by_text("Done. Continue with form.dataset").wait_for()
    assert page.locator(".cs-running").count() == 0
    notebook.screenshot("form_done")
    notebook.run_cell(1)
    notebook.wait_for_text("{'train': 600}")
    assert notebook.errors == []


def test_fields_make_the_line_and_errors_leave_it_usable(
    open_notebook: OpenNotebook, server: WebServer, tmp_path: Path
) -> None:
    """What is typed shows in the line of Python; a wrong source is one typed line; then it plans and stages."""
    server.set_knobs(WebKnobs(total_bytes_per_s=_FAST))
    notebook = show_form(open_notebook, server.url("nothing.zip"), tmp_path, "dark")
    page = notebook.page
    press(page, "Plan")
    page.locator(".cs-error", has_text="SourceNotFoundError").wait_for()
    notebook.screenshot("form_error_dark")
    fields = page.locator(".colabstage-form")
    fields.get_by_label("source").fill(server.url("photos.zip"))
    fields.get_by_label("image_size").fill("64x48")
    fields.get_by_label("encoding", exact=True).select_option("jpeg:90")
    page.locator(".cs-code", has_text="image_size=(64, 48)").wait_for()
    page.locator(".cs-code", has_text=re.compile("encoding='jpeg:90'")).wait_for()
    press(page, "Plan")
    page.get_by_text("would be read from its source").wait_for()
    notebook.screenshot("form_plan_dark")
    press(page, "Stage")
    page.get_by_text("Done. Continue with form.dataset").wait_for()
    fields.get_by_role("button", name="more").press("Enter")
    names = fields.locator(".widget-label:visible")
    clipped = "names => names.filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText)"
    assert (names.filter(has_text="zip_encoding").count(), names.evaluate_all(clipped)) == (1, [])
    notebook.screenshot("form_done_dark")
    assert notebook.errors == []


def test_a_cell_shows_its_progress_and_can_be_stopped(
    open_notebook: OpenNotebook, server: WebServer, tmp_path: Path
) -> None:
    """While a cell stages, its panel moves; the stop button cancels, and the panel stays and says so."""
    call = f"stage_dataset({server.url('photos.zip')!r}, local_dir={str(tmp_path)!r}, cache_dir=None)"
    notebook = open_notebook(f"from colabstage import stage_dataset\n{call}", theme="dark")
    page = notebook.page
    notebook.run(wait=False)
    before = wait_for_percent(page, 2)
    assert wait_for_percent(page, before + 3) < 100
    page.get_by_text("To cancel, stop the cell").wait_for()
    notebook.screenshot("panel_running_dark")
    notebook.interrupt()
    server.set_knobs(WebKnobs(total_bytes_per_s=_FAST))
    page.locator(".cs-cancelled", has_text="pack").wait_for()
    page.locator(".jp-OutputArea-output", has_text="Stopped.").first.wait_for()
    assert page.locator(".cs-running").count() == 0
    notebook.screenshot("panel_stopped_dark")
    notebook.wait_until_idle()
    notebook.run()
    page.locator(".cs-done", has_text="pack").wait_for()
    page.get_by_text("StagedDataset").first.wait_for()
    assert page.locator(".cs-progress").count() == 1
    notebook.screenshot("panel_done_dark")
    assert notebook.errors == []
