"""`RemoteFile`: one file somewhere else, its facts, and its bytes. Every transport implements it; the simplest, a file
on the local disk or a mount, is here, and what all of them share: checksums and temporary failures.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import string
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from colabstage.errors import (
    OptionError,
    SourceChangedError,
    SourceNotFoundError,
    SourceReadError,
    WebPageError,
    ended,
    said_by,
)
from colabstage.io.arguments import check_argument
from colabstage.io.files import Closing, RetryPolicy, close_quietly, is_transient, read_with_retry, translate_read_error
from colabstage.io.progress import SYSTEM_CLOCK, Cancellation, Clock
from colabstage.machine.mounts import is_slow_mount
from colabstage.trees.names import UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from pathlib import Path


T = TypeVar("T")
C = TypeVar("C")

# Hexadecimal digits of each algorithm. hashlib's others are left out, because nobody publishes them.
_DIGITS = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128, "xxh3_64": 16, "xxh3_128": 32}
# Bytes of one read: FUSE returns at most this much at once.
_PIECE_BYTES = 1024 * 1024
_BY_DIGITS = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}


class Hasher(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Checksum:
    algorithm: str
    digest: str

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.digest}"

    def new_hasher(self) -> Hasher:
        """Return a hasher whose digest can be compared with this one."""
        if self.algorithm.startswith("xxh3"):
            # Imported here, because few sources report one of these.
            import xxhash

            hasher: Hasher = getattr(xxhash, self.algorithm)()
            return hasher
        # Some builds otherwise refuse MD5, which most services report.
        return hashlib.new(self.algorithm, usedforsecurity=False)

    def digest_of(self, pieces: Iterable[bytes]) -> str:
        hasher = self.new_hasher()
        for piece in pieces:
            hasher.update(piece)
        return hasher.hexdigest()


def pieces_of(read: Callable[[int, int], bytes], size: int, cancellation: Cancellation) -> Iterator[bytes]:
    """Yield the results of `read(length, offset)` from the beginning to the end."""
    for offset in range(0, size, _PIECE_BYTES):
        cancellation.check()
        yield read(_PIECE_BYTES, offset)


def parse_checksum(text: str) -> Checksum:
    """Read `"sha256:ab12…"`; without a name, the length of the digest decides the algorithm."""
    check_argument("hash", text, "text")
    name, colon, digest = text.strip().lower().rpartition(":")
    algorithm = name.replace("-", "") if colon else _BY_DIGITS.get(len(digest), "")
    wanted = _DIGITS.get(algorithm)
    if wanted is None or len(digest) != wanted or digest.strip(string.hexdigits):
        known = ", ".join(f"{known}:… ({digits} digits)" for known, digits in _DIGITS.items())
        msg = f"hash={text!r} is not a checksum; expected one of {known}."
        raise OptionError(msg)
    return Checksum(algorithm, digest)


class TransientError(SourceReadError):
    """A failure that may be temporary: a connection that was cut, a server that is busy.

    Code that gives up raises a `SourceReadError`. `wait_s`: seconds after which the other side asked to be tried again;
    `None` if it did not say. `slow`: bytes arrived, but too slowly to count as progress.
    """

    def __init__(self, message: str, wait_s: float | None = None, *, slow: bool = False) -> None:
        super().__init__(message)
        self.wait_s = wait_s
        self.slow = slow


# What an address raises at which there is no file, or a page in its place; and what stands for such a file's version.
LEADS_NOWHERE, NOTHING = (SourceNotFoundError, WebPageError), "nothing"


class Services(Closing):
    """What the addresses of one run share, because making a client, and logging in, takes longer than a request."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Any] = {}

    def of(self, key: Hashable, make: Callable[[], C]) -> C:
        """Return what was made for this key; it is closed with this."""
        if key not in self._found:
            self._found.setdefault(key, make())
        found: C = self._found[key]
        return found

    def close(self) -> None:
        for one in list(self._found.values()):
            one.close()


# Services answer too many tries at once by a refusal.
OPENING = RetryPolicy(attempts=4, first_wait_s=0.5)


@dataclass(frozen=True, slots=True)
class Access:
    """How an address is opened."""

    checksum: Checksum | None = None
    """The expected checksum, if the caller knows it; otherwise the one that the service reports counts, if any."""
    policy: RetryPolicy = OPENING
    """How often the first question is asked again."""
    along: int = 0
    """How much of the beginning of a file on the web is requested with its facts, for `RemoteFile.known`: reading that
    next costs no round trip."""
    tail: int = 0
    """How much of its end is requested at the same time."""
    cancellation: Cancellation | None = None
    """Ends requests, then and while the file is read."""
    services: Services | None = None
    """Connections that other files use too, and that outlive this one; by default it has its own."""


