"""A file whose length nobody says: one stream to its end, hashed as it passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.errors import SourceChangedError
from colabstage.fetch.remote import PassingError
from colabstage.fetch.transfer.block_hashes import BlockHashes
from colabstage.fetch.transfer.connections import TryBudget, closing_pieces, final_error, sleep_unless

if TYPE_CHECKING:
    from colabstage.fetch.checksum import Hasher
    from colabstage.fetch.remote import RemoteFile
    from colabstage.fetch.transfer.partial import Partial
    from colabstage.progress import Cancellation, ProgressStep
    from colabstage.retry import RetryPolicy


class Stream:
    """One such file on its way into a `Partial`. `nbytes`: how many are here. `digest`: by the source's checksum."""

    def __init__(self, source: RemoteFile, partial: Partial, *, step: ProgressStep, cancellation: Cancellation) -> None:
        checksum = source.facts.checksum
        self.nbytes = 0
        self._source = source
        self._partial = partial
        self._step = step
        self._cancellation = cancellation
        self._blocks = BlockHashes(None)
        self._done: list[str] = []
        self._whole: Hasher | None = None if checksum is None else checksum.new_hasher()

    @property
    def block_hashes(self) -> tuple[str, ...]:
        """Of each block of 8 MiB."""
        last = self._blocks.finish()
        return tuple(self._done) if last is None else (*self._done, last)

    @property
    def digest(self) -> str | None:
        """Of everything; `None` where the source has no checksum to compare it with."""
        return None if self._whole is None else self._whole.hexdigest()

    def run(self, policy: RetryPolicy) -> None:
        """Fetch all of it.

        Raises:
            CancelledError: the caller asked to stop.
            As `RemoteFile.read_range`, but no `PassingError`; as `Partial.write`.
        """
        budget = TryBudget()
        while True:
            try:
                return self._fetch()
            except PassingError as error:
                tries = budget.count(moved=False, arrived=self.nbytes, slow=error.slow)
                if tries >= policy.attempts:
                    raise final_error(error, self._source.facts.label, tries) from error
                wait_s = budget.wait_s(policy.first_wait_s) if error.wait_s is None else error.wait_s
                sleep_unless(lambda: self._cancellation.cancelled, wait_s)
                self._cancellation.check()

    def _fetch(self) -> None:
        offset = self.nbytes if self._source.facts.ranges else 0
        with closing_pieces(self._source.read_range(offset, None)) as pieces:
            for piece in pieces:
                self._cancellation.check()
                known = min(len(piece), self.nbytes - offset)
                if known and piece[:known] != self._partial.read(known, offset):
                    label = self._source.facts.label
                    msg = f"'{label}' became another file while it was read. Wait until it is complete, then try again."
                    raise SourceChangedError(msg)
                offset += len(piece)
                self._take_in(memoryview(piece)[known:])
        if offset < self.nbytes:
            msg = f"'{self._source.facts.label}' ended at byte {offset:,} where more had come before."
            raise PassingError(msg)

    def _take_in(self, data: memoryview) -> None:
        self._partial.write(data, self.nbytes)
        self._done += self._blocks.feed(data, self.nbytes).values()
        if self._whole is not None:
            self._whole.update(data)
        self.nbytes += len(data)
        self._step.advance(len(data))
