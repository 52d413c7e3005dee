"""Datasets that were read wrongly once, and what is right: one row of files for each.

`found` is what the pack then holds, `refused` and `noted` what a message must name; any one suffices. To add one, give
`files` for the smallest set that shows it.
"""

import base64
import gzip
import io
import itertools
import json
import pickle
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage.options import (
    Boxes,
    Images,
    SampleTable,
    TreeFiles,
    array_rows,
    audio_clips,
    file_names,
    folders,
    image_masks,
    parts,
    table_rows,
    token_blocks,
)
from tests.contract.packed import Packed, found, noted, pack, refused, row
from tests.images.files import encode
from tests.layouts.known import coco, voc, wav
from tests.layouts.shards.test_shards import hub
from tests.layouts.shards.writing import parquet_of, records_of, tar_of
from tests.support.archives import tar_bytes as tar
from tests.support.images import png
from tests.support.made_files import files, grey, h5, image, matlab, npy, npz, tiff16, write_files

pytestmark = pytest.mark.timeout(60)


def first_of(*numbers: int) -> str:
    """A YOLO label file with one box of each class."""
    return "".join(f"{number} 0.5 0.5 0.25 0.25\n" for number in numbers)


def card(*configs: str) -> str:
    """A README of the Hugging Face Hub, with a split and a path of each of its files."""
    stated = "".join("  - split: {}\n    path: '{}'\n".format(*one.split()) for one in configs)
    return f"---\nlicense: mit\nconfigs:\n- config_name: default\n  data_files:\n{stated}tags: [pets]\n---\n# Pets\n"


def two_sets(
    file: str, first: str, second: str, images: str = "train/images", labels: str = "train/labels"
) -> dict[str, bytes]:
    """Two downloads in one folder, with three images each, of classes 0, 1 and 0 as numbered in its own file of
    names."""
    made: dict[str, Any] = {}
    for name, listed in (("set1", first), ("set2", second)):
        made[f"{name}/{file}"] = listed
        made |= {f"{name}/{labels}/{name}_{{0,2}}.txt": first_of(0), f"{name}/{labels}/{name}_1.txt": first_of(1)}
    return files(f"set1/{images}/set1_{{0..2}}.jpg set2/{images}/set2_{{0..2}}.jpg", made)


def yolo(names: str, texts: dict[str, Any], folders: str = ".") -> dict[str, bytes]:
    """Images with one box of class 0 each; `folders`: those below images/ and labels/, one for each name."""
    places = dict(zip(names.split(), folders.split() * len(names.split()), strict=False))
    labels = {f"labels/{place}/{name}.txt": first_of(0) for name, place in places.items()}
    return files(" ".join(f"images/{place}/{name}.jpg" for name, place in places.items()), {**labels, **texts})


def table(header: str, line: str) -> dict[str, bytes]:
    """Four images and a table of them, with `{i}` as number and `{c}` as class."""
    lines = [line.format(i=i, c=("cat", "dog")[i % 2]) for i in range(4)]
    return files("images/{0..3}.jpg", {"labels.csv": "\n".join([header, *lines]) + "\n"})


def stripes(*rows: slice) -> bytes:
    """A 16 x 16 mask that is white in some rows."""
    pixels = np.zeros((16, 16), np.uint8)
    for one in rows:
        pixels[one] = 255
    return grey(pixels)


def masks(images: str, each: str, second: str) -> dict[str, bytes]:
    """Six images with a mask of three white rows each; number 2 has a second mask of five. The arguments are formats of
    names."""
    made = {each.format(i): stripes(slice(1, 4)) for i in range(1, 7)} | {second.format(2): stripes(slice(9, 14))}
    return {images.format(i): image(i, size=(16, 16)) for i in range(1, 7)} | made


DIAGONAL = grey(np.eye(16, dtype=np.uint8))


def pairs(images: str, labels: str) -> dict[str, bytes]:
    """Six images and their masks; the arguments are formats of names."""
    return {images.format(i): image(i, size=(16, 16)) for i in range(6)} | {
        labels.format(i): DIAGONAL for i in range(6)
    }


def deep(write: Callable[[Any], bytes], form: str, channels: int) -> dict[str, bytes]:
    pixels = np.random.default_rng(0).integers(300, 3000, (16, 16, channels), np.uint16)
    return {f"{name}/1.{form}": write(pixels + number) for number, name in enumerate("ab")}


def jpeg_2000(pixels: Any) -> bytes:
    return encode(Image.fromarray(pixels[..., 0]), "JPEG2000", irreversible=False)


def h5_with(attributes: dict[str, Any]) -> bytes:
    """An HDF5 file of inputs with these attributes, and targets."""
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made["x"], made["y"] = np.ones((8, 4)), np.arange(8) % 2
        made["x"].attrs.update(attributes)
    return file.getvalue()


def named_labels(kind: Any = "i", of_file: Any = (), **attributes: Any) -> bytes:
    """An HDF5 file of inputs and targets, whose type, or whose attributes, may name the classes."""
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made["x"] = np.ones((8, 4))
        made.create_dataset("y", data=np.array(Y), dtype=kind).attrs.update(attributes)
        made.attrs.update(of_file)
    return file.getvalue()


def mat(**arrays: Any) -> dict[str, bytes]:
    return {"train.mat": matlab(arrays)}


def mat73(**arrays: Any) -> dict[str, bytes]:
    """As MATLAB's -v7.3 stores them: with their axes in the other order."""
    file = io.BytesIO()
    with h5py.File(file, "w", userblock_size=512) as made:
        for name, values in arrays.items():
            made[name] = values.T
            made[name].attrs["MATLAB_class"] = np.bytes_("double")
    return {"train.mat": file.getvalue()}


VOC = "<annotation><filename>{0}.jpg</filename><size><width>64</width><height>48</height><depth>3</depth></size><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"
VOC2012 = files(
    "VOC2012/JPEGImages/2007_{0..5}.jpg",
    {
        **{f"VOC2012/Annotations/2007_{i}.xml": VOC.format(f"2007_{i}") for i in range(6)},
        "VOC2012/SegmentationClass/2007_{0..5}.png": grey(np.pad(np.eye(16, dtype=np.uint8), ((0, 32), (0, 48)))),
        "VOC2012/ImageSets/Segmentation/train.txt": "2007_0\n2007_1\n2007_2\n2007_3\n",
        "VOC2012/ImageSets/Segmentation/val.txt": "2007_4\n2007_5\n",
    },
)
Y = [0, 1] * 4
NAMED_BY_NUMBER = "id,label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(Y))
X = npy(np.zeros((8, 4, 4, 3), np.uint8))
FROM_1 = np.arange(12) % 3 + 1
CELLS = np.array([np.zeros(2), np.zeros(3)], object)
NUMBERS = "1 1 -0.0007 -0.0004 100.0 518.67 641.82 1589.70 1400.60 14.62 21.61 554.36 2388.06 9046.19 1.30 47.47\n"
LABELME: dict[str, Any] = {"version": "5.4.1", "shapes": [], "imageData": None, "imageHeight": 48, "imageWidth": 64}

# fmt: off
BOXES_OF_TWO_SETS = [found("train: boxes apple 3, pear 3"), refused("set2")]
IN_TWO_SPLITS = [found("train: boxes cat 4; (val|valid): boxes cat 2"), noted(r"val\.txt|data\.yaml|obj\.data"), refused(r"val\.txt|data\.yaml|obj\.data")]
BOXES = [
    row("two YOLO sets, one class in each", files("set1/train/images/a{0..2}.jpg set2/train/images/b{0..2}.jpg", {
        "set1/data.yaml": "names: [apple]\n", "set2/data.yaml": "names: [pear]\n", "set1/train/labels/a{0..2}.txt": first_of(0), "set2/train/labels/b{0..2}.txt": first_of(0)}),
        right=BOXES_OF_TWO_SETS),
    row("two YOLO sets, another order", two_sets("data.yaml", "names: [apple, pear]\n", "names: [pear, apple]\n"),
        right=BOXES_OF_TWO_SETS),
    row("two Darknet sets", two_sets("_darknet.labels", "apple\npear\n", "pear\napple\n", ".", "."),
        right=BOXES_OF_TWO_SETS),
    row("YOLO's lists of another machine", yolo("0 1 2 3 4 5", {
        "data.yaml": "path: /home/ann/data\ntrain: train.txt\nval: val.txt\nnames: [cat]\n",
        "train.txt": "".join(f"/home/ann/data/images/{i}.jpg\n" for i in range(4)), "val.txt": "".join(f"/home/ann/data/images/{i}.jpg\n" for i in (4, 5))}),
        right=IN_TWO_SPLITS),
    row("YOLO's folders by data.yaml", yolo("0 1 2 3 4 5", {"data.yaml": "train: images/mine\nval: images/heldout\nnames: [cat]\n"}, "mine mine mine mine heldout heldout"),
        right=IN_TWO_SPLITS),
    row("Darknet's lists of other names", yolo("0 1 2 3 4 5", {
        "obj.data": "classes = 1\ntrain = data/first.txt\nvalid = data/second.txt\nnames = obj.names\n", "obj.names": "cat\n",
        "first.txt": "".join(f"data/images/{i}.jpg\n" for i in range(4)), "second.txt": "data/images/4.jpg\ndata/images/5.jpg\n"}),
        right=[found("train: boxes cat 4; valid: boxes cat 2")]),
    *(row(f"a list of what is trained on alone: {name}", {**made, "train.txt": "".join(f"{path}\n" for path in named).encode()},
        right=[lambda packed: found("train: (boxes )?cat 2, dog 2|train: boxes cat 4|train: 4 masks.*")(packed) and noted("2 images that no list names")(packed)])
      for name, made, named in [
          ("Darknet", yolo("0 1 2 3 4 5", {"obj.data": "train = data/train.txt\nnames = obj.names\n", "obj.names": "cat\n"}), [f"data/images/{i}.jpg" for i in range(4)]),
          ("Darknet, valid the same", yolo("0 1 2 3 4 5", {"obj.data": "valid = train.txt\ntrain = train.txt\n", "obj.names": "cat\n"}), [f"images/{i}.jpg" for i in range(4)]),
          ("folders", files("{cat,dog}/{0..2}.jpg"), ["cat/0", "cat/1", "dog/0", "dog/1"]),
          ("names", files("{cat,dog}.{0..2}.jpg"), ["cat.0", "cat.1", "dog.0", "dog.1"]),
          ("a table", files("{0..5}.jpg", {"labels.csv": "path,label\n" + "".join(f"{i}.jpg,{('cat', 'dog')[i % 2]}\n" for i in range(6))}), ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]),
          ("masks", pairs("images/{0}.jpg", "masks/{0}.png"), ["0", "1", "2", "3"]),
      ]),
    row("several lists of one split in data.yaml", yolo("0 1 2 3 4 5", {"data.yaml": "train: [a.txt, b.txt]\nval: c.txt\nnames: [cat]\n",
        "a.txt": "images/0.jpg\nimages/1.jpg\n", "b.txt": "images/1.jpg\nimages/2.jpg\n", "c.txt": "images/3.jpg\n"}), right=[found("train: boxes cat 3; val: boxes cat 1")]),
    *(row(f"a table of boxes: {name}", table(header, line), right=[found("train: boxes cat 2, dog 2"), refused(column)])
      for name, header, line, column in [
          ("make-sense", "label_name,bbox_x,bbox_y,bbox_width,bbox_height,image_name,image_width,image_height", "{c},5,6,20,10,{i}.jpg,64,48", "bbox_width"),
          ("bbox_x1", "image,label,bbox_x1,bbox_y1,bbox_x2,bbox_y2", "{i}.jpg,{c},5,6,25,16", "bbox_x1"),
          ("x_1 and width", "image_id,x_1,y_1,width,height,label", "{i}.jpg,5,6,20,10,{c}", "x_1"),
          ("left and top", "image,class,left,top,right,bottom", "{i}.jpg,{c},5,6,25,16", "left"), ("x0", "image,class,x0,y0,x1,y1", "{i}.jpg,{c},5,6,25,16", "x0"),
          ("startX", "image,label,startX,startY,endX,endY", "{i}.jpg,{c},5,6,25,16", "startX"),
          ("one column", "image,label,box", '{i}.jpg,{c},"5 6 20 10"', "'box'"),
      ]),
    row("COCO lists an image under two ids", files("images/f{0..2}.png", {"annotations.json": {
        "images": [{"id": i, "file_name": name, "width": 64, "height": 48} for i, name in enumerate(["f0.png", "f1.png", "f1.png", "f2.png"])],
        "annotations": [{"id": i, "image_id": i, "category_id": 1, "bbox": [1 + i, 1, 5, 5]} for i in range(4)], "categories": [{"id": 1, "name": "cell"}]}}),
        right=[found("train: boxes cell 4"), refused("f1.png", but_not="all but one file")]),
    *(row(f"COCO's boxes {form}, with their areas", files("{0..3}.png", {"a.json": {
        "images": [{"id": i, "file_name": f"{i}.png", "width": 64, "height": 48} for i in range(4)], "categories": [{"id": 1, "name": "cell"}],
        "annotations": [{"id": i, "image_id": i, "category_id": 1, "bbox": [5, 6, *end], "area": area} for i in range(4)]}}), right=[right])
      for form, end, area, right in [
          ("as two corners", (25, 16), 200, refused("have other areas than are stated.*two corners")), ("as they are", (20, 10), 200, found("train: boxes cell 4")), ("of outlines", (25, 16), 90, found("train: boxes cell 4"))]),
    row("images made smaller than their boxes", files("train/a{0..5}.png", {
        "train.csv": "image_id,class_name,x_min,y_min,x_max,y_max\n" + "".join(f"a{i},Cardiomegaly,{691 + i},1375,1653,1831\n" for i in range(6))}),
        right=[refused("outside")]),
    row("a table of boxes states another size", table("filename,width,height,class,xmin,ymin,xmax,ymax", "{i}.jpg,640,480,{c},1,2,30,40"), right=[refused("480 x 640")]),
    row("a table of boxes states the size", table("filename,width,height,class,xmin,ymin,xmax,ymax", "{i}.jpg,64,48,{c},1,2,30,40"), right=[found("train: boxes cat 2, dog 2")]),
    row("a table of boxes with an image without", files("{0..3}.jpg", {"labels.csv": "filename,class,xmin,ymin,xmax,ymax\n0.jpg,cat,1,2,30,40\n1.jpg,dog,1,2,30,40\n2.jpg,,,,,\n3.jpg,cat,1,2,30,40\n"}), right=[lambda packed: "cat 2, dog 1" in packed.found and not noted("has one box")(packed)]),
    row("width and height of the boxes", table("filename,class,xmin,ymin,xmax,ymax,width,height", "{i}.jpg,{c},0,0,30,40,30,40"), right=[found("train: boxes cat 2, dog 2")]),
    row("VIA's CSV", files("{0..3}.jpg", {
        "via_export_csv.csv": "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes\n" + "".join(
            f'{i}.jpg,1234,"{{}}",1,0,"{{""name"":""rect"",""x"":5,""y"":6,""width"":20,""height"":10}}","{{""type"":""cat""}}"\n' for i in range(4))}),
        right=[found("train: boxes cat 4"), refused("via_export_csv", but_not=r"labels=\['file_attributes'\]")]),
    row("nc is not the number of names", yolo("0 1 2", {"data.yaml": "nc: 3\nnames: [cat, dog]\n"}), right=[refused("nc: 3")]),
    row("LabelMe's flags", files("{0..5}.jpg", {f"{i}.json": {**LABELME, "flags": {"good": i % 2 == 0, "bad": i % 2 == 1}, "imagePath": f"{i}.jpg"} for i in range(6)}),
        right=[found("train: bad 3, good 3")]),
]



def turned(turn: int, labels: dict[str, Any], size: tuple[int, int] = (48, 64), form: str = "JPEG") -> dict[str, bytes]:
    """Images, the second of which is turned by EXIF."""
    images = {f"images/{i}.{form.lower()}": image(i, form=form, size=size, turn=turn if i == 1 else 1) for i in range(3)}
    return {**images, **files("", labels)}


def drawn_on(height: int, width: int) -> dict[str, Any]:
    """COCO boxes, which state this size for the second image."""
    sizes = [(48, 64), (height, width), (48, 64)]
    images = [{"id": i, "file_name": f"{i}.jpeg", "height": h, "width": w} for i, (h, w) in enumerate(sizes)]
    boxes = [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 10, 5]} for i in range(3)]
    return {"annotations.json": {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}}


def mask_of(height: int, width: int, turn: int = 1) -> dict[str, bytes]:
    """Masks with a class in one corner; the second has this size."""
    made = {}
    for i, size in enumerate([(48, 64), (height, width), (48, 64)]):
        buffer, exif = io.BytesIO(), Image.Exif()
        exif[0x0112] = turn
        pixels = np.zeros(size, np.uint8)
        pixels[:3, :2] = 1
        Image.fromarray(pixels).save(buffer, "PNG", **({"exif": exif} if i == 1 and turn != 1 else {}))
        made[f"masks/{i}.png"] = buffer.getvalue()
    return made


OF_YOLO = {"labels/{0..2}.txt": first_of(0), "data.yaml": "names: [cat]\n"}
UNSAID = noted(r"EXIF.*images/1\.")
SAID = lambda packed: not packed.refusal and not UNSAID(packed)  # noqa: E731
TURNED = [
    *(row(f"YOLO's boxes, turned by {turn}, {form}", turned(turn, OF_YOLO, form=form), right=[UNSAID]) for turn, form in [(3, "JPEG"), (6, "JPEG"), (8, "PNG"), (6, "TIFF")]),
    row("YOLO's boxes, as files", turned(6, OF_YOLO), encoding="encoded", right=[UNSAID]),
    row("COCO's boxes on the upright image", turned(6, drawn_on(64, 48)), right=[SAID]),
    row("COCO's boxes on the image as it lies", turned(6, drawn_on(48, 64)), right=[refused(r"images/1\.jpeg.*48 x 64")]),
    row("COCO's boxes, no size", turned(6, drawn_on(0, 0)), right=[UNSAID]),
    row("COCO's boxes on another image", turned(6, drawn_on(480, 640)), right=[refused(r"images/1\.jpeg.*480 x 640")]),
    row("a mask of the upright image", turned(6, mask_of(64, 48)), right=[SAID], image_size=32),
    row("a mask of the image as it lies", turned(6, mask_of(48, 64)), right=[refused(r"masks/1\.png.*48 x 64")]),
    row("a mask that is turned alike", turned(6, mask_of(48, 64, 6)), right=[SAID], image_size=32),
    row("a mask that is turned otherwise", turned(6, mask_of(48, 64, 8)), right=[UNSAID], image_size=32),
    row("a mask that alone is upside down", turned(1, mask_of(48, 64, 3)), right=[UNSAID]),
    row("classes, turned", {f"{name}/{i}.jpg": image(i + 9 * (name == "a"), form="JPEG", turn=6) for name in "ab" for i in range(3)}, right=[SAID]),
]


def label_studio(*results: dict[str, Any]) -> list[dict[str, Any]]:
    """Label Studio's export of four uploaded images."""
    size = {"original_width": 64, "original_height": 48}
    result = [{"type": kind, "value": value, **size} for one in results for kind, value in one.items()]
    return [{"id": i, "data": {"image": f"/data/upload/1/ab12cd3{i}-{i}.jpg"}, "annotations": [{"result": result}]} for i in range(4)]