# A longer silence at the beginning looks like a program that hangs.
_LONGEST_WAIT_S = 60.0


def with_retries(ask: Callable[[], T], policy: RetryPolicy, sleep: Callable[[float], object] = time.sleep) -> T:
    """Return a response that comes as a whole or not at all; ask again after temporary failures."""
    tries = 0
    while True:
        try:
            return ask()
        except TransientError as error:
            tries, wait_s = tries + 1, max(error.wait_s or 0.0, policy.first_wait_s * 2**tries)
            if tries >= policy.attempts or wait_s > _LONGEST_WAIT_S:
                raise
        sleep(wait_s)


@contextlib.contextmanager
def given_up() -> Iterator[None]:
    """Raise a temporary failure as a permanent one, because nobody tries again."""
    try:
        yield
    except TransientError as error:
        raise SourceReadError(str(error)) from error


class StoredFile(NamedTuple):
    """A file or object as a listing has it."""

    size: int
    mtime_ns: int
    """When it was written, in nanoseconds since 1970; 0 if the service does not say."""
    version: str
    """A text that changes with the content; "" if there is none."""
    ours: bool = True
    """Whether this user made it, and it is a file and not a link."""


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """A service's facts about one file before any of it is fetched."""

    label: str
    """Its address for messages and reports; never with a password, token or signature in it."""
    name: str
    """The name of a local copy, without folders."""
    size: int | None
    """Length in bytes; `None` if the service does not say."""
    version: str = ""
    """A text that changes when the content changes (an ETag, a generation, a time); "" if there is none."""
    mtime_ns: int = 0
    """Modification time in nanoseconds since 1970; 0 if unknown."""
    checksum: Checksum | None = None
    """The hash of the whole content, if the service reports one or the caller gave one."""
    ranges: bool = True
    """Whether any part can be requested; otherwise only the whole file, from its beginning."""
    connections: int = 8
    """How many parts the service serves at full speed at once; 1 if more do not help."""
    is_mounted: bool = False
    """Whether it is a local file or on a mount, which one reader copies fastest."""

    @property
    def names_its_state(self) -> bool:
        """Return whether what an earlier run has fetched can be told from new content of the same length."""
        return bool(self.version or self.mtime_ns or self.checksum)


# The first request to a server asks for this much: enough for a page's title, and it still arrives in the first round
# trip.
LOOK_BYTES = 8 * 1024


class RemoteFile(Protocol):
    """One file somewhere else. `read_range` may be called from many threads at once."""

    facts: RemoteFacts

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences for the user, for example that it is read without a login."""
        return ()

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Return the content from `offset` on, in pieces of at most a megabyte, as they arrive.

        Ends after exactly `length` bytes, or with `None` at the end of the file. Closing the iterator early closes the
        connection. Every wait in it has a deadline. `offset` must be 0 if `facts.ranges` is false.

        Raises:
            TransientError: the other side failed temporarily; what was yielded before is valid.
            SourceChangedError: the content is no longer the one of `facts.version`.
            SourceAccessError, SourceNotFoundError, DriveDisconnectedError, DriveQuotaError, SourceReadError: for good.
        """

    def close(self) -> None:
        """Release connections and handles. Calling it twice is fine."""

    def interrupt(self) -> None:
        """Make reads in other threads fail soon, where that is possible; the next ones work again."""
        return

    def known(self, offset: int, stop: int) -> bytes:
        """Return what arrived of these bytes when it was opened, from `offset` on; with most files nothing."""
        return b""

    def open_again(self) -> RemoteFile | None:
        """Return the same file without a request, also after this one is closed; `None` if that takes one."""
        return None

    def without_version_check(self) -> RemoteFile:
        """Return the same file for a reader that compares hashes of what it reads; closed with this one.

        It differs only if a service is asked after each range whether the content is still that of `facts.version`: a
        hash proves more, without a request.
        """
        return self


# Scattered reads of one file through a mount at once.
_MOUNT_CONNECTIONS = 4
# A file that was found and is missing a moment later is a symptom of a dying mount; one that was never found does not
# exist.
_LOOKING = RetryPolicy(missing_is_transient=False)
_READING = RetryPolicy()


