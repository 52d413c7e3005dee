"""docs/benchmarks.md: one table of what the benchmarks promise, made from the outputs in `results/`."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks import _chart

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
HEAD = """# How fast is it, and compared with what?

`make bench` runs the scripts of `benchmarks/`, keeps what each prints in `benchmarks/results/`, and makes this page;
`make bench BENCH=name` runs one. The outputs have the absolute figures, versions, and the settings of other tools.

The data is synthetic, and Google Drive is simulated, with the latencies, rates and limits that people report. Other
tools run with the best settings we know, and take turns with colabstage. The machine is sometimes busy, so absolute
figures vary; ratios within a run vary far less, and only ratios are promised. Missed promises, and what is faster than
colabstage, are in bold. Several ratios in one row are those of several datasets, in the order of the output. First
batches of `streaming` are in seconds.
"""
_OTHERS = "Without a promise:"
# How many rows of one promise, all kept, are shown as one.
_MANY = 5
_RATES = """## The rates as pictures

Bars are medians, and thin lines run from the slowest round to the fastest. colabstage is blue, others are grey, and a
dashed frame is a bound that no loader competes with, such as the speed of memory itself."""
# Figures with a promise in brackets behind them, perhaps with words between both: `3.5 times the loop (at least 3)`.
_PROMISED = re.compile(
    r"(?P<before>.*?)(?P<ratio>\d[\d,]*(?:\.\d+)?)(?P<after>[^\d()]*) "
    r"\((?P<bound>at least|more than|at most|less than|wanted:) (?P<limit>\d[\d.,]*?)(?:,[^)\d][^)]*)?\)"
)
# How an earlier version of `streaming` wrote what it missed.
_MISSED = re.compile(r"MISSED: (?P<what>.*): (?P<ratio>[\d.]+), promised (?P<limit>[\d.]+)$")
_VERDICT = re.compile(r"^(?:ok|MISS)\b:?\s*")


@dataclass(frozen=True)
class Ratio:
    """A row of the table; one without a promise is a figure by which something else was faster."""

    what: str
    ratio: str
    promise: str
    kept: bool


def promises(output: str) -> list[Ratio]:
    """Return each promised ratio that a benchmark printed, in its order."""
    found: dict[tuple[str, str], Ratio] = {}
    for line in output.splitlines():
        if missed := _MISSED.search(line):
            rows = [Ratio(missed["what"], missed["ratio"], f"at most {missed['limit']}", kept=False)]
        else:
            rows = _clauses(_VERDICT.sub("", line))
        found |= {(row.what, row.ratio): row for row in rows}
    return list(found.values())


def _clauses(line: str) -> list[Ratio]:
    """Return the promises of a line; those after its first say what they are of only once, before a colon."""
    rows: list[Ratio] = []
    subject = ""
    for found in _PROMISED.finditer(line):
        before, after = found["before"].strip(" ,;:").removeprefix("and "), found["after"].strip()
        what = f"{before} … {after}".strip() if after else before
        if not re.search(r"[A-Za-z]{3}", what):  # only figures: a row of a table, which is told in words elsewhere
            continue
        what = " ".join(f"{subject}{what}".split())
        subject = subject or (f"{before.partition(': ')[0]}: " if ": " in before else "")
        at_least = found["bound"] in {"at least", "more than", "wanted:"}
        bound = "at least" if found["bound"] == "wanted:" else found["bound"]
        ratio, limit = (float(found[name].replace(",", "")) for name in ("ratio", "limit"))
        kept = ratio >= limit if at_least else ratio <= limit
        rows.append(Ratio(what, found["ratio"], f"{bound} {found['limit']}", kept))
    return rows


def losses(output: str) -> list[Ratio]:
    """Return who was faster than colabstage, and how many times as fast."""
    lines = [*_chart.losses(_chart.find_tables(output)), *_chart.lost_times(output)]
    split = [re.fullmatch(r"(.*?):? (\d+\.\d+) (times as fast as .*)", line) for line in lines]
    return [Ratio(f"{one[1]}: … {one[3]}", one[2], "none", kept=False) for one in split if one]


def _run(about: str) -> str:
    """Return machine and date from the line that an output begins with."""
    found = re.search(r"(\d{4}-\d\d-\d\d)\. (.*?); Linux", about)
    machine = re.sub(r"\(R\)| Processor|, \d+ GiB| \(driver .*?\)", "", found[2]) if found else ""
    return f"{machine}, {found[1]}" if found else ""


def _rows(name: str, text: str) -> list[str]:
    """Return the rows of one benchmark; its name and its run are in the first.

    What is promised of several contenders or datasets alike is one row.
    """
    grouped: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for row in [*losses(text), *promises(text)]:
        subject, _, what = row.what.rpartition(": ")
        ratio = row.ratio if row.kept else f"**{row.ratio}**"
        grouped.setdefault((what, row.promise), []).append((subject, ratio))
    rows = []
    for (what, promise), ratios in grouped.items():
        subjects = {subject for subject, _ in ratios if subject}
        if len(ratios) == 1 and subjects:
            shown, of = ratios[0][1], f"{subjects.pop()}: {what}"
        else:
            shown, of = "; ".join(f"{subject}: {ratio}" if subject else ratio for subject, ratio in ratios), what
        rows.append((of, shown, promise))
    head, run = f"[{name}](../benchmarks/results/{name}.txt)", _run(text.partition("\n")[0])
    lines = []
    for promise, alike in itertools.groupby(rows, lambda row: row[2]):
        for of, shown in _in_one([(of, shown) for of, shown, _ in alike]):
            lines.append(f"| {head} | {of} | {shown} | {promise} | {run} |")
            head = run = ""
    return lines


def _in_one(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return rows of one promise; if they are many, and each kept it, as one row with the range of their ratios."""
    ratios = [ratio for _, ratio in rows]
    if len(rows) < _MANY or not all(re.fullmatch(r"[\d.]+", ratio) for ratio in ratios):
        return rows
    of = f"{rows[0][0]} … {rows[-1][0]}: {len(rows)} ratios"
    return [(of, f"{min(ratios, key=float)} to {max(ratios, key=float)}")]


def make_page(outputs: dict[str, str]) -> str:
    """Return the page."""
    table = ["| benchmark | what | ratio | promise | machine, date |", "|---|---|---|---|---|"]
    figures, pictures = [], []
    for name, text in outputs.items():
        rows = _rows(name, text)
        table += rows
        figures += [] if rows else [f"[{name}](../benchmarks/results/{name}.txt)"]
        pictures += [f"![{name}]({name}.svg)"] if _chart.find_tables(text) else []
    return "\n\n".join([HEAD + "\n" + "\n".join(table), f"{_OTHERS} {', '.join(figures)}.", _RATES, *pictures]) + "\n"


def read_results() -> dict[str, str]:
    """Return what is kept of each benchmark: the line about its run, and what it printed."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(RESULTS.glob("*.txt"))}


def write_page() -> None:
    """Write the page and its pictures from the kept outputs."""
    outputs = read_results()
    for name, text in outputs.items():
        if tables := _chart.find_tables(text):
            (PAGE.parent / f"{name}.svg").write_text(_chart.draw(name, tables), encoding="utf-8")
    PAGE.write_text(make_page(outputs), encoding="utf-8")
