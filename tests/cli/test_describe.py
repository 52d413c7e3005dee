"""What files of every kind are called, in the report of packing and by `info`."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import pack_dataset
from tests.cli.conftest import Run, result
from tests.support.images import image, make_tree, mask

BOXES = {"images/1.png": 1, "labels/1.txt": "0 0.5 0.5 0.2 0.2\n", "classes.txt": "thing\n"}
MASKS = {"images/1.png": image(1), "masks/1.png": mask(1)}
TOKENS = {"book.txt": "to be or not to be " * 200}


@pytest.mark.parametrize(
    ("files", "options", "unit", "encoding", "rows"),
    [
        (TOKENS, {}, "3 rows in", "arrays", "1024"),
        (BOXES, {}, "1 image in", "pixels", "boxes, labels"),
        (MASKS, {"encoding": "encoded"}, "1 image in", "encoded", "Y_train  encoded"),
        (MASKS, {"encoding": "jpeg:80"}, "1 image in", "jpeg:80", "Y_train  encoded"),
    ],
)
def test_samples_are_called_what_they_are(
    tmp_path: Path, run: Run, files: dict[str, Any], options: dict[str, Any], unit: str, encoding: str, rows: str
) -> None:
    """Images are images, and nothing else is."""
    report = pack_dataset(make_tree(tmp_path / "data", files), tmp_path / "out.h5", progress=False, **options)
    assert unit in str(report)
    assert ("images/s" in str(report)) == ("image" in unit)
    assert result(run("info", "out.h5", "--json"))["encoding"] == encoding
    assert rows in run("info", "out.h5").stdout


@pytest.mark.parametrize(
    ("rows", "row"),
    [
        (np.zeros((2, 8, 8, 3), np.uint8), "8 x 8 x 3"),
        (np.zeros((2, 4, 5), np.float32), "4 x 5"),
        ([b"one", b"another"], "texts"),
    ],
)
def test_rows_of_files_of_others_are_described(tmp_path: Path, run: Run, rows: Any, row: str) -> None:
    """By their shape; how another program encodes them, the file does not say."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X_train"] = rows
    assert result(run("info", "a.h5", "--json"))["encoding"] is None
    assert row in run("info", "a.h5").stdout
