"""One file on a web server: what is learnt at the first look, any part of it, and every way a server can fail."""

import base64
import contextlib
import gzip
import hashlib
import pickle
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from colabstage.errors import (
    CancelledError,
    OptionError,
    SourceAccessError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
    WebPageError,
)
from colabstage.io.files import RetryPolicy
from colabstage.io.progress import Cancellation
from colabstage.sources.http_file import HttpFile, open_http
from colabstage.sources.remote import Access, Checksum, RemoteFile, Services, TransientError
from tests.clocks import ManualClock
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer
from tests.support.https_hosts import write_certificate
from tests.support.loopback import RawServer

Look = Callable[..., HttpFile]
Answering = Callable[[Callable[[socket.socket], object]], str]

DATA = bytes(range(251)) * 8000
ONCE = RetryPolicy(attempts=1)
# Spares whoever only looks.
PART = 50_000
PAGE = b"<!DOCTYPE html><html><head><title lang=en>\n Confirm&nbsp;it &amp;  go </title></head><body></body></html>"
TITLE = "Confirm it & go"
SHA256 = hashlib.sha256(b"x")
MD5 = hashlib.md5(b"x", usedforsecurity=False)


@pytest.fixture(autouse=True)
def no_login_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither proxies nor somebody's netrc."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A quick server of two megabytes under `data.bin`."""
    with WebServer({"data.bin": DATA}) as made:
        yield made


@pytest.fixture
def look(server: WebServer) -> Iterator[Callable[..., HttpFile]]:
    """`open_http` of one of the server's files, with a short patience; closed at the end."""
    made: list[HttpFile] = []

    def run(name: str = "data.bin", *, url: str | None = None, **changes: Any) -> HttpFile:
        options: dict[str, Any] = {"timeout_s": 10.0, "policy": ONCE, **changes}
        access = Access(**{one: options.pop(one) for one in ("policy", "along", "tail", "checksum") if one in options})
        made.append(open_http(url or server.url(name), access, **options))
        return made[-1]

    yield run
    for file in made:
        file.close()


def content(file: RemoteFile, offset: int = 0, length: int | None = None) -> bytes:
    """All that a range gives."""
    return b"".join(file.read_range(offset, length))


def read_broken(file: RemoteFile, offset: int = 0, length: int | None = None) -> tuple[bytes, Exception | None]:
    """What comes before a failure, and the failure."""
    got = b""
    try:
        for piece in file.read_range(offset, length):
            got += piece
    except SourceReadError as error:
        return got, error
    return got, None


def test_the_first_look_learns_everything(server: WebServer, look: Look) -> None:
    """Size, version, time, name, ranges, from one GET of a small part."""
    file: RemoteFile = look()
    facts = file.facts
    assert (facts.label, facts.name, facts.size, facts.ranges) == (server.url("data.bin"), "data.bin", len(DATA), True)
    assert facts.version.startswith('"')
    assert abs(facts.mtime_ns / 1e9 - time.time()) < 86400
    assert facts.checksum is None
    assert facts.connections > 1
    (request,) = server.requests
    assert (request.method, request.status, request.headers["accept-encoding"]) == ("GET", 206, "identity")


@pytest.mark.parametrize("size", [0, 8192])
def test_files_smaller_than_the_look(server: WebServer, look: Look, size: int) -> None:
    """Also the empty one, whose first byte cannot be asked for."""
    server.put("small.bin", DATA[:size])
    file = look("small.bin")
    assert file.facts.size == size
    assert content(file) == content(file, 0, size) == DATA[:size]


def test_any_part_comes_in_pieces_of_at_most_a_megabyte(look: Look) -> None:
    """From anywhere, of any length, down to nothing."""
    file, size = look(), len(DATA)
    for offset, length in ((0, None), (1_000_001, 300_003), (size - 1, None), (size, None), (5, 0)):
        pieces = list(file.read_range(offset, length))
        assert b"".join(pieces) == DATA[offset:][:length]
        assert max(map(len, pieces), default=0) <= 1024 * 1024


