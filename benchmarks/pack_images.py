"""Packing photographs: `pack_dataset` against the recipe's loop, four other libraries and the decoder's own limit.

    python -m benchmarks.pack_images [--quick] [--count 2000] [--rounds 3] [--peers .venv-peers]

2,000 photographs of 500x375 (JPEG, 100 kB each) to 224x224 pixels. Contenders take turns, round after round; ratios
are of the same round, and the table has their median. The limit is the decoding and resizing alone, of files that are
in memory already, by one thread for each core, with nothing stored, by the fastest decoder and resizer we know:
libjpeg-turbo, and torch's kernel where it can be used, which `pack_dataset` takes from 2,000 images on. Files as they
came (`encoded`) are compared with `cp -r` of the same folder, and shown beside a copy of the same bytes as one file.

The other libraries run in processes of their own with as many workers as there are cores, in a virtual environment of
their own; those that are not there are left out, and the line says so. To make it:

    python3.11 -m venv .venv-peers
    .venv-peers/bin/pip install 'torch==2.13.0+cpu' h5py pillow webdataset datasets litdata
    # FFCV is built from its source, for which Debian needs: pkg-config libopencv-dev libturbojpeg0-dev g++
    .venv-peers/bin/pip install 'numpy<2.3' setuptools wheel opencv-python-headless numba pandas tqdm assertpy \\
        fastargs terminaltables torchvision
    .venv-peers/bin/pip download --no-deps --no-binary :all: ffcv && tar xzf ffcv-*.tar.gz
    .venv-peers/bin/pip install --no-build-isolation --no-deps ./ffcv-*/

Ends with exit code 1 when `pack_dataset` is under 0.85 of the limit, under 3 times the recipe's loop, not faster than
every other library, or `encoded` under 0.8 of the copy.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._photographs import write_photographs
from benchmarks._report import against
from colabstage.images.decode import Scratch, decode_sized
from colabstage.images.geometry import ImageOptions
from colabstage.images.resample import can_torch_resize
from colabstage.machine.resources import usable_cores
from colabstage.pack.run import pack_dataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from colabstage.images.resample import Resizer

COUNT, QUICK_COUNT, SIDE = 2000, 200, 224
OF_LIMIT, OF_RECIPE, OF_COPY = 0.85, 3.0, 0.8
OURS, LIMIT, RECIPE, ENCODED, COPY = (
    "pack_dataset",
    "limit: decode and resize, all cores",
    "recipe: h5py and Pillow, one by one",
    "pack_dataset, encoded",
    "cp -r of the folder",
)
ONE_FILE = "a copy of the same bytes as one file"
PEERS = {
    "webdataset": "webdataset's ShardWriter",
    "datasets": "datasets: map, save_to_disk",
    "litdata": "litdata's optimize",
    "ffcv": "FFCV's DatasetWriter, raw",
}
_PEER_SCRIPT = Path(__file__).with_name("_pack_peers.py")
_PEER_S = 900


class _Memory(threading.local):
    def __init__(self) -> None:
        self.scratch = Scratch()


@dataclass
class Bench:
    """Photographs in `photos`, `count` of them; results go below `place` and are removed at once. `resizer`: what the
    last pack of pixels was resized by."""

    photos: Path
    place: Path
    count: int
    cores: int
    resizer: str = ""

    def limit(self) -> float:
        """Seconds to decode and resize all, from memory to nowhere."""
        files = [path.read_bytes() for path in sorted(self.photos.rglob("*.jpg"))]
        options, memory = ImageOptions(size=(SIDE, SIDE)), _Memory()
        resizer: Resizer = "torch" if can_torch_resize() else "pillow"

        def decode(data: bytes) -> None:
            decode_sized(data, options, resizer=resizer, scratch=memory.scratch)

        start = time.perf_counter()
        with ThreadPoolExecutor(self.cores) as pool:
            for _ in pool.map(decode, files):
                pass
        return time.perf_counter() - start

    def pack(self, encoding: str) -> float:
        """Seconds of the whole call."""
        start = time.perf_counter()
        report = pack_dataset(
            self.photos, self.place / "ours.h5", image_size=(SIDE, SIDE), encoding=encoding, progress=False
        )
        self.resizer = report.resizer or self.resizer
        return time.perf_counter() - start

    def copy(self) -> float:
        """Seconds of `cp -r`."""
        start = time.perf_counter()
        subprocess.run(["cp", "-r", str(self.photos), str(self.place / "copy")], check=True)
        return time.perf_counter() - start

    def copy_one(self) -> float:
        """Seconds to copy one file of as many bytes."""
        whole = self.place / "whole"
        with open(whole, "wb") as file:
            file.writelines(path.read_bytes() for path in sorted(self.photos.rglob("*.jpg")))
        start = time.perf_counter()
        shutil.copyfile(whole, self.place / "whole.copy")
        return time.perf_counter() - start

    def peer(self, python: Path, name: str) -> float | None:
        """Seconds that another library took; `None` where it cannot run."""
        command = [str(python), str(_PEER_SCRIPT), name, str(self.photos), str(self.place), str(SIDE), str(self.cores)]
        done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=_PEER_S)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            print(f"{name} is left out: {reason}")
            return None
        return float(json.loads(done.stdout.strip().splitlines()[-1])["seconds"])


def measure(bench: Bench, peers: Path | None, rounds: int) -> dict[str, list[float]]:
    """Images per second of each contender in each round."""
    contenders: dict[str, Callable[[], float | None]] = {
        LIMIT: bench.limit,
        OURS: lambda: bench.pack("pixels"),
        ENCODED: lambda: bench.pack("encoded"),
        COPY: bench.copy,
        ONE_FILE: bench.copy_one,
        # Here, where h5py and Pillow are anyway.
        RECIPE: lambda: bench.peer(Path(sys.executable), "recipe"),
    }
    if peers is None:
        print(
            "The other libraries are left out: there is no virtual environment of theirs (see the top of the script)."
        )
    else:
        for name, title in PEERS.items():
            contenders[title] = lambda name=name: bench.peer(peers, name)  # type: ignore[misc]
    bench.pack("pixels")  # imports, and the system's cache
    clear(bench.place)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in list(contenders.items()):
            seconds = run()
            clear(bench.place)
            if seconds is None:
                del contenders[name], rates[name]
            else:
                rates[name].append(bench.count / seconds)
    return rates


def clear(folder: Path) -> None:
    """Remove all that a contender left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def ratio(rates: dict[str, list[float]], name: str, base: str) -> float:
    """Median of the ratios within a round."""
    return statistics.median(one / other for one, other in zip(rates[name], rates[base], strict=True))


