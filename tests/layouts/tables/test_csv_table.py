"""Tables of paths and labels: whatever the columns are called and however the paths are written."""

import csv as csv_module
import io
import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from colabstage.errors import LayoutError, OptionError
from colabstage.options import Boxes, SampleTable, Values, table_rows
from tests.layouts.readers import read

COUNT = 6


def table(texts: dict[str, str], **options: Any) -> SampleTable:
    """Six images below images/ and the given files, read as a table."""
    return read({f"images/{number}.jpg": "" for number in range(COUNT)} | texts, table_rows(**options))


def values(found: SampleTable) -> Any:
    assert isinstance(found.targets, Values)
    return found.targets.values


def csv(header: str, line: str, **columns: list[Any]) -> str:
    """A table with one row for each image; `line` is a format of `i` and of the columns."""
    rows = [line.format(i=i, **{name: cells[i] for name, cells in columns.items()}) for i in range(COUNT)]
    return "\n".join([header, *rows] if header else rows) + "\n"


NUMBER = r"-?\d+(\.\d+)?(e\d+)?"
WORDS = ["dog", "cat", "dog", "eel", "cat", "cat"]


@pytest.mark.parametrize("group", ["patient_id", "speaker", "user_id", "video_id"])
def test_a_split_column_and_a_group_column_are_known(group: str) -> None:
    """The one by its content, the other by its name; neither is taken for a label."""
    splits = ["train", "Train", "val", "test", "train", "training"]
    text = csv(f"{group},image,fold_name,diagnosis", "p{g},{i}.jpg,{s},{w}", g=[1, 1, 2, 3, 4, 1], s=splits, w=WORDS)
    found = table({"t.csv": text})
    assert found.splits == ("train", "train", "val", "test", "train", "train")
    assert found.groups == ("p1", "p1", "p2", "p3", "p4", "p1")
    assert found.classes == ("cat", "dog", "eel")


def test_columns_come_in_the_order_that_is_asked_for() -> None:
    """A word is not a list of letters."""
    found = table({"t.csv": csv("file,age,id,weight", "{i}.jpg,{i}.5,{i},1{i}")}, labels=["weight", "age"])
    assert values(found).tolist() == [[10 + i, i + 0.5] for i in range(COUNT)]
    with pytest.raises(OptionError, match="a list of columns"):
        table_rows(labels="age")


@given(
    cells=st.lists(st.text("abé -€.", min_size=1, max_size=12).filter(str.strip), min_size=1, max_size=COUNT),
    end=st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
    delimiter=st.sampled_from(",;|\t"),
    place=st.integers(1, 3),
)
def test_cells_are_those_of_the_csv_module(cells: list[str], end: str, delimiter: str, place: int) -> None:
    """However long they are, and whatever ends a line; without the blanks around them."""
    rows = [["path", *("x" if column == place else f"other{column}" for column in (1, 2, 3))]]
    rows += [[f"{number}.jpg", *(cell if column == place else "" for column in (1, 2, 3))]
             for number, cell in enumerate(cells)]  # fmt: skip
    text = end.join(delimiter.join(row) for row in rows) + end
    lines = [row for row in csv_module.reader(io.StringIO(text, newline=""), delimiter=delimiter) if any(row)]
    files: dict[str, str | bytes] = {"t.csv": text, **{f"{number}.jpg": b"" for number in range(len(cells))}}
    found = read(files, table_rows(labels=["x"], separator=""))
    assert isinstance(found.targets, Values)
    stated = [found.classes[label] for label in found.targets.values.tolist()]
    assert dict(zip(found.keys, stated, strict=True)) == {row[0]: row[place].strip() for row in lines[1:]}


@given(
    cells=st.lists(st.text("abé-€#", min_size=1, max_size=12), min_size=1, max_size=COUNT),
    blank=st.sampled_from([" ", "   ", " \t", "\xa0", "\u3000 "]),
    around=st.sampled_from(["", " "]),
    header=st.sampled_from(["path x y", "path  x y ", "# path x y", "{0}\nx y "]),
)
def test_words_are_cells_whatever_blanks_are_between(cells: list[str], blank: str, around: str, header: str) -> None:
    """Also below the number of rows, and a header without a name for the paths."""
    # A tab in the first row would delimit all.
    blanks = [" ", *[blank] * len(cells)]
    rows = [f"{around}{number}.jpg{blanks[number]}{cell}{blanks[number]}7{around}" for number, cell in enumerate(cells)]
    text = "\n".join([header.format(len(rows)), *rows])
    files: dict[str, str | bytes] = {"t.txt": text, **{f"{number}.jpg": b"" for number in range(len(cells))}}
    found = read(files, table_rows(table="t.txt", labels=["x"], separator=""))
    assert isinstance(found.targets, Values)
    stated = [found.classes[label] for label in found.targets.values.tolist()]
    assert dict(zip(found.keys, stated, strict=True)) == {f"{n}.jpg": cell for n, cell in enumerate(cells)}


