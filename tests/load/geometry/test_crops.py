"""Random resized crops: distributed as torchvision's, whose algorithm is here once more, image by image."""

from __future__ import annotations

import math
import random
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from colabstage.load.augment import resized_crops
from colabstage.load.epoch import BatchPlace

pytestmark = pytest.mark.torch

COUNT = 6000
# With this probability a comparison of two equal distributions would fail for another seed.
ALPHA = 1e-4
SETTINGS = [
    ((256, 256), (0.08, 1.0), (3 / 4, 4 / 3)),
    ((375, 500), (0.08, 1.0), (3 / 4, 4 / 3)),
    ((40, 200), (0.5, 1.0), (3 / 4, 4 / 3)),
    ((32, 32), (0.9, 1.0), (0.5, 2.0)),
    ((7, 5), (0.2, 0.9), (1.0, 1.0)),
]


def reference_crop(
    rng: random.Random, size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """`torchvision.transforms.RandomResizedCrop.get_params`, as documented."""
    height, width = size
    for _ in range(10):
        area = height * width * rng.uniform(*scale)
        shape = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    if width / height < min(ratio):
        w, h = width, round(width / min(ratio))
    elif width / height > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def distance(values: np.ndarray[Any, Any], others: np.ndarray[Any, Any]) -> float:
    """The Kolmogorov-Smirnov distance of two samples."""
    points = np.concatenate([values, others])
    shares = [np.searchsorted(np.sort(part), points, side="right") / len(part) for part in (values, others)]
    return float(np.abs(shares[0] - shares[1]).max())


def assert_alike(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> None:
    """Area, ratio, sides, places and their share of the room have the same distribution."""
    # Chance exceeds this with probability ALPHA; for whole numbers, less often.
    limit = math.sqrt(-math.log(ALPHA / 2) / 2 * (1 / len(ours) + 1 / len(theirs)))
    facts = [
        np.column_stack([c, c[:, 2] * c[:, 3], np.log(c[:, 3] / c[:, 2]), c[:, 0] + c[:, 2], c[:, 1] + c[:, 3]])
        for c in (ours, theirs)
    ]
    assert [
        name for name, a, b in zip(range(8), *(part.T for part in facts), strict=True) if distance(a, b) > limit
    ] == []


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision: pip install torchvision")
@pytest.mark.parametrize(("size", "scale", "ratio"), SETTINGS)
def test_crops_are_distributed_as_torchvision_has_them(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    """The same against the package itself."""
    import torch
    from torchvision.transforms import RandomResizedCrop

    torch.manual_seed(0)
    image = torch.empty(1, *size)
    theirs = np.array([RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(COUNT)])
    draws = BatchPlace(0, 0, np.arange(COUNT)).draws(22)
    assert_alike(resized_crops(np.array(size), draws, scale=scale, ratio=ratio), theirs)


@pytest.mark.parametrize("size", [(10, 1000), (1000, 10), (1, 1), (3, 400)])
def test_where_nothing_fits_the_middle_is_taken(size: tuple[int, int]) -> None:
    """An image far from every ratio gives torchvision's crop of its middle."""
    draws = BatchPlace(0, 0, np.arange(50)).draws(22)
    crops = resized_crops(np.array(size), draws, scale=(1.0, 1.0))
    expected = reference_crop(random.Random(0), size, (1.0, 1.0), (3 / 4, 4 / 3))
    assert set(map(tuple, crops.tolist())) == {expected}


def test_each_image_has_its_own_size() -> None:
    """A crop is what it would be if all images were of that size, and lies inside."""
    sizes = np.array([[30, 40], [300, 20], [5, 5], [64, 64]] * 25)
    draws = BatchPlace(2, 0, np.arange(100)).draws(22)
    crops = resized_crops(sizes, draws)
    for row in range(100):
        np.testing.assert_array_equal(crops[row], resized_crops(sizes[row], draws[row : row + 1])[0])
    assert (crops[:, :2] >= 0).all()
    assert (crops[:, 2:] >= 1).all()
    assert (crops[:, :2] + crops[:, 2:] <= sizes).all()
