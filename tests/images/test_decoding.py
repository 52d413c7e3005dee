"""Images of every kind come out of a pack as Pillow reads their files; cut or damaged ones are refused."""

import io
import random
import re
import struct
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image, ImageOps

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import DecodeError
from tests.images.files import by_pillow, encode, exif, noise, packed, packed_or_skipped, photograph
from tests.images.odd_images import odd_images
from tests.support.images import png_chunk
from tests.support.made_files import tiff16, write_files

Image.init()
UPRIGHT, LYING = photograph(), photograph(83, 61)
RISING = np.arange(61 * 83, dtype=np.uint16).reshape(61, 83) * 12
FRAMES = [photograph(seed=seed) for seed in range(3)]
COLOURS = {
    **{
        f"{subsampling.replace(':', '')}{progressive}.jpg": encode(
            UPRIGHT, "JPEG", quality=85, subsampling=subsampling, progressive=progressive
        )
        for subsampling in ("4:4:4", "4:2:2", "4:2:0")
        for progressive in (False, True)
    },
    "cmyk.jpg": encode(UPRIGHT.convert("CMYK"), "JPEG"),
    **{
        f"{kind}{turn}.{kind[:4].lower()}": encode(LYING if turn >= 5 else UPRIGHT, kind, exif=exif(turn))
        for kind in ("JPEG", "PNG", "TIFF", "WEBP")
        for turn in range(1, 9)
    },
    "palette.png": encode(UPRIGHT.convert("P"), "PNG"),
    "palette.gif": encode(UPRIGHT.convert("P"), "GIF"),
    "animation.gif": encode(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]),
    "cmyk.tif": encode(UPRIGHT.convert("CMYK"), "TIFF"),
    "colours.bmp": encode(UPRIGHT, "BMP"),
    "stray.jpg": encode(UPRIGHT, "JPEG")[:-2] + b"\0\0\0\xff\xd9",
    **{
        f"{kind}.{end}": encode(UPRIGHT, kind)
        for kind, end in (("AVIF", "avif"), ("JPEG2000", "jp2"))
        if kind in Image.SAVE
    },
}  # fmt: skip
GREYS = {
    "grey.jpg": encode(UPRIGHT.convert("L"), "JPEG"),
    "grey.png": encode(UPRIGHT.convert("L"), "PNG"),
    "bits.png": encode(UPRIGHT.convert("1"), "PNG"),
}
ALPHAS = {
    "alpha.png": encode(UPRIGHT.convert("RGBA"), "PNG"),
    "grey alpha.png": encode(UPRIGHT.convert("LA"), "PNG"),
    "transparent.png": encode(UPRIGHT.quantize(16), "PNG", transparency=3),
}
DEEP = {
    "deep.png": encode(Image.fromarray(RISING), "PNG"),
    "deep.pgm": b"P5\n83 61\n65535\n" + RISING.astype(">u2").tobytes(),
}
# The values of twelve bits, of which the file says that they are.
TWELVE = (RISING >> 4).astype(np.uint16)
OF_TWELVE = {
    "twelve.pgm": b"P5\n83 61\n4095\n" + TWELVE.astype(">u2").tobytes(),
    "plain.pgm": b"P2 83 61 4095\n" + " ".join(map(str, TWELVE.ravel().tolist())).encode(),
}
EVERY = COLOURS | GREYS | ALPHAS | DEEP


def by_pillow16(content: bytes) -> Any:
    """The upper 8 of the 16 bits that Pillow makes of them, in three channels."""
    grey = (np.asarray(Image.open(io.BytesIO(content))) >> 8).astype(np.uint8)[..., None]
    return np.repeat(grey, 3, 2)


def expected(name: str, mode: str) -> Any:
    """Pillow's version; of 16 bits the upper 8, and for a colour JPEG in grey its stored brightness."""
    if name in DEEP:
        return by_pillow16(EVERY[name])[..., : 1 if mode == "L" else 3]
    image = Image.open(io.BytesIO(EVERY[name]))
    if mode == "L" and image.format == "JPEG" and image.mode == "RGB":
        image.draft("L", image.size)
        return by_pillow(encode(image, "PNG", exif=image.getexif().tobytes()), "L")
    return by_pillow(EVERY[name], mode)


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
@pytest.mark.parametrize(("color_mode", "mode"), [("rgb", "RGB"), ("grayscale", "L")])
def test_images_are_as_pillow_reads_them(tmp_path: Path, encoding: str, color_mode: str, mode: str) -> None:
    """Byte for byte, upright, with any encoding."""
    found = packed(tmp_path / "it", EVERY, encoding=encoding, color_mode=color_mode)
    assert found.keys() == EVERY.keys()
    for name, pixels in found.items():
        np.testing.assert_array_equal(pixels, expected(name, mode), err_msg=name)


