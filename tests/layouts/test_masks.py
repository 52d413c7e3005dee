"""What masks mean by their values: as Pillow reads them and people mean them, or an error that names one."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from colabstage import pack_dataset, plan_stage, stage_dataset
from colabstage.errors import DecodeError
from colabstage.images.geometry import MaskOptions
from colabstage.images.masks import read_mask
from colabstage.layouts.formats.items import read_dataset
from colabstage.layouts.formats.masks import kinds_of, meaning_of, two_foregrounds
from colabstage.layouts.table import BrokenDatasetError
from colabstage.load.reading.reader import SplitReader
from colabstage.options import Images, Masks
from colabstage.trees.folder import FolderTree
from tests.layouts.readers import read_pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

COUNT = 4


def shapes(classes: int, void: bool, seed: int) -> list[NDArray[np.uint8]]:
    """Masks of some rectangles of classes 0 and up, with a thin border of 255 round each where there is `void`."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(COUNT):
        mask = np.zeros((40, 36), np.uint8)
        for place in range(3):
            top, left = rng.integers(2, 12, 2) + place * 8
            if void:
                mask[top - 1 : top + 11, left - 1 : left + 11] = 255
            mask[top : top + 10, left : left + 10] = 1 + (number + place) % max(1, classes - 1)
        found.append(mask)
    return found


def save(mask: NDArray[np.uint8], path: Path, form: str) -> NDArray[np.uint8] | None:
    """Write a mask in a form; what it means, or `None` for what means nothing exact."""
    binary = (mask > 0) & (mask < 255)
    white = Image.fromarray(binary.astype(np.uint8) * 255)
    if form in ("indices", "palette"):
        image = Image.fromarray(mask)
        if form == "palette":
            image.putpalette(np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8).tobytes())
        image.save(path)
        return mask
    if form == "jpeg":
        white.save(path, "JPEG")
        return None
    if form == "smoothed":
        white.filter(ImageFilter.GaussianBlur(1)).save(path)
        return None
    if form == "painted greys":
        Image.fromarray(np.minimum(mask, 3) * 70).save(path)
        return None
    white.convert({"white": "L", "bits": "1", "grey colours": "RGB"}[form]).save(path)
    return binary.astype(np.uint8)


@given(
    form=st.sampled_from(["indices", "palette", "white", "bits", "grey colours", "jpeg", "smoothed", "painted greys"]),
    classes=st.integers(2, 5),
    void=st.booleans(),
    seed=st.integers(0, 9),
)
def test_masks_mean_what_pillow_reads_or_are_refused(form: str, classes: int, *, void: bool, seed: int) -> None:
    """Class indices stay, black and white is a foreground; JPEG and shades of grey are refused by name."""
    with TemporaryDirectory() as name:
        folder, meant = Path(name), []
        for place in ("images", "masks"):
            (folder / place).mkdir()
        for number, mask in enumerate(shapes(classes, void, seed)):
            Image.new("RGB", (36, 40)).save(folder / f"images/{number}.png")
            meant.append(save(mask, folder / f"masks/{number}.png", form))
        if meant[0] is None:
            with pytest.raises(BrokenDatasetError, match=r"masks/\d\.png"):
                read_pairs(FolderTree(folder))
            return
        table = read_pairs(FolderTree(folder))
        assert isinstance(table.targets, Masks)
        options = MaskOptions(foreground=table.targets.foreground)
        assert table.classes == (("background", "foreground") if options.foreground else ())
        for number, expected in enumerate(meant):
            found = read_mask(table.targets.source.read(number), options)
            np.testing.assert_array_equal(found, np.asarray(expected))


