"""Samples per second out of a file that the system does not hold in memory: mapped, read by rows, read through first.

    python -m benchmarks.read_cold [--rounds 5] [--samples 8000] [--json OUT]

Samples of 256x256x3 uint8 (8,000: 1.6 GB), batches of 64 in random order. Before each contender the file is written
back and dropped from the system's cache (`posix_fadvise(DONTNEED)`), and what is left of it there is measured; the
host of a virtual machine may still have it, and then the disk seems faster than it is. Contenders take turns, round
after round.

- first batches: the time for the first 1,024 samples, as when a file is larger than memory and nothing stays in it.
- epoch: all samples once, the pass that reads the file through included.

How badly random reads of the mapped file do depends on how far the system reads ahead on that disk, which is printed.
Reading ahead also brings in what later batches need, where memory holds it, so over a whole epoch the ways are closer:
with 8 MiB of it, random reads of the mapped file fetch the whole in few seconds, as fast as any pass made on purpose.

Ends with exit code 1 when rows read by 16 threads are not faster than the mapped file for the first batches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from benchmarks.read_pixels import describe_machine, median_ratio
from colabstage.h5.info import open_h5
from colabstage.load.dataset import dataset_h5
from colabstage.load.epoch.order import epoch_order
from colabstage.load.loader import make_loader
from colabstage.load.reading.crew import Crew
from colabstage.load.reading.mapping import FileStamp
from colabstage.load.reading.opening import OpenFile
from colabstage.load.reading.storage import EngineChoice, read_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.load.reading.storage import StorageFacts

SIDE, BATCH, FIRST = 256, 64, 1024
MAPPED, READ, THROUGH = "mapped, 1 thread", "read by rows, 16 threads", "make_loader: read through, then mapped"


def write_file(path: Path, samples: int) -> None:
    """Write random images as a plain, contiguous dataset, a part at a time."""
    dice = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        images = file.create_dataset("X_train", (samples, SIDE, SIDE, 3), np.uint8)
        for start in range(0, samples, 500):
            count = min(500, samples - start)
            images[start : start + count] = dice.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
        file["Y_train"] = np.zeros(samples, np.int64)


def drop_cache(path: Path, facts: StorageFacts) -> float:
    """Make the system forget the file; which part of it is in memory all the same."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
    return OpenFile(path, FileStamp.of(path.stat())).resident_part(facts)


def describe_readahead(path: Path) -> str:
    """How far the system reads ahead on the disk that holds `path`."""
    device = path.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for folder in (place, place.parent):  # a partition's own folder has no queue
        with contextlib.suppress(OSError):
            return (folder / "queue/read_ahead_kb").read_text(encoding="ascii").strip() + " KiB"
    return "unknown"


def by_engine(path: Path, facts: StorageFacts, name: Any, threads: int) -> Iterator[tuple[int, int]]:
    """Batches by one engine: their length, and a byte of every image added up."""
    engine = OpenFile(path, FileStamp.of(path.stat())).rows(facts, EngineChoice(name, "a benchmark"))
    order = epoch_order(facts.shape[0], shuffle=True, seed=0, epoch=0)
    buffer = np.empty((BATCH, *facts.shape[1:]), facts.dtype)
    with Crew(threads) as crew:
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            engine.read_rows(rows, buffer[: len(rows)], crew)
            yield len(rows), int(buffer[: len(rows), 0, 0, 0].sum())


def by_loader(path: Path) -> Iterator[tuple[int, int]]:
    """The same batches by make_loader, which reads the file through first."""
    loader = make_loader(dataset_h5(path), BATCH, strategy="direct")
    for x, _ in loader:
        yield len(x), int(x[:, 0, 0, 0].sum())


def time_samples(batches: Iterator[tuple[int, int]], wanted: int) -> tuple[float, int]:
    """Samples per second over the first `wanted`, and the sum of what was touched."""
    start, done, total = time.perf_counter(), 0, 0
    for count, touched in batches:
        done, total = done + count, total + touched
        if done >= wanted:
            break
    return done / (time.perf_counter() - start), total


def measure(path: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Samples per second of each contender in each round, for the first batches and for the epoch."""
    with open_h5(path) as file:
        facts = read_facts(file["X_train"], path)
    contenders: dict[str, Callable[[], Iterator[tuple[int, int]]]] = {
        MAPPED: lambda: by_engine(path, facts, "mapped", 1),
        READ: lambda: by_engine(path, facts, "read", 16),
        "read by rows, 1 thread": lambda: by_engine(path, facts, "read", 1),
        "read by rows, 32 threads": lambda: by_engine(path, facts, "read", 32),
        THROUGH: lambda: by_loader(path),
    }
    rates: dict[str, dict[str, list[float]]] = {"first batches": {}, "epoch": {}}
    names = list(contenders)
    for number in range(rounds):
        # Another one begins each round: a disk with a budget for bursts would favour the first.
        turn = names[number % len(names) :] + names[: number % len(names)]
        for part, wanted in (("first batches", FIRST), ("epoch", facts.shape[0])):
            sums = set()
            for name in turn:
                left = drop_cache(path, facts)
                if left > 0.1:
                    sys.exit(f"{left:.0%} of '{path}' stays in memory; choose a folder on a disk with --folder")
                rate, total = time_samples(contenders[name](), wanted)
                sums.add(total)
                rates[part].setdefault(name, []).append(rate)
            if len(sums) != 1:
                sys.exit(f"The contenders did not read the same data: {sums}")
    drop_cache(path, facts)
    print(f"\n{dataset_h5(path).engine}")
    return rates


def report(rates: dict[str, dict[str, list[float]]]) -> bool:
    """Print the tables; whether rows came faster by 16 threads than out of the mapped file at first."""
    sample_mb = SIDE * SIDE * 3 / 1e6
    for part, contenders in rates.items():
        print(f"\n{part + ', samples/s':42}{'median':>10}{'lowest':>10}{'highest':>10}{'MB/s':>10}{'x mapped':>10}")
        for name, values in contenders.items():
            middle, ratio = statistics.median(values), median_ratio(values, contenders[MAPPED])
            low, high = min(values), max(values)
            print(f"{name:42}{middle:10,.0f}{low:10,.0f}{high:10,.0f}{middle * sample_mb:10,.0f}{ratio:10.1f}")
    first = rates["first batches"]
    return median_ratio(first[READ], first[MAPPED]) > 1


def main() -> int:
    """Run the benchmark; 0 when rows are read faster than the mapped file gives them at first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are counted")
    parser.add_argument("--samples", type=int, default=8000, help="samples in the file")
    parser.add_argument("--folder", type=Path, help="where to write the file; the temporary folder by default")
    parser.add_argument("--json", type=Path, help="write machine and figures there")
    arguments = parser.parse_args()
    machine = describe_machine()
    for name, value in machine.items():
        print(f"{name:10} {value}")
    with tempfile.TemporaryDirectory(prefix="read-cold-", dir=arguments.folder) as folder:
        path = Path(folder) / "cold.h5"
        write_file(path, arguments.samples)
        machine["read-ahead"] = describe_readahead(path)
        print(f"read-ahead {machine['read-ahead']}")
        rates = measure(path, arguments.rounds)
    fast_enough = report(rates)
    if arguments.json:
        facts = {"machine": machine, "samples_per_s": rates}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 0 if fast_enough else 1


if __name__ == "__main__":
    sys.exit(main())
