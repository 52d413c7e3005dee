"""Generated annotations against readers of others: pycocotools, xml.etree, plain words; or one error that names it."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import ColabstageError, LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.options import Boxes
from colabstage.trees.folder import FolderTree
from tests.layouts.readers import read_detection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.options import SampleTable

QUICK = settings(max_examples=30, deadline=None)
ODD = st.one_of(st.none(), st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=2), st.integers()))
PLACE = st.floats(0, 60, allow_nan=False, width=32)


def put(folder: Path, name: str, content: str = "") -> None:
    """Write a text, or an image where the name says so."""
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.suffix in (".jpg", ".png"):
        Image.new("RGB", (64, 48)).save(place)
    else:
        place.write_text(content, encoding="utf-8")


def rows_of(table: SampleTable) -> dict[str, list[tuple[Any, ...]]]:
    """Class name and corners of the boxes of each sample, rounded."""
    assert isinstance(table.targets, Boxes)
    offsets, found = table.targets.offsets, {}
    for number, key in enumerate(table.keys):
        part = slice(offsets[number], offsets[number + 1])
        names = [table.classes[label] for label in table.targets.columns["labels"][part]]
        corners = np.round(table.targets.boxes[part], 3).tolist()
        found[key] = [(name, *row) for name, row in zip(names, corners, strict=True)]
    return found


@st.composite
def coco(draw: st.DrawFn) -> dict[str, Any]:
    ids = draw(st.lists(st.integers(0, 10**9), min_size=2, max_size=5, unique=True))
    kinds = draw(st.lists(st.integers(0, 500), min_size=1, max_size=4, unique=True))
    # Where no box reaches beyond 1, they are taken for parts of the image, and refused.
    box = st.tuples(PLACE.filter(lambda x: x > 1), PLACE, PLACE, PLACE).map(list)
    annotations = draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(kinds), box), min_size=1, max_size=12))
    return {
        "images": [{"id": one, "file_name": f"{n}.jpg", "width": 64, "height": 48} for n, one in enumerate(ids)],
        "categories": [{"id": one, "name": f"kind {one}"} for one in kinds],
        "annotations": [
            {"id": n, "image_id": image, "category_id": kind, "bbox": box, "area": n + 0.5, "iscrowd": n % 2}
            for n, (image, kind, box) in enumerate(annotations)
        ],
    }


@given(document=coco())
@QUICK
def test_coco_is_what_pycocotools_reads(document: dict[str, Any]) -> None:
    """Boxes of each image, with the names of their categories, in the file's order."""
    tools = pytest.importorskip("pycocotools.coco", reason="needs pycocotools: pip install pycocotools")
    with TemporaryDirectory() as name:
        folder = Path(name)
        for image in document["images"]:
            put(folder, f"images/{image['file_name']}")
        put(folder, "annotations.json", json.dumps(document))
        with redirect_stdout(io.StringIO()):
            reference = tools.COCO(str(folder / "annotations.json"))
        expected = {}
        further = []
        for key, image in reference.imgs.items():
            found = reference.loadAnns(reference.getAnnIds(imgIds=[key]))
            corners = [(x, y, x + w, y + h) for x, y, w, h in (one["bbox"] for one in found)]
            names = [reference.cats[one["category_id"]]["name"] for one in found]
            rows = [(name, *np.round(row, 3).tolist()) for name, row in zip(names, corners, strict=True)]
            expected[f"images/{image['file_name']}"] = rows
            further += [(one["area"], one["iscrowd"]) for one in found]
        table = read_detection(FolderTree(folder))
        assert rows_of(table) == expected
        assert isinstance(table.targets, Boxes)
        columns = (table.targets.columns[name].tolist() for name in ("area", "iscrowd"))
        assert list(zip(*columns, strict=True)) == further


