"""Image bytes to arrays and back, from any number of threads at once.

JPEG is decoded by libjpeg-turbo through `simplejpeg`, which releases the interpreter lock meanwhile; whatever that
cannot do, and every other format, goes through Pillow. Both use libjpeg-turbo with its exact transform, so colour JPEGs
come out equal, byte for byte (tests/images/test_decoding.py checks that).

- EXIF orientation is always applied; XMP orientation where EXIF has none.
- Palettes are looked up. Alpha is dropped for `"rgb"` and `"grayscale"`, as Pillow's `convert` does (it is not blended
  with a background), and kept as the fourth channel for `"keep"`.
- `"grayscale"` of a colour JPEG is the luma that the file stores, which Pillow gets after `draft("L")`; other formats
  use Pillow's weights (ITU-R 601-2).
- 16-bit grayscale keeps its 16 bits for `"keep"`; otherwise its upper 8 are used (Pillow would clip instead). Of 16-bit
  colours Pillow reads the upper 8 alone, and of a TIFF's bands the colours. What is lost shows in `DecodedImage.lost`.
  Floating point and 32-bit grayscale come as float32 for `"keep"`; they have no agreed range for 8 bits: an error.
- Animations give their first frame.

Faulting in fresh pages takes a tenth of the time of decoding, so each thread reuses the memory that it decodes into. A
few kilobytes may hold 170 million pixels of up to 16 bytes: for such images, threads take turns.
"""

from __future__ import annotations

import io
import math
import re
import struct
import sys
import threading
import zlib
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import numpy as np

from colabstage.errors import ColabstageError, DecodeError
from colabstage.images.geometry import (
    ColorMode,
    ImageOptions,
    Placement,
    block_side,
    place_image,
    reduction_factor,
    turn_upright,
)
from colabstage.io.files import stand_in
from colabstage.io.packages import find_simplejpeg, whole_imports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from PIL import Image


# --- what a JPEG's header says: size, components, orientation, and where its rows are ---------------------------------

# Created once, because crops read a header and walk to the scan for each of thousands of images a second.
_READ_LENGTH, _READ_FRAME = struct.Struct(">H").unpack_from, struct.Struct(">BHHB").unpack_from
_ORIENTATION = 0x0112
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
# How an entry's number is stored, by the entry's type: a byte, two or four.
_NUMBERS = {1: "B", 3: "H", 4: "I"}
# Start-of-frame markers; 0xC4, 0xC8 and 0xCC share the range but are tables and extensions.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Files with these frames store rows in order, unless there are several scans; progressive files never do.
_SEQUENTIAL_FRAMES = (0xC0, 0xC1)
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_APP1, _SCAN, _END = 0xE1, 0xDA, 0xD9
_END_BYTES = bytes((0xFF, _END))
_XMP_HEAD = b"http://ns.adobe.com/xap/1.0/\0"
# More zeros than programs append as padding.
_PADDING_BYTES = 16
# How many of a WebP's bytes show the kind of its pixels.
_WEBP_HEAD_BYTES = 64


def _choose_orientation(exif: bytes, xmp: bytes) -> int:
    """Return the orientation, 1 to 8, from an EXIF block, otherwise from an XMP packet; 1 if neither has one."""
    found = _exif_orientation(exif)
    if found is None:
        match = _XMP.search(xmp)
        found = 1 if match is None else int(match[1])
    return found if 1 <= found <= 8 else 1


def _exif_orientation(exif: bytes) -> int | None:
    """Return the orientation in an EXIF block (a small TIFF); `None` if there is none or the block is malformed."""
    # Some programs write the mark twice.
    while exif.startswith(b"Exif\0\0"):
        exif = exif[6:]
    # Intel's or Motorola's byte order, as the camera chose.
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None or len(exif) < 8:
        return None
    start = struct.unpack_from(order + "I", exif, 4)[0]
    if start + 2 > len(exif):
        return None
    count = struct.unpack_from(order + "H", exif, start)[0]
    for entry in range(start + 2, min(start + 2 + 12 * count, len(exif) - 11), 12):
        tag, kind = struct.unpack_from(order + "HH", exif, entry)
        if tag == _ORIENTATION and kind in _NUMBERS:
            return int(struct.unpack_from(order + _NUMBERS[kind], exif, entry + 8)[0])
    return None


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """What the markers before the first scan say."""

    height: int
    """As stored, before `orientation` is applied, as `width`."""
    width: int
    components: int
    """1 grayscale, 3 colour, 4 CMYK or YCCK."""
    precision: int
    """Bits per sample, 8 in all but exotic files."""
    orientation: int
    """1 to 8, from EXIF or XMP; 1 if there is none."""
    frame: int
    """The marker of the frame, which says how pixels are coded: 0xC0, 0xC1 or 0xC2 in nearly all files."""
    frame_at: int = 0
    """Where in the file the frame's contents begin, in bytes."""


def is_jpeg(data: bytes) -> bool:
    return data[:3] == b"\xff\xd8\xff"


def read_jpeg_header(data: bytes) -> JpegHeader:
    exif = xmp = b""
    position = 2
    while position + 4 <= len(data):
        if data[position] != 0xFF:
            position = data.find(b"\xff", position)
            if position < 0:
                break
            continue
        marker = data[position + 1]
        # Any number of fill bytes may precede a marker, and some markers have no length after them.
        if marker == 0xFF or marker in _STANDALONE:
            position += 1 if marker == 0xFF else 2
            continue
        # Pixels before a frame: no decoder accepts that.
        if marker in (_SCAN, _END):
            break
        body, length = position + 4, _READ_LENGTH(data, position + 2)[0]
        if marker in _FRAMES and body + 6 <= len(data):
            precision, height, width, components = _READ_FRAME(data, body)
            turned = _choose_orientation(exif, xmp) if exif or xmp else 1
            return JpegHeader(height, width, components, precision, turned, marker, body)
        if marker == _APP1:
            if data[body : body + 6] == b"Exif\0\0":
                exif = data[body : body + length - 2]
            elif data.startswith(_XMP_HEAD, body):
                xmp = data[body : body + length - 2]
        position += 2 + length
    msg = "The JPEG header is cut off or has no frame."
    raise DecodeError(msg)