class MountedFile(RemoteFile):
    """A `RemoteFile` that is a regular file on this machine. Its `version` is the modification time.

    Each part has its own handle while it is read, because the kernel reads ahead for each handle; the next part reuses
    it, because opening costs a round trip on a mount.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if os.path.lexists(lacks := f"{path}{UNFINISHED[0]}"):
            msg = f"'{path}' is not complete: '{lacks}' lists what it lacks. Finish the download by aria2c -c."
            raise SourceReadError(msg)
        handle = read_with_retry(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC), str(path), policy=_LOOKING)
        self._free = deque([handle])
        self._closed = False
        try:
            stat = read_with_retry(lambda: os.fstat(handle), str(path), policy=_LOOKING)
            is_slow = is_slow_mount(path)
        except BaseException:
            self.close()
            raise
        self.facts = RemoteFacts(
            label=str(path),
            name=path.name,
            size=stat.st_size,
            version=str(stat.st_mtime_ns),
            mtime_ns=stat.st_mtime_ns,
            connections=_MOUNT_CONNECTIONS if is_slow else 1,
            is_mounted=True,
        )

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        """Read as `RemoteFile.read_range`. A read that hangs in a dead mount cannot be interrupted: wait elsewhere."""
        assert self.facts.size is not None
        end = self.facts.size if length is None else offset + length
        with self._handle() as handle:
            while offset < end:
                piece = os.pread(handle, min(_PIECE_BYTES, end - offset), offset)
                # Before the piece is passed on: after the last piece, a reader does not ask again.
                self._check_unchanged(os.fstat(handle))
                if not piece:
                    raise ended_early(self.facts, offset)
                offset += len(piece)
                yield piece

    def close(self) -> None:
        self._closed = True
        # Another thread may take the last handle, and then closes it.
        with contextlib.suppress(IndexError):
            while True:
                close_quietly(self._free.popleft())

    @contextlib.contextmanager
    def _handle(self) -> Iterator[int]:
        """Yield a handle of its own; the system's errors inside the block become typed."""
        self._check_open()
        handle = -1
        try:
            try:
                handle = self._free.popleft()
            except IndexError:
                handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            yield handle
        except SourceReadError:
            raise
        except OSError as error:
            if handle >= 0:
                # A new handle may not have the same fault.
                close_quietly(handle)
                handle = -1
            if not is_transient(error, _READING):
                raise translate_read_error(error, self.facts.label, 1) from error
            what = "was listed but cannot be found" if error.errno == errno.ENOENT else f"answers: {error.strerror}"
            msg = f"'{self.facts.label}' {what}."
            raise TransientError(msg) from error
        finally:
            if handle >= 0:
                self._free.append(handle)
            if self._closed:
                self.close()

    def _check_open(self) -> None:
        if self._closed:
            msg = f"'{self.facts.label}' was closed."
            raise SourceReadError(msg)

    def _check_unchanged(self, stat: os.stat_result) -> None:
        facts = self.facts
        if (stat.st_size, str(stat.st_mtime_ns)) == (facts.size, facts.version):
            return
        how = f"it had {facts.size:,} bytes and has {stat.st_size:,} now"
        if stat.st_size == facts.size:
            how = "it was written to"
        msg = (
            f"'{facts.label}' became another file while it was read: {how}. Wait until its upload or copy is complete, "
            "then try again."
        )
        raise SourceChangedError(msg)


class JoinedFile(RemoteFile):
    """Several files in sequence as one, as `cat` joins them; closed together.

    `path`: the first of them, for which the whole is named.
    """

    def __init__(self, parts: Sequence[MountedFile], path: Path) -> None:
        self._parts = parts
        self.facts = replace(
            parts[0].facts,
            label=str(path),
            name=path.stem,
            size=sum(part.facts.size or 0 for part in parts),
            version=" ".join(part.facts.version for part in parts),
            mtime_ns=max(part.facts.mtime_ns for part in parts),
        )

    def read_range(self, offset: int, length: int | None) -> Iterator[bytes]:
        left = (self.facts.size or 0) - offset if length is None else length
        for part in self._parts:
            size = part.facts.size or 0
            here = min(left, size - offset)
            if here > 0:
                yield from part.read_range(offset, here)
                left -= here
            offset = max(0, offset - size)

    def close(self) -> None:
        for part in self._parts:
            part.close()


# Read a remote file with retries, for as long as the policy is patient.


# How often a waiting thread checks whether it should stop; no wait is longer than this.
LOOK_S = 0.25
LONGEST_WAIT_S = 30.0
# While nothing arrives at all, somebody is waiting for that to end.
_LONGEST_PATIENT_WAIT_S = 5.0
# Services that ask for a longer pause are asked again after this one.
_LONGEST_ASKED_WAIT_S = 60.0


