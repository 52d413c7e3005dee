"""Well-known public datasets as they unpack: names and shapes as published, the content tiny and made here.

One row a dataset: its files, what a person who knows it expects of them, and, where that cannot be guessed, the line
that the error names. In the names of files `{a,b}` and `{0..3}` stand for each of these, `~` for a blank.
"""

import gzip
import io
import itertools
import json
import math
import pickle
import re
import struct
import time
import wave
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from colabstage.trees.listing import FileEntries, FileEntry, Tree
from tests.support.archives import tar_bytes

_BRACES = re.compile(r"\{([^{}]*)\}")


def choices(inner: str) -> list[str]:
    first, dots, last = inner.partition("..")
    if not dots:
        return inner.split(",")
    return [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]


def each(pattern: str) -> list[str]:
    """Every name that a pattern stands for."""
    parts = _BRACES.split(pattern.replace("~", " "))
    options = [[part] if place % 2 == 0 else choices(part) for place, part in enumerate(parts)]
    return ["".join(found) for found in itertools.product(*options)]


def rows(*patterns: str) -> str:
    """Lines of a text; the braces of one pattern go in step, the shorter ones again from the start."""
    lines: list[str] = []
    for pattern in patterns:
        parts = _BRACES.split(pattern)
        options = [[part] if place % 2 == 0 else choices(part) for place, part in enumerate(parts)]
        count = max(map(len, options))
        lines += ["".join(one[number % len(one)] for one in options) for number in range(count)]
    return "\n".join(lines) + "\n"


class Known(NamedTuple):
    """A dataset, and what is to be made of its files."""

    name: str
    """What it is called."""
    files: dict[str, bytes]
    """Its files, by name."""
    layout: str
    """The layout that its users mean, however it is found."""
    found: str
    """What `described` says then: samples by split and class; nothing where no layout reads it yet."""
    error: str
    """A pattern of the first line of the error; "" where layout="auto" finds what is meant."""
    write: str
    """What layout= has to be, as the error says; "" where nothing needs to be said, or nothing helps."""


def known(
    name: str, paths: str, texts: dict[str, Any] | None = None, *, layout: str = "", found: str = "", error: str = "",
    write: str = "", content: bytes = b"",
) -> Known:  # fmt: skip
    files = {path: content for pattern in paths.split() for path in each(pattern)}
    for pattern, made in (texts or {}).items():
        for number, path in enumerate(each(pattern)):
            text = made(number) if callable(made) else made
            text = text if isinstance(text, bytes | str) else json.dumps(text)
            files[path] = text if isinstance(text, bytes) else text.encode()
    return Known(name, files, layout, found, error, write)


class _Bytes:
    def __init__(self, tree: "MemoryTree", label: str, content: bytes) -> None:
        self._tree = tree
        self.label = label
        self.size = len(content)
        self._content = content

    def pread(self, length: int, offset: int) -> bytes:
        data = self._content[offset : offset + length]
        if self._tree.pause_s:
            time.sleep(self._tree.pause_s)
        self._tree.reads[self.label] += 1
        self._tree.nbytes[self.label] += len(data)
        return data

    def close(self) -> None:
        pass


class MemoryTree(Tree):
    """Files in memory, which count what is read of them; a name that ends with a slash is an empty folder."""

    kind = "folder"
    label = "dataset"
    pause_s = 0.0
    """How long each read takes."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files
        self.reads, self.nbytes = Counter[str](), Counter[str]()
        names = sorted(name for name in files if not name.endswith("/"))
        self.entries = FileEntries.of(FileEntry(name, len(files[name]), 0, n) for n, name in enumerate(names))
        self.empty_folders = tuple(sorted(name.rstrip("/") for name in files if name.endswith("/")))

    def open(self, entry: FileEntry) -> _Bytes:
        return _Bytes(self, entry.name, self._files[entry.name])


# --- contents ---------------------------------------------------------------------------------------------------------


def voc(*names: str) -> str:
    """Pascal VOC's XML with a box of each class."""
    box = "<bndbox><xmin>5</xmin><ymin>6</ymin><xmax>40</xmax><ymax>30</ymax></bndbox>"
    return f"<annotation>{''.join(f'<object><name>{name}</name>{box}</object>' for name in names)}</annotation>"


