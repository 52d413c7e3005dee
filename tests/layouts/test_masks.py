"""What masks mean by their values: as Pillow reads them and people mean them, or an error that names one."""

import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from colabstage import dataset_h5, pack_dataset, plan_stage, stage_dataset
from colabstage.errors import DecodeError, LayoutError
from tests.images.files import encode
from tests.layouts.readers import read
from tests.support.made_files import write_files

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
    """Write a mask in a form; what it means, or `None` for shades of grey."""
    binary = (mask > 0) & (mask < 255)
    white = Image.fromarray(binary.astype(np.uint8) * 255)
    if form in ("indices", "palette"):
        image = Image.fromarray(mask)
        if form == "palette":
            image.putpalette(np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8).tobytes())
        image.save(path)
        return mask
    if form in ("jpeg", "smoothed"):
        smoothed = white.filter(ImageFilter.GaussianBlur(1))
        smoothed.save(path, "JPEG" if form == "jpeg" else "PNG")
        with Image.open(path) as image:
            return (np.asarray(image) >= 128).astype(np.uint8)
    if form in ("painted greys", "jpeg of greys", "greys along edges", "noise"):
        greys = np.minimum(mask, 3) * 70
        if form == "greys along edges":
            edges = np.asarray(white.filter(ImageFilter.MaxFilter(3))) > np.asarray(white)
            greys = np.asarray(white) + np.uint8(128) * edges
        if form == "noise":
            greys = np.random.default_rng(0).integers(0, 256, mask.shape, dtype=np.uint8)
        Image.fromarray(greys).save(path, "JPEG" if form == "jpeg of greys" else "PNG")
        return None
    white.convert({"white": "L", "bits": "1", "grey colours": "RGB"}[form]).save(path)
    return binary.astype(np.uint8)


def in_memory(*masks: bytes) -> dict[str, bytes]:
    """An image and a mask for each of these files."""
    blank = encode(Image.new("RGB", (36, 40)), "PNG")
    return {f"images/{n}.png": blank for n in range(len(masks))} | {
        f"masks/{n}.png": one for n, one in enumerate(masks)
    }


def packed(source: Any, out: Path, **options: Any) -> dict[str, Any]:
    """The masks of a pack, by the stem of their image's name."""
    pack_dataset(source, out, progress=False, **options)
    dataset = dataset_h5(out)
    with h5py.File(out) as file:
        keys = file["key_train"].asstr()[:]
    return {Path(key).stem: np.asarray(dataset[row][1]) for row, key in enumerate(keys)}


AS_INDICES, AS_FOREGROUND = ["indices", "palette"], ["white", "bits", "grey colours", "jpeg", "smoothed"]
REFUSED = ["painted greys", "jpeg of greys", "greys along edges", "noise"]


@pytest.mark.parametrize("form", [*AS_INDICES, *AS_FOREGROUND, *REFUSED])
@given(classes=st.integers(2, 5), void=st.booleans(), seed=st.integers(0, 9))
@settings(max_examples=3)
def test_masks_mean_what_pillow_reads_or_are_refused(form: str, classes: int, *, void: bool, seed: int) -> None:
    """Class indices stay; black and white is a foreground, also with blurred edges; greys are refused by name."""
    with TemporaryDirectory() as name:
        folder = write_files(Path(name, "set"), in_memory(*[b""] * COUNT))
        meant = [save(mask, folder / f"masks/{n}.png", form) for n, mask in enumerate(shapes(classes, void, seed))]
        if meant[0] is None:
            with pytest.raises(LayoutError, match=r"masks/\d\.png"):
                packed(folder, Path(name, "out.h5"))
            return
        for number, found in packed(folder, Path(name, "out.h5")).items():
            np.testing.assert_array_equal(found, np.asarray(meant[int(number)]))


class Pictures:
    """Palette images, each with a palette image as its mask."""

    classes = ()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Image.Image, Image.Image]:
        image = Image.fromarray(shapes(3, void=False, seed=index)[0])
        image.putpalette([0, 0, 0, 200, 10, 20, 30, 220, 40])
        return image, image


