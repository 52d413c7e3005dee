"""Every way of reading rows against its own physical limit: the bare calls that it cannot do without.

    python -m benchmarks.engines [--rounds 5] [--only WORD ...] [--json OUT]

Batches of 64 rows, shuffled unless the table says otherwise, all in the system's cache. Most rows are 1,024 images of
128x128x3 bytes (smooth, with noise); small ones are 65,536 digits of 28x28, in batches of 8,192, as a loader gathers
them. The limit of each is what as many threads do with the same rows by bare calls, each with a buffer of its own and
batches of its own, and nothing else done: the gather out of the mapped file, reading at a place, decoding
the stored files, or h5py's own calls where only HDF5 can read the values. `opens` is what the file
takes until the first row is read. `ours` is the pass over all rows after that, `again` a second one by the same reader,
which may have kept what it decoded. `part` is the median of the ratios of `ours` to the limit within a round. What is
under 0.7 is explained below the table.

The second table says what decoding a JPEG at fewer eighths of its size would save: processor time of one thread for
each of 40 photographs of 500x375 (100 kB), decoding and resizing to 224x224, and how far the result is from that of the
whole image, in grey levels.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import h5py
import numpy as np
import simplejpeg
from PIL import Image

from benchmarks._photographs import photograph, write_encoded
from benchmarks._report import save, show_machine
from colabstage.images.resample import scale_by_torch
from colabstage.io.pipeline import SOLO, ThreadPool
from colabstage.load.reading.fields import Pread, read_storage
from colabstage.load.reading.memory import FileStamp, ReadFile
from colabstage.load.reading.reader import SplitReader
from colabstage.machine.resources import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Rows = NDArray[np.intp]
    # Makes the rows of a batch, in memory of the thread's own.
    Bare = Callable[[Rows], object]

ROWS, SIDE, BATCH = 1024, 128, 64
SHAPE = (SIDE, SIDE, 3)
ROW_BYTES = SIDE * SIDE * 3
SMALL_ROWS, SMALL_SIDE, SMALL_BATCH = 65_536, 28, 8192
RAGGED_ROWS = 8192
TARGET = (224, 224)
PHOTOGRAPHS = 40
WHY = """
Why some parts are less than 1. Rows that are only copied are copied by one thread, up to 8 MiB at a time, because a
second one would take turns with the first at Python's lock. The limit's threads work on separate batches, but those of
a loader and its loop have other work. The pages of a file are mapped a few at a time, and the first pass waits for that
(see `again`). Rows read from the disk take one call from Python each. HDF5's references to rows of any length are
checked once, before HDF5 follows them (see `again`). Each such row, text or set of boxes is a Python object. The
headers of JPEG files are read first, because each file has its own size, and each image gets memory of its own. Pillow
opens PNG files in Python; for masks as small as these that takes as long as decoding, and threads take turns at it."""


@dataclass(frozen=True)
class Case:
    """One way in which rows may be stored."""

    name: str
    path: Path
    bare: Bare
    side: Literal["x", "y"] = "x"
    rows: int = ROWS
    batch: int = BATCH
    shuffled: bool = True
    threads: int = 0
    """Those of both; 0 for as many as there are cores. One where HDF5 reads, which lets one thread read at a time."""
    in_memory: bool = False
    """Whether all rows are read into memory first."""
    from_disk: bool = False
    """Whether rows are read from the disk one by one, as of a file that memory cannot hold."""

    @property
    def used_threads(self) -> int:
        """How many threads there are."""
        return self.threads or usable_cores()


def smooth_images() -> NDArray[np.uint8]:
    """Images that compress about as photographs do."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (ROWS, SIDE // 16, SIDE // 16, 3), np.uint8)
    noise = random.integers(0, 8, (ROWS, *SHAPE), np.uint8)
    images: NDArray[np.uint8] = coarse.repeat(16, 1).repeat(16, 2) // 2 + noise
    return images


def write(path: Path, x: NDArray[Any], y: NDArray[Any] | None = None, **how: Any) -> Path:
    """Write a file whose inputs are stored as `how` says."""
    with h5py.File(path, "w") as file:
        file.create_dataset("X_train", data=x, **how)
        file["Y_train"] = np.arange(len(x)) % 10 if y is None else y
    return path


def mapped(path: Path, name: str = "X_train", dtype: str = "u1") -> NDArray[Any]:
    """The rows of a contiguous dataset, mapped."""
    with h5py.File(path) as file:
        start, shape = file[name].id.get_offset(), file[name].shape
    return np.memmap(path, dtype, "r", start, shape)


