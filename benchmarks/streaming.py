"""Train on data that still arrives, or that is ten times what the disk may hold: first batches, epochs, what is learnt.

    python -m benchmarks streaming

A web server on loopback answers after 0.4 s and sends at a set rate, whoever asks; the Drive is the simulated one. Zips
hold arrays in two class folders, one class after the other, as people zip them; they are sparse on the disk, so that
their size costs nothing. The model is a pause of a set length for each batch. Beside each first epoch stands what
`forecast_stream` says of it.
"""

from __future__ import annotations

import dataclasses
import io
import shutil
import statistics
import struct
import sys
import tempfile
import time
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from benchmarks._timeline import Timeline
from colabstage import stage_dataset
from colabstage.errors import NotEnoughSpaceError
from colabstage.h5.manifest import manifest_path
from colabstage.io.units import format_bytes
from colabstage.load.arrival import UnitOrder, mixing_of
from colabstage.load.dataset import dataset_h5
from colabstage.load.epoch import Shard
from colabstage.load.loader import make_loader
from colabstage.load.partial import PartialPack
from colabstage.pack.arrival import FIRST_UNITS, stretch_bytes, window_units
from colabstage.simulate.drive import SimulatedDrive
from colabstage.simulate.knobs import DriveKnobs
from colabstage.simulate.streaming import StreamFacts, forecast_stream
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import serve_apart
from tests.support.staged import disk_sampled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks._timeline import Seconds

BATCH = 64
LATENCY_S = 0.4
SAMPLE = (100, 1000)
ROUNDS = 3
FILES, PAGE = 100_000, 1_000
FIRST_BATCH_S, FIRST_FILES_S, SECOND_BATCH_S = 3.0, 5.0, 2.0
EPOCH_RATIO, AGAIN_RATIO, FETCHED_RATIO, RESUME_S = 1.05, 1.03, 1.02, 2.0
LIMITED = 10_000
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_MOST, _MOST_MEMBERS = 2**32 - 1, 2**16 - 1
_DATE = (1 << 5) | 1


def sparse_zip(path: Path, count: int) -> Path:
    """Write a zip of `count` arrays of zeros, whose bytes are holes."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": SAMPLE})
    content = head.getvalue() + bytes(SAMPLE[0] * SAMPLE[1])
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
    mixing: float | None
    parts: Seconds | None = None


class Bench:
    """A place on the disk, and the promises that were missed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.missed: list[str] = []
        self._runs = 0

    def check(self, what: str, value: float, most: float) -> str:
        """A figure, beside what was promised of it."""
        if value > most:
            self.missed.append(f"{what}: {value:.2f}, promised {most:g}")
        return f"{value:.2f} (at most {most:g})"

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
        timed: bool = False,
        image_size: tuple[int, int] | None = None,
    ) -> Epoch:
        """Stage, and train for so many epochs; 0 for no more than the first batch. `timed`: say where the time goes."""
        began, place = time.perf_counter(), self.place()
        data = stage_dataset(
            source, local_dir=place, cache_dir=cache, progress=False, streaming=streaming, image_size=image_size
        )
        timeline = Timeline(data, began) if timed else None
        loader = data.loader("train", BATCH)
        first, batches, parts = 0.0, 0, None
        seconds: list[float] = []
        labels: list[np.ndarray] = []
        for epoch in range(max(1, epochs)):
            for _, y in loader if timeline is None else timeline.watch(loader):
                first = first or time.perf_counter() - began
                if not epochs:
                    break
                labels += [y.numpy()] if not epoch else []
                batches += not epoch
                time.sleep(step_s)
            seconds.append(time.perf_counter() - began - sum(seconds))
            parts = timeline.seconds() if timeline is not None else None
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
        return Epoch(first, seconds, batches, found, loader.plan.order.mixing, parts)