@pytest.mark.parametrize(
    ("knobs", "fault", "threads"),
    [
        (WebKnobs(), None, 4),
        (WebKnobs(length="chunked"), None, 1),
        # A short answer is read to its end, so that the next try need not connect.
        (WebKnobs(), WebFault(kind="status", status=503, every=2, min_bytes=PART), 1),
    ],
    ids=["parts", "chunks", "refusals"],
)
def test_parts_share_kept_connections(
    server: WebServer, look: Look, knobs: WebKnobs, fault: WebFault | None, threads: int
) -> None:
    """They take no more connections than threads, and the looking's."""
    server.set_knobs(knobs)
    file = look()
    server.set_faults(*([fault] if fault else []))

    def part(number: int) -> bytes:
        with contextlib.suppress(TransientError):
            return content(file, number * PART, PART)
        return content(file, number * PART, PART)

    with ThreadPoolExecutor(threads) as pool:
        assert b"".join(pool.map(part, range(20))) == DATA[: 20 * PART]
    assert len({request.connection for request in server.requests}) <= threads + (threads > 1)


def test_leaving_early_hangs_up_and_harms_nobody(server: WebServer, look: Look) -> None:
    """A part that is dropped half-way leaves no bytes behind for the next one."""
    server.put("big.bin", DATA * 20)
    file = look("big.bin")
    for start in (0, 10, 20):
        pieces = iter(file.read_range(start, None))
        assert next(pieces)[:5] == DATA[start : start + 5]
        pieces.close()  # type: ignore[attr-defined]
        assert content(file, start + 3, 7) == DATA[start + 3 : start + 10]
    deadline = time.monotonic() + 5
    while server.open_connections > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.open_connections <= 1
    assert server.bytes_sent < 3 * len(DATA) * 20


@pytest.mark.parametrize("knobs", [WebKnobs(), WebKnobs(length="close", ranges="none")], ids=["told", "no length"])
def test_closing_wakes_whoever_reads(server: WebServer, look: Look, knobs: WebKnobs) -> None:
    """A reader in another thread gets an error at once, not at its time limit, and no end of the file where hanging up
    is one; closing twice is fine."""
    server.set_knobs(knobs)
    server.set_faults(WebFault(kind="stall", at_byte=10_000, min_bytes=PART))
    file = look(timeout_s=60.0)
    began = threading.Event()

    def read() -> Exception:
        pieces = file.read_range(0, None)
        next(pieces)
        began.set()
        with pytest.raises(SourceReadError) as raised:
            b"".join(pieces)
        return raised.value

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        assert began.wait(10)
        file.close()
        assert type(reading.result(5)) is SourceReadError
    file.close()
    with pytest.raises(SourceReadError):
        content(file)


@pytest.mark.parametrize("by", ["closing", "cancelling"])
def test_who_waits_for_a_response_is_woken_too(server: WebServer, by: str) -> None:
    """Where the server has taken the request, and says nothing; other files of the same server are read on."""
    server.set_faults(WebFault(kind="hang", path="data.bin", min_bytes=PART))
    server.put("other.bin", DATA)
    server.set_knobs(WebKnobs(latency_s=0.5))
    services, cancellation = Services(), Cancellation()
    with closing(services), ThreadPoolExecutor(2) as pool:
        file = open_http(server.url("data.bin"), Access(services=services, cancellation=cancellation), timeout_s=60.0)
        other = open_http(server.url("other.bin"), Access(services=services, policy=ONCE), timeout_s=60.0)
        asked = len(server.requests)
        reading, read_on = pool.submit(content, file), pool.submit(content, other)
        while len(server.requests) < asked + 2:
            time.sleep(0.01)
        file.close() if by == "closing" else cancellation.cancel()
        with pytest.raises(SourceReadError if by == "closing" else CancelledError):
            reading.result(1)
        assert read_on.result(10) == DATA


# Servers without ranges, or without lengths.


