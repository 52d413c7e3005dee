"""TFRecord files, as TensorFlow writes them, read as it reads them."""

from __future__ import annotations

import io
import json
import struct
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import CorruptArchiveError, DecodeError, EmptySourceError, LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.formats.tfrecord import BadMessageError, parse_example
from colabstage.options import Boxes, Images, Masks, Values
from colabstage.trees.folder import FolderFile, FolderTree
from tests.layouts.readers import contents, labels, picture

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.nurseries import Nurseries

writing = pytest.importorskip("tfrecord.writer", reason="needs tfrecord: pip install -c constraints.txt tfrecord")
reading = pytest.importorskip("tfrecord.reader", reason="needs tfrecord: pip install -c constraints.txt tfrecord")

CHILD = Path(__file__).with_name("tensorflow_records.py")
CORNERS = {"xmin": 0.25, "ymin": 0.5, "xmax": 0.75, "ymax": 1.0}


def write(path: Path, content: Sequence[Mapping[str, Any] | bytes]) -> Path:
    """Make a file with the writer of the package tfrecord; what is bytes is a record as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = writing.TFRecordWriter(str(path))
    for one in content:
        if isinstance(one, bytes):
            length = struct.pack("<Q", len(one))
            for part in (length, writer.masked_crc(length), one, writer.masked_crc(one)):
                writer.file.write(part)
        else:
            writer.write({name: _feature(value) for name, value in one.items()})
    writer.close()
    return path


def _feature(value: Any) -> tuple[list[Any], str]:
    values = value if isinstance(value, list) else [value]
    if any(isinstance(one, float) for one in values) or not values:
        return values, "float"
    if all(isinstance(one, int) for one in values):
        return values, "int"
    return [one.encode() if isinstance(one, str) else one for one in values], "byte"


def read_back(path: Path) -> list[tuple[bytes, int]]:
    """Images and labels as the reader of the package tfrecord gives them."""
    kinds = {"image": "byte", "label": "int"}
    return [(bytes(one["image"]), int(one["label"][0])) for one in reading.tfrecord_loader(str(path), None, kinds)]


@pytest.fixture(scope="module")
def by_tensorflow(tmp_path_factory: pytest.TempPathFactory, nurseries: Nurseries) -> tuple[Path, dict[str, Any]]:
    """Files that TensorFlow has written, and what it reads from them."""
    if find_spec("tensorflow") is None:
        pytest.skip("needs tensorflow: pip install -c constraints.txt tensorflow-cpu")
    folder = tmp_path_factory.mktemp("records")
    return folder, json.loads(nurseries.run_script("tensorflow", [CHILD, folder], {}))


def plain(count: int) -> list[dict[str, Any]]:
    """Images with a class."""
    return [{"image": picture(n), "label": n % 3} for n in range(count)]


@pytest.mark.parametrize("broken", [False, True])
def test_records_and_a_table_of_the_same_images_are_told_apart(tmp_path: Path, broken: bool) -> None:
    """As Kaggle ships cassava: images with a table, and all of them once more as records. Neither is taken in silence,
    also where the table has a fault, and each can be asked for."""
    numbers = [1000015157, 1000201771, 100042118, 1000723321]
    rows = [f"{number}.jpg,{place % 3}" for place, number in enumerate(numbers)]
    for number in [*numbers, 2216849948]:
        folder = tmp_path / ("train_images" if number in numbers else "test_images")
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(picture(number))
    text = "\n".join(["image_id,label", *rows, *(["gone.jpg,2"] if broken else [])])
    (tmp_path / "train.csv").write_text(f"{text}\n", encoding="utf-8")
    (tmp_path / "sample_submission.csv").write_text("image_id,label\n2216849948.jpg,4\n", encoding="utf-8")
    (tmp_path / "label_num_to_disease_map.json").write_text('{"0": "a", "1": "b", "2": "c"}', encoding="utf-8")
    write(
        tmp_path / "train_tfrecords" / "ld_train00-4.tfrec",
        [
            {"image": picture(number), "image_name": f"{number}.jpg", "target": place % 3}
            for place, number in enumerate(numbers)
        ],
    )
    with FolderTree(tmp_path) as tree:
        with pytest.raises(LayoutError, match=r'TFRecords .*layout="table".*layout="tfrecord"'):
            detect_layout(tree)
        assert sorted(labels(detect_layout(tree, "tfrecord"))) == [0, 0, 1, 2]
        if not broken:
            found = detect_layout(tree, "table")
            assert {key.rpartition("/")[2] for key in found.keys} >= {f"{number}.jpg" for number in numbers}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["plain", "gzip"])
def test_examples_are_what_tensorflow_reads(by_tensorflow: tuple[Path, dict[str, Any]], kind: str) -> None:
    """Sample by sample, with TensorFlow's names of features; splits and classes as they are called."""
    folder, theirs = by_tensorflow
    table = detect_layout(FolderTree(folder / kind))
    images = contents(table)
    assert table.layout == "tfrecord"
    assert [sha256(image).hexdigest() for image in images] == [image for image, _, _ in theirs[kind]]
    assert labels(table) == [label for _, _, label in theirs[kind]]
    assert table.splits == ("train",) * 9 + ("validation",) * 3
    assert table.classes == ("0", "kind 0", "kind 1", "kind 2")
    assert table.keys[5] == "train-00001-of-00002[0]"
    assert table.inputs.source.sizes.tolist() == [len(image) for image in images]


