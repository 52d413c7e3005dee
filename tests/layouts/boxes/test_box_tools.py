"""Boxes as tools of annotation write them, generated, and read again by json, xml.etree and csv: the same is found."""

from __future__ import annotations

import cmath
import csv
import io
import json
import math
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colabstage.errors import LayoutError
from colabstage.layouts.detect import detect_layout
from tests.layouts.boxes.test_independent_readers import rows_of
from tests.layouts.known import MemoryTree
from tests.layouts.known import label_studio as label_studio_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

WIDTH, HEIGHT = 64, 48
Row = tuple[str, float, float, float, float]
Rows = dict[str, list[Row]]
Texts = dict[str, str]


class Shape(NamedTuple):
    """One thing in an image: two opposite corners of a box, or an outline of three points or more."""

    label: str
    points: list[tuple[float, float]]


Drawn = list[list[Shape]]
PLACE = st.integers(0, 470).map(lambda tenths: tenths / 10)


@st.composite
def drawings(draw: st.DrawFn) -> Drawn:
    """A few images with boxes and outlines, in at least one of them."""
    point = st.tuples(PLACE, PLACE)
    sides = st.tuples(PLACE, PLACE, PLACE, PLACE).map(lambda at: (*sorted(at[:2]), *sorted(at[2:])))
    box = sides.map(lambda at: [(at[0], at[2]), (at[1], at[3])])
    outline = st.lists(point, min_size=3, max_size=5)
    shape = st.builds(Shape, st.sampled_from(["cat", "dog's-toy", "Käse&Co", "0"]), box | outline)
    images = draw(st.lists(st.lists(shape, max_size=3), min_size=1, max_size=3))
    return [*images, [draw(shape), Shape("cat", draw(box))]]


def around(label: str, points: Iterable[tuple[float, float]]) -> Row:
    """A box around points."""
    xs, ys = zip(*points, strict=True)
    return (label, min(xs), min(ys), max(xs), max(ys))


def boxes(shapes: list[Shape]) -> Iterator[tuple[str, float, float, float, float]]:
    """The boxes among them: label, left, top, width and height."""
    for label, ((x0, y0), (x1, y1), *more) in shapes:
        if not more:
            yield label, x0, y0, x1 - x0, y1 - y0


# --- each format: its files, as its tool writes them, and what another reader makes of these --------------------------


def labelme(drawn: Drawn) -> Texts:
    return {
        f"{n}.json": json.dumps(
            {
                "version": "5.4.1", "flags": {}, "imagePath": f"..\\elsewhere\\{n}.jpg", "imageData": None,
                "imageHeight": HEIGHT, "imageWidth": WIDTH,
                "shapes": [
                    {"label": label, "points": points, "shape_type": "polygon" if len(points) > 2 else "rectangle"}
                    for label, points in shapes
                ],
            }
        )
        for n, shapes in enumerate(drawn)
    }  # fmt: skip


def read_labelme(texts: Texts) -> Rows:
    return {
        name.replace(".json", ".jpg"): [around(one["label"], one["points"]) for one in json.loads(text)["shapes"]]
        for name, text in texts.items()
    }


def cvat(drawn: Drawn) -> Texts:
    root = ET.Element("annotations")
    ET.SubElement(ET.SubElement(root, "meta"), "task")
    for n, shapes in enumerate(drawn):
        image = ET.SubElement(root, "image", id=str(n), name=f"{n}.jpg", width=str(WIDTH), height=str(HEIGHT))
        for one in shapes:
            if len(one.points) == 2:
                edges = zip(("xtl", "ytl", "xbr", "ybr"), (*one.points[0], *one.points[1]), strict=True)
                box = ET.SubElement(
                    image, "box", {"label": one.label, "occluded": "0"} | {key: f"{edge:.2f}" for key, edge in edges}
                )
                ET.SubElement(box, "attribute", name="colour").text = "red"
            else:
                points = ";".join(f"{x:.2f},{y:.2f}" for x, y in one.points)
                ET.SubElement(image, "polygon", label=one.label, points=points)
    return {"annotations.xml": ET.tostring(root, encoding="unicode", xml_declaration=True)}


