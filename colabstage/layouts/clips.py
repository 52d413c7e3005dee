"""Audio clips as rows of one length: WAV is read here, FLAC and others by soundfile if it is installed.

Nothing is resampled: the caller decides the rate.
"""

from __future__ import annotations

import io
import struct
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from colabstage.errors import DecodeError, MissingDependencyError, OptionError
from colabstage.io.units import format_count
from colabstage.layouts.reading import in_place, read_each
from colabstage.layouts.table import Arrays, BrokenDatasetError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.samples import Content, SampleSource

SoundDtype = Literal["float32", "int16"]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# What a program writes if it does not know the length yet and never corrects it.
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)


class Clip(NamedTuple):
    """The samples of an audio clip."""

    values: NDArray[Any]
    """`(N, channels)`, float32 from -1 to 1, or int16."""
    rate: int
    """Samples in a second."""


class _Wav(NamedTuple):
    """The contents of the header, and where the samples are."""

    code: int
    """The number of the format in which samples are stored."""
    channels: int
    rate: int
    """Samples per second, of each channel."""
    bits: int
    """Bits per sample."""
    data: memoryview


def read_clip(content: bytes, dtype: SoundDtype) -> Clip:
    """Decode a whole file.

    Integers become floats by dividing by their full scale (a power of two), and lose their lower bits if int16 is
    requested; floats become int16 by rounding 32,767 times their value, clipped to -1 and 1.
    """
    wav = _parse_wav(content) if content[:4] == b"RIFF" and content[8:12] == b"WAVE" else None
    if wav is None:
        return _by_soundfile(content, dtype)
    values = _KNOWN[wav.code, wav.bits](wav.data)
    return Clip(_convert(values, dtype).reshape(-1, wav.channels), wav.rate)


def _parse_wav(content: bytes) -> _Wav | None:
    """Return the contents of a WAV; `None` if its samples are compressed or of another kind."""
    code = channels = rate = align = bits = at = 0
    at = 12
    # Chunks can have any order, and editors put their own before the samples.
    while at + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, at)
        at += 8
        if name == b"fmt " and size >= 16:
            if at + size > len(content):
                break
            code, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", content, at)
            if code == _EXTENSIBLE and size >= 40:
                # The extensible form has the real kind in the first bytes of its GUID.
                (code,) = struct.unpack_from("<H", content, at + 24)
        elif name == b"data":
            if code and (code, bits) not in _KNOWN:
                return None
            if not channels or align != channels * bits // 8:
                msg = f"The WAV has {channels} channels of {bits} bits in blocks of {align} bytes, which is impossible."
                raise DecodeError(msg)
            there = len(content) - at
            if size in _UNKNOWN_SIZES:
                size = there - there % align
            if size > there or size % align:
                msg = f"The WAV was cut: it should have {size:,} bytes of samples and has {there:,}."
                raise DecodeError(msg)
            return _Wav(code, channels, rate, bits, memoryview(content)[at : at + size])
        at += size + size % 2
    msg = "The WAV was cut: it ends before its samples begin."
    raise DecodeError(msg)


def _unpacked_24(data: memoryview) -> NDArray[np.int32]:
    """Return 24-bit numbers as the upper part of int32."""
    # numpy has no 24-bit integers; as the upper three bytes of 32 bits their scale is right.
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return wide.view("<i4").reshape(-1).astype(np.int32, copy=False)


_KNOWN: dict[tuple[int, int], Callable[[memoryview], NDArray[Any]]] = {
    (_PCM, 8): lambda data: (np.frombuffer(data, np.uint8).astype(np.int16) - 128) << 8,
    (_PCM, 16): lambda data: np.frombuffer(data, "<i2"),
    (_PCM, 24): _unpacked_24,
    (_PCM, 32): lambda data: np.frombuffer(data, "<i4"),
    (_FLOAT, 32): lambda data: np.frombuffer(data, "<f4"),
    (_FLOAT, 64): lambda data: np.frombuffer(data, "<f8"),
}


def _convert(values: NDArray[Any], dtype: SoundDtype) -> NDArray[Any]:
    if dtype == "float32":
        floats: NDArray[Any] = values.astype(np.float32)
        if values.dtype.kind != "f":
            floats /= np.float32(2 ** (8 * values.dtype.itemsize - 1))
        return floats
    if values.dtype.kind == "f":
        values = np.rint(np.clip(values, -1, 1) * 32767)
    elif values.dtype.itemsize == 4:
        values = values >> 16
    whole: NDArray[Any] = values.astype(np.int16)
    return whole


def _by_soundfile(content: bytes, dtype: SoundDtype) -> Clip:
    try:
        import soundfile  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except (ImportError, OSError) as error:  # OSError: the package is installed, but not the library that it wraps
        msg = (
            "This sound is not an uncompressed WAV, so soundfile is needed to decode it. Install it with: "
            "pip install soundfile"
        )
        raise MissingDependencyError(msg) from error
    try:
        values, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
        if dtype == "int16":
            whole = soundfile.info(io.BytesIO(content)).subtype.startswith("PCM")
            values = (
                soundfile.read(io.BytesIO(content), dtype="int16", always_2d=True)[0]
                if whole
                else _convert(values, dtype)
            )
    except (soundfile.LibsndfileError, RuntimeError) as error:
        msg = f"The sound cannot be decoded: {error}"
        raise DecodeError(msg) from error
    return Clip(values, int(rate))