def test_files_of_tfds_are_read(tmp_path: Path) -> None:
    """Their features are image and label, their names end in a number."""
    data = [{"image": picture(n), "label": n % 2} for n in range(6)]
    path = write(tmp_path / "1.0.0" / "pets-test.tfrecord-00000-of-00001", data)
    table = detect_layout(FolderTree(tmp_path))
    assert list(zip(contents(table), labels(table), strict=True)) == read_back(path)
    assert table.splits == ("test",) * 6
    assert table.classes == ("0", "1")


@pytest.mark.parametrize(
    ("features", "values", "classes"),
    [
        ([{"label": n / 2} for n in range(3)], [0, 0.5, 1], ()),
        ([{"label": -n} for n in range(3)], [0, -1, -2], ()),
        ([{"label": 2**40 + n} for n in range(2)], [2**40, 2**40 + 1], ()),
        ([{"label": "dog" if n else "cat"} for n in range(3)], [0, 1, 1], ("cat", "dog")),
        ([{"class_name": "dog" if n else "cat"} for n in range(3)], [0, 1, 1], ("cat", "dog")),
    ],
)
def test_labels_are_numbers_or_words(tmp_path: Path, features: list[Any], values: list[Any], classes: Any) -> None:
    """Of any kind that an Example has."""
    write(tmp_path / "a.tfrecord", [{"photo": picture(n), **one} for n, one in enumerate(features)])
    table = detect_layout(FolderTree(tmp_path))
    assert labels(table) == values
    assert table.classes == classes


def test_boxes_are_parts_of_width_and_height(tmp_path: Path) -> None:
    """As TensorFlow's detection tools write them: any number for each image, none for some."""
    sides = {f"image/object/bbox/{side}": [value] * 2 for side, value in CORNERS.items()}
    names = {"image/object/class/label": [1, 2], "image/object/class/text": ["car", "dog"]}
    empty: dict[str, Any] = {name: [] for name in sides}
    data = [{"image/encoded": picture(0), **sides, **names}, {"image/encoded": picture(1), **empty}]
    write(tmp_path / "train.tfrecord", data)
    table = detect_layout(FolderTree(tmp_path))
    assert isinstance(table.targets, Boxes)
    assert table.targets.relative
    assert table.targets.offsets.tolist() == [0, 2, 2]
    assert table.targets.boxes.tolist() == [[0.25, 0.5, 0.75, 1.0]] * 2
    assert table.targets.columns["labels"].tolist() == [1, 2]
    assert table.classes == ("0", "car", "dog")


