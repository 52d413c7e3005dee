"""What shapes a pack, in one frozen value that travels inside and goes into the file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from colabstage.errors import OptionError
from colabstage.h5.info import image_options_to_json
from colabstage.h5.names import FORMAT_VERSION, check_split_name
from colabstage.images.options import ImageOptions
from colabstage.pack.code import describe_callable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from colabstage.layouts.detect import LayoutFunction

Encoding = Literal["auto", "pixels", "encoded"]
OnError = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True)
class PackOptions:
    """How samples become one file.

    `layout`: name of the layout, `"auto"` to find out; or a function that makes the table of samples of a tree.
    `image`: size, colour and resizing of every image.
    `encoding`: `"pixels"` stores decoded arrays, `"encoded"` the files' own bytes, `"auto"` decides by what fits.
    `splits`: `(name, fraction)` pairs, `None` to take the splits as found.
    `seed`: of the assignment to splits and of the row order of `train`.
    `on_error`: what a sample that cannot be decoded does: `"raise"` stops, `"skip"` leaves it out and reports it.
    """

    layout: str | LayoutFunction = "auto"
    image: ImageOptions = field(default_factory=ImageOptions)
    encoding: Encoding = "auto"
    splits: tuple[tuple[str, float], ...] | None = None
    seed: int = 0
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        # Here, because options are also made where nothing is packed and numpy is not wanted: the command line's help.
        from colabstage.layouts.detect import check_layout_name

        if isinstance(self.layout, str):
            check_layout_name(self.layout)
        if self.encoding not in get_args(Encoding):
            msg = f"encoding={self.encoding!r} is unknown; expected one of {', '.join(get_args(Encoding))}."
            raise OptionError(msg)
        if self.on_error not in get_args(OnError):
            msg = f"on_error={self.on_error!r} is unknown; expected one of {', '.join(get_args(OnError))}."
            raise OptionError(msg)
        if self.splits is not None:
            _check_fractions(self.splits)

    def to_json(self) -> dict[str, Any]:
        """All that shapes the samples in the file, as JSON values, as the file keeps it."""
        return {
            "layout": self.layout if isinstance(self.layout, str) else describe_callable(self.layout),
            "image": image_options_to_json(self.image),
            "encoding": self.encoding,
            "splits": None if self.splits is None else dict(self.splits),
            "seed": self.seed,
        }

    def fingerprint(self) -> str:
        """16 hexadecimal digits that differ whenever the file made would differ."""
        return _digest([FORMAT_VERSION, self.to_json(), self.on_error])

    def places_fingerprint(self) -> str:
        """16 hexadecimal digits that differ whenever what is written of some sample, or where, would differ."""
        return _digest([FORMAT_VERSION, self.to_json()])


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def split_fractions(splits: Mapping[str, float] | None) -> tuple[tuple[str, float], ...] | None:
    """Turn the public `splits=` argument into the option's form."""
    return None if splits is None else tuple((str(name), float(fraction)) for name, fraction in splits.items())


def _check_fractions(splits: tuple[tuple[str, float], ...]) -> None:
    for name, fraction in splits:
        check_split_name(name)
        if not 0 < fraction <= 1:
            msg = f"splits gives '{name}' the fraction {fraction}; expected a number above 0 and up to 1."
            raise OptionError(msg)
    total = sum(fraction for _, fraction in splits)
    if not splits or abs(total - 1) > 1e-6:
        msg = f"The fractions in splits add up to {total:.6g}; expected 1, as in {{'train': 0.8, 'test': 0.2}}."
        raise OptionError(msg)
