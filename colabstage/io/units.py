"""Sizes, rates and times as people write them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from colabstage.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

# How many names of a list are shown, such as those of classes.
NAMES_SHOWN = 12
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_FACTORS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgtp", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgtp", start=1)},
}


def format_bytes(count: float) -> str:
    """Write a number of bytes with a decimal unit and three figures.

    >>> format_bytes(1_234_567)
    '1.23 MB'
    >>> format_bytes(999)
    '999 B'
    """
    value = float(count)
    for unit in _DECIMAL:
        if abs(value) < 999.5 or unit == _DECIMAL[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 99.95 else f"{value:.3g} {unit}"


def parse_bytes(text: str | int, name: str = "", *, may_be_zero: bool = False) -> int:
    """Read a size: a number of bytes, or a number with a decimal (kB, MB, …) or binary (KiB, MiB, …) unit.

    >>> parse_bytes("1.5 GB")
    1500000000
    """
    match = re.fullmatch(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*", str(text))
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        given = f"{name}={text!r}" if name else repr(text)
        msg = f"{given} is not a size. Write a number with a unit, for example '500 MB' or '1.5GiB'."
        raise OptionError(msg)
    # A float would lose the last bytes of a petabyte.
    count = round(Fraction(match[1]) * factor)
    if name and not count and not may_be_zero:
        # In other software 0 means "no limit"; here it would be divided by.
        msg = f"{name}={text!r} leaves no room at all. Leave it out, or write a number with a unit, as '500 MB'."
        raise OptionError(msg)
    return count


def parse_sides(text: str) -> tuple[int, int]:
    """Read a height and width in pixels as a face's field has them: `256x320`, `256,320`, or `256` for a square."""
    sides = text.lower().replace(",", "x").split("x")
    if len(sides) > 2 or not all(side.strip().isdecimal() for side in sides):
        msg = f"{text!r} is not a size. Write HEIGHTxWIDTH in pixels, for example 256x256."
        raise OptionError(msg)
    return int(sides[0]), int(sides[-1])


def parse_fractions(text: str) -> dict[str, float] | list[float] | float:
    """Read the fractions of splits as a face's field has them: `train=0.8,test=0.2`, `0.8,0.2`, or `0.8`."""
    pairs = [part.rpartition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in pairs]
    try:
        fractions = [float(fraction) for _, _, fraction in pairs]
    except ValueError:
        fractions = []
    if fractions and not any("=" in part for part in text.split(",")):
        return fractions if len(fractions) > 1 else fractions[0]
    if not fractions or not all(names) or len(set(names)) < len(names):
        msg = f"{text!r} gives no fractions. Write NAME=FRACTION,… with each name once: train=0.8,dev=0.1,test=0.1."
        raise OptionError(msg)
    return dict(zip(names, fractions, strict=True))


def format_duration(seconds: float) -> str:
    """Write a time span the way people say it.

    >>> [format_duration(t) for t in (0.000042, 0.0042, 0.5, 42.0, 192.0, 7260.0)]
    ['42.0 µs', '4.2 ms', '0.50 s', '42.0 s', '3 min 12 s', '2 h 1 min']
    """
    if 0 < seconds < 0.00009995:
        return f"{seconds * 1_000_000:.1f} µs"
    if seconds < 0.09995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def format_count(count: int, things: str) -> str:
    """Write how many there are of `things`, a regular plural.

    >>> format_count(1797, "files"), format_count(1, "files"), format_count(1, "batches")
    ('1,797 files', '1 file', '1 batch')
    """
    return f"{count:,} {_singular(things) if count == 1 else things}"


_OF_ONE = {"are": "is", "have": "has", "were": "was", "match": "matches"}


def counted(count: int, things: str, verb: str, *, of: int | None = None, which: str = "") -> str:
    """Write how many of `things` there are, and which, as a subject with its verb, which is given as of several.

    >>> counted(2, "boxes", "are"), counted(1, "images", "have", of=7, which="that were examined")
    ('2 boxes are', '1 of 7 images that were examined has')
    """
    subject = format_count(count, things) if of is None else f"{count:,} of {format_count(of, things)}"
    return f"{subject}{f' {which}' if which else ''} {_OF_ONE[verb] if count == 1 else verb}"


def left_out(count: int, things: str, which: str = "") -> str:
    """Write that some of `things` were left out, and which.

    >>> left_out(1, "images", "without a mask"), left_out(2, "clips")
    ('1 image without a mask was left out', '2 clips were left out')
    """
    return f"{counted(count, things, 'were', which=which)} left out"


def _singular(things: str) -> str:
    # "sizes" and "bytes" lose only the "s".
    return things.removesuffix("es" if things.endswith(("sses", "ches", "shes", "xes")) else "s")


def format_names(first: Sequence[str], count: int) -> str:
    """Write how many names there are, the first ones, and how many follow.

    >>> format_names(["cat", "dog"], 2), format_names(["cat", "dog"], 1000)
    ('2: cat, dog', '1,000: cat, dog and 998 more')
    """
    more = count - len(first)
    return f"{count:,}: {', '.join(first)}{f' and {more:,} more' if more else ''}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Write the first few names, each in quotes, and how many follow.

    >>> listed(["cat", "dog"]), listed(["cat", "dog", "owl"], 2)
    ("'cat', 'dog'", "'cat', 'dog' and 1 more")
    """
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def format_rate(amount: float, seconds: float, unit: str) -> str:
    """Write a rate: bytes with a scaled unit, other things with a noun.

    >>> format_rate(50_000_000, 2.0, "B")
    '25 MB/s'
    >>> format_rate(3000, 2.0, "images")
    '1,500 images/s'
    """
    rate = amount / seconds if seconds > 0 else 0.0
    if unit == "B":
        return f"{format_bytes(rate)}/s"
    return f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s"
