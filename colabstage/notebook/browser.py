"""`browse_dataset`: the position in a dataset, the browser's widgets, and what each button does.

A page is one HTML text, not a widget for each sample, so it arrives in one message. The widgets are created once, and
are limited to those of ipywidgets 7.7, which Colab has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.errors import ColabstageError, DecodeError, MissingDependencyError, OptionError
from colabstage.io.boundary import public
from colabstage.io.page import COLOURS, STYLE, TEXT_COLOUR, notes
from colabstage.io.units import format_count
from colabstage.notebook.grid import LARGE_PX, THUMB_PX, draw_bars, draw_grid, draw_large, draw_legend
from colabstage.notebook.samples import Sample, SplitClasses, open_splits, read_labels, read_samples
from colabstage.notebook.saved import as_images, show_with_picture, widget_view

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from colabstage.notebook.samples import Samples, ShownSplits

_COLUMNS = (
    "display:grid!important;grid-template-columns:repeat(auto-fill,minmax(132px,1fr));grid-auto-rows:176px;gap:8px"
)
_BARS = "display:grid!important;grid-auto-rows:24px;gap:0"

BROWSE_STYLE = (
    STYLE
    + "<style>"
    + f".cs-browse,.cs-browse .widget-html-content{{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;"
    f"font-size:13px;line-height:1.4;color:{TEXT_COLOUR}}}"
    f".cs-browse .cs-grid,.cs-browse .cs-over-grid{{{_COLUMNS};width:100%}}"
    f".cs-browse .cs-bars,.cs-browse .cs-over-bars{{{_BARS};width:100%}}"
    """
