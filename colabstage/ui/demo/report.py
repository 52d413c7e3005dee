"""What the demo says while it runs, and the table at its end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TextIO

from colabstage.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from colabstage.simulate.knobs import DriveKnobs
    from colabstage.ui.demo.run import DemoResult, DemoSize
    from colabstage.ui.demo.train import Epoch, Training

# As wide as the table; for streams that have no width of their own.
_WIDTH = 120


class Narrator:
    """Writes to one text stream; with colours where it is a terminal."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        wide = None if stream.isatty() else _WIDTH
        self._console = Console(file=stream, highlight=False, width=wide, markup=False, emoji=False)
        self._epochs = 0
        self._opening_s = 0.0

    def say(self, text: str) -> None:
        """Print text as it is."""
        self._console.print(text, soft_wrap=True)

    def open(self, count: int, nbytes: int, knobs: DriveKnobs, problem: str | None) -> None:
        """Say what is real, what is simulated, and with which figures.

        Args:
            count, nbytes: of the images.
            knobs: of the simulated Drive.
            problem: why Drive cannot be mounted here; `None` where it can.
        """
        self.say(
            f"Real: {count:,} handwritten digits (scikit-learn's, as 64x64 JPEGs, {format_bytes(nbytes)} in all), "
            "their staging,\n  and the training of a small network on one core of this computer."
        )
        if problem is None:
            self.say("Simulated: Google Drive, really mounted (with FUSE), and the Colab machine around it, thus:")
        else:
            self.say(
                f"Nothing can be mounted here. {problem}\n"
                "Simulated instead: only how long Google Drive takes to read a file. Listings cost nothing, and the "
                "cached pack comes\n  from this computer's disk. The figures:"
            )
        self._opening_s = count * knobs.scaled().cold_open_latency_s
        for name, figures in _figures(knobs.scaled(), mounted=problem is None):
            self.say(f"  {name:<24} {figures}")
        self.say("These are figures that people report, but for the first: they report 400 ms and more for a file.")

    def begin(self, title: str) -> None:
        """Start a section."""
        self._epochs = 0
        self._console.print()
        self._console.print(title, style="bold", soft_wrap=True)

    def foretell_opening(self, workers: int) -> None:
        """Say how long the next epoch will be silent, because it opens every file for the first time."""
        least = format_duration(self._opening_s / max(workers, 1))
        self.say(f"  The first epoch opens every file, which takes {least} or more; this is what people wait for …")

    def epoch(self, epoch: Epoch) -> None:
        """One epoch is over."""
        self._epochs += 1
        rate = format_rate(epoch.images, epoch.seconds, "images")
        waited = f"{format_duration(epoch.waiting_s)} of them waiting for images"
        self.say(f"  epoch {self._epochs}: {format_duration(epoch.seconds)}, {waited} ({rate})")

    def tested(self, training: Training) -> None:
        """A training is over and tested."""
        self.say(f"  test: {training.accuracy:.1%} right, {format_duration(training.test_s)}")

    def close(self, result: DemoResult, size: DemoSize) -> None:
        """Print the table, what it means, and where the chart is."""
        from rich import box
        from rich.table import Table

        self._console.print()
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("session")
        columns = ("first batch after", "first epoch", "later epochs", "waiting", "images/s", "accuracy", "in all")
        for name in columns:
            table.add_column(name, justify="right")
        for session in result.sessions:
            training = session.training
            table.add_row(
                session.name,
                format_duration(training.first_batch_s),
                format_duration(training.first.seconds),
                format_duration(training.later_s),
                f"{training.later_waiting_s / training.later_s:.0%}",
                f"{training.images_per_s:,.0f}",
                f"{training.accuracy:.1%}",
                format_duration(training.total_s),
            )
        self._console.print(table)
        self.say(_meaning(result, size))
        self.say(f"Chart: {result.chart}")


def _figures(knobs: DriveKnobs, *, mounted: bool) -> list[tuple[str, str]]:
    """What the Drive is like, in words; `knobs` are scaled already."""

    def then(bytes_per_s: float) -> str:
        return "then all at once" if math.isinf(bytes_per_s) else f"then {format_rate(bytes_per_s, 1, 'B')}"

    took = format_duration
    cold = f"{took(knobs.cold_open_latency_s)} until its first byte, {then(knobs.stream_bytes_per_s)}"
    figures = [
        ("a file not read before", f"{cold}; up to {knobs.parallel_requests} files at a time"),
        ("a file read before", f"{took(knobs.warm_open_latency_s)}, {then(knobs.warm_bytes_per_s)}"),
    ]
    if not mounted:
        return figures
    first = f"{took(knobs.listing_latency_s)} and {took(knobs.listing_per_entry_s)} an entry"
    upload = then(knobs.upload_bytes_per_s).removeprefix("then ")
    return [
        *figures,
        ("a listing", f"{first}; {took(knobs.warm_listing_s)} from the second time on"),
        ("an upload", f"{upload}, in the background"),
    ]


def _meaning(result: DemoResult, size: DemoSize) -> str:
    straight, first, second = (session.training for session in result.sessions)
    first_gain, later_gain = straight.first.seconds / first.first.seconds, straight.later_s / first.later_s
    lines = [
        "'First batch after' counts from the start of the session: listing, or staging, is in it.",
        f"'Later epochs', 'waiting' (for images) and 'images/s' are means of epochs 2 to {size.epochs}.",
        "Straight from Drive, those read what Drive's client keeps on the local disk.",
        f"Staged, the first epoch is {first_gain:.0f} times as fast, a later one {later_gain:.0f} times.",
        f"The second session had its first batch after {format_duration(second.first_batch_s)}.",
    ]
    if result.zip_report is not None:
        lines.append(f"From the zip, staging took {format_duration(result.zip_s)}.")
    return "\n".join(lines)
