"""Code that runs in one step on a GPU gives the same, on any device, as copying image by image."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from colabstage.load.augment import cut, cut_by_windows, mirror, mirror_by_mask, resize_by_weights, resize_crops

CROPS = np.array([[0, 0, 12, 17], [3, 4, 5, 9], [11, 16, 1, 1], [2, 0, 10, 4]] * 2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.bfloat16, torch.int16])
def test_the_ways_of_the_gpu_give_the_same(dtype: torch.dtype) -> None:
    values = np.random.default_rng(0).integers(0, 256, (8, 12, 17, 3))
    images = torch.from_numpy(values).permute(0, 3, 1, 2).to(dtype)
    for axis in (-1, -2):
        chosen = np.arange(8) % 3 == 0
        assert torch.equal(mirror(images, chosen, axis), mirror_by_mask(images, chosen, axis))
    for corners in (CROPS[:, :2] // 2, CROPS[:, :2] - 4, np.full((8, 2), -4), np.full((8, 2), 4)):
        assert torch.equal(*(way(images, corners, (8, 13), 7) for way in (cut, cut_by_windows)))
    ours, theirs = resize_by_weights(images, CROPS, (6, 20)), resize_crops(images, CROPS, (6, 20))
    atol = {torch.uint8: 2.0, torch.int16: 1.0, torch.bfloat16: 1.1, torch.float16: 0.13}.get(dtype, 1e-3)
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=0, atol=atol)
