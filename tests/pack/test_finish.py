"""Closing the gaps of samples that were left out: what remains keeps its split, its label and its order."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage import pack_dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BAD = ("class0/0000.jpg", "class0/0003.png", "class1/0013.jpg", "class2/0029.png")


def rows(found: dict[str, Any], split: str) -> list[bytes]:
    """The stored bytes of each row of a split."""
    if f"X_{split}" in found:
        return [row.tobytes() for row in found[f"X_{split}"]]
    offsets, data = found[f"X_{split}/offsets"], found[f"X_{split}/bytes"]
    return [data[start:end].tobytes() for start, end in pairwise(offsets)]


@pytest.mark.parametrize("encoding", ["pixels", "encoded"])
def test_the_other_samples_stay_in_their_splits_and_order(
    tmp_path: Path, photos: Path, read_pack: Callable[[Path], dict[str, Any]], encoding: Any
) -> None:
    """A file that turns out bad does not move a whole one from test to train."""
    options = {"encoding": encoding, "splits": {"train": 0.5, "dev": 0.25, "test": 0.25}, "progress": False}
    pack_dataset(photos, tmp_path / "whole.h5", **options)
    for name in BAD:
        (photos / name).write_bytes((photos / name).read_bytes()[:100])
    report = pack_dataset(photos, tmp_path / "gaps.h5", on_error="skip", **options)
    assert len(report.skipped) == len(BAD)
    whole, gaps = read_pack(tmp_path / "whole.h5"), read_pack(tmp_path / "gaps.h5")
    assert sum(report.samples.values()) == 30 - len(BAD)
    for split in ("train", "dev", "test"):
        keys, labels, stored = whole[f"key_{split}"], whole[f"Y_{split}"], rows(whole, split)
        kept = [row for row, key in enumerate(keys) if key not in BAD]
        assert gaps[f"key_{split}"] == [keys[row] for row in kept]
        assert np.array_equal(gaps[f"Y_{split}"], labels[kept])
        assert rows(gaps, split) == [stored[row] for row in kept]


def test_a_split_of_nothing_but_bad_images_goes(
    tmp_path: Path, photos: Path, read_pack: Callable[[Path], dict[str, Any]]
) -> None:
    """No dataset of no rows is left where every image of a split was bad."""
    source = tmp_path / "splits"
    for name, folder in (("train", "class0"), ("test", "class1")):
        (source / name).mkdir(parents=True)
        (photos / folder).rename(source / name / folder)
    for path in (source / "test").rglob("*.*"):
        path.write_bytes(b"")
    report = pack_dataset(source, tmp_path / "out.h5", layout="image_folder", on_error="skip", progress=False)
    assert report.samples == {"train": 10}
    assert set(read_pack(tmp_path / "out.h5")) == {"X_train", "Y_train", "key_train", "classes", "skipped"}
