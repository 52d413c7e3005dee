"""The options that determine a pack, in one frozen value that is passed on and stored in the file."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from colabstage.errors import OptionError
from colabstage.h5.schema import FORMAT_VERSION, check_split_name
from colabstage.images.geometry import ColorMode, ImageOptions, Resize
from colabstage.io.arguments import check_argument, check_choice, check_zip_encoding, read_only, show_value
from colabstage.io.workspace import short_digest
from colabstage.pack.code import Description, describe_callable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from colabstage.layouts.detect import LayoutFunction

    Prepare = Callable[[NDArray[Any]], NDArray[Any]]

# Increased when the same files with the same options mean other samples (labels, classes, masks, order), so that packs
# made under older rules are never used in place of new ones.
RULES_VERSION = 5
# Layouts whose rules are newer than those of all. One is increased when files that it reads come to mean other samples;
# "auto" with each of them, because any may be the one that is found.
_NEWER_RULES = {
    "image_folder": 9,
    "pixel_table": 10,
    **dict.fromkeys(("coco_classes", "images", "lmdb"), 11),
    **dict.fromkeys(("arrow", "file_names", "tokens"), 13),
    "webdataset": 14,
    **dict.fromkeys(("array_folder", "arrays"), 16),
    **dict.fromkeys(("audio", "tfrecord"), 17),
    **dict.fromkeys(("detection", "pairs"), 21),
    "table": 27,
    "auto": 33,
}

# Written beside `"color_mode": "rgb"`, which `"auto"` writes too, so that the default options, and their keys, stay
# what they were before the two were told apart.
_ASKED = "color_mode_asked"

Encoding = Literal["auto", "pixels", "encoded"]
OnError = Literal["raise", "skip"]
Splits = Mapping[str, float] | Sequence[float] | Sequence[tuple[str, float]] | float


class ImageArguments(TypedDict, total=False):
    """The fields of `PackOptions` that say what an image becomes, for type checkers; a test compares both."""

    layout: str | LayoutFunction
    image_size: int | tuple[int, int] | None
    color_mode: ColorMode
    resize: Resize
    encoding: Encoding | str


class WrittenArguments(ImageArguments, total=False):
    """The fields of `PackOptions` that can be written as text, as in a form."""

    splits: Splits | None
    group_by: str | None
    seed: int
    on_error: OnError | str
    only: str | Sequence[str] | None
    zip_encoding: str | None


class PackArguments(WrittenArguments, total=False):
    """All fields of `PackOptions` as arguments."""

    prepare: Prepare | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    r"""Say how samples become one file. Each field is also an argument of `stage_dataset` and `pack_dataset`.

    >>> options = PackOptions(image_size=224, splits=0.8)
    >>> options.image_size, options.splits
    ((224, 224), (('train', 0.8), ('test', 0.2)))

    Args:
        layout: how files become samples; `"auto"` tries every layout. A layout of your own is a function that takes the
            tree and returns a `SampleTable`.
        image_size: `(height, width)` of every image in pixels, or one number for a square; `None` keeps each image's
            own.
        color_mode: `"rgb"`, `"grayscale"`, `"keep"` for the channels of each image, or `"auto"`: `"rgb"` for image
            files, and no change for arrays.
        resize: how an image of another aspect ratio gets that size: `"stretch"` ignores the ratio, `"crop"` covers the
            size and cuts out the centre, `"pad"` fits inside it and pads with black.
        encoding: `"pixels"` stores decoded arrays, `"encoded"` the files' own bytes, `"jpeg:90"` JPEGs of that quality
            made from the resized images; `"auto"` chooses by what fits.
        splits: fractions by split name, as `{"train": 0.8, "test": 0.2}`. One number, 0.5 or more, is the fraction of
            `train`, and the rest is `test`; two are `train` and `test`, three `train`, `val` and `test`. If the source
            has splits, they divide its `train` and must not name another of them. `None` takes the source's splits;
            without any, everything is `train`.
        group_by: a regular expression searched in each sample's name, for example r"patient\d+": samples with the same
            match (of its first group, if it has one) stay in one split. `None` uses the groups that the layout finds,
            if any, and otherwise what names tell: pictures of one person, frames of one video, copies of one picture.
        prepare: called with each decoded x (after resizing), in several threads; returns the array to store, of one
            shape and dtype for all samples. Another function makes another dataset: its code, and the content of what
            it refers to, are part of the key.
        seed: for the splits and the row order of `train`.
        on_error: `"raise"` stops at the first image that cannot be decoded, `"skip"` leaves it out and reports it, and
            `"skip:1%"` stops once more than that share has been left out. Finished work is kept. An address in a list
            that leads to no file, or to a page, counts as such an image.
        only: a part of the source: a path below it, such as `"train/images"`, a pattern, or a list of these. A single
            folder is read as if it were the source; anything else keeps its names. In patterns a star stands for a
            part of a name, and two stars for any folders.
        zip_encoding: the encoding of the names in a zip that declares none, such as `"gbk"`. `None` is UTF-8 if all
            names are valid in it, otherwise cp437, the format's own.
    """

    layout: str | LayoutFunction = "auto"
    image_size: int | tuple[int, int] | None = None
    color_mode: ColorMode = "auto"
    resize: Resize = "stretch"
    encoding: Encoding | str = "auto"
    splits: Splits | None = None
    group_by: str | None = None
    prepare: Prepare | None = None
    seed: int = 0
    on_error: OnError | str = "raise"
    only: str | Sequence[str] | None = None
    zip_encoding: str | None = None
    once: str = field(default_factory=lambda: secrets.token_hex(8), repr=False, compare=False)
    """Stands for what cannot be compared: no other options have the same value, except copies sent to workers."""
    image: ImageOptions = field(init=False, repr=False, compare=False)
    """Size, colour and resizing of every image."""
    fractions: tuple[tuple[str, float], ...] | None = field(init=False, repr=False, compare=False)
    """`splits` as `(name, fraction)` pairs."""
    functions: tuple[Description | None, Description | None] = field(init=False, repr=False, compare=False)
    """Descriptions of `layout` and `prepare`, made once: their contents may change while they work, and a worker must
    not take a different function for the same."""

    def __post_init__(self) -> None:
        for name, given in (("encoding", self.encoding), ("on_error", self.on_error)):
            check_argument(name, given, "text")
        check_argument("seed", self.seed, "number")
        if self.group_by is not None:
            check_argument("group_by", self.group_by, "text", remedy=r"For example r'patient\d+'.")
        if self.prepare is not None:
            check_argument("prepare", self.prepare, "function", remedy="Give it without brackets: prepare=mine.")
        if not isinstance(self.layout, str):
            check_argument("layout", self.layout, "function", remedy='Or a name in quotes, such as layout="auto".')
        check_zip_encoding(self.zip_encoding)
        size = square(self.image_size)
        fractions = split_fractions(self.splits)
        # Normalised, so that options that mean the same are equal.
        for name, value in (
            ("image_size", size),
            ("image", ImageOptions(size, self.color_mode, self.resize)),
            ("splits", fractions),
            ("fractions", fractions),
            ("only", read_only(self.only)),
        ):
            object.__setattr__(self, name, value)
        described = tuple(
            None if one is None or isinstance(one, str) else describe_callable(one)
            for one in (self.layout, self.prepare)
        )
        object.__setattr__(self, "functions", described)
        # Imported late: options are also made for the command line's help, which must not load numpy.
        from colabstage.layouts.detect import check_layout_name

        if isinstance(self.layout, str):
            check_layout_name(self.layout)
        if self.jpeg_quality is None:
            check_choice("encoding", self.encoding, Encoding, otherwise=", or 'jpeg:Q' with Q from 1 to 100")
        if self.skip_share is None:
            check_choice("on_error", self.on_error, OnError, otherwise=", or a limit such as 'skip:1%'")
        try:
            re.compile(self.group_by or "")
        except re.error as error:
            msg = f"group_by={self.group_by!r} is not a regular expression: {error}. Give one such as r'patient\\d+'."
            raise OptionError(msg) from error
        if fractions is not None:
            _check_fractions(fractions)

    @property
    def jpeg_quality(self) -> int | None:
        """Return the Q of `encoding="jpeg:Q"`, 1 to 100; `None` for other encodings."""
        found = re.fullmatch(r"jpeg:(\d{1,3})", self.encoding)
        return int(found[1]) if found and 1 <= int(found[1]) <= 100 else None

    @property
    def skip_share(self) -> float | None:
        """Return the share of samples that may be left out, 0 to 1; `None` if none may."""
        found = re.fullmatch(r"skip(?::(\d+(?:\.\d+)?)%)?", self.on_error)
        if found is None or (found[1] is not None and float(found[1]) > 100):
            return None
        return 1.0 if found[1] is None else float(found[1]) / 100

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the paths and patterns of `only`; none for the whole source."""
        return cast("tuple[str, ...]", self.only)

    def to_json(self) -> dict[str, Any]:
        """Return everything that determines the samples in the file, as the JSON values stored in it."""
        return self._to_json(self.once)

    @property
    def incomparable(self) -> tuple[str, ...]:
        """Return the types in the functions that cannot be compared; packs made with them are never reused."""
        return tuple(dict.fromkeys(name for one in self.functions if one for name in one.unknown))

    @property
    def altered(self) -> str:
        """Return the argument whose function refers to objects that have changed since it was given; "" if none has."""
        given = zip(("layout", "prepare"), (self.layout, self.prepare), self.functions, strict=True)
        known = ((name, one, then) for name, one, then in given if callable(one) and then and not then.unknown)
        return next((name for name, one, then in known if describe_callable(one).digest != then.digest), "")

    def _to_json(self, once: str) -> dict[str, Any]:
        # Imported late: this imports numpy, and options are also made just to show help.
        from colabstage.h5.info import coding_to_json

        return {
            "layout": _identity_text(self.functions[0], once) if self.functions[0] else self.layout,
            "image": coding_to_json(self.image) | ({_ASKED: True} if self.image.color_mode == "rgb" else {}),
            "encoding": self.encoding,
            "splits": None if self.fractions is None else dict(self.fractions),
            "group_by": self.group_by,
            "prepare": _identity_text(self.functions[1], once) if self.functions[1] else None,
            "seed": self.seed,
            # Only if they are given: packs and keys made without them stay the same.
            **({"only": list(self.parts)} if self.only else {}),
            **({"zip_encoding": self.zip_encoding} if self.zip_encoding else {}),
        }

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that differ whenever the file made would differ, unless something is
        `incomparable`.
        """
        return self._digest("", self.on_error)

    def rows_fingerprint(self) -> str:
        """Return 16 hexadecimal digits that differ whenever some sample's bytes would, wherever it is placed."""
        return self._digest("", splits=None, group_by=None, seed=0)

    def places_fingerprint(self) -> str:
        """Return 16 hexadecimal digits that differ whenever some sample's bytes or place would differ."""
        return self._digest(self.once)

    def _digest(self, once: str, *further: str, **instead: Any) -> str:
        # Our own layout functions say which layout's rules they follow; a function of the caller's follows its own.
        name = self.layout if isinstance(self.layout, str) else getattr(self.layout, "layout", "")
        rules = _NEWER_RULES.get(name, RULES_VERSION)
        if self.image.color_mode == "keep":
            # The second since pixels without data are left out of the mean.
            further = (*further, "values as written", *(["of known pixels"] if self.image.size else []))
        # JSON's objects are sorted, but the order of splits decides which rows each of them gets.
        values = {**self._to_json(once), "splits": self.fractions, **instead}
        # Since then names tell what stays together, and groups are stratified.
        further = (*further, "splits 2") if values["splits"] else further
        return short_digest(json.dumps([FORMAT_VERSION, rules, values, *further], sort_keys=True))


