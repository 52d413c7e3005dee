"""Decoded images that are kept for later epochs: the same batches, bounded memory, given back on demand."""

import gc
import io
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image

from colabstage import dataset_h5, make_loader
from colabstage.errors import DamagedPackError, DecodeError
from colabstage.transforms import Compose, RandomFlip, RandomResizedCrop
from tests.load.conftest import write_files, write_images

COUNT = 14
SIZES = [(60, 90), (90, 61), (75, 75), (41, 131), (300, 420)]
CROPS = Compose([RandomResizedCrop(32, scale=(0.05, 1.0)), RandomFlip()])


def image_file(number: int, kind: str = "JPEG", mode: str = "RGB", **options: Any) -> bytes:
    """A picture with shapes and grain, of a different size for each number."""
    height, width = SIZES[number % len(SIZES)]
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)).resize((width, height))
    pixels = np.asarray(coarse).astype(int) + rng.integers(-20, 20, (height, width, 3))
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def mixed_files() -> list[bytes]:
    """Colour, grey, progressive, turned by EXIF, CMYK, PNG, and one with a wrong byte in the middle."""
    turned = Image.Exif()
    turned[0x0112] = 6
    files = [image_file(number, subsampling=number % 3) for number in range(COUNT - 6)]
    files += [image_file(8, mode="L"), image_file(9, progressive=True), image_file(4, exif=turned)]
    files += [image_file(11, mode="CMYK"), image_file(12, "PNG")]
    odd = bytearray(image_file(14))
    odd[len(odd) * 2 // 3] ^= 0x55
    return [*files, bytes(odd)]


def write_pack(path: Path, files: list[bytes], *, masks: bool = False, **options: Any) -> Path:
    """A file of image files, with their numbers as targets, or masks as PNG."""
    with h5py.File(path, "w") as file:
        write_images(file, files, **options)
        if masks:
            masks_of = [image_file(number, "PNG", "L") for number in range(len(files))]
            group = write_files(file.create_group("Y_train"), masks_of)
            group.attrs["mask_options"] = json.dumps({"size": options.get("size"), "resize": "stretch", "colors": None})
        else:
            file["Y_train"] = np.arange(len(files))
    return path


def batches_of(loader: Any, epochs: int = 3) -> list[Any]:
    """All batches of several epochs, or the error that ended one."""
    found: list[Any] = []
    for _ in range(epochs):
        try:
            found += list(loader)
        except DecodeError as error:
            found.append(str(error))
    return found


def assert_same(one: Any, other: Any) -> None:
    """Compare batches bit by bit."""
    assert type(one) is type(other)
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "crops": ({}, {"batch_transform": CROPS}),
    "grey crops": ({"color_mode": "grayscale"}, {"batch_transform": CROPS}),
    "whole": ({}, {}),
    "one size": ({"size": (40, 36), "color_mode": "grayscale", "resize": "crop"}, {}),
    "masks": ({"size": (40, 36), "masks": True}, {}),
    "masks of their own sizes": ({"masks": True}, {}),
    "in memory": ({}, {"batch_transform": CROPS, "strategy": "memory"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_batches_are_the_same_whatever_is_kept(tmp_path: Path, way: str) -> None:
    """For every kind of file, in every epoch, with room for all, for some, and for one small image."""
    options, arguments = WAYS[way]
    files = mixed_files()
    path = write_pack(tmp_path / "a.h5", files[:-1] if "crops" not in way else files, **options)
    usual = make_loader(dataset_h5(path), 4, seed=3, memory_budget=0, **arguments)
    wanted = batches_of(usual, 2)
    for budget in (None, 60_000, 8_000):
        loader = make_loader(dataset_h5(path), 4, seed=3, memory_budget=budget, **arguments)
        assert_same(batches_of(loader, 2), wanted)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the size of each JPEG that is decoded from now on, in any thread."""
    sizes: list[int] = []
    real = simplejpeg.decode_jpeg

    def counted(data: Any, *others: Any, **named: Any) -> Any:
        sizes.append(len(data))
        return real(data, *others, **named)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", counted)
    return sizes


def test_memory_that_others_need_is_given_back(
    tmp_path: Path, decoded: list[int], have_free: Callable[[int], None]
) -> None:
    """When little memory is free, images are decoded again; when there is room, they are kept again."""
    have_free(10**10)
    files = [image_file(number) for number in range(8)]
    loader = make_loader(dataset_h5(write_pack(tmp_path / "a.h5", files)), 4, num_workers=0)
    counts = []
    for free in (10**10, 10**6, 10**6, 10**10, 10**10):
        have_free(free)
        time.sleep(1.1)  # free memory is checked once a second
        decoded.clear()
        wanted = [image.float().mean().item() for x, _ in loader for image in x]
        assert len(wanted) == 8
        counts.append(len(decoded))
    assert counts[0] == counts[2] == 8
    assert counts[4] == 0


@pytest.mark.parametrize(("budget", "again"), [(None, 0), (0, 8), (60_000, 1)])
def test_later_epochs_decode_nothing_that_is_kept(tmp_path: Path, decoded: list[int], budget: Any, again: int) -> None:
    """As many as the budget has room for."""
    files = [image_file(number) for number in range(8)]
    loader = make_loader(dataset_h5(write_pack(tmp_path / "a.h5", files)), 4, memory_budget=budget, num_workers=0)
    list(loader)
    assert len(decoded) == 8
    decoded.clear()
    list(loader)
    assert again <= len(decoded) <= (8 if again else 0)


def test_no_more_is_decoded_where_an_image_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a crop needs nearly all rows of its image, the last rows are decoded only if the image is kept."""
    path = write_pack(tmp_path / "a.h5", [image_file(4 + 5 * number) for number in range(6)])
    crop = RandomResizedCrop(300, scale=(0.9, 0.95), ratio=(1.4, 1.4))
    decode, heights = simplejpeg.decode_jpeg, list[list[int]]()

    def noted(*arguments: Any, **named: Any) -> Any:
        pixels = decode(*arguments, **named)
        heights[-1].append(len(pixels))
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", noted)
    for budget in (0, 8_000, None):
        heights.append([])
        list(make_loader(dataset_h5(path), 3, seed=0, memory_budget=budget, batch_transform=crop, num_workers=0))
    assert heights[0] == heights[1] != heights[2]


def test_what_is_handed_out_may_be_changed(tmp_path: Path) -> None:
    """Images of different sizes are the caller's own, in every epoch."""
    path = write_pack(tmp_path / "a.h5", mixed_files()[:-1], masks=True)
    loader = make_loader(dataset_h5(path), 4, shuffle=False)
    before = [[image.clone() for image in x] for x, _ in loader]
    for x, y in [*loader, *loader]:
        for image, mask in zip(x, y, strict=True):
            image.zero_()
            mask.zero_()
    assert_same([list(x) for x, _ in loader], before)


@pytest.mark.parametrize("way", ["crops", "one size"])
def test_a_broken_file_is_the_same_error_in_every_epoch(tmp_path: Path, way: str) -> None:
    """It names the row, whether other images are kept or not."""
    options, arguments = WAYS[way]
    files = mixed_files()[:-1]
    files[5] = files[5][: len(files[5]) // 2]
    path = write_pack(tmp_path / "a.h5", files, **options)
    usual, keeping = (
        make_loader(dataset_h5(path), 4, shuffle=False, memory_budget=budget, num_workers=1, **arguments)
        for budget in (0, None)
    )
    found = batches_of(keeping)
    assert_same(found, batches_of(usual))
    assert sum("Row 5" in one for one in found if isinstance(one, str)) == 3


def test_loaders_over_one_dataset_share_what_is_kept(tmp_path: Path, decoded: list[int]) -> None:
    """It stays as long as one of them does, and goes when the last one, or the dataset, is closed."""
    dataset = dataset_h5(write_pack(tmp_path / "a.h5", [image_file(number) for number in range(8)], size=(40, 36)))
    first, second = make_loader(dataset, 4), make_loader(dataset, 3, seed=5)
    for _ in zip(first, second, strict=False):
        pass
    wanted = batches_of(make_loader(dataset_h5(dataset.reader.path), 3, seed=5, memory_budget=0))
    del first
    gc.collect()
    second.set_epoch(0)
    decoded.clear()
    assert_same(batches_of(second), wanted)
    assert decoded == []
    for close in (second.close, dataset.close):
        close()
        list(second)
        assert len(decoded) == 8
        decoded.clear()


def test_a_file_that_was_written_to_is_refused(tmp_path: Path) -> None:
    """Even if all requested rows are kept."""
    path = write_pack(tmp_path / "a.h5", mixed_files()[:-1], size=(40, 36))
    loader = make_loader(dataset_h5(path), 4)
    list(loader)
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"more")
    with pytest.raises(DamagedPackError, match="written to"):
        list(loader)


def _train(loader: Any, results: Any) -> None:
    results.put([x.numpy() for _ in range(2) for x, _ in loader])


def test_a_forked_child_gets_the_same_batches(tmp_path: Path) -> None:
    """The parent's images stay as they are."""
    path = write_pack(tmp_path / "a.h5", mixed_files()[:-1], size=(40, 36))
    loader = make_loader(dataset_h5(path), 4, seed=0, num_workers=0)
    next(iter(loader))
    loader.set_epoch(0)
    wanted = [x.numpy() for x, _ in batches_of(make_loader(dataset_h5(path), 4, seed=0, memory_budget=0), 2)]
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()
    child = context.Process(target=_train, args=(loader, results))
    child.start()
    found = results.get(timeout=60)
    child.join(60)
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(wanted))
    mine = [x.numpy() for x, _ in batches_of(loader, 2)]
    np.testing.assert_array_equal(np.concatenate(mine), np.concatenate(wanted))
