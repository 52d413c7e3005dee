"""Appending to a packed dataset: read as one with it, or refused, naming the difference."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import LayoutError, OptionError, TargetExistsError
from colabstage.options import Images, SampleTable, TreeFiles, Values
from colabstage.trees.listing import Tree
from tests.support.images import image, in_classes, make_tree

pytestmark = pytest.mark.torch


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "photos", in_classes(10))


@pytest.fixture
def base(tmp_path: Path, photos: Path) -> Path:
    pack_dataset(photos, tmp_path / "data.h5", image_size=(8, 8), resize="crop", progress=False)
    return tmp_path / "data.h5"


@pytest.fixture
def more(tmp_path: Path) -> Path:
    """Five images of the second class only, with another size and other names."""
    return make_tree(tmp_path / "more", {f"dog/new-{number}.png": image(number, size=(30, 20)) for number in range(5)})


def test_what_is_appended_takes_the_form_of_what_is_there(base: Path, more: Path) -> None:
    """Size, fitting, encoding and labels are those of the pack; existing rows keep their numbers. Appended again, it
    takes the next number, and a note says that names repeat; any part may stand for the dataset."""
    before = base.read_bytes()
    report = pack_dataset(more, append_to=base, progress=False)
    assert (report.path, report.samples) == (base.with_name("data-append-00001.h5"), {"train": 5})
    assert not any("have the names" in note for note in report.notes)
    assert base.read_bytes() == before
    one, both = dataset_h5(base), dataset_h5(base.with_name("data*.h5"))
    assert len(both) == 15
    for alone, joined in zip(one.read_batch(range(10)), both.read_batch(range(10)), strict=True):
        np.testing.assert_array_equal(joined, alone)
    labels: Any = both.read_batch(range(10, 15))[1]
    assert labels.tolist() == [1] * 5
    assert all(key.startswith("dog/new-") for key in both.reader.keys(range(10, 15)))
    report = pack_dataset(more, append_to=report.path, progress=False)
    assert Path(report.path).name == "data-append-00002.h5"
    assert "5 of the samples" in report.notes[-1]
    assert len(dataset_h5(base.with_name("data*.h5"))) == 20
    # A new base under appended files would mix old and new, so another name is needed.
    with pytest.raises(TargetExistsError, match="data-append-00001"):
        pack_dataset(more, base, overwrite=True, progress=False)


def _letters(tree: Tree) -> SampleTable:
    """The first letter of each name is the class; `_` is none."""
    files, classes = list(tree.entries), tuple(sorted({one.name[0] for one in tree.entries} - {"_"}))
    labels = [-1 if one.name[0] == "_" else classes.index(one.name[0]) for one in files]
    return SampleTable(
        "letters",
        [one.name for one in files],
        Images(TreeFiles(tree, files)),
        Values(np.array(labels)),
        classes=classes,
    )


def test_options_that_are_left_out_are_those_of_the_dataset(tmp_path: Path) -> None:
    """Splits with their seed (a group that is there stays in its split), and a layout, unless it is a function."""
    names = [f"{letter}/p{number % 6}-{number}.png" for letter in "ab" for number in range(12)]
    photos = make_tree(tmp_path / "photos", {name: number for number, name in enumerate(names)})
    more = make_tree(tmp_path / "more", {name.replace("-", "-new"): number for number, name in enumerate(names)})
    how: dict[str, Any] = {"splits": {"train": 0.5, "test": 0.5}, "group_by": r"p\d", "seed": 3, "layout": "images"}
    pack_dataset(photos, tmp_path / "set.h5", shards=2, progress=False, **how)
    # A source with splits of its own, whose names have no groups.
    divided = make_tree(tmp_path / "divided", {"train/a.png": 1, "test/b.png": 2})
    report = pack_dataset(divided, append_to=tmp_path / "set.h5", progress=False)
    assert Path(report.path).name == "set-append-00001.h5"
    pack_dataset(more, append_to=tmp_path / "set-*.h5", progress=False)
    groups = {
        split: {key[2:4] for key in dataset_h5(tmp_path / "set-*.h5", split=split).reader.keys()}  # noqa: SIM118
        for split in ("train", "test")
    }
    assert not groups["train"] & groups["test"]
    letters = make_tree(tmp_path / "letters", {"b.png": 1, "c.png": 2, "_.png": 3})
    pack_dataset(
        make_tree(tmp_path / "first", {**dict.fromkeys(("a.png", "b.png", "c.png"), 1)}),
        tmp_path / "data.h5",
        layout=_letters,
        progress=False,
    )
    with pytest.raises(OptionError, match="_letters"):
        pack_dataset(letters, append_to=tmp_path / "data.h5", progress=False)
    report = pack_dataset(letters, append_to=tmp_path / "data.h5", layout=_letters, progress=False)
    data = dataset_h5(report.path)
    assert dict(zip(data.reader.keys(), [data[row][1] for row in range(len(data))], strict=True)) == {
        "b.png": 1,
        "c.png": 2,
        "_.png": -1,
    }


def test_train_of_a_source_is_divided_as_it_was(tmp_path: Path) -> None:
    """A sample that is there stays in its split, and one that the source holds out is not trained on."""
    names = [f"{split}/{label}/{number}.png" for split in ("train", "test") for label in "ab" for number in range(20)]
    photos = make_tree(tmp_path / "photos", {name: number for number, name in enumerate(names)})
    pack_dataset(photos, tmp_path / "set.h5", splits={"train": 0.8, "val": 0.2}, seed=1, progress=False)
    more = [name.replace("/a/", "/a/new-") for name in names]
    report = pack_dataset(
        make_tree(tmp_path / "more", {name: number for number, name in enumerate(more)}),
        append_to=tmp_path / "set.h5",
        progress=False,
    )
    assert report.samples == {"train": 32, "val": 8, "test": 40}
    of_split = {
        split: set(dataset_h5(tmp_path / "set*.h5", split=split).reader.keys()) for split in ("train", "val", "test")
    }
    assert len(set.union(*of_split.values())) == sum(map(len, of_split.values())) == 120


def _scored(first: int, labels: list[int]) -> dict[str, Any]:
    names = [f"{number}.png" for number in range(first, first + len(labels))]
    rows = "".join(f"{name},{label}\n" for name, label in zip(names, labels, strict=True))
    return {**{name: number for number, name in enumerate(names)}, "labels.csv": f"file,label\n{rows}"}


def _masked(first: int, values: list[int]) -> dict[str, Any]:
    # A pixel that is 0 in each.
    masks = [b"P5\n4 4\n255\n" + bytes([0, *[value] * 15]) for value in values]
    pairs = ({f"images/{number}.png": number, f"masks/{number}.pgm": one} for number, one in enumerate(masks, first))
    return {name: content for pair in pairs for name, content in pair.items()}


@pytest.mark.parametrize(
    ("there", "added", "expected"),
    [
        (_scored(0, [0, 1, 2, 0, 1, 2]), _scored(6, [2, 0, -1]), [2, 0, -1]),
        (_scored(0, [0, 1, 2]), _scored(3, [2, 0, 2, 0, 1, 1]), [2, 0, 2, 0, 1, 1]),
        (_masked(0, [255, 0, 255]), _masked(3, [0, 0]), [0, 0]),
    ],
    ids=["too few to count classes", "enough", "empty masks"],
)
def test_labels_mean_what_they_mean_in_the_dataset(
    tmp_path: Path, there: dict[str, Any], added: dict[str, Any], expected: list[int]
) -> None:
    """Also if the new samples alone do not tell that numbers are classes, or masks a foreground."""
    pack_dataset(make_tree(tmp_path / "there", there), tmp_path / "data.h5", progress=False)
    report = pack_dataset(make_tree(tmp_path / "added", added), append_to=tmp_path / "data.h5", progress=False)
    data = dataset_h5(report.path)
    found = {int(Path(key).stem): np.max(data[row][1]) for row, key in enumerate(data.reader.keys())}
    assert [found[number] for number in sorted(found)] == expected
    assert len(dataset_h5(tmp_path / "data*.h5")) == len(data) + len(dataset_h5(tmp_path / "data.h5"))


def _other_class(folder: Path) -> None:
    (folder / "dog").rename(folder / "zebra")


def _numbers(folder: Path) -> None:
    make_tree(folder, {"one.png": 1, "table.csv": "path,score\none.png,0.5\n"})
    for path in (folder / "dog").iterdir():
        path.unlink()
    (folder / "dog").rmdir()


@pytest.mark.parametrize(
    ("change", "options", "named"),
    [
        (None, {"image_size": (9, 8)}, r"\(9, 8, 3\).*\(8, 8, 3\)"),
        (None, {"encoding": "encoded"}, "encoded"),
        (None, {"prepare": np.float32}, "float32.*uint8"),
        (None, {"prepare": np.negative}, r"\w+:\w+.*None"),
        (_other_class, {}, r"\(zebra\).*\(cat, dog\)"),
        (_numbers, {}, r"\(cat, dog\)"),
    ],
)
def test_another_form_is_refused_by_the_difference(
    base: Path, more: Path, change: Callable[[Path], None] | None, options: dict[str, Any], named: str
) -> None:
    """Nothing is written."""
    if change is not None:
        change(more)
    with pytest.raises(OptionError, match=named):
        pack_dataset(more, append_to=base, progress=False, **options)
    assert sorted(path.name for path in base.parent.glob("*.h5*")) == ["data.h5", "data.h5.json"]


def test_what_the_pack_does_not_hold_is_refused(tmp_path: Path, photos: Path, more: Path) -> None:
    """Re-encoded JPEGs and original files are both bytes, but not one dataset; and a pack whose images had one size
    takes no others."""
    pack_dataset(photos, tmp_path / "jpegs.h5", encoding="jpeg:90", progress=False)
    with pytest.raises(OptionError, match=r"encoded.*jpeg:90"):
        pack_dataset(more, append_to=tmp_path / "jpegs.h5", encoding="encoded", progress=False)
    pack_dataset(photos, tmp_path / "data.h5", progress=False)
    with pytest.raises(OptionError, match=r"\(20, 30, 3\).*\(4, 4, 3\)"):
        pack_dataset(more, append_to=tmp_path / "data.h5", progress=False)
    make_tree(more, {"dog/aaa.png": 9})
    with pytest.raises(LayoutError, match="image_size"):
        pack_dataset(more, append_to=tmp_path / "data.h5", progress=False)
