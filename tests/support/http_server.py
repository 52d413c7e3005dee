"""A practice web server on loopback: real sockets and threads, a set pace, and faults that can be switched.

    with WebServer({"data.zip": b"...", "big.bin": Path("big.bin")}, knobs=WebKnobs(latency_s=0.05)) as server:
        server.url("data.zip")                      # "http://127.0.0.1:PORT/data.zip"
        server.set_faults(WebFault(kind="reset", at_byte=100_000, first=1))
        server.put("data.zip", b"another content")  # with another ETag
        server.requests                             # what came so far: method, path, range, headers, connection

A file is sent from the disk by the kernel, so its size costs no memory and little CPU. Each connection's bytes are
due at times counted from the beginning of its answer, so that a late wake-up is made good by the next piece and
20 MB/s are 20 MB/s. Closing ends all connections and threads at once. Where client and server should not share an
interpreter, `serve_apart` starts it in a process of its own.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import gzip
import itertools
import math
import pickle
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote, urlsplit

from tests.support.http_knobs import WebFault, WebKnobs, WebRequest
from tests.support.loopback import LoopbackServer, server_context

# The time that one piece of a paced body takes: few wake-ups, but smooth enough for any timeout.
_PIECE_S = 0.02
_MAX_PIECE_BYTES = 1024 * 1024
# How far a connection that fell behind its schedule, on a busy machine, may catch up.
_CREDIT_S = 0.25
_PAGE = "<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Please sign in to continue.</body></html>\n"
# A client that reads nothing, or requests nothing, for so long is gone.
_IDLE_TIMEOUT_S = 300.0
_START_TIMEOUT_S = 30.0


class Bandwidth:
    """Schedules bytes at a rate: pure accounting, with times as arguments. Threads may share it."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._due = 0.0
        self._lock = threading.Lock()

    def due(self, count: int, now: float) -> float:
        """Return the time at which `count` further bytes have passed."""
        if math.isinf(self._rate):
            return 0.0
        with self._lock:
            self._due = max(self._due, now - _CREDIT_S) + count / self._rate
            return self._due

    def restart(self, now: float) -> None:
        """Drop the credit from a time with nothing to send."""
        with self._lock:
            self._due = max(self._due, now)


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """Return the first byte, and the last + 1, that a Range header selects of `size` bytes; `None` if it selects none
    of them.

    Several ranges at once are not supported.
    """
    unit, _, spec = text.partition("=")
    first, dash, last = spec.strip().partition("-")
    if unit.strip() != "bytes" or not dash or not (first + last).isdecimal():
        return None
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    return (start, stop) if start < stop else None


