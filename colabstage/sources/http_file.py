"""One file on a web server: its facts, and any part of it, checked against what the server promised."""

from __future__ import annotations

import gzip
import itertools
import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colabstage.errors import OptionError, SourceChangedError, SourceError, SourceReadError, WebPageError
from colabstage.io.files import RetryPolicy
from colabstage.io.pipeline import in_thread
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.sources.http_answers import (
    Validators,
    coding_of,
    content_length,
    content_range,
    file_name,
    is_page,
    is_page_type,
    names_a_page,
    offered_checksum,
    page_title,
    parse_http_date,
    status_error,
    validators,
)
from colabstage.sources.http_session import AGENT, HttpSession, connection_error, shut_down
from colabstage.sources.remote import RemoteFacts, RemoteFile, TransientError, at_least_rate, with_retries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    import requests

    from colabstage.io.progress import Clock
    from colabstage.sources.remote import Checksum

_TIMEOUT_S = 30.0
# The first request asks for this much: enough for a page's title, and it still arrives in the first round trip.
_LOOK_BYTES = 8 * 1024
# Beside twice the timeout, the longest that a look takes.
_LOOK_S = 5.0
# The longest wait for what was requested in addition.
_LONGEST_TAIL_S = 60.0
_PIECE_BYTES = 256 * 1024
# As many as servers serve at full speed to one client; aria2 has the same limit.
_CONNECTIONS = 16
# Some servers answer like this to a range that they do not like, but send the whole file.
_NO_RANGES = frozenset({206, 400, 405, 412, 416, 501})


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes of a file that came when it was opened."""

    start: int
    """Where they begin."""
    data: bytes
    """The bytes."""
    total: int | None
    """The size of the file, as reported with them; `None` if the server does not know it."""
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
        timeout_s: seconds of silence, at any time, after which the connection counts as failed.
        policy: how often to try again when the first look fails in a transient way.
        clock: by which these tries wait, and bodies are timed; sockets have time limits of their own.
        along_bytes: how much of its beginning and, at the same time, of its end to request for `HttpFile.known`, so
            that reading these next costs no round trip. 0 for no more than the look needs.
        resolve, label, agent: as of `HttpSession`.

    Raises:
        OptionError: `url` is not a web address.
        SourceAccessError, SourceNotFoundError, WebPageError, SourceReadError: as they say.
        TransientError: the server could not answer, after all tries.
    """
    session = HttpSession(url, timeout_s, clock, resolve=resolve, label=label, agent=agent)
    try:
        tail = in_thread(lambda: _ask_for_tail(session, along_bytes), "colabstage-end") if along_bytes else None
        # Again for less: a server that cuts each connection early never sends what is asked for along.
        lengths = itertools.chain([max(_LOOK_BYTES, along_bytes)], itertools.repeat(_LOOK_BYTES))
        return with_retries(lambda: _look(session, checksum, next(lengths), tail), policy or RetryPolicy(), clock.sleep)
    # Nobody else uses the session yet.
    except BaseException:
        session.close()
        raise


