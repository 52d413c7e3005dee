"""`stage_form`: fields, the same call as a line of Python, and buttons to plan, to stage and to cancel.

The work is done in a thread, so the kernel stays free and buttons respond.
"""

from __future__ import annotations

import contextlib
import contextvars
import html
import inspect
import re
import threading
from typing import TYPE_CHECKING, Any, Unpack, get_args

from colabstage.errors import CancelledError, ColabstageError, NotStagedError, OptionError
from colabstage.images.geometry import ColorMode, Resize
from colabstage.io.arguments import check_argument, defaults
from colabstage.io.boundary import public
from colabstage.io.display import Board, Row, panel_html
from colabstage.io.progress import Cancellation
from colabstage.io.report import COLOURS, STYLE
from colabstage.io.units import hide_secrets, parse_fractions, parse_sides
from colabstage.notebook.saved import import_widgets, make_button, show_with_picture
from colabstage.pack.options import split_fractions, square
from colabstage.stage.request import FormArguments, Keep, Verify, make_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from colabstage.sources.parse import SourceArgument
    from colabstage.stage.dataset import StagedDataset

# The width that most formatters wrap at.
_LONGEST_LINE = 88
# Common qualities; others can be given in code.
_ENCODINGS = ("auto", "pixels", "encoded", "jpeg:90", "jpeg:75")
_ERRORS = ("raise", "skip", "skip:1%")
# Wide enough for the longest name, so that all fields are aligned.
_NAME_PX = 92
_WIDTH_PX = 678
_QUOTED = re.compile(r"""^(["'])(.+)\1$""")
# The most used arguments; the others are folded.
_FIRST = ("layout", "image_size", "resize", "color_mode", "encoding", "splits", "keep")


def read_source(text: str) -> str | list[str]:
    """Read one source, or several on separate lines, which form one dataset."""
    # Paths are often copied with the quotes around them.
    lines = [_QUOTED.sub(r"\2", line.strip()) for line in text.splitlines() if line.strip()]
    if not lines:
        msg = "There is no source yet. Write where the dataset is: a folder, an archive, a share link or an address."
        raise OptionError(msg)
    return lines[0] if len(lines) == 1 else lines


def write_text(value: Any) -> str:
    """Return the text of a field for an argument: for a size, fractions, several sources, or anything else."""
    if isinstance(value, dict):
        return ",".join(f"{name}={fraction:g}" for name, fraction in value.items())
    if isinstance(value, tuple | list):
        return ("x" if isinstance(value, tuple) else "\n").join(map(str, value))
    return "" if value is None else str(value)


# For arguments that are typed as text: what an empty field means.
_TEXTS = {
    "image_size": "each its own; else 256",
    "splits": "as found; else 0.8,0.2",
    "group_by": r"e.g. patient\d+",
    "only": "all of it; e.g. train/images",
    "zip_encoding": "as declared; e.g. gbk",
    "local_dir": "fast local folder",
    "cache_dir": "nowhere",
    "hash": "e.g. sha256:…",
    "disk_limit": "none; e.g. 20GB",
}
_READERS = {"image_size": parse_sides, "splits": parse_fractions}


def python_of(arguments: Mapping[str, Any]) -> str:
    """Write the import and the call, with the arguments that differ from the defaults."""
    others = changed({name: value for name, value in arguments.items() if name != "source"})
    parts = [repr(arguments["source"]), *(f"{name}={value!r}" for name, value in others.items())]
    line = f"data = stage_dataset({', '.join(parts)})"
    if len(line) > _LONGEST_LINE and others:
        line = "\n".join(["data = stage_dataset(", *(f"    {part}," for part in parts), ")"])
    return f"from colabstage import stage_dataset\n\n{line}"


