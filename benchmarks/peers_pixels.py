"""Samples per second with a warm page cache: make_loader against the recipe, ten ways of others, and the limit.

    python -m benchmarks.peers_pixels [--quick] [--rounds 5] [--only images digits masks rows]

Four kinds of samples: 4,000 of 256x256x3 uint8 with classes, for everybody; 60,000 of 28x28, 2,000 of 512x512x3 with
masks, and 100,000 float32 rows of 128, for all but WebDataset, LitData, MosaicML Streaming and Lance, which the first
table has. Batches of 64, shuffled. Every contender lives in a process of its own, with its samples in its own
format, and

1. tries its settings (workers 0, 1 and 2; whole batches at once where it can) and stays with the quickest, which the
   table names; the file format too is the quickest known, not the one of its tutorial;
2. reads an epoch that is compared with the source byte for byte: every row once, in a shuffled order;
3. takes turns with the others, round after round. A turn is whole epochs, their start included, until half a second is
   over; of an epoch longer than 1.5 seconds what comes after its first batch. The table has the median of the rounds,
   and the median of the ratios within a round.

One value of every input and target is added up, which stands for the training step. The limit is `np.take` of the same
batches out of an array in memory into one buffer that is used again and again, by one thread; FFCV's batches are also
overwritten a few batches later, those of all others are the caller's own.

The others live in an environment of their own, for which see benchmarks/_peers.py (`COLABSTAGE_PEERS` names its place);
those that are not there are left out, with a line that says so.

Ends with exit code 1 when, on the images, make_loader is less than 20 times as fast as the recipe, 1.5 times as fast as
FFCV, or 0.8 of the limit, or when somebody's batches are not what was written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import _peers
from benchmarks._pixel_data import Shape, write_samples
from benchmarks._report import Promise, judge, median_ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

OURS, RECIPE, FFCV, LIMIT = "make_loader", "recipe: its class in a DataLoader", "FFCV", "limit: np.take from memory"
OWN = {OURS: "colabstage", RECIPE: "recipe", LIMIT: "limit"}
LIBRARIES = {
    "h5py in a DataLoader": "h5py",
    "npy in memory as TensorDataset": "npy",
    "LMDB": "lmdb",
    "Hugging Face datasets": "datasets",
    FFCV: "ffcv",
}
MORE_LIBRARIES = {
    "WebDataset": "webdataset",
    "LitData": "litdata",
    "MosaicML Streaming": "mosaic",
    "Lance": "lance",
}
SHAPES = {
    "images": Shape("4,000 of 256x256x3 uint8", 4000, (256, 256, 3)),
    "digits": Shape("60,000 of 28x28 uint8", 60_000, (28, 28)),
    "masks": Shape("2,000 of 512x512x3 uint8 with masks of 512x512", 2000, (512, 512, 3), masks=True),
    "rows": Shape("100,000 rows of 128 float32", 100_000, (128,), "float32"),
}
PROMISED = "images"
WANTED = {RECIPE: 20.0, FFCV: 1.5, LIMIT: 0.8}
QUICK_PART = 10
_TRY = {"least_s": 0.25, "most_s": 0.7}
_TURN = {"least_s": 0.5, "most_s": 1.5}
SERVE = Path(__file__).with_name("_pixel_serve.py")
# Storing and checking is not timed, and so runs side by side.
_AT_ONCE = 2


@dataclass
class Contender:
    """A process with a library in it."""

    title: str
    peer: _peers.Peer

    def ask(self, what: str, **arguments: Any) -> Any:
        """Its answer.

        Raises:
            RuntimeError: it could not.
        """
        reply = self.peer.ask(json.dumps({"do": what, **arguments}))
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["answer"]


@dataclass
class Result:
    """Samples per second of a contender's turns, and the setting it chose."""

    setting: str
    rates: list[float]


@contextlib.contextmanager
def open_contenders(scratch: Path, own: Mapping[str, str], libraries: Mapping[str, str]) -> Iterator[list[Contender]]:
    """Start a process for each that can be measured; say who is left out, and why."""
    problem = _peers.why_no_environment() if libraries else None
    if problem is not None:
        print(f"The other libraries are not measured: {problem}")
    pythons = dict.fromkeys(own.values(), sys.executable)
    pythons |= {name: str(_peers.PYTHON) for name in libraries.values() if problem is None}
    titles = {name: title for title, name in {**own, **libraries}.items()}
    with contextlib.ExitStack() as stack:
        started = [
            Contender(
                titles[name], stack.enter_context(_peers.Peer(SERVE, name, scratch / f"{name}.log", python=python))
            )
            for name, python in pythons.items()
        ]
        yield [contender for contender in started if introduce(contender)]


