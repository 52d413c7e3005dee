"""What the parts for a GPU do on one: resident batches, copies, overlap, JPEGs, training, and the tests that need one.

    python -m benchmarks.gpu [--rounds 3]

Without a GPU it says so and ends. It takes about three minutes:

- batches gathered on the GPU (`strategy="device"`) against bare `index_select` calls on the same tensor;
- bytes a second that `make_loader(device="cuda")` brings from a mapped file, against one large copy from pinned memory,
  which is the link's own rate, and against gathering and copying by hand;
- loading beside a step of matrix products, as in `benchmarks.overlap`;
- decoding JPEGs by torchvision on the GPU, where it can, against `make_loader` on the processor's cores: probed only,
  because not every GPU has an engine for it (a T4 has none);
- a ResNet-50 that trains on crops of JPEGs, in bfloat16: by `make_loader`, by a stock `DataLoader` with a process for
  each core and torchvision's transforms, and on one batch again and again, which is all that the GPU can do;
- all tests marked `gpu`.

Nothing is promised. Ends with exit code 1 when a test fails.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks._photographs import repeated_photographs, write_encoded
from benchmarks._report import by_turns, judge, show_rates
from benchmarks.overlap import measure_cuda, report
from colabstage.load.augment import Compose, RandomFlip, RandomResizedCrop
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROWS, SIDE, BATCH, JPEGS = 4096, 224, 64, 1024
TRAINED, TRAINED_BATCH = 8192, 128
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


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """JPEGs in memory, each decoded and cropped by itself: what a stock loader's processes do."""

    def __init__(self, files: list[bytes]) -> None:
        from torchvision import transforms

        steps = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
        self._files, self._change = files, transforms.Compose(steps)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._change(Image.open(io.BytesIO(self._files[index])).convert("RGB")), index % 10


def measure_training(path: Path, rounds: int) -> None:
    """Images a second that a network trains on, where torchvision has one."""
    if find_spec("torchvision") is None:
        print("\nno training: it needs torchvision")
        return
    from torchvision.models import resnet50

    files = repeated_photographs(TRAINED)
    write_encoded(path, files)
    cores = os.cpu_count() or 1
    network: Any = resnet50(num_classes=10).to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)

    def train(batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for x, y in batches:
            scaled = x.to("cuda", non_blocking=True).contiguous(memory_format=torch.channels_last).float() / 255
            with torch.autocast("cuda", torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(network(scaled), y.to("cuda", non_blocking=True))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    augment = Compose([RandomResizedCrop(SIDE), RandomFlip()])
    loader = make_loader(dataset_h5(path), TRAINED_BATCH, device="cuda", batch_transform=augment, drop_last=True)
    stock: DataLoader[Any] = DataLoader(
        Photographs(files),
        TRAINED_BATCH,
        shuffle=True,
        num_workers=cores,
        persistent_workers=True,
        pin_memory=True,
        drop_last=True,
    )
    steps = TRAINED // TRAINED_BATCH
    one = next(iter(stock))
    one = one[0].cuda(), one[1].cuda()
    contenders: dict[str, tuple[float, Callable[[], object]]] = {
        "make_loader": (steps * TRAINED_BATCH, lambda: train(loader)),
        f"stock DataLoader, {cores} workers, torchvision": (steps * TRAINED_BATCH, lambda: train(stock)),
        "limit: one batch again and again": (steps * TRAINED_BATCH, lambda: train([one] * steps)),
    }
    compare("ResNet-50 on crops of JPEGs", "images/s", contenders, rounds)


def run_tests() -> int:
    """Run the tests that need a GPU, and show how they ended."""
    # Files without the mark may need packages that a machine with a GPU has not.
    files = sorted(str(path) for path in Path("tests").rglob("test_*.py") if "mark.gpu" in path.read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *files]
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
        measure_training(Path(folder) / "trained.h5", min(3, arguments.rounds))
    judge(report(measure_cuda(OVERLAP_BATCHES, arguments.rounds)))
    return int(bool(run_tests()))


if __name__ == "__main__":
    sys.exit(main())
