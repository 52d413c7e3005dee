"""Shards of every kind: the samples that their libraries wrote, in order; what is broken is named, never left out."""

import io
import itertools
import json
import os
import pickle
import re
import struct
import sys
import tarfile
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import (
    ColabstageError,
    CorruptArchiveError,
    DecodeError,
    LayoutError,
    MissingDependencyError,
    SourceReadError,
)
from colabstage.layouts.detect import detect_layout
from colabstage.options import Arrays, Boxes, Masks, SampleTable, audio_clips
from colabstage.trees.open import open_tree
from tests.layouts.described import described
from tests.layouts.known import MemoryTree, pcm, wav
from tests.layouts.readers import by_split, completed, contents, labels, picture, read
from tests.layouts.shards.writing import (
    KINDS,
    columns_of,
    example,
    feather_of,
    lmdb_of,
    parquet_of,
    record,
    records_of,
    stream_of,
    tar_of,
)
from tests.support import archives
from tests.support.archives import tar_bytes
from tests.support.images import noise
from tests.support.made_files import grey, npy, write_files


def shards(kind: str) -> dict[str, bytes]:
    name, write = KINDS[kind]
    return {name.format("train"): write(range(9)), name.format("val"): write(range(9, 12))}


@pytest.mark.parametrize(
    ("holder", "kind"),
    [(holder, kind) for holder in ("folder", "zip", "tar") for kind in KINDS if (holder, kind[:3]) != ("tar", "web")],
)
def test_samples_are_those_that_were_written(tmp_path: Path, kind: str, holder: str) -> None:
    """In splits as shards are called; by their places in an archive, or from a local copy of it; in any order."""
    place = write_files(tmp_path / "set", shards(kind))
    if holder == "zip":
        with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in place.rglob("*"):
                archive.write(path, path.relative_to(place))
        place = tmp_path / "a.zip"
    elif holder == "tar":
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            tar.add(place, "set")
        place = tmp_path / "a.tar"
    with open_tree(place, spool=tmp_path) as tree:
        table = completed(detect_layout(tree))
        source, order = table.inputs.source, np.random.default_rng(0).permutation(12).tolist()
        numbers = {"train": [*range(9)], "val": [*range(9, 12)]}
        written = [number for split in dict.fromkeys(table.splits or ()) for number in numbers[split]]
        assert labels(table) == [number % 3 for number in written]
        assert [bytes(source.read(row)) for row in order] == [picture(written[row]) for row in order]
        assert len({source.stamp(row) for row in range(12)}) == 12


def test_shards_of_webdatasets_own_writer(tmp_path: Path) -> None:
    """Numbers, structures and arrays as it encodes them."""
    webdataset = pytest.importorskip("webdataset", reason="needs webdataset: pip install -c constraints.txt webdataset")
    rows = [np.random.default_rng(n).normal(size=(3, 4)).astype("f4") for n in range(4)]
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as sink:
        for n, one in enumerate(rows):
            sink.write({"__key__": f"{n}", "npy": one, "json": {"label": n % 3}})
    found = read({"a.tar": (tmp_path / "a.tar").read_bytes()})
    np.testing.assert_array_equal(contents(found), rows)
    assert labels(found) == [0, 1, 2, 0]


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_what_datasets_saves_is_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Of several files; splits by folder or name, classes by the names that the files have; -1 is no class."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hugging = pytest.importorskip("datasets", reason="needs datasets: pip install -c constraints.txt datasets")
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)
    kinds = hugging.Features({"image": hugging.Image(), "label": hugging.ClassLabel(names=["cat", "dog"])})
    rows = {"train": range(7), "test": range(7, 11)}
    data = {
        split: hugging.Dataset.from_dict(columns_of(numbers) | {"label": [n % 3 - 1 for n in numbers]}, features=kinds)
        for split, numbers in rows.items()
    }
    if form == "arrow":
        hugging.DatasetDict(data).save_to_disk(tmp_path / "set", num_shards={"train": 2, "test": 1})
    else:
        (tmp_path / "set").mkdir()
        for split, one in data.items():
            one.to_parquet(tmp_path / f"set/{split}-00000-of-00001.parquet", batch_size=3)
    with open_tree(tmp_path / "set", spool=tmp_path) as tree:
        table = detect_layout(tree)
        assert table.classes == ("cat", "dog")
        for split, (images, numbers) in by_split(table).items():
            assert [np.asarray(Image.open(io.BytesIO(image))).tolist() for image in images] == [
                np.asarray(row["image"]).tolist() for row in data[split]
            ]
            assert numbers == data[split]["label"]


@pytest.mark.parametrize("form", ["struct", "binary", "large_binary"])
def test_every_form_of_a_table_is_read(form: str) -> None:
    """Also where images are no struct; more rows than are in memory at once."""
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'colabstage[arrow]'")
    data = columns_of(range(150))
    if form != "struct":
        data["image"] = arrow.array([image["bytes"] for image in data["image"]], getattr(arrow, form)())
    for name, content in {
        "val.parquet": parquet_of(data, compression="zstd", use_dictionary=False),
        "val.arrow": stream_of(data, batch=33, compression="zstd"),
        "val/a.arrow": feather_of(data),
    }.items():
        assert by_split(read({name: content})) == {"val": ([picture(n) for n in range(150)], data["label"])}


def test_more_shards_than_may_be_open(tmp_path: Path) -> None:
    """Handles are let go of, and taken again, as reading goes from shard to shard."""
    _, write = KINDS["webdataset"]
    write_files(tmp_path / "set", {f"s-{number:03d}.tar": write([number]) for number in range(80)})
    with open_tree(tmp_path / "set", spool=tmp_path) as tree:
        table = detect_layout(tree)
        assert contents(table) == contents(table) == [picture(n) for n in range(80)]


