"""Window shuffle: large files in random order, at the rate of reading them front to back, in the memory allowed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import torch

from colabstage.errors import DecodeError, OptionError
from colabstage.h5.schema import FORMAT_ATTRIBUTE, FORMAT_VERSION
from colabstage.io.pipeline import SOLO
from colabstage.load.batches import Window, WindowReader
from colabstage.load.dataset import dataset_h5
from colabstage.load.epoch import Shard, WindowOrder
from colabstage.load.loader import make_loader
from colabstage.load.plan import LoaderOptions
from colabstage.load.reading.reader import SplitReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.io.pipeline import ThreadPool

ALL = Shard()


@pytest.mark.parametrize(("count", "window", "block"), [(0, 4, 2), (1, 4, 2), (100, 20, 3), (97, 1000, 10), (64, 8, 8)])
def test_every_row_once(count: int, window: int, block: int) -> None:
    """An epoch visits each row exactly once, whether or not windows and blocks come out even."""
    rows = WindowOrder(count, window, block, 3).rows(5, ALL)
    assert rows.dtype == np.intp
    assert sorted(rows.tolist()) == list(range(count))


def test_a_window_is_made_of_whole_blocks() -> None:
    """Rows of a window come from few blocks of neighbours, so that the disk reads in long stretches."""
    rows = WindowOrder(10_000, 400, 50, 3).rows(0, ALL)
    for window in np.split(rows, 25):
        assert len(np.unique(window // 50)) == 8


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    """The same numbers give the same order, others another one, and this one is pinned."""
    orders = {(s, e): tuple(WindowOrder(99, 12, 5, s).rows(e, ALL).tolist()) for s in (0, 1) for e in (0, 1)}
    assert len(set(orders.values())) == 4
    assert orders[1, 0] == tuple(WindowOrder(99, 12, 5, 1).rows(0, ALL).tolist())
    assert WindowOrder(10, 4, 2, 7).rows(2, ALL).tolist() == [2, 4, 3, 5, 8, 0, 1, 9, 6, 7]


def test_each_row_is_anywhere_in_an_epoch_equally_often() -> None:
    """Over 2,000 seeds the places that a row comes at are as even as rng: chi-square with 19 degrees of freedom."""
    places = np.empty((2000, 100), np.intp)
    for seed in range(2000):
        rows = WindowOrder(100, 20, 5, seed).rows(1, ALL)
        places[seed, rows] = np.arange(100)
    for row in (0, 37, 99):
        counts = np.bincount(places[:, row] // 5, minlength=20)
        assert ((counts - 100) ** 2 / 100).sum() < 43.8  # exceeded by chance once in a thousand


@pytest.mark.parametrize("kind", ["pack", "gzip", "big-endian"])
@pytest.mark.parametrize("budget", [40_000, "1MB"])
def test_batches_are_the_files_rows(make_file: Callable[..., Any], kind: str, budget: int | str) -> None:
    """Every batch has exactly the rows of its index, each row once an epoch, in small windows and in one."""
    sample = make_file(kind, 61)
    dataset = dataset_h5(sample.path, return_index=True)
    loader = make_loader(dataset, 4, strategy="direct", shuffle="window", memory_budget=budget, prefetch_factor=1)
    assert loader.plan.order.name == "window"
    for _ in range(2):
        seen: list[int] = []
        for (x, y), index in loader:
            np.testing.assert_array_equal(x.permute(0, 2, 3, 1).numpy(), sample.x[index.numpy()])
            np.testing.assert_array_equal(y.numpy(), sample.y[index.numpy()])
            seen += index.tolist()
        assert sorted(seen) == list(range(61))


def test_resuming_at_any_batch_is_exact(make_file: Callable[..., Any]) -> None:
    """A new loader goes on with the very next batch, in the middle of a window and at its edges."""
    dataset = dataset_h5(make_file("pack", 61).path, return_index=True)

    def make() -> Any:
        window = LoaderOptions(strategy="direct", shuffle="window", memory_budget=20_000, prefetch_factor=1)
        return make_loader(dataset, 4, options=window, seed=2)

    loader = make()
    assert 4 < loader.plan.order.window_rows < 61
    states, straight = [loader.state_dict()], []
    for _, index in loader:
        states.append(loader.state_dict())
        straight.append(index.tolist())
    for done, state in enumerate(states[:-1]):
        resumed = make()
        resumed.load_state_dict(state)
        assert [index.tolist() for _, index in resumed] == straight[done:]


def test_a_state_of_other_windows_is_refused(make_file: Callable[..., Any]) -> None:
    """Windows of another size are another order."""
    dataset = dataset_h5(make_file("pack", 61).path)
    small, large = (
        make_loader(dataset, 4, strategy="direct", shuffle="window", memory_budget=size) for size in (20_000, "9MB")
    )
    with pytest.raises(OptionError, match="window_rows"):
        large.load_state_dict(small.state_dict())


def test_images_of_their_own_sizes_and_transforms(make_encoded: Callable[..., Path]) -> None:
    """Lists of images, and what a transform makes of each, come out of windows too."""
    dataset = dataset_h5(make_encoded(17), return_index=True)
    rows = []
    for (x, _), index in make_loader(
        dataset, 3, strategy="direct", shuffle="window", memory_budget="50kB", prefetch_factor=1
    ):
        rows += index.tolist()
        for image, row in zip(x, index.tolist(), strict=True):
            np.testing.assert_array_equal(image.permute(1, 2, 0), dataset[row][0][0])
    assert sorted(rows) == list(range(17))
    summed = dataset_h5(make_encoded(17), lambda x: int(x.sum()), return_index=True)
    batches = list(make_loader(summed, 3, strategy="direct", shuffle="window"))
    assert [len(index) for _, index in batches] == [3, 3, 3, 3, 3, 2]
    for (x, _), index in batches:
        assert x.tolist() == [summed[row][0][0] for row in index.tolist()]


def test_a_broken_row_is_raised_in_the_loop(make_encoded: Callable[..., Path]) -> None:
    """The error of the thread that reads windows arrives by name, and no thread stays."""
    loader = make_loader(dataset_h5(make_encoded(9, size=(8, 8), broken=5)), 2, strategy="direct", shuffle="window")
    with pytest.raises(DecodeError, match="Row 5 of X_train"):
        list(loader)


def test_early_breaks_leave_nothing(make_file: Callable[..., Any]) -> None:
    """The leak guard finds neither threads nor files after loops that are left early, and the next starts anew."""
    dataset = dataset_h5(make_file("pack", 61).path, return_index=True)
    loader = make_loader(dataset, 4, strategy="direct", shuffle="window", memory_budget=20_000, prefetch_factor=1)
    for _ in range(50):
        for _batch in loader:
            break
    assert sorted(row for _, index in loader for row in index.tolist()) == list(range(61))
    loader.close()


def test_two_buffers_hold_all_windows(tmp_path: Path) -> None:
    """However many windows there are, their inputs lie in two places."""
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file["X_train"] = np.arange(1000 * 64, dtype=np.uint8).reshape(1000, 64)
        file["Y_train"] = np.arange(1000)
    rows = SplitReader(tmp_path / "file.h5")
    reader = WindowReader(rows, rows, SOLO, [np.arange(n, n + 100) for n in range(0, 1000, 100)])
    places = set()
    for window in reader.windows():
        if isinstance(window, Window):
            assert isinstance(window.x, np.ndarray)
            places.add(window.x.ctypes.data)
            np.testing.assert_array_equal(window.y, window.rows)
    reader.close()
    assert len(places) == 2


def test_reading_goes_on_while_nobody_asks_for_the_window_that_is_there(tmp_path: Path) -> None:
    """Between two windows the disk does not wait for the consumer's thread: once the first is used, the third is read
    right after the second, and the fourth, whose place the second has, is not."""
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file["X_train"], file["Y_train"] = np.zeros((40, 4), np.uint8), np.arange(40)
    begun = [threading.Event() for _ in range(4)]
    may_end = threading.Event()

    class Slow(SplitReader):
        def read_x(self, indices: Any, out: Any = None, *, pool: ThreadPool = SOLO) -> Any:
            number = int(indices[0]) // 10
            begun[number].set()
            assert number != 1 or may_end.wait(20)
            return super().read_x(indices, out, pool=pool)

    slow = Slow(tmp_path / "file.h5")
    reader = WindowReader(slow, slow, SOLO, [np.arange(n, n + 10) for n in range(0, 40, 10)])
    windows = reader.windows()
    try:
        assert any(isinstance(next(windows), Window) for _ in range(100))
        assert begun[1].wait(20)
        assert not isinstance(next(windows), Window)
        may_end.set()
        assert begun[2].wait(20)
        assert any(isinstance(next(windows), Window) for _ in range(100))
        assert not begun[3].is_set()
    finally:
        may_end.set()
        reader.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_budget": 1000}, "memory_budget=1 kB is too little"),
        ({"memory_budget": 0}, "memory_budget=0 B is too little"),
        ({"memory_budget": "much"}, "'much' is not a size"),
        ({"sampler": [1, 2]}, "cannot go with sampler="),
        ({"shuffle": "blocks"}, "shuffle='blocks' is unknown"),
    ],
)
def test_windows_that_cannot_be_are_refused(
    make_file: Callable[..., Any], changes: dict[str, Any], message: str
) -> None:
    """Each is an OptionError with the value and what would do."""
    arguments: dict[str, Any] = {"shuffle": "window", **changes}
    with pytest.raises(OptionError, match=message):
        make_loader(dataset_h5(make_file("pack", 23).path), 4, **arguments)


@pytest.mark.parametrize("packed", [False, True])
def test_auto_takes_windows_for_large_packs(tmp_path: Path, packed: bool) -> None:
    """A file that is neither in memory nor fits there is read in windows, where its rows are in random order."""
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("X_train", (2**22, 512, 512), "u1")
        file["X_train"][0] = 1
        if packed:
            file.attrs[FORMAT_ATTRIBUTE] = FORMAT_VERSION
    loader = make_loader(dataset_h5(tmp_path / "huge.h5"), 64)
    assert loader.plan.engine.name == "read"
    assert loader.plan.order.name == ("window" if packed else "permutation")
    assert 'shuffle="window"' in str(loader.plan) or packed


def test_dtype_and_transform_work_on_windows(make_file: Callable[..., Any]) -> None:
    """Everything that follows reading is as with any other order."""
    loader = make_loader(
        dataset_h5(make_file("pack", 23).path),
        23,
        shuffle="window",
        dtype=torch.float32,
        batch_transform=lambda x, y: (x.amax(), y.sum()),
    )
    ((top, total),) = list(loader)
    assert float(top) <= 1
    assert int(total) == int(make_file("pack", 23).y.sum())