@pytest.mark.parametrize(("files", "mode"), [(COLOURS, "RGB"), (GREYS, "L"), (ALPHAS, "RGBA")], ids=["3", "1", "4"])
def test_kept_colours_have_the_channels_of_the_file(tmp_path: Path, files: dict[str, bytes], mode: str) -> None:
    """As Pillow's convert returns them."""
    for name, pixels in packed(tmp_path / "it", files, encoding="pixels", color_mode="keep").items():
        np.testing.assert_array_equal(pixels, by_pillow(files[name], mode), err_msg=name)


def test_more_than_8_bits_stay_when_kept(tmp_path: Path) -> None:
    """16 bits unchanged and resized; floating point, which is refused as 8 bits."""
    for name, pixels in packed(tmp_path / "deep", DEEP, encoding="pixels", color_mode="keep").items():
        assert pixels.dtype == np.uint16
        np.testing.assert_array_equal(pixels[..., 0], RISING, err_msg=name)
    for encoding in ("pixels", "encoded"):
        twelve = packed(tmp_path / f"twelve {encoding}", OF_TWELVE, encoding=encoding, color_mode="keep")
        assert twelve.keys() == OF_TWELVE.keys()
        for name, pixels in twelve.items():
            np.testing.assert_array_equal(pixels[..., 0], TWELVE, err_msg=name)
    # In 8 bits they are as bright as Pillow shows them, so the upper four of 16 bits are not all that is left.
    for name, pixels in packed(tmp_path / "shown", OF_TWELVE, encoding="pixels").items():
        np.testing.assert_array_equal(pixels, by_pillow16(OF_TWELVE[name]), err_msg=name)
    small = packed(tmp_path / "small", DEEP, image_size=(8, 8), color_mode="keep")
    assert all(one.dtype == np.uint16 and one.max() > 255 for one in small.values())
    values = np.linspace(-2, 2, 48, dtype=np.float32).reshape(6, 8)
    files = {"a.tif": encode(Image.fromarray(values), "TIFF")}
    (found,) = packed(tmp_path / "floats", files, encoding="pixels", color_mode="keep").values()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[..., 0], values)
    with pytest.raises(DecodeError, match=r"\.tif"):
        packed(tmp_path / "refused", files, encoding="pixels", color_mode="rgb")


def test_what_pillow_leaves_out_is_said(tmp_path: Path) -> None:
    """A band beside the colours, which "keep" cannot keep; and 16 bits that Pillow takes for 8, which are refused."""
    pixels = noise(6, 8, channels=4)
    written = encode(pixels, "TIFF")
    extra = struct.pack("<HHI", 338, 3, 1)
    infrared = written.replace(extra + b"\2", extra + b"\0")
    source = write_files(tmp_path / "bands", {"a.tif": infrared})
    report = pack_dataset(source, tmp_path / "bands.h5", encoding="encoded", progress=False)
    assert "further bands (first 'a.tif')" in str(report)
    np.testing.assert_array_equal(dataset_h5(report.path)[0][0], np.asarray(pixels)[..., :3])
    with pytest.raises(DecodeError, match="further bands"):
        pack_dataset(source, tmp_path / "kept.h5", color_mode="keep", progress=False)
    deep = np.asarray(noise(6, 8), np.uint16) * 257
    (found,) = packed(tmp_path / "mixed", {"a.tif": tiff16(deep)}, encoding="pixels").values()
    np.testing.assert_array_equal(found, deep >> 8)
    with pytest.raises(DecodeError, match="tifffile"):
        packed(tmp_path / "planes", {"a.tif": tiff16(deep, planes=True)})


ANIMATED = {"gif": "GIF", "png": "PNG", "webp": "WEBP", "tif": "TIFF", "jpg": "MPO"}