def changed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments whose values are not the defaults of `stage_dataset`."""
    from colabstage.stage.run import stage_dataset

    # The defaults come from the function itself, so the line stays right if one changes.
    usual = inspect.signature(stage_dataset).parameters
    return {name: value for name, value in arguments.items() if value != usual[name].default}


def make_fields(widgets: Any, start: Mapping[str, Any]) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Make a widget of ipywidgets for each argument, with its initial value from `start`, and what converts its value
    to the argument."""
    from colabstage.layouts.detect import LAYOUTS

    choices: dict[str, tuple[str, ...]] = {
        "layout": ("auto", *(reader.name for reader in LAYOUTS)),
        "resize": get_args(Resize),
        "color_mode": get_args(ColorMode),
        "encoding": _ENCODINGS,
        "keep": get_args(Keep),
        "on_error": _ERRORS,
        "verify": get_args(Verify),
    }

    def make(name: str, value: Any) -> tuple[Any, Callable[[Any], Any]]:
        # Two side by side, beside the margins of ipywidgets.
        layout = widgets.Layout(width="calc(50% - 4px)", min_width="min(300px, 98%)")
        look = {"description": name, "style": {"description_width": f"{_NAME_PX}px"}, "layout": layout}
        if name == "source":
            look["layout"] = widgets.Layout(width="auto")
            hint = "one a line: a folder, a .zip, a share link, https://…, s3://…, kaggle://…"
            return widgets.Textarea(value=write_text(value), placeholder=hint, rows=2, **look), read_source
        if name in _TEXTS:
            read: Callable[[str], Any] = _READERS.get(name, str.strip)
            text = widgets.Text(value=write_text(value), placeholder=_TEXTS[name], **look)
            return text, lambda typed: read(typed) if typed.strip() else None
        if name in choices:
            words = choices[name]
            # Code may give a value with a number in it, such as jpeg:85.
            options = words if value in words else (*words, value)
            return widgets.Dropdown(options=options, value=value, **look), str
        if isinstance(value, bool):
            return widgets.Checkbox(value=value, **look), bool
        return widgets.IntText(value=value, **look), int

    return {name: make(name, value) for name, value in start.items()}


@public(
    make_request,
    arguments=FormArguments,
    remedies={"prepare": "A function cannot be written into a field; write stage_dataset(…, prepare=prepare)."},
)
def stage_form(source: SourceArgument = "", **arguments: Unpack[FormArguments]) -> StageForm:
    """Show the arguments of `stage_dataset` as a form, with buttons to plan, stage and cancel.

        form = stage_form("/content/drive/MyDrive/photos.zip", image_size=(256, 256))
        form

    and, in a cell below, once it is staged:

        train = form.dataset.loader("train", batch_size=64)

    The form also shows the same call in Python, so that you end up with code.

    Args:
        source: where the dataset is, as in `stage_dataset`: the initial value of that field.
        **arguments: those of `stage_dataset` that can be written as text: the initial values of the other fields.

    Returns:
        The form, which a notebook shows if it is a cell's last line; `.dataset` is what was staged.

    Raises:
        MissingDependencyError: ipywidgets is not installed.
        OptionError: a size or fractions are invalid.
        TypeError: an argument is unknown.
    """
    widgets = import_widgets("stage_form")
    sources = list(source) if isinstance(source, list | tuple) else [source]
    for part in sources:
        check_argument("source", part, "path")
    start = {"source": sources, **defaults(make_request, FormArguments), **arguments}
    # As the fields write them; invalid values are refused here already.
    fractions = split_fractions(arguments.get("splits"))
    start["image_size"] = square(arguments.get("image_size"))
    start["splits"] = None if fractions is None else dict(fractions)
    return StageForm(widgets, start)


