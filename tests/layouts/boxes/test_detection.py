"""Boxes of every format come out as other libraries read them, and a broken label is named with its file and line."""

from __future__ import annotations

import json
import re
import time
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import DecodeError, EmptySourceError, LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.lists import parse_class_list
from colabstage.layouts.table import BrokenDatasetError
from colabstage.options import Boxes
from colabstage.trees.folder import FolderTree
from tests.layouts.known import MemoryTree
from tests.layouts.readers import read_detection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from colabstage.options import SampleTable
    from colabstage.trees.listing import FileEntry

COUNT = 12
NAMES = ("zebra", "car", "big dog", "bus")
# Pascal VOC's, in the order of their numbers.
POSES = ("Unspecified", "Frontal", "Rear", "Left", "Right")


def size_of(number: int) -> tuple[int, int]:
    """Height and width."""
    return 40 + number % 7, 60 - number % 5


def boxes_of(number: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Class and x0, y0, x1, y1 in whole pixels of up to three boxes; none in every fourth image."""
    height, width = size_of(number)
    rng = np.random.default_rng(number)
    for _ in range(number % 4):
        (x0, x1), (y0, y1) = np.sort(rng.choice(width, 2, False)), np.sort(rng.choice(height, 2, False))
        yield int(rng.integers(len(NAMES))), np.array([x0, y0, x1, y1])


def put(place: Path, content: str | bytes) -> Path:
    """Write a file, and the folders above it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content.encode() if isinstance(content, str) else content)
    return place


def put_image(place: Path, number: int) -> Path:
    """Write an image of the number's size."""
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size_of(number)[::-1], (number, 2 * number, 9)).save(place)
    return place


def split_of(number: int) -> str:
    """Two thirds are for training."""
    return "val" if number % 3 == 2 else "train"


def read(folder: Path, layout: str = "auto") -> SampleTable:
    """The table of a folder."""
    found = detect_layout(FolderTree(folder), layout)
    assert found.layout == "detection"
    return found


@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=8).filter(any))
def test_what_is_found_says_how_many_images_have_no_boxes(counts: list[int]) -> None:
    """They are kept, as images of nothing to find, whichever format the boxes come from."""
    files = {f"labels/{number}.txt": b"0 .5 .5 .1 .1\n" * count for number, count in enumerate(counts)}
    found = detect_layout(MemoryTree(files | {f"images/{number}.jpg": b"" for number in range(len(counts))}))
    said = dict(found.summary())["boxes"]
    assert said.startswith(f"{sum(counts)} in {len(counts) - counts.count(0)} of {len(counts)} image")
    assert (counts.count(0) > 0) == ("kept without any" in said)
    assert int((re.findall(r"and (\d+) (?:is|are) kept", said) or [0])[0]) == counts.count(0)


def boxes_in(found: SampleTable, key: str) -> dict[str, NDArray[Any]]:
    """Boxes and columns of one sample."""
    assert isinstance(found.targets, Boxes)
    row = found.keys.index(key)
    part = slice(found.targets.offsets[row], found.targets.offsets[row + 1])
    return {"boxes": found.targets.boxes[part], **{name: v[part] for name, v in found.targets.columns.items()}}


