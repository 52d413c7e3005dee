"""Deciding about worker processes: whether they gain, how many, and how they are started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.load.choosing.choices import Reasoned, StartChoice
from colabstage.units import format_bytes

if TYPE_CHECKING:
    from colabstage.load.choosing.choices import LoaderFacts, LoaderRequest, ProcessFacts

# What a batch costs on its way between processes: waking, sending, mapping; and the rate of the copies.
_BATCH_S = 1e-3
_BYTES_PER_S = 1e9
# How many times faster processes must be to be taken unasked: each of them starts an interpreter and imports torch.
_LEAST_GAIN = 1.5
_AHEAD = 2
# Part of the shared memory that batches may fill; a worker that finds none dies.
_SHARED_PART = 2


def may_gain(facts: LoaderFacts, request: LoaderRequest) -> bool:
    """Whether a probe of a sample's cost could speak for processes at all."""
    if request.strategy != "auto" or not facts.per_sample or facts.processes is None:
        return False
    safe = facts.processes.unpicklable is None and choose_start(facts.processes).safe
    return safe and _count(facts, request) > 1


def processes_gain(facts: LoaderFacts, request: LoaderRequest) -> bool:
    """Whether a sample's transform takes so long that processes are worth having."""
    if facts.cost is None or not may_gain(facts, request):
        return False
    thread_s = request.batch_size * facts.cost.seconds
    moving_s = _BATCH_S + request.batch_size * facts.cost.result_bytes / _BYTES_PER_S
    return thread_s >= _LEAST_GAIN * (thread_s / _count(facts, request) + moving_s)


def choose_processes(facts: LoaderFacts, request: LoaderRequest) -> tuple[Reasoned, Reasoned, StartChoice]:
    """How many processes, how many batches each makes ahead, and how they are started."""
    processes = facts.processes
    if processes is None:
        msg = "Worker processes cannot be planned without facts about this process."
        raise TypeError(msg)
    asked = request.num_workers != "auto"
    count = _count(facts, request)
    reason = "as asked" if asked else "all cores but the one that trains"
    ahead = _AHEAD if request.prefetch == "auto" else request.prefetch
    ahead_reason = "of each process" if request.prefetch == "auto" else "as asked"
    result_bytes = facts.row_bytes if facts.cost is None else facts.cost.result_bytes
    batch_bytes = max(1, request.batch_size * result_bytes)
    # One more of each is in the making, and one on its way.
    fitting = processes.shared_memory_bytes // _SHARED_PART // batch_bytes
    if not asked and count * (ahead + 1) + 1 > fitting:
        room = f"batches of {format_bytes(batch_bytes)} leave shared memory for no more"
        if request.prefetch == "auto":
            ahead, ahead_reason = 1, room
        if count * (ahead + 1) + 1 > fitting:
            count, reason = max(1, (fitting - 1) // (ahead + 1)), room
    return Reasoned(count, reason), Reasoned(ahead, ahead_reason), choose_start(processes)


def choose_start(facts: ProcessFacts) -> StartChoice:
    """How to start processes safely.

    A forked process has the locks of threads that it does not have, locked for ever if they were, and must not touch
    CUDA. One that is started anew takes seconds, must be sent the dataset, and imports the script: where that would run
    from its top again, it is forked all the same, as a stock `DataLoader` would be.
    """
    busy = "CUDA is in use" if facts.cuda_started else f"{facts.threads} threads run" if facts.threads > 1 else None
    can_fork = "fork" in facts.methods
    if can_fork and busy is None:
        return StartChoice("fork", "no other thread runs, and CUDA is not in use")
    if can_fork and facts.unpicklable is not None:
        why = f"although {busy}: the dataset cannot be sent to another process, as {facts.unpicklable}"
        return StartChoice("fork", why, safe=False)
    if can_fork and facts.runs_again:
        why = f'although {busy}: a process started anew would run this script again, which has no "__main__" guard here'
        return StartChoice("fork", why, safe=False)
    why = busy or "this system cannot fork"
    if "forkserver" in facts.methods:
        why = f"{why}, and a fork would copy their locks" if can_fork else why
        return StartChoice("forkserver", why, safe=not facts.runs_again)
    return StartChoice("spawn", why, safe=not facts.runs_again)


def _count(facts: LoaderFacts, request: LoaderRequest) -> int:
    return request.num_workers if request.num_workers != "auto" else max(1, facts.cores - 1)