# --- what labels samples ----------------------------------------------------------------------------------------------


def tars(*samples: dict[str, Any]) -> dict[str, bytes]:
    return {"a.tar": tar_of([{"jpg": b"x", **one} for one in samples])}


def tars_of(**fields: list[Any]) -> dict[str, bytes]:
    """The same, with a json of these fields."""
    rows = [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]
    return tars(*({"json": json.dumps(row)} for row in rows))


def records(*examples: dict[str, Any]) -> dict[str, bytes]:
    return {"a.tfrecord": records_of({"image": picture(n), **one} for n, one in enumerate(examples))}


def tars_in_order(*rows: Any) -> dict[str, bytes]:
    return {"a.tar": tar_of([{"png": picture(n), "json": json.dumps(row)} for n, row in enumerate(rows)])}


def features_of(**features: list[Any]) -> dict[str, bytes]:
    return records(*(dict(zip(features, row, strict=True)) for row in zip(*features.values(), strict=True)))


def table(**columns: Any) -> dict[str, bytes]:
    """A Parquet file of images with these columns."""
    count = len(next(iter(columns.values())))
    return {"a.parquet": parquet_of({"png": [picture(n) for n in range(count)], "width": [6] * count, **columns})}


def hub(classes: dict[str, Any], **columns: Any) -> dict[str, bytes]:
    """The same with what `datasets` notes of the columns that are classes, or hold some."""
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'colabstage[arrow]'")
    count, file = len(next(iter(columns.values()))), io.BytesIO()
    features = {name: one if isinstance(one, dict) else kinds(*one) for name, one in classes.items()}
    noted = {"huggingface": json.dumps({"info": {"features": features}})}
    rows = arrow.table({"image": [picture(n) for n in range(count)], **columns}).replace_schema_metadata(noted)
    pytest.importorskip("pyarrow.parquet").write_table(rows, file)
    return {"a.parquet": file.getvalue()}


def kinds(*names: str) -> dict[str, Any]:
    return {"_type": "ClassLabel", "names": [*names]}


def database(*words: str) -> dict[str, bytes]:
    numbered = enumerate(words, 1)
    pairs = [((b"image-%09d" % n, picture(n)), (b"label-%09d" % n, word.encode())) for n, word in numbered]
    return {"db/data.mdb": lmdb_of(dict(one for pair in pairs for one in pair))}


FOUR = [0, 1, 0, 1]
NAMES = ["train", "train", "test", "val"]
DOGS = ["dog", "cat", "dog"]
# fmt: off
LABELS: dict[str, tuple[Any, list[Any], tuple[str, ...]]] = {
    "json: numbers": (lambda: tars_of(label=[0, 1, 0, 1]), [0, 1, 0, 1], ("0", "1")),
    "json: words": (lambda: tars_of(label=DOGS), [1, 0, 1], ("cat", "dog")),
    "json: a number alone": (lambda: tars({"json": 0}, {"json": 1}, {"json": 2}), [0, 1, 2], ()),
    **{f"json: {name}": (lambda name=name: tars_of(width=[6, 6, 6], **{name: DOGS}), [1, 0, 1], ("cat", "dog"))
       for name in ("Label", "class_index", "diagnosis", "species")},
    "txt: words": (lambda: tars(*[{"txt": "cat"}, {"txt": "dog"}] * 2), [0, 1, 0, 1], ("cat", "dog")),
    "cls before all": (lambda: tars(*[{"cls": 7, "json": '{"label": 1}', "txt": "a caption"}] * 2), [7, 7], ()),
    "TFRecord: large": (lambda: records({"label": 2**40}, {"label": 2**40 + 1}), [2**40, 2**40 + 1], ()),
    "TFRecord: texts beside numbers": (lambda: records(*({"image/class/label": 1 + n, "image/class/text": f"kind {n}"} for n in range(2))), [1, 2], ("0", "kind 0", "kind 1")),
    "TFRecord: lists of one class": (lambda: records(*({"label": [int(n == place) for place in range(3)]} for n in (2, 0, 1))), [2, 0, 1], ()),
    "Parquet: words": (lambda: table(label=DOGS), [1, 0, 1], ("cat", "dog")),
    **{f"{name}: y": (lambda make=make: make(y=[2, 0, 1]), [2, 0, 1], ()) for name, make in (("Parquet", table), ("json", tars_of), ("TFRecord", features_of))},
    "Parquet: parts": (lambda: table(label=[0.5, 1.0, 2.0]), [0.5, 1.0, 2.0], ()),
    "Parquet: lists beside": (lambda: table(tags=[["a"], ["b"], []], breed=DOGS), [1, 0, 1], ("cat", "dog")),
    "TFDS: names beside": (lambda: {**records({"label": 0}, {"label": 2}), "label.labels.txt": "ox\nhen\ncow\n"}, [0, 2], ("ox", "hen", "cow")),
    "LMDB: words, and a number among them": (lambda: database("größer", "7", "none"), [1, 0, 2], ("7", "größer", "none")),
    "LMDB: folders in keys": (lambda: {"test.lmdb": lmdb_of({f"{name}.png".encode(): picture(n) for n, name in enumerate(("cat/1", "cat/2", "dog/1"))})}, [0, 0, 1], ("cat", "dog")),
}
# fmt: on


@pytest.mark.parametrize("case", LABELS)
def test_labels_are_found_where_people_put_them(case: str) -> None:
    """Numbers or words, under the names that tables have."""
    make, values, classes = LABELS[case]
    found = read(make())
    assert (labels(found), found.classes) == (values, classes)
    assert not any("labels.txt" in note for note in found.notes)


@pytest.mark.parametrize("make", [table, tars_of, features_of])
def test_y_beside_x_is_a_place_and_no_label(make: Any) -> None:
    """They may be asked about; nothing is learned from one of the two."""
    with suppress(LayoutError):
        assert read(make(x=[0.5, 0.25, 1.5], y=[2.5, 0.25, 1.0])).targets is None