def introduce(contender: Contender) -> bool:
    """Whether it can import what it needs; prints the versions."""
    try:
        versions = contender.ask("versions")
    except RuntimeError as error:
        print(f"{contender.title} is not measured: {error}")
        return False
    print(f"{contender.title:36}{', '.join(f'{name} {version}' for name, version in versions.items())}")
    return True


def measure(shape: Shape, contenders: Sequence[Contender], rounds: int) -> dict[str, Result]:
    """Store, choose settings, check and take turns."""
    with tempfile.TemporaryDirectory(prefix="peers-pixels-") as place, ThreadPoolExecutor(_AT_ONCE) as pool:
        write_samples(Path(place), shape)
        list(pool.map(lambda one: one.ask("store", folder=place, shape=shape.to_dict()), contenders))
        results = {}
        for one in contenders:
            tried = one.ask("choose", **_TRY)
            results[one.title] = Result(max(tried, key=tried.__getitem__), [])
        for one, problem in zip(contenders, pool.map(lambda one: one.ask("check"), contenders), strict=True):
            if problem is not None:
                msg = f"{one.title}, {shape.title}: {problem}"
                raise RuntimeError(msg)
        for _ in range(rounds):
            for one in contenders:
                results[one.title].rates.append(one.ask("time", **_TURN))
    return results


def ratio(results: dict[str, Result], title: str) -> float:
    """How many times as fast make_loader is."""
    return median_ratio(results[OURS].rates, results[title].rates)


def report(shape: Shape, results: dict[str, Result], seconds: float) -> None:
    """Print a table, the quickest first."""
    print(f"\n{shape.title}; {seconds:.0f} s in all\n")
    print(f"{'samples/s':36}{'median':>10}{'lowest':>10}{'highest':>10}{'ours x':>8}  setting")
    for title, result in sorted(results.items(), key=lambda item: -statistics.median(item[1].rates)):
        rates = result.rates
        figures = f"{statistics.median(rates):10,.0f}{min(rates):10,.0f}{max(rates):10,.0f}"
        print(f"{title:36}{figures}{ratio(results, title):8.2f}  {result.setting}", flush=True)


def compare(
    own: Mapping[str, str],
    libraries: Mapping[str, str],
    shapes: Mapping[str, Shape],
    rounds: int,
    promised: Callable[[str, dict[str, Result]], list[Promise]],
) -> int:
    """Measure and print each shape, then judge."""
    promises, began = list[Promise](), time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="peers-pixels-") as scratch,
        open_contenders(Path(scratch), own, libraries) as contenders,
    ):
        print(f"{os.cpu_count()} cores; {time.perf_counter() - began:.0f} s to start", flush=True)
        for name, shape in shapes.items():
            start = time.perf_counter()
            asked = [one for one in contenders if name == PROMISED or one.title not in MORE_LIBRARIES]
            results = measure(shape, asked, rounds if name == PROMISED else min(rounds, 3))
            report(shape, results, time.perf_counter() - start)
            promises += promised(name, results)
    return judge(promises)


def options(doc: str | None) -> tuple[dict[str, Shape], int]:
    """Parse the command line; return the shapes to measure, and how often."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples, one round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the images; the other shapes have 3 at most")
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="these shapes")
    given = parser.parse_args()
    part = QUICK_PART if given.quick else 1
    shapes = {name: replace(SHAPES[name], samples=SHAPES[name].samples // part) for name in given.only}
    return shapes, 1 if given.quick else given.rounds


def promised(name: str, results: dict[str, Result]) -> list[Promise]:
    """What is promised of a shape, as far as it was measured."""
    found = WANTED.items() if name == PROMISED else ()
    return [
        Promise(f"make_loader / {title}", ratio(results, title), "at least", least)
        for title, least in found
        if title in results
    ]


def main() -> int:
    """Measure, print, judge."""
    return compare(OWN, {**LIBRARIES, **MORE_LIBRARIES}, *options(__doc__), promised)


if __name__ == "__main__":
    sys.exit(main())
