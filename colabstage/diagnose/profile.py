"""`profile_loader`: where the time of a training loop goes, and what to change; and `LoaderProfile`, which says it as
text, as HTML, as a picture and as JSON values.
"""

from __future__ import annotations

import html
import textwrap
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.advice import advise, judge
from colabstage.diagnose.facts import STAGES
from colabstage.diagnose.loaders import ProfiledLoader, profiled_iterable, profiled_keras, profiled_torch
from colabstage.diagnose.measure import check_step, measure
from colabstage.diagnose.restore import preserve_attributes, preserve_randomness, preserve_training
from colabstage.io.arguments import NOTHING_DONE, check_argument, refuse_argument, stops_with, takes
from colabstage.io.boundary import typed
from colabstage.io.page import INK, draw_panel, facts_table, heading, new_figure, notes, page
from colabstage.io.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from colabstage.diagnose.advice import Advice, Verdict
    from colabstage.diagnose.facts import ProfileFacts, Span

# Of medium lightness, to be visible on white and on black.
COLOURS = {
    "read": "#2a86b0",
    "decode": "#b7791f",
    "transform": "#8a5aa8",
    "collate": "#c8553d",
    "transfer": "#6a8a2a",
    "step": "#2e8b57",
}
_WAIT = "#c3cad1"
_SHOWN = 12
# Characters of the heading that fill 9 inches.
_LINE = 90


def _draw_timeline(axis: Axes, spans: tuple[Span, ...]) -> None:
    start = spans[0].asked_s
    waits = [(1000 * (span.asked_s - start), 1000 * (span.given_s - span.asked_s)) for span in spans]
    steps = [(1000 * (span.given_s - start), 1000 * (span.done_s - span.given_s)) for span in spans]
    axis.broken_barh(waits, (0.55, 0.8), color=_WAIT, edgecolor="white", linewidth=0.6)
    axis.broken_barh(steps, (-0.4, 0.8), color=COLOURS["step"], edgecolor="white", linewidth=0.6)
    axis.set_yticks([0, 0.95], ["step", "wait"])
    axis.set_ylim(1.5, -0.55)
    axis.set_xlim(0, 1000 * (spans[-1].done_s - start))
    axis.set_title(f"{format_count(len(spans), 'batches')} of the run together", loc="left", fontsize=9.5, color=INK)
    axis.set_xlabel("milliseconds")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)