SIDES = {f"image/object/bbox/{side}": [value] * 2 for side, value in
         (("xmin", 0.25), ("ymin", 0.5), ("xmax", 0.75), ("ymax", 1.0))}  # fmt: skip


@pytest.mark.parametrize("none", [{name: [] for name in SIDES}, {}], ids=["empty", "not written"])
def test_boxes_of_tensorflows_records(none: dict[str, Any]) -> None:
    """Any number for each image, none for some; parts of width and height."""
    texts = {"image/object/class/label": [1, 2], "image/object/class/text": ["car", "dog"]}
    found = read(records(SIDES | texts, none))
    assert isinstance(found.targets, Boxes)
    assert (found.targets.relative, found.targets.offsets.tolist()) == (True, [0, 2, 2])
    assert found.targets.boxes.tolist() == [[0.25, 0.5, 0.75, 1.0]] * 2
    assert (found.targets.columns["labels"].tolist(), found.classes) == ([1, 2], ("0", "car", "dog"))
    assert any("1 record" in note for note in found.notes) == (not none)


MASKS = [grey(np.full((8, 6), n % 3, np.uint8)) for n in range(4)]


# Images are 8 x 6, and these boxes only xywh.
BBOX: Any = [[[1, 2, 3, 4], [0, 0, 6, 8]], [], [[3, 5, 2, 2.5]]]
CORNERS = [[[x, y, x + w, y + h] for x, y, w, h in row] for row in BBOX]
WHICH = [[1, 0], [], [1]]


def objects(boxes: Any = BBOX, labels: Any = WHICH, box: str = "bbox", label: str = "category", **more: Any) -> Any:
    """A list for each field of the objects of three images."""
    fields = {box: boxes, label: labels, **more}
    return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]


def typed(values: Any, others: Any) -> Any:
    """A column of these values, of the type of others."""
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'colabstage[arrow]'")
    return arrow.array(values, arrow.array(others).type)


def parts_of(boxes: Any, form: str) -> Any:
    """Boxes as parts of width and height, in a form."""
    made: Any = {
        "xyxy": lambda x, y, w, h: (x, y, x + w, y + h),
        "cxcywh": lambda x, y, w, h: (x + w / 2, y + h / 2, w, h),
    }
    return [
        [[own / side for own, side in zip(made[form](*one), (6, 8, 6, 8), strict=True)] for one in row] for row in boxes
    ]


def tfds(form: str = "", **more: list[Any]) -> dict[str, bytes]:
    """Records of TFDS with boxes of a form, and what it writes beside them."""
    sides = (8, 6, 8, 6) if form.startswith("REL") or not form else (1,) * 4
    boxes = [
        [own / side for box in row for own, side in zip([box[at] for at in (1, 0, 3, 2)], sides, strict=True)]
        for row in CORNERS
    ]
    kind = "tensorflow_datasets.core.features."
    box = {"pythonClassName": f"{kind}bounding_boxes.BBoxFeature", "boundingBox": {"bboxFormat": form} if form else {}}
    inner = {"pythonClassName": f"{kind}features_dict.FeaturesDict", "featuresDict": {"features": {"bbox": box}}}
    outer = {"pythonClassName": f"{kind}sequence_feature.Sequence", "sequence": {"feature": inner}}
    made = features_of(**{"objects/bbox": boxes, "objects/label": WHICH, "objects/is_crowd": WHICH}, **more)
    described = {"featuresDict": {"features": {"image": {}, "objects": outer}}}
    return {**made, "features.json": json.dumps(described).encode(), "objects-label.labels.txt": b"cat\ndog\n"}


def images_and(name: str, text: str) -> dict[str, Any]:
    return {**{f"{n}.png": picture(n) for n in range(3)}, name: text}


