"""`browse_dataset`: the browser's widgets, and what a press of each does.

One text of HTML is a page, not a widget a sample: a page comes in one message. The widgets are made once. Only those
that ipywidgets 7.7 has, as on Colab.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from colabstage.errors import ColabstageError, MissingDependencyError, OptionError
from colabstage.page import COLOURS, notes
from colabstage.ui.notebook.browse.bars import Bars
from colabstage.ui.notebook.browse.grid import LARGE_PX, THUMB_PX, draw_grid, draw_large, draw_legend
from colabstage.ui.notebook.browse.state import Browsing
from colabstage.ui.notebook.browse.style import BROWSE_STYLE
from colabstage.ui.samples.reading import Sample
from colabstage.ui.samples.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from colabstage.ui.samples.source import Samples

_MOST_ON_A_PAGE = 100
_EVERY_CLASS = "all classes"


def browse_dataset(data: Samples, *, split: str | None = None, page_size: int = 24) -> DatasetBrowser:
    """Look at a dataset's samples in a notebook: page by page, by split and class, each large at a click.

    >>> browse_dataset(data)  # doctest: +SKIP

    Images of any dtype are shown, masks and boxes drawn over them in the colours of their classes; sounds as waves,
    tokens and numbers as text. Only the rows of a page are read, and to find classes only the targets, once for each
    split: 200,000 samples turn as quickly as 200.

    Args:
        data: what `stage_dataset` returns, a `dataset_h5` (its split), or the path of an HDF5 file with `X_<split>`;
            a pattern, such as `"data-*.h5"`, for several files that are one dataset.
        split: which to show first; `train` by default, or else the first.
        page_size: samples on a page, 1 to 100.

    Returns:
        The browser, which a notebook shows when it is a cell's last line; in a notebook that is only read, and where
        widgets do not render, it is the page that was shown last.

    Raises:
        MissingDependencyError: ipywidgets is not installed.
        OptionError: there are no samples to look at in `data`, or `page_size` cannot work.
        SplitNotFoundError: there is no such split; the message lists those there are.
        SourceNotFoundError, PackFormatError, NewerFormatError, DamagedPackError: the file cannot be read.
    """
    widgets = _import_widgets()
    if type(page_size) is not int or not 1 <= page_size <= _MOST_ON_A_PAGE:
        msg = f"page_size={page_size!r} cannot work; expected a whole number from 1 to {_MOST_ON_A_PAGE}."
        raise OptionError(msg)
    source = open_source(data)
    usual = "train" if "train" in source.rows else next(iter(source.rows))
    first = usual if split is None else split
    source.reader(first)
    return DatasetBrowser(widgets, Browsing(source, first, page_size))


def _import_widgets() -> Any:
    try:
        return import_module("ipywidgets")
    except ImportError as error:
        msg = "browse_dataset needs ipywidgets. Install it with: pip install ipywidgets"
        raise MissingDependencyError(msg) from error


class DatasetBrowser:
    """A dataset as it is looked at. Made by `browse_dataset`.

    Attributes:
        state: where in the dataset somebody is; after a change of it, `show` draws that.
        widget: all of it, to be put into a larger layout.
    """

    def __init__(self, widgets: Any, state: Browsing) -> None:
        """`widgets`: the module ipywidgets."""
        self.state = state
        self._quiet = False
        self._page_html = ""
        self._message = widgets.HTML()
        self._bars = Bars(widgets, self._press_class)
        self._make_filters(widgets)
        self._make_pager(widgets)
        self._make_grid(widgets)
        self._make_large(widgets)
        right = widgets.VBox([self._filters, self._message, self._grid_box, self._large_box])
        right.layout.flex = "1 1 360px"
        right.layout.min_width = "0"
        body = widgets.HBox([self._bars.widget, right])
        body.layout.flex_flow = "row wrap"
        body.layout.align_items = "flex-start"
        self.widget = widgets.VBox([widgets.HTML(BROWSE_STYLE), body])
        self.widget.add_class("cs-browse")
        self._offer_classes()
        self.show()

    def show(self) -> None:
        """Draw what `state` says."""
        try:
            self._bars.show(self.state.labels, self.state.chosen)
            self._draw()
            self._message.value = notes([self._sentence()])
        except ColabstageError as error:
            self._message.value = f"<b style='color:{COLOURS['fail']}'>{type(error).__name__}</b>{notes([str(error)])}"
        finally:
            # The notebook's list of widgets keeps this one as long as the kernel lives; it shall not keep files.
            self.state.source.close()
        self._follow()

    def _draw(self) -> None:
        state = self.state
        layout = state.source.layout
        large = state.row is not None
        self._grid_box.layout.display = "none" if large else ""
        self._large_box.layout.display = "" if large else "none"
        if state.row is not None:
            (sample,) = state.read([state.row], LARGE_PX)
            if isinstance(sample, Sample):
                drawn = draw_large(sample, split=state.split, classes=state.classes, layout=layout)
            else:
                drawn = draw_grid([sample], classes=state.classes, layout=layout)
            self._large.value = f"<div class='cs-report'>{drawn}</div>"
            return
        rows = state.rows
        samples = state.read(rows, THUMB_PX)
        self._page_html = draw_grid(samples, classes=state.classes, layout=layout)
        self._grid.value = self._page_html
        self._legend.value = draw_legend([one for one in samples if isinstance(one, Sample)], classes=state.classes)
        for number, button in enumerate(self._pictures):
            button.layout.display = "" if number < len(rows) else "none"

    def _sentence(self) -> str:
        state = self.state
        of = state.source.rows[state.split]
        chosen = "" if state.chosen is None else f" of class {state.labels.names[state.chosen]}"
        few = "" if state.count == of else f", of {of:,} in all"
        why = f" No filter by class: {state.labels.why_none}." if state.labels.why_none else ""
        return f"{state.source.name}: {state.count:,} samples{chosen} in {state.split}{few}.{why}"

    def _make_filters(self, widgets: Any) -> None:
        rows = self.state.source.rows
        self._split = widgets.Dropdown(
            options=[(f"{name} ({count:,})", name) for name, count in rows.items()], value=self.state.split
        )
        self._class = widgets.Dropdown(options=[(_EVERY_CLASS, -1)], value=-1)
        self._row = widgets.BoundedIntText(min=0, max=0, continuous_update=False)
        for widget, width in ((self._split, "150px"), (self._class, "180px"), (self._row, "90px")):
            widget.layout.width = width
        self._split.observe(self._heard(self._press_split), "value")
        self._class.observe(self._heard(lambda number: self._press_class(None if number < 0 else number)), "value")
        self._row.observe(self._heard(self._press_row), "value")
        self._filters = widgets.HBox([self._split, self._class, widgets.HBox([widgets.Label("sample"), self._row])])
        self._filters.layout.flex_flow = "row wrap"

    def _make_pager(self, widgets: Any) -> None:
        state = self.state
        self._first = _button(widgets, "«", "First page", lambda: self._turn(0))
        self._back = _button(widgets, "‹", "Page before", lambda: self._turn(state.page - 1))
        self._on = _button(widgets, "›", "Next page", lambda: self._turn(state.page + 1))
        self._last = _button(widgets, "»", "Last page", lambda: self._turn(state.pages - 1))
        self._page = widgets.BoundedIntText(min=1, max=1, value=1, continuous_update=False)
        self._page.layout.width = "80px"
        self._page.observe(self._heard(lambda number: self._turn(number - 1)), "value")
        self._of = widgets.Label()
        self._pager = widgets.HBox([self._first, self._back, self._page, self._of, self._on, self._last])

    def _make_grid(self, widgets: Any) -> None:
        self._grid, self._legend = widgets.HTML(), widgets.HTML()
        self._pictures = [
            _bare_button(widgets, "Show this sample large", lambda number=number: self._press_picture(number))
            for number in range(self.state.page_size)
        ]
        over = widgets.Box(self._pictures)
        over.add_class("cs-over")
        over.add_class("cs-over-grid")
        stack = widgets.Box([self._grid, over])
        stack.add_class("cs-stack")
        self._grid_box = widgets.VBox([self._pager, stack, self._legend])

    def _make_large(self, widgets: Any) -> None:
        self._large = widgets.HTML()
        buttons = [
            _button(widgets, "Back to the page", "Show the page that this sample is on", self._press_back, wide=True),
            _button(widgets, "‹", "Sample before", lambda: self._step(-1)),
            _button(widgets, "›", "Next sample", lambda: self._step(1)),
        ]
        self._large_box = widgets.VBox([widgets.HBox(buttons), self._large])

    def _heard(self, act: Callable[[Any], None]) -> Callable[[Any], None]:
        """A reaction to people, which our own changes of the widgets do not set off."""

        def react(change: Any) -> None:
            if not self._quiet:
                act(change["new"])

        return react

    def _follow(self) -> None:
        """Have the widgets say where we are."""
        state = self.state
        self._quiet = True
        try:
            self._page.max = state.pages
            self._page.value = state.page + 1
            self._of.value = f"of {state.pages:,}"
            self._row.max = max(0, state.source.rows[state.split] - 1)
            if state.row is not None:
                self._row.value = state.row
            self._class.value = -1 if state.chosen is None else state.chosen
            for button, end in ((self._first, 0), (self._back, 0), (self._on, -1), (self._last, -1)):
                button.disabled = state.page == (end if end == 0 else state.pages - 1)
        finally:
            self._quiet = False

    def _offer_classes(self) -> None:
        labels = self.state.labels
        self._quiet = True
        try:
            self._class.value = -1
            named = enumerate(zip(labels.names, labels.counts.tolist(), strict=True))
            self._class.options = [
                (_EVERY_CLASS, -1),
                *((f"{name} ({count:,})", number) for number, (name, count) in named),
            ]
            self._class.disabled = not labels.names
        finally:
            self._quiet = False

    def _press_split(self, split: str) -> None:
        self.state.choose_split(split)
        self._offer_classes()
        self.show()

    def _press_class(self, number: int | None) -> None:
        self.state.choose_class(number)
        self.show()

    def _press_row(self, row: int) -> None:
        self.state.go_to_row(row)
        self.show()

    def _press_picture(self, number: int) -> None:
        self.state.enlarge(self.state.page * self.state.page_size + number)
        self.show()

    def _press_back(self) -> None:
        self._turn(self.state.page)

    def _step(self, by: int) -> None:
        self.state.enlarge((self.state.place or 0) + by)
        self.show()

    def _turn(self, page: int) -> None:
        self.state.turn_to(page)
        self.show()

    def __repr__(self) -> str:
        return f"DatasetBrowser: {self._sentence()}"

    def _repr_html_(self) -> str:
        """The page that was shown last, for where nobody can press anything."""
        return f"{BROWSE_STYLE}<div class='cs-browse'>{self._page_html}{notes([self._sentence()])}</div>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return {
            "application/vnd.jupyter.widget-view+json": view,
            "text/html": self._repr_html_(),
            "text/plain": repr(self),
        }


def _button(widgets: Any, text: str, tooltip: str, act: Callable[[], None], *, wide: bool = False) -> Any:
    button = _bare_button(widgets, tooltip, act)
    button.description = text
    button.layout.width = "auto" if wide else "42px"
    return button


def _bare_button(widgets: Any, tooltip: str, act: Callable[..., None]) -> Any:
    button = widgets.Button(tooltip=tooltip)
    button.on_click(lambda _: act())
    return button
