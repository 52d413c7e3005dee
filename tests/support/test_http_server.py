"""The practice web server does what its knobs and faults say; seen with the standard library's client."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import http.client
import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from colabstage.errors import OptionError
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import Bandwidth, WebServer, parse_range, serve_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DATA = bytes(range(256)) * 4096


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A quick server of a megabyte under `a.bin`."""
    with WebServer({"a.bin": DATA}) as made:
        yield made


@dataclasses.dataclass
class Got:
    """An answer, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture
def ask(server: WebServer) -> Iterator[Callable[..., Got]]:
    """Ask the server over one connection that is kept."""
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)

    def run(path: str = "/a.bin", method: str = "GET", **headers: str) -> Got:
        client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = client.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return Got(answer.status, told, answer.read())

    yield run
    client.close()


def test_serves_the_whole_and_parts(ask: Callable[..., Got]) -> None:
    """Whole, part, open end, last bytes, and 416 beyond."""
    assert ask().body == DATA
    part = ask(Range="bytes=10-19")
    assert (part.status, part.body, part.headers["content-range"]) == (206, DATA[10:20], f"bytes 10-19/{len(DATA)}")
    assert ask(Range=f"bytes={len(DATA) - 5}-").body == DATA[-5:]
    assert ask(Range="bytes=-5").body == DATA[-5:]
    beyond = ask(Range=f"bytes={len(DATA)}-")
    assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{len(DATA)}")


def test_serves_files_from_the_disk(tmp_path: Path) -> None:
    """A path is read when asked for, and its tag follows its time."""
    path = tmp_path / "b.bin"
    path.write_bytes(DATA)
    with WebServer({"b.bin": path}) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        client.request("GET", "/b.bin", headers={"Range": "bytes=100000-199999"})
        answer = client.getresponse()
        assert answer.read() == DATA[100000:200000]
        tag = answer.headers["ETag"]
        path.write_bytes(DATA + b"!")
        client.request("GET", "/b.bin")
        answer = client.getresponse()
        assert answer.read() == DATA + b"!"
        assert answer.headers["ETag"] != tag
        client.close()


def test_records_what_came(server: WebServer, ask: Callable[..., Got]) -> None:
    """Method, path, query, range, headers, status, and which connection."""
    ask("/a.bin?x=1", Range="bytes=0-1", X_Own="yes")
    ask("/none", "HEAD")
    first, second = server.requests
    assert (first.method, first.path, first.query, first.range, first.status) == (
        "GET",
        "a.bin",
        "x=1",
        "bytes=0-1",
        206,
    )
    assert first.headers["x-own"] == "yes"
    assert (second.method, second.status) == ("HEAD", 404)
    assert first.connection == second.connection == 1
    assert server.bytes_sent == 2
    server.forget_requests()
    assert server.requests == ()


def test_if_range_sends_the_whole_of_another_version(server: WebServer, ask: Callable[..., Got]) -> None:
    """The right tag and the right time get the part; old ones, and weak tags, the whole."""
    told = ask().headers
    assert ask(Range="bytes=0-1", If_Range=told["etag"]).status == 206
    assert ask(Range="bytes=0-1", If_Range=told["last-modified"]).status == 206
    assert ask(Range="bytes=0-1", If_Range=f"W/{told['etag']}").status == 200
    server.put("a.bin", DATA)
    assert ask(Range="bytes=0-1", If_Range=told["etag"]).status == 200
    assert ask(Range="bytes=0-1", If_Range=told["last-modified"]).status == 200
    server.set_knobs(WebKnobs(if_range=False))
    assert ask(Range="bytes=0-1", If_Range=told["etag"]).status == 206


def test_manners(server: WebServer, ask: Callable[..., Got]) -> None:
    """Each knob shows in the answer."""
    server.set_knobs(WebKnobs(ranges="ignored"))
    got = ask(Range="bytes=0-1")
    assert (got.status, got.body, got.headers["accept-ranges"]) == (200, DATA, "bytes")
    server.set_knobs(WebKnobs(ranges="none"))
    assert ask(Range="bytes=0-1").headers["accept-ranges"] == "none"
    server.set_knobs(WebKnobs(etag="weak"))
    assert ask().headers["etag"].startswith('W/"')
    server.set_knobs(WebKnobs(etag="changing"))
    assert ask().headers["etag"] != ask().headers["etag"]
    server.set_knobs(WebKnobs(etag="none", last_modified=False))
    assert not {"etag", "last-modified"} & set(ask().headers)
    server.set_knobs(WebKnobs(gzip=True))
    got = ask()
    assert got.headers["content-encoding"] == "gzip"
    assert gzip.decompress(got.body) == DATA
    server.set_knobs(WebKnobs(length="chunked"))
    got = ask()
    assert (got.body, got.headers["transfer-encoding"], "content-length" in got.headers) == (DATA, "chunked", False)
    server.set_knobs(WebKnobs(length="close"))
    got = ask()
    assert (got.body, got.headers["connection"], "content-length" in got.headers) == (DATA, "close", False)
    server.set_knobs(WebKnobs(head=False))
    assert ask(method="HEAD").status == 405
    server.set_knobs(WebKnobs(content_type="text/csv", headers=(("X-Own", "yes"),)))
    got = ask()
    assert (got.headers["content-type"], got.headers["x-own"]) == ("text/csv", "yes")


def test_login(server: WebServer, ask: Callable[..., Got]) -> None:
    """Only who knows user and password gets in."""
    server.set_knobs(WebKnobs(login=("ann", "pw")))
    assert ask().status == 401
    assert ask(Authorization="Basic " + base64.b64encode(b"ann:pw").decode()).status == 200
    assert ask(Authorization="Basic " + base64.b64encode(b"ann:no").decode()).status == 401


def test_latency_comes_before_each_answer(server: WebServer, ask: Callable[..., Got]) -> None:
    """And once more before the first on a connection."""
    server.set_knobs(WebKnobs(latency_s=0.1, connect_latency_s=1.0))
    times = []
    for _ in range(2):
        start = time.perf_counter()
        ask(Range="bytes=0-0")
        times.append(time.perf_counter() - start)
    assert times[0] >= 1.1
    assert 0.1 <= times[1] < 1.0


def test_bandwidth_is_counted_by_what_was_sent() -> None:
    """At 4 MB/s a megabyte takes a quarter of a second; who was late may catch up with a quarter second's worth."""
    bandwidth = Bandwidth(4e6)
    bandwidth.restart(100.0)
    assert [bandwidth.due(1_000_000, 100.0) for _ in range(4)] == pytest.approx([100.25, 100.5, 100.75, 101.0])
    assert bandwidth.due(1_000_000, 110.0) == pytest.approx(110.0)
    bandwidth.restart(120.0)
    assert bandwidth.due(1_000_000, 120.0) == pytest.approx(120.25)
    assert Bandwidth(math.inf).due(10**12, 5.0) <= 5.0


