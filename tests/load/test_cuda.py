"""`CudaDataLoader`: the loader's batches, earlier, and nothing left behind."""

import gc
import threading
import traceback
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from colabstage import CudaDataLoader
from colabstage.errors import OptionError

NUMBERS = DataLoader(TensorDataset(torch.arange(23)), 5)


class Target(NamedTuple):
    boxes: list[torch.Tensor]
    name: str


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "colabstage-cuda"]


def test_nested_batches_arrive_as_they_were(device: str) -> None:
    """Lists, tuples, named tuples and dicts keep their types, tensors their dtype, shape and strides."""
    images = torch.arange(120, dtype=torch.uint8).reshape(2, 4, 5, 3).permute(0, 3, 1, 2)
    batch: dict[str, Any] = {
        "x": images,
        "y": (torch.tensor([1, 2]), [torch.tensor(0.5)]),
        "target": Target([torch.zeros(0, 4), torch.ones(2, 4)], "cat"),
        "text": pack_sequence([torch.ones(3), torch.ones(2)]),
        "other": None,
        # A quantity, whose `to` takes a unit.
        "length": type("Length", (), {"to": lambda self, unit: {"m": 1.0}[unit]})(),
    }
    (moved,) = CudaDataLoader([batch], device)
    assert moved.keys() == batch.keys()
    kind = torch.device(device).type
    assert {moved["x"].device.type, moved["y"][1][0].device.type, moved["target"].boxes[1].device.type} == {kind}
    assert moved["x"].stride() == images.stride()
    torch.testing.assert_close(moved["x"].cpu(), images)
    torch.testing.assert_close(moved["y"][0].cpu(), torch.tensor([1, 2]))
    assert (type(moved["target"]), moved["target"].name) == (Target, "cat")
    assert moved["text"].data.device.type == kind
    assert moved["text"].batch_sizes.device.type == "cpu"
    assert moved["other"] is None
    assert moved["length"] is batch["length"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "make",
    [
        torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc,
        lambda rows: torch.nested.nested_tensor(list(rows)),
        lambda rows: torch.nested.nested_tensor(list(rows), layout=torch.jagged),
    ],
    ids=["coo", "csr", "csc", "nested", "jagged"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*(Sparse|nested tensor)")
def test_tensors_that_are_not_dense_arrive(make: Callable[[torch.Tensor], torch.Tensor], device: str) -> None:
    """Sparse and nested ones keep their layout."""
    (moved,) = CudaDataLoader([make(torch.eye(3))], device)
    assert moved.device.type == device
    rows = moved.cpu().unbind() if moved.is_nested else moved.cpu().to_dense()
    assert torch.equal(torch.stack(list(rows)), torch.eye(3))


@pytest.mark.parametrize("kind", ["tensor", "array", "collated"])
def test_a_loader_may_fill_the_same_memory_again(device: str, kind: str) -> None:
    """Waiting batches are not changed by those that the loader makes meanwhile."""
    memory = torch.zeros(4)

    def refilled() -> Generator[Any]:
        for number in range(9):
            memory.fill_(number)
            yield {"x": memory.numpy() if kind == "array" else memory}

    loader: Any = refilled()
    if kind == "collated":
        loader = DataLoader(range(9), collate_fn=lambda number: {"x": memory.fill_(number[0])})  # type: ignore[arg-type]
    kept = [batch["x"] for batch in CudaDataLoader(loader, device, 4)]
    assert [float(x[0]) for x in kept] == list(range(9))


def test_loading_and_training_go_on_at_once() -> None:
    """While a step trains on one batch, the next is being made, and vice versa: each waits in the middle for the other.
    How little of the shorter one remains is checked by `make bench`."""
    count = 8
    making, training = ([threading.Event() for _ in range(count + 1)] for _ in range(2))
    making[count].set()  # no batch follows the last

    def met() -> Generator[int]:
        for number in range(count):
            making[number].set()
            assert number == 0 or training[number - 1].wait(20)
            yield number

    for number in CudaDataLoader(met(), "cpu"):
        training[number].set()
        assert making[number + 1].wait(20)


class Failing:
    """Yields one batch, then fails."""

    def __iter__(self) -> Generator[torch.Tensor]:
        yield torch.tensor(1)
        self.deep_inside()

    def deep_inside(self) -> None:
        msg = "the disk is on fire"
        raise OSError(msg)


def test_the_loaders_error_comes_out_in_the_loop() -> None:
    """It comes after the batches before it, with the original traceback, and the thread is gone."""
    batches = iter(CudaDataLoader(Failing(), "cpu"))
    assert next(batches) == 1
    with pytest.raises(OSError, match="on fire") as caught:
        next(batches)
    assert "deep_inside" in "".join(traceback.format_exception(caught.value))
    assert not own_threads()


class Endless:
    """Counts for ever, and knows how many of its iterations were ended."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0

    def __iter__(self) -> Generator[int]:
        self.begun += 1
        try:
            number = 0
            while True:
                yield number
                number += 1
        finally:
            self.ended += 1


def test_a_new_iteration_ends_the_one_before() -> None:
    """Running a cell again leaves no threads, nothing of the old epoch comes, and its iterator says why."""
    inner = Endless()
    loader = CudaDataLoader(inner, "cpu")
    old = iter(loader)
    assert [next(old), next(old)] == [0, 1]
    new = iter(loader)
    assert [next(new), next(new)] == [0, 1]
    assert (len(own_threads()), inner.ended) == (1, 1)
    with pytest.raises(RuntimeError, match="newer one"):
        next(old)
    loader.close()
    assert not own_threads()


@pytest.mark.parametrize("kept", ["loader", "iterator", "neither"])
def test_dropping_it_ends_the_thread(kept: str) -> None:
    """The thread lives as long as the iterator, whatever happens to the loader."""
    inner = Endless()
    loader: Any = CudaDataLoader(inner, "cpu")
    batches: Any = iter(loader)
    next(batches)
    if kept != "loader":
        del loader
    if kept != "iterator":
        del batches
    gc.collect()
    assert len(own_threads()) == (1 if kept == "iterator" else 0)
    if kept == "iterator":
        assert next(batches) == 1
        del batches
        gc.collect()
    assert inner.ended == 1
    assert not own_threads()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "abacus"}, "device='abacus'"),
        ({"device": None}, "device='None'"),
        ({"queue_size": 0}, "queue_size=0"),
        ({"queue_size": True}, "queue_size=True"),
        ({"loader": 7}, "loader=7"),
    ],
)
def test_arguments_that_cannot_work_are_refused(changes: dict[str, Any], message: str) -> None:
    """Each is an OptionError with the value, raised before anything is loaded."""
    arguments: dict[str, Any] = {"loader": NUMBERS, "device": "cpu", **changes}
    with pytest.raises(OptionError, match=message):
        CudaDataLoader(**arguments)


def test_batches_stay_what_they_are_while_a_slow_consumer_reads_them(cuda: str) -> None:
    """Kernels queued behind a long one still find their batch, although it was dropped and many came after it."""
    size, count = 100_000, 40
    batches = [torch.full((size,), number, dtype=torch.int32) for number in range(count)]
    consumer = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    sums = []
    with torch.cuda.stream(consumer):
        for batch in CudaDataLoader(batches, cuda, queue_size=1):
            torch.cuda._sleep(5_000_000)  # type: ignore[no-untyped-call]
            sums.append(batch.sum())
            del batch
    consumer.synchronize()
    assert [int(total) for total in sums] == [number * size for number in range(count)]


@pytest.mark.gpu
def test_epochs_share_the_memory_on_the_device() -> None:
    """The tenth epoch reserves no more memory than the second."""
    batches = [torch.full((1_000_000,), number) for number in range(10)]
    loader = CudaDataLoader(batches, "cuda")
    reserved = []
    for _ in range(10):
        for batch in loader:
            batch.sum()
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= reserved[1]