@pytest.mark.parametrize(("ranges", "length"), [("ignored", "told"), ("none", "chunked"), ("none", "close")])
def test_without_ranges_the_whole_still_comes(server: WebServer, look: Look, ranges: Any, length: Any) -> None:
    """Whatever the server claims; with its size where it tells it. To look at it fetches little."""
    server.set_knobs(WebKnobs(ranges=ranges, length=length))
    file = look()
    assert (file.facts.ranges, file.facts.connections) == (False, 1)
    assert file.facts.size == (len(DATA) if length == "told" else None)
    # Where the connection is the end, a cut file looks whole.
    assert bool(file.notes) == (length == "close")
    assert content(file) == DATA
    assert content(file, 0, 1000) == DATA[:1000]
    server.put("big.bin", DATA * 50)
    server.set_knobs(WebKnobs(ranges=ranges, length=length, bytes_per_s=20e6))
    server.forget_requests()
    look("big.bin")
    assert server.bytes_sent < len(DATA) * 50 / 4


@pytest.mark.parametrize(
    "fault",
    [
        WebFault(kind="status", status=416, first=1),
        WebFault(kind="content_range", delta=1, first=1),
        WebFault(kind="total", delta=-len(DATA), first=1),
    ],
    ids=["416", "range", "total"],
)
def test_a_question_for_a_part_that_is_answered_wrongly_means_no_ranges(
    server: WebServer, look: Look, fault: WebFault
) -> None:
    """A range answered with an error, or inexactly, does not mean that the file cannot be had."""
    server.set_knobs(WebKnobs(ranges="none" if fault.kind == "status" else "honoured"))
    server.set_faults(fault)
    file = look()
    assert (file.facts.size, file.facts.ranges) == (len(DATA), False)
    assert content(file) == DATA


# Compression on the way.


def test_gzip_on_the_way_is_undone(server: WebServer, look: Look) -> None:
    """Parts of it are of no use and its length is not the file's, so: one stream, size unknown, no hash."""
    server.set_knobs(WebKnobs(gzip=True, headers=(("x-goog-hash", f"md5={b64(MD5.digest())}"),)))
    file = look()
    assert (file.facts.ranges, file.facts.size, file.facts.checksum) == (False, None, None)
    assert content(file) == DATA
    assert content(file, 0, 1000) == DATA[:1000]
    assert max(map(len, file.read_range(0, None))) <= 1024 * 1024


@pytest.mark.parametrize(
    ("coding", "kind", "name", "is_file"),
    [
        ("gzip", "application/octet-stream", "data.tar.gz", True),
        ("gzip", "application/x-gzip", "get", True),
        ("gzip", "application/octet-stream", "a.csv", False),
    ],
)
def test_a_compressed_file_is_no_compressed_transfer(
    server: WebServer, look: Look, coding: str, kind: str, name: str, is_file: bool
) -> None:
    """A .tar.gz that the server calls a tar compressed on the way has ranges, a size, and its own bytes."""
    packed = gzip.compress(DATA)
    server.put(name, packed)
    server.set_knobs(WebKnobs(headers=(("Content-Encoding", coding),), content_type=kind))
    file = look(name)
    assert (file.facts.ranges, file.facts.size) == ((True, len(packed)) if is_file else (False, None))
    assert content(file) == (packed if is_file else DATA)


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_coding_is_noticed(server: WebServer, look: Look, damage: str) -> None:
    """Where nothing else tells that the stream ended too early or came wrong."""
    packed = gzip.compress(DATA)
    server.put("data.bin", packed[:-100] if damage == "cut" else packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:])
    server.set_knobs(WebKnobs(headers=(("Content-Encoding", "gzip"),), length="close"))
    with pytest.raises(TransientError):
        content(look())


def test_a_coding_nobody_asked_for_is_refused(server: WebServer, look: Look) -> None:
    """Rather than taken for the file; and plain and compressed parts are never mixed."""
    file = look()
    server.set_knobs(WebKnobs(headers=(("Content-Encoding", "gzip"),)))
    with pytest.raises(TransientError, match="gzip"):
        content(file, 0, PART)
    server.set_knobs(WebKnobs(headers=(("Content-Encoding", "br"),)))
    with pytest.raises(SourceReadError, match="'br'"):
        look()


# Versions.


