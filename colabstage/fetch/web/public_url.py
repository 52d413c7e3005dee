"""A web address as it may be shown: without passwords, tokens and signatures."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_HIDDEN = "…"
# Query parameters whose value lets its bearer in, or belongs to a signature: Amazon's, Google's and Azure's signed
# links, and what services and people call their keys.
_SECRET_NAMES = re.compile(
    r"(?i)x-(?:amz|goog|oss|cos|bz)-.*|aws.?access.?key.?id|google.?access.?id|key-pair-id|policy|expires|exp"
    r"|s[evrptk]|spr|ske|sks|skt|skv|sktid|skoid|st|.*(?:sig|signature|token|secret|passw|pwd|credential|auth|session"
    r"|api.?key|access.?key|cookie|ticket|nonce|jwt).*|(?:.*[-_.])?key|code|pass|hmac|verify|confirm|uuid|rlkey"
)
_TOKEN = re.compile(
    r"eyJ[\w-]{8,}.*|[0-9a-fA-F-]{32,}|(?=[^0-9]*[0-9])(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?:[\w+/=-]|%[0-9A-Fa-f]{2}){20,}"
)


def public_url(url: str) -> str:
    """The address without user and password, without values in its query that look like secrets, without a fragment.

    >>> public_url("https://ann:pw@example.org/a.zip?id=7&X-Amz-Signature=0f3b")
    'https://example.org/a.zip?id=7&X-Amz-Signature=…'
    """
    try:
        parts = urlsplit(url.strip())
        host = parts.netloc.rpartition("@")[2]
        readable = bool(parts.scheme and host) and (parts.port is None or parts.port >= 0)
    except ValueError:
        readable = False
    if not readable:
        # Where the password ends is anybody's guess in an address that cannot be read.
        scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", url.strip())
        return f"{scheme[0] if scheme else ''}{_HIDDEN}"
    shown = f"{parts.scheme}://{host}{parts.path}"
    return f"{shown}?{'&'.join(map(_public_pair, parts.query.split('&')))}" if parts.query else shown


def is_signed_url(url: str) -> bool:
    """Whether the address carries a signature or a token of its own, which may expire."""
    names = (pair.partition("=")[0] for pair in url.partition("#")[0].partition("?")[2].split("&"))
    return any(_SECRET_NAMES.fullmatch(name) for name in names)


def _public_pair(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals:
        return _HIDDEN if _TOKEN.fullmatch(name) else name
    return f"{name}={_HIDDEN}" if value and (_SECRET_NAMES.fullmatch(name) or _TOKEN.fullmatch(value)) else pair
