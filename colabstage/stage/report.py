"""`StagePlan`, what staging would do, and `StageReport`, what it did, with the time and rate of each step."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from colabstage.errors import CancelledError, ended, printable
from colabstage.io.page import COLOURS, facts_table, notes, page, table
from colabstage.io.units import NAMES_SHOWN, format_bytes, format_count, format_duration, format_names, format_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from colabstage.h5.info import PackInfo

Action = Literal["reuse", "restore", "stage"]
# What a source or a pack holds, in words by name: its layout, its classes, an example.
Found = tuple[tuple[str, str], ...]


def found_in(info: PackInfo | None) -> Found:
    """Say of a pack what a table says of its source, but for examples: its layout and its classes."""
    if info is None:
        return ()
    layout = () if info.layout is None else (("layout", info.layout),)
    named = format_names(info.classes[:NAMES_SHOWN], len(info.classes)) if info.classes else "not named"
    return (*layout, ("classes", named))


_SENTENCES = {
    "reuse": "is already staged on this machine; nothing would be read",
    "restore": "is in the cache; it would be copied from there and verified",
    "stage": "would be read from its source",
}
_IN_PART = "is in the cache; it would be opened in part, and read from there"


@dataclass(frozen=True, slots=True)
class StageFigures:
    """The bytes that one staging moves."""

    source_bytes: int = 0
    """Bytes read from the source."""
    archive_bytes: int = 0
    """Size of an archive that is copied here first; 0 otherwise."""
    pack_bytes: int = 0
    """Size of the pack."""
    files_bytes: int = 0
    """Size of the plain files that are kept."""
    mount_bytes: int = 0
    """How much is read through a mount that keeps a second copy on the same disk, as Google Drive's does."""

    @property
    def peak_bytes(self) -> int:
        """Return how much free space the local disk needs during the work."""
        # Drive's client drops small files from its cache as the disk fills, but not an archive that is being read.
        return self.archive_bytes + self.mount_bytes + self.pack_bytes + self.files_bytes


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What `stage_dataset` would do with the same arguments."""

    source: str
    """The source's address."""
    action: Action
    """`"reuse"` local data, `"restore"` the cached pack, or `"stage"` the source."""
    reasons: tuple[str, ...]
    """Why, in sentences, one for each place that was checked."""
    figures: StageFigures
    """The bytes that it would move."""
    free_bytes: int
    """The free space of the disk."""
    target: Path
    """What it would make."""
    cache: Path | str | None
    """Where the pack is cached, or would be; `None` for no cache."""
    samples: dict[str, int]
    """Rows of each split, where known."""
    found: Found = ()
    """Layout, classes and examples, in words by name; empty where they are not known yet."""
    in_part: bool = False
    """Whether it would be opened in part, because it is larger than `disk_limit`."""

    @property
    def fits(self) -> bool:
        """Return whether the disk has room for it."""
        return self.figures.peak_bytes <= self.free_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "source": self.source,
            "action": self.action,
            "reasons": list(self.reasons),
            "read_bytes": self.figures.source_bytes,
            "pack_bytes": self.figures.pack_bytes,
            "files_bytes": self.figures.files_bytes,
            "peak_bytes": self.figures.peak_bytes,
            "free_bytes": self.free_bytes,
            "fits": self.fits,
            "target": str(self.target),
            "cache": None if self.cache is None else str(self.cache),
            "in_part": self.in_part,
            "samples": self.samples,
            "found": dict(self.found),
        }

    def __str__(self) -> str:
        lines = [self._headline, *(f"  {reason}" for reason in self.reasons)]
        return "\n".join(map(printable, [*lines, *(f"  {name:<9}{value}" for name, value in self._facts())]))

    def _repr_html_(self) -> str:
        mark = "" if self.fits else f"<b style='color:{COLOURS['fail']}'>This does not fit on the disk.</b>"
        return page(self._headline, notes(self.reasons) + facts_table(self._facts()) + mark)

    @property
    def _headline(self) -> str:
        sentence = _IN_PART if self.in_part and self.action == "restore" else _SENTENCES[self.action]
        return f"'{self.source}' {sentence}."

    def _facts(self) -> list[tuple[str, str]]:
        facts = list(self.found)
        if self.samples:
            facts.append(("samples", ", ".join(f"{name} {rows:,}" for name, rows in self.samples.items())))
        # Nothing would be read or written, so figures of it would only puzzle.
        if self.action != "reuse":
            figures = self.figures
            # The peak and not what stays: an archive that is copied here goes again.
            room = "" if self.fits else ": too little"
            written = figures.pack_bytes + figures.files_bytes
            facts += [("read", format_bytes(figures.source_bytes))] if figures.source_bytes else []
            if not written:
                # Of a source that is known only when it is here: zeros would be a promise.
                facts.append(("write", f"known only then, to '{self.target}'"))
            elif not self.in_part:
                facts.append(("write", f"{format_bytes(written)} to '{self.target}'"))
            least = "" if written else "at least "
            if written or figures.peak_bytes:
                peak = f"{least}{format_bytes(figures.peak_bytes)} of {format_bytes(self.free_bytes)} free{room}"
                facts.append(("peak", peak))
        return facts if self.cache is None else [*facts, ("cache", f"'{self.cache}'")]


