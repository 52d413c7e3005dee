"""Boxes in items of dataset objects (torchvision's, Hugging Face's and those of tutorials), packed as the items have
them."""

import enum
import io
import json
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import DecodeError, LayoutError, OptionError
from colabstage.options import Boxes, Images, SampleTable, TreeFiles
from colabstage.trees.listing import Tree
from tests.images.files import encode
from tests.support.made_files import write_files

COUNT = 24


def size_of(number: int) -> tuple[int, int]:
    return 40 + number % 5, 60 - number % 3


def picture(number: int) -> Image.Image:
    """An image unique to its number."""
    values = np.random.default_rng(number).integers(0, 256, (*size_of(number), 3), dtype=np.uint8)
    return Image.fromarray(values)


def corners(number: int) -> NDArray[np.float64]:
    """Up to three boxes inside it, in whole pixels; none in the first."""
    rng = np.random.default_rng(number)
    begin = rng.integers(5, 20, (number % 4, 2))
    return np.concatenate([begin, begin + rng.integers(2, 20, (number % 4, 2))], axis=1).astype(np.float64)


def sizes(number: int) -> NDArray[np.float64]:
    """The same as left, top, width and height."""
    boxes = corners(number)
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


def labels(number: int) -> NDArray[np.int64]:
    return (np.arange(len(corners(number))) + number) % 3


class Items:
    def __init__(self, item: Callable[[int], Any], **attributes: Any) -> None:
        self._item = item
        self.asked: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        self.threads.add(threading.current_thread())
        return self._item(index)


class Format(enum.Enum):
    XYXY = "XYXY"
    XYWH = "XYWH"
    CXCYWH = "CXCYWH"
    XYWHR = "XYWHR"


def tensor(values: Any) -> Any:
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    return torch.as_tensor(values)


def bounding_boxes(values: NDArray[np.float64], form: Format) -> Any:
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")

    kind: Any = type("BoundingBoxes", (torch.Tensor,), {})
    boxes = torch.as_tensor(values, dtype=torch.float32).as_subclass(kind)
    boxes.format = form
    return boxes


def centres(number: int) -> NDArray[np.float64]:
    boxes = sizes(number)
    boxes[:, :2] += boxes[:, 2:] / 2
    return boxes


def coco(number: int) -> list[dict[str, Any]]:
    """Annotations as returned by COCO's own reader, and so by torchvision's CocoDetection."""
    return [
        {
            "id": 10 * number + place, "image_id": number, "category_id": 2 * int(label) + 1, "bbox": box.tolist(),
            "area": float(box[2] * box[3]), "iscrowd": place % 2, "segmentation": [[0.0, 0.0, 1.0, 0.0, 1.0, 1.0]],
        }
        for place, (box, label) in enumerate(zip(sizes(number), labels(number), strict=True))
    ]  # fmt: skip


def as_lists(boxes: NDArray[np.float64], number: int) -> dict[str, list[Any]]:
    """What `datasets` returns for a list of objects."""
    return {"bbox": boxes.tolist(), "category": labels(number).tolist(), "id": list(range(len(boxes)))}


