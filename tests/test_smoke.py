"""The main job from end to end on a small dataset; `make smoke` runs this against the built wheel."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

import colabstage


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A zip of 24 PNGs of 8x8 pixels in two classes; red is 100 in every pixel for cats and 200 for dogs."""
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(24):
            kind, red = [("cat", 100), ("dog", 200)][number % 2]
            picture = io.BytesIO()
            Image.new("RGB", (8, 8), (red, number, 0)).save(picture, "png")
            archive.writestr(f"{kind}/{number:02}.png", picture.getvalue())
    return path


def run_command(*arguments: str | Path) -> str:
    """Return what the installed `colabstage` command prints."""
    command = Path(sys.executable).with_name("colabstage")
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_the_package_says_what_it_is() -> None:
    """The version is that of the metadata, and type information is included."""
    assert colabstage.__version__ == metadata.version("colabstage")
    assert Path(colabstage.__file__).with_name("py.typed").exists()


def test_a_zip_is_staged_and_found_again(photos: Path, tmp_path: Path) -> None:
    """The pack has every sample with its label; the second call creates nothing."""
    data = colabstage.stage_dataset(photos, local_dir=tmp_path / "here", cache_dir=None, progress=False)
    written = data.path.stat().st_mtime_ns
    assert dict(data.splits) == {"train": 24}
    assert data.classes == ("cat", "dog")
    with h5py.File(data.path) as file:
        images, labels = file["X_train"][:], file["Y_train"][:].reshape(-1)
    assert sorted(images[:, 0, 0, 1]) == list(range(24))
    assert np.array_equal(images[:, 0, 0, 0], np.where(labels == 0, 100, 200))
    again = colabstage.stage_dataset(photos, local_dir=tmp_path / "here", cache_dir=None, progress=False)
    assert (again.path, again.path.stat().st_mtime_ns) == (data.path, written)


@pytest.mark.torch
def test_staged_batches_feed_a_training_loop(photos: Path, tmp_path: Path) -> None:
    """One epoch returns every sample once, as tensors, each with its own label."""
    data = colabstage.stage_dataset(photos, local_dir=tmp_path / "here", cache_dir=None, progress=False)
    seen = []
    with data.loader("train", batch_size=5) as batches:
        for images, labels in batches:
            assert images.shape[1:] == (3, 8, 8)
            assert (images[:, 0, 0, 0] == 100 + 100 * labels.reshape(-1)).all()
            seen += images[:, 1, 0, 0].tolist()
    assert sorted(seen) == list(range(24))


def test_the_command_line_packs_and_verifies(photos: Path, tmp_path: Path) -> None:
    """The installed command makes a pack, describes its content, and verifies it."""
    pack = tmp_path / "photos.h5"
    run_command("pack", photos, pack)
    assert "24" in run_command("info", pack)
    run_command("verify", pack)
