"""Named https hosts on loopback: a function in this process plays the client's `drive.google.com`.

A proxy on 127.0.0.1 takes the client's CONNECT, answers TLS itself with a certificate made on the spot, and passes each
request to the service of that name. The environment from `HttpsHosts.environment` leads a client here: the same
variables that lead any program through a company's proxy, so its own code stays unchanged. Every other host is refused,
so nothing reaches beyond loopback.
"""

import datetime
import socket
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self, cast

import pytest

from tests.support.loopback import LoopbackServer, server_context

PLAIN = ""
"""The name of the service for requests to the proxy's own address, without TLS."""

_PIECE_BYTES = 64 * 1024
# An idle client is disconnected; no thread waits longer for a request.
_IDLE_S = 30.0


@dataclass(frozen=True, slots=True)
class HostRequest:
    """One request, as a service sees it. `query` has the first value of each name; `headers` have lower-case names."""

    method: str
    host: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """One response."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | memoryview = b""
    cut_after: int | None = None
    """Bytes of the body after which the connection is cut, although its length was announced; `None` for all."""


def answer_page(html: str, status: int = 200, *, headers: Mapping[str, str] | None = None) -> HostAnswer:
    """Return a web page."""
    return HostAnswer(status, {"Content-Type": "text/html; charset=utf-8", **(headers or {})}, html.encode())


def answer_file(request: HostRequest, content: bytes, headers: Mapping[str, str], *, etag: str = "") -> HostAnswer:
    """Return a file's content, or the requested range of it."""
    common = {"Accept-Ranges": "bytes", **({"ETag": etag} if etag else {}), **headers}
    wanted = request.headers.get("range", "")
    if not wanted.startswith("bytes="):
        return HostAnswer(200, common, content)
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    end = min(int(last) if first and last else len(content) - 1, len(content) - 1)
    # Without a start, the number counts bytes from the end.
    start = int(first) if first else max(0, len(content) - int(last))
    if start >= len(content):
        return HostAnswer(416, {**common, "Content-Range": f"bytes */{len(content)}"})
    ranged = {**common, "Content-Range": f"bytes {start}-{end}/{len(content)}"}
    return HostAnswer(206, ranged, memoryview(content)[start : end + 1])


class HttpsHosts(LoopbackServer):
    """The proxy and its services, in threads of this process, from construction until `close`.

    Args:
        services: what answers for each host name, called in several threads at once; `PLAIN` is the proxy itself.
        folder: where the certificate is written.
    """

    def __init__(self, services: Mapping[str, Callable[[HostRequest], HostAnswer]], folder: Path) -> None:
        self.certificate = folder / "loopback-hosts.pem"
        write_certificate(self.certificate, [name for name in services if name] or ["localhost"])
        self.context = server_context(self.certificate)
        self.services = services
        self._sent: list[int] = []
        super().__init__()

    @property
    def bytes_sent(self) -> int:
        """Return the bytes of all bodies that were sent."""
        return sum(self._sent)

    @property
    def address(self) -> str:
        """Return `127.0.0.1:PORT` of the proxy, where the service `PLAIN` answers."""
        return f"127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Return the variables that lead `requests`, and everything built on it, here, in this or a child process."""
        proxy = f"http://{self.address}"
        return {
            **dict.fromkeys(("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"), proxy),
            **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost"),
            "REQUESTS_CA_BUNDLE": str(self.certificate),
        }

    def lead(self, patch: pytest.MonkeyPatch, home: Path | None = None) -> None:
        """Lead this process here; with `home`, on a machine where nobody has logged in to anything."""
        variables = self.environment() if home is None else {**self.environment(), "HOME": str(home)}
        for name, value in variables.items():
            patch.setenv(name, value)

    def attend(self, connection: socket.socket, address: object, number: int) -> None:
        _ProxyHandler(connection, address, self)  # type: ignore[arg-type]


class HostedService:
    """A service behind hosts of its own, which counts what is requested, up to the end of its context."""

    def __init__(self, services: Mapping[str, Callable[[HostRequest], HostAnswer]], folder: Path) -> None:
        self._requests: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.hosts = HttpsHosts(services, folder)

    def count(self, request: str) -> int:
        """Return how often it was requested."""
        with self._lock:
            return self._requests[request]

    def _note(self, request: str) -> int:
        with self._lock:
            self._requests[request] += 1
            return self._requests[request]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hosts.close()


class _Handler(BaseHTTPRequestHandler):
    """The requests of one connection, answered by the service of `host`."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    host = PLAIN

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has in the standard library
        """Print nothing."""

    def _serve(self) -> None:
        service = cast("HttpsHosts", self.server).services.get(self.host)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        parts = urllib.parse.urlsplit(self.path)
        if service is None or parts.netloc:
            self._send(HostAnswer(502, {}, b"no such host on this loopback"))
            return
        query = {name: values[0] for name, values in urllib.parse.parse_qs(parts.query).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        self._send(service(HostRequest(self.command, self.host, parts.path, query, headers, body)))

    def _send(self, answer: HostAnswer) -> None:
        server = cast("HttpsHosts", self.server)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        body = memoryview(answer.body)[: answer.cut_after]
        for start in range(0, len(body), _PIECE_BYTES):
            self.wfile.write(body[start : start + _PIECE_BYTES])
            server._sent.append(len(body[start : start + _PIECE_BYTES]))
            if server.closing.is_set():
                break
        if len(body) < len(answer.body):
            self.close_connection = True


class _ProxyHandler(_Handler):
    """A client's connection to the proxy: a CONNECT, or a request to the proxy's own address."""

    def do_CONNECT(self) -> None:
        server = cast("HttpsHosts", self.server)
        host = self.path.rpartition(":")[0]
        self.close_connection = True
        if host not in server.services:
            self._send(HostAnswer(502, {}, b"no such host on this loopback"))
            return
        self.send_response(200, "Connection established")
        self.end_headers()
        self.connection.settimeout(_IDLE_S)
        inside = type("_Inside", (_Handler,), {"host": host})
        with server.context.wrap_socket(self.connection.dup(), server_side=True) as tls:
            inside(tls, self.client_address, server)


def write_certificate(path: Path, hosts: list[str]) -> None:
    """Write a key and a self-signed certificate for `hosts`, valid for a day, into one file that only we can read."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "colabstage loopback")])
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.touch(mode=0o600)
    path.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