def read_cvat(texts: Texts) -> Rows:
    found: Rows = {}
    for image in ET.fromstring(texts["annotations.xml"]).iter("image"):
        rows = found.setdefault(image.attrib["name"], [])
        for one in image:
            given = one.attrib
            text = given.get("points") or "{xtl},{ytl};{xbr},{ybr}".format(**given)
            numbers = np.array(re.split("[,;]", text), float).reshape(-1, 2)
            rows.append((given["label"], *numbers.min(0), *numbers.max(0)))
    return found


def dota(drawn: Drawn) -> Texts:
    files = {}
    for n, shapes in enumerate(drawn):
        lines = ["imagesource:GoogleEarth", "gsd:0.146343590398"]
        for label, x, y, width, height in boxes(shapes):
            lines.append(f"{x} {y} {x + width} {y} {x + width} {y + height} {x} {y + height} {label} {n % 2}")
        files[f"labelTxt/{n}.txt"] = "\n".join(lines) + "\n"
    return files


def read_dota(texts: Texts) -> Rows:
    found: Rows = {}
    for name, text in texts.items():
        rows = found.setdefault(f"images/{name[len('labelTxt/') : -4]}.jpg", [])
        for line in csv.reader(io.StringIO(text), delimiter=" "):
            if len(line) == 10:
                xs, ys = ([float(word) for word in line[start:8:2]] for start in (0, 1))
                rows.append((line[8], min(xs), min(ys), max(xs), max(ys)))
    return found


def createml(drawn: Drawn) -> Texts:
    said = [
        {
            "image": f"{n}.jpg",
            "annotations": [
                {"label": label, "coordinates": {"x": x + w / 2, "y": y + h / 2, "width": w, "height": h}}
                for label, x, y, w, h in boxes(shapes)
            ],
        }
        for n, shapes in enumerate(drawn)
    ]
    return {"_annotations.createml.json": json.dumps(said)}


def read_createml(texts: Texts) -> Rows:
    found: Rows = {}
    for one in json.loads(texts["_annotations.createml.json"]):
        centres = [(each["label"], *each["coordinates"].values()) for each in one["annotations"]]
        found[one["image"]] = [(label, x - w / 2, y - h / 2, x + w / 2, y + h / 2) for label, x, y, w, h in centres]
    return found


def openimages(drawn: Drawn) -> Texts:
    file = io.StringIO()
    table = csv.writer(file)
    table.writerow(["ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax", "IsOccluded"])
    for n, shapes in enumerate(drawn):
        for label, x, y, width, height in boxes(shapes):
            edges = ((x + 0.1) / 50, (x + width + 0.1) / 50, (y + 0.1) / 50, (y + height + 0.1) / 50)
            table.writerow([f"{n:03}a", "xclick", label, 1, *(f"{edge:.6f}" for edge in edges), 0])
    return {"train-annotations-bbox.csv": file.getvalue()}


def read_openimages(texts: Texts) -> Rows:
    found: Rows = {}
    for row in csv.DictReader(io.StringIO(texts["train-annotations-bbox.csv"])):
        x0, y0, x1, y1 = (float(row[name]) for name in ("XMin", "YMin", "XMax", "YMax"))
        found.setdefault(f"images/{row['ImageID']}.jpg", []).append((row["LabelName"], x0, y0, x1, y1))
    return found


def label_studio(drawn: Drawn) -> Texts:
    tasks = []
    for n, shapes in enumerate(drawn):
        regions: list[dict[str, Any]] = [{"type": "choices", "value": {"choices": ["seen"]}}]
        for number, one in enumerate(shapes):
            (x, y), (x1, y1) = one.points[0], one.points[-1]
            kind = "rectanglelabels" if len(one.points) == 2 else "polygonlabels"
            value: dict[str, Any] = {"points": [[px / WIDTH * 100, py / HEIGHT * 100] for px, py in one.points]}
            if len(one.points) == 2:
                sides = {"width": (x1 - x) / WIDTH * 100, "height": (y1 - y) / HEIGHT * 100}
                turned = (0, 30, 90, 345)[(n + number) % 4]
                value = {"x": x / WIDTH * 100, "y": y / HEIGHT * 100, **sides, "rotation": turned}
            regions.append(
                {"type": kind, "original_width": WIDTH, "original_height": HEIGHT, "value": value | {kind: [one.label]}}
            )
        kept = {"was_cancelled": False, "result": regions}
        tasks.append(
            {
                "id": n,
                "data": {"image": f"/data/local-files/?d=shot%20{n}.jpg"},
                "annotations": [kept, {"was_cancelled": True, "result": [{}]}],
            }
        )
    return {"project.json": json.dumps(tasks)}