.cs-browse .cs-text,.cs-browse .cs-name{color:inherit}
.cs-browse .cs-stack{display:grid!important;overflow:visible}
.cs-browse .cs-stack>*{grid-area:1/1;margin:0;width:100%;min-width:0;height:auto;align-self:start}
.cs-browse .cs-stack .widget-html-content,.cs-browse .cs-stack .jupyter-widgets{width:100%;max-width:none}
.cs-browse .cs-over{overflow:visible;margin:0;padding:0}
.cs-browse .cs-over>*{margin:0!important;width:auto!important;height:auto!important;max-width:none;min-width:0;
background:transparent!important;box-shadow:none!important;border:2px solid transparent!important;border-radius:6px;
color:transparent}
.cs-browse .cs-over>*:hover,.cs-browse .cs-over>*:focus-visible{border-color:#2a86b0!important;outline:none}
.cs-cell{width:auto!important;display:flex!important;margin:0!important;flex-direction:column;min-width:0;padding:4px;border-radius:6px;background:rgba(128,136,144,.1)}
.cs-face{flex:1 1 auto;min-height:0;display:flex;align-items:center;justify-content:center;overflow:hidden}
.cs-face .cs-picture{width:100%;height:100%}
.cs-picture{display:block;overflow:hidden}
.cs-name{flex:none;height:18px;line-height:18px;font-size:12px;white-space:nowrap;overflow:hidden;
text-overflow:ellipsis}
.cs-muted{opacity:.72}
.cs-text{font:11px/1.35 ui-monospace,Menlo,Consolas,monospace;width:100%;max-height:100%;overflow:hidden;
white-space:pre-wrap;overflow-wrap:anywhere}
.cs-broken{font-size:11px;color:#d64545;align-items:flex-start;overflow-wrap:anywhere}
.cs-legend{display:flex;flex-wrap:wrap;gap:2px 14px;margin:6px 0}
.cs-chip{white-space:nowrap}
.cs-chip i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:5px;vertical-align:-1px}
.cs-bar{position:relative;padding:0 6px;border-radius:4px;display:flex;justify-content:space-between;gap:8px;
line-height:20px;height:24px}
.cs-bar i{position:absolute;left:4px;bottom:1px;height:3px;border-radius:2px;max-width:calc(100% - 8px)}
.cs-bar-name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.cs-bar-count{font-variant-numeric:tabular-nums;opacity:.8}
.cs-chosen{background:rgba(42,134,176,.22);font-weight:600}
.cs-large{display:flex;flex-wrap:wrap;gap:20px;align-items:flex-start}
.cs-large>div:last-child{flex:1 1 220px;min-width:0}
.cs-large>div:first-child{flex:0 1 auto;min-width:200px;max-width:100%}
.cs-large .cs-picture{height:auto;max-height:640px}
.cs-large .cs-text{max-width:640px}
</style>"""
)
# Bars beside the grid; more would make the page longer than the pictures do.
_AT_A_TIME = 14
_MOST_ON_A_PAGE = 100


@dataclass(slots=True)
class Browsing:
    """The current position in a dataset."""

    source: ShownSplits
    """The dataset."""
    split: str
    """Which split is shown."""
    page_size: int
    """Samples on a page."""
    chosen: int | None = None
    """The index in `labels.names` of the class that is shown; `None` for all."""
    page: int = 0
    """The number of the page, from 0."""
    place: int | None = None
    """The position of the enlarged sample among all that are shown; `None` for the grid."""
    _labels: dict[str, SplitClasses] = field(default_factory=dict)

    @property
    def labels(self) -> SplitClasses:
        """Return the split's classes; its targets are read when they are first asked for."""
        if self.split not in self._labels:
            # Kept, because it reads all targets, while a page reads only its rows.
            self._labels[self.split] = read_labels(self.source, self.split)
        return self._labels[self.split]

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the class names as the file has them, in label order."""
        return self.source.reader(self.split).classes

    @property
    def count(self) -> int:
        """Return how many samples match the split and the class."""
        if self.chosen is None:
            return self.source.rows[self.split]
        return int(self.labels.counts[self.chosen])

    @property
    def pages(self) -> int:
        """Return the number of pages, at least 1."""
        return max(1, -(-self.count // self.page_size))

    @property
    def rows(self) -> list[int]:
        """Return the rows of this page, in the order of the file."""
        start = self.page * self.page_size
        return self._rows(start, min(start + self.page_size, self.count))

    @property
    def row(self) -> int | None:
        """Return the row that is enlarged."""
        return None if self.place is None else self._rows(self.place, self.place + 1)[0]

    def choose_split(self, split: str) -> None:
        """Show another split, from its first page, of all classes."""
        # Refuses an unknown name before anything has changed.
        self.source.reader(split)
        # Each split has its own classes, so an index means another class in the next split.
        self.split, self.chosen = split, None
        self.turn_to(0)

    def choose_class(self, number: int | None) -> None:
        """Show only samples of the class at this index of `labels.names`; `None` for all."""
        if number is not None and not 0 <= number < len(self.labels.names):
            msg = f"There is no class {number}; expected 0 to {len(self.labels.names) - 1}."
            raise OptionError(msg)
        self.chosen = number
        self.turn_to(0)

    def turn_to(self, page: int) -> None:
        """Show a page, or the nearest existing one, as a grid."""
        # The nearest one, because people also press the buttons at the ends.
        self.page = min(max(0, page), self.pages - 1)
        self.place = None

    def enlarge(self, place: int) -> None:
        """Enlarge a sample, by its position among those shown, or the nearest one; its page becomes the current one."""
        if self.count:
            self.place = min(max(0, place), self.count - 1)
            self.page = self.place // self.page_size

    def go_to_row(self, row: int) -> None:
        """Enlarge a row of the split; if the chosen class does not have it, all classes are shown."""
        row = min(max(0, row), max(0, self.source.rows[self.split] - 1))
        if self.chosen is not None:
            rows = self.labels.rows_of(self.chosen)
            # Rows of a class are ascending, so one of 200,000 is found by bisection.
            place = int(rows.searchsorted(row))
            if place < len(rows) and rows[place] == row:
                self.enlarge(place)
                return
            self.chosen = None
        self.enlarge(row)

    def read(self, rows: Sequence[int], longest_px: int) -> list[Sample | str]:
        """Read samples, with an explanation in place of each broken one."""
        try:
            return list(read_samples(self.source, self.split, rows, longest_px=longest_px))
        except DecodeError as error:
            # A page is read in one go; only a page with a broken image is read one by one, to show the others.
            if len(rows) == 1:
                return [str(error)]
            return [sample for row in rows for sample in self.read([row], longest_px)]

    def _rows(self, start: int, stop: int) -> list[int]:
        if self.chosen is None:
            return list(range(start, stop))
        return [int(row) for row in self.labels.rows_of(self.chosen)[start:stop]]


def bar_order(counts: NDArray[np.int64]) -> list[int]:
    """Return the classes in the order of their bars: by number if all are visible at once, otherwise by frequency."""
    if len(counts) <= _AT_A_TIME:
        return list(range(len(counts)))
    return [int(number) for number in np.argsort(-counts, kind="stable")]


class Overlay:
    """HTML with an invisible button over each of its cells, so that a click on a picture reaches Python in every
    notebook, without a script."""

    def __init__(self, widgets: Any, kind: str, count: int, tooltip: str, press: Callable[[int], None]) -> None:
        """Make `count` buttons, which are shown or hidden: creating a widget again costs a message and a flicker."""
        self.drawn = widgets.HTML()
        self.buttons = [_bare_button(widgets, tooltip, lambda n=number: press(n)) for number in range(count)]
        over = widgets.Box(self.buttons)
        over.add_class("cs-over")
        over.add_class(f"cs-over-{kind}")
        self.widget = widgets.Box([self.drawn, over])
        self.widget.add_class("cs-stack")

    def show(self, drawn: str, count: int) -> None:
        """Draw so many cells."""
        self.drawn.value = drawn
        for number, button in enumerate(self.buttons):
            # A button over an empty cell would open the wrong one.
            _set_shown(button, number < count)


class Bars:
    """The classes as bars, a search field, and pages of them where they are many."""

    def __init__(self, widgets: Any, choose: Callable[[int | None], None]) -> None:
        """Make the widgets."""
        self._choose = choose
        self._labels = SplitClasses()
        self._chosen: int | None = None
        self._start = 0
        self._found: list[int] = []
        tooltip = "Show only this class, or all again"
        self._bars = Overlay(widgets, "bars", _AT_A_TIME, tooltip, self._press)
        self._search = widgets.Text(placeholder="find a class")
        self._search.layout.width = "auto"
        self._search.observe(lambda _: self._find(), "value")
        self._back = _button(widgets, "‹", "The classes before", lambda: self._turn(-_AT_A_TIME))
        self._on = _button(widgets, "›", "The next classes", lambda: self._turn(_AT_A_TIME))
        self._place = widgets.Label()
        self._pager = widgets.HBox([self._back, self._on, self._place])
        self.widget = widgets.VBox([self._search, self._bars.widget, self._pager])
        self.widget.layout.flex, self.widget.layout.min_width = "0 1 190px", "150px"
        self.widget.layout.margin = "0 14px 0 0"

    def show(self, labels: SplitClasses, chosen: int | None) -> None:
        """Draw the bars of a split."""
        another, self._labels, self._chosen = labels is not self._labels, labels, chosen
        if another:
            self._search.value = ""
            self._find()
        else:
            self._draw()

    def _draw(self) -> None:
        labels, shown, found = self._labels, self._shown(), len(self._found)
        bars = [(labels.names[number], int(labels.counts[number]), number == self._chosen) for number in shown]
        self._bars.show(draw_bars(bars, int(labels.counts.max(initial=0))), len(shown))
        _set_shown(self.widget, bool(labels.names))
        for one in (self._search, self._pager):
            _set_shown(one, len(labels.names) > _AT_A_TIME)
        self._back.disabled, self._on.disabled = self._start == 0, self._start + _AT_A_TIME >= found
        place = f"{self._start + 1:,} to {self._start + len(shown):,} of {found:,}"
        self._place.value = place if shown else "none of this name"

    def _shown(self) -> list[int]:
        return self._found[self._start : self._start + _AT_A_TIME]

    def _press(self, place: int) -> None:
        number = self._shown()[place]
        self._choose(None if number == self._chosen else number)

    def _find(self) -> None:
        """Show only classes whose names contain the typed text, in the same order."""
        typed, names = self._search.value.strip().casefold(), self._labels.names
        self._found = [number for number in bar_order(self._labels.counts) if typed in names[number].casefold()]
        self._start = 0
        self._draw()

    def _turn(self, by: int) -> None:
        self._start = max(0, min(self._start + by, (len(self._found) - 1) // _AT_A_TIME * _AT_A_TIME))
        self._draw()


@public()
def browse_dataset(data: Samples, *, split: str | None = None, page_size: int = 24) -> DatasetBrowser:
    """Browse a dataset's samples in a notebook: page by page, by split and class; click one to enlarge it.

    >>> browse_dataset(data)  # doctest: +SKIP

    It shows images of any dtype, with masks and boxes drawn over them in the colours of their classes; sounds as waves;
    tokens and numbers as text. It reads only the rows of the current page and, to find the classes, the targets of each
    split once, so 200,000 samples are as quick to browse as 200.

    Args:
        data: what `stage_dataset` returns, a `dataset_h5` (its split), or the path of an HDF5 file with `X_<split>`;
            a pattern, such as `"data-*.h5"`, for several files that are one dataset.
        split: which to show first; by default `train`, or the first if there is no `train`.
        page_size: samples on a page, 1 to 100.

    Returns:
        The browser, which a notebook shows if it is a cell's last line. A saved notebook, or one that does not render
        widgets, shows the last page.

    Raises:
        MissingDependencyError: ipywidgets is not installed.
        OptionError: there are no samples to look at in `data`, or `page_size` cannot work.
        SplitNotFoundError: there is no such split; the message lists those that exist.
        SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read.
    """
    try:
        widgets = import_module("ipywidgets")
    except ImportError as error:
        msg = "browse_dataset needs ipywidgets. Install it with: pip install ipywidgets"
        raise MissingDependencyError(msg) from error
    if type(page_size) is not int or not 1 <= page_size <= _MOST_ON_A_PAGE:
        msg = f"page_size={page_size!r} cannot work; expected a whole number from 1 to {_MOST_ON_A_PAGE}."
        raise OptionError(msg)
    source = open_splits(data)
    usual = "train" if "train" in source.rows else next(iter(source.rows))
    first = usual if split is None else split
    source.reader(first)
    return DatasetBrowser(widgets, Browsing(source, first, page_size))


class DatasetBrowser:
    """A browser for one dataset. Made by `browse_dataset`.

    Attributes:
        state: the current position; call `show` after changing it.
        widget: the whole browser, for use in a larger layout.
    """

    def __init__(self, widgets: Any, state: Browsing) -> None:
        """Create the widgets from the module ipywidgets, and show the page in `state`."""
        self.state = state
        self._quiet = False
        self._page_html = ""
        self._message = widgets.HTML()
        self._bars = Bars(widgets, lambda number: self._do(state.choose_class, number))
        self._grid = Overlay(widgets, "grid", state.page_size, "Show this sample large", self._press_picture)
        self._legend, self._large = widgets.HTML(), widgets.HTML()
        filters, pager = self._make_filters(widgets), self._make_pager(widgets)
        self._grid_box = widgets.VBox([pager, self._grid.widget, self._legend])
        back = "Back to the page", "Show the page that this sample is on"
        buttons = [
            _button(widgets, *back, lambda: self._do(state.turn_to, state.page), wide=True),
            _button(widgets, "‹", "Sample before", lambda: self._do(state.enlarge, (state.place or 0) - 1)),
            _button(widgets, "›", "Next sample", lambda: self._do(state.enlarge, (state.place or 0) + 1)),
        ]
        self._large_box = widgets.VBox([widgets.HBox(buttons), self._large])
        right = widgets.VBox([filters, self._message, self._grid_box, self._large_box])
        # Otherwise a long class name would push the grid out of the cell.
        right.layout.flex, right.layout.min_width = "1 1 360px", "0"
        body = widgets.HBox([self._bars.widget, right])
        body.layout.flex_flow, body.layout.align_items = "row wrap", "flex-start"
        self.widget = widgets.VBox([widgets.HTML(BROWSE_STYLE), body])
        self.widget.add_class("cs-browse")
        self.show()

    def show(self) -> None:
        """Draw the position in `state`."""
        try:
            self._bars.show(self.state.labels, self.state.chosen)
            self._draw()
            self._message.value = notes([self._sentence()])
        except ColabstageError as error:
            self._message.value = f"<b style='color:{COLOURS['fail']}'>{type(error).__name__}</b>{notes([str(error)])}"
        finally:
            # The notebook keeps a reference to this widget as long as the kernel lives, so it must not keep files open.
            self.state.source.close()
        self._follow()

    def _draw(self) -> None:
        state, layout = self.state, self.state.source.layout
        # Hidden, not removed, so that the page behind it is back at once.
        _set_shown(self._grid_box, state.row is None)
        _set_shown(self._large_box, state.row is not None)
        if state.row is not None:
            (sample,) = state.read([state.row], LARGE_PX)
            if isinstance(sample, Sample):
                drawn = draw_large(sample, split=state.split, classes=state.classes, layout=layout)
            else:
                drawn = draw_grid([sample], classes=state.classes, layout=layout)
            self._large.value = f"<div class='cs-report'>{drawn}</div>"
            return
        samples = state.read(state.rows, THUMB_PX)
        # Kept for saved notebooks, which do not render widgets and show the last page.
        self._page_html = draw_grid(samples, classes=state.classes, layout=layout)
        self._grid.show(self._page_html, len(samples))
        self._legend.value = draw_legend([one for one in samples if isinstance(one, Sample)], classes=state.classes)

    def _sentence(self) -> str:
        state = self.state
        of = state.source.rows[state.split]
        chosen = "" if state.chosen is None else f" of class {state.labels.names[state.chosen]}"
        few = "" if state.count == of else f", of {of:,} in all"
        why = f" No filter by class: {state.labels.why_none}." if state.labels.why_none else ""
        return f"{state.source.name}: {format_count(state.count, 'samples')}{chosen} in {state.split}{few}.{why}"

    def _make_filters(self, widgets: Any) -> Any:
        state = self.state
        options = [(f"{name} ({count:,})", name) for name, count in state.source.rows.items()]
        self._split = widgets.Dropdown(options=options, value=state.split)
        self._row = widgets.BoundedIntText(min=0, max=0, continuous_update=False)
        self._split.layout.width, self._row.layout.width = "150px", "90px"
        self._split.observe(self._when_chosen(state.choose_split), "value")
        self._row.observe(self._when_chosen(state.go_to_row), "value")
        filters = widgets.HBox([self._split, widgets.HBox([widgets.Label("sample"), self._row])])
        filters.layout.flex_flow = "row wrap"
        return filters

    def _make_pager(self, widgets: Any) -> Any:
        state = self.state
        self._first = _button(widgets, "«", "First page", lambda: self._do(state.turn_to, 0))
        self._back = _button(widgets, "‹", "Page before", lambda: self._do(state.turn_to, state.page - 1))
        self._on = _button(widgets, "›", "Next page", lambda: self._do(state.turn_to, state.page + 1))
        self._last = _button(widgets, "»", "Last page", lambda: self._do(state.turn_to, state.pages - 1))
        self._page = widgets.BoundedIntText(min=1, max=1, value=1, continuous_update=False)
        self._page.layout.width = "80px"
        self._page.observe(self._when_chosen(lambda number: state.turn_to(number - 1)), "value")
        self._of = widgets.Label(layout=widgets.Layout(flex="0 0 auto"))
        return widgets.HBox([self._first, self._back, self._page, self._of, self._on, self._last])

    def _do(self, move: Callable[[Any], None], where: Any) -> None:
        """Move to another position, and show it."""
        move(where)
        self.show()

    def _press_picture(self, number: int) -> None:
        self._do(self.state.enlarge, self.state.page * self.state.page_size + number)

    def _when_chosen(self, move: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a callback that reacts to people, not to our own changes of the widgets."""

        def react(change: Any) -> None:
            # ipywidgets reports values that we set like those that a person chooses.
            if not self._quiet:
                self._do(move, change["new"])

        return react

    def _follow(self) -> None:
        """Make the widgets show the current position."""
        state = self.state
        self._quiet = True
        try:
            self._page.max, self._page.value = state.pages, state.page + 1
            self._of.value = f"of {state.pages:,}"
            self._row.max = max(0, state.source.rows[state.split] - 1)
            if state.row is not None:
                self._row.value = state.row
            self._first.disabled = self._back.disabled = state.page == 0
            self._on.disabled = self._last.disabled = state.page == state.pages - 1
        finally:
            self._quiet = False

    def __repr__(self) -> str:
        return f"DatasetBrowser: {self._sentence()}"

    def _repr_html_(self) -> str:
        """Return the last page, for places without working buttons."""
        return f"{BROWSE_STYLE}<div class='cs-browse'>{as_images(self._page_html)}{notes([self._sentence()])}</div>"

    def _ipython_display_(self) -> None:
        """Show the widgets, or the last page where they no longer exist."""
        show_with_picture(self.widget, self._repr_html_(), repr(self))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {**widget_view(self.widget), "text/html": self._repr_html_(), "text/plain": repr(self)}


def _set_shown(widget: Any, shown: bool) -> None:
    widget.layout.display = "" if shown else "none"


def _button(widgets: Any, text: str, tooltip: str, act: Callable[[], None], *, wide: bool = False) -> Any:
    button = _bare_button(widgets, tooltip, act)
    button.description = text
    button.layout.width = "auto" if wide else "42px"
    return button


def _bare_button(widgets: Any, tooltip: str, act: Callable[..., None]) -> Any:
    button = widgets.Button(tooltip=tooltip)
    button.on_click(lambda _: act())
    return button
