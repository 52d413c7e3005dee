"""Images re-encoded as JPEG: a reader decodes libjpeg's version of the resized image, in its row."""

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from colabstage import dataset_h5, pack_dataset
from colabstage.errors import DecodeError
from tests.images.files import encode
from tests.support.images import make_tree, noise


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six images of noise, 16 high and 20 wide."""
    return make_tree(tmp_path / "photos", {f"{'ab'[n % 2]}/{n}.png": noise(n, size=(20, 16)) for n in range(6)})


def stored(path: Path) -> dict[str, bytes]:
    with h5py.File(path) as file:
        offsets, data = file["X_train/offsets"][()], file["X_train/bytes"][()]
        keys = file["key_train"].asstr()[()].tolist()
        return {key: data[offsets[row] : offsets[row + 1]].tobytes() for row, key in enumerate(keys)}


def decoded(path: Path) -> dict[str, NDArray[np.uint8]]:
    dataset = dataset_h5(path)
    return {key: np.asarray(dataset[row][0]) for row, key in enumerate(dataset.reader.keys())}


@pytest.mark.torch
@pytest.mark.parametrize("size", [None, (8, 12), (9, 7)])
def test_rows_are_jpegs_of_the_resized_images(tmp_path: Path, photos: Path, size: tuple[int, int] | None) -> None:
    """Each has the requested size, and the pixels of Pillow's JPEG at that quality, except for rounding; reading does
    not resize again."""
    options: dict[str, Any] = {"image_size": size, "resize": "crop" if size == (9, 7) else "stretch", "progress": False}
    report = pack_dataset(photos, tmp_path / "out.h5", encoding="jpeg:95", **options)
    assert report.encoding == "jpeg:95"
    pack_dataset(photos, tmp_path / "pixels.h5", encoding="pixels", **options)
    found, ours, sources = stored(tmp_path / "out.h5"), decoded(tmp_path / "out.h5"), decoded(tmp_path / "pixels.h5")
    assert len(found) == 6
    for key, data in found.items():
        with Image.open(io.BytesIO(data)) as image:
            assert (image.format, image.size) == ("JPEG", (size or (16, 20))[::-1])
        np.testing.assert_array_equal(ours[key], simplejpeg.decode_jpeg(data))
        again = encode(Image.fromarray(sources[key]), "JPEG", quality=95, subsampling="4:2:0")
        assert np.abs(ours[key].astype(int) - np.asarray(Image.open(io.BytesIO(again)))).mean() < 2.5


def test_images_that_jpeg_cannot_hold_are_named(tmp_path: Path) -> None:
    """color_mode="keep" keeps alpha, which JPEG cannot store."""
    make_tree(tmp_path / "deep", {f"{name}/1.png": encode(Image.new("RGBA", (4, 4)), "PNG") for name in "ab"})
    with pytest.raises(DecodeError, match=r"1\.png.*4 x 4 x 4.*color_mode"):
        pack_dataset(tmp_path / "deep", tmp_path / "out.h5", encoding="jpeg:80", color_mode="keep", progress=False)
