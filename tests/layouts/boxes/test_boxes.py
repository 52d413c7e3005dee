"""Boxes of every format are those that were drawn; a broken annotation is named, with its file and its place."""

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import DecodeError, LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.options import Boxes, SampleTable
from colabstage.trees.open import open_tree
from tests.layouts.boxes.tools import HEIGHT, TOOLS, WIDTH, Drawn, Shape, Texts, rows_of
from tests.layouts.known import MemoryTree, label_studio
from tests.support.made_files import image, write_files


def read(texts: Texts, layout: str = "auto") -> SampleTable:
    return detect_layout(MemoryTree({name: text.encode() for name, text in texts.items()}), layout)


def columns_of(table: SampleTable, key: str) -> dict[str, Any]:
    """Boxes, labels and whatever else is said of the boxes of one sample."""
    assert isinstance(table.targets, Boxes)
    row = table.keys.index(key)
    part = slice(table.targets.offsets[row], table.targets.offsets[row + 1])
    return {"boxes": table.targets.boxes[part], **{name: one[part] for name, one in table.targets.columns.items()}}


# --- what is drawn ----------------------------------------------------------------------------------------------------

PLACE = st.integers(0, 470).map(lambda tenths: tenths / 10)


@st.composite
def drawings(draw: st.DrawFn) -> Drawn:
    """A few images with boxes and outlines; the last one has a box that reaches beyond the first pixel."""
    sides = st.tuples(PLACE, PLACE, PLACE, PLACE).map(lambda at: (*sorted(at[:2]), *sorted(at[2:])))
    box = sides.map(lambda at: [(at[0], at[2]), (at[1], at[3])])
    outline = st.lists(st.tuples(PLACE, PLACE), min_size=3, max_size=5)
    shape = st.builds(Shape, st.sampled_from(["cat", "dog's-toy", "Käse&Co", "0"]), box | outline)
    return [*draw(st.lists(st.lists(shape, max_size=3), min_size=1, max_size=3)), [draw(shape), BOX]]


BOX = Shape("cat", [(5, 6), (40, 30)])


@pytest.mark.parametrize("tool", TOOLS)
@given(drawn=drawings())
@settings(max_examples=5, deadline=None)
def test_boxes_are_found_as_they_were_drawn(tool: str, drawn: Drawn) -> None:
    """Those of each image, in their order, with their labels; of outlines the boxes around them."""
    if TOOLS[tool].whole:
        drawn = [[Shape(one.label, [(int(x), int(y)) for x, y in one.points]) for one in shapes] for shapes in drawn]
    expected = TOOLS[tool].expected(drawn)
    found = rows_of(read(TOOLS[tool].files(drawn)))
    assert found.keys() <= expected.keys()
    for key, rows in expected.items():
        assert [row[0] for row in found.get(key, [])] == [row[0] for row in rows]
        np.testing.assert_allclose([row[1:] for row in found.get(key, [])], [row[1:] for row in rows], atol=2e-3)


# The last one has no area.
ODD_BOXES = [[Shape("cat", corners)] for corners in ([(0, 0), (64, 48)], [(40, 5), (80, 16)], [(20, 5), (20, 16)])]


@pytest.mark.parametrize(
    ("tool", "options"),
    [
        *((tool, {}) for tool in ("COCO", "Pascal VOC", "YOLO", "a table", "items")),
        ("COCO", {"image_size": (32, 32)}),
        ("COCO", {"shards": 2}),
    ],
    ids=str,
)
def test_boxes_outside_of_the_image_are_kept_and_noted(tmp_path: Path, tool: str, options: dict[str, Any]) -> None:
    """By the images' own sizes: published datasets have some."""
    source: Any
    if tool == "items":
        outside = "list[1]"
        rows = [(Image.new("RGB", (WIDTH, HEIGHT)), shapes[0].row[1:]) for shapes in ODD_BOXES]
        source = [(x, {"boxes": np.array([box], np.float32), "labels": np.zeros(1, np.int64)}) for x, box in rows]
    else:
        outside = TOOLS[tool].image.format(1).rpartition("/")[2]
        source = write_files(tmp_path / "set", in_files(tool, ODD_BOXES))
    report = pack_dataset(source, tmp_path / "out.h5", progress=False, **options)
    assert sum(report.samples.values()) == 3
    assert [outside in note for note in report.notes if "box " in note] == [True]


