"""Folders of classes: the samples, labels and order that torchvision's ImageFolder documents, and clear refusals."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from colabstage.errors import EmptySourceError, LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.layouts.words import IMAGES as IMAGE_EXTENSIONS
from colabstage.options import Values
from colabstage.trees.bytes import LocalBytes
from colabstage.trees.folder import FolderTree
from colabstage.trees.open import JoinedTree
from colabstage.trees.tar import TarTree
from colabstage.trees.zip import ZipTree
from tests.layouts.readers import read_image_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from colabstage.options import SampleTable

    Table = Callable[..., SampleTable]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A function that reads the table of a folder of empty files with the given names."""

    def read(*names: str) -> SampleTable:
        _touch(tmp_path / "data", names)
        return read_image_folder(FolderTree(tmp_path / "data"))

    return read


def _touch(root: Path, names: Iterable[str]) -> None:
    root.mkdir(exist_ok=True)
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def _labels(found: SampleTable) -> NDArray[Any]:
    assert isinstance(found.targets, Values)
    return found.targets.values


def _names(found: SampleTable) -> list[str]:
    return list(found.keys)


def _as_image_folder(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """Classes and samples as `ImageFolder(root)` documents them: `find_classes`, then `make_dataset`."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for number, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            samples += [
                (str((Path(folder) / file).relative_to(root)), number)
                for file in sorted(files)
                if file.lower().endswith(IMAGE_EXTENSIONS)
            ]
    return classes, samples


_PARTS = st.text(st.sampled_from("aAb-_. 01é"), min_size=1, max_size=4).filter(lambda text: text not in (".", ".."))


@pytest.mark.slow
@given(
    classes=st.dictionaries(
        _PARTS.map("c{}".format),
        st.sets(
            st.lists(_PARTS, max_size=2).map(lambda parts: "/".join([*(f"d{one}" for one in parts), "f"])), min_size=1
        ),
        min_size=2,
        max_size=4,
    ),
    extension=st.sampled_from(IMAGE_EXTENSIONS),
)
def test_samples_labels_and_order_are_those_of_torchvision(
    tmp_path_factory: pytest.TempPathFactory, classes: dict[str, set[str]], extension: str
) -> None:
    """Any names, any depth below the class: the same list, in the same order, with the same numbers."""
    root = tmp_path_factory.mktemp("data")
    _touch(root, [f"{name}/{file}{extension}" for name, files in classes.items() for file in files])
    found = read_image_folder(FolderTree(root))
    names, samples = _as_image_folder(root)
    assert list(found.classes) == names
    assert list(zip(_names(found), _labels(found).tolist(), strict=True)) == samples
    assert found.splits is None
    assert _labels(found).dtype == np.int64
    assert found.layout == "image_folder"


def test_every_extension_of_an_image_counts_in_any_case(table: Table) -> None:
    """And nothing else is; what is left out is counted."""
    names = [f"a/1{one}" for one in IMAGE_EXTENSIONS] + [f"b/1{one.upper()}" for one in IMAGE_EXTENSIONS]
    found = table(*names, "a/1.txt", "a/1.svg", "b/jpg", "labels.csv", "b/1.jpg.txt")
    assert sorted(_names(found)) == sorted(names)
    assert found.notes == ("5 other files were left out (2 .txt, 1 .csv, 1 .svg, 1 without extension).",)


@pytest.mark.parametrize(
    ("folder", "split"),
    [
        ("training", "train"),
        ("testing", "test"),
        *((one, one) for one in ["train", "val", "valid", "validation", "dev", "test"]),
    ],
)
def test_each_word_for_a_split_has_its_stored_name(table: Table, folder: str, split: str) -> None:
    """The folder's own name, but for the two that everybody shortens."""
    assert table(f"{folder}/cat/1.jpg", f"{folder}/dog/1.jpg").splits == (split, split)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("", "no files"),
        ("a/1.csv a/2.csv 3.CSV b/1.txt b/2.txt README", r"no images but 3 \.csv, 2 \.txt, 1 without extension"),
        ("labels.gsheet", "1 Google document was left out"),
    ],
)
def test_no_images_says_what_there_is_instead(table: Table, names: str, says: str) -> None:
    """An empty folder is often a mount that is not there, and one of Google's documents looks full in the browser."""
    with pytest.raises(EmptySourceError, match=says):
        table(*names.split())