@pytest.mark.parametrize("options", [{"encoding": "pixels"}, {"encoding": "encoded"}, {"encoding": "jpeg:90"}])
def test_more_than_one_frame_is_an_animation(tmp_path: Path, options: dict[str, Any]) -> None:
    """In every format with frames; but the second picture in a photograph is a preview."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for suffix, kind in ANIMATED.items():
        for count in (1, 2, 5):
            frames = [Image.fromarray(rng.integers(0, 256, (12, 17, 3), dtype=np.uint8)) for _ in range(count)]
            path = tmp_path / "photos" / f"{suffix}{count}.{suffix}"
            frames[0].save(path, kind, save_all=True, append_images=frames[1:])
    report = pack_dataset(tmp_path / "photos", tmp_path / "out.h5", layout="images", progress=False, **options)
    assert set(report.lost["frames"]) == {
        f"{suffix}{count}.{suffix}" for suffix in ANIMATED if suffix != "jpg" for count in (2, 5)
    }
    assert any("several frames or pages" in note for note in report.notes)
    if options["encoding"] == "pixels":
        with h5py.File(tmp_path / "out.h5") as file:
            for row, key in enumerate(file["key_train"].asstr()):
                with Image.open(tmp_path / "photos" / key) as image:
                    np.testing.assert_array_equal(file["X_train"][row], np.asarray(image.convert("RGB")))


def turned(kind: str, said: int | None, packet: int | None, *, behind: bool, long: bool) -> bytes:
    """A file whose EXIF and XMP, before or after the pixels, state orientations; `long`: as a 32-bit number."""
    block = None if said is None else exif(said)
    xmp = None if packet is None else b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>' % packet
    if block is not None and long:
        order = "<" if block[6:8] == b"II" else ">"
        block = block.replace(struct.pack(order + "HHI", 0x0112, 3, 1), struct.pack(order + "HHI", 0x0112, 4, 1))
        block = block.replace(struct.pack(order + "HH", said or 0, 0), struct.pack(order + "I", said or 0))
    if kind == "PNG":
        chunks = b"" if block is None else png_chunk(b"eXIf", block[6:])
        chunks += b"" if xmp is None else png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp)
        plain = encode(UPRIGHT, kind)
        place = len(plain) - 12 if behind else 33
        return plain[:place] + chunks + plain[place:]
    if kind == "TIFF":
        return encode(UPRIGHT, kind, tiffinfo={tag: value for tag, value in ((274, said), (700, xmp)) if value})
    options = {name: value for name, value in (("exif", block), ("xmp", xmp)) if value is not None}
    return encode(UPRIGHT, kind, **options)


def test_all_that_turns_an_image_in_pillow_turns_it_here(tmp_path: Path) -> None:
    """EXIF and XMP that agree or not, and numbers that are not orientations."""
    rng = random.Random(0)
    numbers = [None, *range(10)]
    files = {
        f"{n}.{kind.lower()}": turned(
            kind, rng.choice(numbers), rng.choice(numbers), behind=rng.random() < 0.5, long=rng.random() < 0.5
        )
        for n in range(25)
        for kind in ("JPEG", "PNG", "TIFF", "WEBP")
    }
    for name, pixels in packed(tmp_path / "it", files, encoding="encoded").items():
        np.testing.assert_array_equal(pixels, by_pillow(files[name]), err_msg=name)
    assert {one.shape for one in packed(tmp_path / "small", files, image_size=(9, 8)).values()} == {(9, 8, 3)}


def test_an_odd_exif_block_spoils_no_image(tmp_path: Path) -> None:
    """Whatever else is wrong in EXIF, the image is read, with its orientation if that is intact."""
    block = Image.Exif()
    block[0x0112] = 6
    block[0x8769] = {0x9000: b"0232"}
    odd = block.tobytes()
    # The part that 0x8769 points to is outside.
    order = "<" if odd[6:8] == b"II" else ">"
    place = odd.index(struct.pack(order + "HHI", 0x8769, 4, 1)) + 8
    odd = odd[:place] + b"\xff\xff\xff\x7f" + odd[place + 4 :]
    files = {f"a.{kind.lower()}": encode(UPRIGHT, kind, exif=odd) for kind in ("WEBP", "PNG", "JPEG")}
    files["a.tiff"] = encode(UPRIGHT, "TIFF", tiffinfo={274: 6, 0x8769: 1 << 30})
    plain = {f"a.{kind.lower()}": by_pillow(encode(UPRIGHT, kind)) for kind in ("WEBP", "PNG", "JPEG", "TIFF")}
    for name, pixels in packed(tmp_path / "it", files, encoding="pixels").items():
        np.testing.assert_array_equal(pixels, np.rot90(plain[name], -1), err_msg=name)


# --- cut or damaged files ---------------------------------------------------------------------------------------------

SMALL = photograph(48, 64)
WHOLE = {
    "jpeg": encode(SMALL, "JPEG"),
    "progressive": encode(SMALL, "JPEG", progressive=True),
    "restarts": encode(SMALL, "JPEG", restart_marker_blocks=3),
    "png": encode(SMALL, "PNG"),
    "gif": encode(SMALL, "GIF"),
    "webp": encode(SMALL, "WEBP", lossless=False),
    "lossless": encode(SMALL, "WEBP"),
    "bmp": encode(SMALL, "BMP"),
    "tiff": encode(SMALL, "TIFF"),
    "ppm": encode(SMALL, "PPM"),
}
ENDS = {"progressive": "jpg", "jpeg": "jpg", "restarts": "jpg", "lossless": "webp"}
JUNK = {"zeros": b"\0" * 9000, "text": b"a note that an editor left " * 400}


def thumbnailed() -> bytes:
    """A JPEG whose header contains a whole smaller JPEG, end mark included, as cameras write it."""
    segment = b"Exif\0\0" + encode(photograph(16, 16), "JPEG")
    whole = WHOLE["jpeg"]
    return whole[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + whole[2:]


def named(**kinds: dict[str, bytes]) -> dict[str, bytes]:
    """Files named after their kind, with its suffix."""
    return {
        f"{kind}-{name}.{ENDS.get(kind, kind)}": one for kind, files in kinds.items() for name, one in files.items()
    }


GOOD = named(
    **{kind: {"whole": one} for kind, one in WHOLE.items()}
    | {
        kind: {"whole": WHOLE[kind], **{junk: WHOLE[kind] + more for junk, more in JUNK.items()}}
        for kind in ("png", "webp")
    }
    | {"jpeg": {"whole": WHOLE["jpeg"], "thumbnail": thumbnailed(), "text": WHOLE["jpeg"] + JUNK["text"]}}
)
SCAN = thumbnailed().rfind(b"\xff\xda")
CUT = named(
    **{kind: {f"{part}": one[: int(len(one) * part)] for part in (0.02, 0.5, 0.95)} for kind, one in WHOLE.items()}
) | named(
    jpeg={f"thumbnail{end}": thumbnailed()[:end] for end in (SCAN - 20, SCAN + 2, SCAN + 40, len(thumbnailed()) - 200)},
    png={"empty": b"", "zeros": bytes(500), "page": b"<html>quota exceeded</html>", "text": b"plain text"},
    gif={"archive": b"PK\x03\x04 certainly no image"},
)  # fmt: skip


def damaged(kind: str, rng: random.Random) -> bytes:
    """A file with a changed byte, or some blank or missing ones."""
    data = bytearray(WHOLE[kind])
    place = rng.randrange(len(data))
    change = rng.choice(["byte", "zeros", "cut"])
    if change == "byte":
        data[place] ^= rng.randrange(1, 256)
    elif change == "zeros":
        data[place : place + 64] = bytes(len(data[place : place + 64]))
    else:
        del data[place : place + rng.randrange(1, 200)]
    return bytes(data)


def header_bits(kind: str) -> dict[str, bytes]:
    """JPEGs with damaged codes and one changed bit in the header."""
    data = bytearray(WHOLE[kind])
    start = data.index(b"\xff\xda") + 14
    data[start + 20 : start + 40] = b"\x5a" * 20
    files = {}
    for bit in range(16, start * 8, 41):
        one = bytearray(data)
        one[bit // 8] ^= 1 << bit % 8
        files[f"bit{bit}"] = bytes(one)
    return files


def marked(kind: str, marker: int) -> bytes:
    """A stray marker among the codes of a JPEG."""
    data = bytearray(WHOLE[kind])
    data[-700:-698] = bytes((0xFF, marker))
    return bytes(data)


DAMAGED = named(
    **{
        kind: {f"damaged{n}": damaged(kind, random.Random(f"{kind}{n}")) for n in range(25)}
        | {f"lacks{missing}": one[:-missing] for missing in (1, 2, 5, 13)}
        for kind, one in WHOLE.items()
        if kind != "gif"
    }
) | named(
    **{kind: header_bits(kind) for kind in ("jpeg", "progressive", "restarts")},
    gif={f"damaged{n}": damaged("gif", random.Random(n)) for n in range(40)},
) | named(
    jpeg={f"marker{marker}": marked("jpeg", marker) for marker in range(0xC0, 0x100)},
    restarts={f"marker{marker}": marked("restarts", marker) for marker in range(0xD0, 0xE0)},
)  # fmt: skip


def read_odd(data: bytes, size: tuple[int, int] | None) -> Any:
    """What Pillow reads, upright and as RGB; of 16 bits the upper 8; `None` if it refuses."""
    try:
        image: Image.Image = Image.open(io.BytesIO(data))
        deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")
        image = ImageOps.exif_transpose(image)
        if deep:
            image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
        elif image.mode in ("I", "F"):
            return None
        image = image.convert("RGB")
        return np.asarray(image if size is None else image.resize(size[::-1], Image.Resampling.BILINEAR))
    except Exception:  # noqa: BLE001  # whatever Pillow's plugins let through
        return None


ODD = GOOD | CUT | DAMAGED | odd_images()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:::PIL")
# No picture shrinks to this by two or more, except those that are 20,000 pixels long.
@pytest.mark.parametrize(("encoding", "size"), [("pixels", (28, 34)), ("encoded", None)])
def test_each_is_stored_as_pillow_reads_it_or_named(tmp_path: Path, encoding: str, size: Any) -> None:
    """No crash, no wrong row, and every image that Pillow reads is stored; what ends early is not."""
    found, left_out = packed_or_skipped(tmp_path / "it", ODD, encoding=encoding, image_size=size)
    assert found.keys() | left_out == ODD.keys()
    wrong = []
    for name, data in ODD.items():
        expected = None if name in CUT else read_odd(data, size)
        if (expected is None) != (name in left_out):
            wrong.append(f"{name} is {'left out' if name in left_out else 'stored'}, unlike in Pillow")
        elif expected is not None:
            assert found[name].shape == expected.shape, name
            # Photographs with long sides are reduced by blocks first.
            allowed = 4.0 if size and "20000" in name and name.endswith("jpg") else 0.0
            if np.abs(found[name].astype(int) - expected).mean() > allowed:
                wrong.append(f"{name} has other pixels")
    assert not wrong, "\n".join(wrong)
    damaged = left_out & DAMAGED.keys()
    assert 50 < len(damaged) < len(DAMAGED) - 50
    kept = packed_or_skipped(tmp_path / "kept", DAMAGED, encoding=encoding, color_mode="keep", image_size=8)
    assert kept[1] == damaged


@pytest.mark.parametrize("name", [name for name in ODD if re.search(r"bomb-\d", name)])
def test_an_image_of_too_many_pixels_says_what_to_do(tmp_path: Path, name: str) -> None:
    """Scans of slides and of the earth are as large, and not broken."""
    source = write_files(tmp_path / "set", {name: ODD[name]})
    with pytest.raises(DecodeError, match="pixels that are accepted: cut it into tiles"):
        pack_dataset(source, tmp_path / "out.h5", layout="images", image_size=(8, 8), progress=False)


HEIC = b"\0\0\0\x18ftypheic" + bytes(99)


def test_heic_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Phones write it, and Pillow only reads it with an extra package."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    source = write_files(tmp_path / "set", {"a.heic": HEIC})
    with pytest.raises(DecodeError, match="pip install pillow-heif"):
        pack_dataset(source, tmp_path / "out.h5", layout="images", encoding="encoded", progress=False)


def test_heic_is_what_its_package_reads(tmp_path: Path) -> None:
    """Pixels and orientation; a cut file is damaged."""
    heif = pytest.importorskip("pillow_heif", reason="needs pillow-heif: pip install pillow-heif")
    heif.register_heif_opener()
    data = encode(UPRIGHT, "HEIF", exif=exif(6))
    (found,) = packed(tmp_path / "it", {"a.heic": data}, encoding="pixels").values()
    np.testing.assert_array_equal(found, np.asarray(Image.open(io.BytesIO(data))))
    cut = {"cut.heic": data[: len(data) // 2], "whole.heic": data}
    assert packed_or_skipped(tmp_path / "cut", cut, encoding="encoded")[1] == {"cut.heic"}
