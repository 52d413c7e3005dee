"""One file on a web server: its facts, and any part of it, checked against what the server promised."""

from __future__ import annotations

import base64
import contextlib
import gzip
import html
import http.client
import itertools
import re
import ssl
import threading
import zlib
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from colabstage.errors import (
    ColabstageError,
    OptionError,
    SourceAccessError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    SourceReadError,
    WebPageError,
)
from colabstage.io.files import RetryPolicy, is_html
from colabstage.io.pipeline import in_thread
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.units import hide_secrets, is_signed_address, show_address
from colabstage.sources.remote import (
    Checksum,
    RemoteFacts,
    RemoteFile,
    TransientError,
    at_least_rate,
    parse_checksum,
    with_retries,
)
from colabstage.trees.bytes import describe_contents, is_text, is_text_for_an_archive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    import requests

    from colabstage.io.progress import Clock


# The connections to one address on the web: redirects, logins, time limits, and the meaning of failures.


AGENT = "colabstage"
# More than are ever in flight at once, so that no connection is discarded after use.
_POOL_CONNECTIONS = 64
_CONNECT_TIMEOUT_S = 15.0
_ANSWER_TIMEOUT_S = 60.0
# No service needs more; requests would follow thirty, each within its own time limit.
_MAX_REDIRECTS = 10
# A page of a service, or an answer of its interface, is shorter.
_MAX_PAGE_BYTES = 16 * 1024 * 1024
# The statuses with which services answer an expired address.
_EXPIRED = frozenset({400, 401, 403, 404, 410})


class HttpSession:
    """The answers of one address. May be used by many threads at once.

    Redirects are followed once. Services that redirect (releases, data sets, mirrors) give an address that is valid for
    minutes or hours. Following the redirect for each of hundreds of parts would double the latency, exceed the
    service's request limit, and might end at a different mirror with another ETag each time. So parts are requested
    from where the first answer came from. If that refuses, or answers with a page, the address is resolved again, once:
    by `resolve`, for a service with an interface of its own, otherwise by following the redirect.

    After `timeout_s` seconds of silence a connection counts as failed.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        clock: Clock = SYSTEM_CLOCK,
        *,
        resolve: Callable[[], str] | None = None,
        label: str = "",
        agent: str = AGENT,
    ) -> None:
        self.timeout_s = timeout_s
        self.clock = clock
        self.label = label or show_address(url)
        self.url, self._login = _without_login(url, self.label)
        self._resolve = resolve
        self._target = self.url
        self._has_answered = False
        self._agent = agent
        self._session = _new_session(self.label, agent)
        self._lock = threading.Lock()
        self._resolving = threading.Lock()
        # The answers being read, which another thread may close.
        self._open: set[requests.Response] = set()
        self._closed = False

    def open_again(self) -> HttpSession:
        """Return a session for the same address with connections of its own."""
        again = HttpSession(
            self.url, self.timeout_s, self.clock, resolve=self._resolve, label=self.label, agent=self._agent
        )
        again._login, again._target, again._has_answered = self._login, self._target, True
        return again

    @contextlib.contextmanager
    def get(self, headers: dict[str, str]) -> Iterator[requests.Response]:
        """Yield the answer to a GET before its body is read; the connection is closed at the end, unless the body was
        read completely.

        Failures inside the block, too, become TransientError or the error they are.
        """
        with _translated(self.label, self._check_open):
            response = self._ask(headers)
            try:
                with self._lock:
                    self._open.add(response)
                yield response
                # A body without a length looks complete when the connection is closed.
                self._check_open()
            finally:
                with self._lock:
                    self._open.discard(response)
                # Reads to its end have given the connection back already; else it is closed for good.
                shut_down(response)
                response.close()
                # Given back to a session that was closed meanwhile, it would stay open.
                if self._closed:
                    self._session.close()

    def close(self) -> None:
        """Close all connections, and wake whoever reads from them. Calling it twice is fine."""
        with self._lock:
            self._closed = True
            reading = list(self._open)
        for response in reading:
            shut_down(response)
        self._session.close()

    def _ask(self, headers: dict[str, str]) -> requests.Response:
        target = self._target
        response = self._send(target, headers)
        if self._is_outdated(response, target):
            response.close()
            target = self._resolve_again(target)
            response = self._send(target, headers)
        if response.ok and not _is_page(response):
            self._target, self._has_answered = response.url, True
        return response

    def _is_outdated(self, response: requests.Response, target: str) -> bool:
        """Return whether another address may have the file that this one no longer gives."""
        if self._resolve is None and target == self.url:
            return False
        status = response.status_code
        # What a service's failures mean it says itself; while a file is read, these are as temporary as elsewhere.
        fails = self._resolve is not None and not self._has_answered and (status == 429 or status >= 500)
        return status in _EXPIRED or fails or _is_page(response)

    def _resolve_again(self, outdated: str) -> str:
        with self._resolving:
            # Another thread may have done it.
            if self._target == outdated:
                self._target = self._resolve() if self._resolve else self.url
            return self._target

    def _send(self, url: str, headers: dict[str, str]) -> requests.Response:
        from requests.auth import HTTPBasicAuth

        self._check_open()
        # A password is only for the server that it was given for, not for one that it redirects to.
        login = self._login if _origin(url) == _origin(self.url) else None
        timeouts = (min(self.timeout_s, _CONNECT_TIMEOUT_S), self.timeout_s)
        try:
            return self._session.get(
                url, headers=headers, auth=login and HTTPBasicAuth(*login), timeout=timeouts, stream=True
            )
        except ValueError:
            # From the parsing of an address that a redirect named; its text may show all of it.
            msg = f"'{self.label}' is, or leads to, an address that cannot be asked for. Check it in a browser."
            raise SourceReadError(msg) from None

    def _check_open(self) -> None:
        if self._closed:
            msg = f"'{self.label}' was closed, so nothing more can be read of it."
            raise SourceReadError(msg)


def _is_page(response: requests.Response) -> bool:
    return response.status_code == 200 and is_page_type(response.headers)


def shut_down(response: requests.Response) -> None:
    """Cut the connection of an answer, also while another thread reads it."""
    # Fails for an answer that has just ended.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        response.raw.shutdown()


class WebAnswer(NamedTuple):
    """A service's answer; `text` is "" if it is neither a page nor JSON, and `url` where the redirects ended."""

    status: int
    url: str
    headers: Mapping[str, str]
    text: str


