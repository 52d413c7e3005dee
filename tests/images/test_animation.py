"""Further frames and pages of an image are noticed when its first is decoded, or its header read."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from colabstage.images.complete import check_complete
from colabstage.images.decode import decode_sized
from colabstage.images.geometry import ImageOptions


def _frames(kind: str, count: int) -> bytes:
    rng = np.random.default_rng(count)
    frames = [Image.fromarray(rng.integers(0, 256, (12, 17, 3), dtype=np.uint8)) for _ in range(count)]
    buffer = io.BytesIO()
    frames[0].save(buffer, kind, save_all=True, append_images=frames[1:])
    return buffer.getvalue()


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "MPO"])
def test_more_than_one_frame_is_an_animation(kind: str, count: int) -> None:
    """As Pillow counts them; but the second picture of a photograph is a preview. The first frame is the image."""
    data = _frames(kind, count)
    found = decode_sized(data, ImageOptions())
    assert found.animated == check_complete(data).animated == (count > 1 and kind != "MPO")
    np.testing.assert_array_equal(found.pixels, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
