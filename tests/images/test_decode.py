"""Decoding held against Pillow: colours, orientation, sizes, broken files, threads."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from colabstage.errors import DecodeError
from colabstage.images.decode import decode_image, decode_image_into, probe_image
from colabstage.images.geometry import ImageOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.images.geometry import ColorMode, Resize

KEEP = ImageOptions(color_mode="keep")


def photograph(height: int = 61, width: int = 83, seed: int = 0) -> Image.Image:
    """A smooth colourful picture with some noise, so that subsampling and filters have something to do."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    fine = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    return Image.fromarray(np.clip(fine + rng.integers(-9, 10, fine.shape), 0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def exif(orientation: int) -> bytes:
    block = Image.Exif()
    block[0x0112] = orientation
    return block.tobytes()


def by_pillow(data: bytes, mode: str = "RGB") -> NDArray[Any]:
    pixels = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert(mode))
    return pixels[..., None] if pixels.ndim == 2 else pixels


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True])
def test_colour_jpeg_equals_pillow(subsampling: str, progressive: bool) -> None:
    """A colour JPEG decodes to exactly Pillow's pixels, whatever its subsampling."""
    data = encode(photograph(), "JPEG", quality=85, subsampling=subsampling, progressive=progressive)
    pixels = decode_image(data, ImageOptions())
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    np.testing.assert_array_equal(pixels, by_pillow(data))


def test_gray_jpeg_becomes_any_colour_mode() -> None:
    """A grayscale JPEG gives one channel kept or gray, three equal ones as RGB."""
    data = encode(photograph().convert("L"), "JPEG")
    np.testing.assert_array_equal(decode_image(data, KEEP), by_pillow(data, "L"))
    np.testing.assert_array_equal(decode_image(data, ImageOptions(color_mode="grayscale")), by_pillow(data, "L"))
    np.testing.assert_array_equal(decode_image(data, ImageOptions()), by_pillow(data))


def test_grayscale_of_a_colour_jpeg_is_its_stored_luma() -> None:
    """The luma is taken as stored: what Pillow gives after draft, and within rounding of its weights."""
    data = encode(photograph(), "JPEG", quality=95)
    drafted = Image.open(io.BytesIO(data))
    drafted.draft("L", drafted.size)
    pixels = decode_image(data, ImageOptions(color_mode="grayscale"))
    np.testing.assert_array_equal(pixels[..., 0], np.asarray(drafted))
    assert np.abs(pixels.astype(int) - by_pillow(data, "L").astype(int)).mean() < 1


def test_cmyk_jpeg_goes_through_pillow() -> None:
    """CMYK, which simplejpeg does not do for every subsampling, still decodes."""
    data = encode(photograph().convert("CMYK"), "JPEG")
    np.testing.assert_array_equal(decode_image(data, ImageOptions()), by_pillow(data))
    assert probe_image(data).channels == decode_image(data, KEEP).shape[2] == 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    """Each of the eight orientations comes out upright, and the probe foretells the size."""
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(photograph(), kind, exif=exif(orientation), **options)
    pixels = decode_image(data, ImageOptions())
    np.testing.assert_array_equal(pixels, by_pillow(data))
    assert pixels.shape == ((83, 61, 3) if orientation >= 5 else (61, 83, 3))
    facts = probe_image(data)
    assert (facts.height, facts.width, facts.channels, facts.format) == (*pixels.shape, kind)


def xmp(orientation: int) -> bytes:
    return b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>' % orientation


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


