"""The same source and options give the same bytes, with one thread or eight."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from colabstage import pack_dataset
from colabstage.layouts.detect import LayoutFunction
from colabstage.options import Arrays, Boxes, Images, Masks, SampleTable, TreeFiles, Values
from colabstage.trees.listing import Tree
from tests.support.made_files import grey, image, write_files
from tests.support.staged import timeless

N = 60


def images() -> dict[str, bytes]:
    """JPEG and PNG alternating, in three classes."""
    forms = [("JPEG", "jpg"), ("PNG", "png")]
    return {
        f"class{n % 3}/{n:04}.{forms[n // 3 % 2][1]}": image(n, size=(16, 20), form=forms[n // 3 % 2][0])
        for n in range(N)
    }


def masks() -> dict[str, bytes]:
    """Grey images with all levels."""
    rng = np.random.default_rng(0)
    return {f"class{n % 3}/{n:04}.png": grey(rng.integers(0, 256, (16, 20), np.uint8)) for n in range(N // 2)}


def _rows(content: Any) -> NDArray[np.float32]:
    return np.frombuffer(content, np.uint8)[:24].astype(np.float32).reshape(4, 6)


def _table(tree: Tree, kind: str) -> SampleTable:
    """Every file is an x; `kind` chooses its y."""
    files = TreeFiles(tree, tree.entries)
    numbers = np.arange(len(files))
    keys = tuple(entry.name for entry in tree.entries)
    if kind == "arrays":
        return SampleTable(kind, keys, Arrays(files, (4, 6), np.dtype(np.float32), _rows), Values(numbers / 7))
    if kind == "masks":
        return SampleTable(kind, keys, Images(files), Masks(files))
    offsets = np.concatenate([[0], np.cumsum(numbers % 4)])
    rng = np.random.default_rng(0)
    corners = np.sort(rng.random((offsets[-1], 2, 2)), axis=1).reshape(-1, 4)
    return SampleTable(
        kind, keys, Images(files), Boxes(offsets, corners, {"labels": np.arange(offsets[-1]) % 3}, relative=True)
    )


def _layout(kind: str) -> LayoutFunction:
    return lambda tree: _table(tree, kind)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("labels", {"encoding": "pixels"}),
        ("labels", {"encoding": "jpeg:85", "image_size": (9, 8)}),
        ("labels", {"encoding": "pixels", "on_error": "skip"}),
        ("masks", {"encoding": "pixels", "image_size": (11, 7), "resize": "pad"}),
        ("masks", {"encoding": "encoded"}),
        ("boxes", {"encoding": "jpeg:70", "image_size": (10, 10), "resize": "crop"}),
        ("arrays", {"splits": {"train": 0.5, "test": 0.5}}),
    ],
)
def test_threads_do_not_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any]
) -> None:
    """On one core, or on eight."""
    folder = write_files(tmp_path / "photos", masks() if kind == "masks" else images())
    if options.get("on_error") == "skip":
        for number in (3, 17, 40):
            next(folder.rglob(f"{number:04}.*")).write_bytes(b"no image")
    if kind != "labels":
        options = {**options, "layout": _layout(kind)}
    found = []
    for threads in (1, 8):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=threads: set(range(count)))
        place = tmp_path / str(threads)
        place.mkdir()
        pack_dataset(folder, place / "data.h5", progress=False, **options)
        found.append(timeless({path.name: path.read_bytes() for path in place.iterdir()}))
    assert found[0] == found[1]
