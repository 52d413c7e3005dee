"""Extracting many small members: ours against what people type.

The members are what deflate is used for: pictures without compression of their own, here tiles of 100 x 100 grey pixels
as PGM, 10 kB each, cut out of decoded JPEGs; they deflate to about two thirds. Every round extracts into a fresh folder
and nothing is removed until the end, because ext4 takes its time to use the inodes of files that were just deleted,
and whoever came next would pay for it.
"""

from __future__ import annotations

import io
import os
import shutil
import statistics
import subprocess
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from benchmarks._photographs import photograph
from benchmarks.fetching import OURS, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KINDS = 24
_SIDE = 100
# Little enough grain for deflate to find something.
_JPEG_BYTES = 30_000
_CLASSES = 100
_TIMEOUT_S = 600


def measure(*, members: int = 20_000, rounds: int = 3, folder: Path | None = None) -> list[Row]:
    """Time every tool `rounds` times in turn; one row each, its seconds the median.

    Args:
        members: files in the archives.
        rounds: of all tools, one after the other.
        folder: where to work; 1 GB of disk for each tool and round at 20,000 members. The system's by default.
    """
    with tempfile.TemporaryDirectory(prefix="colabstage-extract-", dir=folder) as name:
        work = Path(name)
        zipped, packed = work / "tiles.zip", work / "tiles.tar.gz"
        content_bytes = _write_archives(zipped, packed, members)
        size = f"{members:,} members, {content_bytes / 1e6:.0f} MB from {zipped.stat().st_size / 1e6:.0f} MB"
        rows = _race(f"extract a zip of {size}", _zip_tools(zipped), work / "zip", rounds)
        size = f"{members:,} members, {content_bytes / 1e6:.0f} MB from {packed.stat().st_size / 1e6:.0f} MB"
        return rows + _race(f"extract a tar.gz of {size}", _tar_tools(packed), work / "tar", rounds)


def _tiles(members: int) -> Iterator[tuple[str, bytes]]:
    jpegs = [photograph(number, target_bytes=_JPEG_BYTES) for number in range(_KINDS)]
    pictures = [np.asarray(Image.open(io.BytesIO(jpeg)).convert("L")) for jpeg in jpegs]
    random = np.random.default_rng(0)
    for number in range(members):
        picture = pictures[number % _KINDS]
        top, left = (int(random.integers(0, edge - _SIDE)) for edge in picture.shape)
        tile = picture[top : top + _SIDE, left : left + _SIDE]
        content = f"P5 {_SIDE} {_SIDE} 255\n".encode() + tile.tobytes()
        yield f"train/class_{number * _CLASSES // members:03d}/{number:06d}.pgm", content


def _write_archives(zipped: Path, packed: Path, members: int) -> int:
    total = 0
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as first, tarfile.open(packed, "w:gz") as second:
        for name, content in _tiles(members):
            first.writestr(zipfile.ZipInfo(name, (2024, 5, 17, 12, 30, 0)), content, zipfile.ZIP_DEFLATED)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            second.addfile(member, io.BytesIO(content))
            total += len(content)
    return total


def _ours(archive: Path) -> Callable[[Path], object]:
    from colabstage import extract_archive

    return lambda target: extract_archive(archive, target, progress=False)


def _command(*words: str | Path) -> Callable[[Path], object]:
    """A tool by its command line, `{}` in it standing for the target; it starts in a folder that exists."""

    def run(target: Path) -> None:
        target.mkdir()
        line = [str(word).replace("{}", str(target)) for word in words]
        subprocess.run(line, check=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    return run


def _zip_tools(archive: Path) -> dict[str, Callable[[Path], object]]:
    def by_zipfile(target: Path) -> None:
        with zipfile.ZipFile(archive) as file:
            file.extractall(target)

    tools = {OURS: _ours(archive)}
    if shutil.which("unzip"):
        tools["unzip -q"] = _command("unzip", "-q", archive, "-d", "{}")
    if seven := shutil.which("7zz") or shutil.which("7z"):
        tools["7z x -mmt=on"] = _command(seven, "x", "-mmt=on", "-bd", archive, "-o{}")
    tools["zipfile.extractall"] = by_zipfile
    tools["shutil.unpack_archive"] = lambda target: shutil.unpack_archive(archive, target)
    return tools


def _tar_tools(archive: Path) -> dict[str, Callable[[Path], object]]:
    tools = {OURS: _ours(archive), "tar xzf": _command("tar", "xzf", archive, "-C", "{}")}
    if shutil.which("pigz"):
        tools["tar -I pigz -xf"] = _command("tar", "-I", "pigz", "-xf", archive, "-C", "{}")
    return tools


def _race(task: str, tools: dict[str, Callable[[Path], object]], work: Path, rounds: int) -> list[Row]:
    work.mkdir()
    seconds: dict[str, list[float]] = {name: [] for name in tools}
    for turn in range(rounds):
        for number, (name, run) in enumerate(tools.items()):
            seconds[name].append(_timed(run, work / f"{turn}-{number}"))
    return [_row(task, name, times) for name, times in seconds.items()]


def _timed(run: Callable[[Path], object], target: Path) -> float:
    # What others wrote before is on the disk by then, so nobody waits for it.
    os.sync()
    began = time.perf_counter()
    run(target)
    return time.perf_counter() - began


def _row(task: str, tool: str, times: list[float]) -> Row:
    return Row(task, tool, statistics.median(times), f"{min(times):.2f} to {max(times):.2f} s")