def coco(pattern: str, *, categories: str = "cat,dog", **annotation: Any) -> dict[str, Any]:
    """COCO's JSON: one annotation for each image, the categories in turn."""
    names = categories.split(",")
    kinds = [{"id": number + 1, "name": name} for number, name in enumerate(names)]
    images = [{"id": n, "file_name": name, "width": 64, "height": 48} for n, name in enumerate(each(pattern))]
    fields = annotation or {"bbox": [5, 6, 35, 24], "area": 840, "iscrowd": 0}
    annotations = [
        {"id": number, "image_id": number, "category_id": 1 + number % len(names), **fields}
        for number in range(len(images))
    ]
    return {"images": images, "annotations": annotations, "categories": kinds}


def coco_classes(*patterns: str, names: str) -> dict[str, Any]:
    """COCO's JSON without boxes: the images of each pattern are of one category."""
    kinds = [{"id": number, "name": name} for number, name in enumerate(names.split(","))]
    named = [(name, kind) for kind, pattern in enumerate(patterns) for name in each(pattern)]
    return {
        "images": [{"id": number, "file_name": name} for number, (name, _) in enumerate(named)],
        "annotations": [{"id": n, "image_id": n, "category_id": kind} for n, (_, kind) in enumerate(named)],
        "categories": kinds,
    }


def pcm(values: NDArray[np.int16], rate: int = 8000) -> bytes:
    """A WAV of these samples, or of (samples, channels)."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((values.shape[1] if values.ndim > 1 else 1, 2, rate, 0, "NONE", ""))
        out.writeframes(values.astype("<i2").tobytes())
    return file.getvalue()


def wav(count: int = 8, rate: int = 8000) -> bytes:
    """So many samples of silence."""
    return pcm(np.zeros(count, np.int16), rate)


def npz(**arrays: tuple[int, ...]) -> bytes:
    """Arrays of these shapes; one dimension is labels."""
    file = io.BytesIO()
    values: dict[str, Any] = {
        name: (np.arange(np.prod(shape)) % 2).reshape(shape).astype(np.uint8) for name, shape in arrays.items()
    }
    np.savez(file, **values)
    return file.getvalue()


def npy(*shape: int) -> bytes:
    """A bare array of zeros."""
    file = io.BytesIO()
    np.save(file, np.zeros(shape, np.uint8))
    return file.getvalue()


def idx(*shape: int) -> bytes:
    """A gzipped idx file as MNIST's: 0, 1, 0, …"""
    head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    return gzip.compress(head + bytes(number % 2 for number in range(math.prod(shape))))


def batch(count: int, **more: list[int]) -> bytes:
    """A pickled batch as CIFAR's: black images and their labels."""
    columns = {name.encode(): values for name, values in more.items()}
    return pickle.dumps({b"batch_label": b"batch", b"data": np.zeros((count, 3072), np.uint8), **columns}, protocol=2)


def tar(files: dict[str, str]) -> bytes:
    return tar_bytes({name: text.encode() for name, text in files.items()})


YOLO_BOX = "0 0.5 0.5 0.25 0.25\n"
WAV = wav()


def clip(number: int) -> bytes:
    """One of several lengths."""
    return wav(8 - number % 2)


def jpeg() -> bytes:
    """A white rectangle on black, with edges as JPEG leaves them."""
    made, pixels = io.BytesIO(), np.zeros((48, 64), np.uint8)
    pixels[10:31, 9:41] = 255
    Image.fromarray(pixels).save(made, "JPEG", quality=50)
    return made.getvalue()


JPEG = jpeg()


def pets(prefix: str = "") -> str:
    """Two classes in folders, of which the one has more, so that a confusion shows."""
    return f"{prefix}cat/{{0..2}}.jpg {prefix}dog/{{3,4}}.jpg"


PETS = "cat 3, dog 2"


def in_classes(*prefixes: str, classes: str = "cat:3,dog:2", form: str = "{}.jpg", start: int = 0) -> str:
    """Paths of images in folders of classes below each prefix; `cat:3` is three of cat."""
    paths = []
    for place, prefix in enumerate(prefixes):
        for name, _, count in (one.partition(":") for one in classes.split(",")):
            first = start + 10 * place
            paths.append(f"{prefix}{name}/{form.format(f'{{{first}..{first + int(count) - 1}}}')}")
    return " ".join(paths)


