"""What a comparison of sources found, for people and programs."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from colabstage.io.page import COLOURS, notes, page
from colabstage.io.units import format_bytes, format_count, format_duration, format_rate

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

Way = Literal["source", "again", "local", "pack"]

_BAR_PX = 220


@dataclass(frozen=True, slots=True)
class SourceRate:
    """One way to the samples."""

    way: Way
    """`"source"`, each file for the first time; `"again"`, the same files once more; `"local"`, copies of them on
    the local disk; `"pack"`, one HDF5 file on the local disk."""
    title: str
    """What people call it."""
    samples: int
    """How many were read, some of them several times."""
    seconds: float
    """How long that took."""
    nbytes: int
    """The length of what was read for them."""

    @property
    def per_second(self) -> float:
        """Return the samples a second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def epoch_s(self, dataset_samples: int) -> float:
        """Return the seconds that so many samples would take at this rate."""
        return dataset_samples / self.per_second if self.per_second > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class SourceComparison:
    """What `compare_sources` found. Prints as text, and as a table in a notebook."""

    path: Path
    """The dataset."""
    place: str
    """Where it lies ("Google Drive")."""
    dataset_samples: int
    """How many samples it has."""
    compared: int
    """How many different ones were read."""
    rates: tuple[SourceRate, ...]
    """One for each way, the slowest first as a rule."""
    num_workers: int
    """Threads that read and decoded files at once."""
    image_size: tuple[int, int] | None
    """`(height, width)`, or `None` as they are."""
    pack_bytes: int
    """What a pack of the whole dataset would take, in bytes, by the samples."""
    encoding: str
    """How it would store them."""
    notes: tuple[str, ...] = ()
    """What else a person should know."""

    def rate(self, way: Way) -> SourceRate:
        """Return the figures of one way.

        Raises:
            KeyError: it was not measured.
        """
        return {rate.way: rate for rate in self.rates}[way]

    @property
    def speedup(self) -> float:
        """Return how many times faster the pack is than the source, read for the second time and later."""
        again = self.rate("again").per_second
        return self.rate("pack").per_second / again if again > 0 else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "path": str(self.path),
            "place": self.place,
            "dataset_samples": self.dataset_samples,
            "compared": self.compared,
            "num_workers": self.num_workers,
            "image_size": None if self.image_size is None else list(self.image_size),
            "encoding": self.encoding,
            "pack_bytes": self.pack_bytes,
            "speedup": self.speedup,
            "rates": [
                {**asdict(rate), "per_second": rate.per_second, "epoch_s": rate.epoch_s(self.dataset_samples)}
                for rate in self.rates
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        rows = [
            (rate.title, format_rate(rate.samples, rate.seconds, "images"), self._epoch(rate), self._times(rate))
            for rate in self.rates
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [self._headline()]
        lines += [
            f"  {title:<{widths[0]}}  {rate:>{widths[1]}}  {epoch:>{widths[2]}} an epoch  {times:>{widths[3]}}".rstrip()
            for title, rate, epoch, times in rows
        ]
        return "\n".join([*lines, *(f"  {line}" for line in self._lines())])

    def _headline(self) -> str:
        epoch = format_duration(self.rate("pack").epoch_s(self.dataset_samples))
        before = format_duration(self.rate("again").epoch_s(self.dataset_samples))
        return (
            f"An epoch of {format_count(self.dataset_samples, 'images')}: {before} from {self.place}, {epoch} from a "
            f"pack ({_times(self.speedup)} as fast)"
        )

    def _lines(self) -> list[str]:
        size = self.image_size
        decoded = "as large as they are" if size is None else f"decoded to {size[0]} x {size[1]}"
        measured = f"Measured with {format_count(self.compared, 'images')}, {decoded}"
        threads = f"{self.num_workers} reader{'s' if self.num_workers > 1 else ''} for files"
        pack = f"a pack of all takes about {format_bytes(self.pack_bytes)} ({self.encoding})"
        return [f"{measured}; {threads}; {pack}.", *self.notes]

    def _epoch(self, rate: SourceRate) -> str:
        return format_duration(rate.epoch_s(self.dataset_samples))

    def _times(self, rate: SourceRate) -> str:
        base = self.rate("again").per_second
        return "" if rate.way in {"source", "again"} or base == 0 else _times(rate.per_second / base)

    def _repr_html_(self) -> str:
        best = max(rate.per_second for rate in self.rates)
        rows = "".join(
            f"<tr><th>{html.escape(rate.title)}</th><td><div style='width:{_BAR_PX}px'><div style='height:.9em;"
            f"width:{max(2.0, _BAR_PX * rate.per_second / best):.0f}px;background:"
            f"{COLOURS['accent' if rate.way == 'pack' else 'muted']}'></div></div></td>"
            + "".join(
                f"<td class='cs-number'>{html.escape(text)}</td>"
                for text in (
                    format_rate(rate.samples, rate.seconds, "images"),
                    f"{self._epoch(rate)} an epoch",
                    self._times(rate),
                )
            )
            + "</tr>"
            for rate in self.rates
        )
        return page(self._headline(), f"<table>{rows}</table>{notes(self._lines())}")

    def plot(self) -> Figure:
        """Return the images a second and the epoch's length, a bar for each way.

        Returns:
            A matplotlib figure, which a notebook shows; `.savefig("sources.png")` writes it.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        from colabstage.diagnose.drawing import new_figure

        figure = new_figure(9.5, 2.9)
        figure.suptitle(self._headline(), x=0.01, ha="left", fontsize=11, weight="bold")
        titles = [rate.title for rate in self.rates]
        colours = [COLOURS["accent" if rate.way == "pack" else "muted"] for rate in self.rates]
        speeds = [rate.per_second for rate in self.rates]
        epochs = [rate.epoch_s(self.dataset_samples) for rate in self.rates]
        panels = [
            ("images a second", speeds, [f"{value:,.0f}" if value >= 10 else f"{value:.2g}" for value in speeds]),
            ("an epoch takes", epochs, [format_duration(value) for value in epochs]),
        ]
        for axis, (heading, values, labels) in zip(figure.subplots(1, 2, sharey=True), panels, strict=True):
            axis.bar_label(axis.barh(titles, values, color=colours, height=0.6), labels, padding=4, fontsize=9)
            axis.set_title(heading, loc="left", fontsize=10)
            axis.set_xlim(0, max(values) * 1.3)
            axis.set_xticks([])
            axis.spines[["top", "right", "bottom"]].set_visible(False)
            axis.tick_params(axis="y", length=0)
        figure.axes[0].invert_yaxis()
        return figure


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.1f} times"
