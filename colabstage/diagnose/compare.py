"""`compare_sources`: how fast a dataset's images come from where they are, from local files and from a pack.

The same images are read in all ways, and decoded to the same size; the ways differ only in where the bytes come from.
Files are read and decoded by a few threads, as many as a `DataLoader` would have workers, with the decoders that pack
them: no stock loader decodes faster, so the ratios err on the low side.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, Unpack

import numpy as np

from colabstage.diagnose.report import Bar, Report
from colabstage.errors import DecodeError, LayoutError, SourceReadError
from colabstage.images.decode import decode_image
from colabstage.io.arguments import NOTHING_DONE, check_argument, stops_with, takes
from colabstage.io.boundary import typed
from colabstage.io.files import make_folder, read_with_retry
from colabstage.io.ownership import remove_empty, sweep_orphans
from colabstage.io.page import COLOURS
from colabstage.io.pipeline import DaemonPool, ThreadPool
from colabstage.io.progress import resolve_progress
from colabstage.io.units import format_bytes, format_count, format_duration, format_rate
from colabstage.io.workspace import remove_own, temp_beside
from colabstage.layouts.table import Images
from colabstage.load.reading.reader import SplitReader
from colabstage.machine.mounts import mount_of, require_answer, slow_reason
from colabstage.machine.resources import check_space, read_resources, usable_cores
from colabstage.pack.job import open_source
from colabstage.pack.options import ImageArguments, PackOptions
from colabstage.pack.run import pack_dataset
from colabstage.sources.parse import check_outside, read_local_dir, refuse_address

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from colabstage.io.progress import Progress, ProgressStep
    from colabstage.layouts.samples import SampleSource

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


@dataclass(frozen=True, slots=True)
class SourceRate:
    """One way to read the samples."""

    way: Way
    """`"source"`, each file for the first time; `"again"`, the same files once more; `"local"`, copies of them on
    the local disk; `"pack"`, one HDF5 file on the local disk."""
    title: str
    samples: int
    seconds: float
    nbytes: int

    @property
    def per_second(self) -> float:
        """Return the samples a second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def epoch_s(self, dataset_samples: int) -> float:
        """Return the seconds that `samples` would take at this rate."""
        return dataset_samples / self.per_second if self.per_second > 0 else float("inf")


@dataclass(frozen=True, kw_only=True, repr=False)
class SourceComparison(Report):
    """The result of `compare_sources`. Prints as text, and as a table in a notebook."""

    path: Path
    place: str
    """Where the dataset is ("Google Drive")."""
    dataset_samples: int
    compared: int
    rates: tuple[SourceRate, ...]
    """One for each way, usually the slowest first."""
    num_workers: int
    """Threads that read and decoded files at once."""
    image_size: tuple[int, int] | None
    """`(height, width)`, or `None` as they are."""
    pack_bytes: int
    """The estimated size of a pack of the whole dataset."""
    encoding: str

    def rate(self, way: Way) -> SourceRate:
        """Return the figures for one way."""
        return {rate.way: rate for rate in self.rates}[way]

    @property
    def speedup(self) -> float:
        """Return how many times faster the pack is than later epochs from the source."""
        # Not compared with the first epoch, which is no faster with a pack: staging also reads the source once.
        return self.rate("pack").per_second / self.rate("again").per_second


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.1f} times"


