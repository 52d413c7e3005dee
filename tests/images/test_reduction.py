"""JPEGs that shrink to a half or less are decoded at a cheaper scale, close to the exact result."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from colabstage.images.decode import decode_image
from colabstage.images.geometry import ImageOptions, Resize, place_image, reduction_factor

if TYPE_CHECKING:
    from numpy.typing import NDArray


def photograph(height: int, width: int) -> Image.Image:
    """Smooth shapes with edges and fine grain, as a camera sees them."""
    random = np.random.default_rng(0)
    coarse = Image.fromarray(random.integers(0, 256, (height // 60 + 2, width // 60 + 2, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
    rows, columns = np.mgrid[:height, :width]
    edges = 40.0 * (((rows // 37) + (columns // 53)) % 2)[..., None]
    grain = random.normal(0, 6, (height, width, 1))
    return Image.fromarray(np.clip(smooth + edges + grain, 0, 255).astype(np.uint8))


def jpeg(image: Image.Image, orientation: int = 1) -> bytes:
    """The image's bytes, with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=92, exif=exif)
    return buffer.getvalue()


def exact(data: bytes, size: tuple[int, int], box: tuple[float, float, float, float]) -> NDArray[np.int64]:
    """What Pillow makes of the whole decoded image."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR, box=box)).astype(np.int64)


@pytest.mark.parametrize(
    ("source", "target", "factor"),
    [
        ((480, 640), (224, 224), 2),
        ((448, 448), (224, 224), 2),
        ((447, 448), (224, 224), 1),
        ((375, 500), (224, 224), 1),
        ((1000, 1000), (250, 250), 4),
        ((4000, 3000), (224, 224), 8),
        ((100, 100), (224, 224), 1),
    ],
)
def test_the_factor_never_goes_below_the_target(source: tuple[int, int], target: tuple[int, int], factor: int) -> None:
    """Only as far as both sides still cover what is made of them."""
    assert reduction_factor(place_image(source, target, "stretch")) == factor


@pytest.mark.parametrize("resize", ["stretch", "crop"])
@pytest.mark.parametrize(
    ("height", "width", "size"), [(480, 640, (224, 224)), (900, 1300, (200, 160)), (1201, 1607, (128, 128))]
)
def test_the_result_is_close_to_the_exact_one(height: int, width: int, size: tuple[int, int], resize: Resize) -> None:
    """Within three grey levels in the mean."""
    data = jpeg(photograph(height, width))
    box = place_image((height, width), size, resize).box
    found = decode_image(data, ImageOptions(size=size, resize=resize)).astype(np.int64)
    assert np.abs(found - exact(data, size, box)).mean() < 3.0


def test_without_a_reduction_the_result_is_exact() -> None:
    """A JPEG of which neither side shrinks by two is what Pillow makes of it."""
    data = jpeg(photograph(375, 440))
    found = decode_image(data, ImageOptions(size=(224, 224)))
    assert np.array_equal(found, exact(data, (224, 224), (0, 0, 440, 375)))


def test_one_side_that_shrinks_by_two_stays_close() -> None:
    """Where only the width shrinks that much, the result is within three grey levels in the mean."""
    data = jpeg(photograph(375, 500))
    found = decode_image(data, ImageOptions(size=(224, 224))).astype(np.int64)
    assert 0 < np.abs(found - exact(data, (224, 224), (0, 0, 500, 375))).mean() < 3.0


@pytest.mark.parametrize("size", [None, (224, 224), (40, 30)])
def test_scratch_memory_changes_nothing(size: tuple[int, int] | None) -> None:
    """The same pixels with memory to decode into, which no result shares, whatever was in it before."""
    scratch = bytearray(b"\xff" * 1000)
    results = []
    for seed in (3, 1, 2):
        data = jpeg(photograph(300 + seed, 400))
        result = decode_image(data, ImageOptions(size=size), scratch=scratch)
        results.append((result, decode_image(data, ImageOptions(size=size))))
    for found, expected in results:
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("size", [(640, 480), (651, 483)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_photographs_shrink_upright(orientation: int, size: tuple[int, int]) -> None:
    """The reduction follows the upright image, whichever way the camera lay."""
    upright = photograph(*size)
    turns = {
        1: [], 2: [Image.Transpose.FLIP_LEFT_RIGHT], 3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM], 5: [Image.Transpose.TRANSPOSE], 6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.TRANSVERSE], 8: [Image.Transpose.ROTATE_270],
    }  # fmt: skip
    stored = upright
    for turn in turns[orientation]:
        stored = stored.transpose(turn)
    found = decode_image(jpeg(stored, orientation), ImageOptions(size=(300, 220))).astype(np.int64)
    expected = np.asarray(upright.resize((220, 300), Image.Resampling.BILINEAR)).astype(np.int64)
    assert np.abs(found - expected).mean() < 4.0


def test_grayscale_is_reduced_too() -> None:
    """One channel, close to the exact luma."""
    data = jpeg(photograph(800, 800))
    found = decode_image(data, ImageOptions(size=(100, 100), color_mode="grayscale"))[..., 0].astype(np.int64)
    image = Image.open(io.BytesIO(data))
    image.draft("L", image.size)
    expected = np.asarray(image.resize((100, 100), Image.Resampling.BILINEAR)).astype(np.int64)
    assert np.abs(found - expected).mean() < 3.0


@pytest.mark.parametrize(("side", "most"), [(2, 8), (5, 11), (8, 10)])
def test_patterns_differ_by_up_to_ten_grey_levels(side: int, most: float) -> None:
    """The hardest images for a reduction by blocks: checks of a few pixels. Photographs differ by one to two."""
    rows, columns = np.indices((480, 640)) // side
    data = jpeg(Image.fromarray(((rows + columns) % 2 * 255).astype(np.uint8)).convert("RGB"))
    found = decode_image(data, ImageOptions(size=(224, 224))).astype(np.int64)
    assert 1 < np.abs(found - exact(data, (224, 224), (0, 0, 640, 480))).mean() < most