@pytest.mark.parametrize(
    ("knobs", "changed"),
    [
        *((WebKnobs(etag=etag), DATA[::-1]) for etag in ("strong", "none")),
        # A shorter file answers 416, a longer one tells another total.
        *((WebKnobs(etag="none", last_modified=False), (DATA + DATA)[:size]) for size in (10, len(DATA) + 10)),
        (WebKnobs(ranges="none"), DATA[::-1]),
        (WebKnobs(ranges="none", etag="none", last_modified=False), DATA + b"!"),
        (WebKnobs(etag="changing"), DATA),
    ],
)  # fmt: skip
def test_a_changed_file_is_noticed(server: WebServer, look: Look, knobs: WebKnobs, changed: bytes) -> None:
    """By comparing what the server says each time, before one byte of it is given out; also where only
    the whole can be had, and where several servers behind one address each say something else."""
    server.set_knobs(knobs)
    file = look()
    server.put("data.bin", changed)
    got, error = read_broken(file, *((PART, PART) if file.facts.ranges else ()))
    assert isinstance(error, SourceChangedError)
    assert got == b"" or not file.facts.ranges


def test_a_server_that_stops_giving_parts(server: WebServer, look: Look) -> None:
    """The whole of the same version is no change: its beginning is taken, and the rest may pass. A 416 for what is
    there may pass, too."""
    file = look()
    server.set_knobs(WebKnobs(ranges="ignored"))
    assert content(file, 0, PART) == DATA[:PART]
    assert content(file) == DATA
    with pytest.raises(TransientError):
        content(file, PART, PART)
    server.set_knobs(WebKnobs(ranges="ignored", etag="none", last_modified=False))
    with pytest.raises(TransientError):
        content(file, 0, PART)
    server.set_knobs(WebKnobs())
    server.set_faults(WebFault(kind="status", status=416))
    with pytest.raises(TransientError, match="416"):
        content(file, 0, PART)


# Broken connections and broken promises.


@pytest.mark.parametrize(
    ("kind", "ranges", "length"),
    [
        ("reset", "honoured", "told"),
        ("truncate", "none", "told"),
        ("reset", "none", "chunked"),
        ("stall", "none", "chunked"),
    ],
)
def test_what_came_before_a_break_is_given_out(
    server: WebServer, look: Look, kind: Any, ranges: Any, length: Any
) -> None:
    """To the last byte; and going on from there gives the rest."""
    server.set_knobs(WebKnobs(ranges=ranges, length=length))
    file = look(timeout_s=0.3)
    server.set_faults(WebFault(kind=kind, at_byte=1_234_567, min_bytes=PART, first=1))
    got, error = read_broken(file)
    assert type(error) is TransientError
    assert got == DATA[:1_234_567]
    if ranges == "honoured":
        assert got + content(file, len(got), None) == DATA


@pytest.mark.parametrize(
    ("fault", "error", "got"),
    [
        # Before any of it is given out; another total is another file.
        (WebFault(kind="content_range", delta=1), TransientError, 0),
        (WebFault(kind="total", delta=1), SourceChangedError, 0),
        # Shorter than its range: what came is good. Longer: nothing of it can be trusted.
        (WebFault(kind="length", delta=-5), TransientError, PART - 5),
        (WebFault(kind="length", delta=5), TransientError, 0),
        # A login that ran out in the middle.
        (WebFault(kind="html"), WebPageError, 0),
        (WebFault(kind="hang"), TransientError, 0),
    ],
    ids=["range", "total", "shorter", "longer", "page", "silence"],
)
def test_a_part_that_is_not_what_was_asked_for(
    server: WebServer, look: Look, fault: WebFault, error: type[Exception], got: int
) -> None:
    file = look(timeout_s=0.3 if fault.kind == "hang" else 10)
    server.set_faults(fault)
    data, raised = read_broken(file, 0, PART)
    assert (data, type(raised)) == (DATA[:got], error)
    server.set_faults()
    assert content(file, 0, PART) == DATA[:PART]


def test_a_server_that_nothing_here_knows(look: Look) -> None:
    """A typing error, or a machine without internet, as Kaggle's notebooks are at first."""
    with pytest.raises(TransientError, match="internet"):
        look(url="http://nowhere.invalid/a.bin")