def test_bandwidth_is_that_of_each_connection_and_of_all(server: WebServer) -> None:
    """Four connections of 4 MB/s take about the time of one, unless there are only 4 MB/s for all."""

    def seconds(knobs: WebKnobs) -> float:
        server.set_knobs(knobs)

        def one(_: int) -> int:
            client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            client.request("GET", "/a.bin")
            size = len(client.getresponse().read())
            client.close()
            return size

        start = time.perf_counter()
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(one, range(4))) == [len(DATA)] * 4
        return time.perf_counter() - start

    alone = len(DATA) / 4e6
    assert alone * 0.95 <= seconds(WebKnobs(bytes_per_s=4e6)) < alone * 3
    # What the shared count gives at once, for being late, is a quarter of a second's worth.
    assert seconds(WebKnobs(total_bytes_per_s=4e6)) >= alone * 4 * 0.95 - 0.25


def test_too_many_at_once_are_sent_away(server: WebServer) -> None:
    """One more than allowed is answered 503 and when to come again."""
    server.set_knobs(WebKnobs(max_requests=1, latency_s=0.3))

    def one(_: int) -> tuple[int, str | None]:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        client.request("GET", "/a.bin")
        answer = client.getresponse()
        answer.read()
        client.close()
        return answer.status, answer.headers["Retry-After"]

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(one, range(2)), key=lambda got: got[0]) == [(200, None), (503, "1")]


