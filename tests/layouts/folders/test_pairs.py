"""Images and masks find each other by folders and stems, as people lay them out."""

import pytest

from colabstage.layouts.detect import detect_layout
from colabstage.options import Masks, SampleTable
from tests.layouts.known import MemoryTree, known


def read(names: list[str], layout: str, **texts: str) -> SampleTable:
    """Empty files with these names; those with text have it."""
    return detect_layout(MemoryTree({**dict.fromkeys(names, b""), **known("", "", texts).files}), layout)


def both(found: SampleTable) -> list[tuple[str, str]]:
    """Names of images and of their masks."""
    assert isinstance(found.targets, Masks)
    return [(key, found.targets.source.name(number)) for number, key in enumerate(found.keys)]


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("{}.jpg", "{}-SEG.png"),
        ("{}.jpg", "{}.label.png"),
        ("{}.jpg", "{}mask.png"),
    ],
)
def test_masks_are_found_by_stem(image: str, mask: str) -> None:
    """In folders of their own or beside the images with a suffix, when nobody says that it is pairs."""
    images, masks = ([form.format(stem) for stem in ("x1", "x2", "x3")] for form in (image, mask))
    found = read([*images, *masks], "auto")
    assert (found.layout, both(found), found.splits) == ("pairs", list(zip(images, masks, strict=True)), None)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("class_dict.csv", "name,r,g,b\nSky,128,128,128\nbig dog, 128, 64, 0\n"),
        ("labelmap.txt", "# label:color_rgb:parts:actions\nSky:128,128,128::\nbig dog:128, 64,0:head,tail:\n"),
    ],
)
def test_files_beside_masks_give_names_and_colours(file: str, text: str) -> None:
    """A class_dict.csv, or what CVAT exports in Pascal VOC's folders: masks of single objects are left out."""
    images = [f"JPEGImages/{stem}.jpg" for stem in "abc"]
    masks = [f"SegmentationClass/{stem}.png" for stem in "abc"]
    objects = [f"SegmentationObject/{stem}.png" for stem in "abc"]
    found = read([*images, *masks, *objects], "auto", **{file: text})
    assert (found.layout, both(found)) == ("pairs", list(zip(images, masks, strict=True)))
    assert isinstance(found.targets, Masks)
    assert (found.classes, found.targets.colors) == (("Sky", "big dog"), ((128, 128, 128), (128, 64, 0)))
    assert found.notes == ("3 masks that number single objects were left out.",)