class TestKitti:
    """KITTI's object benchmark."""

    TYPES = ("Pedestrian", "Car", "DontCare", "Cyclist")

    def line(self, kind: int, box: NDArray[Any]) -> str:
        """One object; numbers that tell columns apart."""
        if self.TYPES[kind] == "DontCare":
            return f"DontCare -1 -1 -10 {' '.join(f'{v:.2f}' for v in box)} -1 -1 -1 -1000 -1000 -1000 -10"
        places = " ".join(f"{v:.2f}" for v in box)
        return f"{self.TYPES[kind]} 0.{kind}5 {kind} -1.57 {places} 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59"

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Training images with labels, and two for testing without."""
        root = tmp_path / "kitti"
        for number in range(COUNT):
            put_image(root / f"training/image_2/{number:06}.png", number)
            lines = [self.line(kind, box) for kind, box in boxes_of(number)]
            put(root / f"training/label_2/{number:06}.txt", "".join(f"{line}\n" for line in lines))
        for number in range(2):
            put_image(root / f"testing/image_2/{number:06}.png", number)
        return root

    def test_columns_are_those_of_the_readme(self, folder: Path) -> None:
        """As torchvision's Kitti reads the same lines: bbox from column 4, dimensions from 8, location from 11."""
        found = read(folder)
        assert found.classes == ("Car", "Pedestrian", "Cyclist", "DontCare")
        assert found.splits is not None
        assert dict(zip(found.keys, found.splits, strict=True))["testing/image_2/000001.png"] == "test"
        for number in range(COUNT):
            got = boxes_in(found, f"training/image_2/{number:06}.png")
            lines = (folder / f"training/label_2/{number:06}.txt").read_text().splitlines()
            for row, words in enumerate(line.split(" ") for line in lines):
                values = [float(word) for word in words[1:]]
                assert found.classes[got["labels"][row]] == words[0]
                np.testing.assert_allclose(got["truncated"][row], values[0], rtol=1e-6)
                assert got["occluded"][row] == int(words[2])
                np.testing.assert_allclose(got["alpha"][row], values[2], rtol=1e-6)
                np.testing.assert_array_equal(got["boxes"][row], values[3:7])
                np.testing.assert_allclose(got["dimensions"][row], values[7:10], rtol=1e-6)
                np.testing.assert_allclose(got["location"][row], values[10:13], rtol=1e-6)
                np.testing.assert_allclose(got["rotation_y"][row], values[13], rtol=1e-6)
            assert len(got["labels"]) == len(lines)
        assert [note.split(" ", 3)[:3] for note in found.notes[:2]] == [
            ["2", "images", "have"],
            ["The", "last", "class,"],
        ]

    @pytest.mark.parametrize(
        "line", ["Car 0 0 0 1 2 3", "Car 0.00 0 -1.57 a 1 2 3 1 1 1 1 1 1 1", f"Car {'nan ' * 14}", "{}"]
    )
    def test_a_broken_line_is_named(self, folder: Path, line: str) -> None:
        """By file and line; no other layout takes the tree over."""
        file = folder / "training/label_2/000003.txt"
        file.write_text(f"{file.read_text()}{line}\n")
        with pytest.raises(BrokenDatasetError, match=r"'training/label_2/000003\.txt', line 4"):
            detect_layout(FolderTree(folder))


