"""`compare_sources`: how fast a dataset's images come from where they are, from local files and from a pack.

Files are read and decoded by a few threads, as many as a `DataLoader` would have workers, with the decoders that pack
them: no stock loader decodes faster, so the ratios err on the low side.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from colabstage.errors import DecodeError, LayoutError, SourceReadError
from colabstage.images.decode import Scratch, decode_image, decode_sized, encode_jpeg
from colabstage.io.arguments import absolute_path, check_argument
from colabstage.io.boundary import NOTHING_DONE, public
from colabstage.io.display import resolve_progress
from colabstage.io.files import make_folder, read_with_retry
from colabstage.io.pipeline import DaemonPool, ThreadPool
from colabstage.io.report import COLOURS, Report, Row, Table
from colabstage.io.units import format_bytes, format_count, format_duration, format_rate
from colabstage.io.workspace import open_spool, remove_empty
from colabstage.layouts.table import Images
from colabstage.load.reading.reader import SplitReader
from colabstage.machine.mounts import mount_of, require_answer, run_watched, slow_reason
from colabstage.machine.resources import check_space, usable_cores
from colabstage.pack.job import open_source
from colabstage.pack.options import ImageArguments, PackOptions
from colabstage.pack.run import pack_dataset
from colabstage.sources.parse import check_outside, read_local_dir

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from colabstage.io.progress import Progress
    from colabstage.pack.execute import PackReport

Way = Literal["source", "again", "local", "pack"]

# Shares of the budget. Reading from the source takes longest and varies most; the other ways need little time.
_SOURCE_PART = 0.6
_AGAIN_PART = 0.15
_OTHER_PART = 0.08
# Fast ways are measured over several passes, for at least this long.
_LEAST_S = 1.0
# More batches than can be made in that time.
_MOST_PASSES = 1_000_000
_KEPT_BYTES = 512 * 1024 * 1024
_STALL_S = 60.0
# Samples in a batch that is read from the pack.
_BATCH = 64


@dataclass(frozen=True, slots=True)
class SourceRate:
    """One way to read the samples: `"source"`, each file for the first time; `"again"`, the same files once more;
    `"local"`, copies of them on the local disk; `"pack"`, one HDF5 file on the local disk."""

    way: Way
    title: str
    samples: int
    seconds: float
    nbytes: int

    @property
    def per_second(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def epoch_s(self, dataset_samples: int) -> float:
        """Return the seconds that `samples` would take at this rate."""
        return dataset_samples / self.per_second if self.per_second > 0 else float("inf")


@dataclass(frozen=True, kw_only=True, repr=False)
class SourceComparison(Report):
    """The result of `compare_sources`. Prints as text, and as a table in a notebook."""

    path: Path
    place: str
    dataset_samples: int
    compared: int
    rates: tuple[SourceRate, ...]
    num_workers: int
    image_size: tuple[int, int] | None
    pack_bytes: int
    """The estimated size of a pack of the whole dataset."""
    encoding: str

    def rate(self, way: Way) -> SourceRate:
        return {rate.way: rate for rate in self.rates}[way]

    @property
    def speedup(self) -> float:
        """Return how many times faster the pack is than later epochs from the source."""
        # Not compared with the first epoch, which is no faster with a pack: staging also reads the source once.
        return self.rate("pack").per_second / self.rate("again").per_second


@public(PackOptions, arguments=ImageArguments, reads=("path",), writes=("local_dir",), stopped=NOTHING_DONE)
def compare_sources(
    path: str | os.PathLike[str],
    *,
    samples: int = 500,
    num_workers: int = 2,
    budget_s: float = 60.0,
    local_dir: str | os.PathLike[str] | None = None,
    progress: bool | Progress = True,
    **arguments: Unpack[ImageArguments],
) -> SourceComparison:
    """Measure with your own images, in about a minute, how much faster an epoch becomes when they are staged.

    It reads some random images from the source, twice; then from copies on the local disk; then as batches from a pack
    of them. It writes nothing to the source, and leaves nothing on the local disk.

    Args:
        path: a folder or an archive of images, on a mounted Drive or anywhere else.
        samples: maximum number of images; fewer if reading them would exceed the budget, or if they have more than 512
            MB together.
        num_workers: threads that read and decode files at once, for the workers that your `DataLoader` has.
        budget_s: about how long it may take, in seconds, not counting listing the folder and packing the images.
        local_dir: where the copies go; the platform's fast folder by default.
        progress: `True` for a bar, `False` for silence, or a `Progress`.
        **arguments: how images are decoded, as the arguments of these names in `colabstage.options.PackOptions`.

    Returns:
        The images per second, and the seconds of an epoch, of each way; it prints, and draws with `plot()`.

    Raises:
        OptionError: a number is not above 0, or an option is unknown.
        SourceNotFoundError, ArchiveError, LayoutError: as for `stage_dataset`; LayoutError also if samples are not
            image files.
        DriveDisconnectedError: the mount does not answer.
        SourceReadError: an image could not be read, or nothing came for a minute.
        NotEnoughSpaceError: the copies do not fit on the local disk.

    >>> print(compare_sources("/content/drive/MyDrive/photos", image_size=(224, 224)))  # doctest: +SKIP
    An epoch of 12,500 images: 42 min 10 s from Google Drive, 1.02 s from a pack (2,480 times as fast)
    """
    for name, value in {"samples": samples, "num_workers": num_workers, "budget_s": budget_s}.items():
        check_argument(name, value, "above zero")
    options, local = PackOptions(**arguments), read_local_dir(local_dir)
    check_argument("path", path, "path", remedy="Of a staged dataset pass the folder or archive that it was made of.")
    source = absolute_path(path, instead="bring some of the images here with fetch_files first")
    # Before anything is listed, because listing a mount that hangs never returns.
    require_answer(source, local)
    check_outside([source], local / "compare", "local_dir")
    shown = resolve_progress(progress)

    def compare() -> SourceComparison:
        with _temporary_folder(local) as folder:
            files = _Files(options, num_workers, shown)
            rows = files.read_source(source, folder / "unpacked", samples, budget_s)
            files.read_copies(folder / "files", min(_LEAST_S, budget_s * _OTHER_PART))
            # The copies are in class folders, whatever the original layout was.
            pack = folder / "pack.h5"
            report = pack_dataset(folder / "files", pack, options=options, layout="image_folder", progress=shown)
            packed = _read_pack(report, min(_LEAST_S, budget_s * _OTHER_PART), shown)
        return _describe(source, rows, files, packed, report)

    return run_watched(compare, source, local)


@contextlib.contextmanager
def _temporary_folder(local: Path) -> Iterator[Path]:
    """Make a folder below `local` that is removed afterwards, with every folder that had to be created for it."""
    # Deepest first, so that each one is empty by then.
    missing = [place for place in (local, *local.parents) if not place.exists()]
    make_folder(local)
    try:
        with open_spool(local / "compare") as folder:
            make_folder(folder)
            yield folder
    finally:
        for place in missing:
            remove_empty(place)  # unless another process has begun to use it


class _Files:
    def __init__(self, options: PackOptions, workers: int, progress: Progress) -> None:
        # Once beforehand, so that the decoders are imported before the clock starts.
        decode_image(encode_jpeg(np.zeros((8, 8, 3), np.uint8), 90), options.image)
        self.rates: list[SourceRate] = []
        self.options, self.workers, self.place, self.broken = options, workers, "", set[int]()
        self.kept: dict[str, bytes] = {}
        self._progress = progress

    def read_source(self, path: Path, spool: Path, samples: int, budget_s: float) -> int:
        """Read some images twice, and return how many there are. They stay in memory for the other ways."""
        self.place = slow_reason(mount_of(path)) or "the local disk"
        with open_source(path, self.options, beside=spool) as opened:
            inputs = opened.find().inputs
            if not isinstance(inputs, Images) or inputs.decoded:
                msg = (
                    f"'{path}' holds no image files, and only those can be compared. profile_loader measures a loader "
                    "of anything."
                )
                raise LayoutError(msg)
            source = inputs.source

            def read(index: int) -> Any:
                # Retries count, because training from a mount has them too.
                return read_with_retry(lambda: source.read(index), source.name(index))

            # Drawn at random, because neighbours in a folder are often read ahead together, and are often of one size.
            chosen = np.random.default_rng(0).permutation(len(source))[:samples].tolist()
            kept = self._read("source", f"{self.place}, first epoch", chosen, read, budget_s * _SOURCE_PART)
            # Later epochs profit from what the mount's client keeps on the local disk, which makes the comparison fair.
            self._read("again", f"{self.place}, later epochs", list(kept), read, budget_s * _AGAIN_PART)
            # Numbers instead of names, which may repeat across folders; layouts need the extension.
            suffixes = [PurePosixPath(source.name(index)).suffix.lower() for index in kept]
            self.kept = {
                f"{n:06}{end}": data for n, (end, data) in enumerate(zip(suffixes, kept.values(), strict=True))
            }
            return len(source)

    def read_copies(self, folder: Path, seconds: float) -> None:
        """Write what was read as plain files into a new folder, and time reading these."""
        # At most the copies and a pack of them.
        check_space(folder.parent, 2 * sum(map(len, self.kept.values())), "Comparing with local copies")
        # Below two folders, so that it is an image folder with one class.
        (folder / "images").mkdir(parents=True)
        files = [folder / "images" / name for name in self.kept]
        for file in files:
            file.write_bytes(self.kept[file.name])
        # Several passes, because a few hundred local files are read too quickly to be measured well once.
        passes = range(_MOST_PASSES * len(files))
        self._read("local", "files on the local disk", passes, lambda n: files[n % len(files)].read_bytes(), seconds)

    def _read(
        self, way: Way, title: str, items: Sequence[int], read: Callable[[int], bytes], seconds: float
    ) -> dict[int, bytes]:
        """Read and decode items until all are done, the time is up, or enough bytes are kept; return those of a source
        that is read for the first time."""
        left, lock, kept = iter(items), threading.Lock(), dict[int, bytes]()
        done = nbytes = 0
        began = last = time.perf_counter()

        def work(_: int) -> None:
            nonlocal done, nbytes, last
            # Memory for decoding is reused, as in a loader's worker process.
            scratch = Scratch()
            while last - began <= seconds and (way != "source" or nbytes <= _KEPT_BYTES):
                with lock:
                    index = next(left, None)
                if index is None:
                    return
                data = read(index)
                try:
                    decode_sized(data, self.options.image, scratch=scratch)
                except DecodeError:
                    self.broken.add(index)
                    continue
                with lock:
                    done, nbytes, last = done + 1, nbytes + len(data), time.perf_counter()
                    if way == "source":
                        kept[index] = data
                step.advance(1)

        with self._progress.step(f"read {title}", total=None, unit="images") as step:
            try:
                with DaemonPool(self.workers, "colabstage-compare") as pool:
                    pool.run(work, range(self.workers), stall_timeout_s=seconds + _STALL_S)
            except TimeoutError as error:
                if error.errno is not None:  # the mount's own answer
                    raise
                msg = f"Nothing could be read for {_STALL_S:.0f} s: the source hangs. doctor() says more."
                raise SourceReadError(msg) from error
        if not done:
            msg = (
                f"No image could be read in {seconds:.0f} seconds, and {len(self.broken)} could not be decoded. Give "
                "the folder or archive that holds the images, or more time (budget_s=…)."
            )
            raise SourceReadError(msg)
        self.rates.append(SourceRate(way, title, done, last - began, nbytes))
        return kept


def _read_pack(report: PackReport, seconds: float, progress: Progress) -> SourceRate:
    order, done = np.random.default_rng(0), 0
    with (
        contextlib.closing(SplitReader(report.path)) as reader,
        ThreadPool(usable_cores()) as pool,
        progress.step("read the pack", total=None, unit="images") as step,
    ):
        batch = min(_BATCH, len(reader))
        # The first batch opens the file and allocates the memory for all batches, like a loader's buffers.
        first = reader.read_x(np.arange(batch), None, pool=pool)
        out = first if isinstance(first, np.ndarray) else None
        began = time.perf_counter()
        while (now := time.perf_counter()) - began < seconds or not done:
            chosen = order.integers(len(reader), size=batch)
            reader.read_x(chosen, out, pool=pool)
            reader.read_y(chosen, pool=pool)
            done += batch
            step.advance(batch)
    return SourceRate("pack", "a pack on the local disk", done, now - began, round(report.nbytes * done / len(reader)))


def _describe(path: Path, rows: int, files: _Files, packed: SourceRate, report: PackReport) -> SourceComparison:
    rates, again, size = (*files.rates, packed), files.rates[1], files.options.image.size
    pack_bytes = round(report.nbytes * rows / len(files.kept))
    before_s, after_s = (format_duration(rate.epoch_s(rows)) for rate in (again, packed))
    times = _times(packed.per_second / again.per_second)
    decoded = "as large as they are" if size is None else f"decoded to {size[0]} x {size[1]}"
    readers, packs = format_count(files.workers, "readers"), f"{format_bytes(pack_bytes)} ({report.encoding})"
    measured = f"Measured with {format_count(len(files.kept), 'images')}, {decoded}; {readers} for files"
    notes = [f"{measured}; a pack of all takes about {packs}."]
    if files.broken:
        notes.append(f"{len(files.broken)} of the images could not be decoded, and were left out.")
    if report.encoding == "encoded" and size is None:
        notes.append(
            "The pack keeps the files as they came, since their sizes differ, and decodes them in every epoch: with "
            "image_size=(height, width) they are decoded once."
        )
    return SourceComparison(
        headline=f"An epoch of {format_count(rows, 'images')}: {before_s} from {files.place}, {after_s} from a pack "
        f"({times} as fast)",
        tables=(Table(tuple(_bar(rate, rows, again) for rate in rates), numbers=frozenset({1, 2, 3})),),
        notes=tuple(notes),
        path=path,
        place=files.place,
        dataset_samples=rows,
        compared=len(files.kept),
        rates=rates,
        num_workers=files.workers,
        image_size=size,
        pack_bytes=pack_bytes,
        encoding=report.encoding,
    )


def _bar(rate: SourceRate, rows: int, again: SourceRate) -> Row:
    speed = format_rate(rate.samples, rate.seconds, "images")
    gain = _times(rate.per_second / again.per_second) if rate.way in {"local", "pack"} else ""
    cells = (rate.title, speed, f"{format_duration(rate.epoch_s(rows))} an epoch", gain)
    return Row(cells, bar=rate.per_second, colour=COLOURS["accent" if rate.way == "pack" else "muted"])


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.1f} times"
