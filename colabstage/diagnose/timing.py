"""How long the batches of a loader take, alone or with a training step, by a few readings of the clock for each."""

from __future__ import annotations

import math
import sys
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colabstage.diagnose.loaders import batch_size_of, end_iterator
from colabstage.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.io.progress import Clock

LEAST_BATCHES = 3
# In epochs of one or two batches most are an epoch's first, which do not count, so epochs are limited too.
_MOST_EPOCHS = 20
# How many batches are examined to find a full one: an epoch's last one may have fewer samples.
_EXAMINED = 16


class Feed:
    """Batches of consecutive epochs; `first` tells whether the last one was its epoch's first."""

    def __init__(self, start: Callable[[], Iterator[Any]], clock: Clock, *, once: bool = False) -> None:
        self.first = False
        self.first_s = array("d")
        """How long each epoch took to its first batch."""
        self.now = clock.now
        self._start, self._once = start, once
        self._iterator: Iterator[Any] | None = None

    def take(self) -> Any:
        """Return the next batch."""
        if self._iterator is not None:
            try:
                batch = next(self._iterator)
            except StopIteration:
                self.close()
                if self._once:
                    raise
            else:
                self.first = False
                return batch
        began = self.now()
        self._iterator = self._start()
        batch = next(self._iterator)
        self.first = True
        self.first_s.append(self.now() - began)
        return batch

    def close(self) -> None:
        """End the running epoch and its workers."""
        iterator, self._iterator = self._iterator, None
        if not self._once:
            end_iterator(iterator)


def time_alone(feed: Feed, seconds: float) -> tuple[float, Any]:
    """Take batches without using them; return the mean time of those that were not an epoch's first, and a full one."""
    gaps, whole, most, taken = array("d"), None, -1, 0
    deadline = feed.now() + seconds
    while len(gaps) < LEAST_BATCHES or feed.now() < deadline:
        began = feed.now()
        try:
            batch = feed.take()
        except StopIteration:
            break
        taken += 1
        if not feed.first:
            gaps.append(feed.now() - began)
        elif taken > 1 and feed.now() > deadline:
            break  # epochs of one or two batches
        # Between two measurements. The other batches are released, because their memory may be reused.
        if taken <= _EXAMINED and (samples := batch_size_of(batch)[0]) > most:
            whole, most = batch, samples
        del batch
    if not taken:
        msg = "The loader has no batches, so there is nothing to measure. Check its dataset and its sampler."
        raise OptionError(msg)
    # If an epoch is one batch, all are first ones; the very first also opened files and started threads.
    kept = gaps or feed.first_s[1:] or feed.first_s
    return sum(kept) / len(kept), whole


@dataclass(frozen=True, slots=True)
class Shares:
    """The mean seconds from batch to batch in a loop."""

    wait_s: float
    """Waiting for the next batch."""
    busy_s: float
    """In the step."""
    gave_up: bool = False

    @property
    def both_s(self) -> float:
        """Return their sum."""
        return self.wait_s + self.busy_s


def time_loop(
    feed: Feed,
    step: Callable[[Any], object],
    seconds: float,
    *,
    ahead: int,
    with_starts: bool,
    give_up_s: float = math.inf,
) -> Shares:
    """Take batches and do the step with each, as a training loop does, until the mean exceeds `give_up_s`.

    `ahead` batches were prepared in advance, and do not count if enough others are left. `with_starts`: whether the
    first batch of an epoch counts, for which a loader may have to start threads or processes.
    """
    waits, busy = array("d"), array("d")
    firsts, now, began = 0, feed.now, feed.now()
    gave_up = False
    while not gave_up and (len(busy) < LEAST_BATCHES or now() - began < seconds):
        asked = now()
        try:
            batch = feed.take()
        except StopIteration:
            break
        given = now()
        step(batch)
        done = now()
        del batch
        firsts += feed.first
        if not feed.first or with_starts:
            waits.append(given - asked)
            busy.append(done - given)
        # Not at once: the first batches may have waited for threads to start.
        fair = len(busy) > LEAST_BATCHES and done - began > seconds / 4
        gave_up = fair and sum(waits) + sum(busy) > give_up_s * len(busy)
        if firsts > _MOST_EPOCHS and done - began > seconds:
            break
    synchronise()
    first = ahead if len(busy) > 3 * ahead else len(busy) // 3
    wait_s, busy_s = (sum(some[first:]) / max(1, len(some) - first) for some in (waits, busy))
    return Shares(wait_s, busy_s, gave_up)


def time_step(step: Callable[[Any], object], batch: Any, seconds: float, clock: Clock) -> float:
    """Return the mean seconds of the step, done with one batch again and again."""
    # CUDA returns before the work is done; without waiting here, an earlier queue would be measured.
    synchronise()
    count, began = 0, clock.now()
    while count < LEAST_BATCHES or clock.now() - began < seconds:
        step(batch)
        count += 1
    synchronise()
    return (clock.now() - began) / count


def synchronise() -> None:
    """Wait until the GPU has done what was queued."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
