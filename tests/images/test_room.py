"""Huge images are decoded one at a time, ordinary ones as usual."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from colabstage.images.decode import PixelRoom, Scratch


def encoded(kind: str, width: int, height: int, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new("L" if kind == "GIF" else "RGB", (width, height)).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("JPEG", {})])
def test_huge_images_of_every_format_take_turns(kind: str, options: dict[str, object]) -> None:
    """According to their headers; small ones, and cut or invalid files, wait for nothing."""
    room = PixelRoom(9_000_000)
    data = encoded(kind, 3_100, 3_000, **options)
    if kind == "JPEG":
        data += bytes(512 * 1024)
    others = encoded(kind, 30, 20, **options), data[:9], b"<html>", None
    entered = threading.Event()

    def decode() -> None:
        with room.room_for(data):
            entered.set()

    second = threading.Thread(target=decode)
    with room.room_for(data):
        for other in others:
            with room.room_for(other):
                pass
        second.start()
        assert not entered.wait(0.2)
    assert entered.wait(20)
    second.join()


def test_huge_images_take_turns() -> None:
    """Never more pixels at once than there is room for, except for a single larger image."""
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
