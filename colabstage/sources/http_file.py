"""One file on a web server: its facts, and any part of it, checked against what the server promised."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from colabstage.errors import OptionError, SourceChangedError, SourceReadError, WebPageError
from colabstage.io.files import RetryPolicy
from colabstage.io.pipeline import in_thread
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.sources.http_answers import (
    Validators,
    coding_of,
    content_length,
    file_name,
    is_page,
    is_page_type,
    names_a_page,
    offered_checksum,
    page_title,
    parse_content_range,
    parse_http_date,
    parse_missed_total,
    status_error,
    validators,
)
from colabstage.sources.http_session import AGENT, HttpSession, connection_error
from colabstage.sources.remote import RemoteFacts, RemoteFile, TransientError, at_least_rate, with_retries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    import requests

    from colabstage.io.progress import Clock
    from colabstage.sources.remote import Checksum

T = TypeVar("T")

_TIMEOUT_S = 30.0
# The first request asks for this much: enough for a page's title, and it still arrives in the first round trip.
_LOOK_BYTES = 8 * 1024
# How long to read from a slow trickle at first.
_LOOK_S = 5.0
# The longest wait for what was requested in addition.
_LONGEST_TAIL_S = 60.0
_PIECE_BYTES = 256 * 1024
# As many as servers serve at full speed to one client; aria2 has the same limit.
_CONNECTIONS = 16
# Some servers answer like this to a range that they do not like, but send the whole file.
_NO_RANGES = frozenset({400, 405, 412, 416, 501})


@dataclass(frozen=True, slots=True)
class _Look:
    """The facts in the first answer."""

    facts: RemoteFacts
    """The facts on the file."""
    validators: Validators
    """What distinguishes its content from another version."""
    is_page_type: bool
    """Whether the server declares the data as a web page."""
    headers: Mapping[str, str]
    """Those of the answer."""
    head: bytes = b""
    """The first bytes of a file that is served in parts."""


@dataclass(frozen=True, slots=True)
class _Tail:
    """The last bytes of a file, from one answer."""

    begin: int
    """Where they begin."""
    data: bytes
    """The bytes."""
    total: int
    """The size of the file, as reported with them."""
    validators: Validators
    """What distinguishes their content from another version."""


def open_http(
    url: str,
    *,
    checksum: Checksum | None = None,
    timeout_s: float = _TIMEOUT_S,
    policy: RetryPolicy | None = None,
    clock: Clock = SYSTEM_CLOCK,
    along_bytes: int = 0,
    resolve: Callable[[], str] | None = None,
    label: str = "",
    agent: str = AGENT,
) -> HttpFile:
    """Open a file on a web server.

    A part of it is requested, because nothing else proves that parts are served; `HEAD` is never used, because signed
    addresses and many services refuse it. User and password in the address are used, and never shown.

    Args:
        url: `http://` or `https://`.
        checksum: the expected checksum, if the caller knows it; otherwise the one that the server reports, if any.
        timeout_s: seconds of silence, at any time, after which the connection counts as failed; also for the whole
            head of an answer.
        policy: how often to try again when the first look fails in a transient way.
        clock: by which these tries wait, and bodies are timed; sockets have time limits of their own.
        along_bytes: what is asked for of its beginning and, at the same time, of its end, for `HttpFile.known`: for
            who reads these next, which then costs no round trip. 0 for no more than the look needs.
        resolve, label, agent: as of `HttpSession`.

    Raises:
        OptionError: `url` is not a web address.
        SourceAccessError, SourceNotFoundError, WebPageError, SourceReadError: as they say.
        TransientError: the server could not answer, after all tries.
    """
    session = HttpSession(url, timeout_s, clock, resolve=resolve, label=label, agent=agent)
    try:
        tail = in_thread(lambda: _ask_for_tail(session, along_bytes), "colabstage-end") if along_bytes else None
        length = max(_LOOK_BYTES, along_bytes)
        look = with_retries(
            lambda: _within(lambda: _ask_for_head(session, checksum, length), session, 2 * timeout_s + _LOOK_S),
            policy or RetryPolicy(),
            session.clock.sleep,
        )
        return HttpFile(session, look, tail)
    # Nobody else uses the session yet.
    except BaseException:
        session.close()
        raise


class HttpFile(RemoteFile):
    """A `RemoteFile` on a web server. Made by `open_http`. `headers`: those of the first answer."""

    def __init__(self, session: HttpSession, look: _Look, tail: Future[_Tail | None] | None = None) -> None:
        self._session = session
        self._look = look
        self._tail = tail
        self.facts = look.facts
        self.headers = look.headers

    def open_again(self) -> HttpFile:
        """Return the same file with connections of its own, without a request."""
        again = HttpFile(self._session.open_again(), self._look)
        again.facts = self.facts
        return again

    def known(self, offset: int, stop: int) -> bytes | None:
        """Return bytes that came along when it was opened; `None` where these did not. May wait for those of its end,
        which were asked for then."""
        if stop <= len(self._look.head):
            return self._look.head[offset:stop]
        if self._tail is None or not self.facts.ranges:
            return None
        try:
            # The session's time limits end it sooner.
            tail = self._tail.result(_LONGEST_TAIL_S)
        # Whoever asks the usual way is told what is wrong.
        except Exception:  # noqa: BLE001 - as above
            return None
        # From another state of the file they are of no use.
        if tail is None or tail.total != self.facts.size or tail.validators.contradicts(self._look.validators):
            return None
        return tail.data[offset - tail.begin : stop - tail.begin] if tail.begin <= offset else None

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Read as `RemoteFile.read_range`. Each call is one request on a connection that is kept for the next.

        Raises:
            OptionError: the file has no such part, or only its whole can be had.
        """
        size, label = self.facts.size, self.facts.label
        stop = size if length is None else offset + length
        known = size is None or stop is None or offset <= stop <= size
        if offset < 0 or (length or 0) < 0 or not known or (offset and not self.facts.ranges):
            whole = "" if self.facts.ranges else " Its server gives only the whole, from the beginning."
            msg = f"'{label}' has no part of {length} bytes at {offset}; its size is {size}.{whole}"
            raise OptionError(msg)
        # HTTP cannot request an empty range.
        if stop == offset:
            return iter(())
        return self._part(offset, stop) if self.facts.ranges and stop is not None else self._beginning(stop)

    def close(self) -> None:
        """Close all connections, including those being read."""
        self._session.close()

    def _part(self, offset: int, stop: int) -> Iterator[bytes]:
        headers = {"Range": f"bytes={offset}-{stop - 1}"}
        if self._look.validators.if_range:
            # From another state the server then sends the whole file, which differs from a part by its status.
            headers["If-Range"] = self._look.validators.if_range
        with self._session.get(headers) as response:
            if response.status_code == 206:
                promised = self._check_part(response, offset, stop)
                yield from self._exactly(response, promised, ends=True)
                # A server may send less than requested; what it promised has arrived, and the rest is requested again.
                if promised < stop - offset:
                    raise TransientError(self._short(promised, stop - offset))
                return
            if response.status_code == 200:
                self._check_whole_for_part(response, offset)
                yield from self._exactly(response, stop, ends=False)
                return
            self._refuse(response)

    def _beginning(self, stop: int | None) -> Iterator[bytes]:
        """Yield the whole file, or its beginning, if parts are not served."""
        with self._session.get({}) as response:
            if response.status_code != 200:
                self._refuse(response)
            self._check_same(response)
            coding = coding_of(response.headers, self.facts.name)
            # Otherwise a length is that of the compressed bytes, so it says nothing of the file.
            if self.facts.size is not None and not coding:
                self._check_size(content_length(response.headers))
            if coding:
                yield from self._decoded(response, coding, stop)
            elif stop is not None:
                yield from self._exactly(response, stop, ends=stop == self.facts.size)
            else:
                yield from _read_pieces(response, self._session)

    def _check_part(self, response: requests.Response, offset: int, stop: int) -> int:
        """Return how many bytes the part has; raise an error if it is not the requested part."""
        self._check_same(response)
        told, label = parse_content_range(response.headers.get("Content-Range")), self.facts.label
        if told is None or told.start != offset or told.stop > stop:
            msg = (
                f"The server of '{label}' was asked for the bytes {offset} to {stop - 1} and sent others "
                f"(Content-Range: {response.headers.get('Content-Range', 'none')}). It cannot be trusted with parts."
            )
            raise SourceReadError(msg)
        # The version alone is not enough, because many servers report none.
        self._check_size(told.total)
        if coding_of(response.headers, self.facts.name):
            msg = (
                f"The server of '{label}' compressed a part of the file ({response.headers['Content-Encoding']}) "
                "though asked not to; parts of compressed and of plain content do not fit together. Try again later."
            )
            raise SourceReadError(msg)
        length = content_length(response.headers)
        if length is not None and length > told.stop - offset:
            raise SourceReadError(self._long(told.stop - offset, length))
        return told.stop - offset

    def _check_whole_for_part(self, response: requests.Response, offset: int) -> None:
        """Refuse a whole file in answer to a request for a part, unless it is the same file and the part begins at
        0."""
        self._check_same(response)
        self._check_size(content_length(response.headers))
        # Without a sign on both sides, a whole of the same length may be another state.
        known = bool(validators(response.headers).version and self.facts.version)
        if offset or not known or coding_of(response.headers, self.facts.name):
            sign = "by its ETag or time it is unchanged" if known else "nothing says whether it has changed"
            msg = (
                f"The server of '{self.facts.label}' sent the whole file where a part was asked for; {sign}. Try again."
            )
            raise TransientError(msg)

    def _check_size(self, told: int | None) -> None:
        if told is not None and told != self.facts.size:
            raise SourceChangedError(self._changed(f"its size was {self.facts.size} and is {told} bytes"))

    def _check_same(self, response: requests.Response) -> None:
        if response.status_code == 200 and is_page_type(response.headers) and not self._look.is_page_type:
            # An expired login or a limit: a page with status 200, in the middle of the data.
            coding = coding_of(response.headers, self.facts.name)
            raise _page_error(self.facts.label, _read_head(response, self._session, coding))
        now, before = validators(response.headers), self._look.validators
        if now.contradicts(before):
            raise SourceChangedError(self._changed(f"its version was {before.version} and is {now.version}"))

    def _refuse(self, response: requests.Response) -> None:
        """Raise the error for a status other than 200 and 206."""
        if response.status_code == 416:
            self._check_size(parse_missed_total(response.headers.get("Content-Range")))
            # One of several servers behind the address may not have the file yet.
            msg = f"The server of '{self.facts.label}' says that it has no such part (416), which it has. Try again."
            raise TransientError(msg)
        raise _error_of(response, self._session)

    def _exactly(self, response: requests.Response, count: int, *, ends: bool) -> Iterator[bytes]:
        """Yield the next `count` bytes; with `ends`, nothing may follow them."""
        left = count
        for piece in _read_pieces(response, self._session, count):
            left -= len(piece)
            yield piece
        if left:
            raise TransientError(self._short(count - left, count))
        # This also takes the end of a body in chunks, so that the connection can be used again.
        if ends and _read_some(response, self._session, 1):
            raise SourceReadError(self._long(count, None))

    def _decoded(self, response: requests.Response, coding: str, stop: int | None) -> Iterator[bytes]:
        done = 0
        for piece in _inflated(_read_pieces(response, self._session), coding, self.facts.label):
            wanted = piece if stop is None else piece[: stop - done]
            done += len(wanted)
            if wanted:
                yield wanted
            if done == stop:
                return
        if stop is not None:
            raise TransientError(self._short(done, stop))

    def _changed(self, how: str) -> str:
        return (
            f"'{self.facts.label}' became another file while it was read: {how}. Start again; if it happens each time, "
            "several servers with different copies may answer at this address."
        )

    def _short(self, got: int, promised: int) -> str:
        return f"The server of '{self.facts.label}' sent {got} of the {promised} bytes it promised. Try again."

    def _long(self, promised: int, got: int | None) -> str:
        more = "more" if got is None else f"{got}"
        return f"The server of '{self.facts.label}' sent {more} bytes where {promised} were asked for and promised."