TARGETS: dict[str, Callable[[int], Any]] = {
    "the tutorial's": lambda i: (
        picture(i), {"boxes": tensor(corners(i)).float(), "labels": tensor(labels(i)), "image_id": i},
    ),
    "BoundingBoxes": lambda i: (
        picture(i), {"boxes": bounding_boxes(sizes(i), Format.XYWH), "labels": tensor(labels(i))},
    ),
    "centres": lambda i: (
        picture(i), {"boxes": bounding_boxes(centres(i), Format.CXCYWH), "labels": tensor(labels(i))},
    ),
    # For an image without annotations, torchvision's wrapper of CocoDetection returns nothing else.
    "wrapped": lambda i: (
        picture(i),
        {"image_id": i} | ({"boxes": tensor(corners(i)), "labels": tensor(labels(i))} if i % 4 else {}),
    ),
    "numpy": lambda i: (picture(i), {"boxes": corners(i), "labels": labels(i).astype(np.float32)}),
    "parts of width and height": lambda i: (
        picture(i), {"boxes": corners(i) / (*size_of(i)[::-1], *size_of(i)[::-1]), "labels": labels(i)},
    ),
    "only in some": lambda i: {"image": picture(i)} | ({"boxes": corners(i), "labels": labels(i)} if i % 4 else {}),
    "two flags": lambda i: (
        picture(i), {"boxes": corners(i), "labels": labels(i), "iscrowd": labels(i), "is_crowd": labels(i)},
    ),
    "lists of sizes": lambda i: {"image": picture(i), "image_id": i, "objects": as_lists(sizes(i), i)},
    "lists of corners": lambda i: {"image": picture(i), "objects": as_lists(corners(i), i)},
    "dicts": lambda i: {
        "image": picture(i),
        "objects": [{"bbox": b.tolist(), "category": int(c)} for b, c in zip(sizes(i), labels(i), strict=True)],
    },
    "nothing for none": lambda i: {"image": picture(i), "objects": as_lists(sizes(i), i) if i % 4 else None},
    "nothing for none, by another name": lambda i: {
        "image": picture(i + 1 if i == 0 else i), "faces": as_lists(sizes(i), i) if i % 4 or i == 0 else None,
    },
    "side by side": lambda i: {"image": picture(i), "bboxes": sizes(i).tolist(), "labels": labels(i).tolist(), "id": i},
}  # fmt: skip


def stored(path: Path) -> dict[int, dict[str, NDArray[Any]]]:
    """The columns of each item's boxes, read by plain h5py."""
    return {int(key): columns for key, columns in stored_by_key(path).items()}


def stored_by_key(path: Path) -> dict[str, dict[str, NDArray[Any]]]:
    with h5py.File(path) as file:
        offsets = file["Y_train/offsets"][()]
        columns = {name: file[f"Y_train/{name}"][()] for name in file["Y_train"] if name != "offsets"}
        keys = file["key_train"].asstr()[()]
        return {
            key: {name: values[offsets[row] : offsets[row + 1]] for name, values in columns.items()}
            for row, key in enumerate(keys)
        }


@pytest.mark.parametrize("item", TARGETS.values(), ids=TARGETS.keys())
def test_boxes_are_those_of_the_items(tmp_path: Path, item: Callable[[int], Any]) -> None:
    """Whatever their names and format, boxes become corners in pixels, float32, and labels int64. Each item is
    requested once, in ascending order and in the caller's thread, as by a stock loader: some seek in one file."""
    items = Items(item)
    report = pack_dataset(items, tmp_path / "out.h5", image_size=(80, 120), resize="stretch", progress=False)
    assert (items.asked, items.threads) == (list(range(COUNT)), {threading.current_thread()})
    assert report.readers == 1
    for number, found in stored(tmp_path / "out.h5").items():
        height, width = size_of(number)
        expected = corners(number) * (120 / width, 80 / height, 120 / width, 80 / height)
        np.testing.assert_allclose(found["boxes"], expected, rtol=1e-6)
        assert found["labels"].tolist() == labels(number).tolist()
        assert (found["boxes"].dtype, found["labels"].dtype) == (np.dtype(np.float32), np.dtype(np.int64))


def boxed(tree: Tree) -> SampleTable:
    found = [corners(number) for number in range(COUNT)]
    offsets = np.concatenate([[0], np.cumsum([len(boxes) for boxes in found])]).astype(np.int64)
    columns = {"labels": np.concatenate([labels(number) for number in range(COUNT)])}
    files = TreeFiles(tree, tree.entries)
    keys = tuple(entry.name.removesuffix(".png") for entry in tree.entries)
    return SampleTable("files", keys, Images(files), Boxes(offsets, np.concatenate(found), columns))