_ODD_CELLS = st.sampled_from(["x|y", "", "1", "01", "1.5", "train", "None", "nan", "-3"])
_CELLS = {
    "words": st.sampled_from(["a", "b", "dog", "dog 2", "a|b"]),
    "classes": st.sampled_from(["0", "1", "2"]),
    "numbers": st.sampled_from(["0", "1", "7", "-3", "1.5", "2.0", "1e2"]),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    """A header with a path and up to two more columns, in any order, and up to eight rows, mostly one for each image;
    some with files that are not there, with several rows for a file, with odd cells or cells too many."""
    others = draw(st.sets(st.sampled_from(["label", "kind", "scene", "id", "2"]), min_size=1, max_size=2))
    names = draw(st.permutations(["image", *sorted(others)]))
    paths = draw(
        st.permutations(range(COUNT)).flatmap(lambda order: st.sampled_from([order, order, order[1:]]))
        | st.lists(st.integers(0, COUNT), min_size=1, max_size=8)
    )
    kinds = {name: _CELLS[draw(st.sampled_from(sorted(_CELLS)))] for name in others}
    rows = [[f"images/{number}.jpg" if name == "image" else draw(kinds[name]) for name in names] for number in paths]
    broken = draw(st.sampled_from(["", "", "", "cell", "more"]))
    if broken == "cell":
        place = draw(st.sampled_from(range(len(names))))
        # Where paths are, a bare number is one too.
        odd = st.sampled_from(["x|y", "", "images/none.jpg"]) if names[place] == "image" else _ODD_CELLS
        draw(st.sampled_from(rows))[place] = draw(odd)
    elif broken == "more":
        rows[0].append("more")
    return list(names), rows


@given(made=tables())
def test_tables_say_what_pandas_reads_or_are_refused(made: tuple[list[str], list[list[str]]]) -> None:
    """Rows, files and labels are those of an independent reading; whatever cannot be told is an error of the table."""
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    header, rows = made
    images = {f"images/{number}.jpg": b"" for number in range(COUNT)}
    text = io.StringIO()
    csv_module.writer(text).writerows([header, *rows])
    try:
        found = read({**images, "t.csv": text.getvalue()})
    except LayoutError:
        return
    event(f"read as {found.layout}")
    assert found.layout == "table"
    stated = pandas.read_csv(io.StringIO(text.getvalue()), dtype=str, keep_default_na=False).to_dict("records")
    frame = [row for row in stated if row["image"] in images]
    assert [key.partition("#")[0] for key in found.keys] == [row["image"] for row in frame]
    got = values(found)
    others = [name for name in header if name != "image"]
    chosen = [name for name in others if name == "label"] or [name for name in others if name != "id"]
    columns = {name: [row[name] for row in frame] for name in chosen}
    if (
        got.ndim == 1
        and found.classes
        and not all(name.isdecimal() and str(int(name)) == name for name in found.classes)
    ):
        assert [found.classes[label] for label in got.tolist()] in columns.values()
    elif got.ndim == 1:
        # Words that differ in every row are no label, and may stand beside one of numbers.
        numbers = [cells for cells in columns.values() if all(re.fullmatch(NUMBER, cell) for cell in cells)]
        assert got.astype(np.float32).tolist() in [np.array(cells, np.float32).tolist() for cells in numbers]
    elif any("|" in cell for cells in columns.values() for cell in cells):
        sets = [{found.classes[i] for i in np.flatnonzero(row)} for row in got]
        assert sets in [[set(cell.split("|")) - {""} for cell in cells] for cells in columns.values()]
    else:
        expected = np.array([[float(cell or "nan") for cell in cells] for cells in columns.values()], np.float32).T
        np.testing.assert_array_equal(got.astype(np.float32), expected)


# --- cells as people write them: what may be a mistake is asked about, never numbered as classes ----------------------

TWELVE = 12


def rows(header: str, *forms: str, layout: Any = "auto", name: str = "t.csv") -> SampleTable:
    """Twelve (empty) images 0.png, … and a table with a row for each, of these forms of `i` in turn."""
    lines = [form.format(i=number) for number, form in zip(range(TWELVE), itertools.cycle(forms), strict=False)]
    images = {f"images/{number}.png": b"" for number in range(TWELVE)}
    return read(images | {name: "\n".join([header, *lines] if header else lines) + "\n"}, layout)


# What each would silently be otherwise, and the line that the error has.
ASKED = {
    "numbers with a comma, each another": ("image;age", ["{i}.png;{i},5"], r"'0,5'.*write a point.*separator=''"),
    "a vector as JSON": ("image,label", ['{i}.png,"[1, 0, 1]"', '{i}.png,"[0, 0, 1]"'], r"a list written as text"),
    "a vector without brackets": ("image,label", ["{i}.png,1 0 1", "{i}.png,0 0 1"], r"a column for each number"),
    "a date as people write it": ("image,taken", ["{i}.png,2.1.2024", "{i}.png,3.1.2024"], r"labels=\['taken'\]"),
    "captions": ("image,caption", ["{i}.png,a dog {i}"], r"Texts are not read.*layout=\"images\""),
    "sizes of the images": ("image,width,height", ["{i}.png,{i},9"], r"'width', 'height'.*labels=\['width'\]"),
    "yes and no beside a number": ("image,age,male", ["{i}.png,{i},True", "{i}.png,{i},False"], r"labels=\['age'\]"),
    "landmarks beside a class": ("image,label,x1,y1,x2,y2,x3,y3", ["{i}.png,a,1,2,3,4,5,6"], r"labels=\['label'\]"),
    "a class for each box in a cell": ("image,label,box", ["{i}.png,a b,1 2 3 4;1 2 3 4"], r"one class: write"),
    "outlines in a cell": ("image,label,box", ["{i}.png,a,1 2 3 4 5 6 7 8"], r"boxes in another form: 'box'"),
    "corners, and what may be a class": (
        "image,x1,y1,x2,y2,camera", ["{i}.png,1,2,3,4,a"], r"take out 'camera'.*labels=\['x1', 'y1', 'x2', 'y2'\]"
    ),
    "ends of lines": ("image,x1,y1,x2,y2", ["{i}.png,9,2,3,4"], r"9, 2, 3, 4.*labels=\['x1', 'y1', 'x2', 'y2'\]"),
    "a class without its box": ("image,class,x1,y1,x2,y2", ["{i}.png,a,,,,"], r"leave .*'class' empty;"),
    "runs that overlap": ("image,rle", ["{i}.png,1 3 2 5"], r"runs that follow each other.*leave 'rle' empty"),
    "runs of two classes on one pixel": (
        "image,class,rle", ["1.png,a,1 3", "1.png,b,3 2"], r"'images/1.png' are of several classes of 'class'"
    ),
    "runs beyond the image": ("image,rle,height,width", ["{i}.png,90 12,10,10"], r"end at pixel 101 of 10 x 10"),
    "no mask in any row": ("image,rle", ["{i}.png,"], r"no masks as run lengths: 'rle'.*layout=\"images\""),
    "an index as the path": (",label", ["{i},a", "{i},b"], r"first row of 't.csv' is '0', 'a'"),
    "nothing beside the paths": ("image", ["{i}.png"], r"no labels beside the paths.*path,label"),
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
    "counts": ("image,count", ["{i}.png,{i}"], (), [0, 1]),
    "columns of 0 and 1": ("image,a,b", ["{i}.png,0,1", "{i}.png,1,1"], ("a", "b"), [[0, 1], [1, 1]]),
    "columns of numbers": ("image,x,y", ["{i}.png,{i},0.5"], (), [[0, 0.5], [1, 0.5]]),
    "words between bars": ("image,tags", ["{i}.png,a|b", "{i}.png,"], ("a", "b"), [[1, 1], [0, 0]]),
    "no header": ("", ["{i}.png,dog", "{i}.png,cat"], ("cat", "dog"), [1, 0]),
    "four numbers, no box": ("image,vector,label", ["{i}.png,1 2 3 4,a", "{i}.png,1 2 3 4,b"], ("a", "b"), [0, 1]),
    "an id without its ending": ("id;breed;width", ["{i};a;17", "{i};b;17"], ("a", "b"), [0, 1]),
    "a date beside the class": ("image,taken,kind", ["{i}.png,1.2.2024,a", "{i}.png,1.3.2024,b"], ("a", "b"), [0, 1]),
    "measurements": ("image,kind,x1,x2,x3,x4,x5", ["{i}.png,a,1,2,3,4,5", "{i}.png,b,1,2,3,4,5"], ("a", "b"), [0, 1]),
    "lists of words as JSON": ("image,y", ['{i}.png,"[""a"", ""b""]"', "{i}.png,[]"], ("a", "b"), [[1, 1], [0, 0]]),
    "lists of words as Python": ("image,y", ["{i}.png,\"['a, c']\"", "{i}.png,['b']"], ("a, c", "b"), [[1, 0], [0, 1]]),
    "names with a comma": ("image,y", ['{i}.png,"eel, X"', '{i}.png,"crane, G"'], ("crane, G", "eel, X"), [1, 0]),
    "landmarks": ("image,x1,y1,x2,y2,x3,y3", ["{i}.png,5,6,1,2,3,4"], (), [[5.0, 6.0, 1.0, 2.0, 3.0, 4.0]] * 2),
    "fewer than three runs": ("image,label,odds", ["{i}.png,a,1 2 3 4", "{i}.png,b,1 2 3 4"], ("a", "b"), [0, 1]),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_what_can_only_be_meant_in_one_way_is_read(case: str) -> None:
    """The first two samples: words are classes, numbers are numbers, several of 0 and 1 are several labels."""
    header, forms, classes, expected = READ[case]
    found = rows(header, *forms)
    assert found.classes == classes
    assert values(found)[:2].tolist() == expected
    whole = np.uint8 if classes and values(found).ndim == 2 else np.int64
    assert values(found).dtype == (whole if np.array(expected).dtype == np.int64 else np.float32)


NOTED = {
    "several labels": ("image,label", ["{i}.png,a|b"], r"several labels, with '|' between them"),
    "empty cells": ("image,a,b", ["{i}.png,1,", "{i}.png,,0"], r"12 cells of the label columns are empty"),
    "a class for each": ("image,label", ["{i}.png,c{i}"], r"12 classes for 12 samples"),
    "-1 for no": ("image,a,b", ["{i}.png,-1,1"], r"hold -1, which"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTED)
def test_what_a_loss_or_a_reader_would_not_expect_is_noted(case: str) -> None:
    """Beside what is read."""
    header, forms, says = NOTED[case]
    found = rows(header, *forms)
    assert says in " ".join(found.notes)


CELLS = {
    "sizes": ("bbox", "[5.0, 5.0, 4.0, 4.0]", [[5, 5, 9, 9]]),
    "corners": ("bbox", "1 2 9 9", [[1, 2, 9, 9]]),
    "stated": ("bbox_xywh", "(1, 2, 3, 4)", [[1, 2, 4, 6]]),
    "several in a list": ("boxes", "[[5, 5, 4, 4], [0, 0, 9, 9]]", [[5, 5, 9, 9], [0, 0, 9, 9]]),
    "several": ("BoxesString", "5 5 4 4;0 0 9 9", [[5, 5, 9, 9], [0, 0, 9, 9]]),
    "columns": ("x,y,w,h", "1,2,3,4", [[1, 2, 4, 6]]),
    "columns of centres": ("x,y,w,h", "1,2,2,4", [[0, 0, 2, 4]]),
}


@pytest.mark.parametrize("case", CELLS)
def test_boxes_in_cells_are_read_in_the_form_that_all_images_show(case: str) -> None:
    """An image without any has no number, or a class that no row with a box has."""
    header, cell, boxes = CELLS[case]
    cells = cell if header == "x,y,w,h" else f'"{cell}"'
    # Only as centres and sizes both are inside.
    edge = ["{i}.png,9,9,8,7,2,4,a"] * ("centres" in case)
    none = "{i}.png,9,9," + "," * header.count(",")
    found = rows(f"image,width,height,{header},class", *edge, f"{{i}}.png,9,9,{cells},a", f"{none},none", f"{none},")
    assert isinstance(found.targets, Boxes)
    assert found.classes == ("a",)
    first = len(edge)
    part = slice(found.targets.offsets[first], found.targets.offsets[first + 1])
    assert found.targets.boxes[part].tolist() == boxes
    assert np.diff(found.targets.offsets)[first + 1 : first + 3].tolist() == [0, 0]
    assert "No row with the class 'none' has a box: such rows say that their images have none." in found.notes


def test_labels_that_are_corners_are_numbers() -> None:
    """Who names them has said so, and nothing is noted."""
    layout = table_rows(labels=["x1", "y1", "x2", "y2"])
    found = rows("image,x1,y1,x2,y2", "{i}.png,1,2,3,4", layout=layout)
    assert values(found).shape == (TWELVE, 4)
    assert not any("boxes" in note for note in found.notes)
