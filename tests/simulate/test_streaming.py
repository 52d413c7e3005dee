"""The forecast of training on data that arrives: what no order of work can beat, and what the orders here give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from colabstage.errors import OptionError
from colabstage.load.arrival import UnitOrder, mixing_of
from colabstage.load.epoch import Shard
from colabstage.simulate.streaming import StreamFacts, expected_mixing, forecast_stream

FACTS = StreamFacts(
    samples=200_000,
    sample_bytes=100_000,
    network_bytes_per_s=100e6,
    latency_s=0.4,
    step_s=0.064,
    opening_s=1.2,
    window_units=74,
)


def test_the_first_batch_waits_for_the_opening_and_a_unit_however_large_the_whole() -> None:
    found = [forecast_stream(replace(FACTS, samples=samples)).first_batch_s for samples in (2_000, 200_000, 2_000_000)]
    # A round trip and 8 MiB at the network's rate; 64 samples are in one unit.
    assert found == pytest.approx([1.2 + 0.4 + 0.084] * 3, abs=0.01)
    few = replace(FACTS, sample_bytes=1_000_000, samples=20_000)
    assert forecast_stream(few).first_batch_s > found[0]


def test_an_epoch_takes_hardly_longer_than_its_slowest_part() -> None:
    balanced = forecast_stream(FACTS).epochs
    assert 1 <= balanced[0].ratio < 1.05
    # Nothing is fetched again.
    assert balanced[1].fetched_bytes == 0
    assert balanced[1].ratio == pytest.approx(1)
    trains = forecast_stream(replace(FACTS, step_s=0.3)).epochs[0]
    assert 1 <= trains.ratio < 1.01
    decodes = forecast_stream(replace(FACTS, decode_samples_per_s=500)).epochs[0]
    assert decodes.bound_s == 400
    assert 1 <= decodes.ratio < 1.05
    # One connection at a time waits for each answer.
    alone = forecast_stream(replace(FACTS, connections=1)).epochs[0]
    assert alone.ratio > 5


def test_a_bounded_disk_is_never_over_and_fetches_what_it_cannot_keep() -> None:
    limited = replace(FACTS, window_units=16, disk_bytes=2e9)
    found = forecast_stream(limited)
    assert found.peak_disk_bytes <= 2e9
    kept = (int(2e9 // limited.unit_bytes) - 32) * limited.unit_bytes
    assert found.epochs[1].fetched_bytes == pytest.approx(20e9 - kept)
    assert found.epochs[1].ratio < 1.05
    with pytest.raises(OptionError, match=r"holds 11 units.*expected at least 17"):
        forecast_stream(replace(limited, disk_bytes=1e8))
    assert "disk at the peak: 2 GB" in str(found)


def test_mixing_is_that_of_the_order_itself() -> None:
    """The formula, and what is counted in orders that a loader visits, of a source each of whose units is a class."""
    units, rows, batch = 200, 20, 32
    facts = replace(FACTS, samples=units * rows, sample_bytes=1, unit_bytes=rows, batch_size=batch)
    of_rows = np.repeat(np.arange(units), rows)
    for window in (4, 16, 64):
        order = [UnitOrder(of_rows, window, seed).rows(0, Shard()) for seed in range(4)]
        expected = expected_mixing(facts, window)
        assert np.mean([mixing_of(of_rows[one], batch) for one in order]) == pytest.approx(expected, rel=0.25)
        # Units of one class come far from each other.
        assert np.mean([mixing_of(of_rows[one] // 10, batch) for one in order]) > expected
