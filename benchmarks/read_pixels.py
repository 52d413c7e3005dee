"""Samples per second out of one HDF5 file: the recipe's dataset against make_loader, and the memory's own limit.

    python -m benchmarks.read_pixels [--rounds 7] [--only images digits masks rows] [--json OUT]

Batches of 64, shuffled, page cache warm. All contenders take turns in one process, round after round, another one
first each time; a turn is as many epochs as begin within a second, or a part of one where an epoch takes longer. The
tables have the medians of the rounds. Each batch is touched in the same way: one value of every input is added up, and
one of every target. The limit is one `np.take` of the same batches out of arrays in memory, into one buffer that is
used again and again, by one thread. A loop that holds a batch while the next one is made needs two, and of large
batches few processors' caches hold so much: the same by turns into two buffers is shown beside it.

Ends with exit code 1 when make_loader is less than 20 times as fast as the recipe for images of 256x256x3, or has less
than 0.8 of the limit for any shape.
"""

from __future__ import annotations

import argparse
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

from benchmarks._pixel_data import BATCH, Shape, touch
from benchmarks._recipe import RecipeDataset
from benchmarks._report import against, median_ratio, save, show_machine
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    Batches = Iterable[tuple[Any, Any]]

SHAPES = {
    "images": Shape("4,000 of 256x256x3 uint8", 4000, (256, 256, 3)),
    "digits": Shape("60,000 of 28x28 uint8", 60_000, (28, 28)),
    "masks": Shape("2,000 of 512x512x3 uint8 with masks", 2000, (512, 512, 3), masks=True),
    "rows": Shape("300,000 rows of 128 float32", 300_000, (128,), "float32"),
}
RECIPE, PLAIN, OURS, LIMIT = "recipe", "our dataset_h5 in a DataLoader", "make_loader", "limit: np.take from memory"
BY_TURNS = "the same into two buffers by turns"
RECIPE_SHAPE = "images"
WANTED_RATIO, WANTED_PART = 20.0, 0.8
TURN_S = 1.0
_PART_BYTES = 64 << 20


