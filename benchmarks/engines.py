"""Every way of reading rows against its own physical limit: the bare calls that it cannot do without.

    python -m benchmarks.engines [--rounds 5] [--json OUT]

1,024 images of 128x128x3 bytes (smooth, with noise) in batches of 64, shuffled unless the table says otherwise, all in
the system's cache, by as many threads as there are cores. The limit of each: the gather out of the mapped file,
inflating the stored chunks, decoding the stored files, or h5py's own calls where only HDF5 can read the values, all by
as many threads, each with a buffer of its own and batches of its own, and nothing else done. `part` is the median of
the ratios within a round, `again` the rate of a second pass by the same reader, which may have kept what it decoded.
What is under 0.7 is explained below the table.

The second table says what decoding a JPEG at fewer eighths of its size would save: processor time of one thread for
each of 40 photographs of 500x375 (100 kB), decoding and resizing to 224x224, and how far the result is from that of the
whole image, in grey levels.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import simplejpeg
import zstandard
from isal import isal_zlib
from PIL import Image

from benchmarks._photographs import photograph, write_encoded
from benchmarks._report import save, show_machine
from colabstage.images.geometry import scale_by_torch
from colabstage.io.pipeline import ThreadPool
from colabstage.load.reading.reader import SplitReader
from colabstage.machine.resources import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    # Makes one row, in the memory for it or elsewhere.
    Bare = Callable[[int, NDArray[np.uint8]], object]

ROWS, SIDE, BATCH, ZSTD = 1024, 128, 64, 32015
TARGET = (224, 224)
PHOTOGRAPHS = 40
WHY = """
A first pass over compressed chunks keeps what it decodes, as far as an eighth of the free memory goes, in memory that
the kernel hands out page by page; the limit decodes into the same memory again and again. A first pass over chunks also
reads HDF5's table of them. JPEG files say their own sizes, so each image gets memory of its own; the limit has one."""


@dataclass(frozen=True)
class Case:
    """One way in which rows may be stored."""

    name: str
    path: Path
    bare: Bare
    shuffled: bool = True
    threads: int = 0
    """Those of the limit; 0 for as many as there are cores."""


