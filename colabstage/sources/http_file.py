"""One file on a web server: its facts, and any part of it, checked against what the server promised."""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import gzip
import html
import http.client
import itertools
import re
import socket
import ssl
import threading
import time
import zlib
from email.message import Message
from email.utils import collapse_rfc2231_value, parsedate_to_datetime
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from colabstage.errors import (
    ColabstageError,
    OptionError,
    SourceAccessError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    SourceReadError,
    WebPageError,
    said_by,
)
from colabstage.io.files import is_html, stand_in
from colabstage.io.pipeline import DaemonPool, in_thread
from colabstage.io.progress import SYSTEM_CLOCK, Cancellation, Clock
from colabstage.io.units import hide_secrets, is_signed_address, show_address
from colabstage.sources.parse import data_address, page_remedy
from colabstage.sources.remote import (
    LOOK_BYTES,
    Access,
    Checksum,
    RemoteFacts,
    RemoteFile,
    Services,
    TransientError,
    with_retries,
)
from colabstage.trees.bytes import (
    ARCHIVE_SUFFIXES,
    DATA_SUFFIXES,
    ENDED_SUFFIXES,
    HEAD_BYTES,
    describe_contents,
    image_ending,
    is_text,
    lacks_data,
)
from colabstage.trees.names import extension_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    import requests

    _Tail = Future[tuple["_Answer", bytes]]

AGENT = "colabstage"
_CONNECT_TIMEOUT_S = 15.0
_ANSWER_TIMEOUT_S = 60.0
_TIMEOUT_S = 30.0
# A service's page, or a response of its API, is shorter.
_MAX_PAGE_BYTES = 16 * 1024 * 1024
# Beside twice the timeout, the longest that a look takes.
_LOOK_S = 5.0
_PIECE_BYTES = 256 * 1024
# A slower transfer is not worth waiting for: a file of 1 GB would take twelve days.
_LEAST_BYTES_PER_S = 1024.0
# The longest wait for the bytes of the end, which were requested in addition.
_LONGEST_TAIL_S = 60.0
# As many as servers serve at full speed to one client; aria2 has the same limit.
_CONNECTIONS = 16
# More than are ever in flight at once, so that no connection is discarded after use.
_POOL_CONNECTIONS = 64
# No service needs more; requests would follow thirty, each with its own time limit.
_MAX_REDIRECTS = 10
# If a server asks for more patience than this, a person should start the work again later.
_MAX_WAIT_S = 3600.0
_NAME_BYTES = 200
# The statuses by which services report an expired address.
_EXPIRED = frozenset({400, 401, 403, 404, 410})
_TRANSIENT = frozenset({202, 408, 425, 429})
# Some servers respond like this to a range that they do not accept, but send the whole file.
_NO_RANGES = frozenset({206, 400, 405, 412, 416, 501})
_PAGE_TYPES = frozenset({"text/html", "application/xhtml+xml"})
# Compressed files that careless servers declare as plain ones, compressed for the transfer.
_GZIPPED = (".gz", ".tgz", ".svgz")
_GZIP_TYPES = frozenset(
    {"application/gzip", "application/x-gzip", "application/x-tgz", "application/x-gtar-compressed"}
)
_PAGE_SUFFIXES = (".html", ".htm", ".xhtml", ".shtml")
# The beginning of the answer of Amazon, Google and their imitators at the address of a bucket or a folder in it.
_BUCKET_LIST = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?<ListBucketResult\b")
_EXCERPT_BYTES, _EXCERPT = 400, 120
# `session`: whose request this thread sends.
_sending = threading.local()


def open_http(
    url: str,
    access: Access = Access(),  # noqa: B008 - frozen
    *,
    timeout_s: float = _TIMEOUT_S,
    clock: Clock = SYSTEM_CLOCK,
    resolve: Callable[[], str] | None = None,
    label: str = "",
    agent: str = AGENT,
) -> HttpFile:
    """Open a file on a web server.

    A part of it is requested, because nothing else proves that parts are served; `HEAD` is never used, because signed
    addresses and many services refuse it. User and password in the address are used, and never shown.

    Args:
        timeout_s: seconds of silence, at any time, after which the connection counts as failed.
        clock: by which tries wait.

    Raises:
        CancelledError: the cancellation was called, then or while the file is read.
        OptionError: `url` is not a web address.
        SourceAccessError, SourceNotFoundError, WebPageError, SourceReadError: as they say.
        TransientError: the server could not answer, after all tries.
    """
    cancellation = access.cancellation
    session = HttpSession(url, timeout_s, access, resolve=resolve, label=label, agent=agent)

    def look() -> HttpFile:
        # A socket's own time limit starts over with every byte.
        looking = in_thread(lambda: _look(session, access.checksum, next(lengths), tail), "colabstage-look")
        try:
            (found,) = DaemonPool.results([looking], cancellation=cancellation, stall_timeout_s=2 * timeout_s + _LOOK_S)
        except TimeoutError as error:
            raise connection_error(error, session.label) from None
        return found

    try:
        tail = in_thread(lambda: _ask_for_tail(session, access.tail), "colabstage-end") if access.tail else None
        # The next tries request less: a server that cuts each connection early would never send the longer range.
        lengths = itertools.chain([max(LOOK_BYTES, access.along)], itertools.repeat(LOOK_BYTES))
        sleep = clock.sleep if cancellation is None else cancellation.sleep
        return with_retries(look, access.policy, sleep)
    # Nobody else uses the session yet.
    except BaseException:
        session.close()
        raise


