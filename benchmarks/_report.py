"""What benchmarks share: contenders by turns, a table of their rates, and promises with a verdict."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    # Of each contender, a figure for each round.
    Rates = dict[str, list[float]]


class Promise(NamedTuple):
    """A figure and what is promised of it; `words`: "at least", "more than", "at most" or "less than"."""

    what: str
    value: float
    words: str
    limit: float
    digits: int = 2

    @property
    def holds(self) -> bool:
        """Tell whether it is kept."""
        if self.words in ("at least", "more than"):
            return self.value > self.limit or (self.value == self.limit and self.words == "at least")
        return self.value < self.limit or (self.value == self.limit and self.words == "at most")

    def __str__(self) -> str:
        return f"{self.what}: {against(self.value, self.limit, self.words, self.digits)}"


def judge(promises: Iterable[Promise]) -> int:
    """Print each promise and whether it is kept; return the exit code, 1 if one is not."""
    print()
    good = True
    for one in promises:
        good &= one.holds
        print(f"{'ok  ' if one.holds else 'MISS'}  {one}", flush=True)
    return int(not good)


def by_turns(contenders: Mapping[str, Callable[[], float | None]], rounds: int, *, uncounted: int = 1) -> Rates:
    """Run all contenders round after round, another one first in each; return the figure of each in each round.

    One that returns `None` cannot run, and is left out. The first `uncounted` rounds have imports and cold caches.
    """
    rates: Rates = {name: [] for name in contenders}
    for number in range(rounds + uncounted):
        names = list(rates)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            rate = contenders[name]()
            if rate is None:
                del rates[name]
            elif number >= uncounted:
                rates[name].append(rate)
    return rates


def show_rates(unit: str, rates: Rates, *, base: str = "", column: str = "", title: str = "") -> None:
    """Print a table; beside it, with `column` above, how many times as fast each is as `base`."""
    print(f"\n{f'{title}, ' if title else ''}{unit:46}{'median':>14}{'lowest':>14}{'highest':>14}{column:>14}")
    for name, values in rates.items():
        ratio = f"{median_ratio(values, rates[base]):14.2f}" if base else ""
        figures = "".join(f"{figure:14,.0f}" for figure in (statistics.median(values), min(values), max(values)))
        print(f"{name:46}{figures}{ratio}", flush=True)


def median_ratio(values: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios within a round, which a machine that slows down for a while disturbs least."""
    return statistics.median(value / other for value, other in zip(values, base, strict=True))


def against(value: float, limit: float, words: str, digits: int = 2) -> str:
    """Write a figure and, in brackets, what is promised of it: `1.20 (at least 1)`.

    With `digits` digits after the point, or as many more as it takes that the two figures printed show which is larger.
    """
    while True:
        shown = f"{value:.{digits}f}"
        promised = f"{limit:g}" if float(f"{limit:g}") == limit else f"{limit:.{digits}f}"
        ahead, behind = float(shown) > float(promised), float(shown) < float(promised)
        # Floats that differ do so in one of their digits, so this ends.
        if (ahead, behind) == (value > limit, value < limit):
            return f"{shown} ({words} {promised})"
        digits += 1