PETS = {
    "objects": {
        "bbox": {},
        "pose": {"_type": "List", "feature": kinds("left")},
        "category": {"_type": "List", "feature": kinds("cat", "dog")},
    }
}
NAMED = [["dog", "cat"], [], ["dog"]]
BOXED = "3 images, 3 boxes: cat 1, dog 2"
# fmt: off
STATED: dict[str, tuple[Any, str, str]] = {
    "the schema's names": (lambda: hub(PETS, objects=objects(id=WHICH, pose=WHICH)), BOXED, "written as xywh; left out: 'id', 'pose'"),
    **{f"words under '{name}'": (lambda name=name: table(objects=objects(labels=NAMED, label=name)), BOXED, "") for name in ("categories", "label", "class_name", "type")},
    "words beside numbers": (lambda: table(objects=objects(label="category_id", category_name=NAMED)), BOXED, ""),
    **{f"the field '{name}'": (lambda name=name: table(**{name: objects(labels=NAMED)}), BOXED, "") for name in ("annotations", "faces", "labels")},
    "a column for each field": (lambda: table(bboxes=BBOX, category=NAMED), BOXED, ""),
    "corners by their name": (lambda: table(objects=objects([[[1, 1, 2, 2]]], [["cat"]], "boxes")), "1 images, 1 boxes: cat 1", "xyxy"),
    "sizes by their area": (lambda: table(objects=objects([[[0, 1, 2, 2]]], [["cat"]], area=[[4.0]])), "1 images, 1 boxes: cat 1", "xywh"),
    "one box reaches outside": (lambda: table(objects=objects([*[[[3, 3, 2, 2]]] * 8, [[4, 6, 9, 9]]], [["cat"]] * 9)), "9 images, 9 boxes: cat 9", "xywh"),
    **{f"parts of the image, {form}": (lambda form=form: table(objects=objects(parts_of(BBOX, form), NAMED)), BOXED, f"{form} as parts") for form in ("xyxy", "cxcywh")},
    "boxes before a class of the scene": (lambda: hub(PETS | {"scene": ["in", "out"]}, scene=[0, 1, 0], objects=objects()), BOXED, "Not used: 'scene'"),
    "a test without boxes": (lambda: {"train.parquet": table(objects=objects(labels=NAMED))["a.parquet"], "test.parquet": table(objects=typed(objects([[]] * 3, [[]] * 3), objects(labels=NAMED)))["a.parquet"]}, f"train: {BOXED}", "3 records of 'test'"),
    **{f"masks under '{name}'": (lambda name=name: table(**{name: MASKS[:3]}), "3 masks", "") for name in ("annotation", "label", "segmentation_mask", "seg")},
    **{f"TFDS: {form or 'nothing stated'}": (lambda form=form: tfds(form), BOXED, "yxyx") for form in ("", "REL_YXYX", "YXYX")},
    "TFDS: lists of classes beside": (lambda: tfds(labels=[[1, 0], [0], [1]]), BOXED, "'labels'"),
    "TFDS: masks before a class": (lambda: features_of(annotation=MASKS[:3], label=[0, 1, 0]), "3 masks", "'label'"),
    "json: a list of objects": (lambda: tars_in_order(*({"objects": [{"bbox": box, "category": name} for box, name in zip(*row, strict=True)]} for row in zip(BBOX, NAMED, strict=True))), BOXED, "xywh"),
    "json: a field of each": (lambda: tars_in_order(*objects(CORNERS, NAMED, "boxes", "labels")), BOXED, "xyxy"),
    "json: a fact of the image beside its boxes": (lambda: tars_in_order(*(one | {"type": n, "name": str(n)} for n, one in enumerate(objects(CORNERS, NAMED, "boxes", "labels")))), BOXED, "left out: 'type', 'name'"),
    "lines of JSON": (lambda: images_and("metadata.jsonl", "".join(json.dumps({"file_name": f"{n}.png", "objects": one}) + "\n" for n, one in enumerate(objects(labels=NAMED)))), BOXED, "xywh"),
    "a table with JSON in it": (lambda: images_and("labels.tsv", "path\tobjects\n" + "".join(f"{n}.png\t{json.dumps(one)}\n" for n, one in enumerate(objects(labels=NAMED)))), BOXED, "xywh"),
    "DeepLab's masks": (lambda: records(*({"image/segmentation/class/encoded": mask} for mask in MASKS)), "4 masks", ""),
    "the Hub's names of masks": (lambda: {**table(label=MASKS[:3]), "id2label.json": '{"0": "sky", "1": "road"}'}, "3 masks of sky, road", ""),
    "a test without masks": (lambda: {"train.parquet": hub({}, mask=MASKS[:3])["a.parquet"], "test.parquet": hub({}, mask=typed([None] * 3, [MASKS[:3][0]]))["a.parquet"]}, "train: 3 masks", "3 records of 'test'"),
    # Splits of the file's name first, then of the folders; of a field where it has names of splits alone.
    **{f"the shard {place}": (lambda place=place: {place: tars({"cls": 0})["a.tar"]}, expected, "") for place, expected in (("train/test-0.tar", "test: 1 numbers"), ("val/0.tar", "val: 1 numbers"), ("train-val-0.tar", "1 numbers"), ("constraint-0.tar", "1 numbers"))},
    "splits of a feature": (lambda: records(*({"label": label, "image/split": name} for label, name in zip(FOUR, NAMES, strict=True))), "train: 0 1, 1 1; val: 1 1; test: 0 1", ""),
    "splits of a column of words": (lambda: table(label=FOUR, subset=["north", "south", "north", "north"]), "0 2, 1 2", ""),
    "splits of a column after one of words": (lambda: table(label=FOUR, subset=["north", "south", "north", "north"], split=["train", "train", "train", "test"]), "train: 0 2, 1 1; test: 1 1", "'subset'"),
    "splits of keys of LMDB": (lambda: {"data.mdb": lmdb_of({f"{split}/{n}.png".encode(): picture(n) for split in ("test", "train") for n in range(2)})}, "train: 2 without labels; test: 2 without labels", ""),
    "splits of a name of TensorFlow's tools": (lambda: {"test.record": records_of([{"image": picture(0), "label": 1}])}, "test: 1 numbers", ""),
    # What is left out, with how much it is; what another program computed of the data is no data.
    "left out: captions": (lambda: tars(*({"txt": f"photo {n}"} for n in range(4))), "4 without labels", "captions"),
    "left out: a sample without an image": (lambda: {"a.tar": tar_of([{"png": picture(0), "cls": 0}, {"cls": 1}])}, "1 numbers", "1 sample"),
    "left out: files of another kind": (lambda: tars({"cls": 0, "xyz": ""}, {"cls": 1, "xyz": ""}), "2 numbers", "xyz"),
    "left out: a record without an image": (lambda: {"a.tfrecord": records_of([{"image": picture(0), "label": 1}, {"label": 2}]), "b.tfrecord": b""}, "1 numbers", "1 record"),
    "left out: lists beside labels": (lambda: records(*({"label": n, "text": ["a", "b"][: n + 1]} for n in range(2))), "2 numbers", "'text'"),
    "left out: a column that is NaN": (lambda: table(label=[float("nan")] * 2, species=["a", "b"]), "a 1, b 1", "'label'"),
    **{f"left out: pictures in a README of {kind}": (lambda kind=kind: {KINDS[kind][0].format("train"): KINDS[kind][1](range(60)), **{f"assets/{n}.png": picture(n) for n in range(3)}}, "train: 0 20, 1 20, 2 20", "assets/0.png")
       for kind in ("parquet", "webdataset")},
    "left out: what datasets computes": (lambda: {"train.arrow": stream_of(columns_of(range(4))), "cache-0123.arrow": stream_of({"x": [1]})}, "train: 4 numbers", ""),
    "boxes in a list of objects": (lambda: table(objects=[[{"bbox": box, "category": name} for box, name in zip(*row, strict=True)] for row in zip(BBOX, NAMED, strict=True)]), BOXED, "xywh"),
    "corners, proved by the images": (lambda: table(objects=objects(CORNERS, NAMED)), BOXED, "xyxy"),
    "the first column of classes": (lambda: hub({"digit": ["zero", "one"]}, label=[4, 5], digit=[0, 1]), "one 1, zero 1", ""),
}
# fmt: on