class HttpFile(RemoteFile):
    """A `RemoteFile` on a web server. Made by `open_http`.

    `first`: the response that described it; `head`: the bytes that came with it; `tail`: those of its end.
    """

    def __init__(
        self, session: HttpSession, facts: RemoteFacts, first: _Answer, head: bytes, tail: _Tail | None = None
    ) -> None:
        self.facts = facts
        self.headers = first.headers
        self._session = session
        self._first = first
        self._head, self._tail = head, tail
        # Whether the server declares the data as a web page.
        self._is_page = first.is_page_type or names_a_page(session.url, facts.name)

    @property
    def notes(self) -> tuple[str, ...]:
        facts, is_chunked = self.facts, "chunked" in self.headers.get("Transfer-Encoding", "")
        ends_itself = facts.name.lower().endswith(ENDED_SUFFIXES)
        if facts.size is not None or is_chunked or self._first.coding or facts.checksum or ends_itself:
            return ()
        why = "does not say how long the file is, so nothing shows whether all of it arrived"
        return (f"The server of '{facts.label}' {why}: compare its length with what is expected.",)

    def open_again(self) -> HttpFile:
        return HttpFile(self._session.open_again(), self.facts, self._first, self._head)

    def known(self, offset: int, stop: int) -> bytes:
        """Return what arrived of these bytes when it was opened, from `offset` on. May wait for those of its end."""
        data = self._head[offset:stop]
        if len(data) < stop - offset and self._tail is not None:
            # Reading in the usual way reports what is wrong. The session's time limits end it sooner.
            with contextlib.suppress(Exception):
                answer, end = self._tail.result(_LONGEST_TAIL_S)
                if not answer.is_of_another_file(self._first) and 0 <= answer.start <= offset:
                    return end[offset - answer.start : stop - answer.start]
        return data

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Read as `RemoteFile.read_range`. Each call is one request on a connection that is kept for the next."""
        stop = self.facts.size if length is None else offset + length
        # HTTP cannot request an empty range.
        return iter(()) if stop == offset else self._read(offset, stop)

    def close(self) -> None:
        self._session.close()

    def interrupt(self) -> None:
        self._session.interrupt()

    def _read(self, offset: int, stop: int | None) -> Iterator[bytes]:
        part_stop = stop if self.facts.ranges else None
        headers = {} if part_stop is None else {"Range": f"bytes={offset}-{part_stop - 1}"}
        with self._session.get(headers) as answer:
            self._check(answer, offset, part_stop)
            # A server may send less than requested; what it promises arrives, and the rest is requested again.
            end = answer.stop if answer.status == 206 else stop
            at = offset
            for piece in answer.pieces(None if end is None else end - offset):
                at += len(piece)
                yield piece
            if stop is None:
                return
            if at < stop:
                msg = (
                    f"The server of '{self.facts.label}' sent {at - offset} of the {stop - offset} bytes it promised. "
                    "Try again."
                )
                raise TransientError(msg)
            if not answer.coding and answer.stop == stop and not answer.is_at_end():
                msg = f"The server of '{self.facts.label}' sent more than the {stop - offset} bytes it promised."
                raise SourceReadError(msg)

    def _check(self, answer: _Answer, offset: int, stop: int | None) -> None:
        """Raise the error for a response that is not the requested part of the unchanged file, or with `stop=None` all
        of it."""
        label, first = self.facts.label, self._first
        if answer.is_page and not self._is_page:
            # An expired login or a limit: a page with status 200, instead of data.
            raise page_error((self._session.url, answer.url), label, answer.beginning())
        if answer.status not in (200, 206, 416):
            raise answer.error()
        if answer.is_of_another_file(first):
            versions = " and ".join(f"{one.size} bytes with version {one.version or 'none'}" for one in (first, answer))
            msg = (
                f"'{label}' became another file while it was read: {versions}. Start again; if it happens each time, "
                "several servers with different copies may answer at this address."
            )
            raise SourceChangedError(msg)
        if stop is None and answer.status == 200:
            return
        if answer.status == 206:
            is_right = stop is not None and answer.start == offset and answer.stop <= stop
            is_right = is_right and (answer.length or 0) <= answer.stop - answer.start
        else:
            # Some send a whole file with status 200 if all of it is requested.
            is_right = answer.status == 200 and not offset and bool(answer.version and first.version)
        # Parts of compressed and of plain content do not fit together.
        if not is_right or answer.coding:
            # One of several servers behind the address may not have the file yet.
            names = ("Content-Range", "Content-Length", "Content-Encoding")
            sent = ", ".join(f"{name}: {answer.headers.get(name, 'none')}" for name in names)
            msg = (
                f"The server of '{label}' did not send the part that was requested from byte {offset} on "
                f"({answer.status}; {sent}). Try again later."
            )
            raise TransientError(msg)


def _ask_for_tail(session: HttpSession, length: int) -> tuple[_Answer, bytes]:
    with session.get({"Range": f"bytes=-{length}"}) as answer:
        return answer, answer.exact_part(length) or b""


def _look(session: HttpSession, checksum: Checksum | None, length: int, tail: _Tail | None) -> HttpFile:
    with session.get({"Range": f"bytes=0-{length - 1}"}) as answer:
        head = answer.exact_part(length)
        if head is not None and answer.start == 0:
            return _describe(session, answer, checksum, head, ranges=bool(head), tail=tail)
        # An empty file has no first byte.
        if answer.status == 200 or (answer.status == 416 and answer.size == 0):
            return _describe(session, answer, checksum, b"" if answer.status == 416 else answer.beginning(length))
        if answer.status not in _NO_RANGES:
            raise answer.error()
    # Without a range, because some servers refuse ranges though they have the file.
    with session.get({}) as answer:
        if answer.status != 200:
            raise answer.error()
        return _describe(session, answer, checksum, answer.beginning(length))


def _describe(
    session: HttpSession,
    answer: _Answer,
    checksum: Checksum | None,
    head: bytes,
    *,
    ranges: bool = False,
    tail: _Tail | None = None,
) -> HttpFile:
    """Return the file that an answer with the beginning `head` describes, or raise the error for a page."""
    label, name = session.label, answer.name
    # The owner of a shared folder decides what is in it.
    suffixes = ARCHIVE_SUFFIXES if session.is_of_service else DATA_SUFFIXES
    check_is_data((session.url, answer.url), label, name, head, is_page_type=answer.is_page_type, suffixes=suffixes)
    # Addresses such as https://host/image/1234 say nothing of what they give.
    if not session.is_of_service and not extension_of(name):
        name += image_ending(head)
    facts = RemoteFacts(
        label=label,
        name=name,
        size=answer.size,
        version=answer.version,
        mtime_ns=_mtime_ns(answer.modified),
        checksum=checksum or answer.checksum(),
        ranges=ranges,
        connections=_CONNECTIONS if ranges else 1,
    )
    # Without ranges, reading cannot continue after a part, so a part is useless.
    return HttpFile(session, facts, answer, head if ranges or len(head) == answer.size else b"", tail)


# Responses.


class _Answer:
    """A server's response to a request for a file; its body is still unread.

    `start`, `stop`: which part of the file it has; -1 if unclear, and `stop` also for a whole of unknown length.
    `size`: the length of the whole file; `None` if unknown. `coding`: the compression to undo; "" for none.
    """

    def __init__(self, session: HttpSession, response: requests.Response) -> None:
        self.headers: Mapping[str, str] = response.headers
        self.status = response.status_code
        self.url = response.url
        self._session, self._raw = session, response.raw
        self._first_hop = response.history[0].headers if response.history else {}
        self.name = _file_name(self.headers, session.url, response.url)
        self.is_page_type = _content_type(self.headers) in _PAGE_TYPES
        self.is_page = self.status == 200 and self.is_page_type
        self.coding = _coding_of(self.headers, self.name)
        etag = self.headers.get("ETag", "").strip()
        # Anything that is not a proper tag may change with each response.
        self.etag = etag if re.fullmatch(r'(?:W/)?"[^"]*"', etag) else ""
        self.modified = self.headers.get("Last-Modified", "").strip()
        # The length of the body, unless it comes in chunks or ends with the connection.
        self.length: int | None = response.raw.length_remaining
        self.start = self.stop = -1
        self.size: int | None = None
        if self.status == 200:
            self.start = 0
            # A compressed length says nothing about the file.
            self.size = None if self.coding else self.length
            self.stop = -1 if self.size is None else self.size
        else:
            self._read_content_range()

    def _read_content_range(self) -> None:
        text = self.headers.get("Content-Range", "")
        match = re.fullmatch(r"\s*bytes\s+(?:(\d+)-(\d+)|\*)/(\d+|\*)\s*", text, re.ASCII)
        if match is None:
            return
        size = None if match[3] == "*" else int(match[3])
        # If the range could not be served, there is only the size.
        start, stop = (-1, -1) if match[1] is None else (int(match[1]), int(match[2]) + 1)
        if match[1] is None or (start < stop and (size is None or stop <= size)):
            self.start, self.stop, self.size = start, stop, size

    @property
    def version(self) -> str:
        """Return a text that changes when the content changes; "" if the server gives no such sign.

        Weak or strong: a proxy that compresses weakens a tag.
        """
        return self.etag.removeprefix("W/") or self.modified

    def is_of_another_file(self, other: _Answer) -> bool:
        """Return whether it certainly describes another state of the file than `other` does."""
        if None not in (self.size, other.size) and self.size != other.size:
            return True
        if self.etag and other.etag:
            return self.version != other.version
        return bool(self.modified and other.modified) and self.modified != other.modified

    def error(self) -> SourceError:
        text = "" if self.status < 400 else self.beginning().decode("utf-8", "replace")
        return _status_error(self.status, self.headers, self._session.url, self._session.label, text)

    def checksum(self) -> Checksum | None:
        """Return the hash of the whole content that the service reports: Hugging Face in the response that redirects to
        the storage, Google of the stored bytes."""
        if linked := re.fullmatch(r'"?([0-9a-f]{64})"?', self._first_hop.get("X-Linked-ETag", "")):
            return Checksum("sha256", linked[1])
        is_as_stored = self.headers.get("x-goog-stored-content-encoding", "identity") == "identity"
        md5 = re.search(r"\bmd5=([\w+/]{22}==)", self.headers.get("x-goog-hash", ""))
        if md5 is None or not is_as_stored or self.coding:
            return None
        return Checksum("md5", base64.b64decode(md5[1]).hex())

    def exact_part(self, length: int) -> bytes | None:
        """Return the content of a part of `length` bytes, or all of a shorter file; `None` if it is anything else."""
        if self.status != 206 or self.coding or self.size is None:
            return None
        count = self.stop - self.start
        if count != min(length, self.size) or self.length not in {None, count}:
            return None
        data = b"".join(self.pieces(count))
        return data if len(data) == count and self.is_at_end() else None

    def beginning(self, most: int = LOOK_BYTES) -> bytes:
        """Return the first bytes of the content, or all of it if it has at most `most`."""
        return b"".join(self.pieces(most if self.size is not None and self.size <= most else LOOK_BYTES))

    def pieces(self, count: int | None) -> Iterator[bytes]:
        """Yield the content as it comes, up to `count` bytes: no piece waits to be filled. A trickle is an error."""
        label = self._session.label
        if self.coding not in {"", "gzip", "x-gzip"}:
            msg = (
                f"The server of '{label}' sends the file in the coding '{self.coding}', though asked for none. Use "
                "another link."
            )
            raise SourceReadError(msg)
        raw = self._raw
        # Not by urllib3, which takes a stream that ends too early for a complete one.
        read = gzip.GzipFile(fileobj=raw).read1 if self.coding else raw.read1
        left = count
        # Only waiting counts, not what is done with the pieces.
        waited_s, sent = 0.0, 0
        while left is None or left > 0:
            began = time.monotonic()
            piece = self._read_some(read, _PIECE_BYTES if left is None else min(left, _PIECE_BYTES))
            if not piece:
                return
            waited_s, sent = waited_s + time.monotonic() - began, sent + len(piece)
            if waited_s >= self._session.timeout_s:
                if sent < _LEAST_BYTES_PER_S * waited_s:
                    msg = f"The server of '{label}' sent {sent:,} bytes in {waited_s:.0f} s: too slow to finish."
                    raise TransientError(msg, slow=True)
                waited_s, sent = 0.0, 0
            left = None if left is None else left - len(piece)
            yield piece

    def is_at_end(self) -> bool:
        """Return whether nothing follows. This also reads a chunked body's end, to reuse the connection."""
        return not self._read_some(self._raw.read1, 1)

    def _read_some(self, read: Callable[[int], bytes], count: int) -> bytes:
        if not self._raw.chunked:
            return bytes(read(count))
        # After the last chunk come lines that are not content. A server may send them without end.
        deadline = threading.Timer(self._session.timeout_s, self.shut_down)
        deadline.daemon = True
        deadline.start()
        try:
            return bytes(read(count))
        finally:
            deadline.cancel()

    def shut_down(self) -> None:
        """Cut the connection, also while another thread reads from it."""
        # Fails for an answer that has just ended.
        with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
            self._raw.shutdown()

    def close(self) -> None:
        # Reading to the end has already returned the connection; otherwise it is closed for good.
        self.shut_down()
        self._raw.close()
        # This reference would keep all connections of the session open.
        self._raw = None


