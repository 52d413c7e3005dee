"""The judge: of a dataset with one file too many the result is the truth, or a refusal that names the file."""

from __future__ import annotations

import io
import json
import re
import zipfile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from colabstage.errors import ColabstageError, LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.options import file_names, folders, image_masks, parts, table_rows
from tests.layouts.described import described
from tests.layouts.known import WAV, YOLO_BOX, MemoryTree, coco, each, rows, voc

if TYPE_CHECKING:
    from collections.abc import Callable


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
    """The class of each."""


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    """Images in folders of classes, named by a table, or called after their class."""
    kind = draw(st.sampled_from(["folders", "table", "names"]))
    classes = [name for name in draw(_CLASSES) for _ in range(draw(st.integers(3, 4)))]
    top = draw(st.sampled_from(["", "data/"]))
    stem = draw(st.sampled_from(["img{:05}", "x_{:03}"]))
    if kind == "folders":
        names = [f"{top}{name}/{stem.format(number)}.png" for number, name in enumerate(classes)]
    elif kind == "table":
        names = [f"{top}images/{stem.format(number)}.png" for number in range(len(classes))]
    else:
        names = [f"{top}{name}.{number}.png" for number, name in enumerate(classes)]
    made = {name: picture(number) for number, name in enumerate(names)}
    if kind == "table":
        lines = [f"{name.rpartition('/')[2]},{label}" for name, label in zip(names, classes, strict=True)]
        made[f"{top}labels.csv"] = "\n".join(["file,label", *lines]).encode()
    return Truth(made, names, classes)


def _bases(truth: Truth) -> list[str]:
    return [name.rpartition("/")[2] for name in truth.samples]


def _one_more(truth: Truth, kind: str) -> dict[str, bytes]:
    """Files that may speak of the samples, by kind; each contradicts the truth, or adds to it."""
    bases, wrong = _bases(truth), [*truth.classes[1:], truth.classes[0]]
    pairs = list(zip(bases, wrong, strict=True))
    top = "data/" if truth.samples[0].startswith("data/") else ""
    return {
        "table": {f"{top}other.csv": "\n".join(["file,label", *map(",".join, pairs)]).encode()},
        "list of classes": {f"{top}train_labels.txt": "\n".join(" ".join(pair) for pair in pairs).encode()},
        "list of a split": {f"{top}test.txt": "\n".join(bases[:2]).encode()},
        "masks": {f"{top}masks/{base}": picture(255 * (n % 2)) for n, base in enumerate(bases)},
        "archive": {f"{top}more.zip": archive()},
        "second copy": {f"copy/{name}": content for name, content in truth.made.items() if name.endswith(".png")},
        "json": {f"{top}meta.json": json.dumps(dict(pairs)).encode()},
        "boxes": {f"{top}boxes.txt": "\n".join(f"{base} 60 27 325 304" for base in bases).encode()},
    }[kind]


_KINDS = ["table", "list of classes", "list of a split", "masks", "archive", "second copy", "json", "boxes"]


@given(truth=truths(), kind=st.sampled_from(_KINDS))
def test_one_file_too_many_is_the_truth_or_a_refusal_that_names_it(truth: Truth, kind: str) -> None:
    """Never other labels, and never fewer samples in silence."""
    more = _one_more(truth, kind)
    try:
        said, found = "", detect_layout(MemoryTree(truth.made | more))
    except LayoutError as error:
        said, found = str(error), None
    if found is None:
        words = {name.rpartition("/")[2] for name in more} | {name.split("/")[-2] for name in more if "/" in name}
        assert any(word in said for word in (*words, "masks", "boxes")), said
        return
    assert found.classes, "labels were lost"
    values = found.targets.values.tolist()  # type: ignore[union-attr]
    got = {key.removeprefix("copy/"): found.classes[label] for key, label in zip(found.keys, values, strict=True)}
    expected = dict(zip(truth.samples, truth.classes, strict=True))
    assert got == expected
    if kind == "list of a split":
        assert sorted(set(found.splits or ())) == ["test", "train"] or any("test.txt" in note for note in found.notes)


_HARMLESS = {
    "README.md": b"# cats and dogs",
    "LICENSE": b"MIT",
    "train.py": b"import torch\n",
    "notes/paper.pdf": b"%PDF",
    ".gitignore": b"*.h5",
    "requirements.txt": b"torch\n",
    "docs/index.html": b"<p>hello",
}


@given(truth=truths(), names=st.sets(st.sampled_from(sorted(_HARMLESS)), min_size=1, max_size=4))
def test_harmless_files_change_nothing(truth: Truth, names: set[str]) -> None:
    """No refusal, and the same labels."""
    plain = detect_layout(MemoryTree(truth.made))
    found = detect_layout(MemoryTree(truth.made | {name: _HARMLESS[name] for name in names}))
    assert (list(found.keys), found.classes) == (list(plain.keys), plain.classes)
    assert found.targets.values.tolist() == plain.targets.values.tolist()  # type: ignore[union-attr]


# --- faults, as kinds -------------------------------------------------------------------------------------------------

