"""Widgets of ipywidgets, and what a saved notebook shows in place of them.

A saved notebook stores the names of its widgets but not their content, so readers would see "model not found". Two
outputs take turns without a script: where widgets work, their style hides the picture; where they do not, the picture's
style hides their placeholder. An untrusted notebook keeps the picture without styles.
"""

from __future__ import annotations

import base64
import re
import uuid
from importlib import import_module
from typing import TYPE_CHECKING, Any

from colabstage.io.packages import refuse_import

if TYPE_CHECKING:
    from collections.abc import Callable

# An output for a widget without any element holds only a sentence, such as "Loading widget…" or "model not found".
_HIDE_LOST = (
    "<style>.jp-OutputArea-child:has(.{mark}) + .jp-OutputArea-child .jp-OutputArea-output:not(:has(*))"
    "{{display:none}}</style>"
)
_HIDE_PICTURE = "<style>.jp-OutputArea-child:has(.{mark}),.{mark}{{display:none!important}}</style>"
# Where our part of the style widget begins: a widget may be shown several times.
_MARK = "<!-- in place of its picture -->"
_DRAWING = re.compile(r"<svg class='cs-picture' (?P<look>[^>]*)>(?P<content>.*?)</svg>", re.DOTALL)
_LOOK = re.compile(r"style='([^']*)'")
_BOX = re.compile(r"viewBox='0 0 (\d+) (\d+)'")


def import_widgets(user: str) -> Any:
    try:
        return import_module("ipywidgets")
    except ImportError as error:
        refuse_import("ipywidgets", f"{user} needs", error)


def make_button(widgets: Any, text: str, tooltip: str, press: Callable[[], object]) -> Any:
    button = widgets.Button(description=text, tooltip=tooltip)
    button.on_click(lambda _: press())
    return button


def as_images(drawn: str) -> str:
    """Return HTML with each drawing of a sample as an image, because untrusted notebooks keep only images."""

    def embedded(found: re.Match[str]) -> str:
        box, style = _BOX.search(found["look"]), _LOOK.search(found["look"])
        size = f"width='{box[1]}' height='{box[2]}'" if box is not None else ""
        look = f"xmlns='http://www.w3.org/2000/svg' font-family='sans-serif' {size} {_LOOK.sub('', found['look'])}"
        text = f"<svg {look}>{found['content']}</svg>"
        # For pages that drop styles as well as drawings.
        shown = style[1] if style is not None else "width:100%;max-height:150px;object-fit:contain"
        encoded = base64.b64encode(text.encode()).decode()
        return f"<img class='cs-picture' alt='' style='{shown}' src='data:image/svg+xml;base64,{encoded}'>"

    # In rows even without a style sheet, whatever the height of each image; with one, the grid sets the width.
    look = "display:inline-block;vertical-align:top;width:150px;margin:0 8px 8px 0"
    return _DRAWING.sub(embedded, drawn.replace("<div class='cs-cell'>", f"<div class='cs-cell' style='{look}'>"))


def show_with_picture(widget: Any, picture: str, text: str) -> None:
    """Show a box of ipywidgets, whose first child holds a style, with HTML that replaces it in a saved notebook, and a
    text for programs that show no HTML."""
    display: Any = import_module("IPython.display").display
    mark = f"cs-saved-{uuid.uuid4().hex}"
    style = widget.children[0]
    style.value = f"{style.value.partition(_MARK)[0]}{_MARK}{_HIDE_PICTURE.format(mark=mark)}"
    html = f"{_HIDE_LOST.format(mark=mark)}<div class='{mark}'>{picture}</div>"
    display({"text/html": html, "text/plain": text}, raw=True)
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    display({"application/vnd.jupyter.widget-view+json": view, "text/plain": ""}, raw=True)