def _content_type(headers: Mapping[str, str]) -> str:
    return headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _coding_of(headers: Mapping[str, str], name: str) -> str:
    """Return the Content-Encoding to decode; "" for none.

    Many servers declare a `.tar.gz` as a tar that was compressed for the transfer. It was not: the file whose size and
    hash are published is the compressed one. Browsers treat it like this too.
    """
    coding = headers.get("Content-Encoding", "").strip().lower()
    is_gzip_file = name.lower().endswith(_GZIPPED) or _content_type(headers) in _GZIP_TYPES
    is_none = coding in {"identity", "none", "aws-chunked"}
    return "" if is_none or (is_gzip_file and coding in {"gzip", "x-gzip"}) else coding


def _mtime_ns(http_date: str) -> int:
    try:
        return int(parsedate_to_datetime(http_date).timestamp() * 1e9)
    except (ValueError, TypeError, OverflowError):
        return 0


def _file_name(headers: Mapping[str, str], *urls: str) -> str:
    """Return the name for the file: as the server says, otherwise the last part of the first address that has one.

    An address whose last part has a suffix comes before one without; never with folders, never hidden.
    """
    given = _clean_name(_disposition_name(headers.get("Content-Disposition", "")))
    names = [_clean_name(unquote(urlsplit(url).path).rpartition("/")[2]) for url in urls]
    # A redirect often ends at a number; the name is then in the address before it.
    with_suffix = [name for name in names if PurePosixPath(name).suffix]
    return next(filter(None, [given, *with_suffix, *names]), "download")