def test_records_without_an_image_are_left_out(tmp_path: Path) -> None:
    """And counted in a note; empty files are no matter."""
    write(tmp_path / "a.tfrecord", [{"image": picture(0), "label": 1}, {"label": 2}])
    write(tmp_path / "b.tfrecord", [])
    table = detect_layout(FolderTree(tmp_path))
    assert labels(table) == [1]
    assert any("1 record without" in note for note in table.notes)


@pytest.mark.parametrize("cut", [5, 40, 1])
def test_a_truncated_file_is_named(tmp_path: Path, cut: int) -> None:
    """In a header, in the data, in the last checksum: never fewer samples in silence."""
    write(tmp_path / "a.tfrecord", plain(3))
    path = write(tmp_path / "b.tfrecord", plain(3))
    content = path.read_bytes()
    path.write_bytes(content[:-cut] if cut != 5 else content + content[:5])
    with pytest.raises(CorruptArchiveError, match=r"b\.tfrecord'.* record [23]"):
        detect_layout(FolderTree(tmp_path))


def test_a_damaged_length_is_named(tmp_path: Path) -> None:
    """It would send the reader anywhere."""
    path = write(tmp_path / "a.tfrecord", plain(3))
    content = bytearray(path.read_bytes())
    second = 16 + struct.unpack_from("<Q", content)[0]
    content[second + 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptArchiveError, match="record 1"):
        detect_layout(FolderTree(tmp_path))


def test_damaged_images_are_found_by_their_checksum(tmp_path: Path) -> None:
    """A flipped bit in one record costs that sample only, by name."""
    path = write(tmp_path / "data" / "a.tfrecord", plain(4))
    content = path.read_bytes()
    place = content.index(picture(2)) + 60
    path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
    table = detect_layout(FolderTree(tmp_path / "data"))
    assert table.inputs.source.read(1) == picture(1)
    with pytest.raises(CorruptArchiveError, match=r"a\.tfrecord\[2\]' is damaged"):
        table.inputs.source.read(2)
    with pytest.raises((CorruptArchiveError, DecodeError), match=r"a\.tfrecord\[2\]"):
        pack_dataset(tmp_path / "data", tmp_path / "out.h5", progress=False)
    report = pack_dataset(tmp_path / "data", tmp_path / "out.h5", on_error="skip", progress=False)
    assert len(report.skipped) == 1
    assert "a.tfrecord[2]" in report.skipped[0]


