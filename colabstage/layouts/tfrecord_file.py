"""The file format of TFRecord: records with their checksums, and the Examples inside them.

A record is its length (8 bytes), a checksum of that, the data, and a checksum of the data; checksums are CRC-32C
(Castagnoli). An Example is a protobuf message that maps names to lists of byte strings, floats or whole numbers. It is
parsed here, so that neither TensorFlow nor protobuf has to be installed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from colabstage.errors import CorruptArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colabstage.trees.tree import ByteSource

# TensorFlow's `crc32c::Mask`.
_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
FOOTER_BYTES = _CRC.size
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Span(NamedTuple):
    """A byte string inside a record's data."""

    start: int
    """Its first byte."""
    end: int
    """The byte behind its last."""


Feature = list[Span] | list[int] | list[float]


class MessageError(ValueError):
    """The bytes are no Example."""


def masked_crc32c(data: bytes) -> int:
    """Return the checksum as TFRecord files store it: rotated and moved, so that one of checksums is no trouble.

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    # Here, because this module is loaded with every layout, and few trees have records.
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF


def is_record_head(head: bytes) -> bool:
    """Tell whether a TFRecord file begins so, by the checksum of the first record's length."""
    if len(head) < _HEADER.size:
        return False
    _, crc = _HEADER.unpack_from(head)
    return bool(crc == masked_crc32c(head[:8]))


def scan_records(source: ByteSource) -> Iterator[tuple[int, int]]:
    """Yield where the data of each record lies: first byte and length.

    Raises:
        CorruptArchiveError: a length does not meet its checksum, or the file ends inside a record.
    """
    # Only headers are read: the data of each record is verified when it is read.
    at = number = 0
    while at < source.size:
        head = source.pread(_HEADER.size, at)
        if len(head) == _HEADER.size and not is_record_head(head):
            msg = f"'{source.label}' is damaged at byte {at:,}: the length of its record {number} is not readable."
            raise CorruptArchiveError(msg)
        length = _HEADER.unpack(head)[0] if len(head) == _HEADER.size else 0
        start = at + _HEADER.size
        at = start + length + FOOTER_BYTES
        if at > source.size:
            msg = f"'{source.label}' is truncated: it ends inside its record {number}. Copy or upload it again."
            raise CorruptArchiveError(msg)
        yield start, length
        number += 1


def check_record(stored: bytes, name: str) -> bytes:
    """Return the data of a record, of the data and the checksum behind it.

    Raises:
        CorruptArchiveError: they do not agree.
    """
    data = stored[:-FOOTER_BYTES]
    if _CRC.unpack(stored[-FOOTER_BYTES:])[0] != masked_crc32c(data):
        msg = f"'{name}' is damaged: its content does not meet its checksum. Copy or upload the file again."
        raise CorruptArchiveError(msg)
    return data


def parse_example(data: bytes) -> dict[str, Feature]:
    """Return the features of an Example by name; of byte strings only where they lie.

    Raises:
        MessageError: it is no Example.
    """
    # Byte strings stay where they are, since an image would otherwise be copied once more.
    found: dict[str, Feature] = {}
    try:
        for field, features in _fields(data, Span(0, len(data))):
            if field != 1 or not isinstance(features, Span):
                continue
            for number, entry in _fields(data, features):
                if number == 1 and isinstance(entry, Span):
                    name, feature = _entry(data, entry)
                    found[name] = feature
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        msg = f"it is cut, or no protobuf message ({error})"
        raise MessageError(msg) from error
    return found


def _entry(data: bytes, entry: Span) -> tuple[str, Feature]:
    name, feature = "", Span(0, 0)
    for number, value in _fields(data, entry):
        if number == 1 and isinstance(value, Span):
            name = data[value.start : value.end].decode()
        elif number == 2 and isinstance(value, Span):
            feature = value
    found: Feature = []
    for kind, values in _fields(data, feature):
        if isinstance(values, Span):
            found = {1: _strings, 2: _floats, 3: _integers}.get(kind, _strings)(data, values)
    return name, found


def _strings(data: bytes, values: Span) -> Feature:
    return [value for _, value in _fields(data, values) if isinstance(value, Span)]


def _floats(data: bytes, values: Span) -> Feature:
    found: list[float] = []
    for _, value in _fields(data, values):
        # Packed, as every writer of today has it; one by one is what the format allows as well.
        if isinstance(value, Span):
            found += struct.unpack(f"<{(value.end - value.start) // 4}f", data[value.start : value.end])
        else:
            found += struct.unpack("<f", struct.pack("<I", value))
    return found


def _integers(data: bytes, values: Span) -> Feature:
    found: list[int] = []
    for _, value in _fields(data, values):
        if not isinstance(value, Span):
            found.append(_signed(value))
            continue
        at = value.start
        while at < value.end:
            number, at = _varint(data, at)
            found.append(_signed(number))
    return found


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _fields(data: bytes, span: Span) -> Iterator[tuple[int, Span | int]]:
    """Yield the fields of a message: number, and a span of bytes or a whole number."""
    at = span.start
    while at < span.end:
        tag, at = _varint(data, at)
        field, kind = tag >> 3, tag & 7
        value: Span | int
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind == _BYTES:
            length, at = _varint(data, at)
            value = Span(at, at + length)
            at += length
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
            value = int.from_bytes(data[at : at + length], "little")
            at += length
        else:
            msg = f"a field of kind {kind}"
            raise MessageError(msg)
        # A length that reaches too far would be taken for other fields' bytes.
        if at > span.end or field == 0:
            msg = f"a field at byte {at:,} ends after its message, of {span.end:,} bytes"
            raise MessageError(msg)
        yield field, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        # Ten bytes hold 64 bits; damage may have no end.
        if shift > 63:
            msg = f"a number at byte {at:,} that never ends"
            raise MessageError(msg)