@dataclass(frozen=True, slots=True)
class LoaderProfile:
    """Where the time of a training loop goes, and what to change. Made by `profile_loader`."""

    facts: ProfileFacts
    """Everything that was measured."""
    verdict: Verdict
    """What limits the loop."""
    advice: tuple[Advice, ...]
    """What to change, the best first; empty where nothing is worth it."""
    spans: tuple[Span, ...]
    """When each batch of the run was asked for, returned and finished."""
    notes: tuple[str, ...] = ()
    """What else the user should know."""

    @property
    def batch_s(self) -> float:
        """Return the seconds from batch to batch, including each one's share of the start of an epoch."""
        return self.facts.batch_s

    @property
    def samples_per_s(self) -> float:
        """Return the samples that the loop takes in a second."""
        return self.facts.setting.batch_samples / self.batch_s

    @property
    def bytes_per_s(self) -> float:
        """Return the bytes of batches that the loop takes in a second."""
        return self.facts.setting.batch_bytes / self.batch_s

    @property
    def headroom_samples_per_s(self) -> float | None:
        """Return the samples a second that the step alone could take; `None` without a step."""
        alone_s = self.facts.step_alone_s
        return None if not alone_s else self.facts.setting.batch_samples / alone_s

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds that each observed stage takes alone for one batch, in the order of the stages."""
        seconds = {stage.name: stage.seconds for stage in self.facts.stages}
        if self.facts.transfer_s is not None:
            seconds["transfer"] = self.facts.transfer_s
        if self.facts.step_alone_s is not None:
            seconds["step"] = self.facts.step_alone_s
        return {name: seconds[name] for name in STAGES if name in seconds}

    def summary(self) -> str:
        """Return the verdict, the stages, the shares, and the advice, as lines of text."""
        lines = [self.verdict.sentence]
        # Bars are shares of the longest stage: stages overlap, so their sum means nothing.
        total = max(self.stage_seconds.values(), default=0.0) or 1.0
        for name, seconds in self.stage_seconds.items():
            bar = "#" * max(1, round(24 * seconds / total))
            lines.append(f"  {name:<10}{_format_ms(seconds):>10} a batch  {bar}")
        lines += [f"  {name + ':':<24}{value}" for name, value in self._figures()]
        if self.advice:
            lines.append("What to change:")
            lines += [f"  {_gain(advice):>13}  {advice.argument}\n{'':17}{advice.why}" for advice in self.advice]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def _figures(self) -> list[tuple[str, str]]:
        facts = self.facts
        rows = [
            ("together", self._rate()),
            ("loader alone", f"{_format_ms(facts.load_s)} a batch"),
        ]
        if self.headroom_samples_per_s is not None:
            rows += [
                ("step alone (head-room)", f"{self.headroom_samples_per_s:,.0f} samples/s"),
                ("consumer waits", f"{facts.consumer_wait_share:.0%} of the time"),
                ("loader waits", f"{facts.producer_wait_share:.0%} of the time"),
            ]
        # Below that nobody notices it, and the line would only be one more to read.
        if facts.start_s > 0.05:
            rows.append(("start of an epoch", format_duration(facts.start_s)))
        if facts.gpu_busy is not None:
            rows.append(("GPU busy", f"{facts.gpu_busy:.0%}"))
        return rows

    def _rate(self) -> str:
        rate = f"{self.samples_per_s:,.0f} samples/s, {format_bytes(self.bytes_per_s)}/s"
        return f"{_format_ms(self.batch_s)} a batch, {rate}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "verdict": asdict(self.verdict),
            "advice": [asdict(advice) for advice in self.advice],
            "batch_seconds": self.batch_s,
            "samples_per_second": self.samples_per_s,
            "bytes_per_second": self.bytes_per_s,
            "headroom_samples_per_second": self.headroom_samples_per_s,
            "stage_seconds": self.stage_seconds,
            "consumer_wait_share": self.facts.consumer_wait_share,
            "producer_wait_share": self.facts.producer_wait_share,
            "gpu_busy": self.facts.gpu_busy,
            "facts": asdict(self.facts),
            "spans": [asdict(span) for span in self.spans],
            "notes": list(self.notes),
        }

    def plot(self) -> Figure:
        """Return a bar for each stage, and a timeline of a few batches.

        Returns:
            A matplotlib figure on white, which a notebook shows; `.savefig("profile.png")` writes it.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        # A few consecutive batches from the middle, where the loop has settled.
        first = max(0, len(self.spans) // 2 - _SHOWN // 2)
        spans = self.spans[first : first + _SHOWN]
        figure = new_figure(9.0, 4.6 if spans else 3.0)
        heading_lines = "\n".join(textwrap.wrap(self.verdict.sentence, _LINE))
        figure.suptitle(heading_lines, x=0.01, ha="left", fontsize=10.5, weight="bold", color=INK)
        if spans:
            above, below = figure.subplots(2, 1, height_ratios=[max(2, len(self.stage_seconds)), 1.6])
            _draw_timeline(below, spans)
        else:
            above = figure.subplots()
        stages = self.stage_seconds
        milliseconds = [1000 * seconds for seconds in stages.values()]
        said, colours = [f"{value:,.2f} ms" for value in milliseconds], [COLOURS[name] for name in stages]
        heading = "each stage alone, for one batch"
        draw_panel(above, heading, list(stages), milliseconds, labels=said, colours=colours)
        return figure

    def __repr__(self) -> str:
        return f"LoaderProfile: {self.verdict.sentence}\n  {self._rate()}"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        seconds = self.stage_seconds
        longest = max(seconds.values(), default=0.0) or 1.0
        bars = "".join(
            f"<tr><th>{name}</th><td class='cs-number'>{_format_ms(value)}</td><td style='width:22em'>"
            f"<div style='background:{COLOURS[name]};height:.8em;margin-top:.25em;border-radius:2px;"
            f"width:{max(0.5, 100 * value / longest):.1f}%'></div></td></tr>"
            for name, value in seconds.items()
        )
        changes = "".join(
            f"<tr><td class='cs-number'><b>{_gain(advice)}</b></td><td><code>{html.escape(advice.argument)}</code><br>"
            f"<span class='cs-muted'>{html.escape(advice.why)}</span></td></tr>"
            for advice in self.advice
        )
        body = f"<table>{bars}</table>{facts_table(self._figures())}"
        if changes:
            body += f"{heading('What to change')}<table>{changes}</table>"
        return page(self.verdict.sentence, body + notes(self.notes))


def _format_ms(seconds: float) -> str:
    return f"{1000 * seconds:,.2f} ms" if seconds < 0.1 else f"{1000 * seconds:,.0f} ms"


def _gain(advice: Advice) -> str:
    return f"at most {advice.gain:.1f}×" if advice.at_most else f"{advice.gain:.1f}×"


@takes(renamed={"seconds": "budget_s"})
@stops_with(NOTHING_DONE)
@typed()
def profile_loader(
    loader: Iterable[Any] | object,
    step: Callable[[Any], object] | None = None,
    *,
    budget_s: float = 10.0,
    device: Any = None,
) -> LoaderProfile:
    """Measure where the time of a training loop goes, and say what to change.

    >>> profile_loader(loader, train_step)  # doctest: +SKIP
    >>> profile_loader(loader, train_step).advice[0].argument  # doctest: +SKIP
    'DataLoader(..., num_workers=2, persistent_workers=True)'

    The loader runs alone, then with the step, then the step on one batch again and again, each for a part of
    `budget_s`. No function is wrapped: while the loader runs alone, a thread samples Python's stacks a few hundred
    times a second and derives the stages from them (see `diagnose.stages`); a tf.data pipeline is measured link by
    link. The gains that advice promises are computed from these times (see `diagnose.advice`).

    Everything is restored: random numbers, the dataset's attributes, the loader's position, its worker processes, and
    what the step trains, if it can be reached from the step: closures, globals, partials, dicts, lists, attributes,
    functions that it calls. The profile's notes name what was found, or say that nothing was. Only other effects of the
    step (files that it writes) remain, and the batches of a loader that can be iterated only once are used up. A
    running loop over a colabstage loader ends.

    Args:
        loader: any iterable of batches: a `Loader` or a `DataLoader`, a Keras `PyDataset`, a `tf.data.Dataset`, or any
            other object that can be iterated over.
        step: called with each batch, as the training loop would; without it only the loader is measured.
        budget_s: about how long to measure, in seconds; each run takes at least three batches.
        device: where batches go before the step, if the loader does not copy them there.

    Raises:
        OptionError: the loader cannot be iterated over or has no batches, or an argument cannot work.
    """
    check_step(step)
    check_argument("budget_s", budget_s, "above zero")
    with ExitStack() as stack:
        # Entered first and left last, because examining the loader may already draw random numbers.
        stack.enter_context(preserve_randomness())
        profiled = profiled_loader(loader)
        stack.enter_context(preserve_attributes(profiled.roots))
        put_back = stack.enter_context(preserve_training(step))
        facts, spans = measure(profiled, step, budget_s, device=device)
    if put_back:
        profiled.notes.append(put_back)
    return LoaderProfile(facts, judge(facts), advise(facts), spans, tuple(profiled.notes))


def profiled_loader(loader: object) -> ProfiledLoader:
    """Find out whose loader this is.

    Raises:
        OptionError: it cannot be iterated over, or what it gives are samples.
    """
    # By name, so that no framework is imported to find out that a loader is not its.
    names = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(loader).__mro__}
    if "torch.DataLoader" in names:
        return profiled_torch(loader)
    if {"keras.PyDataset", "keras.Sequence"} & names:
        return profiled_keras(loader)
    if "tensorflow.DatasetV2" in names:
        from colabstage.diagnose.loaders import profiled_tf

        return profiled_tf(loader)
    if "colabstage.StagedDataset" in names:
        refuse_argument("loader", loader, "a loader of batches", remedy="Pass data.loader('train', 64).")
    if "torch.Dataset" in names and "torch.IterableDataset" not in names:
        # The first side of a sample would be taken for the size of a batch.
        remedy = (
            "This dataset gives samples: pass a DataLoader(dataset, 64). One that gives whole batches is passed as "
            "DataLoader(dataset, batch_size=None)."
        )
        refuse_argument("loader", loader, "a loader of batches", remedy=remedy)
    return profiled_iterable(loader)
