"""`RemoteFile`: one file somewhere else, what is known of it, and how its bytes come. Every transport is one of these;
the simplest, a file on the local disk or a mount, is here.

With it go what all of them share: checksums, failures that may be over a moment later, and the least rate of a body.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import string
import threading
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from colabstage.errors import ChecksumMismatchError, OptionError, SourceChangedError, SourceReadError
from colabstage.io.arguments import check_argument
from colabstage.io.files import RetryPolicy, close_quietly, is_transient, read_with_retry, translate_read_error
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.machine.mounts import is_slow_mount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from colabstage.io.progress import Cancellation, Clock

# Hexadecimal digits of each kind. Not what hashlib has besides: nobody publishes those.
_DIGITS = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128, "xxh3_64": 16, "xxh3_128": 32}
# Of one read: FUSE hands out at most so much at once.
_PIECE_BYTES = 1024 * 1024
_BY_DIGITS = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}


class Hasher(Protocol):
    """What hashlib and xxhash give: fed piece by piece."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Checksum:
    """The hash of a whole file."""

    algorithm: str
    """Such as `"sha256"`."""
    digest: str
    """Hexadecimal, lower case."""

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.digest}"

    def new_hasher(self) -> Hasher:
        """Return a hasher that will give this digest for the right content."""
        if self.algorithm.startswith("xxh3"):
            # Imported here: few sources tell one of these.
            import xxhash

            hasher: Hasher = getattr(xxhash, self.algorithm)()
            return hasher
        # Some builds refuse MD5 otherwise, which is what most services tell.
        return hashlib.new(self.algorithm, usedforsecurity=False)

    def digest_of(self, pieces: Iterable[bytes]) -> str:
        """Return the digest of this kind that all pieces have together."""
        hasher = self.new_hasher()
        for piece in pieces:
            hasher.update(piece)
        return hasher.hexdigest()


def pieces_of(read: Callable[[int, int], bytes], size: int, cancellation: Cancellation) -> Iterator[bytes]:
    """Yield what `read(length, offset)` gives from the beginning to the end."""
    for offset in range(0, size, _PIECE_BYTES):
        cancellation.check()
        yield read(_PIECE_BYTES, offset)


def check_file(path: Path, checksum: Checksum, label: str) -> None:
    """Hash a whole file that is here.

    Raises:
        ChecksumMismatchError: it is another one than the checksum's.
    """
    with path.open("rb") as file:
        digest = checksum.digest_of(iter(lambda: file.read(_PIECE_BYTES), b""))
    if digest != checksum.digest:
        msg = (
            f"'{label}' arrived complete, but its {checksum.algorithm} is {digest}, not {checksum.digest}. "
            "It was not kept. Compare the checksum with its publisher's."
        )
        raise ChecksumMismatchError(msg)


def parse_checksum(text: str) -> Checksum:
    """Read `"sha256:ab12…"`; without a name, the length of the digest tells the algorithm.

    Raises:
        OptionError: the algorithm is unknown, or the digest is not one of its.
    """
    check_argument("hash", text, "text")
    name, colon, digest = text.strip().lower().rpartition(":")
    algorithm = name.replace("-", "") if colon else _BY_DIGITS.get(len(digest), "")
    wanted = _DIGITS.get(algorithm)
    if wanted is None or len(digest) != wanted or digest.strip(string.hexdigits):
        known = ", ".join(f"{known}:… ({digits} digits)" for known, digits in _DIGITS.items())
        msg = f"hash={text!r} is not a checksum; expected one of {known}."
        raise OptionError(msg)
    return Checksum(algorithm, digest)


# Who brings less than this is not worth waiting for: a file of 1 GB would take twelve days.
LEAST_BYTES_PER_S = 1024.0
_PACE_WINDOW_S = 30.0