class HttpFile(RemoteFile):
    """A `RemoteFile` on a web server. Made by `open_http`. `headers`: those of the first answer."""

    def __init__(
        self,
        session: HttpSession,
        facts: RemoteFacts,
        headers: Mapping[str, str],
        head: _Part,
        tail: Future[_Part | None] | None = None,
    ) -> None:
        self.facts = facts
        self.headers = headers
        self._session = session
        self._head = head
        self._tail = tail
        self._name = facts.name
        # Whether the server declares the data as a web page.
        self._is_page = is_page_type(headers) or names_a_page(session.url, facts.name)

    def open_again(self) -> HttpFile:
        """Return the same file with connections of its own, without a request."""
        return HttpFile(self._session.open_again(), self.facts, self.headers, self._head)

    def known(self, offset: int, stop: int) -> bytes | None:
        """Return bytes that came along when it was opened; `None` where these did not. May wait for those of its end,
        which were requested then."""
        head = self._head
        if self.facts.ranges and stop <= len(head.data):
            return head.data[offset:stop]
        try:
            # The session's time limits end it sooner.
            tail = self._tail.result(_LONGEST_TAIL_S) if self._tail and self.facts.ranges else None
        # Reading the usual way tells what is wrong.
        except Exception:  # noqa: BLE001 - as above
            return None
        # From another state of the file they are of no use.
        if tail is None or tail.total != head.total or tail.validators.contradicts(head.validators):
            return None
        return tail.data[offset - tail.start : stop - tail.start] if tail.start <= offset else None

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Read as `RemoteFile.read_range`. Each call is one request on a connection that is kept for the next.

        Raises:
            OptionError: the file has no such part, or only its whole can be had.
        """
        size = self.facts.size
        stop = size if length is None else offset + length
        known = size is None or stop is None or offset <= stop <= size
        if offset < 0 or (length or 0) < 0 or not known or (offset and not self.facts.ranges):
            whole = "" if self.facts.ranges else " Its server gives only the whole, from the beginning."
            msg = f"'{self.facts.label}' has no part of {length} bytes at {offset}; its size is {size}.{whole}"
            raise OptionError(msg)
        # HTTP cannot request an empty range.
        return iter(()) if stop == offset else self._read(offset, stop)

    def close(self) -> None:
        """Close all connections, including those being read."""
        self._session.close()

    def _read(self, offset: int, stop: int | None) -> Iterator[bytes]:
        headers = {}
        if self.facts.ranges and stop is not None:
            headers = {"Range": f"bytes={offset}-{stop - 1}"}
            if self._head.validators.if_range:
                # From another state the server then sends the whole file, which differs from a part by its status.
                headers["If-Range"] = self._head.validators.if_range
        with self._session.get(headers) as response:
            self._check_answer(response, offset, stop if headers else None)
            found = content_range(response.headers) if response.status_code == 206 else None
            # A server may send less than requested; what it promises comes, and the rest is requested again.
            promised = stop if found is None else found.stop
            coding = self._coding(response)
            left = None if promised is None else promised - offset
            for piece in _content(response, self._session, coding, None if coding else left):
                yield piece[:left]
                left = None if left is None else max(0, left - len(piece))
                if left == 0:
                    break
            if left or promised != stop:
                came, asked = (promised or 0) - (left or 0) - offset, (stop or 0) - offset
                msg = f"The server of '{self.facts.label}' sent {came} of the {asked} bytes it promised. Try again."
                raise TransientError(msg)
            if (
                stop is not None
                and (found or (stop == self.facts.size and not coding))
                and not _is_at_end(response, self._session)
            ):
                msg = f"The server of '{self.facts.label}' sent more than the {stop - offset} bytes it promised."
                raise SourceReadError(msg)

    def _check_answer(self, response: requests.Response, offset: int, stop: int | None) -> None:
        """Raise the error for an answer that is not the requested part of the file as it was, or with `stop=None` its
        whole."""
        status, headers, label = response.status_code, response.headers, self.facts.label
        if status == 200 and is_page_type(headers) and not self._is_page:
            # An expired login or a limit: a page with status 200, in the middle of the data.
            raise _page_error(label, _read_head(response, self._session, self._coding(response)))
        if status not in (200, 206, 416):
            raise _error_of(response, self._session)
        found, coding = content_range(headers), self._coding(response)
        # A length of compressed bytes says nothing of the file.
        size = found and found.total if status != 200 else None if coding else content_length(headers)
        now, before = validators(headers), self._head.validators
        if now.contradicts(before) or (size is not None and self.facts.size not in (None, size)):
            versions = f"from version {before.version} of {self.facts.size} bytes to {now.version} of {size}"
            msg = (
                f"'{label}' became another file while it was read, {versions}. Start again; if it happens each time, "
                "several servers with different copies may answer at this address."
            )
            raise SourceChangedError(msg)
        if status == 416:
            # One of several servers behind the address may not have the file yet.
            msg = f"The server of '{label}' says that it has no such part (416), which it has. Try again."
            raise TransientError(msg)
        if status == 206:
            fault = _fault_of_part(headers, coding, offset, stop)
            if fault:
                msg = f"The server of '{label}' {fault}. It cannot be trusted with parts; try again later."
                raise SourceReadError(msg)
            return
        # Without a sign on both sides, a whole of the same length may be another state.
        is_same = bool(now.version and before.version)
        if stop is not None and (offset or coding or not is_same):
            sign = "by its ETag or time it is unchanged" if is_same else "nothing says whether it has changed"
            msg = f"The server of '{label}' sent the whole file where a part was requested; {sign}. Try again."
            raise TransientError(msg)

    def _coding(self, response: requests.Response) -> str:
        return coding_of(response.headers, self._name)


def _fault_of_part(headers: Mapping[str, str], coding: str, offset: int, stop: int | None) -> str:
    """Return what is wrong with an answer that should have the requested part, or at least its beginning; "" if
    nothing is."""
    found, sent = content_range(headers), headers.get("Content-Range", "none")
    if found is None or found.start != offset or stop is None or found.stop > stop:
        return f"was asked for the bytes {offset} to {(stop or 0) - 1} and sent others (Content-Range: {sent})"
    if coding:
        # Parts of compressed and of plain content do not fit together.
        return f"compressed a part of the file ({coding}), though asked not to"
    is_long = (content_length(headers) or 0) > found.stop - offset
    return f"sends more bytes than the part has (Content-Range: {sent})" if is_long else ""


def _look(session: HttpSession, checksum: Checksum | None, length: int, tail: Future[_Part | None] | None) -> HttpFile:
    """Ask for the facts and the beginning of a file, in a limited time: a socket's own time limit starts over with
    every byte."""
    answer = in_thread(lambda: _ask_for_head(session, checksum, length, tail), "colabstage-look")
    try:
        return answer.result(2 * session.timeout_s + _LOOK_S)
    except TimeoutError as error:
        if answer.done():
            raise
        raise connection_error(error, session.label) from None


def _ask_for_tail(session: HttpSession, length: int) -> _Part | None:
    """Return the last bytes of a file; `None` if the server does not send exactly these."""
    with session.get({"Range": f"bytes=-{length}"}) as response:
        part = _read_part(response, session, length)
        return part if part is not None and part.start + len(part.data) == part.total else None


def _ask_for_head(
    session: HttpSession, checksum: Checksum | None, length: int, tail: Future[_Part | None] | None
) -> HttpFile:
    with session.get({"Range": f"bytes=0-{length - 1}"}) as response:
        part = _read_part(response, session, length)
        if part is not None and part.start == 0 and len(part.data) == min(length, part.total or 0):
            return _judge(session, response, checksum, part, tail)
        missed = content_range(response.headers)
        # An empty file has no first byte.
        if response.status_code == 416 and missed is not None and missed.total == 0:
            return _judge(session, response, checksum, _Part(0, b"", 0, validators(response.headers)))
        if response.status_code == 200:
            return _judge(session, response, checksum)
        if response.status_code not in _NO_RANGES:
            raise _error_of(response, session)
    # Once more without a range, which some servers refuse though they have the file.
    with session.get({}) as response:
        if response.status_code != 200:
            raise _error_of(response, session)
        return _judge(session, response, checksum)


def _read_part(response: requests.Response, session: HttpSession, most: int) -> _Part | None:
    """Return the part that an answer has, of at most `most` bytes; `None` if it is not exactly what it says."""
    found = content_range(response.headers)
    coding = coding_of(response.headers, file_name(response.headers, session.url, response.url))
    if response.status_code != 206 or coding or found is None or found.total is None:
        return None
    count = found.stop - found.start
    if count > most or content_length(response.headers) not in {None, count}:
        return None
    data = b"".join(_content(response, session, count=count))
    whole = len(data) == count and _is_at_end(response, session)
    return _Part(found.start, data, found.total, validators(response.headers)) if whole else None


def _judge(
    session: HttpSession,
    response: requests.Response,
    checksum: Checksum | None,
    part: _Part | None = None,
    tail: Future[_Part | None] | None = None,
) -> HttpFile:
    """Return the file that an answer describes, or raise the error for a page. `part`: what it has of the file, if that
    is served in parts; otherwise the body is unread."""
    headers = response.headers
    name = file_name(headers, session.url, response.url)
    coding = coding_of(headers, name)
    found = validators(headers)
    beginning = _read_head(response, session, coding) if part is None else part.data
    # Services answer a login, a quota or a missing file with a page and status 200.
    if is_page(headers, beginning) and not names_a_page(session.url, name):
        raise _page_error(session.label, beginning)
    head = part or _Part(0, b"", None if coding else content_length(headers), found)
    modified = parse_http_date(found.last_modified)
    # The first server may report a checksum that the storage behind it does not.
    first_hop = response.history[0].headers if response.history else {}
    whole = response.status_code == 200
    offered = None if coding else offered_checksum(headers, whole=whole, first_hop=first_hop)
    ranges = bool(head.data)
    facts = RemoteFacts(
        label=session.label,
        name=name,
        size=head.total,
        version=found.version,
        mtime_ns=int(modified * 1e9) if modified else 0,
        checksum=checksum or offered,
        ranges=ranges,
        connections=_CONNECTIONS if ranges else 1,
    )
    return HttpFile(session, facts, headers, head, tail)


def _page_error(label: str, head: bytes) -> WebPageError:
    title = page_title(head)
    named = f" with the title “{title}”" if title else ""
    msg = (
        f"'{label}' returns a web page{named} instead of data: perhaps a login, a confirmation, a preview or an error. "
        "Open it in a browser, and copy the link of the download itself."
    )
    return WebPageError(msg)


def _error_of(response: requests.Response, session: HttpSession) -> SourceError:
    text = "" if response.status_code < 400 else _read_head(response, session, "").decode("utf-8", "replace")
    return status_error(response.status_code, response.headers, session.url, session.label, text)


def _read_head(response: requests.Response, session: HttpSession, coding: str) -> bytes:
    """Return the first bytes of the content, all of a small one."""
    head = bytearray()
    for piece in _content(response, session, coding, None if coding else _LOOK_BYTES):
        head += piece
        if len(head) >= _LOOK_BYTES:
            break
    return bytes(head[:_LOOK_BYTES])


def _content(
    response: requests.Response, session: HttpSession, coding: str = "", count: int | None = None
) -> Iterator[bytes]:
    """Yield the content as it comes, up to `count` bytes: no piece waits to be filled.

    Raises:
        TransientError: it comes more slowly than the session allows, or what was compressed on the way is damaged.
        SourceReadError: the coding is one that we never asked for.
    """
    if coding not in {"", "gzip", "x-gzip"}:
        msg = (
            f"The server of '{session.label}' sends the file in the coding '{coding}', though asked for none. Use "
            "another link."
        )
        raise SourceReadError(msg)
    # Not left to urllib3, which takes a stream that ends too early for a whole one.
    read = gzip.GzipFile(fileobj=response.raw).read1 if coding else response.raw.read1

    def pieces() -> Iterator[bytes]:
        left = _PIECE_BYTES if count is None else count
        while left > 0 and (piece := _read_some(response, session, read, min(left, _PIECE_BYTES))):
            left -= 0 if count is None else len(piece)
            yield piece

    try:
        yield from at_least_rate(pieces(), session.label, window_s=session.timeout_s, clock=session.clock)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        msg = f"What the server of '{session.label}' compressed on the way arrived damaged: {error}. Try again."
        raise TransientError(msg) from error


def _read_some(response: requests.Response, session: HttpSession, read: Callable[[int], bytes], count: int) -> bytes:
    """Return the next bytes of a body, at most `count`; `read` is a stream's `read1`."""
    if not response.raw.chunked:
        return bytes(read(count))
    # Behind the last chunk come lines that are no content. A server may send them without end, and no read ends then.
    deadline = threading.Timer(session.timeout_s, shut_down, [response])
    deadline.daemon = True
    deadline.start()
    try:
        return bytes(read(count))
    finally:
        deadline.cancel()


def _is_at_end(response: requests.Response, session: HttpSession) -> bool:
    """Return whether nothing follows; this also takes the end of a body in chunks, so that its connection is kept."""
    return not _read_some(response, session, response.raw.read1, 1)
