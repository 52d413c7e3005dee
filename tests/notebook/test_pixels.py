"""Arrays of any kind as pictures."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from colabstage.notebook.browser import class_colour, data_uri, is_background, paint_mask, shrink, to_bytes, to_rgb

if TYPE_CHECKING:
    from numpy.typing import NDArray


def opened(uri: str) -> Image.Image:
    """The picture in a data URI."""
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


@pytest.mark.parametrize(
    ("values", "expected", "told"),
    [
        (np.array([[0, 128, 255]], np.uint8), [0, 128, 255], False),
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255], False),
        (np.array([[False, True, True]]), [0, 255, 255], False),
        (np.array([[1000, 2000, 3000]], np.uint16), [0, 128, 255], True),
        (np.array([[-4.0, np.nan, 4.0]]), [0, 128, 255], True),
        (np.array([[7, 7, 7]], np.int32), [0, 0, 0], True),
        (np.array([[-np.inf, 0.0, 1.0]]), [0, 0, 255], False),
    ],
    ids=["bytes", "fractions", "bool", "16 bits", "floats", "flat", "infinite"],
)
def test_values_become_grey_levels(values: NDArray[Any], expected: list[int], told: bool) -> None:
    """Bytes and fractions as they are meant; all else from the least to the most, and then it says so."""
    grey, note = to_bytes(values)
    assert grey.dtype == np.uint8
    assert grey.reshape(-1).tolist() == expected
    assert bool(note) == told


@pytest.mark.parametrize(
    "shape", [(40, 30), (40, 30, 1), (40, 30, 2), (40, 30, 3), (40, 30, 4), (3, 40, 30), (1, 40, 30)]
)
def test_any_channels(shape: tuple[int, ...]) -> None:
    """Each shape of an image is one of three channels, of the same height and width."""
    rgb, _ = to_rgb(np.full(shape, 200, np.uint8), longest_px=100)
    assert rgb.shape == (40, 30, 3)
    assert rgb.dtype == np.uint8


def test_transparency_shows_grey() -> None:
    """A pixel that cannot be seen is grey, one that can be is itself."""
    pixels = np.array([[[250, 0, 0, 0], [250, 0, 0, 255]]], np.uint8)
    assert to_rgb(pixels, longest_px=10)[0].tolist() == [[[128, 128, 128], [250, 0, 0]]]


def test_large_images_get_small() -> None:
    """Proportions stay; small images are not enlarged."""
    rgb, _ = to_rgb(np.zeros((3000, 1500, 3), np.uint8), longest_px=100)
    assert max(rgb.shape) <= 400
    assert shrink(rgb, 100).shape == (100, 50, 3)
    assert shrink(np.zeros((20, 10, 3), np.uint8), 100).shape == (20, 10, 3)


def test_masks_are_painted_in_their_classes_colours() -> None:
    """Background and what has no class stay as they are; a mask of another size is laid over by the nearest pixel."""
    image = np.full((4, 4, 3), 100, np.uint8)
    mask = np.array([[0, 1], [255, 2]], np.uint8)
    painted = paint_mask(image, mask, ("background", "cat", "dog"))
    assert painted[0, 0].tolist() == painted[3, 0].tolist() == [100, 100, 100]
    for place, value in (((0, 3), 1), ((3, 3), 2)):
        expected = [(100 + part) // 2 for part in class_colour(value)]
        assert np.abs(painted[place].astype(int) - expected).max() <= 1
    assert image.max() == 100
    # Known by name; without names it is class 0.
    assert [is_background(value, ()) for value in (0, 1, 255)] == [True, False, True]
    assert [is_background(value, ("road", "Background")) for value in (0, 1)] == [False, True]


def test_small_pictures_are_lossless() -> None:
    """PNG for what is enlarged in squares, JPEG for photographs."""
    small = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    np.testing.assert_array_equal(np.asarray(opened(data_uri(small))), small)
    large = opened(data_uri(np.full((120, 110, 3), 77, np.uint8)))
    assert (large.format, large.size) == ("JPEG", (110, 120))
