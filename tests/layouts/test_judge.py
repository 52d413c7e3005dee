"""The judge: of a dataset with one file too many the result is the truth, or a refusal that names the file."""

import io
import json
import re
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from colabstage.errors import ColabstageError, LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.options import Boxes, Masks, SampleTable, Values, folders, parts
from tests.layouts.described import described
from tests.layouts.known import LABELME, MemoryTree, coco, cvat, each, rows, tar, voc


@cache
def picture(value: int = 0, side: int = 64) -> bytes:
    """A small image that no other number gives."""
    file = io.BytesIO()
    Image.fromarray(np.full((side, side), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def archive() -> bytes:
    """A zip with an image."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        out.writestr("more/1.png", picture())
    return file.getvalue()


def files(paths: str, texts: dict[str, Any] | None = None) -> dict[str, bytes]:
    """Files by names with braces; images are small and all different, masks are 0 and 255."""
    found = {}
    for number, name in enumerate(name for pattern in paths.split() for name in each(pattern)):
        found[name] = (
            picture(255 * (number % 2)) if "mask" in name.lower() or "label" in name.lower() else picture(number)
        )
    for pattern, text in (texts or {}).items():
        content = text if isinstance(text, bytes) else (text if isinstance(text, str) else json.dumps(text)).encode()
        found |= dict.fromkeys(each(pattern), content)
    return found


def stated(made: dict[str, bytes], layout: Any = "auto") -> str:
    """What is found, in words."""
    found = detect_layout(MemoryTree(made), layout)
    return f"{found.layout}; {described(found)}"


# --- the property -----------------------------------------------------------------------------------------------------

_CLASSES = st.lists(st.sampled_from(["cat", "dog", "owl", "red fox"]), min_size=2, max_size=3, unique=True)


class Truth(NamedTuple):
    """A dataset of which it is known what is meant."""

    made: dict[str, bytes]
    samples: list[str]
    """The names of its images."""
    classes: list[str]
    """The class of each, or of its box."""
    splits: list[str]
    """The split of each; nothing where there is none."""
    top: str
    """The folder that all is in."""

    @property
    def stated(self) -> dict[str, str]:
        """What is right of each image."""
        return dict(zip(self.samples, self.classes, strict=True))


def _voc_files(names: list[str], classes: list[str], folder: str) -> dict[str, bytes]:
    return {f"{folder}/{_stem(name)}.xml": voc(label).encode() for name, label in zip(names, classes, strict=True)}


def _yolo_files(names: list[str], classes: list[str], folder: str) -> dict[str, bytes]:
    # The box of VOC's files, in an image of 64 x 64.
    known = sorted(set(classes))
    lines = {
        name: f"{known.index(label)} 0.34375 0.2734375 0.5625 0.390625"
        for name, label in zip(names, classes, strict=True)
    }
    made = {f"{folder}/{_stem(name)}.txt": line.encode() for name, line in lines.items()}
    return made | {f"{folder.rpartition('/')[0]}/data.yaml".lstrip("/"): f"names: {known}\n".encode()}


def _coco_file(names: list[str], classes: list[str]) -> bytes:
    known = sorted(set(classes))
    made = {
        "images": [
            {"id": n, "file_name": name.rpartition("/")[2], "width": 64, "height": 64} for n, name in enumerate(names)
        ],
        "annotations": [
            {"id": n, "image_id": n, "category_id": known.index(label), "bbox": [4, 5, 36, 25]}
            for n, label in enumerate(classes)
        ],
        "categories": [{"id": n, "name": name} for n, name in enumerate(known)],
    }
    return json.dumps(made).encode()


def _csv_file(names: list[str], classes: list[str], *, boxes: bool = False) -> bytes:
    corners = ",4,5,40,30" if boxes else ""
    lines = [f"{name.rpartition('/')[2]},{label}{corners}" for name, label in zip(names, classes, strict=True)]
    return "\n".join([f"file,label{',xmin,ymin,xmax,ymax' if boxes else ''}", *lines]).encode()


def _stem(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(".png")


TRUTHS = ["folders", "splits", "table", "column", "names", "masks", "voc", "yolo", "coco", "boxes"]


def truth_of(kind: str, classes: list[str], top: str = "", stem: str = "img{:05}") -> Truth:
    """Images in folders of classes, with or without splits; named by a table; called after their class; with masks; or
    with boxes in one of four formats."""
    numbers = range(len(classes))
    splits = [("train", "test")[number % 3 == 2] for number in numbers] if kind in ("splits", "column") else []
    folder_of = {
        "folders": [f"{name}/" for name in classes],
        "splits": [f"{split}/{name}/" for split, name in zip(splits, classes, strict=False)],
        "names": [f"{name}." for name in classes],
    }.get(kind, ["images/"] * len(classes))
    bases = [str(number) if kind == "names" else stem.format(number) for number in numbers]
    names = [f"{top}{folder}{base}.png" for folder, base in zip(folder_of, bases, strict=True)]
    made = {name: picture(number) for number, name in enumerate(names)}
    beside: dict[str, Callable[[], dict[str, bytes]]] = {
        "table": lambda: {f"{top}labels.csv": _csv_file(names, classes)},
        "column": lambda: {f"{top}labels.csv": _with_splits(_csv_file(names, classes), splits)},
        "masks": lambda: {f"{top}masks/{base}.png": picture(255 * (n % 2)) for n, base in enumerate(bases)},
        "voc": lambda: _voc_files(names, classes, f"{top}annotations"),
        "yolo": lambda: _yolo_files(names, classes, f"{top}labels"),
        "coco": lambda: {f"{top}boxes.json": _coco_file(names, classes)},
        "boxes": lambda: {f"{top}boxes.csv": _csv_file(names, classes, boxes=True)},
    }
    made |= beside.get(kind, dict)()
    return Truth(made, names, ["a mask"] * len(names) if kind == "masks" else classes, splits, top)


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    """Datasets of any kind."""
    classes = [name for name in draw(_CLASSES) for _ in range(draw(st.integers(3, 4)))]
    kind, top = draw(st.sampled_from(TRUTHS)), draw(st.sampled_from(["", "data/"]))
    return truth_of(kind, classes, top, draw(st.sampled_from(["img{:05}", "x_{:03}"])))


def _with_splits(table: bytes, splits: list[str]) -> bytes:
    return "\n".join(
        f"{line},{split}" for line, split in zip(table.decode().splitlines(), ["split", *splits], strict=True)
    ).encode()


def _one_more(truth: Truth, kind: str) -> dict[str, bytes]:
    """Files that may speak of the samples, by kind; each contradicts the truth, or adds to it."""
    names, top = truth.samples, truth.top
    classes = ["owl", "cat"] * 8 if "a mask" in truth.classes else truth.classes
    wrong = [*classes[1 : len(names)], classes[0]]
    bases = [name.rpartition("/")[2] for name in names]
    pairs = list(zip(bases, wrong, strict=True))
    parts = [(base, "val" if base == bases[-1] else "train") for base in bases]
    made: dict[str, Callable[[], dict[str, bytes]]] = {
        "a table": lambda: {f"{top}other.csv": _csv_file(names, wrong)},
        "a table of boxes": lambda: {f"{top}other.csv": _csv_file(names, wrong, boxes=True)},
        "a list of classes": lambda: {f"{top}train_labels.txt": "\n".join(" ".join(pair) for pair in pairs).encode()},
        "a list of a split": lambda: {f"{top}test.txt": "\n".join(bases[:2]).encode()},
        "a list to train on": lambda: {f"{top}train.txt": "\n".join(bases[:-1]).encode()},
        "a table of splits": lambda: {f"{top}parts.csv": "\n".join(["file,split", *map(",".join, parts)]).encode()},
        "a column of splits": lambda: {
            f"{top}all.csv": "\n".join(
                ["image,view,split", *(f"{base},{n % 2},{part}" for n, (base, part) in enumerate(parts))]
            ).encode()
        },
        "tables of splits": lambda: {
            f"{top}{part}.csv": "\n".join(["file", *(base for base, own in parts if own == part)]).encode()
            for part in ("train", "val")
        },
        "JSON of splits": lambda: {f"{top}splits.json": json.dumps({"train": bases[:-1], "val": bases[-1:]}).encode()},
        "masks": lambda: {f"{top}masks/{base}": picture(255 * (n % 2)) for n, base in enumerate(bases)},
        "other masks": lambda: {f"{top}labels/{base}": picture(255 * (n % 2)) for n, base in enumerate(bases)},
        "an archive": lambda: {f"{top}more.zip": archive()},
        "a second copy": lambda: {f"copy/{name}": one for name, one in truth.made.items() if name.endswith(".png")},
        "JSON": lambda: {f"{top}meta.json": json.dumps(dict(pairs)).encode()},
        "a list of boxes": lambda: {f"{top}list.txt": "\n".join(f"{base} 60 27 325 304" for base in bases).encode()},
        "VOC": lambda: _voc_files(names, wrong, f"{top}xml"),
        "YOLO": lambda: _yolo_files(names, wrong, f"{top}labels"),
        "COCO": lambda: {f"{top}instances.json": _coco_file(names, wrong)},
        "names of classes": lambda: {f"{top}classes.txt": b"first\nsecond\nthird\n"},
        "a spreadsheet": lambda: {f"{top}labels.xlsx": b"PK"},
        "an array of splits": lambda: {f"{top}split.npy": b"x"},
    }
    return {name: one for name, one in made[kind]().items() if name not in truth.made}


_KINDS = [
    "a table", "a table of boxes", "a list of classes", "a list of a split", "a list to train on", "a table of splits",
    "masks", "other masks", "an archive", "a second copy", "JSON", "a list of boxes", "VOC", "YOLO", "COCO",
    "names of classes", "a spreadsheet", "a column of splits", "tables of splits", "JSON of splits",
    "an array of splits",
]  # fmt: skip


def _stated(found: SampleTable, key: str, row: int) -> str:
    """What is found of one image: its class, that of its box, or that it has a mask."""
    targets = found.targets
    if isinstance(targets, Masks):
        return "a mask"
    if isinstance(targets, Boxes):
        labels = targets.columns["labels"][targets.offsets[row] : targets.offsets[row + 1]].tolist()
        return " and ".join(found.classes[label] for label in labels)
    assert isinstance(targets, Values), f"nothing is known of {key}"
    return str(found.classes[targets.values[row]])


@settings(max_examples=120, deadline=None)
@given(truth=truths(), kind=st.sampled_from(_KINDS))
def test_one_file_too_many_is_the_truth_or_a_refusal_that_names_it(truth: Truth, kind: str) -> None:
    """Never other labels, never fewer samples in silence."""
    more = _one_more(truth, kind)
    try:
        said, found = "", detect_layout(MemoryTree(truth.made | more))
    except LayoutError as error:
        said, found = str(error), None
    if found is None:
        words = {name.rpartition("/")[2] for name in more} | {name.split("/")[-2] for name in more if "/" in name}
        assert any(word in said for word in (*words, "masks", "boxes")), said
        return
    got = {key.removeprefix("copy/"): _stated(found, key, row) for row, key in enumerate(found.keys)}
    if len(got) < len(truth.samples):
        assert kind == "a list to train on"
        assert any("1 image that no list names" in note for note in found.notes)
        got[truth.samples[-1]] = truth.classes[-1]
    assert got == truth.stated
    splits = dict(zip((key.removeprefix("copy/") for key in found.keys), found.splits or (), strict=False))
    if truth.splits:
        assert splits == dict(zip(truth.samples, truth.splits, strict=True))
    elif kind in ("a table of splits", "a column of splits", "tables of splits", "JSON of splits"):
        assert splits == {name: "val" if name == truth.samples[-1] else "train" for name in truth.samples}
    elif kind == "a list of a split":
        assert sorted(set(splits.values())) == ["test", "train"] or any("test.txt" in note for note in found.notes)


_HARMLESS = {
    "README.md": b"# cats and dogs",
    "LICENSE": b"MIT",
    "train.py": b"import torch\n",
    "notes/paper.pdf": b"%PDF",
    ".gitignore": b"*.h5",
    "requirements.txt": b"torch\n",
    "docs/index.html": b"<p>hello",
}


@settings(max_examples=25, deadline=None)
@given(truth=truths(), names=st.sets(st.sampled_from(sorted(_HARMLESS)), min_size=1, max_size=4))
def test_harmless_files_change_nothing(truth: Truth, names: set[str]) -> None:
    """No refusal, and the same labels."""
    plain = detect_layout(MemoryTree(truth.made))
    found = detect_layout(MemoryTree(truth.made | {name: _HARMLESS[name] for name in names}))
    assert (list(found.keys), found.splits) == (list(plain.keys), plain.splits)
    assert {key: _stated(found, key, row) for row, key in enumerate(found.keys)} == truth.stated


# --- faults, as kinds -------------------------------------------------------------------------------------------------

_FLAT = "{a,b,c,d,e,f}.jpg"
_SAME_BOX = "0 0.34375 0.2734375 0.5625 0.390625"
_TAR = tar({f"{n}.{end}": text for n in range(4) for end, text in (("png", "x"), ("cls", str(n % 2)))})
# What the data of people showed, as packs of them are made, is in tests/contract/test_samples_faults.py.
REFUSED: dict[str, tuple[dict[str, bytes], str]] = {
    "two _classes.csv of masks": (
        files(
            "{s,t}/{0..3}.png {s,t}/{0..3}_mask.png",
            {f"{one}/_classes.csv": f"Pixel Value, Class\n0, ground\n1, {one}\n" for one in "st"},
        ),
        "_classes.csv",
    ),
    # Parts of one sample.
    "thermal and visible": (files("{thermal,visible}/{000..005}.png"), "parts(x="),
    "labels in folders of classes": (
        files("{cat,dog}/{0..3}.png", {"{cat,dog}/annotations/all.json": "[]"}),
        "annotations/all.json",
    ),
    "folders of patients": (files("patient_{1,2}/{0..3}.png"), "'patient_1'"),
    # Folders of several depths.
    "one class deeper than two others": (files("{a/x,a/y,b,c}/{0..3}.png"), "'x', 'y'"),
    "a repository with figures": (files("data/raw/{cat,dog}/{0..3}.png figures/plot.png"), "'figures'"),
    # Masks beside a table that are called otherwise than masks are.
    "a split in two numbers": (
        files(_FLAT, {"l.csv": rows("file,label,split", "{a,b,c,d,e,f}.jpg,{x,y},{0,0,1}")}),
        "'split'",
    ),
    # Two things that label the same images, or a split that is none.
    "a split of mostly other classes": (
        files("train/{cat,dog,eel}/{0..3}.png test/{cat,hund,aal}/{4,5}.png"),
        "'aal', 'cat', 'hund'",
    ),
    "boxes beside names of classes": (
        files("{cat,dog}.{10000..10002}.jpg", {"b.txt": rows("{cat,dog}.{10000..10002}.jpg 60 27 325 304")}),
        "'b.txt'",
    ),
    # Copies of a class.
    "Windows' copy": (files("{cat,dog}/{0..3}.png cat~-~Copy/{4..6}.png"), "'cat - Copy'"),
    # Archives beside.
    "an archive beside boxes": (files(_FLAT, {"{a,b,c,d,e,f}.xml": voc("cat"), "more.tar.gz": "x"}), "more.tar.gz"),
    # Annotations of nothing.
    "empty label files": (files("images/{0..3}.jpg", {"labels/{0..3}.txt": "", "data.yaml": "names: [a]"}), "no box"),
    # Boxes in two formats.
    **{
        f"VOC and YOLO: {name}": (
            files("images/{0..3}.png", {"annotations/{0..3}.xml": voc("cat"), **more}),
            named,
        )
        for name, more, named in (
            (
                "other classes",
                {"labels/{0,1}.txt": _SAME_BOX, "labels/{2,3}.txt": _SAME_BOX.replace("0", "1", 1)},
                "labels/",
            ),
            ("another place", {"labels/{0..3}.txt": "0 0.8 0.8 0.1 0.1"}, "only=['**/*.png', '**/*.xml']"),
            (
                "further images",
                {"labels/{0..3}.txt": _SAME_BOX, **files("images/{8,9}.png"), "labels/{8,9}.txt": _SAME_BOX},
                "'images/8.png': no box",
            ),
        )
    },
    "two tools, each of half the images": (
        files("{0..3}.png", {"{0,1}.json": {**LABELME, "imagePath": "x"}, "a.xml": cvat("{2,3}.png")}),
        "CVAT's annotations ('a.xml')",
    ),
    "COCO and a table of other boxes": (
        files(
            "{0..3}.png",
            {"a.json": coco("{0..3}.png"), "b.csv": rows("file,class,xmin,ymin,xmax,ymax", "{0..3}.png,cat,5,6,40,30")},
        ),
        "'b.csv' ('",
    ),
    "boxes of another class than the folder": (
        files("{cat,dog}/{0..3}.png", {"cat/{0..3}.xml": voc("dog"), "dog/{0..3}.xml": voc("cat")}),
        "'cat'). Take one",
    ),
    # Names, folders and tables that divide the images otherwise.
    "names across folders": (files("siteA/{cat,dog}.{0..2}.png siteB/{cat,dog}.{3..5}.png"), "the images' names"),
    "a table that is a row off, beside names": (
        files("{cat,dog}.{0..2}.jpg", {"l.csv": rows("id,label", "{cat,dog}.{0..2}.jpg,{0,0,1,1,1,0}")}),
        "by 'l.csv' and by the images' names ('cat.0.jpg': '0', 'cat')",
    ),
    "a record of each image, of other classes than the folders": (
        files("{cat,dog}/{0..3}.jpg", {"l.xml": rows('<i f="{cat,dog}/{0..3}.jpg" is="{dog,cat}" at="1 2 3 4"/>')}),
        "'l.xml'",
    ),
    "numbers that lead to images, beside names that lead to none": (
        files("{0..5}.jpg", {"l.csv": rows("image,count,label", "scan_{a,b,c,d,e,f},{0..5},{cat,dog}")}),
        "names different files in 'count' and 'image'",
    ),
    "numbers that lead to images, beside files that are not there": (
        files("{0..5}.jpg", {"l.csv": rows("photo,count,label", "scan_{a,b,c,d,e,f}.jpg,{0..5},{cat,dog}")}),
        "names different files in 'count' and 'photo'",
    ),
    "two columns of the same images": (
        files("{0..3}.jpg", {"l.csv": rows("left,right,label", "{0,1,2,3}.jpg,{1,0,3,2}.jpg,{x,y,y,x}")}),
        "names different files in 'left' and 'right'",
    ),
    "pairs of images": (
        files("{0..3}.jpg", {"l.csv": rows("image,pair,same", "{0,0,1,2,3}.jpg,{1,2,3,0,1}.jpg,{1,0,0,1,0}")}),
        "names different files in 'image' and 'pair'",
    ),
    "a table of some of the training images": (
        files("train/{cat,dog}/{0..3}.png train/{4..9}.png", {"train.csv": rows("file,label", "{4..9}.png,{cat,dog}")}),
        "'train/cat/0.png': nothing, 'cat'",
    ),
    "a test of other classes than train": (
        files(
            _FLAT,
            {
                "train.csv": rows("file,label", "{a,b,c,d}.jpg,{0,1}"),
                "test.csv": rows("file,label", "{e,f}.jpg,{cat,dog}"),
            },
        ),
        "'cat', 'dog'",
    ),
    "a split in words that are none": (
        files(_FLAT, {"l.csv": rows("file,emotion,Usage", "{a,b,c,d,e,f}.jpg,{0,1,2},{Training,Training,PublicTest}")}),
        "'PublicTest'",
    ),
    "bands with the same odd numbers": (
        files("B02/{03,07,11,18}.tif B03/{03,07,11,18}.tif"),
        "parts(x='B02', y='B03')",
    ),
    "a text without an ending": (files("{0..3}.png", {"labels": "0.png cat\n1.png dog\n2.png cat\n"}), "'labels'"),
    "images beside an array": ({**files("{0..3}.png"), "X.npy": b""}, "'0.png' and 3 more files"),
    "an archive beside an array": ({"X.npy": b"", "more.zip": archive()}, "more.zip"),
    "arrays that may say what is held out": (
        files("images/{00..05}.png", {"labels.csv": rows("file,label", "{00..05}.png,{a,b}"), "val_idx.npy": "x"}),
        "'val_idx.npy'",
    ),
    "a spreadsheet of splits": (files("{cat,dog}/{0..3}.png", {"splits.xlsx": "x"}), "'splits.xlsx'"),
    "a shard without a split": ({"a.tar": _TAR, "val-0.tar": _TAR}, "'a.tar'"),
}


def npy(*shape: int) -> bytes:
    """An array of zeros."""
    file = io.BytesIO()
    np.save(file, np.zeros(shape, np.uint8))
    return file.getvalue()


@pytest.mark.parametrize("case", REFUSED)
def test_a_fault_is_refused_and_named(case: str) -> None:
    """Nothing of it is decided in silence."""
    made, named = REFUSED[case]
    with pytest.raises(LayoutError, match=re.escape(named)):
        detect_layout(MemoryTree({name: npy(8, 4, 4, 3) if name == "X.npy" else one for name, one in made.items()}))


READ: dict[str, tuple[dict[str, bytes], str]] = {
    "rows held out of one folder": (
        files("train/{0..5}.jpg", {"t.csv": rows("fname,label,is_valid", "{0..5}.jpg,{a,b},{False,False,True}")}),
        "table; train: a 2, b 2; valid: a 1, b 1",
    ),
    "lists that data.yaml names": (
        files(
            "images/{0..5}.jpg",
            {
                "labels/{0..5}.txt": _SAME_BOX,
                "data.yaml": "names: [a]\ntrain: used.txt\nval: rest.txt\n",
                "used.txt": rows("images/{0..3}.jpg"),
                "rest.txt": rows("images/{4,5}.jpg"),
            },
        ),
        "detection; train: 4 images, 4 boxes: a 4; val: 2 images, 2 boxes: a 2",
    ),
    "test images without classes, beside the folder that wraps the splits": (
        files("New/New/{train,valid}/{rust,scab}/{0..3}.jpg test/test/{rust1,scab2}.jpg"),
        "image_folder; train: rust 4, scab 4; valid: rust 4, scab 4",
    ),
    "the images of each class in a line": (
        files("cat/{01a,02a}.jpg dog/{03a,04a}.jpg", {"l.json": {"cat": ["01a", "02a"], "dog": ["03a", "04a"]}}),
        "image_folder; cat 2, dog 2",
    ),
    "boxes whose image is named twice in each row": (
        files(
            "images/{0..2}.jpg",
            {
                "b.csv": rows(
                    "path,file,label,xmin,ymin,xmax,ymax", "images/{0..2}.jpg,{0..2}.jpg,cat,{1,1,1,2,2,2},2,9,9"
                )
            },
        ),
        "table; 3 images, 6 boxes: cat 6",
    ),
    "paths without endings, beside what the files were called": (
        files("{0..3}.jpg", {"l.csv": rows("path,original,label", "{0..3},scan_{a,b,c,d}.png,{x,y}")}),
        "table; x 2, y 2",
    ),
    "the other eye beside each": (
        files("{a,b}{1,2}.jpg", {"l.csv": rows("image,fellow,label", "{a1,a2,b1,b2}.jpg,{a2,a1,b2,b1}.jpg,{x,x,y,y}")}),
        "table; x 2, y 2",
    ),
    # Classes that only look like parts, or like other classes than those of a table.
    "with and without": (files("{with_mask,without_mask}/{0..3}.png"), "image_folder; with_mask 4, without_mask 4"),
    "shapes by number": (files("{label,cat,dog}/{1..3}.png"), "image_folder; cat 3, dog 3, label 3"),
    "letters": (files("{A,B,C}/{1..3}.png"), "image_folder; A 3, B 3, C 3"),
    "inputs of a test table": (
        files(
            "train/{a,b,c}.jpg test/{d,e}.jpg",
            {
                "train.csv": rows("file,age,weight", "{a,b,c}.jpg,{1,2},{3.5,4.5,3.5}"),
                "test.csv": rows("file,age", "{d,e}.jpg,2"),
            },
        ),
        "table; 3 numbers",
    ),
}


@pytest.mark.parametrize("case", READ)
def test_what_was_a_fault_is_read_right(case: str) -> None:
    """With its splits and its labels."""
    made, expected = READ[case]
    assert stated(made) == expected


NOTED: dict[str, tuple[dict[str, bytes], str]] = {
    "a second set of labels": (
        files(
            "images/{00..05}.png",
            {"labels.csv": rows("file,label", "{00..05}.png,{a,b}"), "new.json": {f"0{n}.png": "b" for n in range(6)}},
        ),
        "'new.json'",
    ),
    "a second folder of annotations": (
        files(
            "JPEGImages/{0..3}.png", {"Annotations/{0..3}.xml": voc("cat"), "Annotations_new/{0..3}.xml": voc("dog")}
        ),
        "'Annotations_new/0.xml'",
    ),
    "parts that count": (files("t1/{0..5}.png t2/{0..5}.png"), "parts(x='t1', y='t2')"),
    "a folder that is taken for train": (
        files("rps/{a,b}/{0..3}.png rps-test-set/{a,b}/{4,5}.png"),
        "'train' is the folder 'rps'",
    ),
}


@pytest.mark.parametrize("case", NOTED)
def test_what_nothing_proves_is_noted(case: str) -> None:
    """And named."""
    made, named = NOTED[case]
    notes = detect_layout(MemoryTree(made)).notes
    assert any(named in note for note in notes), notes


def test_boxes_in_two_formats_that_agree_are_read() -> None:
    """Whatever classes are called; one may state less than the other."""
    made = files("images/{0..3}.png", {"annotations/{0..3}.xml": voc("cat", "dog"), "labels/{0,1}.txt": _SAME_BOX})
    assert stated(made) == "detection; 4 images, 8 boxes: cat 4, dog 4"


@pytest.mark.parametrize(
    ("made", "line", "expected"),
    [
        (files("p{1,2}/{benign,malignant}/{0..3}.png"), folders(level=-1), "image_folder; benign 8, malignant 8"),
        (files("p{1,2}/{benign,malignant}/{0..3}.png"), folders(level=1), "image_folder; p1 8, p2 8"),
        (files("{cat,dog}/{0..3}.png cat~(1)/{4..6}.png"), "image_folder", "image_folder; cat 4, cat (1) 3, dog 4"),
        (files("{cat,dog}/{0..3}.png", {"test.zip": archive()}), "image_folder", "image_folder; cat 4, dog 4"),
    ],
)  # fmt: skip
def test_the_line_that_a_refusal_names_works(made: dict[str, bytes], line: Any, expected: str) -> None:
    """To the letter."""
    assert stated(made, line) == expected


def test_options_that_cannot_work_are_refused_before_anything_is_read() -> None:
    """With what is expected."""
    made: tuple[Callable[[], object], ...] = (lambda: folders(level=0), lambda: parts(x="A", y="A"))
    for wrong in made:
        with pytest.raises(ColabstageError, match="expected"):
            wrong()
    with pytest.raises(LayoutError, match="level=3"):
        detect_layout(MemoryTree(files("a/x/1.png b/y/2.png")), folders(level=3))
