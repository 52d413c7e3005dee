"""What the parts for a GPU do on one: resident batches, copies, overlap, JPEGs, and the tests that need one.

    python -m benchmarks.gpu [--rounds 3]

Without a GPU it says so and ends. It takes about two minutes:

- batches gathered on the GPU (`strategy="device"`) against bare `index_select` calls on the same tensor;
- bytes a second that `make_loader(device="cuda")` brings from a mapped file, against one large copy from pinned memory,
  which is the link's own rate, and against gathering and copying by hand;
- loading beside a step of matrix products, as in `benchmarks.overlap`;
- decoding JPEGs by torchvision on the GPU, where it can, against `make_loader` on the processor's cores: probed only,
  because not every GPU has an engine for it (a T4 has none);
- all tests marked `gpu`.

Nothing is promised. Ends with exit code 1 when a test fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import torch

from benchmarks._photographs import repeated_photographs, write_encoded
from benchmarks._report import by_turns, judge, show_rates
from benchmarks.overlap import measure_cuda, report
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROWS, SIDE, BATCH, JPEGS = 4096, 224, 64, 1024
COPY_BYTES = 256 * 1024 * 1024
OVERLAP_BATCHES = 60


def write_rows(path: Path) -> torch.Tensor:
    """Images of noise, in a file and in memory."""
    images = np.random.default_rng(0).integers(0, 256, (ROWS, SIDE, SIDE, 3), np.uint8)
    with h5py.File(path, "w") as file:
        file["X_train"] = images
        file["Y_train"] = np.arange(ROWS) % 10
    return torch.from_numpy(images)


def drained(batches: Iterable[Any]) -> Callable[[], None]:
    """An epoch of which nothing is used."""

    def drain() -> None:
        for _ in batches:
            pass

    return drain


def compare(title: str, unit: str, contenders: dict[str, tuple[float, Callable[[], object]]], rounds: int) -> None:
    """Print a table of rates: of each contender how much it moves, and its work."""

    def rate(amount: float, work: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return amount / (time.perf_counter() - start)

    turns = {name: partial(rate, *contender) for name, contender in contenders.items()}
    show_rates(unit, by_turns(turns, rounds), title=title)


def measure_resident(path: Path, images: torch.Tensor, rounds: int) -> None:
    """Batches of rows that are on the GPU."""
    resident = images.cuda()

    def gather() -> None:
        order = torch.randperm(ROWS, device="cuda")
        for rows in torch.split(order, BATCH):
            resident.index_select(0, rows)

    loader = make_loader(dataset_h5(path), BATCH, device="cuda", strategy="device")
    contenders = {"make_loader, resident": (ROWS, drained(loader)), "limit: index_select": (ROWS, gather)}
    compare("on the GPU", "samples/s", contenders, rounds)  # type: ignore[arg-type]


def measure_copies(path: Path, images: torch.Tensor, rounds: int) -> None:
    """Bytes that come from the file, and how many the link takes."""
    pinned = torch.empty(COPY_BYTES, dtype=torch.uint8).pin_memory()
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    buffer = torch.empty((BATCH, SIDE, SIDE, 3), dtype=torch.uint8).pin_memory()

    def by_hand() -> None:
        for rows in torch.split(torch.randperm(ROWS), BATCH):
            out = buffer[: len(rows)]
            torch.index_select(images, 0, rows, out=out)
            out.cuda()

    loader = make_loader(dataset_h5(path), BATCH, device="cuda", strategy="direct")
    epoch = images.nbytes / 1e6
    contenders: dict[str, tuple[float, Callable[[], object]]] = {
        "make_loader, copied": (epoch, drained(loader)),
        "gathered and copied by hand": (epoch, by_hand),
        "limit: one copy from pinned memory": (COPY_BYTES / 1e6, lambda: target.copy_(pinned, non_blocking=True)),
    }
    compare("to the GPU", "MB/s", contenders, rounds)


def measure_jpeg(path: Path, rounds: int) -> None:
    """JPEGs decoded on the GPU, where torchvision can, and by the cores."""
    files = repeated_photographs(JPEGS)
    write_encoded(path, files)
    loader = make_loader(dataset_h5(path), BATCH, device="cuda")
    contenders: dict[str, tuple[float, Callable[[], object]]] = {
        "make_loader, decoded by the cores": (JPEGS, drained(loader))
    }
    try:
        from torchvision.io import decode_jpeg

        coded = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
        decode_jpeg(coded[:2], device="cuda")
    # Probed: there is no torchvision, or it was built without the decoder, or this GPU has none.
    except Exception as error:  # noqa: BLE001
        print(f"\nno JPEG decoding on this GPU: {type(error).__name__}: {error}")
    else:

        def on_gpu() -> None:
            for first in range(0, JPEGS, BATCH):
                decode_jpeg(coded[first : first + BATCH], device="cuda")

        contenders["decode_jpeg on the GPU"] = JPEGS, on_gpu
    compare("JPEGs of 500x375", "images/s", contenders, rounds)


def run_tests() -> int:
    """Run the tests that need a GPU, and show how they ended."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"\ntests marked gpu (exit code {done.returncode}):")
    print("\n".join(done.stdout.strip().splitlines()[-8:]))
    return done.returncode


def main() -> int:
    """Run the benchmark; 0 without a GPU, or when the tests passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are counted")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} finds no CUDA device on this machine, so nothing was measured")
        return 0
    print(torch.cuda.get_device_name())
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        rows = Path(folder) / "rows.h5"
        images = write_rows(rows)
        measure_resident(rows, images, arguments.rounds)
        measure_copies(rows, images, arguments.rounds)
        measure_jpeg(Path(folder) / "jpeg.h5", arguments.rounds)
    judge(report(measure_cuda(OVERLAP_BATCHES, arguments.rounds)))
    return int(bool(run_tests()))


if __name__ == "__main__":
    sys.exit(main())
