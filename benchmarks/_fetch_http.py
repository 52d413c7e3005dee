"""One large file over loopback HTTP: 50 ms away, 20 MB/s a connection, against `curl` and aria2c.

The server runs in a process of its own and sends from the disk's cache, so that it takes as little as possible of the
two cores that client and server share. Every contender runs in a process of its own, ours too; its interpreter's start
and imports are not counted. Contenders take turns, in rounds, and what they fetched is hashed.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.fetching import OURS, Row
from colabstage.io.files import block_ranges, hash_ranges
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import serve_apart

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE_BYTES = 2_000_000_000
CONNECTIONS = 16
KNOBS = WebKnobs(latency_s=0.05, bytes_per_s=20e6)
_NAME = "data.bin"
_ROUNDS = 3

# It times itself, from after the imports on, and prints the seconds.
_OURS = """
import sys, time
from pathlib import Path
import requests
from colabstage.sources.arriving import fetch_file
from colabstage.sources.http_file import open_http
from colabstage.io.progress import Cancellation, Progress
from colabstage.io.files import RetryPolicy
url, target = sys.argv[1:]
began = time.perf_counter()
source = open_http(url)
step = Progress().step("", total=None, unit="B")
fetch_file(source, Path(target), step=step, cancellation=Cancellation(), policy=RetryPolicy())
source.close()
print(time.perf_counter() - began)
"""


def measure(size_bytes: int = SIZE_BYTES, *, rounds: int = _ROUNDS) -> list[Row]:
    """Fetch a file of `size_bytes` by every tool that is installed, `rounds` times in turn; one row for each.

    Raises:
        RuntimeError: a tool failed, or what it fetched is not the file.
    """
    task = f"{size_bytes / 1e9:g} GB over HTTP, 50 ms away, 20 MB/s a connection"
    with tempfile.TemporaryDirectory(prefix="colabstage-http-") as place:
        source = Path(place) / _NAME
        _write_random(source, size_bytes)
        expected = _hashes(source)
        with serve_apart({_NAME: source}, KNOBS) as address:
            tools = _tools(f"{address}/{_NAME}")
            times: dict[str, list[float]] = {tool: [] for tool in tools}
            # curl takes the time of one connection, and hardly varies: once is enough.
            for number in range(rounds):
                for tool, run in tools.items():
                    if number == 0 or tool != "curl":
                        times[tool].append(_time(run, expected, Path(place) / "out"))
    return [Row(task, tool, statistics.median(seconds), _spread(seconds)) for tool, seconds in times.items()]


def _tools(url: str) -> dict[str, Callable[[Path], float | None]]:
    """What brings the file to a place, by name; returns its own time where it does not count its start."""
    both = f"-x{CONNECTIONS} -s{CONNECTIONS}"
    tools: dict[str, Callable[[Path], float | None]] = {
        OURS: lambda target: _run_python(_OURS, url, str(target)),
        f"aria2c {both}": lambda target: _run(
            [
                "aria2c",
                *both.split(),
                "-q",
                "-k1M",
                "--file-allocation=none",
                f"--dir={target.parent}",
                f"-o{target.name}",
                url,
            ]
        ),
        "curl": lambda target: _run(["curl", "-sSf", "-o", str(target), url]),
    }
    return {tool: run for tool, run in tools.items() if tool == OURS or shutil.which(tool.split()[0])}


def _time(run: Callable[[Path], float | None], expected: list[str], folder: Path) -> float:
    """Seconds of one fetch into a new folder, checked and removed afterwards."""
    folder.mkdir()
    target = folder / _NAME
    began = time.perf_counter()
    own = run(target)
    seconds = time.perf_counter() - began if own is None else own
    if _hashes(target) != expected:
        msg = f"what was fetched to '{target}' is not the file"
        raise RuntimeError(msg)
    shutil.rmtree(folder)
    # Let the disk write what it still holds, so that it does not do it in the next one's time.
    os.sync()
    return seconds


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _run_python(script: str, *arguments: str) -> float:
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], check=True, stdout=subprocess.PIPE, text=True, cwd=root
    )
    return float(done.stdout)


def _spread(seconds: list[float]) -> str:
    return f"{min(seconds):.2f} to {max(seconds):.2f} s in {len(seconds)} rounds" if len(seconds) > 1 else "one round"


def _hashes(path: Path) -> list[str]:
    return hash_ranges(path, block_ranges(path.stat().st_size, 8 << 20), threads=2)


def _write_random(path: Path, size: int) -> None:
    with path.open("wb") as file:
        while (left := size - file.tell()) > 0:
            file.write(os.urandom(min(left, 16 << 20)))
