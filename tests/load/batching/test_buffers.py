"""The pool lends memory again only when nobody can see it any more."""

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from colabstage import dataset_h5, make_loader
from colabstage.load.reading import memory
from colabstage.load.reading.memory import BufferPool

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE = (64, 64, 64)  # 262,144 bytes: above what the pool leaves to malloc


def test_a_block_that_comes_back_is_waited_for() -> None:
    """Whoever looks out for a block has it as soon as another thread drops it, and hears of none that stays away."""
    pool = BufferPool(2)
    held = [pool.borrow(SHAPE, np.uint8), pool.borrow(SHAPE, np.uint8)]
    # Nobody looks out for this one.
    held.pop()
    pool.expect_return()
    assert not pool.await_return(0.01)
    dropping = threading.Timer(0.05, held.clear)
    pool.expect_return()
    dropping.start()
    assert pool.await_return(10)
    assert pool.idle == 2
    dropping.join()


@pytest.mark.parametrize(
    "derive",
    [
        lambda array: array[3:5, 1],
        lambda array: array.transpose(2, 0, 1)[::2],
        lambda array: array.view(np.uint16)[1:],
        lambda array: array.reshape(-1)[5:].view(np.int8),
        memoryview,
        lambda array: np.lib.stride_tricks.sliding_window_view(array, 3, axis=0),
    ],
    ids=["slice", "transpose", "dtype", "flat", "memoryview", "window"],
)
def test_any_view_keeps_the_memory(derive: object) -> None:
    """Whatever is derived from a lent array keeps its memory, and gives it back when it goes."""
    assert callable(derive)
    pool = BufferPool(2)
    view = derive(pool.borrow(SHAPE, np.uint8))
    gc.collect()
    assert pool.idle == 0
    del view
    gc.collect()
    assert pool.idle == 1


def test_a_forked_child_does_not_write_into_its_parent() -> None:
    """Memory of the pool is private to each process after a fork."""
    array = BufferPool(1).borrow(SHAPE, np.uint8)
    array[...] = 1
    child = os.fork()
    if child == 0:
        array[...] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert int(array.max()) == 1


@pytest.mark.torch
@pytest.mark.parametrize(("options", "most"), [({"num_workers": 0}, 2), ({"prefetch_factor": 2}, 8)])
def test_memory_of_dropped_batches_is_used_again(
    make_file: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], most: int
) -> None:
    """Epochs need memory for the batches in flight: in the loop one that is used and one that is made; of a thread two
    more wait, and others may be on their way back."""
    mapped: list[int] = []
    map_memory = memory.map_memory

    def counted(nbytes: int) -> Any:
        mapped.append(nbytes)
        return map_memory(nbytes)

    monkeypatch.setattr(memory, "map_memory", counted)
    # Of 72 KB each: above what the pool leaves to malloc.
    loader = make_loader(dataset_h5(make_file("pack", 1600).path), 200, **options)
    assert sum(len(y) for _ in range(4) for _x, y in loader) == 4 * 1600
    assert 0 < len(mapped) <= most