RECTANGLE = {"rectanglelabels": {"x": 10, "y": 10, "width": 20, "height": 20, "rectanglelabels": ["cat"]}}
CVAT = "<annotations>" + "".join(f'<image id="{i}" name="{i}.jpg" width="64" height="48"><tag label="day"/><box label="cat" xtl="1" ytl="1" xbr="9" ybr="9"/></image>' for i in range(4)) + "</annotations>"
TOOLS = [
    row("Label Studio's names of uploads", files("images/{0..3}.jpg", {"project.json": label_studio(RECTANGLE)}), right=[found("train: boxes cat 4")]),
    row("Label Studio's names of images that came with them", files("images/ab12cd3{0..3}-{0..3}.jpg", {"project.json": label_studio(RECTANGLE)}), right=[found("train: boxes cat 4")]),
    row("one upload under two names", files("images/0.jpg", {"project.json": [{**one, "data": {"image": f"ab12cd3{i}-0.jpg"}} for i, one in enumerate(label_studio(RECTANGLE))]}), right=[refused("images/0.jpg")]),
    row("Label Studio's choices beside boxes", files("images/{0..3}.jpg", {"project.json": label_studio(RECTANGLE, {"choices": {"choices": ["day"]}})}), right=[noted("4 annotations without a box")]),
    row("two labels of one region", files("images/{0..3}.jpg", {"project.json": label_studio({"rectanglelabels": {**RECTANGLE["rectanglelabels"], "rectanglelabels": ["cat", "dog"]}})}), right=[refused("2 labels")]),
    row("Label Studio's choices of several", files("images/{0..3}.jpg", {"project.json": label_studio({"choices": {"choices": ["day", "rain"]}})}), right=[found(r"train: 4 rows with targets of \(2,\)")]),
    row("answers to two questions of Label Studio", files("images/{0..3}.jpg", {"project.json": [
        {**one, "annotations": [{"result": [{"type": "choices", "from_name": name, "value": {"choices": ["day"]}} for name in "ab"]}]} for one in label_studio()]}), right=[refused("several questions, 'a', 'b'; export a CSV")]),
    row("CVAT's tags alone", files("images/{0..4}.jpg", {"annotations.xml": re.sub("<box.*?/>", "", CVAT).replace("day", "dusk", 1)}), right=[found("train: day 3, dusk 1", note="1 image without annotations was left out")]),
    row("CVAT's tags beside boxes", files("images/{0..3}.jpg", {"annotations.xml": CVAT}), right=[noted("4 annotations without a box")]),
    *(row(f"what Label Studio's users draw: {name}", files("images/{0..3}.jpg", {"project.json": label_studio(*drawn)}), right=[right])
      for name, drawn, right in list[Any]([
          ("ellipses", [{"ellipselabels": {"x": 50, "y": 50, "radiusX": 10, "radiusY": 20, "ellipselabels": ["cat"]}}], found("train: boxes cat 4")),
          ("points", [RECTANGLE, {"keypointlabels": {"x": 9, "y": 9, "width": 1, "keypointlabels": ["eye"]}}], noted("4 annotations without a box")),
          ("masks", [{"brushlabels": {"format": "rle", "rle": [1, 2], "brushlabels": ["cat"]}}], refused("'brushlabels', whose box is not stated; expected rectangles and polygons"))])),
    row("tasks of Label Studio that nobody has done", files("images/{0..3}.jpg", {"project.json": [{**one, "annotations": one["annotations"][i:]} for i, one in enumerate(label_studio(RECTANGLE))]}), right=[found("train: boxes cat 1", note="3 images without annotations were left out")]),
    *(row(f"what VIA's users draw: {name}", files("{0..3}.jpg", {"via.json": {str(i): {"filename": f"{i}.jpg", "regions": [{"shape_attributes": {"name": "circle", "cx": 20, "cy": 20, "r": 9, **at}, "region_attributes": given(i)}]} for i in range(4)}}), right=[right])
      for name, at, given, right in list[Any]([
          ("circles", {}, lambda i: {"kind": "ab"[i % 2]}, found("train: boxes a 2, b 2")), ("nothing is named", {}, lambda i: {}, found("train: boxes object 4")),
          ("ticked boxes", {}, lambda i: {"kind": {"cat": True, "dog": False}}, found("train: boxes cat 4")), ("the class twice", {}, lambda i: {"name": "cat", "kind": "cat"}, found("train: boxes cat 4")),
          ("two words", {}, lambda i: {"name": "cat", "colour": "red"}, refused("expected one word, its class")), ("points", {"r": None}, lambda i: {"kind": "cat"}, refused("have no box")),
          ("one without a class", {}, lambda i: {"kind": "cat"} if i else {}, refused("a region of '0.jpg' has no class")), ("one with an empty class", {}, lambda i: {"kind": "cat" if i else ""}, refused("a region of '0.jpg' has no class"))])),
    *(row(f"what Supervisely's users draw: {name}", files("d/img/{0..3}.jpg", {"d/ann/{0..3}.jpg.json": {"size": {"height": 48, "width": 64}, "objects": [{"classTitle": "cat", **drawn} for drawn in each]}}), right=[right])
      for name, each, right in list[Any]([
          ("masks", [{"bitmap": {"origin": [1, 2], "data": base64.b64encode(zlib.compress(image(1, size=(7, 5)))).decode()}}], found("train: boxes cat 4")),
          ("an empty mask", [{"bitmap": {"origin": [1, 2], "data": ""}}], refused(r"d/ann/0\.jpg\.json")),
          ("points", [{"points": {"exterior": [[5, 5]]}}, {"points": {"exterior": [[1, 2], [9, 9]]}}], found("train: boxes cat 4", note="4 annotations without a box"))])),
    *(row(f"two sets with images of the same names: {name}", files("{a,b}/img/{0..2}.jpg", made), right=[right])
      for name, made, right in [
          ("Supervisely", {f"{one}/ann/{{0..2}}.jpg.json": {"objects": [{"classTitle": one, "points": {"exterior": [[1, 2], [9, 9]]}}]} for one in "ab"}, found("train: boxes a 3, b 3")),
          ("COCO", {"{a,b}/annotations/instances_default.json": coco("{0..2}.jpg")}, found("train: boxes cat 4, dog 2")),
          ("LabelMe", {"{a,b}/json/{0..2}.json": {**LABELME, "imagePath": "0.jpg", "shapes": [{"label": "cat", "points": [[1, 2], [9, 9]]}]}}, found("train: boxes cat 6"))]),
    *(row(f"COCO's annotations: {name}", files("{0..3}.jpg", {"a.json": {**coco("{0..3}.jpg"), "annotations": [{"id": i, "image_id": key(i), "category_id": 1 + i % 2, **given} for i in range(4)]}}), right=[right])
      for name, key, given, right in list[Any]([
          ("outlines alone", int, {"segmentation": [[1, 2, 9, 2, 9, 8]]}, found("train: boxes cat 2, dog 2")), ("an empty box beside an outline", int, {"bbox": [], "segmentation": [[1, 2, 9, 8]]}, found("train: boxes cat 2, dog 2")),
          ("run lengths alone", int, {"segmentation": {"size": [48, 64], "counts": "abc"}}, refused("its bbox is missing; give it one")), ("numbers as texts", str, {"bbox": [1, 2, 9, 9]}, found("train: boxes cat 2, dog 2"))])),
    *(row(f"leftovers of file managers: {name}", files(images, contents), right=[found(what, note=f"{count} w.{{2,3}} left out: in hidden folders, or those of file managers")])
      for name, images, contents, count, what in list[tuple[str, str, dict[str, Any], str, str]]([
          ("a table of names", "img/{0..3}.jpg img/#recycle/{0..3}.jpg", {"labels.csv": "file,label\n0.jpg,cat\n1.jpg,dog\n2.jpg,cat\n3.jpg,dog\n"}, "4 files", "train: cat 2, dog 2"),
          ("boxes of YOLO", "images/{0..3}.jpg images/.cache/{0..3}.jpg", {"labels/{0..3}.txt": "0 0.5 0.5 0.25 0.25\n"}, "4 files", "train: boxes 0 4"),
          ("boxes of COCO", "img/{0..3}.jpg img/@eaDir/{0..3}.png", {"a.json": coco("{0..3}.jpg")}, "4 files", "train: boxes cat 2, dog 2"),
          ("deleted arrays", "", {"{train,.Trash-0/files/train}.npz": npz(x=np.zeros((4, 8, 8), np.uint8), y=np.arange(4) % 2)}, "1 file", "train: 0 2, 1 2"),
      ])),
    row("arrays in folders of classes, by name, beside lists of splits", files("", {"cat/{0..3}.npy": npy(np.ones((4, 5))), "dog/{0..3}.npy": npy(np.zeros((4, 5))), "train.txt": b"cat/0\ncat/1\ndog/0\ndog/1\n", "val.txt": b"cat/2\ncat/3\ndog/2\ndog/3\n"}), right=[found("train: cat 2, dog 2.*; val: cat 2, dog 2.*")], layout="array_folder"),
    row("COCO's classes of images, by name, beside lists of splits", files("{0..7}.jpg", {"a.json": coco("{0..7}.jpg", score=1), "train.txt": b"0\n1\n2\n3\n", "val.txt": b"4\n5\n6\n7\n"}), right=[found("train: cat 2, dog 2; val: cat 2, dog 2")], layout="coco_classes"),
    row("COCO's categories with numbers as texts", files("{0..11}.jpg", {"a.json": {**coco("{0..11}.jpg"), "annotations": [{"id": i, "image_id": i, "category_id": str(i), "bbox": [1, 2, 9, 9]} for i in range(12)], "categories": [{"id": str(i), "name": f"c{i}"} for i in range(12)]}}),
        right=[found("train: boxes c0 1, c1 1, c2 1, .*, c10 1, c11 1")]),
]

# Rows of four numbers, relative to the image: two corners, or the first corner and the sides.
CORNERS = ["0 0.1 0.2 0.8 0.9\n", "0 0.2 0.3 0.9 0.95\n", "1 0.5 0.6 0.95 0.97\n"]
FIRST_CORNER = ["0 0.1 0.02 0.8 0.9\n", "0 0.6 0.1 0.3 0.3\n", "1 0.05 0.06 0.15 0.17\n"]
FORMS = [
    row("data.yaml holds out the folder train", yolo("a b c d", {"data.yaml": "names: [cat]\ntrain: ../images/valid\nval: ../images/train\n"}, "train valid train valid"), right=[refused("images/train' out as 'val'")]),
    row("classes of YOLO that count from 1", yolo("a b", {"data.yaml": "names: [cat, dog]\n", "labels/./a.txt": first_of(1), "labels/./b.txt": first_of(2)}), right=[refused("no class 2.*count from 0, up to 1")]),
    row("COCO's boxes, one of them empty", turned(1, {"annotations.json": {**drawn_on(48, 64)["annotations.json"], "annotations": [{"id": i, "image_id": i, "category_id": 1, "bbox": [20, 20, 6, 4] * (i > 0)} for i in range(3)]}}),
        right=[refused(r"bbox is \[\]; give it one, or leave it out")]),
    row("Pascal VOC's boxes that are turned", turned(1, {f"{i}.xml": "<annotation><object><name>cat</name><robndbox><cx>30</cx><cy>20</cy><w>8</w><h>4</h><angle>0.5</angle></robndbox></object></annotation>" for i in range(3)}),
        right=[refused("'cat' has no readable bndbox.*items are .image, {'boxes'")]),
    row("YOLO's boxes by their first corner", turned(1, {**{f"labels/{i}.txt": line for i, line in enumerate(FIRST_CORNER)}, "data.yaml": "names: [cat, dog]\n"}), right=[refused("first corner")]),
    row("COCO's boxes by their corners", turned(1, {"annotations.json": {**drawn_on(48, 64)["annotations.json"], "annotations": [{"id": i, "image_id": i, "category_id": 1, "bbox": [20, 20, 60, 40]} for i in range(3)]}}),
        right=[refused("two corners")]),
    row("a split without label files", yolo("a b c", {"data.yaml": "names: [cat]\ntest: images/test\n", "images/test/d.jpg": image(9)}, "train train val"), right=[found("train: boxes cat 2; val: boxes cat 1", note="1 image of splits without a label file was left out")]),
    row("a box in two classes", turned(1, {**OF_YOLO, "labels/{0..2}.txt": first_of(0, 1), "data.yaml": "names: [cat, dog]\n"}), right=[lambda packed: packed.found == "train: boxes cat 3, dog 3" and not packed.notes]),
    *(row(f"YOLO's boxes in {labels}", files(f"{images}/{{0..2}}.jpg", {labels.format("{0..2}"): first_of(0)}), right=[found("train: boxes .* 3")])
      for images, labels in [("images", "labels/{}.TXT"), ("Images", "Labels/{}.txt"), ("images", "annotations/{}.txt"), ("imgs", "label/{}.txt"), (".", "labels/{}.txt"), ("data/images/all", "data/labels/all/{}.txt")]),
    row("boxes of COCO with outlines", turned(1, {"annotations.json": {**drawn_on(48, 64)["annotations.json"], "annotations": [
        {"id": i, "image_id": i, "category_id": 1, "bbox": [2, 2, 6, 4], "segmentation": [[2, 2, 8, 2, 8, 6]][i:], "keypoints": [3, 3, 2]} for i in range(3)]}}),
        right=[lambda packed: noted("1 outline.*segmentation")(packed) and noted("3 .*keypoints")(packed)]),
]

# An unclosed quote makes one cell of the rows up to the next quote.
OPEN = [refused(r"labels\.csv.*after row 2"), found("train: cat 2, dog 2")]
TABLES = [
    row("yes in two spellings", files("{0..3}.jpg", {"labels.csv": "file,label\n0.jpg,yes\n1.jpg,no\n2.jpg,Y\n3.jpg,no\n"}), right=[refused("'Y' and 'yes' look like one")]),
    *(row(f"a table with {name}", table(header, line), right=[right])
      for name, header, line, right in list[Any]([
          ("remarks above its header", "# by Ann, in May\n# of 2024\nfile,label", "{i}.jpg,{c}", found("train: cat 2, dog 2", note="paths are in 'file', labels in 'label'")), ("a header behind #", "# file,label", "{i}.jpg,{c}", found("train: cat 2, dog 2", note="in 'file'")),
          ("remarks between its rows", "file,label\n# of May", "{i}.jpg,{c}", refused("1 cells in row 2 and 2 in the first.*remarks a file of their own")),
          ("yes and no", "file,sick", "{i}.jpg,yes\n{i}.jpg,no", refused("'yes' and one with 'no'")),
          ("failed formulas", "file,label\n0.jpg,#REF!", "{i}.jpg,{c}", refused("1 of 5 rows has no label in 'label' .*#REF!")), ("n.a. as a class", "file,label\n0.jpg,n.a.", "{i}.jpg,n.a.", noted("'n.a.' in 'label' counts like")),
          ("labels that its files are called after", "label,file", "{i},{i}.jpg", found("train: .*", note="labels in 'label'")),
          ("merged cells in its header", "file,label,\n,cat,dog", "{i}.jpg,{c},{c}", found("train: cat 2, dog 2", note="Not used: the column ''")), ("numbers of its rows", ",file,label", "{i},{i}.jpg,{c}", lambda packed: "cat 2" in packed.found and not noted("Not used")(packed))])),
    row("masks of the background, and rows of a class without any", table("file,class,rle", "{i}.jpg,background,1 3\n{i}.jpg,cat,9 4\n{i}.jpg,dog,"), right=[found("train: 4 masks with 16 pixels", note="'dog' has a mask")]),
    row("run lengths from the first pixel on", table("file,rle", "{i}.jpg,0 3"), right=[found("train: 4 masks with 12 pixels", note="from pixel 0 on")]),
    row("names that begin with #, and no header", files("#{0..3}.jpg", {"labels.csv": "#0.jpg,cat\n#1.jpg,dog\n#2.jpg,cat\n#3.jpg,dog\n"}), right=[found("train: cat 2, dog 2")]),
    row("a line of dashes behind #", files("{0..3}.jpg", {"words.txt": "#--- words.txt ---#\n# format: id, word\n0 cat\n1 dog\n2 cat\n3 dog\n"}), right=[refused("words.txt"), found("train: cat 2, dog 2")]),
    *(row(f"points of each image, {name}", table(f"file,{header}", f"{{i}}.jpg,{cells}"), right=[right])
      for name, header, cells, right in [
          ("in pixels", "left_eye_x,left_eye_y,nose_x,nose_y", "2.5,3,4,5", noted("points.*image_size=.*change the points too")), ("in numbered columns", "x1,y1,x2,y2,x3,y3", "1,2,3,4,5,6", noted("change the points")),
          ("in fractions", "x,y", "0.25,0.5", lambda packed: bool(packed.found) and not noted("points")(packed)), ("beside no point", "x_ray,size", "2,3", lambda packed: bool(packed.found) and not noted("points")(packed))]),
    row("quotes behind a blank", files("images/{0..3}.jpg", {"gt.txt": "".join(f'{i}.jpg, "{word}"\n' for i, word in enumerate(("cat", "dog") * 2))}), layout=table_rows(["column2"]), right=[found("train: cat 2, dog 2")]),
    *(row(f"texts in another encoding: {name} in {encoding}", {**files("images/{0..3}.jpg"), **{file: text.encode(encoding) for file, text in texts.items()}}, right=[right])
      for name, texts in [
          ("a table", {"labels.csv": "file,label\n0.jpg,狗\n1.jpg,dog\n2.jpg,狗\n3.jpg,dog\n"}),
          ("names of classes", {"classes.txt": "dog\n狗\n", **{f"images/{i}.txt": first_of(i % 2) for i in range(4)}})]
      for encoding, right in [("gbk", noted("not in UTF-8.*Latin-1.*save it as UTF-8")), ("utf-8", lambda packed: bool(packed.found) and not noted("Latin-1")(packed)), ("utf-16", lambda packed: bool(packed.found) and not noted("Latin-1")(packed))]
      if (name, encoding) != ("names of classes", "utf-16")),
    row("a class with a line break", files("images/{0..3}.jpg", {"labels.csv": 'file,label\n0.jpg,"ca\nt"\n1.jpg,dog\n2.jpg,"ca\nt"\n3.jpg,dog\n'}), right=[refused(r"'ca\\nt'")]),
    row("masks of each class in a folder", files("images/{0..3}.jpg", {"masks/{cat,dog}/{0..3}.png": DIAGONAL}), right=[refused("images and masks: a function as layout=")]),
    row("masks of each class in a folder, one named", files("images/{0..3}.jpg", {"masks/{cat,dog}/{0..3}.png": grey(np.zeros((48, 64), np.uint8))}), right=[found("train: 4 masks .*")], layout=image_masks("cat")),
    *(row(f"a table of splits alone: {name}", {**made, "split.csv": ("\n".join([header, *(line.format(name=one) for one, line in zip(names, lines, strict=True))]) + "\n").encode()}, right=[right])
      for name, made, names, header, lines, right in [
          ("folders", files("{cat,dog}/{0,1}.jpg"), ["cat/0.jpg", "dog/0", "cat/1.jpg", "dog/1.jpg"], "path,split", ["{name},train", "{name},train", "{name},val", "{name},val"], found("train: cat 1, dog 1; val: cat 1, dog 1")),
          ("a table", table("file,label", "{i}.jpg,{c}"), ["0", "1", "2", "3"], "partition,image_id", ["0,{name}.jpg", "0,{name}.jpg", "1,{name}.jpg", "2,{name}.jpg"], found("train: cat 1, dog 1; val: cat 1; test: dog 1")),
          ("0, 1, 2 the other way round", table("file,label", "{i}.jpg,{c}"), ["0", "1", "2", "3"], "image_id,partition", ["{name}.jpg,2", "{name}.jpg,2", "{name}.jpg,1", "{name}.jpg,0"], refused(r"split\.csv.*'partition'")),
          ("boxes", yolo("0 1 2 3", {"data.yaml": "names: [cat]"}), ["0", "1", "2", "3"], "image,is_valid", ["{name}.jpg,False"] * 3 + ["{name}.jpg,True"], found("train: boxes cat 3; valid: boxes cat 1")),
          ("masks", pairs("images/{0}.jpg", "masks/{0}.png"), ["0", "1", "2", "3"], "image,split", ["{name}.jpg,train"] * 3 + ["{name}.jpg,test"], found("train: 3 masks .*; test: 1 masks .*")),
          ("other words", yolo("0 1 2 3", {"data.yaml": "names: [cat]"}), ["0", "1", "2", "3"], "image,split", ["{name}.jpg,train"] * 3 + ["{name}.jpg,huge"], refused(r"split\.csv.*'huge'")),
      ]),
    row("a table of classes whose numbers are names of images", files("{0..3}.jpg", {"train.csv": "file,label\n0.jpg,1\n1.jpg,0\n2.jpg,1\n3.jpg,0\n", "classes.csv": "id,name\n0,cat\n1,dog\n"}),
        right=[found("train: 0 2, 1 2", note=r"left out \('classes\.csv'\)")]),
    *(row(f"labels that are empty in {name}", files("{0..3}.jpg", {"train.csv": "file,label\n0.jpg,\n1.jpg,\n2.jpg,\n", **more}), layout=layout, right=[refused("no label in 'label'|no labels beside")])
      for name, more, layout in [("all", {}, table_rows(labels=["label"])), ("all, auto", {}, "auto"), ("train", {"val.csv": "file,label\n3.jpg,a\n"}, "auto")]),
    row("a test whose labels are empty", files("{0..3}.jpg", {"train.csv": "file,label\n0.jpg,a\n1.jpg,b\n2.jpg,a\n", "test.csv": "file,label\n3.jpg,\n"}), right=[found("train: a 2, b 1", note="1 image of 'test.csv', which has no 'label'")]),
    row("a table of splits beside the table that is named", table("file,label", "{i}.jpg,{c}") | {"other.csv": b"file,label\n0.jpg,a\n1.jpg,b\n", "split.csv": b"file,split\n0.jpg,train\n1.jpg,train\n2.jpg,train\n3.jpg,val\n"},
        right=[found("train: cat 2, dog 1; val: dog 1")], layout=table_rows(table="labels.csv")),
    *(row(f"a number and its word: {name}", files("images/{0..3}.jpg", {"labels.csv": "\n".join([header, *(line.format(i=i, n=numbers[i % 2], c=("cat", "dog")[i % 2]) for i in range(4))])}), right=[found(right, note=said)])
      for name, header, line, numbers, right, said in [
          ("from 0", "file,label,label_name", "{i}.jpg,{n},{c}", (1, 0), "train: dog 2, cat 2", "in the order of 'label'"),
          ("from 1", "file,class_name,class_id", "{i}.jpg,{c},{n}", (2, 1), "train: dog 2, cat 2", "in the order of 'class_id', which counts from 1"),
          ("other numbers", "file,class_id,class_name", "{i}.jpg,{n},{c}", (17, 3), "train: cat 2, dog 2", "'cat' is 17 there, and 0 here"),
          ("of its name", "file,breed,breed_idx", "{i}.jpg,{c},{n}", (1, 0), "train: dog 2, cat 2", "in the order of 'breed_idx'"),
          ("of boxes", "file,xmin,ymin,xmax,ymax,class_id,class_name", "{i}.jpg,1,2,9,9,{n},{c}", (1, 0), "train: boxes dog 2, cat 2", "in the order of 'class_id'"),
      ]),
    row("a number and its word in one of two tables", files("images/{0..3}.jpg", {"train.csv": "file,label,label_name\n0.jpg,1,cat\n1.jpg,0,dog\n", "test.csv": "file,label_name\n2.jpg,cat\n3.jpg,dog\n"}),
        right=[found("train: dog 1, cat 1; test: dog 1, cat 1")]),
    row("a number and its word, otherwise in the second table", files("images/{0..3}.jpg", {"train.csv": "file,label,label_name\n0.jpg,1,cat\n1.jpg,0,dog\n", "test.csv": "file,label,label_name\n2.jpg,0,cat\n3.jpg,1,dog\n"}),
        right=[refused("'label' and 'label_name' divide")]),
    row("a quote that stays open", table("image,label,note", '{i}.jpg,{c},"a') | {"labels.csv": b'image,label,note\n0.jpg,cat,b\n1.jpg,dog,"a\n2.jpg,cat,b\n3.jpg,dog,b\n'}, right=OPEN),
    row("quotes within their lines", table("image,label,note", '{i}.jpg,{c},"a" 5" tall'), right=[found("train: cat 2, dog 2")]),
    *(row(f"rows that count from another number: {name}", files(f"images/{word}{{1..6}}.jpg", {
        f"{table}.csv": "id,label\n" + "".join(f"{word}{i},{'ab'[int(i) % 2]}\n" for i in own) for table, own in zip(("train", "test"), numbers.split("/"), strict=False)}), right=[right])
      for name, word, numbers, right in [
          ("all", "", "012345", refused("count from 0 .* from 1")), ("words before them", "img_", "234567", refused("count from 2 .* from 1")), ("in two tables", "", "0123/45", refused("count from 0 .* from 1")),
          ("some are missing", "", "12345678", found("train: a 3, b 3")), ("one is missing on both sides", "", "123459", noted("first '9'"))]),
    *(row(f"words for a missing label: {name}", files("images/{0..8}.jpg", {"labels.csv": f"image,{name}\n" + "".join(f"{i}.jpg,{cells.split()[i % 3]}\n" for i in range(9))}), right=[right])
      for name, cells, right in [("label", "NA None cat", noted("'NA', 'None' in 'label' count like")), ("tags", "a|b none a", noted("'none' in 'tags' counts like")), ("class", "nan dog cat", refused("'nan'"))]),
    row("a number for all but one", files("images/{0..5}.jpg", {"labels.csv": "image,age\n" + "".join(f"{i}.jpg,{i * 3.5 if i else 'NA'}\n" for i in range(6))}), layout=table_rows(labels=["age"]),
        right=[refused("'NA'", but_not="separator=','")]),
    *(row(f"words beside numbers like {numbers}", files("images/{0..5}.jpg", {"labels.csv": "image,sex,score\n" + "".join(f"{i}.jpg,{'mf'[i % 2]},{numbers.split()[i % 3]}\n" for i in range(6))}), right=[right])
      for numbers, right in [*((one, refused("Which of the columns 'sex', 'score'.*labels=\\['sex'\\]")) for one in ("0.0 1.0 1.0", "0 -1 1", "nan 0.0 1.0", "2.5 1 0", "7 8 9")), ("7 7 7", found("train: f 3, m 3"))]),
    row("a word for no label", files("images/{0..5}.jpg", {"labels.csv": "image,label\n" + "".join(f"{i}.jpg,{('cat', 'unlabeled', 'dog')[i % 3]}\n" for i in range(6))}), right=[noted("'unlabeled' in 'label' counts like")]),
    *(row(f"parts of a table: {name}", files("images/{0..5}.jpg", {f"{table}.csv": "image,label\n" + "".join(f"{i}.jpg,{'ab'[i % 2]}\n" for i in own) for table, own in tables.items()}), right=[right])
      for name, tables, right in [("all", {"part1": range(3), "part2": range(3, 6)}, found("train: a 3, b 3")), ("one image in two", {"part1": range(4), "part2": range(3, 6)}, refused("Several tables")), ("other words", {"one": range(3), "two": range(3, 6)}, refused("Several tables"))]),
    row("no column that looks like the label", files("images/{0..5}.jpg", {"labels.csv": "image,pid\n" + "".join(f"{i}.jpg,p{i}\n" for i in range(6))}), right=[refused("Which of the columns 'pid'")]),
    *(row(f"pixels: {name}", files("", {"train.csv": "label," + ",".join(columns) + "\n" + ("1," + ",".join("3" * 16) + "\n") * 4}), right=[refused("follows")])
      for name, columns in {
          "one is missing": [f"pixel{i + (i > 7)}" for i in range(16)], "from the last": [f"pixel{15 - i}" for i in range(16)],
          "sorted as text": sorted(f"pixel{i}" for i in range(16)), "by columns": [f"{y}x{x}" for x in range(4) for y in range(4)]}.items()),
    row("a pixel table's class that is no number, below an empty line", files("", {"train.csv": "label," + ",".join(f"pixel{i}" for i in range(16)) + "\n1" + ",3" * 16 + "\n\ncat" + ",3" * 16 + "\n"}),
        right=[refused(r"train\.csv', line 4.*'cat'")]),
    row("poses beside pictures, after the number that both have", files("0{1,2}/frame_{00003..00005}_rgb.jpg", {"0{1,2}/frame_{00003..00005}_pose.txt": "0.9 0 0\n0 1 0\n"}), right=[refused("frame_00003_pose.txt")]),
    row("colours of what is in folders of classes", files("img/cat/{1..3}.jpg img/dog/{4..6}.jpg", {"tags.txt": "".join(f"img/{c}/{n}.jpg {words}\n" for c, n, words in (("cat", 1, "red"), ("cat", 2, "red long"), ("cat", 3, "blue"), ("dog", 4, "blue"), ("dog", 5, "red long soft"), ("dog", 6, "red")))}), right=[refused("tags.txt")]),
    row("the time that files are called after", files("cam/16812345678{0..3}.jpg", {"log.csv": "time,image,steer\n" + "".join(f"16812345678{n},16812345678{n}.jpg,0.{n}\n" for n in range(4))}), right=[noted("Not used: the column 'time'")]),
    row("numbers of frames behind a word", files("frame_{0..3}.jpg", {"log.csv": "frame,file\n" + "".join(f"{n},frame_{n}.jpg\n" for n in range(4))}), right=[refused(r"Which of the columns 'frame' .*labels=\['frame'\]")]),
]

