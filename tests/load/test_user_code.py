"""The caller's Python code runs where a stock `DataLoader` runs it, and sees the same calls."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from colabstage import dataset_h5, make_loader, to_numpy
from colabstage.errors import OptionError
from tests.support.made_files import write_rows

ROWS = 41


@pytest.fixture(scope="module")
def numbered(make_numbered: Callable[[int], Path]) -> Path:
    return make_numbered(ROWS)


class Watched:
    """A transform that draws from all generators, and records how and where it is called."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, x: Any) -> torch.Tensor:
        self.calls.append(int(x[0]))
        self.threads.add(threading.current_thread())
        drawn = (random.random(), float(np.random.rand()), float(torch.rand(())))  # noqa: NPY002
        return torch.tensor([float(x[0]), *drawn], dtype=torch.float64)


def trained(batches: Iterator[Any], stop: int) -> list[Any]:
    """Return what a loop sees that also draws, as dropout does, and is left after `stop` batches."""
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    seen = []
    for number, (x, y) in enumerate(batches):
        if number == stop:
            break
        seen.append((x.tolist(), y.tolist(), float(torch.rand(())), random.random()))
    return seen


@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=30),
    batch_size=st.integers(1, 9),
    stop=st.integers(0, 12),
    options=st.sampled_from(
        [{"strategy": "direct"}, {"strategy": "memory"}, {"strategy": "direct", "prefetch_factor": 7}]
    ),
    epoch=st.integers(0, 2),
)
@settings(max_examples=settings().max_examples // 2)
def test_a_transform_sees_the_calls_of_a_stock_loader(
    numbered: Path, rows: list[int], batch_size: int, stop: int, options: dict[str, Any], epoch: int
) -> None:
    """The same samples in the same order, no more if the loop is left, in the same thread, with the same draws of every
    generator, including the training's own between them."""
    ours, stock = Watched(), Watched()
    loader = make_loader(dataset_h5(numbered, ours), batch_size, sampler=rows, shuffle=True, seed=3, **options)
    loader.set_epoch(epoch)
    loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
    again = DataLoader(
        dataset_h5(numbered, stock), batch_size, sampler=list(loader.sampler), generator=torch.Generator()
    )
    assert trained(iter(loader), stop) == trained(iter(again), stop)
    assert ours.calls == stock.calls
    assert ours.threads == {threading.current_thread()}


@pytest.mark.parametrize("strategy", ["direct", "memory"])
def test_a_transform_may_be_exchanged_after_a_loader_was_made(numbered: Path, strategy: Any) -> None:
    """The dataset's, or one given to the loader, as with a stock one."""
    dataset = dataset_h5(numbered, lambda _: torch.zeros(2))
    loader: Any = make_loader(dataset, 4, strategy=strategy, shuffle=False)
    dataset.transform = lambda _: torch.ones(2)
    assert float(next(iter(loader))[0].sum()) == 8
    loader.dataset.target_transform = lambda _: 7
    assert next(iter(loader))[1].tolist() == [7] * 4
    loader.dataset.transform = loader.dataset.target_transform = None
    assert next(iter(loader))[1].tolist() == [0, 1, 2, 3]
    assert dataset.transform is None


def test_a_transform_that_comes_too_late_is_refused(numbered: Path) -> None:
    """Samples on the device do not pass through it."""
    dataset = dataset_h5(numbered)
    loader = make_loader(dataset, 4, strategy="device")
    dataset.transform = lambda x: x
    with pytest.raises(OptionError, match="Make a new loader"):
        next(iter(loader))


def exhausted(*_: Any) -> Any:
    """An iterator of its own that is exhausted."""
    return next(iter(()))


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"strategy": "memory"}], ids=str)
def test_user_code_cannot_end_an_epoch(numbered: Path, options: dict[str, Any]) -> None:
    """The loop would see fewer samples, and no error."""
    for name in ("transform", "target_transform"):
        transforms: dict[str, Any] = {name: exhausted}
        with (
            make_loader(dataset_h5(numbered, **transforms), 8, **options) as loader,
            pytest.raises(RuntimeError, match=f"{name} raised StopIteration"),
        ):
            list(loader)
        with pytest.raises(RuntimeError, match=f"{name} raised StopIteration"):
            list(DataLoader(dataset_h5(numbered, **transforms), 8))
    with pytest.raises(RuntimeError, match="batch_transform raised StopIteration"):
        list(make_loader(dataset_h5(numbered), 8, batch_transform=exhausted, **options))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Images (H, W, C), with float targets."""
    x = np.random.default_rng(0).integers(0, 256, (9, 6, 5, 3), dtype=np.uint8)
    return write_rows(tmp_path / "pictures.h5", x, np.arange(9, dtype=np.float64) / 7)


@pytest.mark.parametrize("strategy", ["direct", "memory"])
def test_a_side_without_transform_is_as_ever(pictures: Path, strategy: Any) -> None:
    """A transform of targets leaves x unchanged, axes and all; one of x leaves y."""
    plain_x, plain_y = next(iter(make_loader(dataset_h5(pictures), 9, shuffle=False)))
    target = dataset_h5(pictures, target_transform=lambda y: y * 2)
    x, y = next(iter(make_loader(target, 9, shuffle=False, strategy=strategy, dtype=torch.float32)))
    torch.testing.assert_close(x, plain_x.float() / 255)
    torch.testing.assert_close(y, plain_y * 2)
    inputs = dataset_h5(pictures, lambda x: torch.from_numpy(x).float().mean())
    x, y = next(iter(make_loader(inputs, 9, shuffle=False, strategy=strategy)))
    assert x.shape == (9,)
    assert torch.equal(y, plain_y)
    assert y.dtype == plain_y.dtype


@pytest.mark.parametrize("name", ["transform", "target_transform"])
@pytest.mark.parametrize("error", [ValueError, TypeError])
@pytest.mark.parametrize(
    "read",
    [
        lambda dataset: dataset[:],
        lambda dataset: [*make_loader(dataset, 8, shuffle=True)],
        lambda dataset: [*DataLoader(dataset, 8)],
        lambda dataset: [*to_numpy(dataset, 8)],
    ],
    ids=["dataset", "loader", "stock", "numpy"],
)
def test_the_error_of_a_transform_names_its_row(
    numbered: Path, name: str, error: type[Exception], read: Callable[[Any], object]
) -> None:
    """As a note on its own error; in the message if the call itself was wrong."""

    def fails_at_23(value: Any) -> Any:
        if int(np.ravel(value)[0]) == 23:
            raise error
        return value

    transforms: dict[str, Any] = {name: fails_at_23}
    with pytest.raises((ValueError, OptionError)) as caught:
        read(dataset_h5(numbered, **transforms))
    assert "row 23" in " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