def test_nobody_listens(look: Look) -> None:
    """A refused connection may pass, and says so without the address's secrets."""
    with WebServer({}) as gone:
        url = gone.url("a.bin", login="ann:hunter2", query="token=s3cret")
    with pytest.raises(TransientError, match="refused") as raised:
        look(url=url)
    shown = "".join(traceback.format_exception(raised.value))
    assert not [secret for secret in ("hunter2", "s3cret") if secret in shown]


# Statuses.


@pytest.mark.parametrize(
    ("status", "kind", "named"),
    [
        *((status, SourceAccessError, "netrc.*licence") for status in (401, 451)),
        (404, SourceNotFoundError, ""),
        *((status, TransientError, "12 s") for status in (202, 429, 500, 599)),
        (418, SourceReadError, ""),
    ],
)
def test_statuses_at_the_look_and_later(
    server: WebServer, look: Look, status: int, kind: type[Exception], named: str
) -> None:
    """The same typed error in both places, which says what to do and survives a trip between processes."""
    file = look()
    server.set_faults(WebFault(kind="status", status=status, retry_after="12"))
    with pytest.raises(kind, match=rf"(?s){status}.*{named}") as raised:
        content(file, 0, PART)
    assert type(raised.value) is kind
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    if isinstance(raised.value, TransientError):
        assert pickle.loads(pickle.dumps(raised.value)).wait_s == 12.0
    with pytest.raises(kind, match=str(status)):
        look()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("999999999999", 3600.0), ("30", 30.0), ("9" * 5000, None)],
)
def test_a_server_says_when_to_come_again(server: WebServer, look: Look, text: str, seconds: float | None) -> None:
    """Never after more than an hour."""
    file = look()
    server.set_faults(WebFault(kind="status", status=503, retry_after=text))
    error = read_broken(file, 0, PART)[1]
    assert isinstance(error, TransientError)
    assert error.wait_s == seconds


def test_the_look_is_tried_again(server: WebServer, look: Look) -> None:
    """503 and a broken connection, then 200: waits as asked, then grows; a long wait is the caller's matter."""
    clock = ManualClock()
    server.set_faults(
        WebFault(kind="status", status=503, retry_after="2", first=1), WebFault(kind="truncate", after=1, first=1)
    )
    file = look(policy=RetryPolicy(attempts=4, first_wait_s=0.5), clock=clock)
    assert file.facts.size == len(DATA)
    assert clock.slept == [2.0, 1.0]
    server.set_faults(WebFault(kind="status", status=429, retry_after="1000"))
    with pytest.raises(TransientError, match="1000 s"):
        look(policy=RetryPolicy(attempts=4), clock=clock)
    assert len(clock.slept) == 2


@pytest.mark.parametrize(
    ("status", "body", "query"),
    [
        (403, "<Error><Message>Request has expired</Message></Error>", ""),
        (403, "", "X-Amz-Signature=c0ffee"),
        # Amazon, where the login that signed it has ended.
        (400, "<Error><Code>ExpiredToken</Code></Error>", "X-Amz-Security-Token=c0ffee"),
    ],
)
def test_an_expired_link_is_recognised(server: WebServer, look: Look, status: int, body: str, query: str) -> None:
    """By what the service says, or by the signature in the address, which is not shown."""
    server.set_faults(WebFault(kind="status", status=status, body=body))
    with pytest.raises(SourceAccessError, match="expired") as raised:
        look(url=server.url("data.bin", query=query))
    assert "c0ffee" not in str(raised.value)


@pytest.mark.parametrize("url", ["ftp://example.org/a", "http://h:port/a", "http://[x/a", ""])
def test_what_is_no_web_address_is_refused(url: str) -> None:
    """Before anything is asked."""
    with pytest.raises(OptionError):
        open_http(url)


# Pages and texts in place of data.


