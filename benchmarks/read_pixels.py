"""Images per second out of one HDF5 file: the recipe's dataset against make_loader, and the memory's own limit.

    python -m benchmarks.read_pixels [--rounds 5] [--json OUT]

4,000 samples of 256x256x3 uint8 (786 MB), batches of 64, shuffled, page cache warm. All contenders take turns, round
after round, in one process; the table has the median of the rounds. Each batch is touched in the same way: one byte of
every image is added up, and so are the labels. The limit is one `np.take` of the same batches out of an array in
memory into one buffer that is used again and again, by one thread.

Ends with exit code 1 when make_loader is less than 15 times as fast as the recipe.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks._recipe import RecipeDataset
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SAMPLES, SIDE, BATCH = 4000, 256, 64
WANTED_RATIO = 15.0


def write_file(path: Path) -> None:
    """Write random images as a plain, contiguous dataset, a part at a time."""
    dice = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        images = file.create_dataset("X_train", (SAMPLES, SIDE, SIDE, 3), np.uint8)
        for start in range(0, SAMPLES, 500):
            images[start : start + 500] = dice.integers(0, 256, (500, SIDE, SIDE, 3), dtype=np.uint8)
        file["Y_train"] = dice.integers(0, 10, (SAMPLES, 1, 1)).astype(np.uint8)


def touch(x: Any, y: Any) -> int:
    """The work that stands for a training step: one byte of every image, and the labels."""
    return int(x[:, 0, 0, 0].sum()) + int(y.sum())


def time_epoch(batches: Iterable[tuple[Any, Any]]) -> tuple[float, int]:
    """Seconds for an epoch, start-up included, and the sum of what was touched."""
    start = time.perf_counter()
    total = sum(touch(x, y) for x, y in batches)
    return time.perf_counter() - start, total


def gather_from_memory(images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """The limit: the same batches out of an array, into one buffer."""
    buffer = np.empty((BATCH, SIDE, SIDE, 3), np.uint8)
    order = np.random.default_rng(1).permutation(SAMPLES)
    for start in range(0, SAMPLES, BATCH):
        rows = order[start : start + BATCH]
        np.take(images, rows, axis=0, out=buffer[: len(rows)], mode="clip")
        yield torch.from_numpy(buffer[: len(rows)]), torch.from_numpy(labels[rows])


def measure(path: Path, rounds: int) -> dict[str, list[float]]:
    """Images per second of each contender in each round, after one round that is not counted."""
    with h5py.File(path, "r") as file:
        images, labels = file["X_train"][()], file["Y_train"][()]
    recipe = DataLoader(RecipeDataset(path), BATCH, shuffle=True)
    plain = DataLoader(dataset_h5(path), BATCH, shuffle=True)
    ours = make_loader(dataset_h5(path), BATCH)
    contenders: dict[str, Callable[[], Iterable[tuple[Any, Any]]]] = {
        "recipe: its dataset_h5 in a DataLoader": lambda: (sample for sample, _ in recipe),
        "our dataset_h5 in a DataLoader": lambda: plain,
        "make_loader": lambda: ours,
        "limit: np.take from memory, one buffer": lambda: gather_from_memory(images, labels),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    sums = set()
    for number in range(rounds + 1):
        for name, batches in contenders.items():
            seconds, total = time_epoch(batches())
            sums.add(total)
            if number:
                rates[name].append(SAMPLES / seconds)
    if len(sums) != 1:
        sys.exit(f"The contenders did not read the same data: {sums}")
    print(f"\n{ours.plan}\n")
    return rates


def describe_machine() -> dict[str, str]:
    """Hardware and versions that the figures belong to."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), "unknown")
    return {
        "processor": f"{model}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "h5py": f"{h5py.__version__} (HDF5 {h5py.version.hdf5_version})",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def median_ratio(values: list[float], base: list[float]) -> float:
    """Median of the ratios within a round, which a machine that slows down for a while disturbs least."""
    return statistics.median(value / other for value, other in zip(values, base, strict=True))


def report(rates: dict[str, list[float]]) -> tuple[float, float]:
    """Print the table; return make_loader's ratio to the recipe and to the limit."""
    recipe, _, ours, limit = rates.values()
    print(f"{'images/s':42}{'median':>10}{'lowest':>10}{'highest':>10}{'x recipe':>10}")
    for name, values in rates.items():
        middle, ratio = statistics.median(values), median_ratio(values, recipe)
        print(f"{name:42}{middle:10,.0f}{min(values):10,.0f}{max(values):10,.0f}{ratio:10.1f}")
    to_recipe, to_limit = median_ratio(ours, recipe), median_ratio(ours, limit)
    print(f"\nmake_loader: {to_recipe:.1f} times the recipe (wanted: {WANTED_RATIO:.0f}), {to_limit:.2f} of the limit")
    return to_recipe, to_limit


def main() -> int:
    """Run the benchmark; 0 when make_loader is fast enough."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are counted")
    parser.add_argument("--json", type=Path, help="write machine and figures there")
    arguments = parser.parse_args()
    machine = describe_machine()
    for name, value in machine.items():
        print(f"{name:10} {value}")
    with tempfile.TemporaryDirectory(prefix="read-pixels-") as folder:
        path = Path(folder) / "pixels.h5"
        write_file(path)
        rates = measure(path, arguments.rounds)
    to_recipe, to_limit = report(rates)
    if arguments.json:
        facts = {"machine": machine, "images_per_s": rates, "x_recipe": to_recipe, "of_limit": to_limit}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 0 if to_recipe >= WANTED_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
