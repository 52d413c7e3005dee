"""A cut-off image file is told from a whole one, in every format and wherever the cut is."""

from __future__ import annotations

import io
import random
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from colabstage.errors import DecodeError
from colabstage.images import decode
from colabstage.images.decode import check_complete, decode_image
from colabstage.images.geometry import ImageOptions

if TYPE_CHECKING:
    from collections.abc import Callable


def _picture(width: int = 96, height: int = 64) -> Image.Image:
    return Image.effect_noise((width, height), 60).convert("RGB")


def _encoded(kind: str, **how: object) -> bytes:
    buffer = io.BytesIO()
    _picture().save(buffer, kind, **how)
    return buffer.getvalue()


def _passes(check: Callable[[bytes], object], data: bytes) -> bool:
    try:
        check(data)
    except DecodeError:
        return False
    return True


WHOLE = {
    "jpeg": _encoded("JPEG"),
    "progressive jpeg": _encoded("JPEG", progressive=True),
    "png": _encoded("PNG"),
    "gif": _encoded("GIF"),
    "webp": _encoded("WEBP"),
    "lossless webp": _encoded("WEBP", lossless=True),
    "bmp": _encoded("BMP"),
    "tiff": _encoded("TIFF"),
    "ppm": _encoded("PPM"),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_whole_file_passes(kind: str) -> None:
    """Nothing whole is refused."""
    check_complete(WHOLE[kind])


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.95])
def test_a_cut_off_file_is_refused(kind: str, kept: float) -> None:
    """A file that ends early is refused, whether its header or its pixels are cut."""
    data = WHOLE[kind]
    with pytest.raises(DecodeError):
        check_complete(data[: int(len(data) * kept)])


@pytest.mark.parametrize("junk", [b"\0" * 9000, b"a note that an editor left " * 400], ids=["zeros", "text"])
@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_bytes_behind_the_end_do_not_matter(kind: str, junk: bytes) -> None:
    """Padding and comments after the picture's end are common, however long they are."""
    check_complete(WHOLE[kind] + junk)