@contextmanager
def on_web(archive: Path, rate: float) -> Iterator[str]:
    """The address of a file on a server of its own."""
    with serve_apart({archive.name: archive}, WebKnobs(latency_s=LATENCY_S, total_bytes_per_s=rate)) as address:
        yield f"{address}/{archive.name}"


def first_batches(bench: Bench) -> None:
    """From a zip on the web and on a mount, whatever its size; from a folder."""
    print(f"First shuffled batch of {BATCH}; latency {LATENCY_S} s, 100 MB/s\n")
    print(f"{'source':<42}  {'streaming=True':>24}  {'streaming=False':>16}")
    # It would make up the MD5 of a file of gigabytes first, which Google's has.
    knobs = DriveKnobs(attributes=False, stream_bytes_per_s=100e6)
    drive = SimulatedDrive(bench.home / "drive", knobs=knobs)
    cloud, mountpoint = drive.cloud / "MyDrive", bench.home / "content" / "drive"

    def show(what: str, seconds: list[float], most: float, whole: str = "not run") -> None:
        told = bench.check(f"first batch, {what}", statistics.median(seconds), most)
        print(f"{what:<42}  {told + ' s':>24}  {whole:>16}", flush=True)

    for count in (2_000, 20_000, 100_000, 200_000):
        archive = sparse_zip(cloud / f"{count}.zip", count)
        size = format_bytes(archive.stat().st_size)
        with on_web(archive, 100e6) as url:
            took = [bench.train(url).first_batch_s for _ in range(ROUNDS)]
            whole = f"{bench.train(url, streaming=False).first_batch_s:.1f} s" if count == 2_000 else "not run"
        show(f"zip of {size} on the web", took, FIRST_BATCH_S, whole)
        try:
            took = [on_mount(bench, drive, mountpoint, archive.name) for _ in range(ROUNDS)]
        except NotEnoughSpaceError as error:
            # Drive's client keeps what it reads on the same disk, so it takes three times the size, if nearly all of it
            # is holes.
            print(f"zip of {size} on the Drive: not run: {error}")
        else:
            show(f"zip of {size} on the Drive", took, FIRST_BATCH_S)
        archive.unlink()
    write_files(cloud / "files")
    pages: dict[str, Any] = {"listing_latency_s": LATENCY_S, "listing_per_entry_s": 0.0}
    for title, listing in (
        ("0.4 s a page of 1,000 names", pages),
        ("0.3 s and 1 ms a name", {}),
    ):
        drive = SimulatedDrive(bench.home / "drive", knobs=dataclasses.replace(knobs, **listing))
        took = [on_mount(bench, drive, mountpoint, "files", image_size=(32, 32)) for _ in range(ROUNDS)]
        what = f"{FILES:,} files, listed at {title}"
        if listing:
            show(what, took, FIRST_FILES_S)
        else:
            # What people report of a folder's first listing; nothing is promised of that.
            print(f"{what:<42}  {f'{statistics.median(took):.2f} s':>24}  {'not run':>16}")


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


def on_mount(
    bench: Bench, drive: SimulatedDrive, mountpoint: Path, name: str, image_size: tuple[int, int] | None = None
) -> float:
    """Seconds to the first batch from a Drive that this machine has never read."""
    drive.new_machine()
    mountpoint.mkdir(parents=True, exist_ok=True)
    drive.mount(mountpoint)
    try:
        return bench.train(mountpoint / "MyDrive" / name, image_size=image_size).first_batch_s
    finally:
        drive.unmount()


