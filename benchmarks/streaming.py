"""Train on a zip that still arrives: time to the first shuffled batch against its size, and the first epoch with it.

    python -m benchmarks streaming

A web server on loopback answers after 0.4 s and sends at a set rate, whoever asks. The zip holds arrays in two class
folders, one class after the other, as people zip them; it is sparse on the disk, so that its size costs nothing. The
model is a pause of a set length for each batch. Beside each epoch stands what `forecast_stream` says of it.
"""

from __future__ import annotations

import io
import shutil
import statistics
import struct
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from colabstage import stage_dataset
from colabstage.io.units import format_bytes
from colabstage.load.arrival import mixing_of
from colabstage.pack.packing_order import window_units
from colabstage.simulate.streaming import StreamFacts, forecast_stream
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import serve_apart

BATCH = 64
LATENCY_S = 0.4
SAMPLE = (100, 1000)
ROUNDS = 3
SMALL = 1_000
FIRST_BATCH_S = 3.0
EPOCH_RATIO = 1.05
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
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
            fields = (20, 20, 0, 0, 0, _DATE, checksum, size, size, len(name), 0, 0, 0, 0, 0, end)
            central.write(_CENTRAL.pack(b"PK\1\2", *fields) + name)
            end += _LOCAL.size + len(name) + size
        file.seek(end)
        file.write(central.getvalue())
        file.write(_END.pack(b"PK\5\6", 0, 0, count, count, central.tell(), end, 0))
    return path


@dataclass(frozen=True)
class Epoch:
    """What one run gave."""

    first_batch_s: float
    seconds: float
    batches: int
    labels: np.ndarray


def train(url: str, place: Path, step_s: float, *, streaming: bool, only_first: bool = False) -> Epoch:
    """Stage, and train for an epoch, or only until its first batch."""
    began = time.perf_counter()
    data = stage_dataset(url, local_dir=place, cache_dir=None, progress=False, streaming=streaming)
    first, labels = 0.0, []
    for _, y in data.loader("train", BATCH):
        first = first or time.perf_counter() - began
        if only_first:
            break
        labels.append(y.numpy())
        time.sleep(step_s)
    seconds = time.perf_counter() - began
    if only_first:
        data.cancel()
    else:
        data.wait(progress=False)
    shutil.rmtree(place)
    return Epoch(first, seconds, len(labels), np.concatenate([*labels, np.zeros(0, np.int64)]))


def main() -> int:
    """Measure and print; 1 when a promise is missed."""
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        print(
            f"First shuffled batch of {BATCH} from a zip on the web, latency {LATENCY_S} s, 100 MB/s, {ROUNDS} rounds\n"
        )
        print(f"{'zip':>8}  {'streaming=True':>16}  {'streaming=False':>16}")
        for count in (SMALL, 20_000):
            archive = sparse_zip(place / f"{count}.zip", count)
            size = archive.stat().st_size
            with serve_apart(
                {archive.name: archive}, WebKnobs(latency_s=LATENCY_S, total_bytes_per_s=100e6)
            ) as address:
                url = f"{address}/{archive.name}"
                found = [
                    train(url, place / f"first{count}{turn}", 0, streaming=True, only_first=True).first_batch_s
                    for turn in range(ROUNDS)
                ]
                whole = "not run"
                if count == SMALL:
                    whole = f"{train(url, place / 'whole', 0, streaming=False, only_first=True).first_batch_s:.1f} s"
            median = statistics.median(found)
            print(f"{format_bytes(size):>8}  {median:14.1f} s  {whole:>16}")
            if median > FIRST_BATCH_S:
                missed.append(f"first batch of {format_bytes(size)} after {median:.1f} s, promised {FIRST_BATCH_S:g} s")
        count, rate = 1_000, 10e6
        archive = sparse_zip(place / "epoch.zip", count)
        size = archive.stat().st_size
        print(f"\nFirst epoch of {format_bytes(size)} at {format_bytes(int(rate))}/s: over the longest of its parts\n")
        print(
            f"{'training':>10}  {'measured':>9}  {'forecast':>9}  {'first batch':>12}  {'forecast':>9}  {'mixing':>7}"
        )
        with serve_apart({archive.name: archive}, WebKnobs(latency_s=LATENCY_S, total_bytes_per_s=rate)) as address:
            for part in (0.5, 1.0):
                fetch_s, batches = size / rate, -(-count // BATCH)
                step_s = part * fetch_s / batches
                run = train(f"{address}/{archive.name}", place / f"epoch{part}", step_s, streaming=True)
                facts = StreamFacts(
                    samples=count,
                    sample_bytes=size / count,
                    network_bytes_per_s=rate,
                    latency_s=LATENCY_S,
                    step_s=step_s,
                    batch_size=BATCH,
                    window_units=window_units(size // (8 * 2**20)),
                    opening_s=4 * LATENCY_S,
                )
                said = forecast_stream(facts, epochs=1)
                ratio = run.seconds / max(fetch_s, step_s * batches)
                if ratio > EPOCH_RATIO:
                    training = f"{step_s * batches:.0f} s of training"
                    missed.append(f"epoch 1 with {training}: {ratio:.2f}, promised {EPOCH_RATIO}")
                forecast, mixing = said.epochs[0].ratio, mixing_of(run.labels, BATCH)
                print(
                    f"{step_s * batches:8.1f} s  {ratio:9.2f}  {forecast:9.2f}  {run.first_batch_s:10.1f} s  "
                    f"{said.first_batch_s:7.1f} s  {mixing:7.2f}"
                )
    print(*(f"\nMISSED: {line}" for line in missed))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