def lines(*found: dict[str, Any]) -> str:
    return "".join(json.dumps(one) + "\n" for one in found)


def _masked_crc32c(data: bytes) -> int:
    """Castagnoli's checksum, turned as TFRecord has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def example(**features: Any) -> bytes:
    """A TFRecord file of one tf.train.Example: bytes, or a whole number, for each name; `__` stands for a slash."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, *length(len(content))]) + content

    def length(value: int) -> list[int]:
        return [value] if value < 128 else [value & 127 | 128, *length(value >> 7)]

    entries = b""
    for name, value in features.items():
        kind = field(1, field(1, value)) if isinstance(value, bytes) else field(3, field(1, bytes(length(value))))
        entries += field(1, field(1, name.replace("__", "/").encode()) + field(2, kind))
    data = field(1, entries)
    head = len(data).to_bytes(8, "little")
    sums = (_masked_crc32c(part).to_bytes(4, "little") for part in (head, data))
    return head + next(sums) + data + next(sums)


LABELME = {
    "version": "5.0",
    "imagePath": "0.jpg",
    "imageHeight": 48,
    "imageWidth": 64,
    "shapes": [
        {"label": "cat", "points": [[5, 6], [40, 30]], "shape_type": "rectangle"},
        {"label": "dog", "points": [[1, 1], [9, 2], [5, 8]], "shape_type": "polygon"},
    ],
}


def cvat(pattern: str) -> str:
    """CVAT's XML for images, with a box and a polygon in each."""
    shapes = (
        '<box label="cat" occluded="0" xtl="5.0" ytl="6.0" xbr="40.0" ybr="30.0"/>'
        '<polygon label="dog" points="1,1;9,2;5,8"/>'
    )
    names = enumerate(each(pattern))
    images = "".join(f'<image id="{n}" name="{name}" width="64" height="48">{shapes}</image>' for n, name in names)
    return f'<?xml version="1.0"?><annotations><version>1.1</version><meta><task/></meta>{images}</annotations>'


def createml(pattern: str) -> list[dict[str, Any]]:
    """CreateML's JSON, with a box in each image."""
    box = {"label": "cat", "coordinates": {"x": 22, "y": 18, "width": 20, "height": 10}}
    return [{"image": name, "annotations": [box]} for name in each(pattern)]


def via(pattern: str) -> dict[str, Any]:
    """The VGG Image Annotator's JSON, with a polygon in each image."""
    shape = {"name": "polygon", "all_points_x": [1, 9, 5], "all_points_y": [1, 2, 8]}
    return {
        f"{name}100": {"filename": name, "size": 100, "regions": [{"shape_attributes": shape, "region_attributes": {}}]}
        for name in each(pattern)
    }


def label_studio(*paths: str) -> list[dict[str, Any]]:
    """Label Studio's JSON, with a box and a polygon in each image."""
    region = {"original_width": 64, "original_height": 48, "image_rotation": 0}
    box = {"x": 50, "y": 25, "width": 25, "height": 50, "rotation": 0, "rectanglelabels": ["cat"]}
    outline = {"points": [[10, 10], [20, 10], [15, 30]], "polygonlabels": ["dog"]}
    regions = [
        {**region, "type": "rectanglelabels", "value": box},
        {**region, "type": "polygonlabels", "value": outline},
    ]
    return [
        {"id": n, "data": {"image": path}, "annotations": [{"was_cancelled": False, "result": regions}]}
        for n, path in enumerate(paths, 1)
    ]


def bdd(pattern: str) -> list[dict[str, Any]]:
    """BDD100K's JSON, with a box in each image."""
    box = {"category": "car", "box2d": {"x1": 5.0, "y1": 6.0, "x2": 40.0, "y2": 30.0}}
    lane = {"category": "lane", "poly2d": [{"vertices": [[1, 2], [3, 4]]}]}
    return [{"name": name, "labels": [box, lane], "attributes": {"weather": "clear"}} for name in each(pattern)]


DOTA = (
    "imagesource:GoogleEarth\ngsd:0.146343590398\n"
    "5.0 6.0 40.0 6.0 40.0 30.0 5.0 30.0 plane 0\n1.0 2.0 9.0 2.0 9.0 8.0 1.0 8.0 ship 1\n"
)
