"""The checksum of TFRecord files, against its published values and a bit by bit computation."""

from __future__ import annotations

import numpy as np
import pytest

from colabstage.layouts.formats.tfrecord import masked_crc32c


def mask(crc: int) -> int:
    """Rotate and move a checksum, as TensorFlow stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % (1 << 32)


def bit_by_bit(data: bytes) -> int:
    """Return the checksum as its definition has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
    ids=["empty", "check", "zeros", "ones", "ascending"],
)
def test_published_values(data: bytes, expected: int) -> None:
    """Those of RFC 3720, appendix B.4, and the check value of the catalogues."""
    assert masked_crc32c(data) == mask(expected)


@pytest.mark.parametrize("length", [1, 4, 5, 63, 64, 65, 255, 256, 257, 1000, 4096, 10_007])
def test_the_library_gives_what_bits_give(length: int) -> None:
    """For lengths around those where it changes how it works."""
    data = np.random.default_rng(length).bytes(length)
    assert masked_crc32c(data) == mask(bit_by_bit(data))


def test_the_masked_form_is_tensorflows() -> None:
    """The header of a record of 9 bytes, as TensorFlow writes it."""
    length = (9).to_bytes(8, "little")
    assert masked_crc32c(length) == mask(bit_by_bit(length))
