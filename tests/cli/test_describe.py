"""What files of every kind are called, by the report of packing and by a look at the file."""

from __future__ import annotations

import wave
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset
from tests.cli.conftest import result

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run


def _clips(folder: Path) -> Path:
    for name in ("beep", "tick"):
        (folder / name).mkdir(parents=True)
        with wave.open(str(folder / name / "1.wav"), "wb") as file:
            file.setparams((1, 2, 1000, 0, "NONE", ""))
            file.writeframes(bytes(100))
    return folder


def _boxes(folder: Path) -> Path:
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    Image.new("RGB", (20, 10)).save(folder / "images" / "1.png")
    (folder / "labels" / "1.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (folder / "classes.txt").write_text("thing\n")
    return folder


def _masks(folder: Path) -> Path:
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
        Image.new("RGB" if name == "images" else "L", (20, 10)).save(folder / name / "1.png")
    return folder


def _arrays(folder: Path) -> Path:
    folder.mkdir()
    np.save(folder / "x.npy", np.zeros((3, 4, 5)))
    return folder


def _tokens(folder: Path) -> Path:
    folder.mkdir()
    (folder / "book.txt").write_text("to be or not to be " * 200)
    return folder


@pytest.mark.parametrize(
    ("make", "options", "unit", "encoding", "rows"),
    [
        (_clips, {}, "2 clips in", "arrays", "50"),
        (_arrays, {}, "3 rows in", "arrays", "4 x 5"),
        (_tokens, {}, "3 rows in", "arrays", "1024"),
        (_boxes, {}, "1 image in", "pixels", "any number of boxes, labels"),
        (_masks, {"encoding": "encoded"}, "1 image in", "encoded", "a mask file of its own size"),
        (_masks, {"encoding": "jpeg:80"}, "1 image in", "jpeg:80", "an image file of its own size"),
    ],
)
def test_samples_are_called_what_they_are(
    tmp_path: Path,
    run: Run,
    make: Any,
    options: dict[str, Any],
    unit: str,
    encoding: str,
    rows: str,
) -> None:
    """Images are images, and nothing else is."""
    report = pack_dataset(make(tmp_path / "data"), tmp_path / "out.h5", progress=False, **options)
    assert unit in str(report)
    assert ("images/s" in str(report)) == ("image" in unit)
    assert result(run("info", "out.h5", "--json"))["encoding"] == encoding
    assert rows in run("info", "out.h5").stdout


def test_rows_of_any_length_and_texts_have_a_name(tmp_path: Path, run: Run) -> None:
    """As files of other tools have them."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X_train"] = [b"one", b"another"]
        ragged = file.create_dataset("X_test", (2,), h5py.vlen_dtype(np.float32))
        ragged[0], ragged[1] = [1, 2], [3]
    shown = run("info", "a.h5").stdout
    assert "any number of values" in shown
    assert "a text" in shown


@pytest.mark.parametrize(
    ("shape", "dtype", "encoding"),
    [
        ((2, 8, 8, 3), "u1", "pixels"),
        ((2, 8, 8), "u1", "pixels"),
        ((2, 4, 5), "f4", "arrays"),
        ((2, 9), "u1", "arrays"),
    ],
)
def test_files_of_others_are_judged_by_their_rows(
    tmp_path: Path, run: Run, shape: tuple[int, ...], dtype: str, encoding: str
) -> None:
    """Rows of floats are no pixels, however many axes they have."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X_train"] = np.zeros(shape, dtype)
    assert result(run("info", "a.h5", "--json"))["encoding"] == encoding
