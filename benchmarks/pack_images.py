"""Packing photographs: `pack_dataset` against the recipe's loop, four other libraries and the decoder's own limit.

    python -m benchmarks.pack_images [--quick] [--count 2000] [--rounds 3]

2,000 photographs of 500x375 (JPEG, 100 kB each) to 224x224 pixels. Contenders take turns, round after round; ratios
are of the same round, and the table has their median. The limit is the decoding and resizing alone, of files that are
in memory already, by one thread for each core, with nothing stored, by the fastest decoder and resizer we know:
libjpeg-turbo, and torch's kernel where it can be used, which `pack_dataset` takes from 2,000 images on. Files as they
came (`encoded`) are compared with `cp -r` of the same folder.

The other libraries run in processes of their own with as many workers as there are cores, in the environment that
`benchmarks/_peers.py` describes; those that are not there are left out, and a line says so.

Ends with exit code 1 when `pack_dataset` is under 0.85 of the limit, under 3 times the recipe's loop, not faster than
every other library, or `encoded` under 0.8 of the copy.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import _peers
from benchmarks._photographs import write_photographs
from benchmarks._report import Promise, by_turns, judge, median_ratio, show_rates
from colabstage.images.decode import Scratch, can_torch_resize, decode_sized
from colabstage.images.geometry import ImageOptions
from colabstage.machine.resources import usable_cores
from colabstage.pack.run import pack_dataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks._report import Rates
    from colabstage.images.decode import Resizer

COUNT, QUICK_COUNT, SIDE = 2000, 200, 224
OF_LIMIT, OF_RECIPE, OF_COPY = 0.85, 3.0, 0.8
OURS, LIMIT, RECIPE, ENCODED, COPY = (
    "pack_dataset",
    "limit: decode and resize, all cores",
    "recipe: h5py and Pillow, one by one",
    "pack_dataset, encoded",
    "cp -r of the folder",
)
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

    def peer(self, name: str, python: Path = _peers.PYTHON) -> float | None:
        """Seconds that another library took; `None` where it cannot run."""
        command = [str(python), str(_PEER_SCRIPT), name, str(self.photos), str(self.place), str(SIDE), str(self.cores)]
        done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=_PEER_S)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            print(f"{name} is left out: {reason}")
            return None
        return float(json.loads(done.stdout.strip().splitlines()[-1])["seconds"])

    def rate(self, run: Callable[[], float | None]) -> float | None:
        """Images per second of a contender, what it left removed."""
        seconds = run()
        shutil.rmtree(self.place)
        self.place.mkdir()
        return None if seconds is None else self.count / seconds


def measure(bench: Bench, rounds: int) -> Rates:
    """Images per second of each contender in each round."""
    contenders: dict[str, Callable[[], float | None]] = {
        LIMIT: bench.limit,
        OURS: lambda: bench.pack("pixels"),
        ENCODED: lambda: bench.pack("encoded"),
        COPY: bench.copy,
        # Here, where h5py and Pillow are anyway.
        RECIPE: lambda: bench.peer("recipe", Path(sys.executable)),
    }
    if problem := _peers.why_no_environment():
        print(f"The other libraries are left out: {problem}")
    else:
        contenders |= {title: partial(bench.peer, name) for name, title in PEERS.items()}
    bench.rate(contenders[OURS])  # imports, and the system's cache
    return by_turns({name: partial(bench.rate, run) for name, run in contenders.items()}, rounds, uncounted=0)


def promised(rates: Rates) -> list[Promise]:
    """What is promised, as far as it was measured."""
    least = [
        ("pack_dataset, of the limit", OURS, LIMIT, "at least", OF_LIMIT, 2),
        ("pack_dataset, times the recipe's loop", OURS, RECIPE, "at least", OF_RECIPE, 1),
        ("encoded, of cp -r", ENCODED, COPY, "at least", OF_COPY, 2),
        *((f"pack_dataset, times {title}", OURS, title, "more than", 1.0, 1) for title in PEERS.values()),
    ]
    return [
        Promise(what, median_ratio(rates[one], rates[other]), words, limit, digits)
        for what, one, other, words, limit, digits in least
        if other in rates
    ]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_COUNT} photographs, one round")
    parser.add_argument("--count", type=int, help=f"photographs, {COUNT} if nothing is said")
    parser.add_argument("--rounds", type=int, help="3 if nothing is said")
    arguments = parser.parse_args()
    count = arguments.count or (QUICK_COUNT if arguments.quick else COUNT)
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    with tempfile.TemporaryDirectory(prefix="pack-images-") as home:
        photos, place = Path(home) / "photos", Path(home) / "place"
        nbytes = write_photographs(photos, count)
        place.mkdir()
        print(f"{count:,} photographs of 500x375, {nbytes / 1e6:.0f} MB, to {SIDE}x{SIDE}; {usable_cores()} cores")
        bench = Bench(photos, place, count, usable_cores())
        rates = measure(bench, rounds)
        print(f"pack_dataset resized by {bench.resizer}")
    show_rates("images/s", rates, base=LIMIT, column="of the limit")
    return judge(promised(rates))


if __name__ == "__main__":
    sys.exit(main())