def _disposition_name(text: str) -> str:
    if not text:
        return ""
    message = Message()
    message["Content-Disposition"] = text
    parameters = dict(message.get_params([], header="content-disposition"))
    # The extended form, `filename*`, comes last, and so before the plain one (RFC 6266, 4.3).
    name = collapse_rfc2231_value(parameters.get("filename", "")).strip("\"'")
    try:
        # http.client reads headers as Latin-1; what servers mean is UTF-8.
        return name.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return name


def _clean_name(name: str) -> str:
    last = re.split(r"[/\\]", name)[-1]
    clean = "".join(filter(str.isprintable, last)).strip().lstrip(".").rstrip(". ")
    return shorten_name(clean, _NAME_BYTES)


def shorten_name(name: str, most_bytes: int) -> str:
    """Return the name cut to a length that a file system takes, with its suffix kept."""
    raw = name.encode("utf-8", "replace")
    if len(raw) <= most_bytes:
        return name
    suffix = PurePosixPath(name).suffix[:20]
    return raw[: most_bytes - len(suffix.encode())].decode("utf-8", "ignore") + suffix


def _status_error(status: int, headers: Mapping[str, str], url: str, label: str, text: str) -> SourceError:
    """Return the typed error for an answer with this status. `text`: the beginning of its body."""
    phrase = next((one.phrase for one in HTTPStatus if one == status), "")
    shown = f"{status} {phrase}".rstrip()
    where = data_address(url)
    # A signed address needs no login, but must be fresh; Amazon answers some that are not with 400.
    is_expired = is_signed_address(url) or re.search(r"(?i)\bexpired\b", text)
    if status in {401, 403, 407, 451} or (status == 400 and is_expired):
        remedy = (
            "Open it in a browser to see what it needs: a login (put it into ~/.netrc, as machine HOST login USER "
            "password PASSWORD), an accepted licence, or fewer downloads from this address (wait, or get a fresh link)."
        )
        remedy = f"Give {where!r}, with the login of its service if it wants one." if where else remedy
        if is_expired:
            remedy = "The link carries a signature or token, which has probably expired: get a fresh link."
        return SourceAccessError(f"'{label}' is refused: {shown}. {remedy}")
    if status in {404, 410}:
        listing = " A web server lists no files: for a star give a list of addresses." if "*" in url else ""
        msg = f"There is nothing at '{label}': {shown}. Check the address, or open it in a browser.{listing}"
        return SourceNotFoundError(msg)
    if status == 202 and (headers.get("x-amzn-waf-action") or headers.get("Content-Length") == "0"):
        remedy = f"Give {where!r}" if where else "Download it with a browser, and give the path of that file"
        return SourceAccessError(f"'{label}' answers browsers only ({shown}). {remedy}.")
    if status in _TRANSIENT or status >= 500:
        wait_s = _retry_after_s(headers)
        asked = "" if wait_s is None else f"; it asks to be left alone for {wait_s:.0f} s"
        return TransientError(f"The server of '{label}' cannot answer now: {shown}{asked}. Try again later.", wait_s)
    msg = f"The server of '{label}' answered {shown}, which colabstage cannot use; expected the file or a part of it."
    return SourceReadError(msg)


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return seconds that `Retry-After` asks to wait, at most an hour; `None` without a number of them."""
    asked = headers.get("Retry-After", "").strip()
    return min(float(asked), _MAX_WAIT_S) if re.fullmatch(r"\d{1,12}", asked, re.ASCII) else None


# Content that servers send in place of a file: pages of services, messages, lists of buckets, pointers of Git LFS.


def names_a_page(url: str, name: str) -> bool:
    """Return whether a web page is what an address asks for."""
    return urlsplit(url).path.lower().endswith(_PAGE_SUFFIXES) or name.lower().endswith(_PAGE_SUFFIXES)


def check_is_data(
    urls: Sequence[str], label: str, name: str, head: bytes, *, is_page_type: bool, suffixes: tuple[str, ...]
) -> None:
    """Raise the error for a page, or for anything else that is not what an address and its file's name promise.

    Services answer a login, a quota or a missing file with a page and status 200. But bytes that no text contains are
    data, whatever the server declares. `urls`: the address, and where its redirects ended. `suffixes`: of names whose
    files are never text.
    """
    if (is_html(head) or (is_page_type and is_text(head))) and not names_a_page(urls[0], name):
        raise page_error(urls, label, head)
    if _BUCKET_LIST.match(head):
        msg = f"'{label}' returns the list of a bucket instead of data. {page_remedy(*urls)}"
        raise WebPageError(msg)
    if (instead := stand_in(head[:HEAD_BYTES])) and not is_html(head):
        where = data_address(*urls)
        msg = f"'{label}' is {instead}.{where and f' Its content is at {where!r}.'}"
        raise WebPageError(msg)
    if lacks_data(name, head, suffixes):
        excerpt = hide_secrets(" ".join(head[:_EXCERPT_BYTES].decode("utf-8", "replace").split()))[:_EXCERPT]
        msg = (
            f"'{label}' returns, in place of '{name}', {describe_contents(head)}{excerpt and f': “{excerpt}”'}. Where "
            "that is an error or a login, open the address in a browser, and copy the link of the download itself."
        )
        raise WebPageError(msg)


def page_error(urls: Sequence[str], label: str, head: bytes) -> WebPageError:
    named = f" with the title “{title}”" if (title := page_title(head)) else ""
    return WebPageError(
        f"'{label}' returns a web page{named} instead of data: perhaps a login, a confirmation, a preview or an error. "
        f"{page_remedy(*urls)}"
    )


def page_title(head: bytes) -> str:
    match = re.search(rb"(?is)<title[^>]*>(.*?)(?:</title|\Z)", head)
    text = html.unescape(match[1].decode("utf-8", "replace")) if match else ""
    return "".join(filter(str.isprintable, " ".join(text.split())))[:120]


# Connections: redirects, logins, time limits, and the meaning of failures.


class HttpSession:
    """Requests to one address. May be used by many threads at once.

    Redirects are followed once. Services that redirect (releases, data sets, mirrors) give an address that is valid for
    minutes or hours. Following the redirect for each of hundreds of parts would double the latency, exceed the
    service's request limit, and might end at a different mirror with another ETag each time. So parts are requested
    from where the first response came from. If that refuses, or sends a page, the address is resolved again, once: by
    `resolve`, for a service with an API of its own, otherwise by following the redirect.

    After `timeout_s` seconds of silence a connection counts as failed. `cancellation` ends all requests at once.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        access: Access,
        *,
        resolve: Callable[[], str] | None,
        label: str,
        agent: str,
    ) -> None:
        self.timeout_s = timeout_s
        self.label = label or show_address(url)
        self.url, self._login = _without_login(url, self.label)
        self._resolve = resolve
        self._target = self.url
        self._has_answered = False
        self._cancellation = access.cancellation or Cancellation()
        self._services, self._owns_services = access.services or Services(), access.services is None
        # For each server, because connections to another one would be of no use.
        self._session = self._services.of((agent, _origin(url)), lambda: _new_session(agent))
        self._begin()

    def _begin(self) -> None:
        self._resolving, self._answers, self._silent = threading.Lock(), list[_Answer](), list[Any]()
        self._closed = False
        self._leave = self._cancellation.follow(self.interrupt)

    @property
    def is_of_service(self) -> bool:
        """Return whether a service finds the address of its file, instead of the user."""
        return self._resolve is not None

    def open_again(self) -> HttpSession:
        """Return a session for the same address, which is open."""
        again = copy.copy(self)
        again._has_answered = True
        again._begin()
        return again

    @contextlib.contextmanager
    def get(self, headers: dict[str, str]) -> Iterator[_Answer]:
        """Yield the response to a GET before its body is read; the connection is closed at the end, unless the body was
        read completely.

        Failures inside the block, too, become TransientError or the error they are.
        """
        with _translated(self.label, self._check_open), contextlib.closing(self._ask(headers)) as answer:
            self._answers.append(answer)
            try:
                self._check_open()
                yield answer
            finally:
                self._answers.remove(answer)
            # A body without a length looks complete when the connection is closed.
            self._check_open()

    def close(self) -> None:
        """End what is being read. Calling it twice is fine."""
        if self._closed:
            return
        self._closed = True
        self._leave()
        self.interrupt()
        if self._owns_services:
            self._services.close()

    def interrupt(self) -> None:
        """Cut the connections that are being read, or have had no response yet, so that what waits fails at once."""
        for answer in [*self._answers]:
            answer.shut_down()
        for connection in [*self._silent]:
            # It may have ended meanwhile. An SSLSocket's own method is not for other threads.
            with contextlib.suppress(OSError, TypeError):
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    @contextlib.contextmanager
    def waiting(self, connection: Any) -> Iterator[None]:
        """Wait for a response, for as long as this is open."""
        self._silent.append(connection)
        try:
            self._check_open()
            yield
        finally:
            self._silent.remove(connection)

    def _ask(self, headers: dict[str, str]) -> _Answer:
        target = self._target
        answer = self._send(target, headers)
        if self._is_outdated(answer, target):
            answer.close()
            with self._resolving:
                # Another thread may have done it.
                if self._target == target:
                    self._target = self._resolve() if self._resolve else self.url
                target = self._target
            answer = self._send(target, headers)
        if answer.status < 400 and not answer.is_page:
            self._target, self._has_answered = answer.url, True
        return answer

    def _is_outdated(self, answer: _Answer, target: str) -> bool:
        """Return whether another address may have the file that this one no longer gives."""
        if self._resolve is None and target == self.url:
            return False
        # A service explains its first refusal itself; later ones are as temporary as elsewhere.
        is_refused = self._resolve is not None and not self._has_answered and answer.status >= 400
        return answer.status in _EXPIRED or is_refused or answer.is_page

    def _send(self, url: str, headers: dict[str, str]) -> _Answer:
        from requests.auth import HTTPBasicAuth

        self._check_open()
        # A password is only for the server that it was given for, not for one that it redirects to.
        login = self._login if _origin(url) == _origin(self.url) else None
        auth = login and HTTPBasicAuth(*login)
        timeouts = (min(self.timeout_s, _CONNECT_TIMEOUT_S), self.timeout_s)
        _sending.session = self
        try:
            response = self._session.get(url, headers=headers, auth=auth, timeout=timeouts, stream=True)
        finally:
            _sending.session = None
        hops = [one.url for one in (*response.history, response)]
        for before, after in itertools.pairwise(hops):
            if before.startswith("https:") and not after.startswith("https:"):
                response.close()
                msg = (
                    f"'{self.label}' redirects from https to '{show_address(after)}', where anybody on the way could "
                    "exchange the data. If you trust the way, pass that address yourself."
                )
                raise SourceReadError(msg)
        return _Answer(self, response)

    def _check_open(self) -> None:
        self._cancellation.check()
        if self._closed:
            msg = f"'{self.label}' was closed, so nothing more can be read of it."
            raise SourceReadError(msg)


