"""Random resized crops that are cut while images are decoded: what `make_loader` gives is what the transform would."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from colabstage import dataset_h5, make_loader
from colabstage.transforms import Compose, Normalize, RandomFlip, RandomResizedCrop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.load.epoch import BatchPlace

COUNT = 11
SIZES = [(60, 90), (90, 60), (75, 75), (40, 130)]
# No image is twice as large: nothing is reduced.
CROP = RandomResizedCrop((48, 46), scale=(0.2, 1.0))
STEPS = Compose([RandomResizedCrop(48), RandomFlip(), Normalize((0.5,), (0.2,))])


class Whole:
    """A transform that does not show what it begins with: it gets whole images."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    def __call__(self, x: Any, y: Any) -> Any:
        return self._transform(x, y)

    def apply_at(self, x: Any, y: Any, place: BatchPlace) -> Any:
        return self._transform.apply_at(x, y, place)


def cropped(transform: Any) -> Any:
    return transform


WAYS = (cropped, Whole)


def pixels(row: int, times: int = 1) -> NDArray[np.uint8]:
    """A picture of its own size for each row."""
    height, width = times * np.array(SIZES[row % len(SIZES)])
    coarse = np.random.default_rng(row).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def packed(group: h5py.Group, images: list[NDArray[np.uint8]], kind: str = "PNG") -> None:
    """Images as files inside a group."""
    files = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, kind)
        files.append(buffer.getvalue())
    group["bytes"] = np.frombuffer(b"".join(files), np.uint8)
    group["offsets"] = np.cumsum([0, *map(len, files)], dtype=np.int64)


