"""The dataset browser as a person has it: in JupyterLab, in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.ui.packs import PACKS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.browser import OpenNotebook


def test_a_person_looks_at_a_dataset(open_notebook: OpenNotebook, tmp_path: Path) -> None:
    """The grid appears; pages turn; bars and lists filter; a click on a picture enlarges it; boxes and masks are seen.

    One notebook for all of it, because opening one takes seconds.
    """
    files = {name: str(PACKS[name](tmp_path / f"{name}.h5")) for name in ("labels", "boxes", "masks")}
    notebook = open_notebook(
        "import colabstage",
        f"colabstage.browse_dataset({files['labels']!r}, page_size=8)",
        f"colabstage.browse_dataset({files['boxes']!r})",
        f"colabstage.browse_dataset({files['masks']!r}, page_size=6)",
        f"colabstage.plot_class_balance({files['labels']!r})",
        theme="dark",
        width=1000,
        height=2600,
    )
    notebook.run()
    page = notebook.page
    first, boxes, masks = (page.locator(".cs-browse.widget-vbox").nth(number) for number in range(3))

    first.get_by_text("#7 ").wait_for()
    first.get_by_role("button", name="›").click()
    first.get_by_text("#15 ").wait_for()

    first.locator(".cs-over-bars button").nth(2).click()
    first.get_by_text("10 samples of class van").wait_for()
    assert first.locator(".cs-grid .cs-name:not(.cs-muted)").all_inner_texts() == ["van\u200b"] * 8
    first.get_by_role("combobox").nth(1).select_option("car (10)")
    first.get_by_text("10 samples of class car").wait_for()

    # The faceless button that a click on the fifth picture meets is the fifth.
    first.locator(".cs-cell").nth(4).click(force=True)
    first.get_by_text("train[12]").wait_for()
    assert first.locator(".cs-large svg").bounding_box()["width"] > 200  # type: ignore[index]
    first.get_by_role("button", name="Back to the page").click()
    first.get_by_text("#12 ").wait_for()

    boxes.locator(".cs-grid rect").first.wait_for()
    assert boxes.locator(".cs-grid rect").count() == 8
    assert boxes.locator(".cs-grid text").first.text_content() == "car"
    masks.locator(".cs-legend", has_text="car").wait_for()

    # Drawn without pyplot, and shown all the same.
    page.locator(".jp-OutputArea-output img").wait_for()
    notebook.screenshot("browse")
    assert notebook.errors == []