class StageForm:
    """The form of `stage_form`. Its buttons and fields can be used from code too.

    Attributes:
        fields: the widget of each argument, by the argument's name.
        busy: whether planning or staging is running.
        error: the error of the last plan or staging.
    """

    def __init__(self, widgets: Any, start: Mapping[str, Any]) -> None:
        """Create the widgets from the module ipywidgets; `start` has the initial values by argument."""
        # A second click may come before the first has taken effect.
        self._lock, self._cancellation = threading.Lock(), Cancellation()
        self._dataset: StagedDataset | None = None
        self._fields = make_fields(widgets, start)
        self.fields = {name: widget for name, (widget, _) in self._fields.items()}
        self.busy = False
        self.error: BaseException | None = None
        self._line, self._panel, self._outcome = (widgets.HTML() for _ in range(3))
        self._plan_button = make_button(widgets, "Plan", "Say what would be done, and do nothing", self.plan)
        self._stage_button = make_button(widgets, "Stage", "Make the dataset local and ready", self.stage)
        self._stage_button.button_style = "primary"
        self._cancel_button = make_button(widgets, "Cancel", "Stop, and keep what is finished", self.cancel)
        self._cancel_button.disabled = True
        self.widget = self._arranged(widgets)
        # Registered once drawing is possible, because setting a value from code calls it too.
        for widget in self.fields.values():
            widget.observe(lambda _: self._changed(), names="value")
        self._show_line()

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the values of the fields, as arguments of `stage_dataset`."""
        return {name: read(widget.value) for name, (widget, read) in self._fields.items()}

    @property
    def code(self) -> str:
        """Return the same as Python code: an import and one call."""
        return python_of(self.arguments)

    @property
    def dataset(self) -> StagedDataset:
        """Return the dataset that was staged last."""
        if self._dataset is None:
            msg = (
                "The form is still staging; wait until it says that all is done."
                if self.busy
                else "The form has staged nothing yet. Press its button Stage first, or call stage_dataset."
            )
            # The error of the last try is the cause, and a traceback shows it.
            raise NotStagedError(msg) from self.error
        return self._dataset

    def plan(self) -> None:
        """Show what staging would do. Returns at once; does nothing while the form is busy."""
        self._start(self._plan, cancellable=False)

    def stage(self) -> None:
        """Stage as the fields say. Returns at once; does nothing while the form is busy."""
        self._start(self._stage, cancellable=True)

    def cancel(self) -> None:
        """Ask the running staging to stop, which it does at its next file."""
        if self.busy:
            self._cancellation.cancel()
            self._cancel_button.disabled = True
            self._say("Cancelling …")

    def __repr__(self) -> str:
        state = "busy" if self.busy else "nothing staged yet" if self._dataset is None else repr(self._dataset)
        return f"StageForm: {state}"

    def _ipython_display_(self) -> None:
        words = "The form of stage_form: run this cell to see it."
        show_with_picture(self.widget, self._line.value + _line_html(words, muted=True), words)

    def _arranged(self, widgets: Any) -> Any:
        wrap = widgets.Layout(flex_flow="row wrap")
        fields = dict(self.fields)
        source = fields.pop("source")
        first = widgets.Box([fields.pop(name) for name in _FIRST], layout=wrap)
        # Not an accordion, which the keyboard does not reach; without the kernel, which may be busy.
        more = widgets.ToggleButton(description="more")
        more.add_class("cs-more")
        style = widgets.HTML("<style>.cs-more:not(.mod-active) + *{display:none!important}</style>")
        others = widgets.Box(list(fields.values()), layout=wrap)
        buttons = widgets.HBox([self._plan_button, self._stage_button, self._cancel_button])
        # The first child also gets the style that hides the form's picture.
        rows = [style, source, first, more, others, self._line, buttons, self._panel, self._outcome]
        form = widgets.VBox(rows, layout=widgets.Layout(max_width=f"{_WIDTH_PX}px"))
        form.add_class("colabstage-form")
        return form

    @property
    def _is_empty(self) -> bool:
        return not self.fields["source"].value.strip()

    def _changed(self) -> None:
        self._show_line()
        if not self.busy:
            # It described the earlier values of the fields.
            self._panel.value = self._outcome.value = ""

    def _show_line(self) -> None:
        try:
            self._line.value = _code_html(self.code)
        except OptionError as error:
            # Nobody has done anything wrong in a form that is still empty.
            self._line.value = _line_html(str(error), muted=self._is_empty, colour="" if self._is_empty else "fail")

    def _start(self, work: Callable[[], None], *, cancellable: bool) -> None:
        with self._lock:
            if self.busy:
                return
            self.busy = True
        self._cancellation, self.error = Cancellation(), None
        self._set_buttons(running=True, cancellable=cancellable)

        def run() -> None:
            _put(self._panel, "")
            self._say("Looking at the source …")
            try:
                work()
            except CancelledError as error:
                self.error = error
                self._say("Cancelled. What is finished is kept: staging again continues from there.")
            except Exception as error:  # noqa: BLE001 - shown, and kept as `error`
                self.error = error
                # A field's mistake is already shown in place of the line of code.
                is_shown = html.escape(str(error)) in self._line.value and not self._is_empty
                _put(self._outcome, "" if is_shown else _error_html(error))
            finally:
                # Under the lock: a button that is enabled here may be pressed before this thread continues; that click
                # then waits instead of being ignored.
                with self._lock:
                    self._set_buttons(running=False, cancellable=False)
                    self.busy = False

        # A daemon that ends with the kernel: finished work is kept, and the next call continues from there.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(run,), name="colabstage-form", daemon=True).start()

    def _plan(self) -> None:
        from colabstage.stage.plan import plan_stage

        _put(self._outcome, plan_stage(**changed(self.arguments))._repr_html_())

    def _stage(self) -> None:
        from colabstage.stage.run import stage_dataset

        board = Board(self._draw, cancellation=self._cancellation)
        self._dataset = stage_dataset(**changed(self.arguments), progress=board)
        words = "Done. Continue with form.dataset, or with the code above, which finds all of it here."
        _put(self._outcome, _line_html(words, colour="ok") + self._dataset._repr_html_())

    def _draw(self, rows: Sequence[Row]) -> None:
        self._panel.value = panel_html(rows)
        # "Cancelling …" stays until the work has ended.
        if not self._cancellation.cancelled:
            self._outcome.value = ""

    def _say(self, words: str) -> None:
        _put(self._outcome, _line_html(words, muted=True))

    def _set_buttons(self, *, running: bool, cancellable: bool) -> None:
        with contextlib.suppress(Exception):  # as in `_put`
            self._plan_button.disabled = self._stage_button.disabled = running
            self._cancel_button.disabled = not cancellable


def _put(widget: Any, value: str) -> None:
    # Hours of work must not end because the page that showed them is gone.
    with contextlib.suppress(Exception):
        widget.value = value


def _code_html(code: str) -> str:
    return (
        f"{STYLE}<div class='cs-report'><pre class='cs-code' style='user-select:all;margin:.4em 0;padding:.6em .8em;"
        "line-height:1.45;border-radius:4px;background:rgba(128,136,144,.14);color:inherit;white-space:pre-wrap;"
        f"word-break:normal;overflow-wrap:anywhere'>{html.escape(code)}</pre></div>"
    )


def _line_html(words: str, *, muted: bool = False, colour: str = "") -> str:
    look = f" style='color:{COLOURS[colour]};font-weight:600'" if colour else ""
    words = f"<div style='margin:.4em 0'>{html.escape(words)}</div>"
    return f"{STYLE}<div class='cs-report{' cs-muted' if muted else ''}'{look}>{words}</div>"


def _error_html(error: Exception) -> str:
    words = (
        # Our messages are safe to show; another library's may quote an address with a token in it.
        str(error) if isinstance(error, ColabstageError) else f"{hide_secrets(str(error))} (form.error has all of it)"
    )
    return (
        f"{STYLE}<div class='cs-report cs-error'><b style='color:{COLOURS['fail']}'>{type(error).__name__}</b>: "
        f"{html.escape(words)}</div>"
    )
