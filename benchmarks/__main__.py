"""Run benchmarks, keep what they print in `benchmarks/results/`, and make docs/benchmarks.md from it.

    python -m benchmarks [NAME ...]
    python -m benchmarks --redraw

Each benchmark is a module of this folder whose name has no leading underscore. It prints its own table with the
baseline beside it, and ends with exit code 1 when a promised ratio is missed. A figure with its promise in brackets,
as `_report.against` writes it, becomes a row of the page; tables that `_chart` can read also become bars in
docs/NAME.svg. `--redraw` measures nothing: it makes the page again from the outputs that are there.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks import _page, _peers

HERE = Path(__file__).parent
PACKAGES = ("colabstage", "h5py", "numpy", "torch", "pillow", "simplejpeg", "isal", "mfusepy")


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

    Progress bars and warnings of other tools go to the standard error, which are shown and not kept.
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


def write(name: str, output: str, code: int) -> None:
    """Keep what a benchmark printed, in place of its earlier output, and make the page again."""
    verdict = "No promised ratio was missed." if code == 0 else f"A promised ratio was missed (exit code {code})."
    when = time.strftime("%Y-%m-%d", time.gmtime())
    about = f"python -m benchmarks.{name}, {when}. {machine()}.{peers(name)} {verdict}"
    _page.RESULTS.mkdir(exist_ok=True)
    (_page.RESULTS / f"{name}.txt").write_text(f"{about}\n\n{output}\n", encoding="utf-8")
    _page.write_page()


def main() -> int:
    """Run those named, or all; exit code 1 when one missed a ratio."""
    if sys.argv[1:] == ["--redraw"]:
        _page.write_page()
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
        # One that cannot run here says so on the standard error; its earlier output stays.
        if output:
            write(name, output, code)
        worst = max(worst, min(code, 1))
    return worst


if __name__ == "__main__":
    sys.exit(main())