@pytest.mark.parametrize(("sized", "header"), [(True, "ImageId_ClassId"), (False, "ImageId,ClassId")])
@pytest.mark.parametrize(("order", "way"), [("F", "down the columns"), ("C", "across the rows")])
def test_run_lengths_are_the_masks_that_were_drawn(
    tmp_path: Path, order: Any, way: str, header: str, *, sized: bool
) -> None:
    """Read in the direction in which they hold together; a class in a column or behind the name, images of any size."""
    lines, drawn = [f"{header},EncodedPixels{',Height,Width' * sized}"], dict[int, NDArray[np.uint8]]()
    for n, mask in enumerate(shapes(3, void=False, seed=1)):
        drawn[n] = mask[: 40 - n] * np.uint8(n > 0)
        for kind in (1, 2):
            edges = np.flatnonzero(np.diff((drawn[n] == kind).flatten(order), prepend=0, append=0))
            runs = " ".join(f"{first + 1} {end - first}" for first, end in edges.reshape(-1, 2).tolist())
            lines.append(f"{n}.png{header[7]}{kind},{runs}{f',{40 - n},36' * sized}")
    write_files(tmp_path / "s", {"train.csv": "\n".join(lines).encode()})
    for n, mask in drawn.items():
        Image.fromarray(np.full((*mask.shape, 3), n, np.uint8)).save(tmp_path / "s" / f"{n}.png")
    report = pack_dataset(tmp_path / "s", tmp_path / "p.h5", image_size=36, resize="stretch")
    assert any(f"Runs are read {way}, from pixel 1 on: " in note for note in report.notes)
    packed = dataset_h5(tmp_path / "p.h5", split="train")
    assert packed.classes == ("background", "1", "2")
    for number in range(COUNT):
        x, y = map(np.asarray, packed[number])
        expected = Image.fromarray(drawn[int(x.flat[0])]).resize((36, 36), Image.Resampling.NEAREST)
        np.testing.assert_array_equal(y, np.asarray(expected))


@pytest.mark.parametrize("mode", ["1", "I"])
def test_images_of_other_modes_are_as_their_files(tmp_path: Path, mode: str) -> None:
    """Black and white is 0 and 255, and 0 and 1 as a mask; 32 bits are numbers without a range."""
    bits = np.eye(4, 5) > 0
    image = Image.fromarray(bits) if mode == "1" else Image.fromarray((bits * 7).astype(np.int32))
    assert image.mode == mode
    masks = packed([(image, image)] * 2, tmp_path / "out.h5", color_mode="keep", encoding="pixels")
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["X_train"].dtype == {"1": np.uint8, "I": np.float32}[mode]
        np.testing.assert_array_equal(file["X_train"][0, ..., 0], bits * {"1": 255, "I": 7.0}[mode])
    for mask in masks.values():
        np.testing.assert_array_equal(mask, bits * {"1": 1, "I": 7}[mode])


def test_palettes_of_a_datasets_images_are_looked_up(tmp_path: Path) -> None:
    """An input's indices are colours, a mask's are classes."""
    masks = packed(Pictures(), tmp_path / "out.h5", encoding="pixels")
    with h5py.File(tmp_path / "out.h5") as file:
        for (key, mask), x in zip(masks.items(), file["X_train"], strict=True):
            image, _ = Pictures()[int("".join(filter(str.isdigit, key)))]
            np.testing.assert_array_equal(x, np.asarray(image.convert("RGB")))
            np.testing.assert_array_equal(mask, np.asarray(image))