def first_rows(data: bytes, header: JpegHeader, rows: int) -> bytearray | None:
    """Return the same file with a header that states only its first rows: a decoder stops there, with a warning. The
    last of them may lack what the next one contributes to its colours. `None` without `_start_of_codes`."""
    if _start_of_codes(data, header) is None:
        return None
    short = bytearray(data)
    struct.pack_into(">H", short, header.frame_at + 1, rows)
    return short


def _start_of_codes(data: bytes, header: JpegHeader) -> int | None:
    """Return where the codes of the pixels begin; `None` unless the rows are stored in order and the file has its
    end."""
    if header.frame not in _SEQUENTIAL_FRAMES or data[-2:] != _END_BYTES:
        return None
    scan = _first_scan(data, header.frame_at)
    # With several scans, the first rows of each colour are far apart, and a decoder would read on for them.
    if scan is None or data[scan + 4] != header.components:
        return None
    return scan + 2 + int(_READ_LENGTH(data, scan + 2)[0])


def _first_scan(data: bytes, frame_at: int) -> int | None:
    """Return the place of the first scan's marker; `None` if markers do not lead up to one."""
    position = frame_at - 2
    while position + 5 <= len(data):
        position += int(_READ_LENGTH(data, position)[0])
        if position + 5 > len(data) or data[position] != 0xFF:
            break
        if data[position + 1] == _SCAN:
            return position
        position += 2
    return None


def is_lossy(data: bytes) -> bool:
    """Return whether an image file's format preserves pixel values only approximately."""
    return is_jpeg(data) or (data[:4] == b"RIFF" and b"VP8 " in data[:_WEBP_HEAD_BYTES])


# --- pixels -----------------------------------------------------------------------------------------------------------

# Images are scaled by Pillow's bilinear filter, or by torch's kernel of it, which is within one grey level of Pillow
# and, with AVX2, four to six times as fast for three channels. Which one is used shows in the bytes, so it is never
# chosen here: packing decides it once for all images.
Resizer = Literal["pillow", "torch"]


def resample(
    pixels: NDArray[Any],
    placement: Placement,
    *,
    gap: float | None = None,
    void: float = math.nan,
    resizer: Resizer = "pillow",
    scratch: Scratch | None = None,
) -> NDArray[Any]:
    """Scale C-contiguous pixels `(H, W, C)` of 1, 3 or 4 channels, uint8, uint16 or float32, as `placement` says, and
    pad them with 0; the result may be in `scratch`.

    `gap`: with Pillow, a side that shrinks by at least twice this factor is first reduced by whole blocks. `void`: the
    value, beside NaN, of pixels that nothing is known of, except in uint8. `resizer`:
    `"torch"` scales uint8 images of 3 channels whose box has integer edges; all others go through Pillow.
    """
    shape = (*placement.scaled, pixels.shape[2])
    if resizer == "torch" and (
        pixels.dtype == np.uint8 and pixels.shape[2] == 3 and all(edge.is_integer() for edge in placement.box)
    ):
        # An image that will be padded is copied, so its own memory is freed soon.
        out = np.empty(shape, np.uint8) if scratch is None or placement.is_padded else scratch.resized(shape)
        left, upper, right, lower = map(int, placement.box)
        flags, is_whole = pixels.flags, (upper, left, lower, right) == (0, 0, *pixels.shape[:2])
        if not (is_whole and flags.c_contiguous and flags.writeable):
            # torch warns about read-only memory, though it only reads it.
            pixels = np.require(pixels[upper:lower, left:right], requirements=("C", "W"))
        scale_by_torch(pixels, out)
    else:
        out = _scale_by_pillow(pixels, placement, gap, void).reshape(shape)
    if not placement.is_padded:
        return out
    result = np.zeros((*placement.target, pixels.shape[2]), pixels.dtype)
    (top, left), (height, width) = placement.offset, placement.scaled
    result[top : top + height, left : left + width] = out
    return result


def can_torch_resize() -> bool:
    """Return whether torch is installed, and has its fast kernel on this processor; imports torch."""
    try:
        # Checked each time: a kernel found earlier is useless if torch has been uninstalled since.
        return find_spec("torch") is not None and _is_torch_fast()
    # A broken installation may raise anything, which is no reason not to pack.
    except Exception:  # noqa: BLE001
        return False


def expects_torch() -> bool:
    """Return whether torch is likely to be usable, without importing it."""
    # Only importing torch shows whether it works and the processor has AVX2.
    return can_torch_resize() if "torch" in sys.modules else find_spec("torch") is not None


