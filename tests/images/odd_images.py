"""Odd image files, made with Pillow and by hand, the same every time."""

import struct
import zlib
from collections.abc import Iterator

from PIL import Image

from tests.images.files import encode, photograph
from tests.support.images import png_chunk

_SUFFIX = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "BMP": "bmp", "TIFF": "tif"}
HEIGHT, WIDTH = 41, 53


def picture(seed: int = 0, height: int = HEIGHT, width: int = WIDTH) -> Image.Image:
    return photograph(height, width, seed)


def odd_images() -> dict[str, bytes]:
    """All of them by name. A name's prefix says what is odd."""
    parts = (_misnamed, _extreme, _jpegs)
    return {name: data for part in parts for name, data in part()}


def _misnamed() -> Iterator[tuple[str, bytes]]:
    """Another format than the extension says."""
    for kind in ("JPEG", "PNG"):
        yield f"named-{kind}.{'png' if kind == 'JPEG' else 'jpg'}", encode(picture(1), kind)


def _extreme() -> Iterator[tuple[str, bytes]]:
    """One pixel, one row, one column; and headers that promise more than fits in memory."""
    for kind in ("JPEG", "PNG", "BMP", "TIFF"):
        for height, width in ((1, 1), (1, 20_000), (20_000, 1), (2, 3)):
            yield f"size-{kind}-{height}x{width}.{_SUFFIX[kind]}", encode(picture(2, height, width), kind)
    for side in (20_000, 60_000, 2**31 - 1):
        head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        body = png_chunk(b"IHDR", head) + png_chunk(b"IDAT", zlib.compress(bytes(1000))) + png_chunk(b"IEND", b"")
        yield f"bomb-{side}.png", b"\x89PNG\r\n\x1a\n" + body
    jpeg = bytearray(encode(picture(2), "JPEG"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 65_000, 65_000)
    yield "bomb-65000.jpg", bytes(jpeg)
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 0, 100)
    yield "bomb-none.jpg", bytes(jpeg)
    yield "bomb-60000.bmp", b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 60_000, 60_000, 1, 24, *[0] * 6)


def _as_ycck(data: bytes) -> bytes:
    """A CMYK JPEG whose Adobe marker says YCCK."""
    place = data.index(b"Adobe") + 11
    return data[:place] + b"\x02" + data[place + 1 :]


def _jpegs() -> Iterator[tuple[str, bytes]]:
    """JPEG's rare features: restarts, missing tables, arithmetic coding, twelve bits, broken ICC."""
    image = picture(9)
    yield "jpeg-YCCK.jpg", _as_ycck(encode(image.convert("CMYK"), "JPEG"))
    yield "jpeg-restarts.jpg", encode(image, "JPEG", restart_marker_rows=1)
    yield "jpeg-quality-1.jpg", encode(image, "JPEG", quality=1)
    yield "jpeg-icc-broken.jpg", encode(image, "JPEG", icc_profile=b"no profile" * 50)
    yield "png-icc-broken.png", encode(image, "PNG", icc_profile=b"no profile" * 50)
    yield "jpeg-exif-broken.jpg", encode(image, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    yield "jpeg-comment.jpg", encode(image, "JPEG", comment=b"\xff\xd9\xff\xda" * 9)
    plain = encode(image, "JPEG")
    frame = plain.index(b"\xff\xc0")
    yield "jpeg-arithmetic.jpg", plain[: frame + 1] + b"\xc9" + plain[frame + 2 :]
    yield "jpeg-twelve.jpg", plain[: frame + 1] + b"\xc1" + plain[frame + 2 : frame + 4] + b"\x0c" + plain[frame + 5 :]
    yield "jpeg-lossless.jpg", plain[: frame + 1] + b"\xc3" + plain[frame + 2 :]
    tables = plain.index(b"\xff\xdb")
    yield "jpeg-no-tables.jpg", plain[:tables] + plain[frame:]
    yield "jpeg-fill.jpg", plain[:frame] + b"\xff\xff" + plain[frame:]
    yield "jpeg-stray.jpg", plain[:frame] + b"\0\0\0" + plain[frame:]
    yield "jpeg-twice.jpg", plain + plain