@pytest.mark.parametrize("case", STATED)
def test_fields_of_records_are_found_or_noted(case: str) -> None:
    """Boxes and masks, whatever the field is called (how boxes are written is proved by the images, or stated by name or
    area); splits; and what is left out."""
    make, expected, noted = STATED[case]
    found = read(make())
    assert described(found) == expected
    assert noted in " ".join(found.notes)
    if isinstance(found.targets, Masks):
        assert [bytes(found.targets.source.read(row)) for row in range(len(found))] == MASKS[: len(found)]
    if expected == BOXED:
        assert isinstance(found.targets, Boxes)
        corners = found.targets.boxes * ([6, 8, 6, 8] if found.targets.relative else 1)
        np.testing.assert_allclose(corners, [*itertools.chain(*CORNERS)], atol=1e-6)


@pytest.mark.parametrize("channels", [3, 1])
def test_pixels_in_records_are_images(channels: int) -> None:
    """As TensorFlow's first examples wrote MNIST and CIFAR-10."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, channels), np.uint8)
    names = {"height": 5, "width": 6, "depth": 3} if channels == 3 else {"rows": 5, "cols": 6}
    made = records_of({"image_raw": row.tobytes(), "label": n, **names} for n, row in enumerate(pixels))
    np.testing.assert_array_equal(contents(read({"train.tfrecords": made})), pixels)


def clips_in_tar(clips: Sequence[NDArray[np.int16]]) -> dict[str, bytes]:
    return {"a.tar": tar_of([{"wav": pcm(one), "cls": n} for n, one in enumerate(clips)])}


def clips_in_parquet(clips: Sequence[NDArray[np.int16]], name: str = "audio") -> dict[str, bytes]:
    """The same as `datasets` keeps them."""
    column = [{"bytes": pcm(one), "path": f"{n}.wav"} for n, one in enumerate(clips)]
    numbers = list(range(len(clips)))
    if name == "audio":
        return {"a.parquet": parquet_of({name: column, "label": numbers})}
    arrow, file = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'colabstage[arrow]'"), io.BytesIO()
    noted = {"huggingface": json.dumps({"info": {"features": {name: {"_type": "Audio"}}}})}
    rows = arrow.table({name: column, "label": numbers}).replace_schema_metadata(noted)
    pytest.importorskip("pyarrow.parquet").write_table(rows, file)
    return {"a.parquet": file.getvalue()}


@pytest.mark.parametrize("make", [clips_in_tar, clips_in_parquet, partial(clips_in_parquet, name="call")])
def test_clips_of_sound_are_rows(make: Any, tmp_path: Path) -> None:
    """Of one length; of other lengths as audio_clips says."""
    clips = [np.random.default_rng(n).integers(-999, 999, 50).astype(np.int16) for n in range(4)]
    found = read(make(clips))
    np.testing.assert_array_equal(contents(completed(found)), np.stack(clips) / np.float32(32768))
    assert labels(found) == [0, 1, 2, 3]
    ragged = make([one[: 40 + n] for n, one in enumerate(clips)])
    with pytest.raises(LayoutError, match=r"audio_clips\(length=43\)"):
        read(ragged)
    layout = audio_clips(length=43, dtype="int16")
    found = read(ragged, layout)
    assert isinstance(found.inputs, Arrays)
    np.testing.assert_array_equal(contents(found)[0], [*clips[0][:40], 0, 0, 0])
    pack_dataset(write_files(tmp_path / "set", ragged), tmp_path / "out.h5", layout=layout, progress=False)
    rows = {y: x.tolist() for x, y in dataset_h5(tmp_path / "out.h5", return_index=False)}
    assert rows == {n: [*one[: 40 + n].tolist(), *[0] * (3 - n)] for n, one in enumerate(clips)}


# --- notes and refusals ------------------------------------------------------------------------------------------------


def ordered(*files: tuple[str, bytes]) -> dict[str, bytes]:
    """A tar in which a name may come twice."""
    return {"a.tar": archives.tar_of(*((name, tarfile.REGTYPE, "", content) for name, content in files))}


JPG, ZERO = ("1.jpg", b""), ("1.cls", b"0")
RAW = {"image_raw": bytes(90), "height": 5, "width": 6, "depth": 3}
PAIR = [{**RAW, "label": [1, 0, 0]}] * 2
KEYS = {**SIDES, "image/object/class/label": [3, 3]}
# fmt: off
REFUSED: dict[str, tuple[Any, str]] = {
    "tar: a name twice": (lambda: ordered(JPG, ZERO, JPG), r"'1\.jpg'"),
    "tar: no JSON": (lambda: ordered(JPG, ("1.json", b"{")), r"1\.json'"),
    "tar: no text": (lambda: ordered(JPG, ("1.cls", b"\xff\xfe\xff")), "'a.tar/1'"),
    "tar: no label": (lambda: ordered(JPG, ZERO, ("2.jpg", b"")), r"1 of 2"),
    "tar: a word among numbers": (lambda: ordered(JPG, ZERO, ("2.jpg", b""), ("2.cls", b"cat")), r"cat|2\.jpg"),
    "tar: more than 64 bits": (lambda: ordered(JPG, ("1.cls", b"9" * 30)), r"64 bits"),
    "tar: a list as label": (lambda: tars({"json": '{"label": [0, 1]}'}), r"000000\.jpg'.*\[0, 1\]"),
    "tar: no split": (lambda: tars({"json": '{"label": 0, "split": "train"}'}, {"json": '{"label": 1}'}), r"a\.tar.*'split'"),
    "tar: a cls and a class": (lambda: tars(*({"cls": n % 2, "class": n // 2} for n in range(4))), "cls.*class.* differently"),
    "tar: some masks": (lambda: ordered(JPG, ("1.seg.png", MASKS[0]), ("2.jpg", b"")), r"'a\.tar/2\.jpg'"),
    "tar: images and arrays": (lambda: ordered(JPG, ZERO, ("2.npy", npy(np.zeros(3))), ("2.cls", b"0")), r"2\.npy|1\.jpg"),
    "records: no image": (lambda: {"a.tfrecord": records_of([{"text": "words", "label": 1}])}, "label, text"),
    "records: no Example": (lambda: {"a.tfrecord": record(b"\x0a" + b"\xff" * 11)}, r"a\.tfrecord\[0\]'"),
    "records: a label in two features": (lambda: records({"label": 1, "image/label": 2}), "another label in '"),
    "records: a longer list": (lambda: {"a.tfrecord": records_of([*PAIR, {**RAW, "label": [0, 1, 0, 0]}])}, r"\[2\]'.*\[0, 1, 0, 0\]"),
    "records: another height": (lambda: {"a.tfrecord": records_of([*PAIR, PAIR[0] | {"height": 7}])}, r"\[2\].*height and width"),
    "records: pixels that may be floats": (lambda: {"a.tfrecord": records_of([{"image_raw": bytes(120), "height": 5, "width": 6, "label": 1}])}, "no image file.*height, image_raw"),
    "records: pixels after files": (lambda: records({"label": 1}, {"label": 1, "image": bytes(90), **{key: value for key, value in RAW.items() if key != "image_raw"}}), r"\[1\].*height and width"),
    "records: two of one class": (lambda: {"a.tfrecord": records_of([*PAIR, {**RAW, "label": [1, 1, 0]}])}, r"\[1, 1, 0\].*'label'"),
    "records: boxes and masks": (lambda: records({**KEYS, "image/segmentation/class/encoded": MASKS[0]}), r"boxes .*masks"),
    "records: no records": (lambda: {"train-00000-of-00001": b"what is this, if not a record?"}, "TFRecord"),
    "hub: a box of either form": (lambda: table(objects=[{"bbox": [[0, 0, 2, 3]], "category": [0]}]), "xyxy"),
    "hub: parts of either form": (lambda: table(objects=[{"bbox": [[0.1, 0.1, 0.2, 0.3]], "category": [0]}]), r"xyxy as well as xywh.* called 'boxes'; or give"),
    "hub: a flag beyond its type": (lambda: table(objects=objects(CORNERS, WHICH, "boxes", iscrowd=[[0, 300], [], [0]])), r"parquet\[0\]': it has 300 under 'iscrowd'.*uint8"),
    "hub: boxes and masks": (lambda: table(objects=[{"bbox": [[1, 2, 3, 4]], "category": [0]}], mask=[MASKS[0]]), r"'mask' masks.*load_dataset\('dataset', split='train'\).*remove_columns\('mask'\)"),
    "hub: two masks": (lambda: table(mask=[MASKS[0]], label=[MASKS[1]]), r"'mask', 'label' may all be masks.*remove_columns\(\['label'\]\)"),
    "hub: two fields of boxes": (lambda: table(faces=[{"bbox": [[1, 2, 3, 4]], "category": [0]}], hands=[{"bbox": [[1, 2, 3, 4]], "category": [0]}]), "'faces', 'hands' all hold boxes.*'objects'"),
    "hub: a box of no named class": (lambda: hub({"objects": {"category": kinds("cat")}}, objects=[{"boxes": [[1, 2, 3, 4]], "category": [1]}]), "category is 1, and 1 classes"),
    "parquet: bytes that are no mask": (lambda: table(mask=[b"\x93NUMPY"]), "'mask' beside the images of"),
    "hub: a row without a mask": (lambda: table(mask=[MASKS[0], None]), "row 1 has no bytes in 'mask'"),
    "TFDS: no features.json": (lambda: features_of(**{"objects/bbox": [[0.0, 0.0, 0.5, 1.0]]}), r"'objects/bbox'.*features\.json"),
    "hub: numbers in place of objects": (lambda: images_and("metadata.jsonl", "".join(json.dumps({"file_name": f"{n}.png", "objects": [5] if n else [{"bbox": [1, 2, 3, 4], "label": "cat"}]}) + "\n" for n in range(3))), "'boxes'"),
    "json: boxes and masks": (lambda: {"a.tar": tar_of([{"png": picture(0), "seg.png": MASKS[0], "json": '{"boxes": [[1, 2, 3, 4]], "labels": [0]}'}])}, "boxes and masks.* function"),
    **{f"json: {odd} in a box": (lambda odd=odd: {"a.tar": tar_of([{"png": picture(0), "json": json.dumps({"boxes": [[1, 2, 3, odd]], "labels": [0]})}])}, r"a\.tar/000000\.png': .*\[1, 2, 3, .*four")
       for odd in ("x", None, [4], float("nan"))},
    **{f"{name}: no images": (lambda write=write, name=name: {name: write({"text": ["a"], "label": [1]})}, "text, label") for name, write in (("a.parquet", parquet_of), ("a.arrow", stream_of))},
    **{f"{name}: an image elsewhere": (lambda write=write, name=name: {name: write({"image": [{"bytes": b"x", "path": ""}, {"bytes": None, "path": "1.jpg"}]})}, "row 1|bytes")
       for name, write in (("a.parquet", parquet_of), ("a.arrow", stream_of))},
    "parquet: other columns": (lambda: {"a.parquet": parquet_of(columns_of(range(2))), "b.parquet": parquet_of({"image": columns_of(range(2))["image"]})}, r"b\.parquet"),
    **{f"parquet: labels in {first} alone": (lambda first=first, second=second: {f"{first}.parquet": parquet_of(columns_of(range(2))), f"{second}.parquet": parquet_of({"image": columns_of(range(2))["image"], "id": [1, 2]})}, rf"{second}\.parquet.*only='{first}\.parquet'")
       for first, second in (("train", "test"), ("train", "val"))},
    **{f"{kind}: {copy}": (lambda kind=kind, copy=copy, first=first: dict.fromkeys((first, copy), KINDS[kind][1](range(3))), f"'{re.escape(copy)}' looks like a copy of '{first}'.*only='")
       for kind, first, copy in (("webdataset", "train.tar", "train (1).tar"), ("tfrecord", "a.tfrecord", "Copy of a.tfrecord"), ("parquet", "a.parquet", "a - Copy.parquet"), ("lmdb", "a/data.mdb", "a (1)/data.mdb"))},
    "records: the image by another name": (lambda: {"a.tfrecord": records_of([{"image": picture(0), "label": 1}]), "b.tfrecord": records_of([{"image/encoded": picture(1), "label": 1}])}, r"b\.tfrecord\[0\].*'image/encoded'.*'image'"),
    "records: clips": (lambda: {"a.tfrecord": records_of([{"audio": wav(), "label": 1}])}, "audio, label"),
    "LMDB: a label without an image": (lambda: {"db/data.mdb": lmdb_of({b"image-1": picture(1), b"label-1": b"1", b"label-2": b"1"})}, r"label of '2'"),
    "parquet: lists as labels": (lambda: table(label=[[0, 1]] * 4), "'label'.*list"),
    **{f"parquet: {missing} as label": (lambda missing=missing: table(label=[1.0, missing, 0.0, missing]), r"\b2 of 4\b") for missing in (None, float("nan"))},
    **{f"{name}: the split {word}": (lambda write=write, name=name, word=word: {name: write(columns_of(range(4), split=["train", word, "train", "test"]))}, f"'{word}'")
       for word in ("PublicTest", "") for name, write in (("a.parquet", parquet_of), ("a.arrow", stream_of))},
    **{f"hub: the split {number}": (lambda number=number: hub({"split": ["train", "test"]}, label=[0, 1], split=[0, number]), "'split' names splits and other")
       for number in (-1, 2, None)},
    "parquet: another split than the file": (lambda: {f"{name}.parquet": parquet_of(columns_of(range(2), split=[name, "test"])) for name in ("train", "test")}, r"'train\.parquet\[1\]'.*'test'"),
    "parquet: two datasets": (lambda: {f"{name}-0.parquet": parquet_of(columns_of(range(2))) for name in ("en/train", "en/test", "de/train", "de/test")}, r"'de/test-0.parquet', 'en/test-0.parquet'.*only='de'"),
    "parquet: a number that nothing calls a label": (lambda: table(score=[0.5, 0.25]), "'score' beside the images of"),
    "LMDB: a pickle": (lambda: {"db/data.mdb": lmdb_of({b"1": pickle.dumps((b"x", 1))})}, "Pickles are never"),
    **{f"LMDB: says {said} samples": (lambda said=said: {"db/data.mdb": lmdb_of({b"image-1": picture(1), b"image-2": picture(2), b"num-samples": said.encode()})}, rf"says that it has {said} samples, and has 2")
       for said in ("1", "3")},
}
# fmt: on


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_broken_or_cannot_be_told_is_named(case: str) -> None:
    """One typed error with the sample; no other layout is asked."""
    make, named = REFUSED[case]
    with pytest.raises(LayoutError, match=named):
        read(make())


@pytest.mark.parametrize("names", [["n01/1.jpg", "n02/2.jpg"], ["1.jpg", "classes.txt"]])
def test_tars_of_other_layouts_are_not_claimed(names: list[str]) -> None:
    with pytest.raises(LayoutError, match="WebDataset"):
        read({"d.tar": tar_bytes(dict.fromkeys(names, b""))}, "webdataset")


def test_what_is_said_in_a_clip_is_no_label(tmp_path: Path) -> None:
    """A tar of folders of clips with a text beside each has the folders as classes, as it has without the texts."""
    sound = pcm(np.zeros(9, np.int16))
    files = {
        f"{word}/{n}.{end}": data
        for word in ("yes", "no")
        for n in range(2)
        for end, data in (("wav", sound), ("txt", b"a word"))
    }
    write_files(tmp_path, {"a.tar": tar_bytes(files)})
    with open_tree(tmp_path / "a.tar", spool=tmp_path) as tree:
        assert detect_layout(tree, "audio").classes == ("no", "yes")
        with pytest.raises(LayoutError):
            detect_layout(tree, "webdataset")


def test_a_table_of_paths_belongs_to_the_images_that_it_names() -> None:
    files = {"images/1.jpg": b"", "labels.parquet": parquet_of({"path": ["images/1.jpg"], "label": ["cat"]})}
    assert read(files).layout == "table"
    with pytest.raises(LayoutError):
        read(files, "arrow")


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_cut_files_are_named(kind: str) -> None:
    """At any place: never fewer samples in silence, nor a process that ends by a signal."""
    name, write = KINDS[kind]
    name, whole = "a.tfrecord" if kind == "tfrecord" else name.format("train"), write(range(12))
    ends = [len(whole) - 30, len(whole) // 2 - 3, 100, 5]
    if kind == "webdataset":
        ends = [len(whole.rstrip(b"\0")) - 100, 3000, 700]
    elif kind == "lmdb":
        ends = [len(whole) - 4096, 8192, 4096, 100]
    for end in ends:
        with pytest.raises(CorruptArchiveError, match=re.escape(name.rpartition("/")[2])):
            read({name: whole[:end]}, kind.partition(",")[0].replace("parquet", "arrow"))


def flipped(content: bytes, place: int) -> bytes:
    """One bit of it is another one."""
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


def test_a_damaged_length_of_a_record_is_named() -> None:
    """It would send the reader anywhere."""
    content = records_of({"image": picture(n), "label": n} for n in range(3))
    second = 16 + struct.unpack_from("<Q", content)[0]
    with pytest.raises(CorruptArchiveError, match=r"a\.tfrecord.*record 1"):
        read({"a.tfrecord": flipped(content, second + 2)})


def test_a_damaged_image_of_a_record_costs_that_sample(tmp_path: Path) -> None:
    """By its checksum, and by name."""
    content = records_of({"image": picture(n), "label": n} for n in range(4))
    damaged = flipped(content, content.index(picture(2)) + 60)
    source = read({"a.tfrecord": damaged}).inputs.source
    assert source.read(1) == picture(1)
    with pytest.raises(CorruptArchiveError, match=r"a\.tfrecord\[2\]'"):
        source.read(2)
    folder = write_files(tmp_path / "set", {"a.tfrecord": damaged})
    with pytest.raises((CorruptArchiveError, DecodeError), match=r"a\.tfrecord\[2\]"):
        pack_dataset(folder, tmp_path / "out.h5", progress=False)
    report = pack_dataset(folder, tmp_path / "out.h5", on_error="skip", progress=False)
    assert ["a.tfrecord[2]" in line for line in report.skipped] == [True]


def test_damaged_examples_are_read_as_something_or_refused() -> None:
    """Wherever a message is cut or a byte is another one: no other error."""
    data = example({"image": picture(0)[:40], "label": [1], "weight": [0.5, 2.0]})
    cut = [data[:end] for end in range(0, len(data), 2)]
    for one in (*cut, *(data[:n] + bytes([data[n] ^ 0x85]) + data[n + 1 :] for n in range(0, len(data), 2))):
        try:
            read({"a.tfrecord": record(one)}, "tfrecord")
        except ColabstageError:
            continue
    with pytest.raises(LayoutError, match=r"a\.tfrecord\[0\]"):
        read({"a.tfrecord": record(data[:-1])}, "tfrecord")


def test_a_table_that_changes_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are others than those that were counted."""
    # What a slow disk gave would be held in memory, and the older rows read from there.
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    write_files(tmp_path / "set", {"a.parquet": parquet_of(columns_of(range(9)))})
    with open_tree(tmp_path / "set", spool=tmp_path) as tree:
        source = detect_layout(tree).inputs.source
        write_files(tmp_path / "set", {"a.parquet": parquet_of(columns_of(range(5)))})
        with pytest.raises((CorruptArchiveError, SourceReadError), match=r"a\.parquet"):
            source.read(0)


