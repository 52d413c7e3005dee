"""Random resized crops that are cut during decoding: `make_loader` gives the same as the transform would."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from colabstage import dataset_h5, make_loader
from colabstage.errors import DecodeError
from colabstage.transforms import Compose, Normalize, RandomFlip, RandomResizedCrop
from tests.load.conftest import encoded, write_files, write_images

COUNT = 11
SIZES = [(60, 90), (90, 60), (75, 75), (40, 130)]
# No image is twice as large, so none is reduced.
CROP = RandomResizedCrop((48, 46), scale=(0.2, 1.0))
STEPS = Compose([RandomResizedCrop(48), RandomFlip(), Normalize((0.5,), (0.2,))])


class Whole:
    """A transform that hides its first step, so it gets whole images."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    def __call__(self, x: Any, y: Any) -> Any:
        return self._transform(x, y)

    def apply_at(self, x: Any, y: Any, place: Any) -> Any:
        return self._transform.apply_at(x, y, place)


def pixels(row: int, times: int = 1) -> NDArray[np.uint8]:
    """A picture of a different size for each row."""
    height, width = times * np.array(SIZES[row % len(SIZES)])
    coarse = np.random.default_rng(row).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


@pytest.fixture
def make_pack(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of JPEGs with labels, masks or boxes as targets."""

    def make(
        targets: str = "labels", *, times: int = 1, files: list[bytes] | None = None, count: int = COUNT, **options: Any
    ) -> Path:
        images = [pixels(row, times) for row in range(count)]
        with h5py.File(tmp_path / "images.h5", "w") as file:
            write_images(file, files or [encoded(image, "JPEG") for image in images], **options)
            if targets == "labels":
                file["Y_train"] = np.arange(len(files or images))
                return tmp_path / "images.h5"
            group = file.create_group("Y_train")
            if targets == "masks":
                write_files(group, [encoded(image[..., 0] // 64) for image in images])
                group.attrs["mask_options"] = json.dumps({"size": None, "resize": "stretch", "colors": None})
            else:
                counts = np.arange(count) % 3
                corners = np.random.default_rng(0).uniform(0, 30, (counts.sum(), 2, 2)).cumsum(axis=1)
                group["boxes"] = corners.reshape(-1, 4).astype(np.float32)
                group["labels"] = np.arange(counts.sum())
                group["offsets"] = np.concatenate([[0], np.cumsum(counts)])
        return tmp_path / "images.h5"

    return make


def both(dataset: dataset_h5, transform: Any, batch_size: int = 4, **options: Any) -> tuple[list[Any], list[Any]]:
    """The batches of two epochs: of crops decoded alone, and of whole images cropped afterwards."""
    ours, theirs = (
        [batch for _ in range(2) for batch in loader]
        for loader in (
            make_loader(dataset, batch_size, batch_transform=way, seed=3, **options)
            for way in (transform, Whole(transform))
        )
    )
    return ours, theirs


def assert_same(ours: Any, theirs: Any) -> None:
    """Check that batches are equal in all their parts."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("transform", "options"),
    [
        (STEPS, {"strategy": "direct", "num_workers": 2}),
        (CROP, {"strategy": "memory"}),
        (Compose([Compose([CROP]), RandomFlip()]), {}),
    ],
)
def test_crops_are_those_of_whole_images(
    make_pack: Callable[..., Path], transform: Any, options: dict[str, Any]
) -> None:
    """The same batches, epoch after epoch, to the last pixel if no crop shrinks to a half."""
    ours, theirs = both(dataset_h5(make_pack()), transform, **options)
    assert_same(ours, theirs)
    assert [len(x) for x, _ in ours] == [4, 4, 3] * 2
    assert ours[0][0].is_contiguous(memory_format=torch.channels_last)


def test_crops_that_shrink_are_near_those_of_whole_images(make_pack: Callable[..., Path]) -> None:
    """If a JPEG is decoded at a half or a quarter of its size, within a grey level or two on average."""
    ours, theirs = both(dataset_h5(make_pack(times=4)), RandomResizedCrop(48, scale=(0.5, 1.0)), 11)
    difference = (ours[0][0].int() - theirs[0][0].int()).abs().float()
    assert 0 < difference.mean() < 2
    assert difference.max() < 16


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_crops_count_in_the_upright_image(make_pack: Callable[..., Path], orientation: int) -> None:
    """If EXIF turns a photograph, crops are taken from the turned image."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = encoded(pixels(3, 2), "JPEG", quality=95, exif=exif)
    ((x, _), *_), ((wanted, _), *_) = both(dataset_h5(make_pack(files=[file])), RandomResizedCrop(40), 1)
    assert (x.int() - wanted.int()).abs().float().mean() < 1.5


@pytest.mark.parametrize(("targets", "ragged"), [("masks", "list"), ("boxes", "list"), ("boxes", "pad")])
def test_targets_go_with_their_crops(make_pack: Callable[..., Path], targets: str, ragged: Any) -> None:
    """Masks and boxes are where they would be if the whole image had been cropped."""
    ours, theirs = both(dataset_h5(make_pack(targets)), STEPS, ragged=ragged)
    assert_same(ours, theirs)
    if targets == "masks":
        assert ours[0][1].shape == (4, 48, 48)
        assert len(ours[0][1].unique()) > 1


def test_a_broken_file_is_named(make_pack: Callable[..., Path]) -> None:
    file = encoded(pixels(0), "JPEG")
    dataset = dataset_h5(make_pack(files=[file, file[: len(file) // 2]]))
    with pytest.raises(DecodeError, match="Row 1 of X_train"):
        list(make_loader(dataset, 2, batch_transform=CROP))


@pytest.mark.parametrize(
    ("options", "transform", "batch_transform", "name"),
    [
        ({}, None, CROP, "crops"),
        ({}, None, None, "whole"),
        ({}, len, CROP, "whole"),
        ({"size": [64, 64]}, None, CROP, "whole"),
        ({"color_mode": "keep"}, None, CROP, "whole"),
    ],
    ids=["crop", "no crop", "own transform", "one size", "kept as they are"],
)
def test_the_plan_says_what_is_decoded_and_why(
    make_pack: Callable[..., Path], options: dict[str, Any], transform: Any, batch_transform: Any, name: str
) -> None:
    loader = make_loader(dataset_h5(make_pack(**options), transform), 4, batch_transform=batch_transform)
    assert loader.plan.decode is not None
    assert loader.plan.decode.name == name
    assert f"{name}: {loader.plan.decode.reason}" in str(loader.plan)


def test_crops_reach_a_gpu(make_pack: Callable[..., Path], cuda: str) -> None:
    """Decoded on the CPU and moved, they are what the GPU makes of whole images, within a grey level."""
    for (x, y), (wanted, masks) in zip(*both(dataset_h5(make_pack("masks")), CROP, device=cuda), strict=True):
        assert x.device.type == wanted.device.type == "cuda"
        assert (x.int() - wanted.int()).abs().max() <= 1
        assert torch.equal(y, masks)