class Buffers(threading.local):
    """A buffer of each thread's own, which is used again and again."""

    out: NDArray[Any] | None = None

    def of(self, shape: tuple[int, ...], dtype: str = "u1") -> NDArray[Any]:
        """The buffer, no longer than needed."""
        if self.out is None or len(self.out) < shape[0]:
            self.out = np.empty(shape, dtype)
        return self.out[: shape[0]]


def gather(table: NDArray[Any]) -> Bare:
    """One `np.take` of rows of bytes."""
    lines, buffers = table.reshape(len(table), -1), Buffers()

    def take(rows: Rows) -> None:
        np.take(lines, rows, axis=0, out=buffers.of((len(rows), lines.shape[1])), mode="clip")

    return take


def each(one: Callable[[int], object]) -> Bare:
    """One call for each row."""
    return lambda rows: [one(row) for row in rows.tolist()]


def contiguous_cases(folder: Path, images: NDArray[np.uint8], digits: NDArray[np.uint8]) -> list[Case]:
    """Rows in one block."""
    plain, small = write(folder / "contiguous.h5", images), write(folder / "digits.h5", digits)
    table = mapped(plain)
    handle, lines = os.open(plain, os.O_RDONLY), Buffers()
    with h5py.File(plain) as file:
        start = file["X_train"].id.get_offset()

    def read(rows: Rows) -> None:
        for out, row in zip(lines.of((len(rows), ROW_BYTES)), rows.tolist(), strict=True):
            os.preadv(handle, [out.data], start + row * ROW_BYTES)

    few: dict[str, Any] = {"rows": SMALL_ROWS, "batch": SMALL_BATCH}
    return [
        Case("contiguous", plain, gather(table)),
        Case("contiguous, read into memory", plain, gather(images.copy()), in_memory=True),
        Case("contiguous, read row by row", plain, read, from_disk=True),
        Case("digits, contiguous", small, gather(mapped(small)), **few),
        Case("labels of digits", small, gather(mapped(small, "Y_train", "i8").view("u1").reshape(-1, 8)), "y", **few),
    ]


def ragged_cases(folder: Path, images: NDArray[np.uint8]) -> list[Case]:
    """What only HDF5 reads, and rows that have any length."""
    plain, virtual, texts = folder / "part.h5", folder / "virtual.h5", folder / "texts.h5"
    random = np.random.default_rng(1)
    lengths = random.integers(16, 512, RAGGED_ROWS)
    values = [random.standard_normal(length).astype("<f4") for length in lengths.tolist()]
    flat, ends = np.concatenate(values), np.cumsum([0, *lengths])
    write(plain, images)
    with h5py.File(virtual, "w") as file:
        layout = h5py.VirtualLayout(images.shape, np.uint8)
        layout[:] = h5py.VirtualSource(plain, "X_train", images.shape)
        file.create_virtual_dataset("X_train", layout)
    with h5py.File(folder / "ragged.h5", "w") as file:
        ragged = file.create_dataset("X_train", (RAGGED_ROWS,), h5py.vlen_dtype(np.float32))
        for row, value in enumerate(values):
            ragged[row] = value
    words = [" ".join(["word"] * (row % 40)) for row in range(RAGGED_ROWS)]
    with h5py.File(texts, "w") as file:
        file.create_dataset("X_train", data=words, dtype=h5py.string_dtype())
    opened = {path: h5py.File(path)["X_train"] for path in (virtual, folder / "ragged.h5", texts)}

    def ask(path: Path) -> Bare:
        return lambda rows: opened[path][np.sort(rows)]

    coded = [word.encode() for word in words]
    many: dict[str, Any] = {"rows": RAGGED_ROWS}
    return [
        Case("a virtual dataset, by HDF5", virtual, each(lambda row: opened[virtual][row]), threads=1),
        Case("floats of any number, by HDF5", folder / "ragged.h5", ask(folder / "ragged.h5"), threads=1, **many),
        Case(
            "floats of any number, in memory",
            folder / "ragged.h5",
            each(lambda row: flat[ends[row] : ends[row + 1]].copy()),
            threads=1,
            in_memory=True,
            **many,
        ),
        Case("texts, by HDF5", texts, ask(texts), threads=1, **many),
        Case(
            "texts, in memory",
            texts,
            each(lambda row: coded[row].decode()),
            threads=1,
            in_memory=True,
            **many,
        ),
    ]