@example(masks=[{0, 1}, {0, 255}, {0, 1}, {0, 255}])
@example(masks=[{0, 255}, {0}, {0, 1}])
@given(masks=st.lists(st.sets(st.sampled_from([0, 1, 2, 255]), min_size=1), min_size=1, max_size=5))
def test_one_foreground_in_two_ways_is_refused_by_both_masks(masks: list[set[int]]) -> None:
    """Unless 255 may be no class: because some mask has both, or there are further classes. A mask of one value alone
    says nothing."""
    files = in_memory(*(encode(Image.fromarray(np.array([sorted(one)], np.uint8)), "PNG") for one in masks))
    ones, voids = ({n for n, one in enumerate(masks) if one >= {0, value}} for value in (1, 255))
    said = ""
    try:
        found = len(read(files))
    except LayoutError as error:
        found, said = 0, str(error)
    named = {int(number) for number in re.findall(r"masks/(\d)\.png", said)}
    if any(2 in one for one in masks) or not ones or not voids or ones & voids:
        assert found == len(masks) or len(named) == 1  # of shades of grey, where too few pixels are 0
    else:
        assert named & ones
        assert named & voids


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_a_mask_that_is_all_transparency_is_refused(tmp_path: Path, mode: str) -> None:
    """Its colours say nothing, and were read as one class; where they say something, alpha does not count."""
    alpha = shapes(2, void=False, seed=0)[0] * 255
    for colours in (np.zeros_like(alpha), alpha):
        image = Image.fromarray(colours).convert(mode)
        image.putalpha(Image.fromarray(alpha))
        folder = write_files(tmp_path / f"{colours.max()}", in_memory(*[encode(image, "PNG")] * 2))
        if colours.any():
            for mask in packed(folder, tmp_path / "out.h5").values():
                np.testing.assert_array_equal(mask, colours > 0)
        else:
            with pytest.raises((DecodeError, LayoutError), match="transparent"):
                packed(folder, tmp_path / "out.h5")


def painted(folder: Path, plain: int = 0) -> NDArray[np.intp]:
    """Images and masks in true colours of three classes, after `plain` all black ones; return the classes."""
    colors = np.array([[0, 0, 0], [0, 128, 0], [128, 0, 0]], np.uint8)
    classes = np.random.default_rng(0).integers(0, 3, (24, 8, 6))
    classes[:plain] = 0
    for n, mask in enumerate(classes):
        one, other = Image.new("RGB", (6, 8), (n, 0, 0)), Image.fromarray(colors[mask])
        write_files(folder, {f"images/{n:02}.png": encode(one, "PNG"), f"masks/{n:02}.png": encode(other, "PNG")})
    return classes


def test_painted_masks_are_refused_by_the_plan_with_a_table_to_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning and staging refuse the same of an archive; the line in the error makes the table that both accept.

    Followed to the letter: the line, then the list.
    """
    classes = painted(tmp_path / "data", plain=1)
    source = Path(shutil.make_archive(str(tmp_path / "data"), "zip", tmp_path / "data"))
    places: dict[str, Any] = {"local_dir": tmp_path / "local", "cache_dir": None}
    for verb in (plan_stage, stage_dataset):
        with pytest.raises(LayoutError, match=r"class_2,128,0,0") as caught:
            verb(source, **places)
    monkeypatch.chdir(tmp_path)
    line, both = re.search(r'from pathlib.*"\)', str(caught.value)), re.search(r"\[source, .*\]", str(caught.value))
    assert line is not None
    assert both is not None
    exec(line.group())
    sources = eval(both.group())
    assert plan_stage(sources, **places).samples == {"train": 24}
    data = stage_dataset(sources, **places)
    with h5py.File(data.path) as file:
        keys = file["key_train"].asstr()[:]
    for row, key in enumerate(keys):
        np.testing.assert_array_equal(dataset_h5(data.path)[row][1], classes[int(Path(key).stem)])


def test_a_painted_mask_among_those_of_indices_is_a_broken_file(tmp_path: Path) -> None:
    """It can be left out; its error has its own colours."""
    classes = painted(tmp_path / "data")
    for number, mask in enumerate(classes[1:], 1):
        Image.fromarray(mask.astype(np.uint8)).save(tmp_path / f"data/masks/{number:02}.png")
    with pytest.raises(DecodeError, match=r"masks/00\.png.*class_2,128,0,0"):
        pack_dataset(tmp_path / "data", tmp_path / "a.h5", encoding="pixels")
    report = pack_dataset(tmp_path / "data", tmp_path / "b.h5", encoding="pixels", on_error="skip")
    assert ["00.png" in line for line in report.skipped] == [True]
