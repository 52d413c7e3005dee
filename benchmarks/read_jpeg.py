"""Random resized crops per second out of JPEGs: decoded on read, against FFCV and ImageFolder with a DataLoader.

    python -m benchmarks.read_jpeg [--rounds 5] [--samples 2048] [--batch 64]

JPEGs of 500x375 (about 64 kB, 24 different ones in turn), batches of 224x224 bytes in random order, all in the system's
cache, as many threads as there are cores; ImageFolder also with no worker, half as many and twice as many. What counts
is the first epoch of `make_loader(..., batch_transform=RandomResizedCrop(224))`, in which every image is decoded, and
some are kept for later epochs. The second and the fifth, and all five together, have lines of their own. Beside it are
the same without keeping any, whole images decoded by the loader and cropped by the transform, and whole images that the
pack's options bring to 224x224.
The limits are bare calls by as many threads, into their own memory again and again: the decoder on what the crops need
of each file, the same with torch's filter after it, and the decoder on whole files. Contenders take turns, round after
round; the table has the median of the rounds, after one that is not counted. FFCV and torchvision run in an environment
of their own (benchmarks/_peers.py). FFCV's file holds the same images compressed again at the same quality, as its
writer makes it.

Ends with exit code 1 when the first epoch's crops come slower than FFCV's, or less than twice as fast as ImageFolder's
with any number of workers, or when five epochs come less than 1.3 times as fast as where nothing is kept, or less than
1.6 times as fast as FFCV's.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from simplejpeg import decode_jpeg

from benchmarks import _peers
from benchmarks._photographs import repeated_photographs, write_encoded
from benchmarks._report import Promise, by_turns, judge, median_ratio, show_rates
from colabstage.images.decode import first_rows, read_jpeg_header, scale_by_torch
from colabstage.io.pipeline import ThreadPool
from colabstage.load.augment import CROP_DRAWS, RandomResizedCrop, resized_crops
from colabstage.load.dataset import dataset_h5
from colabstage.load.epoch import BatchPlace
from colabstage.load.loader import make_loader
from colabstage.load.reading.reader import SplitReader
from colabstage.machine.resources import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    import torch

    from benchmarks._report import Rates

SIZE = 224
# Of five epochs against the same without keeping images, and against FFCV; of the first against ImageFolder.
_LEAST_GAIN, _LEAST_OF_FFCV, _LEAST_OF_FOLDER = 1.3, 1.6, 2.0
OURS, FIVE, NONE = "make_loader, first epoch", "make_loader, five epochs", "make_loader, nothing kept"
FFCV, FOLDER = "FFCV", "ImageFolder"
WHOLE, DECODER, BOTH = "make_loader, whole to 224x224", "limit: the decoder alone", "limit: the decoder and the filter"


def write_files(folder: Path, samples: int) -> Path:
    """The same JPEGs as files in class folders and in one pack."""
    files = repeated_photographs(samples)
    for number, data in enumerate(files):
        place = folder / "images" / f"class_{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06}.jpg").write_bytes(data)
    path = folder / "images.h5"
    write_encoded(path, files)
    write_encoded(folder / "sized.h5", files, size=(SIZE, SIZE))
    return path


def run_loader(loader: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Images per second of the loader's next epoch."""
    start, count = time.perf_counter(), 0
    for x, _ in loader:
        count += len(x)
    return count / (time.perf_counter() - start)


def run_first(dataset: dataset_h5, batch: int, **options: Any) -> float:
    """Images per second of a new loader's first epoch; what it keeps goes with it."""
    return run_loader(make_loader(dataset, batch, shuffle=True, **options))


def run_later(dataset: dataset_h5, batch: int, epoch: int, **options: Any) -> float:
    """Images per second of a new loader's epoch of this number, the first being 1."""
    loader = make_loader(dataset, batch, shuffle=True, **options)
    return [run_loader(loader) for _ in range(epoch)][-1]


def run_epochs(dataset: dataset_h5, batch: int, epochs: int, **options: Any) -> float:
    """Images per second of a new loader's first epochs together."""
    loader = make_loader(dataset, batch, shuffle=True, **options)
    return epochs / sum(1 / run_loader(loader) for _ in range(epochs))


