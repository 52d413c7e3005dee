"""What shapes a pack: refused where it cannot work, and told apart wherever the file made would differ."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import OptionError
from colabstage.images.geometry import ColorMode
from colabstage.options import PackOptions
from colabstage.pack.options import recorded_image, split_fractions

if TYPE_CHECKING:
    from pathlib import Path

OTHERS: dict[str, Any] = {
    "layout": "image_folder",
    "image_size": (3, 4),
    "color_mode": "grayscale",
    "resize": "crop",
    "encoding": "pixels",
    "splits": (("train", 0.5), ("test", 0.5)),
    "group_by": "a+",
    "prepare": np.sqrt,
    "seed": 1,
    "on_error": "skip",
    "only": ("a",),
    "zip_encoding": "gbk",
}


def test_every_option_shows_in_the_fingerprint() -> None:
    """No two packs of different options are ever taken for each other, nor for the same under another name."""
    # `once` only stands in for what cannot be compared, and the others are made of those that are given.
    made = {"once", "functions", "image", "fractions"}
    assert OTHERS.keys() | made == {field.name for field in fields(PackOptions)}
    one, other = (PackOptions(splits=splits) for splits in (OTHERS["splits"], OTHERS["splits"][::-1]))
    assert one.fingerprint() != other.fingerprint()
    prints = {PackOptions(**{name: value}).fingerprint() for name, value in OTHERS.items()}
    assert len(prints | {PackOptions().fingerprint()}) == len(OTHERS) + 1
    assert PackOptions(**OTHERS).fingerprint() == PackOptions(**OTHERS).fingerprint()


def test_colours_that_are_asked_for_are_told_from_the_default() -> None:
    """A pack with `rgb` is another one than by default, whose options are written as they always were."""
    modes = [PackOptions(color_mode=mode) for mode in get_args(ColorMode)]
    assert len({options.fingerprint() for options in modes}) == len(modes)
    assert PackOptions().to_json()["image"] == {"size": None, "color_mode": "rgb", "resize": "stretch"}
    for options in modes:
        assert recorded_image(options.to_json()) == options.image


def test_options_go_into_the_file_as_they_are(tmp_path: Path, photos: Path) -> None:
    """The root's `options` attribute is the JSON that `to_json` gives."""
    report = pack_dataset(photos, tmp_path / "out.h5", seed=5, image_size=(3, 4), resize="pad", progress=False)
    with h5py.File(report.path) as file:
        said = json.loads(file.attrs["options"])
    assert said == PackOptions(seed=5, image_size=(3, 4), resize="pad").to_json()


@pytest.mark.parametrize(
    ("splits", "says"),
    [
        ({}, "add up to 0"),
        ({"train": 0.5}, "add up to 0.5"),
        ({"train": 1.5, "test": -0.5}, "above 0 and up to 1"),
        ({"train": 1.0, "test": 0.0}, "'test' the fraction 0.0"),
        ({"train": float("nan"), "test": 0.5}, "nan"),
        ({"tr/ain": 1.0}, "cannot name a split"),
    ],
    ids=str,
)
def test_fractions_that_cannot_work_are_refused(splits: dict[str, float], says: str) -> None:
    """Each message has the value and what was expected."""
    with pytest.raises(OptionError, match=says):
        PackOptions(splits=split_fractions(splits))


def test_a_number_that_may_be_what_is_held_out_is_asked_about() -> None:
    """Both lines of the message give what they say, and the smallest part that is taken is a half."""
    with pytest.raises(OptionError) as caught:
        PackOptions(splits=0.2)
    lines = re.findall(r"splits=(0\.8|\(.*\))[. ,]", f"{caught.value} ")
    assert lines == ["0.8", "(0.2, 0.8)"]
    assert [dict(PackOptions(splits=ast.literal_eval(line)).fractions or ()) for line in lines] == [
        {"train": 0.8, "test": 0.2},
        {"train": 0.2, "test": 0.8},
    ]
    assert PackOptions(splits=0.5).fractions == (("train", 0.5), ("test", 0.5))


def test_thirds_add_up() -> None:
    """Fractions need not be sums of powers of two."""
    assert PackOptions(splits=split_fractions({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})).splits is not None
    assert split_fractions(None) is None


@pytest.mark.parametrize(
    ("resize", "black_rows"), [("stretch", 0), ("crop", 0), ("pad", 16)], ids=["stretch", "crop", "pad"]
)
def test_each_way_to_resize_gives_the_size_asked_for(tmp_path: Path, resize: Any, black_rows: int) -> None:
    """A white image twice as wide as high becomes a square: only padding leaves black above and below."""
    for name in ("a/1.png", "b/2.png"):
        place = tmp_path / "wide" / name
        place.parent.mkdir(parents=True)
        Image.new("RGB", (80, 40), "white").save(place)
    pack_dataset(tmp_path / "wide", tmp_path / "out.h5", image_size=(32, 32), resize=resize, progress=False)
    with h5py.File(tmp_path / "out.h5") as file:
        stored = file["X_train"][()]
    assert stored.shape == (2, 32, 32, 3)
    assert np.count_nonzero(np.all(stored[0] == 0, axis=(1, 2))) == black_rows


@pytest.mark.parametrize(("mode", "channels"), [("RGBA", 4), ("RGB", 3), ("L", 1)])
def test_colours_are_kept_on_request(tmp_path: Path, mode: str, channels: int) -> None:
    """color_mode="keep" stores the channels that the files have."""
    (tmp_path / "photos" / "a").mkdir(parents=True)
    Image.new(mode, (6, 5)).save(tmp_path / "photos" / "a" / "1.png")
    pack_dataset(tmp_path / "photos", tmp_path / "out.h5", layout="image_folder", color_mode="keep", progress=False)
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["X_train"].shape == (1, 5, 6, channels)
