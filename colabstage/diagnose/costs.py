"""What other ways of loading would cost here: small trials with a batch of the caller's own size."""

from __future__ import annotations

import pickle
import statistics
import threading
import time
import zlib
from contextlib import contextmanager
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np

from colabstage.machine.resources import read_resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST_THREADS = 8
# About 2 ms of one core a time, and long enough together that the system's scheduler has shared out the cores.
_WORK = bytes(4 << 20)
_ROUNDS = 25
_LEAST_CORES = 0.1
_TRIALS = 7
# A few hundred bytes written into a pipe or read out of it, with the thread that does it.
_PIPE_S = 0.0002


def arrays_of(batch: Any) -> Iterator[Any]:
    """The arrays and tensors in a batch, however it nests tuples, lists and mappings."""
    if hasattr(batch, "nbytes") and hasattr(batch, "shape"):
        yield batch
    elif isinstance(batch, dict):
        for part in batch.values():
            yield from arrays_of(part)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from arrays_of(part)
    elif hasattr(batch, "shape") and hasattr(batch, "numpy"):
        yield batch.numpy()  # TensorFlow's do not say how large they are


def batch_size_of(batch: Any) -> tuple[int, int]:
    """Samples and bytes of a batch: the first axis of its first array, and all its arrays together."""
    arrays = list(arrays_of(batch))
    samples = next((int(array.shape[0]) for array in arrays if len(array.shape)), 1)
    return samples, sum(int(array.nbytes) for array in arrays)


def image_size_of(batch: Any) -> tuple[int, int] | None:
    """Height and width of the images that a batch begins with, whichever axis has their colours; `None` of others."""
    shape = next((tuple(array.shape) for array in arrays_of(batch)), ())
    if len(shape) != 4:
        return None
    height, width = shape[2:] if shape[1] <= 4 else shape[1:3]
    return int(height), int(width)


def measure_cores(cores: int) -> float:
    """How many times one core's work this process gets done with all cores, in code that lets go of Python's lock.

    Two cores that share one's units are fewer than two, and so are those that other programs use now.
    """
    threads = min(cores, _MOST_THREADS)
    began = time.thread_time()
    _work(_ROUNDS)
    alone_s = (time.thread_time() - began) / _ROUNDS
    began = time.perf_counter()
    others = [
        threading.Thread(target=_work, args=(_ROUNDS,), name="colabstage-profile-core", daemon=True)
        for _ in range(threads - 1)
    ]
    for thread in others:
        thread.start()
    _work(_ROUNDS)
    for thread in others:
        thread.join(10.0)
    done = threads * _ROUNDS * alone_s / (time.perf_counter() - began)
    return max(_LEAST_CORES, min(float(cores), cores / threads * done))


def _work(rounds: int) -> None:
    for _ in range(rounds):
        zlib.crc32(_WORK)


def usable() -> tuple[int, int]:
    """Cores, and bytes of memory, that this process may use."""
    resources = read_resources()
    return resources.cores, resources.free_memory_bytes


def measure_gather(batch: Any) -> float:
    """Seconds to copy this batch's bytes, row by row and out of order, from memory to a buffer that is used again.

    Where the batch is of floating-point numbers, they are made of bytes, as they are stored, and scaled.
    """
    samples, size = batch_size_of(batch)
    if size == 0:
        return 0.0
    first = next(arrays_of(batch))
    floats = "float" in str(first.dtype)
    row_bytes = max(1, size // max(1, samples) // (4 if floats else 1))
    rows = np.ones((max(2, min(4 * samples, (256 << 20) // row_bytes)), row_bytes), np.uint8)
    chosen = np.random.default_rng(0).integers(0, len(rows), samples)
    out = np.empty((samples, row_bytes), np.uint8)

    def gather() -> None:
        np.take(rows, chosen, axis=0, out=out, mode="clip")
        if floats:
            np.multiply(out, np.float32(1 / 255), dtype=np.float32)

    return _best_of(gather)


def measure_handover(batch: Any) -> tuple[float, float]:
    """Seconds that a worker process takes to put a batch where the consumer finds it, and the consumer to take it.

    As torch's `DataLoader` does it: the batch is copied into shared memory that is new; its tensors' names are pickled
    and go through a pipe; the consumer asks for each tensor's memory over a socket, and maps it.
    """
    import torch
    import torch.multiprocessing  # says how tensors are pickled

    tensors = [torch.as_tensor(np.asarray(array)) for array in arrays_of(batch) if array.nbytes]
    if not tensors:
        return 0.0005, 0.0002
    given, taken = [], []
    with _tensor_server():
        for _ in range(_TRIALS):
            began = time.perf_counter()
            pickled = ForkingPickler.dumps([tensor.clone() for tensor in tensors])
            given.append(time.perf_counter() - began)
            began = time.perf_counter()
            pickle.loads(pickled)
            taken.append(time.perf_counter() - began)
    # The shortest of what may be put off; the middle of what the step waits for each time.
    return _PIPE_S + min(given), _PIPE_S + statistics.median(taken)


@contextmanager
def _tensor_server() -> Iterator[None]:
    """Ends the thread that hands over pickled tensors' memory, unless it was there before, for somebody else."""
    was_there = resource_sharer._resource_sharer._thread is not None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if not was_there:
            resource_sharer.stop(timeout=5.0)


def measure_pickling(batch: Any) -> float:
    """Seconds to bring a batch from a process to another as Keras does: pickled, through a pipe, and back."""
    arrays = [np.asarray(array) for array in arrays_of(batch)]
    # Written into the pipe and read out of it, which costs about as much again.
    return 0.0005 + 2 * _best_of(lambda: pickle.loads(pickle.dumps(arrays)))


def _best_of(work: Callable[[], object], times: int = _TRIALS) -> float:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
