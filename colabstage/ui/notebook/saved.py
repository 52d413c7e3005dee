"""What a notebook keeps of widgets: a picture of them beside them, for a page where no kernel answers any more.

A saved notebook has the names of its widgets and not what they showed, so that who opens it reads "model not found".
Two outputs take turns without a script: where the widgets live their own style hides the picture, and where they do not
the picture's style hides what is in their place. A notebook that is not trusted keeps the picture without styles.
"""

from __future__ import annotations

import base64
import re
import uuid
from typing import Any

# A place for widgets that has no element in it holds a sentence: that a widget is loaded, or that there is no model.
_HIDE_LOST = (
    "<style>.jp-OutputArea-child:has(.{mark}) + .jp-OutputArea-child .jp-OutputArea-output:not(:has(*))"
    "{{display:none}}</style>"
)
_HIDE_PICTURE = "<style>.jp-OutputArea-child:has(.{mark}),.{mark}{{display:none!important}}</style>"


# Where, in the widget that holds styles, ours begins: a widget may be shown several times.
_MARK = "<!-- in place of its picture -->"


_DRAWING = re.compile(r"<svg class='cs-picture' (?P<look>[^>]*)>(?P<content>.*?)</svg>", re.DOTALL)
_LOOK = re.compile(r"style='([^']*)'")
_BOX = re.compile(r"viewBox='0 0 (\d+) (\d+)'")


def as_images(drawn: str) -> str:
    """Return HTML with each drawing of a sample as an image: a notebook that is not trusted keeps only these."""

    def embedded(found: re.Match[str]) -> str:
        box, style = _BOX.search(found["look"]), _LOOK.search(found["look"])
        size = f"width='{box[1]}' height='{box[2]}'" if box is not None else ""
        look = f"xmlns='http://www.w3.org/2000/svg' font-family='sans-serif' {size} {_LOOK.sub('', found['look'])}"
        text = f"<svg {look}>{found['content']}</svg>"
        # For where styles are dropped with the drawings.
        shown = style[1] if style is not None else "width:100%;max-height:150px;object-fit:contain"
        encoded = base64.b64encode(text.encode()).decode()
        return f"<img class='cs-picture' alt='' style='{shown}' src='data:image/svg+xml;base64,{encoded}'>"

    # Side by side without a style sheet too; with one the grid says how wide a cell is.
    cells = drawn.replace("<div class='cs-cell'>", "<div class='cs-cell' style='float:left;width:150px'>")
    return f"{_DRAWING.sub(embedded, cells)}<div style='clear:both'></div>"


def show_with_picture(widget: Any, picture: str, text: str) -> None:
    """Show a widget in a cell's output, with HTML that takes its place in a notebook that is opened later.

    Args:
        widget: a box of ipywidgets, whose first child has room for a style.
        picture: HTML.
        text: the same for what shows no HTML.
    """
    import IPython.display

    display: Any = IPython.display.display
    mark = f"cs-saved-{uuid.uuid4().hex}"
    style = widget.children[0]
    style.value = f"{style.value.partition(_MARK)[0]}{_MARK}{_HIDE_PICTURE.format(mark=mark)}"
    html = f"{_HIDE_LOST.format(mark=mark)}<div class='{mark}'>{picture}</div>"
    display({"text/html": html, "text/plain": text}, raw=True)
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    display({"application/vnd.jupyter.widget-view+json": view, "text/plain": ""}, raw=True)