class TestYolo:
    """Text files of Ultralytics and darknet."""

    def write(self, root: Path, form: str, numbers: range = range(COUNT)) -> None:
        """Images and labels; `form` has the place of `images`."""
        for number in numbers:
            height, width = size_of(number)
            image = root / form.format(kind="images", split=split_of(number), stem=f"{number:02}.jpg")
            put_image(image, number)
            lines = []
            for label, (x0, y0, x1, y1) in boxes_of(number):
                places = ((x0 + x1) / 2 / width, (y0 + y1) / 2 / height, (x1 - x0) / width, (y1 - y0) / height)
                lines.append(" ".join([str(label), *(f"{value:.9f}" for value in places)]))
            label_file = root / form.format(kind="labels", split=split_of(number), stem=f"{number:02}.txt")
            if lines or number % 8:
                put(label_file, "\n".join(lines))

    @pytest.mark.parametrize(
        ("form", "names"),
        [
            ("{kind}/{split}/{stem}", ("data.yaml", "path: x\nnc: 4\nnames: [zebra, car, 'big dog', bus]\n")),
            ("{split}/{kind}/{stem}", ("data.yaml", "names:\n  0: zebra\n  1: car\n  2: big dog\n  3: bus\nnc: 4\n")),
            ("data/{kind}/{split}2017/{stem}", ("data/classes.txt", "zebra\ncar\nbig dog\nbus\n")),
        ],
    )
    def test_boxes_are_corners_in_parts_of_the_image(self, tmp_path: Path, form: str, names: tuple[str, str]) -> None:
        """Folders as tools lay them out; an empty label file and a missing one mean no boxes."""
        root = tmp_path / "yolo"
        self.write(root, form)
        put(root / names[0], names[1])
        found = read(root)
        assert found.classes == NAMES
        assert found.splits is not None
        assert isinstance(found.targets, Boxes)
        assert found.targets.relative
        for number in range(COUNT):
            key = form.format(kind="images", split=split_of(number), stem=f"{number:02}.jpg")
            got = boxes_in(found, key)
            wanted = list(boxes_of(number))
            scale = np.array(size_of(number)[::-1] * 2)
            np.testing.assert_allclose(got["boxes"] * scale, np.reshape([b for _, b in wanted], (-1, 4)), atol=1e-5)
            assert got["labels"].tolist() == [label for label, _ in wanted]
            assert found.splits[found.keys.index(key)] == split_of(number)
        assert found.notes[0] == "2 images have no label file, and are kept without boxes."

    def test_labels_beside_images_need_names(self, tmp_path: Path) -> None:
        """Darknet puts both into one folder; so do captions, which are no boxes."""
        root = tmp_path / "darknet"
        for number in range(3):
            put_image(root / f"obj_train_data/{number}.jpg", number)
            put(root / f"obj_train_data/{number}.txt", f"{number % 2} 0.5 0.5 0.25 0.5\n")
        with pytest.raises(LayoutError, match="YOLO"):
            read_detection(FolderTree(root))
        put(root / "obj.names", "car\nbus\n")
        assert read(root).classes == ("car", "bus")
        for number in range(3):
            put(root / f"obj_train_data/{number}.txt", "a photo of 2 dogs\n")
        with pytest.raises(LayoutError, match="YOLO"):
            read_detection(FolderTree(root))

    def test_a_polygon_has_the_box_around_it(self, tmp_path: Path) -> None:
        """Labels for segmentation, as Ultralytics' segments2boxes."""
        put_image(tmp_path / "images/0.jpg", 0)
        put(tmp_path / "labels/0.txt", "3 0.1 0.5 0.4 0.2 0.8 0.6 0.3 0.9")
        got = boxes_in(read(tmp_path), "images/0.jpg")
        np.testing.assert_allclose(got["boxes"], [[0.1, 0.2, 0.8, 0.9]])

    @pytest.mark.parametrize(
        "line",
        [
            "1 0.5 0.5 0.1",
            "dog 0.5 0.5 0.1 0.1",
            "1 20 15 10 10",
            "1 .5 .5 .1 .1 .9",
            f"1 .5 .5 .2 .2{17 * ' .5 .5 2'}",
            "1 0,5 0,5 0,1 0,1",
            "-1 .5 .5 .1 .1",
            "0.5 .5 .5 .1 .1",
            "nan .5 .5 .1 .1",
        ],
    )
    @pytest.mark.parametrize("every", [False, True])
    def test_a_line_of_another_form_is_named(self, tmp_path: Path, line: str, *, every: bool) -> None:
        """Also where all files are so: rows of numbers in this place are meant to be boxes."""
        self.write(tmp_path, "{kind}/{split}/{stem}")
        for file in sorted(tmp_path.glob("labels/*/*.txt")) if every else [tmp_path / "labels/val/05.txt"]:
            put(file, f"\n{line}\n")
        with pytest.raises(BrokenDatasetError, match=rf"\.txt', line 2: {re.escape(repr(line)[:90])}.* is not "):
            detect_layout(FolderTree(tmp_path))

    def test_commas_separate_as_blanks_do(self, tmp_path: Path) -> None:
        """In whole lines; a line with both is a broken one, as a comma may be that of a decimal."""
        for number, form in enumerate(("{} {} {} {} {}", "{},{},{},{},{}", "{}, {}, {}, {}, {}")):
            put_image(tmp_path / f"images/{number}.jpg", number)
            put(tmp_path / f"labels/{number}.txt", form.format(1, 0.5, 0.25, 0.5, 0.25))
        found = read(tmp_path)
        for key in found.keys:
            got = boxes_in(found, key)
            assert (got["boxes"].tolist(), got["labels"].tolist()) == ([[0.25, 0.125, 0.75, 0.375]], [1])

    def test_poses_of_points_that_are_visible_or_not_are_no_polygons(self, tmp_path: Path) -> None:
        """With an even number of points, and none marked with 2, a line has as many numbers as a polygon."""
        for number in range(4):
            put_image(tmp_path / f"images/{number}.jpg", number)
            put(tmp_path / f"labels/{number}.txt", f"0 .5 .5 .2 .2 .4 .{number + 4} 1 .5 .5 0")
        with pytest.raises(BrokenDatasetError, match=r"11 numbers.*kpt_shape: \[2, 3\]"):
            read(tmp_path)

    def test_a_class_without_a_name_is_named(self, tmp_path: Path) -> None:
        """A label beyond the list of names is a mistake in one of the two."""
        self.write(tmp_path, "{kind}/{split}/{stem}")
        put(tmp_path / "classes.txt", "a\nb\n")
        with pytest.raises(BrokenDatasetError, match=r"class 3\b"):
            detect_layout(FolderTree(tmp_path))

    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("names: [a, b]", ("a", "b")),
            ("names: ['a, b', \"c\\td\", e]  # three", ("a, b", "c\td", "e")),
            ("names: [\n  'a',\n  'b'\n]\nnc: 2", ("a", "b")),
            ("names: {0: a, 1: 'it''s'}", ("a", "it's")),
            ("nc: 2\nnames:\n- a # x\n- 'b # y'\nroboflow:\n  license: z", ("a", "b # y")),
            ("names:\n  1: b\n\n  0: 'a: b'\n", ("a: b", "b")),
            ("names: [dog's toy, no, 1, ~]", ("dog's toy", "no", "1", "~")),
            ("train: x", ()),
        ],
    )
    def test_names_are_read_from_yaml(self, text: str, names: tuple[str, ...]) -> None:
        """The forms that Ultralytics, Roboflow and people write, as PyYAML reads them."""
        assert parse_class_list("data.yaml", text.encode()).names == names

    @pytest.mark.parametrize(
        "text", ["names: coco.names", "names:\n  0: a\n  2: b", "names: {a: 0}", "names:\n  0: a: b"]
    )
    def test_other_names_are_refused(self, text: str) -> None:
        """No class is named by guessing."""
        with pytest.raises(BrokenDatasetError, match=r"'data\.yaml'"):
            parse_class_list("data.yaml", text.encode())


