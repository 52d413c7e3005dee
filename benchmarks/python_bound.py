"""Batches per second beside a training step that holds Python's lock: many small operators, launched one by one.

    python -m benchmarks.python_bound [--rounds 5] [--json OUT]

Such a step keeps Python busy and hardly computes, as small models on a fast GPU do: threads that read beside it wait
for Python's lock. What counts is the rate of the loop against what the machine could do: no faster than the step alone,
than the loader alone, or than both together on the cores there are, by the processor time that each takes alone. The
step fed by nothing takes part, a stock DataLoader over the same pixels with two worker processes, and a loader of one
thread: a step that fills one of two cores leaves it no more than that.

Pixels are 64 x 224 x 224 x 3 bytes a batch out of a mapped file; JPEGs are decoded whole, or in random resized crops.
Contenders take turns; the table has the median of the rounds. Ends with exit code 1 when make_loader has less than 0.9
of the bound.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks._photographs import repeated_photographs, write_encoded
from benchmarks._report import against, save, show_machine
from colabstage.load.augment import RandomResizedCrop
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader
from colabstage.machine.resources import usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterable

BATCH, SIDE = 64, 224
OPERATORS = 1000
WANTED = 0.9


def step(state: torch.Tensor) -> None:
    """A training step that is bound by its launches."""
    for _ in range(OPERATORS):
        state.mul_(0.999).add_(0.001)


@dataclass
class Loop:
    """A loop with and without its step, in each round: seconds by the clock and of processor time for a batch."""

    alone: list[tuple[float, float]] = field(default_factory=list)
    with_step: list[tuple[float, float]] = field(default_factory=list)


def write_data(folder: Path, pixels: int, files: int) -> tuple[Path, Path]:
    """Pixels in one file, JPEGs of 500x375 and 64 kB in another."""
    path, encoded = folder / "pixels.h5", folder / "jpeg.h5"
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        rows = file.create_dataset("X_train", (pixels, SIDE, SIDE, 3), np.uint8)
        for first in range(0, pixels, BATCH):
            rows[first : first + BATCH] = random.integers(0, 256, (BATCH, SIDE, SIDE, 3), np.uint8)
        file["Y_train"] = np.arange(pixels) % 10
    write_encoded(encoded, repeated_photographs(files))
    return path, encoded


def timed(batches: Iterable[object], state: torch.Tensor | None) -> tuple[float, float]:
    """Seconds for a batch, by the clock and of this process's processor time."""
    start, busy, count = time.perf_counter(), time.process_time(), 0
    for _ in batches:
        if state is not None:
            step(state)
        count += 1
    return (time.perf_counter() - start) / count, (time.process_time() - busy) / count


def measure(folder: Path, rounds: int) -> tuple[dict[str, Loop], list[tuple[float, float]]]:
    """Run all loops in turns; also the step alone."""
    path, encoded = write_data(folder, 64 * BATCH, 12 * BATCH)
    crop = RandomResizedCrop(SIDE)
    loaders: dict[str, Iterable[object]] = {
        "make_loader, pixels": make_loader(dataset_h5(path), BATCH),
        "make_loader, JPEG in crops": make_loader(dataset_h5(encoded), BATCH, batch_transform=crop, memory_budget=0),
        "make_loader, JPEG whole": make_loader(
            dataset_h5(encoded), BATCH, batch_transform=crop.__call__, memory_budget=0
        ),
        "one thread, pixels": make_loader(dataset_h5(path), BATCH, num_workers=1),
        "DataLoader, 2 workers, pixels": DataLoader(dataset_h5(path), BATCH, shuffle=True, num_workers=2),
    }
    state, loops, bare = torch.zeros(4), {name: Loop() for name in loaders}, []
    for number in range(rounds + 1):
        found = timed(range(64), state)
        if number:
            bare.append(found)
        for name, loader in loaders.items():
            alone, both = timed(loader, None), timed(loader, state)
            if number:
                loops[name].alone.append(alone)
                loops[name].with_step.append(both)
    return loops, bare


def report(loops: dict[str, Loop], bare: list[tuple[float, float]]) -> dict[str, float]:
    """Print the table; return the part of the bound that each loop has."""
    step_s = statistics.median(wall for wall, _ in bare)
    print(f"the step alone: {1 / step_s:,.0f} a second, {step_s * 1000:.1f} ms\n")
    print(f"{'batches/s':36}{'alone':>10}{'bound':>10}{'with step':>11}{'part':>8}")
    parts = {}
    for name, loop in loops.items():
        shares, bounds = [], []
        for (own_s, own_busy), (both_s, _), (beside_s, beside_busy) in zip(
            loop.alone, loop.with_step, bare, strict=True
        ):
            # Of worker processes nothing is known here but how long they take.
            bounds.append(max(own_s, beside_s, (own_busy + beside_busy) / usable_cores()))
            shares.append(bounds[-1] / both_s)
        alone, both = (statistics.median(wall for wall, _ in runs) for runs in (loop.alone, loop.with_step))
        parts[name] = statistics.median(shares)
        print(f"{name:36}{1 / alone:10,.1f}{1 / statistics.median(bounds):10,.1f}{1 / both:11,.1f}{parts[name]:8.2f}")
    return parts


def main() -> int:
    """Run the benchmark; 0 when make_loader comes near enough to the bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are counted")
    parser.add_argument("--json", type=Path, help="write machine and figures there")
    arguments = parser.parse_args()
    machine = show_machine()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="python-bound-") as folder:
        loops, bare = measure(Path(folder), arguments.rounds)
    parts = report(loops, bare)
    print()
    kept = True
    for name, part in parts.items():
        if name.startswith("make_loader"):
            kept = kept and part >= WANTED
            print(f"{'ok  ' if part >= WANTED else 'MISS'} {name}, of the bound: {against(part, WANTED, 'wanted:')}")
    save(arguments.json, machine=machine, parts=parts)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
