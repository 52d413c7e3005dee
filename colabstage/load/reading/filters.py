"""HDF5's filters undone without HDF5, so that several threads decode at once: HDF5 holds one lock for the process.

Stored chunks went through the filters in the order listed; decoding goes backwards. LZF and szip have no decoder here
(a plain Python one would be slower than HDF5's behind its lock), so chunks with these are left to HDF5.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from colabstage.errors import DecodeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DEFLATE, _SHUFFLE, _FLETCHER32, _ZSTD = 1, 2, 3, 32015
# Words in one sum of products: below 2**48, which float64 holds exactly, and within the processor's cache.
_SUMMED_WORDS = 1 << 15
_HERE = frozenset((_DEFLATE, _SHUFFLE, _FLETCHER32, _ZSTD))


@dataclass(frozen=True, slots=True)
class Filter:
    """One step of a dataset's filters: HDF5's registered `number`, its `name`, and the `values` it was set up with."""

    number: int
    name: str
    values: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name


def undecodable(filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    """Those of the filters that only HDF5 can undo."""
    return tuple(step for step in filters if step.number not in _HERE)


def decode_chunk(
    stored: bytes | NDArray[np.uint8], filters: tuple[Filter, ...], skipped: int, nbytes: int
) -> NDArray[np.uint8]:
    """Undo the filters of one chunk. From several threads at once.

    Args:
        stored: the chunk as it is in the file.
        filters: in the order they were applied; none of them `undecodable`.
        skipped: HDF5's filter mask: bit i is set where filter i was not applied to this chunk.
        nbytes: length of the result.

    Returns:
        uint8 `(nbytes,)`; over `stored` itself where no filter was applied.

    Raises:
        DecodeError: the bytes are not what these filters leave.
    """
    data = np.frombuffer(stored, np.uint8)
    try:
        for place in reversed(range(len(filters))):
            if not skipped >> place & 1:
                data = _undo(filters[place], data, nbytes)
    except (zlib.error, ValueError, MemoryError) as error:
        msg = f"A chunk of {len(data):,} stored bytes cannot be decoded ({', '.join(map(str, filters))}): {error}."
        raise DecodeError(msg) from error
    if len(data) != nbytes:
        msg = f"A chunk decodes to {len(data):,} bytes; expected {nbytes:,}."
        raise DecodeError(msg)
    return data


def _undo(step: Filter, data: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    if step.number == _DEFLATE:
        return _inflate(data, nbytes)
    if step.number == _SHUFFLE:
        return _unshuffle(data, step.values[0] if step.values else 1)
    if step.number == _FLETCHER32:
        return _without_checksum(data)
    return _unzstd(data, nbytes)


def _inflate(data: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    from isal import isal_zlib

    # isal's type information declares the exception class as an instance.
    broken = cast("type[Exception]", isal_zlib.error)
    # A checksum that follows the deflated bytes makes the chunk four bytes longer than its contents.
    try:
        return np.frombuffer(isal_zlib.decompress(data, 15, nbytes + 4), np.uint8)
    except broken as error:
        raise ValueError(str(error)) from error


def _unzstd(data: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    import zstandard

    # A decompressor must not be shared among threads, and costs less than a microsecond.
    try:
        plain = zstandard.ZstdDecompressor().decompress(data.data, max_output_size=nbytes + 4)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return np.frombuffer(plain, np.uint8)


def _unshuffle(data: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Bytes that lie by their place in the value, the first of every value, then the second, back into values."""
    count = len(data) // width if width > 1 else 0
    if count <= 1:
        return data
    result = np.empty_like(data)
    table = result[: count * width].reshape(count, width)
    # One column after another: numpy's copy of the transposed table takes several times as long.
    for place in range(width):
        table[:, place] = data[place * count : (place + 1) * count]
    result[count * width :] = data[count * width :]
    return result


def _without_checksum(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Strip the four bytes of a Fletcher-32 checksum, once it holds."""
    if len(data) < 4:
        msg = "too short for its checksum"
        raise ValueError(msg)
    values, stored = data[:-4], int.from_bytes(data[-4:].tobytes(), "little")
    first, second = fletcher32(values)
    # HDF5 adds with end-around carry, so 0 and 65535 are the same sum.
    if (stored & 0xFFFF) % 65535 != first or (stored >> 16) % 65535 != second:
        msg = "its checksum does not hold"
        raise ValueError(msg)
    return values


def fletcher32(data: NDArray[np.uint8]) -> tuple[int, int]:
    """The two sums of HDF5's Fletcher-32, each modulo 65535: of all 16-bit words (the higher byte first), and of all
    the sums on the way."""
    even = data[: len(data) // 2 * 2].view(">u2")
    first = second = 0
    left = len(even) + len(data) % 2
    # A word counts once in every sum from its own on.
    weights = np.arange(_SUMMED_WORDS, 0, -1, dtype=np.float64)
    for start in range(0, len(even), _SUMMED_WORDS):
        words = even[start : start + _SUMMED_WORDS].astype(np.float64)
        total = int(words.sum())
        first += total
        second += int((words * weights[-len(words) :]).sum()) + (left - len(words)) * total
        left -= len(words)
    if len(data) % 2:
        last = int(data[-1]) << 8
        first, second = first + last, second + last
    return first % 65535, second % 65535
