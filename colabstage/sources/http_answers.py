"""The meaning of a web server's answer: status, range, name, version, checksum, web pages. Pure functions.

Headers are any mapping that ignores the case of names.
"""

from __future__ import annotations

import base64
import html
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from colabstage.errors import OptionError, SourceAccessError, SourceError, SourceNotFoundError, SourceReadError
from colabstage.io.redaction import is_signed_address
from colabstage.io.stand_ins import is_html
from colabstage.sources.remote import Checksum, TransientError, parse_checksum

if TYPE_CHECKING:
    from collections.abc import Mapping

# If a server asks for more patience than this, a person should start the work again later.
_MAX_WAIT_S = 3600.0
_NAME_BYTES = 200
_TRANSIENT = frozenset({202, 408, 425, 429})
_PAGE_SUFFIXES = (".html", ".htm", ".xhtml", ".shtml")
_BINARY = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
# Compressed files that careless servers call plain ones, compressed for the transfer.
_GZIPPED = (".gz", ".tgz", ".svgz")
_OWN_CODING = {"gzip": _GZIPPED, "x-gzip": _GZIPPED, "zstd": (".zst", ".tzst"), "br": (".br",), "compress": (".z",)}
_OWN_CODING |= dict.fromkeys(("bzip2", "x-bzip2"), (".bz2", ".tbz2"))
_OWN_TYPES = frozenset({"application/gzip", "application/x-gzip", "application/x-tgz", "application/x-gtar-compressed"})


@dataclass(frozen=True, slots=True)
class ContentRange:
    """The header `Content-Range: bytes start-(stop-1)/total`; of a range that was missed, 0 to 0."""

    start: int
    """The first byte."""
    stop: int
    """The byte after the last."""
    total: int | None
    """The length of the whole file; `None` if the server does not know it."""


def content_range(headers: Mapping[str, str]) -> ContentRange | None:
    """Read the range of an answer; `None` if it is missing, empty or invalid."""
    text = headers.get("Content-Range", "")
    match = re.fullmatch(r"\s*bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)\s*", text, re.ASCII)
    if not match:
        return None
    total = None if match[3] == "*" else int(match[3])
    if match[1] is None:
        return ContentRange(0, 0, total)
    start, stop = int(match[1]), int(match[2]) + 1
    return ContentRange(start, stop, total) if start < stop and (total is None or stop <= total) else None


def content_length(headers: Mapping[str, str]) -> int | None:
    """Return the reported length, unless chunked transfer overrides it.

    Raises:
        SourceReadError: it is not a number, so that a body that was cut could not be told from a whole one.
    """
    text = headers.get("Content-Length", "").strip()
    if not text or "chunked" in headers.get("Transfer-Encoding", "").lower():
        return None
    # RFC 9110, 8.6: several that agree are one, as some proxies make of it.
    lengths = {part.strip() for part in text.split(",")}
    if len(lengths) == 1 and re.fullmatch(r"[0-9]{1,19}", one := lengths.pop()):
        return int(one)
    msg = (
        f"The server says that the file has {text[:40]!r} bytes (Content-Length), which is not a length, so nothing "
        "would tell whether all of it arrived. Use another link."
    )
    raise SourceReadError(msg)


@dataclass(frozen=True, slots=True)
class Validators:
    """What distinguishes one version of the content from another."""

    etag: str = ""
    """The entity tag, with its quotes and, if weak, its `W/`."""
    last_modified: str = ""
    """When the content was last modified, as sent."""
    date: str = ""
    """When the answer was made, as sent."""

    @property
    def version(self) -> str:
        """Return a text that changes when the content changes; "" if the server gives no such sign."""
        return self.etag or self.last_modified

    @property
    def if_range(self) -> str:
        """Return the value to send as `If-Range` by RFC 9110, 13.1.5; "" if there is none.

        A weak tag must not be sent, and neither must a date beside one. A date is strong only if the answer was made at
        least a second later (8.8.2.2), because the file could have changed twice within a second.
        """
        if self.etag:
            return "" if self.etag.startswith("W/") else self.etag
        modified, made = parse_http_date(self.last_modified), parse_http_date(self.date)
        return self.last_modified if modified is not None and made is not None and made - modified >= 1 else ""

    def contradicts(self, other: Validators) -> bool:
        """Return whether the two cannot be from the same content."""
        if self.etag and other.etag:
            # Weak or strong: a proxy that compresses weakens a tag.
            return self.etag.removeprefix("W/") != other.etag.removeprefix("W/")
        return bool(self.last_modified and other.last_modified) and self.last_modified != other.last_modified


