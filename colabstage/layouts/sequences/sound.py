"""Clips of sound from their files' bytes: WAV here, FLAC and others by soundfile where it is installed."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from colabstage.errors import DecodeError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SoundDtype = Literal["float32", "int16"]
SOUND_EXTENSIONS = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff")

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# What a program writes that does not know the length yet, and then never does.
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)


class Clip(NamedTuple):
    """`values`: `(N, channels)`, float32 from -1 to 1, or int16. `rate`: samples in a second."""

    values: NDArray[Any]
    rate: int


class _Wav(NamedTuple):
    """What the header says, and where the samples are."""

    code: int
    channels: int
    rate: int
    bits: int
    data: memoryview


def read_clip(content: bytes, dtype: SoundDtype) -> Clip:
    """Decode a whole file.

    Whole numbers become floats by dividing by the largest of their kind (a power of two), and lose their lower bits
    where int16 is asked for; floats become int16 by rounding 32,767 times their value, cut at -1 and 1.

    Raises:
        DecodeError: it is damaged, or no sound of a kind known here.
        MissingDependencyError: it is no WAV of plain numbers, and soundfile is not installed.
    """
    wav = _parse_wav(content) if content[:4] == b"RIFF" and content[8:12] == b"WAVE" else None
    if wav is None:
        return _by_soundfile(content, dtype)
    values = _KNOWN[wav.code, wav.bits](wav.data)
    return Clip(_convert(values, dtype).reshape(-1, wav.channels), wav.rate)


def _parse_wav(content: bytes) -> _Wav | None:
    """What a WAV holds; `None` where its samples are packed, or of another kind."""
    code = channels = rate = align = bits = at = 0
    at = 12
    while at + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, at)
        at += 8
        if name == b"fmt " and size >= 16:
            if at + size > len(content):
                break
            code, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", content, at)
            if code == _EXTENSIBLE and size >= 40:
                (code,) = struct.unpack_from("<H", content, at + 24)
        elif name == b"data":
            if code and (code, bits) not in _KNOWN:
                return None
            if not channels or align != channels * bits // 8:
                msg = f"The WAV has {channels} channels of {bits} bits in blocks of {align} bytes, which cannot be."
                raise DecodeError(msg)
            return _Wav(code, channels, rate, bits, _samples(content, at, size, align))
        at += size + size % 2
    msg = "The WAV was cut: it ends before its samples begin."
    raise DecodeError(msg)


def _samples(content: bytes, at: int, size: int, align: int) -> memoryview:
    there = len(content) - at
    if size in _UNKNOWN_SIZES:
        size = there - there % align
    if size > there or size % align:
        msg = f"The WAV was cut: it should have {size:,} bytes of samples and has {there:,}."
        raise DecodeError(msg)
    return memoryview(content)[at : at + size]


def _unpacked_24(data: memoryview) -> NDArray[np.int32]:
    """Numbers of 24 bits as the upper part of int32."""
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
    except (ImportError, OSError) as error:  # OSError: the package is there, the library it wraps is not
        msg = (
            "This sound is no WAV of plain numbers, so soundfile is needed to decode it. Install it with: "
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
