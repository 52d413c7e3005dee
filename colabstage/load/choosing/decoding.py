"""Deciding how much of each image file is decoded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from colabstage.errors import OptionError
from colabstage.load.choosing.choices import Decode, DecodeChoice

if TYPE_CHECKING:
    from colabstage.load.choosing.choices import LoaderFacts, LoaderRequest

_CROPS = "batch_transform begins with a RandomResizedCrop, and no more of a file is decoded than its crop needs"


def choose_decoding(facts: LoaderFacts, request: LoaderRequest, strategy: str) -> DecodeChoice | None:
    """Decide how much of each image file is decoded; `None` where inputs are no image files.

    Raises:
        OptionError: an unknown value; or crops were asked for and cannot be, with the reason.
    """
    if request.decode not in get_args(Decode):
        msg = f"decode={request.decode!r} is unknown; expected one of {', '.join(get_args(Decode))}."
        raise OptionError(msg)
    obstacle = _obstacle(facts, strategy)
    if request.decode == "crops" and obstacle is not None:
        msg = f'decode="crops" cannot work: {obstacle}. Use decode="auto".'
        raise OptionError(msg)
    if not facts.encoded:
        return None
    if request.decode == "whole":
        return DecodeChoice("whole", "that was asked for")
    return DecodeChoice("crops", _CROPS) if obstacle is None else DecodeChoice("whole", obstacle)


def _obstacle(facts: LoaderFacts, strategy: str) -> str | None:
    """Why images cannot be decoded as crops."""
    if not facts.encoded:
        return "inputs are no image files that are decoded when they are read"
    if facts.crop_bytes is None:
        return "batch_transform does not begin with a RandomResizedCrop"
    if facts.why_whole is not None:
        return f"images cannot be cropped while they are decoded, as {facts.why_whole}"
    if facts.per_sample:
        return "the dataset's own transform takes whole images"
    if strategy not in ("direct", "memory"):
        return f'with strategy="{strategy}" batch_transform gets whole images'
    return None


def with_crops(facts: LoaderFacts, decode: DecodeChoice | None) -> LoaderFacts:
    """The facts about what is read by then."""
    if decode is None or decode.name != "crops" or facts.crop_bytes is None:
        return facts
    return replace(facts, row_bytes=facts.crop_bytes)
