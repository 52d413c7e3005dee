"""Deciding in which order an epoch visits rows, and how large the windows of a window shuffle are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.errors import OptionError
from colabstage.load.choosing.choices import OrderChoice
from colabstage.load.reading.memory import spare_memory
from colabstage.units import format_bytes

if TYPE_CHECKING:
    from colabstage.load.choosing.choices import LoaderFacts, LoaderRequest

# A disk reads blocks of this size in any order as fast as in theirs: 768 KiB gave 500 to 600 MB/s where sequential
# reading gave the same.
_BLOCK_BYTES = 4 * 1024 * 1024
# With fewer blocks a window would mix too little.
_BLOCKS = 16
# Taken unasked: this part of the memory to spare, but no more than this. A power of two, so that a run resumed on
# another day, with a little more or less memory free, has the same windows.
_MEMORY_PART = 4
_MOST_BYTES = 2**31
# The same for each of several ranks, and the batches ahead that are reckoned with: those of one loader in the mean.
_RANKS_BYTES = 2**28
_RANKS_PREFETCH = 2


def choose_order(facts: LoaderFacts, request: LoaderRequest, strategy: str, prefetch: int) -> OrderChoice:
    """Decide in which order rows are visited.

    Ranks share out one order, and each of them decides here alone. So where there are several, only what is the same on
    all of them decides: neither the memory that is free, nor what is read from memory, nor what follows from those.

    Raises:
        OptionError: a window shuffle that cannot be: with a sampler, or with too little memory.
    """
    if request.shuffle == "window":
        if request.sampling or facts.epoch_rows is not None:
            msg = 'shuffle="window" visits all rows; it cannot go with sampler=. Leave out one of them.'
            raise OptionError(msg)
        return _window(facts, request, prefetch, "as asked")
    if request.sampling:
        return OrderChoice("sampler", "the sampler decides")
    if not request.shuffle:
        return OrderChoice("file", "not shuffled")
    if request.shuffle is True or facts.epoch_rows is not None:
        return OrderChoice("permutation", "every order is as likely as any other")
    return _by_cost(facts, request, strategy, prefetch)


def _by_cost(facts: LoaderFacts, request: LoaderRequest, strategy: str, prefetch: int) -> OrderChoice:
    """A permutation where rows come as fast in any order, and a window where they do not and it is fair."""
    if facts.shard.world_size > 1:
        why = 'ranks must come to one order, whatever memory each has; shuffle="window" on all is for files beyond it'
        return OrderChoice("permutation", why)
    if facts.engine.name != "read" or strategy != "direct":
        return OrderChoice("permutation", "rows come as fast in any order from where they are read")
    cold = "the file is not in memory and does not fit there"
    if not facts.random_rows:
        why = f'although {cold}: its own rows may be in no random order; shuffle="window" is faster where they are'
        return OrderChoice("permutation", why)
    try:
        return _window(facts, request, prefetch, f"{cold}, and its own rows are in random order")
    except OptionError:
        if request.memory_budget is not None:
            raise
        return OrderChoice("permutation", f"although {cold}: there is too little memory for a window")


def _window(facts: LoaderFacts, request: LoaderRequest, prefetch: int, reason: str) -> OrderChoice:
    row_bytes = max(1, facts.row_bytes + facts.target_bytes)
    budget = request.memory_budget
    if facts.shard.world_size > 1:
        budget = _RANKS_BYTES if budget is None else budget
        prefetch = request.prefetch if isinstance(request.prefetch, int) else _RANKS_PREFETCH
    elif budget is None:
        spare = spare_memory(facts.free_memory_bytes) // _MEMORY_PART
        budget = min(_MOST_BYTES, 1 << max(0, spare.bit_length() - 1))
    # Beside the two windows: batches that wait, one in the making, one with the consumer.
    waiting = (prefetch + 2) * request.batch_size * row_bytes
    fitting = (budget - waiting) // 2 // row_bytes // request.batch_size
    if fitting < 1:
        least = waiting + 2 * request.batch_size * row_bytes
        msg = (
            f"memory_budget={format_bytes(budget)} is too little for a window shuffle in batches of "
            f"{request.batch_size}, which needs {format_bytes(least)} at the least. Give more, or use smaller batches."
        )
        raise OptionError(msg)
    # Whole batches: none then waits for two windows. No larger than the file either.
    window_rows = request.batch_size * min(fitting, -(-max(1, facts.rows) // request.batch_size))
    block_rows = max(1, min(_BLOCK_BYTES // row_bytes, window_rows // _BLOCKS))
    size = f"windows of {window_rows:,} rows ({format_bytes(window_rows * row_bytes)}), blocks of {block_rows:,}"
    return OrderChoice("window", f"{reason}; {size}", window_rows, block_rows)
