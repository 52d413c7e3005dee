"""Widgets: the fields of the staging form, what people write into them and the call that they amount to; and a picture
beside any widget, for a page where no kernel answers any more.
"""

from __future__ import annotations

import base64
import inspect
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from colabstage.errors import OptionError
from colabstage.images.options import ColorMode, Resize
from colabstage.stage.request import Keep, Verify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# The width that most formatters wrap at.
_LONGEST_LINE = 88
_IMPORT = "from colabstage import stage_dataset"
# Qualities that people use; another one can be given in code.
_ENCODINGS = ("auto", "pixels", "encoded", "jpeg:90", "jpeg:75")
_ERRORS = ("raise", "skip", "skip:1%")
# Wide enough for the longest name, so that all fields begin in one line.
_NAME_PX = 84
# Two stand beside each other, also behind the fold.
_FIELD_PX = 335


def read_source(text: str) -> str | list[str]:
    """Read one source, or several on lines of their own, which are one dataset.

    Raises:
        OptionError: there is none.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        msg = "There is no source yet. Write where the dataset is: a folder, an archive, a share link or an address."
        raise OptionError(msg)
    return lines[0] if len(lines) == 1 else lines


def write_source(source: Any) -> str:
    """Write the text that reads as `source`."""
    return "\n".join(map(str, source)) if isinstance(source, list | tuple) else str(source)


def read_size(text: str) -> tuple[int, int] | None:
    """Read `256x320` as (height, width), `256` as a square, nothing as `None`."""
    from colabstage.ui.cli.options import read_image_size

    # The command line's own reader, so that both take the same words and refuse the same.
    return None if not text.strip() else tuple(_read_as_typed(read_image_size, text, "image_size"))


def write_size(size: tuple[int, int] | None) -> str:
    """Write the text that reads as `size`."""
    return "" if size is None else f"{size[0]}x{size[1]}"


def read_splits(text: str) -> dict[str, float] | None:
    """`train=0.8,test=0.2` as fractions by name, nothing as `None`."""
    from colabstage.ui.cli.options import read_fractions

    return None if not text.strip() else dict(_read_as_typed(read_fractions, text, "splits"))


def write_splits(splits: Mapping[str, float] | None) -> str:
    """Write the text that reads as `splits`."""
    return "" if splits is None else ",".join(f"{name}={fraction:g}" for name, fraction in splits.items())


def read_place(text: str) -> str | None:
    """Read a folder, or `auto`; nothing as `None`."""
    return text.strip() or None


def write_place(place: Any) -> str:
    """Write the text that reads as `place`."""
    return "" if place is None else str(place)


def _read_as_typed(read: Callable[[str], Any], text: str, name: str) -> Any:
    """Read what the command line reads in the same words."""
    from typer import BadParameter

    try:
        return read(text)
    except BadParameter as error:
        msg = f"{name}: {error.message}"
        raise OptionError(msg) from None


def python_of(arguments: Mapping[str, Any]) -> str:
    """Write the import and the call, with those of the arguments that differ from the defaults."""
    others = changed({name: value for name, value in arguments.items() if name != "source"})
    parts = [_literal(arguments["source"]), *(f"{name}={_literal(value)}" for name, value in others.items())]
    line = f"data = stage_dataset({', '.join(parts)})"
    if len(line) > _LONGEST_LINE and others:
        line = "\n".join(["data = stage_dataset(", *(f"    {part}," for part in parts), ")"])
    return f"{_IMPORT}\n\n{line}"


def changed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments whose values are not the defaults of `stage_dataset`."""
    from colabstage.stage.run import stage_dataset

    # The function itself says what its defaults are, so that the line is right after a change of one.
    usual = inspect.signature(stage_dataset).parameters
    return {name: value for name, value in arguments.items() if value != usual[name].default}


def _literal(value: object) -> str:
    """Spell a value as `repr` does, with double quotes where that needs no escape."""
    if isinstance(value, str):
        # What Python itself writes, so that the line means the same value, whatever signs are in it.
        plain = repr(value)
        return f'"{plain[1:-1]}"' if plain[0] == "'" and not {'"', "'"} & set(value) else plain
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)


@dataclass(frozen=True, slots=True)
class FormField:
    """One argument of `stage_dataset` in the form."""

    widget: Any
    """The widget that holds the argument."""
    read: Callable[[Any], Any]
    """Turn that widget's value into the argument."""


def make_fields(widgets: Any, start: Mapping[str, Any]) -> dict[str, FormField]:
    """Make a field for each argument, by its name, in order; `start` has what is in them at first.

    Args:
        widgets: the module ipywidgets.
        start: values by argument.
    """
    from colabstage.layouts.detect import READERS

    def look(name: str) -> dict[str, Any]:
        style = {"description_width": f"{_NAME_PX}px"}
        return {"description": name, "style": style, "layout": widgets.Layout(width=f"{_FIELD_PX}px", max_width="98%")}

    def text(name: str, hint: str, read: Callable[[str], Any], write: Callable[[Any], str]) -> FormField:
        return FormField(widgets.Text(value=write(start[name]), placeholder=hint, **look(name)), read)

    def choice(name: str, words: tuple[str, ...]) -> FormField:
        value = start[name]
        # What is given in code may be a word that takes a number, as jpeg:85 does.
        options = words if value in words else (*words, value)
        return FormField(widgets.Dropdown(options=options, value=value, **look(name)), str)

    wide = look("source") | {"layout": widgets.Layout(width="auto"), "rows": 2}
    hint = "one a line: a folder, a .zip, a share link, https://…, s3://…, kaggle://…"
    return {
        "source": FormField(
            widgets.Textarea(value=write_source(start["source"]), placeholder=hint, **wide), read_source
        ),
        "layout": choice("layout", ("auto", *(reader.name for reader in READERS))),
        "image_size": text("image_size", "each its own; else 256", read_size, write_size),
        "resize": choice("resize", get_args(Resize)),
        "color_mode": choice("color_mode", get_args(ColorMode)),
        "encoding": choice("encoding", _ENCODINGS),
        "splits": text("splits", "as found; else 0.8,0.2", read_splits, write_splits),
        "keep": choice("keep", get_args(Keep)),
        "group_by": text("group_by", r"e.g. patient\d+", read_place, write_place),
        "seed": FormField(widgets.IntText(value=start["seed"], **look("seed")), int),
        "on_error": choice("on_error", _ERRORS),
        "local_dir": text("local_dir", "fast local folder", read_place, write_place),
        "cache_dir": text("cache_dir", "nowhere", read_place, write_place),
        "verify": choice("verify", get_args(Verify)),
        "hash": text("hash", "e.g. sha256:…", read_place, write_place),
        "disk_limit": text("disk_limit", "none; e.g. 20GB", read_place, write_place),
        "refresh": FormField(widgets.Checkbox(value=start["refresh"], **look("refresh")), bool),
    }


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

    # In rows without a style sheet too, however tall each image is; with one the grid says how wide a cell is.
    look = "display:inline-block;vertical-align:top;width:150px;margin:0 8px 8px 0"
    return _DRAWING.sub(embedded, drawn.replace("<div class='cs-cell'>", f"<div class='cs-cell' style='{look}'>"))


# A saved notebook has the names of its widgets and not what they showed, so that who opens it reads "model not found".
# Two outputs take turns without a script: where the widgets live their own style hides the picture, and where they do
# not the picture's style hides what is in their place. A notebook that is not trusted keeps the picture without styles.
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
