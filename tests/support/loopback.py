"""A server on a port of 127.0.0.1 with one thread for each connection; closing it ends all of them at once."""

import contextlib
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

_CLOSE_TIMEOUT_S = 10.0


class LoopbackServer:
    """Accepts connections from construction until `close`; a subclass's `attend` handles each one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._numbers = itertools.count(1)
        self.closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._acceptor = threading.Thread(target=self._accept, name="web-accept", daemon=True)
        self._acceptor.start()

    def attend(self, connection: socket.socket, address: object, number: int) -> None:
        """Handle a connection, in its own thread."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        """Return the TCP port it listens on."""
        return int(self._listener.getsockname()[1])

    @property
    def open_connections(self) -> int:
        """Return how many connections are open at present."""
        with self._lock:
            return len(self._connections)

    def close(self) -> None:
        """Close every connection and end all threads. Calling it twice is fine."""
        if self.closing.is_set():
            return
        self.closing.set()
        with contextlib.suppress(OSError), socket.create_connection(self._listener.getsockname(), timeout=5.0):
            self._acceptor.join(_CLOSE_TIMEOUT_S)
        self._listener.close()
        open_now = self.hang_up()
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        for thread in open_now.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def hang_up(self) -> dict[socket.socket, threading.Thread]:
        """Shut down every open connection; return them with their threads."""
        with self._lock:
            open_now = dict(self._connections)
        for connection in open_now:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        return open_now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                return
            if self.closing.is_set():
                connection.close()
                return
            # As web servers do: what is written in two parts would wait for the client's acknowledgement of the first.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = next(self._numbers)
            thread = threading.Thread(
                target=self._serve, args=(connection, address, number), name=f"web-{number}", daemon=True
            )
            with self._lock:
                self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket, address: object, number: int) -> None:
        # A client may hang up at any moment.
        try:
            with contextlib.suppress(OSError):
                self.attend(connection, address, number)
        finally:
            connection.close()
            with self._lock:
                self._connections.pop(connection, None)


class RawServer(LoopbackServer):
    """Lets a function answer the first bytes that come over each connection."""

    def __init__(self, answer: Callable[[socket.socket, bytes], object]) -> None:
        self._answer = answer
        super().__init__()

    def attend(self, connection: socket.socket, address: object, number: int) -> None:
        self._answer(connection, connection.recv(65536))


def server_context(certificate: Path) -> ssl.SSLContext:
    """Return a server's TLS context; `certificate` is a PEM file with certificate and key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
