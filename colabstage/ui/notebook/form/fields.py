"""The fields of the form: widgets that hold the arguments of `stage_dataset`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from colabstage.images.options import ColorMode, Resize
from colabstage.stage.request import Keep, Verify
from colabstage.ui.notebook.form.reading import (
    read_place,
    read_size,
    read_source,
    read_splits,
    write_place,
    write_size,
    write_source,
    write_splits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ENCODINGS = ("auto", "pixels", "encoded", "jpeg:90", "jpeg:75")
_ERRORS = ("raise", "skip", "skip:1%")
# Wide enough for the longest name, so that all fields begin in one line.
_NAME_PX = 84
_FIELD_PX = 350


@dataclass(frozen=True, slots=True)
class Field:
    """One argument: the widget that holds it, and what that widget's value means."""

    widget: Any
    read: Callable[[Any], Any]


def make_fields(widgets: Any, start: Mapping[str, Any]) -> dict[str, Field]:
    """A field for each argument, by its name, in order; `start` has what stands in them at first.

    Args:
        widgets: the module ipywidgets.
        start: values by argument.
    """
    maker = _Maker(widgets, start)
    return {
        "source": maker.lines("source", "one a line: a folder, a .zip, a share link, https://…, s3://…, kaggle://…"),
        "layout": maker.choice("layout", ("auto", *_layout_names())),
        "image_size": maker.text("image_size", "each image's own; else 256x256", read_size, write_size),
        "resize": maker.choice("resize", get_args(Resize)),
        "color_mode": maker.choice("color_mode", get_args(ColorMode)),
        "encoding": maker.choice("encoding", _ENCODINGS),
        "splits": maker.text("splits", "as found; else train=0.8,test=0.2", read_splits, write_splits),
        "keep": maker.choice("keep", get_args(Keep)),
        "group_by": maker.text("group_by", r"nothing; else an expression: patient\d+", read_place, write_place),
        "seed": maker.number("seed"),
        "on_error": maker.choice("on_error", _ERRORS),
        "local_dir": maker.text("local_dir", "this platform's fast folder", read_place, write_place),
        "cache_dir": maker.text("cache_dir", "nowhere; auto is MyDrive/colabstage", read_place, write_place),
        "verify": maker.choice("verify", get_args(Verify)),
        "hash": maker.text("hash", "not checked; else sha256:…", read_place, write_place),
        "refresh": maker.tick("refresh", "stage again, whatever is here or cached"),
    }


def _layout_names() -> list[str]:
    from colabstage.layouts.detect import READERS

    return [reader.name for reader in READERS]


class _Maker:
    def __init__(self, widgets: Any, start: Mapping[str, Any]) -> None:
        self._widgets = widgets
        self._start = start

    def text(self, name: str, hint: str, read: Callable[[str], Any], write: Callable[[Any], str]) -> Field:
        value = write(self._start[name])
        return Field(self._widgets.Text(value=value, placeholder=hint, **self._look(name)), read)

    def lines(self, name: str, hint: str) -> Field:
        look = {**self._look(name), "layout": self._widgets.Layout(width="auto")}
        value = write_source(self._start[name])
        return Field(self._widgets.Textarea(value=value, placeholder=hint, rows=2, **look), read_source)

    def choice(self, name: str, words: tuple[str, ...]) -> Field:
        value = self._start[name]
        # What is given in code may be a word that takes a number, as jpeg:85 does.
        options = words if value in words else (*words, value)
        return Field(self._widgets.Dropdown(options=options, value=value, **self._look(name)), str)

    def number(self, name: str) -> Field:
        return Field(self._widgets.IntText(value=self._start[name], **self._look(name)), int)

    def tick(self, name: str, text: str) -> Field:
        look = {**self._look(name), "description": text}
        return Field(self._widgets.Checkbox(value=self._start[name], **look), bool)

    def _look(self, name: str) -> dict[str, Any]:
        return {
            "description": name,
            "style": {"description_width": f"{_NAME_PX}px"},
            "layout": self._widgets.Layout(width=f"{_FIELD_PX}px"),
        }
