"""Placement arithmetic: the box that is used, the size it gets, and where it lands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.images.geometry import Placement, place_image

if TYPE_CHECKING:
    from colabstage.images.geometry import Resize

sides = st.integers(1, 5000)
sizes = st.tuples(sides, sides)


@pytest.mark.parametrize("resize", ["stretch", "crop", "pad"])
def test_image_of_the_target_size_is_left_alone(resize: Resize) -> None:
    """An image that has the wanted size needs no resampling in any mode."""
    assert place_image((30, 40), (30, 40), resize).is_identity


def test_no_target_keeps_the_source_size() -> None:
    """Without a target the whole source stays as it is."""
    placement = place_image((7, 9), None, "crop")
    assert placement.target == (7, 9)
    assert placement.is_identity


@pytest.mark.parametrize(
    ("source", "target", "resize", "expected"),
    [
        ((100, 200), (50, 50), "stretch", Placement((0, 0, 200, 100), (50, 50), (0, 0), (50, 50))),
        ((100, 200), (50, 50), "crop", Placement((50, 0, 150, 100), (50, 50), (0, 0), (50, 50))),
        ((200, 100), (50, 50), "crop", Placement((0, 50, 100, 150), (50, 50), (0, 0), (50, 50))),
        ((100, 200), (50, 50), "pad", Placement((0, 0, 200, 100), (25, 50), (12, 0), (50, 50))),
        ((200, 100), (50, 50), "pad", Placement((0, 0, 100, 200), (50, 25), (0, 12), (50, 50))),
    ],
)
def test_known_placements(
    source: tuple[int, int], target: tuple[int, int], resize: Resize, expected: Placement
) -> None:
    """Worked examples for a wide and a tall image."""
    assert place_image(source, target, resize) == expected


@given(source=sizes, target=sizes)
def test_crop_keeps_the_aspect_ratio_and_stays_inside(source: tuple[int, int], target: tuple[int, int]) -> None:
    """The cropped box has the target's aspect ratio, lies inside the source and touches two opposite borders."""
    left, top, right, bottom = place_image(source, target, "crop").box
    assert left >= 0
    assert top >= 0
    assert right <= source[1] + 1e-6
    assert bottom <= source[0] + 1e-6
    assert (right - left) * target[0] == pytest.approx((bottom - top) * target[1])
    assert (left, right) == (0, source[1]) or (top, bottom) == (0, source[0])


@given(source=sizes, target=sizes)
def test_pad_covers_one_side_and_fits_the_other(source: tuple[int, int], target: tuple[int, int]) -> None:
    """The padded image fills the target along one side at least and never sticks out."""
    placement = place_image(source, target, "pad")
    assert placement.scaled[0] == target[0] or placement.scaled[1] == target[1]
    for side in (0, 1):
        assert placement.scaled[side] >= 1
        assert placement.offset[side] >= 0
        assert placement.offset[side] + placement.scaled[side] <= target[side]