def test_answers_that_say_something_else(server: WebServer, ask: Callable[..., Got]) -> None:
    """A status with Retry-After and text, a redirect that keeps the query, a page."""
    server.set_faults(WebFault(kind="status", status=429, retry_after="7", body="slow down"))
    got = ask()
    assert (got.status, got.headers["retry-after"], got.body) == (429, "7", b"slow down")
    server.set_faults(WebFault(kind="redirect", location="/b.bin?{query}", status=307))
    got = ask("/a.bin?x=1")
    assert (got.status, got.headers["location"]) == (307, "/b.bin?x=1")
    server.set_faults(WebFault(kind="html"))
    got = ask()
    assert (got.status, got.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<title>Sign in</title>" in got.body


def test_answers_that_lie(server: WebServer, ask: Callable[..., Got]) -> None:
    """The range, its total or the length told are wrong by so much; what comes is right."""
    server.set_faults(WebFault(kind="content_range", delta=1))
    got = ask(Range="bytes=0-9")
    assert (got.headers["content-range"], got.body) == (f"bytes 1-10/{len(DATA)}", DATA[:10])
    server.set_faults(WebFault(kind="total", delta=5))
    assert ask(Range="bytes=0-9").headers["content-range"] == f"bytes 0-9/{len(DATA) + 5}"
    server.set_faults(WebFault(kind="length", delta=-1))
    assert ask(Range="bytes=0-9").body == DATA[:9]


def test_promises_that_are_not_kept(server: WebServer, ask: Callable[..., Got]) -> None:
    """What is there comes, and then the end instead of the rest."""
    server.set_faults(WebFault(kind="length", delta=3))
    with pytest.raises(http.client.IncompleteRead) as raised:
        ask(Range="bytes=0-9")
    assert raised.value.partial == DATA[:10]


def test_change_makes_it_another_file(server: WebServer, ask: Callable[..., Got]) -> None:
    """From the request that it strikes on, tag and time are others."""
    server.set_faults(WebFault(kind="change", after=1, first=1))
    tags = [(got.headers["etag"], got.headers["last-modified"]) for got in (ask(), ask(), ask())]
    assert tags[0][0] != tags[1][0]
    assert tags[0][1] != tags[1][1]
    assert tags[1] == tags[2]


def read_until_broken(server: WebServer, timeout_s: float = 10.0) -> tuple[int, type[BaseException] | None]:
    """Bytes of `/a.bin` that come, and what ends them."""
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout_s)
    got = 0
    try:
        client.request("GET", "/a.bin")
        answer = client.getresponse()
        while piece := answer.read1(65536):
            got += len(piece)
    except OSError as error:
        return got, type(error)
    finally:
        client.close()
    return got, None


def test_connections_break_at_the_byte(server: WebServer) -> None:
    """Reset, closed in order, or silent; all that was sent before has come."""
    server.set_faults(WebFault(kind="reset", at_byte=300_001))
    assert read_until_broken(server) == (300_001, ConnectionResetError)
    server.set_faults(WebFault(kind="truncate", at_byte=300_001))
    assert read_until_broken(server) == (300_001, None)
    server.set_faults(WebFault(kind="stall", at_byte=300_001))
    assert read_until_broken(server, 0.3) == (300_001, TimeoutError)
    server.set_faults(WebFault(kind="hang"))
    assert read_until_broken(server, 0.3) == (0, TimeoutError)
    server.set_faults()
    assert read_until_broken(server) == (len(DATA), None)


def test_drip_is_slow_from_its_byte_on(server: WebServer) -> None:
    """The beginning comes at once, the rest at the drip's rate."""
    server.put("a.bin", DATA[:10_100])
    server.set_faults(WebFault(kind="drip", at_byte=10_000, bytes_per_s=200))
    start = time.perf_counter()
    assert read_until_broken(server) == (10_100, None)
    assert 0.45 <= time.perf_counter() - start < 20.0  # all of it would take 50 s at that rate