def _within(ask: Callable[[], T], session: HttpSession, seconds: float) -> T:
    """Return what `ask` returns, unless it takes longer: a socket's own time limit starts over with every byte, so a
    server could hold its reader for as long as it likes."""
    answer = in_thread(ask, "colabstage-look")
    try:
        return answer.result(seconds)
    except TimeoutError as error:
        if answer.done():
            raise
        raise connection_error(error, session.label) from None


def _ask_for_tail(session: HttpSession, length: int) -> _Tail | None:
    """Return the last bytes of a file; `None` if the server does not send exactly these."""
    with session.get({"Range": f"bytes=-{length}"}) as response:
        told = parse_content_range(response.headers.get("Content-Range"))
        coding = coding_of(response.headers, file_name(response.headers, session.url, response.url))
        if response.status_code != 206 or coding or told is None or told.total is None or told.stop != told.total:
            return None
        count = told.stop - told.start
        if count > length or content_length(response.headers) not in {None, count}:
            return None
        data = b"".join(_read_pieces(response, session, count))
        # This also takes the end of a body in chunks, so that the connection can be used again.
        if len(data) != count or _read_some(response, session, 1):
            return None
        return _Tail(told.start, data, told.total, validators(response.headers))


def _ask_for_head(session: HttpSession, checksum: Checksum | None, length: int) -> _Look:
    with session.get({"Range": f"bytes=0-{length - 1}"}) as response:
        told = parse_content_range(response.headers.get("Content-Range"))
        coding = coding_of(response.headers, file_name(response.headers, session.url, response.url))
        if response.status_code == 206 and told and not coding and told.start == 0 and told.total is not None:
            size, stop = told.total, min(length, told.total)
            if told.stop == stop and content_length(response.headers) in {None, stop}:
                head = _read_head(response, session, "", stop)
                # This also takes the end of a body in chunks, so that the connection can be used again.
                if len(head) < stop or not _read_some(response, session, 1):
                    return _judge_answer(session, response, checksum, size, head, ranges=True)
        # An empty file has no first byte.
        if response.status_code == 416 and parse_missed_total(response.headers.get("Content-Range")) == 0:
            return _judge_answer(session, response, checksum, 0, b"", ranges=False)
        if response.status_code == 200:
            return _look_at_whole(session, response, checksum)
        if response.status_code != 206 and response.status_code not in _NO_RANGES:
            raise _error_of(response, session)
    # Once more without a range, which some servers refuse though they have the file.
    with session.get({}) as response:
        if response.status_code != 200:
            raise _error_of(response, session)
        return _look_at_whole(session, response, checksum)