@pytest.mark.parametrize(
    ("name", "body", "knobs", "named"),
    [
        ("data.zip", PAGE, WebKnobs(gzip=True), TITLE),
        ("data.zip", PAGE, WebKnobs(content_type="application/zip"), TITLE),
        ("data.bin", b"<title>Cut of", WebKnobs(content_type="text/html; charset=utf-8"), "Cut of"),
        ("data.bin", b"Please log in.", WebKnobs(content_type="text/html"), "data.bin"),
        # A message of the service, whatever its type; more of them in tests/contract/test_bytes_faults.py.
        ("data.tar.gz", "<Error>Zugriff für alle</Error>".encode(), WebKnobs(), "Zugriff für alle"),
    ],
)
def test_what_comes_in_place_of_data_is_refused(
    server: WebServer, look: Look, name: str, body: bytes, knobs: WebKnobs, named: str
) -> None:
    """With what it says."""
    server.put(name, body)
    server.set_knobs(knobs)
    with pytest.raises(WebPageError) as raised:
        look(name)
    assert named in str(raised.value)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        # An address that ends in .html means it.
        ("index.html", PAGE),
        # Careless servers call everything text/html: bytes that no text has are data.
        ("data.bin", DATA),
        ("answer.json", b'{"error": {"code": 401}}'),
        ("head.tar.bz2", b"BZh91AY"),
    ],
)
def test_pages_and_data_that_were_asked_for_come(server: WebServer, look: Look, name: str, body: bytes) -> None:
    server.put(name, body)
    is_page_type = name in ("index.html", "data.bin")
    server.set_knobs(WebKnobs(content_type="text/html" if is_page_type else "application/octet-stream", ranges="none"))
    assert content(look(name)) == body


# Redirects and logins.


@pytest.fixture
def other() -> Iterator[WebServer]:
    """Another server, with the same file."""
    with WebServer({"real.bin": DATA}) as made:
        yield made


def test_parts_go_straight_to_where_the_first_answer_came_from(server: WebServer, other: WebServer, look: Look) -> None:
    """The front door is asked once; name and label are of the address that was given. A refusal there sends the same
    part through the front door again; a refusal here, too, is one."""
    server.set_faults(WebFault(kind="redirect", location=other.url("real.bin")))
    file = look()
    assert (file.facts.name, file.facts.label) == ("data.bin", server.url("data.bin"))
    assert content(file, 0, PART) + content(file, PART, PART) == DATA[: 2 * PART]
    assert (len(server.requests), len(other.requests)) == (1, 3)
    other.set_faults(WebFault(kind="status", status=403, first=1))
    assert content(file, PART, PART) == DATA[PART : 2 * PART]
    assert len(server.requests) == 2
    other.set_faults(WebFault(kind="status", status=403))
    with pytest.raises(SourceAccessError):
        content(file, PART, PART)


@pytest.mark.parametrize("location", ["/data.bin", "http://h:port/x", "file:///etc/passwd"])
def test_redirects_out_of_the_web_and_in_a_circle_are_refused(server: WebServer, look: Look, location: str) -> None:
    """Whatever a server names."""
    server.set_faults(WebFault(kind="redirect", location=location))
    with pytest.raises(SourceReadError) as raised:
        look()
    assert type(raised.value) is SourceReadError


def test_a_login_in_the_address_is_used_and_never_shown(server: WebServer, other: WebServer, look: Look) -> None:
    """Neither in the facts nor in an error with its whole trace; and where a redirect leads elsewhere, it is not sent
    along, at the look nor later."""
    server.set_knobs(WebKnobs(login=("ann", "p@ss/wörd")))
    url = server.url("data.bin", login="ann:p%40ss%2Fw%C3%B6rd")
    file = look(url=url)
    assert content(file, 0, PART) == DATA[:PART]
    assert file.facts.label == server.url("data.bin")
    wrong = server.url("data.bin", login="ann:hunter2")
    with pytest.raises(SourceAccessError, match="netrc") as raised:
        look(url=wrong)
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))
    server.set_faults(WebFault(kind="redirect", location=other.url("real.bin")))
    assert content(look(url=url), 0, PART) == DATA[:PART]
    assert "authorization" in server.requests[-1].headers
    assert not any("authorization" in request.headers for request in other.requests)