class TestCoco:
    """Instances in JSON, against pycocotools."""

    IDS = (90, 3, 18, 6)  # of NAMES: with gaps, and not in order

    def document(self, numbers: list[int]) -> dict[str, Any]:
        """Images with their annotations."""
        annotations: list[dict[str, Any]] = []
        for number in numbers:
            for label, (x0, y0, x1, y1) in boxes_of(number):
                box = [float(v) for v in (x0, y0, x1 - x0, y1 - y0)]
                annotations.append(
                    {
                        "id": len(annotations) + 1, "image_id": 1000 - number, "category_id": self.IDS[label],
                        "bbox": box, "area": box[2] * box[3] / 2, "iscrowd": number % 2,
                        "segmentation": [[x0, y0, x1, y0, x1, y1]],
                    }
                )  # fmt: skip
        images = [
            {"id": 1000 - n, "file_name": f"{n:012}.jpg", "height": size_of(n)[0], "width": size_of(n)[1]}
            for n in numbers
        ]
        categories = [{"id": key, "name": name} for key, name in zip(self.IDS, NAMES, strict=True)]
        return {"images": images, "annotations": annotations, "categories": categories}

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Two splits with one file of annotations each, and captions that are none."""
        root = tmp_path / "coco"
        for split in ("train", "val"):
            numbers = [number for number in range(COUNT) if split_of(number) == split]
            for number in numbers:
                put_image(root / f"{split}2017/{number:012}.jpg", number)
            text = json.dumps(self.document(numbers), default=int)
            put(root / f"annotations/instances_{split}2017.json", text)
            captions = {"images": [], "annotations": [{"image_id": 1, "caption": "a"}], "categories": []}
            put(root / f"annotations/captions_{split}2017.json", json.dumps(captions))
        return root

    def test_files_in_folders_of_splits_name_images_beside_them(self, tmp_path: Path) -> None:
        """As Roboflow exports: the same file names in several splits."""
        for split in ("train", "valid"):
            put_image(tmp_path / split / f"{3:012}.jpg", 3)
            put(tmp_path / split / "_annotations.coco.json", json.dumps(self.document([3]), default=int))
        found = read(tmp_path)
        assert found.keys == (f"train/{3:012}.jpg", f"valid/{3:012}.jpg")
        assert found.splits == ("train", "valid")

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"bbox": [1, 2, 3]}, r"annotation 2 \(id 3\) has a bbox"),
            ({"bbox": [1, 2, 3, None]}, r"annotation 2 \(id 3\) has a bbox"),
            ({"bbox": [1, 2, -3, 4]}, r"annotation 2 \(id 3\) has a bbox"),
            ({"category_id": 4}, "category 4, which is not listed"),
            ({"image_id": 4}, "image 4, which is not listed"),
        ],
    )
    def test_a_broken_annotation_is_named(self, folder: Path, change: dict[str, Any], says: str) -> None:
        """By file, place and id."""
        file = folder / "annotations/instances_train2017.json"
        document = json.loads(file.read_text())
        document["annotations"][2] |= change
        file.write_text(json.dumps(document))
        with pytest.raises(BrokenDatasetError, match=f"instances_train2017.json.*{says}"):
            detect_layout(FolderTree(folder))

    def test_a_cut_file_and_missing_images_are_named(self, folder: Path) -> None:
        """What looks like COCO and is not whole is not taken for another layout."""
        file = folder / "annotations/instances_val2017.json"
        text = file.read_text()
        file.write_text(text[:-2])
        with pytest.raises(BrokenDatasetError, match=r"instances_val2017\.json"):
            detect_layout(FolderTree(folder))
        file.write_text(text)
        first, *others = sorted((folder / "val2017").iterdir())
        for image in others:
            image.unlink()
        with pytest.raises(BrokenDatasetError, match=r"instances_val2017.*\b4\b.*\b1\b"):
            detect_layout(FolderTree(folder))
        # A split that nobody has downloaded is left out by name.
        first.unlink()
        found = detect_layout(FolderTree(folder))
        assert set(found.splits or ()) == {"train"}
        assert any("'annotations/instances_val2017.json'" in one for one in found.notes)
        for image in (folder / "train2017").iterdir():
            image.unlink()
        Image.new("RGB", (4, 4)).save(folder / "train2017/other.jpg")
        with pytest.raises(BrokenDatasetError, match=r"of \d+ .*\b0\b"):
            detect_layout(FolderTree(folder))


class TestVoc:
    """Pascal VOC's XML, against the standard library's parser."""

    def annotation(self, number: int) -> bytes:
        """As VOC's own, with a person's head as a part."""
        root = ET.Element("annotation")
        ET.SubElement(root, "filename").text = f"{number:06}.jpg"
        for label, box in boxes_of(number):
            item = ET.SubElement(root, "object")
            for name, value in (("name", NAMES[label]), ("pose", POSES[label]), ("difficult", number % 2)):
                ET.SubElement(item, name).text = str(value)
            ET.SubElement(item, "truncated").text = "1"
            corners, part = ET.SubElement(item, "bndbox"), ET.SubElement(item, "part")
            ET.SubElement(part, "name").text = "head"
            head = ET.SubElement(part, "bndbox")
            for edge, value in zip(
                ("xmax", "ymax", "xmin", "ymin"), np.roll(box, 2) + np.array([0, 0, 1, 1]), strict=True
            ):
                ET.SubElement(corners, edge).text = str(value)
                ET.SubElement(head, edge).text = "7"
        return ET.tostring(root)

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """VOCdevkit/VOC2007 with lists; one image is in none of them."""
        root = tmp_path / "VOCdevkit/VOC2007"
        for number in range(COUNT):
            put_image(root / f"JPEGImages/{number:06}.jpg", number)
            put(root / f"Annotations/{number:06}.xml", self.annotation(number))
            put_image(root / f"SegmentationClass/{number:06}.png", number)
        put_image(root / "JPEGImages/000099.jpg", 1)
        for split in ("train", "val"):
            lines = [f"{number:06}\n" for number in range(COUNT - 1) if split_of(number) == split]
            put(root / f"ImageSets/Main/{split}.txt", "".join(lines))
            put(root / f"ImageSets/Main/car_{split}.txt", "".join(f"{line.strip()} -1\n" for line in lines))
        put(root / "ImageSets/Main/trainval.txt", "".join(f"{number:06}\n" for number in range(COUNT - 1)))
        return tmp_path

    def test_objects_are_those_of_the_files(self, folder: Path) -> None:
        """Every object with its flags, in the split that the lists say."""
        found = read(folder)
        assert found.classes == tuple(sorted(NAMES))
        assert len(found) == COUNT - 1
        assert found.splits is not None
        for number in range(COUNT - 1):
            key = f"VOCdevkit/VOC2007/JPEGImages/{number:06}.jpg"
            assert found.splits[found.keys.index(key)] == split_of(number)
            got = boxes_in(found, key)
            root = ET.parse(folder / f"VOCdevkit/VOC2007/Annotations/{number:06}.xml").getroot()
            for row, item in enumerate(root.iter("object")):
                edges = {edge: int(item.findtext(f"bndbox/{edge}") or "") for edge in ("xmin", "ymin", "xmax", "ymax")}
                wanted = [edges["xmin"] - 1, edges["ymin"] - 1, edges["xmax"], edges["ymax"]]
                assert got["boxes"][row].tolist() == wanted
                assert found.classes[got["labels"][row]] == item.findtext("name")
                assert POSES[got["pose"][row]] == item.findtext("pose")
                assert (got["difficult"][row], got["truncated"][row]) == (number % 2, 1)
            assert len(got["labels"]) == len(root.findall("object"))
        assert any("ImageSets/Main" in note for note in found.notes)

    @pytest.mark.parametrize("image", ["as the file says", "twice as large", "no size is said"])
    def test_an_image_of_another_size_than_its_file_says_is_broken(self, tmp_path: Path, image: str) -> None:
        """Its boxes were drawn on another one; zeros, which some tools write, say nothing."""
        height, width = size_of(1)
        for number in (1, 2, 3):
            put_image(tmp_path / f"photos/{number}.jpg", number)
            sides = f"<width>{size_of(number)[1]}</width><height>{size_of(number)[0]}</height><depth>3</depth>"
            if image == "no size is said":
                sides = "<width>0</width><height>0</height>"
            text = self.annotation(number).replace(b"<object>", f"<size>{sides}</size><object>".encode(), 1)
            put(tmp_path / f"photos/{number}.xml", text)
        if image == "twice as large":
            Image.new("RGB", (2 * width, 2 * height)).save(tmp_path / "photos/1.jpg")
            with pytest.raises(DecodeError, match=rf"1\.jpg.*{height} x {width} pixels.*drawn on"):
                pack_dataset(tmp_path / "photos", tmp_path / "a.h5", progress=False)
            report = pack_dataset(tmp_path / "photos", tmp_path / "a.h5", on_error="skip", progress=False)
            assert (report.samples, len(report.skipped)) == ({"train": 2}, 1)
        else:
            assert pack_dataset(tmp_path / "photos", tmp_path / "a.h5", progress=False).samples == {"train": 3}

    @pytest.mark.parametrize("suffix", ["", "_images"])
    def test_without_lists_folders_are_the_splits(self, tmp_path: Path, suffix: str) -> None:
        """XML beside images, as labelImg and Roboflow leave them; an image without one has no boxes. What else a
        folder of a split is called is no matter, as in all layouts."""
        train, test = f"train{suffix}", f"test{suffix}"
        for split, number in ((train, 1), (train, 2), (test, 3)):
            put_image(tmp_path / split / f"{number}.jpg", number)
            put(tmp_path / split / f"{number}.xml", self.annotation(number))
        put_image(tmp_path / test / "9.jpg", 9)
        found = read(tmp_path)
        assert found.keys == (f"{test}/3.jpg", f"{test}/9.jpg", f"{train}/1.jpg", f"{train}/2.jpg")
        assert found.splits == ("test", "test", "train", "train")
        assert len(boxes_in(found, f"{test}/9.jpg")["labels"]) == 0

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            (b"</annotation>", b"", "line 1: it is not XML"),
            (b"<xmin>", b"<xmin>x", "line 1: an object has no readable bndbox"),
            (b"<ymax>", b"<ymix>", "line 1: it is not XML"),
            (b"<object>", b"<size><width>wide</width></size><object>", "line 1: the image's size"),
            (b"<name>", b"<nome>", "it is not XML"),
            (b"<annotation>", b'<!DOCTYPE a [<!ENTITY b "c">]>\n<annotation>', "line 1: it declares an entity"),
            (b"<annotation>", b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>\n<annotation>', "an entity"),
        ],
    )
    def test_a_broken_file_is_named(self, folder: Path, old: bytes, new: bytes, says: str) -> None:
        """With its line; a file that declares entities is refused before any is expanded."""
        file = folder / "VOCdevkit/VOC2007/Annotations/000003.xml"
        file.write_bytes(file.read_bytes().replace(old, new, 1))
        with pytest.raises(BrokenDatasetError, match=rf"000003\.xml', {'' if 'line' in says else '.*'}{says}"):
            detect_layout(FolderTree(folder))


def test_other_trees_are_declined(tmp_path: Path) -> None:
    """Folders of classes, masks, a stray JSON: each stays what it is."""
    for name in ("cat/1.jpg", "dog/2.jpg"):
        put_image(tmp_path / "classes" / name, 1)
        put_image(tmp_path / "pairs/images" / name, 1)
        mask = tmp_path / "pairs/labels" / name.replace("jpg", "png")
        mask.parent.mkdir(parents=True)
        Image.fromarray(np.eye(8, dtype=np.uint8)).save(mask)
    put(tmp_path / "classes/info.json", json.dumps({"images": 2}))
    put(tmp_path / "classes/cat/readme.txt", "cats")
    assert detect_layout(FolderTree(tmp_path / "classes")).layout == "image_folder"
    assert detect_layout(FolderTree(tmp_path / "pairs")).layout == "pairs"
    with pytest.raises(EmptySourceError):
        read_detection(FolderTree(put(tmp_path / "none/a.txt", "0 .5 .5 1 1").parent))


@pytest.mark.parametrize("name", ["labels/1.txt", "labels/2.txt"])
def test_label_files_that_vanish_are_named(tmp_path: Path, name: str) -> None:
    """A tree is listed once; what is gone since then is an error of the source, not of the layout."""
    for number in (1, 2):
        put_image(tmp_path / f"images/{number}.jpg", number)
        put(tmp_path / f"labels/{number}.txt", "0 .5 .5 1 1")
    tree = FolderTree(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        read_detection(tree)


def test_label_files_of_a_slow_tree_are_read_many_at_once(tmp_path: Path) -> None:
    """A mount's latency is paid a few times, not once for each label file."""
    count, delay_s = 300, 0.02
    for number in range(count):
        put(tmp_path / f"images/{number}.jpg", b"")
        put(tmp_path / f"labels/{number}.txt", f"{number % 3} .5 .5 1 1")

    class SlowTree(FolderTree):
        def read(self, entry: FileEntry) -> bytes:
            time.sleep(delay_s)
            return super().read(entry)

    began = time.monotonic()
    found = read_detection(SlowTree(tmp_path))
    assert time.monotonic() - began < count * delay_s / 3
    assert [int(boxes_in(found, key)["labels"][0]) for key in found.keys] == [int(key[7:-4]) % 3 for key in found.keys]


