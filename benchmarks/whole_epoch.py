"""A whole epoch of training: straight from a (simulated) Drive folder with a stock DataLoader, and staged.

    python -m benchmarks.whole_epoch [--quick]

scikit-learn's digits, 1,437 of them to train on, as grey JPEGs of 64x64 in a folder on Drive; a network of two
convolutions, which takes a few milliseconds a batch of 64, so that the data is what is measured. Every session starts
on a machine that has never read anything, and trains three epochs:

- straight: a stock DataLoader over the folder, with 2, 4 and 8 workers (PyTorch warns about more than there are cores;
  here the others help, because they only wait). Its best is what the rest is compared with.
- unzipped: what most people do. The zip is copied from Drive and unpacked by `unzip`, and a stock DataLoader reads the
  local folder, with 0, 1, 2 and 4 workers; its best stands beside staging of the same zip, whose pack goes nowhere.
- staged: `stage_dataset` of the same folder in a first session, which also puts the pack into the cache on Drive, and
  in a second one, which has it from there; then `data.loader`.

Drive is quick here: 50 ms before the first byte of a file that was not read yet, where people report 0.4 s and more of
an ordinary day, which would make the first epoch eight times as long.

Ends with exit code 1 when a first epoch straight from Drive, at the best number of workers, is less than 50 times as
long as the first epoch after staging, in either session. The staging itself is not part of that epoch: it stands beside
it, and the lines below the table count it in.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks._report import Promise, judge
from colabstage.stage.run import stage_dataset
from demo.run import KNOBS, SIDE, mounted_machines, write_digits
from demo.train import FolderOfImages
from simulated_drive.drive import fuse_problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from demo.run import FreshMachine, Machine

    Batches = Iterable[tuple[Tensor, Tensor]]

WORKERS, LOCAL_WORKERS, BATCH, EPOCHS, WANTED = (2, 4, 8), (0, 1, 2, 4), 64, 3, 50.0
QUICK_IMAGES = 300
_SEED = 0


@dataclass(frozen=True)
class Session:
    """Seconds of the staging, 0 where there was none, and of the epochs; how much of the last one was right."""

    name: str
    staging_s: float
    epochs_s: list[float]
    right: float

    @property
    def first_s(self) -> float:
        """The first epoch, with whatever the loader does before its first batch."""
        return self.epochs_s[0]

    @property
    def later_s(self) -> float:
        """Median of the epochs after the first."""
        return statistics.median(self.epochs_s[1:])

    @property
    def total_s(self) -> float:
        """Everything."""
        return self.staging_s + sum(self.epochs_s)

    def __str__(self) -> str:
        staging = f"{self.staging_s:10.2f}" if self.staging_s else f"{'-':>10}"
        return f"{self.name:44}{staging}{self.first_s:12.3f}{self.later_s:12.3f}{self.total_s:10.2f}{self.right:8.2f}"


def build_network() -> nn.Module:
    """Two convolutions and a linear layer; the same weights every time."""
    torch.manual_seed(_SEED)
    return nn.Sequential(
        nn.Conv2d(1, 16, SIDE // 8, stride=SIDE // 8),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 36, 10),
    )


def train(name: str, batches: Batches, *, staging_s: float = 0.0, epochs: int = EPOCHS) -> Session:
    """Train a fresh network, with a clock on every epoch."""
    network = build_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.006)
    seconds, right = [], 0.0
    for _ in range(epochs):
        start, hits, seen = time.perf_counter(), 0, 0
        for x, y in batches:
            optimizer.zero_grad()
            scores = network(x)
            nn.functional.cross_entropy(scores, y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            hits += int((scores.argmax(1) == y).sum())
            seen += len(y)
        seconds.append(time.perf_counter() - start)
        right = hits / seen
    return Session(name, staging_s, seconds, right)


def train_straight(machine: Machine, workers: int) -> Session:
    """Images one by one from the folder."""
    images, rng = machine.images("train"), torch.Generator().manual_seed(_SEED)
    loader = DataLoader(
        images, BATCH, shuffle=True, num_workers=workers, persistent_workers=True, prefetch_factor=4, generator=rng
    )
    return train(f"straight from Drive, {workers} workers", loader)


def train_unzipped(machine: Machine, workers: int) -> Session:
    """Copy the zip from Drive, unpack it, and read the images one by one from the local folder."""
    with tempfile.TemporaryDirectory(prefix="unzipped-") as local:
        start = time.perf_counter()
        subprocess.run(["cp", str(machine.zip_source), local], check=True)
        subprocess.run(["unzip", "-q", f"{local}/digits.zip", "-d", local], check=True)
        unpacking_s = time.perf_counter() - start
        loader = DataLoader(
            FolderOfImages(Path(local) / "digits" / "train"),
            BATCH,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(_SEED),
        )
        return train(f"cp, unzip, ImageFolder, {workers} workers", loader, staging_s=unpacking_s)


def train_staged(machine: Machine, name: str, source: Path, cache_dir: Path | None) -> Session:
    """Stage, then train; then wait for the upload."""
    start = time.perf_counter()
    data = stage_dataset(
        source, color_mode="grayscale", local_dir=machine.local_dir, cache_dir=cache_dir, progress=False
    )
    staging_s = time.perf_counter() - start
    origin = "zip" if source == machine.zip_source else data.report.origin
    with data.loader("train", BATCH, seed=_SEED, dtype=torch.float32) as batches:
        session = train(f"{name} ({origin})", batches, staging_s=staging_s)
    machine.flush()
    return session


def measure(fresh_machine: FreshMachine) -> tuple[list[Session], list[Session], list[Session]]:
    """The sessions straight from Drive, those that stage, and those with the zip: unpacked, and staged last."""
    straight, staged, zipped = [], [], []
    for workers in WORKERS:
        with fresh_machine() as machine:
            straight.append(train_straight(machine, workers))
        print(straight[-1], flush=True)
    for name in ("staged, first session", "staged, second session"):
        with fresh_machine() as machine:
            staged.append(train_staged(machine, name, machine.source, machine.cache_dir))
        print(staged[-1], flush=True)
    for workers in LOCAL_WORKERS:
        with fresh_machine() as machine:
            zipped.append(train_unzipped(machine, workers))
        print(zipped[-1], flush=True)
    with fresh_machine() as machine:
        zipped.append(train_staged(machine, "staged, no cache", machine.zip_source, None))
    print(zipped[-1], flush=True)
    return straight, staged, zipped


def compare(straight: list[Session], staged: list[Session], zipped: list[Session]) -> Promise:
    """Print the ratios; return what is promised."""
    best = min(straight, key=lambda session: session.first_s)
    later = min(session.later_s for session in straight)
    print()
    for session in staged:
        first, whole = best.first_s / (session.staging_s + session.first_s), best.total_s / session.total_s
        print(f"{session.name}, with its staging: first epoch finished {first:.1f} times as soon, ", end="")
        print(f"{EPOCHS} epochs {whole:.1f} times; ", end="")
        print(f"later epochs (Drive's cache is warm) {later / session.later_s:.1f} times")
    *unzipped, ours = zipped
    local = min(unzipped, key=lambda session: session.total_s)
    print(f"{ours.name}, with its staging, against {local.name}: first epoch finished ", end="")
    print(f"{(local.staging_s + local.first_s) / (ours.staging_s + ours.first_s):.2f} times as soon, ", end="")
    print(f"{EPOCHS} epochs {local.total_s / ours.total_s:.2f} times; later epochs ", end="")
    print(f"{local.later_s / ours.later_s:.1f} times")
    found = best.first_s / max(session.first_s for session in staged)
    return Promise(f"first epoch, {best.name} / staged", found, "at least", WANTED, 1)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_IMAGES} images")
    arguments = parser.parse_args()
    if problem := fuse_problem():
        print(problem, file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    noise = [(torch.rand(BATCH, 1, SIDE, SIDE), torch.zeros(BATCH).long())]
    train("what torch does only once", noise)
    written: list[Any] = []

    def fill(drive: Path) -> None:
        written.append(write_digits(drive, images=QUICK_IMAGES if arguments.quick else None, seed=_SEED))

    with tempfile.TemporaryDirectory(prefix="whole-epoch-") as home, mounted_machines(Path(home), KNOBS, fill) as fresh:
        images, nbytes = written[0]
        print(f"{images:,} JPEGs, {nbytes / 1e6:.1f} MB, four fifths of them to train on; {os.cpu_count()} cores")
        print(f"simulated Drive: {KNOBS.cold_open_latency_s * 1000:.0f} ms a cold open, ", end="")
        print(f"{KNOBS.warm_open_latency_s * 1000:.0f} ms a warm one, {KNOBS.parallel_requests} at once\n")
        print(f"{'seconds':44}{'staging':>10}{'first epoch':>12}{'later epoch':>12}{'all':>10}{'right':>8}")
        return judge([compare(*measure(fresh))])


if __name__ == "__main__":
    sys.exit(main())
