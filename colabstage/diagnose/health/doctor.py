"""`doctor`: what is wrong with this machine, or with where a dataset lies, and what to do about it."""

from __future__ import annotations

import html
import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.health.checks import ALL_CHECKS, remedy_of
from colabstage.diagnose.health.gather import gather_facts
from colabstage.errors import OptionError
from colabstage.page import COLOURS, page

if TYPE_CHECKING:
    import os

    from colabstage.diagnose.health.checks import Status
    from colabstage.diagnose.health.facts import Facts

_WORDS: dict[Status, str] = {"ok": "fine", "warn": "costs", "fail": "broken", "skip": ""}
_MARKS: dict[Status, str] = {"ok": "✓", "warn": "!", "fail": "✗", "skip": "–"}
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `remedy`: what to do about it; empty where nothing is to be done."""

    title: str
    status: Status
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What `doctor` found, check by check. Prints as text, and as a table in a notebook.

    `findings`: one for each check, in the order of the checks. `facts`: what they rest on.
    """

    findings: tuple[Finding, ...]
    facts: Facts

    @property
    def exit_code(self) -> int:
        """0 where nothing is broken (there may be warnings), 1 otherwise: what `colabstage doctor` ends with."""
        return int(any(finding.status == "fail" for finding in self.findings))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "exit_code": self.exit_code,
            "findings": [asdict(finding) for finding in self.findings],
            "facts": asdict(self.facts),
        }

    def __str__(self) -> str:
        width = max(len(finding.title) for finding in self.findings)
        indent = " " * (width + 4)
        lines = [self._headline()]
        for finding in self.findings:
            head = f"{_MARKS[finding.status]} {finding.title:<{width}}  "
            lines += _wrap(finding.message, head, indent)
            if finding.remedy:
                lines += _wrap(finding.remedy, f"{indent}→ ", f"{indent}  ")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='color:{COLOURS[finding.status]};font-weight:600;white-space:nowrap'>"
            f"{_MARKS[finding.status]} {_WORDS[finding.status]}</td>"
            f"<th>{html.escape(finding.title)}</th><td>{html.escape(finding.message)}"
            + (f"<div class='cs-muted'>{html.escape(finding.remedy)}</div>" if finding.remedy else "")
            + "</td></tr>"
            for finding in self.findings
        )
        return page(self._headline(), f"<table>{rows}</table>")

    def _headline(self) -> str:
        counts = {status: sum(finding.status == status for finding in self.findings) for status in _WORDS}
        if not counts["fail"] and not counts["warn"]:
            return f"All well: {counts['ok']} checks passed."
        parts = [f"{counts['fail']} broken"] if counts["fail"] else []
        parts += [f"{counts['warn']} that cost{'s' if counts['warn'] == 1 else ''} time or may go wrong"] * bool(
            counts["warn"]
        )
        return f"{' and '.join(parts)}; {counts['ok']} fine."


def _wrap(text: str, first: str, further: str) -> list[str]:
    """Fold a paragraph; paths and commands stay whole, to be copied."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


def doctor(
    path: str | os.PathLike[str] | None = None,
    *,
    num_workers: int | None = None,
    batch_size: int = 64,
    timeout_s: float = 10.0,
) -> DoctorReport:
    """Find out what is wrong here: the platform, the disk, the mounts, the versions, the GPU, and a dataset's place.

    Nothing is changed, and a mount that hangs costs the deadline, no more: it is asked from a child process.

    Args:
        path: a dataset: a folder, an archive or an HDF5 file. `None` looks at the machine alone.
        num_workers: of a loader of yours, to be held against the cores and `/dev/shm`; `None` for the worker processes
            that run now, if any.
        batch_size: of that loader.
        timeout_s: seconds that each look may take; they are taken beside each other.

    Returns:
        The findings: `print` it, or let a notebook show it. `.exit_code` is 1 where something is broken.

    Raises:
        OptionError: `timeout_s` or `batch_size` is not above 0, or `num_workers` is negative.

    >>> report = doctor("photos.zip")  # doctest: +SKIP
    >>> [finding.title for finding in report.findings if finding.status == "fail"]  # doctest: +SKIP
    []
    """
    for name, value, fine in (
        ("timeout_s", timeout_s, timeout_s > 0),
        ("batch_size", batch_size, batch_size > 0),
        ("num_workers", num_workers, num_workers is None or num_workers >= 0),
    ):
        if not fine:
            msg = f"{name}={value!r} cannot work; expected {'0 or more' if name == 'num_workers' else 'more than 0'}."
            raise OptionError(msg)
    return judge(gather_facts(path, num_workers=num_workers, batch_size=batch_size, timeout_s=timeout_s))


def judge(facts: Facts) -> DoctorReport:
    """Let every check look at the facts."""
    findings = []
    for check in ALL_CHECKS:
        verdict = check.check(facts)
        remedy = remedy_of(check) if verdict.status in {"warn", "fail"} else ""
        findings.append(Finding(check.title, verdict.status, verdict.message, remedy))
    return DoctorReport(tuple(findings), facts)
