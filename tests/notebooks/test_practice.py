"""What notebooks practise on: a Drive wherever they run, small datasets on it."""

import os
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest

from colabstage import pack_dataset
from colabstage.errors import OptionError
from colabstage.h5.info import read_info
from notebooks.practice import (
    DIGIT_NAMES,
    HEIGHT,
    MASK_COLOURS,
    WIDTH,
    draw_scenes,
    practice_source,
    zip_boxes,
    zip_masks,
)
from tests.nurseries import Nurseries
from tests.pages import ROOT

TWICE = """
from practice import open_drive, practice_source
drive = open_drive()
assert open_drive() == drive
(drive / "note.txt").write_text("kept")
print("AT", drive, practice_source("", "boxes").stat().st_size > 1000, practice_source("mine.zip"))
"""


def test_elsewhere_a_folder_plays_the_drive(tmp_path: Path, nurseries: Nurseries) -> None:
    """It is one for each process, and is gone at its end."""
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install --group demo")
    script, home = tmp_path / "twice.py", tmp_path / "home"
    script.write_text(TWICE, encoding="utf-8")
    home.mkdir()
    path = os.pathsep.join([str(ROOT / "notebooks"), str(ROOT)])
    said = nurseries.run_script("torch", [script], {"TMPDIR": str(home), "PYTHONPATH": path})
    assert said.startswith(f"AT {home}")
    assert said.endswith("/MyDrive True mine.zip")
    assert list(home.iterdir()) == []


def test_an_unknown_dataset_is_refused() -> None:
    """The message lists what there is."""
    with pytest.raises(OptionError, match="digits, masks, boxes"):
        practice_source("", "cats")  # type: ignore[arg-type]


def test_scenes_agree_with_their_masks_and_boxes() -> None:
    """Each box is the tight frame of digit pixels; the same seed draws the same pictures."""
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install --group demo")
    for scene, again in zip(draw_scenes(20, seed=1), draw_scenes(20, seed=1), strict=True):
        assert scene.image.shape == (HEIGHT, WIDTH, 3)
        assert np.array_equal(scene.image, again.image)
        assert len(scene.boxes) == len(scene.digits) > 0
        inside = np.zeros((HEIGHT, WIDTH), bool)
        for x0, y0, x1, y1 in scene.boxes:
            ink = scene.mask[y0:y1, x0:x1] == 1
            assert ink.any(axis=0)[[0, -1]].all()
            assert ink.any(axis=1)[[0, -1]].all()
            inside[y0:y1, x0:x1] = True
        assert not (scene.mask[~inside] == 1).any()


@pytest.mark.parametrize(
    ("write", "layout", "classes"), [(zip_masks, "pairs", MASK_COLOURS), (zip_boxes, "detection", DIGIT_NAMES)]
)
def test_archives_of_scenes_are_understood(
    write: Callable[..., None], layout: str, classes: Collection[str], tmp_path: Path
) -> None:
    """Masks are found as pairs, boxes as KITTI's, with the names of their classes."""
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install --group demo")
    write(tmp_path / "data.zip", images=40)
    pack_dataset(tmp_path / "data.zip", tmp_path / "data.h5", progress=False)
    info = read_info(tmp_path / "data.h5")
    assert info.layout == layout
    assert set(info.classes) == set(classes)