@takes(PackOptions, arguments=ImageArguments, remedies={"seconds": "Write budget_s=…, in seconds."})
@stops_with(NOTHING_DONE)
@typed("path", writes=("local_dir",))
def compare_sources(
    path: str | os.PathLike[str],
    *,
    samples: int = 500,
    num_workers: int = 2,
    batch_size: int = 64,
    budget_s: float = 60.0,
    seed: int = 0,
    local_dir: str | os.PathLike[str] | None = None,
    progress: bool | Progress = True,
    **arguments: Unpack[ImageArguments],
) -> SourceComparison:
    """Measure with your own images, in about a minute, how much faster an epoch becomes when they are staged.

    Some random images are read from the source, twice; then from copies on the local disk; then as batches from a pack
    of them. Nothing is written to the source, and nothing stays on the local disk.

    Args:
        path: a folder or an archive of images, on a mounted Drive or anywhere else.
        samples: maximum number of images; fewer if reading them would exceed the budget, or if they have more than 512
            MB together.
        num_workers: threads that read and decode files at once, for the workers that your `DataLoader` has.
        batch_size: samples in a batch that is read from the pack.
        budget_s: about how long it may take, in seconds, not counting listing the folder and packing the images.
        seed: seed for choosing images.
        local_dir: where the copies go; the platform's fast folder by default.
        progress: `True` for a bar, `False` for silence, or a `Progress`.
        **arguments: how images are decoded, as the arguments of these names in `colabstage.options.PackOptions`.

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
    numbers = {"samples": samples, "num_workers": num_workers, "batch_size": batch_size, "budget_s": budget_s}
    for name, value in numbers.items():
        check_argument(name, value, "above zero")
    options, local = PackOptions(**arguments), read_local_dir(local_dir)
    check_argument("path", path, "path", remedy="Of a staged dataset pass the folder or archive that it was made of.")
    refuse_address("path", path, "bring some of the images here with fetch_files first")
    place = Path(path).expanduser()
    # Before anything is listed, because listing a mount that hangs never returns.
    require_answer(place, local)
    check_outside([place], local / "compare", "local_dir")
    slow = slow_reason(mount_of(place))
    with _temporary_folder(local) as folder:
        run = _Comparing(options, folder, num_workers, budget_s, resolve_progress(progress))
        return run.compare(place, slow or "the local disk", samples, batch_size, seed)


@contextlib.contextmanager
def _temporary_folder(local: Path) -> Iterator[Path]:
    """Make a folder below `local` that is removed afterwards, with every folder that had to be created for it."""
    # Deepest first, so that each one is empty by then.
    missing = [place for place in (local, *local.parents) if not place.exists()]
    make_folder(local)
    model = local / "compare"
    sweep_orphans(local, name=model.name)
    folder = temp_beside(model)
    make_folder(folder)
    try:
        yield folder
    finally:
        remove_own(folder)
        for place in missing:
            remove_empty(place)  # unless another process has begun to use it


class _Comparing:
    """One comparison, with its own temporary folder on the local disk."""

    def __init__(self, options: PackOptions, folder: Path, workers: int, seconds: float, progress: Progress) -> None:
        self._options, self._folder, self._progress = options, folder, progress
        self._workers, self._seconds = workers, seconds
        self._broken = 0

    def compare(self, path: Path, place: str, samples: int, batch_size: int, seed: int) -> SourceComparison:
        """Read in every way, and collect the figures."""
        from colabstage.images.decode import encode_jpeg

        # Once beforehand, so that the decoders are imported before the clock starts.
        decode_image(encode_jpeg(np.zeros((8, 8, 3), np.uint8), 90), self._options.image)
        # What is read first stays in memory, so that all other ways read the same, and writing it takes no time of it.
        kept: dict[int, bytes] = {}
        with open_source(path, self._options, beside=self._folder / "unpacked") as opened:
            inputs = opened.find().inputs
            if not isinstance(inputs, Images) or inputs.decoded:
                raise _no_image_files(str(path))
            source = inputs.source

            def read(index: int) -> bytes:
                # Retries count, because training from a mount has them too.
                content = read_with_retry(lambda: source.read(index), source.name(index))
                if not isinstance(content, bytes):
                    raise _no_image_files(source.name(index))
                return content

            # Drawn at random, because neighbours in a folder are often read ahead together, and are often of one size.
            rows = len(source)
            chosen = np.random.default_rng(seed).permutation(rows)[:samples].tolist()
            with self._progress.step("read from the source", total=len(chosen), unit="images") as step:
                title, part = f"{place}, first epoch", self._seconds * _SOURCE_PART
                first = self._read("source", title, chosen, read, seconds=part, step=step, keep=kept)
            broken = self._broken
            # Later epochs profit from what the mount's client keeps on the local disk, which makes the comparison fair.
            with self._progress.step("read once more", total=len(kept), unit="images") as step:
                title, part = f"{place}, later epochs", self._seconds * _AGAIN_PART
                again = self._read("again", title, list(kept), read, seconds=part, step=step)
        files = self._write_down(kept, source)
        with self._progress.step("read local files", total=None, unit="images") as step:
            # Several passes, because a few hundred local files are read too quickly to be measured well once.
            title, part = "files on the local disk", min(_LEAST_S, self._seconds * _OTHER_PART)
            passes = range(_MOST_PASSES * len(files))
            local = self._read(
                "local", title, passes, lambda number: files[number % len(files)].read_bytes(), seconds=part, step=step
            )
        packed, encoding, pack_bytes = self._read_pack(batch_size)
        pack_bytes = round(pack_bytes * rows / len(kept))
        rates, size = (first, again, local, packed), self._options.image.size
        before_s, after_s = (format_duration(rate.epoch_s(rows)) for rate in (again, packed))
        times = _times(packed.per_second / again.per_second)
        decoded = "as large as they are" if size is None else f"decoded to {size[0]} x {size[1]}"
        measured = f"Measured with {format_count(len(kept), 'images')}, {decoded}"
        takes = f"a pack of all takes about {format_bytes(pack_bytes)} ({encoding})"
        return SourceComparison(
            headline=f"An epoch of {format_count(rows, 'images')}: {before_s} from {place}, {after_s} from a pack "
            f"({times} as fast)",
            bars=tuple(_bar(rate, rows, again) for rate in rates),
            notes=(
                f"{measured}; {format_count(self._workers, 'readers')} for files; {takes}.",
                *_comparison_notes(broken, encoding, pack_bytes, self._options),
            ),
            path=path,
            place=place,
            dataset_samples=rows,
            compared=len(kept),
            rates=rates,
            num_workers=self._workers,
            image_size=size,
            pack_bytes=pack_bytes,
            encoding=encoding,
        )

    def _read(
        self,
        way: Way,
        title: str,
        items: Sequence[int],
        read: Callable[[int], bytes],
        *,
        seconds: float,
        step: ProgressStep,
        keep: dict[int, bytes] | None = None,
    ) -> SourceRate:
        """Read and decode items in several threads, each one item after the other as in a worker process, until all are
        done, the time is up, or the limit of kept bytes is reached."""
        left, lock = iter(items), threading.Lock()
        done = nbytes = 0
        began = last = time.perf_counter()

        def work(_: int) -> None:
            nonlocal done, nbytes, last
            # Memory for decoding is reused, as in a loader's worker process.
            scratch = bytearray()
            while last - began <= seconds and (keep is None or nbytes <= _KEPT_BYTES):
                with lock:
                    index = next(left, None)
                if index is None:
                    return
                data = read(index)
                with contextlib.suppress(DecodeError):
                    decode_image(data, self._options.image, scratch=scratch)
                    with lock:
                        done, nbytes, last = done + 1, nbytes + len(data), time.perf_counter()
                        if keep is not None:
                            keep[index] = data
                    step.advance(1)
                    continue
                with lock:
                    self._broken += 1

        try:
            with DaemonPool(self._workers, "colabstage-compare") as pool:
                pool.run(work, range(self._workers), stall_timeout_s=seconds + _STALL_S)
        except TimeoutError as error:
            if error.errno is not None:  # the mount's own answer
                raise
            msg = f"Nothing could be read for {_STALL_S:.0f} s: the source hangs. doctor() says more."
            raise SourceReadError(msg) from error
        if not done:
            msg = (
                f"None of {self._broken} images could be decoded. Give the folder or archive that holds the images."
                if self._broken
                else f"No image could be read in {seconds:.0f} seconds. Give more time (budget_s=…), or ask doctor()."
            )
            raise SourceReadError(msg)
        return SourceRate(way, title, done, last - began, nbytes)

    def _write_down(self, kept: Mapping[int, bytes], source: SampleSource) -> list[Path]:
        """Write what was read as plain files on the local disk, in a folder that can be packed."""
        # At most the copies and a pack of them.
        check_space(self._folder, 2 * sum(map(len, kept.values())), "Comparing with local copies")
        folder = self._folder / "files" / "images"
        # Below two folders, so that it is an image folder with one class.
        folder.mkdir(parents=True)
        files = []
        for number, (index, data) in enumerate(kept.items()):
            # Numbers instead of names, which may repeat across folders; layouts need the extension.
            file = folder / f"{number:06}{PurePosixPath(source.name(index)).suffix.lower()}"
            file.write_bytes(data)
            files.append(file)
        return files

    def _read_pack(self, batch_size: int) -> tuple[SourceRate, str, int]:
        """Pack the local copies and read batches of them at random; return the figures, how the pack stores images, and
        its bytes."""
        pack = self._folder / "pack.h5"
        # The copies are in class folders, whatever the original layout was.
        report = pack_dataset(
            self._folder / "files", pack, options=self._options, layout="image_folder", progress=self._progress
        )
        order, done = np.random.default_rng(0), 0
        with (
            contextlib.closing(SplitReader(pack)) as reader,
            ThreadPool(usable_cores()) as pool,
            self._progress.step("read the pack", total=None, unit="images") as step,
        ):
            rows = len(reader)
            # The first batch opens the file and allocates the memory for all batches, like a loader's buffers.
            batch = min(batch_size, rows)
            first = reader.read_x(np.arange(batch), None, pool=pool)
            out = first if isinstance(first, np.ndarray) else None
            began = time.perf_counter()
            deadline = began + min(_LEAST_S, self._seconds * _OTHER_PART)
            while time.perf_counter() < deadline:
                permutation = order.permutation(rows)
                # Only full batches: a short last one would be timed like the others.
                for start in range(0, rows - batch + 1, batch):
                    chosen = permutation[start : start + batch]
                    reader.read_x(chosen, out, pool=pool)
                    reader.read_y(chosen, pool=pool)
                    done += batch
                    step.advance(batch)
                    if time.perf_counter() > deadline:
                        break
            seconds = time.perf_counter() - began
        nbytes = round(report.nbytes * done / rows)
        rate = SourceRate("pack", "a pack on the local disk", done, seconds, nbytes)
        return rate, report.encoding, report.nbytes


def _bar(rate: SourceRate, rows: int, again: SourceRate) -> Bar:
    speed = format_rate(rate.samples, rate.seconds, "images")
    gain = _times(rate.per_second / again.per_second) if rate.way in {"local", "pack"} else ""
    colour = COLOURS["accent" if rate.way == "pack" else "muted"]
    return Bar(rate.title, rate.per_second, (speed, f"{format_duration(rate.epoch_s(rows))} an epoch", gain), colour)


def _no_image_files(name: str) -> LayoutError:
    msg = (
        f"'{name}' holds no image files, and only those can be compared. profile_loader measures a loader of anything."
    )
    return LayoutError(msg)


def _comparison_notes(broken: int, encoding: str, pack_bytes: int, options: PackOptions) -> Iterator[str]:
    # Compared with what is free now, because the pack should stay in memory beside the model.
    free_bytes = read_resources().free_memory_bytes
    if broken:
        yield f"{broken} of the images could not be decoded, and were left out."
    if encoding == "encoded" and options.image.size is None:
        yield (
            "The pack keeps the files as they came, since their sizes differ, and decodes them in every epoch: with "
            "image_size=(height, width) they are decoded once."
        )
    if pack_bytes > free_bytes:
        yield (
            f"A pack of all does not fit in the free memory ({format_bytes(free_bytes)}), so epochs are bound by the "
            "local disk."
        )
