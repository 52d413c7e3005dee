"""Animations are told by their structure."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, features

from colabstage.images.headers import is_animated


def _frames(kind: str, count: int, *, palette: bool = False) -> bytes:
    rng = np.random.default_rng(count)
    frames = [Image.fromarray(rng.integers(0, 256, (12, 17, 3), dtype=np.uint8)) for _ in range(count)]
    if palette:
        frames = [frame.quantize(16) for frame in frames]
    buffer = io.BytesIO()
    frames[0].save(buffer, kind, save_all=True, append_images=frames[1:])
    return buffer.getvalue()


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_more_than_one_frame_is_an_animation(kind: str, count: int) -> None:
    """As Pillow counts them."""
    if kind == "WEBP" and not features.check("webp"):
        pytest.skip("needs a Pillow with WebP: pip install pillow")
    data = _frames(kind, count)
    assert is_animated(data) == (count > 1) == (getattr(Image.open(io.BytesIO(data)), "n_frames", 1) > 1)


def test_tables_of_colours_are_stepped_over() -> None:
    """A GIF's frames may each have their own."""
    assert is_animated(_frames("GIF", 3, palette=True))


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_a_cut_file_is_no_error(kind: str) -> None:
    """Wherever it ends."""
    data = _frames(kind, 3)
    for end in range(0, len(data), 7):
        assert is_animated(data[:end]) in (True, False)


def test_other_formats_are_none() -> None:
    """A photograph, a web page, nothing."""
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "JPEG")
    for data in (buffer.getvalue(), b"<html>", b""):
        assert not is_animated(data)