Origin = Literal["local", "cache", "source"]

_ORIGINS = {
    "local": "already on this machine",
    "cache": "from the packed copy in the cache",
    "source": "from the source",
}
# A thousand broken images would push the rest of the report off the screen.
_SKIPPED_SHOWN = 10
# What is said of bytes, where there are any.
_MOVED = {"fetched": "fetched", "kept": "here from before", "evicted": "evicted"}
_HEADLINES = {
    "done": "Staged {} in {}",
    "arriving": "Still staging {}, for {} so far",
    "stopped": "Staging {} was stopped after {}",
    "failed": "Staging {} failed after {}",
}


@dataclass(slots=True)
class StageStep:
    """What one step did."""

    name: str
    """Its name in the report."""
    seconds: float = 0.0
    """How long it took, without the steps inside it."""
    amount: int = 0
    """How many of `unit` were processed."""
    unit: str = ""
    """`"B"` for bytes, otherwise what was counted."""
    note: str = ""
    """The result, in words."""
    moves: bool = True
    """Whether data was moved, so that a rate makes sense."""

    @property
    def quantity(self) -> str:
        """Return the amount as text."""
        # A step that decides something counts nothing.
        if not self.unit:
            return ""
        return format_bytes(self.amount) if self.unit == "B" else format_count(self.amount, self.unit)

    @property
    def rate(self) -> str:
        """Return amount by time as text; empty for steps that moved nothing."""
        return format_rate(self.amount, self.seconds, self.unit) if self.moves and self.unit and self.amount else ""