class RetryBudget:
    """Count the tries of one connection, or of one reader.

    `tries`: since the last byte of the file arrived, including the latest failure. `is_spent`: whether the policy's
    attempts are used up. `is_patient`: whether to retry anyway, because the policy's `patience_s` have not passed;
    `waits_for` then says what it waits for.
    """

    def __init__(self, policy: RetryPolicy, clock: Clock = SYSTEM_CLOCK) -> None:
        self.tries = 0
        self.is_spent = self.is_patient = False
        self.waits_for = ""
        self._policy, self._clock = policy, clock
        self._refusals = 0
        self._arrived = -1
        self._since = 0.0

    def count(self, error: TransientError, *, arrived: int, moved: bool = False) -> float:
        """Count a failure, and return the seconds before the next try: as many as the service asked for.

        `arrived`: how many bytes of the file have arrived on all connections; after failing for slowness they do not
        count. `moved`: whether this connection received some of them since its last failure.
        """
        self._refusals = 1 if moved else self._refusals + 1
        if error.slow or arrived == self._arrived:
            self.tries += 1
        else:
            self.tries, self._since = 1, self._clock.now()
        self._arrived = arrived
        self.is_spent = self.tries >= self._policy.attempts
        patience_s = 0.0 if _is_of_a_mount(error) else self._policy.patience_s
        self.is_patient = self._clock.now() - self._since < patience_s
        waits = self.is_spent and self.is_patient
        self.waits_for = f"{ended(said_by(error))} It is asked again for {patience_s:.0f} s." if waits else ""
        longest_s = _LONGEST_PATIENT_WAIT_S if waits else LONGEST_WAIT_S
        own_s = float(min(self._policy.first_wait_s * 2 ** min(self._refusals - 1, 16), longest_s))
        if error.wait_s is None:
            return own_s
        # "At once" must not mean a thousand requests a minute.
        return max(error.wait_s, own_s) if self.is_spent else error.wait_s


def final_error(error: TransientError, label: str, tries: int) -> OSError:
    """Return the error for a transient failure that has lasted too long."""
    if _is_of_a_mount(error):
        assert isinstance(error.__cause__, OSError)
        return translate_read_error(error.__cause__, label, tries)
    often = "1 try" if tries == 1 else f"{tries} tries"
    asked = f" The other side asked to wait {error.wait_s:.0f} seconds." if error.wait_s else ""
    return SourceReadError(f"{error} Given up after {often} without a byte.{asked} What has arrived is kept.")


def _is_of_a_mount(error: TransientError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno is not None


def stopped_error(label: str) -> SourceReadError:
    return SourceReadError(f"The copy of '{label}' was stopped before all of it was here.")


def ended_early(facts: RemoteFacts, position: int) -> TransientError:
    why = "more had come before" if facts.size is None else f"it is listed with {facts.size:,}"
    return TransientError(f"'{facts.label}' ends at byte {position:,} although {why}.")


@contextlib.contextmanager
def closing_pieces(pieces: Iterator[bytes]) -> Iterator[Iterator[bytes]]:
    """Close the connection when the block ends, however it ends."""
    try:
        yield pieces
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()


def read_through(
    source: RemoteFile,
    offset: int = 0,
    length: int | None = None,
    *,
    policy: RetryPolicy,
    check: Callable[[], object] = lambda: None,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[bytes]:
    """Yield all of a source in one pass, or a part of one that gives ranges, first what came along when it was opened;
    the retry budget starts over with every byte. `check` is called several times a second, and ends it by an error. If
    the policy is patient, `tell` is called with what it waits for.

    If it breaks off, a source without ranges sends the received bytes again. They are compared by their hash, so that
    they need not be kept, and skipped; different content is a `SourceChangedError`.
    """
    import xxhash

    facts, done, seen, budget = source.facts, 0, xxhash.xxh3_64(), RetryBudget(policy)
    length = facts.size if length is None else length
    if length and (head := source.known(offset, offset + length)):
        yield head
        offset, length = offset + len(head), length - len(head)
    while length is None or done < length:
        begin = at = done if facts.ranges else 0
        again = xxhash.xxh3_64()
        try:
            with closing_pieces(
                source.read_range(offset + begin, None if length is None else length - begin)
            ) as pieces:
                for piece in pieces:
                    check()
                    known, at = piece[: max(0, done - at)], at + len(piece)
                    again.update(known)
                    if known and at >= done and again.digest() != seen.digest():
                        msg = f"'{facts.label}' became another file while it was read. Wait until it is complete."
                        raise SourceChangedError(msg)
                    new = piece[len(known) : None if length is None else len(known) + length - done]
                    if not facts.ranges:
                        seen.update(new)
                    done += len(new)
                    if new:
                        yield new
            if at >= (done if length is None else length):
                return
            # A proxy may have cut it short, which is worth another try.
            failure = ended_early(facts, offset + at)
        except TransientError as error:
            failure = error
        wait_s = budget.count(failure, arrived=done)
        if budget.is_spent and not budget.is_patient:
            raise final_error(failure, facts.label, budget.tries) from failure
        tell(budget.waits_for)
        deadline = SYSTEM_CLOCK.now() + min(wait_s, _LONGEST_ASKED_WAIT_S)
        check()
        while (left_s := deadline - SYSTEM_CLOCK.now()) > 0:
            SYSTEM_CLOCK.sleep(min(left_s, LOOK_S))
            check()
