"""What a pack will be: decided from facts alone, with the reason beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from colabstage.errors import LayoutError
from colabstage.images.decode import ImageFacts
from colabstage.options import Images, PackOptions, SampleTable, TreeFiles, Values
from colabstage.pack import plan as plan_module
from colabstage.pack.plan import (
    TORCH_BYTES,
    TORCH_SAMPLES,
    gains_by_torch,
    needs_facts,
    pack_content,
    plan_pack,
    why_kept,
)
from colabstage.trees.listing import FileEntry

if TYPE_CHECKING:
    from colabstage.trees.listing import Tree

SIZES = (100, 7, 0, 60)


def _table(sizes: tuple[int, ...] = SIZES) -> SampleTable:
    files = tuple(FileEntry(f"a/{number}.jpg", size, 0, number) for number, size in enumerate(sizes))
    inputs = Images(TreeFiles(cast("Tree", None), files))
    labels = Values(np.zeros(len(sizes), dtype=np.int64))
    return SampleTable("image_folder", tuple(file.name for file in files), inputs, labels, classes=("a",))


def _facts(*sizes: tuple[int, int], channels: int = 3, dtype: Any = np.uint8) -> tuple[ImageFacts, ...]:
    return tuple(ImageFacts(height, width, channels, np.dtype(dtype), "JPEG") for height, width in sizes)


def _options(encoding: Any = "auto", size: Any = None, **image: Any) -> PackOptions:
    return PackOptions(encoding=encoding, image_size=size, **image)


ONE_SIZE = _facts((4, 5), (4, 5))
MANY = _facts((4, 5), (40, 5))


@pytest.mark.parametrize(
    ("options", "facts", "free_bytes", "encoding", "reason"),
    [
        (_options(), ONE_SIZE, 10**9, "pixels", "as 4x5x3 pixels they take 240 B, which fits"),
        (_options(), ONE_SIZE, None, "pixels", "which fits"),
        (_options(), ONE_SIZE, 200, "encoded", "240 B and 200 B are free"),
        (_options(), ONE_SIZE, 245, "encoded", "are free"),
        (_options(), MANY, 10**9, "encoded", "many sizes (4x5 to 40x5)"),
        (_options(), (), 10**9, "encoded", "no image could be looked at"),
        (_options(color_mode="keep"), _facts((4, 5)) + _facts((4, 5), channels=1), 10**9, "encoded", "different chan"),
        (_options(size=(2, 2)), (), 10**9, "pixels", "as 2x2x3 pixels"),
        (_options(size=(2, 2), color_mode="grayscale"), MANY, 10**9, "pixels", "as 2x2x1 pixels"),
        (_options("encoded"), ONE_SIZE, 10**9, "encoded", "was asked for"),
        (_options("pixels"), ONE_SIZE, 1, "pixels", "was asked for"),
    ],
)
def test_encoding_follows_from_facts_and_space(
    options: PackOptions, facts: tuple[ImageFacts, ...], free_bytes: int | None, encoding: str, reason: str
) -> None:
    """Images of one size become pixels where these fit; everything else is kept as it came; the reason says which."""
    plan = plan_pack(_table(), options, facts=facts, free_bytes=free_bytes)
    assert plan.encoding == encoding
    assert reason in plan.reason
    assert plan.nbytes == (sum(SIZES) if encoding == "encoded" else 4 * plan.x.row_bytes)
    assert (plan.x.shape is None) == (encoding == "encoded")


@pytest.mark.parametrize(
    ("facts", "remedy"),
    [
        (MANY, r"Give image_size=\(height, width\), or"),
        (_facts((4, 5)) + _facts((4, 5), channels=4), "Give color_mode='rgb', or"),
        (_facts((4, 5)) + _facts((4, 9), channels=4), r"Give image_size=\(height, width\) and color_mode='rgb', or"),
        ((), "Give image_size"),
    ],
)
def test_pixels_that_cannot_be_are_refused_with_the_remedy(facts: tuple[ImageFacts, ...], remedy: str) -> None:
    """Asked for pixels of images that have no one shape, the plan says why not and what to give."""
    with pytest.raises(LayoutError, match=remedy):
        plan_pack(_table(), _options("pixels", color_mode="keep"), facts=facts, free_bytes=None)


def test_what_is_given_is_not_advised() -> None:
    """Images of mixed channels need no size beside the one that they have, whenever they are met."""
    mixed = _facts((4, 5)) + _facts((9, 5), channels=4)
    options = PackOptions(image_size=(4, 4), color_mode="keep")
    plan = plan_pack(_table(), options, facts=mixed, free_bytes=None)
    for reason in (plan.reason, why_kept(options.image)):
        assert "different channels" in reason
        assert "color_mode='rgb'" in reason
        assert "image_size" not in reason


def test_deep_images_keep_their_dtype_only_when_asked() -> None:
    """16 bits are kept with color_mode="keep"; as "rgb" they become 8."""
    deep = _facts((4, 5), channels=1, dtype=np.uint16)
    kept = plan_pack(_table(), _options(color_mode="keep"), facts=deep, free_bytes=None)
    assert (kept.x.shape, kept.x.dtype, kept.x.row_bytes) == ((4, 5, 1), np.dtype(np.uint16), 40)
    rgb = plan_pack(_table(), _options(), facts=deep, free_bytes=None)
    assert (rgb.x.shape, rgb.x.dtype) == ((4, 5, 3), np.dtype(np.uint8))


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        (_options(), True),
        (_options("encoded"), False),
        (_options(size=(2, 2)), False),
        (_options("pixels", size=(2, 2), color_mode="keep"), True),
    ],
)
def test_images_are_looked_at_only_where_their_shape_is_open(options: PackOptions, needed: bool) -> None:
    """With size and colours given, no image needs to be read before packing."""
    assert needs_facts(_table(), options) is needed


@pytest.mark.parametrize("together", [1, 3, 1000])
@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_places_follow_the_rows_of_each_split(monkeypatch: pytest.MonkeyPatch, encoding: str, together: int) -> None:
    """Every sample has a place of exactly its length, in row order, inside its split's dataset, however many are placed
    at once."""
    monkeypatch.setattr(plan_module, "_PLACED_TOGETHER", together)
    table = _table((100, 7, 50, 60, 1, 30, 2, 9))
    options = PackOptions(encoding=encoding, splits=(("train", 0.5), ("test", 0.5)))
    plan = plan_pack(table, options, facts=ONE_SIZE, free_bytes=None)
    content = pack_content(table, plan, options, attributes={})
    starts = {spec.name: 10_000 * (number + 1) for number, spec in enumerate(content.reserved)}
    places = plan.x.places(plan.splits, starts, len(table))
    for split, spec in zip(plan.splits, content.reserved, strict=True):
        place = starts[spec.name]
        for sample in split.samples.tolist():
            assert places[sample] == place
            place += int(plan.x.lengths_of(np.array([sample]))[0])
        assert place - starts[spec.name] == spec.nbytes
        assert content.arrays[f"key_{split.name}"] == [table.keys[i] for i in split.samples.tolist()]
    assert content.nbytes >= plan.nbytes


MANY_FILES = (TORCH_BYTES - 10, TORCH_BYTES + 10) * (TORCH_SAMPLES // 2)


@pytest.mark.parametrize(
    ("options", "sizes", "has_torch", "resizer"),
    [
        (_options(size=(2, 2)), MANY_FILES, True, "torch"),
        (_options("pixels", size=(2, 2), resize="crop"), MANY_FILES, True, "torch"),
        (_options("jpeg:80", size=(2, 2)), MANY_FILES, True, "torch"),
        (_options(size=(2, 2)), MANY_FILES, False, "pillow"),
        (_options(size=(2, 2)), MANY_FILES[1:], True, "pillow"),
        (_options(size=(2, 2)), (*MANY_FILES[1:], 1), True, "pillow"),
        (_options(size=(2, 2), color_mode="grayscale"), MANY_FILES, True, "pillow"),
        (_options(), MANY_FILES, True, None),
        (_options("jpeg:80"), MANY_FILES, True, None),
        (_options("encoded", size=(2, 2)), MANY_FILES, True, None),
    ],
)
def test_the_resizer_follows_from_samples_and_options(
    options: PackOptions, sizes: tuple[int, ...], has_torch: bool, resizer: str | None
) -> None:
    """torch for many large images of three channels that are resized, where it is there; only then is it asked for."""
    table = _table(sizes)
    plan = plan_pack(table, options, facts=ONE_SIZE, free_bytes=None, has_torch=has_torch)
    assert plan.resizer == resizer
    assert gains_by_torch(table, options) or resizer != "torch"


def test_images_that_do_not_fit_as_pixels_are_not_resized() -> None:
    """What "auto" keeps as it came has no resizer, though torch was there for it."""
    plan = plan_pack(_table(MANY_FILES), _options(size=(20, 20)), facts=(), free_bytes=30_000, has_torch=True)
    assert (plan.encoding, plan.resizer) == ("encoded", None)
