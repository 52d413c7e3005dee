"""Packing photographs by other libraries, each as its documentation shows; run by a Python that has them.

    PYTHON benchmarks/_pack_peers.py NAME PHOTOGRAPHS OUT SIDE WORKERS

Prints as JSON how many images it wrote, and in how many seconds, imports not counted. Stands alone: nothing of this
project is imported, because the libraries live in a virtual environment of their own.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def find(folder: Path) -> list[tuple[str, int]]:
    """All photographs with their labels."""
    classes = sorted(path.name for path in folder.iterdir())
    return [(str(path), classes.index(path.parent.name)) for path in sorted(folder.glob("*/*.jpg"))]


def load(path: str, side: int) -> np.ndarray[Any, Any]:
    """One photograph as pixels, as everybody does it."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))


def recipe(samples: list[tuple[str, int]], out: Path, side: int, _workers: int) -> float:
    """The recipe: h5py and Pillow, one by one."""
    import h5py

    start = time.perf_counter()
    with h5py.File(out / "data.h5", "w") as file:
        x = file.create_dataset("X_train", (len(samples), side, side, 3), np.uint8)
        y = file.create_dataset("Y_train", (len(samples), 1, 1), np.int64)
        for row, (path, label) in enumerate(samples):
            x[row, ...] = load(path, side)
            y[row, ...] = label
    return time.perf_counter() - start


def webdataset(samples: list[tuple[str, int]], out: Path, side: int, _workers: int) -> float:
    """`ShardWriter`, pixels as npy."""
    import webdataset as wds

    start = time.perf_counter()
    with wds.ShardWriter(str(out / "shard-%06d.tar"), verbose=0) as writer:
        for number, (path, label) in enumerate(samples):
            writer.write({"__key__": f"{number:08}", "npy": load(path, side), "cls": label})
    return time.perf_counter() - start


def _mapped(row: dict[str, Any], side: int) -> dict[str, Any]:
    return {"image": load(row["path"], side)}


def datasets(samples: list[tuple[str, int]], out: Path, side: int, workers: int) -> float:
    """`Dataset.map` in processes, then `save_to_disk`."""
    import datasets as hf

    hf.disable_caching()
    hf.disable_progress_bars()
    start = time.perf_counter()
    rows = hf.Dataset.from_dict({"path": [path for path, _ in samples], "label": [label for _, label in samples]})
    features = hf.Features(
        {"image": hf.Array3D((side, side, 3), "uint8"), "label": hf.Value("int64"), "path": hf.Value("string")}
    )
    mapped = rows.map(
        partial(_mapped, side=side),
        features=features,
        num_proc=workers,
        writer_batch_size=100,
        cache_file_name=str(out / "cache.arrow"),
    )
    mapped.save_to_disk(str(out / "saved"), num_proc=workers)
    return time.perf_counter() - start


def _optimized(sample: tuple[str, int], side: int) -> dict[str, Any]:
    return {"image": load(sample[0], side), "label": sample[1]}


def litdata(samples: list[tuple[str, int]], out: Path, side: int, workers: int) -> float:
    """`optimize` in processes."""
    from litdata import optimize

    start = time.perf_counter()
    optimize(
        partial(_optimized, side=side),
        samples,
        output_dir=str(out / "optimized"),
        num_workers=workers,
        chunk_bytes="64MB",
    )
    return time.perf_counter() - start


class _Photographs:
    """What FFCV's writer takes: a length and `(image, label)` by number."""

    def __init__(self, samples: list[tuple[str, int]], side: int) -> None:
        self._samples = samples
        self._side = side

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        path, label = self._samples[index]
        return load(path, self._side), label


def ffcv(samples: list[tuple[str, int]], out: Path, side: int, workers: int) -> float:
    """`DatasetWriter`, raw pixels, in processes."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    start = time.perf_counter()
    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    writer = DatasetWriter(str(out / "data.beton"), fields, num_workers=workers)
    writer.from_indexed_dataset(_Photographs(samples, side))
    return time.perf_counter() - start


PEERS = {
    "recipe": recipe,
    "webdataset": webdataset,
    "datasets": datasets,
    "litdata": litdata,
    "ffcv": ffcv,
}


def main() -> None:
    """Pack once by the peer named, and print what it took."""
    name, folder, out, side, workers = sys.argv[1:]
    samples = find(Path(folder))
    seconds = PEERS[name](samples, Path(out), int(side), int(workers))
    print(json.dumps({"images": len(samples), "seconds": seconds}))


if __name__ == "__main__":
    main()
