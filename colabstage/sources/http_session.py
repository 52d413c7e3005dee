"""The connections to one file's web server: redirects, logins, time limits, and the meaning of failures."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from colabstage.errors import ColabstageError, OptionError, SourceError, SourceReadError
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.redaction import show_address
from colabstage.sources.remote import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import requests

    from colabstage.io.progress import Clock

# More than are ever in flight at once, so that no connection is discarded after use.
_POOL_CONNECTIONS = 64
_CONNECT_TIMEOUT_S = 15.0
AGENT = "colabstage"
_ANSWER_TIMEOUT_S = 60.0
# A page of a service, or an answer of its interface, is shorter.
_MAX_PAGE_BYTES = 16 * 1024 * 1024
# The statuses with which services answer an expired signed address.
_EXPIRED = frozenset({400, 401, 403, 404, 410})


class HttpSession:
    """The answers of one address. May be used by many threads at once.

    Redirects are followed once. Services that redirect (releases, data sets, mirrors) give an address that is valid for
    minutes or hours. Following the redirect for each of hundreds of parts would double the latency, exceed the
    service's request limit, and might end at a different mirror with another ETag each time. So parts are requested
    from where the first answer came from, and only if that refuses is the redirect followed again, once.

    Args:
        url: the address.
        timeout_s: seconds of silence after which a connection counts as failed.
        clock: times bodies.
        resolve: for a service with an interface of its own, returns the web address that stands for `url` for a while.
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
        self._resolve = resolve or (lambda: self.url)
        self._target = "" if resolve else self.url
        self._timeouts = (min(timeout_s, _CONNECT_TIMEOUT_S), timeout_s)
        self._session = _new_session(self.label)
        self._agent = self._session.headers["User-Agent"] = agent
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
        again._login, again._target = self._login, self._target
        return again

    @contextlib.contextmanager
    def get(self, headers: dict[str, str]) -> Iterator[requests.Response]:
        """Yield the answer to a GET before its body is read; the connection is closed at the end, unless the body was
        read completely.

        Failures inside the block, too, become TransientError or the error they are.
        """
        with self._translated():
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
                # Reads to its end have given the connection back already; else it is closed for good. A thread that
                # is left behind in it is woken.
                _shut_down(response)
                response.close()
                # Given back to a session that was closed meanwhile, it would stay open.
                if self._closed:
                    self._session.close()

    def close(self) -> None:
        """Close all connections, including those being read. Calling it twice is fine."""
        with self._lock:
            self._closed = True
            reading = list(self._open)
        for response in reading:
            _shut_down(response)
        self._session.close()

    def _ask(self, headers: dict[str, str]) -> requests.Response:
        with self._resolving:
            # Once for all threads that begin.
            fresh = "" if self._target else self._resolve()
            target = self._target = self._target or fresh
        response = self._send(target, headers)
        # An expired signed address refuses; resolving it again gives a new one.
        if target not in (self.url, fresh) and response.status_code in _EXPIRED:
            response.close()
            with self._resolving:
                # Another thread may have done it.
                if self._target == target:
                    self._target = self._resolve()
                target = self._target
            response = self._send(target, headers)
        if response.ok:
            self._target = response.url
        return response

    def _send(self, url: str, headers: dict[str, str]) -> requests.Response:
        import requests
        from requests.auth import HTTPBasicAuth

        self._check_open()
        # A password is only for the server that it was given for, not for one that it redirects to.
        login = self._login if _origin(url) == _origin(self.url) else None
        try:
            return self._session.get(
                url, headers=headers, auth=login and HTTPBasicAuth(*login), timeout=self._timeouts, stream=True
            )
        except ValueError as error:
            if isinstance(error, requests.exceptions.RequestException):
                raise
            # From the parsing of an address that a redirect named.
            msg = f"'{self.label}' leads to an address that cannot be read. Check it in a browser."
            raise SourceReadError(msg) from None

    def _check_open(self) -> None:
        if self._closed:
            msg = f"'{self.label}' was closed, so nothing more can be read of it."
            raise SourceReadError(msg)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise our own errors for those of requests, urllib3 and the system, whose texts may show the whole
        address."""
        import requests
        import urllib3

        try:
            yield
        except ColabstageError:
            raise
        except (OSError, urllib3.exceptions.HTTPError, http.client.HTTPException) as error:
            # Closing makes reads fail in many ways; all are reported as the same error.
            self._check_open()
            if isinstance(error, requests.exceptions.TooManyRedirects):
                msg = f"'{self.label}' redirects in a loop. Open it in a browser; it may want a login or cookies."
                raise SourceReadError(msg) from None
            raise connection_error(error, self.label) from None


def _shut_down(response: requests.Response) -> None:
    # Not there before urllib3 2.3: the reader then ends at its time limit. Fails for an answer that just ended.
    with contextlib.suppress(AttributeError, OSError, ValueError, RuntimeError):
        response.raw.shutdown()


@dataclass(frozen=True, slots=True)
class WebAnswer:
    """An answer with its text, if it is a page or JSON."""

    status: int
    """The HTTP status."""
    url: str
    """Where the redirects ended."""
    headers: Mapping[str, str]
    """Its headers."""
    text: str = ""
    """Its text; "" for anything else, which is not read."""


def ask_service(
    url: str,
    label: str,
    *,
    query: Mapping[str, str] | None = None,
    json: object = None,
    auth: Any = None,
    headers: Mapping[str, str] | None = None,
    redirects: bool = True,
    agent: str = AGENT,
) -> WebAnswer:
    """Return the answer to one question to a service: a GET, or with `json` a POST, whatever its status is.

    Raises:
        TransientError, SourceReadError: there is no answer.
    """
    import requests

    timeouts = (_CONNECT_TIMEOUT_S, _ANSWER_TIMEOUT_S)
    try:
        with _new_session(label) as session:
            session.headers["User-Agent"] = agent
            with session.request(
                "GET" if json is None else "POST",
                url,
                params=query,
                json=json,
                auth=auth,
                headers=headers,
                allow_redirects=redirects,
                stream=True,
                timeout=timeouts,
            ) as response:
                return WebAnswer(response.status_code, response.url, response.headers, _text_of(response))
    except (requests.RequestException, OSError) as error:
        # Its text may show the whole address.
        raise connection_error(error, label) from None


def _text_of(response: requests.Response) -> str:
    kind = response.headers.get("Content-Type", "")
    if "Content-Disposition" in response.headers or not ("html" in kind or "json" in kind):
        return ""
    text = bytearray()
    for part in response.iter_content(64 * 1024):
        text += part
        # An endless answer is no page.
        if len(text) > _MAX_PAGE_BYTES:
            break
    return text.decode("utf-8", "replace")


def connection_error(error: BaseException, label: str) -> SourceError:
    """Return the typed error for a connection that failed, with the innermost reason: outer ones show addresses."""
    import requests

    inner = innermost(error)
    # Not transient: it would be refused again and again.
    if isinstance(inner, ssl.SSLCertVerificationError):
        msg = (
            f"The certificate of the server of '{label}' is not trusted: {inner.verify_message}. If it is your own, "
            "name the file of its authority in the variable REQUESTS_CA_BUNDLE."
        )
        return SourceReadError(msg)
    if isinstance(error, requests.exceptions.InvalidSchema | requests.exceptions.InvalidURL):
        return SourceReadError(
            f"'{label}' is, or leads to, an address that cannot be asked for. Check it in a browser."
        )
    msg = f"The connection to '{label}' failed: {_reason_of(error, inner)}. Finished work is kept; try again."
    return TransientError(msg)


def _reason_of(error: BaseException, inner: BaseException) -> str:
    import requests
    import urllib3

    timeouts = (TimeoutError, requests.exceptions.Timeout, urllib3.exceptions.TimeoutError)
    if isinstance(error, timeouts) or isinstance(inner, timeouts):
        return "the server said nothing, or hardly anything, for too long"
    if isinstance(
        inner, http.client.IncompleteRead | urllib3.exceptions.IncompleteRead | http.client.RemoteDisconnected
    ):
        return "it was closed before everything had arrived"
    if isinstance(inner, http.client.HTTPException | urllib3.exceptions.HTTPError):
        return "its answer is not understood"
    return (isinstance(inner, OSError) and inner.strerror) or "it broke"


def innermost(error: BaseException) -> BaseException:
    """Return the innermost cause of a connection's error."""
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


def _new_session(label: str) -> requests.Session:
    import requests
    from requests.adapters import HTTPAdapter

    class Session(requests.Session):
        """Never redirect from https to http, nor to anything other than the web."""

        def get_redirect_target(self, resp: requests.Response) -> str | None:
            target = super().get_redirect_target(resp)
            if target is None or not resp.url.lower().startswith("https:"):
                return target
            if urlsplit(target).scheme.lower() in {"", "https"}:
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
    # No service needs more; requests would follow thirty, each within its own time limit.
    session.max_redirects = 10
    session.headers.update({"Accept": "*/*", "Accept-Encoding": "identity"})
    return session
