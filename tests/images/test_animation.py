"""Animations are told by their structure."""

from __future__ import annotations

import io
import struct

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
@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_more_than_one_frame_is_an_animation(kind: str, count: int) -> None:
    """As Pillow counts them."""
    if kind == "WEBP" and not features.check("webp"):
        pytest.skip("needs a Pillow with WebP: pip install pillow")
    data = _frames(kind, count)
    assert is_animated(data) == (count > 1) == (getattr(Image.open(io.BytesIO(data)), "n_frames", 1) > 1)


def test_tables_of_colours_are_stepped_over() -> None:
    """A GIF's frames may each have their own."""
    assert is_animated(_frames("GIF", 3, palette=True))


def test_a_smaller_copy_is_no_page() -> None:
    """As cameras and pyramids have it; the tag says so, in either order of bytes."""
    for order, head in (("<", b"II*\0"), (">", b"MM\0*")):
        for kinds in ((0, 1), (0, 4), (1, 0), (0, 0), (0, 1, 0)):
            data = head + struct.pack(f"{order}I", 8)
            for number, kind in enumerate(kinds, 1):
                after = len(data) + 18 if number < len(kinds) else 0
                data += struct.pack(f"{order}HHHIII", 1, 254, 4, 1, kind, after)
            assert is_animated(data) == (kinds.count(0) > 1)


def test_pages_that_lead_in_a_circle_have_an_end() -> None:
    """All of them smaller copies, the last followed by the first."""
    assert not is_animated(b"II*\0" + struct.pack("<IHHHIII", 8, 1, 254, 4, 1, 1, 8))


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_a_cut_file_is_no_error(kind: str) -> None:
    """Wherever it ends: it is an animation from some byte on."""
    data = _frames(kind, 3)
    found = [is_animated(data[:end]) for end in range(len(data) + 1)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (False, True)


def test_other_formats_are_none() -> None:
    """A photograph, a web page, nothing."""
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "JPEG")
    for data in (buffer.getvalue(), b"<html>", b""):
        assert not is_animated(data)
