"""What labels the images, or divides them into splits, is stated twice: statements that differ are refused with lines
that work, and those that call the same division by other names agree.

To add a way to state something, write the files that it needs; it is then paired with every other way.
"""

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from colabstage import plan_stage
from colabstage.errors import LayoutError
from tests.layouts.known import voc
from tests.support.images import mask
from tests.support.made_files import files, image, write_files

COUNT = 16
HALVES = ["ab"[number % 2] for number in range(COUNT)]
OTHER_HALVES = ["ab"[number // 2 % 2] for number in range(COUNT)]
# By two statements, one of which holds others out.
SPLIT = ["val" if number % 4 == 3 else "train" for number in range(COUNT)]
OTHER_SPLIT = ["val" if number % 4 == 2 else "train" for number in range(COUNT)]


def table(header: str, paths: Sequence[str], cells: Sequence[object]) -> str:
    """A CSV with a path and a cell in each row."""
    return "\n".join([header, *(f"{path},{cell}" for path, cell in zip(paths, cells, strict=True))]) + "\n"


def coco(paths: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """One box of its class in each image."""
    names = sorted({*words})
    return {
        "images": [{"id": number, "file_name": path, "width": 9, "height": 9} for number, path in enumerate(paths)],
        "annotations": [
            {"id": number, "image_id": number, "category_id": names.index(word), "bbox": [1, 1, 3, 3], "area": 9}
            for number, word in enumerate(words)
        ],
        "categories": [{"id": number, "name": name} for number, name in enumerate(names)],
    }


def numbers(words: Sequence[str]) -> list[int]:
    """The number of each word among the sorted ones."""
    return [sorted({*words}).index(word) for word in words]


# The files that state a word for each image.
LABELS: dict[str, Callable[[Sequence[str], Sequence[str]], Mapping[str, Any]]] = {
    "a table": lambda paths, words: {"labels.csv": table("file,label", paths, words)},
    "numbers in a table": lambda paths, words: {"numbers.csv": table("file,label", paths, numbers(words))},
    "records": lambda paths, words: {
        "metadata.jsonl": "".join(
            json.dumps({"file_name": path, "label": word}) + "\n" for path, word in zip(paths, words, strict=True)
        )
    },
    "a list": lambda paths, words: {"list.txt": table("", paths, numbers(words)).replace(",", " ").lstrip()},
    "JSON": lambda paths, words: {"labels.json": dict(zip(paths, words, strict=True))},
    "VOC": lambda paths, words: {f"{path[:-4]}.xml": voc(word) for path, word in zip(paths, words, strict=True)},
    "COCO": lambda paths, words: {"annotations.json": coco(paths, words)},
    "YOLO": lambda paths, words: {
        "data.yaml": f"names: {sorted({*words})}\n",
        **{f"{path[:-4]}.txt": f"{n} 0.5 0.5 0.25 0.25\n" for path, n in zip(paths, numbers(words), strict=True)},
    },
    "boxes in a table": lambda paths, words: {
        "boxes.csv": table("file,label,xmin,ymin,xmax,ymax", paths, [f"{word},1,1,3,3" for word in words])
    },
    "folders": lambda _paths, _words: {},
}
BOXES, TEXTS = ("VOC", "COCO", "YOLO"), ("a list", "JSON")


def labelled(folder: Path, one: str, first: Sequence[str], other: str, second: Sequence[str]) -> Path:
    places = next((words for way, words in ((one, first), (other, second)) if way == "folders"), ["images"] * COUNT)
    paths = [f"{place}/{number:02}.jpg" for number, place in enumerate(places)]
    made = {path: image(number, size=(9, 9)) for number, path in enumerate(paths)}
    return write_files(folder, made | files("", {**LABELS[one](paths, first), **LABELS[other](paths, second)}))


def planned(folder: Path, **options: Any) -> Any:
    return plan_stage(folder, local_dir=folder.parent / "out", cache_dir=None, **options)


def check_lines(folder: Path, error: LayoutError) -> None:
    """Each line of the refusal works, to the letter."""
    lines = re.findall(r"""(?:layout|only)=(?:table_rows\([^)]*\)|\[[^]]*\]|"[^"]*"|'[^']*')""", str(error))
    assert lines
    for line in lines:
        names: dict[str, Any] = {}
        exec("from colabstage.options import *", names)
        assert planned(folder, **eval(f"dict({line})", names)).samples


PAIRS = [*itertools.combinations(LABELS, 2)]
# Two tables, two texts, and boxes beside a table are refused whatever they say, and boxes in a table beside folders.
ALIKE = [pair for pair in PAIRS if "folders" in pair or len({*pair} & {*TEXTS}) == 1]
ALIKE.remove(("boxes in a table", "folders"))


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_labels_that_divide_otherwise(tmp_path: Path, one: str, other: str) -> None:
    """Both are named; except that folders may say something else than what is in the boxes, and texts are only noted
    beside boxes."""
    folder = labelled(tmp_path / "set", one, HALVES, other, [{"a": "red", "b": "blue"}[word] for word in OTHER_HALVES])
    if (other == "folders" and one in BOXES) or (one in TEXTS and other in BOXES):
        assert "layout: detection" in map(": ".join, planned(folder).found)
        return
    with pytest.raises(LayoutError) as caught:
        planned(folder)
    check_lines(folder, caught.value)


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_labels_that_divide_alike(tmp_path: Path, one: str, other: str) -> None:
    """The same division by other names is no contradiction."""
    folder = labelled(tmp_path / "set", one, HALVES, other, [{"a": "red", "b": "blue"}[word] for word in HALVES])
    assert planned(folder).samples == {"train": COUNT}


HARMLESS = {
    "README.md": b"# cats and dogs", "LICENSE": b"MIT", "train.py": b"import torch\n", "notes/paper.pdf": b"%PDF",
    ".gitignore": b"*.h5", "requirements.txt": b"torch\n", "docs/index.html": b"<p>hello",
}  # fmt: skip


@pytest.mark.parametrize("way", LABELS)
def test_harmless_files_change_nothing(tmp_path: Path, way: str) -> None:
    """No refusal, and the same labels."""
    folder = labelled(tmp_path / "set", way, HALVES, way, HALVES)
    plain = planned(folder)
    found = planned(write_files(folder, HARMLESS))
    assert (found.found, found.samples) == (plain.found, plain.samples)


def by_split(paths: Sequence[str], words: Sequence[str]) -> dict[str, list[str]]:
    pairs = [*zip(paths, words, strict=True)]
    return {split: [path for path, word in pairs if word == split] for split in ("train", "val")}


# The files that state a split for each image.
SPLITS: dict[str, Callable[[Sequence[str], Sequence[str]], Mapping[str, Any]]] = {
    "folders": lambda _paths, _words: {},
    "lists": lambda paths, words: {
        f"{split}.txt": "".join(f"{path}\n" for path in named) for split, named in by_split(paths, words).items()
    },
    "a table of splits": lambda paths, words: {"splits.csv": table("file,split", paths, words)},
    "tables": lambda paths, words: {
        f"{split}.csv": "\n".join(["path", *named, ""]) for split, named in by_split(paths, words).items()
    },
    "JSON": lambda paths, words: {"splits.json": by_split(paths, words)},
}


def in_turn(labels: Sequence[str], *ways: Sequence[object]) -> list[Any]:
    """Each combination of ways with one of the labels, in turn; with the others in the long form."""
    every = [(number, one) for number, one in enumerate(itertools.product(*ways))]
    return [
        pytest.param(label, *one, marks=[pytest.mark.long] * (number % len(labels) != place))
        for number, one in every
        for place, label in enumerate(labels)
    ]


@pytest.mark.parametrize(
    ("labels", "pair", "second"),
    in_turn(["a table", "VOC", "folders"], [*itertools.combinations(SPLITS, 2)], ["alike", "otherwise"]),
)
def test_splits_that_are_stated_twice(tmp_path: Path, labels: str, pair: tuple[str, str], second: str) -> None:
    """Whatever labels the images: the same splits agree, others are refused."""
    one, other = pair
    places = [f"{split}/" for split in SPLIT] if one == "folders" else ["images/"] * COUNT
    halves = [f"{half}/" if labels == "folders" else "" for half in HALVES]
    parts = zip(places if one == "folders" or labels != "folders" else [""] * COUNT, halves, strict=True)
    paths = [f"{place}{half}{number:02}.jpg" for number, (place, half) in enumerate(parts)]
    made = {path: image(number, size=(9, 9)) for number, path in enumerate(paths)}
    texts = {
        **LABELS[labels](paths, HALVES),
        **SPLITS[one](paths, SPLIT),
        **SPLITS[other](paths, SPLIT if second == "alike" else OTHER_SPLIT),
    }
    folder = write_files(tmp_path / "set", made | files("", texts))
    if second == "alike":
        assert planned(folder).samples == {"train": 12, "val": 4}
        return
    with pytest.raises(LayoutError) as caught:
        planned(folder)
    check_lines(folder, caught.value)


@pytest.mark.parametrize(
    ("labels", "way", "beside", "bare"),
    in_turn(["masks", "VOC", "folders"], [way for way in SPLITS if way != "folders"], ["", "test"], [False, True]),
)
def test_what_is_held_out_of_a_folder_train(tmp_path: Path, labels: str, way: str, beside: str, bare: bool) -> None:
    """Lists are read whatever form they have, and what a folder of another split holds stays there."""
    places = [f"{half}/" if labels == "folders" else "" for half in HALVES]
    paths = [f"train/{place}{number:02}.jpg" for number, place in enumerate(places)]
    every = [*paths, *(path.replace("train/", "test/") for path in paths if beside)]
    made = {path: image(number, size=(9, 9)) for number, path in enumerate(every)}
    if labels == "masks":
        made |= {f"masks/{path[:-4]}.png": mask(number, size=(9, 9)) for number, path in enumerate(every)}
    if labels == "VOC":
        made |= files("", LABELS["VOC"](every, ["cat"] * len(every)))
    named = [path.rpartition("/")[2] if bare else path for path in paths]
    folder = write_files(tmp_path / "set", made | files("", SPLITS[way](named, SPLIT)))
    assert planned(folder).samples == {"train": 12, "val": 4} | ({"test": COUNT} if beside else {})


@pytest.mark.parametrize("place", ["", "ImageSets/Main/"])
@pytest.mark.parametrize("beside", [{}, {"notes.txt": "see the page"}], ids=["alone", "with a text"])
def test_two_lists_of_one_image(tmp_path: Path, place: str, beside: Mapping[str, str]) -> None:
    """The line leaves the lists out wherever they are, and keeps texts that are none."""
    paths = [f"JPEGImages/{number:02}.jpg" for number in range(COUNT)]
    made = {path: image(number, size=(9, 9)) for number, path in enumerate(paths)}
    lists = {f"{place}{split}.txt": "".join(f"{number:02}\n" for number in range(COUNT)) for split in ("train", "val")}
    folder = write_files(tmp_path / "set", made | files("", {**LABELS["VOC"](paths, HALVES), **lists, **beside}))
    with pytest.raises(LayoutError, match=r"'JPEGImages/00\.jpg', and so does") as caught:
        planned(folder)
    assert ("'notes.txt'" in str(caught.value)) is bool(beside)
    check_lines(folder, caught.value)