def validators(headers: Mapping[str, str]) -> Validators:
    """Return the validators of an answer."""
    etag = headers.get("ETag", "").strip()
    # Anything that is not a tag may change with each answer.
    usable = re.fullmatch(r'(?:W/)?"[^"]*"', etag) is not None
    return Validators(etag if usable else "", headers.get("Last-Modified", "").strip(), headers.get("Date", "").strip())


def parse_http_date(text: str) -> float | None:
    """Return a header's date as seconds since 1970; `None` if it is not a date."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return seconds that `Retry-After` asks to wait, from 0 to an hour; `None` without a sensible one.

    A date (RFC 9110, 10.2.3) is compared with the server's own clock, if it is sent.
    """
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal() and text.isascii():
        return min(float(text[:9]), _MAX_WAIT_S)
    until = parse_http_date(text)
    if until is None:
        return None
    now = parse_http_date(headers.get("Date", ""))
    return min(max(until - (time.time() if now is None else now), 0.0), _MAX_WAIT_S)


def status_error(status: int, headers: Mapping[str, str], url: str, label: str, text: str = "") -> SourceError:
    """Return the typed error for an answer with this status. `text`: the beginning of its body."""
    phrase = next((one.phrase for one in HTTPStatus if one == status), "")
    shown = f"{status} {phrase}".rstrip()
    if status in {401, 403, 407, 451}:
        return SourceAccessError(f"'{label}' is refused: {shown}. {_access_remedy(status, url, text)}")
    if status in {404, 410}:
        msg = f"There is nothing at '{label}': {shown}. Check the address, or open it in a browser."
        return SourceNotFoundError(msg)
    if status == 202 and (headers.get("x-amzn-waf-action") or headers.get("Content-Length") == "0"):
        msg = f"'{label}' answers browsers only ({shown}). Download it with a browser, and give the path of that file."
        return SourceAccessError(msg)
    if status in _TRANSIENT or status >= 500:
        wait_s = retry_after_s(headers)
        asked = "" if wait_s is None else f"; it asks to be left alone for {wait_s:.0f} s"
        return TransientError(f"The server of '{label}' cannot answer now: {shown}{asked}. Try again later.", wait_s)
    msg = f"The server of '{label}' answered {shown}, which colabstage cannot use; expected the file or a part of it."
    return SourceReadError(msg)


def _access_remedy(status: int, url: str, text: str) -> str:
    if status == 407:
        return "The proxy requires a login: put it into the variable HTTPS_PROXY, as http://user:password@host:port."
    if status == 451:
        return "It is withheld for legal reasons, perhaps only in this machine's country."
    # Before the login, because a signed address needs no login, but has to be fresh.
    if is_signed_address(url) or re.search(r"(?i)\bexpired\b", text):
        return "The link carries a signature or token, which has probably expired: get a fresh link."
    if status == 401:
        return (
            "It needs a login: put it into ~/.netrc (machine HOST login USER password PASSWORD), "
            "or use a link that needs none."
        )
    return (
        "Either it needs a login or an accepted licence (log in with a browser, and see what it says), or the server "
        "wants fewer downloads from this address: wait, or get a fresh link."
    )


def coding_of(headers: Mapping[str, str], name: str) -> str:
    """Return the Content-Encoding to decode; "" for none.

    Many servers declare a `.tar.gz` as a tar that was compressed for the transfer. It was not: the file whose size and
    hash are published is the compressed one. Browsers treat it like this too.
    """
    coding = headers.get("Content-Encoding", "").strip().lower()
    is_own = name.lower().endswith(_OWN_CODING.get(coding, ())) or _content_type(headers) in _OWN_TYPES
    return "" if is_own or coding in {"identity", "none", "aws-chunked"} else coding


def _content_type(headers: Mapping[str, str]) -> str:
    return headers.get("Content-Type", "").partition(";")[0].strip().lower()


def is_page_type(headers: Mapping[str, str]) -> bool:
    """Return whether the server declares a web page."""
    return _content_type(headers) in {"text/html", "application/xhtml+xml"}


def is_page(headers: Mapping[str, str], head: bytes) -> bool:
    """Return whether the answer is a web page, by its declared type and first bytes.

    Bytes that no text contains are data, whatever the server declares.
    """
    return is_html(head) or (is_page_type(headers) and head != b"" and not _BINARY.search(head))