@pytest.mark.parametrize(
    "options",
    [
        {"image_size": (32, 24), "resize": "crop", "splits": {"train": 0.5, "test": 0.5}},
        {"image_size": (16, 16), "encoding": "jpeg:90"},
        {"image_size": (16, 16), "shards": 3},
    ],
    ids=["crop", "jpeg", "shards"],
)
def test_the_pack_is_that_of_files_with_the_same_boxes(tmp_path: Path, read_pack: Any, options: dict[str, Any]) -> None:
    """Every dataset in the file is the same, for every encoding and every shard."""
    made = {f"{number:02}.png": encode(picture(number), "PNG") for number in range(COUNT)}
    folder = write_files(tmp_path / "files", made)
    items = Items(lambda i: (picture(i), {"boxes": corners(i), "labels": labels(i)}))
    ours = pack_dataset(items, tmp_path / "items.h5", progress=False, **options)
    theirs = pack_dataset(folder, tmp_path / "folder.h5", layout=boxed, progress=False, **options)
    assert ours.samples == theirs.samples

    for one, other in zip(ours.files or (ours.path,), theirs.files or (theirs.path,), strict=True):
        found, expected = read_pack(Path(one)), read_pack(Path(other))
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_annotations_of_cocos_own_reader(tmp_path: Path) -> None:
    """As returned by CocoDetection: labels stay category ids, names have their gaps, flags and areas are columns."""
    reading = pytest.importorskip("pycocotools.coco", reason="needs pycocotools: pip install pycocotools")
    content = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "height": 1, "width": 1} for n in range(COUNT)],
        "annotations": [one for n in range(COUNT) for one in coco(n)],
        "categories": [{"id": 2 * n + 1, "name": ("cat", "dog", "owl")[n]} for n in range(3)],
    }
    (tmp_path / "coco.json").write_text(json.dumps(content))
    with redirect_stdout(io.StringIO()):
        reader = reading.COCO(str(tmp_path / "coco.json"))
    items = Items(lambda i: (picture(i), reader.loadAnns(reader.getAnnIds(i))), coco=reader)
    report = pack_dataset(items, tmp_path / "out.h5", image_size=(16, 16), progress=False)
    assert report.classes == ("N/A", "cat", "N/A", "dog", "N/A", "owl")
    assert any("'id', 'image_id', 'segmentation'" in note for note in report.notes)
    for number, found in stored(tmp_path / "out.h5").items():
        assert found["labels"].tolist() == [one["category_id"] for one in coco(number)]
        assert found["iscrowd"].tolist() == [one["iscrowd"] for one in coco(number)]
        np.testing.assert_array_equal(found["area"], np.array([one["area"] for one in coco(number)], np.float32))


@pytest.mark.parametrize("written", ["dict of lists", "list of dicts"])
def test_a_dataset_of_hugging_faces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    """A real one, with class names; in its other formats too, and with transforms on reading."""
    datasets = pytest.importorskip("datasets", reason="needs datasets: pip install datasets")
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # a thread that `datasets` would leave behind
    one = {
        "bbox": datasets.Sequence(datasets.Value("float32"), length=4),
        "category": datasets.ClassLabel(names=["cat", "dog", "owl"]),
        "area": datasets.Value("int64"),
    }
    features = {"image": datasets.Image(), "objects": datasets.Sequence(one) if written == "dict of lists" else [one]}
    objects: list[Any] = [
        [{"bbox": b, "category": c, "area": b[2] * b[3]} for b, c in zip(sizes(i).tolist(), labels(i), strict=True)]
        for i in range(COUNT)
    ]
    if written == "dict of lists":
        objects = [{key: [each[key] for each in boxes] for key in one} for boxes in objects]
    content = {"image": [picture(0)] * COUNT, "objects": objects}
    dataset = datasets.Dataset.from_dict(content, features=datasets.Features(features))
    formats = (dataset.with_format(name) for name in ("numpy", "torch"))
    for source in (dataset, dataset.with_transform(lambda batch: batch), *formats):
        report = pack_dataset(source, tmp_path / "out.h5", overwrite=True, progress=False)
        assert report.classes == ("cat", "dog", "owl")
        for number, found in stored(tmp_path / "out.h5").items():
            np.testing.assert_array_equal(found["boxes"], corners(number))
            assert found["labels"].tolist() == labels(number).tolist()
            np.testing.assert_array_equal(found["area"], sizes(number)[:, 2] * sizes(number)[:, 3])


