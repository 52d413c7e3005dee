"""What headers and statuses mean, without any server."""

from __future__ import annotations

import base64
import hashlib
import pickle
from email.utils import formatdate

import pytest
from requests.structures import CaseInsensitiveDict

from colabstage.errors import SourceAccessError, SourceNotFoundError, SourceReadError
from colabstage.sources.http_file import (
    ContentRange,
    Validators,
    coding_of,
    content_length,
    content_range,
    disposition_name,
    file_name,
    is_page,
    offered_checksum,
    page_title,
    retry_after_s,
    status_error,
)
from colabstage.sources.remote import Checksum, TransientError

URL = "https://example.org/files/data.zip"
SIGNED = f"{URL}?X-Amz-Signature=0f"
OLD, LATER = "Mon, 02 Mar 2026 10:00:00 GMT", "Mon, 02 Mar 2026 11:00:00 GMT"
SHA256 = hashlib.sha256(b"x")
MD5 = hashlib.md5(b"x", usedforsecurity=False)


def headers(**fields: str) -> CaseInsensitiveDict[str]:
    """Headers by Python names."""
    return CaseInsensitiveDict({name.replace("_", "-"): value for name, value in fields.items()})


def b64(digest: bytes) -> str:
    """As digests travel in headers."""
    return base64.b64encode(digest).decode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes 0-9/10", ContentRange(0, 10, 10)),
        ("bytes 5-5/*", ContentRange(5, 6, None)),
        ("bytes */10", ContentRange(0, 0, 10)),
        ("bytes 0-10/10", None),
        ("bytes 9-5/10", None),
        ("items 0-9/10", None),
        ("bytes 0-٩/10", None),
        ("", None),
    ],
)
def test_content_range_is_read_exactly(text: str, expected: ContentRange | None) -> None:
    """Nonsense counts as none."""
    assert content_range(headers(Content_Range=text)) == expected


def test_content_length_gives_way_to_chunks() -> None:
    """A length beside chunks is none; several that agree are one; what is no number is an error."""
    assert content_length(headers(Content_Length="12, 12")) == 12
    assert content_length(headers(Content_Length="12", Transfer_Encoding="chunked")) is None
    assert content_length(headers()) is None
    for text in ("-1", "abc", "12, 13", "1" * 5000):
        with pytest.raises(SourceReadError, match="Content-Length"):
            content_length(headers(Content_Length=text))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Validators('"a"', OLD, LATER), '"a"'),
        (Validators('W/"a"', OLD, LATER), ""),
        (Validators("", OLD, "Mon, 02 Mar 2026 10:00:01 GMT"), OLD),
        (Validators("", OLD, OLD), ""),
        (Validators("", OLD, ""), ""),
        (Validators("", "soon", "later"), ""),
    ],
)
def test_only_strong_validators_go_into_if_range(found: Validators, expected: str) -> None:
    """A strong tag, or without any tag a date that is a second older than the answer."""
    assert found.if_range == expected


def test_validators_contradict_only_where_both_speak() -> None:
    """A tag is compared with a tag, a time with a time, and silence with nothing."""
    assert Validators('"a"').contradicts(Validators('"b"'))
    assert not Validators('W/"a"').contradicts(Validators('"a"'))
    assert not Validators('"a"', OLD).contradicts(Validators('"a"', "another"))
    assert Validators("", OLD).contradicts(Validators('"b"', "another"))
    assert not Validators('"a"').contradicts(Validators("", OLD))


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After": "999999999999"}, 3600.0),
        ({"Retry_After": "Mon, 02 Mar 2026 10:00:30 GMT", "Date": OLD}, 30.0),
        ({"Retry_After": formatdate(0, usegmt=True)}, 0.0),
        ({"Retry_After": "soon"}, None),
    ],
)
def test_retry_after_takes_seconds_and_dates(fields: dict[str, str], seconds: float | None) -> None:
    """By the server's clock, never negative and never more than an hour."""
    assert retry_after_s(headers(**fields)) == seconds


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, SourceAccessError) for status in (401, 403, 407, 451)),
        *((status, SourceNotFoundError) for status in (404, 410)),
        *((status, TransientError) for status in (202, 408, 425, 429, 500, 502, 503, 504, 599)),
        *((status, SourceReadError) for status in (204, 304, 400, 418)),
    ],
)
def test_each_status_has_its_error(status: int, kind: type[Exception]) -> None:
    """The class says what can be done, the message names the status, and both survive a trip between processes."""
    error = status_error(status, headers(Retry_After="12"), URL, "the label")
    assert type(error) is kind
    assert str(status) in str(error)
    assert "the label" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    if isinstance(error, TransientError):
        assert error.wait_s == 12.0
        assert "12 s" in str(error)


@pytest.mark.parametrize(
    ("status", "url", "text", "remedy"),
    [
        (403, SIGNED, "", "expired"),
        (403, URL, "<Message>Request has expired</Message>", "expired"),
        (403, URL, "", "licence"),
        (401, URL, "", "netrc"),
        (407, URL, "", "HTTPS_PROXY"),
        (451, URL, "", "legal"),
    ],
)
def test_a_refusal_says_what_to_do(status: int, url: str, text: str, remedy: str) -> None:
    """The remedy fits the status and the address."""
    assert remedy in str(status_error(status, headers(), url, "label", text))