def ask_service(
    url: str,
    label: str,
    *,
    params: Mapping[str, str] | None = None,
    json: object = None,
    auth: Any = None,
    headers: Mapping[str, str] | None = None,
    redirects: bool = True,
    agent: str = AGENT,
) -> WebAnswer:
    """Return the answer to one question to a service, whatever its status is: a GET, or with `json` a POST."""
    with (
        _translated(label),
        _new_session(label, agent) as session,
        session.request(
            "GET" if json is None else "POST",
            url,
            params=params,
            json=json,
            auth=auth,
            headers=headers,
            allow_redirects=redirects,
            stream=True,
            timeout=(_CONNECT_TIMEOUT_S, _ANSWER_TIMEOUT_S),
        ) as response,
    ):
        return WebAnswer(response.status_code, response.url, response.headers, _text_of(response))


def _text_of(response: requests.Response) -> str:
    kind = response.headers.get("Content-Type", "")
    if "Content-Disposition" in response.headers or not ("html" in kind or "json" in kind):
        return ""
    # An endless answer is no page.
    return bytes(response.raw.read(_MAX_PAGE_BYTES, decode_content=True)).decode("utf-8", "replace")


@contextlib.contextmanager
def _translated(label: str, check_open: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Raise our own errors for those of requests, urllib3 and the system, whose texts may show the whole address."""
    try:
        yield
    except ColabstageError:
        raise
    except (OSError, http.client.HTTPException, _urllib3_error()) as error:
        # Closing makes reads fail in many ways; all are reported as the same error.
        check_open()
        raise connection_error(error, label) from None


def _urllib3_error() -> type[Exception]:
    from urllib3.exceptions import HTTPError

    return HTTPError


def connection_error(error: BaseException, label: str) -> SourceError:
    """Return the typed error for a connection that failed, with the innermost reason: outer ones show addresses."""
    import requests.exceptions as failures
    import urllib3.exceptions as urllib3_failures

    inner = _innermost(error)
    timeouts = (TimeoutError, failures.Timeout, urllib3_failures.TimeoutError)
    cut = (http.client.IncompleteRead, urllib3_failures.IncompleteRead, http.client.RemoteDisconnected)
    # These two would be refused again and again, so they are not transient.
    if isinstance(inner, ssl.SSLCertVerificationError):
        msg = (
            f"The certificate of the server of '{label}' is not trusted: {inner.verify_message}. If it is your own, "
            "name the file of its authority in the variable REQUESTS_CA_BUNDLE."
        )
        return SourceReadError(msg)
    if isinstance(error, failures.TooManyRedirects):
        msg = f"'{label}' redirects in a loop. Open it in a browser; it may want a login or cookies."
        return SourceReadError(msg)
    if isinstance(error, timeouts) or isinstance(inner, timeouts):
        reason = "the server sent nothing, or hardly anything, for too long"
    elif isinstance(inner, cut):
        reason = "it was closed before everything had arrived"
    elif isinstance(inner, http.client.HTTPException | urllib3_failures.HTTPError):
        reason = "its answer is not understood"
    else:
        reason = (isinstance(inner, OSError) and inner.strerror) or "it broke"
    return TransientError(f"The connection to '{label}' failed: {reason}. Finished work is kept; try again.")


def _innermost(error: BaseException) -> BaseException:
    seen: set[int] = set()
    # Causes may form a cycle.
    while id(error) not in seen:
        seen.add(id(error))
        candidates: tuple[Any, ...] = (getattr(error, "reason", None), *error.args, error.__cause__, error.__context__)
        error = next((inner for inner in candidates if isinstance(inner, BaseException)), error)
    return error


def _without_login(url: str, label: str) -> tuple[str, tuple[bytes, bytes] | None]:
    """Return the address without user, password and fragment, and these two, as they are sent."""
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme.lower() in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        msg = f"'{label}' is not a web address; expected https://HOST/PATH."
        raise OptionError(msg)
    login = None
    if parts.username is not None:
        login = (unquote(parts.username).encode(), unquote(parts.password or "").encode())
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl(), login


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _new_session(label: str, agent: str) -> requests.Session:
    import requests
    from requests.adapters import HTTPAdapter

    class Session(requests.Session):
        """Never redirect from https to http, nor to anything other than the web."""

        def get_redirect_target(self, resp: requests.Response) -> str | None:
            target = super().get_redirect_target(resp)
            is_secure = resp.url.lower().startswith("https:")
            if target is None or not is_secure or urlsplit(target).scheme.lower() in {"", "https"}:
                return target
            resp.close()
            msg = (
                f"'{label}' redirects from https to '{show_address(target)}', where anybody on the way could exchange "
                "the data. If you trust the way, pass that address yourself."
            )
            raise SourceReadError(msg)

    session = Session()
    # No retries here, because the reader continues at the byte where it stopped.
    adapter = HTTPAdapter(pool_connections=8, pool_maxsize=_POOL_CONNECTIONS, max_retries=0)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    session.max_redirects = _MAX_REDIRECTS
    session.headers.update({"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": agent})
    return session


# The meaning of a web server's answer: status, range, name, version, checksum, web pages. Pure functions.
#
# Headers are any mapping that ignores the case of names.


# If a server asks for more patience than this, a person should start the work again later.
_MAX_WAIT_S = 3600.0
_NAME_BYTES = 200
_TRANSIENT = frozenset({202, 408, 425, 429})
_PAGE_SUFFIXES = (".html", ".htm", ".xhtml", ".shtml")
# Compressed files that careless servers call plain ones, compressed for the transfer.
_GZIPPED = (".gz", ".tgz", ".svgz")
_OWN_CODING = {"gzip": _GZIPPED, "x-gzip": _GZIPPED, "zstd": (".zst", ".tzst"), "br": (".br",), "compress": (".z",)}
_OWN_CODING |= dict.fromkeys(("bzip2", "x-bzip2"), (".bz2", ".tbz2"))
_OWN_TYPES = frozenset({"application/gzip", "application/x-gzip", "application/x-tgz", "application/x-gtar-compressed"})


class ContentRange(NamedTuple):
    """The header `Content-Range: bytes start-(stop-1)/total`; of a range that was missed, 0 to 0.

    `total` is `None` if the server does not know the length of the file.
    """

    start: int
    stop: int
    total: int | None


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
    """Return the reported length, unless chunked transfer overrides it."""
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

    @property
    def version(self) -> str:
        """Return a text that changes when the content changes; "" if the server gives no such sign.

        Weak or strong: a proxy that compresses weakens a tag.
        """
        return self.etag.removeprefix("W/") or self.last_modified

    @property
    def if_range(self) -> str:
        """Return the value to send as `If-Range`, a strong tag (RFC 9110, 13.1.5); "" if there is none."""
        return "" if self.etag.startswith("W/") else self.etag

    def contradicts(self, other: Validators) -> bool:
        if self.etag and other.etag:
            return self.version != other.version
        return bool(self.last_modified and other.last_modified) and self.last_modified != other.last_modified


def validators(headers: Mapping[str, str]) -> Validators:
    etag = headers.get("ETag", "").strip()
    # Anything that is not a tag may change with each answer.
    usable = re.fullmatch(r'(?:W/)?"[^"]*"', etag) is not None
    return Validators(etag if usable else "", headers.get("Last-Modified", "").strip())


def parse_http_date(text: str) -> float | None:
    """Return a header's date as seconds since 1970; `None` if it is not a date."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return seconds that `Retry-After` asks to wait, from 0 to an hour; `None` without a sensible one."""
    from urllib3.exceptions import InvalidHeader
    from urllib3.util import Retry

    try:
        return min(Retry().parse_retry_after(headers.get("Retry-After", "")), _MAX_WAIT_S)
    # Numbers and years that Python does not take.
    except (InvalidHeader, ValueError, OverflowError):
        return None


def status_error(status: int, headers: Mapping[str, str], url: str, label: str, text: str = "") -> SourceError:
    """Return the typed error for an answer with this status. `text`: the beginning of its body."""
    phrase = next((one.phrase for one in HTTPStatus if one == status), "")
    shown = f"{status} {phrase}".rstrip()
    if status in {401, 403, 407, 451}:
        return SourceAccessError(f"'{label}' is refused: {shown}. {_access_remedy(url, text)}")
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


def _access_remedy(url: str, text: str) -> str:
    # Before the login, because a signed address needs no login, but has to be fresh.
    if is_signed_address(url) or re.search(r"(?i)\bexpired\b", text):
        return "The link carries a signature or token, which has probably expired: get a fresh link."
    return (
        "Open it in a browser to see what it needs: a login (put it into ~/.netrc, as machine HOST login USER password "
        "PASSWORD), an accepted licence, or fewer downloads from this address (wait, or get a fresh link)."
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
    return _content_type(headers) in {"text/html", "application/xhtml+xml"}


def is_page(headers: Mapping[str, str], head: bytes) -> bool:
    """Return whether the answer is a web page, by its declared type and first bytes.

    Bytes that no text contains are data, whatever the server declares.
    """
    return is_html(head) or (is_page_type(headers) and is_text(head))


def names_a_page(url: str, name: str) -> bool:
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


_TIMEOUT_S = 30.0
# The first request asks for this much: enough for a page's title, and it still arrives in the first round trip.
_LOOK_BYTES = 8 * 1024
# Beside twice the timeout, the longest that a look takes.
_LOOK_S = 5.0
# The longest wait for what was requested in addition.
_LONGEST_TAIL_S = 60.0
_PIECE_BYTES = 256 * 1024
# As many as servers serve at full speed to one client; aria2 has the same limit.
_CONNECTIONS = 16
# Some servers answer like this to a range that they do not like, but send the whole file.
_NO_RANGES = frozenset({206, 400, 405, 412, 416, 501})


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes of a file that came when it was opened."""

    start: int
    data: bytes
    total: int | None
    """The size of the file, as reported with them; `None` if the server does not know it."""
    validators: Validators


def open_http(
    url: str,
    *,
    checksum: Checksum | None = None,
    timeout_s: float = _TIMEOUT_S,
    policy: RetryPolicy | None = None,
    clock: Clock = SYSTEM_CLOCK,
    along_bytes: int = 0,
    resolve: Callable[[], str] | None = None,
    label: str = "",
    agent: str = AGENT,
) -> HttpFile:
    """Open a file on a web server.

    A part of it is requested, because nothing else proves that parts are served; `HEAD` is never used, because signed
    addresses and many services refuse it. User and password in the address are used, and never shown.

    Args:
        url: `http://` or `https://`.
        checksum: the expected checksum, if the caller knows it; otherwise the one that the server reports, if any.
        timeout_s: seconds of silence, at any time, after which the connection counts as failed.
        policy: how often to try again when the first look fails in a transient way.
        clock: by which these tries wait, and bodies are timed; sockets have time limits of their own.
        along_bytes: how much of its beginning and, at the same time, of its end to request for `HttpFile.known`, so
            that reading these next costs no round trip. 0 for no more than the look needs.
        resolve, label, agent: as of `HttpSession`.

    Raises:
        OptionError: `url` is not a web address.
        SourceAccessError, SourceNotFoundError, WebPageError, SourceReadError: as they say.
        TransientError: the server could not answer, after all tries.
    """
    session = HttpSession(url, timeout_s, clock, resolve=resolve, label=label, agent=agent)
    try:
        tail = in_thread(lambda: _ask_for_tail(session, along_bytes), "colabstage-end") if along_bytes else None
        # Again for less: a server that cuts each connection early never sends what is asked for along.
        lengths = itertools.chain([max(_LOOK_BYTES, along_bytes)], itertools.repeat(_LOOK_BYTES))
        return with_retries(lambda: _look(session, checksum, next(lengths), tail), policy or RetryPolicy(), clock.sleep)
    # Nobody else uses the session yet.
    except BaseException:
        session.close()
        raise


class HttpFile(RemoteFile):
    """A `RemoteFile` on a web server. Made by `open_http`. `headers`: those of the first answer."""

    def __init__(
        self,
        session: HttpSession,
        facts: RemoteFacts,
        headers: Mapping[str, str],
        head: _Part,
        tail: Future[_Part | None] | None = None,
    ) -> None:
        self.facts = facts
        self.headers = headers
        self._session = session
        self._head = head
        self._tail = tail
        self._name = facts.name
        # Whether the server declares the data as a web page.
        self._is_page = is_page_type(headers) or names_a_page(session.url, facts.name)

    def open_again(self) -> HttpFile:
        """Return the same file with connections of its own, without a request."""
        return HttpFile(self._session.open_again(), self.facts, self.headers, self._head)

    def known(self, offset: int, stop: int) -> bytes | None:
        """Return bytes that came along when it was opened; `None` where these did not. May wait for those of its end,
        which were requested then."""
        head = self._head
        if self.facts.ranges and stop <= len(head.data):
            return head.data[offset:stop]
        try:
            # The session's time limits end it sooner.
            tail = self._tail.result(_LONGEST_TAIL_S) if self._tail and self.facts.ranges else None
        # Reading the usual way tells what is wrong.
        except Exception:  # noqa: BLE001 - as above
            return None
        # From another state of the file they are of no use.
        if tail is None or tail.total != head.total or tail.validators.contradicts(head.validators):
            return None
        return tail.data[offset - tail.start : stop - tail.start] if tail.start <= offset else None

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Read as `RemoteFile.read_range`. Each call is one request on a connection that is kept for the next.

        Raises:
            OptionError: the file has no such part, or only its whole can be had.
        """
        size = self.facts.size
        stop = size if length is None else offset + length
        known = size is None or stop is None or offset <= stop <= size
        if offset < 0 or (length or 0) < 0 or not known or (offset and not self.facts.ranges):
            whole = "" if self.facts.ranges else " Its server gives only the whole, from the beginning."
            msg = f"'{self.facts.label}' has no part of {length} bytes at {offset}; its size is {size}.{whole}"
            raise OptionError(msg)
        # HTTP cannot request an empty range.
        return iter(()) if stop == offset else self._read(offset, stop)

    def close(self) -> None:
        self._session.close()

    def _read(self, offset: int, stop: int | None) -> Iterator[bytes]:
        headers = {}
        if self.facts.ranges and stop is not None:
            headers = {"Range": f"bytes={offset}-{stop - 1}"}
            if self._head.validators.if_range:
                # From another state the server then sends the whole file, which differs from a part by its status.
                headers["If-Range"] = self._head.validators.if_range
        with self._session.get(headers) as response:
            self._check_answer(response, offset, stop if headers else None)
            found = content_range(response.headers) if response.status_code == 206 else None
            # A server may send less than requested; what it promises comes, and the rest is requested again.
            promised = stop if found is None else found.stop
            coding = self._coding(response)
            left = None if promised is None else promised - offset
            for piece in _content(response, self._session, coding, None if coding else left):
                yield piece[:left]
                left = None if left is None else max(0, left - len(piece))
                if left == 0:
                    break
            if left or promised != stop:
                came, asked = (promised or 0) - (left or 0) - offset, (stop or 0) - offset
                msg = f"The server of '{self.facts.label}' sent {came} of the {asked} bytes it promised. Try again."
                raise TransientError(msg)
            if (
                stop is not None
                and (found or (stop == self.facts.size and not coding))
                and not _is_at_end(response, self._session)
            ):
                msg = f"The server of '{self.facts.label}' sent more than the {stop - offset} bytes it promised."
                raise SourceReadError(msg)

    def _check_answer(self, response: requests.Response, offset: int, stop: int | None) -> None:
        """Raise the error for an answer that is not the requested part of the file as it was, or with `stop=None` its
        whole."""
        status, headers, label = response.status_code, response.headers, self.facts.label
        if status == 200 and is_page_type(headers) and not self._is_page:
            # An expired login or a limit: a page with status 200, in the middle of the data.
            raise _page_error(label, _read_head(response, self._session, self._coding(response)))
        if status not in (200, 206, 416):
            raise _error_of(response, self._session)
        found, coding = content_range(headers), self._coding(response)
        # A length of compressed bytes says nothing of the file.
        size = found and found.total if status != 200 else None if coding else content_length(headers)
        now, before = validators(headers), self._head.validators
        if now.contradicts(before) or (size is not None and self.facts.size not in (None, size)):
            versions = f"from version {before.version} of {self.facts.size} bytes to {now.version} of {size}"
            msg = (
                f"'{label}' became another file while it was read, {versions}. Start again; if it happens each time, "
                "several servers with different copies may answer at this address."
            )
            raise SourceChangedError(msg)
        if status == 416:
            # One of several servers behind the address may not have the file yet.
            msg = f"The server of '{label}' says that it has no such part (416), which it has. Try again."
            raise TransientError(msg)
        if status == 206:
            fault = _fault_of_part(headers, coding, offset, stop)
            if fault:
                msg = f"The server of '{label}' {fault}. It cannot be trusted with parts; try again later."
                raise SourceReadError(msg)
            return
        # Without a sign on both sides, a whole of the same length may be another state.
        is_same = bool(now.version and before.version)
        if stop is not None and (offset or coding or not is_same):
            sign = "by its ETag or time it is unchanged" if is_same else "nothing says whether it has changed"
            msg = f"The server of '{label}' sent the whole file where a part was requested; {sign}. Try again."
            raise TransientError(msg)

    def _coding(self, response: requests.Response) -> str:
        return coding_of(response.headers, self._name)


def _fault_of_part(headers: Mapping[str, str], coding: str, offset: int, stop: int | None) -> str:
    """Return what is wrong with an answer that should have the requested part, or at least its beginning; "" if
    nothing is."""
    found, sent = content_range(headers), headers.get("Content-Range", "none")
    if found is None or found.start != offset or stop is None or found.stop > stop:
        return f"was asked for the bytes {offset} to {(stop or 0) - 1} and sent others (Content-Range: {sent})"
    if coding:
        # Parts of compressed and of plain content do not fit together.
        return f"compressed a part of the file ({coding}), though asked not to"
    is_long = (content_length(headers) or 0) > found.stop - offset
    return f"sends more bytes than the part has (Content-Range: {sent})" if is_long else ""


def _look(session: HttpSession, checksum: Checksum | None, length: int, tail: Future[_Part | None] | None) -> HttpFile:
    """Ask for the facts and the beginning of a file, in a limited time: a socket's own time limit starts over with
    every byte."""
    answer = in_thread(lambda: _ask_for_head(session, checksum, length, tail), "colabstage-look")
    try:
        return answer.result(2 * session.timeout_s + _LOOK_S)
    except TimeoutError as error:
        if answer.done():
            raise
        raise connection_error(error, session.label) from None


def _ask_for_tail(session: HttpSession, length: int) -> _Part | None:
    """Return the last bytes of a file; `None` if the server does not send exactly these."""
    with session.get({"Range": f"bytes=-{length}"}) as response:
        part = _read_part(response, session, length)
        return part if part is not None and part.start + len(part.data) == part.total else None


def _ask_for_head(
    session: HttpSession, checksum: Checksum | None, length: int, tail: Future[_Part | None] | None
) -> HttpFile:
    with session.get({"Range": f"bytes=0-{length - 1}"}) as response:
        part = _read_part(response, session, length)
        if part is not None and part.start == 0 and len(part.data) == min(length, part.total or 0):
            return _judge(session, response, checksum, part, tail)
        missed = content_range(response.headers)
        # An empty file has no first byte.
        if response.status_code == 416 and missed is not None and missed.total == 0:
            return _judge(session, response, checksum, _Part(0, b"", 0, validators(response.headers)))
        if response.status_code == 200:
            return _judge(session, response, checksum)
        if response.status_code not in _NO_RANGES:
            raise _error_of(response, session)
    # Once more without a range, which some servers refuse though they have the file.
    with session.get({}) as response:
        if response.status_code != 200:
            raise _error_of(response, session)
        return _judge(session, response, checksum)


def _read_part(response: requests.Response, session: HttpSession, most: int) -> _Part | None:
    """Return the part that an answer has, of at most `most` bytes; `None` if it is not exactly what it says."""
    found = content_range(response.headers)
    coding = coding_of(response.headers, file_name(response.headers, session.url, response.url))
    if response.status_code != 206 or coding or found is None or found.total is None:
        return None
    count = found.stop - found.start
    if count > most or content_length(response.headers) not in {None, count}:
        return None
    data = b"".join(_content(response, session, count=count))
    whole = len(data) == count and _is_at_end(response, session)
    return _Part(found.start, data, found.total, validators(response.headers)) if whole else None


def _judge(
    session: HttpSession,
    response: requests.Response,
    checksum: Checksum | None,
    part: _Part | None = None,
    tail: Future[_Part | None] | None = None,
) -> HttpFile:
    """Return the file that an answer describes, or raise the error for a page. `part`: what it has of the file, if that
    is served in parts; otherwise the body is unread."""
    headers = response.headers
    name = file_name(headers, session.url, response.url)
    coding = coding_of(headers, name)
    found = validators(headers)
    beginning = _read_head(response, session, coding) if part is None else part.data
    # Services answer a login, a quota or a missing file with a page and status 200.
    if is_page(headers, beginning) and not names_a_page(session.url, name):
        raise _page_error(session.label, beginning)
    if is_text_for_an_archive(name, beginning):
        raise _text_error(session.label, name, beginning)
    head = part or _Part(0, b"", None if coding else content_length(headers), found)
    modified = parse_http_date(found.last_modified)
    # The first server may report a checksum that the storage behind it does not.
    first_hop = response.history[0].headers if response.history else {}
    whole = response.status_code == 200
    offered = None if coding else offered_checksum(headers, whole=whole, first_hop=first_hop)
    ranges = bool(head.data)
    facts = RemoteFacts(
        label=session.label,
        name=name,
        size=head.total,
        version=found.version,
        mtime_ns=int(modified * 1e9) if modified else 0,
        checksum=checksum or offered,
        ranges=ranges,
        connections=_CONNECTIONS if ranges else 1,
    )
    return HttpFile(session, facts, headers, head, tail)


def _page_error(label: str, head: bytes) -> WebPageError:
    title = page_title(head)
    named = f" with the title “{title}”" if title else ""
    msg = (
        f"'{label}' returns a web page{named} instead of data: perhaps a login, a confirmation, a preview or an error. "
        "Open it in a browser, and copy the link of the download itself."
    )
    return WebPageError(msg)


def _text_error(label: str, name: str, head: bytes) -> WebPageError:
    said = hide_secrets(" ".join(head[:400].decode("utf-8", "replace").split()))[:120]
    msg = (
        f"'{label}' returns, instead of the archive '{name}', {describe_contents(head)}: “{said}”. Where that is an "
        "error or a login, open the address in a browser, and copy the link of the download itself."
    )
    return WebPageError(msg)


def _error_of(response: requests.Response, session: HttpSession) -> SourceError:
    text = "" if response.status_code < 400 else _read_head(response, session, "").decode("utf-8", "replace")
    return status_error(response.status_code, response.headers, session.url, session.label, text)


def _read_head(response: requests.Response, session: HttpSession, coding: str) -> bytes:
    """Return the first bytes of the content, all of a small one."""
    head = bytearray()
    for piece in _content(response, session, coding, None if coding else _LOOK_BYTES):
        head += piece
        if len(head) >= _LOOK_BYTES:
            break
    return bytes(head[:_LOOK_BYTES])


def _content(
    response: requests.Response, session: HttpSession, coding: str = "", count: int | None = None
) -> Iterator[bytes]:
    """Yield the content as it comes, up to `count` bytes: no piece waits to be filled."""
    if coding not in {"", "gzip", "x-gzip"}:
        msg = (
            f"The server of '{session.label}' sends the file in the coding '{coding}', though asked for none. Use "
            "another link."
        )
        raise SourceReadError(msg)
    # Not left to urllib3, which takes a stream that ends too early for a whole one.
    read = gzip.GzipFile(fileobj=response.raw).read1 if coding else response.raw.read1

    def pieces() -> Iterator[bytes]:
        left = _PIECE_BYTES if count is None else count
        while left > 0 and (piece := _read_some(response, session, read, min(left, _PIECE_BYTES))):
            left -= 0 if count is None else len(piece)
            yield piece

    try:
        yield from at_least_rate(pieces(), session.label, window_s=session.timeout_s, clock=session.clock)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        msg = f"What the server of '{session.label}' compressed on the way arrived damaged: {error}. Try again."
        raise TransientError(msg) from error


def _read_some(response: requests.Response, session: HttpSession, read: Callable[[int], bytes], count: int) -> bytes:
    """Return the next bytes of a body, at most `count`; `read` is a stream's `read1`."""
    if not response.raw.chunked:
        return bytes(read(count))
    # Behind the last chunk come lines that are no content. A server may send them without end, and no read ends then.
    deadline = threading.Timer(session.timeout_s, shut_down, [response])
    deadline.daemon = True
    deadline.start()
    try:
        return bytes(read(count))
    finally:
        deadline.cancel()


def _is_at_end(response: requests.Response, session: HttpSession) -> bool:
    """Return whether nothing follows; this also takes the end of a body in chunks, so that its connection is kept."""
    return not _read_some(response, session, response.raw.read1, 1)