def scale_by_torch(pixels: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Scale C-contiguous, writable uint8 `(H, W, C)` of 1 or 3 channels into C-contiguous `out`, `(h, w, C)`, which is
    torch's channels-last: nothing is copied, nor divided among threads."""
    kernel, from_numpy = _torch_kernel()
    # Transposed by numpy, because each of torch's functions releases the interpreter lock and must wait for it again.
    content, target = (from_numpy(each.transpose(2, 0, 1)[None]) for each in (pixels, out))
    kernel(content, out.shape[:2], False, None, None, out=target)


@cache
def _torch_kernel() -> tuple[Any, Any]:
    with whole_imports():
        import torch

    # `torch.nn.functional.interpolate` calls this function but has no `out`, so every result would be in fresh pages.
    # Under this name it holds the interpreter lock for less time than under `torch.ops`.
    return torch._C._nn._upsample_bilinear2d_aa, torch.from_numpy


@cache
def _is_torch_fast() -> bool:
    _torch_kernel()
    if not sys.modules["torch"].backends.cpu.get_cpu_capability().startswith("AVX"):
        return False
    # A kernel that is called otherwise in this version raises.
    scale_by_torch(np.zeros((4, 4, 3), np.uint8), np.empty((2, 2, 3), np.uint8))
    return True


def _scale_by_pillow(pixels: NDArray[Any], placement: Placement, gap: float | None, void: float) -> NDArray[Any]:
    from PIL import Image

    def scale(flat: NDArray[Any]) -> NDArray[Any]:
        height, width = placement.scaled
        return np.array(Image.fromarray(flat).resize((width, height), Image.Resampling.BILINEAR, placement.box, gap))

    # Pillow resamples uint8 of 1, 3 and 4 channels, and float32; 16 bits are converted to float32.
    flat = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    if pixels.dtype == np.uint8:
        return scale(flat)
    values = flat.astype(np.float32)
    unknown = np.isnan(values) | (values == void)
    # Each result is the mean of what is known around it, if that is at least half.
    share = scale(1 - unknown.astype(np.float32)) if unknown.any() else 1.0
    scaled = np.where(share < 0.5, void, scale(np.where(unknown, 0, values)) / np.maximum(share, 0.5))
    return (np.rint(scaled) if pixels.dtype == np.uint16 else scaled).astype(pixels.dtype, copy=False)


Loss = Literal["frames", "bits", "turned"]
"""The frames or pages after the first; the lower 8 of 16 bits, or bands beside the colours; the file's own pixel order
if EXIF turns it, in which boxes or a mask may have been drawn."""
LOSSES: tuple[Loss, ...] = get_args(Loss)

# More than a photograph has: such images take turns.
_MANY_PIXELS = 32_000_000
# Larger memory is not kept for the next image: each thread would keep it to the end.
_MOST_KEPT_BYTES = 256 * 1024 * 1024
_HEAD_BYTES = 1024
# No shorter JPEG has as many: a block of 64 pixels of one colour takes at least six bits.
_SMALL_JPEG_BYTES = 256 * 1024
_PNG_HEAD = b"\x89PNG\r\n\x1a\n"
# Text in any PNG that may need turning; it may come after the pixels.
_PNG_TURNS = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
# Tags of a TIFF; GDAL's last one says what is written where there are no data.
_BITS, _BANDS, _NODATA = 258, 277, 42113
# Where Pillow itself refuses by default: about half a gigabyte as RGB, more than any photograph.
MAX_PIXELS = 178_956_970
_TOO_MANY = f"more than the {MAX_PIXELS:,} pixels that are accepted: cut it into tiles, or save it smaller"
# A side of a photograph that shrinks by two or more is first reduced by whole blocks, as the JPEG decoder does for both
# sides: this saves a sixth of the resizing, for one to two grey levels on average in photographs, ten in patterns.
_PHOTOGRAPH_GAP = 1.0
_DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N")
_WIDE_MODES = ("I", "F")
_MOST_OF_8_BITS = 255
_IMAGE_DTYPES = (np.uint8, np.uint16, np.float32)
# The transposition that undoes each orientation, as numbered in PIL.Image.Transpose.
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
_ALPHA_MODES = ("RGBA", "LA", "PA", "La", "RGBa")


# Decoding an image takes the interpreter lock a few times: with 16 cores, more threads than this decoded fewer images
# of 64 kB, by a fifth alone and by a third beside a ResNet-50 on a GPU (benchmarks/gpu.py). Larger ones take it less.
_DECODING_THREADS, _DECODED_BYTES = 6, 64_000


def most_decoding_threads(mean_bytes: int) -> int:
    """Return the number of threads that decodes image files of this mean length fastest."""
    return max(_DECODING_THREADS, _DECODING_THREADS * mean_bytes // _DECODED_BYTES)


class PixelRoom:
    """Lets several threads decode images at once, but of huge ones one at a time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()

    def room_for(self, content: object) -> AbstractContextManager[object]:
        """Return a context in which to decode an image file."""
        # Nearly every image is small, and a lock for each would cost more than it saves.
        is_huge = isinstance(content, bytes) and _count_pixels(content) > _MANY_PIXELS
        return self._turn if is_huge else nullcontext()


def _count_pixels(data: bytes) -> int:
    """Return width times height of an image file from its header; 0 if it is broken, or a small JPEG."""
    try:
        if is_jpeg(data):
            header = read_jpeg_header(data) if len(data) >= _SMALL_JPEG_BYTES else None
            return 0 if header is None else header.width * header.height
        # Pillow would take a tenth of the time of decoding a small one.
        if data.startswith(_PNG_HEAD):
            width, height = struct.unpack_from(">II", data, len(_PNG_HEAD) + 8)
            return int(width * height)
        with _open_pillow(data) as image:
            return image.width * image.height
    except (DecodeError, struct.error):
        return 0


class Scratch:
    """One thread's memory for decoding and resizing. Grows to the largest image, unless that is huge; never shared by
    two threads."""

    def __init__(self) -> None:
        self.decoded = bytearray()
        self._resized = np.empty((0, 0, 0), np.uint8)

    def resized(self, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
        """Return a C-contiguous array `(H, W, C)` with any content; the previous one, if it has this shape."""
        # Most packs have images of one size, so after the first nothing is allocated again.
        if self._resized.shape == shape:
            return self._resized
        made = np.empty(shape, np.uint8)
        if made.nbytes <= _MOST_KEPT_BYTES:
            self._resized = made
        return made


def encode_jpeg(pixels: NDArray[Any], quality: int) -> bytes:
    """Encode uint8 `(H, W, C)` of 1 or 3 channels as JPEG, colours at half their resolution as cameras do."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or max(pixels.shape) > 65500:
        msg = (
            f"JPEG cannot hold an image of {pixels.dtype} {' x '.join(map(str, pixels.shape))}. Pass color_mode='rgb' "
            "or 'grayscale', or another encoding."
        )
        raise DecodeError(msg)
    gray = pixels.shape[2] == 1
    simplejpeg = find_simplejpeg()
    if simplejpeg is None:
        from PIL import Image

        made = io.BytesIO()
        Image.fromarray(pixels[..., 0] if gray else pixels).save(made, "JPEG", quality=quality, subsampling="4:2:0")
        return made.getvalue()
    encoded: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality, "GRAY" if gray else "RGB", "Gray" if gray else "420"
    )
    return encoded


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """The facts about `decode_image(data, ImageOptions(color_mode="keep"))`, usually read from the header alone."""

    height: int
    """In pixels, orientation applied, as `width`."""
    width: int
    channels: int
    """1, 3 or 4."""
    dtype: np.dtype[Any]
    """uint8, uint16 or float32."""
    format: str
    """Pillow's name of the format, for example `"JPEG"`."""
    peak: int | None = None
    """The largest value of 16-bit pixels, if these were decoded to find it."""
    animated: bool = False
    """Whether there are further frames or pages."""
    deep: bool = False
    """Whether the file has more than 8 bits per value, or further bands; `dtype` is uint8 if Pillow leaves them out."""

    def losses(self, color_mode: ColorMode) -> tuple[Loss, ...]:
        """Return what of the file is lost in its pixels."""
        is_narrow = color_mode != "keep" or self.dtype == np.uint8
        return _losses(animated=self.animated, bits=self.deep and is_narrow)


class DecodedImage(NamedTuple):
    """An image file as an array."""

    pixels: NDArray[Any]
    """`(H, W, C)`, as `decode_image` returns it."""
    size: tuple[int, int]
    """Height and width of the upright image before it was resized."""
    lost: tuple[Loss, ...]
    """What of the file is not in the pixels."""


def decode_image(data: bytes, options: ImageOptions) -> NDArray[Any]:
    """Decode one image file to a C-contiguous, writable array `(H, W, C)`; uint8, except for `color_mode="keep"` of
    16-bit (uint16) and floating-point (float32) grayscale files."""
    return decode_sized(data, options).pixels


def decode_sized(
    data: bytes, options: ImageOptions, *, resizer: Resizer = "pillow", scratch: Scratch | None = None
) -> DecodedImage:
    """Decode one image file, as `decode_image`; also return what else becomes known. `scratch`: this thread's memory;
    the result may be in it, until the next call."""
    # An image that is not resized is itself the result, so it needs its own memory.
    decoded = scratch.decoded if scratch is not None and options.size is not None else None
    found = _decode_turbo(data, options, decoded) if is_jpeg(data) else None
    lost: tuple[Loss, ...] = ()
    gap: float | None = _PHOTOGRAPH_GAP
    void = math.nan
    if found is None:
        with _open_pillow(data) as image:
            with suppress(ValueError):
                void = float(getattr(image, "tag_v2", {}).get(_NODATA, math.nan))
            animated, deep = _is_animated(image), _is_deep(image)
            if options.color_mode == "keep" and deep:
                keep_range(image)
            with _upright(image, data, luma=options.color_mode == "grayscale") as upright:
                whole = _to_array(upright, options.color_mode)
            lost = _losses(animated=animated, bits=deep and whole.dtype == np.uint8)
        found, gap = (whole, (whole.shape[0], whole.shape[1]), 1), None
    pixels, size, factor = found
    placement = place_image(size, options.size, options.resize).reduced(factor)
    if not placement.is_identity:
        pixels = resample(pixels, placement, gap=gap, void=void, resizer=resizer, scratch=scratch)
    elif decoded is not None and not pixels.flags.owndata:
        pixels = pixels.copy()
    return DecodedImage(pixels, size, lost)


def fit_pixels(pixels: NDArray[Any], options: ImageOptions, *, resizer: Resizer = "pillow") -> NDArray[Any]:
    """Convert a decoded image to the requested colours and size, as `decode_image` does a file's.

    `pixels`: `(H, W)` or `(H, W, C)` of 1, 3 or 4 channels; uint8, uint16 or float32.
    """
    values = pixels[..., None] if pixels.ndim == 2 else pixels
    if values.ndim != 3 or values.shape[2] not in (1, 3, 4) or values.dtype not in _IMAGE_DTYPES or not values.size:
        msg = (
            f"The array is {' x '.join(map(str, pixels.shape))} {pixels.dtype}; expected an image (height, width, "
            "channels) of 1, 3 or 4 channels of uint8, uint16 or float32."
        )
        raise DecodeError(msg)
    upright = np.ascontiguousarray(_recolored(values, options.color_mode))
    placement = place_image((values.shape[0], values.shape[1]), options.size, options.resize)
    return upright if placement.is_identity else resample(upright, placement, resizer=resizer)


def no_range(dtype: np.dtype[Any]) -> DecodeError:
    return DecodeError(f'Pixels of {dtype} have no agreed range for a conversion to 8 bits. Pass color_mode="keep".')


def _recolored(values: NDArray[Any], color_mode: ColorMode) -> NDArray[Any]:
    from PIL import Image

    channels, dtype = values.shape[2], values.dtype
    if color_mode == "keep" or (dtype == np.uint8 and channels == (1 if color_mode == "grayscale" else 3)):
        return values
    # Pillow has no images of several channels of these.
    if dtype == np.float32 or (dtype == np.uint16 and channels != 1):
        raise no_range(dtype)
    image = Image.fromarray(np.ascontiguousarray(values[..., 0] if channels == 1 else values))
    return _to_array(image, color_mode)


def probe_image(data: bytes) -> ImageFacts:
    """Read an image's facts from its header; for most formats the beginning of the file is enough."""
    if is_jpeg(data):
        header = read_jpeg_header(data)
        height, width = upright_size((header.height, header.width), header.orientation)
        check_pixels(width, height)
        return ImageFacts(height, width, 1 if header.components == 1 else 3, np.dtype(np.uint8), "JPEG")
    with _open_pillow(data) as image:
        try:
            height, width = upright_size((image.height, image.width), _orientation_left(image, data))
            channels, dtype = _kept_channels_and_dtype(image)
        except Exception as error:
            msg = f"The {image.format} header is broken: {error}."
            raise DecodeError(msg) from error
        facts = ImageFacts(height, width, channels, dtype, str(image.format))
        return replace(facts, animated=_is_animated(image), deep=_is_deep(image))


def _losses(*, animated: bool, bits: bool) -> tuple[Loss, ...]:
    lost: dict[Loss, bool] = {"frames": animated, "bits": bits}
    return tuple(loss for loss, is_lost in lost.items() if is_lost)


def check_kept(lost: Sequence[Loss], color_mode: ColorMode) -> None:
    """Refuse an image whose values `"keep"` cannot keep."""
    if color_mode == "keep" and "bits" in lost:
        msg = (
            "The image has several channels of 16 bits, or further bands; Pillow reads 8 bits of the colours, so "
            "color_mode='keep' cannot keep all. Pass color_mode='rgb' to store those, or give pack_dataset an "
            "object whose items are (x, y), x an array read by tifffile or OpenCV."
        )
        raise DecodeError(msg)


def _is_deep(image: Image.Image) -> bool:
    """Tell whether a file has more than 8 bits per value, or bands that Pillow skips; before it is loaded."""
    if image.format == "TIFF":
        bits, bands = _tiff_sizes(image)
        return bits > 8 or bands > len(image.getbands())
    if image.mode in _DEEP_MODES:
        return True
    # Colours show it in how Pillow unpacks them.
    for decoder, _, _, arguments in getattr(image, "tile", ()):
        raw_mode, *rest = arguments if isinstance(arguments, tuple) else (arguments,)
        if ";16" in str(raw_mode) or (decoder in ("ppm", "ppm_plain") and max(rest, default=0) > _MOST_OF_8_BITS):
            return True
    return False


def _tiff_sizes(image: Image.Image) -> tuple[int, int]:
    """Return the most bits of a value, and the number of bands, that the tags of a TIFF state."""
    tags = cast("Any", image).tag_v2
    return max(tags.get(_BITS, (1,))), tags.get(_BANDS, 1)


def _decode_turbo(
    data: bytes, options: ImageOptions, scratch: bytearray | None
) -> tuple[NDArray[np.uint8], tuple[int, int], int] | None:
    """Decode by simplejpeg, at a half, a quarter or an eighth if the options allow; `None` if that is left to Pillow.
    Return the upright pixels, height and width of the whole image, and the factor."""
    header = read_jpeg_header(data)
    check_pixels(header.width, header.height)
    if not is_plain(header):
        return None
    gray = options.color_mode == "grayscale" or (options.color_mode == "keep" and header.components == 1)
    size = upright_size((header.height, header.width), header.orientation)
    # The decoder skips work for what would be discarded.
    factor = reduction_factor(place_image(size, options.size, options.resize))
    # The last block of a row may be partly outside the image, so that its mean is of fewer pixels. If turning the image
    # would bring such blocks to the front, a smaller factor is used.
    while header.orientation != 1 and (header.height % factor or header.width % factor):
        factor //= 2
    pixels = decode_turbo(data, (header.height, header.width), factor, gray=gray, scratch=scratch)
    # It is strict: it refuses stray bytes between markers, which viewers accept, like a missing half. Pillow tells them
    # apart.
    if pixels is None:
        return None
    return np.ascontiguousarray(turn_upright(pixels, header.orientation)), size, factor


def is_plain(header: JpegHeader) -> bool:
    """Return whether simplejpeg can decode a JPEG."""
    return header.components in (1, 3) and header.precision == 8 and header.height * header.width <= MAX_PIXELS


def decode_turbo(
    data: bytes | bytearray,
    size: tuple[int, int],
    factor: int,
    *,
    gray: bool,
    scratch: bytearray | None,
    strict: bool = True,
) -> NDArray[np.uint8] | None:
    """Decode a JPEG of this height and width, each pixel the mean of a block of `factor` by `factor`; into `scratch` if
    given, which grows as needed, but not for a huge image. `None` if simplejpeg refuses it, or is missing."""
    simplejpeg = find_simplejpeg()
    if simplejpeg is None:
        return None
    # As libjpeg rounds: up, so that the last block counts.
    height, width = -(-size[0] // factor), -(-size[1] // factor)
    nbytes = height * width * (1 if gray else 3)
    if scratch is not None and nbytes > _MOST_KEPT_BYTES:
        scratch = None
    if scratch is not None:
        scratch.extend(bytes(max(0, nbytes - len(scratch))))
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            data,
            "GRAY" if gray else "RGB",
            min_height=height if factor > 1 else 0,
            min_width=width if factor > 1 else 0,
            buffer=scratch,
            strict=strict,
        )
    except ValueError:
        return None
    return pixels


@contextmanager
def open_upright(data: bytes, *, is_mask: bool = False) -> Iterator[Image.Image]:
    """Decode an image file by Pillow, turned as its EXIF or XMP orientation says; `is_mask`: refuse several pages, and
    keep values as they are written."""
    with _open_pillow(data) as image:
        if is_mask:
            if _is_animated(image):
                msg = f"The {image.format} has several frames or pages, expected one. Save the one that is meant alone."
                raise DecodeError(msg)
            keep_range(image)
        with _upright(image, data) as upright:
            yield upright


@contextmanager
def _upright(image: Image.Image, data: bytes, *, luma: bool = False) -> Iterator[Image.Image]:
    """Load an image; `luma`: only the brightness of a colour JPEG, as stored in the file."""
    from PIL import Image

    # As after a download that reserved space and stopped.
    zeros = len(data) - len(data.rstrip(b"\0")) if is_jpeg(data) else 0
    if zeros >= _PADDING_BYTES and data.rfind(_END_BYTES, read_jpeg_header(data).frame_at) < 0:
        msg = "The JPEG data is truncated: zeros stand in the place of its end."
        raise DecodeError(msg)
    try:
        turn = _TURNS.get(_orientation_left(image, data))
        if luma and image.format in ("JPEG", "MPO") and image.mode == "RGB":
            # The file stores brightness separately from colour, so nothing is converted, or rounded twice.
            image.draft("L", image.size)
        image.load()
        # TIFF is turned by its plugin while it loads.
        yield image if turn is None or image.format == "TIFF" else image.transpose(Image.Transpose(turn))
    except ColabstageError:
        raise
    except Exception as error:
        msg = f"The {image.format} data is truncated or broken: {error}."
        raise DecodeError(msg) from error


def _is_animated(image: Image.Image) -> bool:
    """Tell whether an image has further frames or pages; before it is loaded, because some then close their file."""
    # A second picture in a photograph is a preview, or the view of the camera's other lens.
    with suppress(Exception):
        return image.format not in ("JPEG", "MPO") and bool(getattr(image, "is_animated", False))
    return False


def orientation_of(data: bytes) -> int:
    """Return the orientation, 1 to 8, of an image file by EXIF or XMP."""
    if is_jpeg(data):
        return read_jpeg_header(data).orientation
    if _is_upright_png(data):
        return 1
    with _open_pillow(data) as image:
        own = getattr(image, "tag_v2", {}).get(_ORIENTATION)
        return own if own in _TURNS else _orientation_left(image, data)


def _is_upright_png(data: bytes) -> bool:
    """Return whether a PNG says nothing about turning: to look behind its pixels, Pillow would decode them all."""
    return data.startswith(_PNG_HEAD) and not any(mark in data for mark in _PNG_TURNS)


def _orientation_left(image: Image.Image, data: bytes) -> int:
    """Return the orientation, 1 to 8, that the size of an opened image does not include yet."""
    if is_jpeg(data):
        return read_jpeg_header(data).orientation
    if _is_upright_png(data):
        return 1
    with suppress(Exception):
        exif = image.getexif()
        if image.format == "TIFF":
            from PIL import ExifTags

            # Keep the plugin from failing on odd parts of EXIF, which it reads while it loads.
            for part in ExifTags.IFD:
                exif.pop(part, None)
            # The plugin applies this one itself.
            if _ORIENTATION in getattr(image, "tag_v2", {}):
                return 1
        found = exif.get(_ORIENTATION)
        return found if found in _TURNS else 1
    return 1


def _open_pillow(data: bytes) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    try:
        if _is_heic(data):
            # Make Pillow read HEIC, if the package for that is installed.
            with suppress(ImportError):
                import pillow_heif

                pillow_heif.register_heif_opener()
        image = Image.open(io.BytesIO(data))
        tiles = cast("Any", image).tile if image.format == "TIFF" and _tiff_sizes(image)[0] > 8 else ()
        # Where each band lies by itself, Pillow takes the bytes of 16-bit values for values.
        if any(";" not in str(arguments[0]) for _, _, _, arguments in tiles):
            raise UnidentifiedImageError  # noqa: TRY301
    except UnidentifiedImageError as error:
        if instead := stand_in(data[:_HEAD_BYTES]):
            msg = f"The file is no image but {instead}."
            raise DecodeError(msg) from error
        what = f"The {len(data)} bytes beginning with {data[:8].hex(' ')} are no image format that can be read here."
        # If Pillow knows the format, the file is damaged.
        if _is_heic(data) and "HEIF" not in Image.OPEN:
            what += " It is HEIC, which needs pillow-heif. Install it with: pip install pillow-heif"
        elif data[:4] in (b"II*\0", b"MM\0*"):
            what += (
                " It is a TIFF that Pillow does not read, as of many bands or channels of floats. Use tifffile: "
                "give pack_dataset an object whose items are (x, y), x = tifffile.imread(path)."
            )
        raise DecodeError(what) from error
    # Pillow's plugins raise whatever a broken file makes them raise.
    except Exception as error:
        why = _TOO_MANY if isinstance(error, Image.DecompressionBombError) else error
        msg = f"The image header cannot be used: {why}."
        raise DecodeError(msg) from error
    check_pixels(image.width, image.height)
    return image


def keep_range(image: Image.Image) -> None:
    """Keep Pillow from stretching the values of a PGM that is not loaded, from the largest one that it states to that
    of 8 or 16 bits."""
    most, file = 65_535 if image.mode == "I" else _MOST_OF_8_BITS, cast("Any", image)
    if image.format == "PPM":
        file.tile = [(*one[:3], (one[3][0], most) if one[0] in ("ppm", "ppm_plain") else one[3]) for one in file.tile]


# The brands of High Efficiency Image Format files that contain HEVC, as from phones.
_HEIC = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")


def _is_heic(data: bytes) -> bool:
    return data[4:8] == b"ftyp" and data[8:12] in _HEIC


def check_pixels(width: int, height: int) -> None:
    """Refuse a size that no image has, or more pixels than are accepted."""
    # Before any memory is allocated: a header may promise anything.
    if min(width, height) < 1:
        msg = f"The image header says {width} x {height} pixels."
        raise DecodeError(msg)
    if width * height > MAX_PIXELS:
        msg = f"The image header says {width} x {height}, {_TOO_MANY}."
        raise DecodeError(msg)


def upright_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Return height and width of an image once it is turned upright; `size`: as stored, `orientation`: 1 to 8."""
    return (size[1], size[0]) if orientation in (5, 6, 7, 8) else size


def _kept_channels_and_dtype(image: Image.Image) -> tuple[int, np.dtype[Any]]:
    """Return the channels and dtype of an image for `color_mode="keep"`."""
    # Older versions of Pillow open a 16-bit PNG as 32-bit, and all versions open such a PGM that way.
    if image.mode in _DEEP_MODES or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return 1, np.dtype(np.uint16)
    if image.mode in _WIDE_MODES:
        return 1, np.dtype(np.float32)
    # A palette with one transparent entry is alpha as well.
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        return 4, np.dtype(np.uint8)
    return (1 if image.mode in ("1", "L") else 3), np.dtype(np.uint8)


def _to_array(image: Image.Image, color_mode: ColorMode) -> NDArray[Any]:
    """Return a loaded Pillow image as a writable array `(H, W, C)`."""
    channels, dtype = _kept_channels_and_dtype(image)
    if dtype != np.uint8:
        # Pillow would clip values above 8 bits to 255, which makes most of the image white.
        values = np.array(image)
        if color_mode == "keep":
            kept = values.astype(dtype)
            if dtype == np.float32 and (kept != values).any() and values.dtype.kind in "iu":
                msg = (
                    f"Pixels of 32 bits up to {values.max()} do not fit into {dtype}. Scale them, and write them again."
                )
                raise DecodeError(msg)
            return kept[..., None]
        if dtype != np.uint16:
            raise no_range(values.dtype)
        gray = (values.astype(np.uint16) >> 8).astype(np.uint8)[..., None]
        return gray if color_mode == "grayscale" else np.repeat(gray, 3, axis=2)
    if color_mode != "keep":
        channels = 1 if color_mode == "grayscale" else 3
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
    pixels = np.array(image if image.mode == mode else image.convert(mode), dtype=np.uint8)
    return pixels[..., None] if pixels.ndim == 2 else pixels


# A part of an image: top, left, height and width.
Crop = tuple[int, int, int, int]


def decode_region(
    data: bytes, color_mode: ColorMode, crop: Crop, target: tuple[int, int], *, scratch: bytearray | None = None
) -> NDArray[Any]:
    """Decode a part of an image file as `"rgb"` or `"grayscale"`: uint8 `(h, w, C)` over `scratch`, not contiguous.

    A JPEG whose rows are stored in order is decoded only to the part's last row; and at a half, a quarter or an eighth
    of its size if the part is that much larger than `target`, its size after resizing: the edges are then rounded to
    whole pixels of the smaller image, by up to half a pixel.
    """
    header = read_jpeg_header(data) if is_jpeg(data) else None
    if header is not None and is_plain(header):
        factor = region_factor(crop, target)
        (_, last_row), _ = _reduced_crop(crop, factor, header)
        # One more row, from which the last one takes half of its colours.
        rows = min(header.height, (last_row + 1) * factor)
        short = first_rows(data, header, rows) if rows < header.height else None
        content, rows = (data, header.height) if short is None else (short, rows)
        gray, strict = color_mode == "grayscale", short is None
        found = decode_turbo(content, (rows, header.width), factor, gray=gray, scratch=scratch, strict=strict)
        if found is not None:
            return WholeImage(found, factor, header).cut(crop)
    top, left, height, width = crop
    pixels = decode_image(data, ImageOptions(color_mode=color_mode))
    return np.asarray(pixels[top : top + height, left : left + width])


class WholeImage(NamedTuple):
    """An image from which any crop with the same decoding factor can be cut."""

    pixels: NDArray[np.uint8]
    """`(h, w, C)` as in the file, before turning upright; each pixel the mean of a block of `factor` by `factor`."""
    factor: int
    """1, 2, 4 or 8; 0 if crops are cut from the image at its own size, whatever they are resized to."""
    header: JpegHeader | None
    """`None` if pixels are upright."""

    def cut(self, crop: Crop) -> NDArray[np.uint8]:
        """Return what `decode_region` would for this crop, over the same pixels; its factor must be this one."""
        if self.header is None:
            top, left, height, width = crop
            return self.pixels[top : top + height, left : left + width]
        rows, columns = _reduced_crop(crop, self.factor, self.header)
        return turn_upright(self.pixels[slice(*rows), slice(*columns)], self.header.orientation)


def region_factor(crop: Crop, target: tuple[int, int]) -> int:
    """Return the factor by which `decode_region` reduces a JPEG: 1, 2, 4 or 8."""
    # The same rule as for whole images, so that a crop of everything equals the whole image.
    return block_side(crop[2], crop[3], target)


# The share of a JPEG's rows that counts as nearly all. Decoding the last tenth takes less time than decoding one of ten
# later crops of the same image; decoding more would slow the first epoch so much that two epochs took longer than
# without.
_NEARLY_ALL = 0.9


def decode_whole(
    data: bytes, color_mode: ColorMode, crop: Crop, factor: int, *, scratch: bytearray | None = None
) -> WholeImage | None:
    """Decode an image file, perhaps into `scratch`, so that any crop with this `region_factor` can be cut from it, if
    this crop needs nearly all of it anyway.

    `None` if `decode_region` takes considerably less time, or the content of a crop depends on how far the file is
    decoded (in some such cases the decoder warns).
    """
    header = read_jpeg_header(data) if is_jpeg(data) else None
    if header is None or not is_plain(header):
        return WholeImage(decode_image(data, ImageOptions(color_mode=color_mode)), 0, None)
    (_, last_row), _ = _reduced_crop(crop, factor, header)
    if last_row * factor < _NEARLY_ALL * header.height and _start_of_codes(data, header) is not None:
        return None
    size, gray = (header.height, header.width), color_mode == "grayscale"
    pixels = decode_turbo(data, size, factor, gray=gray, scratch=scratch)
    return None if pixels is None else WholeImage(pixels, factor, header)


def _reduced_crop(crop: Crop, factor: int, header: JpegHeader) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the rows and columns of a crop, first and last (exclusive), in an image reduced by `factor`."""
    top, left, height, width = _stored_crop(crop, header)
    return _reduced(top, height, factor, header.height), _reduced(left, width, factor, header.width)


def _reduced(start: int, length: int, factor: int, limit: int) -> tuple[int, int]:
    """Return the first and last (exclusive) of the pixels to which blocks of `factor` are reduced."""
    first = min(round(start / factor), -(-limit // factor) - 1)
    return first, min(-(-limit // factor), max(first + 1, round((start + length) / factor)))


def _stored_crop(crop: Crop, header: JpegHeader) -> Crop:
    """Return the crop in the image as stored, before turning upright."""
    top, left, height, width = crop
    # The steps of `turn_upright`, reversed.
    turned = header.orientation in (5, 6, 7, 8)
    rows, columns = (header.width, header.height) if turned else (header.height, header.width)
    if header.orientation in (2, 3, 6, 7):
        left = columns - left - width
    if header.orientation in (3, 4, 7, 8):
        top = rows - top - height
    return (left, top, width, height) if turned else (top, left, height, width)


# Whether an image file can be decoded, in a fraction of the time of decoding.
#
# Damaged codes of a JPEG's pixels do not stop a decoder: they become grey or shifted blocks. Only the segments before
# the scan can stop it. So a JPEG with one scan, and no marker before its end, is tried without the codes, which take
# nearly all the time. Every other file is decoded, because only the decoder knows which codes it needs.
# libjpeg's limits, in pixels.
_MOST_SIDE, _BLOCK_SIDE = 65_500, 8
# How much of a scan is searched at once: it stays in the processor's cache.
_LOOK_BYTES = 128 * 1024


def check_complete(data: bytes) -> ImageFacts:
    """Check that an image file has a readable header, and pixels that can be decoded; return what its header says. Data
    after the end (padding, a second picture) does not matter."""
    start = _start_of_codes(data, read_jpeg_header(data)) if is_jpeg(data) else None
    facts = _facts_of_segments(data[:start]) if start is not None and _is_one_scan(data, start) else None
    if facts is not None:
        return facts
    facts = probe_image(data)
    # Decoding decides in the end, but takes far longer than these checks.
    if facts.format != "PNG" or not _has_checksums(data):
        decode_image(data, ImageOptions(color_mode="keep"))
    return facts


def _has_checksums(data: bytes) -> bool:
    """Return whether all chunks of a PNG that decoding needs have the right checksum, up to its end."""
    position, view, kinds = len(_PNG_HEAD), memoryview(data), set[bytes]()
    while position + 12 <= len(data) and b"IEND" not in kinds:
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 8 + length
        # Chunks in lower case are optional, and skipped.
        if kind[:1].isupper():
            if end + 4 > len(data) or zlib.crc32(view[position + 4 : end]) != struct.unpack_from(">I", data, end)[0]:
                return False
            kinds.add(kind)
        position = end + 4
    return {b"IHDR", b"IDAT", b"IEND"} <= kinds


# Most files of a dataset come from one program, and have the same segments, or few that differ in the size.
@lru_cache(maxsize=64)
def _facts_of_segments(segments: bytes) -> ImageFacts | None:
    """Return the header facts of a JPEG without its codes; `None` if no decoder accepts its segments."""
    header = read_jpeg_header(segments)
    if max(header.height, header.width) > _MOST_SIDE:
        return None
    # A decoder that accepts the segments accepts this, with a warning, as if the codes were damaged. As small as
    # possible, because that does not depend on the size, which follows the precision.
    small = bytearray(segments + _END_BYTES)
    struct.pack_into(">HH", small, header.frame_at + 1, _BLOCK_SIDE, _BLOCK_SIDE)
    try:
        with open_upright(bytes(small)):
            return probe_image(segments)
    except DecodeError:
        return None


def _is_one_scan(data: bytes, start: int) -> bool:
    """Return whether a scan's codes have no markers, except restart markers, up to the end mark."""
    # Comparing whole arrays takes a third of the time of a regular expression, which is called back at each byte 255,
    # and other threads run meanwhile.
    codes = np.frombuffer(data, np.uint8)
    for begin in range(start, len(data) - len(_END_BYTES), _LOOK_BYTES):
        end = min(begin + _LOOK_BYTES, len(data) - len(_END_BYTES))
        following = codes[begin + 1 : end + 1][codes[begin:end] == 0xFF]
        if ((following != 0) & ((following & 0xF8) != 0xD0)).any():
            return False
    return True