@given(
    document=coco(),
    where=st.sampled_from(
        [("images", "id"), ("images", "file_name"), ("categories", "id"), ("annotations", "image_id"),
         ("annotations", "category_id"), ("annotations", "bbox"), ("annotations", "area")]
    ),
    odd=ODD,
)  # fmt: skip
@QUICK
def test_values_of_other_types_in_coco_are_named(document: dict[str, Any], where: tuple[str, str], odd: Any) -> None:
    """A list where a number belongs is an error of ours, never one of Python's."""
    document[where[0]][0][where[1]] = odd
    with TemporaryDirectory() as name:
        folder = Path(name)
        for image in document["images"]:
            put(folder, f"images/{image['id'] if isinstance(image['id'], int) else 0}.jpg")
        for number in range(5):
            put(folder, f"images/{number}.jpg")
        put(folder, "annotations.json", json.dumps(document))
        if where[1] == "area" and odd is None:
            read_detection(FolderTree(folder))
            return
        with pytest.raises(ColabstageError, match=r"annotations\.json"):
            read_detection(FolderTree(folder))


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_images_of_another_size_than_their_boxes_are_named(tmp_path: Path, encoding: str) -> None:
    """A smaller copy of an image: its boxes would lie elsewhere."""
    image = {"id": 1, "file_name": "0.jpg", "width": 640, "height": 480}
    other = {"id": 2, "file_name": "1.jpg", "width": 64, "height": 48}
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 300, 4]}
    document = {"images": [image, other], "categories": [{"id": 1, "name": "a"}], "annotations": [box]}
    put(tmp_path, "data/annotations.json", json.dumps(document))
    for number in range(2):
        put(tmp_path, f"data/images/{number}.jpg")
    with pytest.raises(ColabstageError, match=r"0\.jpg.*480 x 640.*48 x 64"):
        pack_dataset(tmp_path / "data", tmp_path / "a.h5", encoding=encoding)
    report = pack_dataset(tmp_path / "data", tmp_path / "a.h5", encoding=encoding, on_error="skip")
    assert sum(report.samples.values()) == 1


VOC_PLACES = [
    ("JPEGImages/{}.jpg", "Annotations/{}.xml"), ("images/{}.jpg", "annotations/{}.xml"),
    ("images/{}.png", "annotations/xmls/{}.xml"), ("JPEGImages/{}.jpg", "Annotation/{}.xml"),
    ("images/train/{}.jpg", "annotations/train/{}.xml"), ("train/images/{}.jpg", "train/labels/{}.xml"),
    ("{}.jpg", "{}.xml"),
]  # fmt: skip


@given(
    places=st.sampled_from(VOC_PLACES),
    boxes=st.lists(st.lists(st.tuples(st.sampled_from("abc"), PLACE, PLACE, PLACE, PLACE), max_size=3), min_size=3),
    flag=st.sampled_from(["0", "1", "Unspecified", "", None, "true"]),
)
@QUICK
def test_voc_is_what_etree_reads(places: tuple[str, str], boxes: Sequence[Any], flag: str | None) -> None:
    """Wherever the XML lies, and whatever stands for a flag."""
    with TemporaryDirectory() as name:
        folder, flags = Path(name), list[int]()
        expected: dict[str, list[tuple[Any, ...]]] = {}
        for number, objects in enumerate(boxes[:5]):
            root = ET.Element("annotation")
            for kind, *edges in objects:
                one = ET.SubElement(root, "object")
                ET.SubElement(one, "name").text = kind
                if flag is not None:
                    ET.SubElement(one, "difficult").text = flag
                place = ET.SubElement(one, "bndbox")
                # A box that ends before it begins is refused.
                ordered = [*map(min, edges[:2], edges[2:]), *map(max, edges[:2], edges[2:])]
                for tag, edge in zip(("xmin", "ymin", "xmax", "ymax"), ordered, strict=True):
                    ET.SubElement(place, tag).text = repr(edge)
                flags.append(int(flag in ("1", "true")))
            put(folder, places[0].format(number))
            put(folder, places[1].format(number), ET.tostring(root, encoding="unicode"))
            expected[places[0].format(number)] = []
            for one in ET.parse(folder / places[1].format(number)).getroot().iter("object"):
                texts = [one.findtext(f"bndbox/{tag}", "") for tag in ("xmin", "ymin", "xmax", "ymax")]
                x0, y0, x1, y1 = (float(text) for text in texts)
                corners = np.round([max(x0 - 1, 0), max(y0 - 1, 0), x1, y1], 3).tolist()
                expected[places[0].format(number)].append((one.findtext("name"), *corners))
        table = read_detection(FolderTree(folder))
        assert rows_of(table) == expected
        assert isinstance(table.targets, Boxes)
        assert table.targets.columns["difficult"].tolist() == flags


