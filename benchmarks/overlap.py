"""Does loading hide behind training? An epoch of T1 seconds of loading and T2 of training against max(T1, T2).

    python -m benchmarks.overlap [--rounds 3] [--batches 60]

A loader of known length and a step of known length, both longer and shorter than each other: what an epoch takes with
`CudaDataLoader`, divided by max(T1, T2); the same loop without it is T1 + T2. So is `make_loader` where a transform is
what takes long, because the caller's code runs in the loop's thread unless `CudaDataLoader` is put around it. Loaders
that wait (as for a disk) sleep; the step sleeps too, as the processor does while a GPU works. T1 is each loader's own,
as that of `make_loader` also reads and collates; T1 and T2 are measured alone, in the same run, round by round;
ratios are medians of rounds. The first batch cannot be hidden: an epoch of n batches takes (n + 1) / n at best when
the step is the longer one, and n batches are counted from the first.

With a CUDA device the same with copies of 50 MB a batch and a step of matrix products on it.

Ends with exit code 1 when a ratio is above 1.03.
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

from benchmarks._report import Promise, judge
from colabstage.load.dataset import dataset_h5
from colabstage.load.device import CudaDataLoader
from colabstage.load.loader import make_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MOST = 1.03
BATCH = 16
CUDA_BATCH = (64, 3, 512, 512)


class Sleeping:
    """A transform that takes a known time, as one that waits for a disk does: once for each batch's first sample."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._calls = 0

    def __call__(self, x: Any) -> Any:
        if self._calls % BATCH == 0:
            time.sleep(self.seconds)
        self._calls += 1
        return x


def known_batches(count: int, seconds: float) -> Iterator[torch.Tensor]:
    """Batches that take so long each."""
    for number in range(count):
        time.sleep(seconds)
        yield torch.full((BATCH, 64), number)


class Repeated:
    """A loader of known length that can be iterated again."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


def time_epoch(batches: Iterable[Any], step: Callable[[Any], object]) -> float:
    """Seconds from the first batch's arrival to the end of the last step, stretched to all batches."""
    start = 0.0
    for number, batch in enumerate(batches):
        if not number:
            start = time.perf_counter()
        step(batch)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def sleeping_contenders(folder: Path, count: int, load_s: float) -> dict[str, Iterable[Any]]:
    """The same loading time behind nothing, behind CudaDataLoader, in a transform of make_loader, and with both."""
    path = folder / "rows.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            file["X_train"] = np.zeros((count * BATCH, 64), np.uint8)
            file["Y_train"] = np.zeros(count * BATCH, np.int64)
    plain = Repeated(lambda: known_batches(count, load_s))
    dataset = dataset_h5(path, Sleeping(load_s))
    return {
        "one after the other": plain,
        "CudaDataLoader, a thread": CudaDataLoader(plain, "cpu"),
        "make_loader, a transform": make_loader(dataset, BATCH, strategy="direct", num_workers=1),
        "CudaDataLoader over make_loader": CudaDataLoader(
            make_loader(dataset, BATCH, strategy="direct", num_workers=1), "cpu"
        ),
    }


def measure_sleeping(folder: Path, count: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Ratios to max(T1, T2) of each contender in each round, for three mixtures of loading and training."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for load_s, step_s in ((0.03, 0.02), (0.02, 0.03), (0.025, 0.025)):
        task = f"load {load_s * 1e3:.0f} ms, step {step_s * 1e3:.0f} ms"

        def step(_: Any, seconds: float = step_s) -> None:
            time.sleep(seconds)

        for _ in range(rounds):
            contenders = sleeping_contenders(folder, count, load_s)
            # What sleeping so long takes here, alone: the machine is not alone.
            step_alone_s = time_epoch(range(count), step)
            for name, batches in contenders.items():
                load_alone_s = time_epoch(batches, lambda _: None) * count / (count - 1)
                ratio = time_epoch(batches, step) / max(load_alone_s, step_alone_s)
                ratios.setdefault(task, {}).setdefault(name, []).append(ratio)
    return ratios


def measure_cuda(count: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """The same on a GPU: batches gathered on the host and copied, and matrix products that take about as long."""
    pages = torch.randint(0, 256, (4, *CUDA_BATCH), dtype=torch.uint8)
    buffer = torch.empty(CUDA_BATCH, dtype=torch.uint8)

    def gathered() -> Iterator[torch.Tensor]:
        for number in range(count):
            yield buffer.copy_(pages[number % 4]).clone()

    weights = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)

    def step(batch: Any) -> None:
        out = weights
        for _ in range(40):
            out = out @ weights
        if isinstance(batch, torch.Tensor):
            batch.sum()

    loader = Repeated(gathered)
    ratios: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        load_alone_s = time_epoch(CudaDataLoader(loader, "cuda"), lambda _: None) * count / (count - 1)
        step_alone_s = time_epoch(range(count), step)
        longer = max(load_alone_s, step_alone_s)
        task = f"{torch.cuda.get_device_name()}, {torch.Size(CUDA_BATCH).numel() / 1e6:.0f} MB a batch"
        behind = ratios.setdefault(task, {})
        by_hand = time_epoch((batch.to("cuda") for batch in loader), step)
        behind.setdefault("one after the other", []).append(by_hand / longer)
        behind.setdefault("CudaDataLoader", []).append(time_epoch(CudaDataLoader(loader, "cuda"), step) / longer)
    return ratios


def report(ratios: dict[str, dict[str, list[float]]]) -> list[Promise]:
    """Print the table; return what is promised of ours."""
    promises = []
    print(f"\n{'T / max(T1, T2)':58}{'median':>10}{'lowest':>10}{'highest':>10}")
    for task, contenders in ratios.items():
        for name, values in contenders.items():
            middle = statistics.median(values)
            print(f"{f'{task}: {name}':58}{middle:10.3f}{min(values):10.3f}{max(values):10.3f}")
            if name.startswith("CudaDataLoader"):
                promises.append(Promise(f"{name}, {task}", middle, "at most", MOST))
    return promises


def main() -> int:
    """Run the benchmark; 0 when everything hides behind the longer one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are counted")
    parser.add_argument("--batches", type=int, default=60, help="batches in an epoch")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overlap-") as folder:
        ratios = measure_sleeping(Path(folder), arguments.batches, arguments.rounds)
    if torch.cuda.is_available():
        ratios |= measure_cuda(arguments.batches, arguments.rounds)
    return judge(report(ratios))


if __name__ == "__main__":
    sys.exit(main())