@pytest.mark.parametrize(
    ("fault", "struck"),
    [
        ({}, "xxxxxx"),
        ({"first": 2}, "xx...."),
        ({"after": 2}, "..xxxx"),
        ({"after": 1, "first": 2}, ".xx..."),
        ({"every": 3}, "..x..x"),
        ({"path": "b*"}, "......"),
        ({"min_bytes": len(DATA) + 1}, "......"),
    ],
)
def test_faults_strike_whom_they_say(
    ask: Callable[..., Got], server: WebServer, fault: dict[str, Any], struck: str
) -> None:
    """By order, path and size of what was asked for."""
    server.set_faults(WebFault(kind="status", status=500, **fault))
    assert "".join("x" if ask().status == 500 else "." for _ in struck) == struck


def test_small_requests_are_spared(server: WebServer, ask: Callable[..., Got]) -> None:
    """Who only looks does not meet a fault meant for downloads, nor does it count."""
    server.set_faults(WebFault(kind="status", status=500, min_bytes=100, first=1))
    assert [ask(Range="bytes=0-9").status, ask().status, ask().status] == [206, 500, 200]


def test_closing_ends_everything_at_once(server: WebServer) -> None:
    """Whoever is being served, slowly or not at all, is hung up on, and no thread remains."""
    server.set_knobs(WebKnobs(bytes_per_s=1000.0))
    before = threading.active_count()
    clients = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=10) for _ in range(5)]
    for client in clients:
        client.request("GET", "/a.bin")
        client.getresponse().read(1)
    assert server.open_connections == 5
    start = time.perf_counter()
    server.close()
    assert time.perf_counter() - start < 10.0  # the body would take many minutes
    assert server.open_connections == 0
    assert threading.active_count() < before
    for client in clients:
        client.close()
    server.close()


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Knobs and faults travel, and it ends with the block."""
    path = tmp_path / "b.bin"
    path.write_bytes(DATA)
    knobs = WebKnobs(headers=(("X-Own", "yes"),), login=("ann", "pw"))
    faults = (WebFault(kind="status", status=500, first=1),)
    known = {"Authorization": "Basic " + base64.b64encode(b"ann:pw").decode()}
    with serve_apart({"b.bin": path}, knobs, faults) as base:
        client = http.client.HTTPConnection(base.removeprefix("http://"), timeout=10)
        statuses = []
        for _ in range(2):
            client.request("GET", "/b.bin", headers=known)
            answer = client.getresponse()
            statuses.append((answer.status, answer.read() == DATA, answer.headers["X-Own"]))
        client.close()
    assert statuses == [(500, False, None), (200, True, "yes")]
    client = http.client.HTTPConnection(base.removeprefix("http://"), timeout=10)
    with pytest.raises(ConnectionRefusedError):
        client.connect()


def test_settings_survive_json() -> None:
    """What goes to the other process is what comes there."""
    knobs = WebKnobs(bytes_per_s=5e6, headers=(("A", "b"),), login=("ann", "pw"))
    fault = WebFault(kind="reset", at_byte=5, first=1)
    assert WebKnobs.from_json(json.loads(json.dumps(dataclasses.asdict(knobs)))) == knobs
    assert WebFault.from_json(json.loads(json.dumps(dataclasses.asdict(fault)))) == fault
    assert WebKnobs.from_json(json.loads(json.dumps(dataclasses.asdict(WebKnobs())))) == WebKnobs()


def test_no_bandwidth_is_refused() -> None:
    """Nothing per second would never end."""
    with pytest.raises(OptionError, match="bytes_per_s"):
        WebKnobs(bytes_per_s=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes=0-", (0, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=2-99", (2, 10)),
        ("bytes=10-", None),
        ("bytes=1-2,4-5", None),
    ],
)
def test_ranges_are_read(text: str, expected: tuple[int, int] | None) -> None:
    """First and last+1 byte, or nothing that is there."""
    assert parse_range(text, 10) == expected
