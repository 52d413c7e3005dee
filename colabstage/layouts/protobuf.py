"""Protobuf messages, parsed without protobuf: fields, and the spans of their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class ByteSpan(NamedTuple):
    """A byte string inside a record's data."""

    start: int
    end: int
    """The byte behind its last."""


class BadMessageError(ValueError):
    """The bytes are no such message."""


def message_fields(data: bytes, span: ByteSpan) -> Iterator[tuple[int, ByteSpan | int]]:
    """Yield the fields of a protobuf message: number, and a span of bytes or a whole number."""
    at = span.start
    while at < span.end:
        tag, at = read_varint(data, at)
        field, kind = tag >> 3, tag & 7
        value: ByteSpan | int
        if kind == _VARINT:
            value, at = read_varint(data, at)
        elif kind == _BYTES:
            length, at = read_varint(data, at)
            value = ByteSpan(at, at + length)
            at += length
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
            value = int.from_bytes(data[at : at + length], "little")
            at += length
        else:
            msg = f"a field of kind {kind}"
            raise BadMessageError(msg)
        # A length that reaches too far would be taken for other fields' bytes.
        if at > span.end or field == 0:
            msg = f"a field at byte {at:,} ends after its message, of {span.end:,} bytes"
            raise BadMessageError(msg)
        yield field, value


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a whole number, and where the next field begins."""
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
            raise BadMessageError(msg)
