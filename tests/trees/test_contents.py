"""Telling files apart by their first bytes."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

import pytest

from colabstage.io.files import is_html
from colabstage.trees.bytes import compression_of, is_tar_head

if TYPE_CHECKING:
    from tests.trees.conftest import TarBytes


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_tars_are_known_by_their_checksum(tar_bytes: TarBytes, form: int) -> None:
    """Any format, since the oldest has no magic bytes; one bit off is no tar."""
    head = bytearray(tar_bytes({"a.jpg": b"1"}, form=form)[:512])
    assert is_tar_head(bytes(head))
    assert not is_tar_head(bytes(head[:500]))
    head[3] ^= 1
    assert not is_tar_head(bytes(head))


def test_checksums_of_signed_bytes_count(tar_bytes: TarBytes) -> None:
    """Some old tars add up signed bytes, which differs for names that are not ASCII."""
    head = bytearray(tar_bytes({"aaaa.jpg": b"1"}, form=tarfile.USTAR_FORMAT)[:512])
    head[0:2] = b"\xe9\xe8"
    head[148:156] = b" " * 8
    signed = sum(byte - 256 if byte > 127 else byte for byte in head)
    head[148:156] = b"%06o\0 " % signed
    assert is_tar_head(bytes(head))


def test_zeros_are_no_tar() -> None:
    """A file of zeros is an unfinished copy, although tar would call it an empty archive."""
    assert not is_tar_head(bytes(10_240))


@pytest.mark.parametrize(
    "head", [b"<!DOCTYPE HTML>", b"\n <html lang='de'>", b"\xef\xbb\xbf<!doctype html>", b"<!-- x --><HTML>"]
)
def test_web_pages_are_known(head: bytes) -> None:
    """In all the ways they begin."""
    assert is_html(head)


@pytest.mark.parametrize("head", [b"<?xml version='1.0'?><annotation>", b"html", b"<heading>", b""])
def test_other_markup_is_no_web_page(head: bytes) -> None:
    """Annotations are XML."""
    assert not is_html(head)


def test_only_a_whole_mark_is_a_compression() -> None:
    """gzip's third byte names its only method."""
    assert compression_of(b"\x1f\x8b\x08rest") == "gz"
    assert compression_of(b"\x1f\x8b\x00rest") is None
    assert compression_of(b"") is None
