"""How long a batch would take if a pipeline were set up otherwise: pure functions of measured times.

Two bounds, of which the longer one counts. The parts that wait for each other: each worker makes one batch at a time,
may be a few ahead, and batches are taken in order (`simulate`). And what all parts need together of something that
there is only so much of: cores, and Python's lock where they share a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from colabstage.diagnose.facts import Facts

# Enough that the first batches, which nobody waits long for, do not count.
_SIMULATED = 200


def simulate(made_s: Sequence[float], step_s: float, workers: int, ahead: int) -> float:
    """Seconds from batch to batch when `workers` make batches in turn, each at most `ahead` of them in advance.

    `made_s`: how long making each takes, repeated as long as needed. As torch's `DataLoader` does it: whenever the
    consumer takes a batch, one more is ordered.
    """
    if workers == 0:
        return sum(made_s) / len(made_s) + step_s
    count = max(_SIMULATED, 2 * len(made_s))
    in_flight = workers * ahead
    taken: list[float] = []
    worker_free = [0.0] * workers
    consumer_free = 0.0
    for number in range(count):
        ordered = taken[number - in_flight] if number >= in_flight else 0.0
        worker = number % workers
        ready = max(ordered, worker_free[worker]) + made_s[number % len(made_s)]
        worker_free[worker] = ready
        taken.append(max(ready, consumer_free))
        consumer_free = taken[-1] + step_s
    first = count // 4
    return (taken[-1] - taken[first]) / (count - 1 - first)


def with_processes(facts: Facts, workers: int, ahead: int) -> float:
    """Seconds from batch to batch with this many worker processes, each `ahead` batches in advance."""
    handover_s, take_s = (facts.costs.handover_s, facts.costs.take_s) if workers else (0.0, 0.0)
    step_s = (facts.step_alone_s or 0.0) + take_s
    made = facts.produced_s or (facts.serial_s,)
    # Each process computes with one thread; what several cores did here takes one of them longer there.
    slower = max(1.0, facts.cpu_s / facts.serial_s) if facts.serial_s else 1.0
    chain_s = simulate([seconds * slower + handover_s for seconds in made], step_s, workers, ahead)
    cores_s = (facts.cpu_s + handover_s + max(handover_s, take_s) + facts.step_cpu_s) / facts.costs.cores
    return max(chain_s, cores_s if workers else 0.0)


def with_threads(facts: Facts, threads: int, ahead: int) -> float:
    """Seconds from batch to batch with this many threads in this process: Python's lock is one for all of them."""
    step_s = facts.step_alone_s or 0.0
    made = facts.produced_s or (facts.serial_s,)
    chain_s = simulate(made, step_s, threads, ahead)
    cores_s = (facts.cpu_s + facts.step_cpu_s) / facts.costs.cores
    return max(chain_s, cores_s, facts.gil_s)


def in_background(facts: Facts, load_s: float, load_cpu_s: float) -> float:
    """Seconds from batch to batch when batches that take so long are made beside the step."""
    cores_s = (load_cpu_s + facts.step_cpu_s) / facts.costs.cores
    return max(load_s, facts.step_alone_s or 0.0, cores_s)


def fewest_workers(facts: Facts, most: int, ahead: int) -> tuple[int, float]:
    """The smallest number of worker processes, 1 to `most`, within 5 % of the best, and its time."""
    times = {workers: with_processes(facts, workers, ahead) for workers in range(1, most + 1)}
    best = min(times.values())
    return next((workers, seconds) for workers, seconds in times.items() if seconds <= 1.05 * best)


def smallest_ahead(facts: Facts, workers: int) -> tuple[int, float]:
    """The smallest `prefetch_factor` of 2, 4, … 64 within 5 % of the best, and its time."""
    times = {ahead: with_processes(facts, workers, ahead) for ahead in (2, 4, 8, 16, 32, 64)}
    best = min(times.values())
    return next((ahead, seconds) for ahead, seconds in times.items() if seconds <= 1.05 * best)