def test_two_tables_of_one_database_are_read_at_once(tmp_path: Path) -> None:
    """As by two workers in threads: the package opens a file once in a process."""
    files = write_files(tmp_path, {"data.mdb": lmdb_of({b"%d" % n: picture(n) for n in range(4)})})
    tables = [detect_layout(open_tree(files, spool=tmp_path)) for _ in range(2)]

    def read_all(table: SampleTable) -> list[bytes]:
        return [bytes(table.inputs.source.read(row)) for _ in range(200) for row in range(4)]

    with ThreadPoolExecutor(4) as pool:
        assert all(found == [picture(n) for n in range(4)] * 200 for found in pool.map(read_all, tables * 2))


def test_without_lmdb_there_is_an_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    files = database("1", "2")
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingDependencyError, match=r"data\.mdb'.*pip install lmdb"):
        read(files, "lmdb")


# --- how much is read -------------------------------------------------------------------------------------------------


def test_images_are_passed_over_while_labels_of_records_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local file is read in full once, when its images are packed; these are larger than what is read at a time."""
    images = [b"\xff\xd8\xff" + bytes([number]) * (16 << 20) for number in range(2)]
    content = records_of({"image": image, "label": n} for n, image in enumerate(images))
    write_files(tmp_path / "set", {"a.tfrecord": content})
    taken: list[int] = []
    pread = os.pread

    def counted(handle: int, length: int, offset: int) -> bytes:
        data = pread(handle, length, offset)
        taken.append(len(data))
        return data

    monkeypatch.setattr("os.pread", counted)
    with open_tree(tmp_path / "set", spool=tmp_path) as tree:
        found = detect_layout(tree)
        assert labels(found) == [0, 1]
        assert 0 < sum(taken) < 0.6 * len(content)
        assert contents(found) == images


def test_a_slow_shard_is_scanned_in_few_reads() -> None:
    """A round trip costs more than the bytes between two headers."""
    tree = MemoryTree({"a.tar": tar_of([{"png": bytes(50_000), "cls": n} for n in range(100)])})
    tree.pause_s = 0.003
    assert labels(detect_layout(tree)) == [*range(100)]
    assert tree.reads.total() < 20


def test_images_of_a_table_are_not_read_with_their_labels() -> None:
    """These are a column of their own; the sizes of the images are known when it is packed."""
    images = [noise(n, size=(64, 64)) for n in range(64)]
    tree = MemoryTree({"train.parquet": parquet_of({"image": images, "label": [0, 1] * 32})})
    tree.pause_s = 0.003
    found = detect_layout(tree)
    assert tree.nbytes.total() < sum(map(len, images)) / 4
    assert completed(found).inputs.source.sizes.tolist() == list(map(len, images))
