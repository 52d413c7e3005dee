"""The demo's training: a small network, trained on any iterable of batches, with the time of every epoch.

`FolderOfImages` is the usual code for reading images straight from a folder: one open and one decode for each sample.
"""

from __future__ import annotations

import contextlib
import io
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from torch import Tensor

    Batches = Iterable[tuple[Tensor, Tensor]]

    class SizedBatches(Protocol):
        """Batches of a whole epoch, and how many there are."""

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...

        def __len__(self) -> int: ...


BATCH_SIZE = 32
# Twice torch's default: people who wait for Drive raise it.
_PREFETCH_FACTOR = 4


@dataclass(slots=True)
class Epoch:
    """One pass over the training images."""

    seconds: float = 0.0
    """Seconds that it took."""
    waiting_s: float = 0.0
    """Seconds of that spent waiting for batches."""
    images: int = 0
    """How many images were seen."""


@dataclass(slots=True)
class Training:
    """One training, timed from the start of its session."""

    first_batch_s: float = 0.0
    """Seconds from the start to the first batch, whatever had to be prepared before it."""
    epochs: list[Epoch] = field(default_factory=list)
    """What each epoch cost, in order."""
    test_s: float = 0.0
    """Seconds of the one pass over the test images."""
    accuracy: float = 0.0
    """The fraction of them that was classified correctly, 0 to 1."""
    total_s: float = 0.0
    """Seconds from the start to the accuracy."""

    @property
    def first(self) -> Epoch:
        """Return the first epoch."""
        return self.epochs[0]

    @property
    def later_s(self) -> float:
        """Return the mean seconds of the epochs after the first."""
        return sum(epoch.seconds for epoch in self.epochs[1:]) / (len(self.epochs) - 1)

    @property
    def later_waiting_s(self) -> float:
        """Return the mean seconds that those epochs waited for batches."""
        return sum(epoch.waiting_s for epoch in self.epochs[1:]) / (len(self.epochs) - 1)

    @property
    def images_per_s(self) -> float:
        """Return the images a second in the epochs after the first."""
        return self.first.images / self.later_s


class FolderOfImages(Dataset[tuple[Any, int]]):
    """Images in one folder for each class, found and read as torchvision's `ImageFolder` does.

    A sample is `(x, y)`: float32 `(1, H, W)` in [0, 1], and the class's number.
    """

    def __init__(self, root: Path) -> None:
        # People also wait for the listing through the mount.
        classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        self.samples = [(path, label) for label, name in enumerate(classes) for path in sorted((root / name).iterdir())]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import numpy as np
        from PIL import Image

        path, label = self.samples[index]
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            pixels = np.array(image.convert("L"))
        return torch.from_numpy(pixels)[None].float().div_(255), label


def stock_loader(images: FolderOfImages, *, workers: int, shuffle: bool, seed: int) -> DataLoader[Any]:
    """Make a stock DataLoader with the usual tuning."""
    return DataLoader(
        images,
        BATCH_SIZE,
        shuffle=shuffle,
        num_workers=workers,
        # Otherwise each epoch would start processes again, which careful users avoid.
        persistent_workers=workers > 0,
        prefetch_factor=_PREFETCH_FACTOR if workers else None,
        generator=torch.Generator().manual_seed(seed),
    )


def build_network(*, seed: int) -> nn.Module:
    """Build a small convolutional network for 64x64 grey images of ten classes; the same weights for the same seed."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let the network use one core, so that the other is free for loading; undone at the end.

    Trains on noise first, so that no session pays for torch's one-time work, above all importing its optimizers.
    """
    # With all cores the network and the readers would compete, and the table would show that.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        noise = [(torch.rand(BATCH_SIZE, 1, 64, 64), torch.zeros(BATCH_SIZE).long())] * 2
        train(noise, lambda: noise, epochs=2, seed=0, began=0.0, told=lambda _: None)
        yield
    finally:
        torch.set_num_threads(before)


def train(
    train_batches: SizedBatches,
    open_test: Callable[[], Batches],
    *,
    epochs: int,
    seed: int,
    began: float,
    told: Callable[[Epoch], None],
) -> Training:
    """Train a fresh network for at least 2 epochs, then test it once.

    `began`: when the session started, by `time.perf_counter`. `told`: called with each finished epoch.
    """
    network = build_network(seed=seed)
    optimizer = torch.optim.Adam(network.parameters())
    # With one cycle four epochs are enough for the digits, and a demo has no time for more.
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=epochs * len(train_batches))
    done = Training()
    for number in range(epochs):
        epoch = Epoch()
        start = asked = time.perf_counter()
        for x, y in train_batches:
            epoch.waiting_s += time.perf_counter() - asked
            # Preparation before it (listing, staging) counts.
            if number == 0 and epoch.images == 0:
                done.first_batch_s = time.perf_counter() - began
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            epoch.images += len(y)
            asked = time.perf_counter()
        epoch.seconds = time.perf_counter() - start
        done.epochs.append(epoch)
        told(epoch)
    start = time.perf_counter()
    done.accuracy = _accuracy(network, open_test())
    done.test_s = time.perf_counter() - start
    done.total_s = time.perf_counter() - began
    return done


@torch.no_grad()
def _accuracy(network: nn.Module, batches: Batches) -> float:
    # Its batch norms must not be updated by the test images.
    network.eval()
    right = seen = 0
    for x, y in batches:
        right += int((network(x).argmax(1) == y).sum())
        seen += len(y)
    return right / seen
