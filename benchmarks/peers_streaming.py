"""Train from a bucket that is far away, beside LitData, MosaicML Streaming and Lance: first batch, epochs, a limit.

    python -m benchmarks peers_streaming

moto's S3 server on loopback stands for the bucket: it answers after 0.4 s, and sends 100 MB/s to all who ask together.
Every library has the same images in its own format, as raw pixels. Each run is a fresh process with an empty local
folder; it trains for two epochs, shuffled. The peers have the shards, workers, read-ahead and shuffling with which they
were quickest in the first epoch, of those tried; `_peers.py` says how to build their environment. Under a limit these
are settings with which they need few shards at once, and shuffle less: by default MosaicML Streaming wants nearly all
of them for each batch. A run that is not done after 45 s is ended, and what it had done by then is told.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import _peers
from benchmarks._bucket import BUCKET, Bucket, far_bucket
from benchmarks._pixel_data import Shape, write_samples
from colabstage.io.units import format_bytes, format_count, format_duration
from colabstage.pack.run import pack_dataset
from tests.support.staged import disk_sampled

SHAPE = Shape("images of 128x128", 7_680, (128, 128, 3))
LATENCY_S, RATE = 0.4, 100e6
LIMIT_PART = 5
ROUNDS = 3
OURS = "colabstage"
# None beyond two workers, since there are two cores; `ahead` is in shards for one, in samples for the other.
TRIED: dict[str, list[dict[str, Any]]] = {
    "LitData": [
        {"shard": 64_000_000, "workers": 2, "ahead": 2},
        {"shard": 8_000_000, "workers": 2, "ahead": 2},
        {"shard": 8_000_000, "workers": 2, "ahead": 8},
    ],
    "MosaicML Streaming": [
        {"shard": 64_000_000, "workers": 2, "ahead": None, "shuffle": "py1e"},
        {"shard": 8_000_000, "workers": 2, "ahead": None, "shuffle": "py1e"},
        {"shard": 8_000_000, "workers": 2, "ahead": 1_280, "shuffle": "py1e"},
    ],
    "Lance": [{"shard": 0, "workers": workers} for workers in (0, 2)],
}
# Under a limit, which Lance has not, what wants few shards here at once: of other settings none finished an epoch.
TRIED_LIMITED: dict[str, list[dict[str, Any]]] = {
    "LitData": [
        {"shard": 8_000_000, "workers": 2, "ahead": 2},
        {"shard": 8_000_000, "workers": 1, "ahead": 2},
        {"shard": 2_000_000, "workers": 2, "ahead": 4},
    ],
    "MosaicML Streaming": [
        {"shard": 8_000_000, "workers": 2, "ahead": None, "shuffle": "py2s", "nodes": 1},
        {"shard": 8_000_000, "workers": 2, "ahead": 160, "shuffle": "py2s", "nodes": 1},
        {"shard": 8_000_000, "workers": 2, "ahead": None, "shuffle": "py1e", "block": 640},
    ],
}
# A run, with its imports and both epochs; and writing a library's format.
_RUN_S, _STORE_S = 45.0, 300.0
EPOCHS = 2


class Bench:
    """The bucket, a folder with the samples, and a place for each run."""

    def __init__(self, home: Path, bucket: Bucket) -> None:
        self.home, self._bucket = home, bucket
        self._runs = count()
        self.nbytes = SHAPE.samples * SHAPE.x_bytes

    def store(self, library: str, shard: int) -> None:
        """Have a library's own format in the bucket."""
        folder = self.home / "data"
        before = {*folder.iterdir()}
        _ask(library, {"library": library, "folder": str(folder), "shape": SHAPE.to_dict(), "shard": shard}, {})
        (made,) = {*folder.iterdir()} - before
        # Lance's address ends in the folder's name, as it wants it.
        self._bucket.put(made, f"{library}-{shard}/{made.name}" if library == "Lance" else f"{library}-{shard}")
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
    trains = "address" in run
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as problems:
        process = subprocess.Popen(
            [python, "-m", "benchmarks._far_peers", json.dumps(run)],
            cwd=Path(__file__).parent.parent,
            env={**environment, **login},
            stdout=out,
            stderr=problems,
            start_new_session=True,
        )
        try:
            code = process.wait(_RUN_S if trains else _STORE_S)
        except subprocess.TimeoutExpired:
            code = 0
        finally:
            # Its workers with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        problems.seek(0)
        if code:
            raise RuntimeError("\n".join(problems.read().strip().splitlines()[-3:]))
        lines = [line for line in out.read().splitlines() if line.startswith("{")]
    if not trains:
        return {}
    said: dict[str, Any] = json.loads(lines[-1]) if lines else {"first_batch_s": None, "epochs_s": [], "wrong": 0}
    if said["wrong"]:
        msg = f"{said['wrong']:,} rows of two epochs were not seen exactly once"
        raise RuntimeError(msg)
    return said