def in_files(tool: str, drawn: Drawn, **sizes: tuple[int, int]) -> dict[str, bytes]:
    """The files of a drawing with images; `sizes`: of some, by number as `n1=(48, 64)`."""
    texts = TOOLS[tool].write(drawn)
    names = map(TOOLS[tool].image.format, range(len(drawn)))
    images = {name: image(n, size=sizes.get(f"n{n}", (HEIGHT, WIDTH)), form="JPEG") for n, name in enumerate(names)}
    return images | {name: text.encode() for name, text in texts.items()}


@pytest.mark.parametrize(
    ("tool", "encoding"), [*((name, "pixels") for name, tool in TOOLS.items() if tool.sized), ("COCO", "encoded")]
)
def test_an_image_of_another_size_than_its_boxes_were_drawn_on_is_broken(
    tmp_path: Path, tool: str, encoding: str
) -> None:
    """Named with both sizes, or left out."""
    folder = write_files(tmp_path / "set", in_files(tool, [[BOX]] * 3, n1=(96, 128)))
    options: dict[str, Any] = {"encoding": encoding, "image_size": 32, "progress": False}
    with pytest.raises(DecodeError, match=rf"{TOOLS[tool].image.format(1)}.*(48 x 64.*96 x 128|96 x 128.*48 x 64)"):
        pack_dataset(folder, tmp_path / "out.h5", **options)
    report = pack_dataset(folder, tmp_path / "out.h5", on_error="skip", **options)
    assert (sum(report.samples.values()), len(report.skipped)) == (2, 1)


# --- what a format says besides ---------------------------------------------------------------------------------------


def test_kittis_columns_are_those_of_its_readme() -> None:
    """What nobody labels is the last class."""
    line = "Car 0.25 2 -1.57 1 2 30 40 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"
    ignored = "DontCare -1 -1 -10 1 2 3 4 -1 -1 -1 -1000 -1000 -1000 -10\n"
    images = {"training/image_2/0.png": "", "testing/image_2/1.png": ""}
    found = read({**images, "training/label_2/0.txt": line + ignored})
    assert (found.classes, found.splits) == (("Car", "DontCare"), ("test", "train"))
    columns = columns_of(found, "training/image_2/0.png")
    expected: dict[str, Any] = {
        "boxes": [1, 2, 30, 40], "labels": 0, "truncated": 0.25, "occluded": 2, "alpha": -1.57,
        "dimensions": [1.65, 1.67, 3.64], "location": [-0.65, 1.71, 46.70], "rotation_y": -1.59,
    }  # fmt: skip
    assert columns.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(columns[name][0], value, rtol=1e-6)


POSES = ("Unspecified", "Frontal", "Rear", "Left", "Right")


@pytest.mark.parametrize(("said", "flag"), [("1", 1), ("true", 1), ("Unspecified", 0), (None, 0)], ids=repr)
def test_vocs_flags_and_poses(said: str | None, flag: int) -> None:
    """Whatever tools write where nothing is to be said."""
    place = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    flags = "" if said is None else f"<difficult>{said}</difficult><truncated>{said}</truncated>"
    objects = "".join(f"<object><name>cat</name><pose>{pose}</pose>{flags}{place}</object>" for pose in POSES)
    columns = columns_of(read({"a.jpg": "", "a.xml": f"<annotation>{objects}</annotation>"}), "a.jpg")
    assert columns["difficult"].tolist() == columns["truncated"].tolist() == [flag] * len(POSES)
    assert columns["pose"].tolist() == list(range(len(POSES)))


def one_coco(categories: dict[int, str] | None = None, **said: Any) -> Texts:
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 8, 9], "iscrowd": 0} | said
    kinds = [{"id": key, "name": name} for key, name in (categories or {1: "dog"}).items()]
    # Some tools repeat ids in the images.
    images = [{"id": 1, "file_name": "a.png", "image_id": 1, "category_id": 1}]
    return {"a.json": json.dumps({"images": images, "annotations": [annotation], "categories": kinds}), "a.png": ""}


@pytest.mark.parametrize(("said", "crowd"), [(0, 0), (True, 1), (None, 0), ("1", 1), ("", 0)], ids=repr)
def test_cocos_iscrowd_is_what_is_written(said: Any, crowd: int) -> None:
    """Some tools write numbers as texts."""
    columns = columns_of(read(one_coco(iscrowd=said, area=7.5)), "a.png")
    assert (columns["iscrowd"].tolist(), columns["area"].tolist()) == ([crowd], [7.5])


