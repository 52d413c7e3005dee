"""One contender of `peers_pixels` in a process of its own, in whichever environment has its library.

Arguments: the contender's name, a file for whatever its library prints. Each line read is a question in JSON, the
answer is a line of JSON: `{"answer": ...}`, or `{"error": why not}`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._pixel_data import Checker, Shape, touch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Batches = Iterable[tuple[Any, Any]]

_WARM_S = 0.2


def time_batches(batches: Batches, *, least_s: float, most_s: float) -> float:
    """Samples per second over whole epochs, start-up included, until `least_s` are over.

    Of an epoch that takes longer than `most_s` only what comes between its first batch and then counts, which spares
    it the start-up.
    """
    seconds, samples = 0.0, 0
    while not samples or seconds < least_s:
        start, count, head, first = time.perf_counter(), 0, 0, 0.0
        for x, y in batches:
            touch(x, y)
            count += len(x)
            now = time.perf_counter()
            if not head:
                head, first = len(x), now
            elif now - first > most_s:
                return (count - head) / (now - first)
        seconds += time.perf_counter() - start
        samples += count
    return samples / seconds


class Server:
    """The contender, over the shapes it is asked about one after the other."""

    def __init__(self, name: str) -> None:
        from benchmarks._pixel_own import OWN
        from benchmarks._pixel_peers import LIBRARIES

        self._make: Any = {**OWN, **LIBRARIES}[name]
        self._contender: Any = None
        self._batches: Any = None
        self._folder, self._shape = Path(), Shape("", 0, ())

    def versions(self) -> dict[str, str]:
        """Of the packages that the contender consists of; imports them."""
        return {package: version(package) for package in ("torch", "numpy", *self._make.packages)}

    def store(self, folder: str, shape: dict[str, Any]) -> float:
        """Write the contender's own format; the seconds it took."""
        self._batches = self._contender = None
        self._folder, self._shape = Path(folder), Shape.from_dict(shape)
        self._contender = self._make(self._folder, self._shape)
        start = time.perf_counter()
        self._contender.store()
        return time.perf_counter() - start

    def choose(self, least_s: float, most_s: float) -> dict[str, float]:
        """Try all settings, and stay with the quickest; samples per second of each."""
        settings: dict[str, Callable[[], Batches]] = self._contender.settings()
        rates, best = {}, 0.0
        for name, make in settings.items():
            batches = make()
            if len(settings) > 1:
                time_batches(batches, least_s=0, most_s=_WARM_S)
                rates[name] = time_batches(batches, least_s=least_s, most_s=most_s)
            else:
                rates[name] = 1.0
            if rates[name] > best:
                best, self._batches = rates[name], batches
            del batches
            gc.collect()
        return rates

    def check(self) -> str | None:
        """Read an epoch and compare it with the source; what is wrong."""
        checker = Checker(self._folder, self._shape)
        for x, y in self._batches:
            checker.add(x, y)
        return checker.verdict()

    def time(self, least_s: float, most_s: float) -> float:
        """Samples per second, now.

        What is not timed comes first: where a machine is shared, memory that nothing read for seconds is no longer in
        the processor's caches, and two threads wait longer for it than one.
        """
        time_batches(self._batches, least_s=_WARM_S, most_s=_WARM_S)
        return time_batches(self._batches, least_s=least_s, most_s=most_s)


def main() -> None:
    """Answer until the input ends."""
    name, log = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    server = Server(name)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"answer": getattr(server, question.pop("do"))(**question)}
        except Exception as error:  # noqa: BLE001 - a contender that cannot run is left out, with its reason
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
