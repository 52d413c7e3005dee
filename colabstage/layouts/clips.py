"""Audio clips as rows of one length, decoded by soundfile.

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
from colabstage.layouts.faults import broken
from colabstage.layouts.reading import in_place, read_each
from colabstage.layouts.table import Arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from colabstage.layouts.samples import Content, SampleSource

SoundDtype = Literal["float32", "int16"]

# What a program writes if it does not know the length yet and never corrects it.
_UNKNOWN_SIZE = 0xFFFFFFFF
# Number of clips examined for rate, channels and length, including the shortest and the longest file.
_PROBES = 16


class Clip(NamedTuple):
    """The samples of an audio clip, `(N, channels)`, float32 from -1 to 1 or int16; and how many there are a second."""

    values: NDArray[Any]
    rate: int


def read_clip(content: bytes, dtype: SoundDtype) -> Clip:
    """Decode a whole file by soundfile.

    Integers become floats by dividing by their full scale (a power of two), and lose their lower bits if int16 is
    requested; floats become int16 by rounding 32,767 times their value, clipped to -1 and 1.
    """
    try:
        import soundfile  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except (ImportError, OSError) as error:  # OSError: the package is installed, but not the library that it wraps
        msg = "Clips of sound are decoded by soundfile. Install it with: pip install soundfile"
        raise MissingDependencyError(msg) from error
    _check_length(content)
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            whole = file.subtype.startswith("PCM")
            values = file.read(dtype="int16" if whole and dtype == "int16" else "float32", always_2d=True)
            rate = int(file.samplerate)
    except (soundfile.LibsndfileError, RuntimeError) as error:
        msg = f"The sound cannot be decoded: {error}"
        raise DecodeError(msg) from error
    if not len(values):
        msg = "The sound has no samples: it was cut, or its header does not say how many there are."
        raise DecodeError(msg)
    if dtype == "int16" and values.dtype != np.int16:
        values = np.rint(np.clip(values, -1, 1) * 32767).astype(np.int16)
    return Clip(values, rate)


def _check_length(content: bytes) -> None:
    """Refuse a WAV that was cut, of which soundfile reads what is there."""
    at = 12 if content[:4] == b"RIFF" and content[8:12] == b"WAVE" else len(content)
    # Chunks can have any order, and editors put their own before the samples.
    while at + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, at)
        at += 8
        if size > len(content) - at and not (name == b"data" and size == _UNKNOWN_SIZE):
            msg = f"The WAV was cut: it should have {size:,} bytes from byte {at:,} on and has {len(content) - at:,}."
            raise DecodeError(msg)
        at += size + size % 2


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

    def look(index: int, content: Content) -> _Seen:
        values, rate = read_clip(in_place(source.name(index), bytes(content)), options.dtype)
        return _Seen(len(values), source.name(index), values.shape[1], rate)

    # Broken clips are reported when they are packed.
    seen = read_each(source, chosen, look, readers=4, skip_broken=True)
    if not seen:
        raise broken(source.name(chosen[0]), "neither it nor any other clip that was checked can be decoded")
    decoder = _plan_rows(seen, options)
    sound = f"{decoder.rate:,} Hz, {decoder.length:,} samples ({decoder.length / decoder.rate:.2f} s)"
    rows = Arrays(source, decoder.shape, np.dtype(options.dtype), decode=decoder)
    return rows, f"Clips are stored as {options.dtype}: {sound}, {format_count(decoder.channels, 'channels')}."


class _Seen(NamedTuple):
    """What a look at one clip shows; its length is that of each channel, in samples."""

    length: int
    name: str
    channels: int
    rate: int


def _plan_rows(seen: Sequence[_Seen], options: ClipOptions) -> _ClipDecoder:
    """Return the form of all rows, according to those clips."""
    rates = Counter(one.rate for one in seen)
    rate = options.rate or seen[0].rate
    # With mixed rates one word would sound high and another low, which neither length nor channels show.
    if set(rates) != {rate}:
        odd = next(one.name for one in seen if one.rate != rate)
        found = ", ".join(f"{count} {'has' if count == 1 else 'have'} {one:,} Hz" for one, count in rates.most_common())
        raise broken(odd, f"of {len(seen)} clips that were checked, {found}", f"{rate:,} Hz; resample them first")
    (short, first, *_), (long, last, *_) = min(seen), max(seen)
    channels = {one.channels for one in seen}
    # Rows have one shape, and a channel must not be dropped by a guess.
    if len(channels) > 1 and not options.mono:
        what = f"it and other clips have {' and '.join(map(str, sorted(channels)))} channels"
        raise broken(first, what, f"as many in all, or their mean: {_example('mono=True')}")
    if options.length is None and short != long:
        what = f"clips have different lengths (it {short:,} samples, '{last}' {long:,})"
        expected = f"one length, to which longer ones are cut and shorter ones padded: {_example(f'length={long}')}"
        raise broken(first, what, expected)
    return _ClipDecoder(options, options.length or short, 1 if options.mono else channels.pop(), rate)


def _example(option: str) -> str:
    return f"layout=audio_clips({option}), from colabstage.options"


@dataclass(frozen=True, slots=True)
class _ClipDecoder:
    """Convert a file's bytes to a row."""

    options: ClipOptions
    length: int
    channels: int
    rate: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,) if self.channels == 1 else (self.length, self.channels)

    def __call__(self, content: bytes) -> NDArray[Any]:
        values, rate = read_clip(content, self.options.dtype)
        if self.options.mono and values.shape[1] > 1:
            # In 64 bits, because the sum of two 16-bit samples does not fit into 16 bits.
            mean: NDArray[np.float64] = values.mean(axis=1, keepdims=True, dtype=np.float64)
            values = (np.rint(mean) if values.dtype.kind == "i" else mean).astype(values.dtype)
        if rate != self.rate or values.shape[1] != self.channels:
            msg = (
                f"The clip has {rate:,} Hz and {values.shape[1]} channels; expected {self.rate:,} Hz and "
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