PART = st.floats(0, 1, allow_nan=False, width=32)


@given(
    lines=st.lists(
        st.lists(
            st.tuples(st.integers(0, 2), st.lists(PART, min_size=4, max_size=4) | st.lists(PART, min_size=6).filter(
                lambda values: len(values) % 2 == 0
            )),
            max_size=3,
        ),
        min_size=2, max_size=4,
    )
)  # fmt: skip
@QUICK
def test_yolo_is_what_its_lines_say(lines: Sequence[Sequence[tuple[int, list[float]]]]) -> None:
    """Boxes as centres and sizes, polygons as the boxes around them."""
    names = ["dog's toy", "no", "b"]
    with TemporaryDirectory() as name:
        folder = Path(name)
        expected: dict[str, list[tuple[Any, ...]]] = {}
        put(folder, "data.yaml", "names: [dog's toy, no, 'b']")
        for number, objects in enumerate(lines):
            put(folder, f"images/{number}.jpg")
            text = "".join(f"{kind} {' '.join(map(repr, values))}\n" for kind, values in objects)
            put(folder, f"labels/{number}.txt", text)
            rows = expected.setdefault(f"images/{number}.jpg", [])
            for line in text.splitlines():
                kind, *words = line.split()
                values = np.array([float(word) for word in words])
                corners = (
                    np.concatenate([values[:2] - values[2:] / 2, values[:2] + values[2:] / 2]) if len(values) == 4
                    else np.concatenate([values.reshape(-1, 2).min(0), values.reshape(-1, 2).max(0)])
                )  # fmt: skip
                rows.append((names[int(kind)], *np.round(corners, 3).tolist()))
        counts = {len(values) for objects in lines for _, values in objects}
        # As many points in each of several lines may be keypoints: `test_poses_are_boxes_with_keypoints_left_out`.
        assume(len(counts) != 1 or min(counts) <= 8)
        assert rows_of(read_detection(FolderTree(folder))) == expected


def pose(number: int, points: int, width: int) -> str:
    """A box with keypoints inside, as YOLO's poses are written."""
    rng = np.random.default_rng(number)
    inside = 0.5 + rng.uniform(-0.1, 0.1, (points, 2))
    rows = np.concatenate([inside, np.full((points, width - 2), 2.0)], 1)
    return f"0 0.5 0.5 0.3 0.3 {' '.join(f'{value:.4f}' for value in rows.ravel())}\n"


@pytest.mark.parametrize("width", [2, 3])
def test_poses_are_boxes_with_keypoints_left_out(tmp_path: Path, width: int) -> None:
    """Where kpt_shape says so; where it does not, poses are not taken for polygons."""
    for number in range(5):
        put(tmp_path, f"images/{number}.jpg")
        put(tmp_path, f"labels/{number}.txt", pose(number, 17, width))
    put(tmp_path, "data.yaml", "names: [person]\n")
    with pytest.raises(LayoutError, match="kpt_shape"):
        read_detection(FolderTree(tmp_path))
    put(tmp_path, "data.yaml", f"names: [person]\nkpt_shape: [17, {width}]\n")
    table = detect_layout(FolderTree(tmp_path))
    assert set(map(tuple, rows_of(table)["images/0.jpg"])) == {("person", 0.35, 0.35, 0.65, 0.65)}
    assert any("17 keypoints" in note for note in table.notes)
