"""Drawings of boxes and outlines, and the files that each tool of annotation writes of them."""

import csv
import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from colabstage.options import Boxes, SampleTable

WIDTH, HEIGHT = 64, 48
Row = tuple[str, float, float, float, float]
Texts = dict[str, str]


class Shape(NamedTuple):
    """One thing in an image: two opposite corners of a box, or an outline of three points or more."""

    label: str
    points: Sequence[tuple[float, float]]

    @property
    def row(self) -> Row:
        xs, ys = zip(*self.points, strict=True)
        return (self.label, min(xs), min(ys), max(xs), max(ys))


Drawn = list[list[Shape]]


def sides(shapes: list[Shape], *, outlines: bool = False) -> Iterator[tuple[str, float, float, float, float]]:
    """Label, left, top, width and height of each box, or of all that is drawn."""
    for shape in shapes:
        label, x0, y0, x1, y1 = shape.row
        if outlines or len(shape.points) == 2:
            yield label, x0, y0, x1 - x0, y1 - y0


def labels_of(drawn: Drawn) -> list[str]:
    return sorted({shape.label for shapes in drawn for shape in shapes})


def rows_of(table: SampleTable) -> dict[str, list[Row]]:
    """What is found: class and corners in pixels of the boxes of each sample."""
    targets = table.targets
    assert isinstance(targets, Boxes)
    boxes = targets.boxes * np.array([WIDTH, HEIGHT] * 2 if targets.relative else 1)
    found = {}
    for number, key in enumerate(table.keys):
        part = slice(targets.offsets[number], targets.offsets[number + 1])
        names = [table.classes[label] for label in targets.columns["labels"][part]]
        found[key] = [(name, *row) for name, row in zip(names, np.round(boxes[part], 3).tolist(), strict=True)]
    return found


# --- what each tool writes --------------------------------------------------------------------------------------------


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


def dota(drawn: Drawn) -> Texts:
    files = {}
    for n, shapes in enumerate(drawn):
        lines = ["imagesource:GoogleEarth", "gsd:0.146343590398"]
        for label, x, y, width, height in sides(shapes):
            lines.append(f"{x} {y} {x + width} {y} {x + width} {y + height} {x} {y + height} {label} {n % 2}")
        files[f"labelTxt/{n}.txt"] = "\n".join(lines) + "\n"
    return files


def createml(drawn: Drawn) -> Texts:
    said = [
        {
            "image": f"{n}.jpg",
            "annotations": [
                {"label": label, "coordinates": {"x": x + w / 2, "y": y + h / 2, "width": w, "height": h}}
                for label, x, y, w, h in sides(shapes)
            ],
        }
        for n, shapes in enumerate(drawn)
    ]
    return {"_annotations.createml.json": json.dumps(said)}


