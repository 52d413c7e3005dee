"""Run benchmarks and write what they print into docs/benchmarks.md.

    python -m benchmarks [NAME ...]
    python -m benchmarks --redraw

Each benchmark is a module of this folder whose name has no leading underscore. It prints its own table with the
baseline beside it, and ends with exit code 1 when a promised ratio is missed; the page keeps that line too. Tables that
`_chart` can read also become bars in docs/NAME.svg. `--redraw` measures nothing: it writes the head of the page and the
bars again, from the sections that are there.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import _chart, _peers

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
PACKAGES = ("colabstage", "h5py", "numpy", "torch", "pillow", "simplejpeg", "isal", "mfusepy")
HEAD = """# Benchmarks

`make bench` writes this page: one section for each script in `benchmarks/`, with its output, and a bar chart where it
measured rates. `make bench BENCH=name` runs one of them again.

**What was measured.** Synthetic datasets of the sizes given in each section, on an ordinary machine with two cores and
no GPU; each section lists the hardware and the versions. Other tools run with the best settings we know, not with their
defaults: where a script tries several, the table names the best one. Google Drive is simulated, as a mount with the
latencies, rates and limits that people report; each section says which.

**How to read it.** The contenders of a table took turns within one run. The machine is sometimes busy with other work,
so absolute figures vary from run to run; ratios within a table vary far less, and only ratios are promised. Bars are
medians, and thin lines run from the slowest round to the fastest. colabstage is blue, others are grey, and a dashed
frame is a bound that no loader competes with, such as the speed of memory itself. `ok` and `MISS` mark promises kept
and missed; a script that misses one ends with exit code 1.
"""
_NOTHING_IS_FASTER = "Nothing in the tables below was faster than colabstage, and no promise was missed."
# Not of one word, as the titles of sections are.
_SLOWER = "## Where colabstage is slower"
_MISSED = "A promised ratio was missed"


def names() -> list[str]:
    """All benchmarks there are."""
    return sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def machine() -> str:
    """The hardware and versions, in two lines."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB; Linux {platform.release()}; "
        f"Python {platform.python_version()}; {', '.join(found)}"
    )


def run(name: str) -> tuple[str, int]:
    """Run one benchmark, showing its output as it comes; return what it printed with the exit code.

    Progress bars and warnings of other tools go to the standard error, which is shown and is not part of the page.
    """
    lines = []
    with subprocess.Popen(
        [sys.executable, "-u", "-m", f"benchmarks.{name}"],
        cwd=HERE.parent,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return "".join(lines).strip(), process.returncode


def peers(name: str) -> str:
    """The versions of what a benchmark measures against in the environment of the peers; empty where it has none."""
    if "_peers" not in (HERE / f"{name}.py").read_text(encoding="utf-8"):
        return ""
    found = ", ".join(f"{package} {number}" for package, number in _peers.versions().items())
    return f" The others' environment: {found}." if found else ""


def read_sections() -> dict[str, str]:
    """What the page has, by the name of the benchmark."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))


def output_of(section: str) -> str:
    """What the benchmark printed."""
    found = re.search(r"^```text\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def with_chart(name: str, section: str) -> str:
    """A section with its picture, which is drawn here, at the top; without one where no table has rates."""
    picture, text = f"![{name}]({name}.svg)", re.sub(r"\n!\[.*?\]\(.*?\.svg\)\n", "", section)
    tables = _chart.find_tables(output_of(section))
    if not tables:
        return text
    (PAGE.parent / f"{name}.svg").write_text(_chart.draw(name, tables), encoding="utf-8")
    return f"\n{picture}\n{text}"


def lost(sections: dict[str, str]) -> str:
    """The list of what was faster than colabstage, and of promises that were missed."""
    lines = []
    for name, section in sorted(sections.items()):
        output = output_of(section)
        quicker = [*_chart.losses(_chart.find_tables(output)), *_chart.lost_times(output)]
        lines += [f"- `{name}`: {line}" for line in quicker]
        missed = [line for line in output.splitlines() if line.startswith("MISS")]
        if not missed and _MISSED in section:
            missed = ["MISS  see its section"]
        lines += [f"- `{name}`: {line}" for line in missed]
    return "\n".join(lines) or _NOTHING_IS_FASTER


def write_page(sections: dict[str, str]) -> None:
    """Write the head, where colabstage is slower, and all sections with their pictures."""
    body = "".join(f"## {name}\n{with_chart(name, sections[name]).rstrip()}\n\n" for name in sorted(sections))
    PAGE.write_text(f"{HEAD}\n{_SLOWER}\n\n{lost(sections)}\n\n{body}".rstrip() + "\n", encoding="utf-8")


def write(name: str, output: str, code: int) -> None:
    """Put a benchmark's section into the page, in the place of its earlier one."""
    verdict = "No promised ratio was missed." if code == 0 else f"{_MISSED} (exit code {code})."
    when = time.strftime("%Y-%m-%d", time.gmtime())
    about = f"`python -m benchmarks.{name}`, {when}. {machine()}.{peers(name)} {verdict}"
    write_page({**read_sections(), name: f"\n{about}\n\n```text\n{output}\n```\n"})


def main() -> int:
    """Run those named, or all; exit code 1 when one missed a ratio."""
    if sys.argv[1:] == ["--redraw"]:
        write_page(read_sections())
        return 0
    wanted = sys.argv[1:] or names()
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        print(f"There is no benchmark {', '.join(unknown)}. Available: {', '.join(names())}.", file=sys.stderr)
        return 2
    worst = 0
    for name in wanted:
        print(f"== {name}", flush=True)
        output, code = run(name)
        # One that cannot run here says so on the standard error; what the page has stays.
        if output:
            write(name, output, code)
        worst = max(worst, min(code, 1))
    return worst


if __name__ == "__main__":
    sys.exit(main())
