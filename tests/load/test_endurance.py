"""A thousand epochs, left early or not, leave nothing behind: threads, processes, files, memory."""

import gc
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from colabstage import CudaDataLoader, dataset_h5, make_loader

pytestmark = pytest.mark.torch

STRATEGIES: dict[str, dict[str, Any]] = {
    "direct": {"strategy": "direct"},
    "memory": {"strategy": "memory"},
    "device": {"strategy": "device", "device": "cpu"},
}


def leave_early(loader: Any, epochs: int) -> None:
    """Iterate every third epoch completely; leave the others after the first batch."""
    for number in range(epochs):
        for _batch in loader:
            if number % 3:
                break


def held() -> tuple[int, int, int]:
    """The number of threads, descriptors and worker processes."""
    gc.collect()
    process = psutil.Process()
    # What multiprocessing keeps for the life of a process, to start others and to clean up after them.
    kept = re.compile(r"resource_tracker|forkserver import main")
    workers = 0
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            workers += child.ppid() == process.pid and not kept.search(" ".join(child.cmdline()))
            workers += child.ppid() != process.pid
    return threading.active_count(), process.num_fds(), workers


# A thousand in the long form.
THOUSAND = pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(600)])


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("epochs", [6, THOUSAND])
def test_epochs_leave_nothing(large: Path, name: str, epochs: int) -> None:
    """There are as many threads, descriptors and processes as after the first epochs, and hardly more memory: for a
    CudaDataLoader, and for the loader that it reads from."""
    loader: Any = make_loader(dataset_h5(large), 8, **STRATEGIES[name])
    outer: Any = CudaDataLoader(loader, "cpu")
    leave_early(outer, 6)
    outer.close()
    before, memory = held(), psutil.Process().memory_info().rss
    leave_early(outer, epochs)
    outer.close()
    # A process's queue has a thread that ends a moment after the queue is closed.
    deadline = time.monotonic() + 5
    while held()[0] > before[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    threads, descriptors, _ = held()
    assert threads <= before[0]
    assert descriptors <= before[1]
    assert psutil.Process().memory_info().rss - memory < 30_000_000
    loader.close()
    assert held()[2] == 0