def a_csv(header: list[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows([header, *rows])
    return file.getvalue()


def table(drawn: Drawn) -> Texts:
    rows = [
        [f"{n}.jpg", x, y, x + w, y + h, label] for n, shapes in enumerate(drawn) for label, x, y, w, h in sides(shapes)
    ]
    return {"boxes.csv": a_csv(["path", "xmin", "ymin", "xmax", "ymax", "class"], rows)}


def label_studio(drawn: Drawn) -> Texts:
    tasks = []
    for n, shapes in enumerate(drawn):
        regions: list[dict[str, Any]] = [{"type": "choices", "value": {"choices": ["seen"]}}]
        for one in shapes:
            (x, y), (x1, y1) = one.points[0], one.points[-1]
            kind = "rectanglelabels" if len(one.points) == 2 else "polygonlabels"
            value: dict[str, Any] = {"points": [[px / WIDTH * 100, py / HEIGHT * 100] for px, py in one.points]}
            if len(one.points) == 2:
                size = {"width": (x1 - x) / WIDTH * 100, "height": (y1 - y) / HEIGHT * 100}
                value = {"x": x / WIDTH * 100, "y": y / HEIGHT * 100, **size, "rotation": 0}
            regions.append(
                {"type": kind, "original_width": WIDTH, "original_height": HEIGHT, "value": value | {kind: [one.label]}}
            )
        kept = {"was_cancelled": False, "result": regions}
        left = {"was_cancelled": True, "result": [{}]}
        tasks.append({"id": n, "data": {"image": f"/data/local-files/?d=a%20{n}.jpg"}, "annotations": [kept, left]})
    return {"project.json": json.dumps(tasks)}


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


def via_table(drawn: Drawn) -> Texts:
    empty: dict[str, Any] = {"shape_attributes": {}, "region_attributes": {}}
    rows = [
        [one["filename"], json.dumps(at["shape_attributes"]), json.dumps(at["region_attributes"])]
        for one in json.loads(via(drawn)["via_export.json"])["_via_img_metadata"].values()
        for at in one["regions"] or [empty]
    ]
    return {"via_csv.csv": a_csv(["filename", "region_shape_attributes", "region_attributes"], rows)}


def prodigy(drawn: Drawn) -> Texts:
    """A box has its corner and size, an outline its points; what was not accepted is no answer."""
    tasks = []
    for n, shapes in enumerate(drawn):
        spans: list[dict[str, Any]] = [{"label": label, "points": points} for label, points in shapes]
        for span, one in zip(spans, shapes, strict=True):
            if len(one.points) == 2:
                ((_, x, y, w, h),) = sides([one])
                span |= {"type": "rect", "x": x, "y": y, "width": w, "height": h, "points": None}
        tasks += [{"image": f"{n}.jpg", "width": WIDTH, "height": HEIGHT, "spans": spans, "answer": "accept"}]
        tasks += [{"image": f"{n}.jpg", "spans": [{"label": "no"}], "answer": word} for word in ("reject", "ignore")]
    return {"annotations.jsonl": "".join(json.dumps(one) + "\n" for one in tasks)}


def keras_yolo(drawn: Drawn) -> Texts:
    names = labels_of(drawn)
    lines = []
    for n, shapes in enumerate(drawn):
        boxes = [f"{x},{y},{x + w},{y + h},{names.index(label)}" for label, x, y, w, h in sides(shapes)]
        lines.append(" ".join([f"{n}.jpg", *boxes]))
    return {"_annotations.txt": "\n".join(lines), "_classes.txt": "\n".join(names)}


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


def bdd(drawn: Drawn) -> Texts:
    lane = {"category": "lane", "poly2d": [{"vertices": [[1, 2], [3, 4]]}]}
    said = []
    for n, shapes in enumerate(drawn):
        boxes = [
            {"category": label, "box2d": {"x1": x, "y1": y, "x2": x + w, "y2": y + h}}
            for label, x, y, w, h in sides(shapes)
        ]
        said.append({"name": f"{n}.jpg", "labels": [lane, *boxes]})
    return {"bdd100k_labels.json": json.dumps(said)}


def wider(drawn: Drawn) -> Texts:
    lines = []
    for n, shapes in enumerate(drawn):
        faces = [" ".join(map(str, (x, y, w, h, *[0] * 6))) for _, x, y, w, h in sides(shapes)]
        lines += [f"0--Parade/{n}.jpg", str(len(faces)), *(faces or ["0 0 0 0 0 0 0 0 0 0 "])]
    return {"wider_face_train_bbx_gt.txt": "\n".join(lines) + "\n"}


def kitti(drawn: Drawn) -> Texts:
    return {
        f"training/label_2/{n}.txt": "".join(
            f"{label} 0.00 0 -1.58 {x} {y} {x + w} {y + h} 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"
            for label, x, y, w, h in sides(shapes)
        )
        for n, shapes in enumerate(drawn)
    }


def voc(drawn: Drawn) -> Texts:
    """Pixels count from 1, and the last one belongs to the box; a part of an object has a box of its own."""
    texts = {}
    for n, shapes in enumerate(drawn):
        root = ET.Element("annotation")
        size = ET.SubElement(root, "size")
        for name, value in (("width", WIDTH), ("height", HEIGHT), ("depth", 3)):
            ET.SubElement(size, name).text = str(value)
        for label, x, y, w, h in sides(shapes, outlines=True):
            item = ET.SubElement(root, "object")
            ET.SubElement(item, "name").text = label
            part = ET.SubElement(item, "part")
            ET.SubElement(part, "name").text = "head"
            for place, edges in ((item, (y + h, x + w, x + 1, y + 1)), (part, (7, 7, 7, 7))):
                box = ET.SubElement(place, "bndbox")
                for name, edge in zip(("ymax", "xmax", "xmin", "ymin"), edges, strict=True):
                    ET.SubElement(box, name).text = repr(edge)
        texts[f"Annotations/{n}.xml"] = ET.tostring(root, encoding="unicode")
    return texts


def yolo(drawn: Drawn) -> Texts:
    names = labels_of(drawn)
    texts = {"data.yaml": f"names: {json.dumps(names, ensure_ascii=False)}\n"}
    for n, shapes in enumerate(drawn):
        lines = []
        for one in shapes:
            _, x0, y0, x1, y1 = one.row
            numbers = [(x0 + x1) / 2 / WIDTH, (y0 + y1) / 2 / HEIGHT, (x1 - x0) / WIDTH, (y1 - y0) / HEIGHT]
            if len(one.points) > 2:
                numbers = [part for x, y in one.points for part in (x / WIDTH, y / HEIGHT)]
            lines.append(" ".join([str(names.index(one.label)), *(f"{number:.9f}" for number in numbers)]))
        texts[f"labels/{n}.txt"] = "\n".join(lines)
    return texts


def coco(drawn: Drawn) -> Texts:
    """Identifiers with gaps, and in another order than what they identify."""
    names = labels_of(drawn)
    annotations = [
        {"id": 7, "image_id": 1000 - n, "category_id": 90 - 3 * names.index(label), "bbox": box, "iscrowd": 0}
        for n, shapes in enumerate(drawn)
        for label, *box in sides(shapes, outlines=True)
    ]
    document = {
        "images": [
            {"id": 1000 - n, "file_name": f"{n}.jpg", "height": HEIGHT, "width": WIDTH} for n in range(len(drawn))
        ],
        "annotations": [one | {"id": n} for n, one in enumerate(annotations, 1)],
        "categories": [{"id": 90 - 3 * n, "name": name} for n, name in enumerate(names)],
    }
    captions = {"images": [], "annotations": [{"image_id": 1, "caption": "a"}], "categories": []}
    return {
        "annotations/instances_train.json": json.dumps(document),
        "annotations/captions_train.json": json.dumps(captions),
    }


class Tool(NamedTuple):
    """How a tool writes, and what of a drawing it can say."""

    write: Callable[[Drawn], Texts]
    """The files of a drawing."""
    image: str = "{}.jpg"
    """How an image is called, by its number."""
    outlines: bool = True
    """Whether outlines are among them, as the boxes around them."""
    label: str = ""
    """The one class that it knows."""
    sized: bool = False
    """Whether the files say how large the images are."""
    whole: bool = False
    """Whether places are whole numbers."""

    def files(self, drawn: Drawn) -> Texts:
        """All files, images among them, which are empty."""
        return self.write(drawn) | dict.fromkeys(map(self.image.format, range(len(drawn))), "")

    def expected(self, drawn: Drawn) -> dict[str, list[Row]]:
        """What is to be found: the rows of each image."""
        return {
            self.image.format(n): [
                (self.label or shape.row[0], *shape.row[1:])
                for shape in shapes
                if self.outlines or len(shape.points) == 2
            ]
            for n, shapes in enumerate(drawn)
        }


TOOLS = {
    "LabelMe": Tool(labelme, sized=True),
    "CVAT": Tool(cvat, sized=True),
    "DOTA": Tool(dota, "images/{}.jpg", outlines=False),
    "CreateML": Tool(createml, outlines=False),
    "a table": Tool(table, outlines=False),
    "Label Studio": Tool(label_studio, "a {}.jpg", sized=True),
    "VIA": Tool(via),
    "VIA's table": Tool(via_table),
    "Prodigy": Tool(prodigy, sized=True),
    "Keras YOLO": Tool(keras_yolo, outlines=False, whole=True),
    "Supervisely": Tool(supervisely, "ds/img/{}.jpg", sized=True),
    "BDD": Tool(bdd, outlines=False),
    "WIDER": Tool(wider, "0--Parade/{}.jpg", outlines=False, label="face", whole=True),
    "KITTI": Tool(kitti, "training/image_2/{}.jpg", outlines=False),
    "Pascal VOC": Tool(voc, "JPEGImages/{}.jpg", sized=True),
    "YOLO": Tool(yolo, "images/{}.jpg"),
    "COCO": Tool(coco, "train/{}.jpg", sized=True),
}