def epochs(bench: Bench) -> None:
    """The first one, over the longest of fetching and training; later ones; a second session."""
    count, rate = 2_000, 10e6
    archive = sparse_zip(bench.home / "epoch.zip", count)
    size = archive.stat().st_size
    fetch_s, batches = size / rate, -(-count // BATCH)
    print(f"\nFirst epoch of {format_bytes(size)} at {format_bytes(int(rate))}/s: over the longest of its parts\n")
    print(f"{'training':>10}  {'measured':>20}  {'forecast':>9}  {'first batch':>12}  {'forecast':>9}  {'mixing':>7}")
    with on_web(archive, rate) as url:
        for part in (0.5, 1.0, 1.5):
            step_s = part * fetch_s / batches
            run = bench.train(url, step_s, epochs=1, timed=True)
            unit_bytes = stretch_bytes(size, far=True)
            facts = StreamFacts(
                samples=count,
                sample_bytes=size / count,
                network_bytes_per_s=rate,
                latency_s=LATENCY_S,
                step_s=step_s,
                batch_size=BATCH,
                unit_bytes=unit_bytes,
                window_units=window_units(size // unit_bytes),
                first_units=FIRST_UNITS,
                connections=16,
                # Both ends of the archive, at once.
                opening_s=LATENCY_S,
            )
            said = forecast_stream(facts, epochs=1)
            train_s = step_s * batches
            ratio = bench.check(
                f"epoch 1, {train_s:.0f} s of training", run.seconds[0] / max(fetch_s, train_s), EPOCH_RATIO
            )
            print(
                f"{train_s:8.1f} s  {ratio:>20}  {said.epochs[0].ratio:9.2f}  {run.first_batch_s:10.1f} s  "
                f"{said.first_batch_s:7.1f} s  {mixing_of(run.labels, BATCH):7.2f}"
            )
            print(f"            {run.parts}")
    with on_web(archive, 100e6) as url:
        streamed = bench.train(url, 0, epochs=4, cache=bench.home / "cache").seconds[1:]
        again = bench.train(url, 0.25, epochs=1, cache=bench.home / "cache")
        whole = bench.train(url, 0, epochs=4, cache=bench.home / "cache", streaming=False).seconds[1:]
    later = statistics.median(streamed) / statistics.median(whole)
    print(f"\nlater epochs, once all is here, over those of a pack that was staged first: {later:.2f}")
    told = bench.check("second session, first batch", again.first_batch_s, SECOND_BATCH_S)
    print(f"second session, from a cache on this disk: first batch after {told} s")
    over = again.seconds[0] / (0.25 * batches)
    told = bench.check("second session, epoch over training", over, AGAIN_RATIO)
    print(f"second session, {0.25 * batches:.0f} s of training, longer than the copy takes: epoch over training {told}")


def limited(bench: Bench) -> None:
    """A pack on the web that is ten times what the disk may hold: an epoch, its bytes, the disk; and going on."""
    rate = 100e6
    archive = sparse_zip(bench.home / "limited.zip", LIMITED)
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
            part.close()
        told = bench.check("most that the disk held, over the limit", max(taken) / limit, 1.0)
        print(f"most that the disk held, over the limit: {told}")
        began = time.perf_counter()
        loader = make_loader(dataset_h5(url, disk_limit=limit, local_dir=bench.place(), return_index=True), BATCH)
        loader.load_state_dict(state)
        is_next = bool((next(iter(loader))[1] == wanted).all())
        told = bench.check("going on with nothing here", time.perf_counter() - began, RESUME_S)
        print(f"going on with nothing here: the next batch after {told} s, {'the right' if is_next else 'ANOTHER'} one")
        if not is_next:
            bench.missed.append("going on with nothing here: another batch came next")


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
            units = np.arange(len(rest)) // 16
            orders = {
                "full shuffle": draw.permutation(len(rest)),
                "as it arrives": UnitOrder(units, window_units(len(rest) // 16), seed, first_units=FIRST_UNITS).rows(
                    0, Shard()
                ),
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


def main() -> int:
    """Measure and print; 1 when a promise is missed."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        chosen = sys.argv[1:]
        for part in (first_batches, epochs, limited, learning):
            if not chosen or part.__name__ in chosen:
                part(bench)
    print(*(f"\nMISSED: {line}" for line in bench.missed), sep="")
    return bool(bench.missed)


if __name__ == "__main__":
    sys.exit(main())