def yolo(*lines: str, **texts: str) -> Texts:
    """An image for each line; `names__txt` is a file names.txt."""
    labels = {f"labels/{n}.txt": line for n, line in enumerate(lines)}
    images = {f"images/{n}.jpg": "" for n in range(len(lines))}
    return images | labels | {name.replace("__", "."): text for name, text in texts.items()}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("names: [a, b]", ("a", "b")),
        ("names: [\n  'a',\n  'b'\n]\nnc: 2", ("a", "b")),
        ("names: {0: a, 1: 'it''s'}", ("a", "it's")),
        ("nc: 2\nnames:\n- a # x\n- 'b # y'\nroboflow:\n  license: z", ("a", "b # y")),
        ("names:\n  1: b\n\n  0: 'a: b'\n", ("a: b", "b")),
        ("names: [dog's toy, no, 1, ~]", ("dog's toy", "no", "1", "~")),
        ("train: x", ("0",)),
    ],
)
def test_names_are_read_from_yaml(text: str, names: tuple[str, ...]) -> None:
    """The forms that Ultralytics, Roboflow and people write, as PyYAML reads them."""
    assert read(yolo("0 .5 .5 .1 .1", data__yaml=text)).classes == names


@pytest.mark.parametrize("degrees", [0, 200.5])
def test_turned_boxes_ellipses_and_masks_are_the_boxes_around_them(degrees: float) -> None:
    """CVAT turns about the middle and Label Studio about the first corner, both clockwise."""
    shapes = (
        f'<box label="a" xtl="10" ytl="20" xbr="30" ybr="26" rotation="{degrees}"/>'
        f'<ellipse label="b" cx="20" cy="23" rx="10" ry="3" rotation="{degrees}"/>'
        '<mask label="c" left="3" top="4" width="5" height="6" rle="0, 30"/>'
        '<points label="d" points="1.0,2.0"/><skeleton label="e"><points label="f" points="1,2"/></skeleton>'
    )
    text = f'<annotations><image name="0.jpg" width="64" height="48">{shapes}</image></annotations>'
    by_cvat = read({"annotations.xml": text, "0.jpg": ""})
    tasks = label_studio("0.jpg")
    tasks[0]["annotations"][0]["result"][0]["value"]["rotation"] = degrees
    by_label_studio = read({"project.json": json.dumps(tasks), "0.jpg": ""})
    turn, round_ = np.exp(1j * np.deg2rad(degrees)), np.linspace(0, 2 * np.pi, 20_000)
    corners = np.array([-10 - 3j, 10 - 3j, 10 + 3j, -10 + 3j])
    expected = {
        "a": 20 + 23j + turn * corners,
        "b": 20 + 23j + turn * (10 * np.cos(round_) + 3j * np.sin(round_)),
        "c": np.array([3 + 4j, 8 + 10j]),
        "cat": 32 + 12j + turn * np.array([0, 16, 16 + 24j, 24j]),  # label_studio() has it in parts of 64 x 48
    }
    for label, *box in (*rows_of(by_cvat)["0.jpg"], rows_of(by_label_studio)["0.jpg"][0]):
        edge = expected.pop(label)
        np.testing.assert_allclose(box, [edge.real.min(), edge.imag.min(), edge.real.max(), edge.imag.max()], atol=2e-3)
    assert not expected
    assert any("2 annotations" in note for note in by_cvat.notes)


# --- notes ------------------------------------------------------------------------------------------------------------

VOC_BOX = "<object><name>{}</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"


READ: dict[str, tuple[Texts, dict[str, list[Any]]]] = {
    # Though none of its places is above 1.
    "a box of one pixel": (one_coco(bbox=[0, 0, 1, 1]), {"a.png": [("dog", 0.0, 0.0, 1.0, 1.0)]}),
    # In whole lines; a line with both is a broken one, as a comma may be that of a decimal.
    "commas in place of blanks": (
        yolo("0 .5 .25 .5 .25", "0,.5,.25,.5,.25", "0, .5, .25, .5, .25", data__yaml="names: [b]"),
        {f"images/{n}.jpg": [("b", 16.0, 6.0, 48.0, 18.0)] for n in range(3)},
    ),
}


@pytest.mark.parametrize("case", READ)
def test_odd_files_are_read_without_a_note(case: str) -> None:
    texts, expected = READ[case]
    found = read(texts)
    assert (rows_of(found), found.notes) == (expected, ())