class WebAnswer(NamedTuple):
    """A service's response; `text` is "" if it is neither a page nor JSON, and `url` is where the redirects ended."""

    status: int
    url: str
    headers: Mapping[str, str]
    text: str


def ask_service(
    url: str,
    label: str,
    *,
    params: Mapping[str, str] | None = None,
    json: object = None,
    auth: Any = None,
    headers: Mapping[str, str] | None = None,
    redirects: bool = True,
    agent: str = AGENT,
) -> WebAnswer:
    """Return the response to one request to a service, whatever its status: a GET, or with `json` a POST."""
    with (
        _translated(label),
        _new_session(agent) as session,
        session.request(
            "GET" if json is None else "POST",
            url,
            params=params,
            json=json,
            auth=auth,
            headers=headers,
            allow_redirects=redirects,
            stream=True,
            timeout=(_CONNECT_TIMEOUT_S, _ANSWER_TIMEOUT_S),
        ) as response,
    ):
        kind = response.headers.get("Content-Type", "")
        is_text = "Content-Disposition" not in response.headers and ("html" in kind or "json" in kind)
        # An endless response is not a page.
        text = bytes(response.raw.read(_MAX_PAGE_BYTES, decode_content=True)) if is_text else b""
        return WebAnswer(response.status_code, response.url, response.headers, text.decode("utf-8", "replace"))


