"""Huge images are decoded one at a time, ordinary ones as ever."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from colabstage.images.decode import PixelRoom, Scratch
from colabstage.images.headers import count_pixels


def encoded(kind: str, width: int, height: int, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new("L" if kind == "GIF" else "RGB", (width, height)).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("GIF", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"}),
    ],
    ids=["png", "gif", "webp", "lossless", "extended"],
)
def test_pixels_are_counted_by_the_header(kind: str, options: dict[str, object]) -> None:
    """Without decoding; what is cut, wherever, has no more than the whole, or than its bytes."""
    data = encoded(kind, 301, 207, **options)
    assert {count_pixels(data[:end]) for end in range(40, len(data) + 1)} == {301 * 207}
    assert all(count_pixels(data[:end]) <= max(end, 301 * 207) for end in range(40))


def test_a_large_jpeg_is_looked_at_and_a_small_one_is_not() -> None:
    """A small one has few pixels in any case."""
    noise = np.random.default_rng(0).integers(0, 256, (900, 1000, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "JPEG", quality=95)
    assert count_pixels(buffer.getvalue()) == 900_000
    assert count_pixels(encoded("JPEG", 100, 80)) == 0


def test_huge_images_take_turns() -> None:
    """Never more pixels at once than there is room for, but for one that is larger alone."""
    room, lock, running, most = PixelRoom(60_000_000), threading.Lock(), 0, 0
    sizes = [(5_000, 5_000)] * 6 + [(10_000, 9_000)] * 2
    images = [
        encoded("PNG", 1, 1)[:16] + width.to_bytes(4, "big") + height.to_bytes(4, "big") for width, height in sizes
    ]
    both = threading.Barrier(2, timeout=20)

    def decode(number: int) -> None:
        nonlocal running, most
        pixels = sizes[number][0] * sizes[number][1]
        with room.room_for(images[number]):
            with lock:
                running += pixels
                most = max(most, running)
                assert running <= 60_000_000 or running == pixels
            if number < 2:
                both.wait()  # two of these fit
            with lock:
                running -= pixels

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(decode, range(len(sizes))))
    assert most == 90_000_000


def test_memory_of_a_huge_image_is_not_kept() -> None:
    """That of ordinary ones is."""
    scratch = Scratch(bytearray(1_000))
    scratch.forget_huge()
    assert len(scratch.decoded) == 1_000
    scratch.decoded = bytearray(257 * 1024 * 1024)
    scratch.forget_huge()
    assert len(scratch.decoded) == 0
