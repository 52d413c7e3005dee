"""Samples per second out of one HDF5 file: the recipe's dataset against make_loader, and the memory's own limit.

    python -m benchmarks.read_pixels [--quick] [--rounds 5] [--only images digits masks rows]

As `peers_pixels`, without other libraries, and with two contenders more. `dataset_h5` in a stock DataLoader is what a
program has that changes nothing else. The limit gathers every batch into one buffer; a loop that holds a batch while
the next one is made needs two, and of large batches few processors' caches hold so much: so the same by turns into two
buffers stands beside it.

Ends with exit code 1 when make_loader is less than 20 times as fast as the recipe for images of 256x256x3, or has less
than 0.8 of the limit for any shape.
"""

from __future__ import annotations

import sys

from benchmarks._report import Promise
from benchmarks.peers_pixels import LIMIT, OWN, PROMISED, RECIPE, WANTED, Result, compare, options, ratio

MORE = {"our dataset_h5 in a DataLoader": "dataset", "the same into two buffers by turns": "two buffers"}


def promised(name: str, results: dict[str, Result]) -> list[Promise]:
    """What is promised of a shape."""
    found = [Promise("make_loader, of the limit", ratio(results, LIMIT), "at least", WANTED[LIMIT])]
    if name == PROMISED:
        found.append(Promise("make_loader, times the recipe", ratio(results, RECIPE), "at least", WANTED[RECIPE], 1))
    return found


if __name__ == "__main__":
    sys.exit(compare({**OWN, **MORE}, {}, *options(__doc__), promised))
