"""One file on a web server: what is learnt at the first look, any part of it, and every way a server can fail."""

from __future__ import annotations

import bz2
import contextlib
import gc
import gzip
import pickle
import socket
import threading
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import fetch_files
from colabstage.errors import (
    OptionError,
    SourceAccessError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
    WebPageError,
)
from colabstage.io.files import RetryPolicy
from colabstage.io.progress import Cancellation, Progress
from colabstage.sources.arriving import fetch_file
from colabstage.sources.http_file import HttpFile, open_http
from colabstage.sources.remote import Checksum, RemoteFile, TransientError, at_least_rate
from tests.clocks import ManualClock
from tests.support.http_knobs import WebFault, WebKnobs
from tests.support.http_server import WebServer
from tests.support.https_hosts import write_certificate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DATA = bytes(range(251)) * 8000
ONCE = RetryPolicy(attempts=1)
# Spares whoever only looks.
PART = 50_000
PAGE = b"<!DOCTYPE html><html><head><title>Confirm &amp; go</title></head><body></body></html>"


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
        made.append(open_http(url or server.url(name), **options))
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


def test_the_first_look_learns_everything(server: WebServer, look: Callable[..., HttpFile]) -> None:
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


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193])
def test_files_smaller_than_the_look(server: WebServer, look: Callable[..., HttpFile], size: int) -> None:
    """Also the empty one, whose first byte cannot be asked for."""
    server.put("small.bin", DATA[:size])
    file = look("small.bin")
    assert file.facts.size == size
    assert content(file) == DATA[:size]
    assert content(file, 0, size) == DATA[:size]


def test_any_part_comes_in_pieces_of_at_most_a_megabyte(look: Callable[..., HttpFile]) -> None:
    """From anywhere, of any length, down to nothing."""
    file = look()
    assert content(file) == DATA
    assert content(file, 1_000_001, 300_003) == DATA[1_000_001:1_300_004]
    assert content(file, len(DATA) - 1, None) == DATA[-1:]
    assert content(file, len(DATA), None) == b""
    assert content(file, 5, 0) == b""
    assert max(map(len, file.read_range(0, None))) <= 1024 * 1024


@pytest.mark.parametrize(("offset", "length"), [(-1, 5), (0, -1), (0, len(DATA) + 1), (len(DATA) + 1, None)])
def test_a_part_that_does_not_exist_is_refused(look: Callable[..., HttpFile], offset: int, length: int | None) -> None:
    """At once, with the size."""
    with pytest.raises(OptionError, match=str(len(DATA))):
        look().read_range(offset, length)


