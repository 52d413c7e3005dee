"""Train on data that still arrives, or that is ten times what the disk may hold: first batches, epochs, what is learnt.

    python -m benchmarks streaming
    python -m benchmarks.streaming [PART ...]

A web server on loopback answers after 0.4 s and sends at a set rate, whoever asks; the Drive is the simulated one. Zips
hold arrays in two class folders, one class after the other, as people zip them; they are sparse on the disk, so that
their size costs nothing. A cached pack is the one that staging makes of such a zip, with its manifest, and sparse like
it, since all samples are zeros; the smallest is compared with one that was made in full. What is in the cloud is in
this computer's memory, because a disk takes minutes to remove a file of so many pieces. The model is a pause of a set
length for each batch. Beside each first epoch stands what a bare client takes on the same line
(`benchmarks._bare_line`): the least, for data that has to be asked for first.
"""

from __future__ import annotations

import argparse
import dataclasses
import filecmp
import io
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from PIL import Image

from benchmarks._bare_line import ask_bare, train_bare
from benchmarks._report import Promise, against, judge
from colabstage import stage_dataset
from colabstage.errors import NotEnoughSpaceError
from colabstage.h5.manifest import Manifest, manifest_path, read_manifest, write_manifest
from colabstage.io.files import BLOCK_BYTES, block_ranges, hash_block, pread_exactly
from colabstage.io.progress import Progress
from colabstage.io.units import format_bytes
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader
from colabstage.load.partial import PartialPack, UnitOrder, even_window, mixing_of
from colabstage.pack.arrival import FIRST_UNITS, window_units
from colabstage.sources.opening import Opening, open_source
from colabstage.sources.parse import parse_source
from colabstage.stage.request import make_request
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import serve_apart
from tests.support.staged import disk_sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")
BATCH = 64
LATENCY_S = 0.4
SAMPLE = (100, 1000)
ROUNDS = 3
FILES, PAGE = 100_000, 1_000
FIRST_BATCH_S, FIRST_FILES_S, SECOND_BATCH_S = 3.0, 5.0, 2.0
EPOCH_RATIO, AGAIN_RATIO, FETCHED_RATIO, RESUME_S = 1.05, 1.03, 1.02, 2.0
LIMITED = 10_000
SIZES = (2_000, 20_000, 200_000)
# A slow line, on which a first epoch takes long.
EPOCH_BYTES_PER_S = 10e6
# Each image is a read of its own there, which is what takes the time.
SHARDED, SHARDED_SHAPE, SHARDED_PART = 2_000, (1000, 1000), 5
MEMORY = "/dev/shm"
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_MOST, _MOST_MEMBERS = 2**32 - 1, 2**16 - 1
_DATE = (1 << 5) | 1