@given(
    kind=st.sampled_from(["JPEG", "PNG", "TIFF", "WEBP"]),
    said=st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)),
    behind=st.booleans(),
    long=st.booleans(),
)
def test_all_that_turns_an_image_in_pillow_is_foretold(
    kind: str, said: tuple[int | None, int | None], *, behind: bool, long: bool
) -> None:
    """EXIF and XMP, before or behind the pixels: as Pillow turns it, and of the size that the header's reader says."""
    block, packet = None if said[0] is None else exif(said[0]), None if said[1] is None else xmp(said[1])
    if block is not None and long:
        order = "<" if block[6:8] == b"II" else ">"
        block = block.replace(struct.pack(order + "HHI", 0x0112, 3, 1), struct.pack(order + "HHI", 0x0112, 4, 1))
        block = block.replace(struct.pack(order + "HH", said[0] or 0, 0), struct.pack(order + "I", said[0] or 0))
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    if kind == "PNG":
        chunks = b"" if block is None else png_chunk(b"eXIf", block[6:])
        chunks += b"" if packet is None else png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + packet)
        plain = encode(photograph(), kind)
        place = len(plain) - 12 if behind else 33
        data = plain[:place] + chunks + plain[place:]
    elif kind == "TIFF":
        tags = {tag: value for tag, value in ((274, said[0]), (700, packet)) if value}
        data = encode(photograph(), kind, tiffinfo=tags)
    else:
        options |= {} if block is None else {"exif": block}
        options |= {} if packet is None else {"xmp": packet}
        data = encode(photograph(), kind, **options)
    pixels, facts = decode_image(data, ImageOptions()), probe_image(data)
    np.testing.assert_array_equal(pixels, by_pillow(data))
    assert (facts.height, facts.width) == pixels.shape[:2]
    small = decode_image(data, ImageOptions(size=(9, 8)))
    assert small.shape == (9, 8, 3)


@pytest.mark.parametrize("kind", ["WEBP", "TIFF", "PNG", "JPEG"])
def test_an_odd_exif_block_spoils_no_image(kind: str) -> None:
    """Whatever else is wrong in EXIF, the image is read, and its orientation where that stands."""
    block = Image.Exif()
    block[0x0112] = 6
    block[0x8769] = {0x9000: b"0232"}
    odd = block.tobytes()
    # The part that 0x8769 points to lies outside.
    order = "<" if odd[6:8] == b"II" else ">"
    place = odd.index(struct.pack(order + "HHI", 0x8769, 4, 1)) + 8
    odd = odd[:place] + b"\xff\xff\xff\x7f" + odd[place + 4 :]
    plain = encode(photograph(), kind, **({"lossless": True} if kind == "WEBP" else {}))
    if kind == "TIFF":
        data = encode(photograph(), kind, tiffinfo={274: 6, 0x8769: 1 << 30})
    else:
        data = encode(photograph(), kind, exif=odd, **({"lossless": True} if kind == "WEBP" else {}))
    facts = probe_image(data)
    assert (facts.height, facts.width) == (83, 61)
    expected = np.rot90(decode_image(plain, ImageOptions()), -1)
    np.testing.assert_array_equal(decode_image(data, ImageOptions()), expected)