@contextlib.contextmanager
def _translated(label: str, check_open: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Raise our own errors for those of requests, urllib3 and the system, whose texts may show the whole address."""
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ColabstageError:
        raise
    except (OSError, ValueError, EOFError, zlib.error, http.client.HTTPException, HTTPError) as error:
        # Closing makes reads fail in many ways; all are reported as the same error.
        check_open()
        raise connection_error(error, label) from None


def connection_error(error: BaseException, label: str) -> SourceError:
    """Return the typed error for a connection that failed, with the innermost reason: outer ones show addresses."""
    import requests.exceptions as failures
    import urllib3.exceptions as urllib3_failures

    inner = _innermost(error)
    timeouts = (TimeoutError, failures.Timeout, urllib3_failures.TimeoutError)
    # The first two would be refused again and again, so they are not transient.
    if isinstance(inner, ssl.SSLCertVerificationError):
        msg = (
            f"The certificate of the server of '{label}' is not trusted: {inner.verify_message}. If it is your own, "
            "name the file of its authority in the variable REQUESTS_CA_BUNDLE."
        )
        return SourceReadError(msg)
    if isinstance(error, failures.TooManyRedirects | ValueError):
        # A ValueError is raised when parsing an address that a redirect named.
        msg = f"'{label}' redirects in a loop, or to what is no address. Open it in a browser; it may want a login."
        return SourceReadError(msg)
    if isinstance(error, timeouts) or isinstance(inner, timeouts):
        reason = "the server sent nothing for too long"
    else:
        is_told = isinstance(inner, OSError) and inner.strerror
        reason = said_by(inner) if is_told else "it was closed before everything had arrived undamaged"
    return TransientError(f"The connection to '{label}' failed: {reason}. Finished work is kept; try again.")


def _innermost(error: BaseException) -> BaseException:
    seen: set[int] = set()
    # Causes may form a cycle.
    while id(error) not in seen:
        seen.add(id(error))
        candidates: tuple[Any, ...] = (getattr(error, "reason", None), *error.args, error.__cause__, error.__context__)
        error = next((inner for inner in candidates if isinstance(inner, BaseException)), error)
    return error


def _without_login(url: str, label: str) -> tuple[str, tuple[bytes, bytes] | None]:
    """Return the address without user, password and fragment; and user and password as they are sent."""
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme.lower() in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        msg = f"'{label}' is not a web address; expected https://HOST/PATH."
        raise OptionError(msg)
    login = None
    if parts.username is not None:
        login = (unquote(parts.username).encode(), unquote(parts.password or "").encode())
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl(), login


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


@functools.cache
def _endable(kind: Any) -> Any:
    """Return urllib3's kind of connection, which tells its session while it has no response: until then urllib3 cannot
    cut it."""

    def getresponse(self: Any) -> Any:
        session = getattr(_sending, "session", None)
        with session.waiting(self) if session else contextlib.nullcontext():
            return kind.getresponse(self)

    return type(kind.__name__, (kind,), {"getresponse": getresponse})


def _new_session(agent: str) -> requests.Session:
    # Imported late: most runs need none.
    import requests
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def get_connection_with_tls_context(
            self, request: requests.PreparedRequest, verify: Any, proxies: Any = None, cert: Any = None
        ) -> Any:
            pool: Any = super().get_connection_with_tls_context(request, verify, proxies, cert)
            pool.ConnectionCls = _endable(type(pool).ConnectionCls)
            return pool

    session = requests.Session()
    # No retries here, because the reader continues at the byte where it stopped.
    for scheme in ("https://", "http://"):
        session.mount(scheme, Adapter(pool_connections=8, pool_maxsize=_POOL_CONNECTIONS, max_retries=0))
    session.max_redirects = _MAX_REDIRECTS
    session.headers.update({"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": agent})
    return session