@pytest.mark.parametrize(
    ("name", "content", "kind", "says"),
    [
        ("a.tfrecord", b"what is this, if not a record?", CorruptArchiveError, "not a TFRecord file"),
        ("train-00000-of-00001", b"what is this, if not a record?", LayoutError, "no TFRecord files"),
        ("a.tfrecord", b"", LayoutError, "have any record"),
        ("a.txt", b"", EmptySourceError, "no TFRecord files"),
    ],
)
def test_other_files_are_not_claimed(tmp_path: Path, name: str, content: bytes, kind: type, says: str) -> None:
    """A name alone makes no TFRecord file."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(kind, match=says):
        detect_layout(FolderTree(tmp_path), "tfrecord")


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"text": "words", "label": 1}, "holds no image file .* the features label, text"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", r"a\.tfrecord\[0\]'.* not a tf.train.Example"),
        ({"image": picture(0), "label": [1, 2]}, r"a\.tfrecord\[0\]'.* has 2 values in 'label'"),
        ({"image": picture(0), "label": b"\xff\xfe"}, "not text"),
    ],
)
def test_records_that_cannot_be_used_are_named(tmp_path: Path, record: Any, says: str) -> None:
    """With what is in them."""
    write(tmp_path / "a.tfrecord", [record])
    with pytest.raises(LayoutError, match=says):
        detect_layout(FolderTree(tmp_path), "tfrecord")


def test_a_cut_message_is_no_example() -> None:
    """Wherever it is cut or a byte is another one, it is read as something or refused with one error."""
    features = {"image": picture(0)[:40], "label": [1, -1], "weight": [0.5, 2.0]}
    data = writing.TFRecordWriter.serialize_tf_example({name: _feature(value) for name, value in features.items()})
    found = parse_example(data)
    assert found["label"] == [1, -1]
    assert found["weight"] == [0.5, 2.0]
    for cut in range(len(data)):
        try:
            parse_example(data[:cut])
        except BadMessageError:
            continue
    for place in range(len(data)):
        try:
            parse_example(data[:place] + bytes([data[place] ^ 0x85]) + data[place + 1 :])
        except BadMessageError:
            continue
    with pytest.raises(BadMessageError):
        parse_example(data[:-1])


@pytest.mark.torch
@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_records_are_packed(tmp_path: Path, encoding: str) -> None:
    """End to end: the packed pixels and labels are those that the package tfrecord reads and Pillow decodes."""
    dataset_h5 = pytest.importorskip("colabstage.load.dataset", reason="needs torch: pip install torch").dataset_h5
    path = write(tmp_path / "d" / "test.tfrecord", [{"image": picture(n), "label": n % 3} for n in range(8)])
    pack_dataset(tmp_path / "d", tmp_path / "out.h5", encoding=encoding, progress=False)
    packed = dataset_h5(tmp_path / "out.h5", split="test")
    for (x, y), (image, label) in zip((packed[i] for i in range(len(packed))), read_back(path), strict=True):
        np.testing.assert_array_equal(x, np.asarray(Image.open(io.BytesIO(image))))
        assert y == label
    packed.close()


def test_one_record_without_boxes_takes_them_from_no_other(tmp_path: Path) -> None:
    """Features of no values are often not written: such a record has no boxes, and the others keep theirs."""
    corners = {f"image/object/bbox/{side}": [place] for side, place in CORNERS.items()}
    boxed = {"image/encoded": picture(0), **corners, "image/object/class/label": [3]}
    table = detect_layout(
        FolderTree(write(tmp_path / "a" / "a.tfrecord", [boxed, {"image/encoded": picture(1)}]).parent)
    )
    assert isinstance(table.targets, Boxes)
    assert table.targets.offsets.tolist() == [0, 1, 1]
    assert any("1 record has no features of boxes" in note for note in table.notes)


_SIDES = st.tuples(*[st.floats(0, 1, allow_nan=False, width=32)] * 4).map(
    # A box that ends before it begins is refused.
    lambda sides: (*map(min, sides[:2], sides[2:]), *map(max, sides[:2], sides[2:]))
)


@given(drawn=st.lists(st.lists(st.tuples(_SIDES, st.integers(1, 4)), max_size=3), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_boxes_are_what_another_reader_finds(drawn: Sequence[Sequence[tuple[tuple[float, ...], int]]]) -> None:
    """Of any number in each record, those of the package tfrecord."""
    corners, label = [f"image/object/bbox/{side}" for side in CORNERS], "image/object/class/label"
    records = [
        {"image/encoded": picture(number)}
        | {name: [box[place] for box, _ in boxes] for place, name in enumerate(corners)}
        | {label: [kind for _, kind in boxes]}
        for number, boxes in enumerate(drawn)
    ]
    with TemporaryDirectory() as name:
        path = write(Path(name) / "a.tfrecord", records)
        table = detect_layout(FolderTree(path.parent))
        theirs = list(reading.tfrecord_loader(str(path), None))
    assert isinstance(table.targets, Boxes)
    for number, one in enumerate(theirs):
        part = slice(table.targets.offsets[number], table.targets.offsets[number + 1])
        found = np.stack([np.asarray(one[name], np.float32).reshape(-1) for name in corners], axis=1)
        np.testing.assert_array_equal(table.targets.boxes[part].astype(np.float32), found)
        assert table.targets.columns["labels"][part].tolist() == np.asarray(one[label]).reshape(-1).tolist()


def test_pixels_and_lists_of_one_class_are_read(tmp_path: Path) -> None:
    """As TensorFlow's first examples wrote MNIST and CIFAR-10; the list is as long in every record."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    sizes = {"height": 5, "width": 6, "depth": 3}
    classes = [2, 0, 1, 2]
    records: list[dict[str, Any]] = [
        {"image_raw": row.tobytes(), "label": [int(place == number) for place in range(3)], **sizes}
        for row, number in zip(pixels, classes, strict=True)
    ]
    table = detect_layout(FolderTree(write(tmp_path / "a" / "train.tfrecords", records).parent))
    assert isinstance(table.inputs, Images)
    assert isinstance(table.targets, Values)
    assert table.inputs.decoded
    np.testing.assert_array_equal([np.asarray(table.inputs.source.read(number)) for number in range(4)], pixels)
    assert table.targets.values.tolist() == classes
    grey = [{"image_raw": row[..., 0].tobytes(), "label": 1, "rows": 5, "cols": 6} for row in pixels]
    table = detect_layout(FolderTree(write(tmp_path / "grey" / "train.tfrecords", grey).parent))
    np.testing.assert_array_equal(np.asarray(table.inputs.source.read(1)), pixels[1, ..., :1])
    odds: dict[str, dict[str, Any]] = {
        r"a label of 3 numbers and '.*\[3\]' one of 4": {"label": [0, 1, 0, 0]},
        r"only one of .*\[3\]|\[3\].*only one": {"height": 7},
        "has 3 values in 'label'": {"label": [1, 1, 0]},
    }
    for number, (says, odd) in enumerate(odds.items()):
        path = write(tmp_path / str(number) / "a.tfrecord", [*records[:3], records[3] | odd])
        with pytest.raises(LayoutError, match=says):
            detect_layout(FolderTree(path.parent))