def test_a_box_that_ends_before_it_begins_is_named_in_every_format(tmp_path: Path) -> None:
    """Pascal VOC's and KITTI's were packed, and a model then learnt nothing from them or stopped."""
    put_image(tmp_path / "voc/a.png", 0)
    box = "<bndbox><xmin>20</xmin><ymin>25</ymin><xmax>5</xmax><ymax>6</ymax></bndbox>"
    put(tmp_path / "voc/a.xml", f"<annotation><object><name>dog</name>{box}</object></annotation>")
    put_image(tmp_path / "kitti/image_2/a.png", 0)
    put(tmp_path / "kitti/label_2/a.txt", "Car 0 0 0 20 6 5 25" + 7 * " 0")
    for folder, key in (("voc", "a.png"), ("kitti", "image_2/a.png")):
        with pytest.raises(LayoutError, match=rf"Box 1 of '{key}'"):
            read(tmp_path / folder)


def _three(folder: Path, form: str) -> Any:
    """Three images, 40 pixels high and 60 wide: a box inside, one that ends 20 pixels outside, and a flat one."""
    boxes = {"a": (0, 0, 60, 40), "b": (40, 5, 80, 16), "c": (20, 5, 20, 16)}
    if form == "items":
        return [
            (Image.new("RGB", (60, 40)), {"boxes": np.array([box], np.float32), "labels": np.zeros(1, np.int64)})
            for box in boxes.values()
        ]
    place = {"KITTI": "image_2/{}.png", "YOLO": "images/{}.png"}.get(form, "{}.png")
    lines = ["path,xmin,ymin,xmax,ymax,class"]
    for name, (x0, y0, x1, y1) in boxes.items():
        put_image(folder / place.format(name), 0)
        lines.append(f"{name}.png,{x0},{y0},{x1},{y1},dog")
        edges = "".join(f"<{edge}>{at}</{edge}>" for edge, at in
                        (("xmin", x0 + 1), ("ymin", y0 + 1), ("xmax", x1), ("ymax", y1)))  # fmt: skip
        middle = ((x0 + x1) / 120, (y0 + y1) / 80, (x1 - x0) / 60, (y1 - y0) / 40)
        shape = {"label": "dog", "points": [[x0, y0], [x1, y1]], "shape_type": "rectangle"}
        match form:
            case "Pascal VOC":
                said = f"<annotation><object><name>dog</name><bndbox>{edges}</bndbox></object></annotation>"
                put(folder / f"{name}.xml", said)
            case "KITTI":
                put(folder / f"label_2/{name}.txt", f"Car 0 0 0 {x0} {y0} {x1} {y1}" + 7 * " 0")
            case "YOLO" if name != "b":
                put(folder / f"labels/{name}.txt", f"0 {' '.join(map(str, middle))}")
            case "YOLO":
                # Its parts end at 1, and the box behind.
                put(folder / f"labels/{name}.txt", "0 0.9 0.5 0.4 0.2")
            case "LabelMe":
                put(folder / f"{name}.json", json.dumps({"imagePath": f"{name}.png", "shapes": [shape]}))
    if form == "COCO":
        rows = [
            {"id": n, "image_id": n, "category_id": 1, "bbox": [x0, y0, x1 - x0, y1 - y0]}
            for n, (x0, y0, x1, y1) in enumerate(boxes.values())
        ]
        images = [{"id": n, "file_name": f"{name}.png"} for n, name in enumerate(boxes)]
        document = {"images": images, "annotations": rows, "categories": [{"id": 1, "name": "dog"}]}
        put(folder / "a.json", json.dumps(document))
    if form == "CVAT":
        said = "".join(
            f'<image name="{name}.png"><box label="dog" xtl="{x0}" ytl="{y0}" xbr="{x1}" ybr="{y1}"/></image>'
            for name, (x0, y0, x1, y1) in boxes.items()
        )
        put(folder / "a.xml", f"<annotations>{said}</annotations>")
    if form == "table":
        put(folder / "a.csv", "\n".join(lines))
    return folder


