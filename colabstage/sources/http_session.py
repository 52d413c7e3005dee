"""The connections to one file's web server: redirects, logins, time limits, and the meaning of failures."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

from colabstage.errors import ColabstageError, OptionError, SourceError, SourceReadError
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.io.redaction import show_address
from colabstage.sources.remote import TransientError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    import requests

    from colabstage.io.progress import Clock

# More than are ever in flight at once, so that no connection is discarded after use.
_POOL_CONNECTIONS = 64
_CONNECT_TIMEOUT_S = 15.0
# http.client takes no longer line of a head.
_LINE_BYTES = 65_537
# The statuses with which services answer an expired signed address.
_EXPIRED = frozenset({400, 401, 403, 404, 410})


class _TimedLines:
    """A socket's stream with a time limit for lines, however slowly their bytes arrive, and however many there are.

    A socket's own timeout starts over with every byte, so a server that sends one every twenty seconds would hold its
    reader for as long as it likes; so would one whose head, or trailers after a body in chunks, have no end. Lines that
    follow each other share one limit; `restart` and reading anything else begin a new one.
    """

    def __init__(self, stream: Any, sock: socket.socket) -> None:
        self._stream = stream
        self._sock = sock
        self._timeout_s = sock.gettimeout()
        self._buffered = 0
        self._deadline: float | None = None

    def restart(self) -> None:
        """Give the next line a time limit of its own."""
        self._buffered, self._deadline = 0, None

    def read(self, *amount: int) -> bytes:
        """Read bytes, like the stream."""
        self.restart()
        return bytes(self._stream.read(*amount))

    def readinto(self, buffer: Any) -> int:
        """Read bytes into `buffer`, like the stream."""
        self.restart()
        return int(self._stream.readinto(buffer))

    def readline(self, limit: int = -1) -> bytes:
        """Read a line, like the stream, or its beginning where it is longer than any line of a protocol.

        Raises:
            TimeoutError: it, or the lines before it, do not end in time.
        """
        if self._timeout_s is None:
            return bytes(self._stream.readline(limit))
        if self._deadline is None:
            self._deadline = time.monotonic() + self._timeout_s
        limit = min(limit, _LINE_BYTES) if limit >= 0 else _LINE_BYTES
        # A head comes in one piece as a rule, and what has come is not asked of the socket: most lines need no clock.
        line = b""
        while not line.endswith(b"\n") and len(line) < limit:
            there = self._stream.peek(1) if self._buffered else self._wait(self._deadline)
            if not there:
                break
            part = self._stream.read(min(there.find(b"\n") + 1 or len(there), limit - len(line)))
            self._buffered = len(there) - len(part)
            line += part
        return line

    def _wait(self, deadline: float) -> bytes:
        """Return what is there of the next line, after at most one read of the socket."""
        assert self._timeout_s is not None
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            msg = "the server answers too slowly"
            raise TimeoutError(msg)
        self._sock.settimeout(min(left_s, self._timeout_s))
        try:
            return bytes(self._stream.peek(1))
        finally:
            self._sock.settimeout(self._timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _PromptResponse(http.client.HTTPResponse):
    """An answer whose head, and whose trailers, come as a whole in the time that the socket gives a single read."""

    def __init__(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None
    ) -> None:
        super().__init__(sock, debuglevel, method, url)
        self._lines = _TimedLines(self.fp, sock)
        self.fp = cast("Any", self._lines)

    def begin(self) -> None:
        super().begin()
        # The body may be read much later.
        self._lines.restart()


class HttpSession:
    """The answers of one address. May be used by many threads at once.

    Redirects are followed once. Services that redirect (releases, data sets, mirrors) give an address that is valid for
    minutes or hours. Following the redirect for each of hundreds of parts would double the latency, exceed the
    service's request limit, and might end at a different mirror with another ETag each time. So parts are requested
    from where the first answer came from, and only if that refuses is the redirect followed again, once.
    """

    def __init__(self, url: str, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self.timeout_s = timeout_s
        self.clock = clock
        self.label = show_address(url)
        self.url, self._login = _without_login(url, self.label)
        self._target = self.url
        self._timeouts = (min(timeout_s, _CONNECT_TIMEOUT_S), timeout_s)
        self._session = _new_session(self.label)
        self._lock = threading.Lock()
        # The answers being read, which another thread may close.
        self._open: set[requests.Response] = set()
        self._closed = False

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
                # Reads to its end have given the connection back already; else it is closed for good.
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
            # Not there before urllib3 2.3: the reader then ends at its time limit. Fails for an answer that just ended.
            with contextlib.suppress(AttributeError, OSError, ValueError, RuntimeError):
                response.raw.shutdown()
        self._session.close()

    def _ask(self, headers: dict[str, str]) -> requests.Response:
        target = self._target
        response = self._send(target, headers)
        # An expired signed address refuses; following the redirect again gives a new one.
        if target != self.url and response.status_code in _EXPIRED:
            response.close()
            response = self._send(self.url, headers)
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
    import urllib3
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

    class Connection(urllib3.connection.HTTPConnection):
        response_class = _PromptResponse

    class SafeConnection(urllib3.connection.HTTPSConnection):
        response_class = _PromptResponse

    prompt = {
        urllib3.connection.HTTPConnection: Connection,
        urllib3.connectionpool.HTTPSConnectionPool.ConnectionCls: SafeConnection,
    }

    class Adapter(HTTPAdapter):
        """An adapter whose connections have time limits, through a proxy too."""

        def get_connection_with_tls_context(
            self, request: Any, verify: Any, proxies: Any = None, cert: Any = None
        ) -> Any:
            pool: Any = super().get_connection_with_tls_context(request, verify, proxies, cert)
            pool.ConnectionCls = prompt.get(pool.ConnectionCls, pool.ConnectionCls)
            return pool

    # No retries here, because the reader continues at the byte where it stopped.
    adapter = Adapter(pool_connections=8, pool_maxsize=_POOL_CONNECTIONS, max_retries=0)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    # No service needs more; requests would follow thirty, each within its own time limit.
    session.max_redirects = 10
    session.headers.update({"User-Agent": "colabstage", "Accept": "*/*", "Accept-Encoding": "identity"})
    return session