def _look_at_whole(session: HttpSession, response: requests.Response, checksum: Checksum | None) -> _Look:
    coding = coding_of(response.headers, file_name(response.headers, session.url, response.url))
    size = None if coding else content_length(response.headers)
    return _judge_answer(session, response, checksum, size, _read_head(response, session, coding), ranges=False)


def _judge_answer(
    session: HttpSession,
    response: requests.Response,
    checksum: Checksum | None,
    size: int | None,
    head: bytes,
    *,
    ranges: bool,
) -> _Look:
    headers = response.headers
    name = file_name(headers, session.url, response.url)
    found = validators(headers)
    # Services answer a login, a quota or a missing file with a page and status 200.
    if is_page(headers, head) and not names_a_page(session.url, name):
        raise _page_error(session.label, head)
    modified = parse_http_date(found.last_modified)
    # The first server may report a checksum that the storage behind it does not.
    first_hop = response.history[0].headers if response.history else {}
    decoded = coding_of(headers, name) != ""
    whole = response.status_code == 200
    offered = None if decoded else offered_checksum(headers, whole=whole, first_hop=first_hop)
    facts = RemoteFacts(
        label=session.label,
        name=name,
        size=size,
        version=found.version,
        mtime_ns=int(modified * 1e9) if modified else 0,
        checksum=checksum or offered,
        ranges=ranges,
        connections=_CONNECTIONS if ranges else 1,
    )
    declared = is_page_type(headers) or names_a_page(session.url, name)
    return _Look(facts, found, declared, headers, head if ranges else b"")