def test_parts_share_kept_connections(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """Forty parts in four threads take no more connections than threads, and the looking's."""
    file = look()

    def part(number: int) -> bytes:
        return content(file, number * PART, PART)

    with ThreadPoolExecutor(4) as pool:
        assert b"".join(pool.map(part, range(40))) == DATA[: 40 * PART]
    assert len({request.connection for request in server.requests}) <= 5


def test_chunked_parts_keep_their_connection(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """The end of the chunks is read, too."""
    server.set_knobs(WebKnobs(length="chunked"))
    file = look()
    assert (file.facts.ranges, file.facts.size) == (True, len(DATA))
    assert [content(file, start, PART) for start in (0, PART)] == [DATA[:PART], DATA[PART : 2 * PART]]
    assert len({request.connection for request in server.requests}) == 1


def test_leaving_early_hangs_up_and_harms_nobody(server: WebServer, look: Callable[..., HttpFile]) -> None:
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


def test_closing_wakes_whoever_reads(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """A reader in another thread gets an error at once, not at its time limit; closing twice is fine."""
    server.set_faults(WebFault(kind="stall", at_byte=1000, min_bytes=PART))
    file = look(timeout_s=60.0)
    began = threading.Event()
    failures: list[Exception] = []

    def read() -> None:
        try:
            for _ in file.read_range(0, None):
                began.set()
        except SourceReadError as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(10)
    file.close()
    reader.join(5)
    assert not reader.is_alive()
    assert "was closed" in str(failures[0])
    assert not isinstance(failures[0], TransientError)
    file.close()
    with pytest.raises(SourceReadError, match="was closed"):
        content(file)


def test_closing_is_no_end_of_a_file_without_length(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """A body that ends by hanging up is not whole when it was us who hung up."""
    server.set_knobs(WebKnobs(length="close", ranges="none", bytes_per_s=500_000))
    file = look(timeout_s=60.0)
    pieces = file.read_range(0, None)
    next(pieces)
    file.close()
    with pytest.raises(SourceReadError, match="was closed"):
        b"".join(pieces)


# Servers without ranges, or without lengths.


@pytest.mark.parametrize("ranges", ["ignored", "none"])
@pytest.mark.parametrize("length", ["told", "chunked", "close"])
def test_without_ranges_the_whole_still_comes(
    server: WebServer, look: Callable[..., HttpFile], ranges: Any, length: Any
) -> None:
    """Whatever the server claims; with its size where it tells it."""
    server.set_knobs(WebKnobs(ranges=ranges, length=length))
    file = look()
    assert (file.facts.ranges, file.facts.connections) == (False, 1)
    assert file.facts.size == (len(DATA) if length == "told" else None)
    assert content(file) == DATA
    assert content(file, 0, 1000) == DATA[:1000]
    with pytest.raises(OptionError, match="only the whole"):
        file.read_range(5, 10)


def test_looking_at_a_server_without_ranges_fetches_little(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """The rest of the whole that it began to send is hung up on."""
    server.put("big.bin", DATA * 50)
    server.set_knobs(WebKnobs(ranges="none", bytes_per_s=20e6))
    look("big.bin")
    assert server.bytes_sent < len(DATA) * 50 / 4


@pytest.mark.parametrize("status", [400, 416, 501])
def test_servers_that_refuse_the_very_question(server: WebServer, look: Callable[..., HttpFile], status: int) -> None:
    """A range answered with an error does not mean that the file cannot be had."""
    server.set_knobs(WebKnobs(ranges="none"))
    server.set_faults(WebFault(kind="status", status=status, first=1))
    file = look()
    assert (file.facts.size, file.facts.ranges) == (len(DATA), False)
    assert content(file) == DATA


@pytest.mark.parametrize("kind", ["content_range", "total"])
def test_a_wrong_range_at_the_look_means_no_ranges(server: WebServer, look: Callable[..., HttpFile], kind: Any) -> None:
    """A server whose Content-Range is not exact proves nothing; an impossible total neither."""
    server.set_faults(WebFault(kind=kind, delta=-len(DATA) if kind == "total" else 1, first=1))
    server.set_knobs(WebKnobs())
    file = look()
    assert (file.facts.size, file.facts.ranges) == (len(DATA), False)
    assert content(file) == DATA


def test_gzip_on_the_way_is_undone(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """Parts of it are of no use and its length is not the file's, so: one stream, size unknown, no hash."""
    digest = "sha-256=:" + "A" * 43 + "=:"
    server.set_knobs(WebKnobs(gzip=True, headers=(("Repr-Digest", digest),)))
    file = look()
    assert (file.facts.ranges, file.facts.size, file.facts.checksum) == (False, None, None)
    assert content(file) == DATA
    assert content(file, 0, 1000) == DATA[:1000]
    assert max(map(len, file.read_range(0, None))) <= 1024 * 1024


def test_a_coding_nobody_asked_for_is_refused(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """Rather than taken for the file."""
    server.set_knobs(WebKnobs(headers=(("Content-Encoding", "br"),)))
    with pytest.raises(SourceReadError, match="'br'"):
        look()


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_coding_is_noticed(server: WebServer, look: Callable[..., HttpFile], damage: str) -> None:
    """Where nothing else tells that the stream ended too early or came wrong."""
    packed = bytearray(gzip.compress(DATA))
    if damage == "cut":
        del packed[-100:]
    else:
        packed[-6] ^= 1
    server.put("data.bin", bytes(packed))
    server.set_knobs(WebKnobs(headers=(("Content-Encoding", "gzip"),), length="close"))
    with pytest.raises(TransientError, match="compressed"):
        content(look())


def test_a_compressed_file_is_left_compressed(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """A .tar.gz that the server calls a tar compressed on the way has ranges, a size, and its own bytes."""
    packed = gzip.compress(DATA)
    server.put("data.tar.gz", packed)
    server.set_knobs(WebKnobs(headers=(("Content-Encoding", "gzip"),)))
    file = look("data.tar.gz")
    assert (file.facts.ranges, file.facts.size) == (True, len(packed))
    assert content(file) == packed


def test_parts_that_come_compressed_are_refused(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """Plain and compressed parts are never mixed."""
    file = look()
    server.set_knobs(WebKnobs(headers=(("Content-Encoding", "gzip"),)))
    with pytest.raises(SourceReadError, match="compressed a part"):
        content(file, 0, PART)


# Versions.


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        (WebKnobs(), '"'),
        (WebKnobs(etag="weak"), ""),
        (WebKnobs(etag="none"), "date"),
        (WebKnobs(etag="none", last_modified=False), ""),
    ],
)
def test_if_range_has_only_strong_validators(
    server: WebServer, look: Callable[..., HttpFile], knobs: WebKnobs, expected: str
) -> None:
    """A strong ETag, else an old enough time, else nothing."""
    server.set_knobs(knobs)
    file = look()
    assert content(file, 10, 10) == DATA[10:20]
    sent = server.requests[-1].headers.get("if-range", "")
    assert sent == (file.facts.version if expected else "")
    assert sent[:1] == ("" if not expected else '"' if expected == '"' else sent[:1])


@pytest.mark.parametrize("etag", ["strong", "weak", "none"])
@pytest.mark.parametrize("if_range", [True, False])
def test_a_changed_file_is_noticed(server: WebServer, look: Callable[..., HttpFile], etag: Any, if_range: bool) -> None:
    """By If-Range, or by comparing what the server says each time, before one byte of it is given out."""
    server.set_knobs(WebKnobs(etag=etag, if_range=if_range))
    file = look()
    server.put("data.bin", DATA[::-1])
    got, error = read_broken(file, 10, PART)
    assert got == b""
    assert isinstance(error, SourceChangedError)


@pytest.mark.parametrize("size", [10, len(DATA) + 10])
def test_a_changed_size_is_noticed_without_any_version(
    server: WebServer, look: Callable[..., HttpFile], size: int
) -> None:
    """A shorter file answers 416, a longer one tells another total."""
    server.set_knobs(WebKnobs(etag="none", last_modified=False))
    file = look()
    assert file.facts.version == ""
    server.put("data.bin", (DATA + DATA)[:size])
    with pytest.raises(SourceChangedError, match=str(size)):
        content(file, PART, PART)


def test_a_changed_whole_is_noticed(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """Also where only the whole can be had."""
    silent = WebKnobs(ranges="none", etag="none", last_modified=False)
    for knobs, changed in (WebKnobs(ranges="none"), DATA[::-1]), (silent, DATA + b"!"):
        server.put("data.bin", DATA)
        server.set_knobs(knobs)
        file = look()
        server.put("data.bin", changed)
        assert isinstance(read_broken(file)[1], SourceChangedError)


def test_a_version_that_is_another_each_time_says_so(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """As several servers behind one address do."""
    server.set_knobs(WebKnobs(etag="changing"))
    with pytest.raises(SourceChangedError, match="several servers"):
        content(look(), 0, PART)


def test_a_server_that_stops_giving_parts(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """The whole of the same version is no change: its beginning is taken, and the rest may pass."""
    file = look()
    server.set_knobs(WebKnobs(ranges="ignored"))
    assert content(file, 0, PART) == DATA[:PART]
    with pytest.raises(TransientError, match="unchanged"):
        content(file, PART, PART)
    server.set_knobs(WebKnobs(ranges="ignored", etag="none", last_modified=False))
    with pytest.raises(TransientError, match="nothing says"):
        content(file, 0, PART)


def test_a_416_for_what_is_there_may_pass(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """The size is still right, so it is the server that errs."""
    file = look()
    server.set_faults(WebFault(kind="status", status=416))
    with pytest.raises(TransientError, match="416"):
        content(file, 0, PART)


# Broken connections and broken promises.


@pytest.mark.parametrize("kind", ["reset", "truncate", "stall"])
@pytest.mark.parametrize("ranges", ["honoured", "none"])
@pytest.mark.parametrize("length", ["told", "chunked"])
def test_what_came_before_a_break_is_given_out(
    server: WebServer, look: Callable[..., HttpFile], kind: Any, ranges: Any, length: Any
) -> None:
    """To the last byte; and going on from there gives the rest."""
    server.set_knobs(WebKnobs(ranges=ranges, length=length))
    file = look(timeout_s=0.5)
    server.set_faults(WebFault(kind=kind, at_byte=1_234_567, min_bytes=PART, first=1))
    got, error = read_broken(file)
    assert type(error) is TransientError
    assert got == DATA[:1_234_567]
    if ranges == "honoured":
        assert got + content(file, len(got), None) == DATA


@pytest.mark.parametrize("status", [500, 503])
def test_failed_parts_do_not_cost_their_connection(
    server: WebServer, look: Callable[..., HttpFile], status: int
) -> None:
    """A short answer is read to its end, so that the next try need not connect."""
    file = look()
    server.set_faults(WebFault(kind="status", status=status, first=3))
    for _ in range(3):
        with pytest.raises(TransientError):
            content(file, 0, PART)
    assert content(file, 0, PART) == DATA[:PART]
    assert len({request.connection for request in server.requests}) == 1


def test_a_part_with_a_wrong_range_is_refused(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """Before any of it is given out; another total is another file."""
    file = look()
    server.set_faults(WebFault(kind="content_range", delta=1, min_bytes=PART))
    got, error = read_broken(file, 0, PART)
    assert (got, type(error)) == (b"", SourceReadError)
    assert "Content-Range: bytes 1-50000" in str(error)
    server.set_faults(WebFault(kind="total", delta=1, min_bytes=PART))
    assert type(read_broken(file, 0, PART)[1]) is SourceChangedError


@pytest.mark.parametrize(("delta", "kind", "got"), [(-5, TransientError, PART - 5), (5, SourceReadError, 0)])
def test_a_part_with_a_wrong_length(
    server: WebServer, look: Callable[..., HttpFile], delta: int, kind: type[Exception], got: int
) -> None:
    """Shorter than its range: what came is good. Longer: nothing of it can be trusted."""
    file = look()
    server.set_faults(WebFault(kind="length", delta=delta, min_bytes=PART))
    data, error = read_broken(file, 0, PART)
    assert type(error) is kind
    assert data == DATA[:got]
    server.set_faults()
    assert content(file, 0, PART) == DATA[:PART]


def test_a_whole_that_is_shorter_than_its_length(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """All of it comes, and then the failure, never a silent end."""
    server.set_knobs(WebKnobs(ranges="none"))
    server.set_faults(WebFault(kind="length", delta=1))
    got, error = read_broken(look())
    assert type(error) is TransientError
    assert got == DATA


def test_silence_ends_at_the_time_limit(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """Before the answer, too."""
    file = look(timeout_s=0.3)
    server.set_faults(WebFault(kind="hang"))
    start = time.monotonic()
    with pytest.raises(TransientError, match="too long"):
        content(file, 0, PART)
    assert 0.25 < time.monotonic() - start < 8


def test_a_drip_comes_as_it_drips(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """Bytes are given out when they come, not when a piece is full."""
    file = look()
    server.set_faults(WebFault(kind="drip", bytes_per_s=200, min_bytes=PART))
    with closing(file.read_range(0, PART)) as pieces:  # type: ignore[type-var]
        start = time.monotonic()
        sizes = [len(next(pieces)) for _ in range(5)]
    assert time.monotonic() - start < 60  # all of it would take four minutes
    assert max(sizes) < 1000


def test_nobody_listens(look: Callable[..., HttpFile]) -> None:
    """A refused connection may pass, and says so without the address's secrets."""
    with WebServer({}) as gone:
        url = gone.url("a.bin", login="ann:hunter2", query="token=s3cret")
    with pytest.raises(TransientError, match="refused") as raised:
        look(url=url)
    shown = "".join(traceback.format_exception(raised.value))
    assert "hunter2" not in shown
    assert "s3cret" not in shown


# Statuses.


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, SourceAccessError) for status in (401, 403, 451)),
        *((status, SourceNotFoundError) for status in (404, 410)),
        (418, SourceReadError),
        *((status, TransientError) for status in (429, 503)),
    ],
)
def test_statuses_at_the_look_and_later(
    server: WebServer, look: Callable[..., HttpFile], status: int, kind: type[Exception]
) -> None:
    """The same typed error in both places."""
    file = look()
    server.set_faults(WebFault(kind="status", status=status, retry_after="9"))
    with pytest.raises(kind, match=str(status)) as raised:
        content(file, 0, PART)
    with pytest.raises(kind, match=str(status)):
        look()
    if isinstance(raised.value, TransientError):
        assert raised.value.wait_s == 9.0
        assert pickle.loads(pickle.dumps(raised.value)).wait_s == 9.0


def test_the_look_is_tried_again(server: WebServer, look: Callable[..., HttpFile]) -> None:
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


def test_an_expired_link_is_recognised(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """By what the service says, or by the signature in the address, which is not shown."""
    for body, query in ("<Error><Message>Request has expired</Message></Error>", ""), ("", "X-Amz-Signature=c0ffee"):
        server.set_faults(WebFault(kind="status", status=403, body=body))
        with pytest.raises(SourceAccessError, match="fresh link") as raised:
            look(url=server.url("data.bin", query=query))
        assert "c0ffee" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["ftp://example.org/a", "example.org/a", "http://", "http://h:port/a", "http://[x/a", ""]
)
def test_what_is_no_web_address_is_refused(url: str) -> None:
    """Before anything is asked."""
    with pytest.raises(OptionError, match="not a web address"):
        open_http(url)


# Pages in place of data.


def test_a_page_in_place_of_data_is_refused(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """With its title; whatever type it is given."""
    server.set_faults(WebFault(kind="html"))
    with pytest.raises(WebPageError, match="“Sign in”"):
        look()
    server.set_faults()
    server.put("data.zip", PAGE)
    with pytest.raises(WebPageError, match="“Confirm & go”"):
        look("data.zip")
    server.set_knobs(WebKnobs(gzip=True))
    with pytest.raises(WebPageError, match="“Confirm & go”"):
        look("data.zip")


@pytest.mark.parametrize("text", [b'{"error": {"code": 401}}', "<Error>Zugriff für alle</Error>".encode(), b"no"])
@pytest.mark.parametrize("name", ["data.zip", "data.tar.gz", "photos.7z"])
def test_text_in_place_of_an_archive_is_refused(
    server: WebServer, look: Callable[..., HttpFile], name: str, text: bytes
) -> None:
    """A message of the service, whatever its type; under another name it is a file like any other."""
    server.put(name, text)
    with pytest.raises(WebPageError) as failed:
        look(name)
    assert name in str(failed.value)
    assert text.decode() in str(failed.value)
    server.put("answer.json", text)
    assert content(look("answer.json"), 0, len(text)) == text


def test_a_pointer_in_place_of_an_archive_is_called_that(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """A repository on the web serves pointers of Git LFS under the names of their files."""
    server.put("data.zip", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n")
    with pytest.raises(WebPageError, match="git lfs pull"):
        look("data.zip")


def test_an_archive_whose_first_bytes_are_letters_comes(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """As those of bzip2 are."""
    data = bz2.compress(b"")
    server.put("data.tar.bz2", data)
    server.put("head.tar.bz2", b"BZh91AY")
    assert content(look("data.tar.bz2"), 0, len(data)) == data
    assert content(look("head.tar.bz2"), 0, 7) == b"BZh91AY"


def test_a_page_in_place_of_a_part_is_refused(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """A login that ran out in the middle."""
    file = look()
    server.set_faults(WebFault(kind="html"))
    with pytest.raises(WebPageError, match="“Sign in”"):
        content(file, 0, PART)


def test_pages_and_data_that_were_asked_for_come(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """An address that ends in .html means it; and careless servers call everything text/html: bytes that no text has
    are data."""
    server.set_knobs(WebKnobs(content_type="text/html", ranges="none"))
    assert content(look()) == DATA
    server.put("index.html", PAGE)
    assert content(look("index.html")) == PAGE


# Redirects and logins.


@pytest.fixture
def other() -> Iterator[WebServer]:
    """Another server, with the same file."""
    with WebServer({"real.bin": DATA}) as made:
        yield made


def test_parts_go_straight_to_where_the_first_answer_came_from(
    server: WebServer, other: WebServer, look: Callable[..., HttpFile]
) -> None:
    """The front door is asked once; name and label are of the address that was given."""
    server.set_faults(WebFault(kind="redirect", location=other.url("real.bin")))
    file = look()
    assert (file.facts.name, file.facts.label) == ("data.bin", server.url("data.bin"))
    assert content(file, 0, PART) + content(file, PART, PART) == DATA[: 2 * PART]
    assert len(server.requests) == 1
    assert len(other.requests) == 3


def test_an_expired_target_is_looked_up_anew(
    server: WebServer, other: WebServer, look: Callable[..., HttpFile]
) -> None:
    """A refusal there sends the same part through the front door again; a refusal here, too, is one."""
    server.set_faults(WebFault(kind="redirect", location=other.url("real.bin")))
    file = look()
    other.set_faults(WebFault(kind="status", status=403, first=1))
    assert content(file, PART, PART) == DATA[PART : 2 * PART]
    assert len(server.requests) == 2
    other.set_faults(WebFault(kind="status", status=403))
    with pytest.raises(SourceAccessError):
        content(file, PART, PART)


def test_redirects_in_a_circle_end(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """After ten of them."""
    server.set_faults(WebFault(kind="redirect", location="/data.bin"))
    with pytest.raises(SourceReadError, match="in a loop"):
        look()


@pytest.mark.parametrize("location", ["ftp://example.org/x", "http://h:port/x", "http://[x/y", "file:///etc/passwd"])
def test_redirects_out_of_the_web_are_refused(server: WebServer, look: Callable[..., HttpFile], location: str) -> None:
    """Whatever a server names."""
    server.set_faults(WebFault(kind="redirect", location=location))
    with pytest.raises(SourceReadError, match="browser") as raised:
        look()
    assert not isinstance(raised.value, TransientError)


def test_a_login_in_the_address_is_used_and_never_shown(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """Neither in the facts nor in an error with its whole trace."""
    server.set_knobs(WebKnobs(login=("ann", "p@ss/wörd")))
    url = server.url("data.bin", login="ann:p%40ss%2Fw%C3%B6rd")
    file = look(url=url)
    assert content(file, 0, PART) == DATA[:PART]
    assert file.facts.label == server.url("data.bin")
    wrong = server.url("data.bin", login="ann:hunter2")
    with pytest.raises(SourceAccessError, match="netrc") as raised:
        look(url=wrong)
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def test_a_login_in_netrc_is_used(server: WebServer, look: Callable[..., HttpFile], tmp_path: Path) -> None:
    """As every other program does; one in the address comes first."""
    server.set_knobs(WebKnobs(login=("ann", "pw")))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password pw\n", encoding="ascii")
    assert look().facts.size == len(DATA)
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password old\n", encoding="ascii")
    assert look(url=server.url("data.bin", login="ann:pw")).facts.size == len(DATA)


def test_a_login_stays_with_its_host(server: WebServer, other: WebServer, look: Callable[..., HttpFile]) -> None:
    """Where a redirect leads elsewhere, it is not sent along, at the look nor later."""
    server.set_knobs(WebKnobs(login=("ann", "pw")))
    server.set_faults(WebFault(kind="redirect", location=other.url("real.bin")))
    file = look(url=server.url("data.bin", login="ann:pw"))
    assert content(file, 0, PART) == DATA[:PART]
    assert "authorization" in server.requests[0].headers
    assert not any("authorization" in request.headers for request in other.requests)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost with its key."""
    pytest.importorskip("cryptography", reason="needs a certificate: pip install cryptography")
    path = tmp_path_factory.mktemp("certificate") / "localhost.pem"
    write_certificate(path, ["localhost"])
    return path


@pytest.fixture
def secure(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A server with https, whose certificate is trusted."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with WebServer({"data.bin": DATA}, certificate=certificate) as made:
        yield made


def test_https_never_leads_to_http(secure: WebServer, other: WebServer, look: Callable[..., HttpFile]) -> None:
    """Neither at the look nor later; nobody is asked there."""
    url = secure.url("data.bin")
    file = look(url=url)
    assert content(file) == DATA
    secure.set_faults(WebFault(kind="redirect", location=other.url("real.bin", query="token=s3cret")))
    for read in (lambda: content(file, 0, PART), lambda: look(url=url)):
        with pytest.raises(SourceReadError, match="https to 'http://127") as raised:
            read()
        assert not isinstance(raised.value, TransientError)
        assert "s3cret" not in str(raised.value)
    assert other.requests == ()


def test_http_may_lead_to_https(server: WebServer, secure: WebServer, look: Callable[..., HttpFile]) -> None:
    """That way it only becomes safer."""
    server.set_faults(WebFault(kind="redirect", location=secure.url("data.bin")))
    assert content(look(), 0, PART) == DATA[:PART]


def test_an_unknown_certificate_is_no_passing_failure(
    secure: WebServer, look: Callable[..., HttpFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trying again would not help; the message says what would."""
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(SourceReadError, match="REQUESTS_CA_BUNDLE") as raised:
        look(url=secure.url("data.bin"))
    assert not isinstance(raised.value, TransientError)


# What services tell besides.


def test_the_callers_checksum_comes_before_the_services(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """The service's is taken where the caller has none."""
    server.set_knobs(WebKnobs(headers=(("x-goog-hash", "crc32c=n03x6A=="), ("x-ms-blob-content-md5", "A" * 22 + "=="))))
    assert look().facts.checksum == Checksum("md5", "0" * 32)
    own = Checksum("sha256", "1" * 64)
    assert look(checksum=own).facts.checksum == own


def test_the_name_that_the_service_gives(server: WebServer, look: Callable[..., HttpFile]) -> None:
    """Before the one in the address."""
    server.set_knobs(WebKnobs(headers=(("Content-Disposition", "attachment; filename*=UTF-8''%C3%BC%2Fx.zip"),)))
    assert look().facts.name == "x.zip"


HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: "1"\r\n\r\n'


@pytest.fixture
def raw_server() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Start a server that answers every connection by a function of the socket; gives its address."""
    stack = contextlib.ExitStack()

    def start(answer: Callable[[socket.socket], None]) -> str:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.callback(listener.shutdown, socket.SHUT_RDWR)  # closing alone would not wake who waits for a connection

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=once, args=(connection,), daemon=True).start()

        def once(connection: socket.socket) -> None:
            # Whoever gave up waiting for an answer is let go at the end.
            stack.callback(_hang_up, connection)
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/data.bin"

    with stack:
        yield start


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _drip(connection: socket.socket, data: bytes, pause_s: float) -> None:
    for number in range(len(data)):
        connection.sendall(data[number : number + 1])
        time.sleep(pause_s)


@pytest.mark.parametrize("slowly", [HEAD % 5, b"HTTP/1.1 200 OK\r\n" + b"X-More: 1\r\n" * 1000], ids=["bytes", "lines"])
def test_a_head_that_drips_ends_in_time(
    raw_server: Callable[[Callable[[socket.socket], None]], str], slowly: bytes
) -> None:
    """Each byte comes soon after the one before, but all of them would take longer than anybody waits."""
    url = raw_server(lambda connection: _drip(connection, slowly, 0.2))
    began = time.monotonic()
    with pytest.raises(TransientError, match="for too long"):
        open_http(url, timeout_s=0.5, policy=ONCE)
    assert time.monotonic() - began < 0.2 * len(slowly) - 1


def test_a_body_that_never_ends_is_cut(raw_server: Callable[[Callable[[socket.socket], None]], str]) -> None:
    """Behind the last chunk come lines that are no content: what has come is all of it."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3000\r\n" + bytes(0x3000))
        connection.sendall(b"\r\n0\r\n")
        _drip(connection, b"X-More: 1\r\n" * 1000, 0.05)

    began = time.monotonic()
    with closing(open_http(raw_server(answer), timeout_s=0.5, policy=ONCE)) as file:
        assert content(file, 0, None) == bytes(0x3000)
    assert time.monotonic() - began < 0.05 * 1000


def test_a_body_that_drips_is_given_up(
    raw_server: Callable[[Callable[[socket.socket], None]], str], tmp_path: Path
) -> None:
    """A few bytes now and then are no progress, however often the connection is opened again."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD % 100_000 + bytes(9000))
        _drip(connection, bytes(1000), 0.05)

    began = time.monotonic()
    with closing(open_http(raw_server(answer), timeout_s=0.4, policy=ONCE)) as file:
        policy = RetryPolicy(attempts=2, first_wait_s=0.01)
        with pytest.raises(SourceReadError, match=r"too slow") as error:
            fetch_file(
                file,
                tmp_path / "data.bin",
                step=Progress().step("fetch", total=None, unit="B"),
                cancellation=Cancellation(),
                policy=policy,
            )
    assert type(error.value) is SourceReadError
    assert time.monotonic() - began < 40  # one connection would take 50 s


@pytest.mark.parametrize(
    ("pieces", "too_slow_at"),
    [
        ([(1.0, 1024)] * 100, None),  # as fast as asked for
        ([(1.0, 1023)] * 100, 29),  # judged at the end of 30 s, not before
        ([(0.0, 5)] * 1000, None),  # what is taken slowly, but is there, is no fault of the server
        ([(1.0, 100_000), *[(1.0, 0)] * 29, *[(1.0, 1023)] * 30], 59),  # each stretch by itself
        ([(100.0, 102_399)], 0),
        ([(100.0, 102_400), (29.0, 0), (0.5, 0), (0.5, 0)], 3),
    ],
)
def test_a_least_rate_counts_the_time_of_waiting(pieces: list[tuple[float, int]], too_slow_at: int | None) -> None:
    """1,024 bytes a second, in any 30 seconds of waiting: seconds and bytes of each piece, without a server."""
    clock = ManualClock()

    def body() -> Iterator[bytes]:
        yield b""  # what comes before the first piece is the service's answer
        for waited_s, nbytes in pieces:
            clock.turn(waited_s)
            yield bytes(nbytes)

    came: list[bytes] = []
    with contextlib.ExitStack() as stack:
        if too_slow_at is not None:
            stack.enter_context(pytest.raises(TransientError, match="too slow"))
        came.extend(at_least_rate(body(), "here", window_s=30.0, clock=clock))
    assert len(came) - 1 == (len(pieces) if too_slow_at is None else too_slow_at)


@pytest.mark.parametrize("length", [b"abc", b"-5", b"1e3", b"5, 6", b"9" * 30])
def test_a_length_that_is_none_is_refused(
    raw_server: Callable[[Callable[[socket.socket], None]], str], length: bytes
) -> None:
    """Nothing would tell a body that was cut from a whole one."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\nConnection: close\r\n\r\nhalf"
    with pytest.raises(SourceReadError):
        open_http(raw_server(lambda connection: connection.sendall(head)), timeout_s=5, policy=ONCE)
    # Two lengths are refused by urllib3 itself, which leaves its connection to the garbage collector.
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


def test_an_answer_that_is_no_http_is_told_in_words(
    raw_server: Callable[[Callable[[socket.socket], None]], str], tmp_path: Path
) -> None:
    """Not by the name of a class; and whoever gives up raises the public error."""
    url = raw_server(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"))
    with pytest.raises(SourceReadError, match="not understood") as error:
        fetch_files([url, url], tmp_path / "out", progress=False)
    assert type(error.value) is SourceReadError


@pytest.mark.parametrize("answers", ["alike", "no suffix", "another version", "too many at once"])
def test_the_two_ends_come_along_with_the_look_or_are_asked_for_as_ever(
    answers: str, server: WebServer, look: Callable[..., HttpFile]
) -> None:
    """Two requests at once; what came is told once it is sure to be of the same state, and anything else is `None`."""
    if answers == "no suffix":
        server.set_knobs(WebKnobs(ranges="ignored"))
    elif answers == "another version":
        server.set_knobs(WebKnobs(etag="changing"))
    elif answers == "too many at once":
        server.set_knobs(WebKnobs(latency_s=0.2, max_requests=1))
    file = look(along_bytes=100_000, policy=RetryPolicy(attempts=3, first_wait_s=0.01))
    size = len(DATA)
    assert file.known(100, size - 100) is None
    known = file.known(size - 1000, size)
    if answers == "alike":
        assert {request.range for request in server.requests} == {"bytes=0-99999", "bytes=-100000"}
        assert known == DATA[-1000:]
        assert file.known(0, 100_000) == DATA[:100_000]
        assert file.known(size - 100_001, size) is None
    elif answers == "too many at once":
        assert known in {None, DATA[-1000:]}
    else:
        assert known is None
    if answers != "another version":
        assert b"".join(file.read_range(0, 1000)) == DATA[:1000]
    # Who asks for nothing of the kind sends no such request.
    server.set_knobs(WebKnobs())
    server.forget_requests()
    assert look().known(size - 1000, size) is None
    assert len(server.requests) == 1
