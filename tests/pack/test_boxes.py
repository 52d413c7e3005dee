"""Boxes follow their images: stretched, padded, cropped, scaled when packed or when read, in lists or padded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import DecodeError, LayoutError
from colabstage.options import Boxes, Images, SampleTable, TreeFiles
from colabstage.trees.listing import Tree
from tests.images.files import encode
from tests.support.made_files import write_files

COUNT = 20


def size_of(number: int) -> tuple[int, int]:
    return 40 + number % 7, 60 - number % 5


def boxes_of(number: int) -> NDArray[np.float64]:
    """Up to three boxes inside the image; none in every fourth."""
    height, width = size_of(number)
    rng = np.random.default_rng(number)
    corners = np.sort(rng.integers(0, 1000, (number % 4, 2, 2)) / 1000, axis=1)
    corners[:, 1] += 1e-3
    return (corners * (width - 1, height - 1)).reshape(-1, 4)


@pytest.fixture
def street(tmp_path: Path) -> Path:
    greys = (Image.new("RGB", size_of(number)[::-1], (number, number, number)) for number in range(COUNT))
    return write_files(
        tmp_path / "street", {f"{number:02}.png": encode(one, "PNG") for number, one in enumerate(greys)}
    )


def sized(tree: Tree) -> SampleTable:
    """The same boxes, with the sizes of the images on which they were drawn."""
    table = boxed(tree)
    assert isinstance(table.targets, Boxes)
    sizes = np.array([size_of(number) for number in range(COUNT)], np.int64)
    return replace(table, targets=replace(table.targets, sizes=sizes))


def test_shards_compare_each_image_with_its_own_size(tmp_path: Path, street: Path) -> None:
    """A shard's rows are some of the samples, and so are the sizes in label files."""
    report = pack_dataset(street, tmp_path / "out.h5", layout=sized, image_size=(16, 16), shards=3, progress=False)
    assert report.samples == {"train": COUNT}
    Image.new("RGB", (9, 9)).save(street / "17.png")
    with pytest.raises(DecodeError, match=r"17\.png.*43 x 58"):
        pack_dataset(street, tmp_path / "2.h5", layout=sized, image_size=(16, 16), shards=3, progress=False)


def boxed(tree: Tree, *, relative: bool = False) -> SampleTable:
    """Images with their boxes, whose labels are the image's number, and a weight."""
    found = [boxes_of(number) for number in range(COUNT)]
    offsets = np.concatenate([[0], np.cumsum([len(boxes) for boxes in found])]).astype(np.int64)
    if relative:
        found = [boxes / np.tile(size_of(number)[::-1], 2) for number, boxes in enumerate(found)]
    labels = np.repeat(np.arange(COUNT), np.diff(offsets)).astype(np.int64)
    columns: dict[str, NDArray[Any]] = {"labels": labels, "weight": (labels / 8).astype(np.float32)}
    boxes = Boxes(offsets, np.concatenate(found), columns, relative=relative)
    keys = tuple(entry.name for entry in tree.entries)
    return SampleTable("street", keys, Images(TreeFiles(tree, tree.entries)), boxes, classes=("car",))


def relative(tree: Tree) -> SampleTable:
    return boxed(tree, relative=True)


