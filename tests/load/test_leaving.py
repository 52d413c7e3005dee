"""Loops that are left, interrupted or forked: nothing waits for a batch that nobody will see, and nothing is lost.

Rows are counted, not seconds: each takes so long that the others of its batch cannot be read by chance.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5, make_loader
from colabstage.errors import WorkersLostError
from colabstage.transforms import RandomResizedCrop

pytestmark = pytest.mark.torch

BATCH, ROW_S, TIMEOUT_S = 24, 0.15, 20


class SlowRows:
    """Counts h5py's reads; those after the first batch take long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reads: int) -> None:
        """`reads`: the number of reads of the first batch."""
        self._lock, self._never = threading.Lock(), threading.Event()
        self.begun, self.at_second = 0, threading.Event()
        real = h5py.Dataset.__getitem__

        def counted(dataset: Any, *arguments: Any) -> Any:
            with self._lock:
                self.begun += 1
                slow = self.begun > reads
            if slow:
                self.at_second.set()
                self._never.wait(ROW_S)
            return real(dataset, *arguments)

        monkeypatch.setattr(h5py.Dataset, "__getitem__", counted)

    def begun_after_break(self, loader: Any) -> int:
        """Leave a loop while its second batch is read; return how many rows are begun after that."""
        begun = 0
        for _ in loader:
            assert self.at_second.wait(TIMEOUT_S)
            begun = self.begun
            break
        return self.begun - begun


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Rows that h5py reads one by one."""
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        pixels = np.zeros((6 * BATCH, 16, 16, 3), np.uint8)
        file.create_dataset("X_train", data=pixels, chunks=(1, 16, 16, 3), compression="lzf")
        file["Y_train"] = np.arange(6 * BATCH)
    return tmp_path / "rows.h5"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_break_waits_for_one_row_of_each_thread(rows: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    # Every other row, so that each is a separate piece.
    loader = make_loader(
        dataset_h5(rows),
        BATCH,
        num_workers=threads,
        prefetch_factor=1,
        strategy="direct",
        shuffle=False,
        sampler=range(0, 6 * BATCH, 2),
    )
    assert SlowRows(monkeypatch, BATCH).begun_after_break(loader) <= threads


@pytest.mark.parametrize("way", ["one size", "own sizes", "crops"])
def test_a_break_waits_for_one_image_of_each_thread(
    make_encoded: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """For every way of decoding."""
    path = make_encoded(3 * BATCH, size=(8, 8) if way == "one size" else None, compression="gzip")
    crop = RandomResizedCrop(8) if way == "crops" else None
    loader = make_loader(
        dataset_h5(path), BATCH, num_workers=2, prefetch_factor=1, batch_transform=crop, strategy="direct"
    )
    # Before cropping an image, its header is read.
    slow = SlowRows(monkeypatch, 2 * BATCH if way == "crops" else BATCH)
    assert slow.begun_after_break(loader) <= 2


def test_an_iterator_from_before_a_fork_is_refused_in_the_child(rows: Path) -> None:
    """The thread does not exist there, and asking is an error instead of an endless wait, although two batches are
    ready."""
    batches = iter(make_loader(dataset_h5(rows), 8, strategy="direct", num_workers=1, prefetch_factor=2))
    next(batches)
    time.sleep(0.2)
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except WorkersLostError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(batches)) == 6 * BATCH // 8 - 1


def test_an_iterator_without_threads_goes_on_in_both_processes(rows: Path) -> None:
    """All batches of a group, of which some have been taken before the fork."""
    batches = iter(make_loader(dataset_h5(rows), 8, strategy="device", device="cpu"))
    next(batches)
    child = os.fork()
    if child == 0:
        os._exit(len(list(batches)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(list(batches)) == 6 * BATCH // 8 - 1


def test_an_epoch_is_prepared_before_its_first_batch_is_asked_for(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make_loader(dataset_h5(rows), BATCH, strategy="direct", num_workers=1, prefetch_factor=1)
    slow = SlowRows(monkeypatch, 0)
    batches = iter(loader)
    assert slow.at_second.wait(TIMEOUT_S)
    assert len(next(batches)[1]) == BATCH


# Both read ahead in the same threads; importing torch takes seconds.
LOOPS = {
    "to_numpy": "to_numpy(sys.argv[1], 8, prefetch_factor=1)",
    "make_loader": "make_loader(colabstage.dataset_h5(sys.argv[1]), 8, strategy='direct')",
}


@pytest.mark.parametrize("loop", ["to_numpy", pytest.param("make_loader", marks=pytest.mark.long)])
def test_a_program_that_ends_in_the_middle_of_an_epoch_ends_cleanly(rows: Path, loop: str) -> None:
    code = f"import colabstage, sys\nbatches = iter(colabstage.{LOOPS[loop]})\nprint(len(next(batches)[1]))\n"
    done = subprocess.run([sys.executable, "-c", code, rows], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("8\n", "")
