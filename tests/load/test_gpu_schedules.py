"""Copies to a GPU, and work there, under any schedule of its streams: the numbers are right, and no loop waits."""

import random
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from colabstage import CudaDataLoader, dataset_h5, make_loader
from colabstage.transforms import Compose, Normalize, OneHot, RandomCrop, RandomFlip, RandomResizedCrop
from tests.support.made_files import write_rows
from tests.support.simulated_gpu import simulated_gpu

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a real GPU has a schedule of its own")
OPTIONS: dict[str, Any] = {"seed": 3, "shuffle": True}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Batches small enough for groups, and large enough for pinned memory that is used again."""
    folder, rng = tmp_path_factory.mktemp("rows"), np.random.default_rng(0)
    rows = {
        "small": rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8),
        "large": rng.integers(0, 256, (60, 40, 40, 3), dtype=np.uint8),
        "floats": rng.standard_normal((160, 5000)).astype("f4"),
    }
    return {name: write_rows(folder / f"{name}.h5", x, np.arange(len(x))) for name, x in rows.items()}


def taken(
    loader: Any, choose: random.Random, device: str = "cuda:0", streams: int = 0, most: int | None = None
) -> list[tuple[torch.Tensor, ...]]:
    """Copy each batch by work that is queued on one of several streams, and drop the batch before it is done."""
    batches, kept = iter(loader), list[tuple[torch.Tensor, ...]]()
    other: Any = torch.cuda.Stream
    used = [torch.cuda.current_stream(device), *(other(device) for _ in range(streams))]
    while len(kept) != most:
        # Threads run ahead of a slow loop.
        time.sleep(choose.choice([0, 0, 0.002]))
        with torch.cuda.stream(choose.choice(used)):
            if (batch := next(batches, None)) is None:
                break
            kept.append(tuple(part.clone() for part in batch))
            del batch
    return kept


def same(there: list[tuple[torch.Tensor, ...]], here: list[Any]) -> None:
    for parts in there[-1:]:
        torch.cuda.synchronize(parts[0].device)
    assert len(there) == len(here)
    for parts, wanted in zip(there, here, strict=True):
        for part, one in zip(parts, wanted, strict=True):
            assert torch.equal(part.cpu(), one)
            assert (part.dtype, part.stride()) == (one.dtype, one.stride())


@given(
    seed=st.integers(0, 2**32), name=st.sampled_from(["small", "large", "floats"]), size=st.sampled_from([4, 7, 16]),
    way=st.sampled_from(["direct", "device", "copied", "computed"]), dtype=st.sampled_from([None, "float32"]),
    ahead=st.sampled_from(["auto", 1]), streams=st.integers(0, 2), most=st.none() | st.integers(1, 3),
    device=st.sampled_from(["cuda:0", "cuda:1"]),
)  # fmt: skip
@example(0, "floats", 7, "direct", None, 1, 0, None, "cuda:0")
@settings(max_examples=settings().max_examples // 3)
def test_batches_are_those_of_the_processor(
    files: dict[str, Path], seed: int, name: str, size: int, way: Any, dtype: Any, ahead: Any, streams: int, most: int,
    device: str,
) -> None:  # fmt: skip
    """Epochs that are left early or not, of loaders that go before the work on their batches is done."""
    dataset, choose = dataset_h5(files[name]), random.Random(seed)
    with pytest.MonkeyPatch.context() as patch, simulated_gpu(patch, seed, devices=2):
        make: Callable[..., Any] = partial(make_loader, dataset, size, dtype=dtype, prefetch_factor=ahead, **OPTIONS)
        here = make()
        if way == "computed":
            moved = [[part.to(device) for part in batch] for batch in make()]
            # Work on these is queued, and not done when their loader starts.
            loader: Any = CudaDataLoader([tuple(part.clone() for part in batch) for batch in moved], device)
            epochs = [taken(loader, choose, device, streams, most)]
        elif way == "copied":
            loader = CudaDataLoader(make(), device, 1)
            epochs = [taken(loader, choose, device, streams, most)]
        else:
            loader = make(strategy=way, device=device)
            epochs = [taken(loader, choose, device, streams, most) for _ in range(2)]
        del loader
        # These get the memory that has become free.
        sizes = [one.nbytes * len(dataset) // len(one) for one in epochs[0][0]]
        dropped = [
            torch.full((one,), 9, dtype=torch.uint8, device=device)
            for one in (len(dataset) * dataset.reader.row_bytes, *sizes)
        ]
        for there in epochs:
            same(there, list(here)[: len(there)])
        assert dropped


@pytest.mark.parametrize("most", [0, 1, 4])
def test_a_full_gpu_ends_the_epoch_and_not_the_loader(files: dict[str, Path], monkeypatch: Any, most: int) -> None:
    """torch's error comes in the loop, and the next epoch is whole."""
    dataset = dataset_h5(files["floats"])
    with simulated_gpu(monkeypatch, most) as gpu:
        loader = make_loader(dataset, 7, device="cuda", strategy="direct", **OPTIONS)
        gpu.most_blocks = most
        with pytest.raises(torch.OutOfMemoryError):
            taken(loader, random.Random(0))
        gpu.most_blocks = 1000
        loader.set_epoch(0)
        same(taken(loader, random.Random(0)), list(make_loader(dataset, 7, **OPTIONS)))


IMAGES = torch.arange(6 * 3 * 8 * 9, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(6, 3, 8, 9)
BOXES = [
    {"boxes": torch.tensor([[0.0, 0.0, 3.0, 3.0]] * row).reshape(-1, 4), "labels": torch.arange(row)}
    for row in range(6)
]
TARGETS = {"labels": torch.arange(6), "masks": torch.arange(432).reshape(6, 8, 9) % 7, "boxes": BOXES}
MOVING: list[Any] = [RandomCrop(8, padding=2), RandomFlip(0.5, 0.5), RandomResizedCrop(7)]


EACH = [*MOVING, Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.3)), Compose(MOVING)]


@pytest.mark.parametrize(
    ("transform", "target"), [*product(EACH, TARGETS), (OneHot(7), "labels"), (OneHot(7), "masks")], ids=repr
)
def test_no_transform_waits_for_the_gpu(transform: Any, target: str, monkeypatch: Any) -> None:
    """A loop that waits in each batch leaves the GPU without work. Only boxes wait, once, to know which are left."""
    y: Any = TARGETS[target]
    torch.manual_seed(0)
    wanted = transform(IMAGES, y)
    with simulated_gpu(monkeypatch, 0) as gpu:
        x_there, y_there = IMAGES.to("cuda:0"), y.to("cuda:0") if target != "boxes" else [
            {name: value.to("cuda:0") for name, value in one.items()} for one in y
        ]  # fmt: skip
        torch.manual_seed(0)
        waits = gpu.waits
        x_there, y_there = transform(x_there, y_there)
        drops = target == "boxes" and not isinstance(transform, RandomFlip | Normalize)
        assert gpu.waits - waits == (2 if drops and isinstance(transform, Compose) else drops)
        torch.testing.assert_close(x_there.cpu().double(), wanted[0].double(), rtol=1e-6, atol=1)
        if target == "boxes":
            assert [one["labels"].tolist() for one in y_there] == [one["labels"].tolist() for one in wanted[1]]
        else:
            assert torch.equal(y_there.cpu(), wanted[1])
