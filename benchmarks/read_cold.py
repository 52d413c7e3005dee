"""Megabytes per second out of a file that is larger than memory, none of it in the system's cache at first.

    python -m benchmarks.read_cold [--rounds 3] [--samples 12000] [--folder FOLDER]

Samples of 256x256x3 uint8 (12,000: 2.4 GB), batches of 64; make_loader is told that the file is larger than memory.
Before each turn the file is dropped from the system's cache (`posix_fadvise(DONTNEED)`), and what is left of it there
is measured; the host of a virtual machine may still have it, and then the disk seems faster than it is. Contenders take
turns, another one first in each round.

- sequential: the file's bytes front to back in blocks of 4 MiB, past the system's cache (O_DIRECT) and through it.
- true shuffle: any order is as likely as any other. By make_loader, which reads rows by 16 threads, and out of the
  mapped file, each for 4 seconds at the most. How badly the mapped file does depends on how far the system reads ahead
  on that disk, which is printed.

Ends with exit code 1 when true shuffle has less than 5 times the rate of the mapped file.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from benchmarks._report import Promise, by_turns, judge, median_ratio, show_rates
from colabstage.h5.info import open_h5
from colabstage.io.pipeline import ThreadPool
from colabstage.load.dataset import dataset_h5
from colabstage.load.epoch import random_order
from colabstage.load.loader import make_loader
from colabstage.load.plan import Choice
from colabstage.load.reading.fields import Mapped, read_storage
from colabstage.load.reading.memory import FileStamp, OpenedFile, resident_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.load.loader import Loader
    from colabstage.load.reading.fields import Storage

SIDE, BATCH = 256, 64
BLOCK_BYTES = 4 << 20
SHUFFLE_S = 4.0
DIRECT, BUFFERED = "sequential, O_DIRECT", "sequential, through the cache"
TRUE, MAPPED = "make_loader, true shuffle", "true shuffle, mapped file"
WANTED_RATIO = 5.0


def write_file(path: Path, samples: int) -> None:
    """Write random images as a plain, contiguous dataset, a part at a time."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        images = file.create_dataset("X_train", (samples, SIDE, SIDE, 3), np.uint8)
        for start in range(0, samples, 500):
            count = min(500, samples - start)
            images[start : start + count] = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
        file["Y_train"] = np.zeros(samples, np.int64)


def drop_cache(path: Path, facts: Storage) -> float:
    """Make the system forget the file; which part of it is in memory all the same."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
    start = facts.offset or 0
    return resident_part(OpenedFile(path, FileStamp.of(path.stat())).data[start : start + facts.nbytes])


def describe_readahead(path: Path) -> str:
    """How far the system reads ahead on the disk that holds `path`."""
    device = path.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for folder in (place, place.parent):  # a partition's own folder has no queue
        with contextlib.suppress(OSError):
            return (folder / "queue/read_ahead_kb").read_text(encoding="ascii").strip() + " KiB"
    return "unknown"


def sequentially(path: Path, flags: int) -> Iterator[int]:
    """The file front to back: the length of each block."""
    handle = os.open(path, os.O_RDONLY | flags)
    block = mmap.mmap(-1, BLOCK_BYTES)  # at a page, as O_DIRECT wants it
    try:
        place = 0
        while count := os.preadv(handle, [block], place):
            yield count
            place += count
    finally:
        os.close(handle)


def by_loader(path: Path) -> Iterator[int]:
    """Batches by make_loader: the length of each."""
    for x, _ in make_cold_loader(path):
        yield x.nbytes


def make_cold_loader(path: Path) -> Loader:
    """A loader of a file that memory cannot hold, or that is told so."""
    dataset = dataset_h5(path)
    reader = dataset.reader
    if reader.engine.name != "read":
        for part in reader._parts:
            part._read_by(Choice("read", "told to for a benchmark"))
    return make_loader(dataset, BATCH, strategy="direct", shuffle=True)


def by_mapping(path: Path, facts: Storage) -> Iterator[int]:
    """Batches in random order out of the mapped file, by one thread."""
    field = Mapped.over(OpenedFile(path, FileStamp.of(path.stat())), facts)
    order = random_order(facts.shape[0], 0, 0)
    buffer = np.empty((BATCH, *facts.shape[1:]), facts.dtype)
    with ThreadPool(1) as pool:
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            field.read(rows, pool, buffer[: len(rows)])
            yield buffer[: len(rows)].nbytes


def time_reading(parts: Iterator[int], most_s: float) -> float:
    """Megabytes per second over all parts, or those of the first `most_s`."""
    start, done = time.perf_counter(), 0
    for nbytes in parts:
        done += nbytes
        if time.perf_counter() - start > most_s:
            break
    return done / 1e6 / (time.perf_counter() - start)


def measure(path: Path, rounds: int) -> dict[str, list[float]]:
    """Megabytes per second of each contender in each round."""
    with open_h5(path) as file:
        facts = read_storage(file["X_train"], "X_train", path, "")
    whole = float("inf")
    contenders: dict[str, tuple[Callable[[], Iterator[int]], float]] = {
        DIRECT: (partial(sequentially, path, os.O_DIRECT), whole),
        BUFFERED: (partial(sequentially, path, 0), whole),
        TRUE: (partial(by_loader, path), SHUFFLE_S),
        MAPPED: (partial(by_mapping, path, facts), SHUFFLE_S),
    }

    def timed(make: Callable[[], Iterator[int]], most_s: float) -> float:
        left = drop_cache(path, facts)
        if left > 0.1:
            sys.exit(f"{left:.0%} of '{path}' stays in memory; choose a folder on a disk with --folder")
        parts = make()
        try:
            return time_reading(parts, most_s)
        finally:
            parts.close()  # type: ignore[attr-defined]  # a generator

    turns = {name: partial(timed, *how) for name, how in contenders.items()}
    rates = by_turns(turns, rounds, uncounted=0)
    drop_cache(path, facts)
    print(f"\n{make_cold_loader(path).plan}")
    return rates


def main() -> int:
    """Run the benchmark; 0 when what was promised is so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are counted")
    parser.add_argument("--samples", type=int, default=12_000, help="samples in the file")
    parser.add_argument("--folder", type=Path, help="where to write the file; the temporary folder by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="read-cold-", dir=arguments.folder) as folder:
        path = Path(folder) / "cold.h5"
        write_file(path, arguments.samples)
        print(f"read-ahead {describe_readahead(path)}")
        rates = measure(path, arguments.rounds)
    show_rates("MB/s", rates, base=MAPPED, column="x mapped")
    ratio = median_ratio(rates[TRUE], rates[MAPPED])
    return judge([Promise("true shuffle, times the mapped file's", ratio, "at least", WANTED_RATIO, 1)])


if __name__ == "__main__":
    sys.exit(main())
