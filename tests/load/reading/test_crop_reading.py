"""Crops of encoded images that are cut while they are decoded."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from colabstage.errors import DecodeError
from colabstage.images.decode import decode_region
from colabstage.io.pipeline import ThreadPool
from colabstage.load.augment import CROP_DRAWS, resized_crops
from colabstage.load.epoch import BatchPlace
from colabstage.load.reading.fields import resize_into
from colabstage.load.reading.reader import SplitReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

SIZES = [(300, 400), (480, 360), (901, 1203), (64, 48), (1600, 1200), (33, 500)]


def _picture(row: int, mode: str = "RGB") -> Image.Image:
    height, width = SIZES[row % len(SIZES)]
    coarse = np.random.default_rng(row).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def _write(path: Path, files: list[bytes], **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        group = file.create_group("X_train")
        group["bytes"] = np.frombuffer(b"".join(files), np.uint8)
        group["offsets"] = np.cumsum([0, *map(len, files)], dtype=np.int64)
        group.attrs["image_options"] = json.dumps({"size": None, "color_mode": "rgb", "resize": "stretch"} | options)
        file["Y_train"] = np.arange(len(files))
    return path


def _file(row: int, kind: str = "JPEG", **saved: Any) -> bytes:
    buffer = io.BytesIO()
    _picture(row).save(buffer, kind, **saved)
    return buffer.getvalue()


@pytest.fixture
def jpegs(tmp_path: Path) -> Path:
    """Photographs of six sizes, some many times as large as a crop."""
    return _write(tmp_path / "jpegs.h5", [_file(row, quality=92) for row in range(12)])


def _choose(draws: NDArray[np.float64]) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    return lambda sizes: resized_crops(sizes, draws)


@pytest.mark.parametrize("threads", [1, 3])
def test_crops_are_those_of_the_decoded_images(jpegs: Path, threads: int) -> None:
    """Each crop is the whole image decoded, cut, and resized by torchvision's filter, but for a grey level or two."""
    reader, rows = SplitReader(jpegs), np.array([7, 0, 3, 3, -1, 4, 2, 5])
    draws = BatchPlace(0, 1, rows % 12).draws(CROP_DRAWS)
    with ThreadPool(threads) as pool:
        got = reader.read_crops(rows, (96, 80), _choose(draws), pool=pool)
    for place, row in enumerate(rows.tolist()):
        whole = reader.read_x([row])[0]
        top, left, height, width = resized_crops(np.array(whole.shape[:2]), draws[place : place + 1])[0].tolist()
        part = torch.from_numpy(whole[top : top + height, left : left + width]).permute(2, 0, 1)[None].float()
        wanted = torch.nn.functional.interpolate(part, (96, 80), mode="bilinear", antialias=True)[0].permute(1, 2, 0)
        difference = np.abs(got[place].astype(float) - wanted.numpy())
        assert difference.mean() < 1.5, (row, height, width)
        assert difference.max() < 16, (row, height, width)


def test_without_reduction_a_crop_is_pillows_within_a_grey_level() -> None:
    """A part that is enlarged, or shrinks by less than two, is Pillow's bilinear result to one of 255."""
    data = _file(0, "PNG")
    for crop, size in (((10, 20, 150, 200), (96, 128)), ((0, 0, 40, 30), (96, 96)), ((5, 5, 96, 80), (96, 80))):
        top, left, height, width = crop
        out = np.empty((*size, 3), np.uint8)
        resize_into(decode_region(data, "rgb", crop, size), out)
        box = (left, top, left + width, top + height)
        wanted = _picture(0).resize(size[::-1], Image.Resampling.BILINEAR, box)
        plain = _picture(0).crop(box).resize(size[::-1], Image.Resampling.BILINEAR)
        assert np.abs(out.astype(int) - np.asarray(plain)).max() <= 1
        assert wanted.size == plain.size


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_crops_count_in_the_upright_image(tmp_path: Path, orientation: int) -> None:
    """Where EXIF turns a photograph, its parts are those of the turned one."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    reader = SplitReader(_write(tmp_path / "turned.h5", [_file(4, quality=95, exif=exif)]))
    whole = reader.read_x([0])[0]
    height, width = whole.shape[:2]
    seen = []

    def choose(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        seen.append(sizes.tolist())
        return np.array([[0, 0, height // 2, width]])

    got = reader.read_crops([0], (40, 40), choose)[0]
    wanted = np.empty((40, 40, 3), np.uint8)
    resize_into(whole[: height // 2], wanted)
    assert seen == [[[height, width]]]
    assert np.abs(got.astype(int) - wanted).mean() < 1.5


def test_without_torch_pillow_resizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a grey level of what torch makes of it."""
    pixels = np.asarray(_picture(0))[10:200, 20:310]
    for source in (pixels, pixels[..., :1]):
        by_torch, by_pillow = (np.empty((96, 80, source.shape[2]), np.uint8) for _ in range(2))
        resize_into(source, by_torch)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "torch", None)
            resize_into(source, by_pillow)
        assert by_pillow.std() > 5
        assert np.abs(by_torch.astype(int) - by_pillow).max() <= 1


def test_a_broken_row_is_named(tmp_path: Path) -> None:
    """A file that cannot be decoded is an error with its row."""
    data = _file(0)
    reader = SplitReader(_write(tmp_path / "broken.h5", [data, data[: len(data) // 2]]))
    with pytest.raises(DecodeError, match="Row 1 of X_train"):
        reader.read_crops([0, 1], (8, 8), lambda sizes: np.concatenate([sizes * 0, sizes], axis=1))


@pytest.mark.parametrize("options", [{"size": [32, 32]}, {"color_mode": "keep"}])
def test_other_inputs_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """Images that are resized or kept as they are on reading are not cropped there."""
    reader = SplitReader(_write(tmp_path / "other.h5", [_file(0)], **options))
    assert reader.whole_reason is not None
    with pytest.raises(TypeError, match="image files"):
        reader.read_crops([0], (8, 8), lambda sizes: sizes)
