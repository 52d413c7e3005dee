"""Images and masks find each other by folders and stems, as people lay them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.samples import TreeFiles
from colabstage.layouts.table import Masks
from colabstage.trees.folder import FolderTree
from tests.layouts.readers import read_pairs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.layouts.table import SampleTable


@pytest.fixture
def pairs(tmp_path: Path) -> Callable[..., SampleTable]:
    """Read a folder of empty files with the given names; those with text have it."""

    def read(*names: str, layout: str = "pairs", **texts: str) -> SampleTable:
        for name in (*names, *texts):
            place = tmp_path / "data" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(texts.get(name, ""), encoding="utf-8")
        return detect_layout(FolderTree(tmp_path / "data"), layout)

    return read


def both(found: SampleTable) -> list[tuple[str, str]]:
    """Names of images and of their masks."""
    assert isinstance(found.targets, Masks)
    assert isinstance(found.targets.source, TreeFiles)
    return [(key, entry.name) for key, entry in zip(found.keys, found.targets.source.entries, strict=True)]


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("images/{}.jpg", "masks/{}.png"),
        ("img/{}.png", "labels/{}.png"),
        ("JPEGImages/{}.jpg", "SegmentationClass/{}.png"),
        ("images/a/{}.jpg", "annotations/a/{}.png"),
        ("imgs/{}.jpg", "masks/{}_mask.gif"),
        ("set/{}.jpg", "set/{}_mask.png"),
        ("{}.png", "{}_L.png"),
        ("701_StillsRaw/images/{}.png", "701_StillsRaw/labels/{}_L.png"),
        ("{}_sat.jpg", "{}_mask.png"),
        ("{}.jpg", "{}_Mask.png"),
        ("{}.jpg", "{}-SEG.png"),
        ("{}.jpg", "{}.label.png"),
        ("{}.jpg", "{}mask.png"),
    ],
)
@pytest.mark.parametrize("layout", ["pairs", "auto"])
def test_masks_are_found_by_stem(pairs: Callable[..., SampleTable], image: str, mask: str, layout: str) -> None:
    """In folders of their own or beside the images with a suffix; also when nobody says that it is pairs."""
    stems = ("x1", "x2", "x3")
    found = pairs(*(image.format(stem) for stem in stems), *(mask.format(stem) for stem in stems), layout=layout)
    assert found.layout == "pairs"
    assert both(found) == [(image.format(stem), mask.format(stem)) for stem in stems]
    assert found.splits is None


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("{}/{{}}.png", "{}_labels/{{}}_L.png"),
        ("{}/{{}}.png", "{}annot/{{}}.png"),
        ("{}/images/{{}}.png", "{}/masks/{{}}.png"),
        ("images/{}/{{}}.png", "annotations/{}/{{}}.png"),
        ("{}_images/{{}}.png", "{}_masks/{{}}.png"),
        ("leftImg8bit/{}/aachen/{{}}_leftImg8bit.png", "gtFine/{}/aachen/{{}}_gtFine_labelIds.png"),
    ],
)
def test_split_folders_are_splits(pairs: Callable[..., SampleTable], image: str, mask: str) -> None:
    """CamVid's, Cityscapes' and other ways to put splits and masks into folders."""
    names = [form.format(split).format(stem) for form in (image, mask) for split in ("train", "val") for stem in "ab"]
    found = pairs(*names)
    assert sorted(both(found)) == sorted(zip(names[:4], names[4:], strict=True))
    assert sorted(found.splits or ()) == ["train", "train", "val", "val"]


def test_class_dict_gives_names_and_colours(pairs: Callable[..., SampleTable]) -> None:
    """The rows of class_dict.csv, in their order, are the classes."""
    table = "name,r,g,b\nSky,128,128,128\nRoad, 128, 64, 128\n"
    found = pairs("train/a.png", "train_labels/a_L.png", **{"class_dict.csv": table})
    assert found.classes == ("Sky", "Road")
    assert isinstance(found.targets, Masks)
    assert found.targets.colors == ((128, 128, 128), (128, 64, 128))


def test_masks_as_cvat_exports_them(pairs: Callable[..., SampleTable]) -> None:
    """Pascal VOC's folders without its boxes: classes and single objects are masks, and labelmap.txt has the colours.

    They were taken as three classes of images.
    """
    images, masks, objects = (
        [f"{folder}/{stem}" for stem in "abc"] for folder in ("JPEGImages", "SegmentationClass", "SegmentationObject")
    )
    labels = "# label:color_rgb:parts:actions\nbackground:0,0,0::\nbig dog:128, 64,0:head,tail:\n"
    names = [f"{image}.jpg" for image in images] + [f"{mask}.png" for mask in (*masks, *objects)]
    found = pairs(*names, layout="auto", **{"labelmap.txt": labels})
    assert found.layout == "pairs"
    assert both(found) == [(f"{image}.jpg", f"{mask}.png") for image, mask in zip(images, masks, strict=True)]
    assert found.classes == ("background", "big dog")
    assert isinstance(found.targets, Masks)
    assert found.targets.colors == ((0, 0, 0), (128, 64, 0))
    assert found.notes == ("3 masks that number single objects were left out.",)


def test_masks_without_their_images_are_not_classes(pairs: Callable[..., SampleTable]) -> None:
    """As CVAT exports them unless asked to save the images too."""
    with pytest.raises(LayoutError, match="names of parts of a dataset"):
        pairs("SegmentationClass/a.png", "SegmentationObject/a.png", layout="auto")


def test_what_has_no_partner_is_left_out_and_counted(pairs: Callable[..., SampleTable]) -> None:
    """A few images without a mask do not stop the pack."""
    found = pairs("images/a.jpg", "images/b.jpg", "images/c.jpg", "masks/a.png", "masks/b.png", "masks/z.png")
    assert len(found) == 2
    assert [note.split(" ", 2)[:2] for note in found.notes] == [["1", "image"], ["1", "mask"]]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("a/1.jpg", "b/1.jpg"), "no masks"),
        (("images/1.jpg", "images/2.jpg", "images/3.jpg", "masks/1.png"), r"images/2\.jpg"),
        (("images/1.jpg", "masks/1.png", "labels/1.png"), "same image"),
    ],
)
def test_what_is_no_pairs_says_why(pairs: Callable[..., SampleTable], names: tuple[str, ...], says: str) -> None:
    """One typed error with the reason."""
    with pytest.raises(LayoutError, match=says):
        pairs(*names)


def test_a_source_without_images_is_empty(tmp_path: Path) -> None:
    """Nothing to pair."""
    with pytest.raises(EmptySourceError):
        read_pairs(FolderTree(tmp_path))


def test_classes_that_are_called_like_masks_stay_classes(pairs: Callable[..., SampleTable]) -> None:
    """A folder 'label' among other classes is a class."""
    found = pairs("label/1.jpg", "cat/1.jpg", "dog/1.jpg", layout="auto")
    assert (found.layout, found.classes) == ("image_folder", ("cat", "dog", "label"))


@pytest.mark.parametrize(("mask", "count"), [("{}_manual1.gif", 3), ("{} vessels.png", 3), ("{}.png", 5)])
def test_images_that_come_in_twos_are_no_images_without_labels(
    pairs: Callable[..., SampleTable], mask: str, count: int
) -> None:
    """Masks would be samples beside their images; whoever says so gets all of them."""
    names = [form.format(f"x{number}") for number in range(count) for form in ("{}.jpg", mask)]
    with pytest.raises(LayoutError, match=r"come in twos.*called masks"):
        pairs(*names, layout="auto")
    assert len(pairs(layout="images")) == 2 * count


@pytest.mark.parametrize("names", [("a.jpg", "b.jpg", "a_2.jpg", "b_2.jpg"), ("a.jpg", "a_b.jpg", "c.jpg", "d.jpg")])
def test_other_names_are_images_without_labels(pairs: Callable[..., SampleTable], names: tuple[str, ...]) -> None:
    """Numbers are no word, and one image may be called after another."""
    assert pairs(*names, layout="auto").layout == "images"
