"""How many small batches are gathered at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colabstage.load.arrival import ArrivalFacts
from colabstage.load.choosing import choose_loader, prefetch_of_small
from colabstage.load.epoch import Shard
from colabstage.load.plan import LoaderFacts, LoaderRequest
from colabstage.load.reading.fields import EngineChoice

DIGITS = LoaderFacts(
    rows=60_000,
    row_bytes=784,
    stored_bytes=47_040_000,
    engine=EngineChoice("mapped", "a test"),
    encoded=False,
    per_sample=False,
    cores=2,
    free_memory_bytes=8_000_000_000,
    shard=Shard(),
)


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
    decoded = replace(DIGITS, engine=EngineChoice("h5py", "a test"), stored_bytes=10**12)
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


def test_a_budget_for_decoded_images_leaves_groups_as_they_are() -> None:
    """Pixels are not decoded, so a budget of none changes nothing."""
    assert choose_loader(DIGITS, LoaderRequest(64, memory_budget=0)).together == 128
