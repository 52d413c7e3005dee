"""What shapes a pack, in one frozen value that travels inside and goes into the file."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from colabstage.errors import OptionError, SourceChangedError
from colabstage.h5.schema import FORMAT_VERSION, check_split_name
from colabstage.images.options import ImageOptions
from colabstage.pack.code import Description, code_digest, describe_callable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from colabstage.layouts.detect import LayoutFunction

# Grows when the same files with the same options come to mean other samples (labels, classes, masks, order), so that
# what was packed under older rules is never served as if it had been packed under these.
RULES_VERSION = 3

# Beside `"color_mode": "rgb"`, which is written for `"auto"` too: so the default's options, and with them its keys, are
# what they were before the two were told apart.
_ASKED = "color_mode_asked"

Encoding = Literal["auto", "pixels", "encoded"]
OnError = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True)
class PackOptions:
    """Say how samples become one file."""

    layout: str | LayoutFunction = "auto"
    """Name of the layout, `"auto"` to find out; or a function that makes the table of samples of a tree."""
    image: ImageOptions = field(default_factory=ImageOptions)
    """Size, colour and resizing of every image."""
    encoding: str = "auto"
    """`"pixels"` stores decoded arrays, `"encoded"` the files' own bytes, `"jpeg:Q"` JPEGs of quality Q made of the
    resized images, `"auto"` decides by what fits.
    """
    splits: tuple[tuple[str, float], ...] | None = None
    """`(name, fraction)` pairs, `None` to take the splits as found."""
    group_by: str | None = None
    """A regular expression that is searched in each sample's key; samples for which it finds the same never end in two
    splits. `None` for the groups that the layout knows, where it does.
    """
    prepare: Callable[[NDArray[Any]], NDArray[Any]] | None = None
    """Called with each decoded x, in several threads; returns the array to store, of one shape for all."""
    seed: int = 0
    """Of the assignment to splits and of the row order of `train`."""
    on_error: str = "raise"
    """What a sample that cannot be decoded does: `"raise"` stops, `"skip"` leaves it out and reports it, `"skip:1%"`
    does so until more than that part of all samples is out.
    """
    # Stands in for what cannot be compared: no other options have it, but those that travel to a worker.
    once: str = field(default_factory=lambda: secrets.token_hex(8), repr=False, compare=False)
    """Stands in for what cannot be compared: no other options have it, but those that travel to a worker."""
    # What `layout` and `prepare` are, looked at once: what they hold may change while they work, and a worker must not
    # take its own look for another function.
    functions: tuple[Description | None, Description | None] = field(init=False, repr=False, compare=False)
    """What `layout` and `prepare` are, looked at once: what they hold may change while they work, and a worker must not
    take its own look for another function.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "functions", tuple(_described(one) for one in (self.layout, self.prepare)))
        # Here, because options are also made where nothing is packed and numpy is not wanted: the command line's help.
        from colabstage.layouts.detect import check_layout_name

        if isinstance(self.layout, str):
            check_layout_name(self.layout)
        if self.encoding not in get_args(Encoding) and self.jpeg_quality is None:
            known = ", ".join(get_args(Encoding))
            msg = f"encoding={self.encoding!r} is unknown; expected one of {known}, or jpeg:Q with Q from 1 to 100."
            raise OptionError(msg)
        if self.on_error != "raise" and self.skip_share is None:
            known = ", ".join(get_args(OnError))
            msg = f"on_error={self.on_error!r} is unknown; expected one of {known}, or a limit such as 'skip:1%'."
            raise OptionError(msg)
        if self.group_by is not None:
            _check_pattern(self.group_by)
        if self.splits is not None:
            _check_fractions(self.splits)

    @property
    def jpeg_quality(self) -> int | None:
        """Return the Q of `encoding="jpeg:Q"`, 1 to 100; `None` for other encodings."""
        found = re.fullmatch(r"jpeg:(\d{1,3})", self.encoding)
        return int(found[1]) if found and 1 <= int(found[1]) <= 100 else None

    @property
    def skip_share(self) -> float | None:
        """Return which part of all samples may be left out, 0 to 1; `None` where none may."""
        found = re.fullmatch(r"skip(?::(\d+(?:\.\d+)?)%)?", self.on_error)
        if found is None or (found[1] is not None and float(found[1]) > 100):
            return None
        return 1.0 if found[1] is None else float(found[1]) / 100

    def to_json(self) -> dict[str, Any]:
        """Return all that shapes the samples in the file, as JSON values, as the file keeps it."""
        return self._to_json(self.once)

    @property
    def incomparable(self) -> tuple[str, ...]:
        """Return the types of what the functions hold that cannot be compared; nothing made with such is made again."""
        return tuple(dict.fromkeys(name for one in self.functions if one for name in one.unknown))

    def check_code(self) -> None:
        """Refuse functions whose code here, in a worker, is not the code that the caller has.

        Raises:
            SourceChangedError: a module of the caller's has another version here.
        """
        for name, function, known in zip(
            ("layout", "prepare"), (self.layout, self.prepare), self.functions, strict=True
        ):
            if known is not None and code_digest(cast("Callable[..., Any]", function)) != known.code:
                msg = (
                    f"{name}={known.name} does something else on this worker than where the pack was planned. Give all "
                    "workers the same version of the module that it is in, and pack again."
                )
                raise SourceChangedError(msg)

    def _to_json(self, once: str) -> dict[str, Any]:
        # That imports numpy, and options are also made where only help is wanted.
        from colabstage.h5.info import image_options_to_json

        return {
            "layout": _named(self.functions[0], once) if self.functions[0] else self.layout,
            "image": image_options_to_json(self.image) | ({_ASKED: True} if self.image.color_mode == "rgb" else {}),
            "encoding": self.encoding,
            "splits": None if self.splits is None else dict(self.splits),
            "group_by": self.group_by,
            "prepare": _named(self.functions[1], once) if self.functions[1] else None,
            "seed": self.seed,
        }

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that differ whenever the file made would differ, unless something is
        `incomparable`.
        """
        return _digest([FORMAT_VERSION, RULES_VERSION, self._in_order(""), self.on_error])

    def places_fingerprint(self) -> str:
        """Return 16 hexadecimal digits that differ whenever what is written of some sample, or where, would differ."""
        return _digest([FORMAT_VERSION, RULES_VERSION, self._in_order(self.once)])

    def _in_order(self, once: str) -> dict[str, Any]:
        # JSON's objects are sorted, and the order of splits decides which rows each of them gets.
        return {**self._to_json(once), "splits": self.splits}


def recorded_image(options: Mapping[str, Any]) -> ImageOptions:
    """Return the image part of `PackOptions.to_json`, as a file keeps it."""
    from colabstage.h5.info import image_options_from_json

    raw = options.get("image", {})
    image = image_options_from_json(json.dumps(raw))
    return replace(image, color_mode="auto") if image.color_mode == "rgb" and not raw.get(_ASKED) else image


def _described(function: str | Callable[..., Any] | None) -> Description | None:
    return None if function is None or isinstance(function, str) else describe_callable(function)


def _named(found: Description, once: str) -> str:
    return ":".join(filter(None, (found.name, found.digest, once if found.unknown else "")))


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def split_fractions(splits: Mapping[str, float] | None) -> tuple[tuple[str, float], ...] | None:
    """Turn the public `splits=` argument into the option's form."""
    return None if splits is None else tuple((str(name), float(fraction)) for name, fraction in splits.items())


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        msg = f"group_by={pattern!r} is no regular expression: {error}. Give one such as r'patient\\d+'."
        raise OptionError(msg) from error


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