def names_a_page(url: str, name: str) -> bool:
    """Return whether the address itself names a web page."""
    return urlsplit(url).path.lower().endswith(_PAGE_SUFFIXES) or name.lower().endswith(_PAGE_SUFFIXES)


def page_title(head: bytes) -> str:
    """Return the title of a web page from its beginning; "" if there is none."""
    match = re.search(rb"(?is)<title[^>]*>(.*?)(?:</title|\Z)", head)
    text = html.unescape(match[1].decode("utf-8", "replace")) if match else ""
    return "".join(filter(str.isprintable, " ".join(text.split())))[:120]


def file_name(headers: Mapping[str, str], *urls: str) -> str:
    """Return the name for the file: as the server says, otherwise the last part of the first address that has one.

    An address whose last part has a suffix comes before one without; never with folders, never hidden.
    """
    given = _clean_name(disposition_name(headers))
    names = [_clean_name(unquote(urlsplit(url).path).rpartition("/")[2]) for url in urls]
    # A redirect often ends at a number; the name is then in the address before it.
    with_suffix = [name for name in names if PurePosixPath(name).suffix]
    return next(filter(None, [given, *with_suffix, *names]), "download")


def disposition_name(headers: Mapping[str, str]) -> str:
    """Return the file name of a Content-Disposition as it is: `filename*` before `filename` (RFC 6266, 4.3)."""
    text = headers.get("Content-Disposition", "")
    extended = re.search(r"(?i);\s*filename\*\s*=\s*\"?([\w-]+)'[^']*'([^;\"\s]+)", text)
    if extended:
        try:
            return unquote(extended[2], encoding=extended[1], errors="strict")
        except (LookupError, UnicodeDecodeError):
            pass
    plain = re.search(r'(?i);\s*filename\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))', text)
    name = "" if plain is None else plain[2] or re.sub(r"\\(.)", r"\1", plain[1] or "")
    try:
        # http.client reads headers as Latin-1; what servers mean is UTF-8.
        return name.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return name


def _clean_name(name: str) -> str:
    last = re.split(r"[/\\]", name)[-1]
    clean = "".join(filter(str.isprintable, last)).strip().lstrip(".").rstrip(". ")
    return shorten_name(clean, _NAME_BYTES)


def shorten_name(name: str, most_bytes: int) -> str:
    """Return the name cut to a length that a file system takes, with its suffix kept."""
    raw = name.encode("utf-8", "replace")
    if len(raw) <= most_bytes:
        return name
    suffix = PurePosixPath(name).suffix[:20]
    return raw[: most_bytes - len(suffix.encode())].decode("utf-8", "ignore") + suffix


def offered_checksum(headers: Mapping[str, str], *, whole: bool, first_hop: Mapping[str, str]) -> Checksum | None:
    """Return the strongest hash of the whole content that the service reports.

    `whole`: whether the answer has the whole content, because some headers only refer to the answer's body.
    `first_hop`: the headers of the answer that redirected here, in which Hugging Face reports a file's SHA-256.
    """
    offers: list[tuple[str, str]] = []
    for header in ("Repr-Digest", "Digest", *(("Content-Digest",) if whole else ())):
        offers += re.findall(r"(?i)(sha-256|sha-512|md5)=:?([\w+/=]+)", headers.get(header, ""))
    if headers.get("x-goog-stored-content-encoding", "identity") == "identity":
        offers += re.findall(r"(?i)(md5)=([\w+/=]+)", headers.get("x-goog-hash", ""))
    # The digest of an object uploaded in parts is a digest of their digests, and ends in their number.
    if headers.get("x-amz-checksum-type", "FULL_OBJECT").upper() == "FULL_OBJECT":
        offers.append(("sha256", headers.get("x-amz-checksum-sha256", "")))
    offers.append(("md5", headers.get("x-ms-blob-content-md5", "")))
    offers.append(("md5", headers.get("Content-MD5", "") if whole else ""))
    found = {offer.algorithm: offer for offer in map(_from_base64, offers) if offer}
    linked = re.fullmatch(r'"?([0-9a-f]{64})"?', first_hop.get("X-Linked-ETag", ""))
    if linked:
        found["sha256"] = Checksum("sha256", linked[1])
    return next((found[name] for name in ("sha256", "sha512", "md5") if name in found), None)


def _from_base64(offer: tuple[str, str]) -> Checksum | None:
    algorithm, text = offer
    try:
        return parse_checksum(f"{algorithm}:{base64.b64decode(text, validate=True).hex()}")
    # A value that is not a checksum of its kind is ignored.
    except (ValueError, OptionError):
        return None
