"""The notebooks that tests open are real: JupyterLab renders widgets in Chromium, in the theme asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.browser import OpenNotebook


def test_a_widget_renders_and_answers(open_notebook: OpenNotebook) -> None:
    """A click in the browser reaches the kernel, and its answer reaches the page, which is dark as asked for."""
    notebook = open_notebook(
        "import ipywidgets\nbutton = ipywidgets.Button(description='press')\nlabel = ipywidgets.Label('none')",
        "button.on_click(lambda _: setattr(label, 'value', 'pressed'))\nipywidgets.HBox([button, label])",
        theme="dark",
    )
    notebook.run()
    notebook.page.get_by_role("button", name="press").click()
    notebook.page.get_by_text("pressed", exact=True).wait_for()
    assert notebook.page.evaluate("document.body.dataset.jpThemeLight") == "false"
    assert notebook.errors == []
