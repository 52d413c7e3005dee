"""The connections to one address on the web: redirects, logins, time limits, and the meaning of failures."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from colabstage.errors import ColabstageError, OptionError, SourceError, SourceReadError
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.redaction import show_address
from colabstage.sources.http_answers import is_page_type
from colabstage.sources.remote import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import requests

    from colabstage.io.progress import Clock

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
    from where the first answer came from. If that refuses, or answers with a page, the address is resolved again, once.

    Args:
        url: the address.
        timeout_s: seconds of silence after which a connection counts as failed.
        clock: times bodies.
        resolve: for a service with an interface of its own, returns the web address that stands for the file now, or
            raises the service's own error; by default `url` itself, whose redirect is followed again.
        label: the address for messages; by default `url` without secrets.
        agent: the name of the client.
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
    """Return the answer to one question to a service, whatever its status is: a GET, or with `json` a POST.

    Raises:
        TransientError, SourceReadError: there is no answer.
    """
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
    cut = (http.client.IncompleteRead, urllib3_failures.IncompleteRead, http.client.RemoteDisconnected)
    reasons: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
        (
            (TimeoutError, failures.Timeout, urllib3_failures.TimeoutError),
            "the server said nothing, or hardly anything, for too long",
        ),
        (cut, "it was closed before everything had arrived"),
        ((http.client.HTTPException, urllib3_failures.HTTPError), "its answer is not understood"),
    )
    known = (text for kinds, text in reasons if isinstance(inner, kinds))
    reason = next(known, (isinstance(inner, OSError) and inner.strerror) or "it broke")
    if isinstance(error, reasons[0][0]):
        reason = reasons[0][1]
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
