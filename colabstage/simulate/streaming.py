"""Forecast the time of training on arriving data: a pure function of figures, for sizes that cannot be tested.

The model is that of `load.arrival`: units arrive in a seeded order over several connections, are decoded, and are
trained on within the following window. A bounded disk holds a number of units: the next one is fetched when a unit that
makes room has been trained on, and units that remain at an epoch's end are not fetched again. The model ignores that
rates vary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from colabstage.errors import OptionError
from colabstage.io.units import format_bytes, format_duration
from colabstage.load.arrival import unit_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """The figures for a forecast."""

    samples: int
    """Number of samples."""
    sample_bytes: float
    """Bytes of one sample, as fetched."""
    network_bytes_per_s: float
    """Bytes per second of all connections together."""
    latency_s: float
    """Seconds between a request and its first byte."""
    step_s: float
    """Seconds of one training step, for one batch."""
    batch_size: int = 64
    """Samples in a batch."""
    unit_bytes: float = 8 * 2**20
    """Bytes fetched by one request."""
    window_units: int = 16
    """Units within whose rows a row is shuffled."""
    first_units: int = 1
    """Units that the first batch waits for."""
    connections: int = 8
    """Requests in flight at once."""
    connection_bytes_per_s: float | None = None
    """Bytes per second of one connection; `None` if it is not the limit."""
    opening_s: float = 0.0
    """Seconds before the first unit is requested: listing, headers, planning."""
    decode_samples_per_s: float | None = None
    """Samples per second that all cores decode; `None` if nothing is decoded."""
    disk_bytes: float | None = None
    """Bytes that may be local at once; `None` for no limit."""

    @property
    def units(self) -> int:
        """Return how many units there are."""
        return max(1, -(-round(self.samples * self.sample_bytes) // round(self.unit_bytes)))

    @property
    def held_units(self) -> int:
        """Return how many units may be local at once."""
        return self.units if self.disk_bytes is None else min(self.units, int(self.disk_bytes // self.unit_bytes))


@dataclass(frozen=True, slots=True)
class EpochForecast:
    """The forecast for one epoch."""

    seconds: float
    """Seconds from its beginning to its last step."""
    fetched_bytes: float
    """Bytes fetched over the network."""
    bound_s: float
    """Seconds of the longest of fetching, decoding and training: no order of work takes less."""

    @property
    def ratio(self) -> float:
        """Return how much longer it takes than the longest of its parts."""
        return self.seconds / self.bound_s


@dataclass(frozen=True, slots=True)
class StreamForecast:
    """The forecast for training on arriving data."""

    first_batch_s: float
    """Seconds from the call to the first batch."""
    epochs: tuple[EpochForecast, ...]
    """The first epoch, including the time before it, and the later ones."""
    peak_disk_bytes: float
    """The maximum of local bytes."""
    mixing: float
    """How even the classes of a batch are if each unit is a class of its own, as in `load.arrival.mixing_of`; higher
    for a source with fewer classes."""

    def __str__(self) -> str:
        lines = [f"first batch after {format_duration(self.first_batch_s)}, mixing {self.mixing:.2f}"]
        for number, epoch in enumerate(self.epochs, 1):
            took, least = format_duration(epoch.seconds), format_duration(epoch.bound_s)
            fetched = format_bytes(round(epoch.fetched_bytes))
            lines.append(f"epoch {number}: {took}, {epoch.ratio:.2f} times the least ({least}); {fetched} fetched")
        lines.append(f"disk at the peak: {format_bytes(round(self.peak_disk_bytes))}")
        return "\n".join(lines)


def forecast_stream(facts: StreamFacts, *, epochs: int = 2) -> StreamForecast:
    """Forecast training on arriving data.

    Raises:
        OptionError: the disk cannot hold a window and the unit after it.
    """
    units, held = facts.units, facts.held_units
    window = min(facts.window_units, units)
    if held < min(units, window + 1):
        msg = (
            f"disk_bytes={facts.disk_bytes!r} holds {held} units of {format_bytes(round(facts.unit_bytes))}; expected "
            f"at least {window + 1}: a window, and the unit that comes after it."
        )
        raise OptionError(msg)
    # Two windows are in use at an epoch's end; the rest may stay for the next epoch, which begins with the local units.
    kept = units if held == units else max(0, held - 2 * window)
    first = _Line(facts, window).run(facts.opening_s, 0)
    found, begins = [_epoch(facts, first, 0.0, 0)], first.trained_s
    for _ in range(1, epochs):
        line = _Line(facts, window).run(begins, kept)
        found.append(_epoch(facts, line, begins, kept))
        begins = line.trained_s
    return StreamForecast(
        first.first_batch_s, tuple(found), min(held, units) * facts.unit_bytes, expected_mixing(facts, window)
    )


def _epoch(facts: StreamFacts, line: _Line, began_s: float, kept: int) -> EpochForecast:
    fetched = max(0.0, facts.samples * facts.sample_bytes - kept * facts.unit_bytes)
    decode = 0.0 if facts.decode_samples_per_s is None else facts.samples / facts.decode_samples_per_s
    train = -(-facts.samples // facts.batch_size) * facts.step_s
    # If everything is local, decoded data is kept; refetched data is decoded again.
    bound = max(fetched / facts.network_bytes_per_s, decode if fetched else 0.0, train)
    return EpochForecast(line.trained_s - began_s, fetched, bound)


class _Line:
    """One epoch, unit after unit."""

    def __init__(self, facts: StreamFacts, window: int) -> None:
        self._facts = facts
        self._begins, self._widths = unit_windows(facts.units, window, facts.first_units)
        self.first_batch_s = self.trained_s = 0.0

    def run(self, begins_s: float, kept: int) -> _Line:
        """Simulate the epoch, whose first `kept` units are local."""
        facts = self._facts
        alone = facts.network_bytes_per_s if facts.connection_bytes_per_s is None else facts.connection_bytes_per_s
        one_s = facts.latency_s + facts.unit_bytes / min(alone, facts.network_bytes_per_s)
        # Requests in flight hide each other's latency, up to the network's rate.
        gap_s = max(facts.unit_bytes / facts.network_bytes_per_s, one_s / facts.connections)
        rows = facts.samples / facts.units
        decode_s = 0.0 if facts.decode_samples_per_s is None else rows / facts.decode_samples_per_s
        shares = _sums(self._begins, self._widths, 1.0 / self._widths) * rows
        last_needed = np.searchsorted(self._begins, np.arange(len(shares)), side="right").tolist()
        ends = (self._begins + self._widths - 1).tolist()
        done_s: list[float] = []
        # One gap earlier, so that the first request leaves at the beginning.
        asked_s, decoded_s, trained_s, trained_on, unit = begins_s - gap_s, begins_s, begins_s, 0.0, 0
        for share, needed in zip(shares.tolist(), last_needed, strict=True):
            for unit in range(unit, needed):  # noqa: B020 - continues where it was
                if unit >= kept:
                    # A unit is requested once there is room: when the one that it replaces has been trained on.
                    freed_s = done_s[ends[unit - facts.held_units]] if unit >= facts.held_units else begins_s
                    asked_s = max(asked_s + gap_s, freed_s)
                    decoded_s = max(decoded_s, asked_s + one_s) + decode_s
            unit = needed
            ready_s = max(trained_s, decoded_s)
            trained_on += share
            if not self.first_batch_s and trained_on > min(facts.batch_size, facts.samples) - 1:
                self.first_batch_s = ready_s
            trained_s = ready_s + share * facts.step_s / facts.batch_size
            done_s.append(trained_s)
        self.trained_s = trained_s
        return self


def _sums(begins: NDArray[np.intp], widths: NDArray[np.intp], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of the values of all open windows, for each moment."""
    # Beginnings and ends are recorded at their moments and summed once, without a loop over windows.
    changes = np.zeros(int((begins + widths).max()) + 1)
    np.add.at(changes, begins, values)
    np.subtract.at(changes, begins + widths, values)
    return np.cumsum(changes)[:-1]


def expected_mixing(facts: StreamFacts, window: int) -> float:
    """Return what `StreamForecast.mixing` says: how evenly the rows of a unit are spread over its window, and how few
    windows are open, which both add to the variance."""
    begins, widths = unit_windows(facts.units, window, facts.first_units)
    share, square = (_sums(begins, widths, np.power(1.0 / widths, power, dtype=np.float64)) for power in (1, 2))
    # As if all open windows were equally long, so that a batch has equally many rows from each of these units.
    size, is_open = facts.batch_size, share**2 / square
    rows = size / is_open
    # Of the equal parts from each of which one row is drawn, a batch cuts off two at its ends, or is within one.
    spread = is_open * np.where(rows < 1, rows - rows**2 + rows**3 / 3, 1 / 3)
    found = spread + size**2 * (1 / is_open - 1 / facts.units)
    expected = size * (1 - 1 / facts.units)
    return float(1 / np.average(found / expected, weights=share))