# Six images in train/ and val/, labelled in some way; and statements that 2.jpg, which is in val/, is to train on.
IN_SPLITS: dict[str, dict[str, Any]] = {
    "boxes": {**dict.fromkeys(("train/{0,1}.txt", "val/{2,3}.txt"), first_of(0)), "classes.txt": "cat\n"},
    "a table": {"labels.csv": "file,label\ntrain/0.jpg,cat\ntrain/1.jpg,dog\nval/2.jpg,cat\nval/3.jpg,dog\n"},
    "masks": {"masks/{0..3}.png": DIAGONAL},
}
OTHER_SPLITS: dict[str, dict[str, Any]] = {
    "lists": {"train.txt": "0.jpg\n1.jpg\n2.jpg\n", "val.txt": "3.jpg\n"},
    "a table of splits": {"splits.csv": "file,split\n0.jpg,train\n1.jpg,train\n2.jpg,train\n3.jpg,val\n"},
}


SAME_ORDER = found("train: cat 3, dog 3; val: cat 1, dog 1")
SPLIT = ["train", "train", "train", "test"]
BY_PARITY = found("train: 0 3, 1 3")
LISTS = [
    ("paths and numbers", "labels.txt", "".join(f"img/{i}.jpg {i % 2}\n" for i in range(6)), BY_PARITY),
    ("names and words", "labels.txt", "name,kind\n" + "".join(f"{i}.jpg,{'ab'[i % 2]}\n" for i in range(6)), found("train: a 3, b 3")),
    ("one that is not there", "all.lst", "".join(f"{i}.jpg {i % 2}\n" for i in range(7)), noted("6.jpg")),
    ("more than a label", "labels.txt", "".join(f"{i}.jpg {i % 2} 3 4 5\n" for i in range(6)), refused(r"table_rows\(labels=\['column2'\]\)")),
    ("sentences", "labels.txt", "".join(f"{i}.jpg a{' very' * i} big dog\n" for i in range(6)), refused("labels.txt")),
    ("numbers for other lists", "images.txt", "".join(f"{i + 1} img/{i}.jpg\n" for i in range(6)), refused("images.txt")),
    ("names in JSON", "labels.json", {f"{i}.jpg": i % 2 for i in range(6)}, BY_PARITY),
    ("records by name", "labels.json", {f"{i}.jpg": {"label": i % 2, "width": 9} for i in range(6)}, BY_PARITY),
    ("records", "labels.json", [{"label": i % 2, "image": f"{i}.jpg"} for i in range(6)], BY_PARITY),
    ("pairs", "dataset.json", {"labels": [[f"img/{i}.jpg", i % 2] for i in range(6)]}, BY_PARITY),
    ("nothing", "dataset.json", {"labels": None}, refused("dataset.json")),
]
PARTITION: dict[str, Any] = {"list_eval_partition.txt": "".join(f"0{i}.jpg {max(0, i - 3)}\n" for i in range(6))}
IDENTITY: dict[str, Any] = {"identity_CelebA.txt": "".join(f"0{i}.jpg {(28, 31)[i % 2]}\n" for i in range(6))}
ATTRIBUTES: dict[str, Any] = {"list_attr_celeba.txt": "6\nSmiling Young\n" + "".join(f"0{i}.jpg {(-1, 1)[i % 2]:2d}  1\n" for i in range(6))}
NUMBERED_LISTS: list[tuple[str, Callable[[int, int], int], Callable[[Packed], bool]]] = [
    ("from 1", lambda n, i: 1 + n, SAME_ORDER), ("other labels", lambda n, i: i % 2, refused("train.txt.*divide")),
    ("one each", lambda n, i: 9 * n + i, SAME_ORDER), ("yes and no", lambda n, i: (-1, 1)[(n + i) % 2], SAME_ORDER),
]
# Lists that share the numbers of images: what each says of number i of class n.
BY_IDS: list[tuple[str, dict[str, Callable[[int, int], object]], Callable[[Packed], bool]]] = [
    ("a split", {"train_test_split.txt": lambda n, i: int(i < 2)}, found("train: cat 2, dog 2; test: cat 2, dog 2")),
    ("labels, boxes and a split", {"image_class_labels.txt": lambda n, i: n + 1, "bounding_boxes.txt": lambda n, i: "1 2 3 4", "train_test_split.txt": lambda n, i: int(i > 0)}, found("train: cat 3, dog 3; test: cat 1, dog 1", note="same classes are in 'd/image_class_labels.txt'")),
    ("labels of another division", {"image_class_labels.txt": lambda n, i: i % 2}, refused("image_class_labels.txt")),
    ("a split that may be either way round", {"split.txt": lambda n, i: int(i < 2)}, noted("'d/split.txt'")),
]
# What states the splits of 0.jpg to 5.jpg beside their labels: the last two are held out.
HELD_OUT = ["train"] * 4 + ["val"] * 2
STATED_SPLITS: list[tuple[str, dict[str, Any]]] = [
    ("tables of paths", {"train.csv": "image\n0.jpg\n1.jpg\n2.jpg\n3.jpg\n", "val.csv": "image\n4.jpg\n5.jpg\n"}),
    ("tables without a header", {"train.csv": "0.jpg,0.png\n1.jpg,1.png\n2.jpg,2.png\n3.jpg,3.png\n", "val.csv": "4.jpg,4.png\n5.jpg,5.png\n"}),
    ("a column beside others", {"all.csv": "image,split,mask\n" + "".join(f"{i}.jpg,{split},{i}.png\n" for i, split in enumerate(HELD_OUT))}),
    ("JSON", {"splits.json": {"train": [f"{i}.jpg" for i in range(4)], "val": ["4.jpg", "5.jpg"]}}),
    ("lists in JSON", {"train.json": [f"{i}.jpg" for i in range(4)], "val.json": ["4.jpg", "5.jpg"]}),
    ("JSON by name", {"splits.json": {f"{i}.jpg": split for i, split in enumerate(HELD_OUT)}}),
    ("records in JSON", {"splits.json": [{"file": f"{i}.jpg", "split": split} for i, split in enumerate(HELD_OUT)]}),
    ("lines of JSON", {"held_out.jsonl": "".join(json.dumps({"file": f"{i}.jpg", "split": split}) + "\n" for i, split in enumerate(HELD_OUT))}),
    ("YAML", {"splits.yaml": "train: ['0', '1', 2, 3.jpg]\nval:\n- 4.jpg\n- 5.jpg\n"}),
    ("YAML by name", {"splits.yml": "".join(f"{i}.jpg: {split}\n" for i, split in enumerate(HELD_OUT))}),
    ("a text", {"splits.txt": "".join(f"{i}.jpg {split}\n" for i, split in enumerate(HELD_OUT))}),
    ("lists with numbers behind commas", {"train.txt": "".join(f"img/{i}.jpg,{i % 2}\n" for i in range(4)), "val.txt": "img/4.jpg,0\nimg/5.jpg,1\n"}),
    ("lists of other files of the samples", {"train.txt": "0.png\n1.png\n2.png\n3.png\n", "val.txt": "4.png\n5.png\n"}),
    ("a list for more files", {"val.txt": "".join(f"{i}.jpg\n" for i in (4, 5, *range(40, 60)))}),
    ("JSON with labels", {"split_a.json": {"train": [[f"{i}.jpg", 0, "x"] for i in range(4)], "val": [["4.jpg", 0, "x"], ["5.jpg", 0, "x"]]}}),
]
SPLITS_BESIDE = [
    *(row(f"splits beside masks: {name}", pairs("img/{}.jpg", "masks/{}.png") | files("", stated), right=[found("train: 4 masks .*; val: 2 masks .*")]) for name, stated in STATED_SPLITS),
    row("a number and a word of each image, by split in JSON", files("img/{0..5}.jpg", {"split_a.json": {split: [[f"{i}.jpg", i % 2, "ba"[i % 2]] for i in numbers] for split, numbers in (("train", range(4)), ("val", (4, 5)))}}), right=[found("train: b 2, a 2; val: b 1, a 1", note="in the order of 'column2'")]),
    *(row(f"splits beside boxes: {name}", files("img/{0..5}.jpg", {"img/{0..5}.xml": VOC.format("cat"), **stated}), right=[found("train: boxes cat 4; val: boxes cat 2")]) for name, stated in STATED_SPLITS),
    row("boxes again in a table for each split", files("img/{0..5}.jpg", {"img/{0..5}.xml": VOC.format("cat")} | {f"data/{split}_labels.csv": "filename,width,height,class,xmin,ymin,xmax,ymax\n" + "".join(f"{i}.jpg,64,48,cat,5,6,40,30\n" for i in numbers) for split, numbers in (("train", range(4)), ("test", (4, 5)))}),
        right=[found("train: boxes cat 4; test: boxes cat 2"), refused("labels.csv")]),
    *(row(f"splits that name folders: {name}", files("img/v{0..2}/{0..3}.jpg", {"masks/v{0..2}/{0..3}.png": grey(np.eye(48, 64, dtype=np.uint8)), **stated}), right=[found("train: 8 masks .*; val: 4 masks .*")], layout="pairs")
      for name, stated in (("lists", {"sets/train.txt": "v0\nv1\n", "sets/val.txt": "v2\n"}), ("JSON", {"splits.json": {"train": ["img/v0", "img/v1"], "val": ["img/v2"]}}))),
    *(row(f"splits that name other files: {name}", pairs("img/{}.jpg", "masks/{}.png") | files("", stated), right=[refused(r"(splits\.\w+|train\.\w+)' names files most of which are not there.*Correct the list, or leave .* out: only=")])
      for name, stated in (("lists", {"train.txt": "a0.jpg\na1.jpg\n", "val.txt": "a4.jpg\n"}), ("numbers", {"train.txt": "101\n102\n103\n", "val.txt": "104\n"}), ("a table", {"splits.csv": "file,split\na0,train\na1,train\na2,val\n"}), ("YAML", {"splits.yaml": "train: [a0, a1]\nval: [a2]\n"}))),
    *(row(f"a list of what is not there, beside {name}", pairs("img/{}.jpg", "masks/{}.png") | files("", {"test.txt": "a7\na8\n", **lists}), right=[right])
      for name, lists, right in (("train and val", {"train.txt": "0\n1\n2\n3\n", "val.txt": "4\n5\n"}, found("train: 4 masks .*; val: 2 masks .*", note="'test.txt'")), ("train", {"train.txt": "0\n1\n2\n3\n"}, refused("'test.txt' names files most of which")), ("val", {"val.txt": "4\n5\n"}, refused("'test.txt' names files most of which")))),
    row("a remark called as a list", files("{cat,dog}/{0..3}.jpg", {"test.txt": "this is a test\n"}), right=[noted("'test.txt'")]),
    row("a table of train alone beside masks", pairs("img/{}.jpg", "masks/{}.png") | files("", {"train.csv": "image\n0.jpg\n1.jpg\n2.jpg\n"}), right=[found("train: 6 masks .*")]),
    *(row(f"a table of labels, and {name}", files("img/{00..39}.jpg", {table: "file,label\n" + "".join(f"{i:02}.jpg,{('cat', 'dog')[i % 2]}\n" for i in range(40)), "val.csv": held_out}), right=[found("train: cat 19, dog 19; val: cat 1, dog 1")])
      for name, table, held_out in (("what is held out", "labels.csv", "file\n38.jpg\n39.jpg\n"), ("what is held out, with labels", "labels.csv", "file,label\n38.jpg,cat\n39.jpg,dog\n"), ("what is held out of train.csv", "train.csv", "file\n38.jpg\n39.jpg\n"))),
    row("one of several tables of splits", files("img/{0..5}.jpg", {"{a,b}_train.csv": "image,label\n0.jpg,cat\n1.jpg,dog\n2.jpg,cat\n3.jpg,dog\n", "{a,b}_val.csv": "image,label\n4.jpg,cat\n5.jpg,dog\n"}), layout=table_rows(table="a_train.csv"), right=[found("train: cat 2, dog 2")]),
    # All are in one folder 'train', of which tables, lists or annotations hold some out.
    row("a folder train, and tables", files("train/{0..5}.jpg", {"train.csv": "image,label\n0.jpg,cat\n1.jpg,dog\n2.jpg,cat\n3.jpg,dog\n", "val.csv": "image,label\n4.jpg,cat\n5.jpg,dog\n"}), right=[found("train: cat 2, dog 2; val: cat 1, dog 1")]),
    row("a folder train, and tables that share names", files("train/{0..5}.jpg", {"train.csv": "image,label\n0.jpg,cat\n1.jpg,dog\n2.jpg,cat\n3.jpg,dog\n", "val.csv": "image,label\n0.jpg,cat\n1.jpg,dog\n"}), right=[found("train: cat 2, dog 2", note="not there"), refused("val.csv")]),
    row("a folder train, and a list of what may be elsewhere", files("train/{0..5}.jpg", {"train/{0..5}.xml": VOC.format("cat"), "val.txt": "0\n1\n"}), right=[refused("val.txt")]),
    *(row(f"splits inside of others: {n}", files("{Potato,Tomato}/{train,val}/{good,bad}/{0..2}.jpg"), layout=way, right=[found("train: bad 6, good 6; val: bad 6, good 6")]) for n, way in enumerate((folders(level=-1), file_names(r"([^/]+)/[^/]+$")))),
    *(row(f"COCO's file of another split: {name}", files("train/{0..3}.jpg val/{4,5}.jpg", {"train.json": coco("{0..3}.jpg"), "val.json": other}), right=[right])
      for name, other, right in [
          ("ids of its own", {**coco("{4,5}.jpg", bbox=[5, 6, 9, 9], category_id=1), "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}]}, found("train: boxes cat 2, dog 2; val: boxes dog 2")),
          ("other ids", {**coco("{4,5}.jpg", bbox=[5, 6, 9, 9], category_id=12), "categories": [{"id": 12, "name": "dog"}]}, found("train: boxes cat 2, dog 2; val: boxes dog 2")),
          ("a category twice", {**coco("{4,5}.jpg"), "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}] * 2}, found("train: boxes cat 2, dog 2; val: boxes cat 1, dog 1")),
          ("one name for two ids", coco("{4,5}.jpg", categories="cat,cat"), refused(r"val\.json.*one id or one name")),
          ("no list of categories", {key: part for key, part in coco("{4,5}.jpg").items() if key != "categories"}, found("train: boxes cat 2, dog 2; val: boxes cat 1, dog 1")),
          ("images alone", {"images": coco("{4,5}.jpg")["images"]}, found("train: boxes cat 2, dog 2", note="2 images without annotations were left out")),
          ("outlines alone", coco("{4,5}.jpg", segmentation=[[1, 2, 9, 2, 9, 8]]), found("train: boxes cat 2, dog 2; val: boxes cat 1, dog 1")),
          ("classes alone", coco("{4,5}.jpg", score=1), found("train: boxes cat 2, dog 2", note="2 images without annotations were left out")),
      ]),
    row("boxes in a table with two classes of each", files("{0..3}.jpg", {"boxes.csv": "file,xmin,ymin,xmax,ymax,class,label\n" + "".join(f"{i // 2}.jpg,5,6,40,30,{'ab'[i % 2]},{'xyz'[i % 3]}\n" for i in range(8))}), right=[refused("several classes for each: 'label'")]),
    row("the boxes of one image in two splits", files("{0..3}.jpg", {"boxes.csv": "file,xmin,ymin,xmax,ymax,class,split\n" + "".join(f"{i // 2}.jpg,5,6,40,30,cat,{('train', 'val')[i % 2]}\n" for i in range(8))}), right=[refused("'0.jpg' are in several splits")]),
    *(row(f"an image in two splits of a table, {layout}", files("{0..3}.jpg", {"{train,test}.csv": "file,label\n" + "".join(f"{i}.jpg,{'ab'[i % 2]}\n" for i in range(4))}), layout=layout, right=[refused("'0.jpg' has samples in the splits 'train' and 'test'")]) for layout in ("auto", "table")),
    *(row(f"arrays beside {name}", {"X.npy": npy(np.zeros((8, 5), np.float32)), "y.npy": npy(np.arange(8) % 2)} | files("", {name: content}), right=[right])
      for name, content, right in [
          ("groups.npy", npy(np.arange(8) // 2), found("train: 0 4, 1 4.*", note="Rows with the same 'groups.npy' stay in one split")), ("patient_ids.npy", npy(np.array(list("aabbccdd"))), found("train: 0 4, 1 4.*", note="'patient_ids.npy' stay in one split")),
          ("split.csv", "row,split\n0,train\n1,val\n", refused("'split.csv'.*Save an array 'split'")), ("val_idx.txt", "1\n3\n", refused("'val_idx.txt'.*Save an array 'split'")), ("splits.json", {"train": [0, 1], "val": [2]}, refused("'splits.json'")), ("train_config.json", {"lr": 1}, noted("'train_config.json'"))]),
    row("trainval.txt beside test.txt", pairs("img/{}.jpg", "masks/{}.png") | files("", {"trainval.txt": "0\n1\n2\n", "test.txt": "4\n5\n"}), right=[found("train: 3 masks .*; test: 2 masks .*", note="1 image that no list names was left out")]),
    row("trainval.txt above what it repeats", files("{cat,dog}/{0..3}.jpg", {"trainval.txt": "".join(f"{one}/{i}.jpg\n" for one in ("cat", "dog") for i in range(3)), **{f"lists/{split}.txt": f"cat/{i}.jpg\ndog/{i}.jpg\n" for i, split in ((0, "train"), (2, "val"), (3, "test"))}}), right=[found("train: cat 1, dog 1; val: cat 1, dog 1; test: cat 1, dog 1.*")]),
    row("lists beside images alone", files("img/{0..5}.jpg", {"train.txt": "0.jpg\n1.jpg\n2.jpg\n3.jpg\n", "val.txt": "4.jpg\n5.jpg\n"}), layout="images", right=[found("train: 4 without targets; val: 2 without targets")]),
    *(row(f"configs of a README that {name}", files(pattern, {"README.md": card(*configs)}), right=[right])
      for name, pattern, configs, right in [
          ("say what folders do", "{train,test}/{cat,dog}/{0..3}.jpg", ["train train/**", "test test/*/*.jpg"], found("train: cat 4, dog 4; test: cat 4, dog 4")),
          ("name the files of each split", "{cat,dog}/{0..3}.jpg", ["train */[0-2].jpg", "test */3.jpg"], found("train: cat 3, dog 3; test: cat 1, dog 1")),
          ("exchange folders", "{train,test}/{cat,dog}/{0..3}.jpg", ["train test/**", "test train/**"], refused("'test' by 'README.md', and of 'train' by the folders.*does without it")),
          ("leave a folder out", "{train,test}/{cat,dog}/{0..3}.jpg", ["train train/**"], refused("'none' by 'README.md', and of 'test' by the folders")),
          ("name a file twice", "{cat,dog}/{0..3}.jpg", ["train **", "test */3.jpg"], refused("'README.md' names it in the splits 'train' and 'test'")),
          ("cannot be read", "{cat,dog}/{0..3}.jpg", ["train a'b"], refused("'README.md': its configs cannot be read"))]),
    *(row(f"configs of a README in which {name}", files(pattern, {"README.md": f"---\nconfigs:\n{written}---\n"}), right=[right])
      for name, pattern, written, right in [
          ("others than the default one divide otherwise", "{train,test}/{cat,dog}/{0..3}.jpg", "- config_name: all\n  data_files: {train: '**'}\n- config_name: default\n  data_files: {train: train/**, test: test/**}\n", found("train: cat 4, dog 4; test: cat 4, dog 4")),
          ("one of several is marked as the default", "{cat,dog}/{0..3}.jpg", "- config_name: mini\n  data_files: {train: '*/0.jpg', test: '*/1.jpg'}\n- config_name: full\n  default: true\n  data_files: {train: '*/[0-2].jpg', test: '*/3.jpg'}\n", found("train: cat 3, dog 3; test: cat 1, dog 1")),
          ("several folds are as good as each other", "{cat,dog}/{0..3}.jpg", "".join(f"- config_name: fold{i}\n  data_files: {{train: '*/[!{i}].jpg', test: '*/{i}.jpg'}}\n" for i in range(2)), refused("in the splits 'test' and 'train'; expected one split in all configs, or a default one")),
          ("comments begin lines", "{cat,dog}/{0..3}.jpg", "# by number\n- data_files:\n  - {split: train, path: '*/[0-2].jpg'}\n# held out\n  - {split: test, path: '*/3.jpg'}\n", found("train: cat 3, dog 3; test: cat 1, dog 1")),
          ("all is called full", "{cat,dog}/{0..3}.jpg", "- data_files: {full: '**'}\n", found("train: cat 4, dog 4")),
          ("paths have no split", "{train,test}/{cat,dog}/{0..3}.jpg", "- data_files:\n  - path: train/**\n  - test/**\n", found("train: cat 4, dog 4; test: cat 4, dog 4")),
          ("words stand for files", "{train,test}/{cat,dog}/{0..3}.jpg", "- en\n- fr\n", found("train: cat 4, dog 4; test: cat 4, dog 4"))]),
    row("configs of a README beside shards", files("", {
        **{f"data/{name}.tar": tar({f"{i}.{end}": content for i in range(4) for end, content in (("jpg", image(i)), ("cls", b"%d" % (i % 2)))}) for name in ("one", "two")},
        "README.md": card("train data/one.tar", "test data/two.tar")}), right=[found("train: 0 2, 1 2; test: 0 2, 1 2")]),
    row("lists beside named classes", files("{cat,dog}_{0..3}.jpg", {"train.txt": "".join(f"{one}_{i}.jpg\n" for one in ("cat", "dog") for i in range(3)), "val.txt": "cat_3.jpg\ndog_3.jpg\n"}), layout=file_names(r"([a-z]+)_\d"), right=[SAME_ORDER]),
]


FOLDERS = [
    *(row(f"a folder {name!r}", files(f"{{cat,dog,{name}}}/{{0..3}}.jpg"), right=[refused(name)]) for name in ("unlabeled", "unsup")),
    row("numbered alike in each split", files("{train,test}/{cat,dog}/{0..9}.jpg"), right=[found("train: cat 10, dog 10; test: cat 10, dog 10")]),
    row("a JPEG that ends in zeros", files("{cat,dog}/{0..3}.jpg", {"cat/4.jpg": image(9, form="JPEG")[:1500] + bytes(3000)}), right=[refused(r"cat/4\.jpg")]),
    row("a JPEG with zeros behind it", files("{cat,dog}/{0..3}.jpg", {"cat/4.jpg": image(9, form="JPEG") + bytes(3000)}), right=[found("train: cat 5, dog 4")]),
    *(row(f"numbers in lists of splits: {name}", files("{cat,dog}/{0..3}.jpg", {
        "train.txt": "".join(f"{one}/{i}.jpg {number(n, i)}\n" for n, one in enumerate(("cat", "dog")) for i in range(3)), "val.txt": "".join(f"{one}/3.jpg {number(n, 3)}\n" for n, one in enumerate(("cat", "dog")))}), right=[right])
      for name, number, right in NUMBERED_LISTS),
    *(row(f"classes behind numbers: {names}", files(names), right=[refused(f"file_names.*{where}")])
      for names, where in [("{1..4}_cat.jpg {5..8}_dog.jpg", "behind the number"), ("cat_{1..4}.jpg dog_{1..4}.jpg", "before the last number")]),
    row("a group that matches nothing", files("a_{1..4}.jpg b_{1..4}.jpg x_1.jpg"), layout=file_names(r"([ab])?_\d"), right=[found("train: a 4, b 4")]),
    *(row(f"a table of {column}s beside folders", files("{cat,dog}/{0..3}.jpg", {"l.csv": f"file,{column}\n" + "".join(f"{one}/{i}.jpg,{cells[i]}\n" for one in ("cat", "dog") for i in range(4))}), right=[right])
      for column, cells, right in [("split", ["train", "train", "train", "val"], found("train: cat 3, dog 3; val: cat 1, dog 1")), ("fold", "0101", refused("image_folder", but_not="labels="))]),
    *(row(f"a list of {name}", files("img/{0..5}.jpg", {file: content}), right=[right])
      for name, file, content, right in LISTS),
    *(row(f"a table of {name} than folders", files("img/{cat,dog}/{0..3}.jpg", {"labels.csv": "file,label\n" + "".join(f"{one}/{i}.jpg,{labels[i].format(one)}\n" for one in ("cat", "dog") for i in range(4))}), right=[right])
      for name, labels, right in [
          ("another division", ("x", "y", "x", "y"), refused("'labels.csv' and by folders.*'x', 'cat'")),
          ("a finer division", ("{}x", "{}y", "{}x", "{}y"), found("train: catx 2, caty 2, dogx 2, dogy 2")),
          ("a coarser division", ("pet",) * 4, found("train: pet 8")),
      ]),
    row("a list of another division than folders", files("img/{cat,dog}/{0..3}.jpg", {"labels.txt": "".join(f"{one}/{i}.jpg {i % 2}\n" for one in ("cat", "dog") for i in range(4))}), right=[refused("labels.txt")]),
    *(row(f"a list of {name} beside folders", files("{cat,dog}/{0..3}.jpg", {file: content}), right=[right])
      for name, file, content, right in [
          ("words for splits", "list.txt", "".join(f"{one}/{i}.jpg {word}\n" for one in ("cat", "dog") for i, word in enumerate(SPLIT)), refused("list.txt")),
          ("words for splits in JSON", "info.json", {f"{one}/{i}.jpg": word for one in ("cat", "dog") for i, word in enumerate(SPLIT)}, refused("info.json")),
          ("names by split in JSON", "info.json", {"a": [f"{one}/{i}.jpg" for one in ("cat", "dog") for i in range(3)], "b": ["cat/3.jpg", "dog/3.jpg"]}, noted("info.json")),
          ("some images", "exclude.txt", "".join(f"{one}/{i}.jpg\n" for one in ("cat", "dog") for i in range(3)), noted("exclude.txt")),
          ("their classes", "all.txt", "".join(f"{one}/{i}.jpg {one}\n" for one in ("cat", "dog") for i in range(4)), noted("all.txt")),
          ("their classes by number", "all.txt", "".join(f"{one}/{i}.jpg {n}\n" for n, one in enumerate(("cat", "dog")) for i in range(4)), noted("all.txt")),
      ]),
    *(row(f"a list of {name} beside folders of two words", files("{cat,red~fox}/{0..3}.jpg", {"all.txt": "".join(f"{one}/{i}.jpg,{word.format(one)}\n" for one in ("cat", "red fox") for i, word in enumerate(words))}), right=[right])
      for name, words, right in [
          ("their classes", ["{}"] * 4, noted("same classes are in 'all.txt'")),
          ("other classes", ["cat", "red fox"] * 2, refused("all.txt")),
          ("finer classes", ["{}", "{} cub", "{} male", "{}"], refused("all.txt")),
      ]),
    *(row(f"{number} images a number in {file}, by bare name beside folders", files("cat/{0..3}a.jpg dog/{4..7}a.jpg", {file: "".join(f"{i}a.jpg {i // number % 2}\n" for i in range(8))}), right=[right])
      for file in ("labels", "classes.log") for number, right in [(4, noted(f"same classes are in '{file}'")), (2, refused(file))]),
    *(row(f"a list of {name} division beside a table of boxes", files("img/{0..5}.jpg", {"boxes.csv": "file,label,xmin,ymin,xmax,ymax\n" + "".join(f"{i}.jpg,{'ab'[i % 2]},1,1,3,3\n" for i in range(6)), "list.txt": "".join(f"{i}.jpg {i // number % 2}\n" for i in range(6))}), right=[right])
      for name, number, right in [("the same", 1, noted("'list.txt'")), ("another", 2, refused("'boxes.csv' and by 'list.txt'"))]),
    *(row(f"{stated} of another division than the folders of {labels}", files("train/{0,1}.jpg val/{2,3}.jpg", {**IN_SPLITS[labels], **OTHER_SPLITS[stated]}), right=[refused("val/2.jpg", but_not="Not read")])
      for labels in IN_SPLITS for stated in OTHER_SPLITS),
    row("a column of another division than the folders", files("train/{0,1}.jpg val/{2,3}.jpg", {"labels.csv": "file,label,split\n0.jpg,cat,train\n1.jpg,dog,train\n2.jpg,cat,train\n3.jpg,dog,val\n"}), right=[refused("'val/2.jpg'.*'train'.*'val'")]),
    row("a column that holds out a part of the folder to train on", files("train/{0..3}.jpg val/{4,5}.jpg", {"labels.csv": "file,label,split\n" + "".join(f"{i}.jpg,{('cat', 'dog')[i % 2]},{('train', 'test', 'val')[i // 2]}\n" for i in range(6))}), right=[found("train: cat 1, dog 1; val: cat 1, dog 1; test: cat 1, dog 1")]),
    *(row(f"names of classes in {file} beside boxes{' and ' * bool(also)}{also}", yolo("a b", {file: content, **dict.fromkeys(filter(None, [also]), "cat\ndog\n")}), right=[noted(file)])
      for file, content in [("class_names.txt", "dog\ncat\n"), ("classes.json", ["dog", "cat"])] for also in ("", "classes.txt")),
    *(row(f"lists by ids: {name}", files("d/images/{cat,dog}/a{0..3}.jpg", {"d/images.txt": "".join(f"{n}{i} {one}/a{i}.jpg\n" for n, one in enumerate(("cat", "dog")) for i in range(4)), **{
        f"d/{file}": "".join(f"{n}{i} {cell(n, i)}\n" for n in (0, 1) for i in range(4)) for file, cell in lists.items()}}), right=[right])
      for name, lists, right in BY_IDS),
    *(row(f"CelebA's texts: {', '.join(texts)}", files("img/0{0..5}.jpg", texts), right=[right])
      for texts, right in [
          (PARTITION, found("train: 4 without targets; val: 1 .*; test: 1 .*")), (PARTITION | IDENTITY, found("train: 28 2, 31 2; val: 28 1; test: 31 1")),
          (PARTITION | IDENTITY | ATTRIBUTES, refused(r"table_rows\(table='identity_CelebA.txt'")), (PARTITION | ATTRIBUTES, found(r"train: 4 rows .*\(2,\); val: 1 rows .*; test: 1 rows .*"))]),
    row("a list of one line", files("images/0000{0..4}.jpg", {"train.txt": "".join(f"0000{i}.jpg {i % 2}\n" for i in range(4)), "val.txt": "00004.jpg 0\n"}), right=[found("train: 0 2, 1 2; val: 0 1")]),
    *(row(f"lists of images without labels: {name}", files("images/{0..7}.jpg", {"train.txt": "".join(f"{i}.jpg\n" for i in range(6)), "val.txt": "".join(f"{i}.jpg{more}\n" for i in range(6, 8))}), right=right)
      for name, more, right in [("paths", "", [found("train: 6 without .*; val: 2 .*")]), ("words behind some", " a cat", [refused("val.txt")])]),
    row("a list beside names of classes", files("cat_{1..3}.jpg dog_{1..3}.jpg", {"labels.txt": "".join(f"{one}_{i}.jpg {i % 2}\n" for one in ("cat", "dog") for i in range(1, 4))}), right=[refused("labels.txt"), found("train: 0 2, 1 4")]),
    row("shards with a gap in their numbers", files("", {f"train-{n:05d}.tar": tar({f"{n}{i}.{end}": content for i in range(4) for end, content in
        (("png", image(4 * n + i)), ("cls", b"01"[i % 2 :][:1]))}) for n in (0, 2)}), right=[noted("1 number is missing .*first 1.")]),
    row("shards that did not all come", files("", {f"train-{n:05d}-of-00003.tar": tar({f"{n}{i}.{end}": content for i in range(4) for end, content in
        (("png", image(4 * n + i)), ("cls", b"01"[i % 2 :][:1]))}) for n in (0, 2)}), right=[noted("2 of 3"), refused("of-00003")]),
]

CLASSES = "{cat,dog}/{0..3}.jpg"
WRITTEN = {  # labels beside class folders
    "labels.txt": "\n".join(map(str, Y)), "labels.json": Y, "labels.npy": npy(np.array(Y)), "targets.pkl": pickle.dumps(Y), "y.h5": h5(y=Y), "labels.csv": NAMED_BY_NUMBER,
    "annotations.db": b"SQLite format 3\0" + bytes(84), "cat/labels.txt": "0\n1\n1\n0\n",
}
PATIENTS = "p{1..3}/{0..1}.jpg"
BESIDE_FOLDERS = [
    *(row(f"an archive beside what was unpacked from it, {options}", files("pets/{cat,dog}/{0..3}.jpg", {"pets.zip": "x"}), right=[right], **options)
      for options, right in [({}, refused(r"if it was unpacked here, leave it out: only='\*\*/\*\.jpg'")), ({"only": "**/*.jpg"}, found("train: cat 4, dog 4"))]),
    *(row(f"{name} with a second copy, {len(differ)} of its files another", {f"{top}{path}": content + (b"" if top == first or path not in differ else b" ") for path, content in made.items() for top in (first, second)} | texts, right=[right], **options)
      for name, made, texts, first, second, differ, options, right in [
          ("a table", files("a/{0..3}.jpg"), files("", {"labels.csv": "id,label\n" + "".join(f"{i},{'cat' if i % 2 else 'dog'}\n" for i in range(4))}), "HAM/", "ham/", (), {}, found("train: cat 2, dog 2", note="4 files were left out: copies of others")),
          ("a table", files("a/{0..3}.jpg"), files("", {"labels.csv": "id,label\n" + "".join(f"{i},{'cat' if i % 2 else 'dog'}\n" for i in range(4))}), "HAM/", "ham/", ("a/2.jpg",), {}, refused("may be 'HAM/a/0.jpg', 'ham/a/0.jpg'")),
          ("a table in both", files("a/{0..3}.jpg", {"labels.csv": "id,label\n0,cat\n1,dog\n2,cat\n3,dog\n", "README.md": "x"}), {}, "HAM/", "HAM/HAM/", (), {}, found("train: cat 2, dog 2", note="5 files were left out: copies of others")),
          ("boxes in both", files("images/{0..3}.jpg", {"labels/{0..3}.txt": first_of(0), "data.yaml": "names: [cat, dog]"}), {}, "d/", "d/d/", (), {}, found("train: boxes cat 4", note="9 files were left out: copies of others")),
          ("labels of each", files("images/{0..3}.jpg"), files("", {f"{top}/labels/{i}.txt": first_of(number) for i in range(4) for number, top in enumerate("ab")}), "a/", "b/", (), {}, found("train: boxes 0 4, 1 4")),
          ("labels of one", files("images/{0..3}.jpg"), files("", {"b/labels/{0..3}.txt": first_of(0), "a/labels/{0..3}.xml": voc("cat")}), "a/", "b/", (), {}, refused("Pascal VOC's files.*YOLO's files")),
          ("two classes", files("scans/{0..3}.jpg"), {}, "cat/", "dog/", (), {}, found("train: cat 4, dog 4", note="byte for byte the same")),
          ("blank pictures", {f"{place}/{i}.png": grey(np.zeros((8, 8), np.uint8)) for place in "xy" for i in range(3)}, {}, "cat/", "dog/", (), {"layout": "image_folder"}, found("train: cat 6, dog 6")),
          ("masks", pairs("{}.jpg", "{}_mask.png"), {}, "k/", "d/k/", (), {"layout": "pairs"}, found("train: 6 masks .*", note="copies of others"))]),
    row("pictures of one size, nearly all empty", {f"{name}/p/{i}.bmp": encode(Image.fromarray(np.full((16, 16), 255 * (name == "b" and i == 13), np.uint8)), "BMP") for name in "ab" for i in range(40)}, right=[found("train: a 40, b 40", note="byte for byte the same")], layout="image_folder"),
    row("the same masks for the images of two folders", {f"{place}/images/{i}.png": grey((np.arange(64) ** (i + 2 + 3 * (place == "b")) % 251).astype(np.uint8).reshape(8, 8)) for place in "ab" for i in range(3)} | {f"{place}/masks/{i}.png": grey(np.full((8, 8), 9 * i, np.uint8))
        for place in "ab" for i in range(3)}, right=[found("train: 6 masks .*")], layout="pairs"),
    *(row(f"a folder {name} beside those of classes", files(f"d/{{cat,dog,owl}}/{{0..2}}.jpg d/{name}/a{{0..3}}.jpg"), right=[noted(f"'{name}' counts as a class; for the others only=.'d/cat', 'd/dog', 'd/owl'.")]) for name in ("images", "thumbnails", "raw")),
    row("folders called raw and ripe, which are classes", files("{raw,ripe}/p{0..2}.jpg"), right=[lambda packed: bool(packed.found) and not noted("counts as a class")(packed)]),
    *(row(f"files in folders of classes, called alike {name}", files(names), right=[right])
      for name, names, right in [
          ("up to bands", "cat/{a,b,c}1_B{02,03,04}.png dog/{d,e}1_B{02,03,04}.png", noted(r"alike up to '_B02\.png', '_B03\.png', '_B04\.png'.*only='\*\*/\*_B02\.png'")),
          ("with copies", "cat/{a,b,c}1_{flip,rot90}.png dog/{d,e}1_{flip,rot90}.png", lambda packed: bool(packed.found) and not noted("alike")(packed))]),
    row("two resolutions of each image, by their folders' words", files("DIV2K_train_HR/{0001..0004}.png DIV2K_train_LR_bicubic/X4/{0001..0004}x4.png"), right=[refused("names of parts of a dataset.*items are .x, y.")]),
    row("one of two kinds of image in each split", files("{train,test}/{HR,LR}/{0..4}.png"), right=[refused(r"only=\['test/HR', 'train/HR'\].*pictures and no masks, give pack_dataset")]),
    row("a table of images in bounding_box_train, bounding_box_test and query", files("{query,bounding_box_train,bounding_box_test}/000{1,2}.jpg", {"labels.csv": "path,label\n" + "".join(f"{one}/000{i}.jpg,{'ab'[i - 1]}\n" for one in ("query", "bounding_box_train", "bounding_box_test") for i in (1, 2))}), right=[refused(r"'query' is of no split.*only=\['bounding_box_test', 'bounding_box_train'\]")]),
    row("classes in names, in bounding_box_train, bounding_box_test and query", files("{query,bounding_box_train,bounding_box_test}/000{1,2}_c{1..3}.jpg"), right=[noted("'test', 'train' too, because 'query' is of no split")], layout=file_names(r"(\d+)_c")),
    row("a label in each folder", files(PATIENTS, {f"p{i}/label.txt": str(i % 2) for i in (1, 2, 3)}), right=[refused("label"), found("train: 0 2, 1 4")]),
    row("a table of folders and their labels", files(PATIENTS, {"labels.csv": "patient,diagnosis\np1,0\np2,1\np3,0\n"}), right=[found("train: 0 4, 1 2")]),
    *(row(f"a table of {where} and {what}", files("{c1,c2,c3}/view{0,1}.jpg", {"l.csv": f"{header}\nc1,{cells[0]}\nc2,{cells[1]}\nc3,{cells[2]}\n"}), right=[right])
      for where, what, header, cells, right in [
          ("folders", "a label that several have", "id,label", "aba", found("train: a 4, b 2", note='layout="image_folder"')), ("folders", "a label of each", "id,label", "abc", found("train: c1 2, c2 2, c3 2")),
          ("folders", "a kind that several have", "id,kind", "aba", found("train: c1 2, c2 2, c3 2", note="l.csv"))]),
    row("a table of folders without a header, in another folder", files("scans/p{1..3}/series/{0..1}.jpg", {"labels.csv": "p1,sick\np2,well\np3,sick\n"}), right=[found("train: sick 4, well 2")]),
    row("a table of folders as paths", files("images/p{1..3}/{0..1}.jpg", {"labels.csv": "path,label\nimages/p1/,ill\nimages/p2/,well\nimages/p3/,ill\n"}), right=[found("train: ill 4, well 2")]),
    row("a class with one image, which is held out", files("cat/{00..09}.jpg dog/0.jpg"), right=[noted("The split 'train' has no images of 1 class: 'dog'")], splits={"train": 0.8, "val": 0.2}),
    row("labels below 0 of a named layout", {"d.npz": npz(x=np.ones((8, 4)), y=np.array([0, 1, -1, 1] * 2), class_names=np.array(["cat", "dog"]))}, layout="arrays", right=[noted("2 of 8 labels are below 0")]),
    row("a split that lacks a class, in folders", files("train/{cat,dog}/{0..3}.jpg test/cat/{4..5}.jpg"), right=[noted("The split 'test' has no images of 1 class: 'dog'")]),
    row("persons in a test set of the source too", files("{train,test}/a/person{0..4}_{0,1}.jpg {train,test}/b/person{5..9}_{0,1}.jpg"), right=[noted("10 of 20 files are of one person")], splits={"train": 0.5, "val": 0.5}),
    *(row(f"rows of one {name}", table(f"file,{name},label", "{i}.jpg,{c},{c}{i}"), right=[noted(f"Samples with the same '{name}' stay in one split")], splits={"train": 0.5, "test": 0.5}) for name in ("Participant Number", "animal_id")),
    row("a table of folders with two facts of each patient", files(PATIENTS, {"labels.csv": "patient,age,finding\np1,31,ill\np2,44,well\np3,8,ill\n"}), right=[refused("labels=\\['finding'\\]")]),
    row("a table of folders with several rows for each", files(PATIENTS, {"labels.csv": "patient,visit,sign\n" + "".join(f"p{i},{visit},ill\n" for i in (1, 2, 3) for visit in (4, 5))}), right=[refused("several rows for the folder 'p1'")]),
    row("a table of folders and images in them", files("scans/p{1,2}/{0..2}.jpg", {"labels.csv": "patient,slice,finding\n" + "".join(f"p{i},{j}.jpg,{('ill', 'well')[(i + j) % 2]}\n" for i in (1, 2) for j in range(3))}), right=[refused("'0.jpg' in 'labels.csv' may be .* Write the folder before the name")]),
    row("a number for a missing label", files("images/{0..3}.jpg", {"labels.csv": "file,age\n0.jpg,1.5\n1.jpg,-999\n2.jpg,7\n3.jpg,8\n"}), right=[noted("'-999' in 'age' counts like the others. If that says")]),
    row("a table of folders and several labels of each", files(PATIENTS, {"labels.csv": "patient,a,b\np1,0,1\np2,1,1\np3,0,0\n"}), right=[noted("labels.csv")]),
    row("a table of folders that may be classes", files("{cat,dog,bus}/a{0..3}.jpg", {"classes.csv": "name,kind\ncat,pet\ndog,pet\nbus,vehicle\n"}), right=[noted('image_folder')]),
    row("a table of more folders than there are", files(PATIENTS, {"labels.csv": "case,grade\n" + "".join(f"p{i},{i % 2}\n" for i in range(1, 6))}), right=[noted("first 'p4'")]),
    row("tables of folders for each split", files("train/p{1..4}/a{0..1}.jpg test/p{5..6}/b{0..1}.jpg", {"train.csv": "patient,grade\np1,0\np2,1\np3,0\np4,1\n", "test.csv": "patient,grade\np5,0\np6,1\n"}),
        right=[found("train: 0 4, 1 4; test: 0 2, 1 2")]),
    row("a table of folders and a number of each", files(PATIENTS, {"labels.csv": "patient,age\np1,31.5\np2,44\np3,8\n"}), right=[noted("labels.csv")]),
    row("a table of folders and a number of each, by name", files(PATIENTS, {"labels.csv": "patient,age\np1,31.5\np2,44\np3,8\n"}), layout="table", right=[found("train: 8.0 2, 31.5 2, 44.0 2")]),
    row("a table of classes and their kinds", files("{cat,dog,bus}/a{0..3}.jpg", {"classes.csv": "id,name,kind\n0,cat,pet\n1,dog,pet\n2,bus,vehicle\n"}), right=[found("train: bus 4, cat 4, dog 4")]),
    *(row(f"class folders and {name}", files(CLASSES, {name: content}), right=[refused(".")]) for name, content in WRITTEN.items()),
    *(row(f"class folders and {name} of {content!r}", files(CLASSES, {name: content}), right=[found("train: cat 4, dog 4")])
      for name, content in [("labels.txt", "cat\ndog\n"), ("class_to_idx.json", {"cat": 0, "dog": 1}), ("{cat,dog}/data.log", "fine\n")]),
    *(row(f"class folders and {name} of {content!r}", files(CLASSES, {name: content}), right=[noted(name)])
      for name, content in [("classes.txt", "dog\ncat\n"), ("labels.txt", "Katze\nHund\n"), ("class_to_idx.json", {"dog": 0, "cat": 1}), ("classes.csv", "class_id,class\n0,dog\n1,cat\n")]),
    row("lists of splits that name nothing", pairs("images/{}.png", "masks/{}.png") | {"train.txt": b"1_0\n1_1\n2_0\n", "val.txt": b"3_0\n"}, right=[
        found("train: 6 masks.*", note=r"'train\.txt', 'val\.txt'")]),
    *(row(f"labels of folders in JSON: {name}", files(PATIENTS, {"labels.json": content}), right=[refused("labels.json")])
      for name, content in [("in a line", {"p1": 0, "p2": 1, "p3": 0}), ("in lines", '{\n"p1": "ill",\n"p2": "well",\n"p3": "ill"\n}'), ("items", [["p1", 0], ["p2", 1], ["p3", 0]])]),
    *(row(f"names of numbered classes: {name}", {**made, **files("", {name: content})}, right=[noted(name)])
      for made, name, content in [
          (files("{1,2,3}/a{0..3}.jpg"), "cat_to_name.json", {"1": "rose", "2": "lily", "3": "tulip"}),
          (files("images/{0..7}.jpg", {"train.csv": NAMED_BY_NUMBER}), "signnames.csv", "ClassId,SignName\n0,stop\n1,yield\n"), (files("", {"d.npz": npz(x=np.ones((8, 8)), y=np.array(Y))}), "class_names.txt", "cat\ndog\n")]),
    *(row(f"a list of files in folders of classes and {name}", files(CLASSES, {"index.csv": "".join(f"{('cat', 'dog')[n % 2]}/{n // 2}.jpg {said}\n" for n, said in enumerate(column))}), right=[right])
      for name, column, right in [("their sizes, two of which are alike", (11, 11, 12, 13, 14, 15, 16, 17), found("train: cat 4, dog 4")), ("a word that divides them otherwise", "aabbaabb", refused("index.csv"))]),
    *(row(f"labels and their texts: {name}", files("", {"a.tar": tar({f"{i}.{end}": content for i, (label, text) in enumerate(pairs) for end, content in
        (("png", image(i)), ("json", f'{{"label": {label}, "class_name": "{text}"}}'.encode()))})}), right=[right])
      for name, pairs, right in [
          ("crossing", [(0, "a"), (1, "b"), (1, "a"), (0, "b")] * 2, refused("divide")), ("the same", [(0, "a"), (1, "b")] * 4, found("train: a 4, b 4")),
          ("finer texts", [(0, "a"), (1, "b"), (0, "c")] * 4, found("train: 0 8, 1 4")), ("captions", [(i % 2, f"caption {i % 7}") for i in range(8)], found("train: 0 4, 1 4"))]),
]

SECOND = [found("train: 6 masks with 368 pixels"), refused("_1|mask2|_2")]
MASKS = [
    *(row(f"one picture in two formats: {names}", files(f"{names}.jpg {names}.png"), right=[refused(r"one picture in two formats; take one: only='\*\*/\*\.jpg' or only='\*\*/\*\.png'")]) for names in ("{0..3}", "{cat,dog}/{0..3}")),
    row("an image and its mask in two formats", files("{0..3}.jpg", {"{0..3}.png": grey(np.eye(48, 64, dtype=np.uint8))}), right=[found("train: 4 masks .*")]),
    *(row(f"masks in folders {there}", pairs(images, there), right=[right])
      for images, there, right in [
          ("img_dir/train/{}.jpg", "ann_dir/train/{}.png", found("train: 6 masks .*")), ("d/img/{}.jpg", "d/ann/{}.png", found("train: 6 masks .*")),
          ("train/sat/{}_sat.jpg", "train/map/{}_map.png", refused(r"layout=parts\(x='sat', y='map'\)"))]),
    *(row(f"names of all classes: {more}", files(f"{{cat,dog}}/{{0..3}}.jpg {{cat,dog}}/{more}{{0..3}}.jpg"), right=[right])
      for more, right in [("flip_", found("train: cat 8, dog 8")), ("thumbs/", refused("parts of"))]),
    row("an image and the mask of another one", {"images/foo.png": image(1, size=(16, 16)), "masks/bar.png": DIAGONAL}, layout=parts(x="images", y="masks"), right=[refused("foo.png")]),
    *(row(f"VOC's masks, layout {name}", VOC2012, layout=layout, right=[found("train: 4 masks .*; val: 2 masks .*"), noted(r"val\.txt")])
      for name, layout in [("pairs", "pairs"), ("image_masks", image_masks("SegmentationClass"))]),
    *(row(f"masks in two formats: {each}", {place: content for form, kind in (("png", "PNG"), ("tif", "TIFF")) for i in range(1, 5) for place, content in
        ((each.format("Original", form, i), image(i, form=kind, size=(16, 16))), (each.format("Ground Truth", form, i), stripes(slice(1, 4))))}, right=[refused(r"only='\*\*/png' or")])
      for each in ("{1}/{0}/{2}.{1}", "{0}/{1}/{2}.{1}")),
    row("a second mask in two folders", masks("images/scan{}.png", "masks/scan{}_mask.png", "masks/scan{}_mask2.png"), layout="pairs", right=SECOND),
    row("masks with more values than names", pairs("img/{}.png", "masks/{}.png") | files("", {"codes.txt": "sky\n"}), right=[noted("up to 1, and 1 class is named")]),
    row("masks of another ending", pairs("img/{}.png", "img/{}_mask.png") | {f"img/{i}_edge.png": DIAGONAL for i in range(6)}, right=[refused("0_edge.png.*image_masks")]),
    row("images beside an array for each sample", {f"{one}/{i}.{end}": made for one in ("cat", "dog") for i in range(6) for end, made in (("png", DIAGONAL), ("npy", npy(np.zeros(5))))}, right=[refused("cat/0.png")]),
    row("arrays with two lists of classes", {f"{split}.npz": npz(x=np.arange(8.0), y=np.arange(8) % 2, classes=np.array(names)) for split, names in (("train", ["cat", "dog"]), ("test", ["dog", "cat"]))}, right=[refused("test.npz/classes.*train.npz/classes")]),
    *(row(f"words, and a list of {name}", {"d.npz": npz(x=np.arange(8.0), y=np.array(["cat", "dog", "dog", "dog"] * 2), class_names=np.array(names))}, right=[right])
      for name, names, right in (("another order", ["dog", "cat"], found(r"train: dog 6, cat 2 \(float64\)")), ("more", ["ant", "cat", "dog"], found(r"train: cat 2, dog 6 \(float64\)")), ("others", ["a", "b"], refused("d.npz/class_names")))),
    row("more numbers than classes", {"d.npz": npz(x=np.arange(8.0), y=np.eye(4)[np.arange(8) % 4], class_names=np.array(["cat", "dog"]))}, right=[refused("4 numbers")]),
    row("labels below 0 beside names", {"d.npz": npz(x=np.arange(8.0), y=np.array([0, 1, 0, -1] * 2), class_names=np.array(["cat", "dog"]))}, right=[noted("2 of 8 labels are below 0")]),
    row("arrays in x and y", {f"{one}/{i}.npy": npy(np.zeros((4, 4))) for one in "xy" for i in range(6)}, right=[refused("numpy.stack")]),
    *(row(f"image_masks({name!r})", pairs(images, labels), layout=image_masks(name), right=[found("train: 6 masks with 96 pixels")])
      for images, labels, name in [
          ("original_images/00{}.jpg", "label_images_semantic/00{}.png", "label_images_semantic"), ("images/{}.png", "vessels/{}.png", "vessels"),
          ("images/{}.png", "1st_manual/{}.png", "1st_manual"), ("scan{}.png", "scan{}_mask_1.png", "_mask_1"), ("scan{}.png", "scan{}_lesion.png", "_lesion")]),
]



def in_palettes(*palettes: str) -> dict[str, bytes]:
    """Images and masks of 0 and 1 whose palettes alternate; in "kw", each letter is a colour."""
    made: dict[str, bytes] = {}
    for i in range(4):
        picture, buffer = Image.fromarray(np.eye(16, dtype=np.uint8)), io.BytesIO()
        colours = {"k": [0, 0, 0], "w": [255, 255, 255], "r": [255, 0, 0], "g": [0, 255, 0]}
        picture.putpalette([part for letter in palettes[i % len(palettes)] for part in colours[letter]])
        picture.save(buffer, "PNG")
        made |= {f"images/{i}.png": image(i, size=(16, 16)), f"masks/{i}.png": buffer.getvalue()}
    return made


def tiff(pixels: Any, pages: int = 1) -> bytes:
    page = Image.fromarray(pixels)
    return encode(page, "TIFF", save_all=True, append_images=[page] * (pages - 1))


def as_masks(*pixels: Any, write: Callable[[Any], bytes] = grey) -> dict[str, bytes]:
    """Four images, and masks whose pixels alternate."""
    return {f"images/{i}.png": image(i, size=(16, 16)) for i in range(4)} | {f"masks/{i}.{'tif' if write is tiff else 'png'}": write(pixels[i % len(pixels)]) for i in range(4)}


EYE = np.eye(16, dtype=np.uint8)
OF_64 = "train: 4 masks with 64 pixels"
LAYERS = [Image.fromarray(np.full((48, 64), number, np.uint8)) for number in range(3)]
VALUES = [
    row("images of several pages", {f"{'ab'[i % 2]}/{i}.tif": encode(LAYERS[0], "TIFF", save_all=True, append_images=LAYERS[1:]) for i in range(4)}, right=[noted(r"4 images have several frames or pages .*: the first of each counts; items \(x, y\) of a dataset object may hold all")]),
    row("palettes: one number, two colours", in_palettes("kr", "kg"), right=[noted(r"masks/1\.png.*class_dict")]),
    row("palettes: 0 is white, 1 black", in_palettes("wk"), right=[noted(r"masks/0\.png.*class_dict")]),
    *(row(f"palettes: {name} beside images called as its numbers", in_palettes("kr", "kg") | {name: text.encode()}, right=[found("train: 4 masks with 32 pixels" if "rgb" in name else OF_64)])
      for name, text in [("rgb/class_dict.csv", "name,r,g,b\nnone,0,0,0\nred,255,0,0\ngreen,0,255,0\n"), ("_classes.csv", "Pixel Value, Class\n0, none\n1, some\n")]),
    row("palettes: one for all", in_palettes("kr"), right=[lambda packed: packed.found == OF_64 and not packed.notes]),
    row("palettes: of some masks alone", in_palettes("kr") | {"masks/0.png": grey(EYE)}, right=[lambda packed: packed.found == OF_64 and not packed.notes]),
    row("a class, and a foreground of 255", as_masks(EYE * 2, EYE * 255), right=[noted(r"255.*masks/1\.png")]),
    row("classes, and no class of 255", as_masks(EYE * 2 + np.diag([np.uint8(255)] * 8, 8), np.pad(EYE[:2, :2] * 255, (0, 14))), right=[lambda packed: not packed.refusal and not noted("255")(packed)]),
    row("a foreground of half", as_masks(EYE * 128), right=[refused(r"masks/.\.png.*shades")]),
    row("masks of two pages", as_masks(EYE, write=lambda pixels: tiff(pixels, pages=2)), right=[refused(r"masks/.*pages")]),
    row("masks of whole floats", as_masks(EYE.astype(np.float32), write=tiff), right=[found(OF_64)]),
    row("masks of probabilities", as_masks(EYE * np.float32(0.7), write=tiff), right=[refused(r"masks/.\.tif.*float32")]),
    row("masks of floats above 255", as_masks(EYE * np.float32(300), write=tiff), right=[refused(r"masks/.\.tif.*300")]),
    *(row(f"images of 32 bits up to {most}", {f"{name}/{i}.tif": tiff(np.full((8, 8), most - i, np.int32)) for name in "ab" for i in range(2)}, color_mode="keep", right=[right])
      for most, right in [(2**24, found(".*float32.*")), (2**30 + 9, refused(r"\.tif.*float32"))]),
]

LABELLED = "".join(f"im{i}.jpg {('cat', 'dog')[i % 2]}\n" for i in range(6))
OF_PARTS = [
    *(row(f"{masks} beside {images}", files(f"{images}/p{{0..5}}.png {masks}/{{6..9}}.png"), right=[refused(rf"only='{images}'.*a function", but_not="parts\\(")])
      for images, masks in [("img", "gt"), ("val2017", "panoptic_val2017"), ("photos", "masks"), ("images", "masks")]),
    row("masks called by other letters than images", pairs("images/img00{}.jpg", "masks/msk00{}.png"), layout=parts(x="images", y="masks"), right=[found("train: 6 masks .*")]),
]

# Texts with comments, and with names without extensions.
TEXTS_BESIDE = [
    *(row(f"a list of labels {name}", files("im{0..5}.jpg", {file: text}), right=[right])
      for name, file, text, right in [
          ("below a comment", "labels.txt", "# file label\n" + LABELLED, found("train: cat 3, dog 3")),
          ("below two comments", "labels.txt", "# made by hand\n#file label\n" + LABELLED, found("train: cat 3, dog 3")),
          ("below a comment, with tabs", "labels.txt", "# file\tlabel\n" + LABELLED.replace(" ", "\t"), found("train: cat 3, dog 3")),
          ("with a comment in it", "labels.txt", LABELLED.replace("im3", "# checked to here\nim3"), found("train: cat 3, dog 3")),
          ("of names without endings", "labels.txt", LABELLED.replace(".jpg", ""), found("train: cat 3, dog 3")),
          ("of names without endings, one of them elsewhere", "labels.txt", LABELLED.replace(".jpg", "") + "im9 cat\n", refused("labels.txt"))]),
    *(row(f"folds in {name}", made, right=[found("train: .*")]) for name, made in [
        (".npz", files("", {"d.npz": npz(x=np.ones((6, 4)), y=np.arange(6) % 2, fold=np.arange(6) % 3)})),
        ("a table", table("file,label,fold", "{i}.jpg,{c},{i}"))]),
]

# Folders of images, of their masks, and of the bands of one sample.
PARTS = [
    row(f"parts of a sample: {name}", files(names), right=[refused(folder), found("[^:]*: [0-9]+ (without targets|masks).*")])
    for name, names, folder in [
        ("LEVIR-CD", "{train,val}/{A,B,label}/{0..4}.png", "label"),
        ("Semantic Drone", "dataset/semantic_drone_dataset/{original_images,label_images_semantic}/00{0..4}.jpg RGB_color_image_masks/RGB_color_image_masks/00{0..4}.png", "RGB_color_image_masks"),
        ("Montgomery", "CXR_png/MCUCXR_000{0..4}_0.png ManualMask/{left,right}Mask/MCUCXR_000{0..4}_0.png", "ManualMask"),
        ("Potsdam", "2_Ortho_RGB/top_potsdam_2_{0..4}_RGB.tif 5_Labels_all/top_potsdam_2_{0..4}_label.tif", "5_Labels_all"),
        ("38-Cloud", " ".join(f"train_{band}/{band}_patch_{{0..4}}.tif" for band in ("red", "green", "blue", "nir", "gt")), "train_gt"),
        ("CelebAMask-HQ", "CelebA-HQ-img/{0..4}.jpg CelebAMask-HQ-mask-anno/0/0000{0..4}_{hair,skin}.png", "mask-anno.*: a function"),
        ("LOL", "our485/{low,high}/{0..4}.png", "high"),
        ("SYSU-CD", "{train,val}/{time1,time2,label}/0000{0..4}.png", r"parts\(x='time1', y='label'\)"),
        ("CDD", "{train,val}/{A,B,OUT}/0000{0..4}.jpg", r"parts\(x='A', y='OUT'\)"),
        ("years and a change", "{2016,2018,change}/{0..4}.png", r"parts\(x='2016', y='change'\)"),
        ("before and after", "{pre,post,target}/{0..4}.png", "target"),
        ("SIDD", "Data/000{1..2}_001_S6_3200_L/{GT,NOISY}_SRGB_010.PNG", "GT_SRGB_010.*function"),
        ("SIDD, medium", "Data/000{1..3}_001_S6_3200_L/1_{GT,NOISY}_SRGB_01{0,1}.PNG", "NOISY_SRGB_01"),
        ("CamVid in colours", "frames/0001TP_{0..4}.png labels_color/0001TP_{0..4}.png", "labels_color"),
    ]
]

NO_PARTS = [
    row(f"no parts of a sample: {name}", files(names), right=[found(classes)])
    for name, names, classes in [
        ("levels and a word", "{stage1,stage2,normal}/{0..4}.jpg", "train: normal 5, stage1 5, stage2 5"),
        ("things that are worn", "{mask,helmet,gloves}/{0..4}.jpg", "train: gloves 5, helmet 5, mask 5"),
        ("copies called after their class", "cat/cat_{0..2}_{flip,rot}.jpg dog/dog_{0..2}_{flip,rot}.jpg", "train: cat 6, dog 6"),
    ]
]
PICTURES_AS_MASKS = row("shades of a picture as masks", files("images/{0..3}.png", {f"masks/{i}.png": grey(np.random.default_rng(i).integers(0, 200, (48, 64), np.uint8)) for i in range(4)}), right=[noted("change from pixel to pixel in 'masks/0.png'.*y a numpy array")])
EACH_IN_A_FOLDER = [
    row(name, {f"{i:04}/{one}": image(i, size=(16, 16)) for i in range(6) for one in images} | {f"{i:04}/{mask}": DIAGONAL for i in range(6)},
        right=[found("train: 6 masks with 96 pixels")])
    for name, images, mask in [("an image and its mask in each folder", ["image.png"], "mask.png"), ("LabelMe's folders", ["img.png", "label_viz.png"], "label.png")]
]
CLIPS = [
    *(row(f"{what} in folders of classes beside a table of {name}", files("", {**{f"{one}/{one}{i}.{end}": content for one in ("no", "yes") for i in range(4)}, "l.csv": "file,label\n" + "".join(f"{one}{i}.{end},{cells[one == 'yes'][i]}\n" for one in ("no", "yes") for i in range(4))}), right=[right], layout=chosen, only=only)
      for what, end, content, layout, ways in [("clips", "wav", wav(), audio_clips(labels=["label"]), r"only='\*\*/\*\.wav' or layout=audio_clips\(labels="), ("arrays", "npy", npy(np.ones((4, 5))), table_rows(labels=["label"]), r"only='\*\*/\*\.npy' or layout=table_rows\(labels=")]
      for name, cells, chosen, only, right in [
          ("the same", ("aaaa", "bbbb"), "auto", None, found("train: a 4, b 4.*")), ("finer classes", ("aabb", "ccdd"), "auto", None, found("train: a 2, b 2, c 2, d 2.*")),
          ("others", ("xxyy", "xyxy"), "auto", None, refused(rf"'l\.csv' and by folders.*{ways}")), ("lengths", ("1234", "5678"), "auto", None, refused("'l.csv' and by folders")),
          ("others, and the kind chosen", ("xxyy", "xyxy"), {"wav": "audio", "npy": "array_folder"}[end], None, refused(rf"'l\.csv' and by folders.*{ways}")),
          ("others, chosen", ("xxyy", "xyxy"), layout, None, found("train: x 4, y 4.*")), ("others, left out", ("xxyy", "xyxy"), "auto", f"**/*.{end}", found("train: no 4, yes 4.*"))]),
    row("arrays, one in each file, and a table of their labels", files("", {**{f"train/{i}/a{i}.npy": npy(np.full((4, 5), i)) for i in range(6)}, "labels.csv": "id,target\n" + "".join(f"a{i},{i % 2}\n" for i in range(6))}), right=[found("train: 0 3, 1 3.*")]),
    row("arrays in folders of patients, and their table", files("", {f"p{i}/{j}.npy": npy(np.ones((4, 5))) for i in range(4) for j in range(3)} | {"participants.csv": "participant_id,group\n" + "".join(f"p{i},{'ab'[i % 2]}\n" for i in range(4))}), right=[found("train: a 6, b 6 .*", note="'participant_id' stay in one split")]),
    row("arrays in folders of classes, and facts about these", files("", {f"{one}/{j}.npy": npy(np.ones((4, 5))) for one in ("walk", "run") for j in range(3)} | {"speeds.csv": "activity,speed\nwalk,5\nrun,9\n"}), right=[found("train: run 3, walk 3 .*")]),
    row("arrays and two columns of their targets", files("", {**{f"x/a{i}.npy": npy(np.full((4, 5), i)) for i in range(6)}, "t.csv": "file,age,weight,name\n" + "".join(f"a{i}.npy,{i},{i / 2},n{i}\n" for i in range(6))}), layout=table_rows(labels=["age", "weight"]), right=[found(r"train: 6 rows with targets of \(2,\).*")]),
    *(row(f"texts with commas between bars, {what}", files("", {**{f"s{i % 2}/a{i}.wav": wav() for i in range(4)}, "metadata.csv": "".join(f"s{i % 2}/a{i}|Of {i}, and{', or' * i}, more|{label}\n" for i, label in enumerate(labels))}), right=[right])
      for what, labels, right in [("and classes", "ccdd", found("train: c 2, d 2.*")), ("and no more", ["A, b", "B, c, d", "C", "D"], refused("'metadata.csv' leads to the clips"))]),
    row("clips of one name in each class", {f"{one}/{name}.wav": wav() for one in "ab" for name in ("x", "y", "z")}, right=[refused(r"audio_clips\(pattern=", but_not="mask")]),
    *(row(f"classes in the names of clips: {name}", files("", dict.fromkeys(names.split(), wav())), right=[right], layout=layout)
    for name, names, right, layout in [
        ("FSDD", "recordings/{0..2}_{jackson,theo}_{0,1}.wav", refused(r"audio_clips\(pattern=PATTERN\)"), "auto"),
        ("FSDD, followed", "recordings/{0..2}_{jackson,theo}_{0,1}.wav", found("train: 0 4, 1 4, 2 4 .*"), audio_clips(pattern=r"(?:^|/)(?:[^/ _.-]+[ _.-]+){0}([^/ _.-]+)[^/]*$")),
        ("CREMA-D, followed", "AudioWAV/100{1..3}_{DFA,IEO}_{ANG,SAD}_XX.wav", found("train: ANG 6, SAD 6 .*"), audio_clips(pattern="_([A-Z]{3})_XX")),
        ("AudioMNIST", "data/01/{0..2}_01_{0,1}.wav data/02/{0..2}_02_{0,1}.wav", refused(r"begin with '0', '1', '2'.*audio_clips\(pattern=r"), "auto"),
    ]),
]
PATHS_BESIDE = [
    row(f"a table of images and masks: {header}", files("img/x{0..5}.png", {f"msk/q{i}.png": grey(np.full((48, 64), i, np.uint8)) for i in range(6)} | {"pairs.csv": "\n".join([header, *(f"img/x{i}.png,msk/q{i}.png" for i in range(6))])}),
        right=[found("train: 6 masks .*")])
    for header in ("image,mask", "image_path,mask_path", "image,label", "file_name,mask_file_name")
]

PATHS_BESIDE += [
    row("a table that pairs others than the names", files("images/{0..3}.png", {f"masks/{i}.png": grey(EYE) for i in range(4)} | {"pairs.csv": "image,mask\n" + "".join(f"images/{i}.png,masks/{3 - i}.png\n" for i in range(4))}), right=[refused(r"pairs\.csv.*masks/3\.png.*images/0\.png")]),
]

# As well-known datasets have them.
FIVE = "{}/images/{{1..3}}_a.jpg {}/images/{{4,5}}_a.jpg"
AS_PUBLISHED = [
    row("splits in longer names of folders: boxes", files(FIVE.format("bus_train", "bus_val"), {"bus_{train,val}/labels/{1..5}_a.txt": first_of(0)}), right=[found("train: boxes 0 3; val: boxes 0 2")]),
    row("splits in longer names of folders: a table", files("pets_train/{1..3}a.jpg pets_test/{4,5}a.jpg", {"labels.csv": "path,label\n1a.jpg,cat\n2a.jpg,dog\n3a.jpg,cat\n4a.jpg,cat\n5a.jpg,dog\n"}), right=[found("train: cat 2, dog 1; test: cat 1, dog 1")]),
    row("splits in longer names of folders: masks", files(FIVE.format("uavid_train", "uavid_val"), {"uavid_train/labels/{1..3}_a.png": DIAGONAL, "uavid_val/labels/{4,5}_a.png": DIAGONAL} | {f"uavid_{split}/images/{i}_a.jpg": image(i, size=(16, 16)) for split, numbers in (("train", (1, 2, 3)), ("val", (4, 5))) for i in numbers}), right=[found("train: 3 masks.*; val: 2 masks.*")]),
    row("two kinds of masks beside images", files(" ".join(f"{split}/images/P{{{n}}}.png {split}/Semantic_masks/P{{{n}}}_c.png {split}/Instance_masks/P{{{n}}}_i.png" for split, n in (("train", "0..2"), ("val", "3..5")))), right=[refused(r"parts\(x='images', y='Semantic_masks'\)")]),
    row("ground truth in a long name", files("top/top_area{1..5}.jpg ISPRS_ground_truth_COMPLETE/top_area{1..5}.png"), right=[refused(r"parts\(x='top', y='ISPRS_ground_truth_COMPLETE'\)")]),
    row("masks of test images alone", files("candle/train/good/{0..3}.jpg candle/test/{good,bad}/{4,5}.jpg candle/ground_truth/bad/{4,5}.png"), right=[refused("ground_truth")]),
    row("a.png beside a.jpg, in classes", files("MT_{Free,Fray}/Imgs/e{1..3}.jpg MT_{Free,Fray}/Imgs/e{1..3}.png"), right=[refused(r"e1\.png")]),
    row("a mask called by one more word", files("v/f_{0..2}_endo.png v/f_{0..2}_endo_mask.png v/f_{0..2}_endo_color_mask.png"), right=[refused("color_mask")]),
    row("landmarks beside images in folders", files("{indoor,outdoor}/f{0..2}.png", {"{indoor,outdoor}/f{0..2}.pts": "n_points: 68\n"}), right=[refused(r"\.pts")]),
    row("a table and its images, of two splits by their names", files("validation_data/{1..4}.bmp training_data/{all,hem}/{5..8}.bmp", {"validation_data/test_labels.csv": "name,label\n1.bmp,1\n2.bmp,0\n3.bmp,1\n4.bmp,0\n"}), right=[refused("test_labels.csv")]),
    row("boxes of a few, folders of classes of most", files("a/JPEGImages/b{0,1}.jpg c/{TRAIN,TEST}/{EOS,LYM}/d{0..2}.jpg", {"a/Annotations/b{0,1}.xml": VOC.format("b")}), right=[refused("folders like classes")]),
    row("boxes in rows, the classes exchanged", files("img/{0,1}.jpg", {f"img/{i}.xml": VOC.format("ab"[i]) for i in range(2)} | {"boxes.csv": "file,label,xmin,ymin,xmax,ymax\n0.jpg,b,5,6,40,30\n1.jpg,a,5,6,40,30\n"}), right=[refused("by 'boxes.csv'")]),
    row("tokens of a split, too few for a row", {"train.txt": b"a line of text\n" * 200, "val.txt": b"a line of text\n" * 20}, right=[refused("split 'val'.*too few")]),
]

_MVTEC = files("{bottle,cable}/train/good/{0..2}.png {bottle,cable}/test/{good,broken}/{3..5}.png", {f"{one}/ground_truth/broken/{i}_mask.png": DIAGONAL for one in ("bottle", "cable") for i in (3, 4, 5)})
_LLVIP = files("L/{visible,infrared}/train/{1..3}.jpg L/{visible,infrared}/test/{4,5}.jpg", {"L/Annotations/{1..5}.xml": VOC})
_DSB = files("s/{a,b,c}/images/i{1..2}.png", {f"s/{one}/masks/m{i}.png": DIAGONAL for one in "abc" for i in (1, 2)})
# Line by line, as a person writes them, to the end.
FOLLOWED = [
    row(f"{name}, followed: {only}", made, right=[right], only=only)
    for name, made, only, right in [
        ("MVTec AD", _MVTEC, None, refused("only='bottle'")),
        ("MVTec AD", _MVTEC, "bottle", refused(r"only=\['bottle/test', 'bottle/train'\]")),
        ("MVTec AD", _MVTEC, ["bottle/test", "bottle/train"], found("train: good 3; test: broken 3, good 3")),
        ("LLVIP", _LLVIP, None, refused(r"only=\['L/infrared', 'L/Annotations'\]")),
        ("LLVIP", _LLVIP, ["L/infrared", "L/Annotations"], found("train: boxes cat 3; test: boxes cat 2")),
        ("DSB 2018", _DSB, None, refused("a function as layout=", but_not=r"file_names\(r")),
    ]
]

DEEP, GREY = deep(png, "png", 3), deep(lambda x: grey(x[..., 0]), "png", 1)
OF_16_BITS: list[tuple[str, dict[str, bytes], dict[str, Any], Callable[[Packed], bool]]] = [
    ("colour, resized", DEEP, {"image_size": 8}, noted("16 bits")), ("colour, as files", DEEP, {"encoding": "encoded"}, noted("16 bits")),
    ("colour, prepared", DEEP, {"prepare": np.asarray}, refused("16 bits")),
    ("colour, PPM", deep(lambda x: b"P6 16 16 65535\n" + x.astype(">u2").tobytes(), "ppm", 3), {"color_mode": "keep"}, refused("16 bits")),
    ("grey, resized", GREY, {"image_size": 8}, noted("16 bits")),
    ("grey, JPEG 2000", deep(jpeg_2000, "jp2", 1), {"image_size": 8}, noted("16 bits")),
    ("grey, JPEG 2000, kept", deep(jpeg_2000, "jp2", 1), {"color_mode": "keep"}, found(r"train: a 1, b 1 \(uint16\)")),
    ("none, JPEG 2000", deep(lambda x: jpeg_2000((x >> 8).astype(np.uint8)), "jp2", 1), {}, lambda packed: not noted("16 bits")(packed)),
]
PIXELS = [
    *(row(f"tables of pixels of one name and length: {name}", files("", {f"{one}/train.csv": "label," + ",".join(f"pixel{i}" for i in range(16)) + "\n" + ("1," + ",".join(cell * 16) + "\n") * 4 for one, cell in zip("ab", cells, strict=True)}), right=[found(f"train: 1 {count}.*")])
      for name, cells, count in [("others", "35", 8), ("copies", "33", 4)]),
    *(row(f"16 bits of colour: {name}, {mode}", made, color_mode=mode, right=[noted("16 bits") if mode == "auto" else found(r".*\(uint16\)"), refused("16 bits")])
      for name, made in [("PNG", deep(png, "png", 3)), ("TIFF", deep(tiff16, "tif", 3)), ("four channels", deep(png, "png", 4))] for mode in ("auto", "keep")),
    *(row(f"16 bits of {what}", made, right=[right], **options) for what, made, options, right in OF_16_BITS),
    # The first rows, of one class, look like rows whose first pixel is the class.
    row("pixels without a header, sorted by the class in the last column", files("", {"t.csv": "\n".join(",".join(map(str, [*pixels, n // 100])) for n, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (300, 784)).tolist())) + "\n"}), right=[refused("no header.*which column is the class")]),
]

NAMED = {  # labels beside one array, as people save them
    "y.csv": "\n".join(map(str, Y)), "labels.csv": NAMED_BY_NUMBER, "labels.txt": "\n".join(map(str, Y)),
    "labels.json": Y, "y.pkl": pickle.dumps(Y),
}
SMALL = np.arange(4 * 8 * 6 * 3, dtype=np.uint8).reshape(4, 8, 6, 3)
FROM_ONE = [found("train: 0 4, 1 4, 2 4"), noted("stay the numbers")]
ONE_EACH = [found("train: 6 .*"), refused(".", but_not=r"array_rows\(x='NAME'")]
TYPED = h5py.enum_dtype({"dog": 1, "cat": 0}, basetype="u1")
TABULAR = np.zeros(8, [("x", "f4", (4,)), ("y", "i8")])
ARRAYS = [
    *(row(f"names of classes {where}", lambda made=made: {"d.h5": named_labels(**made)}, right=[right])  # type: ignore[misc]
      for where, made, right in list[Any]([
          ("in the type of labels", {"kind": TYPED}, found("train: cat 4, dog 4.*")), ("in an attribute", {"class_names": ["cat", "dog"]}, found("train: cat 4, dog 4.*")),
          ("in the file's attribute", {"of_file": {"classes": np.array([b"cat", b"dog"])}}, found("train: cat 4, dog 4.*")), ("in two attributes that differ", {"classes": ["a", "b"], "of_file": {"classes": ["b", "a"]}}, refused("d.h5/classes")),
          ("in a type with a gap", {"kind": h5py.enum_dtype({"cat": 0, "dog": 1, "fox": 3}, basetype="u1")}, found("train: cat 4, dog 4.*"))])),
    row("names of classes in the type of other labels too", files("", {"d.h5": h5(x=np.ones((8, 4)), fine=np.array(Y, TYPED), coarse=np.array(Y, h5py.enum_dtype({"a": 0, "b": 1})), class_names=np.array([b"b", b"a"]))}), right=[found("train: cat 4, dog 4.*")], layout=array_rows(x="x", y="fine")),
    row("names of classes in the type of inputs", files("", {"d.h5": h5(x=np.zeros((8, 4), TYPED), y=np.array(Y))}), right=[found("train: 0 4, 1 4.*")]),
    *(row(f"a list of two classes beside {what}, in two splits", files("", {"d.h5": h5(x=np.ones((8, 4)), y=y, class_names=np.array([b"a", b"b"]))}), right=[found("train: .*; val: .*")], layout="arrays", splits={"train": 0.5, "val": 0.5})
      for what, y in {"fractions": np.arange(8) * 0.3, "a label more": np.array([0] * 7 + [2])}.items()),
    row("a compound dataset", files("", {"d.h5": h5(rows=TABULAR)}), right=[refused(r"h5py.File\('FOLDER/d.h5'\)\['/rows'\], then numpy.savez")]),
    row("tokens, their mask and labels", files("", {"d.h5": h5(input_ids=np.ones((8, 5), int), attention_mask=np.ones((8, 5), int), labels=np.array(Y))}), right=[refused("input_ids.*array_rows")]),
    *(row(f"numbers that a file says are packed: {name}", files("", {"d.h5": h5_with(attributes)}), right=[right])
      for name, attributes, right in list[Any]([
          ("scale and offset", {"scale_factor": 0.01, "add_offset": np.array([273.15])}, noted("'d.h5/x' is kept as it is stored.*xarray.*scale_factor 0.01, add_offset 273.15")), ("a number for none", {"_FillValue": -9999.0}, noted("_FillValue -9999")),
          ("by 1, and NaN for none", {"scale_factor": 1.0, "add_offset": 0, "_FillValue": np.nan, "missing_value": "none"}, lambda packed: packed.found and not noted("xarray")(packed))])),
    row("arrays of embeddings beside inputs", {"d.npz": npz(x=np.ones((8, 4)), y=np.array(Y), embedding_matrix=np.ones((20, 9)))}, right=[found("train: 0 4, 1 4.*", note="embedding_matrix")]),
    row("simulations in files of their own", {f"run_{n}.h5": h5(density=np.ones((4, 8), np.float32), time=np.linspace(0, 1, 4)) for n in range(9)}, right=[refused("Which of the arrays 'density', 'time' in 9 files")]),
    row("names of inputs and targets in each split", {f"{one}_objects.h5": h5(data=np.ones((4, 8)), label=np.arange(4) % 2, mask=np.ones((4, 8))) for one in ("training", "test")}, right=[found("train: 0 2, 1 2.*; test: 0 2, 1 2.*")], layout=array_rows(x="data", y="label")),
    row("arrays beside inputs in files that are called so", {f"ply_data_{one}.h5": h5(data=np.ones((4, 8, 3)), label=np.arange(4)[:, None] % 2, normal=np.ones((4, 8, 3))) for one in ("train0", "train1", "test0")}, right=[found("train: 0 4, 1 4.*; test: 0 2, 1 2.*", note="normal")]),
    *(row(f"pictures as targets, {end}", files(f"noisy/{{0..3}}.{end} clean/{{0..3}}.{end}"), layout=parts(x="noisy", y="clean"), right=[refused("no masks, give pack_dataset an object")]) for end in ("jpg", "png")),
    row("masks of nnU-Net, as advised", pairs("imagesTr/a_{0:03}_0000.png", "labelsTr/a_{0:03}.png"), layout=parts(x="imagesTr", y="labelsTr"), right=[found("train: 6 masks.*")]),
    *(row(f"axes of a grid that are called {listing}", files("", {"x.h5": h5(**axes, field=np.ones((6, 11, 16, 16)))}), right=[refused("'x.h5/x.*'x.h5/field'.*array_rows")])
      for listing, axes in [("x", {"x-coordinate": np.arange(16.0), "t-coordinate": np.arange(11.0)}), ("x and y", {"x": np.arange(16.0), "y": np.arange(16.0)})]),
    row("words as inputs", {"x.npz": npz(x=np.array(["a", "b"]), y=np.arange(2))}, right=[refused("words and dates", but_not="astype")]),
    *(row(f"an array beside {name}", files("", {"X.npy": X, name: content}), right=[noted(re.escape(name)), refused(re.escape(name)), found("train: 0 4, 1 4.*")])
      for name, content in NAMED.items()),
    row("arrays of two splits beside a table of all labels", files("", {"X_train.npy": X, "y_train.npy": npy(np.array(Y)), "X_test.npy": X, "y_test.npy": npy(np.array(Y)), "labels.csv": "label\n" + "".join(f"{'ab'[i // 4 % 2]}\n" for i in range(16))}), right=[noted("labels.csv")]),
    *(row(f"an array and its labels beside {name}", files("", {"X.npy": X, "y.npy": npy(np.array(Y)), name: content}), right=[noted(re.escape(name)), refused(re.escape(name))])
      for name, content in NAMED.items()),
    row("two images in each sample of a shard", files("", {"train-0.tar": tar({f"{i}.{end}": content for i in range(4) for end, content in (("jpg", image(i)), ("png", DIAGONAL), ("cls", str(i % 2).encode()))})}), right=[noted("png")]),
    row("labels that are missing", files("", {"x.npz": npz(X=np.ones((12, 8)), y=np.where(FROM_1 == 1, np.nan, FROM_1))}), right=[noted("4 of 12"), refused("4 of 12")]),
    row("labels from 1 in .npz", files("", {"x.npz": npz(X=np.ones((12, 8)), y=FROM_1)}), right=FROM_ONE),
    row("labels from 1 in .h5", files("", {"x.h5": h5(images=np.zeros((12, 8, 8, 3), np.uint8), labels=FROM_1)}), right=FROM_ONE),
    row("labels from 1 in shards", files("", {"train-0.tar": tar({f"{i}.{end}": content for i in range(12) for end, content in (("png", image(i)), ("cls", str(FROM_1[i]).encode()))})}),
        right=FROM_ONE),
    *(row(f"an array of splits: {name}", files("", {"x.npz": npz(X=np.ones((12, 8)), y=FROM_1 - 1, **{called: np.array(cells)})}), right=[right])
      for name, called, cells, right in [
          ("words", "split", ["train"] * 9 + ["test"] * 3, found("train: 0 3, 1 3, 2 3 .*; test: 0 1, 1 1, 2 1.*")), ("a flag", "is_valid", [False] * 9 + [True] * 3, found("train: 0 3, 1 3, 2 3 .*; valid: 0 1, 1 1, 2 1.*")),
          ("numbers", "split", [0] * 9 + [1] * 3, refused("'split'"))]),
    row("two arrays of splits that disagree", files("", {"x.npz": npz(X=np.ones((12, 8)), y=FROM_1 - 1, split=np.array(["train"] * 9 + ["test"] * 3), subset=np.array(["test"] * 3 + ["train"] * 9))}),
        right=[refused("'x.npz/subset'.*'x.npz/split'")]),
    *(row(f"rows of each split by number: {name}", files("", {"x.npz": npz(X=np.ones((12, 8)), y=FROM_1 - 1, **{name: np.arange(9), "test_idx": np.arange(9, 12)})}), right=[refused("test_idx")])
      for name in ("train_idx", "train_indices")),
    row("fewer names than classes", files("", {"x.npz": npz(X=np.ones((12, 8)), y=FROM_1 - 1, class_names=np.array(["a", "b"]))}), right=[refused("0 to 2")]),
    row("names of labels from 1", files("", {"x.npz": npz(X=np.ones((12, 8)), y=FROM_1, class_names=np.array(["a", "b", "c"]))}), right=[refused("1 to 3")]),
    row("more names than classes", files("", {"x.npz": npz(X=np.ones((12, 8)), y=FROM_1 - 1, class_names=np.array(["a", "b", "c", "d"]))}), right=[found("train: a 4, b 4, c 4.*")]),
    row("labels in an array beside images", files("images/{0..7}.jpg", {"labels.npz": npz(labels=np.array(Y))}), right=[refused("labels.npz.*table")]),
    *(row(f"{name} of {what} rows", files("", {"x.h5": h5(**{"X_train": np.ones((6, 3)), "Y_train": np.arange(6) % 2, name: empty})}), right=[refused(name)])
      for name in ("X_train", "Y_train") for what, empty in (("no", np.zeros((0, 3))), ("HDF5's null for", h5py.Empty("f4")))),
    row("no targets of the test", files("", {"x.npz": npz(x_train=np.ones((12, 8)), x_test=np.ones((12, 8)), y_train=FROM_1 - 1)}), right=[noted("12 rows of 'x.npz/x_test'")]),
    *(row(f"targets as large as resized images: {name}", files("", {"x.npz": npz(X=SMALL, y=y)}), right=[right], **dict[str, Any](options))
      for name, y, right, options in [
          ("floats", np.zeros((4, 8, 6), np.float32), refused(r"image_size=\(4, 4\).*8x6"), {"image_size": 4}), ("channels last", np.zeros((4, 8, 6, 2), np.uint8), refused("8x6x2"), {"image_size": 4}),
          ("channels first", np.zeros((4, 2, 8, 6), np.float32), refused("2x8x6"), {"image_size": 4}), ("whole numbers", np.ones((4, 8, 6), np.uint8), found("train: 4 masks with 64 pixels"), {"image_size": 4}),
          ("a heat map", np.zeros((4, 2, 2), np.float32), found(r"train: 4 rows with targets of \(2, 2\)"), {"image_size": 4}), ("not resized", np.zeros((4, 8, 6), np.float32), found(r"train: 4 rows .*"), {})]),
    row("files of rows", files("", {f"{split}{i}.npz": npz(X=np.ones((i, 8)), y=np.full(i, i % 2)) for split, count in (("train", 4), ("test", 2)) for i in range(1, count)}),
        right=[found(r"train: 0 2, 1 4.*; test: 1 1.*")]),
    row("files of rows of two lengths", files("", {f"part{i}.npz": npz(X=np.ones((4, 8 + i)), y=np.zeros(4)) for i in range(3)}), right=[refused("part")]),
    row("files of rows, other names", files("", {f"part{i}.npz": npz(X=np.ones((4, 8)), y=np.array([0, 1, 0, 1]), classes=np.array(["ab"[i], "ba"[i]])) for i in range(2)}), right=[refused("part1")]),
    row("files of rows, the same names", files("", {f"part{i}.npz": npz(X=np.ones((4, 8)), y=np.array([0, 1, 0, 1]), classes=np.array(["a", "b"])) for i in range(2)}), right=[found("train: a 4, b 4.*")]),
    row("files of rows, each of a split", files("", {f"part{i}.npz": npz(X=np.ones((4, 8)), y=np.array([0, 1, 0, 1]), split=np.array([name] * 4)) for i, name in enumerate(["train", "test"])}),
        right=[found("train: 0 2, 1 2 .*; test: 0 2, 1 2.*")]),
    *(row(f"files of rows, {name}", files("", {f"{one}{i}.npz": npz(X=np.ones((4, 8)), y=np.full(4, i)) for i in range(4)}), splits={"train": 0.5, "test": 0.5}, right=[right])
      for name, one, right in [("a patient in each", "patient_", found(r"train: \d 4, \d 4 .*; test: \d 4, \d 4 .*")), ("parts", "part-", noted(re.escape(r"group_by=r'.+\.npz' keeps")))]),
    row("files of rows, one without labels", files("", {f"part{i}.npz": npz(X=np.ones((4, 8)), **({"y": np.zeros(4)} if i else {})) for i in range(3)}), right=[refused("part")]),
    row("one .h5 for each sample", files("", {f"{part}/{name}_{i}.h5": h5(**{part: array}) for i in range(1, 7) for part, name, array in
        (("img", "image", np.full((16, 16, 14), float(i))), ("mask", "mask", np.eye(16, dtype=np.uint8)))}), right=ONE_EACH),
    row("one .npz for each sample", files("", {f"case5_slice{i}.npz": npz(image=np.full((16, 16), i, np.float32), label=np.eye(16, dtype=np.float32)) for i in range(6)}),
        right=ONE_EACH),
    row("one group of HDF5 for each sample", files("", {"x.h5": h5(**{f"img_{i}/{part}": array for i in range(6) for part, array in (("data", np.full((8, 8), i)), ("label", np.array([i % 2])))})}), right=ONE_EACH),
    row("rows of any length beside labels", files("", {"x.h5": h5(sequences=np.array([np.ones(i + 1) for i in range(6)], h5py.vlen_dtype(float)), labels=np.arange(6) % 2)}), right=[refused("'x.h5/sequences'.*dataset_h5")]),
]



def shard(*fields: str, first: int = 0, key: str = "{}") -> bytes:
    """A WebDataset shard of four samples with these files: images that differ in number and field, and labels."""
    ends = [(n, end, end.endswith(("jpg", "png"))) for n, end in enumerate(fields)]
    return tar({f"{key.format(i)}.{end}": image(9 * i + n, form="JPEG") if of_image else b"%d" % (i % 2) for i in range(first, first + 4) for n, end, of_image in ends})


def of_json(**fields: Any) -> bytes:
    """A shard of captioned images, or of others with further fields."""
    return tar({f"{i}.{end}": content for i in range(4) for end, content in (("jpg", image(i, form="JPEG")), ("json", json.dumps(fields).encode()))})


SHARDS: list[tuple[str, dict[str, bytes], dict[str, Any], Callable[[Packed], bool]]] = [
    ("of two sizes", {f"{size}-{split}.tar": shard("jpg", "cls", first=first) for first, (size, split) in enumerate((size, split) for size in ("full", "small") for split in ("train", "test"))}, {}, refused(r"only=\['full-test.tar', 'full-train.tar'\]")),
    *((f"of two {what}", {f"{one}/x-train-00000-of-00001.tar": shard("jpg", "cls", first=first) for first, one in enumerate(folders)}, {}, refused(f"only='{folders[0]}'"))
      for what, folders in (("versions", ("1.0.0", "2.0.0")), ("resolutions", ("tfrecords-jpeg-192x192", "tfrecords-jpeg-224x224")))),
    ("of two versions, in splits", {f"{one}/x-00000-of-00001.tar": shard("jpg", "cls", first=4 * first) for first, one in enumerate(("train", "test"))}, {}, found("train: 0 2, 1 2; test: 0 2, 1 2")),
    ("with hashes", {f"train-0000{n}-of-00002-{one}.tar": shard("jpg", "cls", first=4 * n) for n, one in enumerate(("b42a775f", "1e1ed845"))}, {}, found("train: 0 4, 1 4")),
    ("beside eval", {f"{one}_00.tar": shard("jpg", "cls", first=4 * first) for first, one in enumerate(("shard", "eval"))}, {}, refused("'eval_00.tar' is called after a split")),
    ("of a word that is almost a split", {f"{one}_00.tar": shard("jpg", "cls", first=4 * first) for first, one in enumerate(("lung", "brain"))}, {}, found("train: 0 4, 1 4")),
    ("beside splits", {f"{one}.tar": shard("jpg", "cls", first=4 * first) for first, one in enumerate("ab")}, {"splits.json": {"train": ["a.tar"], "val": ["b.tar"]}}, refused("'splits.json'.*README")),
    ("packed, in a README", {f"{one}.tar.gz": gzip.compress(shard("jpg", "cls", first=4 * first)) for first, one in enumerate("ab")}, {"README.md": card("train a.tar.gz", "test b.tar.gz")}, found("train: 0 2, 1 2; test: 0 2, 1 2")),
    ("of a test without labels", {"train.tar": shard("jpg", "cls"), "test.tar": tar({f"{i}.{end}": content for i in range(4) for end, content in (("jpg", image(i)), ("json", b'{"id": 1}'))})}, {}, noted("4 records of 'test'")),
]
IN_SHARDS = [
    *(row(f"files of a sample: {name}", files("", {"train-0.tar": made}), right=[right])
      for name, made, right in [
          ("fields with names", shard("image.jpg", "label.cls"), found("train: 0 2, 1 2")), ("one in a key", shard("jpg", "cls", key="{}.5"), found("train: 0 2, 1 2")), ("beside a further image", shard("jpg", "depth.png", "cls"), noted("depth.png")),
          ("two images with names", shard("left.jpg", "right.jpg", "cls"), refused("of several images one is called .jpg alone")), ("some keys with dots", tar({f"{key}.{end}": image(n, form="JPEG") if end == "jpg" else b"1" for n, key in enumerate(("a", "2.1", "2.2")) for end in ("jpg", "cls")}), refused(r"2\.2\.1\.jpg|2\.1\.jpg")),
          ("boxes as its label", tar({f"{i}.{end}": content for i in range(4) for end, content in (("jpg", image(i)), ("txt", b"0 0.5 0.5 0.2 0.2"))}), refused("'0 0.5 0.5 0.2 0.2', a list")), ("a list as its label", tar({f"{i}.{end}": content for i in range(4) for end, content in (("jpg", image(i)), ("cls", b"0 1"))}), refused("'0 1', a list")),
          ("bytes as its label", tar({f"{i}.{end}": content for i in range(4) for end, content in (("jpg", image(i)), ("cls", bytes([i, 0, 0, 0])))}), refused("not text.*digits")),
          ("fields beside a caption", of_json(caption="a cat", score=1), noted("'caption', 'score'"))]),
    *(row(f"shards {name}", {**made, **files("", texts)}, right=[right]) for name, made, texts, right in SHARDS),
    *(row(f"a table of pixels with {name}", files("", {"train.csv": f"{header},pixels\n" + "".join(f"{i},1,{' '.join('3' * 16)}\n" for i in range(4))}), right=[right])
      for name, header, right in [("columns of its own", "age,gender", refused("'age' and 1 more field")), ("a label among others", "id,label", noted("'id'"))]),
    row("tables of pixels of two sizes", files("", {f"hmnist_{side}.csv": f"label,pixels\n0,{' '.join('3' * side * side)}\n" for side in (4, 5)}), right=[refused("only='hmnist_4.csv'")]),
    row("a table of pixels with a column of splits", files("", {"all.csv": "label,split,pixels\n" + "".join(f"{i % 2},{'train' if i < 4 else 'test'},{' '.join('3' * 16)}\n" for i in range(8))}), right=[found("train: 0 2, 1 2; test: 0 2, 1 2")]),
    *(row(f"arrays: {name}", files("", made), right=[right])
      for name, made, right in [
          ("labels alone", {"labels.npy": npy(np.array(Y))}, refused(r"no inputs.*array_rows\(x='labels.npy'\)")), ("a pickled dict", {"data.npy": npy(np.array({"x": 1}, object))}, refused("'data.npy' cannot be used")),
          ("names of features", {"data.npy": X, "target.npy": npy(np.array(Y)), "feature_names.npy": npy(np.array(["a", "b"]))}, found("train: 0 4, 1 4", note="'feature_names.npy'")),
          ("a dict of facts", {"data.npz": npz(x=np.zeros((8, 4), np.uint8), y=np.array(Y), meta=np.array({"by": "me"}))}, found("train: 0 4, 1 4", note="'data.npz/meta'")),
          ("a dict as targets", {"data.npz": npz(x=np.zeros((8, 4)), y=np.array({"by": "me"}))}, refused("'data.npz/y' cannot be used"))]),
]

NO_LANGUAGE: dict[str, dict[str, Any]] = {
    "C-MAPSS": {"{train,test}_FD001.txt": NUMBERS * 60, "RUL_FD001.txt": "112\n98\n"},
    "UCI HAR": {"{train,test}/X_{train,test}.txt": ("  2.8858451e-001 -2.0294171e-002" * 8 + "\n") * 30, "{train,test}/y_{train,test}.txt": "5\n" * 30},
    "UCR": {"ECG200_{TRAIN,TEST}.txt": ("  -1.0  " + "  0.5021" * 96 + "\n") * 9},
    "UTF-16": {"train.txt": ("to be or not to be\n" * 900).encode("utf-16")}, "Latin 1": {"train.txt": ("café\n" * 900).encode("latin-1")},
    "reviews": {"train.jsonl": '{"text": "well done, a fine film", "label": 1}\n' * 900},
    "YOLO labels alone": {"labels/{train,val}/{0..39}.txt": "0 0.5123 0.5321 0.2511 0.2522\n" * 3, "data.yaml": "names: [a]\n"},
}
TEXTS = [
    *(row(f"no tokens: {name}", files("", {names: np.arange(9000, dtype=np.float32).tobytes()}), right=[refused(r"\.bin' may hold anything")])
      for name, names in [("point clouds", "training/velodyne/00000{0..2}.bin"), ("events in classes", "{Train,Test}/{0,1}/0000{0,1}.bin"), ("chunks", "train/chunk-0-{0,1}.bin")]),
    row("tokens in folders of splits", {f"{one}/tokens.bin": np.arange(6000, dtype=np.uint16).tobytes() for one in ("train", "val")}, right=[found("train: 5 rows .*; val: 5 rows .*")]),
    row("a label beside a text", {"train.jsonl": b'{"text": "to be or not to be, that is the question", "intent": "doubt"}\n' * 90}, right=[noted("Not used.*'intent'")]),
    *(row(f"what reads {name}", files("", made), right=[refused(re.escape(line))])
      for name, made, line in [
          ("meshes", {"{train,test}/{bed,sofa}/{0,1}.off": "OFF"}, "8 .off. Pass pack_dataset a dataset object"),
          ("volumes", {"{a,b}/{0,1}.nii.gz": "x"}, "[(nibabel.load(path).get_fdata(dtype='float32'), TARGET) for path in sorted(pathlib.Path('"),
          ("a table beside a smaller one", {"train.csv": "id,age\n1,2\n2,3\n", "answers.csv": "id,y\n1,2\n"}, "train.csv'); numpy"),
          ("a table in Excel", {"x.xlsx": "PK"}, "x.xlsx'); numpy.savez"), ("numbers in texts beside a description", {"a/README.txt": "of signals", "{a,b}/X.txt": "  1.5e-1 2.5 3.5\n" * 9}, "'a/X.txt' holds numbers, not text")]),
    *(row(f"an archive beside {name}", files("", made), right=[right])
      for name, made, right in [
          ("DICOM", {"{0,1}.dcm": "DICM" * 99, "more.zip": "PK"}, refused("2 .dcm.*pydicom", but_not="as the source")), ("films", {"{0,1}.mp4": "x" * 99, "labels.zip": "PK"}, refused("2 .mp4.*items are", but_not="as the source")),
          ("its checksum", {"a.zip": "PK" * 99, "a.zip.md5": "1b2c"}, refused("Give as the source: 'FOLDER/a.zip'"))]),
    row("a table and a text about it", files("", {"train.csv": "id,price\n1,2\n", "data_description.txt": "price: in dollars"}), right=[refused("read_csv.*savez")]),
    *(row(f"no language: {name}", files("", made), right=[refused("txt|jsonl")]) for name, made in NO_LANGUAGE.items()),
    row("tokens of uint32, as advised", {"train.bin": (np.arange(3000, dtype=np.uint32) * 50).tobytes()}, right=[found(r"train: 2 rows .*uint32.*")],
        layout=token_blocks(1024, dtype="uint32")),
    *(row(f"rows of a table instead of language: {name}", files("", {"train.txt": "".join(line.format(i=i, c=("pos", "neg")[i % 2]) for i in range(300))}), right=[refused(r"train\.txt.*items are \(tokens, target\)")])
      for name, line in [("a tab", "{c}\ta fine film {i}\n"), ("a semicolon", "a fine film {i};{c}\n"), ("words and their tags", "word{i} {c}\nis O\n\n"), ("fastText", "__label__{c} film {i}\n"), ("colons", "{i} ::: a fine film ::: {c}\n"), ("with a comment", "# 2 columns\nword{i} {c}\n")]),
    *(row(f"language: {name}", files("", {"train.txt": "".join(line.format(i=i) for i in range(300))}), right=[found("train: .*")])
      for name, line in [("a dialogue", "Ann: so {i}?\nBob: yes, {i} it is, by all means\n"), ("pairs of words", "chien{i} dog{i}\n"), ("verse", "to be or not to be {i}\n")]),
    *(row(f"texts called after {name}", files("", dict.fromkeys(names.split(), "to be or not to be\n" * 90)), right=[right])
      for name, names, right in [
          ("classes", "pos_{1..3}.txt neg_{1..3}.txt", refused("called after 'neg', 'pos'")), ("parts of a text", "volume1_{1..3}.txt volume2_{1..3}.txt", found("train: .*")), ("splits", "train_{1..3}.txt val_{1..3}.txt", found("train: .*; val: .*")),
          *((name, names, refused(f"called after.*items are .tokens, target.*only='{first}' takes one"))
            for name, names, first in [("languages", "en.txt de.txt", "de.txt"), ("names by language", "Czech.txt Irish.txt Scottish.txt", "Czech.txt"), ("languages of one corpus", "wiki.pt-br.txt wiki.en.txt", "wiki.en.txt"), ("sentiments", "film-pos.txt film-neg.txt", "film-neg.txt")]),
          ("plays", "hamlet.txt macbeth.txt", found("train: .*")), ("parts by letters", "wiki_ac.txt wiki_ad.txt", found("train: .*")),
          ("two languages", "train.en.txt train.de.txt val.en.txt val.de.txt", refused(r"parts of each sample.*only=\['train.de.txt', 'val.de.txt'\]"))]),
    *(row(f"texts in lines of JSON, between them {token}", files("", {"train.jsonl": "".join(json.dumps({"text": "to be " * (i % 7 + 1)}) + "\n" for i in range(90))}), right=[right], layout=token_blocks(64, separator=token))
      for token, right in list[Any]([
          (None, noted(r"No token stands between the texts.*token_blocks\(separator=256\)")), (256, lambda packed: packed.found and not noted("separator")(packed))])),
    *(row(f"lines of JSON without a text: {name}", files("", {"train.jsonl": (json.dumps(line) + "\n") * 300}), right=[right])
      for name, line, right in [("others", {"prompt": "well", "completion": "done"}, refused(r"token_blocks\(field='prompt'\)")), ("an id before it", {"id": "a1", "content": "well done"}, refused(r"token_blocks\(field='content'\)")),
                                ("a chat", {"id": "a1", "messages": [{"role": "user"}]}, refused(r"expected text, or for chats.*items are \(tokens, target\)", but_not="token_blocks"))]),
    *(row(f"only the images of a contest, beside {name}", files("test/{0..3}.png", {name: "id,label\n0,a\n"}), only="test", right=[right])
      for name, right in [("sample_submission.csv", lambda packed: packed.found and "leaves out" not in str(packed)), ("labels.csv", noted("only= leaves out 'labels.csv'"))]),
    row("records of texts in JSON", {"data.json": b'[{"instruction": "add", "output": "done"}]'}, right=[refused("jsonl, with 'text'.*items are .tokens, target.")]),
    row("texts called brain and val", files("", dict.fromkeys(("brain.txt", "val.txt"), "to be or not to be\n" * 90)), right=[lambda packed: packed.found.startswith("train: 1 rows") and "; val: 1 rows" in packed.found]),
    row("a text called eval", files("", dict.fromkeys(("train.txt", "eval.txt"), "to be or not to be\n" * 90)), right=[refused("'eval.txt': it is called almost")]),
    row("configs of a README that name texts", files("", {**{f"{one}.txt": "to be or not to be\n" * 90 for one in "ab"}, "README.md": card("train a.txt", "test b.txt")}), right=[found("train: 1 rows .*; test: 1 rows .*")]),
    row("configs of a README that name one of several texts", files("", {**{f"{one}.txt": "to be or not to be\n" * 90 for one in "abc"}, "README.md": card("train a.txt", "test b.txt")}), right=[refused("c.txt.*'none' by 'README.md'")]),
    row("tokens of four letters", {"train.bin": (np.arange(6000) % 4).astype(np.uint16).tobytes()}, right=[found(r"train: 5 rows .*uint16.*")]),
]

LEAVES = [f"leaf{i}.jpg" for i in range(6)]
IN_JSON = [
    *(row(f"labels in JSON: {name}", files("images/leaf{0..5}.jpg", {"labels.json": labels}), right=[right])
      for name, labels, right in list[Any]([
          ("a label for each name", dict.fromkeys(LEAVES, "rust"), found("train: rust 6")), ("fields for each name", {name: {"label": "rust", "split": "train"} for name in LEAVES}, found("train: rust 6")),
          ("pairs, as StyleGAN has them", {"labels": [[name, i % 2] for i, name in enumerate(LEAVES)]}, found("train: 0 3, 1 3")),
          ("Label Studio's choices", [{**one, "data": {"image": f"/data/upload/1/leaf{i}.jpg"}} for i, one in enumerate(label_studio({"choices": {"choices": ["rust"]}}))], found("train: rust 4")),
          ("COCO with outlines alone", {"images": [{"id": i, "file_name": name, "width": 64, "height": 48} for i, name in enumerate(LEAVES)],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "segmentation": [[1, 1, 9, 1, 9, 9]]}], "categories": [{"id": 1, "name": "rust"}]}, found("train: boxes rust 1"))])),
    # In the sheet, names such as 0001 are text; without a dtype, pandas makes numbers of them.
    row("labels in Excel", files("images/000{1..8}.jpg", {"labels.xlsx": "x"}), right=[refused(r"read_excel\('labels\.xlsx', sheet_name=0, dtype=str, na_filter=False\)")]),
]

OF_LIBRARIES = [
    *(row(f"samples of MATLAB of {shape} with labels of {np.shape(y)}", lambda shape=shape, y=y: mat(X=CELLS if shape is None else np.zeros(shape, np.uint8), y=y), right=[right])  # type: ignore[misc]
      for shape, y, right in list[Any]([
          ((4, 4, 3, 12), FROM_1[:, None], found("train: 1 4, 2 4, 3 4.*")), ((12, 4, 4, 3), FROM_1[:, None], refused("as many targets as inputs")), ((64, 12), FROM_1[None], refused("as many targets as inputs")),
          ((12, 4, 12), FROM_1[:, None], refused("the first or the last")), (None, FROM_1[:, None], refused("'train.mat/X'.*cell")),
          ((12, 4), np.array(["cat", "horse"] * 6), found("train: cat 6, horse 6.*"))])),
    *(row(f"numbers of Parquet beside two names: {labels}", lambda labels=labels: hub({"image": {"_type": "Image"}, "label": ["cat", "dog"]}, label=labels), right=[right])  # type: ignore[misc]
      for labels, right in [([0, 1, 2], refused(r"parquet\[2\].*2 classes")), ([0, 1, 1], found("train: cat 1, dog 2"))]),
    *(row(f"Parquet without images: {', '.join(columns)}", lambda columns=columns: {"a.parquet": parquet_of(columns)}, right=[refused(right)])  # type: ignore[misc]
      for columns, right in list[Any]([({"text": ["to be"] * 3}, r"load_dataset\(.*\)\.to_json\('train.jsonl'\)"), ({"input_ids": [[1, 2]] * 3}, r"images or clips.*x=numpy.stack\(table")])),
    *(row(f"several images in a record: {', '.join(features)}", lambda features=features: {"train.tfrecord": records_of([{"label": i, **features} for i in range(3)])}, right=[refused(f"it has 2 images in '{where}'")])  # type: ignore[misc]
      for where, features in list[Any]([("image", {"image": [image(1), image(2)]}), ("mask", {"image": image(1), "mask": [DIAGONAL, DIAGONAL]})])),
    *(row(f"patients in {kind}", made, right=[found("train: (cat 5; val: cat 3|cat 3; val: cat 5)", note="Samples with the same 'patient_id' stay in one split")], splits={"train": 0.5, "val": 0.5})
      for kind, made in list[Any]([
          ("words of Parquet", lambda: hub({}, label=["cat"] * 8, patient_id=list("aaaaabbb"))), ("numbers of Parquet", lambda: hub({}, label=["cat"] * 8, patient_id=[7] * 5 + [9] * 3)),
          ("records", lambda: {"a.tfrecord": records_of([{"image": image(i), "label": "cat", "patient_id": i // 5} for i in range(8)])}),
          ("JSON of shards", lambda: {"a.tar": tar_of([{"png": image(i), "json": json.dumps({"label": "cat", "patient_id": i // 5})} for i in range(8)])})])),
    *(row(f"persons who are the classes, in {kind}", made, right=[found(r"train: (\w+) 2, (\w+) 2.*; val: \1 2, \2 2.*")], splits={"train": 0.5, "val": 0.5})
      for kind, made in list[Any]([
          ("a table", files("{0..7}.jpg", {"a.csv": "file,label,person_id\n" + "".join(f"{i}.jpg,{'ab'[i % 2]},p{i % 2}\n" for i in range(8))})),
          ("Parquet", lambda: hub({}, label=["cat", "dog"] * 4, person=["x", "y"] * 4)),
          ("arrays", {"X.npy": npy(np.zeros((8, 5), np.float32)), "y.npy": npy(np.arange(8) % 2), "groups.npy": npy(np.arange(8) % 2)})])),
    *(row(f"patients in splits of the source: {kind}", made, right=[noted("the same '[a-z_.]+' are in several splits of the source .first '?[ap5]")])
      for kind, made in list[Any]([
          ("columns of Parquet", lambda: hub({}, label=["cat"] * 8, patient_id=[*"aaaaabbb"], split=["train", "val"] * 4)),
          ("a table", files("{0..7}.jpg", {"a.csv": "file,label,patient_id,split\n" + "".join(f"{i}.jpg,cat,p{i // 5},{('train', 'val')[i % 2]}\n" for i in range(8))})),
          ("COCO", files("{train,val}/{0..3}.jpg", {f"{split}.json": {"images": [{"id": i, "file_name": f"{split}/{i}.jpg", "width": 64, "height": 48, "patient_id": f"p{i // 2}"} for i in range(4)],
            "annotations": [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 9, 9]} for i in range(4)], "categories": [{"id": 1, "name": "cat"}]} for split in ("train", "val")})),
          ("arrays", {"X.npy": npy(np.zeros((8, 5), np.float32)), "y.npy": npy(np.arange(8) // 2 % 2), "split.npy": npy(np.array(["train", "val"] * 4)), "patient_ids.npy": npy(np.array(list("aabbccdd")))})])),
    *(row(f"missing labels as texts in {kind}", made, right=[refused("4 of 8 samples have no label")])
      for kind, made in list[Any]([
          ("Parquet", lambda: hub({}, label=["nan", "cat"] * 4)), ("records", lambda: {"a.tfrecord": records_of([{"image": image(i), "label": ["cat", "<NA>"][i % 2]} for i in range(8)])}),
          ("JSON of shards", lambda: {"a.tar": tar_of([{"png": image(i), "json": json.dumps({"label": ["cat", " "][i % 2]})} for i in range(8)])})])),
    *(row(f"a class that may say that a label is missing, in {kind}", made, right=[noted("'(unlabeled|.|none)' in '(label|y.npy)' counts like the others. If that says that a label is missing")])
      for kind, made in list[Any]([
          ("Parquet", lambda: hub({}, label=["unlabeled", "cat"] * 4)), ("JSON of shards", lambda: {"a.tar": tar_of([{"png": image(i), "json": json.dumps({"label": ["cat", "?"][i % 2]})} for i in range(8)])}),
          ("arrays", {"X.npy": npy(np.zeros((8, 5), np.float32)), "y.npy": npy(np.array(["cat", "none"] * 4))})])),
    *(row(f"what says no groups in {kind}", made, right=[found("train: cat 4; val: cat 4", note="Not used: 'patient_id'")], splits={"train": 0.5, "val": 0.5})
      for kind, made in list[Any]([
          ("Parquet without one for each row", lambda: hub({}, label=["cat"] * 8, patient_id=[*"aaaaabb", None])), ("Parquet with lists", lambda: hub({}, label=["cat"] * 8, patient_id=[["a"]] * 8)),
          ("records of bytes", lambda: {"a.tfrecord": records_of([{"image": image(i), "label": "cat", "patient_id": bytes([255, i])} for i in range(8)])}),
          ("JSON of lists", lambda: {"a.tar": tar_of([{"png": image(i), "json": json.dumps({"label": "cat", "patient_id": [i // 5]})} for i in range(8)])})])),
    row("several labels in a row of Parquet", lambda: hub({}, labels=[[0], [0, 2], [2]]), right=[refused("'labels' holds .*y an array of 0 and 1 for each class")]),
    row("captions of images that save_to_disk wrote", lambda: hub({}, text=["a cat", "a dog"]) | {"state.json": b"{}", "dataset_info.json": b"{}"}, right=[noted("Not used: 'text'")]),
    *(row(f"axes of MATLAB: {name}", lambda made=made: made, layout=array_rows(x="a", y="u"), right=[right])  # type: ignore[misc]
      for name, made, right in [
          ("three, and no labels", mat(a=np.ones((6, 9, 9)), u=np.ones((6, 9, 9))), refused(r"\(6, 9, 9\).*the first or the last")), ("three in 7.3, and no labels", mat73(a=np.ones((6, 9, 9)), u=np.ones((6, 9, 9))), refused(r"\(6, 9, 9\).*the first or the last")),
          ("a grid beside", mat(a=np.ones((6, 8)), u=np.ones((6, 8)), x=np.ones(8)), found("train: 6 rows .*")), ("times beside", mat(a=np.ones((6, 8, 8)), u=np.ones((6, 8, 8, 10)), t=np.ones(10)), refused("the first or the last"))]),
    row("masks in MATLAB 7.3", mat73(images=np.zeros((16, 12, 3, 6), np.uint8), labels=np.ones((16, 12, 6), np.uint8)), right=[found("train: 6 masks.*")]),
    *(row(f"complex numbers in {kind}", made, right=[found(r"train: 0 2, 1 1 \(complex64\)")])
      for kind, made in list[Any]([("HDF5", files("", {"x.h5": h5(x=np.ones((3, 4), np.complex64), y=np.array([0, 1, 0]))})), ("MATLAB", lambda: mat(x=np.ones((3, 4), np.complex64), y=np.array([0, 1, 0])))])),
    *(row(f"labels from 1 in {kind}", made, right=FROM_ONE) for kind, made in [("MATLAB", lambda: mat(X=np.ones((12, 8)), y=FROM_1[:, None])), ("Parquet", lambda: hub({}, label=FROM_1.tolist()))]),
]
# fmt: on


@pytest.mark.parametrize(
    ("made", "right", "options"),
    [
        *BOXES, *TURNED, *TOOLS, *FORMS, *TABLES, *FOLDERS, *BESIDE_FOLDERS, *SPLITS_BESIDE, *MASKS, *VALUES, *OF_PARTS,
        *TEXTS_BESIDE, *PARTS, *NO_PARTS, *EACH_IN_A_FOLDER, PICTURES_AS_MASKS, *CLIPS, *PATHS_BESIDE, *AS_PUBLISHED, *FOLLOWED, *PIXELS,
        *ARRAYS, *IN_SHARDS, *TEXTS, *IN_JSON, *OF_LIBRARIES,
    ],
)  # fmt: skip
def test_files_are_read_rightly_or_refused(
    tmp_path: Path, made: Any, right: list[Callable[[Packed], bool]], options: dict[str, Any]
) -> None:
    """What a person would call a mistake is never made silently."""
    files_of_it = made() if callable(made) else made
    packed = pack(write_files(tmp_path / "set", files_of_it), tmp_path / "out.h5", **options)
    is_right = any(one(packed) for one in right)
    assert is_right, str(packed)


def _of_kind(kind: str, count: int, folder: str) -> dict[str, bytes]:
    """As many files of a kind in two folders of classes; of shards, one file of so many records."""
    if kind == "shards":
        records = {
            f"{n}.{end}": part for n in range(count) for end, part in (("png", image(n)), ("cls", b"01"[n % 2 :][:1]))
        }
        return {f"{folder}.tar": tar(records)}
    rows = np.arange(len(image(0)) // 8)
    content = {"png": image(0), "npy": npy(rows), "wav": wav(4 * len(rows))}[kind]
    return {f"{folder}/{'cd'[n % 2]}/{folder}{n}.{kind}": content for n in range(count)}


@pytest.mark.parametrize(("kind", "other"), [*itertools.permutations(["png", "wav", "npy", "shards"], 2)])
def test_samples_of_two_kinds_are_never_left_out_in_silence(tmp_path: Path, kind: str, other: str) -> None:
    """As many of another kind are asked about, and each line of advice takes one of them; a few are noted."""
    few = write_files(tmp_path / "few", _of_kind(kind, 24, "a") | _of_kind(other, 1, "b"))
    packed = pack(few, tmp_path / "few.h5")
    is_told = "left out" in " ".join(packed.notes) and " 12" in packed.found
    assert is_told or ("'b" in packed.refusal and other == "shards"), packed
    if kind > other:  # who comes first makes no difference to as many
        return
    both = write_files(tmp_path / "both", _of_kind(kind, 12, "a") | _of_kind(other, 12, "b"))
    packed = pack(both, tmp_path / "both.h5")
    assert "may be the samples" in packed.refusal or "may hold more of them" in packed.refusal, packed
    for n, part in enumerate(re.findall(r"only='([^']*)'", packed.refusal)):
        assert " 6" in pack(both, tmp_path / f"{n}.h5", only=part).found, part


@pytest.mark.parametrize(
    ("box", "relative", "named"), [((0.1, 0.1, 0.5, 0.5), False, "0.5"), ((10, 5, 50, 40), True, "50")]
)
def test_boxes_in_other_units_are_refused(tmp_path: Path, box: tuple[float, ...], relative: bool, named: str) -> None:
    """Fractions where pixels are expected, and pixels where fractions are, as in TensorFlow's records."""

    def layout(tree: Any) -> SampleTable:
        boxes = Boxes(np.arange(3), np.array([box, box], float), {"labels": np.zeros(2, np.int64)}, relative=relative)
        return SampleTable(
            "mine", tuple(tree.entries.names), Images(TreeFiles(tree, tree.entries)), boxes, classes=("a",)
        )

    packed = pack(write_files(tmp_path / "set", files("{0..1}.jpg")), tmp_path / "out.h5", layout=layout)
    assert refused(named)(packed), str(packed)


def test_an_object_of_matlab_is_no_missing_label(tmp_path: Path) -> None:
    """Its words, as string("cat"), are beside its name: scipy calls it None, and HDF5 has numbers in place of them."""
    rows, old, new = matlab({"X": np.zeros((6, 2))}), tmp_path / "old", tmp_path / "new"

    def element(kind: int, content: bytes) -> bytes:
        return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)

    number = (
        element(6, struct.pack("<II", 13, 0))
        + element(5, struct.pack("<ii", 1, 1))
        + element(1, b"")
        + element(6, bytes(4))
    )
    words = b"".join(element(1, word) for word in (b"y", b"MCOS", b"string"))
    made = rows + element(14, element(6, struct.pack("<II", 17, 0)) + words + element(14, number))
    write_files(old, {"x.mat": made})
    write_files(new, {"x.mat": b""})
    with h5py.File(new / "x.mat", "w") as file:
        file["X"], file["y"] = np.zeros((2, 6)), np.ones((1, 6), np.uint32)
        file["X"].attrs["MATLAB_class"], file["y"].attrs["MATLAB_class"] = np.bytes_("double"), np.bytes_("string")
        file["y"].attrs["MATLAB_object_decode"] = 3
    for folder in (old, new):
        packed = pack(folder, tmp_path / "out.h5")
        assert refused(r"'x\.mat/y' cannot be used.*char\(")(packed), str(packed)


@pytest.mark.parametrize("raw", [True, False])
def test_the_line_for_parquet_of_other_tools_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bool
) -> None:
    """Literally: such files do not say that a column holds images."""
    parquet, arrow = (pytest.importorskip(f"pyarrow{one}", reason="needs pyarrow") for one in (".parquet", ""))
    datasets = pytest.importorskip("datasets", reason="needs datasets: pip install datasets")
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # a thread that `datasets` would leave behind
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    images = [image(i, size=(16, 16)) for i in range(4)]
    (tmp_path / "set").mkdir()
    rows: dict[str, Any] = {"mask": [DIAGONAL] * 4, "seg": [DIAGONAL] * 4}
    rows["image"] = images if raw else [{"bytes": one, "path": None} for one in images]
    parquet.write_table(arrow.table(rows), tmp_path / "set/val.parquet")
    packed = pack(tmp_path / "set", tmp_path / "out.h5")
    line = re.search(r"pack_dataset\((datasets\..*), 'packed.h5'\)", packed.refusal)
    assert line is not None, packed
    dataset = eval(line[1].replace("FOLDER", str(tmp_path / "set")), {"datasets": datasets})
    made = pack(dataset, tmp_path / "packed.h5")
    assert found("train: 4 masks .*")(made), made


def test_the_line_for_a_table_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its columns stand in the line; the rows of a patient stay in one split."""
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    monkeypatch.chdir(tmp_path)
    patients = "patient_id,age,sick\n" + "".join(f"p{row // 2},{row},{row % 2}\n" for row in range(24))
    packed = pack(write_files(tmp_path / "patients", files("", {"heart.csv": patients})), tmp_path / "out.h5")
    line = re.search(r"arrays: (.*?\))\. To ", packed.refusal)
    assert line is not None, packed
    line_of = line[1].replace("FOLDER", str(tmp_path / "patients"))
    exec(line_of, {"pandas": pandas, "numpy": np, "COLUMNS": ["age"], "LABEL": "sick"})
    made = pack("data.npz", tmp_path / "patients.h5")
    assert noted("Rows with the same '.*group.*' stay in one split")(made), made
