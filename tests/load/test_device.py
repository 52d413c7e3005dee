"""Wherever a split is read from, above all with `strategy="device"` in the model's memory, the batches are the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colabstage import dataset_h5, make_loader
from colabstage.errors import NotEnoughSpaceError, OptionError
from tests.support.made_files import make_sparse_h5, write_rows


def assert_same_batches(one: Any, other: Any) -> None:
    """Check that two loaders give the same epochs, bit for bit, in the same memory format."""
    for _ in range(2):
        for ((x, y), index), ((other_x, other_y), other_index) in zip(one, other, strict=True):
            assert torch.equal(index.cpu(), other_index)
            assert torch.equal(y.cpu(), other_y)
            assert torch.equal(x.cpu(), other_x)
            assert (x.dtype, y.dtype, x.stride()) == (other_x.dtype, other_y.dtype, other_x.stride())


WAYS: list[tuple[str, dict[str, Any]]] = [
    ("pack", {"drop_last": True}), ("pack", {"dtype": torch.float32}), ("gzip", {}), ("big-endian", {"num_workers": 2}),
    ("recipe", {"shuffle": False}), ("pack", {"sampler": [5, 3, 9], "shuffle": False, "dtype": torch.bfloat16}),
]  # fmt: skip


@pytest.mark.parametrize("strategy", ["device", "memory", "direct"])
@pytest.mark.parametrize(("kind", "options"), WAYS)
def test_batches_are_those_of_direct(
    make_file: Callable[..., Any], device: str, kind: str, options: dict[str, Any], strategy: Any
) -> None:
    """For any storage and options, on any device and by several threads, the same seed gives the same batches."""
    dataset = dataset_h5(make_file(kind, 23).path, return_index=True)
    loader = make_loader(dataset, 5, device=device, strategy=strategy, seed=4, **{"num_workers": 2, **options})
    assert loader.plan.strategy == strategy
    assert_same_batches(loader, make_loader(dataset, 5, strategy="direct", seed=4, **{**options, "num_workers": 0}))


def test_encoded_images_are_decoded_once(make_encoded: Callable[..., Path], device: str) -> None:
    """Image files of one size after decoding are stored on the device as pixels."""
    dataset = dataset_h5(make_encoded(7, size=(6, 9)), return_index=True)
    loader = make_loader(dataset, 3, device=device, strategy="device", seed=1)
    assert_same_batches(loader, make_loader(dataset, 3, strategy="direct", seed=1))


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (0,), (0, 3)], ids=str)
def test_rows_of_any_shape_and_dtype(tmp_path: Path, device: str, shape: tuple[int, ...]) -> None:
    """Bit for bit the original values, whatever the length of a row."""
    for dtype in ("u1", "f4", "f8", "?", "i8"):
        values = np.random.default_rng(0).integers(0, 200, (11, *shape)).astype(dtype)
        write_rows(tmp_path / f"{dtype[-2:]}.h5", values, np.arange(11))
        dataset = dataset_h5(tmp_path / f"{dtype[-2:]}.h5")
        for x, y in make_loader(dataset, 4, device=device, strategy="device", seed=1):
            np.testing.assert_array_equal(x.cpu().numpy(), values[y.cpu().numpy()])


def test_a_batch_is_the_callers_own(make_file: Callable[..., Any]) -> None:
    """Changing a batch changes no other, nor the next epoch's."""
    dataset = dataset_h5(make_file("pack", 23).path, return_index=True)
    loader = make_loader(dataset, 23, device="cpu", strategy="device", shuffle=False)
    ((x, y), index), kept = next(iter(loader)), make_file("pack", 23).x
    x.zero_(), y.zero_(), index.zero_()
    (x, y), index = next(iter(loader))
    np.testing.assert_array_equal(x.permute(0, 2, 3, 1), kept)
    assert index.tolist() == list(range(23))


def test_blocks_join_to_the_split(tmp_path: Path) -> None:
    """A split of several blocks is on the device whole and in order."""
    values = np.random.default_rng(0).integers(0, 256, (60, 400, 300, 3), dtype=np.uint8)
    write_rows(tmp_path / "large.h5", values, np.arange(60))
    dataset = dataset_h5(tmp_path / "large.h5")
    loader = make_loader(dataset, 32, device="cpu", strategy="device", shuffle=False)
    batches = list(loader)
    np.testing.assert_array_equal(np.concatenate([x.permute(0, 2, 3, 1) for x, _ in batches]), values)
    assert [y.tolist() for _, y in batches] == [[*range(32)], [*range(32, 60)]]


def test_what_cannot_lie_on_a_device_is_refused(
    make_file: Callable[..., Any], make_encoded: Any, tmp_path: Path
) -> None:
    """Sample transforms, images of different sizes and splits that do not fit are errors that say what to do."""
    with pytest.raises(OptionError, match="batch_transform"):
        make_loader(dataset_h5(make_file("pack", 23).path, np.asarray), 5, strategy="device")
    with pytest.raises(OptionError):
        make_loader(dataset_h5(make_encoded(5)), 5, strategy="device")
    make_sparse_h5(tmp_path / "huge.h5", (2**30, 2**12))
    with pytest.raises(NotEnoughSpaceError, match="TB"):
        make_loader(dataset_h5(tmp_path / "huge.h5"), 5, strategy="device")


def test_auto_takes_the_device_for_a_small_split(make_file: Callable[..., Any], cuda: str) -> None:
    """A GPU with room holds the split by default."""
    loader = make_loader(dataset_h5(make_file("pack", 23).path), 5, device=cuda)
    assert loader.plan.strategy == "device"
