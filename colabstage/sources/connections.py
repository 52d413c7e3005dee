"""Connections to web servers that another thread can end, also while they wait for a response."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from requests.adapters import HTTPAdapter

if TYPE_CHECKING:
    from requests import PreparedRequest


class EndableAdapter(HTTPAdapter):
    """Requests' own adapter, which also knows its connections: urllib3 can only cut one whose response has begun."""

    def __init__(self, *, pool_connections: int, pool_maxsize: int) -> None:
        """Make an adapter without retries; the numbers are of servers and of connections to each that stay open."""
        self._connections: WeakSet[Any] = WeakSet()
        super().__init__(pool_connections, pool_maxsize, max_retries=0)

    def get_connection_with_tls_context(
        self, request: PreparedRequest, verify: Any, proxies: Any = None, cert: Any = None
    ) -> Any:
        """Return the pool for a request, as requests does; its connections are noted from now on."""
        pool: Any = super().get_connection_with_tls_context(request, verify, proxies, cert)
        if not isinstance(pool.ConnectionCls, partial):
            pool.ConnectionCls = partial(self._connect, pool.ConnectionCls)
        return pool

    def _connect(self, kind: type, /, **options: Any) -> object:
        connection = kind(**options)
        self._connections.add(connection)
        return connection

    def end(self) -> None:
        """Cut all connections: what waits for them fails at once, and the next request connects again."""
        for connection in list(self._connections):
            # It may not be connected yet, or not any more. An SSLSocket's own method is not for other threads.
            with contextlib.suppress(OSError, AttributeError, TypeError):
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