def judge(rates: dict[str, list[float]]) -> list[tuple[bool, str]]:
    """Each promise: whether it holds, and the figures."""
    to_limit, to_recipe, to_copy = ratio(rates, OURS, LIMIT), ratio(rates, OURS, RECIPE), ratio(rates, ENCODED, COPY)
    found = [
        (to_limit >= OF_LIMIT, f"of the limit: {against(to_limit, OF_LIMIT, 'at least')}"),
        (to_recipe >= OF_RECIPE, f"times the recipe's loop: {against(to_recipe, OF_RECIPE, 'at least', 1)}"),
        (to_copy >= OF_COPY, f"encoded, of cp -r: {against(to_copy, OF_COPY, 'at least')}"),
    ]
    for title in PEERS.values():
        if title in rates:
            times = ratio(rates, OURS, title)
            found.append((times > 1, f"times {title}: {against(times, 1, 'more than', 1)}"))
    return found


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_COUNT} photographs, one round")
    parser.add_argument("--count", type=int, help=f"photographs, {COUNT} if nothing is said")
    parser.add_argument("--rounds", type=int, help="3 if nothing is said")
    parser.add_argument("--peers", type=Path, default=Path(".venv-peers"), help="where the other libraries are")
    arguments = parser.parse_args()
    count = arguments.count or (QUICK_COUNT if arguments.quick else COUNT)
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    python = arguments.peers.absolute() / "bin" / "python"
    with tempfile.TemporaryDirectory(prefix="pack-images-") as home:
        photos, place = Path(home) / "photos", Path(home) / "place"
        nbytes = write_photographs(photos, count)
        place.mkdir()
        print(f"{count:,} photographs of 500x375, {nbytes / 1e6:.0f} MB, to {SIDE}x{SIDE}; {usable_cores()} cores")
        bench = Bench(photos, place, count, usable_cores())
        rates = measure(bench, python if python.exists() else None, rounds)
        print(f"pack_dataset resized by {bench.resizer}")
    print(f"\n{'images/s':40}{'median':>10}{'lowest':>10}{'highest':>10}")
    for name, values in sorted(rates.items(), key=lambda item: -statistics.median(item[1])):
        print(f"{name:40}{statistics.median(values):10,.0f}{min(values):10,.0f}{max(values):10,.0f}")
    print()
    verdicts = judge(rates)
    for holds, text in verdicts:
        print(f"{'ok' if holds else 'MISS'}: {text}")
    return 0 if all(holds for holds, _ in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
