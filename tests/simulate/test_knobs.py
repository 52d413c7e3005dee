"""Knobs and faults as values: presets, scaling, validation, the trip to the client's process."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from colabstage.errors import OptionError
from colabstage.simulate.knobs import ContentFault, DriveFaults, DriveKnobs, ListingFault, OpFault


def test_scaling_multiplies_durations_and_divides_rates() -> None:
    """Half the time scale halves every wait: latencies shrink, rates grow, and limits stay."""
    scaled = DriveKnobs(time_scale=0.5).scaled()
    assert scaled.cold_open_latency_s == pytest.approx(0.2)
    assert scaled.listing_per_entry_s == pytest.approx(0.0005)
    assert scaled.stream_bytes_per_s == pytest.approx(100e6)
    assert scaled.visibility_s == pytest.approx(30.0)
    assert scaled.quota_bytes == DriveKnobs().quota_bytes
    assert scaled.time_scale == 1.0


def test_time_scale_zero_leaves_nothing_to_wait_for() -> None:
    """Without any time scale durations are zero and rates are infinite, except for a change that never shows."""
    scaled = dataclasses.replace(DriveKnobs.quick(), visibility_s=math.inf).scaled()
    assert scaled.cold_open_latency_s == 0
    assert scaled.listing_per_entry_s == 0
    assert math.isinf(scaled.upload_bytes_per_s)
    assert math.isinf(scaled.visibility_s)


@pytest.mark.parametrize(
    "changes",
    [{"cold_open_latency_s": -1.0}, {"stream_bytes_per_s": 0.0}, {"parallel_requests": 0}, {"block_bytes": 0}],
)
def test_impossible_knobs_are_refused_by_name(changes: dict[str, float]) -> None:
    """A value no Drive can have is an error that names the knob."""
    with pytest.raises(OptionError, match=next(iter(changes))):
        DriveKnobs(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("knobs", [DriveKnobs.quick(), DriveKnobs.good_day(), DriveKnobs()])
def test_knobs_survive_the_trip_to_the_client(knobs: DriveKnobs) -> None:
    """Knobs written as JSON and read again are the same, infinities included."""
    knobs = dataclasses.replace(knobs, visibility_s=math.inf)
    assert DriveKnobs(**json.loads(json.dumps(dataclasses.asdict(knobs)))) == knobs


def test_faults_survive_the_trip_to_the_client() -> None:
    """Faults written as JSON and read again are the same value."""
    faults = DriveFaults(
        ops=(OpFault(op="read", pattern="*.jpg", errno=107, first=2, per_file=True),),
        contents=(ContentFault(pattern="*.zip", kind="zero_tail", tail_bytes=10),),
        listings=(ListingFault(pattern="MyDrive/data", keep=0.25),),
        drop_uploads=("*.h5",),
        stall_uploads=True,
    )
    assert DriveFaults.from_json(json.loads(json.dumps(dataclasses.asdict(faults)))) == faults