# Number of clips examined for rate, channels and length, including the shortest and the longest file.
_PROBES = 16


@dataclass(frozen=True, slots=True)
class ClipOptions:
    """How clips become rows: the options of `audio_clips`, with lengths in samples."""

    length: int | None = None
    dtype: SoundDtype = "float32"
    mono: bool = False
    rate: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in get_args(SoundDtype):
            msg = f"dtype={self.dtype!r} is unknown; expected one of {', '.join(get_args(SoundDtype))}."
            raise OptionError(msg)
        for name, value in (("length", self.length), ("rate", self.rate)):
            if value is not None and value < 1:
                msg = f"{name}={value}; expected a number of samples above 0."
                raise OptionError(msg)


def clip_rows(source: SampleSource, options: ClipOptions) -> tuple[Arrays, str]:
    """Return the clips of a source as rows of one length, and a note on their form, after examining a few."""
    # File sizes stand for lengths, so the shortest and the longest clip are among those examined.
    order = np.argsort(source.sizes, kind="stable")
    chosen = sorted({int(order[place]) for place in np.linspace(0, len(order) - 1, _PROBES).astype(int)})

    def look(index: int, content: Content) -> _SeenClip:
        clip = read_clip(in_place(source.name(index), bytes(content)), options.dtype)
        return _SeenClip(source.name(index), len(clip.values), clip.values.shape[1], clip.rate)

    # Broken clips are reported when they are packed.
    seen = read_each(source, chosen, look, readers=4, skip_broken=True)
    if not seen:
        msg = f"None of the clips that were checked can be decoded (first '{source.name(chosen[0])}')."
        raise BrokenDatasetError(msg)
    decoder = _plan_rows(seen, options)
    sound = f"{decoder.rate:,} Hz, {decoder.length:,} samples ({decoder.length / decoder.rate:.2f} s)"
    rows = Arrays(source, decoder.shape, np.dtype(options.dtype), decode=decoder)
    return rows, f"Clips are stored as {options.dtype}: {sound}, {format_count(decoder.channels, 'channels')}."


class _SeenClip(NamedTuple):
    """The facts about one clip."""

    name: str
    length: int
    """Its samples, of each channel."""
    channels: int
    rate: int
    """Samples in a second."""


def _plan_rows(seen: Sequence[_SeenClip], options: ClipOptions) -> _ClipDecoder:
    """Return the form of all rows, according to those clips."""
    rates = Counter(one.rate for one in seen)
    rate = options.rate or seen[0].rate
    # With mixed rates one word would sound high and another low, which neither length nor channels show.
    if set(rates) != {rate}:
        found = ", ".join(f"{count} {'has' if count == 1 else 'have'} {one:,} Hz" for one, count in rates.most_common())
        msg = f"Of {len(seen)} clips that were checked, {found}; expected {rate:,} Hz. Resample them first."
        raise BrokenDatasetError(msg)
    channels = {one.channels for one in seen}
    # Rows have one shape, and a channel must not be dropped by a guess.
    if len(channels) > 1 and not options.mono:
        msg = (
            f"Clips have {' and '.join(map(str, sorted(channels)))} channels. Take their mean: {_example('mono=True')}."
        )
        raise BrokenDatasetError(msg)
    lengths = sorted((one.length, one.name) for one in seen)
    if options.length is None and lengths[0][0] != lengths[-1][0]:
        (short, first), (long, last) = lengths[0], lengths[-1]
        msg = (
            f"Clips have different lengths ('{first}' {short:,} samples, '{last}' {long:,}). Choose one length, to "
            f"which longer clips are cut and shorter ones padded: {_example(f'length={long}')}."
        )
        raise BrokenDatasetError(msg)
    length = options.length or lengths[0][0]
    return _ClipDecoder(options, length, 1 if options.mono else channels.pop(), rate)


def _example(option: str) -> str:
    return f"layout=audio_clips({option}), from colabstage.options"


@dataclass(frozen=True, slots=True)
class _ClipDecoder:
    """Convert a file's bytes to a row."""

    options: ClipOptions
    length: int
    """Samples of each row."""
    channels: int
    """Channels that each clip must have."""
    rate: int
    """Samples in a second that each clip must have."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,) if self.channels == 1 else (self.length, self.channels)

    def __call__(self, content: bytes) -> NDArray[Any]:
        clip = read_clip(content, self.options.dtype)
        values = clip.values
        if self.options.mono and values.shape[1] > 1:
            # In 64 bits, because the sum of two 16-bit samples does not fit into 16 bits.
            mean: NDArray[np.float64] = values.mean(axis=1, keepdims=True, dtype=np.float64)
            values = (np.rint(mean) if values.dtype.kind == "i" else mean).astype(values.dtype)
        if clip.rate != self.rate or values.shape[1] != self.channels:
            msg = (
                f"The clip has {clip.rate:,} Hz and {values.shape[1]} channels; expected {self.rate:,} Hz and "
                f"{self.channels}, like the others."
            )
            raise DecodeError(msg)
        if self.options.length is None and len(values) != self.length:
            msg = (
                f"The clip has {len(values):,} samples and the others {self.length:,}. Choose one length for "
                f"all: {_example(f'length={self.length}')}."
            )
            raise DecodeError(msg)
        # Zeros are silence, in either dtype.
        row: NDArray[Any] = np.zeros((self.length, self.channels), values.dtype)
        row[: len(values)] = values[: self.length]
        return row.reshape(self.shape)
