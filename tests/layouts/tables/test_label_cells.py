"""Columns and cells of labels as people write them: what may be a mistake is asked about, never numbered as classes."""

import csv
import io
import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colabstage.errors import LayoutError
from colabstage.options import Boxes, SampleTable, Values, table_rows
from tests.layouts.readers import read

COUNT = 12


def rows(header: str, *forms: str, layout: Any = "auto", name: str = "t.csv") -> SampleTable:
    """Twelve (empty) images 0.png, … and a table with a row for each, of these forms of `i` in turn."""
    lines = [form.format(i=number) for number, form in zip(range(COUNT), itertools.cycle(forms), strict=False)]
    images = {f"images/{number}.png": b"" for number in range(COUNT)}
    return read(images | {name: "\n".join([header, *lines] if header else lines) + "\n"}, layout)


def values(found: SampleTable) -> Any:
    assert isinstance(found.targets, Values)
    return found.targets.values


# What each would silently be otherwise, and the line that the error has.
ASKED = {
    "numbers with a comma, each another": ("image;age", ["{i}.png;{i},5"], r"'0,5'.*write a point.*separator=''"),
    "one of two columns with a comma": ("image;a;b", ["{i}.png;1,5;{i}"], r"'a' has '1,5'"),
    "a vector as JSON": ("image,label", ['{i}.png,"[1, 0, 1]"', '{i}.png,"[0, 0, 1]"'], r"a list written as text"),
    "a vector without brackets": ("image,label", ["{i}.png,1 0 1", "{i}.png,0 0 1"], r"a column for each number"),
    "words as numpy shows them": ("image,label", ["{i}.png,['a' 'b']", "{i}.png,['b' 'a']"], r"a list written as text"),
    "words with a comma": ("image,label", ['{i}.png,"a,b"', '{i}.png,"b,c"'], r"separator=','"),
    "a date as people write it": ("image,taken", ["{i}.png,2.1.2024", "{i}.png,3.1.2024"], r"labels=\['taken'\]"),
    "captions": ("image,caption", ["{i}.png,a dog {i}"], r"Texts are not read.*layout=\"images\""),
    "sizes of the images": ("image,width,height", ["{i}.png,{i},9"], r"'width', 'height'.*labels=\['width'\]"),
    "yes and no beside a number": ("image,age,male", ["{i}.png,{i},True", "{i}.png,{i},False"], r"labels=\['age'\]"),
    "landmarks beside a class": ("image,label,x1,y1,x2,y2,x3,y3", ["{i}.png,a,1,2,3,4,5,6"], r"labels=\['label'\]"),
    "boxes with a width": ("image,label,x,y,w,h", ["{i}.png,a,1,2,3,4"], r"xmin, ymin, xmax.*labels=\['label'\]"),
    "corners without a class": ("image,x1,y1,x2,y2", ["{i}.png,1,2,3,4"], r"labels=\['x1', 'y1', 'x2', 'y2'\]"),
    "a class without its box": ("image,class,x1,y1,x2,y2", ["{i}.png,a,,,,"], r"leave 'class' empty too"),
    "masks under any name": ("image,label,seg", ["{i}.png,a,1 3 10 5 20 2", "{i}.png,a,"], r"'seg' holds masks"),
    "an index as the path": (",label", ["{i},a", "{i},b"], r"first row of 't.csv' is '0', 'a'"),
    "nothing beside the paths": ("image", ["{i}.png"], r"no labels beside the paths.*path,label"),
    "a title above the header": ("My data,,", ["{i}.png,a,"], r"no labels beside.*path,label"),
    "a word among numbers": ("image,label", ["{i}.png,{i}.5"] * 5 + ["{i}.png,inf"], r"'inf' \(the first is that of"),
    "no rows": ("image,label\n", [], r"no rows|is empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_what_may_be_a_mistake_is_asked_about(case: str) -> None:
    """The error has the line to write, and no advice on folders where there is one folder."""
    header, forms, says = ASKED[case]
    with pytest.raises(LayoutError, match=says) as caught:
        rows(header, *(forms or [""]))
    assert "image_folder" not in str(caught.value)


READ = {
    "excel's own line": ("sep=;\nimage;label", ["{i}.png;a", "{i}.png;b"], ("a", "b"), [0, 1]),
    "a date beside the class": ("image,taken,kind", ["{i}.png,1.2.2024,a", "{i}.png,1.3.2024,b"], ("a", "b"), [0, 1]),
    "a fold beside the number": ("image,score,fold", ["{i}.png,7,0", "{i}.png,9,1"], (), [7, 9]),
    "an empty column": ("image,kind,remark", ["{i}.png,a,", "{i}.png,b,"], ("a", "b"), [0, 1]),
    "measurements": ("image,kind,x1,x2,x3,x4,x5", ["{i}.png,a,1,2,3,4,5", "{i}.png,b,1,2,3,4,5"], ("a", "b"), [0, 1]),
    "several of yes and no": ("image,a,b", ["{i}.png,True,no", "{i}.png,False,no"], ("a", "b"), [[1, 0], [0, 0]]),
    "lists of words as JSON": ("image,y", ['{i}.png,"[""a"", ""b""]"', "{i}.png,[]"], ("a", "b"), [[1, 1], [0, 0]]),
    "lists of words as Python": ("image,y", ["{i}.png,\"['a, c']\"", "{i}.png,['b']"], ("a, c", "b"), [[1, 0], [0, 1]]),
    "names with a comma": ("image,y", ['{i}.png,"eel, X"', '{i}.png,"crane, G"'], ("crane, G", "eel, X"), [1, 0]),
    "landmarks": ("image,x1,y1,x2,y2,x3,y3", ["{i}.png,5,6,1,2,3,4"], (), [[5, 6, 1, 2, 3, 4]] * 2),
    "fewer than three runs": ("image,label,odds", ["{i}.png,a,1 2 3 4", "{i}.png,b,1 2 3 4"], ("a", "b"), [0, 1]),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_what_can_only_be_meant_in_one_way_is_read(case: str) -> None:
    """The first two samples."""
    header, forms, classes, expected = READ[case]
    found = rows(header, *forms)
    assert found.classes == classes
    assert values(found)[:2].tolist() == expected


@pytest.mark.parametrize("corners", ["left,top,right,bottom", "x0,y0,x1,y1"])
def test_corners_in_other_words_are_boxes(corners: str) -> None:
    """As OCR's tools and torchvision call them."""
    targets = rows(f"image,class,{corners}", "{i}.png,a,1,2,3,4").targets
    assert isinstance(targets, Boxes)
    assert len(targets.boxes) == COUNT


NOTED = {
    "several labels": ("image,label", ["{i}.png,a|b"], None, r"several labels, with '|' between them"),
    "empty cells": ("image,a,b", ["{i}.png,1,", "{i}.png,,0"], None, r"12 cells of the label columns are empty"),
    "a class for each": ("image,label", ["{i}.png,c{i}"], None, r"12 classes for 12 samples"),
    "other numbers": ("image,age", ["0.png,31", "0.png,32"], None, r"each row is a sample; 6 rows have"),
    "-1 for no": ("image,a,b", ["{i}.png,-1,1"], None, r"hold -1, which"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTED)
def test_what_a_loss_or_a_reader_would_not_expect_is_noted(case: str) -> None:
    """Beside what is read."""
    header, forms, _, says = NOTED[case]
    found = rows(header, *forms)
    assert says in " ".join(found.notes)


def test_a_table_of_tabs_may_have_commas() -> None:
    """Saved from a spreadsheet under the wrong name."""
    assert rows("image,label", "{i}.png,a", "{i}.png,b", name="t.tsv").classes == ("a", "b")


@pytest.mark.parametrize(
    ("folders", "asked"), [(("cat", "dog"), True), (("p1", "p2"), False), (("train", "val"), False), (("all",), False)]
)
def test_numbers_beside_folders_of_classes_are_asked_about(folders: tuple[str, ...], asked: bool) -> None:
    """A table of measurements of images in folders; patients and splits are no classes."""
    names = [f"{folder}/{number}.png" for folder in folders for number in range(6)]
    text = "image,brightness\n" + "".join(f"{name},{number}.5\n" for number, name in enumerate(names))
    files: dict[str, bytes | str] = {**dict.fromkeys(names, b""), "t.csv": text}
    if asked:
        with pytest.raises(LayoutError, match=r"'t.csv'.*layout=\"table\" or layout=\"image_folder\""):
            read(files)
        assert read(files, "image_folder").classes == ("cat", "dog")
    assert values(read(files, "table" if asked else "auto")).tolist() == [n + 0.5 for n in range(len(names))]


def test_labels_that_are_corners_are_numbers() -> None:
    """Who names them has said so, and nothing is noted."""
    layout = table_rows(labels=["x1", "y1", "x2", "y2"])
    found = rows("image,x1,y1,x2,y2", "{i}.png,1,2,3,4", layout=layout)
    assert values(found).shape == (COUNT, 4)
    assert not any("boxes" in note for note in found.notes)


def test_lists_in_lines_of_json_are_several_labels() -> None:
    """As Hugging Face's metadata.jsonl has them."""
    line = json.dumps({"file_name": "#.png", "labels": ["dog", "cat"]}).replace("{", "{{").replace("}", "}}")
    found = rows("", line.replace("#", "{i}"), name="metadata.jsonl")
    assert found.classes == ("cat", "dog")
    assert values(found)[0].tolist() == [1, 1]


def cells_of(cells: list[str]) -> SampleTable:
    text = io.StringIO()
    csv.writer(text).writerows([["image", "label"], *([f"{n}.png", cell] for n, cell in enumerate(cells))])
    return read(
        {**{f"{n}.png": b"" for n in range(len(cells))}, "t.csv": text.getvalue()}, table_rows(labels=["label"])
    )


WORDS = st.sampled_from(["a", "b", "dog", "a b", "it's", "Saint Bernard, Alpine", "[x", "x]", "3", "3,5", "1 0"])


@given(sets=st.lists(st.lists(WORDS, max_size=3), min_size=1, max_size=6))
@settings(max_examples=30)
def test_a_list_of_words_holds_those_words(sets: list[list[str]]) -> None:
    """As Python and JSON write it, whatever is in the words, a column of each word says which samples have it."""
    for write in (str, json.dumps):
        found = cells_of([write(words) for words in sets])
        targets, classes = found.targets, found.classes
        assert isinstance(targets, Values)
        assert list(classes) == sorted({word for words in sets for word in words})
        expected = [[word in words for word in classes] for words in sets]
        assert np.array_equal(targets.values, np.array(expected, np.uint8).reshape(len(sets), len(classes)))


@given(
    cells=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=4), min_size=2, max_size=8),
    mark=st.sampled_from([" ", ", ", ","]),
)
@settings(max_examples=20)
def test_cells_of_several_numbers_are_never_classes(cells: list[list[int]], mark: str) -> None:
    """Whatever is between them, and with brackets or without."""
    for form in ("{}", "[{}]", "({})"):
        with pytest.raises(LayoutError, match="separator=''"):
            cells_of([form.format(mark.join(map(str, numbers))) for numbers in cells])
