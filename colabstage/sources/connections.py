"""Connections to web servers that another thread can end, also while they wait for a response."""

from __future__ import annotations

import contextlib
import socket
import threading
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakSet

from requests import Session
from requests.adapters import HTTPAdapter

if TYPE_CHECKING:
    from requests import PreparedRequest, Response


# More than are ever in flight at once, so that no connection is discarded after use.
_POOL_CONNECTIONS = 64
# No service needs more; requests would follow thirty, each with its own time limit.
_MAX_REDIRECTS = 10


class NotEncryptedError(ValueError):
    """A redirect leads from https to the address that this holds, where anybody on the way could read along."""


class EndableSession(Session):
    """Requests' own session, whose connections stay open until it is closed, or `adapter.cut` by another thread."""

    def __init__(self, agent: str) -> None:
        super().__init__()
        # No retries here, because the reader continues at the byte where it stopped.
        self.adapter = _EndableAdapter(pool_connections=8, pool_maxsize=_POOL_CONNECTIONS)
        self.mount("https://", self.adapter)
        self.mount("http://", self.adapter)
        self.max_redirects = _MAX_REDIRECTS
        self.headers.update({"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": agent})

    def get_redirect_target(self, resp: Response) -> str | None:
        """Return where a response redirects to, as requests does; it is an error to go from https to anything else."""
        target = super().get_redirect_target(resp)
        if target and resp.url.lower().startswith("https:") and urlsplit(target).scheme.lower() not in {"", "https"}:
            resp.close()
            raise NotEncryptedError(target)
        return target


class _EndableAdapter(HTTPAdapter):
    """Requests' own adapter, which also knows its sockets: urllib3 can only cut one whose response has begun."""

    def __init__(self, *, pool_connections: int, pool_maxsize: int) -> None:
        """Make an adapter without retries; the numbers are of servers and of connections to each that stay open."""
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()
        self._ended = False
        super().__init__(pool_connections, pool_maxsize, max_retries=0)

    def get_connection_with_tls_context(
        self, request: PreparedRequest, verify: Any, proxies: Any = None, cert: Any = None
    ) -> Any:
        """Return the pool for a request, as requests does; the sockets of its connections are noted."""
        pool: Any = super().get_connection_with_tls_context(request, verify, proxies, cert)
        if not isinstance(pool.ConnectionCls, partial):
            pool.ConnectionCls = partial(self._connect, pool.ConnectionCls)
        return pool

    def _connect(self, kind: type, /, **options: Any) -> object:
        connection = _noted_kind(kind)(**options)
        connection.note = self._note
        return connection

    def _note(self, connected: socket.socket) -> None:
        with self._lock:
            self._sockets.add(connected)
        if self._ended:
            _cut(connected)

    def cut(self, *, for_good: bool) -> None:
        self._ended |= for_good
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets:
            _cut(one)


@cache
def _noted_kind(kind: type) -> Any:
    """Return a kind of connection that also notes its socket when it has connected. A response may keep that in use
    longer than the connection has it."""

    def connect(self: Any) -> None:
        kind.connect(self)  # type: ignore[attr-defined]
        self.note(self.sock)

    return type(kind.__name__, (kind,), {"connect": connect})


def _cut(connected: socket.socket) -> None:
    # It may have been closed. An SSLSocket's own method is not for other threads.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