def _with_thumbnail() -> bytes:
    """A JPEG whose header holds a whole smaller JPEG, end mark included, as cameras write it."""
    buffer = io.BytesIO()
    _picture(16, 16).save(buffer, "JPEG")
    segment = b"Exif\0\0" + buffer.getvalue()
    whole = WHOLE["jpeg"]
    return whole[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + whole[2:]


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_picture() -> None:
    """A cut anywhere behind a camera's thumbnail is found, although the thumbnail's own end mark is there."""
    data = _with_thumbnail()
    check_complete(data)
    scan = data.rfind(b"\xff\xda")
    for end in (scan - 20, scan + 2, scan + 40, len(data) - 200):
        with pytest.raises(DecodeError):
            check_complete(data[:end])


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("missing", [1, 2, 5, 13])
def test_what_lacks_only_its_last_bytes_passes_just_when_it_decodes(kind: str, missing: int) -> None:
    """Without its mark a file may still hold every pixel; whoever decodes it later decides."""
    data = WHOLE[kind][:-missing]
    assert _passes(check_complete, data) == _passes(lambda cut: decode_image(cut, ImageOptions()), data)


@pytest.mark.parametrize(
    "how",
    [{}, {"restart_marker_blocks": 3}, {"quality": 98}, {"progressive": True}],
    ids=["plain", "restarts", "fine", "progressive"],
)
def test_every_bit_of_a_jpegs_header_is_judged_as_its_reader_does(how: dict[str, int]) -> None:
    """A header is tried without the codes behind it; damaged codes leave the last word to the more patient reader."""
    sound = _encoded("JPEG", **how)
    start = sound.index(b"\xff\xda") + 14
    damaged = bytearray(sound)
    damaged[start + 20 : start + 40] = b"\x5a" * 20
    outcomes = set()
    for bit in range(16, start * 8, 7):
        data = bytearray(damaged)
        data[bit // 8] ^= 1 << bit % 8
        passes = _passes(check_complete, bytes(data))
        assert passes == _passes(lambda whole: decode_image(whole, ImageOptions(color_mode="keep")), bytes(data)), bit
        outcomes.add(passes)
    assert outcomes == {True, False}


@pytest.mark.parametrize("marker", range(0xC0, 0x100))
def test_a_marker_among_the_codes_is_judged_as_the_reader_does(marker: int) -> None:
    """A stray marker ends the codes early, and what follows it may be read as tables of any content."""
    data = bytearray(WHOLE["jpeg"])
    data[-1500:-1498] = bytes((0xFF, marker))
    assert _passes(check_complete, bytes(data)) == _passes(
        lambda whole: decode_image(whole, ImageOptions(color_mode="keep")), bytes(data)
    )


@pytest.mark.parametrize("restarts", [False, True])
def test_the_end_of_codes_is_the_first_marker_wherever_it_is(monkeypatch: pytest.MonkeyPatch, restarts: bool) -> None:
    """The search by parts finds what a search in one piece finds, also where a marker is in two parts."""
    monkeypatch.setattr(decode, "_LOOK_BYTES", 16)
    marker = re.compile(rb"\xff[^\x00\xd0-\xd7]" if restarts else rb"\xff[^\x00]")
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 16, 17, 18, *rng.integers(3, 200, 300)):
        # Few values, so that these markers are common.
        data = rng.choice(np.array([0, 1, 0xD3, 0xD9, 0xFF], np.uint8), size, p=[0.3, 0.5, 0.05, 0.05, 0.1]).tobytes()
        found = marker.search(data, 3)
        end = len(data) if found is None else found.start()
        assert decode._end_of_codes(data, 3, restarts=restarts) == end


@pytest.mark.parametrize("data", [b"", b"\0" * 500, b"<html>quota exceeded</html>", b"plain text"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    """Empty files, zeros and pages saved as images are no images."""
    with pytest.raises(DecodeError):
        check_complete(data)


def test_the_codes_of_many_scans_are_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes ten times as long as to look through them; damaged ones come as grey blocks, as those of one scan."""
    monkeypatch.setattr(decode, "decode_image", pytest.fail)
    whole = bytearray(WHOLE["progressive jpeg"])
    check_complete(bytes(whole))
    whole[-300:-200] = b"\x5a" * 100
    check_complete(bytes(whole))


@pytest.mark.parametrize("kind", ["JPEG", "restarts", "progressive", "PNG", "WEBP", "BMP", "TIFF"])
def test_what_passes_can_be_decoded_and_what_can_be_passes(kind: str) -> None:
    """Of files with bytes scrambled, blanked, or cut out, exactly those pass that their reader can decode."""
    rng = random.Random(kind)
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((120, 90), Image.Resampling.BICUBIC)
    options: dict[str, dict[str, Any]] = {
        "progressive": {"progressive": True},
        "restarts": {"restart_marker_blocks": 5},
    }
    image.save(buffer, "JPEG" if kind in options else kind, **options.get(kind, {}))
    sound = buffer.getvalue()
    outcomes = set()
    for _ in range(60):
        data, place = bytearray(sound), rng.randrange(len(sound))
        change = rng.choice(["byte", "zeros", "cut"])
        if change == "byte":
            data[place] ^= rng.randrange(1, 256)
        elif change == "zeros":
            data[place : place + 64] = bytes(len(data[place : place + 64]))
        else:
            del data[place : place + rng.randrange(1, 200)]
        passes = decodes = True
        try:
            check_complete(bytes(data))
        except DecodeError:
            passes = False
        try:
            decode_image(bytes(data), ImageOptions(color_mode="keep"))
        except DecodeError:
            decodes = False
        assert passes == decodes, (change, place)
        outcomes.add(passes)
    assert kind == "BMP" or False in outcomes