def read_label_studio(texts: Texts) -> Rows:
    found: Rows = {}
    for task in json.loads(texts["project.json"]):
        rows = found.setdefault(f"shot {task['id']}.jpg", [])
        for region in task["annotations"][0]["result"][1:]:
            value = region["value"]
            points = [complex(x * WIDTH / 100, y * HEIGHT / 100) for x, y in value.get("points", ())]
            if not points:
                # The corner stays where it is; y points down, so that a growing angle turns clockwise.
                first = complex(value["x"] * WIDTH / 100, value["y"] * HEIGHT / 100)
                size = complex(value["width"] * WIDTH / 100, value["height"] * HEIGHT / 100)
                turn = cmath.exp(1j * math.radians(value["rotation"]))
                points = [first + turn * side for side in (0, size.real, size, size.imag * 1j)]
            (label,) = value[region["type"]]
            rows.append(around(label, [(point.real, point.imag) for point in points]))
    return found


def via(drawn: Drawn) -> Texts:
    said = {}
    for n, shapes in enumerate(drawn):
        regions = []
        for one in shapes:
            (x, y), (x1, y1) = one.points[0], one.points[-1]
            at: dict[str, Any] = {"name": "rect", "x": x, "y": y, "width": x1 - x, "height": y1 - y}
            if len(one.points) > 2:
                xs, ys = zip(*one.points, strict=True)
                at = {"name": "polygon", "all_points_x": xs, "all_points_y": ys}
            regions.append({"shape_attributes": at, "region_attributes": {"kind": one.label}})
        said[f"{n}.jpg{n}"] = {"filename": f"{n}.jpg", "size": n, "regions": regions, "file_attributes": {}}
    return {"via_export.json": json.dumps({"_via_settings": {}, "_via_img_metadata": said})}


def read_via(texts: Texts) -> Rows:
    found: Rows = {}
    for one in json.loads(texts["via_export.json"])["_via_img_metadata"].values():
        rows = found.setdefault(one["filename"], [])
        for region in one["regions"]:
            at = region["shape_attributes"]
            xs = at.get("all_points_x") or [at["x"], at["x"] + at["width"]]
            ys = at.get("all_points_y") or [at["y"], at["y"] + at["height"]]
            rows.append(around(region["region_attributes"]["kind"], zip(xs, ys, strict=True)))
    return found


def keras_yolo(drawn: Drawn) -> Texts:
    names = sorted({label for shapes in drawn for label, *_ in boxes(shapes)})
    lines = [
        " ".join(
            [
                f"{n}.jpg",
                *(
                    f"{int(x)},{int(y)},{int(x + w)},{int(y + h)},{names.index(label)}"
                    for label, x, y, w, h in boxes(shapes)
                ),
            ]
        )
        for n, shapes in enumerate(drawn)
    ]
    return {"_annotations.txt": "\n".join(lines), "_classes.txt": "\n".join(names)}


def read_keras_yolo(texts: Texts) -> Rows:
    names = texts["_classes.txt"].split("\n")
    found: Rows = {}
    for path, *written in (line.split() for line in texts["_annotations.txt"].split("\n")):
        rows = [[int(number) for number in box.split(",")] for box in written]
        found[path] = [(names[kind], x0, y0, x1, y1) for x0, y0, x1, y1, kind in rows]
    return found