def some(**fields: Any) -> Callable[[int], Any]:
    return lambda i: (picture(i), {name: value(i) for name, value in fields.items()})


VOC_TARGET = {"annotation": {"object": [{"name": "dog", "bndbox": {"xmin": "1"}}]}}


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (lambda i: (picture(i), VOC_TARGET), r"dict of 'annotation'.*wrap_dataset_for_transforms_v2"),
        (lambda i: (picture(i), [{"type": "Car", "bbox": [30, 9, 39, 20]}]), r"'Car' under 'type'.*wrap_dataset_for"),
        (
            lambda i: (np.zeros((3, 9, 9)), {"boxes": np.full((1, 4), 0.5), "labels": [0]}),
            r"parts of width and height, on an array; expected corners in pixels",
        ),
        (some(boxes=corners), r"Items\[1\].* 0 values in 'labels'.*zeros"),
        (
            some(boxes=lambda i: [[0.1, 0.2, 9, 9] if i == 20 else [0.1, 0.2, 0.5, 0.5]], labels=lambda i: [0]),
            r"Items\[20\] has boxes in pixels, and the first items parts",
        ),
        (some(boxes=lambda i: np.ma.masked_less([[1, 2, 3, 4]], 2)), r"Items\[0\] has MaskedArray .* some are masked"),
        (
            lambda i: (picture(i), [picture(0).convert("L")] * 2),
            r"Items\[0\] has 2 images as its target; expected one mask",
        ),
        (
            lambda i: {"image": picture(i), "label": 0} | ({"mask": picture(i)} if i == 20 else {}),
            r"Items\[20\] has 'mask', which the first items lack",
        ),
        (
            lambda i: (picture(i), {"boxes": [[1, 2, 3, 4]], "labels": [0]} | ({"iscrowd": [1]} if i == 20 else {})),
            r"Items\[20\] has 'iscrowd', which the first items lack",
        ),
        (
            lambda i: {"image": picture(i), "mask": picture(i).convert("L"), "boxes": [[1, 2, 3, 4]], "labels": [0]},
            r"mapping of 'image', 'mask', 'boxes', 'labels'; expected",
        ),
        (lambda i: {"image": picture(i), "cls": 0}, r"mapping of 'image', 'cls'; expected"),
        (some(boxes=lambda i: [[9, 9, 2, 2]], labels=lambda i: [0]), r"Items\[0\].*no xyxy; expected x0 <= x1"),
        (some(boxes=lambda i: [[1, 2, np.nan, 4]], labels=lambda i: [0]), r"finite"),
        (some(boxes=lambda i: [[1, 2, 3, 4]], labels=lambda i: [0, 1]), r"1 boxes in 'boxes' and 2 values in 'labels'"),
        (some(boxes=lambda i: [[1, 2, 3, 4]], labels=lambda i: ["dog"]), r"'dog' under 'labels'.*Number the classes"),
        (some(boxes=lambda i: [[1, 2, 3, 4]], labels=lambda i: [0.5]), r"0.5 under 'labels'; expected a whole"),
        *(
            (
                some(boxes=lambda i: [[1, 2, 3, 4]], labels=lambda i: [0], iscrowd=lambda i, odd=odd: [odd]),
                rf"{odd} under 'iscrowd'; expected uint8",
            )
            for odd in (300, 0.5)
        ),
        (
            lambda i: (picture(i), {"boxes": bounding_boxes(np.ones((1, 5)), Format.XYWHR), "labels": [0]}),
            r"form XYWHR; expected one of XYXY, XYWH, CXCYWH",
        ),
        (
            lambda i: {"image": picture(i), "objects": {"bbox": [[1, 1, 9, 9]], "category": [0]}},
            r"xyxy .*xywh",
        ),
        (lambda i: (picture(i), []), r"Items\[0\] has no boxes, like the items after it"),
        (
            lambda i: (picture(i), 3 if i == 20 else {"boxes": [[1, 2, 3, 4]], "labels": [0]}),
            r"Items\[20\] has int as its target",
        ),
    ],
)
def test_what_cannot_be_boxes_is_one_typed_error(tmp_path: Path, item: Callable[[int], Any], says: str) -> None:
    """It says which item, what it has, and what was expected; nothing is written."""
    with pytest.raises((LayoutError, DecodeError), match=says):
        pack_dataset(Items(item), tmp_path / "out.h5", image_size=(8, 8), progress=False)
    assert list(tmp_path.iterdir()) == []