COCO_OF_THREE = TOOLS["COCO"].files([[BOX]] * 3)
TRAIN, VAL = (f"annotations/instances_{split}.json" for split in ("train", "val"))
NOTED = {
    "points of LabelMe": (
        {"0.jpg": "", "0.json": json.dumps({"imagePath": "0.jpg", "shapes": [
            {"label": "a", "points": [[1, 2]] * count, "shape_type": "x"} for count in (1, 2, 1)
        ]})},
        "2 annotations",
    ),
    "keypoints": (
        yolo(*(f"0 .5 .5 .3 .{n}{' .5 .4' * 17}" for n in range(1, 6)), data__yaml="names: [a]\nkpt_shape: [17, 2]\n"),
        "17",
    ),
    "a split that was not downloaded": (
        COCO_OF_THREE | {VAL: COCO_OF_THREE[TRAIN].replace('_name": "', '_name": "v')},
        f"'{VAL}'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTED)
def test_what_is_left_out_is_noted(case: str) -> None:
    texts, named = NOTED[case]
    assert any(re.search(named, note) for note in read(texts).notes)


# --- refusals ---------------------------------------------------------------------------------------------------------


def replaced(tool: str, name: str, *changes: tuple[str, str]) -> Texts:
    """A drawing of three images, one of its files changed."""
    texts = TOOLS[tool].files([[BOX, Shape("dog", [(1, 2), (9, 8)])]] * 3)
    for old, new in changes:
        assert old in texts[name]
        texts[name] = texts[name].replace(old, new, 1)
    return texts


def coco_of(where: str, number: int, **change: Any) -> Texts:
    """Six annotations, one entry changed."""
    texts = replaced("COCO", TRAIN)
    document = json.loads(texts[TRAIN])
    document[where][number] |= change
    return texts | {TRAIN: json.dumps(document)}


def tasks(**region: Any) -> list[dict[str, Any]]:
    """Two tasks of Label Studio's, the first region of the second with other fields."""
    found = label_studio("0.jpg", "1.jpg")
    annotation = {"result": [{**found[1]["annotations"][0]["result"][0], **region}]}
    return [found[0], {**found[1], "annotations": [annotation]}]


ENTITY = "<annotation><!DOCTYPE a [<!ENTITY b {}>]>"
FOUR = {"0.jpg": "", "1.jpg": ""}
XML, KITTI = "Annotations/1.xml", "training/label_2/1.txt"
ODD = (None, {"a": 1})
YOLO_LINES = [
    "1 0.5 0.5 0.1", "dog 0.5 0.5 0.1 0.1", "1 20 15 10 10", "1 .5 .5 .1 .1 .9", f"1 .5 .5 .2 .2{17 * ' .5 .5 2'}",
    "1 0,5 0,5 0,1 0,1", "-1 .5 .5 .1 .1", "0.5 .5 .5 .1 .1", "nan .5 .5 .1 .1",
]  # fmt: skip
REFUSED: dict[str, tuple[Texts, str]] = {
    **{
        f"KITTI: {line[:16]}": (replaced("KITTI", KITTI, ("dog", f"{line}\ndog")), rf"'{KITTI}', line 2")
        for line in ("Car 0 0 0 1 2 3", "Car 0.00 0 -1.57 a 1 2 3 1 1 1 1 1 1 1", f"Car {'nan ' * 14}", "{}")
    },
    **{
        f"YOLO: {line[:20]}": (
            yolo("1 .5 .5 .1 .1", "1 .5 .5 .1 .1", f"\n{line}\n"),
            rf"'labels/2\.txt', line 2: {re.escape(repr(line)[:90])}",
        )
        for line in YOLO_LINES
    },
    "YOLO: a class beyond the names": (yolo("3 .5 .5 .1 .1", classes__txt="a\nb\n"), r"class 3\b"),
    "YOLO: two classes of one name": (yolo("1 .5 .5 .1 .1", data__yaml="names: [dog, cat, dog]"), "'dog'"),
    "YOLO: keypoints nobody speaks of": (yolo(*[f"0 .5 .5 .3 .3{' .5 .4' * 17}"] * 5), "kpt_shape"),
    "YOLO: points that are visible or not": (yolo(*(f"0 .5 .5 .2 .2 .4 .{n + 4} 1 .5 .5 0" for n in range(4))),
        r"11 numbers.*kpt_shape: \[3, 2\] or \[2, 3\]"),
    **{
        f"YOLO: {text!r}": (yolo("0 .5 .5 .1 .1", data__yaml=text), r"'data\.yaml'")
        for text in ("names: coco.names", "names:\n  0: a\n  2: b", "names: {a: 0}", "names:\n  0: a: b")
    },
    "Darknet: captions": ({"d/0.jpg": "", "d/0.txt": "a photo of 2 dogs", "obj.names": "car\n"}, "YOLO"),
    **{
        f"COCO: {change}": (coco_of("annotations", 2, **change), rf"instances_train.json'.*{named}")
        for change, named in (
            ({"bbox": [1, 2, 3]}, r"annotation 2 \(id 3\)"), ({"bbox": [1, 2, 3, None]}, r"annotation 2 \(id 3\)"),
            ({"bbox": [1, 2, -3, 4]}, r"annotation 2 \(id 3\)"), ({"category_id": 4}, "category 4"),
            ({"image_id": 4}, "image 4"), ({"iscrowd": "no"}, "'no'"),
        )
    },
    **{
        f"COCO: {where} with {key}={odd}": (coco_of(where, 0, **{key: odd}), r"instances_train\.json'")
        for odd in ODD
        for where, key in (
            ("images", "id"), ("images", "file_name"), ("categories", "id"), ("annotations", "image_id"),
            ("annotations", "category_id"), ("annotations", "bbox"), ("annotations", "area"),
        )
        if (key, odd) != ("area", None)
    },
    "COCO: cut": (COCO_OF_THREE | {TRAIN: COCO_OF_THREE[TRAIN][:-2]}, f"'{TRAIN}'"),
    "COCO: one of three images": ({name: text for name,
        text in COCO_OF_THREE.items() if name not in ("train/1.jpg", "train/2.jpg")}, r"instances_train.*\b3\b.*\b1\b"),
    "COCO: none of the images": ({name: text for name,
        text in COCO_OF_THREE.items() if ".jpg" not in name} | {"train/other.jpg": ""},
        r"instances_train.*\b3\b.*\b0\b"),
    "COCO: parts of the image": (one_coco(bbox=[0.1, 0.2, 0.3, 0.5]), r"'a\.png'.* 0\.1, 0\.2, 0\.4, 0\.7"),
    **{
        f"VOC: {new[:24]} for {old[:14]}": (replaced("Pascal VOC", XML, (old, new)), rf"'{XML}'{line}")
        for old, new, line in (
            ("</annotation>", "", ", line 1"), ("<xmin>6", "<xmin>x", ", line 1"), ("<ymax>", "<ymix>", ", line 1"),
            ("<width>64", "<width>wide", ", line 1"), ("<name>", "<nome>", ""),
            ("<annotation>", ENTITY.format('"c"'), ", line 1"),
            ("<annotation>", '<!DOCTYPE a [<!ENTITY b "c">]>\n<annotation>', ", line 1"),
            ("<annotation>", '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>\n<annotation>', ", line 1"),
        )
    },
    "VOC: ends before it begins": ({"a.png": "",
        "a.xml": f"<annotation>{VOC_BOX.format('a').replace('<xmin>1', '<xmin>20')}</annotation>"}, "'a.png'"),
    "Label Studio: a mask": ({**FOUR, "p.json": json.dumps(tasks(type="brushlabels"))}, r"'p.json'.*'brushlabels'"),
    "Label Studio: two persons": ({**FOUR,
        "p.json": json.dumps([one | {"annotations": one["annotations"] * 2} for one in tasks()])}, "task 1 has 2"),
    "Keras YOLO: a class beyond the names": ({**FOUR, "_annotations.txt": "0.jpg 1,2,3,4,0\n1.jpg 1,2,3,4,2\n",
        "_classes.txt": "cat\ndog\n"}, "class 2; 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_broken_or_cannot_be_told_is_named(case: str) -> None:
    """No other layout takes the files over."""
    texts, named = REFUSED[case]
    layout = "detection" if case.startswith("Darknet") else "auto"
    with pytest.raises(LayoutError, match=named):
        read(texts, layout)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_label_files_that_vanish_are_named(tmp_path: Path) -> None:
    """A tree is listed once; what is gone since then is an error of the source, not of the layout."""
    name, texts = "labels/1.txt", yolo("0 .5 .5 1 1", "0 .5 .5 1 1")
    write_files(tmp_path / "set", {name: text.encode() for name, text in texts.items()})
    with open_tree(tmp_path / "set", spool=tmp_path) as tree:
        (tmp_path / "set" / name).unlink()
        with pytest.raises(FileNotFoundError, match=name):
            detect_layout(tree, "detection")


def test_label_files_of_a_slow_tree_are_read_many_at_once() -> None:
    """A mount's latency is paid a few times, not once for each label file."""
    lock, reading, most = threading.Lock(), 0, 0

    class SlowTree(MemoryTree):
        def read(self, entry: Any) -> bytes:
            nonlocal reading, most
            with lock:
                reading += 1
                most = max(most, reading)
            time.sleep(0.005)
            with lock:
                reading -= 1
            return super().read(entry)

    texts = yolo(*(f"{number % 3} .5 .5 1 1" for number in range(60)))
    found = detect_layout(SlowTree({name: text.encode() for name, text in texts.items()}), "detection")
    assert most >= 4
    assert {key: int(rows[0][0]) for key, rows in rows_of(found).items()} == {
        f"images/{number}.jpg": number % 3 for number in range(60)
    }
