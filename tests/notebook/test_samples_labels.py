"""Which samples have which class, from targets of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from colabstage.notebook.samples import SplitClasses, open_splits, read_labels
from tests.notebook.packs import CLASSES, masks, photos, write_boxed, write_pack

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def labels_of(path: Path) -> SplitClasses:
    """The labels of `train`."""
    return read_labels(open_splits(path), "train")


def found(labels: SplitClasses) -> dict[str, list[int]]:
    """The rows of each class, by name."""
    return {name: labels.rows_of(number).tolist() for number, name in enumerate(labels.names)}


@pytest.mark.parametrize(
    ("shape", "dtype"), [((9,), "int64"), ((9, 1), "uint8"), ((9, 1, 1), "float32"), ((9,), "bool")]
)
def test_a_number_each(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    """Whole numbers are classes, whatever axes and dtype they are stored with."""
    y = (np.arange(9) % 2).astype(dtype)
    assert found(labels_of(write_pack(tmp_path / "a.h5", photos(9), y.reshape(shape)))) == {
        "0": [0, 2, 4, 6, 8],
        "1": [1, 3, 5, 7],
    }


def test_names_come_from_the_file(tmp_path: Path) -> None:
    """A class that no sample has is there too; -1 is no label, and what has no name is its number."""
    y = np.array([2, -1, 0, 7, 2])
    labels = labels_of(write_pack(tmp_path / "a.h5", photos(5), y, classes=CLASSES))
    assert found(labels) == {"no label": [1], "car": [2], CLASSES[1]: [], "van": [0, 4], "7": [3]}
    assert labels.counts.tolist() == [1, 1, 0, 2, 1]


def test_boxes_give_a_sample_each_of_their_classes_once(tmp_path: Path) -> None:
    """A sample counts once for a class, however many boxes it has of it."""
    boxed = write_boxed(tmp_path / "boxes.h5")
    expected = {
        name: [row for row, own in enumerate(boxed.labels) if number in own] for number, name in enumerate(CLASSES)
    }
    assert found(labels_of(boxed.path)) == expected


def test_masks_give_a_sample_each_of_their_classes(tmp_path: Path) -> None:
    """255 is no class."""
    path = write_pack(tmp_path / "a.h5", photos(6), masks(6), classes=("background", "road", "sky"))
    assert found(labels_of(path)) == {"background": [0, 1, 2, 3, 4, 5], "road": [0, 2, 4], "sky": [0, 3]}


def test_a_column_for_each_class(tmp_path: Path) -> None:
    """Zeros and ones, a column for each named class, are several classes of one sample."""
    y = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1]], np.uint8)
    labels = labels_of(write_pack(tmp_path / "a.h5", photos(3), y, classes=CLASSES))
    assert found(labels) == {"car": [0], CLASSES[1]: [2], "van": [0, 2]}


@pytest.mark.parametrize(
    ("y", "why"),
    [
        (None, "no targets"),
        (np.linspace(0, 1, 6), "float64 numbers"),
        (np.array([0, 1, np.nan, 2, 3, 4]), "float64 numbers"),
        (np.zeros((6, 5), np.float32), "5 numbers each"),
    ],
    ids=["none", "fractions", "nan", "vectors"],
)
def test_what_has_no_classes_says_why(tmp_path: Path, y: NDArray[Any] | None, why: str) -> None:
    """In words, and with no class."""
    labels = labels_of(write_pack(tmp_path / "a.h5", photos(6), y))
    assert why in labels.why_none
    assert labels.names == ()


def test_many_different_numbers_are_no_classes(tmp_path: Path) -> None:
    """Unless the file names them."""
    x, y = np.zeros((300, 4), np.uint8), np.arange(300)
    assert "300 different values" in labels_of(write_pack(tmp_path / "a.h5", x, y)).why_none
    named = labels_of(write_pack(tmp_path / "b.h5", x, y, classes=[f"class {row}" for row in range(300)]))
    assert len(named.names) == 300


def test_several_files_are_counted_through(tmp_path: Path) -> None:
    """Rows of the second file come after those of the first, also of boxes."""
    paths = [write_boxed(tmp_path / f"data-{number}.h5") for number in (1, 2)]
    rows = found(labels_of(tmp_path / "data-*.h5"))["van"]
    assert rows == [3, 3 + len(paths[0].labels)]


def test_no_inputs_are_read(tmp_path: Path) -> None:
    """Inputs whose bytes are gone do not matter."""
    path = write_pack(tmp_path / "a.h5", photos(6), np.arange(6) % 2)
    with h5py.File(path) as file:
        start = file["X_train"].id.get_offset()
    with path.open("r+b") as raw:
        raw.seek(start)
        raw.write(b"\xff" * 1000)
    assert found(labels_of(path)) == {"0": [0, 2, 4], "1": [1, 3, 5]}
