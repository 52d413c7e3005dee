"""Does `profile_loader` name a bottleneck that is known, and is its advice worth following?

    python -m benchmarks.bottlenecks [--pipeline NAME]

Pipelines that are slow at one known place: reading that waits, decoding outside Python's lock, transforms inside it,
collating that waits, two threads that hold the lock, and a queue too short for batches that come in bursts. Each is
profiled, changed as the first advice about its `DataLoader` says, and timed again without any profiling. "At most" is
the profile's bound, "gained" the two times' ratio.

Each has three tries, since another program may take the cores at any moment. Ends with exit code 1 when a bottleneck is
not named, the advice gains less than a quarter, or the bound is exceeded by more than measurements scatter.
`benchmarks.advice` is the same for published training loops.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, default_collate

from colabstage import profile_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from colabstage.diagnose.advice import Verdict

WORTH = 1.25
SCATTER = 1.15
TRIES = 3
BATCH = 8
PACKED = zlib.compress(np.random.default_rng(0).integers(0, 4, 300_000, dtype=np.uint8).tobytes(), 1)


class Samples(Dataset[Any]):
    """Samples that are read, decoded and transformed, each as slowly as said; `burst_s` for the first of 32."""

    def __init__(self, *, read_s: float = 0.0, decodes: int = 0, rounds: int = 0, burst_s: float = 0.0) -> None:
        self.read_s, self.decodes, self.rounds, self.burst_s = read_s, decodes, rounds, burst_s

    def __len__(self) -> int:
        return 4000

    def read(self, index: int) -> bytes:
        if wait_s := self.read_s + (self.burst_s if index % 32 == 0 else 0.0):
            time.sleep(wait_s)
        return PACKED

    def decode(self, data: bytes) -> Any:
        for _ in range(self.decodes):
            data = zlib.decompress(PACKED)
        return np.frombuffer(data, np.uint8, 256)

    def augment(self, x: Any) -> Any:
        total = 0
        for number in range(self.rounds):
            total += number * number
        return x + np.uint8(total % 2)

    def __getitem__(self, index: int) -> Any:
        return self.augment(self.decode(self.read(index))), index


class ThreadedLoader:
    """Batches made by two threads of this process."""

    def __init__(self, dataset: Samples) -> None:
        self.dataset, self.batch_size, self.num_workers = dataset, BATCH, 2

    def batch(self, start: int) -> Any:
        return default_collate([self.dataset[start + offset] for offset in range(BATCH)])

    def __iter__(self) -> Iterator[Any]:
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(self.batch, BATCH * number) for number in range(4)]
            for number in range(4, len(self.dataset) // BATCH):
                yield waiting.pop(0).result()
                waiting.append(pool.submit(self.batch, BATCH * number))
            for future in waiting:
                yield future.result()


def slow_collate(samples: list[Any]) -> Any:
    """Make a batch slowly, as padding may."""
    time.sleep(0.04)
    return default_collate(samples)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A loader with a known bottleneck, its `stage` and `cause`, before a step of so many seconds."""

    make: Callable[[], Any]
    stage: str
    cause: str = "work"
    step_s: float = 0.01
    seconds: float = 2.0


PIPELINES = {
    "reading that waits": Pipeline(lambda: DataLoader(Samples(read_s=0.005), BATCH), "read"),
    "decoding": Pipeline(lambda: DataLoader(Samples(decodes=8), BATCH), "decode"),
    "transforms in Python": Pipeline(lambda: DataLoader(Samples(rounds=60_000), BATCH), "transform"),
    "collating": Pipeline(lambda: DataLoader(Samples(), BATCH, collate_fn=slow_collate), "collate"),
    "two threads": Pipeline(lambda: ThreadedLoader(Samples(rounds=40_000)), "transform", seconds=1.5),
    "a short queue": Pipeline(
        lambda: DataLoader(Samples(burst_s=0.18), BATCH, num_workers=1, prefetch_factor=1),
        "read",
        "prefetch",
        step_s=0.05,
        seconds=3.0,
    ),
}


def batch_s(loader: Any, step: Callable[[Any], object], seconds: float = 1.0) -> float:
    """Seconds from batch to batch in a plain training loop, once it runs: over a multiple of four, as bursts come."""
    marks: list[float] = []
    batches = iter(loader)
    for batch in batches:
        step(batch)
        marks.append(time.perf_counter())
        if marks[-1] - marks[0] > seconds and len(marks) > 15:
            break
    end = getattr(batches, "_shutdown_workers", None) or getattr(batches, "close", None)
    if end is not None:
        end()
    count = (len(marks) - 1 - len(marks) // 3) // 4 * 4
    return (marks[-1] - marks[-1 - count]) / count


def changed(loader: Any, options: Mapping[str, Any]) -> DataLoader[Any]:
    """The loader as the advice has it: torch's `DataLoader` with these arguments."""
    names = ("num_workers", "persistent_workers", "prefetch_factor")
    old = {name: getattr(loader, name) for name in names if isinstance(loader, DataLoader) and getattr(loader, name)}
    collate = getattr(loader, "collate_fn", default_collate)
    return DataLoader(loader.dataset, loader.batch_size, collate_fn=collate, **{**old, **options})


def is_named(pipeline: Pipeline, verdict: Verdict) -> bool:
    """Whether a verdict says what the pipeline was built to be. Of a short queue, the stage does not matter."""
    stage_is_right = pipeline.cause == "prefetch" or verdict.stage == pipeline.stage
    return (verdict.bound, verdict.cause) == ("input-bound", pipeline.cause) and stage_is_right


def measure(pipeline: Pipeline) -> tuple[bool, str, float, float]:
    """Profile a pipeline and follow the advice: whether it was worth it, what was said, the bound, what was gained."""

    def step(_: object) -> None:
        time.sleep(pipeline.step_s)

    loader = pipeline.make()
    profile = profile_loader(loader, step, restore=(), budget_s=pipeline.seconds)
    verdict = profile.verdict
    said = f"{verdict.bound} by {verdict.stage}, {verdict.cause}"
    about = {"num_workers", "prefetch_factor"} if pipeline.cause != "prefetch" else {"prefetch_factor"}
    advice = next((one for one in profile.advice if about & one.options.keys()), None)
    if advice is None:
        return False, f"{said}; no advice", 0.0, 0.0
    gained = batch_s(loader, step) / batch_s(changed(loader, advice.options), step)
    kept = is_named(pipeline, verdict) and WORTH <= gained <= SCATTER * advice.gain
    return kept, f"{said}: {dict(advice.options)}", advice.gain, gained


def main() -> int:
    """Measure and print; 1 when something is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", choices=tuple(PIPELINES))
    chosen = parser.parse_args().pipeline
    print(f"{'':6}{'pipeline':<24}{'at most':>9}{'gained':>8}  verdict and advice")
    good = True
    for name in [chosen] if chosen else PIPELINES:
        for _ in range(TRIES):
            kept, said, bound, gained = measure(PIPELINES[name])
            if kept:
                break
        good &= kept
        print(f"{'ok' if kept else 'MISS':<6}{name:<24}{bound:>8.1f}x{gained:>7.1f}x  {said}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
