"""A web server on loopback to practise on: real sockets and threads, a set pace, and faults that can be switched.

    with WebServer({"data.zip": b"...", "big.bin": Path("big.bin")}, knobs=WebKnobs(latency_s=0.05)) as server:
        server.url("data.zip")                      # "http://127.0.0.1:PORT/data.zip"
        server.set_faults(WebFault(kind="reset", at_byte=100_000, first=1))
        server.put("data.zip", b"another content")  # with another ETag
        server.requests                             # what came so far: method, path, range, headers, connection

A file is sent from the disk by the kernel, so its size costs no memory and little CPU. Each connection's bytes are
due at times counted from the beginning of its answer, so that a late wake-up is made good by the next piece and
20 MB/s are 20 MB/s. Closing ends all connections and threads at once. Where client and server should not share an
interpreter, use `colabstage.simulate.http_process.serve_apart`.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from colabstage.simulate.http_answers import Bandwidth, ConnectionHandler
from colabstage.simulate.http_knobs import WebFault, WebKnobs, WebRequest

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

_CLOSE_TIMEOUT_S = 10.0
# A client that takes nothing for so long, or asks nothing, is gone.
_IDLE_TIMEOUT_S = 300.0


class WebServer:
    """Serves `files` (name to bytes, or to the path of a file) from `http://127.0.0.1` while the `with` block lasts.

    `certificate`: a PEM file with certificate and key; then it serves `https://localhost`.
    """

    def __init__(
        self,
        files: Mapping[str, bytes | Path],
        *,
        knobs: WebKnobs | None = None,
        faults: tuple[WebFault, ...] = (),
        certificate: Path | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, bytes | Path] = dict(files)
        self._versions: dict[str, int] = {}
        self._started_s = int(time.time()) - 3600
        self._tls = _server_context(certificate) if certificate else None
        self._requests: list[WebRequest] = []
        self._bytes_sent = 0
        self._answering = 0
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._numbers = itertools.count(1)
        self.closing = threading.Event()
        self.set_knobs(knobs or WebKnobs())
        self.set_faults(*faults)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._acceptor = threading.Thread(target=self._accept, name="web-accept", daemon=True)
        self._acceptor.start()

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        return int(self._listener.getsockname()[1])

    def url(self, name: str, *, login: str = "", query: str = "") -> str:
        """The address of a file. `login`: `"user:password"` to put into it; `query`: without the question mark."""
        start = "https://" if self._tls else "http://"
        host = "localhost" if self._tls else "127.0.0.1"
        return f"{start}{login + '@' if login else ''}{host}:{self.port}/{quote(name)}{'?' + query if query else ''}"

    @property
    def knobs(self) -> WebKnobs:
        """How it behaves at present."""
        return self._knobs

    @property
    def requests(self) -> tuple[WebRequest, ...]:
        """What came so far, in the order of the answers."""
        with self._lock:
            return tuple(self._requests)

    @property
    def bytes_sent(self) -> int:
        """Bytes of content sent so far, in all bodies together."""
        with self._lock:
            return self._bytes_sent

    @property
    def open_connections(self) -> int:
        """How many connections are open at present."""
        with self._lock:
            return len(self._connections)

    def forget_requests(self) -> None:
        """Begin counting anew."""
        with self._lock:
            self._requests.clear()
            self._bytes_sent = 0

    def put(self, name: str, content: bytes | Path) -> None:
        """Serve this from now on, with an ETag and a time of its own."""
        with self._lock:
            self._files[name] = content
            self._versions[name] = self._versions.get(name, 0) + 1

    def set_knobs(self, knobs: WebKnobs) -> None:
        """Behave so from the next request on; a connection's bandwidth is that of the time it was opened."""
        with self._lock:
            self._knobs = knobs
            self._total = Bandwidth(knobs.total_bytes_per_s)

    def set_faults(self, *faults: WebFault) -> None:
        """Let exactly these go wrong from now on, each counted from here."""
        with self._lock:
            self._faults = [(fault, itertools.count(1)) for fault in faults]

    def close(self) -> None:
        """Hang up on everybody and end all threads."""
        self.closing.set()
        with contextlib.suppress(OSError), socket.create_connection(self._listener.getsockname(), timeout=5.0):
            self._acceptor.join(_CLOSE_TIMEOUT_S)
        self._listener.close()
        with self._lock:
            open_now = dict(self._connections)
        for connection in open_now:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        for thread in open_now.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            number = next(self._numbers)
            thread = threading.Thread(
                target=self._serve, args=(connection, address, number), name=f"web-{number}", daemon=True
            )
            with self._lock:
                self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket, address: object, number: int) -> None:
        # A client may hang up at any moment; that is its right.
        try:
            with contextlib.suppress(OSError):
                connection.settimeout(_IDLE_TIMEOUT_S)
                if self._tls is None:
                    ConnectionHandler(connection, address, self, number)
                    return
                with self._tls.wrap_socket(connection.dup(), server_side=True, suppress_ragged_eofs=True) as secured:
                    ConnectionHandler(secured, address, self, number)
        finally:
            connection.close()
            with self._lock:
                self._connections.pop(connection, None)

    def look_up(self, name: str) -> tuple[bytes | Path, int] | None:
        """The content served under a name, with the number of its version."""
        with self._lock:
            content = self._files.get(name)
            return None if content is None else (content, self._versions.get(name, 0))

    def fault_for(self, name: str, wanted_bytes: int) -> WebFault | None:
        """The fault that this request meets, each being told that it came."""
        with self._lock:
            struck = [
                fault
                for fault, numbers in self._faults
                if fault.matches(name, wanted_bytes) and fault.strikes(next(numbers))
            ]
            for fault in struck:
                if fault.kind == "change":
                    self._versions[name] = self._versions.get(name, 0) + 1
        return next((fault for fault in struck if fault.kind != "change"), None)

    @contextlib.contextmanager
    def answering(self) -> Iterator[bool]:
        """Count a request in; false when there are too many at once."""
        with self._lock:
            self._answering += 1
            allowed = self._knobs.max_requests is None or self._answering <= self._knobs.max_requests
        try:
            yield allowed
        finally:
            with self._lock:
                self._answering -= 1

    def record(self, request: WebRequest) -> None:
        """Remember a request."""
        with self._lock:
            self._requests.append(request)

    def pace(self, own: Bandwidth, count: int) -> None:
        """Wait until `count` further bytes have passed through the connection's and everybody's bandwidth."""
        now = time.monotonic()
        due = max(own.due(count, now), self._total.due(count, now))
        self.wait(due - time.monotonic())
        with self._lock:
            self._bytes_sent += count

    def wait(self, seconds: float) -> None:
        """Sleep, unless the server is being closed; then hang up."""
        if self.closing.wait(seconds) if seconds > 0 else self.closing.is_set():
            raise ConnectionAbortedError

    def modified_s(self, version: int) -> int:
        """The modification time of the `version`-th content of a name, in seconds since 1970."""
        return self._started_s + version


def _server_context(certificate: Path) -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