def _told(settings: dict[str, Any]) -> str:
    parts = [f"shards of {format_bytes(settings['shard'])}"] if settings["shard"] else []
    parts += [format_count(settings["workers"], "workers")]
    parts += [] if settings.get("ahead") is None else [f"{settings['ahead']:,} ahead"]
    parts += [settings["shuffle"]] if "shuffle" in settings else []
    return ", ".join(parts + [f"{name} {settings[name]:,}" for name in ("block", "nodes") if name in settings])


def _seconds(values: list[float | None]) -> str:
    """The median; what none of the runs came to is not told."""
    found = [value for value in values if value is not None]
    return f"{statistics.median(found):7.2f} s" if len(found) == len(values) else f"{'-':>9}"


def _line(title: str, runs: list[dict[str, Any]], nbytes: int) -> str:
    firsts = [run["first_batch_s"] for run in runs]
    one, two = ([run["epochs_s"][epoch] if _did(run, epoch) else None for run in runs] for epoch in range(EPOCHS))
    fetched, peak = (max(run[name] for run in runs) for name in ("fetched", "peak"))
    unfinished = sum(not _did(run, EPOCHS - 1) for run in runs)
    late = f"  not finished in {_RUN_S:.0f} s: {unfinished} of {len(runs)}" if unfinished else ""
    return (
        f"{title:<58}  {_seconds(firsts)}  {_seconds(one)}  {_seconds(two)}  {fetched / nbytes:7.2f} x  "
        f"{format_bytes(peak):>8}{late}"
    )


def _did(run: dict[str, Any], epoch: int) -> bool:
    return len(run["epochs_s"]) > epoch


def _quickness(run: dict[str, Any]) -> tuple[float, float]:
    """By the first epoch; of runs that did not finish it, by the first batch."""
    never = float("inf")
    return (run["epochs_s"][0] if _did(run, 0) else never), run["first_batch_s"] or never


def compare(bench: Bench, limit: int | None, settings_of: dict[str, list[dict[str, Any]]]) -> None:
    """Try the peers' settings once each, then run the best of each in turns with colabstage."""
    title = "all of it may stay here" if limit is None else f"the local disk may hold {format_bytes(limit)} of it"
    print(f"\n{title}\n\n{'':<58}  {'first batch':>9}  {'epoch 1':>9}  {'epoch 2':>9}  {'fetched':>9}  {'peak':>8}")
    chosen: dict[str, dict[str, Any]] = {OURS: {}}
    runs: dict[str, list[dict[str, Any]]] = {OURS: []}
    for library, tried in settings_of.items():
        found: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for settings in tried:
            try:
                run = bench.run(library, limit, settings)
            except RuntimeError as error:
                print(f"tried: {library}, {_told(settings)}: {['it failed', *str(error).splitlines()][-1]}", flush=True)
                continue
            print(_line(f"tried: {library}, {_told(settings)}", [run], bench.nbytes), flush=True)
            found.append((run, settings))
        if found:
            best, settings = min(found, key=lambda pair: _quickness(pair[0]))
            runs[library] = [best]
            # One that does not finish would not finish again.
            if _did(best, EPOCHS - 1):
                chosen[library], runs[library] = settings, []
    for _ in range(ROUNDS):
        for library, settings in chosen.items():
            try:
                runs[library].append(bench.run(library, limit, settings))
            except RuntimeError as error:
                print(f"{library}: {['it failed', *str(error).splitlines()][-1]}", flush=True)
    print()
    for library, done in runs.items():
        if done:
            print(_line(library, done, bench.nbytes), flush=True)


def main() -> int:
    """Measure and print."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, far_bucket(LATENCY_S, RATE) as bucket:
        bench = Bench(Path(folder), bucket)
        (bench.home / "data").mkdir()
        write_samples(bench.home / "data", SHAPE)
        print(
            f"{SHAPE.samples:,} {SHAPE.title} pixels, {format_bytes(bench.nbytes)}, in a bucket (moto's) that answers "
            f"after {LATENCY_S} s and sends {format_bytes(int(RATE))}/s. Times are medians of {ROUNDS} rounds; "
            "fetched and peak are the largest of any round, over two epochs. 1.00 x is the size of the pixels."
        )
        bench.store_own()
        problem = _peers.why_no_environment()
        halves: list[tuple[int | None, dict[str, list[dict[str, Any]]]]]
        halves = [(None, TRIED), (bench.nbytes // LIMIT_PART, TRIED_LIMITED)]
        if problem is not None:
            print(f"The others are not measured: {problem}")
            halves = [(limit, {}) for limit, _ in halves]
        else:
            found = _peers.versions()
            names = ("litdata", "mosaicml-streaming", "pylance", "torch", "numpy")
            print("the peers:", ", ".join(f"{name} {found[name]}" for name in names if name in found), flush=True)
        for library in {name: None for _, tried in halves for name in tried}:
            for shard in sorted({one["shard"] for _, tried in halves for one in tried.get(library, ())}):
                bench.store(library, shard)
        for limit, tried in halves:
            compare(bench, limit, tried)
    print(f"\nall of it took {format_duration(time.monotonic() - began)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
