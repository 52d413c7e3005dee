"""Who leaves a loop waits for no batch that nobody will see: at most for the row that each thread is at.

Rows are counted, not seconds: each takes long enough that the others of its batch cannot be read by chance.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from colabstage import dataset_h5, make_loader
from colabstage.load.reading.fields import Encoded, EngineChoice
from colabstage.load.reading.memory import ReadFile
from colabstage.transforms import RandomResizedCrop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

BATCH = 24
SIZE = (8, 8)
ROW_S = 0.15
TIMEOUT_S = 20


class SlowRows:
    """Counts the rows that are read; those behind the first batch take long."""

    def __init__(self, reads: int) -> None:
        """`reads`: how often the first batch reads."""
        self._reads = reads
        self._lock = threading.Lock()
        self._never = threading.Event()
        self.begun = 0
        self.at_second = threading.Event()

    def read(self) -> None:
        with self._lock:
            self.begun += 1
            slow = self.begun > self._reads
        if slow:
            self.at_second.set()
            self._never.wait(ROW_S)

    def before(self, owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count each call of a method of `owner`."""
        real = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            self.read()
            return real(*arguments)

        monkeypatch.setattr(owner, name, counted)

    def before_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count each call of what reads the file of an encoded row, also of rows that were opened before."""

        def get(rows: Encoded) -> Callable[[int], bytes]:
            real = rows.__dict__["read_bytes"]

            def counted(row: int) -> bytes:
                self.read()
                return bytes(real(row))

            return counted

        def put(rows: Encoded, real: Callable[[int], bytes]) -> None:
            rows.__dict__["read_bytes"] = real

        monkeypatch.setattr(Encoded, "read_bytes", property(get, put), raising=False)


def begun_after_break(loader: Any, slow: SlowRows) -> int:
    """Leave a loop while its second batch is read: how many rows are begun after that."""
    begun = 0
    for _ in loader:
        assert slow.at_second.wait(TIMEOUT_S)
        begun = slow.begun
        break
    return slow.begun - begun


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.parametrize("way", ["one size", "own sizes", "crops", "headers"])
def test_a_break_waits_for_one_image_of_each_thread(
    make_encoded: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, way: str, threads: int
) -> None:
    """However images are decoded, no thread begins another row once the loop has been left."""
    dataset = dataset_h5(make_encoded(3 * BATCH, size=SIZE if way == "one size" else None))
    if way == "crops":
        # Headers are read before each image that is new; here they are known.
        dataset.reader.image_sizes(np.arange(len(dataset)))
    slow = SlowRows(2 * BATCH if way == "headers" else BATCH)
    slow.before_files(monkeypatch)
    loader = make_loader(
        dataset,
        BATCH,
        num_workers=threads,
        prefetch_factor=1,
        batch_transform=RandomResizedCrop(8) if way in ("crops", "headers") else None,
        strategy="direct",
    )
    assert begun_after_break(loader, slow) <= threads


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("way", ["h5py", "read"])
def test_a_break_waits_for_one_piece_of_each_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, threads: int
) -> None:
    """So it is where pixels come by h5py, or row by row from a disk."""
    path = tmp_path / "rows.h5"
    storage = {
        "h5py": {"chunks": (1, 16, 16, 3), "compression": "lzf"},
        "read": {},
    }
    with h5py.File(path, "w") as file:
        file.create_dataset("X_train", data=np.zeros((6 * BATCH, 16, 16, 3), np.uint8), **storage[way])
        file["Y_train"] = np.arange(6 * BATCH)
    dataset = dataset_h5(path)
    if way == "read":
        part: Any = dataset.reader._parts[0]
        part._x = replace(part._x, choice=EngineChoice("read", "a test"))
    slow = SlowRows(BATCH)
    owner, name = {
        "h5py": (h5py.Dataset, "__getitem__"),
        "read": (ReadFile, "read_into"),
    }[way]
    # Every other row: each is a piece of its own.
    loader = make_loader(
        dataset,
        BATCH,
        num_workers=threads,
        prefetch_factor=1,
        strategy="direct",
        shuffle=False,
        sampler=range(0, 6 * BATCH, 2),
    )
    slow.before(owner, name, monkeypatch)
    assert begun_after_break(loader, slow) <= threads
