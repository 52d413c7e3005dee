"""Many small files from a (simulated) Google Drive to the local disk, by ours and by what people use.

Each contender starts from a machine that has never read anything, with Drive newly mounted; what each brought is
compared with the files in the cloud, byte by byte. All but ours take the time of 2,000 openings one after the other,
and so hardly vary: once is enough for them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._photographs import write_photographs
from benchmarks.fetching import OURS, Row
from colabstage.sources.fetching import fetch_files
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = 2000
# An ordinary day, but for the cold open: 30 ms is its fast end, which favours those that open one after the other.
KNOBS = replace(DriveKnobs(), cold_open_latency_s=0.03)
_ROUNDS = 3


def measure(files: int = FILES, *, rounds: int = _ROUNDS) -> list[Row]:
    """Copy `files` JPEGs of 100 kB by every tool that is installed; one row for each.

    Raises:
        RuntimeError: a tool failed, or what it brought are not the files.
    """
    task = f"copy {files:,} JPEGs of 100 kB from Drive, 30 ms a cold open"
    with tempfile.TemporaryDirectory(prefix="colabstage-copy-") as place:
        # Only the Drive below this folder counts as one.
        os.environ["COLABSTAGE_SYSTEM_ROOT"] = place
        drive = SimulatedDrive(Path(place) / "drive", knobs=KNOBS)
        write_photographs(drive.cloud / "MyDrive" / "photos", files)
        rows = []
        for tool, copy in _tools().items():
            times = [_time(drive, Path(place), copy, tool) for _ in range(rounds if tool == OURS else 1)]
            spread = f"{min(times):.2f} to {max(times):.2f} s in {rounds} rounds" if len(times) > 1 else ""
            rows.append(Row(task, tool, statistics.median(times), spread))
        return rows


def _tools() -> dict[str, Callable[[Path, Path], object]]:
    """What copies a folder, by the words that people type."""
    tools: dict[str, Callable[[Path, Path], object]] = {
        OURS: lambda source, target: fetch_files(source, target, progress=False),
        "cp -r": lambda source, target: _call("cp", "-r", source, target),
        "shutil.copytree": shutil.copytree,
        "fsspec get": _fsspec_get,
    }
    if shutil.which("rsync"):
        tools["rsync -a"] = lambda source, target: _call("rsync", "-a", f"{source}/", target)
    return tools


def _call(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        msg = f"{command[0]} failed: {done.stderr.strip()}"
        raise RuntimeError(msg)


def _fsspec_get(source: Path, target: Path) -> None:
    from fsspec.implementations.local import LocalFileSystem

    LocalFileSystem().get(f"{source}/", f"{target}/", recursive=True)


def _time(drive: SimulatedDrive, place: Path, copy: Callable[[Path, Path], object], tool: str) -> float:
    """Seconds for one copy on a fresh machine."""
    target = place / "local" / "photos"
    shutil.rmtree(target.parent, ignore_errors=True)
    target.parent.mkdir()
    drive.new_machine()
    mountpoint = place / "content" / "drive"
    mountpoint.mkdir(parents=True, exist_ok=True)
    drive.mount(mountpoint)
    try:
        os.sync()
        began = time.perf_counter()
        copy(mountpoint / "MyDrive" / "photos", target)
        seconds = time.perf_counter() - began
    finally:
        drive.unmount()
    _check_same(drive.cloud / "MyDrive" / "photos", target, tool)
    return seconds


def _check_same(truth: Path, found: Path, tool: str) -> None:
    names = {path.relative_to(truth) for path in truth.rglob("*.jpg")}
    brought = {path.relative_to(found) for path in found.rglob("*.jpg")}
    if brought != names or any((truth / name).read_bytes() != (found / name).read_bytes() for name in names):
        msg = f"{tool} did not bring the files as they are."
        raise RuntimeError(msg)
