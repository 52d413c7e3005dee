"""What a browser shows at the moment, and which rows that are. Knows nothing of widgets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from colabstage.errors import DecodeError, OptionError
from colabstage.ui.samples.labels import Labels, read_labels
from colabstage.ui.samples.reading import Sample, read_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.ui.samples.source import Source


@dataclass(slots=True)
class Browsing:
    """Where somebody is in a dataset.

    `split`: which is shown. `chosen`: the place among `labels.names` of the class that is shown, `None` for all.
    `page`: from 0. `page_size`: samples on a page. `place`: of the sample that is shown large, among all that are
    shown, from 0; `None` for the grid.
    """

    source: Source
    split: str
    page_size: int
    chosen: int | None = None
    page: int = 0
    place: int | None = None
    _labels: dict[str, Labels] = field(default_factory=dict)

    @property
    def labels(self) -> Labels:
        """The split's classes; its targets are read when they are first asked for."""
        if self.split not in self._labels:
            self._labels[self.split] = read_labels(self.source, self.split)
        return self._labels[self.split]

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names as the file has them, in label order."""
        return self.source.reader(self.split).classes

    @property
    def count(self) -> int:
        """Samples that the split and the class leave."""
        if self.chosen is None:
            return self.source.rows[self.split]
        return int(self.labels.counts[self.chosen])

    @property
    def pages(self) -> int:
        """Pages that these take; one where there is none."""
        return max(1, -(-self.count // self.page_size))

    @property
    def rows(self) -> list[int]:
        """The rows of this page, in the order of the file."""
        start = self.page * self.page_size
        return self._rows(start, min(start + self.page_size, self.count))

    @property
    def row(self) -> int | None:
        """The row that is shown large."""
        return None if self.place is None else self._rows(self.place, self.place + 1)[0]

    def choose_split(self, split: str) -> None:
        """Show another split, from its first page, of all classes."""
        self.source.reader(split)
        self.split, self.chosen = split, None
        self.turn_to(0)

    def choose_class(self, number: int | None) -> None:
        """Show only samples of the class at this place of `labels.names`; `None` for all."""
        if number is not None and not 0 <= number < len(self.labels.names):
            msg = f"There is no class {number}; expected 0 to {len(self.labels.names) - 1}."
            raise OptionError(msg)
        self.chosen = number
        self.turn_to(0)

    def turn_to(self, page: int) -> None:
        """Show a page, the nearest there is, as a grid."""
        self.page = min(max(0, page), self.pages - 1)
        self.place = None

    def enlarge(self, place: int) -> None:
        """Show a sample large, by its place among those that are shown, the nearest there is; its page comes along."""
        if self.count:
            self.place = min(max(0, place), self.count - 1)
            self.page = self.place // self.page_size

    def go_to_row(self, row: int) -> None:
        """Show a row of the split large; of all classes, where the chosen one does not have it."""
        row = min(max(0, row), max(0, self.source.rows[self.split] - 1))
        if self.chosen is not None:
            rows = self.labels.rows_of(self.chosen)
            place = int(rows.searchsorted(row))
            if place < len(rows) and rows[place] == row:
                self.enlarge(place)
                return
            self.chosen = None
        self.enlarge(row)

    def read(self, rows: Sequence[int], longest_px: int) -> list[Sample | str]:
        """Samples, and in the place of each that is broken a sentence that says why.

        Raises:
            DamagedPackError: the file changed since it was opened, or is cut off.
        """
        try:
            return list(read_samples(self.source, self.split, rows, longest_px=longest_px))
        except DecodeError as error:
            if len(rows) == 1:
                return [str(error)]
            return [sample for row in rows for sample in self.read([row], longest_px)]

    def _rows(self, start: int, stop: int) -> list[int]:
        if self.chosen is None:
            return list(range(start, stop))
        return [int(row) for row in self.labels.rows_of(self.chosen)[start:stop]]