def write_file(path: Path, shape: Shape) -> None:
    """Write random samples as plain, contiguous datasets, a part at a time; classes as the recipe packs them."""
    rng = np.random.default_rng(0)
    step = max(1, _PART_BYTES // shape.x_bytes)
    y_shape = shape.y_shape or (1, 1)
    with h5py.File(path, "w") as file:
        x = file.create_dataset("X_train", (shape.samples, *shape.x_shape), shape.dtype)
        y = file.create_dataset("Y_train", (shape.samples, *y_shape), np.uint8)
        for start in range(0, shape.samples, step):
            count = min(step, shape.samples - start)
            if shape.dtype == "uint8":
                x[start : start + count] = rng.integers(0, 256, (count, *shape.x_shape), np.uint8)
            else:
                # Whole numbers: their sum is the same in every order.
                x[start : start + count] = rng.integers(0, 256, (count, *shape.x_shape)).astype(shape.dtype)
            y[start : start + count] = rng.integers(0, 10, (count, *y_shape), np.uint8)


class GatherFromMemory:
    """The limit: the batches of an epoch out of arrays, into the same buffers always, or into two pairs by turns."""

    def __init__(self, x: NDArray[Any], y: NDArray[Any], pairs: int) -> None:
        self._x, self._y = x, y
        shapes = [((BATCH, *values.shape[1:]), values.dtype) for values in (x, y)]
        self._buffers = [[np.empty(shape, dtype) for shape, dtype in shapes] for _ in range(pairs)]
        self._rng = np.random.default_rng(1)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        order = self._rng.permutation(len(self._x))
        for number, start in enumerate(range(0, len(order), BATCH)):
            rows = order[start : start + BATCH]
            for_x, for_y = self._buffers[number % len(self._buffers)]
            yield self._take(self._x, rows, for_x), self._take(self._y, rows, for_y)

    def _take(self, values: NDArray[Any], rows: NDArray[Any], buffer: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.take(values, rows, axis=0, out=buffer[: len(rows)], mode="clip"))


def take_turn(epoch: Callable[[], Batches]) -> tuple[float, set[int]]:
    """Samples per second over a turn, start-up of epochs included, and what was touched in each whole epoch."""
    begin, done = time.perf_counter(), 0
    sums: set[int] = set()
    while time.perf_counter() - begin < TURN_S:
        total = 0
        for x, y in epoch():
            total += touch(x, y)
            done += len(x)
            if done % (16 * BATCH) == 0 and not sums and time.perf_counter() - begin > TURN_S:
                break
        else:
            sums.add(total)
    return done / (time.perf_counter() - begin), sums


def measure(path: Path, rounds: int) -> dict[str, list[float]]:
    """Samples per second of each contender in each round, after one round that is not counted."""
    recipe = DataLoader(RecipeDataset(path), BATCH, shuffle=True)
    plain = DataLoader(dataset_h5(path), BATCH, shuffle=True)
    ours = make_loader(dataset_h5(path), BATCH)
    with h5py.File(path, "r") as file:
        arrays = file["X_train"][()], file["Y_train"][()]
    limit, by_turns = GatherFromMemory(*arrays, 1), GatherFromMemory(*arrays, 2)
    contenders: dict[str, Callable[[], Batches]] = {
        RECIPE: lambda: (sample for sample, _ in recipe),
        PLAIN: lambda: plain,
        OURS: lambda: ours,
        LIMIT: lambda: limit,
        BY_TURNS: lambda: by_turns,
    }
    names = list(contenders)
    sums: set[int] = set()
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            rate, touched = take_turn(contenders[name])
            sums |= touched
            if number:
                rates[name].append(rate)
    if len(sums) != 1:
        sys.exit(f"The contenders did not read the same data: {sums}")
    print(f"\n{ours.plan}")
    return rates


def report(title: str, rates: dict[str, list[float]]) -> None:
    """Print a shape's table."""
    print(f"\n{title + ', samples/s':50}{'median':>10}{'lowest':>10}{'highest':>10}{'x recipe':>10}")
    for name, values in rates.items():
        middle, ratio = statistics.median(values), median_ratio(values, rates[RECIPE])
        print(f"{name:50}{middle:10,.0f}{min(values):10,.0f}{max(values):10,.0f}{ratio:10.1f}")


def judge(name: str, rates: dict[str, list[float]]) -> bool:
    """Print what was promised of a shape, and whether it is so."""
    part = median_ratio(rates[OURS], rates[LIMIT])
    promises = [(part >= WANTED_PART, f"make_loader, of the limit: {against(part, WANTED_PART, 'wanted:')}")]
    if name == RECIPE_SHAPE:
        ratio = median_ratio(rates[OURS], rates[RECIPE])
        promises.append(
            (ratio >= WANTED_RATIO, f"make_loader, times the recipe: {against(ratio, WANTED_RATIO, 'wanted:', 1)}")
        )
    for kept, words in promises:
        print(f"{'ok  ' if kept else 'MISS'} {words}")
    return all(kept for kept, _ in promises)


def main() -> int:
    """Run the benchmark; 0 when make_loader is fast enough."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds that are counted")
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="these shapes")
    parser.add_argument("--json", type=Path, help="write machine and figures there")
    arguments = parser.parse_args()
    machine, figures, good = show_machine(), {}, True
    for name in arguments.only:
        with tempfile.TemporaryDirectory(prefix="read-pixels-") as folder:
            path = Path(folder) / "pixels.h5"
            write_file(path, SHAPES[name])
            figures[name] = measure(path, arguments.rounds)
        report(SHAPES[name].title, figures[name])
        good &= judge(name, figures[name])
    save(arguments.json, machine=machine, samples_per_s=figures)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
