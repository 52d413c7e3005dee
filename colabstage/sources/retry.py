"""Read a remote file as a service gives it: again after a failure, for as long as the policy is patient."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

from colabstage.errors import SourceChangedError, SourceReadError, ended, said_by
from colabstage.io.files import translate_read_error
from colabstage.io.progress import SYSTEM_CLOCK
from colabstage.sources.remote import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.io.files import RetryPolicy
    from colabstage.io.progress import Cancellation, Clock
    from colabstage.sources.remote import RemoteFacts, RemoteFile

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
    attempts are used up. `is_patient`: whether to retry anyway, because the policy's `patience_s` are not over;
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

        Args:
            error: the failure. If it is one of slowness, the bytes that arrived do not count.
            arrived: how many bytes of the file have arrived on all connections.
            moved: whether this connection received some of them since its last failure.
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

    def rest(
        self,
        error: TransientError,
        label: str,
        *,
        arrived: int,
        sleep: Callable[[float], object],
        tell: Callable[[str], object],
    ) -> None:
        """Count a failure as `count` does, `tell` what it waits for, and `sleep` until the next try: for a single
        reader. At most a minute, because longer would look like hanging.

        Raises:
            OSError: as `final_error`: tries and patience are used up.
        """
        wait_s = self.count(error, arrived=arrived)
        if self.is_spent and not self.is_patient:
            raise final_error(error, label, self.tries) from error
        tell(self.waits_for)
        sleep(min(wait_s, _LONGEST_ASKED_WAIT_S))


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
    """Return the error for readers that wait for bytes of a stopped copy."""
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


def read_directly(
    source: RemoteFile,
    offset: int,
    length: int,
    *,
    policy: RetryPolicy,
    stopped: Callable[[], bool] = lambda: False,
    clock: Clock = SYSTEM_CLOCK,
    tell: Callable[[str], object] = lambda _: None,
) -> bytes:
    """Return a part of a source that gives ranges, with a separate request, as `read_through` reads all of one."""

    def check() -> None:
        if stopped():
            raise stopped_error(source.facts.label)

    def sleep(seconds: float) -> None:
        deadline = clock.now() + seconds
        while (left_s := deadline - clock.now()) > 0 and not stopped():
            clock.sleep(min(left_s, LOOK_S))

    # Its buffer becomes the result without a copy.
    data = io.BytesIO()
    for piece in _pieces(source, offset, length, RetryBudget(policy, clock), sleep=sleep, check=check, tell=tell):
        data.write(piece)
    return data.getvalue()


def read_through(
    source: RemoteFile,
    *,
    policy: RetryPolicy,
    cancellation: Cancellation | None = None,
    clock: Clock = SYSTEM_CLOCK,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[bytes]:
    """Yield all of a source in one pass; the retry budget starts over with every byte. If the policy is patient, `tell`
    is called with what it waits for.

    If it breaks off, a source without ranges sends the received bytes again. They are compared by their hash, so that
    they need not be kept, and skipped; another content is a `SourceChangedError`.
    """
    sleep, check = (clock.sleep, lambda: None) if cancellation is None else (cancellation.sleep, cancellation.check)
    budget = RetryBudget(policy, clock)
    return _pieces(source, 0, source.facts.size, budget, sleep=sleep, check=check, tell=tell)


def _pieces(
    source: RemoteFile,
    offset: int,
    length: int | None,
    budget: RetryBudget,
    *,
    sleep: Callable[[float], object],
    check: Callable[[], object],
    tell: Callable[[str], object],
) -> Iterator[bytes]:
    import xxhash

    facts, done, seen = source.facts, 0, xxhash.xxh3_64()
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
        budget.rest(failure, facts.label, arrived=done, sleep=sleep, tell=tell)
        check()