@dataclass(slots=True)
class StageReport:
    """All steps of one `stage_dataset`."""

    origin: Origin = "source"
    """Where the data came from: `"local"`, `"cache"` or `"source"`."""
    steps: list[StageStep] = field(default_factory=list)
    """The steps, in the order in which they ended."""
    skipped: tuple[str, ...] = ()
    """One sentence for each sample that was left out."""
    notes: list[str] = field(default_factory=list)
    """What else the user should know."""
    arrival: Callable[[], Mapping[str, float]] | None = field(default=None, repr=False, compare=False)
    """Tells how it stands with data that is used while it arrives: bytes `fetched`, `kept` from an earlier run and
    `evicted`; `first_batch_s` from the call, `overlap_s` of training while rows arrived, and `waited_s` of loops
    for their batches, the first included, once there was any. `None` where all was here first."""
    found: Found = ()
    """Layout, classes and examples of what was staged, in words by name."""
    state: Literal["done", "arriving", "stopped", "failed"] = "done"
    """How it stands with what `streaming=True` leaves to the background; `"done"` without."""
    began_s: float = field(default_factory=time.monotonic, repr=False, compare=False)
    """When it was begun."""

    @property
    def seconds(self) -> float:
        """Return the time of all steps together."""
        return sum(step.seconds for step in self.steps)

    @contextmanager
    def timed(self, name: str, *, unit: str = "", moves: bool = True) -> Iterator[StageStep]:
        """Time a step, without the steps inside it; the caller fills in its amount and note."""
        step = StageStep(name, unit=unit, moves=moves)
        # A step may contain another one, as a look at the source contains opening it. Its time is counted once.
        began, others_s = time.monotonic(), self.seconds
        try:
            yield step
        # Also Ctrl-C: the report of a stopped call shows which step it was in.
        except BaseException as error:
            stopped = isinstance(error, CancelledError | KeyboardInterrupt)
            step.note = step.note or ("stopped" if stopped else "failed")
            raise
        finally:
            step.seconds = max(0.0, time.monotonic() - began - (self.seconds - others_s))
            # Checks before and after taking the lock are one line if they had the same result.
            same = [one for one in self.steps if not unit and (one.name, one.note) == (name, step.note)]
            if same:
                same[0].seconds += step.seconds
            else:
                self.steps.append(step)

    def note(self, *sentences: str) -> None:
        """Add each sentence that is not among the notes yet."""
        for note in map(ended, sentences):
            # Checks before and after taking the lock would add the same note twice.
            if note not in self.notes:
                self.notes.append(note)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "origin": self.origin,
            "seconds": self.seconds,
            "steps": [
                {"name": s.name, "seconds": s.seconds, "amount": s.amount, "unit": s.unit, "note": s.note}
                for s in self.steps
            ],
            "skipped": list(self.skipped),
            "notes": list(self.notes),
            "arrival": None if self.arrival is None else dict(self.arrival()),
            "found": dict(self.found),
        }

    @property
    def arrived(self) -> str:
        """Return how it stands with data that is used while it arrives, in a sentence; "" where all was here first."""
        figures = {} if self.arrival is None else self.arrival()
        said = []
        if "first_batch_s" in figures:
            said.append(f"First batch after {format_duration(figures['first_batch_s'])}")
        if "overlap_s" in figures:
            said.append(f"{format_duration(figures['overlap_s'])} of training while data arrived")
        if "waited_s" in figures:
            said.append(f"{format_duration(figures['waited_s'])} of waiting for batches")
        moved = {words: int(figures[name]) for name, words in _MOVED.items() if figures.get(name)}
        said += [f"{format_bytes(nbytes)} {words}" for words, nbytes in moved.items()]
        return f"{'; '.join(said)}." if said else ""

    def __str__(self) -> str:
        rows = [(s.name, format_duration(s.seconds), s.quantity, s.rate, s.note) for s in self.steps]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
        lines = [self.headline]
        lines += [
            f"  {name:<{widths[0]}}  {took:>{widths[1]}}  {much:>{widths[2]}}  {rate:>{widths[3]}}  {note}".rstrip()
            for name, took, much, rate, note in rows
        ]
        lines += [f"  {name:<9}{value}" for name, value in self.found]
        lines += [f"  {note}" for note in (*self.notes, *filter(None, (self.arrived,)))]
        if self.skipped:
            lines.append(f"  {format_count(len(self.skipped), 'samples')} left out:")
            lines += [f"    {line}" for line in self.skipped[:_SKIPPED_SHOWN]]
            if len(self.skipped) > _SKIPPED_SHOWN:
                lines.append(f"    … and {len(self.skipped) - _SKIPPED_SHOWN} more, in report.skipped")
        return "\n".join(map(printable, lines))

    @property
    def headline(self) -> str:
        """Return where the data came from, and how long it took."""
        # The step that is not done yet is not among the steps.
        seconds = time.monotonic() - self.began_s if self.state == "arriving" else self.seconds
        return _HEADLINES[self.state].format(_ORIGINS[self.origin], format_duration(seconds))

    def to_html_body(self) -> str:
        """Return the steps and the notes as HTML, without the headline and what was found."""
        rows = [(s.name, format_duration(s.seconds), s.quantity, s.rate) for s in self.steps]
        # A note has a line of its own: beside four columns on a narrow page it would have one letter a line.
        said = [s.note for s in self.steps]
        steps = (
            table(("step", "time", "amount", "rate"), rows, numbers=frozenset({1, 2, 3}), below=said) if rows else ""
        )
        more = len(self.skipped) - _SKIPPED_SHOWN
        left_out = [f"left out: {line}" for line in self.skipped[:_SKIPPED_SHOWN]]
        left_out += [f"… and {more:,} more, in report.skipped"] if more > 0 else []
        return steps + notes([*self.notes, *filter(None, (self.arrived,)), *left_out])

    def _repr_html_(self) -> str:
        return page(self.headline, facts_table(self.found) + self.to_html_body())