def expected(number: int, size: tuple[int, int] | None, resize: str) -> NDArray[np.float64]:
    (height, width) = size_of(number)
    boxes = boxes_of(number)
    if size is None:
        return boxes
    down, across = size[0] / height, size[1] / width
    if resize == "stretch":
        boxes *= np.array((across, down, across, down))
        return boxes
    if resize == "pad":
        scale = min(down, across)
        inner = (round(height * scale), size[1]) if across <= down else (size[0], round(width * scale))
        moved: NDArray[np.float64] = boxes * np.tile((inner[1] / width, inner[0] / height), 2)
        moved += np.tile(((size[1] - inner[1]) // 2, (size[0] - inner[0]) // 2), 2)
        return moved
    scale = max(down, across)
    moved = boxes * scale - np.tile(((width * scale - size[1]) / 2, (height * scale - size[0]) / 2), 2)
    cut: NDArray[np.float64] = np.clip(moved, 0, np.tile(size[::-1], 2))
    return cut[(cut[:, 2] > cut[:, 0]) & (cut[:, 3] > cut[:, 1])]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("encoding", "layout", "resize"),
    [
        ("pixels", boxed, "stretch"),
        ("encoded", boxed, "pad"),
        ("pixels", boxed, "pad"),
        ("pixels", boxed, "crop"),
        ("encoded", relative, "crop"),
    ],
)
def test_boxes_move_with_their_images(
    tmp_path: Path, street: Path, resize: Any, encoding: Any, layout: Callable[[Tree], SampleTable]
) -> None:
    """Whether images are resized when they are packed or when they are read, every box is on its part of the image, and
    boxes cut away by cropping are gone."""
    out = tmp_path / "out.h5"
    size = (16, 48) if layout is relative else (32, 24)  # cut at the sides, or at top and bottom
    pack_dataset(
        street, out, layout=layout, encoding=encoding, image_size=size, resize=resize,
        splits={"train": 0.5, "test": 0.5}, progress=False,
    )  # fmt: skip
    rows = 0
    for split in ("train", "test"):
        dataset = dataset_h5(out, split=split)
        for row, key in enumerate(dataset.reader.keys()):
            number = int(key[:2])
            _, y = dataset[row]
            assert list(y) == ["boxes", "labels", "weight"]
            assert (y["boxes"].dtype, y["labels"].dtype) == (np.float32, np.int64)
            np.testing.assert_allclose(y["boxes"], expected(number, size, resize), atol=1e-4)
            assert y["labels"].tolist() == [number] * len(y["boxes"])
            np.testing.assert_array_equal(y["weight"], y["labels"].astype(np.float32) / 8)
            rows += 1
    assert rows == COUNT


@pytest.mark.parametrize("transform", [None, lambda x: x.astype(np.float32)])
def test_a_batch_has_what_detection_models_take(
    tmp_path: Path, street: Path, transform: Callable[[Any], Any] | None
) -> None:
    """A list of dicts of tensors, one for each image; or one dict of padded tensors, on request."""
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    from colabstage import make_loader

    out = tmp_path / "out.h5"
    pack_dataset(street, out, layout=boxed, image_size=(16, 16), progress=False)
    dataset = dataset_h5(out, transform)
    with (
        make_loader(dataset, 7, shuffle=False) as loader,
        make_loader(dataset, 7, shuffle=False, ragged="pad", device="cpu") as padded,
    ):
        for number, ((x, y), (_, filled)) in enumerate(zip(loader, padded, strict=True)):
            assert len(x) == len(y)
            longest = max(len(target["labels"]) for target in y)
            assert filled["boxes"].shape == (len(y), longest, 4)
            for place, target in enumerate(y):
                stored = dataset[number * 7 + place][1]
                count = int(filled["lengths"][place])
                assert torch.equal(target["boxes"], torch.from_numpy(stored["boxes"]))
                assert torch.equal(filled["labels"][place, :count], target["labels"])
                assert torch.equal(filled["boxes"][place, :count], target["boxes"])
                assert bool((filled["labels"][place, count:] == -1).all())


def test_boxes_that_do_not_add_up_are_refused() -> None:
    """Columns of another length, offsets that do not end at the last box, boxes with three numbers."""
    two = np.zeros((2, 4))
    ends = np.array([0, 2])
    with pytest.raises(LayoutError, match=r"'labels'.*expected 2 rows"):
        Boxes(ends, two, {"labels": np.zeros(3, np.int64)})
    with pytest.raises(LayoutError, match="do not ascend"):
        Boxes(np.array([0, 1]), two)
    with pytest.raises(LayoutError, match=r"\(2, 3\)"):
        Boxes(ends, np.zeros((2, 3)))