@pytest.mark.parametrize(
    ("mode", "kind", "channels"),
    [
        ("1", "PNG", 1),
        ("L", "PNG", 1),
        ("P", "PNG", 3),
        ("P", "GIF", 3),
        ("LA", "PNG", 4),
        ("RGB", "PNG", 3),
        ("RGB", "BMP", 3),
        ("RGBA", "PNG", 4),
        ("CMYK", "TIFF", 3),
    ],
)
def test_kept_colours_and_their_conversions(mode: str, kind: str, channels: int) -> None:
    """Whatever the file's mode, keep gives 1, 3 or 4 channels as probed, and the others what Pillow's convert gives."""
    data = encode(photograph().convert(mode), kind)
    kept = decode_image(data, KEEP)
    facts = probe_image(data)
    assert kept.shape == (61, 83, channels) == (facts.height, facts.width, facts.channels)
    assert kept.dtype == facts.dtype == np.uint8
    np.testing.assert_array_equal(kept, by_pillow(data, {1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    np.testing.assert_array_equal(decode_image(data, ImageOptions()), by_pillow(data))
    np.testing.assert_array_equal(decode_image(data, ImageOptions(color_mode="grayscale")), by_pillow(data, "L"))


def test_transparent_palette_keeps_its_alpha() -> None:
    """A palette with a transparent entry is four channels when kept, three as RGB."""
    data = encode(photograph().quantize(16), "PNG", transparency=3)
    assert decode_image(data, KEEP).shape[2] == probe_image(data).channels == 4
    assert decode_image(data, ImageOptions()).shape[2] == 3


def test_sixteen_bit_gray() -> None:
    """16 bits stay 16 when kept, and lose the lower 8 otherwise instead of being clipped to white."""
    values = np.arange(48, dtype=np.uint16).reshape(6, 8) * 1365
    data = encode(Image.fromarray(values), "PNG")
    kept = decode_image(data, KEEP)
    assert kept.dtype == probe_image(data).dtype == np.uint16
    np.testing.assert_array_equal(kept[..., 0], values)
    np.testing.assert_array_equal(decode_image(data, ImageOptions())[..., 1], values >> 8)
    np.testing.assert_array_equal(decode_image(data, ImageOptions(color_mode="grayscale"))[..., 0], values >> 8)
    halved = decode_image(data, ImageOptions(size=(3, 4), color_mode="keep"))
    assert halved.dtype == np.uint16
    assert halved.max() > 255


def test_floating_point_gray() -> None:
    """Float TIFFs come as float32 when kept, and are refused as 8 bits."""
    values = np.linspace(-2, 2, 48, dtype=np.float32).reshape(6, 8)
    data = encode(Image.fromarray(values), "TIFF")
    kept = decode_image(data, KEEP)
    assert kept.dtype == probe_image(data).dtype == np.float32
    np.testing.assert_array_equal(kept[..., 0], values)
    with pytest.raises(DecodeError, match="keep"):
        decode_image(data, ImageOptions())


def test_animation_gives_its_first_frame() -> None:
    """Of an animated GIF the first frame is the image."""
    frames = [photograph(seed=seed) for seed in range(3)]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode_image(data, ImageOptions()), by_pillow(data))


@pytest.mark.parametrize("target", [(32, 32), (40, 100), (120, 160)])
def test_stretch_equals_pillow_resize(target: tuple[int, int]) -> None:
    """Stretching is Pillow's antialiased bilinear resize."""
    data = encode(photograph(), "PNG")
    expected = photograph().resize((target[1], target[0]), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(decode_image(data, ImageOptions(size=target)), np.asarray(expected))


def test_crop_equals_pillow_fit() -> None:
    """Cropping is Pillow's ImageOps.fit."""
    data = encode(photograph(), "PNG")
    expected = ImageOps.fit(photograph(), (32, 32), Image.Resampling.BILINEAR)
    actual = decode_image(data, ImageOptions(size=(32, 32), resize="crop"))
    np.testing.assert_array_equal(actual, np.asarray(expected))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_pad_centres_the_whole_image_on_black(mode: str) -> None:
    """Padding scales the whole image to fit and leaves the rest 0."""
    data = encode(photograph(50, 100).convert(mode), "PNG")
    pixels = decode_image(data, ImageOptions(size=(64, 64), color_mode="keep", resize="pad"))
    expected = np.asarray(photograph(50, 100).convert(mode).resize((64, 32), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(pixels[16:48], expected.reshape(32, 64, -1))
    assert not pixels[:16].any()
    assert not pixels[48:].any()


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
@pytest.mark.parametrize("color_mode", ["rgb", "grayscale", "keep"])
def test_result_has_the_asked_shape(resize: Resize, color_mode: ColorMode) -> None:
    """Every combination of options gives a contiguous array of the size asked for, also of a one-pixel source."""
    for image in (photograph(), photograph(1, 300), photograph(1, 1)):
        pixels = decode_image(encode(image, "PNG"), ImageOptions((20, 30), color_mode, resize))
        assert pixels.shape == (20, 30, 1 if color_mode == "grayscale" else 3)
        assert pixels.flags.c_contiguous


def test_decode_into_a_slot_of_a_batch() -> None:
    """Decoding into a batch fills exactly the slot."""
    batch = np.full((3, 61, 83, 3), 7, np.uint8)
    data = encode(photograph(), "JPEG")
    decode_image_into(data, ImageOptions(), batch[1])
    np.testing.assert_array_equal(batch[1], decode_image(data, ImageOptions()))
    assert (batch[[0, 2]] == 7).all()


def test_decode_into_a_wrong_slot_is_refused() -> None:
    """An image that does not fit its slot is an error with both shapes, and the slot stays as it was."""
    slot = np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(DecodeError, match=r"61 x 83 x 3 .* 8 x 8 x 3 "):
        decode_image_into(encode(photograph(), "PNG"), ImageOptions(), slot)
    assert not slot.any()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "TIFF"])
@pytest.mark.parametrize("part", [0.02, 0.5, 0.9])
def test_truncated_file_is_refused(kind: str, part: float) -> None:
    """A file that ends early is an error, never an image with a gray rest."""
    data = encode(photograph(), kind)
    with pytest.raises(DecodeError):
        decode_image(data[: int(len(data) * part)], ImageOptions())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><title>Sign in</title>", "web page"),
        (b"\xff\xd8\xff", "JPEG header"),
        (b"PK\x03\x04 certainly no image", "50 4b 03 04"),
    ],
)
def test_what_is_no_image_is_named(data: bytes, reason: str) -> None:
    """The error says what the bytes seem to be, from both doors."""
    for attempt in (lambda: decode_image(data, ImageOptions()), lambda: probe_image(data)):
        with pytest.raises(DecodeError, match=reason):
            attempt()


def test_jpeg_with_stray_bytes_is_forgiven() -> None:
    """Bytes between two markers, which viewers skip, do not cost the image."""
    data = encode(photograph(), "JPEG")
    stray = data[:-2] + b"\0\0\0" + data[-2:]
    np.testing.assert_array_equal(decode_image(stray, ImageOptions()), decode_image(data, ImageOptions()))


def png_of_size(width: int, height: int) -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_decompression_bombs_are_refused_from_the_header() -> None:
    """A header that promises too many pixels is refused before memory is taken, for JPEG and for other formats."""
    jpeg = bytearray(encode(photograph(), "JPEG"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 65000, 65000)
    for data in (bytes(jpeg), png_of_size(30_000, 30_000)):
        with pytest.raises(DecodeError, match="pixel"):
            decode_image(data, ImageOptions())
        with pytest.raises(DecodeError, match="pixel"):
            probe_image(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_damaged_bytes_give_an_image_or_a_decode_error(kind: str) -> None:
    """Whatever bytes are flipped, nothing but DecodeError comes out."""
    whole = encode(photograph(20, 24), kind)
    rng = random.Random(4)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(DecodeError):
            assert decode_image(bytes(data), ImageOptions((8, 8))).shape == (8, 8, 3)
        with contextlib.suppress(DecodeError):
            assert probe_image(bytes(data)).height > 0


def test_many_threads_decode_alike() -> None:
    """Eight threads over mixed formats give what one thread gives."""
    files = [encode(photograph(seed=seed), kind) for seed in range(6) for kind in ("JPEG", "PNG", "WEBP")]
    options = ImageOptions((40, 40), resize="crop")
    alone = [decode_image(data, options) for data in files]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            for expected, actual in zip(alone, pool.map(lambda data: decode_image(data, options), files), strict=True):
                np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("kind", ["GIF", "AVIF", "JPEG2000"])
def test_formats_that_torchvision_passes_over(kind: str) -> None:
    """As Pillow reads them, where it does."""
    Image.init()
    if kind not in Image.SAVE:
        pytest.skip(f"needs a Pillow that writes {kind}: pip install -U pillow")
    data = encode(photograph(), kind)
    np.testing.assert_array_equal(decode_image(data, ImageOptions()), by_pillow(data))


def test_a_pgm_of_16_bits_is_like_a_png_of_16_bits() -> None:
    """Pillow opens it as one of 32; it stays uint16 when kept, and its upper half is 8 bits."""
    values = np.arange(48, dtype=np.uint16).reshape(6, 8) * 1365
    data = b"P5\n8 6\n65535\n" + values.astype(">u2").tobytes()
    assert probe_image(data).dtype == np.uint16
    np.testing.assert_array_equal(decode_image(data, KEEP)[..., 0], values)
    np.testing.assert_array_equal(decode_image(data, ImageOptions(color_mode="grayscale"))[..., 0], values >> 8)


def test_heic_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phones write it, and Pillow reads it only with a package of its own."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    with pytest.raises(DecodeError, match="pip install pillow-heif"):
        decode_image(b"\0\0\0\x18ftypheic" + bytes(99), ImageOptions())


def test_heic_is_what_its_package_reads() -> None:
    """Pixels and orientation; a file that is cut is damaged, and nothing needs to be installed."""
    heif = pytest.importorskip("pillow_heif", reason="needs pillow-heif: pip install pillow-heif")
    heif.register_heif_opener()
    turned = Image.Exif()
    turned[0x0112] = 6
    data = encode(photograph(), "HEIF", exif=turned.tobytes())
    np.testing.assert_array_equal(decode_image(data, ImageOptions()), np.asarray(Image.open(io.BytesIO(data))))
    with pytest.raises(DecodeError, match="no image format") as caught:
        decode_image(data[: len(data) // 2], ImageOptions())
    assert "pip install" not in str(caught.value)