def test_levels_of_known_datasets() -> None:
    """Counts as those of VOC, Cityscapes, ADE20K, a trimap, and an edge smoothed by resizing."""

    def counts(levels: dict[int, int]) -> NDArray[np.int64]:
        found = np.zeros(256, np.int64)
        found[list(levels)] = list(levels.values())
        return found

    assert meaning_of(counts({0: 900, 15: 80, 255: 20})) == "indices"
    assert meaning_of(counts(dict.fromkeys((*range(4, 34), 255), 10))) == "indices"
    assert meaning_of(counts(dict.fromkeys(range(0, 151, 3), 10))) == "indices"
    assert meaning_of(counts({1: 5, 2: 50, 3: 9})) == "indices"
    assert meaning_of(counts({0: 5})) == "indices"
    assert meaning_of(counts({0: 90, 255: 10})) == "foreground"
    assert meaning_of(counts({0: 90, 128: 10, 255: 50})) == "greys"
    assert meaning_of(counts({0: 90, 128: 10})) == "greys"
    assert meaning_of(counts({0: 900, 255: 90, **dict.fromkeys(range(9, 250, 9), 1)})) == "greys"


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_a_foreground_is_packed_as_class_1(tmp_path: Path, encoding: str) -> None:
    """However it is stored; a mask that says something else is broken, and named."""
    for place in ("images", "masks"):
        (tmp_path / "data" / place).mkdir(parents=True)
    # More masks than are looked at.
    masks = shapes(2, void=False, seed=0) * 9
    for number, mask in enumerate(masks):
        Image.new("RGB", (36, 40)).save(tmp_path / f"data/images/{number:02}.png")
        Image.fromarray(mask * 255).save(tmp_path / f"data/masks/{number:02}.png")
    pack_dataset(tmp_path / "data", tmp_path / "a.h5", encoding=encoding)
    reader = SplitReader(tmp_path / "a.h5")
    for key, found in zip(reader.keys(), reader.read_y(range(len(masks))), strict=True):
        np.testing.assert_array_equal(found, masks[int(Path(key).stem)])
    assert reader.classes == ("background", "foreground")
    odd = masks[1] * 255
    odd[0, 0] = 7
    Image.fromarray(odd).save(tmp_path / "data/masks/01.png")
    report = pack_dataset(tmp_path / "data", tmp_path / "b.h5", encoding=encoding, on_error="skip")
    assert ["01.png" in line and "value 7" in line for line in report.skipped] == [True]


class Pictures:
    """Palette images, each with a palette image as its mask."""

    classes = ()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Image.Image, Image.Image]:
        image = Image.fromarray(shapes(3, void=False, seed=index)[0])
        image.putpalette([0, 0, 0, 200, 10, 20, 30, 220, 40])
        return image, image


def test_images_of_other_modes_are_as_their_files() -> None:
    """Black and white is 0 and 255, and 0 and 1 as a mask; 32 bits are numbers without a range."""
    bits = np.eye(4, 5) > 0
    for mode, x, y in (("1", bits * 255, bits), ("I", bits * 7.0, bits * 7)):
        image = Image.fromarray(bits) if mode == "1" else Image.fromarray((bits * 7).astype(np.int32))
        assert image.mode == mode
        table = read_dataset([(image, image)] * 2)
        assert isinstance(table.inputs, Images)
        assert isinstance(table.targets, Masks)
        found, mask = (np.asarray(side.source.read(0)) for side in (table.inputs, table.targets))
        assert (found.dtype.name, mask.dtype.kind) == {"1": ("uint8", "u"), "I": ("float32", "i")}[mode]
        np.testing.assert_array_equal(found, x)
        np.testing.assert_array_equal(mask, y)


def test_palettes_of_a_datasets_images_are_looked_up() -> None:
    """An input's indices are colours, a mask's are classes."""
    table = read_dataset(Pictures())
    assert isinstance(table.inputs, Images)
    assert isinstance(table.targets, Masks)
    for index in range(COUNT):
        image, mask = Pictures()[index]
        np.testing.assert_array_equal(np.asarray(table.inputs.source.read(index)), np.asarray(image.convert("RGB")))
        np.testing.assert_array_equal(np.asarray(table.targets.source.read(index)), np.asarray(mask))


@given(masks=st.lists(st.sets(st.sampled_from([0, 1, 2, 255]), min_size=1), min_size=1, max_size=5))
def test_one_foreground_in_two_ways_is_refused_by_both_masks(masks: list[set[int]]) -> None:
    """Unless 255 may be no class: because some mask has both, or there are further classes. A mask of one value alone
    says nothing."""
    levels = np.array([np.bincount(sorted(one), minlength=256) > 0 for one in masks])
    two = two_foregrounds(kinds_of(levels))
    ones, voids = ({n for n, one in enumerate(masks) if one >= {0, value}} for value in (1, 255))
    if any(2 in one for one in masks) or not ones or not voids or ones & voids:
        assert two is None
    else:
        assert two is not None
        assert two[0] in ones
        assert two[1] in voids