def supervisely(drawn: Drawn) -> Texts:
    return {
        f"ds/ann/{n}.jpg.json": json.dumps(
            {
                "size": {"height": HEIGHT, "width": WIDTH},
                "objects": [{"classTitle": label, "points": {"exterior": at, "interior": []}} for label, at in shapes],
            }
        )
        for n, shapes in enumerate(drawn)
    }


def read_supervisely(texts: Texts) -> Rows:
    return {
        name.replace("ann", "img").removesuffix(".json"): [
            around(one["classTitle"], one["points"]["exterior"]) for one in json.loads(text)["objects"]
        ]
        for name, text in texts.items()
    }


def bdd(drawn: Drawn) -> Texts:
    lane = {"category": "lane", "poly2d": [{"vertices": [[1, 2], [3, 4]]}]}
    said = [
        {
            "name": f"{n}.jpg",
            "labels": [lane]
            + [
                {"category": label, "box2d": {"x1": x, "y1": y, "x2": x + w, "y2": y + h}}
                for label, x, y, w, h in boxes(shapes)
            ],
        }
        for n, shapes in enumerate(drawn)
    ]
    return {"bdd100k_labels.json": json.dumps(said)}


def read_bdd(texts: Texts) -> Rows:
    return {
        one["name"]: [
            (each["category"], *(each["box2d"][edge] for edge in ("x1", "y1", "x2", "y2")))
            for each in one["labels"][1:]
        ]
        for one in json.loads(texts["bdd100k_labels.json"])
    }


def wider(drawn: Drawn) -> Texts:
    lines = []
    for n, shapes in enumerate(drawn):
        faces = [" ".join(map(str, (int(x), int(y), int(w), int(h), *[0] * 6))) for _, x, y, w, h in boxes(shapes)]
        lines += [f"0--Parade/{n}.jpg", str(len(faces)), *(faces or ["0 0 0 0 0 0 0 0 0 0 "])]
    return {"wider_face_train_bbx_gt.txt": "\n".join(lines) + "\n"}


def read_wider(texts: Texts) -> Rows:
    found: Rows = {}
    # A path, a count and the lines of numbers up to the next path.
    for path, numbers in re.findall(r"(\S+\.jpg)\n\d+\n((?:[\d ]+\n)+)", texts["wider_face_train_bbx_gt.txt"]):
        rows = np.loadtxt(io.StringIO(numbers), ndmin=2)[:, :4].tolist()
        empty = rows == [[0, 0, 0, 0]] and f"{path}\n0\n" in texts["wider_face_train_bbx_gt.txt"]
        found[path] = [] if empty else [("face", x, y, x + w, y + h) for x, y, w, h in rows]
    return found


def kitti(drawn: Drawn) -> Texts:
    return {
        f"training/label_2/{n:06}.txt": "".join(
            f"{label} 0.00 0 -1.58 {x} {y} {x + w} {y + h} 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"
            for label, x, y, w, h in boxes(shapes)
        )
        for n, shapes in enumerate(drawn)
    }


def read_kitti(texts: Texts) -> Rows:
    found: Rows = {}
    for name, text in texts.items():
        lines = [line for line in csv.reader(io.StringIO(text), delimiter=" ") if line]
        key = name.replace("label_2", "image_2").replace(".txt", ".png")
        found[key] = [(line[0], float(line[4]), float(line[5]), float(line[6]), float(line[7])) for line in lines]
    return found


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (labelme, read_labelme), (cvat, read_cvat), (dota, read_dota), (createml, read_createml),
        (openimages, read_openimages), (label_studio, read_label_studio), (via, read_via),
        (keras_yolo, read_keras_yolo), (supervisely, read_supervisely), (bdd, read_bdd), (wider, read_wider),
        (kitti, read_kitti),
    ],
    ids=lambda one: one.__name__,
)  # fmt: skip
@given(drawn=drawings())
@settings(max_examples=10, deadline=None)
def test_each_is_what_another_reader_finds(
    write: Callable[[Drawn], Texts], read: Callable[[Texts], Rows], drawn: Drawn
) -> None:
    """Boxes of each image, in the file's order, with their labels; of outlines the boxes around them."""
    texts = write(drawn)
    expected = read(texts)
    found = detect_layout(
        MemoryTree({**{name: text.encode() for name, text in texts.items()}, **dict.fromkeys(expected, b"")})
    )
    rows = rows_of(found)
    assert [(key, [row[0] for row in each]) for key, each in sorted(rows.items())] == [
        (key, [row[0] for row in each]) for key, each in sorted(expected.items())
    ]
    for key, each in expected.items():
        np.testing.assert_allclose([row[1:] for row in rows[key]], [row[1:] for row in each], atol=1e-3)