def test_a_login_in_netrc_is_used(server: WebServer, look: Look, tmp_path: Path) -> None:
    """As every other program does; one in the address comes first."""
    server.set_knobs(WebKnobs(login=("ann", "pw")))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password pw\n", encoding="ascii")
    assert look().facts.size == len(DATA)
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password old\n", encoding="ascii")
    assert look(url=server.url("data.bin", login="ann:pw")).facts.size == len(DATA)


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A server with https, whose certificate is trusted."""
    pytest.importorskip("cryptography", reason="needs a certificate: pip install cryptography")
    write_certificate(tmp_path / "localhost.pem", ["localhost"])
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "localhost.pem"))
    with WebServer({"data.bin": DATA}, certificate=tmp_path / "localhost.pem") as made:
        yield made


def test_https_never_leads_to_http(
    server: WebServer, secure: WebServer, other: WebServer, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at the look nor later. The other way it only becomes safer. To try again with an unknown certificate
    would not help; the message says what would."""
    url = secure.url("data.bin")
    file = look(url=url)
    assert content(file) == DATA
    secure.set_faults(WebFault(kind="redirect", location=other.url("real.bin", query="token=s3cret")))
    for read in (lambda: content(file, 0, PART), lambda: look(url=url)):
        with pytest.raises(SourceReadError, match=r"'http://127") as raised:
            read()
        assert type(raised.value) is SourceReadError
        assert "s3cret" not in str(raised.value)
    secure.set_faults()
    server.set_faults(WebFault(kind="redirect", location=url))
    assert content(look(), 0, PART) == DATA[:PART]
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(SourceReadError, match="REQUESTS_CA_BUNDLE") as raised:
        look(url=url)
    assert type(raised.value) is SourceReadError


# What services tell besides.


@pytest.mark.parametrize(
    ("disposition", "path", "expected"),
    [
        ('attachment; filename="b c.zip"', "data.bin", "b c.zip"),
        ("attachment; filename*=UTF-8''%C3%BC%2Fx.zip", "data.bin", "x.zip"),
        ('attachment; filename="C:\\\\temp\\\\b.zip"', "data.bin", "b.zip"),
        ('attachment; filename=".bashrc"', "data.bin", "bashrc"),
        ('attachment; filename="n\xefve.zip"', "data.bin", "nïve.zip"),
        ('attachment; filename="n\xc3\xafve.zip"', "data.bin", "nïve.zip"),
        ("attachment", "data.bin", "data.bin"),
        ("", "%2e%2e%2fa%20b.zip", "a b.zip"),
        ("", "", "download"),
        ("", f"{'%C3%BC' * 300}.zip", f"{'ü' * 98}.zip"),
    ],
)
def test_the_server_names_the_file_but_not_the_place(
    server: WebServer, look: Look, disposition: str, path: str, expected: str
) -> None:
    """The extended name wins; folders, dots in front and nothing at all do not get through. Without a name, the last
    part of the address is one, shortened to 200 bytes."""
    for name in (path, "../a b.zip", f"{'ü' * 300}.zip"):
        server.put(name, DATA)
    server.set_knobs(WebKnobs(headers=(("Content-Disposition", disposition),) if disposition else ()))
    assert look(url=server.url("") + path).facts.name == expected


def b64(digest: bytes) -> str:
    """As digests travel in headers."""
    return base64.b64encode(digest).decode()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-goog-hash": f"crc32c=n03x6A==, md5={b64(MD5.digest())}"}, MD5),
        ({"x-goog-hash": f"md5={b64(MD5.digest())}", "x-goog-stored-content-encoding": "gzip"}, None),
        ({"Content-MD5": b64(MD5.digest())}, None),
    ],
    ids=range(3),
)
def test_only_hashes_of_the_whole_count(server: WebServer, look: Look, headers: dict[str, str], expected: Any) -> None:
    """A hash of a part, of parts or of a compressed copy is none of the file; and the caller's comes before all."""
    server.set_knobs(WebKnobs(headers=tuple(headers.items())))
    found = look().facts.checksum
    assert found == (expected and Checksum(expected.name, expected.hexdigest()))
    own = Checksum("sha256", "1" * 64)
    assert look(checksum=own).facts.checksum == own


