"""Folders of classes: the samples, labels and order that torchvision's ImageFolder documents, and clear refusals."""

import posixpath
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from colabstage.errors import LayoutError
from colabstage.layouts.detect import detect_layout
from colabstage.options import SampleTable
from colabstage.trees.open import JoinedTree, open_tree
from tests.layouts.readers import labels, read
from tests.support.archives import write_archive
from tests.support.made_files import write_files

# As torchvision's IMG_EXTENSIONS, and what Pillow reads besides.
EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".jfif", ".jpe", ".avif",
    ".heic", ".heif", ".jp2",
)  # fmt: skip


def folders(*names: str) -> SampleTable:
    """Empty files with these names, and empty folders, as a folder of classes."""
    return read(dict.fromkeys(names, b""), "image_folder")


def as_image_folder(names: Iterable[str], root: str = "") -> tuple[list[str], list[tuple[str, int]]]:
    """Classes and samples as `ImageFolder(root)` documents them: `find_classes`, then `make_dataset`."""
    below = [name.removeprefix(root) for name in names if name.startswith(root)]
    classes = sorted({name.split("/")[0] for name in below if "/" in name})
    images = [name for name in below if name.lower().endswith(EXTENSIONS)]
    ordered = sorted(images, key=lambda name: (*posixpath.split(name),))
    return classes, [(root + name, classes.index(name.split("/")[0])) for name in ordered if "/" in name]


def test_order_is_that_of_torchvision(tmp_path: Path) -> None:
    """Folder by folder, each sorted; a zip of it gives the same table."""
    names = ["B/4.jpg", "a/3.jpg", "b/2.jpg", "b/d/0.jpg", "b-c/1.jpg"]
    write_files(tmp_path / "set", dict.fromkeys(reversed(names), b""))
    write_archive(tmp_path / "a.zip", dict.fromkeys(names, b""))
    for place in (tmp_path / "set", tmp_path / "a.zip"):
        with open_tree(place, spool=tmp_path) as tree:
            found = detect_layout(tree, "image_folder")
            assert [*found.keys] == names
            assert (found.classes, labels(found)) == (("B", "a", "b", "b-c"), [0, 1, 2, 2, 3])
    # Of numbers that are the labels there is nothing to say.
    assert folders(*(f"{number}/a.jpg" for number in range(3))).notes == ()


def test_every_extension_of_an_image_counts_in_any_case() -> None:
    """And nothing else is; what is left out is counted."""
    names = [f"a/1{one}" for one in EXTENSIONS] + [f"b/1{one.upper()}" for one in EXTENSIONS]
    found = folders(*names, "a/1.txt", "a/1.svg", "b/jpg", "labels.csv", "b/1.jpg.txt")
    assert sorted(found.keys) == sorted(names)
    (note,) = found.notes
    assert note.startswith("5 ")


@pytest.mark.parametrize("holder", ["zip", "tar", "several"])
def test_an_empty_class_folder_keeps_its_number(tmp_path: Path, holder: str) -> None:
    """As in torchvision's classes: in a folder, and in archives that list it."""
    files = {"cat/1.jpg": b"", "eel/2.jpg": b"", "fox/3.svg": b"", "dog/.DS_Store": b""}
    place = write_files(tmp_path / "set", files)
    if holder in ("zip", "tar"):
        place = Path(shutil.make_archive(str(place), holder, place))
    with open_tree(place, spool=tmp_path) as tree:
        found = detect_layout(JoinedTree("both", [("x", tree)]) if holder == "several" else tree, "image_folder")
        assert (found.classes, labels(found)) == (("cat", "dog", "eel", "fox"), [0, 2])


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (
            ["pets/train/cat/1.jpg", "pets/train/dog/2.jpg", "pets/test/cat/3.jpg", "logs/", "pets/masks/", "pets/val/",
             "pets/train/.cache/", "pets/train/annotations/", "pets/test/eel/"],
            ("cat", "dog", "eel"),
        ),
        (["cat/indoor/1.jpg", "cat/indoor/2.jpg", "dog/"], ("cat", "dog")),
    ],
    ids=["parts, splits, hidden and beside a wrapper", "a class with folders in it is no wrapper"],
)  # fmt: skip
def test_empty_folders_are_classes_only_among_classes(names: list[str], classes: tuple[str, ...]) -> None:
    assert folders(*names).classes == classes


_FOLDERS = st.sampled_from(
    ["cat", "dog", "train", "test", "images", "masks", "train_set", "label", "a", "seg_test", ".bin", "no", "yes"]
)


@st.composite
def trees(draw: st.DrawFn) -> set[str]:
    """Folders of images: of a few classes, in splits or not, wrapped or not, some of them missing; most of the time
    with other folders among them, as often as not of names that say something else."""
    wrapper = draw(st.sampled_from(["", "", "set/", "images/"]))
    splits = draw(st.sampled_from([("",), ("train/", "test/"), ("train_set/", "seg_test/", "val/")]))
    classes = draw(st.sets(st.sampled_from(["cat", "dog", "no", "yes", "a", "train", "label"]), min_size=2, max_size=4))
    places = sorted(f"{wrapper}{split}{name}" for split in splits for name in classes)
    left_out = draw(st.sets(st.sampled_from(places), max_size=1))
    others = draw(st.sets(st.lists(_FOLDERS, min_size=1, max_size=3).map("/".join), max_size=3))
    return {*places} - left_out | draw(st.sampled_from([set(), others]))


@given(paths=trees() | st.sets(st.lists(_FOLDERS, min_size=1).map("/".join), min_size=1, max_size=6), data=st.data())
def test_trees_are_read_by_torchvisions_rule_or_refused(paths: set[str], data: st.DataObject) -> None:
    """Without a word the classes are those of ImageFolder, of each split's folder where there are splits, or below the
    one folder that wraps all; whatever else might be meant is an error."""
    files = [f"{path}/{number}.png" for path in paths for number in range(2)]
    empty = data.draw(st.sets(_FOLDERS, max_size=2)) - {path.split("/")[0] for path in paths}
    try:
        found = read(dict.fromkeys([*files, *(f"{name}/" for name in empty)], b""))
    except LayoutError:
        return
    event(f"read as {found.layout}")
    if found.layout != "image_folder":
        assert found.layout == "pairs" or (found.layout == "images" and found.targets is None)
        return
    seen = [file for file in files if not any(part.startswith(".") for part in file.split("/"))]
    for split in sorted(set(found.splits or [""])):
        own = {
            key: found.classes[label]
            for key, label, its in zip(found.keys, labels(found), found.splits or [""] * len(found), strict=True)
            if its == split
        }
        # What a split has is in one folder; without splits, what holds everything is looked through.
        shared = posixpath.commonpath([posixpath.dirname(name) for name in own])
        steps = shared.split("/") if shared else []
        roots = ["".join(f"{step}/" for step in steps[:depth]) for depth in range(len(steps) + 1)]
        if not split:
            roots = [root for root in roots if all(file.startswith(root) for file in seen)]
        expected = []
        for root in roots:
            names, samples = as_image_folder(seen, root)
            expected.append({key: names[label] for key, label in samples})
        assert own in expected
    assert len({*found.classes}) > 1
