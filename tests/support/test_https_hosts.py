"""Named https hosts on loopback: real requests, real TLS, and nothing beyond."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest
import requests

from tests.support.https_hosts import PLAIN, HostAnswer, HostRequest, HttpsHosts, answer_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = bytes(range(256)) * 40


def greet(request: HostRequest) -> HostAnswer:
    """A service that repeats what it was asked."""
    text = f"{request.method} {request.host}{request.path} {dict(request.query)} {request.body.decode()}"
    return HostAnswer(200, {"Content-Type": "text/plain"}, text.encode())


def give(request: HostRequest) -> HostAnswer:
    """A service with one file."""
    return answer_file(request, DATA, {"Last-Modified": "Mon, 02 Mar 2026 10:00:00 GMT"}, etag='"one"')


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpsHosts]:
    """Two named hosts and the plain one, for this process."""
    with HttpsHosts({"a.example": greet, "b.example": give, PLAIN: greet}, tmp_path) as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        yield running


def test_each_name_reaches_its_service_over_tls(hosts: HttpsHosts) -> None:
    """The certificate is verified, and one connection serves several requests."""
    with requests.Session() as session:
        assert session.get("https://a.example/x?y=1", timeout=5).text == "GET a.example/x {'y': '1'} "
        assert session.post("https://a.example/x", data=b"body", timeout=5).text == "POST a.example/x {} body"
        assert session.get("https://b.example/", timeout=5).content == DATA


def test_the_plain_service_answers_at_the_address(hosts: HttpsHosts) -> None:
    """Clients that are told an address, not a name, are served without TLS."""
    assert requests.get(f"http://{hosts.address}/p", timeout=5).text == "GET /p {} "


@pytest.mark.parametrize("address", ["https://example.org/", "http://example.org/"])
def test_no_other_host_can_be_reached(hosts: HttpsHosts, address: str) -> None:
    """What is not imitated is refused, never passed on."""
    try:
        status = requests.get(address, timeout=5).status_code
    except requests.exceptions.ProxyError:
        status = 502
    assert status == 502


@pytest.mark.parametrize(
    ("headers", "status", "body"),
    [
        ({"Range": "bytes=10-19"}, 206, DATA[10:20]),
        ({"Range": "bytes=10000-"}, 206, DATA[10000:]),
        ({"Range": "bytes=10240-"}, 416, b""),
        ({"Range": "bytes=10-19", "If-Range": '"one"'}, 206, DATA[10:20]),
        ({"Range": "bytes=10-19", "If-Range": '"two"'}, 200, DATA),
    ],
)
def test_ranges_are_honoured_as_the_standard_says(
    hosts: HttpsHosts, headers: dict[str, str], status: int, body: bytes
) -> None:
    """A range of the same file is a part, of another the whole, and beyond the end an error."""
    answer = requests.get("https://b.example/", headers=headers, timeout=5)
    assert (answer.status_code, answer.content) == (status, body)


def test_a_cut_body_is_shorter_than_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The length is announced in full, and the connection ends before."""
    with HttpsHosts({"a.example": lambda _: HostAnswer(200, {}, DATA, cut_after=100)}, tmp_path) as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        with pytest.raises(requests.exceptions.ChunkedEncodingError, match="100"):
            requests.get("https://a.example/", timeout=5)


def test_closing_hangs_up_on_a_silent_client(tmp_path: Path) -> None:
    """A client that never asks does not keep it from ending; closing twice is fine."""
    running = HttpsHosts({"a.example": greet}, tmp_path)
    host, _, port = running.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as client:
        running.close()
        running.close()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
