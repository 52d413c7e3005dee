"""One file somewhere else: what is known of it, and how its bytes come. Every transport is one of these."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from colabstage.errors import SourceReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.fetch.checksum import Checksum


# Who brings less than this is not worth waiting for: a file of 1 GB would take twelve days.
LEAST_BYTES_PER_S = 1024.0


class PassingError(SourceReadError):
    """A failure that may be over a moment later: a connection that was cut, a server that is busy.

    It is raised and caught inside this package only: who gives up raises a `SourceReadError`.

    `wait_s`: seconds after which the other side asked to be tried again; `None` when it did not say.
    `slow`: bytes came, but so slowly that they are no progress.
    """

    def __init__(self, message: str, wait_s: float | None = None, *, slow: bool = False) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        self.slow = slow

    def __reduce__(self) -> tuple[Callable[..., PassingError], tuple[str, float | None, bool]]:
        return _passing_error, (str(self), self.wait_s, self.slow)


def _passing_error(message: str, wait_s: float | None, slow: bool) -> PassingError:
    return PassingError(message, wait_s, slow=slow)


@contextlib.contextmanager
def given_up() -> Iterator[None]:
    """Where nobody tries again, raise what failed for now as what failed for good."""
    try:
        yield
    except PassingError as error:
        raise SourceReadError(str(error)) from error


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """What a service says about one file before any of it is fetched.

    `label`: its address for messages and reports; never with a password, token or signature in it.
    `name`: the name it would have here, without folders.
    `size`: bytes; `None` where the service does not say.
    `version`: a text that is another one when the content is (an ETag, a generation, a time); "" where there is none.
    `mtime_ns`: modification time in nanoseconds since 1970; 0 where it is not known.
    `checksum`: of the whole content, where the service offers one or the caller gave one.
    `ranges`: whether any part can be asked for; otherwise only the whole, from its beginning.
    `connections`: how many parts the service gives at full speed at once; 1 where more do not help.
    `eager`: whether to ask for that many from the beginning; otherwise for one more as long as that proves faster.
    """

    label: str
    name: str
    size: int | None
    version: str = ""
    mtime_ns: int = 0
    checksum: Checksum | None = None
    ranges: bool = True
    connections: int = 8
    eager: bool = True


class RemoteFile(Protocol):
    """One file somewhere else. `read_range` may be called from many threads at once."""

    @property
    def facts(self) -> RemoteFacts:
        """What was known when it was opened."""

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """The content from `offset` on, in pieces of at most a megabyte, as they come.

        Ends after exactly `length` bytes; with `None` at the end of the file. Closing the iterator early hangs up.
        No wait in it is without a deadline. `offset` must be 0 where `facts.ranges` is false.

        Raises:
            PassingError: the other side failed in a way that passes; what was yielded before is good.
            SourceChangedError: the content is no longer the one of `facts.version`.
            SourceAccessError, SourceNotFoundError, DriveDisconnectedError, DriveQuotaError, SourceReadError: for good.
        """

    def close(self) -> None:
        """Let go of connections and handles. Calling it twice is fine."""
