"""Images of one size are as Pillow scales them, or close if a JPEG is reduced first or torch's kernel scales."""

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps, TiffImagePlugin

from tests.images.files import encode, exif, noise, packed

BILINEAR = Image.Resampling.BILINEAR
RNG = np.random.default_rng(3)
# Heights and widths: ordinary, only one side changed, one pixel, long; and random ones.
SIZES = [(375, 500), (224, 500), (100, 40), (1, 1), (1, 700), (900, 2), (31, 33), (64, 64)]
SIZES += [(int(height), int(width)) for height, width in np.exp(RNG.uniform(0, np.log(400), (16, 2)))]


def fitted(image: Image.Image, size: tuple[int, int], resize: str) -> NDArray[np.int64]:
    """Resize with Pillow; `pad`: scaled to fit, centred on black."""
    if resize == "stretch":
        found = image.resize(size[::-1], BILINEAR)
    elif resize == "crop":
        found = ImageOps.fit(image, size[::-1], BILINEAR)
    else:
        factor = min(size[0] / image.height, size[1] / image.width)
        height, width = (max(1, round(side * factor)) for side in (image.height, image.width))
        found = Image.new(image.mode, size[::-1])
        found.paste(image.resize((width, height), BILINEAR), ((size[1] - width) // 2, (size[0] - height) // 2))
    pixels = np.asarray(found).astype(np.int64)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def box_of(image: Image.Image, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The centre of an image with the proportions of a size, in whole pixels: left, upper, right and lower."""
    factor = min(image.height / size[0], image.width / size[1])
    height, width = size[0] * factor, size[1] * factor
    top, left = (image.height - height) / 2, (image.width - width) / 2
    return (round(left), round(top), round(left + width), round(top + height))


@pytest.mark.parametrize(
    ("size", "resize"), [((32, 32), "stretch"), ((40, 100), "crop"), ((40, 100), "pad"), ((1, 1), "pad")], ids=str
)
def test_images_are_scaled_as_pillow_scales_them(tmp_path: Path, size: tuple[int, int], resize: str) -> None:
    """In a pack of pixels byte for byte, whether they shrink or grow; with torch, when read from a pack of files,
    within one grey level."""
    images = {f"{n}.png": noise(*shape, seed=n) for n, shape in enumerate(SIZES)}
    files = {name: encode(image, "PNG") for name, image in images.items()}
    for encoding, tolerance in (("pixels", 0), ("encoded", 1)):
        found = packed(tmp_path / encoding, files, image_size=size, resize=resize, encoding=encoding, color_mode="rgb")
        for name, pixels in found.items():
            assert pixels.shape == (*size, 3)
            wanted = [fitted(images[name], size, resize)]
            if resize == "crop" and encoding == "encoded":
                # Pillow also uses pixels just outside a box, torch only those inside.
                wanted.append(fitted(images[name].crop(box_of(images[name], size)), size, "stretch"))
            assert min(np.abs(pixels - one).max() for one in wanted) <= tolerance, name


@pytest.mark.parametrize(
    ("encoding", "channels", "resize"),
    [("pixels", 1, "crop"), ("encoded", 1, "pad"), ("pixels", 4, "pad"), ("encoded", 4, "crop")],
)
def test_other_channels_are_scaled_alike(tmp_path: Path, encoding: str, channels: int, resize: str) -> None:
    """Grey images and alpha, bit for bit."""
    images = {f"{n}.png": noise(50 + n, 100, seed=n, channels=channels) for n in range(4)}
    files = {name: encode(image, "PNG") for name, image in images.items()}
    options: dict[str, Any] = {"image_size": (64, 60), "resize": resize, "encoding": encoding, "color_mode": "keep"}
    for name, pixels in packed(tmp_path / "it", files, **options).items():
        np.testing.assert_array_equal(pixels, fitted(images[name], (64, 60), resize))


@cache
def camera(height: int, width: int) -> Image.Image:
    """Smooth shapes with edges and fine grain, as from a camera."""
    random = np.random.default_rng(0)
    coarse = Image.fromarray(random.integers(0, 256, (height // 60 + 2, width // 60 + 2, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)
    rows, columns = np.mgrid[:height, :width]
    edges = 40.0 * (((rows // 37) + (columns // 53)) % 2)[..., None]
    return Image.fromarray(np.clip(smooth + edges + random.normal(0, 6, (height, width, 1)), 0, 255).astype(np.uint8))


def jpeg(image: Image.Image, orientation: int = 1) -> bytes:
    return encode(image, "JPEG", quality=92, exif=exif(orientation))


@pytest.mark.parametrize(
    ("source", "size"), [((448, 448), (224, 224)), ((447, 440), (224, 224)), ((900, 1207), (200, 160))], ids=str
)
def test_jpegs_that_shrink_to_a_half_are_close_to_the_exact_result(
    tmp_path: Path, source: tuple[int, int], size: tuple[int, int]
) -> None:
    """Within three grey levels on average; if no side shrinks that much, within one in every pixel."""
    data = jpeg(camera(*source))
    whole = Image.open(io.BytesIO(data))
    for resize in ("stretch", "crop"):
        ratios = [side / wanted for side, wanted in zip(source, size, strict=True)]
        ratios = [min(ratios)] * 2 if resize == "crop" else ratios
        for encoding in ("pixels", "encoded"):
            options: dict[str, Any] = {"image_size": size, "resize": resize, "encoding": encoding}
            (found,) = packed(tmp_path / f"{resize}-{encoding}", {"a.jpg": data}, **options).values()
            difference = np.abs(found - fitted(whole, size, resize))
            assert difference.mean() < 3
            assert max(ratios) >= 2 or difference.max() <= 1
            assert min(ratios) < 2 or difference.mean() > 0.1


TURNS = {
    1: [], 2: [Image.Transpose.FLIP_LEFT_RIGHT], 3: [Image.Transpose.ROTATE_180], 4: [Image.Transpose.FLIP_TOP_BOTTOM],
    5: [Image.Transpose.TRANSPOSE], 6: [Image.Transpose.ROTATE_90], 7: [Image.Transpose.TRANSVERSE],
    8: [Image.Transpose.ROTATE_270],
}  # fmt: skip


def test_turned_photographs_shrink_upright(tmp_path: Path) -> None:
    """The reduction follows the upright image, however the camera was held."""
    upright, files = camera(651, 483), {}
    for orientation, turns in TURNS.items():
        stored = upright
        for turn in turns:
            stored = stored.transpose(turn)
        files[f"{orientation}.jpg"] = jpeg(stored, orientation)
    expected = fitted(upright, (300, 220), "stretch")
    for name, found in packed(tmp_path / "it", files, image_size=(300, 220)).items():
        assert np.abs(found - expected).mean() < 4, name


def test_grayscale_is_reduced_too(tmp_path: Path) -> None:
    """One channel, close to the exact luma."""
    data = jpeg(camera(800, 800))
    (found,) = packed(tmp_path / "it", {"a.jpg": data}, image_size=100, color_mode="grayscale").values()
    image = Image.open(io.BytesIO(data))
    image.draft("L", image.size)
    assert np.abs(found - fitted(image, (100, 100), "stretch")).mean() < 3


def test_patterns_differ_by_up_to_ten_grey_levels(tmp_path: Path) -> None:
    """The hardest images for a reduction by blocks: chequers of a few pixels. Photographs differ by one to two."""
    rows, columns = np.indices((480, 640)) // 5
    checks = Image.fromarray(((rows + columns) % 2 * 255).astype(np.uint8)).convert("RGB")
    data = jpeg(checks)
    (found,) = packed(tmp_path / "it", {"a.jpg": data}, image_size=224).values()
    assert 1 < np.abs(found - fitted(Image.open(io.BytesIO(data)), (224, 224), "stretch")).mean() < 11


@pytest.mark.parametrize("size", [(4, 6), (20, 30), (7, 5)], ids=str)
@pytest.mark.parametrize(("kind", "nodata"), [("f4", -9999), ("f4", np.nan), ("u2", 65535)])
@pytest.mark.filterwarnings("error")
def test_pixels_without_data_are_in_no_mean(tmp_path: Path, size: tuple[int, int], kind: str, nodata: float) -> None:
    """As a GeoTIFF states the value, or NaN: a result is the mean of the others, or this value if most have none."""
    height = 100 + np.tile(np.arange(12.0)[:, None], (1, 15))
    height[:, :5] = nodata
    tags: Any = TiffImagePlugin.ImageFileDirectory_v2()
    tags[42113], tags.tagtype[42113] = str(nodata), 2
    file = encode(Image.fromarray(height.astype(kind)), "TIFF", tiffinfo=tags)
    (found,) = packed(tmp_path / "it", {"a.tif": file}, image_size=size, color_mode="keep").values()
    unknown = np.isnan(found) | (found == nodata)
    # The border is at a third.
    np.testing.assert_array_equal(unknown.mean(axis=0)[:, 0], (np.arange(size[1]) + 0.5) / size[1] < 1 / 3)
    plain = np.asarray(Image.fromarray(height[:, 5:].astype(np.float32)).resize((1, size[0]), BILINEAR))
    expected = np.broadcast_to(plain[..., None], found.shape)
    np.testing.assert_allclose(found[~unknown], expected[~unknown], atol=0.51 if kind == "u2" else 1e-3)