_FLAT = "{a,b,c,d,e,f}.jpg"
_OF_TWO = rows("file,label", "{a,b,c,d,e,f}.jpg,{x,y}")
# What the data of people showed, as packs of them are made, is in tests/contract/test_samples_faults.py.
REFUSED: dict[str, tuple[dict[str, bytes], str]] = {
    "two obj.names": (
        files(
            "set{1,2}/train/images/{0..3}.jpg",
            {"set{1,2}/train/labels/{0..3}.txt": YOLO_BOX, "set1/obj.names": "apple\n", "set2/obj.names": "pear\n"},
        ),
        "set2/obj.names",
    ),
    "two _classes.csv of masks": (
        files(
            "{s,t}/{0..3}.png {s,t}/{0..3}_mask.png",
            {f"{one}/_classes.csv": f"Pixel Value, Class\n0, ground\n1, {one}\n" for one in "st"},
        ),
        "_classes.csv",
    ),
    # Parts of one sample.
    "before and after": (files("{before,after,mask}/scene_{00..05}.png"), "'after', 'before'"),
    "letters beside labels": (files("{A,B,label}/{0..5}.png"), "parts(x='A', y='label')"),
    "thermal and visible": (files("{thermal,visible}/{000..005}.png"), "parts(x="),
    "labels under another word": (files("frames/{0..5}.png labels_rgb/{0..5}.png"), "'labels_rgb'"),
    "vessels beside a field of view": (
        files("t/images/{21..24}_t.png t/mask/{21..24}_t_mask.png t/1st_manual/{21..24}_manual1.png"),
        "1st_manual",
    ),
    "labels in folders of classes": (
        files("{cat,dog}/{0..3}.png", {"{cat,dog}/annotations/all.json": "[]"}),
        "annotations/all.json",
    ),
    **{f"folders of {one}s": (files(f"{one}_{{1,2}}/{{0..3}}.png"), f"'{one}_1'") for one in ("speaker", "patient")},
    # Folders of several depths.
    "one class deeper than two others": (files("{a/x,a/y,b,c}/{0..3}.png"), "'x', 'y'"),
    "two classes deeper than one": (files("{a/x,a/y,b/x,b/z,c}/{0..3}.png"), "layout=folders(level=-1)"),
    "a repository with assets": (files("data/{cat,dog}/{0..3}.png assets/logo.png"), "only='data'"),
    "a repository with figures": (files("data/raw/{cat,dog}/{0..3}.png figures/plot.png"), "'figures'"),
    "a repository with docs": (files("set/{train,test}/{cat,dog}/{0..3}.png docs/a.png"), "'docs'"),
    # Masks beside a table that are called otherwise than masks are.
    "masks in a folder beside a table": (files(f"images/{_FLAT} masks/m_{_FLAT}", {"l.csv": _OF_TWO}), "masks/m_a.jpg"),
    "masks called after the images of a table": (
        files(f"{_FLAT} {{a,b,c,d}}_outline.png", {"l.csv": _OF_TWO}),
        "a_outline.png",
    ),
    **{
        f"{name} in numbers": (
            files(_FLAT, {"l.csv": rows(f"file,label,{name}", "{a,b,c,d,e,f}.jpg,{x,y},{0,0,1}")}),
            f"'{name}'",
        )
        for name in ("split", "partition", "subset")
    },
    # Two things that label the same images, or a split that is none.
    "boxes and a table": (files(_FLAT, {"a.json": coco("{a,b,c,d,e,f}.jpg"), "l.csv": _OF_TWO}), 'layout="table"'),
    "one image in two splits": (files(_FLAT, {"{train,test}.csv": _OF_TWO}), "'test'"),
    "a split of mostly other classes": (
        files("train/{cat,dog,eel}/{0..3}.png test/{cat,hund,aal}/{4,5}.png"),
        "'aal', 'cat', 'hund'",
    ),
    "boxes beside names of classes": (
        files("{cat,dog}.{10000..10002}.jpg", {"b.txt": rows("{cat,dog}.{10000..10002}.jpg 60 27 325 304")}),
        "'b.txt'",
    ),
    # Copies of a class.
    "a copy of a class": (files("{cat,dog}/{0..3}.png cat~(1)/{4..6}.png"), "'cat (1)'"),
    "Windows' copy": (files("{cat,dog}/{0..3}.png cat~-~Copy/{4..6}.png"), "'cat - Copy'"),
    # Archives beside.
    "an archive beside classes": (files("{cat,dog}/{0..3}.png", {"test.zip": archive()}), "test.zip"),
    "an archive beside a table": (files(_FLAT, {"l.csv": _OF_TWO, "b.7z": "7z"}), "b.7z"),
    "an archive beside boxes": (files(_FLAT, {"{a,b,c,d,e,f}.xml": voc("cat"), "more.tar.gz": "x"}), "more.tar.gz"),
    # Annotations of nothing.
    "COCO without a box": (files("{0..3}.jpg", {"a.json": {**coco("{0..3}.jpg"), "annotations": []}}), "no box"),
    "empty label files": (files("images/{0..3}.jpg", {"labels/{0..3}.txt": "", "data.yaml": "names: [a]"}), "no box"),
    "boxes outside": (
        files("{0..3}.jpg", {"b.csv": rows("file,class,xmin,ymin,xmax,ymax", "{0..3}.jpg,cat,500,600,700,800")}),
        "500, 600",
    ),
    # Labels of arrays in another form.
    **{
        f"labels of arrays in {name}": ({"X.npy": b"", name: b"0\n1\n"}, name)
        for name in ("labels.json", "y.txt", "y.pkl")
    },
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


def split_lists(form: str) -> dict[str, Any]:
    """Four images to train on and two that are held out, by lists."""
    return {
        "train.txt": "".join(form.format(n) + "\n" for n in range(4)),
        "val.txt": "".join(form.format(n) + "\n" for n in (4, 5)),
    }


READ: dict[str, tuple[dict[str, bytes], str]] = {
    # Splits that lists state, beside whatever labels the images.
    "lists beside COCO": (
        files("{0..5}.jpg", {"a.json": coco("{0..5}.jpg", categories="cat"), **split_lists("{}.jpg")}),
        "detection; train: 4 images, 4 boxes: cat 4; val: 2 images, 2 boxes: cat 2",
    ),
    "lists beside masks": (
        files("images/{0..5}.png masks/{0..5}.png", split_lists("images/{0}.png masks/{0}.png")),
        "pairs; train: 4 masks of background, foreground; val: 2 masks of background, foreground",
    ),
    "lists beside a table": (
        files("{0..5}.jpg", {"l.csv": rows("file,label", "{0..5}.jpg,{a,b}"), **split_lists("{}.jpg")}),
        "table; train: a 2, b 2; val: a 1, b 1",
    ),
    "lists beside names": (
        files("{cat,dog}.{0..5}.jpg", split_lists("cat.{}.jpg")),
        "file_names; train: cat 4; val: cat 2",
    ),
    "rows held out of one folder": (
        files("train/{0..5}.jpg", {"t.csv": rows("fname,label,is_valid", "{0..5}.jpg,{a,b},{False,False,True}")}),
        "table; train: a 2, b 2; valid: a 1, b 1",
    ),
    # Names in two forms of Unicode.
    "decomposed names beside YOLO": (
        files("images/pin\u0303a{0..3}.jpg", {"labels/pi\u00f1a{0..3}.txt": YOLO_BOX, "data.yaml": "names: [x]"}),
        "detection; 4 images, 4 boxes: x 4",
    ),
    "decomposed names in a table": (
        files("pin\u0303a{0..3}.jpg", {"l.csv": rows("file,label", "pi\u00f1a{0..3}.jpg,{a,b}")}),
        "table; a 2, b 2",
    ),
    # Classes that only look like parts, or like other classes than those of a table.
    "with and without": (files("{with_mask,without_mask}/{0..3}.png"), "image_folder; with_mask 4, without_mask 4"),
    "photographs by number": (files("{cat~photos,dog~photos}/{1..3}.png"), "image_folder; cat photos 3, dog photos 3"),
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


_MASKS_4 = "pairs; 4 masks of background, foreground"


@pytest.mark.parametrize(
    ("made", "line", "expected"),
    [
        (files("{A,B,label}/tr_{0..3}.png"), parts(x="A", y="label"), _MASKS_4),
        (files("2_RGB/t_{0..3}_RGB.tif 5_Labels/t_{0..3}_label.tif"), parts(x="2_RGB", y="5_Labels"), _MASKS_4),
        (files("p{1,2}/{benign,malignant}/{0..3}.png"), folders(level=-1), "image_folder; benign 8, malignant 8"),
        (files("p{1,2}/{benign,malignant}/{0..3}.png"), folders(level=1), "image_folder; p1 8, p2 8"),
        (files("images/{0..3}.png vessels_mask/{0..3}.png"), image_masks("vessels_mask"), _MASKS_4),
        (files("s{0..3}.png s{0..3}_mask_1.png"), image_masks("_mask_1"), _MASKS_4),
        (files("{cat,dog}/{0..3}.png cat~(1)/{4..6}.png"), "image_folder", "image_folder; cat 4, cat (1) 3, dog 4"),
        (files("{cat,dog}/{0..3}.png", {"test.zip": archive()}), "image_folder", "image_folder; cat 4, dog 4"),
        (files("{0..3}.jpg", {"a.csv": rows("f,x", "{0..3}.jpg,{a,b}")}), table_rows(labels=["x"]), "table; a 2, b 2"),
        (files("{pug,owl}_{1..3}.jpg"), file_names(r"(\w+?)_\d"), "file_names; owl 3, pug 3"),
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


def test_pointers_of_git_lfs_are_named() -> None:
    """Whatever the file is called."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
    for name in ("x.npy", "x.h5", "x.mat", "t-0.tar", "t.tfrecord", "t.parquet", "book.txt", "yes/1.wav"):
        made = {name: pointer, "no/1.wav": WAV} if name.endswith(".wav") else {name: pointer}
        with pytest.raises(ColabstageError, match="Git LFS"):
            detect_layout(MemoryTree(made))