class ConnectionHandler(BaseHTTPRequestHandler):
    """One connection: requests are read and answered until either side hangs up."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, connection: socket.socket, address: object, server: WebServer, number: int) -> None:
        self._web = server
        self._number = number
        self._bandwidth = Bandwidth(server.knobs.bytes_per_s)
        super().__init__(connection, address, server)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing: everything is in `requests`."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        knobs = self._web.knobs
        with self._web.answering() as allowed:
            self._web.wait(knobs.latency_s)
            self._bandwidth.restart(time.monotonic())
            parts = urlsplit(self.path)
            name = unquote(parts.path).lstrip("/")
            found = self._web.look_up(name)
            if not allowed:
                self._plain(503, "Too many requests at once.", retry_after="1")
            elif knobs.login and not self._knows(knobs.login):
                self._plain(401, "Who are you?", extra=(("WWW-Authenticate", 'Basic realm="practice"'),))
            elif found is None:
                fault = self._web.fault_for(name, 0) if self.command == "GET" else None
                self._fail(fault) if fault else self._plain(404, f"There is no '{name}'.")
            else:
                self._file(name, knobs)

    def _file(self, name: str, knobs: WebKnobs) -> None:
        found = self._web.look_up(name)
        assert found is not None
        with _open(found[0], compressed=knobs.gzip) as (file, size):
            asked = parse_range(self.headers.get("Range", ""), size) if knobs.ranges == "honoured" else None
            wanted = asked[1] - asked[0] if asked else size
            fault = self._web.fault_for(name, wanted) if self.command == "GET" else None
            if fault and fault.kind in {"status", "redirect", "html", "hang"}:
                self._fail(fault)
                return
            tags = self._validators(*found, size, knobs)
            ranged = "Range" in self.headers and knobs.ranges == "honoured"
            if ranged and asked is None:
                self._plain(416, "Not in this file.", extra=(("Content-Range", f"bytes */{size}"),))
                return
            start, stop = asked if ranged and asked else (0, size)
            headers = [*tags.items(), *knobs.headers, ("Content-Type", knobs.content_type)]
            headers.append(("Accept-Ranges", "none" if knobs.ranges == "none" else "bytes"))
            if knobs.gzip:
                headers.append(("Content-Encoding", "gzip"))
            if ranged:
                headers.append(("Content-Range", _told_range(start, stop, size, fault)))
            self._begin(206 if ranged else 200, headers, stop - start, knobs, fault)
            if self.command == "GET":
                self._body(file, start, stop, knobs, fault)

    def _validators(self, content: bytes | Path, version: int, size: int, knobs: WebKnobs) -> dict[str, str]:
        seconds: float = self._web.modified_s(version)
        unique = f"{size:x}-{version}"
        if isinstance(content, Path):
            status = content.stat()
            seconds, unique = status.st_mtime + version, f"{unique}-{status.st_mtime_ns:x}"
        if knobs.etag == "changing":
            unique = f"{unique}-{time.monotonic_ns():x}"
        tags = {} if knobs.etag == "none" else {"ETag": f'{"W/" if knobs.etag == "weak" else ""}"{unique}"'}
        return {**tags, "Last-Modified": formatdate(int(seconds), usegmt=True)} if knobs.last_modified else tags

    def _knows(self, login: tuple[str, str]) -> bool:
        told = self.headers.get("Authorization", "")
        return told == "Basic " + base64.b64encode(":".join(login).encode()).decode()

    def _begin(
        self, status: int, headers: list[tuple[str, str]], size: int, knobs: WebKnobs, fault: WebFault | None
    ) -> None:
        self._note(status)
        self.send_response(status)
        for header, value in headers:
            self.send_header(header, value)
        if knobs.length == "told":
            wrong = fault.delta if fault and fault.kind == "length" else 0
            self.send_header("Content-Length", str(size + wrong))
        elif knobs.length == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        if knobs.length == "close":
            self.send_header("Connection", "close")
        if knobs.length == "close" or (fault and fault.kind == "length"):
            self.close_connection = True
        self.end_headers()

    def _body(
        self, file: BinaryIO | memoryview, start: int, stop: int, knobs: WebKnobs, fault: WebFault | None
    ) -> None:
        chunked = knobs.length == "chunked"
        cut = fault is not None and fault.kind in {"reset", "truncate", "stall"}
        end = min(stop, start + fault.at_byte) if fault and cut else stop
        rate, own, position = knobs.bytes_per_s, self._bandwidth, start
        drip_at = start + fault.at_byte if fault and fault.kind == "drip" else math.inf
        while position < end:
            if fault and position >= drip_at:
                rate, own, drip_at = fault.bytes_per_s, Bandwidth(fault.bytes_per_s), math.inf
                own.restart(time.monotonic())
            count = int(min(end - position, _piece_bytes(rate), max(1, drip_at - position)))
            self._web.pace(own, count)
            self._piece(file, position, count, chunked=chunked)
            position += count
        if fault and cut:
            self._break_off(fault)
        elif chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _piece(self, file: BinaryIO | memoryview, position: int, count: int, *, chunked: bool) -> None:
        if chunked:
            self.wfile.write(b"%x\r\n" % count)
        if isinstance(file, memoryview):
            self.connection.sendall(file[position : position + count])
        else:
            self.connection.sendfile(file, position, count)
        if chunked:
            self.wfile.write(b"\r\n")

    def _break_off(self, fault: WebFault) -> None:
        self.close_connection = True
        if fault.kind == "stall":
            self._wait_for_hang_up()
        elif fault.kind == "reset":
            self._wait_until_delivered()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _wait_for_hang_up(self) -> None:
        """Stay silent until the client or the server closes the connection."""
        with contextlib.suppress(OSError):
            while self.connection.recv(4096):
                pass

    def _wait_until_delivered(self) -> None:
        """Let pending bytes arrive, because a reset discards them."""
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            left = struct.unpack("i", fcntl.ioctl(self.connection.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
            if not left:
                return
            self._web.wait(0.002)

    def _fail(self, fault: WebFault) -> None:
        if fault.kind == "hang":
            self._note(0)
            self.close_connection = True
            self._wait_for_hang_up()
        elif fault.kind == "html":
            self._plain(200, fault.body or _PAGE, content_type="text/html; charset=utf-8")
        elif fault.kind == "redirect":
            query = urlsplit(self.path).query
            location = (fault.location or "/").replace("{query}", query)
            self._plain(fault.status or 302, "Elsewhere.", extra=(("Location", location),))
        else:
            self._plain(fault.status or 500, fault.body or "Not now.", retry_after=fault.retry_after)

    def _plain(
        self,
        status: int,
        text: str,
        *,
        content_type: str = "text/plain; charset=utf-8",
        retry_after: str | None = None,
        extra: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Send a short response that is not a file's content."""
        self._note(status)
        body = text.encode()
        self.send_response(status, None if status in set(HTTPStatus) else "Odd")
        told = [("Content-Type", content_type), ("Content-Length", str(len(body))), *extra]
        for header, value in [*told, *([("Retry-After", retry_after)] if retry_after else [])]:
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _note(self, status: int) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        path = unquote(parts.path).lstrip("/")
        asked = headers.get("range", "")
        self._web.record(WebRequest(self.command, path, parts.query, asked, headers, status, self._number))