@pytest.mark.parametrize(
    ("disposition", "expected"),
    [
        ('attachment; filename="b c.zip"', "b c.zip"),
        ("attachment; filename=b.zip", "b.zip"),
        ("attachment; filename=\"b.zip\"; filename*=UTF-8''%C3%BC.zip", "ü.zip"),
        ("attachment; filename*=UTF-8''%FF.zip; filename=b.zip", "b.zip"),
        ('attachment; filename="Ã¼.zip"', "ü.zip"),
        ('attachment; filename="../../etc/passwd"', "passwd"),
        ('attachment; filename="C:\\\\temp\\\\b.zip"', "b.zip"),
        ('attachment; filename=".bashrc"', "bashrc"),
        ('attachment; filename=".."', "data.zip"),
        ('attachment; filename=""', "data.zip"),
        ("attachment", "data.zip"),
    ],
)
def test_the_server_names_the_file_but_not_the_place(disposition: str, expected: str) -> None:
    """The extended name wins; folders, dots in front and nothing at all do not get through."""
    assert file_name(headers(Content_Disposition=disposition), URL) == expected


def test_a_name_from_the_address() -> None:
    """The last part that has a suffix, of the original address before the one it led to; "download" at worst."""
    assert disposition_name(headers()) == ""
    assert file_name(headers(), URL, "https://cdn.example.org/0f3b.bin") == "data.zip"
    assert file_name(headers(), "https://example.org/get/7", "https://cdn.example.org/x/b.zip?sig=1") == "b.zip"
    assert file_name(headers(), "https://example.org/get/", "https://cdn.example.org/0f3b") == "0f3b"
    assert file_name(headers(), "https://example.org/%2e%2e%2fa%20b.zip") == "a b.zip"
    assert file_name(headers(), "https://example.org") == "download"
    name = file_name(headers(), f"https://example.org/{'%C3%BC' * 300}.zip")
    assert len(name.encode()) <= 200
    assert name.endswith("ü.zip")


@pytest.mark.parametrize(
    ("fields", "name", "expected"),
    [
        ({}, "a.csv", ""),
        ({"Content_Encoding": "identity"}, "a.csv", ""),
        ({"Content_Encoding": "gzip"}, "a.csv", "gzip"),
        ({"Content_Encoding": "gzip"}, "a.tar.gz", ""),
        ({"Content_Encoding": "x-gzip"}, "a.tgz", ""),
        ({"Content_Encoding": "gzip", "Content_Type": "application/x-gzip"}, "get", ""),
        ({"Content_Encoding": "br"}, "a.tar.gz", "br"),
    ],
)
def test_a_compressed_file_is_no_compressed_transfer(fields: dict[str, str], name: str, expected: str) -> None:
    """What servers say of a .tar.gz is not undone."""
    assert coding_of(headers(**fields), name) == expected


@pytest.mark.parametrize(
    ("fields", "whole", "expected"),
    [
        ({"Repr_Digest": f"sha-256=:{b64(SHA256.digest())}:"}, False, SHA256.hexdigest()),
        ({"Digest": f"md5={b64(MD5.digest())},SHA-256={b64(SHA256.digest())}"}, False, SHA256.hexdigest()),
        ({"Content_Digest": f"sha-256=:{b64(SHA256.digest())}:"}, True, SHA256.hexdigest()),
        ({"Content_Digest": f"sha-256=:{b64(SHA256.digest())}:"}, False, None),
        ({"x_goog_hash": f"crc32c=n03x6A==, md5={b64(MD5.digest())}"}, False, MD5.hexdigest()),
        (
            {"x_goog_hash": f"md5={b64(MD5.digest())}", "x_goog_stored_content_encoding": "gzip"},
            False,
            None,
        ),
        ({"x_amz_checksum_sha256": b64(SHA256.digest())}, False, SHA256.hexdigest()),
        ({"x_amz_checksum_sha256": b64(SHA256.digest()) + "-3"}, False, None),
        ({"x_amz_checksum_sha256": b64(SHA256.digest()), "x_amz_checksum_type": "COMPOSITE"}, False, None),
        ({"x_ms_blob_content_md5": b64(MD5.digest())}, False, MD5.hexdigest()),
        ({"Content_MD5": b64(MD5.digest())}, True, MD5.hexdigest()),
        ({"Content_MD5": b64(MD5.digest())}, False, None),
        ({"Content_MD5": "nonsense"}, True, None),
        ({}, True, None),
    ],
)
def test_only_hashes_of_the_whole_count(fields: dict[str, str], whole: bool, expected: str | None) -> None:
    """A hash of a part, of parts or of a compressed copy is none of the file."""
    found = offered_checksum(headers(**fields), whole=whole, first_hop={})
    assert (found and found.digest) == expected
    # Hugging Face names one at the redirect, and nowhere else.
    hop = headers(X_Linked_ETag=f'"{SHA256.hexdigest()}"')
    assert offered_checksum(headers(**fields), whole=whole, first_hop=hop) == Checksum("sha256", SHA256.hexdigest())


def test_pages_are_told_from_data() -> None:
    """By the first bytes; by the type only where the bytes could be text."""
    html = headers(Content_Type="text/html; charset=utf-8")
    assert is_page(headers(Content_Type="application/zip"), b"<!DOCTYPE html><title>x</title>")
    assert is_page(html, b"Please log in.")
    assert not is_page(html, b"PK\3\4\0\0")
    assert not is_page(html, b"")
    assert not is_page(headers(Content_Type="text/csv"), b"a,b\n1,2\n")
    assert page_title(b"<html><title lang=en>\n Sign&nbsp;in &amp;  go </title>") == "Sign in & go"
    assert page_title(b"<title>Cut of") == "Cut of"
    assert page_title(b"<p>none") == ""
