"""Further frames and pages of an image are noted; only the first is stored."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset

KINDS = {"gif": "GIF", "png": "PNG", "webp": "WEBP", "tif": "TIFF", "jpg": "MPO"}


@pytest.mark.parametrize("options", [{"encoding": "pixels"}, {"encoding": "encoded"}, {"encoding": "jpeg:90"}])
def test_more_than_one_frame_is_an_animation(tmp_path: Path, options: dict[str, Any]) -> None:
    """In every format with frames; but the second picture in a photograph is a preview."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for suffix, kind in KINDS.items():
        for count in (1, 2, 5):
            frames = [Image.fromarray(rng.integers(0, 256, (12, 17, 3), dtype=np.uint8)) for _ in range(count)]
            path = tmp_path / "photos" / f"{suffix}{count}.{suffix}"
            frames[0].save(path, kind, save_all=True, append_images=frames[1:])
    report = pack_dataset(tmp_path / "photos", tmp_path / "out.h5", layout="images", progress=False, **options)
    assert set(report.lost["frames"]) == {
        f"{suffix}{count}.{suffix}" for suffix in KINDS if suffix != "jpg" for count in (2, 5)
    }
    assert any("several frames or pages" in note for note in report.notes)
    if options["encoding"] == "pixels":
        with h5py.File(tmp_path / "out.h5") as file:
            for row, key in enumerate(file["key_train"].asstr()):
                with Image.open(tmp_path / "photos" / key) as image:
                    np.testing.assert_array_equal(file["X_train"][row], np.asarray(image.convert("RGB")))
