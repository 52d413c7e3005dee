"""The checksum of TFRecord files, against its published values and a bit by bit computation."""

from __future__ import annotations

import numpy as np
import pytest

from colabstage.layouts.tfrecord_file import crc32c, crc32c_by_lanes, masked_crc32c


def bit_by_bit(data: bytes) -> int:
    """The checksum as its definition has it."""
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
    assert crc32c(data) == expected
    if len(data) >= 4:
        assert crc32c_by_lanes(data) == expected


@pytest.mark.parametrize("length", [4, 5, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257, 1000, 4096, 10_007])
def test_lanes_give_what_bits_give(length: int) -> None:
    """For lengths around the lanes' own, where the first lane is filled up."""
    data = np.random.default_rng(length).bytes(length)
    assert crc32c_by_lanes(data) == crc32c(data) == bit_by_bit(data)


def test_the_masked_form_is_tensorflows() -> None:
    """The header of a record of 9 bytes, as TensorFlow writes it."""
    assert masked_crc32c((9).to_bytes(8, "little")) == (
        (bit_by_bit(b"\x09" + bytes(7)) >> 15 | bit_by_bit(b"\x09" + bytes(7)) << 17) + 0xA282EAD8
    ) % (1 << 32)