@pytest.mark.parametrize(
    "form", ["Pascal VOC", "KITTI", "YOLO", "COCO", "LabelMe", "CVAT", "table", "items"]
)  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"image_size": (32, 32)}, {"shards": 2}], ids=repr)
def test_boxes_outside_of_the_image_or_without_area_are_counted(
    tmp_path: Path, form: str, options: dict[str, Any]
) -> None:
    """In every format, by the images' own sizes. They are kept, because published datasets have some."""
    report = pack_dataset(_three(tmp_path / "data", form), tmp_path / "out.h5", progress=False, **options)
    told = [re.fullmatch(r"(.*) \(first in '(?:.*/)?(.*)'\) is kept as written\.", note) for note in report.notes]
    outside, flat = ("list[1]", "list[2]") if form == "items" else ("b.png", "c.png")
    assert [one.groups() for one in told if one is not None] == [
        ("1 box partly or wholly outside of the image", outside),
        ("1 box without any width or height", flat),
    ]


def _one_coco(folder: Path, categories: dict[int, str] | None = None, **said: Any) -> Path:
    """One image with one annotation."""
    put_image(folder / "a.png", 0)
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 8, 9], "iscrowd": 0} | said
    kinds = [{"id": key, "name": name} for key, name in (categories or {1: "dog"}).items()]
    document = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [annotation], "categories": kinds}
    put(folder / "a.json", json.dumps(document))
    return folder