def test_masks_in_records_are_targets(tmp_path: Path) -> None:
    """As DeepLab's records have them; beside boxes, nobody knows which are meant."""
    masks = [np.random.default_rng(number).integers(0, 5, (8, 6), np.uint8) for number in range(3)]
    records: list[dict[str, Any]] = []
    for number, mask in enumerate(masks):
        file = io.BytesIO()
        Image.fromarray(mask).save(file, "PNG")
        records.append({"image/encoded": picture(number), "image/segmentation/class/encoded": file.getvalue()})
    table = detect_layout(FolderTree(write(tmp_path / "a" / "a.tfrecord", records).parent))
    assert isinstance(table.targets, Masks)
    for number, mask in enumerate(masks):
        content = table.targets.source.read(number)
        assert isinstance(content, bytes)
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(content))), mask)
    records[0] |= {f"image/object/bbox/{side}": [place] for side, place in CORNERS.items()}
    records[0] |= {"image/object/class/label": [3]}
    with pytest.raises(LayoutError, match=r"boxes .*masks"):
        detect_layout(FolderTree(write(tmp_path / "b" / "a.tfrecord", records).parent))


def test_images_are_passed_over_while_labels_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local file is read in full once, when its images are packed; these are larger than what is read at a time, also
    where the disk is as busy as a mount is slow."""
    images = [b"\xff\xd8\xff" + bytes([number]) * (16 << 20) for number in range(4)]
    records = [{"image": image, "label": number % 2} for number, image in enumerate(images)]
    path = write(tmp_path / "a.tfrecord", records)
    read: list[int] = []
    pread = FolderFile.pread

    def counted(self: FolderFile, length: int, offset: int) -> bytes:
        content = pread(self, length, offset)
        read.append(len(content))
        return content

    monkeypatch.setattr(FolderFile, "pread", counted)
    table = detect_layout(FolderTree(tmp_path))
    assert labels(table) == [0, 1] * 2
    assert 0 < sum(read) < 0.6 * path.stat().st_size
    assert contents(table) == images
