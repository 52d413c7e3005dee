"""Targets of every kind from source to reader: the Dataset returns what plain h5py and Pillow read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import DecodeError, LayoutError
from colabstage.options import Images, Masks, SampleTable, TreeFiles, Values
from colabstage.trees.listing import Tree
from tests.images.files import encode
from tests.support.made_files import write_files

COUNT = 12
COLORS = ((0, 0, 0), (255, 0, 0), (0, 255, 0))


def size_of(number: int, *, mixed: bool) -> tuple[int, int]:
    return (20 + number % 5, 30 - number % 3) if mixed else (20, 30)


@pytest.fixture
def scenes(tmp_path: Path) -> Callable[..., Path]:
    """Images 00.jpg, 01.png, … and masks of the same size beside them, as indices, palettes or colours."""

    def make(*, mixed: bool = False, masks: str = "index") -> Path:
        made = {}
        for number in range(COUNT):
            rng = np.random.default_rng(number)
            size, (end, kind) = size_of(number, mixed=mixed), (("jpg", "JPEG"), ("png", "PNG"))[number % 2]
            made[f"{number:02}.{end}"] = encode(Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)), kind)
            indices = rng.integers(0, len(COLORS), size, dtype=np.uint8)
            mask = Image.fromarray(np.array(COLORS, np.uint8)[indices] if masks == "color" else indices)
            if masks == "palette":
                mask.putpalette([part for color in COLORS for part in color])
            made[f"{number:02}_mask.png"] = encode(mask, "PNG")
        return write_files(tmp_path / "scenes", made)

    return make


def masked(tree: Tree, colors: Any = None) -> SampleTable:
    """A user's own layout: images with the masks beside them."""
    masks = [entry for entry in tree.entries if "_mask" in entry.name]
    images = [entry for entry in tree.entries if "_mask" not in entry.name]
    keys = tuple(entry.name for entry in images)
    classes = ("sky", "road", "car")
    return SampleTable(
        "mine", keys, Images(TreeFiles(tree, images)), Masks(TreeFiles(tree, masks), colors), classes=classes
    )


def painted(tree: Tree) -> SampleTable:
    return masked(tree, COLORS)


