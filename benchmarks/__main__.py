"""Run benchmarks and write what they print into docs/benchmarks.md.

    python -m benchmarks [NAME ...]

Each benchmark is a module of this folder whose name has no leading underscore. It prints its own table with the
baseline beside it, and ends with exit code 1 when a promised ratio is missed; the page keeps that line too.
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

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
PACKAGES = ("colabstage", "h5py", "numpy", "torch", "pillow", "simplejpeg", "isal", "mfusepy")
HEAD = """# Benchmarks

Written by `make bench`: one section for each script of `benchmarks/`, with what it printed. Every comparison was run
side by side in one go; the machine is shared, so read the ratios, not the absolute figures.
"""


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
    """Run one benchmark, showing its output as it comes; return it with the exit code."""
    lines = []
    with subprocess.Popen(
        [sys.executable, "-u", "-m", f"benchmarks.{name}"],
        cwd=HERE.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return "".join(lines).strip(), process.returncode


def write(name: str, output: str, code: int) -> None:
    """Put a benchmark's section into the page, in the place of its earlier one."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else HEAD
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    verdict = "All promised ratios hold." if code == 0 else f"A promised ratio was missed (exit code {code})."
    when = time.strftime("%Y-%m-%d", time.gmtime())
    command = f"python -m benchmarks.{name}"
    sections[name] = f"\n`{command}`, {when}. {machine()}. {verdict}\n\n```text\n{output}\n```\n\n"
    body = "".join(f"## {title}\n{sections[title]}" for title in sorted(sections))
    PAGE.write_text(f"{HEAD}\n{body}".rstrip() + "\n", encoding="utf-8")


def main() -> int:
    """Run those named, or all; exit code 1 when one missed a ratio."""
    wanted = sys.argv[1:] or names()
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        print(f"There is no benchmark {', '.join(unknown)}. There are: {', '.join(names())}.", file=sys.stderr)
        return 2
    worst = 0
    for name in wanted:
        print(f"== {name}", flush=True)
        output, code = run(name)
        write(name, output, code)
        worst = max(worst, min(code, 1))
    return worst


if __name__ == "__main__":
    sys.exit(main())
