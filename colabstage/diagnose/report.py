"""`LoaderProfile`: what a profile found, as text, as HTML, as a picture and as JSON values."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.facts import STAGES
from colabstage.page import facts_table, heading, notes, page
from colabstage.units import format_bytes, format_duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from colabstage.diagnose.advice import Advice
    from colabstage.diagnose.facts import Facts, Span
    from colabstage.diagnose.verdict import Verdict


@dataclass(frozen=True, slots=True)
class LoaderProfile:
    """Where the time of a training loop goes, and what to change. Made by `profile_loader`.

    `facts`: all that was measured. `verdict`: what the loop is bound by. `advice`: what to change, the best first;
    empty where nothing is worth it. `spans`: the batches of the run, when each was asked for, given and done with.
    `notes`: what else a person should know.
    """

    facts: Facts
    verdict: Verdict
    advice: tuple[Advice, ...]
    spans: tuple[Span, ...]
    notes: tuple[str, ...] = ()

    @property
    def batch_s(self) -> float:
        """Seconds from batch to batch, each with its part of its epoch's start."""
        return self.facts.cycle_s + self.facts.epoch_start_s

    @property
    def samples_per_s(self) -> float:
        """Samples that the loop takes in a second."""
        return self.facts.setting.batch_samples / self.batch_s

    @property
    def bytes_per_s(self) -> float:
        """Bytes of batches that the loop takes in a second."""
        return self.facts.setting.batch_bytes / self.batch_s

    @property
    def headroom_samples_per_s(self) -> float | None:
        """Samples a second that the step alone takes, of a batch that is there; `None` without a step."""
        alone_s = self.facts.step_alone_s
        return None if not alone_s else self.facts.setting.batch_samples / alone_s

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Seconds of each stage for one batch, alone, in the order in which they come; only those that were seen."""
        seconds = {stage.name: stage.seconds for stage in self.facts.stages}
        if self.facts.transfer_s is not None:
            seconds["transfer"] = self.facts.transfer_s
        if self.facts.step_alone_s is not None:
            seconds["step"] = self.facts.step_alone_s
        return {name: seconds[name] for name in STAGES if name in seconds}

    def summary(self) -> str:
        """The verdict, the stages, the shares, and the advice, as lines of text."""
        lines = [self.verdict.sentence]
        total = max(self.stage_seconds.values(), default=0.0) or 1.0
        for name, seconds in self.stage_seconds.items():
            bar = "#" * max(1, round(24 * seconds / total))
            lines.append(f"  {name:<10}{_milliseconds(seconds):>10} a batch  {bar}")
        lines += [f"  {name + ':':<24}{value}" for name, value in self._figures()]
        if self.advice:
            lines.append("What to change:")
            lines += [f"  {_gain(advice):>13}  {advice.argument}\n{'':17}{advice.why}" for advice in self.advice]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def _figures(self) -> list[tuple[str, str]]:
        facts = self.facts
        together = f"{_milliseconds(self.batch_s)} a batch, {self.samples_per_s:,.0f} samples/s"
        rows = [
            ("together", f"{together}, {format_bytes(self.bytes_per_s)}/s"),
            ("loader alone", f"{_milliseconds(facts.load_s)} a batch"),
        ]
        if self.headroom_samples_per_s is not None:
            rows += [
                ("step alone (head-room)", f"{self.headroom_samples_per_s:,.0f} samples/s"),
                ("consumer waits", f"{facts.consumer_wait_share:.0%} of the time"),
                ("loader waits", f"{facts.producer_wait_share:.0%} of the time"),
            ]
        if facts.start_s > 0.05:
            rows.append(("start of an epoch", format_duration(facts.start_s)))
        if facts.gpu_busy is not None:
            rows.append(("GPU busy", f"{facts.gpu_busy:.0%}"))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
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
        """A bar for each stage, and a timeline of a few batches.

        Returns:
            A matplotlib figure, which a notebook shows; `.savefig("profile.png")` writes it.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        from colabstage.diagnose.picture import draw_profile

        return draw_profile(self)

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        from colabstage.diagnose.picture import COLOURS

        seconds = self.stage_seconds
        longest = max(seconds.values(), default=0.0) or 1.0
        bars = "".join(
            f"<tr><th>{name}</th><td class='cs-number'>{_milliseconds(value)}</td><td style='width:22em'>"
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


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.2f} ms" if seconds < 0.1 else f"{1000 * seconds:,.0f} ms"


def _gain(advice: Advice) -> str:
    return f"at most {advice.gain:.1f}×" if advice.at_most else f"{advice.gain:.1f}×"
