"""What a person would take for a mistake in labels and splits is asked about, and never decided in silence."""

from __future__ import annotations

import ast
import io
import tarfile
import unicodedata
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.detect import TableFile, detect_layout
from colabstage.layouts.table import BrokenDatasetError, SampleTable, Values
from colabstage.layouts.words import spoken
from colabstage.options import table_rows
from colabstage.trees.folder import FolderTree
from colabstage.trees.joined import JoinedTree
from colabstage.trees.open import open_tree
from tests.layouts.readers import read_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from colabstage.layouts.detect import LayoutFunction


def _tree(place: Path, *names: str, **files: str) -> FolderTree:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"")
    for stem, text in files.items():
        (place / f"{stem}.csv").write_text(text, encoding="utf-8")
    return FolderTree(place)


IMAGES = [f"images/{number}.jpg" for number in range(6)]


def _read(place: Path, text: str, layout: str | LayoutFunction = "auto") -> SampleTable:
    return detect_layout(_tree(place, *IMAGES, labels=text), layout)


WORDS = st.text("abcxyzäéñж7", min_size=2, max_size=8).filter(lambda word: not word.isdecimal())
SPELLINGS: dict[str, Callable[[str, str], str]] = {
    "case": lambda first, second: f"{first.upper()} {second}",
    "underscore": lambda first, second: f"{first}_{second}",
    "blanks": lambda first, second: f" {first}  {second} ",
    "Unicode": lambda first, second: unicodedata.normalize("NFD", f"ä{first} {second}"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@given(first=WORDS, second=WORDS)
def test_one_word_in_two_spellings_is_no_two_classes(spelling: str, first: str, second: str) -> None:
    """Case, blanks, underscores and forms of Unicode tell no classes apart; another letter does."""
    name = f"ä{first} {second}" if spelling == "Unicode" else f"{first} {second}"
    other = SPELLINGS[spelling](first, second)
    assert len({spoken(name), spoken(f"{name}x"), spoken(f"{first}{second}")}) == 3
    if other != name:
        assert spoken(name) == spoken(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Dog", "dog"), ("True", "TRUE"), ("golden_retriever", "Golden retriever"), ("cat", "cat "), ("01", "1"),
        (unicodedata.normalize("NFC", "Käse"), unicodedata.normalize("NFD", "Käse")),
    ],
)  # fmt: skip
def test_folders_of_one_word_are_refused_unless_they_are_asked_for(tmp_path: Path, one: str, other: str) -> None:
    """Across splits, where each hides a class from the other, and within one; who names the layout is believed."""
    names = [f"train/{one}/1.jpg", f"test/{other}/2.jpg", "train/eel/3.jpg", "test/eel/4.jpg"]
    tree = _tree(tmp_path / "apart", *names)
    with pytest.raises(
        BrokenDatasetError, match=f"'{one}'.*layout=\"image_folder\"|'{other}'.*layout=\"image_folder\""
    ):
        detect_layout(tree)
    assert set(detect_layout(tree, "image_folder").classes) == {one, other, "eel"}
    with pytest.raises(BrokenDatasetError, match="spelled in two ways"):
        detect_layout(_tree(tmp_path / "together", f"{one}/1.jpg", f"{other}/2.jpg", "eel/3.jpg"))


def test_single_letters_in_two_cases_are_two_classes(tmp_path: Path) -> None:
    """As of handwriting."""
    assert detect_layout(_tree(tmp_path, "A/1.jpg", "a/2.jpg")).classes == ("A", "a")


@pytest.mark.parametrize("missing", ["NaN", "nan", "<NA>", "N/A", "null", "NULL"])
@pytest.mark.parametrize("word", ["cat", "cat|dog", "1"])
def test_what_programs_write_for_nothing_is_no_class(tmp_path: Path, missing: str, word: str) -> None:
    """Whatever the other labels are; the message quotes it."""
    text = f"file,label\n0.jpg,{word}\n1.jpg,{missing}\n2.jpg,dog\n3.jpg,{word}\n4.jpg,dog\n5.jpg,dog\n"
    with pytest.raises(BrokenDatasetError, match=rf"1 of 6 rows has no label .*that of .*'{missing}'"):
        _read(tmp_path, text)


def test_none_is_a_word(tmp_path: Path) -> None:
    """A wall may have no damage, and Namibia is NA."""
    text = "file,label\n0.jpg,None\n1.jpg,crack\n2.jpg,NA\n3.jpg,crack\n4.jpg,None\n5.jpg,NA\n"
    assert _read(tmp_path, text).classes == ("NA", "None", "crack")


def test_two_labels_of_one_image_are_asked_about(tmp_path: Path) -> None:
    """Unless somebody has named the column; the same label twice is a note."""
    rows = "file,label\n0.jpg,cat\n1.jpg,dog\n2.jpg,cat\n"
    with pytest.raises(BrokenDatasetError, match=r"'images/0\.jpg', one with the label 'cat' and one with 'dog'"):
        _read(tmp_path / "two", f"{rows}0.jpg,dog\n")
    named = _read(tmp_path / "two", f"{rows}0.jpg,dog\n", partial(read_table, labels=["label"]))
    assert named.keys == ("images/0.jpg", "images/1.jpg", "images/2.jpg", "images/0.jpg#2")
    again = _read(tmp_path / "same", f"{rows}0.jpg,cat\n")
    assert "1 row names a file that another row names as well; each row is a sample." in again.notes
    # Numbers to predict may have been measured twice.
    assert len(_read(tmp_path / "measured", "file,size\n0.jpg,1.5\n0.jpg,1.7\n1.jpg,2.5\n2.jpg,3.5\n")) == 4


def test_a_table_that_contradicts_the_folders_is_asked_about(tmp_path: Path) -> None:
    """Both say classes, and one of them is wrong; numbers are also what patients are called."""
    names = ["cat/1.jpg", "cat/2.jpg", "dog/3.jpg", "dog/4.jpg"]
    tree = _tree(tmp_path / "words", *names, labels="file,label\n1.jpg,cat\n2.jpg,dog\n3.jpg,dog\n4.jpg,dog\n")
    with pytest.raises(BrokenDatasetError, match=r"says 'dog' for 'cat/2\.jpg'.*\"table\" or layout=\"image_folder\""):
        detect_layout(tree)
    for layout in ("table", "image_folder"):
        assert detect_layout(tree, layout).classes == ("cat", "dog")
    patients = [f"{number % 2}/{number}.jpg" for number in range(4)]
    text = "file,label\n0.jpg,0\n1.jpg,0\n2.jpg,1\n3.jpg,1\n"
    assert detect_layout(_tree(tmp_path / "patients", *patients, labels=text)).classes == ("0", "1")


@pytest.mark.parametrize("yes", ["True", "1", "yes"])
@pytest.mark.parametrize(
    ("column", "splits"),
    [
        ("is_valid", ("valid", "train")), ("Is Test", ("test", "train")), ("is_val", ("val", "train")),
        ("is_training_image", ("test", "train")),
    ],
)  # fmt: skip
def test_a_column_of_yes_and_no_is_a_split(tmp_path: Path, column: str, splits: tuple[str, str], yes: str) -> None:
    """As fast.ai writes it: without that, what is held out would be trained on."""
    no = {"True": "False", "1": "0", "yes": "no"}[yes]
    is_train = "training" in column
    cells = [no if (number < 4) == is_train else yes for number in range(6)]
    cells = [yes if cell == no else no for cell in cells] if is_train else [no] * 4 + [yes] * 2
    words = ["cat", "dog"] * 3
    rows = "".join(f"{number}.jpg,{words[number]},{cell}\n" for number, cell in enumerate(cells))
    found = _read(tmp_path, f"file,label,{column}\n{rows}")
    assert found.splits == tuple([splits[1]] * 4 + [splits[0]] * 2)
    assert f"Splits are as '{column}' says." in found.notes


@pytest.mark.parametrize(
    ("header", "rows", "says"),
    [
        ("file,label,is_valid", ["cat,True"] * 4 + ["dog,False"] * 2, "would put 4 of 6 rows into the split 'valid'"),
        ("file,label,is_valid,is_test", ["cat,1,0"] + ["dog,0,0"] * 4 + ["cat,0,1"], "each name a split"),
    ],
)
def test_flags_that_may_mean_something_else_are_asked_about(
    tmp_path: Path, header: str, rows: list[str], says: str
) -> None:
    """is_valid may also say that a row is sound."""
    text = "".join(f"{number}.jpg,{row}\n" for number, row in enumerate(rows))
    with pytest.raises(BrokenDatasetError, match=says):
        _read(tmp_path, f"{header}\n{text}")


def test_a_split_that_is_none_in_the_second_table_is_an_error(tmp_path: Path) -> None:
    """Roles are those of the first table."""
    head = "file,label,part\n"
    train = head + "".join(f"{number}.jpg,{'ab'[number % 2]},train\n" for number in range(4))
    tree = _tree(tmp_path, *IMAGES, train=train, test=f"{head}4.jpg,a,holdout\n5.jpg,b,holdout\n")
    with pytest.raises(LayoutError, match="'part' says which split a row belongs to, but one row says 'holdout'"):
        detect_layout(tree)


def test_columns_that_are_not_used_are_named(tmp_path: Path) -> None:
    """A fold or a second label would be missed; what numbers the rows would not."""
    rows = "".join(f"{number},{number}.jpg,{'ab'[number % 2]},{number % 3},{20 + number}\n" for number in range(6))
    found = _read(tmp_path, f",file,label,fold,age\n{rows}")
    assert "Not used: the columns 'fold', 'age'." in found.notes


@pytest.mark.parametrize(
    ("labels", "noted"), [((1, 2, 3), "1 to 3"), ((0, 1, 3), "0 to 3"), ((-1, 1, 1), "-1 to 1"), ((0, 1, 2), "")]
)
def test_numbers_that_are_no_classes_are_told(tmp_path: Path, labels: tuple[int, ...], noted: str) -> None:
    """A loss of three classes wants 0 to 2; the numbers stay as they are."""
    text = "file,label\n" + "".join(f"{number}.jpg,{labels[number % 3]}\n" for number in range(6))
    found = _read(tmp_path, text)
    assert isinstance(found.targets, Values)
    assert found.targets.values.tolist() == list(labels) * 2
    assert any(f"stay the numbers {noted};" in note for note in found.notes) == bool(noted)
    assert bool(found.classes) != bool(noted)


def test_train_images_above_the_classes_are_splits(tmp_path: Path) -> None:
    """Although they say images, as a folder beside masks does."""
    names = [f"{split}_images/{name}/{split}{name}.jpg" for split in ("train", "val") for name in ("cat", "dog")]
    found = detect_layout(_tree(tmp_path, *names))
    assert (found.classes, found.splits) == (("cat", "dog"), ("train", "train", "val", "val"))


@pytest.mark.parametrize("cell", ["0.JPG", "00000"])
def test_paths_that_lead_nowhere_are_shown_beside_a_file(tmp_path: Path, cell: str) -> None:
    """So that a person sees the difference, and how the path is written."""
    with pytest.raises(
        LayoutError, match=rf"The first row of 'labels\.csv' is '{cell}', 'cat', and a file is called 'images/0\.jpg'"
    ):
        _read(tmp_path, f"file,label\n{cell},cat\n{cell},dog\n")


def test_archives_in_a_folder_are_told_of(tmp_path: Path) -> None:
    """With the path that works."""
    tree = _tree(tmp_path, "train.zip", "test.zip")
    with pytest.raises(EmptySourceError, match=f"not opened. Give as the source: .'{tmp_path}/test.zip'"):
        detect_layout(tree)


@pytest.mark.parametrize("layout", ["auto", "table", TableFile("train.csv")], ids=["auto", "table", "file"])
def test_archives_beside_a_table_are_told_of_with_the_line_that_keeps_their_labels(
    tmp_path: Path, layout: str | TableFile
) -> None:
    """As competitions on Kaggle come: the archive alone would give images without labels."""
    (tmp_path / "train.csv").write_text("id,label\n1,cat\n2,dog\n3,cat\n")
    (tmp_path / "sample_submission.csv").write_text("id,label\n9,cat\n18,cat\n27,cat\n")
    for name in ("train", "test"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as file:
            for number in (1, 2, 3):
                file.writestr(f"{name}/{number if name == 'train' else 9 * number}.jpg", b"")
    with pytest.raises(EmptySourceError, match=r"'train\.csv' beside them may hold their labels") as caught:
        detect_layout(FolderTree(tmp_path), layout)
    source = ast.literal_eval(str(caught.value).rpartition("as the source: ")[2].removesuffix("."))
    assert source == [f"{tmp_path}", f"{tmp_path}/test.zip", f"{tmp_path}/train.zip"]
    parts = [(Path(one).stem, open_tree(Path(one), spool=tmp_path / "spool")) for one in source]
    with JoinedTree("several", parts) as joined:
        table = detect_layout(joined)
    assert (table.classes, list(table.keys)) == (("cat", "dog"), ["train/1.jpg", "train/2.jpg", "train/3.jpg"])


@pytest.mark.parametrize("name", ["photos.tar", "photos.tar.gz", "photos.tgz"])
def test_a_tar_in_a_folder_is_told_of(tmp_path: Path, name: str) -> None:
    """Although it was looked into, since it might be a shard; what is beside it may still be the dataset."""
    (tmp_path / "README.md").write_text("Photographs")
    with tarfile.open(tmp_path / name, "w" if name.endswith(".tar") else "w:gz") as tar:
        for member in ("cats/0.jpg", "dogs/1.jpg"):
            tar.addfile(tarfile.TarInfo(member), io.BytesIO())
    with pytest.raises(EmptySourceError, match=f"Give as the source: '{tmp_path}/{name}'"):
        detect_layout(FolderTree(tmp_path))
    (tmp_path / "notes.xyz").write_text("of another kind")
    with pytest.raises(LayoutError, match="is not a WebDataset"):
        detect_layout(FolderTree(tmp_path))


def _column(name: str, *cells: str, beside: tuple[str, ...] = ()) -> str:
    rows = [f"images/{number}.jpg,{cell}" for number, cell in enumerate(cells)]
    rows = [f"{row},{other}" for row, other in zip(rows, beside, strict=True)] if beside else rows
    return "\n".join([f"path,{name}", *rows]) + "\n"


@pytest.mark.parametrize("base", [2**24, 2**53, 2**62])
def test_whole_labels_stay_exact(tmp_path: Path, base: int) -> None:
    """Two labels next to each other stay two, however large, and negative too."""
    numbers = [base, base + 1, -base - 1, base + 2, base + 3, -(2**63)]
    targets = _read(tmp_path, _column("label", *map(str, numbers))).targets
    assert isinstance(targets, Values)
    assert targets.values.dtype == np.int64
    assert targets.values.tolist() == numbers


def test_labels_that_would_merge_are_refused(tmp_path: Path) -> None:
    """No 64-bit number, one of several columns, or written as floats: an error, and no float32 of both."""
    with pytest.raises(LayoutError, match=f"has the label {2**63}, which does not fit into 64 bits"):
        _read(tmp_path, _column("label", *(str(2**63 - 1 + number % 2) for number in range(6))), "table")
    ids = [str(2**24 + number) for number in range(6)]
    merged = "has the numbers 16777216 and 16777217, which would become the same number"
    with pytest.raises(LayoutError, match=merged):
        _read(tmp_path, _column("a,b", *ids, beside=("0.5",) * 6), table_rows(labels=["a", "b"]))
    with pytest.raises(LayoutError, match="which would become the same number in float32"):
        _read(tmp_path, _column("label", *(f"{2**53 + 2 * number}.0" for number in range(6))), "table")


def test_measurements_may_be_rounded(tmp_path: Path) -> None:
    """Fractions, and whole numbers that stay apart, are float32 as ever."""
    targets = _read(tmp_path, _column("label", "0.1", "1e20", "16777217", "3", "4", "5")).targets
    assert isinstance(targets, Values)
    assert targets.values.dtype == np.float32


def test_one_split_called_in_two_ways_is_asked_about(tmp_path: Path) -> None:
    """In a column and in folders; given a layout they are two, and one name in any case is one."""
    cells = ("train", "train", "train", "train", "valid", "Validation")
    text = _column("label,split", *"ababab", beside=cells)
    with pytest.raises(BrokenDatasetError, match="in the splits 'valid', 'validation'"):
        _read(tmp_path, text)
    assert set(_read(tmp_path, text, "table").splits or ()) == {"train", "valid", "validation"}
    same = text.replace("Validation", "VALID")
    assert set(_read(tmp_path, same).splits or ()) == {"train", "valid"}
    names = [f"{split}/{name}/{number}.jpg" for split in ("train", "val", "valid") for name in "ab" for number in "12"]
    with pytest.raises(BrokenDatasetError, match="in the splits 'val', 'valid'"):
        detect_layout(_tree(tmp_path / "folders", *names))
