"""Train from a bucket that is far away, beside LitData and MosaicML Streaming: first batch, epochs, a disk for a part.

    python -m benchmarks peers_streaming

moto's S3 server on loopback stands for the bucket: it answers after 0.4 s, and sends 100 MB/s to all who ask together.
Every library has the same images in its own format, as raw pixels. Each run is a fresh process with an empty local
folder; it trains for two epochs, shuffled. The peers have the shards, workers and read-ahead with which they were
quickest in the first epoch, of those tried; `_peers.py` says how to build their environment.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import _peers
from benchmarks._bucket import BUCKET, Bucket, far_bucket
from benchmarks._pixel_data import Shape, write_samples
from colabstage.io.units import format_bytes
from colabstage.pack.run import pack_dataset
from tests.support.staged import disk_sampled

SHAPE = Shape("images of 128x128", 10_240, (128, 128, 3))
LATENCY_S, RATE = 0.4, 100e6
LIMIT_PART = 5
ROUNDS = 3
OURS = "colabstage"
# None beyond two, since there are two cores; `ahead` is in shards for one, in samples for the other.
TRIED: dict[str, list[dict[str, Any]]] = {
    "LitData": [
        {"shard": 64_000_000, "workers": 2, "ahead": 2},
        {"shard": 8_000_000, "workers": 2, "ahead": 2},
        {"shard": 8_000_000, "workers": 2, "ahead": 8},
        {"shard": 8_000_000, "workers": 4, "ahead": 4},
    ],
    "MosaicML Streaming": [
        {"shard": 64_000_000, "workers": 2, "ahead": None, "shuffle": "py1e"},
        {"shard": 8_000_000, "workers": 2, "ahead": None, "shuffle": "py1e"},
        {"shard": 8_000_000, "workers": 2, "ahead": 1_280, "shuffle": "py1e"},
        {"shard": 8_000_000, "workers": 2, "ahead": 1_280, "shuffle": "py2s"},
        {"shard": 8_000_000, "workers": 4, "ahead": 640, "shuffle": "py2s"},
    ],
}
_RUN_S = 180.0


class Bench:
    """The bucket, a folder with the samples, and a place for each run."""

    def __init__(self, home: Path, bucket: Bucket) -> None:
        self.home, self._bucket = home, bucket
        self._runs = count()
        self.nbytes = SHAPE.samples * SHAPE.x_bytes

    def store(self, library: str, shard: int) -> None:
        """Have a library's own format in the bucket."""
        folder = self.home / "data"
        made = folder / ("litdata" if library == "LitData" else "mosaic")
        _ask(library, {"library": library, "folder": str(folder), "shape": SHAPE.to_dict(), "shard": shard}, {})
        self._bucket.put(made, f"{library}-{shard}")
        shutil.rmtree(made)

    def store_own(self) -> None:
        """Have colabstage's pack in the bucket, with its manifest."""
        folder = self.home / "own"
        pack_dataset(self.home / "data", folder / "pack.h5", splits={"train": 1.0}, progress=False)
        self._bucket.put(folder, OURS)
        shutil.rmtree(folder)

    def run(self, library: str, limit: int | None, settings: dict[str, Any]) -> dict[str, Any]:
        """Train in a fresh process; what it says, with the bytes that it fetched and the most that it kept."""
        place = self.home / f"local-{next(self._runs)}"
        place.mkdir()
        prefix = OURS if library == OURS else f"{library}-{settings['shard']}"
        asked = {"address": f"s3://{BUCKET}/{prefix}", "place": str(place), "limit": limit, "shape": SHAPE.to_dict()}
        before = self._bucket.sent()
        with disk_sampled(place) as taken:
            said = _ask(library, {"library": library, **settings, **asked}, self._bucket.login)
        shutil.rmtree(place)
        return {**said, "fetched": self._bucket.sent() - before, "peak": max(taken)}


def _ask(library: str, run: dict[str, Any], login: dict[str, str]) -> dict[str, Any]:
    python = sys.executable if library == OURS else _peers.PLACE / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [python, "-m", "benchmarks._far_peers", json.dumps(run)],
        cwd=Path(__file__).parent.parent,
        env={**environment, **login},
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError("\n".join(done.stderr.strip().splitlines()[-3:]))
    if not run.get("address"):
        return {}
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if said["wrong"]:
        msg = f"{said['wrong']:,} rows of two epochs were not seen exactly once"
        raise RuntimeError(msg)
    return said


def _told(settings: dict[str, Any]) -> str:
    parts = [f"shards of {format_bytes(settings['shard'])}", f"{settings['workers']} workers"]
    parts += [] if settings["ahead"] is None else [f"{settings['ahead']:,} ahead"]
    return ", ".join(parts + ([settings["shuffle"]] if "shuffle" in settings else []))


def _line(title: str, runs: list[dict[str, Any]], nbytes: int) -> str:
    first, one, two = (
        statistics.median(values)
        for values in (
            [run["first_batch_s"] for run in runs],
            [run["epochs_s"][0] for run in runs],
            [run["epochs_s"][1] for run in runs],
        )
    )
    fetched, peak = (max(run[name] for run in runs) for name in ("fetched", "peak"))
    return (
        f"{title:<58}  {first:7.2f} s  {one:7.2f} s  {two:7.2f} s  {fetched / nbytes:7.2f} x  {format_bytes(peak):>8}"
    )


def compare(bench: Bench, limit: int | None) -> None:
    """Try the peers' settings once each, then run the best of each in turns with colabstage."""
    title = "all of it may stay here" if limit is None else f"the local disk may hold {format_bytes(limit)} of it"
    print(f"\n{title}\n\n{'':<58}  {'first batch':>9}  {'epoch 1':>9}  {'epoch 2':>9}  {'fetched':>9}  {'peak':>8}")
    chosen: dict[str, dict[str, Any]] = {OURS: {}}
    for library, tried in TRIED.items():
        found: list[tuple[float, dict[str, Any]]] = []
        for settings in tried:
            try:
                run = bench.run(library, limit, settings)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"tried: {library}, {_told(settings)}: {str(error).splitlines()[-1]}")
                continue
            print(_line(f"tried: {library}, {_told(settings)}", [run], bench.nbytes), flush=True)
            found.append((run["epochs_s"][0], settings))
        if found:
            chosen[library] = min(found, key=lambda pair: pair[0])[1]
    runs: dict[str, list[dict[str, Any]]] = {library: [] for library in chosen}
    for _ in range(ROUNDS):
        for library, settings in chosen.items():
            runs[library].append(bench.run(library, limit, settings))
    print()
    for library, done in runs.items():
        print(_line(library, done, bench.nbytes))


def main() -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder, far_bucket(LATENCY_S, RATE) as bucket:
        bench = Bench(Path(folder), bucket)
        (bench.home / "data").mkdir()
        write_samples(bench.home / "data", SHAPE)
        print(
            f"{SHAPE.samples:,} {SHAPE.title} pixels, {format_bytes(bench.nbytes)}, in a bucket (moto's) that answers "
            f"after {LATENCY_S} s and sends {format_bytes(int(RATE))}/s. Of {ROUNDS} rounds the median, and the most "
            "fetched and kept, over two epochs; a size of 1.00 x is that of the pixels."
        )
        bench.store_own()
        problem = _peers.why_no_environment()
        if problem is not None:
            print(f"LitData and MosaicML Streaming are not measured: {problem}")
            TRIED.clear()
        for library, tried in TRIED.items():
            for shard in sorted({settings["shard"] for settings in tried}):
                bench.store(library, shard)
        for limit in (None, bench.nbytes // LIMIT_PART):
            compare(bench, limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
