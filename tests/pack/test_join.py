"""Shards of several workers put together are the file that one process writes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset
from colabstage.h5.manifest import is_whole, read_manifest
from colabstage.io.progress import Progress
from colabstage.load.reading.reader import SplitReader
from colabstage.options import PackOptions
from colabstage.pack import finish
from colabstage.pack.finish import join_shards
from colabstage.pack.options import split_fractions
from colabstage.pack.shards import pack_by_executor


def _pack(source: Path, out: Path, **options: Any) -> Any:
    with ThreadPoolExecutor(2) as pool:
        return pack_by_executor(
            source, out, PackOptions(**options), pool, progress=Progress(), key="", identity={}, address=str(source)
        )


@pytest.mark.parametrize("encoding", ["pixels", "encoded", "jpeg:80"])
def test_it_is_the_file_of_one_process(
    tmp_path: Path, make_images: Any, encoding: str, leftovers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, with splits that some shards have no rows of; nothing else is left."""
    # Samples are copied in several steps, as those of gigabytes are.
    monkeypatch.setattr(finish, "COPY_BYTES", 500)
    photos = make_images(tmp_path / "photos", 150, size=(6, 7))
    splits = {"train": 0.97, "dev": 0.02, "test": 0.01}
    alone = pack_dataset(
        photos, tmp_path / "one.h5", encoding=encoding, image_size=(4, 4), splits=splits, progress=False
    )
    together = _pack(
        photos,
        tmp_path / "two.h5",
        encoding=encoding,
        image_size=(4, 4),
        splits=split_fractions(splits),
    )
    assert (tmp_path / "two.h5").read_bytes() == (tmp_path / "one.h5").read_bytes()
    assert (together.samples, together.nbytes) == (alone.samples, alone.nbytes)
    manifest = read_manifest(tmp_path / "two.h5")
    assert manifest is not None
    assert is_whole(tmp_path / "two.h5", manifest)
    assert leftovers(tmp_path) == []


def test_boxes_that_cropping_left_out_come_last(tmp_path: Path, image_bytes: Any) -> None:
    """Those of the first shards too: no offset may reach them."""
    (tmp_path / "data" / "images").mkdir(parents=True)
    images: list[dict[str, object]] = []
    boxes: list[dict[str, object]] = []
    for number in range(140):
        name = f"{number:03}.png"
        (tmp_path / "data" / "images" / name).write_bytes(image_bytes(number, size=(8, 16)))
        images.append({"id": number, "file_name": name, "height": 8, "width": 16})
        for left in (0, 6)[number % 2 :]:  # what is wholly left of the middle goes
            boxes.append({"id": len(boxes), "image_id": number, "category_id": 1, "bbox": [left, 1, 3, 3]})
    coco = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    (tmp_path / "data" / "annotations.json").write_text(json.dumps(coco))
    pack_dataset(tmp_path / "data", tmp_path / "one.h5", image_size=(8, 8), resize="crop", progress=False)
    _pack(tmp_path / "data", tmp_path / "two.h5", image_size=(8, 8), resize="crop")
    assert (tmp_path / "two.h5").read_bytes() == (tmp_path / "one.h5").read_bytes()


def test_left_out_samples_are_named_in_the_whole(tmp_path: Path, make_images: Any, read_pack: Any) -> None:
    """Rows and names are those of one process, in whichever shard one was broken."""
    photos = make_images(tmp_path / "photos", 140, size=(6, 7))
    for name in ("class0/0000.jpg", "class2/0131.png"):
        (photos / name).write_bytes(b"no image")
    pack_dataset(photos, tmp_path / "one.h5", on_error="skip", progress=False)
    report = _pack(photos, tmp_path / "two.h5", on_error="skip")
    one, two = read_pack(tmp_path / "one.h5"), read_pack(tmp_path / "two.h5")
    assert len(report.skipped) == 2
    assert sorted(one.pop("skipped")) == sorted(two.pop("skipped"))
    assert one.keys() == two.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(two[name], values)


def test_a_failed_join_goes_on_with_the_shards(tmp_path: Path, make_images: Any, leftovers: Any) -> None:
    """What workers have finished is not made again."""
    photos = make_images(tmp_path / "photos", 140, size=(6, 7))
    (tmp_path / "out.h5").mkdir()  # no file can take this place
    with pytest.raises(OSError, match="out"):
        _pack(photos, tmp_path / "out.h5")
    assert len(leftovers(tmp_path)) == 1
    (tmp_path / "out.h5").rmdir()
    assert _pack(photos, tmp_path / "out.h5").resumed == 140
    assert leftovers(tmp_path) == []
    assert len(SplitReader(tmp_path / "out.h5")) == 140


def test_masks_and_plain_numbers_join(tmp_path: Path) -> None:
    """Targets with places of their own are put together like inputs."""
    random = np.random.default_rng(0)
    for number in range(6):
        for kind in ("images", "masks"):
            (tmp_path / "data" / kind).mkdir(parents=True, exist_ok=True)
            shape = (5, 6, 3) if kind == "images" else (5, 6)
            pixels = random.integers(0, 3, shape, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / kind / f"{number}.png")
    pack_dataset(tmp_path / "data", tmp_path / "one.h5", progress=False)
    report = pack_dataset(tmp_path / "data", tmp_path / "set.h5", shards=3, progress=False)
    join_shards([Path(file) for file in report.files], tmp_path / "two.h5", splits=["train"], attributes={})
    assert (tmp_path / "two.h5").read_bytes() == (tmp_path / "one.h5").read_bytes()
