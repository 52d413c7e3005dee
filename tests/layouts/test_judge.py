"""The judge: of a dataset with one file too many the result is the truth, or a refusal that names the file."""

import io
import json
import zipfile
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from colabstage.errors import LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.options import Boxes, Masks, SampleTable, Values
from tests.layouts.described import described
from tests.layouts.known import MemoryTree, each, voc


@cache
def picture(value: int = 0, side: int = 64) -> bytes:
    """A small image that no other number gives."""
    file = io.BytesIO()
    Image.fromarray(np.full((side, side), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def archive() -> bytes:
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