def test_a_folder_and_its_zip_give_the_same_table(tmp_path: Path) -> None:
    """What holds the files does not matter."""
    names = ["train/b/2.jpg", "train/b-c/1.jpg", "train/b/d/0.jpg", "test/a/3.jpg"]
    _touch(tmp_path / "data", names)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in names:
            archive.write(tmp_path / "data" / name, f"data/{name}")
    folder = read_image_folder(FolderTree(tmp_path / "data"))
    with ZipTree(LocalBytes(tmp_path / "a.zip")) as tree:
        zipped = read_image_folder(tree)
    assert [name.removeprefix("data/") for name in _names(zipped)] == _names(folder)
    assert _labels(zipped).tolist() == _labels(folder).tolist()
    assert (zipped.splits, zipped.classes, zipped.notes) == (folder.splits, folder.classes, folder.notes)


def test_an_empty_class_folder_keeps_its_number(tmp_path: Path) -> None:
    """As in torchvision's classes: in a folder, and in archives that list it; a note says that it is empty."""
    root = tmp_path / "data"
    _touch(root, ["cat/1.jpg", "eel/2.jpg", "fox/3.svg"])
    (root / "dog").mkdir()
    (root / "dog" / ".DS_Store").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in sorted(root.rglob("*")):
            archive.write(path, path.relative_to(root))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(root, "data")
    with (
        ZipTree(LocalBytes(tmp_path / "a.zip")) as zipped,
        TarTree(LocalBytes(tmp_path / "a.tar"), spool=tmp_path) as tar_tree,
    ):
        for tree in (FolderTree(root), zipped, tar_tree, JoinedTree("both", [("x", FolderTree(root))])):
            found = read_image_folder(tree)
            assert found.classes == ("cat", "dog", "eel", "fox")
            assert _labels(found).tolist() == [0, 2]
            assert any("'dog', 'fox' hold no images" in note for note in found.notes)


def test_empty_folders_that_are_no_classes_change_nothing(tmp_path: Path) -> None:
    """Folders of parts and splits, hidden ones, and what stands beside the folder that wraps the dataset."""
    root = tmp_path / "data"
    _touch(root, ["pets/train/cat/1.jpg", "pets/train/dog/2.jpg", "pets/test/cat/3.jpg"])
    for name in ("logs", "pets/masks", "pets/train/.cache", "pets/train/annotations", "pets/val", "pets/test/eel"):
        (root / name).mkdir()
    found = read_image_folder(FolderTree(root))
    assert found.classes == ("cat", "dog", "eel")
    assert found.splits == ("train", "train", "test")


def test_one_class_with_folders_in_it_is_no_wrapper_beside_an_empty_one(tmp_path: Path) -> None:
    """cat/indoor beside an empty dog is a class, though alone it would be looked through."""
    root = tmp_path / "data"
    _touch(root, ["cat/indoor/1.jpg", "cat/indoor/2.jpg"])
    (root / "dog").mkdir()
    assert read_image_folder(FolderTree(root)).classes == ("cat", "dog")


_FOLDERS = st.sampled_from(
    ["cat", "dog", "train", "test", "images", "masks", "train_set", "label", "a", "seg_test", ".bin", "no", "yes"]
)


