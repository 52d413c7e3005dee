"""Damaged or odd images: each is stored as Pillow reads it, or named in the report."""

import io
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import DecodeError
from colabstage.options import Images, SampleTable, TreeFiles
from colabstage.trees.listing import Tree
from tests.pack.odd_images import odd_images

# Pillow warns about broken EXIF blocks and large pictures; only the results are checked here.
pytestmark = [pytest.mark.filterwarnings("ignore:::PIL"), pytest.mark.filterwarnings("ignore::UserWarning")]

# No picture shrinks to this by two or more, except those that are 20,000 pixels long.
SIZE = (28, 34)

# Files stored unchanged are not decoded, so damage to their pixels shows when they are read.
UNSEEN = ("flipped-", "jpeg-no-tables")


def by_pillow(data: bytes, size: tuple[int, int] | None) -> NDArray[Any] | None:
    """Return what Pillow reads, upright and as RGB; `None` if it refuses. Of 16 bits the upper 8, as documented."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image: Image.Image = Image.open(io.BytesIO(data))
            deep = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")
            image = ImageOps.exif_transpose(image)
            if deep:
                image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
            elif image.mode in ("I", "F"):
                return None
            image = image.convert("RGB")
            return np.asarray(image if size is None else image.resize(size[::-1], Image.Resampling.BILINEAR))
    except Exception:  # noqa: BLE001  # whatever Pillow's plugins let through
        return None


def every_file(tree: Tree) -> SampleTable:
    """A layout that takes each file for an image, whatever its extension."""
    names = tuple(entry.name for entry in tree.entries)
    return SampleTable("every_file", names, Images(TreeFiles(tree, tree.entries)), None)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A class folder with all of them."""
    images = odd_images()
    folder = tmp_path_factory.mktemp("odd") / "all"
    (folder / "any").mkdir(parents=True)
    for name, data in images.items():
        (folder / "any" / name).write_bytes(data)
    return folder, images


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_each_is_stored_as_pillow_reads_it_or_named(
    tmp_path: Path, corpus: tuple[Path, dict[str, bytes]], encoding: str
) -> None:
    """No crash, no wrong row, and every image that Pillow reads is stored."""
    folder, images = corpus
    size = SIZE if encoding == "pixels" else None
    options: dict[str, Any] = {"layout": every_file, "encoding": encoding, "image_size": size, "on_error": "skip"}
    report = pack_dataset(folder, tmp_path / "odd.h5", progress=False, **options)
    dataset = dataset_h5(report.path)
    with h5py.File(report.path) as file:
        rows = {key.removeprefix("any/"): row for row, key in enumerate(file["key_train"].asstr())}
    named = {why.partition(": ")[0].removeprefix("any/") for why in report.skipped}
    assert set(rows) | named == set(images)
    assert not set(rows) & named
    wrong = []
    for name, data in images.items():
        expected = by_pillow(data, size)
        if name in named:
            if expected is not None:
                wrong.append(f"{name} is left out, but Pillow reads it: {[w for w in report.skipped if name in w]}")
            continue
        if expected is None and encoding == "encoded" and name.startswith(UNSEEN):
            with pytest.raises(DecodeError, match=f"Row {rows[name]} of X_train"):
                dataset[rows[name]]
            continue
        if expected is None:
            wrong.append(f"{name} is stored, but Pillow does not read it")
            continue
        found = np.asarray(dataset[rows[name]][0])
        if found.shape != expected.shape:
            wrong.append(f"{name} has shape {found.shape}, Pillow's {expected.shape}")
            continue
        difference = np.abs(found.astype(int) - expected.astype(int))
        # Photographs with long sides are reduced by blocks first.
        allowed = 4.0 if "20000" in name and name.endswith("jpg") and size is not None else 0.0
        if difference.mean() > allowed:
            wrong.append(f"{name} differs by {difference.mean():.2f} in the mean")
    assert not wrong, "\n".join(wrong)