def recorded_image(options: Mapping[str, Any]) -> ImageOptions:
    """Return the image part of `PackOptions.to_json` from a file's value."""
    from colabstage.h5.info import image_options_from_json

    raw = options.get("image", {})
    image = image_options_from_json(json.dumps(raw))
    return replace(image, color_mode="auto") if image.color_mode == "rgb" and not raw.get(_ASKED) else image


def _identity_text(found: Description, once: str) -> str:
    return ":".join(filter(None, (found.name, found.digest, once if found.unknown else "")))


def square(size: object) -> tuple[int, int] | None:
    """Return an `image_size=` argument as `(height, width)`: one number is a square's side."""
    if size is None:
        return None
    sides = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list | tuple) else ()
    if len(sides) != 2 or not all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides):
        msg = f"image_size={show_value(size)} is not a size; expected (height, width) in pixels, or one number: 224."
        raise OptionError(msg)
    return sides


# The names of splits whose fractions have none.
_SPLIT_NAMES = {1: ("train",), 2: ("train", "test"), 3: ("train", "val", "test")}


def split_fractions(splits: Splits | None) -> tuple[tuple[str, float], ...] | None:
    """Return a `splits=` argument as `(name, fraction)` pairs."""
    if splits is None:
        return None
    found: Any = splits
    if isinstance(found, int | float) and not isinstance(found, bool):
        # In other libraries a single number is the held-out part: Keras's validation_split, scikit-learn's test_size.
        if 0 < found < 0.5:
            found = float(found)  # numpy's numbers would print with their type
            rest = round(1 - found, 9)
            msg = (
                f"splits={found!r} would train on {100 * found:.4g} % of the samples, and test on the others. Write "
                f"splits={rest!r} to train on the others, or both parts: splits=({found!r}, {rest!r})."
            )
            raise OptionError(msg)
        # Rounded, because 1 - 0.8 is 0.19999999999999996.
        found = (found, round(1 - found, 9)) if 0 < found < 1 else (found,)
    if isinstance(found, Mapping):
        found = tuple(found.items())
    with suppress(TypeError, ValueError):
        parts = tuple(found)
        if parts and all(isinstance(part, int | float) for part in parts) and len(parts) in _SPLIT_NAMES:
            parts = tuple(zip(_SPLIT_NAMES[len(parts)], parts, strict=True))
        if not isinstance(found, str):
            return tuple((str(name), float(fraction)) for name, fraction in parts)
    msg = f"splits={splits!r} gives no fractions; expected 0.8, [0.8, 0.1, 0.1] or {{'train': 0.8, 'test': 0.2}}."
    raise OptionError(msg)


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