def tasks(**region: Any) -> list[dict[str, Any]]:
    """Two tasks of Label Studio's, the first region of the second with other fields."""
    found = label_studio_tasks("0.jpg", "1.jpg")
    annotation = {"result": [{**found[1]["annotations"][0]["result"][0], **region}]}
    return [found[0], {**found[1], "annotations": [annotation]}]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"p.json": tasks(type="brushlabels")}, r"'p.json'.*Label Studio.*'brushlabels'"),
        ({"p.json": [one | {"annotations": one["annotations"] * 2} for one in tasks()]}, "task 1 has 2 annotations"),
        (
            {"_annotations.txt": "0.jpg 1,2,3,4,0\n1.jpg 1,2,3,4,2\n", "_classes.txt": "cat\ndog\n"},
            r"class 2; 2 are named",
        ),
    ],
    ids=["a mask", "two persons", "a class without a name"],
)
def test_what_cannot_be_told_is_named(files: dict[str, Any], says: str) -> None:
    """A region of another kind, annotations of two persons, a class beyond those that are named."""
    texts = {name: text if isinstance(text, str) else json.dumps(text) for name, text in files.items()}
    with pytest.raises(LayoutError, match=says):
        detect_layout(MemoryTree({"0.jpg": b"", "1.jpg": b"", **{name: text.encode() for name, text in texts.items()}}))


@pytest.mark.parametrize("degrees", [0, 30, 90, 200.5])
def test_cvats_turned_boxes_ellipses_and_masks_are_the_boxes_around_them(degrees: float) -> None:
    """The box was taken as if it were not turned, and ellipses and masks were left out without a word."""
    shapes = (
        f'<box label="a" xtl="10" ytl="20" xbr="30" ybr="26" rotation="{degrees}"/>'
        f'<ellipse label="b" cx="20" cy="23" rx="10" ry="3" rotation="{degrees}"/>'
        '<mask label="c" left="3" top="4" width="5" height="6" rle="0, 30"/>'
        '<points label="d" points="1.0,2.0"/><skeleton label="e"><points label="f" points="1,2"/></skeleton>'
    )
    text = f'<annotations><image name="0.jpg" width="64" height="48">{shapes}</image></annotations>'
    found = detect_layout(MemoryTree({"annotations.xml": text.encode(), "0.jpg": b""}))
    turn, middle = np.exp(1j * np.deg2rad(degrees)), 20 + 23j
    corners = middle + turn * np.array([-10 - 3j, 10 - 3j, 10 + 3j, -10 + 3j])
    round_ = np.linspace(0, 2 * np.pi, 20_000)
    edge = middle + turn * (10 * np.cos(round_) + 3j * np.sin(round_))
    around_both = [[part(one.real), part(one.imag)] for one in (corners, edge) for part in (np.min, np.max)]
    rows = rows_of(found)["0.jpg"]
    assert [row[0] for row in rows] == ["a", "b", "c"]
    expected = [[*around_both[0], *around_both[1]], [*around_both[2], *around_both[3]], [3, 4, 8, 10]]
    np.testing.assert_allclose([row[1:] for row in rows], expected, atol=1e-3)
    assert any(note.startswith("2 shapes without a box") for note in found.notes)


def test_points_of_labelme_are_counted() -> None:
    """They are no boxes, and nobody was told."""
    shapes = [{"label": "a", "points": [[1, 2]] * count, "shape_type": "x"} for count in (1, 2, 1)]
    text = json.dumps({"imagePath": "0.jpg", "shapes": shapes})
    found = detect_layout(MemoryTree({"0.json": text.encode(), "0.jpg": b""}))
    assert "2 shapes without a box, such as points, were left out." in found.notes
