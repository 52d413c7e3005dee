"""What files of every kind are called, by the report of packing and by a look at the file."""

from __future__ import annotations

import wave
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage.cli.packed import describe_file, encoding_of, print_description
from colabstage.pack.run import pack_dataset

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only mounts and marker files below the test's folder count."""
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))


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
    capsys: pytest.CaptureFixture[str],
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
    described = describe_file(tmp_path / "out.h5")
    assert described.to_dict()["encoding"] == encoding
    print_description(described)
    assert rows in capsys.readouterr().out


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
    tmp_path: Path, shape: tuple[int, ...], dtype: str, encoding: str
) -> None:
    """Rows of floats are no pixels, however many axes they have."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["X_train"] = np.zeros(shape, dtype)
    assert encoding_of(describe_file(tmp_path / "a.h5").info) == encoding
