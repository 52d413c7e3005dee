"""Images of tens of millions of pixels are decoded one at a time, however many threads read or pack them."""

import io
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageFile

from colabstage import dataset_h5, make_loader, pack_dataset
from colabstage.transforms import RandomResizedCrop
from tests.support.deadlines import lower

# Two of these are more pixels than are decoded at once: as it is, and in tests with a hundredth of the pixels.
HUGE, SIDE = 5_700, 570
# No shorter JPEG is looked at for its size; what follows the image is ignored.
PADDING = 512 * 1024
KINDS: dict[str, dict[str, Any]] = {
    "png": {"format": "PNG", "compress_level": 1},
    "bmp": {"format": "BMP"},
    "jpg": {"format": "JPEG"},
}


def write_images(folder: Path, kind: str, side: int, count: int = 2) -> Path:
    buffer = io.BytesIO()
    Image.new("L", (side, side), 99).save(buffer, **KINDS[kind])
    for number in range(count):
        place = folder / "ab"[number % 2] / f"{number}{'ab'[number % 2]}.{kind}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(buffer.getvalue() + bytes(PADDING if kind == "jpg" else 0))
    return folder


class Decoding:
    """How many images are being decoded, at most at any moment."""

    # How long an image is held for another thread to begin with one, if it may.
    patience_s = 0.05

    def __init__(self) -> None:
        self.most = self._now = 0
        self._changed, self._own = threading.Condition(), threading.local()

    @contextmanager
    def one(self) -> Iterator[None]:
        if getattr(self._own, "busy", False):
            yield
            return
        self._own.busy = True
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most > 1, self.patience_s)
        try:
            yield
        finally:
            self._own.busy = False
            with self._changed:
                self._now -= 1


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Decoding:
    seen = Decoding()

    def watched(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            with seen.one():
                return function(*arguments, **options)

        return call

    monkeypatch.setattr(ImageFile.ImageFile, "load", watched(ImageFile.ImageFile.load))
    monkeypatch.setattr(simplejpeg, "decode_jpeg", watched(simplejpeg.decode_jpeg))
    return seen


@pytest.fixture
def hundredth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of a hundredth of the pixels count as huge."""
    lower("images", "_PIXELS", 100, monkeypatch.setattr)


@pytest.mark.usefixtures("hundredth")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("side", "most"), [(SIDE, 1), (60, 2)])
def test_huge_images_take_turns_and_others_do_not(
    tmp_path: Path, decoding: Decoding, kind: str, side: int, most: int
) -> None:
    source = write_images(tmp_path / "source", kind, side)
    pack_dataset(source, tmp_path / "encoded.h5", encoding="encoded", color_mode="grayscale", progress=False)
    dataset = dataset_h5(tmp_path / "encoded.h5")
    decoding.most, decoding.patience_s = 0, 0.05 if most == 1 else 10.0
    x, _ = dataset.read_batch(range(2), threads=2)
    assert [np.unique(row).tolist() for row in x] == [[99]] * 2
    assert decoding.most == most


@pytest.mark.torch
@pytest.mark.usefixtures("hundredth")
@pytest.mark.parametrize("budget", ["1 GB", "1 MB"], ids=["kept", "decoded each time"])
def test_crops_of_huge_images_take_turns(tmp_path: Path, decoding: Decoding, budget: str) -> None:
    """Only a JPEG is decoded no further than its crop."""
    source = write_images(tmp_path / "source", "png", SIDE)
    pack_dataset(source, tmp_path / "encoded.h5", encoding="encoded", color_mode="grayscale", progress=False)
    decoding.most = 0
    dataset, crop = dataset_h5(tmp_path / "encoded.h5"), RandomResizedCrop(32)
    loader = make_loader(dataset, 2, batch_transform=crop, num_workers=2, memory_budget=budget)
    for x, _ in loader:
        assert x.unique().tolist() == [99]
    assert decoding.most == 1


def test_huge_images_are_packed_in_turns(tmp_path: Path, decoding: Decoding) -> None:
    source = write_images(tmp_path / "source", "png", HUGE)
    report = pack_dataset(source, tmp_path / "pack.h5", image_size=(16, 16), color_mode="grayscale", progress=False)
    assert report.samples == {"train": 2}
    assert decoding.most == 1


@pytest.mark.long
def test_memory_of_a_huge_image_is_not_kept(tmp_path: Path) -> None:
    """That of ordinary ones is."""
    side, size = 9_500, (9_480, 9_480)
    source = write_images(tmp_path / "source", "jpg", side)
    pack_dataset(source, tmp_path / "encoded.h5", image_size=size, encoding="encoded", color_mode="rgb", progress=False)
    dataset = dataset_h5(tmp_path / "encoded.h5")
    tracemalloc.start()
    try:
        dataset.read_batch([0])
        left, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 16_000_000 < 3 * side * side < most