def run_bare(reader: SplitReader, *, crops: bool, resizes: bool) -> float:
    """Images per second of the decoder, and of the filter after it, called bare: on what crops need, or on whole
    files."""
    rows, own = np.arange(min(512, len(reader))), threading.local()
    engine, draws = reader._parts[0].images, BatchPlace(0, 0, rows).draws(CROP_DRAWS)
    files = [engine.read_bytes(row) for row in rows.tolist()]
    headers = [read_jpeg_header(data) for data in files]
    boxes = resized_crops(np.array([(header.height, header.width) for header in headers]), draws)
    # As `decode_region` does: the crop's last row, and one more.
    lasts = (boxes[:, 0] + boxes[:, 2] + 1).tolist()
    needed = [
        first_rows(data, header, last) if crops and last < header.height else data
        for data, header, last in zip(files, headers, lasts, strict=True)
    ]
    # What is resized is as large as each crop; whose pixels they are makes no difference.
    parts = [np.zeros((height, width, 3), np.uint8) for height, width in boxes[:, 2:].tolist()]

    def call(number: int) -> None:
        if not hasattr(own, "decoded"):
            own.decoded, own.out = bytearray(1 << 20), np.empty((SIZE, SIZE, 3), np.uint8)
        decode_jpeg(needed[number], "RGB", buffer=own.decoded, strict=False)
        if resizes:
            scale_by_torch(parts[number], own.out)

    start = time.perf_counter()
    with ThreadPool(usable_cores()) as pool:
        pool.each(len(needed), call)
    return len(needed) / (time.perf_counter() - start)


def measure(folder: Path, samples: int, batch: int, rounds: int) -> Rates:
    """Images per second of each contender in each round."""
    path, cores = write_files(folder, samples), usable_cores()
    reader, dataset, crop = SplitReader(path), dataset_h5(path), RandomResizedCrop(SIZE)
    sized = dataset_h5(folder / "sized.h5")
    contenders: dict[str, Callable[[], float]] = {
        OURS: partial(run_first, dataset, batch, batch_transform=crop),
        "make_loader, second epoch": partial(run_later, dataset, batch, 2, batch_transform=crop),
        "make_loader, fifth epoch": partial(run_later, dataset, batch, 5, batch_transform=crop),
        FIVE: partial(run_epochs, dataset, batch, 5, batch_transform=crop),
        NONE: partial(run_first, dataset, batch, batch_transform=crop, memory_budget=0),
        "make_loader, whole images": partial(run_first, dataset, batch, batch_transform=crop.__call__, memory_budget=0),
        DECODER: partial(run_bare, reader, crops=True, resizes=False),
        BOTH: partial(run_bare, reader, crops=True, resizes=True),
        f"{WHOLE}, first epoch": partial(run_first, sized, batch),
        f"{WHOLE}, second epoch": partial(run_later, sized, batch, 2),
        f"{WHOLE}, nothing kept": partial(run_first, sized, batch, memory_budget=0),
        f"{DECODER}, whole files": partial(run_bare, reader, crops=False, resizes=False),
    }
    with contextlib.ExitStack() as stack:
        missing = _peers.why_missing("ffcv")
        if missing is not None:
            print(f"\n{missing}")
        else:
            peer = stack.enter_context(
                _peers.Peer(Path(__file__).with_name("_peer_jpeg.py"), folder / "images", folder, str(batch))
            )
            contenders[FFCV] = partial(peer.ask, f"{FFCV} {cores}")
            for workers in sorted({0, max(1, cores // 2), cores, 2 * cores}):
                contenders[f"{FOLDER}, {workers} workers"] = partial(peer.ask, f"{FOLDER} {workers}")
        return by_turns(contenders, rounds)


def promised(rates: Rates) -> list[Promise]:
    """What is promised, as far as it could be measured."""
    wanted = [(FIVE, NONE, _LEAST_GAIN)]
    for name in rates:
        wanted += [(OURS, name, 1.0), (FIVE, name, _LEAST_OF_FFCV)] if name == FFCV else []
        wanted += [(OURS, name, _LEAST_OF_FOLDER)] if name.startswith(FOLDER) else []
    return [
        Promise(f"{ours} / {other}", median_ratio(rates[ours], rates[other]), "at least", least)
        for ours, other, least in wanted
    ]


def main() -> int:
    """Run the benchmark; 0 when the ratios hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds that are counted")
    parser.add_argument("--samples", type=int, default=2048, help="images")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="read-jpeg-") as folder:
        rates = measure(Path(folder), arguments.samples, arguments.batch, arguments.rounds)
    show_rates("images/s", rates, base=OURS, column="x ours")
    return judge(promised(rates))


if __name__ == "__main__":
    sys.exit(main())
