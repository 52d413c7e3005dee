"""Parts of image files: the same pixels as out of the whole image, with less of the file decoded."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from colabstage.errors import DecodeError
from colabstage.images.decode import decode_image, decode_region
from colabstage.images.geometry import ImageOptions
from colabstage.images.headers import first_rows, read_jpeg_header

HEIGHT, WIDTH = 203, 301
CROPS = [(0, 0, 40, 50), (10, 20, 64, 96), (31, 7, 1, 200), (90, 100, 100, 150), (150, 0, 53, 301), (0, 0, 203, 301)]


def photograph(kind: str = "JPEG", *, detail: int = 40, **saved: Any) -> bytes:
    """An image with so many different patches from top to bottom."""
    coarse = np.random.default_rng(5).integers(0, 256, (detail, detail, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(buffer, kind, **saved)
    return buffer.getvalue()


def turned(orientation: int) -> Image.Exif:
    """The EXIF block that says so."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("color_mode", ["rgb", "grayscale"])
@pytest.mark.parametrize("further", [{}, {"progressive": True}, {"restart_marker_rows": 1}])
def test_a_part_is_that_of_the_whole_image(subsampling: str, color_mode: str, further: dict[str, Any]) -> None:
    """Byte for byte, however the file is coded, where nothing is reduced."""
    data = photograph(quality=90, subsampling=subsampling, **further)
    whole = decode_image(data, ImageOptions(color_mode=color_mode))  # type: ignore[arg-type]  # from parametrize
    scratch = bytearray(HEIGHT * WIDTH * 3)
    for top, left, height, width in CROPS:
        part = decode_region(data, color_mode, (top, left, height, width), (224, 224), scratch=scratch)  # type: ignore[arg-type]  # from parametrize
        np.testing.assert_array_equal(part, whole[top : top + height, left : left + width])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_part_counts_in_the_upright_image(orientation: int) -> None:
    """Whatever part of the stored image that is."""
    data = photograph(quality=90, exif=turned(orientation))
    whole = decode_image(data, ImageOptions())
    for top, left, height, width in ((0, 0, 60, 50), (70, 90, 100, 80), (3, 0, 200, 40)):
        part = decode_region(data, "rgb", (top, left, height, width), (224, 224))
        np.testing.assert_array_equal(part, whole[top : top + height, left : left + width])


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_part_that_shrinks_is_reduced(orientation: int, factor: int) -> None:
    """Each pixel is near the mean of a block."""
    data = photograph(detail=6, quality=95, exif=turned(orientation))
    whole = decode_image(data, ImageOptions())
    top, left, side = 16, 32, 128
    part = decode_region(data, "rgb", (top, left, side, side), (side // factor, side // factor))
    blocks = whole[top : top + side, left : left + side].reshape(side // factor, factor, side // factor, factor, 3)
    assert part.shape == (side // factor, side // factor, 3)
    # The blocks of an image that is turned begin at its other end, up to half a block beside.
    assert np.abs(part - blocks.mean(axis=(1, 3))).mean() < (2 if orientation == 1 else 7)


def test_a_decoder_stops_where_the_header_says() -> None:
    """A file is said to end after its first rows, which come out as they are."""
    data = photograph(quality=90, subsampling="4:2:0")
    short = first_rows(data, read_jpeg_header(data), 64)
    assert short is not None
    assert read_jpeg_header(bytes(short)).height == 64
    pixels = np.asarray(Image.open(io.BytesIO(bytes(short))))
    np.testing.assert_array_equal(pixels[:63], np.asarray(Image.open(io.BytesIO(data)))[:63])


def test_a_file_whose_rows_do_not_follow_each_other_is_not_shortened() -> None:
    """Progressive files, and files without an end, are decoded as they are."""
    data, progressive = photograph(quality=90), photograph(quality=90, progressive=True)
    assert first_rows(progressive, read_jpeg_header(progressive), 64) is None
    for ending in (data[:-1], data + b"more", data[:-2]):
        assert first_rows(ending, read_jpeg_header(ending), 64) is None


def test_a_file_that_is_cut_off_is_an_error_even_above_the_cut() -> None:
    """A part whose rows are all there is not taken out of a file that lost its end."""
    data = photograph(quality=90)
    with pytest.raises(DecodeError, match="truncated"):
        decode_region(data[: len(data) * 3 // 4], "rgb", (0, 0, 30, 30), (30, 30))


def test_other_formats_are_cut() -> None:
    """What is no JPEG is decoded whole."""
    data = photograph("PNG")
    part = decode_region(data, "rgb", (10, 20, 30, 40), (8, 8))
    np.testing.assert_array_equal(part, decode_image(data, ImageOptions())[10:40, 20:60])
