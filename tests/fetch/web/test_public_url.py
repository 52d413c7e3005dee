"""Addresses as they may be shown: nothing in them lets anybody in."""

from __future__ import annotations

import pytest

from colabstage.fetch.web.public_url import is_signed_url, public_url

SECRET = "hunter2S3cr3tValue"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "url",
    [
        f"https://ann:{SECRET}@example.org/a.zip",
        f"https://{SECRET}@example.org/a.zip",
        f"https://ann:pa@{SECRET}@example.org:8443/a.zip",
        f"https://ann:{SECRET}/x@example.org/a.zip",
        f"https://[bad:{SECRET}@example.org/a.zip",
        f"ann:{SECRET}@example.org/a.zip",
        f"https://example.org/a.zip#{SECRET}",
        *(
            f"https://example.org/a.zip?x=1&{name}={SECRET}&y=2"
            for name in (
                "X-Amz-Signature",
                "X-Amz-Credential",
                "x-amz-security-token",
                "X-Goog-Signature",
                "Signature",
                "AWSAccessKeyId",
                "Expires",
                "Policy",
                "Key-Pair-Id",
                "sig",
                "se",
                "token",
                "access_token",
                "api_key",
                "apikey",
                "key",
                "password",
                "auth",
                "session_id",
            )
        ),
    ],
)
def test_no_secret_is_shown(url: str) -> None:
    """Neither passwords, wherever they stand, nor the values of parameters that let somebody in."""
    assert SECRET not in public_url(url)


@pytest.mark.parametrize("value", [JWT, "0123456789abcdef" * 4, "AbCdEf0123456789GhIjKl", "AbCdEf0123456789%2BGhI%3D"])
def test_values_that_look_like_tokens_are_hidden(value: str) -> None:
    """A token is one under any name, and under none."""
    assert public_url(f"https://example.org/a?x={value}&n=3") == "https://example.org/a?x=…&n=3"
    assert public_url(f"https://example.org/a?{value}") == "https://example.org/a?…"


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a.zip",
        "http://127.0.0.1:8000/some%20folder/train-images-idx3-ubyte.gz",
        "https://example.org/files?download=1&file=train-images-idx3-ubyte.gz&page=2",
        "https://example.org/?empty=&flag",
    ],
)
def test_what_is_no_secret_stays(url: str) -> None:
    """An address without secrets is shown as it is."""
    assert public_url(url) == url


def test_signed_addresses_are_known() -> None:
    """A signature in the query is noticed, an identifier is none."""
    assert is_signed_url("https://example.org/a?X-Amz-Signature=0f")
    assert is_signed_url("https://example.org/a?sv=2020&sig=0f")
    assert not is_signed_url("https://example.org/a?id=AbCdEf0123456789GhIjKl")
