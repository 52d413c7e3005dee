"""What the demo measured, whether its claims hold, what it prints while it runs, and the table at its end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from colabstage.io.report import Row, Table, json_values
from colabstage.io.units import format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from colabstage.stage.dataset import StageReport
    from demo.train import Epoch, Training
    from simulated_drive.knobs import DriveKnobs


@dataclass(frozen=True, slots=True)
class DemoSize:
    """How much the demo does, and what it promises."""

    images: int | None
    """How many images; `None` for all 1,797."""
    epochs: int
    """Epochs of each session."""
    min_accuracy: float
    """The accuracy that every session exceeds, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Session:
    """One session of the demo."""

    name: str
    """Its name in the table and the chart."""
    training: Training
    """The times of its training."""
    report: StageReport | None = None
    """The report of its staging; `None` where nothing was staged."""


@dataclass(slots=True)
class DemoResult:
    """What the demo measured."""

    images: int
    """How many the dataset has."""
    image_bytes: int
    """The bytes of their files."""
    knobs: DriveKnobs
    """The figures of the simulated Drive."""
    straight: Session
    """The session that read straight from Drive."""
    unzipped: Session
    """The session that copied the zip and read its files."""
    first: Session
    """The session that staged from the folder."""
    second: Session
    """The session that found the pack in the cache."""
    zip_report: StageReport
    """The report of staging the same images from the zip."""
    zip_s: float
    """How long that took."""
    upload_s: float
    """How long the session waited for the pack's upload."""
    broken_claims: list[str] = field(default_factory=list)
    """Sentences on broken promises; empty when all are kept."""

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Return all sessions, in order."""
        return self.straight, self.unzipped, self.first, self.second

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return dict(json_values(self))


def broken_claims(result: DemoResult, size: DemoSize) -> list[str]:
    """Return a sentence for each of the demo's claims that its own figures contradict."""
    broken = [
        f"{session.name}: {session.training.accuracy:.1%} of the test images right, not over {size.min_accuracy:.0%}."
        for session in result.sessions
        if session.training.accuracy <= size.min_accuracy
    ]
    straight = result.straight.training
    for session, origin in ((result.first, "source"), (result.second, "cache")):
        training = session.training
        epochs = (
            ("the first epoch", training.first.seconds, straight.first.seconds),
            ("a later epoch", training.later_s, straight.later_s),
        )
        # Each epoch has to be faster, not only their sum, because people complain about a slow first epoch.
        broken += [
            f"{session.name}: {which} took {own_s:.2f} s, straight from Drive {straight_s:.2f} s."
            for which, own_s, straight_s in epochs
            if own_s >= straight_s
        ]
        if training.total_s >= straight.total_s:
            broken.append(f"{session.name}: {training.total_s:.1f} s in all, straight {straight.total_s:.1f} s.")
        if session.report is None or session.report.origin != origin:
            broken.append(f"{session.name}: it was not staged from the {origin}.")
    return broken