def _page_error(label: str, head: bytes) -> WebPageError:
    title = page_title(head)
    named = f" with the title “{title}”" if title else ""
    msg = (
        f"'{label}' returns a web page{named} instead of data: perhaps a login, a confirmation, a preview or an error. "
        "Open it in a browser, and copy the link of the download itself."
    )
    return WebPageError(msg)


def _error_of(response: requests.Response, session: HttpSession) -> Exception:
    text = "" if response.status_code < 400 else _read_head(response, session, "").decode("utf-8", "replace")
    return status_error(response.status_code, response.headers, session.url, session.label, text)


def _read_head(response: requests.Response, session: HttpSession, coding: str, length: int = _LOOK_BYTES) -> bytes:
    """Return the first `length` bytes of the content, all of a smaller one, or what of them came in time."""
    head, deadline = bytearray(), session.clock.now() + _LOOK_S
    pieces = _read_pieces(response, session, None if coding else length)
    for piece in _inflated(pieces, coding, session.label) if coding else pieces:
        head += piece
        if len(head) >= length or session.clock.now() > deadline:
            break
    return bytes(head[:length])


def _read_pieces(response: requests.Response, session: HttpSession, count: int | None = None) -> Iterator[bytes]:
    """Return the body unchanged over the line, as it comes, up to `count` bytes: no piece waits to be filled.

    Raises:
        TransientError: it comes more slowly than the session allows.
    """

    def raw_pieces() -> Iterator[bytes]:
        left = _PIECE_BYTES if count is None else count
        while left > 0 and (piece := _read_some(response, session, min(left, _PIECE_BYTES))):
            left -= 0 if count is None else len(piece)
            yield piece

    return at_least_rate(raw_pieces(), session.label, window_s=session.timeout_s, clock=session.clock)


