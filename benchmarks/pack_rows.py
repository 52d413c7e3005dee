"""Packing rows of numbers: `pack_dataset` against numpy and h5py, which read everything and write it in one call.

    python -m benchmarks.pack_rows [--rounds 5]

Three files as people have them: 60,000 rows of 784 float32 in an `.npz`; the same in HDF5, compressed by gzip in
chunks of 64 rows; 20,000 images of 28x28 as a CSV of pixels, which pandas reads where it is installed, else numpy.
Contenders take turns. numpy and h5py keep the order of the rows; a pack puts `train` into a random order, and has
names, hashes, and the classes of labels.

Ends with exit code 1 when `pack_dataset` has less than a quarter of the rate of numpy and h5py.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from benchmarks._report import Promise, by_turns, judge, median_ratio, show_rates
from colabstage import pack_dataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ROWS, WIDTH, IMAGES, SIDE = 60_000, 784, 20_000, 28
OF_HAND = 0.25
OURS, HAND = "pack_dataset", "read as a whole, written by h5py"


def write_sources(home: Path) -> dict[str, Callable[[], tuple[NDArray[Any], NDArray[Any]]]]:
    """Write the files; return by each name how people read it as a whole, into x and y."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(ROWS, WIDTH)).astype(np.float32), draw.integers(0, 10, ROWS)
    np.savez(home / "rows.npz", x=x, y=y)
    with h5py.File(home / "rows.h5", "w") as file:
        file.create_dataset("x", data=np.round(x), chunks=(64, WIDTH), compression="gzip", compression_opts=1)
        file["y"] = y
    pixels = draw.integers(0, 256, (IMAGES, SIDE * SIDE))
    header = ",".join(["label", *(f"pixel{number}" for number in range(SIDE * SIDE))])
    np.savetxt(home / "pixels.csv", np.c_[y[:IMAGES], pixels], "%d", ",", header=header, comments="")
    return {"rows.npz": partial(_npz, home), "rows.h5": partial(_hdf5, home), "pixels.csv": partial(_csv, home)}


def _npz(home: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    with np.load(home / "rows.npz") as file:
        return file["x"], file["y"]


def _hdf5(home: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    with h5py.File(home / "rows.h5") as file:
        return file["x"][()], file["y"][()]


def _csv(home: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    if importlib.util.find_spec("pandas"):
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]

        table = pd.read_csv(home / "pixels.csv").to_numpy()
    else:
        table = np.loadtxt(home / "pixels.csv", np.int64, delimiter=",", skiprows=1)
    return table[:, 1:].astype(np.uint8).reshape(-1, SIDE, SIDE, 1), table[:, 0]


def by_hand(out: Path, read: Callable[[], tuple[NDArray[Any], NDArray[Any]]]) -> float:
    """Return the rows per second of reading everything and writing it in one call."""
    began = time.perf_counter()
    x, y = read()
    with h5py.File(out, "w") as file:
        file["X_train"], file["Y_train"] = x, y
    return len(x) / (time.perf_counter() - began)


def by_us(out: Path, source: Path) -> float:
    """Return the rows per second of `pack_dataset`."""
    out.unlink(missing_ok=True)
    began = time.perf_counter()
    report = pack_dataset(source, out, progress=False)
    return sum(report.samples.values()) / (time.perf_counter() - began)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    promises = []
    with tempfile.TemporaryDirectory(prefix="pack-rows-") as place:
        home = Path(place)
        for name, read in write_sources(home).items():
            contenders = {
                OURS: partial(by_us, home / "ours.h5", home / name),
                HAND: partial(by_hand, home / "hand.h5", read),
            }
            rates = by_turns(contenders, rounds)
            show_rates("rows/s", rates, base=HAND, column="of that", title=name)
            promises.append(
                Promise(f"{name}: … of numpy and h5py", median_ratio(rates[OURS], rates[HAND]), "at least", OF_HAND)
            )
    return judge(promises)


if __name__ == "__main__":
    sys.exit(main())