def test_labels_beyond_the_names_are_refused(tmp_path: Path) -> None:
    """Labels from 1, with names that lack the background, would give every box its neighbour's name."""
    items = Items(some(boxes=corners, labels=lambda i: labels(i) + 1), classes=["cat", "dog", "owl"])
    with pytest.raises(LayoutError, match=r"class 3\b"):
        pack_dataset(items, tmp_path / "out.h5", image_size=(8, 8), progress=False)


def test_broken_items_take_their_boxes_with_them(tmp_path: Path) -> None:
    """An item that raises, and one with an impossible box, are left out; the others keep theirs."""

    def item(number: int) -> Any:
        boxes = corners(number)
        if number in (2, 18):
            boxes[0, 2] = 0
        return picture(number), {"boxes": boxes, "labels": labels(number if number != 7 else 1 // 0)}

    report = pack_dataset(Items(item), tmp_path / "out.h5", image_size=(8, 8), on_error="skip", progress=False)
    assert report.samples == {"train": COUNT - 3}
    assert sorted(why.partition(":")[0] for why in report.skipped) == ["Items[18]", "Items[2]", "Items[7]"]
    found = stored(tmp_path / "out.h5")
    assert found.keys() == set(range(COUNT)) - {2, 7, 18}
    assert all(one["labels"].tolist() == labels(number).tolist() for number, one in found.items())
    with h5py.File(tmp_path / "out.h5") as file:
        assert np.all(file["Y_train/labels"][file["Y_train/offsets"][-1] :] == -1)


def test_boxes_on_arrays_stay_where_they_are(tmp_path: Path) -> None:
    """Channels-first tensors are stored unchanged, whatever image_size is; prepare= is refused."""
    items = Items(lambda i: (np.zeros((3, 40, 60), np.float32), {"boxes": corners(i), "labels": labels(i)}))
    pack_dataset(items, tmp_path / "out.h5", image_size=(8, 8), progress=False)
    for number, found in stored(tmp_path / "out.h5").items():
        np.testing.assert_array_equal(found["boxes"], corners(number))
    with pytest.raises(OptionError, match="prepare="):
        pack_dataset(items, tmp_path / "2.h5", prepare=lambda x: x, progress=False)


def test_boxes_are_appended(tmp_path: Path) -> None:
    """To a pack with the same columns; different ones are refused."""
    items = Items(some(boxes=corners, labels=labels))
    pack_dataset(items, tmp_path / "out.h5", image_size=(8, 8), progress=False)
    report = pack_dataset(items, append_to=tmp_path / "out.h5", progress=False)
    assert report.samples == {"train": COUNT}
    with pytest.raises(OptionError, match="cannot be appended"):
        pack_dataset(
            Items(some(boxes=corners, labels=labels, iscrowd=labels)), append_to=tmp_path / "out.h5", progress=False
        )


@pytest.mark.parametrize("facts", [{"bbox": [1, 2, 3, 4]}, {"face": {"bbox": [1, 2, 3, 4]}}, {"meta": {}, "idx": 3}])
def test_facts_of_each_image_are_left_out(tmp_path: Path, facts: dict[str, Any]) -> None:
    """As a box in CUB and Stanford Cars on the Hub: a label is the target, and a note names the rest."""
    label = {} if "idx" in facts else {"label": 1}
    items = Items(lambda i: {"image": picture(i), **label, **facts})
    report = pack_dataset(items, tmp_path / "out.h5", image_size=(8, 8), progress=False)
    assert any(f"left out: {next(iter(facts))!r}" in note for note in report.notes)
    with h5py.File(tmp_path / "out.h5") as file:
        assert ("Y_train" in file) == bool(label)