def test_masks_of_0_and_1_among_those_of_0_and_255_are_an_error(tmp_path: Path) -> None:
    """Where 255 would be no class, and so half of the dataset without a foreground."""
    for number, value in enumerate((1, 255, 1, 255)):
        for place, mode in (("images", "RGB"), ("masks", "L")):
            (tmp_path / place).mkdir(exist_ok=True)
            image = Image.new(mode, (8, 8))
            image.paste(value if mode == "L" else (value, 9, 9), (0, 0, 4, 8))
            image.save(tmp_path / place / f"{number}.png")
    with pytest.raises(BrokenDatasetError, match=r"masks/0\.png'.*'masks/1\.png'"):
        read_pairs(FolderTree(tmp_path))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_a_mask_that_is_all_transparency_is_refused(mode: str) -> None:
    """Its colours say nothing, and were read as one class; where they say something, alpha does not count."""
    alpha = shapes(2, void=False, seed=0)[0] * 255
    for colours, is_read in ((np.zeros_like(alpha), False), (alpha, True)):
        image = Image.fromarray(colours).convert(mode)
        image.putalpha(Image.fromarray(alpha))
        file = io.BytesIO()
        image.save(file, "PNG")
        if is_read:
            np.testing.assert_array_equal(read_mask(file.getvalue(), MaskOptions()), colours)
        else:
            with pytest.raises(DecodeError, match="how transparent"):
                read_mask(file.getvalue(), MaskOptions())


def painted(folder: Path, plain: int = 0) -> NDArray[np.intp]:
    """Images and masks in true colours of three classes, after `plain` all black ones; return the classes."""
    colors = np.array([[0, 0, 0], [0, 128, 0], [128, 0, 0]], np.uint8)
    classes = np.random.default_rng(0).integers(0, 3, (24, 8, 6))
    classes[:plain] = 0
    for place in ("images", "masks"):
        (folder / place).mkdir(parents=True)
    for number, mask in enumerate(classes):
        Image.new("RGB", (6, 8), (number, 0, 0)).save(folder / f"images/{number:02}.png")
        Image.fromarray(colors[mask]).save(folder / f"masks/{number:02}.png")
    return classes


@pytest.mark.parametrize("plain", [0, 1])
def test_painted_masks_are_refused_by_the_plan_with_a_table_to_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: int
) -> None:
    """Planning and staging refuse the same; the line in the error makes the table that both accept, of an archive too.

    Followed to the letter: the line, then the list.
    """
    classes = painted(tmp_path / "data", plain)
    source = (
        tmp_path / "data" if not plain else Path(shutil.make_archive(str(tmp_path / "data"), "zip", tmp_path / "data"))
    )
    places: dict[str, Any] = {"local_dir": tmp_path / "local", "cache_dir": None}
    for verb in (plan_stage, stage_dataset):
        with pytest.raises(BrokenDatasetError, match=r"class_2,128,0,0") as caught:
            verb(source, **places)
    monkeypatch.chdir(tmp_path)
    line, both = re.search(r'from pathlib.*"\)', str(caught.value)), re.search(r"\[source, .*\]", str(caught.value))
    assert line is not None
    assert both is not None
    exec(line.group())
    sources = eval(both.group())
    assert plan_stage(sources, **places).samples == {"train": 24}
    data = stage_dataset(sources, **places)
    reader = SplitReader(data.path)
    for key, mask in zip(reader.keys(), reader.read_y(range(24)), strict=True):
        np.testing.assert_array_equal(mask, classes[int(Path(key).stem)])


def test_a_painted_mask_among_those_of_indices_is_a_broken_file(tmp_path: Path) -> None:
    """It can be left out; its error has its own colours."""
    classes = painted(tmp_path / "data")
    for number, mask in enumerate(classes[1:], 1):
        Image.fromarray(mask.astype(np.uint8)).save(tmp_path / f"data/masks/{number:02}.png")
    with pytest.raises(DecodeError, match=r"masks/00\.png.*class_2,128,0,0"):
        pack_dataset(tmp_path / "data", tmp_path / "a.h5", encoding="pixels")
    report = pack_dataset(tmp_path / "data", tmp_path / "b.h5", encoding="pixels", on_error="skip")
    assert ["00.png" in line for line in report.skipped] == [True]


def test_a_mask_of_many_colours_has_no_table(tmp_path: Path) -> None:
    """Smoothed edges make colours that are no classes."""
    painted(tmp_path / "data")
    noise = np.random.default_rng(0).integers(0, 255, (8, 12, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "data/masks/00.png")
    with pytest.raises(BrokenDatasetError, match=r"masks/00\.png.*colours") as caught:
        plan_stage(tmp_path / "data", local_dir=tmp_path / "local", cache_dir=None)
    assert "class_dict.csv" not in str(caught.value)