class Narrator:
    """Write to one text stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._epochs = 0
        self._opening_s = 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._stream, flush=True)

    def open(self, count: int, nbytes: int, knobs: DriveKnobs) -> None:
        """Say what is real, what is simulated, and with which figures."""
        self.say(
            f"Real: {count:,} handwritten digits (scikit-learn's, as 64x64 JPEGs, {format_bytes(nbytes)} in all), "
            "their staging,\n  and the training of a small network on one core of this computer."
        )
        self.say("Simulated: Google Drive, really mounted (with FUSE). The figures:")
        self._opening_s = count * knobs.scaled().cold_open_latency_s
        for name, figures in _drive_in_words(knobs.scaled()):
            self.say(f"  {name:<24} {figures}")
        self.say("All but the first are figures that people report; for that one they report 400 ms and more a file.")

    def begin(self, title: str) -> None:
        """Start a section."""
        self._epochs = 0
        self.say(f"\n{title}")

    def foretell_opening(self, workers: int) -> None:
        """Warn that the next epoch prints nothing for a while, because it opens every file for the first time."""
        # Otherwise half a minute without output would look like a hang.
        least = format_duration(self._opening_s / max(workers, 1))
        self.say(f"  The first epoch opens every file, which takes {least} or more; this is what people wait for …")

    def epoch(self, epoch: Epoch) -> None:
        """Say that an epoch is over."""
        self._epochs += 1
        rate = format_rate(epoch.images, epoch.seconds, "images")
        waited = f"{format_duration(epoch.waiting_s)} spent waiting for images"
        self.say(f"  epoch {self._epochs}: {format_duration(epoch.seconds)}, {waited} ({rate})")

    def tested(self, training: Training) -> None:
        """Say that a training is over and tested."""
        self.say(f"  test: {training.accuracy:.1%} right, {format_duration(training.test_s)}")

    def close(self, result: DemoResult, size: DemoSize) -> None:
        """Print the table and its explanation."""
        head = ("session", "first batch after", "first epoch", "later epochs", "waiting", "images/s", "accuracy", "all")
        rows = tuple(Row((session.name, *_figures(session.training))) for session in result.sessions)
        self.say(f"\n{Table(rows, head, numbers=frozenset(range(1, len(head))))}\n")
        self.say(_meaning(result, size))


def _figures(training: Training) -> tuple[str, ...]:
    return (
        format_duration(training.first_batch_s),
        format_duration(training.first.seconds),
        format_duration(training.later_s),
        f"{training.later_waiting_s / training.later_s:.0%}",
        f"{training.images_per_s:,.0f}",
        f"{training.accuracy:.1%}",
        format_duration(training.total_s),
    )


def _drive_in_words(knobs: DriveKnobs) -> list[tuple[str, str]]:
    """Return what the Drive is like, in words; `knobs` are scaled already."""

    def then(bytes_per_s: float) -> str:
        return "then all at once" if math.isinf(bytes_per_s) else f"then {format_rate(bytes_per_s, 1, 'B')}"

    took = format_duration
    cold = f"{took(knobs.cold_open_latency_s)} until its first byte, {then(knobs.stream_bytes_per_s)}"
    first = f"{took(knobs.listing_latency_s)} and {took(knobs.listing_per_entry_s)} an entry"
    upload = then(knobs.upload_bytes_per_s).removeprefix("then ")
    return [
        ("a file not read before", f"{cold}; up to {knobs.parallel_requests} files at a time"),
        ("a file read before", f"{took(knobs.warm_open_latency_s)}, {then(knobs.warm_bytes_per_s)}"),
        ("a listing", f"{first}; {took(knobs.warm_listing_s)} from the second time on"),
        ("an upload", f"{upload}, in the background"),
    ]


def _meaning(result: DemoResult, size: DemoSize) -> str:
    # The figures in sentences, because readers often compare the wrong columns of a table.
    straight, first, second = (session.training for session in (result.straight, result.first, result.second))
    first_gain, later_gain = straight.first.seconds / first.first.seconds, straight.later_s / first.later_s
    lines = [
        "'First batch after' counts from the start of the session: listing, or staging, is in it.",
        f"'Later epochs', 'waiting' (for images) and 'images/s' are means of epochs 2 to {size.epochs}.",
        "Straight from Drive, later epochs read what Drive's client keeps on the local disk.",
        f"Staged, the first epoch is {first_gain:.0f} times as fast, a later one {later_gain:.0f} times.",
        f"The second session had its first batch after {format_duration(second.first_batch_s)}.",
    ]
    took = result.unzipped.training
    lines += [
        f"The zip, copied and unpacked instead: {took.total_s / second.total_s:.1f} times as long in all as the second",
        f"session staged, {took.later_s / second.later_s:.1f} times for each later epoch.",
        f"From the zip, staging took {format_duration(result.zip_s)}.",
    ]
    return "\n".join(lines)