def _read_some(response: requests.Response, session: HttpSession, count: int) -> bytes:
    """Return the next bytes of a body, unchanged.

    Raises:
        TransientError: a body in chunks has lines of its own, and these do not end in time.
    """
    raw: Any = response.raw

    def read() -> bytes:
        # urllib3 1.26 has only the read that waits for all of it: smaller, so that less is lost with a connection.
        return bytes(raw.read1(count, False) if hasattr(raw, "read1") else raw.read(min(count, 65536), False))

    if not raw.chunked:
        return read()
    # As of a head: the socket's own time limit starts over with every byte of a line, and of trailers with every line.
    return _within(read, session, session.timeout_s)


def _inflated(pieces: Iterator[bytes], coding: str, label: str) -> Iterator[bytes]:
    """Undo `gzip` or `deflate`, in pieces of bounded size.

    Not left to urllib3, which takes a stream that ends too early for a whole one.

    Raises:
        TransientError: the compressed stream ends too early, or is damaged.
        SourceReadError: the coding is another one, which we never asked for.
    """
    if coding not in {"gzip", "x-gzip", "deflate"}:
        msg = (
            f"The server of '{label}' sends the file in the coding '{coding}', though asked for none. Use another link."
        )
        raise SourceReadError(msg)
    # 47: zlib or gzip, by what the stream begins with.
    unzip = zlib.decompressobj(47)
    try:
        for piece in pieces:
            rest = piece
            while rest:
                # Several compressed streams one after the other are one content, by RFC 1952.
                if unzip.eof:
                    unzip = zlib.decompressobj(47)
                yield unzip.decompress(rest, _PIECE_BYTES)
                rest = unzip.unconsumed_tail or unzip.unused_data
        yield unzip.flush()
    except zlib.error as error:
        msg = f"What the server of '{label}' compressed on the way arrived damaged: {error}. Try again."
        raise TransientError(msg) from error
    if not unzip.eof:
        msg = f"What the server of '{label}' compressed on the way ended too early. Try again."
        raise TransientError(msg)
