"""A pack beside Lance: random batches of pixels from the local disk, and from a bucket that is far away.

    python -m benchmarks.peers_lance [--quick] [--rounds 5]

People read that HDF5 is slow: a public comparison found 1,080 samples/s in HDF5 and 5,059 in Lance, and from S3 27 and
3,164. It read HDF5 row by row; a pack is read by whole batches. The local half is `peers_pixels` with its images,
settings and turns, and with the recipe's class over the same file as a third; the other half is `peers_streaming`.
Lance is read as is quickest for training in random order: whole batches by `take`, with spawned workers or none.

Nothing is promised; whichever is faster is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks import _peers, peers_pixels, peers_streaming
from benchmarks._bucket import far_bucket
from benchmarks._pixel_data import write_samples

LANCE = "Lance"
FAR = {LANCE: [{"shard": 0, "workers": workers} for workers in (0, 2)]}


def local(rounds: int, quick: bool) -> None:
    """Print a table of samples per second, and how they compare."""
    shape = peers_pixels.SHAPES["images"]
    if quick:
        shape = replace(shape, samples=shape.samples // peers_pixels.QUICK_PART)
    with tempfile.TemporaryDirectory(prefix="peers-lance-") as scratch, contextlib.ExitStack() as stack:
        processes: dict[str, tuple[str, str | Path]] = {LANCE: ("lance", _peers.PYTHON)}
        processes |= {title: (name, sys.executable) for title, name in peers_pixels.OWN.items()}
        contenders = [
            peers_pixels.Contender(
                title,
                stack.enter_context(
                    _peers.Peer(peers_pixels.SERVE, name, Path(scratch) / f"{name}.log", python=python)
                ),
            )
            for title, (name, python) in processes.items()
        ]
        contenders = [one for one in contenders if peers_pixels.introduce(one)]
        results = peers_pixels.measure(shape, contenders, rounds)
        peers_pixels.report(shape, results, 0)
        if LANCE in results:
            ours, theirs = (statistics.median(results[name].rates) for name in (peers_pixels.OURS, LANCE))
            faster = f"make_loader is {ours / theirs:.2f}" if ours > theirs else f"Lance is {theirs / ours:.2f}"
            print(f"\nlocal disk, random batches of 256x256x3: {faster} times as fast")


def far() -> None:
    """Print first batch and epochs from a bucket."""
    with (
        tempfile.TemporaryDirectory() as folder,
        far_bucket(peers_streaming.LATENCY_S, peers_streaming.RATE) as bucket,
    ):
        bench = peers_streaming.Bench(Path(folder), bucket)
        (bench.home / "data").mkdir()
        write_samples(bench.home / "data", peers_streaming.SHAPE)
        print(
            f"\nfrom a bucket (moto's) that answers after {peers_streaming.LATENCY_S} s, {peers_streaming.SHAPE.title}"
        )
        bench.store_own()
        bench.store(LANCE, 0)
        peers_streaming.compare(bench, None, FAR)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the samples, one round, nothing from the bucket"
    )
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    problem = _peers.why_missing("lance")
    if problem is not None:
        print(problem, file=sys.stderr)
        return 1
    local(1 if arguments.quick else arguments.rounds, arguments.quick)
    if not arguments.quick:
        far()
    return 0


if __name__ == "__main__":
    sys.exit(main())