def smooth_images() -> NDArray[np.uint8]:
    """Images that compress about as photographs do."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (ROWS, SIDE // 16, SIDE // 16, 3), np.uint8)
    noise = random.integers(0, 8, (ROWS, SIDE, SIDE, 3), np.uint8)
    images: NDArray[np.uint8] = coarse.repeat(16, 1).repeat(16, 2) // 2 + noise
    return images


def stored_chunks(path: Path) -> list[bytes]:
    """The chunks of the inputs, as they are in the file, in the order of their rows."""
    with h5py.File(path) as file:
        rows = file["X_train"]
        starts = range(0, len(rows), rows.chunks[0])
        return [bytes(rows.id.read_direct_chunk((start, 0, 0, 0))[1]) for start in starts]


def array_cases(folder: Path, images: NDArray[np.uint8]) -> list[Case]:
    """Rows of one shape, stored in all the ways that there are engines for."""
    row_bytes, one, many = images[0].nbytes, (1, *images.shape[1:]), (16, *images.shape[1:])

    def write(name: str, dtype: str = "u1", **how: Any) -> Path:
        path = folder / f"{name}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("X_train", data=images.astype(dtype), **how)
            file["Y_train"] = np.arange(ROWS) % 10
        return path

    plain = write("contiguous")
    with h5py.File(plain) as file:
        start = file["X_train"].id.get_offset()
    table = np.memmap(plain, np.uint8, "r", start, (ROWS, row_bytes))

    def gather(row: int, out: NDArray[np.uint8]) -> None:
        out[...] = table[row]

    def inflate(path: Path, rows: int) -> Bare:
        chunks = stored_chunks(path)

        def decode(row: int, *_: object) -> None:
            if row % rows == 0:
                isal_zlib.decompress(chunks[row // rows], 15, row_bytes * rows)

        return decode

    gzip, gzips = write("gzip", chunks=one, compression="gzip"), write("gzips", chunks=many, compression="gzip")
    lzf, zstd = write("lzf", chunks=one, compression="lzf"), folder / "zstd.h5"
    coded = [zstandard.ZstdCompressor(3).compress(image.tobytes()) for image in images]
    with h5py.File(zstd, "w") as file:
        how = {"chunks": one, "compression": ZSTD, "allow_unknown_filter": True}
        rows = file.create_dataset("X_train", images.shape, np.uint8, **how)
        for number, data in enumerate(coded):
            rows.id.write_direct_chunk((number, 0, 0, 0), data)
        file["Y_train"] = np.arange(ROWS) % 10
    opened = h5py.File(lzf)["X_train"]
    swapped = write("swapped", ">u2", chunks=None)
    with h5py.File(swapped) as file:
        start = file["X_train"].id.get_offset()
    turned = np.memmap(swapped, ">u2", "r", start, images.shape)

    def turn(row: int, *_: object) -> None:
        turned[row].astype("<u2")

    return [
        Case("contiguous, mapped", plain, gather),
        Case("chunks of one row, unfiltered", write("chunked", chunks=one), gather),
        Case("chunks of 16 rows, unfiltered", write("chunks", chunks=many), gather),
        Case("big-endian, contiguous", swapped, turn),
        Case("gzip, chunks of one row", gzip, inflate(gzip, 1)),
        Case("gzip, chunks of 16 rows, in order", gzips, inflate(gzips, 16), shuffled=False),
        Case("zstd, chunks of one row", zstd, lambda row, *_: zstandard.ZstdDecompressor().decompress(coded[row])),
        Case("lzf, which HDF5 alone decodes", lzf, lambda row, *_: opened[row], threads=1),
    ]


def file_case(folder: Path, name: str, files: list[bytes], bare: Bare) -> Case:
    """Rows that are files of images."""
    path = folder / f"{name}.h5"
    write_encoded(path, files)
    return Case(name, path, bare)


def cases(folder: Path) -> list[Case]:
    """Write the files of all cases."""
    images = smooth_images()
    jpegs = [simplejpeg.encode_jpeg(np.ascontiguousarray(image), 90) for image in images]
    pngs = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG", compress_level=1)
        pngs.append(buffer.getvalue())
    return [
        *array_cases(folder, images),
        file_case(folder, "JPEG files", jpegs, lambda row, out: simplejpeg.decode_jpeg(jpegs[row], buffer=out)),
        file_case(folder, "PNG files", pngs, lambda row, *_: np.asarray(Image.open(io.BytesIO(pngs[row])))),
    ]


def run_ours(reader: SplitReader, order: NDArray[np.intp]) -> float:
    """Rows per second of the engine that the file is read with, into the same memory again and again."""
    # Files say their own sizes, so their images come in a list.
    out = None if reader.row_shape is None else np.empty((BATCH, *reader.row_shape), reader.row_dtype)
    start = time.perf_counter()
    with ThreadPool(usable_cores()) as pool:
        for first in range(0, len(order), BATCH):
            reader.read_x(order[first : first + BATCH], out, pool=pool)
    return len(order) / (time.perf_counter() - start)


def run_bare(case: Case, order: NDArray[np.intp]) -> float:
    """Rows per second of the bare calls, each thread with its own batches."""

    def work(own: NDArray[np.intp]) -> None:
        buffer = np.empty((BATCH, SIDE * SIDE * 3), np.uint8)
        for number, row in enumerate(own.tolist()):
            case.bare(row, buffer[number % BATCH])

    threads = case.threads or usable_cores()
    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, np.array_split(order, threads)))
    return len(order) / (time.perf_counter() - start)


def measure(found: list[Case], rounds: int) -> dict[str, tuple[float, float, float, float]]:
    """Print the table: medians of ours, the limit, the part and the next pass, after a round that is not counted."""
    engines: dict[str, str] = {}
    rates: dict[str, list[tuple[float, float, float]]] = {case.name: [] for case in found}
    for number in range(rounds + 1):
        for case in found:
            order = np.random.default_rng(number).permutation(ROWS) if case.shuffled else np.arange(ROWS)
            # Each round anew: one that has read all chunks may still have some of them decoded.
            reader = SplitReader(case.path)
            rates[case.name].append((run_ours(reader, order), run_bare(case, order), run_ours(reader, order)))
            engines[case.name] = "files" if reader.encoded else reader.engine.name
    results = {}
    print(f"{'rows/s':38}{'engine':>10}{'ours':>12}{'limit':>12}{'part':>8}{'again':>12}")
    for name, values in rates.items():
        counted = values[1:]
        ours, limit, again = (statistics.median(side) for side in zip(*counted, strict=True))
        part = statistics.median(own / bare for own, bare, _ in counted)
        results[name] = (ours, limit, part, again)
        print(f"{name:38}{engines[name]:>10}{ours:12,.0f}{limit:12,.0f}{part:8.2f}{again:12,.0f}")
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
    parser.add_argument("--json", type=Path, help="write machine and figures there")
    arguments = parser.parse_args()
    machine = show_machine()
    print()
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        results = measure(cases(Path(folder)), arguments.rounds)
    measure_eighths()
    save(arguments.json, machine=machine, rates=results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