def expected_mask(folder: Path, key: str, size: tuple[int, int] | None, resize: str) -> NDArray[np.uint8]:
    with Image.open(folder / f"{key[:2]}_mask.png") as opened:
        if opened.mode == "RGB":
            colors = np.asarray(opened).astype(int)
            indices = np.select([(colors == color).all(axis=2) for color in COLORS], range(len(COLORS)))
            mask = Image.fromarray(indices.astype(np.uint8))
        else:
            mask = Image.fromarray(np.asarray(opened))
    if size is None:
        return np.asarray(mask)
    if resize == "stretch":
        return np.asarray(mask.resize(size[::-1], Image.Resampling.NEAREST))
    scale = max if resize == "crop" else min
    height, width = mask.height, mask.width
    factor = scale(size[0] / height, size[1] / width)
    if resize == "crop":
        box_w, box_h = size[1] / factor, size[0] / factor
        left, top = (width - box_w) / 2, (height - box_h) / 2
        box = (left, top, left + box_w, top + box_h)
        return np.asarray(mask.resize(size[::-1], Image.Resampling.NEAREST, box))
    inner = (round(height * factor), round(width * factor))
    result = np.full(size, 255, np.uint8)
    top, left = (size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2
    scaled = np.asarray(mask.resize(inner[::-1], Image.Resampling.NEAREST))
    result[top : top + inner[0], left : left + inner[1]] = scaled
    return result


@pytest.mark.torch
@pytest.mark.parametrize(
    ("encoding", "masks", "size", "resize"),
    [
        ("pixels", "index", None, "stretch"), ("encoded", "palette", (10, 12), "stretch"),
        ("pixels", "palette", (10, 12), "stretch"), ("pixels", "color", (16, 16), "crop"),
        ("encoded", "color", (16, 16), "crop"), ("encoded", "index", (16, 16), "pad"),
    ],
)  # fmt: skip
def test_masks_keep_their_classes_and_lie_on_their_images(
    tmp_path: Path, scenes: Callable[..., Path], encoding: Any, masks: str, size: tuple[int, int] | None, resize: Any
) -> None:
    """Every mask, stored as indices or as its file, is Pillow's nearest-pixel version of it."""
    folder = scenes(mixed=size is not None, masks=masks)
    layout = painted if masks == "color" else masked
    out = tmp_path / "out.h5"
    pack_dataset(folder, out, layout=layout, encoding=encoding, image_size=size, resize=resize, progress=False)
    dataset = dataset_h5(out)
    keys = dataset.reader.keys()
    for row, key in enumerate(keys):
        x, y = dataset[row]
        assert y.dtype == np.uint8
        assert y.shape == x.shape[:2]
        np.testing.assert_array_equal(y, expected_mask(folder, key, size, resize))
    with h5py.File(out) as file:
        if encoding == "pixels":
            assert file["Y_train"].shape == (COUNT, *(size or (20, 30)))
            np.testing.assert_array_equal(file["Y_train"][()], dataset.read_batch(range(COUNT))[1])
        else:
            first = file["Y_train/bytes"][: file["Y_train/offsets"][1]].tobytes()
            assert first == (folder / f"{keys[0][:2]}_mask.png").read_bytes()


def test_masks_of_many_sizes_come_as_a_list(tmp_path: Path, scenes: Callable[..., Path]) -> None:
    """Like their images, each in its own size; a loader's batch has lists of both."""
    pytest.importorskip("torch", reason="needs torch: pip install torch")
    from colabstage import make_loader

    folder = scenes(mixed=True)
    out = tmp_path / "out.h5"
    assert pack_dataset(folder, out, layout=masked, progress=False).encoding == "encoded"
    dataset = dataset_h5(out)
    keys = dataset.reader.keys()
    x, y = dataset.read_batch([3, 5])
    assert [np.asarray(mask).shape for mask in y] == [image.shape[:2] for image in x]
    np.testing.assert_array_equal(y[1], expected_mask(folder, keys[5], None, ""))
    with make_loader(dataset, 4, shuffle=False) as loader:
        images, found = next(iter(loader))
        assert [tuple(mask.shape) for mask in found] == [tuple(image.shape[1:]) for image in images]


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_a_mask_of_another_size_is_named(tmp_path: Path, scenes: Callable[..., Path], encoding: Any) -> None:
    """A mask that does not fit its image is one broken sample, named by the mask."""
    folder = scenes()
    Image.new("L", (29, 20)).save(folder / "07_mask.png")
    options = {"layout": masked, "encoding": encoding, "image_size": (8, 8), "progress": False}
    with pytest.raises(DecodeError, match=r"07_mask\.png.*20 x 29.*20 x 30"):
        pack_dataset(folder, tmp_path / "out.h5", **options)
    report = pack_dataset(folder, tmp_path / "out.h5", on_error="skip", **options)
    assert report.samples == {"train": COUNT - 1}


def test_a_colour_of_no_class_is_named_with_its_place(tmp_path: Path, scenes: Callable[..., Path]) -> None:
    """No pixel's class is guessed."""
    folder = scenes(masks="color")
    with Image.open(folder / "03_mask.png") as mask:
        mask.putpixel((2, 1), (7, 8, 9))
        mask.save(folder / "03_mask.png")
    with pytest.raises(DecodeError, match=r"03_mask\.png.*\(7, 8, 9\)"):
        pack_dataset(folder, tmp_path / "out.h5", layout=painted, image_size=(8, 8), progress=False)


def test_keys_that_are_no_names_are_refused(tmp_path: Path, scenes: Callable[..., Path]) -> None:
    """Two samples with one name, and a table with one target too few, are typed errors."""
    folder = scenes()

    def twice(tree: Tree) -> SampleTable:
        entries = [tree.entries[0], tree.entries[0]]
        return SampleTable("mine", ("a", "a"), Images(TreeFiles(tree, entries)), None)

    def short(tree: Tree) -> SampleTable:
        return SampleTable("mine", ("a",), Images(TreeFiles(tree, tree.entries[:1])), Values(np.zeros(2)))

    for layout, says in ((twice, "key 'a'"), (short, "got 2 targets")):
        with pytest.raises(LayoutError, match=says):
            pack_dataset(folder, tmp_path / "out.h5", layout=layout, progress=False)