@pytest.mark.parametrize(
    ("said", "crowd"),
    [(0, 0), (1, 1), (True, 1), (False, 0), (None, 0), ("0", 0), ("1", 1), ("", 0), ("no", None)],
    ids=repr,
)
def test_iscrowd_is_what_is_written(tmp_path: Path, said: Any, crowd: int | None) -> None:
    """Some tools write numbers as texts; the text 0 was taken for true."""
    folder = _one_coco(tmp_path, iscrowd=said)
    if crowd is None:
        with pytest.raises(BrokenDatasetError, match="iscrowd 'no'"):
            read(folder)
        return
    assert boxes_in(read(folder), "a.png")["iscrowd"].tolist() == [crowd]


def test_two_classes_of_one_name_are_refused(tmp_path: Path) -> None:
    """Of any format: a person counts one class, and the labels were two."""
    with pytest.raises(BrokenDatasetError, match="called 'dog'"):
        read(_one_coco(tmp_path / "coco", {1: "dog", 7: "dog"}))
    put_image(tmp_path / "yolo/images/a.jpg", 0)
    put(tmp_path / "yolo/labels/a.txt", "1 .5 .5 .1 .1")
    put(tmp_path / "yolo/data.yaml", "names: [dog, cat, dog]")
    with pytest.raises(BrokenDatasetError, match="called 'dog'"):
        read(tmp_path / "yolo")