@pytest.fixture
def make_pack(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of JPEGs with labels, masks or boxes as targets."""

    def make(
        targets: str = "labels",
        *,
        name: str = "images.h5",
        rows: range = range(COUNT),
        times: int = 1,
        **options: Any,
    ) -> Path:
        images = [pixels(row, times) for row in rows]
        with h5py.File(tmp_path / name, "w") as file:
            packed(file.create_group("X_train"), images, "JPEG")
            wanted = {"size": None, "color_mode": "rgb", "resize": "stretch"} | options
            file["X_train"].attrs["image_options"] = json.dumps(wanted)
            if targets == "labels":
                file["Y_train"] = np.array(rows)
                return tmp_path / name
            group = file.create_group("Y_train")
            if targets == "masks":
                packed(group, [image[..., 0] // 64 for image in images])
                group.attrs["mask_options"] = json.dumps({"size": None, "resize": "stretch", "colors": None})
                return tmp_path / name
            counts = np.array([row % 3 for row in rows])
            corners = np.random.default_rng(0).uniform(0, 30, (counts.sum(), 2, 2)).cumsum(axis=1)
            group["boxes"] = corners.reshape(-1, 4).astype(np.float32)
            group["labels"] = np.arange(counts.sum())
            group["offsets"] = np.concatenate([[0], np.cumsum(counts)])
        return tmp_path / name

    return make


def assert_same(ours: Any, theirs: Any) -> None:
    """Batches that are equal, in all their parts."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("transform", [CROP, STEPS, Compose([Compose([CROP]), RandomFlip()])])
@pytest.mark.parametrize("strategy", ["direct", "memory"])
def test_crops_are_those_of_whole_images(make_pack: Callable[..., Path], transform: Any, strategy: Any) -> None:
    """The same batches, epoch after epoch, to the last pixel where no crop shrinks to a half."""
    dataset = dataset_h5(make_pack())
    cropped = make_loader(dataset, 4, batch_transform=transform, strategy=strategy, seed=3)
    whole = make_loader(dataset, 4, batch_transform=Whole(transform), strategy=strategy, seed=3)
    for _ in range(2):
        batches = list(cropped)
        assert_same(batches, list(whole))
        assert [len(x) for x, _ in batches] == [4, 4, 3]
        assert batches[0][0].is_contiguous(memory_format=torch.channels_last)


def test_crops_that_shrink_are_near_those_of_whole_images(make_pack: Callable[..., Path]) -> None:
    """Where a JPEG is decoded at a half or a quarter of its size, within a grey level or two in the mean."""
    dataset = dataset_h5(make_pack(times=4))
    crop = RandomResizedCrop(48, scale=(0.5, 1.0))
    (x, _), (wanted, _) = (next(iter(make_loader(dataset, 11, batch_transform=way(crop), seed=1))) for way in WAYS)
    difference = (x.int() - wanted.int()).abs().float()
    assert 0 < difference.mean() < 2
    assert difference.max() < 16


@pytest.mark.parametrize("targets", ["masks", "boxes"])
@pytest.mark.parametrize("ragged", ["list", "pad"])
def test_targets_go_with_their_crops(make_pack: Callable[..., Path], targets: str, ragged: Any) -> None:
    """Masks and boxes are where they would be if the whole image had been cropped."""
    dataset = dataset_h5(make_pack(targets))
    ours, theirs = (list(make_loader(dataset, 4, batch_transform=way(STEPS), ragged=ragged, seed=1)) for way in WAYS)
    assert_same(ours, theirs)
    if targets == "masks":
        assert ours[0][1].shape == (4, 48, 48)
        assert len(ours[0][1].unique()) > 1


def test_an_epoch_is_resumed_with_the_same_crops(make_pack: Callable[..., Path]) -> None:
    """A loader that goes on in the middle of an epoch gives the batches that were left."""
    dataset = dataset_h5(make_pack())
    first, second = (make_loader(dataset, 2, batch_transform=STEPS, seed=5) for _ in range(2))
    list(first)
    batches = iter(first)
    next(batches)
    next(batches)
    second.load_state_dict(first.state_dict())
    left = list(batches)
    assert len(left) == 4
    assert_same(list(second), left)
    # A loader that decodes whole images goes on with the same crops too.
    whole = make_loader(dataset, 2, batch_transform=Whole(STEPS), seed=5)
    whole.load_state_dict({**first.state_dict(), "epoch": 1, "batches_done": 2})
    assert_same(list(whole), left)


def test_the_plan_says_what_is_decoded(make_pack: Callable[..., Path]) -> None:
    """And why, for what can and what cannot be cropped while it is decoded."""
    dataset = dataset_h5(make_pack())
    assert "decode: crops" in str(make_loader(dataset, 4, batch_transform=CROP).plan)
    reasons = [
        (make_loader(dataset, 4), "does not begin with a RandomResizedCrop"),
        (make_loader(dataset_h5(make_pack(), transform=len), 4, batch_transform=CROP), "own transform takes whole"),
        (make_loader(dataset_h5(make_pack(size=[64, 64])), 4, batch_transform=CROP), "brought to 64 x 64 pixels first"),
        (make_loader(dataset_h5(make_pack(color_mode="keep")), 4, batch_transform=CROP), "channels and the depth"),
    ]
    for loader, reason in reasons:
        assert loader.plan.decode is not None
        assert loader.plan.decode.name == "whole"
        assert reason in loader.plan.decode.reason
        assert f"decode: whole, because {loader.plan.decode.reason}" in str(loader.plan)


@pytest.mark.gpu
def test_crops_reach_a_gpu(make_pack: Callable[..., Path]) -> None:
    """Decoded here and moved there, they are what the GPU makes of whole images, to a grey level."""
    dataset = dataset_h5(make_pack("masks"))
    for (x, y), (wanted, masks) in zip(
        *(make_loader(dataset, 4, batch_transform=way(CROP), device="cuda", seed=1) for way in WAYS), strict=True
    ):
        assert x.device.type == wanted.device.type == "cuda"
        assert (x.int() - wanted.int()).abs().max() <= 1
        assert torch.equal(y, masks)