def test_the_hash_of_a_hub_is_told_by_its_redirect(raw_server: Answering, server: WebServer, look: Look) -> None:
    """Hugging Face names it there, and nowhere else."""
    told = f'X-Linked-ETag: "{SHA256.hexdigest()}"\r\nContent-Length: 0\r\n\r\n'
    answer = f"HTTP/1.1 302 Found\r\nLocation: {server.url('data.bin')}\r\n{told}".encode()
    file = look(url=raw_server(lambda connection: connection.sendall(answer)))
    assert file.facts.checksum == Checksum("sha256", SHA256.hexdigest())
    assert content(file, 0, PART) == DATA[:PART]


@pytest.fixture
def raw_server() -> Iterator[Answering]:
    """Start a server that answers every connection by a function of the socket; gives its address."""
    with contextlib.ExitStack() as stack:

        def start(answer: Callable[[socket.socket], object]) -> str:
            server = stack.enter_context(RawServer(lambda connection, _: answer(connection)))
            return f"http://127.0.0.1:{server.port}/data.bin"

        yield start


def _drip(connection: socket.socket, data: bytes, pause_s: float) -> None:
    for number in range(len(data)):
        connection.sendall(data[number : number + 1])
        time.sleep(pause_s)


def test_a_head_that_drips_ends_in_time(raw_server: Answering) -> None:
    """Each line comes soon after the one before, but all of them would take longer than anybody waits."""
    slowly = b"HTTP/1.1 200 OK\r\n" + b"X-More: 1\r\n" * 1000
    url = raw_server(lambda connection: _drip(connection, slowly, 0.2))
    began = time.monotonic()
    with pytest.raises(TransientError):
        open_http(url, Access(policy=ONCE), timeout_s=0.5)
    assert time.monotonic() - began < 60


def test_a_body_that_never_ends_is_cut(raw_server: Answering) -> None:
    """Behind the last chunk come lines that are no content: what has come is all of it."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3000\r\n" + bytes(0x3000))
        connection.sendall(b"\r\n0\r\n")
        _drip(connection, b"X-More: 1\r\n" * 1000, 0.05)

    began = time.monotonic()
    with closing(open_http(raw_server(answer), Access(policy=ONCE), timeout_s=0.5)) as file:
        assert content(file, 0, None) == bytes(0x3000)
    assert time.monotonic() - began < 0.05 * 1000


def test_a_trickle_is_an_error(server: WebServer, look: Look) -> None:
    """No socket is silent for long, but nobody could wait for the end."""
    file = look(timeout_s=0.5)
    server.set_faults(WebFault(kind="drip", bytes_per_s=200.0, min_bytes=PART))
    error = read_broken(file)[1]
    assert isinstance(error, TransientError)
    assert error.slow
    assert "too slow" in str(error)


@pytest.mark.parametrize("answers", ["alike", "no suffix", "another version", "too many at once"])
def test_the_two_ends_come_along_with_the_look_or_are_asked_for_as_ever(
    answers: str, server: WebServer, look: Look
) -> None:
    """Two requests at once; what came is told once it is sure to be of the same state."""
    if answers == "no suffix":
        server.set_knobs(WebKnobs(ranges="ignored"))
    elif answers == "another version":
        server.set_knobs(WebKnobs(etag="changing"))
    elif answers == "too many at once":
        server.set_knobs(WebKnobs(latency_s=0.2, max_requests=1))
    file = look(along=100_000, tail=100_000, policy=RetryPolicy(attempts=3, first_wait_s=0.01))
    size = len(DATA)
    assert file.known(100_000, size - 100) == b""
    known = file.known(size - 1000, size)
    if answers == "alike":
        assert {request.range for request in server.requests} == {"bytes=0-99999", "bytes=-100000"}
        assert known == DATA[-1000:]
        assert file.known(100, size) == DATA[100:100_000]
        assert file.known(size - 100_001, size) == b""
    elif answers == "too many at once":
        assert known in {b"", DATA[-1000:]}
        server.set_knobs(WebKnobs())  # one of the two may still be answered
    else:
        assert known == b""
    if answers != "another version":
        assert b"".join(file.read_range(0, 1000)) == DATA[:1000]