def sparse_zip(path: Path, count: int, shape: tuple[int, int] = SAMPLE) -> Path:
    """Write a zip of `count` arrays of zeros, whose bytes are holes."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
    content = head.getvalue() + bytes(shape[0] * shape[1])
    checksum, size = zlib.crc32(content), len(content)
    central, end = io.BytesIO(), 0
    with path.open("wb") as file:
        for number in range(count):
            name = f"train/c{2 * number // count}/{number:06}.npy".encode()
            file.seek(end)
            file.write(_LOCAL.pack(b"PK\3\4", 20, 0, 0, 0, _DATE, checksum, size, size, len(name), 0) + name)
            file.write(head.getvalue())
            wide = struct.pack("<HHQ", 1, 8, end) if end >= _MOST else b""
            fields = (20, 20, 0, 0, 0, _DATE, checksum, size, size, len(name), len(wide), 0, 0, 0, 0, min(end, _MOST))
            central.write(_CENTRAL.pack(b"PK\1\2", *fields) + name + wide)
            end += _LOCAL.size + len(name) + size
        file.seek(end)
        file.write(central.getvalue())
        if end >= _MOST or count >= _MOST_MEMBERS:
            file.write(_END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, central.tell(), end))
            file.write(struct.pack("<4sIQI", b"PK\6\7", 0, end + central.tell(), 1))
        members = min(count, _MOST_MEMBERS)
        file.write(_END.pack(b"PK\5\6", 0, 0, members, members, central.tell(), min(end, _MOST), 0))
    return path


@dataclass(frozen=True)
class Epoch:
    """What one run gave."""

    first_batch_s: float
    seconds: list[float]
    batches: int
    labels: np.ndarray
    window_units: int
    origin: str


class Bench:
    """A place on the disk, and what was promised."""

    def __init__(self, home: Path, cloud: Path) -> None:
        self.home, self.cloud = home, cloud
        self.promises: list[Promise] = []
        self.wrong: list[str] = []
        self._runs = 0

    def check(self, what: str, value: float, most: float) -> str:
        """A figure, beside what was promised of it."""
        self.promises.append(Promise(what, value, "at most", most))
        return against(value, most, "at most")

    def place(self) -> Path:
        """A fresh place on the local disk."""
        self._runs += 1
        return self.home / f"local-{self._runs}"

    def train(
        self,
        source: Path | str,
        step_s: float = 0,
        *,
        epochs: int = 0,
        cache: Path | None = None,
        streaming: bool = True,
        image_size: tuple[int, int] | None = None,
    ) -> Epoch:
        """Stage, and train for so many epochs; 0 for no more than the first batch."""
        began, place = time.perf_counter(), self.place()
        data = stage_dataset(
            source, local_dir=place, cache_dir=cache, progress=False, streaming=streaming, image_size=image_size
        )
        loader, layout = data.loader("train", BATCH), data["train"].reader.layout
        first, batches = 0.0, 0
        seconds: list[float] = []
        labels: list[np.ndarray] = []
        for epoch in range(max(1, epochs)):
            for _, y in loader:
                first = first or time.perf_counter() - began
                if not epochs:
                    break
                labels += [y.numpy()] if not epoch else []
                batches += not epoch
                time.sleep(step_s)
            seconds.append(time.perf_counter() - began - sum(seconds))
            # Later epochs are those once nothing is packed or published beside them.
            if not epoch and epochs > 1:
                data.wait_published()
                began = time.perf_counter() - sum(seconds)
        if epochs:
            data.wait_published() if cache else data.wait(progress=False)
        else:
            data.cancel()
        shutil.rmtree(place)
        found = np.concatenate([*labels, np.zeros(0, np.int64)])
        return Epoch(first, seconds, batches, found, 0 if layout is None else layout.window_units, data.report.origin)


@contextmanager
def on_web(archive: Path, rate: float) -> Iterator[str]:
    """The address of a file on a server of its own."""
    with serve_apart({archive.name: archive}, WebKnobs(latency_s=LATENCY_S, total_bytes_per_s=rate)) as address:
        yield f"{address}/{archive.name}"


class FirstBatches:
    """A table of seconds to the first batch, from what this machine has never read."""

    # It would make up the MD5 of a file of gigabytes first, which Google's has.
    knobs = DriveKnobs(attributes=False, stream_bytes_per_s=100e6)

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        (bench.home / "drive").mkdir(exist_ok=True)
        if not (bench.home / "drive" / "cloud").exists():
            (bench.home / "drive" / "cloud").symlink_to(bench.cloud)
        self.have(self.knobs)
        self.cloud, self._mountpoint = self._drive.cloud / "MyDrive", bench.home / "content" / "drive"
        self._found: dict[str, list[float]] = {}
        print(f"First shuffled batch of {BATCH}; latency {LATENCY_S} s, 100 MB/s\n")
        print(f"{'source':<42}  {'streaming=True':>24}  {'streaming=False':>16}", flush=True)

    def have(self, knobs: DriveKnobs) -> None:
        """Read from a Drive of these speeds from now on; what is in the cloud stays."""
        self._drive = SimulatedDrive(self._bench.home / "drive", knobs=knobs)

    def show(self, what: str, kind: str, seconds: list[float], most: float | None, whole: str = "not run") -> None:
        """Print a line; `most`: what is promised, `None` for nothing. Lines of one kind differ in size alone."""
        found = statistics.median(seconds)
        self._found.setdefault(kind, []).append(found)
        told = f"{found:.2f}" if most is None else self._bench.check(f"first batch, {what}", found, most)
        print(f"{what:<42}  {told + ' s':>24}  {whole:>16}", flush=True)

    def show_growth(self) -> None:
        """Print how much longer the largest takes than the smallest."""
        told = ", ".join(f"{kind} {found[-1] / found[0]:.2f}" for kind, found in self._found.items() if len(found) > 1)
        print(f"\nthe largest over the smallest, which is a hundredth of its size: {told}", flush=True)

    def of_web(self, archive: Path, *, whole: bool) -> None:
        """Of a zip on a web server; `whole`: also without streaming."""
        kind = "zip on the web"
        with on_web(archive, 100e6) as url:
            took = [self._bench.train(url).first_batch_s for _ in range(ROUNDS)]
            waited = f"{self._bench.train(url, streaming=False).first_batch_s:.1f} s" if whole else "not run"
        self.show(_sized(kind, archive), kind, took, FIRST_BATCH_S, waited)

    def of_drive(self, what: str, kind: str, name: str, most: float | None, **named: Any) -> list[Epoch]:
        """Of something in the cloud by its name there; nothing where this disk is too full for it."""
        try:
            runs = [self.on_mount(lambda place: self._bench.train(place / name, **named)) for _ in range(ROUNDS)]
        except NotEnoughSpaceError as error:
            print(f"{what}: not run: {error}", flush=True)
            return []
        self.show(what, kind, [run.first_batch_s for run in runs], most)
        return runs

    def of_cache(self, archive: Path, *, checked: bool) -> None:
        """Of the cached pack of a zip, both on the Drive; `checked`: compare it with one that was made in full."""
        kind, cache = "cached pack on the Drive", self.cloud / "colabstage"
        what = _sized(kind, archive)
        try:
            pack = self.on_mount(lambda place: sparse_pack(self._bench, place / archive.name, cache))
        except NotEnoughSpaceError as error:
            print(f"{what}: not run: {error}", flush=True)
            return
        if checked and not self.on_mount(lambda place: is_what_staging_makes(self._bench, place / archive.name, pack)):
            self._bench.wrong.append(f"{what}: it is not what staging makes")
        mounted = self._mountpoint / cache.relative_to(self._drive.cloud)
        runs = self.of_drive(what, kind, archive.name, FIRST_BATCH_S, cache=mounted)
        if any(run.origin != "cache" for run in runs):
            self._bench.wrong.append(f"{what}: it was not taken from the cache")
        shutil.rmtree(cache)

    def on_mount(self, run: Callable[[Path], T]) -> T:
        """What `run` gives, with `MyDrive` on a mount of which this machine knows no more than its root folder."""
        self._drive.new_machine()
        self._mountpoint.mkdir(parents=True, exist_ok=True)
        self._drive.mount(self._mountpoint)
        place = self._mountpoint / "MyDrive"
        try:
            # Colab's drive.mount, too, has read it when it returns ("timeout during initial read of root folder").
            list(place.iterdir())
            return run(place)
        finally:
            self._drive.unmount()


def _sized(kind: str, archive: Path) -> str:
    what, _, where = kind.partition(" on ")
    return f"{what} of {format_bytes(archive.stat().st_size)} on {where}"


def sparse_pack(bench: Bench, archive: Path, cache: Path) -> Path:
    """Put into a cache what staging makes of a zip of zeros, without its zeros.

    Before the first sample is written, the file has its final layout, and holes where samples will be.
    """
    place = bench.place()
    request = make_request(archive, local_dir=place, cache_dir=cache)
    data = stage_dataset(archive, local_dir=place, cache_dir=None, progress=False, streaming=True)
    assert data.arriving is not None
    pack = cache / f"{request.name}.h5"
    cache.mkdir(exist_ok=True)
    # It keeps the holes.
    arrival = data.arriving.arrival
    here = arrival.path if arrival.path.exists() else data.path
    subprocess.run(["cp", "--sparse=always", here, pack], check=True)
    data.cancel()
    with open_source(parse_source(archive), Opening(place, Progress()), unpack=False) as source:
        identity = source.identify().to_json()
    manifest = Manifest(
        pack.stat().st_size,
        BLOCK_BYTES,
        tuple(hashes_of_sparse(pack)),
        key=request.key,
        identity=identity,
        samples=dict(data.splits),
        written_by=version("colabstage"),
    )
    write_manifest(pack, manifest)
    shutil.rmtree(place)
    return pack


def is_what_staging_makes(bench: Bench, archive: Path, pack: Path) -> bool:
    """Whether a pack and its manifest are those that staging makes when it waits for everything."""
    made = stage_dataset(archive, local_dir=bench.place(), cache_dir=None, progress=False).path
    return filecmp.cmp(made, pack, shallow=False) and read_manifest(made) == read_manifest(pack)


def hashes_of_sparse(path: Path) -> Iterator[str]:
    """The hash of each block of a file, most of whose blocks are holes; those of holes are not read."""
    of_zeros: dict[int, str] = {}
    size = path.stat().st_size
    with path.open("rb") as file:
        handle, data = file.fileno(), 0
        for offset, length in block_ranges(size, BLOCK_BYTES):
            if data < offset:
                try:
                    data = os.lseek(handle, offset, os.SEEK_DATA)
                except OSError:
                    data = size
            if data < offset + length:
                yield hash_block(pread_exactly(handle, length, offset))
                continue
            if length not in of_zeros:
                of_zeros[length] = hash_block(bytes(length))
            yield of_zeros[length]


def first_batches(bench: Bench) -> None:
    """From a zip on the web, on a mount, and from its pack in a cache there, whatever their size."""
    table = FirstBatches(bench)
    for count in SIZES:
        archive = sparse_zip(table.cloud / f"{count}.zip", count)
        table.of_web(archive, whole=count == SIZES[0])
        table.of_drive(_sized("zip on the Drive", archive), "zip on the Drive", archive.name, FIRST_BATCH_S)
        table.of_cache(archive, checked=count == SIZES[0])
        archive.unlink()
    table.show_growth()


def small_files(bench: Bench) -> None:
    """From a folder of many files on a mount."""
    table = FirstBatches(bench)
    write_files(table.cloud / "files")
    pages: dict[str, Any] = {"listing_latency_s": LATENCY_S, "listing_per_entry_s": 0.0}
    # The second is what people report of a folder's first listing; nothing is promised of that.
    for listed, most, listing in (
        ("0.4 s a page of 1,000 names", FIRST_FILES_S, pages),
        ("0.3 s and 1 ms a name", None, {}),
    ):
        table.have(dataclasses.replace(table.knobs, **listing))
        table.of_drive(f"{FILES:,} files, listed at {listed}", listed, "files", most, image_size=(32, 32))


def write_files(folder: Path) -> None:
    """Write images of 32x32 in class folders of a thousand, each a page of a listing."""
    draw = np.random.default_rng(0)
    contents = []
    for pixels in draw.integers(0, 256, (50, 32, 32, 3), np.uint8):
        content = io.BytesIO()
        Image.fromarray(pixels).save(content, "JPEG")
        contents.append(content.getvalue())
    for number in range(FILES):
        file = folder / f"c{number // PAGE:03}" / f"{number:06}.jpg"
        if not number % PAGE:
            file.parent.mkdir(parents=True)
        file.write_bytes(contents[number % len(contents)])


def epochs(bench: Bench) -> None:
    """The first one, over the longest of fetching and training; later ones; a second session.

    What is lost before the first batch is the same in a long epoch, so a minute of the worst case is beside the others.
    """
    count = 2_000
    archive = sparse_zip(bench.cloud / "epoch.zip", count)
    minute = sparse_zip(bench.cloud / "minute.zip", 3 * count)
    batches = -(-count // BATCH)
    print(f"\nFirst epochs at {format_bytes(int(EPOCH_BYTES_PER_S))}/s: over the longest of their parts\n")
    print(
        f"{'fetching':>10}  {'training':>8}  {'measured':>20}  {'bare':>6}  {'over it':>20}  "
        f"{'first batch':>12}  {'mixing':>7}"
    )
    for part in (0.5, 1.0, 1.5):
        first_epoch(bench, archive, count, part)
    first_epoch(bench, minute, 3 * count, 1.0)
    with on_web(archive, 100e6) as url:
        streamed = bench.train(url, 0, epochs=4, cache=bench.home / "cache").seconds[1:]
        sessions = [(step_s, bench.train(url, step_s, epochs=1, cache=bench.home / "cache")) for step_s in (0.25, 0.75)]
        asked_s = ask_bare(url)
        whole = bench.train(url, 0, epochs=4, cache=bench.home / "cache", streaming=False).seconds[1:]
    later = statistics.median(streamed) / statistics.median(whole)
    print(f"\nlater epochs, once all is here, over those of a pack that was staged first: {later:.2f}")
    told = bench.check("second session, first batch", max(run.first_batch_s for _, run in sessions), SECOND_BATCH_S)
    print(f"second session, from a cache on this disk: first batch after {told} s")
    for step_s, again in sessions:
        train_s = step_s * batches
        what = f"second session, {train_s:.0f} s of training, longer than the copy takes: epoch over"
        told = bench.check(f"{what} training", again.seconds[0] / train_s, AGAIN_RATIO)
        print(f"{what} training {told}")
        bare = f"{what} training and a bare question whether the source is the same"
        print(f"{bare} {bench.check(bare, again.seconds[0] / (train_s + asked_s), AGAIN_RATIO)}")


def first_epoch(bench: Bench, archive: Path, count: int, part: float) -> None:
    """Train on an archive while it comes, for `part` of the time that it takes, and print a row."""
    size, batches = archive.stat().st_size, -(-count // BATCH)
    fetch_s = size / EPOCH_BYTES_PER_S
    step_s = part * fetch_s / batches
    with on_web(archive, EPOCH_BYTES_PER_S) as url:
        bare_s = train_bare(url, size, batches, step_s)
        run = bench.train(url, step_s, epochs=1)
    train_s = step_s * batches
    what, most_s = f"epoch 1, {fetch_s:.0f} s of fetching, {train_s:.0f} s of training", max(fetch_s, train_s)
    ratio = bench.check(what, run.seconds[0] / most_s, EPOCH_RATIO)
    to_bare = bench.check(f"{what}, over a bare client", run.seconds[0] / bare_s, EPOCH_RATIO)
    print(
        f"{fetch_s:8.1f} s  {train_s:6.1f} s  {ratio:>20}  {bare_s / most_s:6.2f}  "
        f"{to_bare:>20}  {run.first_batch_s:10.1f} s  {mixing_of(run.labels, BATCH):7.2f}"
    )


def limited(bench: Bench) -> None:
    """A pack on the web that is ten times what the disk may hold: an epoch, its bytes, the disk; and continuing."""
    rate = 100e6
    archive = sparse_zip(bench.cloud / "limited.zip", LIMITED)
    pack = stage_dataset(archive, local_dir=bench.place(), cache_dir=None, progress=False).path
    size = pack.stat().st_size
    limit, batches, fetch_s = size // 10, -(-LIMITED // BATCH), size / rate
    print(f"\n{format_bytes(size)} on the web with disk_limit={format_bytes(limit)}, {format_bytes(int(rate))}/s\n")
    files = {pack.name: pack, manifest_path(pack).name: manifest_path(pack)}
    with serve_apart(files, WebKnobs(latency_s=LATENCY_S, total_bytes_per_s=rate)) as address:
        url, place = f"{address}/{pack.name}", bench.place()
        with disk_sampled(place) as taken:
            dataset = dataset_h5(url, disk_limit=limit, local_dir=place, return_index=True)
            part = dataset.reader.arrival
            assert isinstance(part, PartialPack)
            loader = make_loader(dataset, BATCH)
            for number, step_s in enumerate((0.5 * fetch_s / batches, fetch_s / batches)):
                kept, before, began = part.figures["here"], part.figures["fetched"], time.perf_counter()
                for _ in loader:
                    time.sleep(step_s)
                seconds = time.perf_counter() - began
                what = f"{step_s * batches:.0f} s of training"
                told = bench.check(
                    f"data ten times the disk, {what}", seconds / max(fetch_s, step_s * batches), EPOCH_RATIO
                )
                # An epoch fetches for the next one too. It begins with what the one before has fetched, so the second
                # is charged with neither; the first pays for what it fetches ahead.
                ahead = part.figures["here"] - kept if number else 0
                more = (part.figures["fetched"] - before - ahead) / (size - kept)
                print(f"epoch with {what}: {told}")
                told = bench.check(f"bytes fetched over those that were not here, {what}", more, FETCHED_RATIO)
                print(f"bytes fetched over those that were not here: {told}")
            going = iter(loader)
            for _ in range(20):
                next(going)
            state = loader.state_dict()
            wanted = next(going)[1]
            # As after a kill: an iterator that is left alive would go on fetching, and share the line with what comes.
            del going, loader
            part.close()
        told = bench.check("most that the disk held, over the limit", max(taken) / limit, 1.0)
        print(f"most that the disk held, over the limit: {told}")
        began = time.perf_counter()
        loader = make_loader(dataset_h5(url, disk_limit=limit, local_dir=bench.place(), return_index=True), BATCH)
        loader.load_state_dict(state)
        is_next = bool((next(iter(loader))[1] == wanted).all())
        told = bench.check("continuing with nothing local", time.perf_counter() - began, RESUME_S)
        print(
            f"continuing with nothing local: the next batch after {told} s, {'the right' if is_next else 'ANOTHER'} one"
        )
        if not is_next:
            bench.wrong.append("continuing with nothing local: another batch came next")


def shards(bench: Bench) -> None:
    """A zip on the web that is larger than the disk may be: packed in shards, published, dropped, and read."""
    rate = 100e6
    archive = sparse_zip(bench.cloud / "shards.zip", SHARDED, SHARDED_SHAPE)
    size, cache, place = archive.stat().st_size, bench.home / "published", bench.place()
    limit, fetch_s = size // SHARDED_PART, size / rate
    limited, each = f"disk_limit={format_bytes(limit)}", format_bytes(size // SHARDED)
    print(f"\n{format_bytes(size)} of {each} each on the web, packed with {limited}, {format_bytes(int(rate))}/s\n")
    with on_web(archive, rate) as url, disk_sampled(place) as taken:
        began = time.perf_counter()
        data = stage_dataset(url, disk_limit=limit, local_dir=place, cache_dir=cache, progress=False)
        staged_s = time.perf_counter() - began
        count = len(list(cache.glob("*.h5")))
        print(
            f"{count} shards packed and published after {staged_s:.1f} s: {staged_s / fetch_s:.2f} times the fetching"
        )
        assert data.part is not None
        loader = data.loader("train", BATCH)
        for epoch in ("first", "second"):
            began, first, seen = time.perf_counter(), 0.0, 0
            for _, y in loader:
                first = first or time.perf_counter() - began
                seen += len(y)
            seconds = time.perf_counter() - began
            print(f"{epoch} epoch from the cache on this disk: {seconds:.1f} s, its first batch after {first:.2f} s")
            if seen != SHARDED:
                bench.wrong.append(f"shards, {epoch} epoch: {seen:,} samples instead of {SHARDED:,}")
        data.part.close()
    told = bench.check("shards, most that the disk held, over the limit", max(taken) / limit, 1.0)
    print(f"most that the disk held, over the limit: {told}")
    shutil.rmtree(cache)
    archive.unlink()


def learning(_: Bench) -> None:
    """Top-1 of two layers on classes that come one after the other, by the order of the first epoch."""
    print("\nTop-1 of a small network, in the order of the first epoch and after a second, shuffled one; 5 seeds\n")
    print(f"{'classes':>8}  {'order':<28}  {'mixing':>7}  {'first epoch':>16}  {'second':>7}")
    for classes, samples in ((10, 4_000), (100, 8_000)):
        found: dict[str, list[tuple[float, ...]]] = {}
        for seed in range(5):
            draw = np.random.default_rng(seed)
            labels = np.arange(samples) * classes // samples
            x = draw.normal(size=(classes, 24))[labels] + draw.normal(size=(samples, 24))
            drawn = draw.permutation(samples)
            held, rest = drawn[: samples // 5], np.sort(drawn[samples // 5 :])
            # Of eight samples of 100 kB each, two of which may be fetched together.
            units = np.arange(len(rest)) // 8
            window = even_window(units, labels[rest], window_units(len(rest) // 8), FIRST_UNITS, together=2)
            orders = {
                "full shuffle": draw.permutation(len(rest)),
                "as it arrives": UnitOrder(units, window, None, FIRST_UNITS, together=2).rows(seed, 0),
                "as the archive has it": np.arange(len(rest)),
            }
            for name, order in orders.items():
                both = (order, np.concatenate([order, draw.permutation(len(rest))]))
                results = [_top_1(x, labels, rest[rows], held, classes) for rows in both]
                found.setdefault(name, []).append((mixing_of(labels[rest[order]], 32), *results))
        for name, values in found.items():
            mixing, first, second = np.mean(values, axis=0)
            spread = np.std(values, axis=0)[1]
            print(f"{classes:>8}  {name:<28}  {mixing:7.2f}  {first:9.3f} ± {spread:.3f}  {second:7.3f}")


def _top_1(x: np.ndarray, labels: np.ndarray, order: np.ndarray, held: np.ndarray, classes: int) -> float:
    draw = np.random.default_rng(0)
    first, second = draw.normal(size=(24, 32)) / 5, draw.normal(size=(32, classes)) / 6
    for start in range(0, len(order), 32):
        rows = order[start : start + 32]
        hidden = np.maximum(x[rows] @ first, 0)
        share = np.exp(hidden @ second)
        share /= share.sum(axis=1, keepdims=True)
        share[np.arange(len(rows)), labels[rows]] -= 1
        slope = (share @ second.T) * (hidden > 0) / len(rows)
        second -= 0.3 * hidden.T @ share / len(rows)
        first -= 0.3 * x[rows].T @ slope
    return float(((np.maximum(x[held] @ first, 0) @ second).argmax(axis=1) == labels[held]).mean())


PARTS = {part.__name__: part for part in (first_batches, small_files, epochs, limited, shards, learning)}


def main() -> int:
    """Measure and print; 1 when a promise is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; by default all")
    chosen = parser.parse_args().parts
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; expected some of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=MEMORY) as cloud:
        bench = Bench(Path(folder), Path(cloud))
        for name in chosen or PARTS:
            PARTS[name](bench)
    missed = judge(bench.promises)
    for line in bench.wrong:
        print(f"MISS  {line}")
    return int(missed or bool(bench.wrong))


if __name__ == "__main__":
    sys.exit(main())