@st.composite
def _trees(draw: st.DrawFn) -> set[str]:
    """Folders of images: of a few classes, in splits or not, wrapped or not, some of them missing; most of the time
    with other folders among them, as often as not of names that say something else."""
    wrapper = draw(st.sampled_from(["", "", "set/", "images/"]))
    splits = draw(st.sampled_from([("",), ("train/", "test/"), ("train_set/", "seg_test/", "val/")]))
    classes = draw(st.sets(st.sampled_from(["cat", "dog", "no", "yes", "a", "train", "label"]), min_size=2, max_size=4))
    folders = sorted(f"{wrapper}{split}{name}" for split in splits for name in classes)
    left_out = draw(st.sets(st.sampled_from(folders), max_size=1))
    others = draw(st.sets(st.lists(_FOLDERS, min_size=1, max_size=3).map("/".join), max_size=3))
    return {*folders} - left_out | draw(st.sampled_from([set(), others]))


@given(paths=_trees() | st.sets(st.lists(_FOLDERS, min_size=1).map("/".join), min_size=1, max_size=6), data=st.data())
def test_trees_are_read_by_torchvisions_rule_or_refused(
    tmp_path_factory: pytest.TempPathFactory, paths: set[str], data: st.DataObject
) -> None:
    """Without a word the classes are those of ImageFolder, of each split's folder where there are splits, or below the
    one folder that wraps all; whatever else might be meant is an error."""
    root = tmp_path_factory.mktemp("data") / "set"
    _touch(root, [f"{path}/{number}.png" for path in paths for number in range(2)])
    for name in data.draw(st.sets(_FOLDERS, max_size=2)):
        (root / name).mkdir(exist_ok=True)
    try:
        found = detect_layout(FolderTree(root))
    except LayoutError:
        return
    event(f"read as {found.layout}")
    if found.layout != "image_folder":
        assert found.layout == "pairs" or (found.layout == "images" and found.targets is None)
        return
    labels = _labels(found).tolist()
    for split in sorted(set(found.splits or [""])):
        own = [
            (name, label)
            for name, label, its in zip(found.keys, labels, found.splits or [""] * len(labels), strict=True)
            if its == split
        ]
        # What a split has is in one folder; without splits, what holds everything is looked through.
        shared = os.path.commonpath([os.path.dirname(name) for name, _ in own])  # noqa: PTH120 - of names in a tree
        places = [root / shared, *(root / shared).parents] if split else _wrapped(root)
        assert any(_agrees(root, place, own, found.classes) for place in places if place.is_relative_to(root))
    assert len({*found.classes}) > 1


def _wrapped(root: Path) -> list[Path]:
    """The folder, and those in it that hold everything but what is in hidden folders."""
    inner = {
        root / folders[0]
        for image in root.rglob("*.png")
        if (folders := image.relative_to(root).parts[:-1]) and not any(name.startswith(".") for name in folders)
    }
    return [root, *(_wrapped(*inner) if len(inner) == 1 else [])]


def _agrees(root: Path, place: Path, own: list[tuple[str, int]], classes: tuple[str, ...]) -> bool:
    """Whether samples, given by path and label, are those of ImageFolder(place), but for hidden folders."""
    names, samples = _as_image_folder(place)
    expected = {
        str((place / name).relative_to(root)): names[label]
        for name, label in samples
        if not any(part.startswith(".") for part in name.split("/"))
    }
    return expected == {name: classes[label] for name, label in own}


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (("1", "2", "10"), "'1' is 0"),
        (("0", "1", "2", "10"), "'10' is 2"),
        (("01", "02"), "'01' is 0"),
        (("0", "1", "2"), None),
        (("cat", "1"), None),
    ],
)
def test_folders_whose_numbers_are_not_the_labels_are_noted(
    table: Table, folders: tuple[str, ...], said: str | None
) -> None:
    """Because a list of names that somebody has would be shifted; where they are, there is nothing to say."""
    found = table(*(f"{folder}/a.jpg" for folder in folders))
    notes = [note for note in found.notes if "numbers as names" in note]
    assert len(notes) == (said is not None)
    assert all(said is not None and said in note for note in notes)