def test_parts_of_the_image_are_no_pixels(tmp_path: Path) -> None:
    """Boxes that were meant as parts of the sides were packed as if smaller than a pixel; one of a pixel is kept."""
    with pytest.raises(BrokenDatasetError, match=r"'a\.png'.* 0\.1, 0\.2, 0\.4, 0\.7"):
        read(_one_coco(tmp_path / "parts", bbox=[0.1, 0.2, 0.3, 0.5]))
    assert boxes_in(read(_one_coco(tmp_path / "pixel", bbox=[0, 0, 1, 1])), "a.png")["boxes"].tolist() == [[0, 0, 1, 1]]


@pytest.mark.parametrize(("names", "told"), [(("a.jpg", "b.jpg"), 0), (("x.jpg", ""), 0), (("b.jpg", "a.jpg"), 2)])
def test_another_image_in_an_xml_file_is_told(tmp_path: Path, names: tuple[str, str], told: int) -> None:
    """The file's own name counts, as everywhere; a name that no image has is an old one."""
    for stem, name in zip("ab", names, strict=True):
        put_image(tmp_path / f"{stem}.jpg", 0)
        box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
        said = f"<filename>{name}</filename><object><name>{stem}</name>{box}</object>"
        put(tmp_path / f"{stem}.xml", f"<annotation>{said}</annotation>")
    found = read(tmp_path)
    assert [boxes_in(found, key)["labels"].tolist() for key in ("a.jpg", "b.jpg")] == [[0], [1]]
    note = (
        "2 XML files have another image of the dataset as filename (first that of 'a.jpg'): the file of an image is "
        "the one of its name."
    )
    assert found.notes == ((note,) if told else ())