class TransientError(SourceReadError):
    """A failure that may be over a moment later: a connection that was cut, a server that is busy.

    It is raised and caught inside this package only: who gives up raises a `SourceReadError`.

    `wait_s`: seconds after which the other side asked to be tried again; `None` when it did not say.
    `slow`: bytes came, but so slowly that they are not progress.
    """

    def __init__(self, message: str, wait_s: float | None = None, *, slow: bool = False) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        self.slow = slow

    def __reduce__(self) -> tuple[Callable[..., TransientError], tuple[str, float | None]]:
        # Exceptions are rebuilt from their arguments alone, without keywords.
        return partial(TransientError, slow=self.slow), (str(self), self.wait_s)


@contextlib.contextmanager
def given_up() -> Iterator[None]:
    """Raise what failed for now as what failed for good: for where nobody tries again."""
    try:
        yield
    except TransientError as error:
        raise SourceReadError(str(error)) from error


def at_least_rate(
    pieces: Iterator[bytes],
    label: str,
    *,
    window_s: float = _PACE_WINDOW_S,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[bytes]:
    """Hand out what comes, as long as it comes fast enough: whatever brings it, a server that drips ends here.

    It is judged at the end of each period of `window_s` seconds of waiting for a piece; other time does not count. What
    comes before the first is the service's answer, which has a deadline of its own. Whoever brings the pieces lets none
    of them take much longer than `window_s`.

    Raises:
        TransientError: less than a kilobyte a second came in `window_s` seconds of waiting.
    """
    waited_s, came = 0.0, 0
    with contextlib.ExitStack() as stack:
        if isinstance(pieces, Generator):
            # Whoever stops early hangs up now, and not when the garbage is collected.
            stack.callback(pieces.close)
        began: float | None = None
        for piece in pieces:
            waited_s, came = waited_s + (0.0 if began is None else clock.now() - began), came + len(piece)
            if waited_s >= window_s:
                if came < LEAST_BYTES_PER_S * waited_s:
                    msg = (
                        f"The server of '{label}' sent {came:,} bytes in {waited_s:.0f} s, which is too slow to finish."
                    )
                    raise TransientError(msg, slow=True)
                waited_s, came = 0.0, 0
            yield piece
            began = clock.now()


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """What a service says about one file before any of it is fetched."""

    label: str
    """Its address for messages and reports; never with a password, token or signature in it."""
    name: str
    """The name it would have here, without folders."""
    size: int | None
    """Bytes; `None` where the service does not say."""
    version: str = ""
    """A text that is another one when the content is (an ETag, a generation, a time); "" where there is none."""
    mtime_ns: int = 0
    """Modification time in nanoseconds since 1970; 0 where it is not known."""
    checksum: Checksum | None = None
    """The hash of the whole content, where the service offers one or the caller gave one."""
    ranges: bool = True
    """Whether any part can be asked for; otherwise only the whole, from its beginning."""
    connections: int = 8
    """How many parts the service gives at full speed at once; 1 where more do not help."""
    eager: bool = True
    """Whether to ask for that many from the beginning; otherwise for one more as long as that proves faster."""


class RemoteFile(Protocol):
    """One file somewhere else. `read_range` may be called from many threads at once."""

    facts: RemoteFacts
    """What was known when it was opened."""

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Return the content from `offset` on, in pieces of at most a megabyte, as they come.

        Ends after exactly `length` bytes; with `None` at the end of the file. Closing the iterator early hangs up.
        No wait in it is without a deadline. `offset` must be 0 where `facts.ranges` is false.

        Raises:
            TransientError: the other side failed in a way that passes; what was yielded before is good.
            SourceChangedError: the content is no longer the one of `facts.version`.
            SourceAccessError, SourceNotFoundError, DriveDisconnectedError, DriveQuotaError, SourceReadError: for good.
        """

    def close(self) -> None:
        """Release connections and handles. Calling it twice is fine."""

    def known(self, offset: int, stop: int) -> bytes | None:
        """Return bytes that came along when it was opened; `None` where these did not, as of most files."""
        return None

    def without_version_check(self) -> RemoteFile:
        """Return the same file for a reader that compares hashes of what it reads; closed with this one.

        It is another one only where a service is asked after each range whether the content is still that of
        `facts.version`: a hash proves more, and asks nobody.
        """
        return self


# Whether a mount gives one file faster by several readers depends on what is behind it: the simulated Drive, whose
# figures are those of one reader, gives it more slowly. So it is tried.
_MOUNT_CONNECTIONS = 4
# What was found once and is not there a moment later is a symptom of a dying mount; what never was, is not there.
_LOOKING = RetryPolicy(missing_is_transient=False)
_READING = RetryPolicy()


class MountedFile(RemoteFile):
    """A `RemoteFile` that is a regular file here. Its `version` is the modification time.

    A part keeps its handle to itself while it is read, because the kernel reads ahead for each handle; the next part
    gets it afterwards, because opening costs a round trip on a mount.
    """

    def __init__(self, path: Path) -> None:
        """Look at the file.

        Raises:
            SourceNotFoundError, SourceReadError, DriveDisconnectedError: it cannot be opened.
        """
        self._path = path
        self._label = str(path)
        self._lock = threading.Lock()
        self._free: deque[int] = deque()
        self._closed = False
        handle, stat = read_with_retry(lambda: _open_file(path), self._label, policy=_LOOKING)
        self._free.append(handle)
        self.facts = RemoteFacts(
            label=self._label,
            name=path.name,
            size=stat.st_size,
            version=str(stat.st_mtime_ns),
            mtime_ns=stat.st_mtime_ns,
            connections=_MOUNT_CONNECTIONS if is_slow_mount(path) else 1,
            eager=False,
        )

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Read as `RemoteFile.read_range`. A read that hangs in a dead mount cannot be interrupted: wait elsewhere."""
        assert self.facts.size is not None
        end = self.facts.size if length is None else offset + length
        try:
            handle = self._borrow()
            try:
                while offset < end:
                    piece = os.pread(handle, min(_PIECE_BYTES, end - offset), offset)
                    if not piece:
                        raise self._ended_early(handle, offset)
                    offset += len(piece)
                    yield piece
                self._check_unchanged(os.fstat(handle))
            except OSError:
                # Another one may not have what is wrong with this one.
                close_quietly(handle)
                handle = -1
                raise
            finally:
                self._give_back(handle)
        except SourceReadError:
            raise
        except OSError as error:
            raise self._judge(error) from error

    def close(self) -> None:
        """Release the handles. Calling it twice is fine."""
        with self._lock:
            self._closed = True
            handles = list(self._free)
            self._free.clear()
        for handle in handles:
            close_quietly(handle)

    def _borrow(self) -> int:
        """Return a handle on the file as it was when it was looked at."""
        with self._lock:
            if self._closed:
                msg = f"'{self._label}' was closed."
                raise SourceReadError(msg)
            handle = self._free.popleft() if self._free else -1
        if handle >= 0:
            return handle
        handle, stat = _open_file(self._path)
        try:
            self._check_unchanged(stat)
        except BaseException:
            close_quietly(handle)
            raise
        return handle

    def _give_back(self, handle: int) -> None:
        with self._lock:
            if handle >= 0 and not self._closed:
                self._free.append(handle)
                return
        if handle >= 0:
            close_quietly(handle)

    def _ended_early(self, handle: int, offset: int) -> TransientError:
        stat = os.fstat(handle)
        self._check_unchanged(stat)
        msg = f"'{self._label}' ends at byte {offset:,} although it is listed with {stat.st_size:,}."
        return TransientError(msg)

    def _check_unchanged(self, stat: os.stat_result) -> None:
        facts = self.facts
        if (stat.st_size, str(stat.st_mtime_ns)) == (facts.size, facts.version):
            return
        msg = (
            f"'{self._label}' became another file while it was read: it had {facts.size:,} bytes and has "
            f"{stat.st_size:,} now, or was written again. Wait until its upload or copy is complete, then try again."
        )
        raise SourceChangedError(msg)

    def _judge(self, error: OSError) -> OSError:
        if is_transient(error, _READING):
            what = "was listed but cannot be found" if error.errno == errno.ENOENT else f"answers: {error.strerror}"
            return TransientError(f"'{self._label}' {what}.")
        return translate_read_error(error, self._label, 1)


def _open_file(path: Path) -> tuple[int, os.stat_result]:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return handle, os.fstat(handle)
    except BaseException:
        close_quietly(handle)
        raise
