"""Which epoch and batch a request means, of those who ask for batches by number and do not say when an epoch ends."""

from __future__ import annotations

# Before training Keras takes a batch or two, to see what they look like, and its prefetching two or three more.
_LOOK_BATCHES = 4


class Passes:
    """Tells passes over the data apart.

    A pass begins with the first request after `begin`, or with a batch that was handed out already. It is the next
    epoch, unless the one before was no more than a look: at most 4 batches, and not all; then the same epoch begins
    again. Not safe in threads: the caller locks.

    Attributes:
        epoch: the one that requests are of.
    """

    def __init__(self, batches: int, *, by_turn: bool) -> None:
        """`batches`: in an epoch. `by_turn`: the first request of a pass means batch 0, the second batch 1, and so on,
        whatever number is asked for: samples are shuffled anyway, and who shuffles the numbers too would otherwise
        leave nothing to read ahead."""
        self._batches = batches
        self._by_turn = by_turn
        self._asked: set[int] = set()
        self._begins = False
        self.epoch = 0

    def begin(self) -> None:
        """Say that the next request begins a pass."""
        self._begins = True

    def start_epoch(self, epoch: int) -> None:
        """Make the next request the first of this epoch."""
        self.epoch = epoch
        self._asked.clear()

    def request(self, number: int) -> tuple[int, int]:
        """The epoch and the batch that a request for batch `number` means."""
        if self._begins or number in self._asked:
            self._begin_pass()
        turn = len(self._asked)
        self._asked.add(number)
        return self.epoch, turn if self._by_turn else number

    def _begin_pass(self) -> None:
        self._begins = False
        done = len(self._asked)
        self.epoch += done == self._batches or done > _LOOK_BATCHES
        self._asked.clear()
