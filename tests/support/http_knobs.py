"""How the practice web server behaves: its pace, its features, and its deliberate faults."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

WebFaultKind = Literal[
    "status", "redirect", "html", "hang", "reset", "truncate", "stall", "drip", "length", "content_range", "total"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebKnobs:
    """A web server's pace and features; the default is quick and well-behaved."""

    latency_s: float = 0.0
    """Seconds before each response, like a round trip."""
    bytes_per_s: float = math.inf
    """Of one connection."""
    total_bytes_per_s: float = math.inf
    """Of all connections together."""
    max_requests: int | None = None
    """The most simultaneous requests; others get 503 with `Retry-After: 1`."""
    ranges: Literal["honoured", "ignored", "none"] = "honoured"
    """`"honoured"`; `"ignored"` announces `Accept-Ranges: bytes` but sends the whole file; `"none"` announces none and
    sends the whole."""
    etag: Literal["strong", "weak", "changing", "none"] = "strong"
    """`"changing"` sends another one in each response, like a farm of servers that each make up their own."""
    last_modified: bool = True
    """Whether the modification time is sent."""
    length: Literal["told", "chunked", "close"] = "told"
    """`"told"` sends it; `"chunked"` sends chunks without it; `"close"` ends the content by closing the connection."""
    gzip: bool = False
    """Compress every response, whatever the request accepts."""
    content_type: str = "application/octet-stream"
    """Of every file."""
    headers: tuple[tuple[str, str], ...] = ()
    """Extra headers of every file, whole or in part."""
    login: tuple[str, str] | None = None
    """User and password; without them, the response is 401."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebFault:
    """Responses that go wrong.

    Which: `path`, a glob over the path without its first slash; of the GET requests that match it and ask for at
    least `min_bytes` bytes (so that `min_bytes=100_000` spares whoever only looks), the first `after` are spared,
    then only `first` fail (`None` for all), and of these every `every`-th.

    How (`kind`):

    - `"status"`: the answer is `status`, with `retry_after` as `Retry-After` and `body` as its text.
    - `"redirect"`: to `location` (`{query}` in it becomes the query of the request), with `status` (302 unless given).
    - `"html"`: 200 and a web page (`body`, or one with the title "Sign in").
    - `"hang"`: nothing comes, until either side closes.
    - `"reset"`, `"truncate"`, `"stall"`: after `at_byte` bytes of this answer's body the connection is reset, is closed
      in order, or is left open in silence.
    - `"drip"`: from `at_byte` on, only `bytes_per_s`.
    - `"length"`: the length told is wrong by `delta`; what comes is right, then the connection is closed.
    - `"content_range"`, `"total"`: the range told, or the size in it, is wrong by `delta`.
    """

    kind: WebFaultKind
    path: str = "*"
    min_bytes: int = 0
    after: int = 0
    first: int | None = None
    every: int | None = None
    status: int | None = None
    retry_after: str | None = None
    body: str | None = None
    location: str | None = None
    at_byte: int = 0
    bytes_per_s: float = math.inf
    delta: int = 0

    def matches(self, path: str, wanted_bytes: int) -> bool:
        """Tell whether a request counts for this fault."""
        return wanted_bytes >= self.min_bytes and fnmatchcase(path, self.path)

    def strikes(self, number: int) -> bool:
        """Tell whether the `number`-th matching request, counted from 1, fails."""
        beyond = number - self.after
        within = beyond >= 1 and (self.first is None or beyond <= self.first)
        return within and (self.every is None or beyond % self.every == 0)


@dataclass(frozen=True, slots=True)
class WebRequest:
    """One request, with the response's status."""

    method: str
    """GET or HEAD."""
    path: str
    """Without the first slash and the query."""
    query: str
    """What follows the question mark, without it."""
    range: str
    """The text of its Range header; "" without one."""
    headers: dict[str, str] = dataclasses.field(hash=False)
    """By lower-case name."""
    status: int
    """Of the response; 0 if there was none."""
    connection: int
    """Number of the connection, from 1."""