def target_cases(folder: Path, images: NDArray[np.uint8]) -> list[Case]:
    """Masks and boxes."""
    masks, pngs = np.ascontiguousarray(images[..., 0] // 32), list[bytes]()
    path, coded, boxed = write(folder / "masks.h5", images[:, :1], masks), folder / "mask_files.h5", folder / "boxes.h5"
    for mask in masks:
        pngs.append(as_png(mask))
    random = np.random.default_rng(2)
    counts = random.integers(0, 21, ROWS)
    ends = np.cumsum([0, *counts])
    boxes, labels = random.random((ends[-1], 4), np.float32), random.integers(0, 10, ends[-1])
    with h5py.File(coded, "w") as file:
        file["X_train"] = images[:, :1]
        group = file.create_group("Y_train")
        group["bytes"], group["offsets"] = np.frombuffer(b"".join(pngs), np.uint8), np.cumsum([0, *map(len, pngs)])
        group.attrs["mask_options"] = json.dumps({"size": [SIDE, SIDE], "resize": "stretch", "colors": None})
    with h5py.File(boxed, "w") as file:
        file["X_train"] = images[:, :1]
        group = file.create_group("Y_train")
        group["boxes"], group["labels"], group["offsets"] = boxes, labels, ends

    def cut(rows: Rows) -> None:
        for start, end in zip(ends[rows].tolist(), ends[rows + 1].tolist(), strict=True):
            boxes[start:end].copy(), labels[start:end].copy()

    return [
        Case("masks, contiguous", path, gather(mapped(path, "Y_train")), "y"),
        Case("masks as PNG files", coded, each(lambda row: np.asarray(Image.open(io.BytesIO(pngs[row])))), "y"),
        Case("boxes and their labels", boxed, cut, "y", threads=1),
    ]


def as_png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of an image or a mask."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def file_cases(folder: Path, images: NDArray[np.uint8]) -> list[Case]:
    """Rows that are files of images."""
    jpegs = [simplejpeg.encode_jpeg(np.ascontiguousarray(image), 90) for image in images]
    pngs = [as_png(image) for image in images]
    photographs = [photograph(number, target_bytes=100_000) for number in range(PHOTOGRAPHS)] * (256 // PHOTOGRAPHS)
    paths = [folder / f"{name}.h5" for name in ("jpegs", "photographs", "pngs")]
    for path, files in zip(paths, (jpegs, photographs, pngs), strict=True):
        write_encoded(path, files)

    def unpack(files: Sequence[bytes]) -> Bare:
        return each(lambda row: simplejpeg.decode_jpeg(files[row]))

    return [
        Case("JPEG files of 128x128", paths[0], unpack(jpegs)),
        Case("JPEG files of 500x375", paths[1], unpack(photographs), rows=len(photographs)),
        Case("PNG files of 128x128", paths[2], each(lambda row: np.asarray(Image.open(io.BytesIO(pngs[row]))))),
    ]


def cases(folder: Path) -> list[Case]:
    """Write the files of all cases."""
    images = smooth_images()
    digits = np.random.default_rng(3).integers(0, 256, (SMALL_ROWS, SMALL_SIDE, SMALL_SIDE), np.uint8) // 64
    return [
        *contiguous_cases(folder, images, digits),
        *ragged_cases(folder, images),
        *target_cases(folder, images),
        *file_cases(folder, images),
    ]


class Ours:
    """The engine that a file's rows are read with."""

    def __init__(self, case: Case) -> None:
        """Open the file and read one row."""
        begin = time.perf_counter()
        self._case = case
        reader = SplitReader(case.path)
        self._reader = reader = reader.into_memory() if case.in_memory else reader
        shape, dtype = reader.row_shape, reader.row_dtype
        if case.side == "y":
            shape, dtype = reader.target_shape, reader.target_dtype or np.dtype(np.uint8)
        # Into the same memory again and again; rows that say their own sizes come in a list.
        self._out = None if shape is None else np.empty((case.batch, *shape), dtype)
        self._read = self._read_by_row() if case.from_disk else reader.read_x if case.side == "x" else reader.read_y
        self._read(np.zeros(1, np.intp), None if self._out is None else self._out[:1])
        self.opened_s = time.perf_counter() - begin

    @property
    def name(self) -> str:
        """What reads."""
        if self._case.side == "y":
            return "targets"
        return "read" if self._case.from_disk else "files" if self._reader.encoded else self._reader.engine.name

    def _read_by_row(self) -> Any:
        with h5py.File(self._case.path) as file:
            facts = read_storage(file["X_train"], "X_train", self._case.path)
        field = Pread(ReadFile(self._case.path, FileStamp.of(self._case.path.stat()), at_random=True), facts)
        return lambda rows, out, pool=SOLO: field.read(rows, pool, out)

    def run(self, order: Rows) -> float:
        """Rows per second of a pass."""
        start = time.perf_counter()
        with ThreadPool(self._case.used_threads) as pool:
            for first in range(0, len(order), self._case.batch):
                self._read(order[first : first + self._case.batch], self._out, pool=pool)
        return len(order) / (time.perf_counter() - start)


def run_bare(case: Case, order: Rows) -> float:
    """Rows per second of the bare calls, each thread with its own batches."""
    batches = np.array_split(order, len(order) // case.batch)

    def work(own: list[Rows]) -> None:
        for rows in own:
            case.bare(rows)

    threads = case.used_threads
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, [batches[number::threads] for number in range(threads)]))
    return len(order) / (time.perf_counter() - start)


def measure(found: list[Case], rounds: int) -> dict[str, tuple[float, float, float, float, float]]:
    """Print the table: medians of opening, ours, the limit, the part and the next pass, after a round that is not
    counted."""
    engines: dict[str, str] = {}
    taken: dict[str, list[tuple[float, float, float, float]]] = {case.name: [] for case in found}
    for number in range(rounds + 1):
        for case in found:
            order = np.random.default_rng(number).permutation(case.rows) if case.shuffled else np.arange(case.rows)
            # Each round anew: one that has read all chunks may still have some of them decoded.
            ours = Ours(case)
            first = ours.run(order)
            taken[case.name].append((ours.opened_s * 1000, first, run_bare(case, order), ours.run(order)))
            engines[case.name] = ours.name
    results = {}
    print(f"{'rows/s':34}{'engine':>9}{'opens':>11}{'ours':>12}{'limit':>12}{'part':>7}{'again':>12}")
    for name, values in taken.items():
        counted = values[1:]
        opened, ours_rate, limit, again = (statistics.median(side) for side in zip(*counted, strict=True))
        part = statistics.median(own / bare for _, own, bare, _ in counted)
        results[name] = (opened, ours_rate, limit, part, again)
        rates = f"{ours_rate:12,.0f}{limit:12,.0f}{part:7.2f}{again:12,.0f}"
        print(f"{name:34}{engines[name]:>9}{opened:8.1f} ms{rates}")
    print(WHY)
    return results


def measure_eighths() -> None:
    """Print what decoding at fewer eighths of the size saves, and costs."""
    files = [photograph(number, target_bytes=100_000) for number in range(PHOTOGRAPHS)]
    buffer, out = bytearray(500 * 375 * 3), np.empty((*TARGET, 3), np.uint8)
    wanted: list[NDArray[np.int64]] = []
    print(f"\n{'eighths of each side':24}{'decode ms':>11}{'resize ms':>11}{'both':>8}{'mean off':>10}{'most':>6}")
    for eighths in (8, 7, 6, 5, 4, 2):
        decode_s, resize_s, off = [0.0] * len(files), [0.0] * len(files), []
        for _ in range(3):
            for number, data in enumerate(files):
                least = (
                    {} if eighths == 8 else {"min_height": -(-375 * eighths // 8), "min_width": -(-500 * eighths // 8)}
                )
                began = time.thread_time()
                pixels = simplejpeg.decode_jpeg(data, buffer=buffer, **least)
                decoded = time.thread_time()
                scale_by_torch(pixels, out)
                spent = decoded - began, time.thread_time() - decoded
                decode_s[number] = min(decode_s[number] or spent[0], spent[0])
                resize_s[number] = min(resize_s[number] or spent[1], spent[1])
                if len(wanted) <= number:
                    wanted.append(out.astype(np.int64))
                off.append(np.abs(out - wanted[number]))
        decode_ms, resize_ms = statistics.mean(decode_s) * 1000, statistics.mean(resize_s) * 1000
        worst, mean = max(int(part.max()) for part in off), float(np.mean([part.mean() for part in off]))
        figures = f"{decode_ms:11.2f}{resize_ms:11.2f}{decode_ms + resize_ms:8.2f}"
        print(f"{f'{eighths}, {pixels.shape[1]}x{pixels.shape[0]}':24}{figures}{mean:10.1f}{worst:6}")


def main() -> int:
    """Run the benchmark; 0 always, as nothing is promised."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are counted")
    parser.add_argument("--only", nargs="+", help="cases with one of these words in their names, and no second table")
    parser.add_argument("--json", type=Path, help="write machine and figures there")
    arguments = parser.parse_args()
    machine = show_machine()
    print()
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        wanted = [
            case
            for case in cases(Path(folder))
            if not arguments.only or any(word in case.name for word in arguments.only)
        ]
        results = measure(wanted, arguments.rounds)
    if not arguments.only:
        measure_eighths()
    save(arguments.json, machine=machine, rates=results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
