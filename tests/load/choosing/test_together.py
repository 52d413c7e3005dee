"""How many small batches are gathered at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colabstage.load.arrival import ArrivalFacts
from colabstage.load.choosing import batches_together, choose_loader, prefetch_of_small
from colabstage.load.plan import LoaderFacts, LoaderRequest
from colabstage.load.reading.engines import EngineChoice

DIGITS = LoaderFacts(
    rows=60_000,
    row_bytes=784,
    stored_bytes=47_040_000,
    engine=EngineChoice("mapped", "a test"),
    encoded=False,
    per_sample=False,
    cores=2,
    free_memory_bytes=8_000_000_000,
)


@pytest.mark.parametrize(
    ("prefetch", "batch_bytes", "together"),
    [(64, 32_768, 32), (999, 1_000, 128), (3, 1_000, 1), (10, 1_000, 5), (64, 500_000, 16), (64, 5_000_000, 1)],
)
def test_a_group_is_half_of_what_may_be_ahead_and_small(prefetch: int, batch_bytes: int, together: int) -> None:
    """Groups hold 8 MiB, 128 batches, or half of the batches that may wait, whichever is least."""
    assert batches_together(prefetch, batch_bytes) == together
    assert together * batch_bytes <= 8 * 1024 * 1024 or together == 1


def test_empty_rows_are_small() -> None:
    """Batches without bytes are no division by zero."""
    assert prefetch_of_small(0, copied=True) == 256


def test_small_batches_are_planned_together() -> None:
    """The plan of small batches prepares two groups ahead and says so; what was asked for stays."""
    plan = choose_loader(DIGITS, LoaderRequest(64))
    assert plan.prefetch.value == 256
    assert "128 at a time" in plan.prefetch.reason
    assert plan.together == 128
    asked = choose_loader(DIGITS, LoaderRequest(64, prefetch_factor=2))
    assert (asked.prefetch.value, asked.together) == (2, 1)


def test_groups_of_rows_that_are_decoded_are_smaller() -> None:
    """The first batch waits for its whole group, which takes long where each row does."""
    decoded = replace(DIGITS, engine=EngineChoice("chunks", "a test"))
    assert choose_loader(decoded, LoaderRequest(64)).prefetch.value == 64


@pytest.mark.parametrize(
    "facts",
    [
        replace(DIGITS, encoded=True),
        replace(DIGITS, per_sample=True),
        replace(DIGITS, uniform=False),
        replace(DIGITS, arrival=ArrivalFacts(complete=False, window_units=4, reason="a test")),
    ],
    ids=["encoded", "per sample", "ragged", "arriving"],
)
def test_rows_that_cannot_be_gathered_are_not_planned_together(facts: LoaderFacts) -> None:
    """Decoded, transformed, ragged and arriving rows come batch by batch, however many are asked for beforehand."""
    assert choose_loader(facts, LoaderRequest(64, shuffle=False)).prefetch.value == 2
    assert choose_loader(facts, LoaderRequest(64, shuffle=False, prefetch_factor=64)).together == 1
    assert choose_loader(DIGITS, LoaderRequest(64, shuffle=False, prefetch_factor=64)).together == 32


def test_memory_given_to_a_window_is_not_taken_by_waiting_batches() -> None:
    """Of the memory asked for at most a quarter is for batches that wait."""
    request = LoaderRequest(64, strategy="direct", shuffle="window", memory_budget=2_000_000)
    plan = choose_loader(DIGITS, request)
    assert plan.prefetch.value * 64 * 784 <= 500_000
    assert plan.order.window_rows * 2 * 784 + plan.prefetch.value * 64 * 784 <= 2_000_000