@contextlib.contextmanager
def _open(content: bytes | Path, *, compressed: bool) -> Iterator[tuple[BinaryIO | memoryview, int]]:
    """Open the content, with its size in bytes."""
    if compressed:
        content = gzip.compress(content if isinstance(content, bytes) else content.read_bytes(), 1, mtime=0)
    if isinstance(content, bytes):
        yield memoryview(content), len(content)
        return
    with content.open("rb") as file:
        yield file, file.seek(0, 2)


def _told_range(start: int, stop: int, size: int, fault: WebFault | None) -> str:
    shift = fault.delta if fault and fault.kind == "content_range" else 0
    more = fault.delta if fault and fault.kind == "total" else 0
    return f"bytes {start + shift}-{stop - 1 + shift}/{size + more}"


def _piece_bytes(rate: float) -> int:
    """Return how many bytes are sent at once: those of `_PIECE_S`, but single bytes in a drip."""
    return max(1, int(min(_MAX_PIECE_BYTES, rate * _PIECE_S)))


class WebServer(LoopbackServer):
    """Serves `files` (name to bytes, or to a file's path) from `http://127.0.0.1` during the `with` block.

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
        self._files: dict[str, bytes | Path] = dict(files)
        self._versions: dict[str, int] = {}
        self._started_s = int(time.time()) - 3600
        self._tls = server_context(certificate) if certificate else None
        self._requests: list[WebRequest] = []
        self._bytes_sent = 0
        self._answering = 0
        super().__init__()
        self.set_knobs(knobs or WebKnobs())
        self.set_faults(*faults)

    def url(self, name: str, *, login: str = "", query: str = "") -> str:
        """Return the address of a file. `login`: `"user:password"` to put into it; `query`: without the question
        mark."""
        start = "https://" if self._tls else "http://"
        host = "localhost" if self._tls else "127.0.0.1"
        return f"{start}{login + '@' if login else ''}{host}:{self.port}/{quote(name)}{'?' + query if query else ''}"

    @property
    def knobs(self) -> WebKnobs:
        """Return its present settings."""
        return self._knobs

    @property
    def requests(self) -> tuple[WebRequest, ...]:
        """Return the requests so far, in the order of the responses."""
        with self._lock:
            return tuple(self._requests)

    @property
    def bytes_sent(self) -> int:
        """Return the bytes of content sent so far, in all bodies together."""
        with self._lock:
            return self._bytes_sent

    def forget_requests(self) -> None:
        """Start counting anew."""
        with self._lock:
            self._requests.clear()
            self._bytes_sent = 0

    def put(self, name: str, content: bytes | Path) -> None:
        """Serve this from now on, with a new ETag and time."""
        with self._lock:
            self._files[name] = content
            self._versions[name] = self._versions.get(name, 0) + 1

    def set_knobs(self, knobs: WebKnobs) -> None:
        """Apply these from the next request on; an open connection keeps its bandwidth."""
        with self._lock:
            self._knobs = knobs
            self._total = Bandwidth(knobs.total_bytes_per_s)

    def set_faults(self, *faults: WebFault) -> None:
        """Replace all faults by these, each counted from here."""
        with self._lock:
            self._faults = [(fault, itertools.count(1)) for fault in faults]

    def attend(self, connection: socket.socket, address: object, number: int) -> None:
        connection.settimeout(_IDLE_TIMEOUT_S)
        if self._tls is None:
            ConnectionHandler(connection, address, self, number)
            return
        with self._tls.wrap_socket(connection.dup(), server_side=True, suppress_ragged_eofs=True) as secured:
            ConnectionHandler(secured, address, self, number)

    def look_up(self, name: str) -> tuple[bytes | Path, int] | None:
        """Return the content served under a name, with the number of its version."""
        with self._lock:
            content = self._files.get(name)
            return None if content is None else (content, self._versions.get(name, 0))

    def fault_for(self, name: str, wanted_bytes: int) -> WebFault | None:
        """Return the fault for this request; all faults count it."""
        with self._lock:
            struck = [
                fault
                for fault, numbers in self._faults
                if fault.matches(name, wanted_bytes) and fault.strikes(next(numbers))
            ]
        return struck[0] if struck else None

    @contextlib.contextmanager
    def answering(self) -> Iterator[bool]:
        """Count a request in; yields false if there are too many at once."""
        with self._lock:
            self._answering += 1
            allowed = self._knobs.max_requests is None or self._answering <= self._knobs.max_requests
        try:
            yield allowed
        finally:
            with self._lock:
                self._answering -= 1

    def record(self, request: WebRequest) -> None:
        """Record a request."""
        with self._lock:
            self._requests.append(request)

    def pace(self, own: Bandwidth, count: int) -> None:
        """Wait until `count` further bytes have passed through the connection's and the server's bandwidth."""
        now = time.monotonic()
        due = max(own.due(count, now), self._total.due(count, now))
        self.wait(due - time.monotonic())
        with self._lock:
            self._bytes_sent += count

    def wait(self, seconds: float) -> None:
        """Sleep; if the server is closed meanwhile, hang up."""
        if self.closing.wait(seconds) if seconds > 0 else self.closing.is_set():
            raise ConnectionAbortedError

    def modified_s(self, version: int) -> int:
        """Return the modification time of the `version`-th content of a name, in seconds since 1970."""
        return self._started_s + version


@contextlib.contextmanager
def serve_apart(files: Mapping[str, Path], knobs: WebKnobs) -> Iterator[str]:
    """Serve files from another process during the `with` block; yields `"http://127.0.0.1:PORT"`."""
    order = pickle.dumps(({name: path.resolve() for name, path in files.items()}, knobs)).hex()
    command = [sys.executable, "-m", "tests.support.http_server", order]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            ready = select.select([server.stdout], [], [], _START_TIMEOUT_S)[0]
            address = server.stdout.readline().strip() if ready else ""
            assert address, "the web server did not start"
            yield address
        finally:
            # The end of its input stops the server, also if this process dies.
            server.stdin.close()
            try:
                server.wait(_START_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()


if __name__ == "__main__":
    _files, _knobs = pickle.loads(bytes.fromhex(sys.argv[1]))
    with WebServer(_files, knobs=_knobs) as _server:
        print(f"http://127.0.0.1:{_server.port}", flush=True)  # noqa: T201 - whoever started this process reads it
        # When our parent is stopped, our input ends; Ctrl-C reaches both.
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()
